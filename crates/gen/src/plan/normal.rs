//! Canonical plans: keys that have no effect are set to one value, so that equal kernels have equal plans.

use super::grid::{load_tile, thread_grid};
use super::keys::{ELEMENTS, HALO, Key, Keys, OWN_LOADS, PRODUCT, Shape, Side};
use super::reach;
use super::tail;
use super::tile::{Along, k_step};
use super::value::Plan;
use std::collections::BTreeSet;
use tilewright_ir::mma::{Mma, Reads};
use tilewright_problem::Extent;
use tilewright_problem::contraction::{Contraction, LaunchExtents, ResultSource};

/// Owners of micro tiles along m and n: threads, or waves of a matrix unit.
#[derive(Clone, Copy)]
struct Owners {
    m: u32,
    n: u32,
}

impl Owners {
    const fn along(self, side: Side) -> u32 {
        match side {
            Side::A => self.m,
            Side::B => self.n,
        }
    }
}

impl Keys {
    /// The same kernel with every key that has no effect at a canonical value, as far as that shows without a
    /// contraction.
    pub(super) fn normal(&self) -> Keys {
        let mut p = *self;
        let [a, b] = Side::ALL.map(|side| Shape::new(self, side));
        for key in self.all_changed() {
            let shape = if matches!(key, Key::B(_)) { &b } else { &a };
            if !(key.info().read)(shape) {
                p.reset(key);
            }
        }
        // With roles the producer warps run ahead as far as buffers are free.
        if self.has_pipeline() && self.producers != 0 {
            p.ahead = self.buffers.max(2) - 1;
        }
        let owners = p.owners();
        Side::ALL.into_iter().for_each(|side| p.normal_side(side, owners));
        p
    }

    fn owners(&self) -> Option<Owners> {
        let lanes = self.family().lanes;
        let grid = self.threads.is_multiple_of(lanes).then(|| thread_grid(self.threads / lanes, self.skew)).flatten();
        grid.map(|(m, n)| Owners { m, n })
    }

    /// The same that fetches no further ahead than a work-group has k-tiles, into no more buffers than these fill. Work-groups that go on to
    /// another tile fetch its k-tiles as well.
    pub fn within_sum(&self, c: &Contraction) -> Keys {
        if c.source != ResultSource::Product || self.ahead == 0 || self.persistent > 0 {
            return *self;
        }
        let parts = [self.k_tile, self.splits].map(|part| u64::from(part.max(1)));
        // A start within a k-tile makes one more of them.
        let tiles = c.depth().div_ceil(parts[0]).div_ceil(parts[1]).max(1) + u64::from(self.stagger);
        let tiles = u32::try_from(tiles).unwrap_or(u32::MAX);
        let (in_flight, pipeline) = (self.family().in_flight, self.has_pipeline());
        // Unfinished math of the previous k-tile holds another buffer.
        let fragments_ahead = if in_flight < tiles { self.fragments_ahead } else { 0 };
        let held = 1 + if pipeline { fragments_ahead.min(in_flight) } else { 0 };
        let loads = pipeline && self.producers > 0;
        let ahead = if loads { self.ahead } else { self.ahead.min(tiles) };
        let needed = if loads { held + 1 } else { ahead.saturating_add(held) };
        let most = if pipeline { needed.max(tiles) } else { needed };
        let buffers = self.buffers.min(most);
        let ahead = if loads { ahead.min(buffers.max(2) - 1) } else { ahead };
        Keys { ahead, buffers, fragments_ahead, ..*self }
    }

    /// Sets a key to its default.
    fn reset(&mut self, key: Key) {
        self.set(key, key.info().default);
    }

    /// Sets keys that kernels of the kind do not read to their defaults.
    fn only(self, kind: u8) -> Keys {
        let mut kept = self;
        self.all_changed().filter(|key| key.info().kinds & kind == 0).for_each(|key| kept.reset(key));
        kept
    }

    /// The same without what concerns tiles in shared memory. A k-tile is all of k at most.
    fn of_own(&self, c: &Contraction) -> Keys {
        let k = u32::try_from(c.k).unwrap_or(u32::MAX).max(1);
        let own = self.only(OWN_LOADS).but(|keys| {
            keys.a.source = 0;
            keys.k_tile = keys.k_tile.min(k);
        });
        own.normal()
    }

