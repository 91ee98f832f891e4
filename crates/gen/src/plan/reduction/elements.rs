//! Reductions of elements in memory: of a tensor (standalone reduction), and of the sums of splits of k.

use tilewright_ir::affine::Affine;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{COL, ROW};

/// Steps along the columns of a standalone reduction that a thread adds up in one block, before it adds the block to its total.
pub const ELEMENT_BLOCK: i64 = 256;

/// Threads of a work-group that reads results from memory element by element.
pub const ELEMENT_THREADS: u32 = 256;

/// Most bytes of one load.
const LOAD_BYTES: u32 = 16;

/// The registers of a thread that one load each fills: neighbours in memory.
///
/// ```
/// use tilewright_gen::plan::{Plan, of_elements};
/// # use tilewright_problem::{Operator, Reduce};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Reduce::new(Scalar::F32, &[1024, 1024], &[1]).op(Operator::Sum).build()?.into(), &target)?;
/// let plan = of_elements(space.contraction(&Plan::default()), target.units);
/// let derived = space.resolve(&plan)?.spec;
/// // f32 elements are read in vectors of 16 bytes.
/// let loads = derived.element_loads(&derived.c);
/// assert_eq!((loads.width(), loads.shifted), (4, false));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementLoads {
    /// Registers of each load, in the order of their elements.
    pub runs: Vec<Vec<u32>>,
    /// Lines of columns do not start at multiples of a load's elements. So a row's columns are counted from the last multiple at or before its
    /// first column. Loads then begin at multiples, and only those at the ends of a line take elements one by one.
    pub shifted: bool,
}

/// Steps of a work-group that shares the columns with others, or has all of them.
///
/// ```
/// use tilewright_gen::plan::{Plan, of_elements};
/// # use tilewright_problem::{Operator, Reduce};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Reduce::new(Scalar::F32, &[1024, 1000], &[1]).op(Operator::Sum).build()?.into(), &target)?;
/// let plan = of_elements(space.contraction(&Plan::default()), target.units);
/// let derived = space.resolve(&plan)?.spec;
/// // Some steps end beyond the last of 1000 columns, which are no multiple of a tile's.
/// let steps = derived.element_steps(&derived.c);
/// assert!(steps.ragged() && steps.all[1] == steps.whole[1] + 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElementSteps {
    /// Steps that may lie beyond a line's first element: at the start of the first share.
    pub first: u64,
    /// Steps up to the first that may lie beyond a line's last element, in any share but the last, and in that.
    pub whole: [u64; 2],
    /// All steps.
    pub all: [u64; 2],
}

impl ElementLoads {
    /// Of elements that threads hold as the layout says (thread, register to row, column).
    pub fn new(layout: &Layout, c: &Contraction) -> ElementLoads {
        let most = LOAD_BYTES / c.a.scalar.bytes().max(1);
        let (threads, registers) = (layout.extent(Axis::Thread), layout.extent(Axis::Register) as u32);
        let place = |axis: usize, register: u32| layout.at([Axis::Row, Axis::Col][axis], &[(Axis::Register, register.into())]);
        let aligned = |axis: usize, width: u32| {
            let extent = [c.m, c.n][axis];
            let align = c.a.align / c.a.scalar.bytes().max(1);
            let allowed = c.read_view().vector_width([ROW, COL][axis], width, align);
            allowed >= width && extent.is_multiple_of(width.into())
        };
        let multiples = |axis: usize, width: u32| {
            let to = [Axis::Row, Axis::Col][axis];
            (0..threads).all(|t| layout.at(to, &[(Axis::Thread, t as i64)]).rem_euclid(width.into()) == 0)
        };
        for width in [16, 8, 4, 2].into_iter().filter(|width| *width <= most) {
            let ways = [(1, false), (0, false), (1, true)].into_iter();
            let legal = |(axis, shifted): &(usize, bool)| {
                // The view first: threads are many.
                let begins = if *shifted { shifts(c, width) } else { aligned(*axis, width) };
                begins && multiples(*axis, width)
            };
            for (axis, shifted) in ways.filter(legal) {
                let mut sorted: Vec<u32> = (0..registers).collect();
                sorted.sort_by_cached_key(|r| (place(1 - axis, *r), place(axis, *r)));
                let runs: Vec<Vec<u32>> = sorted.chunks(width as usize).map(<[u32]>::to_vec).collect();
                let adjacent = |run: &Vec<u32>| {
                    let first = (place(1 - axis, run[0]), place(axis, run[0]));
                    let next = |(i, r): (i64, &u32)| (place(1 - axis, *r), place(axis, *r)) == (first.0, first.1 + i);
                    run.len() == width as usize && first.1.rem_euclid(width.into()) == 0 && (0..).zip(run).all(next)
                };
                if runs.iter().all(adjacent) {
                    return ElementLoads { runs, shifted };
                }
            }
        }
        ElementLoads { runs: (0..registers).map(|register| vec![register]).collect(), shifted: false }
    }
    /// Elements of a load.
    pub fn width(&self) -> u32 {
        self.runs.first().map_or(1, |run| run.len() as u32)
    }
}

