use super::exact::{Dd, LN_2, PI};
use super::*;
use crate::kernels::simd::{self, Level, simd};

/// Both types, so that one list of functions serves them.
trait Sample: Real {
    fn next(self, ordinals: i128) -> Self;
    fn ordinal(self) -> i64;
    /// The distance of neighbours at v.
    fn spacing(v: f64) -> f64;
}
macro_rules! samples { ($($t:ident $i:ident)*) => { $(impl Sample for $t {
    fn next(self, ordinals: i128) -> $t {
        let o = self.ordinal() as i128 + ordinals;
        let o = if o < 0 { $i::MIN.wrapping_sub(o as $i) } else { o as $i };
        $t::from_bits(o.cast_unsigned())
    }
    fn ordinal(self) -> i64 {
        let b = self.to_bits().cast_signed();
        (if b < 0 { $i::MIN.wrapping_sub(b) } else { b }) as i64
    }
    fn spacing(v: f64) -> f64 {
        let e = (v.abs().to_bits() >> 52) as i32 - 1023;
        let e = e.max($t::MIN_EXP - 1) - ($t::MANTISSA_DIGITS as i32 - 1);
        2f64.powi(e / 2) * 2f64.powi(e - e / 2)
    }
})* } }
samples! { f32 i32 f64 i64 }

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
/// Half of the points evenly among all floats of the domain, half evenly on the part within +-spread.
fn points<T: Sample>(low: f64, high: f64, spread: f64, count: usize) -> Vec<T> {
    let mut rng = Rng(count as u64);
    let (l, h) = (T::lit(low), T::lit(high));
    let range = h.ordinal() as i128 - l.ordinal() as i128;
    let mut x = vec![l, h];
    for v in [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-40, -1e-310, T::TINY.wide(), T::FAR.wide()] {
        if v >= low && v <= high {
            x.push(T::lit(v));
        }
    }
    let (a, b) = (low.max(-spread), high.min(spread));
    while x.len() < count {
        x.push(l.next(rng.next() as i128 % (range + 1)));
        x.push(T::lit(a + (b - a) * rng.unit()));
    }
    x.truncate(count);
    x
}
struct Function {
    name: &'static str,
    f32: fn(&[f32], &mut [f32]),
    f64: fn(&[f64], &mut [f64]),
    exact: fn(Dd) -> Dd,
    /// Low, high, spread.
    domain: [f64; 3],
    /// ulp, f32 and f64.
    bound: [f64; 2],
}
macro_rules! functions { ($($name:ident |$x:ident| $exact:expr, $low:expr, $high:expr, $spread:expr, $b32:expr, $b64:expr;)*) => {
    &[$({
        simd! { fn run<T: Real>(x: &[T], o: &mut [T]) {
            for i in 0..o.len().min(x.len()) { o[i] = x[i].$name::<FMA>(); }
        } }
        Function {
            name: stringify!($name), f32: run::<f32>, f64: run::<f64>,
            exact: |$x| $exact, domain: [$low, $high, $spread], bound: [$b32, $b64],
        }
    }),*]
} }
const MAX: f64 = f64::MAX;
fn sigmoid(v: Dd) -> Dd {
    if v.0 < 0.0 { v.exp() / (1.0 + v.exp()) } else { 1.0 / (1.0 + (-v).exp()) }
}
/// x sigmoid(v). Where the result has no room for its low part, 2^500 of it first.
fn times_sigmoid(x: Dd, v: Dd) -> Dd {
    if v.0 > -600.0 { x * sigmoid(v) } else { (x * (v + LN_2 * 500.0).exp()).two_to(-500) }
}
/// y times the normal distribution beyond a.
fn times_tail(y: Dd, a: Dd) -> Dd {
    let z = a / Dd::from(2.0).sqrt();
    if a.0 < 20.0 { y * z.erfc() * 0.5 } else { (y * (LN_2 * 500.0 - a * a * 0.5).exp() * z.erfcx() * 0.5).two_to(-500) }
}
fn softplus(v: Dd) -> Dd {
    v.max0() + (-v.abs()).exp().log1p()
}
const FUNCTIONS: &[Function] = functions! {
    exp |x| x.exp(), -800.0, 800.0, 100.0, 1.0, 1.1;
    exp2 |x| (x * LN_2).exp(), -1100.0, 1100.0, 150.0, 1.05, 1.1;
    expm1 |x| x.expm1(), -100.0, 800.0, 5.0, 1.2, 1.2;
    log |x| x.log(), 0.0, MAX, 4.0, 0.9, 0.9;
    log2 |x| x.log() / LN_2, 0.0, MAX, 4.0, 0.9, 0.9;
    log10 |x| x.log() / Dd::from(10.0).log(), 0.0, MAX, 4.0, 0.9, 0.9;
    log1p |x| x.log1p(), -1.0, MAX, 3.0, 1.7, 1.0;
    sin_near |x| x.sin(), -1e5, 1e5, 100.0, 0.9, 0.9;
    cos_near |x| x.cos(), -1e5, 1e5, 100.0, 0.9, 0.9;
    tan_near |x| x.sin() / x.cos(), -1e5, 1e5, 100.0, 2.1, 2.1;
    asin |x| x.asin(), -1.0, 1.0, 1.0, 0.8, 0.8;
    acos |x| x.acos(), -1.0, 1.0, 1.0, 0.8, 0.8;
    atan |x| x.atan(), -MAX, MAX, 5.0, 0.8, 0.8;
    sinh |x| if x.0.abs() < 1.0 { x.expm1() * (x.expm1() + 2.0) / (x.expm1() + 1.0) / 2.0 } else if x.0.abs() > 300.0 { (x.abs() - LN_2).exp() * x.0.signum() } else { (x.exp() - (-x).exp()) / 2.0 }, -720.0, 720.0, 5.0, 1.7, 1.7;
    cosh |x| if x.0.abs() > 300.0 { (x.abs() - LN_2).exp() } else { (x.exp() + (-x).exp()) / 2.0 }, -720.0, 720.0, 5.0, 1.6, 1.6;
    tanh |x| if x.0.abs() > 300.0 { Dd::from(x.0.signum()) } else { (x + x).expm1() / ((x + x).expm1() + 2.0) }, -MAX, MAX, 10.0, 1.4, 1.4;
    asinh |x| if x.0.abs() > 1e100 { (x.abs().log() + LN_2) * x.0.signum() } else { let a = x.abs(); (a + a * a / (1.0 + (a * a + 1.0).sqrt())).log1p() * 1f64.copysign(x.0) }, -MAX, MAX, 10.0, 1.8, 1.8;
    acosh |x| if x.0 > 1e100 { x.log() + LN_2 } else { let t = x - 1.0; (t + (t * (t + 2.0)).sqrt()).log1p() }, 1.0, MAX, 10.0, 2.0, 2.0;
    atanh |x| (2.0 * x.abs() / (1.0 - x.abs())).log1p() * 0.5f64.copysign(x.0), -1.0, 1.0, 1.0, 2.0, 2.0;
    sigmoid |x| sigmoid(x), -800.0, 800.0, 100.0, 2.0, 2.0;
    silu |x| times_sigmoid(x, x), -800.0, 800.0, 100.0, 2.2, 2.3;
    softplus |x| softplus(x), -800.0, 800.0, 20.0, 1.8, 1.6;
    log_sigmoid |x| -softplus(-x), -800.0, 800.0, 20.0, 1.8, 1.6;
    logit |x| if x.0 > 0.3 && x.0 < 0.7 { ((x - 0.5) * 2.0 / (1.0 - x)).log1p() } else { (x / (1.0 - x)).log() }, 0.0, 1.0, 1.0, 1.7, 1.6;
    erf |x| x.erf(), -30.0, 30.0, 5.0, 1.1, 1.1;
    erfc |x| times_tail(2.0.into(), x * Dd::from(2.0).sqrt()), -30.0, 30.0, 10.0, 3.0, 3.0;
    normal_cdf |x| if x.0 > 0.0 { 1.0 - times_tail(1.0.into(), x) } else { times_tail(1.0.into(), -x) }, -42.0, 42.0, 14.0, 3.1, 3.1;
    gelu |x| if x.0 > 0.0 { x - times_tail(x, x) } else { times_tail(x, -x) }, -42.0, 42.0, 14.0, 3.1, 3.1;
    gelu_tanh |x| times_sigmoid(x, (2.0 / PI).sqrt() * 2.0 * (x + x * x * x * 44715.0 / 1e6)), -42.0, 42.0, 14.0, 2.3, 2.3;
    erfinv |x| if x.0.abs() == 1.0 { (x.0 * f64::INFINITY).into() } else if x.0.abs() < 1e-20 { x * PI.sqrt() / 2.0 } else { x.erfinv(Real::erfinv::<false>(x.0)) }, -1.0, 1.0, 1.0, 2.4, 2.4;
};
/// What is beyond the range must be infinite, what is NaN must be NaN.
fn error_in_ulp<T: Sample>(got: T, want: Dd) -> f64 {
    let (got, top) = (got.wide(), T::INF.next(-1).wide());
    let near_top = (want.0.abs() - top).abs() < 3.0 * T::spacing(top);
    let right = if want.0.is_nan() {
        got.is_nan()
    } else if near_top {
        got.abs() >= top.next_down() && got * want.0 > 0.0
    } else if want.0.abs() > top {
        got.is_infinite() && got * want.0 > 0.0
    } else {
        let error = (((got - want.0) - want.1) / T::spacing(want.0)).abs();
        return if error.is_nan() { f64::INFINITY } else { error };
    };
    if right { 0.0 } else { f64::INFINITY }
}
/// The largest error in ulp, and where.
fn worst<T: Sample>(x: &[T], got: &[T], exact: fn(Dd) -> Dd) -> (f64, f64) {
    let mut worst = (0.0, 0.0);
    for (&x, &g) in x.iter().zip(got) {
        let error = error_in_ulp(g, exact(x.wide().into()));
        if error > worst.0 {
            worst = (error, x.wide());
        }
    }
    worst
}
fn over<T: Real>(f: fn(&[T], &mut [T]), x: &[T]) -> Vec<T> {
    let mut o = vec![T::ZERO; x.len()];
    f(x, &mut o);
    o
}
fn nanoseconds<T: Real>(f: fn(&[T], &mut [T]), x: &[T]) -> f64 {
    let mut o = vec![T::ZERO; x.len()];
    let mut best = f64::INFINITY;
    for _ in 0..40 {
        let t = std::time::Instant::now();
        for _ in 0..8 {
            f(std::hint::black_box(x), std::hint::black_box(&mut o));
        }
        best = best.min(t.elapsed().as_secs_f64() / 8.0 / x.len() as f64 * 1e9);
    }
    best
}
/// The levels this machine has, narrow ones first.
fn levels() -> Vec<Level> {
    let all = [Level::Plain, Level::Avx2, Level::Avx512];
    all.into_iter().filter(|&l| at(l, simd::level) == l).collect()
}
/// Runs f as if the machine had no more than this level, one such run at a time.
fn at<R>(level: Level, f: impl FnOnce() -> R) -> R {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    simd::limit(Some(level));
    let r = f();
    simd::limit(None);
    r
}
#[test]
fn errors_stay_within_bounds_at_every_level() {
    for f in FUNCTIONS {
        let [low, high, spread] = f.domain;
        let x32 = points::<f32>(low.max(-3.4e38), high.min(3.4e38), spread, 4000);
        let x64 = points::<f64>(low, high, spread, 4000);
        for level in levels() {
            let (o32, o64) = at(level, || (over(f.f32, &x32), over(f.f64, &x64)));
            let (a, b) = (worst(&x32, &o32, f.exact), worst(&x64, &o64, f.exact));
            assert!(a.0 <= f.bound[0] && b.0 <= f.bound[1], "{} at {level:?}: f32 {a:?}, f64 {b:?}, in ulp and where", f.name);
        }
    }
}
macro_rules! pairwise { ($($run:ident $name:ident)*) => { $(simd! { fn $run<T: Real>(x: &[T], y: &[T], o: &mut [T]) {
    for i in 0..o.len().min(x.len()).min(y.len()) { o[i] = x[i].$name::<FMA>(y[i]); }
} })* } }
pairwise! { atan2_all atan2 pow_all pow hypot_all hypot logaddexp_all logaddexp fmod_all fmod_near remainder_all remainder_near }
type Pairwise<T> = fn(&[T], &[T], &mut [T]);
const fn pairwise<T: Real>() -> [(&'static str, Pairwise<T>); 6] {
    [
        ("atan2", atan2_all),
        ("pow", pow_all),
        ("hypot", hypot_all),
        ("logaddexp", logaddexp_all),
        ("fmod", fmod_all),
        ("remainder", remainder_all),
    ]
}
fn over_pairs<T: Real>(f: Pairwise<T>, x: &[T], y: &[T]) -> Vec<T> {
    let mut o = vec![T::ZERO; x.len()];
    f(x, y, &mut o);
    o
}
/// Largest errors of a function of two arguments, in ulp of the result.
fn worst_of_pairs<T: Sample>(f: Pairwise<T>, x: &[T], y: &[T], exact: fn(Dd, Dd) -> Dd) -> (f64, f64, f64) {
    let got = over_pairs(f, x, y);
    let mut worst_pair = (0.0, 0.0, 0.0);
    for i in 0..x.len() {
        let want = exact(x[i].wide().into(), y[i].wide().into());
        let e = error_in_ulp(got[i], want);
        if e > worst_pair.0 {
            worst_pair = (e, x[i].wide(), y[i].wide());
        }
    }
    worst_pair
}
fn check_pairs<T: Sample>(max: f64, big: f64) {
    let mixed = |seed: usize, low: f64, high: f64, spread: f64| points::<T>(low, high, spread, 6000 + seed);
    let cut = |mut v: Vec<T>| {
        v.truncate(6000);
        v
    };
    let (any, other) = (cut(mixed(0, -max, max, 10.0)), cut(mixed(1, -max, max, 10.0)));
    let (positive, exponent) = (cut(mixed(2, 0.0, max, 3.0)), cut(mixed(3, -big, big, 10.0)));
    let (near_1, far) = (cut(mixed(4, 0.99, 1.01, 3.0)), cut(mixed(5, -1e4, 1e4, 1e4)));
    let (sum, addend) = (cut(mixed(6, 0.0, big, 30.0)), cut(mixed(7, 0.0, big, 30.0)));
    for level in levels() {
        let bounds = at(level, || {
            [
                ("atan2", 0.9, worst_of_pairs(atan2_all, &any, &other, |y, x| y.atan2(x))),
                ("pow", 1.1, worst_of_pairs(pow_all, &positive, &exponent, exact_pow)),
                ("pow", 1.1, worst_of_pairs(pow_all, &near_1, &far, exact_pow)),
                (
                    "hypot",
                    1.1,
                    worst_of_pairs(hypot_all, &any, &other, |a, b| {
                        let s = a.abs().0.max(b.abs().0);
                        let down = -s.log2().max(-1080.0) as i32;
                        if s == 0.0 {
                            s.into()
                        } else {
                            let (a, b) = (a.two_to(down), b.two_to(down));
                            (a * a + b * b).sqrt().two_to(-down)
                        }
                    }),
                ),
                (
                    "logaddexp",
                    1.9,
                    worst_of_pairs(logaddexp_all, &sum, &addend, |a, b| {
                        let (low, high) = if a.0 < b.0 { (a, b) } else { (b, a) };
                        high + (low - high).exp().log1p()
                    }),
                ),
            ]
        });
        for (name, bound, worst) in bounds {
            assert!(worst.0 <= bound, "{name} {} at {level:?}: {worst:?}", std::any::type_name::<T>());
        }
    }
}
fn exact_pow(x: Dd, y: Dd) -> Dd {
    if y.0 == 0.0 || x.0 == 1.0 {
        Dd::from(1.0)
    } else if x.0 == 0.0 {
        x.0.powf(y.0).into()
    } else {
        (y * x.log()).exp()
    }
}
#[test]
fn errors_of_two_arguments_stay_within_bounds_at_every_level() {
    check_pairs::<f32>(3.4e38, 80.0);
    check_pairs::<f64>(1.7e308, 500.0);
}
/// `cargo test --profile bench kernels::math -- --ignored --nocapture figures`: errors, and ns an element for 4096 elements.
#[test]
#[ignore = "a report, not a check"]
fn figures() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let n = std::env::var("POINTS").map_or(100_000, |v| v.parse().unwrap());
    println!("{:12} {:>22} {:>22} {:>23} {:>23}", "", "f32 ulp", "f64 ulp", "f32 ns 512/avx2/plain", "f64 ns");
    for f in FUNCTIONS.iter().filter(|f| only.is_empty() || only.split(',').any(|o| f.name == o)) {
        let [low, high, spread] = f.domain;
        let x32 = points::<f32>(low.max(-3.4e38), high.min(3.4e38), spread, n);
        let x64 = points::<f64>(low, high, spread, n);
        let mut ns = vec![];
        let (a, b) = (
            &points::<f32>(low.max(-spread), high.min(spread), spread, 8192)[4096..],
            &points::<f64>(low.max(-spread), high.min(spread), spread, 8192)[4096..],
        );
        for level in [Level::Avx512, Level::Avx2, Level::Plain] {
            simd::limit(Some(level));
            ns.push((nanoseconds(f.f32, a), nanoseconds(f.f64, b)));
        }
        let plain = (worst(&x32, &over(f.f32, &x32), f.exact), worst(&x64, &over(f.f64, &x64), f.exact));
        simd::limit(None);
        let (e32, e64) = (worst(&x32, &over(f.f32, &x32), f.exact), worst(&x64, &over(f.f64, &x64), f.exact));
        println!(
            "{:12} {:5.2} at {:13.6e} {:5.2} at {:13.6e}   {:5.2} {:5.2} {:6.2}   {:5.2} {:5.2} {:6.2}   plain {:5.2} at {:13.6e} {:5.2} at {:13.6e}",
            f.name,
            e32.0,
            e32.1,
            e64.0,
            e64.1,
            ns[0].0,
            ns[1].0,
            ns[2].0,
            ns[0].1,
            ns[1].1,
            ns[2].1,
            plain.0.0,
            plain.0.1,
            plain.1.0,
            plain.1.1
        );
    }
}
