//! Runs slice kernels over operands of any layout and type: broadcasting, strides, casts and overlap are dealt with here.
//!
//! For ops:     `run` (promotes), `run_to` (the result's type given: comparisons, predicates), `where_`, `copy`, `fill`, `cast` (row-major),
//!              `cast_kept` (axes ordered as in the operand: `to`, `clone`), `contiguous`, `writable`.
//! For kernels: `to_f32`, `to_f64`, `to_i64` (elements row-major in a computing type, lent if they lie so); and for those that walk a `Nest`
//!              themselves, `Part::fetch` and `Part::store` (a piece to and from a scratch slice in a computing type).
//!
//! Result and operands are one loop nest, cut into pieces of about a thousand elements (`nest`). In each piece an operand that is contiguous
//! and of the computing type is lent as a slice (a long row in one call if all are); another is fetched into scratch, once for as long as
//! the pieces read the same elements. The result is written directly, or into scratch and stored. Elements are moved by size and cast row by
//! row, so that nothing is compiled for pairs of types and layouts. Small and row-major operands take shorter ways.
//!
//! Invariant: a slice of the result is lent for writing only while no slice of its storage is lent for reading. An operand that is the
//! result itself is fetched first; one that overlaps it otherwise makes `run` give a fresh array and `copy` work on a copy.
#![allow(unsafe_code)]
use super::Out;
use super::nest::{Form, Nest, Place};
use super::simd::simd;
use super::table::{self, Kernel};
use crate::alloc::Scratch;
use crate::array::{Array, Elements};
use crate::dtype::{Cast, Compute as Kind, DType, Element, Scalar, for_dtype, promote};
use crate::error::{Error, Result, bail};
use crate::layout::{self, Dims, broadcast, expand};
use half::{bf16, f16};
use smallvec::SmallVec;

/// Elements of a piece: its scratch stays in the first-level cache.
pub const STRIP: usize = 1024;
/// Up to so many elements are computed on the stack.
const BRIEF: usize = 16;
/// Results from this many bytes on are written past the caches.
const STREAM: usize = 16 << 20;
/// Bytes of a piece of such a result: few enough for the reads of the next piece to overlap with the stores.
const STREAM_PIECE: usize = 2048;

/// Computes in the promoted type, or the default float where the kernel knows no integers. Uses `out` if it has the result's shape, can
/// take its type, and overlaps no operand but itself; else the result is fresh, with its axes ordered in memory as the operands' are.
pub fn run<const N: usize>(out: Out<'_>, op: &'static str, k: &dyn Kernel<N>, x: [&Array; N]) -> Result<Array> {
    if let Some((n, plain)) = alike(k, &x) {
        match out.0 {
            None => return fresh(n, plain, k, x),
            Some(o) if brief_into(n, o, k, x) => return Ok(o.clone()),
            Some(_) => {}
        }
    }
    promoting(out, op, k, x)
}
/// Apart from `run`, for `into`'s frame is large.
#[inline(never)]
fn promoting<const N: usize>(out: Out<'_>, op: &'static str, k: &dyn Kernel<N>, x: [&Array; N]) -> Result<Array> {
    let dtype = promoted(k, &x);
    into(out, op, dtype, dtype, k, x)
}
/// As `run` into `to`, where that is a few elements that lie as the operands do: false, and nothing is done, where they do not.
pub fn within<const N: usize>(to: &Array, k: &dyn Kernel<N>, x: [&Array; N]) -> bool {
    alike(k, &x).is_some_and(|(n, _)| brief_into(n, to, k, x))
}
/// As `run`, with the type of the result given.
pub fn run_to<const N: usize>(out: Out<'_>, op: &'static str, dtype: DType, k: &dyn Kernel<N>, x: [&Array; N]) -> Result<Array> {
    into(out, op, promoted(k, &x), dtype, k, x)
}
/// Elements of `a` where `cond` holds, else of `b`.
pub fn where_(out: Out<'_>, cond: &Array, a: &Array, b: &Array) -> Result<Array> {
    if cond.dtype != DType::Bool {
        bail!(Runtime, "where(): expected condition to be a boolean tensor, but got a tensor with dtype {}", cond.dtype.torch_name());
    }
    let dtype = promote([a, b].map(|a| (a.dtype, a.rank())));
    into(out, "where", dtype, dtype, &table::Where {}, [cond, a, b])
}
/// Writes `from`, broadcast and cast, into `to`. Right also where they overlap.
pub fn copy(to: &Array, from: &Array) -> Result<()> {
    if from.shape != to.shape && broadcast("copy_", &to.shape, &from.shape)? != to.shape {
        bail!(Runtime, "copy_(): output with shape {:?} doesn't match the broadcast shape of {:?}", to.shape, from.shape);
    }
    writable(to)?;
    let apart = if !overlap(to, from) {
        None
    } else if to.same_elements(from) {
        return Ok(());
    } else {
        Some(cast(from, from.dtype)?)
    };
    transfer(to, apart.as_ref().unwrap_or(from))
}
/// Sets every element.
pub fn fill(to: &Array, v: Scalar) -> Result<()> {
    writable(to)?;
    if to.is_contiguous() && !streams(to.nbytes()) {
        // SAFETY: nothing of it is lent.
        for_dtype!(to.dtype, T => unsafe { to.write::<T>(to.offset, to.numel()) }.fill(T::of(v)));
        return Ok(());
    }
    transfer(to, &Array::scalar(v, to.dtype)?)
}
/// A fresh row-major array of another (or the same) type.
pub fn cast(a: &Array, dtype: DType) -> Result<Array> {
    let to = Array::empty(a.shape, dtype)?;
    transfer(&to, a)?;
    Ok(to)
}
/// As `cast`, with the axes ordered in memory as in `a`.
pub fn cast_kept(a: &Array, dtype: DType) -> Result<Array> {
    let to = Array::empty_strided(a.shape, fresh_strides(&[a], &a.shape), dtype)?;
    transfer(&to, a)?;
    Ok(to)
}
/// The same array if it is row-major, else a copy that is.
pub fn contiguous(a: &Array) -> Result<Array> {
    if a.is_contiguous() { Ok(a.clone()) } else { cast(a, a.dtype) }
}
/// Refuses an array in which one element of memory is several elements.
pub fn writable(to: &Array) -> Result<()> {
    if to.shape.iter().zip(to.strides.iter()).any(|(&n, &s)| n > 1 && s == 0) && to.numel() != 0 {
        bail!(
            Runtime,
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location (shape {:?}, strides {:?}). Please clone() the tensor before performing the operation.",
            to.shape,
            to.strides
        );
    }
    Ok(())
}

