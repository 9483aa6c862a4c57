//! Order: sorting, the largest few, distinct values, places among boundaries, counts by bins, quantiles. Every sort is stable.
use super::macros::{function, op, op_many};
use super::matmul::given_out;
use super::reduce::{along, chosen_grad};
use super::*;
use crate::error::bail;
use crate::kernels::sort as order;
use crate::layout::wrap_dim;
use crate::ops::unary::plus;

op_many! {
    /// The elements in order along `dim`, and where they were; NaN counts as the largest.
    SortBackward0 = fn sort(self_; dim: i64 = -1, descending: bool = false) -> [values; nondiff indices];
    named "sort";
    forward along(self_, *dim, |a, d| order::sort(a, d, *descending));
    saves [indices];
    shows { self_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { self_ uses [indices] => chosen_grad(g, indices, *dim, false, cx.shape(0)) }
}
op_many! {
    /// As without `stable`: equal elements keep their order either way.
    SortBackward1 = fn sort_stable(self_; dim: i64 = -1, descending: bool = false; *, stable: Option<bool>) -> [values; nondiff indices];
    schema "sort.stable";
    overload sort;
    named "sort";
    forward along(self_, *dim, |a, d| order::sort(a, d, *descending));
    saves [indices];
    shows { self_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { self_ uses [indices] => chosen_grad(g, indices, *dim, false, cx.shape(0)) }
}
op! {
    /// Where the elements in order along `dim` are.
    ArgsortBackward = fn argsort(self_; dim: i64 = -1, descending: bool = false; *, stable: bool = false);
    forward(_out) {
        order::argsort(self_, wrap_dim(*dim, self_.ndim())?, *descending)
    };
    grad(g, cx) {}
}
op_many! {
    /// The `k` largest (or smallest) along `dim`, best first, and where they are.
    TopkBackward0 = fn topk(self_; k: i64, dim: i64 = -1, largest: bool = true, sorted: bool = true) -> [values; nondiff indices];
    named "topk";
    forward {
        let Ok(k) = usize::try_from(*k) else { bail!(Runtime, "topk(): selected index k out of range: k is {k}") };
        along(self_, *dim, |a, d| order::topk(a, k, d, *largest))
    };
    saves [indices];
    shows { self_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { self_ uses [indices] => chosen_grad(g, indices, *dim, false, cx.shape(0)) }
}
function! {
    /// The elements in order along the first dimension.
    fn msort(self_; *, out: Option<Tensor> = None) -> Tensor;
    { given_out("msort", out, sort(self_, 0, false)?.swap_remove(0)) }
}

// ---- distinct values ----
fn found(u: order::Unique, inverse: bool, counts: bool) -> Found {
    let values = Tensor::new(u.values);
    if !inverse && !counts {
        return Found::One(values);
    }
    let rest = [inverse.then_some(u.inverse), counts.then_some(u.counts)];
    Found::Many(std::iter::once(values).chain(rest.into_iter().flatten().map(Tensor::new)).collect())
}
function! {
    /// Distinct elements (slices along `dim`, if given) in order; where each element's value is among them; how often each occurs.
    fn unique(self_; sorted: bool = true, return_inverse: bool = false, return_counts: bool = false, dim: Option<i64> = None) -> Found;
    schema "_unique2";
    {
        let a = self_.array();
        let u = match dim {
            Some(d) => order::unique_dim(&a, wrap_dim(d, a.ndim())?)?,
            None => order::unique(&a)?,
        };
        Ok(found(u, return_inverse, return_counts))
    }
}
function! {
    /// Elements (slices along `dim`, if given) that differ from the one before; where each element's value is; how long each run is.
    fn unique_consecutive(self_; return_inverse: bool = false, return_counts: bool = false, dim: Option<i64> = None) -> Found;
    schema "unique_consecutive";
    {
        let a = self_.array();
        let u = match dim {
            Some(d) => order::unique_consecutive_dim(&a, wrap_dim(d, a.ndim())?)?,
            None => order::unique_consecutive(&a)?,
        };
        Ok(found(u, return_inverse, return_counts))
    }
}

// ---- places and counts ----
fn index_dtype(out_int32: bool) -> DType {
    if out_int32 { DType::Int32 } else { DType::Int64 }
}
function! {
    /// For each element of `input` its place in a sorted sequence (along the last dimension): before equals, or behind them if `right`.
    fn searchsorted(sorted_sequence, input | number; *, out_int32: bool = false, right: bool = false, side: Option<String> = None, sorter: Option<Tensor> = None, out: Option<Tensor> = None) -> Tensor;
    on [function];
    schema "searchsorted.Tensor";
    {
        let right = match side.as_deref() {
            None => right,
            Some("right") => true,
            Some("left") if right => bail!(Runtime, "searchsorted(): side and right can't be set to opposites, got side of left while right was True"),
            Some("left") => false,
            Some(s) => bail!(Runtime, "searchsorted(): side can only be 'left' or 'right' but got {s}"),
        };
        let boundaries = sorted_sequence.array();
        let sorter = sorter.map(|s| s.array());
        let at = order::searchsorted(&boundaries, &input.array(), right, sorter.as_ref(), index_dtype(out_int32))?;
        given_out("searchsorted", out, Tensor::new(at))
    }
}
function! {
    /// For each element of `input` the number of the interval between sorted `boundaries` in which it lies.
    fn bucketize(input | number, boundaries; *, out_int32: bool = false, right: bool = false, out: Option<Tensor> = None) -> Tensor;
    on [function];
    schema "bucketize.Tensor";
    {
        let at = order::bucketize(&input.array(), &boundaries.array(), right, index_dtype(out_int32))?;
        given_out("bucketize", out, Tensor::new(at))
    }
}
function! {
    /// For each element of `elements`, whether it is among `test_elements`.
    fn isin(elements | number, test_elements | number; *, assume_unique: bool = false, invert: bool = false) -> Tensor;
    on [function];
    schema "isin.Tensor_Tensor";
    {
        Ok(Tensor::new(order::isin(&elements.array(), &test_elements.array(), invert)?))
    }
}
op! {
    /// How many elements lie in each of `bins` equal parts of [min, max]; from the least to the greatest element if both are 0.
    HistcBackward = fn histc(self_; bins: i64 = 100, min: Scalar = Scalar::Int(0), max: Scalar = Scalar::Int(0));
    forward(_out) order::histc(self_, *bins, min.to_f64(), max.to_f64());
    grad(g, cx) {}
}

// ---- quantiles ----
/// A place between two neighbours in order, by what torch calls the interpolation.
fn between(low: &Tensor, high: &Tensor, weight: &Tensor, how: &str) -> Result<Tensor> {
    match how {
        "linear" => lerp(low, high, weight),
        "midpoint" => lerp_scalar(low, high, Scalar::Float(0.5)),
        "lower" | "nearest" => Ok(low.clone()), // ranks were rounded for the latter
        "higher" => Ok(high.clone()),
        _ => bail!(Runtime, "quantile() interpolation must be one of linear, lower, higher, midpoint or nearest, but got {how}"),
    }
}
fn quantiles(op: &str, x: &Tensor, q: &Tensor, dim: Option<i64>, keepdim: bool, how: &str, skip_nan: bool) -> Result<Tensor> {
    let dtype = x.dtype();
    if !matches!(dtype, DType::Float32 | DType::Float64) {
        bail!(Runtime, "{op}() input tensor must be either float or double dtype, got {}", dtype.name());
    }
    if q.ndim() > 1 || q.dtype() != dtype {
        bail!(
            Runtime,
            "{op}() q must be a scalar or 1D tensor of the input's dtype {}, got {:?} of {}",
            dtype.name(),
            q.shape(),
            q.dtype().name()
        );
    }
    if q.array().to_vec().iter().any(|q| !(0.0..=1.0).contains(q)) {
        bail!(Runtime, "{op}() q values must be in the range [0, 1]");
    }
    let shape = x.shape();
    if shape.numel() == 0 {
        bail!(Runtime, "{op}() input tensor must be non-empty");
    }
    let d = dim.map(|d| wrap_dim(d, shape.len())).transpose()?;
    // The lines last; a dimension of length 1 in their place, unless they were last before.
    let inner = d.filter(|d| d + 1 < shape.len()).map(|d| d as i64);
    let lines = match (d, inner) {
        (_, Some(d)) => transpose(&unsqueeze(x, -1)?, d, -1)?,
        (Some(_), None) if !shape.is_empty() => x.clone(),
        _ => reshape(x, Sizes::from_slice(&[-1]))?,
    };
    let n = *lines.shape().last().unwrap_or(&1) as f64;
    let ordered = sort(&lines, -1, false)?.swap_remove(0);
    // The rank of each quantile in each line; a line with NaN asks for the last element, which is NaN.
    let nan = isnan(&lines)?;
    let last = Some(Ints::from_slice(&[-1]));
    let q_line = reshape(q, Sizes::from_slice(&[-1]))?;
    let rank = if skip_nan {
        let count = to_dtype(&sum_dim(&logical_not(&nan)?, last, true, None)?, dtype)?;
        clamp_min(&mul(&q_line, &plus(&count, -1.0)?)?, Scalar::Int(0))?
    } else {
        let wide = unary::times(&q_line, n - 1.0)?;
        where_(&any(&nan, last, true)?, &Tensor::new(Array::scalar(Scalar::Float(n - 1.0), dtype)?), &wide)?
    };
    let rank = if how == "nearest" { round(&rank, 0)? } else { rank };
    let floor = floor(&rank)?;
    let take = |at: &Tensor| gather(&ordered, &to_dtype(at, DType::Int64)?, -1, false);
    let value = between(&take(&floor)?, &take(&ceil(&rank)?)?, &sub(&rank, &floor, Scalar::Int(1))?, how)?;
    // [.., k] becomes [k, ..], then the lengths of 1 that are not asked for go.
    let k_first = transpose(&unsqueeze(&value, 0)?, 0, -1)?;
    let mut value = match (inner, keepdim) {
        (Some(d), false) => squeezed_in_place(&squeezed_in_place(&k_first, -1)?, d + 1)?,
        (Some(_), true) => squeezed_in_place(&k_first, -1)?,
        (None, true) if d.is_some() => k_first,
        (None, true) => reshape(&k_first, Sizes(std::iter::once(q_line.numel() as i64).chain(shape.iter().map(|_| 1)).collect()))?,
        (None, false) => squeezed_in_place(&k_first, -1)?,
    };
    if q.ndim() == 0 {
        value = squeezed_in_place(&value, 0)?;
    }
    Ok(value)
}
macro_rules! quantile {
    ($($(#[doc = $doc:literal])* $tensor:ident $number:ident $python:ident $skip:literal;)*) => { $(
        function! {
            $(#[doc = $doc])*
            fn $number(self_; q: f64, dim: Option<i64> = None, keepdim: bool = false; *, interpolation: String = String::from("linear"), out: Option<Tensor> = None) -> Tensor;
            overload $python;
            {
                let q = Tensor::new(Array::scalar(Scalar::Float(q), self_.dtype())?);
                given_out(stringify!($python), out, quantiles(stringify!($python), self_, &q, dim, keepdim, &interpolation, $skip)?)
            }
        }
        function! {
            $(#[doc = $doc])*
            fn $tensor(self_, q; dim: Option<i64> = None, keepdim: bool = false; *, interpolation: String = String::from("linear"), out: Option<Tensor> = None) -> Tensor;
            overload $python;
            { given_out(stringify!($python), out, quantiles(stringify!($python), self_, q, dim, keepdim, &interpolation, $skip)?) }
        }
    )* };
}
quantile! {
    /// The element below which a share `q` of a line in order lies, between two neighbours by `interpolation`; of all elements without `dim`.
    quantile quantile_number quantile false;
    /// As `quantile`, of all that is not NaN.
    nanquantile nanquantile_number nanquantile true;
}
