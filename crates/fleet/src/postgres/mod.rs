//! Tasks on a PostgreSQL server. Only the server's clock counts, every call has a deadline, and no state of a session is used. So
//! a pool of connections in transaction mode may be in between.

mod address;
mod admin;
mod call;
mod sql;
mod tls;

pub use address::Address;
pub use admin::{PushTask, init, pull, pushable, status, withdraw};
pub use sql::{CLAIM, CLAIMED, SCHEMA_VERSION};

use crate::FleetError;
use crate::queue::{
    Counted, End, Identity, Lease, Left, Line, NewTask, OWN_FAILURES, Pulled, Queue, RunSpec, Shipped, list_name, other_cases,
    other_options, unique,
};
use call::{Caller, is_taken};
use std::time::{Duration, Instant};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

/// Bytes of a line that are accepted.
const LONGEST: usize = 16 << 10;
/// Bytes of a run's name that are accepted.
const NAME: usize = 200;
/// Tasks of one insertion.
const TASKS: usize = 2000;
/// Trials of earlier holders that a holder reads.
const READ: i64 = 2000;

/// A worker's way to the server.
pub struct Server {
    caller: Caller,
    identity: Identity,
    run: i64,
    lease: Duration,
    /// The name of a claim whose answer has not come.
    claim: Option<String>,
    /// Whose failures are counted.
    device: String,
    touched: Option<Instant>,
}

impl Server {
    /// A way to a server for a worker that has not joined a run. Nothing is asked yet.
    ///
    /// # Errors
    /// [`FleetError::Wrong`] for an address that cannot be used.
    pub fn new(address: &Address, identity: Identity) -> Result<Server, FleetError> {
        let name = format!("tilewright {} {}", identity.host, identity.gpu);
        Ok(Server {
            caller: Caller::new(address, &name)?,
            device: identity.gpu.clone(),
            identity,
            run: 0,
            lease: Duration::from_secs(60),
            claim: None,
            touched: None,
        })
    }

    /// Looks whether a run of this name takes these tasks, and writes nothing. True if the run is there.
    ///
    /// # Errors
    /// [`FleetError::Wrong`] for a run with other options or cases, or one that was withdrawn; others of [`FleetError`].
    pub fn check(&mut self, run: &RunSpec, tasks: &[NewTask]) -> Result<bool, FleetError> {
        if run.name.len() > NAME {
            let bytes = run.name.len();
            return Err(FleetError::Wrong(format!("--run: the name has {bytes} bytes; take one of at most {NAME}")));
        }
        admin::check_schema(&mut self.caller)?;
        let list = list_name(tasks);
        let rows = self.caller.query(
            "SELECT id, options::text, options = $2::text::jsonb, lease, withdrawn IS NOT NULL, \
             NOT EXISTS (SELECT FROM tw.list WHERE run = id) OR EXISTS (SELECT FROM tw.list l WHERE l.run = id AND l.name = $3) \
             FROM tw.run WHERE name = $1",
            &[(&run.name, Type::TEXT), (&run.options, Type::TEXT), (&list, Type::TEXT)],
        )?;
        let Some(row) = rows.first() else { return Ok(false) };
        if row.get::<_, bool>(4) {
            return Err(FleetError::Wrong(format!("--run {}: it was withdrawn; name another run", run.name)));
        }
        if !row.get::<_, bool>(2) {
            return Err(other_options(&run.name, row.get(1), &run.options));
        }
        if !row.get::<_, bool>(5) && !run.extend {
            return Err(other_cases(&run.name));
        }
        self.run = row.get(0);
        self.lease = Duration::try_from_secs_f64(row.get(3)).unwrap_or(run.lease);
        Ok(true)
    }

