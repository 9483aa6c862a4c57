//! Linear algebra beyond products: decompositions and what is solved with them. Operands are named as torch names them. A formula is the
//! derivative of the decomposition in terms of its own factors (Giles 2008, "Collected Matrix Derivative Results"; for QR and pseudoinverses
//! Walter, Lehmann 2010 and Golub, Pereyra 1973).
#![allow(non_snake_case, reason = "matrices have the names that users see: A, B, LU")]
use super::macros::{function, op, op_many};
use super::matmul::given_out;
use super::reduce::needed;
use super::*;
use crate::error::{Error, bail};
use crate::kernels::linalg::{self as factors, Stack};
use crate::kernels::{Out, pointwise, table};
use crate::layout::wrap_dim;
use crate::ops::unary::{times, zeros_of};
use smallvec::smallvec;

const ONE: Scalar = Scalar::Int(1);
fn turned(x: &Tensor) -> Result<Tensor> {
    transpose(x, -2, -1)
}
fn mm_(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    matmul(a, b, None)
}
fn minus(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    sub(a, b, ONE)
}
fn plus_(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    add(a, b, ONE)
}
/// A batch of numbers as a batch of 1 by 1 matrices.
fn as_matrices(x: &Tensor) -> Result<Tensor> {
    unsqueeze(&unsqueeze(x, -1)?, -1)
}
fn refused(op: &str, what: String) -> Box<Error> {
    Box::new(Error::LinAlg(format!("{op}: {what}")))
}
fn singular(op: &str, k: i32) -> Box<Error> {
    refused(op, format!("The diagonal element {k} is zero, the inversion could not be completed because the input matrix is singular."))
}
/// What LU gives for each matrix, one after the other.
struct Factored {
    lu: Vec<f64>,
    pivots: Vec<i32>,
    zeros: Vec<i32>,
}
fn factored(s: &Stack) -> Factored {
    let mut f = Factored { lu: vec![], pivots: vec![], zeros: vec![] };
    for a in s.each() {
        let (lu, pivots, zero) = factors::lu(a, s.rows);
        f.lu.extend(lu);
        f.pivots.extend(pivots);
        f.zeros.push(zero);
    }
    f
}
impl Factored {
    fn each(&self, n: usize) -> impl Iterator<Item = (&[f64], &[i32])> {
        (0..self.zeros.len()).map(move |i| (&self.lu[i * n * n..(i + 1) * n * n], &self.pivots[i * n..(i + 1) * n]))
    }
}

