//! Vectors of scales over rows and columns, as epilogue operations: every unit, exit and split of k, formats from 8 bits on, on the emulator.

mod support;

use support::verified;
use tilewright_ir::Scalar;
use tilewright_problem::{Activation, Along, Gemm, Order, Problem};

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
        for (keys, order) in [("_CST1", Order::Row), ("", Order::Col), ("_ICE2_SKS1", Order::Row), ("_SWP1", Order::Row)] {
            for scales in [&[Along::M][..], &[Along::N], &Along::ALL] {
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

/// Atomic additions take parts of sums, each scaled.
#[test]
fn parts_of_sums_are_scaled_each() {
    let gemm = Gemm::new(Scalar::F32, 70, 60, 200).scale(Along::M).scale(Along::N).build().unwrap();
    verified("emu:sm_80", &gemm.into(), &format!("{FMA}_ICE2_SKS1"), (3, true));
}
