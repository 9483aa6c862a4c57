//! An array: a storage, a layout over it, and the version counter that its in-place writes bump. Clones and views share the storage.
//!
//! Reading lends shared slices; a new array is filled through `Fresh`, which owns its storage alone; writing into an array that others may
//! see is `unsafe`: the caller says that no slice of the range is lent at the same time. All lending lasts for one kernel call, on one
//! thread at a time (`storage`).
#![allow(unsafe_code)]
use crate::dtype::{DType, Element, Rank, Scalar, for_dtype};
use crate::error::{Result, bail};
use crate::layout::{self, Dims, Geometry, is_contiguous};
use crate::storage::Storage;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

pub use crate::alloc::{epoch, set_epoch};

#[derive(Clone)]
pub struct Array {
    storage: Arc<Storage>,
    /// A counter of its own (`.data`, `x.data = y`); the storage's where absent.
    counter: Option<Arc<AtomicU64>>,
    pub shape: Dims,
    pub strides: Dims,
    pub offset: usize,
    pub dtype: DType,
    /// A Python number used as an operand: 0-d, and it weighs less than tensors in promotion.
    pub number: bool,
}
impl Array {
    /// Row-major, of unspecified content.
    pub fn empty(shape: Dims, dtype: DType) -> Result<Array> {
        let elements = if shape.len() <= 1 { shape.numel() } else { shape.checked_numel()? };
        Self::made(elements, &shape, &shape.strides(), dtype)
    }
    pub fn empty_strided(shape: Dims, strides: Dims, dtype: DType) -> Result<Array> {
        Self::made(shape.checked_numel()?.min(layout::span(&shape, &strides)), &shape, &strides, dtype)
    }
    #[inline(always)]
    fn made(elements: usize, shape: &Dims, strides: &Dims, dtype: DType) -> Result<Array> {
        let Some(bytes) = elements.checked_mul(dtype.size()) else {
            return Err(Box::new(crate::error::Error::Memory { bytes: elements as u128 * dtype.size() as u128 }));
        };
        Ok(Array { storage: Storage::new(bytes)?, counter: None, shape: *shape, strides: *strides, offset: 0, dtype, number: false })
    }
    /// A fresh array of the type and shape of this one, which has `n` elements row-major; `plain`: none of its lengths is 1, so the
    /// strides are the same too. `f` gets the elements to fill, whose type is one of the two.
    #[inline(always)]
    pub fn fresh_like(&self, n: usize, plain: bool, f: impl FnOnce(Elements<'_>)) -> Result<Array> {
        let storage = Storage::new(n * self.dtype.size())?;
        // SAFETY: the storage holds `n` elements of this type, aligned and initialised, and nobody else has it yet.
        unsafe {
            f(match self.dtype {
                DType::Float32 => Elements::F32(std::slice::from_raw_parts_mut(storage.ptr().cast(), n)),
                DType::Float64 => Elements::F64(std::slice::from_raw_parts_mut(storage.ptr().cast(), n)),
                _ => panic!("{} is neither of the types of `Elements`", self.dtype.name()),
            })
        }
        let strides = if plain { self.strides } else { self.shape.strides() };
        Ok(Array { storage, counter: None, shape: self.shape, strides, offset: 0, dtype: self.dtype, number: false })
    }
    pub fn zeros(shape: Dims, dtype: DType) -> Result<Array> {
        let mut f = Fresh::new(shape, dtype)?;
        f.bytes_mut().fill(0);
        Ok(f.done())
    }
    pub fn full(shape: Dims, dtype: DType, v: Scalar) -> Result<Array> {
        let mut f = Fresh::new(shape, dtype)?;
        for_dtype!(dtype, T => f.slice_mut::<T>().fill(T::of(v)));
        Ok(f.done())
    }
    pub fn scalar(v: Scalar, dtype: DType) -> Result<Array> {
        Self::full(Dims::default(), dtype, v)
    }
    /// A Python number as an operand.
    pub fn number(v: Scalar) -> Result<Array> {
        Ok(Array { number: true, ..Self::scalar(v, v.dtype())? })
    }
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Result<Array> {
        let mut f = Fresh::new(Dims::of(shape), T::DTYPE)?;
        if f.0.numel() != data.len() {
            bail!(Runtime, "{} elements do not fill the shape {shape:?}", data.len());
        }
        f.slice_mut::<T>().copy_from_slice(data);
        Ok(f.done())
    }
    /// A row-major array over a whole storage made elsewhere.
    pub fn over(storage: Arc<Storage>, shape: Dims, strides: Dims, offset: usize, dtype: DType) -> Result<Array> {
        let a = Array { storage, counter: None, shape, strides, offset, dtype, number: false };
        a.check_bounds("as_strided")?;
        Ok(a)
    }
    /// The same storage under another layout. The caller keeps it inside the storage (views computed from a valid layout do; a layout that
    /// a user gave goes through `over` or `as_strided`).
    #[inline]
    pub fn view(&self, shape: Dims, strides: Dims, offset: usize) -> Array {
        Array { storage: self.storage.clone(), counter: self.counter.clone(), shape, strides, offset, dtype: self.dtype, number: false }
    }
    /// A view that a user described, refused if it leaves the storage.
    pub fn as_strided(&self, shape: Dims, strides: Dims, offset: usize) -> Result<Array> {
        let a = self.view(shape, strides, offset);
        a.check_bounds("as_strided")?;
        Ok(a)
    }
    fn check_bounds(&self, op: &'static str) -> Result<()> {
        let reach = self
            .shape
            .iter()
            .zip(self.strides.iter())
            .try_fold(self.offset, |at, (&n, &s)| at.checked_add(n.max(1).checked_sub(1)?.checked_mul(s)?));
        let need = if self.shape.contains(&0) { Some(0) } else { reach.and_then(|r| r.checked_add(1)?.checked_mul(self.dtype.size())) };
        match need {
            Some(n) if n <= self.storage.size() => Ok(()),
            _ => bail!(
                Runtime,
                "{op}(): setStorage: sizes {:?}, strides {:?}, storage offset {} of {} are out of bounds for storage of size {} bytes",
                self.shape,
                self.strides,
                self.offset,
                self.dtype.name(),
                self.storage.size()
            ),
        }
    }
    pub fn geometry(&self) -> Geometry {
        Geometry { shape: self.shape, strides: self.strides, offset: self.offset }
    }
    pub fn rank(&self) -> Rank {
        if self.number {
            Rank::Number
        } else if self.shape.is_empty() {
            Rank::Scalar
        } else {
            Rank::Full
        }
    }
    #[inline]
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }
    #[inline]
    pub fn ndim(&self) -> usize {
        self.shape.len()
    }
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        is_contiguous(&self.shape, &self.strides)
    }
    /// Bytes that the elements would take row-major.
    pub fn nbytes(&self) -> usize {
        self.numel() * self.dtype.size()
    }
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }
    #[inline]
    pub fn shares(&self, o: &Array) -> bool {
        Arc::ptr_eq(&self.storage, &o.storage)
    }
    /// The same elements in the same order.
    pub fn same_elements(&self, o: &Array) -> bool {
        self.shares(o) && self.offset == o.offset && self.dtype == o.dtype && self.shape == o.shape && self.strides == o.strides
    }
    /// The bytes of the storage between the first and the last element.
    pub fn byte_span(&self) -> (usize, usize) {
        let start = self.offset * self.dtype.size();
        (start, start + layout::span(&self.shape, &self.strides) * self.dtype.size())
    }
    #[inline]
    pub fn counter(&self) -> &AtomicU64 {
        self.counter.as_deref().unwrap_or(self.storage.version())
    }
    #[inline]
    pub fn version(&self) -> u64 {
        self.counter().load(Relaxed)
    }
    #[inline]
    pub fn bump(&self) {
        self.counter().fetch_add(1, Relaxed);
    }
    /// This array with a counter of its own that starts at `version`: writes through it are unseen by the others (`.data`).
    pub fn with_counter(mut self, version: u64) -> Array {
        self.counter = Some(Arc::new(AtomicU64::new(version)));
        self
    }
    /// This array counting its writes where `o` does (`x.data = y`, `set_`: x keeps its counter).
    pub fn counted_as(mut self, o: &Array) -> Array {
        self.counter = Some(o.counter.clone().unwrap_or_else(|| Arc::new(AtomicU64::new(o.version()))));
        self
    }
    /// To be called before bytes of this array change: tells those who watch the storage.
    #[inline]
    pub fn before_write(&self) -> Result<()> {
        if self.storage.is_watched() { self.storage.tell(self.byte_span()) } else { Ok(()) }
    }
    #[inline(always)]
    fn range<T: Element>(&self, at: usize, n: usize) -> *mut T {
        assert!(T::DTYPE == self.dtype && (at + n) * size_of::<T>() <= self.storage.size(), "range outside the storage");
        // SAFETY: just checked to lie within the storage; blocks are aligned to 64, foreign memory is checked when wrapped.
        unsafe { self.storage.ptr().cast::<T>().add(at) }
    }
    /// `n` elements of the storage from element `at` (counted from its start, not from `offset`).
    #[inline(always)]
    pub fn read<T: Element>(&self, at: usize, n: usize) -> &[T] {
        if n == 0 {
            return &[];
        }
        // SAFETY: in range, initialised (`alloc`), not written while lent (file header).
        unsafe { std::slice::from_raw_parts(self.range(at, n), n) }
    }
    /// The elements of a contiguous array.
    #[inline]
    pub fn slice<T: Element>(&self) -> &[T] {
        assert!(self.is_contiguous(), "slice() of an array that is not contiguous");
        self.read(self.offset, self.numel())
    }
    /// As `read`, to be written.
    ///
    /// # Safety
    /// While the slice lives, no other slice of the range is lent.
    #[expect(clippy::mut_from_ref, reason = "interior mutability; see the file header")]
    #[inline]
    pub unsafe fn write<T: Element>(&self, at: usize, n: usize) -> &mut [T] {
        if n == 0 {
            return &mut [];
        }
        // SAFETY: in range, initialised; exclusive by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.range(at, n), n) }
    }
    /// Lends `f` the span of the elements for writing (its first is the element at `offset`): what a kernel that writes in place uses.
    /// What it reads meanwhile lies in other storages: those of `reads` are checked, and `f` reads no others.
    pub fn rewrite<T: Element, R>(&self, reads: &[&Array], f: impl FnOnce(&mut [T]) -> R) -> R {
        assert!(reads.iter().all(|r| !r.shares(self)), "an operand lies in the storage that is written");
        // SAFETY: in range; kernels run one at a time on a storage and hold no slice beyond their call (file header), this one holds none
        // of this storage by the check above, and a second call for it within `f` is ruled out by the contract.
        f(unsafe { self.write(self.offset, layout::span(&self.shape, &self.strides)) })
    }
    /// The bytes of the storage.
    pub fn storage_bytes(&self) -> &[u8] {
        if self.storage.size() == 0 {
            return &[];
        }
        // SAFETY: initialised, not written while lent.
        unsafe { std::slice::from_raw_parts(self.storage.ptr(), self.storage.size()) }
    }
    /// The array as ndarray's view: no copy, any strides.
    pub fn ndview<T: Element>(&self) -> ndarray::ArrayViewD<'_, T> {
        use ndarray::ShapeBuilder;
        if self.numel() == 0 {
            return ndarray::ArrayViewD::from_shape(self.shape.to_vec(), &[]).expect("an empty shape fits an empty slice");
        }
        let all = self.read::<T>(self.offset, layout::span(&self.shape, &self.strides));
        // SAFETY: every index of the layout lies in `all`, which is shared, initialised and lives as long as `self`; repeated axes
        // (stride 0) alias, which shared views may.
        unsafe { ndarray::ArrayViewD::from_shape_ptr(self.shape.to_vec().strides(self.strides.to_vec()), all.as_ptr()) }
    }
    /// The element at an index, as a number.
    pub fn item_at(&self, index: &[usize]) -> Scalar {
        let at = self.offset + index.iter().zip(self.strides.iter()).map(|(i, s)| i * s).sum::<usize>();
        for_dtype!(self.dtype, T => self.read::<T>(at, 1)[0].scalar())
    }
    /// The only element of a one-element array.
    pub fn item(&self) -> Scalar {
        for_dtype!(self.dtype, T => self.read::<T>(self.offset, 1)[0].scalar())
    }
    /// Every element in row-major order as f64 (tests, printing).
    pub fn to_vec(&self) -> Vec<f64> {
        let mut out = Vec::with_capacity(self.numel());
        for_dtype!(self.dtype, T => self.for_each_offset(|at| out.push(self.read::<T>(at, 1)[0].scalar().to_f64())));
        out
    }
    /// Calls `f` with the place of each element in the storage, in row-major order.
    pub fn for_each_offset(&self, mut f: impl FnMut(usize)) {
        let n = self.numel();
        if n == 0 {
            return;
        }
        let (mut index, mut at) = (vec![0usize; self.ndim()], self.offset);
        for _ in 0..n {
            f(at);
            for d in (0..index.len()).rev() {
                index[d] += 1;
                at += self.strides[d];
                if index[d] < self.shape[d] {
                    break;
                }
                at -= self.strides[d] * self.shape[d];
                index[d] = 0;
            }
        }
    }
}
impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Array({} {:?}, strides {:?}, offset {})", self.dtype.name(), self.shape, self.strides, self.offset)
    }
}

