//! A storage: the bytes under one or more arrays. It owns a block of ours or a foreign handle, the version counter its arrays share,
//! the count of saved slots that hold it, and the list of those who must be told before it is written (`Watcher`).
//!
//! Invariant: the bytes stay at one address for the storage's life. They are lent as typed slices by `array` alone, for the length of
//! one kernel call; callers are serialised (the tape runs attached to the interpreter, kernels call no Python).
#![allow(unsafe_code)]
use crate::alloc::{Block, Category, Place, count, count_storage};
use crate::array::Array;
use crate::error::Result;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Weak};

/// Memory that somebody else owns (a numpy array, a torch tensor, a mapped file) and keeps alive and in place until dropped.
///
/// # Safety
/// `ptr` must stay valid for reads (and writes, if `writable`) of `bytes` bytes, initialised, until the value is dropped.
pub unsafe trait Foreign: Send + Sync {
    fn ptr(&self) -> *mut u8;
    fn bytes(&self) -> usize;
    fn writable(&self) -> bool {
        true
    }
}
/// Must be told before bytes of a storage change: who holds values that the write would spoil.
pub trait Watcher: Send + Sync {
    /// Bytes of the storage are about to be written, some of them noted under `key`. Called without any lock held. `copies`: what others
    /// that are told of the same write copied.
    fn before_write(self: Arc<Self>, storage: &Arc<Storage>, key: u32, copies: &mut Copies) -> Result<()>;
}
/// A note on a storage: tell `who` if bytes `span` are written.
pub struct Note {
    pub who: Weak<dyn Watcher>,
    pub key: u32,
    pub span: (usize, usize),
}
impl Note {
    /// Is it that of the watcher at this address?
    pub fn is_by(&self, who: usize) -> bool {
        self.who.as_ptr().cast::<()>() as usize == who
    }
}
pub type Notes = SmallVec<[Note; 1]>;
/// The copies made for one write: one for each region, however many ask.
#[derive(Default)]
pub struct Copies(SmallVec<[(Array, Array); 1]>);
impl Copies {
    /// The copy of `a`, made by `copy` if there is none yet.
    pub fn of(&mut self, a: &Array, copy: impl FnOnce(&Array) -> Result<Array>) -> Result<Array> {
        if let Some((_, done)) = self.0.iter().find(|(of, _)| of.same_elements(a)) {
            return Ok(done.clone());
        }
        let done = copy(a)?;
        self.0.push((a.clone(), done.clone()));
        Ok(done)
    }
}
/// Takes the note of one watcher under one key off the list, to be dropped outside of the lock.
pub fn take_note(notes: &mut Notes, who: usize, key: u32) -> Option<Note> {
    // what was noted last is most often given up first
    let at = notes.iter().rposition(|n| n.key == key && n.is_by(who))?;
    Some(notes.remove(at))
}

