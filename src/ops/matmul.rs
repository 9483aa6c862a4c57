//! Products of matrices and vectors: the plain ones as ops, `matmul`, `linear`, `einsum` and their like composed of them. Nothing is made
//! contiguous for a product's sake: kernels take any strides. The gradient of a matrix that lies transposed is laid out as it is.
use super::arith::scaled;
use super::macros::{function, op};
use super::*;
use crate::error::bail;
use crate::kernels::{Out, matmul as products, pointwise, reduce, table};
use crate::layout::{broadcast, wrap_dim, wrap_dims};
use crate::ops::unary::zeros_of;
use crate::tape::record::into_out;

const ONE: Scalar = Scalar::Int(1);

/// Leaves the result of a composition in `out=`, where it is given.
pub(super) fn given_out(op: &'static str, out: Option<Tensor>, value: Tensor) -> Result<Tensor> {
    match out {
        Some(o) => into_out(op, &o, &value),
        None => Ok(value),
    }
}
/// A row-major array under another shape.
fn as_shape(a: &Array, shape: &[usize]) -> Array {
    let shape = Dims::of(shape);
    a.view(shape, shape.strides(), a.offset)
}
/// A vector as a matrix of one column.
fn column(v: &Array) -> Array {
    v.view(Dims::of(&[v.shape[0], 1]), Dims::of(&[v.strides[0], 1]), v.offset)
}
fn strides_of(t: &Tensor) -> Dims {
    t.look(|a| a.strides)
}
/// Do the elements of a column follow each other, and the columns too?
fn lies_turned(shape: &Dims, strides: &Dims) -> bool {
    strides[0] == 1 && strides[1] == shape[0]
}
/// Gradient of the left matrix of a product, laid out as that matrix was.
fn left_grad(g: &Tensor, right: &Tensor, shape: &Dims, strides: &Dims, alpha: Scalar) -> Result<Tensor> {
    let d = if lies_turned(shape, strides) { t(&mm(right, &t(g)?)?)? } else { mm(g, &t(right)?)? };
    scaled(&d, alpha)
}
/// Gradient of the right matrix of a product, laid out as that matrix was.
fn right_grad(g: &Tensor, left: &Tensor, shape: &Dims, strides: &Dims, alpha: Scalar) -> Result<Tensor> {
    let d = if lies_turned(shape, strides) { t(&mm(&t(g)?, left)?)? } else { mm(&t(left)?, g)? };
    scaled(&d, alpha)
}
fn turned(x: &Tensor) -> Result<Tensor> {
    transpose(x, -2, -1)
}

// ---- products of two ----
op! {
    /// Product of two matrices: [n, m] by [m, p].
    MmBackward0 = fn mm(self_, mat2);
    notes { self_sym_strides: Dims = strides_of(self_), mat2_sym_strides: Dims = strides_of(mat2) };
    forward(_out) products::mm(self_, mat2);
    saves [self_, mat2];
    shows { self_sym_sizes: cx.shape(0).attr(), mat2_sym_sizes: cx.shape(1).attr() };
    grad(g, cx) {
        self_ uses [mat2] => left_grad(g, mat2, &cx.shape(0), self_sym_strides, ONE),
        mat2 uses [self_] => right_grad(g, self_, &cx.shape(1), mat2_sym_strides, ONE),
    }
}
op! {
    /// Products of two batches of matrices, one by one: [b, n, m] by [b, m, p].
    BmmBackward0 = fn bmm(self_, mat2);
    forward(_out) products::bmm(self_, mat2);
    saves [self_, mat2];
    grad(g, cx) {
        self_ uses [mat2] => bmm(g, &turned(mat2)?),
        mat2 uses [self_] => bmm(&turned(self_)?, g),
    }
}
op! {
    /// Product of a matrix [n, m] and a vector [m].
    MvBackward0 = fn mv(self_, vec);
    forward(_out) products::mv(self_, vec);
    saves [self_, vec];
    grad(g, cx) {
        self_ uses [vec] => outer(g, vec, None),
        vec uses [self_] => mv(&t(self_)?, g),
    }
}
op! {
    /// Dot product of two vectors.
    DotBackward0 = fn dot(self_, tensor);
    forward(_out) products::dot(self_, tensor);
    saves [self_, tensor];
    grad(g, cx) {
        self_ uses [tensor] => mul(g, tensor),
        tensor uses [self_] => mul(g, self_),
    }
}
op! {
    /// Dot product of two vectors.
    VdotBackward0 = fn vdot(self_, other);
    forward(_out) products::dot(self_, other);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [other] => mul(g, other),
        other uses [self_] => mul(g, self_),
    }
}

