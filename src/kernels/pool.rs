//! What maps the last axes of an array place by place: pooling, sliding blocks, interpolation, padding; forward and backward.
//!
//! Everything linear here is one thing, a `Line` for each axis: for each place of the result, places of the input and their weights. The
//! axes are done one after another; a gradient is the same with every line reversed. Maximum pooling keeps where each maximum was.
//!
//! Computed in float32 (halves too), float64, or int64. Sums run in the order of the axis, whatever the instruction set.
use crate::array::{Array, Fresh};
use crate::dtype::{Compute, DType, Element, Scalar, for_dtype};
use crate::error::{Result, bail};
use crate::kernels::matmul::cast;
use crate::kernels::simd::simd;
use crate::layout::Dims;
use std::ops::{Add, AddAssign, Div, Mul, Range};

/// What is computed with: f32, f64 or i64.
trait Number: Element + Add<Output = Self> + AddAssign + Mul<Output = Self> + Div<Output = Self> {}
impl<T: Element + Add<Output = T> + AddAssign + Mul<Output = T> + Div<Output = T>> Number for T {}
/// Runs `$body` with `$t` standing for the type that a dtype is computed in.
macro_rules! computed {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype.compute() {
            Compute::F32 => {
                type $t = f32;
                $body
            }
            Compute::F64 => {
                type $t = f64;
                $body
            }
            Compute::I64 => {
                type $t = i64;
                $body
            }
        }
    };
}
/// Row-major, in the type that is computed in; the same array if it is so already.
fn plain<T: Number>(a: &Array) -> Result<Array> {
    if a.dtype == T::DTYPE && a.is_contiguous() { Ok(a.clone()) } else { cast(a, T::DTYPE) }
}
fn finish(a: Array, dtype: DType) -> Result<Array> {
    if a.dtype == dtype { Ok(a) } else { cast(&a, dtype) }
}
/// The shape with other lengths for the last axes.
fn with_last(shape: &[usize], last: &[usize]) -> Result<Dims> {
    let shape: Dims = shape[..shape.len() - last.len()].iter().chain(last).copied().collect();
    shape.checked_numel()?;
    Ok(shape)
}

/// A linear map along one axis: place o of the result is the sum of places `at` of the input times their weights, over `start[o]..start[o + 1]`.
#[derive(Clone)]
struct Line {
    length: usize,
    start: Vec<usize>,
    at: Vec<usize>,
    weight: Vec<f64>,
}
impl Line {
    fn new<I: IntoIterator<Item = (usize, f64)>>(length: usize, places: impl IntoIterator<Item = I>) -> Line {
        let mut line = Line { length, start: vec![0], at: Vec::new(), weight: Vec::new() };
        for place in places {
            for (at, weight) in place {
                line.at.push(at);
                line.weight.push(weight);
            }
            line.start.push(line.at.len());
        }
        line
    }
    /// Sums over ranges.
    fn sums(length: usize, ranges: impl IntoIterator<Item = Range<usize>>) -> Line {
        Line::new(length, ranges.into_iter().map(|r| r.map(|at| (at, 1.0))))
    }
    fn out(&self) -> usize {
        self.start.len() - 1
    }
    /// The gradient's way: what place i of the input is given by the places of the result.
    fn reversed(&self) -> Line {
        let mut places = vec![Vec::new(); self.length];
        for o in 0..self.out() {
            (self.start[o]..self.start[o + 1]).for_each(|t| places[self.at[t]].push((o, self.weight[t])));
        }
        Line::new(self.out(), places)
    }
    fn is_identity(&self) -> bool {
        self.length == self.out() && self.is_choice() && self.at.iter().enumerate().all(|(i, &at)| i == at)
    }
    /// Does every place of the result hold one of the input, as it is?
    fn is_choice(&self) -> bool {
        self.is_plain() && self.start.iter().enumerate().all(|(i, &s)| i == s)
    }
    /// Is every weight 1?
    fn is_plain(&self) -> bool {
        self.weight.iter().all(|&w| w == 1.0)
    }
}
simd! { fn add_row<T: Number>(to: &mut [T], x: &[T]) { to.iter_mut().zip(x).for_each(|(t, x)| *t = *t + *x) } }
simd! { fn add_scaled<T: Number>(to: &mut [T], x: &[T], w: T) { to.iter_mut().zip(x).for_each(|(t, x)| *t = *t + *x * w) } }
simd! { fn scale_row<T: Number>(to: &mut [T], x: &[T], w: T) { to.iter_mut().zip(x).for_each(|(t, x)| *t = *x * w) } }

