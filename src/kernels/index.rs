//! Elements by index: selected, gathered, scattered, joined, turned and repeated. What is moved is never computed with; what is added up is
//! added in the computing type.
//!
//! An indexing is a `Places`: for each axis of the result a list of offsets, then a run that lies contiguous. Every index is checked while
//! its list is made, so that an index out of range is an error before anything is written. A function that changes some elements takes an
//! `Out`: if that is the array itself it writes in place, else into a copy; operands that share its storage are copied first.
use super::Out;
use super::pointwise::{cast, contiguous, copy, to_i64, writable};
use super::simd::simd;
use crate::array::{Array, Fresh};
use crate::dtype::{DType, Element, Scalar, for_dtype, promote};
use crate::error::{Error, Result, bail, err};
use crate::layout::{Dims, broadcast, expand, given_size, span};

/// Runs `$body` with `$t` standing for the type that a dtype is computed in.
macro_rules! for_compute {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype.compute() {
            $crate::dtype::Compute::F32 => {
                type $t = f32;
                $body
            }
            $crate::dtype::Compute::F64 => {
                type $t = f64;
                $body
            }
            $crate::dtype::Compute::I64 => {
                type $t = i64;
                $body
            }
        }
    };
}
pub(super) use for_compute;
/// The dtype of the type that `dtype` is computed in.
pub(super) fn computing(dtype: DType) -> DType {
    for_compute!(dtype, T => T::DTYPE)
}

/// A list of `n`, or the error that there is no memory for it: lengths may come from a user.
pub(super) fn room<T: Clone + Default>(n: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    if list.try_reserve_exact(n).is_err() {
        return Err(Box::new(Error::Memory { bytes: n as u128 * size_of::<T>() as u128 }));
    }
    list.resize(n, T::default());
    Ok(list)
}
/// One axis of an indexing.
enum Axis {
    /// Taken whole: its length and stride.
    Whole(usize, usize),
    /// These offsets.
    Listed(Vec<usize>),
}
impl Axis {
    fn offsets(self) -> Vec<usize> {
        match self {
            Axis::Whole(n, stride) => (0..n).map(|i| i * stride).collect(),
            Axis::Listed(list) => list,
        }
    }
}
/// Where the elements of an indexing lie, relative to an array's offset.
struct Places {
    outer: Vec<Vec<usize>>,
    inner: Vec<usize>,
    /// Elements that follow each other in memory, from each place on.
    row: usize,
}
impl Places {
    fn new(mut axes: Vec<Axis>) -> Places {
        let mut row = 1;
        while let Some(&Axis::Whole(n, stride)) = axes.last()
            && (stride == row || n == 1)
        {
            row *= n;
            axes.pop();
        }
        let mut outer: Vec<_> = axes.into_iter().map(Axis::offsets).collect();
        Places { inner: outer.pop().unwrap_or(vec![0]), outer, row }
    }
    /// Calls `f` with a start and the offsets from there, for all places in order of the result.
    fn each(&self, mut f: impl FnMut(usize, &[usize])) {
        if self.row == 0 || self.outer.iter().any(|l| l.is_empty()) {
            return;
        }
        let mut index = vec![0; self.outer.len()];
        loop {
            f(self.outer.iter().zip(&index).map(|(l, &i)| l[i]).sum(), &self.inner);
            let Some(d) = (0..index.len()).rfind(|&d| index[d] + 1 < self.outer[d].len()) else { return };
            index[d] += 1;
            index[d + 1..].fill(0);
        }
    }
    /// Changes each element there by `set`, which also gets the next of `values`; the only value again and again if it is one.
    fn put<T: Element>(&self, d: &mut [T], values: &[T], set: impl Fn(&mut T, T)) {
        let (mut rest, row) = (values, self.row);
        self.each(|start, list| {
            if let [v] = *values {
                for l in list {
                    d[start + l..][..row].iter_mut().for_each(|d| set(d, v));
                }
                return;
            }
            let (now, later) = rest.split_at(list.len() * row);
            rest = later;
            if row == 1 {
                for (&v, l) in now.iter().zip(list) {
                    set(&mut d[start + l], v);
                }
            } else {
                for (v, l) in now.chunks_exact(row).zip(list) {
                    for (d, &v) in d[start + l..][..row].iter_mut().zip(v) {
                        set(d, v);
                    }
                }
            }
        });
    }
}
/// The elements that `axes` name in `a`, as a fresh array of `shape`.
fn pick(a: &Array, axes: Vec<Axis>, shape: Dims) -> Result<Array> {
    let mut to = Fresh::new(shape, a.dtype)?;
    let places = Places::new(axes);
    for_dtype!(a.dtype, T => {
        let (s, mut rest) = (a.read::<T>(a.offset, span(&a.shape, &a.strides)), to.slice_mut::<T>());
        places.each(|start, list| {
            let (o, later) = std::mem::take(&mut rest).split_at_mut(list.len() * places.row);
            rest = later;
            if places.row == 1 {
                for (o, l) in o.iter_mut().zip(list) {
                    *o = s[start + l];
                }
            } else {
                for (o, l) in o.chunks_exact_mut(places.row).zip(list) {
                    o.copy_from_slice(&s[start + l..][..places.row]);
                }
            }
        });
    });
    Ok(to.done())
}
/// Offsets of indexed elements along an axis of `n`, `stride` apart; the first index that is out of range, if there is one. With `wrap`,
/// negative ones count from the end.
fn offsets(index: &[i64], n: usize, stride: usize, wrap: bool) -> Result<Vec<usize>, i64> {
    let mut list = vec![0; index.len()]; // no longer than the index, which lies in memory
    if list_offsets(index, n as i64, stride, if wrap { n as i64 } else { 0 }, &mut list) {
        Ok(list)
    } else {
        Err(first_outside(index, n, wrap))
    }
}
simd! {
    /// Whether all are in range; `back` is added to negative ones.
    fn list_offsets(index: &[i64], n: i64, stride: usize, back: i64, to: &mut [usize]) -> bool {
        let mut outside = 0;
        for (o, &i) in to.iter_mut().zip(index) {
            let i = i.wrapping_add(i >> 63 & back);
            outside |= i | (n - 1).wrapping_sub(i); // negative if one is
            *o = (i as usize).wrapping_mul(stride);
        }
        outside >= 0
    }
}
simd! {
    fn all_inside(index: &[i64], n: i64) -> bool {
        let mut outside = 0;
        for &i in index {
            outside |= i | (n - 1).wrapping_sub(i);
        }
        outside >= 0
    }
}
#[cold]
fn first_outside(index: &[i64], n: usize, wrap: bool) -> i64 {
    let (from, n) = (if wrap { -(n as i64) } else { 0 }, n as i64);
    index.iter().copied().find(|i| !(from..n).contains(i)).unwrap_or(0)
}
fn out_of_bounds(i: i64, dim: usize, n: usize) -> Box<Error> {
    if n == 0 {
        return err!(Index, "index is out of bounds for dimension with size 0: index {i} for dimension {dim}");
    }
    err!(Index, "index {i} is out of bounds for dimension {dim} with size {n}")
}
fn need_index(op: &'static str, index: &Array) -> Result<()> {
    if !matches!(index.dtype, DType::Int64 | DType::Int32) {
        bail!(Runtime, "{op}(): Expected dtype int32 or int64 for index, but got {}", index.dtype.name());
    }
    Ok(())
}
/// What is to be changed: `a` itself where the result goes into it, else a copy.
fn target(out: Out<'_>, a: &Array) -> Result<Array> {
    match out.0 {
        Some(o) if o.same_elements(a) => {
            writable(o)?;
            Ok(o.clone())
        }
        _ => cast(a, a.dtype),
    }
}
/// As `target`, in the computing type: in place only if that is its own.
fn target_computing(out: Out<'_>, a: &Array) -> Result<Array> {
    if computing(a.dtype) == a.dtype { target(out, a) } else { cast(a, computing(a.dtype)) }
}
fn stored(a: Array, dtype: DType) -> Result<Array> {
    if a.dtype == dtype { Ok(a) } else { cast(&a, dtype) }
}
/// Elements of `x` row-major, in `dtype`, outside the storage of `to`.
fn operand(x: &Array, dtype: DType, to: &Array) -> Result<Array> {
    if x.dtype == dtype && !x.shares(to) { contiguous(x) } else { cast(x, dtype) }
}
/// `x` read as `shape`, to which it broadcasts.
fn expanded(x: &Array, shape: &Dims) -> Array {
    x.view(*shape, expand(&x.shape, &x.strides, shape), x.offset)
}
/// A 0-d array as one of one dimension.
fn lined(a: &Array) -> Array {
    if a.ndim() == 0 { a.view(Dims::of(&[1]), Dims::of(&[1]), a.offset) } else { a.clone() }
}

// Indexing by arrays

