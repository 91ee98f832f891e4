//! NaN, infinities and overflow: each row of the contract on the emulator, class by class, and the plans that `ieee` leaves out.

use std::collections::BTreeSet;
use std::sync::Arc;
use tilewright_check::random::{Recipe, plan};
use tilewright_check::reference::{Classes, Samples};
use tilewright_check::run::{Factors, compile};
use tilewright_check::verify::Case;
use tilewright_device::{Device, open};
use tilewright_gen::plan::special::{Becomes, CONTRACTS};
use tilewright_gen::plan::{Constraint, Plan, Refusal};
use tilewright_gen::space::Space;
use tilewright_problem::Problem;
use tilewright_problem::contraction::Operand;

/// Problems whose contractions are of one row; the first words of the row's name.
struct Kind {
    row: &'static str,
    device: &'static str,
    /// Keys that the plans have.
    keys: &'static str,
    problems: &'static [&'static str],
}

const KINDS: &[Kind] = &[
    Kind {
        row: "all others",
        device: "emu:sm_90a",
        keys: "",
        problems: &[
            "tC0_tA0_tB0_colMaj0_m40_n48_k33_lda33_ldb48_ldc48_ws0_f32",
            "tC0_tA1_tB0_colMaj0_m40_n48_k32_lda40_ldb48_ldc48_ws1048576_tf32",
            "tC0_tA0_tB1_colMaj0_m64_n48_k32_lda32_ldb32_ldc48_ws1048576_f16",
            "tC0_tA0_tB1_colMaj0_m64_n48_k32_lda32_ldb32_ldc48_ws1048576_bf16_outf32_biasn",
            "tC0_tA0_tB0_colMaj0_m24_n32_k17_lda17_ldb32_ldc32_ws0_f64",
            "tC0_tA0_tB1_colMaj0_m64_n48_k64_lda64_ldb64_ldc48_ws1048576_e5m2_outf32",
        ],
    },
    Kind {
        row: "all others",
        device: "emu:gfx90a",
        keys: "",
        problems: &[
            "tC0_tA0_tB0_colMaj0_m40_n48_k33_lda33_ldb48_ldc48_ws1048576_bf16",
            "conv_fwd_nhwc_n2_g1_c8_k16_in7x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias1_ws1048576_f16",
        ],
    },
    Kind {
        row: "plans that add splits",
        device: "emu:sm_80",
        keys: "C_ICE2_SKS0",
        problems: &["tC0_tA0_tB0_colMaj0_m40_n48_k33_lda33_ldb48_ldc48_ws0_f32"],
    },
    Kind {
        row: "plans that merge",
        device: "emu:sm_80",
        keys: "C_BIM2",
        problems: &["conv_fwd_nhwc_n2_g4_c32_k32_in7x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1048576_f16"],
    },
    Kind {
        row: "plans that merge",
        device: "emu:sm_80",
        keys: "C_BIM3",
        problems: &["conv_fwd_nhwc_n2_g3_c30_k30_in7x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1048576_f16"],
    },
    // Channels that fill up the row of a tap are the next group's.
    Kind {
        row: "plans that merge",
        device: "emu:sm_90a",
        keys: "C_BIM3_UNI2",
        problems: &["conv_fwd_nhwc_n2_g3_c60_k18_in7x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1048576_tf32"],
    },
    Kind {
        row: "`tf32x3`",
        device: "emu:sm_80",
        keys: "C_UNI1",
        problems: &[
            "tC0_tA0_tB0_colMaj0_m40_n48_k32_lda32_ldb48_ldc48_ws1048576_tf32x3",
            "tC0_tA0_tB0_colMaj0_m40_n48_k32_lda32_ldb48_ldc48_ws1048576_bf16x3",
            "tC0_tA0_tB0_colMaj0_m40_n48_k32_lda32_ldb48_ldc48_ws1048576_bf16x6",
        ],
    },
    Kind {
        row: "results in 8-bit floats",
        device: "emu:sm_90a",
        keys: "",
        problems: &[
            "tC0_tA0_tB1_colMaj0_m64_n48_k64_lda64_ldb64_ldc48_ws1048576_e4m3_oute4m3",
            "tC0_tA0_tB1_colMaj0_m64_n48_k64_lda64_ldb64_ldc48_ws1048576_e5m2_oute5m2",
            "tC0_tA0_tB1_colMaj0_m64_n48_k64_lda64_ldb64_ldc48_ws1048576_f16_oute4m3",
        ],
    },
];

/// Some plans of a problem that have the keys.
fn plans(space: &Space, keys: &str) -> BTreeSet<String> {
    let wanted = Constraint::parse(keys).expect("keys");
    let space = space.clone().constrained(&wanted);
    let drawn = (0..40).filter_map(|seed| plan(&space, &Recipe::emulated(), seed));
    let repaired = space.repair(&space.fallback());
    let all = drawn.chain(repaired).filter(|plan| wanted.allows(plan) && space.resolve(plan).is_ok());
    all.map(|plan| plan.to_string()).take(5).collect()
}

