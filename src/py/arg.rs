//! How a Python value becomes a typed Rust argument, and what each type is called in messages and stubs. A new argument type: one impl here.
#![allow(clippy::redundant_closure, reason = "the closures are generic over the lifetime of the value, the paths are not")]
use super::call::{Look, Values, exact_number};
use super::dtype::{PyDType, PyDevice, PyLayout, PyMemoryFormat};
use crate::dtype::{DType, Scalar};
use crate::error::{Error, err};
use crate::layout::{Dims, Geometry};
use crate::ops::{self, Contract, Cpu, Ints, Operands, Order, Sizes, Strided};
use crate::tape::Tensor;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyString, PyTuple};
use smallvec::SmallVec;

/// `shown` in error messages, `hint` in stubs; `varargs`: may take all remaining positional values.
#[derive(Clone, Copy)]
pub struct Kind {
    pub shown: &'static str,
    pub hint: &'static str,
    pub varargs: bool,
}
pub const fn kind(shown: &'static str, hint: &'static str) -> Kind {
    Kind { shown, hint, varargs: false }
}
pub const TENSOR: Kind = kind("Tensor", "Tensor");
pub const TENSOR_OR_NUMBER: Kind = kind("Tensor", "Tensor | Number");
pub const OPTIONAL_TENSOR: Kind = kind("Tensor", "Tensor | None");
/// Why a value is not taken.
pub enum Refused {
    /// Another type: the next overload is tried, or the error says what was expected.
    Type,
    /// Element `.0` is of another type, `.1`.
    Element(usize, String),
    /// A subclass of Tensor that may want to intercept.
    Special,
    /// The right type, but no good value.
    Error(Box<Error>),
}
impl From<Box<Error>> for Refused {
    fn from(e: Box<Error>) -> Self {
        Refused::Error(e)
    }
}
impl From<PyErr> for Refused {
    fn from(e: PyErr) -> Self {
        Refused::Error(e.into())
    }
}
pub trait FromArg<'py>: Sized {
    const KIND: Kind;
    fn from_arg(v: Values<'py>) -> Result<Self, Refused>;
}

