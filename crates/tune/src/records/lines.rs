//! Records as JSON lines: one object per trial, to keep, compare and carry between machines.

use super::journal::{last_row, note_imported};
use super::rows::{Sources, device_id, imported, insert_trial, problem_id};
use super::{DeviceKey, Filter, GENERATOR, LineError, Record, Records, RecordsError, State, Trial, Unread};
use crate::key::ProblemKey;
use rusqlite::{Transaction, TransactionBehavior};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use tilewright_check::verify::Depth;
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_ir::Target;
use tilewright_problem::Problem;

/// Version of the line format that is written. Format 1, which is read too, says of `verified` only true or false.
const FORMAT: u32 = 2;

/// One line: the record with the format's version in front.
#[derive(Serialize, Deserialize)]
struct Line<R> {
    tilewright: u32,
    #[serde(flatten)]
    record: R,
}

impl Record {
    /// It as a line that [`Records::import`] reads.
    pub fn line(&self) -> String {
        // A record holds nothing that JSON has not.
        serde_json::to_string(&Line { tilewright: FORMAT, record: self }).unwrap_or_default()
    }
}

/// What an export came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Records written.
    pub written: usize,
    /// Rows that this build cannot read: not written.
    pub unread: Vec<Unread>,
}

/// What becomes of lines that are no valid records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bad {
    /// The first of them refuses the import: nothing is added.
    #[default]
    Refuse,
    /// They are left out and reported.
    Skip,
}

/// What an import came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Records that were not there yet.
    pub added: usize,
    /// Lines that were left out.
    pub skipped: Vec<LineError>,
    /// Rows of the other file that this build cannot read.
    pub unread: Vec<Unread>,
}

impl Records {
    /// Writes the records that pass a filter as JSON lines, oldest first.
    ///
    /// # Errors
    /// [`RecordsError::Io`] of either side, named after the records file.
    pub fn export(&self, filter: &Filter, out: &mut dyn Write) -> Result<Exported, RecordsError> {
        let mut written = 0;
        let failed = |reason: String| RecordsError::Io { path: self.path.clone(), reason: format!("export: {reason}") };
        let unread = self.each(filter, |record| {
            writeln!(out, "{}", record.line()).map_err(|e| failed(e.to_string()))?;
            written += 1;
            Ok(())
        })?;
        out.flush().map_err(|e| failed(e.to_string()))?;
        Ok(Exported { written, unread })
    }

    /// Adds the records of another file as [`Records::import`] does. Rows that are no valid records stay where they are and are reported.
    ///
    /// # Errors
    /// As [`Records::export`] and [`Records::import`].
    pub fn merge(&self, other: &Records) -> Result<Imported, RecordsError> {
        self.importing(&other.path.display().to_string(), Bad::Skip, |lines| {
            let unread = other.each(&Filter::default(), |record| lines.add(Ok(record.line())))?;
            lines.imported.unread = unread;
            Ok(())
        })
    }

    /// Adds records from JSON lines, all or none; gives the number of those that were not there yet. Empty lines are
    /// skipped. Errors contain `source_name`.
    ///
    /// A record loses its claims: its plan is a candidate that a search verifies and times first. A plan that was found wrong, failed or
    /// hung elsewhere counts so here, too.
    ///
    /// # Errors
    /// [`RecordsError::Line`] for the first line that is no valid record; [`RecordsError::Io`] if writing fails.
    pub fn import(&self, input: &mut dyn BufRead, source_name: &str) -> Result<usize, RecordsError> {
        Ok(self.import_with(input, source_name, Bad::Refuse)?.added)
    }

    /// [`Records::import`] with a choice of what becomes of bad lines.
    ///
    /// # Errors
    /// As [`Records::import`]; [`RecordsError::Line`] of [`Bad::Refuse`] alone.
    pub fn import_with(&self, input: &mut dyn BufRead, source_name: &str, bad: Bad) -> Result<Imported, RecordsError> {
        self.importing(source_name, bad, |lines| {
            input.lines().try_for_each(|line| lines.add(line.map_err(|e| format!("cannot be read: {e}"))))
        })
    }

    /// An import of the lines that a function gives: one transaction.
    fn importing(
        &self,
        source_name: &str,
        bad: Bad,
        give: impl FnOnce(&mut Lines<'_>) -> Result<(), RecordsError>,
    ) -> Result<Imported, RecordsError> {
        let mut connection = self.lock();
        let t = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(|e| self.err(e))?;
        let before = last_row(&t).map_err(|e| self.err(e))?;
        let adding = Adding { t: &t, problems: HashMap::new(), devices: HashMap::new() };
        let (spaces, imported) = (Spaces::default(), Imported::default());
        let mut lines = Lines { to: self, source_name, bad, count: 0, spaces, adding, imported };
        give(&mut lines)?;
        let imported = lines.imported;
        note_imported(&t, before).map_err(|e| self.err(e))?;
        t.commit().map_err(|e| self.err(e))?;
        Ok(imported)
    }
}

/// An import under way.
struct Lines<'a> {
    to: &'a Records,
    source_name: &'a str,
    bad: Bad,
    /// Lines so far.
    count: usize,
    spaces: Spaces,
    adding: Adding<'a>,
    imported: Imported,
}

impl Lines<'_> {
    /// Adds the record of a line, or leaves the line out.
    fn add(&mut self, line: Result<String, String>) -> Result<(), RecordsError> {
        self.count += 1;
        if line.as_ref().is_ok_and(|line| line.trim().is_empty()) {
            return Ok(());
        }
        match line.and_then(|line| parse(&line)).and_then(|record| self.spaces.check(&record).map(|()| record)) {
            Ok(record) => {
                self.imported.added += usize::from(self.adding.add(&claimless(record)).map_err(|e| self.to.err(e))?);
            }
            Err(reason) => {
                let refused = LineError { source_name: self.source_name.into(), line: self.count, reason };
                if self.bad == Bad::Refuse {
                    return Err(refused.into());
                }
                self.imported.skipped.push(refused);
            }
        }
        Ok(())
    }
}

