//! What the cost model picks for products, with no measuring and no run, and what assemblers make of it.

use crate::inspected::inspected_in;
use crate::{picked, space};
use tilewright_check::random::whole_run;
use tilewright_gen::plan::{Constraint, Plan, Source};
use tilewright_gen::space::Space;
use tilewright_ir::{MathUnit, MatrixType, Scalar, Target};
use tilewright_problem::{Activation, Along, Gemm, GemmBuilder, Math, Order, Problem};
use tilewright_tune::search::{Descent, Proposal, Searcher};

/// A product of 8-bit factors.
fn eight_bits([a, b]: [Scalar; 2], trans: (bool, bool)) -> Problem {
    let out = if a == Scalar::U8 { a } else { Scalar::BF16 };
    let gemm = Gemm::new(a, 1024, 1024, 1024).b_dtype(b).order(Order::Row).trans(trans.0, trans.1).out_dtype(out);
    gemm.bias(Along::N).activation(Activation::Relu).build().unwrap().into()
}

/// A product of f32 as several of parts of its factors.
fn parts(math: Math, trans: (bool, bool)) -> Problem {
    let gemm = Gemm::new(Scalar::F32, 4096, 4096, 4096).order(Order::Row).math(math);
    gemm.trans(trans.0, trans.1).build().unwrap().into()
}

/// A complex product. Bits: A's transposition, A's conjugates, B's, and the order of all matrices.
fn complex((scalar, math): (Scalar, Math), bits: u32) -> GemmBuilder {
    let bit = |i: u32| bits >> i & 1 == 1;
    let order = if bit(4) { Order::Row } else { Order::Col };
    Gemm::new(scalar, 4096, 4096, 4096).math(math).order(order).trans(bit(0), bit(2)).conj(bit(1), bit(3))
}

/// What is picked for products of one to a few k-tiles fetches no further ahead than it has k-tiles.
#[test]
fn picks_fetch_no_more_k_tiles_than_there_are() {
    for arch in ["sm_80", "sm_90a"] {
        for [m, n, k] in [[48, 80, 31], [64, 64, 64], [128, 128, 128], [256, 256, 256]] {
            let problem = Problem::Gemm(Gemm::new(Scalar::F16, m, n, k).build().unwrap());
            let space = space(&problem, arch);
            let picked = picked(&space).plan;
            let spec = space.resolve(&picked).unwrap().spec;
            let tiles = k.div_ceil(u64::from(spec.tiling.k_tile)).div_ceil(u64::from(spec.tiling.split_k.ways));
            let ahead = spec.schedule.fetch_ahead.max(picked.ahead);
            assert!(u64::from(ahead) <= tiles, "{arch} {m}x{n}x{k}: {tiles} k-tiles: {picked}");
        }
    }
}

/// What is opened with, without measuring: the unit of the device, by bulk copies of rows along k, of the others' copies along k.
#[test]
fn picked_plans_use_the_units() {
    let float = Scalar::E4M3;
    let units = [("sm_90a", MathUnit::Warpgroup, float), ("sm_89", MathUnit::Mma, float), ("sm_80", MathUnit::Fma, float)];
    let cases = units.into_iter().chain([("sm_90a", MathUnit::Warpgroup, Scalar::I8), ("sm_80", MathUnit::Mma, Scalar::U8)]);
    let amd = ["gfx90a", "gfx942", "gfx950"].map(|arch| (arch, MathUnit::Mfma, Scalar::I8));
    let cases = cases.chain(amd).chain([("gfx942", MathUnit::Dot, Scalar::U8), ("sm_75", MathUnit::Dot, Scalar::I8)]);
    let all = cases.flat_map(|case| [(case, (false, true)), (case, (true, false))]).enumerate();
    // Outside of a whole run, cases alternate between transpositions.
    let all = all.filter(|(number, _)| whole_run() || number / 2 % 2 == number % 2);
    for (_, ((arch, unit, dtype), trans)) in all {
        let space = space(&eight_bits([dtype; 2], trans), arch);
        let plan = picked(&space).plan;
        let spec = space.resolve(&plan).unwrap().spec;
        assert_eq!(spec.tiling.unit, unit, "{arch}: {plan}");
        let copied = [&spec.tiling.a, &spec.tiling.b].map(|o| o.source == Source::CopyAlongK);
        let bulk = spec.schedule.copies.iter().all(|copy| copy.is_bulk());
        assert!(unit != MathUnit::Warpgroup || bulk && copied == [trans.0; 2], "{plan}");
    }
}

/// Matrix units where there are any for bf16, and faster than f32 itself.
#[test]
fn picks_use_matrix_units() {
    let pick = |arch: &str, math, trans: (bool, bool)| {
        let gemm = parts(math, trans);
        let space = space(&gemm, arch);
        let pick = picked(&space);
        (pick.plan, pick.estimate.total_us)
    };
    let cases = [("sm_90a", &[1, 2][..], 2.0), ("sm_80", &[1], 2.0), ("gfx942", &[3], 1.0)];
    for (case, (arch, units, times)) in cases.into_iter().enumerate() {
        // Outside of a whole run, other transpositions for each architecture.
        let all = [(false, false), (false, true), (true, false), (true, true)].into_iter().enumerate();
        for (_, trans) in all.filter(|(turn, _)| whole_run() || (turn + case) % 2 == 0) {
            let (plan, three) = pick(arch, Math::Bf16x3, trans);
            assert!(units.contains(&plan.unit), "{arch} {plan}");
            let (plan, six) = pick(arch, Math::Bf16x6, trans);
            assert!(units.contains(&plan.unit), "{arch} {plan}");
            let (_, exact) = pick(arch, Math::Exact, trans);
            println!("{arch} {trans:?}: bf16x3 {three:.0}, bf16x6 {six:.0}, f32 {exact:.0} us: {plan}");
            assert!(three < six && times * three < exact, "{arch}: {three}, {six} against {exact}: {plan}");
        }
    }
    assert_eq!(pick("sm_75", Math::Bf16x6, (false, true)).0.unit, 0);
    assert_eq!(pick("sm_90a", Math::Bf16x6, (true, true)).0.a.copy, 0);
}

