//! Everything that a schedule on a matrix unit emits to order copies, instructions and threads is needed: taking one statement
//! away is reported by the emulator.

use crate::support;

use support::children;
use tilewright_check::random::whole_run;
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, VerifyError, test_factors};
use tilewright_device::{DeviceError, Options, open_with};
use tilewright_emu::EmuError;
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Keys, Plan};
use tilewright_gen::program::Program;
use tilewright_gen::space::Space;
use tilewright_ir::{Block, BulkOp, MatrixOp, Scalar, Stmt};
use tilewright_problem::{GateFunction, Gemm, GemmBuilder, Math, Order, Problem};

/// Interleavings tried before a removal counts as unnoticed.
const SEEDS: u64 = 4;

/// Statements that order something.
fn orders(s: &Stmt) -> bool {
    match s {
        Stmt::Barrier(_) => true,
        // How registers are shared out orders nothing.
        Stmt::Bulk(op) => !matches!(op, BulkOp::Registers { .. } | BulkOp::Load { .. } | BulkOp::Store { .. }),
        Stmt::Matrix(op) => !matches!(op, MatrixOp::Warpgroup { .. } | MatrixOp::LoadMatrix { .. } | MatrixOp::Mma { .. }),
        _ => false,
    }
}

/// Takes away the `left`-th statement that orders something, in the order of the tree; says which it was.
fn remove(block: &mut Block, left: &mut usize) -> Option<Stmt> {
    for s in block {
        if orders(s) {
            if *left == 0 {
                return Some(std::mem::replace(s, Stmt::Comment("removed".into())));
            }
            *left -= 1;
        }
        let found = children(s).into_iter().find_map(|child| remove(child, left));
        if found.is_some() {
            return found;
        }
    }
    None
}

struct Bench {
    problem: Problem,
    space: Space,
    plan: Plan,
    program: Program,
    /// C is not only written but read before.
    reads_c: bool,
}

impl Bench {
    fn new(trans: (bool, bool), schedule: &str) -> Bench {
        Bench::of(Gemm::new(Scalar::F16, 72, 136, 440).order(Order::Col).trans(trans.0, trans.1), schedule, true)
    }
    /// More tiles than any ring has buffers; edges everywhere.
    fn of(gemm: GemmBuilder, schedule: &str, reads_c: bool) -> Bench {
        let base = "A_MIC1_ACP2__B_MIC8_ACP2__C_UNR64_MAC128_SKW10_UNI2_GAL1";
        let keys = [base, schedule].iter().fold(Keys::default(), |p, text| Constraint::parse(text).unwrap().apply(&p));
        let plan = Plan::from(keys);
        let problem: Problem = gemm.build().unwrap().into();
        let device = support::emulator("emu:sm_90a", true, 0);
        let space = Space::new(&problem, &device.info().target).unwrap();
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
        let program = r.generate(space.env().workspace_bytes).unwrap();
        Bench { problem, space, plan, program, reads_c }
    }

    /// What the emulator says under one interleaving: nothing, or what it found.
    fn verdict(&self, program: &Program, seed: u64) -> Result<(), String> {
        let mut options = Options::default();
        (options.emulator.threads, options.emulator.interleave, options.emulator.seed) = (1, true, seed);
        let device = open_with("emu:sm_90a", &options).unwrap();
        let compiled = match compile(device.as_ref(), program) {
            Ok(compiled) => compiled,
            // What the validator sees it need not run.
            Err(DeviceError::Invalid { invalid, .. }) => return Err(invalid.to_string()),
            Err(e) => panic!("{}: {e}", self.plan),
        };
        let case = Case::new(&device, &self.problem, 5, test_factors(5, self.reads_c), Samples::All).unwrap();
        match case.verify(program, &compiled, self.space.contraction(&self.plan), Depth::Quick, false) {
            Ok(v) if v.passed => Ok(()),
            // Wrong without the emulator knowing why would be its failure, not its report.
            Ok(v) => panic!("{}: wrong result, nothing reported: {:?}", self.plan, v.reason),
            Err(VerifyError::Device(DeviceError::Emulation { error, .. })) => match *error {
                EmuError::Race { .. }
                | EmuError::Uninitialised { .. }
                | EmuError::Deadlock { .. }
                | EmuError::TxBarrier { .. }
                | EmuError::Unfenced { .. }
                | EmuError::Unread { .. }
                | EmuError::Unfinished { .. }
                | EmuError::Peer { .. }
                | EmuError::Registers { .. } => Err(error.to_string()),
                error => panic!("{}: {error}", self.plan),
            },
            Err(e) => panic!("{}: {e}", self.plan),
        }
    }