// ---- products and a term ----
op! {
    /// `beta * self + alpha * (mat1 @ mat2)`; `self` broadcasts. What `self` holds is not looked at where `beta` is 0.
    AddmmBackward0 = fn addmm(self_, mat1, mat2; *, beta: Scalar = Scalar::Int(1), alpha: Scalar = Scalar::Int(1));
    inplace addmm_;
    notes { mat1_sym_strides: Dims = strides_of(mat1), mat2_sym_strides: Dims = strides_of(mat2) };
    forward(_out) products::addmm(self_, mat1, mat2, *beta, *alpha);
    saves [mat1, mat2];
    shows { mat1_sym_sizes: cx.shape(1).attr(), mat2_sym_sizes: cx.shape(2).attr() };
    grad(g, cx) {
        self_ uses [] => scaled(g, *beta),
        mat1 uses [mat2] => left_grad(g, mat2, &cx.shape(1), mat1_sym_strides, *alpha),
        mat2 uses [mat1] => right_grad(g, mat1, &cx.shape(2), mat2_sym_strides, *alpha),
    }
}
op! {
    /// `beta * self + alpha * (mat @ vec)`.
    AddmvBackward0 = fn addmv(self_, mat, vec; *, beta: Scalar = Scalar::Int(1), alpha: Scalar = Scalar::Int(1));
    inplace addmv_;
    forward(_out) products::addmv(self_, mat, vec, *beta, *alpha);
    saves [mat, vec];
    grad(g, cx) {
        self_ uses [] => scaled(g, *beta),
        mat uses [vec] => scaled(&outer(g, vec, None)?, *alpha),
        vec uses [mat] => scaled(&mv(&t(mat)?, g)?, *alpha),
    }
}
op! {
    /// `beta * self + alpha * (batch1 @ batch2)`, matrix by matrix; `self` broadcasts.
    BaddbmmBackward0 = fn baddbmm(self_, batch1, batch2; *, beta: Scalar = Scalar::Int(1), alpha: Scalar = Scalar::Int(1));
    inplace baddbmm_;
    forward(_out) products::baddbmm(self_, batch1, batch2, *beta, *alpha);
    saves [batch1, batch2];
    grad(g, cx) {
        self_ uses [] => scaled(g, *beta),
        batch1 uses [batch2] => scaled(&bmm(g, &turned(batch2)?)?, *alpha),
        batch2 uses [batch1] => scaled(&bmm(&turned(batch1)?, g)?, *alpha),
    }
}
/// `g` once for each of `n` items of a batch.
fn batched(g: &Tensor, n: usize) -> Result<Tensor> {
    let shape = g.shape();
    expand(g, Sizes(std::iter::once(n).chain(shape.iter().copied()).map(|v| v as i64).collect()))
}
op! {
    /// `beta * self + alpha * sum over the batch of (batch1 @ batch2)`; `self` broadcasts.
    AddbmmBackward0 = fn addbmm(self_, batch1, batch2; *, beta: Scalar = Scalar::Int(1), alpha: Scalar = Scalar::Int(1));
    inplace addbmm_;
    forward(_out) {
        if batch1.ndim() != 3 || batch2.ndim() != 3 || batch1.shape[0] != batch2.shape[0] {
            bail!(Runtime, "addbmm(): batch1 and batch2 must be 3D tensors with same number of batches, got {:?} and {:?}", batch1.shape, batch2.shape);
        }
        let item = |a: &Array, i: usize| a.view(Dims::of(&a.shape[1..]), Dims::of(&a.strides[1..]), a.offset + i * a.strides[0]);
        let mut sum = match batch1.shape[0] {
            0 => products::addmm(self_, &as_shape(batch1, &[batch1.shape[1], 0]), &as_shape(batch2, &[0, batch2.shape[2]]), *beta, *alpha)?,
            _ => products::addmm(self_, &item(batch1, 0), &item(batch2, 0), *beta, *alpha)?,
        };
        for i in 1..batch1.shape[0] {
            sum = products::addmm(&sum, &item(batch1, i), &item(batch2, i), ONE, *alpha)?;
        }
        Ok(sum)
    };
    saves [batch1, batch2];
    grad(g, cx) {
        self_ uses [] => scaled(g, *beta),
        batch1 uses [batch2] => scaled(&bmm(&batched(g, cx.shape(1)[0])?, &turned(batch2)?)?, *alpha),
        batch2 uses [batch1] => scaled(&bmm(&turned(batch1)?, &batched(g, cx.shape(2)[0])?)?, *alpha),
    }
}
op! {
    /// `beta * self + alpha * outer(vec1, vec2)`; `self` broadcasts.
    AddrBackward0 = fn addr(self_, vec1, vec2; *, beta: Scalar = Scalar::Int(1), alpha: Scalar = Scalar::Int(1));
    inplace addr_;
    forward(_out) {
        if vec1.ndim() != 1 || vec2.ndim() != 1 {
            bail!(Runtime, "addr: Expected 1-D argument vec1 and vec2, but got {}-D and {}-D", vec1.ndim(), vec2.ndim());
        }
        let product = pointwise::run(Out(None), "addr", &table::Mul {}, [&column(vec1), vec2])?;
        let full = self_.view(product.shape, crate::layout::expand(&self_.shape, &self_.strides, &broadcast_to_all("addr", self_, &product)?), self_.offset);
        if beta.is_zero() {
            let scale = Array::number(*alpha)?;
            let dtype = crate::dtype::promote([(self_.dtype, self_.rank()), (product.dtype, product.rank())]);
            return pointwise::cast(&pointwise::run(Out(None), "addr", &table::Mul {}, [&product, &scale])?, dtype);
        }
        let term = pointwise::run(Out(None), "addr", &table::Mul {}, [&full, &Array::number(*beta)?])?;
        pointwise::run(Out(None), "addr", &table::AddScaled { alpha: *alpha }, [&term, &product])
    };
    saves [vec1, vec2];
    grad(g, cx) {
        self_ uses [] => scaled(g, *beta),
        vec1 uses [vec2] => scaled(&mv(g, vec2)?, *alpha),
        vec2 uses [vec1] => scaled(&mv(&t(g)?, vec1)?, *alpha),
    }
}
/// The shape of `product`, to which `a` must broadcast.
fn broadcast_to_all(op: &'static str, a: &Array, product: &Array) -> Result<Dims> {
    let shape = broadcast(op, &a.shape, &product.shape)?;
    if shape != product.shape {
        bail!(Runtime, "{op}(): input of shape {:?} does not broadcast to the product's shape {:?}", a.shape, product.shape);
    }
    Ok(shape)
}

