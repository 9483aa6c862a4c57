//! The backward calls that run on this thread: who they are, what they will run, and who must be told when they end. `engine` runs them;
//! policies and hooks ask here.
use super::node::{Edge, Node};
use crate::error::{Result, err};
use rustc_hash::{FxHashMap, FxHashSet};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// What holds while a backward call runs on this thread; hooks may ask for it.
pub struct Task {
    pub id: u64,
    pub keep: bool,
    /// The node whose formula runs, shared with the walk, which sets it for each.
    pub node: Rc<Cell<Option<Arc<Node>>>>,
    /// Addresses of what this call will run (None: everything that is reachable).
    pub needed: Option<Rc<FxHashSet<usize>>>,
    /// Where it started.
    pub roots: Rc<Vec<Edge>>,
    /// Addresses of what is reachable, once somebody asked.
    pub graph: Option<Rc<FxHashSet<usize>>>,
    pub callbacks: Vec<Box<dyn FnOnce() -> Result<()>>>,
    /// State of registrations for the length of this call, by registration.
    pub state: FxHashMap<u64, Box<dyn Any>>,
    pub ends: Vec<Weak<dyn Ends>>,
}
/// Must be told when a backward call is over, however it ends.
pub trait Ends {
    fn ended(&self, task: u64);
}
thread_local! {
    static TASKS: RefCell<Vec<Task>> = const { RefCell::new(Vec::new()) };
    /// The id of the innermost, `NO_TASK` if there is none: every unpack of a frame asks for it.
    static CURRENT: Cell<u64> = const { Cell::new(NO_TASK) };
    /// Backward calls of this thread that share what they recompute: under this number, until the group is closed, and who is told then.
    static GROUP: Cell<Option<u64>> = const { Cell::new(None) };
    static GROUP_ENDS: RefCell<Vec<Weak<dyn Ends>>> = const { RefCell::new(Vec::new()) };
}
const NO_TASK: u64 = u64::MAX;
pub static NEXT_TASK: AtomicU64 = AtomicU64::new(0);

/// Looks at the innermost running call. `f` may only look, push, take.
pub fn with_task<R>(f: impl FnOnce(&mut Task) -> R) -> Option<R> {
    TASKS.with(|t| t.borrow_mut().last_mut().map(f))
}
/// The node whose formula the innermost call runs.
pub fn current_node() -> Option<Arc<Node>> {
    let at = with_task(|t| t.node.clone())?;
    let n = at.take();
    at.set(n.clone());
    n
}
#[inline]
pub fn current_task() -> Option<u64> {
    Some(CURRENT.get()).filter(|id| *id != NO_TASK)
}
/// The number under which what is recomputed now is shared: of the innermost call, or of the group that it is part of. None outside of
/// backward.
#[inline]
pub fn sharing() -> Option<u64> {
    let id = current_task()?;
    Some(GROUP.get().unwrap_or(id))
}
/// To be run when the innermost call is done.
pub fn queue_callback(f: Box<dyn FnOnce() -> Result<()>>) -> Result<()> {
    with_task(|t| t.callbacks.push(f)).ok_or_else(|| err!(Runtime, "Final callbacks can only be installed during backward pass."))
}
/// Opens a group; false if one is open on this thread.
pub fn open_group() -> bool {
    let free = GROUP.get().is_none();
    if free {
        GROUP.set(Some(NEXT_TASK.fetch_add(1, Relaxed)));
    }
    free
}
/// Closes the group of this thread, and tells who wants to know.
pub fn close_group() {
    if let Some(id) = GROUP.take() {
        tell(&GROUP_ENDS.take(), id);
    }
}
fn tell(ends: &[Weak<dyn Ends>], id: u64) {
    for e in ends {
        if let Some(e) = e.upgrade() {
            e.ended(id);
        }
    }
}
/// Tells `who` when the innermost call ends, or the group that it is part of. To be asked for once.
pub fn at_end(who: Weak<dyn Ends>) {
    if GROUP.get().is_some() {
        GROUP_ENDS.with(|e| e.borrow_mut().push(who));
    } else {
        with_task(|t| t.ends.push(who));
    }
}
/// Takes its task off the stack, on every way out, and tells who wants to know.
pub struct Running;
impl Running {
    pub fn start(task: Task) -> Running {
        CURRENT.set(task.id);
        TASKS.with(|t| t.borrow_mut().push(task));
        Running
    }
}
impl Drop for Running {
    fn drop(&mut self) {
        let Some(task) = TASKS.with(|t| {
            let mut t = t.borrow_mut();
            let task = t.pop();
            CURRENT.set(t.last().map_or(NO_TASK, |t| t.id));
            task
        }) else {
            return;
        };
        tell(&task.ends, task.id);
    }
}
