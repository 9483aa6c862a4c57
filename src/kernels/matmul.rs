//! Matrix products over any strides: one primitive, `gemm`, on matrices that lie in slices, and above it the products that a user can name.
//!
//! Nothing is copied to make an operand contiguous. float16 and bfloat16 are widened to float32, integers to int64, and narrowed at the end.
//! Invariant: a product is cut into parts by its shape alone, never by who computes them, so its bits do not depend on threads.
#![allow(unsafe_code)]
use crate::array::{Array, Fresh};
use crate::dtype::{Compute, DType, Element, Scalar};
use crate::error::{Result, bail};
use crate::kernels::math::Real;
use crate::kernels::pointwise::cast;
use crate::kernels::simd::{Level, level, simd};
use crate::layout::{self, Dims};
use smallvec::SmallVec;
use std::borrow::Cow;

/// A matrix in a slice: element (i, j) lies at `i * rs + j * cs`. A stride may be 0.
#[derive(Clone, Copy)]
pub struct Mat<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    rs: usize,
    cs: usize,
}
/// A matrix to be written.
pub struct MatMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
    rs: usize,
    cs: usize,
}
/// Panics where a matrix would leave its slice: the one fact that all unsafe code here rests on.
#[inline]
fn check_fit(len: usize, (rows, cols): (usize, usize), (rs, cs): (usize, usize)) {
    assert!(
        rows == 0 || cols == 0 || (rows - 1) * rs + (cols - 1) * cs < len,
        "a {rows}x{cols} matrix of strides {rs}, {cs} leaves its {len} elements"
    );
}
impl<'a, T> Mat<'a, T> {
    #[inline]
    pub fn new(data: &'a [T], size: (usize, usize), strides: (usize, usize)) -> Self {
        check_fit(data.len(), size, strides);
        Mat { data, rows: size.0, cols: size.1, rs: strides.0, cs: strides.1 }
    }
    /// The transposed matrix; no element moves.
    #[inline]
    pub fn t(self) -> Self {
        Mat { rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs, ..self }
    }
}
impl<'a, T> MatMut<'a, T> {
    #[inline]
    pub fn new(data: &'a mut [T], size: (usize, usize), strides: (usize, usize)) -> Self {
        check_fit(data.len(), size, strides);
        MatMut { data, rows: size.0, cols: size.1, rs: strides.0, cs: strides.1 }
    }
    fn t(self) -> Self {
        MatMut { rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs, ..self }
    }
}

/// `c = beta c + alpha a b`. As in BLAS, what `c` held is not looked at where `beta` is 0, nor `a` and `b` where `alpha` is 0.
pub(crate) fn gemm<'a, T: Wide>(mut c: MatMut<T>, beta: T, mut a: Mat<'a, T>, mut b: Mat<'a, T>, alpha: T) {
    assert!(a.rows == c.rows && a.cols == b.rows && b.cols == c.cols, "sizes of a product");
    if c.cols == 1 || (c.cs != 1 && c.rs == 1) {
        (c, a, b) = (c.t(), b.t(), a.t());
    }
    let (m, n, k) = (c.rows, c.cols, a.cols);
    let zero = T::default();
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 || alpha == zero {
        for i in 0..m {
            (0..n).map(|j| i * c.rs + j * c.cs).for_each(|at| c.data[at] = if beta == zero { zero } else { beta * c.data[at] });
        }
        return;
    }
    let mut p = Product { c, beta, a, b, alpha };
    if p.c.cs != 1 && n > 1 {
        return blocked(p);
    }
    let a_along_k = a.cs == 1 || k == 1;
    let b_along_k = b.rs == 1 || k == 1;
    let rows_of_b = b.cs == 1 || n == 1;
    let few = if (a.rs.max(b.cs) * size_of::<T>()).is_multiple_of(2048) { MANY } else { FEW.max(k / 2) };
    if a_along_k && b_along_k && k >= LONG && m.min(n) < few {
        if m > n {
            p = Product { c: p.c.t(), a: b.t(), b: a.t(), ..p };
        }
        return p.each_block(|p| widest(Dots(p)));
    }
    let small = m.saturating_mul(n).saturating_mul(k) <= SMALL;
    if small && rows_of_b {
        return widest(Strips(p));
    }
    if small && k * n <= SCRATCH {
        let mut rows = [zero; SCRATCH];
        for j in 0..n {
            (0..k).for_each(|q| rows[q * n + j] = b.data[q * b.rs + j * b.cs]);
        }
        p.b = Mat::new(&rows, (k, n), (n, 1));
        return widest(Strips(p));
    }
    blocked(p);
}
/// Under so many rows or columns (or half of k), a product whose operands both lie along k is faster as dot products than with packing, ...
const FEW: usize = 16;
/// ... and under so many if rows lie a multiple of 2 KB apart, since packing then finds them all in the same sets of the cache, ...
const MANY: usize = 2048;
/// ... if k is at least this long.
const LONG: usize = 32;
/// Up to so many multiplications, packing costs more than it gains.
const SMALL: usize = 48 * 48 * 48;
/// Elements of a small operand that are gathered on the stack.
const SCRATCH: usize = 256;
/// Dot products are cut to this length, for accuracy and the first cache, and their rows to blocks for the second.
const DEPTH: usize = 1024;
const BLOCK: usize = 128;

