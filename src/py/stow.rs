//! Policies as Python sees them: checkpoint frames (the function and its arguments live here) and the mutation guard.
use super::call::{Given, Raw, add_raw, call_stoppable, tensor_of};
use super::keeper::{Keeper, Owned};
use super::tensor::{DESCENT, PyTensor, attached, visit_one, wrap};
use crate::error::{Result, bail};
use crate::stow::checkpoint::{Check, Collector, Frame, Opened};
use crate::stow::mutate::{Guard, GuardPack};
use crate::stow::selective::Kept;
use crate::tape::random::{Drawing, Notes, Noting};
use crate::tape::saved::Parked;
use crate::tape::{Pack, Tensor, mode};
use parking_lot::Mutex;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::Arc;

type Tensors = SmallVec<[Tensor; 2]>;
/// An argument as it was at the call: containers that hold tensors are taken apart, so that a run gets fresh ones.
enum Tree {
    Object(Py<PyAny>),
    Tensor(usize),
    List(Vec<Tree>),
    Tuple(Vec<Tree>),
    Dict(Vec<(Py<PyAny>, Tree)>),
    /// The list, tuple or dict that was met as the one of this number: one object stays one, also inside itself.
    Again(usize),
}
/// Containers that lie deeper in one another are passed on as they are.
const DEEP: usize = 500;
/// What taking arguments apart has met.
#[derive(Default)]
struct Met {
    tensors: Tensors,
    /// Addresses of containers, which the arguments hold.
    containers: SmallVec<[usize; 2]>,
    depth: usize,
}
impl Tree {
    fn of(o: &Bound<'_, PyAny>, met: &mut Met) -> PyResult<Tree> {
        if let Some(t) = tensor_of(o.as_borrowed()) {
            met.tensors.push(t.clone());
            return Ok(Tree::Tensor(met.tensors.len() - 1));
        }
        if !(o.is_exact_instance_of::<PyList>() || o.is_exact_instance_of::<PyTuple>() || o.is_exact_instance_of::<PyDict>()) {
            return Ok(Tree::Object(o.clone().unbind()));
        }
        let at = o.as_ptr() as usize;
        if let Some(nr) = met.containers.iter().position(|c| *c == at) {
            return Ok(Tree::Again(nr));
        }
        if met.depth == DEEP {
            return Ok(Tree::Object(o.clone().unbind()));
        }
        met.containers.push(at);
        met.depth += 1;
        let tree = if let Ok(l) = o.cast_exact::<PyList>() {
            Tree::List(l.iter().map(|x| Tree::of(&x, met)).collect::<PyResult<_>>()?)
        } else if let Ok(t) = o.cast_exact::<PyTuple>() {
            Tree::Tuple(t.iter().map(|x| Tree::of(&x, met)).collect::<PyResult<_>>()?)
        } else {
            let d = o.cast_exact::<PyDict>()?;
            Tree::Dict(d.iter().map(|(k, v)| Ok((k.unbind(), Tree::of(&v, met)?))).collect::<PyResult<_>>()?)
        };
        met.depth -= 1;
        Ok(tree)
    }
    /// `made`: the containers made so far, by number.
    fn build<'py>(
        &self,
        py: Python<'py>,
        tensors: &[Bound<'py, PyTensor>],
        made: &mut Vec<Option<Bound<'py, PyAny>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let nr = made.len();
        Ok(match self {
            Tree::Object(o) => o.bind(py).clone(),
            Tree::Tensor(i) => tensors[*i].clone().into_any(),
            Tree::List(v) => {
                let l = PyList::empty(py);
                made.push(Some(l.clone().into_any()));
                for t in v {
                    l.append(t.build(py, tensors, made)?)?;
                }
                l.into_any()
            }
            Tree::Tuple(v) => {
                made.push(None);
                let t = PyTuple::new(py, v.iter().map(|t| t.build(py, tensors, made)).collect::<PyResult<Vec<_>>>()?)?.into_any();
                made[nr] = Some(t.clone());
                t
            }
            Tree::Dict(v) => {
                let d = PyDict::new(py);
                made.push(Some(d.clone().into_any()));
                for (k, t) in v {
                    d.set_item(k, t.build(py, tensors, made)?)?;
                }
                d.into_any()
            }
            Tree::Again(nr) => match &made[*nr] {
                Some(o) => o.clone(),
                None => {
                    return Err(PyRuntimeError::new_err(
                        "checkpoint: a tuple that holds itself, through a list or a dict, cannot be passed again",
                    ));
                }
            },
        })
    }
    fn visit(&self, f: &mut dyn FnMut(&Py<PyAny>)) {
        match self {
            Tree::Object(o) => f(o),
            Tree::Tensor(_) | Tree::Again(_) => {}
            Tree::List(v) | Tree::Tuple(v) => v.iter().for_each(|t| t.visit(f)),
            Tree::Dict(v) => v.iter().for_each(|(k, t)| {
                f(k);
                t.visit(f);
            }),
        }
    }
}
/// A checkpointed call: kept by the slots of its frame, seen by the collector.
#[pyclass(frozen, module = "stowgrad._C")]
pub struct Call {
    function: Py<PyAny>,
    arguments: SmallVec<[Tree; 2]>,
    keywords: Vec<(Py<PyAny>, Tree)>,
    parked: SmallVec<[Parked; 2]>,
    /// What recomputations need of the sources of random numbers.
    random: Option<Arc<Notes>>,
    /// The context of recomputations.
    again: Option<Py<PyAny>>,
}
#[pymethods]
impl Call {
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        visit.call(&self.function)?;
        visit.call(&self.again)?;
        let mut result = Ok(());
        let mut see = |o: &Py<PyAny>| {
            if result.is_ok() {
                result = visit.call(o);
            }
        };
        self.arguments.iter().for_each(|t| t.visit(&mut see));
        self.keywords.iter().for_each(|(k, t)| {
            see(k);
            t.visit(&mut see);
        });
        result?;
        let mut result = Ok(());
        let mut left = DESCENT;
        for p in &self.parked {
            p.visit(&mut |v| {
                if result.is_ok() {
                    result = visit_one(v, visit, &mut left);
                }
            });
        }
        result
    }
}
impl Call {
    /// Runs the function again, with its arguments unparked, its random state and its context; what it returns is dropped.
    fn run(&self, collector: &Collector) -> Result<()> {
        let py = attached();
        let mut tensors: SmallVec<[Bound<'_, PyTensor>; 2]> = SmallVec::new();
        for p in &self.parked {
            tensors.push(wrap(py, p.get("checkpoint")?)?);
        }
        collector.set_arguments(tensors.iter().map(|t| t.get().tensor()));
        let mut arguments: SmallVec<[_; 4]> = SmallVec::new();
        let mut made = Vec::new();
        for t in &self.arguments {
            arguments.push(t.build(py, &tensors, &mut made)?);
        }
        let keywords = if self.keywords.is_empty() { None } else { Some(PyDict::new(py)) };
        for (k, t) in &self.keywords {
            keywords.as_ref().expect("there are some").set_item(k, t.build(py, &tensors, &mut made)?)?;
        }
        drop(made); // the tensors live as long as the run, which knows them by address
        let _random = Drawing::again(self.random.clone());
        let _unguarded = Unguarded(GUARDED.replace(false));
        // selective modes of a region that is open are not meant for this one
        let selective = |m: &Bound<'_, PyAny>| m.hasattr(intern!(py, "_selective")).unwrap_or(false);
        let function = self.function.bind(py);
        super::dispatch::without(py, selective, || {
            in_context(self.again.as_ref().map(|c| c.bind(py)), || call_stoppable(function, &arguments, keywords.as_ref()))
        })?;
        Ok(())
    }
}
/// A recomputation starts as if no guard were open: the region may open its own.
struct Unguarded(bool);
impl Drop for Unguarded {
    fn drop(&mut self) {
        GUARDED.set(self.0);
    }
}
/// Calls `f` inside a Python context manager, if there is one.
fn in_context<'py>(context: Option<&Bound<'py, PyAny>>, f: impl FnOnce() -> Result<Bound<'py, PyAny>>) -> Result<Bound<'py, PyAny>> {
    let Some(c) = context else { return f() };
    let py = c.py();
    c.call_method0("__enter__")?;
    match f() {
        Ok(r) => {
            c.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
            Ok(r)
        }
        Err(e) => {
            let e = PyErr::from(e);
            c.call_method1("__exit__", (e.get_type(py), e.value(py), e.traceback(py)))?;
            Err(e.into())
        }
    }
}
fn check_of(name: &Bound<'_, PyAny>) -> PyResult<Check> {
    match name.extract().unwrap_or("") {
        "default" => Ok(Check::Looks),
        "none" => Ok(Check::Nothing),
        "values" => Ok(Check::Values),
        _ => Err(PyValueError::new_err(format!(
            "determinism_check should be one of ['default', 'none', 'values'], but got {}",
            name.repr()?
        ))),
    }
}
thread_local! {
    static EARLY_STOP: Cell<Option<bool>> = const { Cell::new(None) };
    static DEBUG: Cell<Option<bool>> = const { Cell::new(None) };
}
/// Whether checkpoints of this thread stop early, whatever they say themselves (None: as they say). Returns what it was.
#[pyfunction]
fn _set_checkpoint_early_stop(on: Option<bool>) -> Option<bool> {
    EARLY_STOP.replace(on)
}
/// As `_set_checkpoint_early_stop`, for the operations of both runs in errors.
#[pyfunction]
fn _set_checkpoint_debug(on: Option<bool>) -> Option<bool> {
    DEBUG.replace(on)
}
/// `torch.utils.checkpoint.checkpoint`: takes its values as they lie, for a frame costs little.
struct Checkpoint;
impl Raw for Checkpoint {
    const NAME: &'static str = "checkpoint";
    const DOC: &'static str = r#"checkpoint(function, *args, use_reentrant=None, context_fn=None, determinism_check='default', debug=False, early_stop=True, preserve_rng_state=True, **kwargs)
--

Runs `function(*args, **kwargs)`; what it saves for backward is forgotten, and computed again when backward needs it.

Any depth of nesting, containers and keywords with tensors, closures and modules. The recomputation stops at the last value needed
(`early_stop`), draws the same random numbers (`preserve_rng_state`), and is compared with the forward pass: operations, shapes and
dtypes (`determinism_check="default"`), the values too (`"values"`), or nothing (`"none"`); a difference is a CheckpointError. So is a
write, between forward and backward, to a tensor that the function read from outside. `context_fn()` gives two contexts, for the
forward pass and for recomputations. `debug=True` makes errors list the operations of both runs. `use_reentrant=None` means False.

>>> import stowgrad as torch
>>> from stowgrad.utils.checkpoint import checkpoint
>>> x = torch.tensor([0.5], requires_grad=True)
>>> checkpoint(lambda t: t.sin().exp(), x, use_reentrant=False).backward()
>>> x.grad
tensor([1.4174])
"#;
    fn call<'py>(g: &Given<'py>) -> Result<Bound<'py, PyAny>> {
        let py = g.py;
        let (mut function, mut args) = match g.positional_values().split_first() {
            Some((f, rest)) => (Some(f.to_owned()), rest),
            None => (None, &[][..]),
        };
        let (mut reentrant, mut check, mut early_stop, mut debug, mut preserve) = (false, Check::Looks, true, false, true);
        let (mut context_fn, mut kwargs) = (None, None);
        for (k, v) in g.named_values() {
            match k {
                "use_reentrant" => reentrant = v.is_truthy()?,
                "context_fn" => context_fn = Some(v.to_owned()).filter(|c| !c.is_none()),
                "determinism_check" => check = check_of(&v)?,
                "debug" => debug = v.is_truthy()?,
                "early_stop" => early_stop = v.is_truthy()?,
                "preserve_rng_state" => preserve = v.is_truthy()?,
                "function" if function.is_some() => bail!(Type, "checkpoint() got multiple values for argument 'function'"),
                "function" => (function, args) = (Some(v.to_owned()), &[]),
                _ => kwargs.get_or_insert_with(|| PyDict::new(py)).set_item(k, v)?,
            }
        }
        let Some(function) = function else { bail!(Type, "checkpoint() missing 1 required positional argument: 'function'") };
        if reentrant {
            let old = py.import(intern!(py, "stowgrad.utils.checkpoint"))?.getattr(intern!(py, "_reentrant"))?;
            return Ok(old.call1((function, PyTuple::new(py, args)?, kwargs, context_fn, debug, preserve))?);
        }
        if !function.is_callable() {
            bail!(Type, "checkpoint: the function must be callable, not {}", function.get_type().name()?);
        }
        let (first, again) = match context_fn {
            None => (None, None),
            Some(f) => {
                let (a, b): (Bound<'py, PyAny>, Bound<'py, PyAny>) = f.call0()?.extract()?;
                (Some(a), Some(b.unbind()))
            }
        };
        let run = || in_context(first.as_ref(), || call_stoppable(&function, args, kwargs.as_ref()));
        if !mode::grad_enabled() {
            return run();
        }
        let mut met = Met::default();
        let mut arguments = SmallVec::new();
        for a in args {
            arguments.push(Tree::of(a, &mut met)?);
        }
        let mut keywords = Vec::new();
        for (k, v) in kwargs.iter().flat_map(|d| d.iter()) {
            keywords.push((k.unbind(), Tree::of(&v, &mut met)?));
        }
        let tensors = met.tensors;
        let mut parked = SmallVec::new();
        for t in &tensors {
            parked.push(Parked::new(t, "checkpoint")?);
        }
        let random = preserve.then(Arc::<Notes>::default);
        let _noting = random.as_ref().map(|r| Noting::start(r.clone()));
        let call = Py::new(py, Call { function: function.clone().unbind(), arguments, keywords, parked, random, again })?;
        let keeper = Keeper { owner: Owned::new(call.into_any()), packed: None, counted: Default::default() };
        let (early_stop, debug) = (EARLY_STOP.get().unwrap_or(early_stop), DEBUG.get().unwrap_or(debug));
        let _open = Opened::start(Frame::new(check, early_stop, debug, Box::new(run_kept), &tensors, Some(keeper)));
        run()
    }
}
/// Runs the call that the keeper keeps.
fn run_kept(keeper: Option<&Keeper>, collector: &Collector) -> Result<()> {
    let py = attached();
    let Some(k) = keeper else { return Ok(()) };
    let owner = k.owner.get().clone_ref(py);
    let call = owner.bind(py).cast::<Call>().map_err(PyErr::from)?;
    call.get().run(collector)
}

