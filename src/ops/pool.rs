//! Pools, columns of windows, resampling and padding: functions that torch keeps in `nn.functional`. Means, resampling and padding are linear
//! maps of each axis; their gradients are the transposed maps, so that one private op with the map's description serves every order.
use super::macros::{function, op, op_many};
use super::*;
use crate::error::bail;
use crate::kernels::pointwise;
use crate::kernels::pool::{self as windows, Axis, Looks, TRIVIAL, Taps};
use smallvec::smallvec;

fn sizes_shown(d: Dims) -> Attr {
    Attr::Ints(d.to_i64())
}
fn numbers(op: &str, name: &str, given: &[i64], n: usize, least: i64) -> Result<Vec<usize>> {
    if given.len() != n && given.len() != 1 {
        bail!(Runtime, "{op}: {name} must either be a single int, or a tuple of {n} ints, but got {given:?}");
    }
    if given.iter().any(|v| *v < least) {
        bail!(Runtime, "{op}: {name} should be {}, but got {given:?}", if least > 0 { "greater than zero" } else { "non-negative" });
    }
    Ok((0..n).map(|i| given[i.min(given.len() - 1)] as usize).collect())
}
fn spatial(op: &str, x: &Dims, n: usize) -> Result<()> {
    if x.len() != n + 1 && x.len() != n + 2 {
        bail!(Runtime, "{op}: Expected {}D or {}D (batch mode) tensor for input, but got shape {x:?}", n + 1, n + 2);
    }
    if x[x.len() - n - 1..].contains(&0) {
        bail!(Runtime, "{op}: Expected input with non-zero size for non-batch dimensions, but got shape {x:?}");
    }
    Ok(())
}
/// The windows of a pool over the last `n` axes.
#[expect(clippy::too_many_arguments, reason = "what a pool is given")]
fn pool_axes(op: &str, x: &Dims, n: usize, kernel: &Ints, stride: &Ints, padding: &Ints, dilation: &Ints, ceil: bool) -> Result<[Axis; 3]> {
    spatial(op, x, n)?;
    let k = numbers(op, "kernel_size", kernel, n, 1)?;
    let s = if stride.is_empty() { k.clone() } else { numbers(op, "stride", stride, n, 1)? };
    let (p, d) = (numbers(op, "padding", padding, n, 0)?, numbers(op, "dilation", dilation, n, 1)?);
    let mut axes = [TRIVIAL; 3];
    for i in 0..n {
        let reach = d[i] * (k[i] - 1) + 1;
        if 2 * p[i] > reach {
            bail!(
                Runtime,
                "{op}: pad should be at most half of effective kernel size, but got pad={}, kernel_size={} and dilation={}",
                p[i],
                k[i],
                d[i]
            );
        }
        let size = x[x.len() - n + i];
        match Axis::new(size, k[i], s[i], p[i], d[i], ceil) {
            Some(a) => axes[3 - n + i] = a,
            None => bail!(
                Runtime,
                "{op}: Given input size: {x:?}. Calculated output size is too small: kernel {k:?}, padding {p:?}, dilation {d:?}"
            ),
        }
    }
    Ok(axes)
}
fn looks(axes: &[Axis; 3]) -> [Looks; 3] {
    [0, 1, 2].map(|i| Looks::windows(&axes[i]))
}
op! {
    /// Zeros like `self` that depend on it, with the derivative zero.
    ZerosBackward0 = fn dependent_zeros(self_);
    on [private];
    forward(_out) Array::zeros(self_.shape, self_.dtype);
    grad(g, cx) { self_ uses [] => zeros_of(g) }
}
/// `g` of values that were picked from planes of the last `n` axes of `x`, put back where they came from. As in torch it depends on `x`,
/// whose own part in it has the derivative zero.
fn unpicked(g: &Tensor, indices: &Tensor, x: &Tensor, n: usize) -> Result<Tensor> {
    let shape = &x.shape();
    let lead = shape.len() - n;
    let flat = |s: &Dims| {
        Sizes::of(&s.with(|s| {
            let plane = s[lead..].iter().product();
            s.truncate(lead);
            s.push(plane)
        }))
    };
    let (g, at) = (reshape(g, flat(&g.shape()))?, reshape(indices, flat(&indices.shape()))?);
    let zeros = reshape(&to_dtype(&dependent_zeros(x)?, g.dtype())?, flat(shape))?;
    view(&scatter_add(&zeros, &at, &g, -1)?, Sizes::of(shape))
}
macro_rules! max_pools { ($($n:literal $name:ident $node:ident;)*) => { $(op_many! {
    /// The largest of each window, and its place in the plane of the last dimensions.
    $node = fn $name(self_; kernel_size: Ints, stride: Ints = Ints::default(), padding: Ints = Ints::of(&[0]), dilation: Ints = Ints::of(&[1]), ceil_mode: bool = false) -> [result0; nondiff result1];
    on [nn];
    forward {
        let axes = pool_axes(concat!("max_pool", $n, "d"), &self_.shape, $n, kernel_size, stride, padding, dilation, *ceil_mode)?;
        let (values, indices) = windows::max_windows(floats(stringify!($name), [self_])?[0], $n, &looks(&axes))?;
        Ok(smallvec![values, indices])
    };
    saves [self_, result1];
    grad(g, cx) { self_ uses [self_, result1] => {
        let (Some(g), Some(indices), Some(x)) = (&g[0], result1, self_) else { return Ok(()) };
        unpicked(g, indices, x, $n).map(Some)
    } }
})* } }
max_pools! {
    2 max_pool2d_with_indices MaxPool2DWithIndicesBackward0;
    3 max_pool3d_with_indices MaxPool3DWithIndicesBackward0;
}
fn even(op: &str, x: &Dims, n: usize, output: &Ints) -> Result<[Looks; 3]> {
    spatial(op, x, n)?;
    let out = numbers(op, "output_size", output, n, 0)?;
    let mut l = [0, 1, 2].map(|_| Looks::windows(&TRIVIAL));
    (0..n).for_each(|i| l[3 - n + i] = Looks::even(x[x.len() - n + i], out[i]));
    Ok(l)
}
macro_rules! adaptive_max_pools { ($($n:literal $name:ident $node:ident;)*) => { $(op_many! {
    /// The largest of each of `output_size` windows that cover the last dimensions evenly, and its place.
    $node = fn $name(self_; output_size: Ints) -> [result0; nondiff result1];
    on [nn];
    forward {
        let (values, indices) = windows::max_windows(floats(stringify!($name), [self_])?[0], $n, &even(stringify!($name), &self_.shape, $n, output_size)?)?;
        Ok(smallvec![values, indices])
    };
    saves [self_, result1];
    grad(g, cx) { self_ uses [self_, result1] => {
        let (Some(g), Some(indices), Some(x)) = (&g[0], result1, self_) else { return Ok(()) };
        unpicked(g, indices, x, $n).map(Some)
    } }
})* } }
adaptive_max_pools! {
    2 adaptive_max_pool2d AdaptiveMaxPool2DBackward0;
    3 adaptive_max_pool3d AdaptiveMaxPool3DBackward0;
}

