//! Plans with a matrix unit worth a look before anything is known.

use super::Picker;
use super::seed_keys::tiled;
use super::tail;
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use tilewright_gen::plan::{Keys, OperandKeys, RowStaging, TileClass, TileShape, store_buffers, store_tile, thread_grid};
use tilewright_gen::space::Space;
use tilewright_ir::mma::{FAMILIES, Reads};
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{COL, ROW};
use tilewright_problem::{Math, Role};

/// Plans with warpgroup instructions: the tiles of the least modelled time under the schedules that suit them. Empty where the device or
/// the types have no such instruction. They need not be legal.
pub(super) fn seeds(picker: &Picker, form: u32, c: &Contraction) -> Vec<Keys> {
    let space = picker.space;
    let target = space.target();
    let mut families = FAMILIES.iter().filter(|f| f.reads == Reads::Panels && f.unit.available(&target.features));
    let Some((family, row)) = families.find_map(|f| Some((f, c.instruction(f.unit)?))) else { return Vec::new() };
    let split = c.splits(row);
    let in_registers = split.is_some_and(|split| split.as_wide());
    let mut plans = Vec::new();
    // Pairs of results are neighbours along n. In the other orientation results are stored one by one: the model weighs that against tiles that
    // reach less over the edge.
    let ordered = Keys { unit: family.number, form, ..Keys::default() };
    for ordered in [ordered, ordered.but(Keys::turn)] {
        let turned = ordered.orient(c);
        let pairs = turned.c.view.stride(COL) == Some(1);
        let by_registers = rows_by_registers(&turned);
        let copied = OperandKeys { copy: 2, ..OperandKeys::default() };
        let base = Keys {
            a: copied,
            b: copied,
            store_width: if pairs { 2 } else { 1 },
            split_sum: u32::from(!space.env().allow_atomics),
            ..ordered
        };
        let mut of_tiles = Vec::new();
        let mut of_weights = Vec::new();
        for plan in tiles(&base, &turned) {
            schedules(space, &turned, &plan, &mut of_tiles);
            if turned.a.has_weights() {
                schedules(space, &turned, &by_fragments(&plan, &turned, true), &mut of_weights);
            }
        }
        // Load waves write the other factor, or a copy in workspace has it in the order of the weights.
        of_weights.retain(|plan| plan.ping_pong == 0);
        let copied = |plan: &Keys| Keys { b: OperandKeys { source: 1, copy: 2, ..plan.b }, ..*plan };
        let of_weights = of_weights.iter().flat_map(|plan| [Keys { producers: 4, ..*plan }, copied(plan)]);
        let fetched: Vec<Keys> = of_tiles.iter().flat_map(|plan| through_registers(plan, &turned)).collect();
        let fragments: Vec<Keys> = of_tiles
            .iter()
            .filter(|_| by_registers || in_registers)
            .map(|plan| by_fragments(plan, &turned, in_registers))
            .collect();
        if split.is_some() {
            of_tiles.clear();
        }
        plans.extend(of_tiles.into_iter().chain(fetched).chain(fragments).chain(of_weights));
    }
    best_tilings(picker, plans)
}

/// The plans of the best `TILES` tiles, and of the best `OF_CLASS` of each class. Tiles are ranked by the modelled time of their
/// plainest plan.
fn best_tilings(picker: &Picker, plans: Vec<Keys>) -> Vec<Keys> {
    /// Tiles of any class.
    const TILES: usize = 40;
    /// Tiles of each class.
    const OF_CLASS: usize = 2;
    let Some(shortest) = plans.iter().map(|p| p.k_tile).min() else { return plans };
    let plain =
        |p: &&Keys| p.staged == 0 && p.a.cluster <= 1 && p.b.cluster <= 1 && p.k_tile == shortest && p.fragments_ahead <= 1;
    let times: Vec<(TileShape, f64)> = plans
        .par_iter()
        .filter(plain)
        .filter_map(|keys| Some((keys.tile_shape(), picker.repaired(keys)?.estimate.total_us)))
        .collect();
    // In the order of the tiles, which decides between equal times: a pick is repeatable.
    let mut least: BTreeMap<TileShape, f64> = BTreeMap::new();
    for (tile, time) in times {
        let best = least.entry(tile).or_insert(time);
        *best = best.min(time);
    }
    let mut tiles: Vec<(TileShape, f64)> = least.into_iter().collect();
    tiles.sort_by(|x, y| x.1.total_cmp(&y.1));
    let mut of_class: HashMap<TileClass, usize> = HashMap::new();
    let mut kept = HashSet::new();
    for (place, (tile, _)) in tiles.into_iter().enumerate() {
        let seen = of_class.entry(tile.class).or_default();
        *seen += 1;
        if place < TILES || *seen <= OF_CLASS {
            kept.insert(tile);
        }
    }
    plans.into_iter().filter(|p| kept.contains(&p.tile_shape())).collect()
}

