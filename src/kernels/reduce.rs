//! Reductions over any set of axes of an array of any layout.
//!
//! A fold is a map and a join (`Over<Add, Square>` is a sum of squares), written on scalars and compiled for contiguous slices of the
//! compute types alone. The walker (`Plan`, `Block`) takes the axes in the order in which they lie in memory, merges those that allow
//! it, and works through the results block by block: where the innermost axis is folded a line becomes one number, where it is kept rows
//! are folded into a block of numbers; elements of another type, or not next to each other, are gathered first. A block may be folded
//! more than once, with what the previous pass found (`var_mean`, `logsumexp`), while it is still in the cache.
//!
//! Accuracy and bits. f32 (and f16, bf16) elements are joined in f32 for at most `PART / LANES` steps, partial results in f64; so a sum
//! of millions keeps about 1e-7. Lanes and parts are fixed, hence the bits depend on shape and layout, never on the instruction set or
//! the number of threads. Integers are folded in i64 and wrap.
use super::math::Real;
use super::simd::simd;
use crate::array::{Array, Fresh};
use crate::dtype::{Cast, Compute, DType, Element, Scalar, for_dtype};
use crate::error::{Result, bail};
use crate::layout::Dims;
use smallvec::{SmallVec, smallvec};
use std::marker::PhantomData;

/// The axes to fold, each counted from the front.
#[derive(Clone, Copy)]
pub enum Axes<'a> {
    All,
    Of(&'a [usize]),
}

/// Independent accumulators of a line.
pub const LANES: usize = 64;
/// Elements of a line joined in their own type before the result is widened.
const PART: usize = 1024;
/// Elements of a gathered tile: with its results it stays in the first-level cache.
const TILE: usize = 4096;
/// A folded innermost axis shorter than this is gathered across lines: a call per line would cost more than its elements.
const SHORT: usize = 32;
/// Most results of a block of lines.
const LINES: usize = 64;
/// Most results of a block of rows; their accumulators stay in the cache while rows stream by.
const BLOCK: usize = 2048;
/// Fewer results than this are repeated side by side to fill the vector registers.
const NARROW: usize = 128;
/// Length of the repeated accumulators.
const WIDTH: usize = 256;

/// A type that folds compute in, and the type of its partial results.
pub trait Lane: Element {
    type Wide: Wide;
    fn widen(self) -> Self::Wide;
    fn narrow(w: Self::Wide) -> Self;
    fn gather(a: &Array, t: Tile, d: &mut [Self]);
}
/// f64 or i64: the type of partial results.
pub trait Wide: Element + Lane<Wide = Self> {
    fn of_usize(n: usize) -> Self;
    /// Writes results, cast, to every `step`-th element of `out` from `at`.
    fn put(out: &mut Fresh, dtype: DType, at: usize, step: usize, v: &[Self]);
}
/// How two partial results become one; `START` changes nothing.
pub trait Joins<T> {
    const START: T;
    fn join(a: T, b: T) -> T;
}
/// A join of elements and of partial results.
pub trait Join<T: Lane>: Joins<T> + Joins<T::Wide> + Sync {}
impl<T: Lane, J: Joins<T> + Joins<T::Wide> + Sync> Join<T> for J {}
/// What is joined of an element `x`; `c` is a number of its result that an earlier pass found, for maps that are `CENTRED`.
pub trait Map<T>: Sync {
    const CENTRED: bool = false;
    fn map<const F: bool>(&self, x: T, c: T) -> T;
}
/// Of two elements, the one to keep.
pub trait Prefer<T> {
    /// Does `b`, which comes later, replace `a`? NaN replaces all but NaN.
    fn beats(b: T, a: T) -> bool;
}

