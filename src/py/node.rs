//! Nodes and saved values as Python sees them.
//!
//! One object a node for as long as it is held (the node knows its wrapper by a borrowed pointer). Safety as in `tensor`.
#![allow(unsafe_code)]
use super::dtype::PyDType;
use super::hooks::{Handle, Place, UserHook, pair};
use super::ret::number;
use super::size::new_size;
use super::tensor::{PyTensor, visit_node, wrap, wrap_held};
use crate::engine;
use crate::tape::node::Notes;
use crate::tape::saved::Value;
use crate::tape::{Attr, Edge, Held, Node, hooks::next_id};
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple, PyType};
use std::cell::RefCell;
use std::sync::atomic::{AtomicPtr, Ordering::*};
use std::sync::{Arc, Weak};

/// Each kind of node has a class of its own, of the kind's name, below this one.
#[pyclass(name = "Node", module = "stowgrad._C", frozen, weakref, subclass)]
pub struct PyNode {
    n: Arc<Node>,
    me: AtomicPtr<()>,
}
impl Drop for PyNode {
    fn drop(&mut self) {
        let _ = self.n.wrapper.compare_exchange(self.me.load(Acquire), std::ptr::null_mut(), AcqRel, Relaxed);
    }
}
impl PyNode {
    pub fn node(&self) -> &Arc<Node> {
        &self.n
    }
}
thread_local! {
    /// The node whose object is being made.
    static NEXT: RefCell<Option<Arc<Node>>> = const { RefCell::new(None) };
}
/// The class of a kind of node, `MulBackward0`: made when first asked for.
fn class_of<'py>(py: Python<'py>, n: &Node) -> PyResult<Bound<'py, PyAny>> {
    static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let classes = CLASSES.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    let name = n.name();
    let name = PyString::new(py, name.rsplit("::").next().unwrap_or(&name));
    if let Some(class) = classes.get_item(&name)? {
        return Ok(class);
    }
    let body = PyDict::new(py);
    body.set_item("__slots__", PyTuple::empty(py))?;
    body.set_item("__module__", "builtins")?;
    let class = py.get_type::<PyType>().call1((&name, (py.get_type::<PyNode>(),), body))?;
    classes.set_item(name, &class)?;
    Ok(class)
}
/// The Python object of a node.
pub fn wrap_node<'py>(py: Python<'py>, n: &Arc<Node>) -> PyResult<Bound<'py, PyAny>> {
    let at = n.wrapper.load(Acquire).cast::<ffi::PyObject>();
    // SAFETY: a wrapper clears the pointer before its memory goes; one whose count is 0 is dying.
    unsafe {
        if !at.is_null() && ffi::Py_REFCNT(at) > 0 {
            return Ok(Bound::from_borrowed_ptr(py, at));
        }
    }
    let class = class_of(py, n)?;
    NEXT.with(|next| next.replace(Some(n.clone())));
    let made = class.call0();
    drop(NEXT.take());
    let obj = made?.cast_into::<PyNode>().map_err(PyErr::from)?;
    let me = obj.as_ptr().cast::<()>();
    obj.get().me.store(me, Release);
    n.wrapper.store(me, Release);
    Ok(obj.into_any())
}
pub fn attr<'py>(py: Python<'py>, a: &Attr) -> PyResult<Bound<'py, PyAny>> {
    Ok(match a {
        Attr::None => py.None().into_bound(py),
        Attr::Scalar(s) => number(py, *s)?,
        Attr::Ints(v) => PyTuple::new(py, v)?.into_any(),
        Attr::Floats(v) => PyTuple::new(py, v)?.into_any(),
        Attr::Str(s) => pyo3::types::PyString::new(py, s).into_any(),
        Attr::DType(d) => PyDType::get(py, *d).into_any(),
    })
}
/// `metadata`: a dict of the user's.
struct Metadata(Py<PyDict>);
impl Notes for Metadata {
    fn any(&self) -> &dyn std::any::Any {
        self
    }
    fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.0.as_ptr() as usize);
    }
    fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}
