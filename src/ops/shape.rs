//! Shapes: views of the same storage (no kernel, a new layout), and the few ops beside them that copy.
use super::macros::{function, op, op_many};
use super::*;
use crate::error::bail;
use crate::kernels::pointwise;
use crate::layout::{self, infer_size, view_strides, wrap_dim, wrap_dims};
use crate::tape::{Cx, mode};

fn sizes_shown(d: Dims) -> Attr {
    Attr::Ints(d.to_i64())
}
op! {
    /// The same elements under another shape, without a copy; one length may be -1.
    ///
    /// Raises RuntimeError where the strides do not allow it (use `reshape`).
    ViewBackward0 = fn view(self_; size: Sizes);
    on [method];
    view;
    forward(_out) {
        let shape = infer_size("view", size, self_.numel())?;
        match view_strides(&self_.shape, &self_.strides, &shape) {
            Some(strides) => Ok(self_.view(shape, strides, self_.offset)),
            None => bail!(
                Runtime,
                "view(): view size {size:?} is not compatible with input tensor's size {:?} and stride {:?} (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead",
                self_.shape,
                self_.strides
            ),
        }
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => reshape(g, Sizes::of(&cx.shape(0))) }
}
function! {
    /// The same bytes read as another dtype; where sizes differ, the last dimension is scaled. Has no derivative.
    fn view_dtype(self_; dtype: DType) -> Tensor;
    overload view;
    on [method];
    schema "view.dtype";
    view;
    {
        let a = self_.array();
        let (from, to) = (a.dtype.size(), dtype.size());
        let last = a.strides.last().copied().unwrap_or(1);
        let fits = from == to || (a.ndim() > 0 && last == 1 && (a.shape[a.ndim() - 1] * from).is_multiple_of(to) && (a.offset * from).is_multiple_of(to));
        let steps: Option<Dims> = a
            .strides
            .iter()
            .enumerate()
            .map(|(d, &s)| if from == to || d + 1 == a.ndim() { Some(s) } else { (s * from).is_multiple_of(to).then_some(s * from / to) })
            .collect::<Option<Vec<usize>>>()
            .map(|v| Dims::of(&v));
        let (true, Some(strides)) = (fits, steps) else {
            bail!(Runtime, "view(): self of shape {:?}, strides {:?} and dtype {} cannot be viewed as {} (an element size of {to} bytes must fit the last dimension and the strides)", a.shape, a.strides, a.dtype.name(), dtype.name())
        };
        let shape = a.shape.with(|s| if let Some(n) = s.last_mut() { *n = *n * from / to });
        let seen = Array::over(a.storage().clone(), shape, strides, a.offset * from / to, dtype)?.counted_as(&a);
        Ok(Tensor::view_of(self_, seen, crate::tape::Edge::None, crate::tape::ViewKind::Plain))
    }
}
op! {
    /// A copy under another shape, where no view is possible.
    UnsafeViewBackward0 = fn copied_view(self_; size: Sizes);
    schema "_unsafe_view";
    on [private];
    forward(_out) {
        let shape = infer_size("reshape", size, self_.numel())?;
        Ok(pointwise::cast(self_, self_.dtype)?.view(shape, shape.strides(), 0))
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => reshape(g, Sizes::of(&cx.shape(0))) }
}
op! {
    /// The elements of a tensor that nobody else will see, under another shape, without a copy: no view of it.
    UnsafeViewBackward0 = fn unsafe_view(self_; size: Sizes);
    schema "_unsafe_view";
    on [private];
    forward(_out) {
        let shape = infer_size("_unsafe_view", size, self_.numel())?;
        match view_strides(&self_.shape, &self_.strides, &shape) {
            Some(strides) => Ok(self_.view(shape, strides, self_.offset)),
            None => bail!(Runtime, "_unsafe_view(): size {size:?} is not compatible with size {:?} and strides {:?}", self_.shape, self_.strides),
        }
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => reshape(g, Sizes::of(&cx.shape(0))) }
}
function! {
    /// The same elements under another shape: a view where the strides allow it, else a copy. One length may be -1.
    fn reshape(self_; shape: Sizes) -> Tensor;
    {
        let (from, strides) = self_.look(|a| (a.shape, a.strides));
        let to = infer_size("reshape", &shape, from.numel())?;
        if to == from {
            // torch: an alias, so that the result is another tensor
            return view(self_, Sizes::of(&to));
        }
        if view_strides(&from, &strides, &to).is_some() { view(self_, Sizes::of(&to)) } else { copied_view(self_, Sizes::of(&to)) }
    }
}
function! {
    /// `self.view(other.size())`.
    fn view_as(self_, other) -> Tensor;
    on [method];
    { view(self_, Sizes::of(&other.shape())) }
}
function! {
    /// `self.reshape(other.size())`.
    fn reshape_as(self_, other) -> Tensor;
    on [method];
    { reshape(self_, Sizes::of(&other.shape())) }
}
op! {
    /// Another tensor on the same elements.
    AliasBackward0 = fn alias(self_);
    on [function];
    view;
    forward(_out) Ok(self_.view(self_.shape, self_.strides, self_.offset));
    grad(g, cx) { self_ uses [] => Ok(g.clone()) }
}
op! {
    /// Dimensions of length 1 (and new leading ones) repeated, without a copy; -1 keeps a length.
    ExpandBackward0 = fn expand(self_; size: Sizes);
    on [method];
    view;
    forward(_out) {
        let lead = size.len().checked_sub(self_.ndim());
        let Some(lead) = lead else {
            bail!(Runtime, "expand(): the number of sizes provided ({}) must be greater or equal to the number of dimensions in the tensor ({}): {size:?} for shape {:?}", size.len(), self_.ndim(), self_.shape)
        };
        let mut shape = Vec::with_capacity(size.len());
        for (i, &n) in size.iter().enumerate() {
            let have = i.checked_sub(lead).map(|d| self_.shape[d]);
            shape.push(match (n, have) {
                (-1, Some(h)) => h,
                (n, Some(h)) if n >= 0 && (h == n as usize || h == 1) => n as usize,
                (n, None) if n >= 0 => n as usize,
                (-1, None) => bail!(Runtime, "expand(): The expanded size of the tensor (-1) isn't allowed in a leading, non-existing dimension {i}"),
                _ => bail!(
                    Runtime,
                    "expand(): The expanded size of the tensor ({n}) must match the existing size ({}) at non-singleton dimension {i}. Target sizes: {size:?}. Tensor sizes: {:?}",
                    have.unwrap_or(0),
                    self_.shape
                ),
            });
        }
        let shape = Dims::of(&shape);
        shape.checked_numel()?;
        Ok(self_.view(shape, layout::expand(&self_.shape, &self_.strides, &shape), self_.offset))
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => sum_to(g, &cx.shape(0)) }
}
function! {
    /// `self.expand(other.size())`.
    fn expand_as(self_, other) -> Tensor;
    on [method];
    { expand(self_, Sizes::of(&other.shape())) }
}
function! {
    /// Alias of `expand` as a free function.
    fn broadcast_to(self_; size: Sizes) -> Tensor;
    { expand(self_, size) }
}
fn swapped(a: &Array, d0: i64, d1: i64) -> Result<Array> {
    let (x, y) = (wrap_dim(d0, a.ndim())?, wrap_dim(d1, a.ndim())?);
    if a.ndim() == 0 {
        return Ok(a.view(a.shape, a.strides, a.offset));
    }
    Ok(a.view(a.shape.with(|s| s.swap(x, y)), a.strides.with(|s| s.swap(x, y)), a.offset))
}
op! {
    /// Two dimensions exchanged.
    TransposeBackward0 = fn transpose(self_; dim0: i64, dim1: i64);
    schema "transpose.int";
    view;
    forward(_out) swapped(self_, *dim0, *dim1);
    grad(g, cx) { self_ uses [] => transpose(g, *dim0, *dim1) }
}
function! {
    /// Alias of `transpose`.
    fn swapaxes(self_; axis0: i64, axis1: i64) -> Tensor;
    { transpose(self_, axis0, axis1) }
}
function! {
    /// Alias of `transpose`.
    fn swapdims(self_; dim0: i64, dim1: i64) -> Tensor;
    { transpose(self_, dim0, dim1) }
}
op! {
    /// A matrix transposed; vectors and 0-d tensors as they are.
    TBackward0 = fn t(self_);
    view;
    forward(_out) match self_.ndim() {
        0 | 1 => Ok(self_.view(self_.shape, self_.strides, self_.offset)),
        2 => swapped(self_, 0, 1),
        n => bail!(Runtime, "t() expects a tensor with <= 2 dimensions, but self is {n}D"),
    };
    grad(g, cx) { self_ uses [] => t(g) }
}
op! {
    /// Dimensions in another order.
    PermuteBackward0 = fn permute(self_; dims: Sizes);
    view;
    forward(_out) {
        if dims.len() != self_.ndim() {
            bail!(Runtime, "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired ordering of dimensions i.e. input.dim() = {} is not equal to len(dims) = {}", self_.ndim(), dims.len());
        }
        let order = wrap_dims(dims, self_.ndim())?;
        Ok(self_.view(order.iter().map(|&d| self_.shape[d]).collect(), order.iter().map(|&d| self_.strides[d]).collect(), self_.offset))
    };
    grad(g, cx) { self_ uses [] => {
        let order = wrap_dims(dims, dims.len())?;
        let mut back = vec![0i64; order.len()];
        order.iter().enumerate().for_each(|(i, &d)| back[d] = i as i64);
        permute(g, Sizes::from_slice(&back))
    } }
}
function! {
    /// Dimensions moved to other places; the others keep their order.
    fn movedim(self_; source: Ints, destination: Ints) -> Tensor;
    {
        let n = self_.ndim();
        let (from, to) = (wrap_dims(&source, n)?, wrap_dims(&destination, n)?);
        if from.len() != to.len() {
            bail!(Runtime, "movedim(): Invalid source or destination dims: source ({source:?}) should contain the same number of dims as destination ({destination:?})");
        }
        let mut rest = (0..n).filter(|d| !from.contains(d));
        let order = (0..n).map(|i| match to.iter().position(|&t| t == i) {
            Some(k) => from[k] as i64,
            None => rest.next().expect("as many places as dimensions") as i64,
        });
        permute(self_, Sizes(order.collect()))
    }
}
function! {
    /// Alias of `movedim`.
    fn moveaxis(self_; source: Ints, destination: Ints) -> Tensor;
    { movedim(self_, source, destination) }
}
function! {
    /// All dimensions reversed (`x.T`).
    fn reversed_dims(self_) -> Tensor;
    on [private];
    { permute(self_, Sizes((0..self_.ndim() as i64).rev().collect())) }
}
function! {
    /// The last two dimensions exchanged (`x.mT`).
    fn adjoint(self_) -> Tensor;
    {
        if self_.ndim() == 0 {
            return Ok(self_.clone());
        }
        if self_.ndim() < 2 {
            bail!(Runtime, "tensor.mT is only supported on matrices or batches of matrices. Got {}-D tensor.", self_.ndim());
        }
        transpose(self_, -2, -1)
    }
}
fn without(a: &Array, gone: impl Fn(usize) -> bool) -> Array {
    let kept = || (0..a.ndim()).filter(|&d| !(a.shape[d] == 1 && gone(d)));
    a.view(kept().map(|d| a.shape[d]).collect(), kept().map(|d| a.strides[d]).collect(), a.offset)
}
op! {
    /// Without dimensions of length 1.
    SqueezeBackward0 = fn squeeze(self_);
    view;
    forward(_out) Ok(without(self_, |_| true));
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => reshape(g, Sizes::of(&cx.shape(0))) }
}
op! {
    /// Without dimension `dim`, if its length is 1.
    SqueezeBackward1 = fn squeeze_dim(self_; dim: i64);
    schema "squeeze.dim";
    overload squeeze;
    view;
    forward(_out) { let d = wrap_dim(*dim, self_.ndim())?; Ok(without(self_, |i| i == d)) };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => reshape(g, Sizes::of(&cx.shape(0))) }
}
op! {
    /// Without those of the dimensions `dim` whose length is 1.
    SqueezeBackward2 = fn squeeze_dims(self_; dim: Ints);
    schema "squeeze.dims";
    overload squeeze;
    view;
    forward(_out) { let d = wrap_dims(dim, self_.ndim())?; Ok(without(self_, |i| d.contains(&i))) };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => reshape(g, Sizes::of(&cx.shape(0))) }
}
op! {
    /// A new dimension of length 1 before `dim`.
    UnsqueezeBackward0 = fn unsqueeze(self_; dim: i64);
    view;
    forward(_out) {
        let d = layout::wrap_dim(*dim, self_.ndim() + 1)?;
        let step = if d < self_.ndim() { self_.shape[d] * self_.strides[d] } else { 1 };
        Ok(self_.view(self_.shape.with(|s| s.insert(d, 1)), self_.strides.with(|s| s.insert(d, step)), self_.offset))
    };
    grad(g, cx) { self_ uses [] => squeeze_dim(g, *dim) }
}
fn selected(a: &Array, dim: i64, index: i64) -> Result<Array> {
    if a.ndim() == 0 {
        bail!(Index, "select() cannot be applied to a 0-dim tensor.");
    }
    let d = wrap_dim(dim, a.ndim())?;
    let n = a.shape[d] as i64;
    if !(-n..n).contains(&index) {
        bail!(Index, "select(): index {index} out of range for tensor of size {:?} at dimension {d}", a.shape);
    }
    let offset = a.offset + index.rem_euclid(n) as usize * a.strides[d];
    Ok(a.view(a.shape.with_removed(d), a.strides.with_removed(d), offset))
}
op! {
    /// One slice along `dim`; the result has a dimension less.
    SelectBackward0 = fn select(self_; dim: i64, index: i64);
    schema "select.int";
    view;
    forward(_out) selected(self_, *dim, *index);
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => select_backward(g, Sizes::of(&cx.shape(0)), *dim, *index) }
}
/// Zeros of a shape, with `g` written into the part of them that `f` views.
fn placed(g: &Array, shape: Dims, f: impl Fn(&Array) -> Result<Array>) -> Result<Array> {
    let out = Array::zeros(shape, g.dtype)?;
    pointwise::copy(&f(&out)?, g)?;
    Ok(out)
}
op! {
    /// Zeros of `input_sizes`, but for slice `index` along `dim`.
    SelectBackwardBackward0 = fn select_backward(self_; input_sizes: Sizes, dim: i64, index: i64);
    on [function];
    forward(_out) placed(self_, input_sizes.iter().map(|&v| v as usize).collect(), |a| selected(a, *dim, *index));
    grad(g, cx) { self_ uses [] => select(g, *dim, *index) }
}
fn sliced(a: &Array, dim: i64, start: Option<i64>, end: Option<i64>, step: i64) -> Result<Array> {
    if a.ndim() == 0 {
        bail!(Runtime, "slice() cannot be applied to a 0-dim tensor.");
    }
    if step <= 0 {
        bail!(Runtime, "slice step must be positive, got {step}");
    }
    let d = wrap_dim(dim, a.ndim())?;
    let n = a.shape[d] as i64;
    let place = |v: i64| if v < 0 { (v + n).max(0) } else { v.min(n) };
    let (from, to) = (place(start.unwrap_or(0)), place(end.unwrap_or(i64::MAX)));
    let len = div_ceil((to - from).max(0), step);
    Ok(a.view(a.shape.with(|s| s[d] = len as usize), a.strides.with(|s| s[d] *= step as usize), a.offset + from as usize * a.strides[d]))
}
/// `a / b`, rounded up; neither is negative.
fn div_ceil(a: i64, b: i64) -> i64 {
    (a as u64).div_ceil(b as u64) as i64
}
op! {
    /// Elements `start` to `end` along `dim`, each `step`th.
    SliceBackward0 = fn slice(self_; dim: i64 = 0, start: Option<i64> = None, end: Option<i64> = None, step: i64 = 1);
    schema "slice.Tensor";
    on [private];
    view;
    forward(_out) sliced(self_, *dim, *start, *end, *step);
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => slice_backward(g, Sizes::of(&cx.shape(0)), *dim, *start, *end, *step) }
}
op! {
    /// Zeros of `input_sizes`, but for a slice.
    SliceBackwardBackward0 = fn slice_backward(self_; input_sizes: Sizes, dim: i64, start: Option<i64>, end: Option<i64>, step: i64);
    on [private];
    forward(_out) placed(self_, input_sizes.iter().map(|&v| v as usize).collect(), |a| sliced(a, *dim, *start, *end, *step));
    grad(g, cx) { self_ uses [] => slice(g, *dim, *start, *end, *step) }
}
function! {
    /// `length` elements along `dim` from `start`.
    fn narrow(self_; dim: i64, start: i64, length: i64) -> Tensor;
    {
        let shape = self_.shape();
        if shape.is_empty() {
            bail!(Runtime, "narrow() cannot be applied to a 0-dim tensor.");
        }
        let d = wrap_dim(dim, shape.len())?;
        let n = shape[d] as i64;
        if length < 0 {
            bail!(Runtime, "narrow(): length must be non-negative, got {length}");
        }
        if !(-n..=n).contains(&start) {
            bail!(Index, "start out of range (expected to be in range of [{}, {n}], but got {start})", -n);
        }
        let from = if start < 0 { start + n } else { start };
        if from + length > n {
            bail!(Runtime, "start ({from}) + length ({length}) exceeds dimension size ({n}).");
        }
        slice(self_, dim, Some(from), Some(from + length), 1)
    }
}
fn diagonal_of(a: &Array, offset: i64, dim1: i64, dim2: i64) -> Result<Array> {
    let (x, y) = (wrap_dim(dim1, a.ndim())?, wrap_dim(dim2, a.ndim())?);
    if x == y || a.ndim() < 2 {
        bail!(Runtime, "diagonal dimensions cannot be identical {dim1}, {dim2}");
    }
    let (rows, cols) = (a.shape[x] as i64, a.shape[y] as i64);
    let n = if offset >= 0 { rows.min(cols - offset) } else { (rows + offset).min(cols) }.max(0);
    let skip = if n == 0 {
        0
    } else if offset >= 0 {
        offset as usize * a.strides[y]
    } else {
        -offset as usize * a.strides[x]
    };
    let rest = || (0..a.ndim()).filter(|&d| d != x && d != y);
    let shape = rest().map(|d| a.shape[d]).chain([n as usize]).collect();
    let strides = rest().map(|d| a.strides[d]).chain([a.strides[x] + a.strides[y]]).collect();
    Ok(a.view(shape, strides, a.offset + skip))
}
op! {
    /// The diagonal over two dimensions, as the last dimension of a view.
    DiagonalBackward0 = fn diagonal(self_; offset: i64 = 0, dim1: i64 = 0, dim2: i64 = 1);
    view;
    forward(_out) diagonal_of(self_, *offset, *dim1, *dim2);
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => diagonal_backward(g, Sizes::of(&cx.shape(0)), *offset, *dim1, *dim2) }
}
op! {
    /// Zeros of `input_sizes`, but for a diagonal.
    DiagonalBackwardBackward0 = fn diagonal_backward(self_; input_sizes: Sizes, offset: i64, dim1: i64, dim2: i64);
    on [private];
    forward(_out) placed(self_, input_sizes.iter().map(|&v| v as usize).collect(), |a| diagonal_of(a, *offset, *dim1, *dim2));
    grad(g, cx) { self_ uses [] => diagonal(g, *offset, *dim1, *dim2) }
}
macro_rules! view_scatters { ($($(#[doc = $doc:literal])* $node:ident $name:ident($($attr:ident: $ty:ty $(= $default:expr)?),*) $place:expr; $back:expr;)*) => { $(op! {
    $(#[doc = $doc])*
    $node = fn $name(self_, src; $($attr: $ty $(= $default)?),*);
    forward(_out) {
        let out = pointwise::cast(self_, self_.dtype)?;
        let part: Array = ($place)(&out, $(*$attr),*)?;
        if part.shape != src.shape {
            bail!(Runtime, concat!(stringify!($name), "(): expected src to have a size equal to the slice of self. src size = {:?}, slice size = {:?}"), src.shape, part.shape);
        }
        pointwise::copy(&part, src)?;
        Ok(out)
    };
    grad(g, cx) {
        self_ uses [] => $name(g, &zeros(cx.shape(1), g.dtype())?, $(*$attr),*),
        src uses [] => ($back)(g, $(*$attr),*),
    }
})* } }
view_scatters! {
    /// A copy of `self` with `src` in place of one slice along `dim`.
    SelectScatterBackward0 select_scatter(dim: i64, index: i64) selected; select;
    /// A copy of `self` with `src` in place of elements `start` to `end` along `dim`, each `step`th.
    SliceScatterBackward0 slice_scatter(dim: i64 = 0, start: Option<i64> = None, end: Option<i64> = None, step: i64 = 1) sliced; slice;
    /// A copy of `self` with `src` in place of a diagonal.
    DiagonalScatterBackward0 diagonal_scatter(offset: i64 = 0, dim1: i64 = 0, dim2: i64 = 1) diagonal_of; diagonal;
}
fn windows(a: &Array, dimension: i64, size: i64, step: i64) -> Result<Array> {
    let d = wrap_dim(dimension, a.ndim())?;
    let n = if a.ndim() == 0 { 1 } else { a.shape[d] } as i64;
    if size < 0 || size > n {
        bail!(Runtime, "maximum size for tensor at dimension {d} is {n} but size is {size}");
    }
    if step <= 0 {
        bail!(Runtime, "step is {step} but must be > 0");
    }
    let count = (n - size) / step + 1;
    if a.ndim() == 0 {
        return Ok(a.view(Dims::of(&[size as usize]), Dims::of(&[1]), a.offset));
    }
    let shape = a.shape.with(|s| {
        s[d] = count as usize;
        s.push(size as usize)
    });
    let strides = a.strides.with(|s| {
        s.push(s[d]);
        s[d] *= step as usize
    });
    Ok(a.view(shape, strides, a.offset))
}
op! {
    /// Windows of `size` along a dimension, each `step`, as a new last dimension of a view.
    UnfoldBackward0 = fn unfold(self_; dimension: i64, size: i64, step: i64);
    on [method];
    view;
    forward(_out) windows(self_, *dimension, *size, *step);
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => folded_windows(g, &cx.shape(0), *dimension, *size, *step) }
}
/// Windows added back to where they came from, in zeros of this shape.
fn folded_windows(g: &Tensor, shape: &Dims, dimension: i64, size: i64, step: i64) -> Result<Tensor> {
    if shape.is_empty() {
        return sum(g, None);
    }
    let d = wrap_dim(dimension, shape.len())? as i64;
    let count = g.shape()[d as usize] as i64;
    let places: Vec<i64> = (0..count).flat_map(|w| (0..size).map(move |i| w * step + i)).collect();
    let places = Tensor::new(Array::from_slice(&[places.len()], &places)?);
    let lines = flatten(&movedim(g, Ints::of(&[g.ndim() - 1]), Ints::from_slice(&[d + 1]))?, d, d + 1)?;
    index_add(&zeros(*shape, g.dtype())?, &places, &lines, d, Scalar::Int(1))
}
/// A list of views along one dimension, as pairs of start and length.
fn pieces(a: &Array, dim: i64, parts: &[(usize, usize)]) -> Result<SmallVec<[Array; 4]>> {
    let d = wrap_dim(dim, a.ndim())?;
    Ok(parts.iter().map(|&(start, n)| a.view(a.shape.with(|s| s[d] = n), a.strides, a.offset + start * a.strides[d])).collect())
}
/// Gradients of the pieces, joined again; a piece without one is zeros.
fn joined(g: &[Option<Tensor>], cx: &Cx<'_>, dim: i64, sizes: &[(usize, usize)]) -> Result<Option<Tensor>> {
    if g.iter().all(Option::is_none) {
        return Ok(None);
    }
    let (shape, dtype) = (cx.shape(0), cx.dtype(0));
    let d = wrap_dim(dim, shape.len())?;
    let parts = g.iter().zip(sizes).map(|(g, &(_, n))| match g {
        Some(g) => Ok(g.clone()),
        None => zeros(shape.with(|s| s[d] = n), dtype),
    });
    Ok(Some(cat(parts.collect::<Result<Vec<_>>>()?, dim)?))
}
fn equal_parts(n: usize, size: usize) -> Vec<(usize, usize)> {
    if n == 0 {
        return vec![(0, 0)];
    }
    (0..n.div_ceil(size)).map(|i| (i * size, size.min(n - i * size))).collect()
}
fn dim_length(op: &str, shape: &Dims, dim: i64) -> Result<usize> {
    if shape.is_empty() {
        bail!(Runtime, "{op} expects at least a 1-dimensional tensor");
    }
    Ok(shape[wrap_dim(dim, shape.len())?])
}
op_many! {
    /// Views of `split_size` elements each along `dim`; the last may be shorter.
    SplitBackward0 = fn split_size(self_; split_size: i64, dim: i64 = 0) -> [];
    schema "split.Tensor";
    overload split;
    view;
    forward {
        let n = dim_length("split", &self_.shape, *dim)?;
        if *split_size < 0 || (*split_size == 0 && n != 0) {
            bail!(Runtime, "split expects split_size be non-negative (and positive for a dimension of length {n}), but got split_size={split_size}");
        }
        pieces(self_, *dim, &equal_parts(n, (*split_size).max(1) as usize))
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => {
        let n = dim_length("split", &cx.shape(0), *dim)?;
        joined(g, cx, *dim, &equal_parts(n, (*split_size).max(1) as usize))
    } }
}
fn given_parts(sizes: &[i64]) -> Vec<(usize, usize)> {
    sizes
        .iter()
        .scan(0, |at, &n| {
            let start = *at;
            *at += n as usize;
            Some((start, n as usize))
        })
        .collect()
}
op_many! {
    /// Views of the given sizes along `dim`.
    SplitWithSizesBackward0 = fn split_with_sizes(self_; split_sizes: Ints, dim: i64 = 0) -> [];
    schema "split_with_sizes";
    view;
    forward {
        let n = dim_length("split_with_sizes", &self_.shape, *dim)?;
        if split_sizes.iter().any(|&s| s < 0) || split_sizes.iter().sum::<i64>() != n as i64 {
            bail!(Runtime, "split_with_sizes expects split_sizes to sum exactly to {n} (input tensor's size at dimension {dim}), but got split_sizes={:?}", &**split_sizes);
        }
        pieces(self_, *dim, &given_parts(split_sizes))
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => joined(g, cx, *dim, &given_parts(split_sizes)) }
}
/// Pieces that share the memory and nothing else: not views, each with a version of its own.
fn loose(pieces: SmallVec<[Array; 4]>) -> SmallVec<[Array; 4]> {
    pieces.into_iter().map(|a| a.with_counter(0)).collect()
}
op_many! {
    /// As `split`, but the pieces are not views: each may be written in place, where nobody uses `self` any more.
    UnsafeSplitBackward0 = fn unsafe_split(self_; split_size: i64, dim: i64 = 0) -> [];
    schema "unsafe_split.Tensor";
    forward {
        let n = dim_length("unsafe_split", &self_.shape, *dim)?;
        if *split_size < 0 || (*split_size == 0 && n != 0) {
            bail!(Runtime, "unsafe_split expects split_size be non-negative (and positive for a dimension of length {n}), but got split_size={split_size}");
        }
        Ok(loose(pieces(self_, *dim, &equal_parts(n, (*split_size).max(1) as usize))?))
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => {
        let n = dim_length("unsafe_split", &cx.shape(0), *dim)?;
        joined(g, cx, *dim, &equal_parts(n, (*split_size).max(1) as usize))
    } }
}
op_many! {
    /// As `split_with_sizes`, but the pieces are not views: each may be written in place, where nobody uses `self` any more.
    UnsafeSplitWithSizesBackward0 = fn unsafe_split_with_sizes(self_; split_sizes: Ints, dim: i64 = 0) -> [];
    forward {
        let n = dim_length("unsafe_split_with_sizes", &self_.shape, *dim)?;
        if split_sizes.iter().any(|&s| s < 0) || split_sizes.iter().sum::<i64>() != n as i64 {
            bail!(Runtime, "unsafe_split_with_sizes expects split_sizes to sum exactly to {n} (input tensor's size at dimension {dim}), but got split_sizes={:?}", &**split_sizes);
        }
        Ok(loose(pieces(self_, *dim, &given_parts(split_sizes))?))
    };
    shows { self_sym_sizes: sizes_shown(cx.shape(0)) };
    grad(g, cx) { self_ uses [] => joined(g, cx, *dim, &given_parts(split_sizes)) }
}
function! {
    /// As `chunk`, but the pieces are not views: each may be written in place, where nobody uses `self` any more.
    fn unsafe_chunk(self_; chunks: i64, dim: i64 = 0) -> Tensors;
    {
        if chunks <= 0 {
            bail!(Runtime, "unsafe_chunk expects `chunks` to be greater than 0, got: {chunks}");
        }
        let n = dim_length("unsafe_chunk", &self_.shape(), dim)? as i64;
        if n == 0 {
            return unsafe_split_with_sizes(self_, Ints((0..chunks).map(|_| 0).collect()), dim);
        }
        unsafe_split(self_, div_ceil(n, chunks), dim)
    }
}
function! {
    /// Views along `dim`: of `split_size` elements each, or of the given sizes.
    fn split_sizes(self_; split_size: Ints, dim: i64 = 0) -> Tensors;
    overload split;
    { split_with_sizes(self_, split_size, dim) }
}
function! {
    /// At most `chunks` views of equal size along `dim`; the last may be shorter.
    fn chunk(self_; chunks: i64, dim: i64 = 0) -> Tensors;
    {
        if chunks <= 0 {
            bail!(Runtime, "chunk expects `chunks` to be greater than 0, got: {chunks}");
        }
        let n = dim_length("chunk", &self_.shape(), dim)? as i64;
        if n == 0 {
            return split_with_sizes(self_, Ints((0..chunks).map(|_| 0).collect()), dim);
        }
        split_size(self_, div_ceil(n, chunks), dim)
    }
}
op_many! {
    /// All slices along `dim`, each with a dimension less.
    UnbindBackward0 = fn unbind(self_; dim: i64 = 0) -> [];
    schema "unbind.int";
    view;
    forward {
        if self_.ndim() == 0 {
            bail!(Index, "Dimension specified as {dim} but tensor has no dimensions");
        }
        let d = wrap_dim(*dim, self_.ndim())?;
        (0..self_.shape[d] as i64).map(|i| selected(self_, d as i64, i)).collect()
    };
    grad(g, cx) { self_ uses [] => {
        if g.iter().all(Option::is_none) { return Ok(()) }
        let shape = cx.shape(0);
        let part = shape.with_removed(wrap_dim(*dim, shape.len())?);
        let parts = g.iter().map(|g| g.clone().map_or_else(|| zeros(part, cx.dtype(0)), Ok)).collect::<Result<Vec<_>>>()?;
        stack(parts, *dim).map(Some)
    } }
}
function! {
    /// `chunk` for `split` on a new leading part: a dimension unflattened into several.
    fn unflatten(self_; dim: i64, sizes: Ints) -> Tensor;
    {
        let shape = self_.shape();
        let d = wrap_dim(dim, shape.len())?;
        let n = if shape.is_empty() { 1 } else { shape[d] };
        let part = infer_size("unflatten", &sizes, n)?;
        let to: SmallVec<[i64; 4]> = shape.iter().take(d).chain(part.iter()).chain(shape.iter().skip(d + 1)).map(|&v| v as i64).collect();
        reshape(self_, Sizes(to))
    }
}
function! {
    /// Dimensions `start_dim` to `end_dim` as one.
    fn flatten(self_; start_dim: i64 = 0, end_dim: i64 = -1) -> Tensor;
    {
        let shape = self_.shape();
        let (a, b) = (wrap_dim(start_dim, shape.len())?, wrap_dim(end_dim, shape.len())?);
        if a > b {
            bail!(Runtime, "flatten() has invalid args: start_dim cannot come after end_dim");
        }
        if shape.is_empty() {
            return reshape(self_, Sizes::of(&[1]));
        }
        if a == b {
            return Ok(self_.clone());
        }
        let n: usize = shape[a..=b].iter().product();
        reshape(self_, Sizes(shape[..a].iter().chain([&n]).chain(&shape[b + 1..]).map(|&v| v as i64).collect()))
    }
}
function! {
    /// One dimension.
    fn ravel(self_) -> Tensor;
    { contiguous(&reshape(self_, Sizes::from_slice(&[-1]))?, None) }
}