/// One line along an axis of [outer, length, inner].
fn along<T: Number>(line: &Line, weight: &[T], x: &[T], inner: usize, out: &mut [T]) {
    if line.length * inner == 0 {
        return out.fill(T::default());
    }
    let (plain, choice) = (line.is_plain(), line.is_choice());
    let places = || line.start.windows(2).map(|s| s[0]..s[1]);
    for (x, out) in x.chunks_exact(line.length * inner).zip(out.chunks_exact_mut((line.out() * inner).max(1))) {
        if inner > 1 {
            for (taps, to) in places().zip(out.chunks_exact_mut(inner)) {
                for (i, t) in taps.clone().enumerate() {
                    let row = &x[line.at[t] * inner..][..inner];
                    match (i, plain) {
                        (0, true) => to.copy_from_slice(row),
                        (0, false) => scale_row(to, row, weight[t]),
                        (_, true) => add_row(to, row),
                        (_, false) => add_scaled(to, row, weight[t]),
                    }
                }
                if taps.is_empty() {
                    to.fill(T::default());
                }
            }
        } else if choice {
            out.iter_mut().zip(&line.at).for_each(|(v, &at)| *v = x[at]);
        } else {
            for (taps, v) in places().zip(out) {
                let one = |t: usize| if plain { x[line.at[t]] } else { x[line.at[t]] * weight[t] };
                *v = taps.map(one).reduce(|s, v| s + v).unwrap_or_default();
            }
        }
    }
}
/// Lines along the last axes of a row-major array. Axes that get shorter are done first, from the outermost; then those that get longer,
/// from the innermost: the least work.
fn through<T: Number>(x: &Array, lines: &[Line]) -> Result<Array> {
    let lead = x.ndim() - lines.len();
    let mut last: Vec<usize> = x.shape[lead..].to_vec();
    let out_shape = with_last(&x.shape, &lines.iter().map(Line::out).collect::<Vec<_>>())?;
    let longer = |l: &Line| l.out() > l.length;
    let (grow, shrink): (Vec<usize>, Vec<usize>) = (0..lines.len()).filter(|&d| !lines[d].is_identity()).partition(|&d| longer(&lines[d]));
    let order: Vec<usize> = shrink.into_iter().chain(grow.into_iter().rev()).collect();
    if order.is_empty() {
        return Ok(x.clone());
    }
    let weights: Vec<Vec<T>> = lines.iter().map(|l| l.weight.iter().map(|&w| T::of(Scalar::Float(w))).collect()).collect();
    let mut out = Fresh::new(out_shape, T::DTYPE)?;
    let (from, to): (usize, usize) = (last.iter().product(), out_shape[lead..].iter().product());
    if to == 0 || out_shape.contains(&0) {
        return Ok(out.done());
    }
    let planes: usize = x.shape[..lead].iter().product();
    let source = x.slice::<T>();
    // A plane at a time, so that what lies between two axes stays in the cache.
    let (mut a, mut b): (Vec<T>, Vec<T>) = (Vec::new(), Vec::new());
    let first = last.clone();
    for (plane, out) in (0..planes).zip(out.slice_mut::<T>().chunks_exact_mut(to)) {
        last.copy_from_slice(&first);
        for (i, &d) in order.iter().enumerate() {
            let inner: usize = last[d + 1..].iter().product();
            last[d] = lines[d].out();
            let size: usize = last.iter().product();
            let x = if i == 0 { &source[plane * from..][..from] } else { &a[..] };
            if i + 1 == order.len() {
                along(&lines[d], &weights[d], x, inner, out);
            } else {
                b.resize(size, T::default());
                along(&lines[d], &weights[d], x, inner, &mut b);
                std::mem::swap(&mut a, &mut b);
            }
        }
    }
    Ok(out.done())
}
/// `lines` on an array of any dtype and strides.
fn linear(x: &Array, lines: &[Line]) -> Result<Array> {
    computed!(x.dtype, T => finish(through::<T>(&plain::<T>(x)?, lines)?, x.dtype))
}
/// The gradient of `linear` for an input whose last axes are as the lines say.
fn linear_backward(grad: &Array, lines: &[Line]) -> Result<Array> {
    linear(grad, &lines.iter().map(Line::reversed).collect::<Vec<_>>())
}
/// A backward kernel was given arrays that do not belong together.
fn check_grad(op: &'static str, grad: &Array, input: &[usize], lines: &[Line]) -> Result<()> {
    let want = with_last(input, &lines.iter().map(Line::out).collect::<Vec<_>>())?;
    if grad.shape != want {
        bail!(Runtime, "{op}(): expected a gradient of shape {want:?} for an input of shape {input:?}, but got {:?}", grad.shape);
    }
    Ok(())
}

/// How a window moves over the last axes; one number for each axis, or one for all. No `stride` means the kernel's.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    pub kernel: &'a [i64],
    pub stride: &'a [i64],
    pub padding: &'a [i64],
    pub dilation: &'a [i64],
    pub ceil_mode: bool,
}
/// A window along one axis of a given length, checked.
#[derive(Clone, Copy)]
struct Slide {
    length: usize,
    out: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}
impl Slide {
    /// The places under window o that are in the input, every `dilation`.
    fn places(&self, o: usize) -> std::iter::StepBy<Range<usize>> {
        let (start, end) = (o * self.stride, o * self.stride + (self.kernel - 1) * self.dilation + 1);
        let skip = self.padding.saturating_sub(start).div_ceil(self.dilation) * self.dilation;
        ((start + skip).saturating_sub(self.padding)..end.saturating_sub(self.padding).min(self.length)).step_by(self.dilation)
    }
}
const NAMES: [[&str; 3]; 7] = [
    ["max_pool1d", "max_pool2d", "max_pool3d"],
    ["avg_pool1d", "avg_pool2d", "avg_pool3d"],
    ["adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"],
    ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"],
    ["upsample1d", "upsample2d", "upsample3d"],
    ["reflection_pad1d", "reflection_pad2d", "reflection_pad3d"],
    ["replication_pad1d", "replication_pad2d", "replication_pad3d"],
];
/// The array has these many axes and one or two before, none empty but the first of two.
fn check_shape(op: &'static str, shape: &[usize], axes: usize) -> Result<()> {
    let dims = shape.len();
    if dims != axes + 1 && dims != axes + 2 {
        bail!(Runtime, "{op}(): Expected {}D or {}D (batch mode) tensor, but got {shape:?}", axes + 1, axes + 2);
    }
    if let Some(d) = (dims - axes - 1..dims).find(|&d| shape[d] == 0) {
        bail!(
            Runtime,
            "{op}(): Expected {}D or {}D (batch mode) tensor with optional 0 dim batch size for input and non-zero size for non-batch dimensions, but got {shape:?} with dimension {d} being empty",
            axes + 1,
            axes + 2
        );
    }
    Ok(())
}
/// A list with one number for each axis, from one that may have a single one.
fn each(op: &'static str, name: &str, given: &[i64], axes: usize) -> Result<Vec<i64>> {
    match given.len() {
        1 => Ok(vec![given[0]; axes]),
        n if n == axes => Ok(given.to_vec()),
        _ => bail!(Runtime, "{op}: {name} must either be a single int, or a tuple of {axes} ints, but got {given:?}"),
    }
}
fn slides(op: &'static str, shape: &[usize], axes: usize, w: Window) -> Result<Vec<Slide>> {
    check_shape(op, shape, axes)?;
    let kernel = each(op, "kernel_size", w.kernel, axes)?;
    let stride = if w.stride.is_empty() { kernel.clone() } else { each(op, "stride", w.stride, axes)? };
    let (padding, dilation) = (each(op, "padding", w.padding, axes)?, each(op, "dilation", w.dilation, axes)?);
    let mut all = Vec::with_capacity(axes);
    for d in 0..axes {
        let (k, s, p, step) = (kernel[d], stride[d], padding[d], dilation[d]);
        if s == 0 {
            bail!(Runtime, "{op}(): stride should not be zero, got stride {stride:?} for kernel_size {kernel:?}");
        }
        if k <= 0 || s < 0 {
            bail!(
                Runtime,
                "{op}(): kernel size and stride should be greater than zero, but got kernel_size {kernel:?} and stride {stride:?}"
            );
        }
        if step <= 0 {
            bail!(Runtime, "{op}(): dilation should be greater than zero, but got dilation {dilation:?}");
        }
        if p < 0 {
            bail!(Runtime, "{op}(): pad must be non-negative, but got pad: {p}");
        }
        let reach = (k - 1).saturating_mul(step).saturating_add(1);
        if p > reach / 2 {
            bail!(
                Runtime,
                "{op}(): pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and dilation={step}"
            );
        }
        let length = shape[shape.len() - axes + d];
        let free = (length as i64).saturating_add(p.saturating_mul(2)).saturating_sub(reach);
        let mut out = free.saturating_add(if w.ceil_mode { s - 1 } else { 0 }).div_euclid(s).saturating_add(1);
        // The last window starts in the input or in the padding before it.
        if w.ceil_mode && (out - 1).saturating_mul(s) >= length as i64 + p {
            out -= 1;
        }
        all.push(Slide {
            length,
            out: out.max(0) as usize,
            kernel: k as usize,
            stride: s as usize,
            padding: p as usize,
            dilation: step as usize,
        });
    }
    if all.iter().any(|s| s.out == 0) {
        let lead = shape[shape.len() - axes - 1];
        let list = |f: fn(&Slide) -> usize| all.iter().fold(lead.to_string(), |text, s| text + "x" + &f(s).to_string());
        bail!(
            Runtime,
            "{op}(): Given input size: ({}). Calculated output size: ({}). Output size is too small",
            list(|s| s.length),
            list(|s| s.out)
        );
    }
    Ok(all)
}

