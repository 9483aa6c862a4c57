//! Convolutions over one to three spatial axes, any stride, padding, dilation and groups: the product, its gradient by the input (which is
//! the transposed convolution), its gradient by the weight.
//!
//! There is no im2col. An image is laid out once with its padding, one plane for every remainder by the stride, so that what a tap of the
//! kernel meets is the same plane at a constant offset: a result is a sum over taps of a number times a run of the plane. A run covers the
//! rows of the plane whole; what falls between the rows of the result is computed and dropped. The gradient by the input is the same sum
//! over the planes of the gradient, one result for each remainder; the gradient by the weight is a dot product of two runs for every tap.
//!
//! float16 and bfloat16 are computed in float32, integers in float64 (exact below 2^53). Must not know: tapes, modules.
#![allow(unsafe_code)]
use crate::array::{Array, Fresh};
use crate::dtype::{Compute, DType, Element};
use crate::error::{Result, bail};
use crate::kernels::matmul::{Job, Lanes, Tiles, Wide, dot_tile, store_strip, strip_tile, widest};
use crate::kernels::pointwise::cast;
use crate::layout::Dims;

/// How a kernel moves over an image; one number for each spatial axis, or one for all.
#[derive(Clone, Copy, Debug)]
pub struct Geometry<'a> {
    pub stride: &'a [i64],
    pub padding: &'a [i64],
    pub dilation: &'a [i64],
    pub groups: i64,
}
/// Spatial lengths; absent axes come first and are 1.
type Axes = [usize; 3];

/// A convolution brought to three spatial axes, checked.
#[derive(Clone, Copy)]
struct Plan {
    op: &'static str,
    /// Spatial axes that the user has.
    axes: usize,
    batch: usize,
    groups: usize,
    /// Channels of a group on the side of the image, and of the result.
    inner: usize,
    outer: usize,
    image: Axes,
    kernel: Axes,
    result: Axes,
    stride: Axes,
    padding: Axes,
    dilation: Axes,
}
const NAMES: [[&str; 3]; 2] = [["conv1d", "conv2d", "conv3d"], ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]];

fn spread(op: &'static str, name: &str, given: &[i64], axes: usize, least: i64, fill: usize) -> Result<Axes> {
    if given.len() != axes && given.len() != 1 {
        bail!(
            Runtime,
            "{op}(): expected {name} to be a single integer value or a list of {axes} values to match the convolution dimensions, but got {name}={given:?}"
        );
    }
    let mut out = [fill; 3];
    for (d, out) in out[3 - axes..].iter_mut().enumerate() {
        let v = given[d.min(given.len() - 1)];
        if v < least {
            match name {
                "padding" | "output_padding" => bail!(Runtime, "{op}(): negative {name} is not supported, got {given:?}"),
                "stride" => bail!(Runtime, "{op}(): non-positive stride is not supported, got {given:?}"),
                _ => bail!(Runtime, "{op}(): {name} should be greater than zero, but got {given:?}"),
            }
        }
        *out = v as usize;
    }
    Ok(out)
}
fn lengths(shape: &[usize]) -> Axes {
    let mut out = [1; 3];
    out[3 - shape.len()..].copy_from_slice(shape);
    out
}
/// `3 x 4`, as torch writes sizes in messages.
fn by(sizes: &[impl ToString]) -> String {
    format!("({})", sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x "))
}
impl Plan {
    /// From the shapes of the weight, of the image (batched) and the geometry; `result` is left to the caller.
    fn new(transposed: bool, weight: &Dims, image: &Dims, g: Geometry) -> Result<Plan> {
        let axes = weight.len().wrapping_sub(2);
        if !(1..=3).contains(&axes) {
            bail!(
                Runtime,
                "convolution(): weight must have 3, 4 or 5 dimensions (channels out and in, then one to three spatial ones), but got weight of size {weight:?}"
            );
        }
        let op = NAMES[transposed as usize][axes - 1];
        if image.len() != axes + 2 {
            bail!(
                Runtime,
                "{op}(): Expected {}D (unbatched) or {}D (batched) input to {op}, but got input of size: {image:?}",
                axes + 1,
                axes + 2
            );
        }
        if g.groups <= 0 {
            bail!(Runtime, "{op}(): non-positive groups is not supported, got groups={}", g.groups);
        }
        let groups = g.groups as usize;
        let plan = Plan {
            op,
            axes,
            batch: image[0],
            groups,
            inner: weight[1],
            outer: weight[0] / groups,
            image: lengths(&image[2..]),
            kernel: lengths(&weight[2..]),
            result: [1; 3],
            stride: spread(op, "stride", g.stride, axes, 1, 1)?,
            padding: spread(op, "padding", g.padding, axes, 0, 0)?,
            dilation: spread(op, "dilation", g.dilation, axes, 1, 1)?,
        };
        if weight[0] == 0 {
            bail!(
                Runtime,
                "{op}(): Given groups={groups}, expected weight to be at least 1 at dimension 0, but got weight of size {weight:?} instead"
            );
        }
        if !weight[0].is_multiple_of(groups) {
            bail!(
                Runtime,
                "{op}(): Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got weight of size {weight:?} instead"
            );
        }
        if plan.kernel.contains(&0) {
            bail!(Runtime, "{op}(): kernel size should be greater than zero, but got {}", by(&weight[2..]));
        }
        let reach = (0..3).map(|d| plan.reach(d).and_then(|r| plan.padding[d].checked_mul(2)?.checked_add(plan.image[d])?.checked_add(r)));
        if !reach.into_iter().all(|r| r.is_some_and(|r| r < 1 << 40)) {
            bail!(Runtime, "{op}(): padding or dilation is too large: {g:?} for an input of size {image:?}");
        }
        Ok(plan)
    }
    /// From the first to the last tap of the kernel.
    fn reach(&self, d: usize) -> Option<usize> {
        (self.kernel[d] - 1).checked_mul(self.dilation[d])
    }
    fn far(&self, d: usize) -> usize {
        (self.kernel[d] - 1) * self.dilation[d]
    }
    /// The length of the result for this image.
    fn over(mut self) -> Result<Plan> {
        for d in 0..3 {
            let padded = self.image[d] + 2 * self.padding[d];
            if padded < self.far(d) + 1 || self.image[d] == 0 && self.padding[d] == 0 {
                let padded: Vec<usize> = (0..3).map(|d| self.image[d] + 2 * self.padding[d]).collect();
                let kernel: Vec<usize> = (0..3).map(|d| self.far(d) + 1).collect();
                bail!(
                    Runtime,
                    "{}(): Calculated padded input size per channel: {}. Kernel size: {}. Kernel size can't be greater than actual input size",
                    self.op,
                    by(&padded[3 - self.axes..]),
                    by(&kernel[3 - self.axes..])
                );
            }
            self.result[d] = (padded - self.far(d) - 1) / self.stride[d] + 1;
        }
        Ok(self)
    }
    fn check_channels(&self, transposed: bool, given: usize, weight: &Dims, input: &Dims) -> Result<()> {
        let want = if transposed { weight[0] } else { weight[1] * self.groups };
        if given != want {
            let head = if transposed { "transposed=1".to_string() } else { format!("groups={}", self.groups) };
            bail!(
                Runtime,
                "{}(): Given {head}, weight of size {weight:?}, expected input{input:?} to have {want} channels, but got {given} channels instead",
                self.op
            );
        }
        Ok(())
    }
    fn check_bias(&self, bias: Option<&Array>, channels: usize, weight: &Array) -> Result<()> {
        let Some(bias) = bias else { return Ok(()) };
        if *bias.shape != [channels] {
            bail!(
                Runtime,
                "{}(): Given weight of size {:?}, expected bias to be 1-dimensional with {channels} elements, but got bias of size {:?} instead",
                self.op,
                weight.shape,
                bias.shape
            );
        }
        if bias.dtype != weight.dtype {
            bail!(Runtime, "{}(): Input type ({}) and bias type ({}) should be the same", self.op, weight.dtype.name(), bias.dtype.name());
        }
        Ok(())
    }
    /// Is this the shape of the result?
    fn check_grad(&self, grad: &Array) -> Result<()> {
        let want = self.shape(self.groups * self.outer, self.result)?;
        if grad.shape != want {
            bail!(Runtime, "{}(): expected a gradient of shape {want:?} for this input and weight, but got {:?}", self.op, grad.shape);
        }
        Ok(())
    }
    /// [batch, channels, spatial].
    fn shape(&self, channels: usize, spatial: Axes) -> Result<Dims> {
        let shape: Dims = [self.batch, channels].into_iter().chain(spatial[3 - self.axes..].iter().copied()).collect();
        shape.checked_numel()?;
        Ok(shape)
    }
    /// Taps of the kernel, in order: their places along each axis, in units of the image.
    fn taps(&self) -> impl Iterator<Item = Axes> + use<> {
        let Plan { kernel: [a, b, c], dilation: [x, y, z], .. } = *self;
        (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| [i * x, j * y, k * z])))
    }
}

