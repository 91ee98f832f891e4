//! Writes a records file as a fleet fills it, in the tables of schema 4, and brings it to today's: `store_at_scale FILE TRIALS PROBLEMS`.
//! It prints the bytes of a trial and the times of a migration, of a search's lookups and of `prepare`; `scripts/records-at-scale` runs
//! it and the commands.

use rusqlite::{Connection, params};
use std::path::Path;
use std::time::Instant;
use tilewright::{CacheState, Context, Gemm, Options, Problem, RecordsAt, Scalar};
use tilewright_check::random::{self, Recipe};
use tilewright_gen::space::Space;
use tilewright_tune::records::{GENERATOR, MODEL, TIMING, VERIFIER};
use tilewright_tune::search::device_key;
use tilewright_tune::{ProblemKey, Records};

type Failure = Box<dyn std::error::Error>;

/// The problem of this number: products of all sizes, no two alike.
fn problem(number: usize) -> Result<Problem, Failure> {
    let (m, n, k) = (number % 100, number / 100 % 25, number / 2500);
    Ok(Gemm::new(Scalar::F32, 64 + 40 * m as u64, 64 + 160 * n as u64, 64 + 200 * k as u64).build()?.into())
}

/// A context whose records are this file.
fn context(path: &Path) -> Result<Context, Failure> {
    let records = RecordsAt::File(path.to_path_buf());
    Ok(Context::with(Options { device: Some("emu".into()), records, ..Options::default() })?)
}

/// Prints how long something takes.
fn timed<T>(title: &str, run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let start = Instant::now();
    let given = run()?;
    println!("{title}: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    Ok(given)
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(trials), Some(problems)) = (args.next(), args.next(), args.next()) else {
        return Err("write: store_at_scale FILE TRIALS PROBLEMS".into());
    };
    let (trials, problems): (usize, usize) = (trials.parse()?, problems.parse()?);
    let path = Path::new(&path);
    let written = trials / problems.max(1) * problems;
    let size = |title: &str| -> Result<(), Failure> {
        let bytes = std::fs::metadata(path)?.len();
        println!("{title}: {bytes} bytes, {} a trial", bytes / written.max(1) as u64);
        Ok(())
    };
    write(path, trials / problems.max(1), problems)?;
    size("schema 4")?;
    timed("migration", || Ok(Records::open(path)?))?;
    size("today's schema")?;
    let records = timed("open", || Ok(Records::open(path)?))?;
    let here = context(path)?;
    let device = device_key(here.info(), CacheState::Cold);
    let wanted = ProblemKey::of(&Space::new(&problem(problems / 2)?, &here.info().target)?);
    for title in ["nearest, the first time", "nearest"] {
        timed(title, || Ok(records.nearest(&wanted, &device, GENERATOR, 8)?.len()))?;
    }
    timed("trials", || Ok(records.trials(&wanted, &device, GENERATOR)?.len()))?;
    timed("candidates", || Ok(records.candidates(&wanted, &device, 50)?.len()))?;
    timed("best", || Ok(records.best(&wanted, &device, GENERATOR)?.is_some()))?;
    // A problem that no store holds takes the same plan everywhere.
    let unknown: Problem = Gemm::new(Scalar::F32, 72, 72, 72).build()?.into();
    let empty = tempfile::tempdir()?;
    let nothing = empty.path().join("nothing.sqlite");
    for (title, path, problem) in [
        ("prepare, an empty store", nothing.as_path(), &unknown),
        ("prepare, an unknown problem", path, &unknown),
        ("prepare, a problem of the store", path, &problem(0)?),
    ] {
        timed(title, || Ok(context(path)?.operation(problem.clone())?.prepare()?))?;
    }
    Ok(())
}

/// Writes a file of schema 4 with so many trials of each problem.
fn write(path: &Path, each: usize, problems: usize) -> Result<(), Failure> {
    let device = tilewright_device::open("emu")?;
    let key = device_key(device.info(), CacheState::Cold);
    let mut connection = Connection::open(path)?;
    connection.execute_batch(include_str!("../../tune/src/records/migrate/version_4.sql"))?;
    connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")?;
    let t = connection.transaction()?;
    t.execute("INSERT INTO devices(id, name, fingerprint) VALUES (1, ?1, ?2)", [&key.name, &key.fingerprint])?;
    let mut insert = t.prepare("INSERT INTO problems(id, key, name) VALUES (?1, ?2, ?3)")?;
    for number in 0..problems {
        let space = Space::new(&problem(number)?, &device.info().target)?;
        insert.execute(params![number as i64 + 1, ProblemKey::of(&space).text(), problem(number)?.key()])?;
    }
    drop(insert);
    // Plans of a problem that others of its kind may have, too.
    let space = Space::new(&problem(0)?, &device.info().target)?;
    let drawn = (0..4 * each as u64).filter_map(|seed| random::plan(&space, &Recipe::emulated(), seed));
    let mut plans: Vec<String> = drawn.map(|plan| plan.to_string()).collect();
    plans.sort();
    plans.dedup();
    println!("plan: {} bytes", plans.iter().map(String::len).sum::<usize>() / plans.len().max(1));
    let mut insert = t.prepare(
        "INSERT INTO trials(problem, device, generator, plan, state, time_us, time_kind, verified, max_error, at, timed_by, \
         verified_by, reason) VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    let reason = "work-group needs 131072 bytes of shared memory; the device has 65536. Use B_MIC4";
    for number in 0..problems {
        for nth in 0..each {
            // As searches leave them: one of six does not apply, some are verified, one thoroughly.
            let (is_ok, depth) = (nth % 6 != 5, [0, 2, 0, 0, 1, 0, 0, 0, 1][nth.min(8)]);
            insert.execute(params![
                number as i64 + 1,
                GENERATOR,
                plans.get((number + nth) % plans.len()),
                if is_ok { "ok" } else { "refused" },
                is_ok.then_some(10_000.0 + (nth * 7 % 100) as f64 + 1.0 / (number + 3) as f64),
                is_ok.then_some("modelled"),
                if is_ok { depth } else { 0 },
                (is_ok && depth > 0).then_some(1e-6 / (nth + 3) as f64),
                1_764_000_000_000_i64 + (number * each + nth) as i64,
                if is_ok { MODEL } else { TIMING },
                (is_ok && depth > 0).then_some(VERIFIER),
                (!is_ok).then_some(reason),
            ])?;
        }
    }
    drop(insert);
    Ok(t.commit()?)
}
