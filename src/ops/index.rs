//! Elements by index: selecting, gathering, scattering and their in-place forms; repeating and turning.
use super::macros::{function, op};
use super::*;
use crate::error::bail;
use crate::kernels::{index as places, reduce as folds};
use crate::layout::{broadcast, wrap_dim, wrap_dims};
use crate::tape::dispatch::Named;
use crate::tape::{Backward, Cx, How, Info, Node, Source, record};

const ONE: Scalar = Scalar::Int(1);
const NONE: Scalar = Scalar::Int(0);
fn along(a: &Array, dim: i64) -> Result<usize> {
    wrap_dim(dim, a.ndim())
}
fn sizes_shown(d: Dims) -> Attr {
    Attr::Ints(d.to_i64())
}

// ---- lists of indices: `x[i, :, j]` ----
/// As many indices as a list may have.
const MOST: usize = 64;
const fn slots(from: u8) -> [(&'static str, Source); MOST] {
    let mut s = [("indices", Source::Input(0)); MOST];
    let mut i = 0;
    while i < MOST {
        s[i].1 = Source::Input(from + i as u8);
        i += 1;
    }
    s
}
const ORDER: [u8; MOST] = {
    let mut order = [0; MOST];
    let mut i = 0;
    while i < MOST {
        order[i] = i as u8;
        i += 1;
    }
    order
};
static INDEX: Info = Info {
    node: "IndexBackward0",
    op: "index",
    schema: "index.Tensor",
    inputs: &["self", "indices"],
    saves: &slots(1),
    uses: crate::tape::Uses::of(&[(0, &ORDER)]),
    ..LISTED
};
static INDEX_PUT: Info = Info {
    node: "IndexPutBackward0",
    op: "index_put",
    schema: "index_put",
    inputs: &["self", "values", "indices"],
    saves: &slots(2),
    uses: crate::tape::Uses::of(&[(0, &ORDER), (1, &ORDER)]),
    ..LISTED
};
/// What both have in common.
const LISTED: Info = Info { order: &ORDER, ..PLAIN };
/// The indices that a node saved.
fn saved_list(cx: &Cx<'_>, first: usize) -> Result<Vec<Option<Tensor>>> {
    (0..cx.node.inputs.len() - first).map(|i| cx.saved_opt(i)).collect()
}
fn handles(x: &[Option<&Array>]) -> Vec<Option<Array>> {
    x.iter().map(|a| a.cloned()).collect()
}
fn at_most(indices: &[Option<Tensor>]) -> Result<()> {
    if indices.len() > MOST {
        bail!(Index, "too many indices: {} where {MOST} are possible", indices.len());
    }
    Ok(())
}
struct IndexBackward0;
impl Backward for IndexBackward0 {
    fn info(&self) -> &'static Info {
        &INDEX
    }
    fn list(&self) -> Option<(&'static str, usize)> {
        Some(("indices", 0))
    }
    fn operands(&self) -> Option<(&'static str, usize)> {
        Some(("indices", 1))
    }
    fn attrs(&self, node: &Node) -> Vec<(&'static str, Attr)> {
        vec![("self_sym_sizes", sizes_shown(node.shape(0)))]
    }
    fn backward(&self, g: &[Option<Tensor>], cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
        if let Some(g) = g[0].as_ref().filter(|_| cx.needs(0)) {
            let zeros = zeros(cx.shape(0), cx.dtype(0))?;
            grads[0] = Some(index_put(&zeros, saved_list(cx, 1)?, &to_dtype(g, cx.dtype(0))?, true)?);
        }
        Ok(())
    }
}
/// Elements (or slices) where `indices` say: one tensor of integers or a mask for each dimension (a mask for as many as it has), None for
/// a whole one.
pub fn index(t: &Tensor, indices: Vec<Option<Tensor>>) -> Result<Tensor> {
    at_most(&indices)?;
    let inputs: Vec<Option<&Tensor>> = [Some(t)].into_iter().chain(indices.iter().map(Option::as_ref)).collect();
    let forward = |x: &[Option<&Array>], _: crate::kernels::Out<'_>| places::index(x[0].expect("index has an operand"), &handles(&x[1..]));
    record(How::Fresh, &INDEX, &inputs, &forward, &|| Box::new(IndexBackward0))
}
function! {
    /// Elements (or slices) where `indices` say: what `self[indices]` computes for tensors of indices.
    fn index_at(self_; indices: Vec<Option<Tensor>>) -> Tensor;
    overload index;
    on [private];
    records INDEX;
    { index(self_, indices) }
}
struct IndexPutBackward0 {
    accumulate: bool,
}
impl Backward for IndexPutBackward0 {
    fn info(&self) -> &'static Info {
        &INDEX_PUT
    }
    fn list(&self) -> Option<(&'static str, usize)> {
        Some(("indices", 0))
    }
    fn operands(&self) -> Option<(&'static str, usize)> {
        Some(("indices", 2))
    }
    fn params(&self) -> Named {
        vec![("accumulate", self.accumulate.arg())]
    }
    fn attrs(&self, _: &Node) -> Vec<(&'static str, Attr)> {
        vec![("accumulate", self.accumulate.attr())]
    }
    fn backward(&self, g: &[Option<Tensor>], cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
        let Some(g) = &g[0] else { return Ok(()) };
        if cx.needs(0) {
            let kept = || index_put(g, saved_list(cx, 2)?, &zeros(Dims::default(), g.dtype())?, false);
            grads[0] = Some(if self.accumulate { g.clone() } else { kept()? });
        }
        if cx.needs(1) {
            grads[1] = Some(sum_to(&index(g, saved_list(cx, 2)?)?, &cx.shape(1))?);
        }
        Ok(())
    }
}
fn put(how: How<'_>, t: &Tensor, indices: Vec<Option<Tensor>>, values: &Tensor, accumulate: bool) -> Result<Tensor> {
    at_most(&indices)?;
    let inputs: Vec<Option<&Tensor>> = [Some(t), Some(values)].into_iter().chain(indices.iter().map(Option::as_ref)).collect();
    let forward = |x: &[Option<&Array>], out: crate::kernels::Out<'_>| {
        let (Some(a), Some(values)) = (x[0], x[1]) else { unreachable!("index_put has two operands") };
        places::index_put(out, a, &handles(&x[2..]), values, accumulate)
    };
    record(how, &INDEX_PUT, &inputs, &forward, &|| Box::new(IndexPutBackward0 { accumulate }))
}
/// A copy of `t` with `values` where `indices` say; with `accumulate` they are added to what is there.
pub fn index_put(t: &Tensor, indices: Vec<Option<Tensor>>, values: &Tensor, accumulate: bool) -> Result<Tensor> {
    put(How::Fresh, t, indices, values, accumulate)
}
/// `index_put`, in place.
pub fn index_put_(t: &Tensor, indices: Vec<Option<Tensor>>, values: &Tensor, accumulate: bool) -> Result<Tensor> {
    put(How::InPlace, t, indices, values, accumulate)
}
function! {
    /// A copy of `self` with `values` where `indices`, a tuple of tensors, say; with `accumulate` they are added to what is there.
    fn put_at(self_, values; indices: Vec<Option<Tensor>>, accumulate: bool = false) -> Tensor;
    overload index_put;
    order [self_, indices, values, accumulate];
    records INDEX_PUT;
    { index_put(self_, indices, values, accumulate) }
}
function! {
    /// `index_put`, in place.
    fn put_at_(self_, values; indices: Vec<Option<Tensor>>, accumulate: bool = false) -> Tensor;
    overload index_put_;
    order [self_, indices, values, accumulate];
    records INDEX_PUT;
    { index_put_(self_, indices, values, accumulate) }
}

