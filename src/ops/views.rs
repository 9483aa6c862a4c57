//! `as_strided` and what stands behind in-place operations on views: the base of a view that was written through gets a copy-slices node
//! around the operation's own, and every other view of it gets its history from the base by `as_strided`. These nodes know layouts, so
//! they are written by hand rather than as `op!` blocks.
use super::macros::{function, op};
use super::*;
use crate::array::Array;
use crate::error::{Result, bail};
use crate::kernels::pointwise;
use crate::layout::{Dims, Geometry, given_size, span};
use crate::tape::dispatch::Named;
use crate::tape::node::Meta;
use crate::tape::record::Views;
use crate::tape::{Attr, Backward, Cx, Edge, Info, Node, Tensor, mode, record};
use smallvec::SmallVec;
use std::sync::Arc;

pub struct Home;
pub static VIEWS: Home = Home;
/// An op with one output that saves nothing and has no derivative: what the declarations by hand begin with.
pub const PLAIN: Info = Info {
    node: "",
    op: "",
    schema: "",
    inputs: &[],
    outputs: &["result"],
    visible: 1,
    nondiff: 0,
    saves: &[],
    saves_outputs: false,
    order: &[],
    uses: crate::tape::Uses::NONE,
    every: false,
    view: false,
    state: 0,
    views: &VIEWS,
};
impl Views for Home {
    fn strided(&self, edge: Edge, base: &Geometry, view: &Geometry, like: &Meta) -> Result<Edge> {
        let first = Meta { shape: view.shape, dtype: like.dtype };
        let input = Node::input_like(edge, &Meta { shape: base.shape, dtype: like.dtype }, &first);
        let op = Box::new(AsStridedBackward0 { base: *base, view: *view });
        Ok(Edge::Node(Node::new(mode::next_seq(), op, SmallVec::from_iter([input]), &[first], Default::default(), None), 0))
    }
    fn copy_slices(&self, edge: Edge, base: &Array, view: &Geometry, inner: Arc<Node>) -> Arc<Node> {
        let first = Meta::of(base);
        let mut inputs: SmallVec<[_; 2]> = SmallVec::from_iter([Node::input_like(edge, &first, &first)]);
        for i in 1..inner.inputs.len() {
            inputs.push(Node::input_like(inner.inputs[i].edge.clone(), inner.meta(i), &first));
        }
        let op = Box::new(CopySlices { base: base.geometry(), view: *view, inner });
        Node::new(mode::next_seq(), op, inputs, &[first], Default::default(), None)
    }
}

macro_rules! plain_info {
    ($name:ident, $node:literal, $op:literal, $view:expr) => {
        static $name: Info =
            Info { node: $node, op: $op, schema: $op, inputs: &["self"], uses: crate::tape::Uses::of(&[(0, &[])]), view: $view, ..PLAIN };
    };
}
plain_info!(STRIDED, "AsStridedBackward0", "as_strided", true);
plain_info!(SLICES, "torch::autograd::CopySlices", "copy_slices", false);

