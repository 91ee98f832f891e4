//! Plans with matrix instructions of single waves worth a look before anything is known.

use super::seed_keys::{along_k, layout, splits};
use tilewright_gen::plan::{Chiral, Common, Key, Keys, padded_rows, thread_grid};
use tilewright_gen::space::Space;
use tilewright_ir::mma::{FAMILIES, Family, Mma, Owner, UnitBlock};
use tilewright_ir::{ASYNC_COPY_BYTES, Dialect, MatrixType};
use tilewright_problem::contraction::{Contraction, Operand};
use tilewright_problem::view::{COL, ROW};

/// Tilings under the schedules that suit them; empty where the device or the types have no such unit. They need not be legal.
pub(super) fn seeds(space: &Space, form: u32, c: &Contraction) -> Vec<Keys> {
    let features = &space.target().features;
    let Some(family) = FAMILIES.iter().find(|f| f.owner == Owner::Wave && f.unit.available(features)) else { return Vec::new() };
    // Lanes hold neighbours along n: turned so that these are neighbours in memory.
    let swap = c.c.view.stride(COL) != Some(1) && c.c.view.stride(ROW) == Some(1);
    let mut plans = of_order(space, form, c, family, swap);
    // And with weights on the left, whose fragments lanes make anyway: two words of a run of the other operand are neighbours among the registers of a
    // right fragment, and of few rows of a result an instruction has 8, not 16.
    if c.oriented(swap, family.unit).b.has_weights() {
        plans.extend(of_order(space, form, c, family, !swap).into_iter().filter(|plan| plan.get(Key::A(Chiral::Acp)) == 1));
    }
    plans
}

/// Those of the product as it is, or of the transposed one.
fn of_order(space: &Space, form: u32, c: &Contraction, family: &'static Family, swap: bool) -> Vec<Keys> {
    let (features, unit) = (&space.target().features, family.unit);
    let Some(input) = c.instruction(unit).map(|row| row.input) else { return Vec::new() };
    let Some(row) = Mma::all(unit, input).find(|row| row.takes(features)) else { return Vec::new() };
    let turned = c.oriented(swap, unit);
    let base = Keys::default()
        .with_each([(Common::Uni, unit.family().number), (Common::Bim, form), (Common::Swp, u32::from(swap))])
        .with_each([(Common::Edg, 1), (Common::Ukl, 1)])
        .with(
            Key::C(Common::Cvw),
            match unit.family().run {
                0 => 4,
                run => run,
            },
        )
        .with(Key::C(Common::Hnt), u32::from(space.target().dialect == Dialect::Hip))
        .with(Key::C(Common::Sks), u32::from(!space.env().allow_atomics));
    let base = layout(base, Key::A, &turned, Operand::A, 16);
    let base = layout(base, Key::B, &turned, Operand::B, 16).with_both(Chiral::Pad, padding(row.input));
    let mut plans = Vec::new();
    for (waves, skew, mic_a, mic_b) in tiles(family).into_iter().chain(narrow(family, &turned)) {
        let Some((along_m, along_n)) = thread_grid(waves, skew) else { continue };
        let UnitBlock { rows, columns } = unit.family().block;
        let (tile_m, tile_n) = (u64::from(along_m * mic_a * rows), u64::from(along_n * mic_b * columns));
        if tile_m >= 2 * turned.m.next_power_of_two().max(16) || tile_n >= 2 * turned.n.next_power_of_two().max(16) {
            continue;
        }
        let shape = base
            .with(Key::C(Common::Mac), waves * unit.family().lanes)
            .with(Key::C(Common::Skw), skew)
            .with(Key::A(Chiral::Mic), mic_a)
            .with(Key::B(Chiral::Mic), mic_b);
        let tiles = turned.g * turned.m.div_ceil(tile_m) * turned.n.div_ceil(tile_n);
        // Two k-steps at least, so that fragments of the second are read under the math of the first.
        let least = (64 / row.input.bytes()).max(2 * row.step);
        for depth in [least, 2 * least] {
            let wanted = u64::from(space.target().units) * 2;
            for ways in splits(tiles, wanted, turned.k.div_ceil(depth.into())) {
                let plan =
                    shape.with(Key::C(Common::Unr), depth).with(Key::C(Common::Ice), ways).with(Key::C(Common::Naw), 64 * ways);
                schedules(space, &turned, &plan, &mut plans);
            }
        }
        plans.extend(raw(space, &turned, &shape, tiles));
    }
    plans
}

