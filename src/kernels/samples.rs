//! For the tests of kernels: arrays of many layouts, and comparison with plain loops over f64.
use crate::array::{Array, Fresh};
use crate::dtype::{DType, Element, Scalar, for_dtype};
use crate::layout::Dims;

/// `n` numbers that any dtype holds exactly, a few of them 0, and differing enough to tell elements apart.
pub fn values(n: usize, dtype: DType, seed: usize) -> Vec<f64> {
    (0..n)
        .map(|i| {
            let r = ((i + seed * 77).wrapping_mul(2654435761) >> 7) % 41;
            match dtype {
                DType::Bool => r.is_multiple_of(3) as u8 as f64,
                DType::UInt8 => (r % 5) as f64,
                d if d.is_float() => (r as f64 - 20.0) / 8.0,
                _ => r as f64 % 7.0 - 3.0,
            }
        })
        .collect()
}
pub fn array(shape: &[usize], dtype: DType, v: &[f64]) -> Array {
    let mut f = Fresh::new(Dims::of(shape), dtype).unwrap();
    for_dtype!(dtype, T => f.slice_mut::<T>().iter_mut().zip(v).for_each(|(o, &v)| *o = <T as Element>::of(Scalar::Float(v))));
    f.done()
}
/// Arrays of one shape and dtype: row-major, axes in reverse order in memory, every second element from the second on, repeated along the first and
/// along the last axis, inner axes swapped.
pub fn layouts(shape: &[usize], dtype: DType) -> Vec<Array> {
    let n = shape.len();
    let numel: usize = shape.iter().product();
    let dims = Dims::of(shape);
    let mut all = vec![array(shape, dtype, &values(numel, dtype, 1))];
    let mut permuted = |order: &[usize], seed: usize, gap: usize| {
        let memory: Vec<usize> = order.iter().map(|&i| shape[i]).collect();
        let s = Dims::of(&memory).strides();
        let strides = (0..n).map(|i| gap * s[order.iter().position(|&o| o == i).unwrap()]).collect();
        let base = array(&[gap * numel + 1], dtype, &values(gap * numel + 1, dtype, seed));
        all.push(base.view(dims, strides, gap - 1));
    };
    permuted(&(0..n).rev().collect::<Vec<_>>(), 2, 1);
    permuted(&(0..n).collect::<Vec<_>>(), 3, 2);
    if n >= 3 {
        permuted(&[&[1, 0], &(2..n).collect::<Vec<_>>()[..]].concat(), 4, 1);
        permuted(&[&(0..n - 2).collect::<Vec<_>>()[..], &[n - 1, n - 2]].concat(), 5, 1);
    }
    for axis in if n == 0 { vec![] } else { vec![0, n - 1] } {
        let strides = all[0].strides.with(|s| s[axis] = 0);
        all.push(all[0].view(dims, strides, 0));
    }
    all
}
/// The elements along axes that become one result, for each result in row-major order.
pub fn groups(a: &Array, dims: &[usize]) -> (Vec<usize>, Vec<Vec<f64>>) {
    let kept: Vec<usize> = (0..a.ndim()).filter(|i| !dims.contains(i)).map(|i| a.shape[i]).collect();
    let mut groups = vec![Vec::new(); kept.iter().product()];
    let mut index = vec![0; a.ndim()];
    for v in a.to_vec() {
        let at = (0..a.ndim()).filter(|i| !dims.contains(i)).fold(0, |at, i| at * a.shape[i] + index[i]);
        groups[at].push(v);
        for i in (0..a.ndim()).rev() {
            index[i] += 1;
            if index[i] < a.shape[i] {
                break;
            }
            index[i] = 0;
        }
    }
    (kept, groups)
}
/// What a dtype may be off, relative to numbers of size 1 or more.
pub fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::Float64 => 1e-13,
        DType::Float32 => 2e-6,
        DType::Float16 => 1e-3,
        DType::BFloat16 => 8e-3,
        _ => 0.0,
    }
}
pub fn assert_near(got: &Array, want: &[f64], tolerance: f64, what: &dyn std::fmt::Debug) {
    let got = got.to_vec();
    assert_eq!(got.len(), want.len(), "{what:?}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let near = (g - w).abs() <= tolerance * w.abs().max(1.0) || g == w || (g.is_nan() && w.is_nan());
        assert!(near, "{what:?}: [{i}] is {g}, not {w}");
    }
}
