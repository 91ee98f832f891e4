//! Accesses to shared memory by agents (bulk copies, warpgroup instructions) and by other work-groups of the cluster.

use std::ops::Range;

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
        self.reads_begin(me);
        // Neighbours were mostly written together.
        let mut well = None;
        for g in self.granules(byte, size) {
            let w = self.written(g)?;
            if self.races {
                if well != Some(w) {
                    for &issuer in issuers {
                        self.reached(clocks, g, issuer)?;
                    }
                    well = Some(w);
                }
                note(&mut self.reads[me * self.granules + g], clocks.now(me), agent);
            }
        }
        Ok(())
    }
    /// A write by an agent that a thread started.
    pub(crate) fn write_by(&mut self, clocks: &Clocks, byte: usize, size: usize, agent: u32, issuer: u32) -> Result<(), Broken> {
        let (me, granules) = (clocks.domain(issuer), self.granules(byte, size));
        let doubtful = self.doubtful(clocks, &granules, clocks, issuer);
        let mut well = None;
        for g in granules {
            if self.races {
                let w = self.writes[g];
                if well != Some(w) && unordered(clocks, w, issuer) {
                    return Err(Broken { byte: g << self.shift, trouble: self.race(g, w, "written") });
                }
                doubtful.iter().try_for_each(|&d| self.against_domain(clocks, g, d, me, issuer, false))?;
                self.visited(g)?;
                if !self.atomics.is_empty() {
                    self.against(clocks, g, me, issuer, true)?;
                }
                if well != Some(w) {
                    self.reached(clocks, g, issuer)?;
                    well = Some(w);
                }
                self.arrived(clocks, g, &doubtful, clocks, issuer)?;
            }
            self.writes[g] = clocks.now(clocks.domain(agent)) << THREAD_BITS | agent;
        }
        Ok(())
    }
    /// Domains some of whose reads of granules a thread, whose clocks are `by`, may not be ordered after, or that may not have arrived. Both hold of
    /// all of a domain's reads where they hold of the latest, and looking for it is much faster than looking at each.
    fn doubtful(&self, clocks: &Clocks, granules: &Range<usize>, by: &Clocks, thread: u32) -> Vec<usize> {
        let fine = |d: usize| {
            let records = &self.reads[d * self.granules..][granules.clone()];
            let latest = records.iter().copied().max().unwrap_or(0) >> THREAD_BITS;
            latest == 0 || (latest <= by.known_to(thread, clocks, d) && by.arrived_at(thread, clocks, d, latest))
        };
        (0..self.readers.len()).filter(|&d| self.readers[d] && !fine(d)).collect()
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
        let granules = self.granules(byte, size);
        let doubtful = self.doubtful(clocks, &granules, by, issuer);
        let mut well = None;
        for g in granules {
            if self.races {
                let w = self.writes[g];
                if well != Some(w) {
                    self.written_before(clocks, g, by, issuer)?;
                    let (writer, epoch) = (w & THREAD_MASK, w >> THREAD_BITS);
                    if epoch != 0 && writer < AGENTS && !by.visible_at(issuer, clocks, writer, epoch) {
                        return Err(Broken { byte: g << self.shift, trouble: Trouble::Unfenced { writer } });
                    }
                    well = Some(w);
                }
                for &d in &doubtful {
                    let r = self.reads[d * self.granules + g];
                    if r != 0 && !by.ordered_at(issuer, clocks, d, r & THREAD_MASK, r >> THREAD_BITS) {
                        return Err(Broken { byte: g << self.shift, trouble: self.race(g, r, "read") });
                    }
                }
                self.visited(g)?;
                self.arrived(clocks, g, &doubtful, by, issuer)?;
            }
            self.writes[g] = clocks.now(clocks.domain(agent)) << THREAD_BITS | agent;
        }
        Ok(())
    }
    /// What threads read must have come to their registers before an agent overwrites it.
    fn arrived(&self, clocks: &Clocks, g: usize, domains: &[usize], by: &Clocks, issuer: u32) -> Result<(), Broken> {
        for &d in domains {
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
