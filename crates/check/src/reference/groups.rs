//! Groups of a product's rows, columns or terms: where they end in test data, and which rows are whose.

use super::element::hash;
use std::ops::Range;
use tilewright_problem::{Gemm, Problem, Ragged};

/// Where the groups of a product end.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    /// What they are of.
    pub of: Ragged,
    ends: Vec<u64>,
}

impl Groups {
    /// Those of a product, if it is grouped, whose ends are these numbers of i32.
    pub fn new(problem: &Problem, ends: Option<&[u8]>) -> Option<Groups> {
        let Problem::Gemm(Gemm { grouped: Some(of), batch, .. }) = problem else { return None };
        let ends = ends?.chunks_exact(4).take(*batch as usize).filter_map(|end| end.try_into().ok());
        let ends = ends.map(|end| u64::try_from(i32::from_le_bytes(end)).unwrap_or(0)).collect();
        Some(Groups { of: *of, ends })
    }
    /// Where each of them ends.
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }
    /// The terms of a group's sums, where it is these that belong to groups.
    pub fn terms(&self, g: u64) -> Option<Range<u64>> {
        let end = |g: u64| self.ends.get(g as usize).copied().unwrap_or(0);
        (self.of == Ragged::K).then(|| if g == 0 { 0 } else { end(g - 1) }..end(g))
    }
    /// Rows, columns or terms of all of them.
    pub fn end(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }
    /// Ascending rows or columns, by the group that they belong to; those of none are left out.
    pub fn parts<'l>(&self, lines: &'l [u64]) -> impl Iterator<Item = (u64, &'l [u64])> {
        let mut rest = lines;
        (0..).zip(&self.ends).filter_map(move |(g, end)| {
            let (part, tail) = rest.split_at(rest.partition_point(|line| line < end));
            rest = tail;
            (!part.is_empty()).then_some((g, part))
        })
    }
}

/// Where the groups of a product end. Random: groups of sizes from 0 to twice the mean that fill all rows. Else extremes: all in
/// one group, groups of 0 and 1, groups that end early. Some row belongs to a group always, so that there is something to
/// compare.
pub(super) fn drawn(gemm: &Gemm, seed: u64, random: bool) -> Vec<i32> {
    let groups = gemm.batch;
    let lines = gemm.ragged().map_or(0, |(_, lines)| lines);
    let end = |g: u64| match (random, seed % 4) {
        _ if g + 1 == groups && (random || seed % 4 != 1) => lines,
        (true, _) => {
            // In units of 2^-16 of the mean: half of it to either side of the place where equal groups would end.
            let place = (u128::from(g + 1) << 16) + u128::from(hash(seed, g) & 0xffff) - (1 << 15);
            (u128::from(lines) * place / (u128::from(groups) << 16)) as u64
        }
        (_, 0) => {
            if g >= hash(seed, 0) % groups {
                lines
            } else {
                0
            }
        }
        (_, 1) => (lines * (g + 1) / groups / 2).max(u64::from(g + 1 == groups)),
        (_, 2) => (0..=g).filter(|g| hash(seed, *g) & 1 == 1).count() as u64,
        // Pairs of an empty group and one of all that both would have.
        _ => lines * ((g + 1) & !1) / groups,
    };
    (0..groups).map(|g| end(g).min(lines) as i32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::Scalar;

    #[test]
    fn groups_follow_each_other() {
        for (lines, groups) in [(1, 1), (1, 7), (5, 3), (100, 8), (4097, 64)] {
            let gemm = Gemm::new(Scalar::F32, lines, 4, 4).grouped(Ragged::M, groups).build().unwrap();
            let drawn = (0..40).map(|i| drawn(&gemm, hash(3, i), i % 2 == 0));
            let mut empty = false;
            for ends in drawn {
                assert_eq!(ends.len() as u64, groups);
                assert!(ends.is_sorted() && ends[0] >= 0 && ends[ends.len() - 1] <= lines as i32, "{ends:?}");
                assert!(ends[ends.len() - 1] > 0, "{ends:?}");
                empty |= ends.windows(2).any(|pair| pair[0] == pair[1]);
            }
            assert!(empty || groups == 1);
        }
    }

    #[test]
    fn rows_belong_to_the_group_before_whose_end_they_are() {
        let groups = Groups { of: Ragged::M, ends: vec![2, 2, 5, 6] };
        let rows: Vec<u64> = (0..9).collect();
        let parts: Vec<_> = groups.parts(&rows).collect();
        assert_eq!(parts, [(0, &rows[..2]), (2, &rows[2..5]), (3, &rows[5..6])]);
        assert_eq!(groups.parts(&[4, 7]).collect::<Vec<_>>(), [(2, &[4u64][..])]);
        assert_eq!((groups.end(), groups.terms(1)), (6, None));
        let groups = Groups { of: Ragged::K, ..groups };
        assert_eq!([0, 1, 2].map(|g| groups.terms(g)), [Some(0..2), Some(2..2), Some(2..5)]);
    }
}
