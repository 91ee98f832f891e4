//! Claims of many workers at once: how many a second, and how long one takes. Also how many trials a second are stored, and the
//! cost to the server.

use super::{Options, patiently};
use std::process::Command;
use std::time::Instant;
use tilewright_fleet::{Address, End, Identity, Line, Queue, RunSpec, Server};

/// Bytes of each table with its indexes, and what the server has counted for the database since its statistics began.
const COST: &str = "
SELECT json_build_object('bytes', (SELECT json_object_agg(relname, pg_total_relation_size(oid)) FROM pg_class
    WHERE relnamespace = 'tw'::regnamespace AND relkind = 'r'),
  'commits', xact_commit, 'rollbacks', xact_rollback, 'deadlocks', deadlocks, 'blocks_read', blks_read, 'blocks_hit', blks_hit,
  'rows_inserted', tup_inserted, 'rows_updated', tup_updated, 'temporary_bytes', temp_bytes)
FROM pg_stat_database WHERE datname = current_database()";

/// The cost of a load to the server. The rate of claims is measured without `psql`, too.
fn cost(url: &str) -> Result<String, String> {
    let out = Command::new("psql").args([url, "-X", "-At", "-c", COST]).output().map_err(|e| format!("psql: {e}"))?;
    let said = if out.status.success() { &out.stdout } else { &out.stderr };
    let said = String::from_utf8_lossy(said).trim().to_string();
    if out.status.success() { Ok(said) } else { Err(said) }
}

/// Claims of many workers: how many a second, and how long one takes.
pub fn load(url: &str, options: &Options) -> Result<(), String> {
    let address = Address::parse(url).map_err(|e| e.to_string())?;
    let (workers, claims) = (options.number("workers", 32.0) as usize, options.number("claims", 20.0) as usize);
    let identity = |n: usize| Identity { id: format!("load{n}"), class: "simulated".into(), ..Identity::default() };
    let mut first = Server::new(&address, identity(0)).map_err(|e| e.to_string())?;
    patiently(|| first.join(&options.run(), &options.tasks()))?;
    let trials = options.number("trials", 0.0) as i64;
    let start = Instant::now();
    let one = &|n: usize| -> Result<Vec<f64>, String> {
        let mut server = Server::new(&address, identity(n)).map_err(|e| e.to_string())?;
        // The tasks are there.
        patiently(|| server.join(&RunSpec { extend: true, ..options.run() }, &[]))?;
        let mut times = Vec::new();
        for _ in 0..claims {
            let since = Instant::now();
            let Some(lease) = patiently(|| server.claim())? else { break };
            times.push(since.elapsed().as_secs_f64() * 1000.0);
            let lines: Vec<Line> = (0..trials).map(|n| Line { number: lease.task * 10_000 + n, text: "x".repeat(600) }).collect();
            patiently(|| server.ship(&lease, &lines))?;
            std::thread::sleep(options.millis("sleep", 0.0));
            let end = End::Done { best_us: 1.0, best_plan: "x".into(), first_us: 1.0 };
            patiently(|| server.end(&lease, &end))?;
        }
        Ok(times)
    };
    let times: Result<Vec<Vec<f64>>, String> = std::thread::scope(|scope| {
        let all: Vec<_> = (1..=workers).map(|n| scope.spawn(move || one(n))).collect();
        all.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread died".into()))).collect()
    });
    let mut times = times?.concat();
    let seconds = start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
    println!(
        "{{\"claims\": {}, \"seconds\": {seconds:.2}, \"claims_per_s\": {:.0}, \"median_ms\": {:.2}, \"p99_ms\": {:.2}, \"trials_per_s\": {:.0}}}",
        times.len(),
        times.len() as f64 / seconds,
        at(0.5),
        at(0.99),
        times.len() as f64 * trials as f64 / seconds
    );
    match cost(url) {
        Ok(cost) => println!("{cost}"),
        Err(e) => eprintln!("the server's cost is not known: {e}"),
    }
    Ok(())
}
