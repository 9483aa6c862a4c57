//! Checkpoint frames: what a region saves is forgotten, and computed again when backward needs it.
//!
//! A frame keeps a table of entries in save order; a slot is (frame, key). It owns no slot and no node, and not the function either: the
//! function and its arguments live in a keeper, of which every slot holds a reference; with the last slot they are gone. Values that a
//! recomputation finds belong to (frame, backward call) and go when that call ends. Rules, each with the failure it prevents: FRAMES 3.
//! Invariant: inside a lock the table is looked at, pushed to, taken from; nothing is called or dropped there, and `release` cannot panic.
use super::mutate::{Guard, GuardPack};
use crate::array::{self, Array};
use crate::dtype::DType;
use crate::error::{Error, Result, bail};
use crate::kernels::pointwise;
use crate::layout::Dims;
use crate::storage::Storage;
use crate::tape::mode::{self, Alone};
use crate::tape::record::Reads;
use crate::tape::saved::{Counted, Keeper, Origin, SlotName, Wanted, here};
use crate::tape::task::{self, Ends};
use crate::tape::{Line, Pack, Saving, Stow, Stowed, Tensor};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Arc, OnceLock, Weak};

/// What of a recomputed value is compared with the forward pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Check {
    Nothing,
    /// Op, slot, shape, dtype.
    Looks,
    /// These, and a hash of the bytes.
    Values,
}
/// Runs the region again; what it saves goes to the collector, which is the thread's policy at that time and wants to know the arguments.
pub type Run = dyn Fn(Option<&Keeper>, &Collector) -> Result<()> + Send + Sync;

/// One save of the region.
struct Entry {
    look: Look,
    hash: u64,
    alive: bool,
    line: Option<Line>,
}
#[derive(Clone, Copy, PartialEq, Debug)]
struct Look {
    op: &'static str,
    slot: SlotName,
    shape: Dims,
    dtype: DType,
}
impl Look {
    fn of(s: &Saving<'_>) -> Look {
        Look { op: s.op, slot: s.slot, shape: s.array.shape, dtype: s.array.dtype }
    }
    #[inline]
    fn is(&self, s: &Saving<'_>) -> bool {
        self.shape == s.array.shape && self.dtype == s.array.dtype && self.slot == s.slot && self.op == s.op
    }
    fn text(&self) -> String {
        format!("{} saved by {}, of shape {:?} and dtype {}", self.slot, self.op, self.shape, self.dtype.name())
    }
}
/// Something from outside that the region read: to be unchanged when it runs again.
struct Read {
    storage: Weak<Storage>,
    version: u64,
    op: &'static str,
    input: &'static str,
    shape: Dims,
    line: Option<Line>,
}
/// A value that a recomputation took down.
enum Value {
    /// An argument, or without its history, and with the version it had: a write to it in the region is the error that plain code would have raised.
    Plain { value: Tensor, version: u64, _counted: Option<Counted> },
    /// A mutation guard lets it be overwritten: one of the run's own holds it.
    Guarded(Arc<Stowed>),
}
/// What a run took down: values by key, in the order of saves.
type Values = SmallVec<[(u32, Value); 2]>;
/// What a backward call has of the region.
struct Call {
    task: Option<u64>,
    values: Values,
}
impl Call {
    /// Takes a value out; backward asks for the last ones first.
    fn take(&mut self, key: u32) -> Option<Value> {
        let at = self.values.iter().rposition(|(k, _)| *k == key)?;
        Some(self.values.remove(at).1)
    }
}
#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    alive: usize,
    reads: Vec<Read>,
    calls: SmallVec<[Call; 1]>,
    /// While the region is open.
    keeper: Option<Keeper>,
}
impl Table {
    /// Takes over what a run took down for a call; gives back what nobody wants any more: another thread may have let go of its slot.
    fn receive(&mut self, call: Option<u64>, mut values: Values) -> Values {
        let mut gone = Values::new();
        if values.iter().any(|(k, _)| !self.entries[*k as usize].alive) {
            (values, gone) = values.into_iter().partition(|(k, _)| self.entries[*k as usize].alive);
        }
        match self.call(call) {
            Some(c) if c.values.is_empty() => c.values = values,
            Some(c) => c.values.extend(values),
            None => gone.extend(values),
        }
        gone
    }
    /// Is the storage among those that the region read?
    fn knows(&self, s: &Arc<Storage>) -> bool {
        self.reads.iter().any(|r| std::ptr::eq(r.storage.as_ptr(), Arc::as_ptr(s)))
    }
    fn call(&mut self, task: Option<u64>) -> Option<&mut Call> {
        self.calls.iter_mut().find(|c| c.task == task)
    }
}
pub struct Frame {
    me: Weak<Frame>,
    run: Box<Run>,
    check: Check,
    early_stop: bool,
    debug: bool,
    /// A mutation guard lies around: values may be overwritten in the region.
    guarded: bool,
    epoch: u32,
    open: AtomicBool,
    /// Addresses of the leaves among the arguments, and of the storages of all of them: looked at while the region is open, and they live.
    leaves: Addresses,
    storages: Addresses,
    table: Mutex<Table>,
}
type Addresses = SmallVec<[usize; 2]>;
/// `, at file:line`, if the place is known.
fn at(l: &Option<Line>) -> String {
    l.as_ref().map_or(String::new(), |l| format!(", at {}", l.text()))
}
static EPOCH: AtomicU32 = AtomicU32::new(1);

