//! Records as text: a line per case while a run goes on, summaries at its end, Markdown tables for documents.

use crate::record::{Record, Side, summarise};
use std::fmt::Write;
use tilewright_device::Resources;

/// A time with a sensible number of digits.
pub fn us(value: f64) -> String {
    let digits = match value {
        v if v < 10.0 => 3,
        v if v < 100.0 => 2,
        v if v < 1000.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// TFLOP/s with three significant digits.
pub fn digits(tflops: f64) -> String {
    let digits = (2.0 - tflops.max(1e-6).log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{tflops:.digits$}")
}

/// A rate with its unit.
fn rate(tflops: f64) -> String {
    if tflops < 1.0 { format!("{:8.2} GF", tflops * 1e3) } else { format!("{tflops:8.2} TF") }
}

/// One line for a case; with many sides, one line each.
pub fn line(record: &Record) -> String {
    if record.sides.len() > MOST_ACROSS {
        return format!("{} {}\n{}", record.set, record.case, sides(record));
    }
    let mut out = format!("{:16} {:44}", record.set, record.case);
    for (n, side) in record.sides.iter().enumerate() {
        let _ = write!(out, " | {}", side.name);
        match (&side.time, &side.failure) {
            (Some(time), failure) => {
                let _ = write!(out, " {:>9} us ±{:4.1}%", us(time.median_us), time.spread() * 50.0);
                if side.wide {
                    out.push_str(" wide");
                }
                if let Some(tflops) = record.tflops(side) {
                    let _ = write!(out, " {}", rate(tflops));
                }
                if let Some(ratio) = record.ratio(n).filter(|_| n > 0) {
                    let _ = write!(out, " {ratio:6.3}x");
                }
                if let Some(failure) = failure {
                    let _ = write!(out, " WRONG: {failure}");
                }
            }
            (None, Some(failure)) => {
                let _ = write!(out, " none: {}", failure.lines().next().unwrap_or_default());
            }
            (None, None) => out.push_str(" none"),
        }
    }
    out
}

/// Per set and alternative: geometric mean and worst case.
pub fn summary(records: &[Record]) -> String {
    let mut out = String::new();
    for s in summarise(records) {
        let _ = write!(out, "{:16} vs {:16} ", s.set, s.side);
        match (s.mean, &s.worst) {
            (Some(mean), Some((worst, case))) => {
                let _ = write!(
                    out,
                    "geometric mean {mean:6.3}x over {} of {} cases, worst {worst:.3}x ({case})",
                    s.cases,
                    s.cases + s.missing.len()
                );
            }
            _ => out.push_str("no mean"),
        }
        if !s.missing.is_empty() {
            let _ = write!(out, "; {} without a valid pair of times: {}", s.missing.len(), s.missing.join(", "));
            if s.lacks() {
                out.push_str("; more than 5 % of the cases are missing: not fit to publish");
            }
        }
        out.push('\n');
    }
    out
}

/// Registers, spills and occupancy as one cell.
fn resources(side: &Side) -> String {
    let Some(Resources { registers, spill_bytes, shared_bytes, .. }) = side.resources else { return String::new() };
    let cell = |v: Option<u32>| v.map_or_else(|| "?".to_string(), |v| v.to_string());
    let groups = side.groups_per_unit.map(|g| format!(", {g}/unit")).unwrap_or_default();
    format!("{} reg, {} B spilled, {} B shared{groups}", cell(registers), cell(spill_bytes), cell(shared_bytes))
}

/// The least time of a record, what its first side takes beyond that, and how many times as long it takes, as three cells.
fn floor(record: &Record) -> String {
    let floor = record.floor_us();
    let first = record.sides.first().and_then(Side::valid_us).zip(floor);
    let over = first.map_or(" | ".to_string(), |(time, floor)| format!("{:.1} | {:.2}", time - floor, time / floor));
    format!(" {} | {over} |", floor.map(us).unwrap_or_default())
}

/// The sides of one record below each other, as a Markdown table.
pub fn sides(record: &Record) -> String {
    let mut out = String::from("| side | us | ± | TFLOP/s | ratio | modelled us | resources | note |\n");
    out.push_str("|---|---|---|---|---|---|---|---|\n");
    for (n, side) in record.sides.iter().enumerate() {
        let time = side.time.map(|t| us(t.median_us)).unwrap_or_default();
        let spread = side.time.map(|t| format!("{:.1}%", t.spread() * 50.0)).unwrap_or_default();
        let rate = record.tflops(side).map(digits).unwrap_or_default();
        let ratio = record.ratio(n).map(|r| format!("{r:.3}")).unwrap_or_default();
        let modelled = side.modelled_us.map(us).unwrap_or_default();
        let note = match (&side.failure, &side.plan) {
            (Some(failure), _) => failure.lines().next().unwrap_or_default().to_string(),
            (None, Some(plan)) => format!("`{plan}`"),
            (None, None) => side.note.clone(),
        };
        // Writing to a String cannot fail.
        let _ =
            writeln!(out, "| {} | {time} | {spread} | {rate} | {ratio} | {modelled} | {} | {note} |", side.name, resources(side));
    }
    out
}

/// What is to be shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// The plans.
    pub plans: bool,
    /// Registers, spills, occupancy.
    pub resources: bool,
    /// The least time by the device's rates, and what the first side takes beyond it.
    pub floor: bool,
    /// Only the summaries.
    pub brief: bool,
}

/// With more sides than this they are printed below each other.
pub const MOST_ACROSS: usize = 4;

/// Markdown: per experiment a table of its sets' summaries and one of its cases.
pub fn markdown(records: &[Record], columns: Columns) -> String {
    let mut experiments: Vec<&str> = Vec::new();
    for record in records {
        if !experiments.contains(&record.experiment.as_str()) {
            experiments.push(&record.experiment);
        }
    }
    let mut out = String::new();
    for experiment in experiments {
        let of: Vec<Record> = records.iter().filter(|r| r.experiment == experiment).cloned().collect();
        one(&mut out, experiment, &of, columns);
    }
    out
}

/// Where, by what and when records were made: a text per device, driver, build and state of the cache, with the dates they span.
pub fn origins(records: &[Record]) -> Vec<String> {
    let mut all: Vec<(String, Vec<&str>)> = Vec::new();
    for record in records {
        let env = &record.environment;
        let build = if env.source.is_empty() { &env.version } else { &env.source };
        let text = format!("{}; {}; tilewright {build}; {} caches", env.device, env.fingerprint, record.cache.name());
        match all.iter_mut().find(|known| known.0 == text) {
            Some((_, dates)) => dates.push(&env.date),
            None => all.push((text, vec![&env.date])),
        }
    }
    let span = |mut dates: Vec<&str>| {
        dates.sort_unstable();
        match (dates.first(), dates.last()) {
            (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
            (Some(first), _) => (*first).to_string(),
            _ => String::new(),
        }
    };
    all.into_iter().map(|(text, dates)| format!("{text}; {}", span(dates))).collect()
}

/// Each side's device memory besides the operands: what it might use, and the most that it did.
pub fn workspaces(records: &[Record]) -> Vec<String> {
    let mut all: Vec<(&str, u64, u64)> = Vec::new();
    for (side, space) in records.iter().flat_map(|r| &r.sides).filter_map(|s| Some((s, s.workspace?))) {
        match all.iter_mut().find(|known| (known.0, known.1) == (side.name.as_str(), space.limit)) {
            Some(known) => known.2 = known.2.max(space.used),
            None => all.push((&side.name, space.limit, space.used)),
        }
    }
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / f64::from(1 << 20));
    all.into_iter().map(|(name, limit, used)| format!("{name} may use {}, uses {} at most", mib(limit), mib(used))).collect()
}

/// One experiment: its origins, its summaries and its cases.
fn one(out: &mut String, experiment: &str, records: &[Record], columns: Columns) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "### {experiment}\n");
    conditions(out, records);
    summaries(out, records);
    if columns.brief {
        return;
    }
    if records.iter().any(|r| r.sides.len() > MOST_ACROSS) {
        for record in records {
            let _ = writeln!(out, "{} {}:\n\n{}", record.set, record.case, sides(record));
        }
        return;
    }
    cases(out, records, columns);
}

