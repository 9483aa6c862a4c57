//! The Python object of a tensor, and who owns whom.
//!
//! A wrapper owns its core tensor; the core knows its wrapper by a borrowed pointer, which the wrapper clears when it dies. Whoever keeps a
//! tensor keeps the wrapper if there is one (`Wrapper`), so a tensor has one Python object for as long as anyone can tell, subclass and
//! attributes included. The collector sees through a wrapper to whatever its tensor owns alone (rule 5).
//!
//! Safety rests on this: wrappers are made, found and dropped attached to the interpreter, and the tape runs attached whenever wrappers exist.
#![allow(unsafe_code)]
use crate::tape::tensor::Visit;
use crate::tape::{Held, Node, Tensor};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::*};

#[pyclass(name = "Tensor", module = "stowgrad", frozen, subclass, weakref, dict)]
pub struct PyTensor {
    /// None only while the object is being made: a class with a dict is visible to the collector before its contents exist.
    t: Option<Tensor>,
    me: AtomicPtr<()>,
}
impl PyTensor {
    #[inline]
    pub fn tensor(&self) -> &Tensor {
        self.t.as_ref().expect("a tensor object has a tensor once it is made")
    }
    /// The content of a wrapper about to be made for `t`; to be followed by `claim`.
    pub fn holding(t: Tensor) -> PyTensor {
        PyTensor { t: Some(t), me: AtomicPtr::new(std::ptr::null_mut()) }
    }
}
impl Drop for PyTensor {
    fn drop(&mut self) {
        if let Some(t) = &self.t {
            let me = self.me.load(Acquire);
            let _ = t.imp().wrapper.compare_exchange(me, std::ptr::null_mut(), AcqRel, Relaxed);
        }
    }
}
/// An owned reference to a tensor's Python object.
pub struct Wrapper(Py<PyTensor>);
impl Clone for Wrapper {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: attached (file header).
        Wrapper(self.0.clone_ref(unsafe { Python::assume_attached() }))
    }
}
impl Wrapper {
    /// The wrapper of `t`, if it has one that is alive.
    #[inline]
    pub fn of(t: &Tensor) -> Option<Wrapper> {
        let at = t.imp().wrapper.load(Acquire).cast::<ffi::PyObject>();
        if at.is_null() {
            return None;
        }
        // SAFETY: a wrapper clears this pointer before its memory goes; one whose count is 0 is dying (we are inside its weakref
        // callbacks) and does not count.
        unsafe {
            if ffi::Py_REFCNT(at) == 0 {
                return None;
            }
            Some(Wrapper(Bound::from_borrowed_ptr(Python::assume_attached(), at).cast_into_unchecked::<PyTensor>().unbind()))
        }
    }
    #[inline]
    pub fn tensor(&self) -> &Tensor {
        self.0.get().tensor()
    }
    pub fn object(&self) -> &Py<PyTensor> {
        &self.0
    }
}
/// Makes `obj` the wrapper of its tensor, unless another one is already.
fn claim(obj: &Bound<'_, PyTensor>) -> bool {
    let at = obj.as_ptr().cast::<()>();
    obj.get().me.store(at, Release);
    let slot = &obj.get().tensor().imp().wrapper;
    match slot.compare_exchange(std::ptr::null_mut(), at, AcqRel, Acquire) {
        Ok(_) => true,
        // SAFETY: as in `of`.
        Err(other) if unsafe { ffi::Py_REFCNT(other.cast()) } == 0 => slot.compare_exchange(other, at, AcqRel, Acquire).is_ok(),
        Err(_) => false,
    }
}
/// The Python object of a tensor: the one it has, or a new one of class `Tensor`.
#[inline]
pub fn wrap<'py>(py: Python<'py>, t: Tensor) -> PyResult<Bound<'py, PyTensor>> {
    if let Some(w) = Wrapper::of(&t) {
        return Ok(w.0.into_bound(py));
    }
    let obj = Bound::new(py, PyTensor::holding(t))?; // may run a collection, hence any Python
    if claim(&obj) {
        return Ok(obj);
    }
    match Wrapper::of(obj.get().tensor()) {
        Some(w) => Ok(w.0.into_bound(py)),
        None => Ok(obj),
    }
}
pub fn wrap_held<'py>(py: Python<'py>, h: &Held) -> PyResult<Bound<'py, PyTensor>> {
    match h {
        Held::Wrapped(w) => Ok(w.0.bind(py).clone()),
        Held::Core(t) => wrap(py, t.clone()),
    }
}
/// A tensor without a wrapper so far gets one of class `cls`, a subclass of `Tensor`.
pub fn wrap_as<'py>(cls: &Bound<'py, pyo3::types::PyType>, t: Tensor) -> PyResult<Bound<'py, PyAny>> {
    let py = cls.py();
    if !cls.is_subclass_of::<PyTensor>()? {
        return Err(pyo3::exceptions::PyTypeError::new_err(format!("{} is not a subclass of Tensor", cls.name()?)));
    }
    let base = py.get_type::<PyTensor>();
    if cls.is(&base) {
        return Ok(wrap(py, t)?.into_any());
    }
    PENDING.with(|p| *p.borrow_mut() = Some(t));
    // `Tensor.__new__` takes the pending tensor; `__init__` of the subclass is not run, as in torch's `_make_subclass`.
    let made = base.getattr(pyo3::intern!(py, "__new__"))?.call1((cls,));
    PENDING.with(|p| p.borrow_mut().take());
    let obj = made?;
    let typed = obj.cast::<PyTensor>()?;
    if !claim(typed) {
        return Err(PyRuntimeError::new_err("this tensor already has a Python object; detach() it first"));
    }
    Ok(obj)
}
thread_local! { static PENDING: std::cell::RefCell<Option<Tensor>> = const { std::cell::RefCell::new(None) }; }
/// What `wrap_as` left for the constructor.
pub fn pending() -> Option<Tensor> {
    PENDING.with(|p| p.borrow_mut().take())
}
/// The constructor's result becomes the wrapper of its tensor on the way out (called by `__init__`-less construction).
pub fn settle(obj: &Bound<'_, PyTensor>) {
    claim(obj);
}

