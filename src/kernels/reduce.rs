//! Reductions over any set of axes of an array of any layout.
//!
//! The walker (`Plan`, `Block`) takes the axes in the order in which they lie in memory, merges those that allow it, and works through the
//! results block by block: where the innermost axis is folded a line becomes one number, where it is kept rows are folded into a block of
//! numbers; elements of another type, or not next to each other, are gathered first. A block may be folded more than once, with what the
//! previous pass found (`var_mean`, `logsumexp`), while it is still in the cache. What is folded, and how exactly, is `fold`'s affair.
//!
//! The bits of a float result depend on shape and layout, never on the instruction set, the number of threads or earlier calls.
use super::fold::*;
use super::nest::Place;
use super::pointwise::{self, Part};
use super::simd::simd;
use crate::array::{Array, Fresh};
use crate::dtype::{DType, Element, Scalar};
use crate::error::{Result, bail};
use crate::layout::Dims;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// The axes to fold, each counted from the front.
#[derive(Clone, Copy)]
pub enum Axes<'a> {
    All,
    Of(&'a [usize]),
}

/// Elements of gathered lines: they stay in the first-level cache.
const TILE: usize = 4096;
/// Elements of gathered rows: enough rows of a block to be folded several at once.
const ROWS_TILE: usize = 8 * BLOCK;
/// A folded innermost axis shorter than this is gathered across lines: a call per line would cost more than its elements.
const SHORT: usize = 32;
/// Most results of a block of lines.
const LINES: usize = 64;
/// Most results of a block of rows; their accumulators stay in the cache while rows stream by.
const BLOCK: usize = 2048;
/// Fewer results than this are repeated side by side to fill the vector registers.
const NARROW: usize = 128;

/// A loop over the operand: its length, and its steps in the operand and (where kept) in the result.
#[derive(Clone, Copy)]
struct Axis {
    len: usize,
    step: usize,
    out: usize,
}
const ONE: Axis = Axis { len: 1, step: 0, out: 0 };
type Loops = SmallVec<[Axis; 4]>;
/// The loops of a reduction, slowest in memory first, merged where they may be; neither list is empty.
struct Plan {
    kept: Loops,
    folded: Loops,
    /// Shape of the result, folded axes of length 1 included where kept.
    shape: Dims,
    /// How many elements become one.
    count: usize,
}
impl Plan {
    fn new(a: &Array, axes: Axes<'_>, keepdim: bool) -> Plan {
        let n = a.ndim();
        let folded = match axes {
            Axes::All => u64::MAX,
            Axes::Of(dims) => dims.iter().fold(0, |m, &d| m | 1 << d),
        };
        let is_folded = |i: usize| folded >> i & 1 == 1;
        let shape = if keepdim {
            (0..n).map(|i| if is_folded(i) { 1 } else { a.shape[i] }).collect()
        } else {
            (0..n).filter(|&i| !is_folded(i)).map(|i| a.shape[i]).collect()
        };
        let mut axes: SmallVec<[(bool, Axis); 6]> = SmallVec::new();
        let (mut out, mut count) = (1, 1);
        for i in (0..n).rev() {
            axes.push((is_folded(i), Axis { len: a.shape[i], step: a.strides[i], out }));
            *if is_folded(i) { &mut count } else { &mut out } *= a.shape[i];
        }
        axes.reverse();
        axes.sort_by_key(|x| std::cmp::Reverse(x.1.step.wrapping_sub(1))); // stable; repeated axes (step 0) outermost
        let mut plan = Plan { kept: Loops::new(), folded: Loops::new(), shape, count };
        for (is_folded, x) in axes.into_iter().filter(|x| x.1.len != 1) {
            let list = if is_folded { &mut plan.folded } else { &mut plan.kept };
            match list.last_mut() {
                Some(o) if o.step == x.step * x.len && (is_folded || o.out == x.out * x.len) => *o = Axis { len: o.len * x.len, ..x },
                _ => list.push(x),
            }
        }
        for list in [&mut plan.kept, &mut plan.folded] {
            if list.is_empty() {
                list.push(ONE);
            }
        }
        plan
    }
    /// The kept loop along which results form a block: the innermost, unless it is short and not part of a contiguous tile with the
    /// innermost folded one; then the longest.
    fn block_axis(&self) -> usize {
        let (last, r) = (self.kept.len() - 1, self.folded[self.folded.len() - 1]);
        let k = self.kept[last];
        if k.len >= 16 || (r.step == k.len * k.step && k.len * r.len >= 512) {
            return last;
        }
        (0..=last).rev().max_by_key(|&i| self.kept[i].len).unwrap_or(last)
    }
}
/// Calls `f` for each index of loops, with the steps taken in the operand and in the result.
fn each_index(loops: &[Axis], mut f: impl FnMut(usize, usize)) {
    let mut index: SmallVec<[usize; 4]> = smallvec![0; loops.len()];
    let (mut at, mut out) = (0, 0);
    loop {
        f(at, out);
        let mut i = loops.len();
        loop {
            if i == 0 {
                return;
            }
            i -= 1;
            let x = loops[i];
            (index[i], at, out) = (index[i] + 1, at + x.step, out + x.out);
            if index[i] < x.len {
                break;
            }
            (index[i], at, out) = (0, at - x.len * x.step, out - x.len * x.out);
        }
    }
}

