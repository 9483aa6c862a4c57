//! Sine, cosine, tangent and their inverses.
//!
//! `near` functions reduce by multiples of pi/2 in three parts (Cody and Waite), exactly enough up to `FAR`, and vectorise. The plain
//! ones take any argument: beyond `FAR` they reduce by as many bits of 2/pi as it takes (Payne and Hanek), in integers, one by one.
use super::{Real, away, fit::TWO_OVER_PI_BITS, poly, rest};

/// (n + MAGIC, r, low) with x = n pi/2 + r + low, |r| <= pi/4 and a little, for |x| <= FAR.
#[inline(always)]
fn reduce<const F: bool, T: Real>(x: T) -> (T, T, T) {
    let t = x.fma::<F>(T::TWO_OVER_PI, T::MAGIC);
    let n = t - T::MAGIC;
    let [p1, p2, p3] = T::HALF_PI;
    let a = rest::<F, T>(x, n, p1); // exact: a multiple of the last bit of p1, and small
    let p = n * p2;
    let r = a - p;
    let back = r - a;
    let r_low = (a - (r - back)) - (p + back);
    let low = r_low - n.fma::<F>(p3, T::mul_error::<F>(n, p2, p));
    let high = r + low;
    (t, high, (r - high) + low)
}
/// The same for any finite x beyond 2^17, n modulo 4.
fn reduce_far<T: Real>(x: T) -> (T, T, T) {
    const FIELD: u32 = f64::MANTISSA_DIGITS - 1;
    let x = x.wide();
    let b = x.abs().to_bits();
    let m = (b & ((1 << FIELD) - 1)) | (1 << FIELD);
    // |x| = m 2^e. The bits of 2/pi of weight 2^(2 - e) and more give multiples of 4; the 192 that follow are enough.
    let e = (b >> FIELD) as i32 - (1023 + FIELD as i32);
    let skip = (e - 2 + 64) as usize; // the table begins with 64 zero bits
    let bits = |i: usize| {
        let word = skip / 64 + i;
        (((TWO_OVER_PI_BITS[word] as u128) << 64 | TWO_OVER_PI_BITS[word + 1] as u128) >> (64 - skip % 64)) as u64
    };
    let low = m as u128 * bits(2) as u128;
    let middle = m as u128 * bits(1) as u128 + (low >> 64);
    let high = (m as u128 * bits(0) as u128) << 64;
    let turns = high.wrapping_add(middle); // |x| 2/pi modulo 4, in units of 2^-126
    let fraction = turns << 2 | (low as u64 >> 62) as u128;
    let n = (turns >> 126) as u64;
    let (n, fraction, sign) = if fraction >> 127 == 0 { (n, fraction, 1.0) } else { (n + 1, fraction.wrapping_neg(), -1.0) };
    let zeros = fraction.leading_zeros();
    let fraction = fraction << zeros;
    let unit = f64::from_bits((1023 - 128 - zeros as u64) << FIELD) * sign * x.signum();
    let (high, low) = ((fraction >> 75 << 75) as f64 * unit, (fraction & ((1 << 75) - 1)) as f64 * unit);
    let [p1, p2, _] = <f64 as super::fit::Fit>::HALF_PI;
    let p = high * p1;
    let p_low = high.mul_add(p1, -p) + (high * p2 + low * p1);
    let r = T::lit(p + p_low);
    let n = if x < 0.0 { 4 - n } else { n };
    (T::MAGIC + T::lit((n & 3) as f64), r, T::lit((p - r.wide()) + p_low))
}
/// sin(r + low).
#[inline(always)]
fn sine<const F: bool, T: Real>(r: T, low: T) -> T {
    let z = r * r;
    let low = low - z * low * T::lit(0.5);
    r + (z * r).fma::<F>(poly::<F, T>(z, T::SIN), low)
}
/// cos(r + low).
#[inline(always)]
fn cosine<const F: bool, T: Real>(r: T, low: T) -> T {
    let z = r * r;
    let h = z * T::lit(0.5);
    let w = T::ONE - h;
    w + (((T::ONE - w) - h) + (z * z).fma::<F>(poly::<F, T>(z, T::COS), -(r * low)))
}
#[inline(always)]
fn sin_of<const F: bool, T: Real>((n, r, low): (T, T, T)) -> T {
    let (s, c) = (sine::<F, T>(r, low), cosine::<F, T>(r, low));
    (if T::odd(n) { c } else { s }).flip(n)
}
#[inline(always)]
fn tan_of<const F: bool, T: Real>((n, r, low): (T, T, T)) -> T {
    let (s, c) = (sine::<F, T>(r, low), cosine::<F, T>(r, low));
    let odd = T::odd(n);
    (if odd { -c } else { s }) / if odd { s } else { c }
}
#[inline(always)]
pub fn sin_near<const F: bool, T: Real>(x: T) -> T {
    let r = sin_of::<F, T>(reduce::<F, T>(x));
    if x == T::ZERO { x } else { r }
}
#[inline(always)]
pub fn cos_near<const F: bool, T: Real>(x: T) -> T {
    let (n, r, low) = reduce::<F, T>(x);
    sin_of::<F, T>((n + T::ONE, r, low))
}
#[inline(always)]
pub fn tan_near<const F: bool, T: Real>(x: T) -> T {
    let r = tan_of::<F, T>(reduce::<F, T>(x));
    if x == T::ZERO { x } else { r }
}
#[inline(always)]
pub fn is_far<T: Real>(x: T) -> bool {
    (x.abs() > T::FAR) & x.is_finite()
}
#[inline(always)]
pub fn sin<const F: bool, T: Real>(x: T) -> T {
    if is_far(x) { sin_of::<F, T>(reduce_far(x)) } else { sin_near::<F, T>(x) }
}
#[inline(always)]
pub fn cos<const F: bool, T: Real>(x: T) -> T {
    if !is_far(x) {
        return cos_near::<F, T>(x);
    }
    let (n, r, low) = reduce_far(x);
    sin_of::<F, T>((n + T::ONE, r, low))
}
#[inline(always)]
pub fn tan<const F: bool, T: Real>(x: T) -> T {
    if is_far(x) { tan_of::<F, T>(reduce_far(x)) } else { tan_near::<F, T>(x) }
}