/// Which element of a plane holds which of an image: along axis d, x holds `x * step[d] + origin[d]`, for x below `count[d]`.
struct Placing {
    count: Axes,
    /// Row-major steps of the plane.
    plane: Axes,
    image: Axes,
    step: Axes,
    origin: [isize; 3],
}
impl Placing {
    /// The xs of an axis that hold an element of the image.
    fn valid(&self, d: usize) -> std::ops::Range<usize> {
        let (step, origin) = (self.step[d] as isize, self.origin[d]);
        let first_at_or_after = |i: isize| ((i - origin).max(0) as usize).div_ceil(step as usize).min(self.count[d]);
        first_at_or_after(0)..first_at_or_after(self.image[d] as isize)
    }
    /// Calls `f` for every row: where it starts in the plane, at which element of the image, and its length.
    fn rows(&self, mut f: impl FnMut(usize, Axes, usize)) {
        let [zs, ys, xs] = [0, 1, 2].map(|d| self.valid(d));
        let place = |d: usize, x: usize| (x * self.step[d]).wrapping_add_signed(self.origin[d]);
        if xs.is_empty() {
            return;
        }
        for z in zs {
            for y in ys.clone() {
                f(z * self.plane[0] + y * self.plane[1] + xs.start, [place(0, z), place(1, y), place(2, xs.start)], xs.len());
            }
        }
    }
    /// Does every element of the plane hold the same of the image?
    fn is_identity(&self) -> bool {
        self.count == self.image && self.plane == steps(self.image) && self.step == [1; 3] && self.origin == [0; 3]
    }
}
fn steps(lengths: Axes) -> Axes {
    [lengths[1] * lengths[2], lengths[2], 1]
}

