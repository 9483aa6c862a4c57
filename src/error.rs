//! Every way an operation can fail, as values with fields, and the Python class of each. Boxed in `Result`, so that a fallible call
//! returns a word or two. Knows no tensor. Texts keep torch's key phrase where programs match on it; the rest is ours.
use crate::dtype::DType;
use std::fmt;

pub type Result<T, E = Box<Error>> = std::result::Result<T, E>;

#[derive(Debug)]
pub enum Error {
    /// Operands whose shapes do not broadcast.
    Broadcast {
        op: &'static str,
        lhs: Vec<usize>,
        rhs: Vec<usize>,
    },
    /// A dimension outside `[-ndim, ndim)`.
    Dim {
        dim: i64,
        ndim: usize,
    },
    /// A result that cannot be written into an array of type `to`.
    Cast {
        op: &'static str,
        from: DType,
        to: DType,
    },
    /// `out=` given where a gradient would have to be recorded.
    OutGrad {
        op: &'static str,
    },
    /// An in-place write to a leaf that requires grad.
    LeafInPlace {
        op: &'static str,
    },
    /// An in-place write to a view of a leaf that requires grad.
    ViewOfLeafInPlace {
        op: &'static str,
    },
    /// A dtype for which there is no kernel.
    Unsupported {
        op: &'static str,
        dtype: DType,
    },
    /// A size that does not hold the elements there are.
    View {
        op: &'static str,
        size: Vec<i64>,
        numel: usize,
    },
    /// A saved value that was overwritten before backward. `made_by`: the node whose output it is now. `saved_at` and `written_at` are
    /// source lines, where known.
    Modified {
        node: String,
        slot: String,
        made_by: Option<(String, u32)>,
        shape: Vec<usize>,
        found: u64,
        expected: u64,
        saved_at: Option<String>,
        written_at: Option<String>,
    },
    /// Backward through a graph whose saved values are gone.
    Freed {
        node: String,
    },
    /// An allocation that the system refused, or a size beyond what an address can hold.
    Memory {
        bytes: u128,
    },
    Runtime(String),
    Type(String),
    Value(String),
    Index(String),
    Key(String),
    Attribute(String),
    NotImplemented(String),
    Assertion(String),
    LinAlg(String),
    Checkpoint(String),
    /// The run of a checkpointed region has all it needs: unwinds user code, never reaches a user.
    Stop,
    /// An exception raised by a hook or by user code, passed through as it is.
    #[cfg(feature = "python")]
    Python(pyo3::PyErr),
}

/// The Python class of an error; `py` maps each to an exception type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonClass {
    Runtime,
    Type,
    Value,
    Index,
    Key,
    Attribute,
    NotImplemented,
    Assertion,
    Memory,
    LinAlg,
    Checkpoint,
    Stop,
    /// Carries its own class.
    Own,
}

impl Error {
    pub fn python_class(&self) -> PythonClass {
        match self {
            Error::Broadcast { .. }
            | Error::Cast { .. }
            | Error::OutGrad { .. }
            | Error::LeafInPlace { .. }
            | Error::ViewOfLeafInPlace { .. }
            | Error::View { .. }
            | Error::Modified { .. }
            | Error::Freed { .. }
            | Error::Memory { .. }
            | Error::Runtime(_) => PythonClass::Runtime,
            Error::Dim { .. } | Error::Index(_) => PythonClass::Index,
            Error::Type(_) => PythonClass::Type,
            Error::Value(_) => PythonClass::Value,
            Error::Key(_) => PythonClass::Key,
            Error::Attribute(_) => PythonClass::Attribute,
            Error::Unsupported { .. } | Error::NotImplemented(_) => PythonClass::NotImplemented,
            Error::Assertion(_) => PythonClass::Assertion,
            Error::LinAlg(_) => PythonClass::LinAlg,
            Error::Checkpoint(_) => PythonClass::Checkpoint,
            Error::Stop => PythonClass::Stop,
            #[cfg(feature = "python")]
            Error::Python(_) => PythonClass::Own,
        }
    }
}

