//! What random pairs are made of: every kind of problem and every value of every key that matters must come up.

use rayon::prelude::*;
use std::collections::BTreeMap;
use tilewright_check::random::{Pair, Recipe, pair};
use tilewright_gen::plan::{Exit, Key, MathUnit, Source, derive};
use tilewright_gen::space::Space;
use tilewright_ir::Target;
use tilewright_problem::{Activation, Layout, Problem};

const PAIRS: u64 = 5000;

/// Features of a pair, as words.
fn features(pair: &Pair, target: &Target) -> Vec<String> {
    let mut words: Vec<String> = Key::all().map(|key| format!("{key}{}", pair.plan.get(key))).collect();
    let space = Space::new(&pair.problem, target).unwrap().with_atomics(true);
    let c = space.contraction(&pair.plan);
    let spec = derive(&pair.plan, c, space.env()).unwrap();
    let t = &spec.tiling;
    // Tiles are those of the operands as the plan turns them.
    let c = &*spec.c;
    let mut word = |holds: bool, name: &str| {
        if holds {
            words.push(name.to_string());
        }
    };
    match &pair.problem {
        Problem::Gemm(g) => {
            word(true, &format!("gemm {}", g.dtype));
            word(g.dtype != g.out_dtype, "gemm 16 bit to f32");
            word(g.batch > 1, "gemm batch");
            word(g.batch > 1 && g.a.batch_stride == 0, "gemm shared a");
            word(g.batch > 1 && g.b.batch_stride == 0, "gemm shared b");
            word(g.batch > 1 && g.c.batch_stride < g.c.ld, "gemm batch interleaved");
            for (name, x) in [("a", g.a), ("b", g.b), ("c", g.c)] {
                word(x.trans, &format!("gemm t{name}"));
                word(x.offset % 2 == 1, &format!("gemm odd offset {name}"));
                word(x.offset > 0 && x.offset.is_multiple_of(4), &format!("gemm even offset {name}"));
            }
            word((0..3).any(|i| g.matrices()[i].ld > g.lines(i).0), "gemm padded ld");
            word(true, &format!("gemm order {:?}", g.order));
        }
        Problem::Conv(v) => {
            word(true, &format!("conv {} {}d", v.dtype, v.dims()));
            word(true, if v.layout == Layout::Nchw { "conv nchw" } else { "conv nhwc" });
            word(v.groups > 1, "conv groups");
            word(v.bias, "conv bias");
            word(v.stride.iter().any(|&x| x > 1), "conv stride");
            word(v.dilation.iter().zip(&v.filter).any(|(&d, &f)| d > 1 && f > 1), "conv dilation");
            word(v.pad_begin != v.pad_end, "conv asymmetric padding");
            word(v.pad_begin.iter().chain(&v.pad_end).all(|&p| p == 0), "conv no padding");
            word(v.filter.iter().all(|&f| f == 1), "conv 1x1");
        }
        Problem::Reduce(_) => {}
    }
    word(pair.problem.activation().is_some(), &format!("activation {:?}", pair.problem.activation().map(Activation::name)));
    word(c.activation().is_some() && t.split_k.ways > 1, "activation of split sums");
    word(c.activation().is_some() && t.swapped, "activation swapped");
    word(c.bias().is_some_and(|b| b.along_n), "bias along n");
    word(c.bias().is_some_and(|b| !b.along_n), "bias along m");
    word(c.g > 1 && c.bias().is_some_and(|b| b.view.uses(0)), "bias by batch entry");
    word(c.residual().is_some(), "residual");
    word(c.residual().is_some() && spec.epilogue.exit.width() > 1, "residual beside vectors");
    word(c.residual().is_some_and(|r| r.view != c.c.view), "residual unlike c");
    word(c.g > 1 && c.residual().is_some_and(|r| !r.view.uses(0)), "residual shared");
    word(pair.problem.out_dtype() != pair.problem.dtype(), &format!("{} to {}", pair.problem.dtype(), c.c.scalar));
    let chunked = tilewright_gen::kernel::generate(&spec, space.env().workspace_bytes).unwrap().launches.len();
    word(chunked > 4, "chunks");
    let (tm, tn) = (u64::from(t.a.macro_tile), u64::from(t.b.macro_tile));
    word(c.m < tm || c.n < tn, "smaller than a tile");
    let (tail_m, tail_n) = (!c.m.is_multiple_of(tm), !c.n.is_multiple_of(tn));
    word(tail_m, "tail in m");
    word(tail_n, "tail in n");
    word(tail_m && tail_n && pair.plan.predicate == 0, "pulled back in both");
    word(!c.k.is_multiple_of(t.k_tile.into()), "tail in k");
    word(c.k < u64::from(t.k_tile), "k below a tile");
    let tiles = c.k.div_ceil(u64::from(t.k_tile) * u64::from(t.split_k.ways));
    word(tiles < u64::from(spec.schedule.fetch_ahead), "k below the prologue");
    word(t.split_k.ways > 1 && c.k.div_ceil(u64::from(t.k_tile)) < u64::from(t.split_k.ways), "splits without work");
    for (name, o) in [("a", &t.a), ("b", &t.b)] {
        word(true, &format!("load {name} {:?} by {}", o.load_along, o.load_width));
        word(true, &format!("fragments {name} by {}", o.fragment_width));
    }
    word(true, &format!("store by {}", spec.epilogue.exit.width()));
    let s = &spec.schedule;
    let split =
        s.roles.map_or("all waves".to_string(), |r| format!("{}:{}", r.load_threads / target.wave, r.math_threads / target.wave));
    if t.unit == MathUnit::Warpgroup {
        let ring = c.k.div_ceil(u64::from(t.k_tile) * u64::from(t.split_k.ways));
        word(ring > u64::from(s.buffers), "a ring goes around");
        let tiles = c.m.div_ceil(tm) * c.n.div_ceil(tn) * c.g * u64::from(t.split_k.ways);
        word(t.persistent > 0 && tiles > u64::from(t.persistent), "a work-group's next tile");
        let turns = t.persistent > 0 && tiles > u64::from(spec.teams() * t.persistent);
        word(spec.teams() > 1 && turns, "a team's next tile");
        word(spec.teams() > 2 && turns, "three teams or more");
        word(spec.epilogue.exit.bulk().is_some() && t.split_k.ways > 1, "partial sums in bulk");
        word(spec.epilogue.exit.bulk().is_some() && t.swapped, "swapped in bulk");
        let by_rows = spec.epilogue.exit == Exit::Rows;
        let stride = |axis| c.c.view.stride(axis).unwrap_or(0);
        let odd = stride(1) % 2 != 0 && c.c.scalar.bytes() == 2 && c.c.align >= 4;
        word(by_rows && odd && t.split_k.ways == 1, "staged rows begin odd");
        word(by_rows && odd && c.g > 1 && stride(0) % 2 != 0, "staged rows of entries begin odd");
        word(by_rows && !odd && c.c.scalar.bytes() == 2 && !c.n.is_multiple_of(2), "staged rows are cut");
        word(by_rows && c.c.scalar.bytes() == 4, "staged rows of f32");
        word(by_rows && t.split_k.ways > 1, "partial sums by rows");
        word(c.bias().is_some(), "bias");
        word(spec.epilogue.exit.bulk().is_some() && stride(2) != 1 && c.n > 1, "columns in bulk");
        let rows = c.a.view.stride(1) == Some(1) && c.a.view.stride(2) != Some(1);
        let kind = format!("fragments of {} bytes along {}", c.a.scalar.bytes(), if rows { "rows" } else { "k" });
        word(t.a.fragment_sets > 0 && t.a.source == Source::InPlace && !s.copies[0].is_written(), &kind);
        word(t.b.micro % 16 == 8, "odd columns");
        word(s.roles.is_some_and(|r| r.registers.is_some()), "registers move");
        words.push(format!(
            "roles {} behind {} staged {}",
            s.roles.is_some(),
            s.math_in_flight.unwrap_or(0),
            spec.epilogue.exit.staged()
        ));
        words.push(format!("copied {:?} {:?}", t.a.source, t.b.source));
        words.push(format!("stored as {}", c.c.scalar));
        for (i, (tensor, o)) in [(&c.a, &t.a), (&c.b, &t.b)].into_iter().enumerate() {
            if s.copies[i].is_written() && o.source == Source::InPlace {
                let kind = match (tensor.view.is_affine_box().is_some(), tensor.view.stride(1) == Some(1)) {
                    (false, _) => "windows",
                    (true, true) => "lines of rows",
                    (true, false) => "lines along k",
                };
                let way = if s.copies[i].shifted().is_some() { "shifted" } else { "fetched" };
                words.push(format!("{way} {kind}"));
            }
            if s.copies[i].tile().is_some_and(|tile| tile.map.im2col.is_some()) {
                let walk = if o.macro_tile > 64 { "tall" } else { "short" };
                words.push(format!("im2col of {} {walk}", ["rows", "columns"][i]));
            }
        }
    }
    words.push(format!("waves {split}"));
    words.push(format!("ahead {} buffers {} {:?}", s.fetch_ahead, s.buffers, s.store));
    words.push(format!("async {} {}", s.copies[0].is_async(), s.copies[1].is_async()));
    words.push(format!("fragments ahead {} buffers {}", s.fragments_ahead, s.buffers.min(2)));
    words
}