struct AsStridedBackward0 {
    base: Geometry,
    view: Geometry,
}
impl Backward for AsStridedBackward0 {
    fn info(&self) -> &'static Info {
        &STRIDED
    }
    fn params(&self) -> Named {
        let offset = Attr::Scalar(Scalar::Int(self.view.offset as i64));
        vec![("size", self.view.shape.arg()), ("stride", self.view.strides.arg()), ("storage_offset", Arg::Attr(offset))]
    }
    fn backward(&self, g: &[Option<Tensor>], _cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
        if let Some(g) = &g[0] {
            grads[0] = Some(as_strided_backward(g, self.base, self.view)?);
        }
        Ok(())
    }
    fn attrs(&self, _: &Node) -> Vec<(&'static str, Attr)> {
        vec![
            ("size", Attr::Ints(self.view.shape.to_i64())),
            ("stride", Attr::Ints(self.view.strides.to_i64())),
            ("storage_offset", Attr::Scalar(Scalar::Int(self.view.offset as i64))),
        ]
    }
}
impl IntoAttr for Geometry {
    fn attr(&self) -> Attr {
        Attr::Ints(self.shape.iter().chain(self.strides.iter()).map(|&v| v as i64).chain([self.offset as i64]).collect())
    }
    fn arg(&self) -> Arg {
        Arg::List(vec![self.shape.arg(), self.strides.arg(), self.offset.arg()])
    }
}
/// The storage that both layouts lie in, as one row: where it starts, and how long it is.
fn common(a: &Geometry, b: &Geometry) -> (usize, usize) {
    let start = a.offset.min(b.offset);
    let end = (a.offset + span(&a.shape, &a.strides)).max(b.offset + span(&b.shape, &b.strides));
    (start, end - start)
}
fn row(n: usize) -> (Dims, Dims) {
    (Dims::of(&[n]), Dims::of(&[1]))
}
/// Adds the elements of `g`, laid out as `view`, up in storage, and reads them as `base`; elements that `base` names several times share.
fn scatter_layout(g: &Array, base: &Geometry, view: &Geometry) -> Result<Array> {
    let (start, n) = common(base, view);
    let dtype = g.dtype;
    let wide = pointwise::to_f64(g)?;
    let mut sums = vec![0f64; n];
    let places = |geometry: &Geometry| -> Result<Vec<usize>> {
        let (shape, strides) = row(n);
        let frame = Array::empty_strided(shape, strides, DType::Bool)?;
        let mut at = Vec::with_capacity(geometry.shape.numel());
        frame.view(geometry.shape, geometry.strides, geometry.offset - start).for_each_offset(|o| at.push(o));
        Ok(at)
    };
    for (at, v) in places(view)?.into_iter().zip(wide.iter()) {
        sums[at] += v;
    }
    let of_base = places(base)?;
    if crate::layout::may_overlap(&base.shape, &base.strides) {
        let mut count = vec![0f64; n];
        of_base.iter().for_each(|&at| count[at] += 1.0);
        sums.iter_mut().zip(&count).for_each(|(s, c)| *s /= c.max(1.0));
    }
    let out: Vec<f64> = of_base.into_iter().map(|at| sums[at]).collect();
    pointwise::cast(&Array::from_slice(&base.shape, &out)?, dtype)
}
op! {
    /// The gradient of `as_strided`: what lies at one place of the storage is added up.
    AsStridedBackwardBackward0 = fn as_strided_backward(self_; base: Geometry, view: Geometry);
    on [private];
    forward(_out) scatter_layout(self_, base, view);
    grad(g, cx) { self_ uses [] => {
        let (start, n) = common(base, view);
        let all = Geometry { shape: Dims::of(&[n]), strides: Dims::of(&[1]), offset: start };
        relayout(&as_strided_backward_read(g, *base, all)?, Geometry { offset: view.offset - start, ..*view })
    } }
}
/// `g`, laid out as `base`, put back into a row of the whole storage; its double.
fn as_strided_backward_read(g: &Tensor, base: Geometry, all: Geometry) -> Result<Tensor> {
    as_strided_backward(g, all, base)
}
fn relayout(t: &Tensor, view: Geometry) -> Result<Tensor> {
    as_strided(t, Sizes::of(&view.shape), Ints::of(&view.strides), Some(view.offset as i64))
}
function! {
    /// A view of the storage with the given size, strides and storage offset (in elements).
    ///
    /// Raises RuntimeError if the view would leave the storage.
    fn as_strided(self_; size: Sizes, stride: Ints, storage_offset: Option<i64> = None) -> Tensor;
    records STRIDED;
    {
        strided_view(self_, &size, &stride, storage_offset)
    }
}
fn strided_view(t: &Tensor, size: &[i64], stride: &[i64], offset: Option<i64>) -> Result<Tensor> {
    if size.len() != stride.len() {
        bail!(Runtime, "as_strided(): mismatch in length of strides and shape: size {size:?}, stride {stride:?}");
    }
    let shape = given_size("as_strided", size)?;
    if stride.iter().any(|s| *s < 0) || offset.is_some_and(|o| o < 0) {
        bail!(
            Runtime,
            "as_strided(): Negative strides (or offsets) are not supported at the moment, got strides: {stride:?}, storage_offset {offset:?}"
        );
    }
    let strides: Dims = stride.iter().map(|&s| s as usize).collect();
    let base = t.look(Array::geometry);
    let view = Geometry { shape, strides, offset: offset.map_or(base.offset, |o| o as usize) };
    record(
        crate::tape::How::Fresh,
        &STRIDED,
        &[Some(t)],
        &|x, _| x[0].expect("as_strided has one input").as_strided(view.shape, view.strides, view.offset),
        &|| Box::new(AsStridedBackward0 { base, view }),
    )
}
op! {
    /// A copy of `self` in which the elements that `as_strided` would view are those of `src`.
    AsStridedScatterBackward0 = fn as_strided_scatter(self_, src; size: Sizes, stride: Ints, storage_offset: i64);
    on [function];
    forward(_out) {
        let to = Array::empty_strided(self_.shape, self_.strides, self_.dtype)?;
        pointwise::copy(&to, self_)?;
        let part = to.as_strided(size.iter().map(|&v| v as usize).collect(), stride.iter().map(|&v| v as usize).collect(), *storage_offset as usize)?;
        pointwise::copy(&part, src)?;
        Ok(to)
    };
    grad(g, cx) {
        self_ uses [] => {
            let g = laid_out(g, g.shape().strides())?;
            let zeros = zeros(size.iter().map(|&v| v as usize).collect(), g.dtype())?;
            as_strided_scatter(&g, &zeros, size.clone(), stride.clone(), *storage_offset)
        },
        src uses [] => {
            let g = laid_out(g, g.shape().strides())?;
            as_strided(&g, size.clone(), stride.clone(), Some(*storage_offset))
        },
    }
}
op! {
    /// The same elements, with the given strides.
    CloneBackward0 = fn laid_out(self_; strides: Dims);
    on [private];
    forward(_out) {
        let to = Array::empty_strided(self_.shape, *strides, self_.dtype)?;
        pointwise::copy(&to, self_)?;
        Ok(to)
    };
    grad(g, cx) { self_ uses [] => Ok(g.clone()) }
}

