//! Running results along one axis: cumulative sums and products, running extremes, running log-sum-exp.
//!
//! `tiles` is the walk along an axis, for these and for `softmax`. It hands out tiles of `n` steps along the axis by `w` lines, dense and of
//! the compute type, so that a kernel is one loop over rows of `w` elements: lent where the operand lies so, else fetched. A line that is
//! contiguous is a tile of its own (`w` = 1); others go side by side, which also is where short lines gain.
//!
//! f32 lines are carried in f64, integers in i64, as torch has it. The order of the steps is that of the line, except that an f32 line on
//! its own is joined by eights (in f64, where that neither overflows nor shows after rounding).
use super::fold::{Add, Float, Greatest, Join, Lane, Least, Mul, Prefer, for_compute, for_float};
use super::math::Real;
use super::nest::Place;
use super::pointwise::{self, Part};
use super::simd::simd;
use crate::array::{Array, Fresh};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layout::{Dims, view_strides};

/// Lines shorter than this go side by side.
const SHORT: usize = 32;
/// Elements of a tile that need not hold whole lines.
const TILE: usize = 4096;
/// Elements of a tile of whole lines, as far as `FEW` lines allow: operand and result stay in the second-level cache.
const WHOLE: usize = 1 << 18;
/// Least lines side by side: a cache line of f32.
const FEW: usize = 16;
/// Most lines side by side.
const MANY: usize = 1024;

