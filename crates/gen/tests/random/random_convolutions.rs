//! Random convolutions in three directions, by every unit, on the emulator with every check on, waves interleaved at random; and how often
//! what makes convolutions awkward is among them.
//!
//! `TILEWRIGHT_RANDOM_PAIRS` sets how many, `TILEWRIGHT_RANDOM_SEED` where the seeds start.

use crate::support;

use support::Run;
use tilewright_check::random::{Pair, Recipe};
use tilewright_gen::plan::{Side, Transport};
use tilewright_gen::space::Space;
use tilewright_problem::{Direction, Problem};

const FEATURES: [&str; 26] = [
    "forward",
    "input gradients",
    "filter gradients",
    "multiply-adds",
    "mma.sync",
    "wgmma",
    "MFMA",
    "one dimension",
    "three dimensions",
    "channels last",
    "groups",
    "depthwise",
    "stride beyond the filter",
    "dilation with stride",
    "unlike padding",
    "windows in padding alone",
    "tiles that wrap rows",
    "tiles that wrap images",
    "tiles with an edge",
    "empty phases",
    "phases in one launch",
    "several groups in one product",
    "split sums",
    "load waves",
    "windows in im2col mode",
    "copies in workspace",
];

/// Pixels of an image that the rows of a product are, or that a filter's gradient sums over.
fn pixels(conv: &tilewright_problem::Conv) -> Vec<u64> {
    match conv.direction {
        Direction::BackwardData => conv.input.iter().zip(&conv.stride).map(|(size, stride)| size.div_ceil(*stride)).collect(),
        _ => conv.output(),
    }
}

fn features(space: &Space, pair: &Pair) -> [bool; FEATURES.len()] {
    let Problem::Conv(conv) = &pair.problem else { panic!("{pair}") };
    let resolved = space.resolve(&pair.plan).unwrap_or_else(|e| panic!("{pair}: {e}"));
    let (t, s) = (&resolved.spec.tiling, &resolved.spec.schedule);
    let gradient_of_filter = conv.direction == Direction::BackwardWeight;
    let axes = || (0..conv.dims()).map(|i| (conv.stride[i], conv.dilation[i], conv.filter[i]));
    let form = pair.plan.form;
    let (rows, columns) = t.macro_tile();
    let c = &resolved.spec.c;
    let tile = u64::from(if gradient_of_filter { t.k_tile } else { [rows, columns][usize::from(t.swapped)] });
    let (row, image) = (pixels(conv).last().copied().unwrap_or(1), pixels(conv).iter().product::<u64>());
    let padding = |i: usize| conv.pad_begin[i].max(conv.pad_end[i]) > (conv.filter[i] - 1) * conv.dilation[i];
    let [forward, data, weight] = Direction::ALL.map(|direction| conv.direction == direction);
    let [fma, mma, wgmma, mfma] = [0, 1, 2, 3].map(|unit| t.unit.family().number == unit);
    [
        forward,
        data,
        weight,
        fma,
        mma,
        wgmma,
        mfma,
        conv.dims() == 1,
        conv.dims() == 3,
        conv.layout == tilewright_problem::Layout::Nhwc,
        conv.groups > 1,
        conv.groups > 1 && conv.groups == conv.c && conv.groups == conv.k,
        axes().any(|(stride, _, filter)| stride > filter),
        axes().any(|(stride, dilation, filter)| stride > 1 && dilation > 1 && filter > 1),
        conv.pad_begin != conv.pad_end,
        (0..conv.dims()).any(padding),
        conv.dims() > 1 && row > 1 && image > row && tile > row,
        conv.n > 1 && (form > 0 || weight) && tile > image,
        !(c.m.is_multiple_of(u64::from(rows)) && c.n.is_multiple_of(u64::from(columns))),
        space.parts(&pair.plan).iter().any(|part| part.k == 0),
        resolved.joined().count() > 0,
        matches!(form, 2..=4),
        t.split_k.ways > 1,
        s.roles.is_some(),
        s.copies.iter().any(|copy| matches!(copy, Transport::Bulk(tile) if tile.map.im2col.is_some())),
        Side::ALL.into_iter().any(|side| pair.plan.of(side).source > 0),
    ]
}

#[test]
fn random_convolutions_verify() {
    Run {
        devices: &["emu:sm_90a", "emu:gfx942", "emu:sm_80", "emu:sm_90a"],
        recipe: Recipe::convolutions(),
        count: 1500,
        interleave: true,
    }
    .all_pass_with(features, &FEATURES);
}
