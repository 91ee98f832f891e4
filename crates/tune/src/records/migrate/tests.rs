//! Files of older versions.

use super::*;
use crate::key::tests::gemm;
use crate::records::file::tests::{GENERATOR, device, filled};
use crate::records::{Filter, Listing, Look, Records, State, schema};
use std::path::PathBuf;
use tilewright_check::verify::Depth;
use tilewright_ir::Scalar;

/// The tables of version 4.
const VERSION_4: &str = include_str!("version_4.sql");

/// To version 2: no looks, no sources, and marks of process ids.
const VERSION_2: &str = "
DROP TABLE looks; DROP TABLE inflight; ALTER TABLE trials DROP COLUMN timed_by; ALTER TABLE trials DROP COLUMN verified_by;
CREATE TABLE inflight(
  problem INTEGER NOT NULL, device INTEGER NOT NULL, generator TEXT NOT NULL, plan TEXT NOT NULL, pid INTEGER NOT NULL,
  PRIMARY KEY(problem, device, generator, plan)
) STRICT;
INSERT INTO inflight VALUES (1, 1, '0.1.0', 'running', 1);
";

/// A file of an older version with the trials of [`filled`].
fn older(path: &Path, version: u32) {
    let now = path.with_extension("now");
    filled(&Records::open(&now).unwrap());
    let c = Connection::open(path).unwrap();
    c.execute_batch(VERSION_4).unwrap();
    c.execute("ATTACH ?1 AS now", [now.to_str().unwrap()]).unwrap();
    c.execute_batch(
        "INSERT INTO main.problems SELECT * FROM now.problems; INSERT INTO main.devices SELECT * FROM now.devices; \
         INSERT INTO main.trials SELECT id, problem, device, (SELECT text FROM now.sources s WHERE s.id = generator), plan, state, \
           time_us, time_kind, verified, max_error, reason, at, (SELECT text FROM now.sources s WHERE s.id = timed_by), \
           (SELECT text FROM now.sources s WHERE s.id = verified_by) FROM now.trials; DETACH now;",
    )
    .unwrap();
    match version {
        1 => c.execute_batch(&format!("{VERSION_2} UPDATE trials SET verified = min(verified, 1)")).unwrap(),
        2 => c.execute_batch(VERSION_2).unwrap(),
        3 => c.execute_batch("DROP TABLE looks").unwrap(),
        _ => {}
    }
    c.pragma_update(None, "user_version", version).unwrap();
}

/// The rows of a file of a version, as they ought to be read.
fn expected(version: u32) -> Listing {
    let records = Records::in_memory().unwrap();
    filled(&records);
    let mut listing = records.listing(&Filter::default()).unwrap();
    for record in &mut listing.records {
        if version < 3 {
            (record.timed_by, record.verified_by) = (None, None);
        }
        if version == 1 {
            record.trial.verified = record.trial.verified.min(Some(Depth::Quick));
        }
    }
    listing
}

fn old_file(version: u32) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.db");
    older(&path, version);
    (folder, path)
}

fn read_only(path: &Path) -> Records {
    Records::of(path.to_path_buf(), schema::read_only(path).unwrap())
}