impl Frame {
    /// `keeper` is what each slot will own.
    pub fn new(check: Check, early_stop: bool, debug: bool, run: Box<Run>, arguments: &[Tensor], keeper: Option<Keeper>) -> Arc<Frame> {
        let epoch = EPOCH.fetch_add(1, Relaxed);
        let (mut leaves, mut storages): (Addresses, Addresses) = Default::default();
        for t in arguments {
            if let Some(id) = t.leaf_id() {
                leaves.push(id);
            }
            storages.push(t.look(|a| Arc::as_ptr(a.storage()) as usize));
        }
        Arc::new_cyclic(|me| Frame {
            me: me.clone(),
            run,
            check,
            early_stop,
            debug,
            guarded: mode::writes_allowed(),
            epoch,
            open: AtomicBool::new(true),
            leaves,
            storages,
            table: Mutex::new(Table { keeper, ..Default::default() }),
        })
    }
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
    /// Slots that are alive, entries in all, recomputed values held: for tests.
    pub fn counts(&self) -> (usize, usize, usize) {
        let t = self.table();
        (t.alive, t.entries.len(), t.calls.iter().map(|c| c.values.len()).sum())
    }
    /// Is anything from outside changed since the region read it?
    fn check_reads(&self) -> Result<()> {
        let t = self.table();
        for r in &t.reads {
            if let Some(s) = r.storage.upgrade() {
                let now = s.version().load(Relaxed);
                if now != r.version {
                    bail!(
                        Checkpoint,
                        "checkpoint: a tensor of shape {:?} that the function read from outside (input '{}' of {}{}) was changed in place after the forward pass: it is at version {now}, expected version {}. Recomputing would give another value. Pass it as an argument, or write to it after backward",
                        r.shape,
                        r.input,
                        r.op,
                        at(&r.line),
                        r.version
                    );
                }
            }
        }
        Ok(())
    }
    /// Runs the region again for one backward call (None: somebody looks at a saved value). `only`: nothing but this entry is wanted.
    fn recompute(&self, keeper: Option<&Keeper>, call: Option<u64>, only: Option<u32>) -> Result<()> {
        // while the region is open, what it writes is its own
        if self.check != Check::Nothing && !self.open.load(Acquire) {
            self.check_reads()?;
        }
        let last = {
            let mut t = self.table();
            if t.call(call).is_none() {
                t.calls.push(Call { task: call, values: SmallVec::new() });
            }
            match only {
                Some(k) => k as usize + 1,
                None => t.entries.iter().rposition(|e| e.alive).map_or(0, |i| i + 1),
            }
        };
        let stop = self.early_stop || only.is_some() || self.open.load(Acquire);
        let collector = Arc::new(Collector {
            frame: self.me.upgrade().expect("a frame that is asked is alive"),
            only,
            last,
            stop,
            guard: OnceLock::new(),
            ends: AtomicBool::new(stop && last <= 1),
            state: Mutex::default(),
        });
        let result = {
            let _alone = Alone::with(collector.clone());
            (self.run)(keeper, &collector)
        };
        let (at, stopped, wrong, values) = {
            let mut p = collector.state();
            (p.at, p.stopped, p.wrong.take(), std::mem::take(&mut p.values))
        };
        let unused = self.table().receive(call, values);
        drop(unused);
        let mismatch = |text: String| -> Result<()> {
            let log = std::mem::take(&mut collector.state().log);
            Err(Box::new(Error::Checkpoint(self.explain(text, &log))))
        };
        if let Some(wrong) = wrong {
            return mismatch(wrong);
        }
        match result {
            Err(e) if !stopped || e.is_interrupt() => return Err(e),
            _ => {}
        }
        if stopped || self.check == Check::Nothing {
            return Ok(());
        }
        let n = self.table().entries.len();
        if at != n && only.is_none() {
            return mismatch(format!(
                "checkpoint: A different number of tensors was saved during the original forward and recomputation.\nNumber of tensors saved during forward: {n}\nNumber of tensors saved during recomputation: {at}."
            ));
        }
        Ok(())
    }
    /// A mismatch, with the operations of both runs if they were asked for.
    fn explain(&self, mut text: String, log: &[(Look, Option<Line>)]) -> String {
        if !self.debug {
            text.push_str("\nPass debug=True to checkpoint() (or use set_checkpoint_debug_enabled(True)) to see the operations of both runs and where they were called.");
            return text;
        }
        let line = |l: &Option<Line>| at(l).replacen(',', " ", 1);
        text.push_str("\nSaved during the forward pass:");
        for e in &self.table().entries {
            let _ = write!(text, "\n  {}{}", e.look.text(), line(&e.line));
        }
        text.push_str("\nSaved during the recomputation:");
        for (look, l) in log {
            let _ = write!(text, "\n  {}{}", look.text(), line(l));
        }
        text
    }
    fn take(&self, call: Option<u64>, key: u32) -> Option<Value> {
        self.table().call(call)?.take(key)
    }
    fn line(&self) -> Option<Line> {
        if self.debug { here() } else { None }
    }
    fn forget(&self, call: Option<u64>) {
        let gone = {
            let mut t = self.table();
            t.calls.iter().position(|c| c.task == call).map(|i| t.calls.swap_remove(i))
        };
        drop(gone);
    }
}
impl Ends for Frame {
    fn ended(&self, task: u64) {
        self.forget(Some(task));
    }
}
impl Stow for Frame {
    fn unpack(&self, key: u32, keeper: Option<&Keeper>, want: &Wanted<'_>) -> Result<Tensor> {
        let call = task::sharing();
        // nothing yet: all that lives; already taken once in this call: this value alone
        let (value, first) = match self.table().call(call) {
            Some(c) => (c.take(key), false),
            None => (None, true),
        };
        let value = match value {
            Some(v) => v,
            None => {
                if first && call.is_some() {
                    task::at_end(self.me.clone());
                }
                let result = self.recompute(keeper, call, (call.is_none() || !first).then_some(key));
                let value = self.take(call, key);
                if call.is_none() {
                    self.forget(None);
                }
                result?;
                match value {
                    Some(v) => v,
                    None => bail!(
                        Checkpoint,
                        "checkpoint: A different number of tensors was saved during the original forward and recomputation: the value of shape {:?} that {} needs did not come up again, or its graph was freed by another thread (backward through it a second time)",
                        want.shape,
                        want.by
                    ),
                }
            }
        };
        let (value, version) = match value {
            Value::Plain { value, version, _counted } => (value, version),
            Value::Guarded(stowed) => return stowed.by.unpack(stowed.key, None, want),
        };
        let found = value.version();
        if found != version {
            let (slot, saved_at) = {
                let t = self.table();
                let e = t.entries.get(key as usize);
                (e.map_or(String::new(), |e| e.look.slot.to_string()), e.and_then(|e| e.line.as_ref().map(Line::text)))
            };
            return Err(Box::new(Error::Modified {
                node: format!("{} in a checkpointed region", want.by),
                slot,
                made_by: None,
                shape: value.shape().to_vec(),
                found,
                expected: version,
                saved_at,
                written_at: crate::tape::record::last_write(&value.array()),
            }));
        }
        Ok(value)
    }
    fn release(&self, key: u32) {
        let gone = {
            let mut t = self.table();
            let Some(e) = t.entries.get_mut(key as usize).filter(|e| e.alive) else { return };
            e.alive = false;
            let line = e.line.take();
            t.alive -= 1;
            let mut values: SmallVec<[Value; 1]> = SmallVec::new();
            for c in &mut t.calls {
                if let Some(v) = c.take(key) {
                    values.push(v);
                }
            }
            let reads = if t.alive == 0 { std::mem::take(&mut t.reads) } else { Vec::new() };
            (line, values, reads)
        };
        drop(gone);
    }
}

