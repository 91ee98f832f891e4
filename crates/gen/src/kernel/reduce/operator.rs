//! The code of an operator. It has the state of no element, the state of a thread's elements, the combination of two states, and
//! the result of a state.
//!
//! Each operator has its own fast code for elements in registers. `argmax` scans them in order. `logsumexp` and `var` compute the largest
//! element or the mean of the thread first, and exponentials and differences relative to it.

use super::{Reducer, State, bind};
use std::f64::consts::{LN_2, LOG2_E};
use tilewright_ir::*;
use tilewright_problem::{Function, Operator};

/// An element that a thread has.
pub(crate) struct Element {
    pub value: ExprId,
    /// Its distance from the thread's first element, in the order of indices.
    pub index: u64,
    /// Conditions under which it counts.
    pub counts: Vec<ExprId>,
}

impl Element {
    /// Its value where it counts, else another.
    fn or(&self, b: &mut Builder, value: impl Into<Ex>, other: f64) -> ExprId {
        let value = b.value(value);
        let other = number(b, other, b.ty(value).scalar);
        self.counts.iter().fold(value, |value, condition| b.value(condition.select(value, other)))
    }
}

impl Reducer<'_> {
    /// An element as the operator has it.
    pub fn seen(&self, b: &mut Builder, x: ExprId) -> ExprId {
        match self.op.function {
            None => x,
            Some(Function::Abs) => b.unary(UnaryOp::Abs, x),
            Some(Function::Square) => {
                let x = b.bind("x", x);
                b.value(x * x)
            }
            Some(Function::Exp) => {
                let factor = b.float(LOG2_E, self.state[0]);
                b.value((x * factor).unary(UnaryOp::Exp2))
            }
        }
    }

    /// The state of no element.
    pub fn identity(&self, b: &mut Builder) -> State {
        let [value, rest @ ..] = self.op.operator.identity();
        // Integers are i32 at most, so the identity is clamped to i32. Its index is infinity, which is above every real index.
        let value = if self.state[0].is_float() { value } else { value.clamp(i32::MIN.into(), i32::MAX.into()) };
        let all = [value, rest[0], rest[1]];
        self.state.iter().zip(all).map(|(scalar, value)| number(b, value, *scalar)).collect()
    }

    /// An element that changes nothing, where there is one.
    pub fn fill(&self) -> Option<f64> {
        let one = self.op.function.is_none() && self.op.operator != Operator::Var && self.state[0].is_float();
        one.then(|| self.op.operator.identity()[0])
    }

    /// The state of the elements of a thread, the first of which has this index.
    pub fn elements(&self, b: &mut Builder, first: Option<ExprId>, mut elements: Vec<Element>) -> State {
        match self.op.operator {
            Operator::ArgMax | Operator::ArgMin => {
                elements.sort_by_key(|element| element.index);
                let none = self.op.operator.identity()[0];
                let leaf = |element: &Element| {
                    let value = element.or(b, element.value, none);
                    vec![b.bind("x", value), b.int(element.index as i64, self.state[1])]
                };
                let leaves: Vec<State> = elements.iter().map(leaf).collect();
                let mut best = accumulated(b, &leaves, &mut |b, x, y| {
                    let later = self.later(b, x[0], y[0]);
                    let later = b.bind("later", later);
                    self.select(b, later, y, x)
                });
                best[1] = first.map_or(best[1], |first| b.value(best[1] + first));
                best
            }
            Operator::LogSumExp => {
                let values: Vec<State> = elements
                    .iter()
                    .map(|element| {
                        let value = element.or(b, element.value, f64::NEG_INFINITY);
                        vec![b.bind("x", value)]
                    })
                    .collect();
                let most = tree(b, &values, &mut |b, x, y| vec![b.value(x[0].maximum(y[0]))]);
                let most = b.bind("most", most[0]);
                let from = self.from(b, most);
                let powers: Vec<State> = values.iter().map(|x| vec![self.power(b, x[0], from)]).collect();
                vec![most, sum(b, &powers)]
            }
            Operator::Var => self.moments(b, &elements),
            _ => {
                let leaf = |element: Element| {
                    let mut state = self.element(b, element.value);
                    for condition in element.counts {
                        let identity = self.identity(b);
                        state = self.select(b, condition, &state, &identity);
                    }
                    state
                };
                let leaves: Vec<State> = elements.into_iter().map(leaf).collect();
                self.all(b, &leaves)
            }
        }
    }

    /// The state of an element of an operator that has one component.
    fn element(&self, b: &mut Builder, x: ExprId) -> State {
        vec![match self.op.operator {
            Operator::SumSq | Operator::Norm2 => {
                let x = b.bind("x", x);
                b.value(x * x)
            }
            Operator::AbsMax => b.value(x.unary(UnaryOp::Abs)),
            _ => x,
        }]
    }

    /// Mean, count and squared differences from the mean.
    fn moments(&self, b: &mut Builder, elements: &[Element]) -> State {
        let scalar = self.state[0];
        let values: Vec<ExprId> = elements.iter().map(|element| b.bind("x", element.value)).collect();
        let counted: Vec<State> = elements.iter().zip(&values).map(|(element, x)| vec![element.or(b, *x, 0.0)]).collect();
        let total = sum(b, &counted);
        let (mean, count) = if elements.iter().all(|element| element.counts.is_empty()) {
            let share = b.float(1.0 / elements.len().max(1) as f64, scalar);
            (b.bind("mean", total * share), b.float(elements.len() as f64, scalar))
        } else {
            let one = b.float(1.0, scalar);
            let ones: Vec<State> = elements.iter().map(|element| vec![element.or(b, one, 0.0)]).collect();
            let count = sum(b, &ones);
            let count = b.bind("count", count);
            (b.bind("mean", total / count.max(one)), count)
        };
        let mut squares: Vec<State> = Vec::new();
        for (element, x) in elements.iter().zip(&values) {
            let apart = element.or(b, *x - mean, 0.0);
            let apart = b.bind("apart", apart);
            squares.push(vec![b.value(apart * apart)]);
        }
        vec![mean, count, sum(b, &squares)]
    }

    /// The state of the elements of both.
    pub fn combine(&self, b: &mut Builder, x: &[ExprId], y: &[ExprId]) -> State {
        let floats = self.state[0].is_float();
        match self.op.operator {
            Operator::Sum | Operator::Mean | Operator::SumSq | Operator::Norm2 => vec![b.value(x[0] + y[0])],
            Operator::Max | Operator::AbsMax => vec![if floats { b.value(x[0].maximum(y[0])) } else { b.value(x[0].max(y[0])) }],
            Operator::Min => vec![if floats { b.value(x[0].minimum(y[0])) } else { b.value(x[0].min(y[0])) }],
            Operator::ArgMax | Operator::ArgMin => {
                let later = self.later(b, x[0], y[0]);
                let numbers = [x[0].equals(x[0]), y[0].equals(y[0])].map(|number| b.value(number));
                let neither = numbers.map(|number| b.unary(UnaryOp::Not, number));
                let alike = b.binary(BinaryOp::Or, x[0].equals(y[0]), neither[0].and(neither[1]));
                let first = b.and(alike, y[1].lt(x[1]));
                let other = b.binary(BinaryOp::Or, later, first);
                let other = b.bind("second", other);
                self.select(b, other, y, x)
            }
            Operator::LogSumExp => {
                let most = b.bind("most", x[0].maximum(y[0]));
                let from = self.from(b, most);
                let powers = [x, y].map(|state| self.power(b, state[0], from));
                vec![most, b.value(x[1] * powers[0] + y[1] * powers[1])]
            }
            Operator::Var => {
                let count = b.bind("count", x[1] + y[1]);
                let apart = b.bind("apart", y[0] - x[0]);
                // None of both have a share of 0 / 1.
                let one = b.float(1.0, self.state[0]);
                let share = b.bind("share", y[1] / count.max(one));
                let squares = b.value(x[2] + y[2] + apart * apart * (x[1] * share));
                vec![b.value(x[0] + apart * share), count, squares]
            }
        }
    }

    /// Condition that the later value `y` replaces the earlier value `x`: `x` is not NaN, and `y` is better or NaN.
    fn later(&self, b: &mut Builder, x: ExprId, y: ExprId) -> ExprId {
        let (least, most) = if self.op.operator == Operator::ArgMax { (y, x) } else { (x, y) };
        let kept = b.value(least.le(most));
        let kept = b.unary(UnaryOp::Not, kept);
        b.and(kept, x.equals(x))
    }

    /// What exponents are relative to: the largest, unless differences from it would be none.
    fn from(&self, b: &mut Builder, most: ExprId) -> ExprId {
        let [zero, infinity] = [0.0, f64::INFINITY].map(|x| b.float(x, self.state[0]));
        b.bind("from", most.unary(UnaryOp::Abs).equals(infinity).select(zero, most))
    }

    /// e to the power of a difference.
    fn power(&self, b: &mut Builder, x: ExprId, from: ExprId) -> ExprId {
        let factor = b.float(LOG2_E, self.state[0]);
        b.value(((x - from) * factor).unary(UnaryOp::Exp2))
    }

    /// The state of the elements of all, combined pairwise, neighbours first.
    pub fn all(&self, b: &mut Builder, states: &[State]) -> State {
        if states.is_empty() { self.identity(b) } else { tree(b, states, &mut |b, x, y| self.combine(b, x, y)) }
    }

    /// The result of a state, in its own type.
    pub fn finish(&self, b: &mut Builder, state: &[ExprId]) -> ExprId {
        let result = match self.op.operator {
            Operator::Mean | Operator::Var => {
                let share = match self.count_at_launch(b) {
                    None => b.float(1.0 / self.count as f64, self.state[0]),
                    Some(count) => {
                        let one = b.float(1.0, self.state[0]);
                        b.bind("share", one / count.cast(self.state[0]))
                    }
                };
                b.value(state[if self.op.operator == Operator::Mean { 0 } else { 2 }] * share)
            }
            Operator::ArgMax | Operator::ArgMin => state[1],
            Operator::LogSumExp => {
                let factor = b.float(LN_2, self.state[0]);
                b.value(state[0] + state[1].unary(UnaryOp::Log2) * factor)
            }
            Operator::Norm2 => b.unary(UnaryOp::Sqrt, state[0]),
            _ => state[0],
        };
        b.value(result.cast(self.op.scalar))
    }

    /// One state where a condition holds, another elsewhere.
    pub fn select(&self, b: &mut Builder, condition: ExprId, x: &[ExprId], y: &[ExprId]) -> State {
        x.iter().zip(y).map(|(&x, &y)| b.value(condition.select(x, y))).collect()
    }
}

