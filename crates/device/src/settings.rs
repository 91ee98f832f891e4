//! Settings of a GPU that change its times: the profile of a MIG instance, error correction, the power limit. The driver's program
//! `nvidia-smi` tells them.

use crate::identity::{Found, Identity, spell};
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time for an answer: a driver in trouble may give none.
const LIMIT: Duration = Duration::from_secs(20);

impl Identity {
    /// The settings in words, the same for equal settings: `MIG 1g.10gb, ECC Enabled, 700.00 W`. `None` where the driver does not tell.
    pub fn settings(&self) -> Option<String> {
        let Found::Cuda(uuid) = &self.0 else { return None };
        let listed = answer(&["-L"])?;
        let queried = answer(&["--query-gpu=uuid,ecc.mode.current,power.limit", "--format=csv,noheader"])?;
        settings(&spell(uuid), &listed, &queried)
    }
}

/// What `nvidia-smi` writes.
fn answer(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("nvidia-smi");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let start = Instant::now();
    // Some lines per GPU fit into the pipe.
    while child.try_wait().ok()?.is_none() {
        if start.elapsed() > LIMIT {
            let _ = (child.kill(), child.wait());
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut text = String::new();
    child.stdout.take()?.read_to_string(&mut text).ok()?;
    Some(text)
}

/// The settings of a UUID in a list of GPUs and MIG instances and in a table of GPUs.
fn settings(uuid: &str, listed: &str, queried: &str) -> Option<String> {
    let mut gpu = None;
    let mut said = Vec::new();
    for line in listed.lines() {
        let Some((what, name)) = line.split_once("(UUID: ") else { continue };
        let name = name.trim_end_matches(')');
        let is_instance = what.trim_start().starts_with("MIG");
        if !is_instance {
            gpu = Some(name);
        }
        if name.ends_with(uuid) {
            if is_instance {
                said.push(what.split_whitespace().take(2).collect::<Vec<_>>().join(" "));
            }
            break;
        }
    }
    let row = queried.lines().find_map(|line| line.strip_prefix(gpu?))?;
    let mut columns = row.split(',').map(str::trim).skip(1);
    let (ecc, power) = (columns.next()?, columns.next()?);
    said.push(format!("ECC {ecc}"));
    said.push(power.into());
    Some(said.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa)\n  MIG 1g.10gb     Device  0: (UUID: MIG-cccc)\n  MIG 3g.40gb     \
                          Device  1: (UUID: MIG-dddd)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb)\n";
    const QUERIED: &str = "GPU-aaaa, Enabled, 700.00 W\nGPU-bbbb, [N/A], 450.00 W\n";

    #[test]
    fn settings_are_those_of_the_gpu_and_of_its_instance() {
        let of = |uuid: &str| settings(uuid, LISTED, QUERIED);
        assert_eq!(of("aaaa").as_deref(), Some("ECC Enabled, 700.00 W"));
        assert_eq!(of("bbbb").as_deref(), Some("ECC [N/A], 450.00 W"));
        assert_eq!(of("dddd").as_deref(), Some("MIG 3g.40gb, ECC Enabled, 700.00 W"));
        assert_eq!(settings("aaaa", LISTED, "GPU-aaaa\n"), None);
        assert_eq!(settings("aaaa", "", ""), None);
    }
}