/// Elements row-major in a computing type: lent where they lie so, else of a copy.
pub enum Gathered<'a, T> {
    Lent(&'a [T]),
    Held(Array),
}
impl<T: Element> std::ops::Deref for Gathered<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Gathered::Lent(s) => s,
            Gathered::Held(a) => a.slice(),
        }
    }
}
fn gathered<T: Element>(a: &Array) -> Result<Gathered<'_, T>> {
    if a.dtype == T::DTYPE && a.is_contiguous() { Ok(Gathered::Lent(a.slice())) } else { Ok(Gathered::Held(cast(a, T::DTYPE)?)) }
}
pub fn to_f32(a: &Array) -> Result<Gathered<'_, f32>> {
    gathered(a)
}
pub fn to_f64(a: &Array) -> Result<Gathered<'_, f64>> {
    gathered(a)
}
pub fn to_i64(a: &Array) -> Result<Gathered<'_, i64>> {
    gathered(a)
}

#[inline]
fn promoted<const N: usize>(k: &dyn Kernel<N>, x: &[&Array; N]) -> DType {
    let first = x[0].dtype;
    let same = !x[0].number && x.iter().all(|a| a.dtype == first);
    let dtype = if same { first } else { promote(x.iter().map(|a| (a.dtype, a.rank()))) };
    if k.has_ints() { dtype } else { dtype.or_float() }
}
/// May one element of memory belong to both?
#[inline]
fn overlap(a: &Array, b: &Array) -> bool {
    a.shares(b) && {
        let (x, y) = (a.byte_span(), b.byte_span());
        x.0 < y.1 && y.0 < x.1
    }
}
/// How an operand lies in the result's shape.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// Row-major.
    Flat,
    /// One element for all.
    Single,
    Other,
}
impl Lie {
    #[inline]
    fn of(a: &Array, shape: &Dims) -> Lie {
        if a.shape.is_empty() {
            Lie::Single
        } else if a.shape == *shape && a.is_contiguous() {
            Lie::Flat
        } else {
            Lie::Other
        }
    }
}
/// Computes in the type `compute` and gives a result of type `dtype`.
fn into<const N: usize>(out: Out<'_>, op: &'static str, compute: DType, dtype: DType, k: &dyn Kernel<N>, x: [&Array; N]) -> Result<Array> {
    if compute.is_float() && !k.has_floats() {
        return Err(Box::new(Error::Unsupported { op, dtype: compute }));
    }
    let mut shape = x[0].shape;
    for a in &x[1..] {
        if !a.shape.is_empty() {
            shape = broadcast(op, &shape, &a.shape)?;
        }
    }
    let lies = x.map(|a| Lie::of(a, &shape));
    let fits = |o: &&Array| {
        o.shape == shape
            && dtype.can_cast(o.dtype)
            && !layout::may_overlap(&o.shape, &o.strides)
            && x.iter().all(|a| !overlap(a, o) || a.same_elements(o))
    };
    let to = match out.0.filter(fits) {
        Some(o) => o.clone(),
        None if lies.contains(&Lie::Other) => Array::empty_strided(shape, fresh_strides(&x, &shape), dtype)?,
        None => Array::empty(shape, dtype)?,
    };
    let n = shape.numel();
    if n == 0 {
        return Ok(to);
    }
    let call = Call { to: &to, n, k, x, lies };
    match compute {
        DType::BFloat16 if call.halves::<bf16>() => {}
        DType::Float16 if call.halves::<f16>() => {}
        _ => match compute.compute() {
            Kind::F32 => call.walk::<f32>()?,
            Kind::F64 => call.walk::<f64>()?,
            Kind::I64 => {
                if let Some(d) = k.divisor()
                    && to_i64(x[d])?.contains(&0)
                {
                    bail!(Runtime, "ZeroDivisionError: {op}(): integer division by zero");
                }
                call.walk::<i64>()?
            }
        },
    }
    Ok(to)
}
/// Are the operands row-major, of one shape, all float32 or all float64, and not too many for the caches? Then the number of elements, and
/// whether the strides are those of a fresh array (where a length is 1 they may be anything).
#[inline(always)]
fn alike<const N: usize>(k: &dyn Kernel<N>, x: &[&Array; N]) -> Option<(usize, bool)> {
    let first = x[0];
    if !matches!(first.dtype, DType::Float32 | DType::Float64) || first.number {
        return None;
    }
    for a in &x[1..] {
        if !lies_like(a, first) || a.number {
            return None;
        }
    }
    let (n, plain) = layout::row_major(&first.shape, &first.strides)?;
    (n * first.dtype.size() < STREAM && k.has_floats()).then_some((n, plain))
}
#[inline(always)]
fn lies_like(a: &Array, b: &Array) -> bool {
    a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides
}
#[inline(always)]
fn slices<T: Element, const N: usize>(n: usize, x: [&Array; N]) -> [&[T]; N] {
    let mut s: [&[T]; N] = [&[]; N];
    for i in 0..N {
        s[i] = x[i].read(x[i].offset, n);
    }
    s
}
/// The shortest way, for operands that are `alike`.
#[inline(always)]
fn fresh<const N: usize>(n: usize, plain: bool, k: &dyn Kernel<N>, x: [&Array; N]) -> Result<Array> {
    x[0].fresh_like(n, plain, |o| match o {
        Elements::F32(o) => k.f32(slices(n, x), o),
        Elements::F64(o) => k.f64(slices(n, x), o),
    })
}
/// A few elements of operands that are `alike`, by way of the stack into an array that may be one of them.
#[inline(always)]
fn brief_into<const N: usize>(n: usize, to: &Array, k: &dyn Kernel<N>, x: [&Array; N]) -> bool {
    let first = std::ptr::eq(to, x[0]);
    if n > BRIEF || !(first || lies_like(to, x[0])) || !x[first as usize..].iter().all(|a| !a.shares(to) || a.offset == to.offset) {
        return false;
    }
    // SAFETY: nothing is lent when the results are written, they are on the stack.
    unsafe {
        if to.dtype == DType::Float32 {
            let mut o = [0f32; BRIEF];
            k.f32(slices(n, x), &mut o[..n]);
            to.write(to.offset, n).copy_from_slice(&o[..n]);
        } else {
            let mut o = [0f64; BRIEF];
            k.f64(slices(n, x), &mut o[..n]);
            to.write(to.offset, n).copy_from_slice(&o[..n]);
        }
    }
    true
}
/// Strides of a fresh result: axes in the order in which the operands have them in memory, torch's rule. The first operand in which two
/// axes differ decides; broadcast axes have no say.
pub fn fresh_strides(x: &[&Array], shape: &Dims) -> Dims {
    if x.iter().all(|a| a.is_contiguous()) {
        return shape.strides();
    }
    let n = shape.len();
    let strides: SmallVec<[Dims; 4]> = x.iter().map(|a| expand(&a.shape, &a.strides, shape)).collect();
    // Is axis p slower than axis q? None: nothing says so.
    let slower = |p: usize, q: usize| {
        strides.iter().find_map(|s| match (s[p], s[q]) {
            (0, _) | (_, 0) => None,
            (a, b) if a != b => Some(a > b),
            _ if shape[p] > shape[q] => Some(true),
            _ => None,
        })
    };
    let mut order: SmallVec<[usize; 8]> = (0..n).rev().collect(); // fastest first
    for i in 1..n {
        let mut at = i;
        for j in (0..i).rev() {
            match slower(order[j], order[at]) {
                Some(true) => {
                    order.swap(j, at);
                    at = j;
                }
                Some(false) => break,
                None => {}
            }
        }
    }
    let mut out: SmallVec<[usize; 8]> = SmallVec::from_elem(0, n);
    let mut step = 1;
    for &i in &order {
        out[i] = step;
        step *= shape[i].max(1);
    }
    Dims::of(&out)
}

