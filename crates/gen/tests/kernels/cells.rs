//! The table of cells: every instruction with every copy method, pipeline and exit. A cell verifies on the emulator, every check on, or
//! gives the reason why no plan has it. The table is `tests/snapshots/cells.txt`; `UPDATE_CELLS=1` renews it.

use crate::missing;
use crate::support;

use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, test_factors};
use tilewright_device::inspect::inspect;
use tilewright_device::{DeviceError, Options};
use tilewright_gen::kernel::{MAIN, generate};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::mma::{Mma, TABLE};
use tilewright_ir::{MathUnit, MatrixType, MmaShape, Scalar, Target};
use tilewright_problem::{Gemm, Math, Order, Problem};

/// The table.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/cells.txt");

/// How the reason begins of a cell that is generated and does not verify.
const WRONG: &str = "WRONG:";

/// Number of instructions from which a line names a group.
const GROUP: usize = 4;

/// No reason: the keys mean another pipeline or exit here.
const OTHERWISE: &str = "the plan's keys mean something else here";

/// Copy methods: name, value of `ACP`.
const TRANSPORTS: [(&str, u32); 4] =
    [("through registers", 0), ("cp.async", 1), ("TMA", 2), ("TMA to staging, shifted by producer warps", 3)];
/// Pipelines: name, keys.
const PIPELINES: [(&str, &str); 5] = [
    ("barriers of the work-group", ""),
    ("transaction barriers", ""),
    ("persistent", "PST2"),
    ("ping-pong", "PST2_PNG1"),
    ("clusters, multicast", ""),
];
/// Exits: name, keys.
const EXITS: [(&str, &str); 5] =
    [("direct", "CST0"), ("staged", "CST1"), ("workspace", "ICE2_SKS1"), ("atomics", "ICE2_SKS0"), ("cluster sum", "ICE2_SKS2")];

/// A cell: instruction, copy method, pipeline, exit by number.
#[derive(Clone, Copy)]
struct Cell {
    row: &'static Mma,
    transport: usize,
    pipeline: usize,
    exit: usize,
}

/// What a problem's operands are like.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    /// Contiguous along k.
    AlongK,
    /// Contiguous along m and n.
    Along,
    /// Along k, and no row of A but the first is aligned; nor of B, where it is not copied for a cluster.
    Misaligned,
}

fn device(row: &Mma) -> &'static str {
    let has = |arch: &&str| Target::by_arch(arch).is_some_and(|t| t.features.mfma > 0 && row.takes(&t.features));
    match row.unit {
        MathUnit::Mfma => ["gfx942", "gfx90a", "gfx950"].into_iter().find(has).expect("an architecture that has it"),
        // Elsewhere four bytes are multiplied at a time.
        MathUnit::Fma if row.input.storage().is_int8() => "gfx900",
        _ => "sm_90a",
    }
}

fn problem(cell: Cell, rows: Rows) -> Problem {
    let scalar = cell.row.input.storage();
    // Atomic additions go into wide results.
    let out = if scalar == Scalar::F64 { scalar } else { Scalar::F32 };
    // Lines start at multiples of 16 bytes, or all eight classes of them otherwise.
    let ((m, n, k), apart) = if scalar.bytes() == 1 { ((80, 80, 144), 2) } else { ((72, 80, 136), 1) };
    let mut gemm = Gemm::new(scalar, m, n, k)
        .b_dtype(cell.row.input.factors()[1].storage())
        .out_dtype(out)
        .order(Order::Row)
        .trans(rows == Rows::Along, rows != Rows::Along);
    if rows == Rows::Misaligned {
        gemm = gemm.lda(k + apart).ldb(if cell.pipeline == 4 { k } else { k + apart });
    }
    if cell.row.input == MatrixType::TF32 {
        gemm = gemm.math(Math::Tf32);
    }
    gemm.build().expect("a problem").into()
}

