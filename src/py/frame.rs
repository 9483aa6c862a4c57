//! The line of user code that is running, as (code, lasti): kept with a save for the cost of a reference, resolved to text when an error asks.
#![allow(unsafe_code)]
use super::tensor::attached;
use pyo3::ffi;
use pyo3::prelude::*;

#[cfg(Py_3_11)]
unsafe extern "C" {
    fn PyThreadState_GetFrame(state: *mut ffi::PyThreadState) -> *mut ffi::PyFrameObject;
    fn PyFrame_GetLasti(frame: *mut ffi::PyFrameObject) -> std::ffi::c_int;
}
/// Code object and last instruction of the innermost Python frame of this thread.
#[cfg(Py_3_11)]
pub fn current() -> Option<(Py<PyAny>, i32)> {
    let py = attached();
    // SAFETY: attached; each call returns a new reference or null, and takes what the previous one gave.
    unsafe {
        let frame = PyThreadState_GetFrame(ffi::PyThreadState_Get());
        if frame.is_null() {
            return None;
        }
        let lasti = PyFrame_GetLasti(frame);
        let code = ffi::PyFrame_GetCode(frame);
        ffi::Py_DECREF(frame.cast());
        Bound::from_owned_ptr_or_opt(py, code.cast()).map(|c| (c.unbind(), lasti))
    }
}
#[cfg(not(Py_3_11))]
pub fn current() -> Option<(Py<PyAny>, i32)> {
    let py = attached();
    // SAFETY: attached; the frame is borrowed from the running thread, the code is a new reference.
    unsafe {
        let frame = ffi::PyEval_GetFrame();
        if frame.is_null() {
            return None;
        }
        // Before 3.11 there is no PyFrame_GetLasti: the attribute gives it.
        let object = Bound::from_borrowed_ptr(py, frame.cast());
        let lasti = object.getattr("f_lasti").and_then(|l| l.extract::<i32>()).unwrap_or(-1);
        object.getattr("f_code").ok().map(|c| (c.unbind(), lasti))
    }
}
