//! Shadow of a work-group's shared memory.
//!
//! Memory is cut in granules, as small as the kernel's smallest shared element. A granule remembers its last write, and for each
//! domain of [`Clocks`] its last reads and atomics. They are `epoch << 11 | thread`, where several threads of one epoch become
//! `MANY`. A granule whose last write is 0 was never written.

mod agents;
mod runs;

use super::clocks::AGENTS;
use super::{Broken, Clocks, Trouble};

const THREAD_BITS: u32 = 11;
const THREAD_MASK: u32 = (1 << THREAD_BITS) - 1;
/// Several threads of one domain in one epoch.
const MANY: u32 = THREAD_MASK - 1;
/// Last write of a granule that an asynchronous copy is filling.
const IN_FLIGHT: u32 = u32::MAX;
/// Epochs that a record can hold, one per barrier; one more is [`IN_FLIGHT`]'s.
pub(crate) const EPOCHS: u32 = (1 << (32 - THREAD_BITS)) - 2;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) initialised: bool,
    pub(crate) races: bool,
}

/// What a kernel does to shared memory beside loads and stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Has {
    pub(crate) atomics: bool,
    pub(crate) copies: bool,
    /// Other work-groups of the cluster read it.
    pub(crate) peers: bool,
}

/// Shadow of one work-group's shared memory.
#[derive(Clone, Debug)]
pub(crate) struct SharedShadow {
    /// log2 of bytes per granule.
    shift: u32,
    granules: usize,
    initialised: bool,
    races: bool,
    writes: Vec<u32>,
    /// Domain after domain.
    reads: Vec<u32>,
    /// Domains that have read since the start of the work-group: the records of all others are 0. Most agents never read.
    readers: Vec<bool>,
    /// As `reads`; empty if the kernel has no shared atomics.
    atomics: Vec<u32>,
    /// Who issued the copy into a granule that is in flight; empty if the kernel has no asynchronous copies.
    issuers: Vec<u16>,
    /// What the agents are, for messages.
    agents: Vec<String>,
    /// One more than the cluster barriers passed when another work-group last read a granule; empty if none does.
    visits: Vec<u32>,
    /// Cluster barriers passed.
    cluster_barriers: u32,
}

impl SharedShadow {
    /// For `bytes` of memory in granules of `1 << shift` bytes, watching initialisation and races as asked for.
    pub(crate) fn new(bytes: usize, shift: u32, domains: usize, watch: Watch, has: Has, agents: Vec<String>) -> SharedShadow {
        let Watch { initialised, races } = watch;
        let granules = bytes.div_ceil(1 << shift);
        SharedShadow {
            shift,
            granules,
            initialised,
            races,
            writes: vec![0; granules],
            reads: vec![0; if races { granules * domains } else { 0 }],
            readers: vec![false; if races { domains } else { 0 }],
            atomics: vec![0; if races && has.atomics { granules * domains } else { 0 }],
            issuers: vec![0; if has.copies { granules } else { 0 }],
            agents,
            visits: vec![0; if races && has.peers { granules } else { 0 }],
            cluster_barriers: 0,
        }
    }
    /// Forgets everything, for the next work-group.
    pub(crate) fn reset(&mut self) {
        self.writes.fill(0);
        for (records, reader) in self.reads.chunks_mut(self.granules.max(1)).zip(&mut self.readers) {
            if std::mem::take(reader) {
                records.fill(0);
            }
        }
        self.atomics.fill(0);
        self.visits.fill(0);
        self.cluster_barriers = 0;
    }
    /// A cluster barrier: what other work-groups have read may be written.
    pub(crate) fn cluster_barrier(&mut self) {
        self.cluster_barriers += 1;
    }
    fn granules(&self, byte: usize, size: usize) -> std::ops::Range<usize> {
        byte >> self.shift..(byte + size).div_ceil(1 << self.shift)
    }

    /// The last write of a granule that is about to be read.
    #[inline(always)]
    fn written(&self, g: usize) -> Result<u32, Broken> {
        match self.writes[g] {
            0 if self.initialised => Err(Broken { byte: g << self.shift, trouble: Trouble::Uninitialised }),
            w => Ok(w),
        }
    }