    /// How far a run is. A run that does not exist has no tasks.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn count(&mut self, run: &str) -> Result<Counted, FleetError> {
        let rows = self.caller.query(sql::COUNT, &[(&run, Type::TEXT)])?;
        let counted = rows.first().map(|row| Counted {
            left: Left { open: row.get(0), refused: 0, leased: row.get(1), done: row.get(2), failed: row.get(3) },
            share: row.get(4),
        });
        Ok(counted.unwrap_or_default())
    }

    /// Joins a run, which is made where there is none, and adds the tasks that it lacks for this worker's class.
    ///
    /// # Errors
    /// [`FleetError`]; with [`FleetError::Wrong`] and [`FleetError::Refused`] nothing was written.
    pub fn join(&mut self, run: &RunSpec, tasks: &[NewTask]) -> Result<(), FleetError> {
        if !self.check(run, tasks)? {
            let lease = run.lease.as_secs_f64();
            self.caller.execute(
                "INSERT INTO tw.run(name, options, lease) VALUES ($1, $2::text::jsonb, $3) ON CONFLICT DO NOTHING",
                &[(&run.name, Type::TEXT), (&run.options, Type::TEXT), (&lease, Type::FLOAT8)],
            )?;
            // Another process may have been first, with other options.
            self.check(run, tasks)?;
        }
        let list = list_name(tasks);
        self.caller.execute(
            "INSERT INTO tw.list(run, name) VALUES ($1, $2) ON CONFLICT DO NOTHING",
            &[(&self.run, Type::INT8), (&list, Type::TEXT)],
        )?;
        for some in tasks.chunks(TASKS) {
            let problems: Vec<&str> = some.iter().map(|task| task.problem.as_str()).collect();
            let work: Vec<f64> = some.iter().map(|task| task.work).collect();
            self.caller.execute(
                "INSERT INTO tw.task(run, class, problem, work) SELECT $1, $2, p, w FROM unnest($3::text[], $4::float8[]) AS u(p, w) \
                 ON CONFLICT DO NOTHING",
                &[
                    (&self.run, Type::INT8),
                    (&self.identity.class, Type::TEXT),
                    (&problems, Type::TEXT_ARRAY),
                    (&work, Type::FLOAT8_ARRAY),
                ],
            )?;
        }
        let me = &self.identity;
        self.caller.execute(
            "INSERT INTO tw.worker(id, host, gpu, lock, class, version, seen) VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp()) \
             ON CONFLICT DO NOTHING",
            &[
                (&me.id, Type::TEXT),
                (&me.host, Type::TEXT),
                (&me.gpu, Type::TEXT),
                (&me.lock, Type::TEXT),
                (&me.class, Type::TEXT),
                (&me.version, Type::TEXT),
            ],
        )?;
        Ok(())
    }

    /// Counts failures under this name of the device, where it differs from the GPU that must be this worker's alone.
    pub fn failures_count_for(&mut self, device: &str) {
        self.device = device.into();
    }

    /// True unless a worker that shares no lock file with this one was seen on the same GPU within two leases.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn gpu_is_free(&mut self) -> Result<bool, FleetError> {
        if self.identity.gpu.is_empty() {
            return Ok(true);
        }
        self.touch()?;
        let me = &self.identity;
        let twice = 2.0 * self.lease.as_secs_f64();
        let others = self.caller.number(
            "SELECT count(*) FROM tw.worker w JOIN tw.worker me ON me.id = $1 WHERE w.gpu = me.gpu AND w.id <> me.id AND w.ended IS NULL \
             AND w.lock <> me.lock AND w.seen > clock_timestamp() - $2 * interval '1 second' AND (w.started, w.id) < (me.started, me.id)",
            &[(&me.id, Type::TEXT), (&twice, Type::FLOAT8)],
        )?;
        Ok(others == 0)
    }

    /// Shows the server that workers are there, at most once a second.
    fn touch(&mut self) -> Result<(), FleetError> {
        if self.touched.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
            return Ok(());
        }
        let lease = self.lease.as_secs_f64();
        self.caller.execute(sql::TOUCH, &[(&lease, Type::FLOAT8), (&self.identity.id, Type::TEXT)])?;
        self.touched = Some(Instant::now());
        Ok(())
    }
}

