//! Plans with matrix instructions of single waves (`UNI1`, `UNI3`): what differs from multiply-adds in legality, and which keys
//! say nothing to them. Loads, schedules and edges are those of [`super::derive`](fn@super::derive).

use super::bulk::partials;
use super::grid::thread_grid;
use super::keys::{Chiral, Common, Key};
use super::reach;
use super::refusal::Refusal;
use super::rules::{Env, atomic_sums, no_cluster_sum};
use super::spec::*;
use super::value::{Plan, reset};
use tilewright_ir::{Mma, Scalar};
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::COL;

/// Waves along m and n, or why the unit cannot compute this.
pub(super) fn owners(plan: &Plan, c: &Contraction, env: &Env, unit: MathUnit) -> Result<(u32, u32), Refusal> {
    let at = |key: Common| plan.common(key);
    let (uni, owners) = (unit.family().number, unit.family().lanes);
    if c.matrix_input().and_then(|input| Mma::find(unit, input)).is_none() {
        return Err(Refusal::UnitTypes { uni, a: c.a.scalar, b: c.b.scalar, sum: c.accumulator() });
    }
    if env.wave != owners {
        return Err(Refusal::UnitWave { uni, wave: env.wave, needed: owners });
    }
    let (k_tile, depth) = (at(Common::Unr), unit.family().depth);
    if !k_tile.is_multiple_of(depth) {
        return Err(Refusal::UnitSteps { uni, k_tile, depth });
    }
    let (mac, skw) = (at(Common::Mac), at(Common::Skw));
    let grid = mac.is_multiple_of(owners).then(|| thread_grid(mac / owners, skw)).flatten();
    grid.ok_or(Refusal::UnitThreads { uni, mac, skw, owners })
}

/// A lane stores its neighbours along n together, as many as [`Tiling::run`] says.
pub(super) fn epilogue(plan: &Plan, c: &Contraction, env: &Env, tiling: &Tiling) -> Result<Epilogue, Refusal> {
    let (ice, width) = (plan.common(Common::Ice), plan.common(Common::Cvw));
    no_cluster_sum(plan)?;
    if ice > 1 && plan.common(Common::Sks) == 0 {
        if !env.allow_atomics {
            return Err(Refusal::AtomicsNotAllowed { ice });
        }
        atomic_sums(c, ice)?;
        return Ok(Epilogue { split_sum: SplitSum::Atomic, store_width: 1, staged: false, bulk: false });
    }
    let split_sum = if ice > 1 { SplitSum::Workspace } else { SplitSum::Atomic };
    if plan.common(Common::Cst) == 1 && tiling.unit == MathUnit::Mma {
        // Results leave row by row, in vectors as wide as the start of C allows.
        let stored = if ice > 1 { partials(c, c.g * u64::from(ice)) } else { c.c.clone() };
        let pulled = tiling.edge_n == Edge::PullBack && !c.n.is_multiple_of(u64::from(tiling.b.macro_tile));
        // Staging buffers hold f32.
        let wide = c.accumulator() != Scalar::F32;
        if stored.view.stride(COL) != Some(1) || stored.view.is_affine_box().is_none() || pulled || wide {
            return Err(Refusal::StagedRows);
        }
        return Ok(Epilogue { split_sum, store_width: 1, staged: true, bulk: false });
    }
    if width > 1 {
        let run = tiling.run();
        let most = if c.c.view.stride(COL) == Some(1) && run.is_multiple_of(width) { width } else { 1 };
        // Partial sums are dense; C itself is as the problem says.
        let allowed = if ice > 1 || most == 1 { most } else { reach::vector_width(&c.c, COL, width) };
        if allowed < width {
            return Err(Refusal::StoreAlign { width, allowed: if most == 1 { 1 } else { allowed } });
        }
        if c.dynamic.n {
            return Err(Refusal::VectorRunTime { key: Key::C(Common::Cvw), width, dim: "n" });
        }
        if !c.n.is_multiple_of(u64::from(width)) {
            return Err(Refusal::VectorEdge { key: Key::C(Common::Cvw), width, dim: "n", extent: c.n });
        }
    }
    Ok(Epilogue { split_sum, store_width: width, staged: false, bulk: false })
}

impl Tiling {
    /// Neighbours along n that a lane of a matrix unit holds.
    pub const fn run(&self) -> u32 {
        match self.unit.family().run {
            // Instructions lie interleaved.
            0 => self.interleave(self.b.micro),
            run => run,
        }
    }
    /// The instruction that computes a contraction's products; `None` where the unit has none for its types.
    pub fn instruction(&self, c: &Contraction) -> Option<&'static Mma> {
        Mma::dividing(self.unit, c.matrix_input()?, (self.a.micro, self.b.micro))
    }
    /// Rows and columns of one MFMA instruction: 32 where micro tiles allow.
    pub const fn mfma_side(&self) -> u32 {
        if self.a.micro.is_multiple_of(32) && self.b.micro.is_multiple_of(32) { 32 } else { 16 }
    }
    /// Instructions' rows (or columns) that lie interleaved in a micro tile of this length: what a lane reads at once holds the same
    /// place of all of them.
    pub const fn interleave(&self, micro: u32) -> u32 {
        let blocks = micro / self.mfma_side();
        match blocks % 4 {
            0 => 4,
            2 => 2,
            _ => 1,
        }
    }
}

/// Sets keys without effect to one value.
pub(super) fn normal(p: &mut Plan) {
    // Warps stage whole rows, which choose their own vectors; atomic additions go element by element.
    let atomic = p.common(Common::Ice) > 1 && p.common(Common::Sks) == 0;
    match p.family().map(|family| family.unit) {
        Some(MathUnit::Mma) if p.common(Common::Cst) == 1 && !atomic => reset(p, Common::Cvw),
        _ => reset(p, Common::Cst),
    }
    for key in [Common::Pun, Common::Mad, Common::Mia, Common::Wva, Common::Mvw, Common::Png] {
        reset(p, key);
    }
    for side in [Key::A as fn(Chiral) -> Key, Key::B] {
        for key in [Chiral::Miw, Chiral::Frw] {
            p.set(side(key), key.info().default);
        }
    }
}
