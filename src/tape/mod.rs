//! The forward half of autograd: tensors, nodes, saved values, modes, and `record`, the one place where an op meets the tape.
//! `engine` walks what is built here. Rules are numbered in DESIGN 3; comments cite them.
pub mod dispatch;
pub mod hooks;
pub mod mode;
pub mod node;
pub mod random;
pub mod record;
pub mod saved;
pub mod task;
pub mod tensor;

pub use hooks::{GradHook, Host, Line, NodeHook, PreHook, host, set_host};
pub use mode::{enable_grad, grad_enabled, no_grad, with_grad};
pub use node::{Attr, Backward, Cx, Edge, Info, IntoAttr, Node, Source, Uses};
pub use random::RandomSource;
pub use record::{Arrays, Forward, Forwards, How, record, record_many};
pub use saved::{Keeper, Pack, Saving, Stow, Stowed};
pub use tensor::{Held, Tensor, ViewKind, Wrapper};