    /// A read of `size` bytes at `byte`. The trouble comes with the byte concerned.
    #[inline]
    pub(crate) fn read(&mut self, clocks: &Clocks, byte: usize, size: usize, thread: u32) -> Result<(), Broken> {
        let me = clocks.domain(thread);
        self.reads_begin(me);
        for g in self.granules(byte, size) {
            let w = self.written(g)?;
            if self.races {
                if unordered(clocks, w, thread) {
                    return Err(Broken { byte: g << self.shift, trouble: self.race(g, w, "written") });
                }
                if !self.atomics.is_empty() {
                    self.against(clocks, g, me, thread, true)?;
                }
                note(&mut self.reads[me * self.granules + g], clocks.now(me), thread);
            }
        }
        Ok(())
    }
    /// A domain is about to read.
    #[inline]
    fn reads_begin(&mut self, domain: usize) {
        if let Some(reader) = self.readers.get_mut(domain) {
            *reader = true;
        }
    }
    /// A write.
    #[inline]
    pub(crate) fn write(&mut self, clocks: &Clocks, byte: usize, size: usize, thread: u32) -> Result<(), Broken> {
        let me = clocks.domain(thread);
        for g in self.granules(byte, size) {
            if self.races {
                self.may_write(clocks, g, me, thread)?;
            }
            self.writes[g] = clocks.now(me) << THREAD_BITS | thread;
        }
        Ok(())
    }
    fn may_write(&mut self, clocks: &Clocks, g: usize, me: usize, thread: u32) -> Result<(), Broken> {
        let w = self.writes[g];
        if unordered(clocks, w, thread) {
            return Err(Broken { byte: g << self.shift, trouble: self.race(g, w, "written") });
        }
        self.against(clocks, g, me, thread, false)?;
        self.visited(g)?;
        if self.atomics.is_empty() { Ok(()) } else { self.against(clocks, g, me, thread, true) }
    }
    /// An atomic, which conflicts with everything but atomics.
    pub(crate) fn atomic(&mut self, clocks: &Clocks, byte: usize, size: usize, thread: u32) -> Result<(), Broken> {
        let me = clocks.domain(thread);
        for g in self.granules(byte, size) {
            let w = self.written(g)?;
            if self.races {
                if unordered(clocks, w, thread) {
                    return Err(Broken { byte: g << self.shift, trouble: self.race(g, w, "written") });
                }
                self.against(clocks, g, me, thread, false)?;
                if let Some(rec) = self.atomics.get_mut(me * self.granules + g) {
                    note(rec, clocks.now(me), thread);
                }
            }
        }
        Ok(())
    }
    /// A write just noted is an asynchronous copy's: nobody may touch the bytes until it has landed.
    pub(crate) fn launch(&mut self, byte: usize, size: usize, thread: u32) {
        for g in self.granules(byte, size) {
            self.writes[g] = IN_FLIGHT;
            if let Some(issuer) = self.issuers.get_mut(g) {
                *issuer = thread as u16;
            }
        }
    }
    /// The copy has landed, as the thread that waited for it knows.
    pub(crate) fn finish_copy(&mut self, clocks: &Clocks, byte: usize, size: usize, thread: u32) {
        let me = clocks.domain(thread);
        for g in self.granules(byte, size) {
            self.writes[g] = clocks.now(me) << THREAD_BITS | thread;
        }
    }

    /// Checks against the reads (or atomics) of every domain.
    fn against(&self, clocks: &Clocks, g: usize, me: usize, thread: u32, atomics: bool) -> Result<(), Broken> {
        (0..clocks.domains()).try_for_each(|d| self.against_domain(clocks, g, d, me, thread, atomics))
    }
    /// Checks against the last reads (or atomics) of a domain.
    #[inline]
    fn against_domain(&self, clocks: &Clocks, g: usize, d: usize, me: usize, thread: u32, atomics: bool) -> Result<(), Broken> {
        if !atomics && !self.readers[d] {
            return Ok(());
        }
        let r = (if atomics { &self.atomics } else { &self.reads })[d * self.granules + g];
        let epoch = r >> THREAD_BITS;
        if epoch > clocks.known(me, d) && !clocks.ordered(thread, d, r & THREAD_MASK, epoch) {
            let trouble = self.race(g, r, if atomics { "updated atomically" } else { "read" });
            return Err(Broken { byte: g << self.shift, trouble });
        }
        Ok(())
    }
    #[cold]
    fn race(&self, g: usize, record: u32, other: &'static str) -> Trouble {
        if record == IN_FLIGHT {
            return Trouble::InFlight { issuer: self.issuers.get(g).map_or(0, |&t| t as u32) };
        }
        let who = match record & THREAD_MASK {
            MANY => "several threads".into(),
            t if t >= AGENTS => self.agents.get((t - AGENTS) as usize).cloned().unwrap_or_default(),
            t => format!("thread {t}"),
        };
        Trouble::Race { other, who }
    }
}

/// True if a record of another thread is not ordered before `thread`.
#[inline]
fn unordered(clocks: &Clocks, record: u32, thread: u32) -> bool {
    let (epoch, other) = (record >> THREAD_BITS, record & THREAD_MASK);
    if clocks.domains() == 1 {
        return epoch > clocks.known(0, 0) && other != thread;
    }
    match record {
        0 => false,
        IN_FLIGHT => true,
        _ => other != thread && !clocks.ordered(thread, clocks.domain(other), other, epoch),
    }
}