/// Images of any strides: [batch, channel, spatial].
struct Images<'a, T> {
    data: &'a [T],
    item: usize,
    channel: usize,
    axes: Axes,
    lengths: Axes,
}
impl<'a, T: Element> Images<'a, T> {
    fn of(a: &'a Array) -> Images<'a, T> {
        let mut axes = [0; 3];
        axes[5 - a.ndim()..].copy_from_slice(&a.strides[2..]);
        let data = a.read(a.offset, crate::layout::span(&a.shape, &a.strides));
        Images { data, item: a.strides[0], channel: a.strides[1], axes, lengths: lengths(&a.shape[2..]) }
    }
    /// One channel into a plane. What holds no element of the image is not touched.
    fn lay(&self, item: usize, channel: usize, to: &mut [T], place: &Placing) {
        let base = item * self.item + channel * self.channel;
        let step = self.axes[2] * place.step[2];
        place.rows(|at, image, count| {
            let from = &self.data[base + (0..3).map(|d| image[d] * self.axes[d]).sum::<usize>()..];
            let to = &mut to[at..at + count];
            if step == 1 {
                to.copy_from_slice(&from[..count]);
            } else {
                to.iter_mut().enumerate().for_each(|(i, v)| *v = from[i * step]);
            }
        });
    }
}

/// What a tap reads and weighs.
struct Tap {
    /// Where its run starts in the planes.
    at: usize,
    /// Where its number lies in the weight, from the row of the result's channel.
    weight: usize,
}
/// A part of the result: the elements of one remainder by the stride.
struct Part {
    taps: Vec<Tap>,
    place: Placing,
}
/// Sums over taps: the convolution and its gradient by the input are both this.
struct Sum<'a, T> {
    groups: usize,
    /// Channels of a group in the input, and in the result.
    from: usize,
    to: usize,
    input: Images<'a, T>,
    /// The planes of a channel; none if the input serves as it lies.
    lays: Vec<Placing>,
    /// Elements of a plane.
    plane: usize,
    /// Length of the runs that are summed.
    run: usize,
    parts: Vec<Part>,
    weight: &'a [T],
    /// In the weight, from one channel of the result to the next, and from one group to the next.
    weight_steps: (usize, usize),
    bias: Option<&'a [T]>,
    out: &'a mut [T],
    /// Elements of a channel of the result.
    size: usize,
}
impl<T: Wide> Job<T> for (Sum<'_, T>, Scratch<'_, T>) {
    #[inline(always)]
    unsafe fn run<V: Lanes<T = T>>(self) {
        let (s, Scratch { planes, runs }) = self;
        let tall = if s.to < 4 { 1 } else { tall::<V>() };
        let parts = || (0..s.groups).flat_map(|g| s.parts.iter().map(move |p| (g, p)));
        let packed: Vec<Vec<T>> =
            parts().map(|(g, p)| pack(&s.weight[g * s.weight_steps.1..], s.weight_steps.0, s.to, &p.taps, tall)).collect();
        let zeros = vec![T::default(); s.to];
        for (block, out) in s.out.chunks_exact_mut(s.to * s.size).enumerate() {
            let (item, g) = (block / s.groups, block % s.groups);
            for c in 0..s.from {
                for (i, place) in s.lays.iter().enumerate() {
                    let plane = &mut planes[(c * s.lays.len() + i) * s.plane..][..s.plane];
                    s.input.lay(item, g * s.from + c, plane, place);
                }
            }
            let at = if s.lays.is_empty() { item * s.input.item + g * s.from * s.input.channel } else { 0 };
            let image = if s.lays.is_empty() { &s.input.data[at.min(s.input.data.len())..] } else { &*planes };
            let bias = s.bias.map_or(&zeros[..], |b| &b[g * s.to..][..s.to]);
            for (part, weight) in s.parts.iter().zip(&packed[g * s.parts.len()..]) {
                let straight = part.place.is_identity();
                let (to, row) = if straight { (&mut *out, s.size) } else { (&mut *runs, s.run) };
                let sums = Runs { taps: &part.taps, weight, image, to, row, run: s.run, bias };
                // SAFETY: by the caller's word.
                unsafe { sums.compute::<V>() }
                if !straight {
                    for (run, out) in runs.chunks_exact(s.run).zip(out.chunks_exact_mut(s.size)) {
                        take(run, out, &part.place);
                    }
                }
            }
        }
    }
}
/// Room for the planes of a group, zeros at first (where no image is laid they stay so), and for its runs.
struct Scratch<'a, T> {
    planes: &'a mut [T],
    runs: &'a mut [T],
}
/// A run into the elements of an image that it holds.
fn take<T: Copy>(run: &[T], image: &mut [T], place: &Placing) {
    let to = steps(place.image);
    place.rows(|at, first, count| {
        let (run, image) = (&run[at..at + count], &mut image[first[0] * to[0] + first[1] * to[1] + first[2]..]);
        if place.step[2] == 1 {
            image[..count].copy_from_slice(run);
        } else {
            image.iter_mut().step_by(place.step[2]).zip(run).for_each(|(v, x)| *v = *x);
        }
    });
}
/// How many channels of the result are summed at once.
const fn tall<V: Lanes>() -> usize {
    if V::MANY { 8 } else { 6 }
}
/// The numbers of the taps, for `tall` channels beside each other, then for each of the rest.
fn pack<T: Copy>(weight: &[T], step: usize, channels: usize, taps: &[Tap], tall: usize) -> Vec<T> {
    let whole = channels / tall * tall;
    let blocks = (0..whole).step_by(tall).map(|c| c..c + tall).chain((whole..channels).map(|c| c..c + 1));
    let mut out = Vec::with_capacity(channels * taps.len());
    for block in blocks {
        for tap in taps {
            out.extend(block.clone().map(|c| weight[c * step + tap.weight]));
        }
    }
    out
}
/// One sum over taps for every channel of the result: rows of `to`, `row` apart, `run` long.
struct Runs<'a, T> {
    taps: &'a [Tap],
    weight: &'a [T],
    image: &'a [T],
    to: &'a mut [T],
    row: usize,
    run: usize,
    bias: &'a [T],
}
impl<T: Wide> Runs<'_, T> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn compute<V: Lanes<T = T>>(mut self) {
        let channels = self.bias.len();
        assert!(self.weight.len() == channels * self.taps.len() && (channels - 1) * self.row + self.run <= self.to.len());
        assert!(self.taps.iter().all(|t| t.at + self.run <= self.image.len()));
        let vectors = self.run.div_ceil(V::N);
        // SAFETY: by the caller's word; just checked.
        unsafe {
            match channels {
                0..4 => Tiles::<V>::all::<1, 6>(&mut self, channels, vectors),
                _ if V::MANY => Tiles::<V>::all::<8, 3>(&mut self, channels, vectors),
                _ => Tiles::<V>::all::<6, 1>(&mut self, channels, vectors),
            }
        }
    }
}
impl<V: Lanes<T: Wide>> Tiles<V> for Runs<'_, V::T> {
    #[inline(always)]
    unsafe fn tile<const R: usize, const C: usize>(&mut self, i: usize, j: usize) {
        let from = j * V::N;
        let last = (self.run - from - (C - 1) * V::N).min(V::N);
        let weight = &self.weight[i * self.taps.len()..][..R * self.taps.len()];
        // SAFETY: runs from each tap lie in the image, rows in the result (`compute`), but for the lanes of the last vector beyond `last`.
        unsafe {
            let mut acc = [[V::zero(); C]; R];
            for (acc, &bias) in acc.iter_mut().zip(&self.bias[i..]) {
                *acc = [V::splat(bias); C];
            }
            let image = self.image.as_ptr().add(from);
            let taps = self.taps.as_ptr();
            strip_tile(&mut acc, self.taps.len(), |r, q| *weight.get_unchecked(q * R + r), |q| image.add((*taps.add(q)).at), last);
            for (r, acc) in acc.into_iter().enumerate() {
                store_strip(acc, self.to.as_mut_ptr().add((i + r) * self.row + from), last);
            }
        }
    }
}

