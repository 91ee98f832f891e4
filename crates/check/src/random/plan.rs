//! Random plans for a problem: tile shapes that suit its extents first, everything else on top.

use super::Recipe;
use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use tilewright_gen::plan::{Common, Constraint, Key, Keys, Plan, Side, load_tile, thread_grid};
use tilewright_gen::space::Space;
use tilewright_ir::mma::Reads;
use tilewright_problem::contraction::Contraction;

/// Draws for one problem before another problem is drawn.
pub(super) const TRIES: usize = 40;
/// Draws of a tile shape within one of them.
const SHAPES: usize = 200;

/// Draws a plan that is legal in the space.
pub(super) fn draw(rng: &mut ChaCha8Rng, recipe: &Recipe, space: &Space) -> Option<Plan> {
    for _ in 0..TRIES {
        let form = space.contractions().choose(rng)?.0;
        let home = Keys { form, ..Keys::default() };
        let contraction = space.contraction(&home);
        let Some(mut plan) = shape(rng, recipe, &home, contraction, space) else { continue };
        details(rng, &mut plan, recipe, space);
        if let Some(plan) = space.repair(&plan)
            && space.resolve(&plan).is_ok()
        {
            return Some(plan);
        }
    }
    None
}

/// The plan changed to reduce partial sums across a cluster, each work-group storing a share with stores of a random width. `None` if no such
/// plan near it is legal.
pub(super) fn shared(rng: &mut ChaCha8Rng, plan: &Plan, space: &Space) -> Option<Plan> {
    (0..16).find_map(|attempt| {
        // What is legal least often is tried first.
        let (ways, width) = (one(rng, &[2, 3, 3, 4, 5, 5, 6, 6]), one(rng, if attempt < 8 { &[2, 4, 8, 8] } else { &[1, 2, 4] }));
        let mut pinned = Constraint::none();
        let wanted = Keys { split_sum: 2, splits: ways, store_width: width, persistent: 0, ..Keys::default() };
        let keys = [Common::Sks, Common::Ice, Common::Cvw, Common::Pst].map(Key::C);
        keys.iter().for_each(|key| pinned.pin(*key, wanted.get(*key)));
        let edge = u32::from(attempt >= 8 || rng.random_bool(0.3));
        let mut wide = Keys { staged: 0, predicate: edge, ping_pong: 0, math_width: 1, ..**plan };
        if plan.family().reads == Reads::Vectors {
            let micro = one(rng, &[4, 8]).max(width);
            wide = wide.but(|keys| {
                // A tile that is pulled back is no larger than C.
                keys.threads = if edge == 0 { one(rng, &[32, 64, 64]) } else { keys.threads };
                keys.both(|o| {
                    o.read_width = width;
                    o.micro = micro;
                })
            });
        }
        let space = space.clone().constrained(&pinned);
        space.repair(&wide).filter(|plan| plan.predicate == edge && space.resolve(plan).is_ok())
    })
}

/// The plan changed to split the last tiles of its persistent work-groups along k. `None` if no such plan near it is legal.
pub(super) fn with_tail(rng: &mut ChaCha8Rng, plan: &Plan, space: &Space) -> Option<Plan> {
    (0..32).find_map(|attempt| {
        let mut changed = Keys { tail_splits: one(rng, &[2, 2, 3, 4, 5, 7]), ping_pong: 0, splits: 1, ..**plan };
        changed.predicate = if rng.random_bool(0.8) { 1 } else { plan.predicate };
        // Single work-groups, and then small tiles, have rounds and a tail more often.
        let alone = attempt >= 8;
        let least = if plan.family().reads == Reads::Vectors { 8 } else { 32 };
        changed.k_tile = if alone && rng.random_bool(0.5) { least } else { changed.k_tile };
        let most = if attempt >= 16 { one(rng, &[1, 2, 4, 8]) } else { u32::MAX };
        changed = changed.but(|keys| {
            keys.both(|o| {
                o.cluster = if alone { 1 } else { o.cluster };
                o.copy = if o.copy == 3 { 0 } else { o.copy };
                o.micro = o.micro.min(most);
            })
        });
        changed.persistent = one(rng, &[1, 2, 2, 3, 4, 5, 7, 29, 132]) * changed.a.cluster * changed.b.cluster;
        let plan = space.repair(&changed)?;
        space.resolve(&plan).is_ok_and(|r| r.spec.tiling.tail.is_some()).then_some(plan)
    })
}

