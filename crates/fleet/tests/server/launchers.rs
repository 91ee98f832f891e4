//! Programs that start equal workers: MPI, and a loop over ssh. They only start them; the queue deals out the tasks.

use super::{Fleet, SIMULATION, ended, until};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const OPTIONS: &str = "tasks=24 trials=3 sleep=30 lease=60000 poll=100";

/// What a command says, once it has ended well.
fn said(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}");
    text
}

/// A line for a shell: a worker whose journal has this ending.
pub fn line(fleet: &Fleet, ending: &str, options: &str) -> String {
    let (url, place) = (fleet.server.socket("tilewright_worker"), fleet.server.folder.path().display());
    format!("exec '{SIMULATION}' worker '{url}' journal='{place}/'{ending}.journal {options}")
}

fn all_done_once(fleet: &Fleet, said: &str) {
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND epoch = 1"), 24, "{said}");
    assert_eq!(ended(&[said.into()]).len(), 24, "{said}");
    assert_eq!((fleet.count("tw.trial"), fleet.journals()), (24 * 3, 24 * 3));
}

pub fn mpirun_starts_eight_workers() {
    if !Path::new("/usr/bin/mpirun").exists() {
        return super::missing::missing("Open MPI is not installed (Debian: openmpi-bin)");
    }
    let Some(fleet) = Fleet::new() else { return };
    let mut command = Command::new("mpirun");
    command.args(["-n", "8", "--oversubscribe", "sh", "-c", &line(&fleet, "rank$OMPI_COMM_WORLD_RANK", OPTIONS)]);
    // Containers run as root.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    all_done_once(&fleet, &said(&mut command));
    assert_eq!(fleet.count("tw.worker"), 8);
}

/// An ssh server of the test.
struct Sshd(Child);

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

pub fn a_loop_over_ssh_starts_workers() {
    const PROGRAM: &str = "/usr/sbin/sshd";
    if !Path::new(PROGRAM).exists() {
        return super::missing::missing("an ssh server is not installed (Debian: openssh-server)");
    }
    let Some(fleet) = Fleet::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    for key in ["host", "user"] {
        said(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f", &at(key)]));
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
    let conf = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nPidFile none\nUsePAM no\n",
        at("host"),
        at("user.pub")
    );
    std::fs::write(at("sshd_config"), conf).expect("a file");
    if super::postgres::is_run_by_root() {
        // Where its unprivileged part lives.
        std::fs::create_dir_all("/run/sshd").expect("a folder");
    }
    let mut server = Command::new(PROGRAM);
    server.args(["-D", "-f", &at("sshd_config")]).stdout(Stdio::null()).stderr(Stdio::null());
    let _server = Sshd(server.spawn().expect("it starts"));
    until("the ssh server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let options =
        format!("-p {port} -i {} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR", at("user"));
    let script = format!(
        "for node in a b c; do ssh {options} 127.0.0.1 \"{}\" & all=\"$all $!\"; done; for one in $all; do wait $one || exit 1; done",
        line(&fleet, "$node", OPTIONS)
    );
    all_done_once(&fleet, &said(Command::new("sh").args(["-c", &script])));
    assert_eq!(fleet.count("tw.worker"), 3);
}
