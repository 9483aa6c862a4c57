//! Normalisation: layer and RMS norm over trailing axes, batch and group norm over channels, and their gradients.
//!
//! Operands are made row-major first. A line of statistics is read twice for its mean and variance (about the mean, so that a large one does
//! not cancel) and once more to be written, all while it is in the cache. Sums are as `reduce` has them; statistics and coefficients are
//! worked out in f64 and applied in the compute type. Gradients of weights are summed in f64, of a few rows at once.
use super::fold::{Add, Float, LANES, Lane, PART, Same, SquareFrom, close, for_float, line};
use super::pointwise::contiguous;
use super::reduce::{Axes, moments};
use super::scan::{Draft, Tile};
use super::simd::simd;
use crate::array::{Array, Fresh};
use crate::dtype::DType;
use crate::error::{Error, Result, bail};
use crate::layout::Dims;

/// A row-major operand, lent line by line in the compute type.
struct Lines<T> {
    a: Array,
    held: Vec<T>,
}
impl<T: Float> Lines<T> {
    fn new(a: &Array) -> Result<Self> {
        Ok(Lines { a: contiguous(a)?, held: Vec::new() })
    }
    /// `n` elements from the `at`-th.
    fn get(&mut self, at: usize, n: usize) -> &[T] {
        let at = self.a.offset + at;
        if self.a.dtype == T::DTYPE {
            return self.a.read(at, n);
        }
        self.held.resize(n, T::default());
        T::read(&self.a, at, &mut self.held);
        &self.held
    }
    /// All of an optional parameter, or `n` times what stands for it.
    fn all(a: Option<&Array>, n: usize, absent: f64) -> Result<Vec<T>> {
        Ok(match a {
            Some(a) => Self::new(a)?.get(0, n).to_vec(),
            None => vec![T::lit(absent); n],
        })
    }
}
fn must_be_float(op: &'static str, a: &Array) -> Result<()> {
    if a.dtype.is_float() { Ok(()) } else { Err(Box::new(Error::Unsupported { op, dtype: a.dtype })) }
}
/// The dtype of statistics: that of the parameters, where a half-precision operand has float32 ones.
fn stats_dtype(a: &Array, parameters: [Option<&Array>; 4]) -> DType {
    parameters.into_iter().flatten().next().map_or(a.dtype, |p| p.dtype)
}

fn vector(v: &[f64], shape: Dims, dtype: DType) -> Result<Array> {
    let mut out = Fresh::new(shape, dtype)?;
    Lane::put(v, &mut out, dtype, 0, v.len().max(1), 0, 1);
    Ok(out.done())
}