/// How many nodes one traversal looks into at most: a young collection must not walk a graph of a million nodes.
const DESCENT: u32 = 256;
/// Shows the collector what a tensor owns alone.
pub fn visit_tensor(t: &Tensor, visit: PyVisit<'_>, left: &mut u32) -> Result<(), PyTraverseError> {
    let mut result = Ok(());
    t.try_visit(&mut |v| {
        if result.is_ok() {
            result = visit_one(v, visit, left);
        }
    });
    result
}
pub fn visit_node(n: &Node, visit: PyVisit<'_>, left: &mut u32) -> Result<(), PyTraverseError> {
    let mut result = Ok(());
    n.visit(&mut |v| {
        if result.is_ok() {
            result = visit_one(v, visit, left);
        }
    });
    if result.is_ok() {
        n.op.visit(&mut |at| {
            if result.is_ok() {
                result = visit_address(at, visit);
            }
        });
    }
    result
}
fn visit_address(at: usize, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
    // SAFETY: `visit` implementations give addresses of objects that they own a reference to; only its address is passed on.
    let p: Option<Py<PyAny>> =
        unsafe { Bound::from_owned_ptr_or_opt(Python::assume_attached(), at as *mut ffi::PyObject) }.map(Bound::unbind);
    let r = visit.call(&p);
    std::mem::forget(p);
    r
}
fn visit_one(v: Visit<'_>, visit: PyVisit<'_>, left: &mut u32) -> Result<(), PyTraverseError> {
    let addresses = |result: &mut Result<(), PyTraverseError>, at: usize| {
        if result.is_ok() {
            *result = visit_address(at, visit);
        }
    };
    let mut result = Ok(());
    match v {
        Visit::Held(Held::Wrapped(w)) => visit.call(&w.0),
        Visit::Held(Held::Core(t)) => {
            if t.owners() == 1 && *left > 0 {
                *left -= 1;
                visit_tensor(t, visit, left)
            } else {
                Ok(())
            }
        }
        Visit::Node(n) => {
            if Arc::strong_count(n) == 1 && *left > 0 {
                *left -= 1;
                visit_node(n, visit, left)
            } else {
                Ok(())
            }
        }
        Visit::Grad(h) => {
            if Arc::strong_count(h) == 1 {
                h.visit(&mut |at| addresses(&mut result, at));
            }
            result
        }
        Visit::Pre(h) => {
            if Arc::strong_count(h) == 1 {
                h.visit(&mut |at| addresses(&mut result, at));
            }
            result
        }
        Visit::Post(h) => {
            if Arc::strong_count(h) == 1 {
                h.visit(&mut |at| addresses(&mut result, at));
            }
            result
        }
        Visit::Slot(s) => {
            if let Some(k) = &s.keeper {
                k.visit(&mut |at| addresses(&mut result, at));
            }
            if result.is_ok() && Arc::strong_count(&s.by) == 1 {
                s.by.visit(&mut |at| addresses(&mut result, at));
            }
            result
        }
    }
}
#[pymethods]
impl PyTensor {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match &self.t {
            Some(t) if t.owners() == 1 => visit_tensor(t, visit, &mut { DESCENT }),
            _ => Ok(()),
        }
    }
    fn __clear__(&self) {
        if let Some(t) = &self.t
            && t.owners() == 1
        {
            drop(t.clear());
        }
    }
}
/// The interpreter, for code that runs attached without having been handed it (hooks called from the engine).
#[inline]
pub fn attached<'py>() -> Python<'py> {
    // SAFETY: the tape and the engine run attached whenever Python objects exist (file header).
    unsafe { Python::assume_attached() }
}
