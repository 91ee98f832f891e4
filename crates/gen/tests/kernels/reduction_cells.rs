//! The table of fused reductions: every unit with every exit, split of k and way to finish, by axes and operators. Where it says so, a plan
//! verifies on the emulator, every check on; else it gives the reason why none has it. The table is `tests/snapshots/reduction_cells.txt`;
//! `UPDATE_CELLS=1` renews it.

use crate::support;

use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_gen::kernel::generate;
use tilewright_gen::plan::{Constraint, Finish, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Gemm, Order, Problem, Reduction};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/reduction_cells.txt");
/// How a reason begins that is none.
const WRONG: &str = "WRONG:";

/// Name, device, type, plan.
const UNITS: [(&str, &str, Scalar, &str); 4] = [
    ("fma", "emu:sm_90a", Scalar::F32, "A_MIC4__B_MIC4__C_MAC64_UNR8"),
    ("mma.sync", "emu:sm_90a", Scalar::F16, "A_MIC2_GLW8_PLU1__B_MIC4_GLW8_PLU1__C_UNI1_MAC128_UNR32"),
    ("wgmma", "emu:sm_90a", Scalar::BF16, "A_MIC1_ACP2__B_MIC4_ACP2__C_UNI2_MAC128_UNR64_PFG2_BUF3_LWV4_PST2"),
    ("MFMA", "emu:gfx942", Scalar::F16, "A_MIC2_GLW8_PLU1__B_MIC2_GLW8_PLU1__C_UNI3_MAC128_UNR32"),
];
/// Exits and splits of k: name, keys, whether C is stored.
const EXITS: [(&str, &str, bool); 3] = [("direct", "CST0", true), ("staged", "CST1", true), ("not stored", "CST0", false)];
const SPLITS: [(&str, &str); 4] =
    [("none", "ICE1"), ("workspace", "ICE2_SKS1"), ("cluster", "ICE2_SKS2"), ("atomic additions", "ICE2_SKS0")];
/// Axes and operators; batch entries are 2.
const AXES: [(&str, &str); 5] =
    [("rows (n)", "n"), ("columns (m)", "m"), ("both", "mn"), ("with the batch (bm)", "bm"), ("blocks (m9n16)", "m9n16")];
const OPERATORS: [(&str, &[&str]); 4] = [
    ("sum", &["sum"]),
    ("sumsq, max, min, absmax", &["sumsq", "max", "min", "absmax"]),
    ("mean", &["mean"]),
    ("argmax, argmin, logsumexp, var", &["argmax", "argmin", "logsumexp", "var"]),
];

#[derive(Clone, Copy)]
struct Cell {
    unit: usize,
    exit: usize,
    split: usize,
    finish: u32,
    axes: usize,
    operators: usize,
}

/// `fused` or `two passes` in a word, or the reason why not.
fn tried(cell: Cell, runs: bool) -> Result<&'static str, String> {
    let (_, device, scalar, head) = UNITS[cell.unit];
    let gemm = Gemm::new(scalar, 72, 48, 72).batch(2).out_dtype(Scalar::F32).order(Order::Row).trans(false, true);
    let list = OPERATORS[cell.operators].1.iter().map(|op| format!("{op}:{}", AXES[cell.axes].1));
    let gemm = list.fold(gemm, |gemm, text| gemm.reduce(text.parse::<Reduction>().expect("a reduction")));
    let gemm = if EXITS[cell.exit].2 { gemm } else { gemm.drop_c() };
    let problem: Problem = gemm.build().map_err(|e| e.to_string())?.into();
    let device = support::emulator(device, true, 3);
    let space = Space::new(&problem, &device.info().target).map_err(|e| e.to_string())?.with_atomics(true);
    let text = format!("{head}_EDG1_{}_{}_RDF{}", EXITS[cell.exit].1, SPLITS[cell.split].1, cell.finish);
    let plan = Plan::from(Constraint::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}")).apply(&Plan::default()));
    let r = space.resolve(&plan).map_err(|e| e.to_string())?;
    let program = generate(&r.spec, space.env().workspace_bytes).map_err(|e| e.to_string())?;
    if runs {
        let compiled = compile(device.as_ref(), &program).unwrap_or_else(|e| panic!("{text}: {e}"));
        let case = Case::new(&device, &problem, 5, test_factors(5, false), Samples::All).expect("memory");
        match case.verify(&program, &compiled, space.contraction(&plan), Depth::Quick, false) {
            Ok(verdict) if verdict.passed => {}
            Ok(verdict) => return Err(format!("{WRONG} {problem} {text}: {:?}", verdict.reason)),
            Err(e) => return Err(format!("{WRONG} {problem} {text}: {e}")),
        }
    }
    // No kernel reads the result again: behind the main one, or the one that sums splits, parts are reduced at most.
    let c = &r.spec.c;
    let own = c.reductions().all(|x| r.spec.partials(c, x).finish.is_none_or(|f| f != Finish::Kernel));
    Ok(if own { "fused" } else { "fused, parts" })
}

