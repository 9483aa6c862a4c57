//! Elementwise arithmetic on two operands.
use super::macros::{op};
use super::*;
use crate::kernels::{pointwise, table};

op! {
    /// Elementwise sum `self + alpha * other`, with broadcasting.
    AddBackward0 = fn add(self_, other | number; *, alpha: Scalar = Scalar::Int(1));
    schema "add.Tensor";
    inplace add_;
    forward(out) {
        pointwise::run(out, "add", &table::Add { alpha: *alpha }, [self_, other])
    };
    grad(g, cx) {
        self_ uses [] => Ok(g.clone()),
        other uses [] => if alpha.to_f64() == 1.0 { Ok(g.clone()) } else { mul(g, &number(*alpha)?) },
    }
}
op! {
    /// Elementwise product, with broadcasting.
    MulBackward0 = fn mul(self_, other | number);
    schema "mul.Tensor";
    inplace mul_;
    forward(out) pointwise::run(out, "mul", &table::Mul {}, [self_, other]);
    saves [self_, other];
    grad(g, cx) {
        self_ uses [other] => mul(g, other),
        other uses [self_] => mul(g, self_),
    }
}