// ---- matmul and linear ----
op! {
    /// Without a dimension of length 1, on a tensor that nobody else will see.
    SqueezeBackward4 = fn squeezed_in_place(self_; dim: i64);
    schema "squeeze.dim";
    on [private];
    forward(_out) {
        let d = wrap_dim(*dim, self_.ndim())?;
        Ok(self_.view(self_.shape.with_removed(d), self_.strides.with_removed(d), self_.offset))
    };
    shows { self_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { self_ uses [] => unsqueeze(g, *dim) }
}
function! {
    /// Matrix product of two tensors. Vectors count as a row (the first) or a column (the second), dimensions before the last two are
    /// batches and broadcast.
    ///
    /// Raises RuntimeError where shapes or dtypes do not fit.
    fn matmul(self_, other; *, out: Option<Tensor> = None) -> Tensor;
    {
        let r = match (self_.ndim(), other.ndim()) {
            (2, 2) => mm(self_, other),
            (1, 1) => dot(self_, other),
            (2, 1) => mv(self_, other),
            (1, 2) => squeezed_in_place(&mm(&unsqueeze(self_, 0)?, other)?, 0),
            (0, _) | (_, 0) => bail!(Runtime, "both arguments to matmul need to be at least 1D, but they are {}D and {}D", self_.ndim(), other.ndim()),
            _ => of_batches(self_, other, out.is_some()),
        }?;
        given_out("matmul", out, r)
    }
}
fn sizes(s: &[usize]) -> Sizes {
    Sizes::of(s)
}
/// Products where at least one side has three dimensions or more: a batch times one matrix is one big product, else the batches are
/// multiplied item by item.
fn of_batches(a: &Tensor, b: &Tensor, has_out: bool) -> Result<Tensor> {
    let (na, nb) = (a.ndim(), b.ndim());
    if na >= 3 && nb <= 2 && folds(a, b, has_out) {
        return folded(a, b);
    }
    if nb >= 3 && na <= 2 && ((a.requires_grad() && !has_out) || (na == 1 && folds(&turned(b)?, a, has_out))) {
        let r = folded(&turned(b)?, &if na == 2 { t(a)? } else { a.clone() })?;
        return if na == 2 { clone(&turned(&r)?, Some("contiguous_format".into())) } else { Ok(r) };
    }
    let (sa, sb) = (a.shape(), b.shape());
    if na == 3 && nb == 3 && sa[0] != sb[0] {
        // A batch of one is not repeated if its gradient is wanted: that would be summed up again.
        if sa[0] == 1 && a.requires_grad() {
            return of_batches(&squeeze_dim(a, 0)?, b, has_out);
        }
        if sb[0] == 1 && b.requires_grad() {
            return of_batches(a, &squeeze_dim(b, 0)?, has_out);
        }
    }
    let (n, m) = if na > 1 { (sa[na - 2], sa[na - 1]) } else { (1, sa[0]) };
    let (k, p) = if nb > 1 { (sb[nb - 2], sb[nb - 1]) } else { (sb[0], 1) };
    let batch = broadcast("matmul", &Dims::of(&sa[..na.saturating_sub(2)]), &Dims::of(&sb[..nb.saturating_sub(2)]))?;
    let count = batch.numel();
    let left = flattened(a, &sa, &batch, &[count, n, m])?;
    let right = if nb > 1 { flattened(b, &sb, &batch, &[count, k, p])? } else { unsqueeze(&flattened(b, &sb, &batch, &[count, k])?, 2)? };
    let r = bmm(&left, &right)?;
    let r = if nb > 1 { r } else { squeeze_dim(&r, -1)? };
    let last = (na > 1).then_some(n).into_iter().chain((nb > 1).then_some(p));
    unsafe_view(&r, sizes(&batch.iter().copied().chain(last).collect::<SmallVec<[usize; 4]>>()))
}
/// `x`, its batch repeated to `batch`, with the batch as one dimension.
fn flattened(x: &Tensor, have: &Dims, batch: &Dims, flat: &[usize]) -> Result<Tensor> {
    let full: Dims = batch.iter().chain(&have[have.len().saturating_sub(2)..]).copied().collect();
    let x = if *have == full { x.clone() } else { expand(x, sizes(&full))? };
    reshape(&x, sizes(flat))
}
/// Is a batch times one matrix or vector one big product? Yes if the matrix wants its gradient (which is then one product too), or if
/// the batch and its rows lie as one dimension.
fn folds(batch: &Tensor, one: &Tensor, has_out: bool) -> bool {
    (one.requires_grad() && !has_out)
        || batch.look(|a| {
            let last = a.ndim() - 1;
            a.numel() == 0 || (0..last - 1).all(|i| a.strides[i] == a.strides[i + 1] * a.shape[i + 1])
        })
}
fn folded(batch: &Tensor, one: &Tensor) -> Result<Tensor> {
    let shape = batch.shape();
    let (rows, m) = (&shape[..shape.len() - 1], shape[shape.len() - 1]);
    let flat = reshape(batch, sizes(&[rows.iter().product(), m]))?;
    let (r, width) = if one.ndim() == 2 { (mm(&flat, one)?, Some(one.shape()[1])) } else { (mv(&flat, one)?, None) };
    unsafe_view(&r, sizes(&rows.iter().copied().chain(width).collect::<SmallVec<[usize; 4]>>()))
}
function! {
    /// `input @ weight.T + bias` over the last dimension of `input`; `weight` is [out, in], or [in] for one output.
    fn linear(input, weight, bias | optional) -> Tensor;
    on [nn];
    {
        let n = input.ndim();
        if n == 0 || weight.ndim() == 0 || weight.ndim() > 2 {
            bail!(Runtime, "linear(): input must have 1 dimension or more and weight 1 or 2, got shapes {:?} and {:?}", input.shape(), weight.shape());
        }
        match bias {
            Some(b) if n == 2 => addmm(b, input, &t(weight)?, ONE, ONE),
            Some(b) if input.look(Array::is_contiguous) => {
                let shape = input.shape();
                let (rows, m) = (&shape[..n - 1], shape[n - 1]);
                let flat = view(input, sizes(&[rows.iter().product(), m]))?;
                let r = addmm(b, &flat, &t(weight)?, ONE, ONE)?;
                view(&r, sizes(&rows.iter().copied().chain([weight.shape()[0]]).collect::<SmallVec<[usize; 4]>>()))
            }
            Some(b) => add(&matmul(input, &t(weight)?, None)?, b, ONE),
            None => matmul(input, &t(weight)?, None),
        }
    }
}

// ---- compositions ----
function! {
    /// Products of every element of `self` with every element of `vec2`: [n, m] of two vectors.
    fn outer(self_, vec2; *, out: Option<Tensor> = None) -> Tensor;
    {
        for (x, name) in [(self_, "self"), (vec2, "vec2")] {
            if x.ndim() != 1 {
                bail!(Runtime, "outer: Expected 1-D argument {name}, but got {}-D", x.ndim());
            }
        }
        given_out("outer", out, mul(&view_column(self_)?, vec2)?)
    }
}
fn view_column(v: &Tensor) -> Result<Tensor> {
    reshape(v, sizes(&[v.shape()[0], 1]))
}
function! {
    /// Alias of `outer`.
    fn ger(self_, vec2; *, out: Option<Tensor> = None) -> Tensor;
    { outer(self_, vec2, out) }
}
function! {
    /// Dot products of the last dimension of `self` with the last dimension of `other`.
    fn inner(self_, other; *, out: Option<Tensor> = None) -> Tensor;
    {
        if self_.ndim() == 0 || other.ndim() == 0 {
            return given_out("inner", out, mul(self_, other)?);
        }
        let (a, b) = (self_.shape(), other.shape());
        if a.len() == 1 && b.len() == 1 {
            return given_out("inner", out, dot(self_, other)?);
        }
        if a[a.len() - 1] != b[b.len() - 1] {
            bail!(Runtime, "inner() the last dimension must match on both input tensors but got shapes {a:?} and {b:?}");
        }
        tensordot(self_, other, Contract::Pairs(Ints::from_slice(&[-1]), Ints::from_slice(&[-1])), out)
    }
}
/// Which dimensions of two tensors are multiplied and summed: so many last of the first and first of the second, or those listed.
#[derive(Clone, Debug, PartialEq)]
pub enum Contract {
    Count(i64),
    Pairs(Ints, Ints),
}
function! {
    /// Sums of products over dimensions of both: a number `n` means the last `n` of `a` and the first `n` of `b`, else two lists of
    /// dimensions.
    fn tensordot(a, b; dims: Contract = Contract::Count(2), out: Option<Tensor> = None) -> Tensor;
    on [function];
    {
        let (sa, sb) = (a.shape(), b.shape());
        let (da, db) = match dims {
            Contract::Count(n) if n < 0 => bail!(Runtime, "tensordot expects dims >= 0, but got dims={n}"),
            Contract::Count(n) if n as usize > sa.len().min(sb.len()) => {
                bail!(Runtime, "tensordot expects dims <= the number of dimensions of both inputs, but got dims={n} for shapes {sa:?} and {sb:?}")
            }
            Contract::Count(n) => ((0..n).map(|i| i - n).collect(), (0..n).collect()),
            Contract::Pairs(x, y) => (x.0, y.0),
        };
        if da.len() != db.len() {
            bail!(Runtime, "both dimension lists should have same length, got {da:?} and {db:?}");
        }
        let (xa, xb) = (wrap_dims(&da, sa.len())?, wrap_dims(&db, sb.len())?);
        let (mut a, mut b) = (a.clone(), b.clone());
        for i in 0..xa.len() {
            let (n, m) = (sa[xa[i]], sb[xb[i]]);
            let over = |t: &Tensor, d: usize| sum_dim(t, Some(Ints::of(&[d])), true, None);
            // A length of 1 broadcasts: the other side is summed.
            match (n, m) {
                (n, m) if n == m => {}
                (1, _) => b = over(&b, xb[i])?,
                (_, 1) => a = over(&a, xa[i])?,
                _ => bail!(Runtime, "contracted dimensions need to match, but first has size {n} in dim {} and second has size {m} in dim {}", da[i], db[i]),
            }
        }
        let (sa, sb) = (a.shape(), b.shape());
        let free = |n: usize, used: &[usize]| (0..n).filter(|d| !used.contains(d)).collect::<Vec<_>>();
        let (fa, fb) = (free(sa.len(), &xa), free(sb.len(), &xb));
        let size = |s: &Dims, d: &[usize]| d.iter().map(|&d| s[d]).product::<usize>();
        let order = |x: &[usize], y: &[usize]| Sizes::of(&[x, y].concat());
        let left = reshape(&permute(&a, order(&fa, &xa))?, sizes(&[size(&sa, &fa), size(&sa, &xa)]))?;
        let right = reshape(&permute(&b, order(&xb, &fb))?, sizes(&[size(&sb, &xb), size(&sb, &fb)]))?;
        let shape: Vec<usize> = fa.iter().map(|&d| sa[d]).chain(fb.iter().map(|&d| sb[d])).collect();
        given_out("tensordot", out, reshape(&mm(&left, &right)?, sizes(&shape))?)
    }
}
function! {
    /// Kronecker product: every element of `self` times all of `other`, as blocks.
    fn kron(self_, other; *, out: Option<Tensor> = None) -> Tensor;
    {
        let (sa, sb) = (self_.shape(), other.shape());
        let n = sa.len().max(sb.len());
        let at = |s: &Dims, i: usize| if i + s.len() < n { 1 } else { s[i + s.len() - n] };
        let a = reshape(self_, Sizes((0..n).flat_map(|i| [at(&sa, i) as i64, 1]).collect()))?;
        let b = reshape(other, Sizes((0..n).flat_map(|i| [1, at(&sb, i) as i64]).collect()))?;
        let shape: Vec<usize> = (0..n).map(|i| at(&sa, i) * at(&sb, i)).collect();
        given_out("kron", out, unsafe_view(&mul(&a, &b)?, sizes(&shape))?)
    }
}
function! {
    /// The product of matrices in the order of fewest multiplications.
    fn chain_matmul(; matrices: Operands; *, out: Option<Tensor> = None) -> Tensor;
    on [function];
    {
        let m = matrices.0;
        if m.is_empty() {
            bail!(Runtime, "chain_matmul(): Expected one or more matrices");
        }
        if let Some(t) = m.iter().find(|t| t.ndim() != 2) {
            bail!(Runtime, "chain_matmul(): Tensor dimension is {}, expected 2 instead.", t.ndim());
        }
        let lengths: Vec<usize> = m.iter().map(|t| t.shape()[0]).chain(m.last().map(|t| t.shape()[1])).collect();
        let n = m.len();
        // cost[i][j]: multiplications of the product of i..=j, split after split[i][j] (Cormen et al., "Introduction to Algorithms", 15.2).
        let (mut cost, mut split) = (vec![vec![0f64; n]; n], vec![vec![0; n]; n]);
        for span in 1..n {
            for i in 0..n - span {
                let j = i + span;
                let of = |k: usize| cost[i][k] + cost[k + 1][j] + lengths[i] as f64 * lengths[k + 1] as f64 * lengths[j + 1] as f64;
                let best = (i..j).min_by(|&a, &b| of(a).total_cmp(&of(b))).unwrap_or(i);
                (cost[i][j], split[i][j]) = (of(best), best);
            }
        }
        fn product(m: &[Tensor], split: &[Vec<usize>], i: usize, j: usize) -> Result<Tensor> {
            if i == j {
                return Ok(m[i].clone());
            }
            mm(&product(m, split, i, split[i][j])?, &product(m, split, split[i][j] + 1, j)?)
        }
        given_out("chain_matmul", out, product(&m, &split, 0, n - 1)?)
    }
}
op! {
    /// `sum over i, j of i1[b, i] * i2[o, i, j] * i3[b, j]`: [batch, o].
    TrilinearBackward0 = fn trilinear(i1, i2, i3);
    schema "_trilinear";
    on [private];
    forward(_out) {
        let (n, [o, i, j]) = (i1.shape[0], [i2.shape[0], i2.shape[1], i2.shape[2]]);
        // [1, b, i] by [o, i, j] is [o, b, j]; that, item by item, times i3
        let part = products::matmul(&i1.view(Dims::of(&[1, n, i]), Dims::of(&[1, i1.strides[0], i1.strides[1]]), i1.offset), i2)?;
        let part = part.view(Dims::of(&[n, o, j]), Dims::of(&[j, n * j, 1]), part.offset);
        let last = i3.view(Dims::of(&[n, j, 1]), Dims::of(&[i3.strides[0], i3.strides[1], 1]), i3.offset);
        Ok(as_shape(&products::bmm(&part, &last)?, &[n, o]))
    };
    saves [i1, i2, i3];
    grad(g, cx) {
        i1 uses [i2, i3] => trilinear_with("bo,oij,bj->bi", g, i2, i3),
        i2 uses [i1, i3] => trilinear_with("bo,bi,bj->oij", g, i1, i3),
        i3 uses [i1, i2] => trilinear_with("bo,oij,bi->bj", g, i2, i1),
    }
}
fn trilinear_with(equation: &str, g: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    einsum(equation.into(), Operands(vec![g.clone(), a.clone(), b.clone()]))
}
function! {
    /// `input1 @ weight[o] @ input2 + bias[o]` for each output `o`, over the last dimensions; `weight` is [out, in1, in2].
    fn bilinear(input1, input2, weight, bias | optional) -> Tensor;
    on [function];
    {
        let (s1, s2, w) = (input1.shape(), input2.shape(), weight.shape());
        if s1.len() != s2.len() || s1.is_empty() {
            bail!(Runtime, "bilinear(): input dimensions do not match: got {} and {}", s1.len(), s2.len());
        }
        let last = s1.len() - 1;
        if let Some(d) = (0..last).find(|&d| s1[d] != s2[d]) {
            bail!(Runtime, "bilinear(): input batch dimensions do not match at dim {d}: got {} and {}", s1[d], s2[d]);
        }
        if w.len() != 3 || s1[last] != w[1] || s2[last] != w[2] {
            bail!(Runtime, "bilinear(): input sizes do not match weight sizes: got {} and {} for a weight of shape {w:?} ([out, in1, in2])", s1[last], s2[last]);
        }
        let rows = s1[..last].iter().product();
        let r = trilinear(&reshape(input1, sizes(&[rows, w[1]]))?, weight, &reshape(input2, sizes(&[rows, w[2]]))?)?;
        let r = reshape(&r, sizes(&s1[..last].iter().copied().chain([w[0]]).collect::<Vec<_>>()))?;
        match bias {
            Some(b) if b.shape()[..] != [w[0]] => bail!(Runtime, "bilinear(): bias size does not match weight size: got {:?} but expected [{}]", b.shape(), w[0]),
            Some(b) => add(&r, b, ONE),
            None => Ok(r),
        }
    }
}

// ---- einsum ----
/// A subscript of an equation: a letter, or one of the dimensions that an ellipsis stands for (counted from the last).
type Label = usize;
const LETTERS: usize = 52;
fn label(c: char) -> Option<Label> {
    match c {
        'A'..='Z' => Some(c as usize - 'A' as usize),
        'a'..='z' => Some(c as usize - 'a' as usize + 26),
        _ => None,
    }
}
fn letter(l: Label) -> char {
    (if l < 26 { b'A' + l as u8 } else { b'a' + (l - 26) as u8 }) as char
}
/// The subscripts of one term; None stands for an ellipsis.
fn subscripts(text: &str, at: usize, place: &str) -> Result<Vec<Option<Label>>> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(r) = rest.strip_prefix("...") {
            if out.contains(&None) {
                bail!(Runtime, "einsum(): found '.' for {place} for which an ellipsis was already found");
            }
            out.push(None);
            rest = r;
            continue;
        }
        match label(c) {
            Some(l) => out.push(Some(l)),
            None if c == '.' => bail!(Runtime, "einsum(): found '.' for {place} that is not part of any ellipsis"),
            None if c == ' ' => {}
            None => bail!(
                Runtime,
                "einsum(): invalid subscript given at index {} in the equation string, subscripts must be in [a-zA-Z]",
                at + text.len() - rest.len()
            ),
        }
        rest = &rest[c.len_utf8()..];
    }
    Ok(out)
}
/// The labels of each dimension of an operand.
fn spelled(term: &[Option<Label>], ndim: usize, which: usize) -> Result<Vec<Label>> {
    let letters = term.iter().flatten().count();
    let ellipsis = term.contains(&None);
    if letters > ndim || (!ellipsis && letters < ndim) {
        let what = if ellipsis { "is more than" } else { "does not match" };
        let tail = if ellipsis { "" } else { " and no ellipsis was given" };
        bail!(
            Runtime,
            "einsum(): the number of subscripts in the equation ({letters}) {what} the number of dimensions ({ndim}) for operand {which}{tail}"
        );
    }
    Ok(term
        .iter()
        .flat_map(|l| match l {
            Some(l) => vec![*l],
            None => (0..ndim - letters).rev().map(|i| LETTERS + i).collect(),
        })
        .collect())
}
function! {
    /// Sums of products as an equation says (Einstein's convention): `"ij,jk->ik"` is a matrix product. Operands are multiplied from the
    /// left to the right.
    ///
    /// Raises RuntimeError for an equation that does not fit the operands, and says where.
    fn einsum(; equation: String, operands: Operands) -> Tensor;
    on [function];
    {
        let x = operands.0;
        if x.is_empty() {
            bail!(Value, "einsum(): must specify the equation string and at least one operand, or at least one operand and its subscripts list");
        }
        let (left, right) = match equation.split_once("->") {
            Some((l, r)) => (l, Some(r)),
            None => (&equation[..], None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != x.len() {
            let which = if terms.len() < x.len() { "more" } else { "fewer" };
            bail!(Runtime, "einsum(): {which} operands were provided than specified in the equation");
        }
        let mut at = 0;
        let mut labels = Vec::with_capacity(x.len());
        for (i, (term, x)) in terms.iter().zip(&x).enumerate() {
            labels.push(spelled(&subscripts(term, at, &format!("operand {i}"))?, x.ndim(), i)?);
            at += term.len() + 1;
        }
        let wide = labels.iter().map(|l| l.iter().filter(|l| **l >= LETTERS).count()).max().unwrap_or(0);
        let ellipsis = || (0..wide).rev().map(|i| LETTERS + i);
        let count = |l: Label| labels.iter().flatten().filter(|x| **x == l).count();
        let output: Vec<Label> = match right {
            None => ellipsis().chain((0..LETTERS).filter(|&l| count(l) == 1)).collect(),
            Some(text) => {
                let term = subscripts(text, left.len() + 2, "the output")?;
                term.iter().flat_map(|l| l.map_or_else(|| ellipsis().collect(), |l| vec![l])).collect()
            }
        };
        for (i, &l) in output.iter().enumerate() {
            if l < LETTERS && count(l) == 0 {
                bail!(Runtime, "einsum(): output subscript {} does not appear in the equation for any input operand", letter(l));
            }
            if output[..i].contains(&l) {
                bail!(Runtime, "einsum(): output subscript {} appears more than once in the output", letter(l));
            }
        }
        let summed = (0..LETTERS).chain(ellipsis()).filter(|l| count(*l) > 0 && !output.contains(l));
        let order: Vec<Label> = output.iter().copied().chain(summed).collect();
        let mut sizes = vec![1usize; order.len()];
        let mut aligned = Vec::with_capacity(x.len());
        for (i, (x, labels)) in x.iter().zip(&labels).enumerate() {
            aligned.push(spread_out(x, labels, &order, &mut sizes, i)?);
        }
        contracted(aligned, output.len(), order.len())
    }
}
/// An operand with all labels of the equation as its dimensions, in their order; those it lacks have length 1.
fn spread_out(x: &Tensor, labels: &[Label], order: &[Label], sizes: &mut [usize], which: usize) -> Result<Tensor> {
    let (mut x, mut labels) = (x.clone(), labels.to_vec());
    while let Some((i, j)) = (0..labels.len()).find_map(|j| labels[..j].iter().position(|l| *l == labels[j]).map(|i| (i, j))) {
        let shape = x.shape();
        if shape[i] != shape[j] {
            bail!(
                Runtime,
                "einsum(): subscript {} is repeated for operand {which} but the sizes don't match, {} != {}",
                letter(labels[j]),
                shape[j],
                shape[i]
            );
        }
        x = diagonal(&x, 0, i as i64, j as i64)?; // as the last dimension
        let l = labels.remove(j);
        labels.remove(i);
        labels.push(l);
    }
    let shape = x.shape();
    for (d, l) in labels.iter().enumerate() {
        let at = order.iter().position(|o| o == l).expect("every label has its place");
        if sizes[at] == 1 {
            sizes[at] = shape[d];
        } else if shape[d] != 1 && shape[d] != sizes[at] {
            let name = if *l < LETTERS { letter(*l).to_string() } else { "...".into() };
            bail!(
                Runtime,
                "einsum(): subscript {name} has size {} for operand {which} which does not broadcast with previously seen size {}",
                shape[d],
                sizes[at]
            );
        }
    }
    let lacks: Vec<usize> = (0..order.len()).filter(|&at| !labels.contains(&order[at])).collect();
    for _ in &lacks {
        x = unsqueeze(&x, -1)?;
    }
    let have = labels.len();
    let from = |at: usize| match labels.iter().position(|l| *l == order[at]) {
        Some(d) => d,
        None => have + lacks.iter().position(|l| *l == at).expect("a label that is not there is lacking"),
    };
    permute(&x, Sizes((0..order.len()).map(|at| from(at) as i64).collect()))
}
/// The product of operands that have all dimensions, summed over those from `kept` on.
fn contracted(mut x: Vec<Tensor>, kept: usize, all: usize) -> Result<Tensor> {
    let long = |t: &Tensor, d: usize| t.shape()[d] != 1;
    let sum_over =
        |t: Tensor, dims: &[usize], keep: bool| if dims.is_empty() { Ok(t) } else { sum_dim(&t, Some(Ints::of(dims)), keep, None) };
    if x.len() == 1 {
        return sum_over(x.swap_remove(0), &(kept..all).collect::<Vec<_>>(), false);
    }
    let mut rest = x.drain(..);
    let mut a = rest.next().expect("there are two operands or more");
    let rest: Vec<Tensor> = rest.collect();
    for (i, b) in rest.iter().enumerate() {
        let last = |d: usize| !rest[i + 1..].iter().any(|t| long(t, d));
        let (mut of_a, mut of_b, mut of_both) = (vec![], vec![], vec![]);
        for d in (kept..all).filter(|&d| last(d)) {
            match (long(&a, d), long(b, d)) {
                (true, true) => of_both.push(d),
                (true, false) => of_a.push(d),
                (false, true) => of_b.push(d),
                (false, false) => {}
            }
        }
        let (l, r) = (sum_over(a, &of_a, true)?, sum_over(b.clone(), &of_b, true)?);
        a = if of_both.is_empty() { mul(&l, &r)? } else { sum_of_products(&l, &r, &of_both)? };
    }
    if all > kept { view(&a, Sizes::of(&a.shape()[..kept])) } else { Ok(a) }
}
/// The product of two, summed over some dimensions that both have (which stay, of length 1): one batched matrix product.
fn sum_of_products(a: &Tensor, b: &Tensor, over: &[usize]) -> Result<Tensor> {
    let (sa, sb) = (a.shape(), b.shape());
    let n = sa.len();
    let pick = |f: &dyn Fn(usize) -> bool| (0..n).filter(|d| !over.contains(d) && f(*d)).collect::<Vec<_>>();
    let both = pick(&|d| (sa[d] != 1) == (sb[d] != 1));
    let (only_a, only_b) = (pick(&|d| sa[d] != 1 && sb[d] == 1), pick(&|d| sa[d] == 1 && sb[d] != 1));
    let size = |s: &Dims, d: &[usize]| d.iter().map(|&d| s[d]).product::<usize>();
    let order = |parts: [&[usize]; 4]| parts.concat();
    let batch = size(&sa, &both);
    let left =
        reshape(&permute(a, Sizes::of(&order([&both, &only_a, over, &only_b])))?, sizes(&[batch, size(&sa, &only_a), size(&sa, over)]))?;
    let right =
        reshape(&permute(b, Sizes::of(&order([&both, over, &only_b, &only_a])))?, sizes(&[batch, size(&sb, over), size(&sb, &only_b)]))?;
    // [both, only_a, only_b], with the summed dimensions between them again, then each dimension where it was
    let made = order([&both, &only_a, over, &only_b]);
    let shape: Vec<usize> = made.iter().map(|&d| if over.contains(&d) { 1 } else { sa[d].max(sb[d]) }).collect();
    let back = (0..n).map(|d| made.iter().position(|&m| m == d).expect("every dimension is made") as i64).collect();
    permute(&view(&bmm(&left, &right)?, sizes(&shape))?, Sizes(back))
}

// ---- distances ----
/// Elements of the differences held at a time.
const DIFFERENCES: usize = 1 << 20;
/// From so many rows on, Euclidean distances come from one product: |a - b|² = |a|² + |b|² - 2 a·b.
const MANY_ROWS: usize = 25;
fn distances(a: &Array, b: &Array, p: f64) -> Result<Array> {
    let (na, nb) = (a.ndim(), b.ndim());
    if na < 2 || nb < 2 {
        bail!(Runtime, "cdist only supports at least 2D tensors, X1 got: {na}D, X2 got: {nb}D");
    }
    let (rows, cols, m) = (a.shape[na - 2], b.shape[nb - 2], a.shape[na - 1]);
    if m != b.shape[nb - 1] {
        bail!(Runtime, "X1 and X2 must have the same number of columns. X1: {m} X2: {}", b.shape[nb - 1]);
    }
    if p < 0.0 || p.is_nan() || !a.dtype.is_float() || a.dtype != b.dtype {
        bail!(
            Runtime,
            "cdist only supports non-negative p values and two floating-point tensors of one dtype, got p={p}, {} and {}",
            a.dtype.name(),
            b.dtype.name()
        );
    }
    let batch = broadcast("cdist", &Dims::of(&a.shape[..na - 2]), &Dims::of(&b.shape[..nb - 2]))?;
    let nd = batch.len();
    let out = Array::zeros(batch.iter().copied().chain([rows, cols]).collect(), a.dtype)?;
    if out.numel() == 0 || m == 0 {
        return Ok(out);
    }
    let wide = |x: &Array, n: usize| {
        let shape: Dims = batch.iter().copied().chain([n, m]).collect();
        x.view(shape, crate::layout::expand(&x.shape, &x.strides, &shape), x.offset)
    };
    let (a, b) = (wide(a, rows), wide(b, cols));
    if p == 2.0 && (rows > MANY_ROWS || cols > MANY_ROWS) {
        let swap = |x: &Array| x.view(x.shape.with(|s| s.swap(nd, nd + 1)), x.strides.with(|s| s.swap(nd, nd + 1)), x.offset);
        let squares = |x: &Array| {
            let s = pointwise::run(Out(None), "cdist", &table::Mul {}, [x, x])?;
            reduce::sum(&s, reduce::Axes::Of(&[nd + 1]), true, x.dtype)
        };
        let product = products::matmul(&a, &swap(&b))?;
        let sum = pointwise::run(Out(None), "cdist", &table::Add {}, [&squares(&a)?, &swap(&squares(&b)?)])?;
        let square = pointwise::run(Out(None), "cdist", &table::AddScaled { alpha: Scalar::Int(-2) }, [&sum, &product])?;
        let square = pointwise::run(Out(None), "cdist", &table::Maximum {}, [&square, &Array::number(Scalar::Int(0))?])?;
        return pointwise::run(Out(None), "cdist", &table::Sqrt {}, [&square]);
    }
    let step = (DIFFERENCES / (batch.numel() * cols * m).max(1)).clamp(1, rows);
    for from in (0..rows).step_by(step) {
        let n = step.min(rows - from);
        let part = |x: &Array, at: usize, len: usize, other: usize| {
            // [.., len, m] as [.., len, 1, m] or [.., 1, len, m]
            let (shape, strides) = (
                x.shape.with(|s| {
                    s[nd] = len;
                    s.insert(other, 1)
                }),
                x.strides.with(|s| s.insert(other, 0)),
            );
            x.view(shape, strides, x.offset + at * x.strides[nd])
        };
        let d = pointwise::run(Out(None), "cdist", &table::Sub {}, [&part(&a, from, n, nd + 1), &part(&b, 0, cols, nd)])?;
        let norms = reduce::norm(&d, p, reduce::Axes::Of(&[nd + 2]), false, d.dtype)?;
        pointwise::copy(&out.view(out.shape.with(|s| s[nd] = n), out.strides, out.offset + from * cols), &norms)?;
    }
    Ok(out)
}
op! {
    /// Distances of order `p` between every row of `x1` [.., n, m] and every row of `x2` [.., k, m]: [.., n, k].
    CdistBackward0 = fn cdist(x1, x2; p: f64 = 2.0, compute_mode: Option<String> = None);
    schema "_cdist_forward";
    on [function];
    forward(_out) distances(x1, x2, *p);
    saves [x1, x2, result];
    grad(g, cx) {
        x1 uses [x1, x2, result] => distance_grad(g, x1, x2, result, *p),
        x2 uses [x1, x2, result] => distance_grad(&turned(g)?, x2, x1, &turned(result)?, *p),
    }
}
/// Gradient of the distances for the rows of `x`.
fn distance_grad(g: &Tensor, x: &Tensor, y: &Tensor, result: &Tensor, p: f64) -> Result<Tensor> {
    if p == 2.0 {
        // sum over k of g / d * (x - y)
        let same = eq(result, &number(0.0)?)?;
        let w = masked_fill(&div(g, result)?, &same, Scalar::Int(0))?;
        let own = mul(&sum_dim(&w, Some(Ints::from_slice(&[-1])), true, None)?, x)?;
        return sub(&own, &matmul(&w, y, None)?, ONE);
    }
    let d = sub(&unsqueeze(x, -2)?, &unsqueeze(y, -3)?, ONE)?;
    let (g, result) = (unsqueeze(g, -1)?, unsqueeze(result, -1)?);
    let each = match p {
        0.0 => return zeros_of(x),
        1.0 => mul(&g, &sign(&d)?)?,
        f64::INFINITY => mul(&mul(&g, &sign(&d)?)?, &to_dtype(&eq(&abs(&d)?, &result)?, d.dtype())?)?,
        _ => {
            // sign(d) |d|^(p-1) / result^(p-1), 0 where that is 0 / 0
            let up = mul(&sign(&d)?, &arith::power(&abs(&d)?, p - 1.0)?)?;
            let slope = div(&up, &arith::power(&result, p - 1.0)?)?;
            let none = logical_or(&eq(&d, &number(0.0)?)?, &eq(&result, &number(0.0)?)?)?;
            mul(&g, &masked_fill(&slope, &none, Scalar::Int(0))?)?
        }
    };
    sum_dim(&each, Some(Ints::from_slice(&[-2])), false, None)
}
