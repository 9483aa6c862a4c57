//! User code behind the tape's traits: pack/unpack pairs, hooks on gradients and nodes, and the host.
use super::keeper::{Keeper, Owned};
use super::tensor::{PyTensor, attached, wrap};
use crate::error::{Result, bail, err};
use crate::stow::host::HostMemory;
use crate::tape::saved::Counted;
use crate::tape::tensor::WeakTensor;
use crate::tape::{GradHook, Host, Line, Node, NodeHook, Pack, PreHook, Saving, Stow, Stowed, Tensor, mode};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use smallvec::SmallVec;
use std::sync::{Arc, Weak};

/// A user's pair of functions, as an object that the collector sees.
#[pyclass(frozen, module = "stowgrad._C")]
pub struct Pair {
    pub pack: Py<PyAny>,
    pub unpack: Py<PyAny>,
}
#[pymethods]
impl Pair {
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.pack)?;
        visit.call(&self.unpack)
    }
}
/// The policy of a user's pair.
pub struct UserPack(pub Py<Pair>);
struct UserStow;
static USER: std::sync::LazyLock<Arc<dyn Stow>> = std::sync::LazyLock::new(|| Arc::new(UserStow));

impl Pack for UserPack {
    fn pack(&self, s: &Saving<'_>) -> Result<Option<Arc<Stowed>>> {
        let py = attached();
        let packed = self.0.get().pack.bind(py).call1((wrap(py, s.tensor())?,))?;
        let counted = counted(&packed);
        let keeper = Keeper { owner: Owned::new(self.0.clone_ref(py).into_any()), packed: Some(Owned::new(packed.unbind())), counted };
        Ok(Some(Stowed::new(USER.clone(), 0, Some(keeper))))
    }
}
/// Storages of the tensors that a packed object consists of: their bytes count as saved while the slot lives.
fn counted(packed: &Bound<'_, PyAny>) -> SmallVec<[Counted; 1]> {
    let mut found = SmallVec::new();
    let mut look = |o: &Bound<'_, PyAny>| {
        if let Ok(t) = o.cast::<PyTensor>()
            && t.get().tensor().counts_as_saved()
        {
            found.push(t.get().tensor().look(|a| Counted::new(a.storage())));
        }
    };
    match packed.cast::<PyTuple>() {
        Ok(parts) => parts.iter().for_each(|o| look(&o)),
        Err(_) => look(packed),
    }
    found
}
impl Stow for UserStow {
    fn unpack(&self, _key: u32, keeper: Option<&Keeper>, want: &crate::tape::saved::Wanted<'_>) -> Result<Tensor> {
        let py = attached();
        let Some(Keeper { owner, packed: Some(packed), .. }) = keeper else { bail!(Runtime, "a packed value lost what was packed") };
        let pair = owner.get().bind(py).cast::<Pair>().map_err(PyErr::from)?.clone();
        let (packed, unpack) = (packed.get().clone_ref(py), pair.get().unpack.clone_ref(py));
        let given = mode::no_grad(|| unpack.bind(py).call1((packed,)))?;
        match given.cast::<PyTensor>() {
            Ok(t) => Ok(t.get().tensor().clone()),
            Err(_) => Err(err!(
                Type,
                "Output of saved tensor unpack_hook expected to be a Tensor but got result of type {}; {} saved a tensor of shape {:?}",
                given.get_type().name()?,
                want.by,
                want.shape
            )),
        }
    }
}
fn callable(f: &Bound<'_, PyAny>, what: &str) -> PyResult<()> {
    if f.is_callable() {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!("{what} must be callable, not {}", f.get_type().name()?)))
}
pub fn pair(pack: &Bound<'_, PyAny>, unpack: &Bound<'_, PyAny>) -> PyResult<Arc<dyn Pack>> {
    callable(pack, "pack_hook")?;
    callable(unpack, "unpack_hook")?;
    Ok(Arc::new(UserPack(Py::new(pack.py(), Pair { pack: pack.clone().unbind(), unpack: unpack.clone().unbind() })?)))
}