/// A tensor lent by its wrapper, or (if `NUMBER`) a Python number made into a 0-d tensor that weighs less in promotion.
pub enum TensorArg<'py, const NUMBER: bool> {
    Lent(&'py Tensor),
    Number(Tensor),
}
impl<const NUMBER: bool> std::ops::Deref for TensorArg<'_, NUMBER> {
    type Target = Tensor;
    #[inline]
    fn deref(&self) -> &Tensor {
        match self {
            Self::Lent(t) => t,
            Self::Number(t) => t,
        }
    }
}
impl<'py, const NUMBER: bool> FromArg<'py> for TensorArg<'py, NUMBER> {
    const KIND: Kind = if NUMBER { TENSOR_OR_NUMBER } else { TENSOR };
    #[inline]
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        match v.tensor() {
            Look::Plain(t) => Ok(Self::Lent(t)),
            Look::Special => Err(Refused::Special),
            Look::Other if NUMBER => operand(v.one()).map(Self::Number),
            Look::Other => Err(Refused::Type),
        }
    }
}
fn operand(v: Borrowed<'_, '_, PyAny>) -> Result<Tensor, Refused> {
    match scalar(v)? {
        Some(s) => Ok(ops::number(s)?),
        None => Err(Refused::Type),
    }
}
/// A Python or numpy number; None if it is something else.
pub fn scalar(v: Borrowed<'_, '_, PyAny>) -> Result<Option<Scalar>, Refused> {
    if let Ok(f) = v.cast::<PyFloat>() {
        return Ok(Some(Scalar::Float(f.value())));
    }
    if let Ok(b) = v.cast::<PyBool>() {
        return Ok(Some(Scalar::Bool(b.is_true())));
    }
    if v.is_instance_of::<PyInt>() {
        return int_of(v).map(|i| Some(Scalar::Int(i)));
    }
    numpy_scalar(v)
}
fn int_of(v: Borrowed<'_, '_, PyAny>) -> Result<i64, Refused> {
    v.extract::<i64>()
        .map_err(|_| Refused::Error(err!(Runtime, "Overflow when unpacking long long: {} does not fit into 64 bits", v.to_owned())))
}
/// numpy's scalars are known by the name of their class, so that numpy is never imported.
#[cold]
fn numpy_scalar(v: Borrowed<'_, '_, PyAny>) -> Result<Option<Scalar>, Refused> {
    let name = v.get_type().fully_qualified_name()?;
    let Some(name) = name.to_str()?.strip_prefix("numpy.").map(str::to_owned) else { return Ok(None) };
    Ok(match &*name {
        "bool" | "bool_" => Some(Scalar::Bool(v.is_truthy()?)),
        n if n.starts_with("int") || n.starts_with("uint") || matches!(n, "longlong" | "ulonglong") => {
            Some(Scalar::Int(v.call_method0(pyo3::intern!(v.py(), "__index__"))?.extract()?))
        }
        n if n.starts_with("float") || n == "longdouble" => {
            Some(Scalar::Float(v.call_method0(pyo3::intern!(v.py(), "__float__"))?.extract()?))
        }
        _ => None,
    })
}
/// An integer: `int` (not `bool`), a numpy integer, a 0-d integer tensor.
#[inline]
fn integer(v: Borrowed<'_, '_, PyAny>) -> Result<i64, Refused> {
    if let Some(Scalar::Int(i)) = exact_number(v) {
        return Ok(i);
    }
    integer_like(v)
}
#[cold]
fn integer_like(v: Borrowed<'_, '_, PyAny>) -> Result<i64, Refused> {
    if v.is_instance_of::<PyInt>() {
        return if v.is_instance_of::<PyBool>() { Err(Refused::Type) } else { int_of(v) };
    }
    if let Ok(t) = v.cast::<super::PyTensor>() {
        let t = t.get().tensor();
        return match t.look(|a| (a.numel() == 1 && a.ndim() == 0 && !a.dtype.is_float()).then(|| a.item())) {
            Some(s) => Ok(s.to_i64()),
            None => Err(Refused::Type),
        };
    }
    match numpy_scalar(v)? {
        Some(Scalar::Int(i)) => Ok(i),
        _ => Err(Refused::Type),
    }
}
/// A list or tuple of integers; None if it is neither.
fn integers(v: Borrowed<'_, '_, PyAny>) -> Option<Result<SmallVec<[i64; 4]>, Refused>> {
    let each = |(i, x): (usize, Bound<'_, PyAny>)| integer(x.as_borrowed()).map_err(|e| at(e, i, &x));
    if let Ok(t) = v.cast::<PyTuple>() {
        Some(t.iter().enumerate().map(each).collect())
    } else if let Ok(l) = v.cast::<PyList>() {
        Some(l.iter().enumerate().map(each).collect())
    } else {
        None
    }
}
fn at(e: Refused, i: usize, x: &Bound<'_, PyAny>) -> Refused {
    match e {
        Refused::Type => Refused::Element(i, x.get_type().name().map_or("?".into(), |n| n.to_string())),
        e => e,
    }
}
impl<'py> FromArg<'py> for bool {
    const KIND: Kind = kind("bool", "bool");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        let v = v.one();
        if let Ok(b) = v.cast::<PyBool>() {
            return Ok(b.is_true());
        }
        match numpy_scalar(v)? {
            Some(Scalar::Bool(b)) => Ok(b),
            _ => Err(Refused::Type),
        }
    }
}
impl<'py> FromArg<'py> for i64 {
    const KIND: Kind = kind("int", "int");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        integer(v.one())
    }
}
impl<'py> FromArg<'py> for Scalar {
    const KIND: Kind = kind("Number", "Number");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        let strict = v.how().strict;
        let v = v.one();
        if let Some(s) = scalar(v)? {
            return Ok(s);
        }
        // A 0-d tensor that takes no part in autograd stands for its number, as in torch.
        if !strict && let Ok(t) = v.cast::<super::PyTensor>() {
            let t = t.get().tensor();
            if t.ndim() == 0 && !t.requires_grad() {
                return Ok(t.item());
            }
        }
        Err(Refused::Type)
    }
}
impl<'py> FromArg<'py> for f64 {
    const KIND: Kind = kind("float", "float");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        Scalar::from_arg(v).map(Scalar::to_f64)
    }
}
impl<'py> FromArg<'py> for Ints {
    const KIND: Kind = kind("tuple of ints", "int | Sequence[int]");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        let v = v.one();
        match integers(v) {
            Some(r) => r.map(Ints),
            None => integer(v).map(|i| Ints(SmallVec::from_slice(&[i]))),
        }
    }
}
impl<'py> FromArg<'py> for Sizes {
    const KIND: Kind = Kind { shown: "tuple of ints", hint: "int | Sequence[int]", varargs: true };
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        if v.len() == 1
            && let Some(s) = integers(v.one())
        {
            return s.map(Sizes);
        }
        if v.len() == 1 {
            return integer(v.one()).map(|i| Sizes(SmallVec::from_slice(&[i])));
        }
        let mut sizes = SmallVec::new();
        for (i, x) in v.iter().enumerate() {
            sizes.push(integer(x).map_err(|e| at(e, i, &x.to_owned()))?);
        }
        Ok(Sizes(sizes))
    }
}
impl<'py> FromArg<'py> for DType {
    const KIND: Kind = kind("torch.dtype", "dtype");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        let v = v.one();
        if let Ok(d) = v.cast::<PyDType>() {
            return Ok(d.get().0);
        }
        // Python's own types, as torch takes them.
        let py = v.py();
        if v.is(py.get_type::<PyFloat>()) {
            Ok(DType::Float64)
        } else if v.is(py.get_type::<PyInt>()) {
            Ok(DType::Int64)
        } else if v.is(py.get_type::<PyBool>()) {
            Ok(DType::Bool)
        } else {
            Err(Refused::Type)
        }
    }
}
impl<'py> FromArg<'py> for String {
    const KIND: Kind = kind("str", "str");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        let v = v.one();
        if let Ok(s) = v.cast::<PyString>() {
            Ok(s.to_str()?.to_owned())
        } else if let Ok(f) = v.cast::<PyMemoryFormat>() {
            Ok(f.get().0.to_owned())
        } else if let Ok(l) = v.cast::<PyLayout>() {
            Ok(l.get().0.to_owned())
        } else {
            Err(Refused::Type)
        }
    }
}
impl<'py> FromArg<'py> for PyDevice {
    const KIND: Kind = kind("torch.device", "device | str | int");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        PyDevice::of(v.one()).ok_or(Refused::Type)?.map_err(Refused::Error)
    }
}
impl<'py> FromArg<'py> for Cpu {
    const KIND: Kind = PyDevice::KIND;
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        PyDevice::from_arg(v)?.check()?;
        Ok(Cpu)
    }
}
impl<'py> FromArg<'py> for Strided {
    const KIND: Kind = kind("torch.layout", "layout");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        match v.one().cast::<PyLayout>() {
            Ok(l) if l.get().0 == "strided" => Ok(Strided),
            Ok(l) => Err(Refused::Error(err!(Runtime, "layout torch.{} is not supported, only torch.strided", l.get().0))),
            Err(_) => Err(Refused::Type),
        }
    }
}
impl<'py, T: FromArg<'py>> FromArg<'py> for Option<T> {
    const KIND: Kind = T::KIND;
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        if v.len() == 1 && v.one().is_none() { Ok(None) } else { T::from_arg(v).map(Some) }
    }
}
/// A list or tuple whose elements are of one kind.
fn list<'py, T>(v: Values<'py>, f: impl Fn(Values<'_>) -> Result<T, Refused>) -> Result<Vec<T>, Refused> {
    let o = v.one();
    let each = |(i, x): (usize, Bound<'_, PyAny>)| Values::with_one(&x, v.how(), |v| f(v)).map_err(|e| at(e, i, &x));
    if let Ok(t) = o.cast::<PyTuple>() {
        t.iter().enumerate().map(each).collect()
    } else if let Ok(l) = o.cast::<PyList>() {
        l.iter().enumerate().map(each).collect()
    } else {
        Err(Refused::Type)
    }
}
/// A tensor of its own, for `out=` and the like.
impl<'py> FromArg<'py> for Tensor {
    const KIND: Kind = TENSOR;
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        TensorArg::<false>::from_arg(v).map(|t| t.clone())
    }
}
impl<'py> FromArg<'py> for Operands {
    const KIND: Kind = Kind { shown: "tuple of Tensors", hint: "Tensor | Sequence[Tensor]", varargs: true };
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        if v.len() == 1 && !matches!(v.tensor(), Look::Plain(_) | Look::Special) {
            return Vec::from_arg(v).map(Operands);
        }
        let each =
            |(i, x): (usize, Borrowed<'py, 'py, PyAny>)| Values::with_one(&x, v.how(), |v| Tensor::from_arg(v)).map_err(|e| at(e, i, &x));
        v.iter().enumerate().map(each).collect::<Result<_, _>>().map(Operands)
    }
}
impl<'py> FromArg<'py> for Vec<Tensor> {
    const KIND: Kind = kind("tuple of Tensors", "Sequence[Tensor]");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        list(v, |v| TensorArg::<false>::from_arg(v).map(|t| t.clone()))
    }
}
impl<'py> FromArg<'py> for Vec<Option<Tensor>> {
    const KIND: Kind = kind("tuple of Tensors", "Sequence[Tensor | None]");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        list(v, |v| Option::<TensorArg<false>>::from_arg(v).map(|t| t.as_deref().cloned()))
    }
}
impl<'py> FromArg<'py> for Vec<f64> {
    const KIND: Kind = kind("tuple of floats", "Sequence[float]");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        list(v, |v| f64::from_arg(v))
    }
}
impl<'py> FromArg<'py> for Vec<bool> {
    const KIND: Kind = kind("tuple of bools", "Sequence[bool]");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        list(v, |v| bool::from_arg(v))
    }
}
/// Lengths or strides that an op takes as they are, none negative.
impl<'py> FromArg<'py> for Dims {
    const KIND: Kind = kind("tuple of ints", "Sequence[int]");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        let Some(s) = integers(v.one()) else { return Err(Refused::Type) };
        s?.into_iter().map(|i| usize::try_from(i).map_err(|_| Refused::Error(err!(Runtime, "negative length or stride {i}")))).collect()
    }
}
impl<'py> FromArg<'py> for Geometry {
    const KIND: Kind = kind("layout", "tuple[Sequence[int], Sequence[int], int]");
    /// (size, stride, storage_offset)
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        let Ok((shape, strides, offset)) = v.one().extract::<(Vec<usize>, Vec<usize>, usize)>() else { return Err(Refused::Type) };
        Ok(Geometry { shape: Dims::of(&shape), strides: Dims::of(&strides), offset })
    }
}
impl<'py> FromArg<'py> for Py<PyAny> {
    const KIND: Kind = kind("object", "object");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        Ok(v.one().to_owned().unbind())
    }
}
impl<'py> FromArg<'py> for Contract {
    const KIND: Kind = kind("int or tuple of two lists of ints", "int | Sequence[int | Sequence[int]]");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        if let Ok(n) = i64::from_arg(v) {
            return Ok(Contract::Count(n));
        }
        let mut pair = list(v, |v| Ints::from_arg(v))?;
        let (Some(b), Some(a), true) = (pair.pop(), pair.pop(), pair.is_empty()) else { return Err(Refused::Type) };
        Ok(Contract::Pairs(a, b))
    }
}
impl<'py> FromArg<'py> for Order {
    const KIND: Kind = kind("Number or str", "Number | str");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        Scalar::from_arg(v).map(Order::Number).or_else(|_| String::from_arg(v).map(Order::Named))
    }
}
