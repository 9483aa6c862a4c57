//! Joins of several tensors: they take lists, so their nodes are written by hand.
use super::macros::function;
use super::*;
use crate::dtype::promote;
use crate::error::bail;
use crate::kernels::pointwise;
use crate::layout::wrap_dim;
use crate::tape::{Backward, Cx, Info, Node, record};

macro_rules! list_info {
    ($name:ident, $node:literal, $op:literal) => {
        static $name: Info = Info {
            node: $node,
            op: $op,
            schema: $op,
            inputs: &["tensors"],
            outputs: &["result"],
            visible: 1,
            nondiff: 0,
            saves: &[],
            order: &[],
            uses: &[],
            every: true,
            view: false,
            state: 0,
            views: &VIEWS,
        };
    };
}
list_info!(CAT, "CatBackward0", "cat");
list_info!(STACK, "StackBackward0", "stack");

fn result_dtype(x: &[&Array]) -> DType {
    promote(x.iter().map(|a| (a.dtype, a.rank())))
}
#[derive(Clone)]
struct CatBackward0 {
    dim: i64,
    lengths: Vec<i64>,
}
impl Backward for CatBackward0 {
    fn info(&self) -> &'static Info {
        &CAT
    }
    fn attrs(&self, _: &Node) -> Vec<(&'static str, Attr)> {
        vec![("dim", Attr::Scalar(Scalar::Int(self.dim)))]
    }
    fn backward(&self, g: &[Option<Tensor>], cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
        let Some(g) = &g[0] else { return Ok(()) };
        let mut at = 0;
        for (i, &n) in self.lengths.iter().enumerate() {
            if cx.needs(i) {
                let part = if n < 0 { zeros(cx.shape(i), cx.dtype(i))? } else { narrow(g, self.dim, at, n)? };
                grads[i] = Some(to_dtype(&part, cx.dtype(i))?);
            }
            at += n.max(0);
        }
        Ok(())
    }
}
function! {
    /// Tensors joined along an existing dimension; all other lengths agree. The dtype is promoted.
    ///
    /// Raises ValueError for an empty list, RuntimeError where shapes differ.
    fn cat(; tensors: Vec<Tensor>, dim: i64 = 0) -> Tensor;
    on [function];
    {
        if tensors.is_empty() {
            bail!(Value, "cat(): expected a non-empty list of Tensors");
        }
        let shapes: Vec<Dims> = tensors.iter().map(Tensor::shape).collect();
        if let Some(i) = shapes.iter().position(|s| s.is_empty()) {
            bail!(Runtime, "zero-dimensional tensor (at position {i}) cannot be concatenated");
        }
        let full = shapes.iter().find(|s| !(s.len() == 1 && s[0] == 0)).unwrap_or(&shapes[0]);
        let d = wrap_dim(dim, full.len())?;
        let mut lengths = Vec::with_capacity(shapes.len());
        for (i, s) in shapes.iter().enumerate() {
            if s.len() == 1 && s[0] == 0 && full.len() != 1 {
                lengths.push(-1);
                continue;
            }
            if s.len() != full.len() {
                bail!(Runtime, "cat(): Tensors must have same number of dimensions: got {} and {} (tensor number {i} has shape {s:?})", full.len(), s.len());
            }
            if let Some(x) = (0..s.len()).find(|&x| x != d && s[x] != full[x]) {
                bail!(Runtime, "cat(): Sizes of tensors must match except in dimension {d}. Expected size {} but got size {} for tensor number {i} in the list (dimension {x}).", full[x], s[x]);
            }
            lengths.push(s[d] as i64);
        }
        let total: i64 = lengths.iter().map(|n| n.max(&0)).sum();
        let shape = full.with(|s| s[d] = total as usize);
        let inputs: Vec<Option<&Tensor>> = tensors.iter().map(Some).collect();
        record(crate::tape::How::Fresh, &CAT, &inputs, &|x, _| {
            let x: Vec<&Array> = x.iter().flatten().copied().collect();
            let out = Array::empty(shape, result_dtype(&x))?;
            let mut at = 0;
            for (a, &n) in x.iter().zip(&lengths).filter(|(_, n)| **n > 0) {
                let part = out.view(out.shape.with(|s| s[d] = n as usize), out.strides, at * out.strides[d]);
                pointwise::copy(&part, a)?;
                at += n as usize;
            }
            Ok(out)
        }, &|| Box::new(CatBackward0 { dim: d as i64, lengths: lengths.clone() }))
    }
}
struct StackBackward0 {
    dim: i64,
}
impl Backward for StackBackward0 {
    fn info(&self) -> &'static Info {
        &STACK
    }
    fn attrs(&self, _: &Node) -> Vec<(&'static str, Attr)> {
        vec![("dim", Attr::Scalar(Scalar::Int(self.dim)))]
    }
    fn backward(&self, g: &[Option<Tensor>], cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
        let Some(g) = &g[0] else { return Ok(()) };
        for (i, to) in grads.iter_mut().enumerate() {
            if cx.needs(i) {
                *to = Some(to_dtype(&select(g, self.dim, i as i64)?, cx.dtype(i))?);
            }
        }
        Ok(())
    }
}
function! {
    /// Tensors of one shape joined along a new dimension. The dtype is promoted.
    fn stack(; tensors: Vec<Tensor>, dim: i64 = 0) -> Tensor;
    on [function];
    {
        let Some(first) = tensors.first() else { bail!(Runtime, "stack expects a non-empty TensorList") };
        let part = first.shape();
        if let Some((i, t)) = tensors.iter().enumerate().find(|(_, t)| t.shape() != part) {
            bail!(Runtime, "stack expects each tensor to be equal size, but got {part:?} at entry 0 and {:?} at entry {i}", t.shape());
        }
        let d = wrap_dim(dim, part.len() + 1)?;
        let inputs: Vec<Option<&Tensor>> = tensors.iter().map(Some).collect();
        record(crate::tape::How::Fresh, &STACK, &inputs, &|x, _| {
            let x: Vec<&Array> = x.iter().flatten().copied().collect();
            let out = Array::empty(part.with(|s| s.insert(d, x.len())), result_dtype(&x))?;
            for (i, a) in x.iter().enumerate() {
                let strides = out.strides.with_removed(d);
                pointwise::copy(&out.view(part, strides, i * out.strides[d]), a)?;
            }
            Ok(out)
        }, &|| Box::new(StackBackward0 { dim: d as i64 }))
    }
}
