//! Composable Kernel's wavelet pipeline as a schedule: load waves that compute addresses beside math waves, for convolutions.
//!
//! Each row of the instance table of its backward-weight convolution (composable_kernel#5652) is a plan here, which compiles for AMD's
//! matrix architectures without spills. Machines without a device compile a few rows; `TILEWRIGHT_ALL_ROWS=1` compiles all of them,
//! and `UPDATE_WAVELET=1` writes what the compiler made of them to `tests/snapshots/wavelet.txt`.

use crate::missing;
use crate::support;

use rayon::prelude::*;
use std::fmt::Write as _;
use tilewright_check::random::Pair;
use tilewright_device::inspect::{Class, Inspection, LoopReport, Role, inspect};
use tilewright_device::{DeviceError, Options};
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Conv, Direction, Layout, Problem};

/// The table.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/wavelet.txt");
const ARCHES: [&str; 3] = ["gfx90a", "gfx942", "gfx950"];
/// Load waves, math waves, rows and columns of a tile.
const TILES: [(u32, u32, u32, u32); 7] =
    [(4, 4, 128, 128), (4, 4, 64, 64), (4, 4, 128, 64), (4, 4, 64, 128), (4, 2, 64, 64), (4, 2, 128, 64), (4, 2, 64, 128)];

/// A row of the table.
#[derive(Clone, Copy)]
struct Instance {
    tile: (u32, u32, u32, u32),
    dims: usize,
    /// Filters of one pixel, stride 1, no padding.
    pointwise: bool,
    dtype: Scalar,
}

/// All of them: `(4,2)` serves images alone.
fn instances() -> Vec<Instance> {
    let mut all = Vec::new();
    for tile in TILES {
        for dims in 2..=if tile.1 == 4 { 3 } else { 2 } {
            for pointwise in [false, true] {
                all.extend([Scalar::F16, Scalar::BF16].map(|dtype| Instance { tile, dims, pointwise, dtype }));
            }
        }
    }
    all
}

impl Instance {
    fn problem(&self) -> Problem {
        let (input, filter) = (vec![14; self.dims], vec![if self.pointwise { 1 } else { 3 }; self.dims]);
        let pad = vec![u64::from(!self.pointwise); self.dims];
        let conv = Conv::new(self.dtype, 8, 256, 36, &input, &filter).layout(Layout::Nhwc).pad(&pad, &pad);
        conv.direction(Direction::BackwardWeight).build().expect("a convolution").into()
    }
    /// With or without load waves.
    fn plan(&self, roles: bool) -> Plan {
        let (load, math, m, n) = self.tile;
        // Two waves stand side by side along n.
        let (across_m, across_n) = if math == 4 { (2, 2) } else { (1, 2) };
        let (a, b) = (m / 16 / across_m, n / 16 / across_n);
        let text = format!(
            "A_MIC{a}_PAD1_GLW{}_LIW1__B_MIC{b}_PAD1_GLW{}_LIW1__C_UNI3_UNR32_MAC{}_SKW10_PFG1_BUF2_LWV{}_CST1_EDG1_UKL1",
            m / 32,
            n / 32,
            64 * math,
            if roles { load } else { 0 },
        );
        Constraint::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}")).apply(&Plan::default()).into()
    }
    fn name(&self) -> String {
        let (load, math, m, n) = self.tile;
        let filter = if self.pointwise { "1x1, stride 1, no padding" } else { "default" };
        format!("({load},{math}) | {m} x {n} | {}-D | {filter} | {}", self.dims, self.dtype)
    }
    /// What the compiler makes of it; `None` where a tool is missing.
    fn read(&self, roles: bool, arch: &str) -> Option<Inspection> {
        let (problem, plan) = (self.problem(), self.plan(roles));
        let space = Space::new(&problem, &Target::by_arch(arch).expect("known")).expect("it lowers");
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        let (load, math, ..) = self.tile;
        let threads = r.spec.schedule.roles.map(|r| (r.load_threads, r.math_threads));
        assert_eq!(threads, roles.then_some((64 * load, 64 * math)), "{plan}");
        let program = r.generate(space.env().workspace_bytes).unwrap_or_else(|e| panic!("{problem} {plan}: {e}"));
        let kernel = program.kernels.iter().find(|k| k.name == MAIN).expect("a main kernel");
        match inspect(kernel, arch, None, &Options::default()) {
            Err(DeviceError::Missing { .. }) => None,
            read => Some(read.unwrap_or_else(|e| panic!("{arch} {problem} {plan}: {e}"))),
        }
    }
}