/// The gradient by the weight: for every channel of the result and every tap, the dot product of two runs.
struct Correlation<'a, T> {
    /// Channels of a group in the image, and in the gradient.
    inner: usize,
    outer: usize,
    batch: usize,
    /// Images that are laid beside each other, to make runs long.
    together: usize,
    image: Images<'a, T>,
    grad: Images<'a, T>,
    lays: Vec<Placing>,
    place: Placing,
    plane: usize,
    run: usize,
    /// Where the run of each tap starts in the planes.
    taps: Vec<usize>,
    out: &'a mut [T],
}
impl<T: Wide> Job<T> for (Correlation<'_, T>, Scratch<'_, T>) {
    #[inline(always)]
    unsafe fn run<V: Lanes<T = T>>(self) {
        let (s, Scratch { planes, runs }) = self;
        let lay = s.together * s.plane;
        for (g, out) in s.out.chunks_exact_mut(s.outer * s.taps.len()).enumerate() {
            for first in (0..s.batch).step_by(s.together) {
                let images = s.together.min(s.batch - first);
                for i in 0..images {
                    for c in 0..s.inner {
                        for (l, place) in s.lays.iter().enumerate() {
                            s.image.lay(
                                first + i,
                                g * s.inner + c,
                                &mut planes[(c * s.lays.len() + l) * lay + i * s.plane..][..s.plane],
                                place,
                            );
                        }
                    }
                    (0..s.outer)
                        .for_each(|c| s.grad.lay(first + i, g * s.outer + c, &mut runs[c * lay + i * s.plane..][..s.plane], &s.place));
                }
                let length = (images - 1) * s.plane + s.run;
                for from in (0..length).step_by(CHUNK) {
                    let count = CHUNK.min(length - from);
                    let add = first + from > 0;
                    let dots = RunDots { runs, row: lay, planes, taps: &s.taps, from, count, out, channels: s.outer, add };
                    // SAFETY: by the caller's word.
                    unsafe { dots.compute::<V>() }
                }
            }
        }
    }
}
/// Runs are cut to this length, for the first cache.
const CHUNK: usize = 1024;
/// `out[c][tap]` is, or grows by, the dot product of row c of `runs` with the run of the tap, from `from` on.
struct RunDots<'a, T> {
    runs: &'a [T],
    row: usize,
    planes: &'a [T],
    taps: &'a [usize],
    from: usize,
    count: usize,
    channels: usize,
    out: &'a mut [T],
    add: bool,
}
impl<T: Wide> RunDots<'_, T> {
    /// # Safety
    /// The machine has the instructions of `V`.
    #[inline(always)]
    unsafe fn compute<V: Lanes<T = T>>(mut self) {
        let (channels, taps, end) = (self.channels, self.taps.len(), self.from + self.count);
        assert!((channels - 1) * self.row + end <= self.runs.len() && self.taps.iter().all(|t| t + end <= self.planes.len()));
        // SAFETY: by the caller's word; just checked.
        unsafe {
            match V::MANY {
                true => Tiles::<V>::all::<4, 6>(&mut self, channels, taps),
                false => Tiles::<V>::all::<2, 3>(&mut self, channels, taps),
            }
        }
    }
}
impl<V: Lanes<T: Wide>> Tiles<V> for RunDots<'_, V::T> {
    #[inline(always)]
    unsafe fn tile<const R: usize, const C: usize>(&mut self, i: usize, j: usize) {
        // SAFETY: the runs lie in their slices (`compute`).
        let sums = unsafe {
            let x = std::array::from_fn(|r| self.runs.as_ptr().add((i + r) * self.row + self.from));
            let y = std::array::from_fn(|s| self.planes.as_ptr().add(self.taps[j + s] + self.from));
            dot_tile::<V, R, C>(self.count, x, y, false)
        };
        for (r, sums) in sums.into_iter().enumerate() {
            for (out, sum) in self.out[(i + r) * self.taps.len() + j..].iter_mut().zip(sums) {
                *out = if self.add { *out + sum } else { sum };
            }
        }
    }
}

/// The planes of an image for a convolution, and where in them the taps of each channel start.
struct Layout {
    lays: Vec<Placing>,
    plane: usize,
    steps: Axes,
    run: usize,
}
impl Plan {
    /// The remainders by the stride that taps fall on, of an axis.
    fn remainders(&self, d: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.kernel[d].min(self.stride[d])).map(|k| k * self.dilation[d] % self.stride[d]).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
    fn combinations(&self) -> Vec<Axes> {
        let [zs, ys, xs] = [0, 1, 2].map(|d| self.remainders(d));
        let mut all = Vec::new();
        for &z in &zs {
            for &y in &ys {
                all.extend(xs.iter().map(|&x| [z, y, x]));
            }
        }
        all
    }
    /// One plane for each remainder; taps meet element `tap / stride + x` of theirs for element x of the result.
    fn layout(&self) -> Layout {
        let count = [0, 1, 2].map(|d| self.result[d] + self.far(d) / self.stride[d]);
        let plane = steps(count);
        let lays = self.combinations().into_iter().map(|r| Placing {
            count,
            plane,
            image: self.image,
            step: self.stride,
            origin: [0, 1, 2].map(|d| r[d] as isize - self.padding[d] as isize),
        });
        Layout { lays: lays.collect(), plane: count.iter().product(), steps: plane, run: run_length(self.result, plane) }
    }
    /// Which plane a tap meets, and where its run starts there.
    fn meets(&self, combinations: &[Axes], tap: Axes, steps: Axes) -> (usize, usize) {
        let remainder = [0, 1, 2].map(|d| tap[d] % self.stride[d]);
        let plane = combinations.iter().position(|c| *c == remainder).unwrap_or(0);
        (plane, (0..3).map(|d| tap[d] / self.stride[d] * steps[d]).sum())
    }
    fn compute<T: Wide>(&self, input: &Array, weight: &[T], bias: Option<&[T]>) -> Result<Array> {
        let mut out = Fresh::new(self.shape(self.groups * self.outer, self.result)?, T::DTYPE)?;
        if out.shape().contains(&0) {
            return Ok(out.done());
        }
        let input = Images::<T>::of(input);
        let Layout { mut lays, plane, steps: plane_steps, run } = self.layout();
        let combinations = self.combinations();
        let mut channel = lays.len() * plane;
        if lays.len() == 1 && lays[0].is_identity() && input.axes == steps(self.image) {
            lays.clear();
            channel = input.channel;
        }
        let volume: usize = self.kernel.iter().product();
        let taps = (0..self.inner).flat_map(|c| self.taps().enumerate().map(move |(i, tap)| (c, i, tap))).map(|(c, i, tap)| {
            let (which, at) = self.meets(&combinations, tap, plane_steps);
            Tap { at: c * channel + which * plane + at, weight: c * volume + i }
        });
        let place = Placing { count: self.result, plane: plane_steps, image: self.result, step: [1; 3], origin: [0; 3] };
        let row = self.inner * volume;
        let parts = vec![Part { taps: taps.collect(), place }];
        let (groups, from, to, size) = (self.groups, self.inner, self.outer, self.result.iter().product());
        let (weight_steps, out_slice) = ((row, self.outer * row), out.slice_mut());
        let sum = Sum { groups, from, to, input, lays, plane, run, parts, weight, weight_steps, bias, out: out_slice, size };
        sum.with_scratch()?;
        Ok(out.done())
    }
    fn compute_input_grad<T: Wide>(&self, grad: &Array, weight: &[T], bias: Option<&[T]>) -> Result<Array> {
        let mut out = Fresh::new(self.shape(self.groups * self.inner, self.image)?, T::DTYPE)?;
        if out.shape().contains(&0) {
            return Ok(out.done());
        }
        let input = Images::<T>::of(grad);
        let size: usize = self.image.iter().product();
        // Element i of the image is the one with i + padding = stride * y + remainder; y counts from `low`.
        let low = [0, 1, 2].map(|d| self.padding[d] / self.stride[d]);
        let count = [0, 1, 2].map(|d| (self.padding[d] + self.image[d] - 1) / self.stride[d] - low[d] + 1);
        let far = [0, 1, 2].map(|d| self.far(d) / self.stride[d]);
        let wide = [0, 1, 2].map(|d| count[d] + far[d]);
        let (plane, plane_steps) = (wide.iter().product(), steps(wide));
        let origin = [0, 1, 2].map(|d| low[d] as isize - far[d] as isize);
        let mut lays = vec![Placing { count: wide, plane: plane_steps, image: input.lengths, step: [1; 3], origin }];
        let mut channel = plane;
        if lays[0].is_identity() && input.axes == steps(input.lengths) {
            lays.clear();
            channel = input.channel;
        }
        let combinations = self.combinations();
        let volume: usize = self.kernel.iter().product();
        let mut parts: Vec<Part> = combinations
            .iter()
            .map(|r| Part {
                taps: Vec::new(),
                place: Placing {
                    count,
                    plane: plane_steps,
                    image: self.image,
                    step: self.stride,
                    origin: [0, 1, 2].map(|d| (self.stride[d] * low[d] + r[d]) as isize - self.padding[d] as isize),
                },
            })
            .collect();
        for o in 0..self.outer {
            for (i, tap) in self.taps().enumerate() {
                let (which, back) = self.meets(&combinations, tap, plane_steps);
                let most: usize = (0..3).map(|d| far[d] * plane_steps[d]).sum();
                parts[which].taps.push(Tap { at: o * channel + most - back, weight: o * self.inner * volume + i });
            }
        }
        let run = run_length(count, plane_steps);
        let (groups, from, to) = (self.groups, self.outer, self.inner);
        if combinations.len() < self.stride.iter().product() {
            // Some elements meet no tap.
            for (c, out) in out.slice_mut::<T>().chunks_exact_mut(size).enumerate() {
                out.fill(bias.map_or(T::default(), |b| b[c % b.len()]));
            }
        }
        let (weight_steps, out_slice) = ((volume, self.outer * self.inner * volume), out.slice_mut());
        let sum = Sum { groups, from, to, input, lays, plane, run, parts, weight, weight_steps, bias, out: out_slice, size };
        sum.with_scratch()?;
        Ok(out.done())
    }
    fn compute_weight_grad<T: Wide>(&self, grad: &Array, image: &Array, shape: Dims) -> Result<Array> {
        let Layout { lays, plane, steps: plane_steps, run } = self.layout();
        let together = (2 * CHUNK / plane).clamp(1, self.batch.max(1));
        let combinations = self.combinations();
        let taps: Vec<usize> = (0..self.inner)
            .flat_map(|c| self.taps().map(move |tap| (c, tap)))
            .map(|(c, tap)| {
                let (which, at) = self.meets(&combinations, tap, plane_steps);
                (c * lays.len() + which) * together * plane + at
            })
            .collect();
        let mut out = Fresh::new(shape, T::DTYPE)?;
        if self.batch == 0 || taps.is_empty() || self.result.contains(&0) {
            out.bytes_mut().fill(0);
            return Ok(out.done());
        }
        let mut planes = zeros::<T>(self.inner * lays.len() * together * plane)?;
        let mut runs = zeros::<T>(self.outer * together * plane)?;
        let place = Placing { count: self.result, plane: plane_steps, image: self.result, step: [1; 3], origin: [0; 3] };
        let (image, grad) = (Images::<T>::of(image), Images::of(grad));
        let (Plan { inner, outer, batch, .. }, out_slice) = (*self, out.slice_mut());
        let work = Correlation { inner, outer, batch, together, image, grad, lays, place, plane, run, taps, out: out_slice };
        widest((work, Scratch { planes: planes.slice_mut(), runs: runs.slice_mut() }));
        Ok(out.done())
    }
}
impl<T: Wide> Sum<'_, T> {
    fn with_scratch(self) -> Result<()> {
        let mut planes = zeros::<T>(self.from * self.lays.len() * self.plane)?;
        let mut runs = zeros::<T>(if self.parts.iter().all(|p| p.place.is_identity()) { 0 } else { self.to * self.run })?;
        widest((self, Scratch { planes: planes.slice_mut(), runs: runs.slice_mut() }));
        Ok(())
    }
}
fn zeros<T: Element>(n: usize) -> Result<Fresh> {
    let mut room = Fresh::new(Dims::of(&[n]), T::DTYPE)?;
    room.bytes_mut().fill(0);
    Ok(room)
}
/// From the first to the last element of a result in a plane of these steps.
fn run_length(result: Axes, steps: Axes) -> usize {
    (0..3).map(|d| (result[d] - 1) * steps[d]).sum::<usize>() + 1
}

