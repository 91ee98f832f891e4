//! The schema and the statements that fence a task.

/// Version of the schema below.
pub const SCHEMA_VERSION: i32 = 1;

/// Tables, indexes and the view.
pub(super) const SCHEMA: &str = "
CREATE SCHEMA tw;
CREATE TABLE tw.schema(version int NOT NULL);
INSERT INTO tw.schema VALUES (1);
CREATE TABLE tw.alive(one boolean PRIMARY KEY DEFAULT true CHECK (one), seen timestamptz NOT NULL, since timestamptz NOT NULL);
INSERT INTO tw.alive(seen, since) VALUES (clock_timestamp(), '-infinity');
CREATE TABLE tw.run(
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text UNIQUE NOT NULL CHECK (octet_length(name) <= 200),
  options jsonb NOT NULL, lease float8 NOT NULL CHECK (lease BETWEEN 0.5 AND 86400), created timestamptz NOT NULL DEFAULT now(),
  withdrawn timestamptz);
CREATE TABLE tw.list(run bigint NOT NULL REFERENCES tw.run, name text NOT NULL, PRIMARY KEY (run, name));
CREATE TABLE tw.task(
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run bigint NOT NULL REFERENCES tw.run, class text NOT NULL,
  problem text NOT NULL CHECK (octet_length(problem) <= 4096), work float8 NOT NULL,
  state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'leased', 'done', 'failed', 'withdrawn')),
  epoch bigint NOT NULL DEFAULT 0, holder text, claim text, until timestamptz, begun timestamptz, ended timestamptz,
  lapses bigint NOT NULL DEFAULT 0, failed_by text[] NOT NULL DEFAULT '{}', spent float8 NOT NULL DEFAULT 0,
  first_us float8, best_us float8, best_plan text CHECK (octet_length(best_plan) <= 4096),
  reason text CHECK (octet_length(reason) <= 8192),
  UNIQUE (run, class, problem), CHECK ((state = 'leased') = (holder IS NOT NULL AND until IS NOT NULL))) WITH (fillfactor = 50);
CREATE INDEX task_todo ON tw.task(run, class, work DESC, id) WHERE state IN ('open', 'leased');
CREATE UNIQUE INDEX task_claim ON tw.task(claim) WHERE state = 'leased';
CREATE TABLE tw.worker(
  id text PRIMARY KEY, host text, gpu text, lock text, class text, version text, started timestamptz NOT NULL DEFAULT clock_timestamp(),
  seen timestamptz, ended timestamptz, how text, CHECK (octet_length(concat(id, host, gpu, lock, class, version, how)) <= 8192));
CREATE INDEX worker_gpu ON tw.worker(gpu) WHERE ended IS NULL;
CREATE TABLE tw.trial(
  journal text NOT NULL, seq bigint NOT NULL, task bigint NOT NULL REFERENCES tw.task, epoch bigint NOT NULL,
  line text NOT NULL, received timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (journal, seq), CONSTRAINT short CHECK (octet_length(line) <= 16384));
CREATE INDEX trial_task ON tw.trial(task);
CREATE INDEX trial_received ON tw.trial USING brin(received) WITH (pages_per_range = 16);
CREATE TABLE tw.mark(
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, task bigint NOT NULL, epoch bigint NOT NULL,
  plan text NOT NULL CHECK (octet_length(plan) <= 4096));
CREATE INDEX mark_task ON tw.mark(task, epoch, id);
CREATE VIEW tw.progress AS
  SELECT r.name AS run, t.class, t.open, t.leased, t.done, t.failed, t.withdrawn, coalesce(m.trials, 0) AS trials_per_minute,
    t.oldest_lease, (t.open + t.leased * 0.5) * t.each / greatest(t.leased, 1) AS seconds_left, t.gain
  FROM (SELECT run, class, count(*) FILTER (WHERE state = 'open') AS open, count(*) FILTER (WHERE state = 'leased') AS leased,
      count(*) FILTER (WHERE state = 'done') AS done, count(*) FILTER (WHERE state = 'failed') AS failed,
      count(*) FILTER (WHERE state = 'withdrawn') AS withdrawn,
      max(extract(epoch FROM clock_timestamp() - begun)) FILTER (WHERE state = 'leased')::float8 AS oldest_lease,
      avg(extract(epoch FROM ended - begun)) FILTER (WHERE state = 'done')::float8 AS each,
      avg(first_us / best_us) FILTER (WHERE state = 'done' AND best_us > 0) AS gain
    FROM tw.task GROUP BY run, class) t
  JOIN tw.run r ON r.id = t.run
  LEFT JOIN (SELECT k.run, k.class, count(*) AS trials FROM tw.trial x JOIN tw.task k ON k.id = x.task
    WHERE x.received > clock_timestamp() - interval '1 minute' GROUP BY k.run, k.class) m ON m.run = t.run AND m.class = t.class;
