//! Declarations only: one `op!` (differentiable) or `function!` (not) block per op, one family a file; the argument types they use; and
//! the few ops that fit no block, each beside its family. An op here is all there is to it: kernel below, method and node from the block.
pub mod activation;
pub mod arith;
pub mod compare;
pub mod conv;
pub mod create;
pub mod index;
pub mod join;
pub mod linalg;
pub mod loss;
pub(crate) mod macros;
pub mod matmul;
pub mod norm;
pub mod pool;
pub mod random;
pub mod reduce;
pub mod scan;
pub mod shape;
pub mod softmax;
pub mod sort;
pub mod unary;
pub mod views;

use crate::array::Array;
use crate::dtype::{DType, Scalar, promote};
use crate::error::{Error, Result};
use crate::layout::{Dims, broadcast};
use crate::tape::dispatch::{Arg, FromGot, Got};
use crate::tape::{Attr, IntoAttr, Tensor};
use smallvec::SmallVec;
use std::cell::RefCell;
pub use {
    activation::*, arith::*, compare::*, conv::*, create::*, index::*, join::*, linalg::*, loss::*, matmul::*, norm::*, pool::*, random::*,
    reduce::*, scan::*, shape::*, softmax::*, sort::*, unary::*, views::*,
};

/// The outputs of an op that has several.
pub type Tensors = SmallVec<[Tensor; 4]>;

/// What the user asked for in one of two forms.
pub enum Found {
    One(Tensor),
    Many(Tensors),
}

/// A list of integers given by the user: `dim=1`, `dim=(0, 2)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ints(pub SmallVec<[i64; 4]>);
/// A size: `(2, 3)`, `[2, 3]`, or, in the last positional place, `2, 3`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sizes(pub SmallVec<[i64; 4]>);
/// Tensors one after another, `f(a, b)`, or as a list, `f([a, b])`.
#[derive(Clone, Debug, Default)]
pub struct Operands(pub Vec<Tensor>);
macro_rules! lists { ($($t:ident)*) => { $(
    impl $t {
        pub fn of(s: &[usize]) -> Self { Self(s.iter().map(|&v| v as i64).collect()) }
        pub fn from_slice(s: &[i64]) -> Self { Self(SmallVec::from_slice(s)) }
    }
    impl std::ops::Deref for $t {
        type Target = [i64];
        fn deref(&self) -> &[i64] { &self.0 }
    }
    impl IntoAttr for $t {
        fn attr(&self) -> Attr { Attr::Ints(self.0.to_vec()) }
    }
)* } }
lists! { Ints Sizes }
/// Parameters of functions, which no node keeps: for dispatch modes alone.
macro_rules! handed { ($($t:ty, $v:ident => $e:expr;)*) => { $(
    impl IntoAttr for $t {
        fn attr(&self) -> Attr { Attr::None }
        fn arg(&self) -> Arg { let $v = self; $e }
    }
)* } }
handed! {
    Tensor, t => Arg::Tensor(t.clone());
    Vec<Tensor>, v => Arg::Tensors(v.iter().cloned().map(Some).collect());
    Cpu, _c => Arg::Cpu;
    Strided, _s => Arg::Strided;
}
impl FromGot for Found {
    fn from_got(g: Got, op: &'static str) -> Result<Self> {
        match Vec::from_got(g, op)? {
            v if v.len() == 1 => Ok(v.into_iter().next().map_or_else(|| Found::Many(Tensors::new()), Found::One)),
            v => Ok(Found::Many(v.into())),
        }
    }
}

thread_local! { static NUMBERS: RefCell<[Option<(Scalar, Tensor)>; 16]> = const { RefCell::new([const { None }; 16]) }; }
/// A number as an operand: a 0-d tensor with a number's weight in promotion. The last few are kept, as loops use the same ones.
pub fn number(v: impl Into<Scalar>) -> Result<Tensor> {
    let v = v.into();
    let bits = match v {
        Scalar::Bool(b) => b as u64,
        Scalar::Int(i) => i as u64,
        Scalar::Float(f) => f.to_bits(),
    };
    let at = ((bits ^ (bits >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize;
    let same = |x: &Scalar| match (x, v) {
        (Scalar::Float(a), Scalar::Float(b)) => a.to_bits() == b.to_bits(),
        (a, b) => *a == b && std::mem::discriminant(a) == std::mem::discriminant(&b),
    };
    if let Some(t) = NUMBERS.with(|n| n.borrow()[at].as_ref().filter(|(x, _)| same(x)).map(|(_, t)| t.clone())) {
        return Ok(t);
    }
    let t = Tensor::new(Array::number(v)?);
    let old = NUMBERS.with(|n| n.borrow_mut()[at].replace((v, t.clone())));
    drop(old);
    Ok(t)
}
/// A tensor of one value, like `t` in dtype.
pub fn scalar_like(t: &Tensor, v: f64) -> Result<Tensor> {
    Ok(Tensor::new(Array::scalar(Scalar::Float(v), t.dtype())?))
}
/// Zeros of this shape and dtype.
pub fn zeros(shape: Dims, dtype: DType) -> Result<Tensor> {
    Ok(Tensor::new(Array::zeros(shape, dtype)?))
}

// ---- what an op is not made for ----
fn refuse<'a, const N: usize>(op: &'static str, x: [&'a Array; N], taken: impl Fn(DType) -> bool) -> Result<[&'a Array; N]> {
    let mut shape = x[0].shape;
    for a in &x[1..] {
        shape = broadcast(op, &shape, &a.shape)?; // the first thing to be wrong is what the error tells
    }
    let dtype = promote(x.map(|a| (a.dtype, a.rank())));
    if taken(dtype) { Ok(x) } else { Err(Box::new(Error::Unsupported { op, dtype })) }
}
/// The operands of an op that has no meaning for integers, although its kernel would promote them.
pub(crate) fn floats<'a, const N: usize>(op: &'static str, x: [&'a Array; N]) -> Result<[&'a Array; N]> {
    refuse(op, x, DType::is_float)
}
/// The operands of an op that counts, which bools do not.
pub(crate) fn numeric<'a, const N: usize>(op: &'static str, x: [&'a Array; N]) -> Result<[&'a Array; N]> {
    refuse(op, x, |d| d != DType::Bool)
}
