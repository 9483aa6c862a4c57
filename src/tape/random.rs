//! Where random numbers come from: sources that several may hold, the process's own one, and the source of a thread that stands in for it
//! (a recomputation draws again what was drawn, and the process's source does not notice; rule 6).
//!
//! A source is locked for one draw. What runs inside calls no Python and no hook (rule 4).
use crate::error::Result;
use crate::kernels::random::Generator;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::{Arc, LazyLock};

#[derive(Clone)]
pub struct RandomSource(Arc<Mutex<Generator>>);
static PROCESS: LazyLock<RandomSource> = LazyLock::new(|| RandomSource::new(Generator::default()));
/// What a region that is run again needs of the sources that it meets: their states when it first met them. A state is large, and most
/// regions draw nothing, so it is copied only then.
#[derive(Default)]
pub struct Notes(Mutex<Met>);
#[derive(Default)]
struct Met {
    /// The source of those who name none.
    unnamed: Option<Box<Generator>>,
    named: Vec<(RandomSource, Generator)>,
}
impl Notes {
    fn lock(&self) -> MutexGuard<'_, Met> {
        self.0.lock()
    }
}
/// How the running code of this thread sees the sources that it meets.
#[derive(Default)]
struct Seen {
    /// Of the regions that are open, outermost first.
    notes: SmallVec<[Arc<Notes>; 2]>,
    again: Again,
}
/// What stands in for sources in a region that runs again.
#[derive(Default)]
struct Again {
    unnamed: Unnamed,
    named: Vec<(RandomSource, RandomSource)>,
}
#[derive(Default)]
enum Unnamed {
    /// The process's source.
    #[default]
    Process,
    /// A copy of whatever `.0` stands for, made at the first draw: the region drew nothing from it when it was recorded.
    Copy(Box<Unnamed>),
    Own(RandomSource),
}
impl Unnamed {
    fn source(&mut self) -> RandomSource {
        let own = match self {
            Unnamed::Process => return PROCESS.clone(),
            Unnamed::Own(s) => return s.clone(),
            Unnamed::Copy(of) => RandomSource::new(of.source().state()),
        };
        *self = Unnamed::Own(own.clone());
        own
    }
    /// Another handle on the same.
    fn share(&mut self) -> Unnamed {
        match self {
            Unnamed::Process => Unnamed::Process,
            _ => Unnamed::Own(self.source()),
        }
    }
}
thread_local! {
    static SEEN: RefCell<Seen> = const {
        RefCell::new(Seen { notes: SmallVec::new_const(), again: Again { unnamed: Unnamed::Process, named: Vec::new() } })
    };
}
/// An open region takes notes of the sources that it meets, until this is dropped.
pub struct Noting;
impl Noting {
    pub fn start(notes: Arc<Notes>) -> Noting {
        SEEN.with(|s| s.borrow_mut().notes.push(notes));
        Noting
    }
}
impl Drop for Noting {
    fn drop(&mut self) {
        drop(SEEN.with(|s| s.borrow_mut().notes.pop()));
    }
}
/// A region runs again until this is dropped: it draws what it drew at first, and no source notices.
pub struct Drawing(Seen);
impl Drawing {
    /// Without notes it draws on from where the sources stand.
    pub fn again(notes: Option<&Notes>) -> Drawing {
        let again = |now: &mut Unnamed| match notes {
            None => Again { unnamed: now.share(), named: Vec::new() },
            Some(n) => {
                let met = n.lock();
                let unnamed = match &met.unnamed {
                    Some(g) => Unnamed::Own(RandomSource::new((**g).clone())),
                    None => Unnamed::Copy(Box::new(now.share())),
                };
                Again { unnamed, named: met.named.iter().map(|(s, g)| (s.clone(), RandomSource::new(g.clone()))).collect() }
            }
        };
        SEEN.with(|s| {
            let mut s = s.borrow_mut();
            let new = Seen { notes: SmallVec::new(), again: again(&mut s.again.unnamed) };
            Drawing(std::mem::replace(&mut *s, new))
        })
    }
}
impl Drop for Drawing {
    fn drop(&mut self) {
        let before = std::mem::take(&mut self.0);
        drop(SEEN.with(|s| s.replace(before)));
    }
}

impl RandomSource {
    pub fn new(g: Generator) -> Self {
        RandomSource(Arc::new(Mutex::new(g)))
    }
    /// The source of those who name none: the process's, or in a region that runs again what stands in for it.
    pub fn current() -> Self {
        SEEN.with(|s| {
            let mut s = s.borrow_mut();
            let source = s.again.unnamed.source();
            for notes in &s.notes {
                notes.lock().unnamed.get_or_insert_with(|| Box::new(source.state()));
            }
            source
        })
    }
    /// A source that user code names, as that code is to see it: itself, or in a region that runs again what stands in for it.
    pub fn named(&self) -> RandomSource {
        SEEN.with(|s| {
            let s = s.borrow();
            let seen = s.again.named.iter().find(|(s, _)| s.is(self)).map_or(self, |(_, stand_in)| stand_in);
            for notes in &s.notes {
                let mut met = notes.lock();
                if !met.named.iter().any(|(s, _)| s.is(self)) {
                    met.named.push((self.clone(), seen.state()));
                }
            }
            seen.clone()
        })
    }
    fn is(&self, o: &RandomSource) -> bool {
        Arc::ptr_eq(&self.0, &o.0)
    }
    fn lock(&self) -> MutexGuard<'_, Generator> {
        self.0.lock()
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
    fn a_region_that_runs_again_draws_what_it_drew() {
        let draw = || super::draw(&None, |g| Ok(g.random64())).unwrap();
        let notes = Arc::new(Notes::default());
        let first = {
            let _noting = Noting::start(notes.clone());
            (draw(), draw())
        };
        let before = PROCESS.state();
        let again = {
            let _drawing = Drawing::again(Some(&notes));
            (draw(), draw())
        };
        assert_eq!(first, again);
        assert_eq!(PROCESS.state(), before);
        // what drew nothing at first does not move the source when it draws after all
        {
            let _drawing = Drawing::again(Some(&Notes::default()));
            let _inner = Drawing::again(Some(&Notes::default()));
            draw();
        }
        assert_eq!(PROCESS.state(), before);
    }
    #[test]
    fn the_stand_in_is_that_of_one_thread() {
        let notes = Arc::new(Notes::default());
        notes.lock().unnamed = Some(Box::new(Generator::new(3)));
        let _drawing = Drawing::again(Some(&notes));
        assert_eq!(RandomSource::current().state(), Generator::new(3));
        let other = std::thread::spawn(|| SEEN.with(|s| matches!(s.borrow().again.unnamed, Unnamed::Process))).join().unwrap();
        assert!(other);
    }
}
