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
/// A region that is open, or runs again, on this thread.
enum Layer {
    Open(Arc<Notes>),
    Again {
        /// None: it draws on from where the sources stand.
        notes: Option<Arc<Notes>>,
        /// What stands in for the process's source, and for those that user code names: made when first met.
        unnamed: Option<RandomSource>,
        named: Vec<(RandomSource, RandomSource)>,
    },
}
/// Outermost first. A region that runs again sees nothing of what lies around it.
type Layers = SmallVec<[Layer; 3]>;
thread_local! { static LAYERS: RefCell<Layers> = const { RefCell::new(SmallVec::new_const()) }; }
/// The regions that are open inside the innermost one that runs again, and that one.
fn inner(layers: &mut [Layer]) -> (&mut [Layer], Option<&mut Layer>) {
    let at = layers.iter().rposition(|l| matches!(l, Layer::Again { .. })).map_or(0, |i| i + 1);
    let (outer, open) = layers.split_at_mut(at);
    (open, outer.last_mut())
}
/// The source of those who name none.
fn unnamed_source(layers: &mut [Layer]) -> RandomSource {
    let Some(at) = layers.iter().rposition(|l| matches!(l, Layer::Again { .. })) else { return PROCESS.clone() };
    let (outer, rest) = layers.split_at_mut(at);
    let Layer::Again { notes, unnamed, .. } = &mut rest[0] else { unreachable!("found as such") };
    match (&*unnamed, notes) {
        (Some(own), _) => own.clone(),
        (None, None) => unnamed_source(outer),
        (None, Some(notes)) => {
            // a region that drew nothing when it was recorded, and draws after all, does not move the source around it
            let state = notes.lock().unnamed.as_deref().cloned();
            let own = RandomSource::new(state.unwrap_or_else(|| unnamed_source(outer).state()));
            unnamed.insert(own).clone()
        }
    }
}
/// An open region takes notes of the sources that it meets, until this is dropped.
pub struct Noting;
impl Noting {
    pub fn start(notes: Arc<Notes>) -> Noting {
        LAYERS.with(|l| l.borrow_mut().push(Layer::Open(notes)));
        Noting
    }
}
impl Drop for Noting {
    fn drop(&mut self) {
        drop(LAYERS.with(|l| l.borrow_mut().pop()));
    }
}
/// A region runs again until this is dropped: it draws what it drew at first, and no source notices.
pub struct Drawing;
impl Drawing {
    pub fn again(notes: Option<Arc<Notes>>) -> Drawing {
        LAYERS.with(|l| l.borrow_mut().push(Layer::Again { notes, unnamed: None, named: Vec::new() }));
        Drawing
    }
}
impl Drop for Drawing {
    fn drop(&mut self) {
        drop(LAYERS.with(|l| l.borrow_mut().pop()));
    }
}

impl RandomSource {
    pub fn new(g: Generator) -> Self {
        RandomSource(Arc::new(Mutex::new(g)))
    }
    /// The source of those who name none: the process's, or in a region that runs again what stands in for it.
    pub fn current() -> Self {
        LAYERS.with(|l| {
            let mut l = l.borrow_mut();
            let source = unnamed_source(&mut l);
            for layer in inner(&mut l).0 {
                if let Layer::Open(notes) = layer {
                    notes.lock().unnamed.get_or_insert_with(|| Box::new(source.state()));
                }
            }
            source
        })
    }
    /// A source that user code names, as that code is to see it: itself, or in a region that runs again what stands in for it.
    pub fn named(&self) -> RandomSource {
        LAYERS.with(|l| {
            let mut l = l.borrow_mut();
            let (open, again) = inner(&mut l);
            let seen = match again {
                Some(Layer::Again { notes: Some(notes), named, .. }) => self.stand_in(notes, named),
                _ => self.clone(),
            };
            for layer in open {
                if let Layer::Open(notes) = layer {
                    let mut met = notes.lock();
                    if !met.named.iter().any(|(s, _)| s.is(self)) {
                        met.named.push((self.clone(), seen.state()));
                    }
                }
            }
            seen
        })
    }
    /// What stands in for it in a region with these notes: itself, if the region did not meet it.
    fn stand_in(&self, notes: &Notes, made: &mut Vec<(RandomSource, RandomSource)>) -> RandomSource {
        if let Some((_, own)) = made.iter().find(|(s, _)| s.is(self)) {
            return own.clone();
        }
        let state = notes.lock().named.iter().find(|(s, _)| s.is(self)).map(|(_, g)| g.clone());
        let Some(state) = state else { return self.clone() };
        let own = RandomSource::new(state);
        made.push((self.clone(), own.clone()));
        own
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
        let draw = || super::draw(&None, |g| Ok(g.random64())).expect("a generator always has a next number");
        let notes = Arc::new(Notes::default());
        let first = {
            let _noting = Noting::start(notes.clone());
            (draw(), draw())
        };
        let before = PROCESS.state();
        let again = {
            let _drawing = Drawing::again(Some(notes.clone()));
            (draw(), draw())
        };
        assert_eq!(first, again);
        assert_eq!(PROCESS.state(), before);
        // what drew nothing at first does not move the source when it draws after all
        {
            let _drawing = Drawing::again(Some(Arc::default()));
            let _inner = Drawing::again(Some(Arc::default()));
            draw();
        }
        assert_eq!(PROCESS.state(), before);
    }
    #[test]
    fn the_stand_in_is_that_of_one_thread() {
        let notes = Arc::new(Notes::default());
        notes.lock().unnamed = Some(Box::new(Generator::new(3)));
        let _drawing = Drawing::again(Some(notes.clone()));
        assert_eq!(RandomSource::current().state(), Generator::new(3));
        let other = std::thread::spawn(|| LAYERS.with(|l| l.borrow().is_empty())).join().expect("it only looks");
        assert!(other);
    }
}
