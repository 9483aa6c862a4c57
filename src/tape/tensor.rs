//! A tensor: an array that may be replaced (`x.data = y`), and what autograd knows of it: where its gradient goes, its gradient, its hooks,
//! and, for a view, the base it looks into.
//!
//! Ownership. A tensor with a Python wrapper is owned by that wrapper alone; whoever holds a tensor for long holds a `Held`, which is the
//! wrapper if there is one and the core tensor otherwise (rule 1). Flags are atomics; the rest lies behind two short locks inside which
//! nothing is called or dropped (rule 4).
use super::hooks::{GradHook, NodeHook, PreHook};
use super::mode;
use super::node::{Edge, Node, Notes};
use super::saved;
use crate::alloc::Place;
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result, bail};
use crate::layout::Dims;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering::*};
use std::sync::{Arc, Weak};

#[cfg(feature = "python")]
pub use crate::py::Wrapper;
/// The Python object of a tensor; without the `python` feature there is none.
#[cfg(not(feature = "python"))]
#[derive(Clone)]
pub enum Wrapper {}
#[cfg(not(feature = "python"))]
impl Wrapper {
    pub fn of(_: &Tensor) -> Option<Wrapper> {
        None
    }
    pub fn tensor(&self) -> &Tensor {
        match *self {}
    }
}
/// A long-lived hold on a tensor.
#[derive(Clone)]
pub enum Held {
    Core(Tensor),
    Wrapped(Wrapper),
}
impl Held {
    #[inline(always)]
    pub fn of(t: &Tensor) -> Held {
        match Wrapper::of(t) {
            Some(w) => Held::Wrapped(w),
            None => Held::Core(t.clone()),
        }
    }
    #[inline]
    pub fn tensor(&self) -> &Tensor {
        match self {
            Held::Core(t) => t,
            Held::Wrapped(w) => w.tensor(),
        }
    }
}

const REQUIRES_GRAD: u8 = 1;
const HAS_FN: u8 = 2;
const VIEW: u8 = 4;
const INFERENCE: u8 = 8;
const EXTRA: u8 = 16;
const RETAINS: u8 = 32;
/// An alias of a leaf: its edge says which.
const ALIAS: u8 = 64;
/// Computed from inputs of a custom function.
const TRACED: u8 = 128;

#[derive(Clone)]
pub struct Tensor(Arc<Impl>);
#[derive(Clone)]
pub struct WeakTensor(Weak<Impl>);
pub struct Impl {
    array: Mutex<Array>,
    flags: AtomicU8,
    state: Mutex<State>,
    /// Its number in the walk that is numbering just now (see `engine`).
    pub mark: AtomicU32,
    /// The Python wrapper, borrowed: the wrapper clears it when it dies.
    pub wrapper: AtomicPtr<()>,
}
#[derive(Default)]
struct State {
    /// Where a gradient of this tensor goes, unless it is a leaf (then: into `grad`). A `Leaf` edge here marks an alias of a leaf, as
    /// unpack makes them.
    edge: Edge,
    grad: Option<Held>,
    view: Option<ViewOf>,
    extra: Option<Box<Extra>>,
}
/// How a view came to be; decides whether it may be written in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ViewKind {
    Plain,
    /// One of several outputs of a function (`unbind`, `split`, `chunk`).
    OneOfMany,
    NoGrad,
    /// Made inside a custom Function.
    Custom,
}
pub struct ViewOf {
    pub base: Held,
    pub kind: ViewKind,
    /// The version at which `edge` was right; another one means that the base was written since.
    version: u64,
}
/// What few tensors have.
#[derive(Default)]
pub struct Extra {
    /// Hooks on the gradient of a leaf, in order of registration.
    pub leaf_hooks: Vec<(u64, Arc<dyn GradHook>)>,
    /// Hooks that user code registered on the leaf's AccumulateGrad node.
    pub pre_hooks: Vec<(u64, Arc<dyn PreHook>)>,
    pub node_hooks: Vec<(u64, Arc<dyn NodeHook>)>,
    /// Run after the gradient was accumulated.
    pub after_hooks: Vec<(u64, Arc<dyn GradHook>)>,
    /// What the binding remembers of the tensor's object.
    pub object: Option<Arc<dyn Notes>>,
    /// The AccumulateGrad node, made when somebody asks for it.
    pub accumulate: Option<Weak<Node>>,
}

