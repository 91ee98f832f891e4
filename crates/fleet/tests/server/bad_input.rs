//! Wrong addresses, missing rights and tables, hostile rows: an error that names the thing and the remedy, nothing written.

use super::spans::Notes;
use super::{Fleet, address, ends, identity, run, tasks};
use tilewright_fleet::{End, FleetError, Lease, Line, Queue, RunSpec, SCHEMA_VERSION, Server};

fn joining(url: &str) -> FleetError {
    let mut server = Server::new(&address(url), identity("x")).expect("an address");
    server.join(&run(60), &tasks(1)).expect_err(url)
}

pub fn what_a_server_refuses_is_said_with_the_remedy() {
    let Some(fleet) = Fleet::new() else { return };
    let server = &fleet.server;
    server.sql("CREATE ROLE nobody LOGIN");
    let said = |e: FleetError| {
        assert!(!e.is_passing(), "{e}");
        e.to_string()
    };
    let rights = said(joining(&server.socket("nobody")));
    assert!(rights.contains("permission denied") && rights.contains("fleet init"), "{rights}");
    let database = said(joining(&server.socket("owner").replace("/fleet", "/absent")));
    assert!(database.contains("absent") && database.contains("createdb"), "{database}");
    let tables = said(joining(&server.socket("owner").replace("/fleet", "/postgres")));
    assert!(tables.contains("run `tilewright fleet init`"), "{tables}");
    let secret = said(joining(&server.tcp("owner")));
    assert!(secret.contains("PGPASSFILE"), "{secret}");
    // Nobody listens there.
    let away = joining("postgresql://me@127.0.0.1:1/fleet");
    let parts = ["127.0.0.1:1", "host and port of the URL"];
    assert!(away.is_passing() && parts.iter().all(|part| away.to_string().contains(part)), "{away}");
    let mut long = Server::new(&address(&server.socket("tilewright_worker")), identity("x")).expect("an address");
    let long = said(long.join(&RunSpec { name: "\u{e9}".repeat(101), ..run(60) }, &tasks(1)).expect_err("a long name"));
    assert!(long.contains("--run: the name has 202 bytes"), "{long}");
    // An error that nobody foresaw names its code, which manuals explain.
    server.sql("ALTER TABLE tw.run ADD CONSTRAINT odd CHECK (name <> 'night')");
    let odd = said(joining(&server.socket("tilewright_worker")));
    assert!(odd.contains("SQLSTATE 23514") && odd.contains("log of the server"), "{odd}");
    server.sql("UPDATE tw.schema SET version = 99");
    let newer = said(joining(&server.socket("tilewright_worker")));
    assert!(newer.contains("version 99") && newer.contains(&format!("knows {SCHEMA_VERSION}")), "{newer}");
    assert_eq!(fleet.count("tw.run"), 0);
}

pub fn workers_have_the_rights_they_need_and_no_others() {
    let Some(fleet) = Fleet::new() else { return };
    let server = &fleet.server;
    // Made again, it changes nothing.
    assert!(!tilewright_fleet::init(&address(&server.socket("owner")), "tilewright_worker").unwrap());
    ends(fleet.start("w", "tasks=2 trials=2"), 0);
    let refused = |statement: &str| {
        let text = format!("SET ROLE tilewright_worker; {statement}");
        let out = psql(server, &text);
        assert!(out.contains("permission denied") || out.contains("must be owner"), "{statement}: {out}");
    };
    for statement in [
        "DELETE FROM tw.trial",
        "UPDATE tw.trial SET line = ''",
        "UPDATE tw.run SET name = 'x'",
        "UPDATE tw.task SET problem = 'x'",
        "UPDATE tw.worker SET host = 'x'",
        "DROP TABLE tw.task",
    ] {
        refused(statement);
    }
    // Timeouts are of the role, so a pool of connections cannot lose them.
    let settings = server.sql("SELECT unnest(rolconfig) FROM pg_roles WHERE rolname = 'tilewright_worker' ORDER BY 1");
    assert_eq!(settings, "idle_in_transaction_session_timeout=10s\nlock_timeout=5s\nstatement_timeout=10s");
    let inserts = "SELECT string_agg(table_name, ' ' ORDER BY table_name) FROM information_schema.table_privileges \
        WHERE grantee = 'tilewright_worker' AND privilege_type = 'INSERT'";
    assert_eq!(server.sql(inserts), "list mark run task trial worker");
    let others = "SELECT count(*) FROM information_schema.table_privileges \
        WHERE grantee = 'tilewright_worker' AND privilege_type NOT IN ('INSERT', 'SELECT')";
    assert_eq!(server.number(others), 0);
}