/// One of some values, each as likely as it is often there.
pub(super) fn one(rng: &mut ChaCha8Rng, values: &[u32]) -> u32 {
    values.choose(rng).copied().unwrap_or_default()
}

/// Threads, micro tiles, k-tile, edges and schedule: everything that decides whether tiles can be shared out at all.
fn shape(rng: &mut ChaCha8Rng, recipe: &Recipe, home: &Keys, c: &Contraction, space: &Space) -> Option<Keys> {
    let target = space.target();
    let wave = target.wave.max(1);
    for _ in 0..SHAPES {
        let mut p = *home;
        let roles = wave > 1 && target.features.roles && rng.random_bool(if recipe.schedules { 0.35 } else { 0.1 });
        let load_waves = if roles { one(rng, &[1, 1, 2, 3, 4]) } else { 0 };
        let mac = if roles || (recipe.schedules && wave > 1) {
            wave * one(rng, &[1, 2, 2, 3, 4])
        } else {
            one(rng, &[1, 4, 8, 16, 24, 32, 48, 64, 64, 96, 128, 192, 256, 256, 512])
        };
        if mac > recipe.threads {
            continue;
        }
        let skw = one(rng, &[7, 8, 9, 10, 10, 10, 11, 12, 13]);
        let Some((along_m, along_n)) = thread_grid(mac, skw) else { continue };
        // Now and then micro tiles that leave room for vectors.
        let micros: &[u32] =
            if rng.random_bool(0.3) { &[4, 4, 8, 8, 16] } else { &[1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 10, 12, 16] };
        let (mic_a, mic_b) = (one(rng, micros), one(rng, micros));
        let predicated = rng.random_bool(0.5);
        let (tile_m, tile_n) = (along_m * mic_a, along_n * mic_b);
        let room = |extent: u64| if predicated { 2 * extent + 6 } else { extent };
        let splits = if rng.random_bool(0.25) { one(rng, &[2, 2, 3, 4, 5, 8]) } else { 1 };
        let groups = c.tiles([tile_m.into(), tile_n.into()]).iter().product::<u64>() * u64::from(splits);
        let work = groups * (c.depth() + 8) * u64::from(mic_a * mic_b);
        let too_large = u64::from(tile_m) > room(c.m) || u64::from(tile_n) > room(c.n);
        if too_large || mic_a * mic_b > recipe.micro || work > recipe.work {
            continue;
        }
        let loaders = if roles { load_waves * wave } else { mac };
        let depths = [1, 2, 3, 4, 4, 5, 6, 8, 8, 8, 10, 12, 16, 16, 24, 32, 32, 64, 128];
        let shared_out = |unr: &u32| {
            let tiles = [tile_m, tile_n].map(|tile| load_tile(tile, *unr, loaders, false));
            tiles.iter().all(Option::is_some) && tiles.iter().flatten().map(|(row, k)| row * k).sum::<u32>() <= recipe.loads
        };
        let depths: Vec<u32> = depths.into_iter().filter(shared_out).collect();
        let Some(unr) = depths.choose(rng) else { continue };
        p.threads = mac;
        p.skew = skw;
        p.k_tile = *unr;
        p.predicate = u32::from(predicated);
        p.splits = splits;
        p.producers = load_waves;
        p.a.micro = mic_a;
        p.b.micro = mic_b;
        return Some(p);
    }
    None
}

