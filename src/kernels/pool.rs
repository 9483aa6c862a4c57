//! Windows over the last one to three axes: pools, columns of windows, resampling and padding.
//!
//! What is linear is separable: a mean over windows, a resampling, a padding by the image itself each are one sparse matrix (`Taps`) for each
//! axis, applied axis after axis; the gradient applies the transposed matrices. Planes are row-major in the computing type; integers are
//! computed in float64 (exact below 2^53).
use super::fold::{Float, for_float};
use super::math::Real;
use super::pointwise::{cast, contiguous};
use crate::array::{Array, Fresh};
use crate::dtype::{Compute, DType};
use crate::error::{Result, bail};
use crate::layout::Dims;

/// The type that elements of `dtype` are computed in here.
fn computing(dtype: DType) -> DType {
    match dtype.compute() {
        Compute::F32 => DType::Float32,
        _ => DType::Float64,
    }
}
/// Row-major, in the computing type.
fn operand(a: &Array) -> Result<Array> {
    let to = computing(a.dtype);
    if a.dtype == to { contiguous(a) } else { cast(a, to) }
}
/// In the type of the user's operand.
fn finished(out: Fresh, dtype: DType) -> Result<Array> {
    let out = out.done();
    if out.dtype == dtype { Ok(out) } else { cast(&out, dtype) }
}