// ---- copies ----
function! {
    /// The same elements without history; writes are seen by autograd (the version is shared).
    fn detach(self_) -> Tensor;
    on [function];
    schema "detach";
    view;
    { Ok(self_.detach()) }
}
op! {
    /// A copy of the elements, with history.
    CloneBackward0 = fn clone(self_; *, memory_format: Option<String> = None);
    forward(_out) {
        if memory_format.as_deref() == Some("contiguous_format") { pointwise::cast(self_, self_.dtype) } else { pointwise::cast_kept(self_, self_.dtype) }
    };
    grad(g, cx) { self_ uses [] => Ok(g.clone()) }
}
function! {
    /// The tensor itself if it is row-major, else a row-major copy.
    fn contiguous(self_; *, memory_format: Option<String> = None) -> Tensor;
    on [method];
    { let _ = &memory_format; if self_.look(Array::is_contiguous) { Ok(self_.clone()) } else { clone(self_, Some("contiguous_format".into())) } }
}
op! {
    /// A copy in another dtype.
    ToCopyBackward0 = fn to_copy(self_; *, dtype: DType);
    schema "_to_copy";
    on [private];
    forward(_out) pointwise::cast_kept(self_, *dtype);
    grad(g, cx) { self_ uses [] => to_dtype(g, cx.dtype(0)) }
}
function! {
    /// In the dtype of another tensor; the tensor itself if it has it already.
    fn type_as(self_, other) -> Tensor;
    on [method];
    { to_dtype(self_, other.dtype()) }
}
/// In another dtype; the tensor itself if it has it already.
pub fn to_dtype(t: &Tensor, dtype: DType) -> Result<Tensor> {
    if t.dtype() == dtype { Ok(t.clone()) } else { to_copy(t, dtype) }
}
op! {
    /// Writes the elements of `src`, broadcast and cast, into `self`.
    CopyBackwards = fn copy(self_, src; non_blocking: bool = false);
    inplace copy_;
    on [method];
    forward(out) {
        match out.0 {
            Some(to) => { pointwise::copy(to, src)?; Ok(to.view(to.shape, to.strides, to.offset)) }
            None => {
                let to = Array::empty(self_.shape, self_.dtype)?;
                pointwise::copy(&to, src)?;
                Ok(to)
            }
        }
    };
    grad(g, cx) {
        self_ uses [] => zeros(cx.shape(0), cx.dtype(0)),
        src uses [] => Ok(g.clone()),
    }
}
/// Undoes broadcasting: the sum of `g` over what was repeated from `shape`.
pub fn sum_to(g: &Tensor, shape: &Dims) -> Result<Tensor> {
    let full = g.shape();
    if full == *shape {
        return Ok(g.clone());
    }
    let lead = full.len() - shape.len();
    let dims: SmallVec<[i64; 4]> =
        (0..full.len()).filter(|&i| i < lead || (shape[i - lead] == 1 && full[i] != 1)).map(|i| i as i64).collect();
    if dims.is_empty() {
        return view(g, Sizes::of(shape));
    }
    let s = sum_dim(g, Some(Ints(dims)), true, None)?;
    if lead > 0 { view(&s, Sizes::of(shape)) } else { Ok(s) }
}