fn leased(row: &Row) -> Lease {
    Lease { task: row.get(0), epoch: row.get(1), problem: row.get(2), lapses: row.get(3), spent: row.get(4) }
}

/// A row of the table of trials: name, problem, line or null, bytes.
fn pulled(row: &Row) -> Pulled {
    let (journal, seq, bytes): (&str, i64, i32) = (row.get(0), row.get(1), row.get(4));
    let line: Option<String> = row.get(3);
    Pulled {
        name: format!("trial {seq} of journal {}", crate::printable(journal, 80)),
        problem: row.get(2),
        line: line.ok_or_else(|| format!("it has {bytes} bytes, at most {LONGEST} are read")),
    }
}

impl Queue for Server {
    fn lease_time(&self) -> Duration {
        self.lease
    }

    fn generation(&self) -> u64 {
        self.caller.connections()
    }

    fn tick(&mut self) {
        self.caller.drop_idle();
    }

    fn claim(&mut self) -> Result<Option<Lease>, FleetError> {
        self.touch()?;
        let again = self.claim.is_some();
        let name = self.claim.get_or_insert_with(unique).clone();
        let lease = self.lease.as_secs_f64();
        if again {
            let rows = self.caller.query(sql::CLAIMED, &[(&name, Type::TEXT), (&lease, Type::FLOAT8)])?;
            if let Some(row) = rows.first() {
                self.claim = None;
                return Ok(Some(leased(row)));
            }
        }
        let me = &self.identity;
        let rows = self.caller.query(
            CLAIM,
            &[
                (&self.run, Type::INT8),
                (&me.class, Type::TEXT),
                (&me.id, Type::TEXT),
                (&lease, Type::FLOAT8),
                (&name, Type::TEXT),
                (&self.device, Type::TEXT),
                (&OWN_FAILURES, Type::INT8),
            ],
        );
        let rows = match rows {
            // The first statement of this name was late, and has a task by now.
            Err(e) if is_taken(&e) => return self.caller.away("the answer to a claim was lost"),
            other => other?,
        };
        self.claim = None;
        Ok(rows.first().map(leased))
    }

    fn renew(&mut self, lease: &Lease, spent: f64) -> Result<bool, FleetError> {
        self.touch()?;
        let seconds = self.lease.as_secs_f64();
        let rows = self.caller.execute(
            sql::RENEW,
            &[
                (&lease.task, Type::INT8),
                (&lease.epoch, Type::INT8),
                (&seconds, Type::FLOAT8),
                (&spent, Type::FLOAT8),
                (&self.identity.id, Type::TEXT),
            ],
        )?;
        Ok(rows == 1)
    }

    fn end(&mut self, lease: &Lease, end: &End) -> Result<bool, FleetError> {
        if lease.lapses > 0 {
            // Nothing was running when this holder gave the task back.
            self.mark(lease, "")?;
        }
        let task: call::Value<'_> = (&lease.task, Type::INT8);
        let epoch: call::Value<'_> = (&lease.epoch, Type::INT8);
        let me: call::Value<'_> = (&self.identity.id, Type::TEXT);
        let rows = match end {
            End::Done { best_us, best_plan, first_us } => self.caller.execute(
                sql::DONE,
                &[task, epoch, (best_us, Type::FLOAT8), (best_plan, Type::TEXT), (first_us, Type::FLOAT8), me],
            ),
            End::Open { spent } => self.caller.execute(sql::OPEN, &[task, epoch, (spent, Type::FLOAT8), me]),
            End::Failed { reason } => {
                let reason: String = reason.chars().take(2000).collect();
                self.caller.execute(sql::FAIL, &[task, epoch, (&reason, Type::TEXT), (&self.device, Type::TEXT), me])
            }
        }?;
        Ok(rows == 1)
    }

