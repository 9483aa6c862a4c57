//! A node of the graph: one recorded operation, the edges along which its gradients go, and the values saved for it.
use super::dispatch::{Arg, Named};
use super::hooks::{Line, NodeHook, PreHook};
use super::mode;
use super::record::Views;
use super::saved::{SlotName, Slots, UNCHECKED, Value};
use super::tensor::{Held, Tensor, Visit, WeakTensor};
use super::{GradHook, grad_enabled};
use crate::alloc::{Own, Place};
use crate::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{Error, Result, bail};
use crate::layout::Dims;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// What `op!` knows of an op.
pub struct Info {
    /// The node's name as the user sees it.
    pub node: &'static str,
    pub op: &'static str,
    /// torch's schema name, `mul.Tensor`.
    pub schema: &'static str,
    pub inputs: &'static [&'static str],
    pub outputs: &'static [&'static str],
    /// Outputs from here on are for backward alone; the user does not get them.
    pub visible: usize,
    /// Bit i: output i has no derivative.
    pub nondiff: u32,
    pub saves: &'static [(&'static str, Source)],
    /// A result is among them (`keeps_outputs`).
    pub saves_outputs: bool,
    /// The order in which slots are packed: torch's (inputs by name, then outputs by name).
    pub order: &'static [u8],
    pub uses: Uses,
    /// The inputs are a list, each of which has a derivative that reads no slot (`cat`).
    pub every: bool,
    /// The output is a view of the first input.
    pub view: bool,
    /// Inputs that an op declares as state (running statistics): read, perhaps written, never differentiated.
    pub state: u32,
    pub views: &'static dyn Views,
}
/// Is a result among the slots?
pub const fn keeps_outputs(saves: &[(&'static str, Source)]) -> bool {
    let mut i = 0;
    while i < saves.len() {
        if matches!(saves[i].1, Source::Output(_)) {
            return true;
        }
        i += 1;
    }
    false
}
impl Info {
    pub fn differentiable(&self, output: u32) -> bool {
        self.nondiff >> output.min(31) & 1 == 0
    }
}
/// Which inputs have a derivative, and which slots their formulas read.
pub struct Uses {
    /// Bit i: input i has a derivative.
    pub inputs: u16,
    /// For each slot the inputs, as bits, whose formulas read it.
    readers: [u16; Uses::SLOTS],
}
impl Uses {
    pub const SLOTS: usize = 64;
    pub const NONE: Uses = Uses::of(&[]);
    /// From the inputs with a derivative, each with the slots that its formula reads.
    pub const fn of(list: &[(u8, &[u8])]) -> Uses {
        let mut u = Uses { inputs: 0, readers: [0; Uses::SLOTS] };
        let mut i = 0;
        while i < list.len() {
            let (input, slots) = list[i];
            u.inputs |= 1 << input;
            let mut k = 0;
            while k < slots.len() {
                u.readers[slots[k] as usize] |= 1 << input;
                k += 1;
            }
            i += 1;
        }
        u
    }
    /// Does the formula of one of the inputs `graded` (bits) read the slot?
    #[inline]
    pub fn reads(&self, slot: u8, graded: u64) -> bool {
        self.readers[slot as usize] as u64 & graded != 0
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    Input(u8),
    Output(u8),
}
/// Slots in torch's order: inputs by name, then outputs by name.
pub const fn pack_order<const N: usize>(saves: &[(&'static str, Source)]) -> [u8; N] {
    let mut order = [0u8; N];
    let mut i = 0;
    while i < N {
        order[i] = i as u8;
        let mut j = i;
        while j > 0 && before(&saves[order[j] as usize], &saves[order[j - 1] as usize]) {
            let t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
            j -= 1;
        }
        i += 1;
    }
    order
}
const fn before(a: &(&str, Source), b: &(&str, Source)) -> bool {
    match (a.1, b.1) {
        (Source::Input(_), Source::Output(_)) => true,
        (Source::Output(_), Source::Input(_)) => false,
        _ => {
            let (x, y) = (a.0.as_bytes(), b.0.as_bytes());
            let mut i = 0;
            while i < x.len() && i < y.len() {
                if x[i] != y[i] {
                    return x[i] < y[i];
                }
                i += 1;
            }
            x.len() < y.len()
        }
    }
}

/// A parameter of an op as the user may read it (`_saved_dim`).
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    None,
    Scalar(Scalar),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Str(Cow<'static, str>),
    DType(DType),
}
pub trait IntoAttr {
    fn attr(&self) -> Attr;
    /// As the handler of a dispatch mode gets it.
    fn arg(&self) -> Arg {
        Arg::Attr(self.attr())
    }
}
macro_rules! attrs { ($($t:ty, $v:ident => $e:expr;)*) => { $(impl IntoAttr for $t { fn attr(&self) -> Attr { let $v = self; $e } })* } }
attrs! {
    bool, v => Attr::Scalar(Scalar::Bool(*v));
    i64, v => Attr::Scalar(Scalar::Int(*v));
    usize, v => Attr::Scalar(Scalar::Int(*v as i64));
    f64, v => Attr::Scalar(Scalar::Float(*v));
    Scalar, v => Attr::Scalar(*v);
    DType, v => Attr::DType(*v);
    String, v => Attr::Str(Cow::Owned(v.clone()));
    &'static str, v => Attr::Str(Cow::Borrowed(v));
    Vec<i64>, v => Attr::Ints(v.clone());
    Vec<f64>, v => Attr::Floats(v.clone());
    Dims, v => Attr::Ints(v.to_i64());
}
impl<T: IntoAttr> IntoAttr for Option<T> {
    fn attr(&self) -> Attr {
        self.as_ref().map_or(Attr::None, T::attr)
    }
    fn arg(&self) -> Arg {
        self.as_ref().map_or(Arg::Attr(Attr::None), T::arg)
    }
}

/// The backward half of an op: what a node runs.
pub trait Backward: Send + Sync {
    fn info(&self) -> &'static Info;
    fn name(&self) -> Cow<'static, str> {
        Cow::Borrowed(self.info().node)
    }
    /// Gradients of the inputs that `cx` needs, from those of the outputs (None: no gradient came).
    fn backward(&self, g: &[Option<Tensor>], cx: &Cx<'_>, grads: &mut [Option<Tensor>]) -> Result<()>;
    /// Parameters and sizes, by name.
    fn attrs(&self, _node: &Node) -> Vec<(&'static str, Attr)> {
        Vec::new()
    }
    /// The parameters besides the inputs, as a dispatch mode gets them.
    fn params(&self) -> Named {
        Vec::new()
    }
    /// Inputs from this number on are one list, the parameter of this name.
    fn operands(&self) -> Option<(&'static str, usize)> {
        None
    }
    /// Slots from this number on are a list, under this name.
    fn list(&self) -> Option<(&'static str, usize)> {
        None
    }
    /// A node inside this one (copy-slices).
    fn inner(&self) -> Option<&Arc<Node>> {
        None
    }
    /// The leaf into which it accumulates, if that is what it does.
    fn leaf(&self) -> Option<&Held> {
        None
    }
    /// May it run although no output got a gradient? (Custom functions that do not materialise.)
    fn takes_undefined(&self) -> bool {
        false
    }
    /// Python objects that it owns, for the collector.
    fn visit(&self, _f: &mut dyn FnMut(usize)) {}
    /// Lets go of Python objects that are part of a cycle.
    fn clear(&self) {}
    /// The Python object that stands for the node (a custom Function's context), by address.
    fn object(&self) -> Option<usize> {
        None
    }
    /// Called when the saved values are released.
    fn released(&self) {}
}

/// Where a gradient goes.
#[derive(Clone, Default)]
pub enum Edge {
    #[default]
    None,
    /// Into output `.1` of a node.
    Node(Arc<Node>, u32),
    /// Into `.grad` of a leaf.
    Leaf(Held),
}
impl Edge {
    pub fn is_none(&self) -> bool {
        matches!(self, Edge::None)
    }
    pub fn same(&self, o: &Edge) -> bool {
        match (self, o) {
            (Edge::None, Edge::None) => true,
            (Edge::Node(a, i), Edge::Node(b, j)) => Arc::ptr_eq(a, b) && i == j,
            (Edge::Leaf(a), Edge::Leaf(b)) => a.tensor().ptr_eq(b.tensor()),
            _ => false,
        }
    }
}
/// Shape and dtype that a gradient must have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Meta {
    pub shape: Dims,
    pub dtype: DType,
}
impl Meta {
    pub fn of(a: &Array) -> Meta {
        Meta { shape: a.shape, dtype: a.dtype }
    }
}
#[derive(Default)]
pub struct Input {
    pub edge: Edge,
    /// What the input looks like, where it differs from the first output.
    meta: Option<Box<Meta>>,
}
pub type Inputs = SmallVec<[Input; 2]>;
impl Input {
    /// The input of a node whose first output is not known yet.
    #[inline]
    pub fn along(edge: Edge) -> Input {
        Input { edge, meta: None }
    }
    /// Notes what it looks like, now that the first output is known.
    #[inline(always)]
    pub fn looks(&mut self, like: &Array, first: &Meta) {
        if like.dtype != first.dtype || like.shape != first.shape {
            self.differs(like);
        }
    }
    #[inline(never)]
    fn differs(&mut self, like: &Array) {
        self.meta = Some(Box::new(Meta::of(like)));
    }
}
#[derive(Default)]
pub struct NodeHooks {
    /// On the gradient of one output.
    pub tensor: Vec<(u64, u32, Arc<dyn GradHook>)>,
    pub pre: Vec<(u64, Arc<dyn PreHook>)>,
    pub post: Vec<(u64, Arc<dyn NodeHook>)>,
    /// Tensors that keep the gradient of an output in `.grad`.
    pub retain: Vec<(u32, WeakTensor)>,
    /// Anomaly mode: the stack of the forward call.
    pub stack: Option<String>,
    /// What the binding keeps with the node (`metadata`).
    pub notes: Option<Arc<dyn Notes>>,
}
/// Something of the binding's that lives as long as the node.
pub trait Notes: Send + Sync {
    fn visit(&self, f: &mut dyn FnMut(usize));
    fn address(&self) -> usize;
    /// For the binding, to know its own again.
    fn any(&self) -> &dyn std::any::Any;
}
pub struct Node {
    seq: AtomicU64,
    pub op: Box<dyn Backward>,
    pub inputs: SmallVec<[Input; 2]>,
    first: Meta,
    /// Outputs after the first.
    rest: Vec<Meta>,
    saved: Mutex<Slots>,
    hooks: Mutex<Option<Box<NodeHooks>>>,
    hooked: AtomicBool,
    /// Edges into this node whose own node also keeps, in a slot, the tensor that owns it (see `owned_by_its_tensor`); `LEFT` once a
    /// tensor has gone over to another node.
    shadow: AtomicU32,
    /// Its number in the walk that is numbering just now (see `engine`).
    pub mark: AtomicU32,
    /// Set once `Slots::freed` was, so that who finds it unset need not lock.
    gone: AtomicBool,
    pub line: Option<Line>,
    /// The Python wrapper, borrowed.
    pub wrapper: AtomicPtr<()>,
}
const LEFT: u32 = 1 << 31;
/// The nodes at the other end of edges whose tensor a slot keeps as well.
fn shadowed<'a>(info: &Info, inputs: &'a [Input], values: &'a [Value]) -> impl Iterator<Item = &'a Arc<Node>> {
    info.saves.iter().zip(values).filter_map(|((_, source), value)| match (source, value) {
        (Source::Input(i), Value::Kept { .. }) => match &inputs.get(*i as usize)?.edge {
            Edge::Node(n, _) => Some(n),
            _ => None,
        },
        _ => None,
    })
}
/// Is there an edge to a node?
#[inline]
fn leads_on(inputs: &[Input]) -> bool {
    inputs.iter().any(|i| matches!(i.edge, Edge::Node(..)))
}
/// What a node leaves behind besides its edges.
type Remains = (SmallVec<[Value; 2]>, Option<Box<NodeHooks>>);
/// What nodes leave behind whose drop lies inside another one's.
struct Drops {
    busy: Cell<bool>,
    nodes: RefCell<Vec<Arc<Node>>>,
    rest: RefCell<Vec<Remains>>,
}
thread_local! {
    static DROPS: Drops =
        const { Drops { busy: Cell::new(false), nodes: RefCell::new(Vec::new()), rest: RefCell::new(Vec::new()) } };
}
impl Drop for Node {
    /// A chain of any length is taken apart in a loop (rule 5): inside a drop, what leads on from another node is put on the thread's lists.
    fn drop(&mut self) {
        let slots = self.saved.get_mut();
        let hooks = self.hooks.get_mut();
        let ends = hooks.is_none() && slots.values.iter().all(Value::ends);
        if ends && !leads_on(&self.inputs) {
            return;
        }
        if !slots.values.is_empty() {
            shadowed(self.op.info(), &self.inputs, &slots.values).for_each(|n| n.unshadow());
        }
        let nested = DROPS.try_with(|q| {
            if !q.busy.replace(true) {
                return false;
            }
            for i in &mut self.inputs {
                if matches!(i.edge, Edge::Node(..))
                    && let Edge::Node(n, _) = std::mem::take(&mut i.edge)
                {
                    q.nodes.borrow_mut().push(n);
                }
            }
            if !ends {
                q.rest.borrow_mut().push((std::mem::take(&mut slots.values), hooks.take()));
            }
            true
        });
        if nested == Ok(true) {
            return;
        }
        self.inputs.clear();
        slots.values.clear();
        drop(hooks.take());
        if nested.is_ok() {
            DROPS.with(|q| {
                loop {
                    let rest = q.rest.borrow_mut().pop();
                    if let Some(rest) = rest {
                        drop(rest);
                        continue;
                    }
                    let Some(next) = q.nodes.borrow_mut().pop() else { break };
                    drop(next);
                }
                q.busy.set(false);
            });
        }
    }
}

impl Node {
    #[inline(always)]
    pub fn new(
        seq: u64,
        op: Box<dyn Backward>,
        inputs: SmallVec<[Input; 2]>,
        outputs: &[Meta],
        slots: Slots,
        line: Option<Line>,
    ) -> Arc<Node> {
        if leads_on(&inputs) {
            for n in shadowed(op.info(), &inputs, &slots.values) {
                n.shadow.fetch_add(1, Relaxed);
            }
        }
        let node = Place::new().fill(Node {
            seq: AtomicU64::new(seq),
            op,
            inputs,
            first: outputs[0],
            rest: if outputs.len() > 1 { outputs[1..].to_vec() } else { Vec::new() },
            saved: Mutex::new(slots),
            hooks: Mutex::new(None),
            hooked: AtomicBool::new(false),
            shadow: AtomicU32::new(0),
            mark: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            line,
            wrapper: AtomicPtr::new(std::ptr::null_mut()),
        });
        if mode::anomaly() {
            node.keep_stack();
        }
        node
    }
    /// A node with as many inputs and slots, all of them empty: filled in its place, since what is made elsewhere, piece by piece, and
    /// then moved is waited for. Who fills a slot says so (`saves`); `complete` comes last.
    #[inline(always)]
    pub(super) fn blank(op: Box<dyn Backward>, inputs: usize, slots: usize, line: Option<Line>) -> Own<Node> {
        let mut node = Place::new().own(Node {
            seq: AtomicU64::new(0),
            op,
            inputs: SmallVec::from_buf_and_len(Default::default(), inputs.min(2)),
            first: Meta { shape: Dims::Long(&[]), dtype: DType::Bool },
            rest: Vec::new(),
            saved: Mutex::new(Slots { values: SmallVec::from_buf_and_len(Default::default(), slots.min(2)), freed: false, watched: None }),
            hooks: Mutex::new(None),
            hooked: AtomicBool::new(false),
            shadow: AtomicU32::new(0),
            mark: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            line,
            wrapper: AtomicPtr::new(std::ptr::null_mut()),
        });
        if inputs > 2 || slots > 2 {
            node.widen(inputs, slots);
        }
        node
    }
    #[inline(never)]
    fn widen(&mut self, inputs: usize, slots: usize) {
        self.inputs.resize_with(inputs, Input::default);
        self.own_slots().values.resize_with(slots, Value::default);
    }
    /// The slots of a node that nobody else has.
    #[inline(always)]
    pub(super) fn own_slots(&mut self) -> &mut Slots {
        self.saved.get_mut()
    }
    /// The edges and slots of a node that nobody else has.
    #[inline(always)]
    pub(super) fn parts(&mut self) -> (&mut [Input], &mut [Value]) {
        (&mut self.inputs, &mut self.saved.get_mut().values)
    }
    /// Gives a blank node its number and its first output, which its inputs are compared with.
    #[inline(always)]
    pub(super) fn complete(&mut self, seq: u64, arrays: &[Option<&Array>], first: &Array) {
        *self.seq.get_mut() = seq;
        self.first = Meta::of(first);
        for (input, a) in self.inputs.iter_mut().zip(arrays) {
            if let Some(a) = a {
                input.looks(a, &self.first);
            }
        }
    }
    /// Notes that a node with this edge keeps the tensor that it leads to in a slot.
    #[inline(always)]
    pub(super) fn shadow(edge: &Edge) {
        if let Edge::Node(n, _) = edge {
            n.shadow.fetch_add(1, Relaxed);
        }
    }
    #[cold]
    pub(super) fn keep_stack(&self) {
        let stack = super::host().and_then(|h| h.stack());
        self.with_hooks(|h| h.stack = stack);
    }
    /// An input known by its looks, of a node whose first output looks like `first`.
    pub fn input_like(edge: Edge, like: &Meta, first: &Meta) -> Input {
        Input { edge, meta: (like != first).then(|| Box::new(*like)) }
    }
    pub fn info(&self) -> &'static Info {
        self.op.info()
    }
    pub fn name(&self) -> Cow<'static, str> {
        self.op.name()
    }
    pub fn seq(&self) -> u64 {
        self.seq.load(Relaxed)
    }
    pub fn set_seq(&self, seq: u64) {
        self.seq.store(seq, Relaxed)
    }
    pub fn outputs(&self) -> usize {
        1 + self.rest.len()
    }
    pub fn output(&self, nr: usize) -> &Meta {
        if nr == 0 { &self.first } else { &self.rest[nr - 1] }
    }
    /// What the gradient of input `i` must look like.
    #[inline]
    pub fn meta(&self, i: usize) -> &Meta {
        self.inputs[i].meta.as_deref().unwrap_or(&self.first)
    }
    pub fn shape(&self, i: usize) -> Dims {
        self.meta(i).shape
    }
    pub fn slots(&self) -> MutexGuard<'_, Slots> {
        self.saved.lock()
    }
    pub fn try_slots(&self) -> Option<MutexGuard<'_, Slots>> {
        self.saved.try_lock()
    }
    #[inline]
    pub fn is_hooked(&self) -> bool {
        self.hooked.load(Acquire)
    }
    /// Works on the hooks; `f` may only look, push, take (rule 4).
    pub fn with_hooks<R>(&self, f: impl FnOnce(&mut NodeHooks) -> R) -> R {
        self.hooked.store(true, Release);
        f(self.hooks.lock().get_or_insert_default())
    }
    pub fn stack(&self) -> Option<String> {
        if self.is_hooked() { self.with_hooks(|h| h.stack.clone()) } else { None }
    }
    /// The values are no longer in the slots.
    pub(super) fn unshadow_all(&self, values: &[Value]) {
        shadowed(self.info(), &self.inputs, values).for_each(|n| n.unshadow());
    }
    fn unshadow(&self) {
        self.shadow.fetch_sub(1, Relaxed);
    }
    /// A tensor whose history this was has another one now.
    pub fn left(&self) {
        self.shadow.fetch_or(LEFT, Relaxed);
    }
    /// Asked on behalf of a tensor whose history this node is: is the tensor the only owner, apart from edges of nodes that keep the very
    /// tensor in a slot? Whoever is such a node owns the tensor, so what the node owns is garbage exactly when the tensor is (rule 5).
    pub fn owned_by_its_tensor(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) as u64 == 1 + self.shadow.load(Relaxed) as u64
    }
    /// Puts another value into a slot; gives back the old one, to be dropped by the caller.
    pub fn replace_slot(&self, slot: usize, value: Value) -> Value {
        let mut s = self.slots();
        let Some(at) = s.values.get_mut(slot) else { return value };
        let old = std::mem::replace(at, value);
        drop(s);
        if let (Some((_, Source::Input(i))), Value::Kept { .. }) = (self.info().saves.get(slot), &old)
            && let Some(Input { edge: Edge::Node(n, _), .. }) = self.inputs.get(*i as usize)
        {
            n.unshadow();
        }
        old
    }
    /// Is input `i` one that has a derivative, and so is shown to the user?
    pub fn shows(&self, i: usize) -> bool {
        match self.op.inner() {
            Some(inner) => i == 0 || inner.shows(i),
            None => self.info().every || self.info().uses.inputs >> i.min(15) & 1 != 0,
        }
    }
    /// Lets go of every saved value, as backward does without `retain_graph`.
    pub fn release(&self) {
        let inner = self.op.inner();
        let gone = {
            let mut s = self.slots();
            if s.freed {
                return;
            }
            s.freed = !s.values.is_empty() || inner.is_some();
            if s.freed {
                self.gone.store(true, Release);
            }
            (std::mem::take(&mut s.values), s.watched.take())
        };
        self.unshadow_all(&gone.0);
        drop(gone);
        if let Some(n) = inner {
            n.release();
        }
        self.op.released();
    }
    #[inline]
    pub fn is_freed(&self) -> bool {
        self.gone.load(Acquire) && self.slots().freed
    }
    pub fn freed_error(&self) -> Box<Error> {
        Box::new(Error::Freed { node: self.name().into_owned() })
    }
    /// Number of the slot of this name; a list's name gives its first slot.
    pub fn slot_number(&self, name: &str) -> Option<usize> {
        self.info().saves.iter().position(|(n, _)| *n == name)
    }
    /// The input whose value a slot keeps.
    pub fn slot_input(&self, slot: usize) -> Option<u32> {
        match self.info().saves.get(slot) {
            Some((_, Source::Input(i))) if (*i as usize) < self.inputs.len() => Some(*i as u32),
            _ => None,
        }
    }
    pub fn slot_name(&self, slot: usize) -> SlotName {
        match self.op.list() {
            Some((name, at)) if slot >= at => SlotName::nth(name, slot - at),
            _ => self.info().saves.get(slot).map_or_else(|| SlotName::nth("", slot), |(n, _)| SlotName::of(n)),
        }
    }
    /// The value of a slot, unpacked; None where the slot was not filled. `history`: attach where its gradient goes.
    pub fn unpack(self: &Arc<Self>, slot: usize, history: bool) -> Result<Option<Tensor>> {
        match self.find(slot)? {
            Found::Kept(t) => Ok(Some(t)),
            Found::Else(v) => v.unpack(self, slot, history),
        }
    }
    /// What is in a slot: for most the tensor kept as it was, which is what `unpack` gives; else a handle on the value.
    #[inline]
    fn find(&self, slot: usize) -> Result<Found> {
        let s = self.slots();
        match s.values.get(slot) {
            Some(Value::Kept { held, version, .. })
                if !s.freed && (*version == UNCHECKED || held.tensor().try_lend().is_some_and(|a| a.version() == *version)) =>
            {
                Ok(Found::Kept(held.tensor().clone()))
            }
            _ if s.freed => {
                drop(s);
                Err(self.freed_error())
            }
            v => Ok(Found::Else(v.map_or(Value::Empty, Value::share))),
        }
    }
    /// Everything this node owns that the collector must see (rule 5), besides what `op` owns.
    #[inline(always)]
    pub fn try_visit<E>(&self, mut f: impl FnMut(Visit<'_>) -> std::result::Result<(), E>) -> std::result::Result<(), E> {
        for i in &self.inputs {
            match &i.edge {
                Edge::Node(n, _) => f(Visit::Node(n))?,
                Edge::Leaf(h) => f(Visit::Held(h))?,
                Edge::None => {}
            }
        }
        if let Some(s) = self.try_slots() {
            for v in &s.values {
                match v {
                    Value::Kept { held, .. } => f(Visit::Held(held))?,
                    Value::Stowed(..) | Value::Packed(_) => {
                        let mut result = Ok(());
                        v.visit(&mut |v| {
                            if result.is_ok() {
                                result = f(v);
                            }
                        });
                        result?;
                    }
                    _ => {}
                }
            }
        }
        if self.is_hooked() {
            self.visit_hooks(&mut f)?;
        }
        match self.op.inner() {
            Some(n) => f(Visit::Node(n)),
            None => Ok(()),
        }
    }
    #[cold]
    fn visit_hooks<E>(&self, f: &mut impl FnMut(Visit<'_>) -> std::result::Result<(), E>) -> std::result::Result<(), E> {
        let Some(h) = self.hooks.try_lock() else { return Ok(()) };
        let Some(h) = &*h else { return Ok(()) };
        h.tensor.iter().try_for_each(|(_, _, h)| f(Visit::Grad(h)))?;
        h.pre.iter().try_for_each(|(_, h)| f(Visit::Pre(h)))?;
        h.post.iter().try_for_each(|(_, h)| f(Visit::Post(h)))
    }
    /// Takes out what may be part of a reference cycle, to be dropped by the caller (edges stay: they are immutable).
    pub fn clear(&self) -> impl Sized {
        let slots = self.try_slots().map(|mut s| {
            s.freed |= !s.values.is_empty();
            if s.freed {
                self.gone.store(true, Release);
            }
            (std::mem::take(&mut s.values), s.watched.take())
        });
        if let Some((values, _)) = &slots {
            self.unshadow_all(values);
        }
        let hooks = self.hooks.try_lock().and_then(|mut h| h.take());
        self.op.clear();
        (slots, hooks)
    }
}
impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<{}>", self.name())
    }
}

