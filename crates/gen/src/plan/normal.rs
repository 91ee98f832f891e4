//! Canonical plans: keys that have no effect are set to one value, so that equal kernels have equal plans.

use super::grid::{load_tile, thread_grid};
use super::keys::{Chiral, Common, Key};
use super::reach;
use super::tile::Along;
use super::value::{Plan, reset};
use tilewright_ir::mma::{FAMILIES, Family};
use tilewright_problem::contraction::Contraction;

impl Plan {
    /// The same kernel with every key that has no effect at a canonical value, as far as that shows without a
    /// contraction.
    pub fn normal(&self) -> Plan {
        let mut p = *self;
        match self.family() {
            Some(family) if family.asynchronous => {
                super::unit::normal(&mut p);
                return p;
            }
            Some(family) if family.fragments => super::wave_unit::normal(&mut p),
            _ => {
                reset(&mut p, Common::Swp);
                reset(&mut p, Common::Png);
            }
        }
        for side in [Key::A, Key::B] {
            p.set(side(Chiral::Clu), Chiral::Clu.info().default);
        }
        reset(&mut p, Common::Rga);
        self.normal_common(&mut p);
        let grid = p.owner_grid();
        for (side, threads) in [(Key::A as fn(Chiral) -> Key, grid.map(|g| g.0)), (Key::B, grid.map(|g| g.1))] {
            normal_side(&mut p, side, threads);
        }
        p
    }

    /// [`Plan::normal`], and keys that have no effect on this contraction at a canonical value as well.
    pub fn normalised(&self, c: &Contraction) -> Plan {
        let mut p = self.normal();
        let Some(unit) = p.family().filter(|f| !f.asynchronous) else { return p };
        let Some((along_m, along_n)) = p.owner_grid() else { return p };
        let c = &*c.oriented(unit.fragments && p.common(Common::Swp) == 1);
        let tile = |side: fn(Chiral) -> Key, threads: u32| (threads as u64 * p.get(side(Chiral::Mic)) as u64).max(1);
        let (tile_m, tile_n) = (tile(Key::A, along_m) * u64::from(unit.block.0), tile(Key::B, along_n) * u64::from(unit.block.1));
        let run_time = c.dynamic.m || c.dynamic.n;
        if !run_time && c.m.is_multiple_of(tile_m) && c.n.is_multiple_of(tile_n) {
            reset(&mut p, Common::Edg);
        }
        // A single row or column of tiles has only one order.
        if c.m <= tile_m || c.n <= tile_n {
            p.set(Key::C(Common::Gal), 1);
            reset(&mut p, Common::Naw);
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

    /// What the instructions that `UNI` names have in common.
    pub(super) fn family(&self) -> Option<&'static Family> {
        Family::numbered(self.common(Common::Uni))
    }

    /// Threads, or waves of a matrix unit, along m and n.
    fn owner_grid(&self) -> Option<(u32, u32)> {
        let (mac, owners) = (self.common(Common::Mac), self.family()?.lanes);
        mac.is_multiple_of(owners).then(|| thread_grid(mac / owners, self.common(Common::Skw))).flatten()
    }

    fn normal_common(&self, p: &mut Plan) {
        let at = |key: Common| self.common(key);
        if at(Common::Ice) == 1 {
            reset(p, Common::Iwi);
            reset(p, Common::Sks);
        } else if at(Common::Sks) == 0 {
            // Atomics add element by element.
            reset(p, Common::Cvw);
        }
        if at(Common::Gal) != 3 {
            reset(p, Common::Naw);
        }
        // Where to store is a question only with fetched tiles, room to store them into while others are read, and waves
        // that have both the store and the math.
        let both_copied = self.get(Key::A(Chiral::Acp)) == 1 && self.get(Key::B(Chiral::Acp)) == 1;
        if at(Common::Pfg) == 0 || at(Common::Buf) == 1 || both_copied || at(Common::Lwv) > 0 {
            reset(p, Common::Stp);
        }
        // Fences stand between loads that run ahead and the math, and before the tail of a carried schedule.
        let carried = at(Common::Buf) > 1 && at(Common::Fra) > 0;
        if at(Common::Pfg) == 0 || both_copied && !carried {
            reset(p, Common::Hnt);
        }
        // Fragments ahead and spread stores lay the k-steps out one by one anyway.
        let depth = self.family().map_or(1, |unit| unit.depth);
        if at(Common::Unr) <= depth || at(Common::Fra) > 0 || p.common(Common::Stp) == 2 {
            reset(p, Common::Ukl);
        }
    }
}

fn normal_side(p: &mut Plan, side: fn(Chiral) -> Key, threads: Option<u32>) {
    let at = |p: &Plan, k: Chiral| p.get(side(k));
    let unit = p.family().unwrap_or(&FAMILIES[0]);
    let fragment = p.fragment_width(side);
    // VEW speaks only for GLW and FRW where they are 0.
    if at(p, Chiral::Glw) != 0 {
        p.set(side(Chiral::Vew), 1);
    }
    if !unit.fragments {
        p.set(side(Chiral::Frw), if fragment == at(p, Chiral::Vew) { 0 } else { fragment });
    }
    if at(p, Chiral::Glw) == 1 && at(p, Chiral::Vew) == 1 {
        p.set(side(Chiral::Glw), 0);
    }
    // A thread with one vector has nothing to interleave, and neither has one thread with all of them.
    if !unit.fragments && (at(p, Chiral::Mic) <= fragment || threads == Some(1)) {
        p.set(side(Chiral::Miw), 0);
    }
    // With load waves the load tile depends on the wave size, which a plan does not know.
    if p.common(Common::Lwv) != 0 {
        return;
    }
    let step = if side(Chiral::Mic) == Key::A(Chiral::Mic) { unit.block.0 } else { unit.block.1 };
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
