//! Runs slice kernels over operands of any layout and type: broadcasting, strides, casts and overlap are dealt with here.
//!
//! For ops:     `run` (promotes), `run_to` (result type given: comparisons, predicates), `where_`, `copy`, `fill`, `cast`, `contiguous`.
//! For kernels: `to_f32`, `to_f64`, `to_i64` (elements row-major in a computing type, lent if they lie so), `Nest`, `Cut`, `Place` (the
//!              loop nest, how it is cut into pieces, and where a piece lies in one array), `fetch` and `store` (a piece to and from
//!              a scratch slice in the computing type).
//!
//! Result and operands are seen as one loop nest, adjacent axes merged where all agree, and cut into pieces of about a thousand elements:
//! a strip of a long innermost axis; the whole of several short inner axes; or a tile over two axes where an operand is transposed.
//! In each piece an operand that is contiguous and of the computing type is lent as a slice (a long row in one call if all are);
//! another is fetched into scratch, once for as long as the pieces read the same elements; the result is likewise written directly, or
//! into scratch and stored. Elements are moved by size and cast row by row, so nothing is compiled for each pair of types and layouts.
//!
//! Invariant: a slice of the result is lent for writing only while no slice of its storage is lent for reading. An operand that is the
//! result itself is fetched first; one that overlaps it otherwise makes `run` give a fresh array and `copy` work on a copy.
#![allow(unsafe_code)]
use super::Out;
use super::simd::simd;
use super::table::{self, Kernel};
use crate::alloc::Scratch;
use crate::array::Array;
use crate::dtype::{Cast, Compute as Kind, DType, Element, Scalar, for_dtype, promote};
use crate::error::{Error, Result, bail};
use crate::layout::{self, Dims, broadcast, expand, is_contiguous};
use smallvec::SmallVec;

/// Elements of a piece: its scratch stays in the first-level cache.
pub const STRIP: usize = 1024;
/// Elements of a tile over two axes.
const TILE: usize = 4096;
/// Rows of such a tile: whole cache lines along both axes.
const TILE_ROWS: usize = 64;

/// Computes in the promoted type, or the default float where the kernel knows no integers. Uses `out` if it has the result's shape, can
/// take its type, and overlaps no operand but itself; else the result is fresh, with its axes ordered in memory as the operands' are.
pub fn run<const N: usize>(out: Out<'_>, op: &'static str, k: &dyn Kernel<N>, x: [&Array; N]) -> Result<Array> {
    let dtype = promoted(k, &x);
    into(out, op, dtype, dtype, k, x)
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
    if broadcast("copy_", &to.shape, &from.shape)? != to.shape {
        return Err(Box::new(Error::Broadcast { op: "copy_", lhs: to.shape.to_vec(), rhs: from.shape.to_vec() }));
    }
    writable(to)?;
    if to.numel() == 0 || to.same_elements(from) {
        return Ok(());
    }
    let apart = if overlap(to, from) { Some(contiguous_as(from, from.dtype)?) } else { None };
    let from = apart.as_ref().unwrap_or(from);
    let float = |d: DType| to.dtype == d || from.dtype == d;
    match (float(DType::Float64), from.dtype.is_float() || to.dtype.is_float()) {
        (true, _) => transfer::<f64>(to, from),
        (_, true) => transfer::<f32>(to, from),
        _ => transfer::<i64>(to, from),
    }
}
/// Sets every element.
pub fn fill(to: &Array, v: Scalar) -> Result<()> {
    copy(to, &Array::scalar(v, to.dtype)?)
}
/// A fresh row-major array of another (or the same) type.
pub fn cast(a: &Array, dtype: DType) -> Result<Array> {
    contiguous_as(a, dtype)
}
/// As `cast`, with the axes ordered in memory as in `a` (torch's `to` and `clone`).
pub fn cast_kept(a: &Array, dtype: DType) -> Result<Array> {
    let to = Array::empty_strided(a.shape, fresh_strides(&[a], &a.shape), dtype)?;
    copy(&to, a)?;
    Ok(to)
}
/// The same array if it is row-major, else a copy that is.
pub fn contiguous(a: &Array) -> Result<Array> {
    if a.is_contiguous() { Ok(a.clone()) } else { contiguous_as(a, a.dtype) }
}
fn contiguous_as(a: &Array, dtype: DType) -> Result<Array> {
    let to = Array::empty(a.shape, dtype)?;
    copy(&to, a)?;
    Ok(to)
}
/// Refuses an array in which one element of memory is several elements.
pub fn writable(to: &Array) -> Result<()> {
    if to.shape.iter().zip(to.strides.iter()).any(|(&n, &s)| n > 1 && s == 0) && to.numel() != 0 {
        bail!(
            Runtime,
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location: shape {:?}, strides {:?}. Please clone() the tensor before performing the operation.",
            to.shape,
            to.strides
        );
    }
    Ok(())
}

