//! Convolutions over one to three spatial axes as matrix products over columns of windows: the product, its gradient by the input (which is
//! the transposed convolution), its gradient by the weight.
use super::matmul::{Mat, MatMut, gemm};
use super::pool::{Axes, Axis, TRIVIAL, finished, fold, operand, unfold};
use super::reduce::for_float;
use crate::array::{Array, Fresh};
use crate::error::{Result, bail};
use crate::layout::Dims;

/// How a kernel moves over an image; one number for each spatial axis.
#[derive(Clone, Copy, Debug)]
pub struct Geometry<'a> {
    pub stride: &'a [usize],
    pub padding: &'a [usize],
    pub dilation: &'a [usize],
    pub groups: usize,
}
/// A convolution from the side of its image: shapes are checked and fit.
struct Plan {
    batch: usize,
    groups: usize,
    /// Channels of a group, of the image and of the result.
    inner: usize,
    outer: usize,
    axes: Axes,
}
impl Plan {
    fn new(weight: &Dims, image: &[usize], batch: usize, g: Geometry) -> Result<Plan> {
        let n = weight.len() - 2;
        let mut axes = [TRIVIAL; 3];
        for i in 0..n {
            let axis = Axis::new(image[i], weight[2 + i], g.stride[i], g.padding[i], g.dilation[i], false);
            let Some(axis) = axis else {
                let by = |s: &[usize]| s.iter().map(|v| v.to_string()).collect::<Vec<_>>().join(" x ");
                let padded: Vec<usize> = (0..n).map(|i| image[i] + 2 * g.padding[i]).collect();
                let reach: Vec<usize> = (0..n).map(|i| g.dilation[i] * weight[2 + i].saturating_sub(1) + 1).collect();
                bail!(
                    Runtime,
                    "Calculated padded input size per channel: ({}). Kernel size: ({}). Kernel size can't be greater than actual input size",
                    by(&padded),
                    by(&reach)
                )
            };
            axes[3 - n + i] = axis;
        }
        Ok(Plan { batch, groups: g.groups, inner: weight[1], outer: weight[0] / g.groups, axes })
    }
    fn plane(&self) -> usize {
        self.axes.iter().map(|a| a.size).product()
    }
    fn windows(&self) -> usize {
        self.axes.iter().map(|a| a.count).product()
    }
    /// Rows of the columns of a group.
    fn rows(&self) -> usize {
        self.inner * self.axes.iter().map(|a| a.kernel).product::<usize>()
    }
    /// Are the columns the image itself?
    fn plain(&self) -> bool {
        self.axes.iter().all(|a| a.kernel == 1 && a.stride == 1 && a.padding == 0)
    }
    fn result(&self, n: usize) -> impl Iterator<Item = usize> {
        self.axes[3 - n..].iter().map(|a| a.count)
    }
}
/// The convolution of [batch, channels, ..] by a weight [channels out, channels / groups, ..].
pub fn convolution(x: &Array, w: &Array, bias: Option<&Array>, g: Geometry) -> Result<Array> {
    let p = Plan::new(&w.shape, &x.shape[2..], x.shape[0], g)?;
    let (plane, windows, rows) = (p.plane(), p.windows(), p.rows());
    let (image, weight) = (operand(x)?, operand(w)?);
    let bias = bias.map(operand).transpose()?;
    let shape = [p.batch, w.shape[0]].into_iter().chain(p.result(w.ndim() - 2)).collect();
    let mut out = Fresh::new(shape, image.dtype)?;
    for_float!(x.dtype, T => {
        let (image, weight, out) = (image.slice::<T>(), weight.slice::<T>(), out.slice_mut::<T>());
        let bias = bias.as_ref().map(|b| b.slice::<T>());
        let mut columns = vec![0.0; if p.plain() { 0 } else { rows * windows }];
        for (i, out) in out.chunks_exact_mut((p.outer * windows).max(1)).enumerate() {
            let group = i % p.groups;
            let image = &image[i * p.inner * plane..][..p.inner * plane];
            if !p.plain() {
                unfold(image, &p.axes, &mut columns);
            }
            if let Some(b) = bias {
                out.chunks_exact_mut(windows).zip(&b[group * p.outer..]).for_each(|(o, &b)| o.fill(b));
            }
            let weight = Mat::new(&weight[group * p.outer * rows..][..p.outer * rows], (p.outer, rows), (rows, 1));
            let columns = Mat::new(if p.plain() { image } else { &columns }, (rows, windows), (windows, 1));
            let beta = if bias.is_some() { 1.0 } else { 0.0 };
            gemm(MatMut::new(out, (p.outer, windows), (windows, 1)), beta, weight, columns, 1.0);
        }
    });
    finished(out, x.dtype)
}
/// The gradient of a convolution by its image, whose spatial lengths are `image`; as an operation, the transposed convolution of `x`.
pub fn transposed(x: &Array, w: &Array, bias: Option<&Array>, image: &[usize], g: Geometry) -> Result<Array> {
    let p = Plan::new(&w.shape, image, x.shape[0], g)?;
    let (plane, windows, rows) = (p.plane(), p.windows(), p.rows());
    let (grad, weight) = (operand(x)?, operand(w)?);
    let bias = bias.map(operand).transpose()?;
    let shape = [p.batch, p.inner * p.groups].into_iter().chain(image.iter().copied()).collect();
    let mut out = Fresh::new(shape, grad.dtype)?;
    for_float!(x.dtype, T => {
        let (grad, weight, out) = (grad.slice::<T>(), weight.slice::<T>(), out.slice_mut::<T>());
        let bias = bias.as_ref().map(|b| b.slice::<T>());
        let mut columns = vec![0.0; rows * windows];
        for (i, out) in out.chunks_exact_mut((p.inner * plane).max(1)).enumerate() {
            let group = i % p.groups;
            let grad = Mat::new(&grad[i * p.outer * windows..][..p.outer * windows], (p.outer, windows), (windows, 1));
            let weight = Mat::new(&weight[group * p.outer * rows..][..p.outer * rows], (p.outer, rows), (rows, 1));
            gemm(MatMut::new(&mut columns, (rows, windows), (windows, 1)), 0.0, weight.t(), grad, 1.0);
            match bias {
                Some(b) => out.chunks_exact_mut(plane.max(1)).zip(&b[group * p.inner..]).for_each(|(o, &b)| o.fill(b)),
                None => out.fill(0.0),
            }
            fold(&columns, &p.axes, out);
        }
    });
    finished(out, x.dtype)
}
/// The gradient of a convolution by its weight, of shape `weight`, from its image and the gradient of its result.
pub fn by_weight(x: &Array, grad: &Array, weight: Dims, g: Geometry) -> Result<Array> {
    let p = Plan::new(&weight, &x.shape[2..], x.shape[0], g)?;
    let (plane, windows, rows) = (p.plane(), p.windows(), p.rows());
    let (image, from) = (operand(x)?, operand(grad)?);
    let mut out = Fresh::new(weight, image.dtype)?;
    for_float!(x.dtype, T => {
        let (image, grad, out) = (image.slice::<T>(), from.slice::<T>(), out.slice_mut::<T>());
        out.fill(0.0);
        let mut columns = vec![0.0; if p.plain() { 0 } else { rows * windows }];
        for i in 0..p.batch * p.groups {
            let image = &image[i * p.inner * plane..][..p.inner * plane];
            if !p.plain() {
                unfold(image, &p.axes, &mut columns);
            }
            let out = &mut out[i % p.groups * p.outer * rows..][..p.outer * rows];
            let grad = Mat::new(&grad[i * p.outer * windows..][..p.outer * windows], (p.outer, windows), (windows, 1));
            let columns = Mat::new(if p.plain() { image } else { &columns }, (rows, windows), (windows, 1));
            gemm(MatMut::new(out, (p.outer, rows), (rows, 1)), 1.0, grad, columns.t(), 1.0);
        }
    });
    finished(out, x.dtype)
}
