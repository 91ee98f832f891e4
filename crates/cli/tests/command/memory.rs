//! What a machine with little memory says. Limits are set by the shell.
#![cfg(target_os = "linux")]

use crate::common;
use common::{Bench, Ran};
use std::process::Command;

/// A result that spans 200 MB, in an address space that holds it once but not twice.
pub fn an_emulator_without_memory_says_so() {
    let line = "verify gemm --m 2 --n 8 --k 4 --dtype f16 --ldc 100000000 --device emu:sm_80";
    let bench = Bench::new();
    let inner = bench.command(line);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 440000; exec \"$0\" \"$@\""]).arg(inner.get_program()).args(inner.get_args());
    limited.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ran = Ran::new(line, limited.output().expect("the shell runs"));
    assert!(ran.err.contains("emu:sm_80: no room for"), "{}", ran.err);
    ran.ends(1);
}
