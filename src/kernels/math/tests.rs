use super::exact::{Dd, LN_2, PI};
use super::*;
use crate::kernels::simd::{self, Level, at, simd};

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
/// An element, for a function that fills 4096.
fn nanoseconds<T: Real>(f: impl Fn(&mut [T])) -> f64 {
    let mut o = vec![T::ZERO; 4096];
    let mut best = f64::INFINITY;
    for _ in 0..60 {
        let t = std::time::Instant::now();
        for _ in 0..8 {
            f(std::hint::black_box(&mut o));
        }
        best = best.min(t.elapsed().as_secs_f64() / 8.0 / 4096.0 * 1e9);
    }
    best
}
/// The levels this machine has, narrow ones first.
fn levels() -> Vec<Level> {
    let all = [Level::Plain, Level::Avx2, Level::Avx512];
    all.into_iter().filter(|&l| at(l, simd::level) == l).collect()
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
fn exact_pow(x: Dd, y: Dd) -> Dd {
    match x.0 {
        _ if y.0 == 0.0 => Dd::from(1.0),
        0.0 => x.0.powf(y.0).into(),
        _ => (y * x.log()).exp(),
    }
}
fn exact_hypot(a: Dd, b: Dd) -> Dd {
    let high = a.0.abs().max(b.0.abs());
    if high == 0.0 {
        return high.into();
    }
    let down = -high.log2().max(-1080.0) as i32;
    let (a, b) = (a.two_to(down), b.two_to(down));
    (a * a + b * b).sqrt().two_to(-down)
}
fn exact_logaddexp(a: Dd, b: Dd) -> Dd {
    let (low, high) = if a.0 < b.0 { (a, b) } else { (b, a) };
    high + (low - high).exp().log1p()
}
fn check_pairs<T: Sample>(max: f64, big: f64) {
    type Exact = fn(Dd, Dd) -> Dd;
    type Case<T> = (&'static str, Pairwise<T>, Exact, f64, [f64; 3], [f64; 3]);
    let all: [Case<T>; 5] = [
        ("atan2", atan2_all, Dd::atan2, 0.9, [-max, max, 10.0], [-max, max, 10.0]),
        ("pow", pow_all, exact_pow, 1.1, [0.0, max, 3.0], [-big, big, 10.0]),
        ("pow", pow_all, exact_pow, 1.1, [0.99, 1.01, 3.0], [-1e4, 1e4, 1e4]),
        ("hypot", hypot_all, exact_hypot, 1.1, [-max, max, 10.0], [-max, max, 10.0]),
        ("logaddexp", logaddexp_all, exact_logaddexp, 1.9, [0.0, big, 30.0], [0.0, big, 30.0]),
    ];
    for (name, f, exact, bound, [a, b, c], [d, e, g]) in all {
        let (x, mut y) = (points::<T>(a, b, c, 6000), points::<T>(d, e, g, 6001));
        y.rotate_left(1); // no end beside an end
        for level in levels() {
            let worst = at(level, || worst_of_pairs(f, &x, &y, exact));
            assert!(worst.0 <= bound, "{name} {} at {level:?}: {worst:?}", std::any::type_name::<T>());
        }
    }
}
#[test]
fn errors_of_two_arguments_stay_within_bounds_at_every_level() {
    check_pairs::<f32>(3.4e38, 80.0);
    check_pairs::<f64>(1.7e308, 500.0);
}
fn same(got: f64, want: f64) -> bool {
    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan())
}
macro_rules! edges { ($t:ident, $($name:ident: $($x:expr => $want:expr),*;)*) => { $($( {
    let x: f64 = $x;
    for got in [<$t>::lit(x).$name::<true>(), <$t>::lit(x).$name::<false>()] {
        assert!(same(got.wide(), $want), concat!(stringify!($name), "({:e}) = {:e}"), x, got.wide());
    }
} )*)* } }
fn edges<T: Sample>() {
    const INF: f64 = f64::INFINITY;
    const NAN: f64 = f64::NAN;
    let (top, least) = (T::INF.next(-1).wide(), T::ZERO.next(1).wide());
    edges! { T,
        exp: INF => INF, -INF => 0.0, NAN => NAN, 0.0 => 1.0, -0.0 => 1.0, top => INF, -top => 0.0, least => 1.0;
        exp2: INF => INF, -INF => 0.0, NAN => NAN, 0.0 => 1.0, 10.0 => 1024.0, -3.0 => 0.125, top => INF, -top => 0.0;
        expm1: INF => INF, -INF => -1.0, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, least => least, -least => -least, top => INF, -top => -1.0;
        log: INF => INF, -INF => NAN, NAN => NAN, 0.0 => -INF, -0.0 => -INF, 1.0 => 0.0, -1.0 => NAN, -least => NAN;
        log2: INF => INF, -INF => NAN, NAN => NAN, 0.0 => -INF, -0.0 => -INF, 1.0 => 0.0, 8.0 => 3.0, 0.25 => -2.0, -1.0 => NAN;
        log10: INF => INF, -INF => NAN, NAN => NAN, 0.0 => -INF, -0.0 => -INF, 1.0 => 0.0, 1000.0 => 3.0, 1e10 => 10.0, -1.0 => NAN;
        log1p: INF => INF, -INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, -1.0 => -INF, -2.0 => NAN, least => least, -least => -least;
        sin: INF => NAN, -INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, least => least, -least => -least;
        cos: INF => NAN, -INF => NAN, NAN => NAN, 0.0 => 1.0, -0.0 => 1.0, least => 1.0;
        tan: INF => NAN, -INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, least => least, -least => -least;
        sin_near: INF => NAN, -INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0;
        asin: INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, 1.5 => NAN, -1.5 => NAN, least => least;
        acos: INF => NAN, -INF => NAN, NAN => NAN, 1.0 => 0.0, 1.5 => NAN, -1.5 => NAN;
        atan: NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, least => least, -least => -least;
        sinh: INF => INF, -INF => -INF, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, least => least, top => INF, -top => -INF;
        cosh: INF => INF, -INF => INF, NAN => NAN, 0.0 => 1.0, -0.0 => 1.0, least => 1.0, -top => INF;
        tanh: INF => 1.0, -INF => -1.0, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, least => least, top => 1.0, -top => -1.0;
        asinh: INF => INF, -INF => -INF, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, least => least;
        acosh: INF => INF, -INF => NAN, NAN => NAN, 1.0 => 0.0, 0.5 => NAN, -5.0 => NAN, -top => NAN;
        atanh: INF => NAN, -INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, 1.0 => INF, -1.0 => -INF, 2.0 => NAN, -2.0 => NAN, top => NAN, least => least;
        sigmoid: INF => 1.0, -INF => 0.0, NAN => NAN, 0.0 => 0.5, -0.0 => 0.5, top => 1.0, -top => 0.0;
        silu: INF => INF, -INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, top => top, -top => -0.0;
        softplus: INF => INF, -INF => 0.0, NAN => NAN, top => top, -top => 0.0;
        log_sigmoid: INF => -0.0, -INF => -INF, NAN => NAN, top => -0.0, -top => -top;
        logit: INF => NAN, -INF => NAN, NAN => NAN, 0.0 => -INF, 0.5 => 0.0, 1.0 => INF, -0.5 => NAN, 1.5 => NAN;
        erf: INF => 1.0, -INF => -1.0, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, top => 1.0, -top => -1.0;
        erfc: INF => 0.0, -INF => 2.0, NAN => NAN, 0.0 => 1.0, -0.0 => 1.0, top => 0.0, -top => 2.0;
        erfinv: INF => NAN, -INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, 1.0 => INF, -1.0 => -INF, 1.5 => NAN, -1.5 => NAN;
        normal_cdf: INF => 1.0, -INF => 0.0, NAN => NAN, top => 1.0, -top => 0.0;
        gelu: INF => INF, -INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, top => top, -top => -0.0;
        gelu_tanh: INF => INF, -INF => NAN, NAN => NAN, 0.0 => 0.0, -0.0 => -0.0, top => top, -top => -0.0;
        lgamma: INF => INF, -INF => INF, NAN => NAN, 0.0 => INF, -0.0 => INF, 1.0 => 0.0, 2.0 => 0.0, -3.0 => INF, -top => INF;
        digamma: INF => INF, -INF => NAN, NAN => NAN, 0.0 => -INF, -0.0 => INF, -3.0 => NAN, -top => NAN;
        trigamma: INF => 0.0, -INF => NAN, NAN => NAN, 0.0 => INF, -3.0 => INF;
    }
}
#[test]
fn ends_of_the_domains_are_right() {
    edges::<f32>();
    edges::<f64>();
}
const SPECIAL: [f64; 23] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    1.5,
    -1.5,
    16777215.0,
    -16777215.0,
    1e30,
    -1e30,
    1e-30,
    -1e-30,
    1e38,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    -f64::NAN,
];
#[test]
fn special_pairs_are_as_in_c() {
    for x in SPECIAL {
        for y in SPECIAL {
            let close = |got: f64, want: f64| same(got, want) || ((got - want) / want).abs() < 4e-16;
            assert!(close(Real::pow::<true>(x, y), x.powf(y)), "pow({x:e}, {y:e}) = {:e}", Real::pow::<true>(x, y));
            assert!(close(Real::atan2::<true>(x, y), x.atan2(y)), "atan2({x:e}, {y:e}) = {:e}", Real::atan2::<true>(x, y));
            assert!(close(Real::hypot::<true>(x, y), x.hypot(y)), "hypot({x:e}, {y:e})");
            assert!(same(Real::fmod::<true>(x, y), x % y), "fmod({x:e}, {y:e}) = {:e}", Real::fmod::<true>(x, y));
            let (x, y) = (x as f32, y as f32);
            let close = |got: f32, want: f32| same(got as f64, want as f64) || ((got - want) / want).abs() < 2e-7;
            assert!(close(Real::pow::<true>(x, y), x.powf(y)), "pow({x:e}, {y:e}) = {:e}", Real::pow::<true>(x, y));
            assert!(close(Real::atan2::<true>(x, y), x.atan2(y)), "atan2({x:e}, {y:e}) = {:e}", Real::atan2::<true>(x, y));
            assert!(close(Real::hypot::<true>(x, y), x.hypot(y)), "hypot({x:e}, {y:e})");
            assert!(same(Real::fmod::<true>(x, y) as f64, (x % y) as f64), "fmod({x:e}, {y:e}) = {:e}", Real::fmod::<true>(x, y));
        }
    }
    let inf = f64::INFINITY;
    for (a, b, want) in
        [(inf, inf, inf), (-inf, -inf, -inf), (inf, -inf, inf), (-inf, 3.0, 3.0), (f64::NAN, 1.0, f64::NAN), (1.0, f64::NAN, f64::NAN)]
    {
        assert!(same(Real::logaddexp::<true>(a, b), want), "logaddexp({a}, {b})");
    }
    for (a, b, want) in
        [(5.0, inf, 5.0), (-5.0, inf, inf), (1.0, -inf, -inf), (-6.0, 3.0, -0.0), (-7.0, 3.0, 2.0), (7.0, -3.0, -2.0), (1.0, 0.0, f64::NAN)]
    {
        assert!(same(Real::remainder::<true>(a, b), want), "remainder({a}, {b})");
    }
}
#[test]
fn the_larger_the_smaller_and_the_sign_treat_nan_as_torch_does() {
    let nan = f64::NAN;
    for x in SPECIAL {
        assert!(
            same(Real::max(x, nan), nan) && same(Real::max(nan, x), nan) && same(Real::min(x, nan), nan) && same(Real::min(nan, x), nan)
        );
        assert!(same(Real::fmax(x, nan), x) && same(Real::fmax(nan, x), x) && same(Real::fmin(x, nan), x) && same(Real::fmin(nan, x), x));
        for y in SPECIAL.into_iter().filter(|y| !x.is_nan() && !y.is_nan()) {
            assert!(
                Real::max(x, y) == x.max(y) && Real::fmax(x, y) == x.max(y) && Real::min(x, y) == x.min(y) && Real::fmin(x, y) == x.min(y)
            );
        }
        assert_eq!(Real::sign(x), if x.is_nan() || x == 0.0 { 0.0 } else { x.signum() });
    }
    assert_eq!([0.5, 1.5, 2.5, -0.5, -1.5].map(|v: f64| Real::round(v)), [0.0, 2.0, 2.0, -0.0, -2.0]);
    assert_eq!([1.7, -1.7].map(|v: f32| (Real::floor(v), Real::ceil(v), Real::trunc(v))), [(1.0, 2.0, 1.0), (-2.0, -1.0, -1.0)]);
}
#[test]
fn remainders_are_exact() {
    fn check<T: Sample>(max: f64) {
        let (x, y) = (points::<T>(-max, max, 100.0, 20000), points::<T>(-max, max, 7.0, 20001));
        for (&x, &y) in x.iter().zip(&y) {
            let want = x.wide() % y.wide();
            for got in [x.fmod::<true>(y), x.fmod::<false>(y)] {
                assert!(same(got.wide(), want), "fmod({:e}, {:e}) = {:e}", x.wide(), y.wide(), got.wide());
            }
            if !x.is_far_from(y) {
                assert!(same(x.fmod_near::<true>(y).wide(), want));
                let r = x.remainder_near::<true>(y);
                assert!(same(r.wide(), x.remainder::<true>(y).wide()));
                assert!(
                    r == T::ZERO || r.is_nan() || ((r < T::ZERO) == (y < T::ZERO) && r.abs() <= y.abs()),
                    "remainder({:e}, {:e})",
                    x.wide(),
                    y.wide()
                );
            }
        }
    }
    check::<f32>(3e38);
    check::<f64>(1e308);
}
/// `near`, then `all` wherever it is far: what a kernel does with them gives what `all` alone gives.
#[test]
fn far_arguments_are_reduced_exactly() {
    fn check<T: Sample>(max: f64) {
        let mut x = points::<T>(T::FAR.wide() / 100.0, max, max, 20000);
        x.extend(points::<T>(-max, -T::FAR.wide() / 100.0, max, 20000));
        for x in x {
            let (sin, cos) = x.wide().sin_cos(); // the C library's is right to less than an ulp
            for (got, want, bound) in
                [(x.sin::<true>(), sin, 1.6), (x.cos::<true>(), cos, 1.6), (x.tan::<true>(), sin / cos, 3.0), (x.sin::<false>(), sin, 1.6)]
            {
                let error = error_in_ulp(got, want.into());
                assert!(error <= bound, "{:e}: {:e}, not {want:e}", x.wide(), got.wide());
            }
            if !x.is_far() {
                let near = [x.sin_near::<true>(), x.cos_near::<true>(), x.tan_near::<true>()];
                assert!(near == [x.sin::<true>(), x.cos::<true>(), x.tan::<true>()], "{:e}", x.wide());
            }
        }
    }
    check::<f32>(3.4e38);
    check::<f64>(1.79e308);
    // The double nearest to a multiple of pi/2 of all (Muller): its cosine is 4.687165924254628e-19.
    let x = 6381956970095103.0 * 2f64.powi(797);
    assert!(same(Real::cos::<true>(x), -4.687165924254628e-19), "{:e}", Real::cos::<true>(x));
}
#[test]
fn avx2_and_avx512_give_the_same_bits() {
    if !levels().contains(&Level::Avx512) {
        println!("skipped: no AVX-512 on this machine");
        return;
    }
    fn check<T: Sample>(name: &str, run: impl Fn() -> Vec<T>) {
        let (narrow, wide) = (at(Level::Avx2, &run), at(Level::Avx512, &run));
        for (i, (a, b)) in narrow.iter().zip(&wide).enumerate() {
            assert!(same(a.wide(), b.wide()), "{name}, point {i}: {:e} and {:e}", a.wide(), b.wide());
        }
    }
    fn both<T: Sample>(max: f64, unary: impl Fn(&Function) -> fn(&[T], &mut [T])) {
        let mut x = points::<T>(-max, max, 3.0, 4001); // no multiple of a vector
        let mut y = points::<T>(-max, max, 20.0, 4003);
        let special = || SPECIAL.into_iter().map(T::lit);
        x.extend(special().flat_map(|v| [v; SPECIAL.len()]));
        y.truncate(4001);
        y.extend(special().cycle().take(SPECIAL.len() * SPECIAL.len()));
        for f in FUNCTIONS {
            check(f.name, || over(unary(f), &x));
        }
        for (name, f) in pairwise::<T>() {
            check(name, || over_pairs(f, &x, &y));
        }
    }
    both::<f32>(3.4e38, |f| f.f32);
    both::<f64>(1.7e308, |f| f.f64);
}
#[test]
fn gamma_functions_agree_with_recurrences_and_known_values() {
    let close = |got: f64, want: f64, bound: f64| assert!(error_in_ulp(got, want.into()) <= bound, "{got:e}, not {want:e}");
    KNOWN.iter().for_each(|&(x, l, d, t)| {
        close(Real::lgamma::<true>(x), l, 4.0);
        close(Real::digamma::<true>(x), d, 4.0);
        close(Real::trigamma::<true>(x), t, 4.0);
    });
}
/// The largest error of an f32 function over every `step`th bit pattern, beside the f64 version, and where.
fn worst_of_patterns(f: &Function, step: u32) -> (f64, f64) {
    let mut worst = (0.0, 0.0);
    let mut next = 0u64;
    while next < 1 << 32 {
        let x: Vec<f32> = (0..4096).map(|i| f32::from_bits((next + i * step as u64) as u32)).collect();
        let wide: Vec<f64> = x.iter().map(|&v| v as f64).collect();
        for ((&x, got), want) in x.iter().zip(over(f.f32, &x)).zip(over(f.f64, &wide)) {
            let error = if f.name.ends_with("near") && x.is_far() { 0.0 } else { error_in_ulp(got, want.into()) };
            if error > worst.0 {
                worst = (error, x as f64);
            }
        }
        next += 4096 * step as u64;
    }
    worst
}
/// Errors (f32 over 44 M bit patterns), and ns an element for 4096 evenly spread over what is usual. `ONLY=exp,log` picks.
/// `cargo test --profile bench kernels::math -- --ignored --nocapture figures`
#[test]
#[ignore = "a report, not a check"]
fn figures() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let wanted = |name: &str| only.is_empty() || only.split(',').any(|o| name == o);
    println!("{:12} {:^23} {:^23} {:^14} {:^14}", "", "f32: ulp, at", "f64: ulp, at", "f32: avx512, avx2 ns", "f64: avx512, avx2 ns");
    for f in FUNCTIONS.iter().filter(|f| wanted(f.name)) {
        let [low, high, spread] = f.domain;
        let x = points::<f64>(low, high, spread, 100_000);
        let (narrow, wide) = (worst_of_patterns(f, 97), worst(&x, &over(f.f64, &x), f.exact));
        let even = |i: i32| low.max(-spread) + (high.min(spread) - low.max(-spread)) * (i as f64 * 0.618_033_988_749_895).fract();
        let (x32, x64): (Vec<f32>, Vec<f64>) = (0..4096).map(|i| (even(i) as f32, even(i))).unzip();
        let ns = [Level::Avx512, Level::Avx2].map(|l| at(l, || [nanoseconds(|o| (f.f32)(&x32, o)), nanoseconds(|o| (f.f64)(&x64, o))]));
        print!("{:12} {:6.2} at {:13.6e} {:6.2} at {:13.6e}", f.name, narrow.0, narrow.1, wide.0, wide.1);
        println!("   {:5.2} {:5.2}   {:5.2} {:5.2}", ns[0][0], ns[1][0], ns[0][1], ns[1][1]);
    }
    for ((name, f32), (_, f64)) in pairwise::<f32>().into_iter().zip(pairwise::<f64>()).filter(|f| wanted(f.0.0)) {
        let even = |i: i32, by: f64| (i as f64 * by).fract() * 4.0;
        let (x32, x64): (Vec<f32>, Vec<f64>) = (0..4096).map(|i| (even(i, 0.618) as f32, even(i, 0.618))).unzip();
        let (y32, y64): (Vec<f32>, Vec<f64>) = (0..4096).map(|i| (even(i, 0.331) as f32, even(i, 0.331))).unzip();
        let ns = [Level::Avx512, Level::Avx2].map(|l| at(l, || [nanoseconds(|o| f32(&x32, &y32, o)), nanoseconds(|o| f64(&x64, &y64, o))]));
        println!("{name:58}   {:5.2} {:5.2}   {:5.2} {:5.2}", ns[0][0], ns[1][0], ns[0][1], ns[1][1]);
    }
}
/// x, lgamma, digamma, trigamma, by mpmath.
#[rustfmt::skip]
#[allow(clippy::approx_constant)]
const KNOWN: &[(f64, f64, f64, f64)] = &[
    (1e-300, 690.7755278982137, -9.999999999999999e+299, f64::INFINITY),
    (1e-10, 23.025850929882736, -10000000000.577215, 1e+20),
    (0.1, 2.252712651734206, -10.423754940411076, 101.43329915079275),
    (0.25, 1.2880225246980774, -4.2274535333762655, 17.19732915450711),
    (0.499, 0.5743309231606863, -1.9684532588873478, 4.951679830634705),
    (0.5, 0.5723649429247001, -1.9635100260214235, 4.934802200544679),
    (0.75, 0.20328095143129538, -1.0858608797864722, 2.5418796476716063),
    (0.999, 0.0005780385328913802, -0.5788618021086455, 1.6473414317770505),
    (1.001, -0.0005763935982833062, -0.5755719318103006, 1.6425331958689784),
    (1.25, -0.09827183642181316, -0.22745353337626542, 1.1973291545071107),
    (1.4616321449683622, -0.12148629053584961, -9.241265521729427e-17, 0.9676722454476212),
    (1.4616, -0.12148629003589732, -3.110625123034165e-05, 0.9677007114650835),
    (1.5, -0.12078223763524522, 0.03648997397857652, 0.9348022005446793),
    (1.75, -0.08440112102048555, 0.24747245354686118, 0.7641018698938287),
    (1.999999, -4.227840125965854e-07, 0.4227836901641983, 0.6449344709622797),
    (2.0000001, 4.227843666532498e-08, 0.4227843995918717, 0.6449340264368484),
    (2.25, 0.1248717148923966, 0.5725464666237345, 0.5573291545071107),
    (2.4999, 0.28461255726068263, 0.7031076036885755, 0.49038137762498063),
    (2.5, 0.2846828704729192, 0.7031566406452432, 0.49035775610023485),
    (3.0, 0.6931471805599453, 0.9227843350984671, 0.39493406684822646),
    (3.5, 1.2009736023470743, 1.103156640645243, 0.3303577561002349),
    (5.0, 3.1780538303479458, 1.5061176684318005, 0.22132295573711533),
    (6.125, 5.002162481906205, 1.7285306545309063, 0.17731461183800162),
    (8.4, 9.341884976495052, 2.067528531019136, 0.12641419485236854),
    (8.5, 9.549267257300997, 2.08009081757942, 0.12483811891892602),
    (9.99, 12.779315214350193, 2.250700372831201, 0.10527695014824179),
    (10.0, 12.801827480081469, 2.251752589066721, 0.10516633568168575),
    (10.5, 13.940625219403763, 2.3030010342976865, 0.09991695605912673),
    (20.0, 39.339884187199495, 2.970523992242149, 0.05127082293520312),
    (100.0, 359.1342053695754, 4.600161852738087, 0.010050166663333571),
    (1234.5, 7550.550901077895, 7.118016231827998, 0.0008103727271269667),
    (1000000.0, 12815504.569147611, 13.815510057964191, 1.0000005000001667e-06),
    (1000000000000000.0, 3.3538776394910668e+16, 34.538776394910684, 1.0000000000000005e-15),
    (1e+20, 4.505170185988091e+21, 46.051701859880914, 1e-20),
    (1e+300, 6.897755278982137e+302, 690.7755278982137, 1e-300),
    (-0.5, 1.2655121234846454, 0.03648997397857652, 8.934802200544679),
    (-1.5, 0.860047015376481, 0.7031566406452432, 9.379246644989124),
    (-0.1, 2.3689613327287886, 9.245073050052948, 101.92253995947719),
    (-2.25, 0.5555015450206475, 4.158583564657972, 19.37941051186914),
    (-10.5, -15.147270590717842, 2.3982391295357814, 9.778757739814813),
    (-30.25, -74.02239745035548, 6.567526705172748, 19.706691341963047),
];
