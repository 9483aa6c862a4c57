//! `x[..]`, read and write, as torch has it: what stands between the brackets becomes a chain of views (`select`, `slice`, `unsqueeze`) and,
//! where index tensors are among it, one `index` or `index_put_` on the last of them. And what a tensor answers as a container and as a
//! number: `len`, iteration, `in`, `bool`, `int`, `float`.
//!
//! Invariant: the plan is made before anything runs, so that a wrong index changes nothing.
use super::call::{Style, by_name, exact_number, plain_tensor, tensor_of, type_name, unpack_slice};
use super::convert::ndarray;
use super::literal::array_of;
use super::ret::number;
use super::{PyTensor, special, wrap};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, bail, err};
use crate::kernels::pointwise;
use crate::kernels::reduce::{self, Axes};
use crate::layout::Dims;
use crate::ops::{self, Sizes};
use crate::tape::{Tensor, mode};
use pyo3::exceptions::{PyDeprecationWarning, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyEllipsis, PyInt, PyList, PySlice, PyString, PyTuple};
use smallvec::SmallVec;

type Any<'py> = Bound<'py, PyAny>;
/// One thing between the brackets.
enum Place {
    Int(i64),
    /// start, stop, step
    Slice(i64, i64, i64),
    Ellipsis,
    NewAxis,
    Bool(bool),
    Tensor(Tensor),
}
type Places = SmallVec<[Place; 4]>;
type Indices = Vec<Option<Tensor>>;

