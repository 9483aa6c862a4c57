//! Python objects that a slot owns for its policy: for a user's pair the pair itself and what pack returned. Each slot holds its own
//! references, so that the collector counts them (rule 5).
use super::tensor::attached;
use crate::tape::saved::Counted;
use pyo3::prelude::*;
use smallvec::SmallVec;

/// A reference to an object, given back at once: `Py` puts that off where it does not know that it is attached, as inside the bridge of
/// `call`.
pub struct Owned<T>(Option<Py<T>>);
impl<T> Owned<T> {
    pub fn new(o: Py<T>) -> Owned<T> {
        Owned(Some(o))
    }
    pub fn into_bound(mut self, py: Python<'_>) -> Bound<'_, T> {
        self.0.take().expect("only dropping takes the object").into_bound(py)
    }
    #[inline]
    pub fn get(&self) -> &Py<T> {
        self.0.as_ref().expect("only dropping takes the object")
    }
}
impl<T> Clone for Owned<T> {
    #[inline]
    fn clone(&self) -> Self {
        Owned(Some(self.get().clone_ref(attached())))
    }
}
impl<T> Drop for Owned<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(o) = self.0.take() {
            drop(o.into_bound(attached()));
        }
    }
}

pub struct Keeper {
    /// Whose `unpack` is called, or what the policy needs alive.
    pub owner: Owned<PyAny>,
    /// What pack returned.
    pub packed: Option<Owned<PyAny>>,
    /// Storages of packed tensors: their bytes count as saved.
    pub counted: SmallVec<[Counted; 1]>,
}
impl Clone for Keeper {
    fn clone(&self) -> Self {
        let counted = if self.counted.is_empty() { SmallVec::new() } else { self.counted.clone() };
        Keeper { owner: self.owner.clone(), packed: self.packed.clone(), counted }
    }
}
impl Keeper {
    pub fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.owner.get().as_ptr() as usize);
        if let Some(p) = &self.packed {
            f(p.get().as_ptr() as usize);
        }
    }
}
