//! Decompositions, one matrix of a batch after the other, in f64 whatever the dtype: LU with partial pivoting, Cholesky, Householder's QR,
//! Jacobi's methods for the eigenvalues of symmetric matrices and for singular values (Golub, Van Loan, "Matrix Computations", 4th ed.,
//! chapters 3, 4, 5 and 8), and the exponential by scaling and squaring. For the matrices of models, not for thousands of rows: nothing is
//! blocked, and Jacobi's methods are exact rather than fast.
//!
//! Invariant: functions on slices see row-major matrices; a factor that does not exist is told by its number, counted from 1 as in LAPACK.
use super::pointwise;
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, Result, bail};
use smallvec::SmallVec;

/// Matrices row-major one after the other.
pub struct Stack {
    pub lead: SmallVec<[usize; 4]>,
    pub rows: usize,
    pub cols: usize,
    pub data: Vec<f64>,
    dtype: DType,
}
impl Stack {
    pub fn of(op: &str, a: &Array) -> Result<Stack> {
        if a.ndim() < 2 {
            bail!(Runtime, "{op}: The input tensor A must have at least 2 dimensions, but its shape is {:?}.", a.shape);
        }
        if !a.dtype.is_float() {
            bail!(Runtime, "{op}: Expected a floating point or complex tensor as input. Got {}", a.dtype.torch_name());
        }
        if !matches!(a.dtype, DType::Float32 | DType::Float64) {
            return Err(Box::new(Error::NotImplemented(format!(
                "{op}: Low precision dtypes not supported. Got {}; compute in float32",
                a.dtype.torch_name()
            ))));
        }
        let n = a.ndim();
        let data = pointwise::to_f64(a)?.to_vec();
        Ok(Stack { lead: a.shape[..n - 2].into(), rows: a.shape[n - 2], cols: a.shape[n - 1], data, dtype: a.dtype })
    }
    pub fn square(op: &str, a: &Array) -> Result<Stack> {
        let s = Stack::of(op, a)?;
        if s.rows != s.cols {
            bail!(Runtime, "{op}: A must be batches of square matrices, but they are {} by {} matrices", s.rows, s.cols);
        }
        Ok(s)
    }
    /// How many matrices.
    pub fn count(&self) -> usize {
        self.lead.iter().product()
    }
    pub fn each(&self) -> impl Iterator<Item = &[f64]> {
        let n = self.rows * self.cols;
        (0..self.count()).map(move |i| &self.data[i * n..(i + 1) * n])
    }
    /// An array of the batch's shape followed by `tail`, in the operand's dtype.
    pub fn array(&self, tail: &[usize], data: &[f64]) -> Result<Array> {
        pointwise::cast(&Array::from_slice(&self.shape(tail), data)?, self.dtype)
    }
    pub fn ints(&self, tail: &[usize], data: &[i32]) -> Result<Array> {
        Array::from_slice(&self.shape(tail), data)
    }
    fn shape(&self, tail: &[usize]) -> Vec<usize> {
        [&self.lead, tail].concat()
    }
}
fn unit(n: usize) -> Vec<f64> {
    let mut q = vec![0.0; n * n];
    (0..n).for_each(|i| q[i * n + i] = 1.0);
    q
}
fn swap_rows(a: &mut [f64], i: usize, j: usize, n: usize) {
    if i != j {
        (0..n).for_each(|k| a.swap(i * n + k, j * n + k));
    }
}
/// [n, m] by [m, p].
fn product(a: &[f64], b: &[f64], n: usize, m: usize, p: usize) -> Vec<f64> {
    let mut c = vec![0.0; n * p];
    for i in 0..n {
        for k in 0..m {
            let v = a[i * m + k];
            for j in 0..p {
                c[i * p + j] += v * b[k * p + j];
            }
        }
    }
    c
}

