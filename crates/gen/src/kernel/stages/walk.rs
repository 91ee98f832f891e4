//! The walk over result tiles that every role shares: one tile for each work-group, or all of them in persistent work-groups.

use super::ping_pong::Passing;
use crate::kernel::tile::position::{KRange, TilePosition, TileWalk};
use tilewright_ir::*;

impl TileWalk<'_> {
    /// The body once for each result tile of this work-group, whose first piece of work is `group`, or of the team among those that
    /// alternate. Pieces of work of all parts of the problem are numbered through. The first piece of persistent work-groups.
    pub fn each(
        &self,
        b: &mut Builder,
        group: ExprId,
        passing: Option<Passing>,
        body: impl FnOnce(&mut Builder, &TilePosition, &KRange),
    ) -> ExprId {
        let one = |b: &mut Builder, group: ExprId| {
            let at = self.position(b, group);
            b.if_given(at.exists, |b| {
                let range = self.k_range(b, &at);
                body(b, &at, &range);
            });
        };
        let before = self.before as i64;
        if self.tiling.persistent == 0 {
            if !self.more {
                one(b, group);
                return group;
            }
            let (from, to) = (b.value(group.ge(before)), b.value(group.lt(before + self.pieces() as i64)));
            let own = if before == 0 { Some(to) } else { b.and_opt(Some(from), Some(to)) };
            let Some(own) = own else { return group };
            b.if_then(own, |b| {
                let group = b.bind("part_group", group - before);
                one(b, group);
            });
            return group;
        }
        let all = self.all_work(b);
        let stay = self.stay();
        // The work-group that continues where the previous part ends.
        let group = if before % stay == 0 { group } else { b.bind("part_first", (group + (stay - before % stay)) % stay) };
        let first = passing.as_ref().map_or(group, |p| p.first(b, group));
        let index = b.declare("tile_id", first);
        let stride = stay * passing.as_ref().map_or(1, |p| i64::from(p.turns.teams));
        b.for_range("round", 0, (all - first + (stride - 1)) / stride, Unroll::No, |b, _| {
            let work = b.bind("tile_now", index);
            one(b, work);
            if let Some(passing) = &passing {
                passing.pass(b, work);
            }
            b.set(index, work + stride);
        });
        first
    }
}
