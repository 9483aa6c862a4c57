//! What reductions compute, on contiguous slices of the compute types: a fold is a map and a join (`over(Add, Square)` is a sum of squares),
//! written on scalars; here it becomes loops over lines (a line to one number) and over rows (rows into a row of numbers). Knows no layout.
//!
//! Accuracy and bits. f32 (and f16, bf16) elements are joined in f32 for at most `PART / LANES` steps, partial results in f64; so a sum of
//! millions keeps about 1e-7. Lanes and parts are fixed: the bits do not depend on the instruction set. Integers are i64 and wrap.
use super::math::Real;
use super::pointwise::{CastTo, Compute, cast_row};
use super::simd::simd;
use crate::array::Fresh;
use crate::dtype::{DType, Element, for_dtype};
use std::marker::PhantomData;

/// Independent accumulators of a line.
pub const LANES: usize = 64;
/// Elements of a line joined in their own type before the result is widened.
pub const PART: usize = 1024;
/// Most accumulators of rows that follow each other in memory.
pub const WIDTH: usize = 256;
/// Elements from which such rows are worth their accumulators.
pub const MANY: usize = 8 * WIDTH;

/// A type that folds compute in, and the type of its partial results: f32 in f64, f64 and i64 in themselves.
pub trait Lane: Compute {
    type Wide: Lane<Wide = Self::Wide>;
    const NOUGHT: Self;
    const UNIT: Self;
    const LOWEST: Self;
    const HIGHEST: Self;
    fn widen(self) -> Self::Wide;
    fn narrow(w: Self::Wide) -> Self;
    /// Integers wrap.
    fn plus(self, b: Self) -> Self;
    fn times(self, b: Self) -> Self;
    /// Writes rows of `cols` elements, cast, into `out`: the first at `at`, rows `rs` and columns `cs` apart.
    fn put(s: &[Self], out: &mut Fresh, dtype: DType, at: usize, cols: usize, rs: usize, cs: usize);
}
/// f32 or f64.
pub trait Float: Lane<Wide = f64> + Real {}
impl<T: Lane<Wide = f64> + Real> Float for T {}
/// How two elements, or two partial results, become one; `start` changes nothing.
pub trait Join: Sync {
    fn start<T: Lane>() -> T;
    fn join<T: Lane>(a: T, b: T) -> T;
}
/// What is joined of an element `x`; `c` is a number of its result that an earlier pass found, for maps that are `CENTRED`.
pub trait Map<T>: Sync {
    const CENTRED: bool = false;
    fn map<const F: bool>(&self, x: T, c: T) -> T;
}
/// A join that keeps one of the two.
pub trait Prefer: Join {
    /// Does `b`, which comes later, replace `a`? NaN replaces all but NaN.
    fn beats<T: Lane>(b: T, a: T) -> bool;
}

pub struct Add;
pub struct Mul;
pub struct Greatest;
pub struct Least;
macro_rules! joins { ($($name:ident $start:ident $f:ident;)*) => { $(impl Join for $name {
    #[inline(always)]
    fn start<T: Lane>() -> T { T::$start }
    #[inline(always)]
    fn join<T: Lane>(a: T, b: T) -> T { a.$f(b) }
})* } }
joins! { Add NOUGHT plus; Mul UNIT times; }
macro_rules! prefer { ($($name:ident $start:ident $op:tt;)*) => { $(
    impl Prefer for $name {
        #[inline(always)]
        #[allow(clippy::eq_op, clippy::neg_cmp_op_on_partial_ord, reason = "NaN compares false with everything, itself included")]
        fn beats<T: Lane>(b: T, a: T) -> bool { !(a $op b) & (a == a) }
    }
    impl Join for $name {
        #[inline(always)]
        fn start<T: Lane>() -> T { T::$start }
        #[inline(always)]
        fn join<T: Lane>(a: T, b: T) -> T { if Self::beats(b, a) { b } else { a } }
    }
)* } }
prefer! { Greatest LOWEST >=; Least HIGHEST <=; }

