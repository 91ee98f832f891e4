//! The page that says what ran where. It is made from the generator's cells, CI's list of targets, the published records, and the
//! logs of verification.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};
use tilewright_gen::cell::{Cell, INSTRUCTIONS, KINDS};
use tilewright_gen::plan::Plan;
use tilewright_ir::Target;
use tilewright_problem::{Dtype, Problem};

/// Cards of an architecture.
struct Cards {
    names: &'static str,
    target: &'static str,
}

/// The cards that users ask for, with their architectures. Neighbours with the same abilities share a row.
const CARDS: [Cards; 14] = [
    Cards { names: "RTX 20", target: "sm_75" },
    Cards { names: "A100", target: "sm_80" },
    Cards { names: "RTX 30", target: "sm_86" },
    Cards { names: "Jetson Orin", target: "sm_87" },
    Cards { names: "RTX 40", target: "sm_89" },
    Cards { names: "B100, B200", target: "sm_100a" },
    Cards { names: "B300", target: "sm_103a" },
    Cards { names: "RTX 50", target: "sm_120a" },
    Cards { names: "H100, H200", target: "sm_90a" },
    Cards { names: "Vega", target: "gfx900" },
    Cards { names: "MI50", target: "gfx906" },
    Cards { names: "MI200", target: "gfx90a" },
    Cards { names: "MI300", target: "gfx942" },
    Cards { names: "MI350", target: "gfx950" },
];

/// A row of CI's list: types of an instruction, and the targets that CI compiles their kernels for.
struct Compiled {
    instruction: String,
    types: Vec<String>,
    targets: Vec<String>,
}

fn compiled(file: &Path) -> Result<Vec<Compiled>, String> {
    let failed = |e: csv::Error| format!("{}: {e}", file.display());
    let mut reader = csv::Reader::from_path(file).map_err(failed)?;
    let words = |row: &csv::StringRecord, n: usize| row.get(n).unwrap_or_default().split_whitespace().map(String::from).collect();
    let row = |row: csv::StringRecord| Compiled {
        instruction: row.get(0).unwrap_or_default().into(),
        types: words(&row, 1),
        targets: words(&row, 2),
    };
    reader.records().map(|record| record.map(row).map_err(failed)).collect()
}

/// The card's name in a device's text: `cuda:0 (NVIDIA H200)` and `NVIDIA H200` are `H200`.
fn card(device: &str) -> Option<&str> {
    let words = device.split(|c: char| c.is_whitespace() || "()".contains(c));
    let known = |word: &&str| CARDS.iter().any(|row| row.names.split(", ").any(|name| name == *word));
    words.into_iter().find(known)
}

/// What ran of a cell.
#[derive(Default)]
struct Ran {
    /// Cards where a result was compared with the reference.
    verified: BTreeSet<String>,
    /// Cards with a published time.
    measured: BTreeSet<String>,
}

type AllRan = BTreeMap<String, Ran>;

/// Compressed files of records in a folder and below.
fn packed(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            packed(&path, found);
        } else if path.extension().is_some_and(|end| end == "gz") {
            found.push(path);
        }
    }
}

/// A kernel that a record has the time of.
struct Measured {
    cell: Cell,
    card: String,
    /// Its result was compared with the reference and is right.
    verified: bool,
}

/// The first of our sides of a record: those of `tilewright-bench`, or the flat ones of comparisons with torch.
fn measured(record: &serde_json::Value) -> Option<Measured> {
    let ours = record["sides"].as_array().into_iter().flatten().find(|side| side["plan"].is_string() && side["time"].is_object());
    let side = ours.or_else(|| record["ours"].is_object().then_some(record))?;
    let device = record["environment"]["device"].as_str().or_else(|| record["device"].as_str())?;
    let problem = Problem::parse(record["problem"].as_str()?).ok()?;
    let plan: Plan = side["plan"].as_str()?.parse().ok()?;
    let card = card(device)?.to_string();
    let arch = CARDS.iter().find(|row| row.names.split(", ").any(|name| name == card))?.target;
    let cell = Cell::of(&problem, &plan, &Target::by_arch(arch)?)?;
    Some(Measured { cell, card, verified: side["correct"] == true || side["right"] == true })
}