/// The average over windows. `count_include_pad` counts the padding; `divisor_override` divides by that number instead of a count.
#[derive(Clone, Copy, Debug)]
pub struct Average<'a> {
    pub window: Window<'a>,
    pub count_include_pad: bool,
    pub divisor_override: Option<i64>,
}
/// What the places of each axis are divided by.
type Counts = Vec<Vec<i64>>;
fn average(op: &'static str, shape: &[usize], axes: usize, a: Average) -> Result<(Vec<Line>, Counts)> {
    if a.divisor_override == Some(0) {
        bail!(Runtime, "{op}(): divisor must be not zero");
    }
    let all = slides(op, shape, axes, Window { dilation: &[1], ..a.window })?;
    let lines = all.iter().map(|s| Line::new(s.length, (0..s.out).map(|o| s.places(o).map(|at| (at, 1.0))))).collect();
    let counts = all.iter().enumerate().map(|(d, s)| {
        let padded = |o: usize| (o * s.stride + s.kernel).min(s.length + 2 * s.padding) - o * s.stride;
        let count = |o: usize| if a.count_include_pad { padded(o) } else { s.places(o).len() };
        match a.divisor_override {
            Some(n) => vec![if d == 0 { n } else { 1 }; s.out],
            None => (0..s.out).map(|o| count(o) as i64).collect(),
        }
    });
    Ok((lines, counts.collect()))
}
/// The planes of an array divided by the product of the counts of each axis (`at_once`), or by each in turn.
fn divide<T: Number>(a: &Array, counts: &Counts, at_once: bool) -> Result<Array> {
    simd! { fn divide_row<T: Number>(to: &mut [T], by: &[T]) { to.iter_mut().zip(by).for_each(|(t, n)| *t = *t / *n) } }
    let size: usize = counts.iter().map(Vec::len).product();
    let mut inner = size;
    let mut layers: Vec<Vec<i64>> = Vec::new();
    for count in counts {
        inner /= count.len().max(1);
        layers.push((0..size).map(|i| count[i / inner % count.len()]).map(|n| if n == 0 { 1 } else { n }).collect());
    }
    if at_once {
        layers = vec![(0..size).map(|i| layers.iter().map(|l| l[i]).product()).collect()];
    }
    let layers: Vec<Vec<T>> = layers.into_iter().map(|l| l.into_iter().map(|n| T::of(Scalar::Int(n))).collect()).collect();
    let mut out = Fresh::new(a.shape, T::DTYPE)?;
    for (x, to) in a.slice::<T>().chunks_exact(size.max(1)).zip(out.slice_mut::<T>().chunks_exact_mut(size.max(1))) {
        to.copy_from_slice(x);
        layers.iter().for_each(|layer| divide_row(to, layer));
    }
    Ok(out.done())
}
fn averaged(x: &Array, lines: &[Line], counts: &Counts, at_once: bool) -> Result<Array> {
    computed!(x.dtype, T => finish(divide::<T>(&through::<T>(&plain::<T>(x)?, lines)?, counts, at_once)?, x.dtype))
}
fn averaged_backward(grad: &Array, lines: &[Line], counts: &Counts, at_once: bool) -> Result<Array> {
    let back: Vec<Line> = lines.iter().map(Line::reversed).collect();
    computed!(grad.dtype, T => finish(through::<T>(&divide::<T>(&plain::<T>(grad)?, counts, at_once)?, &back)?, grad.dtype))
}
fn check_type(op: &'static str, x: &Array, refused: fn(DType) -> bool) -> Result<()> {
    if refused(x.dtype) {
        bail!(NotImplemented, "\"{op}\" not implemented for '{}'", x.dtype.torch_name());
    }
    Ok(())
}
/// The average under each window over the last `axes` axes.
pub fn avg_pool(x: &Array, axes: usize, a: Average) -> Result<Array> {
    let op = NAMES[1][axes - 1];
    let (lines, counts) = average(op, &x.shape, axes, a)?;
    check_type(op, x, |d| d == DType::Bool)?;
    averaged(x, &lines, &counts, true)
}
/// The gradient of `avg_pool` for an input of this shape.
pub fn avg_pool_backward(grad: &Array, input_shape: &[usize], axes: usize, a: Average) -> Result<Array> {
    let op = NAMES[1][axes - 1];
    let (lines, counts) = average(op, input_shape, axes, a)?;
    check_grad(op, grad, input_shape, &lines)?;
    averaged_backward(grad, &lines, &counts, true)
}

