//! The pointwise kernels: one line each, on scalars. `T` is f32 or f64, `FMA` says whether fused multiply-add is one instruction;
//! `ints` is the version for integers and bools, in i64 (without it an integer operand is promoted to the default float). Truth values
//! are 1 and 0 of the computing type; `pointwise::run_to` stores them as bools.
use super::math::Real;
use super::simd::simd;
use crate::dtype::Scalar;

/// What `pointwise` needs of a kernel of N operands: its loop over contiguous slices of one type, all of one length.
pub trait Kernel<const N: usize>: Sync {
    /// Whether integers are computed as such; else they are promoted to the default float.
    fn has_ints(&self) -> bool;
    /// The operand that must hold no integer 0 (a divisor).
    fn divisor(&self) -> Option<usize> {
        None
    }
    fn f32(&self, x: [&[f32]; N], o: &mut [f32]);
    fn f64(&self, x: [&[f64]; N], o: &mut [f64]);
    fn i64(&self, x: [&[i64]; N], o: &mut [i64]);
}
macro_rules! kernels {
    (@ints $self:ident, $o:ident, [$($p:ident),*], [$($x:ident),+]) => { unreachable!("integers were promoted to float") };
    (@ints $self:ident, $o:ident, [$($p:ident),*], [$($x:ident),+], $int:expr) => {{
        simd! { fn ints($($p: i64,)* $($x: &[i64],)+ o: &mut [i64]) {
            $(let $x = &$x[..o.len()];)+
            for i in 0..o.len() { $(let $x = $x[i];)+ o[i] = $int; }
        } }
        ints($($self.$p.to_i64(),)* $($x,)+ $o)
    }};
    ($($(#[$m:meta])* $name:ident $([$($p:ident),+])? ($($x:ident),+) => $float:expr $(, ints $int:expr)? $(, divisor $d:literal)?;)*) => { $(
        $(#[$m])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(pub $p: Scalar),+)? }
        const _: () = {
            const N: usize = [$(stringify!($x)),+].len();
            simd! { fn slices<T: Real>($($($p: T,)+)? $($x: &[T],)+ o: &mut [T]) {
                $(let $x = &$x[..o.len()];)+
                for i in 0..o.len() { $(let $x = $x[i];)+ o[i] = $float; }
            } }
            impl Kernel<N> for $name {
                fn has_ints(&self) -> bool { !<[&str]>::is_empty(&[$(stringify!($int))?]) }
                $(fn divisor(&self) -> Option<usize> { Some($d) })?
                fn f32(&self, [$($x),+]: [&[f32]; N], o: &mut [f32]) { slices($($(self.$p.to_f64() as f32,)+)? $($x,)+ o) }
                fn f64(&self, [$($x),+]: [&[f64]; N], o: &mut [f64]) { slices($($(self.$p.to_f64(),)+)? $($x,)+ o) }
                #[allow(unused_variables, reason = "a parameter or operand that only the float version reads")]
                fn i64(&self, [$($x),+]: [&[i64]; N], o: &mut [i64]) { kernels!(@ints self, o, [$($($p),+)?], [$($x),+] $(, $int)?) }
            }
        };
    )* };
}
#[inline(always)]
fn truth<T: Real>(b: bool) -> T {
    <T as Real>::of(b as u8 as f64)
}
kernels! {
    Add(a, b) => a + b, ints a.wrapping_add(b);
    /// a + alpha * b.
    AddScaled [alpha](a, b) => alpha.fma::<FMA>(b, a), ints a.wrapping_add(alpha.wrapping_mul(b));
    Mul(a, b) => a * b, ints a.wrapping_mul(b);
    Div(a, b) => a / b;
    Neg(a) => -a, ints a.wrapping_neg();
    Equal(a, b) => truth(a == b), ints (a == b) as i64;
    Where(c, a, b) => if c != truth(false) { a } else { b }, ints if c != 0 { a } else { b };
    /// Integer quotient, rounded to zero.
    Quotient(a, b) => a / b, ints a.wrapping_div(b), divisor 1;
}
