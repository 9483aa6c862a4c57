//! What holds for one thread: grad mode, inference mode, the stack of `Pack` policies, sequence numbers (rule 6). One `thread_local!`
//! struct, so that an op looks at it once.
use super::saved::Pack;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub struct Thread {
    /// Are operations recorded: grad mode is on, inference mode off, and no handler of a dispatch mode runs. Kept up to date, so that an
    /// op reads one flag.
    records: Cell<bool>,
    grad: Cell<bool>,
    inference: Cell<bool>,
    /// A handler of a dispatch mode or subclass runs: what it calls is below autograd.
    below: Cell<bool>,
    seq: Cell<u64>,
    /// Number of policies on the stack: the usual 0 is seen without a borrow.
    depth: Cell<u32>,
    packs: RefCell<Vec<Arc<dyn Pack>>>,
    disabled: RefCell<Option<Arc<str>>>,
    /// A checkpointed region is running again.
    recomputing: Cell<bool>,
    /// Dispatch modes active on this thread.
    modes: Cell<u32>,
    /// The next op with outputs for backward alone gives these too.
    whole: Cell<bool>,
}
impl Thread {
    fn settle(&self) {
        self.records.set(self.grad.get() && !self.inference.get() && !self.below.get());
    }
}
thread_local! {
    static THREAD: Thread = const { Thread {
        records: Cell::new(true), grad: Cell::new(true), inference: Cell::new(false), below: Cell::new(false), seq: Cell::new(0), depth: Cell::new(0), packs: RefCell::new(Vec::new()),
        disabled: RefCell::new(None), modes: Cell::new(0), recomputing: Cell::new(false), whole: Cell::new(false),
    } };
}
/// Are operations recorded? Never in inference mode, nor inside a handler of a dispatch mode.
#[inline]
pub fn grad_enabled() -> bool {
    THREAD.with(|t| t.records.get())
}
/// Grad mode as the user set it, inside handlers too.
pub fn grad_mode() -> bool {
    THREAD.with(|t| t.grad.get() && !t.inference.get())
}
/// Sets grad mode, returns what it was.
pub fn set_grad_enabled(on: bool) -> bool {
    THREAD.with(|t| {
        let old = t.grad.replace(on);
        t.settle();
        old
    })
}
#[inline]
pub fn inference() -> bool {
    THREAD.with(|t| t.inference.get())
}
pub fn set_inference(on: bool) -> bool {
    THREAD.with(|t| {
        let old = t.inference.replace(on);
        t.settle();
        old
    })
}
/// While it lives, operations of this thread are below autograd: nothing is recorded, whatever grad mode says.
pub struct Below(bool);
impl Below {
    pub fn enter() -> Below {
        Below(set_below(true))
    }
}
impl Drop for Below {
    fn drop(&mut self) {
        set_below(self.0);
    }
}
/// Sets whether a handler runs (a recomputation starts as if none did); returns what it was.
pub fn set_below(on: bool) -> bool {
    THREAD.with(|t| {
        let old = t.below.replace(on);
        t.settle();
        old
    })
}
/// Does a handler of a dispatch mode or subclass run on this thread?
pub fn below() -> bool {
    THREAD.with(|t| t.below.get())
}
/// Grad mode for a scope; put back also when it is left by an error.
pub struct GradGuard(bool);
impl GradGuard {
    pub fn set(on: bool) -> GradGuard {
        GradGuard(set_grad_enabled(on))
    }
}
impl Drop for GradGuard {
    fn drop(&mut self) {
        set_grad_enabled(self.0);
    }
}
pub fn with_grad<T>(on: bool, f: impl FnOnce() -> T) -> T {
    let _guard = GradGuard::set(on);
    f()
}
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    with_grad(false, f)
}
pub fn enable_grad<T>(f: impl FnOnce() -> T) -> T {
    with_grad(true, f)
}
#[inline]
pub fn next_seq() -> u64 {
    THREAD.with(|t| t.seq.replace(t.seq.get() + 1))
}
pub fn peek_seq() -> u64 {
    THREAD.with(|t| t.seq.get())
}