/// The matrix instructions of bf16 in what is picked for a product, and in tiles of warpgroups that load waves write.
#[test]
fn assemblers_take_them() {
    let groups = [
        "A_MIC2__B_MIC16__C_UNI2_MAC256_SKW11_UNR64_BUF2_PFG1_LWV8_PST132_CST1",
        "A_MIC1__B_MIC16__C_UNI2_MAC256_UNR64_BUF2_PFG1_LWV4_PST132_CST1",
    ];
    let cases = [("sm_80", None), ("sm_90a", None)]
        .map(|(arch, plan)| [Math::Bf16x3, Math::Bf16x6].map(|math| (arch, math, plan)))
        .concat();
    let cases = cases.into_iter().chain([("sm_90a", Math::Bf16x3, Some(groups[0])), ("sm_90a", Math::Bf16x6, Some(groups[1]))]);
    for (arch, math, plan) in cases {
        let gemm = parts(math, (false, true));
        let space = space(&gemm, arch);
        let plan = match plan {
            Some(text) => Plan::from(Constraint::parse(text).unwrap().apply(&Plan::default())),
            None => picked(&space).plan,
        };
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
        assert!(r.spec.tiling.instruction.is_some_and(|row| row.input == MatrixType::BF16), "{plan}");
        let Some(seen) = inspected_in(&space, arch, &plan) else { return };
        let (usage, main) = (seen.usage, seen.main_loop().unwrap_or_else(|| panic!("{plan}: no main loop")));
        println!("{arch} {} {plan}: {} registers, spills {}, {:?}", math.name(), usage.registers, usage.spill_bytes, main.counts);
        let unit = plan.unit;
        if let Ok(folder) = std::env::var("SASS_OUT") {
            std::fs::write(format!("{folder}/{arch}_{}_{unit}.sass", math.name()), &seen.assembly).unwrap();
        }
        // Three parts of a wave's 64 x 64 tile and what is on its way to shared memory take all registers, and a few words more.
        assert!(usage.spill_bytes <= if math == Math::Bf16x6 && unit == 1 { 64 } else { 0 }, "{plan}: {usage:?}");
        let instruction = if unit == 2 { "HGMMA.64x128x16.F32.BF16" } else { "HMMA.16816.F32.BF16" };
        assert!(seen.assembly.contains(instruction), "{plan}");
    }
}

/// Of f64 and of TF32 the cost model picks matrix units, and a copy of the expanded factor in workspace for them.
#[test]
fn matrix_units_are_picked_for_large_products() {
    let matrix =
        [("sm_90a", Scalar::F64, Math::Exact), ("gfx942", Scalar::F64, Math::Exact), ("sm_90a", Scalar::F32, Math::Tf32)];
    let cases = matrix.into_iter().chain([("sm_90a", Scalar::F32, Math::Exact)]).enumerate();
    for (case, (arch, scalar, math)) in cases {
        // Outside of a whole run, another of them for each case.
        for bits in [0, 16, 18, 3].into_iter().cycle().skip(case).take(if whole_run() { 4 } else { 1 }) {
            let problem = complex((scalar, math), bits).build().unwrap().into();
            let space = space(&problem, arch);
            let candidate = picked(&space);
            let spec = space.resolve(&candidate.plan).unwrap().spec;
            eprintln!("{arch} {scalar} {}: {:.0} us {}", math.name(), candidate.estimate.total_us, candidate.plan);
            let lanes = spec.tiling.unit.family().lanes;
            assert_eq!(lanes > 1, (scalar, math) != (Scalar::F32, Math::Exact), "{arch} {problem}: {}", candidate.plan);
        }
    }
}

/// The search begins with other ways to finish as well: with the last work-group, and with atomics where they are allowed and exist.
#[test]
fn ways_to_finish_are_among_the_first() {
    // Plans that are proposed before a time is known.
    const OPENING: usize = 24;
    let target = Target::by_arch("sm_90a").unwrap();
    for (reduction, few, allow) in
        [("max:n", true, false), ("sum:n", true, true), ("sum:n", false, false), ("argmax:n", false, true)]
    {
        let gemm = Gemm::new(Scalar::BF16, 2048, 2048, 512).reduce(reduction.parse().unwrap()).drop_c().build().unwrap();
        let space = Space::new(&gemm.into(), &target).unwrap().with_atomics(allow);
        let mut searcher = Descent::new(&space, 1, &[]);
        let next = |_| match searcher.propose() {
            Proposal::Try(plan) => Some(plan.finish),
            _ => None,
        };
        let opening: Vec<u32> = (0..OPENING).map_while(next).collect();
        assert!(opening.contains(&0) && opening.contains(&1), "{reduction}: {opening:?}");
        assert_eq!(opening.contains(&2), few, "{reduction}: {opening:?}");
    }
}