/// A user's function as a hook of any kind.
pub struct UserHook(pub Py<PyAny>);
fn grads<'py>(py: Python<'py>, g: &[Option<Tensor>]) -> PyResult<Bound<'py, PyTuple>> {
    let items = g.iter().map(|g| match g {
        Some(t) => Ok(wrap(py, t.clone())?.into_any()),
        None => Ok(py.None().into_bound(py)),
    });
    PyTuple::new(py, items.collect::<PyResult<Vec<_>>>()?)
}
fn given(r: &Bound<'_, PyAny>, who: &str) -> PyResult<Option<Vec<Option<Tensor>>>> {
    let one = |o: &Bound<'_, PyAny>| -> PyResult<Option<Tensor>> {
        if o.is_none() {
            return Ok(None);
        }
        match o.cast::<PyTensor>() {
            Ok(t) => Ok(Some(t.get().tensor().clone())),
            Err(_) => Err(PyTypeError::new_err(format!("{who}: expected Tensor or None, but hook returned '{}'", o.get_type().name()?))),
        }
    };
    if r.is_none() {
        return Ok(None);
    }
    if r.is_instance_of::<PyTensor>() {
        return Ok(Some(vec![one(r)?]));
    }
    match r.cast::<PyTuple>() {
        Ok(t) => t.iter().map(|o| one(&o)).collect::<PyResult<Vec<_>>>().map(Some),
        Err(_) => r.try_iter()?.map(|o| one(&o?)).collect::<PyResult<Vec<_>>>().map(Some),
    }
}
impl GradHook for UserHook {
    fn call(&self, g: &Tensor) -> Result<Option<Tensor>> {
        let py = attached();
        let r = self.0.bind(py).call1((wrap(py, g.clone())?,))?;
        if r.is_none() {
            return Ok(None);
        }
        match r.cast::<PyTensor>() {
            Ok(t) => Ok(Some(t.get().tensor().clone())),
            Err(_) => Err(err!(Type, "expected Tensor or None, but a gradient hook returned '{}'", r.get_type().name()?)),
        }
    }
    fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.0.as_ptr() as usize);
    }
}
/// A hook after accumulation: sees the tensor, gives nothing.
pub struct AfterHook(pub Py<PyAny>);
impl GradHook for AfterHook {
    fn call(&self, t: &Tensor) -> Result<Option<Tensor>> {
        let py = attached();
        if !self.0.bind(py).call1((wrap(py, t.clone())?,))?.is_none() {
            bail!(Runtime, "Tensor post accumulate grad hooks should return None.");
        }
        Ok(None)
    }
    fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.0.as_ptr() as usize);
    }
}
impl PreHook for UserHook {
    fn call(&self, outputs: &[Option<Tensor>]) -> Result<Option<Vec<Option<Tensor>>>> {
        let py = attached();
        Ok(given(&self.0.bind(py).call1((grads(py, outputs)?,))?, "a node prehook")?)
    }
    fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.0.as_ptr() as usize);
    }
}
impl NodeHook for UserHook {
    fn call(&self, inputs: &[Option<Tensor>], outputs: &[Option<Tensor>]) -> Result<Option<Vec<Option<Tensor>>>> {
        let py = attached();
        Ok(given(&self.0.bind(py).call1((grads(py, inputs)?, grads(py, outputs)?))?, "a node hook")?)
    }
    fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.0.as_ptr() as usize);
    }
}

/// Where a hook is registered.
pub enum Place {
    Leaf(WeakTensor),
    Node(Weak<Node>),
    Gone,
}
/// Removes a hook: also as a context manager, at any time, any number of times.
#[pyclass(name = "RemovableHandle", module = "stowgrad._C", weakref)]
pub struct Handle {
    place: Place,
    #[pyo3(get)]
    id: u64,
}
impl Handle {
    pub fn new(place: Place, id: u64) -> Handle {
        Handle { place, id }
    }
}
#[pymethods]
impl Handle {
    /// Takes the hook away; harmless if it is gone already.
    pub fn remove(&mut self) {
        let id = self.id;
        match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Leaf(t) => {
                let Some(t) = t.upgrade() else { return };
                let gone = t.with_extra(|e| {
                    let take = |l: &mut Vec<(u64, Arc<dyn GradHook>)>| l.extract_if(.., |(i, _)| *i == id).collect::<Vec<_>>();
                    let mut grads = take(&mut e.leaf_hooks);
                    grads.extend(take(&mut e.after_hooks));
                    let pre: Vec<_> = e.pre_hooks.extract_if(.., |(i, _)| *i == id).collect();
                    let post: Vec<_> = e.node_hooks.extract_if(.., |(i, _)| *i == id).collect();
                    (grads, pre, post)
                });
                drop(gone);
            }
            Place::Node(n) => {
                let Some(n) = n.upgrade() else { return };
                let gone = n.with_hooks(|h| {
                    let tensor: Vec<_> = h.tensor.extract_if(.., |(i, _, _)| *i == id).collect();
                    let pre: Vec<_> = h.pre.extract_if(.., |(i, _)| *i == id).collect();
                    let post: Vec<_> = h.post.extract_if(.., |(i, _)| *i == id).collect();
                    (tensor, pre, post)
                });
                drop(gone);
            }
            Place::Gone => {}
        }
    }
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }
    #[pyo3(signature = (*_args))]
    fn __exit__(&mut self, _args: &Bound<'_, PyTuple>) {
        self.remove();
    }
    fn __getstate__(&self) -> (Option<u64>, u64) {
        (None, self.id)
    }
    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, (u64,))> {
        Ok((slf.py().get_type::<Handle>().getattr("_gone")?.unbind(), (slf.borrow().id,)))
    }
    /// A handle whose hook is elsewhere (what a pickled one becomes).
    #[staticmethod]
    fn _gone(id: u64) -> Handle {
        Handle { place: Place::Gone, id }
    }
}

