//! Canonical plans: keys that have no effect are set to one value, so that equal kernels have equal plans.

use super::grid::{load_tile, thread_grid};
use super::keys::{Chiral, Common, Key};
use super::reach;
use super::tile::{Along, k_step};
use super::transport::Transport;
use super::value::{Keys, Plan};
use tilewright_ir::Mma;
use tilewright_ir::mma::{FAMILIES, Family, Owner, Reads};
use tilewright_problem::Extent;
use tilewright_problem::contraction::{Contraction, LaunchExtents, ResultSource};

/// Keys of a factor that plans with a pipeline of transaction barriers read.
const PIPELINE_CHIRAL: [Chiral; 4] = [Chiral::Mic, Chiral::Wos, Chiral::Acp, Chiral::Clu];
/// Keys of the whole plan that they read.
const PIPELINE_COMMON: [Common; 24] = {
    use Common::*;
    [Unr, Gal, Ice, Iwi, Naw, Mac, Skw, Sks, Cvw, Cst, Mgp, Pfg, Buf, Fra, Lwv, Bim, Uni, Swp, Pst, Png, Rdf, Rdc, Rdk, Gbi]
};

/// Further keys of units with fragments in registers, and keys of threads that copy.
const UNIT_COMMON: [Common; 8] = {
    use Common::*;
    [Pun, Szt, Mad, Afi, Mia, Wva, Mvw, Ukl]
};
const UNIT_CHIRAL: [Chiral; 3] = [Chiral::Vew, Chiral::Frw, Chiral::Miw];
const COPY_CHIRAL: [Chiral; 5] = [Chiral::Plu, Chiral::Liw, Chiral::Lor, Chiral::Vew, Chiral::Glw];

/// Keys that standalone reductions read.
const ELEMENT_COMMON: [Common; 7] = {
    use Common::*;
    [Mac, Skw, Mia, Wva, Ice, Mgp, Rdf]
};
const ELEMENT_CHIRAL: [Chiral; 3] = [Chiral::Mic, Chiral::Miw, Chiral::Frw];

/// Keys that plans with operands in registers only (`BIM4`) read.
const OWN_COMMON: [Common; 18] = {
    use Common::*;
    [Unr, Gal, Ice, Iwi, Szt, Mad, Naw, Mac, Skw, Mia, Sks, Cvw, Wva, Mgp, Bim, Uni, Lsu, Pfg]
};

impl Keys {
    /// The same kernel with every key that has no effect at a canonical value, as far as that shows without a
    /// contraction.
    pub(super) fn normal(&self) -> Keys {
        let (mut p, family) = (*self, self.unit());
        let pipeline = Transport::need_pipeline(self);
        if Transport::uses_panels(self) {
            p.normal_panels(family);
        } else {
            p.reset(&[Common::Rga], &[]);
        }
        if !pipeline {
            p.reset(&[Common::Png], &[Chiral::Clu]);
        }
        match family.reads {
            Reads::Vectors => p.reset(&[Common::Swp], &[]),
            Reads::Fragments => {
                p.reset(&[Common::Pun, Common::Mad, Common::Mia, Common::Wva, Common::Mvw], &[Chiral::Miw, Chiral::Frw]);
                // Waves stage whole rows, which choose their own vectors; atomic additions go element by element.
                let atomic = p.common(Common::Ice) > 1 && p.common(Common::Sks) == 0;
                let rows = p.common(Common::Cst) == 1 && !atomic;
                p.reset(&[if rows { Common::Cvw } else { Common::Cst }], &[]);
            }
            Reads::Panels => {}
        }
        p.normal_common();
        let grid = p.owner_grid();
        for (side, threads) in [(Key::A as fn(Chiral) -> Key, grid.map(|g| g.0)), (Key::B, grid.map(|g| g.1))] {
            normal_side(&mut p, side, threads);
        }
        p
    }