// ---- inverses and determinants ----
op_many! {
    /// The inverse of each matrix, and 0, or which pivot was 0.
    ///
    /// Raises LinAlgError for a singular matrix if `check_errors`.
    LinalgInvExBackward0 = fn inv_ex(A; *, check_errors: bool = false) -> [inverse; nondiff info];
    overload linalg_inv_ex;
    named "linalg_inv_ex";
    on [linalg];
    forward {
        let s = Stack::square("linalg.inv", A)?;
        let (n, f) = (s.rows, factored(&s));
        if *check_errors && let Some(k) = f.zeros.iter().find(|k| **k != 0) {
            return Err(singular("linalg.inv", *k));
        }
        let one: Vec<f64> = (0..n * n).map(|at| (at / n == at % n) as u8 as f64).collect();
        let all: Vec<f64> = f.each(n).flat_map(|(lu, p)| factors::lu_solve(lu, p, &one, n, n)).collect();
        Ok(smallvec![s.array(&[n, n], &all)?, s.ints(&[], &f.zeros)?])
    };
    saves [inverse];
    grad(g, cx) { A uses [inverse] => match &g[0] {
        Some(g) => {
            let t = turned(needed(inverse)?)?;
            neg(&mm_(&mm_(&t, g)?, &t)?).map(Some)
        }
        None => Ok(None),
    } }
}
function! {
    /// The inverse of a square matrix, or of each in a batch.
    ///
    /// Raises LinAlgError for a singular matrix.
    fn linalg_inv(A; *, out: Option<Tensor> = None) -> Tensor;
    on [linalg];
    { given_out("linalg.inv", out, inv_ex(A, true)?.swap_remove(0)) }
}
function! {
    /// Alias of `linalg.inv`.
    fn inverse(self_) -> Tensor;
    { linalg_inv(self_, None) }
}
op_many! {
    /// The determinant of each square matrix.
    LinalgDetBackward0 = fn det_of(A) -> [result; hidden LU, pivots];
    overload _linalg_det;
    on [private];
    forward {
        let s = Stack::square("linalg.det", A)?;
        let (n, f) = (s.rows, factored(&s));
        let d: Vec<f64> = f.each(n).map(|(lu, p)| factors::determinant(lu, p, n)).collect();
        Ok(smallvec![s.array(&[], &d)?, s.array(&[n, n], &f.lu)?, s.ints(&[n], &f.pivots)?])
    };
    saves [A, LU, pivots, result];
    grad(g, cx) { A uses [A, LU, pivots, result] => match &g[0] {
        Some(g) => {
            let _ = (LU, pivots); // for hooks and readers: the formula needs the matrix itself, to be differentiated
            let (A, d) = (needed(A)?, needed(result)?);
            if pointwise::to_f64(&d.array())?.contains(&0.0) {
                grad_of_det_where_it_is_zero(g, A).map(Some)
            } else {
                mul(&as_matrices(&mul(g, d)?)?, &turned(&linalg_inv(A, None)?)?).map(Some)
            }
        }
        None => Ok(None),
    } }
}
/// The cofactors, of which not all are 0 where one dimension alone is lost. They have no derivative here.
fn grad_of_det_where_it_is_zero(g: &Tensor, A: &Tensor) -> Result<Tensor> {
    mul(&as_matrices(g)?, &cofactors(A)?)
}
op! {
    /// The minors with their signs.
    CofactorsBackward = fn cofactors(A);
    on [private];
    forward(_out) {
        let s = Stack::square("linalg.det", A)?;
        let all: Vec<f64> = s.each().flat_map(|a| factors::cofactors(a, s.rows)).collect();
        s.array(&[s.rows, s.rows], &all)
    };
    grad(g, cx) { A uses [] => Err(crate::error::err!(NotImplemented, "linalg.det: the second derivative at a singular matrix is not implemented (a gradient of shape {:?} arrived)", g.shape())) }
}
function! {
    /// The determinant of a square matrix, or of each in a batch.
    fn det(self_) -> Tensor;
    { Ok(det_of(self_)?.swap_remove(0)) }
}
function! {
    /// The determinant of a square matrix, or of each in a batch.
    fn linalg_det(A; *, out: Option<Tensor> = None) -> Tensor;
    on [linalg];
    { given_out("linalg.det", out, det(A)?) }
}
op_many! {
    /// The sign of each determinant and the logarithm of its absolute value (0 and -inf for a singular matrix).
    LinalgSlogdetBackward0 = fn sign_and_log(A) -> [sign, logabsdet; hidden LU, pivots];
    overload _linalg_slogdet;
    on [private];
    forward {
        let s = Stack::square("linalg.slogdet", A)?;
        let (n, f) = (s.rows, factored(&s));
        let (sign, log): (Vec<f64>, Vec<f64>) = f.each(n).map(|(lu, p)| factors::sign_and_log(lu, p, n)).unzip();
        Ok(smallvec![s.array(&[], &sign)?, s.array(&[], &log)?, s.array(&[n, n], &f.lu)?, s.ints(&[n], &f.pivots)?])
    };
    saves [A, LU, pivots, sign];
    grad(g, cx) { A uses [A, LU, pivots, sign] => match &g[1] {
        Some(g) => {
            let _ = (LU, pivots, sign); // for hooks and readers
            mul(&as_matrices(g)?, &turned(&linalg_inv(needed(A)?, None)?)?).map(Some)
        }
        None => Ok(None),
    } }
}
function! {
    /// The sign of each determinant and the logarithm of its absolute value.
    fn linalg_slogdet(A) -> Tensors;
    on [linalg];
    named "linalg_slogdet";
    { sign_and_log(A) }
}
function! {
    /// The sign of each determinant and the logarithm of its absolute value.
    fn slogdet(self_) -> Tensors;
    named "slogdet";
    { sign_and_log(self_) }
}
function! {
    /// The logarithm of the determinant; NaN where that is negative.
    fn logdet(self_) -> Tensor;
    {
        let parts = sign_and_log(self_)?;
        let nan = number(f64::NAN)?;
        where_(&lt(&parts[0], &number(0.0)?)?, &nan, &parts[1])
    }
}

