//! PgBouncer in transaction mode between workers and server: each statement may run in another session.

use super::postgres::{Postgres, as_ordinary_user, server_program};
use super::{Fleet, ended, ends, until};
use std::path::Path;
use std::process::{Child, Stdio};

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A running PgBouncer.
struct Pooler {
    child: Child,
    port: u16,
}

impl Pooler {
    fn start(server: &Postgres) -> Pooler {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let (folder, place) = (server.folder.path().join("pooler"), server.folder.path().display());
        std::fs::create_dir(&folder).expect("a folder");
        let text = format!(
            "[databases]\nfleet = host={place} port={} dbname=fleet user=tilewright_worker\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n",
            server.port
        );
        let file = folder.join("pgbouncer.ini");
        std::fs::write(&file, text).expect("a configuration");
        // Its folder is that user's from now on.
        drop(as_ordinary_user("true", &folder));
        let mut command = server_program(PROGRAM);
        let child = command.arg(file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        until("PgBouncer listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Pooler { child, port }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn a_pool_in_transaction_mode_serves_many_workers() {
    if !Path::new(PROGRAM).exists() {
        return super::missing::missing("PgBouncer is not installed (Debian: pgbouncer)");
    }
    let Some(fleet) = Fleet::new() else { return };
    let pooler = Pooler::start(&fleet.server);
    let url = format!("postgresql://tilewright_worker@127.0.0.1:{}/fleet", pooler.port);
    let options = "tasks=40 trials=4 sleep=40 lease=60000 poll=100";
    let workers: Vec<Child> = (0..10).map(|n| fleet.start_at(&url, &format!("w{n}"), options)).collect();
    let mut most = 0;
    until("the tasks are done", || {
        most = most.max(fleet.count("pg_stat_activity WHERE usename = 'tilewright_worker'"));
        fleet.count("tw.task WHERE state = 'done'") == 40
    });
    let said: Vec<String> = workers.into_iter().map(|worker| ends(worker, 0)).collect();
    assert!((1..=2).contains(&most), "{most} sessions served 10 workers");
    assert_eq!(fleet.count("tw.task WHERE epoch = 1 AND lapses = 0"), 40);
    assert_eq!(ended(&said).len(), 40);
    assert_eq!(fleet.count("tw.trial"), 40 * 4);
}
