//! The allocator of tensor blocks: size classes, recycling, accounts per category.
//!
//! Invariants. A block is 64-byte aligned and zeroed when it first leaves the system, and is initialised for ever after: recycled bytes
//! are old bytes, so any read of a block is a read of initialised memory. A block has one owner: a `Block` or one free list.
//! Small blocks are kept per thread, large ones in one list for all; what lies idle is bounded (`IDLE_FLOOR`): where a freed block does not
//! fit, those idle longest go back to the system, since the newest is the likeliest to be asked for again. `trim` gives all of them back.
//! Accounts are kept per thread and added up when asked: nothing global is written on the way of a small operation.
#![allow(unsafe_code)]
use crate::dtype::Element;
use crate::error::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const ALIGN: usize = 64;
/// Classes up to here live in per-thread lists.
const SMALL: usize = 64 << 10;
/// Blocks from here on come straight from the system's page mapper.
const MAPPED: usize = 1 << 20;
/// Blocks from here on ask for huge pages: page faults cost more than arithmetic.
const HUGE: usize = 32 << 20;
/// Idle large blocks are kept up to this many bytes, or up to as many as are live, whichever is more.
const IDLE_FLOOR: usize = 256 << 20;
/// Idle small blocks are kept up to so many of a class, or up to so many bytes of them: a graph of small values, once it is gone, leaves
/// what the next one needs.
const KEEP_PER_CLASS: usize = 64;
const KEEP_BYTES: usize = 256 << 10;
/// Four classes per doubling: at most a quarter of a block is waste.
const CLASSES: usize = 4 * 48;

/// The size class that holds `bytes`, and the size of its blocks.
#[inline]
fn class_of(bytes: usize) -> (usize, usize) {
    let n = bytes.max(ALIGN).next_multiple_of(ALIGN);
    if n <= 4 * ALIGN {
        return (n / ALIGN - 1, n);
    }
    let top = usize::BITS as usize - 1 - (n - 1).leading_zeros() as usize; // 2^top < n <= 2^(top+1)
    let step = 1usize << (top - 2);
    let size = n.next_multiple_of(step);
    let quarter = (size - (1 << top)) / step; // 1..=4
    (4 + (top - 8) * 4 + quarter - 1, size)
}

/// What the bytes are for; each is counted on its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Category {
    /// Every storage that is alive.
    Tensor = 0,
    /// Storages that at least one saved slot of a graph holds (leaves that require grad not counted).
    Saved = 1,
    /// Number of storages alive.
    Storages = 2,
}
const CATEGORIES: usize = 3;

struct Global {
    live: [AtomicI64; CATEGORIES],
    peak: [AtomicI64; CATEGORIES],
    allocations: AtomicI64,
    recycled: AtomicI64,
}
static GLOBAL: Global = Global {
    live: [const { AtomicI64::new(0) }; CATEGORIES],
    peak: [const { AtomicI64::new(0) }; CATEGORIES],
    allocations: AtomicI64::new(0),
    recycled: AtomicI64::new(0),
};
/// One thread's part of the accounts since its last flush: the change, and the highest it stood.
struct Account {
    delta: [Cell<i64>; CATEGORIES],
    high: [Cell<i64>; CATEGORIES],
    free: RefCell<[Vec<NonNull<u8>>; SMALL_CLASSES]>,
    /// Stamped on storages (see `epoch`); it stands here so that a storage is made in one look at the thread.
    epoch: Cell<u32>,
}
const SMALL_CLASSES: usize = 4 + (16 - 8) * 4;
/// A thread's change goes into the global account when it reaches this many bytes.
const FLUSH: i64 = 1 << 20;

