//! The history of views that were written through: `as_strided` and copy-slices, the two nodes behind in-place operations on views.
use crate::array::Array;
use crate::error::Result;
use crate::layout::Geometry;
use crate::tape::node::Meta;
use crate::tape::record::Views;
use crate::tape::{Edge, Node};
use std::sync::Arc;

pub struct Home;
pub static VIEWS: Home = Home;
impl Views for Home {
    fn strided(&self, _edge: Edge, _base: &Geometry, _view: &Geometry, _like: &Meta) -> Result<Edge> {
        Ok(Edge::None)
    }
    fn copy_slices(&self, _edge: Edge, _base: &Array, _view: &Geometry, inner: Arc<Node>) -> Arc<Node> {
        inner
    }
}