    fn normal_side(&mut self, side: Side, owners: Option<Owners>) {
        let family = self.family();
        let owners = owners.map(|owners| owners.along(side));
        let block = if side == Side::A { family.block.rows } else { family.block.columns };
        let (k_tile, loaders, producers) = (self.k_tile, self.threads, self.producers);
        let o = self.of_mut(side);
        let fragment = o.fragment_width();
        let vectors = family.reads == Reads::Vectors;
        if o.copy == HALO {
            return;
        }
        // VEW speaks only for GLW and FRW where they are 0.
        if o.load_width != 0 {
            o.vector = 1;
        }
        if vectors {
            o.read_width = if fragment == o.vector { 0 } else { fragment };
        }
        if o.load_width == 1 && o.vector == 1 {
            o.load_width = 0;
        }
        // A thread with one vector has nothing to interleave, and neither has one thread with all of them.
        if vectors && (o.micro <= fragment || owners == Some(1)) {
            o.interleave_micro = 0;
        }
        // With producer warps the load tile depends on the wave size, which a plan does not know.
        if producers != 0 {
            return;
        }
        let macro_tile = owners.and_then(|t| t.checked_mul(o.micro)).and_then(|t| t.checked_mul(block));
        let Some(macro_tile) = macro_tile else { return };
        let tile = |along_k| load_tile(macro_tile, k_tile, loaders, along_k);
        let Some((row, k)) = tile(o.load_along_k == 1) else { return };
        if tile(true) == tile(false) {
            o.load_along_k = 0;
        }
        if (row == 1 || row == macro_tile) && (k == 1 || k == k_tile) {
            o.interleave_loads = 0;
        }
        if row == macro_tile || k == k_tile {
            o.load_rows_first = 0;
        }
    }
}

impl Plan {
    /// The same kernel with keys that have no effect on this contraction at a canonical value as well.
    pub fn normalised(&self, c: &Contraction) -> Plan {
        match c.source {
            // Strips would be made of splits.
            ResultSource::Elements(_) => Keys { order: 1, ..self.only(ELEMENTS) }.normal().into(),
            ResultSource::OwnOperands(_) => self.of_own(c).into(),
            ResultSource::Product => self.of_product(c).into(),
        }
    }
}

impl Keys {
    /// The same where tiles of both operands are shared.
    fn of_product(&self, c: &Contraction) -> Keys {
        let mut p = self.only(PRODUCT).within_sum(c).normal();
        if c.reductions().next().is_none() {
            (p.finish, p.carry) = (0, 0);
        }
        if c.operand_values.is_empty() {
            p.reduce_operands = 0;
        }
        if !entries_may_alternate(c) {
            p.entries_fastest = 0;
        }
        let Some(owners) = p.owners() else { return p };
        let family = p.family();
        let c = &*p.orient(c);
        let tile = |owners: u32, micro: u32, block: u32| (u64::from(owners) * u64::from(micro)).max(1) * u64::from(block);
        let (tile_m, tile_n) = (tile(owners.m, p.a.micro, family.block.rows), tile(owners.n, p.b.micro, family.block.columns));
        let full =
            p.tail_splits > 1 && tail::first_split_row(c, [tile_m, tile_n], [p.a.cluster, p.b.cluster], p.persistent).is_none();
        if full {
            p.tail_splits = 1;
        }
        if p.has_panels() {
            return p;
        }
        let run_time = [Extent::M, Extent::N].into_iter().any(|extent| c.varies(extent));
        let whole = c.pairs().is_none_or(|pairs| pairs.columns.is_multiple_of(pairs.granule));
        if !run_time && whole && c.m.is_multiple_of(tile_m) && c.n.is_multiple_of(tile_n) {
            p.predicate = 0;
        }
        let row = c.instruction(family.unit);
        let depths = |row: &Mma| Mma::all(family.unit, row.input).map(|row| row.step).collect::<BTreeSet<u32>>();
        if row.is_none_or(|row| depths(row).iter().filter(|step| p.k_tile.is_multiple_of(**step)).count() < 2) {
            p.deep_instruction = 0;
        }
        if row.is_some_and(|row| p.k_tile <= k_step(row, c.splits(row))) {
            p.unroll_k = 0;
        }
        // A single row or column of tiles has only one order. Groups have a tile each at least.
        let single = |extent, lines, tile| lines <= tile && !c.grouped(extent);
        if single(Extent::M, c.m, tile_m) || single(Extent::N, c.n, tile_n) {
            p.order = 1;
            p.strip_groups = Keys::default().strip_groups;
        }
        for (o, tensor) in [(&mut p.a, &c.a), (&mut p.b, &c.b)] {
            let across = o.source == 2 || reach::contiguous(tensor, o.vector) == Some(Along::Row);
            if o.load_width == o.vector && across {
                o.load_width = 0;
            }
        }
        p
    }
}

/// Returns whether work-groups may take the same tile of all batch entries before the next tile (`GBI`). They may not for a dynamic number of
/// entries, for groups of one matrix, and for kernels without shared tiles.
pub(super) fn entries_may_alternate(c: &Contraction) -> bool {
    let matrices = match &c.launch {
        LaunchExtents::Fixed => true,
        LaunchExtents::AtLaunch(x) => !x.g,
        LaunchExtents::Grouped(_) => false,
    };
    c.g > 1 && c.source == ResultSource::Product && matrices
}
