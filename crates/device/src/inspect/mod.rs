//! Reads a compiler's code for a kernel's main loop, without a device. It finds the issue of loads, the number of math
//! instructions before their wait, the store to shared memory, and the resources that the kernel uses.
//!
//! AMD's architectures go through clang to assembly, NVIDIA's through NVRTC and nvdisasm. Both become one kind of listing
//! (`listing`), whose loops (`flow`) are laid out and measured (`trace`).
//!
//! The main loop is the loop over k-tiles. A persistent kernel has it inside a loop over tiles of the result.
//! Distances count instructions of class [`Class::Math`] of one wave. Both sides of a branch are counted. The wait of a load is found
//! through the hardware's counters: AMD's `vmcnt`, NVIDIA's scoreboards and groups of copies.

mod flow;
mod gcn;
mod listing;
mod live;
mod nvdisasm;
mod sass;
mod trace;

pub use listing::Class;

use crate::amd::Clang;
use crate::{DeviceError, Options};
use flow::Loop;
use listing::{Instruction, Listing};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tilewright_ir::{Dialect, Kernel, Target};

/// A compiled kernel, read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// Architecture: `gfx942`, `sm_90a`.
    pub arch: String,
    /// Language of the source that was compiled.
    pub dialect: Dialect,
    /// Entry point.
    pub entry: String,
    /// What it uses.
    pub usage: Usage,
    /// Its loops that compute or load: the one with the most math first.
    pub loops: Vec<LoopReport>,
    /// The assembly or machine code in the disassembler's words.
    #[serde(skip)]
    pub assembly: String,
}

/// What a kernel uses of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Registers per thread (vector registers on AMD, accumulation registers included where the file is shared).
    pub registers: u32,
    /// Scalar registers per wave, on AMD.
    pub scalar_registers: Option<u32>,
    /// Bytes per thread that did not fit into registers.
    pub spill_bytes: u32,
    /// Private memory per thread in bytes.
    pub private_bytes: u32,
    /// Shared memory per work-group in bytes.
    pub shared_bytes: u32,
    /// Threads per work-group.
    pub threads: u32,
    /// Waves per SIMD (partition of a multiprocessor) that registers, shared memory and slots leave room for.
    pub waves_per_simd: u32,
    /// Work-groups per compute unit in that case.
    pub groups_per_unit: u32,
}

/// What a loop is to the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The loop with the most math.
    Main,
    /// Another one that brings tiles into shared memory: that of the load waves.
    Load,
}

/// A loop of the kernel, its rounds laid out from the first load on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoopReport {
    /// What it is for.
    pub role: Role,
    /// Instructions of one round.
    pub instructions: u32,
    /// It holds an inner loop, whose instructions are counted once.
    pub nested: bool,
    /// Instructions of each class.
    pub counts: BTreeMap<Class, u32>,
    /// Matrix instructions of one round.
    pub matrix: u32,
    /// Integer instructions of one round that every lane executes: addresses, predicates and counters.
    pub integer: u32,
    /// Most vector registers that hold values which are needed later, anywhere in the code that only this loop's waves run. That
    /// is all of the kernel where there is no other role. Known on AMD.
    pub live_registers: Option<u32>,
    /// The round as runs of one class, in order. On NVIDIA a wait stands before the instruction that waits.
    pub runs: Vec<Run>,
    /// Each load or copy and how long it may take.
    pub flights: Vec<Flight>,
    /// The class of every instruction of the round, for pictures.
    #[serde(skip)]
    pub order: Vec<Class>,
    /// An instruction of the loop, by its number in the kernel.
    #[serde(skip)]
    pub(crate) within: usize,
}

/// Consecutive instructions of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// Their class.
    pub class: Class,
    /// How many.
    pub count: u32,
    /// Position of the first within the round, all instructions counted.
    pub at: u32,
    /// The first.
    pub text: String,
    /// Waits: how many loads (AMD) or groups of copies (NVIDIA) may be unfinished.
    pub pending: Option<u32>,
}

/// A load from its issue to its wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Flight {
    /// The instruction.
    pub text: String,
    /// Position within the round, all instructions counted.
    pub at: u32,
    /// Math of the round before it.
    pub math_before: u32,
    /// Math between it and the instruction that waits for it, over as many rounds as that takes. `None` if nothing does.
    pub math_to_wait: Option<u32>,
    /// Position of that instruction within its round.
    pub wait_at: Option<u32>,
    /// Math between that and the next store to shared memory. `None` if there is no store.
    pub math_to_store: Option<u32>,
}