/// Plans that would have the cell, in the order in which they are tried.
fn plans(cell: Cell) -> Vec<String> {
    let bytes = cell.row.input.bytes();
    let acp = TRANSPORTS[cell.transport].1;
    let (uni, a, b) = match cell.row.unit {
        MathUnit::Fma | MathUnit::Dot => (0, "MIC4", "MIC8"),
        MathUnit::Mma => (1, "MIC2", "MIC4"),
        MathUnit::Warpgroup => (2, "MIC1", "MIC4"),
        MathUnit::Mfma if cell.row.shape.m == 32 => (3, "MIC2", "MIC2"),
        MathUnit::Mfma => (3, "MIC1", "MIC1"),
    };
    // Teams that alternate have 128 threads.
    let mac = if cell.pipeline == 3 { 256 } else { 128 };
    let ring = cell.pipeline == 1 || cell.pipeline >= 3;
    // One operand in bulk makes a circular buffer with transaction barriers of the other's copies too, where the unit does not anyway.
    // And what a cluster shares comes in bulk.
    let other = if acp == 3 && cell.pipeline == 4
        || ring && acp < 2 && (cell.row.unit != MathUnit::Warpgroup || acp == 1 || cell.pipeline == 4)
    {
        2
    } else {
        acp
    };
    let cluster = if cell.pipeline == 4 { "_CLU2" } else { "" };
    // Where deeper instructions would divide it too, they are taken.
    let shallow = cell.row.input.storage().is_float8() && cell.row.unit == MathUnit::Mfma && cell.row.halves == 2;
    let (vector, k_tile) = (16 / bytes, if shallow { 32 } else { 128 / bytes });
    let mut plans = Vec::new();
    // Of instructions that differ in depth alone, a key chooses.
    let of = |row: &Mma| (row.shape.m, row.shape.n, row.generations, row.halves);
    let deep = Mma::all(cell.row.unit, cell.row.input).any(|row| of(row) == of(cell.row) && row.step < cell.row.step);
    let kin = u32::from(deep);
    for load_waves in [0, 4] {
        for wide in [format!("_GLW{vector}_PLU1"), format!("_GLW{vector}"), String::new()] {
            let common = format!("UNI{uni}_MAC{mac}_UNR{k_tile}_PFG2_BUF3_EDG1_LWV{load_waves}_KIN{kin}");
            let keys: Vec<&str> =
                [&common, PIPELINES[cell.pipeline].1, EXITS[cell.exit].1].into_iter().filter(|keys| !keys.is_empty()).collect();
            plans.push(format!("A_{a}_PAD1_ACP{acp}{wide}{cluster}__B_{b}_PAD1_ACP{other}{wide}__C_{}", keys.join("_")));
        }
    }
    plans
}

/// What hardware says before any plan does.
fn hardware(cell: Cell) -> Option<&'static str> {
    let (bulk, amd) = (TRANSPORTS[cell.transport].1 >= 2, device(cell.row).starts_with("gfx"));
    match (amd, cell.pipeline) {
        (true, _) if bulk => Some("AMD's hardware has no bulk tensor copies"),
        (true, _) if cell.transport == 1 => {
            Some("AMD's asynchronous loads store the elements of a wave consecutively in shared memory; lanes choose no address")
        }
        (true, 1 | 3) => Some("AMD's hardware has no transaction barriers"),
        (true, 4) => Some("AMD's hardware has no clusters of work-groups"),
        (true, _) if cell.exit == 4 => Some("AMD's hardware has no clusters of work-groups"),
        (_, 0) if bulk => Some("bulk copies complete on transaction barriers only"),
        (_, 3) if cell.exit == 4 => {
            Some("a cluster has one barrier for all of its threads; ping-pong teams have different tiles")
        }
        _ => None,
    }
}

/// `Ok` if the plan has the cell and its results verify.
fn tried(cell: Cell, rows: Rows, plan: &str, runs: bool) -> Result<(), String> {
    let problem = problem(cell, rows);
    let device = support::emulator(&format!("emu:{}", device(cell.row)), true, 1);
    let space = Space::new(&problem, &device.info().target).map_err(|e| e.to_string())?.with_atomics(true);
    let plan = Plan::from(Constraint::parse(plan).unwrap_or_else(|e| panic!("{plan}: {e}")).apply(&Plan::default()));
    let r = space.resolve(&plan).map_err(|e| e.to_string())?;
    let (t, s) = (&r.spec.tiling, &r.spec.schedule);
    let as_asked = [
        cell.pipeline != 1 || s.in_pipeline(),
        cell.pipeline != 0 || !s.in_pipeline(),
        cell.pipeline != 3 || r.spec.teams() > 1,
        cell.pipeline != 4 || t.cluster.sharers() > 1,
        cell.exit != 1 || r.spec.epilogue.exit.staged(),
        cell.exit != 4 || t.cluster.splits > 1,
        t.unit == cell.row.unit,
        cell.row.lanes() == 1 || t.instruction.is_some_and(|row| row.shape == cell.row.shape),
    ];
    if as_asked.contains(&false) {
        return Err(OTHERWISE.into());
    }
    let program = generate(&r.spec, space.env().workspace_bytes).map_err(|e| e.to_string())?;
    if !runs {
        return Ok(());
    }
    let compiled = compile(device.as_ref(), &program).unwrap_or_else(|e| panic!("{plan}: {e}"));
    let case = Case::new(&device, &problem, 5, test_factors(5, false), Samples::All).unwrap();
    let verdict = case.verify(&program, &compiled, space.contraction(&plan), Depth::Quick, false);
    match verdict {
        Ok(verdict) if verdict.passed => Ok(()),
        Ok(verdict) => Err(format!("{WRONG} {problem} {plan}: {:?}", verdict.reason)),
        Err(e) => Err(format!("{WRONG} {problem} {plan}: {e}")),
    }
}

