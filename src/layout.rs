//! Shapes and strides as small `Copy` values, broadcasting, and dimension arithmetic. Pure: holds no data, knows no array.
//!
//! Up to four lengths lie inline; longer lists are interned for the life of the process, so that the type stays `Copy` (a program uses
//! few distinct shapes of more than four dimensions). Sizes of more than `MAX_DIMS` dimensions are refused by the ops that make them.
use crate::error::{Error, Result, bail};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;
use std::sync::LazyLock;

pub const MAX_DIMS: usize = 64;

#[derive(Clone, Copy)]
pub enum Dims {
    Short { len: u8, d: [usize; 4] },
    Long(&'static [usize]),
}
static LONG: LazyLock<Mutex<FxHashSet<&'static [usize]>>> = LazyLock::new(Mutex::default);

impl Default for Dims {
    fn default() -> Self {
        Dims::Short { len: 0, d: [0; 4] }
    }
}
impl std::ops::Deref for Dims {
    type Target = [usize];
    #[inline(always)]
    fn deref(&self) -> &[usize] {
        match self {
            Dims::Short { len, d } => &d[..*len as usize & 7],
            Dims::Long(s) => s,
        }
    }
}
impl PartialEq for Dims {
    #[inline]
    fn eq(&self, o: &Dims) -> bool {
        match (self, o) {
            (Dims::Short { len: n, d: a }, Dims::Short { len: m, d: b }) => n == m && a == b, // what lies beyond `len` is 0
            _ => **self == **o,
        }
    }
}
impl Eq for Dims {}
impl std::hash::Hash for Dims {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        (**self).hash(h)
    }
}
impl std::fmt::Debug for Dims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
impl FromIterator<usize> for Dims {
    fn from_iter<I: IntoIterator<Item = usize>>(it: I) -> Self {
        let mut it = it.into_iter();
        let mut d = [0; 4];
        for i in 0..4 {
            match it.next() {
                Some(v) => d[i] = v,
                None => return Dims::Short { len: i as u8, d },
            }
        }
        match it.next() {
            None => Dims::Short { len: 4, d },
            Some(fifth) => Dims::of(&d.into_iter().chain([fifth]).chain(it).collect::<Vec<_>>()),
        }
    }
}
impl Dims {
    /// What `f` makes of a list of at most four, without a loop over an iterator.
    #[inline]
    fn short<T: Copy>(s: &[T], f: impl Fn(T) -> usize) -> Option<Self> {
        let mut d = [0; 4];
        for (d, s) in d.get_mut(..s.len())?.iter_mut().zip(s) {
            *d = f(*s);
        }
        Some(Dims::Short { len: s.len() as u8, d })
    }
    #[inline]
    pub fn of(s: &[usize]) -> Self {
        if s.len() <= 4 {
            let mut d = [0; 4];
            d[..s.len()].copy_from_slice(s);
            return Dims::Short { len: s.len() as u8, d };
        }
        let mut long = LONG.lock();
        Dims::Long(long.get(s).copied().unwrap_or_else(|| {
            let kept: &'static [usize] = Box::leak(s.into());
            long.insert(kept);
            kept
        }))
    }
    /// How many elements a shape holds. Shapes of arrays are checked for overflow when made.
    #[inline]
    pub fn numel(&self) -> usize {
        self.iter().product()
    }
    /// As `numel`, for a shape that comes from a user.
    pub fn checked_numel(&self) -> Result<usize> {
        if self.contains(&0) {
            return Ok(0);
        }
        let n = self.iter().try_fold(1usize, |n, &v| n.checked_mul(v)).filter(|&n| n <= isize::MAX as usize / 8);
        n.ok_or_else(|| Box::new(Error::Memory { bytes: self.iter().fold(1u128, |n, &v| n.saturating_mul(v as u128)) }))
    }
    /// Row-major strides of this shape.
    #[inline]
    pub fn strides(&self) -> Dims {
        match self {
            Dims::Short { len, d } => {
                let m = d.map(|n| n.max(1)); // written as values: a loop that fills a list stores it piece by piece, and who copies it waits
                let s = match len {
                    0 => [0; 4],
                    1 => [1, 0, 0, 0],
                    2 => [m[1], 1, 0, 0],
                    3 => [m[1] * m[2], m[2], 1, 0],
                    _ => [m[1] * m[2] * m[3], m[2] * m[3], m[3], 1],
                };
                Dims::Short { len: *len, d: s }
            }
            Dims::Long(l) => {
                let (mut s, mut step) = (l.to_vec(), 1);
                for v in s.iter_mut().rev() {
                    step *= std::mem::replace(v, step).max(1);
                }
                Dims::of(&s)
            }
        }
    }
    pub fn with_removed(&self, d: usize) -> Dims {
        self.iter().enumerate().filter(|(i, _)| *i != d).map(|(_, &v)| v).collect()
    }
    pub fn to_i64(&self) -> Vec<i64> {
        self.iter().map(|&v| v as i64).collect()
    }
    /// This list, changed by `f` as a vector.
    pub fn with(&self, f: impl FnOnce(&mut Vec<usize>)) -> Dims {
        let mut v = self.to_vec();
        f(&mut v);
        Dims::of(&v)
    }
}