/// One run of a kernel: `n` elements, not 0, into `to`.
struct Call<'a, const N: usize> {
    to: &'a Array,
    n: usize,
    k: &'a dyn Kernel<N>,
    x: [&'a Array; N],
    lies: [Lie; N],
}
impl<const N: usize> Call<'_, N> {
    /// All operands row-major, of the result's type, and apart from it.
    fn flat(&self) -> bool {
        let like = |k: usize| self.lies[k] == Lie::Flat && self.x[k].dtype == self.to.dtype && !self.x[k].shares(self.to);
        (0..N).all(like) && self.to.is_contiguous()
    }
    fn walk<T: Compute>(&self) -> Result<()> {
        let &Call { to, n, k, x, lies } = self;
        let streams = streams(to.nbytes()) && !x.iter().any(|a| overlap(a, to));
        if to.dtype == T::DTYPE && !streams && self.flat() {
            // SAFETY: no operand shares the result's storage, and the result is not lent elsewhere.
            T::apply(k, x.map(|a| a.read(a.offset, n)), unsafe { to.write(to.offset, n) });
            return Ok(());
        }
        let simple = !lies.contains(&Lie::Other) && to.is_contiguous();
        if simple && n <= BRIEF {
            self.brief::<T>();
            return Ok(());
        }
        let strides;
        let nest: Nest<N> = if simple {
            Nest::line(n, lies.map(|l| (l == Lie::Flat) as usize))
        } else {
            strides = x.map(|a| expand(&a.shape, &a.strides, &to.shape));
            Nest::new(&to.shape, &to.strides, &to.strides, std::array::from_fn(|k| &strides[k][..]))
        };
        let mut cut = nest.cut(strip(to, streams));
        let place_to = Place { streams, ..nest.place(&cut, |a| a.to) };
        let places: [Place; N] = std::array::from_fn(|k| nest.place(&cut, |a| a.from[k]));
        let apart = x.map(|a| !overlap(a, to));
        let direct: [bool; N] = std::array::from_fn(|k| x[k].dtype == T::DTYPE && places[k].is_line(1) && apart[k]);
        let direct_to = to.dtype == T::DTYPE && place_to.is_line(1) && !streams;
        let blocks = direct.iter().chain([&direct_to]).filter(|d| !**d).count();
        if blocks == 0 && cut.cols == 1 {
            cut.rows = nest.axes[cut.p].len; // nothing to fetch: long rows in one call
        }
        let len = cut.rows * cut.cols;
        let mut scratch = Scratch::<T>::new(blocks * len)?;
        let mut raw = Scratch::<u8>::new(if blocks == 0 { 0 } else { 8 * len })?;
        let mut scratch = scratch.chunks_exact_mut(len);
        let mut ins: [&mut [T]; N] = direct.map(|d| if d { &mut [] } else { scratch.next().unwrap_or_default() });
        let result = scratch.next().unwrap_or_default();
        let mut held = [(usize::MAX, 0, 0); N]; // the piece each block of scratch holds
        nest.pieces(&cut, |at, from, rows, cols| {
            let n = rows * cols;
            for k in 0..N {
                if !direct[k] && held[k] != (from[k], rows, cols) {
                    let part = Part { array: x[k], at: x[k].offset + from[k], place: &places[k], rows, cols };
                    part.fetch(&mut ins[k][..n], &mut raw);
                    if apart[k] {
                        held[k] = (from[k], rows, cols);
                    }
                }
            }
            let src: [&[T]; N] = std::array::from_fn(|k| if direct[k] { x[k].read(x[k].offset + from[k], n) } else { &ins[k][..n] });
            if direct_to {
                // SAFETY: operands that overlap the result were fetched, so no slice of it is lent.
                T::apply(k, src, unsafe { to.write(to.offset + at, n) });
            } else {
                T::apply(k, src, &mut result[..n]);
                // SAFETY: as above.
                unsafe { Part { array: to, at: to.offset + at, place: &place_to, rows, cols }.store(&result[..n], &mut raw) };
            }
        });
        if streams {
            settle();
        }
        Ok(())
    }
    /// A few elements, by way of the stack.
    fn brief<T: Compute>(&self) {
        let &Call { to, n, k, x, lies } = self;
        let mut ins = [[T::default(); BRIEF]; N];
        for k in 0..N {
            let d = &mut ins[k][..n];
            if lies[k] == Lie::Flat {
                T::read(x[k], x[k].offset, d);
            } else {
                T::read(x[k], x[k].offset, &mut d[..1]);
                let v = d[0];
                d.fill(v);
            }
        }
        let src: [&[T]; N] = std::array::from_fn(|k| &ins[k][..n]);
        // SAFETY: the operands were copied, so no slice of the result's storage is lent.
        let d = unsafe { lent_mut(to, to.offset, n) };
        if to.dtype == T::DTYPE {
            return T::apply(k, src, cast_slice_mut(d));
        }
        let mut o = [T::default(); BRIEF];
        T::apply(k, src, &mut o[..n]);
        T::write(&o[..n], to.dtype, d);
    }
    /// The kernel's own loop over 16-bit floats, if it has one and the operands suit it.
    fn halves<H: Half>(&self) -> bool {
        let &Call { to, n, k, x, .. } = self;
        if to.dtype != H::DTYPE || !k.has_halves() || !self.flat() {
            return false;
        }
        let x = x.map(|a| a.read::<H>(a.offset, n));
        // SAFETY: no operand shares the result's storage, and the result is not lent elsewhere.
        let o = unsafe { to.write::<H>(to.offset, n) };
        if !streams(to.nbytes()) {
            H::apply(k, x, o);
            return true;
        }
        let mut block = [H::default(); STREAM_PIECE / size_of::<u16>()];
        for (i, o) in o.chunks_mut(block.len()).enumerate() {
            let block = &mut block[..o.len()];
            H::apply(k, x.map(|x| &x[i * (STREAM_PIECE / size_of::<u16>())..][..o.len()]), block);
            stream(block, o);
        }
        settle();
        true
    }
}
/// Copies between arrays that do not overlap, by way of a computing type where theirs differ.
fn transfer(to: &Array, from: &Array) -> Result<()> {
    if to.numel() == 0 {
        return Ok(());
    }
    let either = |f: fn(DType) -> bool| f(to.dtype) || f(from.dtype);
    if either(|d| d == DType::Float64) {
        transfer_by::<f64>(to, from)
    } else if either(DType::is_float) {
        transfer_by::<f32>(to, from)
    } else {
        transfer_by::<i64>(to, from)
    }
}
fn transfer_by<T: Compute>(to: &Array, from: &Array) -> Result<()> {
    let (same, streams, n) = (to.dtype == from.dtype, streams(to.nbytes()), to.numel());
    let simple = to.is_contiguous() && to.shape == from.shape && from.is_contiguous();
    if simple && same {
        // SAFETY: the arrays do not overlap.
        unsafe { lent_mut(to, to.offset, n) }.copy_from_slice(lent(from, from.offset, n));
        return Ok(());
    }
    let strides;
    let nest = if simple {
        Nest::line(n, [1])
    } else {
        strides = expand(&from.shape, &from.strides, &to.shape);
        Nest::new(&to.shape, &to.strides, &to.strides, [&strides[..]])
    };
    let cut = nest.cut(strip(to, streams));
    let (place_to, place) = (Place { streams, ..nest.place(&cut, |a| a.to) }, nest.place(&cut, |a| a.from[0]));
    let lends = place.is_line(1) && from.dtype == T::DTYPE;
    let takes = place_to.is_line(1) && to.dtype == T::DTYPE && !streams;
    let len = cut.rows * cut.cols;
    let mut block = Scratch::<T>::new(if same || lends || takes { 0 } else { len })?;
    let mut raw = Scratch::<u8>::new(8 * len)?;
    nest.pieces(&cut, |at, [start], rows, cols| {
        let to = Part { array: to, at: to.offset + at, place: &place_to, rows, cols };
        let from = Part { array: from, at: from.offset + start, place: &place, rows, cols };
        // SAFETY (of all): the arrays do not overlap, and one slice of the result is lent at a time.
        unsafe {
            if same {
                from.moved(&to, &mut raw);
            } else if lends {
                to.store(from.array.read::<T>(from.at, rows * cols), &mut raw);
            } else if takes {
                from.fetch(to.array.write::<T>(to.at, rows * cols), &mut raw);
            } else {
                from.fetch(&mut block[..rows * cols], &mut raw);
                to.store(&block[..rows * cols], &mut raw);
            }
        }
    });
    if streams {
        settle();
    }
    Ok(())
}
/// Elements of a piece.
fn strip(to: &Array, streams: bool) -> usize {
    if streams { STRIP.min(STREAM_PIECE / to.dtype.size()) } else { STRIP }
}