pub struct Add;
pub struct Mul;
pub struct Greatest;
pub struct Least;
macro_rules! joins { ($($name:ident $t:ident ($start:expr; $a:ident, $b:ident) $f:expr;)*) => { $(impl Joins<$t> for $name {
    const START: $t = $start;
    #[inline(always)]
    fn join($a: $t, $b: $t) -> $t { $f }
})* } }
joins! {
    Add f32 (0.0; a, b) a + b; Add f64 (0.0; a, b) a + b; Add i64 (0; a, b) a.wrapping_add(b);
    Mul f32 (1.0; a, b) a * b; Mul f64 (1.0; a, b) a * b; Mul i64 (1; a, b) a.wrapping_mul(b);
    Greatest f32 (f32::NEG_INFINITY; a, b) if Self::beats(b, a) { b } else { a };
    Greatest f64 (f64::NEG_INFINITY; a, b) if Self::beats(b, a) { b } else { a };
    Greatest i64 (i64::MIN; a, b) a.max(b);
    Least f32 (f32::INFINITY; a, b) if Self::beats(b, a) { b } else { a };
    Least f64 (f64::INFINITY; a, b) if Self::beats(b, a) { b } else { a };
    Least i64 (i64::MAX; a, b) a.min(b);
}
macro_rules! prefer { ($($name:ident $op:tt)*) => { $(impl<T: Lane> Prefer<T> for $name {
    #[inline(always)]
    #[allow(clippy::eq_op, clippy::neg_cmp_op_on_partial_ord, reason = "NaN compares false with everything, itself included")]
    fn beats(b: T, a: T) -> bool { !(a $op b) & (a == a) }
})* } }
prefer! { Greatest >= Least <= }

pub struct Same;
pub struct NanZero;
pub struct NonZero;
macro_rules! maps { ($($name:ident $t:ident ($x:ident) $f:expr;)*) => { $(impl Map<$t> for $name {
    #[inline(always)]
    fn map<const F: bool>(&self, $x: $t, _: $t) -> $t { $f }
})* } }
maps! {
    Same f32 (x) x; Same f64 (x) x; Same i64 (x) x;
    NanZero f32 (x) if x.is_nan() { 0.0 } else { x }; NanZero f64 (x) if x.is_nan() { 0.0 } else { x }; NanZero i64 (x) x;
    NonZero f32 (x) (x != 0.0) as u8 as f32; NonZero f64 (x) (x != 0.0) as u8 as f64; NonZero i64 (x) (x != 0) as i64;
}
pub struct Abs;
pub struct Square;
/// |x|^p
pub struct Power(pub f64);
/// (x - c)²
pub struct SquareFrom;
/// exp(x - c)
pub struct ExpFrom;
macro_rules! real_maps { ($($name:ident $centred:literal ($self:ident, $x:ident, $c:ident, $f:ident) $e:expr;)*) => { $(impl<T: Real> Map<T> for $name {
    const CENTRED: bool = $centred;
    #[inline(always)]
    fn map<const $f: bool>(&$self, $x: T, $c: T) -> T { let _ = $c; $e }
})* } }
real_maps! {
    Abs false (self, x, c, F) x.abs();
    Square false (self, x, c, F) x * x;
    Power false (self, x, c, F) x.abs().pow::<F>(T::lit(self.0));
    SquareFrom true (self, x, c, F) { let d = x - c; d * d };
    ExpFrom true (self, x, c, F) (x - c).exp::<F>();
}

