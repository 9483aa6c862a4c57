//! softmax and log-softmax along one axis, and their gradients.
//!
//! One kernel body each, over rows of `w` elements: a line on its own is cut into rows of `LANES`, one accumulator a column, which are then
//! joined; lines side by side have one accumulator each. Exponentials are taken of x - max, in the compute type, and summed in f64.
use super::fold::{Add, Float, Greatest, Join, LANES, Lane};
use super::math::Real;
use super::scan::tiles;
use super::simd::simd;
use crate::array::{Array, Fresh};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// The columns of a tile: for each the largest (later a factor or a term) and a sum. They belong to one line if `alone`.
struct Columns<T> {
    alone: bool,
    top: Vec<T>,
    sum: Vec<f64>,
}
impl<T: Float> Columns<T> {
    fn reset(&mut self, w: usize) {
        self.alone = w == 1;
        let w = if self.alone { LANES } else { w };
        self.top.clear();
        self.top.resize(w, T::LOWEST);
        self.sum.clear();
        self.sum.resize(w, 0.0);
    }
    #[inline(always)]
    fn fill_top(&mut self, x: &[T]) {
        for x in x.chunks(self.top.len()) {
            self.top.iter_mut().zip(x).for_each(|(t, &x)| *t = Greatest::join(*t, x));
        }
        spread::<T, Greatest>(self.alone, &mut self.top);
    }
}
/// Joins the columns of a line on its own, and sets each to the result.
#[inline(always)]
fn spread<T: Lane, J: Join>(alone: bool, columns: &mut [T]) {
    if alone {
        let mut half = columns.len() / 2;
        while half > 0 {
            let (a, b) = columns.split_at_mut(half);
            a.iter_mut().zip(b).for_each(|(a, &mut b)| *a = J::join(*a, b));
            half /= 2;
        }
        let all = columns[0];
        columns.fill(all);
    }
}
simd! { fn softmax_tile<T: Float>(c: &mut Columns<T>, x: [&[T]; 1], o: &mut [T]) {
    c.fill_top(x[0]);
    let w = c.top.len();
    for (x, o) in x[0].chunks(w).zip(o.chunks_mut(w)) {
        for (((x, o), t), s) in x.iter().zip(o).zip(&c.top).zip(&mut c.sum) {
            *o = (*x - *t).exp::<FMA>();
            *s += o.widen();
        }
    }
    spread::<f64, Add>(c.alone, &mut c.sum);
    c.top.iter_mut().zip(&c.sum).for_each(|(t, s)| *t = T::narrow(1.0 / *s));
    for o in o.chunks_mut(w) {
        o.iter_mut().zip(&c.top).for_each(|(o, &t)| *o = *o * t);
    }
} }
simd! { fn log_softmax_tile<T: Float>(c: &mut Columns<T>, x: [&[T]; 1], o: &mut [T]) {
    c.fill_top(x[0]);
    let w = c.top.len();
    for x in x[0].chunks(w) {
        for ((x, t), s) in x.iter().zip(&c.top).zip(&mut c.sum) {
            *s += (*x - *t).exp::<FMA>().widen();
        }
    }
    spread::<f64, Add>(c.alone, &mut c.sum);
    c.sum.iter_mut().for_each(|s| *s = Real::log::<FMA>(*s));
    for (x, o) in x[0].chunks(w).zip(o.chunks_mut(w)) {
        for (((x, o), t), s) in x.iter().zip(o).zip(&c.top).zip(&c.sum) {
            *o = (*x - *t) - T::narrow(*s);
        }
    }
} }
simd! { fn softmax_backward_tile<T: Float>(c: &mut Columns<T>, x: [&[T]; 2], o: &mut [T]) {
    let w = c.top.len();
    for (g, y) in x[0].chunks(w).zip(x[1].chunks(w)) {
        g.iter().zip(y).zip(&mut c.sum).for_each(|((&g, &y), s)| *s += (g * y).widen());
    }
    spread::<f64, Add>(c.alone, &mut c.sum);
    c.top.iter_mut().zip(&c.sum).for_each(|(t, s)| *t = T::narrow(*s));
    for ((g, y), o) in x[0].chunks(w).zip(x[1].chunks(w)).zip(o.chunks_mut(w)) {
        g.iter().zip(y).zip(o).zip(&c.top).for_each(|(((&g, &y), o), &t)| *o = (g - t) * y);
    }
} }
simd! { fn log_softmax_backward_tile<T: Float>(c: &mut Columns<T>, x: [&[T]; 2], o: &mut [T]) {
    let w = c.top.len();
    for g in x[0].chunks(w) {
        g.iter().zip(&mut c.sum).for_each(|(g, s)| *s += g.widen());
    }
    spread::<f64, Add>(c.alone, &mut c.sum);
    c.top.iter_mut().zip(&c.sum).for_each(|(t, s)| *t = T::narrow(*s));
    for ((g, y), o) in x[0].chunks(w).zip(x[1].chunks(w)).zip(o.chunks_mut(w)) {
        g.iter().zip(y).zip(o).zip(&c.top).for_each(|(((&g, &y), o), &t)| *o = g - y.exp::<FMA>() * t);
    }
} }

type Kernel<T, const N: usize> = fn(&mut Columns<T>, [&[T]; N], &mut [T]);
fn run<T: Float, const N: usize>(x: [&Array; N], dim: usize, dtype: DType, k: Kernel<T, N>) -> Result<Array> {
    let mut out = Fresh::new(x[0].shape, dtype)?;
    let (mut columns, mut scratch) = (Columns { alone: false, top: Vec::new(), sum: Vec::new() }, Vec::new());
    tiles(x, dim, true, false, &mut |t, x| {
        columns.reset(t.w);
        t.write(&mut out, dtype, &mut scratch, |o| k(&mut columns, x, o));
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
    run_in("softmax", [a], dim, dtype, softmax_tile, softmax_tile)
}
/// x - ln Σ exp(x) along `dim`, in a floating-point `dtype`.
pub fn log_softmax(a: &Array, dim: usize, dtype: DType) -> Result<Array> {
    run_in("log_softmax", [a], dim, dtype, log_softmax_tile, log_softmax_tile)
}
/// The gradient of `softmax` from the result's gradient and the result `y`: y (g - Σ g y), in `dtype`, the operand's.
pub fn softmax_backward(g: &Array, y: &Array, dim: usize, dtype: DType) -> Result<Array> {
    run_in("softmax_backward", [g, y], dim, dtype, softmax_backward_tile, softmax_backward_tile)
}
/// The gradient of `log_softmax` from the result's gradient and the result `y`: g - exp(y) Σ g, in `dtype`, the operand's.
pub fn log_softmax_backward(g: &Array, y: &Array, dim: usize, dtype: DType) -> Result<Array> {
    run_in("log_softmax_backward", [g, y], dim, dtype, log_softmax_backward_tile, log_softmax_backward_tile)
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
}