// ---- along one dimension ----
op! {
    /// The slices along `dim` that the vector `index` names.
    IndexSelectBackward0 = fn index_select(self_, index; dim: i64);
    order [self_, dim, index];
    forward(_out) places::index_select(self_, along(self_, *dim)?, index);
    saves [index];
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [index] => index_add(&zeros(cx.shape(0), g.dtype())?, index, g, *dim, ONE) }
}
op! {
    /// `self` with `alpha` times the slices of `source` added to those that `index` names.
    IndexAddBackward0 = fn index_add(self_, index, source; dim: i64; *, alpha: Scalar = Scalar::Int(1));
    inplace index_add_;
    order [self_, dim, index, source, alpha];
    forward(out) places::index_add(out, self_, along(self_, *dim)?, index, source, *alpha);
    saves [index, source];
    shows { source_dim: cx.shape(2).len().attr() };
    grad(g, cx) {
        self_ uses [] => Ok(g.clone()),
        source uses [index, source] => { let _ = source; picked(g, index, *dim, &cx.shape(2)).and_then(|t| arith::scaled(&t, *alpha)) },
    }
}
/// The slices of `g` that `index` names, in the shape of the source that went there.
fn picked(g: &Tensor, index: &Tensor, dim: i64, shape: &Dims) -> Result<Tensor> {
    let t = index_select(g, index, dim)?;
    if t.shape() == *shape { Ok(t) } else { reshape(&t, Sizes::of(shape)) }
}
op! {
    /// `self` with the slices that `index` names replaced by those of `source`.
    IndexCopyBackward0 = fn index_copy(self_, index, source; dim: i64);
    inplace index_copy_;
    order [self_, dim, index, source];
    forward(out) places::index_copy(out, self_, along(self_, *dim)?, index, source);
    saves [index, source];
    shows { source_dim: cx.shape(2).len().attr() };
    grad(g, cx) {
        self_ uses [index] => index_fill(g, index, *dim, NONE),
        source uses [index, source] => { let _ = source; picked(g, index, *dim, &cx.shape(2)) },
    }
}
op! {
    /// `self` with `value` in the slices along `dim` that `index` names.
    IndexFillBackward0 = fn index_fill(self_, index; dim: i64, value: Scalar);
    schema "index_fill.int_Scalar";
    inplace index_fill_;
    order [self_, dim, index, value];
    forward(out) places::index_fill(out, self_, along(self_, *dim)?, index, *value);
    saves [index];
    grad(g, cx) { self_ uses [index] => index_fill(g, index, *dim, NONE) }
}
op! {
    /// `self` with the value of a 0-d tensor in the slices that `index` names.
    IndexFillBackward1 = fn index_fill_tensor(self_, index, value; dim: i64);
    schema "index_fill.int_Tensor";
    overload index_fill;
    inplace index_fill_tensor_;
    order [self_, dim, index, value];
    forward(out) {
        if value.ndim() != 0 {
            bail!(Runtime, "index_fill(): only supports a 0-dimensional value tensor, but got tensor with {} dimension(s).", value.ndim());
        }
        places::index_fill(out, self_, along(self_, *dim)?, index, value.item())
    };
    saves [index];
    grad(g, cx) {
        self_ uses [index] => index_fill(g, index, *dim, NONE),
        value uses [index] => sum(&index_select(g, index, *dim)?, None),
    }
}
op! {
    /// The elements whose place along `dim` `index` says: result[i][j] = self[index[i][j]][j] for dim 0.
    GatherBackward0 = fn gather(self_, index; dim: i64; *, sparse_grad: bool = false);
    order [self_, dim, index, sparse_grad];
    forward(_out) { let _ = sparse_grad; places::gather(self_, along(self_, *dim)?, index) };
    saves [self_, index];
    grad(g, cx) { self_ uses [self_, index] => { let _ = self_; scatter_add(&zeros(cx.shape(0), g.dtype())?, index, g, *dim) } }
}
op! {
    /// `self` with elements of `src` put where `index` says along `dim`: result[index[i][j]][j] = src[i][j] for dim 0.
    ScatterBackward0 = fn scatter(self_, index, src; dim: i64);
    schema "scatter.src";
    inplace scatter_;
    order [self_, dim, index, src];
    forward(out) places::scatter(out, self_, along(self_, *dim)?, index, src);
    saves [index];
    grad(g, cx) {
        self_ uses [index] => scatter_value(g, index, *dim, NONE),
        src uses [index] => gather(g, index, *dim, false),
    }
}
op! {
    /// `self` with `value` where `index` says along `dim`.
    ScatterBackward1 = fn scatter_value(self_, index; dim: i64, value: Scalar);
    schema "scatter.value";
    overload scatter;
    inplace scatter_value_;
    order [self_, dim, index, value];
    forward(out) places::scatter_value(out, self_, along(self_, *dim)?, index, *value);
    saves [index];
    grad(g, cx) { self_ uses [index] => scatter_value(g, index, *dim, NONE) }
}
fn how(op: &str, reduce: &str) -> Result<places::Reduce> {
    use places::Reduce;
    Ok(match reduce {
        "sum" => Reduce::Sum,
        "prod" => Reduce::Prod,
        "mean" => Reduce::Mean,
        "amax" => Reduce::Max,
        "amin" => Reduce::Min,
        _ => bail!(Runtime, "{op}(): reduce argument must be either sum, prod, mean, amax or amin, got {reduce}."),
    })
}
op! {
    /// `scatter` where elements are added ("add") or multiplied ("multiply") to what is there. Has no derivative: see `scatter_reduce`.
    ScatterBackward2 = fn scatter_joined(self_, index, src | number; dim: i64; *, reduce: String);
    schema "scatter.reduce";
    overload scatter;
    inplace scatter_joined_;
    order [self_, dim, index, src, reduce];
    forward(out) {
        let how = match reduce.as_str() {
            "add" => places::Reduce::Sum,
            "multiply" => places::Reduce::Prod,
            _ => bail!(Runtime, "scatter(): reduce argument must be either add or multiply, got {reduce}"),
        };
        let one = src.ndim() == 0 && index.ndim() > 0;
        let src = crate::kernels::pointwise::cast(src, self_.dtype)?;
        let src = if one { src.view(index.shape, index.shape.iter().map(|_| 0).collect(), src.offset) } else { src };
        places::scatter_reduce(out, self_, along(self_, *dim)?, index, &src, how, true)
    };
    grad(g, cx) {
        self_ uses [] => Err(crate::error::err!(NotImplemented, "derivative for scatter with reduce={reduce:?} is not implemented; scatter_reduce has one")),
        src uses [] => Err(crate::error::err!(NotImplemented, "derivative for scatter with reduce={reduce:?} is not implemented; scatter_reduce has one")),
    }
}
op! {
    /// `self` with elements of `src` added where `index` says along `dim`.
    ScatterAddBackward0 = fn scatter_add(self_, index, src; dim: i64);
    inplace scatter_add_;
    order [self_, dim, index, src];
    forward(out) places::scatter_add(out, self_, along(self_, *dim)?, index, src);
    saves [index];
    grad(g, cx) {
        self_ uses [] => Ok(g.clone()),
        src uses [index] => gather(g, index, *dim, false),
    }
}
op! {
    /// `self` with elements of `src` joined, by "sum", "prod", "mean", "amax" or "amin", where `index` says along `dim`; what was there is
    /// joined, too, if `include_self`.
    ScatterReduceBackward0 = fn scatter_reduce(self_, index, src; dim: i64, reduce: String; *, include_self: bool = true);
    schema "scatter_reduce.two";
    inplace scatter_reduce_;
    order [self_, dim, index, src, reduce, include_self];
    forward(out) places::scatter_reduce(out, self_, along(self_, *dim)?, index, src, how("scatter_reduce", reduce)?, *include_self);
    saves [self_, index, src, result];
    grad(g, cx) {
        self_ uses [self_, index, src, result] => Reduced { g, to: self_, index, src, result, dim: *dim, own: *include_self }.by_self(reduce),
        src uses [self_, index, src, result] => Reduced { g, to: self_, index, src, result, dim: *dim, own: *include_self }.by_src(reduce),
    }
}
/// The gradients of `scatter_reduce`.
struct Reduced<'a> {
    g: &'a Tensor,
    to: &'a Tensor,
    index: &'a Tensor,
    src: &'a Tensor,
    result: &'a Tensor,
    dim: i64,
    own: bool,
}
impl Reduced<'_> {
    fn like(&self, t: &Tensor, v: f64) -> Result<Tensor> {
        expand(&scalar_like(self.g, v)?, Sizes::of(&t.shape()))
    }
    fn gathered(&self, t: &Tensor) -> Result<Tensor> {
        gather(t, self.index, self.dim, false)
    }
    fn equal(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        to_dtype(&eq(a, b)?, self.g.dtype())
    }
    /// Where nothing of `self` counts it has no gradient.
    fn owned(&self, t: Tensor) -> Result<Tensor> {
        if self.own { Ok(t) } else { scatter_value(&t, self.index, self.dim, NONE) }
    }
    /// `g` by how many elements were joined in each place, or were equal to the extreme there.
    fn shared(&self, extreme: bool) -> Result<Tensor> {
        let count = if extreme {
            let own = self.owned(self.equal(self.to, self.result)?)?;
            scatter_add(&own, self.index, &self.equal(self.src, &self.gathered(self.result)?)?, self.dim)?
        } else {
            let own = self.like(self.to, if self.own { 1.0 } else { 0.0 })?;
            scatter_add(&own, self.index, &self.like(self.src, 1.0)?, self.dim)?
        };
        div(self.g, &masked_fill(&count, &eq(&count, &number(0.0)?)?, ONE)?)
    }
    fn product(&self, to: &Tensor, src: &Tensor) -> Result<Tensor> {
        scatter_reduce(to, self.index, src, self.dim, "prod".into(), self.own)
    }
    fn by_self(&self, reduce: &str) -> Result<Tensor> {
        self.owned(match reduce {
            "sum" => self.g.clone(),
            "mean" => self.shared(false)?,
            "prod" => {
                let filled = masked_fill(self.to, &eq(self.to, &number(0.0)?)?, ONE)?;
                div(&mul(self.g, &self.product(&filled, self.src)?)?, &filled)?
            }
            _ => mul(&self.equal(self.to, self.result)?, &self.shared(true)?)?,
        })
    }
    fn by_src(&self, reduce: &str) -> Result<Tensor> {
        match reduce {
            "sum" => self.gathered(self.g),
            "mean" => self.gathered(&self.shared(false)?),
            "prod" => {
                let zero = eq(self.src, &number(0.0)?)?;
                let zeros = to_dtype(&zero, self.g.dtype())?;
                let count = self.gathered(&scatter_add(&self.like(self.to, 0.0)?, self.index, &zeros, self.dim)?)?;
                let single = logical_and(&zero, &eq(&count, &number(1.0)?)?)?;
                let without = self.product(self.to, &masked_fill(self.src, &single, ONE)?)?;
                let filled = masked_fill(self.src, &zero, ONE)?;
                let plain = div(&self.gathered(&mul(self.g, self.result)?)?, &filled)?;
                where_(&single, &self.gathered(&mul(self.g, &without)?)?, &plain)
            }
            _ => mul(&self.equal(self.src, &self.gathered(self.result)?)?, &self.gathered(&self.shared(true)?)?),
        }
    }
}
/// `index`, for whole slices, as `scatter` wants it.
fn for_slices(index: &Tensor, source: &Tensor, dim: i64) -> Result<Tensor> {
    let shape = source.shape();
    let d = wrap_dim(dim, shape.len())?;
    if index.ndim() > 1 || shape.is_empty() {
        bail!(
            Index,
            "index_reduce(): Expected dtype int32/int64 vector for index and a source of at least one dimension, got shapes {:?} and {shape:?}",
            index.shape()
        );
    }
    let row = (0..shape.len()).map(|i| if i == d { -1 } else { 1 }).collect();
    expand(&reshape(index, Sizes(row))?, Sizes::of(&shape))
}
function! {
    /// `self` with slices of `source` joined, by "prod", "mean", "amax" or "amin", where `index` says along `dim`.
    fn index_reduce(self_, index, source; dim: i64, reduce: String; *, include_self: bool = true) -> Tensor;
    order [self_, dim, index, source, reduce, include_self];
    { scatter_reduce(self_, &for_slices(index, source, dim)?, source, dim, reduce, include_self) }
}
function! {
    /// `index_reduce`, in place.
    fn index_reduce_(self_, index, source; dim: i64, reduce: String; *, include_self: bool = true) -> Tensor;
    on [method];
    order [self_, dim, index, source, reduce, include_self];
    { scatter_reduce_(self_, &for_slices(index, source, dim)?, source, dim, reduce, include_self) }
}
function! {
    /// `gather` where `indices` and `self` are broadcast against each other apart from `dim`; without `dim`, over the flat elements.
    fn take_along_dim(self_, indices; dim: Option<i64> = None) -> Tensor;
    {
        let Some(dim) = dim else { return gather(&reshape(self_, Sizes::from_slice(&[-1]))?, &reshape(indices, Sizes::from_slice(&[-1]))?, 0, false) };
        let (a, i) = (self_.shape(), indices.shape());
        if a.len() != i.len() {
            bail!(Runtime, "torch.take_along_dim(): input and indices should have the same number of dimensions, but got {} dimensions for input, and {} dimensions for indices", a.len(), i.len());
        }
        let d = wrap_dim(dim, a.len())?;
        if a.is_empty() {
            return gather(self_, indices, dim, false);
        }
        let common = broadcast("take_along_dim", &a.with(|s| s[d] = 1), &i.with(|s| s[d] = 1))?;
        let to = |t: &Tensor, n: usize| expand(t, Sizes::of(&common.with(|s| s[d] = n)));
        gather(&to(self_, a[d])?, &to(indices, i[d])?, dim, false)
    }
}