enum Bytes {
    /// Taken out when the storage goes.
    Ours(ManuallyDrop<Block>),
    Theirs(Box<dyn Foreign>),
}
pub struct Storage {
    bytes: Bytes,
    /// What the user asked for; the block may hold more.
    size: usize,
    version: AtomicU64,
    /// Where the last write was recorded (see `tape`), 0 if nowhere.
    pub written_at: AtomicU64,
    /// Slots that hold it.
    saved: AtomicU32,
    /// Number of the epoch in which it was made (checkpoint frames begin epochs).
    pub born: u32,
    watched: AtomicBool,
    /// Others that may write the bytes without saying so (numpy arrays over them).
    loans: AtomicU32,
    notes: Mutex<Notes>,
}
impl Storage {
    #[inline]
    pub fn new(size: usize) -> Result<Arc<Storage>> {
        let (block, born) = Block::of_storage(size)?;
        Ok(Self::make(Bytes::Ours(ManuallyDrop::new(block)), size, born))
    }
    pub fn foreign(f: Box<dyn Foreign>, born: u32) -> Arc<Storage> {
        let size = f.bytes();
        count_storage(size as i64, 1);
        Self::make(Bytes::Theirs(f), size, born)
    }
    #[inline(always)]
    fn make(bytes: Bytes, size: usize, born: u32) -> Arc<Storage> {
        Place::new().fill(Storage {
            bytes,
            size,
            version: AtomicU64::new(0),
            written_at: AtomicU64::new(0),
            saved: AtomicU32::new(0),
            born,
            watched: AtomicBool::new(false),
            loans: AtomicU32::new(0),
            notes: Mutex::new(SmallVec::new_const()),
        })
    }
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        match &self.bytes {
            Bytes::Ours(b) => b.ptr().as_ptr(),
            Bytes::Theirs(f) => NonNull::new(f.ptr()).unwrap_or(NonNull::<u64>::dangling().cast()).as_ptr(),
        }
    }
    /// Size in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }
    pub fn is_foreign(&self) -> bool {
        matches!(self.bytes, Bytes::Theirs(_))
    }
    pub fn writable(&self) -> bool {
        match &self.bytes {
            Bytes::Ours(_) => true,
            Bytes::Theirs(f) => f.writable(),
        }
    }
    /// Somebody else may write the bytes from now on, without saying so. To be paid back by `repaid`.
    pub fn lend(&self) {
        self.loans.fetch_add(1, AcqRel);
    }
    pub fn repaid(&self) {
        self.loans.fetch_sub(1, AcqRel);
    }
    /// May bytes change that nobody here is told of?
    pub fn is_lent(&self) -> bool {
        self.loans.load(Acquire) != 0 || matches!(&self.bytes, Bytes::Theirs(f) if f.writable())
    }
    pub fn version(&self) -> &AtomicU64 {
        &self.version
    }
    /// A slot took hold of it; the first one counts its bytes as saved.
    #[inline]
    pub fn save(&self) {
        if self.saved.fetch_add(1, Relaxed) == 0 {
            count(Category::Saved, self.size as i64);
        }
    }
    /// A slot let go of it.
    #[inline]
    pub fn unsave(&self) {
        if self.saved.fetch_sub(1, Relaxed) == 1 {
            count(Category::Saved, -(self.size as i64));
        }
    }
    pub fn saved_by(&self) -> u32 {
        self.saved.load(Relaxed)
    }
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.watched.load(Acquire)
    }
    /// Works on the notes; `f` may only look, push, take.
    #[inline]
    pub fn with_notes<R>(&self, f: impl FnOnce(&mut Notes) -> R) -> R {
        let mut notes = self.notes.lock();
        let r = f(&mut notes);
        self.watched.store(!notes.is_empty(), Release);
        r
    }
    /// Puts down a note; the caller keeps its own record of what it watches.
    pub fn watch(&self, note: Note) {
        self.with_notes(|n| n.push(note));
    }
    /// Takes back the note of one watcher, known by its address, under one key.
    pub fn unwatch(&self, who: usize, key: u32) {
        drop(self.with_notes(|notes| take_note(notes, who, key)));
    }
    /// Tells every watcher whose span meets `span` that these bytes are about to change, and forgets its note.
    #[cold]
    pub fn tell(self: &Arc<Self>, span: (usize, usize)) -> Result<()> {
        let met: Notes = self.with_notes(|notes| {
            let (met, left) =
                std::mem::take(notes).into_iter().partition(|n| n.who.strong_count() == 0 || (n.span.0 < span.1 && span.0 < n.span.1));
            *notes = left;
            met
        });
        let mut copies = Copies::default();
        for n in &met {
            if let Some(who) = n.who.upgrade() {
                who.before_write(self, n.key, &mut copies)?;
            }
        }
        Ok(())
    }
}
impl Drop for Storage {
    #[inline]
    fn drop(&mut self) {
        match &mut self.bytes {
            // SAFETY: this is the end of the storage, nobody looks at the block again.
            Bytes::Ours(b) => unsafe { ManuallyDrop::take(b) }.retire(self.size),
            Bytes::Theirs(_) => count_storage(-(self.size as i64), -1),
        }
    }
}
