//! Backward calls and grad mode, as functions of the module.
use super::hooks::{AfterHook, Handle, Place, UserHook};
use super::node::{PyNode, wrap_node};
use super::tensor::{PyTensor, attached, wrap};
use crate::engine::{self, Request};
use crate::tape::{Edge, Tensor, hooks::next_id, mode};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::Arc;

/// A tensor, or a GradientEdge (a tuple of node and output number).
enum Start {
    Tensor(Tensor),
    Edge(Edge),
}
fn start(o: &Bound<'_, PyAny>) -> PyResult<Start> {
    if let Ok(t) = o.cast::<PyTensor>() {
        return Ok(Start::Tensor(t.get().tensor().clone()));
    }
    if let Ok(n) = o.getattr("node") {
        let nr: u32 = o.getattr("output_nr")?.extract()?;
        if let Ok(n) = n.cast::<PyNode>() {
            return Ok(Start::Edge(engine::edge_into(n.get().node(), nr)));
        }
        if let Some(n) = super::function::node_of(&n) {
            return Ok(Start::Edge(engine::edge_into(&n, nr)));
        }
    }
    Err(PyTypeError::new_err(format!("expected a Tensor or a GradientEdge, not {}", o.get_type().name()?)))
}
fn tensor(o: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    if o.is_none() {
        return Ok(None);
    }
    Ok(Some(o.cast::<PyTensor>().map_err(|_| PyTypeError::new_err("gradients must be Tensors or None"))?.get().tensor().clone()))
}
/// Runs a backward call for `backward` (`accumulate_grad`) or `grad`; returns one gradient per input.
#[pyfunction]
#[pyo3(signature = (tensors, grad_tensors, retain_graph, create_graph, inputs, allow_unused = true, accumulate_grad = false))]
#[expect(clippy::too_many_arguments, reason = "torch's own signature")]
fn _engine_run_backward<'py>(
    py: Python<'py>,
    tensors: &Bound<'py, PyTuple>,
    grad_tensors: &Bound<'py, PyTuple>,
    retain_graph: bool,
    create_graph: bool,
    inputs: &Bound<'py, PyTuple>,
    allow_unused: bool,
    accumulate_grad: bool,
) -> PyResult<Bound<'py, PyTuple>> {
    let (mut roots, mut edges) = (Vec::new(), Vec::new());
    for (t, g) in tensors.iter().zip(grad_tensors.iter()) {
        match start(&t)? {
            Start::Tensor(t) => roots.push((t, tensor(&g)?)),
            Start::Edge(e) => match tensor(&g)? {
                Some(g) => edges.push((e, g)),
                None => return Err(PyRuntimeError::new_err("grad can be implicitly created only for scalar outputs; give a gradient for each GradientEdge")),
            },
        }
    }
    let mut wanted = Vec::new();
    let mut keepers = Vec::new();
    for (i, o) in inputs.iter().enumerate() {
        wanted.push(match start(&o)? {
            Start::Edge(e) => e,
            Start::Tensor(t) => {
                if accumulate_grad && !t.is_leaf() {
                    keepers.push((i as u32, t.clone()));
                }
                t.edge()
            }
        });
    }
    let request = Request {
        roots,
        edges,
        retain_graph,
        create_graph,
        inputs: (!wanted.is_empty()).then_some(wanted),
        keepers,
        accumulate: accumulate_grad,
        allow_unused,
    };
    let grads = engine::run(request)?;
    let items = grads.into_iter().map(|g| match g {
        Some(t) => Ok(wrap(py, t)?.into_any()),
        None => Ok(py.None().into_bound(py)),
    });
    PyTuple::new(py, items.collect::<PyResult<Vec<_>>>()?)
}
/// Runs `fn()` when the backward call that is running is done.
#[pyfunction]
fn _queue_callback(r#fn: Py<PyAny>) -> PyResult<()> {
    engine::queue_callback(Box::new(move || {
        r#fn.call0(attached())?;
        Ok(())
    }))?;
    Ok(())
}
#[pyfunction]
fn is_grad_enabled() -> bool {
    mode::grad_enabled()
}
#[pyfunction]
fn _set_grad_enabled(enabled: bool) {
    mode::set_grad_enabled(enabled);
}
#[pyfunction]
fn is_inference_mode_enabled() -> bool {
    mode::inference()
}
/// Sets inference mode, returns what it was.
#[pyfunction]
fn _set_inference_mode(enabled: bool) -> bool {
    mode::set_inference(enabled)
}
#[pyfunction]
#[pyo3(signature = (enabled, check_nan = true))]
fn _set_anomaly_enabled(enabled: bool, check_nan: bool) {
    mode::set_anomaly(enabled, check_nan);
}
#[pyfunction]
fn is_anomaly_enabled() -> bool {
    mode::anomaly()
}
#[pyfunction]
fn is_anomaly_check_nan_enabled() -> bool {
    mode::anomaly_checks_nan()
}
/// Number of the backward call that is running on this thread, -1 if none is.
#[pyfunction]
fn _current_graph_task_id() -> i64 {
    engine::current_task().map_or(-1, |id| id as i64)
}
/// The node that is running, if a backward call is.
#[pyfunction]
fn _current_autograd_node(py: Python<'_>) -> PyResult<Option<Bound<'_, PyAny>>> {
    engine::with_task(|t| t.node.clone()).flatten().map(|n| wrap_node(py, &n)).transpose()
}
/// Will the running backward call run this node?
#[pyfunction]
fn _will_engine_execute_node(node: &Bound<'_, PyAny>) -> PyResult<bool> {
    let at = match node.cast::<PyNode>() {
        Ok(n) => match n.get().node().op.leaf() {
            Some(leaf) => engine::will_run_at(leaf.tensor().id()),
            None => engine::will_run(n.get().node()),
        },
        Err(_) => match super::function::node_of(node) {
            Some(n) => engine::will_run(&n),
            None => return Err(PyTypeError::new_err(format!("expected a node of the graph, not {}", node.get_type().name()?))),
        },
    };
    at.ok_or_else(|| PyRuntimeError::new_err("_get_will_engine_execute_node: Expected this to be called during a backward pass"))
}
/// The sequence number that the next recorded node of this thread will have.
#[pyfunction]
fn _get_sequence_nr() -> u64 {
    mode::peek_seq()
}
/// Whether the running backward call keeps the graph; None outside of one.
#[pyfunction]
fn _get_current_graph_task_keep_graph() -> Option<bool> {
    engine::with_task(|t| t.keep)
}
#[pyfunction]
fn _increment_version(tensors: &Bound<'_, PyAny>) -> PyResult<()> {
    for t in tensors.try_iter()? {
        let t = t?;
        let t = t.cast::<PyTensor>()?.get().tensor().clone();
        if t.is_inference() {
            return Err(PyRuntimeError::new_err("Inference tensors do not track version counter."));
        }
        t.array().bump();
    }
    Ok(())
}
/// Hook on a gradient: on the leaf, or on the node that made the tensor.
pub fn register_tensor_hook(t: &Tensor, f: Py<PyAny>) -> PyResult<Handle> {
    if !t.requires_grad() {
        return Err(PyRuntimeError::new_err("cannot register a hook on a tensor that doesn't require gradient"));
    }
    let (id, hook) = (next_id(), Arc::new(UserHook(f)));
    match t.grad_fn() {
        None => {
            t.with_extra(|e| e.leaf_hooks.push((id, hook)));
            Ok(Handle::new(Place::Leaf(t.downgrade()), id))
        }
        Some((n, nr)) => {
            n.with_hooks(|h| h.tensor.push((id, nr, hook)));
            Ok(Handle::new(Place::Node(Arc::downgrade(&n)), id))
        }
    }
}
pub fn register_after_hook(t: &Tensor, f: Py<PyAny>) -> PyResult<Handle> {
    if !t.requires_grad() {
        return Err(PyRuntimeError::new_err("cannot register a hook on a tensor that doesn't require gradient"));
    }
    if !t.is_leaf() {
        return Err(PyRuntimeError::new_err("post accumulate grad hooks cannot be registered on non-leaf tensors"));
    }
    let id = next_id();
    t.with_extra(|e| e.after_hooks.push((id, Arc::new(AfterHook(f)))));
    Ok(Handle::new(Place::Leaf(t.downgrade()), id))
}
pub fn retain_grad(t: &Tensor) -> PyResult<()> {
    if !t.requires_grad() {
        return Err(PyRuntimeError::new_err("can't retain_grad on Tensor that has requires_grad=False"));
    }
    if let Some((n, nr)) = t.grad_fn()
        && !t.retains_grad()
    {
        t.set_retains_grad();
        n.with_hooks(|h| h.retain.push((nr, t.downgrade())));
    }
    Ok(())
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add { ($($f:ident)*) => { $(m.add_function(wrap_pyfunction!($f, m)?)?;)* } }
    add! {
        _engine_run_backward _queue_callback is_grad_enabled _set_grad_enabled is_inference_mode_enabled _set_inference_mode
        _set_anomaly_enabled is_anomaly_enabled is_anomaly_check_nan_enabled _current_graph_task_id _current_autograd_node
        _will_engine_execute_node _get_sequence_nr _get_current_graph_task_keep_graph _increment_version
    }
    Ok(())
}
