//! Python objects that a slot owns for its policy: for a user's pair the pair itself and what pack returned. Each slot holds its own
//! references, so that the collector counts them (rule 5).
use crate::tape::saved::Counted;
use pyo3::prelude::*;
use smallvec::SmallVec;

pub struct Keeper {
    /// Whose `unpack` is called, or what the policy needs alive.
    pub owner: Py<PyAny>,
    /// What pack returned.
    pub packed: Option<Py<PyAny>>,
    /// Storages of packed tensors: their bytes count as saved.
    pub counted: SmallVec<[Counted; 1]>,
}
impl Clone for Keeper {
    fn clone(&self) -> Self {
        let py = super::tensor::attached();
        Keeper { owner: self.owner.clone_ref(py), packed: self.packed.as_ref().map(|p| p.clone_ref(py)), counted: self.counted.clone() }
    }
}
impl Keeper {
    pub fn visit(&self, f: &mut dyn FnMut(usize)) {
        f(self.owner.as_ptr() as usize);
        if let Some(p) = &self.packed {
            f(p.as_ptr() as usize);
        }
    }
}
