//! Results that are read from memory to be reduced: those of a tensor by itself, and the sums of splits of k.

use tilewright_ir::affine::Affine;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{COL, ROW};

/// Steps along the columns of a reduction by itself whose sums a thread adds up before they join those of the steps before.
pub const ELEMENT_BLOCK: i64 = 256;

/// Threads of a work-group that takes results from memory, element by element.
pub const ELEMENT_THREADS: u32 = 256;

/// Bytes that one load brings at most.
const LOAD_BYTES: u32 = 16;

/// The registers of a thread that one load each fills: neighbours in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementLoads {
    /// Registers of each load, in the order of their elements.
    pub runs: Vec<Vec<u32>>,
}

impl ElementLoads {
    /// Of elements that threads hold as the layout says (thread, register to row, column).
    pub fn new(layout: &Layout, c: &Contraction) -> ElementLoads {
        let most = LOAD_BYTES / c.a.scalar.bytes().max(1);
        let (threads, registers) = (layout.extent(Axis::Thread), layout.extent(Axis::Register) as u32);
        let place = |axis: usize, register: u32| layout.at([Axis::Row, Axis::Col][axis], &[(Axis::Register, register.into())]);
        let legal = |axis: usize, width: u32| {
            let (to, extent) = [(Axis::Row, c.m), (Axis::Col, c.n)][axis];
            let align = c.a.align / c.a.scalar.bytes().max(1);
            let allowed = c.elements.as_ref().map_or(1, |view| view.vector_width([ROW, COL][axis], width, align));
            let multiple = |t: u64| layout.at(to, &[(Axis::Thread, t as i64)]).rem_euclid(width.into()) == 0;
            allowed >= width && extent.is_multiple_of(width.into()) && (0..threads).all(multiple)
        };
        for width in [16, 8, 4, 2].into_iter().filter(|width| *width <= most) {
            for axis in [1, 0].into_iter().filter(|axis| legal(*axis, width)) {
                let mut sorted: Vec<u32> = (0..registers).collect();
                sorted.sort_by_key(|r| (place(1 - axis, *r), place(axis, *r)));
                let runs: Vec<Vec<u32>> = sorted.chunks(width as usize).map(<[u32]>::to_vec).collect();
                let adjacent = |run: &Vec<u32>| {
                    let first = (place(1 - axis, run[0]), place(axis, run[0]));
                    let next = |(i, r): (i64, &u32)| (place(1 - axis, *r), place(axis, *r)) == (first.0, first.1 + i);
                    run.len() == width as usize && first.1.rem_euclid(width.into()) == 0 && (0..).zip(run).all(next)
                };
                if runs.iter().all(adjacent) {
                    return ElementLoads { runs };
                }
            }
        }
        ElementLoads { runs: (0..registers).map(|register| vec![register]).collect() }
    }
    /// Elements of a load.
    pub fn width(&self) -> u32 {
        self.runs.first().map_or(1, |run| run.len() as u32)
    }
}

/// A tile of results that a work-group takes from memory, element by element: the split-k reduction's.
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