impl Account {
    #[inline]
    fn add(&self, c: Category, bytes: i64) {
        let (d, h) = (&self.delta[c as usize], &self.high[c as usize]);
        let now = d.get() + bytes;
        d.set(now);
        if now > h.get() {
            h.set(now);
        }
        if now.abs() >= FLUSH {
            self.flush(c as usize);
        }
    }
    /// A storage of so many bytes came (1) or went (-1, bytes negative).
    #[inline]
    fn storage(&self, bytes: i64, n: i64) {
        self.add(Category::Tensor, bytes);
        let d = &self.delta[Category::Storages as usize];
        d.set(d.get() + n);
    }
    /// Passes a category on; the number of storages, of which nobody asks the peak, goes with their bytes.
    fn flush(&self, c: usize) {
        if c == Category::Tensor as usize {
            self.flush(Category::Storages as usize);
        }
        let before = GLOBAL.live[c].fetch_add(self.delta[c].get(), Relaxed);
        GLOBAL.peak[c].fetch_max(before + self.high[c].get(), Relaxed);
        self.delta[c].set(0);
        self.high[c].set(0);
    }
}
impl Drop for Account {
    fn drop(&mut self) {
        (0..CATEGORIES).for_each(|c| self.flush(c));
        for (class, list) in self.free.get_mut().iter_mut().enumerate() {
            for ptr in list.drain(..) {
                // SAFETY: the list owned the block, which came from `alloc_zeroed` with this layout.
                unsafe { dealloc(ptr.as_ptr(), layout_of(size_of_class(class))) }
            }
        }
    }
}
thread_local! {
    static ACCOUNT: Account = const { Account {
        delta: [const { Cell::new(0) }; CATEGORIES], high: [const { Cell::new(0) }; CATEGORIES], free: RefCell::new([const { Vec::new() }; SMALL_CLASSES]),
        epoch: const { Cell::new(0) },
    } };
}
/// Counts bytes (or storages) of a category; negative when they go.
#[inline]
pub fn count(c: Category, bytes: i64) {
    if ACCOUNT.try_with(|a| a.add(c, bytes)).is_err() {
        let now = GLOBAL.live[c as usize].fetch_add(bytes, Relaxed) + bytes;
        GLOBAL.peak[c as usize].fetch_max(now, Relaxed);
    }
}

/// The epoch stamped on storages made from now on by this thread (checkpoint frames begin epochs).
pub fn epoch() -> u32 {
    ACCOUNT.try_with(|a| a.epoch.get()).unwrap_or(0)
}
pub fn set_epoch(e: u32) {
    let _ = ACCOUNT.try_with(|a| a.epoch.set(e));
}
/// Counts a storage that came (`n` 1) or went (-1, its bytes negative).
#[inline]
pub fn count_storage(bytes: i64, n: i64) {
    if ACCOUNT.try_with(|a| a.storage(bytes, n)).is_err() {
        count(Category::Tensor, bytes);
        count(Category::Storages, n);
    }
}

/// May one more small block lie idle, besides `n` of its class?
#[inline(always)]
fn has_room(class: usize, n: usize) -> bool {
    n < KEEP_PER_CLASS || n * size_of_class(class) < KEEP_BYTES
}
fn size_of_class(class: usize) -> usize {
    if class < 4 {
        return (class + 1) * ALIGN;
    }
    let (top, quarter) = ((class - 4) / 4 + 8, (class - 4) % 4 + 1);
    (1 << top) + quarter * (1 << (top - 2))
}
fn layout_of(size: usize) -> Layout {
    Layout::from_size_align(size, ALIGN).expect("a block size fits an address")
}

/// Idle large blocks, by class, each class in the order in which they were freed. `Send`: a free block has no other owner.
struct Large {
    lists: Vec<VecDeque<Idle>>,
    bytes: usize,
    /// Blocks freed so far: tells which of two is idle longer.
    clock: u64,
}
struct Idle {
    ptr: NonNull<u8>,
    since: u64,
}
// SAFETY: a free block is reachable through this list alone, which hands each pointer to one taker.
unsafe impl Send for Large {}
static LARGE: Mutex<Large> = Mutex::new(Large::new());

