//! The mutation guard: values saved while it is open may be overwritten; a value is copied at the first write that would change it.
//!
//! What operations save stays in the slots of their nodes: each node hears of writes itself (`Node::watch`), and the guard knows the nodes
//! weakly, to count and to end what they keep. Other values (those of custom functions, arguments of checkpointed ones, what an operation
//! in place saves) go to the guard's table: a slot is (guard, key), and the table holds the saved tensor itself until a write to its bytes
//! is announced, and a copy from then on; slots that save the same region of a storage at the same version share a key. A storage
//! remembers whom to tell (`Watcher`), so the route of the write does not matter: another view, `out=`, `.data`, an optimizer. Whoever is
//! told of one write shares the copies. What may be written from outside without notice (memory lent to numpy) is copied at the save.
//!
//! Locks: the table, then within it a storage's notes. A write that was announced before its key was given to another storage knows that by
//! the storage. Invariant: nothing here runs a kernel or drops a tensor while a lock is held.
use crate::array::Array;
use crate::error::{Result, bail};
use crate::kernels::pointwise;
use crate::storage::{Copies, Note, Storage, Watcher, take_note};
use crate::tape::saved::{Adopt, Counted, Guarded, Keeper, Origin, Wanted, copy_for};
use crate::tape::{Held, Node, Pack, Saving, Stow, Stowed, Tensor};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashSet;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, LazyLock, Weak};

/// What the table holds for one key.
enum Entry {
    Free,
    /// The value, untouched so far, as the very tensor; whoever gives that another storage or layout says so first, as for a write.
    Original {
        held: Held,
        storage: Arc<Storage>,
        /// The bytes count as saved.
        counts: bool,
        /// What the slots share.
        stowed: Weak<Stowed>,
    },
    /// It was written; this is what it was.
    Cloned {
        copy: Array,
        _counted: Counted,
    },
}
impl Entry {
    fn lies_in(&self, s: &Arc<Storage>) -> bool {
        match self {
            Entry::Free => false,
            Entry::Original { storage, .. } => Arc::ptr_eq(storage, s),
            Entry::Cloned { copy, .. } => Arc::ptr_eq(copy.storage(), s),
        }
    }
    /// The value, if there is one.
    fn array(&self) -> Array {
        match self {
            Entry::Original { held, .. } => held.tensor().array(),
            Entry::Cloned { copy, .. } => copy.clone(),
            Entry::Free => unreachable!("it lies in no storage"),
        }
    }
    fn storage(&self) -> Option<&Arc<Storage>> {
        match self {
            Entry::Free => None,
            Entry::Original { storage, .. } => Some(storage),
            Entry::Cloned { copy, .. } => Some(copy.storage()),
        }
    }
}
impl Drop for Entry {
    fn drop(&mut self) {
        if let Entry::Original { storage, counts: true, .. } = self {
            storage.unsave();
        }
    }
}
#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
}
impl Table {
    /// The key under which `entry` is kept from now on.
    fn add(&mut self, entry: Entry) -> u32 {
        match self.free.pop() {
            Some(k) => {
                self.entries[k as usize] = entry;
                k
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        }
    }
    /// What slots share that saved this very region, still untouched, under `key`; None also if its last slot is just gone.
    fn shared(&self, key: u32, s: &Saving<'_>) -> Option<Arc<Stowed>> {
        // the very tensor is untouched: else its note were gone
        let same = |held: &Held| match s.origin {
            Origin::Input(t) if held.tensor().ptr_eq(t) => true,
            _ => held.tensor().look(|b| b.same_elements(s.array) && b.version() == s.array.version()),
        };
        match self.entries.get(key as usize) {
            Some(Entry::Original { held, stowed, .. }) if same(held) => stowed.upgrade(),
            _ => None,
        }
    }
}
pub struct Guard {
    me: Weak<Guard>,
    open: AtomicBool,
    table: Mutex<Table>,
    nodes: Mutex<Vec<Weak<Node>>>,
}
/// What the guard holds, for its context object.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Holding {
    pub original: usize,
    pub cloned: usize,
    pub original_bytes: usize,
    pub cloned_bytes: usize,
}