/// What an edge leads to, as `(node, output number)`.
pub fn edge<'py>(py: Python<'py>, e: &Edge) -> PyResult<Bound<'py, PyTuple>> {
    let (node, nr) = match e {
        Edge::None => (py.None().into_bound(py), 0),
        Edge::Node(n, nr) => (wrap_node(py, n)?, *nr),
        Edge::Leaf(h) => {
            // the object of a leaf outlives this call only if it is its wrapper's: make sure there is one
            let held = Held::of(wrap_held(py, h)?.get().tensor());
            (wrap_node(py, &engine::accumulate_node(&held))?, 0)
        }
    };
    (node, nr).into_pyobject(py)
}
/// What a node offers, for `Node` and for the contexts of custom functions alike.
pub fn next_functions<'py>(py: Python<'py>, n: &Node) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, (0..n.inputs.len()).filter(|&i| n.shows(i)).map(|i| edge(py, &n.inputs[i].edge)).collect::<PyResult<Vec<_>>>()?)
}
pub fn register_hook(n: &Arc<Node>, f: Py<PyAny>) -> Handle {
    let id = next_id();
    let hook = Arc::new(UserHook(f));
    if let Some(leaf) = n.op.leaf() {
        leaf.tensor().with_extra(|e| e.node_hooks.push((id, hook)));
        return Handle::new(Place::Leaf(leaf.tensor().downgrade()), id);
    }
    n.with_hooks(|h| h.post.push((id, hook)));
    Handle::new(Place::Node(Arc::downgrade(n)), id)
}
pub fn register_prehook(n: &Arc<Node>, f: Py<PyAny>) -> Handle {
    let id = next_id();
    let hook = Arc::new(UserHook(f));
    if let Some(leaf) = n.op.leaf() {
        leaf.tensor().with_extra(|e| e.pre_hooks.push((id, hook)));
        return Handle::new(Place::Leaf(leaf.tensor().downgrade()), id);
    }
    n.with_hooks(|h| h.pre.push((id, hook)));
    Handle::new(Place::Node(Arc::downgrade(n)), id)
}
pub fn metadata(py: Python<'_>, n: &Node) -> Py<PyAny> {
    let new = PyDict::new(py).unbind();
    let fresh: Arc<dyn Notes> = Arc::new(Metadata(new));
    let notes = n.with_hooks(|h| h.notes.get_or_insert_with(|| fresh.clone()).clone());
    // SAFETY: the node's notes own the dict, and `notes` keeps them for the length of this call.
    unsafe { Bound::from_borrowed_ptr(py, notes.address() as *mut ffi::PyObject).unbind() }
}
/// Shape, dtype and device of the gradients that the node receives.
pub fn input_metadata<'py>(py: Python<'py>, n: &Node) -> PyResult<Bound<'py, PyList>> {
    let rows = (0..n.outputs()).map(|i| {
        let m = n.output(i);
        let row = PyDict::new(py);
        row.set_item("shape", new_size(py, m.shape.len(), |d| m.shape[d] as i64)?)?;
        row.set_item("dtype", PyDType::get(py, m.dtype))?;
        row.set_item("is_nested_tensor", false)?;
        let space = py.import("types")?.getattr("SimpleNamespace")?;
        space.call((), Some(&row))
    });
    PyList::new(py, rows.collect::<PyResult<Vec<_>>>()?)
}
/// `_saved_x`, `_raw_saved_x`, parameters; None if there is nothing of that name.
pub fn lookup<'py>(py: Python<'py>, n: &Arc<Node>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    if let Some(slot) = name.strip_prefix("_raw_saved_") {
        if let Some((list, from)) = n.op.list()
            && list == slot
        {
            let count = n.slots().values.len();
            let items = (from..count).map(|i| Bound::new(py, SavedTensor { node: Arc::downgrade(n), slot: i }));
            return Ok(Some(PyTuple::new(py, items.collect::<PyResult<Vec<_>>>()?)?.into_any()));
        }
        return match n.slot_number(slot) {
            Some(i) => Ok(Some(Bound::new(py, SavedTensor { node: Arc::downgrade(n), slot: i })?.into_any())),
            None => Ok(None),
        };
    }
    let Some(slot) = name.strip_prefix("_saved_") else { return Ok(None) };
    if let Some((list, from)) = n.op.list()
        && list == slot
    {
        return saved_list(py, n, from).map(Some);
    }
    if let Some(i) = n.slot_number(slot) {
        return saved(py, n, i).map(Some);
    }
    match n.op.attrs(n).iter().find(|(k, _)| *k == slot) {
        Some((_, a)) => attr(py, a).map(Some),
        None => Ok(None),
    }
}
/// The value of one slot as the user may see it.
pub fn saved<'py>(py: Python<'py>, n: &Arc<Node>, slot: usize) -> PyResult<Bound<'py, PyAny>> {
    match n.unpack(slot, true)? {
        None => Ok(py.None().into_bound(py)),
        Some(t) if t.is_number() => {
            // a number lives in many places: the user gets a copy
            let a = t.array();
            Ok(wrap(py, crate::tape::Tensor::new(crate::array::Array::scalar(a.item(), a.dtype)?))?.into_any())
        }
        Some(t) => {
            let w = wrap(py, t)?;
            promote(n, slot, &w);
            Ok(w.into_any())
        }
    }
}
/// A slot that held a core tensor holds its wrapper from now on, so that attributes on it stay.
fn promote(n: &Arc<Node>, slot: usize, w: &Bound<'_, PyTensor>) {
    let t = w.get().tensor();
    let held = Held::of(t);
    let old = match n.slots().values.get_mut(slot) {
        Some(Value::Kept { held: now, .. }) if now.tensor().ptr_eq(t) => std::mem::replace(now, held),
        _ => held,
    };
    drop(old);
}
pub fn saved_list<'py>(py: Python<'py>, n: &Arc<Node>, from: usize) -> PyResult<Bound<'py, PyAny>> {
    if n.is_freed() {
        return Err(n.freed_error().into());
    }
    let count = n.slots().values.len();
    let items = (from..count).map(|i| saved(py, n, i)).collect::<PyResult<Vec<_>>>()?;
    Ok(PyTuple::new(py, items)?.into_any())
}

