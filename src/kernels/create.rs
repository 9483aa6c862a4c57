//! Arrays made from a rule: one number, counts, even steps, ones on a diagonal. Where torch's last bit depends on the order of its steps
//! (which product is fused, what is rounded in between), that order is kept.
use super::math::Real;
use super::simd::simd;
use crate::array::{Array, Fresh};
use crate::dtype::{Cast, DType, Element, Scalar, Truth, for_dtype};
use crate::error::{Error, Result, bail};
use crate::layout::{Dims, given_size};
use half::{bf16, f16};

/// Elements made at a time: they stay in the first-level cache.
const CHUNK: usize = 1024;
/// A type that elements are made in before they are stored.
pub(super) trait Made:
    Element + Cast<Truth> + Cast<u8> + Cast<i8> + Cast<i16> + Cast<i32> + Cast<i64> + Cast<f16> + Cast<bf16> + Cast<f32> + Cast<f64>
{
}
impl Made for f32 {}
impl Made for f64 {}
impl Made for i64 {}
/// A fresh array of `dtype`, its elements made in order by calls of `next`, each for a chunk.
pub(super) fn make<S: Made>(shape: Dims, dtype: DType, next: &mut dyn FnMut(&mut [S])) -> Result<Array> {
    let mut to = Fresh::new(shape, dtype)?;
    if dtype == S::DTYPE {
        to.slice_mut().chunks_mut(CHUNK).for_each(next);
    } else {
        let mut block = [S::default(); CHUNK];
        for_dtype!(dtype, T => for o in to.slice_mut::<T>().chunks_mut(CHUNK) {
            let b = &mut block[..o.len()];
            next(b);
            for (o, b) in o.iter_mut().zip(b) {
                *o = b.cast();
            }
        });
    }
    Ok(to.done())
}
/// A fresh array of `dtype` of the elements given.
pub(super) fn stored<S: Made>(shape: Dims, dtype: DType, mut from: &[S]) -> Result<Array> {
    make(shape, dtype, &mut |o: &mut [S]| {
        let (now, later) = from.split_at(o.len());
        o.copy_from_slice(now);
        from = later;
    })
}
/// The largest finite value of a float type.
pub(super) fn max_of(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => f16::MAX.to_f64(),
        DType::BFloat16 => bf16::MAX.to_f64(),
        DType::Float32 => f32::MAX as f64,
        _ => f64::MAX,
    }
}
/// The least and the greatest value of an integer type (bool is one here).
pub(super) fn int_bounds(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::Bool => (0, 1),
        DType::UInt8 => (0, u8::MAX as i64),
        DType::Int8 => (i8::MIN as i64, i8::MAX as i64),
        DType::Int16 => (i16::MIN as i64, i16::MAX as i64),
        DType::Int32 => (i32::MIN as i64, i32::MAX as i64),
        _ => (i64::MIN, i64::MAX),
    }
}
/// The value as a half-precision type would hold it; other types round nothing here.
pub(super) fn round_half(dtype: DType, v: f32) -> f32 {
    match dtype {
        DType::Float16 => Cast::<f16>::cast(v).cast(),
        DType::BFloat16 => Cast::<bf16>::cast(v).cast(),
        _ => v,
    }
}
/// Refuses a number that the type cannot hold; fractions are cut off, infinities kept, and bool holds anything.
pub fn check_fits(v: Scalar, dtype: DType) -> Result<()> {
    let fits = match v {
        _ if dtype == DType::Bool => true,
        _ if dtype.is_float() => !v.to_f64().is_finite() || v.to_f64().abs() <= max_of(dtype),
        Scalar::Float(f) => f.trunc() >= int_bounds(dtype).0 as f64 && f.trunc() <= int_bounds(dtype).1 as f64,
        v => (int_bounds(dtype).0..=int_bounds(dtype).1).contains(&v.to_i64()),
    };
    if !fits {
        bail!(Runtime, "value cannot be converted to type {} without overflow: {}", dtype.name(), v.to_f64());
    }
    Ok(())
}
pub fn full(shape: Dims, value: Scalar, dtype: DType) -> Result<Array> {
    check_fits(value, dtype)?;
    shape.checked_numel()?;
    Array::full(shape, dtype, value)
}