/// A type kernels compute in.
pub trait Compute: Element {
    fn apply<const N: usize>(k: &dyn Kernel<N>, x: [&[Self]; N], o: &mut [Self]);
    /// Casts `d.len()` elements of `a` from place `at`.
    fn read(a: &Array, at: usize, d: &mut [Self]);
    /// Casts to `dtype`, into its bytes.
    fn write(s: &[Self], dtype: DType, d: &mut [u8]);
    /// Casts from `dtype`, out of its bytes.
    fn from_bytes(dtype: DType, s: &[u8], d: &mut [Self]);
}
/// `Cast` under a name that `simd!` takes.
pub(super) trait CastTo<T>: Cast<T> + Element {}
impl<T, S: Cast<T> + Element> CastTo<T> for S {}
simd! { pub(super) fn cast_row<T: Element, S: CastTo<T>>(s: &[S], d: &mut [T]) {
    for (d, s) in d.iter_mut().zip(s) { *d = s.cast(); }
} }
macro_rules! computes { ($($t:ident)*) => { $(impl Compute for $t {
    #[inline]
    fn apply<const N: usize>(k: &dyn Kernel<N>, x: [&[$t]; N], o: &mut [$t]) { k.$t(x, o) }
    fn read(a: &Array, at: usize, d: &mut [$t]) { for_dtype!(a.dtype, S => cast_row(a.read::<S>(at, d.len()), d)) }
    fn write(s: &[$t], dtype: DType, d: &mut [u8]) { for_dtype!(dtype, D => cast_row(s, cast_slice_mut::<D>(d))) }
    fn from_bytes(dtype: DType, s: &[u8], d: &mut [$t]) { for_dtype!(dtype, S => cast_row(cast_slice::<S>(s), d)) }
})* } }
computes! { f32 f64 i64 }
/// A 16-bit float.
trait Half: Element {
    fn apply<const N: usize>(k: &dyn Kernel<N>, x: [&[Self]; N], o: &mut [Self]);
}
macro_rules! halves { ($($t:ident)*) => { $(impl Half for $t {
    fn apply<const N: usize>(k: &dyn Kernel<N>, x: [&[$t]; N], o: &mut [$t]) { k.$t(x, o) }
})* } }
halves! { f16 bf16 }