    /// What the instructions that `UNI` names have in common.
    pub(super) fn unit(&self) -> &'static Family {
        Family::numbered(self.common(Common::Uni)).unwrap_or(&FAMILIES[0])
    }

    /// Threads, or waves of a matrix unit, along m and n.
    fn owner_grid(&self) -> Option<(u32, u32)> {
        let (mac, owners) = (self.common(Common::Mac), self.unit().lanes);
        mac.is_multiple_of(owners).then(|| thread_grid(mac / owners, self.common(Common::Skw))).flatten()
    }

    /// The same that fetches no further ahead than a work-group has k-tiles, into no more buffers than these fill. Work-groups that go on to
    /// another tile fetch its k-tiles as well.
    pub fn within_sum(&self, c: &Contraction) -> Keys {
        let at = |key: Common| self.common(key);
        if c.source != ResultSource::Product || at(Common::Pfg) == 0 || at(Common::Pst) > 0 {
            return *self;
        }
        let parts = [at(Common::Unr), at(Common::Ice)].map(|part| u64::from(part.max(1)));
        // A start within a k-tile makes one more of them.
        let tiles = c.depth().div_ceil(parts[0]).div_ceil(parts[1]).max(1) + u64::from(at(Common::Ufo));
        let tiles = u32::try_from(tiles).unwrap_or(u32::MAX);
        let (in_flight, pipeline) = (self.unit().in_flight, Transport::need_pipeline(self));
        // Unfinished math of the previous k-tile holds another buffer.
        let fra = if in_flight < tiles { at(Common::Fra) } else { 0 };
        let held = 1 + if pipeline { fra.min(in_flight) } else { 0 };
        let loads = pipeline && at(Common::Lwv) > 0;
        let ahead = if loads { at(Common::Pfg) } else { at(Common::Pfg).min(tiles) };
        let needed = if loads { held + 1 } else { ahead.saturating_add(held) };
        let most = if pipeline { needed.max(tiles) } else { needed };
        let buffers = at(Common::Buf).min(most);
        let ahead = if loads { ahead.min(buffers.max(2) - 1) } else { ahead };
        self.with_each([(Common::Pfg, ahead), (Common::Buf, buffers), (Common::Fra, fra)])
    }

    /// Sets keys of the whole plan, and of both factors, to their defaults.
    fn reset(&mut self, common: &[Common], chiral: &[Chiral]) {
        for key in common {
            self.set(Key::C(*key), key.info().default);
        }
        for key in chiral {
            self.set(Key::A(*key), key.info().default);
            self.set(Key::B(*key), key.info().default);
        }
    }

    /// The same without what only products read: threads, their tiles, shares of the columns.
    fn of_elements(mut self) -> Keys {
        for key in Common::ALL.into_iter().filter(|key| !ELEMENT_COMMON.contains(key)) {
            self.reset(&[key], &[]);
        }
        for key in Chiral::ALL.into_iter().filter(|key| !ELEMENT_CHIRAL.contains(key)) {
            self.reset(&[], &[key]);
        }
        // Strips would be made of splits.
        self.set(Key::C(Common::Gal), 1);
        self.normal()
    }

    /// The same without what concerns tiles in shared memory. A k-tile is all of k at most.
    fn of_own(mut self, c: &Contraction) -> Keys {
        for key in Common::ALL.into_iter().filter(|key| !OWN_COMMON.contains(key)) {
            self.reset(&[key], &[]);
        }
        for key in Chiral::ALL.into_iter().filter(|key| !matches!(key, Chiral::Mic | Chiral::Wos)) {
            self.reset(&[], &[key]);
        }
        self.set(Key::A(Chiral::Wos), 0);
        let k = u32::try_from(c.k).unwrap_or(u32::MAX).max(1);
        self.set(Key::C(Common::Unr), self.common(Common::Unr).min(k));
        self.normal()
    }

    fn normal_panels(&mut self, family: &Family) {
        let at = |p: &Keys, key: Common| p.common(key);
        // Instructions that read panels leave open what they read A through; other units have what they have with any other tile, and threads
        // that copy have their vectors.
        let unit_common: &[Common] = match family.reads {
            Reads::Vectors | Reads::Fragments => &UNIT_COMMON,
            Reads::Panels => &[Common::Rga],
        };
        let unit_chiral: &[Chiral] = if family.reads == Reads::Vectors { &UNIT_CHIRAL } else { &[] };
        let threads = !Transport::need_pipeline(self);
        let stored = |k: &Common| threads && *k == Common::Stp;
        let read = |k: &Common| PIPELINE_COMMON.contains(k) || stored(k) || unit_common.contains(k);
        for key in Common::ALL.into_iter().filter(|k| !read(k)) {
            self.reset(&[key], &[]);
        }
        for side in [Key::A as fn(Chiral) -> Key, Key::B] {
            let copies = threads || matches!(self.get(side(Chiral::Acp)), 1 | 4);
            let own = |k: &Chiral| unit_chiral.contains(k) || (copies && COPY_CHIRAL.contains(k));
            for key in Chiral::ALL.into_iter().filter(|k| !PIPELINE_CHIRAL.contains(k) && !own(k)) {
                self.set(side(key), key.info().default);
            }
        }
        if threads {
            self.reset(&[Common::Fra], &[]);
        }
        // A ping-pong team is one warpgroup, however many share a tile otherwise.
        if at(self, Common::Png) == 1 && family.owner == Owner::Warpgroup {
            self.reset(&[Common::Skw], &[]);
        }
        // Room for one work-group is there anyway.
        if at(self, Common::Mgp) == 1 {
            self.reset(&[Common::Mgp], &[]);
        }
        match family.owner {
            // Waves that stage results choose their own vectors.
            Owner::Wave | Owner::Warpgroup if at(self, Common::Cst) == 1 => self.reset(&[Common::Cvw], &[]),
            _ => {}
        }
        // With roles the producer warps run ahead as far as buffers are free.
        if at(self, Common::Lwv) != 0 && !threads {
            self.set(Key::C(Common::Pfg), at(self, Common::Buf).max(2) - 1);
        }
    }

    fn normal_common(&mut self) {
        let p = *self;
        let at = |key: Common| p.common(key);
        if at(Common::Ice) == 1 {
            self.reset(&[Common::Iwi, Common::Sks], &[]);
        } else if at(Common::Sks) == 0 {
            // Atomics add element by element.
            self.reset(&[Common::Cvw], &[]);
        }
        if at(Common::Pst) == 0 {
            self.reset(&[Common::Rdc], &[]);
        }
        if at(Common::Gal) != 3 {
            self.reset(&[Common::Naw], &[]);
        }
        // Where to store is a question only with fetched tiles, room to store them into while others are read, and waves
        // that have both the store and the math.
        let both_copied = Transport::all_copied(&p);
        if at(Common::Pfg) == 0 || at(Common::Buf) == 1 || both_copied || at(Common::Lwv) > 0 {
            self.reset(&[Common::Stp], &[]);
        }
        // Fences separate loads ahead from the math, and precede the tail of a carried schedule.
        let carried = at(Common::Buf) > 1 && at(Common::Fra) > 0;
        if at(Common::Pfg) == 0 || both_copied && !carried {
            self.reset(&[Common::Hnt], &[]);
        }
        // Fragments ahead and spread stores lay the k-steps out one by one anyway.
        if at(Common::Unr) <= Mma::least_step(p.unit().unit) || at(Common::Fra) > 0 || self.common(Common::Stp) == 2 {
            self.reset(&[Common::Ukl], &[]);
        }
    }
}