// ---- the same, in place: the layout of the tensor itself changes ----
/// Gives `t` the layout and history that `op` gives its result.
fn in_place(t: &Tensor, name: &'static str, op: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    t.check_in_place(name, false)?;
    t.array().before_write()?; // who holds the very tensor counts on its layout
    let other = op(t)?;
    let (array, edge) = (other.array(), other.edge());
    drop(t.replace_array(array));
    t.array().bump();
    if mode::grad_enabled() && !edge.is_none() {
        t.set_edge(edge);
    }
    Ok(t.clone())
}
function! {
    /// `t`, in place.
    fn t_(self_) -> Tensor;
    on [method];
    { in_place(self_, "t_", t) }
}
function! {
    /// `transpose`, in place.
    fn transpose_(self_; dim0: i64, dim1: i64) -> Tensor;
    on [method];
    { in_place(self_, "transpose_", |x| transpose(x, dim0, dim1)) }
}
function! {
    /// `swapaxes`, in place.
    fn swapaxes_(self_; axis0: i64, axis1: i64) -> Tensor;
    on [method];
    { in_place(self_, "swapaxes_", |x| transpose(x, axis0, axis1)) }
}
function! {
    /// `swapdims`, in place.
    fn swapdims_(self_; dim0: i64, dim1: i64) -> Tensor;
    on [method];
    { in_place(self_, "swapdims_", |x| transpose(x, dim0, dim1)) }
}
function! {
    /// `unsqueeze`, in place.
    fn unsqueeze_(self_; dim: i64) -> Tensor;
    on [method];
    { in_place(self_, "unsqueeze_", |x| unsqueeze(x, dim)) }
}
function! {
    /// `squeeze`, in place.
    fn squeeze_(self_; dim: Option<Ints> = None) -> Tensor;
    on [method];
    { in_place(self_, "squeeze_", |x| match dim { Some(d) => squeeze_dims(x, d), None => squeeze(x) }) }
}
function! {
    /// `as_strided`, in place.
    fn as_strided_(self_; size: Sizes, stride: Ints, storage_offset: Option<i64> = None) -> Tensor;
    on [method];
    { in_place(self_, "as_strided_", |x| as_strided(x, size, stride, storage_offset)) }
}