/// Where the records come from, the versions they are compared with, workspaces and clocks: a sentence each.
fn conditions(out: &mut String, records: &[Record]) {
    for text in origins(records) {
        let _ = writeln!(out, "{text}.");
    }
    let mut versions: Vec<String> = Vec::new();
    for side in records.iter().flat_map(|r| r.sides.iter().skip(1)).filter(|s| s.plan.is_none() && !s.version.is_empty()) {
        let version = format!("{} {}", side.name, side.version);
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    if !versions.is_empty() {
        let _ = writeln!(out, "Compared with {}.", versions.join(", "));
    }
    let spaces = workspaces(records);
    if !spaces.is_empty() {
        let _ = writeln!(out, "Workspace: {}.", spaces.join("; "));
    }
    let clocks: Vec<u32> = records.iter().filter_map(|r| r.clocks_after?.sm_mhz).collect();
    if let (Some(low), Some(high)) = (clocks.iter().min(), clocks.iter().max()) {
        let _ = writeln!(out, "Multiprocessor clock after each case: {low} to {high} MHz.");
    }
    out.push('\n');
}

/// The table of summaries, one row per set and alternative.
fn summaries(out: &mut String, records: &[Record]) {
    let summaries = summarise(records);
    if summaries.is_empty() {
        return;
    }
    out.push_str("| set | against | geometric mean | worst | worst case | cases |\n|---|---|---|---|---|---|\n");
    for s in &summaries {
        let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "none".to_string(), |ratio| format!("{ratio:.3}"));
        let (mean, worst) = (ratio(s.mean), ratio(s.worst.as_ref().map(|w| w.0)));
        let case = s.worst.as_ref().map_or("", |w| w.1.as_str());
        let _ = writeln!(out, "| {} | {} | {mean} | {worst} | {case} | {} |", s.set, s.side, s.counted());
    }
    out.push('\n');
}

