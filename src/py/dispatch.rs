//! Dispatch modes: the stack of a thread, and what a handler gets and gives. Nothing here is reached while no mode is active on the thread
//! and no subclass of Tensor intercepts operations.
//!
//! Of the modes the innermost is asked, then the subclasses among the inputs. While a handler runs its mode is off the stack and the thread
//! is below autograd (`mode::Below`), so what it calls reaches the next mode and records nothing. `Put` restores the stack on every way
//! out, whatever the handler did to it.
use super::arg::{FromArg, Kind, Refused, kind};
use super::call::Values;
use super::dtype::{PyDType, PyDevice};
use super::entry::Param;
use super::random::PyGenerator;
use super::ret::number;
use super::schema::{self, Form, Overload};
use super::tensor::{PyTensor, Wrapper, attached, remember, wrap};
use crate::dtype::Scalar;
use crate::error::{Result, bail, err};
use crate::ops;
use crate::tape::dispatch::{Arg, Call, Got};
use crate::tape::record::Operands;
use crate::tape::{Attr, How, Info, Tensor, mode};
use pyo3::exceptions::{PyIndexError, PyNotImplementedError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyTuple, PyType};
use std::any::Any;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! { static MODES: RefCell<Vec<Py<PyAny>>> = const { RefCell::new(Vec::new()) }; }
fn len() -> usize {
    MODES.with(|m| m.borrow().len())
}
fn push(mode: Py<PyAny>) {
    let n = MODES.with(|m| {
        let mut m = m.borrow_mut();
        m.push(mode);
        m.len()
    });
    mode::set_dispatching(n as u32);
}
fn pop() -> Option<Py<PyAny>> {
    let (mode, n) = MODES.with(|m| {
        let mut m = m.borrow_mut();
        (m.pop(), m.len())
    });
    mode::set_dispatching(n as u32);
    mode
}
/// A mode that is off the stack while its handler runs. At the end it is put back on what lay below it.
struct Put {
    mode: Option<Py<PyAny>>,
    below: usize,
}
impl Put {
    fn top() -> Option<Put> {
        pop().map(|mode| Put { mode: Some(mode), below: len() })
    }
}
impl Drop for Put {
    fn drop(&mut self) {
        let gone = MODES.with(|m| {
            let mut m = m.borrow_mut();
            let at = self.below.min(m.len());
            m.split_off(at)
        });
        drop(gone);
        if let Some(mode) = self.mode.take() {
            push(mode);
        }
    }
}
/// Takes the modes off for which `off` holds, while `f` runs.
pub fn without<R>(py: Python<'_>, off: impl Fn(&Bound<'_, PyAny>) -> bool, f: impl FnOnce() -> R) -> R {
    struct All(Vec<Py<PyAny>>);
    impl Drop for All {
        fn drop(&mut self) {
            mode::set_dispatching(self.0.len() as u32);
            let old = MODES.with(|m| std::mem::replace(&mut *m.borrow_mut(), std::mem::take(&mut self.0)));
            drop(old);
        }
    }
    if len() == 0 {
        return f();
    }
    let all = MODES.with(|m| m.borrow().iter().map(|m| m.clone_ref(py)).collect::<Vec<_>>());
    let kept: Vec<_> = all.iter().filter(|m| !off(m.bind(py))).map(|m| m.clone_ref(py)).collect();
    mode::set_dispatching(kept.len() as u32);
    let _all = All(all);
    let old = MODES.with(|m| std::mem::replace(&mut *m.borrow_mut(), kept));
    drop(old);
    f()
}
/// Does a class intercept operations: has it, or a base of it below Tensor, a `__torch_dispatch__`?
pub fn has_handler(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let py = class.py();
    let (base, name) = (py.get_type::<PyTensor>(), intern!(py, "__torch_dispatch__"));
    for c in class.mro().iter() {
        if c.is(&base) {
            break;
        }
        if let Ok(own) = c.getattr(intern!(py, "__dict__")).and_then(|d| d.get_item(name)) {
            return Ok(
                !own.is_none() && !own.is(py.import(intern!(py, "stowgrad._C"))?.getattr(intern!(py, "_disabled_torch_dispatch_impl"))?)
            );
        }
    }
    Ok(false)
}
thread_local! { static OFF: std::cell::Cell<u32> = const { std::cell::Cell::new(0) }; }
/// The objects among the inputs whose classes intercept: a class once, subclasses before their bases.
fn speakers<'py>(py: Python<'py>, inputs: Operands<'_>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut found: Vec<Bound<'py, PyAny>> = Vec::new();
    if OFF.get() != 0 {
        return Ok(found);
    }
    for t in inputs.iter().flatten() {
        let o = match Wrapper::of(t) {
            Some(w) => w.object().bind(py).clone().into_any(),
            None if t.has_extra() => wrap(py, (*t).clone())?.into_any(),
            None => continue,
        };
        let class = o.get_type();
        if o.is_exact_instance_of::<PyTensor>() || found.iter().any(|f| f.get_type().is(&class)) || !has_handler(&class)? {
            continue;
        }
        let at = found.iter().position(|f| class.is_subclass(&f.get_type()).unwrap_or(false)).unwrap_or(found.len());
        found.insert(at, o);
    }
    Ok(found)
}
fn form(how: How<'_>) -> Form {
    match how {
        How::Fresh => Form::Fresh,
        How::InPlace => Form::InPlace,
        How::Into(_) => Form::Out,
    }
}
/// `Host::intercepts`.
pub fn intercepts(info: &'static Info, how: How<'_>, inputs: Operands<'_>) -> bool {
    let into = if let How::Into(t) = how { Some(t) } else { None };
    let someone =
        || speakers(attached(), inputs).is_ok_and(|s| !s.is_empty()) || speakers(attached(), &[into]).is_ok_and(|s| !s.is_empty());
    (len() != 0 || someone()) && schema::knows(info, form(how))
}
/// Something made in Rust, on its way through a handler.
#[pyclass(name = "_Opaque", module = "stowgrad._C", frozen)]
struct Opaque(Arc<dyn Any + Send + Sync>);
/// Made in Rust alone.
impl<'py> FromArg<'py> for ops::Map {
    const KIND: Kind = kind("map", "object");
    fn from_arg(v: Values<'py>) -> std::result::Result<Self, Refused> {
        let o = v.one().to_owned();
        o.cast::<Opaque>().ok().and_then(|o| o.get().0.downcast_ref::<ops::Map>().cloned()).ok_or(Refused::Type)
    }
}
/// Does the parameter take Python numbers for tensors? Elsewhere (formulas put a number first) the handler gets a 0-d tensor, which keeps a
/// number's weight in promotion.
fn takes_numbers(p: &Param) -> bool {
    p.kind.hint == super::arg::TENSOR_OR_NUMBER.hint
}
/// An argument as an object; `p`: the parameter it is for.
fn object<'py>(py: Python<'py>, p: &Param, a: &Arg) -> PyResult<Bound<'py, PyAny>> {
    let constant = |n: &str| py.import(intern!(py, "stowgrad._C"))?.getattr(n);
    Ok(match a {
        Arg::Tensor(t) if t.is_number() && takes_numbers(p) => number(py, t.item())?,
        Arg::Tensor(t) => wrap(py, t.clone())?.into_any(),
        Arg::Tensors(v) => {
            let each = |t: &Option<Tensor>| match t {
                Some(t) => Ok(wrap(py, t.clone())?.into_any()),
                None => Ok(py.None().into_bound(py)),
            };
            PyList::new(py, v.iter().map(each).collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Arg::Attr(Attr::None) => py.None().into_bound(py),
        Arg::Attr(Attr::Scalar(s)) => number(py, *s)?,
        Arg::Attr(Attr::Ints(v)) => PyList::new(py, v)?.into_any(),
        Arg::Attr(Attr::Floats(v)) => PyList::new(py, v)?.into_any(),
        Arg::Attr(Attr::Str(s)) if p.name == "memory_format" => constant(s)?,
        Arg::Attr(Attr::Str(s)) => s.as_ref().into_pyobject(py)?.into_any(),
        Arg::Attr(Attr::DType(d)) => PyDType::get(py, *d).into_any(),
        Arg::Source(s) => Bound::new(py, PyGenerator::of(s.clone()))?.into_any(),
        Arg::Cpu => Bound::new(py, PyDevice::CPU)?.into_any(),
        Arg::Strided => constant("strided")?,
        Arg::List(v) => PyTuple::new(py, v.iter().map(|a| object(py, p, a)).collect::<PyResult<Vec<_>>>()?)?.into_any(),
        Arg::Opaque(o) => Bound::new(py, Opaque(o.clone()))?.into_any(),
    })
}
/// The arguments of a call by the places of the entry's parameters; None: not given.
fn arranged(call: &Call<'_>, o: &Overload) -> Vec<Option<Arg>> {
    let names = call.info.inputs;
    let tensor = |i: usize| call.inputs.get(i).copied().flatten().map_or(Arg::Attr(Attr::None), |t| Arg::Tensor(t.clone()));
    let find = |name: &str| -> Option<Arg> {
        if let Some((list, from)) = call.list
            && list == name
        {
            return Some(Arg::Tensors(call.inputs[from.min(call.inputs.len())..].iter().map(|t| t.cloned()).collect()));
        }
        if let Some(i) = names.iter().position(|n| *n == name) {
            return Some(tensor(i));
        }
        call.params.iter().find(|(n, _)| super::entry::py_name(n) == name).map(|(_, a)| a.clone())
    };
    o.entry.params.iter().map(|p| find(p.name)).collect()
}
fn is_default(py: Python<'_>, o: &Overload, i: usize, a: &Bound<'_, PyAny>) -> bool {
    let Some(d) = o.default(py, i) else { return false };
    let d = d.bind(py);
    if a.is_instance_of::<PyTensor>() || a.is_instance_of::<PyBool>() != d.is_instance_of::<PyBool>() {
        return false;
    }
    a.eq(d).unwrap_or(false)
}
/// An op as an overload, its positional arguments and its keywords. Arguments that have their defaults are left out, as torch does: of the
/// positional ones those at the end.
type Spelled<'py> = (&'static Overload, Bound<'py, PyTuple>, Bound<'py, PyDict>);
fn spelled<'py>(py: Python<'py>, call: &Call<'_>) -> Result<Spelled<'py>> {
    let numbers = |o: &'static Overload| {
        let is_number = |a: &Option<Arg>| matches!(a, Some(Arg::Tensor(t)) if t.is_number());
        o.entry.params.iter().zip(arranged(call, o)).any(|(p, a)| takes_numbers(p) && is_number(&a))
    };
    let by_default = |o: &'static Overload, i: usize| match &arranged(call, o)[i] {
        None => true,
        Some(a) => object(py, &o.entry.params[i], a).is_ok_and(|a| is_default(py, o, i, &a) || a.is_none()),
    };
    let Some(o) = schema::find(call.info, form(call.how), &numbers, &by_default) else {
        bail!(Runtime, "{}: there is no such operation for dispatch modes", call.info.schema);
    };
    let values = arranged(call, o);
    let (mut args, kwargs) = (Vec::new(), PyDict::new(py));
    let mut needed = 0;
    for &i in &o.params {
        let p = &o.entry.params[i];
        let Some(a) = &values[i] else { continue };
        let a = object(py, p, a)?;
        let left_out = is_default(py, o, i, &a);
        if p.keyword_only {
            if !left_out {
                kwargs.set_item(p.name, a)?;
            }
            continue;
        }
        args.push(a);
        if !left_out {
            needed = args.len();
        }
    }
    args.truncate(needed);
    if let How::Into(out) = call.how {
        kwargs.set_item("out", wrap(py, out.clone())?)?;
    }
    Ok((o, PyTuple::new(py, args)?, kwargs))
}
/// `Host::dispatch`.
pub fn dispatch(call: &Call<'_>) -> Result<Got> {
    let py = attached();
    let (o, args, kwargs) = spelled(py, call)?;
    let mut speakers = speakers(py, call.inputs)?;
    if let How::Into(out) = call.how
        && speakers.is_empty()
    {
        speakers = self::speakers(py, &[Some(out)])?;
    }
    let types = PyTuple::new(py, speakers.iter().map(|s| s.get_type()))?;
    let func = o.object(py)?;
    let r = ask(&speakers, (&func, &types, &args, &kwargs))?;
    got(&r, call)
}
type Question<'a, 'py> = (&'a Bound<'py, schema::PyOverload>, &'a Bound<'py, PyTuple>, &'a Bound<'py, PyTuple>, &'a Bound<'py, PyDict>);
/// The mode on top, then the subclasses.
fn ask<'py>(speakers: &[Bound<'py, PyAny>], q: Question<'_, 'py>) -> Result<Bound<'py, PyAny>> {
    let py = q.0.py();
    let name = intern!(py, "__torch_dispatch__");
    let _below = mode::Below::enter();
    let mut asked = Vec::new();
    if let Some(top) = Put::top() {
        let mode = top.mode.as_ref().expect("it is there until it is put back").bind(py).clone();
        let r = mode.call_method1(name, q)?;
        drop(top);
        if !r.is(py.NotImplemented()) {
            return Ok(r);
        }
        asked.push(format!("mode object {}", mode.repr()?));
    }
    for s in speakers {
        let r = s.get_type().getattr(name)?.call1(q)?;
        if !r.is(py.NotImplemented()) {
            return Ok(r);
        }
        asked.push(format!("tensor subclass {}", s.get_type().repr()?));
    }
    Err(err!(
        Type,
        "Multiple dispatch failed for 'torch.ops.{}'; all __torch_dispatch__ handlers returned NotImplemented:\n  - {}",
        q.0.str()?,
        asked.join("\n  - ")
    ))
}
/// A handler's answer as the op needs it. An object that is more than a tensor (a subclass, attributes) is remembered by its tensor.
fn got(r: &Bound<'_, PyAny>, call: &Call<'_>) -> Result<Got> {
    let one = |o: &Bound<'_, PyAny>| -> Result<Tensor> {
        match o.cast::<PyTensor>() {
            Ok(t) => {
                remember(t)?;
                Ok(t.get().tensor().clone())
            }
            Err(_) => bail!(Runtime, "Unable to cast {} to Tensor", o.repr()?),
        }
    };
    let records = !call.info.node.is_empty();
    let several = call.info.outputs.len() != 1;
    if let Ok(t) = r.cast::<PyTensor>() {
        return Ok(Got::Tensors(vec![one(t.as_any())?]));
    }
    if records && !several {
        return one(r).map(|t| Got::Tensors(vec![t]));
    }
    if r.is_instance_of::<PyTuple>() || r.is_instance_of::<PyList>() {
        return r.try_iter()?.map(|o| one(&o?)).collect::<Result<Vec<_>>>().map(Got::Tensors);
    }
    if records {
        bail!(Runtime, "Object of type '{}' is not an instance of 'sequence'", r.get_type().name()?);
    }
    if let Ok(b) = r.cast::<PyBool>() {
        return Ok(Got::Number(Scalar::Bool(b.is_true())));
    }
    if r.is_instance_of::<PyInt>() {
        return Ok(Got::Number(Scalar::Int(r.extract::<i64>()?)));
    }
    if r.is_instance_of::<PyFloat>() {
        return Ok(Got::Number(Scalar::Float(r.extract::<f64>()?)));
    }
    if r.is_none() {
        return Ok(Got::None);
    }
    one(r).map(|t| Got::Tensors(vec![t]))
}

