//! Reductions: sums, means, products, extremes, norms, variances. A gradient is spread over the reduced dimensions again (`spread`), or goes
//! to the elements that were chosen (`chosen_grad`), or to those that equal the result, in equal parts (`shared`).
use super::arith::power;
use super::macros::{function, op, op_many};
use super::matmul::given_out;
use super::*;
use crate::error::{bail, err};
use crate::kernels::reduce::{self, Axes};
use crate::kernels::{pointwise, sort, table};
use crate::layout::{given_size, wrap_dim, wrap_dims};
use crate::ops::unary::{plus, times, zeros_of};
use crate::tape;
use smallvec::smallvec;

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
    expand(&kept_dims(g, dim, keepdim, shape.len())?, Sizes::of(shape))
}
/// A gradient of one element for every element of `shape`: a view of it, or for a few elements a tensor, which costs less from there on.
fn everywhere(g: &Tensor, shape: &Dims) -> Result<Tensor> {
    const FEW: usize = 256;
    if shape.numel() > FEW || tape::grad_enabled() || tape::mode::dispatching() {
        return expand(g, Sizes::of(shape));
    }
    let (value, dtype) = g.look(|a| (a.item(), a.dtype));
    Ok(Tensor::new(Array::full(*shape, dtype, value)?))
}
op! {
    /// Sum of all elements; integers add up in int64.
    SumBackward0 = fn sum(self_; *, dtype: Option<DType> = None);
    forward(_out) reduce::sum(self_, Axes::All, false, sum_dtype(self_.dtype, *dtype));
    shows { self_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { self_ uses [] => everywhere(g, &cx.shape(0)) }
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
/// What `torch.mean` and its like compute in: the dtype itself unless another is given.
fn own(a: &Array, given: Option<DType>) -> DType {
    given.unwrap_or(a.dtype)
}
/// How many elements become one.
fn fold_count(shape: &Dims, dim: &Option<Ints>) -> Result<usize> {
    Ok(match axes(dim, shape.len())? {
        Some(d) => d.iter().map(|&d| shape.get(d).copied().unwrap_or(1)).product(),
        None => shape.numel(),
    })
}
/// Gradient of a mean.
fn mean_part(g: &Tensor, dim: &Option<Ints>, keepdim: bool, shape: &Dims) -> Result<Tensor> {
    div(&spread(g, dim, keepdim, shape)?, &number(fold_count(shape, dim)? as f64)?)
}
op! {
    /// Mean of all elements, of a floating point dtype.
    MeanBackward0 = fn mean(self_; *, dtype: Option<DType> = None);
    forward(_out) reduce::mean(self_, Axes::All, false, own(self_, *dtype));
    shows { self_sym_sizes: cx.shape(0).attr(), self_sym_numel: cx.shape(0).numel().attr() };
    grad(g, cx) { self_ uses [] => {
        let shape = cx.shape(0);
        div(&everywhere(g, &shape)?, &number(shape.numel() as f64)?)
    } }
}
op! {
    /// Mean over the dimensions `dim` (all if None or empty), of a floating point dtype.
    MeanBackward1 = fn mean_dim(self_; dim: Option<Ints>, keepdim: bool = false; *, dtype: Option<DType> = None);
    schema "mean.dim";
    overload mean;
    forward(_out) {
        reduce::has_mean(self_, own(self_, *dtype))?;
        over(dim, self_.ndim(), |x| reduce::mean(self_, x, *keepdim, own(self_, *dtype)))
    };
    shows { self_sym_sizes: cx.shape(0).attr(), self_sym_numel: cx.shape(0).numel().attr() };
    grad(g, cx) { self_ uses [] => {
        let shape = cx.shape(0);
        mean_part(g, dim, *keepdim, &shape)
    } }
}
op! {
    /// Sum over the dimensions `dim` (all if None or empty) of all that is not NaN.
    NansumBackward0 = fn nansum(self_; dim: Option<Ints> = None, keepdim: bool = false; *, dtype: Option<DType> = None);
    forward(_out) over(dim, self_.ndim(), |x| reduce::nansum(self_, x, *keepdim, sum_dtype(self_.dtype, *dtype)));
    saves [self_];
    grad(g, cx) { self_ uses [self_] => {
        let g = spread(g, dim, *keepdim, &cx.shape(0))?;
        masked_fill(&g, &isnan(self_)?, Scalar::Int(0))
    } }
}
function! {
    /// Mean over the dimensions `dim` (all if None or empty) of all that is not NaN.
    fn nanmean(self_; dim: Option<Ints> = None, keepdim: bool = false; *, dtype: Option<DType> = None, out: Option<Tensor> = None) -> Tensor;
    {
        if !self_.dtype().is_float() {
            bail!(Runtime, "nanmean(): expected input to have floating point or complex dtype but got {}", self_.dtype().torch_name());
        }
        let count = sum_dim(&logical_not(&isnan(self_)?)?, dim.clone(), keepdim, None)?;
        given_out("nanmean", out, div(&nansum(self_, dim, keepdim, dtype)?, &count)?)
    }
}

// ---- products ----
/// For each element along `d` the product of all others: pairs are multiplied, pairs of pairs, and back, so that no zero divides and every
/// order of derivative is right.
fn others(x: &Tensor, d: usize) -> Result<Tensor> {
    let shape = x.shape();
    let n = shape[d];
    let (dim, one) = (d as i64, |n: usize| Ok(Tensor::new(Array::full(shape.with(|s| s[d] = n), x.dtype(), Scalar::Int(1))?)));
    if n <= 1 {
        return one(n);
    }
    let x = if n % 2 == 1 { cat(vec![x.clone(), one(1)?], dim)? } else { x.clone() };
    let (even, odd) = (slice(&x, dim, None, None, 2)?, slice(&x, dim, Some(1), None, 2)?);
    let rest = others(&mul(&even, &odd)?, d)?;
    let both = stack(vec![mul(&rest, &odd)?, mul(&rest, &even)?], dim + 1)?;
    slice(&flatten(&both, dim, dim + 1)?, dim, None, Some(n as i64), 1)
}
/// Gradient of a product along `d`; `g` and `result` have that dimension with length 1.
fn prod_grad(g: &Tensor, x: &Tensor, result: &Tensor, d: usize) -> Result<Tensor> {
    if x.ndim() == 0 {
        return Ok(g.clone());
    }
    let no_zero = reduce::all(&x.array(), Axes::All, false)?.item().to_i64() != 0;
    mul(g, &if no_zero { div(result, x)? } else { others(x, d)? })
}
op! {
    /// Product of all elements; integers are multiplied in int64.
    ProdBackward0 = fn prod(self_; *, dtype: Option<DType> = None);
    forward(_out) reduce::prod(self_, Axes::All, false, sum_dtype(self_.dtype, *dtype));
    saves [self_, result];
    grad(g, cx) { self_ uses [self_, result] => {
        let shape = cx.shape(0);
        let flat = reshape(self_, Sizes::from_slice(&[-1])).or_else(|_| reshape(self_, Sizes::from_slice(&[0])))?;
        reshape(&prod_grad(g, &flat, result, 0)?, Sizes::of(&shape))
    } }
}
op! {
    /// Product along `dim`.
    ProdBackward1 = fn prod_dim(self_; dim: i64, keepdim: bool = false; *, dtype: Option<DType> = None);
    schema "prod.dim_int";
    overload prod;
    forward(_out) over(&Some(Ints::from_slice(&[*dim])), self_.ndim(), |x| reduce::prod(self_, x, *keepdim, sum_dtype(self_.dtype, *dtype)));
    saves [self_, result];
    grad(g, cx) { self_ uses [self_, result] => {
        let n = cx.shape(0).len();
        let of = Some(Ints::from_slice(&[*dim]));
        prod_grad(&kept_dims(g, &of, *keepdim, n)?, self_, &kept_dims(result, &of, *keepdim, n)?, wrap_dim(*dim, n)?)
    } }
}

// ---- largest and smallest ----
/// `g` in equal parts to all elements that are the result; all but `x` have the reduced dimensions with length 1.
fn shared(g: &Tensor, x: &Tensor, result: &Tensor, dim: &Option<Ints>) -> Result<Tensor> {
    let mask = eq(x, result)?;
    div(&mul(g, &mask)?, &sum_dim(&mask, dim.clone(), true, None)?)
}
/// As `shared`, over all elements; NaN is the result where the result is NaN.
fn shared_by_all(g: &Tensor, x: &Tensor, result: &Tensor) -> Result<Tensor> {
    let mask = if result.item().to_f64().is_nan() { isnan(x)? } else { eq(x, result)? };
    mul(&div(g, &sum(&mask, None)?)?, &mask)
}
/// An op that gives a whole reduction along dimensions: its gradient goes in equal parts to all elements that are the result.
macro_rules! extreme {
    ($($(#[doc = $doc:literal])* $node:ident $name:ident;)*) => { $(op! {
        $(#[doc = $doc])*
        $node = fn $name(self_; dim: Ints = Ints::default(), keepdim: bool = false);
        forward(_out) over(&Some(dim.clone()), self_.ndim(), |x| reduce::$name(stringify!($name), self_, x, *keepdim));
        saves [self_, result];
        grad(g, cx) { self_ uses [self_, result] => {
            let (of, n) = (Some(dim.clone()), cx.shape(0).len());
            shared(&kept_dims(g, &of, *keepdim, n)?, self_, &kept_dims(result, &of, *keepdim, n)?, &of)
        } }
    })* };
}
extreme! {
    /// Largest over the dimensions `dim` (all if empty); NaN if any is.
    AmaxBackward0 amax;
    /// Smallest over the dimensions `dim` (all if empty); NaN if any is.
    AminBackward0 amin;
}
op_many! {
    /// Smallest and largest along `dim`, or of all elements.
    AminmaxBackward0 = fn aminmax(self_; *, dim: Option<i64> = None, keepdim: bool = false) -> [min, max];
    named "aminmax";
    forward {
        let d = dim.map(|d| wrap_dim(d, self_.ndim())).transpose()?.filter(|_| self_.ndim() > 0);
        let (lo, hi) = reduce::aminmax(self_, d, *keepdim)?;
        Ok(smallvec![lo, hi])
    };
    saves [self_, min, max];
    grad(g, cx) { self_ uses [self_, min, max] => {
        let (of, n) = (dim.map(|d| Ints::from_slice(&[d])), cx.shape(0).len());
        let x = needed(self_)?;
        let part = |g: &Option<Tensor>, r: &Option<Tensor>| {
            g.as_ref().map(|g| shared(&kept_dims(g, &of, *keepdim, n)?, x, &kept_dims(needed(r)?, &of, *keepdim, n)?, &of)).transpose()
        };
        both(part(&g[0], min)?, part(&g[1], max)?)
    } }
}
/// A slot that the formula reads.
pub(super) fn needed(t: &Option<Tensor>) -> Result<&Tensor> {
    t.as_ref().ok_or_else(|| err!(Runtime, "a saved value that a gradient needs was not kept"))
}
/// The sum of what is there.
pub(super) fn both(a: Option<Tensor>, b: Option<Tensor>) -> Result<Option<Tensor>> {
    match (a, b) {
        (Some(a), Some(b)) => add(&a, &b, Scalar::Int(1)).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}
/// An op that picks one of all elements.
macro_rules! one_of_all {
    ($($(#[doc = $doc:literal])* $node:ident $name:ident $python:ident $schema:literal |$a:ident| $kernel:expr;)*) => { $(op! {
        $(#[doc = $doc])*
        $node = fn $name(self_);
        schema $schema;
        overload $python;
        forward(_out) { let $a = self_; $kernel };
        saves [self_, result];
        grad(g, cx) { self_ uses [self_, result] => shared_by_all(g, self_, result) }
    })* };
}
one_of_all! {
    /// Largest element; NaN if any is.
    MaxBackward1 max_all max "max" |a| reduce::amax("max", a, Axes::All, false);
    /// Smallest element; NaN if any is.
    MinBackward1 min_all min "min" |a| reduce::amin("min", a, Axes::All, false);
    /// The middle element, the lower of two; NaN if any is.
    MedianBackward0 median_all median "median" |a| sort::median_all(a, false);
    /// The middle one of the elements that are not NaN.
    NanmedianBackward0 nanmedian_all nanmedian "nanmedian" |a| sort::median_all(a, true);
}
/// Calls a kernel along a dimension; a 0-d array has one, of length 1.
pub(super) fn along(a: &Array, dim: i64, f: impl FnOnce(&Array, usize) -> Result<(Array, Array)>) -> Result<SmallVec<[Array; 4]>> {
    let d = wrap_dim(dim, a.ndim())?;
    if a.ndim() > 0 {
        let (values, indices) = f(a, d)?;
        return Ok(smallvec![values, indices]);
    }
    let (values, indices) = f(&a.view(Dims::of(&[1]), Dims::of(&[1]), a.offset), 0)?;
    let scalar = |a: Array| a.view(Dims::default(), Dims::default(), a.offset);
    Ok(smallvec![scalar(values), scalar(indices)])
}
/// Gradient of an op whose results are elements of its operand, chosen along `dim`. `reduced`: that dimension is gone.
pub(super) fn chosen_grad(g: &[Option<Tensor>], indices: &Option<Tensor>, dim: i64, reduced: bool, shape: Dims) -> Result<Option<Tensor>> {
    let Some(g) = &g[0] else { return Ok(None) };
    let indices = needed(indices)?;
    if shape.is_empty() {
        return Ok(Some(g.clone()));
    }
    let d = wrap_dim(dim, shape.len())? as i64;
    let full = |t: &Tensor| if reduced { unsqueeze(t, d) } else { Ok(t.clone()) };
    scatter(&zeros(shape, g.dtype())?, &full(indices)?, &full(g)?, d).map(Some)
}
/// An op that picks one element along a dimension, and says which.
macro_rules! one_of_dim {
    ($($(#[doc = $doc:literal])* $node:ident $name:ident $python:ident $named:literal $schema:literal ($($attr:ident: $ty:ty),*) $dim:ident = $default:expr; |$a:ident, $d:ident, $keep:ident| $kernel:expr;)*) => { $(op_many! {
        $(#[doc = $doc])*
        $node = fn $name(self_; $($attr: $ty,)* dim: i64 = $default, keepdim: bool = false) -> [values; nondiff indices];
        schema $schema;
        overload $python;
        named $named;
        forward along(self_, *dim, |$a, $d| { let $keep = *keepdim; $kernel });
        saves [indices];
        shows { self_sym_sizes: cx.shape(0).attr() };
        grad(g, cx) { self_ uses [indices] => chosen_grad(g, indices, *dim, !*keepdim, cx.shape(0)) }
    })* };
}
one_of_dim! {
    /// The middle element along `dim`, the lower of two, and where it is; NaN if any is.
    MedianBackward1 median_dim median "median" "median.dim" () dim = -1; |a, d, keep| sort::median(a, d, keep, false);
    /// The middle one along `dim` of the elements that are not NaN, and where it is.
    NanmedianBackward1 nanmedian_dim nanmedian "nanmedian" "nanmedian.dim" () dim = -1; |a, d, keep| sort::median(a, d, keep, true);
    /// The most frequent element along `dim`, the smallest of several, and where it is last.
    ModeBackward0 mode mode "mode" "mode" () dim = -1; |a, d, keep| sort::mode(a, d, keep);
    /// The `k`th smallest element along `dim`, counted from 1, and where it is.
    KthvalueBackward0 kthvalue kthvalue "kthvalue" "kthvalue" (k: i64) dim = -1; |a, d, keep| { numeric("kthvalue", [a])?; sort::kthvalue(a, *k, d, keep) };
}
macro_rules! extreme_dim {
    ($($(#[doc = $doc:literal])* $node:ident $name:ident $python:ident $named:literal $schema:literal;)*) => { $(op_many! {
        $(#[doc = $doc])*
        $node = fn $name(self_; dim: i64, keepdim: bool = false) -> [values; nondiff indices];
        schema $schema;
        overload $python;
        named $named;
        forward along(self_, *dim, |a, d| reduce::$name(a, d, *keepdim));
        saves [indices];
        shows { self_sym_sizes: cx.shape(0).attr() };
        grad(g, cx) { self_ uses [indices] => chosen_grad(g, indices, *dim, !*keepdim, cx.shape(0)) }
    })* };
}
extreme_dim! {
    /// Largest along `dim`, and where it is first; NaN if any is.
    MaxBackward0 max_dim max "max" "max.dim";
    /// Smallest along `dim`, and where it is first; NaN if any is.
    MinBackward0 min_dim min "min" "min.dim";
}
function! {
    /// Elementwise maximum, as `maximum`.
    fn max_other(self_, other) -> Tensor;
    overload max;
    { maximum(self_, other) }
}
function! {
    /// Elementwise minimum, as `minimum`.
    fn min_other(self_, other) -> Tensor;
    overload min;
    { minimum(self_, other) }
}
op! {
    /// Where the largest is first found: along `dim`, or in row-major order of all.
    ArgmaxBackward = fn argmax(self_; dim: Option<i64> = None, keepdim: bool = false);
    forward(_out) where_is(self_, *dim, |a, d| reduce::argmax(a, d, *keepdim));
    grad(g, cx) {}
}
op! {
    /// Where the smallest is first found: along `dim`, or in row-major order of all.
    ArgminBackward = fn argmin(self_; dim: Option<i64> = None, keepdim: bool = false);
    forward(_out) where_is(self_, *dim, |a, d| reduce::argmin(a, d, *keepdim));
    grad(g, cx) {}
}
fn where_is(a: &Array, dim: Option<i64>, f: impl FnOnce(&Array, Option<usize>) -> Result<Array>) -> Result<Array> {
    f(a, dim.map(|d| wrap_dim(d, a.ndim())).transpose()?.filter(|_| a.ndim() > 0))
}

// ---- truth and counts ----
op! {
    /// Is any element not 0? Over the dimensions `dim`, all if None.
    AnyBackward = fn any(self_; dim: Option<Ints> = None, keepdim: bool = false);
    schema "any.dims; any without dim keepdim";
    forward(_out) over(dim, self_.ndim(), |x| reduce::any(self_, x, *keepdim));
    grad(g, cx) {}
}
op! {
    /// Are all elements not 0? Over the dimensions `dim`, all if None.
    AllBackward = fn all(self_; dim: Option<Ints> = None, keepdim: bool = false);
    schema "all.dims; all without dim keepdim";
    forward(_out) over(dim, self_.ndim(), |x| reduce::all(self_, x, *keepdim));
    grad(g, cx) {}
}
op! {
    /// How many elements are not 0, over the dimensions `dim`, all if None; as int64.
    CountNonzeroBackward = fn count_nonzero(self_; dim: Option<Ints> = None);
    schema "count_nonzero.dim_IntList; count_nonzero without dim";
    forward(_out) over(dim, self_.ndim(), |x| reduce::count_nonzero(self_, x));
    grad(g, cx) {}
}

// ---- logsumexp, variance ----
op! {
    /// `log(sum(exp(x)))` over the dimensions `dim`, without overflow.
    LogsumexpBackward0 = fn logsumexp(self_; dim: Ints, keepdim: bool = false);
    forward(_out) over(&Some(dim.clone()), self_.ndim(), |x| reduce::logsumexp(self_, x, *keepdim));
    saves [self_, result];
    grad(g, cx) { self_ uses [self_, result] => {
        let (of, n) = (Some(dim.clone()), cx.shape(0).len());
        let share = exp(&sub(self_, &kept_dims(result, &of, *keepdim, n)?, Scalar::Int(1))?)?;
        mul(&kept_dims(g, &of, *keepdim, n)?, &share)
    } }
}
fn corrected(correction: &Option<Scalar>) -> f64 {
    correction.map_or(1.0, Scalar::to_f64)
}
fn spread_of(op: &str, a: &Array, dim: &Option<Ints>, correction: &Option<Scalar>, keepdim: bool, root: bool) -> Result<(Array, Array)> {
    reduce::has_variance(a)?;
    if (fold_count(&a.shape, dim)? as f64) <= corrected(correction)
        && let Some(h) = crate::tape::host()
    {
        h.warn(&format!(
            "{op}(): degrees of freedom is <= 0. Correction should be strictly less than the reduction factor (input numel divided by output numel): {} elements become one in shape {:?}",
            fold_count(&a.shape, dim)?,
            a.shape
        ))?;
    }
    over(dim, a.ndim(), |x| reduce::var_mean(a, x, keepdim, corrected(correction), root))
}
/// Gradient of the variance: 2 / (n - correction) (x - mean) g.
fn var_grad(g: &Tensor, x: &Tensor, dim: &Option<Ints>, correction: &Option<Scalar>, keepdim: bool) -> Result<Tensor> {
    let shape = x.shape();
    let freedom = fold_count(&shape, dim)? as f64 - corrected(correction);
    let mean = mean_dim(x, dim.clone(), true, None)?;
    if freedom <= 0.0 && (dim.is_none() || shape.is_empty()) {
        // infinity times the distance from the mean: of no use as a function of x
        let slope = where_(&eq(x, &mean)?, &scalar_like(g, f64::NAN)?, &scalar_like(g, f64::INFINITY)?)?;
        return mul(&kept_dims(g, dim, keepdim, shape.len())?, &slope);
    }
    let scale = 2.0 / freedom;
    let centred = sub(x, &mean, Scalar::Int(1))?;
    mul(&times(&kept_dims(g, dim, keepdim, shape.len())?, scale)?, &centred)
}
/// Gradient of the variance from that of its root.
fn of_root(g: &Tensor, root: &Tensor) -> Result<Tensor> {
    masked_fill(&div(g, &times(root, 2.0)?)?, &eq(root, &number(0.0)?)?, Scalar::Int(0))
}
op! {
    /// Variance over the dimensions `dim` (all if None): the sum of squares is divided by n - `correction` (1 if None).
    VarBackward0 = fn var(self_; dim: Option<Ints> = None; *, correction: Option<Scalar> = None, keepdim: bool = false);
    schema "var.correction";
    forward(_out) Ok(spread_of("var", self_, dim, correction, *keepdim, false)?.0);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => var_grad(g, self_, dim, correction, *keepdim) }
}
op! {
    /// Standard deviation: the root of `var`.
    StdBackward0 = fn deviation(self_; dim: Option<Ints> = None; *, correction: Option<Scalar> = None, keepdim: bool = false);
    schema "std.correction";
    overload std;
    forward(_out) Ok(spread_of("std", self_, dim, correction, *keepdim, true)?.0);
    saves [self_, result];
    grad(g, cx) { self_ uses [self_, result] => var_grad(&of_root(g, result)?, self_, dim, correction, *keepdim) }
}
op_many! {
    /// Variance and mean over the dimensions `dim` (all if None).
    VarMeanBackward0 = fn var_mean(self_; dim: Option<Ints> = None; *, correction: Option<Scalar> = None, keepdim: bool = false) -> [result0, result1];
    schema "var_mean.correction";
    on [function];
    forward { let (v, m) = spread_of("var_mean", self_, dim, correction, *keepdim, false)?; Ok(smallvec![v, m]) };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => {
        let x = needed(self_)?;
        let v = g[0].as_ref().map(|g| var_grad(g, x, dim, correction, *keepdim)).transpose()?;
        both(v, g[1].as_ref().map(|g| mean_part(g, dim, *keepdim, &x.shape())).transpose()?)
    } }
}
op_many! {
    /// Standard deviation and mean over the dimensions `dim` (all if None).
    StdMeanBackward0 = fn std_mean(self_; dim: Option<Ints> = None; *, correction: Option<Scalar> = None, keepdim: bool = false) -> [result0, result1];
    schema "std_mean.correction";
    on [function];
    forward { let (v, m) = spread_of("std_mean", self_, dim, correction, *keepdim, true)?; Ok(smallvec![v, m]) };
    saves [self_, result0];
    grad(g, cx) { self_ uses [self_, result0] => {
        let x = needed(self_)?;
        let s = g[0].as_ref().map(|g| var_grad(&of_root(g, needed(result0)?)?, x, dim, correction, *keepdim)).transpose()?;
        both(s, g[1].as_ref().map(|g| mean_part(g, dim, *keepdim, &x.shape())).transpose()?)
    } }
}
/// The older forms: `unbiased` says whether the correction is 1 or 0.
macro_rules! unbiased {
    ($($(#[doc = $doc:literal])* $all:ident $some:ident $python:ident $name:ident [$($place:ident),*] $ret:ty;)*) => { $(
        function! {
            $(#[doc = $doc])*
            fn $some(self_; dim: Option<Ints>, unbiased: bool, keepdim: bool = false) -> $ret;
            overload $python;
            on [$($place),*];
            { $name(self_, dim, Some(Scalar::Int(unbiased as i64)), keepdim) }
        }
        function! {
            $(#[doc = $doc])*
            fn $all(self_; unbiased: bool) -> $ret;
            overload $python;
            on [$($place),*];
            { $name(self_, None, Some(Scalar::Int(unbiased as i64)), false) }
        }
    )* };
}
unbiased! {
    /// Variance; `unbiased` divides the sum of squares by n - 1, else by n.
    var_all var_some var var [function, method] Tensor;
    /// Standard deviation; `unbiased` divides the sum of squares by n - 1, else by n.
    deviation_all deviation_some std deviation [function, method] Tensor;
    /// Variance and mean; `unbiased` divides the sum of squares by n - 1, else by n.
    var_mean_all var_mean_some var_mean var_mean [function] Tensors;
    /// Standard deviation and mean; `unbiased` divides the sum of squares by n - 1, else by n.
    std_mean_all std_mean_some std_mean std_mean [function] Tensors;
}

// ---- norms ----
/// Gradient of the norm of order `p`; all but `x` have the reduced dimensions with length 1.
fn norm_grad(g: &Tensor, x: &Tensor, p: f64, norm: &Tensor, dim: &Option<Ints>) -> Result<Tensor> {
    let zero = number(0.0)?;
    let no_norm = || eq(norm, &zero);
    let none = |t: &Tensor, mask: &Tensor| masked_fill(t, mask, Scalar::Int(0));
    match p {
        0.0 => zeros_of(x),
        1.0 => mul(g, &sign(x)?),
        2.0 => mul(g, &none(&div(x, norm)?, &no_norm()?)?),
        _ if p.is_infinite() => {
            let mask = eq(&abs(x)?, norm)?;
            let share = div(&mask, &sum_dim(&mask, dim.clone(), true, None)?)?;
            none(&mul(&mul(g, &sign(x)?)?, &share)?, &logical_not(&mask)?)
        }
        _ if p < 1.0 => {
            let slope = none(&power(&abs(x)?, p - 1.0)?, &eq(x, &zero)?)?;
            mul(&mul(&sign(x)?, &slope)?, &mul(g, &power(norm, 1.0 - p)?)?)
        }
        _ if p < 2.0 => {
            let slope = mul(&sign(x)?, &power(&abs(x)?, p - 1.0)?)?;
            mul(&slope, &none(&div(g, &power(norm, p - 1.0)?)?, &no_norm()?)?)
        }
        _ => {
            let slope = mul(x, &power(&abs(x)?, p - 2.0)?)?;
            mul(&slope, &none(&div(g, &power(norm, p - 1.0)?)?, &no_norm()?)?)
        }
    }
}
fn norm_of(a: &Array, p: Scalar, dim: &Option<Ints>, keepdim: bool, dtype: Option<DType>) -> Result<Array> {
    reduce::has_norm(a, own(a, dtype))?;
    over(dim, a.ndim(), |x| reduce::norm(a, p.to_f64(), x, keepdim, own(a, dtype)))
}
op! {
    /// Vector norm of order `ord` over the dimensions `dim` (all if None): (sum of |x|^ord)^(1 / ord); 0 counts what is not 0, inf and -inf
    /// are the largest and the smallest |x|.
    LinalgVectorNormBackward0 = fn vector_norm(self_; ord: Scalar = Scalar::Int(2), dim: Option<Ints> = None, keepdim: bool = false; *, dtype: Option<DType> = None);
    schema "linalg_vector_norm";
    overload linalg_vector_norm;
    on [linalg];
    forward(_out) norm_of(self_, *ord, dim, *keepdim, *dtype);
    saves [self_, result];
    grad(g, cx) { self_ uses [self_, result] => {
        let n = cx.shape(0).len();
        norm_grad(&kept_dims(g, dim, *keepdim, n)?, self_, ord.to_f64(), &kept_dims(result, dim, *keepdim, n)?, dim)
    } }
}
op! {
    /// Vector norm of order `p`, as the distances of `nn.functional` record it.
    NormBackward1 = fn plain_norm(self_; p: Scalar, dim: Option<Ints>, keepdim: bool = false);
    schema "norm.ScalarOpt_dim";
    on [private];
    forward(_out) norm_of(self_, *p, dim, *keepdim, None);
    saves [self_, result];
    grad(g, cx) { self_ uses [self_, result] => {
        let n = cx.shape(0).len();
        norm_grad(&kept_dims(g, dim, *keepdim, n)?, self_, p.to_f64(), &kept_dims(result, dim, *keepdim, n)?, dim)
    } }
}
/// The order of a norm: a number, or the name of a matrix norm.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    Number(Scalar),
    Named(String),
}
function! {
    /// Norm of order `p` over the dimensions `dim`, all if None; `"fro"` is the root of the sum of squares.
    fn norm(self_; p: Option<Order> = Some(Order::Named("fro".into())), dim: Option<Ints> = None, keepdim: bool = false, dtype: Option<DType> = None; *, out: Option<Tensor> = None) -> Tensor;
    {
        let p = match p {
            None => Scalar::Int(2),
            Some(Order::Number(p)) => p,
            Some(Order::Named(n)) if n == "fro" => Scalar::Int(2),
            Some(Order::Named(n)) if n == "nuc" => {
                if dim.is_some() || self_.ndim() != 2 {
                    bail!(NotImplemented, "norm(): the nuclear norm is one of matrices: call linalg.matrix_norm(x, 'nuc', dim)");
                }
                let s = sum_dim(&linalg_svdvals(self_, None)?, Some(Ints::from_slice(&[-1])), false, None)?;
                return given_out("norm", out, if keepdim { reshape(&s, Sizes::from_slice(&[1, 1]))? } else { s });
            }
            Some(Order::Named(n)) => bail!(Runtime, "norm(): unknown order '{n}'; give a number, 'fro' or 'nuc'"),
        };
        given_out("norm", out, vector_norm(self_, p, dim, keepdim, dtype)?)
    }
}
op! {
    /// Norm of order `p` of `self - other`, over all elements.
    DistBackward0 = fn dist(self_, other; p: Scalar = Scalar::Int(2));
    forward(_out) {
        let d = pointwise::run(Out(None), "dist", &table::Sub {}, [self_, other])?;
        reduce::norm(&d, p.to_f64(), Axes::All, false, d.dtype)
    };
    saves [self_, other, result];
    grad(g, cx) {
        self_ uses [self_, other, result] => norm_grad(g, &sub(self_, other, Scalar::Int(1))?, p.to_f64(), result, &None),
        other uses [self_, other, result] => neg(&norm_grad(g, &sub(self_, other, Scalar::Int(1))?, p.to_f64(), result, &None)?),
    }
}
/// Every dimension but one.
fn all_but(dim: i64, ndim: usize) -> Result<Ints> {
    let d = wrap_dim(dim, ndim)?;
    Ok(Ints::of(&(0..ndim).filter(|&i| i != d).collect::<Vec<_>>()))
}
/// Keeps the divisor of `renorm` from 0.
const RENORM_EPS: f64 = 1e-7;
op! {
    /// Slices along `dim` whose norm of order `p` is above `maxnorm`, scaled down to it.
    RenormBackward0 = fn renorm(self_; p: Scalar, dim: i64, maxnorm: Scalar);
    inplace renorm_;
    forward(out) {
        if self_.ndim() < 2 {
            bail!(Runtime, "renorm: input needs at least 2 dimensions, got {} dimensions", self_.ndim());
        }
        if p.to_f64() <= 0.0 || maxnorm.to_f64() < 0.0 {
            bail!(Runtime, "renorm: non-positive-norm not supported and maxnorm must be >= 0, got p={} and maxnorm={}", p.to_f64(), maxnorm.to_f64());
        }
        let norms = norm_of(self_, *p, &Some(all_but(*dim, self_.ndim())?), true, None)?;
        let run = |k: &dyn table::Kernel<2>, a: &Array, b: &Array| pointwise::run(Out(None), "renorm", k, [a, b]);
        let top = Array::number(*maxnorm)?;
        let down = run(&table::Div {}, &top, &run(&table::Add {}, &norms, &Array::number(Scalar::Float(RENORM_EPS))?)?)?;
        let over = pointwise::run_to(Out(None), "renorm", DType::Bool, &table::Gt {}, [&norms, &top])?;
        let scale = pointwise::where_(Out(None), &over, &down, &Array::number(Scalar::Float(1.0))?)?;
        pointwise::run(out, "renorm", &table::Mul {}, [self_, &scale])
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => {
        // with s = maxnorm / (norm + eps): s g - s / (norm + eps) * sum(g x) d norm / dx
        let rest = Some(all_but(*dim, self_.ndim())?);
        let norm = vector_norm(self_, *p, rest.clone(), true, None)?;
        let along = sum_dim(&mul(g, self_)?, rest.clone(), true, None)?;
        let inverse = reciprocal(&plus(&norm, RENORM_EPS)?)?;
        let turn = mul(&inverse, &norm_grad(&along, self_, p.to_f64(), &norm, &rest)?)?;
        let scaled = mul(&times(&inverse, maxnorm.to_f64())?, &sub(g, &turn, Scalar::Int(1))?)?;
        where_(&gt(&norm, &number(*maxnorm)?)?, &scaled, g)
    } }
}

// ---- the rest ----
op! {
    /// Sum of the diagonal of a matrix.
    TraceBackward0 = fn trace(self_);
    forward(_out) {
        numeric("trace", [self_])?;
        if self_.ndim() != 2 {
            bail!(Runtime, "trace: expected a matrix, but got tensor with dim {}", self_.ndim());
        }
        let n = self_.shape[0].min(self_.shape[1]);
        let diagonal = self_.view(Dims::of(&[n]), Dims::of(&[self_.strides[0] + self_.strides[1]]), self_.offset);
        reduce::sum(&diagonal, Axes::All, false, sum_dtype(self_.dtype, None))
    };
    shows { self_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { self_ uses [] => {
        let shape = cx.shape(0);
        mul(g, &Tensor::new(crate::kernels::create::eye(shape[0] as i64, shape[1] as i64, g.dtype())?))
    } }
}
function! {
    /// Differences of neighbours along `dim`, `n` times over; `prepend` and `append` are put before and after first.
    fn diff(self_; n: i64 = 1, dim: i64 = -1, prepend: Option<Tensor> = None, append: Option<Tensor> = None; *, out: Option<Tensor> = None) -> Tensor;
    {
        if self_.ndim() == 0 {
            bail!(Runtime, "diff expects input to be at least one-dimensional");
        }
        if n < 0 {
            bail!(Runtime, "order must be non-negative but got {n}");
        }
        let d = wrap_dim(dim, self_.ndim())? as i64;
        let mut x = match (prepend, append) {
            (None, None) => self_.clone(),
            (a, b) => cat(a.into_iter().chain([self_.clone()]).chain(b).collect(), d)?,
        };
        for _ in 0..n {
            let len = x.shape()[d as usize] as i64;
            let (later, sooner) = (slice(&x, d, Some(1), None, 1)?, slice(&x, d, None, Some((len - 1).max(0)), 1)?);
            x = if x.dtype() == DType::Bool { logical_xor(&later, &sooner)? } else { sub(&later, &sooner, Scalar::Int(1))? };
        }
        given_out("diff", out, x)
    }
}
function! {
    /// The sum over what `size` has as 1 or has not, as broadcasting would repeat it.
    fn sum_to_size(self_; size: Sizes) -> Tensor;
    on [method];
    {
        let (have, to) = (self_.shape(), given_size("sum_to_size", &size)?);
        if to.len() > have.len() || (0..to.len()).any(|i| to[i] != 1 && to[i] != have[i + have.len() - to.len()]) {
            bail!(Runtime, "size {{{:?}}} is not expandable to size {{{have:?}}}.", &*size);
        }
        sum_to(self_, &to)
    }
}