impl Plan {
    /// The same kernel with keys that have no effect on this contraction at a canonical value as well.
    pub fn normalised(&self, c: &Contraction) -> Plan {
        match c.source {
            ResultSource::Elements(_) => self.of_elements().into(),
            ResultSource::OwnOperands(_) => self.of_own(c).into(),
            ResultSource::Product => self.of_product(c).into(),
        }
    }
}

impl Keys {
    /// The same where tiles of both operands are shared.
    fn of_product(self, c: &Contraction) -> Keys {
        let mut p = self;
        // Other units' threads share what they multiply.
        p.reset(&[Common::Lsu], &[]);
        p = p.within_sum(c).normal();
        if c.reductions().next().is_none() {
            p.reset(&[Common::Rdf, Common::Rdc], &[]);
        }
        if c.operand_values.is_empty() {
            p.reset(&[Common::Rdk], &[]);
        }
        if !entries_may_alternate(c) {
            p.reset(&[Common::Gbi], &[]);
        }
        let Some((along_m, along_n)) = p.owner_grid().filter(|_| !Transport::uses_panels(&p)) else { return p };
        let unit = p.unit();
        let c = &*c.oriented(p.common(Common::Swp) == 1, unit.unit);
        let tile = |side: fn(Chiral) -> Key, threads: u32| (threads as u64 * p.get(side(Chiral::Mic)) as u64).max(1);
        let (tile_m, tile_n) =
            (tile(Key::A, along_m) * u64::from(unit.block.rows), tile(Key::B, along_n) * u64::from(unit.block.columns));
        let run_time = [Extent::M, Extent::N].into_iter().any(|extent| c.varies(extent));
        if !run_time && c.m.is_multiple_of(tile_m) && c.n.is_multiple_of(tile_n) {
            p.reset(&[Common::Edg], &[]);
        }
        if c.instruction(unit.unit).is_some_and(|row| p.common(Common::Unr) <= k_step(row, c.splits(row))) {
            p.reset(&[Common::Ukl], &[]);
        }
        // A single row or column of tiles has only one order. Groups have a tile each at least.
        let single = |extent, lines, tile| lines <= tile && !c.grouped(extent);
        if single(Extent::M, c.m, tile_m) || single(Extent::N, c.n, tile_n) {
            p.set(Key::C(Common::Gal), 1);
            p.reset(&[Common::Naw], &[]);
        }
        for (side, tensor) in [(Key::A as fn(Chiral) -> Key, &c.a), (Key::B, &c.b)] {
            let (glw, vew) = (p.get(side(Chiral::Glw)), p.get(side(Chiral::Vew)));
            let across = p.get(side(Chiral::Wos)) == 2 || reach::contiguous(tensor, vew) == Some(Along::Row);
            if glw == vew && across {
                p.set(side(Chiral::Glw), 0);
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

fn normal_side(p: &mut Keys, side: fn(Chiral) -> Key, threads: Option<u32>) {
    let at = |p: &Keys, k: Chiral| p.get(side(k));
    let unit = p.unit();
    let fragment = p.fragment_width(side);
    // Windows of a whole tile are copied in a way of their own.
    if at(p, Chiral::Acp) == 4 {
        COPY_CHIRAL.iter().for_each(|key| p.set(side(*key), key.info().default));
        return;
    }
    // VEW speaks only for GLW and FRW where they are 0.
    if at(p, Chiral::Glw) != 0 {
        p.set(side(Chiral::Vew), 1);
    }
    let vectors = unit.reads == Reads::Vectors;
    if vectors {
        p.set(side(Chiral::Frw), if fragment == at(p, Chiral::Vew) { 0 } else { fragment });
    }
    if at(p, Chiral::Glw) == 1 && at(p, Chiral::Vew) == 1 {
        p.set(side(Chiral::Glw), 0);
    }
    // A thread with one vector has nothing to interleave, and neither has one thread with all of them.
    if vectors && (at(p, Chiral::Mic) <= fragment || threads == Some(1)) {
        p.set(side(Chiral::Miw), 0);
    }
    // With producer warps the load tile depends on the wave size, which a plan does not know.
    if p.common(Common::Lwv) != 0 {
        return;
    }
    let step = if side(Chiral::Mic) == Key::A(Chiral::Mic) { unit.block.rows } else { unit.block.columns };
    let Some(macro_tile) = threads.and_then(|t| t.checked_mul(at(p, Chiral::Mic))).and_then(|t| t.checked_mul(step)) else {
        return;
    };
    let (k_tile, loaders) = (p.common(Common::Unr), p.common(Common::Mac));
    let tile = |plu| load_tile(macro_tile, k_tile, loaders, plu);
    let Some((row, k)) = tile(at(p, Chiral::Plu) == 1) else { return };
    if tile(true) == tile(false) {
        p.set(side(Chiral::Plu), 0);
    }
    if (row == 1 || row == macro_tile) && (k == 1 || k == k_tile) {
        p.set(side(Chiral::Liw), 0);
    }
    if row == macro_tile || k == k_tile {
        p.set(side(Chiral::Lor), 0);
    }
}