/// The interpreter, as the tape sees it.
pub struct Interpreter;
/// The line of user code that is running.
pub fn line() -> Option<Line> {
    super::frame::current().map(|(code, at)| Line::new(code, at))
}
impl Host for Interpreter {
    fn detached(&self, f: &mut (dyn FnMut() + Send)) {
        attached().detach(f)
    }
    fn interrupted(&self) -> Result<()> {
        Ok(attached().check_signals()?)
    }
    fn here(&self) -> Option<Line> {
        line()
    }
    fn line_text(&self, code: usize, at: i32) -> String {
        super::frame::text(code, at)
    }
    fn line_gone(&self, code: usize) {
        super::frame::gone(code)
    }
    fn stack(&self) -> Option<String> {
        let py = attached();
        let text = py.import("traceback").and_then(|m| m.call_method0("format_stack")).ok()?;
        text.extract::<Vec<String>>().ok().map(|l| l.concat())
    }
    fn warn(&self, text: &str) -> Result<()> {
        let py = attached();
        let text = std::ffi::CString::new(text.replace('\0', " ")).map_err(|e| err!(Value, "{e}"))?;
        Ok(PyErr::warn(py, &py.get_type::<pyo3::exceptions::PyUserWarning>(), &text, 1)?)
    }
    fn intercepts(&self, info: &'static crate::tape::Info, how: crate::tape::How<'_>, inputs: crate::tape::record::Operands<'_>) -> bool {
        super::dispatch::intercepts(info, how, inputs)
    }
    fn dispatch(&self, call: &crate::tape::dispatch::Call<'_>) -> Result<crate::tape::dispatch::Got> {
        super::dispatch::dispatch(call)
    }
}

/// `_C._autograd`: the stack of pairs of this thread.
#[pyfunction]
fn _push_saved_tensors_default_hooks(pack_hook: &Bound<'_, PyAny>, unpack_hook: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Some(m) = mode::hooks_disabled() {
        return Err(PyRuntimeError::new_err(m.to_string()));
    }
    mode::push_pack(pair(pack_hook, unpack_hook)?);
    Ok(())
}
/// As `_push_saved_tensors_default_hooks` with a pair that moves values to host memory and back.
#[pyfunction]
fn _push_host_memory() -> PyResult<()> {
    if let Some(m) = mode::hooks_disabled() {
        return Err(PyRuntimeError::new_err(m.to_string()));
    }
    mode::push_pack(Arc::new(HostMemory));
    Ok(())
}
#[pyfunction]
fn _pop_saved_tensors_default_hooks() -> PyResult<()> {
    match mode::pop_pack() {
        Some(p) => {
            drop(p);
            Ok(())
        }
        None => Err(PyRuntimeError::new_err("no saved-tensor hooks are open on this thread: each exit needs an enter of its own")),
    }
}
#[pyfunction]
#[pyo3(signature = (error_message, fail_if_non_empty = true))]
fn _saved_tensors_hooks_disable(error_message: &str, fail_if_non_empty: bool) -> PyResult<()> {
    if fail_if_non_empty && mode::pack_depth() > 0 {
        return Err(PyRuntimeError::new_err(error_message.to_owned()));
    }
    drop(mode::set_hooks_disabled(Some(error_message.into())));
    Ok(())
}
#[pyfunction]
fn _saved_tensors_hooks_enable() {
    drop(mode::set_hooks_disabled(None));
}
#[pyfunction]
fn _saved_tensors_hooks_is_enabled() -> bool {
    mode::hooks_disabled().is_none()
}
#[pyfunction]
fn _saved_tensors_hooks_get_disabled_error_message() -> Option<String> {
    mode::hooks_disabled().map(|m| m.to_string())
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    crate::tape::set_host(Box::new(Interpreter));
    let py = m.py();
    let room = PyModule::new(py, "_autograd")?;
    room.add_function(wrap_pyfunction!(_push_saved_tensors_default_hooks, &room)?)?;
    room.add_function(wrap_pyfunction!(_push_host_memory, &room)?)?;
    room.add_function(wrap_pyfunction!(_pop_saved_tensors_default_hooks, &room)?)?;
    room.add_function(wrap_pyfunction!(_saved_tensors_hooks_disable, &room)?)?;
    room.add_function(wrap_pyfunction!(_saved_tensors_hooks_enable, &room)?)?;
    room.add_function(wrap_pyfunction!(_saved_tensors_hooks_is_enabled, &room)?)?;
    room.add_function(wrap_pyfunction!(_saved_tensors_hooks_get_disabled_error_message, &room)?)?;
    m.add("_autograd", &room)?;
    m.add_class::<Handle>()?;
    py.import("sys")?.getattr("modules")?.cast::<PyDict>()?.set_item("stowgrad._C._autograd", &room)?;
    Ok(())
}
