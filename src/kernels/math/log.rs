//! Logarithms, inverse hyperbolic functions, and sums and ratios under a logarithm.
use super::{Real, exp, poly, rest};

/// log(1 + f) - f for 1 + f in the range of `split`.
#[inline(always)]
fn tail<const F: bool, T: Real>(f: T) -> T {
    let half = T::lit(0.5);
    if size_of::<T>() == 4 {
        return f * f * f.fma::<F>(poly::<F, T>(f, T::LOG), -half);
    }
    let s = f / (f + T::lit(2.0));
    let (z, h) = (s * s, f * f * half);
    s.fma::<F>(z.fma::<F>(poly::<F, T>(z, T::LOG), h), -h)
}
/// k ln(2) + log(1 + f).
#[inline(always)]
fn natural<const F: bool, T: Real>(k: T, f: T) -> T {
    k.fma::<F>(T::LN2[0], f + k.fma::<F>(T::LN2[1], tail::<F, T>(f)))
}
/// r, or what belongs there where u is not positive and finite.
#[inline(always)]
fn edges<T: Real>(u: T, r: T) -> T {
    let r = if u == T::INF { u } else { r };
    let outside = if u == T::ZERO { -T::INF } else { T::NAN };
    if u > T::ZERO { r } else { outside }
}
#[inline(always)]
pub fn log<const F: bool, T: Real>(x: T) -> T {
    let (k, m, _) = x.split();
    edges(x, natural::<F, T>(k, m - T::ONE))
}
/// k unit + log(m) scale, where unit and scale are given in two parts, and added so that only the last step rounds.
#[inline(always)]
fn in_base<const F: bool, T: Real>(x: T, unit: [T; 2], scale: [T; 2]) -> T {
    let (k, m, _) = x.split();
    let f = m - T::ONE;
    let t = tail::<F, T>(f);
    let v = f + t;
    let low = (f - v) + t;
    let w = v * scale[0];
    let w_low = v.fma::<F>(scale[1], low.fma::<F>(scale[0], T::mul_error::<F>(v, scale[0], w)));
    let high = k * unit[0];
    let s = high + w;
    edges(x, s + (((high - s) + w) + k.fma::<F>(unit[1], w_low)))
}
#[inline(always)]
pub fn log2<const F: bool, T: Real>(x: T) -> T {
    in_base::<F, T>(x, [T::ONE, T::ZERO], T::LOG2_E)
}
#[inline(always)]
pub fn log10<const F: bool, T: Real>(x: T) -> T {
    in_base::<F, T>(x, T::LOG10_2, T::LOG10_E)
}
/// log(u + low) for u + low = 1 + x or a ratio; `low` is below an ulp of u and counts for u of moderate size only.
#[inline(always)]
fn log_sum<const F: bool, T: Real>(u: T, low: T) -> T {
    let (k, m, inverse) = u.split();
    let low = low * inverse;
    let low = if u < T::INVERTIBLE[0] { low } else { T::ZERO };
    edges(u, natural::<F, T>(k, (m - T::ONE) + low))
}
#[inline(always)]
pub fn log1p<const F: bool, T: Real>(x: T) -> T {
    let u = x + T::ONE;
    let back = u - T::ONE;
    let low = (T::ONE - (u - back)) + (x - back);
    let r = log_sum::<F, T>(u, low);
    if x.abs() < T::TINY { x } else { r }
}
/// Near 1/2 the rounding of 1 - x and of the quotient decides: both are carried along.
#[inline(always)]
pub fn logit<const F: bool, T: Real>(x: T) -> T {
    let d = T::ONE - x;
    let d_low = (T::ONE - d) - x;
    let q = x / d;
    let q_low = (rest::<F, T>(x, q, d) - q * d_low) / d;
    let middle = (x - T::lit(0.5)).abs() < T::lit(0.25);
    log_sum::<F, T>(q, if middle { q_low } else { T::ZERO })
}
#[inline(always)]
pub fn softplus<const F: bool, T: Real>(x: T) -> T {
    let high = if x > T::ZERO { x } else { T::ZERO };
    high + log1p::<F, T>(exp::exp::<F, T>(-x.abs()))
}
#[inline(always)]
pub fn logaddexp<const F: bool, T: Real>(a: T, b: T) -> T {
    let d = if a == b { T::ZERO } else { (a - b).abs() }; // equal infinities too
    let high = if a < b { b } else { a };
    high + log1p::<F, T>(exp::exp::<F, T>(-d))
}
/// log1p(near), or log(2 far) where `is_far`.
#[inline(always)]
fn log1p_or<const F: bool, T: Real>(near: T, far: T, is_far: bool) -> T {
    let far = far - T::ONE;
    let r = log1p::<F, T>(if is_far { far } else { near });
    r + if is_far { T::lit(std::f64::consts::LN_2) } else { T::ZERO }
}
#[inline(always)]
pub fn asinh<const F: bool, T: Real>(x: T) -> T {
    let a = x.abs();
    let near = a + a * a / ((a.fma::<F>(a, T::ONE)).sqrt() + T::ONE);
    log1p_or::<F, T>(near, a, a > T::HUGE).copysign(x)
}
#[inline(always)]
pub fn acosh<const F: bool, T: Real>(x: T) -> T {
    let t = x - T::ONE;
    let near = t + (t * (t + T::lit(2.0))).sqrt();
    let r = log1p_or::<F, T>(near, x, x > T::HUGE);
    if x < T::ONE { T::NAN } else { r }
}
#[inline(always)]
pub fn atanh<const F: bool, T: Real>(x: T) -> T {
    let a = x.abs();
    let twice = a + a;
    let r = T::lit(0.5) * log1p::<F, T>(twice.fma::<F>(a / (T::ONE - a), twice));
    if a > T::ONE { T::NAN } else { r.copysign(x) }
}