/// A piece of an array, `at` counted from the start of its storage.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub array: &'a Array,
    pub at: usize,
    pub place: &'a Place,
    pub rows: usize,
    pub cols: usize,
}
/// Runs `$body` with `$t` standing for an element of that many bytes: for code that moves.
macro_rules! for_size {
    ($size:expr, $t:ident => $body:expr) => {
        match $size {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = i16;
                $body
            }
            4 => {
                type $t = i32;
                $body
            }
            _ => {
                type $t = i64;
                $body
            }
        }
    };
}
impl Part<'_> {
    /// The piece in row-major order in the computing type. `raw` is scratch of 8 bytes an element.
    pub fn fetch<T: Compute>(&self, d: &mut [T], raw: &mut [u8]) {
        let &Part { array, at, .. } = self;
        match self.place.form {
            Form::Line(1) => T::read(array, at, d),
            Form::Line(0) => {
                T::read(array, at, &mut d[..1]);
                let v = d[0];
                d.fill(v);
            }
            _ if array.dtype == T::DTYPE => self.pull(bytes_mut(d), self.cols),
            Form::Rect(1) => d.chunks_exact_mut(self.cols).enumerate().for_each(|(r, d)| T::read(array, at + r * self.place.rs, d)),
            _ => {
                let raw = &mut raw[..d.len() * array.dtype.size()];
                self.pull(raw, self.cols);
                T::from_bytes(array.dtype, raw, d);
            }
        }
    }
    /// Writes a row-major piece, cast to the array's type. `raw` as in `fetch`.
    ///
    /// # Safety
    /// As `Array::write`, for the span of the piece.
    pub unsafe fn store<T: Compute>(&self, s: &[T], raw: &mut [u8]) {
        let (to, place) = (self.array, self.place);
        // SAFETY: the caller's word, here and below.
        if to.dtype == T::DTYPE {
            unsafe { self.push(bytes(s)) }
        } else if place.is_line(1) && !place.streams {
            T::write(s, to.dtype, unsafe { lent_mut(to, self.at, s.len()) });
        } else {
            let raw = &mut raw[..s.len() * to.dtype.size()];
            T::write(s, to.dtype, raw);
            unsafe { self.push(raw) }
        }
    }
    /// Moves the piece to a piece of another array of the same type.
    ///
    /// # Safety
    /// As `store`, for `to`; the spans do not overlap.
    unsafe fn moved(&self, to: &Part<'_>, raw: &mut [u8]) {
        let (n, size) = (self.rows * self.cols, self.array.dtype.size());
        // SAFETY: the caller's word.
        unsafe {
            match to.place.contiguous_rows(self.cols) {
                Some(ds) if !to.place.streams => self.pull(lent_mut(to.array, to.at, to.place.span(self.rows, self.cols)), ds),
                _ if self.place.is_line(1) => to.push(lent(self.array, self.at, n)),
                _ => {
                    let raw = &mut raw[..n * size];
                    self.pull(raw, self.cols);
                    to.push(raw);
                }
            }
        }
    }
    /// Moves the piece as it is into rows that begin `ds` elements apart in `d`.
    fn pull(&self, d: &mut [u8], ds: usize) {
        let &Part { array, at, place, rows, cols } = self;
        let s = lent(array, at, place.span(rows, cols));
        for_size!(array.dtype.size(), B => pull::<B>(cast_slice(s), place, rows, cols, cast_slice_mut(d), ds));
    }
    /// Moves a row-major piece as it is to its place.
    ///
    /// # Safety
    /// As `store`.
    unsafe fn push(&self, s: &[u8]) {
        let &Part { array, at, place, rows, cols } = self;
        // SAFETY: the caller's word.
        let d = unsafe { lent_mut(array, at, place.span(rows, cols)) };
        for_size!(array.dtype.size(), B => push::<B>(cast_slice(s), place, cols, cast_slice_mut(d)));
    }
}
fn pull<B: Element>(s: &[B], place: &Place, rows: usize, cols: usize, d: &mut [B], ds: usize) {
    let mut each = |f: &dyn Fn(usize, &mut [B])| (0..rows).for_each(|r| f(r, &mut d[r * ds..][..cols]));
    match &place.form {
        Form::Line(1) if ds == cols => d.copy_from_slice(s),
        Form::Line(0) if ds == cols => d.fill(s[0]),
        Form::Line(step) => each(&|r, d| d.iter_mut().enumerate().for_each(|(c, d)| *d = s[(r * cols + c) * step])),
        Form::Table(t) => each(&|r, d| d.iter_mut().zip(&t[r * cols..]).for_each(|(d, &i)| *d = s[i])),
        Form::Rect(1) => each(&|r, d| d.copy_from_slice(&s[r * place.rs..][..cols])),
        Form::Rect(0) => each(&|r, d| d.fill(s[r * place.rs])),
        Form::Rect(cs) if place.rs == 1 => turn(s, *cs, rows, cols, d, ds),
        Form::Rect(cs) => each(&|r, d| d.iter_mut().enumerate().for_each(|(c, d)| *d = s[r * place.rs + c * cs])),
    }
}
fn push<B: Element>(s: &[B], place: &Place, cols: usize, d: &mut [B]) {
    let put = |s: &[B], d: &mut [B]| if place.streams { stream(s, d) } else { d.copy_from_slice(s) };
    match &place.form {
        Form::Line(1) => put(s, d),
        Form::Line(step) => s.iter().enumerate().for_each(|(i, s)| d[i * step] = *s),
        Form::Table(t) => s.iter().zip(t).for_each(|(s, &i)| d[i] = *s),
        Form::Rect(1) => s.chunks_exact(cols).enumerate().for_each(|(r, s)| put(s, &mut d[r * place.rs..][..cols])),
        Form::Rect(cs) => s.chunks_exact(cols).enumerate().for_each(|(r, s)| {
            s.iter().enumerate().for_each(|(c, s)| d[r * place.rs + c * cs] = *s);
        }),
    }
}
simd! {
    /// `d[r][c] = s[c][r]`: columns `cs` apart in `s`, rows `ds` apart in `d`; blocks of whole cache lines in registers.
    fn turn<B: Element>(s: &[B], cs: usize, rows: usize, cols: usize, d: &mut [B], ds: usize) {
        const K: usize = 16;
        let (full_rows, full_cols) = (rows - rows % K, cols - cols % K);
        for c0 in (0..full_cols).step_by(K) {
            for r0 in (0..full_rows).step_by(K) {
                let mut block = [[B::default(); K]; K];
                for c in 0..K {
                    block[c].copy_from_slice(&s[r0 + (c0 + c) * cs..][..K]);
                }
                for r in 0..K {
                    let d = &mut d[(r0 + r) * ds + c0..][..K];
                    for c in 0..K {
                        d[c] = block[c][r];
                    }
                }
            }
        }
        for r in 0..rows {
            for c in if r < full_rows { full_cols } else { 0 }..cols {
                d[r * ds + c] = s[r + c * cs];
            }
        }
    }
}