// ---- linear maps of each axis ----
/// A linear map of the last axes, as data: what backward and its derivatives need to make the matrices again.
#[derive(Clone, Debug)]
pub enum Map {
    /// Means over windows: kernel, stride, padding, ceil, whether padding counts, a divisor.
    Mean {
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        ceil: bool,
        count_pad: bool,
        divisor: Option<i64>,
        n: usize,
    },
    /// Means over windows that cover the axes evenly.
    Even {
        output: Ints,
        n: usize,
    },
    /// One element for each new one: the one before its place, or the one nearest to it.
    Nearest {
        output: Vec<usize>,
        factors: Vec<Option<f64>>,
        exact: bool,
    },
    Linear {
        output: Vec<usize>,
        factors: Vec<Option<f64>>,
        corners: bool,
    },
    Cubic {
        output: Vec<usize>,
        factors: Vec<Option<f64>>,
        corners: bool,
    },
    /// The image continued by its mirror image, or by its edge: widths before and after, last axis first.
    Mirror {
        pad: Ints,
    },
    Edge {
        pad: Ints,
    },
}
impl IntoAttr for Map {
    fn attr(&self) -> Attr {
        Attr::None
    }
    fn arg(&self) -> Arg {
        Arg::Opaque(std::sync::Arc::new(self.clone()))
    }
}
/// The place in the old axis where the middle (or corner) of each new element lies.
fn places(old: usize, new: usize, factor: Option<f64>, corners: bool) -> impl Iterator<Item = f64> {
    let ratio = if corners {
        if new > 1 { (old - 1) as f64 / (new - 1) as f64 } else { 0.0 }
    } else {
        factor.map_or(old as f64 / new as f64, |f| 1.0 / f)
    };
    (0..new).map(move |i| if corners { i as f64 * ratio } else { (i as f64 + 0.5) * ratio - 0.5 })
}
/// Keys' cubic convolution with a = -0.75 (Keys 1981); beyond the edges the edge counts on.
fn cubic(place: f64, old: usize) -> Vec<(usize, f64)> {
    let a = -0.75;
    let (low, t) = (place.floor(), place - place.floor());
    let near = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    let at = |j: usize| (low - 1.0 + j as f64).clamp(0.0, (old - 1) as f64) as usize;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)].into_iter().enumerate().map(|(j, w)| (at(j), w)).collect()
}
fn linear_taps(place: f64, old: usize) -> Vec<(usize, f64)> {
    let place = place.max(0.0);
    let low = (place as usize).min(old - 1);
    let part = (place - low as f64).clamp(0.0, 1.0);
    if part == 0.0 { vec![(low, 1.0)] } else { vec![(low, 1.0 - part), ((low + 1).min(old - 1), part)] }
}
impl Map {
    /// The matrices for an operand of this shape.
    fn taps(&self, shape: &[usize]) -> Result<Vec<Taps>> {
        let last = |n: usize| &shape[shape.len() - n..];
        Ok(match self {
            Map::Mean { kernel, stride, padding, ceil, count_pad, divisor, n } => {
                let axes = pool_axes(MEANS[n - 2], &Dims::of(shape), *n, kernel, stride, padding, &Ints::of(&[1]), *ceil)?;
                let one = |(i, a): (usize, &Axis)| {
                    let looks = Looks::windows(a);
                    Taps::means(&looks, |o| match divisor {
                        Some(d) if i == 0 => *d as f64,
                        Some(_) => 1.0,
                        None if *count_pad => {
                            let start = o * a.stride;
                            ((start + a.kernel).min(a.size + 2 * a.padding) - start) as f64
                        }
                        None => (looks.spans[o].1 - looks.spans[o].0) as f64,
                    })
                };
                axes[3 - n..].iter().enumerate().map(one).collect()
            }
            Map::Even { output, n } => {
                let looks = even("adaptive_avg_pool", &Dims::of(shape), *n, output)?;
                looks[3 - n..].iter().map(|l| Taps::means(l, |o| (l.spans[o].1 - l.spans[o].0) as f64)).collect()
            }
            Map::Nearest { output, factors, exact } => {
                let one = |(i, (&new, &old)): (usize, (&usize, &usize))| {
                    let ratio = factors[i].map_or(old as f64 / new as f64, |f| 1.0 / f);
                    let shift = if *exact { 0.5 } else { 0.0 };
                    Taps::picks(old, (0..new).map(move |o| (((o as f64 + shift) * ratio) as usize).min(old - 1)))
                };
                output.iter().zip(last(output.len())).enumerate().map(one).collect()
            }
            Map::Linear { output, factors, corners } => {
                let one = |(i, (&new, &old)): (usize, (&usize, &usize))| {
                    Taps::new(old, places(old, new, factors[i], *corners).map(|p| (linear_taps(p, old), 1.0)))
                };
                output.iter().zip(last(output.len())).enumerate().map(one).collect()
            }
            Map::Cubic { output, factors, corners } => {
                let one = |(i, (&new, &old)): (usize, (&usize, &usize))| {
                    Taps::new(old, places(old, new, factors[i], *corners).map(|p| (cubic(p, old), 1.0)))
                };
                output.iter().zip(last(output.len())).enumerate().map(one).collect()
            }
            Map::Mirror { pad } => padded(pad, last(pad.len() / 2), |j, n| {
                if j < 0 {
                    -j
                } else if j >= n {
                    2 * (n - 1) - j
                } else {
                    j
                }
            }),
            Map::Edge { pad } => padded(pad, last(pad.len() / 2), |j, n| j.clamp(0, n - 1)),
        })
    }
}
fn padded(pad: &[i64], old: &[usize], place: impl Fn(i64, i64) -> i64) -> Vec<Taps> {
    let n = old.len();
    (0..n)
        .map(|i| {
            let (before, after, size) = (pad[2 * (n - 1 - i)], pad[2 * (n - 1 - i) + 1], old[i] as i64);
            Taps::picks(old[i], (-before..size + after).map(|j| place(j, size) as usize))
        })
        .collect()
}
const MEANS: [&str; 2] = ["avg_pool2d", "avg_pool3d"];
fn mapped(x: &Array, map: &Map) -> Result<Array> {
    let op = match map {
        Map::Mean { .. } => "avg_pool",
        Map::Even { .. } => "adaptive_avg_pool",
        Map::Nearest { .. } | Map::Linear { .. } | Map::Cubic { .. } => "interpolate",
        Map::Mirror { .. } | Map::Edge { .. } => "pad",
    };
    floats(op, [x])?;
    windows::resample(x, &map.taps(&x.shape)?, false)
}
op! {
    /// A linear map of each axis.
    AxesBackward0 = fn map_axes(self_; map: Map);
    on [private];
    forward(_out) mapped(self_, map);
    grad(g, cx) { self_ uses [] => unmap_axes(g, None, map.clone(), Sizes::of(&cx.shape(0))) }
}
op! {
    /// The transposed map: the gradient, of the operand's shape. `like`, the operand where torch saves it, has a gradient of zeros.
    AxesBackwardBackward0 = fn unmap_axes(grad_output, like | optional; map: Map, input_size: Sizes);
    on [private];
    forward(_out) {
        let shape: Vec<usize> = input_size.iter().map(|&v| v as usize).collect();
        let _ = like;
        windows::resample(grad_output, &map.taps(&shape)?, true)
    };
    grad(g, cx) {
        grad_output uses [] => map_axes(g, map.clone()),
        like uses [] => zeros(cx.shape(1), cx.dtype(1)),
    }
}
fn transposed(g: &Tensor, like: Option<&Tensor>, map: Map, shape: Dims) -> Result<Tensor> {
    unmap_axes(g, like, map, Sizes::of(&shape))
}
macro_rules! avg_pools { ($($n:literal $name:ident $node:ident;)*) => { $(op! {
    /// The mean of each window of the last dimensions.
    $node = fn $name(self_; kernel_size: Ints, stride: Ints = Ints::default(), padding: Ints = Ints::of(&[0]), ceil_mode: bool = false, count_include_pad: bool = true, divisor_override: Option<i64> = None);
    on [nn];
    forward(_out) {
        if *divisor_override == Some(0) {
            bail!(Runtime, concat!(stringify!($name), ": divisor must be not zero"));
        }
        mapped(self_, &means($n, kernel_size, stride, padding, *ceil_mode, *count_include_pad, *divisor_override))
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => {
        transposed(g, Some(self_), means($n, kernel_size, stride, padding, *ceil_mode, *count_include_pad, *divisor_override), cx.shape(0))
    } }
})* } }
fn means(n: usize, kernel: &Ints, stride: &Ints, padding: &Ints, ceil: bool, count_pad: bool, divisor: Option<i64>) -> Map {
    Map::Mean { kernel: kernel.clone(), stride: stride.clone(), padding: padding.clone(), ceil, count_pad, divisor, n }
}
avg_pools! {
    2 avg_pool2d AvgPool2DBackward0;
    3 avg_pool3d AvgPool3DBackward0;
}
macro_rules! adaptive_avg_pools { ($($n:literal $name:ident $part:ident $node:ident;)*) => { $(
    op! {
        /// The mean of each of `output_size` windows that cover the last dimensions evenly.
        $node = fn $part(self_; output_size: Ints);
        on [private];
        forward(_out) mapped(self_, &Map::Even { output: output_size.clone(), n: $n });
        saves [self_];
        grad(g, cx) { self_ uses [self_] => { transposed(g, Some(self_), Map::Even { output: output_size.clone(), n: $n }, cx.shape(0)) } }
    }
    function! {
        /// The mean of each of `output_size` windows that cover the last dimensions evenly.
        fn $name(self_; output_size: Ints) -> Tensor;
        on [nn];
        {
            spatial(stringify!($name), &self_.shape(), $n)?;
            if output_size.iter().all(|v| *v == 1) && self_.look(Array::numel) > 0 {
                return mean_dim(self_, Some(Ints((-$n..0).collect())), true, None);
            }
            $part(self_, output_size)
        }
    }
)* } }
adaptive_avg_pools! {
    2 adaptive_avg_pool2d _adaptive_avg_pool2d AdaptiveAvgPool2DBackward0;
    3 adaptive_avg_pool3d _adaptive_avg_pool3d AdaptiveAvgPool3DBackward0;
}