// ---- solving ----
op_many! {
    /// What solves `A X = B`, for matrices of one batch shape.
    LinalgSolveExBackward0 = fn solve_matrices(A, B; left: bool, check_errors: bool) -> [result; hidden LU, pivots];
    overload _linalg_solve;
    on [private];
    forward {
        let (s, b) = (Stack::square("linalg.solve", A)?, Stack::of("linalg.solve", B)?);
        let (n, f) = (s.rows, factored(&s));
        if *check_errors && f.zeros.iter().any(|k| *k != 0) {
            return Err(refused("torch.linalg.solve", "The solver failed because the input matrix is singular.".into()));
        }
        let all: Vec<f64> = f.each(n).zip(b.each()).flat_map(|((lu, p), b)| factors::lu_solve(lu, p, b, n, b.len() / n.max(1))).collect();
        Ok(smallvec![b.array(&[b.rows, b.cols], &all)?, s.array(&[n, n], &f.lu)?, s.ints(&[n], &f.pivots)?])
    };
    saves [A, LU, pivots, result];
    together(g, cx; A, LU, pivots, result) { A uses [A, LU, pivots, result], B uses [A, LU, pivots] } => {
        let Some(g) = &g[0] else { return Ok(()) };
        let _ = (LU, pivots); // for hooks and readers
        let back = solve(&turned(needed(&A()?)?)?, g, true)?;
        let of_a = if cx.needs(0) { Some(neg(&mm_(&back, &turned(needed(&result()?)?)?)?)?) } else { None };
        Ok(vec![of_a, Some(back)])
    };
}
fn solve(A: &Tensor, B: &Tensor, check: bool) -> Result<Tensor> {
    Ok(solve_matrices(A, B, true, check)?.swap_remove(0))
}
/// Both with the same dimensions before the last two.
fn one_batch(op: &str, A: &Tensor, B: &Tensor) -> Result<(Tensor, Tensor)> {
    let (a, b) = (A.shape(), B.shape());
    let (la, lb) = (a.len() - 2, b.len() - 2);
    let lead = crate::layout::broadcast("linalg.solve", &Dims::of(&a[..la]), &Dims::of(&b[..lb]))?;
    if a[la + 1] != b[lb] {
        bail!(
            Runtime,
            "{op}: Incompatible shapes of A and B for the equation AX = B ({}x{} and {}x{})",
            a[la],
            a[la + 1],
            b[lb],
            b[lb + 1]
        );
    }
    let wide = |t: &Tensor, s: &Dims, l: usize| {
        let full: Dims = lead.iter().copied().chain(s[l..].iter().copied()).collect();
        if full == *s { Ok(t.clone()) } else { expand(t, Sizes::of(&full)) }
    };
    Ok((wide(A, &a, la)?, wide(B, &b, lb)?))
}
function! {
    /// What solves `A X = B` (`X A = B` if not `left`); `B` is a vector, a matrix, or a batch of either.
    ///
    /// Raises LinAlgError for a singular `A`.
    fn linalg_solve(A, B; *, left: bool = true, out: Option<Tensor> = None) -> Tensor;
    on [linalg];
    {
        let (a, b) = (A.shape(), B.shape());
        if a.len() < 2 {
            bail!(Runtime, "linalg.solve: The input tensor A must have at least 2 dimensions, but its shape is {a:?}.");
        }
        let vector = b.len() == 1 || (a.len() == b.len() + 1 && b[..] == a[..b.len()]);
        if vector && !left {
            bail!(Runtime, "linalg.solve: Vector broadcasting of the left hand side is not supported for left=False. In this case linalg.solve is equivalent to B / A.squeeze(-1)");
        }
        let B = if vector { unsqueeze(B, -1)? } else { B.clone() };
        let (A, B) = if left { (A.clone(), B) } else { (turned(A)?, turned(&B)?) };
        let (A, B) = one_batch("linalg.solve", &A, &B)?;
        let x = solve(&A, &B, true)?;
        let x = if vector { squeeze_dim(&x, -1)? } else if left { x } else { turned(&x)? };
        given_out("linalg.solve", out, x)
    }
}
op! {
    /// What solves `A X = B` for a triangular `A`, of which only that triangle is read.
    LinalgSolveTriangularBackward0 = fn triangular(self_, B; upper: bool, left: bool, unitriangular: bool);
    overload _linalg_solve_triangular;
    on [private];
    forward(_out) {
        let (s, b) = (Stack::square("linalg.solve_triangular", self_)?, Stack::of("linalg.solve_triangular", B)?);
        let mut all = b.data.clone();
        for (a, x) in s.each().zip(all.chunks_exact_mut((b.rows * b.cols).max(1))) {
            factors::solve_triangular(a, x, s.rows, b.cols, *upper, *unitriangular);
        }
        b.array(&[b.rows, b.cols], &all)
    };
    saves [self_, result];
    grad(g, cx) {
        self_ uses [self_, result] => {
            let back = triangular(&turned(self_)?, g, !upper, true, *unitriangular)?;
            let d = neg(&mm_(&back, &turned(result)?)?)?;
            let off = *unitriangular as i64;
            if *upper { triu(&d, off) } else { tril(&d, -off) }
        },
        B uses [self_] => triangular(&turned(self_)?, g, !upper, true, *unitriangular),
    }
}
function! {
    /// What solves `A X = B` (`X A = B` if not `left`) for a triangular matrix `A`, whose diagonal counts as ones if `unitriangular`.
    fn linalg_solve_triangular(self_, B; *, upper: bool, left: bool = true, unitriangular: bool = false, out: Option<Tensor> = None) -> Tensor;
    on [linalg];
    {
        if self_.ndim() < 2 || B.ndim() < 2 {
            bail!(Runtime, "linalg.solve_triangular: both tensors must have at least 2 dimensions, but their shapes are {:?} and {:?}", self_.shape(), B.shape());
        }
        let (A, B) = if left { (self_.clone(), B.clone()) } else { (turned(self_)?, turned(B)?) };
        let (A, B) = one_batch("linalg.solve_triangular", &A, &B)?;
        let x = triangular(&A, &B, upper == left, true, unitriangular)?;
        given_out("linalg.solve_triangular", out, if left { x } else { turned(&x)? })
    }
}

