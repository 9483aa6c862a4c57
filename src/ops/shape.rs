//! Views: no kernel, a new layout of the same storage.
use super::macros::{op};
use super::*;
use crate::error::bail;
use crate::layout::{infer_size, view_strides};

op! {
    /// The same elements under another shape; one length may be -1.
    ViewBackward0 = fn view(self_; size: Sizes);
    view;
    forward(_out) {
        let shape = infer_size("view", size, self_.numel())?;
        match view_strides(&self_.shape, &self_.strides, &shape) {
            Some(strides) => Ok(self_.view(shape, strides, self_.offset)),
            None => bail!(Runtime, "view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead: view({size:?}) of shape {:?}, strides {:?}", self_.shape, self_.strides),
        }
    };
    shows { self_sym_sizes: Attr::Ints(cx.shape(0).to_i64()) };
    grad(g, cx) { self_ uses [] => reshape(g, Sizes::of(&cx.shape(0))) }
}
/// stand-in until the shape family is written
pub fn reshape(t: &Tensor, size: Sizes) -> Result<Tensor> {
    view(t, size)
}
