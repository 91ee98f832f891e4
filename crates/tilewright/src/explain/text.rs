//! The text of an explanation.

use super::facts::{Facts, plural, say};
use super::units::{human_bytes, human_rate, human_time};
use super::{Explanation, Note};
use tilewright_check::reference::Tolerance;
use tilewright_gen::plan::work_groups;
use tilewright_problem::contraction::ResultSource;
use tilewright_problem::{Conv, Gemm, Math, Problem};

impl Explanation<'_> {
    /// Problem and plan, a line for each key, the parts of the kernel, its numbers. `origin` says where the plan comes from.
    pub fn text(&self, origin: &str) -> String {
        let (operation, plan) = (self.operation, &self.plan);
        let title = format!("{} on {}", operation.problem().title(), operation.context().info().name);
        let given = format!("plan ({origin}): {}\n  {plan}\n", plan.readable());
        [title, given, words(&self.notes), structure(&self.facts), numbers(self)].join("\n")
    }
}

/// Most waves that are listed one by one.
const WAVES: usize = 8;

/// What the kernel is made of.
fn structure(facts: &Facts) -> String {
    let mut out = String::new();
    let mut say_one = |name: &str, text: &str| out.push_str(&format!("  {name:<14} {text}\n"));
    for text in &facts.grid {
        say_one("grid", text);
    }
    for role in &facts.roles {
        let registers = role.registers.map_or(String::new(), |r| format!(", {r} registers per thread"));
        let (waves, threads) = (role.waves, role.threads);
        let (wave, first, last) = (facts.wave, waves.first, waves.last);
        let which = format!("{wave}s {first}-{last} (threads {}-{}){registers}", threads.first, threads.last);
        say_one(&format!("role {}", role.role), &format!("{which}: {}", role.does));
    }
    for wave in facts.waves.iter().take(WAVES) {
        let numbers: Vec<String> = wave.waves.iter().map(u32::to_string).collect();
        let name = format!("{} {}", facts.wave, numbers.join(", "));
        say_one(&name, &format!("rows {}; columns {} of the tile of C", say(&wave.rows), say(&wave.columns)));
    }
    if let Some(more) = facts.waves.len().checked_sub(WAVES).filter(|more| *more > 0) {
        say_one("", &format!("and {} more", plural(more as u64, facts.wave)));
    }
    for lane in &facts.lanes {
        let holds = plural(lane.registers.into(), "accumulator");
        let text = format!("of {} 0: {holds}; rows {}; columns {}", facts.wave, say(&lane.rows), say(&lane.columns));
        say_one(&format!("lane {}", lane.lane), &text);
    }
    if let Some(text) = &facts.instructions {
        say_one("instructions", text);
    }
    for operand in &facts.operands {
        for text in operand.copy.iter().chain(&operand.layout) {
            say_one(&operand.name, text);
        }
    }
    for region in &facts.shared {
        let parts = if region.parts > 1 { format!("{} of ", region.parts) } else { String::new() };
        say_one(
            "shared memory",
            &format!("{}: {parts}{} bytes from byte {}", region.name, region.bytes / region.parts, region.first_byte),
        );
    }
    for barrier in &facts.barriers {
        say_one("barriers", &format!("{} [{}]: {}", barrier.name, barrier.count, barrier.meaning));
    }
    for text in facts.epilogue.iter().skip(1) {
        say_one("epilogue", text);
    }
    out
}

/// One line per key that has an effect.
fn words(notes: &[Note]) -> String {
    let one = |n: &Note| format!("  {:<9} {}\n", format!("{}{}", n.key, n.value), n.text);
    notes.iter().filter(|n| !n.inert).map(one).collect()
}

/// How the operands are multiplied, and how far from exact arithmetic `verify` lets a sum be. The type's own bound is shown
/// beside it where another bound is asked for.
fn accuracy(problem: &Problem) -> String {
    let bound = |problem: &Problem| format!("{:.1e}", Tolerance::of(problem).accumulate);
    let plain = match problem {
        Problem::Gemm(gemm) => Problem::Gemm(Gemm { math: Math::Exact, ..gemm.clone() }),
        Problem::Conv(conv) => Problem::Conv(Conv { math: Math::Exact, ..conv.clone() }),
        other => other.clone(),
    };
    let beside =
        if problem.math().is_exact() { String::new() } else { format!("; {} of {} itself", bound(&plain), problem.dtype()) };
    format!("{}, errors within {} of the sum of magnitudes{beside}", problem.dtype_name(), bound(problem))
}