/// Where a tile lies in the result.
pub(super) struct Tile {
    /// Step of the line at which the tile starts.
    pub first: usize,
    pub n: usize,
    pub w: usize,
    at: usize,
    rs: usize,
    cs: usize,
}
impl Tile {
    /// A line of `n` elements that lie together in the result.
    pub fn line(at: usize, n: usize) -> Tile {
        Tile { first: 0, n, w: 1, at, rs: 1, cs: 1 }
    }
    /// Lends the tile's place in `out` to be written, or a draft that is then cast and moved there.
    pub fn write<T: Lane>(&self, out: &mut Fresh, dtype: DType, draft: &mut Draft<T>, f: impl FnOnce(&mut [T])) {
        let len = self.n * self.w;
        let held = &mut draft.0;
        if dtype == T::DTYPE && (self.w == 1 || self.cs == 1) && (self.n == 1 || self.rs == self.w) {
            let out = out.slice_mut();
            let streams = DRAFTS.contains(&len) && pointwise::streams(size_of_val(out));
            let place = &mut out[self.at..][..len];
            if !streams {
                return f(place);
            }
            held.resize(len, T::default());
            f(held);
            return pointwise::stream(held, place);
        }
        held.resize(len, T::default());
        f(held);
        match self.w {
            1 => T::put(held, out, dtype, self.at, self.n, 0, self.rs),
            _ => T::put(held, out, dtype, self.at, self.w, self.rs, self.cs),
        }
    }
}
/// Elements of a tile of a large result that are drafted, to be written past the caches: fewer are not worth it, more leave the cache before.
const DRAFTS: std::ops::Range<usize> = 256..1 << 16;
/// What a kernel writes tiles of a result by.
#[derive(Default)]
pub(super) struct Draft<T>(Vec<T>);
impl<T> Drop for Draft<T> {
    fn drop(&mut self) {
        pointwise::settle();
    }
}
/// Calls `f` for each tile along `dim` of operands of one shape: of whole lines, or in the order of the lines (reversed, if so asked).
pub(super) fn tiles<T: Lane, const N: usize>(
    x: [&Array; N],
    dim: usize,
    whole: bool,
    reverse: bool,
    f: &mut dyn FnMut(&Tile, [&[T]; N]),
) -> Result<()> {
    let shape = x[0].shape;
    let split = if shape.is_empty() { (1, 1, 1) } else { (shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product()) };
    let (outer, n, inner): (usize, usize, usize) = split;
    if outer * n * inner == 0 {
        return Ok(());
    }
    // Each operand as [outer, n, inner].
    let three = Dims::of(&[outer, n, inner]);
    let mut views: [Option<Array>; N] = [const { None }; N];
    for (v, a) in views.iter_mut().zip(x) {
        *v = Some(match view_strides(&a.shape, &a.strides, &three) {
            Some(s) => a.view(three, s, a.offset),
            None => {
                let c = pointwise::contiguous(a)?;
                c.view(three, three.strides(), c.offset)
            }
        });
    }
    let views: [&Array; N] = std::array::from_fn(|k| views[k].as_ref().expect("just set"));
    let alone = inner == 1 && n >= SHORT && (outer == 1 || views.iter().all(|v| v.strides[1] <= v.strides[0]));
    // Axis 0 or 2 runs across the tile, the other one from tile to tile.
    let across = if inner >= FEW || inner >= outer { 2 } else { 0 };
    let most = match whole {
        _ if alone || n > 1 << 20 => 1,
        true => (WHOLE / n).clamp(FEW, MANY),
        false => MANY,
    };
    let w = three[across].min(most);
    let steps = match whole {
        false if !alone || views.iter().any(|v| v.strides[1] != 1 || v.dtype != T::DTYPE) => n.min((TILE / w).max(1)),
        _ => n,
    };
    let out = three.strides();
    let chunks = n.div_ceil(steps);
    let mut held: [Vec<T>; N] = [const { Vec::new() }; N];
    let mut raw = Vec::new();
    for other in 0..three[2 - across] {
        for line in (0..three[across]).step_by(w) {
            let w = w.min(three[across] - line);
            for chunk in 0..chunks {
                let first = steps * if reverse { chunks - 1 - chunk } else { chunk };
                let rows = steps.min(n - first);
                let start = |s: &[usize]| other * s[2 - across] + line * s[across] + first * s[1];
                for (held, v) in held.iter_mut().zip(views) {
                    if is_dense::<T>(v, across, rows, w) {
                        continue;
                    }
                    held.resize(rows * w, T::default());
                    raw.resize(if v.dtype == T::DTYPE { 0 } else { rows * w * v.dtype.size() }, 0);
                    let place = if w == 1 { Place::line(v.strides[1]) } else { Place::rect(v.strides[1], v.strides[across]) };
                    Part { array: v, at: v.offset + start(&v.strides), place: &place, rows, cols: w }.fetch(held, &mut raw);
                }
                let ins = std::array::from_fn(|k| match views[k] {
                    v if is_dense::<T>(v, across, rows, w) => v.read(v.offset + start(&v.strides), rows * w),
                    _ => &held[k][..],
                });
                f(&Tile { first, n: rows, w, at: start(&out), rs: out[1], cs: out[across] }, ins);
            }
        }
    }
    Ok(())
}
/// Do rows of `w` elements across an axis of a [outer, n, inner] operand follow each other in memory, in the compute type?
fn is_dense<T: Lane>(v: &Array, across: usize, rows: usize, w: usize) -> bool {
    v.dtype == T::DTYPE && (w == 1 || v.strides[across] == 1) && (rows == 1 || v.strides[1] == w)
}