/// The places that `indices` name in `a`, one index a dimension (a mask takes as many as it has), `None` for all of it; and the shape of
/// what they select: the indices' common shape stands where the first of them does if they are neighbours, else in front.
fn plan(a: &Array, indices: &[Option<Array>]) -> Result<(Vec<Axis>, Dims)> {
    let (mut axes, mut shape, mut d) = (Vec::new(), Vec::new(), 0);
    let mut listed: Vec<(Dims, Vec<usize>)> = Vec::new();
    let mut seat = None;
    for (k, index) in indices.iter().enumerate() {
        let Some(index) = index else {
            if d < a.ndim() {
                axes.push(Axis::Whole(a.shape[d], a.strides[d]));
                shape.push(a.shape[d]);
            }
            d += 1;
            continue;
        };
        let mask = matches!(index.dtype, DType::Bool | DType::UInt8);
        let takes = if mask { index.ndim() } else { 1 };
        if d + takes > a.ndim() {
            bail!(Index, "too many indices for tensor of dimension {}", a.ndim());
        }
        let (sizes, strides) = (&a.shape[d..d + takes], &a.strides[d..d + takes]);
        listed.push(if mask {
            if let Some(i) = (0..takes).find(|&i| index.shape[i] != sizes[i]) {
                bail!(
                    Index,
                    "The shape of the mask {:?} at index {i} does not match the shape of the indexed tensor {:?} at index {}",
                    index.shape,
                    a.shape,
                    d + i
                );
            }
            let list = marked(index, strides)?;
            (Dims::of(&[list.len()]), list)
        } else {
            if !matches!(index.dtype, DType::Int64 | DType::Int32) {
                bail!(Index, "tensors used as indices must be long, int, byte or bool tensors, but index {k} is {}", index.dtype.name());
            }
            let list = offsets(&to_i64(index)?, sizes[0], strides[0], true).map_err(|i| out_of_bounds(i, d, sizes[0]))?;
            (index.shape, list)
        });
        // Neighbours find as many whole axes before them.
        seat = Some(seat.map_or(axes.len(), |s| if s == axes.len() { s } else { 0 }));
        d += takes;
    }
    if d > a.ndim() {
        bail!(Index, "too many indices for tensor of dimension {} (got {d})", a.ndim());
    }
    for d in d..a.ndim() {
        axes.push(Axis::Whole(a.shape[d], a.strides[d]));
        shape.push(a.shape[d]);
    }
    if let Some(seat) = seat {
        let (common, list) = joined(listed)?;
        axes.insert(seat, Axis::Listed(list));
        shape.splice(seat..seat, common.iter().copied());
    }
    let shape = Dims::of(&shape);
    shape.checked_numel()?;
    Ok((axes, shape))
}
/// Sums of offsets, broadcast to their common shape.
fn joined(mut listed: Vec<(Dims, Vec<usize>)>) -> Result<(Dims, Vec<usize>)> {
    let all: Vec<Dims> = listed.iter().map(|l| l.0).collect();
    let common = all.iter().try_fold(Dims::default(), |c, s| broadcast("index", &c, s));
    let Ok(common) = common else {
        let shapes: Vec<_> = all.iter().map(|s| format!("{s:?}")).collect();
        bail!(Index, "shape mismatch: indexing tensors could not be broadcast together with shapes {}", shapes.join(", "));
    };
    if let [_] = listed[..] {
        return Ok((common, listed.remove(0).1));
    }
    let mut sum = room(common.checked_numel()?)?;
    for (shape, list) in &listed {
        if *shape == common {
            sum.iter_mut().zip(list).for_each(|(s, l)| *s += l);
            continue;
        }
        let mut s = sum.iter_mut();
        let axes = common.iter().zip(expand(shape, &shape.strides(), &common).iter()).map(|(&n, &stride)| Axis::Whole(n, stride)).collect();
        let p = Places::new(axes);
        p.each(|start, offsets| offsets.iter().for_each(|o| list[start + o..][..p.row].iter().zip(&mut s).for_each(|(l, s)| *s += l)));
    }
    Ok((common, sum))
}
/// Elements (or slices) of `a` where `indices` say: `a[i, :, j]`.
pub fn index(a: &Array, indices: &[Option<Array>]) -> Result<Array> {
    let (axes, shape) = plan(a, indices)?;
    pick(a, axes, shape)
}
/// `a` with `values` (broadcast) where `indices` say; with `accumulate` added to what is there, else of several the last.
pub fn index_put(out: Out<'_>, a: &Array, indices: &[Option<Array>], values: &Array, accumulate: bool) -> Result<Array> {
    if values.dtype != a.dtype {
        bail!(
            Runtime,
            "Index put requires the source and destination dtypes match, got {} for the destination and {} for the source.",
            a.dtype.torch_name(),
            values.dtype.torch_name()
        );
    }
    let to = if accumulate { target_computing(out, a)? } else { target(out, a)? };
    let (axes, shape) = plan(&to, indices)?;
    if broadcast("index_put_", &shape, &values.shape).ok() != Some(shape) {
        bail!(
            Runtime,
            "shape mismatch: value tensor of shape {:?} cannot be broadcast to indexing result of shape {shape:?}",
            values.shape
        );
    }
    let values = if values.numel() == 1 { lined(values) } else { expanded(values, &shape) };
    put_in(to, &Places::new(axes), &values, accumulate, a.dtype)
}
/// Puts `values` (one, or as many as there are places) or adds them.
fn put_in(to: Array, places: &Places, values: &Array, add: bool, dtype: DType) -> Result<Array> {
    let v = operand(values, to.dtype, &to)?;
    if add {
        for_compute!(to.dtype, T => to.rewrite::<T, _>(&[&v], |d| places.put(d, v.slice(), |d, v| *d = sum(*d, v))));
    } else {
        for_dtype!(to.dtype, T => to.rewrite::<T, _>(&[&v], |d| places.put(d, v.slice(), |d, v| *d = v)));
    }
    stored(to, dtype)
}
/// Addition and the like, integers wrapping around.
pub(super) trait Arithmetic: Element {
    fn add(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    /// The quotient by a count, rounded down for integers.
    fn share(self, of: usize) -> Self;
    /// The greater (or lesser) of two; NaN if one is.
    fn pick(self, o: Self, greater: bool) -> Self;
    fn nan(self) -> bool;
}
macro_rules! arithmetic { ($($t:ident $add:expr, $mul:expr, $share:expr, $nan:expr;)*) => { $(impl Arithmetic for $t {
    #[inline(always)]
    fn add(self, o: $t) -> $t { $add(self, o) }
    #[inline(always)]
    fn mul(self, o: $t) -> $t { $mul(self, o) }
    fn share(self, of: usize) -> $t { $share(self, of as $t) }
    fn pick(self, o: $t, greater: bool) -> $t { if self.nan() || (if greater { self >= o } else { self <= o }) { self } else { o } }
    fn nan(self) -> bool { $nan(self) }
})* } }
arithmetic! {
    f32 |a, b| a + b, |a, b| a * b, |a, n| a / n, f32::is_nan;
    f64 |a, b| a + b, |a, b| a * b, |a, n| a / n, f64::is_nan;
    i64 i64::wrapping_add, i64::wrapping_mul, i64::div_euclid, |_| false;
}
fn sum<T: Arithmetic>(a: T, b: T) -> T {
    a.add(b)
}

// Masks

/// Elements looked at before what was found is handed over.
const CHUNK: usize = 1024;
/// Calls `f` with the places of elements that are not zero within each row of `n`; a long row in several calls.
fn found(a: &Array, n: usize, f: &mut dyn FnMut(usize, &[usize])) {
    let mut at = [0; CHUNK];
    for_dtype!(a.dtype, T => for (r, row) in a.slice::<T>().chunks_exact(n.max(1)).enumerate() {
        for (k, chunk) in row.chunks(CHUNK).enumerate() {
            let mut len = 0;
            for (i, v) in chunk.iter().enumerate() {
                at[len] = k * CHUNK + i;
                len += (*v != T::default()) as usize;
            }
            f(r, &at[..len]);
        }
    })
}
fn count(a: &Array) -> Result<usize> {
    let c = contiguous(a)?;
    Ok(for_dtype!(c.dtype, T => c.slice::<T>().iter().filter(|v| **v != T::default()).count()))
}
/// Index of the `r`th element of `shape`, as an offset.
fn unravel(mut r: usize, shape: &[usize], strides: &[usize]) -> usize {
    let along = shape.iter().zip(strides).rev();
    along.map(|(n, s)| (r % n * s, r /= n).0).sum()
}
/// Offsets of the marked elements in axes of `strides`.
fn marked(mask: &Array, strides: &[usize]) -> Result<Vec<usize>> {
    let m = contiguous(mask)?;
    let (mut list, stride) = (Vec::with_capacity(count(&m)?), strides.last().copied().unwrap_or(1));
    let one = m.strides.iter().zip(strides).zip(m.shape.iter()).all(|((&m, &s), &n)| n == 1 || s == m * stride);
    let n = if one { m.numel() } else { m.shape[m.ndim() - 1] };
    let outer = m.ndim().saturating_sub(1);
    found(&m, n, &mut |r, at| {
        let start = if one { 0 } else { unravel(r, &m.shape[..outer], &strides[..outer]) };
        list.extend(at.iter().map(|i| start + i * stride));
    });
    Ok(list)
}
/// Indices of the elements that are not zero, one a row.
pub fn nonzero(a: &Array) -> Result<Array> {
    let (c, k) = (contiguous(a)?, a.ndim());
    let mut to = Fresh::new(Dims::of(&[count(&c)?, k]), DType::Int64)?;
    if k > 0 {
        let (n, mut rows) = (c.shape[k - 1], to.slice_mut::<i64>().chunks_exact_mut(k));
        found(&c, n, &mut |r, at| {
            for (&i, row) in at.iter().zip(rows.by_ref()) {
                row[k - 1] = i as i64;
                let mut rest = r;
                for d in (0..k - 1).rev() {
                    (row[d], rest) = ((rest % c.shape[d]) as i64, rest / c.shape[d]);
                }
            }
        });
    }
    Ok(to.done())
}
fn need_mask(op: &'static str, mask: &Array) -> Result<()> {
    if mask.dtype != DType::Bool {
        bail!(Runtime, "{op}: expected BoolTensor for mask, but got {}", mask.dtype.name());
    }
    Ok(())
}
/// The elements that `mask` marks, in one dimension; both are broadcast.
pub fn masked_select(a: &Array, mask: &Array) -> Result<Array> {
    need_mask("masked_select", mask)?;
    let shape = broadcast("masked_select", &a.shape, &mask.shape)?;
    let (a, m) = (contiguous(&expanded(a, &shape))?, contiguous(&expanded(mask, &shape))?);
    let mut to = Fresh::new(Dims::of(&[count(&m)?]), a.dtype)?;
    for_dtype!(a.dtype, T => {
        let (s, mut o) = (a.slice::<T>(), to.slice_mut::<T>().iter_mut());
        found(&m, m.numel(), &mut |_, at| at.iter().zip(&mut o).for_each(|(&i, o)| *o = s[i]));
    });
    Ok(to.done())
}
/// `a` with the elements that `mask` marks taken from `source`, one after another.
pub fn masked_scatter(out: Out<'_>, a: &Array, mask: &Array, source: &Array) -> Result<Array> {
    need_mask("masked_scatter", mask)?;
    if a.dtype != source.dtype {
        bail!(
            Runtime,
            "masked_scatter: expected self and source to have same dtypes but got {} and {}",
            a.dtype.torch_name(),
            source.dtype.torch_name()
        );
    }
    let shape = broadcast("masked_scatter", &a.shape, &mask.shape)?;
    let to = target(out, &expanded(a, &shape))?;
    let list = marked(&expanded(mask, &shape), &to.strides)?;
    let source = contiguous(source)?;
    if source.numel() < list.len() {
        bail!(Runtime, "masked_scatter: Number of elements of source < number of ones in mask: {} and {}", source.numel(), list.len());
    }
    let source = source.view(Dims::of(&[list.len()]), Dims::of(&[1]), source.offset);
    put_in(to, &Places { outer: vec![], inner: list, row: 1 }, &source, false, a.dtype)
}

// Along one dimension, by a list

/// All of `a`, but along `dim` only what is listed.
fn along(a: &Array, dim: usize, list: Vec<usize>) -> Vec<Axis> {
    let mut axes: Vec<Axis> = a.shape.iter().zip(a.strides.iter()).map(|(&n, &s)| Axis::Whole(n, s)).collect();
    axes[dim] = Axis::Listed(list);
    axes
}
/// Checks an index of one dimension (or none) and gives its offsets along `dim`.
fn listed(op: &'static str, a: &Array, dim: usize, index: &Array) -> Result<Vec<usize>> {
    if index.ndim() > 1 {
        bail!(Index, "{op}(): Index is supposed to be a vector, but has shape {:?}", index.shape);
    }
    need_index(op, index)?;
    let range = |i| err!(Index, "{op}(): index out of range in self: index {i} for dimension {dim} with size {}", a.shape[dim]);
    offsets(&to_i64(index)?, a.shape[dim], a.strides[dim], false).map_err(range)
}
pub fn index_select(a: &Array, dim: usize, index: &Array) -> Result<Array> {
    if a.ndim() == 0 && index.numel() != 1 {
        bail!(Runtime, "index_select(): Index to scalar can have only 1 value, got {} value(s)", index.numel());
    }
    let l = lined(a);
    let list = listed("index_select", &l, dim, index)?;
    let shape = if a.ndim() == 0 { a.shape } else { a.shape.with(|s| s[dim] = list.len()) };
    pick(&l, along(&l, dim, list), shape)
}
/// Checks `source` against what is listed of `a`.
fn check_source(op: &'static str, a: &Array, dim: usize, index: &Array, source: &Array) -> Result<()> {
    if a.dtype != source.dtype {
        bail!(Runtime, "{op}(): self ({}) and source ({}) must have the same scalar type", a.dtype.torch_name(), source.dtype.torch_name());
    }
    let given = source.shape.get(dim).copied().unwrap_or(1);
    if index.numel() != given {
        bail!(Runtime, "{op}(): Number of indices ({}) should be equal to source.size(dim): ({given}), for dim: {dim}", index.numel());
    }
    let fits = source.ndim() == a.ndim() && (0..a.ndim()).all(|d| d == dim || source.shape[d] == a.shape[d]);
    if !fits {
        bail!(
            Runtime,
            "{op}(): source tensor shape must match self tensor shape, excluding the specified dimension. Got self.shape = {:?} source.shape = {:?}",
            a.shape,
            source.shape
        );
    }
    Ok(())
}
/// Changes what `index` lists along `dim` of `a`: `source` is put there, or `alpha` times `source` added.
fn index_change(
    op: &'static str,
    out: Out<'_>,
    a: &Array,
    dim: usize,
    index: &Array,
    source: &Array,
    alpha: Option<Scalar>,
) -> Result<Array> {
    let to = if alpha.is_some() { target_computing(out, a)? } else { target(out, a)? };
    let l = lined(&to);
    let places = Places::new(along(&l, dim, listed(op, &l, dim, index)?));
    match alpha {
        None => put_in(to, &places, source, false, a.dtype),
        Some(alpha) => {
            let v = operand(source, to.dtype, &to)?;
            for_compute!(to.dtype, T => {
                let alpha = <T as Element>::of(alpha);
                to.rewrite::<T, _>(&[&v], |d| places.put(d, v.slice(), |d, v| *d = d.add(v.mul(alpha))))
            });
            stored(to, a.dtype)
        }
    }
}
pub fn index_add(out: Out<'_>, a: &Array, dim: usize, index: &Array, source: &Array, alpha: Scalar) -> Result<Array> {
    check_source("index_add_", a, dim, index, source)?;
    index_change("index_add_", out, a, dim, index, source, Some(alpha))
}
pub fn index_copy(out: Out<'_>, a: &Array, dim: usize, index: &Array, source: &Array) -> Result<Array> {
    check_source("index_copy_", a, dim, index, source)?;
    index_change("index_copy_", out, a, dim, index, source, None)
}
/// Negative indices count from the end.
pub fn index_fill(out: Out<'_>, a: &Array, dim: usize, index: &Array, value: Scalar) -> Result<Array> {
    if index.ndim() > 1 {
        bail!(Runtime, "index_fill_(): Index has to be a vector/scalar, but has shape {:?}", index.shape);
    }
    if index.dtype != DType::Int64 {
        bail!(Index, "index_fill_(): Expected dtype int64 for index, but got {}", index.dtype.name());
    }
    let to = target(out, a)?;
    let l = lined(&to);
    let list = offsets(&to_i64(index)?, l.shape[dim], l.strides[dim], true).map_err(|i| out_of_bounds(i, dim, l.shape[dim]))?;
    put_in(to, &Places::new(along(&l, dim, list)), &Array::scalar(value, a.dtype)?, false, a.dtype)
}
/// Rows of `weight` by number.
pub fn embedding(weight: &Array, indices: &Array) -> Result<Array> {
    if weight.ndim() != 2 {
        bail!(Runtime, "embedding(): 'weight' must be 2-D, but has shape {:?}", weight.shape);
    }
    let list = embedded(indices, weight.shape[0], weight.strides[0])?;
    let shape = indices.shape.with(|s| s.push(weight.shape[1]));
    shape.checked_numel()?;
    pick(weight, along(weight, 0, list), shape)
}
fn embedded(indices: &Array, n: usize, stride: usize) -> Result<Vec<usize>> {
    if !matches!(indices.dtype, DType::Int64 | DType::Int32) {
        bail!(
            Runtime,
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; but got {}Tensor instead (while checking arguments for embedding)",
            indices.dtype.torch_name()
        );
    }
    offsets(&to_i64(indices)?, n, stride, false).map_err(|i| err!(Index, "embedding(): index out of range in self: index {i}, {n} rows"))
}
/// The gradient of `weight` (of `n` rows) from that of the rows taken. Row `padding` (none if negative) stays zero; `by_frequency` divides
/// each row by the number of its uses.
pub fn embedding_backward(grad: &Array, indices: &Array, n: usize, padding: i64, by_frequency: bool) -> Result<Array> {
    let Some(&width) = grad.shape.last() else { bail!(Runtime, "embedding_backward(): the gradient has no dimension") };
    let list = embedded(indices, n, width)?;
    if grad.numel() != list.len() * width {
        bail!(Runtime, "embedding_backward(): a gradient of shape {:?} does not fit indices of shape {:?}", grad.shape, indices.shape);
    }
    let to = Array::zeros(Dims::of(&[n, width]), computing(grad.dtype))?;
    let mut uses = vec![0usize; if by_frequency { n } else { 0 }];
    if by_frequency && width > 0 {
        list.iter().for_each(|l| uses[l / width] += 1);
    }
    let g = operand(grad, to.dtype, &to)?;
    let skipped = usize::try_from(padding).ok().map(|p| p * width);
    if width > 0 {
        for_compute!(to.dtype, T => to.rewrite::<T, _>(&[&g], |d| {
            for (&l, g) in list.iter().zip(g.slice::<T>().chunks_exact(width)).filter(|(l, _)| Some(**l) != skipped) {
                for (d, &g) in d[l..l + width].iter_mut().zip(g) {
                    *d = d.add(if by_frequency { g.share(uses[l / width]) } else { g });
                }
            }
        }));
    }
    stored(to, grad.dtype)
}
/// All elements by number in order of the index; negative numbers count from the end.
pub fn take(a: &Array, index: &Array) -> Result<Array> {
    if a.numel() == 0 && index.numel() > 0 {
        bail!(Index, "take(): tried to take from an empty tensor");
    }
    let list = numbered("take", a, index)?;
    pick(a, vec![Axis::Listed(list)], index.shape)
}
fn numbered(op: &'static str, a: &Array, index: &Array) -> Result<Vec<usize>> {
    if index.dtype != DType::Int64 {
        bail!(Runtime, "{op}(): Expected a long tensor for index, but got {}", index.dtype.torch_name());
    }
    let range = |i| err!(Index, "{op}(): out of range: tried to access index {i} on a tensor of {} elements.", a.numel());
    let mut list = offsets(&to_i64(index)?, a.numel(), 1, true).map_err(range)?;
    if !a.is_contiguous() {
        list.iter_mut().for_each(|l| *l = unravel(*l, &a.shape, &a.strides));
    }
    Ok(list)
}
/// `a` with elements by number replaced, or added to.
pub fn put(out: Out<'_>, a: &Array, index: &Array, source: &Array, accumulate: bool) -> Result<Array> {
    if a.dtype != source.dtype {
        bail!(
            Runtime,
            "put_(): self and source expected to have the same dtype, but got self.dtype = {} and source.dtype = {}",
            a.dtype.torch_name(),
            source.dtype.torch_name()
        );
    }
    if source.numel() != index.numel() {
        bail!(
            Index,
            "put_(): Expected source and index to have the same number of elements, but got source.numel() = {}, index.numel() = {}",
            source.numel(),
            index.numel()
        );
    }
    let to = if accumulate { target_computing(out, a)? } else { target(out, a)? };
    let places = Places { outer: vec![], inner: numbered("put_", &to, index)?, row: 1 };
    put_in(to, &places, source, accumulate, a.dtype)
}

// Along one dimension, each element by an index of its own

/// How elements that meet are put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduce {
    Sum,
    Prod,
    Mean,
    Max,
    Min,
}
/// The offsets of the elements that `index` names in `x`, row by row of `index`: from the start of a row, `step` from one to the next,
/// and `across` for each count of the index.
struct Across {
    rows: Places,
    row: usize,
    step: usize,
    across: usize,
}
impl Across {
    /// Checks shapes (the index fits into `x` apart from `dim`) and every index.
    fn new(op: &'static str, x: &Array, dim: usize, shape: &Dims, index: &[i64]) -> Result<Across> {
        let last = shape.len() - 1;
        let n = x.shape[dim];
        if !all_inside(index, n as i64) {
            let i = first_outside(index, n, false);
            bail!(Runtime, "{op}(): index {i} is out of bounds for dimension {dim} with size {n}");
        }
        let stride = |d: usize| if d == dim { 0 } else { x.strides[d] };
        let mut outer: Vec<Vec<usize>> = (0..last).map(|d| Axis::Whole(shape[d], stride(d)).offsets()).collect();
        let inner = outer.pop().unwrap_or(vec![0]);
        Ok(Across { rows: Places { outer, inner, row: 1 }, row: shape[last], step: stride(last), across: x.strides[dim] })
    }
    /// Calls `f` with where a row of the index begins, and where its elements are counted from.
    fn rows(&self, mut f: impl FnMut(usize, usize)) {
        let mut k = 0;
        self.rows.each(|start, list| {
            for l in list {
                f(k, start + l);
                k += self.row;
            }
        });
    }
    /// Calls `f` with the offset of each element that the index names and the next of `values`.
    fn each<T: Copy>(&self, index: &[i64], values: &[T], mut f: impl FnMut(usize, T)) {
        self.rows(|k, start| {
            let row = index[k..k + self.row].iter().zip(&values[k..k + self.row]);
            match (self.step, self.across) {
                (0, 1) => row.for_each(|(&i, &v)| f(start + i as usize, v)),
                (step, across) => row.enumerate().for_each(|(j, (&i, &v))| f(start + j * step + i as usize * across, v)),
            }
        });
    }
}
fn same_rank(op: &'static str, what: &str, a: &Array, index: &Array) -> Result<()> {
    if !matches!(index.dtype, DType::Int64 | DType::Int32) {
        bail!(Runtime, "{op}(): Expected dtype int32/int64 for index, but got {}", index.dtype.name());
    }
    if index.numel() > 0 && a.ndim().max(1) != index.ndim().max(1) {
        bail!(
            Runtime,
            "{op}(): Index tensor must have the same number of dimensions as {what} tensor, but they have shapes {:?} and {:?}",
            index.shape,
            a.shape
        );
    }
    Ok(())
}
/// The elements whose place along `dim` the index says: `result[i][j] = a[index[i][j]][j]` for `dim` 0.
pub fn gather(a: &Array, dim: usize, index: &Array) -> Result<Array> {
    same_rank("gather", "input", a, index)?;
    let mut to = Fresh::new(index.shape, a.dtype)?;
    if index.numel() == 0 {
        return Ok(to.done());
    }
    let (a, index) = (lined(a), lined(index));
    if let Some(d) = (0..a.ndim()).find(|&d| d != dim && index.shape[d] > a.shape[d]) {
        bail!(
            Runtime,
            "gather(): Size does not match at dimension {d} expected index {:?} to be no larger than self {:?} apart from dimension {dim}",
            index.shape,
            a.shape
        );
    }
    let i = to_i64(&index)?;
    let across = Across::new("gather", &a, dim, &index.shape, &i)?;
    for_dtype!(a.dtype, T => {
        let (s, o) = (a.read::<T>(a.offset, span(&a.shape, &a.strides)), to.slice_mut::<T>());
        across.rows(|k, start| {
            let (o, i, s) = (&mut o[k..k + across.row], &i[k..k + across.row], &s[start..]);
            match (across.step, across.across) {
                (0, 1) => o.iter_mut().zip(i).for_each(|(o, &i)| *o = s[i as usize]),
                (step, across) => o.iter_mut().zip(i).enumerate().for_each(|(j, (o, &i))| *o = s[j * step + i as usize * across]),
            }
        });
    });
    Ok(to.done())
}
/// `gather` where `index` and `a` are broadcast against each other apart from `dim`.
pub fn take_along_dim(a: &Array, index: &Array, dim: usize) -> Result<Array> {
    if a.ndim() != index.ndim() {
        bail!(
            Runtime,
            "take_along_dim(): input and indices should have the same number of dimensions, but got {} dimensions for input, and {} dimensions for indices",
            a.ndim(),
            index.ndim()
        );
    }
    if index.dtype != DType::Int64 {
        bail!(Runtime, "take_along_dim(): dtype of indices should be Long but got {}", index.dtype.torch_name());
    }
    if a.ndim() == 0 {
        return gather(a, dim, index);
    }
    let common = broadcast("take_along_dim", &a.shape.with(|s| s[dim] = 1), &index.shape.with(|s| s[dim] = 1))?;
    let with = |x: &Array| expanded(x, &common.with(|s| s[dim] = x.shape[dim]));
    gather(&with(a), dim, &with(index))
}
/// The operands of a scatter: checked, the source cut to the index's shape.
fn scattered(op: &'static str, a: &Array, dim: usize, index: &Array, src: &Array) -> Result<(Array, Array)> {
    same_rank(op, "self", a, index)?;
    if a.dtype != src.dtype {
        bail!(Runtime, "{op}(): Expected self.dtype to be equal to src.dtype, but they are {} and {}", a.dtype.name(), src.dtype.name());
    }
    if index.numel() == 0 {
        return Ok((index.clone(), src.clone()));
    }
    let (l, index, src) = (lined(a), lined(index), lined(src));
    if src.ndim() != index.ndim() {
        bail!(
            Runtime,
            "{op}(): Index tensor must have the same number of dimensions as src tensor, but they have shapes {:?} and {:?}",
            index.shape,
            src.shape
        );
    }
    if !(0..l.ndim()).all(|d| (d == dim || index.shape[d] <= l.shape[d]) && index.shape[d] <= src.shape[d]) {
        bail!(
            Runtime,
            "{op}(): Expected index {:?} to be no larger than self {:?} apart from dimension {dim} and to be no larger size than src {:?}",
            index.shape,
            a.shape,
            src.shape
        );
    }
    let src = src.view(index.shape, src.strides, src.offset);
    Ok((index, src))
}
/// `a` with `src` put where the index says along `dim`: `a[index[i][j]][j] = src[i][j]` for `dim` 0; of several the last.
pub fn scatter(out: Out<'_>, a: &Array, dim: usize, index: &Array, src: &Array) -> Result<Array> {
    let (index, src) = scattered("scatter", a, dim, index, src)?;
    let to = target(out, a)?;
    if index.numel() == 0 {
        return Ok(to);
    }
    let (v, i) = (operand(&src, to.dtype, &to)?, operand(&index, DType::Int64, &to)?);
    let across = Across::new("scatter", &lined(&to), dim, &index.shape, i.slice())?;
    for_dtype!(to.dtype, T => to.rewrite::<T, _>(&[&v, &i], |d| across.each(i.slice(), v.slice::<T>(), |at, v| d[at] = v)));
    Ok(to)
}
/// As `scatter` with one value for all.
pub fn scatter_value(out: Out<'_>, a: &Array, dim: usize, index: &Array, value: Scalar) -> Result<Array> {
    scatter(out, a, dim, index, &expanded(&Array::scalar(value, a.dtype)?, &index.shape))
}
pub fn scatter_add(out: Out<'_>, a: &Array, dim: usize, index: &Array, src: &Array) -> Result<Array> {
    scatter_reduce(out, a, dim, index, src, Reduce::Sum, true)
}
/// As `scatter`, elements that meet put together; `include_self`: with what was there, too.
pub fn scatter_reduce(out: Out<'_>, a: &Array, dim: usize, index: &Array, src: &Array, how: Reduce, include_self: bool) -> Result<Array> {
    let (index, src) = scattered("scatter", a, dim, index, src)?;
    if index.numel() == 0 {
        return target(out, a);
    }
    let to = target_computing(out, a)?;
    let (v, i) = (operand(&src, to.dtype, &to)?, operand(&index, DType::Int64, &to)?);
    let across = Across::new("scatter", &lined(&to), dim, &index.shape, i.slice())?;
    let counted = !include_self || how == Reduce::Mean;
    for_compute!(to.dtype, T => to.rewrite::<T, _>(&[&v, &i], |d| {
        let (s, i) = (v.slice::<T>(), i.slice::<i64>());
        if how == Reduce::Sum && include_self {
            return across.each(i, s, |at, v| d[at] = d[at].add(v));
        }
        let join = |a: T, b: T| match how {
            Reduce::Sum | Reduce::Mean => a.add(b),
            Reduce::Prod => a.mul(b),
            Reduce::Max | Reduce::Min => a.pick(b, how == Reduce::Max),
        };
        let mut count = vec![0usize; if counted { d.len() } else { 0 }];
        across.each(i, s, |at, v| {
            let first = counted && count[at] == 0 && !include_self;
            d[at] = if first { v } else { join(d[at], v) };
            count.get_mut(at).into_iter().for_each(|c| *c += 1);
        });
        if how == Reduce::Mean {
            d.iter_mut().zip(&count).filter(|(_, c)| **c > 0).for_each(|(d, c)| *d = d.share(c + include_self as usize));
        }
    }));
    stored(to, a.dtype)
}

