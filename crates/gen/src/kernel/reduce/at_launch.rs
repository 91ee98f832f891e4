//! Counts of values and of their parts where extents are known only at launch. Values lie as in the launch's result, parts in
//! workspace as for the largest result.

use super::Reducer;
use crate::kernel::arguments::Arguments;
use crate::program::Binding;
use tilewright_ir::*;
use tilewright_problem::Extent;
use tilewright_problem::contraction::Contraction;

/// Batch entries, rows and columns of the launch; `None` where all launches have the largest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtLaunch([Option<ExprId>; 3]);

impl AtLaunch {
    /// Of a kernel's arguments.
    pub fn declare(b: &mut Builder, args: &mut Arguments, c: &Contraction) -> AtLaunch {
        AtLaunch([Extent::G, Extent::M, Extent::N].map(|extent| {
            let named = c.dynamic_extent(extent)?;
            let size = args.scalar(b, named.name(), Scalar::I32, "of this launch", Binding::Extent(named));
            Some(b.value(size.cast(Scalar::I64)))
        }))
    }
    /// Rows (0) or columns (1).
    pub fn along(&self, axis: usize) -> Option<ExprId> {
        self.0[axis + 1]
    }
}

/// One after the other.
fn product(b: &mut Builder, fixed: u64, others: impl IntoIterator<Item = ExprId>) -> ExprId {
    let mut all: Option<ExprId> = None;
    for other in others {
        all = Some(all.map_or(other, |all| b.value(all * other)));
    }
    match all {
        None => b.int(fixed as i64, Scalar::I64),
        Some(all) if fixed == 1 => all,
        Some(all) => b.value(all * (fixed as i64)),
    }
}

impl Reducer<'_> {
    /// Batch entries that each have a part of a value, where launches differ in them.
    fn entries_reduced(&self) -> Option<ExprId> {
        self.at_launch.0[0].filter(|_| self.partials.outer > 1)
    }
    /// Elements of each value, where launches differ in them.
    pub fn count_at_launch(&self, b: &mut Builder) -> Option<ExprId> {
        let (whole, extents, mut fixed, mut all) = (self.op.over.whole(), self.extents(), 1, Vec::new());
        for axis in 0..2 {
            match self.at_launch.along(axis).filter(|_| whole[axis]) {
                Some(extent) => all.push(extent),
                None => fixed *= extents[axis],
            }
        }
        match self.entries_reduced() {
            Some(entries) => all.push(entries),
            None => fixed *= self.partials.outer,
        }
        (!all.is_empty()).then(|| product(b, fixed, all))
    }
    /// Values of a batch entry in the result.
    pub fn values(&self, b: &mut Builder) -> ExprId {
        let (p, whole) = (&self.partials, self.op.over.whole());
        let mut fixed = p.values / (p.inner[0] * p.inner[1]).max(1);
        let mut all = Vec::new();
        for axis in (0..2).filter(|axis| !whole[*axis]) {
            // Blocks are those of an axis that all launches have alike.
            if let Some(extent) = self.at_launch.along(axis) {
                let e = self.shape.extents;
                fixed /= [e.m, e.n][axis].max(1);
                all.push(extent);
            }
        }
        product(b, fixed, all)
    }
    /// Values of the result.
    pub fn results(&self, b: &mut Builder) -> ExprId {
        let values = self.values(b);
        match self.at_launch.0[0].filter(|_| self.partials.outer <= 1) {
            Some(entries) => b.value(entries * values),
            None => b.value(values * (self.partials.kept_entries() as i64)),
        }
    }
    /// Parts of each value.
    pub fn parts(&self, b: &mut Builder) -> ExprId {
        let (p, whole, mut fixed, mut all) = (&self.partials, self.op.over.whole(), self.partials.parts, Vec::new());
        for axis in (0..2).filter(|axis| whole[*axis]) {
            if let Some(extent) = self.at_launch.along(axis) {
                let size = p.size[axis].max(1) as i64;
                fixed /= p.tiles[axis].max(1);
                all.push(b.value((extent + (size - 1)) / size));
            }
        }
        if let Some(entries) = self.entries_reduced() {
            fixed /= p.outer;
            all.push(entries);
        }
        product(b, fixed, all)
    }
    /// Condition that the launch has the tile of partial value `part`. Partial values are consecutive, `within` for each batch entry.
    /// `None` if every launch has the tile.
    pub fn part_exists(&self, b: &mut Builder, part: ExprId, within: i64) -> Option<ExprId> {
        let (p, whole) = (&self.partials, self.op.over.whole());
        let mut exists = self.entries_reduced().map(|entries| b.value((part / within).lt(entries)));
        let tile = [(p.shares * p.tiles[1]) as i64, p.shares as i64];
        for axis in (0..2).filter(|axis| whole[*axis]) {
            if let Some(extent) = self.at_launch.along(axis) {
                let number = part % within / tile[axis] % (p.tiles[axis].max(1) as i64);
                let first = b.value((number * (p.size[axis] as i64)).lt(extent));
                exists = b.and_opt(exists, Some(first));
            }
        }
        exists
    }
}
