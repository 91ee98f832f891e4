//! Opening a file without ever harming one that is not ours.

use super::migrate::{migrate, shadow};
use super::tables::{INDEX, LOOKS, MARKS, TABLES, TRIALS, TRIALS_INDEX, VERSION, version};
use super::{RecordsError, journal, network, picks, rows, shapes};
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// `twrc` in ASCII: marks a SQLite file as ours (bytes 68..72 of its header).
const APPLICATION_ID: u32 = 0x7477_7263;

/// How long a statement waits for another process's transaction. `prune` rewrites files of gigabytes.
pub(super) const BUSY: Duration = Duration::from_secs(60);

/// Turns SQLite's errors into ours, by what the user can do about them.
pub(super) fn classify(path: &Path, e: rusqlite::Error) -> RecordsError {
    let path = path.to_path_buf();
    match e.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => RecordsError::Damaged { path, reason: e.to_string() },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            let held = format!("another process has held the file for more than {BUSY:?} ({e}); end it, or name another file");
            RecordsError::Io { path, reason: held }
        }
        Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => RecordsError::Io {
            path,
            reason: format!("{e}; make room on the disk, or name another file. What was recorded is kept"),
        },
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            RecordsError::Io { path, reason: format!("{e}; name a file that may be written, in a folder that may") }
        }
        // A missing table or column, a value of another type: the header is ours, the content is not.
        _ => RecordsError::Damaged { path, reason: e.to_string() },
    }
}

/// Opens a records file to read alone. It may lie on a network file system, if its log was emptied by the process that closed it last.
pub(super) fn open_to_read(path: &Path) -> Result<Connection, RecordsError> {
    let io = |e: std::io::Error| RecordsError::Io { path: path.to_path_buf(), reason: e.to_string() };
    check_header(path, &mut File::open(path).map_err(io)?)?;
    if network::file_system(path).is_none() {
        return open(path);
    }
    if !log_is_empty(path) {
        let reason = "the log file next to it holds records: the file is in use, or was copied without its log. Close it on the machine that wrote it";
        return Err(RecordsError::Io { path: path.to_path_buf(), reason: reason.into() });
    }
    read_only(path)
}

/// Opens or creates a records file.
pub(super) fn open(path: &Path) -> Result<Connection, RecordsError> {
    if let Some(kind) = network::file_system(path) {
        return Err(RecordsError::Network { path: path.to_path_buf(), kind });
    }
    let io = |e: std::io::Error| RecordsError::Io {
        path: path.to_path_buf(),
        reason: format!("{e}; name a file that may be written, in a folder that may"),
    };
    if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(io)?;
    }
    match File::open(path) {
        Ok(mut file) => check_header(path, &mut file)?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(io(e)),
    }
    match writable(path) {
        Err(RecordsError::Io { .. }) if is_at_rest(path) => read_only(path),
        other => other,
    }
}

/// Opens or creates a file to read and write.
fn writable(path: &Path) -> Result<Connection, RecordsError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(|e| classify(path, e))?;
    prepare(&mut connection).map_err(|e| classify(path, e))?;
    check_whole(path, &connection)?;
    // A log may hold a newer version than the header that was read.
    let found = version(&connection).map_err(|e| classify(path, e))?;
    if found > VERSION {
        return Err(RecordsError::Newer { path: path.to_path_buf(), found, known: VERSION });
    }
    migrate(path, &mut connection).map_err(|e| classify(path, e))?;
    check_tables(path, &connection)?;
    // The schema is committed in the main file before the log exists, so that the header check above always sees it.
    let tables = |c: &Connection| -> rusqlite::Result<()> {
        c.execute_batch(INDEX)?;
        c.execute_batch(journal::TABLES)?;
        c.execute_batch(shapes::TABLE)?;
        c.execute_batch(picks::TABLE)?;
        log_ahead(c)?;
        c.pragma_update(None, "synchronous", "NORMAL")
    };
    tables(&connection).map_err(|e| classify(path, e))?;
    Ok(connection)
}

/// Sets the write-ahead log. SQLite does not wait here for another process that opens the new file, so this does.
fn log_ahead(c: &Connection) -> rusqlite::Result<()> {
    let end = Instant::now() + BUSY;
    loop {
        match c.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())) {
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            ended => return ended,
        }
    }
}

/// True if all records of a file are in it, none in a log beside it.
fn log_is_empty(path: &Path) -> bool {
    let mut log = path.as_os_str().to_os_string();
    log.push("-wal");
    std::fs::metadata(log).map_or(true, |m| m.len() == 0)
}

/// True for a file that may not be written, all of whose records are in it and none in a log beside it.
fn is_at_rest(path: &Path) -> bool {
    log_is_empty(path)
        && std::fs::metadata(path).is_ok_and(|m| m.len() > 0)
        && std::fs::OpenOptions::new().write(true).open(path).is_err()
}

