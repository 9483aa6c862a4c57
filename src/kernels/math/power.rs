//! Powers, lengths and remainders.
use super::{Real, away, exp, poly, rest};

/// r, or what IEEE 754 asks of pow(x, y), given r = |x|^y where nothing is special.
#[inline(always)]
fn edges<T: Real>(x: T, y: T, r: T) -> T {
    let a = x.abs();
    let half = y * T::lit(0.5);
    let whole = y.trunc() == y;
    let odd = whole & (half.trunc() != half);
    let r = if a == T::ONE { T::ONE } else { r };
    let r = if y.is_nan() { y } else { r };
    let r = if (x < T::ZERO) & (a < T::INF) & !whole { T::NAN } else { r };
    let signed = r.copysign(x);
    let r = if odd { signed } else { r };
    if (x == T::ONE) | (y == T::ZERO) { T::ONE } else { r }
}
/// x^y for f32, by f64: the rounding of its logarithm does not reach a digit of f32.
#[inline(always)]
pub fn pow32<const F: bool>(x: f32, y: f32) -> f32 {
    let (a, b) = (Real::abs(x) as f64, y as f64);
    edges(x, y, Real::exp::<F>(b * Real::log::<F>(a)) as f32)
}
/// x^y for f64. The logarithm is carried in two parts, with an error below 2^-65 of it: y times it may be as large as 745.
#[inline(always)]
pub fn pow64<const F: bool>(x: f64, y: f64) -> f64 {
    let error = <f64 as super::bits::Bits>::mul_error::<F>;
    let (k, m, _) = super::bits::Bits::split(Real::abs(x));
    // s = f / (2 + f), log(m) = 2 s + s^3 (2/3 + s^2 p(s^2))
    let f = m - 1.0;
    let d = f + 2.0;
    let d_low = f - (d - 2.0);
    let inverse = 1.0 / d;
    let s = f * inverse;
    let s_low = (rest::<F, f64>(f, s, d) - s * d_low) * inverse;
    let z = s * s;
    let z_low = error(s, s, z) + 2.0 * s * s_low;
    let p = z * poly::<F, f64>(z, <f64 as super::fit::Fit>::LOG_LONG);
    let r = TWO_THIRDS[0] + p;
    let r_low = (TWO_THIRDS[0] - r) + p + TWO_THIRDS[1];
    let c = s * z;
    let c_low = error(s, z, c) + s * z_low + s_low * z;
    let t = c * r;
    let t_low = error(c, r, t) + (c * r_low + c_low * r);
    let twice = s + s;
    let h = twice + t;
    let h_low = (twice - h) + t + (2.0 * s_low + t_low);
    // + k ln(2)
    let [ln2, ln2_low] = <f64 as super::fit::Fit>::LN2;
    let n = k * ln2;
    let log = n + h;
    let log_low = (n - log) + h + (h_low + k * ln2_low);
    let log = if x == 0.0 { f64::NEG_INFINITY } else { log };
    let log = if Real::abs(x) < f64::INFINITY { log } else { Real::abs(x) };
    let e = y * log;
    let e_low = error(y, log, e) + y * log_low;
    let e_low = if Real::abs(e) < 800.0 { e_low } else { 0.0 };
    edges(x, y, exp::times_exp::<F, f64>(1.0, e, e_low))
}
const TWO_THIRDS: [f64; 2] = [2.0 / 3.0, 3.700743415417188e-17];
#[inline(always)]
pub fn hypot<const F: bool, T: Real>(a: T, b: T) -> T {
    let (a, b) = (a.abs(), b.abs());
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    let factor = away(high, T::SQUARABLE);
    let (low, high) = (low * factor, high * factor);
    let r = high.fma::<F>(high, low * low).sqrt() / factor;
    if (a == T::INF) | (b == T::INF) { T::INF } else { r }
}
/// Is the quotient too large for `fmod_near`, or could an error term overflow?
#[inline(always)]
pub fn is_far_from<T: Real>(a: T, b: T) -> bool {
    let far = ((a / b).abs() >= T::MAGIC * T::lit(0.5)) | (a.abs() > T::INVERTIBLE[0]) | (b.abs() > T::INVERTIBLE[0]);
    far & a.is_finite() & b.is_finite() & (b != T::ZERO)
}
/// a - b trunc(a / b): the quotient's rounding may have carried it to the next integer, the rest is exact.
#[inline(always)]
pub fn fmod_near<const F: bool, T: Real>(x: T, y: T) -> T {
    let (a, b) = (x.abs(), y.abs());
    let r = rest::<F, T>(a, (a / b).trunc(), b);
    let mended = r + b;
    let r = if r < T::ZERO { mended } else { r };
    let r = if (b == T::INF) & (a < T::INF) { a } else { r };
    r.copysign(x)
}
#[inline(always)]
fn with_sign_of<T: Real>(b: T, r: T) -> T {
    let other = r + b;
    if (r != T::ZERO) & ((r < T::ZERO) != (b < T::ZERO)) { other } else { r }
}
#[inline(always)]
pub fn remainder_near<const F: bool, T: Real>(a: T, b: T) -> T {
    with_sign_of(b, fmod_near::<F, T>(a, b))
}
#[inline(always)]
pub fn fmod<const F: bool, T: Real>(a: T, b: T) -> T {
    if is_far_from(a, b) { T::lit(a.wide() % b.wide()) } else { fmod_near::<F, T>(a, b) }
}
#[inline(always)]
pub fn remainder<const F: bool, T: Real>(a: T, b: T) -> T {
    with_sign_of(b, fmod::<F, T>(a, b))
}
