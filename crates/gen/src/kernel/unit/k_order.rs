//! Which k the lanes of a wave read from swizzled panels, where they read fragments element by element.
//!
//! The products of a sum may be added in any order. So lanes may read any k of a step, as long as both operands have the same. In
//! the instruction's own order, lanes of one access conflict in banks in two cases:
//!
//! - doubles where lines run along k: half a wave reads 32 bytes of each of 4 rows. Two of these rows have the same two chunks in
//!   swapped places;
//! - doubles and TF32 where lines run along rows: the same with 4 lines.
//!
//! The swizzle xors the number of a 16-byte chunk with the number of its line in a pattern of 8. So in any order that is linear
//! over bits the distance between two elements is one xor. The bits are chosen such that no access conflicts in either direction.

use crate::kernel::tile::shared::{Apart, SharedTile};
use tilewright_ir::{BinaryOp, Builder, ExprId, Scalar};

/// The k of an element: the xor of what each bit of the instruction's own k stands for, within a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KOrder {
    /// Two bits of the lane, then those of register and step.
    bits: [u32; 4],
    /// So many k are read in another order, and follow on those before them.
    period: u32,
}

impl KOrder {
    /// As the instruction has it.
    pub const NATURAL: KOrder = KOrder { bits: [1, 2, 4, 8], period: 8 };

    /// The order for swizzled panels of elements of this size, whose k-tiles are multiples of 16 doubles.
    pub const fn of_panels(bytes: u32) -> KOrder {
        match bytes {
            4 => KOrder { bits: [3, 6, 1, 8], period: 8 },
            8 => KOrder { bits: [3, 12, 1, 4], period: 16 },
            _ => KOrder::NATURAL,
        }
    }

    /// What this k of the instruction is, below the period.
    pub const fn k(self, own: u32) -> u32 {
        let (mut k, mut i) = (0, 0);
        while i < self.bits.len() {
            if own >> i & 1 == 1 {
                k ^= self.bits[i];
            }
            i += 1;
        }
        k
    }

    /// The k that a lane reads first, whose own is `digit`, below 4.
    pub fn of_lane(self, b: &mut Builder, digit: ExprId) -> ExprId {
        if self.bits[..2] == KOrder::NATURAL.bits[..2] {
            return digit;
        }
        let (low, high) = (b.value(digit % 2 * self.bits[0]), b.value(digit / 2 * self.bits[1]));
        b.binary(BinaryOp::Xor, low, high)
    }

    /// From the position of a lane's first element to the one `own` (of the instruction) and `step` steps of `depth` further along k, in a block of
    /// rows.
    pub fn further(self, b: &mut Builder, shared: &SharedTile, from: LanePlace, step: ExprId, depth: u32, own: u32) -> ExprId {
        let LanePlace { lane, block: Apart { bits, elements } } = from;
        let stride = shared.strides().1;
        if shared.panels.is_none() {
            return b.value(lane + (own * stride + step * (depth * stride)));
        }
        let differ = shared.position(0, self.k(own % self.period)) as u32 ^ bits;
        let mut distance = b.int(differ.into(), Scalar::I32);
        let per_period = (self.period / depth).max(1);
        for bit in 0..per_period.trailing_zeros() {
            let digit = b.value(step / (1 << bit) % 2);
            let of_digit = b.value(digit * shared.position(0, self.k(depth << bit)));
            distance = b.binary(BinaryOp::Xor, distance, of_digit);
        }
        let at = b.binary(BinaryOp::Xor, lane, distance);
        let periods = b.value(step / per_period * (depth / self.period).max(1) + own / self.period);
        let at = shared.steps(b, at, periods, self.period);
        b.value(at + elements)
    }
}

/// Where a lane's first element is in the first block of rows, and the block in which it reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LanePlace {
    pub lane: ExprId,
    pub block: Apart,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::Swizzle;
    use tilewright_ir::layout::{Axis, Layout, bank_cycles};

    /// Every element of a period is read once, and no access takes longer than its bytes.
    #[test]
    fn lanes_read_all_k_without_bank_conflicts() {
        for (scalar, bytes) in [(Scalar::F32, 4), (Scalar::F64, 8)] {
            let order = KOrder::of_panels(bytes);
            let mut all: Vec<u32> = (0..order.period).map(|own| order.k(own)).collect();
            all.sort_unstable();
            assert_eq!(all, (0..order.period).collect::<Vec<_>>());
            for along in [Axis::K, Axis::Row] {
                let panels = Layout::panels(64, 32, along, Swizzle::B128, scalar);
                for own in (0..order.period).step_by(4) {
                    let lanes: Vec<(usize, i64)> = (0..32)
                        .map(|lane| {
                            let k = order.k(own + lane % 4);
                            let point = [(Axis::Row, i64::from(lane / 4)), (Axis::K, k.into())];
                            (lane as usize, panels.at(Axis::Position, &point) * i64::from(bytes))
                        })
                        .collect();
                    let (cycles, least) = bank_cycles(&lanes, bytes as usize);
                    assert_eq!(cycles, least, "{scalar} along {along:?}, k {own}");
                }
            }
        }
    }
}
