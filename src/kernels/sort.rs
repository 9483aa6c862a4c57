//! Order: sorting, and what is found by sorting or by searching what is sorted.
//!
//! Every element type maps to an unsigned key of the same order (NaN last, -0 equal to 0, as torch has it); key and index are packed into
//! one integer, so that no two are equal: any order of equal elements would be a different number, and every result is stable. The work is
//! done on packed lines for two widths, whatever the element type; values are then fetched by index, so their bits survive.
use super::index::{computing, for_compute, room};
use super::pointwise::{cast, contiguous};
use crate::array::{Array, Fresh};
use crate::dtype::{DType, Element, Truth, for_dtype, promote};
use crate::error::{Error, Result, bail};
use crate::layout::Dims;
use half::{bf16, f16};
use std::cmp::Ordering;
use std::hint::select_unpredictable;

/// An element as an unsigned integer of the same order.
trait Ordered: Element {
    fn key(self) -> u64;
}
macro_rules! ordered { ($($t:ident $v:ident => $key:expr;)*) => { $(impl Ordered for $t {
    #[inline(always)]
    fn key(self) -> u64 { let $v = self; $key }
})* } }
ordered! {
    Truth v => (v.0 != 0) as u64;
    u8 v => v as u64;
    i8 v => (v as u8 ^ 0x80) as u64;
    i16 v => (v as u16 ^ 0x8000) as u64;
    i32 v => (v as u32 ^ 0x8000_0000) as u64;
    i64 v => v as u64 ^ (1 << 63);
    f16 v => half_key(v.to_bits(), v.to_bits() & 0x7fff > 0x7c00);
    bf16 v => half_key(v.to_bits(), v.to_bits() & 0x7fff > 0x7f80);
    f32 v => {
        let b = (v + 0.0).to_bits() as i32; // -0 + 0 is 0
        if v.is_nan() { u32::MAX as u64 } else { (b ^ ((b >> 31) | i32::MIN)) as u32 as u64 }
    };
    f64 v => {
        let b = (v + 0.0).to_bits() as i64;
        if v.is_nan() { u64::MAX } else { (b ^ ((b >> 63) | i64::MIN)) as u64 }
    };
}
#[inline(always)]
fn half_key(bits: u16, nan: bool) -> u64 {
    let b = if bits == 0x8000 { 0 } else { bits as i16 };
    if nan { u32::MAX as u64 } else { (b ^ ((b >> 15) | i16::MIN)) as u16 as u64 }
}

