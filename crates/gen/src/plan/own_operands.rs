//! Legality and tilings of contractions with a separate operand A for each column (`BIM4`).

use super::frame::OperandFrame;
use super::grid::gcd;
use super::keys::{Chiral, Common, Key, Side};
use super::operand::{read, source};
use super::own_loads::{LOAD_BYTES, OwnLoads, Uneven, Vectors};
use super::reach;
use super::refusal::Refusal;
use super::tile::{Along, OperandTiling, Source};
use super::transport::{TiledOperand, Transport};
use super::value::Plan;
use std::borrow::Cow;
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{G, ROW};

/// Derives the tilings of both operands and the loads of a thread, for a contraction with a separate operand A for each column.
pub(super) fn derive<'c>(
    plan: &Plan,
    c: &'c Contraction,
    [a, b]: [&OperandFrame<'c>; 2],
) -> Result<[TiledOperand<'c>; 2], Refusal> {
    let [mic_a, mic_b] = Side::ALL.map(|side| side.key(Chiral::Mic));
    let unr = Key::C(Common::Unr);
    let (rows, columns, k_tile) = (plan.a.micro, plan.b.micro, plan.k_tile);
    let slices = slices(plan, c, k_tile)?;
    if plan.ahead > 1 {
        return Err(Refusal::OwnLoads {
            key: Key::C(Common::Pfg),
            value: plan.ahead,
            why: "registers hold one k-tile ahead; use PFG1",
        });
    }
    let refuse = |key: Key, why: &'static str| Refusal::OwnLoads { key, value: plan.get(key), why };
    let tile = |mic: Key, micro: u32, threads: u32| {
        let tile = threads.checked_mul(micro).filter(|tile| *tile <= 1 << 16);
        tile.ok_or(Refusal::TileTooLarge { mic, micro, threads })
    };
    let (tile_m, tile_n) = (tile(mic_a, rows, a.owners)?, tile(mic_b, columns, b.owners)?);
    if !c.n.is_multiple_of(columns.into()) {
        return Err(refuse(mic_b, "the width of a thread must divide the number of groups; use a divisor"));
    }
    if columns * c.a.scalar.bytes() > LOAD_BYTES || reach::vector_width(&c.a, G, columns) < columns {
        return Err(refuse(mic_b, "a thread loads its groups as one vector of at most 16 aligned bytes; use a smaller width"));
    }
    if !c.m.is_multiple_of(rows.into()) {
        return Err(refuse(mic_a, "the rows of a thread must divide m; use a divisor"));
    }
    if !c.k.is_multiple_of(k_tile.into()) {
        return Err(refuse(unr, "the k-tile must divide k; use a divisor of k, or k or more for all of it"));
    }
    let from = source(plan, b.side);
    let read = read(b, from, tile_n)?;
    let b = &*read;
    let width = gcd(columns, reach::vector_width(b, ROW, (LOAD_BYTES / b.scalar.bytes()).max(1)));
    let loads = |tensor: &Tensor, width: u32, mic: Key, rows: Vectors| {
        // Sums without terms read nothing.
        let depth = if c.k == 0 { 1 } else { k_tile / slices };
        OwnLoads::new(&tensor.view, width, rows, depth).map_err(|uneven| match uneven {
            Uneven::Rows => refuse(mic, "a thread's rows are at uneven distances in memory; use a divisor of an image row, or 1"),
            Uneven::K => {
                refuse(unr, "the k of a tile are at uneven distances in memory; use all of k, a row of taps or pixels, or 1")
            }
        })
    };
    let of_a = loads(&c.a, columns, mic_a, Vectors { count: rows, step: 1 })?;
    let of_b = loads(b, width, mic_b, Vectors { count: columns / width, step: width })?.side_by_side(b, columns);
    let a = OperandTiling { micro: rows, macro_tile: tile_m, load_width: columns, ..WITHOUT_TILE };
    let b = OperandTiling {
        micro: columns,
        macro_tile: tile_n,
        load_width: of_b.width,
        // Results are stored in runs of a thread's columns.
        fragment_width: columns,
        source: from,
        ..WITHOUT_TILE
    };
    let a = TiledOperand { tiling: a, copy: Transport::Own(of_a), read: Cow::Borrowed(&c.a) };
    Ok([a, TiledOperand { tiling: b, copy: Transport::Own(of_b), read }])
}

/// Number of slices of the work-group, each with a part of every k-tile.
fn slices(plan: &Plan, c: &Contraction, k_tile: u32) -> Result<u32, Refusal> {
    let (key, slices) = (Key::C(Common::Lsu), plan.slices);
    let refuse = |why| Err(Refusal::OwnLoads { key, value: slices, why });
    if !k_tile.is_multiple_of(slices) {
        return refuse("slices take equal parts of a k-tile; use a divisor of UNR");
    }
    if slices > 1 && plan.splits > 1 && plan.split_sum == 2 {
        return refuse("the reductions of slices and of a cluster (SKS2) use the same shared memory; use SKS1");
    }
    if slices > 1 && c.reductions().next().is_some() {
        return refuse("reductions read whole tiles, and each slice has only a part of the tile; use LSU1");
    }
    Ok(slices)
}

/// Tiling of an operand without a tile in shared memory.
const WITHOUT_TILE: OperandTiling = OperandTiling {
    micro: 1,
    macro_tile: 1,
    pad: 0,
    load_row: 1,
    load_k: 1,
    load_interleave: false,
    load_order: Along::K,
    load_width: 1,
    load_along: Along::Row,
    store_width: 1,
    fragment_width: 1,
    micro_interleave: false,
    shared_along: Along::Row,
    source: Source::InPlace,
    fragment_sets: 0,
    raw: None,
    split: None,
    shared_parts: 1,
};