/// The windows that split each axis into `size` parts as even as can be; neighbours may share a place.
fn parts(op: &'static str, shape: &[usize], size: &[i64]) -> Result<Vec<Vec<Range<usize>>>> {
    let axes = size.len();
    if size.iter().any(|&v| v < 0) {
        bail!(Runtime, "{op}(): elements of output_size must be greater than or equal to 0 but received {size:?}");
    }
    if shape.len() != axes + 1 && shape.len() != axes + 2 {
        bail!(Runtime, "{op}(): Expected {}D or {}D tensor, but got {shape:?}", axes + 1, axes + 2);
    }
    if let Some(d) = (shape.len() - axes..shape.len()).find(|&d| shape[d] == 0) {
        bail!(
            Runtime,
            "{op}(): Expected input to have non-zero size for non-batch dimensions, but input has sizes {shape:?} with dimension {d} being empty"
        );
    }
    let split = |length: usize, out: usize| (0..out).map(|o| o * length / out..((o + 1) * length).div_ceil(out)).collect();
    Ok(shape[shape.len() - axes..].iter().zip(size).map(|(&length, &out)| split(length, out as usize)).collect())
}
fn adaptive(op: &'static str, shape: &[usize], size: &[i64]) -> Result<(Vec<Line>, Counts)> {
    let parts = parts(op, shape, size)?;
    let lines = parts.iter().enumerate().map(|(d, ranges)| Line::sums(shape[shape.len() - size.len() + d], ranges.iter().cloned()));
    Ok((lines.collect(), parts.iter().map(|ranges| ranges.iter().map(|r| r.len() as i64).collect()).collect()))
}
/// The average over parts of the last axes, `output_size` of them.
pub fn adaptive_avg_pool(x: &Array, output_size: &[i64]) -> Result<Array> {
    let op = NAMES[3][output_size.len() - 1];
    let (lines, counts) = adaptive(op, &x.shape, output_size)?;
    check_type(op, x, |d| !d.is_float())?;
    averaged(x, &lines, &counts, false)
}
/// The gradient of `adaptive_avg_pool` for an input of this shape, over its last `axes` axes.
pub fn adaptive_avg_pool_backward(grad: &Array, input_shape: &[usize], axes: usize) -> Result<Array> {
    let op = NAMES[3][axes - 1];
    let size: Vec<i64> = grad.shape[grad.ndim().saturating_sub(axes)..].iter().map(|&v| v as i64).collect();
    let (lines, counts) = adaptive(op, input_shape, &size)?;
    check_grad(op, grad, input_shape, &lines)?;
    averaged_backward(grad, &lines, &counts, false)
}