impl Extra {
    #[cold]
    fn visit<E>(&self, f: &mut impl FnMut(Visit<'_>) -> std::result::Result<(), E>) -> std::result::Result<(), E> {
        self.leaf_hooks.iter().chain(&self.after_hooks).try_for_each(|(_, h)| f(Visit::Grad(h)))?;
        self.pre_hooks.iter().try_for_each(|(_, h)| f(Visit::Pre(h)))?;
        self.node_hooks.iter().try_for_each(|(_, h)| f(Visit::Post(h)))?;
        self.object.iter().try_for_each(|n| f(Visit::Notes(n)))
    }
}

thread_local! { static DROPS: RefCell<Option<Vec<State>>> = const { RefCell::new(None) }; }
impl Drop for Impl {
    /// A chain of gradients is taken apart in a loop, not by recursion (rule 5).
    #[inline]
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if state.grad.is_none() && state.extra.is_none() {
            return; // an edge goes through the queue of nodes, a view's base is no view
        }
        Impl::drop_slowly(state);
    }
}
impl Impl {
    #[cold]
    fn drop_slowly(state: &mut State) {
        let state = std::mem::take(state);
        let nested = DROPS.try_with(|q| match &mut *q.borrow_mut() {
            Some(list) => {
                list.push(state);
                None
            }
            idle => {
                *idle = Some(Vec::new());
                Some(state)
            }
        });
        let Ok(Some(state)) = nested else { return };
        drop(state);
        while let Some(next) = DROPS.with(|q| q.borrow_mut().as_mut().and_then(Vec::pop)) {
            drop(next);
        }
        DROPS.with(|q| *q.borrow_mut() = None);
    }
}

