//! Reductions.
use super::macros::op;
use super::*;
use crate::kernels::reduce::{self, Axes};
use crate::layout::wrap_dims;

/// The axes that `dim` names: all where it is absent or empty, as in torch.
pub(super) fn axes(dim: &Option<Ints>, ndim: usize) -> Result<Option<Vec<usize>>> {
    match dim {
        Some(d) if !d.is_empty() => Ok(Some(wrap_dims(d, ndim)?)),
        _ => Ok(None),
    }
}
/// Calls a kernel with the axes that `dim` names. A 0-d array has no axes but may be given 0 or -1.
pub(super) fn over<R>(dim: &Option<Ints>, ndim: usize, f: impl FnOnce(Axes<'_>) -> Result<R>) -> Result<R> {
    match axes(dim, ndim)? {
        Some(d) if ndim > 0 => f(Axes::Of(&d)),
        _ => f(Axes::All),
    }
}
/// What sums of this dtype are made in: integers and bools add up in int64.
pub(super) fn sum_dtype(a: DType, given: Option<DType>) -> DType {
    given.unwrap_or(if a.is_float() { a } else { DType::Int64 })
}
/// `g` of a reduction, with the reduced dimensions back as length 1.
pub(super) fn kept_dims(g: &Tensor, dim: &Option<Ints>, keepdim: bool, ndim: usize) -> Result<Tensor> {
    if keepdim || ndim == 0 {
        return Ok(g.clone());
    }
    let gone = match axes(dim, ndim)? {
        Some(d) => d,
        None => (0..ndim).collect(),
    };
    let shape = g.shape();
    let mut rest = shape.iter();
    let full = (0..ndim).map(|d| if gone.contains(&d) { 1 } else { rest.next().map_or(1, |&n| n as i64) }).collect();
    view(g, Sizes(full)).or_else(|_| reshape(g, Sizes::of(&shape)))
}
/// `kept_dims`, repeated to the reduced operand's shape.
pub(super) fn spread(g: &Tensor, dim: &Option<Ints>, keepdim: bool, shape: &Dims) -> Result<Tensor> {
    expand(&kept_dims(g, dim, keepdim, shape.len())?, Sizes::of(shape), false)
}
op! {
    /// Sum of all elements; integers add up in int64.
    SumBackward0 = fn sum(self_; *, dtype: Option<DType> = None);
    forward(_out) reduce::sum(self_, Axes::All, false, sum_dtype(self_.dtype, *dtype));
    shows { self_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { self_ uses [] => expand(g, Sizes::of(&cx.shape(0)), false) }
}
op! {
    /// Sum over the dimensions `dim` (all if None or empty).
    SumBackward1 = fn sum_dim(self_; dim: Option<Ints>, keepdim: bool = false; *, dtype: Option<DType> = None);
    schema "sum.dim_IntList";
    overload sum;
    forward(_out) over(dim, self_.ndim(), |x| reduce::sum(self_, x, *keepdim, sum_dtype(self_.dtype, *dtype)));
    shows { self_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { self_ uses [] => spread(g, dim, *keepdim, &cx.shape(0)) }
}