/// A layout as a value: what `as_strided` needs, without the storage.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Geometry {
    pub shape: Dims,
    pub strides: Dims,
    pub offset: usize,
}

#[inline]
pub fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut step = 1;
    for i in (0..shape.len()).rev() {
        if shape[i] != 1 && strides[i] != step {
            return shape.contains(&0);
        }
        step *= shape[i];
    }
    true
}
/// How many elements a row-major layout has, and whether its strides are those of its shape: where a length is 1 they may be anything.
/// None also for an empty one.
#[inline(always)]
pub fn row_major(shape: &Dims, strides: &Dims) -> Option<(usize, bool)> {
    let (mut step, mut plain) = (1, true);
    match (shape, strides) {
        (Dims::Short { len, d }, Dims::Short { d: s, .. }) => {
            let mut i = *len as usize & 7;
            while i > 0 && i <= 4 {
                i -= 1;
                if d[i] == 1 {
                    plain = false;
                } else if s[i] != step {
                    return None;
                }
                step *= d[i];
            }
        }
        _ if is_contiguous(shape, strides) => {
            step = shape.numel();
            plain = !shape.contains(&1);
        }
        _ => return None,
    }
    (step != 0).then_some((step, plain))
}
/// Whether the elements fill a span of memory without gap or overlap, in some order of the axes.
pub fn is_dense(shape: &[usize], strides: &[usize]) -> bool {
    if shape.contains(&0) || is_contiguous(shape, strides) {
        return true;
    }
    let mut axes: Vec<usize> = (0..shape.len()).filter(|&i| shape[i] != 1).collect();
    axes.sort_by_key(|&i| strides[i]);
    let mut step = 1;
    axes.iter().all(|&i| {
        let ok = strides[i] == step;
        step *= shape[i];
        ok
    })
}
/// Whether two different indices may name one element.
pub fn may_overlap(shape: &[usize], strides: &[usize]) -> bool {
    if is_contiguous(shape, strides) || shape.contains(&0) {
        return false;
    }
    let mut axes: Vec<usize> = (0..shape.len()).filter(|&i| shape[i] != 1).collect();
    axes.sort_by_key(|&i| strides[i]);
    let mut reach = 0;
    axes.iter().any(|&i| {
        let overlaps = strides[i] <= reach;
        reach += strides[i] * (shape[i] - 1);
        overlaps
    })
}
/// Elements of the storage between the first and the last element, both included; 0 for an empty shape.
#[inline]
pub fn span(shape: &[usize], strides: &[usize]) -> usize {
    if shape.contains(&0) {
        return 0;
    }
    shape.iter().zip(strides).map(|(n, s)| (n - 1) * s).sum::<usize>() + 1
}
/// The shape to which both broadcast.
#[inline]
pub fn broadcast(op: &'static str, a: &Dims, b: &Dims) -> Result<Dims> {
    if a == b {
        return Ok(*a);
    }
    let n = a.len().max(b.len());
    let at = |s: &Dims, i: usize| if i + s.len() >= n { s[i + s.len() - n] } else { 1 };
    let mut fits = true;
    let shape = (0..n)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            _ => {
                fits = false;
                0
            }
        })
        .collect();
    if fits { Ok(shape) } else { Err(Box::new(Error::Broadcast { op, lhs: a.to_vec(), rhs: b.to_vec() })) }
}
/// Strides of an operand of this layout read as `shape`, to which it broadcasts: 0 where it is repeated.
#[inline]
pub fn expand(from: &Dims, strides: &Dims, shape: &Dims) -> Dims {
    if from == shape {
        return *strides;
    }
    let lead = shape.len() - from.len();
    (0..shape.len()).map(|i| if i < lead || (from[i - lead] == 1 && shape[i] != 1) { 0 } else { strides[i - lead] }).collect()
}
/// A dimension counted from either end; a 0-d array has one, as in torch.
#[inline]
pub fn wrap_dim(dim: i64, ndim: usize) -> Result<usize> {
    let n = ndim.max(1) as i64;
    if (-n..n).contains(&dim) { Ok(dim.rem_euclid(n) as usize) } else { Err(Box::new(Error::Dim { dim, ndim })) }
}
/// Several dimensions, each at most once, in the order given.
pub fn wrap_dims(dims: &[i64], ndim: usize) -> Result<Vec<usize>> {
    let mut out: Vec<usize> = Vec::with_capacity(dims.len());
    for &d in dims {
        let d = wrap_dim(d, ndim)?;
        if out.contains(&d) {
            bail!(Runtime, "dim {d} appears multiple times in the list of dims");
        }
        out.push(d);
    }
    Ok(out)
}
/// A shape given by a user in which one length may be -1, for `numel` elements.
pub fn infer_size(op: &'static str, size: &[i64], numel: usize) -> Result<Dims> {
    let (mut known, mut free) = (1usize, None);
    let wrong = || Box::new(Error::View { op, size: size.to_vec(), numel });
    for (i, &v) in size.iter().enumerate() {
        match v {
            -1 if free.is_some() => bail!(Runtime, "{op}(): only one dimension can be inferred, size {size:?} has several -1"),
            -1 => free = Some(i),
            v if v < 0 => bail!(Runtime, "{op}(): invalid shape dimension {v} in {size:?}"),
            v => known = known.checked_mul(v as usize).ok_or_else(wrong)?,
        }
    }
    let fill = match free {
        Some(_) if known == 0 && numel == 0 => {
            bail!(
                Runtime,
                "{op}(): cannot reshape tensor of 0 elements into shape {size:?} because the unspecified dimension size -1 can be any value and is ambiguous"
            )
        }
        Some(_) if known == 0 || !numel.is_multiple_of(known) => return Err(wrong()),
        Some(_) => numel / known,
        None if known != numel => return Err(wrong()),
        None => 0,
    };
    if let Some(d) = Dims::short(size, |v| if v == -1 { fill } else { v as usize }) {
        return Ok(d);
    }
    Ok(size.iter().map(|&v| if v == -1 { fill } else { v as usize }).collect())
}
/// A shape given by a user, all lengths known.
pub fn given_size(op: &'static str, size: &[i64]) -> Result<Dims> {
    if let Some(v) = size.iter().find(|v| **v < 0) {
        bail!(Runtime, "{op}(): Trying to create tensor with negative dimension {v}: {size:?}");
    }
    if size.len() > MAX_DIMS {
        bail!(Runtime, "{op}(): tensors of more than {MAX_DIMS} dimensions are not supported, size has {}", size.len());
    }
    let shape: Dims = size.iter().map(|&v| v as usize).collect();
    shape.checked_numel()?;
    Ok(shape)
}
/// Strides under which the same storage reads as `to`, if there are any (torch's rule for `view`).
pub fn view_strides(shape: &Dims, strides: &Dims, to: &Dims) -> Option<Dims> {
    if shape.contains(&0) || is_contiguous(shape, strides) {
        return Some(if shape == to { *strides } else { to.strides() });
    }
    let mut out = vec![0; to.len()];
    let mut j = to.len();
    let mut i = shape.len();
    // Blocks of axes that lie contiguous to each other, innermost first; each must be a product of axes of `to`.
    while i > 0 {
        let (mut block, base) = (shape[i - 1], strides[i - 1]);
        let mut k = i - 1;
        while k > 0 && (shape[k - 1] == 1 || strides[k - 1] == block * base) {
            block *= shape[k - 1];
            k -= 1;
        }
        let mut step = base;
        let mut left = block;
        while j > 0 && (left > 1 || to[j - 1] == 1) {
            if !left.is_multiple_of(to[j - 1]) {
                return None;
            }
            j -= 1;
            out[j] = step;
            step *= to[j];
            left /= to[j];
        }
        if left != 1 {
            return None;
        }
        i = k;
    }
    while j > 0 && to[j - 1] == 1 {
        j -= 1;
        out[j] = 1;
    }
    (j == 0).then(|| Dims::of(&out))
}