/// A captured leaf is kept, not forgotten: there are no bytes to win, and its version is checked. The same rule holds in both runs, and for
/// aliases of a leaf, which unpacking and parking make: known by the leaf.
fn stays(s: &Saving<'_>, arguments: &[usize]) -> bool {
    s.leaf_id().is_some_and(|id| !arguments.contains(&id))
}
/// The policy of the region's first run.
impl Pack for Frame {
    fn pack(&self, s: &Saving<'_>) -> Result<Option<Arc<Stowed>>> {
        if stays(s, &self.leaves) {
            return Ok(None);
        }
        let hash = if self.check == Check::Values { hash(s.array)? } else { 0 };
        let entry = Entry { look: Look::of(s), hash, alive: true, line: self.line() };
        let (key, keeper) = {
            let mut t = self.table();
            if t.entries.capacity() == 0 {
                t.entries.reserve_exact(2);
            }
            t.entries.push(entry);
            t.alive += 1;
            (t.entries.len() as u32 - 1, t.keeper.clone())
        };
        let by = self.me.upgrade().expect("a frame that packs is alive");
        Ok(Some(Stowed::new(by, key, keeper)))
    }
    fn quiet(&self) -> bool {
        true
    }
    fn recomputes(&self) -> bool {
        true
    }
    fn allows_writes(&self) -> bool {
        self.guarded
    }
}
impl Reads for Frame {
    fn wants(&self, a: &Array) -> bool {
        let s = a.storage();
        // what is passed is checked where it is parked, not here
        s.born < self.epoch && !self.storages.contains(&(Arc::as_ptr(s) as usize)) && !self.table().knows(s)
    }
    fn read(&self, op: &'static str, input: &'static str, a: &Array) {
        let s = a.storage();
        // to look at the running line may run user code
        let line = here();
        let mut t = self.table();
        if !t.knows(s) {
            if t.reads.capacity() == 0 {
                t.reads.reserve_exact(2);
            }
            t.reads.push(Read { storage: Arc::downgrade(s), version: s.version().load(Relaxed), op, input, shape: a.shape, line });
        }
    }
}
/// The first run of a region, from its start to its end: policy, read notes and epoch are put back on every way out.
pub struct Opened {
    frame: Arc<Frame>,
    epoch: u32,
}
impl Opened {
    pub fn start(frame: Arc<Frame>) -> Opened {
        let epoch = array::epoch();
        array::set_epoch(frame.epoch);
        mode::push_pack(frame.clone());
        mode::push_reads(frame.clone());
        Opened { frame, epoch }
    }
}
impl Drop for Opened {
    fn drop(&mut self) {
        let f = &self.frame;
        drop(mode::pop_reads());
        drop(mode::pop_pack());
        array::set_epoch(self.epoch);
        f.open.store(false, Release);
        // the region's own writes are its own
        let gone = {
            let mut t = f.table();
            let keeper = t.keeper.take();
            if t.alive == 0 {
                (keeper, std::mem::take(&mut t.reads))
            } else {
                let mut gone = Vec::new();
                let mut i = 0;
                while let Some(r) = t.reads.get_mut(i) {
                    match r.storage.upgrade() {
                        Some(s) => {
                            r.version = s.version().load(Relaxed);
                            i += 1;
                        }
                        None => gone.push(t.reads.swap_remove(i)),
                    }
                }
                (keeper, gone)
            }
        };
        drop(gone);
    }
}

