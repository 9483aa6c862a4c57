//! stowgrad: tensors and autograd in which the values saved for backward belong to the user.
//!
//! The modules stand in layer order; a file names only its own layer or lower ones (`tests/layers.rs` checks it).
// L0
pub mod dtype;
pub mod error;
// L1
pub mod alloc;
pub mod array;
pub mod layout;
pub mod storage;
// L2
pub mod kernels;
// L3
pub mod tape;
// L4
pub mod stow;
// L5
pub mod ops;
// L6
pub mod engine;
// L7
#[cfg(feature = "python")]
pub mod py;

#[cfg(feature = "python")]
#[global_allocator]
static SMALL_OBJECTS: alloc::SmallObjects = alloc::SmallObjects;
