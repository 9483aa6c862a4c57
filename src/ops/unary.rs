//! Elementwise functions of one operand. A line of `unary!` is a whole `op!` block: node, name, in-place name, kernel, what the formula reads,
//! and in parentheses the check for dtypes that it refuses.
use super::macros::{function, op};
use super::*;
use crate::kernels::{pointwise, table};
use std::f64::consts::{LN_2, LN_10, PI};

macro_rules! unary {
    ($($(#[doc = $doc:literal])* $node:ident $name:ident $inplace:ident $kernel:ident $(($only:ident))? [$($use:ident),*] |$g:ident| $formula:expr;)*) => { $(op! {
        $(#[doc = $doc])*
        $node = fn $name(self_);
        inplace $inplace;
        forward(out) {
            $($only(stringify!($name), [self_])?;)?
            pointwise::run(out, stringify!($name), &table::$kernel {}, [self_])
        };
        saves [$($use),*];
        grad($g, cx) { self_ uses [$($use),*] => $formula }
    })* };
}
/// `t * v`.
pub(super) fn times(t: &Tensor, v: f64) -> Result<Tensor> {
    mul(t, &number(v)?)
}
/// `t + v`.
pub(super) fn plus(t: &Tensor, v: f64) -> Result<Tensor> {
    add(t, &number(v)?, Scalar::Int(1))
}
/// Zeros like `t`.
pub(super) fn zeros_of(t: &Tensor) -> Result<Tensor> {
    zeros(t.shape(), t.dtype())
}
op! {
    /// Elementwise negation; bools are refused.
    NegBackward0 = fn neg(self_);
    inplace neg_;
    forward(out) {
        if self_.dtype == DType::Bool {
            crate::error::bail!(Runtime, "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use the `~` or `logical_not()` operator instead.");
        }
        pointwise::run(out, "neg", &table::Neg {}, [self_])
    };
    grad(g, cx) { self_ uses [] => neg(g) }
}
unary! {
    /// Elementwise absolute value.
    AbsBackward0 abs abs_ Abs(numeric) [self_] |g| mul(g, &sign(self_)?);
    /// Elementwise sign: -1, 0 or 1 (NaN gives 0).
    SignBackward0 sign sign_ Sign [] |g| zeros_of(g);
    /// Elementwise exponential.
    ExpBackward0 exp exp_ Exp [result] |g| mul(g, result);
    /// Elementwise power of 2.
    Exp2Backward0 exp2 exp2_ Exp2 [result] |g| times(&mul(g, result)?, LN_2);
    /// Elementwise `exp(x) - 1`, exact for small x.
    Expm1Backward0 expm1 expm1_ Expm1 [result] |g| mul(g, &plus(result, 1.0)?);
    /// Elementwise natural logarithm.
    LogBackward0 log log_ Log [self_] |g| div(g, self_);
    /// Elementwise logarithm to base 2.
    Log2Backward0 log2 log2_ Log2 [self_] |g| div(g, &times(self_, LN_2)?);
    /// Elementwise logarithm to base 10.
    Log10Backward0 log10 log10_ Log10 [self_] |g| div(g, &times(self_, LN_10)?);
    /// Elementwise `log(1 + x)`, exact for small x.
    Log1PBackward0 log1p log1p_ Log1p [self_] |g| div(g, &plus(self_, 1.0)?);
    /// Elementwise square root.
    SqrtBackward0 sqrt sqrt_ Sqrt [result] |g| div(g, &times(result, 2.0)?);
    /// Elementwise `1 / sqrt(x)`.
    RsqrtBackward0 rsqrt rsqrt_ Rsqrt [result] |g| times(&mul(g, &power(result, 3.0)?)?, -0.5);
    /// Elementwise `1 / x`.
    ReciprocalBackward0 reciprocal reciprocal_ Reciprocal [result] |g| neg(&mul(g, &mul(result, result)?)?);
    /// Elementwise sine, of radians.
    SinBackward0 sin sin_ Sin [self_] |g| mul(g, &cos(self_)?);
    /// Elementwise cosine, of radians.
    CosBackward0 cos cos_ Cos [self_] |g| mul(g, &neg(&sin(self_)?)?);
    /// Elementwise tangent, of radians.
    TanBackward0 tan tan_ Tan [result] |g| mul(g, &plus(&power(result, 2.0)?, 1.0)?);
    /// Elementwise arc sine, in radians.
    AsinBackward0 asin asin_ Asin [self_] |g| mul(g, &rsqrt(&plus(&neg(&mul(self_, self_)?)?, 1.0)?)?);
    /// Elementwise arc cosine, in radians.
    AcosBackward0 acos acos_ Acos [self_] |g| neg(&mul(g, &rsqrt(&plus(&neg(&mul(self_, self_)?)?, 1.0)?)?)?);
    /// Elementwise arc tangent, in radians.
    AtanBackward0 atan atan_ Atan [self_] |g| div(g, &plus(&mul(self_, self_)?, 1.0)?);
    /// Elementwise hyperbolic sine.
    SinhBackward0 sinh sinh_ Sinh [self_] |g| mul(g, &cosh(self_)?);
    /// Elementwise hyperbolic cosine.
    CoshBackward0 cosh cosh_ Cosh [self_] |g| mul(g, &sinh(self_)?);
    /// Elementwise hyperbolic tangent.
    TanhBackward0 tanh tanh_ Tanh [result] |g| tanh_backward(g, result);
    /// Elementwise inverse hyperbolic sine.
    AsinhBackward0 asinh asinh_ Asinh [self_] |g| mul(g, &rsqrt(&plus(&mul(self_, self_)?, 1.0)?)?);
    /// Elementwise inverse hyperbolic cosine.
    AcoshBackward0 acosh acosh_ Acosh [self_] |g| mul(g, &rsqrt(&plus(&mul(self_, self_)?, -1.0)?)?);
    /// Elementwise inverse hyperbolic tangent.
    AtanhBackward0 atanh atanh_ Atanh [self_] |g| div(g, &plus(&neg(&mul(self_, self_)?)?, 1.0)?);
    /// Elementwise `1 / (1 + exp(-x))`.
    SigmoidBackward0 sigmoid sigmoid_ Sigmoid [result] |g| sigmoid_backward(g, result);
    /// Elementwise `max(x, 0)`.
    ReluBackward0 relu relu_ Relu(not_bool) [result] |g| threshold_backward(g, result, Scalar::Int(0));
    /// Elementwise error function.
    ErfBackward0 erf erf_ Erf [self_] |g| times(&mul(g, &exp(&neg(&mul(self_, self_)?)?)?)?, 2.0 / PI.sqrt());
    /// Elementwise `1 - erf(x)`.
    ErfcBackward0 erfc erfc_ Erfc [self_] |g| times(&mul(g, &exp(&neg(&mul(self_, self_)?)?)?)?, -2.0 / PI.sqrt());
    /// Elementwise inverse of `erf`.
    ErfinvBackward0 erfinv erfinv_ Erfinv [self_] |g| times(&mul(g, &exp(&power(&erfinv(self_)?, 2.0)?)?)?, PI.sqrt() / 2.0);
    /// Elementwise log of the absolute value of the gamma function.
    LgammaBackward0 lgamma lgamma_ Lgamma [self_] |g| mul(g, &digamma(self_)?);
    /// Elementwise derivative of `lgamma`.
    DigammaBackward0 digamma digamma_ Digamma [self_] |g| mul(g, &polygamma(self_, 1)?);
    /// Elementwise largest integer not above.
    FloorBackward0 floor floor_ Floor(numeric) [] |g| zeros_of(g);
    /// Elementwise smallest integer not below.
    CeilBackward0 ceil ceil_ Ceil(numeric) [] |g| zeros_of(g);
    /// Elementwise integer next towards zero.
    TruncBackward0 trunc trunc_ Trunc(numeric) [] |g| zeros_of(g);
    /// Elementwise part after the point, with the sign of x.
    FracBackward0 frac frac_ Frac(floats) [] |g| Ok(g.clone());
    /// Degrees to radians.
    Deg2RadBackward0 deg2rad deg2rad_ DegToRad [] |g| times(g, PI / 180.0);
    /// Radians to degrees.
    Rad2DegBackward0 rad2deg rad2deg_ RadToDeg [] |g| times(g, 180.0 / PI);
    /// Elementwise `sin(pi x) / (pi x)`, 1 at 0.
    SincBackward0 sinc sinc_ Sinc [self_] |g| sinc_grad(g, self_);
}
/// torch refuses bools in `relu` by another class than elsewhere.
fn not_bool(op: &'static str, [x]: [&Array; 1]) -> Result<()> {
    if x.dtype == DType::Bool {
        crate::error::bail!(Runtime, "Boolean inputs not supported for {op}; convert them to a number first");
    }
    Ok(())
}
/// d sinc(x)/dx = (cos(pi x) pi x - sin(pi x)) / (pi x^2), 0 at 0.
fn sinc_grad(g: &Tensor, x: &Tensor) -> Result<Tensor> {
    let px = times(x, PI)?;
    let up = add(&mul(&cos(&px)?, &px)?, &sin(&px)?, Scalar::Int(-1))?;
    let d = mul(g, &div(&up, &mul(&px, x)?)?)?;
    where_(&eq(x, &number(0.0)?)?, &zeros_of(g)?, &d)
}
op! {
    /// Elementwise nearest integer, ties to even; with `decimals`, to that many places after the point.
    RoundBackward0 = fn round(self_; *, decimals: i64 = 0);
    inplace round_;
    forward(out) {
        numeric("round", [self_])?;
        if !self_.dtype.is_float() {
            return pointwise::cast(self_, self_.dtype);
        }
        let tens = Scalar::Float(10f64.powi(decimals.unsigned_abs().min(400) as i32));
        match decimals.signum() {
            0 => pointwise::run(out, "round", &table::Round {}, [self_]),
            1 => pointwise::run(out, "round", &table::RoundDecimals { tens }, [self_]),
            _ => pointwise::run(out, "round", &table::RoundTens { tens }, [self_]),
        }
    };
    grad(g, cx) { self_ uses [] => zeros_of(g) }
}
op! {
    /// Elementwise derivative of order n + 1 of `lgamma`.
    PolygammaBackward0 = fn polygamma(self_; n: i64);
    on [method];
    forward(out) match n {
        0 => pointwise::run(out, "polygamma", &table::Digamma {}, [self_]),
        1 => pointwise::run(out, "polygamma", &table::Trigamma {}, [self_]),
        n if *n < 0 => crate::error::bail!(Runtime, "polygamma(n, x) does not support negative n, got {n}"),
        n => {
            let x = pointwise::to_f64(self_)?;
            let all: Vec<f64> = x.iter().map(|&x| crate::kernels::math::polygamma(*n as u32, x)).collect();
            pointwise::cast(&Array::from_slice(&self_.shape, &all)?, self_.dtype.or_float())
        }
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => mul(g, &polygamma(self_, *n + 1)?) }
}
op! {
    /// Gradient of `tanh`.
    TanhBackwardBackward0 = fn tanh_backward(grad_output, output);
    on [private];
    forward(out) pointwise::run(out, "tanh_backward", &table::TanhBackward {}, [grad_output, output]);
    saves [grad_output, output];
    grad(g, cx) {
        grad_output uses [output] => tanh_backward(g, output),
        output uses [grad_output, output] => times(&mul(g, &mul(grad_output, output)?)?, -2.0),
    }
}
op! {
    /// Gradient of `sigmoid`.
    SigmoidBackwardBackward0 = fn sigmoid_backward(grad_output, output);
    on [private];
    forward(out) pointwise::run(out, "sigmoid_backward", &table::SigmoidBackward {}, [grad_output, output]);
    saves [grad_output, output];
    grad(g, cx) {
        grad_output uses [output] => sigmoid_backward(g, output),
        output uses [grad_output, output] => mul(&mul(g, grad_output)?, &plus(&times(output, -2.0)?, 1.0)?),
    }
}
op! {
    /// `grad_output` where `self > threshold`, else 0.
    ThresholdBackwardBackward0 = fn threshold_backward(grad_output, self_; threshold: Scalar);
    on [private];
    forward(out) pointwise::run(out, "threshold_backward", &table::ThresholdBackward { threshold: *threshold }, [grad_output, self_]);
    saves [self_];
    grad(g, cx) {
        grad_output uses [self_] => threshold_backward(g, self_, *threshold),
        self_ uses [] => zeros_of(g),
    }
}
op! {
    /// NaN, inf and -inf replaced (by 0, the largest and the lowest finite value unless given).
    NanToNumBackward0 = fn nan_to_num(self_; nan: Option<f64> = None, posinf: Option<f64> = None, neginf: Option<f64> = None);
    inplace nan_to_num_;
    forward(out) {
        if !self_.dtype.is_float() {
            return pointwise::cast(self_, self_.dtype);
        }
        let (lo, hi) = self_.dtype.finite_range();
        let k = table::NanToNum {
            nan: Scalar::Float(nan.unwrap_or(0.0)), posinf: Scalar::Float(posinf.unwrap_or(hi)), neginf: Scalar::Float(neginf.unwrap_or(lo)),
        };
        pointwise::run(out, "nan_to_num", &k, [self_])
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => where_(&isfinite(self_)?, g, &zeros_of(g)?) }
}
op! {
    /// Elementwise `log(x / (1 - x))`, x first clamped to `[eps, 1 - eps]` if given.
    LogitBackward0 = fn logit(self_; eps: Option<f64> = None);
    inplace logit_;
    forward(out) match eps {
        None => pointwise::run(out, "logit", &table::Logit {}, [self_]),
        Some(e) => pointwise::run(out, "logit", &table::LogitEps { eps: Scalar::Float(*e) }, [self_]),
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => logit_backward(g, self_, *eps) }
}
op! {
    /// Gradient of `logit`.
    LogitBackwardBackward0 = fn logit_backward(grad_output, self_; eps: Option<f64>);
    on [private];
    forward(out) match eps {
        None => pointwise::run(out, "logit_backward", &table::LogitBackward {}, [grad_output, self_]),
        Some(e) => pointwise::run(out, "logit_backward", &table::LogitEpsBackward { eps: Scalar::Float(*e) }, [grad_output, self_]),
    };
    saves [grad_output, self_];
    grad(g, cx) {
        grad_output uses [self_] => logit_backward(g, self_, *eps),
        // d/dx of 1 / (x (1 - x)) = (2x - 1) / (x (1 - x))^2
        self_ uses [grad_output, self_] => {
            let d = logit_backward(grad_output, self_, *eps)?;
            mul(g, &mul(&d, &div(&plus(&times(self_, 2.0)?, -1.0)?, &mul(self_, &plus(&neg(self_)?, 1.0)?)?)?)?)
        },
    }
}
function! {
    /// Elementwise square: `pow(2)`.
    fn square(self_) -> Tensor;
    { power(self_, 2.0) }
}
function! {
    /// `square`, in place.
    fn square_(self_) -> Tensor;
    { pow_scalar_(self_, Scalar::Int(2)) }
}
op! {
    /// Elementwise sign, as `sign`.
    SgnBackward0 = fn sgn(self_);
    inplace sgn_;
    forward(out) pointwise::run(out, "sgn", &table::Sign {}, [self_]);
    grad(g, cx) { self_ uses [] => zeros_of(g) }
}
function! {
    /// Alias of `abs`.
    fn absolute(self_) -> Tensor;
    { abs(self_) }
}
function! {
    /// Alias of `neg`.
    fn negative(self_) -> Tensor;
    { neg(self_) }
}
function! {
    /// The tensor itself.
    fn positive(self_) -> Tensor;
    {
        if self_.dtype() == DType::Bool {
            crate::error::bail!(Runtime, "The `+` operator, on a bool tensor is not supported.");
        }
        Ok(self_.clone())
    }
}