/// Whether lines of columns, wherever each starts, can be read in vectors that begin at multiples of so many elements.
fn shifts(c: &Contraction, width: u32) -> bool {
    let view = c.read_view();
    view.access.bounds.is_empty()
        && view.stride(COL) == Some(1)
        && c.a.align.is_multiple_of(width * c.a.scalar.bytes())
        && c.n >= u64::from(width)
}

impl ElementSteps {
    /// Of tiles of so many columns, in shares of so many.
    pub fn new(c: &Contraction, loads: &ElementLoads, tile: u64, share: u64) -> ElementSteps {
        let beyond = if loads.shifted { u64::from(loads.width()) - 1 } else { 0 };
        let (tile, share) = (tile.max(1), share.max(1));
        let last = c.n - (c.n.div_ceil(share).max(1) - 1) * share;
        let (first, steps) = (u64::from(loads.shifted), share / tile);
        let whole = last / tile;
        let whole = if c.n <= share { whole.max(first) } else { whole };
        ElementSteps { first, whole: [steps, whole], all: [steps, (last + beyond).div_ceil(tile).max(whole)] }
    }
    /// Some steps take elements one by one, or count some that are not there.
    pub fn ragged(&self) -> bool {
        self.first > 0 || self.all[1] > self.whole[1]
    }
}

/// A tile of results that a work-group takes from memory, element by element: the split-k reduction's.
///
/// ```
/// use tilewright_gen::plan::{ELEMENT_THREADS, ElementTile, Plan};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // The kernel that adds the splits of k: 256 threads with 8 elements each.
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 4096).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, 4 splits, split-sum=1")?;
/// let derived = space.resolve(&plan)?.spec;
/// let tile = ElementTile::new(&derived.c);
/// assert_eq!((tile.size, tile.size[0] * tile.size[1]), ([32, 64], ELEMENT_THREADS * 8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementTile {
    /// (thread, register) to (row, column).
    pub layout: Layout,
    /// Rows and columns.
    pub size: [u32; 2],
}

impl ElementTile {
    /// Of a contraction's result: threads next to each other take elements that are.
    pub fn new(c: &Contraction) -> ElementTile {
        let (lanes, registers) = (64, 8);
        let others = ELEMENT_THREADS / lanes;
        let (thread, register) = (Affine::axis(0), Affine::axis(1));
        let fast = thread.digit_of(1, Some(lanes.into()));
        let slow = thread.digit_of(lanes.into(), None).plus(&register, others.into());
        let [(rows, m), (columns, n)] = match c.c.view.stride(COL) {
            Some(1) => [(slow, others * registers), (fast, lanes)],
            _ => [(fast, lanes), (slow, others * registers)],
        };
        let from = [(Axis::Thread, ELEMENT_THREADS.into()), (Axis::Register, registers.into())];
        ElementTile { layout: Layout::new(&from, &[(Axis::Row, rows), (Axis::Col, columns)]), size: [m, n] }
    }
}