/// `start, start + step, ...` below (above, for a negative step) `end`: ceil((end - start) / step) elements, counted exactly for integers.
pub fn arange(start: Scalar, end: Scalar, step: Scalar, dtype: DType) -> Result<Array> {
    if dtype == DType::Bool {
        return Err(Box::new(Error::Unsupported { op: "arange", dtype }));
    }
    let (a, b, s) = (start.to_f64(), end.to_f64(), step.to_f64());
    if s == 0.0 || s.is_nan() {
        bail!(Runtime, "arange(): step must be nonzero, got {s}");
    }
    if !(a.is_finite() && b.is_finite()) {
        bail!(Runtime, "arange(): unsupported range: {a} -> {b}");
    }
    if (s > 0.0 && a > b) || (s < 0.0 && a < b) {
        bail!(Runtime, "arange(): upper bound and lower bound inconsistent with step sign: from {a} to {b} in steps of {s}");
    }
    let (first, by) = (start.to_i64(), step.to_i64());
    if !dtype.is_float() && by == 0 {
        bail!(Value, "arange(): step must be nonzero, but {s} is 0 as {}", dtype.name());
    }
    let n = if dtype == DType::Int64 {
        let (span, by) = (end.to_i64() as i128 - first as i128, by as i128);
        (span.div_euclid(by) + (span.rem_euclid(by) != 0 && by > 0) as i128).max(0) as u64
    } else {
        ((b - a) / s).ceil() as u64
    };
    if n > i64::MAX as u64 || ((b - a) / s).ceil() >= i64::MAX as f64 {
        bail!(Runtime, "arange(): invalid size, possible overflow? from {a} to {b} in steps of {s}");
    }
    let shape = Dims::of(&[n as usize]);
    shape.checked_numel()?;
    let mut i = 0;
    match dtype {
        DType::Float64 => make(shape, dtype, &mut |o| ramp(o, &mut i, n as usize, 4, a, s, &|v| v)),
        DType::Float32 => make(shape, dtype, &mut |o| ramp(o, &mut i, n as usize, 8, a, s, &|v| v as f32 as f64)),
        d if d.is_float() => make(shape, d, &mut |o| ramp(o, &mut i, n as usize, 16, a as f32, s as f32, &|v| round_half(d, v))),
        _ => make(shape, dtype, &mut |o: &mut [i64]| {
            let mut v = first.wrapping_add(by.wrapping_mul(i as i64));
            i += o.len();
            for o in o {
                (*o, v) = (v, v.wrapping_add(by));
            }
        }),
    }
}
simd! {
    /// The elements from number `i` on of `n`, a step apart. As torch's vector loop makes them: `lanes` at once, counted from a start that
    /// is rounded to the stored type, while two vectors are full; the rest one by one.
    fn ramp<A: Real>(out: &mut [A], i: &mut usize, n: usize, lanes: usize, start: A, step: A, rounded: &dyn Fn(A) -> A) {
        let mut lane = [A::ZERO; 16];
        for (k, lane) in lane.iter_mut().enumerate() {
            *lane = A::lit(k as f64);
        }
        for o in out.chunks_mut(lanes) {
            let number = A::lit(*i as f64);
            let vector = *i < n / (2 * lanes) * (2 * lanes);
            let base = if vector { rounded(number.fma::<FMA>(step, start)) } else { start };
            for (o, &k) in o.iter_mut().zip(&lane) {
                *o = if vector { k } else { number + k }.fma::<FMA>(step, base);
            }
            *i += o.len();
        }
    }
}
/// `steps` numbers from `start` to `end`, both included, evenly spaced; the second half is counted from the end.
pub fn linspace(start: Scalar, end: Scalar, steps: i64, dtype: DType) -> Result<Array> {
    let shape = steps_of("linspace", start, end, steps, dtype)?;
    let (n, half) = (steps as usize, steps.max(2) as usize / 2);
    let last = n.saturating_sub(1);
    let mut i = 0;
    match dtype {
        DType::Float32 => {
            let (a, b) = (start.to_f64() as f32, end.to_f64() as f32);
            make(shape, dtype, &mut |o| even(o, &mut i, half, last, a, b, (b - a) / last.max(1) as f32))
        }
        // Half precision is rounded after each operation.
        d if d.is_float() && d != DType::Float64 => {
            let r = |v: f32| round_half(d, v);
            let (a, b) = (r(start.to_f64() as f32), r(end.to_f64() as f32));
            let step = r(r(b - a) / r(last.max(1) as f32));
            make(shape, d, &mut |o: &mut [f32]| {
                for o in o {
                    let way = |steps: usize| r(step * r(steps as f32));
                    *o = if i < half { r(a + way(i)) } else { r(b - way(last - i)) };
                    i += 1;
                }
            })
        }
        _ => {
            let whole = |v: Scalar| if dtype == DType::Float64 { v.to_f64() } else { v.to_i64() as f64 };
            let (a, b) = (whole(start), whole(end));
            make(shape, dtype, &mut |o| even(o, &mut i, half, last, a, b, (b - a) / last.max(1) as f64))
        }
    }
}
simd! {
    fn even<A: Real>(out: &mut [A], i: &mut usize, half: usize, last: usize, start: A, end: A, step: A) {
        for o in out.iter_mut() {
            let near = *i < half;
            let way = A::lit(if near { *i } else { last - *i } as f64);
            *o = way.fma::<FMA>(if near { step } else { -step }, if near { start } else { end });
            *i += 1;
        }
    }
}
/// `base` to the power of evenly spaced numbers, computed in float64 from ends that the dtype holds.
pub fn logspace(start: Scalar, end: Scalar, steps: i64, base: f64, dtype: DType) -> Result<Array> {
    let shape = steps_of("logspace", start, end, steps, dtype)?;
    let held = |v: Scalar| Array::scalar(v, dtype).map(|a| a.item().to_f64());
    let (a, b) = (held(start)?, held(end)?);
    let (half, last) = (steps.max(2) as usize / 2, (steps as usize).saturating_sub(1));
    let step = held((b - a).into())? / last.max(1) as f64;
    let mut i = 0;
    make(shape, dtype, &mut |o: &mut [f64]| {
        for o in o {
            *o = base.powf(if i < half { a + step * i as f64 } else { b - step * (last - i) as f64 }); // not fused here
            i += 1;
        }
    })
}
fn steps_of(op: &'static str, start: Scalar, end: Scalar, steps: i64, dtype: DType) -> Result<Dims> {
    if steps < 0 {
        bail!(Runtime, "{op}(): number of steps must be non-negative, got {steps}");
    }
    if dtype == DType::Bool {
        return Err(Box::new(Error::Unsupported { op, dtype }));
    }
    check_fits(start, dtype)?;
    check_fits(end, dtype)?;
    let shape = Dims::of(&[steps as usize]);
    shape.checked_numel()?;
    Ok(shape)
}
/// Ones on the diagonal of `n` by `m`.
pub fn eye(n: i64, m: i64, dtype: DType) -> Result<Array> {
    for (name, v) in [("n", n), ("m", m)] {
        if v < 0 {
            bail!(Runtime, "eye(): {name} must be greater or equal to 0, got {v}");
        }
    }
    let shape = given_size("eye", &[n, m])?;
    let (n, m) = (n as usize, m as usize);
    let mut to = Fresh::new(shape, dtype)?;
    to.bytes_mut().fill(0);
    for_dtype!(dtype, T => to.slice_mut::<T>().iter_mut().step_by(m + 1).take(n.min(m)).for_each(|o| *o = <T as Element>::of(true.into())));
    Ok(to.done())
}
/// Rows and columns of the elements on and below the `k`th diagonal of `n` by `m`, as two rows.
pub fn tril_indices(n: i64, m: i64, k: i64, dtype: DType) -> Result<Array> {
    triangle("tril_indices", n, m, dtype, |row| 0..row.saturating_add(k).saturating_add(1).clamp(0, m))
}
/// Rows and columns of the elements on and above the `k`th diagonal of `n` by `m`, as two rows.
pub fn triu_indices(n: i64, m: i64, k: i64, dtype: DType) -> Result<Array> {
    triangle("triu_indices", n, m, dtype, |row| row.saturating_add(k).clamp(0, m)..m)
}
fn triangle(op: &'static str, n: i64, m: i64, dtype: DType, columns: impl Fn(i64) -> std::ops::Range<i64>) -> Result<Array> {
    for (name, v) in [("row", n), ("col", m)] {
        if v < 0 {
            bail!(Runtime, "{op}(): {name} must be non-negative, got {v}");
        }
    }
    if !dtype.is_int() {
        return Err(Box::new(Error::Unsupported { op, dtype }));
    }
    given_size(op, &[n, m, 2])?;
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    for row in 0..n {
        rows.extend(columns(row).map(|_| row));
        all.extend(columns(row));
    }
    let total = rows.len();
    rows.append(&mut all);
    stored(Dims::of(&[2, total]), dtype, &rows)
}

