//! What holds for one thread: grad mode, inference mode, the stack of `Pack` policies, sequence numbers (rule 6). What
//! every op asks lies in one `thread_local!` struct, so that an op looks at it once.
use super::record::Reads;
use super::saved::Pack;
use crate::array::Array;
use smallvec::{SmallVec, smallvec};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

type Packs = SmallVec<[Arc<dyn Pack>; 3]>;
type Readers = SmallVec<[Arc<dyn Reads>; 3]>;
/// What an op looks at; apart from what has to be dropped, so that a look is an address and a load.
pub struct Hand {
    now: Cell<Now>,
    seq: Cell<u64>,
    depth: Cell<u32>,
}
struct Thread {
    packs: RefCell<Packs>,
    readers: RefCell<Readers>,
    disabled: RefCell<Option<Arc<str>>>,
}
impl Drop for Thread {
    /// A thread that ends with policies open leaves them: by then it is not attached to the interpreter, which may be gone.
    fn drop(&mut self) {
        std::mem::forget((std::mem::take(self.packs.get_mut()), std::mem::take(self.readers.get_mut())));
    }
}
impl Hand {
    #[inline]
    pub fn now(&self) -> Now {
        self.now.get()
    }
    #[inline]
    pub fn next_seq(&self) -> u64 {
        self.seq.replace(self.seq.get() + 1)
    }
    fn set_depth(&self, n: usize) {
        self.depth.set(n as u32);
        let old = self.now.get().0;
        self.now.set(Now(if n == 0 { old & !Now::PACK } else { old | Now::PACK }));
    }
}
thread_local! {
    static HAND: Hand = const { Hand { now: Cell::new(Now(Now::GRAD)), seq: Cell::new(0), depth: Cell::new(0) } };
    static THREAD: Thread = const { Thread {
        packs: RefCell::new(SmallVec::new_const()), readers: RefCell::new(SmallVec::new_const()), disabled: RefCell::new(None),
    } };
}
/// Lends what an op looks at, for more looks than one.
#[inline(always)]
pub fn at_hand<R>(f: impl FnOnce(&Hand) -> R) -> R {
    HAND.with(f)
}
/// What an op must know of its thread, read in one look.
#[derive(Clone, Copy)]
pub struct Now(u16);
impl Now {
    const GRAD: u16 = 1;
    const INFERENCE: u16 = 2;
    /// A policy takes saved values.
    const PACK: u16 = 4;
    /// A dispatch mode is active.
    const DISPATCH: u16 = 8;
    /// An open frame notes what is read.
    const READ: u16 = 16;
    /// A checkpointed region is running again.
    const RECOMPUTING: u16 = 32;
    /// A handler of a dispatch mode or subclass runs: what it calls is below autograd.
    const BELOW: u16 = 64;
    /// The next op with outputs for backward alone gives these too.
    const WHOLE: u16 = 128;
    /// A custom function computes (see `record::Tracing`).
    const TRACING: u16 = 256;
    /// What a recomputation does not take over from the code around it.
    const OUTER: u16 = Now::GRAD | Now::INFERENCE | Now::PACK | Now::READ | Now::RECOMPUTING | Now::BELOW;

    #[inline]
    fn has(self, bit: u16) -> bool {
        self.0 & bit != 0
    }
    /// Are operations recorded? Never in inference mode, nor inside a handler of a dispatch mode.
    #[inline]
    pub fn grad_enabled(self) -> bool {
        self.0 & (Now::GRAD | Now::INFERENCE | Now::BELOW) == Now::GRAD
    }
    /// May somebody intercept operations: a dispatch mode of this thread, or any subclass that does so?
    #[inline]
    pub fn dispatching(self) -> bool {
        self.has(Now::DISPATCH) || SUBCLASSES.load(Relaxed)
    }
    #[inline]
    pub fn reading(self) -> bool {
        self.has(Now::READ)
    }
    #[inline]
    pub fn inference(self) -> bool {
        self.has(Now::INFERENCE)
    }
    #[inline]
    pub fn below(self) -> bool {
        self.has(Now::BELOW)
    }
    #[inline]
    pub fn recomputing(self) -> bool {
        self.has(Now::RECOMPUTING)
    }
    #[inline]
    pub fn tracing(self) -> bool {
        self.has(Now::TRACING)
    }
    /// Does a policy take saved values?
    #[inline]
    pub fn packing(self) -> bool {
        self.has(Now::PACK)
    }
    /// May user code run, or a policy look, while an op is recorded?
    #[inline]
    pub fn watched(self) -> bool {
        self.has(Now::PACK | Now::READ)
    }
}
#[inline]
pub fn now() -> Now {
    HAND.with(|t| t.now.get())
}
/// Sets a bit, returns what it was.
fn set(bit: u16, on: bool) -> bool {
    HAND.with(|t| {
        let old = t.now.get();
        t.now.set(Now(if on { old.0 | bit } else { old.0 & !bit }));
        old.has(bit)
    })
}
/// Are operations recorded? Never in inference mode, nor inside a handler of a dispatch mode.
#[inline]
pub fn grad_enabled() -> bool {
    now().grad_enabled()
}
/// Grad mode as the user set it, inside handlers too.
pub fn grad_mode() -> bool {
    now().0 & (Now::GRAD | Now::INFERENCE) == Now::GRAD
}
/// Sets grad mode, returns what it was.
pub fn set_grad_enabled(on: bool) -> bool {
    set(Now::GRAD, on)
}
#[inline]
pub fn inference() -> bool {
    now().has(Now::INFERENCE)
}
/// Tells whether a custom function computes.
pub(super) fn set_tracing(on: bool) {
    set(Now::TRACING, on);
}
pub fn set_inference(on: bool) -> bool {
    set(Now::INFERENCE, on)
}
/// While it lives, operations of this thread are below autograd: nothing is recorded, whatever grad mode says.
pub struct Below(bool);
impl Below {
    pub fn enter() -> Below {
        Below(set(Now::BELOW, true))
    }
}
impl Drop for Below {
    fn drop(&mut self) {
        set(Now::BELOW, self.0);
    }
}
/// Does a handler of a dispatch mode or subclass run on this thread?
pub fn below() -> bool {
    now().has(Now::BELOW)
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
    HAND.with(Hand::next_seq)
}
pub fn peek_seq() -> u64 {
    HAND.with(|t| t.seq.get())
}