/// The innermost policy, if there is one.
#[inline]
pub fn pack() -> Option<Arc<dyn Pack>> {
    THREAD.with(|t| if t.depth.get() == 0 { None } else { t.packs.borrow().last().cloned() })
}
pub fn has_pack() -> bool {
    THREAD.with(|t| t.depth.get() != 0)
}
pub fn push_pack(p: Arc<dyn Pack>) {
    THREAD.with(|t| {
        t.packs.borrow_mut().push(p);
        t.depth.set(t.depth.get() + 1);
    })
}
/// Takes the innermost policy off; the caller drops it.
pub fn pop_pack() -> Option<Arc<dyn Pack>> {
    THREAD.with(|t| {
        let p = t.packs.borrow_mut().pop();
        t.depth.set(t.packs.borrow().len() as u32);
        p
    })
}
pub fn pack_depth() -> usize {
    THREAD.with(|t| t.depth.get() as usize)
}
/// Takes the whole stack away for a while (a recomputation starts as if no policy were open).
pub fn swap_packs(new: Vec<Arc<dyn Pack>>) -> Vec<Arc<dyn Pack>> {
    THREAD.with(|t| {
        t.depth.set(new.len() as u32);
        std::mem::replace(&mut *t.packs.borrow_mut(), new)
    })
}
/// The policies from the outermost to the innermost.
pub fn all_packs() -> Vec<Arc<dyn Pack>> {
    THREAD.with(|t| t.packs.borrow().clone())
}
/// While a message is set, hooks may not be pushed: who tries gets it as the error.
pub fn hooks_disabled() -> Option<Arc<str>> {
    THREAD.with(|t| t.disabled.borrow().clone())
}
pub fn set_hooks_disabled(message: Option<Arc<str>>) -> Option<Arc<str>> {
    THREAD.with(|t| t.disabled.replace(message))
}
/// Is a checkpointed region being run again? Declared state (running statistics) must not move then.
pub fn recomputing() -> bool {
    THREAD.with(|t| t.recomputing.get())
}
pub fn set_recomputing(on: bool) -> bool {
    THREAD.with(|t| t.recomputing.replace(on))
}
/// May somebody intercept operations: a dispatch mode of this thread, or any subclass that does so?
#[inline]
pub fn dispatching() -> bool {
    THREAD.with(|t| t.modes.get() != 0) || SUBCLASSES.load(Relaxed)
}
/// Tells how many dispatch modes are active on this thread.
pub fn set_dispatching(n: u32) {
    THREAD.with(|t| t.modes.set(n))
}
/// Tensors of a class that intercepts operations exist from now on.
pub fn note_subclass() {
    SUBCLASSES.store(true, Relaxed)
}
pub fn has_subclasses() -> bool {
    SUBCLASSES.load(Relaxed)
}
static SUBCLASSES: AtomicBool = AtomicBool::new(false);
/// Asks the next op to give the outputs that are for backward alone too, or takes the request back.
pub fn ask_whole(on: bool) -> bool {
    THREAD.with(|t| t.whole.replace(on))
}

static ANOMALY: AtomicBool = AtomicBool::new(false);
static CHECK_NAN: AtomicBool = AtomicBool::new(true);
/// Anomaly mode is global, as in torch: nodes keep the stack of their making, backward checks for NaN.
#[inline]
pub fn anomaly() -> bool {
    ANOMALY.load(Relaxed)
}
pub fn anomaly_checks_nan() -> bool {
    CHECK_NAN.load(Relaxed)
}
pub fn set_anomaly(on: bool, check_nan: bool) {
    ANOMALY.store(on, Relaxed);
    CHECK_NAN.store(check_nan, Relaxed);
}