/// Elements lent for writing, of one of the types in which most is computed.
pub enum Elements<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
}
/// A new row-major array that nobody else can see yet: may be written safely.
pub struct Fresh(Array);
impl Fresh {
    pub fn new(shape: Dims, dtype: DType) -> Result<Fresh> {
        Ok(Fresh(Array::empty(shape, dtype)?))
    }
    #[inline]
    pub fn slice_mut<T: Element>(&mut self) -> &mut [T] {
        // SAFETY: the storage was made by `new` and never shared; `&mut self` makes the borrow exclusive.
        unsafe { self.0.write(0, self.0.numel()) }
    }
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.0.storage.size();
        if n == 0 {
            return &mut [];
        }
        // SAFETY: as `slice_mut`; the block holds at least `n` initialised bytes.
        unsafe { std::slice::from_raw_parts_mut(self.0.storage.ptr(), n) }
    }
    pub fn ndview_mut<T: Element>(&mut self) -> ndarray::ArrayViewMutD<'_, T> {
        let shape = self.0.shape.to_vec();
        ndarray::ArrayViewMutD::from_shape(shape, self.slice_mut::<T>()).expect("a row-major array fills its shape")
    }
    pub fn shape(&self) -> Dims {
        self.0.shape
    }
    #[inline]
    pub fn done(self) -> Array {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn an_array_stays_small() {
        assert!(size_of::<Array>() <= 128, "{}", size_of::<Array>());
    }
    #[test]
    fn views_lend_any_strides_to_ndarray() {
        let a = Array::from_slice(&[2, 3], &[1f32, 2., 3., 4., 5., 6.]).unwrap();
        let t = a.view(Dims::of(&[3, 2]), Dims::of(&[1, 3]), 0);
        assert_eq!(t.ndview::<f32>()[[2, 1]], 6.0);
        let e = a.view(Dims::of(&[4, 2, 3]), Dims::of(&[0, 3, 1]), 0);
        assert_eq!(e.ndview::<f32>()[[3, 1, 0]], 4.0);
        assert_eq!(e.to_vec().len(), 24);
        assert!(a.as_strided(Dims::of(&[7]), Dims::of(&[1]), 0).is_err());
    }
    #[test]
    fn data_counts_its_own_writes() {
        let a = Array::zeros(Dims::of(&[2]), DType::Float32).unwrap();
        let v = a.view(a.shape, a.strides, 0);
        v.bump();
        let d = a.clone().with_counter(a.version());
        d.bump();
        assert_eq!((a.version(), v.version(), d.version()), (1, 1, 2));
    }
}
