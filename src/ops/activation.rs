//! Activations: elementwise functions that torch keeps in `nn.functional`, each with its own backward op, so that any order of derivative works.
use super::macros::{function, op, op_many};
use super::*;
use crate::kernels::{pointwise, table};
use crate::ops::unary::{plus, times, zeros_of};

fn float(v: f64) -> Scalar {
    Scalar::Float(v)
}
op! {
    /// `x` where positive, else `negative_slope * x`.
    LeakyReluBackward0 = fn leaky_relu(self_; negative_slope: Scalar = Scalar::Float(0.01));
    inplace leaky_relu_;
    on [nn];
    forward(out) pointwise::run(out, "leaky_relu", &table::LeakyRelu { slope: *negative_slope }, floats("leaky_relu", [self_])?);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => leaky_relu_backward(g, self_, *negative_slope) }
}
op! {
    /// Gradient of `leaky_relu`.
    LeakyReluBackwardBackward0 = fn leaky_relu_backward(grad_output, self_; negative_slope: Scalar);
    on [private];
    forward(out) pointwise::run(out, "leaky_relu_backward", &table::LeakyReluBackward { slope: *negative_slope }, [grad_output, self_]);
    saves [self_];
    grad(g, cx) {
        grad_output uses [self_] => leaky_relu_backward(g, self_, *negative_slope),
        self_ uses [] => zeros_of(g),
    }
}
op! {
    /// `scale * x` where positive, else `scale * alpha * (exp(input_scale * x) - 1)`.
    EluBackward0 = fn elu(self_; alpha: f64 = 1.0, scale: f64 = 1.0, input_scale: f64 = 1.0);
    inplace elu_;
    on [nn];
    forward(out) {
        let k = table::Elu { alpha: float(*alpha), scale: float(*scale), input_scale: float(*input_scale) };
        pointwise::run(out, "elu", &k, floats("elu", [self_])?)
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => elu_backward(g, self_, *alpha, *scale, *input_scale) }
}
op! {
    /// Gradient of `elu`.
    EluBackwardBackward0 = fn elu_backward(grad_output, self_; alpha: f64, scale: f64, input_scale: f64);
    on [private];
    forward(out) {
        let k = table::EluBackward { alpha: float(*alpha), scale: float(*scale), input_scale: float(*input_scale) };
        pointwise::run(out, "elu_backward", &k, [grad_output, self_])
    };
    saves [grad_output, self_];
    grad(g, cx) {
        grad_output uses [self_] => elu_backward(g, self_, *alpha, *scale, *input_scale),
        self_ uses [grad_output, self_] => {
            let inner = elu_backward(&mul(g, grad_output)?, self_, *alpha, *scale, *input_scale)?;
            where_(&lt(self_, &number(0.0)?)?, &times(&inner, *input_scale)?, &zeros_of(g)?)
        },
    }
}
function! {
    /// Scaled exponential linear unit (Klambauer et al. 2017, "Self-Normalizing Neural Networks").
    fn selu(self_) -> Tensor;
    on [function];
    { elu(self_, SELU.0, SELU.1, 1.0) }
}
function! {
    /// `selu`, in place.
    fn selu_(self_) -> Tensor;
    on [function];
    { elu_(self_, SELU.0, SELU.1, 1.0) }
}
/// Alpha and scale of the self-normalising unit.
const SELU: (f64, f64) = (1.673_263_242_354_377_2, 1.050_700_987_355_480_5);
op! {
    /// Continuously differentiable exponential linear unit.
    CeluBackward0 = fn celu(self_; alpha: f64 = 1.0);
    inplace celu_;
    on [function];
    forward(out) {
        let k = table::Elu { alpha: float(*alpha), scale: float(1.0), input_scale: float(1.0 / alpha) };
        pointwise::run(out, "celu", &k, floats("celu", [self_])?)
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => elu_backward(g, self_, *alpha, 1.0, 1.0 / alpha) }
}
/// Standard normal density, 1 / sqrt(2 pi).
const DENSITY: f64 = 0.398_942_280_401_432_7;
op! {
    /// `x * Phi(x)` with the standard normal distribution (Hendrycks and Gimpel 2016); `"tanh"` approximates it.
    GeluBackward0 = fn gelu(self_; *, approximate: String = String::from("none"));
    inplace gelu_;
    on [nn];
    forward(out) match approximate.as_str() {
        "none" => pointwise::run(out, "gelu", &table::Gelu {}, floats("gelu", [self_])?),
        "tanh" => pointwise::run(out, "gelu", &table::GeluTanh {}, floats("gelu", [self_])?),
        a => crate::error::bail!(Runtime, "approximate argument must be either none or tanh, got '{a}'"),
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => gelu_backward(g, self_, approximate.clone()) }
}
op! {
    /// Gradient of `gelu`.
    GeluBackwardBackward0 = fn gelu_backward(grad_output, self_; approximate: String);
    on [private];
    forward(out) if approximate == "tanh" {
        pointwise::run(out, "gelu_backward", &table::GeluTanhBackward {}, [grad_output, self_])
    } else {
        pointwise::run(out, "gelu_backward", &table::GeluBackward {}, [grad_output, self_])
    };
    saves [grad_output, self_];
    grad(g, cx) {
        grad_output uses [self_] => gelu_backward(g, self_, approximate.clone()),
        self_ uses [grad_output, self_] => mul(&mul(g, grad_output)?, &gelu_curvature(self_, approximate == "tanh")?),
    }
}
/// Second derivative of `gelu`.
fn gelu_curvature(x: &Tensor, tanh_form: bool) -> Result<Tensor> {
    let square = mul(x, x)?;
    if !tanh_form {
        // phi(x) (2 - x^2)
        let density = times(&exp(&times(&square, -0.5)?)?, DENSITY)?;
        return mul(&density, &plus(&neg(&square)?, 2.0)?);
    }
    // with u = b (x + c x^3), t = tanh u: t' = (1 - t^2) u'; f'' = t' + x/2 t''
    let (b, c) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044715);
    let u = times(&mul(x, &plus(&times(&square, c)?, 1.0)?)?, b)?;
    let t = tanh(&u)?;
    let du = times(&plus(&times(&square, 3.0 * c)?, 1.0)?, b)?;
    let ddu = times(x, 6.0 * b * c)?;
    let slope = plus(&neg(&mul(&t, &t)?)?, 1.0)?;
    let dt = mul(&slope, &du)?;
    let ddt = add(&mul(&slope, &ddu)?, &mul(&times(&mul(&t, &dt)?, -2.0)?, &du)?, Scalar::Int(1))?;
    add(&dt, &times(&mul(x, &ddt)?, 0.5)?, Scalar::Int(1))
}
op! {
    /// `x * sigmoid(x)`.
    SiluBackward0 = fn silu(self_);
    inplace silu_;
    on [nn];
    forward(out) pointwise::run(out, "silu", &table::Silu {}, floats("silu", [self_])?);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => silu_backward(g, self_) }
}
op! {
    /// Gradient of `silu`.
    SiluBackwardBackward0 = fn silu_backward(grad_output, self_);
    on [private];
    forward(out) pointwise::run(out, "silu_backward", &table::SiluBackward {}, [grad_output, self_]);
    saves [grad_output, self_];
    grad(g, cx) {
        grad_output uses [self_] => silu_backward(g, self_),
        // s (1 - s) (2 + x (1 - 2s))
        self_ uses [grad_output, self_] => {
            let s = sigmoid(self_)?;
            let bend = plus(&mul(self_, &plus(&times(&s, -2.0)?, 1.0)?)?, 2.0)?;
            mul(&mul(g, grad_output)?, &sigmoid_backward(&bend, &s)?)
        },
    }
}
op! {
    /// `x * tanh(softplus(x))` (Misra 2019).
    MishBackward0 = fn mish(self_);
    inplace mish_;
    on [nn];
    forward(out) pointwise::run(out, "mish", &table::Mish {}, floats("mish", [self_])?);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => mish_backward(g, self_) }
}
op! {
    /// Gradient of `mish`.
    MishBackwardBackward0 = fn mish_backward(grad_output, self_);
    on [private];
    forward(out) pointwise::run(out, "mish_backward", &table::MishBackward {}, [grad_output, self_]);
    saves [grad_output, self_];
    grad(g, cx) {
        grad_output uses [self_] => mish_backward(g, self_),
        // with t = tanh(softplus(x)), s = sigmoid(x): t' = (1 - t^2) s; f'' = 2 t' + x t''
        self_ uses [grad_output, self_] => {
            let (s, t) = (sigmoid(self_)?, tanh(&softplus(self_, 1.0, 20.0)?)?);
            let slope = plus(&neg(&mul(&t, &t)?)?, 1.0)?;
            let dt = mul(&slope, &s)?;
            let ds = sigmoid_backward(&slope, &s)?;
            let ddt = add(&ds, &times(&mul(&mul(&t, &dt)?, &s)?, -2.0)?, Scalar::Int(1))?;
            mul(&mul(g, grad_output)?, &add(&times(&dt, 2.0)?, &mul(self_, &ddt)?, Scalar::Int(1))?)
        },
    }
}
op! {
    /// `log(1 + exp(beta x)) / beta`, linear where `beta x > threshold`.
    SoftplusBackward0 = fn softplus(self_; beta: f64 = 1.0, threshold: f64 = 20.0);
    on [nn];
    forward(out) pointwise::run(out, "softplus", &table::Softplus { beta: float(*beta), threshold: float(*threshold) }, floats("softplus", [self_])?);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => softplus_backward(g, self_, *beta, *threshold) }
}
op! {
    /// Gradient of `softplus`.
    SoftplusBackwardBackward0 = fn softplus_backward(grad_output, self_; beta: f64, threshold: f64);
    on [private];
    forward(out) pointwise::run(out, "softplus_backward", &table::SoftplusBackward { beta: float(*beta), threshold: float(*threshold) }, [grad_output, self_]);
    saves [grad_output, self_];
    grad(g, cx) {
        grad_output uses [self_] => softplus_backward(g, self_, *beta, *threshold),
        self_ uses [grad_output, self_] => {
            let bx = times(self_, *beta)?;
            let bend = times(&sigmoid_backward(&mul(g, grad_output)?, &sigmoid(&bx)?)?, *beta)?;
            where_(&lt(&bx, &number(*threshold)?)?, &bend, &zeros_of(g)?)
        },
    }
}
op! {
    /// Elements limited to `[min_val, max_val]`.
    HardtanhBackward0 = fn hardtanh(self_; min_val: Scalar = Scalar::Float(-1.0), max_val: Scalar = Scalar::Float(1.0));
    inplace hardtanh_;
    on [nn];
    forward(out) {
        if self_.dtype == DType::Bool {
            crate::error::bail!(Runtime, "Bool inputs not supported for hardtanh; convert them to a number first");
        }
        if self_.dtype == DType::UInt8 && min_val.to_f64().min(max_val.to_f64()) < 0.0 {
            crate::error::bail!(Runtime, "cannot do hardtanh on an unsigned type with negative limits ({} to {})", min_val.to_f64(), max_val.to_f64());
        }
        pointwise::run(out, "hardtanh", &table::Hardtanh { lo: *min_val, hi: *max_val }, [self_])
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => hardtanh_backward(g, self_, *min_val, *max_val) }
}
op! {
    /// Gradient of `hardtanh`.
    HardtanhBackwardBackward0 = fn hardtanh_backward(grad_output, self_; min_val: Scalar, max_val: Scalar);
    on [private];
    forward(out) pointwise::run(out, "hardtanh_backward", &table::HardtanhBackward { lo: *min_val, hi: *max_val }, [grad_output, self_]);
    saves [self_];
    grad(g, cx) {
        grad_output uses [self_] => hardtanh_backward(g, self_, *min_val, *max_val),
        self_ uses [] => zeros_of(g),
    }
}
op! {
    /// `relu6(x + 3) / 6`.
    HardsigmoidBackward0 = fn hardsigmoid(self_);
    inplace hardsigmoid_;
    on [nn];
    forward(out) pointwise::run(out, "hardsigmoid", &table::Hardsigmoid {}, floats("hardsigmoid", [self_])?);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => hardsigmoid_backward(g, self_) }
}
op! {
    /// Gradient of `hardsigmoid`.
    HardsigmoidBackwardBackward0 = fn hardsigmoid_backward(grad_output, self_);
    on [private];
    forward(out) pointwise::run(out, "hardsigmoid_backward", &table::HardsigmoidBackward {}, [grad_output, self_]);
    saves [self_];
    grad(g, cx) {
        grad_output uses [self_] => hardsigmoid_backward(g, self_),
        self_ uses [] => zeros_of(g),
    }
}
op! {
    /// `x * hardsigmoid(x)`.
    HardswishBackward0 = fn hardswish(self_);
    inplace hardswish_;
    on [nn];
    forward(out) pointwise::run(out, "hardswish", &table::Hardswish {}, floats("hardswish", [self_])?);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => hardswish_backward(g, self_) }
}
op! {
    /// Gradient of `hardswish`.
    HardswishBackwardBackward0 = fn hardswish_backward(grad_output, self_);
    on [private];
    forward(out) pointwise::run(out, "hardswish_backward", &table::HardswishBackward {}, [grad_output, self_]);
    saves [grad_output, self_];
    grad(g, cx) {
        grad_output uses [self_] => hardswish_backward(g, self_),
        self_ uses [grad_output, self_] => {
            let inside = logical_and(&gt(self_, &number(-3.0)?)?, &lt(self_, &number(3.0)?)?)?;
            where_(&inside, &times(&mul(g, grad_output)?, 1.0 / 3.0)?, &zeros_of(g)?)
        },
    }
}
op! {
    /// 0 inside `[-lambd, lambd]`, else shrunk by `lambd` towards 0.
    SoftshrinkBackward0 = fn softshrink(self_; lambd: Scalar = Scalar::Float(0.5));
    on [nn];
    forward(out) {
        if lambd.to_f64() < 0.0 {
            crate::error::bail!(Runtime, "lambda must be greater or equal to 0, but found to be {}.", lambd.to_f64());
        }
        pointwise::run(out, "softshrink", &table::Softshrink { lambd: *lambd }, floats("softshrink", [self_])?)
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => shrink_backward(g, self_, *lambd) }
}
op! {
    /// 0 inside `[-lambd, lambd]`, else the element.
    HardshrinkBackward0 = fn hardshrink(self_; lambd: Scalar = Scalar::Float(0.5));
    forward(out) pointwise::run(out, "hardshrink", &table::Hardshrink { lambd: *lambd }, floats("hardshrink", [self_])?);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => shrink_backward(g, self_, *lambd) }
}
op! {
    /// Gradient of `softshrink` and `hardshrink`.
    ShrinkBackwardBackward0 = fn shrink_backward(grad_output, self_; lambd: Scalar);
    on [private];
    forward(out) pointwise::run(out, "shrink_backward", &table::ShrinkBackward { lambd: *lambd }, [grad_output, self_]);
    saves [self_];
    grad(g, cx) {
        grad_output uses [self_] => shrink_backward(g, self_, *lambd),
        self_ uses [] => zeros_of(g),
    }
}
op! {
    /// `x` where above `threshold`, else `value`.
    ThresholdBackward0 = fn threshold(self_; threshold: Scalar, value: Scalar);
    inplace threshold_;
    forward(out) pointwise::run(out, "threshold", &table::Threshold { threshold: *threshold, value: *value }, numeric("threshold", [self_])?);
    saves [self_];
    grad(g, cx) { self_ uses [self_] => threshold_backward(g, self_, *threshold) }
}
op_many! {
    /// `log(sigmoid(x))`, and the buffer that its backward reads.
    LogSigmoidBackward0 = fn log_sigmoid_forward(self_) -> [output; hidden buffer];
    on [private];
    forward {
        let out = pointwise::run(crate::kernels::Out(None), "log_sigmoid", &table::LogSigmoid {}, floats("log_sigmoid", [self_])?)?;
        // torch keeps exp(-|x|); the formula here needs x alone, the buffer is kept for hooks and readers
        let buffer = pointwise::run(crate::kernels::Out(None), "exp", &table::Exp {}, [&pointwise::run(
            crate::kernels::Out(None), "neg", &table::Neg {}, [&pointwise::run(crate::kernels::Out(None), "abs", &table::Abs {}, [self_])?],
        )?])?;
        Ok(smallvec::smallvec![out, buffer])
    };
    saves [self_, buffer];
    grad(g, cx) { self_ uses [self_, buffer] => match (&g[0], self_) {
        (Some(g), Some(x)) => { let _ = buffer; log_sigmoid_backward(g, x).map(Some) }
        _ => Ok(None),
    } }
}
function! {
    /// Elementwise `log(sigmoid(x))`.
    fn log_sigmoid(self_) -> Tensor;
    on [nn];
    { Ok(log_sigmoid_forward(self_)?.swap_remove(0)) }
}
op! {
    /// Gradient of `log_sigmoid`.
    LogSigmoidBackwardBackward0 = fn log_sigmoid_backward(grad_output, self_);
    on [private];
    forward(out) pointwise::run(out, "log_sigmoid_backward", &table::LogSigmoidBackward {}, [grad_output, self_]);
    saves [grad_output, self_];
    grad(g, cx) {
        grad_output uses [self_] => log_sigmoid_backward(g, self_),
        self_ uses [grad_output, self_] => neg(&sigmoid_backward(&mul(g, grad_output)?, &sigmoid(self_)?)?),
    }
}
function! {
    /// `x` where positive, else `weight * x`, with one weight or one a channel.
    fn prelu(self_, weight) -> Tensor;
    {
        let (shape, n) = (self_.shape(), weight.numel());
        if n != 1 && (shape.len() < 2 || shape[1] != n) {
            crate::error::bail!(Runtime, "Mismatch of parameter numbers and input channel size. Found parameter numbers = {n} and channel size = {}.", shape.get(1).unwrap_or(&1));
        }
        let sizes = (0..shape.len().max(1)).map(|d| if d == 1 && n != 1 { n as i64 } else { 1 });
        let w = if shape.is_empty() { reshape(weight, Sizes::default())? } else { reshape(weight, Sizes(sizes.collect()))? };
        prelu_kernel(self_, &w)
    }
}
op! {
    /// `x` where positive, else `weight * x`.
    PreluKernelBackward0 = fn prelu_kernel(self_, weight);
    schema "_prelu_kernel";
    on [private];
    forward(out) {
        floats("prelu", [self_])?;
        let scaled = pointwise::run(crate::kernels::Out(None), "mul", &table::Mul {}, [self_, weight])?;
        let positive = pointwise::run_to(crate::kernels::Out(None), "gt", DType::Bool, &table::Gt {}, [self_, &Array::number(Scalar::Int(0))?])?;
        pointwise::where_(out, &positive, self_, &scaled)
    };
    saves [self_, weight];
    grad(g, cx) {
        self_ uses [self_, weight] => where_(&gt(self_, &number(0.0)?)?, g, &mul(g, weight)?),
        weight uses [self_] => where_(&gt(self_, &number(0.0)?)?, &zeros_of(g)?, &mul(g, self_)?),
    }
}
op! {
    /// First half of `dim` times the sigmoid of the second half.
    GluBackward0 = fn glu(self_; dim: i64 = -1);
    on [nn];
    forward(out) {
        let d = crate::layout::wrap_dim(*dim, self_.ndim())?;
        let n = self_.shape.get(d).copied().unwrap_or(1);
        if self_.ndim() == 0 || !n.is_multiple_of(2) {
            crate::error::bail!(Runtime, "Halving dimension must be even, but dimension {d} is size {n}");
        }
        let half = |at: usize| self_.view(self_.shape.with(|s| s[d] = n / 2), self_.strides, self_.offset + at * self_.strides[d]);
        let gate = pointwise::run(crate::kernels::Out(None), "sigmoid", &table::Sigmoid {}, [&half(n / 2)])?;
        pointwise::run(out, "glu", &table::Mul {}, [&half(0), &gate])
    };
    saves [self_];
    grad(g, cx) { self_ uses [self_] => {
        let d = crate::layout::wrap_dim(*dim, self_.ndim())? as i64;
        let n = self_.shape()[d as usize] as i64 / 2;
        let (a, gate) = (narrow(self_, d, 0, n)?, sigmoid(&narrow(self_, d, n, n)?)?);
        cat(vec![mul(g, &gate)?, sigmoid_backward(&mul(g, &a)?, &gate)?], d)
    } }
}