// ---- factors ----
op_many! {
    /// The lower Cholesky factor of each matrix, and 0, or the order of the leading minor that is not positive.
    LinalgCholeskyExBackward0 = fn cholesky_ex(self_; *, upper: bool = false, check_errors: bool = false) -> [L; nondiff info];
    overload linalg_cholesky_ex;
    named "linalg_cholesky_ex";
    on [linalg];
    forward {
        let s = Stack::square("linalg.cholesky", self_)?;
        let n = s.rows;
        let (mut all, mut info) = (vec![], vec![]);
        for a in s.each() {
            let read: Vec<f64> = if *upper { (0..n * n).map(|at| a[(at % n) * n + at / n]).collect() } else { a.to_vec() };
            let (l, bad) = factors::cholesky(&read, n);
            if *check_errors && bad != 0 {
                return Err(refused("linalg.cholesky", format!("The factorization could not be completed because the input is not positive-definite (the leading minor of order {bad} is not positive-definite).")));
            }
            all.extend((0..n * n).map(|at| if *upper { l[(at % n) * n + at / n] } else { l[at] }));
            info.push(bad);
        }
        Ok(smallvec![s.array(&[n, n], &all)?, s.ints(&[], &info)?])
    };
    saves [L];
    grad(g, cx) { self_ uses [L] => match &g[0] {
        Some(g) => {
            let l = needed(L)?;
            let (l, g) = if *upper { (turned(l)?, turned(g)?) } else { (l.clone(), g.clone()) };
            // A symmetric gradient: of L^-T P L^-1, where P is the lower half of L^T g
            let lower = tril(&mm_(&turned(&l)?, &g)?, 0)?;
            let both = times(&plus_(&lower, &turned(&tril(&lower, -1)?)?)?, 0.5)?;
            let up = turned(&l)?;
            let left = triangular(&up, &both, true, true, false)?;
            turned(&triangular(&up, &turned(&left)?, true, true, false)?).map(Some)
        }
        None => Ok(None),
    } }
}
function! {
    /// The Cholesky factor of a symmetric positive-definite matrix, or of each in a batch: lower, or upper if `upper`.
    ///
    /// Raises LinAlgError where the matrix is not positive-definite.
    fn linalg_cholesky(self_; *, upper: bool = false, out: Option<Tensor> = None) -> Tensor;
    on [linalg];
    { given_out("linalg.cholesky", out, cholesky_ex(self_, upper, true)?.swap_remove(0)) }
}
function! {
    /// The Cholesky factor of a symmetric positive-definite matrix: `linalg.cholesky`.
    fn cholesky(self_; upper: bool = false) -> Tensor;
    { linalg_cholesky(self_, upper, None) }
}
op_many! {
    /// Orthogonal Q and upper triangular R with A = Q R: as narrow as they can be, or square (`"complete"`), or R alone (`"r"`).
    LinalgQrBackward0 = fn linalg_qr(A; mode: String = String::from("reduced")) -> [Q, R];
    named "linalg_qr";
    on [linalg];
    forward {
        if !matches!(mode.as_str(), "reduced" | "complete" | "r") {
            bail!(Runtime, "qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'");
        }
        let s = Stack::of("linalg.qr", A)?;
        let (m, n) = (s.rows, s.cols);
        let k = if mode == "complete" { m } else { m.min(n) };
        let (mut qs, mut rs) = (vec![], vec![]);
        for a in s.each() {
            let (q, r) = factors::qr(a, m, n);
            qs.extend((0..m * k).map(|at| q[at / k * m + at % k]));
            rs.extend_from_slice(&r[..k * n]);
        }
        let q = if mode == "r" { Array::zeros(Dims::of(&[0]), A.dtype)? } else { s.array(&[m, k], &qs)? };
        Ok(smallvec![q, s.array(&[k, n], &rs)?])
    };
    saves [Q, R];
    grad(g, cx) { A uses [Q, R] => qr_grad(g, needed(Q)?, needed(R)?, mode) }
}
function! {
    /// `linalg.qr`; square factors unless `some`.
    fn qr(self_; some: bool = true) -> Tensors;
    named "qr";
    { linalg_qr(self_, if some { "reduced" } else { "complete" }.into()) }
}
fn qr_grad(g: &[Option<Tensor>], q: &Tensor, r: &Tensor, mode: &str) -> Result<Option<Tensor>> {
    let (gq, gr) = (&g[0], &g[1]);
    if gq.is_none() && gr.is_none() {
        return Ok(None);
    }
    if mode == "r" {
        bail!(
            Runtime,
            "The derivative of linalg.qr depends on Q, which is not computed when mode='r'. Please use linalg.qr(A, mode='reduced') if you are going to require differentiation."
        );
    }
    let (sr, nd) = (r.shape(), r.ndim());
    let (k, n) = (sr[nd - 2], sr[nd - 1]);
    let m = q.shape()[q.ndim() - 2];
    if mode == "complete" && m > n {
        bail!(Runtime, "The QR decomposition is not differentiable when mode='complete' and nrows > ncols ({m} > {n}).");
    }
    // A = [X Y], R = [U V]: X = Q U is a square system, Y = Q V
    let wide = k < n;
    let (square, rest) = (|t: &Tensor| narrow(t, -1, 0, k as i64), |t: &Tensor| narrow(t, -1, k as i64, (n - k) as i64));
    let (u, gu) = if wide { (square(r)?, gr.as_ref().map(square).transpose()?) } else { (r.clone(), gr.clone()) };
    let mut gq = gq.clone();
    let mut gy = None;
    if wide && let Some(gr) = gr {
        let gv = rest(gr)?;
        gy = Some(mm_(q, &gv)?);
        // through V = Q^T Y, with Y = Q V
        let more = mm_(&mm_(q, &rest(r)?)?, &turned(&gv)?)?;
        gq = super::reduce::both(gq, Some(more))?;
    }
    let mut inner = None;
    if let Some(gu) = &gu {
        inner = Some(mm_(&u, &turned(gu)?)?);
    }
    if let Some(gq) = &gq {
        inner = super::reduce::both(inner, Some(neg(&mm_(&turned(gq)?, q)?)?))?;
    }
    let inner = inner.expect("one of the gradients is there");
    let lower = plus_(&tril(&inner, 0)?, &turned(&tril(&inner, -1)?)?)?;
    let mut right = mm_(q, &lower)?;
    if let Some(gq) = &gq {
        right = plus_(&right, gq)?;
    }
    // right U^-T
    let gx = turned(&triangular(&u, &turned(&right)?, true, true, false)?)?;
    match (wide, gy) {
        (false, _) => Ok(Some(gx)),
        (true, Some(gy)) => cat(vec![gx, gy], -1).map(Some),
        (true, None) => {
            let y = zeros(q.shape().with(|s| *s.last_mut().expect("a matrix") = n - k), q.dtype())?;
            cat(vec![gx, y], -1).map(Some)
        }
    }
}
op_many! {
    /// Eigenvalues of each symmetric matrix in ascending order, and eigenvectors as columns; only one triangle is read.
    LinalgEighBackward0 = fn eigh(A; UPLO: String = String::from("L")) -> [eigenvalues, eigenvectors];
    overload linalg_eigh;
    named "linalg_eigh";
    on [linalg];
    forward {
        let upper = match UPLO.as_str() {
            "L" | "l" => false,
            "U" | "u" => true,
            _ => bail!(Runtime, "Expected UPLO argument to be 'L' or 'U', but got {UPLO}"),
        };
        let s = Stack::square("linalg.eigh", A)?;
        let n = s.rows;
        let (mut values, mut vectors) = (vec![], vec![]);
        for a in s.each() {
            let at = |i: usize, j: usize| if (i < j) == upper { a[i * n + j] } else { a[j * n + i] };
            let whole: Vec<f64> = (0..n * n).map(|k| at(k / n, k % n)).collect();
            let Some((w, v)) = factors::eigh(&whole, n) else {
                return Err(refused("linalg.eigh", "The algorithm failed to converge because the input holds what is not finite.".into()));
            };
            values.extend(w);
            vectors.extend(v);
        }
        Ok(smallvec![s.array(&[n], &values)?, s.array(&[n, n], &vectors)?])
    };
    saves [eigenvalues, eigenvectors];
    grad(g, cx) { A uses [eigenvalues, eigenvectors] => {
        let (w, v) = (needed(eigenvalues)?, needed(eigenvectors)?);
        let mut inner = None;
        if let Some(gv) = &g[1] {
            // E[i, j] = w[j] - w[i]; the diagonal, where it is 0, does not count
            let gaps = minus(&unsqueeze(w, -2)?, &unsqueeze(w, -1)?)?;
            let turn = mm_(&turned(v)?, gv)?;
            let skew = times(&minus(&turn, &turned(&turn)?)?, 0.5)?;
            inner = Some(off_diagonal(&skew, &gaps)?);
        }
        if let Some(gw) = &g[0] {
            inner = super::reduce::both(inner, Some(diag_embed(gw, 0, -2, -1)?))?;
        }
        match inner {
            Some(x) => mm_(&mm_(v, &x)?, &turned(v)?).map(Some),
            None => Ok(None),
        }
    } }
}
/// `x / gaps`, 0 on the diagonal.
fn off_diagonal(x: &Tensor, gaps: &Tensor) -> Result<Tensor> {
    let n = gaps.shape()[gaps.ndim() - 1];
    let one = Tensor::new(crate::kernels::create::eye(n as i64, n as i64, DType::Bool)?);
    masked_fill(&div(x, &masked_fill(gaps, &one, ONE)?)?, &one, Scalar::Int(0))
}
function! {
    /// Eigenvalues of a symmetric matrix, or of each in a batch, in ascending order.
    fn linalg_eigvalsh(A; UPLO: String = String::from("L"); *, out: Option<Tensor> = None) -> Tensor;
    on [linalg];
    { given_out("linalg.eigvalsh", out, eigh(A, UPLO)?.swap_remove(0)) }
}
op_many! {
    /// Singular values of each matrix in descending order, with U and V^H: A = U diag(S) Vh.
    LinalgSvdBackward0 = fn svd_of(A; full_matrices: bool) -> [U, S, Vh];
    overload _linalg_svd;
    named "linalg_svd";
    on [private];
    forward {
        let s = Stack::of("linalg.svd", A)?;
        let (m, n) = (s.rows, s.cols);
        let k = m.min(n);
        let (p, w) = if *full_matrices { (m, n) } else { (k, k) };
        let (mut us, mut ss, mut vs) = (vec![], vec![], vec![]);
        for a in s.each() {
            let Some((s, u, v)) = factors::svd(a, m, n, *full_matrices) else {
                return Err(refused("linalg.svd", "The algorithm failed to converge because the input holds what is not finite.".into()));
            };
            us.extend(u);
            ss.extend(s);
            vs.extend((0..w * n).map(|at| v[at % n * w + at / n]));
        }
        Ok(smallvec![s.array(&[m, p], &us)?, s.array(&[k], &ss)?, s.array(&[w, n], &vs)?])
    };
    saves [U, S, Vh];
    shows { S_sym_argsize_minus_1: cx.output(1).shape.last().copied().unwrap_or(0).attr() };
    grad(g, cx) { A uses [U, S, Vh] => svd_grad(g, needed(U)?, needed(S)?, needed(Vh)?) }
}
fn svd_grad(g: &[Option<Tensor>], u: &Tensor, s: &Tensor, vh: &Tensor) -> Result<Option<Tensor>> {
    let [gu, gs, gvh] = g else { return Ok(None) };
    let k = s.shape()[s.ndim() - 1] as i64;
    let (m, n) = (u.shape()[u.ndim() - 2] as i64, vh.shape()[vh.ndim() - 1] as i64);
    if gu.is_none() && gvh.is_none() {
        let Some(gs) = gs else { return Ok(None) };
        return mm_(&mul(&narrow(u, -1, 0, k)?, &unsqueeze(gs, -2)?)?, &narrow(vh, -2, 0, k)?).map(Some);
    }
    if u.shape()[u.ndim() - 1] as i64 > k || vh.shape()[vh.ndim() - 2] as i64 > k {
        bail!(
            Runtime,
            "svd_backward: The singular vectors in the reduced decomposition can be differentiated, those of full_matrices=True cannot: call linalg.svd(A, full_matrices=False)"
        );
    }
    let squares = mul(s, s)?;
    let gaps = minus(&unsqueeze(&squares, -2)?, &unsqueeze(&squares, -1)?)?;
    let (row, column) = (unsqueeze(s, -2)?, unsqueeze(s, -1)?);
    let skew = |x: &Tensor| minus(x, &turned(x)?);
    let v = turned(vh)?;
    let mut inner = None;
    if let Some(gu) = gu {
        inner = Some(mul(&off_diagonal(&skew(&mm_(&turned(u)?, gu)?)?, &gaps)?, &row)?);
    }
    if let Some(gvh) = gvh {
        let part = mul(&column, &off_diagonal(&skew(&mm_(vh, &turned(gvh)?)?)?, &gaps)?)?;
        inner = super::reduce::both(inner, Some(part))?;
    }
    if let Some(gs) = gs {
        inner = super::reduce::both(inner, Some(diag_embed(gs, 0, -2, -1)?))?;
    }
    let mut out = mm_(&mm_(u, &inner.expect("one of the gradients is there"))?, vh)?;
    if let Some(gu) = gu
        && m > k
    {
        let over = div(gu, &row)?;
        let outside = minus(&over, &mm_(u, &mm_(&turned(u)?, &over)?)?)?;
        out = plus_(&out, &mm_(&outside, vh)?)?;
    }
    if let Some(gvh) = gvh
        && n > k
    {
        let over = div(gvh, &column)?;
        let outside = minus(&over, &mm_(&mm_(&over, &v)?, vh)?)?;
        out = plus_(&out, &mm_(u, &outside)?)?;
    }
    Ok(Some(out))
}
function! {
    /// Singular values of each matrix in descending order, with U and V^H: A = U diag(S) Vh. U and Vh are square unless `full_matrices` is
    /// False.
    fn linalg_svd(A; full_matrices: bool = true) -> Tensors;
    on [linalg];
    named "linalg_svd";
    { svd_of(A, full_matrices) }
}
function! {
    /// Singular values of a matrix, or of each in a batch, in descending order.
    fn linalg_svdvals(A; *, out: Option<Tensor> = None) -> Tensor;
    on [linalg];
    { given_out("linalg.svdvals", out, svd_of(A, false)?.swap_remove(1)) }
}
function! {
    /// `linalg.svd` with V itself in place of Vh.
    fn svd(self_; some: bool = true) -> Tensors;
    named "svd";
    {
        let mut parts = svd_of(self_, !some)?;
        parts[2] = turned(&parts[2])?;
        Ok(parts)
    }
}
op! {
    /// The pseudoinverse (Moore, Penrose): singular values below max(atol, rtol * the largest) count as 0.
    LinalgPinvBackward0 = fn pinv_of(self_; atol: f64, rtol: Option<f64>);
    overload _linalg_pinv;
    on [private];
    forward(_out) {
        let s = Stack::of("linalg.pinv", self_)?;
        let (m, n) = (s.rows, s.cols);
        let k = m.min(n);
        let default = m.max(n) as f64 * if self_.dtype == DType::Float64 { f64::EPSILON } else { f32::EPSILON as f64 };
        let rtol = rtol.unwrap_or(if *atol > 0.0 { 0.0 } else { default });
        let mut all = Vec::with_capacity(s.count() * m * n);
        for a in s.each() {
            let Some((w, u, v)) = factors::svd(a, m, n, false) else {
                return Err(refused("linalg.pinv", "The algorithm failed to converge because the input holds what is not finite.".into()));
            };
            let least = atol.max(rtol * w.first().copied().unwrap_or(0.0));
            let rank = w.iter().take_while(|x| **x > least).count();
            all.extend((0..n * m).map(|at| (0..rank).map(|r| v[at / m * k + r] / w[r] * u[at % m * k + r]).sum::<f64>()));
        }
        s.array(&[n, m], &all)
    };
    saves [self_, result];
    grad(g, cx) { self_ uses [self_, result] => {
        // dP = -P dA P + P P^T dA^T (1 - A P) + (1 - P A) dA^T P^T P
        let (p, pt, gt) = (result, turned(result)?, turned(g)?);
        let first = mm_(&mm_(&pt, g)?, &pt)?;
        let second = mm_(&gt, &mm_(p, &pt)?)?;
        let second = minus(&second, &mm_(self_, &mm_(p, &second)?)?)?;
        let third = mm_(&mm_(&pt, p)?, &gt)?;
        let third = minus(&third, &mm_(&mm_(&third, p)?, self_)?)?;
        plus_(&minus(&second, &first)?, &third)
    } }
}
function! {
    /// The pseudoinverse of a matrix, or of each in a batch; singular values below max(atol, rtol * the largest) count as 0.
    fn linalg_pinv(self_; *, atol: Option<f64> = None, rtol: Option<f64> = None, hermitian: bool = false, out: Option<Tensor> = None) -> Tensor;
    on [linalg];
    {
        let _ = hermitian; // says that a cheaper way would do
        given_out("linalg.pinv", out, pinv_of(self_, atol.unwrap_or(0.0), rtol)?)
    }
}
function! {
    /// The pseudoinverse: `linalg.pinv`.
    fn pinverse(self_; rcond: f64 = 1e-15) -> Tensor;
    { pinv_of(self_, 0.0, Some(rcond)) }
}

