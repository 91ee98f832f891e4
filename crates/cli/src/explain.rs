//! `tilewright explain`: what a plan's parameters do to the kernel, in words, numbers and figures.

use crate::args::ExplainArgs;
use crate::describe::{Note, describe};
use crate::error::CliError;
use crate::figures::facts::{Facts, Subject, plural, say};
use crate::figures::{Figure, figures, page, view};
use crate::output::{human_bytes, human_rate, human_time, line, write_file};
use crate::{problem, session};
use serde_json::json;
use tilewright::Operation;
use tilewright_check::reference::Tolerance;
use tilewright_gen::kernel::{generate, works};
use tilewright_gen::plan::{Counts, counts, work_groups};
use tilewright_gen::space::Resolved;
use tilewright_problem::contraction::ResultSource;
use tilewright_problem::{Conv, Direction, Gemm, Layout, Math, Problem};
use tilewright_tune::model::{Estimate, Picker};

/// Most pieces of work that figures follow.
const WORKS: u64 = 1 << 14;

/// Explains one problem's plan.
pub fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let case = problem::one(&args.problem, args.plan.workspace)?;
    let context = session::open(&args.place, &args.plan, false)?;
    let operation = session::operation(&context, &case, &args.plan)?;
    let (plan, origin) = operation.choice().map_err(session::classify)?;
    let space = operation.space();
    let resolved = space.resolve(&plan).map_err(CliError::failed)?;
    let (c, derived, target) = (resolved.contraction, &resolved.spec, &context.info().target);
    let notes = describe(&plan, derived, &space.graph(&plan));
    let (spec, counts) = (&derived.spec, counts(derived));
    let estimate = Picker::new(space).estimate(&plan).unwrap_or_default();
    let budget = space.env().workspace_bytes;
    let program = generate(derived, budget).map_err(CliError::failed)?;
    let works = works(derived, budget, WORKS).map_err(CliError::failed)?;
    let units = u64::from(target.units.max(1)) * u64::from(resolved.footprint.groups_per_unit.max(1));
    let kernel = session::main_kernel(&program)?;
    let subject = Subject { spec, c: &derived.c, kernel, works: &works, target, concurrent: units };
    let mut facts = subject.facts();
    if let Problem::Conv(conv) = &case.problem {
        facts.grid.insert(0, coordinates(conv, plan.form > 0));
    }
    if !resolved.rest.is_empty() {
        let (rest, joined) = (resolved.rest.len(), resolved.joined().count());
        facts
            .grid
            .push(format!("one of {} parts of the problem, the one with most work; {joined} more in the same launch", 1 + rest));
    }
    let passes = case.problem.reductions().iter().filter(|r| r.operand.is_some());
    let how = match (spec.epilogue.operands, space.resolve(&plan.but(|keys| keys.reduce_operands = 1))) {
        (true, _) => "in the main loop of the work-groups that have its tiles first".to_string(),
        (false, Ok(_)) => "two passes: a kernel of its own reads the operand again (RDK1: the main loop)".to_string(),
        (false, Err(why)) => format!("two passes: a kernel of its own reads the operand again ({why})"),
    };
    facts.epilogue.extend(passes.map(|r| format!("{r}: {how}")));
    if args.json {
        let value = json!({
            "problem": case.problem.key(),
            "device": context.info().id,
            "plan": plan.to_string(),
            "readable": plan.readable(),
            "origin": origin.name(),
            "computes": format!("C[g,m,n] = {}", c.formula()),
            "keys": notes,
            "structure": facts,
            "footprint": resolved.footprint,
            "counts": counts,
            "model": estimate,
            "spec": spec,
        });
        line(&value.to_string())?;
    } else {
        line(&format!("{} on {}", case.title, context.info().name))?;
        line(&format!("plan ({}): {}\n  {plan}\n", session::origin(&args.plan, origin), plan.readable()))?;
        line(&words(&notes))?;
        line(&structure(&facts))?;
        line(&numbers(&operation, &resolved, &counts, &estimate))?;
    }
    if args.svg.is_none() && args.figures.is_none() {
        return Ok(());
    }
    let mut figures = figures(&subject, &facts);
    if let Problem::Conv(conv) = &case.problem
        && let Some(drawing) = view::draw(conv, c)
    {
        figures.insert(0, Figure::new("view", "The view: how a window of the image becomes a row of A", drawing));
    }
    let told = |path: &std::path::Path| if args.json { Ok(()) } else { line(&format!("figures: {}", path.display())) };
    if let Some(path) = &args.svg {
        let subtitle = format!("{} on {}; {plan}", plan.readable(), context.info().name);
        write_file(path, &page(&figures, &case.title, &subtitle))?;
        told(path)?;
    }
    if let Some(folder) = &args.figures {
        for figure in &figures {
            write_file(&folder.join(format!("{}.svg", figure.name)), &figure.document())?;
        }
        told(folder)?;
    }
    Ok(())
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

/// How the factors are multiplied, and how far from exact arithmetic `verify` lets a sum be; beside the type's own bound where another is asked for.
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
fn numbers(operation: &Operation, resolved: &Resolved, counts: &Counts, estimate: &Estimate) -> String {
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