/// New with one loop: what assemblers make of some of them.
#[test]
fn assemblers_take_them() {
    let (f16, f32) = (Scalar::F16, Scalar::F32);
    let cells = [
        ("A_MIC4_ACP2__B_MIC8_ACP2__C_UNI1_MAC128_UNR64_PFG3_BUF4_LWV4_EDG1", f16, "sm_90a", "LDSM UTMALDG HMMA"),
        (
            "A_MIC2_ACP2_CLU2__B_MIC8_ACP2__C_UNI1_MAC256_UNR64_PFG3_BUF4_LWV4_PST132_PNG1_EDG1",
            f16,
            "sm_90a",
            "LDSM UTMALDG HMMA",
        ),
        ("A_MIC8_ACP2_VEW4__B_MIC8_ACP2_VEW4__C_UNI0_MAC256_UNR32_PFG3_BUF4_LWV4_PUN1_EDG1", f32, "sm_90a", "UTMALDG FFMA"),
        ("A_MIC1_ACP1_GLW8_PLU1__B_MIC16_ACP1_GLW8_PLU1__C_UNI2_MAC128_UNR64_PFG2_BUF3", f16, "sm_90a", "LDGSTS HGMMA"),
        ("A_MIC1_ACP1_GLW8_PLU1__B_MIC16_ACP2__C_UNI2_MAC256_UNR64_PFG2_BUF3_LWV4", f16, "sm_90a", "LDGSTS UTMALDG HGMMA"),
        ("A_MIC4_GLW4__B_MIC4_GLW4__C_UNI3_MAC256_UNR16_PFG1_BUF2_EDG1", f32, "gfx942", "v_mfma_f32_32x32x2"),
        ("A_MIC4_GLW8_PLU1__B_MIC4_GLW8_PLU1__C_UNI3_MAC256_UNR32_PFG1_BUF2_EDG1", f16, "gfx950", "v_mfma_f32_32x32x16_f16"),
        ("A_MIC1_GLW8_PLU1__B_MIC1_GLW8_PLU1__C_UNI3_MAC256_UNR64_PFG1_BUF2_EDG1", f16, "gfx950", "v_mfma_f32_16x16x32_f16"),
    ];
    for (plan, scalar, arch, opcodes) in cells {
        let target = Target::by_arch(arch).expect("known");
        let problem: Problem = Gemm::new(scalar, 1024, 1024, 1024)
            .order(Order::Row)
            .trans(scalar == f32, scalar == f16)
            .build()
            .expect("a problem")
            .into();
        let space = Space::new(&problem, &target).expect("it lowers");
        let plan = Plan::from(Constraint::parse(plan).unwrap_or_else(|e| panic!("{plan}: {e}")).apply(&Plan::default()));
        let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
        let program = generate(&r.spec, space.env().workspace_bytes).expect("a program");
        let kernel = program.kernels.iter().find(|k| k.name == MAIN).expect("a main kernel");
        match inspect(kernel, arch, None, &Options::default()) {
            Err(e @ DeviceError::Missing { .. }) => return missing::missing(&e.to_string()),
            seen => {
                let seen = seen.unwrap_or_else(|e| panic!("{plan}: {e}"));
                let lacks: Vec<&str> = opcodes.split(' ').filter(|opcode| !seen.assembly.contains(opcode)).collect();
                assert!(lacks.is_empty(), "{plan}: no {lacks:?}");
            }
        }
    }
}

/// Verified, or the reason; without a run the kernel is only generated.
fn decide(cell: Cell, runs: bool) -> Result<(), String> {
    let rows = if TRANSPORTS[cell.transport].1 == 3 { vec![Rows::Misaligned] } else { vec![Rows::AlongK, Rows::Along] };
    let (impossible, mut reason) = (hardware(cell), None);
    for plan in plans(cell) {
        for rows in &rows {
            match tried(cell, *rows, &plan, runs) {
                Ok(()) if impossible.is_some() => {
                    return Err(format!("{WRONG} {plan} is legal: {}", impossible.unwrap_or_default()));
                }
                Ok(()) => return Ok(()),
                Err(why) if why.starts_with(WRONG) => return Err(why),
                // What stands in the way of the last load waves and the first operands tells the most.
                Err(why) if *rows != Rows::Along && (why != OTHERWISE || reason.is_none()) => reason = Some(why),
                Err(_) => {}
            }
        }
    }
    Err(impossible.map(String::from).or(reason).unwrap_or_default())
}