fn count(recipe: &Recipe, arch: &str) -> BTreeMap<String, u64> {
    let target = Target::by_arch(arch).unwrap();
    let all: Vec<Vec<String>> =
        (0..PAIRS).into_par_iter().map(|seed| features(&pair(&target, recipe, seed).expect("a pair"), &target)).collect();
    let mut counts = BTreeMap::new();
    for word in all.into_iter().flatten() {
        *counts.entry(word).or_insert(0) += 1;
    }
    counts
}

fn wanted(counts: &BTreeMap<String, u64>, least: u64, words: impl IntoIterator<Item = String>) {
    let rare: Vec<String> = words
        .into_iter()
        .filter_map(|w| {
            let n = counts.get(&w).copied().unwrap_or(0);
            (n < least).then(|| format!("`{w}` {n} times"))
        })
        .collect();
    assert!(rare.is_empty(), "of {PAIRS} pairs, expected at least {least} times: {}", rare.join(", "));
}

/// What makes problems awkward for every kind of plan.
const PROBLEMS: [&str; 27] = [
    "gemm 16 bit to f32",
    "gemm batch",
    "gemm shared a",
    "gemm shared b",
    "gemm batch interleaved",
    "gemm ta",
    "gemm tb",
    "gemm tc",
    "gemm odd offset a",
    "gemm odd offset b",
    "gemm odd offset c",
    "gemm even offset a",
    "gemm padded ld",
    "gemm order Col",
    "gemm order Row",
    "conv nchw",
    "conv nhwc",
    "conv groups",
    "conv bias",
    "chunks",
    "smaller than a tile",
    "tail in m",
    "tail in n",
    "tail in k",
    "k below a tile",
    "k below the prologue",
    "splits without work",
];