/// The plan with operands that bulk copies do not reach fetched by the load waves instead of materialised: one of them, or both.
fn through_registers(plan: &Keys, c: &Contraction) -> Vec<Keys> {
    if plan.producers < 4 || plan.ping_pong == 1 || !matches!(c.a.factor().bytes(), 1 | 2) {
        return Vec::new();
    }
    let fetches = |tensor: &Tensor, role: Role| {
        let second = c.second.as_ref().map(|second| if role == Role::A2 { &second.a } else { &second.b });
        tensor.factor.is_some() || !boxes_align(tensor) || second.is_some_and(|second| !boxes_align(second))
    };
    let a = fetches(&c.a, Role::A2).then(|| plan.but(|keys| keys.a.copy = 0));
    let b = fetches(&c.b, Role::B2).then(|| plan.but(|keys| keys.b.copy = 0));
    let both = a.and(b).map(|_| plan.but(|keys| keys.both(|o| o.copy = 0)));
    // Bulk copies bring none of two factors that change their type.
    let each = if c.a.factor.and(c.b.factor).is_some() { [None, None] } else { [a, b] };
    let ways = each.into_iter().chain([both]).flatten();
    // Several work-groups on a compute unit have more loads in flight, if registers allow them; so have more load waves.
    let several = plan.threads == 128;
    let more = |p: Keys| if several { Keys { min_groups: 2, ..p } } else { Keys { producers: 8, ..p } };
    ways.flat_map(|p| [p, more(p)].into_iter().chain(from_staging(&p, c))).collect()
}

/// The plan with misaligned operands copied to the staging buffer by TMA and shifted from there, where their rows allow it. It
/// has as many stages as leave shared memory for the staging buffer.
fn from_staging(plan: &Keys, c: &Contraction) -> Vec<Keys> {
    let mut staged = *plan;
    for (keys, tensor) in [(&mut staged.a, &c.a), (&mut staged.b, &c.b)].into_iter().filter(|(keys, _)| keys.copy == 0) {
        if tensor.view.is_affine_box().is_none() || tensor.align < 16 || tensor.factor.is_some() {
            return Vec::new();
        }
        keys.copy = 3;
    }
    let held = 2 + plan.fragments_ahead;
    let buffers = (held..held + 3).filter(|n| *n <= plan.buffers.max(held));
    let waves = |p: Keys| [p, Keys { producers: 8, ..p }];
    buffers.map(|buffers| Keys { buffers, ahead: buffers - 1, ..staged }).flat_map(waves).collect()
}

/// True if bulk copies bring the operand of C's rows in lines that its instructions read from registers alone: of 32-bit elements along
/// rows.
fn rows_by_registers(c: &Contraction) -> bool {
    let a = &c.a;
    a.factor().bytes() == 4 && a.view.stride(ROW) == Some(1) && a.view.stride(COL) != Some(1) && boxes_align(a)
}

/// The plan with that operand's fragments in registers: as many sets as the accumulators leave registers for. Where factors are split, or made of
/// weights, load waves write the other one.
fn by_fragments(plan: &Keys, c: &Contraction, made: bool) -> Keys {
    let (rows, columns) = (plan.a.micro, plan.b.micro);
    let words = if c.block_scales.is_empty() { 4 } else { 8 };
    let four = words * rows * columns + 16 * rows * if made { 2 } else { 1 };
    let plan = Keys { register_sets: if four <= 176 { 4 } else { 2 }, ..*plan };
    let written = OperandKeys { copy: 0, ..plan.b };
    match (made, c.a.has_weights()) {
        (false, _) => plan,
        (true, true) => Keys { b: written, ..plan },
        (true, false) => Keys { b: written, producers: 4, ..plan },
    }
}