// ---- by masks, by number ----
op! {
    /// The elements that `mask` marks, in one dimension; both are broadcast.
    MaskedSelectBackward0 = fn masked_select(self_, mask);
    forward(_out) places::masked_select(self_, mask);
    saves [self_, mask];
    grad(g, cx) { self_ uses [self_, mask] => {
        let full = broadcast("masked_select", &self_.shape(), &mask.shape())?;
        sum_to(&masked_scatter(&zeros(full, g.dtype())?, mask, g)?, &cx.shape(0))
    } }
}
op! {
    /// `self` with the elements that `mask` marks taken from `source`, one after another.
    MaskedScatterBackward0 = fn masked_scatter(self_, mask, source);
    inplace masked_scatter_;
    forward(out) places::masked_scatter(out, self_, mask, source);
    saves [mask];
    shows { source_sym_sizes: sizes_shown(cx.shape(2)) };
    grad(g, cx) {
        self_ uses [mask] => masked_fill(g, mask, NONE),
        source uses [mask] => {
            let (taken, shape) = (masked_select(g, mask)?, cx.shape(2));
            let rest = shape.numel() - taken.shape()[0];
            let all = if rest > 0 { cat(vec![taken, zeros(Dims::of(&[rest]), g.dtype())?], 0)? } else { taken };
            reshape(&all, Sizes::of(&shape))
        },
    }
}
op! {
    /// Elements by their number in row-major order.
    TakeBackward0 = fn take(self_, index);
    forward(_out) places::take(self_, index);
    saves [self_, index];
    grad(g, cx) { self_ uses [self_, index] => { let _ = self_; put_flat(&zeros(cx.shape(0), g.dtype())?, index, g, true) } }
}
op! {
    /// `self` with elements, by their number in row-major order, replaced or added to.
    PutBackward0 = fn put_flat(self_, index, source; accumulate: bool = false);
    schema "put";
    overload put;
    inplace put_flat_;
    on [function, method];
    forward(out) places::put(out, self_, index, source, *accumulate);
    saves [index];
    grad(g, cx) {
        self_ uses [index] => if *accumulate { Ok(g.clone()) } else { put_flat(g, index, &zeros(index.shape(), g.dtype())?, false) },
        source uses [index] => reshape(&take(g, index)?, Sizes::of(&cx.shape(2))),
    }
}
function! {
    /// The indices of the elements that are not zero, one a row.
    fn nonzero_rows(self_) -> Tensor;
    on [private];
    schema "nonzero";
    { Ok(Tensor::new(places::nonzero(&self_.array())?)) }
}
function! {
    /// The indices of the elements that are not zero: a matrix with a row for each, or with `as_tuple` a vector for each dimension.
    fn nonzero(self_; *, as_tuple: bool = false) -> Found;
    {
        let found = nonzero_rows(self_)?;
        if !as_tuple {
            return Ok(Found::One(found));
        }
        // a 0-d tensor counts as a vector of one
        let found = if self_.ndim() == 0 { zeros(Dims::of(&[found.shape()[0], 1]), DType::Int64)? } else { found };
        Ok(Found::Many(unbind(&found, 1)?))
    }
}
function! {
    /// The indices of the elements that are not zero, one a row.
    fn argwhere(self_) -> Tensor;
    { nonzero_rows(self_) }
}

