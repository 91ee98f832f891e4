//! Plans for cells of the support page.

use tilewright_check::random::{Recipe, plan};
use tilewright_gen::cell::Cell;
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_ir::Target;

/// Seeds that are tried for a plan of the cell's unit.
const SEEDS: u64 = 400;

/// The cell's problem on a target, with a plan of the cell's unit.
pub fn drawn(cell: &Cell, target: &Target, recipe: &Recipe) -> (Space, Plan) {
    let problem = cell.problem().unwrap_or_else(|| panic!("{cell} has no problem"));
    let space = Space::new(&problem, target).unwrap_or_else(|e| panic!("{cell}: {e}"));
    // Any unit of the target.
    let recipe = Recipe { formats: true, work: u64::MAX, ..*recipe };
    let of_the_unit = |plan: &Plan| space.resolve(plan).is_ok_and(|found| Some(found.spec.tiling.unit) == cell.unit());
    let plan = (0..SEEDS).filter_map(|seed| plan(&space, &recipe, seed)).find(of_the_unit);
    let plan = plan.unwrap_or_else(|| panic!("{cell} on {}: no plan of {SEEDS} seeds", target.arch));
    (space, plan)
}
