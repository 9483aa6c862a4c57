//! Element types, torch's promotion rule, and the three types kernels compute in (f32, f64, i64). Knows no array.
use half::{bf16, f16};
use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum DType {
    Bool,
    UInt8,
    Int8,
    Int16,
    Int32,
    Int64,
    Float16,
    BFloat16,
    Float32,
    Float64,
}
use DType::*;

impl DType {
    pub const ALL: [DType; 10] = [Bool, UInt8, Int8, Int16, Int32, Int64, Float16, BFloat16, Float32, Float64];
    pub const fn size(self) -> usize {
        match self {
            Bool | UInt8 | Int8 => 1,
            Int16 | Float16 | BFloat16 => 2,
            Int32 | Float32 => 4,
            Int64 | Float64 => 8,
        }
    }
    pub const fn is_float(self) -> bool {
        matches!(self, Float16 | BFloat16 | Float32 | Float64)
    }
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, Bool)
    }
    pub const fn is_signed(self) -> bool {
        !matches!(self, Bool | UInt8)
    }
    pub const fn name(self) -> &'static str {
        match self {
            Bool => "bool",
            UInt8 => "uint8",
            Int8 => "int8",
            Int16 => "int16",
            Int32 => "int32",
            Int64 => "int64",
            Float16 => "float16",
            BFloat16 => "bfloat16",
            Float32 => "float32",
            Float64 => "float64",
        }
    }
    /// torch's name in messages and of the legacy tensor types: `FloatTensor`.
    pub const fn torch_name(self) -> &'static str {
        match self {
            Bool => "Bool",
            UInt8 => "Byte",
            Int8 => "Char",
            Int16 => "Short",
            Int32 => "Int",
            Int64 => "Long",
            Float16 => "Half",
            BFloat16 => "BFloat16",
            Float32 => "Float",
            Float64 => "Double",
        }
    }
    /// May a result of this type be written into an array of type `to` (torch's `can_cast`)?
    pub const fn can_cast(self, to: DType) -> bool {
        (!self.is_float() || to.is_float()) && (matches!(self, Bool) || !matches!(to, Bool))
    }
    /// Lowest and largest finite value of a floating point type.
    pub fn finite_range(self) -> (f64, f64) {
        let top = match self {
            Float16 => 65504.0,
            BFloat16 => bf16::MAX.to_f64(),
            Float32 => f32::MAX as f64,
            _ => f64::MAX,
        };
        (-top, top)
    }
    /// This type if it is floating point, else the default float: what a float-only kernel gives for it.
    pub fn or_float(self) -> DType {
        if self.is_float() { self } else { default_dtype() }
    }
    /// The type a kernel computes in.
    pub const fn compute(self) -> Compute {
        match self {
            Float64 => Compute::F64,
            Float16 | BFloat16 | Float32 => Compute::F32,
            _ => Compute::I64,
        }
    }
    const fn category(self) -> u8 {
        match self {
            Bool => 0,
            d if d.is_float() => 2,
            _ => 1,
        }
    }
}
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compute {
    F32,
    F64,
    I64,
}

static DEFAULT: AtomicU8 = AtomicU8::new(Float32 as u8);
/// The dtype of floats made from Python numbers and from integer operands of float-only ops.
pub fn default_dtype() -> DType {
    DType::ALL[DEFAULT.load(Ordering::Relaxed) as usize]
}
pub fn set_default_dtype(d: DType) {
    DEFAULT.store(d as u8, Ordering::Relaxed);
}

/// The smallest type that holds both.
pub const fn join(a: DType, b: DType) -> DType {
    let (lo, hi) = if (a as u8) < (b as u8) { (a, b) } else { (b, a) };
    match (lo, hi) {
        (UInt8, Int8) => Int16,
        (Float16, BFloat16) => Float32,
        _ => hi,
    }
}
/// How much an operand weighs in promotion: a Python number less than a 0-d tensor, that less than the rest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rank {
    Number,
    Scalar,
    Full,
}
/// torch's result type: a lower rank only counts where its category (bool, integer, float) is higher than that of the ranks above.
pub fn promote(operands: impl IntoIterator<Item = (DType, Rank)>) -> DType {
    let mut best: [Option<DType>; 3] = [None; 3]; // indexed by Rank
    for (d, r) in operands {
        let d = if r == Rank::Number && d.is_float() { default_dtype() } else { d };
        let b = &mut best[r as usize];
        *b = Some(b.map_or(d, |x| join(x, d)));
    }
    let merge = |hi: Option<DType>, lo: Option<DType>| match (hi, lo) {
        (Some(h), Some(l)) => Some(if l.category() > h.category() { join(h, l) } else { h }),
        (h, l) => h.or(l),
    };
    merge(best[2], merge(best[1], best[0])).unwrap_or_else(default_dtype)
}

