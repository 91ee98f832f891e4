//! The guide's lines for launchers: real ones start real nodes, which share a run.

#[path = "../../../fleet/tests/support/slurm.rs"]
mod slurm;
#[path = "../../../fleet/tests/support/ssh.rs"]
mod ssh;

use crate::common::{Bench, Ran, missing};
use crate::fleet::{CASES, postgres, postgres::Postgres, server, until, worker};
use crate::recipes::path;
use std::path::Path;
use std::process::Command;

const GUIDE: &str = include_str!("../../../../docs/guide/cluster.md");

/// What the guide's table has in backticks for a launcher, with the guide's command in the place of COMMAND.
fn quoted(launcher: &str, nth: usize) -> String {
    let command = GUIDE.lines().find(|line| line.starts_with("tilewright tune") && line.contains("--device all"));
    let row =
        GUIDE.lines().find(|line| line.starts_with(&format!("| {launcher}"))).unwrap_or_else(|| panic!("no row: {launcher}"));
    let line = row.split('`').nth(2 * nth + 1).unwrap_or_else(|| panic!("no line: {row}"));
    line.replace("COMMAND", command.expect("the command"))
}

/// Text of the guide with one part replaced, which must be there.
fn replaced(text: &str, part: &str, by: &str) -> String {
    assert!(text.contains(part), "{part}: {text}");
    text.replace(part, by)
}

/// A line of the guide for a small run on the emulator.
fn small(line: &str, run: &str) -> String {
    replaced(&replaced(line, "--run night --device all", &format!("--run {run} --device emu")), "--budget 30s", "--budget 1")
}

struct Cluster {
    bench: Bench,
    server: Postgres,
}

impl Cluster {
    fn new() -> Option<Cluster> {
        let bench = Bench::new();
        std::fs::write(bench.path("shapes.csv"), CASES).expect("a file");
        let server = server(&bench)?;
        Some(Cluster { bench, server })
    }

    /// Sets a command up as the guide's first lines do on each node.
    fn ready<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("TILEWRIGHT_FLEET", worker(&self.server)).env("PATH", format!("{}:{}", self.bench.text("bin"), path()));
        command.env("TILEWRIGHT_RECORDS", self.bench.path("records.sqlite")).env("TILEWRIGHT_CACHE", self.bench.path("cache"));
        command.current_dir(self.bench.folder.path())
    }

    fn run(&self, mut shell: Command, line: &str) {
        let command = self.ready(shell.args(["-c", line]));
        Ran::new(line, command.output().expect("it runs")).ends(0);
    }

    /// All problems of a run were tuned, and so many nodes worked on it or came too late.
    fn tuned(&self, run: &str, nodes: i64) {
        let tasks = format!("tw.task k JOIN tw.run r ON r.id = k.run WHERE r.name = '{run}'");
        assert_eq!(self.server.sql(&format!("SELECT k.state, count(*) FROM {tasks} GROUP BY 1")), "done|4");
        assert_eq!(self.server.sql("SELECT how, count(*) FROM tw.worker GROUP BY 1"), format!("finished|{nodes}"));
        self.server.sql("DELETE FROM tw.worker");
    }
}

/// `srun` and a job array. The test's Slurm has one node, which gets two tasks.
pub fn slurm_starts_nodes_as_the_guide_says() {
    let Some(cluster) = Cluster::new() else { return };
    let Some(slurm) = slurm::Slurm::start() else { return };
    let line = small(&quoted("Slurm, one task per node", 0), "srun");
    let two = replaced(&line, "-N 8 --ntasks-per-node=1", "-N 1 --ntasks-per-node=2");
    cluster.run(slurm.command("sh"), &two);
    cluster.tuned("srun", 2);

    let (_, command) = line.split_once(" tilewright ").expect("the command");
    let script = format!("#!/bin/sh\nexec tilewright {}\n", replaced(command, "--run srun", "--run array"));
    std::fs::write(cluster.bench.path("script"), script).expect("a file");
    let line = replaced(&quoted("Slurm job array", 1), "--array=1-8", "--array=1-2");
    cluster.run(slurm.command("sh"), &format!("{line} script"));
    until("the array ends", || slurm.says("squeue", &["-h"]).trim().is_empty());
    cluster.tuned("array", 2);
}

/// Two ranks on the test's one host.
pub fn mpi_starts_nodes_as_the_guide_says() {
    if !Path::new("/usr/bin/mpirun").exists() {
        return missing::missing("Open MPI is not installed (Debian: openmpi-bin)");
    }
    let Some(cluster) = Cluster::new() else { return };
    let line = replaced(&small(&quoted("MPI", 0), "mpi"), "ppr:1:node", "ppr:2:node");
    let mut shell = Command::new("sh");
    // Containers run as root, perhaps on one core.
    shell.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    shell.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    cluster.run(shell, &line);
    cluster.tuned("mpi", 2);
}

/// The loop starts the block of lines that the guide has for every node. Three names stand for this host.
pub fn ssh_starts_nodes_as_the_guide_says() {
    let Some(cluster) = Cluster::new() else { return };
    let Some(nodes) = ssh::Sshd::start() else { return };
    let (_, block) = GUIDE.split_once("Start the same command on every node").expect("the guide's block");
    let block = block.split("```").nth(1).and_then(|block| block.strip_prefix("text\n")).expect("a block of text");
    let url = format!("'{}'", worker(&cluster.server));
    let block = replaced(&small(block, "ssh"), "postgresql://tilewright_worker@db/fleet", &url);
    let (here, path) = (cluster.bench.folder.path().display(), path());
    std::fs::write(
        cluster.bench.path("node"),
        format!("cd '{here}'\nexport PATH='{path}' TILEWRIGHT_RECORDS=records.sqlite TILEWRIGHT_CACHE=cache\n{block}"),
    )
    .expect("a file");
    // The user's own configuration names the nodes.
    std::fs::create_dir(cluster.bench.path("bin")).expect("a folder");
    let (text, ssh) = (cluster.bench.path("ssh"), cluster.bench.path("bin/ssh"));
    std::fs::write(&text, format!("#!/bin/sh\nexec /usr/bin/ssh -F '{}' \"$@\"\n", nodes.config())).expect("a file");
    // `install` writes it: a child that another test forks could hold a file of this process open, and an open script does not start.
    assert!(Command::new("install").arg("-m755").args([&text, &ssh]).status().is_ok_and(|status| status.success()));
    let line = replaced(&quoted("ssh", 0), "...", &format!("sh '{here}/node'"));
    cluster.run(Command::new("sh"), &line);
    cluster.tuned("ssh", 3);
}
