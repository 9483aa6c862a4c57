//! Softmax and its logarithm, each with its gradient as an op, so that any order of derivative works.
use super::macros::op;
use super::*;
use crate::kernels::softmax as rows;
use crate::layout::wrap_dim;

fn summed(t: &Tensor, dim: i64) -> Result<Tensor> {
    sum_dim(t, Some(Ints::from_slice(&[dim])), true, None)
}
op! {
    /// exp(x) / sum of exp(x) along `dim`, computed in `dtype` if it is given.
    SoftmaxBackward0 = fn softmax(self_; dim: i64, dtype: Option<DType> = None);
    schema "_softmax";
    forward(_out) {
        let d = wrap_dim(*dim, self_.ndim())?;
        if self_.numel() == 0 { Array::zeros(self_.shape, dtype.unwrap_or(self_.dtype)) } else { rows::softmax(self_, d, dtype.unwrap_or(self_.dtype)) }
    };
    saves [result];
    grad(g, cx) { self_ uses [result] => softmax_backward(&to_dtype(g, result.dtype())?, result, *dim, cx.dtype(0)) }
}
op! {
    /// Gradient of `softmax`: y (g - sum of g y).
    SoftmaxBackwardDataBackward0 = fn softmax_backward(grad_output, output; dim: i64, input_dtype: DType);
    schema "_softmax_backward_data";
    on [private];
    forward(_out) rows::softmax_backward(grad_output, output, wrap_dim(*dim, output.ndim())?, *input_dtype);
    saves [grad_output, output];
    grad(g, cx) {
        grad_output uses [output] => softmax_backward(&to_dtype(g, output.dtype())?, output, *dim, output.dtype()),
        output uses [grad_output, output] => {
            let g = to_dtype(g, output.dtype())?;
            let centred = sub(grad_output, &summed(&mul(grad_output, output)?, *dim)?, Scalar::Int(1))?;
            sub(&mul(&g, &centred)?, &mul(grad_output, &summed(&mul(&g, output)?, *dim)?)?, Scalar::Int(1))
        },
    }
}
op! {
    /// x - ln of the sum of exp(x) along `dim`, computed in `dtype` if it is given.
    LogSoftmaxBackward0 = fn log_softmax(self_; dim: i64, dtype: Option<DType> = None);
    schema "_log_softmax";
    forward(_out) {
        let d = wrap_dim(*dim, self_.ndim())?;
        if self_.numel() == 0 { Array::zeros(self_.shape, dtype.unwrap_or(self_.dtype)) } else { rows::log_softmax(self_, d, dtype.unwrap_or(self_.dtype)) }
    };
    saves [result];
    grad(g, cx) { self_ uses [result] => log_softmax_backward(&to_dtype(g, result.dtype())?, result, *dim, cx.dtype(0)) }
}
op! {
    /// Gradient of `log_softmax`: g - exp(y) times the sum of g.
    LogSoftmaxBackwardDataBackward0 = fn log_softmax_backward(grad_output, output; dim: i64, input_dtype: DType);
    schema "_log_softmax_backward_data";
    on [private];
    forward(_out) rows::log_softmax_backward(grad_output, output, wrap_dim(*dim, output.ndim())?, *input_dtype);
    saves [grad_output, output];
    grad(g, cx) {
        grad_output uses [output] => {
            let g = to_dtype(g, output.dtype())?;
            sub(&g, &summed(&mul(&g, &exp(output)?)?, *dim)?, Scalar::Int(1))
        },
        output uses [grad_output, output] => {
            let g = to_dtype(g, output.dtype())?;
            neg(&mul(&mul(&g, &exp(output)?)?, &summed(grad_output, *dim)?)?)
        },
    }
}
