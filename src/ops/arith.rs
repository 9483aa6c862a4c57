//! Elementwise arithmetic on two and three operands.
use super::macros::{function, op};
use super::*;
use crate::error::bail;
use crate::kernels::{Out, pointwise, table};
use crate::ops::unary::{plus, times, zeros_of};
use crate::tape::{Cx, mode::now};

/// Operands of `-`: bools are refused, as in torch.
fn no_bools(op: &str, x: [&Array; 2]) -> Result<()> {
    if x.iter().all(|a| a.dtype == DType::Bool) {
        bail!(
            Runtime,
            "{op}(): Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` operator instead."
        );
    }
    if x.iter().any(|a| a.dtype == DType::Bool) {
        bail!(
            Runtime,
            "{op}(): Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the `~` or `logical_not()` operator instead."
        );
    }
    Ok(())
}
fn check_alpha(op: &str, alpha: Scalar, x: [&Array; 2]) -> Result<()> {
    if matches!(alpha, Scalar::Bool(_)) && !x.iter().all(|a| a.dtype == DType::Bool) {
        bail!(Runtime, "{op}(): Boolean alpha only supported for Boolean results.");
    }
    if matches!(alpha, Scalar::Float(_)) && !x.iter().any(|a| a.dtype.is_float()) {
        bail!(Runtime, "{op}(): For integral input tensors, argument alpha must not be a floating point number.");
    }
    Ok(())
}
fn sum_scaled(out: Out<'_>, op: &'static str, a: &Array, b: &Array, alpha: Scalar) -> Result<Array> {
    match alpha.to_f64() {
        1.0 if op == "add" => pointwise::run(out, op, &table::Add {}, [a, b]),
        -1.0 if op == "sub" => pointwise::run(out, op, &table::Sub {}, [a, b]),
        _ => pointwise::run(out, op, &table::AddScaled { alpha }, [a, b]),
    }
}
fn negated(s: Scalar) -> Scalar {
    match s {
        Scalar::Bool(b) => Scalar::Int(-(b as i64)),
        Scalar::Int(i) => Scalar::Int(i.wrapping_neg()),
        Scalar::Float(f) => Scalar::Float(-f),
    }
}
/// `g * s`; `g` itself where s is 1.
pub(super) fn scaled(g: &Tensor, s: Scalar) -> Result<Tensor> {
    if s.to_f64() == 1.0 { Ok(g.clone()) } else { mul(g, &number(s)?) }
}
op! {
    /// Elementwise sum `self + alpha * other`, with broadcasting.
    AddBackward0 = fn add(self_, other | number; *, alpha: Scalar = Scalar::Int(1));
    schema "add.Tensor";
    inplace add_;
    forward(out) {
        check_alpha("add", *alpha, [self_, other])?;
        sum_scaled(out, "add", self_, other, *alpha)
    };
    grad(g, cx) {
        self_ uses [] => Ok(g.clone()),
        other uses [] => scaled(g, *alpha),
    }
}
op! {
    /// Elementwise difference `self - alpha * other`, with broadcasting.
    SubBackward0 = fn sub(self_, other | number; *, alpha: Scalar = Scalar::Int(1));
    schema "sub.Tensor";
    inplace sub_;
    forward(out) {
        no_bools("sub", [self_, other])?;
        check_alpha("sub", *alpha, [self_, other])?;
        sum_scaled(out, "sub", self_, other, negated(*alpha))
    };
    grad(g, cx) {
        self_ uses [] => Ok(g.clone()),
        other uses [] => scaled(&neg(g)?, *alpha),
    }
}
op! {
    /// `other - alpha * self`.
    RsubBackward1 = fn rsub(self_, other | number; *, alpha: Scalar = Scalar::Int(1));
    schema "rsub.Scalar";
    forward(out) {
        no_bools("rsub", [self_, other])?;
        check_alpha("rsub", *alpha, [self_, other])?;
        sum_scaled(out, "sub", other, self_, negated(*alpha))
    };
    grad(g, cx) {
        self_ uses [] => scaled(&neg(g)?, *alpha),
        other uses [] => Ok(g.clone()),
    }
}
op! {
    /// Elementwise product, with broadcasting.
    MulBackward0 = fn mul(self_, other | number);
    schema "mul.Tensor";
    inplace mul_;
    forward(out) pointwise::run(out, "mul", &table::Mul {}, [self_, other]);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [other] => times_last(g, other, cx, !cx.needs(1)),
        other uses [self_] => times_last(g, self_, cx, true),
    }
}
/// `g * by`; into the memory of `g` if that is few elements which nobody else holds, and this is the last formula to read it.
fn times_last(g: &Tensor, by: &Tensor, cx: &Cx<'_>, last: bool) -> Result<Tensor> {
    if last && cx.spare && !cx.node.is_hooked() {
        let now = now();
        if !now.grad_enabled()
            && !now.dispatching()
            && let (Some(to), Some(x)) = (g.try_own(), by.try_lend())
            && pointwise::within(&to, &table::Mul {}, [&to, &x])
        {
            return Ok(g.clone());
        }
    }
    mul(g, by)
}
op! {
    /// Elementwise quotient, with broadcasting; integers give floats.
    DivBackward0 = fn div(self_, other | number);
    schema "div.Tensor";
    inplace div_;
    forward(out) pointwise::run(out, "div", &table::Div {}, [self_, other]);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [other] => div(g, other),
        other uses [self_, other] => mul(&neg(g)?, &div(&div(self_, other)?, other)?),
    }
}
/// A quotient rounded as `mode` says.
fn rounded(out: Out<'_>, op: &'static str, a: &Array, b: &Array, mode: &Option<String>) -> Result<Array> {
    match mode.as_deref() {
        None => pointwise::run(out, op, &table::Div {}, [a, b]),
        Some("floor") => pointwise::run(out, op, &table::DivFloor {}, [a, b]),
        Some("trunc") => pointwise::run(out, op, &table::DivTrunc {}, [a, b]),
        Some(m) => bail!(Runtime, "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{m}'"),
    }
}
op! {
    /// Elementwise quotient, rounded down (`"floor"`), towards zero (`"trunc"`) or not (None).
    DivBackward2 = fn div_rounded(self_, other | number; *, rounding_mode: Option<String>);
    schema "div.Tensor_mode";
    overload div;
    inplace div_rounded_;
    forward(out) rounded(out, "div", self_, other, rounding_mode);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [other] => if rounding_mode.is_none() { div(g, other) } else { zeros_of(g) },
        other uses [self_, other] => if rounding_mode.is_none() { mul(&neg(g)?, &div(&div(self_, other)?, other)?) } else { zeros_of(g) },
    }
}
function! {
    /// Alias of `div`.
    fn divide(self_, other | number; *, rounding_mode: Option<String> = None) -> Tensor;
    { match rounding_mode { None => div(self_, other), m => div_rounded(self_, other, m) } }
}
function! {
    /// Alias of `div`.
    fn true_divide(self_, other | number) -> Tensor;
    { div(self_, other) }
}
function! {
    /// Alias of `mul`.
    fn multiply(self_, other | number) -> Tensor;
    { mul(self_, other) }
}
function! {
    /// Alias of `sub`.
    fn subtract(self_, other | number; *, alpha: Scalar = Scalar::Int(1)) -> Tensor;
    { sub(self_, other, alpha) }
}
fn no_derivative(op: &str, g: &Tensor) -> Result<Tensor> {
    bail!(Runtime, "derivative for {op} is not implemented (a gradient of shape {:?} arrived)", g.shape())
}
op! {
    /// Elementwise quotient, rounded down. Has no derivative.
    FloorDivideBackward = fn floor_divide(self_, other | number);
    inplace floor_divide_;
    forward(out) pointwise::run(out, "floor_divide", &table::DivFloor {}, numeric("floor_divide", [self_, other])?);
    grad(g, cx) {
        self_ uses [] => no_derivative("floor_divide", g),
        other uses [] => no_derivative("floor_divide", g),
    }
}
op! {
    /// Elementwise remainder with the sign of `other`, a number (Python's `%`).
    RemainderBackward0 = fn remainder_scalar(self_; other: Scalar);
    schema "remainder.Scalar";
    overload remainder;
    inplace remainder_scalar_;
    forward(out) pointwise::run(out, "remainder", &table::Remainder {}, numeric("remainder", [self_, &Array::number(*other)?])?);
    grad(g, cx) { self_ uses [] => Ok(g.clone()) }
}
op! {
    /// Elementwise remainder with the sign of `other` (Python's `%`).
    RemainderBackward1 = fn remainder(self_, other | number);
    schema "remainder.Tensor; remainder.Scalar for numbers";
    inplace remainder_;
    forward(out) pointwise::run(out, "remainder", &table::Remainder {}, numeric("remainder", [self_, other])?);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [] => Ok(g.clone()),
        other uses [self_, other] => neg(&mul(g, &div_rounded(self_, other, Some("floor".into()))?)?),
    }
}
op! {
    /// Elementwise remainder with the sign of `self`, of the division by a number (C's `fmod`).
    FmodBackward0 = fn fmod_scalar(self_; other: Scalar);
    schema "fmod.Scalar";
    overload fmod;
    inplace fmod_scalar_;
    forward(out) pointwise::run(out, "fmod", &table::Fmod {}, numeric("fmod", [self_, &Array::number(*other)?])?);
    grad(g, cx) { self_ uses [] => Ok(g.clone()) }
}
op! {
    /// Elementwise remainder with the sign of `self` (C's `fmod`).
    FmodBackward1 = fn fmod(self_, other | number);
    schema "fmod.Tensor; fmod.Scalar for numbers";
    inplace fmod_;
    forward(out) pointwise::run(out, "fmod", &table::Fmod {}, numeric("fmod", [self_, other])?);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [] => Ok(g.clone()),
        other uses [self_, other] => neg(&mul(g, &div_rounded(self_, other, Some("trunc".into()))?)?),
    }
}
/// `t` to a constant power, as a differentiable op on a number exponent.
pub(super) fn power(t: &Tensor, p: f64) -> Result<Tensor> {
    pow_scalar(t, if p.fract() == 0.0 { Scalar::Int(p as i64) } else { Scalar::Float(p) })
}
fn check_int_power(a: &Array, exponent: Scalar) -> Result<()> {
    if !a.dtype.is_float() && matches!(exponent, Scalar::Int(i) if i < 0) {
        bail!(Runtime, "pow(): Integers to negative integer powers are not allowed.");
    }
    Ok(())
}
op! {
    /// Elementwise power with a number as the exponent.
    PowBackward0 = fn pow_scalar(self_; exponent: Scalar);
    schema "pow.Tensor_Scalar";
    overload pow;
    inplace pow_scalar_;
    forward(out) {
        check_int_power(self_, *exponent)?;
        pointwise::run(out, "pow", &table::Pow {}, [self_, &Array::number(*exponent)?])
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => match exponent.to_f64() {
        0.0 => zeros_of(g),
        _ => {
            let less = match exponent { Scalar::Float(f) => Scalar::Float(f - 1.0), s => Scalar::Int(s.to_i64() - 1) };
            mul(g, &mul(&pow_scalar(self_, less)?, &number(*exponent)?)?)
        }
    } }
}
op! {
    /// Elementwise power, both operands tensors.
    PowBackward1 = fn pow(self_, exponent);
    schema "pow.Tensor_Tensor";
    inplace pow_;
    forward(out) pointwise::run(out, "pow", &table::Pow {}, numeric("pow", [self_, exponent])?);
    saves [self_, exponent, result];
    grad(g, cx) {
        self_ uses [self_, exponent] => {
            let d = mul(g, &mul(exponent, &pow(self_, &plus(exponent, -1.0)?)?)?)?;
            where_(&eq(exponent, &number(0.0)?)?, &zeros_of(&d)?, &d)
        },
        exponent uses [self_, exponent, result] => power_by_exponent(g, self_, exponent, result),
    }
}
/// g * result * log(base), 0 where 0 is raised to a non-negative power.
fn power_by_exponent(g: &Tensor, base: &Tensor, exponent: &Tensor, result: &Tensor) -> Result<Tensor> {
    let zero = number(0.0)?;
    let flat = logical_and(&eq(base, &zero)?, &ge(exponent, &zero)?)?;
    let d = mul(g, &mul(result, &log(base)?)?)?;
    where_(&flat, &zeros_of(&d)?, &d)
}
op! {
    /// A number to the power of each element.
    PowBackward2 = fn pow_of_scalar(self_ | number, exponent);
    schema "pow.Scalar";
    overload pow;
    on [function];
    forward(out) pointwise::run(out, "pow", &table::Pow {}, numeric("pow", [self_, exponent])?);
    saves [self_, exponent, result];
    grad(g, cx) { exponent uses [self_, exponent, result] => power_by_exponent(g, self_, exponent, result) }
}
function! {
    /// `pow` in float64.
    fn float_power(self_, exponent | number) -> Tensor;
    { pow(&to_dtype(self_, DType::Float64)?, &to_dtype(exponent, DType::Float64)?) }
}
/// How the gradient of an extreme is shared: none where the operand loses, half where both are equal; all of it where they cannot be
/// compared, so that NaN reaches both.
fn share(g: &Tensor, loses: &Tensor, equal: &Tensor) -> Result<Tensor> {
    masked_fill(&where_(equal, &times(g, 0.5)?, g)?, loses, Scalar::Int(0))
}
op! {
    /// Elementwise maximum; NaN passes through. The gradient is shared where both are equal.
    MaximumBackward0 = fn maximum(self_, other);
    forward(out) pointwise::run(out, "maximum", &table::Maximum {}, [self_, other]);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [self_, other] => share(g, &lt(self_, other)?, &eq(self_, other)?),
        other uses [self_, other] => share(g, &gt(self_, other)?, &eq(self_, other)?),
    }
}
op! {
    /// Elementwise minimum; NaN passes through. The gradient is shared where both are equal.
    MinimumBackward0 = fn minimum(self_, other);
    forward(out) pointwise::run(out, "minimum", &table::Minimum {}, [self_, other]);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [self_, other] => share(g, &gt(self_, other)?, &eq(self_, other)?),
        other uses [self_, other] => share(g, &lt(self_, other)?, &eq(self_, other)?),
    }
}
op! {
    /// Elementwise maximum that ignores NaN where the other is a number.
    FmaxBackward0 = fn fmax(self_, other);
    forward(out) pointwise::run(out, "fmax", &table::Fmax {}, [self_, other]);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [self_, other] => where_(&logical_or(&ge(self_, other)?, &isnan(other)?)?, g, &zeros_of(g)?),
        other uses [self_, other] => where_(&logical_not(&logical_or(&ge(self_, other)?, &isnan(other)?)?)?, g, &zeros_of(g)?),
    }
}
op! {
    /// Elementwise minimum that ignores NaN where the other is a number.
    FminBackward0 = fn fmin(self_, other);
    forward(out) pointwise::run(out, "fmin", &table::Fmin {}, [self_, other]);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [self_, other] => where_(&logical_or(&le(self_, other)?, &isnan(other)?)?, g, &zeros_of(g)?),
        other uses [self_, other] => where_(&logical_not(&logical_or(&le(self_, other)?, &isnan(other)?)?)?, g, &zeros_of(g)?),
    }
}
op! {
    /// Angle of the point (other, self), in radians.
    Atan2Backward0 = fn atan2(self_, other);
    inplace atan2_;
    forward(out) pointwise::run(out, "atan2", &table::Atan2 {}, [self_, other]);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [self_, other] => atan2_part(g, self_, other, other),
        other uses [self_, other] => atan2_part(g, self_, other, &neg(self_)?),
    }
}
fn atan2_part(g: &Tensor, y: &Tensor, x: &Tensor, up: &Tensor) -> Result<Tensor> {
    let square = add(&mul(y, y)?, &mul(x, x)?, Scalar::Int(1))?;
    let d = mul(g, &div(up, &square)?)?;
    where_(&eq(&square, &number(0.0)?)?, &zeros_of(&d)?, &d)
}
op! {
    /// `sqrt(self^2 + other^2)` without overflow.
    HypotBackward0 = fn hypot(self_, other);
    inplace hypot_;
    forward(out) pointwise::run(out, "hypot", &table::Hypot {}, floats("hypot", [self_, other])?);
    saves [self_, other, result];
    grad(g, cx) {
        self_ uses [self_, result] => mul(g, &div(self_, result)?),
        other uses [other, result] => mul(g, &div(other, result)?),
    }
}
op! {
    /// Magnitude of `self` with the sign of `other`.
    CopysignBackward0 = fn copysign(self_, other | number);
    inplace copysign_;
    forward(out) pointwise::run(out, "copysign", &table::Copysign {}, [self_, other]);
    saves [self_, result];
    grad(g, cx) {
        self_ uses [self_, result] => {
            let ratio = div(result, self_)?;
            mul(g, &where_(&eq(self_, &number(0.0)?)?, &zeros_of(&ratio)?, &ratio)?)
        },
        other uses [] => zeros_of(g),
    }
}
op! {
    /// `log(exp(self) + exp(other))` without overflow.
    LogaddexpBackward0 = fn logaddexp(self_, other);
    forward(out) pointwise::run(out, "logaddexp", &table::Logaddexp {}, floats("logaddexp", [self_, other])?);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [self_, other] => div(g, &plus(&exp(&sub(other, self_, Scalar::Int(1))?)?, 1.0)?),
        other uses [self_, other] => div(g, &plus(&exp(&sub(self_, other, Scalar::Int(1))?)?, 1.0)?),
    }
}
op! {
    /// `log2(2^self + 2^other)` without overflow.
    Logaddexp2Backward0 = fn logaddexp2(self_, other);
    forward(out) pointwise::run(out, "logaddexp2", &table::Logaddexp2 {}, floats("logaddexp2", [self_, other])?);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [self_, other] => div(g, &plus(&exp2(&sub(other, self_, Scalar::Int(1))?)?, 1.0)?),
        other uses [self_, other] => div(g, &plus(&exp2(&sub(self_, other, Scalar::Int(1))?)?, 1.0)?),
    }
}
op! {
    /// `self * log(other)`, 0 where `self` is 0.
    XlogyBackward0 = fn xlogy(self_ | number, other | number);
    schema "xlogy.Tensor";
    inplace xlogy_;
    forward(out) pointwise::run(out, "xlogy", &table::Xlogy {}, [self_, other]);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [self_, other] => {
            let d = mul(g, &log(other)?)?;
            where_(&logical_and(&eq(self_, &number(0.0)?)?, &le(other, &number(0.0)?)?)?, &zeros_of(&d)?, &d)
        },
        other uses [self_, other] => div(&mul(g, self_)?, other),
    }
}
op! {
    /// `self + weight * (end - self)` with a number as the weight.
    LerpBackward0 = fn lerp_scalar(self_, end; weight: Scalar);
    schema "lerp.Scalar";
    overload lerp;
    inplace lerp_scalar_;
    forward(out) {
        same_dtype("lerp", [self_, end])?;
        floats("lerp", [self_, end])?;
        pointwise::run(out, "lerp", &table::Lerp {}, [self_, end, &Array::number(*weight)?])
    };
    grad(g, cx) {
        self_ uses [] => times(g, 1.0 - weight.to_f64()),
        end uses [] => mul(g, &number(*weight)?),
    }
}
fn same_dtype(op: &str, x: [&Array; 2]) -> Result<()> {
    if x[0].dtype != x[1].dtype {
        bail!(Runtime, "{op}(): expected dtype {} for the second operand but got dtype {}", x[0].dtype.name(), x[1].dtype.name());
    }
    Ok(())
}
op! {
    /// `self + weight * (end - self)`.
    LerpBackward1 = fn lerp(self_, end, weight);
    schema "lerp.Tensor";
    inplace lerp_;
    forward(out) {
        same_dtype("lerp", [self_, end])?;
        floats("lerp", [self_, end])?;
        same_dtype("lerp", [self_, weight])?;
        pointwise::run(out, "lerp", &table::Lerp {}, [self_, end, weight])
    };
    saves [self_, end, weight];
    grad(g, cx) {
        self_ uses [weight] => mul(g, &plus(&neg(weight)?, 1.0)?),
        end uses [weight] => mul(g, weight),
        weight uses [self_, end] => mul(g, &sub(end, self_, Scalar::Int(1))?),
    }
}
op! {
    /// `self + value * tensor1 * tensor2`.
    AddcmulBackward0 = fn addcmul(self_, tensor1, tensor2; *, value: Scalar = Scalar::Int(1));
    inplace addcmul_;
    forward(out) pointwise::run(out, "addcmul", &table::Addcmul { value: *value }, numeric("addcmul", [self_, tensor1, tensor2])?);
    saves [tensor1, tensor2];
    grad(g, cx) {
        self_ uses [] => Ok(g.clone()),
        tensor1 uses [tensor2] => mul(&mul(g, tensor2)?, &number(*value)?),
        tensor2 uses [tensor1] => mul(&mul(g, tensor1)?, &number(*value)?),
    }
}
op! {
    /// `self + value * tensor1 / tensor2`.
    AddcdivBackward0 = fn addcdiv(self_, tensor1, tensor2; *, value: Scalar = Scalar::Int(1));
    inplace addcdiv_;
    forward(out) {
        if !tensor1.dtype.is_float() && !tensor2.dtype.is_float() {
            bail!(Runtime, "addcdiv(): Integer division with addcdiv is no longer supported, and in a future release addcdiv will perform a true division of tensor1 and tensor2. Convert one of them to a float dtype");
        }
        pointwise::run(out, "addcdiv", &table::Addcdiv { value: *value }, [self_, tensor1, tensor2])
    };
    saves [tensor1, tensor2];
    grad(g, cx) {
        self_ uses [] => Ok(g.clone()),
        tensor1 uses [tensor2] => mul(g, &div(&number(*value)?, tensor2)?),
        tensor2 uses [tensor1, tensor2] => neg(&mul(&mul(g, &number(*value)?)?, &div(tensor1, &mul(tensor2, tensor2)?)?)?),
    }
}
op! {
    /// Elementwise step: 0 below 0, `values` at 0, 1 above. Has no derivative.
    HeavisideBackward = fn heaviside(self_, values);
    inplace heaviside_;
    forward(out) {
        if self_.dtype != values.dtype {
            bail!(Runtime, "heaviside is not implemented for tensors with different dtypes, got {} and {}; convert one of them", self_.dtype.name(), values.dtype.name());
        }
        pointwise::run(out, "heaviside", &table::Heaviside {}, [self_, values])
    };
    grad(g, cx) { self_ uses [] => no_derivative("heaviside", g) }
}
fn bound(v: Option<Scalar>, open: f64) -> Result<Array> {
    Array::number(v.unwrap_or(Scalar::Float(open)))
}
op! {
    /// Elements limited to `[min, max]` (either may be absent).
    ClampBackward1 = fn clamp(self_; min: Option<Scalar> = None, max: Option<Scalar> = None);
    inplace clamp_;
    forward(out) {
        match (min, max) {
            (None, None) => bail!(Runtime, "torch.clamp: At least one of 'min' or 'max' must not be None"),
            (Some(_), None) => pointwise::run(out, "clamp", &table::Maximum {}, [self_, &bound(*min, f64::NEG_INFINITY)?]),
            (None, Some(_)) => pointwise::run(out, "clamp", &table::Minimum {}, [self_, &bound(*max, f64::INFINITY)?]),
            (Some(_), Some(_)) => pointwise::run(out, "clamp", &table::Clamp {}, [self_, &bound(*min, 0.0)?, &bound(*max, 0.0)?]),
        }
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => {
        let low = min.map(|m| ge(self_, &number(m)?)).transpose()?;
        let high = max.map(|m| le(self_, &number(m)?)).transpose()?;
        let inside = match (low, high) { (Some(a), Some(b)) => logical_and(&a, &b)?, (Some(a), None) | (None, Some(a)) => a, _ => return Ok(()) };
        where_(&inside, g, &zeros_of(g)?)
    } }
}
op! {
    /// Elements limited to `[min, max]`, given by tensors.
    ClampBackward0 = fn clamp_tensor(self_, min | optional, max | optional);
    schema "clamp.Tensor";
    overload clamp;
    inplace clamp_tensor_;
    forward(out) match (min, max) {
        (None, None) => bail!(Runtime, "torch.clamp: At least one of 'min' or 'max' must not be None"),
        (Some(a), None) => pointwise::run(out, "clamp", &table::Maximum {}, [self_, a]),
        (None, Some(b)) => pointwise::run(out, "clamp", &table::Minimum {}, [self_, b]),
        (Some(a), Some(b)) => pointwise::run(out, "clamp", &table::Clamp {}, numeric("clamp", [self_, a, b])?),
    };
    saves [self_, min, max];
    grad(g, cx) {
        self_ uses [self_, min: optional, max: optional] => clamp_parts(g, self_, min, max, 0),
        min uses [self_, min: optional, max: optional] => clamp_parts(g, self_, min, max, 1),
        max uses [self_, min: optional, max: optional] => clamp_parts(g, self_, min, max, 2),
    }
}
/// `g` where the element itself (0), the lower bound (1) or the upper bound (2) decides.
fn clamp_parts(g: &Tensor, x: &Tensor, min: &Option<Tensor>, max: &Option<Tensor>, who: u8) -> Result<Tensor> {
    let below = min.as_ref().map(|m| lt(x, m)).transpose()?;
    let above = max.as_ref().map(|m| gt(x, m)).transpose()?;
    let crossed = match (min, max) {
        (Some(a), Some(b)) => Some(lt(b, a)?),
        _ => None,
    };
    let no = |t: Option<Tensor>| t.map_or_else(|| eq(x, x).and_then(|e| logical_not(&logical_or(&e, &logical_not(&e)?)?)), Ok);
    let (below, above, crossed) = (no(below)?, no(above)?, no(crossed)?);
    let mask = match who {
        0 => logical_not(&logical_or(&logical_or(&below, &above)?, &crossed)?)?,
        1 => logical_and(&below, &logical_not(&crossed)?)?,
        _ => logical_or(&above, &crossed)?,
    };
    where_(&mask, g, &zeros_of(g)?)
}
op! {
    /// Elements raised to at least `min`.
    ClampMinBackward0 = fn clamp_min(self_; min: Scalar);
    inplace clamp_min_;
    forward(out) pointwise::run(out, "clamp_min", &table::Maximum {}, [self_, &Array::number(*min)?]);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => where_(&ge(self_, &number(*min)?)?, g, &zeros_of(g)?) }
}
op! {
    /// Elements lowered to at most `max`.
    ClampMaxBackward0 = fn clamp_max(self_; max: Scalar);
    inplace clamp_max_;
    forward(out) pointwise::run(out, "clamp_max", &table::Minimum {}, [self_, &Array::number(*max)?]);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => where_(&le(self_, &number(*max)?)?, g, &zeros_of(g)?) }
}
op! {
    /// Elements of `self` where `condition` holds, else of `other`.
    WhereBackward0 = fn where_(condition, self_ | number, other | number);
    schema "where.self";
    overload where;
    on [function];
    forward(out) pointwise::where_(out, condition, self_, other);
    saves [condition];
    grad(g, cx) {
        self_ uses [condition] => where_(condition, g, &number(0.0)?),
        other uses [condition] => where_(condition, &number(0.0)?, g),
    }
}
op! {
    /// `value` where `mask` holds, else the element.
    MaskedFillBackward0 = fn masked_fill(self_, mask; value: Scalar);
    schema "masked_fill.Scalar";
    inplace masked_fill_;
    forward(out) filled(out, self_, mask, &Array::number(*value)?);
    saves [mask];
    grad(g, cx) { self_ uses [mask] => masked_fill(g, mask, Scalar::Int(0)) }
}
op! {
    /// The 0-d tensor `value` where `mask` holds, else the element.
    MaskedFillBackward1 = fn masked_fill_tensor(self_, mask, value);
    schema "masked_fill.Tensor";
    overload masked_fill;
    inplace masked_fill_tensor_;
    forward(out) {
        if value.ndim() != 0 {
            bail!(Runtime, "masked_fill only supports a 0-dimensional value tensor, but got tensor with {} dimension(s).", value.ndim());
        }
        filled(out, self_, mask, value)
    };
    saves [mask];
    grad(g, cx) {
        self_ uses [mask] => masked_fill(g, mask, Scalar::Int(0)),
        value uses [mask] => sum(&where_(mask, g, &number(0.0)?)?, None),
    }
}
fn filled(out: Out<'_>, a: &Array, mask: &Array, value: &Array) -> Result<Array> {
    if mask.dtype != DType::Bool {
        bail!(Runtime, "masked_fill_ only supports boolean masks, but got mask with dtype {}", mask.dtype.name());
    }
    let value = pointwise::cast(value, a.dtype)?;
    pointwise::where_(out, mask, &value, a)
}
op! {
    /// Every element set to a number.
    FillBackward0 = fn fill(self_; value: Scalar);
    schema "fill.Scalar";
    inplace fill_;
    on [method];
    forward(_out) Array::full(self_.shape, self_.dtype, *value);
    grad(g, cx) { self_ uses [] => zeros_of(g) }
}
op! {
    /// Every element set to a 0-d tensor.
    FillBackward1 = fn fill_tensor(self_, value);
    schema "fill.Tensor";
    overload fill;
    inplace fill_tensor_;
    on [method];
    forward(_out) {
        if value.ndim() != 0 {
            bail!(Runtime, "fill_ only supports 0-dimension value tensor but got tensor with {} dimensions.", value.ndim());
        }
        Array::full(self_.shape, self_.dtype, value.item())
    };
    grad(g, cx) {
        self_ uses [] => zeros_of(g),
        value uses [] => sum(g, None),
    }
}
op! {
    /// Every element set to 0.
    ZeroBackward0 = fn zero(self_);
    inplace zero_;
    on [method];
    forward(_out) Array::zeros(self_.shape, self_.dtype);
    grad(g, cx) { self_ uses [] => zeros_of(g) }
}
