//! Random plans for matrix units of single waves (`UNI1`, `UNI3`).

use super::plan::{TRIES, one};
use super::{Recipe, units};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use tilewright_gen::plan::{Chiral, Common, Constraint, Key, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::MathUnit;
use tilewright_problem::contraction::Contraction;

/// Draws a plan of the unit that is legal in the space.
pub(super) fn draw(rng: &mut ChaCha8Rng, recipe: &Recipe, space: &Space, unit: u32) -> Option<Plan> {
    let mut pinned = Constraint::none();
    pinned.pin(Key::C(Common::Uni), unit);
    let space = space.clone().constrained(&pinned);
    for _ in 0..TRIES {
        let form = space.contractions().choose(rng)?.0;
        let drawn = Plan::from(wave_unit_plan(rng, unit).with(Key::C(Common::Bim), form));
        let drawn = raw(rng, drawn, space.contraction(&drawn));
        let drawn = space.repair(&drawn).filter(|plan| space.resolve(plan).is_ok_and(|r| units::work(&r) <= recipe.work));
        if drawn.is_some() {
            return drawn;
        }
    }
    None
}

/// The plan, where a factor is weights of 8 or 4 bits now and then with copies that bring them as memory has them; where the unit has no
/// such copies, repair takes them back.
fn raw(rng: &mut ChaCha8Rng, plan: Plan, c: &Contraction) -> Plan {
    let c = c.oriented(plan.common(Common::Swp) == 1, MathUnit::Fma);
    let sides = [(Key::A as fn(Chiral) -> Key, &c.a), (Key::B, &c.b)];
    if sides.iter().all(|(_, tensor)| !tensor.has_weights()) || rng.random() {
        return plan;
    }
    let ahead = plan.common(Common::Pfg).max(1);
    let ring = plan.with_each([(Common::Pfg, ahead), (Common::Buf, ahead + 1), (Common::Ufo, 0)]);
    let copied = sides.into_iter().fold(ring, |p, (side, tensor)| {
        let width = tensor.scalar.numbers_in(one(rng, &[4, 4, 8, 16]));
        let keys = [(Chiral::Acp, 1), (Chiral::Wos, 0), (Chiral::Plu, 1), (Chiral::Glw, width), (Chiral::Vew, 1)];
        keys.into_iter().fold(p, |p, (key, value)| p.with(side(key), value))
    });
    copied.into()
}

/// A plan of such a unit, by its number, legal or nearly so.
pub fn wave_unit_plan(rng: &mut ChaCha8Rng, unit: u32) -> Plan {
    let wave = if unit == 1 { 32 } else { 64 };
    let ahead = rng.random_range(0..4u32);
    let copied = ahead > 0 && unit == 1 && rng.random();
    let buffers = if copied { ahead + 1 } else { rng.random_range(1..ahead + 2) };
    let mut text = String::new();
    for side in ["A", "B"] {
        let mic = if unit == 1 { one(rng, &[1, 2, 3, 4]) } else { one(rng, &[1, 2, 2, 3, 4]) };
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
    if copied && rng.random_bool(0.4) {
        // Windows of a whole result tile, where repair finds that the operand has them.
        let side = if rng.random_bool(0.8) { Key::A } else { Key::B };
        return drawn.with(side(Chiral::Acp), 4).with(side(Chiral::Wos), 0).with(Key::C(Common::Ufo), 0).into();
    }
    drawn.into()
}