/// Elements row-major in a computing type: lent where they lie so, else held.
pub enum Gathered<'a, T> {
    Lent(&'a [T]),
    Held(Scratch<T>),
}
impl<T: Element> std::ops::Deref for Gathered<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Gathered::Lent(s) => s,
            Gathered::Held(s) => s,
        }
    }
}
fn gathered<T: Compute>(a: &Array) -> Result<Gathered<'_, T>> {
    let n = a.numel();
    if a.dtype == T::DTYPE && a.is_contiguous() {
        return Ok(Gathered::Lent(a.read(a.offset, n)));
    }
    let mut held = Scratch::<T>::new(n)?;
    if n != 0 {
        let nest = Nest::new(&a.shape, &a.shape.strides(), &a.shape.strides(), [&a.strides]);
        let cut = nest.cut(STRIP);
        let place = nest.place(&cut, |x| x.from[0]);
        let mut raw = Scratch::new(8 * cut.rows * cut.cols)?;
        // Row-major pieces of whole inner axes follow each other; a tile's rows do not.
        let mut block = Scratch::<T>::new(cut.rows * cut.cols)?;
        let to = nest.place(&cut, |x| x.to);
        nest.pieces(&cut, |at, from, rows, cols| {
            let n = rows * cols;
            if to.is_line(1) {
                return fetch(a, a.offset + from[0], &place, rows, cols, &mut held[at..at + n], &mut raw);
            }
            fetch(a, a.offset + from[0], &place, rows, cols, &mut block[..n], &mut raw);
            for r in 0..rows {
                held[at + r * to.rs..][..cols].copy_from_slice(&block[r * cols..][..cols]);
            }
        });
    }
    Ok(Gathered::Held(held))
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

