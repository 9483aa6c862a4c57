//! Memory shared with Python: numpy arrays and buffers as tensors, tensors as numpy arrays, and storages, the bytes under a tensor. numpy is
//! never imported before somebody asks for one of its arrays.
//!
//! Safety. `Lender` keeps the owner of foreign memory alive, so the memory stays where it is (numpy refuses to resize an array that is
//! referenced); its reach is computed from the owner's own strides. An array lent to numpy keeps a tensor object of ours as its base.
#![allow(unsafe_code)]
use super::PyTensor;
use super::arg::{FromArg, Kind, Refused, kind};
use super::call::{Values, tensor_of, type_name};
use super::dtype::PyDevice;
use super::literal::{self, leaf, list};
use super::wrap;
use crate::array::{Array, Fresh, epoch};
use crate::dtype::DType;
use crate::error::{Result, bail};
use crate::kernels::pointwise;
use crate::layout::{Dims, span};
use crate::ops::macros::function;
use crate::storage::{Foreign, Storage};
use crate::tape::Tensor;
use ::numpy::npyffi::{self, NPY_ARRAY_WRITEABLE, npy_intp};
use ::numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::{PyBuffer, PyUntypedBuffer};
use pyo3::exceptions::{PyTypeError, PyUserWarning};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt, PyList, PyTuple};
use pyo3::{IntoPyObjectExt, intern};
use smallvec::SmallVec;
use std::sync::Arc;

