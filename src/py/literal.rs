//! Python data as tensors and tensors as Python data: nested sequences of numbers, arrays, other tensors; `item`, `tolist`.
use super::PyTensor;
use super::arg::{Refused, scalar};
use super::call::{tensor_of, type_name};
use super::convert::{as_ndarray, dtype_of_scalar, lent_array, ndarray, warn};
use super::dtype::PyDevice;
use crate::array::{Array, Fresh};
use crate::dtype::{DType, Element, Scalar, default_dtype, for_dtype, join};
use crate::error::{Result, bail, err};
use crate::kernels::pointwise;
use crate::layout::{Dims, given_size};
use crate::ops;
use crate::ops::macros::function;
use crate::tape::Tensor;
use ::numpy::PyUntypedArrayMethods;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PySequence, PyString, PyTuple};
use smallvec::SmallVec;

/// The elements of nested sequences in row-major order, and what type they would have together.
#[derive(Default)]
struct Elements {
    values: Vec<Scalar>,
    dtype: Option<DType>,
    /// An int beyond 64 bits: good only for a floating point dtype.
    huge: bool,
}
fn no_type(v: &Bound<'_, PyAny>) -> Box<crate::error::Error> {
    err!(Runtime, "Could not infer dtype of {}", type_name(v.as_borrowed()))
}
/// The lengths that the first elements, all the way down, ask for.
fn shape_of(data: &Bound<'_, PyAny>) -> Result<SmallVec<[usize; 4]>> {
    let mut shape = SmallVec::new();
    let mut at = data.clone();
    loop {
        if let Some(a) = ndarray(&at) {
            shape.extend_from_slice(a.shape());
            return Ok(shape);
        }
        if at.is_exact_instance_of::<PyFloat>() || at.is_exact_instance_of::<PyInt>() || at.is_instance_of::<PyTensor>() {
            return Ok(shape);
        }
        let Ok(seq) = at.cast::<PySequence>() else { return Ok(shape) };
        let n = seq.len()?;
        shape.push(n);
        if shape.len() > crate::layout::MAX_DIMS {
            bail!(Value, "too many dimensions '{}'", type_name(at.as_borrowed()));
        }
        if n == 0 {
            return Ok(shape);
        }
        at = seq.get_item(0)?;
    }
}
impl Elements {
    fn meet(&mut self, d: DType) {
        if self.dtype != Some(d) {
            self.dtype = Some(self.dtype.map_or(d, |x| join(x, d)));
        }
    }
    #[inline]
    fn push(&mut self, v: Scalar, d: DType) {
        self.values.push(v);
        self.meet(d);
    }
    /// Takes in `v`, which must have the lengths `shape[depth..]`.
    fn fill(&mut self, v: &Bound<'_, PyAny>, shape: &[usize], depth: usize) -> Result<()> {
        if depth == shape.len() {
            return self.leaf(v);
        }
        let check = |n: usize| -> Result<()> {
            if n != shape[depth] {
                bail!(Value, "expected sequence of length {} at dim {depth} (got {n})", shape[depth]);
            }
            Ok(())
        };
        if let Ok(l) = v.cast::<PyList>() {
            check(l.len())?;
            return l.iter().try_for_each(|x| self.fill(&x, shape, depth + 1));
        }
        if let Ok(t) = v.cast::<PyTuple>() {
            check(t.len())?;
            return t.iter_borrowed().try_for_each(|x| self.fill(&x, shape, depth + 1));
        }
        if let Some(a) = ndarray(v) {
            let a = lent_array(a)?;
            if a.shape[..] != shape[depth..] {
                let d = (0..a.ndim().min(shape.len() - depth)).find(|&i| a.shape[i] != shape[depth + i]).unwrap_or(0);
                bail!(
                    Value,
                    "expected sequence of length {} at dim {} (got {}): the arrays in a sequence must have one shape",
                    shape[depth + d],
                    depth + d,
                    a.shape.get(d).copied().unwrap_or(0)
                );
            }
            for_dtype!(a.dtype, T => a.for_each_offset(|at| self.values.push(a.read::<T>(at, 1)[0].scalar())));
            self.meet(a.dtype);
            return Ok(());
        }
        match v.cast::<PySequence>() {
            Ok(s) if !v.is_instance_of::<PyString>() => {
                check(s.len()?)?;
                (0..shape[depth]).try_for_each(|i| self.fill(&s.get_item(i)?, shape, depth + 1))
            }
            _ if is_number(v) => {
                bail!(Type, "not a sequence: a number where a sequence of length {} was expected at dim {depth}", shape[depth])
            }
            _ => Err(self.leaf(v).err().unwrap_or_else(|| err!(Type, "not a sequence"))),
        }
    }
    #[inline]
    fn leaf(&mut self, v: &Bound<'_, PyAny>) -> Result<()> {
        if let Ok(f) = v.cast_exact::<PyFloat>() {
            self.push(Scalar::Float(f.value()), default_dtype());
        } else if v.is_exact_instance_of::<PyInt>()
            && let Ok(i) = v.extract::<i64>()
        {
            self.push(Scalar::Int(i), DType::Int64);
        } else {
            self.rare(v)?;
        }
        Ok(())
    }
    #[cold]
    fn rare(&mut self, v: &Bound<'_, PyAny>) -> Result<()> {
        if let Ok(b) = v.cast::<PyBool>() {
            self.push(Scalar::Bool(b.is_true()), DType::Bool);
        } else if v.is_exact_instance_of::<PyInt>() {
            self.huge = true;
            self.push(Scalar::Float(v.extract()?), DType::Int64);
        } else if let Some(t) = tensor_of(v.as_borrowed()) {
            if t.numel() != 1 {
                bail!(Value, "only one element tensors can be converted to Python scalars, this one has shape {:?}", t.shape());
            }
            self.push(t.item(), t.dtype());
        } else if v.is_instance_of::<PyString>() || v.is_instance_of::<PyBytes>() {
            bail!(Type, "new(): invalid data type '{}'", type_name(v.as_borrowed()));
        } else if let Some(a) = ndarray(v) {
            let a = lent_array(a)?;
            if a.ndim() != 0 {
                bail!(Type, "only 0-d arrays can stand for numbers, this one has shape {:?}", a.shape);
            }
            self.push(a.item(), a.dtype);
        } else if let Some(s) = number_of(v)? {
            let d = dtype_of_scalar(v).unwrap_or(if matches!(s, Scalar::Float(_)) { default_dtype() } else { s.dtype() });
            self.push(s, d);
        } else if v.is_instance_of::<PyList>() || v.is_instance_of::<PyTuple>() {
            bail!(
                Type,
                "'{}' object cannot be interpreted as a number: a sequence where a number was expected",
                type_name(v.as_borrowed())
            );
        } else if v.hasattr(intern!(v.py(), "__index__"))? {
            let i: i64 = v.call_method0(intern!(v.py(), "__index__"))?.extract()?;
            self.push(Scalar::Int(i), DType::Int64);
        } else {
            return Err(no_type(v));
        }
        Ok(())
    }
    fn done(self, shape: &[usize], dtype: Option<DType>) -> Result<Array> {
        let dtype = dtype.or(self.dtype).unwrap_or_else(default_dtype);
        if self.huge && !dtype.is_float() {
            bail!(Value, "Overflow when unpacking long long: an int does not fit into 64 bits");
        }
        if !dtype.is_float()
            && dtype != DType::Bool
            && let Some(v) = self.values.iter().find(|v| !fits(**v, dtype))
        {
            bail!(Runtime, "value cannot be converted to type {} without overflow: {}", dtype.name(), v.to_f64());
        }
        let mut f = Fresh::new(Dims::of(shape), dtype)?;
        for_dtype!(dtype, T => {
            for (to, v) in f.slice_mut::<T>().iter_mut().zip(&self.values) {
                *to = Element::of(*v);
            }
        });
        Ok(f.done())
    }
}
fn is_number(v: &Bound<'_, PyAny>) -> bool {
    matches!(number_of(v), Ok(Some(_)))
}
fn number_of(v: &Bound<'_, PyAny>) -> Result<Option<Scalar>> {
    match scalar(v.as_borrowed()) {
        Ok(s) => Ok(s),
        Err(Refused::Error(e)) => Err(e),
        Err(_) => Ok(None),
    }
}
/// Is the value in the range of an integer type? (Unsigned types take negative values of their magnitude, which wrap round.)
fn fits(v: Scalar, d: DType) -> bool {
    let bits = 8 * d.size() as u32;
    let (lo, hi) = if d.is_signed() { (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)) } else { (-255, 255) };
    match v {
        Scalar::Bool(_) => true,
        Scalar::Int(i) => (lo..=hi).contains(&i),
        Scalar::Float(f) => f.trunc() >= lo as f64 && f.trunc() < hi as f64 + 1.0,
    }
}
/// A new array of `data`, which is no tensor.
pub fn array_of(data: &Bound<'_, PyAny>, dtype: Option<DType>) -> Result<Array> {
    if let Some(a) = ndarray(data) {
        let a = lent_array(a)?;
        return pointwise::cast(&a, dtype.unwrap_or(a.dtype));
    }
    if !data.is_instance_of::<PyList>()
        && !data.is_instance_of::<PyTuple>()
        && !is_number(data)
        && let Some(a) = as_ndarray(data)?
    {
        let a = lent_array(&a)?;
        return pointwise::cast(&a, dtype.unwrap_or(a.dtype));
    }
    let mut e = Elements::default();
    let shape = match data.is_instance_of::<PyString>() || data.is_instance_of::<PyBytes>() {
        true => SmallVec::new(),
        false => shape_of(data)?,
    };
    if !shape.contains(&0) {
        e.values.reserve_exact(shape.iter().product::<usize>().min(1 << 28));
        e.fill(data, &shape, 0)?;
    }
    e.done(&shape, dtype)
}
pub fn leaf(a: Array, requires_grad: bool) -> Result<Tensor> {
    let t = Tensor::new(a);
    if requires_grad {
        if !t.dtype().is_float() {
            bail!(Runtime, "Only Tensors of floating point dtype can require gradients, not {}", t.dtype().name());
        }
        t.set_requires_grad(true)?;
    }
    Ok(t)
}
/// CPU, or the error that says what is missing.
pub fn on_cpu(device: &Option<PyDevice>) -> Result<()> {
    device.as_ref().map_or(Ok(()), PyDevice::check)
}
function! {
    /// A new tensor with a copy of `data`: a number, nested sequences of numbers, a numpy array, a tensor.
    /// The dtype is inferred unless given: floats give the default dtype, ints int64, bools bool. The result is a leaf.
    fn tensor(; data: Py<PyAny>; *, dtype: Option<DType> = None, device: Option<PyDevice> = None, requires_grad: bool = false, pin_memory: bool = false) -> Tensor;
    on [function];
    {
        let _ = pin_memory;
        on_cpu(&device)?;
        Python::attach(|py| {
            let data = data.bind(py);
            let Some(t) = tensor_of(data.as_borrowed()) else { return leaf(array_of(data, dtype)?, requires_grad) };
            warn(py, "To copy construct from a tensor, it is recommended to use source.detach().clone() or source.detach().clone().requires_grad_(True), rather than tensor(source).")?;
            let a = t.array();
            leaf(pointwise::cast_kept(&a, dtype.unwrap_or(a.dtype))?, requires_grad)
        })
    }
}
function! {
    /// `data` as a tensor: the same object if it is one already (of that dtype), the same memory if it is a numpy array, else a copy.
    fn as_tensor(; data: Py<PyAny>, dtype: Option<DType> = None, device: Option<PyDevice> = None) -> Tensor;
    on [function];
    {
        on_cpu(&device)?;
        Python::attach(|py| shared(data.bind(py), dtype))
    }
}
/// As `as_tensor`.
fn shared(data: &Bound<'_, PyAny>, dtype: Option<DType>) -> Result<Tensor> {
    if let Some(t) = tensor_of(data.as_borrowed()) {
        return match dtype {
            Some(d) if d != t.dtype() => ops::to_copy(t, d),
            _ => Ok(t.clone()),
        };
    }
    if let Some(a) = ndarray(data) {
        let a = lent_array(a)?;
        return Ok(Tensor::new(match dtype {
            Some(d) if d != a.dtype => pointwise::cast(&a, d)?,
            _ => a,
        }));
    }
    Ok(Tensor::new(array_of(data, dtype)?))
}
function! {
    /// `obj` as a tensor that shares its memory where that is possible, unless `copy` says otherwise.
    fn asarray(; obj: Py<PyAny>; *, dtype: Option<DType> = None, device: Option<PyDevice> = None, copy: Option<bool> = None, requires_grad: bool = false) -> Tensor;
    on [function];
    {
        on_cpu(&device)?;
        Python::attach(|py| {
            let data = obj.bind(py);
            let shares = tensor_of(data.as_borrowed()).is_some() || ndarray(data).is_some();
            let t = match shared(data, dtype)? {
                t if copy == Some(true) && shares => Tensor::new(pointwise::cast_kept(&t.array(), t.dtype())?),
                t => t,
            };
            if copy == Some(false) && !shares {
                bail!(Value, "can't alias arbitrary sequence: asarray(.., copy=False) of {}", type_name(data.as_borrowed()));
            }
            if requires_grad {
                t.set_requires_grad(true)?;
            }
            Ok(t)
        })
    }
}
/// torch's old constructor: sizes give a tensor of unspecified content, a sequence its elements, a tensor an alias; the default dtype.
pub fn legacy(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Result<Tensor> {
    for (key, value) in kwargs.into_iter().flatten() {
        match key.extract::<String>()?.as_str() {
            "device" => PyDevice::of(value.as_borrowed())
                .unwrap_or_else(|| Err(err!(Type, "Tensor(): argument 'device' must be a device")))?
                .check()?,
            "data" if args.is_empty() => return legacy(&PyTuple::new(value.py(), [value])?, None),
            k => bail!(Type, "Tensor(): unexpected keyword argument '{k}'"),
        }
    }
    let empty = |size: &[i64]| Ok(Tensor::new(Array::empty(given_size("Tensor", size)?, default_dtype())?));
    let Ok(first) = args.get_item(0) else { return empty(&[0]) };
    if let Some(t) = tensor_of(first.as_borrowed()).filter(|_| args.len() == 1) {
        return Ok(t.detach());
    }
    if args.len() == 1 && first.is_instance(super::size::class(args.py())?)? {
        return empty(&first.extract::<Vec<i64>>()?);
    }
    if let Ok(size) = args.extract::<Vec<i64>>() {
        return empty(&size);
    }
    if args.len() == 1 && (first.is_instance_of::<PySequence>() || ndarray(&first).is_some()) {
        return Ok(Tensor::new(array_of(&first, Some(default_dtype()))?));
    }
    bail!(Type, "new(): data must be a sequence (got {})", type_name(first.as_borrowed()))
}
function! {
    /// A tensor of the dtype of `self`, unless another is given, with a copy of `data`.
    fn new_tensor(self_; data: Py<PyAny>; *, dtype: Option<DType> = None, device: Option<PyDevice> = None, requires_grad: bool = false, pin_memory: bool = false) -> Tensor;
    on [method];
    { tensor(data, dtype.or(Some(self_.dtype())), device, requires_grad, pin_memory) }
}

function! {
    /// The value of a tensor of one element, as a Python number.
    fn item(self_) -> Scalar;
    on [method];
    schema "_local_scalar_dense";
    {
        match self_.look(|a| (a.numel() == 1).then(|| a.item())) {
            Some(s) => Ok(s),
            None => bail!(Runtime, "a Tensor with {} elements cannot be converted to Scalar", self_.numel()),
        }
    }
}
pub fn list<'py>(py: Python<'py>, a: &Array, dim: usize, at: usize) -> PyResult<Bound<'py, PyAny>> {
    if dim == a.ndim() {
        return super::ret::number(py, for_dtype!(a.dtype, T => a.read::<T>(at, 1)[0].scalar()));
    }
    let (n, step) = (a.shape[dim], a.strides[dim]);
    let items: PyResult<Vec<_>> = (0..n).map(|i| list(py, a, dim + 1, at + i * step)).collect();
    Ok(PyList::new(py, items?)?.into_any())
}
function! {
    /// The elements as nested lists of Python numbers; of a 0-d tensor, the number.
    fn tolist(self_) -> Py<PyAny>;
    on [method];
    {
        let a = self_.array();
        Python::attach(|py| Ok(list(py, &a, 0, a.offset)?.unbind()))
    }
}
