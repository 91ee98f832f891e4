//! Numbers what works beside the threads of a work-group: warpgroup instructions, bulk stores, and the bulk loads of each
//! transaction barrier. To the race checks each is one more thread, see [`crate::shadow`].

use crate::code::Code;
use crate::shadow::AGENTS;

/// Thread numbers of the agents of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agents {
    warpgroups: u32,
    waves: u32,
}

impl Agents {
    pub(crate) fn new(code: &Code) -> Agents {
        Agents {
            warpgroups: if code.uses.warpgroups { code.threads.div_ceil(128) } else { 0 },
            waves: if code.uses.bulk_stores { code.threads.div_ceil(code.wave) } else { 0 },
        }
    }
    /// The instructions of a warpgroup.
    pub(crate) const fn warpgroup(&self, number: u32) -> u32 {
        AGENTS + number
    }
    /// The bulk stores of a wave.
    pub(crate) const fn store(&self, wave: u32) -> u32 {
        AGENTS + self.warpgroups + wave
    }
    /// The bulk loads that complete on a transaction barrier.
    pub(crate) const fn load(&self, barrier: usize) -> u32 {
        AGENTS + self.warpgroups + self.waves + barrier as u32
    }
    /// What each is, in order.
    pub(crate) fn names(&self, code: &Code) -> Vec<String> {
        let warpgroups = (0..self.warpgroups).map(|w| format!("an instruction of warpgroup {w}"));
        let stores = (0..self.waves).map(|w| format!("a bulk store of wave {w}"));
        let barriers = code.tx_barriers.iter().flat_map(|t| (0..t.len).map(|i| format!("{}[{i}]", t.name)));
        let loads = barriers.map(|b| format!("a bulk load that completes on `{b}`"));
        warpgroups.chain(stores).chain(loads).collect()
    }
}
