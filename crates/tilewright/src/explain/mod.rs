//! What a plan's parameters do to a kernel, in words and numbers. This is the text of `tilewright explain` and of Python's
//! `explain`, and the facts that the command's figures draw.

mod describe;
pub mod facts;
mod text;
pub mod units;

pub use describe::Note;

use crate::{Error, Operation, Plan};
use describe::describe;
use facts::{Facts, Subject};
use tilewright_gen::kernel::{MAIN, Work, generate, works};
use tilewright_gen::plan::{Counts, counts};
use tilewright_gen::program::Program;
use tilewright_gen::space::Resolved;
use tilewright_ir::Kernel;
use tilewright_problem::{Conv, Direction, Layout, Problem};
use tilewright_tune::model::{Estimate, Picker};

/// Most pieces of work that figures follow.
const WORKS: u64 = 1 << 14;

/// A plan of an operation, explained.
pub struct Explanation<'a> {
    operation: &'a Operation,
    plan: Plan,
    /// The plan on the problem.
    pub resolved: Resolved<'a>,
    /// What each key does.
    pub notes: Vec<Note>,
    /// What the kernel is made of.
    pub facts: Facts,
    /// Its work.
    pub counts: Counts,
    /// Its modelled time.
    pub estimate: Estimate,
    kernel: Kernel,
    works: Vec<Work>,
}

/// The kernel with the main loop.
///
/// # Errors
/// [`Error::NoMainLoop`].
pub fn main_kernel(program: &Program) -> Result<&Kernel, Error> {
    program.kernels.iter().find(|kernel| kernel.name == MAIN).ok_or(Error::NoMainLoop)
}

impl Operation {
    /// Explains a plan of the operation.
    ///
    /// # Errors
    /// [`Error::Refused`] for an illegal plan, [`Error::NoMainLoop`].
    pub fn explanation(&self, plan: &Plan) -> Result<Explanation<'_>, Error> {
        let space = self.space();
        let resolved = space.resolve(plan)?;
        let derived = &resolved.spec;
        let notes = describe(plan, derived, &space.graph(plan));
        let (counts, estimate) = (counts(derived), Picker::new(space).estimate(plan).unwrap_or_default());
        let budget = space.env().workspace_bytes;
        let program = generate(derived, budget)?;
        let works = works(derived, budget, WORKS)?;
        let kernel = main_kernel(&program)?.clone();
        let facts = facts_of(self, plan, &resolved, subject(self, &resolved, &kernel, &works).facts());
        Ok(Explanation { operation: self, plan: *plan, resolved, notes, facts, counts, estimate, kernel, works })
    }
}

fn subject<'a>(operation: &'a Operation, resolved: &'a Resolved<'a>, kernel: &'a Kernel, works: &'a [Work]) -> Subject<'a> {
    let (target, spec) = (&operation.context().info().target, &resolved.spec);
    let concurrent = u64::from(target.units.max(1)) * u64::from(resolved.footprint.groups_per_unit.max(1));
    Subject { spec, c: &spec.c, kernel, works, target, concurrent }
}

/// The facts of a kernel, and those of the whole problem.
fn facts_of(operation: &Operation, plan: &Plan, resolved: &Resolved<'_>, mut facts: Facts) -> Facts {
    let (problem, space) = (operation.problem(), operation.space());
    if let Problem::Conv(conv) = problem {
        facts.grid.insert(0, coordinates(conv, plan.form > 0));
    }
    if !resolved.rest.is_empty() {
        let (rest, joined) = (resolved.rest.len(), resolved.joined().count());
        facts
            .grid
            .push(format!("one of {} parts of the problem, the one with most work; {joined} more in the same launch", 1 + rest));
    }
    let passes = problem.reductions().iter().filter(|r| r.operand.is_some());
    let how = match (resolved.spec.epilogue.operands, space.resolve(&plan.but(|keys| keys.reduce_operands = 1))) {
        (true, _) => "in the main loop of the work-groups that have its tiles first".to_string(),
        (false, Ok(_)) => "two passes: a kernel of its own reads the operand again (RDK1: the main loop)".to_string(),
        (false, Err(why)) => format!("two passes: a kernel of its own reads the operand again ({why})"),
    };
    facts.epilogue.extend(passes.map(|r| format!("{r}: {how}")));
    facts
}

impl Explanation<'_> {
    /// What figures draw.
    pub fn subject(&self) -> Subject<'_> {
        subject(self.operation, &self.resolved, &self.kernel, &self.works)
    }
}

/// What the coordinates and operands of a convolution's contraction are; with `merged`, all samples are one batch entry.
fn coordinates(conv: &Conv, merged: bool) -> String {
    let taps = conv.filter.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
    let samples = if merged { "all samples" } else { "one sample" };
    let of = if conv.groups > 1 { " of a group" } else { "" };
    let (c, k) = (conv.c_per_group(), conv.k_per_group());
    let is = match conv.direction {
        Direction::Forward => format!(
            "m = output pixels of {samples}, n = output channels{of}, k = {taps} taps x {c} input channels; A = windows of the input, B = the filter"
        ),
        Direction::BackwardData => format!(
            "m = input pixels of {samples}, n = input channels{of}, k = taps x {k} output channels; A = windows of the output's gradient, B = the filter"
        ),
        Direction::BackwardWeight => format!(
            "m = output channels{of}, n = {taps} taps x {c} input channels, k = samples and output pixels; A = the output's gradient, B = windows of the input"
        ),
    };
    let layout = match conv.layout {
        Layout::Nchw => "NCHW",
        Layout::Nhwc => "NHWC",
    };
    format!("a convolution, tensors in {layout}: {is}")
}