/// Adds a thread to a record of its domain.
#[inline]
fn note(record: &mut u32, now: u32, thread: u32) {
    let mine = now << THREAD_BITS | thread;
    *record = if *record >> THREAD_BITS != now || *record == mine { mine } else { now << THREAD_BITS | MANY };
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Watch = Watch { initialised: true, races: true };

    fn shadow(domains: usize) -> SharedShadow {
        SharedShadow::new(64, 2, domains, ALL, Has { atomics: true, copies: true, peers: false }, vec![])
    }

    #[test]
    fn a_barrier_parts_a_write_from_a_read() {
        let mut c = Clocks::new(64, 64, 0);
        let mut s = shadow(1);
        assert_eq!(s.read(&c, 8, 4, 3), Err(Broken { byte: 8, trouble: Trouble::Uninitialised }));
        s.write(&c, 8, 4, 3).unwrap();
        s.read(&c, 8, 4, 3).unwrap();
        let race = Trouble::Race { other: "written", who: "thread 3".into() };
        assert_eq!(s.read(&c, 8, 4, 4), Err(Broken { byte: 8, trouble: race }));
        c.barrier(&[(0, 64)]);
        s.read(&c, 8, 4, 4).unwrap();
        s.read(&c, 8, 4, 5).unwrap();
        let race = Trouble::Race { other: "read", who: "several threads".into() };
        assert_eq!(s.write(&c, 8, 4, 4), Err(Broken { byte: 8, trouble: race }));
        c.barrier(&[(0, 64)]);
        s.write(&c, 8, 4, 4).unwrap();
    }

    #[test]
    fn reads_of_each_wave_are_remembered() {
        let mut c = Clocks::new(96, 32, 0);
        let mut s = shadow(3);
        s.write(&c, 0, 4, 0).unwrap();
        c.barrier(&[(0, 96)]);
        s.read(&c, 0, 4, 40).unwrap();
        s.read(&c, 0, 4, 80).unwrap();
        // Waves 0 and 2 meet; wave 1's read is still unordered.
        c.barrier(&[(0, 32), (64, 32)]);
        let race = Trouble::Race { other: "read", who: "thread 40".into() };
        assert_eq!(s.write(&c, 0, 4, 0), Err(Broken { byte: 0, trouble: race }));
        c.barrier(&[(0, 64)]);
        s.write(&c, 0, 4, 0).unwrap();
    }

    #[test]
    fn atomics_go_with_atomics_only() {
        let mut c = Clocks::new(32, 32, 0);
        let mut s = shadow(1);
        s.write(&c, 0, 4, 0).unwrap();
        c.barrier(&[(0, 32)]);
        s.atomic(&c, 0, 4, 1).unwrap();
        s.atomic(&c, 0, 4, 2).unwrap();
        assert!(s.read(&c, 0, 4, 3).is_err());
        c.barrier(&[(0, 32)]);
        s.read(&c, 0, 4, 3).unwrap();
        assert!(s.atomic(&c, 0, 4, 4).is_err());
    }

    #[test]
    fn a_copy_in_flight_may_not_be_touched() {
        let mut c = Clocks::new(32, 32, 0);
        let mut s = shadow(1);
        s.write(&c, 16, 16, 7).unwrap();
        s.launch(16, 16, 7);
        for g in [16, 28] {
            assert_eq!(s.read(&c, g, 4, 7), Err(Broken { byte: g, trouble: Trouble::InFlight { issuer: 7 } }));
            assert_eq!(s.write(&c, g, 4, 9), Err(Broken { byte: g, trouble: Trouble::InFlight { issuer: 7 } }));
        }
        s.finish_copy(&c, 16, 16, 7);
        s.read(&c, 16, 4, 7).unwrap();
        assert!(s.read(&c, 16, 4, 8).is_err());
        c.barrier(&[(0, 32)]);
        s.read(&c, 16, 4, 8).unwrap();
    }

    #[test]
    fn whole_blocks_agree_with_single_threads() {
        let mut c = Clocks::new(32, 32, 0);
        let mut s = SharedShadow::new(128, 2, 1, ALL, Has { atomics: false, copies: false, peers: false }, vec![]);
        assert!(s.is_simple(&c));
        assert!(!s.read_run(&c, 0, 0) && !s.read_same(&c, 0, 1), "uninitialised");
        for t in 0..32 {
            s.write(&c, t * 4, 4, t as u32).unwrap();
        }
        assert!(!s.read_run(&c, 0, 1), "this epoch's writes");
        c.barrier(&[(0, 32)]);
        assert!(s.read_run(&c, 0, 0) && s.read_same(&c, 16, 1));
        s.clone().write(&c, 20, 4, 5).unwrap();
        assert!(s.clone().write(&c, 20, 4, 6).is_err());
        assert!(s.write(&c, 64, 4, 16).is_err());
    }
}