/// What is to be done; the sizes agree.
struct Product<'a, T> {
    c: MatMut<'a, T>,
    beta: T,
    a: Mat<'a, T>,
    b: Mat<'a, T>,
    alpha: T,
}
impl<T: Wide> Product<'_, T> {
    /// Calls `f` with blocks of rows, each as a sum of products of at most `DEPTH` columns of `a`.
    fn each_block(self, f: impl Fn(Product<T>)) {
        let Product { c, beta, a, b, alpha } = self;
        for i in (0..c.rows).step_by(BLOCK) {
            let rows = BLOCK.min(c.rows - i);
            for q in (0..a.cols).step_by(DEPTH) {
                let k = DEPTH.min(a.cols - q);
                f(Product {
                    c: MatMut { data: &mut c.data[i * c.rs..], rows, ..c },
                    beta: if q == 0 { beta } else { <T as Real>::of(1.0) },
                    a: Mat { data: &a.data[i * a.rs + q * a.cs..], rows, cols: k, ..a },
                    b: Mat { data: &b.data[q * b.rs..], rows: k, ..b },
                    alpha,
                });
            }
        }
    }
}
/// By the gemm crate, which packs both operands.
fn blocked<T: Real>(Product { c, beta, a, b, alpha }: Product<T>) {
    let s = |stride: usize| stride as isize;
    // SAFETY: `Mat` and `MatMut` lie within their slices, c's borrow is exclusive, and the sizes agree. (Strides come column first;
    // the crate calls `alpha` what multiplies c.)
    unsafe {
        gemm::gemm(
            c.rows,
            c.cols,
            a.cols,
            c.data.as_mut_ptr(),
            s(c.cs),
            s(c.rs),
            beta != T::default(),
            a.data.as_ptr(),
            s(a.cs),
            s(a.rs),
            b.data.as_ptr(),
            s(b.cs),
            s(b.rs),
            beta,
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
/// Code for vectors, compiled for each instruction set.
pub(crate) trait Job<T: Wide> {
    /// # Safety
    /// The machine has the instructions of `V`.
    unsafe fn run<V: Lanes<T = T>>(self);
}
/// Runs a job with the widest vectors of this machine.
pub(crate) fn widest<T: Wide>(job: impl Job<T>) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
        fn avx512<T: Wide>(job: impl Job<T>) {
            // SAFETY: the features are those of this function.
            unsafe { job.run::<T::Avx512>() }
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2<T: Wide>(job: impl Job<T>) {
            // SAFETY: as above.
            unsafe { job.run::<T::Avx2>() }
        }
        match level() {
            // SAFETY: `level` found the features on this machine.
            Level::Avx512 => return unsafe { avx512(job) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { avx2(job) },
            Level::Plain => {}
        }
    }
    // SAFETY: plain code runs anywhere.
    unsafe { job.run::<T::Plain>() }
}
/// A result computed tile by tile.
pub(crate) trait Tiles<V> {
    /// Rows `i..i + R` by columns (or vectors of columns) `j..j + C`.
    ///
    /// # Safety
    /// The tile lies in the result; the machine has the instructions of `V`.
    unsafe fn tile<const R: usize, const C: usize>(&mut self, i: usize, j: usize);
    /// Every tile of an `m` by `n` result, with single rows and columns where `R` and `C` leave a rest.
    ///
    /// # Safety
    /// As `tile`.
    #[inline(always)]
    unsafe fn all<const R: usize, const C: usize>(&mut self, m: usize, n: usize) {
        let (mut i, mut j) = (0, 0);
        while j < n {
            let broad = j + C <= n;
            while i < m {
                let tall = i + R <= m;
                // SAFETY: each tile ends at m and n at most.
                unsafe {
                    match (tall, broad) {
                        (true, true) => self.tile::<R, C>(i, j),
                        (true, false) => self.tile::<R, 1>(i, j),
                        (false, true) => self.tile::<1, C>(i, j),
                        (false, false) => self.tile::<1, 1>(i, j),
                    }
                }
                i += if tall { R } else { 1 };
            }
            (i, j) = (0, j + if broad { C } else { 1 });
        }
    }
}

/// Dot products, for operands that both lie along k.
struct Dots<'a, T>(Product<'a, T>);
impl<T: Wide> Job<T> for Dots<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Lanes<T = T>>(mut self) {
        let (m, n) = (self.0.c.rows, self.0.c.cols);
        // SAFETY: by the caller's word.
        unsafe {
            match V::MANY {
                true => Tiles::<V>::all::<4, 6>(&mut self, m, n),
                false => Tiles::<V>::all::<2, 3>(&mut self, m, n),
            }
        }
    }
}
impl<V: Lanes<T: Wide>> Tiles<V> for Dots<'_, V::T> {
    #[inline(always)]
    unsafe fn tile<const R: usize, const C: usize>(&mut self, i: usize, j: usize) {
        let Product { c, beta, a, b, alpha } = &mut self.0;
        // SAFETY: R rows of a and C columns of b lie in their slices (`Mat`), each of k numbers in a row.
        let sums = unsafe {
            let x = std::array::from_fn(|r| a.data.as_ptr().add((i + r) * a.rs));
            let y = std::array::from_fn(|s| b.data.as_ptr().add((j + s) * b.cs));
            dot_tile::<V, R, C>(a.cols, x, y, c.rows * c.cols == 1)
        };
        for (r, sums) in sums.into_iter().enumerate() {
            for (s, sum) in sums.into_iter().enumerate() {
                let v = &mut c.data[(i + r) * c.rs + (j + s) * c.cs];
                let sum = sum * *alpha;
                *v = if *beta == V::T::default() { sum } else { *beta * *v + sum };
            }
        }
    }
}
/// The dot products of `R` rows with `C` columns of `k` numbers. One that is `alone` takes four sums, not to wait for its own additions.
///
/// # Safety
/// `k` numbers can be read at each pointer; the machine has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn dot_tile<V: Lanes, const R: usize, const C: usize>(
    k: usize,
    x: [*const V::T; R],
    y: [*const V::T; C],
    alone: bool,
) -> [[V::T; C]; R] {
    // SAFETY: by the caller's word.
    unsafe {
        let mut acc = [[V::zero(); C]; R];
        let mut q = 0;
        if R * C == 1 && alone {
            let mut four = [acc; 4];
            while q + 4 * V::N <= k {
                for (u, acc) in four.iter_mut().enumerate() {
                    add_products(acc, x, y, q + u * V::N, V::N);
                }
                q += 4 * V::N;
            }
            acc[0][0] = four[0][0][0].add(four[1][0][0]).add(four[2][0][0].add(four[3][0][0]));
        }
        while q + V::N <= k {
            add_products(&mut acc, x, y, q, V::N);
            q += V::N;
        }
        if q < k {
            add_products(&mut acc, x, y, q, k - q);
        }
        let mut sums = [[V::T::default(); C]; R];
        for (sums, acc) in sums.iter_mut().zip(acc) {
            for (sum, acc) in sums.iter_mut().zip(acc) {
                *sum = acc.sum();
            }
        }
        sums
    }
}
/// A vector, or its first `n` lanes.
///
/// # Safety
/// So many numbers can be read; the machine has the instructions of `V`.
#[inline(always)]
unsafe fn load_first<V: Lanes>(p: *const V::T, n: usize) -> V {
    // SAFETY: by the caller's word.
    unsafe { if n < V::N { V::load_part(p, n) } else { V::load(p) } }
}
/// Adds the products of one vector of each row and column, or of its first `n` lanes, `q` numbers from their starts.
///
/// # Safety
/// So many numbers can be read; the machine has the instructions of `V`.
#[inline(always)]
unsafe fn add_products<V: Lanes, const R: usize, const C: usize>(
    acc: &mut [[V; C]; R],
    x: [*const V::T; R],
    y: [*const V::T; C],
    q: usize,
    n: usize,
) {
    // SAFETY: by the caller's word.
    unsafe {
        let mut column = [V::zero(); C];
        for (v, y) in column.iter_mut().zip(y) {
            *v = load_first(y.add(q), n);
        }
        for (acc, x) in acc.iter_mut().zip(x) {
            let x: V = load_first(x.add(q), n);
            for (acc, y) in acc.iter_mut().zip(column) {
                *acc = x.fma(y, *acc);
            }
        }
    }
}