fn promoted<const N: usize>(k: &dyn Kernel<N>, x: &[&Array; N]) -> DType {
    let first = x[0].dtype;
    let same = !x[0].number && x.iter().all(|a| a.dtype == first);
    let dtype = if same { first } else { promote(x.iter().map(|a| (a.dtype, a.rank()))) };
    if k.has_ints() { dtype } else { dtype.or_float() }
}
/// May one element of memory belong to both?
fn overlap(a: &Array, b: &Array) -> bool {
    let (x, y) = (a.byte_span(), b.byte_span());
    a.shares(b) && x.0 < y.1 && y.0 < x.1
}
fn into<const N: usize>(out: Out<'_>, op: &'static str, compute: DType, dtype: DType, k: &dyn Kernel<N>, x: [&Array; N]) -> Result<Array> {
    let mut shape = x[0].shape;
    for a in &x[1..] {
        shape = broadcast(op, &shape, &a.shape)?;
    }
    let fits = |o: &&Array| {
        o.shape == shape
            && dtype.can_cast(o.dtype)
            && !(layout::may_overlap(&o.shape, &o.strides))
            && x.iter().all(|a| a.same_elements(o) || !overlap(a, o))
    };
    let to = match out.0.filter(fits) {
        Some(o) => o.clone(),
        None => Array::empty_strided(shape, fresh_strides(&x, &shape), dtype)?,
    };
    if shape.numel() != 0 {
        match compute.compute() {
            Kind::F32 => walk::<f32, N>(&to, k, x)?,
            Kind::F64 => walk::<f64, N>(&to, k, x)?,
            Kind::I64 => {
                if let Some(d) = k.divisor()
                    && to_i64(x[d])?.contains(&0)
                {
                    bail!(Runtime, "ZeroDivisionError: {op}(): integer division by zero");
                }
                walk::<i64, N>(&to, k, x)?
            }
        }
    }
    Ok(to)
}
/// Strides of a fresh result: axes in the order in which the operands have them in memory, torch's rule. The first operand in which two
/// axes differ decides; broadcast axes have no say.
fn fresh_strides(x: &[&Array], shape: &Dims) -> Dims {
    if x.iter().all(|a| a.is_contiguous() && (a.shape == *shape || a.shape.is_empty())) {
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
    let mut order: SmallVec<[usize; 6]> = (0..n).rev().collect(); // fastest first
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
    let mut out: SmallVec<[usize; 6]> = SmallVec::from_elem(0, n);
    let mut step = 1;
    for &i in &order {
        out[i] = step;
        step *= shape[i].max(1);
    }
    Dims::of(&out)
}

/// One loop: its length, and by how many elements it moves the result and each operand.
#[derive(Clone, Copy, Debug)]
pub struct Axis<const N: usize> {
    pub len: usize,
    pub to: usize,
    pub from: [usize; N],
}
/// The loops over a shape, slowest first: adjacent ones merged where all strides agree, those of length 1 dropped, never empty.
#[derive(Clone, Debug)]
pub struct Nest<const N: usize> {
    pub axes: SmallVec<[Axis<N>; 4]>,
}
/// How a nest is cut into pieces: `rows` steps along axis `p` and `cols` elements inside: the whole of the axes after `p`, or for a tile that
/// many steps along the innermost.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub p: usize,
    pub rows: usize,
    pub cols: usize,
    pub tile: bool,
}
impl<const N: usize> Nest<N> {
    /// The loops in the order of the strides `lead` (`to` for a pointwise result, an operand's for a reduction). No length is 0.
    pub fn new(shape: &[usize], lead: &[usize], to: &[usize], from: [&[usize]; N]) -> Self {
        let mut order: SmallVec<[usize; 8]> = (0..shape.len()).filter(|&i| shape[i] != 1).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(lead[i])); // stable
        let mut axes: SmallVec<[Axis<N>; 4]> = SmallVec::new();
        for i in order {
            let axis = Axis { len: shape[i], to: to[i], from: from.map(|s| s[i]) };
            match axes.last_mut() {
                Some(o) if o.to == axis.to * axis.len && (0..N).all(|k| o.from[k] == axis.from[k] * axis.len) => {
                    *o = Axis { len: o.len * axis.len, ..axis };
                }
                _ => axes.push(axis),
            }
        }
        if axes.is_empty() {
            axes.push(Axis { len: 1, to: 1, from: [1; N] });
        }
        Nest { axes }
    }
    /// A cut for pieces of about `strip` elements: a tile if an operand is faster along another axis than along the innermost.
    pub fn cut(&self, strip: usize) -> Cut {
        let last = self.axes.len() - 1;
        let inner = &self.axes[last];
        let faster =
            |k: usize| (0..last).filter(|&i| (1..inner.from[k]).contains(&self.axes[i].from[k])).min_by_key(|&i| self.axes[i].from[k]);
        if let Some(p) = (0..N).find_map(faster)
            && self.axes[p].len * inner.len >= strip / 4
        {
            let rows = self.axes[p].len.min(TILE_ROWS.max(TILE / inner.len));
            return Cut { p, rows, cols: inner.len.min((TILE / rows).max(1)), tile: true };
        }
        let (mut p, mut cols) = (last, 1);
        while p > 0 && cols * self.axes[p].len <= strip / 2 {
            cols *= self.axes[p].len;
            p -= 1;
        }
        Cut { p, rows: self.axes[p].len.min((strip / cols).max(1)), cols, tile: false }
    }
    /// Where a piece lies in the array whose step along an axis `step` gives.
    pub fn place(&self, cut: &Cut, step: impl Fn(&Axis<N>) -> usize) -> Place {
        let inside = if cut.tile { &self.axes[self.axes.len() - 1..] } else { &self.axes[cut.p + 1..] };
        let rs = step(&self.axes[cut.p]);
        let merged = inside.windows(2).all(|w| step(&w[0]) == step(&w[1]) * w[1].len);
        let reach = if cut.tile { 0 } else { inside.iter().map(|a| step(a) * (a.len - 1)).sum() };
        let form = match inside.last().map(&step) {
            None => Form::Line(rs),
            Some(cs) if merged && !cut.tile && rs == cs * cut.cols => Form::Line(cs),
            Some(0) if merged && rs == 0 => Form::Line(0),
            Some(cs) if merged => Form::Rect(cs),
            _ => {
                let mut table: Vec<usize> = (0..cut.rows).map(|r| r * rs).collect();
                for a in inside {
                    table = table.iter().flat_map(|&at| (0..a.len).map(move |i| (at, i))).map(|(at, i)| at + i * step(a)).collect();
                }
                Form::Table(table)
            }
        };
        Place { form, rs, reach }
    }
    /// Calls `f(start in the result, start in each operand, rows, cols)` for each piece.
    pub fn pieces(&self, cut: &Cut, mut f: impl FnMut(usize, [usize; N], usize, usize)) {
        let last = self.axes.len() - 1;
        let mut index: SmallVec<[usize; 8]> = SmallVec::from_elem(0, last + 1);
        let inner = if cut.tile { last } else { cut.p };
        let (mut to, mut from) = (0, [0; N]);
        loop {
            let cols = if cut.tile { cut.cols.min(self.axes[last].len - index[last]) } else { cut.cols };
            f(to, from, cut.rows.min(self.axes[cut.p].len - index[cut.p]), cols);
            let mut i = inner;
            loop {
                let a = &self.axes[i];
                let step = match i {
                    _ if i == cut.p => cut.rows,
                    _ if i == last => cut.cols,
                    _ => 1,
                };
                index[i] += step;
                to += step * a.to;
                (0..N).for_each(|k| from[k] += step * a.from[k]);
                if index[i] < a.len {
                    break;
                }
                to -= index[i] * a.to;
                (0..N).for_each(|k| from[k] -= index[i] * a.from[k]);
                index[i] = 0;
                if i == 0 {
                    return;
                }
                i -= 1;
            }
        }
    }
}
/// Where the elements of a piece lie in one array, counted from its first.
pub struct Place {
    form: Form,
    /// Step from row to row.
    pub rs: usize,
    /// From the first to the last element of a row, where rows have several axes.
    reach: usize,
}
enum Form {
    /// One step throughout.
    Line(usize),
    /// Rows `rs` apart, elements this far apart.
    Rect(usize),
    /// The place of each element of a full piece; a shorter one takes the first of them.
    Table(Vec<usize>),
}
impl Place {
    /// Rows `rs` apart of elements `cs` apart.
    pub fn rect(rs: usize, cs: usize) -> Place {
        Place { form: Form::Rect(cs), rs, reach: 0 }
    }
    /// Elements `step` apart.
    pub fn line(step: usize) -> Place {
        Place { form: Form::Line(step), rs: 0, reach: 0 }
    }
    /// One step throughout the piece: 1 where it is contiguous, 0 where it is one element.
    pub fn is_line(&self, step: usize) -> bool {
        matches!(self.form, Form::Line(s) if s == step)
    }
    /// Elements from the first to the last of a piece, both included.
    fn span(&self, rows: usize, cols: usize) -> usize {
        match self.form {
            Form::Line(s) => (rows * cols - 1) * s + 1,
            Form::Rect(cs) => (rows - 1) * self.rs + (cols - 1) * cs + 1,
            Form::Table(_) => (rows - 1) * self.rs + self.reach + 1,
        }
    }
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
simd! { pub(super) fn cast_row<T: Element, S: CastTo<T>>(s: &[S], d: &mut [T]) {
    for (d, s) in d.iter_mut().zip(s) { *d = s.cast(); }
} }
/// `Cast` under a name a `path` fragment can hold.
pub(super) trait CastTo<T>: Cast<T> + Element {}
impl<T, S: Cast<T> + Element> CastTo<T> for S {}
macro_rules! computes { ($($t:ident)*) => { $(impl Compute for $t {
    #[inline]
    fn apply<const N: usize>(k: &dyn Kernel<N>, x: [&[$t]; N], o: &mut [$t]) { k.$t(x, o) }
    fn read(a: &Array, at: usize, d: &mut [$t]) { for_dtype!(a.dtype, S => cast_row(a.read::<S>(at, d.len()), d)) }
    fn write(s: &[$t], dtype: DType, d: &mut [u8]) { for_dtype!(dtype, D => cast_row(s, bits_mut::<D>(d))) }
    fn from_bytes(dtype: DType, s: &[u8], d: &mut [$t]) { for_dtype!(dtype, S => cast_row(bits::<S>(s), d)) }
})* } }
computes! { f32 f64 i64 }

/// A slice as its bytes.
fn bytes<T: Element>(s: &[T]) -> &[u8] {
    // SAFETY: elements have no padding; the lifetime and the extent are the slice's.
    unsafe { std::slice::from_raw_parts(s.as_ptr().cast(), size_of_val(s)) }
}
fn bytes_mut<T: Element>(s: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; any bytes are valid elements.
    unsafe { std::slice::from_raw_parts_mut(s.as_mut_ptr().cast(), size_of_val(s)) }
}
/// Bytes as elements.
fn bits<T: Element>(s: &[u8]) -> &[T] {
    // SAFETY: any bits are a valid element.
    let (head, body, tail) = unsafe { s.align_to::<T>() };
    assert!(head.is_empty() && tail.is_empty(), "bytes that hold no whole aligned elements");
    body
}
fn bits_mut<T: Element>(s: &mut [u8]) -> &mut [T] {
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
/// A piece of `a` that starts at `at`, in row-major order in the computing type. `raw` is scratch for as many elements.
pub fn fetch<T: Compute>(a: &Array, at: usize, place: &Place, rows: usize, cols: usize, d: &mut [T], raw: &mut [u8]) {
    let n = rows * cols;
    match place.form {
        Form::Line(1) => T::read(a, at, d),
        Form::Line(0) => {
            T::read(a, at, &mut d[..1]);
            let v = d[0];
            d.fill(v);
        }
        _ => {
            let (size, s) = (a.dtype.size(), lent(a, at, place.span(rows, cols)));
            let same = a.dtype == T::DTYPE;
            let into: &mut [u8] = if same { bytes_mut(d) } else { &mut raw[..n * size] };
            for_size!(size, B => pull::<B>(bits(s), place, rows, cols, bits_mut(into)));
            if !same {
                T::from_bytes(a.dtype, &raw[..n * size], d);
            }
        }
    }
}
fn pull<B: Element>(s: &[B], place: &Place, rows: usize, cols: usize, d: &mut [B]) {
    match &place.form {
        Form::Line(step) => d.iter_mut().enumerate().for_each(|(i, d)| *d = s[i * step]),
        Form::Table(t) => d.iter_mut().zip(t).for_each(|(d, &i)| *d = s[i]),
        Form::Rect(1) => d.chunks_exact_mut(cols).enumerate().for_each(|(r, d)| d.copy_from_slice(&s[r * place.rs..][..cols])),
        Form::Rect(0) => d.chunks_exact_mut(cols).enumerate().for_each(|(r, d)| d.fill(s[r * place.rs])),
        Form::Rect(cs) if place.rs < *cs => {
            for c0 in (0..cols).step_by(8) {
                for r in 0..rows {
                    for c in c0..cols.min(c0 + 8) {
                        d[r * cols + c] = s[r * place.rs + c * cs];
                    }
                }
            }
        }
        Form::Rect(cs) => d.chunks_exact_mut(cols).enumerate().for_each(|(r, d)| {
            d.iter_mut().enumerate().for_each(|(c, d)| *d = s[r * place.rs + c * cs]);
        }),
    }
}
fn push<B: Element>(s: &[B], place: &Place, cols: usize, d: &mut [B]) {
    match &place.form {
        Form::Line(1) => d.copy_from_slice(s),
        Form::Line(step) => s.iter().enumerate().for_each(|(i, s)| d[i * step] = *s),
        Form::Table(t) => s.iter().zip(t).for_each(|(s, &i)| d[i] = *s),
        Form::Rect(1) => s.chunks_exact(cols).enumerate().for_each(|(r, s)| d[r * place.rs..][..cols].copy_from_slice(s)),
        Form::Rect(cs) => s.chunks_exact(cols).enumerate().for_each(|(r, s)| {
            s.iter().enumerate().for_each(|(c, s)| d[r * place.rs + c * cs] = *s);
        }),
    }
}
/// Writes a row-major piece into `to` from place `at`, cast to its type.
///
/// # Safety
/// No slice of the piece's span of `to` is lent.
pub unsafe fn store<T: Compute>(s: &[T], to: &Array, at: usize, place: &Place, rows: usize, cols: usize, raw: &mut [u8]) {
    let size = to.dtype.size();
    // SAFETY: the caller's word.
    let d = unsafe { lent_mut(to, at, place.span(rows, cols)) };
    if to.dtype == T::DTYPE {
        return for_size!(size, B => push::<B>(bits(bytes(s)), place, cols, bits_mut(d)));
    }
    if place.is_line(1) {
        return T::write(s, to.dtype, d);
    }
    let raw = &mut raw[..s.len() * size];
    T::write(s, to.dtype, raw);
    for_size!(size, B => push::<B>(bits(raw), place, cols, bits_mut(d)));
}

fn walk<T: Compute, const N: usize>(to: &Array, k: &dyn Kernel<N>, x: [&Array; N]) -> Result<()> {
    let n = to.numel();
    let plain = |a: &Array| a.dtype == T::DTYPE && a.shape == to.shape && is_contiguous(&a.shape, &a.strides);
    if plain(to) && x.iter().all(|a| plain(a) && !a.shares(to)) {
        // SAFETY: no operand shares the result's storage, and the result is not lent elsewhere.
        T::apply(k, x.map(|a| a.read(a.offset, n)), unsafe { to.write(to.offset, n) });
        return Ok(());
    }
    let strides = x.map(|a| expand(&a.shape, &a.strides, &to.shape));
    let nest: Nest<N> = Nest::new(&to.shape, &to.strides, &to.strides, std::array::from_fn(|k| &strides[k][..]));
    let cut = nest.cut(STRIP);
    let place_to = nest.place(&cut, |a| a.to);
    let places: [Place; N] = std::array::from_fn(|k| nest.place(&cut, |a| a.from[k]));
    let direct_to = to.dtype == T::DTYPE && place_to.is_line(1);
    let direct: [bool; N] = std::array::from_fn(|k| x[k].dtype == T::DTYPE && places[k].is_line(1) && !overlap(x[k], to));
    let len = cut.rows * cut.cols;
    let mut scratch = Scratch::<T>::new((N + 1) * len)?;
    let mut blocks = scratch.chunks_exact_mut(len);
    let mut ins: [&mut [T]; N] = std::array::from_fn(|_| blocks.next().unwrap_or_default());
    let result = blocks.next().unwrap_or_default();
    let mut raw = Scratch::<u8>::new(8 * len)?;
    let mut held = [(usize::MAX, 0, 0); N];
    nest.pieces(&cut, |at, from, rows, cols| {
        let n = rows * cols;
        for k in 0..N {
            if direct[k] || held[k] == (from[k], rows, cols) {
                continue;
            }
            fetch(x[k], x[k].offset + from[k], &places[k], rows, cols, &mut ins[k][..n], &mut raw);
            if !overlap(x[k], to) {
                held[k] = (from[k], rows, cols);
            }
        }
        let src: [&[T]; N] = std::array::from_fn(|k| if direct[k] { x[k].read(x[k].offset + from[k], n) } else { &ins[k][..n] });
        if direct_to {
            // SAFETY: operands that overlap the result were fetched, so no slice of it is lent.
            T::apply(k, src, unsafe { to.write(to.offset + at, n) });
        } else {
            T::apply(k, src, &mut result[..n]);
            // SAFETY: as above.
            unsafe { store(&result[..n], to, to.offset + at, &place_to, rows, cols, &mut raw) };
        }
    });
    Ok(())
}
/// Copies between arrays that do not overlap, by way of T where the types differ.
fn transfer<T: Compute>(to: &Array, from: &Array) -> Result<()> {
    let strides = expand(&from.shape, &from.strides, &to.shape);
    let nest = Nest::new(&to.shape, &to.strides, &to.strides, [&strides]);
    let cut = nest.cut(STRIP);
    let (place_to, place) = (nest.place(&cut, |a| a.to), nest.place(&cut, |a| a.from[0]));
    let len = cut.rows * cut.cols;
    let (mut block, mut raw) = (Scratch::<T>::new(len)?, Scratch::<u8>::new(8 * len)?);
    nest.pieces(&cut, |at, [start], rows, cols| {
        let n = rows * cols;
        fetch(from, from.offset + start, &place, rows, cols, &mut block[..n], &mut raw);
        // SAFETY: the arrays do not overlap.
        unsafe { store(&block[..n], to, to.offset + at, &place_to, rows, cols, &mut raw) };
    });
    Ok(())
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
            let y = run(Out(None), "add", &Add { alpha: Scalar::Int(2) }, [&a, &b]).unwrap();
            let dtype = promote([(p, a.rank()), (q, b.rank())]);
            assert_eq!(y.dtype, dtype);
            each_index(&y.shape, |i| assert_eq!(at(&y, i), stored(at(&a, i) + 2.0 * at(&b, i), dtype), "{a:?} {b:?} {y:?} at {i:?}"));
            let y = run_to(Out(None), "eq", DType::Bool, &Equal {}, [&a, &b]).unwrap();
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
        let k = Add { alpha: Scalar::Int(1) };
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
        assert!(run(Out(None), "div", &Quotient {}, [&a, &z]).unwrap_err().to_string().contains("ZeroDivisionError"));
        let ones = Array::number(Scalar::Int(-1)).unwrap();
        assert_eq!(run(Out(None), "div", &Quotient {}, [&a, &ones]).unwrap().to_vec(), [i64::MIN as f64, -7.]);
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
