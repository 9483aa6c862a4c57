//! Policies as Python sees them: checkpoint frames (the function and its arguments live here) and the mutation guard.
use super::keeper::Keeper;
use super::tensor::{DESCENT, PyTensor, attached, visit_one, wrap};
use crate::error::Result;
use crate::kernels::random::Generator;
use crate::stow::checkpoint::{Check, Frame, Opened, Recording, set_arguments};
use crate::stow::mutate::{Guard, GuardPack};
use crate::stow::selective::Kept;
use crate::tape::random::{Named, Notes, Noting};
use crate::tape::saved::Parked;
use crate::tape::{Pack, RandomSource, Tensor, mode};
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::{Arc, Mutex};

/// An argument as it was at the call: containers that hold tensors are taken apart, so that a run gets fresh ones.
enum Tree {
    Object(Py<PyAny>),
    Tensor(usize),
    List(Vec<Tree>),
    Tuple(Vec<Tree>),
    Dict(Vec<(Py<PyAny>, Tree)>),
}
impl Tree {
    fn of(o: &Bound<'_, PyAny>, tensors: &mut Vec<Tensor>) -> PyResult<Tree> {
        if let Ok(t) = o.cast::<PyTensor>() {
            tensors.push(t.get().tensor().clone());
            return Ok(Tree::Tensor(tensors.len() - 1));
        }
        Ok(if let Ok(l) = o.cast_exact::<PyList>() {
            Tree::List(l.iter().map(|x| Tree::of(&x, tensors)).collect::<PyResult<_>>()?)
        } else if let Ok(t) = o.cast_exact::<PyTuple>() {
            Tree::Tuple(t.iter().map(|x| Tree::of(&x, tensors)).collect::<PyResult<_>>()?)
        } else if let Ok(d) = o.cast_exact::<PyDict>() {
            Tree::Dict(d.iter().map(|(k, v)| Ok((k.unbind(), Tree::of(&v, tensors)?))).collect::<PyResult<_>>()?)
        } else {
            Tree::Object(o.clone().unbind())
        })
    }
    fn build<'py>(&self, py: Python<'py>, tensors: &[Bound<'py, PyTensor>]) -> PyResult<Bound<'py, PyAny>> {
        let all = |v: &[Tree]| v.iter().map(|t| t.build(py, tensors)).collect::<PyResult<Vec<_>>>();
        Ok(match self {
            Tree::Object(o) => o.bind(py).clone(),
            Tree::Tensor(i) => tensors[*i].clone().into_any(),
            Tree::List(v) => PyList::new(py, all(v)?)?.into_any(),
            Tree::Tuple(v) => PyTuple::new(py, all(v)?)?.into_any(),
            Tree::Dict(v) => {
                let d = PyDict::new(py);
                for (k, t) in v {
                    d.set_item(k, t.build(py, tensors)?)?;
                }
                d.into_any()
            }
        })
    }
    fn visit(&self, f: &mut dyn FnMut(&Py<PyAny>)) {
        match self {
            Tree::Object(o) => f(o),
            Tree::Tensor(_) => {}
            Tree::List(v) | Tree::Tuple(v) => v.iter().for_each(|t| t.visit(f)),
            Tree::Dict(v) => v.iter().for_each(|(k, t)| {
                f(k);
                t.visit(f);
            }),
        }
    }
}
/// Where random numbers came from when the call began: the state of the thread's source, and of generators that the function names.
struct Random {
    thread: Generator,
    named: Notes,
}
/// A checkpointed call: kept by the slots of its frame, seen by the collector.
#[pyclass(frozen, module = "stowgrad._C")]
pub struct Call {
    function: Py<PyAny>,
    name: String,
    arguments: Vec<Tree>,
    keywords: Vec<(Py<PyAny>, Tree)>,
    parked: Vec<Parked>,
    random: Option<Box<Random>>,
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
    fn run(&self) -> Result<()> {
        let py = attached();
        let mut tensors = Vec::with_capacity(self.parked.len());
        let mut ids = Vec::with_capacity(self.parked.len());
        for p in &self.parked {
            let t = p.get(&self.name)?;
            ids.extend(t.leaf_id());
            tensors.push(wrap(py, t)?);
        }
        set_arguments(ids);
        let arguments = PyTuple::new(py, self.arguments.iter().map(|t| t.build(py, &tensors)).collect::<PyResult<Vec<_>>>()?)?;
        let keywords = PyDict::new(py);
        for (k, t) in &self.keywords {
            keywords.set_item(k, t.build(py, &tensors)?)?;
        }
        let _random = Drawing::again(self.random.as_deref());
        let _unguarded = Unguarded(GUARDED.replace(false));
        // selective modes of a region that is open are not meant for this one
        let selective = |m: &Bound<'_, PyAny>| m.hasattr(intern!(py, "_selective")).unwrap_or(false);
        super::dispatch::without(py, selective, || {
            in_context(self.again.as_ref().map(|c| c.bind(py)), || self.function.bind(py).call(&arguments, Some(&keywords)))
        })?;
        Ok(())
    }
}
/// The thread draws as it did at first until this is dropped; without a memory of that, it draws on.
struct Drawing {
    /// What was in place; the outer None: it was left alone.
    thread: Option<Option<RandomSource>>,
    named: Named,
}
impl Drawing {
    fn again(r: Option<&Random>) -> Drawing {
        let thread = r.map(|r| RandomSource::stand_in(Some(RandomSource::new(r.thread.clone()))));
        Drawing { thread, named: r.map_or_else(Named::default, |r| Named::again(&r.named)).swap() }
    }
}
impl Drop for Drawing {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.named).swap());
        if let Some(before) = self.thread.take() {
            drop(RandomSource::stand_in(before));
        }
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
fn in_context<'py>(context: Option<&Bound<'py, PyAny>>, f: impl FnOnce() -> PyResult<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let Some(c) = context else { return f() };
    let py = c.py();
    c.call_method0("__enter__")?;
    match f() {
        Ok(r) => {
            c.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
            Ok(r)
        }
        Err(e) => {
            c.call_method1("__exit__", (e.get_type(py), e.value(py), e.traceback(py)))?;
            Err(e)
        }
    }
}
fn check_of(name: &str) -> PyResult<Check> {
    match name {
        "default" => Ok(Check::Looks),
        "none" => Ok(Check::Nothing),
        "values" => Ok(Check::Values),
        n => Err(PyValueError::new_err(format!("determinism_check should be one of ['default', 'none', 'values'], but got '{n}'"))),
    }
}
/// Runs `function(*args, **kwargs)` in a frame of its own: what it saves is forgotten and computed again for backward.
#[pyfunction]
#[pyo3(signature = (function, args, kwargs, check, preserve_rng_state, debug, early_stop, context_fn = None))]
#[expect(clippy::too_many_arguments, reason = "torch's own options")]
fn _checkpoint<'py>(
    py: Python<'py>,
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: &Bound<'py, PyDict>,
    check: &str,
    preserve_rng_state: bool,
    debug: bool,
    early_stop: bool,
    context_fn: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if !function.is_callable() {
        return Err(PyTypeError::new_err(format!("checkpoint: the function must be callable, not {}", function.get_type().name()?)));
    }
    let check = check_of(check)?;
    let (first, again) = match context_fn {
        None => (None, None),
        Some(f) => {
            let (a, b): (Bound<'py, PyAny>, Bound<'py, PyAny>) = f.call0()?.extract()?;
            (Some(a), Some(b.unbind()))
        }
    };
    if !mode::grad_enabled() {
        return in_context(first.as_ref(), || function.call(args, Some(kwargs)));
    }
    let mut tensors = Vec::new();
    let arguments = args.iter().map(|a| Tree::of(&a, &mut tensors)).collect::<PyResult<Vec<_>>>()?;
    let keywords = kwargs.iter().map(|(k, v)| Ok((k.unbind(), Tree::of(&v, &mut tensors)?))).collect::<PyResult<Vec<_>>>()?;
    let parked = tensors.iter().map(|t| Parked::new(t, "checkpoint")).collect::<Result<Vec<_>>>()?;
    let random = preserve_rng_state.then(|| Box::new(Random { thread: RandomSource::current().state(), named: Notes::default() }));
    let _noting = random.as_ref().map(|r| Noting::start(r.named.clone()));
    let call =
        Py::new(py, Call { function: function.clone().unbind(), name: "checkpoint".into(), arguments, keywords, parked, random, again })?;
    let keeper = Keeper { owner: call.into_any(), packed: None, counted: Default::default() };
    let frame = Frame::new(check, early_stop, debug, Box::new(run_kept));
    let ids = tensors.iter().filter_map(Tensor::leaf_id).collect();
    let _open = Opened::start(Recording { frame, keeper: Some(keeper), arguments: ids }, &tensors);
    in_context(first.as_ref(), || function.call(args, Some(kwargs)))
}
/// Runs the call that the keeper keeps.
fn run_kept(keeper: Option<&Keeper>) -> Result<()> {
    let py = attached();
    let Some(k) = keeper else { return Ok(()) };
    let owner = k.owner.clone_ref(py);
    let call = owner.bind(py).cast::<Call>().map_err(PyErr::from)?;
    call.get().run()
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
        self.now.lock().unwrap_or_else(|e| e.into_inner()).clone()
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
        let old = slf.get().now.lock().unwrap_or_else(|e| e.into_inner()).replace(guard);
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
    m.add_function(wrap_pyfunction!(_checkpoint, m)?)?;
    m.add_class::<PyGuard>()?;
    m.add_class::<Around>()?;
    m.add_class::<PyKept>()?;
    m.add("CheckpointError", m.py().get_type::<super::CheckpointError>())?;
    m.add("_StopRecomputationError", m.py().get_type::<super::StopRecomputation>())
}
