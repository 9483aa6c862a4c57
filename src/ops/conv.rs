//! Convolutions, of which all have one node; the gradients of a convolution are convolutions.
use super::macros::{function, op, op_many};
use super::*;
use crate::error::bail;
use crate::kernels::conv::{self as products, Geometry};
use smallvec::smallvec;

/// How a convolution goes, checked: one number for each spatial axis.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
    groups: usize,
}
fn each(op: &str, name: &str, given: &[i64], n: usize, least: i64) -> Result<Vec<usize>> {
    if given.len() != n && given.len() != 1 {
        bail!(
            Runtime,
            "{op}(): expected {name} to be a single integer value or a list of {n} values to match the convolution dimensions, but got {name}={given:?}"
        );
    }
    if let Some(v) = given.iter().find(|v| **v < least) {
        match name {
            "stride" => bail!(Runtime, "{op}(): non-positive stride is not supported, got {v}"),
            "dilation" => bail!(Runtime, "{op}(): dilation should be greater than zero, but got {v}"),
            _ => bail!(Runtime, "{op}(): negative {name} is not supported, got {v}"),
        }
    }
    Ok((0..n).map(|i| given[i.min(given.len() - 1)] as usize).collect())
}
impl Way {
    fn new(op: &str, n: usize, stride: &[i64], padding: &[i64], dilation: &[i64], groups: i64) -> Result<Way> {
        if groups <= 0 {
            bail!(Runtime, "{op}(): non-positive groups is not supported, got groups={groups}");
        }
        Ok(Way {
            stride: each(op, "stride", stride, n, 1)?,
            padding: each(op, "padding", padding, n, 0)?,
            dilation: each(op, "dilation", dilation, n, 1)?,
            groups: groups as usize,
        })
    }
    fn geometry(&self) -> Geometry<'_> {
        Geometry { stride: &self.stride, padding: &self.padding, dilation: &self.dilation, groups: self.groups }
    }
    /// The spatial lengths of what a transposed convolution gives.
    fn grown(&self, from: &[usize], kernel: &[usize], more: &[usize]) -> Result<Vec<usize>> {
        let one = |i: usize| {
            let full = from[i].checked_sub(1).and_then(|n| n.checked_mul(self.stride[i]));
            let full = full.and_then(|n| n.checked_add(self.dilation[i].checked_mul(kernel[i].checked_sub(1)?)? + more[i] + 1));
            full.and_then(|n| n.checked_sub(2 * self.padding[i])).filter(|n| *n > 0)
        };
        match (0..from.len()).map(one).collect() {
            Some(v) => Ok(v),
            None => bail!(Runtime, "conv_transpose(): input of spatial size {from:?} and kernel {kernel:?} with padding {:?} leave no output", self.padding),
        }
    }
}
fn check(op: &str, x: &Array, w: &Array, bias: Option<&Array>, transposed: bool, groups: usize) -> Result<usize> {
    let Some(n) = w.ndim().checked_sub(2).filter(|n| (1..=3).contains(n)) else {
        bail!(Runtime, "{op}(): weight should have 3, 4 or 5 dimensions, but got weight of size {:?}", w.shape)
    };
    if x.ndim() != n + 2 {
        bail!(
            Runtime,
            "Expected {}D (unbatched) or {}D (batched) input to {op}, but got input of size: {:?}",
            n + 1,
            n + 2,
            x.shape
        );
    }
    if x.dtype != w.dtype {
        bail!(Runtime, "Input type ({}) and weight type ({}) should be the same", x.dtype.torch_name(), w.dtype.torch_name());
    }
    if let Some(b) = bias.filter(|b| b.dtype != x.dtype) {
        bail!(Runtime, "Input type ({}) and bias type ({}) should be the same", x.dtype.torch_name(), b.dtype.torch_name());
    }
    if !x.dtype.is_float() {
        return Err(Box::new(crate::error::Error::Unsupported { op: "convolution", dtype: x.dtype }));
    }
    if w.shape[0] % groups != 0 || w.shape[0] < groups {
        bail!(Runtime, "Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got weight of size {:?} instead", w.shape);
    }
    let expected = if transposed { w.shape[0] } else { w.shape[1] * groups };
    if x.shape[1] != expected {
        bail!(
            Runtime,
            "Given {}groups={groups}, weight of size {:?}, expected input{:?} to have {expected} channels, but got {} channels instead",
            if transposed { "transposed=1, " } else { "" },
            w.shape,
            x.shape,
            x.shape[1]
        );
    }
    let out = if transposed { w.shape[1] * groups } else { w.shape[0] };
    if let Some(b) = bias.filter(|b| b.shape[..] != [out]) {
        bail!(
            Runtime,
            "Given weight of size {:?}, expected bias to be 1-dimensional with {out} elements, but got bias of size {:?} instead",
            w.shape,
            b.shape
        );
    }
    Ok(n)
}
fn lengths(s: &[usize]) -> Ints {
    Ints::of(s)
}
op_many! {
    /// A convolution, or a transposed one, over one to three spatial dimensions.
    ConvolutionBackward0 = fn convolve(input, weight, bias | optional; stride: Ints, padding: Ints, dilation: Ints, transposed: bool, output_padding: Ints, groups: i64) -> [result];
    schema "convolution";
    overload convolution;
    on [function];
    forward {
        let op = if *transposed { "conv_transpose" } else { "conv" };
        let op = format!("{op}{}d", weight.ndim().saturating_sub(2));
        let way = Way::new(&op, weight.ndim().saturating_sub(2), stride, padding, dilation, *groups)?;
        let n = check(&op, input, weight, bias, *transposed, way.groups)?;
        if !transposed {
            return Ok(smallvec![products::convolution(input, weight, bias, way.geometry())?]);
        }
        let more = each(&op, "output_padding", output_padding, n, 0)?;
        if (0..n).any(|i| more[i] >= way.stride[i] && more[i] >= way.dilation[i]) {
            bail!(Runtime, "output padding must be smaller than either stride or dilation, but got output_padding: {more:?} stride: {:?} dilation: {:?}", way.stride, way.dilation);
        }
        let image = way.grown(&input.shape[2..], &weight.shape[2..], &more)?;
        Ok(smallvec![products::transposed(input, weight, bias, &image, way.geometry())?])
    };
    saves [input, weight];
    shows { bias_sym_sizes_opt: if cx.inputs[2].edge.is_none() { Attr::Ints(vec![]) } else { cx.shape(2).attr() } };
    grad(g, cx) {
        input uses [weight] => {
            let (Some(g), Some(weight)) = (&g[0], weight) else { return Ok(()) };
            by_image(g, weight, &cx.shape(0)[2..], [stride, padding, dilation], *transposed, *groups).map(Some)
        },
        weight uses [input] => {
            let (Some(g), Some(input)) = (&g[0], input) else { return Ok(()) };
            let (image, grad) = if *transposed { (g, input) } else { (input, g) };
            conv_by_weight(image, grad, stride.clone(), padding.clone(), dilation.clone(), *groups, Sizes::of(&cx.shape(1))).map(Some)
        },
        bias uses [] => {
            let Some(g) = &g[0] else { return Ok(()) };
            let rest = (0..g.ndim() as i64).filter(|d| *d != 1).collect();
            sum_dim(g, Some(Ints(rest)), false, None).map(Some)
        },
    }
}
/// The gradient of a convolution by its input, of spatial lengths `image`: the convolution of the other kind.
fn by_image(g: &Tensor, weight: &Tensor, image: &[usize], [stride, padding, dilation]: [&Ints; 3], transposed: bool, groups: i64) -> Result<Tensor> {
    let n = image.len();
    let way = Way::new("convolution", n, stride, padding, dilation, groups)?;
    let more = if transposed { vec![0; n] } else {
        let least = way.grown(&g.shape()[2..], &weight.shape()[2..], &way.padding.iter().map(|p| 2 * p).collect::<Vec<_>>())?;
        (0..n).map(|i| image[i] + 2 * way.padding[i] - least[i]).collect()
    };
    let grad = if more.iter().zip(&way.stride).zip(&way.dilation).any(|((m, s), d)| m >= s && m >= d) {
        conv_by_image(g, weight, stride.clone(), padding.clone(), dilation.clone(), groups, lengths(image))?
    } else {
        convolution_of(g, weight, None, [stride.clone(), padding.clone(), dilation.clone()], !transposed, lengths(&more), groups)?
    };
    // what the last windows met of the output padding belongs to no input
    (0..n).try_fold(grad, |t, i| if t.shape()[2 + i] == image[i] { Ok(t) } else { narrow(&t, 2 + i as i64, 0, image[i] as i64) })
}
op! {
    /// Gradient of a convolution by its image where no output padding gives the lengths `image`.
    ConvolutionBackward0 = fn conv_by_image(grad_output, weight; stride: Ints, padding: Ints, dilation: Ints, groups: i64, image: Ints);
    on [private];
    forward(_out) {
        let way = Way::new("convolution", image.len(), stride, padding, dilation, *groups)?;
        let image: Vec<usize> = image.iter().map(|&v| v as usize).collect();
        products::transposed(grad_output, weight, None, &image, way.geometry())
    };
    saves [grad_output, weight];
    grad(g, cx) {
        grad_output uses [weight] => convolution_of(g, weight, None, [stride.clone(), padding.clone(), dilation.clone()], false, Ints::of(&[0]), *groups),
        weight uses [grad_output] => conv_by_weight(g, grad_output, stride.clone(), padding.clone(), dilation.clone(), *groups, Sizes::of(&cx.shape(1))),
    }
}
op! {
    /// Gradient of a convolution by its weight, from its image and the gradient of its result.
    ConvolutionBackwardBackward0 = fn conv_by_weight(input, grad_output; stride: Ints, padding: Ints, dilation: Ints, groups: i64, weight_size: Sizes);
    on [private];
    forward(_out) {
        let way = Way::new("convolution", weight_size.len().saturating_sub(2), stride, padding, dilation, *groups)?;
        products::by_weight(input, grad_output, weight_size.iter().map(|&v| v as usize).collect(), way.geometry())
    };
    saves [input, grad_output];
    grad(g, cx) {
        input uses [grad_output] => by_image(grad_output, g, &cx.shape(0)[2..], [stride, padding, dilation], false, *groups),
        grad_output uses [input] => {
            let out = convolution_of(input, g, None, [stride.clone(), padding.clone(), dilation.clone()], false, Ints::of(&[0]), *groups)?;
            let shape = cx.shape(1);
            (2..shape.len()).try_fold(out, |t, i| if t.shape()[i] == shape[i] { Ok(t) } else { narrow(&t, i as i64, 0, shape[i] as i64) })
        },
    }
}
fn convolution_of(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, [stride, padding, dilation]: [Ints; 3], transposed: bool, more: Ints, groups: i64) -> Result<Tensor> {
    Ok(convolve(x, w, bias, stride, padding, dilation, transposed, more, groups)?.swap_remove(0))
}
fn plain(v: &Ints, n: usize) -> Ints {
    if v.len() == 1 { Ints((0..n).map(|_| v[0]).collect()) } else { v.clone() }
}
/// A convolution of a batch, or of one image.
fn any_batch(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, way: [Ints; 3], transposed: bool, more: Ints, groups: i64, n: usize) -> Result<Tensor> {
    let (way, more) = (way.map(|v| plain(&v, n)), plain(&more, n));
    let name = if transposed { "conv_transpose" } else { "conv" };
    if w.ndim() != n + 2 || (x.ndim() != n + 1 && x.ndim() != n + 2) {
        bail!(
            Runtime,
            "Expected {}D (unbatched) or {}D (batched) input to {name}{n}d, but got input of size: {:?} (and weight of size {:?})",
            n + 1,
            n + 2,
            x.shape(),
            w.shape()
        );
    }
    if x.ndim() == n + 2 {
        return convolution_of(x, w, bias, way, transposed, more, groups);
    }
    squeeze_dim(&convolution_of(&unsqueeze(x, 0)?, w, bias, way, transposed, more, groups)?, 0)
}
/// Padding by name: "valid" is none, "same" keeps the lengths.
fn named(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, stride: Ints, padding: &str, dilation: Ints, groups: i64, n: usize) -> Result<Tensor> {
    match padding {
        "valid" => return any_batch(x, w, bias, [stride, Ints::of(&[0]), dilation], false, Ints::of(&[0]), groups, n),
        "same" => {}
        _ => bail!(Runtime, "Invalid padding string: '{padding}'"),
    }
    if stride.iter().any(|s| *s != 1) {
        bail!(Runtime, "padding='same' is not supported for strided convolutions");
    }
    if w.ndim() != n + 2 || x.ndim() < n {
        return any_batch(x, w, bias, [stride, Ints::of(&[0]), dilation], false, Ints::of(&[0]), groups, n);
    }
    let (gap, kernel) = (plain(&dilation, n), w.shape());
    let total: Vec<i64> = (0..n).map(|i| gap[i] * (kernel[2 + i] as i64 - 1)).collect();
    let edge: Ints = Ints(total.iter().map(|t| t / 2).collect());
    let uneven: Sizes = Sizes(total.iter().rev().flat_map(|t| [0, t % 2]).collect());
    let x = if uneven.iter().any(|v| *v != 0) { constant_pad_nd(x, Ints(uneven.0), Scalar::Int(0))? } else { x.clone() };
    any_batch(&x, w, bias, [stride, edge, dilation], false, Ints::of(&[0]), groups, n)
}
macro_rules! convolutions { ($($n:literal $conv:ident $named:ident $transposed:ident $doc:literal;)*) => { $(
    function! {
        #[doc = $doc]
        fn $conv(input, weight, bias | optional; stride: Ints = Ints::of(&[1]), padding: Ints = Ints::of(&[0]), dilation: Ints = Ints::of(&[1]), groups: i64 = 1) -> Tensor;
        on [function];
        { any_batch(input, weight, bias, [stride, padding, dilation], false, Ints::of(&[0]), groups, $n) }
    }
    function! {
        /// With padding "valid" (none) or "same" (the lengths stay as they are).
        fn $named(input, weight, bias | optional; stride: Ints = Ints::of(&[1]), padding: String = "valid".to_string(), dilation: Ints = Ints::of(&[1]), groups: i64 = 1) -> Tensor;
        overload $conv;
        on [function];
        { named(input, weight, bias, stride, &padding, dilation, groups, $n) }
    }
    function! {
        /// The gradient of a convolution by its input, as an operation.
        fn $transposed(input, weight, bias | optional; stride: Ints = Ints::of(&[1]), padding: Ints = Ints::of(&[0]), output_padding: Ints = Ints::of(&[0]), groups: i64 = 1, dilation: Ints = Ints::of(&[1])) -> Tensor;
        on [function];
        { any_batch(input, weight, bias, [stride, padding, dilation], true, output_padding, groups, $n) }
    }
)* } }
convolutions! {
    1 conv1d conv1d_named conv_transpose1d " The correlation of (N, C, L) or (C, L) with a kernel [channels out, channels / groups, K].";
    2 conv2d conv2d_named conv_transpose2d " The correlation of (N, C, H, W) or (C, H, W) with a kernel [channels out, channels / groups, KH, KW].";
    3 conv3d conv3d_named conv_transpose3d " The correlation of (N, C, D, H, W) or (C, D, H, W) with a kernel [channels out, channels / groups, KD, KH, KW].";
}