impl Large {
    const fn new() -> Large {
        Large { lists: Vec::new(), bytes: 0, clock: 0 }
    }
    fn lock() -> MutexGuard<'static, Large> {
        LARGE.lock()
    }
    /// The block of a class that was freed last.
    fn take(&mut self, class: usize) -> Option<NonNull<u8>> {
        let idle = self.lists.get_mut(class)?.pop_back()?;
        self.bytes -= size_of_class(class);
        Some(idle.ptr)
    }
    /// Keeps a freed block as long as it fits in `most` bytes by itself. What has to go for that: the blocks idle longest, this one else.
    fn keep(&mut self, class: usize, ptr: NonNull<u8>, most: usize) -> Vec<(NonNull<u8>, usize)> {
        let size = size_of_class(class);
        if size > most {
            return vec![(ptr, size)];
        }
        if self.lists.is_empty() {
            self.lists.resize_with(CLASSES, VecDeque::new);
        }
        let mut gone = Vec::new();
        while self.bytes + size > most {
            let first = |(class, list): (usize, &VecDeque<Idle>)| list.front().map(|idle| (idle.since, class));
            let Some((_, oldest)) = self.lists.iter().enumerate().filter_map(first).min() else { break };
            gone.extend(self.lists[oldest].pop_front().map(|idle| (idle.ptr, size_of_class(oldest))));
            self.bytes -= size_of_class(oldest);
        }
        self.lists[class].push_back(Idle { ptr, since: self.clock });
        self.bytes += size;
        self.clock += 1;
        gone
    }
}