/// Mean (0 if not `CENTRED`) and 1 / √(mean square about it + eps) of a line.
#[inline(always)]
fn statistics<const F: bool, T: Float>(x: &[T], eps: f64, centred: bool) -> (f64, f64) {
    let n = x.len() as f64;
    let mean = if centred && !x.is_empty() { line::<F, T, Add, Same>(&Same, x, T::ZERO) / n } else { 0.0 };
    let c = T::narrow(mean);
    let squares = line::<F, T, Add, SquareFrom>(&SquareFrom, x, c);
    let off = mean - c.widen(); // what rounding the mean did to the squares
    let var = squares / n - off * off;
    (mean, 1.0 / (if var < 0.0 { 0.0 } else { var } + eps).sqrt())
}
simd! {
    /// (x - mean) rstd, times `w` plus `b` where these are not empty. Returns mean and rstd.
    fn norm_line<T: Float>(x: &[T], w: &[T], b: &[T], eps: f64, centred: bool, o: &mut [T]) -> (f64, f64) {
        let (mean, rstd) = statistics::<FMA, T>(x, eps, centred);
        let (c, r) = (T::narrow(mean), T::narrow(rstd));
        if w.is_empty() {
            for (o, &x) in o.iter_mut().zip(x) {
                *o = (x - c) * r;
            }
        } else {
            for (((o, &x), &w), &b) in o.iter_mut().zip(x).zip(w).zip(b) {
                *o = ((x - c) * r).fma::<FMA>(w, b);
            }
        }
        (mean, rstd)
    }
}
simd! {
    /// Σ g w and Σ g w (x - c) of a line; `w` is 1 where it is empty.
    fn line_sums<T: Float>(g: &[T], x: &[T], w: &[T], c: T) -> (f64, f64) {
        let (mut plain, mut with_x) = (0.0, 0.0);
        for at in (0..x.len()).step_by(PART) {
            let to = x.len().min(at + PART);
            let (g, x) = (&g[at..to], &x[at..to]);
            let (mut s, mut t) = ([T::ZERO; LANES], [T::ZERO; LANES]);
            let (gs, g_rest) = g.as_chunks::<LANES>();
            let (xs, x_rest) = x.as_chunks::<LANES>();
            if w.is_empty() {
                for (g, x) in gs.iter().zip(xs) {
                    for i in 0..LANES {
                        s[i] = s[i] + g[i];
                        t[i] = t[i] + g[i] * (x[i] - c);
                    }
                }
                for i in 0..g_rest.len() {
                    s[i] = s[i] + g_rest[i];
                    t[i] = t[i] + g_rest[i] * (x_rest[i] - c);
                }
            } else {
                let (ws, w_rest) = w[at..to].as_chunks::<LANES>();
                for ((g, x), w) in gs.iter().zip(xs).zip(ws) {
                    for i in 0..LANES {
                        let g = g[i] * w[i];
                        s[i] = s[i] + g;
                        t[i] = t[i] + g * (x[i] - c);
                    }
                }
                for i in 0..g_rest.len() {
                    let g = g_rest[i] * w_rest[i];
                    s[i] = s[i] + g;
                    t[i] = t[i] + g * (x_rest[i] - c);
                }
            }
            plain += close::<T, Add>(s).widen();
            with_x += close::<T, Add>(t).widen();
        }
        (plain, with_x)
    }
}
/// Rows whose sums are taken in the compute type before they are widened.
const ROWS: usize = PART / LANES;
/// Most elements of a block of rows that goes through the caches together.
const BLOCK: usize = 1 << 15;
/// How many rows of `n` elements are taken together.
fn rows_at_once(n: usize) -> usize {
    (BLOCK / n.max(1)).clamp(1, ROWS)
}
simd! {
    /// Adds g and g (x - c) r of at most `ROWS` rows to the sums of their columns; `k` has c and r of each row.
    fn add_rows<T: Float>(g: &[T], x: &[T], k: &[[T; 2]], plain: &mut [f64], with_x: &mut [f64]) {
        let n = plain.len();
        for at in (0..n).step_by(LANES) {
            let width = LANES.min(n - at);
            let (mut s, mut t) = ([T::ZERO; LANES], [T::ZERO; LANES]);
            for (r, &[c, rstd]) in k.iter().enumerate() {
                let (g, x) = (&g[r * n + at..][..width], &x[r * n + at..][..width]);
                if let (Ok(g), Ok(x)) = (<&[T; LANES]>::try_from(g), <&[T; LANES]>::try_from(x)) {
                    for i in 0..LANES {
                        s[i] = s[i] + g[i];
                        t[i] = t[i] + g[i] * ((x[i] - c) * rstd);
                    }
                } else {
                    for i in 0..width {
                        s[i] = s[i] + g[i];
                        t[i] = t[i] + g[i] * ((x[i] - c) * rstd);
                    }
                }
            }
            for i in 0..width {
                plain[at + i] += s[i].widen();
                with_x[at + i] += t[i].widen();
            }
        }
    }
}
simd! {
    /// Adds g and g (x - c) of rows to the sums of their columns, which have a `c` each.
    fn add_columns<T: Float>(g: &[T], x: &[T], c: &[T], plain: &mut [f64], with_x: &mut [f64]) {
        let n = plain.len();
        for (g, x) in g.chunks(n * ROWS).zip(x.chunks(n * ROWS)) {
            for at in (0..n).step_by(LANES) {
                let width = LANES.min(n - at);
                let c = &c[at..][..width];
                let (mut s, mut t) = ([T::ZERO; LANES], [T::ZERO; LANES]);
                for (g, x) in g.chunks_exact(n).zip(x.chunks_exact(n)) {
                    let (g, x) = (&g[at..][..width], &x[at..][..width]);
                    if let (Ok(g), Ok(x), Ok(c)) = (<&[T; LANES]>::try_from(g), <&[T; LANES]>::try_from(x), <&[T; LANES]>::try_from(c)) {
                        for i in 0..LANES {
                            s[i] = s[i] + g[i];
                            t[i] = t[i] + g[i] * (x[i] - c[i]);
                        }
                    } else {
                        for i in 0..width {
                            s[i] = s[i] + g[i];
                            t[i] = t[i] + g[i] * (x[i] - c[i]);
                        }
                    }
                }
                for i in 0..width {
                    plain[at + i] += s[i].widen();
                    with_x[at + i] += t[i].widen();
                }
            }
        }
    }
}
/// g k0 + (x - c) k1 + k2: every normalisation and every gradient of one by its operand.
#[inline(always)]
fn mix<const F: bool, T: Float>(g: T, x: T, [c, k0, k1, k2]: [T; 4]) -> T {
    g.fma::<F>(k0, (x - c).fma::<F>(k1, k2))
}
simd! {
    /// `mix` of a line, of g `w` if that is not empty; without g if that is.
    fn mix_line<T: Float>(g: &[T], x: &[T], w: &[T], k: [T; 4], o: &mut [T]) {
        if g.is_empty() {
            for (o, &x) in o.iter_mut().zip(x) {
                *o = (x - k[0]).fma::<FMA>(k[2], k[3]);
            }
        } else if w.is_empty() {
            for ((o, &g), &x) in o.iter_mut().zip(g).zip(x) {
                *o = mix::<FMA, T>(g, x, k);
            }
        } else {
            for (((o, &g), &x), &w) in o.iter_mut().zip(g).zip(x).zip(w) {
                *o = mix::<FMA, T>(g * w, x, k);
            }
        }
    }
}
simd! {
    /// `mix` of rows whose columns have coefficients each; without g if that is empty.
    fn mix_rows<T: Float>(g: &[T], x: &[T], k: [&[T]; 4], o: &mut [T]) {
        let n = k[0].len();
        let [c, k0, k1, k2] = [&k[0][..n], &k[1][..n], &k[2][..n], &k[3][..n]];
        if g.is_empty() {
            for (x, o) in x.chunks_exact(n).zip(o.chunks_exact_mut(n)) {
                for i in 0..n {
                    o[i] = (x[i] - c[i]).fma::<FMA>(k1[i], k2[i]);
                }
            }
        } else {
            for ((g, x), o) in g.chunks_exact(n).zip(x.chunks_exact(n)).zip(o.chunks_exact_mut(n)) {
                for i in 0..n {
                    o[i] = mix::<FMA, T>(g[i], x[i], [c[i], k0[i], k1[i], k2[i]]);
                }
            }
        }
    }
}

