//! A real Slurm of one node: a job array with a requeued and a cancelled task, and `srun`.

#[path = "../support/slurm.rs"]
mod node;

use super::launchers::line;
use super::{Fleet, full, missing, postgres, until};
use node::Slurm;

pub fn a_job_array_with_a_requeue_and_a_cancel_does_all_tasks() {
    let Some(fleet) = Fleet::new() else { return };
    let Some(slurm) = Slurm::start() else { return };
    let options = "tasks=24 trials=10 sleep=60 lease=2000 poll=100";
    let wrapped = line(&fleet, "task$SLURM_ARRAY_TASK_ID", options);
    let said = slurm.says("sbatch", &["--parsable", "--array=1-4", "--requeue", "-o", "%a.out", "--wrap", &wrapped]);
    let job = said.trim().to_string();
    assert!(job.parse::<u32>().is_ok(), "{said}");
    until("trials are shipped", || fleet.count("tw.trial") > 20);
    until("all four hold tasks", || fleet.count("tw.task WHERE state = 'leased'") == 4);
    assert_eq!(slurm.says("scontrol", &["requeue", &format!("{job}_1")]), "");
    assert_eq!(slurm.says("scancel", &["--signal=KILL", &format!("{job}_2")]), "");
    until("the others do all tasks", || fleet.count("tw.task WHERE state = 'done'") == 24);
    assert!(fleet.count("tw.task WHERE epoch > 1 AND lapses > 0") > 0, "no task was taken from a worker that held it");
    assert_eq!(fleet.count("(SELECT task FROM tw.trial GROUP BY task HAVING count(DISTINCT line) < 10) t"), 0);
    // The same command by srun, in another run. A requeued task of the array waits for minutes, and finds nothing to do.
    slurm.says("scancel", &[&job]);
    let wrapped = line(&fleet, "srun$SLURM_PROCID", &format!("run=later {options}"));
    let said = slurm.says("srun", &["-n", if full() { "4" } else { "2" }, "sh", "-c", &wrapped]);
    assert_eq!(said.matches("done p").count(), 24, "{said}");
    assert_eq!(fleet.count("tw.task WHERE state = 'done'"), 48);
}
