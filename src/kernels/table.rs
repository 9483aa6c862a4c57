//! The pointwise kernels: one line each, on scalars. `T` is f32 or f64, `FMA` says whether fused multiply-add is one instruction.
//!
//! `Name [parameters](operands) => float version, ints integer version;`
//!
//! Without `ints` an integer operand is promoted to the default float; `only ints` knows no floats. Integers and bools are computed in i64
//! and wrap when stored. Truth values are 1 and 0 of the computing type: `pointwise::run_to(.., DType::Bool, ..)` stores them as bools.
//! `near` is a cheaper version that is right up to `Real::FAR`. `divisor 1`: operand 1 must hold no integer 0.
//! `with halves`: with a loop of its own for 16-bit floats (for what is cheap enough for the passes through scratch to show).
//!
//! Operands that are not differentiable numbers (`alpha`, `beta`) are parameters; bounds and weights that may be tensors are operands
//! (a number is a 0-d operand, and promotes as such). A backward kernel takes the gradient `g` first. Where floats are written so that both
//! arms of a choice are computed, it is for the loop to be vectorised.
use super::math::Real;
use super::simd::simd;
use crate::dtype::{Cast, Scalar};
use half::{bf16, f16};

/// What `pointwise` needs of a kernel of N operands: its loops over contiguous slices of one type, all of one length.
pub trait Kernel<const N: usize>: Sync {
    /// Whether integers are computed as such; else they are promoted to the default float.
    fn has_ints(&self) -> bool;
    fn has_floats(&self) -> bool {
        true
    }
    /// The operand that must hold no integer 0.
    fn divisor(&self) -> Option<usize> {
        None
    }
    fn f32(&self, x: [&[f32]; N], o: &mut [f32]);
    fn f64(&self, x: [&[f64]; N], o: &mut [f64]);
    fn i64(&self, x: [&[i64]; N], o: &mut [i64]);
    /// Whether there are loops that widen, compute in f32 and narrow as they go; else 16-bit floats pass through scratch in f32.
    fn has_halves(&self) -> bool {
        false
    }
    fn f16(&self, _: [&[f16]; N], _: &mut [f16]) {}
    fn bf16(&self, _: [&[bf16]; N], _: &mut [bf16]) {}
}

