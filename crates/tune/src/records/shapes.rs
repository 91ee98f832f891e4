//! The nearest recorded problems, found by an index: problems are ordered by a size that differs by no more than their distance.

use super::{DeviceKey, Near};
use crate::key::{ProblemKey, Shape, distance};
use rusqlite::{Connection, params};

/// A row for each problem. An older file gets them when it is migrated; one that is only read gets them in memory.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS shapes(
  problem INTEGER PRIMARY KEY,
  family TEXT NOT NULL,
  size REAL NOT NULL,
  k REAL NOT NULL,
  m REAL NOT NULL,
  n REAL NOT NULL,
  g REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS shapes_size ON shapes(family, size, k, m, n, g, problem);";

/// Problems of a family from a size on, upwards and downwards.
pub(super) const UP: &str = "SELECT problem, k, m, n, g, size FROM shapes WHERE family = ?1 AND size >= ?2 ORDER BY size";
pub(super) const DOWN: &str = "SELECT problem, k, m, n, g, size FROM shapes WHERE family = ?1 AND size < ?2 ORDER BY size DESC";

/// The best plans of a problem, one per device, generator and kind of time.
pub(super) const PLANS: &str = "SELECT p.key, p.name, d.name, d.fingerprint, (SELECT text FROM sources WHERE id = t.generator), t.plan, t.time_us, MIN(t.time_us) \
     FROM trials t JOIN problems p ON p.id = t.problem JOIN devices d ON d.id = t.device \
     WHERE t.problem = ?1 AND t.state = 'ok' AND t.verified > 0 GROUP BY t.device, t.generator, t.time_kind";

/// Adds the row of a problem.
pub(super) fn add(c: &Connection, problem: i64, shape: &Shape) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached("INSERT OR IGNORE INTO shapes VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?;
    insert.execute(params![problem, shape.family, shape.size(), shape.k, shape.m, shape.n, shape.g])?;
    Ok(())
}

/// Adds rows of problems that have none.
pub(super) fn fill(c: &Connection) -> rusqlite::Result<()> {
    let mut lacking =
        c.prepare_cached("SELECT id, key FROM problems WHERE id > (SELECT coalesce(max(problem), 0) FROM shapes)")?;
    let mut rows = lacking.query([])?;
    while let Some(row) = rows.next()? {
        let text: String = row.get(1)?;
        // A key that cannot be read is near to none.
        add(c, row.get(0)?, &ProblemKey::parse(&text).map(|key| key.shape()).unwrap_or_default())?;
    }
    Ok(())
}

/// A problem that may be near.
struct Candidate {
    problem: i64,
    /// No more than its distance.
    least: f64,
    /// No more than the distance of every problem after it in its direction.
    least_after: f64,
}

/// A walk through the index in one direction.
struct Walk<'a> {
    rows: rusqlite::Rows<'a>,
    next: Option<Candidate>,
}

impl<'a> Walk<'a> {
    fn new(rows: rusqlite::Rows<'a>, wanted: &Shape) -> rusqlite::Result<Walk<'a>> {
        let mut walk = Walk { rows, next: None };
        walk.step(wanted)?;
        Ok(walk)
    }

    /// Takes the next candidate, and reads the one after it.
    fn step(&mut self, wanted: &Shape) -> rusqlite::Result<Option<Candidate>> {
        let read = match self.rows.next()? {
            None => None,
            Some(row) => {
                let there = Shape { family: String::new(), k: row.get(1)?, m: row.get(2)?, n: row.get(3)?, g: row.get(4)? };
                let least_after = (row.get::<_, f64>(5)? - wanted.size()).abs();
                Some(Candidate { problem: row.get(0)?, least: wanted.least_distance(&there), least_after })
            }
        };
        Ok(std::mem::replace(&mut self.next, read))
    }
}

/// The `count` best plans of the nearest problems whose names are taken, nearest first.
pub(super) fn nearest(
    c: &Connection,
    problem: &ProblemKey,
    device: &DeviceKey,
    generator: &str,
    count: usize,
    takes: &dyn Fn(&str) -> bool,
) -> rusqlite::Result<Vec<Near>> {
    let wanted = problem.shape();
    let mut near: Vec<Near> = Vec::new();
    let (mut up, mut down, mut plans) = (c.prepare_cached(UP)?, c.prepare_cached(DOWN)?, c.prepare_cached(PLANS)?);
    let mut up = Walk::new(up.query(params![wanted.family, wanted.size()])?, &wanted)?;
    let mut down = Walk::new(down.query(params![wanted.family, wanted.size()])?, &wanted)?;
    loop {
        let after = |walk: &Walk<'_>| walk.next.as_ref().map_or(f64::INFINITY, |next| next.least_after);
        let worst = if near.len() < count { f64::INFINITY } else { near.last().map_or(f64::NEG_INFINITY, |near| near.distance) };
        let walk = if after(&up) <= after(&down) { &mut up } else { &mut down };
        let Some(candidate) = walk.step(&wanted)?.filter(|candidate| candidate.least_after <= worst) else { return Ok(near) };
        if candidate.least > worst {
            continue;
        }
        let mut rows = plans.query([candidate.problem])?;
        let mut apart = None;
        while let Some(row) = rows.next()? {
            let (text, name): (String, String) = (row.get(0)?, row.get(1)?);
            if !takes(&name) {
                break;
            }
            let known = *apart.get_or_insert_with(|| ProblemKey::parse(&text).ok().and_then(|other| distance(problem, &other)));
            let Some(mut d) = known else { break };
            let there = DeviceKey { name: row.get(2)?, fingerprint: row.get(3)? };
            if there.name != device.name {
                d += 2.0;
            } else if there.fingerprint != device.fingerprint {
                d += 0.1;
            }
            if row.get::<_, String>(4)? != generator {
                d += 0.1;
            }
            near.push(Near { distance: d, problem: name, device: there, plan: row.get(5)?, time_us: row.get(6)? });
        }
        near.sort_by(|x, y| x.distance.total_cmp(&y.distance).then(x.time_us.total_cmp(&y.time_us)));
        near.truncate(count);
    }
}
