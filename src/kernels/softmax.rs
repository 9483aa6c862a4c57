//! softmax and log-softmax along one axis, and their gradients.
//!
//! Two loops each: over a line on its own, and over lines side by side, a column each. Exponentials are taken of x - max, in the compute
//! type, and summed as `fold` sums a line, or in f64 down a column.
use super::fold::{Add, Float, Greatest, Join, PART, Same, line, part};
use super::math::Real;
use super::scan::{Draft, tiles};
use super::simd::simd;
use crate::array::{Array, Fresh};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Writes the exponentials of x - max; gives that largest element and the sum.
#[inline(always)]
fn exponentials<const FMA: bool, T: Float>(x: &[T], o: &mut [T]) -> (T, f64) {
    let top = T::narrow(line::<FMA, T, Greatest, Same>(&Same, x, T::ZERO));
    let mut sum = 0.0;
    for (x, o) in x.chunks(PART).zip(o.chunks_mut(PART)) {
        for (o, &x) in o.iter_mut().zip(x) {
            *o = (x - top).exp::<FMA>();
        }
        sum += part::<FMA, T, Add, Same>(&Same, o, T::ZERO).widen();
    }
    (top, sum)
}
simd! { fn softmax_line<T: Float>(x: [&[T]; 1], o: &mut [T]) {
    let [x] = x;
    let (_, sum) = exponentials::<FMA, T>(x, o);
    let r = T::narrow(1.0 / sum);
    for o in o {
        *o = *o * r;
    }
} }
simd! { fn log_softmax_line<T: Float>(x: [&[T]; 1], o: &mut [T]) {
    let [x] = x;
    let (top, sum) = exponentials::<FMA, T>(x, o);
    let log = T::narrow(Real::log::<FMA>(sum));
    for (o, &x) in o.iter_mut().zip(x) {
        *o = (x - top) - log;
    }
} }
simd! { fn softmax_backward_line<T: Float>(x: [&[T]; 2], o: &mut [T]) {
    let [g, y] = x;
    let mut sum = 0.0;
    for ((g, y), o) in g.chunks(PART).zip(y.chunks(PART)).zip(o.chunks_mut(PART)) {
        for ((o, &g), &y) in o.iter_mut().zip(g).zip(y) {
            *o = g * y;
        }
        sum += part::<FMA, T, Add, Same>(&Same, o, T::ZERO).widen();
    }
    let sum = T::narrow(sum);
    for ((o, &g), &y) in o.iter_mut().zip(g).zip(y) {
        *o = (g - sum) * y;
    }
} }
simd! { fn log_softmax_backward_line<T: Float>(x: [&[T]; 2], o: &mut [T]) {
    let [g, y] = x;
    let sum = T::narrow(line::<FMA, T, Add, Same>(&Same, g, T::ZERO));
    for ((o, &g), &y) in o.iter_mut().zip(g).zip(y) {
        *o = g - y.exp::<FMA>() * sum;
    }
} }

