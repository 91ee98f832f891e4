//! `tilewright inspect`: what a compiler made of a plan's main loop, as a table, a picture or JSON.

use crate::args::{InspectArgs, PlaceArgs};
use crate::emit::dialect;
use crate::error::CliError;
use crate::figures::instructions;
use crate::output::{human_bytes, line, write_file};
use crate::{problem, session};
use serde_json::json;
use tilewright::SourceError;
use tilewright_device::inspect::{Class, Inspection, LoopReport, Role, Run, Usage, inspect};
use tilewright_device::{DeviceError, Options};
use tilewright_gen::kernel::schedule::lower;
use tilewright_gen::plan::KernelSpec;
use tilewright_ir::{Dialect, Target};

/// Inspects one problem's plan.
pub fn run(args: &InspectArgs) -> Result<(), CliError> {
    let case = problem::only(problem::cases_or_source(&args.problem, &args.source, &args.plan)?)?;
    let edited = case.source.as_ref().map(|(_, edited)| edited);
    let arch = args.arch.as_deref().or(edited.map(|e| e.arch.as_str())).unwrap_or(Target::AMD);
    let known = || CliError::usage(format!("--arch {arch}: not a known architecture; there are {}", Target::known().join(", ")));
    let target = Target::by_arch(arch).ok_or_else(known)?;
    let dialect = args.target.map(dialect).or(edited.map(|e| e.dialect));
    // Planned for as the emulated device of that architecture: nothing is run.
    let place = PlaceArgs { device: Some(format!("emu:{}", target.arch)), records: args.records.clone() };
    let context = session::open(&place, &args.plan, false)?;
    let planned_for = match dialect {
        Some(Dialect::OpenCl) => session::in_opencl(target.clone()),
        _ => target.clone(),
    };
    let operation = session::operation_for(&context, &planned_for, &case, &args.plan)?;
    let (plan, origin) = operation.choice().map_err(session::classify)?;
    let space = operation.space();
    let resolved = space.resolve(&plan).map_err(CliError::failed)?;
    let program = operation.program(&plan).map_err(session::classify)?;
    let kernel = session::main_kernel(&program)?;
    let inspection = inspect(kernel, &target.arch, dialect, &Options::default()).map_err(|e| match e {
        DeviceError::BadSpec { reason, .. } => CliError::usage(format!("--target: {reason}")),
        DeviceError::Compile { log, .. } if edited.is_some() => session::classify(SourceError::Compile { log }.into()),
        other => CliError::failed(other),
    })?;
    let math = math_per_tile(&resolved.spec);
    let nvidia = target.arch.starts_with("sm_");
    let tiles = |l: &LoopReport| tiles_per_round(l, &resolved.spec, math);
    if args.json {
        let tiles: Vec<u32> = inspection.loops.iter().map(tiles).collect();
        let value = json!({
            "problem": case.problem.key(),
            "plan": plan.to_string(),
            "readable": plan.readable(),
            "origin": origin.name(),
            "source": case.source.as_ref().map(|(path, _)| path),
            "math_per_k_tile": math,
            "k_tiles_per_round": tiles,
            "inspection": inspection,
        });
        line(&value.to_string())?;
    } else {
        line(&format!("{} on {}, {}", case.title, target.arch, language(&inspection)))?;
        line(&format!("plan ({}): {}\n  {plan}", session::origin(&args.plan, &plan, origin), plan.readable()))?;
        if inspection.loops.is_empty() {
            line("\nthere is no loop: the compiler has unrolled the few k-tiles there are\n")?;
        }
        for report in &inspection.loops {
            line(&format!("\n{}", table(report, tiles(report))))?;
        }
        line(&usage(&inspection, nvidia))?;
    }
    let note = |path: &std::path::Path| if args.json { Ok(()) } else { line(&format!("written: {}", path.display())) };
    if let Some(path) = &args.svg {
        let title = format!("{} on {}, {}", case.title, target.arch, language(&inspection));
        write_file(path, &instructions::page(&inspection, &title, &plan.to_string(), &occupancy(&inspection.usage, nvidia)))?;
        note(path)?;
    }
    if let Some(path) = &args.asm {
        write_file(path, &inspection.assembly)?;
        note(path)?;
    }
    Ok(())
}

/// The language and who compiled it.
fn language(inspection: &Inspection) -> String {
    let compiler = if inspection.dialect == Dialect::Cuda { "NVRTC" } else { "clang" };
    format!("{} through {compiler}", inspection.dialect.name())
}

/// Math instructions of one thread for one k-tile: multiply-adds, or those of a matrix unit.
fn math_per_tile(spec: &KernelSpec) -> u32 {
    let t = &spec.tiling;
    let (rows, columns, depth) = t.instruction.map_or((1, 1, 1), |row| (row.shape.m, row.columns(t.b.micro), row.shape.k));
    let products = (t.a.micro / rows) * (t.b.micro / columns.max(1)) * (t.k_tile / depth) * t.products();
    // Subtractions that split factors in registers count as well.
    let split = [&t.a, &t.b].into_iter().filter(|o| o.split_in_registers().is_some()).map(|o| o.micro).sum::<u32>();
    products + split * t.k_tile / t.unit.family().lanes
}

/// k-tiles that one round of a loop works on: what the schedule unrolls, times what the compiler unrolls.
fn tiles_per_round(report: &LoopReport, spec: &KernelSpec, math: u32) -> u32 {
    let sets = lower(&spec.schedule, spec.tiling.k_tile).sets;
    (report.count(Class::Math) / math.max(1)).max(sets)
}

