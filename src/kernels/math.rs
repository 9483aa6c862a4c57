//! Scalar functions for vector loops: branch-free, `#[inline(always)]`, at most about 2 ulp off, the same bits at every instruction set.
//!
//! The exact operations (`abs` .. `fmin`) take no parameter; those that round take `F`, which says whether fused multiply-add is one
//! instruction. On a concrete f32 or f64 std's methods of the same name win: write `Real::exp::<F>(x)` there. In generic code
//! `T::of(1.0)` is ambiguous (`Element` has an `of` too): write `T::lit(1.0)`.
//!
//! An `if` here chooses between values computed before it. Work inside an arm would be a branch, which the compiler may thread and,
//! when it vectorises, compute twice.
//!
//! NaN gives NaN (which one is not promised), 0 keeps its sign where the function is odd, subnormal arguments and results are right.
mod bits;
mod exp;
#[rustfmt::skip]
mod fit;
mod gamma;
mod log;
mod normal;
mod power;
mod trig;
use crate::dtype::Element;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// c[0] + c[1] x + c[2] x^2 + ...
#[inline(always)]
fn poly<const F: bool, T: Real>(x: T, c: &[T]) -> T {
    let mut sum = c[c.len() - 1];
    for &k in c[..c.len() - 1].iter().rev() {
        sum = sum.fma::<F>(x, k);
    }
    sum
}
/// x - a * b where that is small: exact as long as x is within a factor of 2 of a * b and the result fits.
#[inline(always)]
fn rest<const F: bool, T: Real>(x: T, a: T, b: T) -> T {
    if F {
        return (-a).fma::<F>(b, x);
    }
    let p = a * b;
    (x - p) - T::mul_error::<F>(a, b, p)
}
/// A power of 2 that brings what is about x away from the ends of the range, 1 if it is.
#[inline(always)]
fn away<T: Real>(x: T, [limit, factor]: [T; 2]) -> T {
    let up = if x < T::ONE / limit { T::ONE / factor } else { T::ONE };
    if x > limit { factor } else { up }
}

/// Trait methods that stand in the file of their family, by the same name.
macro_rules! families { ($($file:ident { $($(#[$m:meta])* $name:ident($($arg:ident),*);)* })*) => { $($(
    $(#[$m])*
    #[inline(always)]
    fn $name<const F: bool>(self $(, $arg: Self)*) -> Self { $file::$name::<F, Self>(self $(, $arg)*) }
)*)* } }

/// f32 or f64, with what kernels compute on them. `F` says whether fused multiply-add is one instruction.
pub trait Real:
    Element + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self> + bits::Bits + fit::Fit
{
    const ZERO: Self;
    const ONE: Self;
    const INF: Self;
    const NAN: Self;
    /// The largest |x| for which `sin_near`, `cos_near` and `tan_near` are right (2^17 and 2^30).
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

    families! {
        exp {
        exp(); exp2(); expm1(); sinh(); cosh(); tanh(); sigmoid();
        }
        log {
        log(); log2(); log10(); log1p(); asinh(); acosh(); atanh();
        /// log(x / (1 - x)).
        logit();
        /// log(1 + e^x).
        softplus();
        /// log(e^self + e^b).
        logaddexp(b);
        }
        trig {
        sin(); cos(); tan(); sin_near(); cos_near(); tan_near(); asin(); acos(); atan();
        /// The angle of the point (x, self).
        atan2(x);
        }
        normal {
        erf(); erfc();
        /// The distribution function of the normal distribution.
        normal_cdf();
        /// x times `normal_cdf`.
        gelu();
        /// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
        gelu_tanh(); erfinv();
        }
        power {
        hypot(b);
        /// C's fmod: the sign of self.
        fmod(b);
        /// Python's %: the sign of b.
        remainder(b); fmod_near(b); remainder_near(b);
        }
    }
    /// Is it beyond `sin_near` and its like?
    #[inline(always)]
    fn is_far(self) -> bool {
        trig::is_far(self)
    }
    /// Is self / b beyond `fmod_near` and `remainder_near`?
    #[inline(always)]
    fn is_far_from(self, b: Self) -> bool {
        power::is_far_from(self, b)
    }
    /// x times its sigmoid.
    #[inline(always)]
    fn silu<const F: bool>(self) -> Self {
        exp::times_sigmoid::<F, Self>(self, self, -Self::ZERO)
    }
    /// log(sigmoid(x)).
    #[inline(always)]
    fn log_sigmoid<const F: bool>(self) -> Self {
        -(-self).softplus::<F>()
    }
    /// IEEE 754's pow: 1 for y = 0 and for self = 1 whatever the other is.
    fn pow<const F: bool>(self, y: Self) -> Self;
    #[inline(always)]
    fn lgamma<const F: bool>(self) -> Self {
        Self::lit(gamma::lgamma(self.wide()))
    }
    #[inline(always)]
    fn digamma<const F: bool>(self) -> Self {
        Self::lit(gamma::digamma(self.wide()))
    }
    #[inline(always)]
    fn trigamma<const F: bool>(self) -> Self {
        Self::lit(gamma::trigamma(self.wide()))
    }
}

macro_rules! reals { ($($t:ident $far:literal $pow:ident)*) => { $(impl Real for $t {
    const ZERO: $t = 0.0;
    const ONE: $t = 1.0;
    const INF: $t = $t::INFINITY;
    const NAN: $t = $t::NAN;
    const FAR: $t = (1u64 << $far) as $t;
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
    #[inline(always)]
    fn pow<const F: bool>(self, y: $t) -> $t { power::$pow::<F>(self, y) }
})* } }
reals! { f32 17 pow32 f64 30 pow64 }

#[cfg(test)]
mod exact;
#[cfg(test)]
mod tests;

/// Derivative of order `n` >= 1 of the digamma function, by Hurwitz' zeta: (-1)^(n+1) n! zeta(n + 1, x), with the sum's first terms taken
/// as they are and the rest by Euler and Maclaurin (Abramowitz and Stegun 23.2). NaN at a pole.
pub fn polygamma(n: u32, x: f64) -> f64 {
    // B_2k / (2k)!
    const TAIL: [f64; 8] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30240.0,
        -1.0 / 1209600.0,
        1.0 / 47900160.0,
        -691.0 / 1307674368000.0,
        1.0 / 74724249600.0,
        -3617.0 / 10670622842880000.0,
    ];
    let s = n as f64 + 1.0;
    let (mut sum, mut a) = (0.0, x);
    while a < 12.0 {
        if a == 0.0 {
            return f64::NAN;
        }
        sum += a.powi(-(n as i32) - 1);
        a += 1.0;
    }
    sum += a.powf(1.0 - s) / (s - 1.0) + 0.5 * a.powf(-s);
    let (mut rising, mut power) = (s, a.powf(-s - 1.0));
    for (k, b) in TAIL.into_iter().enumerate() {
        sum += b * rising * power;
        let j = 2.0 * k as f64 + 1.0;
        rising *= (s + j) * (s + j + 1.0);
        power /= a * a;
    }
    let factorial: f64 = (1..=n).map(f64::from).product();
    if n % 2 == 1 { factorial * sum } else { -factorial * sum }
}