// ---- resampling ----
/// The lengths and the factors of a resampling of `n` axes: lengths are given or follow from the factors.
fn resized(op: &str, x: &Dims, n: usize, size: &Option<Ints>, factors: &Option<Vec<f64>>) -> Result<(Vec<usize>, Vec<Option<f64>>)> {
    if x.len() != n + 2 {
        bail!(Runtime, "{op}: It is expected input_size equals to {}, but got size {}", n + 2, x.len());
    }
    let factor = |i: usize| factors.as_ref().and_then(|f| f.get(i).or(f.first()).copied());
    let out: Vec<i64> = match size {
        Some(s) if s.len() == n => s.to_vec(),
        Some(s) => bail!(Runtime, "{op}: It is expected output_size equals to {n}, but got size {}", s.len()),
        None => (0..n).map(|i| (x[2 + i] as f64 * factor(i).unwrap_or(1.0)).floor() as i64).collect(),
    };
    if out.iter().any(|v| *v < 1) || x[2..].contains(&0) {
        bail!(Runtime, "Input and output sizes should be greater than 0, but got input {:?} and output {out:?}", &x[2..]);
    }
    Ok((out.iter().map(|&v| v as usize).collect(), (0..n).map(factor).collect()))
}
fn scale(f: &Option<Vec<f64>>, i: usize) -> Attr {
    f.as_ref().and_then(|f| f.get(i)).map_or(Attr::None, |v| v.attr())
}
macro_rules! nearest { ($($n:literal $exact:literal $name:ident $node:ident [$($shown:ident $i:literal),*];)*) => { $(op! {
    /// Each new element the one that lies at its place.
    $node = fn $name(self_; output_size: Option<Ints>, scale_factors: Option<Vec<f64>> = None);
    on [nn];
    forward(_out) {
        let (output, factors) = resized(stringify!($name), &self_.shape, $n, output_size, scale_factors)?;
        mapped(self_, &Map::Nearest { output, factors, exact: $exact })
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)), $($shown: scale(scale_factors, $i)),* };
    grad(g, cx) { self_ uses [] => {
        let (output, factors) = resized(stringify!($name), &cx.shape(0), $n, output_size, scale_factors)?;
        transposed(g, None, Map::Nearest { output, factors, exact: $exact }, cx.shape(0))
    } }
})* } }
nearest! {
    1 false upsample_nearest1d UpsampleNearest1DBackward0 [scales 0];
    2 false upsample_nearest2d UpsampleNearest2DBackward0 [scales_h 0, scales_w 1];
    3 false upsample_nearest3d UpsampleNearest3DBackward0 [scales_d 0, scales_h 1, scales_w 2];
    1 true _upsample_nearest_exact1d UpsampleNearestExact1DBackward0 [scales 0];
    2 true _upsample_nearest_exact2d UpsampleNearestExact2DBackward0 [scales_h 0, scales_w 1];
    3 true _upsample_nearest_exact3d UpsampleNearestExact3DBackward0 [scales_d 0, scales_h 1, scales_w 2];
}
macro_rules! blended { ($($n:literal $kind:ident $name:ident $node:ident [$($shown:ident $i:literal),*];)*) => { $(op! {
    /// Each new element a blend of those around its place, dimension by dimension.
    $node = fn $name(self_; output_size: Option<Ints>, align_corners: bool, scale_factors: Option<Vec<f64>> = None);
    on [nn];
    forward(_out) {
        let (output, factors) = resized(stringify!($name), &self_.shape, $n, output_size, scale_factors)?;
        mapped(self_, &Map::$kind { output, factors, corners: *align_corners })
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)), $($shown: scale(scale_factors, $i)),* };
    grad(g, cx) { self_ uses [] => {
        let (output, factors) = resized(stringify!($name), &cx.shape(0), $n, output_size, scale_factors)?;
        transposed(g, None, Map::$kind { output, factors, corners: *align_corners }, cx.shape(0))
    } }
})* } }
blended! {
    1 Linear upsample_linear1d UpsampleLinear1DBackward0 [scales 0];
    2 Linear upsample_bilinear2d UpsampleBilinear2DBackward0 [scales_h 0, scales_w 1];
    3 Linear upsample_trilinear3d UpsampleTrilinear3DBackward0 [scales_d 0, scales_h 1, scales_w 2];
    2 Cubic upsample_bicubic2d UpsampleBicubic2DBackward0 [scales_h 0, scales_w 1];
}

