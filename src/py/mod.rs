//! The Python binding: the only files that name pyo3 (besides `error.rs`). `call.rs` is the one bridge for all ops; the other files hold
//! the classes that are more than ops.
pub mod arg;
pub mod attributes;
pub mod call;
pub mod cast;
pub mod convert;
pub mod dispatch;
pub mod dtype;
pub mod entry;
pub mod frame;
pub mod function;
pub mod graph;
pub mod hooks;
pub mod index;
pub mod keeper;
pub mod literal;
pub mod named;
pub mod node;
pub mod number;
pub mod random;
pub mod ret;
pub mod schema;
pub mod size;
pub mod special;
pub mod stow;
pub mod system;
pub mod tensor;

pub use keeper::Keeper;
pub use tensor::{PyTensor, Wrapper, wrap};

use crate::error::{Error, PythonClass};
use pyo3::exceptions::*;
use pyo3::prelude::*;

pyo3::create_exception!(stowgrad, CheckpointError, PyRuntimeError, "A recomputation did not do what the forward pass did.");
pyo3::create_exception!(stowgrad, _LinAlgError, PyRuntimeError, "A matrix on which the decomposition asked for does not exist.");
// Derives from BaseException, so that `except Exception` in user code does not meet it.
pyo3::create_exception!(stowgrad, StopRecomputation, PyBaseException, "The recomputation has what it needs.");

impl From<Box<Error>> for PyErr {
    fn from(e: Box<Error>) -> PyErr {
        let text = match *e {
            Error::Python(e) => return e,
            Error::Stop => return StopRecomputation::new_err(()),
            ref e => e.to_string(),
        };
        match e.python_class() {
            PythonClass::Runtime | PythonClass::Memory | PythonClass::Own => PyRuntimeError::new_err(text),
            PythonClass::LinAlg => _LinAlgError::new_err(text),
            PythonClass::Checkpoint => CheckpointError::new_err(text),
            PythonClass::Stop => StopRecomputation::new_err(()),
            PythonClass::Type => PyTypeError::new_err(text),
            PythonClass::Value => PyValueError::new_err(text),
            PythonClass::Index => PyIndexError::new_err(text),
            PythonClass::Key => PyKeyError::new_err(text),
            PythonClass::Attribute => PyAttributeError::new_err(text),
            PythonClass::NotImplemented => PyNotImplementedError::new_err(text),
            PythonClass::Assertion => PyAssertionError::new_err(text),
        }
    }
}

#[expect(non_snake_case, reason = "the name of the extension module")]
#[pymodule]
mod _C {
    #[pymodule_export]
    use super::PyTensor;
    use super::*;
    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        tensor::install(m.py())?;
        call::install(m)?;
        number::install(m)?;
        m.add("LinAlgError", m.py().get_type::<_LinAlgError>())?;
        m.add("_LinAlgError", m.py().get_type::<_LinAlgError>())?;
        special::install(m)?;
        schema::install(m)?;
        dispatch::install(m)?;
        named::install(m)?;
        dtype::install(m)?;
        convert::install(m)?;
        random::install(m)?;
        hooks::install(m)?;
        node::install(m)?;
        graph::install(m)?;
        function::install(m)?;
        system::install(m)?;
        stow::install(m)?;
        convert::install(m)?;
        Ok(())
    }
}
