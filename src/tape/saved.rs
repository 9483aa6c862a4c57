//! Saved values: what a slot of a node may hold, how it is packed and unpacked, and the pair of traits behind every policy (DESIGN 4).
//! Knows no policy: user hooks, checkpoint frames, offload, compression and the mutation guard implement `Pack` and `Stow`.
use super::node::{Edge, Meta, Node, Source};
use super::tensor::{Held, Tensor, Visit, WeakTensor};
use super::{host, mode};
use crate::array::Array;
use crate::dtype::DType;
use crate::error::{Error, Result, bail};
use crate::kernels::pointwise;
use crate::layout::{Dims, Geometry};
use crate::storage::{Copies, Note, Storage, Watcher};
use smallvec::SmallVec;
use std::sync::{Arc, Weak};

#[cfg(feature = "python")]
pub use crate::py::Keeper;
/// Python objects that a slot owns for its policy; without the `python` feature there are none.
#[cfg(not(feature = "python"))]
#[derive(Clone)]
pub enum Keeper {}

/// A value that a policy took: (owner, key). Slots that save the same may share it; when the last lets go, that tells the owner (rule 9).
pub struct Stowed {
    pub by: Arc<dyn Stow>,
    pub key: u32,
    pub keeper: Option<Keeper>,
    /// The tensor that an output became, with the version that was packed.
    became: Option<(WeakTensor, u64)>,
}
impl Stowed {
    #[inline]
    pub fn new(by: Arc<dyn Stow>, key: u32, keeper: Option<Keeper>) -> Arc<Stowed> {
        Arc::new(Stowed { by, key, keeper, became: None })
    }
    /// What the policy gives back, checked against what it was given.
    fn value(&self, by: By<'_>, shape: &Dims, dtype: DType, slot: &dyn Fn() -> SlotName) -> Result<Tensor> {
        let t = self.by.unpack(self.key, self.keeper.as_ref(), &Wanted { by, shape, dtype })?;
        if t.look(|a| a.shape == *shape && a.dtype == dtype) {
            return Ok(t);
        }
        let (found, of) = (t.shape(), t.dtype().name());
        bail!(
            Runtime,
            "{by}: unpacking the saved value {} gave a tensor of shape {found:?} and dtype {of}, but shape {shape:?} and dtype {} were packed. An unpack hook must return what pack was given",
            slot(),
            dtype.name()
        )
    }
}
impl Drop for Stowed {
    fn drop(&mut self) {
        self.by.release(self.key);
    }
}
/// The owner of values that slots gave away. It never owns a slot or a node.
pub trait Stow: Send + Sync {
    /// The value of `key`. Runs once per use; may run often.
    fn unpack(&self, key: u32, keeper: Option<&Keeper>, want: &Wanted<'_>) -> Result<Tensor>;
    /// The slot is gone. Must not panic and must not call user code.
    fn release(&self, _key: u32) {}
    /// Python objects that it owns alone, for the collector.
    fn visit(&self, _f: &mut dyn FnMut(usize)) {}
}
/// A node, or the function whose argument it is; shown as a name.
#[derive(Clone, Copy)]
pub enum By<'a> {
    Node(&'a Node),
    Function(&'a str),
}
impl std::fmt::Display for By<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            By::Node(n) => f.write_str(&n.name()),
            By::Function(name) => f.write_str(name),
        }
    }
}
/// What the node expects of an unpacked value, and who asks.
pub struct Wanted<'a> {
    /// Who saved it.
    pub by: By<'a>,
    pub shape: &'a Dims,
    pub dtype: DType,
}
/// A policy: takes values at the time of the save.
pub trait Pack: Send + Sync {
    /// None: keep it in the slot, with its version.
    fn pack(&self, s: &Saving<'_>) -> Result<Option<Arc<Stowed>>>;
    /// It runs no user code and no operation: nothing needs to be set up or checked around it.
    fn quiet(&self) -> bool {
        false
    }
    /// Values come back by running user code again (a checkpoint frame).
    fn recomputes(&self) -> bool {
        false
    }
    /// The next value that it takes ends what runs: there is no use in making more of the operation than that value.
    fn ends(&self) -> bool {
        false
    }
    /// Values saved under it may be overwritten afterwards (the mutation guard).
    fn allows_writes(&self) -> bool {
        false
    }
    /// It leaves values in the slots of nodes, is told of each node, and hears of writes to what the slots keep.
    fn adopts(&self) -> Option<&dyn Adopt> {
        None
    }
    /// The policy as itself, for those who know it.
    fn as_any(&self) -> Option<&dyn std::any::Any> {
        None
    }
}
/// The name of a slot: that of an input or output, with a number if it is one of a list, or a number alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SlotName {
    name: &'static str,
    nth: Option<u32>,
}
impl SlotName {
    pub const fn of(name: &'static str) -> SlotName {
        SlotName { name, nth: None }
    }
    /// One of the list `name`; with an empty name the number alone.
    pub fn nth(name: &'static str, nth: usize) -> SlotName {
        SlotName { name, nth: Some(nth as u32) }
    }
}
impl std::fmt::Display for SlotName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.nth {
            None => f.write_str(self.name),
            Some(n) if self.name.is_empty() => write!(f, "{n}"),
            Some(n) => write!(f, "{}[{n}]", self.name),
        }
    }
}
/// See `Pack::adopts`.
pub trait Adopt {
    fn adopt(&self, node: &Arc<Node>) -> Result<()>;
}
/// One value about to be saved.
#[derive(Clone, Copy)]
pub struct Saving<'a> {
    pub op: &'static str,
    pub slot: SlotName,
    pub array: &'a Array,
    pub origin: Origin<'a>,
    /// A policy further in lets it be overwritten (the mutation guard, inside a checkpoint frame).
    pub guarded: bool,
}
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// An input, as the very tensor.
    Input(&'a Tensor),
    /// What an in-place operation is about to overwrite, copied.
    Overwritten(&'a Tensor),
    Output(u32),
}
impl Saving<'_> {
    /// The value as a tensor: the input itself, or an alias without history for an output.
    pub fn tensor(&self) -> Tensor {
        match self.origin {
            Origin::Input(t) => t.clone(),
            Origin::Overwritten(t) => Tensor::with_edge(self.array.clone(), t.edge()),
            Origin::Output(_) => Tensor::new(self.array.clone()),
        }
    }
    /// The leaf that requires grad (a parameter) that this is, by address.
    pub fn leaf_id(&self) -> Option<usize> {
        match self.origin {
            Origin::Input(t) => t.leaf_id(),
            _ => None,
        }
    }
    /// Do its bytes count as saved, or does it live anyway?
    pub fn counts(&self) -> bool {
        !matches!(self.origin, Origin::Input(t) if !t.counts_as_saved())
    }
    pub fn is_input(&self) -> bool {
        matches!(self.origin, Origin::Input(_))
    }
}

