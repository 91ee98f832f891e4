//! Numbers that depend on the extents of a launch, as expressions in C.

use tilewright_gen::program::{Factor, Groups, Launch};
use tilewright_problem::Extent;
use tilewright_problem::contraction::Contraction;

/// An extent: the function's parameter where a launch chooses it.
pub(super) fn extent(c: &Contraction, extent: Extent) -> String {
    if c.dynamic().has(extent) { format!("(uint64_t){}", extent.name()) } else { format!("{}u", c.extents().of(extent)) }
}

pub(super) fn factor(c: &Contraction, factor: &Factor) -> String {
    match *factor {
        Factor::Fixed(value) => format!("{value}u"),
        Factor::Steps { extent: e, more, of } => {
            let of = of.max(1);
            // Rounded up.
            format!("(({} + {}u) / {of}u)", extent(c, e), more + (of - 1))
        }
        Factor::Entries { first, most } => {
            let batch = extent(c, Extent::G);
            format!("({batch} <= {first}u ? 0u : {batch} - {first}u < {most}u ? {batch} - {first}u : {most}u)")
        }
    }
}

/// Pieces of work, in groups of `per`.
fn work(c: &Contraction, groups: &Groups) -> String {
    let factors: Vec<String> = groups.factors.iter().map(|f| format!("(uint64_t){}", factor(c, f))).collect();
    let product = if factors.is_empty() { "(uint64_t)1".into() } else { factors.join(" * ") };
    let per = groups.per.max(1);
    if per == 1 { product } else { format!("({product} + {}u) / {per}u", per - 1) }
}

/// [`Groups::work`] of a launch.
pub(super) fn pieces(c: &Contraction, launch: &Launch) -> String {
    launch.groups.as_ref().map_or_else(|| format!("{}", launch.grid[0]), |groups| work(c, groups))
}

/// Work-groups along dimension 0: a number, or an expression and the most it may be.
pub(super) fn groups(c: &Contraction, launch: &Launch) -> (String, Option<u64>) {
    let most = u64::from(launch.grid[0]);
    match &launch.groups {
        None => (most.to_string(), None),
        Some(groups) => (work(c, groups), Some(groups.most.map_or(most, |own| own.min(most)))),
    }
}