/// One block of memory, owned. `Send` and `Sync`: it is plain memory; who may touch it is `storage`'s affair.
pub struct Block {
    ptr: NonNull<u8>,
    class: u32,
}
// SAFETY: the block owns plain memory and gives out nothing but its address.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// A block of at least `bytes` bytes, recycled if there is one. Its content is unspecified but initialised.
    #[inline]
    pub fn new(bytes: usize) -> Result<Block> {
        Ok(Self::made(bytes, false)?.0)
    }
    /// As `new`, for a storage of that many bytes: it is counted, and the thread's epoch is told, in the same look at the thread's account.
    /// To be given back by `retire`.
    #[inline]
    pub fn of_storage(bytes: usize) -> Result<(Block, u32)> {
        Self::made(bytes, true)
    }
    #[inline(always)]
    fn made(bytes: usize, counted: bool) -> Result<(Block, u32)> {
        if bytes > isize::MAX as usize / 2 {
            return Err(Box::new(Error::Memory { bytes: bytes as u128 }));
        }
        let (class, size) = class_of(bytes);
        if class < SMALL_CLASSES
            && let Ok(Some((ptr, epoch))) = ACCOUNT.try_with(|a| {
                let ptr = a.free.borrow_mut()[class].pop()?;
                if counted {
                    a.storage(bytes as i64, 1);
                }
                Some((ptr, a.epoch.get()))
            })
        {
            return Ok((Block { ptr, class: class as u32 }, epoch));
        }
        Self::made_slowly(bytes, class, size, counted)
    }
    #[cold]
    fn made_slowly(bytes: usize, class: usize, size: usize, counted: bool) -> Result<(Block, u32)> {
        let block = Self::slow(class, size)?;
        if counted {
            count_storage(bytes as i64, 1);
        }
        Ok((block, epoch()))
    }
    /// The end of a block made by `of_storage`, for as many bytes: uncounted and put back in the same look at the thread's account.
    #[inline]
    pub fn retire(self, bytes: usize) {
        let (class, ptr) = (self.class as usize, self.ptr);
        if class < SMALL_CLASSES
            && let Ok(true) = ACCOUNT.try_with(|a| {
                let list = &mut a.free.borrow_mut()[class];
                let room = has_room(class, list.len());
                if room {
                    list.push(ptr);
                    a.storage(-(bytes as i64), -1);
                }
                room
            })
        {
            return std::mem::forget(self); // the list owns it
        }
        count_storage(-(bytes as i64), -1);
    }
    #[cold]
    fn slow(class: usize, size: usize) -> Result<Block> {
        if size > SMALL
            && let Some(ptr) = Large::lock().take(class)
        {
            GLOBAL.recycled.fetch_add(1, Relaxed);
            return Ok(Block { ptr, class: class as u32 });
        }
        GLOBAL.allocations.fetch_add(1, Relaxed);
        let ptr = system(size).or_else(|| {
            trim();
            system(size)
        });
        ptr.map(|ptr| Block { ptr, class: class as u32 }).ok_or_else(|| Box::new(Error::Memory { bytes: size as u128 }))
    }
    #[inline]
    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }
    #[inline]
    pub fn capacity(&self) -> usize {
        size_of_class(self.class as usize)
    }
}
impl Drop for Block {
    #[inline]
    fn drop(&mut self) {
        let (class, ptr) = (self.class as usize, self.ptr);
        if class < SMALL_CLASSES {
            let kept = ACCOUNT.try_with(|a| {
                let list = &mut a.free.borrow_mut()[class];
                let room = has_room(class, list.len());
                if room {
                    list.push(ptr);
                }
                room
            });
            if kept != Ok(true) {
                give_back(ptr, size_of_class(class));
            }
            return;
        }
        let live = GLOBAL.live[Category::Tensor as usize].load(Relaxed).max(0) as usize;
        let gone = Large::lock().keep(class, ptr, IDLE_FLOOR.max(live));
        gone.into_iter().for_each(|(ptr, size)| give_back(ptr, size)); // the lock is let go of
    }
}
/// Scratch for one kernel call: recycled like any block, counted nowhere. Its content is unspecified but initialised.
pub struct Scratch<T> {
    block: Block,
    len: usize,
    of: PhantomData<T>,
}
impl<T: Element> Scratch<T> {
    #[inline]
    pub fn new(len: usize) -> Result<Scratch<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        Ok(Scratch { block: Block::new(bytes)?, len, of: PhantomData })
    }
}
impl<T: Element> std::ops::Deref for Scratch<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: the block holds `len` elements, is aligned to 64, initialised, and owned; any bits are a valid element.
        unsafe { std::slice::from_raw_parts(self.block.ptr.cast().as_ptr(), self.len) }
    }
}
impl<T: Element> std::ops::DerefMut for Scratch<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes the borrow exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.block.ptr.cast().as_ptr(), self.len) }
    }
}
/// The place of a shared value, to be had before the value is: `Arc::new` makes the value on the stack first, and a large one is then
/// moved by a call.
pub struct Place<T>(Arc<MaybeUninit<T>>);
impl<T> Place<T> {
    #[inline(always)]
    #[expect(clippy::new_without_default, reason = "a place is for one value, which follows")]
    pub fn new() -> Place<T> {
        Place(Arc::new_uninit())
    }
    #[inline(always)]
    pub fn own(self, value: T) -> Own<T> {
        Own(self.fill(value))
    }
    #[inline(always)]
    pub fn fill(self, value: T) -> Arc<T> {
        // SAFETY: nobody else has it yet; it is initialised before it is given out.
        unsafe {
            Arc::as_ptr(&self.0).cast_mut().write(MaybeUninit::new(value));
            self.0.assume_init()
        }
    }
}
/// A shared value that nobody else has yet, to be completed in its place.
pub struct Own<T>(Arc<T>);
impl<T> Own<T> {
    #[inline(always)]
    pub fn share(self) -> Arc<T> {
        self.0
    }
}
impl<T> std::ops::Deref for Own<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
impl<T> std::ops::DerefMut for Own<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `Place::own` made the only handle, which leaves here by `share` alone; `&mut self` makes the borrow exclusive.
        unsafe { &mut *Arc::as_ptr(&self.0).cast_mut() }
    }
}
fn system(size: usize) -> Option<NonNull<u8>> {
    if size < MAPPED {
        // SAFETY: the size is not zero.
        return NonNull::new(unsafe { alloc_zeroed(layout_of(size)) });
    }
    // SAFETY: an anonymous private mapping of our own choosing; the kernel zeroes it.
    let p =
        unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON, -1, 0) };
    if p == libc::MAP_FAILED {
        return None;
    }
    #[cfg(target_os = "linux")]
    if size >= HUGE {
        // SAFETY: advice about the mapping just made.
        unsafe { libc::madvise(p, size, libc::MADV_HUGEPAGE) };
    }
    NonNull::new(p.cast())
}
fn give_back(ptr: NonNull<u8>, size: usize) {
    // SAFETY: the caller owned the block, which `system` made with this size.
    unsafe {
        if size < MAPPED {
            dealloc(ptr.as_ptr(), layout_of(size));
        } else {
            libc::munmap(ptr.as_ptr().cast(), size);
        }
    }
}
/// Returns every idle large block, and this thread's small ones, to the system. Returns the bytes given back.
pub fn trim() -> usize {
    let large = std::mem::replace(&mut *Large::lock(), Large::new());
    let mut bytes = large.bytes;
    for (class, list) in large.lists.into_iter().enumerate() {
        list.into_iter().for_each(|idle| give_back(idle.ptr, size_of_class(class)));
    }
    let small = ACCOUNT.try_with(|a| std::mem::replace(&mut *a.free.borrow_mut(), [const { Vec::new() }; SMALL_CLASSES]));
    for (class, list) in small.into_iter().flatten().enumerate() {
        for ptr in list {
            bytes += size_of_class(class);
            give_back(ptr, size_of_class(class));
        }
    }
    bytes
}

