//! What an op may return to Python, and how each kind of result becomes an object.
use super::dtype::PyDType;
use super::entry::Entry;
use super::named::named;
use super::size::new_size;
use crate::dtype::{DType, Scalar};
use crate::layout::Dims;
use crate::ops::{Found, Ints, Sizes, Tensors};
use crate::tape::Tensor;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

pub enum Ret {
    None,
    Tensor(Tensor),
    /// Several outputs: a tuple, or a named one where the entry says so.
    Tuple(Vec<Ret>),
    Number(Scalar),
    DType(DType),
    Size(SmallVec<[i64; 4]>),
    Text(String),
    Object(Py<PyAny>),
}
macro_rules! rets { ($($t:ty, $v:ident => $e:expr;)*) => { $(impl From<$t> for Ret { #[inline] fn from($v: $t) -> Ret { $e } })* } }
rets! {
    (), _v => Ret::None;
    Tensor, t => Ret::Tensor(t);
    Tensors, v => Ret::Tuple(v.into_iter().map(Ret::Tensor).collect());
    Vec<Tensor>, v => Ret::Tuple(v.into_iter().map(Ret::Tensor).collect());
    (Tensor, Tensor), v => Ret::Tuple(vec![Ret::Tensor(v.0), Ret::Tensor(v.1)]);
    (Tensor, Tensor, Tensor), v => Ret::Tuple(vec![Ret::Tensor(v.0), Ret::Tensor(v.1), Ret::Tensor(v.2)]);
    Found, f => match f { Found::One(t) => t.into(), Found::Many(v) => v.into() };
    bool, b => Ret::Number(Scalar::Bool(b));
    i64, i => Ret::Number(Scalar::Int(i));
    usize, i => Ret::Number(Scalar::Int(i as i64));
    f64, f => Ret::Number(Scalar::Float(f));
    Scalar, s => Ret::Number(s);
    DType, d => Ret::DType(d);
    Sizes, s => Ret::Size(s.0);
    Ints, s => Ret::Tuple(s.0.into_iter().map(|i| Ret::Number(Scalar::Int(i))).collect());
    Dims, s => Ret::Size(s.iter().map(|&v| v as i64).collect());
    String, s => Ret::Text(s);
    &'static str, s => Ret::Text(s.to_owned());
    Py<PyAny>, o => Ret::Object(o);
}
impl<T: Into<Ret>> From<Option<T>> for Ret {
    fn from(v: Option<T>) -> Ret {
        v.map_or(Ret::None, T::into)
    }
}
/// How a tensor becomes an object.
pub type Wrap<'a, 'py> = &'a dyn Fn(Tensor) -> PyResult<Bound<'py, PyAny>>;
impl Ret {
    pub fn wrap<'py>(self, py: Python<'py>, e: &'static Entry, each: Wrap<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Ret::Tensor(t) => each(t)?,
            Ret::None => py.None().into_bound(py),
            Ret::Tuple(v) => {
                let items = v.into_iter().map(|r| r.wrap(py, e, each)).collect::<PyResult<Vec<_>>>()?;
                match e.named {
                    Some(name) => named(py, name, e, items)?,
                    None => PyTuple::new(py, items)?.into_any(),
                }
            }
            Ret::Number(s) => number(py, s)?,
            Ret::DType(d) => PyDType::get(py, d).into_any(),
            Ret::Size(s) => new_size(py, s.len(), |i| s[i])?,
            Ret::Text(s) => s.into_bound_py_any(py)?,
            Ret::Object(o) => o.into_bound(py),
        })
    }
}
pub fn number(py: Python<'_>, s: Scalar) -> PyResult<Bound<'_, PyAny>> {
    match s {
        Scalar::Bool(b) => b.into_bound_py_any(py),
        Scalar::Int(i) => i.into_bound_py_any(py),
        Scalar::Float(f) => f.into_bound_py_any(py),
    }
}