fn psql(server: &super::Postgres, text: &str) -> String {
    let out = server.command("psql").args(["-d", "fleet", "-c", text]).output().expect("psql runs");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

pub fn lines_that_are_too_long_are_named_and_not_read() {
    let Some(fleet) = Fleet::new() else { return };
    let server = &fleet.server;
    let mut one = fleet.joined(identity("one"), &run(60), &tasks(1));
    let lease = one.claim().unwrap().expect("a task");
    // Not even sent, and said.
    let notes = Notes::default();
    let two = [Line { number: 1, text: "x".repeat(20_000) }, Line { number: 2, text: "{}".into() }];
    tracing::subscriber::with_default(notes.clone(), || one.ship(&lease, &two)).unwrap();
    assert_eq!(fleet.count("tw.trial"), 1);
    let warned: Vec<String> = notes.events.lock().expect("no test panicked").clone();
    let warned: Vec<&String> = warned.iter().filter(|text| text.starts_with("WARN")).collect();
    assert!(warned.len() == 1 && warned[0].contains("trial 1 ") && warned[0].contains("20000 bytes"), "{warned:?}");
    // The longest line is sent, and one of a byte more is not.
    one.ship(&lease, &[16_384, 16_385].map(|bytes| Line { number: bytes as i64, text: "x".repeat(bytes) })).unwrap();
    assert_eq!(server.sql("SELECT max(octet_length(line)) FROM tw.trial"), "16384");
    let insert = |seq: u32, line: &str| {
        format!("INSERT INTO tw.trial(journal, seq, task, epoch, line) VALUES ('evil', {seq}, 1, 1, {line})")
    };
    // Bytes count, not letters.
    for (seq, line, taken) in [
        (1, "repeat('x', 16384)", true),
        (2, "repeat('x', 16385)", false),
        (3, "repeat(U&'\\00e9', 8192)", true),
        (4, "repeat(U&'\\00e9', 8192) || 'x'", false),
    ] {
        let said = psql(server, &insert(seq, line));
        assert_eq!((said.is_empty(), said.contains("violates check constraint")), (taken, !taken), "{line}: {said}");
    }
    server.sql("DELETE FROM tw.trial WHERE seq <> 2 OR journal = 'evil'");
    let hostile = &insert(7, "repeat('x', 10000000)");
    assert!(psql(server, hostile).contains("violates check constraint"));
    // An owner may lift the limit; readers keep theirs.
    server.sql("ALTER TABLE tw.trial DROP CONSTRAINT short");
    server.sql(hostile);
    let mut all = Vec::new();
    let mut receive = |rows: Vec<tilewright_fleet::Pulled>| {
        all.extend(rows);
        Ok(())
    };
    tilewright_fleet::pull(&address(&server.socket("tilewright_worker")), Some("night"), &mut receive).unwrap();
    assert_eq!(all.len(), 2);
    let evil = all.iter().find(|row| row.name.contains("evil")).expect("its row");
    assert_eq!(evil.name, "trial 7 of journal evil");
    assert_eq!(evil.line, Err("it has 10000000 bytes, at most 16384 are read".into()));
    let taken = Lease { epoch: 2, ..lease };
    assert_eq!(one.trials(&taken).unwrap().len(), 1);
}

/// Texts of workers have limits on the server, and readers have their own.
pub fn texts_of_workers_are_of_bearable_length() {
    let Some(fleet) = Fleet::new() else { return };
    let server = &fleet.server;
    let mut one = fleet.joined(identity("one"), &run(60), &tasks(1));
    let lease = one.claim().unwrap().expect("a task");
    let end = End::Failed { reason: "\u{1f600}".repeat(9000) };
    assert_eq!(one.end(&lease, &end).ok(), Some(true));
    assert_eq!(server.sql("SELECT length(reason) FROM tw.task"), "2000");
    for statement in [
        "UPDATE tw.task SET reason = repeat('x', 8193)",
        "UPDATE tw.task SET best_plan = repeat('x', 4097)",
        "INSERT INTO tw.worker(id, host) VALUES ('evil', repeat('x', 8193))",
        "UPDATE tw.worker SET how = repeat('x', 8193)",
    ] {
        let said = psql(server, statement);
        assert!(said.contains("violates check constraint"), "{statement}: {said}");
    }
    server.sql("ALTER TABLE tw.task DROP CONSTRAINT task_reason_check");
    server.sql("UPDATE tw.task SET state = 'failed', reason = repeat('x', 10000000)");
    let status = tilewright_fleet::status(&address(&server.socket("owner")), None).expect("a status");
    assert_eq!(status.failed[0].reason.len(), 4096);
}

/// The certificate's name is compared with the URL's, and its authority with the file that is named.
pub fn a_certificate_is_verified_by_name_and_authority() {
    let openssl = |line: &str, folder: &std::path::Path| {
        std::process::Command::new("openssl").args(line.split(' ')).current_dir(folder).output()
    };
    let Some(mut fleet) = Fleet::new() else { return };
    let folder = fleet.server.folder.path().to_path_buf();
    if openssl("version", &folder).is_err() {
        return super::missing::missing("openssl is not installed");
    }
    std::fs::write(folder.join("names"), "subjectAltName=DNS:localhost").expect("a file");
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for line in [
        format!("req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=authority -days 30"),
        format!("req -x509 {key} -keyout other.key -out other.crt -subj /CN=other -days 30"),
        format!("req {key} -keyout data/server.key -out server.csr -subj /CN=localhost"),
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out data/server.crt -days 30 -extfile names".into(),
    ] {
        let out = openssl(&line, &folder).expect("it was there");
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    }
    fleet.server.own(&["data/server.key", "data/server.crt"]);
    fleet.server.sql("ALTER SYSTEM SET ssl = on");
    fleet.server.kill();
    fleet.server.up();
    // Roles without a password, so that only the certificate decides.
    fleet.server.trust_tcp();
    let url = |host: &str, authority: &str| {
        let file = folder.join(authority).display().to_string();
        format!("postgresql://tilewright_worker@{host}:{}/fleet?sslmode=verify-full&sslrootcert={file}", fleet.server.port)
    };
    let tried = |url: String| tilewright_fleet::status(&address(&url), None);
    tried(url("localhost", "ca.crt")).expect("the right name and authority");
    for wrong in [url("127.0.0.1", "ca.crt"), url("localhost", "other.crt")] {
        let error = tried(wrong.clone()).expect_err(&wrong);
        assert!(!error.is_passing() && error.to_string().contains("TLS") && error.to_string().contains("sslrootcert"), "{error}");
    }
}