#[pymethods]
impl PyNode {
    #[new]
    fn new() -> PyResult<PyNode> {
        match NEXT.take() {
            Some(n) => Ok(PyNode { n, me: AtomicPtr::new(std::ptr::null_mut()) }),
            None => Err(PyTypeError::new_err("cannot create Node instances: operations make them")),
        }
    }
    /// The node's name, such as `'MulBackward0'`.
    fn name(&self) -> String {
        self.n.name().into_owned()
    }
    /// `(node, output number)` of each input that has a derivative; `(None, 0)` where no gradient goes.
    #[getter]
    fn next_functions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        next_functions(py, &self.n)
    }
    /// A dict of the user's, kept with the node.
    #[getter]
    fn metadata(&self, py: Python<'_>) -> Py<PyAny> {
        metadata(py, &self.n)
    }
    #[getter]
    fn _input_metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        input_metadata(py, &self.n)
    }
    /// Number of the node in the order of recording of its thread.
    fn _sequence_nr(&self) -> u64 {
        self.n.seq()
    }
    fn _set_sequence_nr(&self, nr: u64) {
        self.n.set_seq(nr);
    }
    /// Calls `fn(grad_inputs, grad_outputs)` after the node.
    fn register_hook(&self, r#fn: Py<PyAny>) -> Handle {
        register_hook(&self.n, r#fn)
    }
    /// Calls `fn(grad_outputs)` before the node.
    fn register_prehook(&self, r#fn: Py<PyAny>) -> Handle {
        register_prehook(&self.n, r#fn)
    }
    /// The leaf of an AccumulateGrad node.
    #[getter]
    fn variable<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTensor>> {
        match self.n.op.leaf() {
            Some(h) => wrap_held(py, h),
            None => Err(PyAttributeError::new_err(format!("{} has no attribute 'variable': it is no AccumulateGrad node", self.n.name()))),
        }
    }
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        if let Some(v) = lookup(py, &self.n, name)? {
            return Ok(v);
        }
        if let Some(at) = self.n.op.object() {
            // SAFETY: the node owns the object, and `self` owns the node.
            return unsafe { Bound::from_borrowed_ptr(py, at as *mut ffi::PyObject) }.getattr(name);
        }
        Err(PyAttributeError::new_err(format!("'{}' object has no attribute '{name}'", self.n.name())))
    }
    fn __dir__(&self) -> Vec<String> {
        let mut names: Vec<String> =
            ["metadata", "name", "next_functions", "register_hook", "register_prehook", "_sequence_nr", "_input_metadata"]
                .map(String::from)
                .into();
        let list = self.n.op.list().map(|(n, _)| n);
        let saves = self.n.info().saves.iter().map(|(n, _)| *n).filter(|n| Some(*n) != list);
        names.extend(saves.flat_map(|n| [format!("_saved_{n}"), format!("_raw_saved_{n}")]));
        names.extend(self.n.op.attrs(&self.n).iter().map(|(n, _)| format!("_saved_{n}")));
        if let Some((n, _)) = self.n.op.list() {
            names.extend([format!("_saved_{n}"), format!("_raw_saved_{n}")]);
        }
        names
    }
    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let name = slf.get().n.name();
        format!("<{} object at {:p}>", name.rsplit("::").next().unwrap_or(&name), slf.as_ptr())
    }
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if Arc::strong_count(&self.n) == 1 { visit_node(&self.n, visit, &mut 256) } else { Ok(()) }
    }
    fn __clear__(&self) {
        if Arc::strong_count(&self.n) == 1 {
            drop(self.n.clear());
        }
    }
}