/// Rows of `a` times strips of `b`, whose rows are contiguous: nothing is packed.
struct Strips<'a, T>(Product<'a, T>);
impl<T: Wide> Job<T> for Strips<'_, T> {
    #[inline(always)]
    unsafe fn run<V: Lanes<T = T>>(mut self) {
        let (m, n) = (self.0.c.rows, self.0.c.cols.div_ceil(V::N));
        // SAFETY: by the caller's word; columns are counted in vectors.
        unsafe {
            match V::MANY {
                true => Tiles::<V>::all::<4, 4>(&mut self, m, n),
                false => Tiles::<V>::all::<2, 2>(&mut self, m, n),
            }
        }
    }
}
impl<V: Lanes<T: Wide>> Tiles<V> for Strips<'_, V::T> {
    #[inline(always)]
    unsafe fn tile<const R: usize, const C: usize>(&mut self, i: usize, j: usize) {
        let Product { c, beta, a, b, alpha } = &mut self.0;
        let last = (c.cols - (j + C - 1) * V::N).min(V::N);
        // SAFETY: R rows of a and c, and C vectors of b and c lie in their slices (`Mat`), but for the lanes of the last one beyond `last`.
        unsafe {
            let (x, y) = (a.data.as_ptr().add(i * a.rs), b.data.as_ptr().add(j * V::N));
            let mut acc = [[V::zero(); C]; R];
            strip_tile(&mut acc, a.cols, |r, q| *x.add(r * a.rs + q * a.cs), |q| y.add(q * b.rs), last);
            for (r, acc) in acc.into_iter().enumerate() {
                let z = c.data.as_mut_ptr().add((i + r) * c.rs + j * V::N);
                let mut new = acc;
                for v in &mut new {
                    *v = v.fma(V::splat(*alpha), V::zero());
                }
                if *beta != V::T::default() {
                    let old: [V; C] = load_strip(z, last);
                    for (v, old) in new.iter_mut().zip(old) {
                        *v = old.fma(V::splat(*beta), *v);
                    }
                }
                store_strip::<V, C>(new, z, last);
            }
        }
    }
}
/// Adds to `R` strips of `C` vectors the sum over q of the number x(r, q) times the strip at y(q), of which the last vector has `last` lanes.
///
/// # Safety
/// The strips can be read; the machine has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn strip_tile<V: Lanes, const R: usize, const C: usize>(
    acc: &mut [[V; C]; R],
    depth: usize,
    x: impl Fn(usize, usize) -> V::T,
    y: impl Fn(usize) -> *const V::T,
    last: usize,
) {
    for q in 0..depth {
        // SAFETY: by the caller's word.
        unsafe {
            let y: [V; C] = load_strip(y(q), last);
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = V::splat(x(r, q));
                for (acc, y) in acc.iter_mut().zip(y) {
                    *acc = x.fma(y, *acc);
                }
            }
        }
    }
}
/// # Safety
/// The strip can be read; the machine has the instructions of `V`.
#[inline(always)]
unsafe fn load_strip<V: Lanes, const C: usize>(p: *const V::T, last: usize) -> [V; C] {
    // SAFETY: by the caller's word.
    unsafe {
        let mut strip = [V::zero(); C];
        for (s, v) in strip.iter_mut().enumerate() {
            *v = if s + 1 < C { V::load(p.add(s * V::N)) } else { V::load_part(p.add(s * V::N), last) };
        }
        strip
    }
}
/// # Safety
/// The strip can be written; the machine has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn store_strip<V: Lanes, const C: usize>(v: [V; C], p: *mut V::T, last: usize) {
    for (s, v) in v.into_iter().enumerate() {
        // SAFETY: by the caller's word.
        unsafe { if s + 1 < C { v.store(p.add(s * V::N)) } else { v.store_part(p.add(s * V::N), last) } }
    }
}

