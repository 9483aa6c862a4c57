//! Random tensors, draws in place, and dropout. Numbers are torch's for the same seed (`kernels::random`). Each takes `generator=`; without
//! it the thread's current source is drawn from. A draw in place gives the tensor a new history through which no gradient goes back.
use super::create::{alike, leaf};
use super::macros::{function, op};
use super::*;
use crate::dtype::default_dtype;
use crate::error::bail;
use crate::kernels::{create, pointwise, random};
use crate::layout::given_size;
use crate::ops::unary::zeros_of;
use crate::tape::dispatch::Arg;
use crate::tape::random::draw;
use crate::tape::{How, RandomSource, mode};

impl IntoAttr for RandomSource {
    fn attr(&self) -> Attr {
        Attr::None
    }
    fn arg(&self) -> Arg {
        Arg::Source(self.clone())
    }
}

// ---- in place ----
/// A draw into the first operand: the op, which records it, and the method that runs it in place. `g` is the source, locked.
macro_rules! draws {
    ($($(#[doc = $doc:literal])* $node:ident $op:ident $schema:literal $method:ident $python:ident($(; $($attr:ident: $ty:ty $(= $default:expr)?),+)?) |$g:ident, $a:ident| $array:expr;)*) => { $(
        op! {
            $(#[doc = $doc])*
            $node = fn $op(self_ $(; $($attr: $ty $(= $default)?),+)?; *, generator: Option<RandomSource> = None);
            schema $schema;
            on [private];
            forward(_out) {
                let $a = self_;
                draw(generator, |$g| $array)
            };
            grad(g, cx) { self_ uses [] => zeros_of(g) }
        }
        function! {
            $(#[doc = $doc])*
            fn $method(self_ $(; $($attr: $ty $(= $default)?),+)?; *, generator: Option<RandomSource> = None) -> Tensor;
            overload $python;
            on [method];
            { $op::run(How::InPlace, self_, $($($attr,)+)? generator) }
        }
    )* };
}
draws! {
    /// Fills the tensor with numbers uniform in [from, to).
    UniformBackward0 uniform "uniform" uniform_ uniform_(; from: f64 = 0.0, to: f64 = 1.0) |g, a| random::refill(a, |s| random::uniform(g, s, a.dtype, *from, *to));
    /// Fills the tensor with normal numbers.
    NormalBackward0 normal_draw "normal" normal_ normal_(; mean: f64 = 0.0, std: f64 = 1.0) |g, a| random::normal_like(g, a, *mean, *std);
    /// Fills the tensor with integers in [from, to); without `to` up to the largest of the dtype.
    RandomBackward0 random_between "random.from" random_from_ random_(; from: i64, to: Option<i64>) |g, a| random::refill(a, |s| match to {
        Some(to) => random::randint(g, s, a.dtype, *from, *to),
        None => random::random_from(g, s, a.dtype, *from),
    });
    /// Fills the tensor with integers in [0, to).
    RandomBackward1 random_below "random.to" random_to_ random_(; to: i64) |g, a| random::refill(a, |s| random::randint(g, s, a.dtype, 0, *to));
    /// Fills the tensor with integers from 0 to the largest of the dtype, or to the last that a floating point dtype holds exactly.
    RandomBackward2 random_any "random" random_ random_() |g, a| random::refill(a, |s| random::random(g, s, a.dtype));
    /// Fills the tensor with ones, each with probability `p`, and zeros.
    BernoulliBackward2 bernoulli_number "bernoulli.float" bernoulli_number_ bernoulli_(; p: f64 = 0.5) |g, a| random::refill(a, |s| random::bernoulli(g, s, a.dtype, *p));
    /// Fills the tensor with numbers of an exponential distribution of rate `lambd`.
    ExponentialBackward0 exponential "exponential" exponential_ exponential_(; lambd: f64 = 1.0) |g, a| random::refill(a, |s| random::exponential(g, s, a.dtype, *lambd));
    /// Fills the tensor with counts of trials up to the first success of probability `p`.
    GeometricBackward0 geometric "geometric" geometric_ geometric_(; p: f64) |g, a| random::refill(a, |s| random::geometric(g, s, a.dtype, *p));
    /// Fills the tensor with numbers of a Cauchy distribution.
    CauchyBackward0 cauchy "cauchy" cauchy_ cauchy_(; median: f64 = 0.0, sigma: f64 = 1.0) |g, a| random::refill(a, |s| random::cauchy(g, s, a.dtype, *median, *sigma));
    /// Fills the tensor with exponentials of normal numbers.
    LogNormalBackward0 log_normal "log_normal" log_normal_ log_normal_(; mean: f64 = 1.0, std: f64 = 2.0) |g, a| random::refill(a, |s| random::log_normal(g, s, a.dtype, *mean, *std));
}
op! {
    /// Ones with the probabilities in `p`, and zeros, in place of the elements.
    BernoulliBackward1 = fn bernoulli_tensor(self_, p; *, generator: Option<RandomSource> = None);
    schema "bernoulli.Tensor";
    on [private];
    forward(_out) draw(generator, |g| random::bernoulli_like(g, self_, p));
    grad(g, cx) {
        self_ uses [] => zeros_of(g),
        p uses [] => zeros(cx.shape(1), cx.dtype(1)),
    }
}
function! {
    /// Fills the tensor with ones, with the probabilities in `p`, and zeros.
    fn bernoulli_tensor_(self_, p; *, generator: Option<RandomSource> = None) -> Tensor;
    overload bernoulli_;
    on [method];
    { bernoulli_tensor::run(How::InPlace, self_, p, generator) }
}

// ---- of a size ----
macro_rules! random {
    ($($(#[doc = $doc:literal])* $name:ident($($attr:ident: $ty:ty),*) $schema:literal $(overload $python:ident)? |$g:ident, $dtype:ident| $array:expr;)*) => { $(function! {
        $(#[doc = $doc])*
        fn $name(; $($attr: $ty),*; *, generator: Option<RandomSource> = None, out: Option<Tensor> = None, dtype: Option<DType> = None, layout: Option<Strided> = None, device: Option<Cpu> = None, pin_memory: Option<bool> = None, requires_grad: bool = false) -> Tensor;
        $(overload $python;)?
        on [function];
        schema $schema;
        {
            let $dtype = dtype.or_else(|| out.as_ref().map(Tensor::dtype));
            let a = draw(&generator, |$g| $array)?;
            leaf(stringify!($name), out, a, requires_grad)
        }
    })* };
}
fn float(dtype: Option<DType>) -> DType {
    dtype.unwrap_or_else(default_dtype)
}
random! {
    /// Numbers uniform in [0, 1).
    rand(size: Sizes) "rand" |g, dtype| random::uniform(g, given_size("rand", &size)?, float(dtype), 0.0, 1.0);
    /// Normal numbers of mean 0 and variance 1.
    randn(size: Sizes) "randn" |g, dtype| random::normal(g, given_size("randn", &size)?, float(dtype), 0.0, 1.0);
    /// Integers in [0, high), int64 unless another dtype is given.
    randint_below(high: i64, size: Sizes) "randint" overload randint |g, dtype| random::randint(g, given_size("randint", &size)?, dtype.unwrap_or(DType::Int64), 0, high);
    /// Integers in [low, high), int64 unless another dtype is given.
    randint(low: i64, high: i64, size: Sizes) "randint.low" |g, dtype| random::randint(g, given_size("randint", &size)?, dtype.unwrap_or(DType::Int64), low, high);
    /// The integers below `n` in random order, int64 unless another dtype is given.
    randperm(n: i64) "randperm" |g, dtype| random::randperm(g, n, dtype.unwrap_or(DType::Int64));
    /// Normal numbers of one mean and standard deviation.
    normal_of_size(mean: f64, std: f64, size: Sizes) "normal.float_float" overload normal |g, dtype| random::normal(g, given_size("normal", &size)?, float(dtype), mean, std);
}
/// As `random`, of the shape of a tensor, whose dtype and layout in memory the result has unless others are given.
macro_rules! random_like {
    ($($(#[doc = $doc:literal])* $name:ident($(; $($attr:ident: $ty:ty),+)?) $schema:literal $(overload $python:ident)? |$g:ident, $a:ident| $array:expr;)*) => { $(function! {
        $(#[doc = $doc])*
        fn $name(self_ $(; $($attr: $ty),+)?; *, generator: Option<RandomSource> = None, dtype: Option<DType> = None, layout: Option<Strided> = None, device: Option<Cpu> = None, pin_memory: Option<bool> = None, requires_grad: bool = false, memory_format: Option<String> = None) -> Tensor;
        $(overload $python;)?
        on [function];
        schema $schema;
        {
            let like = alike(self_, memory_format);
            let $a = create::empty_like(&like, dtype.unwrap_or(like.dtype))?;
            leaf(stringify!($name), None, draw(&generator, |$g| $array)?, requires_grad)
        }
    })* };
}
random_like! {
    /// Numbers uniform in [0, 1), in the shape of `self`.
    rand_like() "rand_like" |g, a| random::refill(&a, |s| random::uniform(g, s, a.dtype, 0.0, 1.0));
    /// Normal numbers of mean 0 and variance 1, in the shape of `self`.
    randn_like() "randn_like" |g, a| random::normal_like(g, &a, 0.0, 1.0);
    /// Integers in [0, high), in the shape of `self`.
    randint_like_below(; high: i64) "randint_like" overload randint_like |g, a| random::refill(&a, |s| random::randint(g, s, a.dtype, 0, high));
    /// Integers in [low, high), in the shape of `self`.
    randint_like(; low: i64, high: i64) "randint_like.low_dtype" |g, a| random::refill(&a, |s| random::randint(g, s, a.dtype, low, high));
}

// ---- of tensors ----
fn standard(g: &mut random::Generator, like: &Array, std: f64) -> Result<Array> {
    random::normal_like(g, &create::empty_like(like, like.dtype)?, 0.0, std)
}
fn not_negative(std: &Array) -> Result<()> {
    if std.to_vec().iter().any(|v| *v < 0.0) {
        bail!(Runtime, "normal expects all elements of std >= 0.0");
    }
    Ok(())
}
op! {
    /// Normal numbers of the means in `mean` and one standard deviation.
    NormalBackward1 = fn normal_of_mean(mean; std: f64 = 1.0; *, generator: Option<RandomSource> = None);
    schema "normal.Tensor_float";
    overload normal;
    on [function];
    forward(out) {
        if *std < 0.0 {
            bail!(Runtime, "normal expects std >= 0.0, but found std {std}");
        }
        let noise = draw(generator, |g| standard(g, mean, *std))?;
        pointwise::run(out, "normal", &crate::kernels::table::Add {}, [&noise, mean])
    };
    shows { mean_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { mean uses [] => zeros_of(g) }
}
op! {
    /// Normal numbers of the means in `mean` and the standard deviations in `std`.
    NormalBackward3 = fn normal_of_both(mean, std; *, generator: Option<RandomSource> = None);
    schema "normal.Tensor_Tensor";
    overload normal;
    on [function];
    forward(out) {
        not_negative(std)?;
        let full = Array::empty(crate::layout::broadcast("normal", &mean.shape, &std.shape)?, mean.dtype)?;
        let noise = draw(generator, |g| standard(g, &full, 1.0))?;
        let wide = pointwise::run(Out(None), "normal", &crate::kernels::table::Mul {}, [&noise, std])?;
        pointwise::run(out, "normal", &crate::kernels::table::Add {}, [&wide, mean])
    };
    shows { mean_sym_sizes: cx.shape(0).attr(), std_sym_sizes: cx.shape(1).attr() };
    grad(g, cx) {
        mean uses [] => zeros(cx.shape(0), cx.dtype(0)),
        std uses [] => zeros(cx.shape(1), cx.dtype(1)),
    }
}
op! {
    /// Normal numbers of one mean and the standard deviations in `std`.
    NormalBackward2 = fn normal_of_std(std; mean: f64; *, generator: Option<RandomSource> = None);
    schema "normal.float_Tensor";
    overload normal;
    on [function];
    order [mean, std, generator];
    forward(out) {
        not_negative(std)?;
        let noise = draw(generator, |g| standard(g, std, 1.0))?;
        let wide = pointwise::run(Out(None), "normal", &crate::kernels::table::Mul {}, [&noise, std])?;
        pointwise::run(out, "normal", &crate::kernels::table::Add {}, [&wide, &Array::number(Scalar::Float(*mean))?])
    };
    shows { std_sym_sizes: cx.shape(0).attr() };
    grad(g, cx) { std uses [] => zeros_of(g) }
}
op! {
    /// Ones with the probabilities in `self`, and zeros.
    BernoulliBackward0 = fn bernoulli(self_; *, generator: Option<RandomSource> = None);
    forward(_out) draw(generator, |g| random::bernoulli_each(g, self_, self_.dtype));
    grad(g, cx) { self_ uses [] => zeros_of(g) }
}
function! {
    /// Ones with probability `p`, and zeros, in the shape of `self`.
    fn bernoulli_of(self_; p: f64; *, generator: Option<RandomSource> = None) -> Tensor;
    overload bernoulli;
    schema "bernoulli.p";
    {
        let a = create::empty_like(&self_.array(), self_.dtype())?;
        Ok(Tensor::new(draw(&generator, |g| random::refill(&a, |s| random::bernoulli(g, s, a.dtype, p)))?))
    }
}
op! {
    /// Counts of a Poisson distribution of the rates in `self`.
    PoissonBackward0 = fn poisson(self_; generator: Option<RandomSource> = None);
    on [function];
    forward(_out) draw(generator, |g| random::poisson(g, self_));
    grad(g, cx) { self_ uses [] => zeros_of(g) }
}
op! {
    /// Indices drawn with the weights in `self`, `num_samples` for each row.
    ///
    /// Raises RuntimeError for weights that are negative, not finite or all 0, and for more samples than categories without replacement.
    MultinomialBackward = fn multinomial(self_; num_samples: i64, replacement: bool = false; *, generator: Option<RandomSource> = None);
    forward(_out) draw(generator, |g| random::multinomial(g, self_, *num_samples, *replacement));
    grad(g, cx) {}
}

// ---- dropout ----
/// What dropout multiplies by: None where nothing is dropped; a zero where everything is.
fn noise_for(op: &str, x: &Tensor, p: f64, train: bool, channels: bool) -> Result<Option<Tensor>> {
    if !(0.0..=1.0).contains(&p) {
        bail!(Value, "{op}(): dropout probability has to be between 0 and 1, but got {p}");
    }
    let a = x.array();
    if p == 0.0 || !train || a.numel() == 0 {
        return Ok(None);
    }
    if p == 1.0 {
        return Ok(Some(Tensor::new(Array::scalar(Scalar::Int(0), a.dtype)?)));
    }
    if mode::dispatching() {
        // the same numbers, by operations that dispatch modes see
        let noise = if channels { Tensor::new(channel_wise(op, &a)?) } else { empty_like(x, None, None, None, None, None, false)? };
        bernoulli_number::run(How::InPlace, &noise, 1.0 - p, None)?;
        return div_(&noise, &number(1.0 - p)?).map(Some);
    }
    let like = if channels { channel_wise(op, &a)? } else { a };
    draw(&None, |g| random::dropout_noise(g, &like, p)).map(|n| Some(Tensor::new(n)))
}
/// The shape of noise that is one number a channel.
fn channel_wise(op: &str, a: &Array) -> Result<Array> {
    if a.ndim() < 2 {
        bail!(Runtime, "{op}(): Feature dropout requires at least 2 dimensions in the input, got {}", a.ndim());
    }
    let shape: Dims = a.shape.iter().enumerate().map(|(i, &n)| if i < 2 { n } else { 1 }).collect();
    Array::empty(shape, a.dtype)
}
/// Noise of alpha dropout: what to multiply by and what to add (Klambauer et al. 2017, "Self-Normalizing Neural Networks").
fn alpha_noise(op: &str, x: &Tensor, p: f64, train: bool, channels: bool) -> Result<Option<(Tensor, Option<Tensor>)>> {
    const SATURATION: f64 = 1.7580993408473766;
    if p == 0.0 || p == 1.0 || !train || x.numel() == 0 || !(0.0..=1.0).contains(&p) {
        return Ok(noise_for(op, x, p, train, channels)?.map(|n| (n, None)));
    }
    let a = x.array();
    let like = if channels { channel_wise(op, &a)? } else { create::empty_like(&a, a.dtype)? };
    let noise = bernoulli_number::run(How::InPlace, &Tensor::new(like), 1.0 - p, None)?;
    let scale = 1.0 / ((SATURATION * SATURATION * p + 1.0) * (1.0 - p)).sqrt();
    let shift = unary::plus(&unary::times(&unary::plus(&noise, -1.0)?, SATURATION * scale)?, SATURATION * scale * p)?;
    Ok(Some((unary::times(&noise, scale)?, Some(shift))))
}
/// A function of input, probability and mode, and its in-place version.
macro_rules! dropouts {
    ($($(#[doc = $doc:literal])* $name:ident $inplace:ident |$op:ident, $x:ident, $p:ident, $train:ident| $noise:expr;)*) => { $(
        function! {
            $(#[doc = $doc])*
            fn $name(input; p: f64, train: bool) -> Tensor;
            on [function];
            {
                let ($op, $x, $p, $train) = (stringify!($name), input, p, train);
                match $noise? {
                    None => Ok(input.clone()),
                    Some((noise, None)) => mul(input, &noise),
                    Some((noise, Some(shift))) => add(&mul(input, &noise)?, &shift, Scalar::Int(1)),
                }
            }
        }
        function! {
            $(#[doc = $doc])*
            fn $inplace(input; p: f64, train: bool) -> Tensor;
            on [function];
            {
                let ($op, $x, $p, $train) = (stringify!($inplace), input, p, train);
                match $noise? {
                    None => Ok(input.clone()),
                    Some((noise, None)) => mul_(input, &noise),
                    Some((noise, Some(shift))) => add_(&mul_(input, &noise)?, &shift, Scalar::Int(1)),
                }
            }
        }
    )* };
}
dropouts! {
    /// In training each element is 0 with probability `p`, else scaled by 1 / (1 - p) (Hinton et al. 2012). Else the input itself.
    dropout dropout_ |op, x, p, train| noise_for(op, x, p, train, false).map(|n| n.map(|n| (n, None)));
    /// Dropout of whole channels: the first two dimensions are batch and channel.
    feature_dropout feature_dropout_ |op, x, p, train| noise_for(op, x, p, train, true).map(|n| n.map(|n| (n, None)));
    /// Dropout that keeps mean 0 and variance 1.
    alpha_dropout alpha_dropout_ |op, x, p, train| alpha_noise(op, x, p, train, false);
    /// Alpha dropout of whole channels.
    feature_alpha_dropout feature_alpha_dropout_ |op, x, p, train| alpha_noise(op, x, p, train, true);
}
op! {
    /// `x` where positive, else `x` times `noise` in training, times the mean of the bounds otherwise.
    RreluWithNoiseBackward0 = fn rrelu_with_noise(self_, noise; lower: Scalar, upper: Scalar, training: bool);
    on [private];
    forward(out) match training {
        true => pointwise::run(out, "rrelu", &crate::kernels::table::Mul {}, [self_, noise]),
        false => pointwise::run(out, "rrelu", &crate::kernels::table::LeakyRelu { slope: middle(*lower, *upper) }, [self_]),
    };
    saves [self_, noise];
    grad(g, cx) { self_ uses [self_, noise] => {
        if *training && upper.to_f64() - lower.to_f64() > 1e-6 { mul(g, noise) } else { leaky_relu_backward(g, self_, middle(*lower, *upper)) }
    } }
}
fn middle(lower: Scalar, upper: Scalar) -> Scalar {
    Scalar::Float((lower.to_f64() + upper.to_f64()) / 2.0)
}
/// Slopes for the elements that are not positive, drawn in [lower, upper); 1 for the others.
fn slopes(x: &Tensor, lower: f64, upper: f64, training: bool, generator: &Option<RandomSource>) -> Result<Tensor> {
    let a = x.array();
    if !training {
        return Ok(Tensor::new(create::full_like(&a, a.dtype, Scalar::Int(1))?));
    }
    let negative: Vec<bool> = a.to_vec().iter().map(|v| *v <= 0.0).collect();
    let n = negative.iter().filter(|v| **v).count();
    let drawn = draw(generator, |g| random::uniform(g, Dims::of(&[n]), DType::Float64, lower, upper))?;
    let mut drawn = drawn.slice::<f64>().iter();
    let all: Vec<f64> = negative.iter().map(|v| if *v { drawn.next().copied().unwrap_or(1.0) } else { 1.0 }).collect();
    Ok(Tensor::new(pointwise::cast(&Array::from_slice(&a.shape, &all)?, a.dtype)?))
}
function! {
    /// `x` where positive, else `x` times a slope: random in [lower, upper) in training, their mean otherwise (Xu et al. 2015).
    fn rrelu(self_; lower: Scalar = Scalar::Float(0.125), upper: Scalar = Scalar::Float(1.0 / 3.0), training: bool = false, generator: Option<RandomSource> = None) -> Tensor;
    on [function];
    { rrelu_with_noise(self_, &slopes(self_, lower.to_f64(), upper.to_f64(), training, &generator)?, lower, upper, training) }
}
function! {
    /// `rrelu`, in place.
    fn rrelu_(self_; lower: Scalar = Scalar::Float(0.125), upper: Scalar = Scalar::Float(1.0 / 3.0), training: bool = false, generator: Option<RandomSource> = None) -> Tensor;
    on [function];
    {
        let noise = slopes(self_, lower.to_f64(), upper.to_f64(), training, &generator)?;
        rrelu_with_noise::run(How::InPlace, self_, &noise, lower, upper, training)
    }
}
