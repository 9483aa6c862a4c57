//! Arrays in, arrays out. No tape, no Python.
use crate::array::Array;

/// Where a kernel may leave its result: a hint. A kernel that can use it returns that very array; others ignore it and the caller copies.
#[derive(Clone, Copy)]
pub struct Out<'a>(pub Option<&'a Array>);
