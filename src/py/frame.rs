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
/// Code object (with a reference of its own, see `gone`) and last instruction of the innermost Python frame of this thread.
#[cfg(Py_3_11)]
pub fn current() -> Option<(usize, i32)> {
    let _py = attached();
    // SAFETY: attached; each call returns a new reference or null, and takes what the previous one gave.
    unsafe {
        let frame = PyThreadState_GetFrame(ffi::PyThreadState_Get());
        if frame.is_null() {
            return None;
        }
        let lasti = PyFrame_GetLasti(frame);
        let code = ffi::PyFrame_GetCode(frame);
        ffi::Py_DECREF(frame.cast());
        (!code.is_null()).then_some((code as usize, lasti))
    }
}
#[cfg(not(Py_3_11))]
pub fn current() -> Option<(usize, i32)> {
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
        object.getattr("f_code").ok().map(|c| (c.into_ptr() as usize, lasti))
    }
}
/// Gives back the reference that `current` gave.
pub fn gone(code: usize) {
    // SAFETY: `current` gave this address with a reference that nobody else gives back. A `Py` may be dropped at any time: where this
    // thread is not attached (it, or the process, is ending) pyo3 only notes the reference.
    drop(unsafe { Bound::from_owned_ptr(attached(), code as *mut ffi::PyObject) }.unbind());
}
/// `file:line` of an instruction of a code object.
pub fn text(code: usize, at: i32) -> String {
    let py = attached();
    // SAFETY: the caller's reference keeps the object alive.
    let code = unsafe { Bound::from_borrowed_ptr(py, code as *mut ffi::PyObject) };
    let file = code.getattr("co_filename").and_then(|f| f.extract::<String>()).unwrap_or_else(|_| "?".into());
    let line = (|| -> PyResult<Option<u32>> {
        for row in code.call_method0("co_lines")?.try_iter()? {
            let (start, end, line): (i32, i32, Option<u32>) = row?.extract()?;
            if (start..end).contains(&at) {
                return Ok(line);
            }
        }
        Ok(None)
    })();
    match line {
        Ok(Some(n)) => format!("{file}:{n}"),
        _ => file,
    }
}
