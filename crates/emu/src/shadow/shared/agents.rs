//! Accesses to shared memory by agents (bulk copies, warpgroup instructions) and by other work-groups of the cluster.

use super::{AGENTS, Broken, Clocks, IN_FLIGHT, SharedShadow, THREAD_BITS, THREAD_MASK, Trouble, note, unordered};

impl SharedShadow {
    /// A read by an agent that these threads started together.
    pub(crate) fn read_by(
        &mut self,
        clocks: &Clocks,
        byte: usize,
        size: usize,
        agent: u32,
        issuers: &[u32],
    ) -> Result<(), Broken> {
        let me = clocks.domain(agent);
        for g in self.granules(byte, size) {
            self.written(g)?;
            if self.races {
                for &issuer in issuers {
                    self.reached(clocks, g, issuer)?;
                }
                note(&mut self.reads[me * self.granules + g], clocks.now(me), agent);
            }
        }
        Ok(())
    }
    /// A write by an agent that a thread started.
    pub(crate) fn write_by(&mut self, clocks: &Clocks, byte: usize, size: usize, agent: u32, issuer: u32) -> Result<(), Broken> {
        for g in self.granules(byte, size) {
            if self.races {
                self.may_write(clocks, g, clocks.domain(issuer), issuer)?;
                self.reached(clocks, g, issuer)?;
                self.arrived(clocks, g, clocks, issuer)?;
            }
            self.writes[g] = clocks.now(clocks.domain(agent)) << THREAD_BITS | agent;
        }
        Ok(())
    }
    /// A granule that another work-group has read may be written after the next cluster barrier.
    pub(super) fn visited(&self, g: usize) -> Result<(), Broken> {
        match self.visits.get(g) {
            Some(&visit) if visit > self.cluster_barriers => {
                let who = "another work-group of the cluster".into();
                Err(Broken { byte: g << self.shift, trouble: Trouble::Race { other: "read", who } })
            }
            _ => Ok(()),
        }
    }
    /// A read by a thread of another work-group of the cluster, whose clocks are `by`.
    pub(crate) fn read_by_peer(
        &mut self,
        clocks: &Clocks,
        byte: usize,
        size: usize,
        by: &Clocks,
        thread: u32,
    ) -> Result<(), Broken> {
        for g in self.granules(byte, size) {
            self.written(g)?;
            if self.races {
                self.written_before(clocks, g, by, thread)?;
                if let Some(visit) = self.visits.get_mut(g) {
                    *visit = self.cluster_barriers + 1;
                }
            }
        }
        Ok(())
    }
    /// A write by an agent of this work-group that a thread of another one started.
    pub(crate) fn write_by_peer(
        &mut self,
        clocks: &Clocks,
        byte: usize,
        size: usize,
        agent: u32,
        by: &Clocks,
        issuer: u32,
    ) -> Result<(), Broken> {
        for g in self.granules(byte, size) {
            if self.races {
                self.written_before(clocks, g, by, issuer)?;
                let (writer, epoch) = (self.writes[g] & THREAD_MASK, self.writes[g] >> THREAD_BITS);
                if epoch != 0 && writer < AGENTS && !by.visible_at(issuer, clocks, writer, epoch) {
                    return Err(Broken { byte: g << self.shift, trouble: Trouble::Unfenced { writer } });
                }
                for d in 0..clocks.domains() {
                    let r = self.reads[d * self.granules + g];
                    if r != 0 && !by.ordered_at(issuer, clocks, d, r & THREAD_MASK, r >> THREAD_BITS) {
                        return Err(Broken { byte: g << self.shift, trouble: self.race(g, r, "read") });
                    }
                }
                self.visited(g)?;
                self.arrived(clocks, g, by, issuer)?;
            }
            self.writes[g] = clocks.now(clocks.domain(agent)) << THREAD_BITS | agent;
        }
        Ok(())
    }
    /// What threads read must have come to their registers before an agent overwrites it.
    fn arrived(&self, clocks: &Clocks, g: usize, by: &Clocks, issuer: u32) -> Result<(), Broken> {
        for d in 0..clocks.domains() {
            let r = self.reads[d * self.granules + g];
            if r != 0 && !by.arrived_at(issuer, clocks, d, r >> THREAD_BITS) {
                return Err(Broken { byte: g << self.shift, trouble: Trouble::Unread });
            }
        }
        Ok(())
    }
    /// The last write must be ordered before a thread of another work-group.
    fn written_before(&self, clocks: &Clocks, g: usize, by: &Clocks, thread: u32) -> Result<(), Broken> {
        let w = self.writes[g];
        let (writer, epoch) = (w & THREAD_MASK, w >> THREAD_BITS);
        let known = |writer| by.ordered_at(thread, clocks, clocks.domain(writer), writer, epoch);
        match w {
            0 => Ok(()),
            w if w != IN_FLIGHT && known(writer) => Ok(()),
            w => Err(Broken { byte: g << self.shift, trouble: self.race(g, w, "written") }),
        }
    }
    /// The last write must be ordered before an agent's issuer, and fenced if it was an ordinary one.
    #[inline]
    fn reached(&self, clocks: &Clocks, g: usize, issuer: u32) -> Result<(), Broken> {
        let w = self.writes[g];
        if unordered(clocks, w, issuer) {
            return Err(Broken { byte: g << self.shift, trouble: self.race(g, w, "written") });
        }
        let writer = w & THREAD_MASK;
        if w != 0 && writer < AGENTS && !clocks.visible(issuer, writer, w >> THREAD_BITS) {
            return Err(Broken { byte: g << self.shift, trouble: Trouble::Unfenced { writer } });
        }
        Ok(())
    }
}
