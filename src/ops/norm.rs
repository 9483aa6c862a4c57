//! Normalisation. Gradients are one kernel call; where they are to be differentiated again (the graph of backward is being recorded) they
//! are composed of public ops instead, from the operand rather than from saved statistics.
use super::macros::{function, op_many};
use super::unary::{plus, times};
use super::*;
use crate::error::bail;
use crate::kernels::norm as lines;
use crate::layout::given_size;
use crate::tape::{grad_enabled, record::move_state};
use smallvec::smallvec;

const ONE: Scalar = Scalar::Int(1);
fn ints(d: impl Iterator<Item = usize>) -> Ints {
    Ints(d.map(|v| v as i64).collect())
}
fn reshaped(t: &Tensor, shape: &[usize]) -> Result<Tensor> {
    reshape(t, Sizes::of(shape))
}
fn arrays<const N: usize>(t: [&Option<Tensor>; N]) -> [Option<Array>; N] {
    t.map(|t| t.as_ref().map(Tensor::array))
}
fn tensors(grads: lines::Grads) -> Vec<Option<Tensor>> {
    grads.into_iter().map(|g| g.map(Tensor::new)).collect()
}
fn there(t: Option<Tensor>, op: &str) -> Result<Tensor> {
    match t {
        Some(t) => Ok(t),
        None => bail!(Runtime, "{op}: a saved value was not kept"),
    }
}
/// How an operand is seen by a norm: in which shape, over which axes statistics are taken, and over which the gradients of weight and bias
/// are summed.
struct Plan {
    shape: Dims,
    stats: Ints,
    rows: Ints,
}
impl Plan {
    fn mean(&self, t: &Tensor) -> Result<Tensor> {
        let n: usize = self.stats.iter().map(|&d| self.shape[d as usize]).product();
        times(&sum_dim(t, Some(self.stats.clone()), true, None)?, 1.0 / n as f64)
    }
    /// The gradients by operand, weight (`w`, which broadcasts to the plan's shape) and bias as a composition, those that are wanted.
    fn gradients(&self, g: &Tensor, x: &Tensor, w: Option<&Tensor>, eps: f64, wanted: [bool; 3]) -> Result<[Option<Tensor>; 3]> {
        let (g, x) = (reshaped(g, &self.shape)?, reshaped(x, &self.shape)?);
        let centred = sub(&x, &self.mean(&x)?, ONE)?;
        let rstd = rsqrt(&plus(&self.mean(&mul(&centred, &centred)?)?, eps)?)?;
        let normal = mul(&centred, &rstd)?;
        self.with(&g, &normal, wanted, |g| {
            let g = w.map_or(Ok(g.clone()), |w| mul(g, w))?;
            let along = mul(&normal, &self.mean(&mul(&g, &normal)?)?)?;
            mul(&rstd, &sub(&sub(&g, &self.mean(&g)?, ONE)?, &along, ONE)?)
        })
    }
    fn with(
        &self,
        g: &Tensor,
        normal: &Tensor,
        wanted: [bool; 3],
        by_x: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<[Option<Tensor>; 3]> {
        let rows = |t: &Tensor| if self.rows.is_empty() { Ok(t.clone()) } else { sum_dim(t, Some(self.rows.clone()), true, None) };
        Ok([
            wanted[0].then(|| by_x(g)).transpose()?,
            wanted[1].then(|| rows(&mul(g, normal)?)).transpose()?,
            wanted[2].then(|| rows(g)).transpose()?,
        ])
    }
}
/// Gradients of a composition, in the shapes and types of the inputs they belong to.
fn settled(grads: [Option<Tensor>; 3], cx: &crate::tape::Cx<'_>) -> Result<Vec<Option<Tensor>>> {
    let one = |(i, g): (usize, Option<Tensor>)| g.map(|g| to_dtype(&reshaped(&g, &cx.shape(i))?, cx.dtype(i))).transpose();
    grads.into_iter().enumerate().map(one).collect()
}

fn lengths(op: &'static str, normalized: &Ints) -> Result<Dims> {
    if normalized.is_empty() {
        bail!(
            Runtime,
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got normalized_shape = []"
        );
    }
    given_size(op, normalized)
}
op_many! {
    /// Layer norm: the result, and mean and 1 / sqrt(variance + eps) of each line.
    NativeLayerNormBackward0 = fn native_layer_norm(input, weight | optional, bias | optional; normalized_shape: Ints, eps: f64) -> [result0; nondiff result1, result2];
    on [function];
    order [input, normalized_shape, weight, bias, eps];
    forward {
        let (out, mean, rstd) = lines::layer_norm(input, &lengths("layer_norm", normalized_shape)?, weight, bias, *eps)?;
        Ok(smallvec![out, mean, rstd])
    };
    saves [input, weight, bias, result1, result2];
    together(g, cx; input, weight, result1, result2) {
        input uses [input, weight, bias, result1, result2],
        weight uses [input, weight, bias, result1, result2],
        bias uses [input, weight, bias, result1, result2],
    } => {
        let Some(g) = &g[0] else { return Ok(()) };
        let (x, w) = (there(input()?, "layer_norm")?, weight()?);
        let wanted = [0, 1, 2].map(|i| cx.needs(i));
        let normalized = lengths("layer_norm", normalized_shape)?;
        if grad_enabled() {
            let (shape, lead) = (cx.shape(0), cx.shape(0).len() - normalized.len());
            let plan = Plan { shape, stats: ints(lead..shape.len()), rows: ints(0..lead) };
            settled(plan.gradients(g, &x, w.as_ref(), *eps, wanted)?, cx)
        } else {
            let [mean, rstd, w] = arrays([&result1()?, &result2()?, &w]);
            let rstd = rstd.expect("saved beside the input");
            Ok(tensors(lines::layer_norm_backward(&g.array(), &x.array(), &normalized, mean.as_ref(), &rstd, w.as_ref(), wanted)?))
        }
    };
}
function! {
    /// Normalised over the trailing dimensions `normalized_shape`: (x - mean) / sqrt(variance + eps), times `weight`, plus `bias`.
    fn layer_norm(input, weight | optional, bias | optional; normalized_shape: Ints, eps: f64 = 1e-5, cudnn_enable: bool = true) -> Tensor;
    on [function];
    order [input, normalized_shape, weight, bias, eps, cudnn_enable];
    {
        let _ = cudnn_enable;
        Ok(native_layer_norm(input, weight, bias, normalized_shape, eps)?.swap_remove(0))
    }
}
op_many! {
    /// Batch norm: the result, and in training mean and 1 / sqrt(variance + eps) of each channel. Moves the running statistics.
    NativeBatchNormBackward0 = fn native_batch_norm(input, weight | optional, bias | optional, running_mean | optional, running_var | optional; training: bool, momentum: f64, eps: f64) -> [result0; nondiff result1, result2];
    on [function];
    state [running_mean, running_var];
    forward {
        let running = running_mean.zip(running_var);
        let n = lines::batch_norm(input, weight, bias, running, *training, *momentum, *eps)?;
        if let (Some((mean, var)), Some((next_mean, next_var))) = (running, &n.running) {
            move_state(mean, next_mean)?;
            move_state(var, next_var)?;
        }
        let none = || Array::empty(Dims::of(&[0]), n.mean.dtype);
        Ok(if *training { smallvec![n.out, n.mean, n.invstd] } else { smallvec![n.out, none()?, none()?] })
    };
    saves [input, weight, running_mean, running_var, result1, result2];
    together(g, cx; input, weight, running_mean, running_var, result1, result2) {
        input uses [input, weight, running_mean, running_var, result1, result2],
        weight uses [input, weight, running_mean, running_var, result1, result2],
        bias uses [input, weight, running_mean, running_var, result1, result2],
    } => {
        let Some(g) = &g[0] else { return Ok(()) };
        let (x, w) = (there(input()?, "batch_norm")?, weight()?);
        let wanted = [0, 1, 2].map(|i| cx.needs(i));
        let fixed = if *training { None } else { running_mean()?.zip(running_var()?) };
        let fixed = fixed.map(|(mean, var)| Ok::<_, Box<crate::error::Error>>((mean, rsqrt(&plus(&var, *eps)?)?))).transpose()?;
        if grad_enabled() {
            let shape = cx.shape(0);
            let plan = Plan { shape, stats: ints((0..shape.len()).filter(|&d| d != 1)), rows: ints((0..shape.len()).filter(|&d| d != 1)) };
            let wide: Vec<usize> = (0..shape.len()).map(|d| if d == 1 { shape[1] } else { 1 }).collect();
            let w = w.map(|w| reshaped(&w, &wide)).transpose()?;
            let grads = match fixed {
                None => plan.gradients(g, &x, w.as_ref(), *eps, wanted)?,
                Some((mean, invstd)) => {
                    let (mean, invstd) = (reshaped(&mean, &wide)?, reshaped(&invstd, &wide)?);
                    let normal = mul(&sub(&x, &mean, ONE)?, &invstd)?;
                    plan.with(g, &normal, wanted, |g| mul(&w.as_ref().map_or(Ok(g.clone()), |w| mul(g, w))?, &invstd))?
                }
            };
            settled(grads, cx)
        } else {
            let (mean, invstd) = match fixed {
                Some((mean, invstd)) => (mean, invstd),
                None => (there(result1()?, "batch_norm")?, there(result2()?, "batch_norm")?),
            };
            let [w] = arrays([&w]);
            Ok(tensors(lines::batch_norm_backward(&g.array(), &x.array(), w.as_ref(), &mean.array(), &invstd.array(), *training, wanted)?))
        }
    };
}
function! {
    /// Normalised over all dimensions but the second: by the statistics of the batch in training (which then move the running ones), else by
    /// the running ones.
    fn batch_norm(input, weight | optional, bias | optional, running_mean | optional, running_var | optional; training: bool, momentum: f64, eps: f64, cudnn_enabled: bool) -> Tensor;
    on [function];
    {
        let _ = cudnn_enabled;
        Ok(native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)?.swap_remove(0))
    }
}
op_many! {
    /// Group norm: the result, and mean and 1 / sqrt(variance + eps) of each group of each image.
    NativeGroupNormBackward0 = fn native_group_norm(input, weight | optional, bias | optional; group: i64, eps: f64) -> [result0; nondiff result1, result2];
    on [private];
    forward {
        let (out, mean, rstd) = lines::group_norm(input, (*group).max(0) as usize, weight, bias, *eps)?;
        Ok(smallvec![out, mean, rstd])
    };
    saves [input, weight, result1, result2];
    shows { N: cx.shape(0)[0].attr(), C: cx.shape(0)[1].attr(), HxW: cx.shape(0)[2..].iter().product::<usize>().attr() };
    together(g, cx; input, weight, result1, result2) {
        input uses [input, weight, result1, result2],
        weight uses [input, weight, result1, result2],
        bias uses [input, weight, result1, result2],
    } => {
        let Some(g) = &g[0] else { return Ok(()) };
        let (x, w) = (there(input()?, "group_norm")?, weight()?);
        let wanted = [0, 1, 2].map(|i| cx.needs(i));
        let groups = *group as usize;
        if grad_enabled() {
            let shape = cx.shape(0);
            let (each, inner) = (shape[1] / groups, shape[2..].iter().product());
            let plan = Plan { shape: Dims::of(&[shape[0], groups, each, inner]), stats: ints(2..4), rows: ints([0, 3].into_iter()) };
            let w = w.map(|w| reshaped(&w, &[1, groups, each, 1])).transpose()?;
            settled(plan.gradients(g, &x, w.as_ref(), *eps, wanted)?, cx)
        } else {
            let (mean, rstd) = (there(result1()?, "group_norm")?, there(result2()?, "group_norm")?);
            let [w] = arrays([&w]);
            Ok(tensors(lines::group_norm_backward(&g.array(), &x.array(), &mean.array(), &rstd.array(), w.as_ref(), groups, wanted)?))
        }
    };
}
function! {
    /// Normalised over `num_groups` groups of channels of each image.
    fn group_norm(input, weight | optional, bias | optional; num_groups: i64, eps: f64 = 1e-5, cudnn_enabled: bool = true) -> Tensor;
    on [function];
    order [input, num_groups, weight, bias, eps, cudnn_enabled];
    {
        let _ = cudnn_enabled;
        if num_groups <= 0 {
            bail!(Runtime, "Expected num groups to be greater than 0, got {num_groups}");
        }
        Ok(native_group_norm(input, weight, bias, num_groups, eps)?.swap_remove(0))
    }
}
