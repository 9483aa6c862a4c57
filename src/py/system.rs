//! What the machine and the allocator say: versions, instruction set, threads, memory.
use crate::alloc;
use crate::kernels::simd;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Name of the instruction set that kernels run on: `avx512`, `avx2`, `neon` or `plain`.
#[pyfunction]
fn simd_level() -> &'static str {
    simd::level().name()
}
/// Bytes of tensors: for `tensor` (every storage) and `saved` (storages that saved slots of a graph hold, leaves that require grad left
/// out) what is live now and the peak since `reset_peak_memory_stats()`; `storages`: how many storages are alive; `idle`: bytes kept for
/// reuse; `allocations`, `recycled`: blocks taken from the system, and from what lay idle.
///
/// Work of another thread that is still running may be missing up to one MiB.
///
/// >>> import stowgrad as torch
/// >>> x = torch.ones(1000, requires_grad=True)
/// >>> before = torch.memory_stats()["saved"]["live"]
/// >>> y = (x * 2).exp()
/// >>> torch.memory_stats()["saved"]["live"] - before
/// 4000
#[pyfunction]
fn memory_stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let s = alloc::stats();
    let pair = |live: i64, peak: i64| -> PyResult<Bound<'_, PyDict>> {
        let d = PyDict::new(py);
        d.set_item("live", live)?;
        d.set_item("peak", peak)?;
        Ok(d)
    };
    let d = PyDict::new(py);
    d.set_item("tensor", pair(s.live, s.peak)?)?;
    d.set_item("saved", pair(s.saved, s.saved_peak)?)?;
    d.set_item("storages", s.storages)?;
    d.set_item("idle", s.idle)?;
    d.set_item("allocations", s.allocations)?;
    d.set_item("recycled", s.recycled)?;
    Ok(d)
}
/// Peaks of `memory_stats()` start again from what is live now.
#[pyfunction]
fn reset_peak_memory_stats() {
    alloc::reset_peak();
}
/// Gives memory that lies idle for reuse back to the system; returns the bytes.
#[pyfunction]
fn trim_memory() -> usize {
    alloc::trim()
}
/// Threads that kernels may use. This version computes on the calling thread.
#[pyfunction]
fn get_num_threads() -> usize {
    1
}
/// Asks for a number of threads. Results do not depend on it; this version computes on the calling thread whatever is asked.
#[pyfunction]
fn set_num_threads(n: &Bound<'_, PyAny>) -> PyResult<()> {
    let n: i64 = n.extract().map_err(|_| {
        PyTypeError::new_err(format!(
            "set_num_threads expects an int, but got {}",
            n.get_type().name().map_or("?".into(), |n| n.to_string())
        ))
    })?;
    if n <= 0 {
        return Err(PyRuntimeError::new_err("set_num_threads expects a positive integer"));
    }
    Ok(())
}
/// Every op of the core as data, for stubs and pages: one dict a block.
#[pyfunction]
fn _registry(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let heads = super::entry::link();
    heads
        .iter()
        .flat_map(|e| e.overloads())
        .map(|e| {
            let d = PyDict::new(py);
            d.set_item("name", e.name)?;
            d.set_item("inplace", e.inplace)?;
            d.set_item("node", e.info.map(|i| i.node).filter(|n| !n.is_empty()))?;
            d.set_item("schema", e.info.map(|i| i.schema))?;
            d.set_item("saves", e.info.map(|i| i.saves.iter().map(|(n, _)| *n).collect::<Vec<_>>()))?;
            d.set_item("view", e.info.is_some_and(|i| i.view))?;
            d.set_item("differentiable", e.info.is_some_and(|i| i.every || i.uses.inputs != 0))?;
            d.set_item("doc", e.doc.lines().map(str::trim).collect::<Vec<_>>().join("\n"))?;
            d.set_item("function", e.on.function)?;
            d.set_item("method", e.is_method())?;
            d.set_item("room", e.on.room)?;
            d.set_item("private", e.on.private)?;
            d.set_item("named", e.named)?;
            d.set_item("out", e.writes_out())?;
            let params: Vec<_> = e.params.iter().map(|p| (p.name, p.kind.hint, p.default, p.keyword_only)).collect();
            d.set_item("params", params)?;
            Ok(d)
        })
        .collect()
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add { ($($f:ident)*) => { $(m.add_function(wrap_pyfunction!($f, m)?)?;)* } }
    add! { simd_level memory_stats reset_peak_memory_stats trim_memory get_num_threads set_num_threads _registry }
    m.add("__version__", env!("CARGO_PKG_VERSION"))
}