/// What happens to sums on their way out.
const EPILOGUES: [&str; 16] = [
    "activation Some(\"relu\")",
    "activation Some(\"gelu\")",
    "activation Some(\"gelutanh\")",
    "activation Some(\"silu\")",
    "activation Some(\"hardswish\")",
    "activation Some(\"exp\")",
    "activation Some(\"softcap\")",
    "activation of split sums",
    "bias along m",
    "bias along n",
    "bias by batch entry",
    "residual",
    "residual beside vectors",
    "residual unlike c",
    "residual shared",
    "bf16 to f16",
];

fn key_values() -> Vec<String> {
    let side = [
        "MIC1 MIC2 MIC3 MIC4 MIC5 MIC6 MIC8 PAD0 PAD1 PAD2 PLU0 PLU1 LIW0 LIW1 MIW0 MIW1 WOS0 WOS1 WOS2 VEW1 VEW2 VEW4 LOR0 LOR1",
        // GLW1 is written GLW0 with VEW1 in a plan.
        "GLW0 GLW2 GLW4 FRW0 FRW2 FRW4",
    ];
    let whole = [
        "UNR1 UNR2 UNR4 UNR8 UNR16 UNR32 GAL1 GAL2 GAL3 PUN0 PUN1 ICE1 ICE2 ICE3 IWI0 IWI1 SZT0 SZT1 MAD0 MAD1 NAW4 NAW64 UFO0 UFO1",
        "MAC32 MAC64 MAC128 SKW8 SKW9 SKW10 SKW11 SKW12 AFI0 AFI1 MIA0 MIA1 EDG0 EDG1 SKS0 SKS1 CVW1 CVW2 CVW4 CST0 CST1",
        "WVA0 WVA4 WVA8 MVW1 MVW2 UKL0 UKL1 PFG0 PFG1 PFG2 PFG3 PFG4 BUF1 BUF2 BUF3 STP0 STP1 STP2 FRA0 FRA1 FRA2 LWV0 LWV1 LWV2 BIM0 BIM1",
    ];
    let sides = side.iter().flat_map(|s| s.split(' ')).flat_map(|k| [format!("A_{k}"), format!("B_{k}")]);
    sides.chain(whole.iter().flat_map(|s| s.split(' ')).map(|k| format!("C_{k}"))).collect()
}

