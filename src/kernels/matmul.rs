//! Matrix products over any strides: one primitive, `gemm`, on matrices that lie in slices, and above it the products that a user can name.
//!
//! Nothing is copied to make an operand contiguous. float16 and bfloat16 are widened to float32, integers to int64, and narrowed at the end.
//! Invariant: a product is cut into parts by its shape alone, never by who computes them, so its bits do not depend on threads.
#![allow(unsafe_code)]
use crate::array::{Array, Fresh};
use crate::dtype::{Cast, Compute, DType, Element, Scalar, for_dtype};
use crate::error::{Result, bail};
use crate::kernels::math::Real;
use crate::layout::{self, Dims};

/// A matrix in a slice: element (i, j) lies at `i * rs + j * cs`. A stride may be 0.
#[derive(Clone, Copy)]
pub struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    rs: usize,
    cs: usize,
}
/// A matrix to be written.
pub struct MatMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    rs: usize,
    cs: usize,
}
/// Panics where a matrix would leave its slice: the one fact that all unsafe code here rests on.
#[inline]
fn check_fit(len: usize, (rows, cols): (usize, usize), (rs, cs): (usize, usize)) {
    assert!(
        rows == 0 || cols == 0 || (rows - 1) * rs + (cols - 1) * cs < len,
        "a {rows}x{cols} matrix of strides {rs}, {cs} leaves its {len} elements"
    );
}
impl<'a, T> Mat<'a, T> {
    #[inline]
    pub fn new(data: &'a [T], size: (usize, usize), strides: (usize, usize)) -> Self {
        check_fit(data.len(), size, strides);
        Mat { data, rows: size.0, cols: size.1, rs: strides.0, cs: strides.1 }
    }
    /// The transposed matrix; no element moves.
    #[inline]
    pub fn t(self) -> Self {
        Mat { rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs, ..self }
    }
}
impl<'a, T> MatMut<'a, T> {
    #[inline]
    pub fn new(data: &'a mut [T], size: (usize, usize), strides: (usize, usize)) -> Self {
        check_fit(data.len(), size, strides);
        MatMut { data, rows: size.0, cols: size.1, rs: strides.0, cs: strides.1 }
    }
}

