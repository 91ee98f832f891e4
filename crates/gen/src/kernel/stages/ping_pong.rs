//! Ping-pong teams of consumer warps (as in CUTLASS), which alternate between result tiles: one stores while another computes.
//!
//! The buffers of all tiles pass through the circular buffer in sequence. A team skips the buffers of the other teams' tiles,
//! and waits only for its own buffers. The barriers of the circular buffer identify a phase by its parity. This is valid as
//! long as no team is a phase ahead.

use super::counter::Counter;
use super::ring::TxArray;
use crate::kernel::tile::position::TileWalk;
use tilewright_ir::*;

/// A team's place in the order.
#[derive(Clone, Copy)]
pub(crate) struct Turns {
    barriers: TxId,
    pub teams: u32,
    /// This team, and the next one.
    team: ExprId,
    next: ExprId,
    /// Parity of the phase that lets this team begin.
    phase: VarId,
}

impl Turns {
    /// Of the team with this number among all that have a barrier.
    pub fn new(b: &mut Builder, of: TxArray, team: ExprId) -> Turns {
        let TxArray { barriers, count: teams } = of;
        let team = b.bind("team", team);
        let next = b.bind("next_team", (team + 1) % teams);
        // The first team's first turn is now: the phase before the first counts as over.
        let phase = b.declare("turn_phase", team.equals(0).select(Ex::int(1, Scalar::I32), 0));
        Turns { barriers, teams, team, next, phase }
    }

    /// Waits for the turn.
    pub fn take(&self, b: &mut Builder) {
        let parity = b.get(self.phase);
        b.bulk(BulkOp::Wait { barrier: TxRef { barriers: self.barriers, index: self.team }, parity });
        b.set(self.phase, 1 - parity);
    }

    /// Lets the next team begin.
    pub fn hand_on(&self, b: &mut Builder, first_lane: ExprId) {
        b.if_then(first_lane, |b| b.bulk(BulkOp::Arrive { barrier: TxRef { barriers: self.barriers, index: self.next } }));
    }
}

/// How a team gets from its tiles past those of the others.
pub(crate) struct Passing<'a> {
    pub turns: Turns,
    /// What passes.
    pub counters: [Option<Counter>; 2],
    pub tiles: TileWalk<'a>,
}

impl Passing<'_> {
    fn pass_one(&self, b: &mut Builder, work: ExprId) {
        let tiles = self.tiles.k_tiles(b, work);
        for counter in self.counters.into_iter().flatten() {
            counter.skip(b, tiles);
        }
    }

    /// The team's first tile, where `group` is the first of all; the counters then stand at its first stage.
    pub fn first(&self, b: &mut Builder, group: ExprId) -> ExprId {
        let team = self.turns.team;
        for before in 0..self.turns.teams - 1 {
            let work = b.value(group + (self.tiles.stay() * i64::from(before)));
            b.if_then(team.gt(before), |b| self.pass_one(b, work));
        }
        b.bind("first_tile", group + team * self.tiles.stay())
    }

    /// After a tile: skips the tiles of the other teams, up to this team's next tile.
    pub fn pass(&self, b: &mut Builder, work: ExprId) {
        for other in 1..self.turns.teams {
            let work = b.value(work + (self.tiles.stay() * i64::from(other)));
            self.pass_one(b, work);
        }
    }
}
