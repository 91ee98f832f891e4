//! Records as a journal: the rows of this machine's own trials, numbered, so that they can be sent elsewhere once and in order.

use super::listing::{NUMBER, read_record, rows_of};
use super::{DeviceKey, Records, RecordsError};
use crate::key::ProblemKey;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use tilewright_check::verify::Depth;

/// Made with the file's other tables where they are missing: older versions ignore them.
pub(super) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS journal(id TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS imported(first INTEGER NOT NULL, last INTEGER NOT NULL) STRICT;
";

/// Depths of verification that one row may pass through; each has a number of its own.
const DEPTHS: i64 = 4;
/// Characters of a reason that are sent: compilers say more.
const REASON: usize = 2000;

/// A problem and the words for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// What is computed.
    pub key: ProblemKey,
    /// The problem's text.
    pub name: String,
}

/// A row as the journal numbers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Grows with every row. A row that was verified more deeply since has another number.
    pub number: i64,
    /// How deeply the trial was verified.
    pub verified: Option<Depth>,
    /// The row as [`Records::import`] reads it.
    pub line: String,
}

/// What hears of each plan before it runs.
#[derive(Clone)]
pub struct Witness(pub Arc<dyn Fn(&str) + Send + Sync>);

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Witness")
    }
}

/// Notes that the rows above this one came from elsewhere; within the transaction that added them.
pub(super) fn note_imported(c: &Connection, above: i64) -> rusqlite::Result<()> {
    let last = last_row(c)?;
    if last > above {
        c.execute("INSERT INTO imported(first, last) VALUES (?1, ?2)", params![above + 1, last])?;
    }
    Ok(())
}

pub(super) fn last_row(c: &Connection) -> rusqlite::Result<i64> {
    c.query_row("SELECT coalesce(max(id), 0) FROM trials", [], |r| r.get(0))
}

/// After rows were removed their numbers may be given again: the journal takes another name.
pub(super) fn renew(c: &Connection) -> rusqlite::Result<()> {
    let last = last_row(c)?;
    c.execute("DELETE FROM journal", [])?;
    c.execute("DELETE FROM imported WHERE first > ?1", [last])?;
    c.execute("UPDATE imported SET last = min(last, ?1)", [last])?;
    Ok(())
}

fn read_device(row: &rusqlite::Row<'_>) -> rusqlite::Result<DeviceKey> {
    Ok(DeviceKey { name: row.get(0)?, fingerprint: row.get(1)? })
}

