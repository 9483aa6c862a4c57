//! The Python object of a tensor, and who owns whom.
//!
//! A wrapper owns its core tensor; the core knows its wrapper by a borrowed pointer, which the wrapper clears when it dies. Whoever keeps a
//! tensor keeps the wrapper if there is one (`Wrapper`), so a tensor has one Python object for as long as anyone can tell, subclass and
//! attributes included. The collector sees through a wrapper to whatever its tensor owns alone (rule 5).
//!
//! Safety rests on this: wrappers are made, found and dropped attached to the interpreter, and the tape runs attached whenever wrappers exist.
#![allow(unsafe_code)]
use super::keeper::Owned;
use crate::tape::node::Notes;
use crate::tape::tensor::Visit;
use crate::tape::{Held, Node, Tensor};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple, PyType};
use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::*};

#[pyclass(name = "Tensor", module = "stowgrad", frozen, subclass, weakref, dict)]
pub struct PyTensor {
    /// Empty only while the object is being made: a class with a dict is visible to the collector before its contents exist.
    t: OnceCell<Tensor>,
    me: AtomicPtr<()>,
}
// SAFETY: `t` is set once, by `alloc`, before anybody else has the object; the collector, which may see it earlier, runs attached on the
// same thread. From then on it is only read.
unsafe impl Sync for PyTensor {}
impl PyTensor {
    #[inline]
    pub fn tensor(&self) -> &Tensor {
        self.t.get().expect("a tensor object has a tensor once it is made")
    }
}
impl Drop for PyTensor {
    fn drop(&mut self) {
        if let Some(t) = self.t.get() {
            let me = self.me.load(Acquire);
            let _ = t.imp().wrapper.compare_exchange(me, std::ptr::null_mut(), AcqRel, Relaxed);
        }
    }
}
/// A new object of class `class`, which is `Tensor` or a subclass, that holds `t`; to be followed by `claim`. May run a collection, hence
/// any Python.
///
/// Memory from the class's allocator is zero, and a zero object is an empty one: `t` and `me` are null, there is no dict and no weak
/// reference (`install` looks that this is so). `object.__new__` would make a dict for each object before CPython 3.13.
///
/// # Safety
/// `class` is `Tensor` or a subclass of it.
#[inline]
unsafe fn alloc<'py>(py: Python<'py>, class: *mut ffi::PyTypeObject, t: Tensor) -> PyResult<Bound<'py, PyTensor>> {
    // SAFETY: a class that was made has an allocator; it gives a new reference to an object of that class, or null.
    unsafe {
        let make = (*class).tp_alloc.unwrap_unchecked();
        let obj = Bound::from_owned_ptr_or_err(py, make(class, 0))?.cast_into_unchecked::<PyTensor>();
        let _ = obj.get().t.set(t);
        Ok(obj)
    }
}
/// The class itself.
static CLASS: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(std::ptr::null_mut());
/// Makes ready what `alloc` relies on.
pub fn install(py: Python<'_>) -> PyResult<()> {
    use pyo3::type_object::PyTypeInfo;
    let class = PyTensor::type_object_raw(py);
    let probe = Bound::new(py, PyTensor { t: OnceCell::new(), me: AtomicPtr::new(std::ptr::null_mut()) })?;
    // SAFETY: the object is alive and `tp_basicsize` long; the dict, which may have been made, is left out.
    let zero = unsafe {
        let dict = (*class).tp_dictoffset as usize;
        let bytes = std::slice::from_raw_parts(probe.as_ptr().cast::<u8>(), (*class).tp_basicsize as usize);
        (size_of::<ffi::PyObject>()..bytes.len()).filter(|i| !(dict..dict + size_of::<usize>()).contains(i)).all(|i| bytes[i] == 0)
    };
    assert!(zero, "an empty tensor object is all zeros");
    // SAFETY: no subclass exists yet that could have inherited another constructor.
    unsafe { (*class).tp_new = Some(construct) };
    CLASS.store(class, Release);
    Ok(())
}
/// An owned reference to a tensor's Python object.
#[derive(Clone)]
pub struct Wrapper(Owned<PyTensor>);
impl Wrapper {
    /// The wrapper of `t`, if it has one that is alive.
    #[inline(always)]
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
            Some(Wrapper(Owned::new(Bound::from_borrowed_ptr(Python::assume_attached(), at).cast_into_unchecked::<PyTensor>().unbind())))
        }
    }
    #[inline]
    pub fn tensor(&self) -> &Tensor {
        self.0.get().get().tensor()
    }
    pub fn object(&self) -> &Py<PyTensor> {
        self.0.get()
    }
}
/// Makes `obj` the wrapper of its tensor, unless another one is already.
#[inline]
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
    if t.has_extra()
        && let Some(o) = again(py, &t)?
    {
        return Ok(o);
    }
    // SAFETY: the class itself, set when the module was made.
    let obj = unsafe { alloc(py, CLASS.load(Relaxed), t)? };
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
        Held::Wrapped(w) => Ok(w.0.get().bind(py).clone()),
        Held::Core(t) => wrap(py, t.clone()),
    }
}
/// What a tensor remembers of its object: a handler gave it, and Rust alone may hold it for a while.
struct Remembered {
    class: Py<PyType>,
    dict: Py<PyDict>,
}
impl Notes for Remembered {
    fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.class.as_ptr() as usize);
        f(self.dict.as_ptr() as usize);
    }
    fn address(&self) -> usize {
        self.dict.as_ptr() as usize
    }
    fn any(&self) -> &dyn std::any::Any {
        self
    }
}
/// Lets the tensor of an object that is more than a tensor remember its class and attributes.
pub fn remember(o: &Bound<'_, PyTensor>) -> PyResult<()> {
    let py = o.py();
    let dict = o.getattr(pyo3::intern!(py, "__dict__"))?.cast_into::<PyDict>()?;
    let class = o.get_type();
    let plain = o.is_exact_instance_of::<PyTensor>();
    if plain && dict.is_empty() {
        return Ok(());
    }
    let r: Arc<dyn Notes> = Arc::new(Remembered { class: class.unbind(), dict: dict.unbind() });
    let old = o.get().tensor().with_extra(|e| e.object.replace(r));
    drop(old);
    Ok(())
}
/// The object that a tensor remembers, made again.
#[cold]
fn again<'py>(py: Python<'py>, t: &Tensor) -> PyResult<Option<Bound<'py, PyTensor>>> {
    let Some(r) = t.look_extra(|e| e.object.clone()).flatten() else { return Ok(None) };
    let Some(r) = r.any().downcast_ref::<Remembered>() else { return Ok(None) };
    // SAFETY: the class of an object that was a tensor.
    let obj = unsafe { alloc(py, r.class.bind(py).as_type_ptr(), t.clone())? };
    obj.setattr(pyo3::intern!(py, "__dict__"), &r.dict)?;
    if claim(&obj) {
        return Ok(Some(obj));
    }
    Ok(Wrapper::of(t).map(|w| w.0.into_bound(py)))
}
/// A tensor without a wrapper so far gets one of class `cls`, a subclass of `Tensor`, whose `__init__` is not run.
pub fn wrap_as<'py>(cls: &Bound<'py, PyType>, t: Tensor) -> PyResult<Bound<'py, PyAny>> {
    if !cls.is_subclass_of::<PyTensor>()? {
        return Err(PyTypeError::new_err(format!("{} is not a subclass of Tensor", cls.name()?)));
    }
    super::dispatch::note_class(cls)?;
    // SAFETY: just checked.
    let obj = unsafe { alloc(cls.py(), cls.as_type_ptr(), t)? };
    if !claim(&obj) {
        return Err(PyRuntimeError::new_err("this tensor already has a Python object; detach() it first"));
    }
    Ok(obj.into_any())
}
/// `Tensor(..)`, and what a subclass's `super().__new__(cls, ..)` calls: torch's old constructor.
unsafe extern "C" fn construct(class: *mut ffi::PyTypeObject, args: *mut ffi::PyObject, kwargs: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter, attached, with a class that is `Tensor` or a subclass, a tuple, and a dict or null.
    let (py, class, args, kwargs) = unsafe {
        let py = Python::assume_attached();
        (
            py,
            Borrowed::from_ptr(py, class.cast()).cast_unchecked::<PyType>(),
            Borrowed::from_ptr(py, args).cast_unchecked::<PyTuple>(),
            Borrowed::from_ptr_or_opt(py, kwargs).map(|k| k.cast_unchecked::<PyDict>()),
        )
    };
    let made = catch_unwind(AssertUnwindSafe(|| wrap_as(&class, super::literal::legacy(&args, kwargs.as_deref())?)));
    match made.unwrap_or_else(|_| Err(PyRuntimeError::new_err("Tensor(): internal error: it panicked (a bug in this library)"))) {
        Ok(o) => o.into_ptr(),
        Err(e) => {
            e.restore(py);
            std::ptr::null_mut()
        }
    }
}