// ---- tables ----
op! {
    /// Rows of `weight` by number. Rows `padding_idx` get no gradient; with `scale_grad_by_freq` gradients are divided by how often a row
    /// was taken.
    EmbeddingBackward0 = fn embedding(weight, indices; padding_idx: i64 = -1, scale_grad_by_freq: bool = false, sparse: bool = false);
    on [function];
    forward(_out) { let _ = (padding_idx, scale_grad_by_freq, sparse); places::embedding(weight, indices) };
    saves [indices];
    shows { weight_sym_argsize_0: cx.shape(0)[0].attr() };
    grad(g, cx) { weight uses [indices] => embedding_backward(g, indices, cx.shape(0)[0] as i64, *padding_idx, *scale_grad_by_freq) }
}
op! {
    /// Gradient of `embedding`.
    EmbeddingDenseBackwardBackward0 = fn embedding_backward(grad_output, indices; num_weights: i64, padding_idx: i64, scale_grad_by_freq: bool);
    schema "embedding_dense_backward";
    on [private];
    forward(_out) places::embedding_backward(grad_output, indices, *num_weights as usize, *padding_idx, *scale_grad_by_freq);
    saves [indices];
    grad(g, cx) { grad_output uses [indices] => {
        if *scale_grad_by_freq {
            bail!(Runtime, "double backward for embedding with scale_grad_by_freq is not supported");
        }
        let rows = embedding(g, indices, -1, false, false)?;
        if *padding_idx < 0 {
            Ok(rows)
        } else {
            masked_fill(&rows, &unsqueeze(&eq(indices, &number(*padding_idx)?)?, -1)?, NONE)
        }
    } }
}
function! {
    /// Ones at the class of each element, in one more dimension; as many classes as `num_classes`, or as are needed if that is -1.
    fn one_hot(self_; num_classes: i64 = -1) -> Tensor;
    on [nn];
    schema "one_hot";
    {
        let classes = if num_classes == -1 { None } else { Some(num_classes) };
        Ok(Tensor::new(places::one_hot(&self_.array(), classes)?))
    }
}
function! {
    /// How often each number from 0 on occurs, or the sum of its weights; at least `minlength` of them.
    fn bincount(self_, weights | optional; minlength: i64 = 0) -> Tensor;
    schema "bincount";
    {
        Ok(Tensor::new(places::bincount(&self_.array(), weights.map(Tensor::array).as_ref(), minlength)?))
    }
}