";

/// Rights of the worker role, whose name stands for `{role}`. Settings of the role, not of a session: a pool may share sessions.
pub(super) const RIGHTS: &str = "
GRANT USAGE ON SCHEMA tw TO {role};
GRANT SELECT ON ALL TABLES IN SCHEMA tw TO {role};
GRANT INSERT ON tw.run, tw.list, tw.task, tw.worker, tw.trial, tw.mark TO {role};
GRANT UPDATE (state, epoch, holder, claim, until, begun, ended, lapses, failed_by, spent, first_us, best_us, best_plan, reason)
  ON tw.task TO {role};
GRANT UPDATE (seen, ended, how) ON tw.worker TO {role};
GRANT UPDATE (seen, since) ON tw.alive TO {role};
ALTER ROLE {role} SET statement_timeout = '10s';
ALTER ROLE {role} SET lock_timeout = '5s';
ALTER ROLE {role} SET idle_in_transaction_session_timeout = '10s';
";

/// Shows that workers reach the server, at most once a second. After a gap longer than half a lease and that second all leases
/// hold one lease time more. In such a gap the server was down, a replica took over, or the server's clock was set. A lease that
/// is renewed has three quarters of its time left, so from 4 s on the gap is noted before one ends.
pub(super) const TOUCH: &str = "
WITH me AS (UPDATE tw.worker SET seen = clock_timestamp() WHERE id = $2 AND seen < clock_timestamp() - interval '1 second')
UPDATE tw.alive SET seen = clock_timestamp(),
  since = CASE WHEN seen BETWEEN clock_timestamp() - ($1 / 2 + 1) * interval '1 second' AND clock_timestamp() + interval '1 second'
    THEN since ELSE clock_timestamp() END
WHERE seen NOT BETWEEN clock_timestamp() - interval '1 second' AND clock_timestamp() + interval '1 second'";

/// The task of a claim whose answer was lost.
pub const CLAIMED: &str = "
UPDATE tw.task SET until = clock_timestamp() + $2 * interval '1 second' WHERE claim = $1 AND state = 'leased'
RETURNING id, epoch, problem, lapses, spent";

/// Leases the heaviest task that is free. It walks one index in order of work. A lease that ends later than any could was given
/// before the clock went back. While a gap is not noted yet, nothing lapses. Nothing lapses in the first lease time after the
/// start of the server's first process, either. A worker may have missed every moment in which a server that restarts often was
/// up. Of a promoted replica, and of a server that mends a crash of one connection, that start is old: the gap alone protects
/// there.
pub const CLAIM: &str = "
WITH c AS (
  SELECT id FROM tw.task WHERE run = $1 AND class = $2 AND state IN ('open', 'leased')
    AND (state = 'open' OR (until NOT BETWEEN clock_timestamp() AND clock_timestamp() + 2 * $4 * interval '1 second'
      AND (SELECT since < clock_timestamp() - $4 * interval '1 second' AND seen BETWEEN
        clock_timestamp() - ($4 / 2 + 1) * interval '1 second' AND clock_timestamp() + interval '1 second'
        AND pg_postmaster_start_time() NOT BETWEEN clock_timestamp() - $4 * interval '1 second' AND clock_timestamp() FROM tw.alive)))
    AND coalesce(cardinality(array_positions(failed_by, $6)), 0) < $7
  ORDER BY work DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED)
