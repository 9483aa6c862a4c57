//! Arrays made from numbers alone: ranges, the unit matrix, indices of triangles. Integers are counted in i64, everything else in f64, and
//! cast at the end.
use super::pointwise;
use crate::array::{Array, Fresh};
use crate::dtype::{Cast, DType, Scalar, for_dtype};
use crate::error::{Error, Result, bail};
use crate::layout::Dims;

/// A row of `n` elements: element i is `f(i)`.
fn row_of_ints(n: usize, dtype: DType, f: impl Fn(usize) -> i64) -> Result<Array> {
    let mut out = Fresh::new(Dims::of(&[n]), dtype)?;
    for_dtype!(dtype, T => out.slice_mut::<T>().iter_mut().enumerate().for_each(|(i, o)| *o = f(i).cast()));
    Ok(out.done())
}
fn row_of_floats(n: usize, dtype: DType, f: impl Fn(usize) -> f64) -> Result<Array> {
    let mut out = Fresh::new(Dims::of(&[n]), dtype)?;
    for_dtype!(dtype, T => out.slice_mut::<T>().iter_mut().enumerate().for_each(|(i, o)| *o = f(i).cast()));
    Ok(out.done())
}
fn no_bool(op: &'static str, dtype: DType) -> Result<()> {
    if dtype == DType::Bool { Err(Box::new(Error::Unsupported { op, dtype })) } else { Ok(()) }
}
/// `start`, `start + step`, .. up to but without `end`; with it if `closed`.
pub fn arange(op: &'static str, start: Scalar, end: Scalar, step: Scalar, dtype: DType, closed: bool) -> Result<Array> {
    no_bool(op, dtype)?;
    let (a, b, s) = (start.to_f64(), end.to_f64(), step.to_f64());
    if s == 0.0 {
        bail!(Runtime, "{op}(): step must be nonzero");
    }
    if !a.is_finite() || !b.is_finite() || s.is_nan() {
        bail!(Runtime, "{op}(): unsupported range: {a} -> {b}, step {s}");
    }
    if (s > 0.0 && a > b) || (s < 0.0 && a < b) {
        bail!(Runtime, "{op}(): upper bound and lower bound inconsistent with step sign: from {a} to {b} by {s}");
    }
    let n = match dtype {
        DType::Int64 => {
            let (a, b, s) = (start.to_i64() as i128, end.to_i64() as i128, step.to_i64() as i128);
            if s == 0 {
                bail!(Runtime, "{op}(): step must be nonzero: {step:?} is 0 as int64");
            }
            let last = b - if closed { 0 } else { s.signum() };
            if (last - a) * s < 0 { 0 } else { ((last - a) / s + 1) as usize }
        }
        _ if closed => ((b - a) / s).floor() as usize + 1,
        _ => ((b - a) / s).ceil() as usize,
    };
    Dims::of(&[n]).checked_numel()?;
    if dtype.is_float() {
        return row_of_floats(n, dtype, |i| a + i as f64 * s);
    }
    let (a, s) = (start.to_i64(), step.to_i64());
    row_of_ints(n, dtype, |i| a.wrapping_add((i as i64).wrapping_mul(s)))
}
/// `n` numbers at equal distances, both ends included; the second half is counted from the end, so that the end is met exactly.
fn spaced(n: i64, a: f64, b: f64, dtype: DType, f: impl Fn(f64) -> f64) -> Result<Array> {
    if n < 0 {
        bail!(Runtime, "number of steps must be non-negative, got {n}");
    }
    let n = n as usize;
    Dims::of(&[n]).checked_numel()?;
    let step = if n > 1 { (b - a) / (n - 1) as f64 } else { 0.0 };
    row_of_floats(n, dtype, |i| f(if i < n / 2 || n == 1 { a + i as f64 * step } else { b - (n - 1 - i) as f64 * step }))
}
pub fn linspace(a: f64, b: f64, n: i64, dtype: DType) -> Result<Array> {
    no_bool("linspace", dtype)?;
    spaced(n, a, b, dtype, |v| v)
}
/// Powers of `base`, the exponents at equal distances.
pub fn logspace(a: f64, b: f64, n: i64, base: f64, dtype: DType) -> Result<Array> {
    no_bool("logspace", dtype)?;
    spaced(n, a, b, dtype, |v| base.powf(v))
}
/// Ones on the diagonal, zeros elsewhere.
pub fn eye(n: usize, m: usize, dtype: DType) -> Result<Array> {
    Dims::of(&[n, m]).checked_numel()?;
    let out = Array::zeros(Dims::of(&[n, m]), dtype)?;
    pointwise::fill(&out.view(Dims::of(&[n.min(m)]), Dims::of(&[m + 1]), 0), Scalar::Int(1))?;
    Ok(out)
}
/// Row and column numbers, [2, n], of the elements of a rows x cols matrix on and below (or, if `upper`, above) diagonal `k`.
pub fn triangle_indices(rows: usize, cols: usize, k: i64, upper: bool, dtype: DType) -> Result<Array> {
    let columns = |r: usize| {
        let edge = r as i64 + k;
        if upper { edge.clamp(0, cols as i64) as usize..cols } else { 0..(edge + 1).clamp(0, cols as i64) as usize }
    };
    let all: Vec<(usize, usize)> = (0..rows).flat_map(|r| columns(r).map(move |c| (r, c))).collect();
    let n = all.len();
    let flat = row_of_ints(2 * n, dtype, |i| if i < n { all[i].0 } else { all[i - n].1 } as i64)?;
    let shape = Dims::of(&[2, n]);
    Ok(flat.view(shape, shape.strides(), 0))
}
/// One value in every element, laid out in memory as `like` is.
pub fn full_like(like: &Array, dtype: DType, v: Scalar) -> Result<Array> {
    let out = empty_like(like, dtype)?;
    pointwise::fill(&out, v)?;
    Ok(out)
}
/// Unspecified elements, laid out in memory as those of `like` are, without gaps.
pub fn empty_like(like: &Array, dtype: DType) -> Result<Array> {
    Array::empty_strided(like.shape, pointwise::fresh_strides(&[like], &like.shape), dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    fn range(a: impl Into<Scalar>, b: impl Into<Scalar>, s: impl Into<Scalar>, dtype: DType) -> Vec<f64> {
        arange("arange", a.into(), b.into(), s.into(), dtype, false).unwrap().to_vec()
    }
    #[test]
    fn ranges_leave_the_end_out() {
        assert_eq!(range(0, 5, 2, DType::Int64), [0., 2., 4.]);
        assert_eq!(range(5, 0, -2, DType::Int64), [5., 3., 1.]);
        assert_eq!(range(3, 3, 1, DType::Int64), []);
        assert_eq!(range(0.0, 1.0, 0.25, DType::Float32), [0., 0.25, 0.5, 0.75]);
        assert_eq!(range(0.5, 3, 1, DType::Int32), [0., 1., 2.]);
        assert_eq!(arange("range", 1.into(), 4.into(), 1.5.into(), DType::Float32, true).unwrap().to_vec(), [1., 2.5, 4.]);
        assert!(arange("arange", 0.into(), 5.into(), 0.into(), DType::Int64, false).is_err());
        assert!(arange("arange", 0.into(), 5.into(), (-1).into(), DType::Int64, false).is_err());
        assert!(arange("arange", 0.into(), f64::INFINITY.into(), 1.into(), DType::Float32, false).is_err());
        assert!(arange("arange", 0.into(), 1e300.into(), 1.into(), DType::Float32, false).is_err());
    }
    #[test]
    fn spaces_meet_both_ends() {
        assert_eq!(linspace(0.0, 1.0, 5, DType::Float64).unwrap().to_vec(), [0., 0.25, 0.5, 0.75, 1.]);
        assert_eq!(linspace(3.0, 8.0, 1, DType::Float64).unwrap().to_vec(), [3.]);
        assert_eq!(linspace(0.0, 7.0, 3, DType::Int64).unwrap().to_vec(), [0., 3., 7.]);
        assert_eq!(logspace(0.0, 2.0, 3, 10.0, DType::Float64).unwrap().to_vec(), [1., 10., 100.]);
        assert!(linspace(0.0, 1.0, -1, DType::Float32).is_err());
    }
    #[test]
    fn triangles_and_diagonals() {
        assert_eq!(eye(2, 3, DType::Int32).unwrap().to_vec(), [1., 0., 0., 0., 1., 0.]);
        assert_eq!(eye(0, 0, DType::Int32).unwrap().numel(), 0);
        assert_eq!(triangle_indices(2, 3, 0, false, DType::Int64).unwrap().to_vec(), [0., 1., 1., 0., 0., 1.]);
        assert_eq!(triangle_indices(2, 3, 1, true, DType::Int64).unwrap().to_vec(), [0., 0., 1., 1., 2., 2.]);
        let t = Array::zeros(Dims::of(&[2, 3]), DType::Float32).unwrap();
        let t = t.view(Dims::of(&[3, 2]), Dims::of(&[1, 3]), 0);
        assert_eq!(&*full_like(&t, DType::Float64, Scalar::Int(2)).unwrap().strides, &[1, 3]);
    }
}
