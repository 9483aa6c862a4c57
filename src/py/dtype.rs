//! The small value classes: `dtype`, `device`, `layout`, `memory_format`, `finfo`, `iinfo`; the default dtype and torch's promotion rule as
//! functions. Each dtype, layout and memory format is one object.
use super::PyTensor;
use super::arg::scalar;
use super::call::tensor_of;
use crate::dtype::{self, DType, Rank, join, promote};
use crate::error::{Result, bail};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyString};

#[pyclass(name = "dtype", module = "stowgrad", frozen)]
pub struct PyDType(pub DType);
static DTYPES: PyOnceLock<[Py<PyDType>; DType::ALL.len()]> = PyOnceLock::new();
impl PyDType {
    /// The one object of a dtype.
    pub fn get(py: Python<'_>, d: DType) -> Bound<'_, PyDType> {
        let all = DTYPES.get_or_init(py, || DType::ALL.map(|d| Py::new(py, PyDType(d)).expect("a dtype object can be made")));
        all[d as usize].bind(py).clone()
    }
}
#[pymethods]
impl PyDType {
    fn __repr__(&self) -> String {
        format!("torch.{}", self.0.name())
    }
    /// Pickled as a name of the package.
    fn __reduce__(&self) -> &'static str {
        self.0.name()
    }
    #[getter]
    fn is_floating_point(&self) -> bool {
        self.0.is_float()
    }
    #[getter]
    fn is_complex(&self) -> bool {
        false
    }
    #[getter]
    fn is_signed(&self) -> bool {
        self.0.is_signed()
    }
    /// Bytes of one element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.0.size()
    }
    fn to_real<'py>(&self, py: Python<'py>) -> Bound<'py, PyDType> {
        PyDType::get(py, self.0)
    }
}

/// Where a tensor lives. Only "cpu" can be used without torch; others can be named.
#[pyclass(name = "device", module = "stowgrad", frozen, eq, hash)]
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PyDevice {
    #[pyo3(get, name = "type")]
    pub kind: &'static str,
    #[pyo3(get)]
    pub index: Option<u32>,
}
const KINDS: [&str; 8] = ["cpu", "cuda", "mps", "meta", "xpu", "hpu", "mtia", "xla"];
impl PyDevice {
    pub const CPU: PyDevice = PyDevice { kind: "cpu", index: None };
    pub fn parse(s: &str) -> Result<PyDevice> {
        if s.is_empty() {
            bail!(Runtime, "Device string must not be empty");
        }
        let (kind, index) = s.split_once(':').map_or((s, None), |(k, i)| (k, Some(i)));
        let Some(kind) = KINDS.into_iter().find(|k| *k == kind) else {
            bail!(Runtime, "Expected one of {} device type at start of device string: {s}", KINDS.join(", "))
        };
        let index = match index {
            None => None,
            Some(i) if i.bytes().all(|b| b.is_ascii_digit()) && (i.len() == 1 || !i.starts_with('0')) => i.parse().ok(),
            Some(_) => None,
        };
        if s.contains(':') && index.is_none() {
            bail!(Runtime, "Invalid device string: '{s}'");
        }
        Ok(PyDevice { kind, index })
    }
    /// Refuses what has no implementation here.
    pub fn check(&self) -> Result<()> {
        match self.kind {
            "cpu" => Ok(()),
            "cuda" => {
                bail!(Runtime, "device '{self}': no CUDA support is built in, and torch is not installed to lend its own; use device='cpu'")
            }
            _ => bail!(Runtime, "device '{self}' is not supported; use device='cpu'"),
        }
    }
    /// A device object, a string, or a number of a CUDA device.
    pub fn of(v: Borrowed<'_, '_, PyAny>) -> Option<Result<PyDevice>> {
        if let Ok(d) = v.cast::<PyDevice>() {
            Some(Ok(d.get().clone()))
        } else if let Ok(s) = v.cast::<PyString>() {
            Some(PyDevice::parse(s.to_str().ok()?))
        } else if v.is_instance_of::<PyInt>() {
            v.extract().ok().map(|i| Ok(PyDevice { kind: "cuda", index: Some(i) }))
        } else {
            None
        }
    }
}
impl std::fmt::Display for PyDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.index {
            Some(i) => write!(f, "{}:{i}", self.kind),
            None => f.write_str(self.kind),
        }
    }
}
#[pymethods]
impl PyDevice {
    #[new]
    #[pyo3(signature = (r#type, index = None))]
    fn new(r#type: &Bound<'_, PyAny>, index: Option<u32>) -> PyResult<PyDevice> {
        let Some(d) = PyDevice::of(r#type.as_borrowed()) else {
            let got = super::call::type_name(r#type.as_borrowed());
            return Err(PyTypeError::new_err(format!(
                "device() received an invalid combination of arguments - got ({got}), but expected one of:\n * (torch.device device)\n * (str type, int index = -1)\n"
            )));
        };
        let d = d?;
        match (index, d.index) {
            (None, _) => Ok(d),
            (Some(_), None) => Ok(PyDevice { index, ..d }),
            (Some(_), Some(_)) => Err(pyo3::exceptions::PyRuntimeError::new_err(format!(
                "type (string) must not include an index because index was passed explicitly: {d}"
            ))),
        }
    }
    fn __repr__(&self) -> String {
        match self.index {
            Some(i) => format!("device(type='{}', index={i})", self.kind),
            None => format!("device(type='{}')", self.kind),
        }
    }
    fn __str__(&self) -> String {
        self.to_string()
    }
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let d = slf.get();
        let args = match d.index {
            Some(i) => (d.kind, i).into_pyobject(slf.py())?.into_any(),
            None => (d.kind,).into_pyobject(slf.py())?.into_any(),
        };
        Ok((slf.get_type(), args).into_pyobject(slf.py())?.into_any())
    }
    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().check()?;
        Ok(slf)
    }
    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, pyo3::types::PyTuple>) {}
}