/// A Python number, or one element of an array.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
}
impl Scalar {
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => b as u8 as f64,
            Scalar::Int(i) => i as f64,
            Scalar::Float(f) => f,
        }
    }
    pub fn to_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => b as i64,
            Scalar::Int(i) => i,
            Scalar::Float(f) => f as i64,
        }
    }
    /// The dtype of a tensor made of it alone: bool, int64, or (for an op's number operand) float64.
    pub fn dtype(self) -> DType {
        match self {
            Scalar::Bool(_) => Bool,
            Scalar::Int(_) => Int64,
            Scalar::Float(_) => Float64,
        }
    }
    pub fn is_zero(self) -> bool {
        self.to_f64() == 0.0
    }
}
impl From<f64> for Scalar {
    fn from(v: f64) -> Self {
        Scalar::Float(v)
    }
}
impl From<i64> for Scalar {
    fn from(v: i64) -> Self {
        Scalar::Int(v)
    }
}
impl From<bool> for Scalar {
    fn from(v: bool) -> Self {
        Scalar::Bool(v)
    }
}

/// A type an array can hold as such. Any bits are a valid value.
pub trait Element: Copy + Default + PartialEq + PartialOrd + Send + Sync + 'static {
    const DTYPE: DType;
    fn scalar(self) -> Scalar;
    fn of(s: Scalar) -> Self;
}
/// A stored bool: a byte, true unless 0 (`bool` itself would make other bits undefined behaviour).
#[derive(Clone, Copy, Default, PartialEq, PartialOrd, Debug)]
#[repr(transparent)]
pub struct Truth(pub u8);
macro_rules! elements { ($($t:ty, $d:ident, $v:ident => $s:expr, $x:ident => $of:expr;)*) => { $(impl Element for $t {
    const DTYPE: DType = $d;
    #[inline] fn scalar(self) -> Scalar { let $v = self; $s }
    #[inline] fn of($x: Scalar) -> Self { $of }
})* } }
elements! {
    Truth, Bool, v => Scalar::Bool(v.0 != 0), s => Truth(!s.is_zero() as u8);
    u8, UInt8, v => Scalar::Int(v as i64), s => s.to_i64() as u8;
    i8, Int8, v => Scalar::Int(v as i64), s => s.to_i64() as i8;
    i16, Int16, v => Scalar::Int(v as i64), s => s.to_i64() as i16;
    i32, Int32, v => Scalar::Int(v as i64), s => s.to_i64() as i32;
    i64, Int64, v => Scalar::Int(v), s => s.to_i64();
    f16, Float16, v => Scalar::Float(v.to_f64()), s => f16::from_f64(s.to_f64());
    bf16, BFloat16, v => Scalar::Float(v.to_f64()), s => bf16::from_f64(s.to_f64());
    f32, Float32, v => Scalar::Float(v as f64), s => s.to_f64() as f32;
    f64, Float64, v => Scalar::Float(v), s => s.to_f64();
}

/// Runs `$body` with `$t` standing for the element type of a dtype: for code that moves elements and does no arithmetic.
macro_rules! for_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {{
        use $crate::dtype::DType as D;
        match $dtype {
            D::Bool => {
                type $t = $crate::dtype::Truth;
                $body
            }
            D::UInt8 => {
                type $t = u8;
                $body
            }
            D::Int8 => {
                type $t = i8;
                $body
            }
            D::Int16 => {
                type $t = i16;
                $body
            }
            D::Int32 => {
                type $t = i32;
                $body
            }
            D::Int64 => {
                type $t = i64;
                $body
            }
            D::Float16 => {
                type $t = half::f16;
                $body
            }
            D::BFloat16 => {
                type $t = half::bf16;
                $body
            }
            D::Float32 => {
                type $t = f32;
                $body
            }
            D::Float64 => {
                type $t = f64;
                $body
            }
        }
    }};
}
pub(crate) use for_dtype;

