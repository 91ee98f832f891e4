//! Reductions of results: what an operator is in a kernel, and where its values go.
//!
//! [`tile`] reduces a tile in the registers of a work-group: within a thread, across lanes, and between waves through shared memory.
//! [`alone`] reduces a tensor in memory, [`elements`] the sums of splits of k, [`operands`] the k-tiles that a product's main loop reads.
//! [`leave`] stores the values of a work-group. If work-groups of a cluster share values, they combine these first ([`peers`]).
//! A value goes to the result if one work-group has the whole value or if atomics combine it there. All other values go to workspace,
//! and [`finish`] or the last work-group ([`ticket`]) reduces them in a fixed order. [`start`] initialises results and tickets. All
//! modules share one [`operator`]. [`at_launch`] handles dynamic extents.

mod across_threads;
pub mod alone;
mod at_launch;
pub mod elements;
pub mod finish;
pub mod operands;
mod operator;
mod peers;
pub mod start;
mod ticket;
pub mod tile;

use crate::kernel::arguments::Arguments;
use crate::kernel::reduce::at_launch::AtLaunch;
use crate::plan::{Finish, Partials, SharedReduction, TileReduction};
use crate::program::Binding;
use tilewright_ir::*;
use tilewright_problem::ResultShape;
use tilewright_problem::contraction::{Contraction, Reduce};

/// What a reduction knows of some elements: a value for each component of its operator's state.
pub(crate) type State = Vec<ExprId>;

/// Partial values of a reduction.
#[derive(Clone)]
pub(crate) struct Parts {
    pub partials: Partials,
    /// Their starts in workspace: one per component, then the tickets. Empty without workspace.
    pub regions: Vec<u64>,
}

/// A reduction in a kernel: what it computes and where its values go.
#[derive(Clone)]
pub(crate) struct Reducer<'a> {
    pub op: &'a Reduce,
    pub partials: Partials,
    /// The result, or the parts of each component in workspace.
    pub to: Vec<ArgId>,
    /// Tickets, and the result, where the last work-group finishes.
    pub ticket: Option<[ArgId; 2]>,
    /// Types of the components.
    pub state: Vec<Scalar>,
    /// Elements of each result.
    pub count: u64,
    /// The results that it reduces.
    pub shape: ResultShape,
    /// The axis along which indices count first: that of the problem's columns.
    pub inner: usize,
    /// What of them is known only at launch.
    pub at_launch: AtLaunch,
}

impl<'a> Reducer<'a> {
    /// Reductions of a contraction's result, or of its operands, with their arguments. They write results where one work-group
    /// has all of a value, else parts from these bytes of the workspace on.
    pub fn declare(
        b: &mut Builder,
        args: &mut Arguments,
        c: &'a Contraction,
        operands: bool,
        parts: &[Parts],
    ) -> Vec<Reducer<'a>> {
        let mut all = Vec::new();
        for (op, Parts { partials, regions }) in c.all_reductions().zip(parts).filter(|(op, _)| op.operand == operands) {
            let doc = format!("parts of {op} [g][tile][value]");
            let mut ticket = None;
            let to = match partials.finish {
                None => vec![result(b, args, op, Access::Write)],
                Some(Finish::Kernel | Finish::Cluster) => in_workspace(b, args, c, op, regions, Access::Write, &doc),
                Some(Finish::Ticket) => {
                    ticket = regions.last().map(|region| {
                        let tickets = start::tickets(b, args, op, *region);
                        [tickets, result(b, args, op, Access::Write)]
                    });
                    in_workspace(b, args, c, op, regions, Access::Exchange, &doc)
                }
                Some(Finish::Atomic(_)) => vec![result(b, args, op, Access::ReadWrite)],
            };
            all.push(Reducer { ticket, ..Reducer::new(b, args, c, op, *partials, to) });
        }
        all
    }
    fn new(
        b: &mut Builder,
        args: &mut Arguments,
        c: &Contraction,
        op: &'a Reduce,
        partials: Partials,
        to: Vec<ArgId>,
    ) -> Reducer<'a> {
        let (shape, at_launch) = (c.result_shape(op), AtLaunch::declare(b, args, c));
        let (state, count) = (c.state(op), c.count(op));
        Reducer { op, partials, to, ticket: None, state, count, shape, inner: c.columns_axis(), at_launch }
    }

    /// What places its arrays in shared memory, where threads reduce a tile like this.
    fn shared<'s>(&'s self, how: &'s TileReduction) -> SharedReduction<'s> {
        SharedReduction { state: &self.state, how, partials: &self.partials }
    }

    /// Rows and columns that each value is computed of.
    fn extents(&self) -> [u64; 2] {
        self.shape.each(self.op.over)
    }
    /// By how much an index grows from one row to the next, and from one column to the next; 0 along what is kept.
    fn steps(&self) -> [u64; 2] {
        let over = [self.op.over.m, self.op.over.n];
        [0, 1].map(|axis| match over[axis] {
            false => 0,
            true if axis != self.inner && over[self.inner] => self.extents()[self.inner],
            true => 1,
        })
    }
    /// A component's name: that of the first, followed by a number for others.
    pub fn name(name: &str, component: usize) -> String {
        if component == 0 { name.into() } else { format!("{name}_{component}") }
    }
}

/// Values that work-groups of a cluster combine, and the shared memory of each for its own.
pub(crate) struct PeerValues<'a> {
    pub reducer: &'a Reducer<'a>,
    pub how: &'a TileReduction,
    pub arrays: Vec<SharedId>,
}

/// Gives each component of a state a name.
pub(crate) fn bind(b: &mut Builder, name: &str, state: State) -> State {
    state.into_iter().map(|value| b.bind(name, value)).collect()
}

/// The state in variables.
fn get(b: &mut Builder, state: &[VarId]) -> State {
    state.iter().map(|component| b.get(*component)).collect()
}

/// Combines the state in variables with another.
fn add(b: &mut Builder, reducer: &Reducer, state: &[VarId], other: &[ExprId]) {
    let own = get(b, state);
    let both = reducer.combine(b, &own, other);
    set(b, state, both);
}

fn set(b: &mut Builder, state: &[VarId], values: State) {
    match values.as_slice() {
        [value] => state.iter().for_each(|component| b.set(*component, *value)),
        // Each is computed of all components before any of them changes.
        _ => {
            let values = bind(b, "both", values);
            state.iter().zip(values).for_each(|(component, value)| b.set(*component, value));
        }
    }
}

/// Declares the parts of a reduction in workspace.
fn in_workspace(
    b: &mut Builder,
    args: &mut Arguments,
    c: &Contraction,
    op: &Reduce,
    regions: &[u64],
    access: Access,
    doc: &str,
) -> Vec<ArgId> {
    let all = c.state(op).into_iter().zip(regions).enumerate();
    all.map(|(component, (scalar, region))| {
        let name = Reducer::name(&format!("parts_{}", op.number), component);
        args.buffer(b, &name, scalar, access, doc, Binding::Workspace(*region))
    })
    .collect()
}

/// Declares the result of a reduction.
fn result(b: &mut Builder, args: &mut Arguments, op: &Reduce, access: Access) -> ArgId {
    args.buffer(b, &format!("reduced_{}", op.number), op.scalar, access, &op.to_string(), Binding::Reduction(op.number))
}
