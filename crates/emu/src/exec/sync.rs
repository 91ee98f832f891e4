//! Synchronization of contexts: barriers of waves and work-groups, and instructions that a warpgroup runs together.

use super::whole_waves;
use crate::EmuError;
use crate::code::Matrix;
use crate::context::{Context, Group, State};
use crate::lanes::{LANES, Slot};
use crate::matrix::warpgroup;
use tilewright_ir::BarrierScope;

impl Group<'_> {
    /// Comes to an instruction that the waves of a warpgroup run together; true if it has run.
    pub(super) fn warpgroup_instruction(&mut self, i: usize, op: &Matrix, site: u32) -> Result<bool, EmuError> {
        let (launch, team) = (self.launch, &mut self.team);
        let first = i / warpgroup::WAVES * warpgroup::WAVES;
        let Some(waves) = self.contexts.get_mut(first..first + warpgroup::WAVES) else {
            // The threads after the last whole warpgroup are none.
            let at = team.location(launch, site, launch.code.threads);
            return Err(EmuError::Divergent { at, what: "warpgroup instruction", scope: "warpgroup" });
        };
        let pc = waves[i - first].pc;
        waves[i - first].state = State::Warpgroup { site };
        let there = |w: &Context| matches!(w.state, State::Warpgroup { .. });
        if let Some(other) = waves.iter().find(|w| there(w) && w.pc != pc) {
            let at = team.location(launch, site, other.first);
            return Err(EmuError::Divergent { at, what: "warpgroup instruction", scope: "warpgroup" });
        }
        if !waves.iter().all(there) {
            return Ok(false);
        }
        warpgroup::together(launch, team, waves, op, site)?;
        for w in waves {
            w.pc += 1;
            w.state = State::Ready;
        }
        Ok(true)
    }

    /// Arrives at a barrier; true if the context has to wait.
    pub(super) fn barrier(&mut self, i: usize, scope: BarrierScope, mask: Slot, site: u32) -> Result<bool, EmuError> {
        let (launch, team) = (self.launch, &mut self.team);
        let code = launch.code;
        let ctx = &self.contexts[i];
        let (id, needed) = match scope {
            BarrierScope::Wave => {
                whole_waves(launch, team, ctx, mask, site, "wave barrier")?;
                for lane in (0..ctx.lanes).step_by(code.wave as usize) {
                    if ctx.bits(mask, lane / LANES) >> (lane % LANES) & 1 != 0 {
                        team.order_wave(launch, ctx.first + lane as u32)?;
                    }
                }
                return Ok(false);
            }
            // [`cluster`] runs those of the cluster.
            BarrierScope::WorkGroup | BarrierScope::Cluster | BarrierScope::ClusterStart => (0, code.threads),
            BarrierScope::Named { id, threads } => {
                let bad = |what: &str| {
                    let at = team.location(launch, site, ctx.first);
                    Err(EmuError::BarrierCount { at, id, what: what.into() })
                };
                if id == 0 || id > 16 {
                    return bad("named barriers are 1 to 16; 0 is the work-group's");
                }
                if threads == 0 || !threads.is_multiple_of(code.wave) || threads > code.threads {
                    return bad("its thread count is no multiple of the wave size within the work-group");
                }
                (id, threads)
            }
        };
        if let Some(lane) = ctx.missing(mask) {
            let at = team.location(launch, site, ctx.first + lane as u32);
            return Err(EmuError::Divergent { at, what: "barrier", scope: "work-group" });
        }
        let a = &mut team.barriers[id as usize];
        if a.needed != 0 && a.needed != needed {
            let what = format!("this thread expects {needed} threads, those waiting expect {}", a.needed);
            return Err(EmuError::BarrierCount { at: team.location(launch, site, ctx.first), id, what });
        }
        a.needed = needed;
        a.arrived += ctx.lanes as u32;
        if a.arrived > needed {
            let what = format!("{} threads arrive where {needed} are expected", a.arrived);
            return Err(EmuError::BarrierCount { at: team.location(launch, site, ctx.first), id, what });
        }
        let open = a.arrived == needed;
        self.contexts[i].state = State::Waiting { barrier: id, site };
        if open {
            team.barriers[id as usize] = Default::default();
            let mut ranges = Vec::new();
            for c in &mut self.contexts {
                if matches!(c.state, State::Waiting { barrier, .. } if barrier == id) {
                    ranges.push((c.first, c.lanes as u32));
                    c.state = State::Ready;
                }
            }
            team.order(launch, &ranges)?;
        }
        Ok(!open)
    }
}