impl LoopReport {
    /// Instructions of a class in one round.
    pub fn count(&self, class: Class) -> u32 {
        self.counts.get(&class).copied().unwrap_or(0)
    }
    /// Least math between a load and its wait; `None` if there is no load or one is never waited for.
    pub fn least_math_to_wait(&self) -> Option<u32> {
        self.flights.iter().map(|f| f.math_to_wait).min().flatten()
    }
}

impl Inspection {
    /// The loop with the most math.
    pub fn main_loop(&self) -> Option<&LoopReport> {
        self.loops.iter().find(|l| l.role == Role::Main)
    }
}

/// Compiles a kernel for an architecture and reads the result. `dialect`: HIP (the default) or OpenCL for AMD's
/// architectures, CUDA for NVIDIA's.
///
/// # Errors
/// [`DeviceError::BadSpec`] for an unknown architecture or a dialect it does not have, [`DeviceError::Missing`] without
/// clang, NVRTC or nvdisasm, and what the compiler refuses.
pub fn inspect(kernel: &Kernel, arch: &str, dialect: Option<Dialect>, options: &Options) -> Result<Inspection, DeviceError> {
    let bad = |reason: &str| DeviceError::BadSpec { spec: arch.into(), reason: reason.into() };
    let target = Target::by_arch(arch).ok_or_else(|| bad("no description of this architecture is built in"))?;
    match (target.dialect, dialect) {
        (Dialect::Cuda, None | Some(Dialect::Cuda)) => nvidia(kernel, &target, options),
        (Dialect::Cuda, _) => Err(bad("machine code for NVIDIA's architectures comes from CUDA C++")),
        (_, dialect) => amd(kernel, &target, dialect.unwrap_or(Dialect::Hip)),
    }
}

/// SIMDs of an AMD compute unit.
const SIMDS: u32 = 4;
/// Partitions of an NVIDIA multiprocessor.
const PARTITIONS: u32 = 4;

fn amd(kernel: &Kernel, target: &Target, dialect: Dialect) -> Result<Inspection, DeviceError> {
    let code = Clang::find()?.compile(kernel, &target.arch, dialect)?;
    let u = code.usage;
    let group_waves = kernel.threads.div_ceil(u.wave.max(1)).max(1);
    let usage = Usage {
        registers: u.vgprs,
        scalar_registers: Some(u.sgprs),
        // A scalar register is spilled to lanes of a vector register: one word per wave.
        spill_bytes: 4 * (u.vgpr_spills + u.sgpr_spills),
        private_bytes: u.private_bytes,
        shared_bytes: u.lds_bytes,
        threads: kernel.threads,
        waves_per_simd: u.waves_per_simd,
        groups_per_unit: u.waves_per_simd * SIMDS / group_waves,
    };
    let listing = gcn::parse(&code.assembly, &code.source.entry);
    let mut read = read(target, dialect, code.source.entry, usage, &listing, code.assembly)?;
    live::count(&listing, &mut read.loops);
    Ok(read)
}

fn nvidia(kernel: &Kernel, target: &Target, options: &Options) -> Result<Inspection, DeviceError> {
    let code = crate::cuda::compile(kernel, &target.arch, options)?;
    let assembly = nvdisasm::disassemble(&code.code)?;
    let r = code.resources;
    let (registers, shared_bytes) = (r.registers.unwrap_or(0), r.shared_bytes.unwrap_or(0));
    let groups_per_unit = nvidia_groups(kernel.threads, registers, shared_bytes, target);
    let usage = Usage {
        registers,
        scalar_registers: None,
        spill_bytes: r.spill_bytes.unwrap_or(0),
        private_bytes: r.private_bytes.unwrap_or(0),
        shared_bytes,
        threads: kernel.threads,
        waves_per_simd: groups_per_unit * kernel.threads.div_ceil(target.wave.max(1)) / PARTITIONS,
        groups_per_unit,
    };
    let listing = sass::parse(&assembly, &code.source.entry);
    read(target, Dialect::Cuda, code.source.entry, usage, &listing, assembly)
}