/// A record as somebody else's: its time and its verdict are not this machine's. Bad news is believed.
fn claimless(record: Record) -> Record {
    if record.trial.state != State::Ok {
        return record;
    }
    let trial = Trial { verified: record.trial.verified.min(Some(Depth::Quick)), ..record.trial };
    let (timed_by, verified_by) = (record.timed_by.as_deref().map(imported), record.verified_by.as_deref().map(imported));
    Record { timed_by, verified_by, trial, ..record }
}

/// Problems that an import keeps at a time: neighbouring lines are of few, and all lines may be of more than memory holds.
const KEPT: usize = 64;

/// Makes room for another entry.
fn bound<K, V>(known: &mut HashMap<K, V>) {
    if known.len() >= KEPT {
        known.clear();
    }
}

/// Records on their way into the tables.
struct Adding<'a> {
    t: &'a Transaction<'a>,
    problems: HashMap<String, i64>,
    devices: HashMap<DeviceKey, i64>,
}

impl Adding<'_> {
    /// Adds one; false if it is there already.
    fn add(&mut self, record: &Record) -> rusqlite::Result<bool> {
        let key = record.problem.text();
        let problem = match self.problems.get(&key) {
            Some(id) => *id,
            None => {
                bound(&mut self.problems);
                *self.problems.entry(key).or_insert(problem_id(self.t, &record.problem, &record.name)?)
            }
        };
        let device = match self.devices.get(&record.device) {
            Some(id) => *id,
            None => *self.devices.entry(record.device.clone()).or_insert(device_id(self.t, &record.device)?),
        };
        let sources = Sources {
            generator: &record.generator,
            timed_by: record.timed_by.as_deref(),
            verified_by: record.verified_by.as_deref(),
        };
        insert_trial(self.t, problem, device, sources, &record.trial)
    }
}

/// Reads one line. Two passes, because flattening and refusing unknown fields exclude each other.
fn parse(line: &str) -> Result<Record, String> {
    let mut value: serde_json::Value = serde_json::from_str(line).map_err(|e| format!("no JSON object: {e}"))?;
    let object = value.as_object_mut().ok_or("no JSON object")?;
    match object.remove("tilewright").map(|v| v.as_u64()) {
        Some(Some(v)) if (1..=u64::from(FORMAT)).contains(&v) => {}
        Some(Some(v)) => return Err(format!("format {v}, this tilewright reads formats up to {FORMAT}")),
        _ => return Err("no tilewright record: the field `tilewright` with the format's number is missing".into()),
    }
    let record: Record = serde_json::from_value(value).map_err(|e| e.to_string())?;
    ProblemKey::parse(&record.problem.text()).map_err(|e| format!("problem: {e}"))?;
    record.trial.check()?;
    Plan::parse(&record.trial.plan).map_err(|e| format!("plan {}: {e}", record.trial.plan))?;
    plausible(&record)?;
    if record.generator.trim().is_empty() {
        return Err("generator is empty".into());
    }
    Ok(record)
}

/// Microseconds that no device comes below (the launch alone takes longer), and that no search waits for.
const SHORTEST_US: f64 = 1e-3;
const LONGEST_US: f64 = 1e12;
/// Floating-point operations in a microsecond that no device reaches.
const FASTEST: f64 = 1e12;

/// Refuses times that nobody can have measured.
fn plausible(record: &Record) -> Result<(), String> {
    let Some(time_us) = record.trial.time_us else { return Ok(()) };
    let p = &record.problem;
    let flop = [p.g, p.m, p.n, p.k].iter().fold(2.0, |product, extent| product * *extent as f64);
    if !(SHORTEST_US..=LONGEST_US).contains(&time_us) || flop / time_us > FASTEST {
        return Err(format!("time_us {time_us:e} is not plausible for {flop:.1e} floating-point operations"));
    }
    Ok(())
}

/// The spaces of the problems whose plans are looked at, by name, architecture, workspace and whether sums must be repeatable.
#[derive(Default)]
struct Spaces(HashMap<(String, String, u64, bool), Option<Space>>);

impl Spaces {
    /// Refuses a plan that is said to have run although it is not legal. What another generator took as legal is its own affair, and so
    /// are problems whose name does not say what they are.
    fn check(&mut self, record: &Record) -> Result<(), String> {
        if record.trial.state != State::Ok || record.generator != GENERATOR {
            return Ok(());
        }
        let arch = record.device.fingerprint.split(';').next().unwrap_or_default().to_string();
        let (workspace, deterministic) = (record.problem.workspace_bytes, record.problem.deterministic);
        let of = (record.name.clone(), arch, workspace, deterministic);
        if !self.0.contains_key(&of) {
            bound(&mut self.0);
        }
        let space = self.0.entry(of).or_insert_with_key(|(name, arch, ..)| {
            let space = Space::new(&Problem::parse(name).ok()?, &Target::by_arch(arch)?).ok()?.with_atomics(!deterministic);
            (ProblemKey::of(&space) == record.problem).then_some(space)
        });
        let (Some(space), Ok(plan)) = (space, Plan::parse(&record.trial.plan)) else { return Ok(()) };
        match space.resolve(&plan) {
            Ok(_) => Ok(()),
            Err(refusal) => Err(format!("plan {plan} is not legal for {}: {refusal}", record.name)),
        }
    }
}
