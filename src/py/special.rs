//! Subclasses of Tensor, and `__torch_function__`: who may intercept a call, and what class its results get. Nothing here is reached for
//! plain tensors.
use super::call::{Answer, Given, Style, finish, run_lax};
use super::entry::Entry;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Does this subclass of Tensor have anything to say about ops on it?
pub fn has_a_say(_class: &Bound<'_, PyType>) -> bool {
    true
}
/// A call with an argument of such a subclass.
pub fn call<'py>(e: &'static Entry, style: Style, g: &Given<'py>) -> PyResult<Bound<'py, PyAny>> {
    match run_lax(e, style, g)? {
        Answer::Given(o) => Ok(o),
        Answer::New(r) => finish(e, r, g.py),
    }
}
/// A call that failed: is an argument an object that is no tensor and has `__torch_function__`?
pub fn foreign<'py>(_e: &'static Entry, _style: Style, _g: &Given<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(None)
}
