//! Random plans for matrix units of single waves (`UNI1`, `UNI3`).

use super::plan::{TRIES, one};
use super::{Recipe, units};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use tilewright_gen::plan::{Common, Constraint, Key, Keys, OperandKeys, Plan, Side};
use tilewright_gen::space::Space;
use tilewright_ir::mma::{FAMILIES, Family};
use tilewright_problem::contraction::{Contraction, Tensor};

/// Draws a plan of the unit that is legal in the space.
pub(super) fn draw(rng: &mut ChaCha8Rng, recipe: &Recipe, space: &Space, family: &Family) -> Option<Plan> {
    let mut pinned = Constraint::none();
    pinned.pin(Key::C(Common::Uni), family.number);
    let space = space.clone().constrained(&pinned);
    for _ in 0..TRIES {
        let form = space.contractions().choose(rng)?.0;
        let drawn = Plan::from(wave_unit_plan(rng, family.number).but(|keys| keys.form = form));
        let drawn = raw(rng, drawn, space.contraction(&drawn));
        let drawn = space.repair(&drawn).filter(|plan| space.resolve(plan).is_ok_and(|r| units::work(&r) <= recipe.work));
        if drawn.is_some() {
            return drawn;
        }
    }
    None
}

/// The plan; where an operand is weights of 8 or 4 bits, at times with copies that keep the weights' format in memory. Where the
/// unit has no such copies, repair removes them.
fn raw(rng: &mut ChaCha8Rng, plan: Plan, c: &Contraction) -> Plan {
    let c = plan.orient(c);
    if !c.a.has_weights() && !c.b.has_weights() || rng.random() {
        return plan;
    }
    let ahead = plan.ahead.max(1);
    let mut copied = |tensor: &Tensor, keys: OperandKeys| {
        let load_width = tensor.scalar.numbers_in(one(rng, &[4, 4, 8, 16]));
        OperandKeys { copy: 1, source: 0, load_along_k: 1, load_width, vector: 1, ..keys }
    };
    let (a, b) = (copied(&c.a, plan.a), copied(&c.b, plan.b));
    Keys { a, b, ahead, buffers: ahead + 1, stagger: 0, ..*plan }.into()
}

/// A plan of such a unit, by its number, legal or nearly so.
pub fn wave_unit_plan(rng: &mut ChaCha8Rng, unit: u32) -> Plan {
    let wave = Family::numbered(unit).unwrap_or(&FAMILIES[0]).wave();
    // Targets with waves of 32 have asynchronous copies.
    let copies = wave == 32;
    let ahead = rng.random_range(0..4u32);
    let copied = ahead > 0 && copies && rng.random();
    let buffers = if copied { ahead + 1 } else { rng.random_range(1..ahead + 2) };
    let mut text = String::new();
    for side in ["A", "B"] {
        let mic = if wave == 32 { one(rng, &[1, 2, 3, 4]) } else { one(rng, &[1, 2, 2, 3, 4]) };
        text += &format!(
            "{side}_MIC{mic}_PAD{}_GLW{}_PLU{}_LIW{}_LOR{}_WOS{}_ACP{}__",
            one(rng, &[0, 1, 1, 2]),
            one(rng, &[1, 2, 4, 8, 8, 8]),
            rng.random_range(0..2),
            rng.random_range(0..2),
            rng.random_range(0..2),
            one(rng, &[0, 0, 0, 1, 2]),
            u32::from(copied && rng.random_bool(0.8)),
        );
    }
    let ways = one(rng, &[1, 1, 2, 3]);
    text += &format!(
        "C_UNI{unit}_UNR{}_MAC{}_SKW{}_PFG{ahead}_BUF{buffers}_STP{}_FRA{}_LWV{}_SWP{}_CVW{}_GAL{}_ICE{ways}_IWI{}_SKS{}_EDG{}_UFO{}_UKL{}_AFI{}_PST{}_CST{}",
        one(rng, &[16, 32, 32, 64]),
        wave * one(rng, &[1, 2, 4]),
        one(rng, &[9, 10, 11]),
        rng.random_range(0..3),
        rng.random_range(0..3),
        one(rng, &[0, 0, 1, 2]),
        rng.random_range(0..2),
        one(rng, &[1, 2, 4]),
        one(rng, &[1, 2, 3]),
        rng.random_range(0..2),
        i32::from(ways > 1),
        u32::from(rng.random_bool(0.9)),
        u32::from(rng.random_bool(0.15)),
        rng.random_range(0..2),
        rng.random_range(0..2),
        one(rng, &[0, 0, 1, 3, 7]),
        rng.random_range(0..2),
    );
    let drawn = Constraint::parse(&text).unwrap_or_default().apply(&Plan::default());
    let mut later = rng.clone();
    let deep_instruction = later.random_range(0..2);
    let drawn = Keys { deep_instruction, tail_splits: one(&mut later, &[1, 1, 2, 3, 5]), ..drawn };
    if copied && rng.random_bool(0.4) {
        // Windows of a whole result tile, where repair finds that the operand has them.
        let side = if rng.random_bool(0.8) { Side::A } else { Side::B };
        let windows = Keys { stagger: 0, ..drawn };
        return windows.but(|keys| (keys.of_mut(side).copy, keys.of_mut(side).source) = (4, 0)).into();
    }
    drawn.into()
}