/// `x` with a batch axis, if it has none.
fn batched(x: &Array, weight: &Array) -> Array {
    if x.ndim() + 1 != weight.ndim() {
        return x.clone();
    }
    let lead = |v: usize, of: &Dims| [v].into_iter().chain(of.iter().copied()).collect::<Dims>();
    x.view(lead(1, &x.shape), lead(0, &x.strides), x.offset)
}
/// The result for an operand `like`: without the batch axis if that has none, in its dtype.
fn finish(out: Array, like: &Array, weight: &Array) -> Result<Array> {
    let out = if out.dtype == like.dtype { out } else { cast(&out, like.dtype)? };
    if like.ndim() + 1 != weight.ndim() {
        return Ok(out);
    }
    let shape = Dims::of(&out.shape[1..]);
    Ok(out.view(shape, shape.strides(), 0))
}
/// In the type that is computed in; the same array if it is of that type.
fn wide(a: &Array, row_major: bool) -> Result<Array> {
    let to = if a.dtype.compute() == Compute::F32 { DType::Float32 } else { DType::Float64 };
    if a.dtype == to && (!row_major || a.is_contiguous()) { Ok(a.clone()) } else { cast(a, to) }
}
fn check_types(op: &'static str, x: &Array, weight: &Array) -> Result<()> {
    if x.dtype != weight.dtype {
        bail!(Runtime, "{op}(): Input type ({}) and weight type ({}) should be the same", x.dtype.name(), weight.dtype.name());
    }
    if x.dtype == DType::Bool {
        bail!(NotImplemented, "\"{op}\" not implemented for 'Bool'");
    }
    Ok(())
}
/// Runs a generic method in f32 or f64.
macro_rules! in_real {
    ($a:expr, $t:ident => $body:expr) => {
        if $a.dtype == DType::Float32 {
            type $t = f32;
            $body
        } else {
            type $t = f64;
            $body
        }
    };
}