/// Elements of a block's results, contiguous and of the compute type.
enum Piece<'p, T> {
    /// A line of `len` elements, `stride` apart, for each of the results `of`, the first element `at` steps along the innermost folded axis.
    Lines { of: Range<usize>, at: usize, x: &'p [T], stride: usize, len: usize },
    /// Rows of one element a result, `stride` apart, the first of them `at` steps along that axis.
    Rows { at: usize, x: &'p [T], stride: usize },
}
/// Some results that follow each other along a kept axis, and where their elements are.
struct Block<'p, T: Lane> {
    a: &'p Array,
    at: usize,
    /// How many results.
    len: usize,
    /// Step in the operand from result to result.
    step: usize,
    /// Is each result's innermost loop run on its own, rather than side by side with its neighbours'?
    line: bool,
    inner: Axis,
    outer: &'p [Axis],
    scratch: &'p mut Vec<T>,
    raw: &'p mut Vec<u8>,
    repeated: &'p mut Vec<T::Wide>,
}
/// Calls `f` for each block of results, with the place of the first in the result and the step there.
fn blocks<T: Lane>(a: &Array, p: &Plan, mut f: impl FnMut(&mut Block<'_, T>, usize, usize)) {
    if p.shape.contains(&0) {
        return;
    }
    let b = p.block_axis();
    let k = p.kept[b];
    let (inner, outer) = (p.folded[p.folded.len() - 1], &p.folded[..p.folded.len() - 1]);
    let line = k.len == 1 || (inner.len >= SHORT && inner.step <= k.step);
    let most = match inner.step < k.step {
        _ if line => LINES,
        true => (TILE / inner.len.max(1)).max(NARROW),
        false => BLOCK,
    };
    let mut others = p.kept.clone();
    others.remove(b);
    let (mut scratch, mut raw, mut repeated) = (Vec::new(), Vec::new(), Vec::new());
    each_index(&others, |at, out| {
        for i in (0..k.len).step_by(most) {
            let (len, at) = (most.min(k.len - i), a.offset + at + i * k.step);
            let mut block =
                Block { a, at, len, step: k.step, line, inner, outer, scratch: &mut scratch, raw: &mut raw, repeated: &mut repeated };
            f(&mut block, out + i * k.out, k.out);
        }
    });
}
impl<T: Lane> Block<'_, T> {
    fn pieces(&mut self, f: &mut dyn FnMut(Piece<'_, T>)) {
        let (a, n, r, step) = (self.a, self.len, self.inner, self.step);
        if r.len == 0 || self.outer.iter().any(|x| x.len == 0) {
            return;
        }
        let same = a.dtype == T::DTYPE;
        let (scratch, raw) = (&mut *self.scratch, &mut *self.raw);
        let direct = same && if self.line { r.step == 1 } else { step == 1 && (r.step == n || (n >= NARROW && r.step > n)) };
        if !direct {
            let most = if self.line { TILE } else { ROWS_TILE };
            let held = (n * r.len).min(most.max(n));
            scratch.resize(held, T::default());
            raw.resize(if same { 0 } else { held * a.dtype.size() }, 0);
        }
        each_index(self.outer, |at, _| {
            let at = self.at + at;
            if self.line && direct {
                f(Piece::Lines { of: 0..n, at: 0, x: a.read(at, (n - 1) * step + r.len), stride: step, len: r.len });
            } else if self.line {
                let cols = TILE.min(r.len);
                let (most, follow) = ((TILE / cols).max(1), cols == r.len && step == cols * r.step);
                let place = if follow { Place::line(r.step) } else { Place::rect(step, r.step) };
                for of in (0..n).step_by(most) {
                    let rows = most.min(n - of);
                    for i in (0..r.len).step_by(cols) {
                        let cols = cols.min(r.len - i);
                        Part { array: a, at: at + of * step + i * r.step, place: &place, rows, cols }
                            .fetch(&mut scratch[..rows * cols], raw);
                        f(Piece::Lines { of: of..of + rows, at: i, x: &scratch[..rows * cols], stride: cols, len: cols });
                    }
                }
            } else if direct {
                f(Piece::Rows { at: 0, x: a.read(at, (r.len - 1) * r.step + n), stride: r.step });
            } else {
                let most = (ROWS_TILE / n).max(1);
                let place = if r.step == n * step { Place::line(step) } else { Place::rect(r.step, step) };
                for i in (0..r.len).step_by(most) {
                    let rows = most.min(r.len - i);
                    Part { array: a, at: at + i * r.step, place: &place, rows, cols: n }.fetch(&mut scratch[..rows * n], raw);
                    f(Piece::Rows { at: i, x: &scratch[..rows * n], stride: n });
                }
            }
        });
    }
    /// Folds the block into one number a result. `c`: what a centred map takes, one a result.
    fn fold(&mut self, k: &dyn Fold<T>, c: &[T], acc: &mut Vec<T::Wide>) {
        acc.clear();
        acc.resize(self.len, k.start());
        let n = self.len;
        let copies = if n < NARROW { WIDTH / n } else { 1 };
        let mut repeated = std::mem::take(self.repeated);
        repeated.clear();
        let centres: Vec<T> = if copies > 1 && !c.is_empty() { c.repeat(copies) } else { Vec::new() };
        let wide_c = if centres.is_empty() { c } else { &centres };
        self.pieces(&mut |piece| match piece {
            Piece::Lines { of, x, stride, len, .. } => {
                k.lines(&mut acc[of.clone()], x, stride, len, c.get(of).unwrap_or_default());
            }
            Piece::Rows { x, stride, .. } if stride == n && copies > 1 && x.len() >= MANY => {
                repeated.resize(n * copies, k.start());
                k.rows(&mut repeated, x, n * copies, wide_c);
            }
            Piece::Rows { x, stride, .. } => k.rows(acc, x, stride, c),
        });
        for part in repeated.chunks_exact(n) {
            k.join(acc, part);
        }
        *self.repeated = repeated;
    }
}

/// One fold and its finish: each result is `finish` of what was joined, cast to `dtype`.
fn fold<T: Lane>(
    a: &Array,
    axes: Axes<'_>,
    keepdim: bool,
    dtype: DType,
    k: &dyn Fold<T>,
    finish: &dyn Fn(&mut [T::Wide]),
) -> Result<Array> {
    if matches!(axes, Axes::All) && a.dtype == T::DTYPE && a.is_contiguous() {
        let x = a.slice();
        let mut v = [k.start()];
        k.lines(&mut v, x, 0, x.len(), &[]);
        finish(&mut v);
        let shape = if keepdim { a.shape.iter().map(|_| 1).collect() } else { Dims::default() };
        let mut out = Fresh::new(shape, dtype)?;
        Lane::put(&v, &mut out, dtype, 0, v.len(), 0, 1);
        return Ok(out.done());
    }
    let plan = Plan::new(a, axes, keepdim);
    let mut out = Fresh::new(plan.shape, dtype)?;
    let mut acc = Vec::new();
    blocks::<T>(a, &plan, |block, at, step| {
        block.fold(k, &[], &mut acc);
        finish(&mut acc);
        Lane::put(&acc, &mut out, dtype, at, acc.len(), 0, step);
    });
    Ok(out.done())
}
/// How many elements become one.
fn count_of(a: &Array, axes: Axes<'_>) -> usize {
    match axes {
        Axes::All => a.numel(),
        Axes::Of(dims) => dims.iter().filter_map(|&d| a.shape.get(d)).product(),
    }
}
/// torch's refusal to choose among no elements.
fn must_have_elements(op: &str, a: &Array, axes: Axes<'_>) -> Result<()> {
    if a.numel() != 0 {
        return Ok(());
    }
    match axes {
        Axes::All => bail!(
            Runtime,
            "{op}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument."
        ),
        Axes::Of(dims) => match dims.iter().find(|&&d| a.shape.get(d) == Some(&0)) {
            Some(d) => bail!(Index, "{op}(): Expected reduction dim {d} to have non-zero size. The input has shape {:?}", a.shape),
            None => Ok(()),
        },
    }
}

/// Sum. Elements are cast to the compute type of `dtype` first, as torch does.
pub fn sum(a: &Array, axes: Axes<'_>, keepdim: bool, dtype: DType) -> Result<Array> {
    if dtype == DType::Bool {
        return any(a, axes, keepdim);
    }
    for_compute!(dtype, T => fold::<T>(a, axes, keepdim, dtype, &over(Add, Same), &|_| ()))
}
/// Sum of all that is not NaN.
pub fn nansum(a: &Array, axes: Axes<'_>, keepdim: bool, dtype: DType) -> Result<Array> {
    for_compute!(dtype, T => fold::<T>(a, axes, keepdim, dtype, &over(Add, NanZero), &|_| ()))
}
pub fn prod(a: &Array, axes: Axes<'_>, keepdim: bool, dtype: DType) -> Result<Array> {
    for_compute!(dtype, T => fold::<T>(a, axes, keepdim, dtype, &over(Mul, Same), &|_| ()))
}
/// Refuses a mean in a dtype that is no float.
pub fn has_mean(a: &Array, dtype: DType) -> Result<()> {
    if !dtype.is_float() {
        let which = if dtype == a.dtype { "Input" } else { "Optional" };
        bail!(
            Runtime,
            "mean(): could not infer output dtype. {which} dtype must be either a floating point or complex dtype. Got: {}",
            dtype.torch_name()
        );
    }
    Ok(())
}
/// Mean, in a floating-point `dtype`; NaN of no elements.
pub fn mean(a: &Array, axes: Axes<'_>, keepdim: bool, dtype: DType) -> Result<Array> {
    has_mean(a, dtype)?;
    let n = count_of(a, axes) as f64;
    for_float!(dtype, T => fold::<T>(a, axes, keepdim, dtype, &over(Add, Same), &|v| v.iter_mut().for_each(|v| *v /= n)))
}
/// Largest; NaN if any is. `op` names the caller in errors (`max` without a dim is this over all axes).
pub fn amax(op: &'static str, a: &Array, axes: Axes<'_>, keepdim: bool) -> Result<Array> {
    must_have_elements(op, a, axes)?;
    for_compute!(a.dtype, T => fold::<T>(a, axes, keepdim, a.dtype, &over(Greatest, Same), &|_| ()))
}
/// Smallest; NaN if any is.
pub fn amin(op: &'static str, a: &Array, axes: Axes<'_>, keepdim: bool) -> Result<Array> {
    must_have_elements(op, a, axes)?;
    for_compute!(a.dtype, T => fold::<T>(a, axes, keepdim, a.dtype, &over(Least, Same), &|_| ()))
}
/// How many are not 0 (NaN is not), as int64.
pub fn count_nonzero(a: &Array, axes: Axes<'_>) -> Result<Array> {
    for_compute!(a.dtype, T => fold::<T>(a, axes, false, DType::Int64, &over(Add, NonZero), &|_| ()))
}
/// The dtype of `any` and `all`: bool, but uint8 of uint8, as torch has it.
fn truth_dtype(a: &Array) -> DType {
    if a.dtype == DType::UInt8 { DType::UInt8 } else { DType::Bool }
}
/// Is any not 0? (NaN is not.) Both are counts: a fold of their own would be code for nothing.
pub fn any(a: &Array, axes: Axes<'_>, keepdim: bool) -> Result<Array> {
    counted(a, axes, keepdim, |count, _| count > 0)
}
pub fn all(a: &Array, axes: Axes<'_>, keepdim: bool) -> Result<Array> {
    counted(a, axes, keepdim, |count, n| count == n)
}
/// What the number of those that are not 0, and of all, says of each result.
fn counted(a: &Array, axes: Axes<'_>, keepdim: bool, f: fn(usize, usize) -> bool) -> Result<Array> {
    let n = count_of(a, axes);
    for_compute!(a.dtype, T => fold::<T>(a, axes, keepdim, truth_dtype(a), &over(Add, NonZero), &|v| {
        v.iter_mut().for_each(|v| *v = Element::of(Scalar::Bool(f(v.scalar().to_f64() as usize, n))))
    }))
}
/// Smallest and largest in one pass over the memory, over one dim or all.
pub fn aminmax(a: &Array, dim: Option<usize>, keepdim: bool) -> Result<(Array, Array)> {
    if dim.is_none() && a.numel() == 0 {
        bail!(Runtime, "aminmax(): cannot compute aminmax over an empty dimension as the operation has no identity.");
    }
    let dims = dim.as_slice();
    let axes = if dim.is_some() { Axes::Of(dims) } else { Axes::All };
    must_have_elements("aminmax", a, axes)?;
    let plan = Plan::new(a, axes, keepdim);
    let (mut least, mut greatest) = (Fresh::new(plan.shape, a.dtype)?, Fresh::new(plan.shape, a.dtype)?);
    for_compute!(a.dtype, T => {
        let mut acc = Vec::new();
        blocks::<T>(a, &plan, |block, at, step| {
            block.fold(&over(Least, Same), &[], &mut acc);
            Lane::put(&acc, &mut least, a.dtype, at, acc.len(), 0, step);
            block.fold(&over(Greatest, Same), &[], &mut acc);
            Lane::put(&acc, &mut greatest, a.dtype, at, acc.len(), 0, step);
        });
    });
    Ok((least.done(), greatest.done()))
}
/// ln Σ exp x, by way of the largest so that nothing overflows (torch's result for infinities: they are not subtracted).
pub fn logsumexp(a: &Array, axes: Axes<'_>, keepdim: bool) -> Result<Array> {
    let dtype = a.dtype.or_float();
    let plan = Plan::new(a, axes, keepdim);
    let mut out = Fresh::new(plan.shape, dtype)?;
    for_float!(dtype, T => {
        let (mut acc, mut top) = (Vec::new(), Vec::new());
        blocks::<T>(a, &plan, |block, at, step| {
            block.fold(&over(Greatest, Same), &[], &mut acc);
            top.clear();
            top.extend(acc.iter().map(|&v| if v.is_finite() { T::narrow(v) } else { 0.0 }));
            block.fold(&over(Add, ExpFrom), &top, &mut acc);
            acc.iter_mut().zip(&top).for_each(|(v, &t)| *v = v.ln() + t.widen());
            Lane::put(&acc, &mut out, dtype, at, acc.len(), 0, step);
        });
    });
    Ok(out.done())
}
/// Variance (or its root, the standard deviation) and mean, in the operand's dtype. The sum of squares is divided by n - `correction`,
/// or by 0 where that is negative.
pub fn var_mean(a: &Array, axes: Axes<'_>, keepdim: bool, correction: f64, root: bool) -> Result<(Array, Array)> {
    moments(a, axes, keepdim, a.dtype, &|squares, n| {
        let v = squares / (n - correction).max(0.0);
        if root { v.sqrt() } else { v }
    })
}
/// Refuses the variance of what is no float.
pub fn has_variance(a: &Array) -> Result<()> {
    if !a.dtype.is_float() {
        bail!(Runtime, "std and var only support floating point and complex dtypes, not {}", a.dtype.torch_name());
    }
    Ok(())
}
/// `finish(Σ (x - mean)², n)`, and the mean, over some axes, both in `dtype`. Two passes over each block; the second subtracts the mean as rounded to
/// the compute type, and its error is then taken out (Chan, Golub, LeVeque 1983).
pub(super) fn moments(a: &Array, axes: Axes<'_>, keepdim: bool, dtype: DType, finish: &dyn Fn(f64, f64) -> f64) -> Result<(Array, Array)> {
    has_variance(a)?;
    let plan = Plan::new(a, axes, keepdim);
    let (mut spread, mut mean) = (Fresh::new(plan.shape, dtype)?, Fresh::new(plan.shape, dtype)?);
    let n = plan.count as f64;
    for_float!(a.dtype, T => {
        let (mut acc, mut means, mut centre) = (Vec::new(), Vec::new(), Vec::new());
        blocks::<T>(a, &plan, |block, at, step| {
            block.fold(&over(Add, Same), &[], &mut means);
            means.iter_mut().for_each(|v| *v /= n);
            centre.clear();
            centre.extend(means.iter().map(|&m| T::narrow(m)));
            block.fold(&over(Add, SquareFrom), &centre, &mut acc);
            for (v, (&m, &c)) in acc.iter_mut().zip(means.iter().zip(&centre)) {
                let d = m - c.widen();
                let squares = *v - n * d * d;
                *v = finish(if squares < 0.0 { 0.0 } else { squares }, n);
            }
            Lane::put(&acc, &mut spread, dtype, at, acc.len(), 0, step);
            Lane::put(&means, &mut mean, dtype, at, means.len(), 0, step);
        });
    });
    Ok((spread.done(), mean.done()))
}
/// Refuses a norm of, or in, what is no float.
pub fn has_norm(a: &Array, dtype: DType) -> Result<()> {
    if !a.dtype.is_float() || !dtype.is_float() {
        let got = if a.dtype.is_float() { dtype } else { a.dtype };
        bail!(Runtime, "linalg.vector_norm: Expected a floating point or complex tensor as input. Got {}", got.torch_name());
    }
    Ok(())
}
/// The vector norm of order `p`: (Σ |x|^p)^(1/p); 0 counts what is not 0, ±inf is the largest or smallest |x|.
pub fn norm(a: &Array, p: f64, axes: Axes<'_>, keepdim: bool, dtype: DType) -> Result<Array> {
    has_norm(a, dtype)?;
    if (p < 0.0 || p == f64::INFINITY) && count_of(a, axes) == 0 {
        let (of, dims) = match axes {
            Axes::Of(d) if d.len() < a.ndim() => (" along dimensions ", format!("{d:?}")),
            _ => (" on an empty tensor", String::new()),
        };
        bail!(
            Runtime,
            "linalg.vector_norm cannot compute the {p} norm{of}{dims} of shape {:?} because the operation does not have an identity",
            a.shape
        );
    }
    for_float!(dtype, T => {
        let run = |k: &dyn Fold<T>, finish: &dyn Fn(&mut [f64])| fold::<T>(a, axes, keepdim, dtype, k, finish);
        match p {
            0.0 => run(&over(Add, NonZero), &|_| ()),
            1.0 => run(&over(Add, Abs), &|_| ()),
            2.0 => run(&over(Add, Square), &|v| v.iter_mut().for_each(|v| *v = v.sqrt())),
            f64::INFINITY => run(&over(Greatest, Abs), &|_| ()),
            f64::NEG_INFINITY => run(&over(Least, Abs), &|_| ()),
            _ => run(&over(Add, Power(p)), &|v| v.iter_mut().for_each(|v| *v = v.powf(1.0 / p))),
        }
    })
}

simd! {
    /// The first elements of lines that no other beats and where they are, counted from `first`, if they beat what is known from places
    /// before.
    fn pick_lines<T: Lane, P: Prefer>(best: &mut [T], at: &mut [i64], x: &[T], stride: usize, len: usize, first: usize) {
        for (i, (best, at)) in best.iter_mut().zip(at).enumerate() {
            let x = &x[i * stride..][..len];
            let mut found = None;
            if first == 0 {
                (*best, found) = (x[0], Some(0));
            }
            for (p, x) in x.chunks(PART).enumerate() {
                let top = part::<FMA, T, P, Same>(&Same, x, T::default());
                if P::beats(top, *best) {
                    (*best, found) = (top, Some(p * PART));
                }
            }
            if let Some(p) = found {
                *at = (first + p + find(&x[p..], *best)) as i64;
            }
        }
    }
}
/// Where a value that is there is first found: NaN equals NaN.
#[inline(always)]
#[allow(clippy::eq_op, reason = "true for NaN only")]
fn find<T: Lane>(x: &[T], v: T) -> usize {
    let mut at = 0;
    for block in x.chunks(LANES) {
        let mut any = false;
        for &x in block {
            any |= (x == v) | ((x != x) & (v != v));
        }
        if any {
            for &x in block {
                if (x == v) | ((x != x) & (v != v)) {
                    return at;
                }
                at += 1;
            }
        }
        at += block.len();
    }
    0
}
simd! {
    /// As `pick_lines`, column by column, for rows that are numbered from `first`.
    fn pick_rows<T: Lane, P: Prefer>(best: &mut [T], at: &mut [i64], x: &[T], stride: usize, first: usize) {
        let n = best.len();
        let at = &mut at[..n];
        for (r, row) in x.chunks(stride).enumerate() {
            let (row, r) = (&row[..n], (first + r) as i64);
            for i in 0..n {
                let better = P::beats(row[i], best[i]) | (r == 0);
                best[i] = if better { row[i] } else { best[i] };
                at[i] = if better { r } else { at[i] };
            }
        }
    }
}
/// Values and int64 indices of the elements that no other beats along `dim` (of the row-major array if absent).
fn pick<T: Lane, P: Prefer>(a: &Array, dim: Option<usize>, keepdim: bool) -> Result<(Array, Array)> {
    let whole;
    let (a, dim, shape) = match dim {
        Some(d) => (a, d, None),
        None => {
            let shape = if keepdim { a.shape.iter().map(|_| 1).collect() } else { Dims::default() };
            let n = Dims::of(&[a.numel()]);
            whole = pointwise::contiguous(a)?;
            let flat = whole.view(n, n.strides(), whole.offset);
            (&flat.clone(), 0, Some(shape))
        }
    };
    let plan = Plan::new(a, Axes::Of(&[dim]), keepdim);
    let shape = shape.unwrap_or(plan.shape);
    let (mut values, mut indices) = (Fresh::new(shape, a.dtype)?, Fresh::new(shape, DType::Int64)?);
    let (mut best, mut at, mut wide) = (Vec::new(), Vec::new(), Vec::new());
    blocks::<T>(a, &plan, |block, out, step| {
        best.clear();
        best.resize(block.len, T::default());
        at.clear();
        at.resize(block.len, 0);
        block.pieces(&mut |piece| match piece {
            Piece::Lines { of, at: first, x, stride, len } => pick_lines::<T, P>(&mut best[of.clone()], &mut at[of], x, stride, len, first),
            Piece::Rows { at: first, x, stride } => pick_rows::<T, P>(&mut best, &mut at, x, stride, first),
        });
        wide.clear();
        wide.extend(best.iter().map(|v| v.widen()));
        Lane::put(&wide, &mut values, a.dtype, out, wide.len(), 0, step);
        Lane::put(&at, &mut indices, DType::Int64, out, at.len(), 0, step);
    });
    Ok((values.done(), indices.done()))
}
/// Largest along a dim and where it is first found; NaN beats all.
pub fn max_dim(a: &Array, dim: usize, keepdim: bool) -> Result<(Array, Array)> {
    must_have_elements("max", a, Axes::Of(&[dim]))?;
    for_compute!(a.dtype, T => pick::<T, Greatest>(a, Some(dim), keepdim))
}
/// Smallest along a dim and where it is first found; NaN beats all.
pub fn min_dim(a: &Array, dim: usize, keepdim: bool) -> Result<(Array, Array)> {
    must_have_elements("min", a, Axes::Of(&[dim]))?;
    for_compute!(a.dtype, T => pick::<T, Least>(a, Some(dim), keepdim))
}
/// Where the largest is first found, along a dim or in the row-major order of all.
pub fn argmax(a: &Array, dim: Option<usize>, keepdim: bool) -> Result<Array> {
    must_have_index("argmax", a, dim)?;
    for_compute!(a.dtype, T => pick::<T, Greatest>(a, dim, keepdim)).map(|r| r.1)
}
/// Where the smallest is first found, along a dim or in the row-major order of all.
pub fn argmin(a: &Array, dim: Option<usize>, keepdim: bool) -> Result<Array> {
    must_have_index("argmin", a, dim)?;
    for_compute!(a.dtype, T => pick::<T, Least>(a, dim, keepdim)).map(|r| r.1)
}
fn must_have_index(op: &str, a: &Array, dim: Option<usize>) -> Result<()> {
    match dim {
        _ if a.dtype == DType::Bool => bail!(Runtime, "{op}(): does not support bool input"),
        Some(d) => must_have_elements(op, a, Axes::Of(&[d])),
        None if a.numel() == 0 => bail!(Index, "{op}(): Expected reduction dim to be specified for input.numel() == 0."),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::samples::*;

    const SHAPES: [&[usize]; 12] =
        [&[], &[1], &[17], &[5000], &[3, 5], &[7, 130], &[300, 4], &[4, 3, 5], &[2, 70, 3], &[3, 2, 40, 2], &[2, 0, 3], &[2, 3, 2, 5, 2]];
    /// Every layout of some shapes, with every subset of the axes.
    fn each_case(dtypes: &[DType], mut f: impl FnMut(&Array, &[usize])) {
        for shape in SHAPES {
            for &dtype in dtypes {
                for a in layouts(shape, dtype) {
                    for set in 0..1usize << shape.len() {
                        f(&a, &(0..shape.len()).filter(|i| set >> i & 1 == 1).collect::<Vec<_>>());
                    }
                }
            }
        }
    }
    fn check(got: Result<Array>, a: &Array, dims: &[usize], f: &dyn Fn(&[f64]) -> f64) {
        let got = got.unwrap();
        let (shape, groups) = groups(a, dims);
        assert_eq!(&*got.shape, &shape[..], "{a:?} over {dims:?}");
        let size = groups.first().map_or(1, Vec::len).max(1) as f64;
        let want: Vec<f64> = groups.iter().map(|g| f(g)).collect();
        assert_near(&got, &want, tolerance(got.dtype) * size.sqrt(), &(a, dims));
    }
    const FLOATS: [DType; 4] = [DType::Float32, DType::Float64, DType::Float16, DType::BFloat16];

    #[test]
    fn sums_products_and_extremes_agree_with_plain_loops_for_every_layout_and_dtype() {
        each_case(&DType::ALL, |a, dims| {
            let of = Axes::Of(dims);
            let wide = if a.dtype.is_float() { a.dtype } else { DType::Int64 };
            check(sum(a, of, false, wide), a, dims, &|g| g.iter().sum());
            check(sum(a, of, false, DType::Float64), a, dims, &|g| g.iter().sum());
            check(count_nonzero(a, of), a, dims, &|g| g.iter().filter(|v| **v != 0.0).count() as f64);
            check(any(a, of, false), a, dims, &|g| g.iter().any(|v| *v != 0.0) as u8 as f64);
            check(all(a, of, false), a, dims, &|g| g.iter().all(|v| *v != 0.0) as u8 as f64);
            if a.numel() != 0 {
                check(amax("amax", a, of, false), a, dims, &|g| g.iter().copied().fold(f64::MIN, f64::max));
                check(amin("amin", a, of, false), a, dims, &|g| g.iter().copied().fold(f64::MAX, f64::min));
            }
        });
        each_case(&FLOATS, |a, dims| {
            check(mean(a, Axes::Of(dims), false, a.dtype), a, dims, &|g| g.iter().sum::<f64>() / g.len() as f64);
        });
        let small = |d| array(&[2, 3], d, &[1.0, 2.0, -3.0, 0.5, 2.0, 2.0]);
        for d in FLOATS {
            check(prod(&small(d), Axes::Of(&[1]), false, d), &small(d), &[1], &|g| g.iter().product());
        }
        check(prod(&small(DType::Int16), Axes::Of(&[0]), false, DType::Int64), &small(DType::Int16), &[0], &|g| g.iter().product());
    }
    #[test]
    fn results_with_two_passes_agree_with_plain_loops() {
        each_case(&FLOATS, |a, dims| {
            let lse = |g: &[f64]| g.iter().map(|v| v.exp()).sum::<f64>().ln();
            check(logsumexp(a, Axes::Of(dims), false), a, dims, &lse);
            let average = |g: &[f64]| g.iter().sum::<f64>() / g.len() as f64;
            let squares = |g: &[f64]| g.iter().map(|v| (v - average(g)).powi(2)).sum::<f64>();
            let (var, mean) = var_mean(a, Axes::Of(dims), false, 1.0, false).unwrap();
            check(Ok(var), a, dims, &|g| squares(g) / (g.len() as f64 - 1.0).max(0.0));
            check(Ok(mean), a, dims, &average);
            let std = var_mean(a, Axes::Of(dims), false, 0.0, true).unwrap().0;
            check(Ok(std), a, dims, &|g| (squares(g) / g.len() as f64).sqrt());
            for p in [0.0, 1.0, 2.0, 3.5] {
                let of = |g: &[f64]| match p {
                    0.0 => g.iter().filter(|v| **v != 0.0).count() as f64,
                    _ => g.iter().map(|v| v.abs().powf(p)).sum::<f64>().powf(1.0 / p),
                };
                check(norm(a, p, Axes::Of(dims), false, a.dtype), a, dims, &of);
            }
            if a.numel() != 0 {
                let largest = |g: &[f64]| g.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                let smallest = |g: &[f64]| g.iter().fold(f64::MAX, |m: f64, v| m.min(v.abs()));
                check(norm(a, f64::INFINITY, Axes::Of(dims), false, a.dtype), a, dims, &largest);
                check(norm(a, f64::NEG_INFINITY, Axes::Of(dims), false, a.dtype), a, dims, &smallest);
            }
        });
    }
    #[test]
    fn indices_are_those_of_the_first_extreme() {
        for shape in SHAPES.iter().filter(|s| !s.contains(&0)) {
            for a in DType::ALL.iter().flat_map(|&d| layouts(shape, d)) {
                let first = |g: &[f64], best: f64| g.iter().position(|v| *v == best).unwrap() as f64;
                let most = |g: &[f64]| g.iter().copied().fold(f64::MIN, f64::max);
                let least = |g: &[f64]| g.iter().copied().fold(f64::MAX, f64::min);
                for d in 0..shape.len() {
                    let ((v, i), (w, j)) = (max_dim(&a, d, false).unwrap(), min_dim(&a, d, false).unwrap());
                    check(Ok(v), &a, &[d], &most);
                    check(Ok(i), &a, &[d], &|g| first(g, most(g)));
                    check(Ok(w), &a, &[d], &least);
                    check(Ok(j), &a, &[d], &|g| first(g, least(g)));
                    let (lo, hi) = aminmax(&a, Some(d), false).unwrap();
                    check(Ok(lo), &a, &[d], &least);
                    check(Ok(hi), &a, &[d], &most);
                }
                if a.dtype != DType::Bool {
                    let all: Vec<usize> = (0..shape.len()).collect();
                    check(argmax(&a, None, false), &a, &all, &|g| first(g, most(g)));
                    check(argmin(&a, None, false), &a, &all, &|g| first(g, least(g)));
                    assert_eq!(argmax(&a, None, true).unwrap().ndim(), shape.len());
                }
            }
        }
    }
    #[test]
    fn nan_and_infinity_go_where_torch_has_them() {
        const NAN: f64 = f64::NAN;
        const INF: f64 = f64::INFINITY;
        for n in [4, 200, 9000] {
            for d in FLOATS {
                let mut v = values(n, d, 3);
                (v[1], v[n - 2]) = (NAN, NAN);
                let rows = array(&[1, n], d, &v);
                let columns = array(&[n, 1], d, &v);
                for (a, dim) in [(&rows, 1), (&columns, 0)] {
                    assert!(amax("amax", a, Axes::Of(&[dim]), false).unwrap().item().to_f64().is_nan());
                    assert!(amin("amin", a, Axes::All, false).unwrap().item().to_f64().is_nan());
                    let (best, at) = max_dim(a, dim, false).unwrap();
                    assert!(best.item().to_f64().is_nan());
                    assert_eq!((at.item(), argmin(a, None, false).unwrap().item()), (Scalar::Int(1), Scalar::Int(1)));
                    let rest: f64 = v.iter().filter(|v| !v.is_nan()).sum();
                    assert_near(&nansum(a, Axes::Of(&[dim]), false, d).unwrap(), &[rest], tolerance(d) * 100.0, &(n, d));
                    assert!(any(a, Axes::All, false).unwrap().item() == Scalar::Bool(true));
                    assert!(var_mean(a, Axes::All, false, 1.0, false).unwrap().0.item().to_f64().is_nan());
                }
            }
        }
        let lse = |v: &[f64]| logsumexp(&array(&[v.len()], DType::Float32, v), Axes::All, false).unwrap().item().to_f64();
        assert_eq!((lse(&[-INF, -INF]), lse(&[INF, -INF]), lse(&[INF, 1.0]), lse(&[])), (-INF, INF, INF, -INF));
        assert!(lse(&[INF, NAN]).is_nan());
        assert_eq!((lse(&[1000.0, 1000.0]), lse(&[-1000.0, -1e9])), (1000.6931762695312, -1000.0));
        let lowest = array(&[3], DType::Float32, &[-INF, -INF, -INF]);
        assert_eq!(max_dim(&lowest, 0, false).unwrap().1.item(), Scalar::Int(0));
        let p = |v: &[f64], p| norm(&array(&[v.len()], DType::Float32, v), p, Axes::All, false, DType::Float32).unwrap().item().to_f64();
        assert_eq!((p(&[NAN, 1.0], 0.0), p(&[0.0, 1.0], -1.0), p(&[], 2.0), p(&[], 0.0)), (2.0, 0.0, 0.0, 0.0));
        assert!(p(&[NAN, 1.0], INF).is_nan() && p(&[1.0, NAN], -INF).is_nan());
    }
    #[test]
    fn no_elements_give_the_neutral_result_or_torchs_refusal() {
        let a = array(&[3, 0], DType::Float32, &[]);
        let item = |r: Result<Array>| r.unwrap().item().to_f64();
        assert_eq!(item(sum(&a, Axes::All, false, DType::Float32)), 0.0);
        assert_eq!(item(prod(&a, Axes::All, false, DType::Float32)), 1.0);
        assert!(item(mean(&a, Axes::All, false, DType::Float32)).is_nan());
        assert_eq!((item(any(&a, Axes::All, false)), item(all(&a, Axes::All, false))), (0.0, 1.0));
        assert_eq!(&*amax("amax", &a, Axes::Of(&[0]), true).unwrap().shape, &[1, 0]);
        let refused = |r: Result<Array>, class, phrase: &str| {
            let e = r.unwrap_err();
            assert!(e.python_class() == class && e.to_string().contains(phrase), "{e}");
        };
        use crate::error::PythonClass as P;
        let whole =
            "max(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the 'dim' argument.";
        refused(amax("max", &a, Axes::All, false), P::Runtime, whole);
        refused(amin("amin", &a, Axes::Of(&[0, 1]), false), P::Index, "amin(): Expected reduction dim 1 to have non-zero size.");
        refused(argmax(&a, None, false), P::Index, "argmax(): Expected reduction dim to be specified for input.numel() == 0.");
        refused(max_dim(&a, 1, false).map(|r| r.0), P::Index, "max(): Expected reduction dim 1 to have non-zero size.");
        refused(aminmax(&a, None, false).map(|r| r.0), P::Runtime, "aminmax(): cannot compute aminmax over an empty dimension");
        refused(norm(&a, -1.0, Axes::All, false, DType::Float32), P::Runtime, "cannot compute the -1 norm on");
        refused(mean(&array(&[2], DType::Int32, &[1.0, 2.0]), Axes::All, false, DType::Int32), P::Runtime, "could not infer output dtype");
        let ints = array(&[2], DType::Int64, &[1.0, 2.0]);
        refused(norm(&ints, 2.0, Axes::All, false, DType::Float32), P::Runtime, "Expected a floating point or complex tensor");
        refused(var_mean(&ints, Axes::All, false, 1.0, false).map(|r| r.0), P::Runtime, "only support floating point");
        let one = |c| var_mean(&array(&[3], DType::Float32, &[1.0, 2.0, 4.0]), Axes::All, false, c, false).unwrap().0.item().to_f64();
        assert!(one(4.0) == f64::INFINITY && (one(0.5) - 14.0 / 7.5).abs() < 1e-6);
    }
    #[test]
    fn integers_wrap_and_casts_come_first() {
        let a = array(&[2], DType::Int64, &[100.0, 100.0]);
        assert_eq!(sum(&a, Axes::All, false, DType::Int8).unwrap().item(), Scalar::Int(-56));
        let f = array(&[2], DType::Float32, &[1.7, 1.7]);
        assert_eq!(sum(&f, Axes::All, false, DType::Int64).unwrap().item(), Scalar::Int(2));
        let b = array(&[2], DType::Int64, &[1.0, -1.0]);
        assert_eq!(sum(&b, Axes::All, false, DType::Bool).unwrap().item(), Scalar::Bool(true));
        let big = Array::from_slice(&[2], &[i64::MAX, 1]).unwrap();
        assert_eq!(sum(&big, Axes::All, false, DType::Int64).unwrap().item(), Scalar::Int(i64::MIN));
        assert_eq!(amax("amax", &big, Axes::All, false).unwrap().item(), Scalar::Int(i64::MAX));
    }
    #[test]
    fn long_sums_keep_seven_digits() {
        let n = 1 << 22;
        let v = vec![0.1f32; n];
        let want = 0.1f32 as f64 * n as f64;
        for shape in [&[n][..], &[n / 4, 4], &[4, n / 4], &[2048, n / 2048]] {
            let a = Array::from_slice(shape, &v).unwrap();
            let far = |r: Array, want: f64| r.to_vec().iter().fold(0.0, |m: f64, v| m.max((v / want - 1.0).abs()));
            assert!(far(sum(&a, Axes::All, false, DType::Float32).unwrap(), want) < 1e-6, "{shape:?}");
            assert!(far(sum(&a, Axes::Of(&[0]), false, DType::Float32).unwrap(), want / (n / shape[0]) as f64) < 1e-6, "{shape:?}");
        }
        let far: Vec<f32> = (0..100_000).map(|i| 1000.0 + (i % 7) as f32).collect();
        let a = Array::from_slice(&[far.len()], &far).unwrap();
        let mean = far.iter().map(|&v| v as f64).sum::<f64>() / far.len() as f64;
        let var = far.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / far.len() as f64;
        assert!((var_mean(&a, Axes::All, false, 0.0, false).unwrap().0.item().to_f64() / var - 1.0).abs() < 1e-6);
    }
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        use crate::kernels::simd::{Level, at};
        let v: Vec<f32> = (0..70_000u32).map(|i| (i.wrapping_mul(2654435761) >> 8) as f32 * 1e-7 - 0.8).collect();
        let a = Array::from_slice(&[70, 1000], &v).unwrap();
        let run = || {
            let mut all = Vec::new();
            for dims in [&[0][..], &[1], &[0, 1]] {
                all.push(sum(&a, Axes::Of(dims), false, DType::Float32).unwrap().to_vec());
                all.push(var_mean(&a, Axes::Of(dims), false, 1.0, false).unwrap().0.to_vec());
                all.push(prod(&a, Axes::Of(dims), false, DType::Float32).unwrap().to_vec());
            }
            all
        };
        let best = at(Level::Avx512, run);
        for level in [Level::Plain, Level::Avx2] {
            assert_eq!(at(level, run), best, "{level:?}");
        }
    }
}