impl WeakTensor {
    pub fn upgrade(&self) -> Option<Tensor> {
        self.0.upgrade().map(Tensor)
    }
    pub fn is(&self, t: &Tensor) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&t.0))
    }
}
impl Tensor {
    /// A tensor without history. In inference mode it is an inference tensor.
    #[inline]
    pub fn new(array: Array) -> Tensor {
        Self::make(array, if mode::inference() { INFERENCE } else { 0 }, State::default())
    }
    /// As `new`, by one who knows the mode.
    #[inline(always)]
    pub(super) fn plain(array: Array, inference: bool) -> Tensor {
        Self::make(array, if inference { INFERENCE } else { 0 }, State::default())
    }
    #[inline(always)]
    fn make(array: Array, flags: u8, state: State) -> Tensor {
        Tensor(Place::new().fill(Impl {
            array: Mutex::new(array),
            flags: AtomicU8::new(flags),
            state: Mutex::new(state),
            mark: AtomicU32::new(0),
            wrapper: AtomicPtr::new(std::ptr::null_mut()),
        }))
    }
    /// A leaf that requires grad.
    pub fn leaf(array: Array) -> Result<Tensor> {
        let t = Tensor::new(array);
        t.set_requires_grad(true)?;
        Ok(t)
    }
    /// A tensor whose gradient goes along `edge`: a node's output, or an alias of a leaf.
    #[inline]
    pub fn with_edge(array: Array, edge: Edge) -> Tensor {
        let flags = match &edge {
            Edge::None => 0,
            Edge::Node(..) => HAS_FN,
            Edge::Leaf(_) => REQUIRES_GRAD | ALIAS,
        };
        Self::make(array, flags, State { edge, grad: None, view: None, extra: None })
    }
    /// The first output of a node.
    #[inline]
    pub fn made_by(node: Arc<Node>, array: Array) -> Tensor {
        Self::make(array, HAS_FN, State { edge: Edge::Node(node, 0), grad: None, view: None, extra: None })
    }
    /// A view of `base` (or of its base), with the given history.
    pub fn view_of(parent: &Tensor, array: Array, edge: Edge, kind: ViewKind) -> Tensor {
        let (base, kind) = match parent.view_info() {
            Some((base, k)) => (base, if kind == ViewKind::Plain { k } else { kind }),
            None => (Held::of(parent), kind),
        };
        let flags = VIEW | if matches!(edge, Edge::Node(..)) { HAS_FN } else { 0 } | (parent.flags() & INFERENCE);
        let view = Some(ViewOf { base, kind, version: array.version() });
        Self::make(array, flags, State { edge, grad: None, view, extra: None })
    }
    /// Makes a tensor that shares memory with `parent` a view of it (or of its base).
    pub fn become_view_of(&self, parent: &Tensor, kind: ViewKind) {
        let (base, kind) = match parent.view_info() {
            Some((base, k)) => (base, if kind == ViewKind::Plain { k } else { kind }),
            None => (Held::of(parent), kind),
        };
        let version = self.version();
        let old = self.state().view.replace(ViewOf { base, kind, version });
        self.set_flag(VIEW, true);
        if parent.is_inference() {
            self.set_flag(INFERENCE, true);
        }
        drop(old);
    }
    #[inline]
    fn flags(&self) -> u8 {
        self.0.flags.load(Acquire)
    }
    fn set_flag(&self, bit: u8, on: bool) {
        if on {
            self.0.flags.fetch_or(bit, AcqRel);
        } else {
            self.0.flags.fetch_and(!bit, AcqRel);
        }
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }
    #[inline]
    pub fn array(&self) -> Array {
        self.0.array.lock().clone()
    }
    /// The array under its lock, if that is free at once (see `record::lend`).
    #[inline]
    pub fn try_lend(&self) -> Option<MutexGuard<'_, Array>> {
        self.0.array.try_lock()
    }
    /// The array under its lock, if nobody else holds the tensor or its bytes, so that they may be written without anyone's knowing.
    #[inline]
    pub fn try_own(&self) -> Option<MutexGuard<'_, Array>> {
        if self.owners() != 1 || self.is_view() {
            return None;
        }
        self.try_lend().filter(|a| Arc::strong_count(a.storage()) == 1 && !a.storage().is_foreign() && !a.number)
    }
    /// Looks at the array without cloning it. `f` may only look: no call of an op, of Python, no drop of a tensor.
    #[inline]
    pub fn look<R>(&self, f: impl FnOnce(&Array) -> R) -> R {
        f(&self.0.array.lock())
    }
    /// Puts another array in place (`x.data = y`, `set_`, `resize_`, in-place changes of shape). Returns the old one.
    pub fn replace_array(&self, a: Array) -> Array {
        std::mem::replace(&mut *self.0.array.lock(), a)
    }
    #[inline]
    pub fn shape(&self) -> Dims {
        self.look(|a| a.shape)
    }
    #[inline]
    pub fn dtype(&self) -> DType {
        self.look(|a| a.dtype)
    }
    pub fn numel(&self) -> usize {
        self.look(Array::numel)
    }
    pub fn ndim(&self) -> usize {
        self.look(Array::ndim)
    }
    pub fn version(&self) -> u64 {
        self.look(Array::version)
    }
    pub fn is_number(&self) -> bool {
        self.look(|a| a.number)
    }
    pub fn item(&self) -> Scalar {
        self.array().item()
    }
    #[inline]
    pub fn ptr_eq(&self, o: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &o.0)
    }
    /// An address that names the tensor while it lives.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }
    pub fn imp(&self) -> &Impl {
        &self.0
    }
    pub fn owners(&self) -> usize {
        Arc::strong_count(&self.0)
    }
    pub fn downgrade(&self) -> WeakTensor {
        WeakTensor(Arc::downgrade(&self.0))
    }

    // ---- gradients ----
    #[inline]
    pub fn requires_grad(&self) -> bool {
        let f = self.flags();
        f & (REQUIRES_GRAD | HAS_FN) != 0 || (f & VIEW != 0 && self.base().is_some_and(|b| b.tensor().requires_grad()))
    }
    /// Did an operation record it, as far as it knows itself (for a view, see `edge`)?
    #[inline]
    pub fn has_node(&self) -> bool {
        self.flags() & (HAS_FN | VIEW) != 0
    }
    /// A leaf: no operation recorded it.
    pub fn is_leaf(&self) -> bool {
        self.grad_fn().is_none()
    }
    /// The leaf whose `.grad` its gradient goes into, by address: itself, or the one that it is an alias of.
    #[inline]
    pub fn leaf_id(&self) -> Option<usize> {
        match self.flags() & (VIEW | HAS_FN | ALIAS | REQUIRES_GRAD) {
            0 | HAS_FN => return None,
            REQUIRES_GRAD => return Some(self.id()),
            _ => {}
        }
        match self.edge() {
            Edge::Leaf(h) => Some(h.tensor().id()),
            _ => None,
        }
    }
    pub fn is_inference(&self) -> bool {
        self.flags() & INFERENCE != 0
    }
    /// `requires_grad_()`. Only floating point tensors; a non-leaf always requires it.
    pub fn set_requires_grad(&self, on: bool) -> Result<()> {
        if on && !self.dtype().is_float() {
            bail!(Runtime, "only Tensors of floating point dtype can require gradients, this one is {}", self.dtype().name());
        }
        if !on && self.flags() & HAS_FN != 0 {
            bail!(
                Runtime,
                "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            );
        }
        if on && self.is_inference() && !mode::inference() {
            bail!(Runtime, "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed.");
        }
        if self.flags() & HAS_FN == 0 {
            self.set_flag(REQUIRES_GRAD, on);
        }
        Ok(())
    }
    /// Where a gradient of this tensor goes. For a view of a base that was written since, its history is made anew.
    #[inline(always)]
    pub fn edge(&self) -> Edge {
        match self.flags() & (VIEW | HAS_FN | ALIAS | REQUIRES_GRAD) {
            0 => Edge::None,
            REQUIRES_GRAD => Edge::Leaf(Held::of(self)),
            _ => self.recorded_edge(),
        }
    }
    /// Puts where its gradient goes into the input of a node that is being made; refuses a view without a history.
    #[inline(always)]
    pub(super) fn put_edge(&self, into: &mut Edge) -> Result<()> {
        match self.flags() & (VIEW | HAS_FN | ALIAS | REQUIRES_GRAD) {
            REQUIRES_GRAD => *into = Edge::Leaf(Held::of(self)),
            HAS_FN => {
                let state = self.state();
                match &state.edge {
                    Edge::Node(n, nr) => *into = Edge::Node(n.clone(), *nr),
                    other => *into = other.clone(),
                }
            }
            _ => return self.put_rare_edge(into),
        }
        Ok(())
    }
    #[inline(never)]
    fn put_rare_edge(&self, into: &mut Edge) -> Result<()> {
        self.check_history()?;
        *into = self.recorded_edge();
        Ok(())
    }
    fn recorded_edge(&self) -> Edge {
        if self.flags() & VIEW != 0 {
            self.refresh_view();
        }
        if self.flags() & (HAS_FN | ALIAS) != 0 {
            return self.state().edge.clone();
        }
        if self.requires_grad() { Edge::Leaf(Held::of(self)) } else { Edge::None }
    }
    /// The node that made this tensor, and which of its outputs it is.
    pub fn grad_fn(&self) -> Option<(Arc<Node>, u32)> {
        let f = self.flags();
        if f & VIEW != 0 {
            self.refresh_view();
        }
        if self.flags() & HAS_FN == 0 {
            return None;
        }
        self.state_node()
    }
    /// Sets the history, as it is now (an in-place operation, a custom Function).
    pub fn set_edge(&self, edge: Edge) {
        let (is_node, is_leaf) = (matches!(edge, Edge::Node(..)), matches!(edge, Edge::Leaf(_)));
        let version = self.version();
        let old;
        {
            let mut s = self.state();
            old = std::mem::replace(&mut s.edge, edge);
            if let Some(v) = &mut s.view {
                v.version = version;
            }
        }
        self.set_flag(HAS_FN, is_node);
        self.set_flag(ALIAS, is_leaf);
        if is_node {
            self.set_flag(REQUIRES_GRAD, false);
        }
        if let Edge::Node(n, _) = &old {
            n.left();
            if self.retains_grad() {
                self.retain_at_new_node(n);
            }
        }
        drop(old);
    }
    /// `retain_grad` asks for the gradient of what the tensor is now: it moves along with an in-place operation.
    #[cold]
    fn retain_at_new_node(&self, old: &Arc<Node>) {
        let Some((new, nr)) = self.state_node() else { return };
        let gone: Vec<_> = old.with_hooks(|h| h.retain.extract_if(.., |(_, t)| t.is(self)).collect());
        if !gone.is_empty() {
            new.with_hooks(|h| h.retain.push((nr, self.downgrade())));
        }
        drop(gone);
    }
    fn state_node(&self) -> Option<(Arc<Node>, u32)> {
        match &self.state().edge {
            Edge::Node(n, nr) => Some((n.clone(), *nr)),
            _ => None,
        }
    }
    /// `detach_()`.
    pub fn forget_history(&self) {
        self.set_edge(Edge::None);
        self.set_flag(REQUIRES_GRAD, false);
    }
    /// History of a view whose base was written: from the base by `as_strided`.
    #[cold]
    fn refresh_view(&self) {
        let version = self.version();
        let base = {
            let s = self.state();
            match &s.view {
                Some(v) if v.version != version => v.base.clone(),
                _ => return,
            }
        };
        if !base.tensor().requires_grad() {
            return;
        }
        if let Some(edge) = super::record::strided_history(base.tensor(), &self.array()) {
            self.set_edge(edge);
        }
    }
    /// Refuses a view of which nobody can tell the history: made under no_grad, or one of several, and its base was written since, and
    /// recorded it.
    #[inline]
    pub fn check_history(&self) -> Result<()> {
        if self.flags() & VIEW == 0 { Ok(()) } else { self.check_view_history() }
    }
    #[cold]
    fn check_view_history(&self) -> Result<()> {
        let version = self.version();
        let (base, kind) = match &self.state().view {
            Some(v) if v.version != version && v.kind != ViewKind::Plain => (v.base.clone(), v.kind),
            _ => return Ok(()),
        };
        if base.tensor().is_leaf() {
            return Ok(());
        }
        let made = match kind {
            ViewKind::NoGrad => "A view was created in no_grad mode",
            ViewKind::OneOfMany => "This view is the output of a function that returns multiple views",
            _ => "This view was created inside a custom Function",
        };
        bail!(
            Runtime,
            "{made} and its base or another view of its base has been modified inplace with grad mode enabled. Its history is ambiguous: make the view anew after the modification, or clone() it before"
        )
    }
    pub fn is_view(&self) -> bool {
        self.flags() & VIEW != 0
    }
    pub fn base(&self) -> Option<Held> {
        self.state().view.as_ref().map(|v| v.base.clone())
    }
    pub fn view_info(&self) -> Option<(Held, ViewKind)> {
        if self.flags() & VIEW == 0 {
            return None;
        }
        self.state().view.as_ref().map(|v| (v.base.clone(), v.kind))
    }
    /// The view stands on its own from now on (`detach_`, `x.data = y`).
    pub fn forget_base(&self) {
        let old = self.state().view.take();
        self.set_flag(VIEW, false);
        drop(old);
    }
    pub fn set_view_kind(&self, kind: ViewKind) {
        if let Some(v) = &mut self.state().view {
            v.kind = kind;
        }
    }
    pub fn grad(&self) -> Option<Held> {
        self.state().grad.clone()
    }
    /// Sets `.grad`; returns the old one, so that it is dropped outside of every lock.
    pub fn set_grad(&self, g: Option<Held>) -> Option<Held> {
        std::mem::replace(&mut self.state().grad, g)
    }
    /// `grad`, held by its wrapper from now on (called when a wrapper was made for it).
    pub fn promote_grad(&self, g: Held) {
        let mut s = self.state();
        let old = match &s.grad {
            Some(now) if now.tensor().ptr_eq(g.tensor()) => s.grad.replace(g),
            _ => Some(g),
        };
        drop(s);
        drop(old);
    }
    pub fn promote_base(&self, b: Held) {
        let mut s = self.state();
        let old = match &mut s.view {
            Some(v) if v.base.tensor().ptr_eq(b.tensor()) => std::mem::replace(&mut v.base, b),
            _ => b,
        };
        drop(s);
        drop(old);
    }
    /// Was it computed, without a history, from inputs of a custom function that require grad (see `record::Tracing`)?
    pub fn is_traced(&self) -> bool {
        self.flags() & TRACED != 0
    }
    pub fn set_traced(&self) {
        self.set_flag(TRACED, true);
    }
    pub fn retains_grad(&self) -> bool {
        self.flags() & RETAINS != 0
    }
    pub fn set_retains_grad(&self) {
        self.set_flag(RETAINS, true);
    }
    pub fn has_extra(&self) -> bool {
        self.flags() & EXTRA != 0
    }
    /// Works on the rarely needed part. `f` may only look, push, take.
    pub fn with_extra<R>(&self, f: impl FnOnce(&mut Extra) -> R) -> R {
        self.set_flag(EXTRA, true);
        f(self.state().extra.get_or_insert_default())
    }
    pub fn look_extra<R>(&self, f: impl FnOnce(&Extra) -> R) -> Option<R> {
        if !self.has_extra() {
            return None;
        }
        self.state().extra.as_deref().map(f)
    }
    /// The same elements without history; shares storage and version (rule 2).
    pub fn detach(&self) -> Tensor {
        Self::make(self.array(), self.flags() & INFERENCE, State::default())
    }
    /// `.data`: as `detach`, with a version counter of its own.
    pub fn data(&self) -> Tensor {
        let a = self.array();
        let version = a.version();
        Tensor::new(a.with_counter(version))
    }
    /// What the collector may look at without waiting (rule 5): nothing, if the lock is taken.
    #[inline(always)]
    pub fn try_visit<E>(&self, mut f: impl FnMut(Visit<'_>) -> std::result::Result<(), E>) -> std::result::Result<(), E> {
        let Some(s) = self.0.state.try_lock() else { return Ok(()) };
        match &s.edge {
            Edge::Node(n, _) => f(Visit::History(n))?,
            Edge::Leaf(h) => f(Visit::Held(h))?,
            Edge::None => {}
        }
        if let Some(g) = &s.grad {
            f(Visit::Held(g))?;
        }
        if let Some(v) = &s.view {
            f(Visit::Held(&v.base))?;
        }
        match &s.extra {
            Some(e) => e.visit(&mut f),
            None => Ok(()),
        }
    }
    /// Lets go of everything that could be part of a reference cycle; returns it to be dropped by the caller.
    pub fn clear(&self) -> impl Sized {
        let state = self.0.state.try_lock().map(|mut s| std::mem::take(&mut *s));
        self.0.flags.store(0, Release);
        state.map(|s| (s.edge, s.grad, s.view.map(|v| v.base), s.extra))
    }
    /// Checks that it may be saved for backward.
    #[inline]
    pub fn check_savable(&self) -> Result<()> {
        if self.is_inference() { self.check_inference() } else { Ok(()) }
    }
    #[cold]
    fn check_inference(&self) -> Result<()> {
        if !mode::inference() {
            bail!(
                Runtime,
                "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in computation tracked by autograd. To work around this, you can make a clone to get a normal tensor and use it in autograd, or use `torch.no_grad()` instead of `torch.inference_mode()`."
            );
        }
        Ok(())
    }
    /// An in-place write is refused on a leaf that requires grad, and where a view does not allow it. `graded`: does another operand of the
    /// operation require grad?
    pub fn check_in_place(&self, op: &'static str, graded: bool) -> Result<()> {
        if self.is_inference() && !mode::inference() {
            bail!(
                Runtime,
                "{op}(): Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a normal tensor before doing inplace update."
            );
        }
        let requires = self.requires_grad();
        if !mode::grad_enabled() || !(graded || requires) {
            return Ok(());
        }
        if let Some((base, kind)) = self.view_info() {
            match kind {
                ViewKind::Plain => {}
                ViewKind::NoGrad => bail!(
                    Runtime,
                    "A view was created in no_grad mode and is being modified inplace with grad mode enabled ({op}). Move both the view and the inplace operation either inside the no_grad block or outside of it."
                ),
                ViewKind::OneOfMany => bail!(
                    Runtime,
                    "{op}(): this view is the output of a function that returns multiple views and is being modified inplace. Such functions do not allow the output views to be modified inplace. You should replace the inplace operation by an out-of-place one."
                ),
                ViewKind::Custom => bail!(
                    Runtime,
                    "{op}(): this view was created inside a custom Function (or because an input was returned as-is) and the autograd logic to handle view+inplace would override the custom backward associated with the custom Function, leading to incorrect gradients. This behavior is forbidden. You can fix this by cloning the output of the custom Function."
                ),
            }
            if requires && base.tensor().is_leaf() {
                return Err(Box::new(Error::ViewOfLeafInPlace { op }));
            }
        }
        if self.flags() & REQUIRES_GRAD != 0 && self.flags() & HAS_FN == 0 {
            return Err(Box::new(Error::LeafInPlace { op }));
        }
        Ok(())
    }
    /// Bytes of a slot count as saved unless it is a leaf that requires grad, or a view of one: that one lives anyway.
    #[inline]
    pub fn counts_as_saved(&self) -> bool {
        let f = self.flags();
        if f & VIEW != 0 { self.base_counts_as_saved() } else { f & (REQUIRES_GRAD | HAS_FN) != REQUIRES_GRAD }
    }
    #[inline(never)]
    fn base_counts_as_saved(&self) -> bool {
        // a base is no view, so this ends
        self.state().view.as_ref().is_none_or(|v| v.base.tensor().counts_as_saved())
    }
}
impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({:?})", self.array())
    }
}
/// What a tensor or a node owns, as the collector sees it.
pub enum Visit<'a> {
    Node(&'a Arc<Node>),
    /// The node that made a tensor, on behalf of that tensor.
    History(&'a Arc<Node>),
    Held(&'a Held),
    Grad(&'a Arc<dyn GradHook>),
    Pre(&'a Arc<dyn PreHook>),
    Post(&'a Arc<dyn NodeHook>),
    Slot(&'a saved::Stowed),
    Notes(&'a Arc<dyn Notes>),
}
pub type Tensors = SmallVec<[Tensor; 2]>;