fn name(row: &Mma) -> String {
    let MmaShape { m, n, k } = row.shape;
    match row.unit {
        MathUnit::Fma => format!("fma {}", row.input.name()),
        MathUnit::Dot => format!("dp4a {}", row.input.name()),
        MathUnit::Mma if row.input == MatrixType::F64 => format!("mma.sync f64 {m}x{n}x{k}"),
        MathUnit::Mma => format!("mma.sync {}", row.input.name()),
        MathUnit::Warpgroup => format!("wgmma {}", row.input.name()),
        MathUnit::Mfma => format!("MFMA {} {m}x{n}x{k}", row.input.name()),
    }
}

/// The table, and how many cells verified.
fn table() -> (String, usize) {
    let cells: Vec<Cell> = TABLE
        .iter()
        .flat_map(|row| (0..TRANSPORTS.len()).map(move |t| (row, t)))
        .flat_map(|(row, t)| (0..PIPELINES.len()).map(move |p| (row, t, p)))
        .flat_map(|(row, transport, pipeline)| (0..EXITS.len()).map(move |exit| Cell { row, transport, pipeline, exit }))
        .collect();
    let decided: Vec<Result<(), String>> =
        cells.par_iter().enumerate().map(|(n, cell)| decide(*cell, support::runs_one_of(20, n))).collect();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for reason in decided.iter().filter_map(|d| d.as_ref().err()) {
        let next = reasons.len() + 1;
        reasons.entry(reason.clone()).or_insert(next);
    }
    let mut text = String::from(HEAD);
    let _ = writeln!(text, "| instruction | copy method | pipeline | {} |", EXITS.map(|(name, _)| name).join(" | "));
    let _ = writeln!(text, "|---|---|---|{}", "---|".repeat(EXITS.len()));
    // Instructions whose cells are the same share a line.
    let mut lines: Vec<(Vec<String>, String, usize)> = Vec::new();
    for (i, line) in decided.chunks(EXITS.len()).enumerate() {
        let cell = cells[i * EXITS.len()];
        let marks = line.iter().map(|d| d.as_ref().map_or_else(|why| format!("({})", reasons[why]), |()| "yes".to_string()));
        let marks = marks.collect::<Vec<_>>().join(" | ");
        let rest = format!("{} | {} | {marks}", TRANSPORTS[cell.transport].0, PIPELINES[cell.pipeline].0);
        let place = cell.transport * PIPELINES.len() + cell.pipeline;
        let family = name(cell.row).split(' ').next().unwrap_or_default().to_string();
        match lines.iter_mut().find(|(names, other, _)| *other == rest && names[0].starts_with(&family)) {
            Some((names, ..)) => {
                names.push(name(cell.row).split_once(' ').map_or_else(String::new, |(_, rest)| rest.to_string()))
            }
            None => lines.push((vec![name(cell.row)], rest, place)),
        }
    }
    // A long list of instructions is a group, listed once below the table.
    let mut groups: Vec<String> = Vec::new();
    for (names, rest, _) in &lines {
        let list = names.join(", ");
        if names.len() < GROUP {
            let _ = writeln!(text, "| {list} | {rest} |");
            continue;
        }
        let number = groups.iter().position(|group| *group == list).unwrap_or_else(|| {
            groups.push(list.clone());
            groups.len() - 1
        });
        let family = names[0].split(' ').next().unwrap_or_default();
        let _ = writeln!(text, "| {family} [{}] | {rest} |", number + 1);
    }
    text.push('\n');
    for (i, group) in groups.iter().enumerate() {
        let _ = writeln!(text, "[{}] {group}\n", i + 1);
    }
    let mut numbered: Vec<(&String, &usize)> = reasons.iter().collect();
    numbered.sort_by_key(|(_, number)| **number);
    for (reason, number) in numbered {
        let _ = writeln!(text, "({number}) {reason}\n");
    }
    (text, decided.iter().filter(|d| d.is_ok()).count())
}

const HEAD: &str = "# Cells: instruction, copy method, pipeline, exit

Generated by `crates/gen/tests/kernels/cells.rs`. The emulator verifies each \"yes\" with every check on. A number is a reason, listed below.
A group in brackets is a set of instructions, listed below. Persistent work-groups may have either kind of barriers.
MFMA runs on gfx942, or on gfx90a or gfx950 where gfx942 lacks the instruction. dp4a runs on gfx900, every other instruction on sm_90a.

";

#[test]
fn every_cell_verifies_or_says_why() {
    let (text, verified) = table();
    eprintln!("{verified} cells verify");
    assert!(!text.contains(WRONG), "{text}");
    if std::env::var_os("UPDATE_CELLS").is_some() {
        std::fs::write(FILE, &text).expect("the table is written");
    }
    let pinned = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(
        text == pinned,
        "tests/snapshots/cells.txt differs from the cells; if that is meant, renew it with UPDATE_CELLS=1:\n{text}"
    );
}
