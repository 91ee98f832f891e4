//! A PostgreSQL server of a test: its own folder, a free port, an ordinary user where the test runs as root (initdb refuses root).
//! Test files of other crates include this file by its path.
#![allow(dead_code, reason = "each test file uses its part")]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The password of the role that owns the database, and of workers.
pub const PASSWORD: &str = "correct-horse-battery";

/// A running server.
pub struct Postgres {
    pub folder: tempfile::TempDir,
    pub port: u16,
    /// A process whose network namespace the server starts in from now on.
    pub network_of: Option<u32>,
    child: Option<Child>,
}

/// The start of a command in the network namespace of a process. An ordinary user is root of the user namespace that goes with it.
pub fn entering_network_of(process: u32) -> Command {
    let mut inside = Command::new("nsenter");
    inside.args(["-t", &process.to_string(), "-n"]);
    if !is_root() {
        inside.args(["-U", "--preserve-credentials"]);
    }
    inside
}

/// The same command in the network namespace of a process, with the same user. Sockets that are files reach across.
pub fn in_network_of(process: u32, command: &Command) -> Command {
    let mut inside = entering_network_of(process);
    if !is_root() {
        // The server refuses root, of a namespace too.
        let own = std::fs::metadata("/proc/self").expect("the test's user");
        inside.args(["unshare", "-U", &format!("--map-user={}", own.uid()), &format!("--map-group={}", own.gid())]);
    }
    inside.arg(command.get_program()).args(command.get_args());
    inside
}

/// The folder of the server's programs: the one that `TILEWRIGHT_POSTGRES` names, else the newest of Debian's.
pub fn programs() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("TILEWRIGHT_POSTGRES").map(PathBuf::from) {
        return folder.join("initdb").exists().then_some(folder);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let numbered = versions.filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        entry.path().join("bin/initdb").exists().then(|| Found { version, bin: entry.path().join("bin") })
    });
    numbered.max_by_key(|found| found.version).map(|found| found.bin)
}

struct Found {
    version: u32,
    bin: PathBuf,
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).trim() == "0")
}

/// A command that runs as an ordinary user, who owns this folder from now on.
pub fn as_ordinary_user(name: &str, folder: &Path) -> Command {
    if is_root() {
        run(Command::new("chown").args(["-R", "65534:65534"]).arg(folder));
    }
    program(Path::new(""), name)
}

