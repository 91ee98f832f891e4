//! What transaction barriers, bulk loads and warpgroup instructions keep from one instruction to the next.

use crate::code::Held;
use crate::shadow::Row;

/// One barrier.
#[derive(Clone, Debug, Default)]
pub(crate) struct Barrier {
    /// Who made it: thread, and epoch of its wave then.
    pub(super) made: Option<(u32, u32)>,
    /// Visible to bulk copies.
    pub(crate) fenced: bool,
    /// Arrivals per phase.
    pub(super) arrivals: u32,
    /// Arrivals that the current phase still waits for.
    pub(super) missing: u32,
    /// Bytes that the current phase still waits for; below 0 if they came before they were expected.
    pub(super) bytes: i64,
    /// Phases completed.
    pub(super) phase: u64,
    /// What the arrivals and copies of the current phase publish.
    pub(super) arriving: Row,
    /// What those of completed phases have published.
    pub(super) published: Row,
    /// Last load that completes on it: its epoch, who issued it, where.
    pub(crate) loaded: Option<(u32, u32, u32)>,
}

impl Barrier {
    pub(super) fn is_waited_for(&self, parity: u32) -> bool {
        // As hardware: the phase of the other parity is the one before the current one, however many went by.
        self.phase & 1 == u64::from(parity)
    }
}

/// A bulk load in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    /// First byte of shared memory.
    pub(crate) to: usize,
    /// Tensor map argument.
    pub(crate) map: usize,
    pub(crate) at: Vec<i64>,
    /// Barrier it completes on.
    pub(crate) tx: usize,
    /// Epoch of the barrier's loads that it belongs to.
    pub(crate) epoch: u32,
    /// Who issued it, where.
    pub(crate) thread: u32,
    pub(crate) site: u32,
}

/// What warpgroup instructions are doing with the registers of a wave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Works {
    /// Registers in use, and the group of the instruction that uses them.
    flying: Vec<(Held, u32)>,
    /// Groups closed.
    closed: u32,
    /// Register arrays touched since the last fence.
    unfenced: Vec<bool>,
}

impl Works {
    /// As at the start of a kernel, with so many register arrays.
    pub(crate) fn reset(&mut self, arrays: usize) {
        self.flying.clear();
        self.closed = 0;
        self.unfenced.clear();
        self.unfenced.resize(arrays, true);
    }
    /// An ordinary access to a register; what is wrong with it, if anything.
    pub(crate) fn touch(&mut self, reg: u32, element: u32, write: bool) -> Option<&'static str> {
        let used = |h: &Held| h.reg == reg && (h.first..h.first + h.count).contains(&element);
        let wrong = self.flying.iter().any(|(h, _)| used(h) && (h.written || write));
        if let Some(unfenced) = self.unfenced.get_mut(reg as usize) {
            *unfenced = true;
        }
        match (wrong, write) {
            (false, _) => None,
            (_, false) => Some("it is read while a warpgroup instruction is working on it: WarpgroupWait first"),
            (_, true) => Some("it is written while a warpgroup instruction is working on it: WarpgroupWait first"),
        }
    }
    /// An instruction starts to work on registers; what is wrong, and with which.
    pub(super) fn start(&mut self, held: &[Held]) -> Option<(Held, &'static str)> {
        for h in held {
            if self.unfenced.get(h.reg as usize).copied().unwrap_or(false) {
                return Some((
                    *h,
                    "it was touched since the last WarpgroupFence, which must stand before the instruction that uses it",
                ));
            }
            let overlaps = |o: &Held| o.reg == h.reg && o.first < h.first + h.count && h.first < o.first + o.count;
            let clash = |o: &Held| overlaps(o) && (o.written || h.written) && o != h;
            if self.flying.iter().any(|(o, _)| clash(o)) {
                return Some((*h, "a warpgroup instruction of another shape is working on it: WarpgroupWait first"));
            }
        }
        for h in held {
            if !self.flying.contains(&(*h, self.closed)) {
                self.flying.push((*h, self.closed));
            }
        }
        None
    }
    /// What was touched may be worked on.
    pub(super) fn fence(&mut self) {
        self.unfenced.fill(false);
    }
    /// Ends a group of instructions.
    pub(super) fn close(&mut self) {
        self.closed += 1;
    }
    pub(super) fn wait(&mut self, pending: u32) {
        let closed = self.closed;
        self.flying.retain(|&(_, group)| group.saturating_add(pending) >= closed);
    }
}