fn of(read: &Inspection, role: Role) -> &LoopReport {
    read.loops.iter().find(|l| l.role == role).unwrap_or_else(|| panic!("{}: no such loop: {role:?}", read.arch))
}

/// Checks a row and says what was found: integer instructions per matrix instruction without and with roles, registers of each role.
fn check(instance: &Instance, arch: &str) -> Option<String> {
    let [plain, roles] = [false, true].map(|roles| instance.read(roles, arch));
    let (plain, roles) = (plain?, roles?);
    let name = format!("{arch} {}", instance.name());
    for read in [&plain, &roles] {
        assert_eq!((read.usage.spill_bytes, read.usage.private_bytes), (0, 0), "{name}");
    }
    let (alone, math, load) = (of(&plain, Role::Main), of(&roles, Role::Main), of(&roles, Role::Load));
    // As many barriers for a k-tile in both roles, however often the compiler unrolled each loop.
    let tiles = |l: &LoopReport| l.count(Class::Barrier);
    assert!(tiles(math) > 0 && tiles(load) > 0, "{name}: no barriers");
    let per_tile = |l: &LoopReport| f64::from(l.matrix) / f64::from(tiles(l).max(1));
    assert_eq!(per_tile(math), per_tile(alone), "{name}: matrix instructions between barriers");
    assert_eq!((load.matrix, math.flights.len()), (0, 0), "{name}: roles are mixed");
    let each = |l: &LoopReport| f64::from(l.integer) / f64::from(l.matrix.max(1));
    assert!(each(math) < each(alone), "{name}: {} integer instructions, {} without roles", each(math), each(alone));
    let live = [alone, math, load].map(|l| l.live_registers.expect("AMD's assembly tells"));
    assert!(live[2] < live[0], "{name}: {live:?}");
    Some(format!("{:.2} | {:.2} | {} | {} | {}", each(alone), each(math), live[0], live[1], live[2]))
}

const HEAD: &str = "# The wavelet: load waves beside math waves

Written by `crates/gen/tests/compilers/wavelet.rs` from the reports of `tilewright inspect` on clang's assembly.
The plans are Composable Kernel's instances of backward-weight convolution (composable_kernel#5652).
All of them compile without spills for gfx90a, gfx942 and gfx950.
\"Integer\" counts integer instructions of every lane (addresses, predicates) per matrix instruction in the main loop.
Math waves mostly pack two elements along k into a register, because these operands are contiguous along channels.
\"Live\" is the largest number of vector registers with needed values, without load waves and in each role's code.

";

#[test]
fn every_instance_compiles_without_spills() {
    let all = std::env::var_os("TILEWRIGHT_ALL_ROWS").is_some() || std::env::var_os("UPDATE_WAVELET").is_some();
    let rows: Vec<(usize, Instance, &str)> = instances()
        .into_iter()
        .enumerate()
        .flat_map(|(i, instance)| ARCHES.map(|arch| (i, instance, arch)))
        // A spread: each tile, dimension, type and architecture comes.
        .filter(|(i, _, arch)| all || i % 7 == 0 && *arch == ARCHES[i / 7 % 3])
        .collect();
    let found: Vec<Option<String>> = rows.par_iter().map(|(_, instance, arch)| check(instance, arch)).collect();
    if found.contains(&None) {
        return missing::missing("clang for AMD's architectures");
    }
    if std::env::var_os("UPDATE_WAVELET").is_none() {
        return;
    }
    let mut text = String::from(HEAD);
    text += "| load, math waves | tile | | filter | type | architecture | integer, no roles | integer, math waves | live, no roles | live, math waves | live, load waves |\n";
    text += "|---|---|---|---|---|---|---|---|---|---|---|\n";
    for ((_, instance, arch), found) in rows.iter().zip(found) {
        let _ = writeln!(text, "| {} | {arch} | {} |", instance.name(), found.unwrap_or_default());
    }
    std::fs::write(FILE, text).expect("the table is written");
}

