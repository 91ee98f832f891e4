//! Random plans for warpgroup matrix instructions: every key that says something to them.

use super::plan::one;
use super::{Recipe, plan};
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use tilewright_gen::plan::{Keys, OperandKeys, Plan, Side};
use tilewright_gen::space::{Resolved, Space};
use tilewright_ir::mma::Family;

/// Most sums of a thread: the registers it can have, less what addresses take.
const ACCUMULATORS: u32 = 200;

/// Draws a plan that is legal in the space.
pub(super) fn draw(rng: &mut ChaCha8Rng, recipe: &Recipe, space: &Space, family: &Family) -> Option<Plan> {
    for _ in 0..plan::TRIES {
        let form = space.contractions().choose(rng)?.0;
        let mut drawn = Keys { unit: family.number, form, ..Keys::default() };
        let seen = drawn.orient(space.contraction(&drawn));
        keys(rng, &mut drawn, seen.a.factor().bytes() == 4);
        if seen.a.factor.and(seen.b.factor).is_some() {
            drawn = drawn.but(|keys| keys.both(|o| o.copy = 0));
        }
        // What the operands do not allow is taken back: an operand that bulk copies cannot reach is materialised.
        let Some(drawn) = space.repair(&drawn).filter(|repaired| repaired.family().reads == family.reads) else { continue };
        let Ok(r) = space.resolve(&drawn) else { continue };
        if work(&r) <= recipe.work {
            return Some(drawn);
        }
    }
    None
}

/// Multiply-adds of a thread over all work-groups, as many as take so long without matrix instructions.
pub(super) fn work(r: &Resolved<'_>) -> u64 {
    let (t, c) = (&r.spec.tiling, r.contraction);
    let (tile_m, tile_n) = (u64::from(t.macro_tile().0), u64::from(t.macro_tile().1));
    let tiles = c.tiles([tile_m, tile_n]).iter().product::<u64>() * u64::from(t.split_k.ways);
    // Instructions take whole tiles, edges or not.
    tiles * (c.depth() + u64::from(t.k_tile)) * tile_m * tile_n / u64::from(t.math_threads()) / UNIT_SPEED
}

/// Multiply-adds of a matrix instruction take a device, the emulator too, that much less time than others, at least.
const UNIT_SPEED: u64 = 4;

/// `wide`: of 32-bit operands, half as many of which fill a row in shared memory.
fn keys(rng: &mut ChaCha8Rng, p: &mut Keys, wide: bool) {
    let mic_a = one(rng, &[1, 1, 1, 2, 2, 3, 4]);
    // Columns / 8 of an instruction: odd numbers of them, too.
    let columns = [1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 10, 12, 13, 16, 16, 20, 24, 28, 32];
    let columns: Vec<u32> = columns.into_iter().filter(|columns| mic_a * columns * 4 <= ACCUMULATORS).collect();
    let (cluster_m, cluster_n) = (one(rng, &[1, 1, 1, 2, 2, 4]), one(rng, &[1, 1, 1, 2, 2, 4]));
    p.a.cluster = cluster_m;
    p.b.cluster = cluster_n;
    for (side, micro) in [(Side::A, mic_a), (Side::B, one(rng, &columns))] {
        let source = one(rng, &[0, 0, 0, 1, 3]);
        *p.of_mut(side) = OperandKeys { micro, copy: 2, source, ..*p.of(side) };
    }
    let fragments = rng.random_range(0..2);
    let ahead = one(rng, &[1, 1, 2, 2, 3, 4]);
    let roles = one(rng, &[0, 0, 1, 2, 4, 4, 4, 3, 8, 12, 16]);
    let split = one(rng, &[1, 1, 1, 2, 3, 5, 1, 17]);
    let persistent = one(rng, &[0, 0, 1, 2, 3, 7, 132]);
    // Clusters stay together.
    let by_cluster = split > 1 && rng.random_range(0..3) == 0;
    let persistent = persistent * cluster_m * cluster_n * if by_cluster { split } else { 1 };
    p.k_tile = if wide { one(rng, &[32, 32, 64, 96]) } else { one(rng, &[64, 64, 64, 128, 192]) };
    p.threads = 128 * one(rng, &[1, 1, 2, 2, 3, 4]);
    p.skew = one(rng, &[7, 8, 9, 10, 10, 10, 11, 12, 13]);
    p.producers = roles;
    p.fragments_ahead = fragments;
    p.ahead = ahead;
    p.buffers = ahead + 1 + fragments + one(rng, &[0, 0, 1, 2]);
    p.persistent = persistent;
    p.splits = split;
    p.split_sum = if by_cluster { 2 } else { one(rng, &[0, 1, 1]) };
    p.order = one(rng, &[1, 2, 3]);
    p.strip_groups = one(rng, &[2, 4, 16, 64]);
    p.store_width = one(rng, &[1, 2, 2]);
    p.min_groups = one(rng, &[0, 0, 1, 2]);
    for bit in [&mut p.swapped, &mut p.staged, &mut p.interleave_splits] {
        *bit = rng.random_range(0..2);
    }
    // Load waves write tiles of 16-bit elements, or shift their lines.
    if roles > 0 && !wide {
        for (side, shared) in [(Side::A, cluster_n), (Side::B, cluster_m)] {
            p.of_mut(side).copy = if shared > 1 { 2 } else { one(rng, &[0, 2, 2, 3]) };
        }
    }
    if roles > 0 && persistent > 0 && !by_cluster {
        p.ping_pong = rng.random_range(0..2);
    }
    p.register_sets = one(rng, &[0, 0, 0, 2, 2, 4]);
    // From a copy of the generator: what else a seed draws stays as it was.
    let mut later = rng.clone();
    p.entries_fastest = later.random_range(0..2);
    p.deep_instruction = later.random_range(0..2);
    p.tail_splits = one(&mut later, &[1, 1, 2, 3, 5]);
}