#[test]
fn everything_comes_up() {
    let counts = count(&Recipe::emulated(), "sm_90a");
    for (word, n) in &counts {
        eprintln!("{n:6} {word}");
    }
    wanted(&counts, 20, key_values());
    wanted(&counts, 20, ["A_ACP1", "B_ACP1"].map(String::from));
    // Split tails have pairs of their own; few of these have several rounds.
    wanted(&counts, 5, ["C_TSP2", "C_TSP3", "C_TSP5"].map(String::from));
    for dtype in ["f16", "bf16", "f32", "f64"] {
        wanted(&counts, 100, [format!("gemm {dtype}")]);
        wanted(&counts, 40, (1..=3).map(|d| format!("conv {dtype} {d}d")));
    }
    let others = [
        "conv stride",
        "conv dilation",
        "conv asymmetric padding",
        "conv no padding",
        "conv 1x1",
        "pulled back in both",
        "load a Row by 4",
        "load b Row by 4",
        "load a K by 4",
        "load b K by 4",
        "store by 2",
        "store by 4",
    ];
    wanted(&counts, 20, PROBLEMS.map(String::from));
    wanted(&counts, 20, others.map(String::from));
    wanted(&counts, 20, EPILOGUES.map(String::from));
    wanted(&counts, 20, ["f32 to f16", "f32 to bf16", "f16 to f32", "bf16 to f32"].map(String::from));
}

#[test]
fn every_schedule_comes_up() {
    let counts = count(&Recipe::schedules(), "sm_90a");
    for (word, n) in
        counts.iter().filter(|(w, _)| ["ahead", "async", "waves", "fragments ahead"].iter().any(|p| w.starts_with(p)))
    {
        eprintln!("{n:6} {word}");
    }
    let stores = ["AtOnce", "AfterMath", "Spread"];
    let waves = ["1:1", "1:2", "1:4", "2:1", "2:2", "2:4", "4:1", "4:2", "4:4"].map(|r| format!("waves {r}"));
    wanted(&counts, 20, waves);
    for ahead in 1..=4 {
        for buffers in 2..=ahead + 1 {
            wanted(&counts, 5, stores.map(|s| format!("ahead {ahead} buffers {buffers} {s}")));
        }
    }
    wanted(&counts, 100, ["async true true", "async true false", "async false true", "async false false"].map(String::from));
    for fragments in 0..=2 {
        wanted(&counts, 50, [1, 2].map(|b| format!("fragments ahead {fragments} buffers {b}")));
    }
    wanted(&counts, 100, ["k below the prologue", "tail in k", "k below a tile"].map(String::from));
}