/// One slot of a node, packed: hooks of its own may be registered on it, once. It does not keep the node alive.
#[pyclass(module = "stowgrad._C", frozen)]
pub struct SavedTensor {
    node: Weak<Node>,
    slot: usize,
}
impl SavedTensor {
    fn node(&self) -> PyResult<Arc<Node>> {
        self.node.upgrade().ok_or_else(|| PyRuntimeError::new_err("this saved value is gone: its node is no longer part of any graph"))
    }
}
#[pymethods]
impl SavedTensor {
    /// Packs the value with `pack_hook` now, and unpacks it with `unpack_hook` at each use.
    fn register_hooks(&self, pack_hook: &Bound<'_, PyAny>, unpack_hook: &Bound<'_, PyAny>) -> PyResult<()> {
        let pair = pair(pack_hook, unpack_hook)?;
        let node = self.node()?;
        let now = {
            let s = node.slots();
            if s.freed {
                drop(s);
                return Err(node.freed_error().into());
            }
            s.values.get(self.slot).map_or(Value::Empty, Value::share)
        };
        match now {
            Value::Stowed(..) | Value::Packed(_) => {
                return Err(PyRuntimeError::new_err(
                    "Calling register_hooks on a saved tensor whose hooks have already been set: hooks can be set only once",
                ));
            }
            Value::Empty => return Err(PyRuntimeError::new_err("Calling register_hooks on a saved tensor with value None is forbidden")),
            _ => {}
        }
        let packed = now.pack_with(&node, self.slot, &pair)?;
        drop(node.replace_slot(self.slot, packed));
        Ok(())
    }
    /// The value.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        saved(py, &self.node()?, self.slot)
    }
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyNode>()?;
    m.add_class::<SavedTensor>()
}