/// Work-groups that a multiprocessor holds at once. Registers are given out to waves in units of 256, and each
/// work-group's shared memory has 1 KiB more for the system (sm_80 and up).
fn nvidia_groups(threads: u32, registers: u32, shared_bytes: u32, target: &Target) -> u32 {
    const REGISTER_UNIT: u32 = 256;
    const SYSTEM_SHARED: u32 = 1024;
    let limits = &target.limits;
    let waves = threads.div_ceil(target.wave.max(1)).max(1);
    let held = waves * (registers * target.wave).next_multiple_of(REGISTER_UNIT);
    let by_registers = limits.registers_per_unit / held.max(1);
    let by_shared = limits.shared_per_unit / (shared_bytes + SYSTEM_SHARED);
    let by_threads = limits.threads_per_unit / threads.max(1);
    limits.groups_per_unit.min(by_registers).min(by_shared).min(by_threads)
}

/// Reads the loops of a listing: the main one, then those that load for it.
fn read(
    target: &Target,
    dialect: Dialect,
    entry: String,
    usage: Usage,
    listing: &Listing,
    assembly: String,
) -> Result<Inspection, DeviceError> {
    if listing.instructions.is_empty() {
        let log = "the disassembly holds no instructions of the kernel".into();
        return Err(DeviceError::Compile { device: target.arch.clone(), entry, log });
    }
    let found = flow::loops(listing);
    let math = |l: &Loop| count(listing, l, |i| i.class == Class::Math);
    let main = found.iter().enumerate().filter(|(_, l)| math(l) > 0).max_by_key(|(at, l)| (weight(listing, l), Reverse(*at)));
    let main = main.map(|(at, _)| at);
    let mut loops: Vec<LoopReport> =
        main.iter().map(|&at| trace::trace(listing, over_k_tiles(listing, &found[at], is_math_loop), Role::Main)).collect();
    for (at, other) in found.iter().enumerate() {
        if main != Some(at) && is_copy_loop(listing, other) {
            loops.push(trace::trace(listing, over_k_tiles(listing, other, is_copy_loop), Role::Load));
        }
    }
    Ok(Inspection { arch: target.arch.clone(), dialect, entry, usage, loops, assembly })
}

/// Instructions of a loop of which something holds.
fn count(listing: &Listing, found: &Loop, wanted: impl Fn(&Instruction) -> bool) -> usize {
    found.order.iter().filter_map(|&i| listing.instructions.get(i)).filter(|i| wanted(i)).count()
}

/// What makes one loop the main one: its matrix instructions, and its math where there are none.
fn weight(listing: &Listing, found: &Loop) -> (usize, usize) {
    (count(listing, found, Instruction::is_matrix), count(listing, found, |i| i.class == Class::Math))
}

/// The loop over k-tiles: this one, or where work-groups are persistent and walk over tiles of the result, one that it holds.
fn over_k_tiles<'a>(listing: &Listing, found: &'a Loop, is_one: fn(&Listing, &Loop) -> bool) -> &'a Loop {
    match found.inner.iter().filter(|l| is_one(listing, l)).max_by_key(|l| weight(listing, l)) {
        Some(inner)
            if weight(listing, found).0.min(1) == weight(listing, inner).0.min(1) && !copies_outside(listing, found, inner) =>
        {
            over_k_tiles(listing, inner, is_one)
        }
        _ => found,
    }
}

/// A loop over k-tiles may copy one operand itself and fetch the other in a loop of its own.
fn copies_outside(listing: &Listing, found: &Loop, inner: &Loop) -> bool {
    let copies = |l: &Loop| count(listing, l, |i| i.class == Class::Copy);
    copies(found) > 0 && copies(inner) == 0
}

/// It computes on tiles that it loads, or waits for: a loop over the k-steps of a tile does not.
fn is_math_loop(listing: &Listing, found: &Loop) -> bool {
    count(listing, found, |i| i.class == Class::Math) > 0
        && count(listing, found, |i| i.class.is_load() || matches!(i.class, Class::Wait | Class::Barrier)) > 0
}

/// It brings tiles into shared memory.
fn is_copy_loop(listing: &Listing, found: &Loop) -> bool {
    count(listing, found, |i| i.class.is_load()) > 0
        && count(listing, found, |i| matches!(i.class, Class::SharedStore | Class::Copy)) > 0
}
