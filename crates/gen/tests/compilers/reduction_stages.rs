//! rocMLIR's three stages of a reduction as plans (`RDF`): an atomic for each element; a tree in the work-group, then an atomic; lanes of a
//! wave, waves through shared memory, then an atomic. Their instructions are counted in machine code for AMD's GPUs, over 1, 2, 4 and 8
//! waves, and are in `tests/snapshots/reduction_stages.txt` (`UPDATE_STAGES=1` renews it). Needs clang and NVRTC, no GPU.

use crate::missing;

use rayon::prelude::*;
use std::fmt::Write as _;
use tilewright_device::inspect::inspect;
use tilewright_device::{DeviceError, Options};
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Finish, Keys, Stage};
use tilewright_gen::space::Space;
use tilewright_ir::{Kernel, Scalar, Target};
use tilewright_problem::{Operator, Problem, Reduce};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/reduction_stages.txt");
const COLUMNS: u64 = 8192;
const STAGES: [(u32, &str); 3] =
    [(4, "1: an atomic for each element"), (3, "2: a tree, then an atomic"), (2, "3: lanes, waves, then an atomic")];
const WAVES: [u32; 4] = [1, 2, 4, 8];

/// A stage's kernel: so many waves have a part of a row, four elements for each lane.
fn kernel(arch: &str, waves: u32, rdf: u32, operator: Operator) -> Kernel {
    let target = Target::by_arch(arch).expect("known");
    let problem: Problem = Reduce::new(Scalar::F32, &[64, COLUMNS], &[1]).op(operator).build().expect("a problem").into();
    let space = Space::new(&problem, &target).expect("it lowers").with_atomics(true);
    let threads = waves * target.wave;
    let plans = (10..=20).map(|skew| {
        Keys::default().but(|keys| {
            keys.threads = threads;
            keys.skew = skew;
            keys.along_n = 1;
            keys.splits = (COLUMNS / u64::from(4 * threads)) as u32;
            keys.a.micro = 1;
            keys.b.micro = 4;
            keys.b.read_width = 4;
            keys.finish = rdf;
        })
    });
    let mut resolved = plans.filter_map(|plan| space.resolve(&plan).ok().filter(|r| r.spec.tiling.threads_a == 1));
    let resolved = resolved.next().expect("a row of threads");
    let stage = [Stage::Wave, Stage::Group, Stage::Element][rdf as usize - 2];
    assert_eq!(resolved.spec.epilogue.finish, Finish::Atomic(stage));
    let program = resolved.generate(1 << 30).expect("a program");
    program.kernels.into_iter().find(|k| k.name == MAIN).expect("a main kernel")
}

/// Machine code, or `None` with a visible line where a tool is missing and not required.
fn code(arch: &str, waves: u32, rdf: u32, operator: Operator) -> Option<String> {
    match inspect(&kernel(arch, waves, rdf, operator), arch, None, &Options::default()) {
        Err(e @ DeviceError::Missing { .. }) => {
            missing::missing(&e.to_string());
            None
        }
        seen => Some(seen.unwrap_or_else(|e| panic!("{arch}, {waves} waves, RDF{rdf}: {e}")).assembly),
    }
}

/// Instructions of an assembly text: those whose words hold one of these.
fn count(assembly: &str, words: &[&str]) -> usize {
    assembly.lines().filter(|line| words.iter().any(|word| line.contains(word))).count()
}

/// What is counted on AMD's: registers of other lanes, the crossbar of shared memory, shared memory itself, barriers, atomics.
const COUNTED: [(&str, &[&str]); 5] = [
    ("DPP", &["_dpp", "row_", "quad_perm"]),
    ("crossbar (ds_bpermute, ds_swizzle)", &["ds_bpermute", "ds_swizzle"]),
    ("shared memory", &["ds_read", "ds_write", "ds_load", "ds_store"]),
    ("barriers", &["s_barrier"]),
    ("atomics", &["global_atomic", "flat_atomic"]),
];

