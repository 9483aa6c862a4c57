//! Backward calls and grad mode, as functions of the module.
use super::hooks::{AfterHook, Handle, Place, UserHook};
use super::node::{PyNode, wrap_node};
use super::tensor::{PyTensor, attached, wrap};
use crate::engine::{self, Request};
use crate::tape::{Edge, GradHook, Tensor, hooks::next_id, mode};
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
                None => {
                    return Err(PyRuntimeError::new_err(
                        "grad can be implicitly created only for scalar outputs; give a gradient for each GradientEdge",
                    ));
                }
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
/// Opens a group of backward calls of this thread, in which frames are recomputed once; False if one is open.
#[pyfunction]
fn _open_backward_group() -> bool {
    crate::tape::task::open_group()
}
#[pyfunction]
fn _close_backward_group() {
    crate::tape::task::close_group();
}
/// Lets go of everything that the graphs of these tensors hold for backward.
#[pyfunction]
#[pyo3(signature = (*tensors))]
fn _release_graph(tensors: &Bound<'_, PyTuple>) -> PyResult<()> {
    let mut left = Vec::new();
    for t in tensors.iter() {
        match start(&t)? {
            Start::Tensor(t) => left.push(t.edge()),
            Start::Edge(e) => left.push(e),
        }
    }
    let mut seen = rustc_hash::FxHashSet::default();
    while let Some(e) = left.pop() {
        if let Edge::Node(n, _) = e
            && seen.insert(Arc::as_ptr(&n) as usize)
        {
            left.extend(n.inputs.iter().map(|i| i.edge.clone()));
            n.release();
        }
    }
    Ok(())
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
    mode::grad_mode()
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
    engine::current_node().map(|n| wrap_node(py, &n)).transpose()
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
/// The nodes that the running backward call runs, first to last; leaves as their AccumulateGrad nodes.
#[pyfunction]
fn _current_graph_task_execution_order(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyAny>>> {
    let Some(order) = engine::execution_order() else {
        return Err(PyRuntimeError::new_err("_current_graph_task_execution_order: Expected this to be called during a backward pass"));
    };
    order.iter().map(|n| wrap_node(py, n)).collect()
}
/// Sets the versions of tensors, which saved values are compared with.
#[pyfunction(name = "_unsafe_set_version_counter")]
fn set_versions(tensors: &Bound<'_, PyAny>, versions: &Bound<'_, PyAny>) -> PyResult<()> {
    for (t, v) in tensors.try_iter()?.zip(versions.try_iter()?) {
        let (t, v) = (t?, v?.extract::<u64>()?);
        t.cast::<PyTensor>()?.get().tensor().look(|a| a.counter().store(v, std::sync::atomic::Ordering::Release));
    }
    Ok(())
}
/// May the reentrant checkpoint run? Only in a backward call that accumulates into every leaf.
#[pyfunction]
fn _is_checkpoint_valid() -> bool {
    engine::with_task(|t| t.needed.is_none()).unwrap_or(true)
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
    Ok(hook_on(t, Arc::new(UserHook(f))))
}
fn hook_on(t: &Tensor, hook: Arc<dyn GradHook>) -> Handle {
    let id = next_id();
    match t.grad_fn() {
        None => {
            t.with_extra(|e| e.leaf_hooks.push((id, hook)));
            Handle::new(Place::Leaf(t.downgrade()), id)
        }
        Some((n, nr)) => {
            n.with_hooks(|h| h.tensor.push((id, nr, hook)));
            Handle::new(Place::Node(Arc::downgrade(&n)), id)
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
/// What a registration over several tensors shares: where each of their gradients goes.
struct Multi {
    id: u64,
    any: bool,
    places: Vec<Option<usize>>,
}
/// Its state within one backward call.
struct MultiRun {
    left: usize,
    fired: bool,
    grads: Vec<Option<Tensor>>,
}
/// The hook on one of the tensors. Each has its own reference to the function, so that the collector counts them.
struct Part {
    multi: Arc<Multi>,
    index: usize,
    function: Py<PyAny>,
}
impl GradHook for Part {
    fn call(&self, g: &Tensor) -> crate::error::Result<Option<Tensor>> {
        let m = &self.multi;
        let fresh = engine::with_task(|t| !t.state.contains_key(&m.id)).unwrap_or(false);
        // computed once a call, outside of the borrow of the running calls
        let left = if fresh && !m.any { m.places.iter().flatten().filter(|at| engine::will_run_at(**at) == Some(true)).count() } else { 0 };
        let ready = engine::with_task(|t| {
            let state = t.state.entry(m.id).or_insert_with(|| Box::new(MultiRun { left, fired: false, grads: vec![None; m.places.len()] }));
            let run = state.downcast_mut::<MultiRun>()?;
            if m.any {
                return (!std::mem::replace(&mut run.fired, true)).then(Vec::new);
            }
            run.grads[self.index] = Some(g.clone());
            run.left = run.left.saturating_sub(1);
            (run.left == 0 && !std::mem::replace(&mut run.fired, true)).then(|| std::mem::take(&mut run.grads))
        })
        .flatten();
        let Some(grads) = ready else { return Ok(None) };
        let py = attached();
        let function = self.function.clone_ref(py);
        if m.any {
            function.call1(py, (wrap(py, g.clone())?,))?;
            return Ok(None);
        }
        let items = grads.into_iter().map(|g| match g {
            Some(t) => Ok(wrap(py, t)?.into_any()),
            None => Ok(py.None().into_bound(py)),
        });
        function.call1(py, (pyo3::types::PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)?,))?;
        Ok(None)
    }
    fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.function.as_ptr() as usize);
    }
}
/// Removes a hook over several tensors, at any time, also inside the hook.
#[pyclass(name = "_MultiHandle", module = "stowgrad._C", weakref)]
struct MultiHandle(Vec<Handle>);
#[pymethods]
impl MultiHandle {
    fn remove(&mut self) {
        for mut h in std::mem::take(&mut self.0) {
            h.remove();
        }
    }
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    #[pyo3(signature = (*_args))]
    fn __exit__(&mut self, _args: &Bound<'_, PyTuple>) {
        self.remove();
    }
    fn __getstate__(&self) -> (usize,) {
        (self.0.len(),)
    }
    fn __setstate__(&mut self, _state: &Bound<'_, PyAny>) {}
    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, ())> {
        Ok((slf.py().get_type::<MultiHandle>().getattr("_gone")?.unbind(), ()))
    }
    /// A handle whose hooks are elsewhere (what a pickled one becomes).
    #[staticmethod]
    fn _gone() -> MultiHandle {
        MultiHandle(Vec::new())
    }
}
/// Calls `fn` once a backward call: with the gradients of all `tensors` that it reaches (None for the others) when the last is known
/// (`mode="all"`), or with the first one that is (`mode="any"`). Returns a handle with `remove()`.
///
/// ValueError for another mode, RuntimeError for a tensor that does not require grad.
///
/// >>> import stowgrad as torch
/// >>> a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
/// >>> handle = torch.autograd.graph.register_multi_grad_hook((a, b), lambda grads: print([g is not None for g in grads]))
/// >>> (a * b).sum().backward()
/// [True, True]
/// >>> a.sum().backward()
/// [True, False]
#[pyfunction]
#[pyo3(signature = (tensors, r#fn, *, mode = "all"))]
fn register_multi_grad_hook(tensors: &Bound<'_, PyAny>, r#fn: &Bound<'_, PyAny>, mode: &str) -> PyResult<MultiHandle> {
    let any = match mode {
        "all" => false,
        "any" => true,
        m => return Err(pyo3::exceptions::PyValueError::new_err(format!("Expects mode to be one of ('all', 'any') but got {m}"))),
    };
    let mut list = Vec::new();
    for t in tensors.try_iter()? {
        let t = t?;
        let t = t.cast::<PyTensor>().map_err(|_| PyTypeError::new_err("register_multi_grad_hook takes Tensors"))?.get().tensor().clone();
        if !t.requires_grad() {
            return Err(PyRuntimeError::new_err(
                "Expected this function to be called with tensors that require grad: cannot register a hook on a tensor that doesn't require gradient",
            ));
        }
        list.push(t);
    }
    let places = list
        .iter()
        .map(|t| match t.edge() {
            Edge::Node(n, _) => Some(Arc::as_ptr(&n) as usize),
            Edge::Leaf(h) => Some(h.tensor().id()),
            Edge::None => None,
        })
        .collect();
    let multi = Arc::new(Multi { id: next_id(), any, places });
    let handles = list.iter().enumerate().map(|(index, t)| {
        let part = Part { multi: multi.clone(), index, function: r#fn.clone().unbind() };
        hook_on(t, Arc::new(part))
    });
    Ok(MultiHandle(handles.collect()))
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    macro_rules! add { ($($f:ident)*) => { $(m.add_function(wrap_pyfunction!($f, m)?)?;)* } }
    add! {
        _engine_run_backward _queue_callback is_grad_enabled _set_grad_enabled is_inference_mode_enabled _set_inference_mode
        _set_anomaly_enabled is_anomaly_enabled is_anomaly_check_nan_enabled _current_graph_task_id _current_autograd_node
        _current_graph_task_execution_order _will_engine_execute_node _get_sequence_nr _get_current_graph_task_keep_graph _increment_version register_multi_grad_hook _is_checkpoint_valid _open_backward_group _close_backward_group _release_graph
    }
    // Where torch has them.
    let room = m.getattr("_autograd")?.cast_into::<PyModule>()?;
    for name in ["_get_current_graph_task_keep_graph", "_is_checkpoint_valid", "SavedTensor"] {
        room.add(name, m.getattr(name)?)?;
    }
    room.add_function(wrap_pyfunction!(set_versions, &room)?)?;
    m.add_class::<MultiHandle>()
}
