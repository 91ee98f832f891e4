//! Where the values go that work-groups have of a reduction.

use tilewright_problem::contraction::{Contraction, Reduce};

/// Where the values that work-groups have of a reduction go: to the result where one work-group has all of a value, else to workspace,
/// `[batch entry][tile along m][tile along n][share][value]`, from where a further kernel takes them in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partials {
    /// Tiles that each have a part of a value, along m and n.
    pub tiles: [u64; 2],
    /// Work-groups that each have a share of a tile.
    pub shares: u64,
    /// Values of a batch entry.
    pub values: u64,
    /// Batch entries.
    pub entries: u64,
    /// Batch entries that each have a part of a value, and groups that stay apart between one of them and the next.
    pub outer: u64,
    /// See [`Partials::outer`].
    pub groups: u64,
    /// Parts of each result.
    pub parts: u64,
}

impl Partials {
    /// Of tiles of so many rows and columns, in numbers that are multiples of `together` (clusters), each of so many shares.
    pub fn new(c: &Contraction, r: &Reduce, size: [u64; 2], together: [u32; 2], shares: u64) -> Partials {
        let tiles = |axis: usize, extent: u64| {
            if [r.over.m, r.over.n][axis] {
                extent.div_ceil(size[axis].max(1)).next_multiple_of(together[axis].max(1).into())
            } else {
                1
            }
        };
        let tiles = [tiles(0, c.m), tiles(1, c.n)];
        let values = [(r.over.m, c.m), (r.over.n, c.n)].iter().filter(|a| !a.0).map(|a| a.1).product();
        let outer = if r.over.g { c.g / r.groups.max(1) } else { 1 };
        let each = tiles[0].saturating_mul(tiles[1]).saturating_mul(shares);
        Partials { tiles, shares, values, entries: c.g, outer, groups: r.groups, parts: each.saturating_mul(outer) }
    }
    /// One work-group has all of a value.
    pub const fn in_place(&self) -> bool {
        self.parts == 1
    }
    /// Elements of workspace.
    pub const fn len(&self) -> u64 {
        if self.in_place() {
            return 0;
        }
        let each = self.tiles[0].saturating_mul(self.tiles[1]).saturating_mul(self.shares);
        each.saturating_mul(self.values).saturating_mul(self.entries)
    }
    /// True if there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
