//! Losses. `reduction` is torch's number: 0 gives every element, 1 their mean, 2 their sum. Gradients are ops of their own or compositions, so
//! that any order of derivative works.
use super::arith::scaled;
use super::macros::{function, op, op_many};
use super::*;
use crate::dtype::promote;
use crate::error::{Error, bail};
use crate::kernels::loss::{self, Reduction};
use crate::kernels::{Out, pointwise, reduce, table};
use crate::layout::broadcast;
use crate::ops::reduce::needed;
use crate::ops::unary::{plus, times, zeros_of};
use smallvec::smallvec;

const ONE: Scalar = Scalar::Int(1);

/// A loss that goes element by element, reduced.
fn elementwise(out: Out<'_>, op: &'static str, reduction: i64, k: &dyn table::Kernel<2>, x: [&Array; 2]) -> Result<Array> {
    let dtype = promote(x.map(|a| (a.dtype, a.rank())));
    if !dtype.is_float() {
        return Err(Box::new(Error::Unsupported { op, dtype }));
    }
    reduced(out, op, reduction, |out| pointwise::run(out, op, k, x))
}
fn reduced(out: Out<'_>, op: &'static str, reduction: i64, each: impl FnOnce(Out<'_>) -> Result<Array>) -> Result<Array> {
    let _ = op;
    match Reduction::of(reduction)? {
        Reduction::None => each(out),
        Reduction::Mean => each(Out(None)).and_then(|a| reduce::mean(&a, reduce::Axes::All, false, a.dtype)),
        Reduction::Sum => each(Out(None)).and_then(|a| reduce::sum(&a, reduce::Axes::All, false, a.dtype)),
    }
}
/// The same of a tensor, recorded.
fn reduced_tensor(t: Tensor, reduction: i64) -> Result<Tensor> {
    match Reduction::of(reduction)? {
        Reduction::None => Ok(t),
        Reduction::Mean => mean(&t, None),
        Reduction::Sum => sum(&t, None),
    }
}
/// By what a gradient is multiplied: 1, or 1 over the number of elements where their mean was taken.
fn share(reduction: i64, shapes: [&Dims; 2]) -> Result<f64> {
    Ok(if reduction == 1 { 1.0 / broadcast("loss", shapes[0], shapes[1])?.numel() as f64 } else { 1.0 })
}
fn norm(reduction: i64, x: [&Array; 2], factor: f64) -> Result<Scalar> {
    Ok(Scalar::Float(factor * share(reduction, [&x[0].shape, &x[1].shape])?))
}
/// `g` times the share of an element.
fn shared_out(g: &Tensor, reduction: i64, of: &Tensor, other: &Tensor) -> Result<Tensor> {
    let s = share(reduction, [&of.shape(), &other.shape()])?;
    scaled(g, if s == 1.0 { ONE } else { Scalar::Float(s) })
}

/// A loss of a difference: the loss, its gradient, and the second derivative `|g, grad_output, x, target, share|` by the first operand.
macro_rules! of_differences {
    ($($(#[doc = $doc:literal])* $node:ident $name:ident $back_node:ident $back:ident ($($attr:ident = $default:literal)?) [$($check:expr)?] $kernel:expr, |$norm:ident| $back_kernel:expr, |$v:ident, $go:ident, $x:ident, $t:ident, $s:ident| $second:expr;)*) => { $(
        op! {
            $(#[doc = $doc])*
            $node = fn $name(self_, target; reduction: i64 = 1 $(, $attr: f64 = $default)?);
            on [nn];
            forward(out) {
                $($check)?
                elementwise(out, stringify!($name), *reduction, &$kernel, [self_, target])
            };
            saves [self_, target];
            grad(g, cx) {
                self_ uses [self_, target] => $back(g, self_, target, *reduction $(, *$attr)?),
                target uses [self_, target] => $back(g, target, self_, *reduction $(, *$attr)?),
            }
        }
        op! {
            /// Gradient of the loss by its first operand.
            $back_node = fn $back(grad_output, self_, target; reduction: i64 $(, $attr: f64)?);
            on [private];
            forward(out) {
                let $norm = norm(*reduction, [self_, target], 1.0)?;
                pointwise::run(out, stringify!($back), &$back_kernel, [grad_output, self_, target])
            };
            saves [grad_output, self_, target];
            grad(g, cx) {
                grad_output uses [self_, target] => $back(g, self_, target, *reduction $(, *$attr)?),
                self_ uses [grad_output, self_, target] => {
                    let ($v, $go, $x, $t, $s) = (g, grad_output, self_, target, share(*reduction, [&cx.shape(1), &cx.shape(2)])?);
                    $second
                },
                target uses [grad_output, self_, target] => {
                    let ($v, $go, $x, $t, $s) = (g, grad_output, self_, target, share(*reduction, [&cx.shape(1), &cx.shape(2)])?);
                    neg(&$second?)
                },
            }
        }
    )* };
}
/// `v * go * s` where |x - t| < edge, else 0.
fn inside(v: &Tensor, go: &Tensor, x: &Tensor, t: &Tensor, s: f64, edge: f64) -> Result<Tensor> {
    let within = lt(&abs(&sub(x, t, ONE)?)?, &number(edge)?)?;
    where_(&within, &times(&mul(v, go)?, s)?, &number(0.0)?)
}
fn twice(s: Scalar) -> Scalar {
    Scalar::Float(2.0 * s.to_f64())
}
of_differences! {
    /// Squared difference.
    MseLossBackward0 mse_loss MseLossBackwardBackward0 mse_loss_backward () []
        table::SquaredError {}, |norm| table::SquaredErrorBackward { norm: twice(norm) },
        |v, go, x, t, s| { let _ = (x, t); times(&mul(v, go)?, 2.0 * s) };
    /// Half the squared difference over `beta` where that is below `beta`, else the difference less `beta` / 2 (Girshick 2015).
    SmoothL1LossBackward0 smooth_l1_loss SmoothL1LossBackwardBackward0 smooth_l1_loss_backward (beta = 1.0)
        [if *beta < 0.0 { bail!(Runtime, "smooth_l1_loss does not support negative values for beta, got {beta}") }]
        table::SmoothL1 { beta: Scalar::Float(*beta) }, |norm| table::SmoothL1Backward { norm, beta: Scalar::Float(*beta) },
        |v, go, x, t, s| if *beta == 0.0 { zeros_of(v) } else { inside(v, go, x, t, s / *beta, *beta) };
    /// Half the squared difference where it is at most `delta`, else `delta` times (the difference less `delta` / 2) (Huber 1964).
    HuberLossBackward0 huber_loss HuberLossBackwardBackward0 huber_loss_backward (delta = 1.0)
        [if *delta <= 0.0 { bail!(Runtime, "huber_loss does not support non-positive values for delta, got {delta}") }]
        table::Huber { delta: Scalar::Float(*delta) }, |norm| table::HuberBackward { norm, delta: Scalar::Float(*delta) },
        |v, go, x, t, s| inside(v, go, x, t, s, *delta);
}
function! {
    /// Absolute difference.
    fn l1_loss(self_, target; reduction: i64 = 1) -> Tensor;
    on [nn];
    { reduced_tensor(abs(&sub(self_, target, ONE)?)?, reduction) }
}

// ---- probabilities ----
/// `t * weight`, if there is one.
fn weighted(t: Tensor, weight: &Option<Tensor>) -> Result<Tensor> {
    weight.as_ref().map_or_else(|| Ok(t.clone()), |w| mul(&t, w))
}
fn weighted_array(out: Out<'_>, op: &'static str, a: Array, weight: Option<&Array>) -> Result<Array> {
    weight.map_or_else(|| Ok(a.clone()), |w| pointwise::run(out, op, &table::Mul {}, [&a, w]))
}
op! {
    /// `-(target log(self) + (1 - target) log(1 - self))`, each logarithm at least -100.
    ///
    /// Raises RuntimeError for elements of `self` outside [0, 1].
    BinaryCrossEntropyBackward0 = fn binary_cross_entropy(self_, target, weight | optional; reduction: i64 = 1);
    on [nn];
    forward(out) {
        if self_.numel() > 0 {
            let (lo, hi) = reduce::aminmax(self_, None, false)?;
            if !(lo.item().to_f64() >= 0.0 && hi.item().to_f64() <= 1.0) {
                bail!(Runtime, "binary_cross_entropy(): all elements of input should be between 0 and 1, they are from {} to {}", lo.item().to_f64(), hi.item().to_f64());
            }
        }
        floats("binary_cross_entropy", [self_])?;
        reduced(out, "binary_cross_entropy", *reduction, |out| {
            let each = pointwise::run(out, "binary_cross_entropy", &table::BinaryCrossEntropy {}, [self_, target])?;
            weighted_array(out, "binary_cross_entropy", each, weight)
        })
    };
    saves [self_, target, weight];
    grad(g, cx) {
        self_ uses [self_, target, weight: optional] => binary_cross_entropy_backward(g, self_, target, weight.as_ref(), *reduction),
        target uses [self_, target, weight: optional] => {
            let d = neg(&mul(&logit(self_, None)?, &shared_out(g, *reduction, self_, target)?)?)?;
            weighted(d, weight)
        },
    }
}
op! {
    /// Gradient of `binary_cross_entropy` by its operand.
    BinaryCrossEntropyBackwardBackward0 = fn binary_cross_entropy_backward(grad_output, self_, target, weight | optional; reduction: i64);
    on [private];
    forward(out) {
        let d = pointwise::run(out, "binary_cross_entropy_backward", &table::BinaryCrossEntropyBackward {}, [grad_output, self_, target])?;
        let d = weighted_array(out, "binary_cross_entropy_backward", d, weight)?;
        match norm(*reduction, [self_, target], 1.0)? {
            Scalar::Float(1.0) => Ok(d),
            s => pointwise::run(out, "binary_cross_entropy_backward", &table::Mul {}, [&d, &Array::number(s)?]),
        }
    };
    saves [grad_output, self_, target, weight];
    grad(g, cx) {
        grad_output uses [self_, target, weight: optional] => binary_cross_entropy_backward(g, self_, target, weight.as_ref(), *reduction),
        // d/dx of (x - t) / (x (1 - x)) = (x^2 - 2 x t + t) / (x (1 - x))^2
        self_ uses [grad_output, self_, target, weight: optional] => {
            let spread = clamp_min(&mul(self_, &plus(&neg(self_)?, 1.0)?)?, Scalar::Float(1e-6))?;
            let up = add(&mul(self_, &sub(self_, &times(target, 2.0)?, ONE)?)?, target, ONE)?;
            let d = mul(&mul(g, &shared_out(grad_output, *reduction, self_, target)?)?, &div(&up, &mul(&spread, &spread)?)?)?;
            weighted(d, weight)
        },
        target uses [grad_output, self_, target, weight: optional] => {
            let spread = clamp_min(&mul(self_, &plus(&neg(self_)?, 1.0)?)?, Scalar::Float(1e-12))?;
            weighted(neg(&div(&mul(g, &shared_out(grad_output, *reduction, self_, target)?)?, &spread)?)?, weight)
        },
    }
}
op! {
    /// `binary_cross_entropy` of `sigmoid(self)`, without overflow; `pos_weight` multiplies the term of the target.
    BinaryCrossEntropyWithLogitsBackward0 = fn binary_cross_entropy_with_logits(self_, target, weight | optional, pos_weight | optional; reduction: i64 = 1);
    on [function];
    forward(out) reduced(out, "binary_cross_entropy_with_logits", *reduction, |out| {
        const OP: &str = "binary_cross_entropy_with_logits";
        floats(OP, [self_])?;
        let each = match pos_weight {
            None => pointwise::run(out, OP, &table::BinaryCrossEntropyLogits {}, [self_, target]),
            Some(p) => pointwise::run(out, OP, &table::BinaryCrossEntropyLogitsWeighted {}, [self_, target, p]),
        };
        weighted_array(out, OP, each?, weight)
    });
    saves [self_, target, weight, pos_weight];
    grad(g, cx) {
        self_ uses [self_, target, weight: optional, pos_weight: optional] => {
            let slope = match pos_weight {
                None => sub(&sigmoid(self_)?, target, ONE)?,
                Some(p) => {
                    let t = mul(p, target)?;
                    sub(&mul(&sub(&plus(&t, 1.0)?, target, ONE)?, &sigmoid(self_)?)?, &t, ONE)?
                }
            };
            weighted(mul(&slope, &shared_out(g, *reduction, self_, target)?)?, weight)
        },
        target uses [self_, target, weight: optional, pos_weight: optional] => {
            let slope = match pos_weight {
                None => neg(self_)?,
                Some(p) => sub(&log_sigmoid(&neg(self_)?)?, &mul(p, &log_sigmoid(self_)?)?, ONE)?,
            };
            weighted(mul(&slope, &shared_out(g, *reduction, self_, target)?)?, weight)
        },
    }
}
function! {
    /// Kullback-Leibler divergence of `target` from log-probabilities; with `log_target` the target is a log-probability too.
    fn kl_div(self_, target; reduction: i64 = 1; *, log_target: bool = false) -> Tensor;
    on [function];
    {
        if !self_.dtype().is_float() {
            bail!(Runtime, "kl_div: Integral inputs not supported, got {}.", self_.dtype().name());
        }
        let each = if log_target {
            mul(&exp(target)?, &sub(target, self_, ONE)?)?
        } else {
            sub(&xlogy(target, target)?, &mul(target, self_)?, ONE)?
        };
        reduced_tensor(each, reduction)
    }
}

// ---- classes by number ----
macro_rules! nll {
    ($($(#[doc = $doc:literal])* $node:ident $forward:ident $name:ident $back_node:ident $back:ident |$input:ident, $target:ident| $check:expr;)*) => { $(
        op_many! {
            $(#[doc = $doc])*
            $node = fn $forward(self_, target, weight | optional; reduction: i64, ignore_index: i64) -> [output; hidden total_weight];
            on [private];
            forward {
                let ($input, $target) = (self_, target);
                $check
                let (out, total) = loss::nll(self_, target, weight, Reduction::of(*reduction)?, *ignore_index)?;
                Ok(smallvec![out, total])
            };
            saves [self_, target, weight, total_weight];
            grad(g, cx) { self_ uses [self_, target, weight, total_weight] => match &g[0] {
                None => Ok(None),
                Some(g) => {
                    let (x, t, total) = (needed(self_)?, needed(target)?, needed(total_weight)?);
                    $back(g, x, t, weight.as_ref(), total, *reduction, *ignore_index).map(Some)
                }
            } }
        }
        op! {
            /// Gradient of the loss by its operand.
            $back_node = fn $back(grad_output, self_, target, weight | optional, total_weight; reduction: i64, ignore_index: i64);
            on [private];
            forward(_out) loss::nll_backward(grad_output, self_, target, weight, total_weight, Reduction::of(*reduction)?, *ignore_index);
            saves [target, weight];
            grad(g, cx) {
                grad_output uses [target, weight: optional] => $name(g, target, weight.as_ref(), *reduction, *ignore_index),
                self_ uses [] => zeros_of(g),
            }
        }
        function! {
            $(#[doc = $doc])*
            fn $name(self_, target, weight | optional; reduction: i64 = 1, ignore_index: i64 = -100) -> Tensor;
            on [nn];
            { Ok($forward(self_, target, weight, reduction, ignore_index)?.swap_remove(0)) }
        }
    )* };
}
nll! {
    /// Minus the log-probability of each target class: [n, classes] and [n], or [classes] and a number. `ignore_index` counts nothing.
    NllLossBackward0 nll_loss_forward nll_loss NllLossBackwardBackward0 nll_loss_backward
        |input, target| if target.ndim() > 1 || input.ndim() > 2 {
            bail!(Runtime, "nll_loss(): 0D or 1D target tensor expected, multi-target not supported: got {:?} for an input of {:?}", target.shape, input.shape);
        };
    /// As `nll_loss`, for images: [n, classes, h, w] and [n, h, w].
    NllLoss2DBackward0 nll_loss2d_forward nll_loss2d NllLoss2DBackwardBackward0 nll_loss2d_backward
        |input, target| if target.ndim() != 3 || input.ndim() != 4 {
            bail!(Runtime, "nll_loss2d(): only batches of spatial targets supported (3D tensors) but got targets of dimension: {}, inputs of {}", target.ndim(), input.ndim());
        };
}
function! {
    /// Minus the log-probability of each target class: [n, classes, ..] and [n, ..], or [classes] and a number.
    ///
    /// Raises ValueError for a batch of another size, IndexError for a class that is not there.
    fn nll_loss_nd(self_, target, weight | optional; reduction: i64 = 1, ignore_index: i64 = -100) -> Tensor;
    on [nn];
    {
        let (x, t) = (self_.shape(), target.shape());
        if x.is_empty() {
            bail!(Value, "Expected 1 or more dimensions (got 0)");
        }
        if x.len() != 1 && t.first() != Some(&x[0]) {
            bail!(Value, "Expected input batch_size ({}) to match target batch_size ({}).", x[0], t.first().copied().unwrap_or(0));
        }
        match x.len() {
            1 | 2 => nll_loss(self_, target, weight, reduction, ignore_index),
            4 => nll_loss2d(self_, target, weight, reduction, ignore_index),
            _ => {
                if t[1..] != x[2..] {
                    bail!(Runtime, "Expected target size {:?}, got {t:?}", [&x[..1], &x[2..]].concat());
                }
                let places: usize = x[2..].iter().product();
                let flat = reshape(self_, Sizes::of(&[x[0], x[1], 1, places]))?;
                let r = nll_loss2d(&flat, &reshape(target, Sizes::of(&[x[0], 1, places]))?, weight, reduction, ignore_index)?;
                if reduction == 0 { view(&r, Sizes::of(&t)) } else { Ok(r) }
            }
        }
    }
}
function! {
    /// Cross entropy of unnormalised scores: with class numbers `nll_loss` of their `log_softmax`; with a target of the scores' shape, class
    /// probabilities. `label_smoothing` mixes the target with the uniform distribution (Szegedy et al. 2016).
    fn cross_entropy_loss(self_, target, weight | optional; reduction: i64 = 1, ignore_index: i64 = -100, label_smoothing: f64 = 0.0) -> Tensor;
    on [nn];
    {
        if !(0.0..=1.0).contains(&label_smoothing) {
            bail!(Runtime, "label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}");
        }
        let class_dim = if self_.ndim() == 1 { 0 } else { 1 };
        let probabilities = self_.shape() == target.shape();
        if probabilities && !target.dtype().is_float() {
            bail!(Runtime, "Expected floating point type for target with class probabilities, got {}", target.dtype().torch_name());
        }
        if probabilities && ignore_index >= 0 {
            bail!(Runtime, "ignore_index is not supported for floating point target");
        }
        let n = *self_.shape().get(class_dim as usize).unwrap_or(&1);
        if let Some(w) = weight
            && w.shape()[..] != [n]
        {
            bail!(Runtime, "cross_entropy: weight tensor should be defined either for all {n} classes or no classes but got weight tensor of shape: {:?}", w.shape());
        }
        let log_p = log_softmax(self_, class_dim, None)?;
        if probabilities {
            return of_probabilities(&log_p, target, weight, reduction, label_smoothing, class_dim);
        }
        let nll = nll_loss_nd(&log_p, target, weight, reduction, ignore_index)?;
        if label_smoothing == 0.0 {
            return Ok(nll);
        }
        let smooth = smoothed(&log_p, target, weight, reduction, ignore_index, class_dim)?;
        add(&mul_scalar(&nll, 1.0 - label_smoothing)?, &mul_scalar(&smooth, label_smoothing / n as f64)?, ONE)
    }
}
/// A weight of classes in the shape of the scores.
fn class_weight(weight: &Tensor, ndim: usize, class_dim: i64) -> Result<Tensor> {
    view(weight, Sizes((0..ndim as i64).map(|d| if d == class_dim { -1 } else { 1 }).collect()))
}
fn of_probabilities(
    log_p: &Tensor,
    target: &Tensor,
    weight: Option<&Tensor>,
    reduction: i64,
    smoothing: f64,
    class_dim: i64,
) -> Result<Tensor> {
    let shape = log_p.shape();
    let n = shape[class_dim as usize] as f64;
    let target = if smoothing > 0.0 { plus(&times(target, 1.0 - smoothing)?, smoothing / n)? } else { target.clone() };
    let mut each = mul(log_p, &target)?;
    if let Some(w) = weight {
        each = mul(&each, &class_weight(w, shape.len(), class_dim)?)?;
    }
    match Reduction::of(reduction)? {
        Reduction::None => neg(&sum_dim(&each, Some(Ints::from_slice(&[class_dim])), false, None)?),
        Reduction::Sum => neg(&sum(&each, None)?),
        Reduction::Mean => div_scalar(&neg(&sum(&each, None)?)?, shape.numel() as f64 / n),
    }
}
/// Minus the sum of the log-probabilities of all classes, weighted, but for ignored targets.
fn smoothed(log_p: &Tensor, target: &Tensor, weight: Option<&Tensor>, reduction: i64, ignore_index: i64, class_dim: i64) -> Result<Tensor> {
    let of = match weight {
        Some(w) => mul(log_p, &class_weight(w, log_p.ndim(), class_dim)?)?,
        None => log_p.clone(),
    };
    let each = neg(&sum_dim(&of, Some(Ints::from_slice(&[class_dim])), false, None)?)?;
    let ignored = eq(target, &number(Scalar::Int(ignore_index))?)?;
    let each = masked_fill(&each, &ignored, Scalar::Int(0))?;
    match (Reduction::of(reduction)?, weight) {
        (Reduction::None, _) => Ok(each),
        (Reduction::Sum, _) => sum(&each, None),
        (Reduction::Mean, None) => div(&sum(&each, None)?, &sum(&logical_not(&ignored)?, None)?),
        (Reduction::Mean, Some(w)) => {
            // Ignored targets read the weight of class 0, which is then left out.
            let class = masked_fill(&to_dtype(target, DType::Int64)?, &ignored, Scalar::Int(0))?;
            let of_target = gather(w, &flatten(&class, 0, -1)?, 0, false)?;
            div(&sum(&each, None)?, &sum(&masked_fill(&of_target, &flatten(&ignored, 0, -1)?, Scalar::Int(0))?, None)?)
        }
    }
}
op! {
    /// `self` times a number of the library's own.
    MulBackward1 = fn mul_scalar(self_; other: f64);
    schema "mul.Scalar";
    on [private];
    forward(out) pointwise::run(out, "mul", &table::Mul {}, [self_, &Array::number(Scalar::Float(*other))?]);
    grad(g, cx) { self_ uses [] => times(g, *other) }
}
op! {
    /// `self` over a number of the library's own.
    DivBackward1 = fn div_scalar(self_; other: f64);
    schema "div.Scalar";
    on [private];
    forward(out) pointwise::run(out, "div", &table::Div {}, [self_, &Array::number(Scalar::Float(*other))?]);
    grad(g, cx) { self_ uses [] => div_scalar(g, *other) }
}

// ---- margins ----
op! {
    /// `log(1 + exp(-target * self))`; targets are 1 and -1.
    SoftMarginLossBackward0 = fn soft_margin_loss(self_, target; reduction: i64 = 1);
    on [nn];
    forward(out) reduced(out, "soft_margin_loss", *reduction, |out| {
        if !self_.dtype.is_float() {
            bail!(Runtime, "soft_margin_loss(): expected a floating point input, got {}", self_.dtype.name());
        }
        let z = pointwise::run(Out(None), "soft_margin_loss", &table::Mul {}, [self_, target])?;
        let l = pointwise::run(Out(None), "soft_margin_loss", &table::LogSigmoid {}, [&z])?;
        pointwise::run(out, "soft_margin_loss", &table::Neg {}, [&l])
    });
    saves [self_, target];
    grad(g, cx) { self_ uses [self_, target] => {
        let slope = neg(&mul(target, &sigmoid(&neg(&mul(target, self_)?)?)?)?)?;
        mul(&slope, &shared_out(g, *reduction, self_, target)?)
    } }
}
op! {
    /// Sum over the classes j but the target t of `max(0, margin - self[t] + self[j])^p`, over the number of classes.
    MultiMarginLossBackward0 = fn multi_margin_loss(self_, target, weight | optional; p: Scalar = Scalar::Int(1), margin: Scalar = Scalar::Int(1), reduction: i64 = 1);
    on [nn];
    order [self_, target, p, margin, weight, reduction];
    forward(out) {
        let p = match p.to_f64() {
            1.0 => 1,
            2.0 => 2,
            p => bail!(Value, "multi_margin_loss(): only p == 1 and p == 2 supported, got {p}"),
        };
        reduced(out, "multi_margin_loss", *reduction, |_| loss::multi_margin(self_, target, p, margin.to_f64(), weight))
    };
    saves [self_, target, weight];
    grad(g, cx) { self_ uses [self_, target, weight: optional] => {
        let last = Some(Ints::from_slice(&[-1]));
        let classes = cx.shape(0).last().copied().unwrap_or(1);
        let t = unsqueeze(target, -1)?;
        let z = plus(&sub(self_, &gather(self_, &t, -1, false)?, ONE)?, margin.to_f64())?;
        let active = scatter_value(&gt(&z, &number(0.0)?)?, &t, -1, Scalar::Bool(false))?;
        let slope = if p.to_f64() == 1.0 { to_dtype(&active, z.dtype())? } else { mul(&times(&z, 2.0)?, &active)? };
        let slope = scatter_add(&slope, &t, &neg(&sum_dim(&slope, last, true, None)?)?, -1)?;
        let slope = match weight { Some(w) => mul(&slope, &unsqueeze(&take(w, target)?, -1)?)?, None => slope };
        let count = if *reduction == 1 { target.numel() } else { 1 };
        let g = if *reduction == 0 { unsqueeze(g, -1)? } else { g.clone() };
        mul(&times(&slope, 1.0 / (classes * count) as f64)?, &g)
    } }
}
