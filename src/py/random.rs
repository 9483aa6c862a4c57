//! `Generator`, and the functions that seed and read the process's one.
use super::arg::{FromArg, Kind, Refused, kind};
use super::call::{Values, tensor_of, type_name};
use super::dtype::PyDevice;
use super::wrap;
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Result, bail};
use crate::kernels::pointwise;
use crate::kernels::random::Generator;
use crate::ops::macros::function;
use crate::tape::{RandomSource, Tensor};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyFloat, PyInt, PyTuple};

/// A source of random numbers. `default_generator` stands for the one that draws without `generator=` use.
#[pyclass(name = "Generator", module = "stowgrad", frozen, weakref, subclass)]
pub struct PyGenerator(Option<RandomSource>);
impl PyGenerator {
    pub fn of(s: RandomSource) -> PyGenerator {
        PyGenerator(Some(s))
    }
    fn source(&self) -> RandomSource {
        self.0.as_ref().map_or_else(RandomSource::current, RandomSource::named)
    }
}
/// A seed of 64 bits, signed or not.
fn seed_of(v: &Bound<'_, PyAny>) -> Result<u64> {
    if v.is_instance_of::<PyFloat>() {
        bail!(Runtime, "manual_seed expected a long, but got {}", type_name(v.as_borrowed()));
    }
    let Ok(v) = v.py().get_type::<PyInt>().call1((v,)) else {
        bail!(Value, "manual_seed(): a seed is an integer, not {}", type_name(v.as_borrowed()))
    };
    match (v.extract::<i64>(), v.extract::<u64>()) {
        (Ok(s), _) => Ok(s as u64),
        (_, Ok(s)) => Ok(s),
        _ => bail!(Value, "Overflow when unpacking long long: the seed {v} does not fit into 64 bits"),
    }
}
fn state_of(s: &RandomSource) -> Result<Tensor> {
    let bytes = s.state().get_state();
    Ok(Tensor::new(Array::from_slice(&[bytes.len()], &bytes)?))
}
fn restore(s: &RandomSource, state: &Bound<'_, PyAny>) -> Result<()> {
    let Some(t) = tensor_of(state.as_borrowed()) else {
        bail!(Type, "expected a torch.ByteTensor, but got {}", type_name(state.as_borrowed()))
    };
    let a = t.array();
    if a.dtype != DType::UInt8 || a.ndim() != 1 {
        bail!(Type, "RNG state must be a torch.ByteTensor, got {} of shape {:?}", a.dtype.torch_name(), a.shape);
    }
    let mut g = Generator::default();
    g.set_state(pointwise::contiguous(&a)?.slice::<u8>())?;
    s.set(g);
    Ok(())
}
#[pymethods]
impl PyGenerator {
    #[new]
    #[pyo3(signature = (device = None))]
    fn new(device: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        if let Some(d) = device.and_then(|d| PyDevice::of(d.as_borrowed())) {
            d?.check()?;
        }
        Ok(PyGenerator(Some(RandomSource::new(Generator::default()))))
    }
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::CPU
    }
    /// Seeds the generator, and returns it.
    fn manual_seed<'py>(slf: Bound<'py, Self>, seed: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let seed = seed_of(seed)?;
        slf.get().source().set(Generator::new(seed));
        Ok(slf)
    }
    /// Seeds the generator from the system's randomness, and returns the seed.
    fn seed(&self) -> u64 {
        self.source().with(Generator::reseed)
    }
    fn initial_seed(&self) -> u64 {
        self.source().with(|g| g.initial_seed())
    }
    /// The state, as a uint8 tensor; torch's generator reads it too.
    fn get_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(wrap(py, state_of(&self.source())?)?.into_any())
    }
    fn set_state<'py>(slf: Bound<'py, Self>, new_state: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        restore(&slf.get().source(), new_state)?;
        Ok(slf)
    }
    /// Another generator in the same state.
    fn clone_state(&self) -> PyGenerator {
        PyGenerator(Some(RandomSource::new(self.source().state())))
    }
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let f = py.import("stowgrad._C")?.getattr("_generator_from_state")?;
        Ok((f, PyTuple::new(py, [self.get_state(py)?])?))
    }
}
impl<'py> FromArg<'py> for RandomSource {
    const KIND: Kind = kind("torch.Generator", "Generator");
    fn from_arg(v: Values<'py>) -> Result<Self, Refused> {
        match v.one().cast::<PyGenerator>() {
            Ok(g) => Ok(g.get().source()),
            Err(_) => Err(Refused::Type),
        }
    }
}
function! {
    /// A generator in a state that `get_state` gave.
    fn generator_from_state(; state: Py<PyAny>) -> Py<PyAny>;
    on [private];
    {
        Python::attach(|py| {
            let s = RandomSource::new(Generator::default());
            restore(&s, state.bind(py))?;
            Ok(Py::new(py, PyGenerator(Some(s)))?.into_any())
        })
    }
}
static DEFAULT: PyOnceLock<Py<PyGenerator>> = PyOnceLock::new();
fn default(py: Python<'_>) -> PyResult<&Bound<'_, PyGenerator>> {
    Ok(DEFAULT.get_or_try_init(py, || Py::new(py, PyGenerator(None)))?.bind(py))
}
function! {
    /// Seeds the generator that is used without `generator=`, and returns it.
    ///
    /// Raises ValueError if `seed` is no integer of 64 bits.
    fn manual_seed(; seed: Py<PyAny>) -> Py<PyAny>;
    on [function];
    {
        Python::attach(|py| {
            let v = py.get_type::<PyInt>().call1((seed.bind(py),))?;
            RandomSource::current().set(Generator::new(seed_of(&v)?));
            Ok(default(py)?.clone().into_any().unbind())
        })
    }
}
function! {
    /// Seeds the generator that is used without `generator=` from the system's randomness, and returns the seed.
    fn seed() -> Py<PyAny>;
    on [function];
    {
        let s = RandomSource::current().with(Generator::reseed);
        Python::attach(|py| Ok(pyo3::IntoPyObjectExt::into_py_any(s, py)?))
    }
}
function! {
    /// The seed that was set last.
    fn initial_seed() -> Py<PyAny>;
    on [function];
    {
        let s = RandomSource::current().with(|g| g.initial_seed());
        Python::attach(|py| Ok(pyo3::IntoPyObjectExt::into_py_any(s, py)?))
    }
}
function! {
    /// The state of the generator that is used without `generator=`, as a uint8 tensor.
    fn get_rng_state() -> Tensor;
    on [function];
    { state_of(&RandomSource::current()) }
}
function! {
    /// Puts the generator that is used without `generator=` into a state that `get_rng_state` gave.
    fn set_rng_state(; new_state: Py<PyAny>) -> ();
    on [function];
    { Python::attach(|py| restore(&RandomSource::current(), new_state.bind(py))) }
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyGenerator>()?;
    m.add("default_generator", default(m.py())?)
}
