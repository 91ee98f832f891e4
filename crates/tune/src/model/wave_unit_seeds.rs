//! Plans with matrix instructions of single waves worth a look before anything is known.

use super::seed_keys::{along_k, layout, splits, tiled};
use super::tail;
use tilewright_gen::plan::{Keys, OperandKeys, padded_rows, thread_grid};
use tilewright_gen::space::Space;
use tilewright_ir::mma::{FAMILIES, Family, Mma, Owner, UnitBlock};
use tilewright_ir::{ASYNC_COPY_BYTES, Dialect, MatrixType};
use tilewright_problem::contraction::{Contraction, Operand, Tensor};
use tilewright_problem::view::{COL, ROW};

/// Tilings under the schedules that suit them; empty where the device or the types have no such unit. They need not be legal.
pub(super) fn seeds(space: &Space, form: u32, c: &Contraction) -> Vec<Keys> {
    let features = &space.target().features;
    let Some(family) = FAMILIES.iter().find(|f| f.owner == Owner::Wave && f.unit.available(features)) else { return Vec::new() };
    // Lanes hold neighbours along n: turned so that these are neighbours in memory.
    let plain = Keys { unit: family.number, form, ..Keys::default() };
    let by_row = c.c.view.stride(COL) != Some(1) && c.c.view.stride(ROW) == Some(1);
    let ordered = if by_row { plain.but(Keys::turn) } else { plain };
    let mut plans = of_order(space, ordered, c, family);
    // And with weights as operand A, because lanes make its fragments anyway. Two words of a run of the other operand are then
    // neighbours among the registers of a B fragment. For a result with few rows an instruction computes 8 of them, not 16.
    if ordered.orient(c).b.has_weights() {
        plans.extend(of_order(space, ordered.but(Keys::turn), c, family).into_iter().filter(|plan| plan.a.copy == 1));
    }
    plans
}

/// Those in the orientation of these keys.
fn of_order(space: &Space, ordered: Keys, c: &Contraction, family: &'static Family) -> Vec<Keys> {
    let (features, unit) = (&space.target().features, family.unit);
    let Some(input) = c.instruction(unit).map(|row| row.input) else { return Vec::new() };
    let Some(row) = Mma::all(unit, input).find(|row| row.takes(features)) else { return Vec::new() };
    let turned = ordered.orient(c);
    let operand = |operand| OperandKeys { pad: padding(row.input), ..layout(turned.tensor(operand), 16) };
    let base = Keys {
        a: operand(Operand::A),
        b: operand(Operand::B),
        predicate: 1,
        unroll_k: 1,
        store_width: if family.run == 0 { 4 } else { family.run },
        fences: u32::from(space.target().dialect == Dialect::Hip),
        split_sum: u32::from(!space.env().allow_atomics),
        ..ordered
    };
    let mut plans = Vec::new();
    for tile in tiles(family).iter().copied().chain(narrow(family, &turned)) {
        let [waves, skew, mic_a, mic_b] = tile;
        let Some((along_m, along_n)) = thread_grid(waves, skew) else { continue };
        let UnitBlock { rows, columns } = family.block;
        let (tile_m, tile_n) = (u64::from(along_m * mic_a * rows), u64::from(along_n * mic_b * columns));
        if tile_m >= 2 * turned.m.next_power_of_two().max(16) || tile_n >= 2 * turned.n.next_power_of_two().max(16) {
            continue;
        }
        let shape = tiled(base, waves * family.lanes, skew, [mic_a, mic_b]);
        let tiles = turned.g * turned.m.div_ceil(tile_m) * turned.n.div_ceil(tile_n);
        // Two k-steps at least, so that fragments of the second are read under the math of the first.
        let least = (64 / row.input.bytes()).max(2 * row.step);
        for depth in [least, 2 * least] {
            let wanted = u64::from(space.target().units) * 2;
            for splits in splits(tiles, wanted, turned.k.div_ceil(depth.into())) {
                let plan = Keys { k_tile: depth, splits, strip_groups: 64 * splits, ..shape };
                let first = plans.len();
                schedules(space, &turned, &plan, &mut plans);
                // As persistent work-groups, one or two for each compute unit, whose last tiles are split.
                let stay = [1, 2].map(|beside| beside * space.target().units);
                let split =
                    |keys: &Keys| stay.map(|persistent| tail::split(&turned, [tile_m, tile_n], &Keys { persistent, ..*keys }));
                let tails: Vec<Keys> = plans[first..].iter().flat_map(split).flatten().collect();
                plans.extend(tails);
            }
        }
        plans.extend(raw(space, &turned, &shape, tiles));
    }
    let deeper = |other: &Mma| {
        let of = |row: &Mma| (row.shape.m, row.shape.n, row.generations, row.halves);
        of(other) == of(row) && other.step > row.step
    };
    if Mma::all(unit, input).any(deeper) {
        let copied = plans.iter().filter(|plan| plan.producers > 0).copied();
        let deep: Vec<Keys> = copied.map(|plan| Keys { deep_instruction: 1, ..plan }).collect();
        plans.extend(deep);
    }
    plans
}

