//! What a compiler makes of a plan's main kernel.

use crate::missing;
use tilewright_device::inspect::{Class, Inspection, inspect};
use tilewright_device::{DeviceError, Options};
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::Target;
use tilewright_problem::Problem;

/// The machine code of a legal plan's main kernel for an architecture; `None`, with a line that says so, where its compiler is missing.
#[allow(dead_code)] // Not every test file has plans as texts alone.
pub fn inspected(problem: &Problem, arch: &str, plan: &str) -> Option<Inspection> {
    let space = Space::new(problem, &Target::by_arch(arch).unwrap()).unwrap();
    inspected_in(&space, arch, &Plan::from(Constraint::parse(plan).unwrap().apply(&Plan::default())))
}

/// A legal plan's main kernel for an architecture uses an instruction and spills no register, where its compiler is there.
#[allow(dead_code)] // Of some test files alone.
pub fn nothing_is_spilled(problem: &Problem, arch: &str, plan: &str, instruction: &str) {
    let Some(seen) = inspected(problem, arch, plan) else { return };
    assert!(seen.assembly.contains(instruction), "{arch} {plan}: no {instruction}");
    let main = seen.main_loop().unwrap_or_else(|| panic!("{arch} {plan}: no main loop"));
    eprintln!("{arch} {plan}: {} registers, main loop {:?}", seen.usage.registers, main.counts);
    assert_eq!((seen.usage.spill_bytes, main.count(Class::Scratch)), (0, 0), "{arch} {plan}: {:?}", seen.usage);
}

/// The same of a plan of a space.
pub fn inspected_in(space: &Space, arch: &str, plan: &Plan) -> Option<Inspection> {
    let r = space.resolve(plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
    let program = r.generate(space.env().workspace_bytes).unwrap();
    let kernel = program.kernels.into_iter().find(|k| k.name == MAIN).unwrap();
    match inspect(&kernel, arch, None, &Options::default()) {
        Err(e @ DeviceError::Missing { .. }) => {
            missing::missing(&e.to_string());
            None
        }
        seen => Some(seen.unwrap_or_else(|e| panic!("{plan} on {arch}: {e}"))),
    }
}