/// Elements of a line that is normalised: the product of the trailing lengths `normalized`, which the operand must have.
fn line_len(op: &str, a: &Array, normalized: &[usize], parameters: [(&str, Option<&Array>); 2]) -> Result<usize> {
    if normalized.is_empty() {
        bail!(Runtime, "{op}(): Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got []");
    }
    if !a.shape.ends_with(normalized) {
        let list = normalized.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
        bail!(Runtime, "Given normalized_shape=[{list}], expected input with shape [*, {list}], but got input of size{:?}", a.shape);
    }
    for (name, p) in parameters {
        if let Some(p) = p
            && *p.shape != *normalized
        {
            bail!(
                Runtime,
                "Expected {name} to be of same shape as normalized_shape, but got {name} of shape {:?} and normalized_shape = {normalized:?}",
                p.shape
            );
        }
    }
    Ok(normalized.iter().product())
}
/// The operand's shape with the last `normalized` lengths 1.
fn stats_shape(a: &Array, normalized: usize) -> Dims {
    a.shape.iter().enumerate().map(|(i, &n)| if i + normalized >= a.ndim() { 1 } else { n }).collect()
}
fn norm_lines(
    a: &Array,
    (n, shape): (usize, Dims),
    parameters: [Option<&Array>; 2],
    eps: f64,
    centred: bool,
    stats: DType,
) -> Result<(Array, Array, Array)> {
    let mut out = Fresh::new(a.shape, a.dtype)?;
    let (mut means, mut rstds) = (Fresh::new(shape, stats)?, Fresh::new(shape, stats)?);
    for_float!(a.dtype, T => {
        let mut x = Lines::<T>::new(a)?;
        let given = parameters.iter().any(Option::is_some);
        let (w, b) = if given { (Lines::all(parameters[0], n, 1.0)?, Lines::all(parameters[1], n, 0.0)?) } else { (vec![], vec![]) };
        let mut draft = Draft::default();
        for i in 0..shape.numel() {
            let x = x.get(i * n, n);
            Tile::line(i * n, n).write(&mut out, a.dtype, &mut draft, |o| {
                let (mean, rstd) = norm_line(x, &w, &b, eps, centred, o);
                Lane::put(&[mean], &mut means, stats, i, 1, 0, 1);
                Lane::put(&[rstd], &mut rstds, stats, i, 1, 0, 1);
            });
        }
    });
    Ok((out.done(), means.done(), rstds.done()))
}
/// Layer norm over the trailing lengths `normalized`: result, mean and 1 / √(variance + eps), the last two with those lengths 1.
pub fn layer_norm(
    a: &Array,
    normalized: &[usize],
    weight: Option<&Array>,
    bias: Option<&Array>,
    eps: f64,
) -> Result<(Array, Array, Array)> {
    must_be_float("layer_norm", a)?;
    let n = line_len("layer_norm", a, normalized, [("weight", weight), ("bias", bias)])?;
    let stats = stats_dtype(a, [weight, bias, None, None]);
    norm_lines(a, (n, stats_shape(a, normalized.len())), [weight, bias], eps, true, stats)
}
/// RMS norm over the trailing lengths `normalized` (Zhang, Sennrich 2019): result and 1 / √(mean square + eps), in float32 for half precision.
pub fn rms_norm(a: &Array, normalized: &[usize], weight: Option<&Array>, eps: f64) -> Result<(Array, Array)> {
    must_be_float("rms_norm", a)?;
    let n = line_len("rms_norm", a, normalized, [("weight", weight), ("weight", None)])?;
    let stats = if a.dtype == DType::Float64 { DType::Float64 } else { DType::Float32 };
    let (out, _, rstd) = norm_lines(a, (n, stats_shape(a, normalized.len())), [weight, None], eps, false, stats)?;
    Ok((out, rstd))
}
/// Gradients that were asked for.
pub type Grads = [Option<Array>; 3];
/// Gradients of `layer_norm` (of `rms_norm` where `mean` is absent) by its operand, weight and bias, as far as `mask` asks for them.
pub fn layer_norm_backward(
    g: &Array,
    a: &Array,
    normalized: &[usize],
    mean: Option<&Array>,
    rstd: &Array,
    weight: Option<&Array>,
    mask: [bool; 3],
) -> Result<Grads> {
    let n = line_len("layer_norm", a, normalized, [("weight", weight), ("weight", None)])?;
    let parameter = weight.map_or(a.dtype, |w| w.dtype);
    let mut out = if mask[0] { Some(Fresh::new(a.shape, a.dtype)?) } else { None };
    let (mut plain, mut with_x) = (vec![0.0; n], vec![0.0; n]);
    for_float!(a.dtype, T => {
        let (mut gs, mut xs) = (Lines::<T>::new(g)?, Lines::<T>::new(a)?);
        let w = if weight.is_some() { Lines::<T>::all(weight, n, 1.0)? } else { vec![] };
        let lines = rstd.numel();
        let (means, rstds) = (Lines::<f64>::all(mean, lines, 0.0)?, Lines::<f64>::all(Some(rstd), lines, 0.0)?);
        let (mut draft, at_once) = (Draft::default(), rows_at_once(n));
        let mut k = Vec::with_capacity(at_once);
        for first in (0..lines).step_by(at_once) {
            let rows = at_once.min(lines - first);
            let (g, x) = (gs.get(first * n, rows * n), xs.get(first * n, rows * n));
            k.clear();
            k.extend((first..first + rows).map(|i| [T::narrow(means[i]), T::narrow(rstds[i])]));
            if mask[1] || mask[2] {
                add_rows(g, x, &k, &mut plain, &mut with_x);
            }
            let Some(out) = &mut out else { continue };
            for (i, &[c, _]) in k.iter().enumerate() {
                let (g, x, r) = (&g[i * n..][..n], &x[i * n..][..n], rstds[first + i]);
                let (s, t) = line_sums(g, x, &w, c);
                let (s, t) = (if mean.is_some() { -r * s / n as f64 } else { 0.0 }, -r * r * r * t / n as f64);
                let k = [c.widen(), r, t, s].map(T::narrow);
                Tile::line((first + i) * n, n).write(out, a.dtype, &mut draft, |o| mix_line(g, x, &w, k, o));
            }
        }
    });
    let sums = |asked: bool, s: &[f64]| asked.then(|| vector(s, Dims::of(normalized), parameter)).transpose();
    Ok([out.map(Fresh::done), sums(mask[1], &with_x)?, sums(mask[2], &plain)?])
}

/// Lines of a channel shorter than this are taken together, with a coefficient a column.
const SHORT: usize = 32;