/// How many nodes one traversal looks into at most: a young collection must not walk a graph of a million nodes.
pub const DESCENT: u32 = 256;
/// Shows the collector what a tensor owns alone.
#[inline]
pub fn visit_tensor(t: &Tensor, visit: PyVisit<'_>, left: &mut u32) -> Result<(), PyTraverseError> {
    t.try_visit(|v| visit_one(v, visit, left))
}
pub fn visit_node(n: &Node, visit: PyVisit<'_>, left: &mut u32) -> Result<(), PyTraverseError> {
    n.try_visit(|v| visit_one(v, visit, left))?;
    all_addresses(visit, |f| n.op.visit(f))
}
fn visit_address(at: usize, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
    // SAFETY: `visit` implementations give addresses of objects that they own a reference to; only its address is passed on.
    let p: Option<Py<PyAny>> =
        unsafe { Bound::from_owned_ptr_or_opt(Python::assume_attached(), at as *mut ffi::PyObject) }.map(Bound::unbind);
    let r = visit.call(&p);
    std::mem::forget(p);
    r
}
/// Visits the objects whose addresses `tell` gives.
#[inline(always)]
fn all_addresses(visit: PyVisit<'_>, tell: impl FnOnce(&mut dyn FnMut(usize))) -> Result<(), PyTraverseError> {
    let mut result = Ok(());
    tell(&mut |at| {
        if result.is_ok() {
            result = visit_address(at, visit);
        }
    });
    result
}
#[inline(always)]
pub fn visit_one(v: Visit<'_>, visit: PyVisit<'_>, left: &mut u32) -> Result<(), PyTraverseError> {
    match v {
        Visit::Held(Held::Wrapped(w)) => visit.call(w.0.get()),
        Visit::Held(Held::Core(t)) if t.owners() == 1 && *left > 0 => visit_core(t, visit, left),
        Visit::History(n) if n.owned_by_its_tensor() && *left > 0 => {
            *left -= 1;
            visit_node(n, visit, left)
        }
        Visit::Node(n) if Arc::strong_count(n) == 1 && *left > 0 => {
            *left -= 1;
            visit_node(n, visit, left)
        }
        Visit::Held(_) | Visit::History(_) | Visit::Node(_) => Ok(()),
        v => visit_rare(v, visit),
    }
}
#[inline(never)]
fn visit_core(t: &Tensor, visit: PyVisit<'_>, left: &mut u32) -> Result<(), PyTraverseError> {
    *left -= 1;
    visit_tensor(t, visit, left)
}
#[cold]
fn visit_rare(v: Visit<'_>, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
    match v {
        Visit::Grad(h) if Arc::strong_count(h) == 1 => all_addresses(visit, |f| h.visit(f)),
        Visit::Pre(h) if Arc::strong_count(h) == 1 => all_addresses(visit, |f| h.visit(f)),
        Visit::Post(h) if Arc::strong_count(h) == 1 => all_addresses(visit, |f| h.visit(f)),
        Visit::Notes(n) if Arc::strong_count(n) == 1 => all_addresses(visit, |f| n.visit(f)),
        Visit::Slot(s) => {
            if let Some(k) = &s.keeper {
                all_addresses(visit, |f| k.visit(f))?;
            }
            if Arc::strong_count(&s.by) == 1 { all_addresses(visit, |f| s.by.visit(f)) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}
#[pymethods]
impl PyTensor {
    /// Gives the class its `__new__`; what that runs is `construct`, which `install` puts in place, since the object must become the
    /// wrapper of its tensor.
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Err(PyRuntimeError::new_err("Tensor(): the module is not made yet"))
    }
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.t.get() {
            Some(t) if t.owners() == 1 => visit_tensor(t, visit, &mut { DESCENT }),
            _ => Ok(()),
        }
    }
    fn __clear__(&self) {
        if let Some(t) = self.t.get()
            && t.owners() == 1
        {
            drop(t.clear());
        }
    }
}
/// The object at an address that a `visit` gave: its owner holds a reference.
pub fn object_at(py: Python<'_>, at: usize) -> Py<PyAny> {
    // SAFETY: `visit` implementations give addresses of objects that they own a reference to.
    unsafe { Bound::from_borrowed_ptr(py, at as *mut ffi::PyObject).unbind() }
}
/// The interpreter, for code that runs attached without having been handed it (hooks called from the engine).
#[inline]
pub fn attached<'py>() -> Python<'py> {
    // SAFETY: the tape and the engine run attached whenever Python objects exist (file header).
    unsafe { Python::assume_attached() }
}