/// Memory of a Python object.
struct Lender {
    owner: Option<Py<PyAny>>,
    ptr: *mut u8,
    bytes: usize,
    writable: bool,
    /// Keeps an exported buffer open.
    _buffer: Option<PyUntypedBuffer>,
}
// SAFETY: the pointer is only handed out; the owner is a reference that may be dropped on any thread (pyo3 defers it if need be).
unsafe impl Send for Lender {}
// SAFETY: as above.
unsafe impl Sync for Lender {}
// SAFETY: whoever makes a `Lender` took the reach from the owner's own description, and the owner is kept until the drop.
unsafe impl Foreign for Lender {
    fn ptr(&self) -> *mut u8 {
        self.ptr
    }
    fn bytes(&self) -> usize {
        self.bytes
    }
    fn writable(&self) -> bool {
        self.writable
    }
}
impl Drop for Lender {
    fn drop(&mut self) {
        drop(self.owner.take());
    }
}
/// The array behind an object, if it is one. Looks only if somebody imported numpy.
pub fn ndarray<'a, 'py>(v: &'a Bound<'py, PyAny>) -> Option<&'a Bound<'py, PyUntypedArray>> {
    if v.is_instance_of::<PyList>() || v.is_instance_of::<PyTuple>() || v.is_instance_of::<PyFloat>() || v.is_instance_of::<PyInt>() {
        return None;
    }
    numpy_loaded(v.py()).then(|| v.cast::<PyUntypedArray>().ok()).flatten()
}
fn numpy_loaded(py: Python<'_>) -> bool {
    static SEEN: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    use std::sync::atomic::Ordering::Relaxed;
    if SEEN.load(Relaxed) {
        return true;
    }
    let loaded =
        py.import(intern!(py, "sys")).and_then(|s| s.getattr(intern!(py, "modules"))?.contains(intern!(py, "numpy"))).unwrap_or(false);
    SEEN.store(loaded, Relaxed);
    loaded
}
/// What numpy makes of an object that describes itself by `__array__` or `__array_interface__`.
pub fn as_ndarray<'py>(v: &Bound<'py, PyAny>) -> Result<Option<Bound<'py, PyUntypedArray>>> {
    let py = v.py();
    if v.is_instance_of::<PyTensor>() || v.is_instance_of::<pyo3::types::PyType>() {
        return Ok(None);
    }
    if !v.hasattr(intern!(py, "__array__"))? && !v.hasattr(intern!(py, "__array_interface__"))? {
        return Ok(None);
    }
    let a = py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "asarray"), (v,))?;
    Ok(a.cast_into::<PyUntypedArray>().ok())
}
pub fn dtype_of_scalar(v: &Bound<'_, PyAny>) -> Option<DType> {
    let name = v.get_type().fully_qualified_name().ok()?;
    let name = name.to_str().ok()?.strip_prefix("numpy.")?;
    let name = match name {
        "bool_" => "bool",
        "longlong" => "int64",
        n => n,
    };
    DType::ALL.into_iter().find(|d| d.name() == name)
}
/// The dtype of numpy's elements.
fn dtype_of_ndarray(a: &Bound<'_, PyUntypedArray>) -> Result<DType> {
    let d = a.dtype();
    let found = match (d.kind(), d.itemsize()) {
        (b'b', 1) => DType::Bool,
        (b'u', 1) => DType::UInt8,
        (b'i', 1) => DType::Int8,
        (b'i', 2) => DType::Int16,
        (b'i', 4) => DType::Int32,
        (b'i', 8) => DType::Int64,
        (b'f', 2) => DType::Float16,
        (b'f', 4) => DType::Float32,
        (b'f', 8) => DType::Float64,
        _ => {
            let name = d.typeobj().fully_qualified_name()?;
            bail!(
                Type,
                "can't convert np.ndarray of type {name}. The only supported types are: float64, float32, float16, int64, int32, int16, int8, uint8, and bool."
            )
        }
    };
    if d.is_native_byteorder() == Some(false) {
        bail!(
            Value,
            "given numpy array has byte order different from the native byte order. Conversion between byte orders is currently not supported."
        );
    }
    Ok(found)
}
/// numpy's memory as an array of ours.
pub fn lent_array(a: &Bound<'_, PyUntypedArray>) -> Result<Array> {
    let dtype = dtype_of_ndarray(a)?;
    let item = dtype.size() as isize;
    let shape = Dims::of(a.shape());
    let strides = a.strides();
    if strides.iter().any(|s| *s < 0) {
        bail!(
            Value,
            "At least one stride in the given numpy array is negative, and tensors with negative strides are not currently supported. (You can probably work around this by making a copy of your array with array.copy().)"
        );
    }
    // SAFETY: a live array; its fields are read.
    let (ptr, flags) = unsafe { ((*a.as_array_ptr()).fields.data.cast::<u8>(), (*a.as_array_ptr()).fields.flags) };
    if strides.iter().any(|s| s % item != 0) || !(ptr as usize).is_multiple_of(dtype.size()) {
        bail!(Value, "given numpy array strides not a multiple of the element byte size. Copy the numpy array to reallocate the memory.");
    }
    let strides: Dims = strides.iter().map(|s| (s / item) as usize).collect();
    let bytes = span(&shape, &strides) * dtype.size();
    let lender =
        Lender { owner: Some(a.clone().into_any().unbind()), ptr, bytes, writable: flags & NPY_ARRAY_WRITEABLE != 0, _buffer: None };
    Array::over(Storage::foreign(Box::new(lender), epoch()), shape, strides, 0, dtype)
}
pub fn warn(py: Python<'_>, text: &str) -> Result<()> {
    let text = std::ffi::CString::new(text).unwrap_or_default();
    Ok(PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, 1)?)
}
function! {
    /// A tensor over the memory of a numpy array: a write to either is seen by both. The memory of a read-only array can be read only.
    fn from_numpy(; ndarray: Py<PyAny>) -> Tensor;
    on [function];
    {
        Python::attach(|py| {
            let v = ndarray.bind(py);
            let Some(a) = self::ndarray(v) else { bail!(Type, "expected np.ndarray (got {})", v.get_type().fully_qualified_name()?.to_str()?.trim_start_matches("builtins.")) };
            let a = lent_array(a)?;
            if !a.storage().writable() {
                static WARNED: std::sync::Once = std::sync::Once::new();
                let mut first = false;
                WARNED.call_once(|| first = true);
                if first {
                    warn(py, "The given NumPy array is not writable: the tensor shares its memory and can only be read. Copy the array to have a tensor that can be written.")?;
                }
            }
            Ok(Tensor::new(a))
        })
    }
}
function! {
    /// A 1-d tensor over the memory of an object with the buffer protocol, from byte `offset`; `count` elements, -1 for all.
    fn frombuffer(; buffer: Py<PyAny>; *, dtype: DType, count: i64 = -1, offset: i64 = 0, requires_grad: bool = false) -> Tensor;
    on [function];
    {
        Python::attach(|py| {
            let b = PyUntypedBuffer::get(buffer.bind(py))?;
            let (len, size) = (b.len_bytes(), dtype.size());
            if len == 0 || count == 0 {
                bail!(Value, "both buffer length ({len}) and count ({count}) must not be 0");
            }
            if !(0..len as i64).contains(&offset) {
                bail!(Value, "offset ({offset} bytes) must be non-negative and no greater than buffer length ({len} bytes) - 1");
            }
            let left = len - offset as usize;
            if count < 0 && !left.is_multiple_of(size) {
                bail!(Value, "buffer length ({len} bytes) after offset ({offset} bytes) must be a multiple of element size ({size})");
            }
            let n = if count < 0 { left / size } else { count as usize };
            if n.checked_mul(size).is_none_or(|b| b > left) {
                bail!(Value, "requested buffer length ({count} * {size} bytes) after offset ({offset} bytes) must not be greater than actual buffer length ({len} bytes)");
            }
            if !b.is_c_contiguous() {
                bail!(Value, "frombuffer(): the buffer is not contiguous");
            }
            let ptr = b.buf_ptr().cast::<u8>().wrapping_add(offset as usize);
            if !(ptr as usize).is_multiple_of(size) {
                bail!(Value, "frombuffer(): the memory after offset {offset} is not aligned for {}; copy it", dtype.name());
            }
            let writable = !b.readonly();
            if !writable {
                warn(py, "The given buffer is not writable: the tensor shares its memory and can only be read. Copy it to have a tensor that can be written.")?;
            }
            let lender = Lender { owner: None, ptr, bytes: n * size, writable, _buffer: Some(b) };
            leaf(Array::over(Storage::foreign(Box::new(lender), epoch()), Dims::of(&[n]), Dims::of(&[1]), 0, dtype)?, requires_grad)
        })
    }
}
/// What a numpy array over our memory keeps: the memory, and a note on it that it may be written from outside.
#[pyclass(name = "_Loan", module = "stowgrad._C", frozen)]
struct Loan {
    tensor: Py<PyTensor>,
    storage: Option<Arc<Storage>>,
}
impl Loan {
    /// Whoever holds values of these bytes copies them first: no write will be announced from now on.
    fn of(py: Python<'_>, a: &Array) -> Result<Loan> {
        let tensor = wrap(py, Tensor::new(a.clone()))?.unbind();
        let storage = a.storage().writable().then(|| a.storage().clone());
        if let Some(s) = &storage {
            if s.is_watched() {
                s.tell((0, s.size()))?;
            }
            s.lend();
        }
        Ok(Loan { tensor, storage })
    }
}
impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(s) = &self.storage {
            s.repaid();
        }
    }
}
#[pymethods]
impl Loan {
    /// The tensor whose memory it is.
    #[getter]
    fn tensor(&self, py: Python<'_>) -> Py<PyTensor> {
        self.tensor.clone_ref(py)
    }
}
/// The memory of a tensor as a numpy array, which keeps it alive.
fn to_ndarray<'py>(py: Python<'py>, t: &Tensor) -> Result<Bound<'py, PyAny>> {
    let a = t.array();
    let num = match a.dtype {
        DType::Bool => npyffi::NPY_TYPES::NPY_BOOL,
        DType::UInt8 => npyffi::NPY_TYPES::NPY_UBYTE,
        DType::Int8 => npyffi::NPY_TYPES::NPY_BYTE,
        DType::Int16 => npyffi::NPY_TYPES::NPY_SHORT,
        DType::Int32 => npyffi::NPY_TYPES::NPY_INT,
        DType::Int64 if size_of::<std::ffi::c_long>() == 8 => npyffi::NPY_TYPES::NPY_LONG,
        DType::Int64 => npyffi::NPY_TYPES::NPY_LONGLONG,
        DType::Float16 => npyffi::NPY_TYPES::NPY_HALF,
        DType::Float32 => npyffi::NPY_TYPES::NPY_FLOAT,
        DType::Float64 => npyffi::NPY_TYPES::NPY_DOUBLE,
        DType::BFloat16 => bail!(Type, "Got unsupported ScalarType BFloat16: numpy has no such type; convert with .float() first"),
    };
    py.import(intern!(py, "numpy"))?;
    let base = Bound::new(py, Loan::of(py, &a)?)?;
    let mut shape: SmallVec<[npy_intp; 6]> = a.shape.iter().map(|&n| n as npy_intp).collect();
    let mut strides: SmallVec<[npy_intp; 6]> = a.strides.iter().map(|&s| (s * a.dtype.size()) as npy_intp).collect();
    let flags = if a.storage().writable() { NPY_ARRAY_WRITEABLE } else { 0 };
    // SAFETY: the layout lies inside the storage, which `base` keeps alive and in place; numpy takes over the references to the
    // descriptor and to the base.
    unsafe {
        let api = &npyffi::PY_ARRAY_API;
        let class = npyffi::get_type_object(py, npyffi::NpyTypes::PyArray_Type);
        let descr = api.PyArray_DescrFromType(py, num as _);
        let data = a.storage().ptr().add(a.offset * a.dtype.size());
        let made = api.PyArray_NewFromDescr(
            py,
            class,
            descr,
            shape.len() as _,
            shape.as_mut_ptr(),
            strides.as_mut_ptr(),
            data.cast(),
            flags,
            std::ptr::null_mut(),
        );
        let made = Bound::from_owned_ptr_or_err(py, made)?;
        if api.PyArray_SetBaseObject(py, made.as_ptr().cast(), base.into_ptr()) < 0 {
            return Err(PyErr::fetch(py).into());
        }
        Ok(made)
    }
}
function! {
    /// The elements as a numpy array over the same memory. `force`: of a tensor that requires grad too, without its history.
    ///
    /// Writes through the array change the tensor without raising its version. Inside `allow_mutation_on_saved_tensors()` values saved
    /// from this memory are copied when the array is made, and at each save while it lives; outside, a value saved for backward that is
    /// written through the array gives a wrong gradient: clone() it first.
    fn numpy(self_; *, force: bool = false) -> Py<PyAny>;
    on [method];
    {
        if self_.requires_grad() && !force {
            bail!(Runtime, "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.");
        }
        Python::attach(|py| Ok(to_ndarray(py, self_)?.unbind()))
    }
}
function! {
    /// What numpy calls to turn a tensor into an array.
    fn __array__(self_; dtype: Option<Py<PyAny>> = None; *, copy: Option<bool> = None) -> Py<PyAny>;
    on [method];
    {
        if self_.requires_grad() {
            bail!(Runtime, "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.");
        }
        Python::attach(|py| {
            let a = to_ndarray(py, self_)?;
            let name = intern!(py, "dtype");
            let other = match &dtype {
                Some(d) => !py.import(intern!(py, "numpy"))?.call_method1(name, (d,))?.eq(a.getattr(name)?)?,
                None => false,
            };
            if other && copy == Some(false) {
                bail!(Value, "Unable to avoid copy while creating an array as requested.");
            }
            let a = match dtype {
                Some(d) if other => a.call_method1(intern!(py, "astype"), (d,))?,
                _ if copy == Some(true) => a.call_method0(intern!(py, "copy"))?,
                _ => a,
            };
            Ok(a.unbind())
        })
    }
}
function! {
    /// What numpy calls to turn the result of one of its functions on a tensor into a tensor again.
    fn __array_wrap__(self_; array: Py<PyAny>, context: Option<Py<PyAny>> = None, return_scalar: bool = false) -> Tensor;
    on [method];
    {
        let _ = (self_, context, return_scalar);
        Python::attach(|py| {
            let v = array.bind(py);
            Ok(Tensor::new(match ndarray(v) {
                Some(a) => lent_array(a)?,
                None => literal::array_of(v, None)?,
            }))
        })
    }
}

