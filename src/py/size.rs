//! `Size`: the tuple subclass that shapes are given as. It stays a `Size` when sliced, joined with a tuple or repeated.
//!
//! Safety rests on this: a tuple subclass has the layout of a tuple, so the C API's tuple calls work on it; `ffi` calls are made attached.
#![allow(clippy::deref_addrof, reason = "the C API gives the type object as a static place")]
#![allow(unsafe_code)]
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi::{self, Py_ssize_t, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};
use std::ffi::{c_int, c_void};

static SIZE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
/// The class, made when first asked for.
pub fn class<'py>(py: Python<'py>) -> PyResult<&'py Bound<'py, PyType>> {
    Ok(SIZE.get_or_try_init(py, || make(py))?.bind(py))
}
fn make(py: Python<'_>) -> PyResult<Py<PyType>> {
    let slot = |slot: c_int, f: *mut c_void| ffi::PyType_Slot { slot, pfunc: f };
    let methods: &'static mut [ffi::PyMethodDef] = Box::leak(Box::new([
        ffi::PyMethodDef {
            ml_name: c"numel".as_ptr(),
            ml_meth: ffi::PyMethodDefPointer { PyCFunction: numel },
            ml_flags: ffi::METH_NOARGS,
            ml_doc: c"numel($self)\n--\n\nHow many elements a tensor of this size has.".as_ptr(),
        },
        ffi::PyMethodDef {
            ml_name: c"__reduce__".as_ptr(),
            ml_meth: ffi::PyMethodDefPointer { PyCFunction: reduce },
            ml_flags: ffi::METH_NOARGS,
            ml_doc: std::ptr::null(),
        },
        ffi::PyMethodDef::zeroed(),
    ]));
    let mut slots = [
        slot(ffi::Py_tp_doc, c"The size of a tensor: a tuple of its lengths.".as_ptr() as *mut c_void),
        slot(ffi::Py_tp_new, new as *mut c_void),
        slot(ffi::Py_tp_repr, repr as *mut c_void),
        slot(ffi::Py_mp_subscript, subscript as *mut c_void),
        slot(ffi::Py_nb_add, add as *mut c_void),
        slot(ffi::Py_nb_multiply, multiply as *mut c_void),
        slot(ffi::Py_tp_methods, methods.as_mut_ptr().cast()),
        slot(0, std::ptr::null_mut()),
    ];
    let mut spec = ffi::PyType_Spec {
        name: c"stowgrad.Size".as_ptr(),
        basicsize: 0,
        itemsize: 0,
        flags: (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_BASETYPE) as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: sizes 0 are inherited from tuple; the slots are functions of the right types below; names and methods live for ever.
    unsafe {
        let bases = PyTuple::new(py, [py.get_type::<PyTuple>()])?;
        Ok(Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpecWithBases(&mut spec, bases.as_ptr()))?.cast_into_unchecked().unbind())
    }
}
/// A `Size` of these lengths.
pub fn new_size<'py>(py: Python<'py>, n: usize, at: impl Fn(usize) -> i64) -> PyResult<Bound<'py, PyAny>> {
    let class = class(py)?.as_type_ptr();
    // SAFETY: a tuple subclass without fields is allocated as its items; each is set once, to an owned int, before anybody sees it.
    unsafe {
        let t = Bound::from_owned_ptr_or_err(py, ffi::PyType_GenericAlloc(class, n as Py_ssize_t))?;
        for i in 0..n {
            let v = ffi::PyLong_FromLongLong(at(i));
            if v.is_null() {
                return Err(PyErr::fetch(py));
            }
            ffi::PyTuple_SET_ITEM(t.as_ptr(), i as Py_ssize_t, v);
        }
        Ok(t)
    }
}
/// A `Size` of the items of a tuple, of which the reference is taken over; null stays null.
unsafe fn from_tuple(t: *mut PyObject) -> *mut PyObject {
    if t.is_null() {
        return t;
    }
    // SAFETY: attached; `t` is an owned tuple. Items are borrowed from it and owned again by the new one.
    unsafe {
        let py = Python::assume_attached();
        let t = Bound::from_owned_ptr(py, t);
        let class = match class(py) {
            Ok(c) => c.as_type_ptr(),
            Err(e) => {
                e.restore(py);
                return std::ptr::null_mut();
            }
        };
        let n = ffi::PyTuple_GET_SIZE(t.as_ptr());
        let s = ffi::PyType_GenericAlloc(class, n);
        if !s.is_null() {
            for i in 0..n {
                ffi::PyTuple_SET_ITEM(s, i, ffi::Py_NewRef(ffi::PyTuple_GET_ITEM(t.as_ptr(), i)));
            }
        }
        s
    }
}
unsafe extern "C" fn new(class: *mut PyTypeObject, args: *mut PyObject, kw: *mut PyObject) -> *mut PyObject {
    // SAFETY: called by the interpreter; tuple's own constructor makes the object, whose items are then looked at.
    unsafe {
        let made = (*(&raw mut ffi::PyTuple_Type)).tp_new.expect("tuple has a constructor")(class, args, kw);
        if made.is_null() {
            return made;
        }
        let py = Python::assume_attached();
        let size = Bound::from_owned_ptr(py, made).cast_into_unchecked::<PyTuple>();
        for i in 0..size.len() {
            let item = ffi::PyTuple_GET_ITEM(size.as_ptr(), i as Py_ssize_t);
            if ffi::PyLong_CheckExact(item) != 0 {
                continue;
            }
            let whole = if ffi::PyIndex_Check(item) != 0 { ffi::PyNumber_Index(item) } else { std::ptr::null_mut() };
            if whole.is_null() {
                ffi::PyErr_Clear();
                let ty = super::call::type_name(Borrowed::from_ptr(py, item));
                PyTypeError::new_err(format!("Size() takes an iterable of 'int' (item {i} is '{ty}')")).restore(py);
                return std::ptr::null_mut();
            }
            // The object is still ours alone, so that its item may be changed.
            ffi::PyTuple_SET_ITEM(size.as_ptr(), i as Py_ssize_t, whole);
            ffi::Py_DECREF(item);
        }
        size.into_ptr()
    }
}
unsafe extern "C" fn repr(this: *mut PyObject) -> *mut PyObject {
    // SAFETY: `this` is a Size, hence a tuple.
    unsafe {
        let py = Python::assume_attached();
        let items = Borrowed::from_ptr(py, this).cast_unchecked::<PyTuple>();
        let each: PyResult<Vec<String>> = items.iter_borrowed().map(|i| Ok(i.repr()?.to_str()?.to_owned())).collect();
        give(py, each.map(|v| format!("torch.Size([{}])", v.join(", "))))
    }
}
unsafe extern "C" fn subscript(this: *mut PyObject, key: *mut PyObject) -> *mut PyObject {
    // SAFETY: tuple's own subscript works on its subclasses; a slice gives a tuple.
    unsafe {
        let base = (*(*(&raw mut ffi::PyTuple_Type)).tp_as_mapping).mp_subscript.expect("tuple has a subscript");
        let r = base(this, key);
        if ffi::PySlice_Check(key) != 0 { from_tuple(r) } else { r }
    }
}
unsafe extern "C" fn add(a: *mut PyObject, b: *mut PyObject) -> *mut PyObject {
    // SAFETY: both are checked to be tuples before tuple's own concatenation sees them.
    unsafe {
        let other = if ffi::PyTuple_Check(a) == 0 {
            a
        } else if ffi::PyTuple_Check(b) == 0 {
            b
        } else {
            let concat = (*(*(&raw mut ffi::PyTuple_Type)).tp_as_sequence).sq_concat.expect("tuple has a concatenation");
            return from_tuple(concat(a, b));
        };
        let py = Python::assume_attached();
        let ty = super::call::type_name(Borrowed::from_ptr(py, other));
        PyTypeError::new_err(format!("can only concatenate tuple (not {ty}) to Size")).restore(py);
        std::ptr::null_mut()
    }
}
unsafe extern "C" fn multiply(a: *mut PyObject, b: *mut PyObject) -> *mut PyObject {
    // SAFETY: the tuple among the two goes to tuple's own repetition.
    unsafe {
        let (t, n) = if ffi::PyTuple_Check(a) != 0 { (a, b) } else { (b, a) };
        if ffi::PyIndex_Check(n) == 0 {
            return ffi::Py_NewRef(ffi::Py_NotImplemented());
        }
        let n = ffi::PyNumber_AsSsize_t(n, ffi::PyExc_OverflowError);
        if n == -1 && !ffi::PyErr_Occurred().is_null() {
            return std::ptr::null_mut();
        }
        let repeat = (*(*(&raw mut ffi::PyTuple_Type)).tp_as_sequence).sq_repeat.expect("tuple has a repetition");
        from_tuple(repeat(t, n))
    }
}
unsafe extern "C" fn numel(this: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: `this` is a Size, hence a tuple.
    unsafe {
        let py = Python::assume_attached();
        let items = Borrowed::from_ptr(py, this).cast_unchecked::<PyTuple>();
        let n: PyResult<i64> = items.iter_borrowed().try_fold(1i64, |n, i| Ok(n.wrapping_mul(i.extract::<i64>()?)));
        give(py, n)
    }
}
unsafe extern "C" fn reduce(this: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: `this` is a Size, hence a tuple.
    unsafe {
        let py = Python::assume_attached();
        let items = Borrowed::from_ptr(py, this).cast_unchecked::<PyTuple>();
        give(
            py,
            PyTuple::new(py, items.iter_borrowed()).and_then(|plain| (Borrowed::from_ptr(py, this).get_type(), (plain,)).into_pyobject(py)),
        )
    }
}
/// A result as an owned reference; an error is set and gives null.
fn give<'py, T: IntoPyObject<'py>>(py: Python<'py>, r: PyResult<T>) -> *mut PyObject {
    match r.and_then(|v| v.into_bound_py_any(py)) {
        Ok(o) => o.into_ptr(),
        Err(e) => {
            e.restore(py);
            std::ptr::null_mut()
        }
    }
}
