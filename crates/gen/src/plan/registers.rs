//! Registers per thread of producer and consumer warps with uneven shares (`setmaxnreg`).

use super::fetched::fetch_wanted;
use super::spec::KernelSpec;
use super::transport::Transport;
use tilewright_ir::{COPY_REGISTERS, Limits, MOST_EVEN_REGISTERS, UNIT_PARTS, WARP};

/// Registers that the assembler needs besides the accumulators.
const UNIT_ROOM: u32 = 40;
/// Register budgets of producer threads that fetch, in descending order.
const FETCH_BUDGETS: [u32; 7] = [152, 136, 120, 104, 88, 72, 56];
/// Threads between whose groups registers move.
const WARPGROUP: u32 = UNIT_PARTS * WARP;
/// Number of accumulators from which on the assembler needs every available register.
const MANY_SUMS: u32 = 208;

/// Derives the registers per thread of producer and consumer warps. Registers that producers do not need go to consumers.
///
/// `None` unless roles are whole warpgroups and one work-group has the compute unit to itself. Producers that fetch through registers get
/// their wanted budget, as far as the accumulators leave room.
pub(super) fn of_roles(spec: &KernelSpec) -> Option<(u32, u32)> {
    let (roles, owners) = (spec.schedule.roles?, spec.tiling.unit.family().lanes);
    let alone = spec.schedule.in_pipeline() && spec.style.min_groups < 2;
    if !alone || !owners.is_multiple_of(WARPGROUP) || !roles.load_threads.is_multiple_of(owners) {
        return None;
    }
    let (load, math) = (roles.load_threads / owners, roles.math_threads / owners);
    let budget = |of_load: u32| Limits::WARPGROUP.role_registers(load, math, of_load);
    // Fragments live beside the accumulators.
    let accumulators = spec.sum_registers() + spec.tiling.a.fragment_registers();
    if !spec.schedule.copies.iter().any(Transport::is_written) {
        let most = math.checked_sub(2).and_then(|i| COPY_REGISTERS.get(i as usize)).filter(|_| load == 1)?;
        return budget(if math == 2 && (accumulators >= MANY_SUMS || spec.rows_in_turn()) { COPY_REGISTERS[2] } else { *most });
    }
    let wanted = fetch_wanted(&spec.schedule.copies);
    let enough = |(_, of_math): &(u32, u32)| *of_math >= accumulators + UNIT_ROOM;
    let possible = || FETCH_BUDGETS.into_iter().filter_map(budget).filter(enough);
    let least = possible().rfind(|(of_load, _)| *of_load >= wanted);
    least.or_else(|| possible().next()).or_else(|| budget(COPY_REGISTERS[0]).filter(|_| load + math > 2))
}

impl KernelSpec {
    /// Registers of a thread with even shares.
    pub fn even_registers(&self) -> u32 {
        let waves = self.launch_threads().div_ceil(WARP) * self.style.min_groups.max(1);
        Limits::WARPGROUP.share(waves, WARP).min(MOST_EVEN_REGISTERS)
    }
    /// Registers of a producer thread.
    pub fn load_registers(&self) -> u32 {
        self.schedule.roles.and_then(|r| r.registers).map_or_else(|| self.even_registers(), |(load, _)| load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_roles_are_what_the_launch_took() {
        let of = |math, of_load| Limits::WARPGROUP.role_registers(1, math, of_load);
        assert_eq!([of(2, 40), of(2, 24), of(3, 32), of(4, 24)], [(40, 232), (24, 240), (32, 160), (24, 112)].map(Some));
        assert_eq!(of(2, 168), None);
        // Four producer warps that fetch, with two consumer warpgroups.
        assert_eq!(of(2, 104), Some((104, 200)));
    }
}