/// The allocator of everything that is no block: nodes, tensors and lists, which are many and small. (The crate `mimalloc` always
/// takes the way for any alignment, which is longer than the plain one.)
#[cfg(feature = "python")]
pub struct SmallObjects;
#[cfg(feature = "python")]
mod small_objects {
    use super::SmallObjects;
    use libmimalloc_sys::{mi_free, mi_malloc, mi_malloc_aligned, mi_realloc, mi_realloc_aligned, mi_zalloc, mi_zalloc_aligned};
    use std::alloc::{GlobalAlloc, Layout};

    /// What `mi_malloc` aligns to: 16 bytes, or the size of smaller objects.
    #[inline]
    fn plain(size: usize, align: usize) -> bool {
        align <= 16 && align <= size
    }
    // SAFETY: mimalloc's functions keep malloc's promises, and the plain ones align as `plain` says.
    unsafe impl GlobalAlloc for SmallObjects {
        #[inline]
        unsafe fn alloc(&self, l: Layout) -> *mut u8 {
            // SAFETY: any size and power of two will do.
            unsafe { if plain(l.size(), l.align()) { mi_malloc(l.size()) } else { mi_malloc_aligned(l.size(), l.align()) } }.cast()
        }
        #[inline]
        unsafe fn alloc_zeroed(&self, l: Layout) -> *mut u8 {
            // SAFETY: as above.
            unsafe { if plain(l.size(), l.align()) { mi_zalloc(l.size()) } else { mi_zalloc_aligned(l.size(), l.align()) } }.cast()
        }
        #[inline]
        unsafe fn dealloc(&self, p: *mut u8, _: Layout) {
            // SAFETY: the caller's word that `p` came from here.
            unsafe { mi_free(p.cast()) }
        }
        #[inline]
        unsafe fn realloc(&self, p: *mut u8, l: Layout, size: usize) -> *mut u8 {
            // SAFETY: as above.
            unsafe { if plain(size, l.align()) { mi_realloc(p.cast(), size) } else { mi_realloc_aligned(p.cast(), size, l.align()) } }
                .cast()
        }
    }
}