// ---- turned ----
fn wrapped(dims: &[i64], a: &Array) -> Result<Vec<usize>> {
    wrap_dims(dims, a.ndim())
}
op! {
    /// Back to front along `dims`.
    FlipBackward0 = fn flip(self_; dims: Sizes);
    forward(_out) places::flip(self_, &wrapped(dims, self_)?);
    grad(g, cx) { self_ uses [] => flip(g, dims.clone()) }
}
function! {
    /// Columns back to front.
    fn fliplr(self_) -> Tensor;
    {
        if self_.ndim() < 2 {
            bail!(Runtime, "Input must be >= 2-d.");
        }
        flip(self_, Sizes::from_slice(&[1]))
    }
}
function! {
    /// Rows back to front.
    fn flipud(self_) -> Tensor;
    {
        if self_.ndim() < 1 {
            bail!(Runtime, "Input must be >= 1-d.");
        }
        flip(self_, Sizes::from_slice(&[0]))
    }
}
op! {
    /// Shifted by `shifts` places along `dims`, what leaves at the end coming back at the start; without `dims` as if flat.
    RollBackward0 = fn roll(self_; shifts: Ints, dims: Ints = Ints::default());
    forward(_out) places::roll(self_, shifts, &wrapped(dims, self_)?);
    grad(g, cx) { self_ uses [] => roll(g, Ints(shifts.iter().map(|s| -s).collect()), dims.clone()) }
}
op! {
    /// Turned by `k` quarters in the plane of two dimensions, from the first towards the second.
    Rot90Backward0 = fn rot90(self_; k: i64 = 1, dims: Ints = Ints::of(&[0, 1]));
    forward(_out) {
        if dims.len() != 2 {
            bail!(Runtime, "expected total rotation dims == 2, but got dims = {}", dims.len());
        }
        let d = wrapped(dims, self_)?;
        let swap = |a: &Array| a.view(a.shape.with(|s| s.swap(d[0], d[1])), a.strides.with(|s| s.swap(d[0], d[1])), a.offset);
        match k.rem_euclid(4) {
            0 => places::flip(self_, &[]),
            1 => places::flip(&swap(self_), &d[..1]),
            2 => places::flip(self_, &d),
            _ => places::flip(&swap(self_), &d[1..]),
        }
    };
    grad(g, cx) { self_ uses [] => rot90(g, -k, dims.clone()) }
}
op! {
    /// Matrices without what is above diagonal `diagonal`.
    TrilBackward0 = fn tril(self_; diagonal: i64 = 0);
    inplace tril_;
    forward(_out) places::tril(self_, *diagonal);
    grad(g, cx) { self_ uses [] => tril(g, *diagonal) }
}
op! {
    /// Matrices without what is below diagonal `diagonal`.
    TriuBackward0 = fn triu(self_; diagonal: i64 = 0);
    inplace triu_;
    forward(_out) places::triu(self_, *diagonal);
    grad(g, cx) { self_ uses [] => triu(g, *diagonal) }
}
op! {
    /// Matrices, in dimensions `dim1` and `dim2`, that are zero but for the last dimension of `self` on a diagonal.
    DiagEmbedBackward0 = fn diag_embed(self_; offset: i64 = 0, dim1: i64 = -2, dim2: i64 = -1);
    forward(_out) {
        let n = self_.ndim() + 1;
        places::diag_embed(self_, *offset, wrap_dim(*dim1, n)?, wrap_dim(*dim2, n)?)
    };
    grad(g, cx) { self_ uses [] => diagonal(g, *offset, *dim1, *dim2) }
}
op! {
    /// A copy of a diagonal.
    DiagonalBackward0_copy = fn diagonal_copy(self_; offset: i64 = 0, dim1: i64 = 0, dim2: i64 = 1);
    on [function];
    forward(_out) {
        let (x, y) = (along(self_, *dim1)?, along(self_, *dim2)?);
        crate::kernels::pointwise::cast(&places::diagonal(self_, *offset, x, y)?, self_.dtype)
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => diagonal_backward(g, Sizes::of(&cx.shape(0)), *offset, *dim1, *dim2) }
}
function! {
    /// A vector as a diagonal matrix, or the diagonal of a matrix.
    fn diag(self_; diagonal: i64 = 0) -> Tensor;
    {
        match self_.ndim() {
            1 => diag_embed(self_, diagonal, 0, 1),
            2 => diagonal_copy(self_, diagonal, 0, 1),
            n => bail!(Runtime, "diag(): Supports 1D or 2D tensors. Got {n}D"),
        }
    }
}
function! {
    /// All elements as a diagonal matrix.
    fn diagflat(self_; offset: i64 = 0) -> Tensor;
    { diag_embed(&reshape(self_, Sizes::from_slice(&[-1]))?, offset, 0, 1) }
}