/// Adds the kernels of all records. A plan that has become illegal is left out.
fn from_records(folder: &Path, ran: &mut AllRan) -> Result<(), String> {
    let mut files = Vec::new();
    packed(folder, &mut files);
    for file in files {
        let failed = |e: std::io::Error| format!("{}: {e}", file.display());
        let mut text = String::new();
        let packed = std::fs::File::open(&file).map_err(failed)?;
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).map_err(failed)?;
        let records = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        for Measured { cell, card, verified } in records.filter_map(|record| measured(&record)) {
            let entry = ran.entry(cell.to_string()).or_default();
            entry.measured.insert(card.clone());
            if verified {
                entry.verified.insert(card);
            }
        }
    }
    Ok(())
}

/// Random pairs of one mix on one card.
#[derive(Default)]
struct Pairs {
    passed: u64,
    wrong: u64,
    all: u64,
    last: String,
}

impl Pairs {
    /// What a log neither calls passed nor wrong was not compiled in time.
    fn late(&self) -> u64 {
        self.all.saturating_sub(self.passed + self.wrong)
    }
}

/// Rows of the logs of random pairs. A log that counts its cells adds them to what ran.
fn from_logs(folder: &Path, ran: &mut AllRan) -> String {
    let files: BTreeSet<_> = std::fs::read_dir(folder).into_iter().flatten().filter_map(|f| Some(f.ok()?.path())).collect();
    let mut all: BTreeMap<String, BTreeMap<String, Pairs>> = BTreeMap::new();
    for text in files.iter().filter_map(|file| std::fs::read_to_string(file).ok()) {
        let Ok(log) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
        let [device, mix, date] = ["device", "mix", "date"].map(|name| log[name].as_str().unwrap_or(""));
        let [pairs, passed, wrong] = ["pairs", "passed", "wrong"].map(|name| log[name].as_u64().unwrap_or(0));
        let card = card(device).unwrap_or(device);
        let of_mix = all.entry(card.into()).or_default().entry(mix.into()).or_default();
        let last = date.max(&of_mix.last).into();
        *of_mix = Pairs { passed: of_mix.passed + passed, wrong: of_mix.wrong + wrong, all: of_mix.all + pairs, last };
        for cell in log["covered"].as_object().into_iter().flat_map(serde_json::Map::keys) {
            ran.entry(cell.clone()).or_default().verified.insert(card.into());
        }
    }
    let mut out = String::new();
    for (card, mixes) in all {
        for (mix, pairs) in mixes {
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(
                out,
                "| {card} | {mix} | {} | {} | {} | {} | {} |",
                pairs.all,
                pairs.passed,
                pairs.wrong,
                pairs.late(),
                pairs.last
            );
        }
    }
    out
}

/// A card, an instruction that it ran, and the types or kinds that a row names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    card: String,
    instruction: usize,
    named: Vec<usize>,
}

/// Positions of the kinds in words: the three convolutions have one.
fn kinds(positions: &[usize]) -> String {
    let mut words: Vec<&str> = positions.iter().map(|n| KINDS[*n]).collect();
    if let Some(at) = words.windows(3).position(|three| *three == KINDS[1..4]) {
        words.splice(at..at + 3, ["convolutions"]);
    }
    words.join(", ")
}

/// Types in words. All four 8-bit floats have one. Neighbours of a complex type with other accuracies name these alone: `complex64tf32/tf32x3`.
fn named(types: &[&str]) -> String {
    fn mode(name: &str) -> Option<&str> {
        name.strip_prefix("complex64").filter(|mode| !mode.is_empty())
    }
    let floats = ["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"];
    if let Some(at) = types.windows(floats.len()).position(|four| *four == floats) {
        let mut shorter = types.to_vec();
        shorter.splice(at..at + floats.len(), ["8-bit floats"]);
        return named(&shorter);
    }
    let mut out = String::new();
    for (i, name) in types.iter().enumerate() {
        let follows = i.checked_sub(1).and_then(|before| types.get(before)).is_some_and(|before| mode(before).is_some());
        match mode(name).filter(|_| follows) {
            Some(mode) => out += &format!("/{mode}"),
            None => out += &format!("{}{name}", if i > 0 { ", " } else { "" }),
        }
    }
    out
}

fn position(cell: &Cell) -> Row {
    let instruction = INSTRUCTIONS.iter().position(|known| known.name == cell.instruction).unwrap_or_default();
    let named = KINDS.iter().position(|known| *known == cell.kind).into_iter().collect();
    Row { card: String::new(), instruction, named }
}