/// `as` between any element type and the compute types, branch-free where loops vectorise over it.
pub trait Cast<T>: Copy {
    fn cast(self) -> T;
}
macro_rules! casts { ($($from:ident => $($to:ident)*;)*) => { $($(impl Cast<$to> for $from { #[inline(always)] fn cast(self) -> $to { self as $to } })*)* } }
casts! {
    f32 => f32 f64 i64 i32; f64 => f32 f64 i64; i64 => f32 f64 i64 i32 i16 i8 u8;
    u8 => f32 f64 i64; i8 => f32 f64 i64; i16 => f32 f64 i64; i32 => f32 f64 i64;
}
macro_rules! narrow_floats { ($($from:ident)*) => { $(
    impl Cast<u8> for $from { #[inline(always)] fn cast(self) -> u8 { self as i64 as u8 } }
    impl Cast<i8> for $from { #[inline(always)] fn cast(self) -> i8 { self as i64 as i8 } }
    impl Cast<i16> for $from { #[inline(always)] fn cast(self) -> i16 { self as i64 as i16 } }
)* } }
narrow_floats! { f32 f64 }
impl Cast<i32> for f64 {
    #[inline(always)]
    fn cast(self) -> i32 {
        self as i64 as i32
    }
}
#[inline(always)]
fn widen_bf16(v: bf16) -> f32 {
    f32::from_bits((v.to_bits() as u32) << 16)
}
#[inline(always)]
fn narrow_bf16(v: f32) -> bf16 {
    let b = v.to_bits();
    let rounded = ((b.wrapping_add(0x7fff + ((b >> 16) & 1))) >> 16) as u16;
    #[allow(clippy::eq_op, reason = "true for NaN only; keeps the loop branch-free")]
    bf16::from_bits(if v != v { 0x7fc0 } else { rounded })
}
/// Half precision by integer arithmetic and one multiplication, so that loops vectorise without F16C intrinsics.
#[inline(always)]
fn widen_f16(v: f16) -> f32 {
    let b = v.to_bits() as u32;
    let magnitude = (b & 0x7fff) << 13;
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000); // * 2^112: right for normals and subnormals
    let r = if b & 0x7c00 == 0x7c00 { f32::from_bits(magnitude | 0x7f80_0000) } else { scaled };
    f32::from_bits(r.to_bits() | ((b & 0x8000) << 16))
}
#[inline(always)]
fn narrow_f16(v: f32) -> f16 {
    let b = v.to_bits();
    let (sign, a) = ((b >> 16) & 0x8000, b & 0x7fff_ffff);
    let normal = (a.wrapping_add(0xc800_0fff).wrapping_add((a >> 13) & 1)) >> 13; // rebias, round to nearest even
    let subnormal = (f32::from_bits(a) + 0.5).to_bits().wrapping_sub(0x3f00_0000); // the adder rounds at 2^-24
    let r = if a < 0x3880_0000 { subnormal } else { normal };
    let r = if a >= 0x477f_f000 { 0x7c00 } else { r };
    let r = if a > 0x7f80_0000 { 0x7e00 } else { r };
    f16::from_bits((sign | r) as u16)
}
macro_rules! halves { ($($t:ident $widen:ident $narrow:ident)*) => { $(
    impl Cast<f32> for $t { #[inline(always)] fn cast(self) -> f32 { $widen(self) } }
    impl Cast<f64> for $t { #[inline(always)] fn cast(self) -> f64 { $widen(self) as f64 } }
    impl Cast<i64> for $t { #[inline(always)] fn cast(self) -> i64 { $widen(self) as i64 } }
    impl Cast<$t> for f32 { #[inline(always)] fn cast(self) -> $t { $narrow(self) } }
    impl Cast<$t> for f64 { #[inline(always)] fn cast(self) -> $t { $narrow(self as f32) } }
    impl Cast<$t> for i64 { #[inline(always)] fn cast(self) -> $t { $narrow(self as f32) } }
)* } }
halves! { f16 widen_f16 narrow_f16  bf16 widen_bf16 narrow_bf16 }
macro_rules! truths { ($($t:ident)*) => { $(
    impl Cast<$t> for Truth { #[inline(always)] fn cast(self) -> $t { (self.0 != 0) as u8 as $t } }
    impl Cast<Truth> for $t { #[inline(always)] fn cast(self) -> Truth { Truth((self != (0 as $t)) as u8) } }
)* } }
truths! { f32 f64 i64 }

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn half_conversions_equal_the_half_crate_on_every_pattern() {
        for b in 0..=u16::MAX {
            let h = f16::from_bits(b);
            let (a, w): (f32, f32) = (h.cast(), h.to_f32());
            assert!(a.to_bits() == w.to_bits() || (a.is_nan() && w.is_nan()), "{b:#x}");
            let back: f16 = w.cast();
            assert!(back.to_bits() == b || h.is_nan(), "{b:#x}");
        }
        for i in 0..2_000_000u32 {
            let v = f32::from_bits(i.wrapping_mul(2147).wrapping_add(i << 9));
            let (a, b): (f16, bf16) = (v.cast(), v.cast());
            if v.is_nan() {
                assert!(a.is_nan() && b.is_nan());
                continue;
            }
            assert_eq!(a.to_bits(), f16::from_f32(v).to_bits(), "{v:e}");
            assert_eq!(b.to_bits(), bf16::from_f32(v).to_bits(), "{v:e}");
        }
    }
    #[test]
    fn lower_ranks_only_raise_the_category() {
        let p = |x: &[(DType, Rank)]| promote(x.iter().copied());
        assert_eq!(p(&[(Float32, Rank::Full), (Float64, Rank::Scalar)]), Float32);
        assert_eq!(p(&[(Int64, Rank::Full), (Float64, Rank::Number)]), Float32);
        assert_eq!(p(&[(UInt8, Rank::Full), (Int8, Rank::Full)]), Int16);
        assert_eq!(p(&[(Float16, Rank::Full), (BFloat16, Rank::Full)]), Float32);
        assert_eq!(p(&[(Bool, Rank::Full), (Int64, Rank::Number)]), Int64);
    }
}
