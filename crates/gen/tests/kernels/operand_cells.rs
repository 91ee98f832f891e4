//! The table of operands reduced over k in a product's main loop (`RDK1`): every unit with the ways its tiles come and every split of k. Where
//! it says so, a plan verifies on the emulator, every check on, for every operator; else it gives the reason why none has it. The table
//! is kept in `tests/snapshots/operand_cells.txt`; `UPDATE_CELLS=1` renews it.

use crate::support;

use rayon::prelude::*;
use std::fmt::Write as _;
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, Math, Order, Problem};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/operand_cells.txt");

/// Unit and tiles, device, type, plan, in which `PLU_` is the order that suits vectors.
const UNITS: [(&str, &str, Scalar, &str); 12] = [
    ("fma", "emu:sm_90a", Scalar::F32, "A_MIC4__B_MIC4__C_MAC64_UNR8"),
    ("fma in f64, persistent", "emu:sm_90a", Scalar::F64, "A_MIC4_PLU1__B_MIC4__C_MAC64_UNR8_PST4_FRA1_BUF2_PFG1"),
    ("mma.sync", "emu:sm_90a", Scalar::F16, "A_MIC2_GLW8_PLU___B_MIC4_GLW8_PLU___C_UNI1_MAC128_UNR32"),
    (
        "mma.sync by cp.async",
        "emu:sm_90a",
        Scalar::BF16,
        "A_MIC2_GLW8_PLU__ACP1__B_MIC4_GLW8_PLU__ACP1__C_UNI1_MAC128_UNR32_PFG2_BUF3",
    ),
    ("mma.sync by TMA", "emu:sm_90a", Scalar::F16, "A_MIC2_ACP2__B_MIC4_ACP2__C_UNI1_MAC128_UNR64_PFG1_BUF2"),
    ("wgmma by TMA", "emu:sm_90a", Scalar::BF16, "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_MAC128_UNR64_PFG2_BUF3_LWV4"),
    ("wgmma, persistent", "emu:sm_90a", Scalar::BF16, "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_MAC256_UNR64_PFG2_BUF3_LWV4_PST4"),
    ("wgmma, ping-pong", "emu:sm_90a", Scalar::F16, "A_MIC1_ACP2__B_MIC8_ACP2__C_UNI2_MAC256_UNR64_PFG3_BUF4_LWV4_PST2_PNG1"),
    ("wgmma, clusters of 2", "emu:sm_90a", Scalar::F16, "A_MIC1_ACP2_CLU2__B_MIC8_ACP2__C_UNI2_MAC128_UNR64_PFG2_BUF3_LWV4"),
    ("wgmma by producer waves", "emu:sm_90a", Scalar::BF16, "A_MIC1_ACP0__B_MIC8_ACP0__C_UNI2_MAC128_UNR64_PFG2_BUF3_LWV4"),
    (
        "wgmma, f32 by pairs of TF32",
        "emu:sm_90a",
        Scalar::F32,
        "A_MIC1_ACP2__B_MIC8_ACP0__C_UNI2_MAC128_UNR32_PFG2_BUF3_LWV4_RGA2",
    ),
    ("MFMA", "emu:gfx942", Scalar::F16, "A_MIC2_GLW8_PLU___B_MIC2_GLW8_PLU___C_UNI3_MAC128_UNR32"),
];
const SPLITS: [(&str, &str); 4] =
    [("none", "ICE1"), ("workspace", "ICE2_SKS1"), ("cluster", "ICE2_SKS2"), ("atomic additions", "ICE2_SKS0")];
const OPERATORS: [&str; 10] = ["sum", "sumsq", "mean", "max", "min", "absmax", "logsumexp", "var", "sum.abs", "norm2"];

