//! Random numbers equal to torch's on the CPU: the same seed or state gives the same numbers, element by element, and the state can be
//! exchanged with torch in either direction.
//!
//! The source is MT19937 (Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8, 1998): 32-bit words drawn one after another. What
//! makes numbers equal is how many words an element takes and what is done with them: that is fixed here for each distribution. Words are
//! drawn in chunks that stay in the first-level cache, but always in the order of the elements: how a result is cut changes nothing.
//! All functions give fresh row-major arrays; `refill` says how torch orders draws for a destination of another layout.
use super::create::{Made, int_bounds, make, max_of, round_half, stored};
use super::math::Real;
use super::pointwise::cast;
use super::simd::simd;
use super::sort;
use crate::array::{Array, Fresh};
use crate::dtype::{Cast, DType};
use crate::error::{Error, Result, bail};
use crate::layout::{Dims, broadcast, expand, is_dense};
use half::{bf16, f16};
use std::f32::consts::{FRAC_1_PI, FRAC_1_SQRT_2};
use std::f64::consts::PI;

const N: usize = 624;
const M: usize = 397;
/// Words (or elements) made at a time.
const CHUNK: usize = 1024;

/// The state of a source of random words. Plain data: whoever shares one guards it.
#[derive(Clone, PartialEq, Debug)]
pub struct Generator {
    seed: u64,
    state: [u32; N],
    /// Words of the state not drawn yet, plus one; 1 also before the first word.
    left: usize,
    /// The place of the next word in `state`, where there is one.
    next: usize,
    /// The second number of the last pair that the serial normal distribution made.
    normal: Option<f64>,
    /// As torch's state has it; nothing on the CPU draws it.
    normal_f32: Option<f32>,
}
impl Default for Generator {
    fn default() -> Self {
        Generator::new(Self::DEFAULT_SEED)
    }
}
impl Generator {
    /// The seed of a generator that was never given one.
    pub const DEFAULT_SEED: u64 = 67280421310721;
    /// Bytes of a state, as `torch.Generator.get_state` gives them.
    pub const STATE_BYTES: usize = 5056;

    /// The low 32 bits of the seed decide the numbers; all of it is kept.
    pub fn new(seed: u64) -> Self {
        let mut state = [seed as u32; N];
        for j in 1..N {
            let p = state[j - 1];
            state[j] = 1812433253u32.wrapping_mul(p ^ (p >> 30)).wrapping_add(j as u32);
        }
        Generator { seed, state, left: 1, next: 0, normal: None, normal_f32: None }
    }
    pub fn manual_seed(&mut self, seed: u64) {
        *self = Generator::new(seed);
    }
    /// Seeds from the system's entropy; returns the seed (53 bits, so that a double holds it).
    pub fn reseed(&mut self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        let seed = std::hash::RandomState::new().build_hasher().finish() & ((1 << 53) - 1);
        self.manual_seed(seed);
        seed
    }
    pub fn initial_seed(&self) -> u64 {
        self.seed
    }
    /// The state as torch's CPU generator writes it: seed, left, seeded, next, the words as u64, three doubles of which the second is the
    /// cached normal, its flag, then a cached float normal and its flag; little endian, padded.
    pub fn get_state(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(Self::STATE_BYTES);
        b.extend(self.seed.to_le_bytes());
        b.extend((self.left as u32).to_le_bytes());
        b.extend(1u32.to_le_bytes());
        b.extend((self.next as u64).to_le_bytes());
        for w in self.state {
            b.extend((w as u64).to_le_bytes());
        }
        for normal in [0.0, self.normal.unwrap_or(0.0), 0.0] {
            b.extend(normal.to_le_bytes());
        }
        b.extend((self.normal.is_some() as u64).to_le_bytes());
        b.extend(self.normal_f32.unwrap_or(0.0).to_le_bytes());
        b.extend((self.normal_f32.is_some() as u32).to_le_bytes());
        b
    }
    pub fn set_state(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != Self::STATE_BYTES {
            bail!(
                Runtime,
                "set_state(): Expected a CPUGeneratorImplState of size {} but found the input RNG state size to be {}",
                Self::STATE_BYTES,
                bytes.len()
            );
        }
        let u32_at = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let u64_at = |i: usize| (u32_at(i + 4) as u64) << 32 | u32_at(i) as u64;
        let (left, seeded, next) = (u32_at(8) as usize, u32_at(12), u64_at(16));
        // Beyond torch's own check: the words left must lie in the state.
        if seeded != 1 || !(1..=N).contains(&left) || next > (N + 1 - left) as u64 {
            bail!(Runtime, "set_state(): Invalid mt19937 state: left {left}, seeded {seeded}, next {next}");
        }
        let end = 24 + 8 * N;
        *self = Generator {
            seed: u64_at(0),
            state: std::array::from_fn(|i| u32_at(24 + 8 * i)),
            left,
            next: next as usize,
            normal: (u32_at(end + 24) != 0).then(|| f64::from_bits(u64_at(end + 8))),
            normal_f32: (bytes[end + 36] != 0).then(|| f32::from_bits(u32_at(end + 32))),
        };
        Ok(())
    }
    /// The next words.
    pub fn fill(&mut self, mut words: &mut [u32]) {
        while !words.is_empty() {
            if self.left == 1 {
                self.state = twist(&self.state);
                (self.left, self.next) = (N + 1, 0);
            }
            let n = words.len().min(self.left - 1);
            let (now, later) = words.split_at_mut(n);
            temper(&self.state[self.next..self.next + n], now);
            self.next += n;
            self.left -= n;
            words = later;
        }
    }
    pub fn random(&mut self) -> u32 {
        let mut w = [0];
        self.fill(&mut w);
        w[0]
    }
    /// Two words, the first on top.
    pub fn random64(&mut self) -> u64 {
        let mut w = [0; 2];
        self.fill(&mut w);
        long(&w)
    }
    /// Fills `out` chunk by chunk: `f` gets the words drawn for a chunk, `per` an element.
    fn each<T>(&mut self, per: usize, out: &mut [T], mut f: impl FnMut(&[u32], &mut [T])) {
        let mut words = [0; CHUNK];
        for o in out.chunks_mut(CHUNK / per) {
            let w = &mut words[..o.len() * per];
            self.fill(w);
            f(w, o);
        }
    }
    fn uniforms<T: Float>(&mut self, out: &mut [T], lo: T, hi: T) {
        self.each(T::WORDS, out, |w, o| T::uniform(w, o, lo, hi))
    }
    /// One normal number after another by Box and Muller, two from a pair of uniforms: the second waits for the next call.
    fn normals(&mut self, out: &mut [f64], mean: f64, std: f64) {
        for o in out.iter_mut() {
            *o = self.normal.take().unwrap_or_else(|| {
                let mut unit = || (self.random64() & ((1 << 53) - 1)) as f64 * (1.0 / 9007199254740992.0);
                let (theta, u) = (2.0 * PI * unit(), unit());
                let r = (-2.0 * (-u).ln_1p()).sqrt();
                self.normal = Some(r * theta.sin());
                r * theta.cos()
            });
        }
        affine(out, std, mean);
    }
    /// Sixteen at a time: eight pairs. Where the length is no multiple of 16, the last 16 elements are drawn once more, all of them.
    /// `lean`: the elements after the last full sixteen are not drawn a first time.
    fn normal_blocks<T: Float>(&mut self, out: &mut [T], mean: T, std: T, lean: bool) {
        let (n, full) = (out.len(), out.len() / 16 * 16);
        let (blocks, rest) = out.split_at_mut(full);
        for block in blocks.chunks_mut(CHUNK) {
            self.uniforms(block, T::lit(0.0), T::lit(1.0));
            T::box_muller(block, mean, std);
        }
        if full < n {
            if !lean {
                self.uniforms(rest, T::lit(0.0), T::lit(1.0));
            }
            let last = &mut out[n - 16..];
            self.uniforms(last, T::lit(0.0), T::lit(1.0));
            T::box_muller(last, mean, std);
        }
    }
}
#[inline(always)]
fn long(w: &[u32]) -> u64 {
    (w[0] as u64) << 32 | w[1] as u64
}
simd! {
    /// The next 624 words of the state, in the recurrence of the paper; written to a second array, so that it vectorises.
    fn twist(s: &[u32; N]) -> [u32; N] {
        #[inline(always)]
        fn mix(far: u32, a: u32, b: u32) -> u32 {
            far ^ (((a & 0x8000_0000) | (b & 0x7fff_ffff)) >> 1) ^ ((b & 1).wrapping_neg() & 0x9908_b0df)
        }
        let mut t = [0; N];
        for (j, t) in t[..N - M].iter_mut().enumerate() {
            *t = mix(s[j + M], s[j], s[j + 1]);
        }
        // A word leans on the one written N - M places before: pieces no longer than that, read from before, written behind.
        let mut start = N - M;
        while start < N - 1 {
            let n = (N - M).min(N - 1 - start);
            let (before, behind) = t.split_at_mut(start);
            let (far, a, b) = (&before[start - (N - M)..][..n], &s[start..][..n], &s[start + 1..][..n]);
            for (j, t) in behind[..n].iter_mut().enumerate() {
                *t = mix(far[j], a[j], b[j]);
            }
            start += n;
        }
        t[N - 1] = mix(t[M - 1], s[N - 1], t[0]);
        t
    }
}
simd! {
    fn temper(state: &[u32], words: &mut [u32]) {
        for (w, &s) in words.iter_mut().zip(state) {
            let y = s ^ (s >> 11);
            let y = y ^ ((y << 7) & 0x9d2c_5680);
            let y = y ^ ((y << 15) & 0xefc6_0000);
            *w = y ^ (y >> 18);
        }
    }
}
simd! {
    /// 24 bits of a word make a float in [0, 1), stretched to [lo, hi). Where rounding reaches `hi`, `lo` stands in for it.
    fn uniform_f32(words: &[u32], out: &mut [f32], lo: f32, hi: f32) {
        let range = hi - lo;
        for (o, w) in out.iter_mut().zip(words) {
            let u = (w & 0xff_ffff) as i32 as f32 * (1.0 / 16777216.0);
            let v = u.fma::<FMA>(range, lo);
            *o = if v == hi { lo } else { v };
        }
    }
}
simd! {
    /// As `uniform_f32`, of 53 bits of two words: put together in two exact steps, which vectorise where i64 to f64 does not.
    fn uniform_f64(words: &[u32], out: &mut [f64], lo: f64, hi: f64) {
        let range = hi - lo;
        for (o, w) in out.iter_mut().zip(words.chunks_exact(2)) {
            let u = ((w[0] & 0x1f_ffff) as i32 as f64 * 4294967296.0 + w[1] as f64) * (1.0 / 9007199254740992.0);
            let v = u.fma::<FMA>(range, lo);
            *o = if v == hi { lo } else { v };
        }
    }
}
simd! { fn affine(x: &mut [f64], scale: f64, shift: f64) { for v in x.iter_mut() { *v = v.fma::<FMA>(scale, shift); } } }