fn place(v: &Any<'_>) -> Result<Place> {
    if let Some(Scalar::Int(i)) = exact_number(v.as_borrowed()) {
        return Ok(Place::Int(i));
    }
    if let Ok(s) = v.cast::<PySlice>() {
        let (start, stop, step) = unpack_slice(s)?;
        if step <= 0 {
            bail!(Value, "step must be greater than zero, not {step}");
        }
        return Ok(Place::Slice(start, stop, step));
    }
    if v.is_none() {
        return Ok(Place::NewAxis);
    }
    if v.is(PyEllipsis::get(v.py())) {
        return Ok(Place::Ellipsis);
    }
    if let Some(t) = tensor_of(v.as_borrowed()) {
        return Ok(by_tensor(t.clone()));
    }
    if let Ok(b) = v.cast::<PyBool>() {
        return Ok(Place::Bool(b.is_true()));
    }
    if v.is_instance_of::<PyInt>() {
        return Ok(Place::Int(v.extract::<i64>().map_err(|_| err!(Value, "Overflow when unpacking long long: index {v}"))?));
    }
    if v.is_instance_of::<PyString>() || v.is_instance_of::<PyBytes>() {
        bail!(Type, "new(): invalid data type '{}' as an index", type_name(v.as_borrowed()));
    }
    if is_sequence(v) {
        let a = array_of(v, None)?;
        let a = if matches!(a.dtype, DType::Bool | DType::UInt8) { a } else { pointwise::cast(&a, DType::Int64)? };
        return Ok(by_tensor(Tensor::new(a)));
    }
    if v.hasattr(intern!(v.py(), "__index__"))? {
        return Ok(Place::Int(v.call_method0(intern!(v.py(), "__index__"))?.extract()?));
    }
    bail!(
        Index,
        "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are valid indices (got {})",
        type_name(v.as_borrowed())
    )
}
fn is_sequence(v: &Any<'_>) -> bool {
    v.is_instance_of::<PyList>() || v.is_instance_of::<PyTuple>() || ndarray(v).is_some() || v.is_instance_of::<pyo3::types::PyRange>() || {
        v.cast::<pyo3::types::PySequence>().is_ok()
    }
}
/// A 0-d index tensor stands for its number.
fn by_tensor(t: Tensor) -> Place {
    match t.look(|a| (a.ndim() == 0 && !a.dtype.is_float()).then(|| (a.dtype, a.item()))) {
        Some((DType::Bool | DType::UInt8, s)) => Place::Bool(!s.is_zero()),
        Some((_, s)) => Place::Int(s.to_i64()),
        None => Place::Tensor(t),
    }
}
/// What stands between the brackets, as a list; and whether it was one thing alone.
fn places(idx: &Any<'_>) -> Result<(Places, bool)> {
    if let Ok(t) = idx.cast::<PyTuple>() {
        return Ok((t.iter().map(|v| place(&v)).collect::<Result<_>>()?, false));
    }
    if let Ok(l) = idx.cast::<PyList>() {
        let tuple_like = |v: &Any<'_>| {
            v.is_none() || v.is_instance_of::<PySlice>() || v.is(PyEllipsis::get(v.py())) || v.is_instance_of::<PyTensor>() || {
                v.is_instance_of::<PyList>() || v.is_instance_of::<PyTuple>()
            }
        };
        if l.len() < 32 && l.iter().any(|v| tuple_like(&v)) {
            let py = idx.py();
            let text = c"Using a non-tuple sequence for multidimensional indexing is deprecated; use x[tuple(seq)] instead of x[seq], or x[torch.tensor(seq)] to index with its elements";
            PyErr::warn(py, &py.get_type::<PyDeprecationWarning>(), text, 1)?;
            return Ok((l.iter().map(|v| place(&v)).collect::<Result<_>>()?, false));
        }
    }
    Ok((SmallVec::from_iter([place(idx)?]), true))
}
/// The views that the places ask for (None: `t` itself), and the index tensors, by dimension of that view; a mask counts as one dimension.
fn walk(t: &Tensor, places: Places, alone: bool) -> Result<(Option<Tensor>, Indices)> {
    let ndim = t.ndim();
    let given = |p: &Place| match p {
        Place::Int(_) | Place::Slice(..) => 1,
        Place::Tensor(t) if matches!(t.dtype(), DType::Bool | DType::UInt8) => t.ndim(),
        Place::Tensor(_) => 1,
        _ => 0,
    };
    let specified: usize = places.iter().map(given).sum();
    if specified > ndim {
        match places[..] {
            [Place::Int(_)] if ndim == 0 => bail!(
                Index,
                "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to convert a 0-dim tensor to a number"
            ),
            [Place::Slice(..)] if ndim == 0 => bail!(Index, "slice() cannot be applied to a 0-dim tensor."),
            _ => bail!(Index, "too many indices for tensor of dimension {ndim}"),
        }
    }
    let mut at: Option<Tensor> = None;
    // The dimension of the view that is reached, that of `t`, and how many masks took beyond one each.
    let (mut dim, mut seen, mut masked) = (0usize, 0usize, 0usize);
    let mut indices: Indices = Vec::new();
    let mut put = |dim: usize, i: Tensor| {
        indices.resize(dim, None);
        indices.push(Some(i));
    };
    for p in places {
        let now = at.as_ref().unwrap_or(t);
        match p {
            Place::Int(i) => {
                at = Some(select(now, dim, i, seen)?);
                seen += 1;
            }
            Place::Slice(start, stop, step) => {
                let n = now.look(|a| a.shape[dim]) as i64;
                // A whole dimension needs no view, unless it is all there is between the brackets.
                if alone || start != 0 || step != 1 || stop < n {
                    at = Some(ops::slice(now, dim as i64, Some(start), Some(stop), step)?);
                }
                dim += 1;
                seen += 1;
            }
            Place::Ellipsis => {
                dim += ndim - specified;
                seen += ndim - specified;
            }
            Place::NewAxis => {
                at = Some(ops::unsqueeze(now, dim as i64)?);
                dim += 1;
            }
            Place::Bool(b) => {
                at = Some(ops::unsqueeze(now, dim as i64)?);
                let which: &[i64] = if b { &[0] } else { &[] };
                put(dim - masked, Tensor::new(Array::from_slice(&[which.len()], which)?));
                dim += 1;
            }
            Place::Tensor(i) => {
                let taken = if matches!(i.dtype(), DType::Bool | DType::UInt8) { i.ndim() } else { 1 };
                put(dim - masked, i);
                dim += taken;
                seen += taken;
                masked += taken - 1;
            }
        }
    }
    Ok((at, indices))
}
#[inline]
fn select(t: &Tensor, dim: usize, i: i64, shown: usize) -> Result<Tensor> {
    let n = t.look(|a| a.shape[dim]) as i64;
    if !(-n..n).contains(&i) {
        bail!(Index, "index {i} is out of bounds for dimension {shown} with size {n}");
    }
    ops::select(t, dim as i64, i)
}
/// `x[idx]` of a plain tensor.
fn get(t: &Tensor, idx: &Any<'_>) -> Result<Tensor> {
    if let Some(Scalar::Int(i)) = exact_number(idx.as_borrowed())
        && t.ndim() > 0
    {
        return select(t, 0, i, 0);
    }
    let (places, alone) = places(idx)?;
    let (at, indices) = walk(t, places, alone)?;
    match (at, indices.is_empty()) {
        (Some(v), true) => Ok(v),
        (None, true) => ops::alias(t),
        (at, false) => ops::index(at.as_ref().unwrap_or(t), indices),
    }
}
/// The tensor that is assigned: a tensor, or a number as one of `like`'s dtype.
fn value(like: &Tensor, v: &Any<'_>) -> Result<Tensor> {
    if let Some(t) = tensor_of(v.as_borrowed()) {
        return Ok(t.clone());
    }
    match super::arg::scalar(v.as_borrowed()) {
        Ok(Some(s)) => Ok(Tensor::new(Array::scalar(s, like.dtype())?)),
        Err(super::arg::Refused::Error(_)) => bail!(Value, "Overflow when unpacking long long: {v}"),
        _ => bail!(
            Type,
            "can't assign a {} to a torch.{}Tensor",
            v.get_type().fully_qualified_name()?.to_str()?.trim_start_matches("builtins."),
            like.dtype().torch_name()
        ),
    }
}
/// The shape without the ones it begins with.
fn without_leading_ones(s: Dims) -> Sizes {
    let skip = s.iter().take_while(|n| **n == 1).count();
    Sizes::of(&s[skip..])
}
/// Writes `v`, broadcast, into `to`.
fn write(to: &Tensor, v: &Tensor) -> Result<()> {
    let (shape, from) = (to.shape(), v.shape());
    if shape != from && from.is_empty() {
        ops::fill_tensor_(to, v)?;
        return Ok(());
    }
    let v = if shape == from { v.clone() } else { ops::expand(&ops::view(v, without_leading_ones(from))?, Sizes::of(&shape))? };
    ops::copy_(to, &v, false)?;
    Ok(())
}
/// `x[idx] = v` of a plain tensor.
fn set(t: &Tensor, idx: &Any<'_>, v: &Any<'_>) -> Result<()> {
    let (places, alone) = match exact_number(idx.as_borrowed()) {
        Some(Scalar::Int(i)) => (SmallVec::from_iter([Place::Int(i)]), true),
        _ => places(idx)?,
    };
    let v = value(t, v)?;
    // `x[False] = v` writes nothing.
    if let [Place::Bool(false)] = places[..] {
        return Ok(());
    }
    let (at, indices) = walk(t, places, alone)?;
    let to = at.as_ref().unwrap_or(t);
    if indices.is_empty() {
        return write(to, &v);
    }
    let v = if v.ndim() > 0 && v.shape()[0] == 1 { ops::view(&v, without_leading_ones(v.shape()))? } else { v };
    ops::index_put_(to, indices, &v, false)?;
    Ok(())
}
/// The value of a tensor of one element.
fn only(t: &Tensor) -> PyResult<Scalar> {
    if mode::dispatching() && t.numel() == 1 {
        return Ok(super::literal::item(t)?);
    }
    t.look(|a| (a.numel() == 1).then(|| a.item())).ok_or_else(|| {
        PyValueError::new_err(format!("only one element tensors can be converted to Python scalars, this one has shape {:?}", t.shape()))
    })
}
#[pymethods]
impl PyTensor {
    fn __getitem__<'py>(slf: &Bound<'py, Self>, idx: &Any<'py>) -> PyResult<Any<'py>> {
        match plain_tensor(slf.as_any().as_borrowed()) {
            Some(t) => Ok(wrap(slf.py(), get(t, idx)?)?.into_any()),
            None => special::through("__getitem__", &[slf.as_any(), idx], || Ok(wrap(slf.py(), get(slf.get().tensor(), idx)?)?.into_any())),
        }
    }
    fn __setitem__<'py>(slf: &Bound<'py, Self>, idx: &Any<'py>, v: &Any<'py>) -> PyResult<()> {
        match plain_tensor(slf.as_any().as_borrowed()) {
            Some(t) => Ok(set(t, idx, v)?),
            None => special::through("__setitem__", &[slf.as_any(), idx, v], || {
                set(slf.get().tensor(), idx, v)?;
                Ok(slf.py().None().into_bound(slf.py()))
            })
            .map(|_| ()),
        }
    }
    fn __delitem__(&self, _idx: &Any<'_>) -> PyResult<()> {
        Err(PyTypeError::new_err("Tensor does not support deleting items"))
    }
    fn __len__(&self) -> PyResult<usize> {
        self.tensor().look(|a| a.shape.first().copied()).ok_or_else(|| PyTypeError::new_err("len() of a 0-d tensor"))
    }
    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Any<'py>> {
        if slf.get().tensor().ndim() == 0 {
            return Err(PyTypeError::new_err("iteration over a 0-d tensor"));
        }
        let rows = by_name("unbind", Style::Method, &[slf.as_any()])?;
        Ok(rows.try_iter()?.into_any())
    }
    fn __contains__(&self, v: &Any<'_>) -> PyResult<bool> {
        let x = match (tensor_of(v.as_borrowed()), super::arg::scalar(v.as_borrowed())) {
            (Some(x), _) => x.clone(),
            (None, Ok(Some(s))) => ops::number(s)?,
            _ => {
                return Err(PyRuntimeError::new_err(format!(
                    "Tensor.__contains__ only supports Tensor or scalar, but you passed in a {}.",
                    v.get_type()
                )));
            }
        };
        let same = ops::eq(self.tensor(), &x)?;
        Ok(!reduce::any(&same.array(), Axes::All, false)?.item().is_zero())
    }
    fn __bool__(&self) -> PyResult<bool> {
        let t = self.tensor();
        if mode::dispatching() && t.numel() == 1 {
            return Ok(!only(t)?.is_zero());
        }
        match t.look(|a| if a.numel() == 1 { Ok(a.item()) } else { Err(a.numel()) }) {
            Ok(s) => Ok(!s.is_zero()),
            Err(0) => Err(PyRuntimeError::new_err("Boolean value of Tensor with no values is ambiguous")),
            Err(_) => Err(PyRuntimeError::new_err("Boolean value of Tensor with more than one value is ambiguous")),
        }
    }
    fn __int__<'py>(&self, py: Python<'py>) -> PyResult<Any<'py>> {
        match only(self.tensor())? {
            // Python's own conversion: any size, and its errors for inf and NaN.
            Scalar::Float(f) => py.get_type::<PyInt>().call1((f,)),
            s => number(py, Scalar::Int(s.to_i64())),
        }
    }
    fn __float__(&self) -> PyResult<f64> {
        Ok(only(self.tensor())?.to_f64())
    }
    fn __complex__<'py>(&self, py: Python<'py>) -> PyResult<Any<'py>> {
        Ok(pyo3::types::PyComplex::from_doubles(py, only(self.tensor())?.to_f64(), 0.0).into_any())
    }
    fn __index__(&self) -> PyResult<i64> {
        match self.tensor().look(|a| (a.numel() == 1 && !a.dtype.is_float()).then(|| a.item())) {
            Some(s) => Ok(s.to_i64()),
            None => Err(PyTypeError::new_err("only integer tensors of a single element can be converted to an index")),
        }
    }
    fn __format__<'py>(slf: &Bound<'py, Self>, spec: &str) -> PyResult<Any<'py>> {
        let t = slf.get().tensor();
        let py = slf.py();
        if t.ndim() == 0 && slf.is_exact_instance_of::<PyTensor>() {
            return number(py, t.item())?.call_method1(intern!(py, "__format__"), (spec,));
        }
        if spec.is_empty() {
            return Ok(slf.str()?.into_any());
        }
        Err(PyTypeError::new_err("unsupported format string passed to Tensor.__format__"))
    }
}
