//! Each of MIOpenGEMM's 27 hyperparameters changes the kernel in the way MIOpenGEMM documents: every thread's loads, shared
//! memory, order, ids and instructions are compared with a model of its kernel, and each variant verifies on the emulator.

mod common;
mod sides;
mod variant;

use std::collections::BTreeSet;
use tilewright_gen::plan::Key;

/// All 27 are tested.
#[test]
fn every_parameter_has_its_test() {
    let names: BTreeSet<&str> = Key::all().filter(|k| k.info().is_classic()).map(Key::name).collect();
    let tests = concat!(include_str!("sides.rs"), include_str!("common.rs"));
    for name in names {
        let start = format!("fn {}_", name.to_lowercase());
        assert!(tests.contains(&start), "{name}");
    }
}