/// 64 bytes of numbers in registers: one of AVX-512, two of AVX2. The same number of lanes on every machine, so that sums have the same bits.
///
/// # Safety
/// Every function needs the instruction set of the type; loads and stores need `n` numbers at `p`, `N` if there is no `n`.
pub(crate) trait Lanes: Copy {
    type T: Real;
    const N: usize = 64 / size_of::<Self::T>();
    /// Are there 32 registers that hold one each, rather than 8?
    const MANY: bool;
    unsafe fn splat(v: Self::T) -> Self;
    unsafe fn load(p: *const Self::T) -> Self;
    unsafe fn store(self, p: *mut Self::T);
    /// `n <= N` lanes; the others are 0.
    unsafe fn load_part(p: *const Self::T, n: usize) -> Self;
    unsafe fn store_part(self, p: *mut Self::T, n: usize);
    /// `self * a + b`.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    unsafe fn add(self, o: Self) -> Self;
    /// The sum of the lanes: the upper half added to the lower, until one is left.
    unsafe fn sum(self) -> Self::T;
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: by the caller's word.
        unsafe { Self::splat(Self::T::default()) }
    }
}
/// f32 or f64, with its lanes at each level.
pub(crate) trait Wide: Real {
    #[cfg(target_arch = "x86_64")]
    type Avx512: Lanes<T = Self>;
    #[cfg(target_arch = "x86_64")]
    type Avx2: Lanes<T = Self>;
    type Plain: Lanes<T = Self>;
}
/// Lanes in memory, for the compiler to vectorise as it can.
#[derive(Clone, Copy)]
pub(crate) struct Plain<T, const N: usize>([T; N]);
const FMA: bool = cfg!(target_arch = "aarch64");
impl<T: Real, const N: usize> Lanes for Plain<T, N> {
    type T = T;
    const MANY: bool = false;
    #[inline(always)]
    unsafe fn splat(v: T) -> Self {
        Plain([v; N])
    }
    #[inline(always)]
    unsafe fn load(p: *const T) -> Self {
        // SAFETY: by the caller's word.
        unsafe { Plain(p.cast::<[T; N]>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut T) {
        // SAFETY: by the caller's word.
        unsafe { p.cast::<[T; N]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_part(p: *const T, n: usize) -> Self {
        let mut v = [T::default(); N];
        for (i, v) in v.iter_mut().enumerate().take(n) {
            // SAFETY: by the caller's word.
            *v = unsafe { *p.add(i) };
        }
        Plain(v)
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut T, n: usize) {
        for (i, v) in self.0.iter().enumerate().take(n) {
            // SAFETY: by the caller's word.
            unsafe { *p.add(i) = *v }
        }
    }
    #[inline(always)]
    unsafe fn fma(mut self, a: Self, b: Self) -> Self {
        for i in 0..N {
            self.0[i] = self.0[i].fma::<FMA>(a.0[i], b.0[i]);
        }
        self
    }
    #[inline(always)]
    unsafe fn add(mut self, o: Self) -> Self {
        for i in 0..N {
            self.0[i] = self.0[i] + o.0[i];
        }
        self
    }
    #[inline(always)]
    unsafe fn sum(mut self) -> T {
        let mut half = N / 2;
        while half > 0 {
            for i in 0..half {
                self.0[i] = self.0[i] + self.0[i + half];
            }
            half /= 2;
        }
        self.0[0]
    }
}
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Lanes, Plain, Wide};
    use std::arch::x86_64::*;

    #[inline(always)]
    unsafe fn sum_f32(v: __m256) -> f32 {
        // SAFETY: the caller has AVX2.
        unsafe {
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }
    #[inline(always)]
    unsafe fn sum_f64(v: __m256d) -> f64 {
        // SAFETY: the caller has AVX2.
        unsafe {
            let v = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd::<1>(v));
            _mm_cvtsd_f64(_mm_add_sd(v, _mm_unpackhi_pd(v, v)))
        }
    }
    macro_rules! lanes {
        ($t:ident $one:ident $two:ident $sum:ident: $mask:ident $splat:ident $load:ident $store:ident $load_part:ident $store_part:ident $fma:ident $add:ident
         $low:ident $high:ident / $splat2:ident $load2:ident $store2:ident $load_part2:ident $store_part2:ident $fma2:ident $add2:ident $lanes2:ident) => {
            // SAFETY, of each block below: by the caller's word.
            impl Lanes for $one {
                type T = $t;
                const MANY: bool = true;
                #[inline(always)]
                unsafe fn splat(v: $t) -> Self {
                    unsafe { $splat(v) }
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> Self {
                    unsafe { $load(p) }
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut $t) {
                    unsafe { $store(p, self) }
                }
                #[inline(always)]
                unsafe fn load_part(p: *const $t, n: usize) -> Self {
                    unsafe { $load_part(((1u32 << n) - 1) as $mask, p) }
                }
                #[inline(always)]
                unsafe fn store_part(self, p: *mut $t, n: usize) {
                    unsafe { $store_part(p, ((1u32 << n) - 1) as $mask, self) }
                }
                #[inline(always)]
                unsafe fn fma(self, a: Self, b: Self) -> Self {
                    unsafe { $fma(self, a, b) }
                }
                #[inline(always)]
                unsafe fn add(self, o: Self) -> Self {
                    unsafe { $add(self, o) }
                }
                #[inline(always)]
                unsafe fn sum(self) -> $t {
                    unsafe { $sum($add2($low(self), $high::<1>(self))) }
                }
            }
            impl Lanes for [$two; 2] {
                type T = $t;
                const MANY: bool = false;
                #[inline(always)]
                unsafe fn splat(v: $t) -> Self {
                    unsafe { [$splat2(v); 2] }
                }
                #[inline(always)]
                unsafe fn load(p: *const $t) -> Self {
                    unsafe { [$load2(p), $load2(p.add(Self::N / 2))] }
                }
                #[inline(always)]
                unsafe fn store(self, p: *mut $t) {
                    unsafe {
                        $store2(p, self[0]);
                        $store2(p.add(Self::N / 2), self[1]);
                    }
                }
                #[inline(always)]
                unsafe fn load_part(p: *const $t, n: usize) -> Self {
                    let mask = $lanes2(n);
                    unsafe { [$load_part2(p, mask[0]), $load_part2(p.wrapping_add(Self::N / 2), mask[1])] }
                }
                #[inline(always)]
                unsafe fn store_part(self, p: *mut $t, n: usize) {
                    let mask = $lanes2(n);
                    unsafe {
                        $store_part2(p, mask[0], self[0]);
                        $store_part2(p.wrapping_add(Self::N / 2), mask[1], self[1]);
                    }
                }
                #[inline(always)]
                unsafe fn fma(self, a: Self, b: Self) -> Self {
                    unsafe { [$fma2(self[0], a[0], b[0]), $fma2(self[1], a[1], b[1])] }
                }
                #[inline(always)]
                unsafe fn add(self, o: Self) -> Self {
                    unsafe { [$add2(self[0], o[0]), $add2(self[1], o[1])] }
                }
                #[inline(always)]
                unsafe fn sum(self) -> $t {
                    unsafe { $sum($add2(self[0], self[1])) }
                }
            }
            impl Wide for $t {
                type Avx512 = $one;
                type Avx2 = [$two; 2];
                type Plain = Plain<$t, { 64 / size_of::<$t>() }>;
            }
        };
    }
    /// Two AVX2 masks of which the first `n` lanes are set.
    macro_rules! masks { ($($name:ident $lane:ident $lanes:literal;)*) => { $(
        #[inline(always)]
        fn $name(n: usize) -> [__m256i; 2] {
            let mut all: [$lane; $lanes] = [0; $lanes];
            for (i, lane) in all.iter_mut().enumerate() {
                *lane = -((i < n) as $lane);
            }
            // SAFETY: both are 64 bytes of integers.
            unsafe { std::mem::transmute(all) }
        }
    )* } }
    masks! { masks_f32 i32 16; masks_f64 i64 8; }
    lanes! { f32 __m512 __m256 sum_f32: __mmask16 _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_maskz_loadu_ps _mm512_mask_storeu_ps _mm512_fmadd_ps _mm512_add_ps
    _mm512_castps512_ps256 _mm512_extractf32x8_ps / _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_maskload_ps _mm256_maskstore_ps _mm256_fmadd_ps _mm256_add_ps
    masks_f32 }
    lanes! { f64 __m512d __m256d sum_f64: __mmask8 _mm512_set1_pd _mm512_loadu_pd _mm512_storeu_pd _mm512_maskz_loadu_pd _mm512_mask_storeu_pd _mm512_fmadd_pd _mm512_add_pd
    _mm512_castpd512_pd256 _mm512_extractf64x4_pd / _mm256_set1_pd _mm256_loadu_pd _mm256_storeu_pd _mm256_maskload_pd _mm256_maskstore_pd _mm256_fmadd_pd _mm256_add_pd
    masks_f64 }
}
#[cfg(not(target_arch = "x86_64"))]
impl Wide for f32 {
    type Plain = Plain<f32, 16>;
}
#[cfg(not(target_arch = "x86_64"))]
impl Wide for f64 {
    type Plain = Plain<f64, 8>;
}

/// A type that products are computed in.
trait Factor: Element {
    /// `c = beta c + alpha a b`.
    fn gemm(c: MatMut<Self>, beta: Self, a: Mat<Self>, b: Mat<Self>, alpha: Self);
}
impl Factor for f32 {
    fn gemm(c: MatMut<f32>, beta: f32, a: Mat<f32>, b: Mat<f32>, alpha: f32) {
        gemm(c, beta, a, b, alpha);
    }
}
impl Factor for f64 {
    fn gemm(c: MatMut<f64>, beta: f64, a: Mat<f64>, b: Mat<f64>, alpha: f64) {
        gemm(c, beta, a, b, alpha);
    }
}
impl Factor for i64 {
    /// Wrapping; `c` is row-major.
    fn gemm(c: MatMut<i64>, beta: i64, a: Mat<i64>, b: Mat<i64>, alpha: i64) {
        simd! { fn add_row(to: &mut [i64], x: i64, row: &[i64]) { for (t, v) in to.iter_mut().zip(row) { *t = t.wrapping_add(x.wrapping_mul(*v)); } } }
        let gathered: Vec<i64>;
        let rows = if b.cs == 1 {
            b.data
        } else {
            gathered = (0..b.rows * b.cols).map(|at| b.data[at / b.cols * b.rs + at % b.cols * b.cs]).collect();
            &gathered
        };
        let step = if b.cs == 1 { b.rs } else { b.cols };
        for (i, to) in c.data.chunks_exact_mut(c.cols.max(1)).enumerate() {
            to.iter_mut().for_each(|v| *v = v.wrapping_mul(beta));
            for k in 0..a.cols {
                add_row(to, a.data[i * a.rs + k * a.cs].wrapping_mul(alpha), &rows[k * step..][..c.cols]);
            }
        }
    }
}

/// What is added to a product: `beta c + alpha (a b)`, with `c` broadcast to the result.
struct Plus<'a> {
    c: &'a Array,
    beta: Scalar,
    alpha: Scalar,
}
/// The last two axes of `a` times those of `b`, item by item over the axes before, which broadcast. Shapes and dtypes are checked.
fn product(op: &'static str, plus: Option<Plus>, a: &Array, b: &Array) -> Result<Array> {
    match a.dtype.compute() {
        Compute::F32 => product_in::<f32>(op, plus, a, b),
        Compute::F64 => product_in::<f64>(op, plus, a, b),
        Compute::I64 => product_in::<i64>(op, plus, a, b),
    }
}
fn product_in<T: Factor>(op: &'static str, plus: Option<Plus>, a: &Array, b: &Array) -> Result<Array> {
    let dtype = a.dtype;
    let (a, b) = (&*widened(a, T::DTYPE)?, &*widened(b, T::DTYPE)?);
    let (na, nb) = (a.ndim() - 2, b.ndim() - 2);
    let (mut m, k, n) = (a.shape[na], a.shape[na + 1], b.shape[nb + 1]);
    let (mut a_strides, b_strides) = ((a.strides[na], a.strides[na + 1]), (b.strides[nb], b.strides[nb + 1]));
    // Axes of the batch: length, and what a step costs in each operand.
    let mut items: SmallVec<[(usize, usize, usize); 4]> = SmallVec::new();
    let mut shape = Dims::Short { len: 2, d: [m, n, 0, 0] };
    if na + nb > 0 {
        let (lead_a, lead_b) = (Dims::of(&a.shape[..na]), Dims::of(&b.shape[..nb]));
        let batch = layout::broadcast(op, &lead_a, &lead_b)?;
        shape = batch.iter().copied().chain([m, n]).collect();
        let a_steps = layout::expand(&lead_a, &Dims::of(&a.strides[..na]), &batch);
        let b_steps = layout::expand(&lead_b, &Dims::of(&b.strides[..nb]), &batch);
        items.extend(batch.iter().zip(a_steps.iter().zip(b_steps.iter())).map(|(&count, (&x, &y))| (count, x, y)));
    }
    shape.checked_numel()?;
    let mut out = Fresh::new(shape, T::DTYPE)?;
    // Items that share one `b` and whose `a`s lie one below the other are one tall matrix.
    while let Some(&(count, a_step, b_step)) = items.last() {
        if count != 1 && (b_step != 0 || m != 1 && a_step != m * a_strides.0) {
            break;
        }
        if m == 1 {
            a_strides.0 = a_step;
        }
        m *= count;
        items.pop();
    }
    let (mut alpha, mut beta) = (Scalar::Int(1), Scalar::Int(0));
    if let Some(plus) = plus {
        (alpha, beta) = (plus.alpha, plus.beta);
        if !beta.is_zero() {
            let c = plus.c.view(shape, layout::expand(&plus.c.shape, &plus.c.strides, &shape), plus.c.offset);
            out.slice_mut::<T>().copy_from_slice(cast(&c, T::DTYPE)?.slice::<T>());
        }
    }
    let (alpha, beta) = (T::of(alpha), T::of(beta));
    let c = out.slice_mut::<T>();
    for item in 0..items.iter().map(|&(count, ..)| count).product() {
        let (mut rest, mut at, mut bt) = (item, a.offset, b.offset);
        for &(count, a_step, b_step) in items.iter().rev() {
            at += rest % count * a_step;
            bt += rest % count * b_step;
            rest /= count;
        }
        let c = MatMut::new(&mut c[item * m * n..][..m * n], (m, n), (n, 1));
        T::gemm(c, beta, matrix(a, at, (m, k), a_strides), matrix(b, bt, (k, n), b_strides), alpha);
    }
    Ok(if dtype == T::DTYPE { out.done() } else { cast(&out.done(), dtype)? })
}
/// The matrix that starts at element `at` of the storage.
fn matrix<T: Element>(a: &Array, at: usize, (rows, cols): (usize, usize), (rs, cs): (usize, usize)) -> Mat<'_, T> {
    let span = if rows == 0 || cols == 0 { 0 } else { (rows - 1) * rs + (cols - 1) * cs + 1 };
    Mat::new(a.read(at, span), (rows, cols), (rs, cs))
}
/// The array in a compute type: itself where it is of that type.
fn widened(a: &Array, dtype: DType) -> Result<Cow<'_, Array>> {
    Ok(if a.dtype == dtype { Cow::Borrowed(a) } else { Cow::Owned(cast(a, dtype)?) })
}