fn sum(x: Classes, y: Classes) -> Classes {
    Classes {
        finite: x.finite + y.finite,
        nan: x.nan + y.nan,
        above: x.above + y.above,
        below: x.below + y.below,
        open: x.open + y.open,
    }
}

/// The classes of results that a plan was compared in.
fn verified(device: &Arc<dyn Device>, space: &Space, plan: &Plan) -> Classes {
    let resolved = space.resolve(plan).expect("it is legal");
    let program = resolved.generate(space.env().workspace_bytes).expect("it has a program");
    let compiled = compile(device.as_ref(), &program).expect("it compiles");
    let mut all = Classes::default();
    // With the larger factor results leave their type.
    for alpha in [1.0, 2f64.powi(40)] {
        let case = Case::new(device, space.problem(), 11, Factors::real(alpha, 0.0), Samples::All).expect("data");
        for operand in [Operand::A, Operand::B] {
            let special = case.special(operand, resolved.contract());
            let Some(special) = special else { continue };
            let verdict = case.verify_special(&special, &program, &compiled, resolved.contraction).expect("it runs");
            assert!(verdict.passed, "{} {plan}, alpha {alpha}, {operand:?}: {verdict:?}", space.problem());
            all = sum(all, special.classes());
        }
    }
    all
}

#[test]
fn each_row_of_the_contract_holds_class_by_class() {
    let mut rows = BTreeSet::new();
    for Kind { row, device, keys, problems } in KINDS {
        let device = open(device).expect("the emulator");
        for text in *problems {
            let problem = Problem::parse(text).expect("a problem");
            let space = Space::new(&problem, &device.info().target).expect("a space");
            let space = space.with_atomics(keys.contains("SKS0"));
            let plans = plans(&space, keys);
            assert!(plans.len() > 1, "{text}: {plans:?}");
            let mut seen = Classes::default();
            for plan in plans {
                let plan = Plan::parse(&plan).expect("a plan");
                let contract = space.resolve(&plan).expect("it is legal").contract();
                assert!(contract.of.starts_with(row), "{text} {plan}: {}", contract.of);
                rows.insert(contract.of);
                seen = sum(seen, verified(&device, &space, &plan));
                // Its values are those of IEEE 754, or `ieee` refuses it.
                let refused = space.clone().with_ieee(true).resolve(&plan).err();
                let named = matches!(refused, Some(Refusal::NotIeee { of, .. }) if of == contract.of);
                assert_eq!((contract.is_ieee(), refused.is_some()), (!named, named), "{text} {plan}: {refused:?}");
            }
            assert!(seen.nan > 0 && seen.finite > 0, "{text}: {seen:?}");
            // Split elements give infinities by overflow alone, 8-bit floats none.
            assert_eq!(*row != "results in 8-bit floats", seen.above > 0 && seen.below > 0, "{text}: {seen:?}");
        }
    }
    let floats: BTreeSet<&str> = CONTRACTS.iter().filter(|row| row.nan != Becomes::Absent).map(|row| row.of).collect();
    assert_eq!(rows, floats, "rows with NaN that no case has");
}

/// Integers have no NaN and no infinity: a result of 8 bits ends at the ends of its type. A sum beyond i32 wraps on devices, and the emulator
/// names the addition.
#[test]
fn integers_overflow_as_the_contract_says() {
    let device = open("emu:sm_80").expect("the emulator");
    // 127 * 127 * k is beyond i32.
    let k = 140_000u64;
    let rows = [("i8_outi32", "sums in i32"), ("i8_outi8", "results in i8 or u8")];
    for (types, row) in rows {
        let k = if types == "i8_outi32" { k } else { 64 };
        let text = format!("tC0_tA0_tB0_colMaj0_m4_n4_k{k}_lda{k}_ldb4_ldc4_ws0_{types}");
        let problem = Problem::parse(&text).expect("a problem");
        let space = Space::new(&problem, &device.info().target).expect("a space");
        let plan = space.repair(&space.fallback()).expect("a plan");
        let resolved = space.resolve(&plan).expect("it is legal");
        assert_eq!(resolved.contract().of, row);
        assert!(space.clone().with_ieee(true).resolve(&plan).is_ok());
        let program = resolved.generate(0).expect("a program");
        let compiled = compile(device.as_ref(), &program).expect("it compiles");
        let case = Case::new(&device, &problem, 3, Factors::real(1.0, 0.0), Samples::Budget(0)).expect("data");
        let buffers = case.buffers(None);
        for operand in [Operand::A, Operand::B] {
            let buffer = buffers.operand(operand);
            device.fill(buffer, 127).expect("memory");
        }
        let launches = case.bind(&program, &compiled, resolved.contraction, None).expect("it fits");
        let ran = device.launch(&launches);
        if row == "sums in i32" {
            let named = ran.expect_err("a sum leaves i32").to_string();
            assert!(named.contains("i32") && named.contains("acc"), "{named}");
            continue;
        }
        ran.expect("it runs");
        let c = buffers.operand(Operand::C);
        let mut bytes = vec![0; c.bytes() as usize];
        device.read(c, 0, &mut bytes).expect("the result");
        assert!(bytes.iter().filter(|x| **x == 127).count() >= 16, "{text}: {bytes:?}");
    }
}
