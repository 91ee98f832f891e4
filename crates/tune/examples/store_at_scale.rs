//! Writes a records file as a fleet fills it: `store_at_scale FILE TRIALS PROBLEMS`. Times of commands that open it are measured by hand
//! (notebook/2026-11-28-fleet-load.md); it prints the bytes of a trial and the time of each lookup of a search.

use rusqlite::{Connection, params};
use std::path::Path;
use std::time::Instant;
use tilewright_device::{CacheState, open};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, Problem};
use tilewright_tune::records::{GENERATOR, MODEL, TIMING, Trial, VERIFIER};
use tilewright_tune::search::device_key;
use tilewright_tune::{ProblemKey, Records};

type Failure = Box<dyn std::error::Error>;

/// The problem of this number: products of all sizes, no two alike.
fn problem(number: usize) -> Result<Problem, Failure> {
    let (m, n, k) = (number % 100, number / 100 % 25, number / 2500);
    Ok(Gemm::new(Scalar::F32, 64 + 40 * m as u64, 64 + 160 * n as u64, 64 + 200 * k as u64).build()?.into())
}

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let (Some(path), Some(trials), Some(problems)) = (args.next(), args.next(), args.next()) else {
        return Err("write: store_at_scale FILE TRIALS PROBLEMS".into());
    };
    let (trials, problems): (usize, usize) = (trials.parse()?, problems.parse()?);
    let device = open("emu")?;
    let here = device_key(device.info(), CacheState::Cold);
    let path = Path::new(&path);
    let records = Records::open(path)?;
    let key = |number: usize| -> Result<ProblemKey, Failure> {
        Ok(ProblemKey::of(&Space::new(&problem(number)?, &device.info().target)?))
    };
    // A row that gives the device its number.
    let first = Trial::unmeasured("A_MIC1__B_MIC1__C_UNR8", tilewright_tune::records::State::Refused, "the first row");
    records.add(&key(0)?, &problem(0)?.key(), &here, GENERATOR, &first)?;
    let mut connection = Connection::open(path)?;
    let t = connection.transaction()?;
    let mut insert = t.prepare("INSERT OR IGNORE INTO problems(id, key, name) VALUES (?1, ?2, ?3)")?;
    for number in 1..problems {
        insert.execute(params![number as i64 + 1, key(number)?.text(), problem(number)?.key()])?;
    }
    drop(insert);
    let mut insert = t.prepare(
        "INSERT INTO trials(problem, device, generator, plan, state, time_us, time_kind, verified, max_error, at, timed_by, verified_by) \
         VALUES (?1, 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    let each = trials / problems;
    for number in 0..problems {
        for nth in 0..each {
            // As searches leave them: one of six does not apply, some are verified, one thoroughly.
            let (is_ok, depth) = (nth % 6 != 5, [0, 2, 0, 0, 1, 0, 0, 0, 1][nth.min(8)]);
            let plan = format!(
                "A_MIC{}_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1_ACP2_CLU2__B_MIC16_PAD1_PLU0_LIW0_MIW1_WOS0_VEW1_ACP2__C_UNR{}_GAL1_PUN1_ICE66_IWI0_\
                 SZT0_MAD0_NAW64_UFO0_MAC256_SKW11_AFI1_MIA0_SKS1_CST1_PFG1_BUF2_LWV4_UNI2",
                nth % 10 + 1,
                8 * (nth / 10 + 1)
            );
            insert.execute(params![
                number as i64 + 1,
                GENERATOR,
                plan,
                if is_ok { "ok" } else { "refused" },
                is_ok.then_some(10.0 + (nth * 7 % 100) as f64),
                is_ok.then_some("modelled"),
                if is_ok { depth } else { 0 },
                (is_ok && depth > 0).then_some(1e-6),
                1_764_000_000_000_i64 + (number * each + nth) as i64,
                if is_ok { MODEL } else { TIMING },
                (is_ok && depth > 0).then_some(VERIFIER),
            ])?;
        }
    }
    drop(insert);
    t.commit()?;
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")?;
    let bytes = std::fs::metadata(path)?.len();
    println!("{bytes} bytes, {} a trial", bytes / (each * problems).max(1) as u64);
    drop((connection, records));
    let timed = |what: &str, run: &mut dyn FnMut() -> Result<usize, Failure>| -> Result<(), Failure> {
        let start = Instant::now();
        let count = run()?;
        println!("{what}: {:.1} ms, {count} rows", start.elapsed().as_secs_f64() * 1e3);
        Ok(())
    };
    let start = Instant::now();
    let records = Records::open(path)?;
    println!("open: {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let wanted = key(problems / 2)?;
    for what in ["nearest, the first time", "nearest"] {
        timed(what, &mut || Ok(records.nearest(&wanted, &here, GENERATOR, 8)?.len()))?;
    }
    timed("trials", &mut || Ok(records.trials(&wanted, &here, GENERATOR)?.len()))?;
    timed("candidates", &mut || Ok(records.candidates(&wanted, &here, 50)?.len()))?;
    timed("best", &mut || Ok(usize::from(records.best(&wanted, &here, GENERATOR)?.is_some())))
}
