//! The traits through which user code is called: hooks on gradients and nodes, and `Host`, what the tape needs of the language around it.
use super::tensor::Tensor;
use crate::error::Result;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A hook on the gradient of one tensor: may give another gradient.
pub trait GradHook: Send + Sync {
    fn call(&self, g: &Tensor) -> Result<Option<Tensor>>;
    /// Shows the collector what it owns.
    fn visit(&self, _f: &mut dyn FnMut(usize)) {}
}
/// A hook before a node runs: may give other gradients of its outputs.
pub trait PreHook: Send + Sync {
    fn call(&self, outputs: &[Option<Tensor>]) -> Result<Option<Vec<Option<Tensor>>>>;
    fn visit(&self, _f: &mut dyn FnMut(usize)) {}
}
/// A hook after a node ran: may give other gradients of its inputs.
pub trait NodeHook: Send + Sync {
    fn call(&self, inputs: &[Option<Tensor>], outputs: &[Option<Tensor>]) -> Result<Option<Vec<Option<Tensor>>>>;
    fn visit(&self, _f: &mut dyn FnMut(usize)) {}
}

/// A place in the user's source, resolved to text only when somebody asks. `Host` makes it, reads it, and takes its reference back.
pub struct Line {
    code: usize,
    at: i32,
}
impl Line {
    /// `code`: an address with a reference of its own, which the host takes back when the line is dropped.
    pub fn new(code: usize, at: i32) -> Line {
        Line { code, at }
    }
    pub fn text(&self) -> String {
        host().map_or(String::new(), |h| h.line_text(self.code, self.at))
    }
}
impl Drop for Line {
    fn drop(&mut self) {
        if let Some(h) = host() {
            h.line_gone(self.code);
        }
    }
}
/// What the tape asks of the language around it; set once, when the binding is loaded.
pub trait Host: Send + Sync {
    /// Runs `f` without the interpreter's lock, for kernels that take long.
    fn detached(&self, f: &mut (dyn FnMut() + Send));
    /// Has the user asked to stop (Ctrl-C)?
    fn interrupted(&self) -> Result<()>;
    /// The line of user code that is running.
    fn here(&self) -> Option<Line>;
    /// `file:line` of a place that `here` gave.
    fn line_text(&self, code: usize, at: i32) -> String;
    /// Takes back the reference of a place that `here` gave.
    fn line_gone(&self, code: usize);
    /// The whole stack as text, for anomaly mode.
    fn stack(&self) -> Option<String>;
    fn warn(&self, text: &str) -> Result<()>;
    /// Does a dispatch mode wait on this thread, or does a subclass among the inputs intercept this op?
    fn intercepts(&self, info: &'static super::Info, how: super::How<'_>, inputs: super::record::Operands<'_>) -> bool;
    /// Asks whoever intercepts.
    fn dispatch(&self, call: &super::dispatch::Call<'_>) -> Result<super::dispatch::Got>;
}
static HOST: OnceLock<Box<dyn Host>> = OnceLock::new();
pub fn set_host(h: Box<dyn Host>) {
    let _ = HOST.set(h);
}
pub fn host() -> Option<&'static dyn Host> {
    HOST.get().map(|h| &**h)
}
static NEXT: AtomicU64 = AtomicU64::new(1);
/// A number for a registration, never used twice.
pub fn next_id() -> u64 {
    NEXT.fetch_add(1, Relaxed)
}