impl Error {
    /// Did the user ask to stop? (KeyboardInterrupt, SystemExit: never swallowed.)
    pub fn is_interrupt(&self) -> bool {
        #[cfg(feature = "python")]
        if let Error::Python(e) = self {
            return pyo3::Python::attach(|py| {
                e.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py) || e.is_instance_of::<pyo3::exceptions::PySystemExit>(py)
            });
        }
        false
    }
}
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Broadcast { op, lhs, rhs } => {
                let at = (0..lhs.len().min(rhs.len()))
                    .find(|&i| {
                        let (a, b) = (lhs[lhs.len() - 1 - i], rhs[rhs.len() - 1 - i]);
                        a != b && a != 1 && b != 1
                    })
                    .unwrap_or(0);
                let (a, b) = (lhs.len().checked_sub(1 + at).map_or(0, |i| lhs[i]), rhs.len().checked_sub(1 + at).map_or(0, |i| rhs[i]));
                let dim = lhs.len().max(rhs.len()).saturating_sub(1 + at);
                write!(
                    f,
                    "{op}(): The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {dim}: shapes {lhs:?} and {rhs:?} do not broadcast"
                )
            }
            Error::Dim { dim, ndim } => {
                write!(f, "Dimension out of range (expected to be in range of [-{0}, {1}], but got {dim})", ndim.max(&1), ndim.max(&1) - 1)
            }
            Error::Cast { op, from, to } => {
                write!(f, "{op}(): result type {} can't be cast to the desired output type {}", from.torch_name(), to.torch_name())
            }
            Error::OutGrad { op } => write!(
                f,
                "{op}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments requires grad. Leave out= away, or call it under no_grad()"
            ),
            Error::LeafInPlace { op } => write!(
                f,
                "{op}(): a leaf Variable that requires grad is being used in an in-place operation. Write under no_grad(), or to a clone()"
            ),
            Error::ViewOfLeafInPlace { op } => write!(
                f,
                "{op}(): a view of a leaf Variable that requires grad is being used in an in-place operation. Write under no_grad(), or to a view of a clone()"
            ),
            Error::Unsupported { op, dtype } => write!(f, "\"{op}\" not implemented for '{}'", dtype.torch_name()),
            Error::View { op, size, numel } => write!(f, "{op}(): shape '{size:?}' is invalid for input of size {numel}"),
            Error::Modified { node, slot, made_by, shape, found, expected, saved_at, written_at } => {
                write!(
                    f,
                    "one of the variables needed for gradient computation has been modified by an inplace operation: the tensor of shape {shape:?}"
                )?;
                if let Some((maker, nr)) = made_by {
                    write!(f, ", which is output {nr} of {maker},")?;
                }
                write!(f, " saved as _saved_{slot} of {node} is at version {found}; expected version {expected} instead.")?;
                if let Some(at) = saved_at {
                    write!(f, " It was saved at {at}.")?;
                }
                if let Some(at) = written_at {
                    write!(f, " The last recorded write was at {at}.")?;
                }
                write!(f, " Clone it before the write, or run under autograd.graph.allow_mutation_on_saved_tensors()")
            }
            Error::Freed { node } => write!(
                f,
                "Trying to backward through the graph a second time (or to read saved values after they have been freed): the saved values of {node} are gone. Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time"
            ),
            Error::Memory { bytes } => {
                write!(
                    f,
                    "not enough memory: you tried to allocate {bytes} bytes; free tensors, use a smaller size, or keep fewer saved values"
                )
            }
            Error::Runtime(s)
            | Error::Type(s)
            | Error::Value(s)
            | Error::Index(s)
            | Error::Attribute(s)
            | Error::NotImplemented(s)
            | Error::Assertion(s)
            | Error::LinAlg(s)
            | Error::Key(s)
            | Error::Checkpoint(s) => f.write_str(s),
            Error::Stop => f.write_str("the recomputation has what it needs"),
            #[cfg(feature = "python")]
            Error::Python(e) => e.fmt(f),
        }
    }
}
impl std::error::Error for Error {}

#[cfg(feature = "python")]
impl From<pyo3::PyErr> for Box<Error> {
    fn from(e: pyo3::PyErr) -> Self {
        Box::new(Error::Python(e))
    }
}

/// `err!(Value, "text {}", x)`: a boxed error of a variant that holds a text.
macro_rules! err {
    ($variant:ident, $($text:tt)+) => { Box::new($crate::error::Error::$variant(format!($($text)+))) };
}
/// `bail!(Value, "text {}", x)`: returns that error.
macro_rules! bail {
    ($variant:ident, $($text:tt)+) => { return Err($crate::error::err!($variant, $($text)+)) };
}
pub(crate) use {bail, err};