impl Records {
    /// Names this file as a journal: no other file has the name, and no number stands for two rows under it.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn journal(&self) -> Result<String, RecordsError> {
        let find = |c: &Connection| c.query_row("SELECT id FROM journal", [], |r| r.get(0)).optional();
        // Workers ask often: a name that is there is read without a transaction that others wait for.
        if let Some(known) = self.read(find)? {
            return Ok(known);
        }
        self.write(|t| {
            if let Some(known) = find(t)? {
                return Ok(known);
            }
            let id = format!("{:016x}", rand::random::<u64>());
            t.execute("INSERT INTO journal(id) VALUES (?1)", [&id])?;
            Ok(id)
        })
    }

    /// This machine's own trials of a problem with numbers above this one, lowest first. Lines give the problem this name: another that
    /// has the same key may have been recorded first.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn own(
        &self,
        of: &Named,
        device: &DeviceKey,
        generator: &str,
        above: i64,
        most: usize,
    ) -> Result<Vec<Entry>, RecordsError> {
        let sql = format!(
            "{} WHERE p.key = ?1 AND d.name = ?2 AND d.fingerprint = ?3 AND t.generator = (SELECT id FROM sources WHERE text = ?4) \
             AND t.id > ?5 AND NOT EXISTS (SELECT 1 FROM imported i WHERE t.id BETWEEN i.first AND i.last) ORDER BY t.id LIMIT ?6",
            rows_of()
        );
        let key = of.key.text();
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.read(|c| {
            let mut statement = c.prepare_cached(&sql)?;
            let values = params![key, device.name, device.fingerprint, generator, above / DEPTHS, most];
            let mut rows = statement.query(values)?;
            let mut entries = Vec::new();
            while let Some(row) = rows.next()? {
                let id: i64 = row.get(NUMBER)?;
                let key = ProblemKey::parse(&row.get::<_, String>(0)?);
                // A row that this build cannot read stays where it is.
                let Ok(mut record) = read_record(row, &key) else { continue };
                record.trial.reason = record.trial.reason.map(|reason| reason.chars().take(REASON).collect());
                record.name.clone_from(&of.name);
                let verified = record.trial.verified;
                let depth = super::rows::depth_number(verified);
                entries.push(Entry { number: id * DEPTHS + depth, verified, line: record.line() });
            }
            Ok(entries)
        })
    }

    /// All recorded devices.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn devices(&self) -> Result<Vec<DeviceKey>, RecordsError> {
        self.read(|c| c.prepare("SELECT name, fingerprint FROM devices ORDER BY id")?.query_map([], read_device)?.collect())
    }

    /// Devices with times that were measured and right, in the order in which they were recorded first.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn measured_devices(&self) -> Result<Vec<DeviceKey>, RecordsError> {
        let sql = "SELECT name, fingerprint FROM devices d WHERE EXISTS (SELECT 1 FROM trials t WHERE t.device = d.id \
             AND t.state = 'ok' AND t.verified > 0 AND t.time_kind = 'measured') ORDER BY id";
        self.read(|c| c.prepare(sql)?.query_map([], read_device)?.collect())
    }

    /// The drivers and compilers that each device was used with last, by the names of the devices.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn last_fingerprints(&self) -> Result<HashMap<String, String>, RecordsError> {
        // Later rows replace earlier ones.
        let sql =
            "SELECT d.name, d.fingerprint FROM trials t JOIN devices d ON d.id = t.device GROUP BY t.device ORDER BY max(t.at)";
        let last = |device: DeviceKey| (device.name, device.fingerprint);
        self.read(|c| c.prepare(sql)?.query_map([], |r| read_device(r).map(last))?.collect())
    }

    /// All recorded problems that this build can read.
    ///
    /// # Errors
    /// As [`Records::add`].
    pub fn problems(&self) -> Result<Vec<Named>, RecordsError> {
        self.read(|c| {
            let mut statement = c.prepare("SELECT key, name FROM problems ORDER BY id")?;
            let mut rows = statement.query([])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let name = row.get(1)?;
                found.extend(ProblemKey::parse(&row.get::<_, String>(0)?).ok().map(|key| Named { key, name }));
            }
            Ok(found)
        })
    }

    /// Lets a witness hear of each plan before it runs, or nobody.
    pub fn set_witness(&self, witness: Option<Witness>) {
        *self.witness.lock().unwrap_or_else(PoisonError::into_inner) = witness;
    }

    /// Tells the witness.
    pub(super) fn tell(&self, plan: &str) {
        let witness = self.witness.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(Witness(hear)) = witness {
            hear(plan);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{GENERATOR, State, TimeKind, Trial};
    use super::*;
    use crate::key::tests::gemm;
    use tilewright_gen::plan::Plan;
    use tilewright_ir::Scalar;

    #[test]
    fn own_rows_are_numbered_and_those_of_others_left_out() {
        let (here, there) = (Records::in_memory().unwrap(), Records::in_memory().unwrap());
        let (problem, device) = (gemm(64, 64, 64, Scalar::F32), DeviceKey { name: "GPU".into(), fingerprint: "1".into() });
        let p = Named { key: problem.clone(), name: "p".into() };
        let add = |records: &Records, plan: &str, at| {
            let trial = Trial { at, ..Trial::timed(plan, 5.0, TimeKind::Measured) };
            records.add(&problem, "p", &device, GENERATOR, &trial).unwrap();
        };
        let plans = |records: &Records, above| {
            let own = records.own(&p, &device, GENERATOR, above, 9).unwrap();
            own.iter()
                .map(|e| serde_json::from_str::<serde_json::Value>(&e.line).unwrap()["trial"]["plan"].clone())
                .collect::<Vec<_>>()
        };
        add(&here, "A_MIC1__B_MIC1__C_UNR8", 1);
        let hung = Trial { at: 2, ..Trial::unmeasured(&Plan::default().to_string(), State::Hung, &"x".repeat(9000)) };
        there.add(&problem, "p", &device, GENERATOR, &hung).unwrap();
        assert!(there.own(&p, &device, GENERATOR, 0, 9).unwrap()[0].line.len() < 4000);
        let merged = here.merge(&there).unwrap();
        assert_eq!(merged.added, 1, "{:?}", merged.skipped);
        add(&here, "A_MIC4__B_MIC1__C_UNR8", 3);
        assert_eq!(plans(&here, 0), ["A_MIC1__B_MIC1__C_UNR8", "A_MIC4__B_MIC1__C_UNR8"]);
        let own = here.own(&p, &device, GENERATOR, 0, 9).unwrap();
        assert_eq!(plans(&here, own[0].number), ["A_MIC4__B_MIC1__C_UNR8"]);
        // Looked at more deeply, the row has a higher number.
        let deeper = Trial { verified: Some(Depth::Thorough), ..Trial::timed("A_MIC4__B_MIC1__C_UNR8", 5.0, TimeKind::Measured) };
        here.record_depth(&problem, "p", &device, GENERATOR, &deeper).unwrap();
        let now = here.own(&p, &device, GENERATOR, 0, 9).unwrap();
        assert!(now[1].number > own[1].number && now[1].verified == Some(Depth::Thorough));
        assert_eq!(here.problems().unwrap(), std::slice::from_ref(&p));
        // Numbers may be given again after rows were removed: under another name.
        let name = here.journal().unwrap();
        assert_eq!(here.journal().unwrap(), name);
        here.remove(&super::super::Filter::default()).unwrap();
        assert_ne!(here.journal().unwrap(), name);
        add(&here, "A_MIC2__B_MIC1__C_UNR8", 4);
        assert_eq!(plans(&here, 0).len(), 1);
    }
}
