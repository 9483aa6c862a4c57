//! Comparisons, logic and bits: no derivatives, results mostly bool.
use super::macros::function;
use super::*;
use crate::error::bail;
use crate::kernels::{Out, pointwise, table};

/// A function of arrays without derivative that may also write in place or into `out=`: recorded so that modes and versions see it.
macro_rules! plain {
    ($($(#[doc = $doc:literal])* $name:ident $inplace:ident ($a:ident $(, $b:ident)?) $node:ident $($schema:literal)? |$out:ident| $kernel:expr;)*) => { $(op! {
        $(#[doc = $doc])*
        $node = fn $name($a $(, $b | number)?);
        $(schema $schema;)?
        inplace $inplace;
        forward($out) $kernel;
        grad(g, cx) {}
    })* };
}
use super::macros::op;
plain! {
    /// Elementwise `self == other`, as bool.
    eq eq_ (self_, other) EqBackward0 "eq.Tensor; eq.Scalar for numbers" |out| pointwise::run_to(out, "eq", DType::Bool, &table::Eq {}, [self_, other]);
    /// Elementwise `self != other`, as bool.
    ne ne_ (self_, other) NeBackward0 "ne.Tensor; ne.Scalar for numbers" |out| pointwise::run_to(out, "ne", DType::Bool, &table::Ne {}, [self_, other]);
    /// Elementwise `self < other`, as bool.
    lt lt_ (self_, other) LtBackward0 "lt.Tensor; lt.Scalar for numbers" |out| pointwise::run_to(out, "lt", DType::Bool, &table::Lt {}, [self_, other]);
    /// Elementwise `self <= other`, as bool.
    le le_ (self_, other) LeBackward0 "le.Tensor; le.Scalar for numbers" |out| pointwise::run_to(out, "le", DType::Bool, &table::Le {}, [self_, other]);
    /// Elementwise `self > other`, as bool.
    gt gt_ (self_, other) GtBackward0 "gt.Tensor; gt.Scalar for numbers" |out| pointwise::run_to(out, "gt", DType::Bool, &table::Gt {}, [self_, other]);
    /// Elementwise `self >= other`, as bool.
    ge ge_ (self_, other) GeBackward0 "ge.Tensor; ge.Scalar for numbers" |out| pointwise::run_to(out, "ge", DType::Bool, &table::Ge {}, [self_, other]);
    /// Elementwise: both are not 0.
    logical_and logical_and_ (self_, other) LogicalAndBackward |out| pointwise::run_to(out, "logical_and", DType::Bool, &table::LogicalAnd {}, [self_, other]);
    /// Elementwise: at least one is not 0.
    logical_or logical_or_ (self_, other) LogicalOrBackward |out| pointwise::run_to(out, "logical_or", DType::Bool, &table::LogicalOr {}, [self_, other]);
    /// Elementwise: exactly one is not 0.
    logical_xor logical_xor_ (self_, other) LogicalXorBackward |out| pointwise::run_to(out, "logical_xor", DType::Bool, &table::LogicalXor {}, [self_, other]);
    /// Elementwise: it is 0.
    logical_not logical_not_ (self_) LogicalNotBackward |out| pointwise::run_to(out, "logical_not", DType::Bool, &table::LogicalNot {}, [self_]);
    /// Elementwise `&` of integers or bools.
    bitwise_and bitwise_and_ (self_, other) BitwiseAndBackward "bitwise_and.Tensor; bitwise_and.Scalar for numbers" |out| bits(out, "bitwise_and", &table::BitwiseAnd {}, [self_, other]);
    /// Elementwise `|` of integers or bools.
    bitwise_or bitwise_or_ (self_, other) BitwiseOrBackward "bitwise_or.Tensor; bitwise_or.Scalar for numbers" |out| bits(out, "bitwise_or", &table::BitwiseOr {}, [self_, other]);
    /// Elementwise `^` of integers or bools.
    bitwise_xor bitwise_xor_ (self_, other) BitwiseXorBackward "bitwise_xor.Tensor; bitwise_xor.Scalar for numbers" |out| bits(out, "bitwise_xor", &table::BitwiseXor {}, [self_, other]);
    /// Elementwise `<<`.
    bitwise_left_shift bitwise_left_shift_ (self_, other) BitwiseLeftShiftBackward "bitwise_left_shift.Tensor; bitwise_left_shift.Tensor_Scalar for numbers" |out| bits(out, "bitwise_left_shift", &table::ShiftLeft {}, numeric("bitwise_left_shift", [self_, other])?);
    /// Elementwise `>>`.
    bitwise_right_shift bitwise_right_shift_ (self_, other) BitwiseRightShiftBackward "bitwise_right_shift.Tensor; bitwise_right_shift.Tensor_Scalar for numbers" |out| bits(out, "bitwise_right_shift", &table::ShiftRight {}, numeric("bitwise_right_shift", [self_, other])?);
    /// Elementwise `~`: bits of integers, not of bools.
    bitwise_not bitwise_not_ (self_) BitwiseNotBackward |out| if self_.dtype == DType::Bool {
        pointwise::run_to(out, "bitwise_not", DType::Bool, &table::LogicalNot {}, [self_])
    } else {
        whole("bitwise_not", &[self_])?;
        pointwise::run(out, "bitwise_not", &table::BitwiseNot {}, [self_])
    };
}
fn whole(op: &'static str, x: &[&Array]) -> Result<()> {
    match x.iter().find(|a| a.dtype.is_float()) {
        Some(a) => Err(Box::new(crate::error::Error::Unsupported { op, dtype: a.dtype })),
        None => Ok(()),
    }
}
fn bits(out: Out<'_>, op: &'static str, k: &dyn table::Kernel<2>, x: [&Array; 2]) -> Result<Array> {
    whole(op, &x)?;
    pointwise::run(out, op, k, x)
}
macro_rules! predicates {
    ($($(#[doc = $doc:literal])* $name:ident $schema:literal $kernel:ident;)*) => { $(function! {
        $(#[doc = $doc])*
        fn $name(self_) -> Tensor;
        schema $schema;
        { Ok(Tensor::new(pointwise::run_to(Out(None), stringify!($name), DType::Bool, &table::$kernel {}, [&self_.array()])?)) }
    })* };
}
predicates! {
    /// Elementwise: it is NaN.
    isnan "isnan" IsNan;
    /// Elementwise: it is inf or -inf.
    isinf "isinf" IsInf;
    /// Elementwise: it is neither NaN nor infinite.
    isfinite "isfinite" IsFinite;
    /// Elementwise: it is inf.
    isposinf "isposinf" IsPosInf;
    /// Elementwise: it is -inf.
    isneginf "isneginf" IsNegInf;
    /// Elementwise: its sign bit is set.
    signbit "signbit" Signbit;
}
function! {
    /// Elementwise `|self - other| <= atol + rtol * |other|`; NaN equals NaN only if `equal_nan`.
    fn isclose(self_, other; rtol: f64 = 1e-5, atol: f64 = 1e-8, equal_nan: bool = false) -> Tensor;
    schema "isclose";
    {
        let (a, b) = (self_.array(), other.array());
        if a.dtype != b.dtype {
            bail!(Runtime, "isclose(): {} did not match {}; convert one of them", a.dtype.torch_name(), b.dtype.torch_name());
        }
        if rtol < 0.0 || atol < 0.0 {
            bail!(Runtime, "isclose(): rtol and atol must be greater than or equal to zero, but got {rtol} and {atol}");
        }
        let k = table::IsClose { rtol: Scalar::Float(rtol), atol: Scalar::Float(atol), equal_nan: Scalar::Bool(equal_nan) };
        Ok(Tensor::new(pointwise::run_to(Out(None), "isclose", DType::Bool, &k, [&a, &b])?))
    }
}
function! {
    /// Are all elements close (see `isclose`)?
    fn allclose(self_, other; rtol: f64 = 1e-5, atol: f64 = 1e-8, equal_nan: bool = false) -> bool;
    schema "allclose";
    { Ok(crate::kernels::reduce::all(&isclose(self_, other, rtol, atol, equal_nan)?.array(), crate::kernels::reduce::Axes::All, false)?.item().to_i64() != 0) }
}
function! {
    /// Same shape and same elements?
    fn equal(self_, other) -> bool;
    schema "equal";
    {
        if self_.shape() != other.shape() {
            return Ok(false);
        }
        if self_.numel() == 0 {
            return Ok(true);
        }
        Ok(crate::kernels::reduce::all(&eq(self_, other)?.array(), crate::kernels::reduce::Axes::All, false)?.item().to_i64() != 0)
    }
}
macro_rules! aliases {
    ($($(#[doc = $doc:literal])* $alias:ident $name:ident;)*) => { $(function! {
        $(#[doc = $doc])*
        fn $alias(self_, other | number) -> Tensor;
        { $name(self_, other) }
    })* };
}
aliases! {
    /// Alias of `gt`.
    greater gt;
    /// Alias of `ge`.
    greater_equal ge;
    /// Alias of `lt`.
    less lt;
    /// Alias of `le`.
    less_equal le;
    /// Alias of `ne`.
    not_equal ne;
}