/// Joins each of eight to those before it: by steps of one, two and four.
#[inline(always)]
fn prefixes<T: Lane, J: Join>(mut v: [T; 8]) -> [T; 8] {
    for i in (1..8).rev() {
        v[i] = J::join(v[i - 1], v[i]);
    }
    for i in (2..8).rev() {
        v[i] = J::join(v[i - 2], v[i]);
    }
    for i in (4..8).rev() {
        v[i] = J::join(v[i - 4], v[i]);
    }
    v
}
simd! {
    /// Joins each row of `x` to what is carried, and writes what is then carried.
    fn running<T: Lane, J: Join>(carry: &mut [T::Wide], x: &[T], o: &mut [T], reverse: bool) {
        let w = carry.len();
        let n = x.len() / w;
        let [alone] = carry else {
            for r in 0..n {
                let at = if reverse { n - 1 - r } else { r } * w;
                for ((c, &x), o) in carry.iter_mut().zip(&x[at..][..w]).zip(&mut o[at..][..w]) {
                    *c = J::join(*c, x.widen());
                    *o = T::narrow(*c);
                }
            }
            return;
        };
        let mut c = *alone;
        let eights = if size_of::<T>() < size_of::<T::Wide>() { n / 8 } else { 0 };
        for e in 0..eights {
            let at = if reverse { n - 8 - 8 * e } else { 8 * e };
            let (x, o) = (&x[at..][..8], &mut o[at..][..8]);
            let mut v = [J::start::<T::Wide>(); 8];
            for i in 0..8 {
                v[i] = x[if reverse { 7 - i } else { i }].widen();
            }
            let v = prefixes::<T::Wide, J>(v);
            for i in 0..8 {
                o[if reverse { 7 - i } else { i }] = T::narrow(J::join(c, v[i]));
            }
            c = J::join(c, v[7]);
        }
        for i in 8 * eights..n {
            let at = if reverse { n - 1 - i } else { i };
            c = J::join(c, x[at].widen());
            o[at] = T::narrow(c);
        }
        *alone = c;
    }
}
fn cumulate<J: Join>(a: &Array, dim: usize, dtype: DType, reverse: bool) -> Result<Array> {
    let mut out = Fresh::new(a.shape, dtype)?;
    for_compute!(dtype, T => {
        let start = J::start::<<T as Lane>::Wide>();
        let (mut carry, mut draft) = (Vec::new(), Draft::default());
        let mut step = None;
        tiles::<T, 1>([a], dim, false, reverse, &mut |t, [x]| {
            // A line begins where the steps do not go on.
            let begins = if reverse { step.is_none_or(|s| t.first >= s) } else { t.first == 0 };
            step = Some(t.first);
            if begins {
                carry.clear();
                carry.resize(t.w, start);
            }
            t.write(&mut out, dtype, &mut draft, |o| running::<T, J>(&mut carry, x, o, reverse));
        })?;
    });
    Ok(out.done())
}
/// Running sum along `dim`, of elements cast to the compute type of `dtype`. Reversed, it runs from the end: the gradient.
pub fn cumsum(a: &Array, dim: usize, dtype: DType, reverse: bool) -> Result<Array> {
    cumulate::<Add>(a, dim, dtype, reverse)
}
/// Running product along `dim`.
pub fn cumprod(a: &Array, dim: usize, dtype: DType) -> Result<Array> {
    cumulate::<Mul>(a, dim, dtype, false)
}

simd! {
    /// Keeps in each column the best so far and its place; a later equal replaces an earlier one, NaN all.
    fn running_best<T: Lane, P: Prefer>(best: &mut [T], at: &mut [i64], x: &[T], values: &mut [T], places: &mut [i64], first: usize) {
        let w = best.len();
        let at = &mut at[..w];
        for (r, row) in x.chunks_exact(w).enumerate() {
            let place = (first + r) as i64;
            let (values, places) = (&mut values[r * w..][..w], &mut places[r * w..][..w]);
            for i in 0..w {
                // Not worse: the one there before does not beat it.
                let later = !P::beats(best[i], row[i]) | (place == 0);
                best[i] = if later { row[i] } else { best[i] };
                at[i] = if later { place } else { at[i] };
                values[i] = best[i];
                places[i] = at[i];
            }
        }
    }
}
fn best_so_far<P: Prefer>(a: &Array, dim: usize) -> Result<(Array, Array)> {
    let (mut values, mut indices) = (Fresh::new(a.shape, a.dtype)?, Fresh::new(a.shape, DType::Int64)?);
    for_compute!(a.dtype, T => {
        let (mut best, mut at, mut held, mut places) = (Vec::new(), Vec::new(), Draft::default(), Draft::default());
        tiles::<T, 1>([a], dim, false, false, &mut |t, [x]| {
            if t.first == 0 {
                best.resize(t.w, T::default());
                at.resize(t.w, 0);
            }
            t.write(&mut values, a.dtype, &mut held, |v| {
                t.write(&mut indices, DType::Int64, &mut places, |p| running_best::<T, P>(&mut best, &mut at, x, v, p, t.first));
            });
        })?;
    });
    Ok((values.done(), indices.done()))
}
/// Largest so far along `dim` and where it stands; of equal ones the last, NaN before all.
pub fn cummax(a: &Array, dim: usize) -> Result<(Array, Array)> {
    best_so_far::<Greatest>(a, dim)
}
/// Smallest so far along `dim` and where it stands; of equal ones the last, NaN before all.
pub fn cummin(a: &Array, dim: usize) -> Result<(Array, Array)> {
    best_so_far::<Least>(a, dim)
}