/// A map and a join.
pub struct Over<J, M>(PhantomData<J>, M);
pub fn over<J, M>(_: J, map: M) -> Over<J, M> {
    Over(PhantomData, map)
}
/// A fold of contiguous slices, whatever its map and join.
pub trait Fold<T: Lane>: Sync {
    fn start(&self) -> T::Wide;
    fn join(&self, acc: &mut [T::Wide], x: &[T::Wide]);
    /// A line becomes one number.
    fn line(&self, x: &[T], c: T) -> T::Wide;
    /// Rows of `acc.len()` elements, `stride` apart, are folded into `acc`. `c` has a number a column if the map is centred.
    fn rows(&self, acc: &mut [T::Wide], x: &[T], stride: usize, c: &[T]);
}
impl<T: Lane, J: Join<T>, M: Map<T>> Fold<T> for Over<J, M> {
    fn start(&self) -> T::Wide {
        <J as Joins<T::Wide>>::START
    }
    fn join(&self, acc: &mut [T::Wide], x: &[T::Wide]) {
        acc.iter_mut().zip(x).for_each(|(a, &x)| *a = J::join(*a, x));
    }
    fn line(&self, x: &[T], c: T) -> T::Wide {
        line::<T, J, M>(&self.1, x, c)
    }
    fn rows(&self, acc: &mut [T::Wide], x: &[T], stride: usize, c: &[T]) {
        rows::<T, J, M>(&self.1, acc, x, stride, c)
    }
}
/// Joins neighbours at half the width until one is left.
#[inline(always)]
pub fn tree<T: Lane>(l: [T; LANES], join: impl Fn(T, T) -> T) -> T {
    let l: [T; 32] = std::array::from_fn(|i| join(l[i], l[i + 32]));
    let l: [T; 16] = std::array::from_fn(|i| join(l[i], l[i + 16]));
    let l: [T; 8] = std::array::from_fn(|i| join(l[i], l[i + 8]));
    let l: [T; 4] = std::array::from_fn(|i| join(l[i], l[i + 4]));
    join(join(l[0], l[2]), join(l[1], l[3]))
}
simd! { fn line<T: Lane, J: Join<T>, M: Map<T>>(m: &M, x: &[T], c: T) -> T::Wide {
    let mut total = <J as Joins<T::Wide>>::START;
    for part in x.chunks(PART) {
        let mut lanes = [<J as Joins<T>>::START; LANES];
        let (blocks, rest) = part.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                lanes[i] = J::join(lanes[i], m.map::<FMA>(block[i], c));
            }
        }
        for (l, &x) in lanes.iter_mut().zip(rest) {
            *l = J::join(*l, m.map::<FMA>(x, c));
        }
        total = J::join(total, tree(lanes, J::join).widen());
    }
    total
} }
simd! { fn rows<T: Lane, J: Join<T>, M: Map<T>>(m: &M, acc: &mut [T::Wide], x: &[T], stride: usize, c: &[T]) {
    const AT_ONCE: usize = 8;
    let n = acc.len();
    let c = if M::CENTRED { &c[..n] } else { &[] };
    let centre = |i: usize| if M::CENTRED { c[i] } else { T::default() };
    let count = (x.len() - n) / stride + 1;
    let row = |r: usize| &x[r * stride..][..n];
    for r in (0..count - count % AT_ONCE).step_by(AT_ONCE) {
        let x: [&[T]; AT_ONCE] = std::array::from_fn(|k| row(r + k));
        for i in 0..n {
            let y: [T; AT_ONCE] = std::array::from_fn(|k| m.map::<FMA>(x[k][i], centre(i)));
            let y: [T; 4] = std::array::from_fn(|k| J::join(y[k], y[k + 4]));
            acc[i] = J::join(acc[i], J::join(J::join(y[0], y[2]), J::join(y[1], y[3])).widen());
        }
    }
    for r in count - count % AT_ONCE..count {
        let x = row(r);
        for i in 0..n {
            acc[i] = J::join(acc[i], m.map::<FMA>(x[i], centre(i)).widen());
        }
    }
} }