/// Where windows of one axis lie.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub size: usize,
    pub kernel: usize,
    pub stride: usize,
    pub padding: usize,
    pub dilation: usize,
    /// Number of windows.
    pub count: usize,
}
impl Axis {
    /// An axis whose windows are counted; None if there is not one.
    pub fn new(size: usize, kernel: usize, stride: usize, padding: usize, dilation: usize, ceil: bool) -> Option<Axis> {
        let reach = dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
        let room = size.checked_add(padding.checked_mul(2)?)?.checked_sub(reach)?;
        let mut count = if ceil { room.div_ceil(stride) } else { room / stride } + 1;
        // a last window that would begin beyond the image is not taken
        if ceil && (count - 1) * stride >= size + padding {
            count -= 1;
        }
        Some(Axis { size, kernel, stride, padding, dilation, count })
    }
    /// The place that tap `k` of window `o` meets, if it lies in the image.
    #[inline]
    fn place(&self, o: usize, k: usize) -> Option<usize> {
        (o * self.stride + k * self.dilation).checked_sub(self.padding).filter(|&i| i < self.size)
    }
    /// The windows for which tap `k` lies in the image.
    fn inside(&self, k: usize) -> std::ops::Range<usize> {
        let at = k * self.dilation;
        let first = self.padding.saturating_sub(at).div_ceil(self.stride);
        let last = (self.size + self.padding).saturating_sub(at).div_ceil(self.stride);
        first.min(self.count)..last.min(self.count).max(first.min(self.count))
    }
}
/// Three axes; those that the user has not come first and are trivial.
pub type Axes = [Axis; 3];
pub const TRIVIAL: Axis = Axis { size: 1, kernel: 1, stride: 1, padding: 0, dilation: 1, count: 1 };
fn product(a: &Axes, f: impl Fn(&Axis) -> usize) -> usize {
    a.iter().map(f).product()
}
/// Runs `f(at, from, run)` for each run of windows along the last axis for which a tap lies in the image: `at` counts in [taps, windows],
/// `from` in the image.
#[inline(always)]
fn each_run(a: &Axes, mut f: impl FnMut(usize, usize, usize)) {
    let windows = product(a, |x| x.count);
    let [d, h, w] = a;
    let mut tap = 0;
    for (kd, kh, kw) in (0..d.kernel).flat_map(|x| (0..h.kernel).flat_map(move |y| (0..w.kernel).map(move |z| (x, y, z)))) {
        let run = w.inside(kw);
        for od in d.inside(kd) {
            let Some(id) = d.place(od, kd) else { continue };
            for oh in h.inside(kh) {
                if let (Some(ih), Some(iw), false) = (h.place(oh, kh), w.place(run.start, kw), run.is_empty()) {
                    let at = tap * windows + (od * h.count + oh) * w.count + run.start;
                    f(at, (id * h.size + ih) * w.size + iw, run.len());
                }
            }
        }
        tap += 1;
    }
}
/// The columns [channels * taps, windows] of an image of so many channels; what lies outside is 0.
fn unfold<T: Real>(image: &[T], a: &Axes, columns: &mut [T]) {
    let (plane, taps, windows) = (product(a, |x| x.size), product(a, |x| x.kernel), product(a, |x| x.count));
    columns.fill(T::ZERO);
    if plane == 0 || windows == 0 {
        return;
    }
    for (image, columns) in image.chunks_exact(plane).zip(columns.chunks_exact_mut(taps * windows)) {
        each_run(a, |at, from, n| {
            let to = &mut columns[at..at + n];
            match a[2].stride {
                1 => to.copy_from_slice(&image[from..from + n]),
                s => to.iter_mut().zip(image[from..].iter().step_by(s)).for_each(|(t, &v)| *t = v),
            }
        });
    }
}
/// Adds columns back to where they came from.
fn fold<T: Real>(columns: &[T], a: &Axes, image: &mut [T]) {
    let (plane, taps, windows) = (product(a, |x| x.size), product(a, |x| x.kernel), product(a, |x| x.count));
    if plane == 0 || windows == 0 {
        return;
    }
    for (image, columns) in image.chunks_exact_mut(plane).zip(columns.chunks_exact(taps * windows)) {
        each_run(a, |at, from, n| {
            let add = |(t, &v): (&mut T, &T)| *t = *t + v;
            match a[2].stride {
                1 => image[from..from + n].iter_mut().zip(&columns[at..at + n]).for_each(add),
                s => image[from..].iter_mut().step_by(s).zip(&columns[at..at + n]).for_each(add),
            }
        });
    }
}
/// Every window of [batch, channels, H, W] as a column: [batch, channels * taps, windows].
pub fn im2col(x: &Array, a: Axes) -> Result<Array> {
    let (batch, channels) = (x.shape[0], x.shape[1]);
    let (plane, rows, windows) = (product(&a, |x| x.size), channels * product(&a, |x| x.kernel), product(&a, |x| x.count));
    let from = operand(x)?;
    let mut out = Fresh::new(Dims::of(&[batch, rows, windows]), from.dtype)?;
    for_float!(x.dtype, T => {
        let (from, to) = (from.slice::<T>(), out.slice_mut::<T>());
        for n in 0..batch {
            unfold(&from[n * channels * plane..][..channels * plane], &a, &mut to[n * rows * windows..][..rows * windows]);
        }
    });
    finished(out, x.dtype)
}
/// Sums columns [batch, channels * taps, windows] back into images of two axes.
pub fn col2im(x: &Array, a: Axes) -> Result<Array> {
    let (batch, rows) = (x.shape[0], x.shape[1]);
    let (channels, windows, plane) = (rows / product(&a, |x| x.kernel), product(&a, |x| x.count), product(&a, |x| x.size));
    let from = operand(x)?;
    let mut out = Fresh::new(Dims::of(&[batch, channels, a[1].size, a[2].size]), from.dtype)?;
    for_float!(x.dtype, T => {
        let (from, to) = (from.slice::<T>(), out.slice_mut::<T>());
        to.fill(T::ZERO);
        for n in 0..batch {
            fold(&from[n * rows * windows..][..rows * windows], &a, &mut to[n * channels * plane..][..channels * plane]);
        }
    });
    finished(out, x.dtype)
}