// ---- storages ----

/// The bytes under a tensor, whatever its layout.
#[pyclass(name = "UntypedStorage", module = "stowgrad", frozen, weakref)]
pub struct PyStorage(Array);
impl PyStorage {
    pub fn of(a: &Array) -> Result<PyStorage> {
        let s = a.storage().clone();
        let n = s.size();
        Ok(PyStorage(Array::over(s, Dims::of(&[n]), Dims::of(&[1]), 0, DType::UInt8)?.counted_as(a)))
    }
    fn storage(&self) -> &Arc<Storage> {
        self.0.storage()
    }
    /// The whole storage as a row of elements of `dtype`.
    pub fn row(&self, dtype: DType) -> Result<Array> {
        let n = self.storage().size() / dtype.size();
        Ok(Array::over(self.storage().clone(), Dims::of(&[n]), Dims::of(&[1]), 0, dtype)?.counted_as(&self.0))
    }
}
#[pymethods]
impl PyStorage {
    /// A storage of `nbytes` bytes of unspecified content.
    #[new]
    #[pyo3(signature = (nbytes = 0, *, device = None))]
    fn new(nbytes: usize, device: Option<&Bound<'_, PyAny>>) -> PyResult<PyStorage> {
        if let Some(d) = device
            && let Some(d) = PyDevice::of(d.as_borrowed())
        {
            d?.check()?;
        }
        Ok(PyStorage::of(&Array::empty(Dims::of(&[nbytes]), DType::UInt8)?)?)
    }
    /// Size in bytes.
    fn nbytes(&self) -> usize {
        self.0.numel()
    }
    fn size(&self) -> usize {
        self.0.numel()
    }
    fn __len__(&self) -> usize {
        self.0.numel()
    }
    fn element_size(&self) -> usize {
        1
    }
    /// The address of the first byte; 0 if there is none.
    fn data_ptr(&self) -> usize {
        if self.0.numel() == 0 { 0 } else { self.storage().ptr() as usize }
    }
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::CPU
    }
    #[getter]
    fn _cdata(&self) -> usize {
        Arc::as_ptr(self.storage()) as usize
    }
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        list(py, &self.0, 0, 0)
    }
    fn __getitem__(&self, i: isize) -> PyResult<u8> {
        let n = self.0.numel() as isize;
        let at = if i < 0 { i + n } else { i };
        if !(0..n).contains(&at) {
            return Err(pyo3::exceptions::PyIndexError::new_err(format!("index {i} out of range for storage of size {n}")));
        }
        Ok(self.0.read::<u8>(at as usize, 1)[0])
    }
    fn is_pinned(&self) -> bool {
        false
    }
    /// A storage of our own with the same bytes.
    fn clone(&self) -> PyResult<PyStorage> {
        Ok(PyStorage(pointwise::cast(&self.0, DType::UInt8)?))
    }
    fn cpu(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }
    /// Refused unless the size stays: the bytes under a tensor do not move.
    fn resize_<'py>(slf: Bound<'py, Self>, size: usize) -> PyResult<Bound<'py, Self>> {
        let now = slf.get().0.numel();
        if size != now {
            return Err(pyo3::exceptions::PyRuntimeError::new_err(format!(
                "Trying to resize storage that is not resizable: from {now} to {size} bytes; use Tensor.resize_ or a new tensor"
            )));
        }
        Ok(slf)
    }
    fn __eq__(&self, o: &Bound<'_, PyAny>) -> bool {
        o.cast::<PyStorage>().is_ok_and(|o| Arc::ptr_eq(self.storage(), o.get().storage()))
    }
    fn __hash__(&self) -> usize {
        self._cdata()
    }
    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.storage_bytes())
    }
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let f = py.import(intern!(py, "stowgrad._C"))?.getattr(intern!(py, "_storage_from_bytes"))?;
        (f, (slf.get().__bytes__(py),)).into_bound_py_any(py)
    }
    /// # Safety
    /// Called by the interpreter with a view to fill.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut pyo3::ffi::Py_buffer, flags: std::ffi::c_int) -> PyResult<()> {
        let s = slf.get();
        let readonly = !s.storage().writable();
        // SAFETY: `view` is the interpreter's; the bytes stay in place as long as the storage, which `slf` keeps alive, and the view keeps
        // `slf`.
        let r = unsafe {
            pyo3::ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                s.storage().ptr().cast(),
                s.0.numel() as isize,
                readonly as std::ffi::c_int,
                flags,
            )
        };
        if r == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
    #[expect(clippy::unused_self, reason = "the protocol's signature")]
    unsafe fn __releasebuffer__(&self, _view: *mut pyo3::ffi::Py_buffer) {}
}
impl<'py> FromArg<'py> for PyStorage {
    const KIND: Kind = kind("UntypedStorage", "UntypedStorage");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        match v.one().cast::<PyStorage>() {
            Ok(s) => Ok(PyStorage(s.get().0.clone())),
            Err(_) => Err(Refused::Type),
        }
    }
}
/// The array of a tensor, or a storage as an array of bytes: what `set_` takes.
pub fn array_of(v: &Bound<'_, PyAny>) -> PyResult<Array> {
    match (tensor_of(v.as_borrowed()), v.cast::<PyStorage>()) {
        (Some(t), _) => Ok(t.array()),
        (_, Ok(s)) => Ok(s.get().0.clone()),
        _ => Err(PyTypeError::new_err(format!("expected a Tensor or an UntypedStorage, not {}", type_name(v.as_borrowed())))),
    }
}
function! {
    /// The storage under the tensor.
    fn untyped_storage(self_) -> Py<PyAny>;
    on [method];
    { Python::attach(|py| Ok(Py::new(py, PyStorage::of(&self_.array())?)?.into_any())) }
}
function! {
    /// A storage with a copy of the bytes of `buffer`.
    fn storage_from_bytes(; buffer: Py<PyAny>) -> Py<PyAny>;
    on [private];
    {
        Python::attach(|py| {
            let b = PyBuffer::<u8>::get(buffer.bind(py))?;
            let mut f = Fresh::new(Dims::of(&[b.item_count()]), DType::UInt8)?;
            b.copy_to_slice(py, f.slice_mut::<u8>())?;
            Ok(Py::new(py, PyStorage(f.done()))?.into_any())
        })
    }
}
function! {
    /// A tensor over a storage: `size` and `stride` in elements of `dtype`, `offset` in elements too.
    fn tensor_from_storage(; storage: PyStorage, dtype: DType, size: Dims, stride: Dims, offset: i64) -> Tensor;
    on [private];
    {
        if size.len() != stride.len() || offset < 0 {
            bail!(Runtime, "_tensor_from_storage(): size {size:?} and stride {stride:?} must have one length, and offset {offset} must not be negative");
        }
        let s = storage.storage();
        if !(s.ptr() as usize).is_multiple_of(dtype.size()) {
            bail!(Runtime, "_tensor_from_storage(): the storage is not aligned for {}", dtype.name());
        }
        Ok(Tensor::new(Array::over(s.clone(), size, stride, offset as usize, dtype)?.counted_as(&storage.0)))
    }
}
function! {
    /// The elements of a tensor as bytes in row-major order.
    fn tensor_bytes(self_) -> Py<PyAny>;
    on [private];
    {
        let a = pointwise::contiguous(&self_.array())?;
        let at = a.offset * a.dtype.size();
        Python::attach(|py| Ok(PyBytes::new(py, &a.storage_bytes()[at..at + a.nbytes()]).into_any().unbind()))
    }
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyStorage>()?;
    m.add_class::<Loan>()?;
    m.py().get_type::<PyTensor>().setattr("__array_priority__", 1000)
}