/// The product of two matrices.
pub fn mm(a: &Array, b: &Array) -> Result<Array> {
    check_mm("mm", a, b)?;
    product("mm", None, a, b)
}
/// `beta c + alpha (a b)`, with `c` broadcast; `c` is not looked at if `beta` is 0.
pub fn addmm(c: &Array, a: &Array, b: &Array, beta: Scalar, alpha: Scalar) -> Result<Array> {
    check_mm("addmm", a, b)?;
    check_plus("addmm", c, &[a.shape[0], b.shape[1]], a.dtype)?;
    product("addmm", Some(Plus { c, beta, alpha }), a, b)
}
/// A batch of products: [batch, m, k] by [batch, k, n].
pub fn bmm(a: &Array, b: &Array) -> Result<Array> {
    check_bmm("bmm", a, b)?;
    product("bmm", None, a, b)
}
/// `beta c + alpha (a b)`, item by item, with `c` broadcast.
pub fn baddbmm(c: &Array, a: &Array, b: &Array, beta: Scalar, alpha: Scalar) -> Result<Array> {
    check_bmm("baddbmm", a, b)?;
    check_plus("baddbmm", c, &[a.shape[0], a.shape[1], b.shape[2]], a.dtype)?;
    product("baddbmm", Some(Plus { c, beta, alpha }), a, b)
}
/// A matrix times a vector.
pub fn mv(a: &Array, v: &Array) -> Result<Array> {
    check_mv("mv", a, v)?;
    Ok(reshaped(product("mv", None, a, &as_column(v))?, &[a.shape[0]]))
}
/// `beta c + alpha (a v)`, with `c` broadcast.
pub fn addmv(c: &Array, a: &Array, v: &Array, beta: Scalar, alpha: Scalar) -> Result<Array> {
    check_mv("addmv", a, v)?;
    if c.ndim() > 1 || c.ndim() == 1 && c.shape[0] != a.shape[0] && c.shape[0] != 1 {
        bail!(Runtime, "addmv(): size mismatch, got input {:?}, mat ({}x{}), vec ({})", c.shape, a.shape[0], a.shape[1], v.shape[0]);
    }
    check_plus("addmv", c, &[a.shape[0]], a.dtype)?;
    let column = if c.ndim() == 1 { as_column(c) } else { c.clone() };
    Ok(reshaped(product("addmv", Some(Plus { c: &column, beta, alpha }), a, &as_column(v))?, &[a.shape[0]]))
}
/// The inner product of two vectors, 0-d.
pub fn dot(a: &Array, b: &Array) -> Result<Array> {
    if a.ndim() != 1 || b.ndim() != 1 {
        bail!(
            Runtime,
            "dot(): 1D tensors expected, but got {}D and {}D tensors of shapes {:?} and {:?}",
            a.ndim(),
            b.ndim(),
            a.shape,
            b.shape
        );
    }
    if a.shape != b.shape {
        bail!(
            Runtime,
            "dot(): inconsistent tensor size, expected tensor [{0}] and src [{1}] to have the same number of elements, but got {0} and {1} elements respectively",
            a.shape[0],
            b.shape[0]
        );
    }
    if a.dtype != b.dtype {
        bail!(Runtime, "dot(): expected both vectors to have same dtype, but found {} and {}", a.dtype.torch_name(), b.dtype.torch_name());
    }
    check_dtype("dot", a, b)?;
    Ok(reshaped(product("dot", None, &as_row(a), &as_column(b))?, &[]))
}
/// torch's `matmul`: vectors stand for a row or a column, and the axes before the last two broadcast (by strides: nothing is copied).
pub fn matmul(a: &Array, b: &Array) -> Result<Array> {
    if a.ndim() == 0 || b.ndim() == 0 {
        bail!(Runtime, "matmul(): both arguments to matmul need to be at least 1D, but they are {}D and {}D", a.ndim(), b.ndim());
    }
    let lift = |x: &Array, f: fn(&Array) -> Array| if x.ndim() == 1 { f(x) } else { x.clone() };
    let (x, y) = (lift(a, as_row), lift(b, as_column));
    let (rows, depth, cols) = (x.shape[x.ndim() - 2], x.shape[x.ndim() - 1], y.shape[y.ndim() - 1]);
    if depth != y.shape[y.ndim() - 2] {
        bail!(
            Runtime,
            "matmul(): mat1 and mat2 shapes cannot be multiplied ({rows}x{depth} and {}x{cols}): operands of shapes {:?} and {:?}",
            y.shape[y.ndim() - 2],
            a.shape,
            b.shape
        );
    }
    check_dtype("matmul", a, b)?;
    let out = product("matmul", None, &x, &y)?;
    let lead = &out.shape[..out.ndim() - 2];
    let shape = lead.iter().copied().chain((a.ndim() > 1).then_some(rows)).chain((b.ndim() > 1).then_some(cols)).collect::<Dims>();
    Ok(reshaped(out, &shape))
}
fn as_row(v: &Array) -> Array {
    v.view(Dims::of(&[1, v.shape[0]]), Dims::of(&[0, v.strides[0]]), v.offset)
}
fn as_column(v: &Array) -> Array {
    v.view(Dims::of(&[v.shape[0], 1]), Dims::of(&[v.strides[0], 0]), v.offset)
}
/// A row-major result under another shape of as many elements.
fn reshaped(a: Array, shape: &[usize]) -> Array {
    let shape = Dims::of(shape);
    a.view(shape, shape.strides(), 0)
}