/// The other keys. What the problem does not allow, [`Space::repair`] takes back.
fn details(rng: &mut ChaCha8Rng, p: &mut Keys, recipe: &Recipe, space: &Space) {
    for side in Side::ALL {
        let o = p.of_mut(side);
        o.pad = one(rng, &[0, 1, 1, 2, 3]);
        for bit in [&mut o.load_along_k, &mut o.interleave_loads, &mut o.interleave_micro, &mut o.load_rows_first] {
            *bit = rng.random_range(0..2);
        }
        o.source = one(rng, &[0, 0, 0, 1, 2, 3]);
        // Either MIOpenGEMM's one width for everything, or widths of their own.
        let (vew, glw, frw) = if rng.random() {
            (one(rng, &[1, 2, 4, 4, 8]), 0, 0)
        } else {
            (1, one(rng, &[0, 1, 2, 4, 4, 8]), one(rng, &[0, 1, 2, 4, 8]))
        };
        o.vector = vew;
        o.load_width = glw;
        o.read_width = frw;
    }
    p.order = one(rng, &[1, 2, 3]);
    p.strip_groups = one(rng, &[4, 16, 64, 64]);
    for bit in [
        &mut p.unroll_hint,
        &mut p.interleave_splits,
        &mut p.explicit_fma,
        &mut p.a_first,
        &mut p.along_n,
        &mut p.split_sum,
        &mut p.staged,
        &mut p.fences,
    ] {
        *bit = rng.random_range(0..2);
    }
    p.wide_index = u32::from(rng.random_bool(0.2));
    p.persistent = one(rng, &[0, 0, 0, 1, 3, 7]);
    p.stagger = u32::from(rng.random_bool(0.15));
    p.store_width = one(rng, &[1, 1, 2, 4]);
    p.wave_shape = one(rng, &[0, 0, 1, 2, 4, 8, 16, 32]);
    let vectors = if space.target().wave > 1 { 0.1 } else { 0.5 };
    p.math_width = if rng.random_bool(vectors) { one(rng, &[2, 4, 8]) } else { 1 };
    p.min_groups = one(rng, &[0, 0, 1, 2]);
    p.unroll_k = u32::from(recipe.long_code && rng.random_bool(0.2));
    if p.form == 4 {
        p.slices = one(rng, &[1, 1, 2, 4]);
    }
    schedule(rng, p, recipe, space);
    if !recipe.long_code && p.k_tile > 16 {
        p.fragments_ahead = 0;
        if p.store_point == 2 {
            p.store_point = 1;
        }
    }
    // Vector math wants fragments of its width.
    let math = p.math_width;
    if math > 1 && rng.random_bool(0.8) {
        p.b.read_width = math;
    }
    // From a copy of the generator: what else a seed draws stays as it was.
    let mut later = rng.clone();
    p.entries_fastest = later.random_range(0..2);
    p.tail_splits = one(&mut later, &[1, 1, 2, 3, 5]);
}

fn schedule(rng: &mut ChaCha8Rng, p: &mut Keys, recipe: &Recipe, space: &Space) {
    let ahead = rng.random_bool(if recipe.schedules { 0.92 } else { 0.4 });
    let pfg = if ahead { one(rng, &[1, 1, 1, 2, 2, 3, 4]) } else { 0 };
    let copies = pfg > 0 && space.target().features.async_copy && rng.random_bool(0.35);
    let buf = if copies { pfg + 1 } else { rng.random_range(1..=pfg + 1) };
    if copies {
        let which = one(rng, &[1, 2, 3, 3]);
        p.a.copy = which & 1;
        p.b.copy = which >> 1;
    }
    p.ahead = pfg;
    p.buffers = buf;
    p.store_point = rng.random_range(0..3);
    p.fragments_ahead = one(rng, if recipe.schedules { &[0, 1, 1, 2] } else { &[0, 0, 1, 2] });
}
