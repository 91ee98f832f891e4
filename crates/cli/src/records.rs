//! `tilewright records`: look at, carry and clear tuning records.

use crate::args::{FilterArgs, RecordsCommand};
use crate::error::CliError;
use crate::output::{Stdout, human_time, line, unwritable};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use tilewright_check::verify::Depth;
use tilewright_gen::plan::Plan;
use tilewright_tune::Records;
use tilewright_tune::records::{Bad, Counted, DeviceKey, Filter, Imported, Record, State, TimeKind, Unread};

/// Runs one of the subcommands.
pub fn run(command: &RecordsCommand) -> Result<(), CliError> {
    match command {
        RecordsCommand::Path { place: at } => line(&place(at.records.as_deref()).display().to_string()),
        RecordsCommand::List { filter, json } => list(filter, *json),
        RecordsCommand::Show { filter } => show(filter),
        RecordsCommand::Export { filter, out } => export(filter, out.as_deref()),
        RecordsCommand::Import { file, skip_bad, place } => import(file, *skip_bad, place.records.as_deref()),
        RecordsCommand::Merge { files, records } => merge(files, records.as_deref()),
        RecordsCommand::Prune { keep, place } => prune(*keep, place.records.as_deref()),
        RecordsCommand::Clear { filter, yes } => clear(filter, *yes),
    }
}

/// The records file that is meant.
pub fn place(given: Option<&Path>) -> PathBuf {
    given.map_or_else(tilewright::default_records, Path::to_path_buf)
}

/// Opens records that must already be there.
fn existing(given: Option<&Path>) -> Result<Records, CliError> {
    Records::open_existing(place(given)).map_err(CliError::failed)
}

fn filter(args: &FilterArgs) -> Filter {
    Filter { problem: args.problem.clone(), device: args.device.clone(), state: None, verified: None }
}

/// Says how many rows were not understood, where some were not.
fn print_unread(rows: &[Unread]) {
    if let Some(summary) = Unread::summary(rows) {
        eprintln!("{summary}");
    }
}