/// Images, channels, and elements of a channel of an image.
fn split(a: &Array) -> (usize, usize, usize) {
    (a.shape[0], a.shape[1], a.shape[2..].iter().product())
}
/// `mix` of each channel with coefficients of its own: one set a channel, or one a channel of each image.
fn mix_channels(g: Option<&Array>, a: &Array, k: &[[f64; 4]]) -> Result<Array> {
    let (_, channels, inner) = split(a);
    let mut out = Fresh::new(a.shape, a.dtype)?;
    if a.numel() == 0 {
        return Ok(out.done());
    }
    for_float!(a.dtype, T => {
        // The mean as rounded, and what that does to the last term.
        let narrow = |i: usize| {
            let [mean, k0, k1, k2] = k[i % k.len()];
            let c = T::narrow(mean);
            [c, T::narrow(k0), T::narrow(k1), T::narrow(k2 + (c.widen() - mean) * k1)]
        };
        let mut xs = Lines::<T>::new(a)?;
        let mut gs = g.map(Lines::<T>::new).transpose()?;
        let mut draft = Draft::default();
        if inner >= SHORT {
            for i in 0..a.numel() / inner {
                let (g, x) = (gs.as_mut().map_or(&[][..], |g| g.get(i * inner, inner)), xs.get(i * inner, inner));
                Tile::line(i * inner, inner).write(&mut out, a.dtype, &mut draft, |o| mix_line(g, x, &[], narrow(i), o));
            }
        } else {
            // Several images at once where they have the coefficients in common.
            let (row, total) = (channels * inner, a.numel());
            let n = if k.len() > channels { row } else { row * (PART * 4 / row).max(1) };
            let mut columns: [Vec<T>; 4] = [const { Vec::new() }; 4];
            for at in (0..total).step_by(n) {
                if at == 0 || k.len() > channels {
                    columns.iter_mut().for_each(Vec::clear);
                    for c in 0..channels {
                        let k = narrow(at / inner + c);
                        columns.iter_mut().zip(k).for_each(|(column, k)| column.resize(column.len() + inner, k));
                    }
                }
                let n = n.min(total - at);
                let (g, x) = (gs.as_mut().map_or(&[][..], |g| g.get(at, n)), xs.get(at, n));
                let columns = columns.each_ref().map(|c| &c[..]);
                Tile::line(at, n).write(&mut out, a.dtype, &mut draft, |o| mix_rows(g, x, columns, o));
            }
        }
    });
    Ok(out.done())
}
/// Σ g and Σ g (x - mean) of each channel, over all images if there is one mean a channel, of each image if there is one for each of its.
fn channel_sums(g: &Array, a: &Array, means: &[f64]) -> Result<Vec<[f64; 2]>> {
    let (images, channels, inner) = split(a);
    let mut sums = vec![[0.0; 2]; means.len()];
    if a.numel() == 0 {
        return Ok(sums);
    }
    for_float!(a.dtype, T => {
        let (mut gs, mut xs) = (Lines::<T>::new(g)?, Lines::<T>::new(a)?);
        let mut add = |i: usize, c: T, plain: f64, with_x: f64| {
            let i = i % means.len();
            sums[i] = [sums[i][0] + plain, sums[i][1] + with_x + plain * (c.widen() - means[i])];
        };
        if inner >= SHORT {
            for i in 0..images * channels {
                let c = T::narrow(means[i % means.len()]);
                let (plain, with_x) = line_sums(gs.get(i * inner, inner), xs.get(i * inner, inner), &[], c);
                add(i, c, plain, with_x);
            }
        } else {
            let n = channels * inner;
            let (mut c, mut plain, mut with_x) = (Vec::new(), vec![0.0; n], vec![0.0; n]);
            let at_once = if means.len() > channels { 1 } else { rows_at_once(n) };
            for image in (0..images).step_by(at_once) {
                let first = image * channels % means.len();
                if image == 0 || means.len() > channels {
                    c = (0..n).map(|i| T::narrow(means[first + i / inner])).collect();
                }
                let rows = at_once.min(images - image);
                add_columns(gs.get(image * n, rows * n), xs.get(image * n, rows * n), &c, &mut plain, &mut with_x);
                if means.len() > channels || image + rows == images {
                    (0..n).for_each(|i| add(first + i / inner, c[i], plain[i], with_x[i]));
                    plain.fill(0.0);
                    with_x.fill(0.0);
                }
            }
        }
    });
    Ok(sums)
}
fn channels_of(op: &str, a: &Array, parameters: [(&str, Option<&Array>); 4]) -> Result<usize> {
    if a.ndim() < 2 {
        bail!(Runtime, "{op}(): Expected at least 2 dimensions for input tensor but received {}", a.ndim());
    }
    for (name, p) in parameters {
        if let Some(p) = p
            && p.numel() != a.shape[1]
        {
            bail!(Runtime, "{op}(): {name} should contain {} elements not {}", a.shape[1], p.numel());
        }
    }
    Ok(a.shape[1])
}

