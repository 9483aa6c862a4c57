//! The mutation guard: values saved while it is open may be overwritten; a value is copied at the first write that would change it.
//!
//! A slot is (guard, key); the guard's table holds the saved tensor itself until a write to its bytes is announced, and a copy from then
//! on. Slots that save the same region of a storage at the same version share a key. The storage remembers whom to tell (`Watcher`), so
//! the route of the write does not matter: another view, `out=`, `.data`, an optimizer. What may be written from outside without notice
//! (memory lent to numpy) is copied at the save. Keys are reused only after the storage's note is gone. Invariant: nothing here runs a
//! kernel or drops a tensor while the table is locked.
use crate::array::Array;
use crate::error::{Result, bail};
use crate::kernels::pointwise;
use crate::storage::{Note, Storage, Watcher};
use crate::tape::saved::{Counted, Keeper, Wanted};
use crate::tape::{Held, Pack, Saving, Stow, Stowed, Tensor};
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// What the table holds for one key.
enum Entry {
    Free,
    /// The value, untouched so far: where its bytes are, how many slots share it.
    Original {
        held: Held,
        array: Array,
        slots: u32,
        _counted: Option<Counted>,
    },
    /// It was written; this is what it was.
    Cloned {
        copy: Array,
        slots: u32,
        _counted: Counted,
    },
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
}
pub struct Guard {
    me: Weak<Guard>,
    open: AtomicBool,
    table: Mutex<Table>,
}
/// What the guard holds, for its context object.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Holding {
    pub original: usize,
    pub cloned: usize,
    pub original_bytes: usize,
    pub cloned_bytes: usize,
}
/// Keys of one storage looked at for a region to share.
const RECENT: usize = 8;

