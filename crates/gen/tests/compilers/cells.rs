//! The support page's list of targets (`benchmarks/support.csv`): it has every target of an instruction and a type. A kernel of each cell of
//! the page compiles. Needs NVRTC and clang, no GPU.

use crate::{missing, support};

use rayon::prelude::*;
use std::collections::BTreeSet;
use support::cells::drawn;
use tilewright_check::random::{Recipe, whole_run};
use tilewright_device::inspect::inspect;
use tilewright_device::{DeviceError, Options, cuda};
use tilewright_gen::cell::{Cell, KINDS};
use tilewright_gen::kernel::MAIN;
use tilewright_ir::{Dialect, Features, Target};

/// An architecture that compiles OpenCL C: the list calls it OpenCL.
const OPENCL: &str = "gfx900";

/// An instruction, a type and a target of the list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    instruction: String,
    dtype: String,
    target: String,
}

/// The entries of the file; no two rows have the same one.
fn listed() -> BTreeSet<Entry> {
    let text = include_str!("../../../../benchmarks/support.csv");
    let mut all = BTreeSet::new();
    for line in text.lines().skip(1) {
        let [instruction, types, targets] = line.split(',').collect::<Vec<_>>()[..] else { panic!("three columns: {line}") };
        for dtype in types.split_whitespace() {
            for target in targets.split_whitespace() {
                let entry = Entry { instruction: instruction.into(), dtype: dtype.into(), target: target.into() };
                assert!(all.insert(entry), "{line}: {dtype} for {target} again");
            }
        }
    }
    all
}

fn target(name: &str) -> Target {
    if name != "OpenCL" {
        return Target::by_arch(name).expect("a known target");
    }
    let known = Target::by_arch(OPENCL).expect("a known target");
    Target { dialect: Dialect::OpenCl, features: Features { f64: true, atomic64: true, ..Features::default() }, ..known }
}

/// Cells of a target with a product of two operands: reductions have no instruction to choose.
fn products_of(name: &str) -> Vec<Cell> {
    let target = target(name);
    Cell::all().into_iter().filter(|cell| cell.kind != KINDS[4] && cell.is_of(&target)).collect()
}

fn names() -> impl Iterator<Item = &'static str> {
    Target::known().iter().copied().chain(["OpenCL"])
}

#[test]
fn the_list_has_every_target_of_an_instruction() {
    let entries = |name: &'static str| {
        let entry =
            move |cell: Cell| Entry { instruction: cell.instruction.into(), dtype: cell.dtype.into(), target: name.into() };
        products_of(name).into_iter().map(entry)
    };
    let all: BTreeSet<Entry> = names().flat_map(entries).collect();
    let listed = listed();
    let missing: Vec<&Entry> = all.difference(&listed).collect();
    let absent: Vec<&Entry> = listed.difference(&all).collect();
    assert!(missing.is_empty() && absent.is_empty(), "not in support.csv: {missing:#?}\nof no target: {absent:#?}");
}

/// Compiles a kernel of a cell; `false` where the compiler is missing.
fn compiles(cell: &Cell, name: &str) -> bool {
    let target = target(name);
    let (space, plan) = drawn(cell, &target, &Recipe::short_code());
    let found = space.resolve(&plan).expect("it was legal");
    let program = found.generate(space.env().workspace_bytes).unwrap_or_else(|e| panic!("{cell} for {name}: {plan}: {e}"));
    let kernel = program.kernels.iter().find(|kernel| kernel.name == MAIN).expect("a main kernel");
    let made = match target.dialect {
        Dialect::Cuda => cuda::compile(kernel, name, &Options::default()).map(|_| ()),
        dialect => inspect(kernel, &target.arch, Some(dialect), &Options::default()).map(|_| ()),
    };
    match made {
        Err(DeviceError::Missing { .. }) => false,
        made => made.map_or_else(|e| panic!("{cell} for {name}: {plan}: {e}"), |()| true),
    }
}

/// A kernel of each cell, for one of its targets. Every target has a kernel; without `TILEWRIGHT_FULL` a seventh of the kernels.
#[test]
fn a_kernel_of_every_cell_compiles() {
    let rows = Cell::all().into_iter().enumerate().map(|(i, cell)| {
        let of: Vec<&str> = names().filter(|name| cell.is_of(&target(name))).collect();
        (cell, of[i % of.len()])
    });
    let rows: Vec<(Cell, &str)> = rows.collect();
    let compiled: BTreeSet<&str> = rows.iter().map(|(_, name)| *name).collect();
    assert_eq!(compiled, names().collect(), "each target has a kernel");
    let step = if whole_run() { 1 } else { 7 };
    let rows: Vec<(Cell, &str)> = rows.into_iter().step_by(step).collect();
    let missing: BTreeSet<bool> = rows.par_iter().map(|(cell, name)| compiles(cell, name)).collect();
    if missing.contains(&false) {
        missing::missing("NVRTC, or clang for AMD's architectures");
    }
}