/// Copies that bring weights of 8 or 4 bits without conversion, for lanes to convert. They run far ahead, since they take few
/// bytes, in k-tiles of long lines.
fn raw(space: &Space, c: &Contraction, plan: &Keys, tiles: u64) -> Vec<Keys> {
    let lines = [&c.a, &c.b].iter().all(|tensor| along_k(&tensor.view));
    let Some(weights) = [&c.a, &c.b].into_iter().find(|tensor| tensor.has_weights()).filter(|_| lines) else {
        return Vec::new();
    };
    if !space.target().features.async_copy {
        return Vec::new();
    }
    let copied = |keys: OperandKeys, tensor: &Tensor| {
        // Padding after rows of 16-bit operands: lanes that read neighbours in eight rows then use different banks.
        let pad = if tensor.factor.is_some() { 1 } else { 2 * weights.scalar.numbers() };
        OperandKeys { load_width: tensor.scalar.numbers_in(ASYNC_COPY_BYTES[2]), pad, copy: 1, ..keys }
    };
    let copied = Keys { a: copied(plan.a, &c.a), b: copied(plan.b, &c.b), store_point: 1, ..*plan };
    let mut plans = Vec::new();
    for k_tile in [64, 128, 256] {
        for splits in splits(tiles, u64::from(space.target().units) * 2, c.k.div_ceil(k_tile.into())) {
            let plan = Keys { k_tile, splits, strip_groups: 64 * splits, ..copied };
            let stages = [2, 3, 5].into_iter().flat_map(|ahead| [0, 1].map(|fragments| [ahead, fragments]));
            let staged = |[ahead, fragments_ahead]: [u32; 2]| Keys { ahead, buffers: ahead + 1, fragments_ahead, ..plan };
            plans.extend(stages.map(staged));
        }
    }
    plans
}

/// Padding after rows in shared memory, in units of 16 bytes. Lanes that read the fragments of 8 rows then use different banks.
const fn padding(input: MatrixType) -> u32 {
    // Half a wave at a time reads doubles: of 4 rows, and of 4 neighbours.
    if input.bytes() == 8 { 2 } else { 1 }
}

/// Waves, skew of their grid, and micro tiles in instructions along m and n.
type Tile = [u32; 4];

/// Of instructions of 16 x 16.
const SQUARE_TILES: [Tile; 9] = [
    [4, 10, 4, 4],
    [4, 10, 4, 2],
    [4, 10, 2, 4],
    [4, 10, 2, 2],
    [4, 10, 8, 4],
    [4, 10, 4, 8],
    [4, 10, 1, 1],
    [2, 10, 2, 2],
    [1, 10, 2, 2],
];

/// Of instructions of 16 x 8.
const NARROW_TILES: [Tile; 13] = [
    [4, 10, 4, 8],
    [4, 10, 4, 4],
    [4, 10, 2, 8],
    [4, 10, 2, 4],
    [4, 10, 2, 2],
    [4, 10, 1, 4],
    [8, 10, 4, 8],
    [8, 11, 4, 8],
    [8, 10, 2, 8],
    [8, 11, 4, 4],
    [2, 10, 2, 4],
    [2, 11, 1, 2],
    [1, 10, 1, 4],
];

const fn tiles(family: &Family) -> &'static [Tile] {
    match family.block {
        UnitBlock { columns: 16, .. } => &SQUARE_TILES,
        _ => &NARROW_TILES,
    }
}

/// The same where one instruction or two have all columns of the result, or all rows. Tiles are no wider than that, and waves lie
/// along the other side.
fn narrow(family: &Family, c: &Contraction) -> Vec<Tile> {
    let few = |extent: u64, block: u32| u32::try_from(extent.div_ceil(block.into())).unwrap_or(u32::MAX);
    let (rows, columns) = (few(c.m, family.block.rows), few(c.n, family.block.columns));
    let mut tiles = Vec::new();
    for (waves, many) in [1u32, 2, 4, 8].into_iter().flat_map(|waves| [1u32, 2, 4, 6, 8].map(|many| (waves, many))) {
        let square = waves.ilog2().div_ceil(2) + 10;
        if matches!(columns, 1 | 2) || c.a.has_weights() && matches!(columns, 4 | 8) {
            tiles.push([waves, square - waves.ilog2(), many, columns]);
        }
        if matches!(rows, 1 | 2) {
            tiles.push([waves, square, rows, many]);
        }
    }
    tiles
}

/// Copies or loads that run ahead, in place, from padded copies, and from tensors copied with padded rows.
fn schedules(space: &Space, c: &Contraction, plan: &Keys, plans: &mut Vec<Keys>) {
    let asynchronous = space.target().features.async_copy;
    // Vectors of rows that can be padded come along their channels.
    let padded = |keys: OperandKeys, tensor: &Tensor| match padded_rows(tensor) {
        Ok(_) => OperandKeys { source: 3, load_along_k: 1, load_rows_first: 0, ..keys },
        Err(_) => keys,
    };
    let padded = Keys { a: padded(plan.a, &c.a), b: padded(plan.b, &c.b), ..*plan };
    let copies = [*plan, plan.but(|keys| keys.both(|o| o.source = 1)), padded];
    let ring = |ahead: u32, copy: u32, fragments_ahead: u32, source: &Keys| {
        let ahead = Keys { ahead, buffers: ahead + 1, store_point: 1, fragments_ahead, ..*source };
        ahead.but(|keys| keys.both(|o| o.copy = copy))
    };
    for source in &copies[..if padded == *plan { 2 } else { 3 }] {
        for fragments in [0, 1] {
            plans.push(ring(1, 0, fragments, source));
            if c.a.factor.or(c.b.factor).is_some() {
                // What registers convert flies in registers: several k-tiles of it at once.
                plans.extend([2, 3, 4].map(|ahead| Keys { buffers: 2, ..ring(ahead, 0, fragments, source) }));
            }
            if asynchronous {
                plans.extend([2, 3].map(|ahead| ring(ahead, 1, fragments, source)));
            }
            if space.target().features.bulk_copy {
                // Asked for by a wave that does nothing else.
                plans.push(Keys { producers: 1, ..ring(3, 2, fragments, source) });
            }
        }
    }
}