/// Nothing, or why no plan has it. Factors run along k or across it.
fn tried(unit: usize, split: usize, across: bool) -> Result<(), String> {
    let (name, device, scalar, head) = UNITS[unit];
    let device = support::emulator(device, true, 3);
    for (number, operators) in OPERATORS.chunks(3).enumerate() {
        let gemm = Gemm::new(scalar, 136, 72, 88).batch(2).order(Order::Row).trans(across, !across);
        let gemm = if name.contains("TF32") { gemm.math(Math::Tf32x3) } else { gemm };
        let gemm = if scalar == Scalar::F64 { gemm } else { gemm.out_dtype(Scalar::F32) };
        let both = operators.iter().flat_map(|op| [format!("{op}:k:a"), format!("{op}:k:b")]);
        let gemm = both.fold(gemm, |gemm, text| gemm.reduce(text.parse().expect("a reduction")));
        let problem: Problem = gemm.build().map_err(|e| e.to_string())?.into();
        let space = Space::new(&problem, &device.info().target).map_err(|e| e.to_string())?.with_atomics(true);
        // `PLU` that makes global loads follow the operands' contiguous direction.
        let head = head.replace("PLU_", if across { "PLU0" } else { "PLU1" });
        let text = format!("{head}_EDG{}_SWP{}_RDK1_{}", number % 2, number / 2, SPLITS[split].1);
        let plan = Plan::from(Constraint::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}")).apply(&Plan::default()));
        let r = space.resolve(&plan).map_err(|e| e.to_string())?;
        assert!(r.operands.is_empty() && r.spec.epilogue.operands, "{name}: a kernel of its own");
        let program = r.generate(space.env().workspace_bytes).map_err(|e| e.to_string())?;
        if !support::runs_one_of(10, SPLITS.len() * unit + split + number + usize::from(across)) {
            continue;
        }
        let compiled = compile(device.as_ref(), &program).unwrap_or_else(|e| panic!("{text}: {e}"));
        let case = Case::new(&device, &problem, 5, test_factors(5, false), Samples::All).expect("memory");
        let verdict = case.verify(&program, &compiled, space.contraction(&plan), Depth::Quick, false);
        let verdict = verdict.unwrap_or_else(|e| panic!("{problem} {text}: {e}"));
        assert!(verdict.passed, "{problem} {text}: {:?}", verdict.reason);
    }
    Ok(())
}

#[test]
fn operands_are_reduced_in_the_main_loop_or_it_says_why_not() {
    let cells: Vec<(usize, usize)> = (0..UNITS.len()).flat_map(|u| (0..SPLITS.len()).map(move |s| (u, s))).collect();
    let decide = |(unit, split): &(usize, usize)| [false, true].map(|across| tried(*unit, *split, across));
    let decided: Vec<[Result<(), String>; 2]> = cells.par_iter().map(decide).collect();
    let mut text =
        format!("| unit and tiles | {} |\n|---|{}\n", SPLITS.map(|(name, _)| name).join(" | "), "---|".repeat(SPLITS.len()));
    let mut reasons: Vec<&String> = Vec::new();
    for ((name, ..), row) in UNITS.iter().zip(decided.chunks(SPLITS.len())) {
        let mut told = Vec::new();
        for cell in row {
            let words = ["along k", "across k"].iter().zip(cell).map(|(along, decided)| match decided {
                Ok(()) => "fused".to_string(),
                Err(why) => {
                    let number = reasons.iter().position(|x| *x == why).unwrap_or(reasons.len());
                    if number == reasons.len() {
                        reasons.push(why);
                    }
                    format!("{along}: ({})", number + 1)
                }
            });
            let mut words: Vec<String> = words.collect();
            words.dedup();
            told.push(words.join(", "));
        }
        let _ = writeln!(text, "| {name} | {} |", told.join(" | "));
    }
    for (number, reason) in reasons.iter().enumerate() {
        let _ = write!(text, "\n({}) {reason}\n", number + 1);
    }
    if std::env::var_os("UPDATE_CELLS").is_some() {
        return std::fs::write(FILE, text).expect("the table is written");
    }
    let pinned = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(text == pinned, "{FILE} differs from the cells; renew it with UPDATE_CELLS=1:\n{text}");
}
