//! Factors of which each thread loads what it multiplies itself, straight to its registers: those of a contraction in which every
//! column has a left factor of its own (`BIM4`).
//!
//! A tile of such a factor serves one thread alone, or few, so that nothing is gained by shared memory. What a thread reads for its rows and
//! the k of a k-tile are places at constant distances from the first, and pairs of a row and a k that have the same distance are one
//! place, which is loaded once: pixels side by side share most of their windows. Caches serve the rest.

use super::grid::gcd;
use super::keys::{Chiral, Common, Key};
use super::materialised;
use super::operand::{paddable, source};
use super::reach;
use super::refusal::Refusal;
use super::tile::{Along, OperandTiling, Source};
use super::transport::Transport;
use super::value::Plan;
use serde::Serialize;
use std::collections::HashMap;
use tilewright_ir::affine::{self, Affine, Group};
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::view::{COL, G, ROW, View};

/// Bytes that one load brings at most.
const LOAD_BYTES: u32 = 16;
/// Coordinates whose digits are compared one by one.
const MOST_COMPARED: u64 = 4096;

/// What a thread loads of a factor for a k-tile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct OwnLoads {
    /// Elements of a load.
    pub width: u32,
    /// Every load.
    pub places: Vec<Place>,
    /// Which of them brings an element (of a row or column, or of both), and in which lane: k of the k-tile fastest.
    of: Vec<(usize, u32)>,
    k_tile: u32,
}

/// Distances of a load from the thread's first element of the k-tile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Place {
    /// In memory, in elements.
    pub offset: i64,
    /// In the value of each condition of the view.
    pub bounds: Vec<i64>,
}

/// Coordinates along which elements lie unevenly.
enum Uneven {
    Rows,
    K,
}

impl OwnLoads {
    /// Vectors of `width` for `vectors` rows, or `vectors` times as many columns, from multiples of as many on, and `k_tile` k.
    fn new(view: &View, width: u32, (vectors, step): (u32, u32), k_tile: u32) -> Result<OwnLoads, Uneven> {
        let along = |axis: usize, count: u32| -> Option<Vec<Vec<i64>>> {
            let forms = std::iter::once(&view.access.offset).chain(view.access.bounds.iter().map(|bound| &bound.value));
            forms.map(|form| distances(form, axis, count, &view.extent)).collect()
        };
        let rows = along(ROW, vectors * step).ok_or(Uneven::Rows)?;
        let depths = along(COL, k_tile).ok_or(Uneven::K)?;
        let (mut places, mut of, mut known) = (Vec::new(), Vec::new(), HashMap::new());
        for (vector, lane) in (0..vectors).flat_map(|vector| (0..width).map(move |lane| (vector, lane))) {
            for k in 0..k_tile {
                let mut all = rows.iter().zip(&depths).map(|(row, depth)| row[(vector * step) as usize] + depth[k as usize]);
                let place = (all.next().unwrap_or_default(), all.collect::<Vec<i64>>());
                let number = *known.entry(place.clone()).or_insert_with(|| {
                    places.push(Place { offset: place.0, bounds: place.1 });
                    places.len() - 1
                });
                of.push((number, lane));
            }
        }
        Ok(OwnLoads { width, places, of, k_tile })
    }

    /// Of single elements: the same in vectors where all of them lie side by side, as a filter's taps do group after group. `columns` are
    /// those of a thread.
    fn side_by_side(self, tensor: &Tensor, columns: u32) -> OwnLoads {
        let [g, rows, k] = tensor.view.extent;
        let bytes = tensor.scalar.bytes();
        let count = self.places.len() as u32;
        // Other k-tiles would begin anywhere.
        let whole = self.width == 1 && u64::from(self.k_tile) == k && tensor.view.access.bounds.is_empty();
        let first = self.places.iter().map(|place| place.offset).min().unwrap_or_default();
        let mut offsets: Vec<i64> = self.places.iter().map(|place| place.offset - first).collect();
        let lanes = offsets.clone();
        offsets.sort_unstable();
        let start = Group { axis: ROW, width: columns.into(), extent: &[g, rows, 1] }.multiple(&tensor.view.access.offset);
        let align = i64::from(tensor.align.min(LOAD_BYTES) / bytes);
        // The alignment is a power of two, and so is what divides it.
        let width = [start, first, count.into()].into_iter().fold(align, affine::gcd).max(1) as u32;
        if !whole || width == 1 || !(0..i64::from(count)).eq(offsets) {
            return self;
        }
        let places = (0..count / width).map(|i| Place { offset: first + i64::from(i * width), bounds: Vec::new() }).collect();
        let of = self.of.iter().map(|(number, _)| (lanes[*number] as usize / width as usize, lanes[*number] as u32 % width));
        OwnLoads { width, places, of: of.collect(), k_tile: self.k_tile }
    }

    /// The load that brings an element at a k of the k-tile, and its lane there.
    pub fn at(&self, element: u32, k: u32) -> (usize, usize) {
        let (number, lane) = self.of.get((element * self.k_tile + k) as usize).copied().unwrap_or_default();
        (number, lane as usize)
    }
}