// ---- padding ----
fn pad_widths(op: &str, x: &Dims, pad: &Ints) -> Result<()> {
    if !pad.len().is_multiple_of(2) || pad.len() / 2 > x.len() {
        bail!(
            Runtime,
            "{op}: Length of pad must be even and no more than twice the number of dimensions of the input ({}), got {:?}",
            x.len(),
            &**pad
        );
    }
    for i in 0..pad.len() / 2 {
        let (d, before, after) = (x.len() - 1 - i, pad[2 * i], pad[2 * i + 1]);
        if (x[d] as i64).checked_add(before).and_then(|n| n.checked_add(after)).is_none_or(|n| n < 0) {
            bail!(
                Runtime,
                "The input size {}, plus negative padding {before} and {after}, resulted in a negative output size, which is invalid. Check dimension {d} of your input.",
                x[d]
            );
        }
    }
    Ok(())
}
fn constant_padded(x: &Array, pad: &Ints, value: Scalar) -> Result<Array> {
    pad_widths("constant_pad_nd", &x.shape, pad)?;
    let widths = |d: usize| match x.ndim() - 1 - d {
        i if i < pad.len() / 2 => (pad[2 * i], pad[2 * i + 1]),
        _ => (0, 0),
    };
    let shape: Dims = (0..x.ndim()).map(|d| (x.shape[d] as i64 + widths(d).0 + widths(d).1) as usize).collect();
    shape.checked_numel()?;
    let out = Array::full(shape, x.dtype, value)?;
    let (mut from, mut to) = (x.view(x.shape, x.strides, x.offset), out.view(out.shape, out.strides, out.offset));
    for d in 0..x.ndim() {
        let (before, after) = widths(d);
        let n = x.shape[d] as i64 + before.min(0) + after.min(0);
        if n <= 0 {
            return Ok(out);
        }
        let shape = from.shape.with(|s| s[d] = n as usize);
        from = from.view(shape, from.strides, from.offset + (-before).max(0) as usize * from.strides[d]);
        to = to.view(
            shape.with(|s| s[d + 1..].copy_from_slice(&to.shape[d + 1..])),
            to.strides,
            to.offset + before.max(0) as usize * to.strides[d],
        );
    }
    pointwise::copy(&to, &from)?;
    Ok(out)
}
op! {
    /// The last dimensions widened by `value`, by `pad` before and after, last dimension first; negative widths cut.
    ConstantPadNdBackward0 = fn constant_pad_nd(self_; pad: Ints, value: Scalar = Scalar::Int(0));
    on [function];
    forward(_out) constant_padded(self_, pad, *value);
    grad(g, cx) { self_ uses [] => constant_pad_nd(g, Ints(pad.iter().map(|v| -v).collect()), Scalar::Int(0)) }
}
fn check_pad(op: &str, x: &Dims, pad: &Ints, n: usize, mirror: bool) -> Result<()> {
    if pad.len() != 2 * n || (x.len() != n + 1 && x.len() != n + 2) {
        bail!(
            Runtime,
            "{op}: Expected {}D or {}D (batch mode) tensor and {} padding values, but got shape {x:?} and padding {:?}",
            n + 1,
            n + 2,
            2 * n,
            &**pad
        );
    }
    pad_widths(op, x, pad)?;
    for i in 0..n {
        let d = x.len() - 1 - i;
        let (size, most) = (x[d] as i64, pad[2 * i].max(pad[2 * i + 1]));
        if mirror && most >= size {
            bail!(
                Runtime,
                "Padding size should be less than the corresponding input dimension, but got: padding ({}, {}) at dimension {d} of input {x:?}",
                pad[2 * i],
                pad[2 * i + 1]
            );
        }
        if size == 0 || size + pad[2 * i] + pad[2 * i + 1] < 1 {
            bail!(Runtime, "{op}: input of shape {x:?} is too small for padding {:?}", &**pad);
        }
    }
    Ok(())
}
macro_rules! pads { ($($n:literal $kind:ident $mirror:literal $name:ident $node:ident;)*) => { $(op! {
    /// The last dimensions continued by their mirror image (reflection) or by their edge (replication).
    $node = fn $name(self_; padding: Ints);
    on [nn];
    forward(_out) {
        check_pad(stringify!($name), &self_.shape, padding, $n, $mirror)?;
        mapped(self_, &Map::$kind { pad: padding.clone() })
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => { transposed(g, Some(self_), Map::$kind { pad: padding.clone() }, cx.shape(0)) } }
})* } }
pads! {
    1 Mirror true reflection_pad1d ReflectionPad1DBackward0;
    2 Mirror true reflection_pad2d ReflectionPad2DBackward0;
    3 Mirror true reflection_pad3d ReflectionPad3DBackward0;
    1 Edge false replication_pad1d ReplicationPad1DBackward0;
    2 Edge false replication_pad2d ReplicationPad2DBackward0;
    3 Edge false replication_pad3d ReplicationPad3DBackward0;
}