UPDATE tw.task t SET state = 'leased', holder = $3, claim = $5, epoch = t.epoch + 1, lapses = t.lapses + (t.state = 'leased')::int,
  begun = clock_timestamp(), until = clock_timestamp() + $4 * interval '1 second'
FROM c WHERE t.id = c.id RETURNING t.id, t.epoch, t.problem, t.lapses, t.spent";

/// This statement and those that end a lease ask for the holder, too: a server that came back from an older copy gives epochs twice.
pub(super) const RENEW: &str = "
UPDATE tw.task SET until = clock_timestamp() + $3 * interval '1 second', spent = $4
WHERE id = $1 AND epoch = $2 AND state = 'leased' AND holder = $5";

pub(super) const DONE: &str = "
UPDATE tw.task SET state = 'done', holder = NULL, until = NULL, ended = clock_timestamp(), best_us = $3, best_plan = $4, first_us = $5
WHERE id = $1 AND epoch = $2 AND state = 'leased' AND holder = $6";

pub(super) const OPEN: &str = "
UPDATE tw.task SET state = 'open', holder = NULL, until = NULL, spent = $3
WHERE id = $1 AND epoch = $2 AND state = 'leased' AND holder = $4";

/// Three failures give a task up, if two GPUs had them: one that fails everything fails no task.
pub(super) const FAIL: &str = "
UPDATE tw.task SET holder = NULL, until = NULL, ended = clock_timestamp(), reason = $3, failed_by = failed_by || $4,
  state = CASE WHEN cardinality(failed_by) >= 2 AND cardinality(failed_by) > coalesce(cardinality(array_positions(failed_by, $4)), 0)
    THEN 'failed' ELSE 'open' END
WHERE id = $1 AND epoch = $2 AND state = 'leased' AND holder = $5";

/// Tasks of all classes by state, and the share of the work that is done.
pub(super) const COUNT: &str = "
SELECT count(*) FILTER (WHERE t.state = 'open'), count(*) FILTER (WHERE t.state = 'leased'), count(*) FILTER (WHERE t.state = 'done'),
  count(*) FILTER (WHERE t.state = 'failed'), coalesce(sum(t.work) FILTER (WHERE t.state = 'done') / nullif(sum(t.work), 0), 0)
FROM tw.task t JOIN tw.run r ON r.id = t.run WHERE r.name = $1";

/// Never fenced: trials are facts.
pub(super) const SHIP: &str = "
INSERT INTO tw.trial(journal, seq, task, epoch, line) SELECT $1, s, $3, $4, l FROM unnest($2::bigint[], $5::text[]) AS u(s, l)
ON CONFLICT DO NOTHING";

/// Places in a list of tasks that have fewer trials of a journal than they should.
pub(super) const LACKING: &str = "
SELECT u.n FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS u(task, rows, n)
WHERE (SELECT count(*) FROM tw.trial x WHERE x.task = u.task AND x.journal = $3) < u.rows AND EXISTS (SELECT FROM tw.task k WHERE k.id = u.task)";

pub(super) const TRIALS: &str = "
SELECT x.journal, x.seq, k.problem, CASE WHEN octet_length(x.line) <= $3 THEN x.line END, octet_length(x.line)
FROM tw.trial x JOIN tw.task k ON k.id = x.task WHERE x.task = $1 AND x.journal <> $2 ORDER BY x.received DESC LIMIT $4";

/// Plans that two holders were running when they vanished: the last mark of each.
pub(super) const HUNG: &str = "
SELECT plan FROM (SELECT DISTINCT ON (epoch) epoch, plan FROM tw.mark WHERE task = $1 AND epoch < $2 ORDER BY epoch, id DESC) m
WHERE plan <> '' GROUP BY plan HAVING count(*) > 1";

pub(super) const LEFT: &str = "
SELECT count(*) FILTER (WHERE state = 'open' AND own < $4), count(*) FILTER (WHERE state = 'open' AND own >= $4),
  count(*) FILTER (WHERE state = 'leased'), count(*) FILTER (WHERE state = 'done'), count(*) FILTER (WHERE state = 'failed')
FROM (SELECT state, coalesce(cardinality(array_positions(failed_by, $3)), 0) AS own FROM tw.task WHERE run = $1 AND class = $2) t";