/// The places of an image that each result of one axis looks at, first to last, `step` apart.
#[derive(Clone, Debug)]
pub struct Looks {
    pub size: usize,
    pub spans: Vec<(usize, usize)>,
    pub step: usize,
}
impl Looks {
    /// Windows, as far as they lie in the image.
    pub fn windows(a: &Axis) -> Looks {
        let span = |o: usize| {
            let first = (0..a.kernel).find_map(|k| a.place(o, k)).unwrap_or(0);
            let last = (0..a.kernel).rev().find_map(|k| a.place(o, k)).map_or(first, |l| l + 1);
            (first, last)
        };
        Looks { size: a.size, spans: (0..a.count).map(span).collect(), step: a.dilation }
    }
    /// `n` windows that cover an axis evenly.
    pub fn even(size: usize, n: usize) -> Looks {
        Looks { size, spans: (0..n).map(|i| (i * size / n, ((i + 1) * size).div_ceil(n))).collect(), step: 1 }
    }
}
fn shape_with(x: &Array, n: usize, last: &[usize]) -> Dims {
    x.shape[..x.ndim() - n].iter().chain(last).copied().collect()
}
/// The largest of each window of the last `n` axes, and its place in the plane; of equal ones the first, NaN before all.
pub fn max_windows(x: &Array, n: usize, looks: &[Looks; 3]) -> Result<(Array, Array)> {
    let counts: Vec<usize> = looks[3 - n..].iter().map(|l| l.spans.len()).collect();
    let shape = shape_with(x, n, &counts);
    let from = operand(x)?;
    let (mut values, mut indices) = (Fresh::new(shape, from.dtype)?, Fresh::new(shape, DType::Int64)?);
    let plane: usize = looks.iter().map(|l| l.size).product();
    let [d, h, w] = looks;
    for_float!(x.dtype, T => {
        let (from, to, at) = (from.slice::<T>(), values.slice_mut::<T>(), indices.slice_mut::<i64>());
        let mut o = 0;
        for image in from.chunks_exact(plane.max(1)) {
            for &(d0, d1) in &d.spans {
                for &(h0, h1) in &h.spans {
                    for &(w0, w1) in &w.spans {
                        let (mut best, mut place) = (-T::INF, (d0 * h.size + h0) * w.size + w0);
                        for i in (d0..d1).step_by(d.step) {
                            for j in (h0..h1).step_by(h.step) {
                                let row = (i * h.size + j) * w.size;
                                for k in (w0..w1).step_by(w.step) {
                                    let v = image[row + k];
                                    if v > best || v.is_nan() {
                                        (best, place) = (v, row + k);
                                    }
                                }
                            }
                        }
                        (to[o], at[o]) = (best, place as i64);
                        o += 1;
                    }
                }
            }
        }
    });
    Ok((finished(values, x.dtype)?, indices.done()))
}