fn check_mm(op: &'static str, a: &Array, b: &Array) -> Result<()> {
    for (x, name) in [(a, "mat1"), (b, "mat2")] {
        if x.ndim() != 2 {
            bail!(Runtime, "{op}(): {name} must be a matrix, got {}-D tensor of shape {:?}", x.ndim(), x.shape);
        }
    }
    if a.shape[1] != b.shape[0] {
        bail!(
            Runtime,
            "{op}(): mat1 and mat2 shapes cannot be multiplied ({}x{} and {}x{})",
            a.shape[0],
            a.shape[1],
            b.shape[0],
            b.shape[1]
        );
    }
    check_dtype(op, a, b)
}
fn check_bmm(op: &'static str, a: &Array, b: &Array) -> Result<()> {
    for (x, name) in [(a, "batch1"), (b, "batch2")] {
        if x.ndim() != 3 {
            bail!(Runtime, "{op}(): {name} must be a 3D tensor, got {}-D of shape {:?}", x.ndim(), x.shape);
        }
    }
    if a.shape[0] != b.shape[0] || a.shape[2] != b.shape[1] {
        bail!(
            Runtime,
            "{op}(): Expected size for first two dimensions of batch2 tensor to be: [{}, {}] but got: [{}, {}].",
            a.shape[0],
            a.shape[2],
            b.shape[0],
            b.shape[1]
        );
    }
    check_dtype(op, a, b)
}
fn check_mv(op: &'static str, a: &Array, v: &Array) -> Result<()> {
    if a.ndim() != 2 || v.ndim() != 1 {
        bail!(Runtime, "{op}(): matrix @ vector expected, got {}-D and {}-D of shapes {:?} and {:?}", a.ndim(), v.ndim(), a.shape, v.shape);
    }
    if a.shape[1] != v.shape[0] {
        bail!(Runtime, "{op}(): size mismatch, got input ({0}), mat ({0}x{1}), vec ({2})", a.shape[0], a.shape[1], v.shape[0]);
    }
    check_dtype(op, a, v)
}
fn check_dtype(op: &'static str, a: &Array, b: &Array) -> Result<()> {
    if a.dtype != b.dtype {
        bail!(Runtime, "{op}(): expected m1 and m2 to have the same dtype, but got: {} != {}", a.dtype.name(), b.dtype.name());
    }
    if a.dtype == DType::Bool {
        bail!(NotImplemented, "\"{op}\" not implemented for 'Bool'");
    }
    Ok(())
}
fn check_plus(op: &'static str, c: &Array, shape: &[usize], dtype: DType) -> Result<()> {
    let lead = shape.len().checked_sub(c.ndim());
    if !lead.is_some_and(|lead| c.shape.iter().zip(&shape[lead..]).all(|(&x, &y)| x == y || x == 1)) {
        bail!(
            Runtime,
            "{op}(): The expanded size of the tensor must match the existing size: input of shape {:?} does not expand to {shape:?}",
            c.shape
        );
    }
    if c.dtype != dtype {
        bail!(Runtime, "{op}(): self and mat2 must have the same dtype, but got {} and {}", c.dtype.torch_name(), dtype.torch_name());
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::dtype::for_dtype;

    /// Numbers between -1 and 1, always the same.
    pub(crate) fn noise(shape: &[usize], dtype: DType, seed: u64) -> Array {
        let n: usize = shape.iter().product();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let v: Vec<f64> = (0..n)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as f64 / (1u64 << 30) as f64 - 1.0
            })
            .collect();
        let mut f = Fresh::new(Dims::of(shape), dtype).unwrap();
        let number = |v: f64| Scalar::Float(if dtype.is_float() { v } else { (v * 9.0).trunc() });
        for_dtype!(dtype, T => f.slice_mut::<T>().iter_mut().zip(&v).for_each(|(t, &v)| *t = <T as Element>::of(number(v))));
        f.done()
    }
    /// The same matrix under a layout of every kind: row-major, column-major, every second element, one offset.
    fn layouts(shape: &[usize], dtype: DType, seed: u64) -> Vec<Array> {
        let (r, c) = (shape[shape.len() - 2], shape[shape.len() - 1]);
        let lead = &shape[..shape.len() - 2];
        let batch: usize = lead.iter().product();
        let with = |strides: [usize; 3], offset: usize, elements: usize| {
            let base = noise(&[elements.max(1)], dtype, seed);
            let mut s: Vec<usize> = lead.iter().rev().scan(strides[0], |step, &n| Some(std::mem::replace(step, *step * n))).collect();
            s.reverse();
            s.extend([strides[1], strides[2]]);
            base.view(Dims::of(shape), Dims::of(&s), offset)
        };
        vec![
            with([r * c, c, 1], 0, batch * r * c),
            with([r * c, 1, r], 0, batch * r * c),
            with([2 * r * c + 3, 2 * c, 2], 3, batch * (2 * r * c + 3) + 4),
            with([0, c, 1], 0, r * c),
            with([1, batch * c, batch], 0, batch * r * c),
        ]
    }
    /// The product in f64 by three plain loops, and the product of magnitudes that bounds its rounding.
    fn plain(a: &Array, b: &Array) -> (Vec<f64>, Vec<f64>) {
        let n = a.ndim();
        let (m, k, p) = (a.shape[n - 2], a.shape[n - 1], b.shape[n - 1]);
        let batch: usize = a.shape[..n - 2].iter().product();
        let (x, y) = (a.to_vec(), b.to_vec());
        let (mut out, mut size) = (vec![0.0; batch * m * p], vec![0.0; batch * m * p]);
        for (at, (o, s)) in out.iter_mut().zip(&mut size).enumerate() {
            let (i, r, c) = (at / (m * p), at / p % m, at % p);
            for q in 0..k {
                let v = x[(i * m + r) * k + q] * y[(i * k + q) * p + c];
                *o += v;
                *s += v.abs();
            }
        }
        (out, size)
    }
    fn near(got: &Array, want: &(Vec<f64>, Vec<f64>), eps: f64, what: &str) {
        for (i, (g, (w, s))) in got.to_vec().iter().zip(want.0.iter().zip(&want.1)).enumerate() {
            assert!((g - w).abs() <= eps * (s + w.abs()), "{what}: element {i} is {g}, not {w}");
        }
    }
    const SIZES: [(usize, usize, usize); 22] = [
        (1, 1, 1),
        (2, 3, 4),
        (8, 8, 8),
        (1, 17, 33),
        (33, 17, 1),
        (5, 1, 7),
        (3, 2, 9),
        (16, 16, 16),
        (15, 40, 70),
        (31, 33, 35),
        (4, 100, 129),
        (20, 65, 130),
        (64, 64, 64),
        (130, 7, 140),
        (9, 600, 20),
        (90, 520, 7),
        (300, 1100, 2),
        (100, 3, 300),
        (0, 3, 2),
        (2, 0, 3),
        (3, 2, 0),
        (70, 520, 90),
    ];
    #[test]
    fn products_of_every_layout_equal_plain_loops() {
        for (dtype, eps) in [(DType::Float32, 1e-6), (DType::Float64, 1e-14)] {
            for (m, k, n) in SIZES {
                for (i, a) in layouts(&[m, k], dtype, 1).iter().enumerate() {
                    for (j, b) in layouts(&[k, n], dtype, 2).iter().enumerate() {
                        near(&mm(a, b).unwrap(), &plain(a, b), eps, &format!("{dtype:?} {m}x{k}x{n}, layouts {i}, {j}"));
                    }
                }
            }
        }
    }
    #[test]
    fn batches_of_every_layout_equal_plain_loops() {
        for (m, k, n) in SIZES {
            for (i, a) in layouts(&[3, m, k], DType::Float32, 1).iter().enumerate() {
                for (j, b) in layouts(&[3, k, n], DType::Float32, 2).iter().enumerate() {
                    near(&bmm(a, b).unwrap(), &plain(a, b), 1e-6, &format!("3 of {m}x{k}x{n}, layouts {i}, {j}"));
                }
            }
        }
    }
    /// `a` repeated by stride 0 to a shape.
    fn expand(a: &Array, shape: &[usize]) -> Array {
        let shape = Dims::of(shape);
        a.view(shape, layout::expand(&a.shape, &a.strides, &shape), a.offset)
    }
    #[test]
    fn the_axes_before_broadcast_and_vectors_stand_for_rows_and_columns() {
        let cases: [(&[usize], &[usize], &[usize]); 8] = [
            (&[2, 1, 3, 4], &[5, 4, 6], &[2, 5, 3, 6]),
            (&[7, 3, 4], &[4, 6], &[7, 3, 6]),
            (&[2, 7, 1, 4], &[4, 6], &[2, 7, 1, 6]),
            (&[3, 4], &[2, 5, 4, 6], &[2, 5, 3, 6]),
            (&[0, 3, 4], &[4, 6], &[0, 3, 6]),
            (&[2, 1, 3, 0], &[5, 0, 6], &[2, 5, 3, 6]),
            (&[1, 1, 2, 1, 3, 4], &[3, 4, 5], &[1, 1, 2, 3, 3, 5]),
            (&[4, 4], &[4, 4], &[4, 4]),
        ];
        for (x, y, shape) in cases {
            let (a, b) = (noise(x, DType::Float64, 1), noise(y, DType::Float64, 2));
            let out = matmul(&a, &b).unwrap();
            assert_eq!(&*out.shape, shape);
            let lead = |m: &[usize]| [&shape[..shape.len() - 2], &m[m.len() - 2..]].concat();
            near(&out, &plain(&expand(&a, &lead(x)), &expand(&b, &lead(y))), 1e-14, &format!("{x:?} by {y:?}"));
        }
        let (v, a) = (noise(&[4], DType::Float64, 1), noise(&[2, 4, 4], DType::Float64, 2));
        let (row, column) = (matmul(&v, &a).unwrap(), matmul(&a, &v).unwrap());
        assert_eq!((&*row.shape, &*column.shape), (&[2, 4][..], &[2, 4][..]));
        near(&row, &plain(&expand(&as_row(&v), &[2, 1, 4]), &a), 1e-14, "row");
        near(&column, &plain(&a, &expand(&as_column(&v), &[2, 4, 1])), 1e-14, "column");
        assert_eq!(matmul(&v, &v).unwrap().item(), dot(&v, &v).unwrap().item());
    }
    #[test]
    fn products_are_added_to_what_broadcasts() {
        let two = (Scalar::Float(2.0), Scalar::Float(-0.5));
        for dtype in [DType::Float32, DType::Float64, DType::Int32] {
            for (m, k, n) in [(3, 4, 5), (40, 70, 90), (5, 300, 7), (64, 64, 64), (3, 0, 2), (1, 9, 1)] {
                let (a, b) = (noise(&[m, k], dtype, 1), noise(&[k, n], dtype, 2));
                for shape in [&[m, n][..], &[n], &[1, n], &[m, 1], &[]] {
                    let c = noise(shape, dtype, 3);
                    let (beta, alpha) = if dtype.is_float() { two } else { (Scalar::Int(2), Scalar::Int(-3)) };
                    let (mut want, size) = plain(&a, &b);
                    want.iter_mut().zip(expand(&c, &[m, n]).to_vec()).for_each(|(w, c)| *w = beta.to_f64() * c + alpha.to_f64() * *w);
                    near(&addmm(&c, &a, &b, beta, alpha).unwrap(), &(want, size), 1e-6, &format!("{dtype:?} {m}x{k}x{n} + {shape:?}"));
                }
            }
        }
        let (c, a, b) = (noise(&[3], DType::Float64, 1), noise(&[2, 3, 4], DType::Float64, 2), noise(&[2, 4, 3], DType::Float64, 3));
        let (mut want, size) = plain(&a, &b);
        want.iter_mut().zip(expand(&c, &[2, 3, 3]).to_vec()).for_each(|(w, c)| *w = 2.0 * c - 0.5 * *w);
        near(&baddbmm(&c, &a, &b, two.0, two.1).unwrap(), &(want, size), 1e-14, "baddbmm");
        let (a, v) = (noise(&[3, 4], DType::Float64, 2), noise(&[4], DType::Float64, 3));
        let (mut want, size) = plain(&a, &as_column(&v));
        near(&mv(&a, &v).unwrap(), &(want.clone(), size.clone()), 1e-14, "mv");
        want.iter_mut().zip(c.to_vec()).for_each(|(w, c)| *w = 2.0 * c - 0.5 * *w);
        near(&addmv(&c, &a, &v, two.0, two.1).unwrap(), &(want, size), 1e-14, "addmv");
    }
    #[test]
    fn halves_are_summed_in_float32_and_integers_wrap() {
        for (dtype, eps) in [(DType::Float16, 1e-3), (DType::BFloat16, 8e-3)] {
            let (a, b) = (noise(&[7, 500], dtype, 1), noise(&[500, 9], dtype, 2));
            let out = mm(&a, &b).unwrap();
            assert_eq!(out.dtype, dtype);
            let (want, size) = plain(&a, &b);
            for ((g, w), s) in out.to_vec().iter().zip(want).zip(size) {
                assert!((g - w).abs() <= eps * w.abs() + 1e-5 * s, "{g} is not {w}");
            }
        }
        let (a, b) = (Array::from_slice(&[1, 3], &[200u8; 3]).unwrap(), Array::from_slice(&[3, 1], &[2u8; 3]).unwrap());
        assert_eq!(mm(&a, &b).unwrap().to_vec(), [176.0]);
        for dtype in [DType::Int8, DType::Int16, DType::Int64] {
            for (i, a) in layouts(&[5, 6], dtype, 1).iter().enumerate() {
                for (j, b) in layouts(&[6, 4], dtype, 2).iter().enumerate() {
                    let want: Vec<f64> =
                        plain(a, b).0.iter().map(|&v| if dtype == DType::Int8 { v as i64 as i8 as f64 } else { v }).collect();
                    assert_eq!(mm(a, b).unwrap().to_vec(), want, "{dtype:?} layouts {i}, {j}");
                }
            }
        }
    }
    #[test]
    fn what_is_not_a_number_spreads_but_not_from_what_counts_nothing() {
        for (m, k, n) in [(3, 5, 4), (40, 50, 60), (4, 100, 33), (1, 40, 1), (1, 9, 200), (70, 1, 70)] {
            let a = noise(&[m, k], DType::Float32, 1);
            let mut bad = Fresh::new(a.shape, a.dtype).unwrap();
            bad.slice_mut::<f32>().copy_from_slice(a.slice::<f32>());
            bad.slice_mut::<f32>()[k - 1] = f32::NAN;
            let (bad, b) = (bad.done(), noise(&[k, n], DType::Float32, 2));
            let out = mm(&bad, &b).unwrap().to_vec();
            assert!(out[..n].iter().all(|v| v.is_nan()) && out[n..].iter().all(|v| v.is_finite()), "{m}x{k}x{n}");
            let nothing = Array::full(Dims::of(&[m, n]), DType::Float32, Scalar::Float(f64::NAN)).unwrap();
            let (zero, one) = (Scalar::Float(0.0), Scalar::Float(1.0));
            assert_eq!(addmm(&nothing, &a, &b, zero, one).unwrap().to_vec(), mm(&a, &b).unwrap().to_vec());
            assert_eq!(
                addmm(&Array::full(Dims::of(&[m, n]), DType::Float32, one).unwrap(), &bad, &b, one, zero).unwrap().to_vec(),
                vec![1.0; m * n]
            );
        }
    }
    #[test]
    fn bits_depend_neither_on_the_instruction_set_nor_on_the_rows_beside() {
        let bits = |a: &Array| a.slice::<f32>().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        for (m, k, n) in [(8, 8, 8), (5, 300, 13), (7, 2100, 9), (11, 20, 35), (1, 5000, 1)] {
            for b in layouts(&[k, n], DType::Float32, 2) {
                let a = noise(&[m, k], DType::Float32, 1);
                let [wide, narrow] =
                    [Level::Avx512, Level::Avx2].map(|level| crate::kernels::simd::at(level, || bits(&mm(&a, &b).unwrap())));
                assert_eq!(wide, narrow, "{m}x{k}x{n}");
            }
        }
        let (a, w) = (noise(&[13, 700], DType::Float32, 1), noise(&[31, 700], DType::Float32, 2));
        let b = w.view(Dims::of(&[700, 31]), Dims::of(&[1, 700]), 0);
        let all = bits(&mm(&a, &b).unwrap());
        for from in 0..12 {
            let part = a.view(Dims::of(&[2, 700]), a.strides, from * 700);
            assert_eq!(bits(&mm(&part, &b).unwrap()), all[from * 31..][..62]);
        }
    }
    #[test]
    fn sizes_that_do_not_fit_are_refused_as_torch_does() {
        let z = |shape: &[usize]| Array::zeros(Dims::of(shape), DType::Float32).unwrap();
        let says = |r: Result<Array>, text: &str| {
            let e = r.unwrap_err().to_string();
            assert!(e.contains(text), "{e}");
        };
        says(mm(&z(&[2, 3]), &z(&[4, 5])), "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
        says(mm(&z(&[2, 3]), &z(&[3])), "mat2 must be a matrix");
        says(bmm(&z(&[2, 3, 4]), &z(&[3, 4, 2])), "Expected size for first two dimensions of batch2 tensor to be: [2, 4] but got: [3, 4].");
        says(dot(&z(&[2]), &z(&[3])), "same number of elements");
        says(mv(&z(&[2, 3]), &z(&[4])), "size mismatch");
        says(matmul(&z(&[]), &z(&[4])), "at least 1D");
        says(addmm(&z(&[3]), &z(&[2, 3]), &z(&[3, 2]), Scalar::Int(1), Scalar::Int(1)), "The expanded size of the tensor");
        says(mm(&z(&[2, 3]), &cast(&z(&[3, 2]), DType::Float64).unwrap()), "to have the same dtype");
        assert!(
            mm(&Array::zeros(Dims::of(&[1, 1]), DType::Bool).unwrap(), &Array::zeros(Dims::of(&[1, 1]), DType::Bool).unwrap()).is_err()
        );
    }
}