/// Natural logarithm of a positive normal f32 as in Cephes (S. Moshier, logf), in the order and with the fused steps that torch's vector
/// code has: the bits are part of the promise.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "the constants as published")]
fn log<const F: bool>(x: f32) -> f32 {
    let x = if x > f32::MIN_POSITIVE { x } else { f32::MIN_POSITIVE };
    let b = x.to_bits();
    let (m, e) = (f32::from_bits((b & 0x007f_ffff) | 0x3f00_0000), (b >> 23) as i32 as f32 - 126.0);
    let small = m < FRAC_1_SQRT_2;
    let x = (m - 1.0) + if small { m } else { 0.0 };
    let e = e - if small { 1.0 } else { 0.0 };
    let z = x * x;
    let mut y = 7.0376836292e-2f32;
    for c in [
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
    ] {
        y = y.fma::<F>(x, c);
    }
    let y = (y * x).fma::<F>(z, e * -2.12194440e-4) - z * 0.5;
    e.fma::<F>(0.693359375, x + y)
}
/// Sine and cosine of an f32 in [0, 2 pi], as `log` after Cephes (sinf, cosf): the octant, then one of two polynomials.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "the constants as published")]
fn sin_cos<const F: bool>(x: f32) -> (f32, f32) {
    let j = ((x * (4.0 * FRAC_1_PI)) as i32 + 1) & !1;
    let n = j as f32;
    let x = n.fma::<F>(-3.77489497744594108e-8, n.fma::<F>(-2.4187564849853515625e-4, n.fma::<F>(-0.78515625, x)));
    let z = x * x;
    let c = 2.443315711809948e-5f32.fma::<F>(z, -1.388731625493765e-3).fma::<F>(z, 4.166664568298827e-2);
    let c = (c * z).fma::<F>(z, z * -0.5) + 1.0;
    let s = (-1.9515295891e-4f32).fma::<F>(z, 8.3321608736e-3).fma::<F>(z, -1.6666654611e-1);
    let s = (s * z).fma::<F>(x, x);
    let (sin, cos) = if j & 2 == 0 { (s, c) } else { (c, s) };
    (flipped(sin, j), flipped(cos, !(j - 2)))
}
/// With the other sign where bit 2 is set.
#[inline(always)]
fn flipped(v: f32, octant: i32) -> f32 {
    f32::from_bits(v.to_bits() ^ ((octant & 4) as u32) << 29)
}
simd! {
    fn box_muller_f32(block: &mut [f32], mean: f32, std: f32) {
        for b in block.chunks_exact_mut(16) {
            let (p, q) = b.split_at_mut(8);
            for (p, q) in p.iter_mut().zip(q) {
                let r = (-2.0 * log::<FMA>(1.0 - *p)).sqrt();
                let (sin, cos) = sin_cos::<FMA>(*q * (2.0 * std::f32::consts::PI));
                *p = (r * cos).fma::<FMA>(std, mean);
                *q = (r * sin).fma::<FMA>(std, mean);
            }
        }
    }
}
simd! {
    fn box_muller_f64(block: &mut [f64], mean: f64, std: f64) {
        for b in block.chunks_exact_mut(16) {
            let (p, q) = b.split_at_mut(8);
            for (p, q) in p.iter_mut().zip(q) {
                let (r, theta) = ((-2.0 * (1.0 - *p).ln()).sqrt(), 2.0 * PI * *q);
                *p = (r * theta.cos()).fma::<FMA>(std, mean);
                *q = (r * theta.sin()).fma::<FMA>(std, mean);
            }
        }
    }
}
/// What is drawn as such: the floats of the uniform and of the blockwise normal distribution.
trait Float: Real + Made {
    /// Words an element takes.
    const WORDS: usize;
    fn uniform(words: &[u32], out: &mut [Self], lo: Self, hi: Self);
    /// Turns uniforms in place into normals, in blocks of 16.
    fn box_muller(block: &mut [Self], mean: Self, std: Self);
}
macro_rules! floats { ($($t:ident $words:literal $uniform:ident $box_muller:ident)*) => { $(impl Float for $t {
    const WORDS: usize = $words;
    fn uniform(words: &[u32], out: &mut [$t], lo: $t, hi: $t) { $uniform(words, out, lo, hi) }
    fn box_muller(block: &mut [$t], mean: $t, std: $t) { $box_muller(block, mean, std) }
})* } }
floats! { f32 1 uniform_f32 box_muller_f32  f64 2 uniform_f64 box_muller_f64 }

