//! Random pairs of plan and problem through OpenCL, on PoCL in CI.
//!
//! Each takes PoCL about a third of a second to compile, so there are few; `TILEWRIGHT_RANDOM_PAIRS=500` is for once before a release, and for
//! another `TILEWRIGHT_RANDOM_SEED`. Without an OpenCL device the test says so and is skipped; with
//! `TILEWRIGHT_REQUIRE_TOOLS=1` it fails.

use crate::missing;
use crate::support;

use std::process::{Command, Stdio};
use std::time::Instant;
use support::{draws, judge, number};
use tilewright_check::random::{Pair, Recipe, pair};
use tilewright_device::open;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_ir::Scalar;
use tilewright_problem::Problem;

#[test]
fn random_pairs_verify_on_opencl() {
    all_pass("random_pairs_verify_on_opencl", Recipe::short_code(), 30);
}

/// What runs ahead, stores late, reads fragments early: processors have neither roles nor asynchronous copies.
#[test]
fn random_schedules_verify_on_opencl() {
    all_pass("random_schedules_verify_on_opencl", Recipe { schedules: true, ..Recipe::short_code() }, 30);
}

/// Convolutions in three directions.
#[test]
fn random_convolutions_verify_on_opencl() {
    all_pass("random_convolutions_verify_on_opencl", Recipe { convolutions: true, ..Recipe::short_code() }, 15);
}

/// Reductions of results, and of tensors by themselves: no lanes exchange, so that all threads meet in shared memory.
#[test]
fn random_reductions_verify_on_opencl() {
    all_pass("random_reductions_verify_on_opencl", Recipe { reductions: true, ..Recipe::short_code() }, 30);
}

/// 8-bit floats, widened by arithmetic.
#[test]
fn random_pairs_of_8_bit_floats_verify_on_opencl() {
    all_pass("random_pairs_of_8_bit_floats_verify_on_opencl", Recipe::short_code().of(&[Scalar::E4M3, Scalar::E5M2]), 5);
}

#[test]
fn random_pairs_of_8_bit_integers_verify_on_opencl() {
    all_pass("random_pairs_of_8_bit_integers_verify_on_opencl", Recipe::short_code().of(&[Scalar::I8, Scalar::U8]), 8);
}

/// PoCL makes loops over work-items of what lies between barriers: parts of a gradient in the branches of one kernel gave wrong results.
#[test]
fn parts_of_a_gradient_have_kernels_of_their_own() {
    let problem = "conv_bwdd_nhwc_n3_g1_c4_k6_in2x6x4_fil1x1x1_st1x3x2_dil2x1x3_pb1x1x0_pe0x2x0_ws67108864_f32_outbf16";
    let plan = "A_MIC4_VEW1_FRW4__B_MIC2_WOS1_VEW1_LOR1__C_UNR6_GAL1_MAD1_MAC24_EDG1_CST1_FRA1_BIM1";
    is_right(problem, plan);
}

/// PoCL 3.1 asked one work-item for all where a condition stood right behind a barrier of a loop that may not run: persistent work-groups
/// whose sums leave by atomics, only from rows that exist.
#[test]
fn conditions_right_behind_barriers_are_every_work_items_own() {
    let problem = "tC0_tA0_tB0_colMaj0_m36_n24_k12_lda12_ldb24_ldc24_ws33554432_f32_redsum:n";
    let plan = "A_MIC5_VEW1_LOR1__B_MIC1_VEW1__C_UNR12_GAL2_PUN1_MAD1_NAW64_MAC48_SKW11_EDG1_CST1_PST7_RDF3";
    is_right(problem, plan);
}

fn is_right(problem: &str, plan: &str) {
    let device = match open("opencl") {
        Ok(device) => device,
        Err(e) => return missing::missing(&e.to_string()),
    };
    let plan = Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default()));
    let pair = Pair { seed: 0, problem: Problem::parse(problem).unwrap(), plan };
    assert_eq!(judge(&device, &pair), None);
}

/// Set in a process that runs some of a test's pairs.
const PART: &str = "TILEWRIGHT_TEST_PART";

/// A process of PoCL compiles one kernel at a time, so the second half of the pairs runs in a process of its own.
fn all_pass(test: &str, recipe: Recipe, count: u64) {
    let device = match open("opencl") {
        Ok(device) => device,
        Err(e) => return missing::missing(&e.to_string()),
    };
    let count = draws(count);
    let first = number("TILEWRIGHT_RANDOM_SEED").unwrap_or(0);
    let whole = std::env::var_os(PART).is_none();
    let here = if whole { count.div_ceil(2) } else { count };
    let other = (here < count).then(|| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("random_opencl::{test}"), "--nocapture"])
            .envs(
                [("TILEWRIGHT_RANDOM_SEED", first + here), ("TILEWRIGHT_RANDOM_PAIRS", count - here)]
                    .map(|(n, x)| (n, x.to_string())),
            )
            .env(PART, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let (start, mut failed) = (Instant::now(), Vec::new());
    for seed in first..first + here {
        failed.extend(match pair(&device.info().target, &recipe, seed) {
            Some(pair) => judge(&device, &pair),
            None => Some(format!("seed {seed}: no legal pair was found")),
        });
    }
    eprintln!("{here} pairs on {} in {:.1} s, {} failed", device.info().name, start.elapsed().as_secs_f64(), failed.len());
    if let Some(other) = other {
        let ended = other.wait_with_output().unwrap();
        let [said, errors] = [&ended.stdout, &ended.stderr].map(|x| String::from_utf8_lossy(x));
        assert!(said.contains("1 passed") || !ended.status.success(), "the other process ran no test:\n{said}");
        if !ended.status.success() {
            failed.push(format!("of the other {} pairs: {said}{errors}", count - here));
        }
    }
    assert!(failed.is_empty(), "{} of {count} failed, among them:\n{}", failed.len(), failed[..failed.len().min(12)].join("\n"));
}
