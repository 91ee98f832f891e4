//! Loads of operands straight to the registers of each thread, for contractions with a separate operand A for each column (`BIM4`).
//!
//! A tile of operand A serves one thread or a few threads, so shared memory would gain nothing. A thread reads places at constant distances
//! from its first element, one for each row and k of its k-tile. Pairs (row, k) with the same distance are one place and are loaded once:
//! neighbouring pixels share most of their windows. Caches serve the rest.

use serde::Serialize;
use std::collections::HashMap;
use tilewright_ir::affine::{self, Affine, Group};
use tilewright_problem::contraction::Tensor;
use tilewright_problem::view::{COL, G, ROW, View};

/// Most bytes of one load.
pub(super) const LOAD_BYTES: u32 = 16;
/// Coordinates whose digits are compared one by one.
const MOST_COMPARED: u64 = 4096;

/// Loads of a thread for one k-tile of an operand.
///
/// ```
/// use tilewright_gen::plan::{Constraint, Plan};
/// # use tilewright_problem::Problem;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Target;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// // A depthwise convolution of 16 channels. A thread has 4 pixels of 8 channels.
/// let problem = "conv_fwd_nhwc_n2_g16_c16_k16_in7x8_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws0_f16";
/// let space = Space::new(&Problem::parse(problem)?, &target)?;
/// let keys = "A_MIC4__B_MIC8__C_MAC32_UNR9_BIM4";
/// let plan: Plan = Constraint::parse(keys)?.apply(&Plan::default()).into();
/// let derived = space.resolve(&plan)?.spec;
/// let loads = derived.schedule.copies[0].own().expect("own loads");
/// // 4 neighbouring pixels under 3 x 3 taps see 6 x 3 pixels, each loaded once.
/// assert_eq!((loads.width, loads.places.len()), (8, 18));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct OwnLoads {
    /// Elements of a load.
    pub width: u32,
    /// Every load.
    pub places: Vec<Place>,
    /// For each element (of a row or column, or of both; k fastest) its load and its lane in the load.
    of: Vec<(usize, u32)>,
    k_tile: u32,
}

/// Distances of a load from the thread's first element of the k-tile.
///
/// ```
/// use tilewright_gen::plan::{Constraint, Place, Plan};
/// # use tilewright_problem::Problem;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::Target;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let problem = "conv_fwd_nhwc_n2_g16_c16_k16_in7x8_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws0_f16";
/// let space = Space::new(&Problem::parse(problem)?, &target)?;
/// let keys = "A_MIC4__B_MIC8__C_MAC32_UNR9_BIM4";
/// let plan: Plan = Constraint::parse(keys)?.apply(&Plan::default()).into();
/// let derived = space.resolve(&plan)?.spec;
/// let places = &derived.schedule.copies[0].own().expect("own loads").places;
/// // The first two loads are neighbouring pixels, 16 channels apart, with conditions along both dimensions.
/// let [Place { offset: first, bounds }, Place { offset: second, .. }] = &places[..2] else { panic!("18 loads") };
/// assert_eq!((second - first, bounds.len()), (16, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Place {
    /// In memory, in elements.
    pub offset: i64,
    /// In the value of each condition of the view.
    pub bounds: Vec<i64>,
}

/// Coordinate with uneven distances between elements.
pub(super) enum Uneven {
    Rows,
    K,
}

/// Vectors of a thread along the rows or columns of an operand.
#[derive(Clone, Copy)]
pub(super) struct Vectors {
    pub count: u32,
    /// Rows or columns from one to the next.
    pub step: u32,
}

impl OwnLoads {
    /// Vectors of `width` for a thread's rows or columns, from multiples of as many on, and for `k_tile` k.
    pub(super) fn new(
        view: &View,
        width: u32,
        Vectors { count: vectors, step }: Vectors,
        k_tile: u32,
    ) -> Result<OwnLoads, Uneven> {
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
    pub(super) fn side_by_side(self, tensor: &Tensor, columns: u32) -> OwnLoads {
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

/// Distances of a form's values at `count` coordinates in a row from the value at the first. `None` unless they are the same from
/// every multiple of `count` on, whatever the other coordinates are.
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