/// The table of cases, one row per record, with the cells of every side beside each other.
fn cases(out: &mut String, records: &[Record], columns: Columns) {
    let mut names: Vec<&str> = Vec::new();
    for side in records.iter().flat_map(|r| &r.sides) {
        if !names.contains(&side.name.as_str()) {
            names.push(&side.name);
        }
    }
    let mut head = String::from("| set | case |");
    for (n, name) in names.iter().enumerate() {
        let _ = write!(head, " {name} us | TFLOP/s |{}", if n > 0 { " ratio |" } else { "" });
    }
    if columns.floor {
        head.push_str(" floor us | over it us | ratio to it |");
    }
    if columns.resources {
        head.push_str(" resources |");
    }
    if columns.plans {
        head.push_str(" plan |");
    }
    let rule = "|---".repeat(head.matches('|').count() - 1);
    let _ = writeln!(out, "{head}\n{rule}|");
    for record in records {
        let _ = write!(out, "| {} | {} |", record.set, record.case);
        for (at, name) in names.iter().enumerate() {
            let found = record.sides.iter().position(|s| s.name == *name);
            let side = found.and_then(|n| record.sides.get(n));
            let rate = side.and_then(|s| record.tflops(s)).map(digits).unwrap_or_default();
            let time = match side {
                Some(Side { time: Some(t), correct: Some(true), .. }) => us(t.median_us),
                Some(Side { time: Some(t), .. }) => format!("wrong ({})", us(t.median_us)),
                Some(Side { failure: Some(_), .. }) => "failed".into(),
                _ => String::new(),
            };
            let _ = write!(out, " {time} | {rate} |");
            if at > 0 {
                let ratio = found.and_then(|n| record.ratio(n)).map(|r| format!("{r:.3}")).unwrap_or_default();
                let _ = write!(out, " {ratio} |");
            }
        }
        if columns.floor {
            out.push_str(&floor(record));
        }
        if columns.resources {
            let cells: Vec<String> = record.sides.iter().filter(|s| s.plan.is_some()).map(resources).collect();
            let _ = write!(out, " {} |", cells.join("; "));
        }
        if columns.plans {
            let plans: Vec<String> = record.sides.iter().filter_map(|s| s.plan.as_ref().map(|p| format!("`{p}`"))).collect();
            let _ = write!(out, " {} |", plans.join("; "));
        }
        out.push('\n');
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Workspace;
    use crate::record::tests::record;
    use tilewright_device::CacheState;

    #[test]
    fn lines_tell_times_ratios_and_failures() {
        let text = line(&record("x", "f32 1", Some(1.5)));
        assert!(text.contains("tilewright     10.00 us") && text.contains("1.500x") && text.contains("200.00 TF"), "{text}");
        let text = line(&record("x", "f32 1", None));
        assert!(text.contains("cublas none: refused"), "{text}");
        let mut wrong = record("x", "f32 1", Some(2.0));
        wrong.sides[1].correct = Some(false);
        wrong.sides[1].failure = Some("3 wrong".into());
        let text = line(&wrong);
        assert!(text.contains("WRONG: 3 wrong") && !text.contains("2.000x"), "{text}");
    }

    #[test]
    fn summaries_tell_the_worst_case() {
        let text = summary(&[record("x", "a", Some(0.5)), record("x", "b", Some(2.0)), record("x", "c", None)]);
        assert!(text.contains("1.000x over 2 of 3 cases, worst 0.500x (a); 1 without a valid pair of times: c"), "{text}");
    }

    #[test]
    fn a_merged_table_names_every_device_build_date_and_workspace() {
        let mut records = [record("x", "a", Some(0.5)), record("x", "b", Some(0.5)), record("x", "c", Some(0.5))];
        for (record, (device, date)) in records.iter_mut().zip([("cuda:0", "d2"), ("cuda:1", "d3"), ("cuda:0", "d1")]) {
            (record.environment.device, record.environment.date) = (device.into(), date.into());
            record.environment.source = "0.1.0 (content 12)".into();
        }
        records[2].sides[1].workspace = Some(Workspace { limit: 128 << 20, used: 3 << 20 });
        records[1].sides[1].workspace = Some(Workspace { limit: 128 << 20, used: 7 << 20 });
        let text = markdown(&records, Columns::default());
        assert!(text.contains("cuda:0; ; tilewright 0.1.0 (content 12); cold caches; d1 to d2.\ncuda:1;"), "{text}");
        assert!(
            text.contains("cold caches; d3.\n") && text.contains("Workspace: cublas may use 128 MiB, uses 7 MiB at most."),
            "{text}"
        );
        records[0].cache = CacheState::Warm;
        assert!(markdown(&records, Columns::default()).contains("warm caches; d2."));
    }

    #[test]
    fn markdown_rows_have_as_many_cells_as_the_head() {
        let records = [record("x", "a", Some(0.5)), record("x", "b", None)];
        for (plans, resources) in [(false, false), (true, true)] {
            let text = markdown(&records, Columns { plans, resources, floor: resources, brief: false });
            let rows: Vec<&str> = text.lines().filter(|l| l.starts_with('|')).collect();
            // A table of summaries, then one of cases.
            assert_eq!(rows.len(), 3 + 4, "{text}");
            let cells = |row: &str| row.matches('|').count();
            assert!(rows[..3].iter().all(|r| cells(r) == cells(rows[0])), "{text}");
            assert!(rows[3..].iter().all(|r| cells(r) == cells(rows[3])), "{text}");
        }
        let text = markdown(&records, Columns { brief: true, ..Columns::default() });
        assert_eq!(text.lines().filter(|l| l.starts_with('|')).count(), 3);
        assert!(text.contains("1980 to 1980 MHz"));
    }
}