/// L (its diagonal of ones left out) and U in one; for each row the one that it was exchanged with; the first pivot that is 0, or 0.
pub fn lu(a: &[f64], n: usize) -> (Vec<f64>, Vec<i32>, i32) {
    let (mut a, mut pivots, mut zero) = (a.to_vec(), Vec::with_capacity(n), 0);
    for k in 0..n {
        let mut p = k;
        for i in k + 1..n {
            if a[i * n + k].abs() > a[p * n + k].abs() {
                p = i;
            }
        }
        pivots.push(p as i32 + 1);
        swap_rows(&mut a, k, p, n);
        let pivot = a[k * n + k];
        if pivot == 0.0 {
            zero = if zero == 0 { k as i32 + 1 } else { zero };
            continue;
        }
        for i in k + 1..n {
            let f = a[i * n + k] / pivot;
            a[i * n + k] = f;
            for j in k + 1..n {
                a[i * n + j] -= f * a[k * n + j];
            }
        }
    }
    (a, pivots, zero)
}
/// The sign of the permutation times the signs on the diagonal of U, and the logarithm of its absolute product.
pub fn sign_and_log(lu: &[f64], pivots: &[i32], n: usize) -> (f64, f64) {
    let (mut sign, mut log) = (1.0, 0.0);
    for (i, p) in pivots.iter().enumerate() {
        let d = lu[i * n + i];
        sign *= if d == 0.0 { 0.0 } else { d.signum() } * if *p as usize == i + 1 { 1.0 } else { -1.0 };
        log += d.abs().ln();
    }
    (sign, log)
}
/// The product of the diagonal of U with the sign of the permutation.
pub fn determinant(lu: &[f64], pivots: &[i32], n: usize) -> f64 {
    pivots.iter().enumerate().fold(1.0, |d, (i, p)| d * lu[i * n + i] * if *p as usize == i + 1 { 1.0 } else { -1.0 })
}
/// What solves A x = b, for the `m` columns of `b`.
pub fn lu_solve(lu: &[f64], pivots: &[i32], b: &[f64], n: usize, m: usize) -> Vec<f64> {
    let mut x = b.to_vec();
    pivots.iter().enumerate().for_each(|(i, p)| swap_rows(&mut x, i, *p as usize - 1, m));
    solve_triangular(lu, &mut x, n, m, false, true);
    solve_triangular(lu, &mut x, n, m, true, false);
    x
}
/// Solves in place; only the triangle named is read, and not its diagonal if that is all ones.
pub fn solve_triangular(a: &[f64], x: &mut [f64], n: usize, m: usize, upper: bool, unit: bool) {
    for step in 0..n {
        let i = if upper { n - 1 - step } else { step };
        for k in if upper { i + 1..n } else { 0..i } {
            let f = a[i * n + k];
            for j in 0..m {
                x[i * m + j] -= f * x[k * m + j];
            }
        }
        if !unit {
            x[i * m..(i + 1) * m].iter_mut().for_each(|v| *v /= a[i * n + i]);
        }
    }
}
/// The transposed matrix of cofactors' signs and minors: the gradient of a determinant, also where it is 0.
pub fn cofactors(a: &[f64], n: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(n * n);
    for i in 0..n {
        for j in 0..n {
            let minor: Vec<f64> = (0..n * n).filter(|at| at / n != i && at % n != j).map(|at| a[at]).collect();
            let (f, pivots, _) = lu(&minor, n - 1);
            out.push(determinant(&f, &pivots, n - 1) * if (i + j) % 2 == 0 { 1.0 } else { -1.0 });
        }
    }
    out
}
/// The lower factor, from the lower triangle; or the order of the first leading minor that is not positive.
pub fn cholesky(a: &[f64], n: usize) -> (Vec<f64>, i32) {
    let mut l = vec![0.0; n * n];
    for j in 0..n {
        let dot = |x: usize, y: usize, l: &[f64]| (0..j).map(|k| l[x * n + k] * l[y * n + k]).sum::<f64>();
        let d = a[j * n + j] - dot(j, j, &l);
        if d <= 0.0 || d.is_nan() {
            return (l, j as i32 + 1);
        }
        l[j * n + j] = d.sqrt();
        for i in j + 1..n {
            l[i * n + j] = (a[i * n + j] - dot(i, j, &l)) / l[j * n + j];
        }
    }
    (l, 0)
}
/// Q [m, m] and R [m, n], with the signs that LAPACK gives them.
pub fn qr(a: &[f64], m: usize, n: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut r, mut q) = (a.to_vec(), unit(m));
    for k in 0..n.min(m.saturating_sub(1)) {
        let below: f64 = (k + 1..m).map(|i| r[i * n + k] * r[i * n + k]).sum();
        if below == 0.0 {
            continue;
        }
        let alpha = r[k * n + k];
        let beta = -(alpha * alpha + below).sqrt().copysign(alpha);
        let mut v: Vec<f64> = (k..m).map(|i| r[i * n + k] / (alpha - beta)).collect();
        v[0] = 1.0;
        let tau = (beta - alpha) / beta;
        for j in k..n {
            let s: f64 = tau * (k..m).map(|i| v[i - k] * r[i * n + j]).sum::<f64>();
            (k..m).for_each(|i| r[i * n + j] -= s * v[i - k]);
        }
        for row in q.chunks_exact_mut(m) {
            let s: f64 = tau * (k..m).map(|i| v[i - k] * row[i]).sum::<f64>();
            (k..m).for_each(|i| row[i] -= s * v[i - k]);
        }
        (k + 1..m).for_each(|i| r[i * n + k] = 0.0);
    }
    (q, r)
}
/// The angle, as cosine and sine, that makes the off-diagonal element of [[a, c], [c, b]] 0.
fn rotation(a: f64, b: f64, c: f64) -> (f64, f64) {
    let t = (b - a) / (2.0 * c);
    let t = t.signum() / (t.abs() + t.hypot(1.0));
    let cos = 1.0 / t.hypot(1.0);
    (cos, t * cos)
}
/// Sweeps of Jacobi's methods before giving up; a handful is enough.
const SWEEPS: usize = 60;
/// Eigenvalues of a symmetric matrix in ascending order, and their vectors as columns; None if it holds what is not finite.
pub fn eigh(a: &[f64], n: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    let (mut a, mut v) = (a.to_vec(), unit(n));
    let scale = a.iter().map(|x| x * x).sum::<f64>().sqrt();
    if !scale.is_finite() {
        return None;
    }
    for _ in 0..SWEEPS {
        let off: f64 = (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i * n + j] * a[i * n + j]).sum();
        if off.sqrt() <= f64::EPSILON * 1e-2 * scale {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                let c = a[p * n + q];
                if c == 0.0 {
                    continue;
                }
                let (cos, sin) = rotation(a[p * n + p], a[q * n + q], c);
                let turn = |m: &mut [f64], i: usize, j: usize| {
                    let (x, y) = (m[i], m[j]);
                    (m[i], m[j]) = (cos * x - sin * y, sin * x + cos * y);
                };
                (0..n).for_each(|k| turn(&mut a, p * n + k, q * n + k));
                (0..n).for_each(|k| turn(&mut a, k * n + p, k * n + q));
                (0..n).for_each(|k| turn(&mut v, k * n + p, k * n + q));
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[i * n + i].total_cmp(&a[j * n + j]));
    let vectors = (0..n).flat_map(|k| order.iter().map(move |&j| (k, j))).map(|(k, j)| v[k * n + j]).collect();
    Some((order.iter().map(|&i| a[i * n + i]).collect(), vectors))
}
/// Singular values in descending order with U [m, u] and V [n, v] as columns, `u` and `v` of them; None if there is what is not finite.
pub fn svd(a: &[f64], m: usize, n: usize, full: bool) -> Option<(Vec<f64>, Vec<f64>, Vec<f64>)> {
    if m < n {
        let turned: Vec<f64> = (0..n * m).map(|at| a[(at % m) * n + at / m]).collect();
        return svd(&turned, n, m, full).map(|(s, u, v)| (s, v, u));
    }
    if !a.iter().all(|v| v.is_finite()) {
        return None;
    }
    let column = |j: usize| (0..m).map(|i| a[i * n + j]).collect::<Vec<f64>>();
    let mut u: Vec<Vec<f64>> = (0..n).map(column).collect();
    let mut v: Vec<Vec<f64>> = unit(n).chunks_exact(n.max(1)).map(<[f64]>::to_vec).collect();
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(a, b)| a * b).sum::<f64>();
    for _ in 0..SWEEPS {
        let mut turned = false;
        for p in 0..n {
            for q in p + 1..n {
                let (a, b, c) = (dot(&u[p], &u[p]), dot(&u[q], &u[q]), dot(&u[p], &u[q]));
                if c == 0.0 || c.abs() <= f64::EPSILON * (a * b).sqrt() {
                    continue;
                }
                turned = true;
                let (cos, sin) = rotation(a, b, c);
                for w in [&mut u, &mut v] {
                    let (left, right) = w.split_at_mut(q);
                    for (x, y) in left[p].iter_mut().zip(right[0].iter_mut()) {
                        (*x, *y) = (cos * *x - sin * *y, sin * *x + cos * *y);
                    }
                }
            }
        }
        if !turned {
            break;
        }
    }
    let lengths: Vec<f64> = u.iter().map(|c| dot(c, c).sqrt()).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| lengths[j].total_cmp(&lengths[i]));
    let s: Vec<f64> = order.iter().map(|&i| lengths[i]).collect();
    let least = s.first().copied().unwrap_or(0.0) * f64::EPSILON * m.max(n) as f64;
    let directions = order.iter().filter(|&&i| lengths[i] > least).map(|&i| u[i].iter().map(|x| x / lengths[i]).collect()).collect();
    let u = completed(directions, m, if full { m } else { n });
    let v: Vec<Vec<f64>> = order.iter().map(|&i| v[i].clone()).collect();
    Some((s, as_columns(&u, m), as_columns(&v, n)))
}
/// Orthonormal columns and as many more, orthogonal to them, as there shall be.
fn completed(mut u: Vec<Vec<f64>>, m: usize, count: usize) -> Vec<Vec<f64>> {
    for at in 0..m {
        if u.len() == count {
            break;
        }
        let mut e = vec![0.0; m];
        e[at] = 1.0;
        for _ in 0..2 {
            for c in &u {
                let s: f64 = c.iter().zip(&e).map(|(a, b)| a * b).sum();
                e.iter_mut().zip(c).for_each(|(x, y)| *x -= s * y);
            }
        }
        let length = e.iter().map(|x| x * x).sum::<f64>().sqrt();
        // Of the rows that are left, one is at least this far from the span of what there is.
        if length * ((m - at) as f64).sqrt() * 2.0 >= 1.0 || m - at == count - u.len() {
            u.push(e.iter().map(|x| x / length).collect());
        }
    }
    u
}
fn as_columns(u: &[Vec<f64>], m: usize) -> Vec<f64> {
    (0..m).flat_map(|i| u.iter().map(move |c| c[i])).collect()
}
/// The exponential of a matrix: halved until it is small, Taylor's series, squared as often.
pub fn exponential(a: &[f64], n: usize) -> Vec<f64> {
    const TERMS: usize = 18;
    let norm = (0..n).map(|j| (0..n).map(|i| a[i * n + j].abs()).sum::<f64>()).fold(0.0, f64::max);
    let halvings = if norm.is_finite() { (norm * 2.0).log2().ceil().max(0.0) as i32 } else { 0 };
    let a: Vec<f64> = a.iter().map(|v| v * 0.5f64.powi(halvings)).collect();
    let mut e = unit(n);
    for k in (1..=TERMS).rev() {
        e = product(&a, &e, n, n, n);
        e.iter_mut().for_each(|v| *v /= k as f64);
        (0..n).for_each(|i| e[i * n + i] += 1.0);
    }
    (0..halvings).for_each(|_| e = product(&e, &e, n, n, n));
    e
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without a pattern.
    fn some(n: usize) -> Vec<f64> {
        (0..n).map(|i| ((i * i * 37 + i * 11) % 23) as f64 / 7.0 - 1.5).collect()
    }
    fn close(a: &[f64], b: &[f64]) {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b).for_each(|(x, y)| assert!((x - y).abs() < 1e-11 * (1.0 + y.abs()), "{a:?} for {b:?}"));
    }
    fn turned(a: &[f64], n: usize, m: usize) -> Vec<f64> {
        (0..n * m).map(|at| a[(at % n) * m + at / n]).collect()
    }
    fn gram(a: &[f64], n: usize, m: usize) -> Vec<f64> {
        product(&turned(a, n, m), a, m, n, m)
    }
    #[test]
    fn solving_undoes_the_product() {
        for n in 1..6 {
            let (a, x) = (some(n * n), some(n * 2));
            let (f, pivots, zero) = lu(&a, n);
            assert_eq!(zero, 0);
            close(&lu_solve(&f, &pivots, &product(&a, &x, n, n, 2), n, 2), &x);
            let (sign, log) = sign_and_log(&f, &pivots, n);
            close(&[sign * log.exp()], &[determinant(&f, &pivots, n)]);
        }
        let (f, pivots, _) = lu(&[0.0, 2.0, 3.0, 4.0], 2);
        close(&[determinant(&f, &pivots, 2)], &[-6.0]);
        assert_eq!(lu(&[1.0, 2.0, 2.0, 4.0], 2).2, 2);
        close(&cofactors(&[1.0, 2.0, 2.0, 4.0], 2), &[4.0, -2.0, -2.0, 1.0]);
        close(&cofactors(&[5.0], 1), &[1.0]);
    }
    #[test]
    fn factors_multiply_to_the_matrix() {
        for n in 1..6 {
            let mut a = gram(&some(n * n), n, n);
            (0..n).for_each(|i| a[i * n + i] += 1.0);
            let (l, bad) = cholesky(&a, n);
            assert_eq!(bad, 0);
            close(&product(&l, &turned(&l, n, n), n, n, n), &a);
            let (w, v) = eigh(&a, n).unwrap();
            assert!(w.windows(2).all(|p| p[0] <= p[1]));
            close(&gram(&v, n, n), &unit(n));
            let scaled: Vec<f64> = v.iter().enumerate().map(|(at, x)| x * w[at % n]).collect();
            close(&product(&scaled, &turned(&v, n, n), n, n, n), &a);
        }
        assert_eq!(cholesky(&[1.0, 0.0, 0.0, -1.0], 2).1, 2);
        assert!(eigh(&[f64::NAN], 1).is_none());
    }
    #[test]
    fn orthogonal_factors_are_orthogonal_for_every_shape() {
        for (m, n) in [(1, 1), (3, 3), (5, 2), (2, 5), (4, 3), (0, 2), (2, 0)] {
            let a = some(m * n);
            let (q, r) = qr(&a, m, n);
            close(&gram(&q, m, m), &unit(m));
            close(&product(&q, &r, m, m, n), &a);
            assert!((0..m * n).all(|at| at / n.max(1) <= at % n.max(1) || r[at] == 0.0));
            let k = m.min(n);
            for full in [false, true] {
                let (s, u, v) = svd(&a, m, n, full).unwrap();
                let (p, w) = if full { (m, n) } else { (k, k) };
                close(&gram(&u, m, p), &unit(p));
                close(&gram(&v, n, w), &unit(w));
                assert!(s.windows(2).all(|p| p[0] >= p[1]));
                let us: Vec<f64> = (0..m * k).map(|at| u[at / k * p + at % k] * s[at % k]).collect();
                let vk: Vec<f64> = (0..n * k).map(|at| v[at / k * w + at % k]).collect();
                close(&product(&us, &turned(&vk, n, k), m, k, n), &a);
            }
        }
        // of less than full rank
        let (s, u, _) = svd(&[1.0, 2.0, 2.0, 4.0, 3.0, 6.0], 3, 2, true).unwrap();
        assert!(s[1].abs() < 1e-14);
        close(&gram(&u, 3, 3), &unit(3));
    }
    #[test]
    fn the_exponential_of_a_sum_of_commuting_matrices_is_a_product() {
        let a = some(9);
        let b: Vec<f64> = a.iter().map(|v| v * 3.0).collect();
        let c: Vec<f64> = a.iter().map(|v| v * 4.0).collect();
        close(&product(&exponential(&a, 3), &exponential(&b, 3), 3, 3, 3), &exponential(&c, 3));
        close(&exponential(&[0.0, 1.0, 0.0, 0.0], 2), &[1.0, 1.0, 0.0, 1.0]);
        close(&exponential(&[2.0], 1), &[2f64.exp()]);
    }
}