impl Guard {
    pub fn new() -> Arc<Guard> {
        Arc::new_cyclic(|me| Guard { me: me.clone(), open: AtomicBool::new(true), table: Mutex::default() })
    }
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }
    fn watcher(&self) -> Weak<dyn Watcher> {
        self.me.clone()
    }
    /// Ends it, and empties the table; slots stay, and answer with an error.
    pub fn close(&self) {
        self.open.store(false, Release);
        self.forget(std::mem::take(&mut *self.table()).entries);
    }
    /// Empties the table. Slots stay, and answer with an error; their keys are not used again.
    pub fn clear(&self) {
        let entries = self.table().entries.iter_mut().map(|e| std::mem::replace(e, Entry::Free)).collect();
        self.forget(entries);
    }
    fn forget(&self, entries: Vec<Entry>) {
        let who = self.watcher();
        for (key, e) in entries.iter().enumerate() {
            if let Entry::Original { array, .. } = e {
                array.storage().unwatch(&who, key as u32);
            }
        }
        drop(entries);
    }
    pub fn holds(&self) -> Holding {
        let mut h = Holding::default();
        for e in &self.table().entries {
            match e {
                Entry::Free => {}
                Entry::Original { array, .. } => {
                    h.original += 1;
                    h.original_bytes += array.nbytes();
                }
                Entry::Cloned { copy, .. } => {
                    h.cloned += 1;
                    h.cloned_bytes += copy.nbytes();
                }
            }
        }
        h
    }
    /// A key whose entry is this very region, still untouched.
    fn shared(table: &mut Table, a: &Array) -> Option<u32> {
        let like = |b: &Array| b.shares(a) && b.geometry() == a.geometry() && b.dtype == a.dtype && b.version() == a.version();
        let n = table.entries.len();
        let at = (n.saturating_sub(RECENT)..n)
            .rev()
            .find(|&i| matches!(&table.entries[i], Entry::Original { array, slots, .. } if *slots > 0 && like(array)))?;
        if let Entry::Original { slots, .. } = &mut table.entries[at] {
            *slots += 1;
        }
        Some(at as u32)
    }
}
/// The guard as a policy of the thread. `outer`: the policy around it, to which values go if it runs the region again.
pub struct GuardPack {
    pub guard: Arc<Guard>,
    pub outer: Option<Arc<dyn Pack>>,
}
impl Pack for GuardPack {
    fn pack(self: Arc<Self>, s: &Saving<'_>) -> Result<Option<Stowed>> {
        if let Some(outer) = self.outer.as_ref().filter(|o| o.recomputes()) {
            return outer.clone().pack(&Saving { guarded: true, ..*s });
        }
        let guard = &self.guard;
        let array = s.array.clone();
        let by: Arc<dyn Stow> = guard.clone();
        if array.storage().is_lent() {
            // writes from outside are not announced: the copy is made now
            let copy = pointwise::cast_kept(&array, array.dtype)?;
            let _counted = Counted::new(copy.storage());
            let key = guard.table().add(Entry::Cloned { copy, slots: 1, _counted });
            return Ok(Some(Stowed { by, key, keeper: None }));
        }
        let (key, new) = {
            let mut t = guard.table();
            match Guard::shared(&mut t, &array) {
                Some(key) => (key, false),
                None => {
                    let entry = Entry::Original {
                        held: Held::of(&s.tensor()),
                        array: array.clone(),
                        slots: 1,
                        _counted: s.counts().then(|| Counted::new(array.storage())),
                    };
                    (t.add(entry), true)
                }
            }
        };
        if new {
            array.storage().watch(Note { who: guard.watcher(), key, span: array.byte_span() });
        }
        Ok(Some(Stowed { by, key, keeper: None }))
    }
    fn recomputes(&self) -> bool {
        self.outer.as_ref().is_some_and(|o| o.recomputes())
    }
    fn allows_writes(&self) -> bool {
        true
    }
}
impl Watcher for Guard {
    fn before_write(&self, _storage: &Arc<Storage>, key: u32, _span: (usize, usize)) -> Result<()> {
        let array = match self.table().entries.get(key as usize) {
            Some(Entry::Original { array, slots, .. }) if *slots > 0 => array.clone(),
            _ => return Ok(()),
        };
        let copy = pointwise::cast_kept(&array, array.dtype)?;
        let old = {
            let mut t = self.table();
            match t.entries.get_mut(key as usize) {
                Some(e @ Entry::Original { .. }) => {
                    let Entry::Original { slots, .. } = e else { return Ok(()) };
                    let slots = *slots;
                    let _counted = Counted::new(copy.storage());
                    Some(std::mem::replace(e, Entry::Cloned { copy, slots, _counted }))
                }
                _ => None,
            }
        };
        drop(old);
        Ok(())
    }
}
impl Stow for Guard {
    fn unpack(&self, key: u32, _keeper: Option<&Keeper>, want: &Wanted<'_>) -> Result<Tensor> {
        if !self.open.load(Acquire) {
            bail!(
                Assertion,
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in which the graph was originally recorded ({} needs a value of shape {:?} and dtype {}).",
                want.by,
                want.shape,
                want.dtype.name()
            );
        }
        match self.table().entries.get(key as usize) {
            Some(Entry::Original { held, .. }) => Ok(held.tensor().clone()),
            Some(Entry::Cloned { copy, .. }) => Ok(Tensor::new(copy.clone())),
            _ => bail!(
                Assertion,
                "{}: the 'allow_mutation_on_saved_tensors' context let go of a value of shape {:?} (its clear() was called)",
                want.by,
                want.shape
            ),
        }
    }
    fn release(&self, key: u32) {
        let (gone, note) = {
            let mut t = self.table();
            let Some(e) = t.entries.get_mut(key as usize) else { return };
            match e {
                Entry::Free => return,
                Entry::Original { slots, array, .. } => {
                    *slots -= 1;
                    if *slots > 0 {
                        return;
                    }
                    let array = array.clone();
                    (std::mem::replace(e, Entry::Free), Some(array))
                }
                Entry::Cloned { slots, .. } => {
                    *slots -= 1;
                    if *slots > 0 {
                        return;
                    }
                    (std::mem::replace(e, Entry::Free), None)
                }
            }
        };
        if let Some(a) = note {
            a.storage().unwatch(&self.watcher(), key);
        }
        drop(gone);
        // only now: a write announced meanwhile must not copy a stranger's value
        let mut t = self.table();
        if (key as usize) < t.entries.len() {
            t.free.push(key);
        }
    }
    fn visit(&self, _f: &mut dyn FnMut(usize)) {}
}
