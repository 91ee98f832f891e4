//! Groups of rows (or columns) with ends in device memory: the group of a tile. Groups of terms: the k range of a group.
//!
//! Tiles of T rows are numbered through all groups, with gaps: the tiles of group g begin at number floor(begin(g) / T) + g. This start
//! rises from group to group by at least the group's number of tiles, ceil(rows / T) <= floor(end / T) + 1 - floor(begin / T). So no two
//! groups share a number, and no count is necessary before the launch. A search over the ends finds the group of a number. Numbers past
//! the rows of a group have no tile.
//!
//! A persistent work-group that skips a number runs a tile ahead of the work-groups that share its operands. The operands are
//! then read from memory again. Therefore each work-group counts the tiles at its start if shared memory has room for the table.
//! Then every number has a tile.

use tilewright_ir::*;

/// The groups of a contraction.
#[derive(Clone, Copy)]
pub(crate) struct Groups {
    /// The end of each group.
    pub ends: ArgId,
    /// Number of groups.
    pub count: u64,
    /// Axis of the groups, rows (0) or columns (1); `lines` is its extent.
    pub axis: usize,
    pub lines: u64,
    /// Work-groups skip numbers without a tile. Where no barrier may be in a branch, they compute values that no thread stores.
    pub skip: bool,
    /// The number of each group's first tile, followed by the number of all tiles.
    pub table: Option<SharedId>,
}

/// Batch entries that are sums over ranges of k.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// The end of each group.
    pub ends: ArgId,
    /// Terms of all of them.
    pub k: u64,
}

impl Terms {
    /// The first term of a batch entry, and the end of its terms. Whatever memory contains, no term after the last of all is
    /// read.
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
    /// Fills the table, all threads of the work-group together: each counts the tiles, of `size` rows or columns, before some groups.
    pub fn count_tiles(&self, b: &mut Builder, local: ExprId, threads: u32, size: u32) {
        let Some(table) = self.table else { return };
        let entries = self.count as u32 + 1;
        b.comment("how many tiles there are before each group");
        for first in (0..entries).step_by(threads as usize) {
            let group = b.bind("group", local + first);
            let exists = b.value(group.lt(i64::from(entries)));
            b.if_then(exists, |b| {
                let zero = b.int(0, Scalar::I32);
                let [tiles, before] = ["tiles", "before"].map(|name| b.declare(name, zero));
                b.for_range("g", 0, group, Unroll::No, |b, g| {
                    let end = b.load("group_end", Base::Buffer(self.ends), g, 1, None);
                    let end = b.bind("last_end", end.min(self.lines as i64));
                    let begin = b.get(before);
                    let sum = b.get(tiles);
                    b.set(tiles, sum + ((end - begin).max(0) + i64::from(size - 1)) / i64::from(size));
                    b.set(before, end);
                });
                let sum = b.get(tiles);
                b.store(Base::Shared(table), group, sum, None);
            });
        }
        b.barrier();
    }

    /// Tiles of all groups, one at least, where they are counted.
    pub fn tiles(&self, b: &mut Builder) -> Option<ExprId> {
        let all = b.load("all_tiles", Base::Shared(self.table?), self.count as i64, 1, None);
        Some(b.value(all.max(1)))
    }

    /// The number of a group's first tile: counted, or such that each group before has room.
    fn first_number(&self, b: &mut Builder, group: ExprId, begin: ExprId, size: i64) -> Ex {
        match self.table {
            Some(table) => b.load("first_tile", Base::Shared(table), group, 1, None).into(),
            None => begin / size + group,
        }
    }

    /// The tile with this number, of so many rows or columns.
    pub fn find(&self, b: &mut Builder, number: ExprId, size: u32) -> Found {
        let (count, size) = (self.count as i64, i64::from(size));
        let group = b.declare("group", Ex::int(0, Scalar::I32));
        // The last group whose first number is no greater, bit by bit.
        for bit in (0..count.max(1).ilog2() + u32::from(count > 1)).rev() {
            let next = b.get(group);
            let next = b.bind("next_group", next + (1i64 << bit));
            let before = b.value(next.min(count) - 1);
            let begin = match self.table {
                Some(_) => before,
                None => b.load("next_begin", Base::Buffer(self.ends), before, 1, None),
            };
            let first = b.value(next.min(count));
            let first = self.first_number(b, first, begin, size);
            let reached = b.value(next.lt(count).and(first.le(number)));
            let now = b.get(group);
            b.set(group, reached.select(next, now));
        }
        let group = b.get(group);
        let group = b.bind("group_of_tile", group);
        let first = b.value((group - 1).max(0));
        let before = b.load("end_before", Base::Buffer(self.ends), first, 1, None);
        let begin = b.bind("group_begin", group.gt(0).select(before, 0));
        let end = b.load("group_end", Base::Buffer(self.ends), group, 1, None);
        // Whatever memory contains, no row after the last is written.
        let end = b.bind("last_end", end.min(self.lines as i64));
        let first = self.first_number(b, group, begin, size);
        let start = b.bind("group_start", begin + (number - first) * size);
        Found { group, start, end, exists: b.bind("has_rows", start.lt(end)) }
    }
}