/// What a look at a slot finds.
enum Found {
    Kept(Tensor),
    Else(Value),
}
/// What a backward formula sees of its node.
pub struct Cx<'a> {
    pub node: &'a Arc<Node>,
    /// Bit i: the gradient of input i is wanted.
    pub needs: u64,
    /// The values stay after this run.
    pub keep: bool,
    /// The gradients given may be overwritten where nobody else holds them: they are not looked at again.
    pub spare: bool,
}
impl Cx<'_> {
    #[inline]
    pub fn needs(&self, input: usize) -> bool {
        if input < 64 { self.needs >> input & 1 != 0 } else { !self.node.inputs[input].edge.is_none() }
    }
    pub fn shape(&self, input: usize) -> Dims {
        self.node.shape(input)
    }
    pub fn dtype(&self, input: usize) -> DType {
        self.node.meta(input).dtype
    }
    #[inline]
    pub fn saved(&self, slot: usize) -> Result<Tensor> {
        match self.saved_opt(slot)? {
            Some(t) => Ok(t),
            None => bail!(Runtime, "{}: the saved value {} was not kept", self.node.name(), self.node.slot_name(slot)),
        }
    }
    #[inline]
    pub fn saved_opt(&self, slot: usize) -> Result<Option<Tensor>> {
        match self.node.find(slot)? {
            Found::Kept(t) => Ok(Some(t)),
            Found::Else(v) => v.unpack(self.node, slot, grad_enabled()),
        }
    }
}
