//! The exponential and what is built on it alone.
use super::{Real, poly};

/// (r, n, n + MAGIC) with x = n ln(2) + r but for the second part of ln(2), so that r is exact; |r| <= ln(2) / 2 and a little. x is cut
/// off at `top` and where the result is 0.
#[inline(always)]
fn cut<const F: bool, T: Real>(x: T, top: T) -> (T, T, T) {
    let x = if x > top { top } else { x };
    let x = if x < T::EXP_MIN { T::EXP_MIN } else { x }; // both keep NaN
    let t = x.fma::<F>(T::LOG2_E[0], T::MAGIC);
    let n = t - T::MAGIC;
    (n.fma::<F>(-T::LN2[0], x), n, t)
}
#[inline(always)]
fn reduce<const F: bool, T: Real>(x: T, top: T) -> (T, T) {
    let (r, n, t) = cut::<F, T>(x, top);
    (n.fma::<F>(-T::LN2[1], r), t)
}
/// The same of x + low, for a `low` of about an ulp of x.
#[inline(always)]
fn reduce_sum<const F: bool, T: Real>(x: T, low: T) -> (T, T) {
    let (r, n, t) = cut::<F, T>(x, T::EXP_MAX);
    (r + n.fma::<F>(-T::LN2[1], low), t)
}
/// exp(r) - 1.
#[inline(always)]
fn exp_less_one<const F: bool, T: Real>(r: T) -> T {
    (poly::<F, T>(r, T::EXP) * r).fma::<F>(r, r)
}
#[inline(always)]
pub fn exp<const F: bool, T: Real>(x: T) -> T {
    let (r, n) = reduce::<F, T>(x, T::EXP_MAX);
    (exp_less_one::<F, T>(r) + T::ONE).scale(n)
}
/// y exp(x + low) for a `low` of about an ulp of x; right also where exp alone is subnormal.
#[inline(always)]
pub fn times_exp<const F: bool, T: Real>(y: T, x: T, low: T) -> T {
    let (r, n) = reduce_sum::<F, T>(x, low);
    exp_less_one::<F, T>(r).fma::<F>(y, y).scale(n)
}
#[inline(always)]
pub fn exp2<const F: bool, T: Real>(x: T) -> T {
    let (top, bottom) = (T::EXP_MAX * T::LOG2_E[0], T::EXP_MIN * T::LOG2_E[0]);
    let x = if x > top { top } else { x };
    let x = if x < bottom { bottom } else { x };
    let t = x + T::MAGIC;
    (exp_less_one::<F, T>((x - (t - T::MAGIC)) * T::lit(std::f64::consts::LN_2)) + T::ONE).scale(t)
}
/// 2^n p + 2^n - 1 with p = exp(r) - 1, halved on the way so that 2^n does not overflow. r comes as an exact part and a correction.
#[inline(always)]
pub fn expm1<const F: bool, T: Real>(x: T) -> T {
    let half = T::lit(0.5);
    let y = if x > T::EXP_MAX { T::EXP_MAX } else { x };
    let y = if y < T::lit(-40.0) { T::lit(-40.0) } else { y };
    let t = y.fma::<F>(T::LOG2_E[0], T::MAGIC);
    let n = t - T::MAGIC;
    let (high, low) = (n.fma::<F>(-T::LN2[0], y), n * T::LN2[1]);
    let r = high - low;
    let rest = poly::<F, T>(r, T::EXP).fma::<F>(r * r, -low);
    let s = T::pow2(t - T::ONE);
    let h = s.fma::<F>(rest, s.fma::<F>(high, s - half));
    if x.abs() < T::TINY { x } else { h + h }
}
/// exp(a) / 2 and exp(-a) / 2 for a >= 0.
#[inline(always)]
fn halves<const F: bool, T: Real>(a: T) -> (T, T) {
    let (r, n) = reduce::<F, T>(a, T::EXP_MAX + T::ONE);
    let e = (exp_less_one::<F, T>(r) + T::ONE).scale(n - T::ONE);
    (e, T::lit(0.25) / e)
}
#[inline(always)]
pub fn sinh<const F: bool, T: Real>(x: T) -> T {
    let (up, down) = halves::<F, T>(x.abs());
    let far = (up - down).copysign(x);
    let z = x * x;
    let near = (poly::<F, T>(z, T::SINH) * z).fma::<F>(x, x);
    if x.abs() < T::ONE { near } else { far }
}
#[inline(always)]
pub fn cosh<const F: bool, T: Real>(x: T) -> T {
    let (up, down) = halves::<F, T>(x.abs());
    up + down
}
#[inline(always)]
pub fn tanh<const F: bool, T: Real>(x: T) -> T {
    let a = x.abs();
    let a = if a > T::lit(22.0) { T::lit(22.0) } else { a };
    let two = T::lit(2.0);
    let z = x * x;
    let near = (poly::<F, T>(z, T::TANH) * z).fma::<F>(x, x);
    let far = T::ONE - two / (exp::<F, T>(a + a) + T::ONE);
    (if a < T::lit(0.625) { near } else { far }).copysign(x)
}
#[inline(always)]
pub fn sigmoid<const F: bool, T: Real>(x: T) -> T {
    let e = exp::<F, T>(-x.abs());
    (if x < T::ZERO { e } else { T::ONE }) / (e + T::ONE)
}
/// x times the sigmoid of v + low, which has the sign of x. NaN at -inf, as torch's.
#[inline(always)]
pub fn times_sigmoid<const F: bool, T: Real>(x: T, v: T, low: T) -> T {
    let (v, low) = if v > T::ZERO { (-v, -low) } else { (v, low) };
    let (r, n) = reduce_sum::<F, T>(v, low);
    let q = exp_less_one::<F, T>(r);
    let left = q.fma::<F>(x, x).scale(n);
    (if x < T::ZERO { left } else { x }) / ((q + T::ONE).scale(n) + T::ONE)
}