/// Every question gets the same answer before and after.
#[test]
fn every_older_version_is_read_and_migrated() {
    let key = gemm(64, 64, 64, Scalar::F32);
    for version in 1..VERSION {
        let (_folder, path) = old_file(version);
        let near = |records: &Records| -> Vec<String> {
            let near = records.nearest(&gemm(2048, 2048, 2048, Scalar::F32), &device(), GENERATOR, 9).unwrap();
            near.into_iter().map(|near| near.plan).collect()
        };
        let answers = |records: &Records| {
            assert_eq!(records.listing(&Filter::default()).unwrap(), expected(version), "{version}");
            // By whom they were timed nobody knows in the oldest: candidates, no more.
            let best = (version > 2).then(|| "fast".to_string());
            assert_eq!(records.best(&key, &device(), GENERATOR).unwrap().map(|trial| trial.plan), best, "{version}");
            let own = if version > 2 { 4 } else { 0 };
            assert_eq!(records.trials(&key, &device(), GENERATOR).unwrap().len(), own, "{version}");
            assert_eq!(records.candidates(&key, &device(), 9).unwrap(), ["fast", "slow"]);
            assert_eq!(records.look(&key, &device(), "fast").unwrap(), None);
            assert_eq!(near(records), ["big", "fast"]);
        };
        let unmigrated = read_only(&path);
        assert!(!unmigrated.is_writable());
        answers(&unmigrated);
        drop(unmigrated);
        let migrated = Records::open(&path).unwrap();
        assert!(migrated.is_writable());
        answers(&migrated);
        assert_eq!(migrated.recover().unwrap(), 0);
        let look = Look { plan: "fast".into(), state: State::Ok, reason: None };
        migrated.add_look(&key, "gemm 64", &device(), &look).unwrap();
        assert_eq!(migrated.look(&key, &device(), "fast").unwrap(), Some(look));
        drop(migrated);
        answers_again(&path, version);
        // An older tilewright refuses it.
        assert_eq!(std::fs::read(&path).unwrap()[60..64], VERSION.to_be_bytes());
    }
}

/// A migrated file is one that this version could have written.
fn answers_again(path: &Path, version: u32) {
    let tables = |records: &Records| -> Vec<String> {
        let all = "SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY 1";
        records.read(|c| c.prepare(all)?.query_map([], |r| r.get(0))?.collect()).unwrap()
    };
    let (migrated, fresh) = (Records::open(path).unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(migrated.listing(&Filter::default()).unwrap(), expected(version));
    assert_eq!(tables(&migrated), tables(&Records::open(fresh.path().join("new.db")).unwrap()));
    let free: i64 = migrated.read(|c| c.query_row("PRAGMA freelist_count", [], |r| r.get(0))).unwrap();
    assert_eq!(free, 0);
}

/// A process that ends amid a migration leaves what was there, and the next one migrates.
#[test]
fn an_interrupted_migration_loses_nothing() {
    for version in 1..VERSION {
        let (folder, path) = old_file(version);
        let connection = Connection::open(&path).unwrap();
        crate::records::rows::register(&connection).unwrap();
        // As tilewright leaves its files; the log gets every page at once.
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).unwrap();
        connection.execute_batch("PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = 1; PRAGMA cache_spill = 1").unwrap();
        let t = begin(&path, &connection).unwrap();
        steps(&path, &t, version).unwrap();
        // What the disk holds when the process is killed here.
        let log = |path: &Path| path.with_file_name(format!("{}-wal", path.file_name().unwrap().to_str().unwrap()));
        let left = folder.path().join("left.db");
        std::fs::copy(&path, &left).unwrap();
        std::fs::copy(log(&path), log(&left)).unwrap();
        assert!(std::fs::metadata(log(&left)).unwrap().len() > 0);
        let ahead = Connection::open(&left).unwrap();
        assert_eq!(super::version(&ahead).unwrap(), version);
        drop(ahead);
        assert_eq!(Records::open(&left).unwrap().listing(&Filter::default()).unwrap(), expected(version), "{version}");
        // Nor does one that fails.
        drop(t);
        assert_eq!(super::version(&connection).unwrap(), version);
        drop(connection);
        assert_eq!(read_only(&path).listing(&Filter::default()).unwrap(), expected(version), "{version}");
    }
}

/// Of processes that open an old file at once one migrates it, and the others wait.
#[test]
fn several_processes_migrate_once() {
    let (_folder, path) = old_file(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let path = &path;
            scope.spawn(move || assert_eq!(Records::open(path).unwrap().listing(&Filter::default()).unwrap(), expected(4)));
        }
    });
}
