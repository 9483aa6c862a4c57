//! Where random numbers come from: sources that several may hold, the process's own one, and the source of a thread that stands in for it
//! (a recomputation draws again what was drawn, and the process's source does not notice; rule 6).
//!
//! A source is locked for one draw. What runs inside calls no Python and no hook (rule 4).
use crate::error::Result;
use crate::kernels::random::Generator;
use std::cell::RefCell;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

#[derive(Clone)]
pub struct RandomSource(Arc<Mutex<Generator>>);
static PROCESS: LazyLock<RandomSource> = LazyLock::new(|| RandomSource::new(Generator::default()));
/// What a region that is run again needs of sources that user code names: their state when it first met them.
pub type Notes = Arc<Mutex<Vec<(RandomSource, Generator)>>>;
/// How the running code of this thread sees sources that it names.
#[derive(Default)]
pub struct Named {
    /// Of the regions that are open, outermost first.
    notes: Vec<Notes>,
    /// In a region that runs again: sources and what stands in for them.
    instead: Vec<(RandomSource, RandomSource)>,
}
impl Named {
    /// For a run that begins with the states of these notes.
    pub fn again(notes: &Notes) -> Named {
        let notes = notes.lock().unwrap_or_else(|e| e.into_inner());
        Named { notes: Vec::new(), instead: notes.iter().map(|(s, g)| (s.clone(), RandomSource::new(g.clone()))).collect() }
    }
    /// Puts this in place for the thread; returns what was.
    pub fn swap(self) -> Named {
        NAMED.with(|n| n.replace(self))
    }
}
/// An open region takes notes of the sources that it meets, until this is dropped.
pub struct Noting;
impl Noting {
    pub fn start(notes: Notes) -> Noting {
        NAMED.with(|n| n.borrow_mut().notes.push(notes));
        Noting
    }
}
impl Drop for Noting {
    fn drop(&mut self) {
        drop(NAMED.with(|n| n.borrow_mut().notes.pop()));
    }
}
thread_local! { static NAMED: RefCell<Named> = const { RefCell::new(Named { notes: Vec::new(), instead: Vec::new() }) }; }
thread_local! { static INSTEAD: RefCell<Option<RandomSource>> = const { RefCell::new(None) }; }

impl RandomSource {
    pub fn new(g: Generator) -> Self {
        RandomSource(Arc::new(Mutex::new(g)))
    }
    /// The source of those who name none: this thread's own if it has one, else the process's.
    pub fn current() -> Self {
        INSTEAD.with(|s| s.borrow().clone()).unwrap_or_else(|| PROCESS.clone())
    }
    /// Makes `s` the source of this thread; None gives it back to the process's. Returns what it was.
    pub fn stand_in(s: Option<RandomSource>) -> Option<RandomSource> {
        INSTEAD.with(|now| now.replace(s))
    }
    /// A source that user code names, as that code is to see it: itself, or in a recomputation what stands in for it.
    pub fn named(&self) -> RandomSource {
        NAMED.with(|n| {
            let n = n.borrow();
            let seen = n.instead.iter().find(|(s, _)| s.is(self)).map_or(self, |(_, stand_in)| stand_in);
            for notes in &n.notes {
                let mut notes = notes.lock().unwrap_or_else(|e| e.into_inner());
                if !notes.iter().any(|(s, _)| s.is(self)) {
                    notes.push((self.clone(), seen.state()));
                }
            }
            seen.clone()
        })
    }
    fn is(&self, o: &RandomSource) -> bool {
        Arc::ptr_eq(&self.0, &o.0)
    }
    fn lock(&self) -> MutexGuard<'_, Generator> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
    /// A copy of the state.
    pub fn state(&self) -> Generator {
        self.lock().clone()
    }
    pub fn set(&self, g: Generator) {
        *self.lock() = g;
    }
    /// Works on the state; `f` runs kernels at most.
    pub fn with<R>(&self, f: impl FnOnce(&mut Generator) -> R) -> R {
        f(&mut self.lock())
    }
}
/// Draws from the source given, or from the current one.
pub fn draw<R>(given: &Option<RandomSource>, f: impl FnOnce(&mut Generator) -> Result<R>) -> Result<R> {
    match given {
        Some(s) => s.with(f),
        None => RandomSource::current().with(f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_thread_may_have_a_source_of_its_own() {
        let own = RandomSource::new(Generator::new(3));
        let before = RandomSource::stand_in(Some(own.clone()));
        let drawn = draw(&None, |g| Ok(g.random64())).unwrap();
        RandomSource::stand_in(before);
        assert_eq!(drawn, Generator::new(3).random64());
        assert_ne!(own.state(), Generator::new(3));
        let other = std::thread::spawn(|| INSTEAD.with(|s| s.borrow().is_none())).join().unwrap();
        assert!(other);
    }
}
