//! Where saved bytes live: each file is one policy, a pair of `Pack` and `Stow` (DESIGN 4). They know the tape and nothing above it.
pub mod checkpoint;
pub mod host;
pub mod mutate;
pub mod selective;