/// True if bulk copies may reach the tensor: plain strides, all but the contiguous one multiples of 16 bytes.
fn boxes_align(tensor: &Tensor) -> bool {
    let align = 16 / i64::from(tensor.scalar.bytes());
    let plain = tensor.view.is_affine_box();
    plain.is_some_and(|shape| tensor.align >= 16 && shape.strides.iter().all(|s| matches!(*s, 0 | 1) || s % align == 0))
}

/// Warpgroups along m and n of a tile.
fn owners(mac: u32, skew: u32, turns: u32) -> Option<(u32, u32)> {
    if turns == 1 { Some((1, 1)) } else { thread_grid(mac / 128, skew) }
}

/// Threads, skew of the grid of warpgroups, rows of instructions: of warpgroups that share a tile.
const TOGETHER: [[u32; 3]; 7] =
    [[128, 10, 1], [128, 10, 2], [256, 10, 1], [256, 10, 2], [256, 11, 1], [256, 11, 2], [384, 11, 1]];
/// The same of warpgroups that alternate between tiles.
const PING_PONG: [[u32; 3]; 3] = [[256, 10, 1], [256, 10, 2], [256, 10, 3]];
/// Most columns of an instruction, in eights.
const COLUMNS: u32 = 32;

/// Tilings: warpgroups, rows and columns.
fn tiles(base: &Keys, c: &Contraction) -> Vec<Keys> {
    let mut plans = Vec::new();
    let shapes = TOGETHER.map(|shape| (shape, 0)).into_iter().chain(PING_PONG.map(|shape| (shape, 1)));
    for ([mac, skew, rows], turns) in shapes {
        let Some((along_m, along_n)) = owners(mac, skew, turns) else { continue };
        // Of the widths that give the same number of tiles along n, the narrowest reaches least over the edge.
        let mut before = 0;
        for micro in 1..=COLUMNS {
            let along = c.n.div_ceil(u64::from(8 * micro * along_n));
            if before == along {
                continue;
            }
            before = along;
            let (tile_m, tile_n) = (u64::from(64 * rows * along_m), u64::from(8 * micro * along_n));
            let accumulators = rows * micro * 4;
            let wide = tile_n >= 2 * c.n.next_power_of_two().max(8) || tile_m >= 2 * c.m.next_power_of_two().max(64);
            // Narrow instructions waste the unit where there are columns for wider ones.
            let narrow = tile_n < 64 && c.n >= 2 * tile_n;
            if wide || narrow || accumulators > 208 {
                continue;
            }
            plans.push(Keys { ping_pong: turns, ..tiled(*base, mac, skew, [rows, micro]) });
        }
    }
    plans
}

/// The same with clusters, along the side with many tiles or along the splits of a tile. Work-groups of a cluster share what they
/// read of the same k.
fn clusters(plan: &Keys, tiles_m: u64, tiles_n: u64, plans: &mut Vec<Keys>) {
    let split = plan.splits;
    if matches!(split, 2 | 4 | 8) && plan.persistent == 0 {
        plans.push(Keys { split_sum: 2, ..*plan });
    }
    if tiles_m >= 2 {
        plans.push(plan.but(|keys| keys.a.cluster = 2));
    }
    if tiles_n >= 2 {
        plans.push(plan.but(|keys| keys.b.cluster = 2));
    }
    // A single row of tiles reads the same rows of A everywhere.
    if tiles_m == 1 && tiles_n >= 8 {
        plans.push(plan.but(|keys| keys.b.cluster = 4));
    }
}

/// Results of those that have sums to compute.
fn results<'c>(parts: impl Iterator<Item = &'c Contraction>) -> u64 {
    parts.filter(|c| c.k > 0).map(|c| c.entries() * c.m * c.n).sum()
}

