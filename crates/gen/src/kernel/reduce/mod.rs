//! Reductions of results: what an operator is in a kernel, and where its values go.
//!
//! [`tile`] reduces what the threads of a work-group hold of a tile, in registers, across lanes, and between waves through shared memory.
//! [`alone`] does the same with a tensor that is read instead of computed, [`elements`] with
//! what it sums up of splits of k.
//! What is left goes to the result where one work-group has all of a value, else to workspace, where [`finish`] reduces it in a fixed
//! order. An operator is the same in both: an identity, what an element contributes, how two contributions combine.

pub mod alone;
pub mod elements;
pub mod finish;
pub mod tile;

use crate::kernel::arguments::Arguments;
use crate::plan::Partials;
use crate::program::Binding;
use tilewright_ir::*;
use tilewright_problem::Operator;
use tilewright_problem::contraction::{Contraction, Reduce};

/// A reduction in a kernel: what it computes and where its values go.
#[derive(Clone)]
pub(crate) struct Reducer<'a> {
    pub op: &'a Reduce,
    pub partials: Partials,
    /// The result, or the parts in workspace.
    pub to: ArgId,
    /// Type of contributions.
    pub acc: Scalar,
    /// Elements of each result.
    pub count: u64,
}

impl<'a> Reducer<'a> {
    /// All of a contraction, with their arguments: results where one work-group has all of a value, else parts from these bytes of the
    /// workspace on.
    pub fn declare(
        b: &mut Builder,
        args: &mut Arguments,
        c: &'a Contraction,
        parts: &[(Partials, Option<u64>)],
    ) -> Vec<Reducer<'a>> {
        let mut all = Vec::new();
        for (op, (partials, region)) in c.reductions().zip(parts) {
            let to = match region {
                Some(region) => {
                    let (name, doc) = (format!("parts_{}", op.number), format!("parts of {} [g][tile][value]", describe(op)));
                    args.buffer(b, &name, (c.accumulator(), Access::Write), &doc, Binding::Workspace(*region))
                }
                None => result(b, args, op),
            };
            all.push(Reducer { op, partials: *partials, to, acc: c.accumulator(), count: c.result_shape(op).count(op.over) });
        }
        all
    }

    /// The result of no element.
    pub fn identity(&self, b: &mut Builder) -> ExprId {
        b.float(self.op.operator.identity(), self.acc)
    }
    /// What an element contributes.
    pub fn element(&self, b: &mut Builder, x: ExprId) -> ExprId {
        match self.op.operator {
            Operator::SumSq => {
                let x = b.bind("x", x);
                b.value(x * x)
            }
            Operator::AbsMax => b.value(x.unary(UnaryOp::Abs)),
            _ => x,
        }
    }
    /// Two contributions together.
    pub fn combine(&self, b: &mut Builder, x: ExprId, y: ExprId) -> ExprId {
        match self.op.operator {
            Operator::Sum | Operator::Mean | Operator::SumSq => b.value(x + y),
            Operator::Max | Operator::AbsMax => b.value(x.maximum(y)),
            Operator::Min => b.value(x.minimum(y)),
        }
    }
    /// The result of all contributions, in its own type.
    pub fn finish(&self, b: &mut Builder, x: ExprId) -> ExprId {
        let x = match self.op.operator {
            Operator::Mean => {
                let share = b.float(1.0 / self.count as f64, self.acc);
                b.value(x * share)
            }
            _ => x,
        };
        b.value(x.cast(self.op.scalar))
    }
}

/// Declares the result of a reduction.
fn result(b: &mut Builder, args: &mut Arguments, op: &Reduce) -> ArgId {
    let kind = (op.scalar, Access::Write);
    args.buffer(b, &format!("reduced_{}", op.number), kind, &describe(op), Binding::Reduction(op.number))
}

/// `max over n`.
fn describe(op: &Reduce) -> String {
    format!("{} over {}", op.operator, op.over)
}