impl Guard {
    pub fn new() -> Arc<Guard> {
        Arc::new_cyclic(|me| Guard { me: me.clone(), open: AtomicBool::new(true), table: Mutex::default(), nodes: Mutex::default() })
    }
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
    fn address(&self) -> usize {
        self as *const Guard as usize
    }
    /// Ends it, and lets go of everything; slots stay, and answer with an error.
    pub fn close(&self) {
        self.open.store(false, Release);
        self.forget(std::mem::take(&mut *self.table()).entries);
        self.give_up(&CLOSED);
    }
    /// Lets go of everything. Slots stay, and answer with an error; their keys are not used again.
    pub fn clear(&self) {
        let entries = self.table().entries.iter_mut().map(|e| std::mem::replace(e, Entry::Free)).collect();
        self.forget(entries);
        self.give_up(&CLEARED);
    }
    fn give_up(&self, by: &LazyLock<Arc<dyn Stow>>) {
        let nodes = std::mem::take(&mut *self.nodes.lock());
        for n in nodes.iter().filter_map(Weak::upgrade) {
            n.give_up(by);
        }
    }
    fn forget(&self, entries: Vec<Entry>) {
        let who = self.address();
        for (key, e) in entries.iter().enumerate() {
            if let Some(storage) = e.storage() {
                storage.unwatch(who, key as u32);
            }
        }
        drop(entries);
    }
    pub fn holds(&self) -> Holding {
        let nodes: Vec<Arc<Node>> = self.nodes.lock().iter().filter_map(Weak::upgrade).collect();
        let mut all: Vec<Guarded> = nodes.iter().flat_map(|n| n.guarded()).collect();
        drop(nodes);
        for e in &self.table().entries {
            match e {
                Entry::Free => {}
                Entry::Original { held, .. } => all.push(Guarded::Original(held.tensor().array())),
                Entry::Cloned { copy, .. } => all.push(Guarded::Cloned(copy.clone())),
            }
        }
        // a region, and the copy of one, counts once however many slots keep it
        let (mut regions, mut h) = (FxHashSet::default(), Holding::default());
        for g in &all {
            let (Guarded::Original(a) | Guarded::Cloned(a)) = g;
            if !regions.insert((Arc::as_ptr(a.storage()) as usize, a.offset, a.shape, a.strides, a.dtype)) {
                continue;
            }
            let (n, bytes) = match g {
                Guarded::Original(_) => (&mut h.original, &mut h.original_bytes),
                Guarded::Cloned(_) => (&mut h.cloned, &mut h.cloned_bytes),
            };
            *n += 1;
            *bytes += a.nbytes();
        }
        h
    }
}
/// What slots answer whose values a guard let go of.
struct Ended(bool);
static CLOSED: LazyLock<Arc<dyn Stow>> = LazyLock::new(|| Arc::new(Ended(true)));
static CLEARED: LazyLock<Arc<dyn Stow>> = LazyLock::new(|| Arc::new(Ended(false)));
impl Stow for Ended {
    fn unpack(&self, _key: u32, _keeper: Option<&Keeper>, want: &Wanted<'_>) -> Result<Tensor> {
        if self.0 {
            bail!(
                Assertion,
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in which the graph was originally recorded ({} needs a value of shape {:?} and dtype {}).",
                want.by,
                want.shape,
                want.dtype.name()
            );
        }
        bail!(
            Assertion,
            "{}: the 'allow_mutation_on_saved_tensors' context let go of a value of shape {:?} (its clear() was called)",
            want.by,
            want.shape
        )
    }
}
impl Adopt for Guard {
    fn adopt(&self, node: &Arc<Node>) -> Result<()> {
        node.watch()?;
        let mut nodes = self.nodes.lock();
        if nodes.len() == nodes.capacity() {
            nodes.retain(|n| n.strong_count() > 0);
        }
        nodes.push(Arc::downgrade(node));
        Ok(())
    }
}
/// The guard as a policy of the thread. `outer`: the policy around it, to which values go if it runs the region again.
pub struct GuardPack {
    pub guard: Arc<Guard>,
    pub outer: Option<Arc<dyn Pack>>,
}
impl Pack for GuardPack {
    fn pack(&self, s: &Saving<'_>) -> Result<Option<Arc<Stowed>>> {
        if let Some(outer) = self.outer.as_ref().filter(|o| o.recomputes()) {
            return outer.pack(&Saving { guarded: true, ..*s });
        }
        let (guard, array) = (&self.guard, s.array);
        if array.storage().is_lent() {
            // writes from outside are not announced: the copy is made now
            let copy = pointwise::cast_kept(array, array.dtype)?;
            let _counted = Counted::new(copy.storage());
            let (storage, span) = (copy.storage().clone(), copy.byte_span());
            let key = guard.table().add(Entry::Cloned { copy, _counted });
            storage.watch(Note { who: guard.me.clone(), key, span });
            return Ok(Some(Stowed::new(guard.clone(), key, None)));
        }
        let (who, span) = (guard.address(), array.byte_span());
        let mut t = guard.table();
        Ok(Some(array.storage().with_notes(|notes| {
            if let Some(shared) = notes.iter().filter(|n| n.is_by(who) && n.span == span).find_map(|n| t.shared(n.key, s)) {
                return shared;
            }
            let held = match s.origin {
                Origin::Input(t) => Held::of(t),
                _ => Held::Core(s.tensor()),
            };
            let (storage, counts) = (array.storage().clone(), s.counts());
            if counts {
                storage.save();
            }
            let key = t.add(Entry::Original { held, storage, counts, stowed: Weak::new() });
            let new = Stowed::new(guard.clone(), key, None);
            if let Entry::Original { stowed, .. } = &mut t.entries[key as usize] {
                *stowed = Arc::downgrade(&new);
            }
            notes.push(Note { who: guard.me.clone(), key, span });
            new
        })))
    }
    fn quiet(&self) -> bool {
        true
    }
    fn adopts(&self) -> Option<&dyn Adopt> {
        if self.recomputes() { None } else { Some(&*self.guard) }
    }
    fn recomputes(&self) -> bool {
        self.outer.as_ref().is_some_and(|o| o.recomputes())
    }
    fn allows_writes(&self) -> bool {
        true
    }
}
impl Watcher for Guard {
    fn before_write(self: Arc<Self>, storage: &Arc<Storage>, key: u32, copies: &mut Copies) -> Result<()> {
        let array = match self.table().entries.get(key as usize) {
            Some(e) if e.lies_in(storage) => e.array(),
            _ => return Ok(()),
        };
        let copy = copy_for(copies, &array)?;
        let _counted = Counted::new(copy.storage());
        let old = match self.table().entries.get_mut(key as usize) {
            Some(e) if e.lies_in(storage) => {
                // the copy is handed out, and may be written in its turn
                copy.storage().watch(Note { who: self.me.clone(), key, span: copy.byte_span() });
                std::mem::replace(e, Entry::Cloned { copy, _counted })
            }
            _ => return Ok(()),
        };
        drop(old);
        Ok(())
    }
}
impl Stow for Guard {
    fn unpack(&self, key: u32, _keeper: Option<&Keeper>, want: &Wanted<'_>) -> Result<Tensor> {
        if !self.open.load(Acquire) {
            return CLOSED.unpack(key, None, want);
        }
        match self.table().entries.get(key as usize) {
            Some(Entry::Original { held, .. }) => Ok(held.tensor().clone()),
            Some(Entry::Cloned { copy, .. }) => Ok(Tensor::new(copy.clone())),
            _ => CLEARED.unpack(key, None, want),
        }
    }
    fn release(&self, key: u32) {
        let gone = {
            let mut t = self.table();
            let Some(e) = t.entries.get_mut(key as usize) else { return };
            if matches!(e, Entry::Free) {
                return;
            }
            let e = std::mem::replace(e, Entry::Free);
            let note = e.storage().and_then(|s| s.with_notes(|n| take_note(n, self.address(), key)));
            t.free.push(key);
            (e, note)
        };
        drop(gone);
    }
    fn visit(&self, _f: &mut dyn FnMut(usize)) {}
}