#[derive(Default)]
struct Progress {
    at: usize,
    stopped: bool,
    wrong: Option<String>,
    log: Vec<(Look, Option<Line>)>,
    values: Values,
    /// Addresses of the arguments, and of the leaves among them.
    arguments: Addresses,
    leaves: Addresses,
}
/// The policy of a recomputation: takes values down by position, keeps the slots as usual, stops at the last one needed.
pub struct Collector {
    frame: Arc<Frame>,
    only: Option<u32>,
    last: usize,
    stop: bool,
    /// For values that may be overwritten; its entries live as long as their slots.
    guard: OnceLock<Arc<Guard>>,
    /// The next value that it takes down is the last one needed.
    ends: AtomicBool,
    state: Mutex<Progress>,
}
impl Collector {
    /// The value in the hands of the run's own guard, without its history: a guard that is never closed must not own the graph.
    fn guard_if(&self, guarded: bool, s: &Saving<'_>) -> Result<Option<Arc<Stowed>>> {
        if !guarded {
            return Ok(None);
        }
        let guard = self.guard.get_or_init(Guard::new).clone();
        GuardPack { guard, outer: None }.pack(&Saving { origin: Origin::Output(0), ..*s })
    }
    /// The arguments of the run that is starting, alive for as long as it lasts.
    pub fn set_arguments<'a>(&self, arguments: impl Iterator<Item = &'a Tensor>) {
        let mut p = self.state();
        for t in arguments {
            p.arguments.push(t.id());
            if let Some(id) = t.leaf_id() {
                p.leaves.push(id);
            }
        }
    }
    /// Is the value what was saved at this place?
    fn compare(&self, nr: usize, s: &Saving<'_>) -> Result<()> {
        let (expected, hash_then) = match self.frame.table().entries.get(nr) {
            Some(e) if self.frame.check != Check::Nothing => (e.look, e.hash),
            _ => return Ok(()),
        };
        let now = Look::of(s);
        if (now.shape, now.dtype) != (expected.shape, expected.dtype) {
            return Err(self.fail(format!(
                "checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass.\ntensor at position {nr}:\nsaved metadata: {}, shape {:?}, dtype {}\nrecomputed metadata: {}, shape {:?}, dtype {}{}",
                expected.op, expected.shape, expected.dtype.name(), now.op, now.shape, now.dtype.name(), at(&here())
            )));
        }
        if now != expected {
            return Err(self.fail(format!(
                "checkpoint: the recomputation ran other operations than the forward pass: at position {nr} it saved {}{}, but the forward pass saved {}",
                now.text(),
                at(&here()),
                expected.text()
            )));
        }
        if self.frame.check == Check::Values && hash(s.array)? != hash_then {
            return Err(self.fail(format!(
                "checkpoint: the recomputation gave other values than the forward pass, first at position {nr}: {}{}. Something it depends on changed in between, or it is random without preserve_rng_state",
                now.text(),
                at(&here())
            )));
        }
        Ok(())
    }
    fn state(&self) -> MutexGuard<'_, Progress> {
        self.state.lock()
    }
    fn fail(&self, text: String) -> Box<Error> {
        let mut p = self.state();
        p.wrong.get_or_insert(text);
        p.stopped = true;
        Box::new(Error::Stop)
    }
}
impl Pack for Collector {
    fn recomputes(&self) -> bool {
        true
    }
    fn allows_writes(&self) -> bool {
        self.frame.guarded
    }
    fn quiet(&self) -> bool {
        true
    }
    fn ends(&self) -> bool {
        self.ends.load(Relaxed)
    }
    fn pack(&self, s: &Saving<'_>) -> Result<Option<Arc<Stowed>>> {
        let f = &self.frame;
        let line = f.line();
        let mut p = self.state();
        if stays(s, &p.leaves) {
            return Ok(None);
        }
        if p.stopped {
            return Err(Box::new(Error::Stop)); // user code caught the first one
        }
        if f.debug {
            p.log.push((Look::of(s), line));
        }
        let nr = p.at;
        p.at += 1;
        let (alive, like) = match f.table().entries.get(nr) {
            Some(e) => (e.alive, f.check == Check::Nothing || e.look.is(s)),
            // beyond what was recorded: counted at the end (a frame that is still open may grow)
            None => return Ok(None),
        };
        let wanted = alive && self.only.is_none_or(|k| k as usize == nr);
        let stop = self.stop && nr + 1 >= self.last;
        let guarded = f.guarded || s.guarded;
        if !like || f.check == Check::Values || (wanted && guarded) {
            drop(p);
            self.compare(nr, s)?;
            let value = if wanted { self.guard_if(guarded, s)?.map(Value::Guarded) } else { None };
            p = self.state();
            if let Some(v) = value {
                p.values.push((nr as u32, v));
            }
        }
        if wanted && !guarded {
            let _counted = s.counts().then(|| Counted::new(s.array.storage()));
            let value = match s.origin {
                // what was passed lives anyway, with its history
                Origin::Input(t) if p.arguments.contains(&t.id()) => t.clone(),
                _ => Tensor::new(s.array.clone()),
            };
            p.values.push((nr as u32, Value::Plain { value, version: s.array.version(), _counted }));
        }
        p.stopped = stop;
        self.ends.store(self.stop && nr + 2 >= self.last, Relaxed);
        drop(p);
        if stop {
            return Err(Box::new(Error::Stop));
        }
        // the region may differentiate inside: its own slots are under the same guard
        self.guard_if(guarded, s)
    }
}
/// A hash of the elements in row-major order, at memory speed: eight lanes of multiply and rotate.
pub fn hash(a: &Array) -> Result<u64> {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let a = pointwise::contiguous(a)?;
    let at = a.offset * a.dtype.size();
    let bytes = &a.storage_bytes()[at..at + a.nbytes()];
    let mut lanes = [K; 8];
    let (blocks, rest) = bytes.as_chunks::<64>();
    for b in blocks {
        for (lane, word) in lanes.iter_mut().zip(b.as_chunks::<8>().0) {
            *lane = (lane.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(K);
        }
    }
    let mut h = bytes.len() as u64;
    for lane in lanes {
        h = (h.rotate_left(29) ^ lane).wrapping_mul(K);
    }
    for &b in rest {
        h = (h.rotate_left(5) ^ b as u64).wrapping_mul(K);
    }
    Ok(h ^ (h >> 32))
}