/// Rows of all cells. Types of the same kinds of problems share a row.
fn every_cell() -> String {
    let mut of_types: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    let all = Cell::all();
    let order = |dtype: &str| Dtype::ALL.iter().position(|known| known.name() == dtype).unwrap_or_default();
    for cell in &all {
        let Row { instruction, named, .. } = position(cell);
        of_types.entry((instruction, order(cell.dtype))).or_default().extend(named);
    }
    let mut rows: BTreeMap<(usize, Vec<usize>), Vec<&str>> = BTreeMap::new();
    for ((instruction, dtype), kinds) in of_types {
        rows.entry((instruction, kinds)).or_default().push(Dtype::ALL[dtype].name());
    }
    let row = |((instruction, of), types): ((usize, Vec<usize>), Vec<&str>)| {
        format!("| {} | {} | {} |\n", INSTRUCTIONS[instruction].name, kinds(&of), named(&types))
    };
    rows.into_iter().map(row).collect()
}

/// Types with a published time, and types whose results were verified alone.
#[derive(Default)]
struct Types {
    measured: Vec<&'static str>,
    verified: Vec<&'static str>,
}

/// Rows of the cells that ran on a device: card, instruction, and kinds of problems with the same types.
fn cells_that_ran(ran: &AllRan) -> String {
    let mut by_kind: BTreeMap<Row, Types> = BTreeMap::new();
    for cell in Cell::all() {
        let Some(found) = ran.get(&cell.to_string()) else { continue };
        for card in found.verified.union(&found.measured) {
            let types = by_kind.entry(Row { card: card.clone(), ..position(&cell) }).or_default();
            if found.measured.contains(card) { &mut types.measured } else { &mut types.verified }.push(cell.dtype);
        }
    }
    let or_none = |types: &[&str]| if types.is_empty() { "-".into() } else { named(types) };
    let mut rows: BTreeMap<(Row, String), Vec<usize>> = BTreeMap::new();
    for (row, types) in by_kind {
        let words = format!("{} | {}", or_none(&types.measured), or_none(&types.verified));
        rows.entry((Row { named: Vec::new(), ..row.clone() }, words)).or_default().extend(row.named);
    }
    let mut out = String::new();
    for ((row, types), of) in rows {
        let _ = writeln!(out, "| {} | {} | {} | {types} |", row.card, INSTRUCTIONS[row.instruction].name, kinds(&of));
    }
    out
}

/// The columns of an architecture beside its cards. They say how kernels copy operands to shared memory, what CI compiles for it,
/// and whether a kernel has run.
fn abilities(cards: &Cards, ran: &AllRan, compiled: &[Compiled]) -> Result<String, String> {
    let arch = cards.target;
    let target = Target::by_arch(arch).ok_or_else(|| format!("{arch} is no known target"))?;
    let copies = match (target.features.bulk_copy, target.features.async_copy) {
        (true, _) => "cp.async, TMA",
        (false, true) => "cp.async",
        (false, false) => "-",
    };
    let rows = || compiled.iter().filter(|row| row.targets.iter().any(|target| target == arch));
    // The two vendors' names of one instruction.
    let own = |name: &'static str| name.split(" and ").nth(usize::from(!arch.starts_with("sm_"))).unwrap_or(name);
    let has = INSTRUCTIONS.iter().filter(|known| rows().any(|row| row.instruction == known.name));
    let instructions: Vec<&str> = has.map(|known| own(known.name)).collect();
    let float8 = |row: &&Compiled| row.instruction != INSTRUCTIONS[0].name;
    let mut float8: Vec<&str> =
        rows().filter(float8).flat_map(|row| &row.types).map(String::as_str).filter(|name| name.starts_with("e")).collect();
    float8.sort_unstable();
    float8.dedup();
    let has_run = |card: &String| cards.names.split(", ").any(|name| name == card);
    let state = match rows().next() {
        _ if ran.values().any(|ran| ran.measured.iter().chain(&ran.verified).any(has_run)) => "kernels have run",
        Some(_) => "compiled",
        None => "not tested",
    };
    let float8 = if float8.is_empty() { "-".into() } else { float8.join(", ") };
    Ok(format!("{copies} | {} | {float8} | {state}", instructions.join(", ")))
}

