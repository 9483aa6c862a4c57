//! What selective checkpointing keeps: the outputs of chosen operations of a checkpointed region, for its recomputations.
//!
//! A kept output goes to the policy around the frame, as the region's arguments do, so that hooks and outer frames see it. Where no policy
//! takes it, it stays here, and the storage tells of a write to it (`Watcher`): then the value is copied, and recomputations get what it was.
//! Invariant: nothing here runs a kernel or drops a value while the lock is held.
use crate::array::Array;
use crate::error::Result;
use crate::storage::{Copies, Note, Storage, Watcher};
use crate::tape::saved::{Counted, Parked, copy_for};
use crate::tape::tensor::Visit;
use crate::tape::{Pack, Tensor};
use parking_lot::{Mutex, MutexGuard};
use std::sync::{Arc, Weak};

enum State {
    Here { array: Array, _counted: Counted },
    Away(Parked),
}
pub struct Kept {
    me: Weak<Kept>,
    state: Mutex<State>,
}
impl Kept {
    /// Keeps the value of `t`, without its history. `around`: the policy around the frame.
    pub fn new(t: &Tensor, around: Option<&Arc<dyn Pack>>) -> Result<Arc<Kept>> {
        let array = t.array();
        if let Some(parked) = Parked::packed(around, &array, "checkpoint")? {
            return Ok(Arc::new_cyclic(|me| Kept { me: me.clone(), state: Mutex::new(State::Away(parked)) }));
        }
        let (storage, span) = (array.storage().clone(), array.byte_span());
        let _counted = Counted::new(&storage);
        let kept = Arc::new_cyclic(|me| Kept { me: me.clone(), state: Mutex::new(State::Here { array, _counted }) });
        storage.watch(Note { who: kept.watcher(), key: 0, span });
        Ok(kept)
    }
    fn watcher(&self) -> Weak<dyn Watcher> {
        self.me.clone()
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
    /// The value, as a tensor without history. Who writes to it does not change what is kept.
    pub fn value(&self) -> Result<Tensor> {
        let parked = match &*self.state() {
            State::Here { array, .. } => return Ok(Tensor::new(array.clone())),
            State::Away(p) => p.share(),
        };
        parked.get("checkpoint")
    }
    pub fn visit(&self, f: &mut dyn FnMut(Visit<'_>)) {
        if let Some(s) = self.state.try_lock()
            && let State::Away(p) = &*s
        {
            p.visit(f);
        }
    }
}
impl Watcher for Kept {
    fn before_write(self: Arc<Self>, _storage: &Arc<Storage>, _key: u32, copies: &mut Copies) -> Result<()> {
        let array = match &*self.state() {
            State::Here { array, .. } => array.clone(),
            State::Away(_) => return Ok(()),
        };
        let copy = copy_for(copies, &array)?;
        let (storage, span) = (copy.storage().clone(), copy.byte_span());
        let _counted = Counted::new(&storage);
        let old = std::mem::replace(&mut *self.state(), State::Here { array: copy, _counted });
        drop(old);
        // the copy is handed out too, and may be written in its turn
        storage.watch(Note { who: self.watcher(), key: 0, span });
        Ok(())
    }
}
impl Drop for Kept {
    fn drop(&mut self) {
        let who = self as *const Kept as usize;
        if let State::Here { array, .. } = self.state.get_mut() {
            array.storage().unwatch(who, 0);
        }
    }
}
