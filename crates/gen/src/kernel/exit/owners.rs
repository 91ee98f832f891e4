//! Who stores what of a tile whose sums have met in shared memory: each of those that had parts of it takes a share.
//!
//! Where results are stored from registers, shares are runs of registers. Where they are staged, a share is whole fills of the
//! staging buffer. The peer that adds up the partial sums of a row also stores that row.

use super::Epilogue;
use super::out::{Out, columns_contiguous};
use crate::kernel::unit::accumulators::Accumulators;
use crate::plan::{ExchangeShape, Exit};
use std::ops::Range;
use tilewright_ir::layout::Axis;
use tilewright_ir::*;

/// The shares of all peers, and which of them this is.
pub(crate) struct Owners {
    pub number: ExprId,
    shares: Vec<Share>,
}

/// What one peer adds up and stores.
pub(crate) struct Share {
    /// Accesses to the sums in shared memory, as runs.
    pub accesses: Vec<Range<u32>>,
    /// Registers of one access.
    registers: u32,
    /// Fills of the staging buffer, as runs.
    fills: Vec<Range<u32>>,
}

impl Share {
    /// The registers that it has, as runs.
    pub fn registers(&self) -> impl Iterator<Item = Range<u32>> {
        self.accesses.iter().map(|run| run.start * self.registers..run.end * self.registers)
    }

    /// Its fills among these, as runs counted from the first of them.
    pub fn fills_within(&self, all: Range<u32>) -> Vec<Range<u32>> {
        let within = self.fills.iter().map(|run| run.start.max(all.start)..run.end.min(all.end));
        within.filter(|run| !run.is_empty()).map(|run| run.start - all.start..run.end - all.start).collect()
    }

    /// True for a fill of the staging buffer that is its own.
    pub fn fills(&self, number: u32) -> bool {
        self.fills.iter().any(|run| run.contains(&number))
    }
}

impl Owners {
    /// `fills` are the numbers of the fill of the staging buffer that each element of a thread is part of; none where nothing is staged.
    pub fn new(number: ExprId, peers: u32, exchange: &ExchangeShape, fills: &[u32]) -> Owners {
        let &ExchangeShape { accesses, registers, width, .. } = exchange;
        let peers = peers.max(1);
        if fills.is_empty() {
            let all = |peer: u32| bound(accesses, peer, peers)..bound(accesses, peer + 1, peers);
            let share = |peer| Share { accesses: vec![all(peer)], registers, fills: Vec::new() };
            return Owners { number, shares: (0..peers).map(share).collect() };
        }
        // Fills that one access has elements of stay together.
        let of_access: Vec<&[u32]> = fills.chunks(width.max(1) as usize).collect();
        let joined = |fill: u32| of_access.iter().any(|all| all.iter().any(|f| *f < fill) && all.iter().any(|f| *f >= fill));
        let count = fills.iter().max().map_or(0, |last| last + 1);
        let mut group = 0;
        let groups: Vec<u32> = (0..count)
            .map(|fill| {
                group += u32::from(fill > 0 && !joined(fill));
                group
            })
            .collect();
        let peer_of = |fill: u32| (0..peers).find(|peer| groups[fill as usize] < bound(group + 1, peer + 1, peers)).unwrap_or(0);
        let share = |peer: u32| Share {
            accesses: runs((0..).zip(&of_access).filter(|(_, all)| peer_of(all[0]) == peer).map(|(access, _)| access)),
            registers,
            fills: runs((0..count).filter(|fill| peer_of(*fill) == peer)),
        };
        Owners { number, shares: (0..peers).map(share).collect() }
    }

    pub fn peers(&self) -> u32 {
        self.shares.len() as u32
    }

    /// The peer that adds up an access.
    pub fn of(&self, access: u32) -> Option<u32> {
        let owner = self.shares.iter().position(|share| share.accesses.iter().any(|run| run.contains(&access)));
        owner.map(|peer| peer as u32)
    }

    /// What each peer does with its share, if it has any of these accesses.
    pub fn each(&self, b: &mut Builder, of: Option<&Range<u32>>, each: impl Fn(&mut Builder, &Share)) {
        for (peer, share) in (0..).zip(&self.shares) {
            if share.accesses.iter().cloned().flatten().any(|access| of.is_none_or(|of| of.contains(&access))) {
                b.if_then(self.number.equals(peer), |b| each(b, share));
            }
        }
    }

    /// Condition that a fill of the staging buffer is this one's.
    pub fn fills(&self, b: &mut Builder, number: u32) -> Option<ExprId> {
        let owner = self.shares.iter().position(|share| share.fills(number))?;
        Some(b.value(self.number.equals(owner as u32)))
    }
}

/// Where a peer's share of so many begins.
fn bound(all: u32, peer: u32, peers: u32) -> u32 {
    (u64::from(all) * u64::from(peer) / u64::from(peers)) as u32
}

/// Ascending numbers as runs.
fn runs(numbers: impl Iterator<Item = u32>) -> Vec<Range<u32>> {
    let mut all: Vec<Range<u32>> = Vec::new();
    for number in numbers {
        match all.last_mut().filter(|last| last.end == number) {
            Some(last) => last.end += 1,
            None => all.push(number..number + 1),
        }
    }
    all
}

impl Epilogue<'_> {
    /// Columns of a wave's staging buffer, or, of multiply-adds, 1: rows or columns go one by one. `None` where nothing is staged, as where
    /// slices of one work-group meet.
    pub(super) fn staged_columns(&self) -> Option<u32> {
        if self.spec.tiling.slices > 1 {
            return None;
        }
        match &self.spec.epilogue.exit {
            Exit::Direct { .. } => None,
            Exit::Staged { .. } => Some(1),
            Exit::Bulk { tile, .. } => Some(tile.columns),
            Exit::Rows => Some(self.spec.row_staging(self.c).columns),
        }
    }

    /// The fill of the staging buffer that each of a thread's elements is part of, in the order in which they are filled.
    pub(super) fn staging(&self, math: &Accumulators) -> Vec<u32> {
        let (Some(columns), t) = (self.staged_columns(), &self.spec.tiling) else { return Vec::new() };
        let mut fills = vec![0; (math.count() * math.width) as usize];
        if !self.spec.epilogue.exit.by_waves() {
            let by_row = columns_contiguous(self.c);
            for (element, fill) in (0..).zip(&mut fills) {
                *fill = if by_row { element / t.b.micro } else { element % t.b.micro };
            }
            return fills;
        }
        let across = t.b.micro / columns;
        for (number, band) in (0..).zip(math.bands()) {
            for part in 0..across {
                for run in math.in_band(band, part * columns..(part + 1) * columns) {
                    run.elements().for_each(|element| fills[element as usize] = number * across + part);
                }
            }
        }
        fills
    }
}

impl Out<'_> {
    /// Each thread stores its runs of a share of the tile, along the axis of C's neighbours.
    pub fn runs_of(&self, b: &mut Builder, math: &Accumulators, share: &Share, old: bool) {
        let width = self.e.spec.epilogue.exit.width();
        let along = if width > 1 && !columns_contiguous(self.e.c) { Axis::Row } else { Axis::Col };
        for ours in share.registers() {
            math.runs(b, along, width, ours, &mut |b, row, col, values| self.put(b, row, col, values, old));
        }
    }
}
