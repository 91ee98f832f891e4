//! `tilewright records`: look at, carry and clear tuning records.

use crate::args::{FilterArgs, RecordsCommand};
use crate::error::CliError;
use crate::output::{Stdout, human_time, line};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use tilewright_tune::Records;
use tilewright_tune::records::{Filter, Record, State, TimeKind};
use tilewright_tune::verify::Depth;

/// Runs one of the subcommands.
pub fn run(command: &RecordsCommand) -> Result<(), CliError> {
    match command {
        RecordsCommand::Path { records } => line(&place(records.as_deref()).display().to_string()),
        RecordsCommand::List { filter, json } => list(filter, *json),
        RecordsCommand::Show { filter } => show(filter),
        RecordsCommand::Export { filter, out } => export(filter, out.as_deref()),
        RecordsCommand::Import { file, records } => import(file, records.as_deref()),
        RecordsCommand::Merge { files, records } => merge(files, records.as_deref()),
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

fn list(args: &FilterArgs, json: bool) -> Result<(), CliError> {
    let records = existing(args.records.as_deref())?;
    let mut groups: BTreeMap<(String, String, String), Vec<Record>> = BTreeMap::new();
    for record in records.list(&filter(args)).map_err(CliError::failed)? {
        groups
            .entry((record.name.clone(), record.device.name.clone(), record.device.fingerprint.clone()))
            .or_default()
            .push(record);
    }
    // The driver that a device was used with last is taken for today's.
    let mut drivers: HashMap<&str, (i64, String)> = HashMap::new();
    // Cold and warm times come from the same driver.
    let driver = |fingerprint: &'_ str| fingerprint.trim_end_matches("; warm caches").to_string();
    for ((_, device, fingerprint), all) in &groups {
        let last = all.iter().map(|r| r.trial.at).max().unwrap_or_default();
        let known = drivers.entry(device).or_default();
        if last >= known.0 {
            *known = (last, driver(fingerprint));
        }
    }
    for ((problem, device, fingerprint), all) in &groups {
        let old_driver = drivers.get(device.as_str()).is_some_and(|d| d.1 != driver(fingerprint));
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
            line(
                &json!({
                    "problem": problem, "device": device, "fingerprint": fingerprint, "plan": plan, "time_us": us, "time_kind": kind,
                    "verified": depth.map(Depth::name), "stale": stale,
                    "trials": all.len(), "refused": refused, "failed": failed,
                })
                .to_string(),
            )?;
        } else {
            line(problem)?;
            line(&format!("    on {device}: {} trials", all.len()))?;
            match (plan, us, kind) {
                (Some(plan), Some(us), Some(kind)) => {
                    let note = match depth {
                        _ if stale => "stale (another driver or tilewright; `tune` verifies and times it first): ",
                        Some(Depth::Thorough) => "",
                        _ => "not verified thoroughly yet (`tune` does): ",
                    };
                    line(&format!("    {note}{} {kind}  {plan}", human_time(us)))?;
                }
                _ => line("    nothing verified yet")?,
            }
        }
    }
    if groups.is_empty() && !json {
        line("no records")?;
    }
    Ok(())
}

/// The trial that stands for a problem on a device: the fastest one that was verified thoroughly and still holds, else the fastest one
/// that was right at all. Measured times stand before modelled ones.
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

fn show(args: &FilterArgs) -> Result<(), CliError> {
    let records = existing(args.records.as_deref())?.list(&filter(args)).map_err(CliError::failed)?;
    if records.is_empty() {
        eprintln!("no records");
    }
    for record in records {
        let t = &record.trial;
        let time = match (t.time_us, t.time_kind) {
            (Some(us), Some(kind)) => format!("{} {}", human_time(us), kind.name()),
            _ => t.reason.clone().unwrap_or_default().lines().next().unwrap_or_default().to_string(),
        };
        let verified = if record.is_stale() { "stale" } else { t.verified.map_or("-", Depth::name) };
        line(&format!("{}  {}  {:<8} {verified:<8} {time}  {}", record.name, record.device.name, t.state.name(), t.plan))?;
    }
    Ok(())
}

fn export(args: &FilterArgs, out: Option<&Path>) -> Result<(), CliError> {
    let records = existing(args.records.as_deref())?;
    let count = match out {
        None => records.export(&filter(args), &mut Stdout).map_err(CliError::failed)?,
        Some(path) => {
            let failed = |e: std::io::Error| {
                CliError::failed(format!(
                    "{}: cannot be written: {e}; name another file, in a folder that may be written",
                    path.display()
                ))
            };
            let mut file = std::io::BufWriter::new(std::fs::File::create_new(path).map_err(failed)?);
            let count = records.export(&filter(args), &mut file).map_err(CliError::failed)?;
            file.flush().map_err(failed)?;
            count
        }
    };
    eprintln!("{count} records written");
    Ok(())
}

fn import(file: &Path, records: Option<&Path>) -> Result<(), CliError> {
    let input = std::fs::File::open(file).map_err(|e| CliError::usage(format!("{}: cannot be read: {e}", file.display())))?;
    let records = Records::open(place(records)).map_err(CliError::failed)?;
    let name = file.display().to_string();
    let added = records.import(&mut BufReader::new(input), &name).map_err(CliError::failed)?;
    eprintln!("{added} new records from {name}");
    Ok(())
}

fn merge(files: &[PathBuf], records: Option<&Path>) -> Result<(), CliError> {
    // None is opened for writing before all are there.
    let others = files.iter().map(Records::open_to_read).collect::<Result<Vec<_>, _>>().map_err(CliError::failed)?;
    let records = Records::open(place(records)).map_err(CliError::failed)?;
    for other in &others {
        let added = records.merge(other).map_err(CliError::failed)?;
        eprintln!("{added} new records from {}", other.path().display());
    }
    Ok(())
}

fn clear(args: &FilterArgs, yes: bool) -> Result<(), CliError> {
    let records = existing(args.records.as_deref())?;
    let filter = filter(args);
    if !yes {
        let count = records.list(&filter).map_err(CliError::failed)?.len();
        return Err(CliError::usage(format!(
            "this would remove {count} records of {}: add --yes to do it",
            records.path().display()
        )));
    }
    let count = records.remove(&filter).map_err(CliError::failed)?;
    eprintln!("{count} records removed");
    Ok(())
}