/// Reasons for which no way to finish fuses a cell: the device has no clusters, and atomic additions never see the whole sum.
const NONE: [&str; 2] = ["CLU, SKS2: the device has no clusters", "ICE2_SKS0: "];

/// Ways to finish that fuse a cell, whatever its exit, by unit, split of k, axes and operators; each has one, but for what is no matter of
/// finishing.
fn fused(cells: &[Cell], decided: &[Result<&'static str, String>], reasons: &BTreeMap<&String, usize>) -> String {
    let mut found: BTreeMap<[usize; 4], BTreeMap<u32, Result<(), &String>>> = BTreeMap::new();
    for (cell, decided) in cells.iter().zip(decided) {
        let ways = found.entry([cell.split, cell.axes, cell.operators, cell.unit]).or_default();
        let way = ways.entry(cell.finish).or_insert(Ok(()));
        *way = way.and(decided.as_ref().map(|_| ()));
    }
    let words = |key: &[usize; 4]| {
        let ways = &found[key];
        let fused: Vec<String> = ways.iter().filter(|(_, way)| way.is_ok()).map(|(finish, _)| finish.to_string()).collect();
        if !fused.is_empty() {
            return fused.join(", ");
        }
        let why = *ways[&0].as_ref().expect_err("no way is");
        assert!(NONE.iter().any(|none| why.starts_with(none)), "nothing fuses {key:?}: {why}");
        format!("({})", reasons[why])
    };
    let heads: Vec<String> = OPERATORS.iter().map(|(name, _)| name.to_string()).collect();
    let mut text =
        format!("| unit | split of k | axes | {} |\n|---|---|---|{}\n", heads.join(" | "), "---|".repeat(OPERATORS.len()));
    let mut lines: Vec<([Vec<&str>; 2], usize, String)> = Vec::new();
    for (split, axes) in (0..SPLITS.len()).flat_map(|split| (0..AXES.len()).map(move |axes| (split, axes))) {
        for (unit, (name, ..)) in UNITS.iter().enumerate() {
            let marks: Vec<String> = (0..OPERATORS.len()).map(|operators| words(&[split, axes, operators, unit])).collect();
            let marks = marks.join(" | ");
            match lines.iter_mut().find(|line| (line.1, &line.2, &line.0[1]) == (split, &marks, &vec![AXES[axes].0])) {
                Some(line) => line.0[0].push(name),
                None => lines.push(([vec![name], vec![AXES[axes].0]], split, marks)),
            }
        }
    }
    let mut joined: Vec<([Vec<&str>; 2], usize, String)> = Vec::new();
    for line in lines {
        match joined.iter_mut().find(|other| (other.1, &other.2, &other.0[0]) == (line.1, &line.2, &line.0[0])) {
            Some(other) => other.0[1].extend(&line.0[1]),
            None => joined.push(line),
        }
    }
    for ([unit, axes], split, marks) in joined {
        let _ = writeln!(text, "| {} | {} | {} | {marks} |", unit.join(", "), SPLITS[split].0, axes.join(", "));
    }
    text
}

#[test]
fn every_reduction_is_fused_or_says_why_not() {
    let mut cells = Vec::new();
    for unit in 0..UNITS.len() {
        for (exit, split) in (0..EXITS.len()).flat_map(|exit| (0..SPLITS.len()).map(move |split| (exit, split))) {
            for (finish, axes) in (0..6).flat_map(|finish| (0..AXES.len()).map(move |axes| (finish, axes))) {
                cells.extend((0..OPERATORS.len()).map(|operators| Cell { unit, exit, split, finish, axes, operators }));
            }
        }
    }
    let decided: Vec<Result<&str, String>> =
        cells.par_iter().enumerate().map(|(n, cell)| tried(*cell, support::runs_one_of(20, n))).collect();
    let wrong: Vec<&String> = decided.iter().filter_map(|d| d.as_ref().err()).filter(|why| why.starts_with(WRONG)).collect();
    assert!(wrong.is_empty(), "{} of {}: {:#?}", wrong.len(), cells.len(), &wrong[..wrong.len().min(4)]);
    let mut reasons: BTreeMap<&String, usize> = BTreeMap::new();
    for reason in decided.iter().filter_map(|d| d.as_ref().err()) {
        let next = reasons.len() + 1;
        reasons.entry(reason).or_insert(next);
    }
    let mut text = String::new();
    let heads: Vec<String> = OPERATORS.iter().map(|(name, _)| name.to_string()).collect();
    let _ = writeln!(text, "| unit | exit | split of k | `RDF` | axes | {} |", heads.join(" | "));
    let _ = writeln!(text, "|---|---|---|---|---|{}", "---|".repeat(OPERATORS.len()));
    // Units, exits and axes whose cells are the same share a line.
    let mut lines: Vec<([Vec<&str>; 3], usize, u32, String)> = Vec::new();
    for (cell, line) in cells.iter().step_by(OPERATORS.len()).zip(decided.chunks(OPERATORS.len())) {
        let marks = line.iter().map(|d| d.as_ref().map_or_else(|why| format!("({})", reasons[why]), |what| what.to_string()));
        let marks = marks.collect::<Vec<_>>().join(" | ");
        let names = [UNITS[cell.unit].0, EXITS[cell.exit].0, AXES[cell.axes].0];
        let same = |line: &&mut ([Vec<&str>; 3], usize, u32, String), but: usize| {
            (line.1, line.2, &line.3) == (cell.split, cell.finish, &marks) && (0..3).all(|i| i == but || line.0[i] == [names[i]])
        };
        match lines.iter_mut().find(|line| same(line, 2)) {
            Some(line) => line.0[2].push(names[2]),
            None => lines.push((names.map(|name| vec![name]), cell.split, cell.finish, marks)),
        }
    }
    // Then exits, then units.
    for side in [1, 0] {
        let mut joined: Vec<([Vec<&str>; 3], usize, u32, String)> = Vec::new();
        for line in lines {
            let same = |other: &&mut ([Vec<&str>; 3], usize, u32, String)| {
                (other.1, other.2, &other.3) == (line.1, line.2, &line.3) && (0..3).all(|i| i == side || other.0[i] == line.0[i])
            };
            match joined.iter_mut().find(same) {
                Some(other) => other.0[side].extend(&line.0[side]),
                None => joined.push(line),
            }
        }
        lines = joined;
    }
    for ([unit, exit, axes], split, finish, marks) in &lines {
        let [unit, exit, axes] = [unit, exit, axes].map(|names| names.join(", "));
        let _ = writeln!(text, "| {unit} | {exit} | {} | {finish} | {axes} | {marks} |", SPLITS[*split].0);
    }
    let _ = write!(
        text,
        "\nValues of `RDF` that fuse a cell with every exit. A cell that no value fuses has the number of its reason.\n\n"
    );
    text.push_str(&fused(&cells, &decided, &reasons));
    let mut numbered: Vec<(&&String, &usize)> = reasons.iter().collect();
    numbered.sort_by_key(|(_, number)| **number);
    for (reason, number) in numbered {
        let _ = write!(text, "\n({number}) {reason}\n");
    }
    if std::env::var_os("UPDATE_CELLS").is_some() {
        return std::fs::write(FILE, text).expect("the table is written");
    }
    let pinned = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(text == pinned, "{FILE} differs from the cells; renew it with UPDATE_CELLS=1:\n{text}");
}