macro_rules! named_values { ($class:ident $python:literal $($value:ident)*) => {
    #[pyclass(name = $python, module = "stowgrad", frozen)]
    pub struct $class(pub &'static str);
    #[pymethods]
    impl $class {
        fn __repr__(&self) -> String {
            format!("torch.{}", self.0)
        }
        fn __reduce__(&self) -> &'static str {
            self.0
        }
    }
    impl $class {
        fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
            $(m.add(stringify!($value), Py::new(m.py(), $class(stringify!($value)))?)?;)*
            m.add_class::<$class>()
        }
    }
} }
named_values! { PyLayout "layout" strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc jagged }
named_values! { PyMemoryFormat "memory_format" contiguous_format preserve_format channels_last channels_last_3d }

/// C's `%g`: six significant digits, as torch prints its limits.
fn six_digits(v: f64) -> String {
    let e = format!("{v:.5e}");
    let (mantissa, exponent) = e.split_once('e').expect("an exponent is written");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    let short = |s: &str| if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_owned() } else { s.to_owned() };
    if (-5..6).contains(&exponent) && exponent >= -4 {
        short(&format!("{v:.*}", (5 - exponent).max(0) as usize))
    } else {
        format!("{}e{}{:02}", short(mantissa), if exponent < 0 { '-' } else { '+' }, exponent.abs())
    }
}
/// Limits of a floating point dtype.
#[pyclass(name = "finfo", module = "stowgrad", frozen, eq, hash)]
#[derive(PartialEq, Hash)]
pub struct FloatInfo(DType);
#[pymethods]
impl FloatInfo {
    #[new]
    #[pyo3(signature = (r#type = None))]
    fn new(r#type: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let d = match r#type {
            None => dtype::default_dtype(),
            Some(d) => given_dtype("finfo", "type", 1, d)?,
        };
        if !d.is_float() {
            return Err(PyTypeError::new_err(format!("finfo() requires a floating point input type. Use iinfo to handle '{}'", d.name())));
        }
        Ok(FloatInfo(d))
    }
    #[getter]
    fn bits(&self) -> usize {
        self.0.size() * 8
    }
    #[getter]
    fn eps(&self) -> f64 {
        match self.0 {
            DType::Float64 => f64::EPSILON,
            DType::Float32 => f32::EPSILON as f64,
            DType::Float16 => half::f16::EPSILON.to_f64(),
            _ => half::bf16::EPSILON.to_f64(),
        }
    }
    #[getter]
    fn max(&self) -> f64 {
        match self.0 {
            DType::Float64 => f64::MAX,
            DType::Float32 => f32::MAX as f64,
            DType::Float16 => half::f16::MAX.to_f64(),
            _ => half::bf16::MAX.to_f64(),
        }
    }
    #[getter]
    fn min(&self) -> f64 {
        -self.max()
    }
    #[getter]
    fn tiny(&self) -> f64 {
        match self.0 {
            DType::Float64 => f64::MIN_POSITIVE,
            DType::Float16 => half::f16::MIN_POSITIVE.to_f64(),
            _ => f32::MIN_POSITIVE as f64,
        }
    }
    #[getter]
    fn smallest_normal(&self) -> f64 {
        self.tiny()
    }
    /// 10 to the number of decimal digits that are kept, negated.
    #[getter]
    fn resolution(&self) -> f64 {
        match self.0 {
            DType::Float64 => 1e-15,
            DType::Float32 => 1e-6,
            DType::Float16 => 1e-3,
            _ => 1e-2,
        }
    }
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.name()
    }
    fn __repr__(&self) -> String {
        let g = six_digits;
        format!(
            "finfo(resolution={}, min={}, max={}, eps={}, smallest_normal={}, tiny={}, dtype={})",
            g(self.resolution()),
            g(self.min()),
            g(self.max()),
            g(self.eps()),
            g(self.tiny()),
            g(self.tiny()),
            self.0.name()
        )
    }
}
/// Limits of an integer dtype.
#[pyclass(name = "iinfo", module = "stowgrad", frozen, eq, hash)]
#[derive(PartialEq, Hash)]
pub struct IntInfo(DType);
#[pymethods]
impl IntInfo {
    #[new]
    fn new(r#type: &Bound<'_, PyAny>) -> PyResult<Self> {
        let d = given_dtype("iinfo", "type", 1, r#type)?;
        if !d.is_int() {
            return Err(PyTypeError::new_err(format!("iinfo() requires an integer input type. Use finfo to handle '{}'", d.name())));
        }
        Ok(IntInfo(d))
    }
    #[getter]
    fn bits(&self) -> u32 {
        self.0.size() as u32 * 8
    }
    #[getter]
    fn max(&self) -> i64 {
        if self.0.is_signed() { i64::MAX >> (64 - self.bits()) } else { 255 }
    }
    #[getter]
    fn min(&self) -> i64 {
        if self.0.is_signed() { i64::MIN >> (64 - self.bits()) } else { 0 }
    }
    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.name()
    }
    fn __repr__(&self) -> String {
        format!("iinfo(min={}, max={}, dtype={})", self.min(), self.max(), self.0.name())
    }
}