struct CopySlices {
    base: Geometry,
    view: Geometry,
    inner: Arc<Node>,
}
impl Backward for CopySlices {
    fn info(&self) -> &'static Info {
        &SLICES
    }
    fn inner(&self) -> Option<&Arc<Node>> {
        Some(&self.inner)
    }
    fn backward(&self, g: &[Option<Tensor>], cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
        let Some(g) = &g[0] else { return Ok(()) };
        // The gradient, in memory as the base lies, so that the view's layout fits it.
        let dense = crate::layout::is_dense(&self.base.shape, &self.base.strides);
        let (g, view) = if dense {
            let offset = self.view.offset - self.base.offset;
            let same = g.look(|a| a.strides == self.base.strides && a.offset == 0);
            (if same { g.clone() } else { laid_out(g, self.base.strides)? }, Geometry { offset, ..self.view })
        } else {
            bail!(
                Runtime,
                "in-place operation on a view of a tensor whose elements overlap or leave gaps (strides {:?}) has no derivative; clone() the base first",
                self.base.strides
            )
        };
        let (size, stride) = (Sizes::of(&view.shape), Ints::of(&view.strides));
        let part = as_strided(&g, size.clone(), stride.clone(), Some(view.offset as i64))?;
        let part = contiguous(&part, None)?;
        let mut outs: SmallVec<[Option<Tensor>; 3]> = SmallVec::new();
        outs.resize(self.inner.inputs.len(), None);
        self.inner.op.backward(&[Some(part)], &Cx { node: &self.inner, needs: cx.needs, keep: cx.keep, spare: false }, &mut outs)?;
        if cx.needs(0) {
            let part = match outs[0].take() {
                Some(p) => expand(&p, size.clone())?,
                None => zeros(view.shape, g.dtype())?,
            };
            grads[0] = Some(as_strided_scatter(&g, &part, size, stride, view.offset as i64)?);
        }
        for (to, from) in grads.iter_mut().zip(outs).skip(1) {
            *to = from;
        }
        Ok(())
    }
}
