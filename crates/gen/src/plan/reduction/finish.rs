//! How work-groups reduce values that several of them have parts of (`RDF`), and which of that a plan may have.

use crate::plan::refusal::Refusal;
use crate::plan::rules::Env;
use crate::plan::value::Plan;
use serde::{Deserialize, Serialize};
use tilewright_ir::AtomicOp;
use tilewright_problem::Operator;
use tilewright_problem::contraction::Contraction;

/// Elements that may be added to a sum one by one.
const MOST_ADDED: u64 = 1 << 13;

/// How the parts of a value meet that work-groups have of it.
///
/// ```
/// use tilewright_gen::plan::{Finish, Plan, Stage};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // Each work-group has the largest values of a part of each row; atomics combine the parts in the result.
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 64).reduce("max:n".parse()?).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, finish=2")?;
/// let derived = space.resolve(&plan)?.spec;
/// assert_eq!(derived.epilogue.finish, Finish::Atomic(Stage::Wave));
/// assert_eq!(derived.epilogue.finish.number(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Finish {
    /// In workspace; a further kernel reduces them in a fixed order.
    Kernel,
    /// In workspace; the work-group that comes last, as a ticket tells it, reduces them in a fixed order.
    Ticket,
    /// In the result, by atomics.
    Atomic(Stage),
    /// In the shared memory of the work-groups of a cluster, in a fixed order; what clusters have, as [`Finish::Kernel`].
    Cluster,
}

/// What a work-group does before its atomics.
///
/// ```
/// use tilewright_gen::plan::{Finish, Stage};
///
/// // A work-group combines its values first, by waves or by a tree, and then makes one atomic of each.
/// assert_eq!(Finish::Atomic(Stage::Group).stage(), Some(Stage::Group));
/// // The other methods have no atomics.
/// assert_eq!((Finish::Kernel.stage(), Finish::Ticket.stage()), (None, None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Registers of a thread, lanes of a wave, waves through shared memory.
    Wave,
    /// Registers of a thread, then a tree of all threads through shared memory.
    Group,
    /// Nothing: each element is an atomic.
    Element,
}

impl Finish {
    /// What a plan says, for a contraction that is oriented as it says.
    pub(in crate::plan) fn derive(plan: &Plan, c: &Contraction, env: &Env) -> Result<Finish, Refusal> {
        let rdf = plan.finish;
        let finish = match rdf {
            0 => Finish::Kernel,
            1 => Finish::Ticket,
            2 => Finish::Atomic(Stage::Wave),
            3 => Finish::Atomic(Stage::Group),
            5 => Finish::Cluster,
            _ => Finish::Atomic(Stage::Element),
        };
        if c.reductions().next().is_none() {
            return Ok(Finish::Kernel);
        }
        if finish == Finish::Ticket && c.reductions().any(|r| c.shares_values(r)) {
            return Err(Refusal::ReduceTicketParts);
        }
        if finish.stage().is_none() {
            return Ok(finish);
        }
        for r in c.reductions() {
            // What meets is the state itself, which no operation follows.
            if atomic(r.operator).is_none() || c.state(r) != [r.scalar] || !r.scalar.is_float() {
                return Err(Refusal::ReduceAtomicType { rdf, operator: r.operator, scalar: r.scalar });
            }
            if r.operator.adds() && !env.allow_atomics {
                return Err(Refusal::ReduceAtomics { rdf, operator: r.operator });
            }
            let count = c.result_shape(r).count(r.over);
            if finish.stage() == Some(Stage::Element) && r.operator.adds() && count > MOST_ADDED {
                return Err(Refusal::ReduceAtomicCount { operator: r.operator, count, most: MOST_ADDED });
            }
        }
        Ok(finish)
    }
    /// What goes before atomics, where there are some.
    pub const fn stage(self) -> Option<Stage> {
        if let Finish::Atomic(stage) = self { Some(stage) } else { None }
    }
    /// The key's value.
    pub const fn number(self) -> u32 {
        match self {
            Finish::Kernel => 0,
            Finish::Ticket => 1,
            Finish::Atomic(Stage::Wave) => 2,
            Finish::Atomic(Stage::Group) => 3,
            Finish::Atomic(Stage::Element) => 4,
            Finish::Cluster => 5,
        }
    }
}

/// The atomic that combines two results of an operator, where there is one. Means would be scaled, and rounded, part by part, and
/// roots add up to no root.
pub const fn atomic(operator: Operator) -> Option<AtomicOp> {
    match operator {
        Operator::Sum | Operator::SumSq => Some(AtomicOp::Add),
        Operator::Max | Operator::AbsMax => Some(AtomicOp::Max),
        Operator::Min => Some(AtomicOp::Min),
        Operator::Mean | Operator::ArgMax | Operator::ArgMin | Operator::LogSumExp | Operator::Var | Operator::Norm2 => None,
    }
}