/// The policy around the frame that is open on this thread: where what selective checkpointing keeps goes.
#[pyclass(name = "_Around", module = "stowgrad._C", frozen)]
struct Around(Option<Arc<dyn Pack>>);
#[pymethods]
impl Around {
    #[new]
    fn new() -> Around {
        let mut packs = mode::all_packs();
        packs.pop();
        Around(packs.pop())
    }
    fn keep(&self, t: &Bound<'_, PyTensor>) -> PyResult<PyKept> {
        Ok(PyKept(Kept::new(t.get().tensor(), self.0.as_ref())?))
    }
}
/// An output that selective checkpointing keeps.
#[pyclass(name = "_Kept", module = "stowgrad._C", frozen)]
struct PyKept(Arc<Kept>);
#[pymethods]
impl PyKept {
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTensor>> {
        wrap(py, self.0.value()?)
    }
    fn __traverse__(&self, visit: PyVisit<'_>) -> std::result::Result<(), PyTraverseError> {
        let mut result = Ok(());
        let mut left = DESCENT;
        self.0.visit(&mut |v| {
            if result.is_ok() {
                result = visit_one(v, visit, &mut left);
            }
        });
        result
    }
}

/// `allow_mutation_on_saved_tensors()`: the guard of this thread, and what it holds.
#[pyclass(name = "_MutationGuard", module = "stowgrad._C", frozen, weakref)]
pub struct PyGuard {
    now: Mutex<Option<Arc<Guard>>>,
}
thread_local! { static GUARDED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) }; }
/// A count that prints and has a length, as torch's weak dictionaries have.
#[pyclass(frozen, module = "stowgrad._C")]
struct Count {
    n: usize,
    #[pyo3(get)]
    bytes: usize,
}
#[pymethods]
impl Count {
    fn __len__(&self) -> usize {
        self.n
    }
    fn __repr__(&self) -> String {
        format!("<{} values, {} bytes>", self.n, self.bytes)
    }
}
impl PyGuard {
    fn guard(&self) -> Option<Arc<Guard>> {
        self.now.lock().clone()
    }
}
#[pymethods]
impl PyGuard {
    #[new]
    fn new() -> PyGuard {
        PyGuard { now: Mutex::new(None) }
    }
    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        if GUARDED.get() {
            return Err(PyRuntimeError::new_err("allow_mutation_on_saved_tensors contexts cannot be nested"));
        }
        if let Some(m) = mode::hooks_disabled() {
            return Err(PyRuntimeError::new_err(m.to_string()));
        }
        let guard = Guard::new();
        let outer: Option<Arc<dyn Pack>> = mode::pack();
        mode::push_pack(Arc::new(GuardPack { guard: guard.clone(), outer }));
        GUARDED.set(true);
        let old = slf.get().now.lock().replace(guard);
        drop(old);
        Ok(slf)
    }
    #[pyo3(signature = (*_args))]
    fn __exit__(&self, _args: &Bound<'_, PyTuple>) {
        if let Some(g) = self.guard() {
            g.close();
            GUARDED.set(false);
            drop(mode::pop_pack());
        }
    }
    /// Values still as they were saved.
    #[getter]
    fn original(&self) -> Count {
        self.guard().map_or(Count { n: 0, bytes: 0 }, |g| {
            let h = g.holds();
            Count { n: h.original, bytes: h.original_bytes }
        })
    }
    /// Values that were overwritten, and so copied.
    #[getter]
    fn cloned(&self) -> Count {
        self.guard().map_or(Count { n: 0, bytes: 0 }, |g| {
            let h = g.holds();
            Count { n: h.cloned, bytes: h.cloned_bytes }
        })
    }
    /// Keys in use (torch's name for the tables that it keeps by address; here there is one).
    #[getter]
    fn tid_to_weakhandle(&self) -> Count {
        self.guard().map_or(Count { n: 0, bytes: 0 }, |g| {
            let h = g.holds();
            Count { n: h.original + h.cloned, bytes: h.original_bytes + h.cloned_bytes }
        })
    }
    #[getter]
    fn sid_to_tid(&self) -> Count {
        self.tid_to_weakhandle()
    }
    /// Lets go of everything it holds.
    fn clear(&self) -> PyResult<()> {
        match self.guard() {
            Some(g) => {
                g.clear();
                Ok(())
            }
            None => Err(PyAttributeError::new_err("the guard was never entered")),
        }
    }
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    add_raw::<Checkpoint>(m)?;
    m.add_function(wrap_pyfunction!(_set_checkpoint_early_stop, m)?)?;
    m.add_function(wrap_pyfunction!(_set_checkpoint_debug, m)?)?;
    m.add_class::<PyGuard>()?;
    m.add_class::<Around>()?;
    m.add_class::<PyKept>()?;
    m.add("CheckpointError", m.py().get_type::<super::CheckpointError>())?;
    m.add("_StopRecomputationError", m.py().get_type::<super::StopRecomputation>())
}
