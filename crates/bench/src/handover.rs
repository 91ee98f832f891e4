//! Going on in a new process where a device is lost in this one. A hung candidate, or a hung library, costs one trial or one
//! case, not the run. What the new process must know goes through a file.

use crate::error::{BenchError, Lost};
use crate::record::Record;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The option that names the file.
pub const OPTION: &str = "--go-on";
/// Candidates of one case that may take the device down before the case is given up.
const MOST_LOSSES: usize = 4;

/// What a process knows that goes on for another with the cases of a command. Commands may write more beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GoOn {
    /// Cases that are done with.
    pub skip: usize,
    /// Those among them that failed.
    pub broken: usize,
    /// Seconds since the run began.
    pub seconds: f64,
    /// Of the next case: what tuning it has cost already.
    pub lost: Lost,
    /// Records of the run.
    pub records: Vec<Record>,
}

impl GoOn {
    /// What comes after a case whose device was lost: the same again if a candidate did it while tuning, the next otherwise.
    pub fn after(&mut self, error: &BenchError) {
        match error {
            BenchError::Lost { lost, .. } if self.lost.plans.len() + lost.plans.len() < MOST_LOSSES && !lost.plans.is_empty() => {
                self.lost.plans.extend(lost.plans.iter().cloned());
                self.lost.seconds += lost.seconds;
            }
            _ => {
                self.skip += 1;
                self.broken += 1;
                self.lost = Lost::default();
            }
        }
    }
}

/// Reads what another process has left, if one has.
///
/// # Errors
/// [`BenchError::File`].
pub fn left<T: DeserializeOwned + Default>(path: Option<&Path>) -> Result<T, BenchError> {
    let Some(path) = path else { return Ok(T::default()) };
    let text = std::fs::read_to_string(path).map_err(|e| BenchError::unreadable(path, &e))?;
    serde_json::from_str(&text).map_err(|e| BenchError::file(path, e))
}

/// Lets a new process with the same arguments go on from what this one leaves, and waits for its end. [`BenchError::HandedOver`] with its
/// exit code; [`BenchError::Plan`] if there is none.
pub fn hand_over<T: Serialize>(state: &T) -> BenchError {
    let path = std::env::temp_dir().join(format!("tilewright-bench-{}.json", std::process::id()));
    let run = || -> std::io::Result<Option<i32>> {
        std::fs::write(&path, serde_json::to_string(state)?)?;
        let mut args = without(std::env::args_os().skip(1));
        args.extend([OPTION.into(), path.clone().into()]);
        let status = Command::new(std::env::current_exe()?).args(args).status();
        let _ = std::fs::remove_file(&path);
        Ok(status?.code())
    };
    eprintln!("the device is lost in this process; a new one goes on");
    match run() {
        Ok(code) => BenchError::HandedOver(code.and_then(|c| u8::try_from(c).ok()).unwrap_or(1)),
        Err(e) => BenchError::Plan(format!("no new process could be started after the device was lost: {e}")),
    }
}

/// Arguments less those of an earlier handing over.
fn without(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut args = args;
    while let Some(arg) = args.next() {
        if arg == OPTION {
            drop(args.next());
        } else {
            kept.push(arg);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_costs_a_trial_and_anything_else_the_case() {
        let lost = |n: usize| BenchError::Lost {
            why: "hung".into(),
            lost: Lost { plans: (0..n).map(|i| format!("plan {i}")).collect(), seconds: 1.5 },
        };
        let mut go_on = GoOn { skip: 3, ..GoOn::default() };
        go_on.after(&lost(1));
        go_on.after(&lost(1));
        assert_eq!((go_on.skip, go_on.broken, go_on.lost.plans.len(), go_on.lost.seconds), (3, 0, 2, 3.0));
        go_on.after(&lost(0));
        assert_eq!((go_on.skip, go_on.broken, go_on.lost.clone()), (4, 1, Lost::default()));
        // A case that loses the device again and again is given up.
        (0..MOST_LOSSES).for_each(|_| go_on.after(&lost(1)));
        assert_eq!((go_on.skip, go_on.broken), (5, 2));
    }

    #[test]
    fn what_is_left_is_read_back_and_arguments_are_not_doubled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("left");
        let go_on = GoOn { skip: 2, records: vec![crate::record::tests::record("a", "b", Some(1.0))], ..GoOn::default() };
        std::fs::write(&path, serde_json::to_string(&go_on).unwrap()).unwrap();
        assert_eq!(left::<GoOn>(Some(&path)).unwrap(), go_on);
        assert_eq!(left::<GoOn>(None).unwrap(), GoOn::default());
        let args = ["gemm", OPTION, "x", "--resume"].map(OsString::from);
        assert_eq!(without(args.into_iter()), ["gemm", "--resume"]);
    }
}