/// How far a form's value at each of `count` coordinates in a row is from that at the first, where it is the same from every multiple of
/// `count` on and whatever the others are.
fn distances(form: &Affine, axis: usize, count: u32, extent: &[u64; 3]) -> Option<Vec<i64>> {
    let width = u64::from(count);
    if let Some(slope) = (Group { axis, width: width as i64, extent }).slope(form) {
        return Some((0..i64::from(count)).map(|i| slope * i).collect());
    }
    // Digits of the coordinate alone.
    let terms: Vec<_> = form.terms.iter().filter(|(atom, _)| atom.uses(axis)).cloned().collect();
    let mixed = terms.iter().any(|(atom, _)| (G..=COL).any(|other| other != axis && atom.uses(other)));
    if mixed || extent[axis] > MOST_COMPARED || extent[axis] < width {
        return None;
    }
    let own = Affine { terms, constant: 0 };
    let at = |place: u64| {
        let mut point = [0; 3];
        point[axis] = place as i64;
        own.at(&point)
    };
    let from = |start: u64| (0..width).map(|i| at(start + i) - at(start)).collect::<Vec<i64>>();
    let first = from(0);
    (1..extent[axis] / width).all(|i| from(i * width) == first).then_some(first)
}

/// The tilings of both factors of a contraction whose columns have left factors of their own, and what threads load of them.
pub(super) fn derive(
    plan: &Plan,
    c: &Contraction,
    (along_m, along_n): (u32, u32),
) -> Result<[(OperandTiling, Transport); 2], Refusal> {
    let [mic_a, mic_b] = [Key::A(Chiral::Mic), Key::B(Chiral::Mic)];
    let unr = Key::C(Common::Unr);
    let (rows, columns, k_tile) = (plan.get(mic_a), plan.get(mic_b), plan.get(unr));
    let refuse = |key: Key, why: &'static str| Refusal::OwnLoads { key, value: plan.get(key), why };
    let tile = |mic: Key, micro: u32, threads: u32| {
        let tile = threads.checked_mul(micro).filter(|tile| *tile <= 1 << 16);
        tile.ok_or(Refusal::TileTooLarge { mic, micro, threads })
    };
    let (tile_m, tile_n) = (tile(mic_a, rows, along_m)?, tile(mic_b, columns, along_n)?);
    if !c.n.is_multiple_of(columns.into()) {
        return Err(refuse(mic_b, "it does not divide the groups"));
    }
    if columns * c.a.scalar.bytes() > LOAD_BYTES || reach::vector_width(&c.a, G, columns) < columns {
        return Err(refuse(mic_b, "it is no vector of neighbouring groups, of 16 bytes at most, that may be loaded at once"));
    }
    if !c.m.is_multiple_of(rows.into()) {
        return Err(refuse(mic_a, "it does not divide the rows"));
    }
    if !c.k.is_multiple_of(k_tile.into()) {
        return Err(refuse(unr, "it does not divide k; a larger one than k is all of it"));
    }
    let side = Key::B as fn(Chiral) -> Key;
    let from = source(plan, side);
    paddable(side, &c.b, from)?;
    let b = materialised(&c.b, from, tile_n);
    let width = gcd(columns, reach::vector_width(&b, ROW, (LOAD_BYTES / b.scalar.bytes()).max(1)));
    let loads = |tensor: &Tensor, width: u32, (mic, vectors, step): (Key, u32, u32)| {
        // Sums without terms read nothing.
        let depth = if c.k == 0 { 1 } else { k_tile };
        OwnLoads::new(&tensor.view, width, (vectors, step), depth).map_err(|uneven| match uneven {
            Uneven::Rows => refuse(mic, "a thread's rows are at uneven distances; use a divisor of a line of pixels, or 1"),
            Uneven::K => refuse(unr, "the k of a tile are at uneven distances; use all of k, a line of taps or pixels, or 1"),
        })
    };
    let of_a = loads(&c.a, columns, (mic_a, rows, 1))?;
    let of_b = loads(&b, width, (mic_b, columns / width, width))?.side_by_side(&b, columns);
    let a = tiling((rows, tile_m), (columns, 1), Source::InPlace);
    let b = tiling((columns, tile_n), (of_b.width, columns), from);
    Ok([(a, Transport::Own(of_a)), (b, Transport::Own(of_b))])
}

/// A factor that has no tile in shared memory, loaded in vectors of so many; results are stored from runs of `run`.
fn tiling((micro, macro_tile): (u32, u32), (load_width, run): (u32, u32), source: Source) -> OperandTiling {
    OperandTiling {
        micro,
        macro_tile,
        pad: 0,
        load_row: 1,
        load_k: 1,
        load_interleave: false,
        load_order: Along::K,
        load_width,
        load_along: Along::Row,
        store_width: 1,
        fragment_width: run,
        micro_interleave: false,
        shared_along: Along::Row,
        source,
        fragment_sets: 0,
        split: false,
    }
}