    /// Passes as it is; without any one of the statements it is reported.
    fn every_one_is_needed(&self) {
        for seed in 0..if whole_run() { SEEDS } else { 1 } {
            assert_eq!(self.verdict(&self.program, seed), Ok(()), "{}", self.plan);
        }
        let mut unnoticed = Vec::new();
        for which in 0.. {
            let mut program = self.program.clone();
            let main = program.kernels.iter_mut().find(|k| k.name == MAIN).unwrap();
            let Some(removed) = remove(&mut main.body, &mut which.clone()) else {
                assert!(which > 10, "{}: {which} statements", self.plan);
                break;
            };
            match (0..SEEDS).find_map(|seed| self.verdict(&program, seed).err()) {
                Some(found) => eprintln!("{}: without {removed:?}: {found}", self.plan),
                None => unnoticed.push(format!("{which}: {removed:?}")),
            }
        }
        assert!(unnoticed.is_empty(), "{}: removals that nobody reports:\n{}", self.plan, unnoticed.join("\n"));
    }
}

#[test]
fn roles_with_a_ring() {
    Bench::new((false, false), "C_PFG1_BUF2_LWV4").every_one_is_needed();
    // What ends a tile matters where another follows.
    Bench::new((true, false), "C_PFG2_BUF4_LWV1_FRA1_PST2").every_one_is_needed();
    Bench::new((false, true), "C_PFG2_BUF3_LWV4_PST2").every_one_is_needed();
}

/// Waves that read fragments themselves from stages that bulk copies refill.
#[test]
fn single_waves() {
    Bench::new((false, true), "A_MIC2__B_MIC8__C_UNI1_UNR64_MAC64_PFG1_BUF2_LWV1_PST2").every_one_is_needed();
}

/// Two warpgroups: the waves of one meet at its instructions anyway.
#[test]
fn one_role_does_all() {
    Bench::new((false, true), "C_MAC256_PFG1_BUF2_PST2").every_one_is_needed();
    Bench::new((true, true), "C_MAC256_PFG2_BUF4_FRA1_PST2").every_one_is_needed();
}

#[test]
fn split_sums() {
    Bench::new((false, false), "A_MIC1__B_MIC16__C_MAC256_PFG2_BUF3_LWV4_PST2_ICE3_SKS1").every_one_is_needed();
}

/// Whole tiles, and after them the splits of the last rows of tiles, from the same ring.
#[test]
fn split_tails() {
    Bench::new((false, false), "C_PFG2_BUF3_LWV4_PST4_TSP2").every_one_is_needed();
    Bench::new((true, true), "B_CLU2__C_PFG2_BUF4_LWV1_FRA1_PST4_TSP3").every_one_is_needed();
    // Whole tiles leave by bulk stores, two of each work-group.
    let gemm = Gemm::new(Scalar::F16, 264, 64, 640).order(Order::Row);
    Bench::of(gemm, "C_PFG2_BUF3_LWV4_PST2_CST1_TSP3", false).every_one_is_needed();
}

/// Work-groups copy parts of shared tiles for each other and release each other's buffers; some have no tile of C.
#[test]
fn clusters_share_tiles() {
    Bench::new((false, false), "A_CLU2__C_PFG1_BUF2_LWV4").every_one_is_needed();
    Bench::new((true, true), "B_CLU2__C_PFG2_BUF4_LWV1_FRA1_PST2").every_one_is_needed();
    Bench::new((false, true), "A_CLU2__B_CLU2__C_PFG1_BUF2_PST4").every_one_is_needed();
    Bench::new((true, false), "B_CLU2__C_MAC256_PFG2_BUF3_LWV4_PST2_PNG1").every_one_is_needed();
}

/// Fragments read by the math waves: by matrices, and word by word; each set is waited for before it is filled again.
#[test]
fn left_operands_from_registers() {
    Bench::new((true, true), "C_PFG2_BUF3_LWV4_PST2_RGA2").every_one_is_needed();
    Bench::new((false, false), "C_PFG2_BUF4_LWV1_FRA1_PST2_RGA4").every_one_is_needed();
    Bench::new((false, true), "C_MAC256_PFG2_BUF4_FRA1_PST2_RGA2").every_one_is_needed();
    let tf32 = || Gemm::new(Scalar::F32, 72, 136, 220).math(Math::Tf32).order(Order::Row);
    Bench::of(tf32().trans(true, true), "C_UNR32_PFG2_BUF4_LWV4_FRA1_PST2_RGA2", true).every_one_is_needed();
    Bench::of(tf32().trans(true, true), "B_CLU2__C_UNR32_PFG2_BUF3_LWV4_PST2_RGA4", true).every_one_is_needed();
}