/// The table of numbers: geometry, resources, work, model.
fn numbers(x: &Explanation<'_>) -> String {
    let Explanation { operation, resolved, counts, estimate, .. } = x;
    let target = &operation.context().info().target;
    let (footprint, t, c) = (&resolved.footprint, &resolved.spec.tiling, resolved.contraction);
    let family = t.unit.family();
    let us = human_time;
    let share = |part: f64| format!("{} ({:.0} %)", human_time(part), 100.0 * part / estimate.total_us.max(1e-9));
    let parts: Vec<String> = resolved.rest.iter().map(|p| format!("m {} k {}", p.contraction.m, p.contraction.k)).collect();
    let parts = if parts.is_empty() { String::new() } else { format!("; further parts: {}", parts.join(", ")) };
    let groups = work_groups(&resolved.spec);
    let (kept, reduced) = (c.g * c.m, c.n);
    let (contraction, k_tile) = match c.source {
        ResultSource::Elements(_) => (format!("{kept} values, each of {}", plural(reduced, "element")), String::new()),
        _ => {
            let g = c.batch_name();
            (format!("{g} {} x m {} x n {}, sum over k {}{parts}", c.g, c.m, c.n, c.k), format!(", k-tile {}", t.k_tile))
        }
    };
    let rows = [
        ("computes", format!("C[g,m,n] = {}, C in {}", c.formula(), c.c.scalar)),
        ("accuracy", accuracy(operation.problem())),
        ("contraction", contraction),
        ("macro tile", format!("{} x {}{k_tile}", t.a.macro_tile, t.b.macro_tile)),
        (
            "micro tile",
            format!(
                "{} x {} per {}, {} x {} {}s over the tile",
                t.a.micro,
                t.b.micro,
                family.owner,
                t.threads_a / family.lanes,
                t.threads_b,
                family.owner
            ),
        ),
        ("work-groups", format!("{groups} of {} threads for {} pieces of work", counts.threads, counts.groups)),
        (
            "residency",
            format!(
                "{} per unit, {} units: the device is filled {:.2} times",
                plural(footprint.groups_per_unit.into(), "work-group"),
                target.units,
                footprint.fills(groups, target)
            ),
        ),
        ("shared memory", format!("{} per work-group", human_bytes(u64::from(footprint.shared_bytes)))),
        ("registers", format!("about {} per thread (estimate)", footprint.registers)),
        ("work", format!("{:.3} GFLOP asked for, {:.0} % of those done", counts.flop / 1e9, 100.0 * counts.useful())),
        (
            "global memory",
            format!(
                "{} loaded by work-groups, {} at least from device memory, {:.1} flop per byte",
                human_bytes(counts.loaded_bytes as u64),
                human_bytes(counts.dram_bytes as u64),
                counts.intensity()
            ),
        ),
        (
            "per k-tile",
            format!(
                "and thread: {:.0} multiply-adds, {:.0} fragment reads, {:.1} global loads, {:.1} shared stores, barriers {}",
                counts.per_k_tile.math,
                counts.per_k_tile.fragment_reads,
                counts.per_k_tile.global_loads,
                counts.per_k_tile.shared_stores,
                counts.per_k_tile.barriers
            ),
        ),
        (
            "modelled time",
            format!("{}, {}; limited by {}", us(estimate.total_us), human_rate(counts.flop, estimate.total_us), estimate.bound()),
        ),
        (
            "  of which",
            format!(
                "math {}, issue {}, shared {}, cache {}, memory {}, stalls {}, launches {}, helpers {}",
                share(estimate.math_us),
                us(estimate.issue_us),
                us(estimate.shared_us),
                us(estimate.l2_us),
                us(estimate.dram_us),
                us(estimate.stall_us),
                us(estimate.launch_us),
                us(estimate.helpers_us)
            ),
        ),
    ];
    // A standalone reduction has no main loop.
    let shown = rows.iter().filter(|(name, _)| !k_tile.is_empty() || *name != "per k-tile");
    shown.map(|(name, text)| format!("  {name:<14} {text}\n")).collect()
}
