//! Which group of rows (or columns) a tile belongs to, where device memory says how many of them each group has; and which terms a group's sums have.
//!
//! Tiles of T rows are numbered through all groups with room to spare: those of group g begin at number floor(begin(g) / T) + g. That
//! rises from group to group by at least as many as the group has tiles, ceil(rows / T) <= floor(end / T) + 1 - floor(begin / T), so
//! no two groups share a number, and nothing has to be counted before the launch. A search over the ends finds the group of a number; numbers that are
//! beyond a group's rows have no tile.

use tilewright_ir::*;

/// The groups of a contraction.
#[derive(Clone, Copy)]
pub(crate) struct Groups {
    /// Where each ends.
    pub ends: ArgId,
    /// How many there are.
    pub count: u64,
    /// They are of rows (0) or columns (1), of which there are so many.
    pub axis: usize,
    pub lines: u64,
    /// Work-groups pass over numbers without a tile. Where no barrier may stand in a branch they compute what nobody stores.
    pub skip: bool,
}

/// Batch entries that are sums over ranges of k.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// Where each ends.
    pub ends: ArgId,
    /// Terms of all of them.
    pub k: u64,
}

impl Terms {
    /// The first term of a batch entry, and the one behind its last. Whatever memory says, none behind the last of all is read.
    pub fn of(&self, b: &mut Builder, g: ExprId, coord: Scalar) -> [ExprId; 2] {
        let before = b.value((g - 1).max(0));
        let before = b.load("terms_before", Base::Buffer(self.ends), before, 1, None);
        let end = b.load("terms_end", Base::Buffer(self.ends), g, 1, None);
        let begin = b.value(g.gt(0).select(before, 0).cast(coord).max(0));
        let end = b.value(end.cast(coord).min(self.k as i64));
        [b.bind("first_term", begin), b.bind("last_end", end)]
    }
}

/// A tile of a group (all `I32`).
pub(crate) struct Found {
    pub group: ExprId,
    /// First row or column of the tile, and the end of the group.
    pub start: ExprId,
    pub end: ExprId,
    /// False where no group has such a tile.
    pub exists: ExprId,
}

impl Groups {
    /// The tile with this number, of so many rows or columns.
    pub fn find(&self, b: &mut Builder, number: ExprId, size: u32) -> Found {
        let (count, size) = (self.count as i64, i64::from(size));
        let group = b.declare("group", Ex::int(0, Scalar::I32));
        // The last group whose first number is no greater, bit by bit.
        for bit in (0..count.max(1).ilog2() + u32::from(count > 1)).rev() {
            let next = b.get(group);
            let next = b.bind("next_group", next + (1i64 << bit));
            let before = b.value(next.min(count) - 1);
            let begin = b.load("next_begin", Base::Buffer(self.ends), before, 1, None);
            let reached = b.value(next.lt(count).and((begin / size + next).le(number)));
            let now = b.get(group);
            b.set(group, reached.select(next, now));
        }
        let group = b.get(group);
        let group = b.bind("group_of_tile", group);
        let first = b.value((group - 1).max(0));
        let before = b.load("end_before", Base::Buffer(self.ends), first, 1, None);
        let begin = b.bind("group_begin", group.gt(0).select(before, 0));
        let end = b.load("group_end", Base::Buffer(self.ends), group, 1, None);
        // Whatever memory says, nothing behind the last row is written.
        let end = b.bind("last_end", end.min(self.lines as i64));
        let start = b.bind("group_start", begin + (number - group - begin / size) * size);
        Found { group, start, end, exists: b.bind("has_rows", start.lt(end)) }
    }
}