/// The angle of the point (b, a), 0 <= a <= b, b > 0, both finite, then its complement to pi/2 if `steep`, then that to pi if `left`.
/// The tangent of what exceeds 0 or pi/4 is kept in two parts.
#[inline(always)]
fn angle<const F: bool, T: Real>(a: T, b: T, steep: bool, left: bool) -> T {
    let beyond = a > b * T::lit(std::f64::consts::SQRT_2 - 1.0);
    let (minus, plus) = (a - b, a + b);
    let (minus_low, plus_low) = (a - (minus + b), a - (plus - b));
    let (n, d) = (if beyond { minus } else { a }, if beyond { plus } else { b });
    let (n_low, d_low) = (if beyond { minus_low } else { T::ZERO }, if beyond { plus_low } else { T::ZERO });
    let inverse = T::ONE / d;
    let u = n * inverse;
    let u_low = ((rest::<F, T>(n, u, d) + n_low) - u * d_low) * inverse;
    let z = u * u;
    let low = (u * z).fma::<F>(poly::<F, T>(z, T::ATAN), u_low);
    let eighths = if beyond { T::ONE } else { T::ZERO };
    let (eighths, sign) = if steep { (T::lit(2.0) - eighths, -T::ONE) } else { (eighths, T::ONE) };
    let (eighths, sign) = if left { (T::lit(4.0) - eighths, -sign) } else { (eighths, sign) };
    let (u, low) = (u * sign, low * sign);
    let [p1, p2, _] = T::HALF_PI;
    let half = T::lit(0.5);
    let c = eighths * (p1 * half);
    let c_low = eighths.fma::<F>(p2 * half, T::mul_error::<F>(eighths, p1 * half, c));
    let s = c + u;
    s + (((c - s) + u) + (low + c_low))
}
#[inline(always)]
pub fn atan<const F: bool, T: Real>(x: T) -> T {
    let a = x.abs();
    let a = if a > T::INVERTIBLE[0] { T::INVERTIBLE[0] } else { a };
    let steep = a > T::ONE;
    let (low, high) = if steep { (T::ONE, a) } else { (a, T::ONE) };
    angle::<F, T>(low, high, steep, false).copysign(x)
}
#[inline(always)]
pub fn atan2<const F: bool, T: Real>(y: T, x: T) -> T {
    let (ay, ax) = (y.abs(), x.abs());
    let steep = ay > ax;
    let (low, high) = if steep { (ax, ay) } else { (ay, ax) };
    let low = if high == T::INF { if low == T::INF { T::ONE } else { T::ZERO } } else { low };
    let high = if high == T::INF || high == T::ZERO { T::ONE } else { high };
    let factor = away(high, T::INVERTIBLE);
    let left = T::ONE.copysign(x) < T::ZERO;
    let r = angle::<F, T>(low * factor, high * factor, steep, left).copysign(y);
    if x.is_nan() {
        x
    } else if y.is_nan() {
        y
    } else {
        r
    }
}
/// (s, tail) with asin(s) = s + tail, and whether a > 1/2: s is then the sine of half the complement.
#[inline(always)]
fn arc<const F: bool, T: Real>(a: T) -> (T, T, bool) {
    let half = T::lit(0.5);
    let big = a > half;
    let (square, other) = (a * a, (T::ONE - a) * half);
    let z = if big { other } else { square };
    let root = z.sqrt();
    let root_low = rest::<F, T>(z, root, root) / (root + root);
    let root_low = if z > T::ZERO { root_low } else { T::ZERO };
    let (s, low) = if big { (root, root_low) } else { (a, T::ZERO) };
    (s, (s * z).fma::<F>(poly::<F, T>(z, T::ASIN), low), big)
}
#[inline(always)]
pub fn asin<const F: bool, T: Real>(x: T) -> T {
    let a = x.abs();
    let (s, tail, big) = arc::<F, T>(a);
    let (high, twice) = (T::HALF_PI[0], s + s);
    let c = high - twice;
    let complement = c + (((high - c) - twice) + (T::HALF_PI[1] - (tail + tail)));
    let r = if big { complement } else { s + tail };
    if a > T::ONE { T::NAN } else { r.copysign(x) }
}
#[inline(always)]
pub fn acos<const F: bool, T: Real>(x: T) -> T {
    let a = x.abs();
    let (s, tail, big) = arc::<F, T>(a);
    // big: 2 asin(s), or pi minus that; else pi/2 -+ asin(a).
    let k = if big { T::lit(2.0) } else { T::ONE };
    let quarters = if big { if x > T::ZERO { T::ZERO } else { T::lit(2.0) } } else { T::ONE };
    let sign = if big == (x > T::ZERO) { k } else { -k };
    let (s, tail) = (s * sign, tail * sign);
    let high = T::HALF_PI[0] * quarters;
    let c = high + s;
    let r = c + (((high - c) + s) + (T::HALF_PI[1].fma::<F>(quarters, tail)));
    if a > T::ONE { T::NAN } else { r }
}
