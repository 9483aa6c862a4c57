//! The loops over a shape: which axes there are once those that lie alike are merged, how the loops are cut into pieces, and where a piece
//! lies in an array. Geometry alone: holds no data, calls no kernel. Pointwise kernels and reductions walk by it.
//!
//! A nest has one result and N operands, each with its own step along every axis: 0 along an axis where it is repeated (an operand) or
//! folded (a result).
use smallvec::SmallVec;

/// Elements of a tile over two axes.
const TILE: usize = 8192;
/// Rows of such a tile: whole cache lines along both axes, several along the one that the operand is read by.
const TILE_ROWS: usize = 128;

/// One loop: its length, and by how many elements it moves the result and each operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis<const N: usize> {
    pub len: usize,
    pub to: usize,
    pub from: [usize; N],
}
/// The loops over a shape, slowest first: adjacent ones merged where all steps agree, those of length 1 dropped, never empty.
#[derive(Clone, Debug)]
pub struct Nest<const N: usize> {
    pub axes: SmallVec<[Axis<N>; 4]>,
}
/// How a nest is cut into pieces of `rows` x `cols` elements. Rows lie along axis `p`; a row is the whole of the axes after `p`, or, in a tile,
/// so many steps along the innermost axis.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub p: usize,
    pub rows: usize,
    pub cols: usize,
    pub tile: bool,
}
impl<const N: usize> Nest<N> {
    /// The loops in the order of the strides `lead`: the result's for a pointwise kernel, an operand's for a reduction. No length is 0.
    pub fn new(shape: &[usize], lead: &[usize], to: &[usize], from: [&[usize]; N]) -> Self {
        let mut order: SmallVec<[usize; 8]> = (0..shape.len()).filter(|&i| shape[i] != 1).collect();
        if order.windows(2).any(|w| lead[w[0]] < lead[w[1]]) {
            order.sort_by_key(|&i| std::cmp::Reverse(lead[i])); // stable
        }
        let mut axes: SmallVec<[Axis<N>; 4]> = SmallVec::new();
        for i in order {
            let axis = Axis { len: shape[i], to: to[i], from: from.map(|s| s[i]) };
            match axes.last_mut() {
                Some(o) if o.to == axis.to * axis.len && (0..N).all(|k| o.from[k] == axis.from[k] * axis.len) => {
                    *o = Axis { len: o.len * axis.len, ..axis };
                }
                _ => axes.push(axis),
            }
        }
        if axes.is_empty() {
            axes.push(Axis { len: 1, to: 1, from: [1; N] });
        }
        Nest { axes }
    }
    /// One loop over `n` elements of a row-major result, by which each operand moves by a step of its own.
    pub fn line(n: usize, from: [usize; N]) -> Self {
        Nest { axes: SmallVec::from_iter([Axis { len: n, to: 1, from }]) }
    }
    /// A cut for pieces of about `strip` elements: a strip of the innermost axis, several rows of whole inner axes, or a tile where an
    /// operand is faster along another axis than along the innermost (both of its axes are then read by whole cache lines).
    pub fn cut(&self, strip: usize) -> Cut {
        let last = self.axes.len() - 1;
        let inner = &self.axes[last];
        let faster =
            |k: usize| (0..last).filter(|&i| (1..inner.from[k]).contains(&self.axes[i].from[k])).min_by_key(|&i| self.axes[i].from[k]);
        if let Some(p) = (0..N).find_map(faster)
            && self.axes[p].len * inner.len >= strip / 4
        {
            let rows = self.axes[p].len.min(TILE_ROWS.max(TILE / inner.len));
            return Cut { p, rows, cols: inner.len.min((TILE / rows).max(1)), tile: true };
        }
        let (mut p, mut cols) = (last, 1);
        while p > 0 && cols * self.axes[p].len <= strip / 2 {
            cols *= self.axes[p].len;
            p -= 1;
        }
        Cut { p, rows: self.axes[p].len.min((strip / cols).max(1)), cols, tile: false }
    }
    /// Where a piece lies in the array whose step along an axis `step` gives.
    pub fn place(&self, cut: &Cut, step: impl Fn(&Axis<N>) -> usize) -> Place {
        let inside = if cut.tile { &self.axes[self.axes.len() - 1..] } else { &self.axes[cut.p + 1..] };
        let rs = step(&self.axes[cut.p]);
        let merged = inside.windows(2).all(|w| step(&w[0]) == step(&w[1]) * w[1].len);
        let reach = if cut.tile { 0 } else { inside.iter().map(|a| step(a) * (a.len - 1)).sum() };
        let form = match inside.last().map(&step) {
            None => Form::Line(rs),
            Some(cs) if merged && !cut.tile && rs == cs * cut.cols => Form::Line(cs),
            Some(0) if merged && rs == 0 => Form::Line(0),
            Some(cs) if merged => Form::Rect(cs),
            _ => {
                let mut table: Vec<usize> = (0..cut.rows).map(|r| r * rs).collect();
                for a in inside {
                    table = table.iter().flat_map(|&at| (0..a.len).map(move |i| (at, i))).map(|(at, i)| at + i * step(a)).collect();
                }
                Form::Table(table)
            }
        };
        Place { form, rs, reach, streams: false }
    }
    /// Calls `f(start in the result, start in each operand, rows, cols)` for each piece, starts counted from each array's first element.
    pub fn pieces(&self, cut: &Cut, mut f: impl FnMut(usize, [usize; N], usize, usize)) {
        let last = self.axes.len() - 1;
        let inner = if cut.tile { last } else { cut.p };
        let mut index: SmallVec<[usize; 8]> = SmallVec::from_elem(0, last + 1);
        let (mut to, mut from) = (0, [0; N]);
        loop {
            let cols = if cut.tile { cut.cols.min(self.axes[last].len - index[last]) } else { cut.cols };
            f(to, from, cut.rows.min(self.axes[cut.p].len - index[cut.p]), cols);
            let mut i = inner;
            loop {
                let a = &self.axes[i];
                let step = match i {
                    _ if i == cut.p => cut.rows,
                    _ if i == last => cut.cols,
                    _ => 1,
                };
                index[i] += step;
                to += step * a.to;
                (0..N).for_each(|k| from[k] += step * a.from[k]);
                if index[i] < a.len {
                    break;
                }
                to -= index[i] * a.to;
                (0..N).for_each(|k| from[k] -= index[i] * a.from[k]);
                index[i] = 0;
                if i == 0 {
                    return;
                }
                i -= 1;
            }
        }
    }
}
/// Where the elements of a piece lie in one array, counted from the piece's first.
pub struct Place {
    pub form: Form,
    /// Step from row to row.
    pub rs: usize,
    /// From the first to the last element of a row, where rows have several axes.
    pub reach: usize,
    /// Whether the piece is written past the caches.
    pub streams: bool,
}
pub enum Form {
    /// One step throughout.
    Line(usize),
    /// Rows `rs` apart, elements this far apart.
    Rect(usize),
    /// The place of each element of a full piece; a shorter one takes the first of them.
    Table(Vec<usize>),
}
impl Place {
    /// Elements `step` apart.
    pub fn line(step: usize) -> Place {
        Place { form: Form::Line(step), rs: 0, reach: 0, streams: false }
    }
    /// Rows `rs` apart, their elements `cs` apart.
    pub fn rect(rs: usize, cs: usize) -> Place {
        Place { form: Form::Rect(cs), rs, reach: 0, streams: false }
    }
    /// One step throughout the piece: 1 where it is contiguous, 0 where it is one element.
    pub fn is_line(&self, step: usize) -> bool {
        matches!(self.form, Form::Line(s) if s == step)
    }
    /// From one row to the next, where the piece is contiguous or lies in contiguous rows.
    pub fn contiguous_rows(&self, cols: usize) -> Option<usize> {
        match self.form {
            Form::Line(1) => Some(cols),
            Form::Rect(1) => Some(self.rs),
            _ => None,
        }
    }
    /// Elements from the first to the last of a piece, both included.
    pub fn span(&self, rows: usize, cols: usize) -> usize {
        match self.form {
            Form::Line(s) => (rows * cols - 1) * s + 1,
            Form::Rect(cs) => (rows - 1) * self.rs + (cols - 1) * cs + 1,
            Form::Table(_) => (rows - 1) * self.rs + self.reach + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn axes_that_lie_alike_are_one_loop() {
        let n = Nest::new(&[2, 1, 3, 4], &[12, 5, 4, 1], &[12, 5, 4, 1], [&[12, 9, 4, 1]]);
        assert_eq!(&n.axes[..], &[Axis { len: 24, to: 1, from: [1] }]);
        let n = Nest::new(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1], [&[0, 4, 1]]);
        assert_eq!(&n.axes[..], &[Axis { len: 2, to: 12, from: [0] }, Axis { len: 12, to: 1, from: [1] }]);
        let n = Nest::new(&[3, 4], &[1, 3], &[1, 3], [&[1, 3]]);
        assert_eq!(n.axes.len(), 1);
        assert_eq!(Nest::new(&[1], &[1], &[1], [&[0]]).axes[0].len, 1);
    }
    #[test]
    fn pieces_cover_every_element_once() {
        for (shape, from) in [
            (&[5, 7, 2, 2][..], &[28, 4, 1, 2][..]),
            (&[70, 90], &[1, 70]),
            (&[3, 5000], &[0, 1]),
            (&[6, 2, 2, 2, 3], &[24, 1, 2, 4, 8]),
            (&[9, 40, 50], &[1, 450, 9]),
        ] {
            let strides = crate::layout::Dims::of(shape).strides();
            let n = Nest::new(shape, &strides, &strides, [from]);
            let cut = n.cut(64);
            let (to, at) = (n.place(&cut, |a| a.to), n.place(&cut, |a| a.from[0]));
            let total = shape.iter().product();
            let mut seen = vec![None; total];
            let step = |p: &Place, r: usize, c: usize, cols: usize| match &p.form {
                Form::Line(s) => (r * cols + c) * s,
                Form::Rect(cs) => r * p.rs + c * cs,
                Form::Table(t) => t[r * cols + c],
            };
            n.pieces(&cut, |o, [i], rows, cols| {
                for (r, c) in (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))) {
                    let (o, i) = (o + step(&to, r, c, cols), i + step(&at, r, c, cols));
                    assert!(step(&at, r, c, cols) < at.span(rows, cols) && seen[o].is_none());
                    seen[o] = Some(i);
                }
            });
            for (flat, got) in seen.iter().enumerate() {
                let want: usize = (0..shape.len()).map(|i| flat / strides[i] % shape[i] * from[i]).sum();
                assert_eq!(*got, Some(want), "{shape:?} {from:?} at {flat}");
            }
        }
    }
}
