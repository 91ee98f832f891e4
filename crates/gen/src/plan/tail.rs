//! The last tiles of persistent work-groups, split along k (`TSP`): stream-k with a data-parallel part.
//!
//! Persistent work-groups compute whole tiles in rounds. The last round may have far fewer tiles than work-groups. The rows of tiles that
//! reach beyond the last full round are therefore split along k. Their partial sums go to workspace, and a second kernel adds them in a
//! fixed order. No work-group waits for another.

use super::exit::tail_exit;
use super::refusal::Refusal;
use super::shared_bytes::shared_map;
use super::spec::*;
use super::value::Plan;
use tilewright_problem::contraction::{Contraction, ResultSource};

/// The first row of tiles that reaches beyond the last full round of `persistent` work-groups. `None` where every round is full, where no
/// round is, and where that is the first row.
///
/// ```
/// use tilewright_gen::plan::first_split_row;
/// use tilewright_ir::Scalar;
/// use tilewright_problem::lower::{ConvForm, lower};
/// use tilewright_problem::{Gemm, Problem};
///
/// let problem = Problem::Gemm(Gemm::new(Scalar::F16, 5000, 5000, 5000).build()?);
/// let contraction = lower(&problem, ConvForm::PER_SAMPLE)?.lead;
/// // 40 x 20 tiles: six rounds of 132 work-groups have 792 of 800.
/// assert_eq!(first_split_row(&contraction, [128, 256], [1, 1], 132), Some(39));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn first_split_row(c: &Contraction, tile: [u64; 2], cluster: [u32; 2], persistent: u32) -> Option<u64> {
    let [tiles_m, tiles_n, entries] = c.tiles(tile);
    let [m, n] = cluster.map(|along| u64::from(along.max(1)));
    let (rows, row) = (tiles_m.next_multiple_of(m), tiles_n.next_multiple_of(n).checked_mul(entries)?);
    let all = rows.checked_mul(row)?;
    let beyond = all.checked_rem(persistent.into())?;
    let first = (all - beyond) / row / m * m;
    (beyond > 0 && first > 0).then_some(first)
}

/// The split tail of a plan, or why it has none.
pub(super) fn derive(plan: &Plan, c: &Contraction, spec: &KernelSpec) -> Result<Option<Tail>, Refusal> {
    let (splits, t) = (plan.tail_splits, &spec.tiling);
    let whole = splits <= 1 || plan.persistent == 0 || plan.ping_pong == 1 || plan.splits > 1;
    if whole || c.source != ResultSource::Product {
        return Ok(None);
    }
    let tile = [t.a.macro_tile, t.b.macro_tile].map(u64::from);
    let Some(first) = first_split_row(c, tile, [t.cluster.m, t.cluster.n], plan.persistent) else { return Ok(None) };
    let refuse = |why| Err(Refusal::Tail { tsp: splits, why });
    if spec.schedule.copies.iter().any(|copy| copy.shifted().is_some()) {
        return refuse("copies from a staging buffer (ACP3) rely on the work-group's next tile");
    }
    if !c.fixed() {
        return refuse("the number of tiles is known only at launch");
    }
    if c.drop_c || c.reductions().next().is_some() || !c.operand_values.is_empty() {
        return refuse("reductions need whole tiles");
    }
    if c.turns_old() {
        return refuse("a kernel ahead multiplies all old results");
    }
    if c.pairs().is_some() || !c.block_scales.is_empty() {
        return refuse("gates and scales of blocks need whole sums");
    }
    if t.edge_m == Edge::PullBack && !c.m.is_multiple_of(tile[0]) {
        return refuse("tiles at the edge are pulled back into rows of whole tiles; use EDG1");
    }
    if c.k.div_ceil(u64::from(t.k_tile)) < u64::from(splits) {
        return refuse("there are fewer k-tiles than splits");
    }
    Ok(Some(Tail { splits, first }))
}

impl KernelSpec {
    /// The plan of the split tiles, where there are some: splits whose partial sums go to workspace.
    pub fn of_tail(&self, c: &Contraction) -> Option<KernelSpec> {
        let tail = self.tiling.tail?;
        let split_k = SplitK { ways: tail.splits, interleave: false };
        let tiling = Tiling { split_k, ..self.tiling.clone() };
        let exit = tail_exit(c, self, self.split_rows(c));
        let epilogue = Epilogue { split: Split::Workspace, exit, ..self.epilogue.clone() };
        let mut spec = KernelSpec { tiling, epilogue, ..self.clone() };
        spec.shared = shared_map(&spec, c);
        Some(spec)
    }

    /// Splits of k whose partial sums are added outside of work-groups and clusters.
    pub fn split_rows(&self, c: &Contraction) -> SplitRows {
        match self.tiling.tail {
            Some(tail) => SplitRows { rows: c.m - self.whole_rows(c), splits: tail.splits },
            None => SplitRows { rows: c.m, splits: self.split_outside() },
        }
    }

    /// Rows of C in the tiles that are not split.
    pub fn whole_rows(&self, c: &Contraction) -> u64 {
        self.tiling.tail.map_or(c.m, |tail| (tail.first * u64::from(self.tiling.a.macro_tile)).min(c.m))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::Scalar;
    use tilewright_problem::lower::{ConvForm, lower};
    use tilewright_problem::{Gemm, Problem};

    #[test]
    fn rows_beyond_the_last_full_round_are_split() {
        let first = |[m, n]: [u64; 2], cluster, persistent| {
            let problem = Problem::Gemm(Gemm::new(Scalar::F16, m, n, 64).build().unwrap());
            first_split_row(&lower(&problem, ConvForm::PER_SAMPLE).unwrap().lead, [128, 256], cluster, persistent)
        };
        // Clusters of two rows.
        assert_eq!(first([5000, 5000], [2, 1], 132), Some(38));
        // Every round is full, or none is.
        assert_eq!((first([1408, 3072], [1, 1], 132), first([1280, 1280], [1, 1], 132)), (None, None));
        // The first row has more tiles than a round.
        assert_eq!(first([128, 50_000], [1, 1], 132), None);
        assert_eq!(first([5000, 5000], [1, 1], 0), None);
    }
}
