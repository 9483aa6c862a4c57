//! Saved values in host memory: where they are already, so each stays in its slot, with its version. Innermost, it keeps policies
//! around it from taking them, as any pair would.
use crate::error::Result;
use crate::tape::{Pack, Saving, Stowed};
use std::sync::Arc;

pub struct HostMemory;
impl Pack for HostMemory {
    fn pack(&self, _: &Saving<'_>) -> Result<Option<Arc<Stowed>>> {
        Ok(None)
    }
    fn quiet(&self) -> bool {
        true
    }
}