simd! {
    /// Keeps the greater of two rows, and the number of the row it came from. NaN is greater than all; of two equal ones the first is kept, of
    /// two NaN the last.
    fn keep_greater<T: Number>(best: &mut [T], from: &mut [u32], x: &[T], row: u32) {
        for ((b, f), x) in best.iter_mut().zip(from).zip(x) {
            #[allow(clippy::eq_op, reason = "true for NaN only")]
            let takes = (*x > *b) | (*x != *x);
            *b = if takes { *x } else { *b };
            *f = if takes { row } else { *f };
        }
    }
}
/// The greatest under each window of the last axes, and its place in the plane. A window of an axis is its places, at least one.
fn maxima<T: Number>(x: &Array, windows: &[Vec<Vec<usize>>]) -> Result<(Array, Array)> {
    let axes = windows.len();
    let lead = x.ndim() - axes;
    let shape = with_last(&x.shape, &windows.iter().map(Vec::len).collect::<Vec<_>>())?;
    let (mut out, mut places) = (Fresh::new(shape, T::DTYPE)?, Fresh::new(shape, DType::Int64)?);
    let size: usize = x.shape[lead..].iter().product();
    let width = x.shape[x.ndim() - 1];
    // The rows under each window of the axes but the last: numbers of rows in the plane, in order.
    let mut rows: Vec<Vec<usize>> = vec![vec![0]];
    for (d, axis) in windows[..axes - 1].iter().enumerate() {
        let step = |row: usize, place: usize| row * x.shape[lead + d] + place;
        rows = rows
            .iter()
            .flat_map(|r| axis.iter().map(|w| r.iter().flat_map(|&row| w.iter().map(move |&p| step(row, p))).collect()))
            .collect();
    }
    if size / width.max(1) > u32::MAX as usize {
        bail!(Runtime, "max_pool(): a plane of {size} elements in rows of {width} is too large");
    }
    let columns = &windows[axes - 1];
    let (mut best, mut from) = (vec![T::default(); width], vec![0u32; width]);
    let plane = rows.len() * columns.len();
    if plane == 0 || out.shape().contains(&0) {
        return Ok((out.done(), places.done()));
    }
    let results = out.slice_mut::<T>().chunks_exact_mut(plane).zip(places.slice_mut::<i64>().chunks_exact_mut(plane));
    for (x, (out, places)) in x.slice::<T>().chunks_exact(size).zip(results) {
        let results = out.chunks_exact_mut(columns.len()).zip(places.chunks_exact_mut(columns.len()));
        for (rows, (out, places)) in rows.iter().zip(results) {
            best.copy_from_slice(&x[rows[0] * width..][..width]);
            from.fill(rows[0] as u32);
            rows[1..].iter().for_each(|&row| keep_greater(&mut best, &mut from, &x[row * width..][..width], row as u32));
            for (window, (v, place)) in columns.iter().zip(out.iter_mut().zip(places.iter_mut())) {
                let key = |c: usize| from[c] as usize * width + c;
                let (mut b, mut k) = (best[window[0]], key(window[0]));
                for &c in &window[1..] {
                    let (x, at) = (best[c], key(c));
                    #[allow(clippy::eq_op, reason = "true for NaN only")]
                    let (nan, was_nan) = (x != x, b != b);
                    // Columns were folded first: among equals the first place in the plane counts, among NaN the last.
                    let takes = (x > b) | ((x == b) & (at < k)) | (nan & (!was_nan | (at > k)));
                    (b, k) = if takes { (x, at) } else { (b, k) };
                }
                (*v, *place) = (b, k as i64);
            }
        }
    }
    Ok((out.done(), places.done()))
}
fn max_over(x: &Array, windows: &[Vec<Vec<usize>>]) -> Result<(Array, Array)> {
    computed!(x.dtype, T => {
        let (out, places) = maxima::<T>(&plain::<T>(x)?, windows)?;
        Ok((finish(out, x.dtype)?, places))
    })
}
/// The greatest under each window over the last `axes` axes, and where it is: int64, counted along the plane of these axes. What is not a
/// number is greater than all.
pub fn max_pool(x: &Array, axes: usize, w: Window) -> Result<(Array, Array)> {
    let op = NAMES[0][axes - 1];
    let all = slides(op, &x.shape, axes, w)?;
    check_type(op, x, |d| d == DType::Bool)?;
    let windows: Vec<Vec<Vec<usize>>> = all.iter().map(|s| (0..s.out).map(|o| s.places(o).collect()).collect()).collect();
    if windows.iter().flatten().any(Vec::is_empty) {
        bail!(
            Runtime,
            "{op}(): a window of kernel_size {:?}, stride {:?}, dilation {:?} meets padding alone",
            w.kernel,
            w.stride,
            w.dilation
        );
    }
    max_over(x, &windows)
}
/// The greatest of parts of the last axes, `output_size` of them, and where it is, as `max_pool`.
pub fn adaptive_max_pool(x: &Array, output_size: &[i64]) -> Result<(Array, Array)> {
    let op = NAMES[2][output_size.len() - 1];
    let parts = parts(op, &x.shape, output_size)?;
    check_type(op, x, |d| !d.is_float())?;
    max_over(x, &parts.into_iter().map(|axis| axis.into_iter().map(Iterator::collect).collect()).collect::<Vec<_>>())
}
/// The gradient of a maximum pooling over the last `axes` axes, by the places it gave.
pub fn max_pool_backward(grad: &Array, places: &Array, input_shape: &[usize], axes: usize) -> Result<Array> {
    let op = NAMES[0][axes - 1];
    let lead = input_shape.len().saturating_sub(axes);
    if grad.shape != places.shape
        || grad.ndim() != input_shape.len()
        || grad.shape[..lead] != input_shape[..lead]
        || places.dtype != DType::Int64
    {
        bail!(
            Runtime,
            "{op}(): a gradient of shape {:?} and {} indices of shape {:?} do not belong to an input of shape {input_shape:?}",
            grad.shape,
            places.dtype.name(),
            places.shape
        );
    }
    let (from, to): (usize, usize) = (grad.shape[lead..].iter().product(), input_shape[lead..].iter().product());
    let places = plain::<i64>(places)?;
    if let Some(at) = places.slice::<i64>().iter().find(|&&at| at < 0 || at as usize >= to) {
        bail!(Index, "{op}(): index {at} is out of range for a plane of {to} elements");
    }
    computed!(grad.dtype, T => {
        let grad_in = plain::<T>(grad)?;
        let mut out = Fresh::new(Dims::of(input_shape), T::DTYPE)?;
        out.bytes_mut().fill(0);
        if from > 0 && to > 0 {
            let given = grad_in.slice::<T>().chunks_exact(from).zip(places.slice::<i64>().chunks_exact(from));
            for (out, (grad, places)) in out.slice_mut::<T>().chunks_exact_mut(to).zip(given) {
                grad.iter().zip(places).for_each(|(&g, &at)| out[at as usize] += g);
            }
        }
        finish(out.done(), grad.dtype)
    })
}