/// What is known of the columns of a tile: of each the largest (later a factor or a term) and a sum.
struct Columns<T> {
    top: Vec<T>,
    sum: Vec<f64>,
}
impl<T: Float> Columns<T> {
    fn reset(&mut self, w: usize) {
        self.top.clear();
        self.top.resize(w, T::LOWEST);
        self.sum.clear();
        self.sum.resize(w, 0.0);
    }
}
/// The largest of each column.
#[inline(always)]
fn fill_top<T: Float>(top: &mut [T], x: &[T]) {
    for x in x.chunks_exact(top.len()) {
        for (t, &x) in top.iter_mut().zip(x) {
            *t = Greatest::join(*t, x);
        }
    }
}
simd! { fn softmax_columns<T: Float>(c: &mut Columns<T>, x: [&[T]; 1], o: &mut [T]) {
    let w = c.top.len();
    let ([x], top, sum) = (x, &mut c.top[..w], &mut c.sum[..w]);
    fill_top(top, x);
    for (x, o) in x.chunks_exact(w).zip(o.chunks_exact_mut(w)) {
        for i in 0..w {
            o[i] = (x[i] - top[i]).exp::<FMA>();
            sum[i] += o[i].widen();
        }
    }
    for i in 0..w {
        top[i] = T::narrow(1.0 / sum[i]);
    }
    for o in o.chunks_exact_mut(w) {
        for i in 0..w {
            o[i] = o[i] * top[i];
        }
    }
} }
simd! { fn log_softmax_columns<T: Float>(c: &mut Columns<T>, x: [&[T]; 1], o: &mut [T]) {
    let w = c.top.len();
    let ([x], top, sum) = (x, &mut c.top[..w], &mut c.sum[..w]);
    fill_top(top, x);
    for x in x.chunks_exact(w) {
        for i in 0..w {
            sum[i] += (x[i] - top[i]).exp::<FMA>().widen();
        }
    }
    for s in sum.iter_mut() {
        *s = Real::log::<FMA>(*s);
    }
    for (x, o) in x.chunks_exact(w).zip(o.chunks_exact_mut(w)) {
        for i in 0..w {
            o[i] = (x[i] - top[i]) - T::narrow(sum[i]);
        }
    }
} }
simd! { fn softmax_backward_columns<T: Float>(c: &mut Columns<T>, x: [&[T]; 2], o: &mut [T]) {
    let w = c.top.len();
    let ([g, y], top, sum) = (x, &mut c.top[..w], &mut c.sum[..w]);
    for (g, y) in g.chunks_exact(w).zip(y.chunks_exact(w)) {
        for i in 0..w {
            sum[i] += (g[i] * y[i]).widen();
        }
    }
    for i in 0..w {
        top[i] = T::narrow(sum[i]);
    }
    for ((g, y), o) in g.chunks_exact(w).zip(y.chunks_exact(w)).zip(o.chunks_exact_mut(w)) {
        for i in 0..w {
            o[i] = (g[i] - top[i]) * y[i];
        }
    }
} }
simd! { fn log_softmax_backward_columns<T: Float>(c: &mut Columns<T>, x: [&[T]; 2], o: &mut [T]) {
    let w = c.top.len();
    let ([g, y], top, sum) = (x, &mut c.top[..w], &mut c.sum[..w]);
    for g in g.chunks_exact(w) {
        for i in 0..w {
            sum[i] += g[i].widen();
        }
    }
    for i in 0..w {
        top[i] = T::narrow(sum[i]);
    }
    for ((g, y), o) in g.chunks_exact(w).zip(y.chunks_exact(w)).zip(o.chunks_exact_mut(w)) {
        for i in 0..w {
            o[i] = g[i] - y[i].exp::<FMA>() * top[i];
        }
    }
} }