/// The splits of a tile are a cluster.
#[test]
fn sums_over_a_cluster() {
    Bench::new((false, false), "C_MAC256_PFG1_BUF2_LWV4_ICE3_SKS2").every_one_is_needed();
    Bench::new((true, false), "B_CLU2__C_MAC256_PFG1_BUF2_LWV1_ICE2_SKS2").every_one_is_needed();
}

/// Each of two warpgroups reads the buffers of its own tiles and passes over the other's.
#[test]
fn tiles_in_turn() {
    Bench::new((false, true), "C_MAC256_PFG2_BUF3_LWV4_PST2_PNG1").every_one_is_needed();
    Bench::new((true, false), "C_MAC256_PFG2_BUF4_LWV1_FRA1_PST1_PNG1").every_one_is_needed();
}

/// Rows of C are contiguous: results go through shared memory into bulk stores, where C is only written.
#[test]
fn staged_results() {
    let gemm = || Gemm::new(Scalar::F16, 72, 136, 440).order(Order::Row);
    Bench::of(gemm(), "C_PFG2_BUF3_LWV4_PST2_CST1", false).every_one_is_needed();
    Bench::of(gemm(), "A_MIC1__B_MIC16__C_MAC256_PFG2_BUF3_LWV4_PST1_CST1", false).every_one_is_needed();
    // Rows of the kernel's C are contiguous: lines of a staging buffer are columns.
    let columns = || Gemm::new(Scalar::F16, 72, 136, 440).order(Order::Col);
    Bench::of(columns(), "C_PFG2_BUF3_LWV4_PST2_CST1", false).every_one_is_needed();
    Bench::of(columns().out_dtype(Scalar::F32), "A_MIC1__B_MIC16__C_MAC256_PFG2_BUF3_LWV4_PST1_CST1", false)
        .every_one_is_needed();
}

/// Both halves of a gated product come in boxes of their own to one barrier, and tiles of its results leave by bulk stores.
#[test]
fn staged_results_of_pairs() {
    let gemm = |n: u64| Gemm::new(Scalar::F16, 72, n, 440).ldc(80).gate(GateFunction::Silu);
    Bench::of(gemm(76).trans(false, true), "C_PFG2_BUF3_LWV4_PST2_CST1_BIM1", false).every_one_is_needed();
    Bench::of(gemm(80), "A_MIC1__B_MIC16__C_MAC256_PFG2_BUF3_LWV4_PST1_CST1_BIM3", false).every_one_is_needed();
}

/// Partial sums are added up in the order of C, so bulk stores reach them where they reach C: along its rows or its columns.
#[test]
fn partial_sums_lie_as_the_result_does() {
    let gemm = || Gemm::new(Scalar::F16, 72, 136, 440).order(Order::Col);
    for order in [Order::Row, Order::Col] {
        let bench = Bench::of(gemm().order(order), "C_PFG1_BUF2_LWV4_CST1_ICE2_SKS1", false);
        assert_eq!(bench.verdict(&bench.program, 0), Ok(()));
    }
}

/// Tiles that load waves write: one operand, with bulk copies of the other, or both; lines that begin anywhere and such that do not.
#[test]
fn tiles_through_registers() {
    let odd = || Gemm::new(Scalar::F16, 72, 137, 441).order(Order::Row);
    Bench::new((false, true), "A_ACP0__C_PFG2_BUF3_LWV4_PST2").every_one_is_needed();
    Bench::of(odd(), "A_ACP0__B_ACP0__C_PFG1_BUF2_LWV2_PST1", true).every_one_is_needed();
    Bench::of(odd().trans(false, true), "A_WOS1__B_ACP0__C_PFG2_BUF4_LWV1_FRA1_PST2", true).every_one_is_needed();
}

/// Lines that load waves shift from staging: both operands', or one's beside bulk copies or loads of the other.
#[test]
fn lines_from_staging() {
    let odd = || Gemm::new(Scalar::F16, 72, 137, 441).order(Order::Row);
    Bench::of(odd(), "A_ACP3__B_ACP3__C_PFG1_BUF2_LWV2_PST1", true).every_one_is_needed();
    Bench::of(odd().trans(false, true), "A_WOS1__B_ACP3__C_PFG2_BUF4_LWV1_FRA1_PST2", true).every_one_is_needed();
    Bench::of(odd(), "A_ACP0__B_ACP3__C_PFG2_BUF3_LWV4_PST2", true).every_one_is_needed();
}
