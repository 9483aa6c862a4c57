//! The small value classes: `dtype`, `device`, `Size`.
use crate::dtype::DType;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

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
}
pub fn size<'py>(py: Python<'py>, s: &[i64]) -> PyResult<Bound<'py, PyAny>> {
    Ok(PyTuple::new(py, s)?.into_any())
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    for d in DType::ALL {
        m.add(d.name(), PyDType::get(m.py(), d))?;
    }
    m.add_class::<PyDType>()
}