/// Gives the records that are meant to a function, those of one problem at a time.
fn visit(
    records: &Records,
    args: &FilterArgs,
    mut show: impl FnMut(Vec<Record>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut shown = Ok(());
    let unread = records.by_problem(&filter(args), |of| {
        shown = show(of);
        if shown.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    print_unread(&unread.map_err(CliError::failed)?);
    shown
}

fn list(args: &FilterArgs, json: bool) -> Result<(), CliError> {
    // The driver that a device was used with last is taken for today's.
    let file = existing(args.place.records.as_deref())?;
    let last = file.last_fingerprints().map_err(CliError::failed)?;
    let mut none = true;
    visit(&file, args, |records| {
        none = false;
        let mut groups: BTreeMap<DeviceKey, Vec<Record>> = BTreeMap::new();
        for record in records {
            groups.entry(record.device.clone()).or_default().push(record);
        }
        groups.iter().try_for_each(|(device, all)| {
            let old_driver = last.get(&device.name).is_some_and(|last| driver(last) != driver(&device.fingerprint));
            list_one(device, all, old_driver, json)
        })
    })?;
    if none && !json {
        line("no records")?;
    }
    Ok(())
}

/// Cold and warm times come from the same driver.
fn driver(fingerprint: &str) -> &str {
    fingerprint.trim_end_matches("; warm caches")
}

/// Lists the records of a problem on a device.
fn list_one(device: &DeviceKey, all: &[Record], old_driver: bool, json: bool) -> Result<(), CliError> {
    let Some(Record { name: problem, .. }) = all.first() else { return Ok(()) };
    let DeviceKey { name: device, fingerprint } = device;
    let count = |state: State| all.iter().filter(|r| r.trial.state == state).count();
    let shown = best(all, old_driver);
    let stale = shown.is_some_and(|r| old_driver || r.is_stale());
    let trial = shown.map(|r| &r.trial);
    let plan = trial.map(|t| t.plan.as_str());
    let (us, kind) = (trial.and_then(|t| t.time_us), trial.and_then(|t| t.time_kind).map(TimeKind::name));
    let depth = trial.filter(|_| !stale).and_then(|t| t.verified);
    if json {
        let refused = count(State::Refused);
        let failed = count(State::Failed) + count(State::Wrong) + count(State::Hung);
        return line(
            &json!({
                "problem": problem, "device": device, "fingerprint": fingerprint, "plan": plan, "time_us": us, "time_kind": kind,
                "verified": depth.map(Depth::name), "stale": stale,
                "trials": all.len(), "refused": refused, "failed": failed,
            })
            .to_string(),
        );
    }
    line(problem)?;
    line(&format!("    on {device}: {} trials", all.len()))?;
    match (plan, us, kind) {
        (Some(plan), Some(us), Some(kind)) => {
            let note = match depth {
                _ if stale => "not of this machine, driver and build (`tune` verifies and times it first): ",
                Some(Depth::Thorough) => "",
                _ => "not verified thoroughly yet (`tune` does): ",
            };
            line(&format!("    {note}{} {kind}  {}{plan}", human_time(us), readable(plan)))
        }
        _ => line("    nothing verified yet"),
    }
}

/// The trial that stands for a problem on a device. It is the fastest one that was verified thoroughly and still holds, else the
/// fastest one that was right at all. Measured times stand before modelled ones.
fn best(all: &[Record], old_driver: bool) -> Option<&Record> {
    let wrong = |r: &Record| all.iter().any(|w| w.trial.state == State::Wrong && w.trial.plan == r.trial.plan);
    let rank = |r: &Record| {
        let holds = !old_driver && !r.is_stale() && r.trial.verified == Some(Depth::Thorough);
        (!holds, r.trial.time_kind == Some(TimeKind::Modelled))
    };
    let time = |r: &Record| r.trial.time_us.unwrap_or(f64::INFINITY);
    let mut right: Vec<&Record> = all.iter().filter(|r| r.trial.verified.is_some() && r.trial.state == State::Ok).collect();
    right.sort_by(|x, y| rank(x).cmp(&rank(y)).then(time(x).total_cmp(&time(y))));
    right.into_iter().find(|r| !wrong(r))
}

/// Every trial in a table: problems in the order of their names, each with its fastest plan first.
fn show(args: &FilterArgs) -> Result<(), CliError> {
    let file = existing(args.place.records.as_deref())?;
    let mut none = true;
    visit(&file, args, |mut records| {
        none = false;
        let time = |r: &Record| r.trial.time_us.unwrap_or(f64::INFINITY);
        let place = |r: &Record| (r.device.name.clone(), r.trial.time_kind == Some(TimeKind::Modelled));
        records.sort_by(|x, y| place(x).cmp(&place(y)).then(time(x).total_cmp(&time(y))));
        let mut of = None;
        records.iter().try_for_each(|record| {
            if of.replace(&record.device) != Some(&record.device) {
                line(&format!("{} on {}", record.name, record.device.name))?;
                line(&format!("  {:<8} {:<9} {:<20} plan", "state", "verified", "time"))?;
            }
            show_one(record)
        })
    })?;
    if none {
        eprintln!("no records");
    }
    Ok(())
}

/// The line of a trial.
fn show_one(record: &Record) -> Result<(), CliError> {
    let t = &record.trial;
    let (time, reason) = match (t.time_us, t.time_kind) {
        (Some(us), Some(kind)) => (format!("{} {}", human_time(us), kind.name()), ""),
        _ => ("-".into(), t.reason.as_deref().and_then(|reason| reason.lines().next()).unwrap_or_default()),
    };
    let verified = if record.is_stale() { "stale" } else { t.verified.map_or("-", Depth::name) };
    let reason = if reason.is_empty() { String::new() } else { format!("  ({reason})") };
    line(&format!("  {:<8} {verified:<9} {time:<20} {}{reason}", t.state.name(), t.plan))
}

fn export(args: &FilterArgs, out: Option<&Path>) -> Result<(), CliError> {
    let records = existing(args.place.records.as_deref())?;
    let failed = |path: &Path, e: std::io::Error| CliError::failed(unwritable(path, &e));
    let rejected = out.map(|path| PathBuf::from(format!("{}.rejected", path.display())));
    // Before the records are written: they would be in the way of the next attempt. A link to nothing is in the way, too.
    if let Some(path) = rejected.as_ref().filter(|path| path.symlink_metadata().is_ok()) {
        return Err(failed(path, std::io::ErrorKind::AlreadyExists.into()));
    }
    let exported = match out {
        None => records.export(&filter(args), &mut Stdout).map_err(CliError::failed)?,
        Some(path) => {
            let mut file = std::io::BufWriter::new(std::fs::File::create_new(path).map_err(|e| failed(path, e))?);
            let exported = records.export(&filter(args), &mut file).map_err(CliError::failed)?;
            file.flush().map_err(|e| failed(path, e))?;
            exported
        }
    };
    eprintln!("{} records written", exported.written);
    print_unread(&exported.unread);
    if let Some(path) = rejected.filter(|_| !exported.unread.is_empty()) {
        let mut file = std::fs::File::create_new(&path).map_err(|e| failed(&path, e))?;
        for row in &exported.unread {
            writeln!(file, "{}", row.line).map_err(|e| failed(&path, e))?;
        }
        eprintln!("what was not understood is in {}", path.display());
    }
    Ok(())
}

fn import(file: &Path, skip_bad: bool, records: Option<&Path>) -> Result<(), CliError> {
    let input = std::fs::File::open(file).map_err(|e| CliError::usage(format!("{}: cannot be read: {e}", file.display())))?;
    let records = Records::open(place(records)).map_err(CliError::failed)?;
    let name = file.display().to_string();
    let bad = if skip_bad { Bad::Skip } else { Bad::Refuse };
    let imported = records.import_with(&mut BufReader::new(input), &name, bad).map_err(CliError::failed)?;
    print_imported(&imported, &name);
    Ok(())
}

fn merge(files: &[PathBuf], records: Option<&Path>) -> Result<(), CliError> {
    // None is opened for writing before all are there.
    let others = files.iter().map(Records::open_to_read).collect::<Result<Vec<_>, _>>().map_err(CliError::failed)?;
    let records = Records::open(place(records)).map_err(CliError::failed)?;
    for other in &others {
        let imported = records.merge(other).map_err(CliError::failed)?;
        print_imported(&imported, &other.path().display().to_string());
    }
    Ok(())
}

/// Says what was added and what was not.
fn print_imported(imported: &Imported, from: &str) {
    eprintln!("{} new records from {from}", imported.added);
    print_unread(&imported.unread);
    if let Some(first) = imported.skipped.first() {
        let lines =
            if imported.skipped.len() == 1 { "1 line was".into() } else { format!("{} lines were", imported.skipped.len()) };
        eprintln!("{lines} left out: {first}");
    }
}

fn prune(keep: u64, records: Option<&Path>) -> Result<(), CliError> {
    let records = existing(records)?;
    let count = records.prune(usize::try_from(keep).unwrap_or(usize::MAX)).map_err(CliError::failed)?;
    eprintln!("{count} records removed");
    Ok(())
}

fn clear(args: &FilterArgs, yes: bool) -> Result<(), CliError> {
    let records = existing(args.place.records.as_deref())?;
    let filter = filter(args);
    if !yes {
        let Counted { records: count, unread } = records.count(&filter).map_err(CliError::failed)?;
        print_unread(&unread);
        return Err(CliError::usage(format!(
            "this would remove {count} records of {}: add --yes to do it",
            records.path().display()
        )));
    }
    let count = records.remove(&filter).map_err(CliError::failed)?;
    eprintln!("{count} records removed");
    Ok(())
}

/// The readable text of a plan before its keys; nothing for keys of another version.
fn readable(keys: &str) -> String {
    Plan::parse(keys).map_or_else(|_| String::new(), |plan| format!("{}\n    ", plan.readable()))
}