/// One loop over slices: `$o[i] = $e` with each operand's element under its own name.
macro_rules! each {
    ([$($x:ident)+], $o:ident, $e:expr) => {{
        $(let $x = &$x[..$o.len()];)+
        for i in 0..$o.len() {
            $(let $x = $x[i];)+
            $o[i] = $e;
        }
    }};
}
/// As `each` for one operand, in blocks: `$near` where no element of the block is far.
macro_rules! each_near {
    ([$a:ident], $o:ident, $e:expr, $near:expr) => {
        for ($a, $o) in $a.chunks(128).zip($o.chunks_mut(128)) {
            let mut far = 0u8;
            for v in $a {
                far |= (v.abs() > T::FAR) as u8;
            }
            if far == 0 { each!([$a], $o, $near) } else { each!([$a], $o, $e) }
        }
    };
}
macro_rules! kernels {
    ($($(#[$m:meta])* $name:ident $([$($p:ident),+])? ($($x:ident),+) $(=> $float:expr)? $(, near $near:expr)? $(, ints $int:expr)? $(, only ints $only:expr)? $(, divisor $d:literal)? $(, with $halves:ident)?;)*) => { $(
        $(#[$m])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(pub $p: Scalar),+)? }
        const _: () = {
            const N: usize = [$(stringify!($x)),+].len();
            kernels!(@loop [$($($p)+)?] [$($x)+] $($float)? $(, $near)?);
            impl Kernel<N> for $name {
                kernels!(@floats [$($($p)+)?] [$($x)+] $($float)?);
                kernels!(@ints [$($($p)+)?] [$($x)+] $($int)? $($only)?);
                $(fn divisor(&self) -> Option<usize> { Some($d) })?
                kernels!(@with [$($halves)?] [$($x)+] $($float)?);
            }
        };
    )* };
    (@with [] $($kernel:tt)*) => {};
    (@with [halves] [$($x:ident)+] $float:expr) => {
        fn has_halves(&self) -> bool { true }
        fn f16(&self, [$($x),+]: [&[f16]; N], o: &mut [f16]) { kernels!(@half f16 [$($x)+] o $float) }
        fn bf16(&self, [$($x),+]: [&[bf16]; N], o: &mut [bf16]) { kernels!(@half bf16 [$($x)+] o $float) }
    };
    (@half $t:ident [$($x:ident)+] $o:ident $float:expr) => {{
        simd! { fn slices($($x: &[$t],)+ o: &mut [$t]) { each!([$($x)+], o, { $(let $x: f32 = $x.cast();)+ Cast::<$t>::cast($float) }) } }
        slices($($x,)+ $o)
    }};
    (@loop [$($p:ident)*] [$($x:ident)+]) => {};
    (@loop [$($p:ident)*] [$($x:ident)+] $float:expr) => {
        simd! { fn slices<T: Real>($($p: T,)* $($x: &[T],)+ o: &mut [T]) { each!([$($x)+], o, $float) } }
    };
    (@loop [$($p:ident)*] [$($x:ident)+] $float:expr, $near:expr) => {
        simd! { fn slices<T: Real>($($p: T,)* $($x: &[T],)+ o: &mut [T]) { each_near!([$($x)+], o, $float, $near) } }
    };
    (@floats [$($p:ident)*] [$($x:ident)+]) => {
        fn has_floats(&self) -> bool { false }
        fn f32(&self, _: [&[f32]; N], _: &mut [f32]) { unreachable!("floats were refused") }
        fn f64(&self, _: [&[f64]; N], _: &mut [f64]) { unreachable!("floats were refused") }
    };
    (@floats [$($p:ident)*] [$($x:ident)+] $float:expr) => {
        fn f32(&self, [$($x),+]: [&[f32]; N], o: &mut [f32]) { slices($(self.$p.to_f64() as f32,)* $($x,)+ o) }
        fn f64(&self, [$($x),+]: [&[f64]; N], o: &mut [f64]) { slices($(self.$p.to_f64(),)* $($x,)+ o) }
    };
    (@ints [$($p:ident)*] [$($x:ident)+]) => {
        fn has_ints(&self) -> bool { false }
        fn i64(&self, _: [&[i64]; N], _: &mut [i64]) { unreachable!("integers were promoted to float") }
    };
    (@ints [$($p:ident)*] [$($x:ident)+] $int:expr) => {
        fn has_ints(&self) -> bool { true }
        #[allow(unused_variables, reason = "what only the float version reads")]
        fn i64(&self, [$($x),+]: [&[i64]; N], o: &mut [i64]) {
            simd! { fn slices($($p: i64,)* $($x: &[i64],)+ o: &mut [i64]) { each!([$($x)+], o, $int) } }
            slices($(self.$p.to_i64(),)* $($x,)+ o)
        }
    };
}

/// 1 or 0.
#[inline(always)]
fn truth<T: Real>(b: bool) -> T {
    if b { T::ONE } else { T::ZERO }
}
#[inline(always)]
fn clamp<T: Real>(a: T, lo: T, hi: T) -> T {
    a.max(lo).min(hi)
}
/// The quotient rounded down, from the exact remainder, as Python's `//`.
#[inline(always)]
fn floor_div<const F: bool, T: Real>(a: T, b: T) -> T {
    let rest = a.fmod::<F>(b);
    let q = (a - rest) / b;
    let q = if rest != T::ZERO && (b < T::ZERO) != (rest < T::ZERO) { q - T::ONE } else { q };
    let down = q.floor();
    let near = if q - down > T::lit(0.5) { down + T::ONE } else { down };
    let signed = if q == T::ZERO { T::ZERO.copysign(a / b) } else { near };
    if b == T::ZERO { a / b } else { signed }
}
#[inline(always)]
fn floor_div_int(a: i64, b: i64) -> i64 {
    let (q, rest) = (a.wrapping_div(b), a.wrapping_rem(b));
    if rest != 0 && (rest < 0) != (b < 0) { q - 1 } else { q }
}
#[inline(always)]
fn remainder_int(a: i64, b: i64) -> i64 {
    let rest = a.wrapping_rem(b);
    if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
}
/// Wrapping power; a negative exponent gives the reciprocal rounded to zero.
#[inline(always)]
fn pow_int(mut a: i64, b: i64) -> i64 {
    if b < 0 {
        return match a {
            1 => 1,
            -1 => 1 - 2 * (b & 1),
            _ => 0,
        };
    }
    let (mut left, mut r) = (b, 1i64);
    while left > 0 {
        r = if left & 1 == 1 { r.wrapping_mul(a) } else { r };
        a = a.wrapping_mul(a);
        left >>= 1;
    }
    r
}
/// a << b, 0 where b is negative or beyond the width.
#[inline(always)]
fn shift_left(a: i64, b: i64) -> i64 {
    if (0..64).contains(&b) { a << b } else { 0 }
}
/// a >> b, all sign where b is negative or beyond the width.
#[inline(always)]
fn shift_right(a: i64, b: i64) -> i64 {
    a >> if (0..64).contains(&b) { b } else { 63 }
}
/// phi(x), the density of the normal distribution.
#[inline(always)]
fn density<const F: bool, T: Real>(x: T) -> T {
    (x * x * T::lit(-0.5)).exp::<F>() * T::lit(0.3989422804014327)
}
/// The derivative of the tanh form of gelu.
#[inline(always)]
fn gelu_tanh_slope<const F: bool, T: Real>(x: T) -> T {
    let (root, cubic) = (T::lit(0.7978845608028654), T::lit(0.044715));
    let x2 = x * x;
    let t = (root * x * cubic.fma::<F>(x2, T::ONE)).tanh::<F>();
    let inner = root * (T::lit(3.0) * cubic).fma::<F>(x2, T::ONE);
    T::lit(0.5) * ((T::ONE + t) + x * (T::ONE - t * t) * inner)
}

kernels! {
    // Arithmetic.
    Neg(a) => -a, ints a.wrapping_neg();
    Abs(a) => a.abs(), ints a.wrapping_abs();
    Sign(a) => a.sign(), ints a.signum();
    Square(a) => a * a, ints a.wrapping_mul(a);
    Cube(a) => a * a * a, ints a.wrapping_mul(a).wrapping_mul(a);
    Reciprocal(a) => T::ONE / a;
    Sqrt(a) => a.sqrt();
    Rsqrt(a) => T::ONE / a.sqrt();
    Add(a, b) => a + b, ints a.wrapping_add(b), with halves;
    Sub(a, b) => a - b, ints a.wrapping_sub(b), with halves;
    /// a + alpha b. (`sub` and `rsub` with alpha: -alpha, operands changed over.)
    AddScaled [alpha](a, b) => alpha.fma::<FMA>(b, a), ints a.wrapping_add(alpha.wrapping_mul(b));
    Mul(a, b) => a * b, ints a.wrapping_mul(b), with halves;
    Div(a, b) => a / b, with halves;
    DivFloor(a, b) => floor_div::<FMA, T>(a, b), ints floor_div_int(a, b), divisor 1;
    DivTrunc(a, b) => (a / b).trunc(), ints a.wrapping_div(b), divisor 1;
    /// With the sign of b.
    Remainder(a, b) => a.remainder::<FMA>(b), ints remainder_int(a, b), divisor 1;
    /// With the sign of a.
    Fmod(a, b) => a.fmod::<FMA>(b), ints a.wrapping_rem(b), divisor 1;
    Pow(a, b) => a.pow::<FMA>(b), ints pow_int(a, b);
    Hypot(a, b) => a.hypot::<FMA>(b);
    Copysign(a, b) => a.copysign(b);
    Maximum(a, b) => a.max(b), ints a.max(b);
    Minimum(a, b) => a.min(b), ints a.min(b);
    Fmax(a, b) => a.fmax(b), ints a.max(b);
    Fmin(a, b) => a.fmin(b), ints a.min(b);
    /// The upper bound wins.
    Clamp(a, lo, hi) => clamp(a, lo, hi), ints a.max(lo).min(hi);
    /// Exact at both ends.
    Lerp(a, b, w) => { let d = b - a; let (up, down) = (w.fma::<FMA>(d, a), (w - T::ONE).fma::<FMA>(d, b)); if w.abs() < T::lit(0.5) { up } else { down } };
    /// a + value b c.
    Addcmul [value](a, b, c) => (value * b).fma::<FMA>(c, a), ints a.wrapping_add(value.wrapping_mul(b).wrapping_mul(c));
    /// a + value b / c.
    Addcdiv [value](a, b, c) => a + value * b / c;
    Floor(a) => a.floor(), ints a;
    Ceil(a) => a.ceil(), ints a;
    Trunc(a) => a.trunc(), ints a;
    /// To even where two integers are as near.
    Round(a) => a.round(), ints a;
    /// To decimals: `tens` is 10 to the number of them.
    RoundDecimals [tens](a) => (a * tens).round() / tens;
    /// To a multiple of `tens`.
    RoundTens [tens](a) => (a / tens).round() * tens;
    Frac(a) => a - a.trunc(), ints 0;
    NanToNum [nan, posinf, neginf](a) => { let r = if a == T::INF { posinf } else { a }; let r = if a == -T::INF { neginf } else { r }; if a.is_nan() { nan } else { r } }, ints a;
    DegToRad(a) => a * T::lit(std::f64::consts::PI / 180.0);
    RadToDeg(a) => a * T::lit(180.0 / std::f64::consts::PI);

    // Exponentials, logarithms, trigonometric and special functions.
    Exp(a) => a.exp::<FMA>();
    Exp2(a) => a.exp2::<FMA>();
    Expm1(a) => a.expm1::<FMA>();
    Log(a) => a.log::<FMA>();
    Log2(a) => a.log2::<FMA>();
    Log10(a) => a.log10::<FMA>();
    Log1p(a) => a.log1p::<FMA>();
    Sin(a) => a.sin::<FMA>(), near a.sin_near::<FMA>();
    Cos(a) => a.cos::<FMA>(), near a.cos_near::<FMA>();
    Tan(a) => a.tan::<FMA>(), near a.tan_near::<FMA>();
    Asin(a) => a.asin::<FMA>();
    Acos(a) => a.acos::<FMA>();
    Atan(a) => a.atan::<FMA>();
    Atan2(a, b) => a.atan2::<FMA>(b);
    Sinh(a) => a.sinh::<FMA>();
    Cosh(a) => a.cosh::<FMA>();
    Tanh(a) => a.tanh::<FMA>();
    Asinh(a) => a.asinh::<FMA>();
    Acosh(a) => a.acosh::<FMA>();
    Atanh(a) => a.atanh::<FMA>();
    Erf(a) => a.erf::<FMA>();
    Erfc(a) => a.erfc::<FMA>();
    Erfinv(a) => a.erfinv::<FMA>();
    Lgamma(a) => a.lgamma::<FMA>();
    Digamma(a) => a.digamma::<FMA>();
    Trigamma(a) => a.trigamma::<FMA>();
    Logit(a) => a.logit::<FMA>();
    /// Of a clamped to [eps, 1 - eps].
    LogitEps [eps](a) => clamp(a, eps, T::ONE - eps).logit::<FMA>();
    Logaddexp(a, b) => a.logaddexp::<FMA>(b);
    /// log2(2^a + 2^b).
    Logaddexp2(a, b) => { let (hi, lo) = (a.max(b), a.min(b)); let r = hi + T::lit(std::f64::consts::LOG2_E) * (lo - hi).exp2::<FMA>().log1p::<FMA>(); if a == b && a.abs() == T::INF { a } else { r } };
    /// a log b, 0 where a is 0.
    Xlogy(a, b) => { let r = a * b.log::<FMA>(); if a == T::ZERO && !b.is_nan() { T::ZERO } else { r } };
    /// a log(1 + b), 0 where a is 0.
    Xlog1py(a, b) => { let r = a * b.log1p::<FMA>(); if a == T::ZERO && !b.is_nan() { T::ZERO } else { r } };
    /// sin(pi a) / (pi a), 1 at 0.
    Sinc(a) => { let x = a * T::lit(std::f64::consts::PI); let r = x.sin::<FMA>() / x; if a == T::ZERO { T::ONE } else { r } };
    /// b where a is 0.
    Heaviside(a, b) => { let r = truth(a > T::ZERO); if a == T::ZERO { b } else { r } }, ints if a == 0 { b } else { (a > 0) as i64 };

    // Activations.
    Sigmoid(a) => a.sigmoid::<FMA>();
    LogSigmoid(a) => a.log_sigmoid::<FMA>();
    Relu(a) => a.max(T::ZERO), ints a.max(0);
    LeakyRelu [slope](a) => if a > T::ZERO { a } else { a * slope };
    /// scale a where a > 0, else alpha scale (exp(input_scale a) - 1): elu, selu, celu.
    Elu [alpha, scale, input_scale](a) => { let e = (a * input_scale).expm1::<FMA>() * (alpha * scale); if a <= T::ZERO { e } else { a * scale } };
    Gelu(a) => a.gelu::<FMA>();
    GeluTanh(a) => a.gelu_tanh::<FMA>();
    Silu(a) => a * a.sigmoid::<FMA>();
    Mish(a) => { let t = a.softplus::<FMA>().tanh::<FMA>(); if a == -T::INF { T::NAN } else { a * t } };
    /// log(1 + exp(beta a)) / beta, a itself where beta a is above the threshold.
    Softplus [beta, threshold](a) => { let x = a * beta; let r = x.softplus::<FMA>() / beta; if x > threshold { a } else { r } };
    Hardtanh [lo, hi](a) => clamp(a, lo, hi), ints a.max(lo).min(hi);
    Hardsigmoid(a) => clamp(a + T::lit(3.0), T::ZERO, T::lit(6.0)) / T::lit(6.0);
    Hardswish(a) => a * clamp(a + T::lit(3.0), T::ZERO, T::lit(6.0)) / T::lit(6.0);
    Softshrink [lambd](a) => if a > lambd { a - lambd } else if a < -lambd { a + lambd } else { a * T::ZERO };
    Hardshrink [lambd](a) => if a >= -lambd && a <= lambd { T::ZERO } else { a };
    /// a, but `value` where a is at most the threshold.
    Threshold [threshold, value](a) => if a <= threshold { value } else { a }, ints if a <= threshold { value } else { a };

    // Comparisons, logic, predicates: results are truth values.
    Eq(a, b) => truth(a == b), ints (a == b) as i64;
    Ne(a, b) => truth(a != b), ints (a != b) as i64;
    Lt(a, b) => truth(a < b), ints (a < b) as i64;
    Le(a, b) => truth(a <= b), ints (a <= b) as i64;
    Gt(a, b) => truth(a > b), ints (a > b) as i64;
    Ge(a, b) => truth(a >= b), ints (a >= b) as i64;
    LogicalNot(a) => truth(a == T::ZERO), ints (a == 0) as i64;
    LogicalAnd(a, b) => truth(a != T::ZERO && b != T::ZERO), ints (a != 0 && b != 0) as i64;
    LogicalOr(a, b) => truth(a != T::ZERO || b != T::ZERO), ints (a != 0 || b != 0) as i64;
    LogicalXor(a, b) => truth((a != T::ZERO) != (b != T::ZERO)), ints ((a != 0) != (b != 0)) as i64;
    IsNan(a) => truth(a.is_nan()), ints 0;
    IsInf(a) => truth(a.abs() == T::INF), ints 0;
    IsPosInf(a) => truth(a == T::INF), ints 0;
    IsNegInf(a) => truth(a == -T::INF), ints 0;
    IsFinite(a) => truth(a.is_finite()), ints 1;
    Signbit(a) => truth(T::ONE.copysign(a) < T::ZERO), ints (a < 0) as i64;
    /// Equal, or finite and |a - b| <= atol + rtol |b|; `equal_nan` is 1 or 0.
    IsClose [rtol, atol, equal_nan](a, b) => {
        let (d, most) = ((a - b).abs(), rtol.abs().fma::<FMA>(b.abs(), atol));
        truth(a == b || (equal_nan != T::ZERO && a.is_nan() && b.is_nan()) || (d.is_finite() && d <= most))
    };

    // Bits. `BitwiseNot` is for integers; bools take `LogicalNot`.
    BitwiseNot(a), only ints !a;
    BitwiseAnd(a, b), only ints a & b;
    BitwiseOr(a, b), only ints a | b;
    BitwiseXor(a, b), only ints a ^ b;
    ShiftLeft(a, b), only ints shift_left(a, b);
    ShiftRight(a, b), only ints shift_right(a, b);

    // Choice.
    /// a where c is not 0, else b (`pointwise::where_` promotes a and b alone).
    Where(c, a, b) => if c != T::ZERO { a } else { b }, ints if c != 0 { a } else { b };
    /// a scale where the mask holds, else 0 (dropout).
    MaskScaled [scale](a, m) => a * m * scale;

    // Backwards of activations: of the result y, or of the input x.
    SigmoidBackward(g, y) => g * (T::ONE - y) * y;
    TanhBackward(g, y) => g * (T::ONE - y * y);
    LogSigmoidBackward(g, x) => g * (-x).sigmoid::<FMA>();
    /// 0 where x is at most the threshold (relu: of its result, with 0).
    ThresholdBackward [threshold](g, x) => if x <= threshold { T::ZERO } else { g }, ints if x <= threshold { 0 } else { g };
    LeakyReluBackward [slope](g, x) => if x > T::ZERO { g } else { g * slope };
    EluBackward [alpha, scale, input_scale](g, x) => { let e = g * input_scale * alpha * scale * (x * input_scale).exp::<FMA>(); if x <= T::ZERO { e } else { g * scale } };
    /// Of the result.
    EluResultBackward [alpha, scale, input_scale](g, y) => { let e = g * input_scale * (y + alpha * scale); if y <= T::ZERO { e } else { g * scale } };
    GeluBackward(g, x) => g * density::<FMA, T>(x).fma::<FMA>(x, x.normal_cdf::<FMA>());
    GeluTanhBackward(g, x) => g * gelu_tanh_slope::<FMA, T>(x);
    SiluBackward(g, x) => { let s = x.sigmoid::<FMA>(); g * s * (T::ONE + x * (T::ONE - s)) };
    MishBackward(g, x) => { let (s, t) = (x.sigmoid::<FMA>(), x.softplus::<FMA>().tanh::<FMA>()); g * (t + x * s * (T::ONE - t * t)) };
    SoftplusBackward [beta, threshold](g, x) => { let b = x * beta; let r = g * b.sigmoid::<FMA>(); if b > threshold { g } else { r } };
    HardtanhBackward [lo, hi](g, x) => if x <= lo || x >= hi { T::ZERO } else { g };
    HardsigmoidBackward(g, x) => if x > T::lit(-3.0) && x < T::lit(3.0) { g / T::lit(6.0) } else { T::ZERO };
    HardswishBackward(g, x) => { let r = g * (x / T::lit(3.0) + T::lit(0.5)); let r = if x < T::lit(3.0) { r } else { g }; if x <= T::lit(-3.0) { T::ZERO } else { r } };
    /// Of both shrinks.
    ShrinkBackward [lambd](g, x) => if x >= -lambd && x <= lambd { T::ZERO } else { g };
    LogitBackward(g, x) => { let r = g / (x * (T::ONE - x)); if x < T::ZERO || x > T::ONE { T::NAN } else { r } };
    LogitEpsBackward [eps](g, x) => { let r = g / (x * (T::ONE - x)); if x < eps || x > T::ONE - eps { T::ZERO } else { r } };

    // Losses, element by element, and their backwards (`norm`: what reduction and formula multiply the slope by).
    SquaredError(a, t) => (a - t) * (a - t);
    SquaredErrorBackward [norm](g, a, t) => norm * (a - t) * g;
    SmoothL1 [beta](a, t) => { let z = (a - t).abs(); if z < beta { T::lit(0.5) * z * z / beta } else { z - T::lit(0.5) * beta } };
    SmoothL1Backward [norm, beta](g, a, t) => { let x = a - t; let r = norm * x * g / beta; if x <= -beta { -norm * g } else if x >= beta { norm * g } else { r } };
    Huber [delta](a, t) => { let z = (a - t).abs(); if z <= delta { T::lit(0.5) * z * z } else { delta * (z - T::lit(0.5) * delta) } };
    HuberBackward [norm, delta](g, a, t) => { let x = a - t; if x <= -delta { -norm * g * delta } else if x >= delta { norm * g * delta } else { norm * x * g } };
    /// Of a probability; logarithms are at least -100.
    BinaryCrossEntropy(a, t) => (t - T::ONE) * (-a).log1p::<FMA>().max(T::lit(-100.0)) - t * a.log::<FMA>().max(T::lit(-100.0));
    BinaryCrossEntropyBackward(g, a, t) => g * (a - t) / ((T::ONE - a) * a).max(T::lit(1e-12));
    /// Of a logit.
    BinaryCrossEntropyLogits(x, t) => (T::ONE - t) * x - x.log_sigmoid::<FMA>();
    BinaryCrossEntropyLogitsBackward(g, x, t) => g * (x.sigmoid::<FMA>() - t);
    /// Positives weighted by p.
    BinaryCrossEntropyLogitsWeighted(x, t, p) => (T::ONE - t) * x - ((p - T::ONE) * t + T::ONE) * x.log_sigmoid::<FMA>();
    BinaryCrossEntropyLogitsWeightedBackward(g, x, t, p) => g * ((T::ONE - t) - ((p - T::ONE) * t + T::ONE) * (-x).sigmoid::<FMA>());
    /// Of the log-probability a; 0 where t is 0.
    KlDiv(a, t) => { let r = t * t.log::<FMA>(); let r = if t == T::ZERO { T::ZERO } else { r }; r - t * a };
    /// The target a log-probability too.
    KlDivLog(a, t) => t.exp::<FMA>() * (t - a);
}

#[cfg(test)]
mod tests {
    use super::*;
    const FREE: [f64; 18] = [-9.0, -3.0, -2.5, -1.0, -0.75, -0.5, -0.125, -0.0, 0.0, 0.125, 0.5, 0.75, 1.0, 1.5, 2.5, 3.0, 7.0, 30.0];
    const EDGE: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    type Case<'a, const N: usize, F> = (&'a str, &'a dyn Kernel<N>, &'a F);
    /// Every tuple of values, laid out as operands.
    fn tuples<const N: usize>(values: &[f64]) -> [Vec<f64>; N] {
        let n = values.len();
        std::array::from_fn(|k| (0..n.pow(N as u32)).map(|i| values[i / n.pow(k as u32) % n]).collect())
    }
    fn near(name: &str, got: f64, want: f64, rel: f64, x: &[f64]) {
        let same = got == want || (got.is_nan() && want.is_nan());
        assert!(same || (got - want).abs() <= rel * (want.abs() + 1.0), "{name}{x:?} = {got}, expected {want}");
    }
    fn holds<const N: usize>(name: &str, k: &dyn Kernel<N>, values: &[f64], f: &dyn Fn([f64; N]) -> f64) {
        let x = tuples::<N>(values);
        let narrow = x.each_ref().map(|x| x.iter().map(|v| *v as f32).collect::<Vec<_>>());
        let (mut o, mut p) = (vec![0.0; x[0].len()], vec![0f32; x[0].len()]);
        k.f64(x.each_ref().map(|x| &x[..]), &mut o);
        k.f32(narrow.each_ref().map(|x| &x[..]), &mut p);
        for i in 0..o.len() {
            let at = x.each_ref().map(|x| x[i]);
            near(name, o[i], f(at), 1e-12, &at);
            let at = narrow.each_ref().map(|x| x[i] as f64);
            near(name, p[i] as f64, f(at), 2e-5, &at);
        }
    }
    fn ints<const N: usize>(k: &dyn Kernel<N>, x: [i64; N]) -> i64 {
        let mut o = [0];
        k.i64(x.each_ref().map(std::slice::from_ref), &mut o);
        o[0]
    }
    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }
    fn softplus(x: f64) -> f64 {
        if x > 30.0 { x } else { x.exp().ln_1p() }
    }
    fn truth(b: bool) -> f64 {
        b as u8 as f64
    }
    /// One derivative by differences, to check a backward kernel by its forward.
    fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
        (f(x + 1e-5) - f(x - 1e-5)) / 2e-5
    }

    #[test]
    fn one_operand() {
        let all: Vec<f64> = FREE.iter().chain(&EDGE).copied().collect();
        let p = |v: f64| Scalar::Float(v);
        #[rustfmt::skip]
        let table: &[Case<'_, 1, dyn Fn(f64) -> f64>] = &[
            ("neg", &Neg {}, &|a| -a), ("abs", &Abs {}, &f64::abs), ("square", &Square {}, &|a| a * a), ("cube", &Cube {}, &|a| a * a * a),
            ("sign", &Sign {}, &|a| if a > 0.0 { 1.0 } else if a < 0.0 { -1.0 } else { 0.0 }),
            ("reciprocal", &Reciprocal {}, &|a| 1.0 / a), ("sqrt", &Sqrt {}, &f64::sqrt), ("rsqrt", &Rsqrt {}, &|a| 1.0 / a.sqrt()),
            ("exp", &Exp {}, &f64::exp), ("exp2", &Exp2 {}, &f64::exp2), ("expm1", &Expm1 {}, &f64::exp_m1),
            ("log", &Log {}, &f64::ln), ("log2", &Log2 {}, &f64::log2), ("log10", &Log10 {}, &f64::log10), ("log1p", &Log1p {}, &f64::ln_1p),
            ("sin", &Sin {}, &f64::sin), ("cos", &Cos {}, &f64::cos), ("tan", &Tan {}, &f64::tan),
            ("asin", &Asin {}, &f64::asin), ("acos", &Acos {}, &f64::acos), ("atan", &Atan {}, &f64::atan),
            ("sinh", &Sinh {}, &f64::sinh), ("cosh", &Cosh {}, &f64::cosh), ("tanh", &Tanh {}, &f64::tanh),
            ("asinh", &Asinh {}, &f64::asinh), ("acosh", &Acosh {}, &f64::acosh), ("atanh", &Atanh {}, &f64::atanh),
            ("floor", &Floor {}, &f64::floor), ("ceil", &Ceil {}, &f64::ceil), ("trunc", &Trunc {}, &f64::trunc), ("round", &Round {}, &f64::round_ties_even),
            ("frac", &Frac {}, &|a| a - a.trunc()), ("sigmoid", &Sigmoid {}, &sigmoid), ("relu", &Relu {}, &|a| if a < 0.0 { 0.0 } else { a }),
            ("leaky", &LeakyRelu { slope: p(0.1) }, &|a| if a > 0.0 { a } else { 0.1 * a }),
            ("elu", &Elu { alpha: p(1.5), scale: p(1.2), input_scale: p(0.5) }, &|a| if a <= 0.0 { 1.8 * (0.5 * a).exp_m1() } else { 1.2 * a }),
            ("silu", &Silu {}, &|a| a * sigmoid(a)), ("softplus", &Softplus { beta: p(2.0), threshold: p(20.0) }, &|a| softplus(2.0 * a) / 2.0),
            ("mish", &Mish {}, &|a| a * softplus(a).tanh()), ("log_sigmoid", &LogSigmoid {}, &|a| -softplus(-a)),
            ("hardtanh", &Hardtanh { lo: p(-2.0), hi: p(1.0) }, &|a| if a.is_nan() { a } else { a.clamp(-2.0, 1.0) }),
            ("hardsigmoid", &Hardsigmoid {}, &|a| if a.is_nan() { a } else { (a + 3.0).clamp(0.0, 6.0) / 6.0 }),
            ("hardswish", &Hardswish {}, &|a| if a.is_nan() { a } else { a * ((a + 3.0).clamp(0.0, 6.0) / 6.0) }),
            ("softshrink", &Softshrink { lambd: p(0.5) }, &|a| if a.abs() > 0.5 { a - 0.5 * a.signum() } else { a * 0.0 }),
            ("hardshrink", &Hardshrink { lambd: p(0.5) }, &|a| if a.abs() <= 0.5 { 0.0 } else { a }),
            ("threshold", &Threshold { threshold: p(0.5), value: p(7.0) }, &|a| if a <= 0.5 { 7.0 } else { a }),
            ("nan_to_num", &NanToNum { nan: p(1.0), posinf: p(2.0), neginf: p(3.0) }, &|a| if a.is_nan() { 1.0 } else if a == f64::INFINITY { 2.0 } else if a == -f64::INFINITY { 3.0 } else { a }),
            ("round 1", &RoundDecimals { tens: p(10.0) }, &|a| (a * 10.0).round_ties_even() / 10.0), ("round -1", &RoundTens { tens: p(10.0) }, &|a| (a / 10.0).round_ties_even() * 10.0),
            ("sinc", &Sinc {}, &|a| if a == 0.0 { 1.0 } else { (a * std::f64::consts::PI).sin() / (a * std::f64::consts::PI) }),
            ("logit", &Logit {}, &|a| (a / (1.0 - a)).ln()), ("logit eps", &LogitEps { eps: p(0.25) }, &|a| if a.is_nan() { a } else { let c = a.clamp(0.25, 0.75); (c / (1.0 - c)).ln() }),
            ("deg2rad", &DegToRad {}, &f64::to_radians), ("rad2deg", &RadToDeg {}, &f64::to_degrees),
            ("isnan", &IsNan {}, &|a| truth(a.is_nan())), ("isinf", &IsInf {}, &|a| truth(a.is_infinite())), ("isfinite", &IsFinite {}, &|a| truth(a.is_finite())),
            ("isposinf", &IsPosInf {}, &|a| truth(a == f64::INFINITY)), ("isneginf", &IsNegInf {}, &|a| truth(a == -f64::INFINITY)),
            ("not", &LogicalNot {}, &|a| truth(a == 0.0)), ("signbit", &Signbit {}, &|a| truth(a.is_sign_negative())),
        ];
        for (name, k, f) in table {
            holds(name, *k, &all, &|[a]| f(a));
        }
        // Known to more than double precision: the error function and the gamma family.
        for (k, a, want) in [
            (&Erf {} as &dyn Kernel<1>, 0.5, 0.5204998778130465),
            (&Erfc {}, 2.0, 0.004677734981047266),
            (&Erfinv {}, 0.5, 0.4769362762044699),
            (&Lgamma {}, 0.5, 0.5723649429247001),
            (&Digamma {}, 1.0, -0.5772156649015329),
            (&Trigamma {}, 1.0, 1.6449340668482264),
            (&Gelu {}, -1.0, -0.15865525393145707),
            (&GeluTanh {}, 1.0, 0.8411919906082768),
        ] {
            holds("special", k, &[a], &|_| want);
        }
        // A block with one far element.
        let far: Vec<f64> = (0..200).map(|i| if i == 150 { 3e9 } else { i as f64 }).collect();
        holds("sin", &Sin {}, &far[..150], &|[a]| a.sin());
        let mut o = vec![0.0; 200];
        Sin {}.f64([&far], &mut o);
        assert!((o[150] - 3e9f64.sin()).abs() < 1e-12 && (o[151] - 151f64.sin()).abs() < 1e-12);
    }
    #[test]
    fn several_operands() {
        let p = |v: f64| Scalar::Float(v);
        #[rustfmt::skip]
        let table: &[Case<'_, 2, dyn Fn(f64, f64) -> f64>] = &[
            ("add", &Add {}, &|a, b| a + b), ("add 2", &AddScaled { alpha: p(2.0) }, &|a, b| a + 2.0 * b), ("sub", &Sub {}, &|a, b| a - b),
            ("mul", &Mul {}, &|a, b| a * b), ("div", &Div {}, &|a, b| a / b), ("trunc", &DivTrunc {}, &|a, b| (a / b).trunc()),
            ("fmod", &Fmod {}, &|a, b| a % b), ("hypot", &Hypot {}, &f64::hypot), ("copysign", &Copysign {}, &f64::copysign), ("atan2", &Atan2 {}, &f64::atan2), ("pow", &Pow {}, &f64::powf),
            ("max", &Maximum {}, &|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }), ("fmax", &Fmax {}, &f64::max),
            ("min", &Minimum {}, &|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }), ("fmin", &Fmin {}, &f64::min),
            ("eq", &Eq {}, &|a, b| truth(a == b)), ("ne", &Ne {}, &|a, b| truth(a != b)), ("lt", &Lt {}, &|a, b| truth(a < b)), ("le", &Le {}, &|a, b| truth(a <= b)),
            ("gt", &Gt {}, &|a, b| truth(a > b)), ("ge", &Ge {}, &|a, b| truth(a >= b)), ("and", &LogicalAnd {}, &|a, b| truth(a != 0.0 && b != 0.0)),
            ("or", &LogicalOr {}, &|a, b| truth(a != 0.0 || b != 0.0)), ("xor", &LogicalXor {}, &|a, b| truth((a != 0.0) ^ (b != 0.0))),
            ("logaddexp", &Logaddexp {}, &|a, b| if a == b { a + 2f64.ln() } else { a.max(b) + (-(a - b).abs()).exp().ln_1p() }),
            ("xlogy", &Xlogy {}, &|a, b| if a == 0.0 && !b.is_nan() { 0.0 } else { a * b.ln() }), ("xlog1py", &Xlog1py {}, &|a, b| if a == 0.0 && !b.is_nan() { 0.0 } else { a * b.ln_1p() }),
            ("heaviside", &Heaviside {}, &|a, b| if a == 0.0 { b } else { truth(a > 0.0) }),
            ("isclose", &IsClose { rtol: p(0.1), atol: p(0.2), equal_nan: p(1.0) }, &|a, b| truth(a == b || (a.is_nan() && b.is_nan()) || ((a - b).is_finite() && (a - b).abs() <= 0.2 + 0.1 * b.abs()))),
            ("sigmoid b", &SigmoidBackward {}, &|g, y| g * (1.0 - y) * y), ("tanh b", &TanhBackward {}, &|g, y| g * (1.0 - y * y)),
            ("threshold b", &ThresholdBackward { threshold: p(0.5) }, &|g, x| if x <= 0.5 { 0.0 } else { g }), ("leaky b", &LeakyReluBackward { slope: p(0.1) }, &|g, x| if x > 0.0 { g } else { g * 0.1 }),
            ("hardtanh b", &HardtanhBackward { lo: p(-1.0), hi: p(1.0) }, &|g, x| if x <= -1.0 || x >= 1.0 { 0.0 } else { g }),
            ("shrink b", &ShrinkBackward { lambd: p(0.5) }, &|g, x| if x.abs() <= 0.5 { 0.0 } else { g }),
            ("squared", &SquaredError {}, &|a, t| (a - t) * (a - t)),
        ];
        for (name, k, f) in table {
            let edges = if matches!(*name, "isclose" | "logaddexp") { 0 } else { 3 };
            let free = if *name == "pow" { &FREE[..17] } else { &FREE[..] }; // 30^30 is beyond f32
            let all: Vec<f64> = free.iter().chain(&EDGE[..edges]).copied().collect();
            holds(name, *k, &all, &|[a, b]| f(a, b));
        }
        let plain = [-2.0, -0.3, 0.0, 0.4, 2.0];
        holds("lerp", &Lerp {}, &plain, &|[a, b, w]| a + w * (b - a));
        holds("clamp", &Clamp {}, &plain, &|[a, lo, hi]| a.max(lo).min(hi));
        holds("addcmul", &Addcmul { value: p(0.5) }, &plain, &|[a, b, c]| a + 0.5 * b * c);
        holds("addcdiv", &Addcdiv { value: p(0.5) }, &plain, &|[a, b, c]| a + 0.5 * b / c);
        holds("where", &Where {}, &plain, &|[c, a, b]| if c != 0.0 { a } else { b });
        holds("bce", &BinaryCrossEntropy {}, &[0.0, 0.2, 1.0], &|[a, t]| {
            -(t * a.ln().max(-100.0) + (1.0 - t) * (1.0 - a).ln().max(-100.0))
        });
        holds("kl", &KlDiv {}, &[0.0, 0.2, 1.0], &|[a, t]| if t == 0.0 { 0.0 } else { t * (t.ln() - a) });
        holds("kl log", &KlDivLog {}, &plain, &|[a, t]| t.exp() * (t - a));
        holds("bce logits p", &BinaryCrossEntropyLogitsWeighted {}, &plain, &|[x, t, p]| p * t * softplus(-x) + (1.0 - t) * softplus(x));
    }
    #[test]
    fn floor_division_and_remainder_follow_python() {
        let at = |k: &dyn Kernel<2>, a: f64, b: f64| {
            let mut o = [0.0];
            k.f64([&[a], &[b]], &mut o);
            o[0]
        };
        for (a, b, want) in [
            (5.0, 0.0, f64::INFINITY),
            (-5.0, 2.0, -3.0),
            (1.0, 0.3, 3.0),
            (-1.0, 0.1, -10.0),
            (f64::INFINITY, 2.0, f64::NAN),
            (1.0, f64::INFINITY, 0.0),
        ] {
            near("floor", at(&DivFloor {}, a, b), want, 0.0, &[a, b]);
        }
        assert!(at(&DivFloor {}, 0.0, -3.0).is_sign_negative() && at(&DivFloor {}, -0.0, 2.0).is_sign_negative());
        for (a, b, want) in [
            (5.0, 3.0, 2.0),
            (-5.0, 3.0, 1.0),
            (5.0, -3.0, -1.0),
            (-5.0, -3.0, -2.0),
            (5.0, f64::INFINITY, 5.0),
            (-5.0, f64::INFINITY, f64::INFINITY),
        ] {
            near("remainder", at(&Remainder {}, a, b), want, 0.0, &[a, b]);
        }
        for (a, b) in [(-7, 2), (7, -2), (7, 2), (-7, -2), (6, 3), (i64::MIN, -1)] {
            let (q, r) = (ints(&DivFloor {}, [a, b]), ints(&Remainder {}, [a, b]));
            assert_eq!((q as i128 * b as i128 + r as i128) as i64, a);
            assert!(r == 0 || (r < 0) == (b < 0));
            assert_eq!((ints(&DivTrunc {}, [a, b]), ints(&Fmod {}, [a, b])), (a.wrapping_div(b), a.wrapping_rem(b)));
        }
    }
    #[test]
    fn integers_are_exact_and_wrap() {
        let p = ints(&Pow {}, [3, 40]);
        assert_eq!(p, 3i64.wrapping_pow(40));
        assert_eq!([[2, -1], [-1, -3], [-1, -2], [1, -2], [0, -1], [0, 0], [-2, 3]].map(|x| ints(&Pow {}, x)), [0, -1, 1, 1, 0, 1, -8]);
        assert_eq!([[1, 33], [-8, 1], [1, -1], [1, 64]].map(|x| ints(&ShiftLeft {}, x)), [1 << 33, -16, 0, 0]);
        assert_eq!([[1, 33], [-8, 1], [-8, -1], [-8, 64]].map(|x| ints(&ShiftRight {}, x)), [0, -4, -1, -1]);
        assert_eq!((ints(&BitwiseNot {}, [1]), ints(&BitwiseXor {}, [6, 3]), ints(&Abs {}, [i64::MIN])), (-2, 5, i64::MIN));
        assert_eq!(
            (
                ints(&Heaviside {}, [0, 5]),
                ints(&Sign {}, [-4]),
                ints(&IsFinite {}, [9]),
                ints(&AddScaled { alpha: Scalar::Int(1 << 60) }, [1, 3])
            ),
            (5, -1, 1, (3 << 60) + 1)
        );
    }
    #[test]
    fn backwards_are_the_slopes_of_their_forwards() {
        let p = |v: f64| Scalar::Float(v);
        fn one(k: &dyn Kernel<1>, x: f64) -> f64 {
            let mut o = [0.0];
            k.f64([&[x]], &mut o);
            o[0]
        }
        let (elu, soft) = (Elu { alpha: p(1.5), scale: p(1.2), input_scale: p(0.5) }, Softplus { beta: p(2.0), threshold: p(20.0) });
        #[rustfmt::skip]
        let pairs: &[(&str, &dyn Kernel<1>, &dyn Kernel<2>)] = &[
            ("log_sigmoid", &LogSigmoid {}, &LogSigmoidBackward {}), ("gelu", &Gelu {}, &GeluBackward {}), ("gelu tanh", &GeluTanh {}, &GeluTanhBackward {}),
            ("silu", &Silu {}, &SiluBackward {}), ("mish", &Mish {}, &MishBackward {}), ("softplus", &soft, &SoftplusBackward { beta: p(2.0), threshold: p(20.0) }),
            ("elu", &elu, &EluBackward { alpha: p(1.5), scale: p(1.2), input_scale: p(0.5) }),
            ("hardsigmoid", &Hardsigmoid {}, &HardsigmoidBackward {}), ("hardswish", &Hardswish {}, &HardswishBackward {}),
            ("softshrink", &Softshrink { lambd: p(0.5) }, &ShrinkBackward { lambd: p(0.5) }), ("hardtanh", &Hardtanh { lo: p(-2.0), hi: p(1.0) }, &HardtanhBackward { lo: p(-2.0), hi: p(1.0) }),
            ("logit", &Logit {}, &LogitBackward {}), ("logit eps", &LogitEps { eps: p(0.2) }, &LogitEpsBackward { eps: p(0.2) }),
        ];
        for (name, f, b) in pairs {
            for x in if name.starts_with("logit") { [0.15, 0.3, 0.5, 0.7, 0.9] } else { [-4.0, -1.3, -0.2, 0.3, 3.7] } {
                let mut o = [0.0];
                b.f64([&[3.0], &[x]], &mut o);
                let want = 3.0 * slope(|x| one(*f, x), x);
                assert!((o[0] - want).abs() < 1e-6 * (1.0 + want.abs()), "{name} at {x}: {} for {want}", o[0]);
            }
        }
        holds("elu of its result", &EluResultBackward { alpha: p(1.5), scale: p(1.2), input_scale: p(0.5) }, &[-1.0, 0.5], &|[g, y]| {
            if y <= 0.0 { g * 0.5 * (y + 1.8) } else { g * 1.2 }
        });
        fn two<const N: usize>(k: &dyn Kernel<N>, x: [f64; N]) -> f64 {
            let mut o = [0.0];
            k.f64(x.each_ref().map(std::slice::from_ref), &mut o);
            o[0]
        }
        let (norm, beta, delta) = (p(1.0), p(0.7), p(0.7));
        #[rustfmt::skip]
        let losses: &[(&str, &dyn Kernel<2>, &dyn Kernel<3>)] = &[
            ("mse", &SquaredError {}, &SquaredErrorBackward { norm: p(2.0) }), ("smooth", &SmoothL1 { beta }, &SmoothL1Backward { norm, beta }),
            ("huber", &Huber { delta }, &HuberBackward { norm, delta }), ("bce", &BinaryCrossEntropy {}, &BinaryCrossEntropyBackward {}),
            ("bce logits", &BinaryCrossEntropyLogits {}, &BinaryCrossEntropyLogitsBackward {}),
        ];
        for (name, f, b) in losses {
            for (a, t) in [(0.1, 0.9), (0.4, 0.5), (0.95, 0.0)] {
                let want = 3.0 * slope(|a| two(*f, [a, t]), a);
                let got = two(*b, [3.0, a, t]);
                assert!((got - want).abs() < 1e-6 * (1.0 + want.abs()), "{name} at {a}, {t}: {got} for {want}");
            }
        }
        let want = 3.0 * slope(|x| two(&BinaryCrossEntropyLogitsWeighted {}, [x, 0.3, 2.0]), 0.4);
        assert!((two(&BinaryCrossEntropyLogitsWeightedBackward {}, [3.0, 0.4, 0.3, 2.0]) - want).abs() < 1e-6);
    }
}
