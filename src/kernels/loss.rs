//! Losses that pick classes by number: negative log likelihood and the multi-class margin. Those that go element by element are lines of
//! `table`. Sums are made in f64, in the order of the elements.
use super::pointwise::{contiguous, to_f64, to_i64};
use crate::array::{Array, Fresh};
use crate::dtype::{Cast, DType, Element, Scalar, for_dtype};
use crate::error::{Error, Result, bail, err};
use crate::layout::Dims;

/// What becomes of the elements of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reduction {
    None,
    Mean,
    Sum,
}
impl Reduction {
    /// torch's numbers.
    pub fn of(n: i64) -> Result<Reduction> {
        match n {
            0 => Ok(Reduction::None),
            1 => Ok(Reduction::Mean),
            2 => Ok(Reduction::Sum),
            _ => bail!(Value, "{n} is no reduction: 0 is none, 1 mean, 2 sum"),
        }
    }
}
/// Classes along dimension 1 (0 of a vector) of a dense array: `n` items before, `c` classes, `d` places after.
#[derive(Clone, Copy)]
struct Classes {
    n: usize,
    c: usize,
    d: usize,
}
impl Classes {
    fn of(shape: &Dims) -> Classes {
        match shape[..] {
            [c] => Classes { n: 1, c, d: 1 },
            [n, c, ref rest @ ..] => Classes { n, c, d: rest.iter().product() },
            [] => Classes { n: 1, c: 1, d: 1 },
        }
    }
    /// Calls `f` with the place in the target and in the array of each item's class, and its weight; ignored ones are left out.
    fn each(self, targets: &[i64], weights: Option<&[f64]>, ignore: i64, mut f: impl FnMut(usize, usize, f64)) -> Result<()> {
        for (at, &t) in targets.iter().enumerate().filter(|(_, t)| **t != ignore) {
            let class = usize::try_from(t).ok().filter(|t| *t < self.c);
            let class = class.ok_or_else(|| err!(Index, "Target {t} is out of bounds: there are {} classes", self.c))?;
            f(at, (at / self.d * self.c + class) * self.d + at % self.d, weights.map_or(1.0, |w| w[class]));
        }
        Ok(())
    }
}
fn check_float(op: &'static str, a: &Array) -> Result<()> {
    if a.dtype.is_float() { Ok(()) } else { Err(Box::new(Error::Unsupported { op, dtype: a.dtype })) }
}
fn check_nll(a: &Array, target: &Array, weight: Option<&Array>) -> Result<Classes> {
    check_float("nll_loss", a)?;
    if !matches!(target.dtype, DType::Int64 | DType::UInt8) {
        bail!(Runtime, "nll_loss(): expected target dtype to be Long or Byte, but got {}", target.dtype.torch_name());
    }
    let k = Classes::of(&a.shape);
    if a.ndim() == 0 || target.numel() != k.n * k.d {
        bail!(Runtime, "nll_loss(): size mismatch (got input: {:?}, target: {:?})", a.shape, target.shape);
    }
    if let Some(w) = weight
        && (w.ndim() != 1 || w.shape[0] != k.c)
    {
        bail!(
            Runtime,
            "weight tensor should be defined either for all {} classes or no classes but got weight tensor of shape: {:?}",
            k.c,
            w.shape
        );
    }
    Ok(k)
}
/// Minus the elements that the target names, weighted, and the total of the weights (0 without a reduction).
pub fn nll(a: &Array, target: &Array, weight: Option<&Array>, reduction: Reduction, ignore: i64) -> Result<(Array, Array)> {
    let k = check_nll(a, target, weight)?;
    let targets = to_i64(target)?;
    let weights = weight.map(to_f64).transpose()?;
    let x = contiguous(a)?;
    let mut each = vec![0f64; targets.len()];
    let mut total = 0.0;
    for_dtype!(a.dtype, T => {
        let x = x.slice::<T>();
        k.each(&targets, weights.as_deref(), ignore, |at, from, w| {
            each[at] = -w * x[from].scalar().to_f64();
            total += w;
        })?;
    });
    let scalar = |v: f64| Array::scalar(Scalar::Float(v), a.dtype);
    Ok(match reduction {
        Reduction::None => (stored(target.shape, a.dtype, &each)?, scalar(0.0)?),
        Reduction::Sum => (scalar(each.iter().sum())?, scalar(total)?),
        Reduction::Mean => (scalar(each.iter().sum::<f64>() / total)?, scalar(total)?),
    })
}
fn stored(shape: Dims, dtype: DType, v: &[f64]) -> Result<Array> {
    let mut out = Fresh::new(shape, dtype)?;
    for_dtype!(dtype, T => out.slice_mut::<T>().iter_mut().zip(v).for_each(|(o, v)| *o = v.cast()));
    Ok(out.done())
}
/// Gradient of `nll` by its operand, which is named by `shape` and `dtype`.
pub fn nll_backward(
    g: &Array,
    like: &Array,
    target: &Array,
    weight: Option<&Array>,
    total: &Array,
    reduction: Reduction,
    ignore: i64,
) -> Result<Array> {
    let k = check_nll(like, target, weight)?;
    let targets = to_i64(target)?;
    let weights = weight.map(to_f64).transpose()?;
    let g = to_f64(g)?;
    let scale = if reduction == Reduction::Mean { 1.0 / total.item().to_f64() } else { 1.0 };
    let mut out = Fresh::new(like.shape, like.dtype)?;
    out.bytes_mut().fill(0);
    for_dtype!(like.dtype, T => {
        let out = out.slice_mut::<T>();
        k.each(&targets, weights.as_deref(), ignore, |at, to, w| {
            let g = if reduction == Reduction::None { g[at] } else { g[0] };
            out[to] = T::of(Scalar::Float(-w * g * scale));
        })?;
    });
    Ok(out.done())
}
/// Sum over the classes j other than the target t of max(0, margin - x[t] + x[j])^p, weighted by t's weight, over the number of classes; an
/// element a row of `a` ([n, c], or [c] for one).
pub fn multi_margin(a: &Array, target: &Array, p: i64, margin: f64, weight: Option<&Array>) -> Result<Array> {
    check_float("multi_margin_loss", a)?;
    if !matches!(a.ndim(), 1 | 2) || a.shape[a.ndim() - 1] == 0 {
        bail!(Runtime, "multi_margin_loss(): Expected non-empty vector or matrix, but got shape {:?}", a.shape);
    }
    let k = Classes::of(&a.shape);
    if target.ndim() > 1 || target.numel() != k.n || target.dtype != DType::Int64 {
        bail!(
            Runtime,
            "multi_margin_loss(): inconsistent target size: expected {} int64 but got {:?} of {}",
            k.n,
            target.shape,
            target.dtype.name()
        );
    }
    if let Some(w) = weight
        && (w.ndim() > 1 || w.numel() != k.c)
    {
        bail!(Runtime, "multi_margin_loss(): inconsistent weight size: expected {} but got {:?}", k.c, w.shape);
    }
    let (x, targets) = (to_f64(a)?, to_i64(target)?);
    let weights = weight.map(to_f64).transpose()?;
    let mut each = Vec::with_capacity(k.n);
    for (row, &t) in x.chunks_exact(k.c).zip(targets.iter()) {
        let Some(t) = usize::try_from(t).ok().filter(|t| *t < k.c) else {
            bail!(Runtime, "multi_margin_loss(): target out of range: {t} of {} classes", k.c)
        };
        let z = row.iter().enumerate().filter(|(j, _)| *j != t).map(|(_, v)| (margin - row[t] + v).max(0.0));
        let sum: f64 = z.map(|z| if p == 1 { z } else { z * z }).sum();
        each.push(sum / k.c as f64 * weights.as_ref().map_or(1.0, |w| w[t]));
    }
    stored(target.shape, a.dtype, &each)
}