/// Is a result of so many bytes so large that its stores had better go past the caches?
pub(super) fn streams(nbytes: usize) -> bool {
    cfg!(target_arch = "x86_64") && nbytes >= STREAM
}
/// Copies past the caches: whole lines are written without being read first. `settle` has to follow before the kernel ends.
pub(super) fn stream<T: Element>(s: &[T], d: &mut [T]) {
    let (s, d) = (bytes(s), bytes_mut(d));
    assert_eq!(s.len(), d.len());
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        let head = d.as_ptr().align_offset(64).min(d.len());
        let (first, d) = d.split_at_mut(head);
        first.copy_from_slice(&s[..head]);
        let (lines, rest) = d.as_chunks_mut::<64>();
        let (from, last) = s[head..].as_chunks::<64>();
        for (d, s) in lines.iter_mut().zip(from) {
            for i in 0..4 {
                // SAFETY: 16 of the 64 bytes of either chunk; the destination is aligned to 64. `settle` orders the stores before
                // whatever follows the kernel.
                unsafe { _mm_stream_si128(d.as_mut_ptr().cast::<__m128i>().add(i), _mm_loadu_si128(s.as_ptr().cast::<__m128i>().add(i))) }
            }
        }
        rest.copy_from_slice(last);
    }
    #[cfg(not(target_arch = "x86_64"))]
    d.copy_from_slice(s);
}
/// Makes streamed stores visible in order.
pub(super) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    }
}