/// `c = beta c + alpha a b`. As in BLAS, what `c` held is not looked at where `beta` is 0.
pub fn gemm<T: Real>(c: MatMut<T>, beta: T, a: Mat<T>, b: Mat<T>, alpha: T) {
    assert!(a.rows == c.rows && a.cols == b.rows && b.cols == c.cols, "sizes of a product");
    if c.rows == 0 || c.cols == 0 {
        return;
    }
    let s = |stride: usize| stride as isize;
    // SAFETY: `Mat` and `MatMut` lie within their slices, c's borrow is exclusive, and the sizes agree.
    unsafe {
        gemm::gemm(
            c.rows,
            c.cols,
            a.cols,
            c.data.as_mut_ptr(),
            s(c.cs),
            s(c.rs),
            beta != T::default(),
            a.data.as_ptr(),
            s(a.cs),
            s(a.rs),
            b.data.as_ptr(),
            s(b.cs),
            s(b.rs),
            beta,
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
/// `c = beta c + alpha a b` in wrapping int64, `c` row-major.
fn gemm_int(c: &mut [i64], beta: i64, a: Mat<i64>, b: Mat<i64>, alpha: i64) {
    let n = b.cols;
    for (i, row) in c.chunks_exact_mut(n.max(1)).enumerate() {
        row.iter_mut().for_each(|v| *v = if beta == 0 { 0 } else { v.wrapping_mul(beta) });
        for k in 0..a.cols {
            let x = a.data[i * a.rs + k * a.cs].wrapping_mul(alpha);
            for (j, v) in row.iter_mut().enumerate() {
                *v = v.wrapping_add(x.wrapping_mul(b.data[k * b.rs + j * b.cs]));
            }
        }
    }
}

/// What a product adds to: `beta * c`, with `c` broadcast to the result.
pub struct Plus<'a> {
    pub c: &'a Array,
    pub beta: Scalar,
    pub alpha: Scalar,
}
/// The last two axes of `a` times those of `b`, item by item over the axes before, which broadcast by strides. Shapes are checked.
fn product(op: &'static str, plus: Option<Plus>, a: &Array, b: &Array) -> Result<Array> {
    let (na, nb) = (a.ndim() - 2, b.ndim() - 2);
    let batch = layout::broadcast(op, &Dims::of(&a.shape[..na]), &Dims::of(&b.shape[..nb]))?;
    let (m, k, n) = (a.shape[na], a.shape[na + 1], b.shape[nb + 1]);
    let shape: Dims = batch.iter().copied().chain([m, n]).collect();
    let dtype = a.dtype;
    match dtype.compute() {
        Compute::I64 => {
            let (a, b) = (widen::<i64>(a)?, widen::<i64>(b)?);
            let mut out = start::<i64>(shape, &plus)?;
            let (alpha, beta) = plus.map_or((1, 0), |p| (p.alpha.to_i64(), p.beta.to_i64()));
            let c = out.slice_mut::<i64>();
            each_item(&batch, &a, &b, |i, at, bt| {
                let (a, b) = (matrix(&a, at, m, k), matrix(&b, bt, k, n));
                gemm_int(&mut c[i * m * n..][..m * n], beta, a, b, alpha);
            });
            narrow(out.done(), dtype)
        }
        Compute::F32 => {
            let wide = |x: &Array| if x.dtype == DType::Float32 { Ok(x.clone()) } else { widen::<f32>(x) };
            narrow(real::<f32>(plus, shape, &batch, &wide(a)?, &wide(b)?)?, dtype)
        }
        Compute::F64 => real::<f64>(plus, shape, &batch, a, b),
    }
}
fn real<T: Real>(plus: Option<Plus>, shape: Dims, batch: &Dims, a: &Array, b: &Array) -> Result<Array>
where
    T: Widened,
{
    let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let k = a.shape[a.ndim() - 1];
    let mut out = start::<T>(shape, &plus)?;
    let (alpha, beta) = plus.map_or((1.0, 0.0), |p| (p.alpha.to_f64(), p.beta.to_f64()));
    let c = out.slice_mut::<T>();
    each_item(batch, a, b, |i, at, bt| {
        let c = MatMut::new(&mut c[i * m * n..][..m * n], (m, n), (n, 1));
        gemm(c, <T as Real>::of(beta), matrix(a, at, m, k), matrix(b, bt, k, n), <T as Real>::of(alpha));
    });
    Ok(out.done())
}
/// The matrix of the last two axes that starts at element `at` of the storage.
fn matrix<T: Element>(a: &Array, at: usize, rows: usize, cols: usize) -> Mat<'_, T> {
    let (rs, cs) = (a.strides[a.ndim() - 2], a.strides[a.ndim() - 1]);
    let span = if rows == 0 || cols == 0 { 0 } else { (rows - 1) * rs + (cols - 1) * cs + 1 };
    Mat::new(a.read(at, span), (rows, cols), (rs, cs))
}
/// Calls `f` with the number of each item of the batch and where its matrices start in the storages of `a` and `b`.
fn each_item(batch: &Dims, a: &Array, b: &Array, mut f: impl FnMut(usize, usize, usize)) {
    let lead = |x: &Array| {
        let n = x.ndim() - 2;
        x.view(*batch, layout::expand(&Dims::of(&x.shape[..n]), &Dims::of(&x.strides[..n]), batch), x.offset)
    };
    if batch.is_empty() {
        return f(0, a.offset, b.offset);
    }
    let mut starts = Vec::with_capacity(batch.numel());
    lead(a).for_each_offset(|at| starts.push(at));
    let mut i = 0;
    lead(b).for_each_offset(|bt| {
        f(i, starts[i], bt);
        i += 1;
    });
}

trait Widened: Element {
    fn widened(a: &Array) -> Result<Array>;
}
macro_rules! widened { ($($t:ident)*) => { $(impl Widened for $t {
    fn widened(a: &Array) -> Result<Array> {
        let mut out = Fresh::new(a.shape, <$t as Element>::DTYPE)?;
        let mut to = out.slice_mut::<$t>().iter_mut();
        for_dtype!(a.dtype, F => a.for_each_offset(|at| {
            if let Some(v) = to.next() {
                *v = Cast::<$t>::cast(a.read::<F>(at, 1)[0]);
            }
        }));
        Ok(out.done())
    }
})* } }
widened! { f32 f64 i64 }
/// A row-major copy in the compute type.
fn widen<T: Widened>(a: &Array) -> Result<Array> {
    T::widened(a)
}
/// A row-major array of a compute type, in the dtype of the result.
fn narrow(a: Array, dtype: DType) -> Result<Array> {
    if a.dtype == dtype {
        return Ok(a);
    }
    let mut out = Fresh::new(a.shape, dtype)?;
    for_dtype!(dtype, T => {
        let to = out.slice_mut::<T>();
        match a.dtype {
            DType::Float32 => to.iter_mut().zip(a.slice::<f32>()).for_each(|(t, v)| *t = v.cast()),
            _ => to.iter_mut().zip(a.slice::<i64>()).for_each(|(t, v)| *t = v.cast()),
        }
    });
    Ok(out.done())
}
/// The result to be, holding `c` where it will be read.
fn start<T: Widened>(shape: Dims, plus: &Option<Plus>) -> Result<Fresh> {
    let mut out = Fresh::new(shape, T::DTYPE)?;
    if let Some(p) = plus
        && !p.beta.is_zero()
    {
        let c = p.c.view(shape, layout::expand(&p.c.shape, &p.c.strides, &shape), p.c.offset);
        let c = widen::<T>(&c)?;
        out.slice_mut::<T>().copy_from_slice(c.slice::<T>());
    }
    Ok(out)
}

/// A product of two matrices.
pub fn mm(a: &Array, b: &Array) -> Result<Array> {
    check_mm("mm", a, b)?;
    product("mm", None, a, b)
}
/// `beta c + alpha (a b)`, with `c` broadcast.
pub fn addmm(c: &Array, a: &Array, b: &Array, beta: Scalar, alpha: Scalar) -> Result<Array> {
    check_mm("addmm", a, b)?;
    check_plus("addmm", c, &[a.shape[0], b.shape[1]], a.dtype)?;
    product("addmm", Some(Plus { c, beta, alpha }), a, b)
}
/// A batch of products: [batch, m, k] by [batch, k, n].
pub fn bmm(a: &Array, b: &Array) -> Result<Array> {
    check_bmm("bmm", a, b)?;
    product("bmm", None, a, b)
}
/// `beta c + alpha (a b)`, item by item, with `c` broadcast.
pub fn baddbmm(c: &Array, a: &Array, b: &Array, beta: Scalar, alpha: Scalar) -> Result<Array> {
    check_bmm("baddbmm", a, b)?;
    check_plus("baddbmm", c, &[a.shape[0], a.shape[1], b.shape[2]], a.dtype)?;
    product("baddbmm", Some(Plus { c, beta, alpha }), a, b)
}
/// [.., m, k] by [.., k, n], where the axes before broadcast (by strides: nothing is copied).
pub fn matmul_batched(a: &Array, b: &Array) -> Result<Array> {
    let (na, nb) = (a.ndim(), b.ndim());
    if na < 2 || nb < 2 || a.shape[na - 1] != b.shape[nb - 2] {
        bail!(
            Runtime,
            "matmul(): shapes {:?} and {:?} cannot be multiplied: both need two dimensions or more, and the last of the first must equal the last but one of the second",
            a.shape,
            b.shape
        );
    }
    check_dtype("matmul", a, b)?;
    product("matmul", None, a, b)
}
fn check_mm(op: &'static str, a: &Array, b: &Array) -> Result<()> {
    for (x, name) in [(a, "mat1"), (b, "mat2")] {
        if x.ndim() != 2 {
            bail!(Runtime, "{op}(): {name} must be a matrix, got {}-D tensor of shape {:?}", x.ndim(), x.shape);
        }
    }
    if a.shape[1] != b.shape[0] {
        bail!(
            Runtime,
            "{op}(): mat1 and mat2 shapes cannot be multiplied ({}x{} and {}x{})",
            a.shape[0],
            a.shape[1],
            b.shape[0],
            b.shape[1]
        );
    }
    check_dtype(op, a, b)
}
fn check_bmm(op: &'static str, a: &Array, b: &Array) -> Result<()> {
    for (x, name) in [(a, "batch1"), (b, "batch2")] {
        if x.ndim() != 3 {
            bail!(Runtime, "{op}(): {name} must be a 3D tensor, got {}-D of shape {:?}", x.ndim(), x.shape);
        }
    }
    if a.shape[0] != b.shape[0] || a.shape[2] != b.shape[1] {
        bail!(
            Runtime,
            "{op}(): Expected size for first two dimensions of batch2 tensor to be: [{}, {}] but got: [{}, {}].",
            a.shape[0],
            a.shape[2],
            b.shape[0],
            b.shape[1]
        );
    }
    check_dtype(op, a, b)
}
fn check_dtype(op: &'static str, a: &Array, b: &Array) -> Result<()> {
    if a.dtype != b.dtype {
        bail!(Runtime, "{op}(): expected m1 and m2 to have the same dtype, but got: {} != {}", a.dtype.name(), b.dtype.name());
    }
    if a.dtype == DType::Bool {
        bail!(NotImplemented, "\"{op}\" not implemented for '{}'", a.dtype.torch_name());
    }
    Ok(())
}
fn check_plus(op: &'static str, c: &Array, shape: &[usize], dtype: DType) -> Result<()> {
    let lead = shape.len().checked_sub(c.ndim());
    if !lead.is_some_and(|lead| c.shape.iter().zip(&shape[lead..]).all(|(&x, &y)| x == y || x == 1)) {
        bail!(
            Runtime,
            "{op}(): The expanded size of the tensor must match the existing size: input of shape {:?} does not expand to {shape:?}",
            c.shape
        );
    }
    if c.dtype != dtype {
        bail!(Runtime, "{op}(): self and mat2 must have the same dtype, but got {} and {}", c.dtype.torch_name(), dtype.torch_name());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers between -1 and 1, always the same.
    fn noise(shape: &[usize], dtype: DType, seed: u64) -> Array {
        let n: usize = shape.iter().product();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let v: Vec<f64> = (0..n)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
            })
            .collect();
        let mut f = Fresh::new(Dims::of(shape), dtype).unwrap();
        let number = |v: f64| Scalar::Float(if dtype.is_float() { v } else { (v * 9.0).trunc() });
        for_dtype!(dtype, T => f.slice_mut::<T>().iter_mut().zip(&v).for_each(|(t, &v)| *t = <T as Element>::of(number(v))));
        f.done()
    }
    /// The same matrix under a layout of every kind: row-major, column-major, every second element, one offset.
    fn layouts(shape: &[usize], dtype: DType, seed: u64) -> Vec<Array> {
        let (r, c) = (shape[shape.len() - 2], shape[shape.len() - 1]);
        let lead = &shape[..shape.len() - 2];
        let batch: usize = lead.iter().product();
        let with = |strides: [usize; 3], offset: usize, elements: usize| {
            let base = noise(&[elements.max(1)], dtype, seed);
            let mut s: Vec<usize> = lead.iter().rev().scan(strides[0], |step, &n| Some(std::mem::replace(step, *step * n))).collect();
            s.reverse();
            s.extend([strides[1], strides[2]]);
            base.view(Dims::of(shape), Dims::of(&s), offset)
        };
        vec![
            with([r * c, c, 1], 0, batch * r * c),
            with([r * c, 1, r], 0, batch * r * c),
            with([2 * r * c + 3, 2 * c, 2], 3, batch * (2 * r * c + 3) + 4),
            with([0, c, 1], 0, r * c),
            with([1, batch * c, batch], 0, batch * r * c),
        ]
    }
    /// The product in f64 by three plain loops, and the product of magnitudes that bounds its rounding.
    fn plain(a: &Array, b: &Array) -> (Vec<f64>, Vec<f64>) {
        let n = a.ndim();
        let (m, k, p) = (a.shape[n - 2], a.shape[n - 1], b.shape[n - 1]);
        let batch: usize = a.shape[..n - 2].iter().product();
        let (x, y) = (a.to_vec(), b.to_vec());
        let (mut out, mut size) = (vec![0.0; batch * m * p], vec![0.0; batch * m * p]);
        for (at, (o, s)) in out.iter_mut().zip(&mut size).enumerate() {
            let (i, r, c) = (at / (m * p), at / p % m, at % p);
            for q in 0..k {
                let v = x[(i * m + r) * k + q] * y[(i * k + q) * p + c];
                *o += v;
                *s += v.abs();
            }
        }
        (out, size)
    }
    fn near(got: &Array, want: &(Vec<f64>, Vec<f64>), eps: f64, what: &str) {
        for (i, (g, (w, s))) in got.to_vec().iter().zip(want.0.iter().zip(&want.1)).enumerate() {
            assert!((g - w).abs() <= eps * (s + w.abs()), "{what}: element {i} is {g}, not {w}");
        }
    }
    const SIZES: [(usize, usize, usize); 20] = [
        (1, 1, 1),
        (2, 3, 4),
        (8, 8, 8),
        (1, 17, 33),
        (33, 17, 1),
        (5, 1, 7),
        (3, 2, 9),
        (16, 16, 16),
        (15, 40, 70),
        (31, 33, 35),
        (4, 100, 129),
        (20, 65, 130),
        (64, 64, 64),
        (130, 7, 140),
        (9, 600, 20),
        (100, 3, 300),
        (0, 3, 2),
        (2, 0, 3),
        (3, 2, 0),
        (70, 520, 90),
    ];
    #[test]
    fn products_of_every_layout_equal_plain_loops() {
        for (dtype, eps) in [(DType::Float32, 1e-6), (DType::Float64, 1e-14)] {
            for (m, k, n) in SIZES {
                for (i, a) in layouts(&[m, k], dtype, 1).iter().enumerate() {
                    for (j, b) in layouts(&[k, n], dtype, 2).iter().enumerate() {
                        near(&mm(a, b).unwrap(), &plain(a, b), eps, &format!("{dtype:?} {m}x{k}x{n}, layouts {i}, {j}"));
                    }
                }
            }
        }
    }
    #[test]
    fn batches_of_every_layout_equal_plain_loops() {
        for (m, k, n) in SIZES {
            for (i, a) in layouts(&[3, m, k], DType::Float32, 1).iter().enumerate() {
                for (j, b) in layouts(&[3, k, n], DType::Float32, 2).iter().enumerate() {
                    near(&bmm(a, b).unwrap(), &plain(a, b), 1e-6, &format!("3 of {m}x{k}x{n}, layouts {i}, {j}"));
                }
            }
        }
    }
}