#[cfg(test)]
mod tests {
    use super::*;
    fn arr(shape: &[usize], v: &[f64]) -> Array {
        Array::from_slice(shape, v).unwrap()
    }
    #[test]
    fn a_class_is_picked_weighted_and_ignored() {
        let x = arr(&[3, 2], &[-1., -2., -3., -4., -5., -6.]);
        let t = Array::from_slice(&[3], &[0i64, 1, -7]).unwrap();
        let w = arr(&[2], &[1., 3.]);
        let run = |r| nll(&x, &t, Some(&w), r, -7).unwrap();
        assert_eq!(run(Reduction::None).0.to_vec(), [1., 12., 0.]);
        assert_eq!(run(Reduction::Sum).0.to_vec(), [13.]);
        assert_eq!((run(Reduction::Mean).0.to_vec(), run(Reduction::Mean).1.to_vec()), (vec![3.25], vec![4.]));
        let total = run(Reduction::Mean).1;
        let g = nll_backward(&arr(&[], &[2.]), &x, &t, Some(&w), &total, Reduction::Mean, -7).unwrap();
        assert_eq!(g.to_vec(), [-0.5, 0., 0., -1.5, 0., 0.]);
        assert!(matches!(*nll(&x, &t, None, Reduction::Sum, 0).unwrap_err(), Error::Index(_)));
        assert!(nll(&x, &arr(&[3], &[0.; 3]), None, Reduction::Sum, 0).is_err());
        assert!(nll(&x, &t, Some(&arr(&[3], &[1.; 3])), Reduction::Sum, -7).is_err());
    }
    #[test]
    fn classes_stand_before_places() {
        let x = arr(&[1, 2, 3], &[1., 2., 3., 4., 5., 6.]);
        let t = Array::from_slice(&[1, 3], &[0i64, 1, 0]).unwrap();
        assert_eq!(nll(&x, &t, None, Reduction::None, -1).unwrap().0.to_vec(), [-1., -5., -3.]);
        let g = nll_backward(&arr(&[1, 3], &[1., 2., 3.]), &x, &t, None, &arr(&[], &[0.]), Reduction::None, -1).unwrap();
        assert_eq!(g.to_vec(), [-1., 0., -3., 0., -2., 0.]);
    }
    #[test]
    fn margins_are_over_all_other_classes() {
        let x = arr(&[1, 3], &[0.5, 1., -3.]);
        let t = Array::from_slice(&[1], &[0i64]).unwrap();
        assert_eq!(multi_margin(&x, &t, 1, 1.0, None).unwrap().to_vec(), [0.5]);
        assert_eq!(multi_margin(&x, &t, 2, 1.0, Some(&arr(&[3], &[2.; 3]))).unwrap().to_vec(), [1.5]);
        assert!(multi_margin(&x, &Array::from_slice(&[1], &[3i64]).unwrap(), 1, 1.0, None).is_err());
    }
}