#[pyfunction]
fn _len_torch_dispatch_stack() -> usize {
    len()
}
#[pyfunction]
fn _push_on_torch_dispatch_stack(mode: Py<PyAny>) {
    push(mode)
}
#[pyfunction]
#[pyo3(signature = (mode_key = None))]
fn _pop_torch_dispatch_stack(mode_key: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
    let _ = mode_key;
    pop().ok_or_else(|| PyRuntimeError::new_err("no torch dispatch mode is active on this thread"))
}
#[pyfunction]
fn _get_dispatch_stack_at(py: Python<'_>, i: usize) -> PyResult<Py<PyAny>> {
    MODES
        .with(|m| m.borrow().get(i).map(|m| m.clone_ref(py)))
        .ok_or_else(|| PyIndexError::new_err(format!("there is no torch dispatch mode {i}, the stack holds {}", len())))
}
/// The call itself, without asking the classes of its arguments: as a class attribute it takes a subclass its say.
#[pyfunction]
#[pyo3(signature = (func, types, args = None, kwargs = None))]
fn _disabled_torch_dispatch_impl<'py>(
    func: &Bound<'py, PyAny>,
    types: &Bound<'py, PyAny>,
    args: Option<&Bound<'py, PyTuple>>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _ = types;
    let _off = Quiet::enter();
    match args {
        Some(a) => func.call(a, kwargs),
        None => func.call((), kwargs),
    }
}
/// While it lives, subclasses do not intercept.
struct Quiet;
impl Quiet {
    fn enter() -> Quiet {
        OFF.set(OFF.get() + 1);
        Quiet
    }
}
impl Drop for Quiet {
    fn drop(&mut self) {
        OFF.set(OFF.get().saturating_sub(1));
    }
}
/// While open, neither modes nor subclasses intercept operations.
#[pyclass(name = "_DisableTorchDispatch", module = "stowgrad._C")]
struct Without(
    // the modes that each entry took off
    Vec<Vec<Py<PyAny>>>,
);
#[pymethods]
impl Without {
    #[new]
    fn new() -> Self {
        Without(Vec::new())
    }
    fn __enter__(mut slf: PyRefMut<'_, Self>) -> PyRefMut<'_, Self> {
        std::mem::forget(Quiet::enter());
        let off = MODES.with(|m| std::mem::take(&mut *m.borrow_mut()));
        slf.0.push(off);
        mode::set_dispatching(0);
        slf
    }
    #[pyo3(signature = (*_args))]
    fn __exit__(&mut self, _args: &Bound<'_, PyTuple>) {
        let Some(all) = self.0.pop() else { return };
        drop(Quiet);
        mode::set_dispatching(all.len() as u32);
        let old = MODES.with(|m| std::mem::replace(&mut *m.borrow_mut(), all));
        drop(old);
    }
}
#[pymethods]
impl PyTensor {
    /// What an operation on a subclass does that passes it on: the operation itself, without asking classes.
    #[classmethod]
    #[pyo3(signature = (func, types, args = None, kwargs = None))]
    fn __torch_dispatch__<'py>(
        cls: &Bound<'py, PyType>,
        func: &Bound<'py, PyAny>,
        types: &Bound<'py, PyAny>,
        args: Option<&Bound<'py, PyTuple>>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = cls;
        _disabled_torch_dispatch_impl(func, types, args, kwargs)
    }
}
#[pymethods]
impl PyTensor {
    /// In torch: a tensor of class `cls` that has a size and no memory. Not there: NotImplementedError, which says what to do instead.
    #[staticmethod]
    #[pyo3(signature = (cls, *_args, **_kwargs))]
    fn _make_wrapper_subclass(
        cls: &Bound<'_, PyType>,
        _args: &Bound<'_, PyTuple>,
        _kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        Err(PyNotImplementedError::new_err(format!(
            "_make_wrapper_subclass(): tensors without memory of their own are not implemented; make {} from a tensor instead, by Tensor._make_subclass(cls, data) or data.as_subclass(cls)",
            cls.name()?
        )))
    }
}
/// Is the calling code a handler of a dispatch mode or subclass?
#[pyfunction]
fn _in_dispatch_handler() -> bool {
    mode::below()
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Opaque>()?;
    m.add_class::<Without>()?;
    m.add_function(wrap_pyfunction!(_len_torch_dispatch_stack, m)?)?;
    m.add_function(wrap_pyfunction!(_push_on_torch_dispatch_stack, m)?)?;
    m.add_function(wrap_pyfunction!(_pop_torch_dispatch_stack, m)?)?;
    m.add_function(wrap_pyfunction!(_get_dispatch_stack_at, m)?)?;
    m.add_function(wrap_pyfunction!(_in_dispatch_handler, m)?)?;
    m.add_function(wrap_pyfunction!(_disabled_torch_dispatch_impl, m)?)
}
/// A class that intercepts operations has an object from now on.
pub fn note_class(class: &Bound<'_, PyType>) -> PyResult<()> {
    if !mode::has_subclasses() && !class.is(class.py().get_type::<PyTensor>()) && has_handler(class)? {
        mode::note_subclass();
    }
    Ok(())
}