// ---- repeated ----
op! {
    /// Tiled so many times along each dimension, counted from the last; more counts than dimensions make new ones.
    RepeatBackward0 = fn repeat(self_; repeats: Sizes);
    on [method];
    forward(_out) places::repeat(self_, repeats);
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => {
        let shape = cx.shape(0);
        let lead = repeats.len() - shape.len();
        let parts = repeats.iter().enumerate().flat_map(|(i, &r)| [r, if i < lead { 1 } else { shape[i - lead] as i64 }]);
        let dims: Ints = Ints((0..repeats.len() as i64).map(|d| 2 * d).collect());
        if repeats.is_empty() { Ok(g.clone()) } else {
            reshape(&sum_dim(&reshape(g, Sizes(parts.collect()))?, Some(dims), false, None)?, Sizes::of(&shape))
        }
    } }
}
function! {
    /// As `repeat`, counts that are left out being 1.
    fn tile(self_; dims: Sizes) -> Tensor;
    {
        let missing = self_.ndim().saturating_sub(dims.len());
        repeat(self_, Sizes(std::iter::repeat_n(1, missing).chain(dims.iter().copied()).collect()))
    }
}
function! {
    /// Each number `i` as often as `repeats[i]` says.
    fn repeat_each_index(repeats; *, output_size: Option<i64> = None) -> Tensor;
    overload repeat_interleave;
    on [function];
    schema "repeat_interleave.Tensor";
    { let _ = output_size; Ok(Tensor::new(places::repeat_interleave(&repeats.array())?)) }
}
function! {
    /// Each slice along `dim` (each element if None) repeated `repeats` times.
    fn repeat_interleave(self_; repeats: i64, dim: Option<i64> = None; *, output_size: Option<i64> = None) -> Tensor;
    {
        let _ = output_size;
        let flat = if dim.is_none() || self_.ndim() == 0 { reshape(self_, Sizes::from_slice(&[-1]))? } else { self_.clone() };
        if repeats < 0 {
            bail!(Runtime, "repeat_interleave(): Repeats must be non-negative, got {repeats}");
        }
        let shape = flat.shape();
        let d = wrap_dim(dim.unwrap_or(0), shape.len())?;
        let wide = expand(&unsqueeze(&flat, d as i64 + 1)?, Sizes::of(&shape.with(|s| s.insert(d + 1, repeats as usize))))?;
        let copy = clone(&wide, Some("contiguous_format".into()))?;
        view(&copy, Sizes::of(&shape.with(|s| s[d] *= repeats as usize)))
    }
}
function! {
    /// Each slice along `dim` (each element if None) as often as `repeats` says for it.
    fn repeat_interleave_each(self_, repeats; dim: Option<i64> = None; *, output_size: Option<i64> = None) -> Tensor;
    overload repeat_interleave;
    {
        let _ = output_size;
        let flat = if dim.is_none() || self_.ndim() == 0 { reshape(self_, Sizes::from_slice(&[-1]))? } else { self_.clone() };
        let d = wrap_dim(dim.unwrap_or(0), flat.ndim())?;
        let (n, given) = (flat.shape()[d], repeats.shape());
        if given.len() > 1 || (given.numel() != 1 && given.numel() != n) {
            bail!(Runtime, "repeat_interleave(): repeats must have the same size as input along dim, but got repeats.size(0) = {} and input.size({d}) = {n}", given.numel());
        }
        let each = expand(&reshape(repeats, Sizes::from_slice(&[-1]))?, Sizes::of(&[n]))?;
        index_select(&flat, &Tensor::new(places::repeat_interleave(&each.array())?), d as i64)
    }
}
/// Is any element not zero? For choices that a formula makes by value.
pub(super) fn any_true(mask: &Tensor) -> Result<bool> {
    Ok(folds::any(&mask.array(), folds::Axes::All, false)?.item().to_f64() != 0.0)
}