// ---- functions of matrices ----
op! {
    /// The exponential of a square matrix, or of each in a batch: the sum of A^k / k!.
    LinalgMatrixExpBackward0 = fn matrix_exp(self_);
    forward(_out) {
        let s = Stack::square("linalg.matrix_exp", self_)?;
        let all: Vec<f64> = s.each().flat_map(|a| factors::exponential(a, s.rows)).collect();
        s.array(&[s.rows, s.rows], &all)
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => {
        // the upper right block of exp([[A^T, g], [0, A^T]])
        let (n, at) = (self_.shape()[self_.ndim() - 1] as i64, turned(self_)?);
        let above = cat(vec![at.clone(), g.clone()], -1)?;
        let below = cat(vec![zeros_of(&at)?, at], -1)?;
        let e = matrix_exp(&cat(vec![above, below], -2)?)?;
        narrow(&narrow(&e, -2, 0, n)?, -1, n, n)
    } }
}
function! {
    /// The exponential of a square matrix, or of each in a batch.
    fn linalg_matrix_exp(A) -> Tensor;
    on [linalg];
    { matrix_exp(A) }
}
function! {
    /// The `n`th power of a square matrix, or of each in a batch; negative powers are those of the inverse.
    fn matrix_power(self_; n: i64) -> Tensor;
    {
        let s = self_.shape();
        if s.len() < 2 || s[s.len() - 1] != s[s.len() - 2] {
            bail!(Runtime, "linalg.matrix_power: A must be batches of square matrices, but its shape is {s:?}");
        }
        if n == 0 {
            let one = crate::kernels::create::eye(s[s.len() - 1] as i64, s[s.len() - 1] as i64, self_.dtype())?;
            return clone(&expand(&Tensor::new(one), Sizes::of(&s))?, None);
        }
        let mut power = if n < 0 { linalg_inv(self_, None)? } else { self_.clone() };
        let (mut left, mut result) = (n.unsigned_abs(), None::<Tensor>);
        if left == 3 {
            return mm_(&mm_(&power, &power)?, &power);
        }
        loop {
            if left & 1 == 1 {
                result = Some(match result { Some(r) => mm_(&r, &power)?, None => power.clone() });
            }
            left >>= 1;
            if left == 0 {
                return Ok(result.expect("the power is not 0"));
            }
            power = mm_(&power, &power)?;
        }
    }
}
function! {
    /// The `n`th power of a square matrix, or of each in a batch; negative powers are those of the inverse.
    fn linalg_matrix_power(A; n: i64; *, out: Option<Tensor> = None) -> Tensor;
    on [linalg];
    { given_out("linalg.matrix_power", out, matrix_power(A, n)?) }
}
op! {
    /// The vector product along `dim`, where both have three elements.
    LinalgCrossBackward0 = fn linalg_cross(self_, other; *, dim: i64 = -1);
    on [linalg];
    forward(_out) crossed(self_, other, *dim);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [other] => linalg_cross(other, g, *dim),
        other uses [self_] => linalg_cross(g, self_, *dim),
    }
}
fn crossed(a: &Array, b: &Array, dim: i64) -> Result<Array> {
    if a.ndim() != b.ndim() {
        bail!(Runtime, "linalg.cross: inputs must have the same number of dimensions, got {:?} and {:?}", a.shape, b.shape);
    }
    let d = wrap_dim(dim, a.ndim())?;
    if a.ndim() == 0 || a.shape[d] != 3 || b.shape[d] != 3 {
        bail!(Runtime, "linalg.cross: inputs dimension {dim} must have length 3. Got {:?} and {:?}", a.shape, b.shape);
    }
    if a.dtype != b.dtype {
        bail!(Runtime, "linalg.cross: expected both inputs to have one dtype, got {} and {}", a.dtype.name(), b.dtype.name());
    }
    numeric("cross", [a, b])?;
    let shape = crate::layout::broadcast("linalg.cross", &a.shape, &b.shape)?;
    let out = Array::empty(shape, a.dtype)?;
    let part = |x: &Array, i: usize| x.view(x.shape.with(|s| s[d] = 1), x.strides, x.offset + (i % 3) * x.strides[d]);
    for i in 0..3 {
        let product = |x: usize, y: usize| pointwise::run(Out(None), "cross", &table::Mul {}, [&part(a, x), &part(b, y)]);
        let difference = pointwise::run(Out(None), "cross", &table::Sub {}, [&product(i + 1, i + 2)?, &product(i + 2, i + 1)?])?;
        pointwise::copy(&part(&out, i), &difference)?;
    }
    Ok(out)
}
function! {
    /// The vector product along `dim`: the first dimension of length 3 if it is not given.
    fn cross(self_, other; dim: Option<i64> = None; *, out: Option<Tensor> = None) -> Tensor;
    {
        let shape = crate::layout::broadcast("cross", &self_.shape(), &other.shape())?;
        let d = match dim.or_else(|| shape.iter().position(|n| *n == 3).map(|d| d as i64)) {
            Some(d) => d,
            None => bail!(Runtime, "cross: no dimension of size 3 in input of shape {:?}", self_.shape()),
        };
        given_out("cross", out, linalg_cross(self_, other, d)?)
    }
}
