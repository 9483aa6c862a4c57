//! The logarithm of the gamma function and its derivatives: plain scalar code with branches, in f64 for both types.
//!
//! Right to a few ulp for positive arguments, zeros included. Below 0 the reflection formulas lose relative accuracy near the zeros
//! of the result, as the C library does.
use super::{Real, fit::Fit, poly};
use std::f64::consts::PI;

fn fit(t: f64, c: &[f64]) -> f64 {
    poly::<false, f64>(t, c)
}
/// sin(pi x) and cos(pi x) up to a common sign.
fn half_turns(x: f64) -> (f64, f64) {
    let r = x - x.round_ties_even();
    (Real::sin::<false>(PI * r), Real::sin::<false>(PI * (0.5 - r.abs())))
}
pub fn lgamma(x: f64) -> f64 {
    if x.is_nan() || x.is_infinite() {
        return x.abs();
    }
    if x <= 0.0 {
        if x == x.trunc() {
            return f64::INFINITY;
        }
        return Real::log::<false>(PI / (x * half_turns(x).0).abs()) - lgamma(-x);
    }
    match x {
        ..0.5 => x * fit(x, f64::LGAMMA_1) - Real::log::<false>(x),
        ..1.5 => (x - 1.0) * fit(x - 1.0, f64::LGAMMA_1) + 0.0, // not -0 at 1
        ..8.5 => {
            let (mut z, mut product) = (x, 1.0);
            while z >= 2.5 {
                z -= 1.0;
                product *= z;
            }
            (z - 2.0) * fit(z - 2.0, f64::LGAMMA_2) + Real::log::<false>(product)
        }
        // Stirling
        ..1e17 => {
            const C: [f64; 8] =
                [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0, -691.0 / 360360.0, 1.0 / 156.0, -3617.0 / 122400.0];
            let half_log_tau = 0.918_938_533_204_672_8;
            let log = Real::log::<false>(x);
            (x - 0.5) * (log - 1.0) + (half_log_tau - 0.5 + fit(1.0 / (x * x), &C) / x)
        }
        _ => x * (Real::log::<false>(x) - 1.0),
    }
}
pub fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        if x == x.trunc() {
            return f64::NAN; // -inf too
        }
        let (s, c) = half_turns(x);
        return digamma(1.0 - x) - PI * c / s;
    }
    let (mut z, mut sum) = (x, 0.0);
    if z < 1.0 {
        sum = -1.0 / z;
        z += 1.0;
    }
    while (2.0..10.0).contains(&z) {
        z -= 1.0;
        sum += 1.0 / z;
    }
    if z < 2.0 {
        let [root, root_low] = f64::DIGAMMA_ROOT;
        return sum + ((z - root) - root_low) * fit(z - 1.5, f64::DIGAMMA);
    }
    const C: [f64; 8] = [1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0, -3617.0 / 8160.0];
    let w = 1.0 / (z * z);
    Real::log::<false>(z) - (0.5 / z + w * fit(w, &C))
}
pub fn trigamma(x: f64) -> f64 {
    if x < 0.5 {
        if x == x.trunc() {
            return if x == f64::NEG_INFINITY { f64::NAN } else { f64::INFINITY };
        }
        let s = PI / half_turns(x).0;
        return s * s - trigamma(1.0 - x);
    }
    let (mut z, mut sum) = (x, 0.0);
    while z < 10.0 {
        sum += 1.0 / (z * z);
        z += 1.0;
    }
    const C: [f64; 8] = [1.0 / 6.0, -1.0 / 30.0, 1.0 / 42.0, -1.0 / 30.0, 5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0, -3617.0 / 510.0];
    let w = 1.0 / (z * z);
    sum + (1.0 / z + (0.5 * w + w / z * fit(w, &C)))
}
