//! Joins of several tensors: they take lists, so their nodes are written by hand.
use super::macros::function;
use super::*;
use crate::dtype::promote;
use crate::error::bail;
use crate::kernels::pointwise;
use crate::layout::wrap_dim;
use crate::tape::dispatch::Named;
use crate::tape::{Backward, Cx, Info, Node, record};

macro_rules! list_info {
    ($name:ident, $node:literal, $op:literal) => {
        static $name: Info = Info { node: $node, op: $op, schema: $op, inputs: &["tensors"], every: true, ..PLAIN };
    };
}
list_info!(CAT, "CatBackward0", "cat");
list_info!(STACK, "StackBackward0", "stack");
list_info!(BLOCKS, "BlockDiagBackward0", "block_diag");

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
    fn operands(&self) -> Option<(&'static str, usize)> {
        Some(("tensors", 0))
    }
    fn params(&self) -> Named {
        vec![("dim", self.dim.arg())]
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
    records CAT;
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
    fn operands(&self) -> Option<(&'static str, usize)> {
        Some(("tensors", 0))
    }
    fn params(&self) -> Named {
        vec![("dim", self.dim.arg())]
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
    records STACK;
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

// ---- joins and their inverses, as compositions ----
macro_rules! aliases { ($($name:ident)*) => { $(function! {
    /// Alias of `cat`.
    fn $name(; tensors: Vec<Tensor>, dim: i64 = 0) -> Tensor;
    on [function];
    { cat(tensors, dim) }
})* } }
aliases! { concat concatenate }
/// `t` with dimensions of length 1, so that it has `n` of them; where they go is torch's.
fn at_least(t: &Tensor, n: usize) -> Result<Tensor> {
    match (n, t.ndim()) {
        (n, 0) => reshape(t, Sizes((0..n).map(|_| 1).collect())),
        (2, 1) => unsqueeze(t, 0),
        (3, 1) => unsqueeze(&unsqueeze(t, 0)?, -1),
        (3, 2) => unsqueeze(t, -1),
        _ => Ok(t.clone()),
    }
}
fn all_at_least(tensors: &[Tensor], n: usize) -> Result<Vec<Tensor>> {
    tensors.iter().map(|t| at_least(t, n)).collect()
}
fn some(op: &str, tensors: &[Tensor]) -> Result<()> {
    if tensors.is_empty() { bail!(Runtime, "{op} expects a non-empty TensorList") } else { Ok(()) }
}
macro_rules! at_least { ($($n:literal $one:ident $many:ident;)*) => { $(
    function! {
        /// With dimensions of length 1, so that there are at least so many.
        fn $one(input) -> Tensor;
        on [function];
        { at_least(input, $n) }
    }
    function! {
        /// Each of several tensors with at least so many dimensions.
        fn $many(; tensors: Operands) -> Vec<Tensor>;
        overload $one;
        on [function];
        { all_at_least(&tensors.0, $n) }
    }
)* } }
at_least! {
    1 atleast_1d atleast_1d_each;
    2 atleast_2d atleast_2d_each;
    3 atleast_3d atleast_3d_each;
}
function! {
    /// Tensors side by side: joined along the second dimension, vectors along the first.
    fn hstack(; tensors: Vec<Tensor>) -> Tensor;
    on [function];
    {
        some("hstack", &tensors)?;
        let all = all_at_least(&tensors, 1)?;
        let dim = if all[0].ndim() == 1 { 0 } else { 1 };
        cat(all, dim)
    }
}
macro_rules! stacks { ($($(#[doc = $doc:literal])* $name:ident $n:literal $dim:literal;)*) => { $(function! {
    $(#[doc = $doc])*
    fn $name(; tensors: Vec<Tensor>) -> Tensor;
    on [function];
    {
        some(stringify!($name), &tensors)?;
        cat(all_at_least(&tensors, $n)?, $dim)
    }
})* } }
stacks! {
    /// Tensors one below the other: joined along the first dimension, vectors as rows.
    vstack 2 0;
    /// Alias of `vstack`.
    row_stack 2 0;
    /// Tensors one behind the other: joined along the third dimension.
    dstack 3 2;
}
function! {
    /// Vectors as the columns of a matrix, beside matrices.
    fn column_stack(; tensors: Vec<Tensor>) -> Tensor;
    on [function];
    {
        some("column_stack", &tensors)?;
        let column = |t: &Tensor| if t.ndim() <= 1 { reshape(t, Sizes::from_slice(&[-1, 1])) } else { Ok(t.clone()) };
        hstack(tensors.iter().map(column).collect::<Result<_>>()?)
    }
}
function! {
    /// Tensors expanded to their common shape.
    fn broadcast_tensors(; tensors: Operands) -> Vec<Tensor>;
    on [function];
    {
        let shape = tensors.0.iter().try_fold(Dims::default(), |s, t| crate::layout::broadcast("broadcast_tensors", &s, &t.shape()))?;
        tensors.0.iter().map(|t| expand(t, Sizes::of(&shape))).collect()
    }
}
function! {
    /// The coordinates of a grid: of vectors x, y, .. the grids of x, of y, ..; "xy" exchanges the first two dimensions.
    fn meshgrid(; tensors: Operands; *, indexing: Option<String> = None) -> Vec<Tensor>;
    on [function];
    {
        let mut all = tensors.0;
        some("meshgrid", &all)?;
        let swap = match indexing.as_deref() {
            None | Some("ij") => false,
            Some("xy") => all.len() > 1,
            Some(other) => bail!(Runtime, "torch.meshgrid: indexing must be one of \"xy\" or \"ij\", but received: {other}"),
        };
        if let Some(t) = all.iter().find(|t| t.ndim() > 1) {
            bail!(Runtime, "torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: {:?}", t.shape());
        }
        if swap {
            all.swap(0, 1);
        }
        let shape: Vec<usize> = all.iter().map(|t| t.shape().numel()).collect();
        let grid = |(i, t): (usize, &Tensor)| {
            let along = (0..shape.len()).map(|d| if d == i { -1 } else { 1 }).collect();
            expand(&view(t, Sizes(along))?, Sizes::of(&shape))
        };
        let mut grids = all.iter().enumerate().map(grid).collect::<Result<Vec<_>>>()?;
        if swap {
            grids.swap(0, 1);
        }
        Ok(grids)
    }
}
function! {
    /// Every choice of one element from each of several vectors, one a row.
    fn cartesian_prod(; tensors: Operands) -> Tensor;
    on [function];
    {
        some("cartesian_prod", &tensors.0)?;
        if let [one] = &tensors.0[..] {
            return Ok(one.clone());
        }
        let grids = meshgrid(tensors, None)?;
        stack(grids.iter().map(|g| reshape(g, Sizes::from_slice(&[-1]))).collect::<Result<_>>()?, 1)
    }
}
struct BlockDiagBackward0;
impl Backward for BlockDiagBackward0 {
    fn info(&self) -> &'static Info {
        &BLOCKS
    }
    fn operands(&self) -> Option<(&'static str, usize)> {
        Some(("tensors", 0))
    }
    fn backward(&self, g: &[Option<Tensor>], cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()> {
        let Some(g) = &g[0] else { return Ok(()) };
        let mut at = [0; 2];
        for (i, to) in grads.iter_mut().enumerate() {
            let n = [0, 1].map(|d| cx.shape(i)[d] as i64);
            if cx.needs(i) {
                let part = narrow(&narrow(g, 0, at[0], n[0])?, 1, at[1], n[1])?;
                *to = Some(to_dtype(&part, cx.dtype(i))?);
            }
            at = [at[0] + n[0], at[1] + n[1]];
        }
        Ok(())
    }
}
function! {
    /// Matrices on the diagonal of a matrix that is zero elsewhere.
    fn block_diag(; tensors: Operands) -> Tensor;
    on [function];
    records BLOCKS;
    {
        let blocks = all_at_least(&tensors.0, 2)?;
        if let Some(t) = blocks.iter().find(|t| t.ndim() > 2) {
            bail!(Runtime, "torch.block_diag: Input tensors must have 2 or fewer dimensions. Input has {} dimensions", t.ndim());
        }
        let blocks = if blocks.is_empty() { vec![zeros(Dims::of(&[1, 0]), crate::dtype::default_dtype())?] } else { blocks };
        let inputs: Vec<Option<&Tensor>> = blocks.iter().map(Some).collect();
        record(crate::tape::How::Fresh, &BLOCKS, &inputs, &|x, _| {
            let x: Vec<&Array> = x.iter().flatten().copied().collect();
            let length = |d: usize| x.iter().map(|a| a.shape[d]).sum::<usize>();
            let out = Array::zeros(Dims::of(&[length(0), length(1)]), result_dtype(&x))?;
            let mut at = 0;
            for a in x {
                pointwise::copy(&out.view(a.shape, out.strides, at), a)?;
                at += a.shape[0] * out.strides[0] + a.shape[1];
            }
            Ok(out)
        }, &|| Box::new(BlockDiagBackward0))
    }
}
function! {
    /// Views along `dim`: so many of nearly equal length, the longer ones first.
    fn tensor_split(self_; sections: i64, dim: i64 = 0) -> Vec<Tensor>;
    {
        if self_.ndim() == 0 || sections <= 0 {
            bail!(Runtime, "tensor_split expected at least a 1-dimensional tensor and a number of sections larger than 0, got {} dims and {sections}", self_.ndim());
        }
        let n = self_.shape()[wrap_dim(dim, self_.ndim())?] as i64;
        let cut = |i: i64| n / sections * i + i.min(n % sections);
        (0..sections).map(|i| slice(self_, dim, Some(cut(i)), Some(cut(i + 1)), 1)).collect()
    }
}
function! {
    /// Views along `dim`, cut before each of `indices`.
    fn tensor_split_at(self_; indices: Ints, dim: i64 = 0) -> Vec<Tensor>;
    overload tensor_split;
    {
        if self_.ndim() == 0 {
            bail!(Runtime, "tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims");
        }
        let cuts: Vec<Option<i64>> = [Some(0)].into_iter().chain(indices.iter().map(|&i| Some(i))).chain([None]).collect();
        cuts.windows(2).map(|c| slice(self_, dim, c[0], c[1], 1)).collect()
    }
}
macro_rules! splits { ($($(#[doc = $doc:literal])* $name:ident $at:ident $least:literal $dim:expr;)*) => { $(
    function! {
        $(#[doc = $doc])*
        fn $name(self_; sections: i64) -> Vec<Tensor>;
        {
            let dim: i64 = ($dim)(self_.ndim());
            if self_.ndim() < $least {
                bail!(Runtime, concat!("torch.", stringify!($name), " requires a tensor with at least ", $least, " dimension, but got a tensor with {} dimensions!"), self_.ndim());
            }
            let n = self_.shape()[dim as usize] as i64;
            if sections <= 0 || n % sections != 0 {
                bail!(Runtime, concat!("torch.", stringify!($name), " attempted to split along dimension {}, but the size of the dimension {} is not divisible by the split_size {}!"), dim, n, sections);
            }
            tensor_split(self_, sections, dim)
        }
    }
    function! {
        $(#[doc = $doc])*
        fn $at(self_; indices: Ints) -> Vec<Tensor>;
        overload $name;
        {
            if self_.ndim() < $least {
                bail!(Runtime, concat!("torch.", stringify!($name), " requires a tensor with at least ", $least, " dimension, but got a tensor with {} dimensions!"), self_.ndim());
            }
            tensor_split_at(self_, indices, ($dim)(self_.ndim()))
        }
    }
)* } }
splits! {
    /// Views side by side: along the second dimension, of a vector along the first.
    hsplit hsplit_at 1 |n: usize| if n == 1 { 0 } else { 1 };
    /// Views one below the other.
    vsplit vsplit_at 2 |_: usize| 0;
    /// Views one behind the other.
    dsplit dsplit_at 3 |_: usize| 2;
}
