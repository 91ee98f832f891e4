//! The tables of a file, and the version that names them.

use rusqlite::Connection;

/// Version of the tables (bytes 60..64 of a file's header).
///
/// Version 1 knew of `verified` only 0 and 1, and wrote 1 after a quick look; 2 stands for a thorough one since version 2.
/// Version 3 added by whom a trial was timed and verified, and marks whose owner is known by more than a process id.
/// Version 4 added looks. Version 5 made the texts of sources numbers, and indexes plans by a hash.
pub(super) const VERSION: u32 = 5;

/// Problems and devices.
pub(super) const TABLES: &str = "
CREATE TABLE problems(
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL
) STRICT;
CREATE TABLE devices(
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  fingerprint TEXT NOT NULL,
  UNIQUE(name, fingerprint)
) STRICT;
";

/// Every trial. `generator`, `timed_by` and `verified_by` are sources; `plan_hash` is `hash(plan)`, SQL's name of `rows::hash`.
pub(super) const TRIALS: &str = "
CREATE TABLE sources(
  id INTEGER PRIMARY KEY,
  text TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE trials(
  id INTEGER PRIMARY KEY,
  problem INTEGER NOT NULL REFERENCES problems(id),
  device INTEGER NOT NULL REFERENCES devices(id),
  generator INTEGER NOT NULL REFERENCES sources(id),
  plan TEXT NOT NULL,
  plan_hash INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('ok', 'refused', 'failed', 'wrong', 'hung')),
  time_us REAL,
  time_kind TEXT CHECK (time_kind IN ('measured', 'modelled')),
  verified INTEGER NOT NULL,
  max_error REAL,
  reason TEXT,
  at INTEGER NOT NULL,
  timed_by INTEGER REFERENCES sources(id),
  verified_by INTEGER REFERENCES sources(id),
  CHECK ((time_us IS NULL) = (time_kind IS NULL)),
  CHECK ((state = 'ok') = (time_us IS NOT NULL))
) STRICT;
";

/// Finds the rows of a plan of a problem. A plan's text would make it as large as the table.
pub(super) const TRIALS_INDEX: &str = "CREATE UNIQUE INDEX trials_of_plan ON trials(problem, device, generator, plan_hash, at)";

/// Plans that run: by whom (nobody any more where that is null), and how often a process crashed or the machine went down meanwhile.
pub(super) const MARKS: &str = "
CREATE TABLE inflight(
  problem INTEGER NOT NULL REFERENCES problems(id),
  device INTEGER NOT NULL REFERENCES devices(id),
  generator TEXT NOT NULL,
  plan TEXT NOT NULL,
  owner TEXT,
  deaths INTEGER NOT NULL,
  PRIMARY KEY(problem, device, generator, plan)
) STRICT;
";

/// What was found when plans were looked at before their first use, by the build that looked.
pub(super) const LOOKS: &str = "
CREATE TABLE looks(
  problem INTEGER NOT NULL REFERENCES problems(id),
  device INTEGER NOT NULL REFERENCES devices(id),
  build TEXT NOT NULL,
  plan TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('ok', 'refused', 'failed', 'wrong', 'hung')),
  reason TEXT,
  PRIMARY KEY(problem, device, build, plan)
) STRICT;
";

/// Makes what a search asks for at its start independent of the number of trials: few of them are verified.
pub(super) const INDEX: &str =
    "CREATE INDEX IF NOT EXISTS verified ON trials(problem, device, generator, time_kind, time_us) WHERE verified > 0";

/// The version of a file.
pub(super) fn version(c: &Connection) -> rusqlite::Result<u32> {
    c.query_row("PRAGMA user_version", [], |r| r.get(0))
}