/// Sliding blocks of the last two axes: how `unfold` takes them and `fold` puts them back.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    pub kernel: &'a [i64],
    pub dilation: &'a [i64],
    pub padding: &'a [i64],
    pub stride: &'a [i64],
}
fn blocks(op: &'static str, b: Blocks, size: [usize; 2]) -> Result<[Slide; 2]> {
    let [kernel, dilation, padding, stride] =
        [("kernel_size", b.kernel), ("dilation", b.dilation), ("padding", b.padding), ("stride", b.stride)]
            .map(|(name, v)| each(op, name, v, 2));
    let (kernel, dilation, padding, stride) = (kernel?, dilation?, padding?, stride?);
    for (name, v) in [("kernel size", &kernel), ("dilation", &dilation), ("stride", &stride)] {
        if v.iter().any(|&v| v <= 0) {
            bail!(Runtime, "{op}(): {name} should be greater than zero, but got {v:?}");
        }
    }
    if padding.iter().any(|&v| v < 0) {
        bail!(Runtime, "{op}(): padding should be non-negative, but got {padding:?}");
    }
    let slide = |d: usize| {
        let reach = (kernel[d] - 1).saturating_mul(dilation[d]).saturating_add(1);
        let free = (size[d] as i64).saturating_add(padding[d].saturating_mul(2)).saturating_sub(reach);
        let out = if free < 0 { 0 } else { free / stride[d] + 1 };
        let [out, kernel, stride, padding, dilation] = [out, kernel[d], stride[d], padding[d], dilation[d]].map(|v| v as usize);
        Slide { length: size[d], out, kernel, stride, padding, dilation }
    };
    let both = [slide(0), slide(1)];
    if both.iter().any(|s| s.out == 0) {
        bail!(
            Runtime,
            "{op}(): Given input with spatial size {size:?}, kernel_size={kernel:?}, dilation={dilation:?}, padding={padding:?}, calculated shape of the array of sliding blocks as ({}, {}), but its components must be at least one.",
            both[0].out,
            both[1].out
        );
    }
    Ok(both)
}
/// Calls `f` for every row that the blocks take from a plane: the tap, the row of blocks, the first block of it that the tap finds in the
/// plane, the place it finds there, and the number of such blocks (places lie a stride apart).
fn each_run([y, x]: [Slide; 2], mut f: impl FnMut(usize, usize, usize, usize, usize)) {
    let inside = |s: Slide, tap: usize| {
        let shift = (tap * s.dilation) as isize - s.padding as isize;
        let first_at = |at: isize| ((at - shift).max(0) as usize).div_ceil(s.stride).min(s.out);
        (shift, first_at(0), first_at(s.length as isize))
    };
    for i in 0..y.kernel {
        let (down, top, bottom) = inside(y, i);
        for j in 0..x.kernel {
            let (right, first, end) = inside(x, j);
            for o in (top..bottom).filter(|_| end > first) {
                let row = (o * y.stride).wrapping_add_signed(down);
                f(i * x.kernel + j, o, first, row * x.length + (first * x.stride).wrapping_add_signed(right), end - first);
            }
        }
    }
}
/// [batch, channels, h, w] or [channels, h, w] to [batch, channels * taps, blocks]: torch's `F.unfold`.
pub fn unfold(x: &Array, b: Blocks) -> Result<Array> {
    let op = "unfold";
    if x.ndim() != 3 && x.ndim() != 4 || x.shape[x.ndim() - 3..].contains(&0) {
        bail!(
            Runtime,
            "{op}(): Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: {:?}",
            x.shape
        );
    }
    let d = x.ndim() - 2;
    let both = blocks(op, b, [x.shape[d], x.shape[d + 1]])?;
    let (size, taps, count) = (x.shape[d] * x.shape[d + 1], both[0].kernel * both[1].kernel, both[0].out * both[1].out);
    let shape: Dims = x.shape[..d - 1].iter().copied().chain([x.shape[d - 1] * taps, count]).collect();
    shape.checked_numel()?;
    let mut out = Fresh::new(shape, x.dtype)?;
    out.bytes_mut().fill(0);
    let x = if x.is_contiguous() { x.clone() } else { rows_of(x)? };
    for_dtype!(x.dtype, T => {
        for (x, out) in x.slice::<T>().chunks_exact(size).zip(out.slice_mut::<T>().chunks_exact_mut(taps * count)) {
            each_run(both, |tap, row, first, at, n| {
                let to = &mut out[tap * count + row * both[1].out + first..][..n];
                to.iter_mut().zip(x[at..].iter().step_by(both[1].stride)).for_each(|(t, v)| *t = *v);
            });
        }
    });
    Ok(out.done())
}
/// The sum of blocks where they were: the gradient of `unfold`, and torch's `F.fold`.
pub fn fold(x: &Array, output_size: &[i64], b: Blocks) -> Result<Array> {
    let op = "fold";
    let size = each(op, "output_size", output_size, 2)?;
    if size.iter().any(|&v| v < 1) {
        bail!(Runtime, "{op}(): expected output_size to be greater than zero, but got {size:?}");
    }
    let size = [size[0] as usize, size[1] as usize];
    if x.ndim() != 2 && x.ndim() != 3 || x.shape[x.ndim() - 2..].contains(&0) {
        bail!(
            Runtime,
            "{op}(): Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions for input, but got: {:?}",
            x.shape
        );
    }
    let both = blocks(op, b, size)?;
    let (taps, count, d) = (both[0].kernel * both[1].kernel, both[0].out * both[1].out, x.ndim() - 2);
    if !x.shape[d].is_multiple_of(taps) {
        bail!(
            Runtime,
            "{op}(): Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got input.size(1)={} and kernel_size={:?}",
            x.shape[d],
            b.kernel
        );
    }
    if x.shape[d + 1] != count {
        bail!(
            Runtime,
            "{op}(): Given output_size={size:?}, kernel_size={:?}, dilation={:?}, padding={:?}, stride={:?}, expected size of input's dimension 2 to match the calculated number of sliding blocks {} * {} = {count}, but got input.size(2)={}",
            b.kernel,
            b.dilation,
            b.padding,
            b.stride,
            both[0].out,
            both[1].out,
            x.shape[d + 1]
        );
    }
    let shape: Dims = x.shape[..d].iter().copied().chain([x.shape[d] / taps, size[0], size[1]]).collect();
    shape.checked_numel()?;
    computed!(x.dtype, T => {
        let blocks = plain::<T>(x)?;
        let mut out = Fresh::new(shape, T::DTYPE)?;
        out.bytes_mut().fill(0);
        for (x, out) in blocks.slice::<T>().chunks_exact(taps * count).zip(out.slice_mut::<T>().chunks_exact_mut(size[0] * size[1])) {
            each_run(both, |tap, row, first, at, n| {
                let from = &x[tap * count + row * both[1].out + first..][..n];
                out[at..].iter_mut().step_by(both[1].stride).zip(from).for_each(|(t, v)| *t += *v);
            });
        }
        finish(out.done(), x.dtype)
    })
}
/// A row-major copy.
fn rows_of(x: &Array) -> Result<Array> {
    let mut out = Fresh::new(x.shape, x.dtype)?;
    for_dtype!(x.dtype, T => {
        let mut to = out.slice_mut::<T>().iter_mut();
        x.for_each_offset(|at| {
            if let Some(v) = to.next() {
                *v = x.read::<T>(at, 1)[0];
            }
        });
    });
    Ok(out.done())
}