/// Rows of cards.
fn cards(ran: &AllRan, compiled: &[Compiled]) -> Result<String, String> {
    let found: Vec<String> = CARDS.iter().map(|cards| abilities(cards, ran, compiled)).collect::<Result<_, _>>()?;
    let all: Vec<_> = CARDS.iter().zip(&found).collect();
    let row = |same: &[(&Cards, &String)]| {
        let joined = |word: fn(&Cards) -> &str| same.iter().map(|(cards, _)| word(cards)).collect::<Vec<_>>().join(", ");
        let able = same.first().map_or("", |(_, able)| able.as_str());
        format!("| {} | {} | {able} |\n", joined(|cards| cards.names), joined(|cards| cards.target))
    };
    Ok(all.chunk_by(|(_, one), (_, next)| one == next).map(row).collect())
}

/// The whole page, from the folder of benchmarks.
///
/// # Errors
/// A file that cannot be read.
pub fn page(benchmarks: &Path) -> Result<String, String> {
    let compiled = compiled(&benchmarks.join("support.csv"))?;
    let mut ran = AllRan::new();
    from_records(&benchmarks.join("records"), &mut ran)?;
    let logs = from_logs(&benchmarks.join("verified"), &mut ran);
    Ok(format!(
        "# Support: what ran where\n\nGenerated by `cargo xtask docs` from `benchmarks/`.\n\n\
         - **No AMD GPU has run a kernel of tilewright.**\n\
         - OpenCL kernels run in CI on CPUs through PoCL.\n\
         - macOS, Windows, WSL and ARM are not tested; Linux on x86-64 is.\n\n\
         ## Emulated and compiled\n\nIn CI the emulator verifies a kernel of each row and type. NVRTC or clang compiles one, for a target below.\n\n| instruction | problem | type |\n|---|---|---|\n{}\n\
         ## Verified and measured\n\nKernels of published records, which have a time, and of random pairs whose logs name types. 8-bit floats are e4m3, e5m2, e4m3fnuz and e5m2fnuz.\n\n\
         | card | instruction | problem | measured | verified, not measured |\n|---|---|---|---|---|\n{}\n\
         ## Cards\n\n*Compiled* by CI: not tested.\n\n\
         | card | target | asynchronous copies | instructions | 8-bit matrix floats | state |\n|---|---|---|---|---|---|\n{}\n\
         ## Random pairs on devices\n\n`tilewright-bench verify-random --mix` draws plans and problems: *all* of every kind, *conv* convolutions, *formats* products and convolutions \
         of every number format,\n*gated* gated products, *losses* products of linear cross-entropies, *reduce* reductions, *tails* split tails, \
         *units* products by wgmma.\nA kernel that compiles for more than 60 s counts as not compiled.\n\n| card | mix | pairs | passed | wrong | not compiled | last |\n|---|---|---:|---:|---:|---:|---|\n{logs}\n\
         Each wrong pair was fixed and is now a test: `regressions` of `crates/gen/tests` and `known_errors` of `crates/tune/tests`.\n",
        every_cell(),
        cells_that_ran(&ran),
        cards(&ran, &compiled)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_in_the_names_of_devices() {
        assert_eq!(card("cuda:0 (NVIDIA H200)"), Some("H200"));
        assert_eq!(card("cuda:1 (NVIDIA H100 80GB HBM3)"), Some("H100"));
        assert_eq!(card("NVIDIA H200"), Some("H200"));
        assert_eq!(card("emu"), None);
    }

    #[test]
    fn cells_of_logs_and_records_are_those_of_the_matrix() {
        let mut ran = AllRan::new();
        let benchmarks = crate::root().join("benchmarks");
        from_records(&benchmarks.join("records"), &mut ran).expect("records");
        from_logs(&benchmarks.join("verified"), &mut ran);
        let all: BTreeSet<String> = Cell::all().iter().map(Cell::to_string).collect();
        assert!(ran.len() > 20, "{}", ran.len());
        for cell in ran.keys() {
            assert!(all.contains(cell), "{cell} ran, and the matrix has no such cell");
        }
    }

    #[test]
    fn every_known_target_has_a_card() {
        for arch in Target::known() {
            assert!(CARDS.iter().any(|row| row.target == *arch), "no card of {arch} on the page");
        }
    }
}
