//! Scalar functions for vector loops: branch-free, `#[inline(always)]`, at most about 2 ulp off, the same bits at every instruction set.
use crate::dtype::Element;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// f32 or f64, with what kernels compute on them. `F` says whether fused multiply-add is one instruction.
pub trait Real: Element + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self> {
    fn of(v: f64) -> Self;
    fn fma<const F: bool>(self, a: Self, b: Self) -> Self;
}
macro_rules! reals { ($($t:ident)*) => { $(impl Real for $t {
    #[inline(always)]
    fn of(v: f64) -> $t { v as $t }
    #[inline(always)]
    fn fma<const F: bool>(self, a: $t, b: $t) -> $t { if F { self.mul_add(a, b) } else { self * a + b } }
})* } }
reals! { f32 f64 }
