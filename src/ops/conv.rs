//! Convolutions, of which all have one node; the gradients of a convolution are convolutions.
use super::macros::{function, op, op_many};
use super::*;
use crate::error::bail;
use crate::kernels::conv::{self as products, Geometry};
use smallvec::smallvec;

/// Stride, padding and dilation.
type Way = [Ints; 3];
fn geometry<'a>(stride: &'a Ints, padding: &'a Ints, dilation: &'a Ints, groups: i64) -> Geometry<'a> {
    Geometry { stride, padding, dilation, groups }
}
fn lengths(s: &Sizes) -> Vec<usize> {
    s.iter().map(|&v| v as usize).collect()
}
op_many! {
    /// A convolution, or a transposed one, over one to three spatial dimensions.
    ConvolutionBackward0 = fn convolve(input, weight, bias | optional; stride: Ints, padding: Ints, dilation: Ints, transposed: bool, output_padding: Ints, groups: i64) -> [result];
    schema "convolution";
    overload convolution;
    on [function];
    forward {
        let g = geometry(stride, padding, dilation, *groups);
        Ok(smallvec![if *transposed { products::conv_transpose(input, weight, bias, output_padding, g)? } else { products::conv(input, weight, bias, g)? }])
    };
    saves [input, weight];
    shows { bias_sym_sizes_opt: if cx.inputs[2].edge.is_none() { Attr::Ints(vec![]) } else { cx.shape(2).attr() } };
    grad(g, cx) {
        input uses [weight] => {
            let (Some(g), Some(weight)) = (&g[0], weight) else { return Ok(()) };
            if *transposed {
                // what the last windows met of the output padding belongs to no input
                cut(convolution_of(g, weight, None, [stride.clone(), padding.clone(), dilation.clone()], false, Ints::of(&[0]), *groups)?, &cx.shape(0)).map(Some)
            } else {
                conv_by_image(g, weight, stride.clone(), padding.clone(), dilation.clone(), *groups, Sizes::of(&cx.shape(0))).map(Some)
            }
        },
        weight uses [input] => {
            let (Some(g), Some(input)) = (&g[0], input) else { return Ok(()) };
            let (image, grad) = if *transposed { (g, completed(input, g, &cx.shape(1), [stride, padding, dilation])?) } else { (input, g.clone()) };
            conv_by_weight(image, &grad, stride.clone(), padding.clone(), dilation.clone(), *groups, Sizes::of(&cx.shape(1))).map(Some)
        },
        bias uses [] => {
            let Some(g) = &g[0] else { return Ok(()) };
            let rest = (0..g.ndim() as i64).filter(|d| *d != 1).collect();
            sum_dim(g, Some(Ints(rest)), false, None).map(Some)
        },
    }
}
/// The operand of a transposed convolution with a zero for each window of its result `image` that met output padding alone.
fn completed(x: &Tensor, image: &Tensor, weight: &Dims, [stride, padding, dilation]: [&Ints; 3]) -> Result<Tensor> {
    let (have, image) = (x.shape(), image.shape());
    let at = |v: &Ints, i: usize| v[i.min(v.len() - 1)] as usize;
    let missing = |i: usize| {
        let reach = at(dilation, i) * (weight[2 + i] - 1) + 1;
        (image[2 + i] + 2 * at(padding, i)).saturating_sub(reach) / at(stride, i) + 1 - have[2 + i]
    };
    let widths = Ints((0..have.len() - 2).rev().flat_map(|i| [0, missing(i) as i64]).collect());
    if widths.iter().any(|v| *v > 0) { constant_pad_nd(x, widths, Scalar::Int(0)) } else { Ok(x.clone()) }
}
/// `t` with no more than these lengths.
fn cut(t: Tensor, shape: &Dims) -> Result<Tensor> {
    let have = t.shape();
    (2..shape.len()).filter(|&i| have[i] > shape[i]).try_fold(t, |t, i| narrow(&t, i as i64, 0, shape[i] as i64))
}
op! {
    /// Gradient of a convolution by its image, which has `input_size`.
    ConvolutionBackward0 = fn conv_by_image(grad_output, weight; stride: Ints, padding: Ints, dilation: Ints, groups: i64, input_size: Sizes);
    on [private];
    forward(_out) products::conv_input_grad(grad_output, weight, &lengths(input_size), geometry(stride, padding, dilation, *groups));
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
    forward(_out) products::conv_weight_grad(grad_output, input, &lengths(weight_size), geometry(stride, padding, dilation, *groups));
    saves [input, grad_output];
    grad(g, cx) {
        input uses [grad_output] => conv_by_image(grad_output, g, stride.clone(), padding.clone(), dilation.clone(), *groups, Sizes::of(&cx.shape(0))),
        grad_output uses [input] => convolution_of(input, g, None, [stride.clone(), padding.clone(), dilation.clone()], false, Ints::of(&[0]), *groups),
    }
}
fn convolution_of(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    [stride, padding, dilation]: Way,
    transposed: bool,
    more: Ints,
    groups: i64,
) -> Result<Tensor> {
    Ok(convolve(x, w, bias, stride, padding, dilation, transposed, more, groups)?.swap_remove(0))
}
fn plain(v: &Ints, n: usize) -> Ints {
    if v.len() == 1 { Ints((0..n).map(|_| v[0]).collect()) } else { v.clone() }
}
/// A convolution of a batch, or of one image.
#[expect(clippy::too_many_arguments, reason = "a convolution's own parameters")]
fn any_batch(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    way: Way,
    transposed: bool,
    more: Ints,
    groups: i64,
    n: usize,
) -> Result<Tensor> {
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
#[expect(clippy::too_many_arguments, reason = "a convolution's own parameters")]
fn named(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    stride: Ints,
    padding: &str,
    dilation: Ints,
    groups: i64,
    n: usize,
) -> Result<Tensor> {
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