/// Load waves that compute addresses feed every unit, at any ratio, in all three directions.
#[test]
fn load_waves_feed_every_unit_in_every_direction() {
    // (device, plan without waves, threads of a wave).
    let units = [
        ("emu:gfx942", "A_MIC2_ACP0__B_MIC4_ACP0__C_UNI0_UNR8_PFG1_BUF2_EDG1", 64),
        ("emu:sm_90a", "A_MIC2_ACP0__B_MIC2_ACP0__C_UNI1_UNR32_PFG1_BUF2_EDG1", 32),
        ("emu:sm_90a", "A_MIC1_ACP0__B_MIC8_ACP0__C_UNI2_UNR64_PFG2_BUF3", 32),
        ("emu:gfx942", "A_MIC1_ACP0__B_MIC2_ACP0__C_UNI3_UNR32_PFG1_BUF2_EDG1", 64),
    ];
    let mut cases = Vec::new();
    for (device, keys, wave) in units {
        let warpgroup = keys.contains("UNI2");
        for (load, math) in if warpgroup { [(4, 4), (2, 4), (4, 8)] } else { [(4, 4), (4, 2), (1, 2)] } {
            for direction in [Direction::Forward, Direction::BackwardData, Direction::BackwardWeight] {
                cases.push((device, format!("{keys}_MAC{}_LWV{load}", wave * math), load * wave, direction));
            }
        }
    }
    let failed: Vec<String> = cases
        .par_iter()
        .filter_map(|(device, keys, load_threads, direction)| {
            let conv = Conv::new(Scalar::F16, 2, 20, 24, &[9, 7], &[3, 3]).layout(Layout::Nhwc).stride(&[2, 1]);
            let problem: Problem = conv.pad(&[1, 1], &[1, 0]).groups(2).direction(*direction).build().unwrap().into();
            let device = support::emulator(device, true, 3);
            let space = Space::new(&problem, &device.info().target).unwrap();
            let plan = Plan::from(Constraint::parse(keys).unwrap().apply(&Plan::default()));
            let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {keys}: {e}"));
            assert_eq!(r.spec.load_threads(), *load_threads, "{keys}");
            support::judge(&device, &Pair { seed: 3, problem, plan })
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A parameter set of Composable Kernel's typed tests: groups, samples, output and input channels of a group, filter, input, stride,
/// padding.
type Set = (u64, u64, u64, u64, &'static [u64], &'static [u64], u64, u64);

/// Those of one, two and three dimensions.
const SETS: [Set; 23] = [
    (2, 128, 128, 256, &[1], &[14], 2, 0),
    (2, 32, 128, 256, &[3], &[28], 1, 1),
    (2, 128, 128, 256, &[1], &[3], 1, 0),
    (1, 1, 1, 32, &[3], &[32], 1, 1),
    (1, 1, 64, 3, &[3], &[32], 1, 1),
    (1, 1, 1, 1, &[3], &[32], 1, 1),
    (2, 64, 4, 4, &[1, 1], &[7, 7], 1, 0),
    (2, 64, 128, 256, &[1, 1], &[7, 7], 2, 0),
    (2, 64, 3, 3, &[1, 1], &[7, 7], 1, 0),
    (2, 64, 5, 5, &[1, 1], &[7, 7], 1, 0),
    (2, 4, 128, 256, &[3, 3], &[14, 14], 1, 1),
    (2, 128, 128, 256, &[1, 1], &[3, 3], 1, 0),
    (1, 1, 1, 32, &[3, 3], &[32, 32], 1, 1),
    (1, 1, 64, 3, &[3, 3], &[32, 32], 1, 1),
    (1, 1, 1, 1, &[3, 3], &[32, 32], 1, 1),
    (16, 16, 1, 1, &[3, 3], &[28, 28], 2, 1),
    (2, 16, 128, 256, &[1, 1, 1], &[7, 7, 7], 2, 0),
    (2, 2, 128, 256, &[3, 3, 3], &[14, 14, 3], 1, 1),
    (2, 32, 128, 256, &[3, 3, 3], &[3, 3, 3], 1, 0),
    (1, 1, 1, 32, &[3, 3, 3], &[16, 16, 16], 1, 1),
    (1, 1, 64, 3, &[3, 3, 3], &[14, 14, 14], 1, 1),
    (1, 1, 1, 1, &[3, 3, 3], &[18, 18, 18], 1, 1),
    (16, 16, 1, 1, &[3, 3, 3], &[28, 28, 28], 2, 1),
];

/// Composable Kernel's typed tests in the layouts that problems have, each with one and two splits of k, on the emulator. The large
/// ones only with `TILEWRIGHT_ALL_ROWS=1`.
#[test]
fn typed_tests_of_composable_kernel_verify() {
    let all = std::env::var_os("TILEWRIGHT_ALL_ROWS").is_some();
    let mut cases = Vec::new();
    for (i, (groups, n, k, c, filter, input, stride, pad)) in SETS.into_iter().enumerate() {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            for (j, (dtype, out)) in [
                (Scalar::F32, Scalar::F32),
                (Scalar::F16, Scalar::F16),
                (Scalar::BF16, Scalar::BF16),
                (Scalar::BF16, Scalar::F32),
                (Scalar::I8, Scalar::I8),
            ]
            .into_iter()
            .enumerate()
            {
                // Integers are there in three dimensions alone.
                if dtype == Scalar::I8 && input.len() < 3 {
                    continue;
                }
                let conv =
                    Conv::new(dtype, n, groups * c, groups * k, input, filter).layout(layout).groups(groups).out_dtype(out);
                let lists = [stride, pad].map(|x| vec![x; input.len()]);
                let conv = conv.stride(&lists[0]).pad(&lists[1], &lists[1]).direction(Direction::BackwardWeight);
                let conv = conv.build().expect("a convolution");
                for ways in [1, 2] {
                    // A spread of the small ones: every type, layout and number of splits comes.
                    let chosen = conv.flop() < 1e7 && ((i + j + ways) % 4 == 0 || dtype == Scalar::I8);
                    let keys = match dtype {
                        Scalar::F32 => format!("A_MIC4__B_MIC4__C_UNI0_UNR16_MAC256_PFG1_BUF2_LWV4_EDG1_ICE{ways}_SKS1"),
                        _ => format!("A_MIC2_PAD1__B_MIC2_PAD1__C_UNI3_UNR32_MAC256_SKW10_PFG1_BUF2_LWV4_EDG1_ICE{ways}_SKS1"),
                    };
                    cases.extend((all || chosen).then(|| (Problem::from(conv.clone()), keys)));
                }
            }
        }
    }
    let failed: Vec<String> = cases
        .par_iter()
        .filter_map(|(problem, keys)| {
            let device = support::emulator("emu:gfx942", true, 7);
            let space = Space::new(problem, &device.info().target).unwrap();
            let plan = Plan::from(Constraint::parse(keys).unwrap().apply(&Plan::default()));
            let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{problem} {keys}: {e}"));
            assert!(r.spec.schedule.roles.is_some(), "{keys}");
            support::judge(&device, &Pair { seed: 7, problem: problem.clone(), plan })
        })
        .collect();
    eprintln!("{} cases", cases.len());
    assert!(failed.is_empty(), "{} of {} failed: {}", failed.len(), cases.len(), failed.join("\n"));
}