/// A slice as its bytes.
fn bytes<T: Element>(s: &[T]) -> &[u8] {
    // SAFETY: elements have no padding; lifetime and extent are the slice's.
    unsafe { std::slice::from_raw_parts(s.as_ptr().cast(), size_of_val(s)) }
}
fn bytes_mut<T: Element>(s: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; any bytes are valid elements.
    unsafe { std::slice::from_raw_parts_mut(s.as_mut_ptr().cast(), size_of_val(s)) }
}
/// Bytes as elements.
fn cast_slice<T: Element>(s: &[u8]) -> &[T] {
    // SAFETY: any bits are a valid element.
    let (head, body, tail) = unsafe { s.align_to::<T>() };
    assert!(head.is_empty() && tail.is_empty(), "bytes that hold no whole aligned elements");
    body
}
fn cast_slice_mut<T: Element>(s: &mut [u8]) -> &mut [T] {
    // SAFETY: any bits are a valid element, and any element valid bytes.
    let (head, body, tail) = unsafe { s.align_to_mut::<T>() };
    assert!(head.is_empty() && tail.is_empty(), "bytes that hold no whole aligned elements");
    body
}
/// The bytes of `n` elements of an array.
fn lent(a: &Array, at: usize, n: usize) -> &[u8] {
    for_dtype!(a.dtype, T => bytes(a.read::<T>(at, n)))
}
/// # Safety
/// As `Array::write`.
#[expect(clippy::mut_from_ref, reason = "as Array::write")]
unsafe fn lent_mut(a: &Array, at: usize, n: usize) -> &mut [u8] {
    // SAFETY: the caller's word.
    for_dtype!(a.dtype, T => bytes_mut(unsafe { a.write::<T>(at, n) }))
}

#[cfg(test)]
mod tests {
    use super::table::*;
    use super::*;