/// Elements that are each a function of one uniform double in [0, 1).
fn from_uniform(g: &mut Generator, shape: Dims, dtype: DType, f: impl Fn(f64) -> f64) -> Result<Array> {
    make(shape, dtype, &mut |o: &mut [f64]| {
        g.uniforms(o, 0.0, 1.0);
        for v in o {
            *v = f(*v);
        }
    })
}
fn need_float(op: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() { Ok(()) } else { Err(Box::new(Error::Unsupported { op, dtype })) }
}
/// Binary digits of a float type's mantissa.
fn digits(dtype: DType) -> u32 {
    match dtype {
        DType::Float16 => f16::MANTISSA_DIGITS,
        DType::BFloat16 => bf16::MANTISSA_DIGITS,
        DType::Float32 => f32::MANTISSA_DIGITS,
        _ => f64::MANTISSA_DIGITS,
    }
}
/// Uniform in `[lo, hi)`: `rand` and `uniform_`. A word an element, two for float64.
pub fn uniform(g: &mut Generator, shape: Dims, dtype: DType, lo: f64, hi: f64) -> Result<Array> {
    need_float("uniform_", dtype)?;
    let max = max_of(dtype);
    for (name, v) in [("from", lo), ("to", hi)] {
        if !(-max..=max).contains(&v) {
            bail!(Runtime, "uniform_(): {name} is out of bounds for {}, got {v}", dtype.name());
        }
    }
    if lo > hi {
        bail!(Runtime, "uniform_ expects to return a [from, to) range, but found from={lo} > to={hi}");
    }
    if hi - lo > max {
        bail!(Runtime, "uniform_ expects to-from to be at most the largest {}, but found to={hi} and from={lo}", dtype.name());
    }
    if dtype == DType::Float64 {
        return make(shape, dtype, &mut |o: &mut [f64]| g.uniforms(o, lo, hi));
    }
    let (lo, hi) = (lo as f32, hi as f32);
    make(shape, dtype, &mut |o: &mut [f32]| {
        g.uniforms(o, lo, hi);
        if dtype != DType::Float32 {
            let hi = round_half(dtype, hi); // a number that the type rounds to it becomes the lower bound, too
            o.iter_mut().filter(|v| round_half(dtype, **v) == hi).for_each(|v| *v = lo);
        }
    })
}
/// Normal: `randn` and `normal_` into a row-major destination. Below 16 elements as `normal_serial`, from there in blocks of 16.
pub fn normal(g: &mut Generator, shape: Dims, dtype: DType, mean: f64, std: f64) -> Result<Array> {
    if shape.numel() < 16 {
        return normal_serial(g, shape, dtype, mean, std);
    }
    check_normal(dtype, std)?;
    match dtype {
        DType::Float64 => normal_of::<f64>(g, shape, mean, std, false),
        DType::Float32 => normal_of::<f32>(g, shape, mean as f32, std as f32, false),
        _ => {
            let wide = normal_of::<f32>(g, shape, mean as f32, std as f32, true)?;
            stored(shape, dtype, wide.slice::<f32>())
        }
    }
}
fn normal_of<T: Float>(g: &mut Generator, shape: Dims, mean: T, std: T, lean: bool) -> Result<Array> {
    let mut to = Fresh::new(shape, T::DTYPE)?;
    g.normal_blocks(to.slice_mut(), mean, std, lean);
    Ok(to.done())
}
/// Normal, one after another in float64: few elements, and destinations that are not row-major.
pub fn normal_serial(g: &mut Generator, shape: Dims, dtype: DType, mean: f64, std: f64) -> Result<Array> {
    check_normal(dtype, std)?;
    make(shape, dtype, &mut |o| g.normals(o, mean, std))
}
fn check_normal(dtype: DType, std: f64) -> Result<()> {
    if std.is_nan() || std < 0.0 {
        bail!(Runtime, "normal expects std >= 0.0, but found std {std}");
    }
    need_float("normal_", dtype)
}
/// Draws for a destination of `like`'s layout: its elements in order of memory (largest stride outermost), not of the index, as torch
/// does for in-place draws and for the `*_like` functions. `draw` makes the elements in that order; the result has `like`'s shape.
pub fn refill(like: &Array, draw: impl FnOnce(Dims) -> Result<Array>) -> Result<Array> {
    if like.is_contiguous() {
        return draw(like.shape);
    }
    let axes = memory_order(like);
    let drawn = draw(axes.iter().map(|&i| like.shape[i]).collect())?;
    let mut strides = vec![0; axes.len()];
    for (k, &i) in axes.iter().enumerate() {
        strides[i] = drawn.strides[k];
    }
    Ok(drawn.view(like.shape, Dims::of(&strides), drawn.offset))
}
/// The axes, largest stride first.
fn memory_order(a: &Array) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..a.ndim()).collect();
    axes.sort_by_key(|&i| std::cmp::Reverse(a.strides[i]));
    axes
}
/// `refill` where torch's `empty_like` keeps the layout: dense ones; else in order of the index.
fn refill_like(like: &Array, draw: impl FnOnce(Dims) -> Result<Array>) -> Result<Array> {
    if is_dense(&like.shape, &like.strides) { refill(like, draw) } else { draw(like.shape) }
}
/// `normal_` into a destination of `like`'s layout (see `refill`).
pub fn normal_like(g: &mut Generator, like: &Array, mean: f64, std: f64) -> Result<Array> {
    match like.is_contiguous() {
        true => normal(g, like.shape, like.dtype, mean, std),
        false => refill(like, |shape| normal_serial(g, shape, like.dtype, mean, std)),
    }
}