#[test]
fn instructions_of_the_stages() {
    let mut text = String::from(HEAD);
    let names = COUNTED.map(|(name, _)| name).join(" | ");
    let _ = writeln!(text, "| target | operator | waves | stage | {names} | instructions |");
    let _ = writeln!(text, "|---|---|---|---|{}---|", "---|".repeat(COUNTED.len()));
    let mut rows = Vec::new();
    for arch in ["gfx90a", "gfx942"] {
        for operator in [Operator::Sum, Operator::Max] {
            rows.extend(WAVES.into_iter().flat_map(|waves| STAGES.map(|stage| (arch, operator, waves, stage))));
        }
    }
    let lines: Vec<Option<String>> = rows
        .par_iter()
        .map(|&(arch, operator, waves, (rdf, stage))| {
            let seen = code(arch, waves, rdf, operator)?;
            let counts = COUNTED.map(|(_, words)| count(&seen, words));
            let [dpp, crossbar, shared, barriers, atomics] = counts;
            let place = format!("{arch} {operator} {waves} {stage}: {counts:?}");
            assert!(atomics > 0 && (atomics == 1 || rdf == 4 || operator == Operator::Max), "{place}");
            match rdf {
                4 => assert!(atomics >= 4 && dpp + crossbar + shared + barriers == 0, "{place}"),
                // Compilers leave out barriers of one wave.
                3 => assert!(dpp + crossbar == 0 && shared > 0 && (barriers > 0) == (waves > 1), "{place}"),
                // Between waves alone, and none at one.
                _ => {
                    assert!(dpp >= 4 && crossbar == 0 && (shared > 0) == (waves > 1) && (barriers > 0) == (waves > 1), "{place}")
                }
            }
            let all =
                seen.lines().filter(|line| line.starts_with(['\t', ' ']) && !line.trim_start().starts_with(['.', ';'])).count();
            let counts = counts.map(|count| count.to_string()).join(" | ");
            Some(format!("| {arch} | {operator} | {waves} | {stage} | {counts} | {all} |"))
        })
        .collect();
    let Some(lines) = lines.into_iter().collect::<Option<Vec<String>>>() else { return };
    text.push_str(&lines.join("\n"));
    text.push('\n');
    if std::env::var_os("UPDATE_STAGES").is_some() {
        std::fs::write(FILE, &text).expect("the table is written");
    }
    let pinned = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        text == pinned,
        "tests/snapshots/reduction_stages.txt differs from the machine code; renew it with UPDATE_STAGES=1:\n{text}"
    );
}

/// The three stages for every family of targets: what exchanges lanes, what waits, what updates memory.
#[test]
fn stages_compile_for_every_target() {
    for arch in ["sm_80", "sm_90a", "gfx900", "gfx90a", "gfx942", "gfx950"] {
        let nvidia = arch.starts_with("sm_");
        let (lanes, barrier, atomic): (&[&str], &str, &[&str]) = match nvidia {
            true => (&["SHFL"], "BAR.SYNC", &["RED.E", "REDG.E", "ATOMG"]),
            false => (&["_dpp", "row_", "quad_perm"], "s_barrier", &["global_atomic", "flat_atomic"]),
        };
        for (rdf, stage) in STAGES {
            for operator in [Operator::Sum, Operator::Max] {
                let Some(seen) = code(arch, 4, rdf, operator) else { return };
                let place = format!("{arch}, {operator}, stage {stage}\n{seen}");
                assert!(count(&seen, atomic) > 0, "{place}");
                assert_eq!(count(&seen, lanes) > 0, rdf == 2, "{place}");
                assert_eq!(count(&seen, &[barrier]) > 0, rdf < 4, "{place}");
            }
        }
    }
}

const HEAD: &str = "# Three stages of a reduction

Generated by `crates/gen/tests/compilers/reduction_stages.rs`, which compiles the plans and counts instructions in their machine code.
Renew: `UPDATE_STAGES=1 cargo test -p tilewright-gen --test compilers reduction_stages`.
Each work-group reduces a part of a row of f32, four elements per lane. The stages are `RDF4`, `RDF3` and `RDF2` of the same plan.
Stage 3 needs no shared memory at one wave; with more waves, shared memory passes values between waves only.
Only stage 3 moves registers between lanes: DPP inside rows of 16 lanes, scalar registers across the four rows of a wave.
A maximum has two atomics, for signed and for unsigned integers; a thread runs one of them.

";