/// Buffers, depth, splits and persistent work-groups.
fn schedules(space: &Space, c: &Contraction, tile: &Keys, plans: &mut Vec<Keys>) {
    let target = space.target();
    let (mac, skew, turns) = (tile.threads, tile.skew, tile.ping_pong);
    let Some((along_m, along_n)) = owners(mac, skew, turns) else { return };
    let rows = 64 * tile.a.micro * along_m;
    let columns = 8 * tile.b.micro * along_n;
    let tiles = c.tiles([rows.into(), columns.into()]).iter().product::<u64>();
    // Parts of the problem in the same launch have tiles as well.
    let all = if turns == 1 { tiles } else { tiles * results(space.parts(tile).iter()) / (c.entries() * c.m * c.n).max(1) };
    let units = u64::from(target.units);
    // Bytes of a wave's epilogue staging buffer, for bulk stores or stores of rows.
    let teams = if turns == 1 { mac / 128 } else { 1 };
    let staging = if store_tile(&c.c, 64).is_ok() {
        2048 * store_buffers(teams)
    } else {
        RowStaging::new(64, 8, c.c.scalar.bytes(), c.accumulator()).bytes()
    };
    // All parts of what is split in shared memory: of columns alone where registers split rows.
    let parts = c.math.split().map_or([1; 2], |split| [if split.as_wide() { 1 } else { split.parts }, split.parts]);
    // Rows of 128 bytes, or two.
    let row = 128 / c.a.factor().bytes();
    let raw = c.a.has_weights() && tile.register_sets > 0;
    for depth in [row, 2 * row] {
        let of_b = columns * parts[1] * depth * c.a.factor().bytes();
        let of_a =
            if raw { c.a.scalar.bytes_of((rows * depth).into()) as u32 } else { rows * parts[0] * depth * c.a.factor().bytes() };
        let stage = of_a + of_b + 16;
        let k_tiles = c.depth().div_ceil(depth.into());
        for share in [1, 2] {
            let most = (target.limits.shared_per_group / share / stage).min(8);
            if most < 2 || (depth > row && most > 5 && k_tiles > 5) {
                continue;
            }
            // Splits of k: contiguous ranges, or k-tiles dealt out round-robin, which keeps concurrent reads close together.
            let mut ways = vec![(1, 0)];
            // As clusters that sum up among themselves.
            for w in [2, 4, 8] {
                if all * u64::from(w) <= 2 * units && u64::from(w) * 4 <= k_tiles {
                    ways.push((w, 0));
                }
            }
            for wanted in [units, 2 * units] {
                let w = (wanted / all.max(1)).min(k_tiles / 4).min(1024) as u32;
                if w > 1 && !ways.contains(&(w, 0)) {
                    ways.extend([(w, 0), (w, 1)]);
                }
            }
            // Two work-groups share a unit's registers only if neither asks for more than half of them.
            let (load_waves, at_once) = if share == 2 && mac >= 256 { (1, 2) } else { (4, 0) };
            for (split, in_turn) in ways {
                let work = all * u64::from(split);
                let stay = if work > units * u64::from(share) { target.units * share } else { 0 };
                for (fragments, persistent) in [(1, 0), (0, stay), (1, stay)] {
                    // Two-level accumulation reads the accumulators after each k-tile.
                    let fragments = if c.math == Math::Promoted || !c.block_scales.is_empty() { 0 } else { fragments };
                    // Persistent work-groups prefetch their next tile.
                    let buffers = if persistent > 0 { most } else { most.min(k_tiles.max(2) as u32) };
                    if turns == 1 && (persistent == 0 || share == 2) {
                        continue;
                    }
                    if buffers < 2 + fragments || (stay == 0 && fragments == 0 && mac == 128) {
                        continue;
                    }
                    let plan = Keys {
                        k_tile: depth,
                        buffers,
                        ahead: buffers - 1,
                        producers: load_waves,
                        min_groups: at_once,
                        interleave_splits: in_turn,
                        fragments_ahead: fragments,
                        persistent,
                        splits: split,
                        strip_groups: 64 * split,
                        ..*tile
                    };
                    // Staging buffers for bulk stores take the memory of one stage, or the memory that the stages leave free.
                    let all_staging = mac / 32 * staging;
                    let spared = target.limits.shared_per_group / share - buffers * stage;
                    let fewer = buffers - u32::from(spared < all_staging + 1024);
                    let mut of_buffers = vec![plan];
                    if fewer >= 2 + fragments {
                        of_buffers.push(Keys { staged: 1, buffers: fewer, ahead: fewer - 1, ..plan });
                    }
                    for plan in of_buffers {
                        let first = plans.len();
                        plans.push(plan);
                        clusters(&plan, c.m.div_ceil(rows.into()), c.n.div_ceil(columns.into()), plans);
                        // Tiles of the next part fill the last round.
                        let alone = space.parts(tile).rest.is_empty();
                        let split = |plan: &Keys| tail::split(c, [rows, columns].map(u64::from), plan).filter(|_| alone);
                        let tails: Vec<Keys> = plans[first..].iter().filter_map(split).collect();
                        plans.extend(tails);
                    }
                }
            }
        }
    }
}