    /// A small generator, so that every layout is met the same way each time.
    struct Dice(u64);
    impl Dice {
        fn roll(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % n
        }
    }
    /// An array of small numbers whose shape broadcasts to `shape`, in some layout: row-major, permuted, sliced, stepped, repeated.
    fn some(d: &mut Dice, shape: &[usize], dtype: DType, repeats: bool) -> Array {
        let n = shape.len();
        let mut shape = shape.to_vec();
        if repeats && d.roll(3) == 0 {
            shape.iter_mut().for_each(|s| *s = if d.roll(2) == 0 { 1 } else { *s });
        }
        let mut order: Vec<usize> = (0..n).collect();
        if d.roll(2) == 0 {
            (0..n).for_each(|i| order.swap(i, d.roll(n)));
        }
        let mut strides = vec![0; n];
        let (mut step, gaps) = (1, d.roll(3) == 0);
        for &i in &order {
            step *= if gaps { 1 + d.roll(2) } else { 1 };
            strides[i] = step;
            step *= shape[i] + if gaps { d.roll(3) } else { 0 };
        }
        let offset = d.roll(4);
        let wide: Vec<f64> = (0..step + offset).map(|_| d.roll(9) as f64 - 3.0).collect();
        let all = Array::from_slice(&[wide.len()], &wide).unwrap();
        let cast = Array::empty(all.shape, dtype).unwrap();
        for i in 0..wide.len() {
            // SAFETY: nothing of it is lent.
            for_dtype!(dtype, T => unsafe { cast.write::<T>(i, 1) }[0] = T::of(all.item_at(&[i])));
        }
        cast.view(Dims::of(&shape), Dims::of(&strides), offset)
    }
    /// The element that `a`, broadcast to the index's shape, has there.
    fn at(a: &Array, index: &[usize]) -> f64 {
        let lead = index.len() - a.ndim();
        let own: Vec<usize> = (0..a.ndim()).map(|i| if a.shape[i] == 1 { 0 } else { index[lead + i] }).collect();
        a.item_at(&own).to_f64()
    }
    fn each_index(shape: &[usize], mut f: impl FnMut(&[usize])) {
        for flat in 0..shape.iter().product() {
            let mut rest: usize = flat;
            let mut index = vec![0; shape.len()];
            for i in (0..shape.len()).rev() {
                index[i] = rest % shape[i];
                rest /= shape[i];
            }
            f(&index);
        }
    }
    fn shape(d: &mut Dice) -> Vec<usize> {
        match d.roll(8) {
            0 => vec![],
            1 => vec![1 + d.roll(3000)],
            2 => vec![1 + d.roll(70), 1 + d.roll(70)],
            3 => vec![1 + d.roll(4), 1 + d.roll(700)],
            4 => vec![1 + d.roll(300), 2, 2, 2],
            5 => vec![1 + d.roll(4), 1 + d.roll(4), 2, 3, 1 + d.roll(3), 2],
            6 => vec![d.roll(3), 5, d.roll(3)],
            _ => vec![1 + d.roll(5), 1 + d.roll(40), 1 + d.roll(40)],
        }
    }
    fn stored(v: f64, dtype: DType) -> f64 {
        for_dtype!(dtype, T => T::of(Scalar::Float(v)).scalar().to_f64())
    }
    #[test]
    fn any_layouts_and_types_give_what_plain_loops_give() {
        let mut d = Dice(1);
        for _ in 0..3000 {
            let s = shape(&mut d);
            let (p, q) = (DType::ALL[d.roll(10)], DType::ALL[d.roll(10)]);
            let (a, b) = (some(&mut d, &s, p, true), some(&mut d, &s, q, true));
            let y = run(Out(None), "add", &AddScaled { alpha: Scalar::Int(2) }, [&a, &b]).unwrap();
            let dtype = promote([(p, a.rank()), (q, b.rank())]);
            assert_eq!(y.dtype, dtype);
            each_index(&y.shape, |i| assert_eq!(at(&y, i), stored(at(&a, i) + 2.0 * at(&b, i), dtype), "{a:?} {b:?} {y:?} at {i:?}"));
            let y = run_to(Out(None), "eq", DType::Bool, &Eq {}, [&a, &b]).unwrap();
            each_index(&y.shape, |i| {
                let (u, v) = (stored(at(&a, i), dtype), stored(at(&b, i), dtype));
                assert_eq!(at(&y, i), (u == v) as u8 as f64, "{a:?} {b:?} {y:?} at {i:?}")
            });
            let c = some(&mut d, &s, DType::Bool, true);
            let y = where_(Out(None), &c, &a, &b).unwrap();
            each_index(&y.shape, |i| {
                let v = if at(&c, i) != 0.0 { at(&a, i) } else { at(&b, i) };
                assert_eq!(at(&y, i), stored(v, dtype), "{c:?} {a:?} {b:?} at {i:?}")
            });
        }
    }
    #[test]
    fn copies_cast_and_broadcast() {
        let mut d = Dice(2);
        for _ in 0..3000 {
            let s = shape(&mut d);
            let (p, q) = (DType::ALL[d.roll(10)], DType::ALL[d.roll(10)]);
            let (to, from) = (some(&mut d, &s, p, false), some(&mut d, &s, q, true));
            copy(&to, &from).unwrap();
            let expect = |i: &[usize]| {
                if p.is_float() || p == DType::Bool {
                    stored(at(&from, i), p)
                } else {
                    for_dtype!(p, T => T::of(Scalar::Int(at(&from, i) as i64)).scalar().to_f64())
                }
            };
            each_index(&s, |i| assert_eq!(at(&to, i), expect(i), "{to:?} from {from:?} at {i:?}"));
            let wide = to_f64(&from).unwrap();
            assert_eq!(from.to_vec(), wide.to_vec());
            assert_eq!(cast_kept(&from, q).unwrap().to_vec(), from.to_vec());
            assert!(contiguous(&from).unwrap().is_contiguous());
        }
    }
    #[test]
    fn overlap_is_written_right_or_refused() {
        let a = Array::from_slice(&[6], &[1f32, 2., 3., 4., 5., 6.]).unwrap();
        let part = |o: usize| a.view(Dims::of(&[4]), Dims::of(&[1]), o);
        let k = Add {};
        assert!(run(Out(Some(&a)), "add", &k, [&a, &a]).unwrap().shares(&a));
        assert_eq!(a.to_vec(), [2., 4., 6., 8., 10., 12.]);
        let y = run(Out(Some(&part(1))), "add", &k, [&part(0), &part(1)]).unwrap();
        assert!(!y.shares(&a));
        assert_eq!(y.to_vec(), [6., 10., 14., 18.]);
        copy(&part(1), &part(0)).unwrap();
        assert_eq!(a.to_vec(), [2., 2., 4., 6., 8., 12.]);
        let t = Array::from_slice(&[2, 2], &[1i64, 2, 3, 4]).unwrap();
        let turned = t.view(t.shape, Dims::of(&[1, 2]), 0);
        assert!(!run(Out(Some(&t)), "mul", &Mul {}, [&t, &turned]).unwrap().shares(&t));
        copy(&t, &turned).unwrap();
        assert_eq!(t.to_vec(), [1., 3., 2., 4.]);
        let repeated = t.view(Dims::of(&[3, 2]), Dims::of(&[0, 1]), 0);
        assert!(
            copy(&repeated, &t.view(Dims::of(&[2]), Dims::of(&[1]), 0))
                .unwrap_err()
                .to_string()
                .contains("more than one element of the written-to tensor")
        );
        assert!(copy(&t, &Array::zeros(Dims::of(&[3]), DType::Int64).unwrap()).is_err());
    }
    #[test]
    fn an_integer_zero_divisor_is_an_error() {
        let (a, z) = (Array::from_slice(&[2], &[i64::MIN, 7]).unwrap(), Array::from_slice(&[2], &[-1i64, 0]).unwrap());
        assert!(run(Out(None), "div", &DivTrunc {}, [&a, &z]).unwrap_err().to_string().contains("ZeroDivisionError"));
        let ones = Array::number(Scalar::Int(-1)).unwrap();
        assert_eq!(run(Out(None), "div", &DivTrunc {}, [&a, &ones]).unwrap().to_vec(), [i64::MIN as f64, -7.]);
    }
    #[test]
    fn a_fresh_result_keeps_the_order_of_axes() {
        let a = Array::zeros(Dims::of(&[24]), DType::Float32).unwrap();
        let t = a.view(Dims::of(&[2, 3, 4]), Dims::of(&[1, 8, 2]), 0);
        let b = Array::zeros(Dims::of(&[4]), DType::Float64).unwrap();
        let y = run(Out(None), "mul", &Mul {}, [&t, &b]).unwrap();
        assert_eq!((&*y.strides, y.dtype), (&[1usize, 8, 2][..], DType::Float64));
        assert_eq!(&*run(Out(None), "neg", &Neg {}, [&t]).unwrap().strides, &[1, 8, 2]);
    }
}