/// Every key of matrix units, every kind of problem they take, and what makes a schedule awkward.
#[test]
fn every_matrix_plan_comes_up() {
    let counts = count(&Recipe::units(), "sm_90a");
    for (word, n) in counts.iter().filter(|(w, _)| ["gemm", "conv", "roles", "copied"].iter().any(|p| w.starts_with(p))) {
        eprintln!("{n:6} {word}");
    }
    let sides = ["MIC1", "MIC2", "MIC3", "ACP0", "ACP2", "ACP3", "WOS0", "WOS1"].map(|k| [format!("A_{k}"), format!("B_{k}")]);
    wanted(&counts, 20, sides.into_iter().flatten());
    let micros = [4, 5, 6, 7, 8, 10, 12, 13, 16, 20, 24, 28, 32].map(|columns| format!("B_MIC{columns}"));
    wanted(&counts, 20, micros);
    let whole = "UNI2 UNR64 UNR128 UNR192 MAC128 MAC256 MAC384 MAC512 SKW9 SKW10 SKW11 LWV0 LWV1 LWV2 LWV4 FRA0 FRA1 PFG1 PFG2 PFG3 \
        BUF2 BUF3 BUF4 BUF5 PST0 PST1 PST2 PST3 PST7 PST132 PNG0 PNG1 SWP0 SWP1 CST0 CST1 CVW1 CVW2 ICE1 ICE2 ICE3 IWI0 IWI1 SKS0 SKS1 GAL1 GAL2 \
        GAL3 NAW2 NAW16 MGP0 MGP2 BIM0 BIM1 RGA0 RGA2 RGA4";
    wanted(&counts, 20, whole.split_whitespace().map(|k| format!("C_{k}")));
    let roles =
        |roles: bool| [0, 1].map(|behind| [false, true].map(|staged| format!("roles {roles} behind {behind} staged {staged}")));
    wanted(&counts, 30, [true, false].into_iter().flat_map(roles).flatten());
    wanted(&counts, 5, ["staged rows of entries begin odd".to_string()]);
    wanted(&counts, 20, ["windows", "lines of rows", "lines along k"].map(|kind| format!("fetched {kind}")));
    wanted(&counts, 20, ["lines of rows", "lines along k"].map(|kind| format!("shifted {kind}")));
    wanted(&counts, 20, ["rows", "columns"].map(|side| format!("im2col of {side} tall")));
    let all = counts["C_UNI2"];
    assert_eq!(all, PAIRS, "plans without a matrix unit among them");
    let others = [
        "gemm f16",
        "gemm bf16",
        "bias",
        "a ring goes around",
        "a work-group's next tile",
        "a team's next tile",
        "three teams or more",
        "staged rows begin odd",
        "staged rows are cut",
        "staged rows of f32",
        "partial sums by rows",
        "partial sums in bulk",
        "swapped in bulk",
        "odd columns",
        "columns in bulk",
        "fragments of 2 bytes along k",
        "fragments of 2 bytes along rows",
        "fragments of 4 bytes along k",
        "fragments of 4 bytes along rows",
        "registers move",
        "stored as f16",
        "stored as bf16",
        "stored as f32",
        "copied InPlace InPlace",
        "copied InPlace Copy",
        "copied Copy InPlace",
        "copied Copy Copy",
    ];
    wanted(&counts, 20, PROBLEMS.map(String::from));
    wanted(&counts, 20, others.map(String::from));
    wanted(&counts, 20, EPILOGUES.map(String::from));
    wanted(&counts, 20, ["activation swapped", "f16 to bf16", "f16 to f32", "bf16 to f32"].map(String::from));
}