/// A program of the server, as an ordinary user.
fn program(bin: &Path, name: &str) -> Command {
    if !is_root() {
        return Command::new(bin.join(name));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(bin.join(name));
    command
}

/// The library that tells programs another time (Debian: libfaketime).
pub const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";

/// A command's wall clock is what this file says from now on. The monotonic clock stays: no setting of a clock moves it.
pub fn tell_time(command: &mut Command, clock: &Path) {
    command.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", clock);
    command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

/// The name of the user that runs servers where the test runs as root.
pub fn is_run_by_root() -> bool {
    is_root()
}

/// A program outside of the server's folder, as the server's user.
pub fn server_program(path: &str) -> Command {
    program(Path::new(""), path)
}

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{command:?}: {text}");
    text
}

impl Postgres {
    /// Starts a server; `None`, said by name, where none is installed.
    pub fn start() -> Option<Postgres> {
        Postgres::start_with(&[])
    }

    /// As [`Postgres::start`], with settings.
    pub fn start_with(settings: &[&str]) -> Option<Postgres> {
        let Some(bin) = programs() else {
            super::missing::missing("PostgreSQL is not installed (Debian: postgresql)");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder for the server");
        if is_root() {
            run(Command::new("chown").arg("65534:65534").arg(folder.path()));
        }
        let data = folder.path().join("data");
        run(Command::new("cp").arg("-a").arg(Postgres::fresh(&bin)).arg(&data));
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let mut server = Postgres { folder, port, network_of: None, child: None };
        let conf = data.join("postgresql.conf");
        let mut text = std::fs::read_to_string(&conf).expect("a configuration");
        let place = server.folder.path().display();
        text.push_str(&format!(
            "\nlisten_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{place}'\nfsync = off\nshared_buffers = 16MB\n"
        ));
        settings.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        std::fs::write(&conf, text).expect("a configuration");
        server.up();
        server.sql("CREATE DATABASE fleet");
        Some(server)
    }

    /// The data of a server that never ran. Making them takes ten times as long as a copy, so they stay under `target` for other tests
    /// and other runs; other arguments have a folder of their own.
    fn fresh(bin: &Path) -> PathBuf {
        let args = "--no-sync --username=owner --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C --no-instructions";
        let mut hasher = DefaultHasher::new();
        (bin, args, PASSWORD, is_root()).hash(&mut hasher);
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("postgres-{:x}", hasher.finish()));
        static MADE: Mutex<()> = Mutex::new(());
        let _one = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.exists() {
            return kept;
        }
        let folder = tempfile::tempdir().expect("a folder for the server");
        let (words, data) = (folder.path().join("password"), folder.path().join("data"));
        std::fs::write(&words, PASSWORD).expect("a password file");
        if is_root() {
            run(Command::new("chown").arg("65534:65534").arg(folder.path()).arg(&words));
        }
        run(program(bin, "initdb").args(args.split(' ')).arg("--pwfile").arg(&words).arg("-D").arg(&data));
        // Whole or not there: another process may make them at the same time.
        let copy = kept.with_extension(std::process::id().to_string());
        run(Command::new("cp").arg("-a").arg(&data).arg(&copy));
        if std::fs::rename(&copy, &kept).is_err() {
            run(Command::new("rm").arg("-rf").arg(&copy));
        }
        assert!(kept.exists(), "{} cannot be made", kept.display());
        kept
    }

    /// Starts the server on its folder, and waits until it answers.
    pub fn up(&mut self) {
        let bin = programs().expect("it was there");
        let start = Instant::now();
        loop {
            let mut command = program(&bin, "postgres");
            command.arg("-D").arg(self.folder.path().join("data"));
            if let Some(process) = self.network_of {
                command = in_network_of(process, &command);
            }
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().expect("the server starts");
            while child.try_wait().expect("it can be asked").is_none() {
                let asked = self.command("psql").args(["-d", "postgres", "-c", "SELECT 1"]).output().expect("psql runs");
                if asked.status.success() {
                    self.child = Some(child);
                    return;
                }
                assert!(start.elapsed() < Duration::from_secs(60), "{}", String::from_utf8_lossy(&asked.stderr));
                std::thread::sleep(Duration::from_millis(50));
            }
            // Processes of a server that was killed may hold its memory for a moment.
            assert!(start.elapsed() < Duration::from_secs(60), "the server does not start");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Lets TCP in without a password, as the socket.
    pub fn trust_tcp(&self) {
        let conf = self.folder.path().join("data/pg_hba.conf");
        let text = std::fs::read_to_string(&conf).expect("a file").replace("scram-sha-256", "trust");
        std::fs::write(&conf, text).expect("a file");
        self.sql("SELECT pg_reload_conf()");
    }

    /// Copies the folder of a server that does not run, or puts the copy in the place of the folder.
    pub fn copy(&self, from: &str, to: &str) {
        let (from, to) = (self.folder.path().join(from), self.folder.path().join(to));
        run(Command::new("rm").arg("-rf").arg(&to));
        run(Command::new("cp").arg("-a").arg(&from).arg(&to));
    }

    /// Gives files of the server's folder to its user alone.
    pub fn own(&self, files: &[&str]) {
        for file in files.iter().map(|file| self.folder.path().join(file)) {
            run(Command::new("chmod").arg("600").arg(&file));
            if is_root() {
                run(Command::new("chown").arg("65534:65534").arg(&file));
            }
        }
    }

    /// Kills the server at once.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }

    /// A program of the server, as its owner.
    pub fn command(&self, name: &str) -> Command {
        let mut command = Command::new(programs().expect("it was there").join(name));
        command.arg("-h").arg(self.folder.path()).args(["-p", &self.port.to_string(), "-U", "owner"]);
        command
    }

    /// What statements give, a line per row, columns joined by `|`.
    pub fn sql(&self, statements: &str) -> String {
        let database = if statements.starts_with("CREATE DATABASE") { "postgres" } else { "fleet" };
        let mut psql = self.command("psql");
        psql.args(["-d", database, "-At", "-v", "ON_ERROR_STOP=1", "-c", statements]);
        run(&mut psql).trim().to_string()
    }

    /// The first number of the first row.
    pub fn number(&self, statement: &str) -> i64 {
        let text = self.sql(statement);
        text.parse().unwrap_or_else(|_| panic!("{statement}: {text}"))
    }

    /// The address by its socket, which wants no password.
    pub fn socket(&self, role: &str) -> String {
        let place = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgresql://{role}@/fleet?host={place}&port={}", self.port)
    }

    /// The address by TCP, which wants a password.
    pub fn tcp(&self, role: &str) -> String {
        format!("postgresql://{role}@127.0.0.1:{}/fleet", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // At once, with all of its processes.
            let _ = Command::new("kill").args(["-QUIT", &child.id().to_string()]).status();
            let start = Instant::now();
            while child.try_wait().is_ok_and(|ended| ended.is_none()) && start.elapsed() < Duration::from_secs(5) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