/// What the accounts say. Exact for work of one thread; another thread's last `FLUSH` bytes may be missing until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    pub live: i64,
    pub peak: i64,
    pub saved: i64,
    pub saved_peak: i64,
    pub storages: i64,
    pub idle: usize,
    pub allocations: i64,
    pub recycled: i64,
}
pub fn stats() -> Stats {
    let _ = ACCOUNT.try_with(|a| (0..CATEGORIES).for_each(|c| a.flush(c)));
    let (live, peak) = (|c: Category| GLOBAL.live[c as usize].load(Relaxed), |c: Category| GLOBAL.peak[c as usize].load(Relaxed));
    Stats {
        live: live(Category::Tensor),
        peak: peak(Category::Tensor),
        saved: live(Category::Saved),
        saved_peak: peak(Category::Saved),
        storages: live(Category::Storages),
        idle: Large::lock().bytes,
        allocations: GLOBAL.allocations.load(Relaxed),
        recycled: GLOBAL.recycled.load(Relaxed),
    }
}
/// Peaks start again from what is live now.
pub fn reset_peak() {
    stats();
    for c in 0..CATEGORIES {
        GLOBAL.peak[c].store(GLOBAL.live[c].load(Relaxed), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn classes_hold_what_they_promise_and_waste_at_most_a_quarter() {
        let mut last = 0;
        for bytes in (0..5000).chain((12..40).flat_map(|p| [(1usize << p) - 1, 1 << p, (1 << p) + 1, (1 << p) + (1 << (p - 1))])) {
            let (class, size) = class_of(bytes);
            assert!(size >= bytes && size == size_of_class(class), "{bytes}: class {class} of {size}");
            assert!(bytes < 256 || size * 4 <= bytes * 5 + 4 * ALIGN, "{bytes} in {size}");
            last = last.max(class);
        }
        assert!(last < CLASSES && class_of(SMALL).0 < SMALL_CLASSES && class_of(SMALL + 1).0 >= SMALL_CLASSES);
    }
    #[test]
    fn a_freed_block_comes_back_zero_only_the_first_time() {
        let b = Block::new(3 << 20).unwrap();
        let at = b.ptr();
        drop(b);
        assert_eq!(Block::new(3 << 20).unwrap().ptr(), at);
        assert!(Block::new(usize::MAX / 4).is_err());
    }
    /// Frees blocks of one class that are numbers, not memory.
    fn free(large: &mut Large, class: usize, numbers: std::ops::Range<usize>, most: usize) -> Vec<usize> {
        let ptr = |n: usize| NonNull::without_provenance(n.try_into().unwrap());
        numbers.flat_map(|n| large.keep(class, ptr(n), most)).map(|(ptr, _)| ptr.addr().get()).collect()
    }
    #[test]
    fn a_freed_block_stays_and_those_idle_longest_go() {
        let (small, large, huge) = (class_of(1 << 20).0, class_of(12 << 20).0, class_of(200 << 20).0);
        let most = 100 << 20;
        let mut idle = Large::new();
        assert!(free(&mut idle, small, 1..51, most).is_empty());
        assert!(free(&mut idle, large, 101..105, most).is_empty());
        assert_eq!(idle.bytes, 98 << 20);
        // Two mebibytes are left: ten blocks of one go for a block of twelve, the first ones first.
        assert_eq!(free(&mut idle, large, 105..106, most), (1..11).collect::<Vec<_>>());
        assert_eq!(idle.bytes, 100 << 20);
        assert_eq!(idle.take(large).map(|p| p.addr().get()), Some(105));
        assert_eq!(idle.bytes, 88 << 20);
        // Again and again, with nothing given back.
        assert!(free(&mut idle, large, 105..106, most).is_empty());
        assert_eq!(idle.take(large).map(|p| p.addr().get()), Some(105));
        // What cannot fit goes itself, and takes no other with it.
        assert_eq!(free(&mut idle, huge, 7..8, most), [7]);
        assert_eq!(idle.bytes, 88 << 20);
        // Age counts across classes; where the bound has sunk, more go than are asked for.
        assert_eq!(free(&mut idle, small, 200..201, 48 << 20).len(), 40 + 1);
        assert_eq!(idle.bytes, 37 << 20);
        assert!(idle.take(huge).is_none());
    }
}