/// Ranges from here on take two words an element: with one, the remainder would favour small numbers visibly.
const LONG_RANGE: u64 = 1 << 28;
/// Integers in `[lo, hi)`: `randint` and `random_(lo, hi)`, in any dtype.
pub fn randint(g: &mut Generator, shape: Dims, dtype: DType, lo: i64, hi: i64) -> Result<Array> {
    if lo >= hi {
        bail!(Runtime, "random_ expects 'from' to be less than 'to', but got from={lo} >= to={hi}");
    }
    let (lo, hi) = if dtype.is_float() { (nearest(dtype, lo, 1), nearest(dtype, hi, -1)) } else { (lo, hi) };
    if lo >= hi {
        bail!(Runtime, "random_ expects 'from' casted to dtype to be less than 'to' casted to dtype, but got from={lo} >= to={hi}");
    }
    check_in_range(dtype, lo, hi - 1)?;
    integers(g, shape, dtype, lo, hi.wrapping_sub(lo) as u64)
}
/// `random_(lo, None)`: from `lo` to the largest integer of the dtype; to the last of the consecutive ones that a float holds.
pub fn random_from(g: &mut Generator, shape: Dims, dtype: DType, lo: i64) -> Result<Array> {
    if lo == i64::MIN {
        if !matches!(dtype, DType::Int64 | DType::Float64 | DType::Float32 | DType::BFloat16) {
            bail!(Runtime, "random_(): the full range of 64 bits needs int64, float64, float32 or bfloat16, got {}", dtype.name());
        }
        return make(shape, dtype, &mut |o: &mut [i64]| {
            g.each(2, o, |w, o| o.iter_mut().zip(w.chunks_exact(2)).for_each(|(o, w)| *o = long(w) as i64))
        });
    }
    let (lo, last) = if dtype.is_float() { (nearest(dtype, lo, 1), 1 << digits(dtype)) } else { (lo, int_bounds(dtype).1) };
    if lo > last {
        bail!(Runtime, "random_ expects 'from' to be at most the largest {}, but got from={lo} > {last}", dtype.name());
    }
    check_in_range(dtype, lo, last)?;
    integers(g, shape, dtype, lo, (last.wrapping_sub(lo) as u64).wrapping_add(1)) // not 0: lo > i64::MIN
}
/// `random_()`: all non-negative integers of an integer type, those that a float holds exactly.
pub fn random(g: &mut Generator, shape: Dims, dtype: DType) -> Result<Array> {
    let below = if dtype.is_float() { (1 << digits(dtype)) + 1 } else { int_bounds(dtype).1 as u64 + 1 };
    if matches!(dtype, DType::Int64 | DType::Float64) {
        integers64(g, shape, dtype, 0, below)
    } else {
        integers32(g, shape, dtype, 0, below as u32)
    }
}
fn integers(g: &mut Generator, shape: Dims, dtype: DType, lo: i64, range: u64) -> Result<Array> {
    if range >= LONG_RANGE { integers64(g, shape, dtype, lo, range) } else { integers32(g, shape, dtype, lo, range as u32) }
}
fn integers32(g: &mut Generator, shape: Dims, dtype: DType, lo: i64, range: u32) -> Result<Array> {
    make(shape, dtype, &mut |o: &mut [i64]| g.each(1, o, |w, o| remainders(w, o, lo, range)))
}
fn integers64(g: &mut Generator, shape: Dims, dtype: DType, lo: i64, range: u64) -> Result<Array> {
    make(shape, dtype, &mut |o: &mut [i64]| {
        g.each(2, o, |w, o| o.iter_mut().zip(w.chunks_exact(2)).for_each(|(o, w)| *o = ((long(w) % range) as i64).wrapping_add(lo)))
    })
}
simd! {
    /// `lo + w % range`, range at most 2^31: the quotient by a rounded reciprocal is at most one off, which the two corrections mend.
    fn remainders(words: &[u32], out: &mut [i64], lo: i64, range: u32) {
        let (inverse, range) = (1.0 / range as f64, range as f64);
        for (o, &w) in out.iter_mut().zip(words) {
            let w = w as f64;
            let r = w - (w * inverse).floor() * range;
            let r = if r < 0.0 { r + range } else { r };
            let r = if r >= range { r - range } else { r };
            *o = lo + r as i32 as i64;
        }
    }
}
fn check_in_range(dtype: DType, lo: i64, last: i64) -> Result<()> {
    for (name, v) in [("from", lo), ("to - 1", last)] {
        let fits =
            if dtype.is_float() { (v as f64).abs() <= max_of(dtype) } else { (int_bounds(dtype).0..=int_bounds(dtype).1).contains(&v) };
        if !fits {
            bail!(Runtime, "random_(): {name} is out of bounds for {}, got {v}", dtype.name());
        }
    }
    Ok(())
}
/// A bound moved inward (`step` 1 or -1) to the next integer that the float type holds, if rounding its inner neighbour crosses it.
fn nearest(dtype: DType, bound: i64, step: i64) -> i64 {
    let inner = bound.saturating_add(step);
    let stored = match dtype {
        DType::Float64 => inner as f64 as i64,
        DType::Float32 => inner as f32 as i64,
        _ => round_half(dtype, inner as f32) as i64,
    };
    let crosses = if step > 0 { stored < bound } else { stored >= bound };
    let exponent = inner.unsigned_abs().checked_ilog2().unwrap_or(0) as i32;
    if crosses { stored.saturating_add(step << (exponent - digits(dtype) as i32 + 1).clamp(0, 62)) } else { bound }
}