/// A linear map along one axis: result `o` is the sum of weights times elements, over `divisor[o]`.
#[derive(Clone, Debug)]
pub struct Taps {
    pub size: usize,
    /// Where the taps of each result begin in `taps`, and where those of the last end.
    starts: Vec<usize>,
    taps: Vec<(usize, f64)>,
    divisors: Vec<f64>,
}
impl Taps {
    pub fn new(size: usize, results: impl Iterator<Item = (Vec<(usize, f64)>, f64)>) -> Taps {
        let mut t = Taps { size, starts: vec![0], taps: Vec::new(), divisors: Vec::new() };
        for (taps, divisor) in results {
            t.taps.extend(taps);
            t.starts.push(t.taps.len());
            t.divisors.push(divisor);
        }
        t
    }
    /// Each result one element.
    pub fn picks(size: usize, from: impl Iterator<Item = usize>) -> Taps {
        Taps::new(size, from.map(|i| (vec![(i, 1.0)], 1.0)))
    }
    /// Sums of spans, over a number.
    pub fn means(looks: &Looks, divisor: impl Fn(usize) -> f64) -> Taps {
        let one = |(o, &(a, b)): (usize, &(usize, usize))| ((a..b).map(|i| (i, 1.0)).collect(), divisor(o));
        Taps::new(looks.size, looks.spans.iter().enumerate().map(one))
    }
    pub fn count(&self) -> usize {
        self.divisors.len()
    }
    fn is_plain(&self) -> bool {
        self.size == self.count() && (0..self.size).all(|o| self.of(o) == [(o, 1.0)] && self.divisors[o] == 1.0)
    }
    fn of(&self, o: usize) -> &[(usize, f64)] {
        &self.taps[self.starts[o]..self.starts[o + 1]]
    }
    /// Along the middle one of three axes, [outer, size, inner].
    fn apply<T: Float>(&self, x: &[T], inner: usize, out: &mut [T]) {
        let n = self.count();
        for (x, out) in x.chunks_exact((self.size * inner).max(1)).zip(out.chunks_exact_mut((n * inner).max(1))) {
            for (o, out) in out.chunks_exact_mut(inner.max(1)).enumerate() {
                out.fill(T::ZERO);
                for &(i, w) in self.of(o) {
                    let w = T::lit(w);
                    out.iter_mut().zip(&x[i * inner..][..inner]).for_each(|(o, &x)| *o = if w == T::ONE { *o + x } else { *o + w * x });
                }
                if self.divisors[o] != 1.0 {
                    let by = T::lit(self.divisors[o]);
                    out.iter_mut().for_each(|o| *o = *o / by);
                }
            }
        }
    }
    /// The transposed map: [outer, results, inner] to [outer, size, inner].
    fn spread<T: Float>(&self, g: &[T], inner: usize, out: &mut [T]) {
        out.fill(T::ZERO);
        for (g, out) in g.chunks_exact((self.count() * inner).max(1)).zip(out.chunks_exact_mut((self.size * inner).max(1))) {
            for (o, g) in g.chunks_exact(inner.max(1)).enumerate() {
                for &(i, w) in self.of(o) {
                    let w = T::lit(w / self.divisors[o]);
                    out[i * inner..][..inner].iter_mut().zip(g).for_each(|(o, &g)| *o = *o + w * g);
                }
            }
        }
    }
}
/// One map for each of the last axes; backwards if `transposed`.
pub fn resample(x: &Array, maps: &[Taps], transposed: bool) -> Result<Array> {
    let lead = x.ndim() - maps.len();
    let mut now = operand(x)?;
    for (i, map) in maps.iter().enumerate() {
        let (from, to) = if transposed { (map.count(), map.size) } else { (map.size, map.count()) };
        if now.shape[lead + i] != from {
            bail!(Runtime, "resample(): a map of {from} elements does not fit shape {:?}", now.shape);
        }
        if map.is_plain() {
            continue;
        }
        let inner = now.shape[lead + i + 1..].iter().product();
        let mut next = Fresh::new(now.shape.with(|s| s[lead + i] = to), now.dtype)?;
        for_float!(x.dtype, T => {
            let (from, to) = (now.slice::<T>(), next.slice_mut::<T>());
            if from.is_empty() {
                to.fill(T::ZERO);
            } else if transposed {
                map.spread(from, inner, to);
            } else {
                map.apply(from, inner, to);
            }
        });
        now = next.done();
    }
    if now.dtype != x.dtype || now.shares(x) { cast(&now, x.dtype) } else { Ok(now) }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn filled(shape: &[usize]) -> Array {
        let n: usize = shape.iter().product();
        let v: Vec<f64> = (0..n).map(|i| ((i * 37 + 11) % 101) as f64 / 7.0 - 6.0).collect();
        Array::from_slice(shape, &v).unwrap()
    }
    fn dot(a: &Array, b: &Array) -> f64 {
        a.to_vec().iter().zip(b.to_vec()).map(|(a, b)| a * b).sum()
    }
    fn axes() -> Vec<Axes> {
        let one = |size, kernel, stride, padding, dilation, ceil| Axis::new(size, kernel, stride, padding, dilation, ceil).unwrap();
        vec![
            [TRIVIAL, one(6, 3, 2, 1, 1, false), one(7, 2, 3, 0, 2, false)],
            [TRIVIAL, one(1, 1, 1, 0, 1, false), one(9, 4, 1, 3, 2, false)],
            [TRIVIAL, one(5, 3, 2, 1, 1, true), one(8, 3, 2, 1, 1, true)],
            [TRIVIAL, one(3, 3, 5, 2, 1, false), one(3, 2, 4, 5, 1, false)],
        ]
    }
    #[test]
    fn columns_are_windows_and_fold_back() {
        for a in axes() {
            let x = filled(&[2, 3, a[1].size, a[2].size]);
            let columns = im2col(&x, a).unwrap();
            let mut want = Vec::new();
            for (n, c) in (0..2).flat_map(|n| (0..3).map(move |c| (n, c))) {
                for (i, j) in (0..a[1].kernel).flat_map(|i| (0..a[2].kernel).map(move |j| (i, j))) {
                    for (o, p) in (0..a[1].count).flat_map(|o| (0..a[2].count).map(move |p| (o, p))) {
                        let at = a[1].place(o, i).zip(a[2].place(p, j));
                        want.push(at.map_or(0.0, |(y, z)| x.item_at(&[n, c, y, z]).to_f64()));
                    }
                }
            }
            assert_eq!(columns.to_vec(), want, "{a:?}");
            let g = filled(&columns.shape);
            let back = col2im(&g, a).unwrap();
            assert!((dot(&columns, &g) - dot(&x, &back)).abs() < 1e-8);
        }
    }
    #[test]
    fn the_largest_of_each_window() {
        for a in axes() {
            let x = filled(&[2, a[1].size, a[2].size]);
            let (values, indices) = max_windows(&x, 2, &a.map(|a| Looks::windows(&a))).unwrap();
            let (values, indices) = (values.to_vec(), indices.to_vec());
            let mut at = 0;
            for n in 0..2 {
                for (o, p) in (0..a[1].count).flat_map(|o| (0..a[2].count).map(move |p| (o, p))) {
                    let places = (0..a[1].kernel).flat_map(|i| (0..a[2].kernel).map(move |j| (i, j)));
                    let seen = places.filter_map(|(i, j)| a[1].place(o, i).zip(a[2].place(p, j)));
                    let best = seen.map(|(y, z)| x.item_at(&[n, y, z]).to_f64()).fold(f64::NEG_INFINITY, f64::max);
                    assert_eq!(values[at], best);
                    if best.is_finite() {
                        let place = indices[at] as usize;
                        assert_eq!(x.item_at(&[n, place / a[2].size, place % a[2].size]).to_f64(), best);
                    }
                    at += 1;
                }
            }
        }
    }
    #[test]
    fn nan_is_the_largest() {
        let x = Array::from_slice(&[1, 4], &[1.0f32, f32::NAN, 3.0, 2.0]).unwrap();
        let looks = [0, 1, 2].map(|i| if i == 2 { Looks::even(4, 2) } else { Looks::even(1, 1) });
        let (v, i) = max_windows(&x, 1, &looks).unwrap();
        assert!(v.to_vec()[0].is_nan() && v.to_vec()[1] == 3.0 && i.to_vec() == [1.0, 2.0]);
    }
    #[test]
    fn a_map_and_its_transpose() {
        let (rows, columns) = (Looks::even(7, 3), Looks::even(5, 4));
        let mean = |l: &Looks| Taps::means(l, |o| (l.spans[o].1 - l.spans[o].0) as f64);
        for x in [filled(&[2, 7, 5]), cast(&filled(&[2, 7, 5]), DType::Float32).unwrap()] {
            let maps = [mean(&rows), mean(&columns)];
            let y = resample(&x, &maps, false).unwrap();
            for (at, v) in y.to_vec().into_iter().enumerate() {
                let (n, o, p) = (at / 12, at / 4 % 3, at % 4);
                let (r, c) = (rows.spans[o], columns.spans[p]);
                let all = (r.0..r.1).flat_map(|i| (c.0..c.1).map(move |j| (i, j)));
                let sum: f64 = all.map(|(i, j)| x.item_at(&[n, i, j]).to_f64()).sum();
                assert!((v - sum / ((r.1 - r.0) * (c.1 - c.0)) as f64).abs() < 1e-5);
            }
            let g = cast(&filled(&y.shape), x.dtype).unwrap();
            let back = resample(&g, &maps, true).unwrap();
            assert!((dot(&y, &g) - dot(&x, &back)).abs() < 1e-3);
        }
        assert_eq!(resample(&filled(&[0, 7, 5]), &[mean(&rows), mean(&columns)], false).unwrap().shape[..], [0, 3, 4]);
    }
}