// Counting

/// Ones at the class of each element, in one more dimension; as many classes as `classes`, or as are needed.
pub fn one_hot(index: &Array, classes: Option<i64>) -> Result<Array> {
    if index.dtype != DType::Int64 {
        bail!(Runtime, "one_hot is only applicable to index tensor of type LongTensor, but got {}", index.dtype.name());
    }
    let i = to_i64(index)?;
    if i.is_empty() && classes.is_none_or(|c| c <= 0) {
        bail!(Runtime, "one_hot(): Can not infer total number of classes from empty tensor.");
    }
    if let Some(least) = i.iter().find(|i| **i < 0) {
        bail!(Runtime, "one_hot(): Class values must be non-negative. Got {least}");
    }
    let most = i.iter().max().map_or(0, |m| m + 1);
    let n = classes.unwrap_or(most);
    if n < most {
        bail!(Runtime, "one_hot(): Class values must be smaller than num_classes. Got {} for {n} classes", most - 1);
    }
    let n = n as usize;
    let shape = index.shape.with(|s| s.push(n));
    shape.checked_numel()?;
    let mut to = Fresh::new(shape, DType::Int64)?;
    let o = to.slice_mut::<i64>();
    o.fill(0);
    i.iter().enumerate().for_each(|(k, &i)| o[k * n + i as usize] = 1);
    Ok(to.done())
}
/// How often each number from 0 on occurs, or the sum of its weights; at least `min_length` of them.
pub fn bincount(a: &Array, weights: Option<&Array>, min_length: i64) -> Result<Array> {
    if !a.dtype.is_int() {
        return Err(Box::new(Error::Unsupported { op: "bincount", dtype: a.dtype }));
    }
    if min_length < 0 {
        bail!(Runtime, "bincount(): minlength should be >= 0, got {min_length}");
    }
    let i = to_i64(a)?;
    if (a.ndim() != 1 && a.numel() > 0) || i.iter().any(|i| *i < 0) {
        bail!(Runtime, "bincount only supports 1-d non-negative integral inputs.");
    }
    if let Some(w) = weights.filter(|w| w.ndim() != 1 || w.numel() != i.len()) {
        bail!(Runtime, "bincount(): weights should be 1-d and have the same length as input, but has shape {:?}", w.shape);
    }
    let n = i.iter().max().map_or(0, |m| m.saturating_add(1)).max(min_length) as usize;
    let shape = Dims::of(&[n]);
    shape.checked_numel()?;
    let dtype = weights.map_or(DType::Int64, |w| if w.dtype == DType::Float32 { DType::Float32 } else { DType::Float64 });
    let w = weights.map(|w| if w.dtype == dtype { contiguous(w) } else { cast(w, dtype) }).transpose()?;
    let mut to = Fresh::new(shape, dtype)?;
    to.bytes_mut().fill(0);
    for_compute!(dtype, T => {
        let o = to.slice_mut::<T>();
        match &w {
            Some(w) => i.iter().zip(w.slice::<T>()).for_each(|(&i, &w)| o[i as usize] = o[i as usize].add(w)),
            None => i.iter().for_each(|&i| o[i as usize] = o[i as usize].add(1 as T)),
        }
    });
    Ok(to.done())
}
/// Each number `i` as often as `repeats[i]` says: the index by which `repeat_interleave` selects.
pub fn repeat_interleave(repeats: &Array) -> Result<Array> {
    if !repeats.dtype.is_int() {
        return Err(Box::new(Error::Unsupported { op: "repeat_interleave", dtype: repeats.dtype }));
    }
    if repeats.ndim() != 1 {
        bail!(Runtime, "repeat_interleave only accept 1D vector as repeat, but got shape {:?}", repeats.shape);
    }
    let r = to_i64(repeats)?;
    if let Some(r) = r.iter().find(|r| **r < 0) {
        bail!(Runtime, "repeat_interleave(): repeats can not be negative, got {r}");
    }
    let total = r.iter().try_fold(0usize, |n, &r| n.checked_add(r as usize)).unwrap_or(usize::MAX);
    Dims::of(&[total]).checked_numel()?;
    let mut to = Fresh::new(Dims::of(&[total]), DType::Int64)?;
    let mut rest = to.slice_mut::<i64>();
    for (i, &r) in r.iter().enumerate() {
        let (now, later) = std::mem::take(&mut rest).split_at_mut(r as usize);
        now.fill(i as i64);
        rest = later;
    }
    Ok(to.done())
}

