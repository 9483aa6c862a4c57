//! Scalar functions for vector loops: branch-free, `#[inline(always)]`, at most about 2 ulp off, the same bits at every instruction set.
//!
//! The exact operations (`abs` .. `copysign`) take no parameter; those that round take `F`, which says whether fused multiply-add is one
//! instruction. On a concrete f32 or f64 std's methods of the same name win: write `Real::exp::<F>(x)` there. In generic code
//! `T::of(1.0)` is ambiguous (`Element` has an `of` too): write `T::lit(1.0)`.
use crate::dtype::Element;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// f32 or f64, with what kernels compute on them. `F` says whether fused multiply-add is one instruction.
pub trait Real: Element + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self> {
    const ZERO: Self;
    const ONE: Self;
    const INF: Self;
    const NAN: Self;
    /// The largest |x| for which `sin_near`, `cos_near` and `tan_near` are right.
    const FAR: Self;
    fn of(v: f64) -> Self;
    /// `of` under a name that `Element` does not have.
    #[inline(always)]
    fn lit(v: f64) -> Self {
        <Self as Real>::of(v)
    }
    fn wide(self) -> f64;
    /// self * a + b, rounded once where `F`, twice elsewhere.
    fn fma<const F: bool>(self, a: Self, b: Self) -> Self;

    fn is_nan(self) -> bool;
    fn is_finite(self) -> bool;
    fn abs(self) -> Self;
    fn sqrt(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn trunc(self) -> Self;
    /// To the nearest integer, ties to the even one.
    fn round(self) -> Self;
    fn copysign(self, of: Self) -> Self;
    /// -1, 0 or 1; 0 for NaN, as torch's.
    #[inline(always)]
    fn sign(self) -> Self {
        if self > Self::ZERO {
            Self::ONE
        } else if self < Self::ZERO {
            -Self::ONE
        } else {
            Self::ZERO
        }
    }
    /// The larger, NaN if either is (std's `max` differs); the first of equals.
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        let r = if self < b { b } else { self };
        if b.is_nan() { b } else { r }
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        let r = if self > b { b } else { self };
        if b.is_nan() { b } else { r }
    }
    /// The larger, the other one where one is NaN.
    #[inline(always)]
    fn fmax(self, b: Self) -> Self {
        let r = if self < b { b } else { self };
        if self.is_nan() { b } else { r }
    }
    #[inline(always)]
    fn fmin(self, b: Self) -> Self {
        let r = if self > b { b } else { self };
        if self.is_nan() { b } else { r }
    }

    fn exp<const F: bool>(self) -> Self;
    fn exp2<const F: bool>(self) -> Self;
    fn expm1<const F: bool>(self) -> Self;
    fn log<const F: bool>(self) -> Self;
    fn log2<const F: bool>(self) -> Self;
    fn log10<const F: bool>(self) -> Self;
    fn log1p<const F: bool>(self) -> Self;
    fn sin<const F: bool>(self) -> Self;
    fn cos<const F: bool>(self) -> Self;
    fn tan<const F: bool>(self) -> Self;
    fn sin_near<const F: bool>(self) -> Self;
    fn cos_near<const F: bool>(self) -> Self;
    fn tan_near<const F: bool>(self) -> Self;
    fn asin<const F: bool>(self) -> Self;
    fn acos<const F: bool>(self) -> Self;
    fn atan<const F: bool>(self) -> Self;
    /// The angle of the point (x, self).
    fn atan2<const F: bool>(self, x: Self) -> Self;
    fn sinh<const F: bool>(self) -> Self;
    fn cosh<const F: bool>(self) -> Self;
    fn tanh<const F: bool>(self) -> Self;
    fn asinh<const F: bool>(self) -> Self;
    fn acosh<const F: bool>(self) -> Self;
    fn atanh<const F: bool>(self) -> Self;
    fn sigmoid<const F: bool>(self) -> Self;
    fn erf<const F: bool>(self) -> Self;
    fn erfc<const F: bool>(self) -> Self;
    fn erfinv<const F: bool>(self) -> Self;
    fn lgamma<const F: bool>(self) -> Self;
    fn digamma<const F: bool>(self) -> Self;
    fn trigamma<const F: bool>(self) -> Self;
    fn pow<const F: bool>(self, y: Self) -> Self;
    fn hypot<const F: bool>(self, b: Self) -> Self;
    /// C's fmod: the sign of self.
    fn fmod<const F: bool>(self, b: Self) -> Self;
    /// Python's %: the sign of b.
    fn remainder<const F: bool>(self, b: Self) -> Self;
    /// x Φ(x).
    fn gelu<const F: bool>(self) -> Self;
    /// x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³))).
    fn gelu_tanh<const F: bool>(self) -> Self;
    /// Φ(x), the distribution function of the normal distribution.
    fn normal_cdf<const F: bool>(self) -> Self;
    /// log(1 + e^x).
    fn softplus<const F: bool>(self) -> Self;
    fn log_sigmoid<const F: bool>(self) -> Self;
    /// log(e^self + e^b).
    fn logaddexp<const F: bool>(self, b: Self) -> Self;
    /// log(x / (1 - x)).
    fn logit<const F: bool>(self) -> Self;
}

