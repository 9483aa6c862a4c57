//! Arrays in, arrays out. No tape, no Python. `simd`, `math` and `table` say what is computed on slices, `pointwise` walks any layout
//! with it, by the loops of `nest`; `fold` says what is folded on slices, `reduce`, `scan`, `softmax` and `norm` walk axes with it;
//! `matmul`, `conv`, `pool` are dense linear work, `linalg` decomposes small matrices; `loss` picks classes; `index`, `sort`, `create` and `random` move or make elements.
pub mod conv;
pub mod create;
pub mod fold;
pub mod index;
pub mod linalg;
pub mod loss;
pub mod math;
pub mod matmul;
pub mod nest;
pub mod norm;
pub mod pointwise;
pub mod pool;
pub mod random;
pub mod reduce;
#[cfg(test)]
mod samples;
pub mod scan;
pub mod simd;
pub mod softmax;
pub mod sort;
pub mod table;
use crate::array::Array;

/// Where a kernel may leave its result: a hint. A kernel that can use it returns that very array; others ignore it and the caller copies.
#[derive(Clone, Copy)]
pub struct Out<'a>(pub Option<&'a Array>);