    fn number_by(&mut self, journal: &str) {
        self.identity.journal = journal.into();
    }

    fn ship(&mut self, lease: &Lease, lines: &[Line]) -> Result<(), FleetError> {
        let (lines, long): (Vec<&Line>, Vec<&Line>) = lines.iter().partition(|line| line.text.len() <= LONGEST);
        for line in long {
            let (number, bytes) = (line.number, line.text.len());
            tracing::warn!("trial {number} stays on this host: it has {bytes} bytes, at most {LONGEST} are sent");
        }
        let numbers: Vec<i64> = lines.iter().map(|line| line.number).collect();
        let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        self.caller
            .execute(
                sql::SHIP,
                &[
                    (&self.identity.journal, Type::TEXT),
                    (&numbers, Type::INT8_ARRAY),
                    (&lease.task, Type::INT8),
                    (&lease.epoch, Type::INT8),
                    (&texts, Type::TEXT_ARRAY),
                ],
            )
            .map(drop)
    }

    fn lacking(&mut self, held: &[Shipped]) -> Result<Vec<Lease>, FleetError> {
        let tasks: Vec<i64> = held.iter().map(|shipped| shipped.lease.task).collect();
        let counts: Vec<i64> = held.iter().map(|shipped| i64::try_from(shipped.rows).unwrap_or(i64::MAX)).collect();
        let values: [call::Value<'_>; 3] =
            [(&tasks, Type::INT8_ARRAY), (&counts, Type::INT8_ARRAY), (&self.identity.journal, Type::TEXT)];
        let rows = self.caller.query(sql::LACKING, &values)?;
        let place = |row: &Row| usize::try_from(row.get::<_, i64>(0) - 1).ok();
        Ok(rows.iter().filter_map(|row| held.get(place(row)?)).map(|shipped| shipped.lease.clone()).collect())
    }

    fn trials(&mut self, lease: &Lease) -> Result<Vec<Pulled>, FleetError> {
        let rows = self.caller.query(
            sql::TRIALS,
            &[
                (&lease.task, Type::INT8),
                (&self.identity.journal, Type::TEXT),
                (&(LONGEST as i32), Type::INT4),
                (&READ, Type::INT8),
            ],
        )?;
        Ok(rows.iter().map(pulled).collect())
    }

    fn mark(&mut self, lease: &Lease, plan: &str) -> Result<(), FleetError> {
        let statement = "INSERT INTO tw.mark(task, epoch, plan) VALUES ($1, $2, $3)";
        let values: [call::Value<'_>; 3] = [(&lease.task, Type::INT8), (&lease.epoch, Type::INT8), (&plan, Type::TEXT)];
        self.caller.execute(statement, &values).map(drop)
    }

    fn hung(&mut self, lease: &Lease) -> Result<Vec<String>, FleetError> {
        let rows = self.caller.query(sql::HUNG, &[(&lease.task, Type::INT8), (&lease.epoch, Type::INT8)])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn left(&mut self) -> Result<Left, FleetError> {
        let me = &self.identity;
        let values: [call::Value<'_>; 4] =
            [(&self.run, Type::INT8), (&me.class, Type::TEXT), (&self.device, Type::TEXT), (&OWN_FAILURES, Type::INT8)];
        let rows = self.caller.query(sql::LEFT, &values)?;
        let number = |column: usize| rows.first().map_or(0, |row| row.get(column));
        Ok(Left { open: number(0), refused: number(1), leased: number(2), done: number(3), failed: number(4) })
    }

    fn leave(&mut self, how: &str) {
        let statement = "UPDATE tw.worker SET ended = clock_timestamp(), how = $2 WHERE id = $1";
        if let Err(e) = self.caller.execute(statement, &[(&self.identity.id, Type::TEXT), (&how, Type::TEXT)]) {
            tracing::info!("the server does not know that this worker leaves: {e}");
        }
    }
}
