//! Workers with simulated trials on a real PostgreSQL server. Without one each test says SKIPPED.

mod bad_input;
mod clocks;
mod failures;
mod fences;
mod host;
mod kills;
mod launchers;
mod packets;
mod pooler;
mod proxy;
mod runs;
mod slurm;
mod spans;
mod stops;

#[path = "../../../ir/tests/support/missing.rs"]
mod missing;
#[path = "../support/postgres.rs"]
mod postgres;

use postgres::Postgres;
use std::process::{Child, Command, Stdio};
use tilewright_fleet::{Address, Identity, NewTask, RunSpec, Server};

/// A server with the tables, and a folder for journals.
struct Fleet {
    server: Postgres,
}

impl Fleet {
    fn new() -> Option<Fleet> {
        Fleet::with(&[])
    }

    fn with(settings: &[&str]) -> Option<Fleet> {
        let server = Postgres::start_with(settings)?;
        let made = tilewright_fleet::init(&address(&server.socket("owner")), "tilewright_worker");
        assert!(made.expect("the tables are made"));
        Some(Fleet { server })
    }

    /// A worker's command; `name` names its journal.
    fn worker(&self, name: &str, options: &str) -> Command {
        self.complete(Command::new(SIMULATION), &self.server.socket("tilewright_worker"), name, options)
    }

    /// The arguments of a worker after a command that starts it.
    fn complete(&self, mut command: Command, url: &str, name: &str, options: &str) -> Command {
        let folder = self.server.folder.path();
        command.arg("worker").arg(url);
        command.arg(format!("journal={}", folder.join(name).with_extension("journal").display()));
        command.arg(format!("locks={}", folder.display()));
        command.args(options.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, name: &str, options: &str) -> Child {
        self.worker(name, options).spawn().expect("a worker starts")
    }

    /// A worker that reaches the server at another address.
    fn start_at(&self, url: &str, name: &str, options: &str) -> Child {
        self.complete(Command::new(SIMULATION), url, name, options).spawn().expect("a worker starts")
    }

    /// Lines of all journals.
    fn journals(&self) -> usize {
        let entries = std::fs::read_dir(self.server.folder.path()).expect("a folder").flatten();
        let journals = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "journal"));
        journals.map(|entry| std::fs::read_to_string(entry.path()).expect("a journal").lines().count()).sum()
    }

    fn count(&self, what: &str) -> i64 {
        self.server.number(&format!("SELECT count(*) FROM {what}"))
    }

    /// A way to the server for statements of a test.
    fn joined(&self, identity: Identity, run: &RunSpec, tasks: &[NewTask]) -> Server {
        let mut server = Server::new(&address(&self.server.socket("tilewright_worker")), identity).expect("an address");
        server.join(run, tasks).expect("it joins");
        server
    }
}

/// The program that plays the workers.
const SIMULATION: &str = env!("CARGO_BIN_EXE_fleet-simulation");

/// True where all kills are to be made, as in CI; a run by hand makes a fifth of them.
fn full() -> bool {
    std::env::var_os("TILEWRIGHT_FULL").is_some_and(|set| set != "0")
}

/// Waits for something.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < std::time::Duration::from_secs(120), "it never happens: {what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Tasks that workers say they ended, sorted.
fn ended(said: &[String]) -> Vec<String> {
    let lines = said.iter().flat_map(|said| said.lines()).filter_map(|line| line.strip_prefix("done "));
    let mut all: Vec<String> = lines.map(String::from).collect();
    all.sort();
    all
}

fn address(url: &str) -> Address {
    Address::parse(url).expect("an address")
}

fn tasks(count: u32) -> Vec<NewTask> {
    (0..count).map(|n| NewTask { problem: format!("p{n}"), work: f64::from(n) }).collect()
}

fn run(lease: u64) -> RunSpec {
    RunSpec { name: "night".into(), options: "{}".into(), lease: std::time::Duration::from_secs(lease), extend: false }
}

fn identity(id: &str) -> Identity {
    Identity { id: id.into(), class: "simulated".into(), journal: id.into(), ..Identity::default() }
}

/// Waits for a worker and asserts its exit code; what it said.
fn ends(child: Child, code: i32) -> String {
    let out = child.wait_with_output().expect("it ends");
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(code), "{said}");
    said
}

fn signal(name: &str, child: &Child) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}