/// How `upsample` finds values between places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Between {
    Nearest,
    /// As `Nearest`, but from the middle of a place (torch's `nearest-exact`).
    NearestExact,
    /// Linear along each axis (torch's `linear`, `bilinear`, `trilinear`).
    Linear {
        align_corners: bool,
    },
    /// Cubic convolution with a = -0.75 (Keys, 1981; torch's `bicubic`).
    Cubic {
        align_corners: bool,
    },
}
/// The line of one axis. `scale` is the factor that a user gave, else it follows from the lengths. Positions are computed in float32 unless
/// `double`, so that they fall as torch's do.
fn between(mode: Between, length: usize, out: usize, scale: Option<f64>, double: bool) -> Line {
    let r = |v: f64| if double { v } else { v as f32 as f64 };
    let last = length - 1;
    let (align_corners, nearest) = match mode {
        Between::Nearest | Between::NearestExact => (false, true),
        Between::Linear { align_corners } | Between::Cubic { align_corners } => (align_corners, false),
    };
    let ratio = match scale {
        _ if align_corners && out > 1 => r(r(last as f64) / r((out - 1) as f64)),
        _ if align_corners => 0.0,
        Some(s) if s > 0.0 => r(1.0 / s),
        _ => r(length as f64 / out as f64),
    };
    let single = |v: f64| v as f32 as f64;
    let place = |o: usize| -> Vec<(usize, f64)> {
        let at = if align_corners { r(ratio * o as f64) } else { r(r(ratio * r(o as f64 + 0.5)) - 0.5) };
        match mode {
            _ if nearest && length == out => vec![(o, 1.0)],
            Between::Nearest if out == 2 * length => vec![(o / 2, 1.0)],
            Between::Nearest => vec![((single(o as f64 * single(ratio)) as usize).min(last), 1.0)],
            Between::NearestExact => vec![((single((o as f64 + 0.5) * single(ratio)) as usize).min(last), 1.0)],
            Between::Linear { .. } if length == out => vec![(o, 1.0)],
            Between::Linear { .. } => {
                let at = at.max(0.0);
                let low = (at as usize).min(last);
                let part = r(at - low as f64).clamp(0.0, 1.0);
                vec![(low, r(1.0 - part)), ((low + 1).min(last), part)]
            }
            Between::Cubic { .. } => {
                let low = at.floor();
                let t = r(at - low).clamp(0.0, 1.0);
                const A: f64 = -0.75;
                let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
                let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
                let weights = [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)];
                (-1..).zip(weights).map(|(i, w)| ((low as i64 + i).clamp(0, last as i64) as usize, w)).collect()
            }
        }
    };
    Line::new(length, (0..out).map(place))
}
fn upsample_lines(shape: &[usize], size: &[i64], scales: &[Option<f64>], mode: Between, dtype: DType) -> Result<Vec<Line>> {
    let op = NAMES[4][size.len() - 1];
    let lead = shape.len().saturating_sub(size.len());
    if lead != 2 || shape[1] == 0 && shape[0] != 0 {
        bail!(Runtime, "{op}(): Non-empty {}D data tensor expected but got a tensor with sizes {shape:?}", size.len() + 2);
    }
    if shape[lead..].contains(&0) || size.iter().any(|&v| v <= 0) {
        bail!(Runtime, "{op}(): Input and output sizes should be greater than 0, but got input {:?} output {size:?}", &shape[lead..]);
    }
    if scales.len() != size.len() && !scales.is_empty() {
        bail!(Value, "{op}(): scale_factor shape must match input shape: {scales:?} for {} spatial dimensions", size.len());
    }
    with_last(shape, &size.iter().map(|&v| v as usize).collect::<Vec<_>>())?;
    let scale = |d: usize| scales.get(d).copied().flatten();
    Ok((0..size.len()).map(|d| between(mode, shape[lead + d], size[d] as usize, scale(d), dtype == DType::Float64)).collect())
}
/// [batch, channels, spatial] with spatial axes of length `size`. `scales` are the factors that a user gave, if any.
pub fn upsample(x: &Array, size: &[i64], scales: &[Option<f64>], mode: Between) -> Result<Array> {
    let lines = upsample_lines(&x.shape, size, scales, mode, x.dtype)?;
    check_type(NAMES[4][size.len() - 1], x, |d| !d.is_float() && d != DType::UInt8)?;
    if x.dtype == DType::UInt8 {
        // Weights are no integers; torch rounds the result.
        let wide = through::<f32>(&plain::<f32>(x)?, &lines)?;
        let mut out = Fresh::new(wide.shape, DType::UInt8)?;
        out.slice_mut::<u8>().iter_mut().zip(wide.slice::<f32>()).for_each(|(o, v)| *o = v.round_ties_even().clamp(0.0, 255.0) as u8);
        return Ok(out.done());
    }
    linear(x, &lines)
}
/// The gradient of `upsample` for an input of this shape.
pub fn upsample_backward(grad: &Array, input_shape: &[usize], scales: &[Option<f64>], mode: Between) -> Result<Array> {
    let size: Vec<i64> = grad.shape.iter().skip(2).map(|&v| v as i64).collect();
    let lines = upsample_lines(input_shape, &size, scales, mode, grad.dtype)?;
    check_grad(NAMES[4][size.len() - 1], grad, input_shape, &lines)?;
    linear_backward(grad, &lines)
}

