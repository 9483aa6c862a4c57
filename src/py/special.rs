//! Subclasses of Tensor, and `__torch_function__`: who may intercept a call, and what class its results get. Nothing here is reached by a
//! call on plain tensors.
//!
//! A class has a say if it is a subclass of Tensor whose `__torch_function__` is not the disabled one, or any class that defines one. Most
//! subclasses have Tensor's own: the op runs, and its results become instances of that subclass. A mode (`TorchFunctionMode`) is asked before
//! every class; while one is active anywhere, no tensor counts as plain.
use super::PyTensor;
use super::call::{Answer, Given, Style, called, finish_as, run_lax, set_plain, tensor_of};
use super::entry::Entry;
use super::tensor::wrap_as;
use crate::ops;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

thread_local! {
    /// Depth of `DisableTorchFunctionSubclass`, and of `DisableTorchFunction`, which stops modes too.
    static OFF: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    static MODES: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) };
}
/// Modes active on all threads.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static DISABLED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

#[derive(Clone, Copy, PartialEq)]
enum Say {
    None,
    /// Tensor's own: run, then convert the results.
    Default,
    Own,
}
fn say(class: &Bound<'_, PyType>) -> Say {
    let py = class.py();
    let name = intern!(py, "__torch_function__");
    let base = py.get_type::<PyTensor>();
    for c in class.mro().iter() {
        let Ok(c) = c.cast::<PyType>() else { continue };
        if c.is(&base) {
            return if class.is(&base) { Say::None } else { Say::Default };
        }
        if let Ok(own) = c.getattr(intern!(py, "__dict__")).and_then(|d| d.get_item(name)) {
            return if own.is_none() || DISABLED.get(py).is_some_and(|d| own.is(d)) { Say::None } else { Say::Own };
        }
    }
    Say::None
}
/// Is a mode to be asked, whatever the arguments are?
pub fn mode_waits() -> bool {
    ACTIVE.load(Relaxed) != 0 && OFF.get().1 == 0 && MODES.with(|m| !m.borrow().is_empty())
}
/// Must a call with an argument of this class come here?
pub fn has_a_say(class: &Bound<'_, PyType>) -> bool {
    mode_waits() || (OFF.get().0 == 0 && say(class) != Say::None)
}
/// Objects among the arguments whose classes have a say, a class once, subclasses before their bases, otherwise from left to right.
fn speakers<'py>(args: impl Iterator<Item = Bound<'py, PyAny>>) -> Vec<(Bound<'py, PyAny>, Say)> {
    let mut found: Vec<(Bound<'py, PyAny>, Say)> = Vec::new();
    if OFF.get().0 != 0 {
        return found;
    }
    let mut look = |o: Bound<'py, PyAny>| {
        let class = o.get_type();
        let s = say(&class);
        if s == Say::None || found.iter().any(|(f, _)| f.get_type().is(&class)) {
            return;
        }
        let at = found.iter().position(|(f, _)| class.is_subclass(&f.get_type()).unwrap_or(false)).unwrap_or(found.len());
        found.insert(at, (o, s));
    };
    for o in args {
        if let Ok(t) = o.cast::<PyTuple>() {
            t.iter().for_each(&mut look);
        } else if let Ok(l) = o.cast::<PyList>() {
            l.iter().for_each(&mut look);
        } else {
            look(o);
        }
    }
    found
}
/// One call, as those who intercept see it.
struct Intercepted<'py> {
    name: String,
    func: Bound<'py, PyAny>,
    args: Bound<'py, PyTuple>,
    kwargs: Bound<'py, PyDict>,
}
impl<'py> Intercepted<'py> {
    fn ask(&self, of: &Bound<'py, PyAny>, types: &Bound<'py, PyTuple>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = of.py();
        let r = of.getattr(intern!(py, "__torch_function__"))?.call1((&self.func, types, &self.args, &self.kwargs))?;
        Ok((!r.is(py.NotImplemented())).then_some(r))
    }
    /// The mode on top, with itself taken off meanwhile; then the classes in order.
    fn run(&self, speakers: &[(Bound<'py, PyAny>, Say)]) -> PyResult<Bound<'py, PyAny>> {
        let py = self.func.py();
        let types = PyTuple::new(py, speakers.iter().map(|(o, _)| o.get_type()))?;
        if mode_waits()
            && let Some(mode) = pop()
        {
            let mode = mode.into_bound(py);
            let r = self.ask(&mode, &types);
            push(mode.unbind());
            if let Some(r) = r? {
                return Ok(r);
            }
        }
        for (o, _) in speakers {
            if let Some(r) = self.ask(o, &types)? {
                return Ok(r);
            }
        }
        Err(PyTypeError::new_err(format!(
            "no implementation found for '{}' on types that implement __torch_function__: {:?}",
            self.name,
            speakers.iter().map(|(o, _)| o.get_type().to_string()).collect::<Vec<_>>()
        )))
    }
}
fn intercepted<'py>(e: &'static Entry, style: Style, g: &Given<'py>) -> PyResult<Intercepted<'py>> {
    let (py, name) = (g.py, called(e, style));
    let func = if style.method() {
        py.get_type::<PyTensor>().getattr(name)?
    } else {
        let on = e.on_any();
        let m = MODULE.get(py).ok_or_else(|| PyRuntimeError::new_err("the module is not made yet"))?.bind(py);
        match on.room.filter(|_| !on.function) {
            Some(room) => m.getattr(format!("_{room}"))?.getattr(name)?,
            None if on.function => m.getattr(name)?,
            None => m.getattr(format!("_{}", name.trim_start_matches('_')))?,
        }
    };
    let values: Vec<Bound<'py, PyAny>> = g.values().map(|v| v.to_owned()).collect();
    let (positional, named) = values.split_at(g.positional());
    let args = PyTuple::new(py, g.this().map(|t| t.to_owned()).into_iter().chain(positional.iter().cloned()).collect::<Vec<_>>())?;
    let kwargs = PyDict::new(py);
    for (k, v) in named.iter().enumerate() {
        kwargs.set_item(g.keyword(k), v)?;
    }
    Ok(Intercepted { name: name.to_owned(), func, args, kwargs })
}
/// A call of which somebody may have a say.
pub fn call<'py>(e: &'static Entry, style: Style, g: &Given<'py>) -> PyResult<Bound<'py, PyAny>> {
    let found = speakers(g.this().into_iter().chain(g.values()).map(|v| v.to_owned()));
    if !mode_waits() && found.iter().all(|(_, s)| *s == Say::Default) {
        let class = found.first().map(|(o, _)| o.get_type());
        if let Some(c) = &class
            && found.iter().all(|(o, _)| c.is_subclass(&o.get_type()).unwrap_or(false))
        {
            return match run_lax(e, style, g)? {
                Answer::Given(o) => Ok(o),
                Answer::New(r, e) => finish_as(e, r, g.py, c),
            };
        }
        if class.is_none() {
            return match run_lax(e, style, g)? {
                Answer::Given(o) => Ok(o),
                Answer::New(r, e) => super::call::finish(e, r, g.py),
            };
        }
    }
    intercepted(e, style, g)?.run(&found)
}
/// A call that failed: an argument may be an object that is no tensor and has `__torch_function__`.
pub fn foreign<'py>(e: &'static Entry, style: Style, g: &Given<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let found = speakers(g.this().into_iter().chain(g.values()).map(|v| v.to_owned()));
    if found.iter().any(|(o, s)| *s == Say::Own && tensor_of(o.as_borrowed()).is_none()) {
        return intercepted(e, style, g)?.run(&found).map(Some);
    }
    Ok(None)
}
/// For what is no entry (indexing, conversions): `run` computes it for plain tensors; `name` is the attribute of Tensor that stands for it.
#[cold]
pub fn through<'py>(
    name: &str,
    args: &[&Bound<'py, PyAny>],
    run: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = args[0].py();
    let found = speakers(args.iter().map(|o| (*o).clone()));
    if !mode_waits() && found.iter().all(|(_, s)| *s == Say::Default) {
        let r = run()?;
        return match found.first() {
            Some((o, _)) => converted(&r, &o.get_type()),
            None => Ok(r),
        };
    }
    let func = py.get_type::<PyTensor>().getattr(name)?;
    Intercepted { name: name.to_owned(), func, args: PyTuple::new(py, args)?, kwargs: PyDict::new(py) }.run(&found)
}
/// Tensors in a result as instances of `class`.
pub fn converted<'py>(r: &Bound<'py, PyAny>, class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    let py = r.py();
    if class.is(py.get_type::<PyTensor>()) || r.is_instance(class)? {
        return Ok(r.clone());
    }
    if let Some(t) = tensor_of(r.as_borrowed()) {
        return wrap_as(class, ops::alias(t)?);
    }
    let each = |items: Vec<Bound<'py, PyAny>>| items.iter().map(|i| converted(i, class)).collect::<PyResult<Vec<_>>>();
    if let Ok(l) = r.cast::<PyList>() {
        return Ok(PyList::new(py, each(l.iter().collect())?)?.into_any());
    }
    if let Ok(t) = r.cast::<PyTuple>() {
        let items = PyTuple::new(py, each(t.iter().collect())?)?;
        let kind = r.get_type();
        return if kind.is(py.get_type::<PyTuple>()) || kind.is(super::size::class(py)?) {
            Ok(items.into_any())
        } else {
            kind.call1((items,))
        };
    }
    Ok(r.clone())
}
fn push(mode: Py<PyAny>) {
    MODES.with(|m| m.borrow_mut().push(mode));
    ACTIVE.fetch_add(1, Relaxed);
    set_plain(false);
}
fn pop() -> Option<Py<PyAny>> {
    let mode = MODES.with(|m| m.borrow_mut().pop())?;
    set_plain(ACTIVE.fetch_sub(1, Relaxed) == 1);
    Some(mode)
}
#[pymethods]
impl PyTensor {
    /// What a call on a subclass does unless the subclass says otherwise: the call, with its results as instances of the subclass.
    #[classmethod]
    #[pyo3(signature = (func, types, args = None, kwargs = None))]
    fn __torch_function__<'py>(
        cls: &Bound<'py, PyType>,
        func: &Bound<'py, PyAny>,
        types: &Bound<'py, PyAny>,
        args: Option<&Bound<'py, PyAny>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = cls.py();
        for t in types.try_iter()? {
            if !cls.is_subclass(&t?)? {
                return Ok(py.NotImplemented().into_bound(py));
            }
        }
        let args = match args {
            Some(a) => PyTuple::new(py, a.try_iter()?.collect::<PyResult<Vec<_>>>()?)?,
            None => PyTuple::empty(py),
        };
        let _off = Off::enter(false);
        let r = func.call(args, kwargs)?;
        converted(&r, cls)
    }
}
/// Nobody has a say while it lives.
struct Off(bool);
impl Off {
    fn enter(modes_too: bool) -> Off {
        let (a, b) = OFF.get();
        OFF.set((a + 1, b + modes_too as u32));
        Off(modes_too)
    }
}
impl Drop for Off {
    fn drop(&mut self) {
        let (a, b) = OFF.get();
        OFF.set((a.saturating_sub(1), b.saturating_sub(self.0 as u32)));
    }
}
macro_rules! switches { ($($class:ident $python:literal $modes:literal $doc:literal;)*) => { $(
    #[doc = $doc]
    #[pyclass(name = $python, module = "stowgrad._C", frozen)]
    struct $class;
    #[pymethods]
    impl $class {
        #[new]
        fn new() -> Self {
            $class
        }
        fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
            std::mem::forget(Off::enter($modes));
            slf
        }
        #[pyo3(signature = (*_args))]
        fn __exit__(&self, _args: &Bound<'_, PyTuple>) {
            drop(Off($modes));
        }
    }
)* } }
switches! {
    WithoutSubclasses "DisableTorchFunctionSubclass" false "While open, subclasses have no say; modes have.";
    Without "DisableTorchFunction" true "While open, neither subclasses nor modes have a say.";
}
/// The call itself, without asking anybody: as a class attribute it takes a subclass its say.
#[pyfunction]
#[pyo3(signature = (func, types, args = None, kwargs = None))]
fn _disabled_torch_function_impl<'py>(
    func: &Bound<'py, PyAny>,
    types: &Bound<'py, PyAny>,
    args: Option<&Bound<'py, PyTuple>>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _ = types;
    let _off = Off::enter(false);
    match args {
        Some(a) => func.call(a, kwargs),
        None => func.call((), kwargs),
    }
}
#[pyfunction]
fn _len_torch_function_stack() -> usize {
    MODES.with(|m| m.borrow().len())
}
#[pyfunction]
fn _push_on_torch_function_stack(mode: Py<PyAny>) {
    push(mode)
}
#[pyfunction]
fn _pop_torch_function_stack() -> PyResult<Py<PyAny>> {
    pop().ok_or_else(|| PyRuntimeError::new_err("no torch function mode is active"))
}
#[pyfunction]
fn _get_function_stack_at(py: Python<'_>, i: usize) -> PyResult<Py<PyAny>> {
    MODES
        .with(|m| m.borrow().get(i).map(|m| m.clone_ref(py)))
        .ok_or_else(|| pyo3::exceptions::PyIndexError::new_err(format!("there is no torch function mode {i}")))
}
#[pyfunction]
fn _is_torch_function_enabled() -> bool {
    OFF.get().0 == 0
}
#[pyfunction]
fn _is_torch_function_all_disabled() -> bool {
    OFF.get().1 != 0
}
/// Has any of the objects a class with a say?
#[pyfunction]
fn _has_torch_function(relevant_args: &Bound<'_, PyAny>) -> PyResult<bool> {
    if mode_waits() {
        return Ok(true);
    }
    let all: Vec<_> = relevant_args.try_iter()?.collect::<PyResult<_>>()?;
    Ok(!speakers(all.into_iter()).is_empty())
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    let _ = MODULE.set(py, m.clone().unbind());
    let disabled = wrap_pyfunction!(_disabled_torch_function_impl, m)?;
    let _ = DISABLED.set(py, disabled.clone().into_any().unbind());
    m.add_function(disabled)?;
    m.add_class::<WithoutSubclasses>()?;
    m.add_class::<Without>()?;
    m.add_function(wrap_pyfunction!(_len_torch_function_stack, m)?)?;
    m.add_function(wrap_pyfunction!(_push_on_torch_function_stack, m)?)?;
    m.add_function(wrap_pyfunction!(_pop_torch_function_stack, m)?)?;
    m.add_function(wrap_pyfunction!(_get_function_stack_at, m)?)?;
    m.add_function(wrap_pyfunction!(_is_torch_function_enabled, m)?)?;
    m.add_function(wrap_pyfunction!(_is_torch_function_all_disabled, m)?)?;
    m.add_function(wrap_pyfunction!(_has_torch_function, m)?)
}