/// Copies that bring weights of 8 or 4 bits as memory has them, for lanes to convert: far ahead, since they take few bytes, in k-tiles of long lines.
fn raw(space: &Space, c: &Contraction, plan: &Keys, tiles: u64) -> Vec<Keys> {
    let sides = [(Key::A as fn(Chiral) -> Key, &c.a), (Key::B, &c.b)];
    let lines = sides.iter().all(|(_, tensor)| along_k(&tensor.view));
    let Some((_, weights)) = sides.iter().find(|(_, tensor)| tensor.has_weights()).filter(|_| lines) else {
        return Vec::new();
    };
    if !space.target().features.async_copy {
        return Vec::new();
    }
    let copied = sides.iter().fold(*plan, |plan, (side, tensor)| {
        // Padding after rows of 16-bit operands: lanes that read neighbours in eight rows then use different banks.
        let pad = if tensor.factor.is_some() { 1 } else { 2 * weights.scalar.numbers() };
        let vector = tensor.scalar.numbers_in(ASYNC_COPY_BYTES[2]);
        plan.with(side(Chiral::Glw), vector).with(side(Chiral::Pad), pad).with(side(Chiral::Acp), 1)
    });
    let mut plans = Vec::new();
    for depth in [64, 128, 256] {
        for ways in splits(tiles, u64::from(space.target().units) * 2, c.k.div_ceil(depth.into())) {
            let plan = copied.with_each([(Common::Unr, depth), (Common::Ice, ways), (Common::Naw, 64 * ways)]);
            let ring = |ahead: u32| plan.with_each([(Common::Pfg, ahead), (Common::Buf, ahead + 1), (Common::Stp, 1)]);
            plans.extend([2, 3, 5].into_iter().flat_map(|ahead| [0, 1].map(|fra| ring(ahead).with(Key::C(Common::Fra), fra))));
        }
    }
    plans
}

/// Padding after rows in shared memory, in units of 16 bytes. Lanes that read the fragments of 8 rows then use different banks.
const fn padding(input: MatrixType) -> u32 {
    // Half a wave at a time reads doubles: of 4 rows, and of 4 neighbours.
    if input.bytes() == 8 { 2 } else { 1 }
}

/// Waves, skew of their grid, and micro tiles in instructions.
fn tiles(family: &Family) -> Vec<(u32, u32, u32, u32)> {
    match family.block {
        UnitBlock { columns: 16, .. } => vec![
            (4, 10, 4, 4),
            (4, 10, 4, 2),
            (4, 10, 2, 4),
            (4, 10, 2, 2),
            (4, 10, 8, 4),
            (4, 10, 4, 8),
            (4, 10, 1, 1),
            (2, 10, 2, 2),
            (1, 10, 2, 2),
        ],
        _ => vec![
            (4, 10, 4, 8),
            (4, 10, 4, 4),
            (4, 10, 2, 8),
            (4, 10, 2, 4),
            (4, 10, 2, 2),
            (4, 10, 1, 4),
            (8, 10, 4, 8),
            (8, 11, 4, 8),
            (8, 10, 2, 8),
            (8, 11, 4, 4),
            (2, 10, 2, 4),
            (2, 11, 1, 2),
            (1, 10, 1, 4),
        ],
    }
}

/// The same where one instruction or two have all columns of the result, or all rows: tiles that are no wider, and waves along the other side.
fn narrow(family: &Family, c: &Contraction) -> Vec<(u32, u32, u32, u32)> {
    let few = |extent: u64, block: u32| u32::try_from(extent.div_ceil(block.into())).unwrap_or(u32::MAX);
    let (rows, columns) = (few(c.m, family.block.rows), few(c.n, family.block.columns));
    let mut tiles = Vec::new();
    for (waves, many) in [1u32, 2, 4, 8].into_iter().flat_map(|waves| [1u32, 2, 4, 6, 8].map(|many| (waves, many))) {
        let square = waves.ilog2().div_ceil(2) + 10;
        if matches!(columns, 1 | 2) || c.a.has_weights() && matches!(columns, 4 | 8) {
            tiles.push((waves, square - waves.ilog2(), many, columns));
        }
        if matches!(rows, 1 | 2) {
            tiles.push((waves, square, rows, many));
        }
    }
    tiles
}

/// Copies or loads that run ahead, in place, from padded copies, and from tensors copied with padded rows.
fn schedules(space: &Space, c: &Contraction, plan: &Keys, plans: &mut Vec<Keys>) {
    let asynchronous = space.target().features.async_copy;
    let rows = [&c.a, &c.b].map(|tensor| padded_rows(tensor).is_ok());
    // Vectors then come along their channels.
    let sides = [(Key::A as fn(Chiral) -> Key, rows[0]), (Key::B, rows[1])].into_iter().filter(|(_, padded)| *padded);
    let padded = sides.fold(*plan, |p, (side, _)| {
        [(Chiral::Wos, 3), (Chiral::Plu, 1), (Chiral::Lor, 0)].into_iter().fold(p, |p, (key, value)| p.with(side(key), value))
    });
    let copies = [*plan, plan.with_both(Chiral::Wos, 1), padded];
    let ring = |ahead: u32, copied: u32, fragments: u32, source: &Keys| {
        source
            .with_each([(Common::Pfg, ahead), (Common::Buf, ahead + 1), (Common::Stp, 1), (Common::Fra, fragments)])
            .with_both(Chiral::Acp, copied)
    };
    for source in &copies[..if rows == [false; 2] { 2 } else { 3 }] {
        for fragments in [0, 1] {
            plans.push(ring(1, 0, fragments, source));
            if c.a.factor.or(c.b.factor).is_some() {
                // What registers convert flies in registers: several k-tiles of it at once.
                plans.extend([2, 3, 4].map(|ahead| ring(ahead, 0, fragments, source).with(Key::C(Common::Buf), 2)));
            }
            if asynchronous {
                plans.extend([2, 3].map(|ahead| ring(ahead, 1, fragments, source)));
            }
            if space.target().features.bulk_copy {
                // Asked for by a wave that does nothing else.
                plans.push(ring(3, 2, fragments, source).with(Key::C(Common::Lwv), 1));
            }
        }
    }
}
