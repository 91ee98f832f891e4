//! The cost model orders what is known to be ordered.

use super::seed_keys::tiled;
use super::*;
use tilewright_check::random::whole_run;
use tilewright_gen::plan::{Chiral, Common, Constraint, Key, Keys, OperandKeys, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::mma::Reads;
use tilewright_problem::{Conv, Gemm, Operator, Order, Problem, Reduce};

fn gemm(m: u64, n: u64, k: u64) -> Problem {
    Problem::Gemm(Gemm::new(Scalar::F32, m, n, k).order(Order::Col).build().unwrap())
}

fn space(problem: &Problem, arch: &str) -> Space {
    Space::new(problem, &Target::by_arch(arch).unwrap()).unwrap()
}

fn us(space: &Space, plan: &Keys) -> f64 {
    let plan = space.repair(plan).unwrap();
    Picker::new(space).estimate(&plan).unwrap().total_us
}

/// 128 x 128 tiles of 8 x 8 per thread, vector loads in place.
fn good() -> Keys {
    let vectors = OperandKeys { load_width: 4, read_width: 4, vector: 4, ..OperandKeys::default() };
    let (a, b) = (OperandKeys { load_rows_first: 1, ..vectors }, OperandKeys { load_along_k: 1, ..vectors });
    Keys { a, b, unroll_k: 1, wave_shape: 8, ..Keys::default() }
}

#[test]
fn a_large_square_comes_near_the_roof_and_not_over_it() {
    let s = space(&gemm(4096, 4096, 4096), "sm_90a");
    let best = Picker::new(&s).pick(1)[0].estimate;
    let tflops = 2.0 * 4096f64.powi(3) / best.total_us / 1e6;
    assert!((40.0..66.9).contains(&tflops), "{tflops} TFLOP/s");
}

#[test]
fn more_work_per_thread_wins_on_a_large_square() {
    let s = space(&gemm(4096, 4096, 4096), "sm_90a");
    assert!(us(&s, &good()) < us(&s, &good().but(|keys| keys.both(|o| o.micro = 4))));
    assert!(us(&s, &good().but(|keys| keys.both(|o| o.micro = 4))) < us(&s, &good().but(|keys| keys.both(|o| o.micro = 1))));
}

#[test]
fn scalar_fragments_and_uncoalesced_loads_cost() {
    let s = space(&gemm(2048, 2048, 2048), "sm_90a");
    assert!(us(&s, &good()) < us(&s, &good().but(|keys| keys.both(|o| o.read_width = 1))));
    let across = good().but(|keys| (keys.a.load_rows_first, keys.a.load_width) = (0, 1));
    assert!(us(&s, &good()) < us(&s, &across));
}

#[test]
fn running_ahead_hides_latency_where_few_groups_are_resident() {
    let s = space(&gemm(1024, 1024, 1024), "sm_90a");
    let ahead = Keys { ahead: 1, buffers: 2, store_point: 1, ..good() };
    assert!(us(&s, &ahead) < us(&s, &good()));
}

#[test]
fn a_deep_narrow_product_wants_split_k() {
    let s = space(&gemm(64, 64, 1 << 18), "sm_90a");
    let small = Keys { split_sum: 1, ..good().but(|keys| keys.both(|o| o.micro = 4)) };
    let split = Keys { splits: 128, strip_groups: 1024, ..small };
    assert!(us(&s, &split) * 4.0 < us(&s, &small));
    let picked = Picker::new(&s).pick(1)[0].plan;
    assert!(picked.splits > 8, "{picked}");
}

/// Times of an H200: 60.5 us with tiles of 32 rows, 68.8 with 16, 82.5 with 8 (and 12 columns a thread). Half of the bytes in
/// flight cost a bfloat16 tensor 15 of 49 us.
#[test]
fn a_reduction_wants_long_lines_and_many_bytes_on_their_way() {
    let tensor = |dtype| Reduce::new(dtype, &[65536, 1024], &[0]).op(Operator::Sum).build().unwrap().into();
    let plan = |rows: u32, columns: u32, skew: u32, share: u32| {
        tiled(Keys { splits: share, ..Keys::default() }, 512, skew, [rows, columns])
    };
    let f32s = space(&tensor(Scalar::F32), "sm_90a");
    assert!(us(&f32s, &plan(4, 2, 12, 8)) < us(&f32s, &plan(4, 2, 14, 2)));
    let bf16s = space(&tensor(Scalar::BF16), "sm_90a");
    assert!(us(&bf16s, &plan(8, 4, 12, 8)) * 1.2 < us(&bf16s, &plan(8, 2, 12, 8)));
}

#[test]
fn a_tile_much_larger_than_the_result_is_not_picked() {
    let s = space(&gemm(35, 8457, 2560), "sm_90a");
    let picked = Picker::new(&s).pick(1)[0];
    let spec = s.resolve(&picked.plan).unwrap().spec;
    assert!(spec.tiling.a.macro_tile <= 64, "{}", picked.plan);
}

#[test]
fn estimates_are_finite_positive_and_repeatable_everywhere() {
    let conv = Conv::new(Scalar::F32, 8, 16, 32, &[33, 31], &[3, 3]).stride(&[2, 2]).pad(&[0, 1], &[1, 0]).build().unwrap();
    let problems = [gemm(1, 1, 1), gemm(7, 300, 5), gemm(1000, 1001, 1002), Problem::Conv(conv)];
    for (row, problem) in problems.iter().enumerate() {
        // Outside of a whole run, targets alternate between the problems.
        let targets = Target::known().iter().enumerate();
        for (_, arch) in targets.filter(|(column, _)| whole_run() || (row + column) % problems.len() == 0) {
            let s = space(problem, arch);
            let picked = Picker::new(&s).pick(40);
            assert!(!picked.is_empty(), "{problem} {arch}");
            for c in &picked {
                let e = c.estimate;
                assert!(e.total_us.is_finite() && e.total_us > 0.0 && e.dram_bytes > 0.0, "{problem} {arch} {} {e:?}", c.plan);
            }
            assert!(picked.windows(2).all(|w| w[0].estimate.total_us <= 1.02 * w[1].estimate.total_us));
            let again: Vec<Plan> = Picker::new(&s).pick(40).iter().map(|c| c.plan).collect();
            assert_eq!(again, picked.iter().map(|c| c.plan).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_constraint_holds_in_every_pick() {
    let mut pins = tilewright_gen::plan::Constraint::none();
    pins.pin(Key::C(Common::Unr), 24);
    pins.pin(Key::A(Chiral::Mic), 5);
    let s = space(&gemm(512, 512, 512), "sm_90a").constrained(&pins);
    let picked = Picker::new(&s).pick(10);
    assert!(!picked.is_empty());
    assert!(picked.iter().all(|c| pins.allows(&c.plan)));
}

#[test]
fn soft_max_is_a_maximum() {
    assert_eq!(soft_max(&[]), 0.0);
    assert_eq!(soft_max(&[0.0, 5.0]), 5.0);
    let both = soft_max(&[5.0, 5.0]);
    assert!(both > 5.0 && both < 6.0);
}

/// Rows of C that are contiguous in a 32-bit operand: instructions read them from registers, or a copy of it from shared memory.
#[test]
fn rows_of_tf32_come_through_registers() {
    use tilewright_problem::{Math, Order};
    let ways = |trans: (bool, bool)| {
        let gemm = Gemm::new(Scalar::F32, 1024, 1024, 1024).math(Math::Tf32).order(Order::Row).trans(trans.0, trans.1);
        let space = Space::new(&Problem::Gemm(gemm.build().unwrap()), &Target::by_arch("sm_90a").unwrap()).unwrap();
        let seeds = super::seeds::seeds(&Picker::new(&space));
        let legal = |p: &&Plan| p.family().reads == Reads::Panels && space.resolve(p).is_ok();
        let mut ways: Vec<_> = seeds.iter().map(|c| &c.plan).filter(legal).map(|p| (p.swapped, p.register_sets > 0)).collect();
        ways.sort_unstable();
        ways.dedup();
        ways
    };
    // Both operands along k: from shared memory, for the product and for the transposed one.
    assert_eq!(ways((false, true)), [(0, false), (1, false)]);
    // The left one along its rows, or the right one, which is the left one of the transposed product.
    assert_eq!(ways((true, true)), [(0, false), (0, true), (1, false)]);
    assert_eq!(ways((false, false)), [(0, false), (1, false), (1, true)]);
}

/// f32 as three TF32 products. Warpgroups read A's fragments from registers, and producer warps write B. Waves multiply where
/// there are no warpgroup instructions, and multiply-adds where there is no unit. The unit is about as much faster than
/// multiply-adds as a third of its rate says.
#[test]
fn three_products_of_tf32_are_picked() {
    use tilewright_problem::{Math, Order};
    let pick = |arch: &str, math, trans_a: bool, trans_b: bool| {
        let gemm = Gemm::new(Scalar::F32, 4096, 4096, 4096).math(math).order(Order::Row).trans(trans_a, trans_b);
        let space = Space::new(&Problem::Gemm(gemm.build().unwrap()), &Target::by_arch(arch).unwrap()).unwrap();
        let pick = Picker::new(&space).pick(1)[0];
        (pick.plan, pick.estimate.total_us)
    };
    for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let (plan, us) = pick("sm_90a", Math::Tf32x3, trans_a, trans_b);
        assert_eq!((plan.unit, plan.b.copy), (2, 0), "{plan}");
        let (_, exact) = pick("sm_90a", Math::Exact, trans_a, trans_b);
        assert!(us < exact / 1.5, "{us} against {exact}: {plan}");
    }
    assert_eq!(pick("sm_80", Math::Tf32x3, false, true).0.unit, 1);
    assert_eq!(pick("sm_75", Math::Tf32x3, false, true).0.unit, 0);
}

/// Operands that bulk copies do not reach are materialised in some candidates and fetched by producer warps in others. Operands
/// that they do reach are neither among the seeds.
#[test]
fn operands_that_begin_anywhere_come_in_every_way() {
    use tilewright_problem::Order;
    let ways = |m, n, k| {
        let gemm = Gemm::new(Scalar::BF16, m, n, k).order(Order::Row).build().unwrap();
        let space = Space::new(&Problem::Gemm(gemm), &Target::by_arch("sm_90a").unwrap()).unwrap();
        let mut ways: Vec<_> = super::seeds::seeds(&Picker::new(&space))
            .iter()
            .map(|c| &c.plan)
            .filter(|p| p.family().reads == Reads::Panels && p.swapped == 0)
            .map(|p| [p.a.copy, p.a.source, p.b.copy, p.b.source])
            .collect();
        ways.sort_unstable();
        ways.dedup();
        ways
    };
    assert_eq!(ways(512, 512, 512), [[2, 0, 2, 0]]);
    // Rows of B begin anywhere: a copy of it in workspace, or load waves, from global memory or from staging.
    assert_eq!(ways(256, 513, 512), [[2, 0, 0, 0], [2, 0, 2, 1], [2, 0, 3, 0]]);
    let both = ways(512, 513, 515);
    for way in [[2, 1, 2, 1], [0, 0, 2, 1], [2, 1, 0, 0], [0, 0, 0, 0], [3, 0, 3, 0]] {
        assert!(both.contains(&way), "{way:?} not in {both:?}");
    }
}

/// Input gradients of groups of four channels on an H200. They take 250 and 130 us where the windows of a result tile are copied
/// once. They take 419 and 165 where wgmma reads windows for every tap. The copies wait for each other, and the buffers of taps
/// wait for a busy cache.
#[test]
fn windows_copied_once_come_before_windows_of_every_tap() {
    let once = "A_MIC5_ACP4__B_MIC8_GLW4_ACP1__C_UNR192_MAC256_SKW9_CST1_UKL1_PFG1_BUF2_BIM2_UNI1";
    let taps = "A_MIC2_ACP2__B_MIC8_WOS1_ACP2__C_UNR64_GAL3_MAC512_SKW10_CST1_PFG4_BUF5_FRA1_LWV4_BIM2_UNI2_PST132_PNG1";
    let thin = "A_MIC4_ACP4__B_MIC8_LOR1_GLW4_ACP1__C_UNR64_MAC128_SKW9_CST1_UKL1_PFG2_BUF3_BIM2_UNI1";
    let pairs = "A_MIC2_ACP2_CLU2__B_MIC8_WOS1_ACP2__C_UNR64_GAL3_MAC256_SKW10_CST1_PFG5_BUF6_FRA1_LWV4_BIM2_UNI2_PST132_PNG1";
    for (sizes, once, taps) in [("g16_c64_k64_in112x112", once, taps), ("g32_c128_k128_in56x56", thin, pairs)] {
        let text = format!("conv_bwdd_nhwc_n128_{sizes}_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1073741824_f16");
        let s = space(&Problem::parse(&text).unwrap(), "sm_90a");
        let us = |keys: &str| {
            let plan = Constraint::parse(keys).unwrap().apply(&Plan::default()).into();
            Picker::new(&s).estimate(&plan).unwrap_or_else(|| panic!("{keys}")).total_us
        };
        let (once, taps) = (us(once), us(taps));
        assert!(once < taps, "{sizes}: {once} and {taps}");
    }
}