pub struct BatchNorm {
    pub out: Array,
    /// Of the batch, or the running mean.
    pub mean: Array,
    /// 1 / √(variance + eps), of the batch or the running one.
    pub invstd: Array,
    /// Running mean and variance after a training step, to be written over the old ones.
    pub running: Option<(Array, Array)>,
}
/// Batch norm over dim 1 (Ioffe, Szegedy 2015): by the statistics of the batch in training, else by the running ones. `momentum` is the
/// share of the batch in the new running statistics, whose variance is the unbiased one.
pub fn batch_norm(
    a: &Array,
    weight: Option<&Array>,
    bias: Option<&Array>,
    running: Option<(&Array, &Array)>,
    training: bool,
    momentum: f64,
    eps: f64,
) -> Result<BatchNorm> {
    must_be_float("batch_norm", a)?;
    let (old_mean, old_var) = running.unzip();
    let given = [("weight", weight), ("bias", bias), ("running_mean", old_mean), ("running_var", old_var)];
    let channels = channels_of("batch_norm", a, given)?;
    let read = |p: Option<&Array>, absent: f64| Lines::<f64>::all(p, channels, absent);
    let stats = stats_dtype(a, given.map(|p| p.1));
    let (mean, var) = match running {
        _ if training => {
            let dims: Vec<usize> = (0..a.ndim()).filter(|&d| d != 1).collect();
            let (var, mean) = moments(a, Axes::Of(&dims), false, DType::Float64, &|squares, n| squares / n)?;
            (mean.slice().to_vec(), var.slice().to_vec())
        }
        Some(_) => (read(old_mean, 0.0)?, read(old_var, 1.0)?),
        None => bail!(Runtime, "batch_norm(): Expected running_mean and running_var to be defined when training=False"),
    };
    let invstd: Vec<f64> = var.iter().map(|v| 1.0 / (v + eps).sqrt()).collect();
    let (w, b) = (read(weight, 1.0)?, read(bias, 0.0)?);
    let k: Vec<[f64; 4]> = (0..channels).map(|c| [mean[c], 0.0, invstd[c] * w[c], b[c]]).collect();
    let shape = Dims::of(&[channels]);
    let running = match running {
        Some((m, v)) if training => {
            let n = (a.numel() / channels.max(1)) as f64;
            let step = |old: &Array, new: &[f64], scale: f64| {
                let old_values = Lines::<f64>::all(Some(old), channels, 0.0)?;
                let next: Vec<f64> = old_values.iter().zip(new).map(|(o, v)| o * (1.0 - momentum) + v * scale * momentum).collect();
                vector(&next, shape, old.dtype)
            };
            Some((step(m, &mean, 1.0)?, step(v, &var, n / (n - 1.0))?))
        }
        _ => None,
    };
    Ok(BatchNorm { out: mix_channels(None, a, &k)?, mean: vector(&mean, shape, stats)?, invstd: vector(&invstd, shape, stats)?, running })
}
/// Gradients of `batch_norm` by its operand, weight and bias, as far as `mask` asks for them, from the `mean` and `invstd` it gave.
pub fn batch_norm_backward(
    g: &Array,
    a: &Array,
    weight: Option<&Array>,
    mean: &Array,
    invstd: &Array,
    training: bool,
    mask: [bool; 3],
) -> Result<Grads> {
    let channels = channels_of("batch_norm", a, [("weight", weight), ("mean", Some(mean)), ("invstd", Some(invstd)), ("", None)])?;
    let read = |p: Option<&Array>| Lines::<f64>::all(p, channels, 1.0);
    let (w, mean, r) = (read(weight)?, read(Some(mean))?, read(Some(invstd))?);
    let sums = channel_sums(g, a, &mean)?;
    let n = (a.numel() / channels.max(1)) as f64;
    let by_operand = || {
        let k = |c: usize| {
            let ([s, t], scale) = (sums[c], r[c] * w[c]);
            if training { [mean[c], scale, -scale * r[c] * r[c] * t / n, -scale * s / n] } else { [0.0, 0.0, scale, 0.0] }
        };
        let k: Vec<[f64; 4]> = (0..channels).map(k).collect();
        if training { mix_channels(Some(g), a, &k) } else { mix_channels(None, g, &k) }
    };
    let parameter = weight.map_or(a.dtype, |w| w.dtype);
    let sum = |of: &dyn Fn(usize) -> f64| vector(&(0..channels).map(of).collect::<Vec<_>>(), Dims::of(&[channels]), parameter);
    Ok([
        mask[0].then(by_operand).transpose()?,
        mask[1].then(|| sum(&|c| sums[c][1] * r[c])).transpose()?,
        mask[2].then(|| sum(&|c| sums[c][0])).transpose()?,
    ])
}
/// The channels, which `groups` must divide.
fn groups_of(a: &Array, groups: usize, weight: Option<&Array>, bias: Option<&Array>) -> Result<usize> {
    let channels = channels_of("group_norm", a, [("weight", weight), ("bias", bias), ("", None), ("", None)])?;
    if groups == 0 || !channels.is_multiple_of(groups) {
        bail!(
            Runtime,
            "Expected number of channels in input to be divisible by num_groups, but got input of shape {:?} and num_groups={groups}",
            a.shape
        );
    }
    Ok(channels)
}
/// Group norm (Wu, He 2018): statistics over groups of channels of each image. Result, mean and 1 / √(variance + eps), these [images, groups].
pub fn group_norm(a: &Array, groups: usize, weight: Option<&Array>, bias: Option<&Array>, eps: f64) -> Result<(Array, Array, Array)> {
    must_be_float("group_norm", a)?;
    let channels = groups_of(a, groups, weight, bias)?;
    let a = contiguous(a)?;
    let (images, _, inner) = split(&a);
    let rows = Dims::of(&[images * groups, channels / groups * inner]);
    let (var, mean) = moments(&a.view(rows, rows.strides(), a.offset), Axes::Of(&[1]), false, DType::Float64, &|squares, n| squares / n)?;
    let rstd: Vec<f64> = var.slice::<f64>().iter().map(|v| 1.0 / (v + eps).sqrt()).collect();
    let mean = mean.slice::<f64>();
    let (w, b) = (Lines::<f64>::all(weight, channels, 1.0)?, Lines::<f64>::all(bias, channels, 0.0)?);
    let k = |i: usize| {
        let (group, c) = (i / (channels / groups), i % channels);
        [mean[group], 0.0, rstd[group] * w[c], b[c]]
    };
    let out = mix_channels(None, &a, &(0..images * channels).map(k).collect::<Vec<_>>())?;
    let (stats, shape) = (stats_dtype(&a, [weight, bias, None, None]), Dims::of(&[images, groups]));
    Ok((out, vector(mean, shape, stats)?, vector(&rstd, shape, stats)?))
}
/// Gradients of `group_norm` by its operand, weight and bias, as far as `mask` asks for them, from the `mean` and `rstd` it gave.
pub fn group_norm_backward(
    g: &Array,
    a: &Array,
    mean: &Array,
    rstd: &Array,
    weight: Option<&Array>,
    groups: usize,
    mask: [bool; 3],
) -> Result<Grads> {
    let channels = groups_of(a, groups, weight, None)?;
    let (images, _, inner) = split(a);
    let each = channels / groups;
    let w = Lines::<f64>::all(weight, channels, 1.0)?;
    let read = |p: &Array| Lines::<f64>::all(Some(p), images * groups, 0.0);
    let (mean, r) = (read(mean)?, read(rstd)?);
    let means: Vec<f64> = (0..images * channels).map(|i| mean[i / each]).collect();
    let sums = channel_sums(g, a, &means)?;
    let mut k = Vec::with_capacity(sums.len());
    for (group, sums) in sums.chunks(each).enumerate() {
        let (first, r, n) = (group * each % channels, r[group], (each * inner) as f64);
        let total = |side: usize| sums.iter().zip(&w[first..]).map(|(s, w)| s[side] * w).sum::<f64>();
        let (s, t) = (-r * total(0) / n, -r * r * r * total(1) / n);
        k.extend((first..first + each).map(|c| [mean[group], r * w[c], t, s]));
    }
    let parameter = weight.map_or(a.dtype, |w| w.dtype);
    let sum = |of: &dyn Fn(usize) -> f64| {
        let of_channel = |c: usize| (0..images).map(|i| of(i * channels + c)).sum();
        vector(&(0..channels).map(of_channel).collect::<Vec<f64>>(), Dims::of(&[channels]), parameter)
    };
    Ok([
        mask[0].then(|| mix_channels(Some(g), a, &k)).transpose()?,
        mask[1].then(|| sum(&|i| sums[i][1] * r[i / each])).transpose()?,
        mask[2].then(|| sum(&|i| sums[i][0])).transpose()?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType::*;
    use crate::kernels::samples::*;

    const FLOATS: [DType; 4] = [Float32, Float64, Float16, BFloat16];
    /// A weight and a bias that differ from element to element.
    fn parameters(n: usize, dtype: DType) -> (Array, Array) {
        let w: Vec<f64> = (0..n).map(|i| 0.5 + (i % 5) as f64 / 4.0).collect();
        let b: Vec<f64> = (0..n).map(|i| (i % 3) as f64 - 1.0).collect();
        (array(&[n], dtype, &w), array(&[n], dtype, &b))
    }
    fn moments_of(x: &[f64], centred: bool, eps: f64) -> (f64, f64) {
        let n = x.len() as f64;
        let mean = if centred { x.iter().sum::<f64>() / n } else { 0.0 };
        (mean, 1.0 / (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + eps).sqrt())
    }
    /// A loss, Σ result · g, whose slopes by differences are what a gradient must be.
    fn slope(x: &[f64], at: usize, f: &dyn Fn(&[f64]) -> f64) -> f64 {
        let h = 1e-5;
        let moved = |by: f64| {
            let mut x = x.to_vec();
            x[at] += by;
            f(&x)
        };
        (moved(h) - moved(-h)) / (2.0 * h)
    }
    fn dot(a: &Array, g: &Array) -> f64 {
        a.to_vec().iter().zip(g.to_vec()).map(|(a, g)| a * g).sum()
    }
    /// Every gradient that `backward` gives for each of the operands equals the slope of `forward`.
    fn check_gradients(operands: &[Array], forward: &dyn Fn(&[Array]) -> Array, gradients: &[Option<Array>]) {
        for (k, got) in gradients.iter().enumerate() {
            let (x, got) = (&operands[k], got.as_ref().unwrap());
            assert_eq!(got.shape, x.shape);
            let g = loss_weights(&forward(operands));
            let values = x.to_vec();
            let want: Vec<f64> = (0..values.len())
                .map(|at| {
                    slope(&values, at, &|v| {
                        let mut moved = operands.to_vec();
                        moved[k] = array(&x.shape, Float64, v);
                        dot(&forward(&moved), &g)
                    })
                })
                .collect();
            assert_near(got, &want, 1e-7, &("gradient", k, x));
        }
    }
    fn loss_weights(out: &Array) -> Array {
        array(&out.shape, Float64, &values(out.numel(), Float64, 9))
    }

    #[test]
    fn lines_are_normalised_for_every_layout_and_dtype() {
        for (shape, tail) in [(&[3, 5][..], 1), (&[2, 3, 40], 2), (&[4, 200], 1), (&[1], 1), (&[2, 3, 2], 3), (&[0, 4], 1)] {
            let normalized = &shape[shape.len() - tail..];
            let n: usize = normalized.iter().product();
            for (a, d) in FLOATS.iter().flat_map(|&d| layouts(shape, d).into_iter().map(move |a| (a, d))) {
                let dims: Vec<usize> = (shape.len() - tail..shape.len()).collect();
                let (_, lines) = groups(&a, &dims);
                let (w, b) = parameters(n, d);
                let reshape = |p: &Array| p.view(Dims::of(normalized), Dims::of(normalized).strides(), 0);
                let (w, b) = (reshape(&w), reshape(&b));
                for (affine, centred) in [(false, true), (true, true), (false, false), (true, false)] {
                    let (wo, bo) = (affine.then_some(&w), affine.then_some(&b));
                    let (out, mean, rstd) = if centred {
                        layer_norm(&a, normalized, wo, bo, 1e-3).unwrap()
                    } else {
                        let (out, rstd) = rms_norm(&a, normalized, wo, 1e-3).unwrap();
                        (out, rstd.clone(), rstd)
                    };
                    let want: Vec<f64> = lines
                        .iter()
                        .flat_map(|x| {
                            let (m, r) = moments_of(x, centred, 1e-3);
                            let (w, b) = (w.to_vec(), b.to_vec());
                            let b = move |i: usize| if centred { b[i] } else { 0.0 };
                            x.iter()
                                .enumerate()
                                .map(move |(i, v)| (v - m) * r * if affine { w[i] } else { 1.0 } + if affine { b(i) } else { 0.0 })
                                .collect::<Vec<_>>()
                        })
                        .collect();
                    assert_near(&out, &want, 4.0 * tolerance(d), &(&a, affine, centred));
                    let stats: Vec<(f64, f64)> = lines.iter().map(|x| moments_of(x, centred, 1e-3)).collect();
                    assert_near(&rstd, &stats.iter().map(|s| s.1).collect::<Vec<_>>(), 2.0 * tolerance(d), &(&a, "rstd"));
                    assert_eq!(
                        *rstd.shape,
                        shape.iter().enumerate().map(|(i, &n)| if dims.contains(&i) { 1 } else { n }).collect::<Vec<_>>()[..]
                    );
                    if centred {
                        assert_near(&mean, &stats.iter().map(|s| s.0).collect::<Vec<_>>(), 2.0 * tolerance(d), &(&a, "mean"));
                    }
                }
            }
        }
    }
    #[test]
    fn gradients_of_lines_are_slopes() {
        for (shape, n) in [(&[3, 5][..], 5), (&[2, 2, 70], 70)] {
            let a = array(shape, Float64, &values(shape.iter().product(), Float64, 1));
            let (w, b) = parameters(n, Float64);
            let forward = |x: &[Array]| layer_norm(&x[0], &[n], x.get(1), x.get(2), 1e-3).unwrap();
            for operands in [vec![a.clone(), w.clone(), b.clone()], vec![a.clone()]] {
                let (out, mean, rstd) = forward(&operands);
                let g = loss_weights(&out);
                let grads = layer_norm_backward(&g, &a, &[n], Some(&mean), &rstd, operands.get(1), [true; 3]).unwrap();
                check_gradients(&operands, &|x| forward(x).0, &grads[..operands.len()]);
            }
            let (out, rstd) = rms_norm(&a, &[n], Some(&w), 1e-3).unwrap();
            let grads = layer_norm_backward(&loss_weights(&out), &a, &[n], None, &rstd, Some(&w), [true, true, false]).unwrap();
            check_gradients(&[a, w], &|x| rms_norm(&x[0], &[n], Some(&x[1]), 1e-3).unwrap().0, &grads[..2]);
            assert!(grads[2].is_none());
        }
    }
    #[test]
    fn channels_are_normalised_by_the_batch_or_the_running_statistics() {
        for shape in [&[6, 3][..], &[2, 3, 5], &[3, 2, 6, 7], &[2, 4, 40]] {
            let c = shape[1];
            let dims: Vec<usize> = (0..shape.len()).filter(|&d| d != 1).collect();
            for (a, d) in FLOATS.iter().flat_map(|&d| layouts(shape, d).into_iter().map(move |a| (a, d))) {
                let (_, lines) = groups(&a, &dims);
                let (w, b) = parameters(c, d);
                let (rm, rv) = (array(&[c], d, &vec![0.5; c]), array(&[c], d, &vec![2.0; c]));
                let stats: Vec<(f64, f64)> = lines.iter().map(|x| moments_of(x, true, 1e-3)).collect();
                let inner: usize = shape[2..].iter().product();
                let normal = |mean: &dyn Fn(usize) -> f64, r: &dyn Fn(usize) -> f64| -> Vec<f64> {
                    let (w, b) = (w.to_vec(), b.to_vec());
                    let of = |(i, v): (usize, &f64)| {
                        let c = i / inner % c;
                        (v - mean(c)) * r(c) * w[c] + b[c]
                    };
                    a.to_vec().iter().enumerate().map(of).collect()
                };
                let got = batch_norm(&a, Some(&w), Some(&b), Some((&rm, &rv)), true, 0.1, 1e-3).unwrap();
                assert_near(&got.out, &normal(&|c| stats[c].0, &|c| stats[c].1), 16.0 * tolerance(d), &(&a, "training"));
                assert_near(&got.invstd, &stats.iter().map(|s| s.1).collect::<Vec<_>>(), 16.0 * tolerance(d), &(&a, "invstd"));
                let (m, v) = got.running.unwrap();
                let n = lines[0].len() as f64;
                let unbiased = |s: &(f64, f64)| (1.0 / (s.1 * s.1) - 1e-3) * n / (n - 1.0);
                assert_near(
                    &m,
                    &stats.iter().map(|s| 0.9 * 0.5 + 0.1 * s.0).collect::<Vec<_>>(),
                    2.0 * tolerance(d),
                    &(&a, "running mean"),
                );
                assert_near(
                    &v,
                    &stats.iter().map(|s| 0.9 * 2.0 + 0.1 * unbiased(s)).collect::<Vec<_>>(),
                    2.0 * tolerance(d),
                    &(&a, "running var"),
                );
                let got = batch_norm(&a, Some(&w), Some(&b), Some((&rm, &rv)), false, 0.1, 1e-3).unwrap();
                assert_near(&got.out, &normal(&|_| 0.5, &|_| 1.0 / 2.001f64.sqrt()), 4.0 * tolerance(d), &(&a, "running"));
                assert!(got.running.is_none());
            }
        }
    }
    #[test]
    fn gradients_of_channels_are_slopes() {
        for shape in [&[6, 4][..], &[2, 4, 5], &[2, 4, 34]] {
            let a = array(shape, Float64, &values(shape.iter().product(), Float64, 1));
            let (w, b) = parameters(4, Float64);
            let (rm, rv) = (array(&[4], Float64, &[0.5; 4]), array(&[4], Float64, &[2.0; 4]));
            let operands = [a.clone(), w.clone(), b.clone()];
            for training in [true, false] {
                let forward = |x: &[Array]| batch_norm(&x[0], Some(&x[1]), Some(&x[2]), Some((&rm, &rv)), training, 0.1, 1e-3).unwrap();
                let done = forward(&operands);
                let g = loss_weights(&done.out);
                let grads = batch_norm_backward(&g, &a, Some(&w), &done.mean, &done.invstd, training, [true; 3]).unwrap();
                check_gradients(&operands, &|x| forward(x).out, &grads);
            }
            for groups in [1, 2, 4] {
                let forward = |x: &[Array]| group_norm(&x[0], groups, Some(&x[1]), Some(&x[2]), 1e-3).unwrap();
                let (out, mean, rstd) = forward(&operands);
                let grads = group_norm_backward(&loss_weights(&out), &a, &mean, &rstd, Some(&w), groups, [true; 3]).unwrap();
                check_gradients(&operands, &|x| forward(x).0, &grads);
                let each: usize = 4 / groups * shape[2..].iter().product::<usize>();
                let stats: Vec<f64> = a.to_vec().chunks(each).map(|x| moments_of(x, true, 1e-3).1).collect();
                assert_near(&rstd, &stats, 1e-13, &"rstd");
            }
        }
    }
    #[test]
    fn bad_shapes_are_refused_and_empty_ones_are_not() {
        let a = array(&[2, 3, 4], Float32, &[1.0; 24]);
        let p = |n| array(&[n], Float32, &vec![1.0; n]);
        let refused = |r: Result<Array>, phrase: &str| {
            let e = r.unwrap_err().to_string();
            assert!(e.contains(phrase), "{e}");
        };
        refused(
            layer_norm(&a, &[3], None, None, 1e-5).map(|r| r.0),
            "Given normalized_shape=[3], expected input with shape [*, 3], but got input of size[2, 3, 4]",
        );
        refused(
            layer_norm(&a, &[4], Some(&p(3)), None, 1e-5).map(|r| r.0),
            "Expected weight to be of same shape as normalized_shape, but got weight of shape [3] and normalized_shape = [4]",
        );
        refused(
            group_norm(&a, 2, None, None, 1e-5).map(|r| r.0),
            "Expected number of channels in input to be divisible by num_groups, but got input of shape [2, 3, 4] and num_groups=2",
        );
        refused(batch_norm(&a, Some(&p(4)), None, None, true, 0.1, 1e-5).map(|r| r.out), "weight should contain 3 elements not 4");
        refused(batch_norm(&a, None, None, None, false, 0.1, 1e-5).map(|r| r.out), "Expected running_mean and running_var to be defined");
        let none = array(&[0, 3], Float32, &[]);
        assert_eq!(&*batch_norm(&none, None, None, None, true, 0.1, 1e-5).unwrap().out.shape, &[0, 3]);
        assert_eq!(&*group_norm(&none, 3, None, None, 1e-5).unwrap().0.shape, &[0, 3]);
        let (out, mean, rstd) = layer_norm(&array(&[2, 0], Float32, &[]), &[0], None, None, 1e-5).unwrap();
        assert!(out.numel() == 0 && mean.to_vec() == [0.0, 0.0] && rstd.to_vec().iter().all(|v| v.is_nan()));
        let none = array(&[0, 4], Float32, &[]);
        let (_, mean, rstd) = layer_norm(&none, &[4], Some(&p(4)), None, 1e-5).unwrap();
        let grads = layer_norm_backward(&none, &none, &[4], Some(&mean), &rstd, Some(&p(4)), [true; 3]).unwrap();
        assert_eq!(grads[1].as_ref().unwrap().to_vec(), [0.0; 4]);
    }
    #[test]
    fn a_large_mean_does_not_drown_the_variance() {
        let v: Vec<f32> = (0..4096).map(|i| 10_000.0 + (i % 16) as f32).collect();
        let a = Array::from_slice(&[1, 4096], &v).unwrap();
        let x: Vec<f64> = v.iter().map(|&v| v as f64).collect();
        let (m, r) = moments_of(&x, true, 1e-5);
        let want: Vec<f64> = x.iter().map(|v| (v - m) * r).collect();
        assert_near(&layer_norm(&a, &[4096], None, None, 1e-5).unwrap().0, &want, 2e-4, &"layer");
        let c = a.view(Dims::of(&[4096, 1]), Dims::of(&[1, 1]), 0);
        assert_near(&batch_norm(&c, None, None, None, true, 0.1, 1e-5).unwrap().out, &want, 2e-4, &"batch");
    }
    #[test]
    fn every_vector_width_gives_the_same_bits() {
        use crate::kernels::simd::{Level, at};
        for shape in [&[3, 70][..], &[40, 1100], &[300, 5], &[3, 4, 50]] {
            let n: usize = shape.iter().product();
            let (x, g) = (array(shape, Float32, &values(n, Float64, 1)), array(shape, Float32, &values(n, Float64, 2)));
            let ((w, b), (u, v)) = (parameters(shape[shape.len() - 1], Float32), parameters(shape[1], Float32));
            let run = || {
                let (y, mean, rstd) = layer_norm(&x, &shape[shape.len() - 1..], Some(&w), Some(&b), 1e-5).unwrap();
                let lines = layer_norm_backward(&g, &x, &shape[shape.len() - 1..], Some(&mean), &rstd, Some(&w), [true; 3]).unwrap();
                let z = batch_norm(&x, Some(&u), Some(&v), None, true, 0.1, 1e-5).unwrap();
                let channels = batch_norm_backward(&g, &x, Some(&u), &z.mean, &z.invstd, true, [true; 3]).unwrap();
                let all = [y, z.out].into_iter().chain(lines.into_iter().flatten()).chain(channels.into_iter().flatten());
                all.flat_map(|a| a.to_vec().into_iter().map(f64::to_bits)).collect::<Vec<_>>()
            };
            assert!(at(Level::Avx512, run) == at(Level::Avx2, run), "{shape:?}");
        }
    }
}