/// The convolution of `input` [batch, channels, spatial] (or without batch) with `weight` [channels out, channels in of a group, kernel].
pub fn conv(input: &Array, weight: &Array, bias: Option<&Array>, g: Geometry) -> Result<Array> {
    let x = batched(input, weight);
    let plan = Plan::new(false, &weight.shape, &x.shape, g)?;
    plan.check_channels(false, x.shape[1], &weight.shape, &input.shape)?;
    plan.check_bias(bias, weight.shape[0], weight)?;
    check_types(plan.op, input, weight)?;
    let plan = plan.over()?;
    let (x, w) = (wide(&x, false)?, wide(weight, true)?);
    let bias = bias.map(|b| wide(b, true)).transpose()?;
    finish(in_real!(x, T => plan.compute::<T>(&x, w.slice(), bias.as_ref().map(Array::slice)))?, input, weight)
}
/// The gradient of a convolution by its input, which has shape `input_shape`.
pub fn conv_input_grad(grad: &Array, weight: &Array, input_shape: &[usize], g: Geometry) -> Result<Array> {
    let y = batched(grad, weight);
    let image: Dims =
        if input_shape.len() + 1 == weight.ndim() { [1].iter().chain(input_shape).copied().collect() } else { Dims::of(input_shape) };
    let plan = Plan::new(false, &weight.shape, &image, g)?;
    plan.check_channels(false, image[1], &weight.shape, &Dims::of(input_shape))?;
    check_types(plan.op, grad, weight)?;
    let plan = plan.over()?;
    plan.check_grad(&y)?;
    let (y, w) = (wide(&y, false)?, wide(weight, true)?);
    finish(in_real!(y, T => plan.compute_input_grad::<T>(&y, w.slice(), None))?, grad, weight)
}
/// The gradient of a convolution by its weight, which has shape `weight_shape`.
pub fn conv_weight_grad(grad: &Array, input: &Array, weight_shape: &[usize], g: Geometry) -> Result<Array> {
    let shape = Dims::of(weight_shape);
    let like = input.view(shape, shape.strides(), 0);
    let (x, y) = (batched(input, &like), batched(grad, &like));
    let plan = Plan::new(false, &shape, &x.shape, g)?;
    plan.check_channels(false, x.shape[1], &shape, &input.shape)?;
    check_types(plan.op, input, grad)?;
    let plan = plan.over()?;
    plan.check_grad(&y)?;
    let (x, y) = (wide(&x, false)?, wide(&y, false)?);
    let out = in_real!(x, T => plan.compute_weight_grad::<T>(&y, &x, shape))?;
    if out.dtype == input.dtype { Ok(out) } else { cast(&out, input.dtype) }
}
/// The transposed convolution of `input` [batch, channels, spatial] with `weight` [channels in, channels out of a group, kernel]: the
/// gradient by its input of the convolution that takes the result to the shape of `input`; `output_padding` chooses among such results.
pub fn conv_transpose(input: &Array, weight: &Array, bias: Option<&Array>, output_padding: &[i64], g: Geometry) -> Result<Array> {
    let x = batched(input, weight);
    let mut plan = Plan::new(true, &weight.shape, &x.shape, g)?;
    plan.check_channels(true, x.shape[1], &weight.shape, &input.shape)?;
    plan.check_bias(bias, weight.shape[1] * plan.groups, weight)?;
    check_types(plan.op, input, weight)?;
    let extra = spread(plan.op, "output_padding", output_padding, plan.axes, 0, 0)?;
    let mut size = [1i64; 3];
    for d in 3 - plan.axes..3 {
        if extra[d] >= plan.stride[d].max(plan.dilation[d]) {
            bail!(
                Runtime,
                "{}(): output padding must be smaller than either stride or dilation, but got output_padding {output_padding:?}, stride {:?}, dilation {:?}",
                plan.op,
                g.stride,
                g.dilation
            );
        }
        let steps = (plan.image[d] as i64 - 1).saturating_mul(plan.stride[d] as i64);
        size[d] = steps.saturating_add((plan.far(d) + extra[d] + 1) as i64) - 2 * plan.padding[d] as i64;
    }
    if size.iter().any(|&v| v < 1) {
        bail!(
            Runtime,
            "{}(): Given input size per channel: {}. Calculated output size per channel: {}. Output size is too small",
            plan.op,
            by(&x.shape[2..]),
            by(&size[3 - plan.axes..])
        );
    }
    plan.image = size.map(|v| v as usize);
    let (x, w) = (wide(&x, false)?, wide(weight, true)?);
    let bias = bias.map(|b| wide(b, true)).transpose()?;
    finish(in_real!(x, T => plan.compute_input_grad::<T>(&x, w.slice(), bias.as_ref().map(Array::slice)))?, input, weight)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Scalar;
    use crate::kernels::matmul::tests::noise;

    /// Result, gradient by input, gradient by weight, in f64 by plain loops; and the result for the magnitudes, which bounds rounding.
    struct Plain {
        shape: Vec<usize>,
        result: Vec<f64>,
        input: Vec<f64>,
        weight: Vec<f64>,
    }
    type Spec<'a> = (&'a [usize], &'a [usize], &'a [i64], &'a [i64], &'a [i64], i64);
    fn plain(x: &Array, w: &Array, grad: Option<&Array>, g: Geometry) -> Plain {
        let axes = w.ndim() - 2;
        let at = |list: &[i64], d: usize| list[d.min(list.len() - 1)] as usize;
        let (groups, inner) = (g.groups as usize, w.shape[1]);
        let outer = w.shape[0] / groups;
        let out: Vec<usize> = (0..axes)
            .map(|d| (x.shape[2 + d] + 2 * at(g.padding, d) - (w.shape[2 + d] - 1) * at(g.dilation, d) - 1) / at(g.stride, d) + 1)
            .collect();
        let shape = [&[x.shape[0], w.shape[0]], &out[..]].concat();
        let index = |mut i: usize, of: &[usize]| {
            let mut v = vec![0; of.len()];
            for d in (0..of.len()).rev() {
                (v[d], i) = (i % of[d], i / of[d]);
            }
            v
        };
        let flat = |i: &[usize], of: &[usize]| i.iter().zip(of).fold(0, |at, (i, n)| at * n + i);
        let (xs, ws, gs) = (x.to_vec(), w.to_vec(), grad.map(Array::to_vec));
        let (mut result, mut input, mut weight) = (vec![0.0; shape.iter().product()], vec![0.0; xs.len()], vec![0.0; ws.len()]);
        let volume: usize = w.shape[2..].iter().product();
        for i in 0..result.len() {
            let o = index(i, &shape);
            for c in 0..inner {
                for t in 0..volume {
                    let tap = index(t, &w.shape[2..]);
                    let mut from = vec![o[0], o[1] / outer * inner + c];
                    for d in 0..axes {
                        let q = o[2 + d] * at(g.stride, d) + tap[d] * at(g.dilation, d);
                        from.push(q.wrapping_sub(at(g.padding, d)));
                    }
                    if from[2..].iter().zip(&x.shape[2..]).any(|(&q, &n)| q >= n) {
                        continue;
                    }
                    let (xi, wi) = (flat(&from, &x.shape), (o[1] * inner + c) * volume + t);
                    result[i] += xs[xi] * ws[wi];
                    if let Some(gs) = &gs {
                        input[xi] += gs[i] * ws[wi];
                        weight[wi] += gs[i] * xs[xi];
                    }
                }
            }
        }
        Plain { shape, result, input, weight }
    }
    fn near(got: &Array, want: &[f64], eps: f64, what: &str) {
        assert_eq!(got.numel(), want.len(), "{what}");
        let size = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        for (i, (g, w)) in got.to_vec().iter().zip(want).enumerate() {
            assert!((g - w).abs() <= eps * size, "{what}: element {i} is {g}, not {w}");
        }
    }
    /// The same values with the last axis first in memory, and others with gaps.
    fn strided(shape: &[usize], dtype: DType, seed: u64) -> [Array; 3] {
        let n: usize = shape.iter().product();
        let rows = noise(shape, dtype, seed);
        let mut strides = vec![1; shape.len()];
        for d in 1..shape.len() {
            strides[d] = strides[d - 1] * shape[d - 1];
        }
        let gaps = Dims::of(shape).strides().iter().map(|s| s * 3).collect();
        let (all, wide) = (noise(&[n.max(1)], dtype, seed), noise(&[3 * n + 5], dtype, seed + 9));
        [rows, all.view(Dims::of(shape), Dims::of(&strides), 0), wide.view(Dims::of(shape), gaps, 2)]
    }
    const SPECS: [Spec; 22] = [
        (&[2, 3, 8, 8], &[4, 3, 3, 3], &[1], &[0], &[1], 1),
        (&[1, 5, 9, 60], &[17, 5, 3, 3], &[1, 1], &[1, 1], &[1, 1], 1),
        (&[2, 3, 13, 11], &[8, 3, 5, 3], &[2, 3], &[2, 1], &[1], 1),
        (&[2, 4, 7, 9], &[6, 2, 3, 2], &[1, 2], &[2, 0], &[2, 1], 2),
        (&[3, 6, 5, 5], &[6, 1, 3, 3], &[1], &[1], &[1], 6),
        (&[2, 6, 10, 10], &[12, 1, 3, 3], &[2], &[1], &[1], 6),
        (&[2, 8, 6, 7], &[5, 8, 1, 1], &[1], &[0], &[1], 1),
        (&[2, 8, 6, 7], &[5, 8, 1, 1], &[2], &[0], &[1], 1),
        (&[2, 8, 6, 7], &[5, 8, 1, 1], &[1], &[1], &[1], 1),
        (&[2, 3, 16, 16], &[7, 3, 4, 4], &[4], &[0], &[1], 1),
        (&[1, 2, 9, 9], &[3, 2, 2, 2], &[5], &[1], &[3], 1),
        (&[2, 2, 30], &[3, 2, 4], &[3], &[5], &[2], 1),
        (&[2, 4, 100], &[4, 1, 7], &[1], &[3], &[1], 4),
        (&[1, 2, 5, 6, 7], &[4, 2, 3, 2, 3], &[1], &[1], &[1], 1),
        (&[2, 4, 6, 5, 8], &[4, 2, 2, 3, 2], &[2, 1, 3], &[1, 0, 2], &[1, 2, 1], 2),
        (&[0, 3, 8, 8], &[4, 3, 3, 3], &[1], &[0], &[1], 1),
        (&[2, 0, 8, 8], &[4, 0, 3, 3], &[1], &[0], &[1], 1),
        (&[1, 1, 1, 1], &[1, 1, 1, 1], &[1], &[0], &[1], 1),
        (&[1, 2, 3, 3], &[2, 2, 7, 7], &[2], &[5], &[1], 1),
        (&[5, 20, 4, 4], &[30, 20, 3, 3], &[1], &[1], &[1], 1),
        (&[2, 3, 20, 20], &[64, 3, 7, 7], &[2], &[3], &[1], 1),
        (&[1, 3, 40, 70], &[9, 3, 3, 3], &[1], &[1], &[1], 1),
    ];
    #[test]
    fn results_and_both_gradients_equal_plain_loops() {
        for (dtype, eps) in [(DType::Float32, 4e-6), (DType::Float64, 1e-14)] {
            for (x, w, stride, padding, dilation, groups) in SPECS {
                let g = Geometry { stride, padding, dilation, groups };
                for (i, (x, w)) in strided(x, dtype, 1).into_iter().zip(strided(w, dtype, 2)).enumerate() {
                    let shape = plain(&x, &w, None, g).shape;
                    let grad = &strided(&shape, dtype, 3)[i];
                    let want = plain(&x, &w, Some(grad), g);
                    let what = format!("{dtype:?} {:?} by {:?}, {g:?}, layout {i}", x.shape, w.shape);
                    let out = conv(&x, &w, None, g).unwrap();
                    assert_eq!(*out.shape, *want.shape, "{what}");
                    near(&out, &want.result, eps, &what);
                    let by_input = conv_input_grad(grad, &w, &x.shape, g).unwrap();
                    assert_eq!(by_input.shape, x.shape);
                    near(&by_input, &want.input, eps, &what);
                    let by_weight = conv_weight_grad(grad, &x, &w.shape, g).unwrap();
                    assert_eq!(by_weight.shape, w.shape);
                    near(&by_weight, &want.weight, eps, &what);
                }
            }
        }
    }
    #[test]
    fn the_transposed_convolution_is_the_gradient_by_the_input() {
        for (x, w, stride, padding, dilation, groups) in SPECS {
            let g = Geometry { stride, padding, dilation, groups };
            let (image, w) = (noise(x, DType::Float64, 1), noise(w, DType::Float64, 2));
            let y = noise(&plain(&image, &w, None, g).shape, DType::Float64, 3);
            let want = plain(&image, &w, Some(&y), g);
            let at = |list: &[i64], d: usize| list[d.min(list.len() - 1)];
            let extra: Vec<i64> = (0..w.ndim() - 2)
                .map(|d| {
                    let back = (y.shape[2 + d] as i64 - 1) * at(stride, d) - 2 * at(padding, d)
                        + (w.shape[2 + d] as i64 - 1) * at(dilation, d)
                        + 1;
                    x[2 + d] as i64 - back
                })
                .collect();
            let bias = noise(&[w.shape[1] * groups as usize], DType::Float64, 4);
            let out = conv_transpose(&y, &w, Some(&bias), &extra, g).unwrap();
            assert_eq!(out.shape, image.shape);
            let (plane, b) = (x[2..].iter().product::<usize>(), bias.to_vec());
            let want: Vec<f64> = want.input.iter().enumerate().map(|(i, v)| v + b[i / plane % b.len()]).collect();
            near(&out, &want, 1e-14, &format!("{x:?}, {g:?}, output padding {extra:?}"));
        }
        // An output padding beyond the stride, which a dilation allows, leaves elements that no tap meets.
        let g = Geometry { stride: &[1], padding: &[0], dilation: &[3], groups: 1 };
        let (y, w) = (noise(&[1, 1, 4], DType::Float64, 1), noise(&[1, 1, 2], DType::Float64, 2));
        let out = conv_transpose(&y, &w, None, &[2], g).unwrap();
        assert_eq!((*out.shape).to_vec(), [1, 1, 9]);
        assert_eq!(out.to_vec()[7..], [0.0, 0.0]);
    }
    #[test]
    fn a_bias_is_added_and_a_batch_axis_may_be_missing() {
        let g = Geometry { stride: &[1], padding: &[1], dilation: &[1], groups: 1 };
        for width in [3, 5, 50] {
            let (x, w, b) =
                (noise(&[2, 4, width], DType::Float32, 1), noise(&[9, 2, 3, 3], DType::Float32, 2), noise(&[9], DType::Float32, 3));
            let out = conv(&x, &w, Some(&b), g).unwrap();
            assert_eq!(*out.shape, [9, 4, width]);
            let mut want = plain(&batched(&x, &w), &w, None, g).result;
            want.iter_mut().enumerate().for_each(|(i, v)| *v += b.to_vec()[i / (4 * width)]);
            near(&out, &want, 1e-6, "bias");
            assert_eq!(conv_input_grad(&out, &w, &x.shape, g).unwrap().shape, x.shape);
            assert_eq!(conv_weight_grad(&out, &x, &w.shape, g).unwrap().shape, w.shape);
        }
    }
    #[test]
    fn halves_and_integers_come_back_in_their_type() {
        let g = Geometry { stride: &[2], padding: &[1], dilation: &[1], groups: 1 };
        for (dtype, eps) in [(DType::Float16, 1e-3), (DType::BFloat16, 8e-3), (DType::Int64, 0.0), (DType::Int16, 0.0)] {
            let (x, w) = (noise(&[2, 3, 6, 6], dtype, 1), noise(&[4, 3, 3, 3], dtype, 2));
            let (out, want) = (conv(&x, &w, None, g).unwrap(), plain(&x, &w, None, g));
            assert_eq!(out.dtype, dtype);
            near(&out, &want.result, eps, "result");
            let grad = conv_input_grad(&out, &w, &x.shape, g).unwrap();
            assert_eq!(grad.dtype, dtype);
        }
    }
    #[test]
    fn what_is_not_a_number_reaches_what_meets_it_only() {
        let g = Geometry { stride: &[1], padding: &[1], dilation: &[1], groups: 1 };
        let mut x = Fresh::new(Dims::of(&[1, 1, 9, 9]), DType::Float32).unwrap();
        x.bytes_mut().fill(0);
        x.slice_mut::<f32>()[0] = f32::NAN;
        let out = conv(&x.done(), &Array::full(Dims::of(&[9, 1, 3, 3]), DType::Float32, Scalar::Int(1)).unwrap(), None, g).unwrap();
        for (i, v) in out.to_vec().iter().enumerate() {
            assert_eq!(v.is_nan(), [0, 1, 9, 10].contains(&(i % 81)), "element {i}");
        }
    }
    #[test]
    fn bits_do_not_depend_on_the_instruction_set() {
        use crate::kernels::simd::{Level, at};
        for (x, w, stride, padding, dilation, groups) in SPECS {
            let g = Geometry { stride, padding, dilation, groups };
            let (x, w) = (noise(x, DType::Float32, 1), noise(w, DType::Float32, 2));
            let all = || {
                let y = conv(&x, &w, None, g).unwrap();
                let (a, b) = (conv_input_grad(&y, &w, &x.shape, g).unwrap(), conv_weight_grad(&y, &x, &w.shape, g).unwrap());
                [y, a, b].iter().flat_map(|a| a.slice::<f32>().iter().map(|v| v.to_bits()).collect::<Vec<_>>()).collect::<Vec<_>>()
            };
            assert!(at(Level::Avx512, all) == at(Level::Avx2, all), "{:?} by {:?}", x.shape, w.shape);
        }
    }
    #[test]
    fn what_does_not_fit_is_refused_as_torch_does() {
        let z = |shape: &[usize]| Array::zeros(Dims::of(shape), DType::Float32).unwrap();
        let g = Geometry { stride: &[1], padding: &[0], dilation: &[1], groups: 1 };
        let says = |r: Result<Array>, text: &str| {
            let e = r.unwrap_err().to_string();
            assert!(e.contains(text), "{e}");
        };
        let x = z(&[1, 3, 8, 8]);
        says(
            conv(&x, &z(&[4, 2, 3, 3]), None, g),
            "Given groups=1, weight of size [4, 2, 3, 3], expected input[1, 3, 8, 8] to have 2 channels, but got 3 channels instead",
        );
        says(conv(&x, &z(&[3, 2, 3, 3]), None, Geometry { groups: 2, ..g }), "expected weight to be divisible by 2 at dimension 0");
        says(
            conv(&z(&[1, 3, 2, 2]), &z(&[4, 3, 3, 3]), None, g),
            "Calculated padded input size per channel: (2 x 2). Kernel size: (3 x 3). Kernel size can't be greater than actual input size",
        );
        says(
            conv(&x, &z(&[4, 3, 3, 3]), Some(&z(&[3])), g),
            "expected bias to be 1-dimensional with 4 elements, but got bias of size [3] instead",
        );
        says(conv(&x, &z(&[4, 3, 3, 3]), None, Geometry { padding: &[-1], ..g }), "negative padding is not supported");
        says(conv(&x, &z(&[4, 3, 3, 3]), None, Geometry { stride: &[0], ..g }), "non-positive stride is not supported");
        says(conv(&x, &z(&[4, 3, 3, 3]), None, Geometry { dilation: &[0], ..g }), "dilation should be greater than zero");
        says(conv(&x, &z(&[4, 3, 3, 3]), None, Geometry { groups: 0, ..g }), "non-positive groups is not supported");
        says(
            conv(&x, &z(&[4, 3, 3, 3]), None, Geometry { stride: &[1, 2, 3], ..g }),
            "expected stride to be a single integer value or a list of 2 values",
        );
        says(conv(&x, &z(&[4, 3, 3, 3]), None, Geometry { padding: &[i64::MAX], ..g }), "too large");
        says(
            conv(&z(&[8, 8]), &z(&[4, 3, 3, 3]), None, g),
            "Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [8, 8]",
        );
        says(conv(&x, &z(&[4, 3, 0, 3]), None, g), "kernel size should be greater than zero");
        says(conv(&x, &cast(&z(&[4, 3, 3, 3]), DType::Float64).unwrap(), None, g), "should be the same");
        says(
            conv_transpose(&x, &z(&[4, 2, 3, 3]), None, &[0], g),
            "Given transposed=1, weight of size [4, 2, 3, 3], expected input[1, 3, 8, 8] to have 4 channels, but got 3 channels instead",
        );
        says(conv_transpose(&x, &z(&[3, 2, 3, 3]), None, &[1], g), "output padding must be smaller than either stride or dilation");
        says(
            conv_transpose(&x, &z(&[3, 2, 3, 3]), None, &[0], Geometry { padding: &[10], ..g }),
            "Calculated output size per channel: (-10 x -10). Output size is too small",
        );
        says(conv_transpose(&x, &z(&[3, 2, 3, 3]), None, &[0], Geometry { stride: &[i64::MAX / 4], ..g }), "");
        says(conv_input_grad(&x, &z(&[3, 2, 3, 3]), &[1, 2, 8, 8], g), "expected a gradient of shape");
    }
}