/// Counts the bytes of a storage as saved for as long as it lives.
pub struct Counted(Arc<Storage>);
impl Counted {
    #[inline]
    pub fn new(s: &Arc<Storage>) -> Counted {
        s.save();
        Counted(s.clone())
    }
}
impl Clone for Counted {
    fn clone(&self) -> Self {
        Counted::new(&self.0)
    }
}
impl Drop for Counted {
    #[inline]
    fn drop(&mut self) {
        self.0.unsave();
    }
}

/// What a slot holds.
#[derive(Default)]
pub enum Value {
    /// No formula that runs needs it.
    #[default]
    Empty,
    /// A Python number used as an operand: never packed, no version, no bytes.
    Number(Tensor),
    /// An input, kept as the very tensor, with the version at which it was saved.
    Kept { held: Held, version: u64, counted: Option<Counted> },
    /// An output, kept without history; `nr` says which.
    Output(Arc<KeptArray>),
    /// What an in-place operation overwrote: a copy that stands for input `nr`.
    Before(Arc<KeptArray>),
    /// An output that is a view of a base written through it: its history comes from the base's node.
    OnView(Arc<(Arc<KeptArray>, Geometry, Weak<Node>)>),
    /// A policy has it, an input or output of the node: that knows what it looks like, and where its gradient goes.
    Stowed(Arc<Stowed>, Of),
    /// A policy has it, and it is something else.
    Packed(Arc<Packed>),
}
/// Which of a node's values it is.
#[derive(Clone, Copy, PartialEq)]
pub enum Of {
    Input(u32),
    Output(u32),
}
/// An array kept in a slot, with the version at which it was saved. Shared, so that slots stay small.
pub struct KeptArray {
    array: Array,
    version: u64,
    nr: u32,
    _counted: Counted,
}
impl KeptArray {
    fn new(array: &Array, nr: u32) -> Arc<KeptArray> {
        KeptArray::at(array, array.version(), nr)
    }
    fn at(array: &Array, version: u64, nr: u32) -> Arc<KeptArray> {
        Arc::new(KeptArray { array: array.clone(), version, nr, _counted: Counted::new(array.storage()) })
    }
}
pub struct Packed {
    stowed: Arc<Stowed>,
    shape: Dims,
    dtype: DType,
    history: History,
}
/// Where the gradient of an unpacked value goes.
enum History {
    None,
    Edge(Edge),
    OnView(Box<(Geometry, Geometry)>, Weak<Node>),
}
impl History {
    fn of(edge: Edge) -> History {
        if edge.is_none() { History::None } else { History::Edge(edge) }
    }
}
/// In place of a version: who writes the value says so first (see `Node::watch`), so versions tell nothing.
pub const UNCHECKED: u64 = u64::MAX;
/// As `UNCHECKED`, of a copy of what was overwritten.
const COPIED: u64 = u64::MAX - 1;
/// In place of an input's number: the value saved is none of the inputs that have an edge.
pub const NO_INPUT: u32 = u32::MAX;
#[derive(Default)]
pub struct Slots {
    pub values: SmallVec<[Value; 2]>,
    /// The values were here and are gone.
    pub freed: bool,
    pub watched: Option<Box<Watched>>,
}
/// The notes that a node has on the storages of what its slots keep: taken back with this.
pub struct Watched {
    node: usize,
    notes: SmallVec<[(Arc<Storage>, u32); 2]>,
}
impl Drop for Watched {
    fn drop(&mut self) {
        for (storage, key) in &self.notes {
            storage.unwatch(self.node, *key);
        }
    }
}
/// What a node under a mutation guard keeps: a region as it was saved, or a copy of what was overwritten.
pub enum Guarded {
    Original(Array),
    Cloned(Array),
}