// ---- columns of windows ----
fn column_axes(op: &str, size: &[usize], kernel: &Ints, dilation: &Ints, padding: &Ints, stride: &Ints) -> Result<[Axis; 3]> {
    let (k, d) = (numbers(op, "kernel_size", kernel, 2, 1)?, numbers(op, "dilation", dilation, 2, 1)?);
    let (p, s) = (numbers(op, "padding", padding, 2, 0)?, numbers(op, "stride", stride, 2, 1)?);
    let mut axes = [TRIVIAL; 3];
    for i in 0..2 {
        match Axis::new(size[i], k[i], s[i], p[i], d[i], false) {
            Some(a) => axes[1 + i] = a,
            None => bail!(
                Runtime,
                "{op}: windows of kernel_size={k:?}, dilation={d:?} do not fit into spatial size {size:?} with padding={p:?}: the calculated shape of the array of sliding blocks is too small (non-positive)"
            ),
        }
    }
    Ok(axes)
}
op! {
    /// Every window of (N, C, H, W) as a column.
    Im2ColBackward0 = fn im2col_batch(self_; kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints);
    schema "im2col";
    on [private];
    forward(_out) windows::im2col(floats("unfold", [self_])?[0], column_axes("unfold", &self_.shape[2..], kernel_size, dilation, padding, stride)?);
    shows { self_sym_argsize_minus_2: cx.shape(0)[2].attr(), self_sym_argsize_minus_1: cx.shape(0)[3].attr() };
    grad(g, cx) { self_ uses [] => {
        let s = cx.shape(0);
        col2im_batch(g, Ints::of(&[s[2], s[3]]), kernel_size.clone(), dilation.clone(), padding.clone(), stride.clone())
    } }
}
op! {
    /// Columns summed back into the windows of (N, C, H, W) that they came from.
    Col2ImBackward0 = fn col2im_batch(self_; output_size: Ints, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints);
    schema "col2im";
    on [private];
    forward(_out) {
        let size = numbers("fold", "output_size", output_size, 2, 1)?;
        let axes = column_axes("fold", &size, kernel_size, dilation, padding, stride)?;
        let (taps, count) = (axes[1].kernel * axes[2].kernel, axes[1].count * axes[2].count);
        if self_.shape[1] % taps != 0 || self_.shape[2] != count {
            bail!(Runtime, "fold: Expected size of input's dimension 1 to be divisible by the product of kernel_size ({taps}), and its dimension 2 to match the calculated number of sliding blocks ({count}), but got input of shape {:?}", self_.shape);
        }
        windows::col2im(floats("fold", [self_])?[0], axes)
    };
    grad(g, cx) { self_ uses [] => im2col_batch(g, kernel_size.clone(), dilation.clone(), padding.clone(), stride.clone()) }
}
function! {
    /// Every window of (N, C, H, W) or (C, H, W) as a column.
    fn im2col(self_; kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Tensor;
    on [nn];
    {
        match self_.ndim() {
            4 => im2col_batch(self_, kernel_size, dilation, padding, stride),
            3 => squeeze_dim(&im2col_batch(&unsqueeze(self_, 0)?, kernel_size, dilation, padding, stride)?, 0),
            _ => bail!(Runtime, "unfold: Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, but got: {:?}", self_.shape()),
        }
    }
}
function! {
    /// Columns (N, C * taps, windows), or without N, summed back into the windows that they came from.
    fn col2im(self_; output_size: Ints, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Tensor;
    on [nn];
    {
        match self_.ndim() {
            3 => col2im_batch(self_, output_size, kernel_size, dilation, padding, stride),
            2 => squeeze_dim(&col2im_batch(&unsqueeze(self_, 0)?, output_size, kernel_size, dilation, padding, stride)?, 0),
            _ => bail!(Runtime, "fold: Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions for input, but got: {:?}", self_.shape()),
        }
    }
}

// ---- channels as blocks of pixels ----
/// The last three axes as five, those in another order, and as three again.
fn blocks(op: &str, x: &Array, r: i64, apart: bool) -> Result<Array> {
    let n = x.ndim();
    if n < 3 || r <= 0 {
        bail!(Runtime, "{op} expects input to have at least 3 dimensions and a positive factor, but got shape {:?} and {r}", x.shape);
    }
    let (lead, r) = (n - 3, r as usize);
    let [c, h, w] = [x.shape[lead], x.shape[lead + 1], x.shape[lead + 2]];
    let x = pointwise::contiguous(x)?;
    let (five, order, three) = if apart {
        if !h.is_multiple_of(r) || !w.is_multiple_of(r) {
            bail!(
                Runtime,
                "{op} expects height and width to be divisible by downscale_factor, but input.size(-2)={h} and input.size(-1)={w} are not divisible by {r}"
            );
        }
        ([c, h / r, r, w / r, r], [0, 2, 4, 1, 3], [c * r * r, h / r, w / r])
    } else {
        if !c.is_multiple_of(r * r) {
            bail!(
                Runtime,
                "{op} expects its input's 'channel' dimension to be divisible by the square of upscale_factor, but input.size(-3)={c} is not divisible by {}",
                r * r
            );
        }
        ([c / (r * r), r, r, h, w], [0, 3, 1, 4, 2], [c / (r * r), h * r, w * r])
    };
    let wide = x.shape.with(|s| s.splice(lead.., five).for_each(drop));
    let strides = wide.strides();
    let turn = |d: &Dims| (0..lead).chain(order.map(|o| lead + o)).map(|i| d[i]).collect();
    let moved = pointwise::cast(&x.view(turn(&wide), turn(&strides), x.offset), x.dtype)?;
    let shape = x.shape.with(|s| s.splice(lead.., three).for_each(drop));
    Ok(moved.view(shape, shape.strides(), moved.offset))
}
op! {
    /// Channels as blocks of pixels: (*, C r r, H, W) to (*, C, H r, W r).
    PixelShuffleBackward0 = fn pixel_shuffle(self_; upscale_factor: i64);
    on [function];
    forward(_out) blocks("pixel_shuffle", self_, *upscale_factor, false);
    grad(g, cx) { self_ uses [] => pixel_unshuffle(g, *upscale_factor) }
}
op! {
    /// Blocks of pixels as channels: (*, C, H r, W r) to (*, C r r, H, W).
    PixelUnshuffleBackward0 = fn pixel_unshuffle(self_; downscale_factor: i64);
    on [function];
    forward(_out) blocks("pixel_unshuffle", self_, *downscale_factor, true);
    grad(g, cx) { self_ uses [] => pixel_shuffle(g, *downscale_factor) }
}