/// Opens a file that may not be written: whatever would write says so.
pub(super) fn read_only(path: &Path) -> Result<Connection, RecordsError> {
    let escaped = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(format!("file:{escaped}?immutable=1"), flags).map_err(|e| classify(path, e))?;
    connection.set_prepared_statement_cache_capacity(64);
    rows::register(&connection).map_err(|e| classify(path, e))?;
    check_whole(path, &connection)?;
    shadow(&connection).and_then(|()| picks::shadow(&connection)).map_err(|e| classify(path, e))?;
    check_tables(path, &connection)?;
    Ok(connection)
}

/// Records in memory.
pub(super) fn in_memory() -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    prepare(&mut connection)?;
    connection.execute_batch(journal::TABLES)?;
    connection.execute_batch(INDEX)?;
    connection.execute_batch(shapes::TABLE)?;
    connection.execute_batch(picks::TABLE)?;
    Ok(connection)
}

/// Reads the file's header without SQLite: a foreign file is not even opened as a database.
fn check_header(path: &Path, file: &mut File) -> Result<(), RecordsError> {
    let foreign = |reason: &str| RecordsError::Foreign { path: path.to_path_buf(), reason: reason.into() };
    let io = |e: std::io::Error| RecordsError::Io { path: path.to_path_buf(), reason: e.to_string() };
    if !file.metadata().map_err(io)?.is_file() {
        return Err(foreign("not a plain file"));
    }
    let mut header = Vec::with_capacity(100);
    file.take(100).read_to_end(&mut header).map_err(io)?;
    if header.is_empty() {
        return Ok(());
    }
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(foreign("no SQLite database"));
    }
    let word = |at: usize| header.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
    let (Some(version), Some(application)) = (word(60), word(68)) else {
        return Err(RecordsError::Damaged { path: path.to_path_buf(), reason: "the file ends within its header".into() });
    };
    if application != APPLICATION_ID {
        return Err(foreign("a SQLite database of another program"));
    }
    if version > VERSION {
        return Err(RecordsError::Newer { path: path.to_path_buf(), found: version, known: VERSION });
    }
    Ok(())
}

/// KiB of pages that are kept. Rows are met in the order of their plans' texts: with SQLite's 2 MiB nearly each would be a read of its own.
const CACHE: i64 = 65536;
/// The same while a file is rewritten in order, by [`compact`], which has two such caches.
const CACHE_IN_ORDER: i64 = 8192;

/// Rewrites a file without its empty pages.
pub(super) fn compact(c: &Connection) -> rusqlite::Result<()> {
    c.pragma_update(None, "cache_size", -CACHE_IN_ORDER)?;
    let done = c.execute_batch("PRAGMA shrink_memory; VACUUM");
    c.pragma_update(None, "cache_size", -CACHE)?;
    done
}

/// Creates the tables in an empty database. Two processes that do so at once alternate.
fn prepare(connection: &mut Connection) -> rusqlite::Result<()> {
    rows::register(connection)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "cache_size", -CACHE)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.set_prepared_statement_cache_capacity(64);
    let is_empty = |c: &Connection| c.query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |r| r.get::<_, bool>(0));
    if is_empty(connection)? {
        let t = connection.transaction_with_behavior(TransactionBehavior::Exclusive)?;
        if is_empty(&t)? {
            t.execute_batch(TABLES)?;
            t.execute_batch(TRIALS)?;
            t.execute_batch(TRIALS_INDEX)?;
            t.execute_batch(MARKS)?;
            t.execute_batch(LOOKS)?;
            t.pragma_update(None, "application_id", APPLICATION_ID)?;
            t.pragma_update(None, "user_version", VERSION)?;
        }
        t.commit()?;
    }
    Ok(())
}

/// Bytes of a file that is read whole when it is opened. A damaged page of a larger one is found when it is read.
const CHECKED: u64 = 16 << 20;

/// Asks SQLite whether the file is whole.
fn check_whole(path: &Path, connection: &Connection) -> Result<(), RecordsError> {
    if std::fs::metadata(path).is_ok_and(|m| m.len() > CHECKED) {
        return Ok(());
    }
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |r| r.get(0)).map_err(|e| classify(path, e))?;
    if verdict != "ok" {
        return Err(RecordsError::Damaged { path: path.to_path_buf(), reason: verdict });
    }
    Ok(())
}

/// Asks whether the tables are the ones this version writes.
fn check_tables(path: &Path, connection: &Connection) -> Result<(), RecordsError> {
    for probe in [
        "SELECT id, key, name FROM problems LIMIT 0",
        "SELECT id, name, fingerprint FROM devices LIMIT 0",
        "SELECT id, problem, device, generator, plan, plan_hash, state, time_us, time_kind, verified, max_error, reason, at, \
         timed_by, verified_by FROM trials LIMIT 0",
        "SELECT id, text FROM sources LIMIT 0",
        "SELECT problem, device, generator, plan, owner, deaths FROM inflight LIMIT 0",
        "SELECT problem, device, build, plan, state, reason FROM looks LIMIT 0",
    ] {
        connection.prepare(probe).map_err(|e| classify(path, e))?;
    }
    Ok(())
}