/// What padding that is no constant repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// Mirrors at the first and last place, which are not repeated.
    Reflect,
    /// The first and the last place.
    Replicate,
    /// Starts again from the other end.
    Circular,
}
/// The lines of a padding; `pad` is torch's list, from the last axis: before, after, before, after, ... Negative numbers crop.
fn pad_lines(shape: &[usize], pad: &[i64], mode: Repeat) -> Result<Vec<Line>> {
    let axes = pad.len() / 2;
    if !pad.len().is_multiple_of(2) || axes == 0 || axes > shape.len() {
        bail!(
            Runtime,
            "pad(): Padding length should be even and less than or equal to two times the input dimension but got padding length {} and input of dimension {}",
            pad.len(),
            shape.len()
        );
    }
    let lead = shape.len() - axes;
    let mut lines = Vec::with_capacity(axes);
    for d in 0..axes {
        let (before, after) = (pad[2 * (axes - 1 - d)], pad[2 * (axes - 1 - d) + 1]);
        let length = shape[lead + d] as i64;
        if length == 0 {
            bail!(
                Runtime,
                "pad(): Expected a tensor with possibly 0 batch size and other non-zero dimensions for input, but got: {shape:?} with padding {pad:?}"
            );
        }
        match mode {
            Repeat::Reflect if before >= length || after >= length => bail!(
                Runtime,
                "pad(): Padding size should be less than the corresponding input dimension, but got: padding ({before}, {after}) at dimension {} of input {shape:?}",
                lead + d
            ),
            Repeat::Circular if before > length || after > length => bail!(
                Runtime,
                "pad(): Padding value causes wrapping around more than once: padding ({before}, {after}) at dimension {} of input {shape:?}",
                lead + d
            ),
            _ => {}
        }
        let least = if mode == Repeat::Replicate { i64::MIN } else { -length };
        let out = padded(length, (before, after), least, shape, pad)?;
        let place = |o: i64| match (mode, o - before) {
            (_, at) if (0..length).contains(&at) => at,
            (Repeat::Replicate, at) => at.clamp(0, length - 1),
            (Repeat::Circular, at) => at.rem_euclid(length),
            (Repeat::Reflect, at) if at < 0 => -at,
            (Repeat::Reflect, at) => 2 * (length - 1) - at,
        };
        if out == 0 {
            bail!(Runtime, "pad(): input {shape:?} with padding {pad:?} leaves nothing of dimension {}: output is too small", lead + d);
        }
        lines.push(Line::new(length as usize, (0..out).map(|o| [(place(o as i64) as usize, 1.0)])));
    }
    Ok(lines)
}
fn padded(length: i64, (before, after): (i64, i64), least: i64, shape: &[usize], pad: &[i64]) -> Result<usize> {
    let whole = before.checked_add(after).and_then(|p| p.checked_add(length)).filter(|&n| n < 1 << 40);
    match whole {
        Some(n) if n >= 0 && before.min(after) >= least => Ok(n as usize),
        _ => bail!(
            Runtime,
            "pad(): The input size {shape:?}, plus negative padding {pad:?}, resulted in a negative (or too large) output size"
        ),
    }
}
/// Pads the last axes with what the array holds. `pad` is torch's list, from the last axis: before, after, before, after, ...
pub fn pad_repeat(x: &Array, pad: &[i64], mode: Repeat) -> Result<Array> {
    let lines = pad_lines(&x.shape, pad, mode)?;
    check_type("pad", x, |d| d == DType::Bool)?;
    linear(x, &lines)
}
/// The gradient of `pad_repeat` for an input of this shape.
pub fn pad_repeat_backward(grad: &Array, input_shape: &[usize], pad: &[i64], mode: Repeat) -> Result<Array> {
    let lines = pad_lines(input_shape, pad, mode)?;
    check_grad("pad", grad, input_shape, &lines)?;
    linear_backward(grad, &lines)
}
/// Pads the last axes with a number. Negative numbers crop; the gradient is `pad_constant` of the gradient with the signs changed.
pub fn pad_constant(x: &Array, pad: &[i64], value: Scalar) -> Result<Array> {
    let (axes, dims) = (pad.len() / 2, x.ndim());
    if !pad.len().is_multiple_of(2) {
        bail!(Runtime, "pad(): Length of pad must be even but instead it equals {}", pad.len());
    }
    if axes > dims {
        bail!(
            Runtime,
            "pad(): Padding length should be less than or equal to two times the input dimension but got padding length {} and input of dimension {dims}",
            pad.len()
        );
    }
    let lead = dims - axes;
    let mut shape = x.shape.to_vec();
    // What is kept of the input, and where it starts in the result.
    let (mut kept, mut from, mut to) = (x.shape.to_vec(), x.offset, 0);
    let mut corner = vec![0; dims];
    for d in 0..axes {
        let (before, after) = (pad[2 * (axes - 1 - d)], pad[2 * (axes - 1 - d) + 1]);
        let length = x.shape[lead + d] as i64;
        shape[lead + d] = padded(length, (before, after), -length, &x.shape, pad)?;
        kept[lead + d] = (length + before.min(0) + after.min(0)).max(0) as usize;
        from += (-before.min(0)) as usize * x.strides[lead + d];
        corner[lead + d] = before.max(0) as usize;
    }
    let shape = Dims::of(&shape);
    shape.checked_numel()?;
    let steps = shape.strides();
    corner.iter().zip(steps.iter()).for_each(|(c, s)| to += c * s);
    let (part, kept) = (x.view(Dims::of(&kept), x.strides, from), Dims::of(&kept));
    let mut out = Fresh::new(shape, x.dtype)?;
    for_dtype!(x.dtype, T => {
        let out = out.slice_mut::<T>();
        if shape != kept {
            out.fill(T::of(value));
        }
        let to = to.min(out.len());
        copy_rows::<T>(&part, &mut out[to..], &steps);
    });
    Ok(out.done())
}
/// The elements of an array into places of these steps.
fn copy_rows<T: Element>(x: &Array, out: &mut [T], steps: &[usize]) {
    let dims = x.ndim();
    if x.numel() == 0 {
        return;
    }
    if dims == 0 {
        out[0] = x.read::<T>(x.offset, 1)[0];
        return;
    }
    let (rows, width, step) = (Dims::of(&x.shape[..dims - 1]), x.shape[dims - 1], x.strides[dims - 1]);
    let place = x.view(rows, Dims::of(&steps[..dims - 1]), 0);
    let mut starts = Vec::with_capacity(rows.numel());
    place.for_each_offset(|at| starts.push(at));
    let mut starts = starts.into_iter();
    x.view(rows, Dims::of(&x.strides[..dims - 1]), x.offset).for_each_offset(|at| {
        let row = x.read::<T>(at, (width - 1) * step + 1);
        if let Some(to) = starts.next() {
            match step {
                1 => out[to..to + width].copy_from_slice(row),
                0 => out[to..to + width].fill(row[0]),
                _ => out[to..to + width].iter_mut().zip(row.iter().step_by(step)).for_each(|(o, v)| *o = *v),
            }
        }
    });
}
