//! Where the elements of an instruction's matrices are, tabulated: what lane, register and element add to their coordinates.

use std::sync::Arc;
use tilewright_ir::Mma;
use tilewright_ir::layout::Axis;
use tilewright_ir::mma::Fragment;

/// Of one matrix.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    lanes: Vec<[u16; 2]>,
    registers: Vec<[u16; 2]>,
    elements: Vec<[u16; 2]>,
}

impl Places {
    fn of(f: &Fragment, to: [Axis; 2], lanes: u32, registers: u32) -> Places {
        let table = |count: u32, at: &dyn Fn(Axis, u32) -> u32| (0..count).map(|i| to.map(|axis| at(axis, i) as u16)).collect();
        Places {
            lanes: table(lanes, &|axis, lane| f.at(axis, lane, 0, 0)),
            registers: table(registers, &|axis, register| f.at(axis, 0, register, 0)),
            elements: table(f.elements, &|axis, element| f.at(axis, 0, 0, element)),
        }
    }
    /// Row and column (or k) of an element.
    #[inline]
    pub(crate) fn at(&self, lane: usize, register: usize, element: usize) -> (usize, usize) {
        let (l, r, e) = (self.lanes[lane], self.registers[register], self.elements[element]);
        (usize::from(l[0] + r[0] + e[0]), usize::from(l[1] + r[1] + e[1]))
    }
    /// Registers of a lane, elements of a register.
    pub(crate) const fn held(&self) -> (usize, usize) {
        (self.registers.len(), self.elements.len())
    }
}

/// Of the matrices of an instruction.
#[derive(Clone, Debug)]
pub(crate) struct Maps {
    pub(crate) a: Places,
    pub(crate) b: Places,
    pub(crate) c: Places,
}

impl Maps {
    /// For an instruction of so many columns.
    pub(crate) fn new(row: &Mma, columns: u32) -> Arc<Maps> {
        let lanes = row.lanes();
        Arc::new(Maps {
            a: Places::of(&row.a, [Axis::Row, Axis::K], lanes, row.a.registers),
            b: Places::of(&row.b, [Axis::Row, Axis::K], lanes, row.b.registers),
            c: Places::of(&row.c, [Axis::Row, Axis::Col], lanes, row.accumulator_registers(columns)),
        })
    }
}