/// Lengths from here on are permuted with two words an element.
const LONG_PERMUTATION: usize = u32::MAX as usize / 20;
/// The numbers below `n` in random order.
pub fn randperm(g: &mut Generator, n: i64, dtype: DType) -> Result<Array> {
    if n < 0 {
        bail!(Runtime, "randperm(): n must be non-negative: Trying to create tensor with negative dimension {n}");
    }
    let exact = match dtype {
        DType::Bool => return Err(Box::new(Error::Unsupported { op: "randperm", dtype })),
        DType::BFloat16 => i64::MAX, // as torch: rounded, not refused
        _ if dtype.is_float() => (1 << digits(dtype)) + 1,
        _ => int_bounds(dtype).1.saturating_add(1),
    };
    if n > exact {
        bail!(Runtime, "randperm(): n is too large for result tensor type {}: n cannot be greater than {exact}, got {n}", dtype.name());
    }
    let n = n as usize;
    Dims::of(&[n]).checked_numel()?;
    let mut to = Fresh::new(Dims::of(&[n]), DType::Int64)?;
    shuffle(g, to.slice_mut::<i64>(), n >= LONG_PERMUTATION);
    let ints = to.done();
    if dtype == DType::Int64 { Ok(ints) } else { stored(ints.shape, dtype, ints.slice::<i64>()) }
}
/// Fisher and Yates, forwards over the finished numbers; or inside out, where the list is built as it is shuffled.
fn shuffle(g: &mut Generator, p: &mut [i64], long_list: bool) {
    let n = p.len();
    let mut words = [0; CHUNK];
    if long_list {
        for start in (0..n).step_by(CHUNK / 2) {
            let w = &mut words[..(n - start).min(CHUNK / 2) * 2];
            g.fill(w);
            for (i, w) in (start..).zip(w.chunks_exact(2)) {
                let z = (long(w) % (i as u64 + 1)) as usize;
                p[i] = i as i64;
                p[i] = p[z];
                p[z] = i as i64;
            }
        }
        return;
    }
    for (i, p) in p.iter_mut().enumerate() {
        *p = i as i64;
    }
    for start in (0..n.saturating_sub(1)).step_by(CHUNK) {
        let w = &mut words[..(n - 1 - start).min(CHUNK)];
        g.fill(w);
        for (i, w) in (start..).zip(w.iter()) {
            p.swap(i, i + (w % (n - i) as u32) as usize);
        }
    }
}

/// Ones with probability `p`, in any dtype: `bernoulli_(p)`, `bernoulli(x, p)`, and the mask of dropout.
pub fn bernoulli(g: &mut Generator, shape: Dims, dtype: DType, p: f64) -> Result<Array> {
    if !(0.0..=1.0).contains(&p) {
        bail!(Runtime, "bernoulli_ expects p to be in [0, 1], but got p={p}");
    }
    from_uniform(g, shape, dtype, |u| (u < p) as u8 as f64)
}
/// Ones with the probabilities in `p` (its shape is the result's): `bernoulli(p)`.
pub fn bernoulli_each(g: &mut Generator, p: &Array, dtype: DType) -> Result<Array> {
    need_float("bernoulli_", p.dtype)?;
    let given = cast(p, DType::Float64)?;
    let mut given = given.slice::<f64>().iter();
    if let Some(v) = given.clone().find(|v| !(0.0..=1.0).contains(*v)) {
        bail!(Runtime, "bernoulli_(): Expected p_in >= 0 && p_in <= 1 to be true, but got false: a probability is {v}");
    }
    match p.dtype {
        DType::Float64 => make(p.shape, dtype, &mut |o: &mut [f64]| {
            g.uniforms(o, 0.0, 1.0);
            o.iter_mut().zip(&mut given).for_each(|(v, &p)| *v = (*v < p) as u8 as f64);
        }),
        _ => make(p.shape, dtype, &mut |o: &mut [f32]| {
            g.uniforms(o, 0.0, 1.0);
            o.iter_mut().zip(&mut given).for_each(|(v, &p)| *v = (*v < p as f32) as u8 as f32);
        }),
    }
}
/// `bernoulli_(p)` into a destination of `like`'s layout (see `refill`), to whose shape `p` broadcasts.
pub fn bernoulli_like(g: &mut Generator, like: &Array, p: &Array) -> Result<Array> {
    if broadcast("bernoulli_", &like.shape, &p.shape)? != like.shape {
        return Err(Box::new(Error::Broadcast { op: "bernoulli_", lhs: like.shape.to_vec(), rhs: p.shape.to_vec() }));
    }
    let strides = expand(&p.shape, &p.strides, &like.shape);
    let order = if like.is_contiguous() { (0..like.ndim()).collect() } else { memory_order(like) };
    refill(like, |shape| bernoulli_each(g, &p.view(shape, order.iter().map(|&i| strides[i]).collect(), p.offset), like.dtype))
}
/// What dropout multiplies its input by: 0 with probability `p`, else 1 / (1 - p) as the dtype has it, drawn in the input's order of
/// memory. `p` in [0, 1) (torch draws nothing for 0 and 1).
pub fn dropout_noise(g: &mut Generator, like: &Array, p: f64) -> Result<Array> {
    if !(0.0..=1.0).contains(&p) {
        bail!(Value, "dropout probability has to be between 0 and 1, but got {p}");
    }
    need_float("dropout", like.dtype)?;
    let keep = 1.0 - p;
    let scale = if like.dtype == DType::Float64 { 1.0 / keep } else { (1.0 / keep as f32) as f64 };
    refill_like(like, |shape| from_uniform(g, shape, like.dtype, |u| (u < keep) as u8 as f64 * scale))
}
/// Exponential with rate `lambda`: -log(1 - u) / lambda.
pub fn exponential(g: &mut Generator, shape: Dims, dtype: DType, lambda: f64) -> Result<Array> {
    if lambda.is_nan() || lambda <= 0.0 {
        bail!(Runtime, "exponential_ expects lambda > 0.0, but found lambda={lambda}");
    }
    if !dtype.is_float() {
        bail!(
            Runtime,
            "Exponential distribution is a continuous probability distribution. dtype must be a floating point but you specified {}",
            dtype.name()
        );
    }
    let scale = -1.0 / lambda;
    from_uniform(g, shape, dtype, |u| scale * (-u).ln_1p())
}
/// Trials up to the first success of probability `p`: ceil(log(u) / log(1 - p)).
pub fn geometric(g: &mut Generator, shape: Dims, dtype: DType, p: f64) -> Result<Array> {
    if !(p > 0.0 && p < 1.0) {
        bail!(Runtime, "geometric_ expects p to be in (0, 1), but got p={p}");
    }
    if dtype == DType::Bool {
        return Err(Box::new(Error::Unsupported { op: "geometric_", dtype }));
    }
    let failure = (-p).ln_1p();
    from_uniform(g, shape, dtype, |u| (u.ln() / failure).ceil())
}
/// Cauchy: median + sigma tan(pi (u - 1/2)).
pub fn cauchy(g: &mut Generator, shape: Dims, dtype: DType, median: f64, sigma: f64) -> Result<Array> {
    if sigma.is_nan() || sigma <= 0.0 {
        bail!(Runtime, "cauchy_ expects sigma > 0.0, but found sigma={sigma}");
    }
    if !dtype.is_float() {
        bail!(
            Runtime,
            "Cauchy distribution is a continuous probability distribution. dtype must be a floating point but you specified {}",
            dtype.name()
        );
    }
    make(shape, dtype, &mut |o: &mut [f64]| {
        g.uniforms(o, 0.0, 1.0);
        for v in o.iter_mut() {
            *v = (PI * (*v - 0.5)).tan();
        }
        affine(o, sigma, median);
    })
}
/// exp of a normal number (drawn serially).
pub fn log_normal(g: &mut Generator, shape: Dims, dtype: DType, mean: f64, std: f64) -> Result<Array> {
    if std.is_nan() || std <= 0.0 {
        bail!(Runtime, "log_normal_ expects std > 0.0, but found std={std}");
    }
    need_float("log_normal_", dtype)?;
    make(shape, dtype, &mut |o: &mut [f64]| {
        g.normals(o, mean, std);
        for v in o.iter_mut() {
            *v = v.exp();
        }
    })
}