/// A rectangle of an array: where it starts in the storage, its rows and columns and their steps.
#[derive(Clone, Copy)]
pub struct Tile {
    pub at: usize,
    pub rows: usize,
    pub cols: usize,
    pub rs: usize,
    pub cs: usize,
}
fn gather<S: Cast<T> + Element, T: Lane>(a: &Array, t: Tile, d: &mut [T]) {
    let s = a.read::<S>(t.at, (t.rows - 1) * t.rs + (t.cols - 1) * t.cs + 1);
    for (r, d) in d.chunks_exact_mut(t.cols).enumerate() {
        if t.cs == 1 {
            d.iter_mut().zip(&s[r * t.rs..][..t.cols]).for_each(|(d, s)| *d = s.cast());
        } else {
            d.iter_mut().enumerate().for_each(|(c, d)| *d = s[r * t.rs + c * t.cs].cast());
        }
    }
}
macro_rules! lanes { ($($t:ident $w:ident)*) => { $(impl Lane for $t {
    type Wide = $w;
    #[inline(always)]
    fn widen(self) -> $w { self as $w }
    #[inline(always)]
    fn narrow(w: $w) -> $t { w as $t }
    fn gather(a: &Array, t: Tile, d: &mut [$t]) { for_dtype!(a.dtype, S => gather::<S, $t>(a, t, d)) }
})* } }
lanes! { f32 f64  f64 f64  i64 i64 }
macro_rules! wides { ($($t:ident)*) => { $(impl Wide for $t {
    #[inline(always)]
    fn of_usize(n: usize) -> $t { n as $t }
    fn put(out: &mut Fresh, dtype: DType, at: usize, step: usize, v: &[$t]) {
        for_dtype!(dtype, D => {
            let out = &mut out.slice_mut::<D>()[at..];
            if step == 1 {
                out.iter_mut().zip(v).for_each(|(o, v)| *o = v.cast());
            } else {
                v.iter().enumerate().for_each(|(i, v)| out[i * step] = v.cast());
            }
        })
    }
})* } }
wides! { f64 i64 }

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
    /// Elements of result `of`, the first of them `at` steps along the innermost folded axis.
    Line { of: usize, at: usize, x: &'p [T] },
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
    let (mut scratch, mut repeated) = (Vec::new(), Vec::new());
    each_index(&others, |at, out| {
        for i in (0..k.len).step_by(most) {
            let (len, at) = (most.min(k.len - i), a.offset + at + i * k.step);
            let mut block = Block { a, at, len, step: k.step, line, inner, outer, scratch: &mut scratch, repeated: &mut repeated };
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
        let scratch = &mut *self.scratch;
        let line = self.line;
        each_index(self.outer, |at, _| {
            let at = self.at + at;
            if line && same && r.step == 1 {
                for of in 0..n {
                    f(Piece::Line { of, at: 0, x: a.read(at + of * step, r.len) });
                }
            } else if line {
                scratch.resize(TILE.min(r.len), T::default());
                for of in 0..n {
                    for i in (0..r.len).step_by(TILE) {
                        let cols = TILE.min(r.len - i);
                        T::gather(a, Tile { at: at + of * step + i * r.step, rows: 1, cols, rs: 0, cs: r.step }, &mut scratch[..cols]);
                        f(Piece::Line { of, at: i, x: &scratch[..cols] });
                    }
                }
            } else if same && step == 1 && (r.step == n || (n >= NARROW && r.step > n)) {
                f(Piece::Rows { at: 0, x: a.read(at, (r.len - 1) * r.step + n), stride: r.step });
            } else {
                let most = (TILE / n).max(1);
                scratch.resize(most.min(r.len) * n, T::default());
                for i in (0..r.len).step_by(most) {
                    let rows = most.min(r.len - i);
                    T::gather(a, Tile { at: at + i * r.step, rows, cols: n, rs: r.step, cs: step }, &mut scratch[..rows * n]);
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
            Piece::Line { of, x, .. } => {
                let v = k.line(x, c.get(of).copied().unwrap_or_default());
                k.join(&mut acc[of..=of], &[v]);
            }
            Piece::Rows { x, stride, .. } if stride == n && copies > 1 && x.len() >= 2 * n * copies => {
                repeated.resize(n * copies, k.start());
                let whole = x.len() - x.len() % (n * copies);
                k.rows(&mut repeated, &x[..whole], n * copies, wide_c);
                if whole < x.len() {
                    k.rows(&mut repeated[..x.len() - whole], &x[whole..], n * copies, wide_c);
                }
            }
            Piece::Rows { x, stride, .. } => k.rows(acc, x, stride, c),
        });
        for part in repeated.chunks_exact(n) {
            k.join(acc, part);
        }
        *self.repeated = repeated;
    }
}

/// Runs `$body` with `$t` the compute type of `$dtype`.
macro_rules! for_compute {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype.compute() {
            Compute::F32 => { type $t = f32; $body }
            Compute::F64 => { type $t = f64; $body }
            Compute::I64 => { type $t = i64; $body }
        }
    };
}
/// As `for_compute`, for dtypes that are floating point.
macro_rules! for_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype.compute() {
            Compute::F64 => { type $t = f64; $body }
            _ => { type $t = f32; $body }
        }
    };
}
pub(crate) use {for_compute, for_float};

/// One fold and its finish: each result is `finish` of what was joined, cast to `dtype`.
fn fold<T: Lane>(a: &Array, axes: Axes<'_>, keepdim: bool, dtype: DType, k: &dyn Fold<T>, finish: &dyn Fn(&mut [T::Wide])) -> Result<Array> {
    if matches!(axes, Axes::All) && a.dtype == T::DTYPE && a.is_contiguous() {
        let mut v = [k.line(a.slice(), T::default())];
        finish(&mut v);
        let shape = if keepdim { a.shape.iter().map(|_| 1).collect() } else { Dims::default() };
        let mut out = Fresh::new(shape, dtype)?;
        Wide::put(&mut out, dtype, 0, 1, &v);
        return Ok(out.done());
    }
    let plan = Plan::new(a, axes, keepdim);
    let mut out = Fresh::new(plan.shape, dtype)?;
    let mut acc = Vec::new();
    blocks::<T>(a, &plan, |block, at, step| {
        block.fold(k, &[], &mut acc);
        finish(&mut acc);
        Wide::put(&mut out, dtype, at, step, &acc);
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
            Some(d) => bail!(Index, "{op}(): Expected reduction dim {d} to have non-zero size, but the input has shape {:?}", a.shape),
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
/// Mean, in a floating-point `dtype`; NaN of no elements.
pub fn mean(a: &Array, axes: Axes<'_>, keepdim: bool, dtype: DType) -> Result<Array> {
    if !dtype.is_float() {
        let which = if dtype == a.dtype { "Input" } else { "Optional" };
        bail!(
            Runtime,
            "mean(): could not infer output dtype. {which} dtype must be either a floating point or complex dtype. Got: {}",
            dtype.torch_name()
        );
    }
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
pub fn any(a: &Array, axes: Axes<'_>, keepdim: bool) -> Result<Array> {
    for_compute!(a.dtype, T => fold::<T>(a, axes, keepdim, truth_dtype(a), &over(Greatest, NonZero), &|v| {
        v.iter_mut().for_each(|v| *v = Element::of(Scalar::Bool(v.scalar().to_f64() > 0.0)))
    }))
}
pub fn all(a: &Array, axes: Axes<'_>, keepdim: bool) -> Result<Array> {
    for_compute!(a.dtype, T => fold::<T>(a, axes, keepdim, truth_dtype(a), &over(Least, NonZero), &|v| {
        v.iter_mut().for_each(|v| *v = Element::of(Scalar::Bool(!v.scalar().is_zero())))
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
            Wide::put(&mut least, a.dtype, at, step, &acc);
            block.fold(&over(Greatest, Same), &[], &mut acc);
            Wide::put(&mut greatest, a.dtype, at, step, &acc);
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
            Wide::put(&mut out, dtype, at, step, &acc);
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
/// `finish(Σ (x - mean)², n)`, and the mean, over some axes, both in `dtype`. Two passes over each block; the second subtracts the mean as rounded to
/// the compute type, and its error is then taken out (Chan, Golub, LeVeque 1983).
pub(super) fn moments(
    a: &Array,
    axes: Axes<'_>,
    keepdim: bool,
    dtype: DType,
    finish: &dyn Fn(f64, f64) -> f64,
) -> Result<(Array, Array)> {
    if !a.dtype.is_float() {
        bail!(Runtime, "std and var only support floating point and complex dtypes, not {}", a.dtype.torch_name());
    }
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
            Wide::put(&mut spread, dtype, at, step, &acc);
            Wide::put(&mut mean, dtype, at, step, &means);
        });
    });
    Ok((spread.done(), mean.done()))
}
/// The vector norm of order `p`: (Σ |x|^p)^(1/p); 0 counts what is not 0, ±inf is the largest or smallest |x|.
pub fn norm(a: &Array, p: f64, axes: Axes<'_>, keepdim: bool, dtype: DType) -> Result<Array> {
    if !a.dtype.is_float() || !dtype.is_float() {
        let got = if a.dtype.is_float() { dtype } else { a.dtype };
        bail!(Runtime, "linalg.vector_norm: Expected a floating point or complex tensor as input. Got {}", got.torch_name());
    }
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
    /// The first element that no other beats, and where it is. The line is not empty.
    fn pick_line<T: Lane, P: Pick<T>>(x: &[T]) -> (usize, T) {
        let (mut best, mut at) = (x[0], 0);
        for (i, part) in x.chunks(PART).enumerate() {
            let mut lanes = [part[0]; LANES];
            let (blocks, rest) = part.as_chunks::<LANES>();
            for block in blocks {
                for i in 0..LANES {
                    lanes[i] = P::join(lanes[i], block[i]);
                }
            }
            for (l, &x) in lanes.iter_mut().zip(rest) {
                *l = P::join(*l, x);
            }
            let top = tree(lanes, P::join);
            if P::beats(top, best) {
                (best, at) = (top, i * PART);
            }
        }
        #[allow(clippy::eq_op, reason = "true for NaN only")]
        let is_best = |v: &T| *v == best || (*v != *v && best != best);
        let found = x[at..].iter().position(is_best).unwrap_or(0);
        (at + found, x[at + found])
    }
}
simd! {
    /// As `pick_line`, column by column, for rows that are numbered from `first`.
    fn pick_rows<T: Lane, P: Pick<T>>(best: &mut [T], at: &mut [i64], x: &[T], stride: usize, first: usize) {
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
/// A join that keeps one of the two.
trait Pick<T: Lane>: Join<T> + Prefer<T> {}
impl<T: Lane, P: Join<T> + Prefer<T>> Pick<T> for P {}

/// Values and int64 indices of the elements that no other beats along `dim` (of the row-major array if absent).
fn pick<T: Lane, P: Pick<T>>(a: &Array, dim: Option<usize>, keepdim: bool) -> Result<(Array, Array)> {
    let whole;
    let (a, dim, shape) = match dim {
        Some(d) => (a, d, None),
        None => {
            let shape = if keepdim { a.shape.iter().map(|_| 1).collect() } else { Dims::default() };
            let n = Dims::of(&[a.numel()]);
            whole = super::pointwise::contiguous(a)?;
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
            Piece::Line { of, at: first, x } => {
                let (i, v) = pick_line::<T, P>(x);
                if first == 0 || P::beats(v, best[of]) {
                    (best[of], at[of]) = (v, (first + i) as i64);
                }
            }
            Piece::Rows { at: first, x, stride } => pick_rows::<T, P>(&mut best, &mut at, x, stride, first),
        });
        wide.clear();
        wide.extend(best.iter().map(|v| v.widen()));
        Wide::put(&mut values, a.dtype, out, step, &wide);
        Wide::put(&mut indices, DType::Int64, out, step, &at);
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