simd! {
    /// ln Σ exp so far: `top` is the largest so far and `sum` is Σ exp(x - top).
    fn running_logsumexp<T: Float>(top: &mut [f64], sum: &mut [f64], x: &[T], o: &mut [T]) {
        let w = top.len();
        let sum = &mut sum[..w];
        for (x, o) in x.chunks_exact(w).zip(o.chunks_exact_mut(w)) {
            for i in 0..w {
                let (v, t) = (x[i].widen(), top[i]);
                let apart = if v == t { 0.0 } else { -(v - t).abs() }; // equal infinities are not apart
                let e = Real::exp::<FMA>(apart);
                sum[i] = if v <= t { sum[i] + e } else { sum[i] * e + 1.0 };
                top[i] = if v <= t { t } else { v };
                o[i] = T::narrow(top[i] + Real::log::<FMA>(sum[i]));
            }
        }
    }
}
/// ln of the running sum of exp along `dim`, stable for any magnitudes. Floating point only.
pub fn logcumsumexp(a: &Array, dim: usize) -> Result<Array> {
    if !a.dtype.is_float() {
        return Err(Box::new(Error::Unsupported { op: "logcumsumexp", dtype: a.dtype }));
    }
    let mut out = Fresh::new(a.shape, a.dtype)?;
    for_float!(a.dtype, T => {
        let (mut top, mut sum, mut draft) = (Vec::new(), Vec::new(), Draft::default());
        tiles::<T, 1>([a], dim, false, false, &mut |t, [x]| {
            if t.first == 0 {
                (top, sum) = (vec![f64::NEG_INFINITY; t.w], vec![0.0; t.w]);
            }
            t.write(&mut out, a.dtype, &mut draft, |o| running_logsumexp(&mut top, &mut sum, x, o));
        })?;
    });
    Ok(out.done())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{DType::*, Scalar};
    use crate::kernels::samples::*;

    /// Lines shorter and longer than what goes side by side, at every place of the axis.
    const SHAPES: [&[usize]; 9] = [&[], &[1], &[40], &[5000], &[50, 3], &[3, 70], &[2, 5, 40], &[3, 33, 2], &[2, 0, 3]];
    /// Compares lines of results with `f` of lines of the operand, for every layout and dim.
    fn check<const N: usize>(dtypes: &[DType], run: impl Fn(&Array, usize) -> [Array; N], f: impl Fn(&[f64]) -> [Vec<f64>; N]) {
        for (shape, &dtype) in SHAPES.iter().flat_map(|s| dtypes.iter().map(move |d| (s, d))) {
            for a in layouts(shape, dtype) {
                for dim in 0..shape.len().max(1) {
                    let got = run(&a, dim);
                    let lines = groups(&a, &[dim]).1;
                    for (k, got) in got.iter().enumerate() {
                        assert_eq!(got.shape, a.shape);
                        let got = groups(got, &[dim]).1;
                        for (line, got) in lines.iter().zip(got) {
                            let n = got.len();
                            let got = array(&[n], Float64, &got);
                            assert_near(&got, &f(line)[k], tolerance(dtype) * (n as f64).sqrt(), &(&a, dim, k));
                        }
                    }
                }
            }
        }
    }
    fn running(line: &[f64], start: f64, join: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        line.iter()
            .scan(start, |c, &v| {
                Some({
                    *c = join(*c, v);
                    *c
                })
            })
            .collect()
    }
    const FLOATS: [DType; 4] = [Float32, Float64, Float16, BFloat16];

    #[test]
    fn running_sums_agree_with_plain_loops_both_ways() {
        let to = |a: &Array| if a.dtype.is_float() { a.dtype } else { Int64 };
        check(&DType::ALL, |a, d| [cumsum(a, d, to(a), false).unwrap()], |x| [running(x, 0.0, |c, v| c + v)]);
        let backwards = |x: &[f64]| {
            let turned: Vec<f64> = x.iter().rev().copied().collect();
            [running(&turned, 0.0, |c, v| c + v).into_iter().rev().collect()]
        };
        check(&DType::ALL, |a, d| [cumsum(a, d, to(a), true).unwrap()], backwards);
        check(&FLOATS, |a, d| [cumsum(a, d, Float64, false).unwrap()], |x| [running(x, 0.0, |c, v| c + v)]);
    }
    #[test]
    fn running_products_agree_with_plain_loops() {
        for n in [3, 100] {
            let v: Vec<f64> = (0..2 * n).map(|i| [1.0, -1.0, 2.0, 0.5, 1.0][i % 5]).collect();
            for (d, dim) in FLOATS.iter().flat_map(|&d| [(d, 0), (d, 1)]) {
                let shape = if dim == 0 { [n, 2] } else { [2, n] };
                let a = array(&shape, d, &v);
                let got = cumprod(&a, dim, d).unwrap();
                for (x, y) in groups(&a, &[dim]).1.iter().zip(groups(&got, &[dim]).1) {
                    assert_eq!(running(x, 1.0, |c, v| c * v), y, "{d:?} {shape:?}");
                }
            }
        }
        let large = array(&[3], Float64, &[1e-200, 1e200, 1e200]);
        assert_eq!(cumprod(&large, 0, Float64).unwrap().to_vec(), [1e-200, 1.0, 1e200]);
    }
    #[test]
    fn running_extremes_name_the_last_of_equal_ones() {
        let best = |x: &[f64], later: &dyn Fn(f64, f64) -> bool| {
            let (mut v, mut at) = (Vec::new(), Vec::new());
            for (i, &x) in x.iter().enumerate() {
                let first = i == 0 || later(x, v[i - 1]);
                v.push(if first { x } else { v[i - 1] });
                at.push(if first { i as f64 } else { at[i - 1] });
            }
            [v, at]
        };
        let two = |r: Result<(Array, Array)>| r.map(|(a, b)| [a, b]).unwrap();
        check(&DType::ALL, |a, d| two(cummax(a, d)), |x| best(x, &|x, b| x >= b));
        check(&DType::ALL, |a, d| two(cummin(a, d)), |x| best(x, &|x, b| x <= b));
        let nan = f64::NAN;
        let [v, i] = two(cummax(&array(&[5], Float32, &[1.0, nan, 2.0, nan, 9.0]), 0));
        assert_eq!(i.to_vec(), [0.0, 1.0, 1.0, 3.0, 3.0]);
        assert_near(&v, &[1.0, nan, nan, nan, nan], 0.0, &"nan");
    }
    #[test]
    fn running_logsumexp_is_stable() {
        check(
            &FLOATS,
            |a, d| [logcumsumexp(a, d).unwrap()],
            |x| [running(x, f64::NEG_INFINITY, |c, v| c.max(v) + (-(c - v).abs()).exp().ln_1p())],
        );
        let inf = f64::INFINITY;
        for (x, want) in [
            (vec![-inf, -inf, 1.0], vec![-inf, -inf, 1.0]),
            (vec![1.0, inf, inf, 2.0, -inf], vec![1.0, inf, inf, inf, inf]),
            (vec![1e4, 1e4, -1e4], vec![1e4, 1e4 + 2f64.ln(), 1e4 + 2f64.ln()]),
            (vec![1.0, f64::NAN, inf], vec![1.0, f64::NAN, f64::NAN]),
        ] {
            assert_near(&logcumsumexp(&array(&[x.len()], Float64, &x), 0).unwrap(), &want, 1e-13, &x);
        }
        assert!(logcumsumexp(&array(&[2], Int64, &[1.0, 2.0]), 0).is_err());
    }
    #[test]
    fn long_running_sums_do_not_drift() {
        let n = 1 << 20;
        let a = Array::from_slice(&[n], &vec![0.1f32; n]).unwrap();
        let last = cumsum(&a, 0, Float32, false).unwrap().item_at(&[n - 1]);
        assert_eq!(last, Scalar::Float((0.1f32 as f64 * n as f64) as f32 as f64));
    }
}
