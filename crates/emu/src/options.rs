//! What a run is asked for (checks, interleaving, counting) and what it hands back.

use serde::{Deserialize, Serialize};

/// Which rules are watched. Bounds of every access, division by zero, divergent barriers and deadlock are always watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// Vector accesses are aligned to their total size.
    pub alignment: bool,
    /// No register, shared or global memory is read before it is written.
    pub initialised: bool,
    /// Conflicting accesses to shared memory are ordered by barriers; asynchronous copies are waited for.
    pub shared_races: bool,
    /// Conflicting accesses to global memory within one launch are ordered by barriers of one work-group.
    pub global_races: bool,
    /// No result of signed integer arithmetic that overflowed decides, addresses or is stored.
    pub overflow: bool,
}

impl Checks {
    /// Nothing beyond what is always watched: the fast setting.
    pub const fn none() -> Checks {
        Checks { alignment: false, initialised: false, shared_races: false, global_races: false, overflow: false }
    }
    /// Everything.
    pub const fn all() -> Checks {
        Checks { alignment: true, initialised: true, shared_races: true, global_races: true, overflow: true }
    }
}

/// How kernels are run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Rules to watch.
    pub checks: Checks,
    /// Runs every wave on its own, switching between them at random. This makes a missing barrier visible in values too, and lets
    /// asynchronous copies land as late as they may.
    pub interleave: bool,
    /// Seed of every random choice.
    pub seed: u64,
    /// Host threads that run work-groups side by side; 0 takes one per core.
    pub threads: usize,
    /// Fills [`Report::counters`]; slower.
    pub count: bool,
    /// Lanes per wave for kernels that leave [`tilewright_ir::Kernel::wave`] at 0.
    pub wave: u32,
    /// Loop iterations one work-group may spend before [`crate::EmuError::Runaway`]; 0 for no limit.
    pub max_steps: u64,
    /// Only one in `every` work-groups (or clusters of them) of a launch runs, and the last one. This is a sample of a launch
    /// that is too large to be computed whole. 0 or 1: all of them.
    pub every: u64,
}

impl Default for Options {
    /// All checks, lockstep, all cores, no counting, waves of 32, no step limit.
    fn default() -> Options {
        Options { checks: Checks::all(), interleave: false, seed: 0, threads: 0, count: false, wave: 32, max_steps: 0, every: 1 }
    }
}

impl Options {
    /// No checks: as fast as the emulator goes.
    pub fn fast() -> Options {
        Options { checks: Checks::none(), ..Options::default() }
    }
}

/// Work counted over all work-groups of a launch. "Accesses" and instructions are counted once per wave that has an active lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Floating-point operations of active threads; a fused multiply-add counts as 2.
    pub flop: u64,
    /// Wave instructions: fused multiply-adds (also multiply then add), per vector component.
    pub fma: u64,
    /// Wave instructions: other arithmetic that differs between threads, per vector component.
    pub alu: u64,
    /// Arithmetic that is the same for all threads (addresses, counters), once per work-group context.
    pub uniform: u64,
    /// Wave instructions: global loads.
    pub global_loads: u64,
    /// Wave instructions: global stores.
    pub global_stores: u64,
    /// Bytes asked for by global loads and asynchronous copies.
    pub global_load_bytes: u64,
    /// Bytes of global stores.
    pub global_store_bytes: u64,
    /// 32-byte sectors touched by global loads and asynchronous copies, distinct per wave access.
    pub global_load_sectors: u64,
    /// 32-byte sectors touched by global stores, distinct per wave access.
    pub global_store_sectors: u64,
    /// 128-byte lines touched by global loads and asynchronous copies, distinct per wave access.
    pub global_load_lines: u64,
    /// 128-byte lines touched by global stores, distinct per wave access.
    pub global_store_lines: u64,
    /// Wave instructions: shared loads.
    pub shared_loads: u64,
    /// Wave instructions: shared stores.
    pub shared_stores: u64,
    /// Bytes moved by shared loads and stores.
    pub shared_bytes: u64,
    /// Shared-memory cycles of those accesses: 32 banks of 4 bytes, conflicts included.
    pub shared_cycles: u64,
    /// Cycles of those above what conflict-free accesses of the same widths need.
    pub bank_conflicts: u64,
    /// Wave instructions: atomics, shared and global.
    pub atomics: u64,
    /// Wave instructions: matrix products.
    pub matrix: u64,
    /// Wave instructions: asynchronous copies; bulk copies too.
    pub async_copies: u64,
    /// Barriers of any scope, once per wave that arrives.
    pub barriers: u64,
    /// Wave instructions: shuffles.
    pub shuffles: u64,
}

impl Counters {
    /// Adds another count to this one.
    pub fn add(&mut self, other: &Counters) {
        let pairs = [
            (&mut self.flop, other.flop),
            (&mut self.fma, other.fma),
            (&mut self.alu, other.alu),
            (&mut self.uniform, other.uniform),
            (&mut self.global_loads, other.global_loads),
            (&mut self.global_stores, other.global_stores),
            (&mut self.global_load_bytes, other.global_load_bytes),
            (&mut self.global_store_bytes, other.global_store_bytes),
            (&mut self.global_load_sectors, other.global_load_sectors),
            (&mut self.global_store_sectors, other.global_store_sectors),
            (&mut self.global_load_lines, other.global_load_lines),
            (&mut self.global_store_lines, other.global_store_lines),
            (&mut self.shared_loads, other.shared_loads),
            (&mut self.shared_stores, other.shared_stores),
            (&mut self.shared_bytes, other.shared_bytes),
            (&mut self.shared_cycles, other.shared_cycles),
            (&mut self.bank_conflicts, other.bank_conflicts),
            (&mut self.atomics, other.atomics),
            (&mut self.matrix, other.matrix),
            (&mut self.async_copies, other.async_copies),
            (&mut self.barriers, other.barriers),
            (&mut self.shuffles, other.shuffles),
        ];
        for (mine, theirs) in pairs {
            *mine += theirs;
        }
    }
}

/// What a finished run tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Work-groups run.
    pub groups: u64,
    /// Work counted; all zero unless [`Options::count`].
    pub counters: Counters,
}