/// The round in order and the distances of its loads.
fn table(report: &LoopReport, tiles: u32) -> String {
    let name = match report.role {
        Role::Main => "main loop",
        Role::Load => "loop of the producer waves",
    };
    let plural = if tiles == 1 { "" } else { "s" };
    let mut out = format!("{name}: {} instructions for {tiles} k-tile{plural}, from the first load on\n", report.instructions);
    if report.nested {
        out.push_str("  (it holds an inner loop, whose instructions are counted once)\n");
    }
    for (at, text, first) in lines(&report.runs) {
        out.push_str(&format!("  {at:>6}  {text:<58} {first}\n"));
    }
    let math = f64::from(report.count(Class::Math)) / f64::from(tiles);
    let of_tile = |n: u32| {
        if math > 0.0 { format!("{n} ({:.0} % of a k-tile's)", 100.0 * f64::from(n) / math) } else { n.to_string() }
    };
    if report.matrix > 0 {
        let each = f64::from(report.integer) / f64::from(report.matrix);
        out.push_str(&format!("  {each:.2} integer instructions of every lane per matrix instruction\n"));
    }
    if let Some(live) = report.live_registers {
        out.push_str(&format!("  at most {live} vector registers live in what these waves run\n"));
    }
    if report.flights.is_empty() {
        out.push_str("  no loads\n");
        return out;
    }
    out.push_str(&format!("  {:<44} {:<30} {}\n", "load", "math until its wait", "then until the LDS store"));
    for (flight, count) in grouped(report) {
        let text = format!("{count} x {}", flight.text.split_whitespace().find(|w| !w.starts_with('@')).unwrap_or_default());
        let wait = flight.math_to_wait.map_or("never waited for".to_string(), of_tile);
        let store = flight.math_to_store.map_or("none".to_string(), |n| n.to_string());
        out.push_str(&format!("  {text:<44} {wait:<30} {store}\n"));
    }
    out
}

/// Flights with the same distances, once, with their number.
fn grouped(report: &LoopReport) -> Vec<(&tilewright_device::inspect::Flight, usize)> {
    let mut groups: Vec<(&tilewright_device::inspect::Flight, usize)> = Vec::new();
    for flight in &report.flights {
        match groups.last_mut() {
            Some((last, count)) if (last.math_to_wait, last.math_to_store) == (flight.math_to_wait, flight.math_to_store) => {
                *count += 1
            }
            _ => groups.push((flight, 1)),
        }
    }
    groups
}

/// Lines of the table: position, what, and the first instruction. Math with the reads that feed it is one line.
fn lines(runs: &[Run]) -> Vec<(u32, String, String)> {
    let feeds = |run: &Run| matches!(run.class, Class::Math | Class::SharedRead | Class::SharedWait);
    let mut out = Vec::new();
    for part in runs.chunk_by(|a, b| feeds(a) && feeds(b)) {
        let Some(first) = part.first() else { continue };
        let mut counts: Vec<(Class, u32)> = Vec::new();
        for run in part {
            match counts.iter_mut().find(|(class, _)| *class == run.class) {
                Some((_, count)) => *count += run.count,
                None => counts.push((run.class, run.count)),
            }
        }
        // Math is what the line is about; what feeds it follows.
        counts.sort_by_key(|(class, _)| *class != Class::Math);
        let words: Vec<String> = counts.iter().map(|(class, count)| format!("{count} x {}", class.name())).collect();
        let pending = first.pending.filter(|n| *n > 0).map_or(String::new(), |n| format!(", all but {n}"));
        let text = if part.len() == 1 { first.text.clone() } else { String::new() };
        out.push((first.at, format!("{}{pending}", words.join(", ")), text));
    }
    out
}

fn many(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Resident threads in the words of the vendor: warps of a multiprocessor, or waves of a SIMD.
fn occupancy(u: &Usage, nvidia: bool) -> String {
    if nvidia {
        return format!("{} per multiprocessor", many(u.groups_per_unit * u.threads.div_ceil(32), "warp"));
    }
    format!("{} per SIMD", many(u.waves_per_simd, "wave"))
}

/// Registers, shared memory, spills, occupancy.
fn usage(inspection: &Inspection, nvidia: bool) -> String {
    let u = &inspection.usage;
    let scalar = u.scalar_registers.map_or(String::new(), |n| format!(", {n} scalar per wave"));
    let rows = [
        ("registers", format!("{} per thread{scalar}", u.registers)),
        ("spills", format!("{}, private memory {}", human_bytes(u.spill_bytes.into()), human_bytes(u.private_bytes.into()))),
        ("shared memory", format!("{} per work-group", human_bytes(u.shared_bytes.into()))),
        ("occupancy", format!("{}: {} of {} threads", occupancy(u, nvidia), many(u.groups_per_unit, "work-group"), u.threads)),
    ];
    let rows: Vec<String> = rows.iter().map(|(name, text)| format!("  {name:<14} {text}")).collect();
    rows.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(class: Class, count: u32, pending: Option<u32>) -> Run {
        Run { class, count, at: 0, text: class.name().into(), pending }
    }

    #[test]
    fn math_and_its_reads_are_one_line() {
        let runs = [
            run(Class::GlobalLoad, 4, None),
            run(Class::SharedRead, 4, None),
            run(Class::Math, 30, None),
            run(Class::SharedWait, 1, None),
            run(Class::Math, 34, None),
            run(Class::Wait, 1, Some(2)),
            run(Class::SharedStore, 4, None),
        ];
        let lines: Vec<String> = lines(&runs).into_iter().map(|(_, text, _)| text).collect();
        let want =
            ["4 x global load", "64 x math, 4 x LDS read, 1 x wait for LDS", "1 x wait for loads, all but 2", "4 x LDS store"];
        assert_eq!(lines, want);
    }
}