/// A constant; infinities are the ends of integers.
fn number(b: &mut Builder, value: f64, scalar: Scalar) -> ExprId {
    // Conversions to integers end there.
    match scalar {
        Scalar::I32 => b.int((value as i32).into(), scalar),
        _ if scalar.is_float() => b.float(value, scalar),
        _ => b.int(value as i64, scalar),
    }
}

/// States combined pairwise, neighbours first; there is one at least.
fn tree<F: FnMut(&mut Builder, &[ExprId], &[ExprId]) -> State>(b: &mut Builder, states: &[State], combine: &mut F) -> State {
    match states {
        [] => State::new(),
        [one] => one.clone(),
        _ => {
            let (left, right) = states.split_at(states.len().div_ceil(2));
            let (x, y) = (tree(b, left, combine), tree(b, right, combine));
            let both = combine(b, &x, &y);
            // Small trees of single values are one expression.
            if states.len() >= 4 || both.len() > 1 { bind(b, "both", both) } else { both }
        }
    }
}

/// Independent accumulators of a thread.
const ACCUMULATORS: usize = 4;

/// As [`tree`], but each accumulator takes in its neighbours one after the other. Level by level, states of several components
/// take many registers beside all accumulators of a thread. For 208 accumulators with the indices of the largest 12 instructions
/// spilled.
fn accumulated<F: FnMut(&mut Builder, &[ExprId], &[ExprId]) -> State>(
    b: &mut Builder,
    states: &[State],
    combine: &mut F,
) -> State {
    let each = states.len().div_ceil(ACCUMULATORS).max(1);
    let mut ends: Vec<State> = states.chunks(each).filter_map(|chain| chain.first().cloned()).collect();
    for step in 1..each {
        for (end, chain) in ends.iter_mut().zip(states.chunks(each)) {
            if let Some(next) = chain.get(step) {
                let both = combine(b, end, next);
                *end = bind(b, "both", both);
            }
        }
    }
    tree(b, &ends, combine)
}

/// The sum of values; there is one at least.
fn sum(b: &mut Builder, values: &[State]) -> ExprId {
    let total = tree(b, values, &mut |b, x, y| vec![b.value(x[0] + y[0])]);
    b.bind("sum", total[0])
}
