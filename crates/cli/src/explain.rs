//! `tilewright explain`: what a plan's parameters do to the kernel, in words, numbers and figures.

use crate::args::ExplainArgs;
use crate::describe::{Note, describe};
use crate::error::CliError;
use crate::figures::{Shape, page};
use crate::output::{human_bytes, human_rate, human_time, line, write_file};
use crate::{problem, session};
use serde_json::json;
use tilewright::Operation;
use tilewright_gen::plan::{Counts, Footprint, Plan, counts};
use tilewright_tune::model::{Estimate, Picker};

/// Explains one problem's plan.
pub fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let case = problem::one(&args.problem, args.plan.workspace)?;
    let context = session::open(&args.place, &args.plan, false)?;
    let operation = session::operation(&context, &case, &args.plan)?;
    let (plan, origin) = operation.choice().map_err(session::classify)?;
    let resolved = operation.space().resolve(&plan).map_err(CliError::failed)?;
    let (c, target) = (resolved.contraction, &context.info().target);
    let notes = describe(&plan, &resolved.spec, &operation.space().graph(&plan));
    let counts = counts(&resolved.spec, c);
    let estimate = Picker::new(operation.space()).estimate(&plan).unwrap_or_default();
    if args.json {
        let value = json!({
            "problem": case.problem.key(),
            "device": context.info().id,
            "plan": plan.to_string(),
            "origin": origin.name(),
            "computes": format!("C[g,m,n] = {}", c.formula()),
            "keys": notes,
            "footprint": resolved.footprint,
            "counts": counts,
            "model": estimate,
            "spec": resolved.spec,
        });
        line(&value.to_string())?;
    } else {
        line(&format!("{} on {}", case.title, context.info().name))?;
        line(&format!("plan ({}): {plan}\n", origin.name()))?;
        line(&words(&notes))?;
        line(&numbers(&operation, &plan, &counts, &resolved.footprint, &estimate))?;
    }
    if let Some(path) = &args.svg {
        let units = u64::from(target.units.max(1)) * u64::from(resolved.footprint.groups_per_unit.max(1));
        let shape = Shape {
            g: c.g,
            m: c.m,
            n: c.n,
            k: c.k,
            wave: target.wave.max(1),
            concurrent: units,
            title: case.title.clone(),
            subtitle: format!("{plan}  on {}", context.info().name),
        };
        write_file(path, &page(&resolved.spec, &shape))?;
        if !args.json {
            line(&format!("figures: {}", path.display()))?;
        }
    }
    Ok(())
}

/// One line per key; keys without effect are gathered at the end.
fn words(notes: &[Note]) -> String {
    let mut out = String::new();
    for note in notes.iter().filter(|n| !n.inert) {
        out.push_str(&format!("  {:<9} {}\n", format!("{}{}", note.key, note.value), note.text));
    }
    let inert: Vec<String> = notes.iter().filter(|n| n.inert).map(|n| format!("{}{}", n.key, n.value)).collect();
    if !inert.is_empty() {
        out.push_str(&format!("  without effect here: {}\n", inert.join(" ")));
    }
    out
}

/// The table of numbers: geometry, resources, work, model.
fn numbers(operation: &Operation, plan: &Plan, counts: &Counts, footprint: &Footprint, estimate: &Estimate) -> String {
    let target = &operation.context().info().target;
    let Ok(resolved) = operation.space().resolve(plan) else { return String::new() };
    let t = &resolved.spec.tiling;
    let c = resolved.contraction;
    let us = human_time;
    let share = |part: f64| format!("{} ({:.0} %)", human_time(part), 100.0 * part / estimate.total_us.max(1e-9));
    let parts: Vec<String> = resolved.rest.iter().map(|p| format!("m {} k {}", p.contraction.m, p.contraction.k)).collect();
    let parts = if parts.is_empty() { String::new() } else { format!("; further parts: {}", parts.join(", ")) };
    let rows = [
        ("computes", format!("C[g,m,n] = {}, C in {}", c.formula(), c.c.scalar)),
        ("contraction", format!("g {} x m {} x n {}, sum over k {}{parts}", c.g, c.m, c.n, c.k)),
        ("macro tile", format!("{} x {}, k-tile {}", t.a.macro_tile, t.b.macro_tile, t.k_tile)),
        ("micro tile", format!("{} x {} per thread, {} x {} threads", t.a.micro, t.b.micro, t.threads_a, t.threads_b)),
        (
            "work-groups",
            format!(
                "{} of {} threads, {} waves each",
                counts.groups,
                counts.threads,
                counts.threads.div_ceil(target.wave.max(1))
            ),
        ),
        (
            "residency",
            format!(
                "{} work-groups per unit, {} units: the device is filled {:.2} times",
                footprint.groups_per_unit,
                target.units,
                footprint.fills(counts.groups, target)
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
    rows.iter().map(|(name, text)| format!("  {name:<14} {text}\n")).collect()
}
