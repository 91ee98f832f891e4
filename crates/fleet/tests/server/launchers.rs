//! Programs that start equal workers: MPI, and a loop over ssh. They only start them; the queue deals out the tasks.

#[path = "../support/ssh.rs"]
mod node;

use super::{Fleet, SIMULATION, ended, missing, postgres, until};
use node::Sshd;
use std::path::Path;
use std::process::Command;

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

pub fn a_loop_over_ssh_starts_workers() {
    let Some(fleet) = Fleet::new() else { return };
    let Some(server) = Sshd::start() else { return };
    let script = format!(
        "for node in a b c; do ssh -F {} $node \"{}\" & all=\"$all $!\"; done; for one in $all; do wait $one || exit 1; done",
        server.config(),
        line(&fleet, "$node", OPTIONS)
    );
    all_done_once(&fleet, &said(Command::new("sh").args(["-c", &script])));
    assert_eq!(fleet.count("tw.worker"), 3);
}
