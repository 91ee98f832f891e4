-- The tables as a tilewright of schema 4 made them.
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
CREATE TABLE trials(
  id INTEGER PRIMARY KEY,
  problem INTEGER NOT NULL REFERENCES problems(id),
  device INTEGER NOT NULL REFERENCES devices(id),
  generator TEXT NOT NULL,
  plan TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('ok', 'refused', 'failed', 'wrong', 'hung')),
  time_us REAL,
  time_kind TEXT CHECK (time_kind IN ('measured', 'modelled')),
  verified INTEGER NOT NULL,
  max_error REAL,
  reason TEXT,
  at INTEGER NOT NULL,
  timed_by TEXT,
  verified_by TEXT,
  CHECK ((time_us IS NULL) = (time_kind IS NULL)),
  CHECK ((state = 'ok') = (time_us IS NOT NULL)),
  UNIQUE(problem, device, generator, plan, at)
) STRICT;
CREATE TABLE inflight(
  problem INTEGER NOT NULL REFERENCES problems(id),
  device INTEGER NOT NULL REFERENCES devices(id),
  generator TEXT NOT NULL,
  plan TEXT NOT NULL,
  owner TEXT,
  deaths INTEGER NOT NULL,
  PRIMARY KEY(problem, device, generator, plan)
) STRICT;
CREATE TABLE looks(
  problem INTEGER NOT NULL REFERENCES problems(id),
  device INTEGER NOT NULL REFERENCES devices(id),
  build TEXT NOT NULL,
  plan TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('ok', 'refused', 'failed', 'wrong', 'hung')),
  reason TEXT,
  PRIMARY KEY(problem, device, build, plan)
) STRICT;
CREATE INDEX verified ON trials(problem, device, generator, time_kind, time_us) WHERE verified > 0;
PRAGMA application_id = 0x74777263;
PRAGMA user_version = 4;
