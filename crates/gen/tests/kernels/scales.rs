//! Zero points of factors and vectors of scales over rows and columns, as epilogue operations: every unit, exit and split of k, formats from 8 bits on, on the emulator.

use crate::support;

use support::{emulator, verified};
use tilewright_check::random::whole_run;
use tilewright_gen::plan::{Constraint, Plan, Refusal};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Activation, Along, Gemm, Order, Problem, ZeroPoint};

const FMA: &str = "A_MIC4__B_MIC4__C_MAC64_UNR16_EDG1";
const MMA: &str = "A_MIC4_PAD1_GLW16_PLU1__B_MIC4_PAD1_GLW16_PLU1__C_UNI1_MAC128_UNR64_PFG1_BUF2_EDG1";
const WGMMA: &str = "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_UNR128_PFG3_BUF4_LWV4";
const MFMA: &str = "A_MIC2_PAD1_GLW16_PLU1__B_MIC2_PAD1_GLW16_PLU1__C_UNI3_MAC256_UNR64_PFG1_BUF2_EDG1";

/// Plans on devices, with a type of factors and of results.
const CASES: &[(&str, &str, Scalar, Scalar)] = &[
    ("emu:sm_80", FMA, Scalar::F32, Scalar::F32),
    ("emu:sm_80", FMA, Scalar::I8, Scalar::I8),
    ("emu:sm_89", MMA, Scalar::E4M3, Scalar::BF16),
    ("emu:sm_80", MMA, Scalar::I8, Scalar::F32),
    ("emu:sm_90a", WGMMA, Scalar::E4M3, Scalar::F16),
    ("emu:sm_90a", WGMMA, Scalar::E5M2, Scalar::E4M3),
    ("emu:gfx942", MFMA, Scalar::E4M3Fnuz, Scalar::F32),
];

#[test]
fn every_unit_and_exit_scales_rows_and_columns() {
    for (number, (device, plan, dtype, out)) in (0..).zip(CASES) {
        let exits = [("_CST1", Order::Row), ("", Order::Col), ("_ICE2_SKS1", Order::Row), ("_SWP1", Order::Row)];
        for (i, (keys, order)) in (0..).zip(exits) {
            let all = (0..).zip([&[Along::M][..], &[Along::N], &Along::ALL]);
            for (_, scales) in all.filter(|(j, _)| whole_run() || (number + i + j) % 3 == 0) {
                // Rows of C's memory are columns of the product in the other order.
                let trans = if order == Order::Row { (false, true) } else { (true, false) };
                let gemm = Gemm::new(*dtype, 80, 96, 160).order(order).trans(trans.0, trans.1).out_dtype(*out).batch(2);
                let gemm = scales.iter().copied().fold(gemm, tilewright_problem::GemmBuilder::scale).bias(Along::N);
                let gemm = if out.is_float() { gemm.activation(Activation::Relu) } else { gemm };
                let problem: Problem = gemm.build().unwrap().into();
                verified(device, &problem, &format!("{plan}{keys}"), (number, number % 2 == 0));
            }
        }
    }
}

/// Sums of products without the factors' zero points, bit by bit, of every kind of them and in every type of results.
#[test]
fn every_unit_and_exit_takes_zero_points() {
    let cases = [
        ("emu:sm_80", FMA, Scalar::I8, Scalar::U8),
        ("emu:sm_80", MMA, Scalar::U8, Scalar::I8),
        ("emu:sm_90a", WGMMA, Scalar::I8, Scalar::U8),
        ("emu:gfx942", MFMA, Scalar::I8, Scalar::I8),
    ];
    let how = [None, Some(ZeroPoint::Tensor), Some(ZeroPoint::Each)];
    for (number, (device, plan, dtype, b)) in (0..).zip(cases) {
        let outs = [Scalar::I32, dtype, Scalar::F16, Scalar::BF16, Scalar::F32];
        for (i, (keys, order)) in
            (0..).zip([("", Order::Row), ("", Order::Col), ("_ICE2_SKS1", Order::Row), ("_SWP1", Order::Row)])
        {
            let all = (0..9).map(|j| (j, how[j % 3], how[j / 3])).skip(1);
            for (j, of_a, of_b) in all.filter(|(j, ..)| whole_run() || (number as usize + i + j).is_multiple_of(4)) {
                let out = outs[(i + j) % outs.len()];
                let trans = if order == Order::Row { (false, true) } else { (true, false) };
                let gemm = Gemm::new(dtype, 80, 96, 160).b_dtype(b).order(order).trans(trans.0, trans.1).out_dtype(out).batch(2);
                let gemm = of_a.map_or(gemm.clone(), |how| gemm.zero_point(Along::M, how));
                let gemm = of_b.map_or(gemm.clone(), |how| gemm.zero_point(Along::N, how));
                let gemm = if out == Scalar::I32 { gemm } else { gemm.scale(Along::N) };
                verified(device, &gemm.build().unwrap().into(), &format!("{plan}{keys}"), (number, false));
            }
        }
    }
    let gemm = Gemm::new(Scalar::I8, 70, 60, 200).out_dtype(Scalar::F32).zero_point(Along::M, ZeroPoint::Each).build().unwrap();
    let space = Space::new(&gemm.into(), &emulator("emu:sm_80", false, 0).info().target).unwrap().with_atomics(true);
    let plan = Plan::from(Constraint::parse(&format!("{FMA}_ICE2_SKS0")).unwrap().apply(&Plan::default()));
    assert_eq!(space.resolve(&plan).unwrap_err(), Refusal::AtomicZeroPoints { ice: 2 });
}

/// Atomic additions take parts of sums, each scaled.
#[test]
fn parts_of_sums_are_scaled_each() {
    let gemm = Gemm::new(Scalar::F32, 70, 60, 200).scale(Along::M).scale(Along::N).build().unwrap();
    verified("emu:sm_80", &gemm.into(), &format!("{FMA}_ICE2_SKS1"), (3, true));
}
