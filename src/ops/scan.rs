//! Running sums, products, extremes and logarithms of sums along a dimension.
use super::macros::{op, op_many};
use super::*;
use crate::kernels::scan as along;
use crate::layout::wrap_dim;
use crate::tape::grad_enabled;
use smallvec::smallvec;

const ONE: Scalar = Scalar::Int(1);
op! {
    /// Running sum along `dim`; integers add up in int64.
    CumsumBackward0 = fn cumsum(self_; dim: i64; *, dtype: Option<DType> = None);
    inplace cumsum_;
    forward(_out) along::cumsum(self_, wrap_dim(*dim, self_.ndim())?, reduce::sum_dtype(self_.dtype, *dtype), false);
    grad(g, cx) { self_ uses [] => to_dtype(&reversed_cumsum(g, *dim)?, cx.dtype(0)) }
}
op! {
    /// Running sum along `dim` from the end.
    CumsumBackward0 = fn reversed_cumsum(self_; dim: i64);
    on [private];
    forward(_out) along::cumsum(self_, wrap_dim(*dim, self_.ndim())?, self_.dtype, true);
    grad(g, cx) { self_ uses [] => cumsum(g, *dim, None) }
}
op! {
    /// Running product along `dim`; integers multiply in int64.
    CumprodBackward0 = fn cumprod(self_; dim: i64; *, dtype: Option<DType> = None);
    inplace cumprod_;
    forward(_out) along::cumprod(self_, wrap_dim(*dim, self_.ndim())?, reduce::sum_dtype(self_.dtype, *dtype));
    saves [self_, result];
    grad(g, cx) { self_ uses [self_, result] => to_dtype(&cumprod_gradient(g, self_, result, *dim)?, cx.dtype(0)) }
}
/// Of a product y_k = x_0 .. x_k: the sum over k >= i of g_k y_k / x_i. Where x has zeros the quotient is none: from the first zero of a line
/// on, the product without that zero takes the place of y for that zero, and before it nothing after it counts. At later zeros it is 0.
fn cumprod_gradient(g: &Tensor, x: &Tensor, y: &Tensor, dim: i64) -> Result<Tensor> {
    if x.ndim() == 0 || x.look(Array::numel) == 0 {
        return Ok(g.clone());
    }
    let x = to_dtype(x, y.dtype())?;
    let zero = eq(&x, &number(0.0)?)?;
    let is_zero = to_dtype(&zero, y.dtype())?;
    let filled = masked_fill(&x, &zero, Scalar::Int(1))?;
    let plain = div(&reversed_cumsum(&mul(g, y)?, dim)?, &filled)?;
    if !index::any_true(&zero)? {
        return Ok(plain);
    }
    if grad_enabled() {
        return cumprod_gradient_by_terms(g, &x, dim);
    }
    // Products with the first zero of each line read as 1, counted from there to the next zero.
    let seen = cumsum(&is_zero, dim, None)?;
    let first = logical_and(&zero, &eq(&seen, &number(1.0)?)?)?;
    let alone = masked_fill(&x, &first, Scalar::Int(1))?;
    let without = mul(&cumprod(&alone, dim, None)?, &to_dtype(&eq(&seen, &number(1.0)?)?, y.dtype())?)?;
    let at_first = reversed_cumsum(&mul(g, &without)?, dim)?;
    where_(&first, &at_first, &masked_fill(&plain, &zero, Scalar::Int(0))?)
}
/// The same without a quotient, so that it can be differentiated where there are zeros.
fn cumprod_gradient_by_terms(g: &Tensor, x: &Tensor, dim: i64) -> Result<Tensor> {
    let n = x.shape()[wrap_dim(dim, x.ndim())?] as i64;
    let before = cumprod(x, dim, None)?;
    let term = |i: i64| -> Result<Tensor> {
        let first = narrow(g, dim, i, 1)?;
        let after = mul(&narrow(g, dim, i + 1, n - i - 1)?, &cumprod(&narrow(x, dim, i + 1, n - i - 1)?, dim, None)?)?;
        let sum = add(&first, &sum_dim(&after, Some(Ints::from_slice(&[dim])), true, None)?, ONE)?;
        if i == 0 { Ok(sum) } else { mul(&sum, &narrow(&before, dim, i - 1, 1)?) }
    };
    cat((0..n).map(term).collect::<Result<_>>()?, dim)
}
op! {
    /// ln of the running sum of exp along `dim`.
    LogcumsumexpBackward0 = fn logcumsumexp(self_; dim: i64);
    forward(_out) along::logcumsumexp(self_, wrap_dim(*dim, self_.ndim())?);
    saves [self_, result];
    grad(g, cx) { self_ uses [self_, result] => {
        // exp(x_i) times the sum over k >= i of g_k exp(-y_k), as logarithms, each sign of g apart. What stands for ln 0 is finite: it
        // is subtracted from itself in further derivatives.
        let least = number(if g.dtype() == DType::Float16 { -6e4 } else { -1e30 })?;
        let logs = log(&abs(g)?)?;
        let part = |chosen: &Tensor| -> Result<Tensor> {
            let terms = sub(&where_(chosen, &logs, &least)?, result, ONE)?;
            exp(&add(&reversed_logcumsumexp(&terms, *dim)?, self_, ONE)?)
        };
        let zero = number(0.0)?;
        sub(&part(&gt(g, &zero)?)?, &part(&lt(g, &zero)?)?, ONE)
    } }
}
fn reversed_logcumsumexp(t: &Tensor, dim: i64) -> Result<Tensor> {
    if t.ndim() == 0 {
        return logcumsumexp(t, dim);
    }
    let dims = || Sizes::from_slice(&[dim]);
    flip(&logcumsumexp(&flip(t, dims())?, dim)?, dims())
}
macro_rules! best_so_far {
    ($(#[doc = $doc:literal])* $node:ident $name:ident $named:literal) => {
        op_many! {
            $(#[doc = $doc])*
            $node = fn $name(self_; dim: i64) -> [values; nondiff indices];
            named $named;
            forward {
                let (values, indices) = along::$name(self_, wrap_dim(*dim, self_.ndim())?)?;
                Ok(smallvec![values, indices])
            };
            saves [self_, indices];
            grad(g, cx) { self_ uses [self_, indices] => {
                let (Some(g), Some(indices), Some(_)) = (&g[0], indices, self_) else { return Ok(()) };
                let zeros = zeros(cx.shape(0), cx.dtype(0))?;
                scatter_add(&zeros, indices, g, *dim).map(Some)
            } }
        }
    };
}
best_so_far! {
    /// Largest so far along `dim`, and where it stands.
    CummaxBackward0 cummax "cummax"
}
best_so_far! {
    /// Smallest so far along `dim`, and where it stands.
    CumminBackward0 cummin "cummin"
}
