//! Looks: whether a plan that no search verified was right when it was looked at before its first use ([`crate::look`]).
//!
//! A row holds for one problem (the alignment of its operands is part of the key), plan, device, driver and build. A thorough verification
//! of a search answers the same question, so `Records::look` asks the trials, too. A plan that failed stays failed for its build.

use super::State;

/// What a look at a plan found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The plan's text form.
    pub plan: String,
    /// [`State::Ok`] where the result was right; else how the plan failed.
    pub state: State,
    /// Why it failed.
    pub reason: Option<String>,
}

impl Look {
    /// True if the plan may be used.
    pub fn passed(&self) -> bool {
        self.state == State::Ok
    }
}

/// A look of the records, with what it was taken of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// The problem in the user's words.
    pub problem: String,
    /// The device's name.
    pub device: String,
    /// What was found.
    pub look: Look,
}

#[cfg(feature = "records")]
mod table {
    use super::super::rows::{CURRENT, device_id, problem_id, readable};
    use super::super::{DeviceKey, Filter, GENERATOR, MODEL, Records, RecordsError, TIMING, VERIFIER};
    use super::{Look, Looked};
    use crate::key::ProblemKey;
    use rusqlite::{OptionalExtension, Row, params};

    /// The build that a look holds for: the sources that make, compile, launch and verify a kernel.
    fn build() -> String {
        [GENERATOR, TIMING, VERIFIER].join(" ")
    }

    /// Reads the columns plan, state and reason.
    fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Look> {
        Ok(Look { plan: row.get(first)?, state: row.get(first + 1)?, reason: row.get(first + 2)? })
    }

    impl Records {
        /// Records what a look found. A look that passed does not replace one that failed.
        ///
        /// # Errors
        /// As [`Records::add`].
        pub fn add_look(&self, problem: &ProblemKey, name: &str, device: &DeviceKey, look: &Look) -> Result<(), RecordsError> {
            self.write(|t| {
                let (p, d) = (problem_id(t, problem, name)?, device_id(t, device)?);
                t.prepare_cached(
                    "INSERT INTO looks(problem, device, build, plan, state, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                     ON CONFLICT DO UPDATE SET state = excluded.state, reason = excluded.reason WHERE excluded.state <> 'ok'",
                )?
                .execute(params![p, d, build(), look.plan, look.state, look.reason])?;
                Ok(())
            })
        }

        /// What is known of a plan of a problem on a device and driver to this build. It is the last look, or the verdict of a
        /// search (found wrong, hung, or verified thoroughly). `None` where nobody looked.
        ///
        /// # Errors
        /// As [`Records::add`].
        pub fn look(&self, problem: &ProblemKey, device: &DeviceKey, plan: &str) -> Result<Option<Look>, RecordsError> {
            let looks = "SELECT plan, state, reason FROM looks WHERE problem = (SELECT id FROM problems WHERE key = ?1) \
                 AND device = (SELECT id FROM devices WHERE name = ?2 AND fingerprint = ?3) AND build = ?4 AND plan = ?5";
            let trials = format!(
                "SELECT t.plan, t.state, t.reason FROM trials t WHERE {CURRENT} AND t.plan_hash = hash(?8) AND t.plan = ?8 AND (t.state IN ('wrong', 'hung') \
                   OR (t.state = 'ok' AND t.verified = 2 AND t.verified_by = (SELECT id FROM sources WHERE text = ?7))) ORDER BY t.state = 'wrong' DESC, t.id DESC LIMIT 1"
            );
            let (key, DeviceKey { name, fingerprint }) = (problem.text(), device);
            self.read(|c| {
                let look = c
                    .prepare_cached(looks)?
                    .query_row(params![key, name, fingerprint, build(), plan], |r| read(r, 0))
                    .optional()?;
                if look.is_some() {
                    return Ok(look);
                }
                let values = params![key, name, fingerprint, GENERATOR, TIMING, MODEL, VERIFIER, plan];
                c.prepare_cached(&trials)?.query_row(values, |r| read(r, 0)).optional()
            })
        }

        /// The looks of this build, of the problems and devices that a filter names, ordered by problem and plan.
        ///
        /// # Errors
        /// As [`Records::add`].
        pub fn looks(&self, filter: &Filter) -> Result<Vec<Looked>, RecordsError> {
            let sql = "SELECT p.name, d.name, l.plan, l.state, l.reason FROM looks l JOIN problems p ON p.id = l.problem \
                 JOIN devices d ON d.id = l.device WHERE l.build = ?1 ORDER BY p.name, l.plan";
            let mut all: Vec<Looked> = self.read(|c| {
                let read = |r: &Row<'_>| Ok(Looked { problem: r.get(0)?, device: r.get(1)?, look: read(r, 2)? });
                c.prepare_cached(sql)?.query_map([build()], read)?.filter_map(readable).collect()
            })?;
            all.retain(|looked| filter.names(&looked.problem, &looked.device));
            Ok(all)
        }
    }
}