/// erfc by its continued fraction, or 1 - erf by its series.
fn erfc_slow(x: f64) -> f64 {
    let a = x.abs();
    if a < 2.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > sum * 1e-18 {
            n += 1.0;
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
        }
        let erf = 2.0 / std::f64::consts::PI.sqrt() * (-a * a).exp() * sum;
        return if x < 0.0 { 1.0 + erf } else { 1.0 - erf };
    }
    let mut f = 0.0;
    for k in (1..200).rev() {
        f = k as f64 / 2.0 / (a + f);
    }
    let r = (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + f);
    if x.is_nan() {
        x
    } else if x < 0.0 {
        2.0 - r
    } else {
        r
    }
}
fn erf_slow(x: f64) -> f64 {
    if x.abs() >= 2.0 || x.is_nan() {
        return (1.0 - erfc_slow(x.abs())).copysign(x);
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > sum.abs() * 1e-18 {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}
fn erfinv_slow(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 1.0 {
        return f64::NAN;
    }
    if x.abs() == 1.0 {
        return x * f64::INFINITY;
    }
    let w = (-(1.0 - x.abs()) * (1.0 + x.abs())).abs().ln();
    let t = 2.0 / (std::f64::consts::PI * 0.147) + w / 2.0;
    let mut y = ((t * t - w / 0.147).sqrt() - t).max(0.0).sqrt();
    for _ in 0..3 {
        let off = if x.abs() < 0.5 { erf_slow(y) - x.abs() } else { (1.0 - x.abs()) - erfc_slow(y) };
        let u = off / (2.0 / std::f64::consts::PI.sqrt() * (-y * y).exp());
        y -= u / (1.0 + y * u);
    }
    y.copysign(x)
}
/// Stirling's series from 12 up, the recurrence below, reflection for negatives.
fn lgamma_slow(x: f64) -> f64 {
    use std::f64::consts::PI;
    if x.is_infinite() {
        return f64::INFINITY;
    }
    if x < 0.5 {
        let s = (PI * (x - x.round())).sin().abs();
        return if x == x.floor() { f64::INFINITY } else { (PI / s).ln() - lgamma_slow(1.0 - x) };
    }
    let (mut z, mut p) = (x, 1.0);
    while z < 12.0 {
        p *= z;
        z += 1.0;
    }
    let w = 1.0 / (z * z);
    let tail = (1.0 / 12.0 - w * (1.0 / 360.0 - w * (1.0 / 1260.0 - w * (1.0 / 1680.0 - w * (1.0 / 1188.0 - w * 691.0 / 360360.0))))) / z;
    (z - 0.5) * z.ln() - z + 0.5 * (2.0 * PI).ln() + tail - p.ln()
}
fn digamma_slow(x: f64) -> f64 {
    use std::f64::consts::PI;
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        return if x == x.floor() { f64::NAN } else { digamma_slow(1.0 - x) - PI / (PI * (x - x.round())).tan() };
    }
    let (mut z, mut s) = (x, 0.0);
    while z < 12.0 {
        s -= 1.0 / z;
        z += 1.0;
    }
    let w = 1.0 / (z * z);
    s + z.ln()
        - 0.5 / z
        - w * (1.0 / 12.0 - w * (1.0 / 120.0 - w * (1.0 / 252.0 - w * (1.0 / 240.0 - w * (1.0 / 132.0 - w * 691.0 / 32760.0)))))
}
fn trigamma_slow(x: f64) -> f64 {
    use std::f64::consts::PI;
    if x < 0.5 {
        if x == x.floor() {
            return if x == f64::NEG_INFINITY { f64::NAN } else { f64::INFINITY };
        }
        let s = PI / (PI * (x - x.round())).sin();
        return s * s - trigamma_slow(1.0 - x);
    }
    let (mut z, mut s) = (x, 0.0);
    while z < 12.0 {
        s += 1.0 / (z * z);
        z += 1.0;
    }
    let w = 1.0 / (z * z);
    s + 1.0 / z
        + w / 2.0
        + w / z * (1.0 / 6.0 - w * (1.0 / 30.0 - w * (1.0 / 42.0 - w * (1.0 / 30.0 - w * (5.0 / 66.0 - w * 691.0 / 2730.0)))))
}

macro_rules! by_f64 { ($($name:ident => |$x:ident $(, $y:ident)?| $e:expr;)*) => { $(
    #[inline(always)]
    fn $name<const F: bool>(self $(, $y: Self)?) -> Self { let $x = self as f64; $(let $y = $y as f64;)? let r: f64 = $e; r as Self }
)* } }
macro_rules! reals { ($($t:ident)*) => { $(impl Real for $t {
    const ZERO: $t = 0.0;
    const ONE: $t = 1.0;
    const INF: $t = $t::INFINITY;
    const NAN: $t = $t::NAN;
    const FAR: $t = $t::MAX;
    #[inline(always)]
    fn of(v: f64) -> $t { v as $t }
    #[inline(always)]
    fn wide(self) -> f64 { self as f64 }
    #[inline(always)]
    fn fma<const F: bool>(self, a: $t, b: $t) -> $t { if F { self.mul_add(a, b) } else { self * a + b } }
    #[inline(always)]
    fn is_nan(self) -> bool { $t::is_nan(self) }
    #[inline(always)]
    fn is_finite(self) -> bool { $t::is_finite(self) }
    #[inline(always)]
    fn abs(self) -> $t { $t::abs(self) }
    #[inline(always)]
    fn sqrt(self) -> $t { $t::sqrt(self) }
    #[inline(always)]
    fn floor(self) -> $t { $t::floor(self) }
    #[inline(always)]
    fn ceil(self) -> $t { $t::ceil(self) }
    #[inline(always)]
    fn trunc(self) -> $t { $t::trunc(self) }
    #[inline(always)]
    fn round(self) -> $t { $t::round_ties_even(self) }
    #[inline(always)]
    fn copysign(self, of: $t) -> $t { $t::copysign(self, of) }
    by_f64! {
        exp => |x| x.exp(); exp2 => |x| x.exp2(); expm1 => |x| x.exp_m1();
        log => |x| x.ln(); log2 => |x| x.log2(); log10 => |x| x.log10(); log1p => |x| x.ln_1p();
        sin => |x| x.sin(); cos => |x| x.cos(); tan => |x| x.tan();
        sin_near => |x| x.sin(); cos_near => |x| x.cos(); tan_near => |x| x.tan();
        asin => |x| x.asin(); acos => |x| x.acos(); atan => |x| x.atan(); atan2 => |y, x| y.atan2(x);
        sinh => |x| x.sinh(); cosh => |x| x.cosh(); tanh => |x| x.tanh();
        asinh => |x| ((x.abs() + (x * x / (1.0 + (x * x + 1.0).sqrt())).min(x.abs())).ln_1p()).copysign(x);
        acosh => |x| x.acosh(); atanh => |x| (0.5 * (2.0 * x.abs() / (1.0 - x.abs())).ln_1p()).copysign(x);
        sigmoid => |x| if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) };
        erf => |x| erf_slow(x); erfc => |x| erfc_slow(x); erfinv => |x| erfinv_slow(x);
        lgamma => |x| lgamma_slow(x); digamma => |x| digamma_slow(x); trigamma => |x| trigamma_slow(x);
        pow => |x, y| x.powf(y); hypot => |x, y| x.hypot(y); fmod => |x, y| x % y;
        remainder => |x, y| { let r = x % y; if r != 0.0 && (r < 0.0) != (y < 0.0) { r + y } else { r } };
        gelu => |x| x * 0.5 * erfc_slow(-x * std::f64::consts::FRAC_1_SQRT_2);
        gelu_tanh => |x| x / (1.0 + (-2.0 * 0.7978845608028654 * (x + 0.044715 * x * x * x)).exp());
        normal_cdf => |x| 0.5 * erfc_slow(-x * std::f64::consts::FRAC_1_SQRT_2);
        softplus => |x| (-x.abs()).exp().ln_1p() + (if x < 0.0 { 0.0 } else { x });
        log_sigmoid => |x| (if x > 0.0 { 0.0 } else { x }) - (-x.abs()).exp().ln_1p();
        logaddexp => |x, y| if x == y { x + std::f64::consts::LN_2 } else { (if x < y { y } else { x }) + (-(x - y).abs()).exp().ln_1p() };
        logit => |x| if x < 0.25 { (x / (1.0 - x)).ln() } else { ((2.0 * x - 1.0) / (1.0 - x)).ln_1p() };
    }
})* } }
reals! { f32 f64 }

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_slow_series_agree_with_known_values() {
        let near = |a: f64, b: f64| assert!((a - b).abs() <= 4e-14 * b.abs().max(1e-300), "{a:e} {b:e}");
        near(erf_slow(0.5), 0.5204998778130465);
        near(erf_slow(1e-300), 1.1283791670955126e-300);
        near(erfc_slow(3.0), 2.209049699858544e-5);
        near(erfc_slow(-1.0), 1.8427007929497148);
        near(erfinv_slow(0.5), 0.4769362762044699);
        near(erfinv_slow(1.0 - 1e-10), 4.572824958544925);
        near(lgamma_slow(0.5), 0.5723649429247001);
        near(lgamma_slow(-1.5), 0.860047015376481);
        near(lgamma_slow(100.0), 359.1342053695754);
        near(digamma_slow(1.0), -0.5772156649015329);
        near(trigamma_slow(1.0), 1.6449340668482264);
        near(trigamma_slow(-1.5), 9.3792466449891237);
    }
}