impl Value {
    /// An input, kept as the very tensor.
    #[inline(always)]
    pub fn kept(array: &Array, t: &Tensor) -> Value {
        let counted = t.counts_as_saved().then(|| Counted::new(array.storage()));
        Value::Kept { held: Held::of(t), version: array.version(), counted }
    }
    /// Does no node hang on it, and nothing of a policy?
    #[inline]
    pub fn ends(&self) -> bool {
        match self {
            Value::Empty | Value::Number(_) => true,
            Value::Kept { held, .. } => !held.tensor().has_node(),
            _ => false,
        }
    }
    /// A handle on the same value, so that the slot's lock can be let go before it is unpacked. (A count of saved bytes stays behind.)
    pub fn share(&self) -> Value {
        match self {
            Value::Empty => Value::Empty,
            Value::Number(t) => Value::Number(t.clone()),
            Value::Kept { held, version, .. } => Value::Kept { held: Held::Core(held.tensor().clone()), version: *version, counted: None },
            Value::Output(k) => Value::Output(k.clone()),
            Value::Before(k) => Value::Before(k.clone()),
            Value::OnView(v) => Value::OnView(v.clone()),
            Value::Stowed(s, of) => Value::Stowed(s.clone(), *of),
            Value::Packed(p) => Value::Packed(p.clone()),
        }
    }
    pub fn unpack(self, node: &Arc<Node>, slot: usize, history: bool) -> Result<Option<Tensor>> {
        let modified = |a: &Array, expected: u64, made_by: &dyn Fn() -> Option<(String, u32)>| -> Result<()> {
            let found = a.version();
            if found == expected || expected >= COPIED {
                return Ok(());
            }
            Err(Box::new(Error::Modified {
                node: node.name().into_owned(),
                slot: node.slot_name(slot).to_string(),
                made_by: made_by(),
                shape: a.shape.to_vec(),
                found,
                expected,
                saved_at: node.line.as_ref().map(|l| l.text()),
                written_at: super::record::last_write(a),
            }))
        };
        Ok(Some(match self {
            Value::Empty => return Ok(None),
            Value::Number(t) => t,
            Value::Kept { held, version, .. } => {
                let t = match held {
                    Held::Core(t) => t,
                    Held::Wrapped(w) => w.tensor().clone(),
                };
                let stale = t.look(|a| if a.version() == version || version >= COPIED { None } else { Some(a.clone()) });
                stale.map_or(Ok(()), |a| modified(&a, version, &|| maker(&t)))?;
                t
            }
            Value::Output(k) => {
                modified(&k.array, k.version, &|| Some((node.name().into_owned(), k.nr)))?;
                if history {
                    Tensor::with_edge(k.array.clone(), output_edge(node, k.nr, k.array.dtype))
                } else {
                    Tensor::new(k.array.clone())
                }
            }
            Value::Before(k) => {
                let edge = if history { node.inputs[k.nr as usize].edge.clone() } else { Edge::None };
                Tensor::with_edge(k.array.clone(), edge)
            }
            Value::OnView(v) => {
                let (kept, base, on) = &*v;
                let array = kept.array.clone();
                modified(&array, kept.version, &|| on.upgrade().map(|n| (n.name().into_owned(), 0)))?;
                match on.upgrade() {
                    Some(on) if history => {
                        let edge = on.info().views.strided(Edge::Node(on.clone(), 0), base, &array.geometry(), &Meta::of(&array))?;
                        Tensor::with_edge(array, edge)
                    }
                    _ => Tensor::new(array),
                }
            }
            Value::Stowed(s, of) => {
                let meta = match of {
                    Of::Input(i) => node.meta(i as usize),
                    Of::Output(nr) => node.output(nr as usize),
                };
                let t = s.value(By::Node(node), &meta.shape, meta.dtype, &|| node.slot_name(slot))?;
                match of {
                    _ if !history => t,
                    // no second owner of the edge, which would hide the node from the collector
                    Of::Input(i) => along(t, &node.inputs[i as usize].edge),
                    Of::Output(nr) => along(t, &output_edge(node, nr, meta.dtype)),
                }
            }
            Value::Packed(p) => p.unpack(node, slot, history)?,
        }))
    }
    /// The same value in the hands of a policy (`SavedTensor.register_hooks`).
    pub fn pack_with(&self, node: &Arc<Node>, slot: usize, by: &Arc<dyn Pack>) -> Result<Value> {
        let t = match self.share().unpack(node, slot, true)? {
            Some(t) if !matches!(self, Value::Number(_)) => t,
            _ => bail!(Runtime, "register_hooks(): the slot {} of {} holds no tensor", node.slot_name(slot), node.name()),
        };
        let (array, name) = (t.array(), node.slot_name(slot));
        let origin = if let Value::Output(k) = self { Origin::Output(k.nr) } else { Origin::Input(&t) };
        let Some(stowed) = pack_one(by, &Saving { op: node.info().op, slot: name, array: &array, origin, guarded: false })? else {
            return Ok(self.share());
        };
        let input = node.slot_input(slot).filter(|i| node.inputs[*i as usize].edge.same(&t.edge()));
        Ok(match (origin, input) {
            (Origin::Output(nr), _) => Value::Stowed(stowed, Of::Output(nr)),
            (_, Some(i)) => Value::Stowed(stowed, Of::Input(i)),
            _ => Value::packed(stowed, Meta::of(&array), History::of(t.edge())),
        })
    }
    pub fn visit(&self, f: &mut dyn FnMut(Visit<'_>)) {
        match self {
            Value::Kept { held, .. } => f(Visit::Held(held)),
            Value::Stowed(s, _) if Arc::strong_count(s) == 1 => f(Visit::Slot(s)),
            Value::Packed(p) if Arc::strong_count(p) == 1 && Arc::strong_count(&p.stowed) == 1 => {
                f(Visit::Slot(&p.stowed));
                match &p.history {
                    History::Edge(Edge::Node(n, _)) => f(Visit::Node(n)),
                    History::Edge(Edge::Leaf(h)) => f(Visit::Held(h)),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    /// The output that this is, moved onto a view's base (see `record`): `node` is the base's copy-slices node.
    pub fn onto_view(self, base: Geometry, view: &Array, node: &Arc<Node>) -> Value {
        match self {
            Value::Output(k) => Value::OnView(Arc::new((k, base, Arc::downgrade(node)))),
            Value::Stowed(s, Of::Output(_)) => {
                Value::packed(s, Meta::of(view), History::OnView(Box::new((base, view.geometry())), Arc::downgrade(node)))
            }
            v => v,
        }
    }
    fn packed(stowed: Arc<Stowed>, like: Meta, history: History) -> Value {
        Value::Packed(Arc::new(Packed { stowed, shape: like.shape, dtype: like.dtype, history }))
    }
}
impl Slots {
    /// Notes which tensor the output `nr` became, where a policy packed it.
    pub fn note_output(&mut self, nr: u32, t: &Tensor) {
        for v in &mut self.values {
            if let Value::Stowed(s, of) = v
                && *of == Of::Output(nr)
                && let Some(s) = Arc::get_mut(s)
            {
                s.became = Some((t.downgrade(), t.version()));
            }
        }
    }
    /// Keeps outputs whose tensors live, and were not written since, as they are, instead of what policies made of them: they cost nothing
    /// more. Gives their slots, and what the caller is to drop.
    fn keep_living_outputs(&mut self) -> (SmallVec<[usize; 1]>, impl Sized + use<>) {
        let mut gone: SmallVec<[(Tensor, Option<Value>); 1]> = SmallVec::new();
        let mut slots = SmallVec::new();
        for (slot, v) in self.values.iter_mut().enumerate() {
            if let Value::Stowed(s, Of::Output(nr)) = v
                && let Some((tensor, version)) = &s.became
                && let Some(t) = tensor.upgrade()
            {
                let array = t.array();
                let kept = (array.version() == *version).then(|| Value::Output(KeptArray::new(&array, *nr)));
                if kept.is_some() {
                    slots.push(slot);
                }
                gone.push((t, kept.map(|k| std::mem::replace(v, k))));
            }
        }
        (slots, gone)
    }
}
impl Node {
    /// What policies hold besides living tensors goes: see `Slots::keep_living_outputs`. A write to such a tensor is announced, and copies
    /// first, as a policy that copied would have it.
    pub fn keep_living_outputs(self: &Arc<Self>) -> Result<()> {
        let (slots, gone) = self.slots().keep_living_outputs();
        drop(gone);
        if slots.is_empty() { Ok(()) } else { self.watch_slots(|k| slots.contains(&k)) }
    }
    /// From now on writes to what the slots keep are announced to the node, which copies what it keeps first; versions are not compared.
    /// Memory that may be written without notice is copied at once.
    pub fn watch(self: &Arc<Self>) -> Result<()> {
        self.watch_slots(|_| true)
    }
    fn watch_slots(self: &Arc<Self>, which: impl Fn(usize) -> bool) -> Result<()> {
        let mut watched = Watched { node: Arc::as_ptr(self) as usize, notes: SmallVec::new() };
        let mut lent: SmallVec<[(Arc<Storage>, u32); 1]> = SmallVec::new();
        let mut note = |key: usize, a: &Array| {
            let at = (a.storage().clone(), key as u32);
            if a.storage().is_lent() {
                return lent.push(at);
            }
            let who: Weak<Node> = Arc::downgrade(self);
            a.storage().watch(Note { who, key: key as u32, span: a.byte_span() });
            watched.notes.push(at);
        };
        let mut s = self.slots();
        for (key, v) in s.values.iter_mut().enumerate().filter(|(k, _)| which(*k)) {
            match v {
                Value::Kept { held, version, .. } => {
                    *version = UNCHECKED;
                    held.tensor().look(|a| note(key, a));
                }
                Value::Output(k) => {
                    if let Some(k) = Arc::get_mut(k) {
                        k.version = UNCHECKED;
                        note(key, &k.array);
                    }
                }
                _ => {}
            }
        }
        match &mut s.watched {
            _ if watched.notes.is_empty() => {}
            Some(w) => w.notes.append(&mut watched.notes),
            none => *none = Some(Box::new(watched)),
        }
        drop(s);
        let mut copies = Copies::default();
        lent.iter().try_for_each(|(storage, key)| self.clone().before_write(storage, *key, &mut copies))
    }
    /// Which of the node's values a slot keeps, by the op's declaration.
    fn slot_of(&self, slot: usize) -> Option<Of> {
        self.info().saves.get(slot).map(|(_, source)| match source {
            Source::Input(i) => Of::Input(*i as u32),
            Source::Output(nr) => Of::Output(*nr as u32),
        })
    }
    /// What the slot keeps, if writes to it are announced.
    fn watched_array(value: &Value) -> Option<Array> {
        match value {
            Value::Kept { held, version: UNCHECKED, .. } => Some(held.tensor().array()),
            Value::Output(k) | Value::Before(k) if k.version >= COPIED => Some(k.array.clone()),
            _ => None,
        }
    }
    /// What the slots of a watched node keep.
    pub fn guarded(&self) -> SmallVec<[Guarded; 2]> {
        let s = self.slots();
        s.values
            .iter()
            .filter_map(|v| match v {
                Value::Before(k) | Value::Output(k) if k.version == COPIED => Some(Guarded::Cloned(k.array.clone())),
                v => Node::watched_array(v).map(Guarded::Original),
            })
            .collect()
    }
    /// The values of a watched node go; who asks for one gets the answer of `by`.
    pub fn give_up(&self, by: &Arc<dyn Stow>) {
        let gone = {
            let mut s = self.slots();
            let mut gone: SmallVec<[Value; 2]> = SmallVec::new();
            for (slot, v) in s.values.iter_mut().enumerate() {
                if let Value::Kept { .. } | Value::Before(_) | Value::Output(_) = v
                    && let Some(of) = self.slot_of(slot)
                {
                    gone.push(std::mem::replace(v, Value::Stowed(Stowed::new(by.clone(), 0, None), of)));
                }
            }
            (gone, s.watched.take())
        };
        self.unshadow_all(&gone.0);
        drop(gone);
    }
}
/// The copy of `a` for those who are told of one write.
pub fn copy_for(copies: &mut Copies, a: &Array) -> Result<Array> {
    copies.of(a, |a| pointwise::cast_kept(a, a.dtype))
}
impl Watcher for Node {
    fn before_write(self: Arc<Self>, storage: &Arc<Storage>, key: u32, copies: &mut Copies) -> Result<()> {
        let slot = key as usize;
        let array = self.slots().values.get(slot).and_then(Node::watched_array);
        let Some(array) = array.filter(|a| Arc::ptr_eq(a.storage(), storage)) else { return Ok(()) };
        let copy = copy_for(copies, &array)?;
        let new = match self.slot_of(slot) {
            Some(Of::Input(i)) => Value::Before(KeptArray::at(&copy, COPIED, i)),
            Some(Of::Output(nr)) => Value::Output(KeptArray::at(&copy, COPIED, nr)),
            None => return Ok(()),
        };
        drop(self.replace_slot(slot, new));
        // others may have the copy, and hand it out
        if let Some(w) = &mut self.slots().watched {
            let who: Weak<Node> = Arc::downgrade(&self);
            copy.storage().watch(Note { who, key, span: copy.byte_span() });
            w.notes.push((copy.storage().clone(), key));
        }
        Ok(())
    }
}
/// Where the gradient of an output goes: nowhere for one that has no derivative (indices).
fn output_edge(node: &Arc<Node>, nr: u32, dtype: DType) -> Edge {
    if dtype.is_float() && node.info().differentiable(nr) { Edge::Node(node.clone(), nr) } else { Edge::None }
}
/// The tensor, or an alias of it, with this history: the very tensor that was packed needs no alias.
fn along(t: Tensor, edge: &Edge) -> Tensor {
    if t.edge().same(edge) { t } else { Tensor::with_edge(t.array(), edge.clone()) }
}
impl Packed {
    fn unpack(&self, node: &Arc<Node>, slot: usize, history: bool) -> Result<Tensor> {
        let t = self.stowed.value(By::Node(node), &self.shape, self.dtype, &|| node.slot_name(slot))?;
        if !history {
            return Ok(t);
        }
        let like = Meta { shape: self.shape, dtype: self.dtype };
        let edge = match &self.history {
            History::None => Edge::None,
            History::Edge(e) => e.clone(),
            History::OnView(pair, on) => match on.upgrade() {
                Some(on) => on.info().views.strided(Edge::Node(on.clone(), 0), &pair.0, &pair.1, &like)?,
                None => Edge::None,
            },
        };
        Ok(along(t, &edge))
    }
}

/// Calls a policy's `pack` as rule 3 says: grad disabled, and an in-place change of the value is an error.
pub fn pack_one(by: &Arc<dyn Pack>, s: &Saving<'_>) -> Result<Option<Arc<Stowed>>> {
    if by.quiet() {
        return by.pack(s);
    }
    let version = s.array.version();
    let stowed = mode::no_grad(|| by.pack(s))?;
    if s.array.version() != version {
        bail!(
            Runtime,
            "a saved tensor pack hook is modifying its input in place: {} saved by {} went from version {version} to {}. Tensors provided as input to pack hook can not be modified by in-place operations; clone it first",
            s.slot,
            s.op,
            s.array.version()
        );
    }
    Ok(stowed)
}
/// Saves one value into a slot: the innermost policy of the thread may take it, otherwise it is kept. `input`: which of the node's inputs
/// it is, by whose edge its gradient goes, or `NO_INPUT`.
#[inline]
pub fn save(
    pack: Option<&Arc<dyn Pack>>,
    op: &'static str,
    slot: SlotName,
    array: &Array,
    origin: Origin<'_>,
    input: u32,
) -> Result<Value> {
    if let Some(by) = pack {
        return save_packed(by, op, slot, array, origin, input);
    }
    keep(array, origin, input)
}
/// Keeps a value in the slot, with its version.
fn keep(array: &Array, origin: Origin<'_>, input: u32) -> Result<Value> {
    Ok(match origin {
        Origin::Input(t) => {
            t.check_savable()?;
            Value::kept(array, t)
        }
        Origin::Overwritten(_) => Value::Before(KeptArray::new(array, input)),
        Origin::Output(nr) => Value::Output(KeptArray::new(array, nr)),
    })
}
#[inline(never)]
fn save_packed(by: &Arc<dyn Pack>, op: &'static str, slot: SlotName, array: &Array, origin: Origin<'_>, input: u32) -> Result<Value> {
    if let Origin::Input(t) = origin {
        t.check_savable()?;
    }
    match pack_one(by, &Saving { op, slot, array, origin, guarded: false })? {
        None => keep(array, origin, input),
        Some(stowed) => Ok(match origin {
            Origin::Output(nr) => Value::Stowed(stowed, Of::Output(nr)),
            _ if input != NO_INPUT => Value::Stowed(stowed, Of::Input(input)),
            Origin::Input(t) | Origin::Overwritten(t) => Value::packed(stowed, Meta::of(array), History::of(t.edge())),
        }),
    }
}
/// The node whose output a tensor is now, by name.
pub fn maker(t: &Tensor) -> Option<(String, u32)> {
    t.grad_fn().map(|(n, nr)| (n.name().into_owned(), nr))
}
const ARGUMENT: SlotName = SlotName::of("argument");
/// A tensor in the hands of the innermost policy, outside of any node: an argument of a checkpointed function.
pub enum Parked {
    /// No policy took it: the very tensor, with the version at which it was saved.
    Here {
        held: Held,
        version: u64,
        _counted: Option<Counted>,
    },
    Away(Box<Away>),
}
/// A tensor that a policy has: what it looks like, and where its gradient goes.
#[derive(Clone)]
pub struct Away {
    stowed: Arc<Stowed>,
    like: Meta,
    edge: Edge,
}
impl Parked {
    pub fn new(t: &Tensor, by: &'static str) -> Result<Parked> {
        t.check_savable()?;
        if let Some(pack) = mode::pack() {
            let array = t.array();
            let saving = Saving { op: by, slot: ARGUMENT, array: &array, origin: Origin::Input(t), guarded: false };
            if let Some(stowed) = pack_one(&pack, &saving)? {
                return Ok(Parked::Away(Box::new(Away { stowed, like: Meta::of(&array), edge: t.edge() })));
            }
        }
        let counts = t.counts_as_saved();
        let (version, _counted) = t.look(|a| (a.version(), counts.then(|| Counted::new(a.storage()))));
        Ok(Parked::Here { held: Held::of(t), version, _counted })
    }
    /// An array without history in the hands of `by`, if that policy takes it.
    pub fn packed(by: Option<&Arc<dyn Pack>>, array: &Array, who: &'static str) -> Result<Option<Parked>> {
        let saving = Saving { op: who, slot: SlotName::of("output"), array, origin: Origin::Output(0), guarded: false };
        let stowed = by.map(|by| pack_one(by, &saving)).transpose()?.flatten();
        Ok(stowed.map(|stowed| Parked::Away(Box::new(Away { stowed, like: Meta::of(array), edge: Edge::None }))))
    }
    /// A handle on the same value.
    pub fn share(&self) -> Parked {
        match self {
            Parked::Here { held, version, .. } => Parked::Here { held: held.clone(), version: *version, _counted: None },
            Parked::Away(a) => Parked::Away(a.clone()),
        }
    }
    /// The argument again, with the history it had.
    pub fn get(&self, by: &str) -> Result<Tensor> {
        match self {
            Parked::Here { held, version, .. } => {
                let t = held.tensor();
                let found = t.version();
                if found != *version {
                    return Err(Box::new(Error::Modified {
                        node: by.to_owned(),
                        slot: ARGUMENT.to_string(),
                        made_by: maker(t),
                        shape: t.shape().to_vec(),
                        found,
                        expected: *version,
                        saved_at: None,
                        written_at: super::record::last_write(&t.array()),
                    }));
                }
                Ok(t.clone())
            }
            Parked::Away(a) => Ok(along(a.stowed.value(By::Function(by), &a.like.shape, a.like.dtype, &|| ARGUMENT)?, &a.edge)),
        }
    }
    pub fn visit(&self, f: &mut dyn FnMut(Visit<'_>)) {
        match self {
            Parked::Here { held, .. } => f(Visit::Held(held)),
            Parked::Away(a) => {
                if Arc::strong_count(&a.stowed) == 1 {
                    f(Visit::Slot(&a.stowed));
                }
                match &a.edge {
                    Edge::Node(n, _) => f(Visit::Node(n)),
                    Edge::Leaf(h) => f(Visit::Held(h)),
                    Edge::None => {}
                }
            }
        }
    }
}
/// The place in user code, if the host can tell: kept with a node, resolved when an error asks.
pub fn here() -> Option<super::Line> {
    host().and_then(|h| h.here())
}
