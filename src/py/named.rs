//! Named tuples of several results: `torch.return_types.max(values=.., indices=..)`, one class a name, made when first returned.
//!
//! Safety rests on this: a struct sequence has the layout of a tuple of its fields; `ffi` calls are made attached.
#![allow(unsafe_code)]
use super::entry::Entry;
use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};
use std::collections::HashMap;
use std::ffi::CString;

type Known = Mutex<HashMap<(&'static str, usize), Py<PyType>>>;
static KNOWN: PyOnceLock<Known> = PyOnceLock::new();
/// Field names where the op does not tell them: functions that are no ops.
fn fields(name: &str) -> Option<&'static [&'static str]> {
    Some(match name {
        "max" | "min" | "median" | "nanmedian" | "mode" | "sort" | "topk" | "kthvalue" | "cummax" | "cummin" => &["values", "indices"],
        "aminmax" => &["min", "max"],
        "frexp" => &["mantissa", "exponent"],
        "slogdet" | "linalg_slogdet" => &["sign", "logabsdet"],
        "linalg_eig" | "linalg_eigh" => &["eigenvalues", "eigenvectors"],
        "linalg_qr" | "qr" => &["Q", "R"],
        "linalg_svd" => &["U", "S", "Vh"],
        "svd" => &["U", "S", "V"],
        "linalg_lu" => &["P", "L", "U"],
        "linalg_lu_factor" => &["LU", "pivots"],
        "linalg_cholesky_ex" => &["L", "info"],
        "linalg_inv_ex" => &["inverse", "info"],
        "linalg_lstsq" => &["solution", "residuals", "rank", "singular_values"],
        _ => return None,
    })
}
/// The class of a name whose fields these are; made once.
fn class<'py>(py: Python<'py>, name: &'static str, names: &'static [&'static str]) -> PyResult<Bound<'py, PyType>> {
    let known = KNOWN.get_or_init(py, Mutex::default);
    let find = || known.lock().get(&(name, names.len())).map(|c| c.clone_ref(py).into_bound(py));
    if let Some(c) = find() {
        return Ok(c);
    }
    let c = make(py, name, names)?;
    let old = known.lock().insert((name, names.len()), c.clone().unbind());
    drop(old);
    Ok(c)
}
/// The names of the first `n` results (0: of all).
fn names(e: &'static Entry, name: &str, n: usize) -> Option<&'static [&'static str]> {
    match e.info {
        Some(i) if i.outputs.len() >= n => Some(&i.outputs[..if n == 0 { i.visible } else { n }]),
        _ => fields(name).filter(|f| n == 0 || f.len() == n),
    }
}
/// The items as the named tuple `name`.
pub fn named<'py>(py: Python<'py>, name: &'static str, e: &'static Entry, items: Vec<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let Some(names) = names(e, name, items.len()) else { return Ok(PyTuple::new(py, items)?.into_any()) };
    let class = class(py, name, names)?;
    // SAFETY: a class made by `make` with as many fields; each is set once, to an owned object, before anybody sees the tuple.
    unsafe {
        let t = Bound::from_owned_ptr_or_err(py, ffi::PyStructSequence_New(class.as_type_ptr()))?;
        for (i, item) in items.into_iter().enumerate() {
            ffi::PyStructSequence_SetItem(t.as_ptr(), i as ffi::Py_ssize_t, item.into_ptr());
        }
        Ok(t)
    }
}
/// The class; it is also an attribute of `stowgrad.return_types`, where pickles look for it.
fn make<'py>(py: Python<'py>, name: &'static str, names: &'static [&'static str]) -> PyResult<Bound<'py, PyType>> {
    // The interpreter keeps pointers into the description.
    let keep = |s: &str| -> PyResult<*const std::ffi::c_char> { Ok(CString::new(s)?.into_raw()) };
    let mut list: Vec<ffi::PyStructSequence_Field> =
        names.iter().map(|n| Ok(ffi::PyStructSequence_Field { name: keep(n)?, doc: std::ptr::null() })).collect::<PyResult<_>>()?;
    list.push(ffi::PyStructSequence_Field { name: std::ptr::null(), doc: std::ptr::null() });
    let description = Box::leak(Box::new(ffi::PyStructSequence_Desc {
        name: keep(&format!("stowgrad.return_types.{name}"))?,
        doc: std::ptr::null(),
        fields: Box::leak(list.into_boxed_slice()).as_mut_ptr(),
        n_in_sequence: names.len() as _,
    }));
    // SAFETY: the description is complete and lives for ever; the class is new, so that nobody uses the representation that it came with.
    unsafe {
        let made = ffi::PyStructSequence_NewType(description);
        if made.is_null() {
            return Err(PyErr::fetch(py));
        }
        (*made).tp_repr = Some(repr);
        ffi::PyType_Modified(made);
        Ok(Bound::from_owned_ptr(py, made.cast()).cast_into_unchecked())
    }
}
unsafe extern "C" fn repr(this: *mut PyObject) -> *mut PyObject {
    // SAFETY: called by the interpreter, attached, with an instance of a class that `make` made.
    let (py, this) = unsafe {
        let py = Python::assume_attached();
        (py, Borrowed::from_ptr(py, this))
    };
    let text = || -> PyResult<String> {
        let class = this.get_type();
        let names = class.getattr("__match_args__")?.cast_into::<PyTuple>().map_err(|_| PyRuntimeError::new_err("no field names"))?;
        let parts: PyResult<Vec<String>> =
            names.iter().map(|n| Ok(format!("{}={}", n, this.getattr(n.cast::<pyo3::types::PyString>()?)?.repr()?))).collect();
        Ok(format!("torch.return_types.{}(\n{})", class.name()?, parts?.join(",\n")))
    };
    match text().and_then(|s| Ok(s.into_pyobject(py)?)) {
        Ok(s) => s.into_any().into_ptr(),
        Err(e) => {
            e.restore(py);
            std::ptr::null_mut()
        }
    }
}
/// Every named tuple that an op can return, made for `stowgrad.return_types`.
#[pyfunction]
fn _return_types(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for e in super::entry::link().iter().flat_map(|e| e.overloads()) {
        let Some(name) = e.named else { continue };
        if let Some(names) = names(e, name, 0) {
            all.set_item(name, class(py, name, names)?)?;
        }
    }
    Ok(all)
}
pub fn install(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(_return_types, m)?)
}
