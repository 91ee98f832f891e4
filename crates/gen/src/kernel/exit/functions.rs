//! Functions of values: activations and gates, in the type of the sums.

use tilewright_ir::*;
use tilewright_problem::epilogue::GELU_CUBE;
use tilewright_problem::{Activation, Gate, GateFunction};

/// The value of a gate for both sums of a pair.
pub(super) fn gated(b: &mut Builder, of: Gate, [gate, up]: [ExprId; 2]) -> ExprId {
    let value = match (of.function, of.function.activation()) {
        (_, Some(activation)) => activate(b, activation, gate),
        (GateFunction::Sigmoid, None) => b.value(gate.unary(UnaryOp::Sigmoid)),
        (GateFunction::Clamped, None) => return clamped(b, of, [gate, up]),
        _ => gate,
    };
    b.value(value * up)
}

/// Clamped SwiGLU. NaN is below no limit and above none, and stays.
fn clamped(b: &mut Builder, of: Gate, [gate, up]: [ExprId; 2]) -> ExprId {
    let ty = b.ty(gate).scalar;
    let (limit, slope) = (of.limit.value(), of.slope.value());
    let [most, least, slope] = [limit, -limit, slope].map(|value| b.float(value, ty));
    let gate = b.bind("gate", most.lt(gate).select(most, gate));
    let up = b.bind("up", most.lt(up).select(most, up));
    let up = b.bind("up", up.lt(least).select(least, up));
    // value (up + 1), rounded once.
    let value = b.value(gate * (gate * slope).unary(UnaryOp::Sigmoid));
    b.value(value.fma(up, value))
}

/// The activation of a value, in the value's type. NaN stays NaN.
pub(super) fn activate(b: &mut Builder, activation: Activation, x: ExprId) -> ExprId {
    let ty = b.ty(x).scalar;
    let x = b.bind("x", x);
    let constant = |b: &mut Builder, value: f64| b.float(value, ty);
    match activation {
        Activation::Relu => {
            let zero = constant(b, 0.0);
            b.value(x.lt(zero).select(zero, x))
        }
        Activation::Gelu => {
            let (half, scale) = (constant(b, 0.5), constant(b, std::f64::consts::FRAC_1_SQRT_2));
            let half = b.value(x * half);
            b.value(half.fma((x * scale).unary(UnaryOp::Erf), half))
        }
        // x / 2 * (1 + tanh(y)) = x * sigmoid(2 y), which keeps its accuracy for negative x.
        Activation::GeluTanh => {
            let slope = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
            let (linear, cubic) = (constant(b, slope), constant(b, slope * GELU_CUBE));
            b.value(x * (x * (x * x).fma(cubic, linear)).unary(UnaryOp::Sigmoid))
        }
        Activation::Silu => b.value(x * x.unary(UnaryOp::Sigmoid)),
        // Of NaN the product is NaN.
        Activation::HardSwish => {
            let [zero, half, one, slope] = [0.0, 0.5, 1.0, 1.0 / 6.0].map(|value| constant(b, value));
            b.value(x * x.fma(slope, half).max(zero).min(one))
        }
        Activation::Exp => {
            let factor = constant(b, std::f64::consts::LOG2_E);
            b.value((x * factor).unary(UnaryOp::Exp2))
        }
        Activation::Softcap(limit) => {
            let [limit, inverse] = [limit.value(), 1.0 / limit.value()].map(|value| constant(b, value));
            b.value((x * inverse).unary(UnaryOp::Tanh) * limit)
        }
    }
}