/// `n` categories a row, drawn with the probabilities that a row of `p` (one or two dimensions) is in proportion to.
///
/// Without replacement, and for one sample, those of the largest p / e for exponential e (Efraimidis and Spirakis, "Weighted random
/// sampling with a reservoir", Information Processing Letters 97, 2006); with replacement by a search in the cumulated row.
pub fn multinomial(g: &mut Generator, p: &Array, n: i64, replacement: bool) -> Result<Array> {
    if !p.dtype.is_float() {
        bail!(Runtime, "multinomial only supports floating-point dtypes for input, got: {}", p.dtype.name());
    }
    if !matches!(p.ndim(), 1 | 2) {
        bail!(Runtime, "multinomial(): prob_dist must be 1 or 2 dim, got shape {:?}", p.shape);
    }
    let categories = p.shape[p.ndim() - 1];
    if n <= 0 {
        bail!(Runtime, "multinomial(): cannot sample n_sample <= 0 samples, got {n}");
    }
    if !replacement && n as u64 > categories as u64 {
        bail!(Runtime, "multinomial(): cannot sample n_sample > prob_dist.size(-1) samples without replacement: {n} of {categories}");
    }
    if categories > 1 << f32::MANTISSA_DIGITS {
        bail!(Runtime, "multinomial(): number of categories cannot exceed 2^24, got {categories}");
    }
    let n = n as usize;
    let shape = p.shape.with(|s| s[p.shape.len() - 1] = n);
    shape.checked_numel()?;
    let rows = cast(p, DType::Float64)?;
    for row in rows.slice::<f64>().chunks_exact(categories.max(1)) {
        if let Some(v) = row.iter().find(|v| !(0.0..f64::INFINITY).contains(*v)) {
            bail!(Runtime, "multinomial(): probability tensor contains either `inf`, `nan` or element < 0: {v}");
        }
        if row.iter().all(|v| *v == 0.0) {
            bail!(Runtime, "invalid multinomial distribution (sum of probabilities <= 0)");
        }
    }
    if categories == 0 && shape.numel() > 0 {
        bail!(Runtime, "invalid multinomial distribution (sum of probabilities <= 0): no category");
    }
    if replacement && n > 1 {
        let mut to = Fresh::new(shape, DType::Int64)?;
        for (o, row) in to.slice_mut::<i64>().chunks_exact_mut(n).zip(rows.slice::<f64>().chunks_exact(categories.max(1))) {
            let cumulated = if p.dtype == DType::Float64 { cumulate(row.iter().copied()) } else { cumulate(row.iter().map(|v| *v as f32)) };
            g.each(2, o, |w, o| {
                let mut u = [0.0; CHUNK / 2];
                uniform_f64(w, &mut u[..o.len()], 0.0, 1.0);
                o.iter_mut().zip(u).for_each(|(o, u)| *o = cumulated.partition_point(|c| *c < u) as i64);
            });
        }
        return Ok(to.done());
    }
    let e = cast(&refill_like(p, |shape| exponential(g, shape, p.dtype, 1.0))?, DType::Float64)?;
    let mut race = Fresh::new(p.shape, DType::Float64)?;
    for ((r, p), e) in race.slice_mut::<f64>().iter_mut().zip(rows.slice::<f64>()).zip(e.slice::<f64>()) {
        *r = p / e;
    }
    let race = cast(&race.done(), p.dtype)?; // ties as the dtype has them
    Ok(sort::topk(&race, n, p.ndim() - 1, true)?.1)
}
/// Running sums over their last, in the type of the terms, so that equal draws fall into equal categories; the last is 1.
fn cumulate<T: Real + Cast<f64>>(terms: impl Iterator<Item = T>) -> Vec<f64> {
    let mut sum = T::lit(0.0);
    let sums: Vec<T> = terms
        .map(|t| {
            sum = sum + t;
            sum
        })
        .collect();
    let mut shares: Vec<f64> = sums.into_iter().map(|s| (s / sum).cast()).collect();
    shares.iter_mut().last().into_iter().for_each(|l| *l = 1.0);
    shares
}
/// Poisson with the rates in `rate` (its shape and, if dense, its layout are the result's). Rates from 10 on by transformed rejection
/// (Hörmann, "The transformed rejection method for generating Poisson random variables", 1993), smaller ones by a product of uniforms.
pub fn poisson(g: &mut Generator, rate: &Array) -> Result<Array> {
    need_float("poisson", rate.dtype)?;
    let axes = if is_dense(&rate.shape, &rate.strides) { memory_order(rate) } else { (0..rate.ndim()).collect() };
    let given =
        rate.view(axes.iter().map(|&i| rate.shape[i]).collect(), axes.iter().map(|&i| rate.strides[i]).collect(), rate.offset).to_vec();
    if let Some(v) = given.iter().find(|v| v.is_nan() || **v < 0.0) {
        bail!(Runtime, "poisson(): invalid Poisson rate, expected rate to be non-negative, got {v}");
    }
    let drawn: Vec<f64> = given.into_iter().map(|rate| poisson_number(g, rate)).collect();
    refill_like(rate, |shape| stored(shape, rate.dtype, &drawn))
}
fn poisson_number(g: &mut Generator, rate: f64) -> f64 {
    let mut unit = || {
        let mut u = [0f64];
        g.uniforms(&mut u, 0.0, 1.0);
        u[0]
    };
    if rate == 0.0 {
        return 0.0;
    }
    if rate < 10.0 {
        let (end, mut product, mut n) = ((-rate).exp(), unit(), 0.0);
        while product > end {
            product *= unit();
            n += 1.0;
        }
        return n;
    }
    let b = 0.931 + 2.53 * rate.sqrt();
    let a = -0.059 + 0.02483 * b;
    let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
    let inside = 0.9277 - 3.6224 / (b - 2.0);
    loop {
        let (u, v) = (unit() - 0.5, unit());
        let s = 0.5 - u.abs();
        let k = ((2.0 * a / s + b) * u + rate + 0.43).floor();
        if s >= 0.07 && v <= inside {
            return k;
        }
        if k < 0.0 || (s < 0.013 && v > s) {
            continue;
        }
        if v.ln() + inverse_alpha.ln() - (a / (s * s) + b).ln() <= k * rate.ln() - rate - Real::lgamma::<false>(k + 1.0) {
            return k;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    fn d(s: &[usize]) -> Dims {
        Dims::of(s)
    }
    fn near(a: Result<Array>, expected: &[f64]) {
        let a = a.unwrap().to_vec();
        assert_eq!(a.len(), expected.len());
        assert!(a.iter().zip(expected).all(|(a, e)| (a - e).abs() <= 1e-6 * e.abs()), "{a:?} {expected:?}");
    }
    /// The last elements of a flat array.
    fn last(a: Result<Array>, n: usize) -> Result<Array> {
        a.map(|a| a.view(d(&[n]), d(&[1]), a.numel() - n))
    }
    #[test]
    fn words_are_those_of_mt19937() {
        let mut words = vec![0; 10_000];
        Generator::new(5489).fill(&mut words);
        assert_eq!((words[0], words[9_999]), (3499211612, 4123659995)); // the C++ standard's check value
        let mut g = Generator::new(5489);
        for (n, at) in [(3, 0), (700, 3), (1, 703), (5000, 704), (0, 5704), (4296, 5704)] {
            let mut part = vec![0; n];
            g.fill(&mut part);
            assert_eq!(part, words[at..at + n], "any cut gives the same words");
        }
    }
    /// What torch 2.13 answers after `manual_seed(1234)`.
    #[test]
    fn numbers_equal_torchs() {
        let g = || Generator::new(1234);
        near(
            uniform(&mut g(), d(&[4]), Float32, 0., 1.),
            &[0.028979241847991943, 0.4018985629081726, 0.25984418392181396, 0.3666413426399231],
        );
        near(uniform(&mut g(), d(&[3]), Float64, 0., 1.), &[0.2318341720884639, 0.07875386135027063, 0.46640616040796923]);
        near(normal(&mut g(), d(&[3]), Float32, 0., 1.), &[0.0461304634809494, 0.4024028182029724, -1.0115290880203247]);
        near(last(normal(&mut g(), d(&[37]), Float32, 0., 1.), 3), &[-1.2485020160675049, -0.8508586287498474, -0.7689918279647827]);
        near(last(normal(&mut g(), d(&[20]), Float64, 0., 1.), 2), &[1.0005828096392164, -0.09616418484199843]);
        near(last(normal(&mut g(), d(&[37]), BFloat16, 0., 1.), 3), &[-1.015625, 1.21875, 0.16015625]);
        near(randint(&mut g(), d(&[3]), Int64, -5, 1000000), &[565660., 438481., 923446.]);
        near(randint(&mut g(), d(&[3]), Int64, 0, 1 << 40), &[204000912083., 166721346613., 878802328948.]);
        near(random(&mut g(), d(&[3]), Int16), &[27439., 25299., 1318.]);
        near(randperm(&mut g(), 8, Int64), &[7., 5., 2., 3., 4., 6., 1., 0.]);
        near(exponential(&mut g(), d(&[3]), Float32, 2.), &[0.13187482953071594, 0.041014011949300766, 0.31406015157699585]);
        near(bernoulli(&mut g(), d(&[8]), Float32, 0.3), &[1., 1., 0., 0., 0., 1., 1., 1.]);
        near(bernoulli_each(&mut g(), &Array::full(d(&[8]), Float32, 0.3.into()).unwrap(), Float32), &[1., 0., 1., 0., 1., 0., 1., 0.]);
        near(cauchy(&mut g(), d(&[3]), Float32, 1., 2.), &[-1.2423739433288574, -6.918045520782471, 0.7881364822387695]);
        near(log_normal(&mut g(), d(&[3]), Float32, 1., 2.), &[2.981006383895874, 6.078789710998535, 0.35949385166168213]);
        near(geometric(&mut g(), d(&[6]), Float32, 0.3), &[5., 8., 3., 3., 3., 4.]);
        let p = Array::from_slice(&[2, 4], &[1f32, 2., 3., 4., 0., 0., 1., 1.]).unwrap();
        near(multinomial(&mut g(), &p.view(d(&[4]), d(&[1]), 0), 3, false), &[1., 3., 2.]);
        near(multinomial(&mut g(), &p, 5, true), &[1., 0., 2., 2., 2., 2., 2., 2., 2., 3.]);
        near(dropout_noise(&mut g(), &Array::zeros(d(&[2]), Float32).unwrap(), 0.3), &[1.4285714626312256; 2]);
    }
    #[test]
    fn destinations_are_filled_in_order_of_memory() {
        let to = Array::zeros(d(&[2, 3]), Float32).unwrap().view(d(&[3, 2]), d(&[1, 3]), 0);
        let g = &mut Generator::new(1234);
        near(
            refill(&to, |s| uniform(g, s, Float32, 0., 1.)),
            &[0.028979241847991943, 0.3666413426399231, 0.4018985629081726, 0.05830073356628418, 0.25984418392181396, 0.7006447315216064],
        );
        let to = Array::zeros(d(&[4, 5]), Float32).unwrap().view(d(&[5, 4]), d(&[1, 5]), 0);
        let a = normal_like(&mut Generator::new(1234), &to, 0., 1.).unwrap();
        assert_eq!(&*a.strides, &[1, 5]);
        near(Ok(a.view(d(&[4]), d(&[5]), 0)), &[0.0461304634809494, 0.5036107301712036, 0.10213729739189148, 0.8848397731781006]);
    }
    #[test]
    fn a_state_goes_out_and_comes_back() {
        let mut g = Generator::new(u64::MAX);
        let s = g.get_state();
        assert_eq!(s.len(), Generator::STATE_BYTES);
        assert_eq!(
            (&s[..8], &s[8..24], &s[24..40]),
            (
                &[255; 8][..],
                &[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
                &[255, 255, 255, 255, 0, 0, 0, 0, 109, 218, 225, 79, 0, 0, 0, 0][..]
            )
        );
        normal(&mut g, d(&[3]), Float32, 0., 1.).unwrap(); // leaves a cached normal
        let s = g.get_state();
        assert_eq!(s[24 + 8 * N + 24], 1);
        let mut h = Generator::default();
        h.set_state(&s).unwrap();
        assert_eq!(h, g);
        assert_eq!(h.get_state(), s);
        let draw = |g: &mut Generator| (normal(g, d(&[5]), Float64, 0., 1.).unwrap().to_vec(), g.random64());
        assert_eq!(draw(&mut g), draw(&mut h));
        for bad in [vec![], vec![0; 5056], s[..5048].to_vec(), {
            let mut b = s.clone();
            b[16..18].copy_from_slice(&[113, 2]);
            b
        }] {
            assert!(h.set_state(&bad).is_err());
        }
        g.reseed();
        assert!(g.initial_seed() < 1 << 53 && g.left == 1);
    }
    #[test]
    fn permutations_hold_every_number_once() {
        for long in [false, true] {
            for n in [0, 1, 2, 5, 1024, 1025, 3000] {
                let mut p = vec![0; n];
                shuffle(&mut Generator::new(3), &mut p, long);
                p.sort_unstable();
                assert!(p.iter().enumerate().all(|(i, v)| i as i64 == *v), "{n} {long}");
            }
        }
    }
    #[test]
    fn remainders_are_exact() {
        let mut words = vec![0, 1, u32::MAX, u32::MAX - 1, 1 << 31];
        words.resize(3000, 0);
        Generator::new(9).fill(&mut words[5..]);
        for range in [1, 2, 3, 7, 10, 1 << 16, 65537, (1 << 28) - 1, 1 << 31, (1 << 24) + 1] {
            let mut out = vec![0; words.len()];
            remainders(&words, &mut out, -5, range);
            assert!(out.iter().zip(&words).all(|(o, w)| *o == (w % range) as i64 - 5), "{range}");
        }
    }
    #[test]
    fn numbers_stay_in_range_in_every_dtype() {
        let g = &mut Generator::new(8);
        for dtype in [Float16, BFloat16, Float32, Float64] {
            for (lo, hi) in [(0.0, 1.0), (-3.0, -2.5), (0.1, 0.7)] {
                let v = uniform(g, d(&[5000]), dtype, lo, hi).unwrap().to_vec();
                let (l, h) =
                    (Array::scalar(lo.into(), dtype).unwrap().item().to_f64(), Array::scalar(hi.into(), dtype).unwrap().item().to_f64());
                assert!(v.iter().all(|&x| l <= x && x < h), "{dtype:?} {lo} {hi}");
            }
            let v = normal(g, d(&[100_000]), dtype, 3.0, 2.0).unwrap().to_vec();
            let mean = v.iter().sum::<f64>() / 1e5;
            let var = v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
            assert!((mean - 3.0).abs() < 0.05 && (var - 4.0).abs() < 0.1, "{dtype:?} {mean} {var}");
        }
        for dtype in DType::ALL {
            let last = if dtype == Bool { 1 } else { 100 };
            assert!(randint(g, d(&[1000]), dtype, 0, last + 1).unwrap().to_vec().iter().all(|&v| (0.0..=last as f64).contains(&v)));
            assert_eq!(random(g, d(&[0, 3]), dtype).unwrap().numel(), 0);
        }
        assert!(randint(g, d(&[1000]), Float16, 0, 65504).unwrap().to_vec().iter().all(|v| *v < 65504.0));
    }
    #[test]
    fn what_cannot_be_drawn_is_refused() {
        let (g, s) = (&mut Generator::new(0), d(&[2]));
        let refused = |r: Result<Array>| assert!(r.is_err());
        refused(uniform(g, s, Int64, 0., 1.));
        refused(uniform(g, s, Float32, 1., 0.));
        refused(uniform(g, s, Float32, 0., 1e39));
        refused(uniform(g, s, Float32, f64::NAN, 1.));
        refused(normal(g, s, Float32, 0., -1.));
        refused(normal(g, d(&[0]), Float32, 0., f64::NAN));
        refused(randint(g, s, Int64, 5, 5));
        refused(randint(g, s, UInt8, 0, 300));
        refused(randint(g, s, UInt8, -1, 3));
        refused(randint(g, s, Float16, 0, 70000));
        refused(random_from(g, s, UInt8, i64::MIN));
        refused(random_from(g, s, Int8, 200));
        refused(randperm(g, -1, Int64));
        refused(randperm(g, 300, UInt8));
        refused(randperm(g, i64::MAX, Int64));
        refused(bernoulli(g, s, Float32, 1.5));
        refused(bernoulli_each(g, &Array::full(s, Float32, f64::NAN.into()).unwrap(), Float32));
        refused(exponential(g, s, Float32, 0.));
        refused(geometric(g, s, Float32, 1.));
        refused(cauchy(g, s, Int64, 0., 1.));
        refused(log_normal(g, s, Float32, 0., 0.));
        let p = |v: &[f32]| Array::from_slice(&[v.len()], v).unwrap();
        for (v, n, replacement) in [
            (&[0., 0., 0.][..], 2, false),
            (&[0., 0., 0.], 2, true),
            (&[1., 1.], 3, false),
            (&[1., 1.], 0, false),
            (&[-1., 2.], 1, true),
            (&[f32::NAN, 2.], 3, true),
            (&[f32::INFINITY, 2.], 1, false),
            (&[], 2, true),
            (&[], 1, true),
        ] {
            refused(multinomial(g, &p(v), n, replacement));
        }
        assert_eq!(multinomial(g, &Array::full(d(&[0, 0]), Float32, 1.0.into()).unwrap(), 2, true).unwrap().numel(), 0);
        refused(multinomial(g, &Array::full(s, Int64, 1i64.into()).unwrap(), 1, false));
        refused(multinomial(g, &Array::full(d(&[2, 2, 2]), Float32, 1.0.into()).unwrap(), 1, false));
    }
    #[test]
    fn wide_registers_give_the_same_bits() {
        use crate::kernels::simd::{Level, at};
        let draw = || {
            let g = &mut Generator::new(77);
            [Float32, Float64, Float16].map(|t| normal(g, d(&[5003]), t, 0.5, 3.0).unwrap().storage_bytes().to_vec())
        };
        assert_eq!(at(Level::Avx2, draw), at(Level::Avx512, draw));
    }
}