/// As `arange` with the end included (`torch.range`).
pub fn range(start: Scalar, end: Scalar, step: Scalar, dtype: DType) -> Result<Array> {
    let (a, b, s) = (start.to_f64(), end.to_f64(), step.to_f64());
    let past = if s == 0.0 || !s.is_finite() || !a.is_finite() || !b.is_finite() || (b - a) * s < 0.0 {
        end
    } else {
        Scalar::Float(a + (((b - a) / s).floor() + 0.5) * s)
    };
    arange(start, past, step, dtype)
}
/// One value in every element, laid out in memory as `like` is.
pub fn full_like(like: &Array, dtype: DType, v: Scalar) -> Result<Array> {
    let out = empty_like(like, dtype)?;
    super::pointwise::fill(&out, v)?;
    Ok(out)
}
/// Unspecified elements, laid out in memory as those of `like` are, without gaps.
pub fn empty_like(like: &Array, dtype: DType) -> Result<Array> {
    Array::empty_strided(like.shape, super::pointwise::fresh_strides(&[like], &like.shape), dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;
    fn near(a: Result<Array>, dtype: DType, expected: &[f64]) {
        let a = a.unwrap();
        assert_eq!((a.dtype, a.to_vec()), (dtype, expected.to_vec()));
    }
    fn refused<T>(r: Result<T>, class: &str) {
        let e = r.err().unwrap();
        assert_eq!(format!("{:?}", e.python_class()), class, "{e}");
    }
    fn up(start: impl Into<Scalar>, end: impl Into<Scalar>, step: impl Into<Scalar>, dtype: DType) -> Result<Array> {
        arange(start.into(), end.into(), step.into(), dtype)
    }
    #[test]
    fn ranges_have_torchs_length() {
        near(up(0i64, 5i64, 1i64, Int64), Int64, &[0., 1., 2., 3., 4.]);
        near(up(5i64, 0i64, -2i64, Int64), Int64, &[5., 3., 1.]);
        near(up(0i64, 5i64, 2i64, Int64), Int64, &[0., 2., 4.]);
        near(up(0i64, 4i64, 2i64, Int64), Int64, &[0., 2.]);
        near(up(4i64, 0i64, -2i64, Int64), Int64, &[4., 2.]);
        near(up(3i64, 3i64, 1i64, Int64), Int64, &[]);
        near(up(250i64, 260i64, 1i64, UInt8), UInt8, &[250., 251., 252., 253., 254., 255., 0., 1., 2., 3.]);
        near(up(0i64, 1i64 << 62, 1i64 << 61, Int64), Int64, &[0., (1i64 << 61) as f64]);
        near(up(i64::MIN, i64::MAX, 1i64 << 62, Int64), Int64, &[i64::MIN as f64, -(1i64 << 62) as f64, 0., (1i64 << 62) as f64]);
        near(up(0i64, 2.5, 1i64, Int64), Int64, &[0., 1.]);
        near(
            up(0.0, 1.0, 0.1, Float64),
            Float64,
            &[0.0, 0.1, 0.2, 0.1f64.mul_add(3.0, 0.0), 0.4, 0.5, 0.1f64.mul_add(6.0, 0.0), 0.1f64.mul_add(7.0, 0.0), 0.8, 0.9],
        );
        near(up(0.0, 5.0, 0.5, BFloat16), BFloat16, &[0., 0.5, 1., 1.5, 2., 2.5, 3., 3.5, 4., 4.5]);
        assert_eq!(up(0.0, 1.0, 0.1, Float32).unwrap().to_vec()[9], 0.8999999761581421);
        let long = up(0.0, 100.0, 0.1, Float32).unwrap().to_vec();
        assert_eq!((long.len(), long[3], long[511]), (1000, 0.30000001192092896, 51.10000228881836));
        refused(up(0i64, 5i64, 0i64, Int64), "Runtime");
        refused(up(0i64, 5i64, 0.5, Int64), "Value");
        refused(up(0.0, f64::INFINITY, 1.0, Float32), "Runtime");
        refused(up(0.0, f64::NAN, 1.0, Float32), "Runtime");
        refused(up(0.0, 1.0, f64::NAN, Float32), "Runtime");
        refused(up(5i64, 0i64, 1i64, Int64), "Runtime");
        refused(up(0i64, 5i64, -1i64, Int64), "Runtime");
        refused(up(0.0, 1e30, 1.0, Float32), "Runtime");
        refused(up(i64::MIN, i64::MAX, 1i64, Int64), "Runtime");
        refused(up(0i64, 1i64 << 62, 1i64, Int64), "Runtime");
        refused(up(0i64, 2i64, 1i64, Bool), "NotImplemented");
    }
    #[test]
    fn spaces_meet_both_ends() {
        let line = |a: f64, b: f64, n, dtype| linspace(a.into(), b.into(), n, dtype);
        near(line(0., 1., 5, Float32), Float32, &[0., 0.25, 0.5, 0.75, 1.]);
        near(line(2., 1., 1, Float32), Float32, &[2.]);
        near(line(2., 1., 0, Float32), Float32, &[]);
        near(line(0., 10., 5, Int64), Int64, &[0., 2., 5., 7., 10.]);
        near(line(-10., 10., 7, Int32), Int32, &[-10., -6., -3., 0., 3., 6., 10.]);
        for dtype in [Float16, BFloat16, Float32, Float64] {
            for n in [2, 3, 100, 1030] {
                let v = line(-3., 7.7, n, dtype).unwrap().to_vec();
                let held = |x: f64| Array::scalar(x.into(), dtype).unwrap().item().to_f64();
                assert_eq!((v[0], v[n as usize - 1]), (held(-3.), held(7.7)));
                assert!(v.iter().enumerate().all(|(i, v)| (v + 3. - 10.7 * i as f64 / (n - 1) as f64).abs() < 0.1), "{dtype:?} {n}");
            }
        }
        refused(line(0., 1., -1, Float32), "Runtime");
        refused(line(0., 300., 4, UInt8), "Runtime");
        refused(line(0., 1., 3, Bool), "NotImplemented");
        assert!(line(0., f64::INFINITY, 3, Float32).unwrap().to_vec()[0].is_nan());
        let power = |a: f64, b: f64, n, base, dtype| logspace(a.into(), b.into(), n, base, dtype);
        near(power(0., 2., 3, 10., Int64), Int64, &[1., 10., 100.]);
        near(power(0., 2., 5, 2., Float32), Float32, &[1., 1.4142135381698608, 2., 2.8284270763397217, 4.]);
        near(power(3., 2., 1, 2., Float32), Float32, &[8.]);
        refused(power(0., 2., -1, 2., Float32), "Runtime");
    }
    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        near(full(Dims::of(&[2]), 3i64.into(), Float16), Float16, &[3., 3.]);
        near(full(Dims::of(&[1]), 2.9.into(), UInt8), UInt8, &[2.]);
        near(full(Dims::of(&[1]), f64::INFINITY.into(), Float16), Float16, &[f64::INFINITY]);
        near(full(Dims::of(&[1]), 7.0.into(), Bool), Bool, &[1.]);
        for (v, dtype) in [
            (Scalar::Int(300), UInt8),
            (Scalar::Int(-1), UInt8),
            (Scalar::Float(1e39), Float32),
            (Scalar::Float(7e4), Float16),
            (Scalar::Float(f64::NAN), Int32),
        ] {
            refused(full(Dims::of(&[1]), v, dtype), "Runtime");
        }
    }
    #[test]
    fn diagonals_and_triangles() {
        near(eye(2, 3, Float32), Float32, &[1., 0., 0., 0., 1., 0.]);
        near(eye(3, 1, Bool), Bool, &[1., 0., 0.]);
        near(eye(0, 3, Float32), Float32, &[]);
        refused(eye(-1, 2, Float32), "Runtime");
        refused(eye(2, -1, Float32), "Runtime");
        for (n, m) in [(3, 4), (4, 3), (0, 4), (2, 0)] {
            for k in [-5, -1, 0, 1, 5, i64::MIN, i64::MAX] {
                for lower in [true, false] {
                    let on = |r: i64, c: i64| if lower { (c - r) as i128 <= k as i128 } else { (c - r) as i128 >= k as i128 };
                    let cells: Vec<(i64, i64)> = (0..n).flat_map(|r| (0..m).map(move |c| (r, c))).filter(|&(r, c)| on(r, c)).collect();
                    let expected: Vec<f64> = cells.iter().map(|c| c.0 as f64).chain(cells.iter().map(|c| c.1 as f64)).collect();
                    near(if lower { tril_indices(n, m, k, Int32) } else { triu_indices(n, m, k, Int32) }, Int32, &expected);
                }
            }
        }
        refused(triu_indices(-1, 4, 1, Int64), "Runtime");
        refused(tril_indices(3, 4, 0, Float32), "NotImplemented");
    }
}
