//! How the rooflines of matrix units end: from cycles of one unit to an estimate of the main kernel.

use super::calibration::*;
use super::{Estimate, Work, soft_max};
use tilewright_gen::plan::Footprint;
use tilewright_ir::Target;

/// What a main kernel keeps a unit busy with.
pub(super) struct Roofline {
    /// Cycles of the busiest unit, from the first work-group's start to the last one's end.
    pub cycles: f64,
    /// Work-groups of the busiest unit.
    pub per_unit: f64,
    /// Cycles of a work-group's k-tile where nothing is waited for, and those of its parts.
    pub busy: f64,
    pub math: f64,
    pub issue: f64,
    pub shared: f64,
    pub l2: f64,
    /// Bytes from and to device memory.
    pub dram_bytes: f64,
    /// What the estimate is multiplied with where it is known to be too low.
    pub trust: f64,
}

impl Roofline {
    /// The estimate: the unit's cycles or device memory, whichever takes longer.
    pub fn estimate(&self, target: &Target, footprint: &Footprint, work: &Work) -> Estimate {
        let clock = target.rates.clock_ghz * 1e3;
        let units = f64::from(target.units.max(1));
        let dram_us = self.dram_bytes / (target.rates.dram_gbs * 1e3 * STREAMED);
        let main_us = soft_max(&[self.cycles / clock, dram_us]) * self.trust;
        let us = |cycles: f64| cycles * work.iterations * work.groups / units / clock;
        Estimate {
            main_us,
            math_us: us(self.math),
            issue_us: us(self.issue),
            shared_us: us(self.shared),
            l2_us: us(self.l2),
            dram_us,
            stall_us: (main_us - us(self.busy).max(dram_us)).max(0.0),
            resident: footprint.groups_per_unit,
            imbalance: self.per_unit * units / work.groups.max(1.0),
            dram_bytes: self.dram_bytes,
            ..Estimate::default()
        }
    }
}
