//! A real Slurm of one node, for a test. Test files of other crates include this file by its path.

use super::{missing, postgres, until};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const PROGRAMS: [&str; 3] = ["/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged"];

/// Slurm's processes, in the foreground as children of the test.
pub struct Slurm {
    folder: tempfile::TempDir,
    children: Vec<Child>,
}

impl Drop for Slurm {
    fn drop(&mut self) {
        self.children.iter().rev().for_each(|child| drop(Command::new("kill").arg(child.id().to_string()).status()));
        self.children.iter_mut().for_each(|child| drop(child.wait()));
    }
}

impl Slurm {
    /// Starts it; `None`, said by name, where it is not installed or may not run.
    pub fn start() -> Option<Slurm> {
        if PROGRAMS.iter().any(|program| !Path::new(program).exists()) {
            missing::missing("Slurm is not installed (Debian: slurmctld slurmd slurm-client munge)");
            return None;
        }
        if !postgres::is_run_by_root() {
            missing::skipped("Slurm's daemon of a node needs root");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        // munge demands that all can reach its socket.
        assert!(Command::new("chmod").arg("755").arg(folder.path()).status().is_ok_and(|status| status.success()));
        ["state", "spool"].iter().for_each(|name| std::fs::create_dir(at(name)).expect("a folder"));
        let ports: Vec<u16> = [0; 2]
            .map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a free port"))
            .iter()
            .map(|l| l.local_addr().expect("a port").port())
            .collect();
        let place = folder.path().display();
        let conf = format!(
            "ClusterName=test\nSlurmctldHost=node(127.0.0.1)\nSlurmctldPort={}\nSlurmdPort={}\nAuthType=auth/munge\nAuthInfo=socket={place}/munge.sock\n\
             CredType=cred/munge\nSlurmUser=root\nSlurmdUser=root\nStateSaveLocation={place}/state\nSlurmdSpoolDir={place}/spool\n\
             SlurmctldPidFile={place}/ctld.pid\nSlurmdPidFile={place}/d.pid\nProctrackType=proctrack/pgid\nTaskPlugin=task/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\nMpiDefault=none\nSlurmdParameters=config_overrides\n\
             NodeName=node NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN\nPartitionName=all Nodes=node Default=YES State=UP\n",
            ports[0], ports[1]
        )
        // The controller must run on the host that is named.
        .replace("node(", &format!("{}(", host()));
        std::fs::write(at("slurm.conf"), conf).expect("a file");
        std::fs::write(at("munge.key"), [7; 1024]).expect("a file");
        assert!(Command::new("chmod").arg("400").arg(at("munge.key")).status().is_ok_and(|status| status.success()));
        let mut slurm = Slurm { folder, children: Vec::new() };
        let option = |name: &str, file: &str| format!("--{name}={}", slurm.at(file).display());
        let munge = [
            option("key-file", "munge.key"),
            option("socket", "munge.sock"),
            option("pid-file", "munge.pid"),
            option("log-file", "munge.log"),
            option("seed-file", "munge.seed"),
        ];
        slurm.add(PROGRAMS[2], &["--foreground", "--force"], &munge);
        until("munge answers", || slurm.at("munge.sock").exists());
        slurm.add(PROGRAMS[0], &["-D", "-c"], &[]);
        slurm.add(PROGRAMS[1], &["-D", "-N", "node"], &[]);
        until("the node is idle", || slurm.says("sinfo", &["-h", "-o", "%T"]).trim() == "idle");
        Some(slurm)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command that talks to it.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.at("slurm.conf")).current_dir(self.folder.path());
        command
    }

    fn add(&mut self, program: &str, arguments: &[&str], more: &[String]) {
        let mut command = self.command(program);
        command.args(arguments).args(more).stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(command.spawn().expect("it starts"));
    }

    /// What such a command says.
    pub fn says(&self, program: &str, arguments: &[&str]) -> String {
        let out = self.command(program).args(arguments).output().expect("it runs");
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
    }
}

fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().split('.').next().unwrap_or_default().into()
}