#[cfg(test)]
mod tests {
    use super::*;
    fn d(s: &[usize]) -> Dims {
        Dims::of(s)
    }
    #[test]
    fn long_shapes_are_interned_once() {
        let (a, b) = (d(&[1, 2, 3, 4, 5, 6]), (1..=6).collect::<Dims>());
        assert_eq!(a, b);
        assert_eq!(a.as_ptr(), b.as_ptr());
        assert_eq!(&*a.strides(), &[720, 360, 120, 30, 6, 1]);
    }
    #[test]
    fn views_of_strided_arrays_follow_torch() {
        assert_eq!(view_strides(&d(&[3, 4]), &d(&[1, 3]), &d(&[12])), None);
        assert_eq!(view_strides(&d(&[3, 4]), &d(&[1, 3]), &d(&[3, 2, 2])), Some(d(&[1, 6, 3])));
        assert_eq!(view_strides(&d(&[2, 3, 4]), &d(&[24, 4, 1]), &d(&[2, 12])), Some(d(&[24, 1])));
        assert_eq!(view_strides(&d(&[2, 3]), &d(&[0, 1]), &d(&[2, 3, 1])).map(|s| (s[0], s[1])), Some((0, 1)));
        assert_eq!(view_strides(&d(&[2, 1, 3]), &d(&[6, 99, 2]), &d(&[6])), Some(d(&[2])));
    }
    #[test]
    fn sizes_are_inferred_or_refused() {
        assert_eq!(infer_size("view", &[2, -1], 6).unwrap(), d(&[2, 3]));
        assert!(
            infer_size("view", &[-1, -1], 6).is_err() && infer_size("view", &[4], 6).is_err() && infer_size("view", &[-1, 0], 0).is_err()
        );
    }
    #[test]
    fn overlap_is_seen() {
        assert!(
            may_overlap(&[3, 3], &[1, 1]) && may_overlap(&[2], &[0]) && !may_overlap(&[3, 4], &[4, 1]) && !may_overlap(&[4, 3], &[1, 4])
        );
    }
}