/// A key above an index.
trait Packed: Copy + Ord + Default {
    const DIGITS: usize;
    const LAST: Self;
    /// The key of NaN.
    const NAN: u64;
    fn pack(key: u64, index: usize) -> Self;
    fn key(self) -> u64;
    fn index(self) -> usize;
    /// A byte of the key, lowest first.
    fn digit(self, d: usize) -> usize;
}
/// Keys of up to 32 bits, in lines of fewer than 2^32 elements.
impl Packed for u64 {
    const DIGITS: usize = 4;
    const LAST: u64 = u64::MAX;
    const NAN: u64 = u32::MAX as u64;
    #[inline(always)]
    fn pack(key: u64, index: usize) -> u64 {
        key << 32 | index as u64
    }
    #[inline(always)]
    fn key(self) -> u64 {
        self >> 32
    }
    #[inline(always)]
    fn index(self) -> usize {
        self as u32 as usize
    }
    #[inline(always)]
    fn digit(self, d: usize) -> usize {
        (self >> (32 + 8 * d)) as u8 as usize
    }
}
impl Packed for u128 {
    const DIGITS: usize = 8;
    const LAST: u128 = u128::MAX;
    const NAN: u64 = u64::MAX;
    #[inline(always)]
    fn pack(key: u64, index: usize) -> u128 {
        (key as u128) << 64 | index as u128
    }
    #[inline(always)]
    fn key(self) -> u64 {
        (self >> 64) as u64
    }
    #[inline(always)]
    fn index(self) -> usize {
        self as u64 as usize
    }
    #[inline(always)]
    fn digit(self, d: usize) -> usize {
        ((self >> 64) as u64 >> (8 * d)) as u8 as usize
    }
}
/// How elements are packed.
#[derive(Clone, Copy)]
struct Packing {
    /// Keys upside down, so that the smallest packed is the greatest element, and among equals still the first.
    descending: bool,
    /// Taken off each key: where 64-bit integers span less than 2^32, they are packed as 32-bit ones.
    base: u64,
}
impl Packing {
    /// For an array of lines, and whether its keys are wide.
    fn of(a: &Array, descending: bool) -> (Packing, bool) {
        let short = a.shape.last().is_none_or(|&n| n < u32::MAX as usize);
        if a.dtype != DType::Int64 || a.numel() == 0 {
            return (Packing { descending, base: 0 }, a.dtype.size() == 8 || !short);
        }
        let (min, max) = a.slice::<i64>().iter().fold((i64::MAX, i64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
        let narrow = short && max.wrapping_sub(min) as u64 <= u32::MAX as u64;
        (Packing { descending, base: if narrow { min.key() } else { 0 } }, !narrow)
    }
    /// Packs `line.len()` elements of the storage from `at` on, the first of which has index `first`.
    fn pack<P: Packed>(self, a: &Array, at: usize, first: usize, line: &mut [P]) {
        let flip = if self.descending { P::NAN } else { 0 };
        for_dtype!(a.dtype, T => {
            let values = a.read::<T>(at, line.len());
            for (i, (p, v)) in line.iter_mut().zip(values).enumerate() {
                *p = P::pack((v.key() - self.base) ^ flip, first + i);
            }
        })
    }
}
/// Runs `$body` with `$p` standing for the packed type that the lines of `$a` need, and `$packing` for how they are packed.
macro_rules! for_packed {
    ($a:expr, $descending:expr, ($p:ident, $packing:ident) => $body:expr) => {{
        let ($packing, wide) = Packing::of($a, $descending);
        if wide {
            type $p = u128;
            $body
        } else {
            type $p = u64;
            $body
        }
    }};
}
/// What `sort_line` needs beside a line of `n`.
fn spare<P: Packed>(n: usize) -> Result<Vec<P>> {
    room(if n < RADIX { 0 } else { n })
}
/// Lines from here on are sorted byte by byte of the key, shorter ones by comparison.
const RADIX: usize = 512;
fn sort_line<P: Packed>(line: &mut [P], spare: &mut [P]) {
    if line.len() < RADIX {
        return line.sort_unstable();
    }
    if line.is_sorted() {
        return;
    }
    let mut counts = [[0usize; 256]; 8];
    for p in line.iter() {
        for (d, c) in counts[..P::DIGITS].iter_mut().enumerate() {
            c[p.digit(d)] += 1;
        }
    }
    let (mut from, mut to, mut swapped) = (&mut *line, spare, false);
    for (d, count) in counts[..P::DIGITS].iter_mut().enumerate() {
        if count[from[0].digit(d)] == from.len() {
            continue; // all have the same byte
        }
        let mut next = 0;
        for c in count.iter_mut() {
            next += std::mem::replace(c, next);
        }
        for &p in from.iter() {
            let place = &mut count[p.digit(d)];
            to[*place] = p;
            *place += 1;
        }
        std::mem::swap(&mut from, &mut to);
        swapped = !swapped;
    }
    if swapped {
        to.copy_from_slice(from);
    }
}

/// The array with `dim` last, row-major; one element for a 0-d array.
fn lines(a: &Array, dim: usize) -> Result<Array> {
    if a.ndim() == 0 {
        return Ok(a.view(Dims::of(&[1]), Dims::of(&[1]), a.offset));
    }
    contiguous(&swap_last(a, dim))
}
fn swap_last(a: &Array, dim: usize) -> Array {
    let last = a.ndim() - 1;
    a.view(a.shape.with(|s| s.swap(dim, last)), a.strides.with(|s| s.swap(dim, last)), a.offset)
}
/// A result made by lines of length `n`, in the shape that `like` has with `n` at `dim`.
fn unlines(made: Array, like: &Array, dim: usize) -> Result<Array> {
    if like.ndim() == 0 {
        return Ok(made.view(Dims::default(), Dims::default(), made.offset));
    }
    contiguous(&swap_last(&made, dim))
}
/// As `unlines` for one element a line.
fn reduced(made: Array, like: &Array, dim: usize, keep_dim: bool) -> Array {
    let shape = like.shape.with(|s| {
        if keep_dim {
            s.iter_mut().skip(dim).take(1).for_each(|n| *n = 1)
        } else if dim < s.len() {
            s.remove(dim);
        }
    });
    made.view(shape, shape.strides(), made.offset)
}
/// `shape` of an array of lines, with another length of each.
fn of_length(a: &Array, n: usize) -> Dims {
    a.shape.with(|s| s.iter_mut().last().into_iter().for_each(|l| *l = n))
}
/// Elements of lines by index within the line; both row-major, the same number of lines.
fn fetch(a: &Array, indices: &Array) -> Result<Array> {
    let mut to = Fresh::new(indices.shape, a.dtype)?;
    let (n, k) = (a.shape[a.ndim() - 1], indices.shape[indices.ndim() - 1]);
    if indices.numel() > 0 {
        for_dtype!(a.dtype, T => {
            let rows = a.slice::<T>().chunks_exact(n).zip(indices.slice::<i64>().chunks_exact(k));
            for (o, (line, index)) in to.slice_mut::<T>().chunks_exact_mut(k).zip(rows) {
                for (o, &i) in o.iter_mut().zip(index) {
                    *o = line[i as usize];
                }
            }
        });
    }
    Ok(to.done())
}
/// Gives each line, packed, to `choose`, which leaves the indices wanted (`k` of them) in the second slice.
fn choose<P: Packed>(a: &Array, packing: Packing, k: usize, mut choose: impl FnMut(&mut [P], &mut [i64])) -> Result<Array> {
    let mut to = Fresh::new(of_length(a, k), DType::Int64)?;
    let n = a.shape[a.ndim() - 1];
    let mut line = room(if a.numel() == 0 { 0 } else { n })?;
    if k > 0 && n > 0 {
        for (i, o) in to.slice_mut::<i64>().chunks_exact_mut(k).enumerate() {
            packing.pack(a, a.offset + i * n, 0, &mut line);
            choose(&mut line, o);
        }
    }
    Ok(to.done())
}
fn order(a: &Array, descending: bool) -> Result<Array> {
    let n = a.shape[a.ndim() - 1];
    for_packed!(a, descending, (P, packing) => {
        let mut spare = spare(n)?;
        choose::<P>(a, packing, n, |line, o| {
            sort_line(line, &mut spare);
            for (o, p) in o.iter_mut().zip(line) {
                *o = p.index() as i64;
            }
        })
    })
}
/// Values in order along `dim` and where they were. Always stable.
pub fn sort(a: &Array, dim: usize, descending: bool) -> Result<(Array, Array)> {
    let l = lines(a, dim)?;
    let indices = order(&l, descending)?;
    Ok((unlines(fetch(&l, &indices)?, a, dim)?, unlines(indices, a, dim)?))
}
pub fn argsort(a: &Array, dim: usize, descending: bool) -> Result<Array> {
    unlines(order(&lines(a, dim)?, descending)?, a, dim)
}
/// The `k` largest (or smallest) along `dim`, best first, and where they are; of equals the first.
pub fn topk(a: &Array, k: usize, dim: usize, largest: bool) -> Result<(Array, Array)> {
    if a.dtype == DType::Bool {
        bail!(Runtime, "topk does not support bool dtypes");
    }
    let l = lines(a, dim)?;
    let n = l.shape[l.ndim() - 1];
    if k > n {
        bail!(Runtime, "topk(): selected index k out of range: k is {k}, the dimension has {n} elements");
    }
    let k = if a.ndim() == 0 { 1 } else { k };
    let mut to = Fresh::new(of_length(&l, k), DType::Int64)?;
    if k > 0 {
        for_packed!(&l, largest, (P, packing) => {
            let mut best = Vec::new();
            for (i, o) in to.slice_mut::<i64>().chunks_exact_mut(k).enumerate() {
                least::<P>(&l, packing, l.offset + i * n, n, k, &mut best);
                best.sort_unstable();
                for (o, p) in o.iter_mut().zip(&best) {
                    *o = p.index() as i64;
                }
            }
        });
    }
    let indices = to.done();
    Ok((unlines(fetch(&l, &indices)?, a, dim)?, unlines(indices, a, dim)?))
}
/// The `k` least packed of a line, in no order: what is below the best bound so far is kept, and the list cut back to `k` when it is full.
fn least<P: Packed>(a: &Array, packing: Packing, at: usize, n: usize, k: usize, best: &mut Vec<P>) {
    const CHUNK: usize = 512;
    let (mut chunk, mut bound, full) = ([P::default(); CHUNK], P::LAST, (2 * k).max(CHUNK));
    best.clear();
    let cut = |best: &mut Vec<P>| {
        best.select_nth_unstable(k - 1);
        best.truncate(k);
        best[k - 1]
    };
    for start in (0..n).step_by(CHUNK) {
        let c = &mut chunk[..(n - start).min(CHUNK)];
        packing.pack(a, at + start, start, c);
        for &p in c.iter() {
            if p < bound {
                best.push(p);
                if best.len() == full {
                    bound = cut(best);
                }
            }
        }
    }
    cut(best);
}
fn need_elements(op: &'static str, l: &Array, dim: usize) -> Result<()> {
    if l.shape[l.ndim() - 1] == 0 {
        bail!(Index, "{op}(): Expected reduction dim {dim} to have non-zero size.");
    }
    Ok(())
}
/// For each line the element of the rank that `rank` says (it sees the packed line), and its index.
fn ranked(a: &Array, l: Array, dim: usize, keep_dim: bool, rank: impl Fn(usize, usize) -> usize) -> Result<(Array, Array)> {
    let float = l.dtype.is_float();
    let indices = for_packed!(&l, false, (P, packing) => choose::<P>(&l, packing, 1, |line, o| {
        let nans = if float { line.iter().filter(|p| p.key() == P::NAN).count() } else { 0 };
        let r = rank(line.len(), nans);
        o[0] = line.select_nth_unstable(r).1.index() as i64;
    }))?;
    Ok((reduced(fetch(&l, &indices)?, a, dim, keep_dim), reduced(indices, a, dim, keep_dim)))
}
/// The `k`th smallest along `dim` (from 1), and its index.
pub fn kthvalue(a: &Array, k: i64, dim: usize, keep_dim: bool) -> Result<(Array, Array)> {
    let l = lines(a, dim)?;
    need_elements("kthvalue", &l, dim)?;
    if !(1..=l.shape[l.ndim() - 1] as i64).contains(&k) {
        bail!(Runtime, "kthvalue(): selected number k out of range for dimension {dim}: k is {k}");
    }
    ranked(a, l, dim, keep_dim, |_, _| k as usize - 1)
}
/// The lower median along `dim` and its index; the first NaN where there is one, unless `skip_nan` leaves them out.
pub fn median(a: &Array, dim: usize, keep_dim: bool, skip_nan: bool) -> Result<(Array, Array)> {
    if a.dtype == DType::Bool {
        return Err(Box::new(Error::Unsupported { op: "median", dtype: a.dtype }));
    }
    let l = lines(a, dim)?;
    need_elements("median", &l, dim)?;
    ranked(a, l, dim, keep_dim, |n, nans| match n - nans {
        some if nans > 0 && !skip_nan => some,
        some => some.saturating_sub(1) / 2,
    })
}
/// The median of all elements; of none NaN (the smallest integer).
pub fn median_all(a: &Array, skip_nan: bool) -> Result<Array> {
    if a.numel() == 0 && a.dtype != DType::Bool {
        let none = if a.dtype.is_float() { f64::NAN.into() } else { i64::MIN.into() };
        return Array::scalar(none, a.dtype);
    }
    Ok(median(&flat(a)?, 0, false, skip_nan)?.0)
}
/// The most frequent value along `dim`, the least of several, and the last place it stands at.
pub fn mode(a: &Array, dim: usize, keep_dim: bool) -> Result<(Array, Array)> {
    let l = lines(a, dim)?;
    need_elements("mode", &l, dim)?;
    let float = l.dtype.is_float();
    let n = l.shape[l.ndim() - 1];
    let indices = for_packed!(&l, false, (P, packing) => {
        let mut spare = spare(n)?;
        choose::<P>(&l, packing, 1, |line, o| {
            sort_line(line, &mut spare);
            let mut most = 0;
            for run in line.chunk_by(|p, q| p.key() == q.key() && !(float && p.key() == P::NAN)) {
                if run.len() > most {
                    most = run.len();
                    o[0] = run[most - 1].index() as i64;
                }
            }
        })
    })?;
    Ok((reduced(fetch(&l, &indices)?, a, dim, keep_dim), reduced(indices, a, dim, keep_dim)))
}

/// All elements in order of the index, row-major.
fn flat(a: &Array) -> Result<Array> {
    let c = contiguous(a)?;
    Ok(c.view(Dims::of(&[c.numel()]), Dims::of(&[1]), c.offset))
}
/// Distinct values (or slices), for each element the place of its value among them, and how often each occurs.
pub struct Unique {
    pub values: Array,
    pub inverse: Array,
    pub counts: Array,
}
/// Distinct elements, sorted. Every NaN is distinct. `inverse` has the shape of `a`.
pub fn unique(a: &Array) -> Result<Unique> {
    let (rows, float) = (flat(a)?, a.dtype.is_float());
    for_packed!(&rows, false, (P, packing) => {
        let (mut line, mut spare): (Vec<P>, Vec<P>) = (room(rows.numel())?, spare(rows.numel())?);
        packing.pack(&rows, rows.offset, 0, &mut line);
        sort_line(&mut line, &mut spare);
        let same = |p: &P, q: &P| p.key() == q.key() && !(float && p.key() == P::NAN);
        let starts = starts(line.len(), |i| !same(&line[i], &line[i - 1]));
        Unique::of(&rows, a.shape, &starts, |i| line[i].index())
    })
}
/// Elements that differ from the one before them.
pub fn unique_consecutive(a: &Array) -> Result<Unique> {
    let rows = flat(a)?;
    Unique::of(&rows, a.shape, &changes(&rows, &|i| i), |i| i)
}
/// Distinct slices along `dim`, in lexicographic order.
pub fn unique_dim(a: &Array, dim: usize) -> Result<Unique> {
    slices(a, dim, |rows| {
        let (m, mut sorted) = (rows.shape[1], (0..rows.shape[0]).collect::<Vec<_>>());
        for_dtype!(rows.dtype, T => {
            let s = rows.slice::<T>();
            let row = |i: usize| s[i * m..][..m].iter().map(|v| v.key());
            let compare: &dyn Fn(&usize, &usize) -> Ordering = &|&i, &j| row(i).cmp(row(j)); // one sort for all types
            sorted.sort_by(compare);
        });
        sorted
    })
}
/// Slices along `dim` that differ from the one before them.
pub fn unique_consecutive_dim(a: &Array, dim: usize) -> Result<Unique> {
    slices(a, dim, |rows| (0..rows.shape[0]).collect())
}
fn slices(a: &Array, dim: usize, order: impl FnOnce(&Array) -> Vec<usize>) -> Result<Unique> {
    if a.ndim() == 0 {
        bail!(Index, "unique(): Dimension specified as {dim} but tensor has no dimensions");
    }
    let swapped = |x: &Array| x.view(x.shape.with(|s| s.swap(0, dim)), x.strides.with(|s| s.swap(0, dim)), x.offset);
    let c = contiguous(&swapped(a))?;
    let (n, m) = (c.shape[0], c.shape[1..].iter().product());
    if m == 0 && n > 0 {
        bail!(Runtime, "unique(): There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
    }
    let rows = c.view(Dims::of(&[n, m]), Dims::of(&[m, 1]), c.offset);
    let order = order(&rows);
    let u = Unique::of(&rows, Dims::of(&[n]), &changes(&rows, &|i| order[i]), |i| order[i])?;
    let shape = c.shape.with(|s| s[0] = u.counts.numel());
    Ok(Unique { values: contiguous(&swapped(&u.values.view(shape, shape.strides(), 0)))?, ..u })
}
/// The places in `0..n` where a run starts.
fn starts(n: usize, differs: impl Fn(usize) -> bool) -> Vec<usize> {
    (0..n).filter(|&i| i == 0 || differs(i)).collect()
}
/// Where rows, read in an order, differ from the one before.
fn changes(rows: &Array, at: &dyn Fn(usize) -> usize) -> Vec<usize> {
    let m: usize = rows.shape[1..].iter().product();
    for_dtype!(rows.dtype, T => {
        let s = rows.slice::<T>();
        let row = |i: usize| &s[at(i) * m..][..m];
        starts(rows.shape[0], |i| row(i) != row(i - 1))
    })
}
impl Unique {
    /// From the starts of runs of equal rows, read in the order `at`.
    fn of(rows: &Array, shape: Dims, starts: &[usize], at: impl Fn(usize) -> usize) -> Result<Unique> {
        let (n, m): (usize, usize) = (rows.shape[0], rows.shape[1..].iter().product());
        let mut values = Fresh::new(rows.shape.with(|s| s[0] = starts.len()), rows.dtype)?;
        for_dtype!(rows.dtype, T => {
            let s = rows.slice::<T>();
            for (o, &i) in values.slice_mut::<T>().chunks_exact_mut(m.max(1)).zip(starts) {
                o.copy_from_slice(&s[at(i) * m..][..m]);
            }
        });
        let (mut inverse, mut counts) = (Fresh::new(shape, DType::Int64)?, Fresh::new(Dims::of(&[starts.len()]), DType::Int64)?);
        let (of, lengths) = (inverse.slice_mut::<i64>(), counts.slice_mut::<i64>());
        for (run, &start) in starts.iter().enumerate() {
            let end = starts.get(run + 1).copied().unwrap_or(n);
            lengths[run] = (end - start) as i64;
            for i in start..end {
                of[at(i)] = run as i64;
            }
        }
        Ok(Unique { values: values.done(), inverse: inverse.done(), counts: counts.done() })
    }
}

/// Row-major, in the type that `dtype` is computed in.
fn in_compute(a: &Array, dtype: DType) -> Result<Array> {
    if a.dtype == computing(dtype) { contiguous(a) } else { cast(a, computing(dtype)) }
}
/// Where each of `values` would go in `sorted` (the last dimension of both; the others match, or `sorted` has one dimension): before its
/// equals, or behind them (`right`). `sorter`: the order in which `sorted` is sorted.
#[expect(clippy::neg_cmp_op_on_partial_ord, clippy::nonminimal_bool, reason = "NaN")]
pub fn searchsorted(sorted: &Array, values: &Array, right: bool, sorter: Option<&Array>, dtype: DType) -> Result<Array> {
    let Some(&n) = sorted.shape.last() else {
        bail!(Runtime, "searchsorted(): boundaries tensor should have positive dimension, but got 0 dimension");
    };
    let (lead, outer) = (&sorted.shape[..sorted.ndim() - 1], values.shape.len().checked_sub(1).map_or(&[][..], |k| &values.shape[..k]));
    if sorted.ndim() > 1 && (lead != outer || values.ndim() == 0) {
        bail!(
            Runtime,
            "searchsorted(): boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries tensor and input value tensor must match, but we got boundaries tensor {:?} and input value tensor {:?}",
            sorted.shape,
            values.shape
        );
    }
    let common = promote([(sorted.dtype, sorted.rank()), (values.dtype, values.rank())]);
    let mut s = in_compute(sorted, common)?;
    if let Some(sorter) = sorter {
        if sorter.shape != sorted.shape {
            bail!(
                Runtime,
                "searchsorted(): boundary and sorter must have the same size, but got boundary tensor {:?} and got sorter tensor {:?}",
                sorted.shape,
                sorter.shape
            );
        }
        if sorter.dtype != DType::Int64 {
            bail!(Runtime, "searchsorted(): sorter must be a tensor of long dtype but got dtype {}", sorter.dtype.name());
        }
        let sorter = contiguous(sorter)?;
        if let Some(i) = sorter.slice::<i64>().iter().find(|i| !(0..n as i64).contains(*i)) {
            bail!(Runtime, "searchsorted(): sorter index out of range: {i}, for {n} boundaries");
        }
        s = fetch(&s, &sorter)?;
    }
    let v = in_compute(values, common)?;
    let per = if sorted.ndim() == 1 { v.numel() } else { v.shape[v.ndim() - 1] };
    let mut to = Fresh::new(values.shape, DType::Int64)?;
    if per > 0 {
        for_compute!(common, T => {
            let (s, o) = (s.slice::<T>(), to.slice_mut::<i64>());
            for (line, (o, v)) in o.chunks_exact_mut(per).zip(v.slice::<T>().chunks_exact(per)).enumerate() {
                let s = if sorted.ndim() == 1 { s } else { &s[line * n..][..n] };
                // Not "before" but "not behind": so NaN goes behind everything.
                if right { places(s, v, o, |s, v| !(s > v)) } else { places(s, v, o, |s, v| !(s >= v)) }
            }
        });
    }
    if dtype == DType::Int64 { Ok(to.done()) } else { cast(&to.done(), dtype) }
}
/// For each of `values` how many of `sorted` go before it: binary searches side by side, so that their waits for memory overlap.
fn places<T: Copy>(sorted: &[T], values: &[T], to: &mut [i64], before: impl Fn(T, T) -> bool) {
    const SIDE: usize = 8;
    let Some(&last) = sorted.last() else { return to.fill(0) };
    for (o, v) in to.chunks_mut(SIDE).zip(values.chunks(SIDE)) {
        let (mut at, mut wanted, mut n) = ([0; SIDE], [last; SIDE], sorted.len());
        wanted[..v.len()].copy_from_slice(v);
        while n > 1 {
            let half = n / 2;
            for (at, &v) in at.iter_mut().zip(&wanted) {
                *at = select_unpredictable(before(sorted[*at + half - 1], v), *at + half, *at);
            }
            n -= half;
        }
        for ((o, at), &v) in o.iter_mut().zip(at).zip(&wanted) {
            *o = (at + before(sorted[at], v) as usize) as i64;
        }
    }
}
/// `searchsorted` in one list of boundaries.
pub fn bucketize(values: &Array, boundaries: &Array, right: bool, dtype: DType) -> Result<Array> {
    if boundaries.ndim() != 1 {
        bail!(Runtime, "bucketize(): boundaries tensor must be 1 dimension, but got dim({})", boundaries.ndim());
    }
    searchsorted(boundaries, values, right, None, dtype)
}
/// How many elements fall in each of `bins` equal parts of [lo, hi], as the dtype of `a`; those outside and NaN are not counted. Equal
/// bounds: the least and the greatest element.
pub fn histc(a: &Array, bins: i64, lo: f64, hi: f64) -> Result<Array> {
    if !matches!(a.dtype, DType::Float32 | DType::Float64) {
        return Err(Box::new(Error::Unsupported { op: "histc", dtype: a.dtype }));
    }
    if bins <= 0 {
        bail!(Runtime, "histc(): bins must be > 0, but got {bins}");
    }
    let x = flat(a)?;
    let (mut lo, mut hi) = (lo, hi);
    if lo == hi && x.numel() > 0 {
        let v = x.to_vec();
        let wild = v.iter().find(|v| v.is_nan());
        (lo, hi) = wild.map_or_else(|| v.iter().fold((v[0], v[0]), |(l, h), &v| (v.min(l), v.max(h))), |&nan| (nan, nan));
    }
    if lo == hi {
        (lo, hi) = (lo - 1.0, hi + 1.0);
    }
    if !(lo.is_finite() && hi.is_finite()) {
        bail!(Runtime, "histc: range of [{lo}, {hi}] is not finite");
    }
    if lo > hi {
        bail!(Runtime, "histc: max must be larger than min, got [{lo}, {hi}]");
    }
    let mut counts = vec![0i64; Dims::of(&[bins as usize]).checked_numel()?];
    macro_rules! count {
        ($t:ident) => {{
            let (lo, hi) = (lo as $t, hi as $t);
            for &v in x.slice::<$t>().iter().filter(|v| (lo..=hi).contains(*v)) {
                counts[(((v - lo) / (hi - lo) * bins as $t) as usize).min(bins as usize - 1)] += 1;
            }
        }};
    }
    if a.dtype == DType::Float32 {
        count!(f32)
    } else {
        count!(f64)
    }
    cast(&Array::from_slice(&[counts.len()], &counts)?, a.dtype)
}
/// Whether each element of `a` is among `test` (`invert`: is not). NaN is in nothing.
pub fn isin(a: &Array, test: &Array, invert: bool) -> Result<Array> {
    let common = promote([(a.dtype, a.rank()), (test.dtype, test.rank())]);
    let (x, test) = (in_compute(a, common)?, in_compute(test, common)?);
    let mut to = Fresh::new(a.shape, DType::Bool)?;
    for_compute!(common, T => {
        let mut keys: Vec<u64> = test.slice::<T>().iter().filter(|v| v.partial_cmp(v).is_some()).map(|v| v.key()).collect();
        keys.sort_unstable();
        keys.dedup();
        for (o, v) in to.slice_mut::<Truth>().iter_mut().zip(x.slice::<T>()) {
            let found = v.partial_cmp(v).is_some() && keys.binary_search(&v.key()).is_ok();
            *o = Truth((found != invert) as u8);
        }
    });
    Ok(to.done())
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    const NAN: f64 = f64::NAN;
    fn arr(shape: &[usize], v: &[f64], dtype: DType) -> Array {
        cast(&Array::from_slice(shape, v).unwrap(), dtype).unwrap()
    }
    fn flat64(v: &[f64]) -> Array {
        arr(&[v.len()], v, Float64)
    }
    fn same(a: &Array, expected: &[f64]) {
        let a = a.to_vec();
        assert!(
            a.len() == expected.len() && a.iter().zip(expected).all(|(a, e)| a == e || (a.is_nan() && e.is_nan())),
            "{a:?} {expected:?}"
        );
    }
    fn pair(r: Result<(Array, Array)>, values: &[f64], indices: &[f64]) {
        let (v, i) = r.unwrap();
        same(&v, values);
        same(&i, indices);
        assert_eq!((v.shape, i.dtype), (i.shape, Int64));
    }
    /// Numbers of a small range, so that there are equal ones; some NaN among floats.
    fn noise(n: usize, dtype: DType, seed: u64) -> Vec<f64> {
        let mut g = super::super::random::Generator::new(seed);
        let v = |w: u32| {
            if dtype.is_float() && w.is_multiple_of(11) { NAN } else { (w % 101) as f64 - if dtype.is_signed() { 50.0 } else { 0.0 } }
        };
        (0..n).map(|_| v(g.random())).map(|v| if dtype == Bool { (v as i64 % 2) as f64 } else { v }).collect()
    }
    /// The order that torch sorts in: NaN last, stable.
    fn plain_order(v: &[f64], descending: bool) -> Vec<usize> {
        let mut o: Vec<usize> = (0..v.len()).collect();
        let up = |a: f64, b: f64| a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(&b).unwrap_or(Ordering::Equal));
        o.sort_by(|&i, &j| if descending { up(v[j], v[i]) } else { up(v[i], v[j]) });
        o
    }
    #[test]
    fn every_dtype_sorts_as_a_plain_stable_sort() {
        for dtype in DType::ALL {
            for n in [1, 2, 7, 64, RADIX - 1, RADIX, 3000] {
                let v = noise(n, dtype, n as u64);
                let a = arr(&[n], &v, dtype);
                for descending in [false, true] {
                    let o = plain_order(&v, descending);
                    pair(
                        sort(&a, 0, descending),
                        &o.iter().map(|&i| v[i]).collect::<Vec<_>>(),
                        &o.iter().map(|&i| i as f64).collect::<Vec<_>>(),
                    );
                    same(&argsort(&a, 0, descending).unwrap(), &o.iter().map(|&i| i as f64).collect::<Vec<_>>());
                }
            }
        }
    }
    #[test]
    fn extreme_values_keep_their_order() {
        let i = [i64::MAX, i64::MIN, 0, -1, 1, i64::MAX - 1];
        let (v, at) = sort(&Array::from_slice(&[6], &i).unwrap(), 0, false).unwrap();
        assert_eq!(v.slice::<i64>(), [i64::MIN, -1, 0, 1, i64::MAX - 1, i64::MAX]);
        same(&at, &[1., 3., 2., 4., 5., 0.]);
        let (v, _) = sort(&Array::from_slice(&[3], &[i64::MAX - 3, i64::MAX, i64::MAX - 5]).unwrap(), 0, true).unwrap();
        assert_eq!(v.slice::<i64>(), [i64::MAX, i64::MAX - 3, i64::MAX - 5]);
        for dtype in [Float16, BFloat16, Float32, Float64] {
            let v = [1.0, NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, -1e-3];
            let a = arr(&[7], &v, dtype);
            let (values, at) = sort(&a, 0, false).unwrap();
            same(&at, &[5., 6., 2., 3., 0., 4., 1.]);
            assert!(values.to_vec()[3].is_sign_negative(), "-0 comes out as it went in");
            same(&sort(&a, 0, true).unwrap().1, &[1., 4., 0., 2., 3., 6., 5.]);
        }
    }
    #[test]
    fn any_dimension_and_layout_is_sorted() {
        let v = noise(4 * 5 * 6, Float32, 9);
        let a = arr(&[4, 5, 6], &v, Float32);
        let t = a.view(Dims::of(&[6, 4, 5]), Dims::of(&[1, 30, 6]), 0);
        for a in [a, t] {
            for dim in 0..3 {
                let (values, at) = sort(&a, dim, false).unwrap();
                assert_eq!(values.shape, a.shape);
                let (n, mut index) = (a.shape[dim], vec![0; 3]);
                for line in 0..a.numel() / n {
                    let mut rest = line;
                    for d in (0..3).filter(|&d| d != dim) {
                        (index[d], rest) = (rest % a.shape[d], rest / a.shape[d]);
                    }
                    let mut read = |x: &Array| {
                        (0..n)
                            .map(|i| {
                                index[dim] = i;
                                x.item_at(&index).to_f64()
                            })
                            .collect::<Vec<_>>()
                    };
                    let (before, values, at) = (read(&a), read(&values), read(&at));
                    let o = plain_order(&before, false);
                    assert!(o.iter().zip(&at).all(|(&i, &j)| i as f64 == j));
                    assert!(o.iter().zip(&values).all(|(&i, v)| before[i] == *v || v.is_nan()));
                }
            }
        }
        pair(sort(&Array::scalar(3.0.into(), Float32).unwrap(), 0, false), &[3.], &[0.]);
        for shape in [[0, 3], [3, 0]] {
            for dim in 0..2 {
                assert_eq!(&*sort(&arr(&shape, &[], Float32), dim, true).unwrap().0.shape, &shape);
            }
        }
    }
    #[test]
    fn topk_gives_the_head_of_the_order() {
        for (n, k) in [(5, 5), (100, 3), (5000, 1), (5000, 700), (600, 600), (7, 0)] {
            for largest in [false, true] {
                let v = noise(n, Float32, k as u64);
                let o = plain_order(&v, largest);
                let o = &o[..k];
                pair(
                    topk(&arr(&[n], &v, Float32), k, 0, largest),
                    &o.iter().map(|&i| v[i]).collect::<Vec<_>>(),
                    &o.iter().map(|&i| i as f64).collect::<Vec<_>>(),
                );
            }
        }
        pair(topk(&arr(&[2, 3], &[3., 1., 2., 4., 6., 5.], Int64), 1, 0, true), &[4., 6., 5.], &[1., 1., 1.]);
        pair(topk(&Array::scalar(3.0.into(), Float32).unwrap(), 0, 0, true), &[3.], &[0.]);
        assert_eq!(&*topk(&arr(&[2, 0], &[], Float32), 0, 1, true).unwrap().0.shape, &[2, 0]);
        assert!(topk(&flat64(&[1., 2.]), 3, 0, true).is_err());
    }
    #[test]
    fn ranks_follow_torchs_rules_for_nan() {
        pair(kthvalue(&flat64(&[3., NAN, 2.]), 3, 0, false), &[NAN], &[1.]);
        pair(kthvalue(&arr(&[2, 3], &[3., 1., 2., 4., 6., 5.], Int32), 2, 1, true), &[2., 5.], &[2., 2.]);
        pair(median(&arr(&[4], &[3., 1., 2., 4.], Int64), 0, false, false), &[2.], &[2.]);
        pair(median(&flat64(&[3., NAN, 2., NAN]), 0, false, false), &[NAN], &[1.]);
        pair(median(&flat64(&[3., NAN, 2., NAN]), 0, false, true), &[2.], &[2.]);
        pair(median(&flat64(&[NAN, NAN]), 0, true, true), &[NAN], &[0.]);
        same(&median_all(&arr(&[2, 2], &[3., 1., 2., 4.], Float16), false).unwrap(), &[2.]);
        same(&median_all(&arr(&[0], &[], Float32), false).unwrap(), &[NAN]);
        same(&median_all(&arr(&[0], &[], Int64), false).unwrap(), &[i64::MIN as f64]);
        for (v, value, at) in [(vec![2., 1., 1., 2., 3., 1.], 1., 5.), (vec![3., 3., 1., 1.], 1., 3.), (vec![NAN, 1., 1., NAN], 1., 2.)] {
            pair(mode(&flat64(&v), 0, false), &[value], &[at]);
        }
        let none = arr(&[2, 0], &[], Float32);
        assert!(kthvalue(&none, 1, 1, false).is_err() && median(&none, 1, false, false).is_err() && mode(&none, 1, false).is_err());
        assert!(kthvalue(&flat64(&[1.]), 0, 0, false).is_err() && kthvalue(&flat64(&[1.]), 2, 0, false).is_err());
        assert_eq!(median(&none, 0, false, false).unwrap().0.numel(), 0);
        assert_eq!(&*median(&arr(&[2, 3], &[0.; 6], Float32), 0, true, false).unwrap().0.shape, &[1, 3]);
    }
    fn distinct(u: Result<Unique>, values: &[f64], inverse: &[f64], counts: &[f64]) {
        let u = u.unwrap();
        same(&u.values, values);
        same(&u.inverse, inverse);
        same(&u.counts, counts);
    }
    #[test]
    fn distinct_values_are_found() {
        distinct(unique(&flat64(&[NAN, 1., NAN, 0., -0.])), &[0., 1., NAN, NAN], &[2., 1., 3., 0., 0.], &[2., 1., 1., 1.]);
        distinct(unique(&arr(&[2, 2], &[2., 1., 2., 9.], Int64)), &[1., 2., 9.], &[1., 0., 1., 2.], &[1., 2., 1.]);
        distinct(unique(&arr(&[0], &[], Float32)), &[], &[], &[]);
        distinct(unique(&Array::scalar(2.0.into(), Float32).unwrap()), &[2.], &[0.], &[1.]);
        distinct(unique_consecutive(&arr(&[5], &[1., 1., 2., 2., 1.], UInt8)), &[1., 2., 1.], &[0., 0., 1., 1., 2.], &[2., 2., 1.]);
        let rows = arr(&[3, 2], &[1., 2., 1., 2., 0., 5.], Int64);
        distinct(unique_dim(&rows, 0), &[0., 5., 1., 2.], &[1., 1., 0.], &[1., 2.]);
        distinct(unique_dim(&rows, 1), &[1., 2., 1., 2., 0., 5.], &[0., 1.], &[1., 1.]);
        distinct(unique_consecutive_dim(&arr(&[3, 2], &[1., 1., 1., 1., 2., 1.], Float32), 0), &[1., 1., 2., 1.], &[0., 0., 1.], &[2., 1.]);
        distinct(unique_dim(&arr(&[2, 2], &[NAN, 1., NAN, 1.], Float32), 0), &[NAN, 1., NAN, 1.], &[0., 1.], &[1., 1.]);
        assert_eq!(&*unique_dim(&arr(&[0, 2], &[], Float32), 0).unwrap().values.shape, &[0, 2]);
        assert!(
            unique_dim(&arr(&[2, 0], &[], Float32), 0).is_err() && unique_dim(&Array::scalar(2.0.into(), Float32).unwrap(), 0).is_err()
        );
        let v = noise(4000, Int32, 3);
        let u = unique(&arr(&[4000], &v, Int32)).unwrap();
        let values = u.values.to_vec();
        assert!(values.is_sorted_by(|a, b| a < b) && u.inverse.to_vec().iter().zip(&v).all(|(&i, &v)| values[i as usize] == v));
        assert_eq!(u.counts.to_vec().iter().sum::<f64>(), 4000.0);
    }
    #[test]
    fn places_among_sorted_boundaries() {
        let find = |s: &[f64], v: &[f64], right: bool| searchsorted(&flat64(s), &flat64(v), right, None, Int64).unwrap();
        same(&find(&[1., 3., 5.], &[3., 6., 0., NAN], false), &[1., 3., 0., 3.]);
        same(&find(&[1., 3., 5.], &[3., 6., 0., NAN], true), &[2., 3., 0., 3.]);
        same(&find(&[1., 3., NAN], &[NAN, 6.], false), &[3., 3.]);
        same(&find(&[], &[3.], false), &[0.]);
        for n in 1..40 {
            let s: Vec<f64> = (0..n).map(|i| (i / 2 * 2) as f64).collect();
            let v: Vec<f64> = (-1..=n).map(|i| i as f64).collect();
            same(&find(&s, &v, false), &v.iter().map(|v| s.iter().filter(|s| *s < v).count() as f64).collect::<Vec<_>>());
            same(&find(&s, &v, true), &v.iter().map(|v| s.iter().filter(|s| *s <= v).count() as f64).collect::<Vec<_>>());
        }
        let s = arr(&[2, 3], &[1., 3., 5., 2., 4., 6.], Int64);
        let r = searchsorted(&s, &arr(&[2, 1], &[3.5, 3.5], Float32), false, None, Int32).unwrap();
        assert_eq!(r.dtype, Int32);
        same(&r, &[2., 1.]);
        let unsorted = arr(&[3], &[5., 1., 3.], Int64);
        let three = arr(&[1], &[3.], Int64);
        same(&searchsorted(&unsorted, &three, false, Some(&arr(&[3], &[1., 2., 0.], Int64)), Int64).unwrap(), &[1.]);
        for sorter in [arr(&[3], &[1., 2., 7.], Int64), arr(&[2], &[1., 2.], Int64), arr(&[3], &[1., 2., 0.], Int32)] {
            assert!(searchsorted(&unsorted, &three, false, Some(&sorter), Int64).is_err());
        }
        assert!(
            searchsorted(&s, &three, false, None, Int64).is_err()
                && searchsorted(&Array::number(1.0.into()).unwrap(), &three, false, None, Int64).is_err()
        );
        same(&bucketize(&Array::number(3.5.into()).unwrap(), &flat64(&[1., 3., 5.]), false, Int64).unwrap(), &[2.]);
        assert!(bucketize(&three, &s, false, Int64).is_err());
    }
    #[test]
    fn counts_and_membership() {
        let h = |v: &[f64], bins, lo, hi| histc(&flat64(v), bins, lo, hi);
        same(&h(&[1., 2., 1.], 4, 0., 3.).unwrap(), &[0., 2., 1., 0.]);
        same(&h(&[1., 2., 1.], 4, 0., 0.).unwrap(), &[2., 0., 0., 1.]);
        same(&h(&[1., 1.], 4, 0., 0.).unwrap(), &[0., 0., 2., 0.]);
        same(&h(&[1., 2., NAN], 4, 0., 3.).unwrap(), &[0., 1., 1., 0.]);
        same(&h(&[], 3, 0., 0.).unwrap(), &[0.; 3]);
        assert!(
            h(&[1., NAN], 4, 0., 0.).is_err()
                && h(&[1.], 0, 0., 0.).is_err()
                && h(&[1.], 2, 3., 0.).is_err()
                && h(&[1.], 2, 0., f64::INFINITY).is_err()
        );
        let among = |a: &[f64], t: &Array, invert| isin(&flat64(a), t, invert).unwrap();
        same(&among(&[1., 2., NAN], &flat64(&[NAN, 2.]), false), &[0., 1., 0.]);
        same(&among(&[1., 2., NAN], &flat64(&[NAN, 2.]), true), &[1., 0., 1.]);
        same(&among(&[1., 2.], &arr(&[0], &[], Int64), false), &[0., 0.]);
        same(&isin(&arr(&[2], &[1., 2.], Int64), &flat64(&[2.5, 2.]), false).unwrap(), &[0., 1.]);
    }
}