/// The two loops of a kernel.
struct Kernel<T, const N: usize> {
    line: fn([&[T]; N], &mut [T]),
    columns: fn(&mut Columns<T>, [&[T]; N], &mut [T]),
}
fn run<T: Float, const N: usize>(x: [&Array; N], dim: usize, dtype: DType, k: Kernel<T, N>) -> Result<Array> {
    let mut out = Fresh::new(x[0].shape, dtype)?;
    let (mut columns, mut draft) = (Columns { top: Vec::new(), sum: Vec::new() }, Draft::default());
    tiles(x, dim, true, false, &mut |t, x| {
        t.write(&mut out, dtype, &mut draft, |o| match t.w {
            1 => (k.line)(x, o),
            w => {
                columns.reset(w);
                (k.columns)(&mut columns, x, o)
            }
        });
    })?;
    Ok(out.done())
}
fn run_in<const N: usize>(
    op: &'static str,
    x: [&Array; N],
    dim: usize,
    dtype: DType,
    single: Kernel<f32, N>,
    double: Kernel<f64, N>,
) -> Result<Array> {
    let given = x[N - 1].dtype; // where it is a result of float64, its gradient is not computed in less
    match dtype {
        DType::Float64 => run(x, dim, dtype, double),
        _ if N > 1 && given == DType::Float64 => run(x, dim, dtype, double),
        _ if dtype.is_float() => run(x, dim, dtype, single),
        _ => Err(Box::new(Error::Unsupported { op, dtype })),
    }
}
/// exp(x) / Σ exp(x) along `dim`, in a floating-point `dtype`. NaN where the largest is infinite, as torch has it.
pub fn softmax(a: &Array, dim: usize, dtype: DType) -> Result<Array> {
    run_in(
        "softmax",
        [a],
        dim,
        dtype,
        Kernel { line: softmax_line, columns: softmax_columns },
        Kernel { line: softmax_line, columns: softmax_columns },
    )
}
/// x - ln Σ exp(x) along `dim`, in a floating-point `dtype`.
pub fn log_softmax(a: &Array, dim: usize, dtype: DType) -> Result<Array> {
    run_in(
        "log_softmax",
        [a],
        dim,
        dtype,
        Kernel { line: log_softmax_line, columns: log_softmax_columns },
        Kernel { line: log_softmax_line, columns: log_softmax_columns },
    )
}
/// The gradient of `softmax` from the result's gradient and the result `y`: y (g - Σ g y), in `dtype`, the operand's.
pub fn softmax_backward(g: &Array, y: &Array, dim: usize, dtype: DType) -> Result<Array> {
    run_in(
        "softmax_backward",
        [g, y],
        dim,
        dtype,
        Kernel { line: softmax_backward_line, columns: softmax_backward_columns },
        Kernel { line: softmax_backward_line, columns: softmax_backward_columns },
    )
}
/// The gradient of `log_softmax` from the result's gradient and the result `y`: g - exp(y) Σ g, in `dtype`, the operand's.
pub fn log_softmax_backward(g: &Array, y: &Array, dim: usize, dtype: DType) -> Result<Array> {
    run_in(
        "log_softmax_backward",
        [g, y],
        dim,
        dtype,
        Kernel { line: log_softmax_backward_line, columns: log_softmax_backward_columns },
        Kernel { line: log_softmax_backward_line, columns: log_softmax_backward_columns },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType::*;
    use crate::kernels::samples::*;

    const SHAPES: [&[usize]; 9] = [&[], &[1], &[40], &[3000], &[50, 3], &[3, 70], &[2, 5, 40], &[3, 33, 2], &[2, 0, 3]];
    const FLOATS: [DType; 4] = [Float32, Float64, Float16, BFloat16];
    /// Compares lines of a result with `f` of lines of the operands: `a`, and another array of its shape.
    fn check(run: impl Fn(&Array, &Array, usize) -> Array, f: impl Fn(&[f64], &[f64]) -> Vec<f64>) {
        for (shape, dtype) in SHAPES.iter().flat_map(|s| FLOATS.map(|d| (s, d))) {
            let all = layouts(shape, dtype);
            for (i, a) in all.iter().enumerate() {
                let b = &all[(i + 1) % all.len()];
                for dim in 0..shape.len().max(1) {
                    let got = run(a, b, dim);
                    assert_eq!(got.shape, a.shape);
                    let (x, y) = (groups(a, &[dim]).1, groups(b, &[dim]).1);
                    for ((x, y), got) in x.iter().zip(&y).zip(groups(&got, &[dim]).1) {
                        let size = x.iter().map(|v| v.abs()).sum::<f64>().max(1.0).sqrt();
                        assert_near(&array(&[got.len()], Float64, &got), &f(x, y), tolerance(dtype) * size, &(a, dim));
                    }
                }
            }
        }
    }
    fn exps(x: &[f64]) -> (Vec<f64>, f64) {
        let e: Vec<f64> = x.iter().map(|v| v.exp()).collect();
        let sum = e.iter().sum();
        (e, sum)
    }
    #[test]
    fn both_agree_with_plain_loops_for_every_layout_dtype_and_dim() {
        check(|a, _, d| softmax(a, d, a.dtype).unwrap(), |x, _| exps(x).0.iter().map(|e| e / exps(x).1).collect());
        check(|a, _, d| log_softmax(a, d, a.dtype).unwrap(), |x, _| x.iter().map(|v| v - exps(x).1.ln()).collect());
        check(|a, _, d| softmax(a, d, Float64).unwrap(), |x, _| exps(x).0.iter().map(|e| e / exps(x).1).collect());
    }
    #[test]
    fn gradients_agree_with_plain_loops() {
        check(
            |g, y, d| softmax_backward(g, y, d, g.dtype).unwrap(),
            |g, y| {
                let s: f64 = g.iter().zip(y).map(|(g, y)| g * y).sum();
                g.iter().zip(y).map(|(g, y)| (g - s) * y).collect()
            },
        );
        check(
            |g, y, d| log_softmax_backward(g, y, d, g.dtype).unwrap(),
            |g, y| {
                let s: f64 = g.iter().sum();
                g.iter().zip(y).map(|(g, y)| g - y.exp() * s).collect()
            },
        );
    }
    #[test]
    fn large_and_infinite_operands_are_as_torch_has_them() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        for pad in [0, 100] {
            let run = |k: fn(&Array, usize, DType) -> Result<Array>, x: [f64; 2], want: [f64; 2], rest: f64| {
                let x: Vec<f64> = x.into_iter().chain(vec![-inf; pad]).collect();
                let want: Vec<f64> = want.into_iter().chain(vec![rest; pad]).collect();
                assert_near(&k(&array(&[x.len()], Float32, &x), 0, Float32).unwrap(), &want, 1e-6, &x);
            };
            run(softmax, [1e30, 1e30], [0.5, 0.5], 0.0);
            run(softmax, [-inf, 1.0], [0.0, 1.0], 0.0);
            run(softmax, [-inf, -inf], [nan, nan], nan);
            run(softmax, [inf, 1.0], [nan, nan], nan);
            run(softmax, [nan, 1.0], [nan, nan], nan);
            run(log_softmax, [-inf, 1.0], [-inf, 0.0], -inf);
            run(log_softmax, [-1e4, 1e4], [-2e4, 0.0], -inf);
            run(log_softmax, [-inf, -inf], [nan, nan], nan);
        }
        assert!(softmax(&array(&[2], Int64, &[1.0, 2.0]), 0, Int64).is_err());
        let ints = softmax(&array(&[2], Int64, &[1.0, 1.0]), 0, Float32).unwrap();
        assert_eq!(ints.to_vec(), [0.5, 0.5]);
    }
    #[test]
    fn every_vector_width_gives_the_same_bits() {
        use crate::kernels::simd::{Level, at};
        for (shape, dim) in [(&[3, 1100][..], 1), (&[70, 40], 0), (&[2, 33, 5], 1)] {
            let n = shape.iter().product();
            let (x, g) = (array(shape, Float32, &values(n, Float64, 1)), array(shape, Float32, &values(n, Float64, 2)));
            let run = || {
                let (y, z) = (softmax(&x, dim, Float32).unwrap(), log_softmax(&x, dim, Float32).unwrap());
                let (dy, dz) = (softmax_backward(&g, &y, dim, Float32).unwrap(), log_softmax_backward(&g, &z, dim, Float32).unwrap());
                [y, z, dy, dz].iter().flat_map(|a| a.to_vec().into_iter().map(f64::to_bits)).collect::<Vec<_>>()
            };
            assert!(at(Level::Avx512, run) == at(Level::Avx2, run), "{shape:?}");
        }
    }
}