pub struct Same;
pub struct NanZero;
pub struct NonZero;
macro_rules! maps { ($($name:ident ($x:ident) $f:expr;)*) => { $(impl<T: Lane> Map<T> for $name {
    #[inline(always)]
    #[allow(clippy::eq_op, reason = "true for NaN only")]
    fn map<const F: bool>(&self, $x: T, _: T) -> T { $f }
})* } }
maps! {
    Same (x) x;
    NanZero (x) if x != x { T::NOUGHT } else { x };
    NonZero (x) if x != T::NOUGHT { T::UNIT } else { T::NOUGHT };
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
    /// Lines of `len` elements, `stride` apart, are folded into one number of `acc` each. `c` has a number a line if the map is centred.
    fn lines(&self, acc: &mut [T::Wide], x: &[T], stride: usize, len: usize, c: &[T]);
    /// Rows of `acc.len()` elements, `stride` apart, are folded into `acc`. `c` has a number a column if the map is centred.
    fn rows(&self, acc: &mut [T::Wide], x: &[T], stride: usize, c: &[T]);
}
impl<T: Lane, J: Join, M: Map<T>> Fold<T> for Over<J, M> {
    fn start(&self) -> T::Wide {
        J::start::<T::Wide>()
    }
    fn join(&self, acc: &mut [T::Wide], x: &[T::Wide]) {
        acc.iter_mut().zip(x).for_each(|(a, &x)| *a = J::join(*a, x));
    }
    fn lines(&self, acc: &mut [T::Wide], x: &[T], stride: usize, len: usize, c: &[T]) {
        lines::<T, J, M>(&self.1, acc, x, stride, len, c)
    }
    fn rows(&self, acc: &mut [T::Wide], x: &[T], stride: usize, c: &[T]) {
        rows::<T, J, M>(&self.1, acc, x, stride, c)
    }
}
/// Halves the width by joins until one is left.
#[inline(always)]
fn tree<T: Lane, J: Join>(mut l: [T; 16]) -> T {
    for i in 0..8 {
        l[i] = J::join(l[i], l[i + 8]);
    }
    for i in 0..4 {
        l[i] = J::join(l[i], l[i + 4]);
    }
    J::join(J::join(l[0], l[2]), J::join(l[1], l[3]))
}
/// The join of 64 lanes.
#[inline(always)]
pub fn close<T: Lane, J: Join>(lanes: [T; LANES]) -> T {
    tree::<T, J>(quarter::<T, J>(lanes))
}
#[inline(always)]
fn quarter<T: Lane, J: Join>(lanes: [T; LANES]) -> [T; 16] {
    let mut short = [T::default(); 16];
    for i in 0..16 {
        short[i] = J::join(J::join(lanes[i], lanes[i + 32]), J::join(lanes[i + 16], lanes[i + 48]));
    }
    short
}
/// The join of a line of at most `PART` elements, in 64 lanes, or in 16 where there is not one element for each of them.
#[inline(always)]
pub fn part<const F: bool, T: Lane, J: Join, M: Map<T>>(m: &M, x: &[T], c: T) -> T {
    let start = J::start::<T>();
    let mut short = [start; 16];
    let mut rest = x;
    if x.len() >= LANES {
        let mut lanes = [start; LANES];
        let (blocks, tail) = x.as_chunks::<LANES>();
        for block in blocks {
            for i in 0..LANES {
                lanes[i] = J::join(lanes[i], m.map::<F>(block[i], c));
            }
        }
        short = quarter::<T, J>(lanes);
        rest = tail;
    }
    let (blocks, tail) = rest.as_chunks::<16>();
    for block in blocks {
        for i in 0..16 {
            short[i] = J::join(short[i], m.map::<F>(block[i], c));
        }
    }
    for (l, &x) in short.iter_mut().zip(tail) {
        *l = J::join(*l, m.map::<F>(x, c));
    }
    tree::<T, J>(short)
}
/// The join of a line of any length.
#[inline(always)]
pub fn line<const F: bool, T: Lane, J: Join, M: Map<T>>(m: &M, x: &[T], c: T) -> T::Wide {
    let mut acc = J::start::<T::Wide>();
    for x in x.chunks(PART) {
        acc = J::join(acc, part::<F, T, J, M>(m, x, c).widen());
    }
    acc
}
simd! { fn lines<T: Lane, J: Join, M: Map<T>>(m: &M, acc: &mut [T::Wide], x: &[T], stride: usize, len: usize, c: &[T]) {
    for (i, acc) in acc.iter_mut().enumerate() {
        let c = if M::CENTRED { c[i] } else { T::default() };
        *acc = J::join(*acc, line::<FMA, T, J, M>(m, &x[i * stride..][..len], c));
    }
} }
/// The join of what two rows have in a column.
#[inline(always)]
fn pair<const F: bool, T: Lane, J: Join, M: Map<T>>(m: &M, x: T, y: T, c: T) -> T {
    J::join(m.map::<F>(x, c), m.map::<F>(y, c))
}
simd! { fn rows<T: Lane, J: Join, M: Map<T>>(m: &M, acc: &mut [T::Wide], x: &[T], stride: usize, c: &[T]) {
    let n = acc.len();
    let c = if M::CENTRED { &c[..n] } else { &[] };
    if stride == n && n <= WIDTH && x.len() >= MANY {
        // Rows follow each other: read in order. The last one may be short.
        for x in x.chunks(n * PART / LANES) {
            let mut lanes = [J::start::<T>(); WIDTH];
            let lanes = &mut lanes[..n];
            for row in x.chunks(n) {
                for i in 0..row.len() {
                    lanes[i] = J::join(lanes[i], m.map::<FMA>(row[i], if M::CENTRED { c[i] } else { T::default() }));
                }
            }
            for i in 0..n {
                acc[i] = J::join(acc[i], lanes[i].widen());
            }
        }
        return;
    }
    const AT_ONCE: usize = 8;
    let count = (x.len() - n) / stride + 1;
    for r in (0..count - count % AT_ONCE).step_by(AT_ONCE) {
        let x = &x[r * stride..];
        let (x0, x1, x2, x3) = (&x[..n], &x[stride..][..n], &x[2 * stride..][..n], &x[3 * stride..][..n]);
        let (x4, x5, x6, x7) = (&x[4 * stride..][..n], &x[5 * stride..][..n], &x[6 * stride..][..n], &x[7 * stride..][..n]);
        for i in 0..n {
            let c = if M::CENTRED { c[i] } else { T::default() };
            let low = J::join(pair::<FMA, T, J, M>(m, x0[i], x1[i], c), pair::<FMA, T, J, M>(m, x2[i], x3[i], c));
            let high = J::join(pair::<FMA, T, J, M>(m, x4[i], x5[i], c), pair::<FMA, T, J, M>(m, x6[i], x7[i], c));
            acc[i] = J::join(acc[i], J::join(low, high).widen());
        }
    }
    for r in count - count % AT_ONCE..count {
        let row = &x[r * stride..][..n];
        for i in 0..n {
            acc[i] = J::join(acc[i], m.map::<FMA>(row[i], if M::CENTRED { c[i] } else { T::default() }).widen());
        }
    }
} }
fn put<T: CastTo<D>, D: Element>(s: &[T], d: &mut [D], cols: usize, rs: usize, cs: usize) {
    if cols == 0 {
        return;
    }
    if cs == 1 {
        for (r, s) in s.chunks_exact(cols).enumerate() {
            cast_row(s, &mut d[r * rs..][..cols]);
        }
        return;
    }
    const AT_ONCE: usize = 16; // columns, so that each cache line is written while it is near
    for c in (0..cols).step_by(AT_ONCE) {
        for (r, s) in s.chunks_exact(cols).enumerate() {
            let s = &s[c..cols.min(c + AT_ONCE)];
            s.iter().enumerate().for_each(|(i, s)| d[r * rs + (c + i) * cs] = s.cast());
        }
    }
}
macro_rules! lanes { ($($t:ident $w:ident $lowest:ident $highest:ident ($a:ident, $b:ident) $plus:expr, $times:expr;)*) => { $(impl Lane for $t {
    type Wide = $w;
    const NOUGHT: $t = 0 as $t;
    const UNIT: $t = 1 as $t;
    const LOWEST: $t = $t::$lowest;
    const HIGHEST: $t = $t::$highest;
    #[inline(always)]
    fn widen(self) -> $w { self as $w }
    #[inline(always)]
    fn narrow(w: $w) -> $t { w as $t }
    #[inline(always)]
    fn plus(self, $b: $t) -> $t { let $a = self; $plus }
    #[inline(always)]
    fn times(self, $b: $t) -> $t { let $a = self; $times }
    fn put(s: &[$t], out: &mut Fresh, dtype: DType, at: usize, cols: usize, rs: usize, cs: usize) {
        for_dtype!(dtype, D => put(s, &mut out.slice_mut::<D>()[at..], cols, rs, cs))
    }
})* } }
lanes! {
    f32 f64 NEG_INFINITY INFINITY (a, b) a + b, a * b;
    f64 f64 NEG_INFINITY INFINITY (a, b) a + b, a * b;
    i64 i64 MIN MAX (a, b) a.wrapping_add(b), a.wrapping_mul(b);
}

/// Runs `$body` with `$t` the compute type of `$dtype`.
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
/// As `for_compute`, for dtypes that are floating point.
macro_rules! for_float {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype.compute() {
            $crate::dtype::Compute::F64 => {
                type $t = f64;
                $body
            }
            _ => {
                type $t = f32;
                $body
            }
        }
    };
}
pub(crate) use {for_compute, for_float};
