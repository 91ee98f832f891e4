//! The support page says that the emulator runs all of its rows: it runs a kernel of each.

use crate::support;

use rayon::prelude::*;
use support::cells::drawn;
use support::emulator;
use tilewright_check::random::{Pair, Recipe, verify};
use tilewright_gen::cell::Cell;
use tilewright_ir::Target;

#[test]
fn a_kernel_of_every_cell_verifies() {
    let all = Cell::all();
    assert!(all.len() > 100, "{}", all.len());
    let failures: Vec<String> = all
        .par_iter()
        .enumerate()
        .filter_map(|(i, cell)| {
            let targets: Vec<Target> = Target::known().iter().filter_map(|arch| Target::by_arch(arch)).collect();
            let targets: Vec<&Target> = targets.iter().filter(|target| cell.is_of(target)).collect();
            let target = targets[i % targets.len()];
            let (space, plan) = drawn(cell, target, &Recipe::emulated());
            let pair = Pair { seed: i as u64, problem: space.problem().clone(), plan };
            assert_eq!(Cell::of(&pair.problem, &pair.plan, target), Some(*cell));
            match verify(&emulator(&format!("emu:{}", target.arch), false, 0), &pair) {
                Ok(found) if found.passed => None,
                Ok(found) => Some(format!("{cell}: {pair}: {:?}", found.reason)),
                Err(e) => Some(format!("{cell}: {pair}: {e}")),
            }
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
