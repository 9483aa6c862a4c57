//! New tensors from sizes and numbers. The result is a leaf; `requires_grad` makes it one that wants a gradient. `layout`, `device` and
//! `pin_memory` are taken as torch takes them and refused where they ask for something else than rows in the CPU's memory.
use super::macros::function;
use super::*;
use crate::dtype::default_dtype;
use crate::error::bail;
use crate::kernels::create;
use crate::layout::given_size;
use crate::tape::record::into_out;

/// `device=`: the CPU. Others are refused where the argument is read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cpu;
/// `layout=`: strided. Others are refused where the argument is read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Strided;

/// An array as a new leaf, or in the user's tensor.
pub(super) fn leaf(op: &'static str, out: Option<Tensor>, a: Array, requires_grad: bool) -> Result<Tensor> {
    let t = Tensor::new(a);
    let t = match out {
        Some(o) => into_out(op, &o, &t)?,
        None => t,
    };
    if requires_grad {
        t.set_requires_grad(true)?;
    }
    Ok(t)
}
/// The dtype that numbers ask for: the default float if one of them is a float, bool if all are bools, else int64.
fn dtype_of(v: &[Scalar]) -> DType {
    if v.iter().any(|s| matches!(s, Scalar::Float(_))) {
        default_dtype()
    } else if v.iter().all(|s| matches!(s, Scalar::Bool(_))) {
        DType::Bool
    } else {
        DType::Int64
    }
}
/// A line is a function of numbers: `|dtype| array`, where `dtype` is the one given, or that of `out`.
macro_rules! new {
    ($($(#[doc = $doc:literal])* $name:ident($($attr:ident: $ty:ty $(= $default:expr)?),*) $schema:literal $(overload $python:ident)? |$dtype:ident| $array:expr;)*) => { $(function! {
        $(#[doc = $doc])*
        fn $name(; $($attr: $ty $(= $default)?),*; *, out: Option<Tensor> = None, dtype: Option<DType> = None, layout: Option<Strided> = None, device: Option<Cpu> = None, pin_memory: Option<bool> = None, requires_grad: bool = false) -> Tensor;
        $(overload $python;)?
        on [function];
        schema $schema;
        {
            let $dtype = dtype.or_else(|| out.as_ref().map(Tensor::dtype));
            let a: Result<Array> = $array;
            leaf(stringify!($name), out, a?, requires_grad)
        }
    })* };
}
fn float(dtype: Option<DType>) -> DType {
    dtype.unwrap_or_else(default_dtype)
}
new! {
    /// Zeros.
    zeros_sized(size: Sizes) "zeros" overload zeros |dtype| Array::zeros(given_size("zeros", &size)?, float(dtype));
    /// Ones.
    ones(size: Sizes) "ones" |dtype| Array::full(given_size("ones", &size)?, float(dtype), Scalar::Int(1));
    /// One value in every element. Without `dtype` it is that of the value: bool, int64 or the default float.
    full(size: Sizes, fill_value: Scalar) "full" |dtype| {
        Array::full(given_size("full", &size)?, dtype.unwrap_or_else(|| dtype_of(&[fill_value])), fill_value)
    };
    /// The numbers from 0 to `end`, which is left out.
    arange_to(end: Scalar) "arange" overload arange |dtype| {
        create::arange(Scalar::Int(0), end, Scalar::Int(1), dtype.unwrap_or_else(|| counted(&[end])))
    };
    /// The numbers from `start` to `end`, which is left out, by `step`. Integers give int64, else the dtype is the default float.
    arange(start: Scalar, end: Scalar, step: Scalar = Scalar::Int(1)) "arange.start_step" |dtype| {
        create::arange(start, end, step, dtype.unwrap_or_else(|| counted(&[start, end, step])))
    };
    /// The numbers from `start` to `end`, which belongs to them, by `step`.
    range(start: Scalar, end: Scalar, step: Scalar = Scalar::Int(1)) "range.step" |dtype| create::range(start, end, step, float(dtype));
    /// `steps` numbers from `start` to `end`, both included, at equal distances.
    linspace(start: Scalar, end: Scalar, steps: i64) "linspace" |dtype| create::linspace(start, end, steps, float(dtype));
    /// `steps` powers of `base`; the exponents run from `start` to `end` at equal distances.
    logspace(start: Scalar, end: Scalar, steps: i64, base: f64 = 10.0) "logspace" |dtype| create::logspace(start, end, steps, base, float(dtype));
    /// The unit matrix of `n` rows and columns.
    eye(n: i64) "eye" |dtype| unit(n, n, float(dtype));
    /// `n` rows and `m` columns with ones on the diagonal.
    eye_rectangular(n: i64, m: i64) "eye.m" overload eye |dtype| unit(n, m, float(dtype));
    /// A 0-d tensor.
    scalar_tensor(s: Scalar) "scalar_tensor" |dtype| Array::scalar(s, float(dtype));
    /// Row and column numbers of the elements on and below diagonal `offset` of a matrix: [2, n].
    tril_indices(row: i64, col: i64, offset: i64 = 0) "tril_indices" |dtype| triangle("tril_indices", row, col, offset, false, dtype);
    /// Row and column numbers of the elements on and above diagonal `offset` of a matrix: [2, n].
    triu_indices(row: i64, col: i64, offset: i64 = 0) "triu_indices" |dtype| triangle("triu_indices", row, col, offset, true, dtype);
}
/// What `arange` counts in: bools as integers.
fn counted(v: &[Scalar]) -> DType {
    if dtype_of(v).is_float() { default_dtype() } else { DType::Int64 }
}
fn unit(n: i64, m: i64, dtype: DType) -> Result<Array> {
    if n < 0 || m < 0 {
        bail!(Runtime, "eye(): n must be greater or equal to 0, and m too, got n={n} and m={m}");
    }
    create::eye(n, m, dtype)
}
fn triangle(op: &str, rows: i64, cols: i64, k: i64, upper: bool, dtype: Option<DType>) -> Result<Array> {
    if rows < 0 || cols < 0 {
        bail!(Runtime, "{op}(): row and col must be non-negative, got {rows} and {cols}");
    }
    if upper {
        create::triu_indices(rows, cols, k, dtype.unwrap_or(DType::Int64))
    } else {
        create::tril_indices(rows, cols, k, dtype.unwrap_or(DType::Int64))
    }
}
function! {
    /// Elements of unspecified value.
    fn empty(; size: Sizes; *, out: Option<Tensor> = None, dtype: Option<DType> = None, layout: Option<Strided> = None, device: Option<Cpu> = None, pin_memory: Option<bool> = None, requires_grad: bool = false, memory_format: Option<String> = None) -> Tensor;
    on [function];
    schema "empty.memory_format";
    {
        let dtype = dtype.or_else(|| out.as_ref().map(Tensor::dtype));
        leaf("empty", out, Array::empty(given_size("empty", &size)?, float(dtype))?, requires_grad)
    }
}
fn strided(op: &'static str, size: &Sizes, stride: &Ints, dtype: DType) -> Result<Array> {
    let shape = given_size(op, size)?;
    if stride.len() != size.len() {
        bail!(Runtime, "{op}(): mismatch in length of strides and shape: size {size:?}, stride {stride:?}");
    }
    if stride.iter().any(|s| *s < 0) {
        bail!(Runtime, "{op}(): strides must not be negative, got {stride:?}");
    }
    Array::empty_strided(shape, stride.iter().map(|&s| s as usize).collect(), dtype)
}
function! {
    /// Elements of unspecified value, with the given strides (in elements).
    fn empty_strided(; size: Sizes, stride: Ints; *, dtype: Option<DType> = None, layout: Option<Strided> = None, device: Option<Cpu> = None, pin_memory: Option<bool> = None, requires_grad: bool = false) -> Tensor;
    on [function];
    schema "empty_strided";
    {
        leaf("empty_strided", None, strided("empty_strided", &size, &stride, float(dtype))?, requires_grad)
    }
}
/// A line is a function of a tensor and numbers: `|array, dtype| array`; dtype and layout in memory are the tensor's unless given.
macro_rules! like {
    ($($(#[doc = $doc:literal])* $name:ident($($attr:ident: $ty:ty),*) $schema:literal |$a:ident, $dtype:ident| $array:expr;)*) => { $(function! {
        $(#[doc = $doc])*
        fn $name(self_; $($attr: $ty,)* memory_format: Option<String> = None; *, dtype: Option<DType> = None, layout: Option<Strided> = None, device: Option<Cpu> = None, pin_memory: Option<bool> = None, requires_grad: bool = false) -> Tensor;
        on [function];
        schema $schema;
        {
            let $a = alike(self_, memory_format);
            let $dtype = dtype.unwrap_or($a.dtype);
            let a: Result<Array> = $array;
            leaf(stringify!($name), None, a?, requires_grad)
        }
    })* };
}
/// What a result is to look like: the tensor itself, or the tensor as if it were row-major.
pub(super) fn alike(t: &Tensor, memory_format: Option<String>) -> Array {
    let a = t.array();
    if memory_format.as_deref() == Some("contiguous_format") { a.view(a.shape, a.shape.strides(), 0) } else { a }
}
like! {
    /// Zeros of the shape of `self`.
    zeros_like() "zeros_like" |a, dtype| create::full_like(&a, dtype, Scalar::Int(0));
    /// Ones of the shape of `self`.
    ones_like() "ones_like" |a, dtype| create::full_like(&a, dtype, Scalar::Int(1));
    /// One value in the shape of `self`.
    full_like(fill_value: Scalar) "full_like" |a, dtype| create::full_like(&a, dtype, fill_value);
    /// Elements of unspecified value, of the shape of `self`.
    empty_like() "empty_like" |a, dtype| create::empty_like(&a, dtype);
}
/// As `like`, of a size of its own.
macro_rules! new_of {
    ($($(#[doc = $doc:literal])* $name:ident($($attr:ident: $ty:ty),*) $schema:literal |$dtype:ident| $array:expr;)*) => { $(function! {
        $(#[doc = $doc])*
        fn $name(self_; $($attr: $ty),*; *, dtype: Option<DType> = None, layout: Option<Strided> = None, device: Option<Cpu> = None, pin_memory: Option<bool> = None, requires_grad: bool = false) -> Tensor;
        on [method];
        schema $schema;
        {
            let $dtype = dtype.unwrap_or_else(|| self_.dtype());
            let a: Result<Array> = $array;
            leaf(stringify!($name), None, a?, requires_grad)
        }
    })* };
}
new_of! {
    /// Zeros, of the dtype of `self` unless another is given.
    new_zeros(size: Sizes) "new_zeros" |dtype| Array::zeros(given_size("new_zeros", &size)?, dtype);
    /// Ones, of the dtype of `self` unless another is given.
    new_ones(size: Sizes) "new_ones" |dtype| Array::full(given_size("new_ones", &size)?, dtype, Scalar::Int(1));
    /// One value, of the dtype of `self` unless another is given.
    new_full(size: Sizes, fill_value: Scalar) "new_full" |dtype| Array::full(given_size("new_full", &size)?, dtype, fill_value);
    /// Elements of unspecified value, of the dtype of `self` unless another is given.
    new_empty(size: Sizes) "new_empty" |dtype| Array::empty(given_size("new_empty", &size)?, dtype);
    /// Elements of unspecified value with the given strides, of the dtype of `self` unless another is given.
    new_empty_strided(size: Sizes, stride: Ints) "new_empty_strided" |dtype| strided("new_empty_strided", &size, &stride, dtype);
}
