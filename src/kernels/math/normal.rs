//! The error function, the normal distribution and gelu.
//!
//! Far from 0 everything is exp(-a^2 / 2) times a smooth factor, and a^2 is carried in two parts: no digit is lost however small the
//! result.
use super::{Real, exp, poly, rest};

/// The offset of `Fit::TAIL`.
const K: f64 = 3.5;
/// Where the smallest tail is 0.
const TOP: f64 = 38.8;
#[inline(always)]
fn at_most<T: Real>(a: T, top: f64) -> T {
    if a > T::lit(top) { T::lit(top) } else { a }
}
/// y exp(-a^2 / by) `tail(a)`, where tail is the factor of the normal distribution beyond c a; by is a power of 2, k = K / c.
///
/// t = k / (a + k) is not exact, and errors of t count up to 2.8 times: what t is off by goes into the result to first order, by the
/// logarithmic derivative of the factor, nearly 1 + 1.8 t.
#[inline(always)]
fn times_tail<const F: bool, T: Real>(y: T, a: T, k: T, by: T) -> T {
    let d = a + k;
    let back = d - a;
    let d_low = (a - (d - back)) + (k - back);
    let t = k / d;
    let off = rest::<F, T>(k, t, d) - t * d_low;
    let off = off * (t.fma::<F>(T::lit(1.8), T::ONE) / k);
    let factor = y * t * poly::<F, T>(t.fma::<F>(T::lit(-2.0), T::ONE), T::TAIL);
    let square = a * a;
    exp::times_exp::<F, T>(factor, -square / by, off - T::mul_error::<F>(a, a, square) / by)
}
#[inline(always)]
fn erf_small<const F: bool, T: Real>(x: T) -> T {
    x.fma::<F>(poly::<F, T>(x * x, T::ERF), x)
}
/// erfc(a) for a >= 0, best above 1/2.
#[inline(always)]
fn erfc_large<const F: bool, T: Real>(a: T) -> T {
    let k = T::lit(K * std::f64::consts::FRAC_1_SQRT_2);
    times_tail::<F, T>(T::lit(2.0), at_most(a, TOP * std::f64::consts::FRAC_1_SQRT_2), k, T::ONE)
}
#[inline(always)]
pub fn erf<const F: bool, T: Real>(x: T) -> T {
    let a = x.abs();
    let small = erf_small::<F, T>(x);
    let large = (T::ONE - erfc_large::<F, T>(a)).copysign(x);
    if a < T::lit(0.85) { small } else { large }
}
#[inline(always)]
pub fn erfc<const F: bool, T: Real>(x: T) -> T {
    let a = x.abs();
    let small = T::ONE - erf_small::<F, T>(x);
    let right = erfc_large::<F, T>(a);
    let left = T::lit(2.0) - right;
    let large = if x < T::ZERO { left } else { right };
    if a < T::lit(0.5) { small } else { large }
}
#[inline(always)]
pub fn normal_cdf<const F: bool, T: Real>(x: T) -> T {
    let left = times_tail::<F, T>(T::ONE, at_most(x.abs(), TOP), T::lit(K), T::lit(2.0));
    let right = T::ONE - left;
    if x > T::ZERO { right } else { left }
}
/// relu(x) minus |x| times the tail beyond |x|: both signs at once. NaN at -inf, as torch's.
#[inline(always)]
pub fn gelu<const F: bool, T: Real>(x: T) -> T {
    let a = at_most(x.abs(), TOP);
    let zero = x * T::ZERO;
    (if x >= T::ZERO { x } else { zero }) - times_tail::<F, T>(a, a, T::lit(K), T::lit(2.0))
}
/// x sigmoid(v), v = 2 sqrt(2/pi) (x + 0.044715 x^3) in two parts.
#[inline(always)]
pub fn gelu_tanh<const F: bool, T: Real>(x: T) -> T {
    let [c, c_low, b, b_low] = T::GELU;
    let a = if x < T::lit(-30.0) { T::lit(-30.0) } else { x };
    let a = at_most(a, 30.0);
    let square = a * a;
    let cube = b * square;
    let q = c + cube;
    let back = q - c;
    let low = (c - (q - back)) + (cube - back);
    let low = low + T::mul_error::<F>(b, square, cube) + b.fma::<F>(T::mul_error::<F>(a, a, square), b_low.fma::<F>(square, c_low));
    let v = a * q;
    exp::times_sigmoid::<F, T>(x, v, a.fma::<F>(low, T::mul_error::<F>(a, q, v)))
}
/// x times a polynomial in w = -log(1 - x^2) or its root, after Giles, Approximating the erfinv function (2010).
#[inline(always)]
pub fn erfinv<const F: bool, T: Real>(x: T) -> T {
    let a = x.abs();
    let w = -((T::ONE - a) * (T::ONE + a)).log::<F>();
    let s = w.sqrt();
    let near = poly::<F, T>(w - T::lit(3.125), T::INVERSE_ERF);
    let far = poly::<F, T>(s - T::lit(3.25), T::INVERSE_ERF_FAR);
    let end = if T::INVERSE_ERF_END.is_empty() { far } else { poly::<F, T>(s - T::lit(5.0), T::INVERSE_ERF_END) };
    let far = if s < T::lit(4.0) { far } else { end };
    let p = if w < T::lit(6.25) { near } else { far };
    x * if a == T::ONE { T::INF } else { p }
}