// Joining, turning, repeating

/// One after another along `dim`, in the type that they promote to. Empty ones of one dimension count for their type alone.
pub fn cat(arrays: &[Array], dim: usize) -> Result<Array> {
    if arrays.is_empty() {
        bail!(Value, "cat(): expected a non-empty list of Tensors");
    }
    if let Some(k) = arrays.iter().position(|a| a.ndim() == 0) {
        bail!(Runtime, "cat(): zero-dimensional tensor (at position {k}) cannot be concatenated");
    }
    let dtype = promote(arrays.iter().map(|a| (a.dtype, a.rank())));
    let counts = |a: &&Array| *a.shape != [0];
    let Some(first) = arrays.iter().find(counts) else { return Array::zeros(Dims::of(&[0]), dtype) };
    let mut total = 0usize;
    for (k, a) in arrays.iter().enumerate().filter(|(_, a)| counts(a)) {
        if a.ndim() != first.ndim() {
            bail!(Runtime, "cat(): Tensors must have same number of dimensions: got {} and {}", first.ndim(), a.ndim());
        }
        if let Some(d) = (0..a.ndim()).find(|&d| d != dim && a.shape[d] != first.shape[d]) {
            bail!(
                Runtime,
                "cat(): Sizes of tensors must match except in dimension {dim}. Expected size {} but got size {} for tensor number {k} in the list (dimension {d}).",
                first.shape[d],
                a.shape[d]
            );
        }
        total = total.saturating_add(a.shape[dim]);
    }
    let to = Array::empty(first.shape.with(|s| s[dim] = total), dtype)?;
    let mut at = 0;
    for a in arrays.iter().filter(counts) {
        copy(&to.view(a.shape, to.strides, at * to.strides[dim]), a)?;
        at += a.shape[dim];
    }
    Ok(to)
}
/// As `cat`, along a new dimension.
pub fn stack(arrays: &[Array], dim: usize) -> Result<Array> {
    let Some(first) = arrays.first() else { bail!(Runtime, "stack expects a non-empty TensorList") };
    if let Some(k) = arrays.iter().position(|a| a.shape != first.shape) {
        bail!(
            Runtime,
            "stack expects each tensor to be equal size, but got {:?} at entry 0 and {:?} at entry {k}",
            first.shape,
            arrays[k].shape
        );
    }
    let dtype = promote(arrays.iter().map(|a| (a.dtype, a.rank())));
    let to = Array::empty(first.shape.with(|s| s.insert(dim, arrays.len())), dtype)?;
    let strides = to.strides.with(|s| _ = s.remove(dim));
    for (k, a) in arrays.iter().enumerate() {
        copy(&to.view(a.shape, strides, k * to.strides[dim]), a)?;
    }
    Ok(to)
}
/// What happens to the order along an axis.
#[derive(Clone, Copy)]
enum Turn {
    Reverse,
    /// The last so many come first.
    Rotate(usize),
}
fn turned(a: &Array, turns: &[Option<Turn>]) -> Result<Array> {
    let Some(last) = turns.iter().rposition(Option::is_some) else { return cast(a, a.dtype) };
    let (c, n, row) = (contiguous(a)?, a.shape[last], a.shape[last + 1..].iter().product::<usize>());
    let mut to = Fresh::new(a.shape, a.dtype)?;
    if a.numel() == 0 {
        return Ok(to.done());
    }
    let outer = (0..last).map(|d| {
        let (n, stride) = (c.shape[d], c.shape[d + 1..].iter().product::<usize>());
        match turns[d] {
            None => Axis::Whole(n, stride),
            Some(Turn::Reverse) => Axis::Listed((0..n).rev().map(|i| i * stride).collect()),
            Some(Turn::Rotate(k)) => Axis::Listed((n - k..n).chain(0..n - k).map(|i| i * stride).collect()),
        }
    });
    let places = Places::new(outer.collect());
    for_dtype!(a.dtype, T => {
        let (s, mut blocks) = (c.slice::<T>(), to.slice_mut::<T>().chunks_exact_mut(n * row));
        places.each(|start, list| {
            for (l, o) in list.iter().zip(&mut blocks) {
                let s = &s[start + l..][..n * row];
                match turns[last] {
                    Some(Turn::Rotate(k)) => {
                        let (tail, head) = s.split_at((n - k) * row);
                        let (start, rest) = o.split_at_mut(k * row);
                        for (o, s) in start.chunks_mut(PART).zip(head.chunks(PART)).chain(rest.chunks_mut(PART).zip(tail.chunks(PART))) {
                            o.copy_from_slice(s);
                        }
                    }
                    _ if row == 1 => o.iter_mut().zip(s.iter().rev()).for_each(|(o, s)| *o = *s),
                    _ => o.chunks_exact_mut(row).zip(s.chunks_exact(row).rev()).for_each(|(o, s)| o.copy_from_slice(s)),
                }
            }
        });
    });
    Ok(to.done())
}
/// Elements copied at once by a rotation. Source and destination lie almost the same distance into a page, where the system's routine for
/// long copies (`rep movsb`) is ten times slower on some processors than the one for short copies.
const PART: usize = 128;
/// Back to front along `dims`.
pub fn flip(a: &Array, dims: &[usize]) -> Result<Array> {
    let mut turns = vec![None; a.ndim()];
    dims.iter().filter(|d| **d < a.ndim()).for_each(|&d| turns[d] = Some(Turn::Reverse)); // a 0-d array has nothing to turn
    turned(a, &turns)
}
/// Shifted by so many places along each of `dims`, what leaves at the end coming back at the start; without `dims` as if flat.
pub fn roll(a: &Array, shifts: &[i64], dims: &[usize]) -> Result<Array> {
    if dims.is_empty() && shifts.len() == 1 {
        let c = contiguous(a)?;
        let rolled = roll(&c.view(Dims::of(&[c.numel()]), Dims::of(&[1]), c.offset), shifts, &[0])?;
        return Ok(rolled.view(a.shape, a.shape.strides(), rolled.offset));
    }
    if shifts.len() != dims.len() || shifts.is_empty() {
        bail!(Runtime, "roll(): shifts and dimensions must align. shifts: {}, dims:{}", shifts.len(), dims.len());
    }
    if a.ndim() == 0 {
        bail!(Index, "roll(): Dimension specified as {} but tensor has no dimensions", dims[0]);
    }
    let mut turns = vec![None; a.ndim()];
    for (&shift, &d) in shifts.iter().zip(dims) {
        let n = a.shape[d].max(1);
        let before = if let Some(Turn::Rotate(k)) = turns[d] { k } else { 0 };
        turns[d] = Some(Turn::Rotate((before + shift.rem_euclid(n as i64) as usize) % n));
    }
    turned(a, &turns)
}
/// Matrices with zeros above (`lower`) or below the `k`th diagonal.
fn triangle(op: &'static str, a: &Array, k: i64, lower: bool) -> Result<Array> {
    let &[.., m, n] = &a.shape[..] else {
        bail!(Runtime, "{op}: input tensor must have at least 2 dimensions, got shape {:?}", a.shape);
    };
    let c = contiguous(a)?;
    let mut to = Fresh::new(a.shape, a.dtype)?;
    if a.numel() > 0 {
        for_dtype!(a.dtype, T => for (r, (o, s)) in to.slice_mut::<T>().chunks_exact_mut(n).zip(c.slice::<T>().chunks_exact(n)).enumerate() {
            let border = ((r % m) as i64).saturating_add(k).saturating_add(lower as i64).clamp(0, n as i64) as usize;
            let kept = if lower { 0..border } else { border..n };
            o[if lower { border..n } else { 0..border }].fill(T::default());
            o[kept.clone()].copy_from_slice(&s[kept]);
        });
    }
    Ok(to.done())
}
pub fn tril(a: &Array, k: i64) -> Result<Array> {
    triangle("tril", a, k, true)
}
pub fn triu(a: &Array, k: i64) -> Result<Array> {
    triangle("triu", a, k, false)
}
/// Tiled so many times along each dimension, counted from the last; more counts than dimensions make new ones.
pub fn repeat(a: &Array, times: &[i64]) -> Result<Array> {
    let Some(lead) = times.len().checked_sub(a.ndim()) else {
        bail!(
            Runtime,
            "repeat(): Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor: {times:?} for {:?}",
            a.shape
        );
    };
    let of = |d: usize| if d < lead { (1, 0) } else { (a.shape[d - lead], a.strides[d - lead]) };
    let size: Vec<i64> = times.iter().enumerate().map(|(d, &t)| t.saturating_mul(of(d).0.max(1) as i64)).collect();
    given_size("repeat", &size)?;
    let shape: Dims = times.iter().enumerate().map(|(d, &t)| t as usize * of(d).0).collect();
    shape.checked_numel()?;
    // Each dimension as two: the copies (stride 0) and what is copied; a single copy needs no first.
    let pairs = || times.iter().enumerate().flat_map(|(d, &t)| [(t as usize, 0), of(d)]).filter(|p| *p != (1, 0));
    let view = a.view(pairs().map(|p| p.0).collect(), pairs().map(|p| p.1).collect(), a.offset);
    let to = cast(&view, a.dtype)?;
    Ok(to.view(shape, shape.strides(), to.offset))
}
/// The `k`th diagonal of the matrices in dimensions `d1` and `d2`, as the last dimension: a view.
pub fn diagonal(a: &Array, k: i64, d1: usize, d2: usize) -> Result<Array> {
    if d1 == d2 {
        bail!(Runtime, "diagonal dimensions cannot be identical {d1}, {d2}");
    }
    let (m, n) = (a.shape[d1] as i64, a.shape[d2] as i64);
    let len = if k >= 0 { m.min(n.saturating_sub(k)) } else { n.min(m.saturating_add(k)) }.max(0) as usize;
    let start = match len {
        0 => 0,
        _ if k >= 0 => k as usize * a.strides[d2],
        _ => k.unsigned_abs() as usize * a.strides[d1],
    };
    let rest = |of: &Dims, last: usize| (0..of.len()).filter(|&d| d != d1 && d != d2).map(|d| of[d]).chain([last]).collect();
    Ok(a.view(rest(&a.shape, len), rest(&a.strides, a.strides[d1] + a.strides[d2]), a.offset + start))
}
/// Matrices in dimensions `d1` and `d2` of the result, zero but for the last dimension of `a` on the `k`th diagonal.
pub fn diag_embed(a: &Array, k: i64, d1: usize, d2: usize) -> Result<Array> {
    if d1 == d2 {
        bail!(Runtime, "diagonal dimensions cannot be identical {d1}, {d2}");
    }
    let Some((&len, lead)) = a.shape.split_last() else { bail!(Index, "diag_embed(): the input has no dimension") };
    let n = usize::try_from(k.unsigned_abs()).ok().and_then(|k| k.checked_add(len)).unwrap_or(usize::MAX);
    let mut lead = lead.iter().copied();
    let shape: Dims = (0..a.ndim() + 1).map(|d| if d == d1 || d == d2 { n } else { lead.next().unwrap_or(1) }).collect();
    shape.checked_numel()?;
    let to = Array::zeros(shape, a.dtype)?;
    copy(&diagonal(&to, k, d1, d2)?, a)?;
    Ok(to)
}
/// A vector as a diagonal matrix, or the diagonal of a matrix.
pub fn diag(a: &Array, k: i64) -> Result<Array> {
    match a.ndim() {
        1 => diag_embed(a, k, 0, 1),
        2 => cast(&diagonal(a, k, 0, 1)?, a.dtype),
        n => bail!(Runtime, "diag(): Supports 1D or 2D tensors. Got {n}D"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    const NO: Out = Out(None);
    fn d(s: &[usize]) -> Dims {
        Dims::of(s)
    }
    fn arr(shape: &[usize], v: &[f64], dtype: DType) -> Array {
        cast(&Array::from_slice(shape, v).unwrap(), dtype).unwrap()
    }
    fn floats(shape: &[usize]) -> Array {
        arr(shape, &(0..shape.iter().product()).map(|i| i as f64 + 1.0).collect::<Vec<_>>(), Float32)
    }
    fn ints(v: &[i64]) -> Array {
        Array::from_slice(&[v.len()], v).unwrap()
    }
    fn truths(shape: &[usize], v: &[u8]) -> Array {
        arr(shape, &v.iter().map(|v| *v as f64).collect::<Vec<_>>(), Bool)
    }
    /// The same elements with every axis in memory the other way round, starting behind something else.
    fn odd(a: &Array) -> Array {
        let mut step = 1;
        let strides = a
            .shape
            .iter()
            .map(|n| {
                let s = step;
                step *= n + 1;
                s
            })
            .collect();
        let room = Array::zeros(d(&[step + 3]), a.dtype).unwrap();
        let view = room.view(a.shape, strides, 3);
        copy(&view, a).unwrap();
        view
    }
    fn same(r: Result<Array>, shape: &[usize], v: &[f64]) {
        let a = r.unwrap();
        assert_eq!((&*a.shape, a.to_vec()), (shape, v.to_vec()));
    }
    fn refused(r: Result<Array>, class: &str) {
        let e = r.unwrap_err();
        assert_eq!(format!("{:?}", e.python_class()), class, "{e}");
    }
    /// Calls `f` with every index of a shape.
    fn every(shape: &[usize], mut f: impl FnMut(&[usize])) {
        let mut index = vec![0; shape.len()];
        for mut r in 0..shape.iter().product() {
            for k in (0..shape.len()).rev() {
                (index[k], r) = (r % shape[k], r / shape[k]);
            }
            f(&index);
        }
    }
    #[test]
    fn index_arrays_broadcast_and_stand_where_torch_has_them() {
        let base = floats(&[3, 4, 2, 5]);
        let (i, j) = (Array::from_slice(&[2, 1], &[2i64, -3]).unwrap(), ints(&[1, -1, 0]));
        for a in [base.clone(), odd(&base)] {
            let at = |p: usize, q: usize| ([2usize, 0][p], [1usize, 3, 0][q]);
            // Neighbours keep their place.
            let r = index(&a, &[Some(i.clone()), Some(j.clone())]).unwrap();
            assert_eq!(&*r.shape, &[2, 3, 2, 5]);
            every(&r.shape, |x| assert_eq!(r.item_at(x), a.item_at(&[at(x[0], x[1]).0, at(x[0], x[1]).1, x[2], x[3]])));
            let last = ints(&[1, -1, 0]);
            let r = index(&a, &[None, Some(j.clone()), None, Some(last)]).unwrap();
            assert_eq!(&*r.shape, &[3, 3, 2]); // apart, they go in front
            every(&r.shape, |x| assert_eq!(r.item_at(x), a.item_at(&[x[1], [1, 3, 0][x[0]], x[2], [1, 4, 0][x[0]]])));
            let r = index(&a, &[None, None, Some(ints(&[1]))]).unwrap();
            assert_eq!(&*r.shape, &[3, 4, 1, 5]);
            every(&r.shape, |x| assert_eq!(r.item_at(x), a.item_at(&[x[0], x[1], 1, x[3]])));
            let r = index(&a, &[Some(Array::scalar(1i64.into(), Int64).unwrap())]).unwrap();
            assert_eq!(&*r.shape, &[4, 2, 5]);
            every(&r.shape, |x| assert_eq!(r.item_at(x), a.item_at(&[1, x[0], x[1], x[2]])));
        }
    }
    #[test]
    fn masks_are_indices_of_what_they_mark() {
        let base = floats(&[2, 3, 2]);
        let mask = truths(&[2, 3], &[0, 1, 1, 0, 0, 1]);
        for a in [base.clone(), odd(&base)] {
            for m in [mask.clone(), odd(&mask), cast(&mask, UInt8).unwrap()] {
                same(index(&a, &[Some(m)]), &[3, 2], &[3., 4., 5., 6., 11., 12.]);
            }
            same(index(&a, &[None, None, Some(truths(&[2], &[0, 1]))]), &[2, 3, 1], &[2., 4., 6., 8., 10., 12.]);
            same(index(&a, &[Some(truths(&[2], &[0, 1])), Some(ints(&[0, 2]))]), &[2, 2], &[7., 8., 11., 12.]);
        }
        same(index(&floats(&[3]), &[Some(truths(&[], &[1]))]), &[1, 3], &[1., 2., 3.]);
        same(index(&floats(&[3]), &[Some(truths(&[], &[0]))]), &[0, 3], &[]);
        refused(index(&base, &[Some(truths(&[1, 2], &[1, 0]))]), "Index");
        refused(index(&base, &[Some(truths(&[3], &[1, 0, 0]))]), "Index");
    }
    #[test]
    fn bad_indices_are_errors() {
        let a = floats(&[2, 3]);
        for i in [7, -3, i64::MAX, i64::MIN, 2] {
            let e = index(&a, &[Some(ints(&[0, i]))]).unwrap_err();
            assert_eq!(e.to_string(), format!("index {i} is out of bounds for dimension 0 with size 2"));
            refused(index_put(NO, &a, &[None, Some(ints(&[i.saturating_mul(3)]))], &floats(&[1]), false), "Index");
            refused(index_select(&a, 0, &ints(&[i])), "Index");
            refused(gather(&a, 0, &ints(&[i]).view(d(&[1, 1]), d(&[1, 1]), 0)), "Runtime");
            refused(embedding(&a, &ints(&[i])), "Index");
            refused(scatter_value(NO, &a, 0, &ints(&[i]).view(d(&[1, 1]), d(&[1, 1]), 0), 1.0.into()), "Runtime");
        }
        refused(index(&a, &[Some(ints(&[0, 1])), Some(ints(&[0, 1, 2]))]), "Index");
        refused(index(&a, &[Some(ints(&[0])), Some(ints(&[0])), Some(ints(&[0]))]), "Index");
        refused(index(&a, &[None, None, None]), "Index");
        refused(index(&a, &[Some(floats(&[1]))]), "Index");
        refused(index(&floats(&[0, 3]), &[Some(ints(&[0]))]), "Index");
        same(index(&floats(&[0, 3]), &[Some(ints(&[]))]), &[0, 3], &[]);
        same(index(&floats(&[2, 0]), &[Some(ints(&[1, 1, 0]))]), &[3, 0], &[]);
        refused(index_put(NO, &a, &[Some(ints(&[0]))], &floats(&[2]), false), "Runtime");
        refused(index_put(NO, &a, &[Some(ints(&[0]))], &arr(&[1], &[1.], Float64), false), "Runtime");
    }
    #[test]
    fn what_has_no_memory_is_an_error() {
        let n = 1usize << 45;
        let wide = floats(&[1]).view(d(&[1, n]), d(&[1, 0]), 0);
        refused(index(&wide, &[Some(ints(&[0, 0]))]), "Runtime");
        refused(index_select(&wide, 0, &ints(&[0])), "Runtime");
        refused(index_put(NO, &wide, &[Some(ints(&[0]))], &floats(&[1]), false), "Runtime");
        refused(flip(&wide, &[1]), "Runtime");
        refused(one_hot(&ints(&[1 << 45]), None), "Runtime");
        refused(super::super::sort::argsort(&wide, 1, false), "Runtime");
        refused(super::super::random::normal(&mut super::super::random::Generator::new(0), wide.shape, Float16, 0., 1.), "Runtime");
    }
    #[test]
    fn index_put_writes_in_place_or_into_a_copy() {
        for dtype in [Float32, BFloat16, Int64, Int8] {
            let a = cast(&floats(&[3, 2]), dtype).unwrap();
            let i = [Some(ints(&[2, 0, 2]))];
            let v = arr(&[3, 1], &[10., 20., 30.], dtype);
            let fresh = index_put(NO, &a, &i, &v, false);
            same(fresh, &[3, 2], &[20., 20., 3., 4., 30., 30.]);
            same(index_put(NO, &a, &i, &v, true), &[3, 2], &[21., 22., 3., 4., 45., 46.]);
            assert_eq!(a.to_vec(), [1., 2., 3., 4., 5., 6.]);
            let t = odd(&a);
            let r = index_put(Out(Some(&t)), &t, &i, &arr(&[], &[7.], dtype), false).unwrap();
            assert!(r.shares(&t));
            same(Ok(t.clone()), &[3, 2], &[7., 7., 3., 4., 7., 7.]);
            // A source in the same storage is read before anything is written.
            let turned = t.view(d(&[3, 2]), t.strides, t.offset);
            index_put(Out(Some(&t)), &t, &[Some(ints(&[1, 0, 2]))], &turned, false).unwrap();
            same(Ok(t), &[3, 2], &[3., 4., 7., 7., 7., 7.]);
        }
        let wide = floats(&[1]).view(d(&[4]), d(&[0]), 0);
        refused(index_put(Out(Some(&wide)), &wide, &[Some(ints(&[1]))], &floats(&[1]), false), "Runtime");
        same(index_put(NO, &wide, &[Some(ints(&[1]))], &arr(&[], &[9.], Float32), false), &[4], &[1., 9., 1., 1.]);
        let m = truths(&[3, 2], &[1, 0, 0, 1, 1, 0]);
        same(index_put(NO, &floats(&[3, 2]), &[Some(m)], &arr(&[3], &[7., 8., 9.], Float32), false), &[3, 2], &[7., 2., 3., 8., 9., 6.]);
        let x = ints(&[2, 0, 1]); // an index that is written while it is used
        index_put(Out(Some(&x)), &x, &[Some(x.clone())], &ints(&[5, 6, 7]), false).unwrap();
        same(Ok(x), &[3], &[6., 7., 5.]);
    }
    #[test]
    fn one_dimension_is_selected_and_changed_by_a_list() {
        let base = floats(&[2, 3, 2]);
        for a in [base.clone(), odd(&base)] {
            for dim in 0..3 {
                let list: Vec<i64> = [1, 0, 1, 1].to_vec();
                let r = index_select(&a, dim, &ints(&list)).unwrap();
                every(&r.shape, |x| {
                    let mut y = x.to_vec();
                    y[dim] = list[x[dim]] as usize;
                    assert_eq!(r.item_at(x), a.item_at(&y));
                });
                let mut plain = a.to_vec();
                let source = odd(&floats(&r.shape));
                every(&r.shape, |x| {
                    let mut y = x.to_vec();
                    y[dim] = list[x[dim]] as usize;
                    plain[unravel_to(&y, &a.shape)] += 2.0 * source.item_at(x).to_f64();
                });
                same(index_add(NO, &a, dim, &ints(&list), &source, 2i64.into()), &a.shape, &plain);
            }
        }
        same(index_select(&arr(&[], &[3.], Float32), 0, &ints(&[0])), &[], &[3.]);
        same(index_select(&floats(&[2, 3]), 0, &Array::scalar(1i64.into(), Int32).unwrap()), &[1, 3], &[4., 5., 6.]);
        refused(index_select(&arr(&[], &[3.], Float32), 0, &ints(&[0, 0])), "Runtime");
        refused(index_select(&floats(&[2]), 0, &Array::from_slice(&[1, 1], &[0i64]).unwrap()), "Index");
        refused(index_select(&floats(&[2]), 0, &floats(&[1])), "Runtime");
        let a = floats(&[3]);
        same(index_copy(NO, &a, 0, &ints(&[2, 0]), &arr(&[2], &[8., 9.], Float32)), &[3], &[9., 2., 8.]);
        same(index_fill(NO, &a, 0, &ints(&[-1]), 5.0.into()), &[3], &[1., 2., 5.]);
        same(index_fill(NO, &arr(&[], &[1.], Float32), 0, &ints(&[0]), 2.5.into()), &[], &[2.5]);
        same(
            index_add(
                NO,
                &arr(&[], &[1.], Float32),
                0,
                &Array::scalar(0i64.into(), Int64).unwrap(),
                &arr(&[], &[2.], Float32),
                1i64.into(),
            ),
            &[],
            &[3.],
        );
        index_fill(Out(Some(&a)), &a, 0, &ints(&[0]), 7.0.into()).unwrap();
        assert_eq!(a.to_vec(), [7., 2., 3.]);
        refused(index_add(NO, &a, 0, &ints(&[0]), &floats(&[2]), 1i64.into()), "Runtime");
        refused(index_add(NO, &a, 0, &ints(&[5]), &floats(&[1]), 1i64.into()), "Index");
        refused(index_add(NO, &a, 0, &ints(&[0]), &arr(&[1], &[1.], Float64), 1i64.into()), "Runtime");
        refused(index_fill(NO, &a, 0, &ints(&[5]), 1.0.into()), "Index");
        refused(index_fill(NO, &a, 0, &floats(&[1]), 1.0.into()), "Index");
    }
    fn unravel_to(index: &[usize], shape: &[usize]) -> usize {
        index.iter().zip(shape).fold(0, |at, (i, n)| at * n + i)
    }
    #[test]
    fn gather_and_scatter_follow_their_equations() {
        let base = floats(&[3, 4, 2]);
        let mut g = super::super::random::Generator::new(5);
        for a in [base.clone(), odd(&base)] {
            for dim in 0..3 {
                let mut shape = [2, 3, 2];
                shape[dim] = 5;
                let i = super::super::random::randint(&mut g, d(&shape), Int64, 0, a.shape[dim] as i64).unwrap();
                let aim = |i: &Array, x: &[usize]| {
                    let mut y = x.to_vec();
                    y[dim] = i.item_at(x).to_i64() as usize;
                    y
                };
                for i in [i.clone(), odd(&i), cast(&i, Int32).unwrap()] {
                    let r = gather(&a, dim, &i).unwrap();
                    assert_eq!(&*r.shape, &shape);
                    every(&shape, |x| assert_eq!(r.item_at(x), a.item_at(&aim(&i, x))));
                }
                let src = odd(&floats(&[5, 5, 5])); // larger than the index: its corner counts
                let (mut set, mut added, mut most) = (a.to_vec(), a.to_vec(), a.to_vec());
                let (mut mean, mut seen) = (vec![0.0; a.numel()], vec![0.0; a.numel()]);
                every(&shape, |x| {
                    let (at, v) = (unravel_to(&aim(&i, x), &a.shape), src.item_at(x).to_f64());
                    set[at] = v;
                    added[at] += v;
                    most[at] = f64::max(most[at], v);
                    mean[at] += v;
                    seen[at] += 1.0;
                });
                let mean: Vec<f64> =
                    mean.iter().zip(&seen).zip(a.to_vec()).map(|((m, n), a)| if *n > 0.0 { (m / n) as f32 as f64 } else { a }).collect();
                same(scatter(NO, &a, dim, &i, &src), &a.shape, &set);
                same(scatter_add(NO, &a, dim, &i, &src), &a.shape, &added);
                same(scatter_reduce(NO, &a, dim, &i, &src, Reduce::Max, true), &a.shape, &most);
                same(scatter_reduce(NO, &a, dim, &i, &src, Reduce::Mean, false), &a.shape, &mean);
                let t = odd(&a);
                assert!(scatter_add(Out(Some(&t)), &t, dim, &i, &src).unwrap().shares(&t));
                assert_eq!(t.to_vec(), added);
            }
        }
        let (one, a) = (ints(&[0, 0]), arr(&[3], &[1., 1., 1.], Float32));
        let reduce = |v: [f64; 2], how, own| scatter_reduce(NO, &a, 0, &one, &arr(&[2], &v, Float32), how, own);
        same(reduce([3., 5.], Reduce::Mean, true), &[3], &[3., 1., 1.]);
        same(reduce([3., 5.], Reduce::Prod, false), &[3], &[15., 1., 1.]);
        same(reduce([3., -5.], Reduce::Min, true), &[3], &[-5., 1., 1.]);
        assert!(reduce([3., f64::NAN], Reduce::Max, true).unwrap().to_vec()[0].is_nan());
        assert!(reduce([f64::NAN, 3.], Reduce::Min, false).unwrap().to_vec()[0].is_nan());
        let mean = |own| scatter_reduce(NO, &ints(&[1, 1]), 0, &one, &ints(&[-3, -4]), Reduce::Mean, own);
        same(mean(true), &[2], &[-2., 1.]);
        same(mean(false), &[2], &[-4., 1.]);
        same(scatter_value(NO, &a, 0, &ints(&[1]), 7i64.into()), &[3], &[1., 7., 1.]);
    }
    #[test]
    fn gather_and_scatter_check_their_shapes() {
        let a = floats(&[2, 3]);
        let index = |shape: &[usize]| Array::zeros(d(shape), Int64).unwrap();
        refused(gather(&a, 1, &ints(&[0])), "Runtime");
        refused(gather(&a, 1, &index(&[3, 1])), "Runtime");
        refused(gather(&a, 1, &floats(&[1, 1])), "Runtime");
        same(gather(&a, 0, &index(&[0])), &[0], &[]);
        same(gather(&a, 0, &index(&[0, 9])), &[0, 9], &[]);
        same(gather(&arr(&[], &[3.], Float32), 0, &index(&[2])), &[2], &[3., 3.]);
        same(gather(&floats(&[3]), 0, &index(&[])), &[], &[1.]);
        same(take_along_dim(&a, &index(&[1, 1]), 1), &[2, 1], &[1., 4.]);
        refused(take_along_dim(&a, &ints(&[0]), 1), "Runtime");
        refused(scatter(NO, &a, 1, &index(&[3, 1]), &floats(&[3, 1])), "Runtime");
        refused(scatter(NO, &a, 1, &index(&[2, 2]), &floats(&[2, 1])), "Runtime");
        refused(scatter(NO, &a, 1, &index(&[2]), &floats(&[2, 1])), "Runtime");
        refused(scatter(NO, &a, 1, &index(&[2, 1]), &arr(&[2, 1], &[1., 1.], Float64)), "Runtime");
        same(scatter(NO, &a, 0, &index(&[3, 1]), &floats(&[3, 1])), &[2, 3], &[3., 2., 3., 4., 5., 6.]);
        same(scatter(NO, &a, 0, &index(&[0]), &floats(&[0])), &[2, 3], &a.to_vec());
    }
    #[test]
    fn masks_select_scatter_and_list() {
        let a = floats(&[2, 3]);
        let m = truths(&[3], &[1, 0, 1]);
        same(masked_select(&a, &m), &[4], &[1., 3., 4., 6.]);
        same(masked_select(&odd(&a), &odd(&truths(&[2, 1], &[0, 1]))), &[3], &[4., 5., 6.]);
        same(masked_select(&arr(&[], &[1.], Float32), &truths(&[], &[1])), &[1], &[1.]);
        refused(masked_select(&a, &ints(&[1, 0, 1])), "Runtime");
        refused(masked_select(&a, &truths(&[2], &[1, 0])), "Runtime");
        same(masked_scatter(NO, &a, &m, &floats(&[5])), &[2, 3], &[1., 2., 2., 3., 5., 4.]);
        same(masked_scatter(NO, &floats(&[3]), &truths(&[1, 3], &[0, 1, 1]), &floats(&[2])), &[1, 3], &[1., 1., 2.]);
        refused(masked_scatter(NO, &a, &m, &floats(&[3])), "Runtime");
        let t = odd(&a);
        assert!(masked_scatter(Out(Some(&t)), &t, &m, &t).unwrap().shares(&t));
        same(Ok(t), &[2, 3], &[1., 2., 2., 3., 5., 4.]);
        let (nan, zero) = (f64::NAN, -0.0);
        for x in [arr(&[2, 2], &[0., 2., nan, zero], Float16), odd(&arr(&[2, 2], &[0., 2., nan, zero], Float64))] {
            same(nonzero(&x), &[2, 2], &[0., 1., 1., 0.]);
        }
        same(nonzero(&arr(&[], &[3.], Int8)), &[1, 0], &[]);
        same(nonzero(&arr(&[], &[0.], Int8)), &[0, 0], &[]);
        same(nonzero(&floats(&[2, 0])), &[0, 2], &[]);
        let long: Vec<u8> = (0..3000).map(|i| (i % 7 == 3) as u8).collect();
        same(nonzero(&truths(&[3000], &long)), &[429, 1], &(0..3000).filter(|i| i % 7 == 3).map(|i| i as f64).collect::<Vec<_>>());
        same(nonzero(&truths(&[1, 1500, 2], &long)).map(|a| a.view(d(&[3]), d(&[1]), 3)), &[3], &[0., 5., 0.]);
    }
    #[test]
    fn elements_by_number() {
        let a = odd(&floats(&[2, 3]));
        same(take(&a, &Array::from_slice(&[1, 2], &[-1i64, 1]).unwrap()), &[1, 2], &[6., 2.]);
        same(put(NO, &a, &ints(&[1, 1, -1]), &arr(&[3], &[5., 6., 7.], Float32), true), &[2, 3], &[1., 13., 3., 4., 5., 13.]);
        put(Out(Some(&a)), &a, &ints(&[1, 5]), &arr(&[2], &[8., 9.], Float32), false).unwrap();
        same(Ok(a.clone()), &[2, 3], &[1., 8., 3., 4., 5., 9.]);
        refused(take(&a, &ints(&[9])), "Index");
        refused(take(&floats(&[0]), &ints(&[0])), "Index");
        refused(take(&a, &floats(&[1])), "Runtime");
        same(take(&floats(&[0]), &ints(&[])), &[0], &[]);
        refused(put(NO, &a, &ints(&[1, 1]), &floats(&[1]), false), "Index");
        refused(put(NO, &a, &ints(&[9]), &floats(&[1]), false), "Index");
        refused(put(NO, &a, &ints(&[1]), &ints(&[1]), false), "Runtime");
    }
    #[test]
    fn embeddings_go_there_and_back() {
        let w = floats(&[3, 2]);
        let i = Array::from_slice(&[2, 2], &[2i64, 0, 2, 1]).unwrap();
        for w in [w.clone(), odd(&w)] {
            same(embedding(&w, &i), &[2, 2, 2], &[5., 6., 1., 2., 5., 6., 3., 4.]);
        }
        let g = odd(&floats(&[2, 2, 2]));
        same(embedding_backward(&g, &i, 4, -1, false), &[4, 2], &[3., 4., 7., 8., 6., 8., 0., 0.]);
        same(embedding_backward(&g, &i, 3, 1, true), &[3, 2], &[3., 4., 0., 0., 3., 4.]);
        assert_eq!(embedding_backward(&cast(&g, BFloat16).unwrap(), &i, 3, 0, false).unwrap().dtype, BFloat16);
        same(embedding(&w, &Array::from_slice::<i64>(&[0], &[]).unwrap()), &[0, 2], &[]);
        same(embedding(&floats(&[3, 0]), &ints(&[1])), &[1, 0], &[]);
        same(embedding_backward(&floats(&[1, 0]), &ints(&[1]), 3, -1, true), &[3, 0], &[]);
        refused(embedding(&w, &floats(&[1])), "Runtime");
        refused(embedding(&floats(&[3]), &ints(&[1])), "Runtime");
        refused(embedding_backward(&g, &i, 2, -1, false), "Index");
        refused(embedding_backward(&floats(&[3, 2]), &i, 3, -1, false), "Runtime");
    }
    #[test]
    fn classes_are_counted_and_marked() {
        same(one_hot(&ints(&[0, 2]), None), &[2, 3], &[1., 0., 0., 0., 0., 1.]);
        same(one_hot(&ints(&[]), Some(3)), &[0, 3], &[]);
        for (v, n) in [(vec![5], Some(3)), (vec![-1], Some(3)), (vec![], None), (vec![0], Some(0))] {
            refused(one_hot(&ints(&v), n), "Runtime");
        }
        refused(one_hot(&floats(&[1]), None), "Runtime");
        let i = ints(&[1, 1, 3]);
        same(bincount(&i, None, 6), &[6], &[0., 2., 0., 1., 0., 0.]);
        let weighted = |w: &Array| bincount(&i, Some(w), 0);
        same(weighted(&arr(&[3], &[0.5, 0.5, 1.], Float32)), &[4], &[0., 1., 0., 1.]);
        assert_eq!(weighted(&ints(&[1, 2, 3])).unwrap().dtype, Float64);
        refused(weighted(&ints(&[1, 2])), "Runtime");
        refused(bincount(&ints(&[-1]), None, 0), "Runtime");
        refused(bincount(&ints(&[i64::MAX]), None, 0), "Runtime");
        refused(bincount(&i, None, -1), "Runtime");
        same(bincount(&ints(&[]), None, 0), &[0], &[]);
        same(repeat_interleave(&ints(&[1, 0, 2])), &[3], &[0., 2., 2.]);
        refused(repeat_interleave(&ints(&[1, -1])), "Runtime");
        refused(repeat_interleave(&ints(&[i64::MAX, i64::MAX, 2])), "Runtime");
    }
    #[test]
    fn arrays_are_joined_in_the_type_they_promote_to() {
        let (a, b) = (floats(&[2, 3]), odd(&arr(&[2, 1], &[7., 8.], Int64)));
        let r = cat(&[a.clone(), b.clone()], 1).unwrap();
        assert_eq!(r.dtype, Float32);
        same(Ok(r), &[2, 4], &[1., 2., 3., 7., 4., 5., 6., 8.]);
        same(cat(&[arr(&[0], &[], Float64), a.clone(), a.clone()], 0), &[4, 3], &[1., 2., 3., 4., 5., 6., 1., 2., 3., 4., 5., 6.]);
        assert_eq!(cat(&[arr(&[0], &[], Float64), ints(&[1])], 0).unwrap().dtype, Float64);
        same(cat(&[arr(&[0], &[], Float64)], 0), &[0], &[]);
        refused(cat(&[], 0), "Value");
        refused(cat(&[arr(&[], &[1.], Float32)], 0), "Runtime");
        refused(cat(&[a.clone(), floats(&[2])], 0), "Runtime");
        refused(cat(&[a.clone(), floats(&[2, 2])], 0), "Runtime");
        refused(cat(&[floats(&[0, 2]), a.clone()], 0), "Runtime");
        same(stack(&[floats(&[2]), odd(&ints(&[7, 8]))], 1), &[2, 2], &[1., 7., 2., 8.]);
        same(stack(&[arr(&[], &[1.], Int64), arr(&[], &[2.], Int64)], 0), &[2], &[1., 2.]);
        refused(stack(&[], 0), "Runtime");
        refused(stack(&[floats(&[2]), floats(&[3])], 0), "Runtime");
    }
    #[test]
    fn axes_are_turned() {
        let base = floats(&[3, 4, 5]);
        for a in [base.clone(), odd(&base)] {
            for dims in [&[][..], &[0], &[1], &[2], &[0, 2], &[0, 1, 2]] {
                let r = flip(&a, dims).unwrap();
                every(&a.shape, |x| {
                    let y: Vec<usize> = (0..3).map(|k| if dims.contains(&k) { a.shape[k] - 1 - x[k] } else { x[k] }).collect();
                    assert_eq!(r.item_at(x), a.item_at(&y));
                });
            }
            for (shifts, dims) in [(&[1][..], &[0][..]), (&[-1], &[1]), (&[7, 2], &[2, 0]), (&[1, 1], &[1, 1]), (&[0], &[2])] {
                let r = roll(&a, shifts, dims).unwrap();
                every(&a.shape, |x| {
                    let mut y: Vec<i64> = x.iter().map(|i| *i as i64).collect();
                    dims.iter().zip(shifts).for_each(|(&k, s)| y[k] = (y[k] - s).rem_euclid(a.shape[k] as i64));
                    assert_eq!(r.item_at(x), a.item_at(&y.iter().map(|i| *i as usize).collect::<Vec<_>>()));
                });
            }
        }
        same(roll(&floats(&[2, 3]), &[1], &[]), &[2, 3], &[6., 1., 2., 3., 4., 5.]);
        same(roll(&floats(&[2, 300]), &[299], &[1]).map(|a| a.view(d(&[2]), d(&[300]), 0)), &[2], &[2., 302.]);
        same(flip(&arr(&[], &[1.], Float32), &[0]), &[], &[1.]);
        same(roll(&arr(&[], &[1.], Float32), &[1], &[]), &[], &[1.]);
        same(roll(&floats(&[0, 3]), &[1], &[0]), &[0, 3], &[]);
        same(flip(&floats(&[0, 3]), &[1]), &[0, 3], &[]);
        refused(roll(&arr(&[], &[1.], Float32), &[1], &[0]), "Index");
        refused(roll(&floats(&[2, 3]), &[1], &[0, 1]), "Runtime");
        refused(roll(&floats(&[2, 3]), &[1, 2], &[]), "Runtime");
    }
    #[test]
    fn triangles_and_diagonals() {
        for (m, n) in [(3, 4), (4, 3), (3, 3), (1, 5)] {
            let a = odd(&floats(&[2, m, n]));
            for k in [-9, -2, -1, 0, 1, 2, 9, i64::MIN, i64::MAX] {
                let (low, up) = (tril(&a, k).unwrap(), triu(&a, k).unwrap());
                every(&a.shape, |x| {
                    let (v, right) = (a.item_at(x).to_f64(), x[2] as i128 - x[1] as i128);
                    assert_eq!(low.item_at(x).to_f64(), if right <= k as i128 { v } else { 0.0 });
                    assert_eq!(up.item_at(x).to_f64(), if right >= k as i128 { v } else { 0.0 });
                });
                let on = diagonal(&a, k, 1, 2).unwrap();
                let expected: Vec<usize> = (0..m).filter(|&i| (0..n as i128).contains(&(i as i128 + k as i128))).collect();
                assert_eq!(&*on.shape, &[2, expected.len()]);
                every(&on.shape, |x| assert_eq!(on.item_at(x), a.item_at(&[x[0], expected[x[1]], (expected[x[1]] as i64 + k) as usize])));
            }
        }
        refused(tril(&floats(&[3]), 0), "Runtime");
        same(triu(&floats(&[2, 0]), 0), &[2, 0], &[]);
        same(diag(&ints(&[1, 2]), 1), &[3, 3], &[0., 1., 0., 0., 0., 2., 0., 0., 0.]);
        same(diag(&floats(&[2, 3]), -1), &[1], &[4.]);
        refused(diag(&floats(&[1, 1, 1]), 0), "Runtime");
        refused(diag(&floats(&[1]), i64::MIN), "Runtime");
        let e = diag_embed(&arr(&[2, 2], &[1., 2., 3., 4.], Int64), 1, 0, 2);
        same(e, &[3, 2, 3], &[0., 1., 0., 0., 3., 0., 0., 0., 2., 0., 0., 4., 0., 0., 0., 0., 0., 0.]);
        refused(diag_embed(&floats(&[2]), 0, 0, 0), "Runtime");
        refused(diag_embed(&arr(&[], &[1.], Float32), 0, 0, 1), "Index");
    }
    #[test]
    fn repeats_tile() {
        for a in [floats(&[2, 3]), odd(&floats(&[2, 3])), floats(&[1, 1])] {
            let r = repeat(&a, &[2, 1, 3]).unwrap();
            assert_eq!(&*r.shape, &[2, a.shape[0], a.shape[1] * 3]);
            every(&r.shape, |x| assert_eq!(r.item_at(x), a.item_at(&[x[1], x[2] % a.shape[1]])));
        }
        same(repeat(&floats(&[3]), &[0, 2]), &[0, 6], &[]);
        same(repeat(&arr(&[], &[1.], Float32), &[2, 2]), &[2, 2], &[1.; 4]);
        same(repeat(&arr(&[], &[1.], Float32), &[]), &[], &[1.]);
        refused(repeat(&floats(&[2, 3]), &[2]), "Runtime");
        refused(repeat(&floats(&[3]), &[-1]), "Runtime");
        refused(repeat(&floats(&[3]), &[i64::MAX]), "Runtime");
    }
}