static STRIDED: PyOnceLock<Py<PyLayout>> = PyOnceLock::new();
#[pymethods]
impl PyTensor {
    #[getter(device)]
    fn where_it_lives(&self) -> PyDevice {
        PyDevice::CPU
    }
    #[getter(layout)]
    fn how_it_lies<'py>(&self, py: Python<'py>) -> Option<&Bound<'py, PyLayout>> {
        STRIDED.get(py).map(|l| l.bind(py))
    }
}
fn given_dtype(op: &str, name: &str, position: usize, v: &Bound<'_, PyAny>) -> PyResult<DType> {
    v.cast::<PyDType>().map(|d| d.get().0).map_err(|_| {
        let got = super::call::type_name(v.as_borrowed());
        PyTypeError::new_err(format!("{op}(): argument '{name}' (position {position}) must be torch.dtype, not {got}"))
    })
}
/// The dtype of floats made from Python numbers.
#[pyfunction]
fn get_default_dtype(py: Python<'_>) -> Bound<'_, PyDType> {
    PyDType::get(py, dtype::default_dtype())
}
/// Sets the dtype of floats made from Python numbers; floating point only.
#[pyfunction]
fn set_default_dtype(d: &Bound<'_, PyAny>) -> PyResult<()> {
    match d.cast::<PyDType>() {
        Ok(d) if d.get().0.is_float() => dtype::set_default_dtype(d.get().0),
        Ok(_) => return Err(PyTypeError::new_err("only floating-point types are supported as the default type")),
        Err(_) => return Err(PyTypeError::new_err("invalid dtype object: only floating-point types are supported as the default type")),
    }
    Ok(())
}
/// The smallest dtype that holds both.
#[pyfunction]
fn promote_types<'py>(type1: &Bound<'py, PyAny>, type2: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDType>> {
    let (a, b) = (given_dtype("promote_types", "type1", 1, type1)?, given_dtype("promote_types", "type2", 2, type2)?);
    Ok(PyDType::get(type1.py(), join(a, b)))
}
/// May a value of dtype `from_` be written into one of dtype `to`?
#[pyfunction]
fn can_cast(from_: &Bound<'_, PyAny>, to: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(given_dtype("can_cast", "from_", 1, from_)?.can_cast(given_dtype("can_cast", "to", 2, to)?))
}
/// The dtype that an arithmetic operation on two tensors or numbers would give.
#[pyfunction]
fn result_type<'py>(tensor1: &Bound<'py, PyAny>, tensor2: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDType>> {
    let weigh = |i: usize, v: &Bound<'py, PyAny>| -> PyResult<(DType, Rank)> {
        if let Some(t) = tensor_of(v.as_borrowed()) {
            return Ok(t.look(|a| (a.dtype, a.rank())));
        }
        match scalar(v.as_borrowed()) {
            Ok(Some(s)) => Ok((s.dtype(), Rank::Number)),
            _ => Err(PyTypeError::new_err(format!(
                "result_type(): argument 'tensor{i}' (position {i}) must be Tensor or Number, not {}",
                super::call::type_name(v.as_borrowed())
            ))),
        }
    };
    Ok(PyDType::get(tensor1.py(), promote([weigh(1, tensor1)?, weigh(2, tensor2)?])))
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    for d in DType::ALL {
        m.add(d.name(), PyDType::get(m.py(), d))?;
    }
    for (short, d) in [
        ("half", DType::Float16),
        ("float", DType::Float32),
        ("double", DType::Float64),
        ("short", DType::Int16),
        ("int", DType::Int32),
        ("long", DType::Int64),
    ] {
        m.add(short, PyDType::get(m.py(), d))?;
    }
    m.add_class::<PyDType>()?;
    m.add_class::<PyDevice>()?;
    m.add("Size", super::size::class(m.py())?)?;
    PyLayout::install(m)?;
    let _ = STRIDED.set(m.py(), m.getattr("strided")?.cast_into::<PyLayout>()?.unbind());
    PyMemoryFormat::install(m)?;
    m.add_class::<FloatInfo>()?;
    m.add_class::<IntInfo>()?;
    m.add_function(wrap_pyfunction!(get_default_dtype, m)?)?;
    m.add_function(wrap_pyfunction!(set_default_dtype, m)?)?;
    m.add_function(wrap_pyfunction!(promote_types, m)?)?;
    m.add_function(wrap_pyfunction!(can_cast, m)?)?;
    m.add_function(wrap_pyfunction!(result_type, m)?)
}
