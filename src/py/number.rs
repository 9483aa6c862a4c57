//! The operators of Tensor: `a * b`, `2 - a`, `a += b`, `a == b`, `-a`, ...
//!
//! Two plain tensors, or one and a Python float or int, go straight to the op's Rust function. Everything else (subclasses, numpy's numbers,
//! objects that are no operand) takes the road of a call by name, as `a.mul(b)` would; what that refuses for its type is NotImplemented, so
//! that Python tries the other operand. For `+ - * /` the first case is answered by a function of our own in the class's table (`operators`),
//! which leaves out what pyo3 does around a method and is stopped without an exception object; the methods answer the rest.
use super::arg::scalar;
use super::call::{Operator, Style, by_name, exact_number, plain_tensor, put_operator};
use super::{PyTensor, wrap};
use crate::dtype::Scalar;
use crate::error::Result;
use crate::ops;
use crate::tape::Tensor;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pyclass::CompareOp;
use std::sync::OnceLock;

type Any<'py> = Bound<'py, PyAny>;
type Op = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// `a op b` for two operands of which the first is a tensor.
#[inline]
fn binary<'py>(op: Op, name: &'static str, a: &Bound<'py, PyTensor>, b: &Any<'py>) -> PyResult<Any<'py>> {
    if let Some(x) = plain_tensor(a.as_any().as_borrowed()) {
        if let Some(y) = plain_tensor(b.as_borrowed()) {
            return Ok(wrap(a.py(), op(x, y)?)?.into_any());
        }
        if let Some(n) = exact_number(b.as_borrowed()) {
            return Ok(wrap(a.py(), op(x, &ops::number(n)?)?)?.into_any());
        }
    }
    by_name_or_not(name, Style::Method, &[a.as_any(), b])
}
/// A call by name; a refusal of a type is NotImplemented.
#[cold]
fn by_name_or_not<'py>(name: &'static str, style: Style, x: &[&Any<'py>]) -> PyResult<Any<'py>> {
    let py = x[0].py();
    match by_name(name, style, x) {
        Err(e) if e.is_instance_of::<PyTypeError>(py) => Ok(py.NotImplemented().into_bound(py)),
        r => r,
    }
}
/// A comparison. An array counts as a tensor: NotImplemented would make Python compare identities, for numpy leaves it to us.
#[inline]
fn compare<'py>(op: Op, name: &'static str, a: &Bound<'py, PyTensor>, b: &Any<'py>) -> PyResult<Any<'py>> {
    let r = binary(op, name, a, b)?;
    if r.is(a.py().NotImplemented()) && b.hasattr(pyo3::intern!(a.py(), "__array_interface__"))? {
        let b = a.py().import(pyo3::intern!(a.py(), "stowgrad"))?.getattr(pyo3::intern!(a.py(), "as_tensor"))?.call1((b,))?;
        return binary(op, name, a, &b);
    }
    Ok(r)
}
/// `a op= b`.
fn in_place<'py>(op: Op, name: &'static str, a: &Bound<'py, PyTensor>, b: &Any<'py>) -> PyResult<()> {
    if let Some(x) = plain_tensor(a.as_any().as_borrowed()) {
        if let Some(y) = plain_tensor(b.as_borrowed()) {
            op(x, y)?;
            return Ok(());
        }
        if let Some(n) = exact_number(b.as_borrowed()) {
            op(x, &ops::number(n)?)?;
            return Ok(());
        }
    }
    by_name(name, Style::InPlaceMethod, &[a.as_any(), b]).map(|_| ())
}
/// A number as a power, or the call by name.
fn power<'py>(a: &Bound<'py, PyTensor>, b: &Any<'py>) -> PyResult<Any<'py>> {
    if let (Some(x), Some(n)) = (plain_tensor(a.as_any().as_borrowed()), exact_number(b.as_borrowed())) {
        return Ok(wrap(a.py(), ops::pow_scalar(x, n)?)?.into_any());
    }
    binary(ops::pow, "pow", a, b)
}
/// `b op a` where `b` is a number: a 0-d tensor that weighs less. (A tensor as the other operand would have been asked first.)
fn reflected<'py>(op: Op, name: &'static str, a: &Bound<'py, PyTensor>, b: &Any<'py>) -> PyResult<Any<'py>> {
    match (plain_tensor(a.as_any().as_borrowed()), scalar(b.as_borrowed())) {
        (Some(x), Ok(Some(n))) => Ok(wrap(a.py(), op(&ops::number(n)?, x)?)?.into_any()),
        _ => by_name_or_not(name, Style::Function, &[b, a.as_any()]),
    }
}
fn unary<'py>(op: fn(&Tensor) -> Result<Tensor>, name: &'static str, a: &Bound<'py, PyTensor>) -> PyResult<Any<'py>> {
    match plain_tensor(a.as_any().as_borrowed()) {
        Some(x) => Ok(wrap(a.py(), op(x)?)?.into_any()),
        None => by_name(name, Style::Method, &[a.as_any()]),
    }
}
fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ops::add(a, b, Scalar::Int(1))
}
fn add_(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ops::add_(a, b, Scalar::Int(1))
}
fn sub(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ops::sub(a, b, Scalar::Int(1))
}
fn sub_(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ops::sub_(a, b, Scalar::Int(1))
}
fn rsub(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ops::rsub(a, b, Scalar::Int(1))
}
macro_rules! operators { ($($kind:ident $slot:ident $method:ident $reflected:ident => $op:expr, $name:literal;)*) => {
    $(
        struct $kind;
        impl Operator for $kind {
            const NAME: &'static str = $name;
            const METHODS: [&'static str; 2] = [stringify!($method), stringify!($reflected)];
            #[inline]
            fn op(a: &Tensor, b: &Tensor) -> Result<Tensor> {
                $op(a, b)
            }
            fn slot(of: &mut ffi::PyNumberMethods) -> &mut Option<ffi::binaryfunc> {
                &mut of.$slot
            }
            fn rest() -> &'static OnceLock<ffi::binaryfunc> {
                static REST: OnceLock<ffi::binaryfunc> = OnceLock::new();
                &REST
            }
        }
    )*
    /// Puts the operators that programs use most before pyo3's, which take a longer way to the same functions.
    pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
        let class = m.py().get_type::<PyTensor>();
        $(put_operator::<$kind>(&class)?;)*
        Ok(())
    }
} }
operators! {
    Add nb_add __add__ __radd__ => add, "add";
    Sub nb_subtract __sub__ __rsub__ => sub, "sub";
    Mul nb_multiply __mul__ __rmul__ => ops::mul, "mul";
    Div nb_true_divide __truediv__ __rtruediv__ => ops::div, "div";
}
#[pymethods]
impl PyTensor {
    fn __add__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(add, "add", slf, o)
    }
    fn __radd__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(add, "add", slf, o)
    }
    fn __iadd__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(add_, "add_", slf, o)
    }
    fn __sub__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(sub, "sub", slf, o)
    }
    fn __rsub__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(rsub, "rsub", slf, o)
    }
    fn __isub__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(sub_, "sub_", slf, o)
    }
    fn __mul__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::mul, "mul", slf, o)
    }
    fn __rmul__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::mul, "mul", slf, o)
    }
    fn __imul__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(ops::mul_, "mul_", slf, o)
    }
    fn __truediv__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::div, "div", slf, o)
    }
    /// As torch: the reciprocal, times the number.
    fn __rtruediv__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        if exact_number(o.as_borrowed()).is_none() && !matches!(scalar(o.as_borrowed()), Ok(Some(_))) {
            return by_name_or_not("div", Style::Function, &[o, slf.as_any()]);
        }
        let one = unary(ops::reciprocal, "reciprocal", slf)?;
        one.mul(o)
    }
    fn __itruediv__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(ops::div_, "div_", slf, o)
    }
    fn __floordiv__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::floor_divide, "floor_divide", slf, o)
    }
    fn __rfloordiv__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(ops::floor_divide, "floor_divide", slf, o)
    }
    fn __ifloordiv__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(ops::floor_divide_, "floor_divide_", slf, o)
    }
    fn __mod__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        match (plain_tensor(slf.as_any().as_borrowed()), exact_number(o.as_borrowed())) {
            (Some(x), Some(n)) => Ok(wrap(slf.py(), ops::remainder_scalar(x, n)?)?.into_any()),
            _ => binary(ops::remainder, "remainder", slf, o),
        }
    }
    fn __rmod__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(ops::remainder, "remainder", slf, o)
    }
    fn __imod__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(ops::remainder_, "remainder_", slf, o)
    }
    fn __pow__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>, _modulo: Option<&Any<'py>>) -> PyResult<Any<'py>> {
        power(slf, o)
    }
    fn __rpow__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>, _modulo: Option<&Any<'py>>) -> PyResult<Any<'py>> {
        reflected(ops::pow_of_scalar, "pow", slf, o)
    }
    fn __ipow__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>, _modulo: Option<&Any<'py>>) -> PyResult<()> {
        by_name("pow_", Style::InPlaceMethod, &[slf.as_any(), o]).map(|_| ())
    }
    fn __matmul__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        if let (Some(x), Some(y)) = (plain_tensor(slf.as_any().as_borrowed()), plain_tensor(o.as_borrowed())) {
            return Ok(wrap(slf.py(), ops::matmul(x, y, None)?)?.into_any());
        }
        by_name_or_not("matmul", Style::Method, &[slf.as_any(), o])
    }
    fn __rmatmul__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        by_name_or_not("matmul", Style::Function, &[o, slf.as_any()])
    }
    fn __and__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::bitwise_and, "bitwise_and", slf, o)
    }
    fn __rand__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::bitwise_and, "bitwise_and", slf, o)
    }
    fn __iand__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(ops::bitwise_and_, "bitwise_and_", slf, o)
    }
    fn __or__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::bitwise_or, "bitwise_or", slf, o)
    }
    fn __ror__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::bitwise_or, "bitwise_or", slf, o)
    }
    fn __ior__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(ops::bitwise_or_, "bitwise_or_", slf, o)
    }
    fn __xor__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::bitwise_xor, "bitwise_xor", slf, o)
    }
    fn __rxor__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::bitwise_xor, "bitwise_xor", slf, o)
    }
    fn __ixor__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(ops::bitwise_xor_, "bitwise_xor_", slf, o)
    }
    fn __lshift__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::bitwise_left_shift, "bitwise_left_shift", slf, o)
    }
    fn __rlshift__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(ops::bitwise_left_shift, "bitwise_left_shift", slf, o)
    }
    fn __ilshift__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(ops::bitwise_left_shift_, "bitwise_left_shift_", slf, o)
    }
    fn __rshift__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        binary(ops::bitwise_right_shift, "bitwise_right_shift", slf, o)
    }
    fn __rrshift__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<Any<'py>> {
        reflected(ops::bitwise_right_shift, "bitwise_right_shift", slf, o)
    }
    fn __irshift__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>) -> PyResult<()> {
        in_place(ops::bitwise_right_shift_, "bitwise_right_shift_", slf, o)
    }
    fn __neg__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        unary(ops::neg, "neg", slf)
    }
    fn __pos__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        unary(ops::positive, "positive", slf)
    }
    fn __abs__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        unary(ops::abs, "abs", slf)
    }
    fn __invert__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        unary(ops::bitwise_not, "bitwise_not", slf)
    }
    fn __richcmp__<'py>(slf: &Bound<'py, Self>, o: &Any<'py>, op: CompareOp) -> PyResult<Any<'py>> {
        match op {
            CompareOp::Eq => compare(ops::eq, "eq", slf, o),
            CompareOp::Ne => compare(ops::ne, "ne", slf, o),
            CompareOp::Lt => compare(ops::lt, "lt", slf, o),
            CompareOp::Le => compare(ops::le, "le", slf, o),
            CompareOp::Gt => compare(ops::gt, "gt", slf, o),
            CompareOp::Ge => compare(ops::ge, "ge", slf, o),
        }
    }
}