/// The innermost policy, if there is one.
#[inline]
pub fn pack() -> Option<Arc<dyn Pack>> {
    if now().packing() { THREAD.with(|t| t.packs.borrow().last().cloned()) } else { None }
}
pub fn push_pack(p: Arc<dyn Pack>) {
    let n = THREAD.with(|t| {
        let mut packs = t.packs.borrow_mut();
        packs.push(p);
        packs.len()
    });
    HAND.with(|h| h.set_depth(n));
}
/// Takes the innermost policy off; the caller drops it.
pub fn pop_pack() -> Option<Arc<dyn Pack>> {
    let (p, left) = THREAD.with(|t| {
        let mut packs = t.packs.borrow_mut();
        (packs.pop(), packs.len())
    });
    HAND.with(|h| h.set_depth(left));
    p
}
pub fn pack_depth() -> usize {
    HAND.with(|t| t.depth.get() as usize)
}
/// A recomputation starts as if nothing were open on the thread: one policy, grad mode on, no readers, no inference mode, below no handler.
/// All that is put back when this is dropped.
pub struct Alone {
    packs: Packs,
    readers: Readers,
    now: Now,
}
impl Alone {
    pub fn with(pack: Arc<dyn Pack>) -> Alone {
        let now = HAND.with(|h| {
            let now = h.now.get();
            h.depth.set(1);
            h.now.set(Now(now.0 & !Now::OUTER | Now::GRAD | Now::PACK | Now::RECOMPUTING));
            now
        });
        THREAD.with(|t| {
            let packs = std::mem::replace(&mut *t.packs.borrow_mut(), smallvec![pack]);
            let readers = std::mem::take(&mut *t.readers.borrow_mut());
            Alone { packs, readers, now }
        })
    }
}
impl Drop for Alone {
    fn drop(&mut self) {
        HAND.with(|h| {
            h.depth.set(self.packs.len() as u32);
            h.now.set(Now(h.now.get().0 & !Now::OUTER | self.now.0 & Now::OUTER));
        });
        let inner = THREAD.with(|t| {
            let readers = std::mem::replace(&mut *t.readers.borrow_mut(), std::mem::take(&mut self.readers));
            (std::mem::replace(&mut *t.packs.borrow_mut(), std::mem::take(&mut self.packs)), readers)
        });
        drop(inner);
    }
}
/// May what is saved now be overwritten, by the word of any policy of this thread?
pub fn writes_allowed() -> bool {
    now().packing() && THREAD.with(|t| t.packs.borrow().iter().any(|p| p.allows_writes()))
}
/// The policies from the outermost to the innermost.
pub fn all_packs() -> Vec<Arc<dyn Pack>> {
    THREAD.with(|t| t.packs.borrow().to_vec())
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
    now().has(Now::RECOMPUTING)
}
#[inline]
pub fn dispatching() -> bool {
    now().dispatching()
}
/// Tells how many dispatch modes are active on this thread.
pub fn set_dispatching(n: u32) {
    set(Now::DISPATCH, n != 0);
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
    set(Now::WHOLE, on)
}
/// From now on `r` is told what recorded ops read.
pub fn push_reads(r: Arc<dyn Reads>) {
    THREAD.with(|t| t.readers.borrow_mut().push(r));
    set(Now::READ, true);
}
/// Takes the innermost reader off; the caller drops it.
pub fn pop_reads() -> Option<Arc<dyn Reads>> {
    let (r, left) = THREAD.with(|t| {
        let mut readers = t.readers.borrow_mut();
        (readers.pop(), !readers.is_empty())
    });
    set(Now::READ, left);
    r
}
/// Which of the arrays, among those that are `read`, some reader wants to know of, as bits; bit 63 stands for all beyond it. For most ops
/// that is none.
#[inline]
pub fn wanted_by_readers(arrays: &[Option<&Array>], read: impl Fn(usize, &Array) -> bool) -> u64 {
    THREAD.with(|t| {
        let readers = t.readers.borrow();
        let mut wanted = 0;
        for (i, a) in arrays.iter().enumerate() {
            if let Some(a) = a
                && read(i, a)
                && readers.iter().any(|r| r.wants(a))
            {
                wanted |= 1 << i.min(63);
            }
        }
        wanted
    })
}
/// Calls `f` with the readers that want to know of this array.
#[inline(never)]
pub fn tell_readers(a: &Array, f: impl Fn(&dyn Reads)) {
    // out of the borrow: `f` may run user code
    let next = |from: usize| {
        THREAD.with(|t| {
            let readers = t.readers.borrow();
            let k = from + readers.get(from..)?.iter().position(|r| r.wants(a))?;
            Some((k + 1, readers.len(), readers[k].clone()))
        })
    };
    let mut at = 0;
    while let Some((after, of, r)) = next(at) {
        f(&*r);
        if after >= of {
            return;
        }
        at = after;
    }
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
