//! Shadow of one global buffer during one launch, shared by all work-groups.
//!
//! A granule remembers its last write, reads and atomics: work-group (plus 1) in the upper half, then epoch and thread as in
//! shared memory. Nothing but fences around atomics orders work-groups with each other (see `order`): any other conflict between
//! two of them is a race whenever it happens. Records are exchanged with sequentially consistent atomics: of two conflicting
//! accesses on two host threads, at least one sees the other. Readers and atomics of several groups, or of several threads of one
//! group, are remembered as such. Where a group's barriers order less than the whole group, only its last reader is.

use super::order::Past;
use super::order::Said;
use super::{Broken, Clocks, Order, Trouble};
use crate::EmuError;
use crate::memory::PAGE;
use crate::pool::{Pages, Pool, cells};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const THREAD_BITS: u32 = 11;
const THREAD_MASK: u64 = (1 << THREAD_BITS) - 1;
const MANY: u64 = THREAD_MASK;
const GROUP_SHIFT: u32 = 32;
const MANY_GROUPS: u64 = u64::MAX;

/// Shadow of one buffer.
#[derive(Debug)]
pub(crate) struct GlobalShadow {
    shift: u32,
    /// Granules.
    len: usize,
    /// There may be atomics.
    atomics: bool,
    pages: Pages<Records>,
    /// Granules that asynchronous copies of a work-group are reading, with the threads that issued them.
    copies: Mutex<HashMap<(u64, usize), Vec<u32>>>,
    /// Entries of `copies`, so that writes need not lock it when there are none.
    copying: AtomicUsize,
    /// What atomics have left at elements, by the byte where these begin.
    left: Mutex<HashMap<usize, Vec<Arc<Said>>>>,
}

/// Accesses to the granules of one page of the buffer.
#[derive(Debug)]
struct Records {
    writes: Box<[AtomicU64]>,
    reads: Box<[AtomicU64]>,
    /// Empty if there are none.
    atomics: Box<[AtomicU64]>,
}

impl Records {
    fn new(granules: usize, atomics: bool) -> Option<Records> {
        let make = |n: usize| cells(n, || AtomicU64::new(0));
        Some(Records { writes: make(granules)?, reads: make(granules)?, atomics: make(if atomics { granules } else { 0 })? })
    }
}

/// Who touches memory, and what orders it with others of its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Toucher<'a> {
    /// Number of the work-group in the launch.
    pub(crate) group: u64,
    pub(crate) thread: u32,
    pub(crate) clocks: &'a Clocks,
    /// What orders its work-group with others.
    pub(crate) order: &'a Order,
}

impl Toucher<'_> {
    fn record(&self) -> u64 {
        let epoch = self.clocks.now(self.clocks.domain(self.thread)) as u64;
        (self.group + 1) << GROUP_SHIFT | epoch << THREAD_BITS & 0xFFFF_FFFF | self.thread as u64
    }
    /// True if another's record is not ordered before this access.
    fn unordered(&self, record: u64) -> bool {
        if record == 0 {
            return false;
        }
        let (epoch, thread) = (((record as u32) >> THREAD_BITS), record & THREAD_MASK);
        if record >> GROUP_SHIFT != self.group + 1 {
            let domain = if thread == MANY { 0 } else { self.clocks.domain(thread as u32) };
            let group = (record >> GROUP_SHIFT) - 1;
            return record == MANY_GROUPS
                || !self.order.ordered_after(self.thread, self.clocks, Past { group, thread: thread as u32, domain, epoch });
        }
        if thread == self.thread as u64 {
            return false;
        }
        let me = self.clocks.domain(self.thread);
        let other = if thread == MANY { 0 } else { self.clocks.domain(thread as u32) };
        epoch > self.clocks.known(me, other)
            && !self.clocks.ordered(self.thread, other, thread as u32, epoch)
            && !self.order.ordered_after(
                self.thread,
                self.clocks,
                Past { group: self.group, thread: thread as u32, domain: other, epoch },
            )
    }
}

impl GlobalShadow {
    /// For `bytes` of memory in granules of `1 << shift` bytes; `atomics` if there may be any.
    pub(crate) fn new(bytes: usize, shift: u32, atomics: bool, pool: &Pool) -> GlobalShadow {
        let pages = Pages::new(bytes.div_ceil(PAGE), pool);
        let len = bytes.div_ceil(1 << shift);
        GlobalShadow {
            shift,
            len,
            atomics,
            pages,
            copies: Mutex::default(),
            copying: AtomicUsize::new(0),
            left: Mutex::default(),
        }
    }
    /// An error if an access could not be noted for want of memory since this was last asked.
    pub(crate) fn intact(&self) -> Result<(), EmuError> {
        self.pages.intact()
    }
    fn granules(&self, byte: usize, size: usize) -> std::ops::Range<usize> {
        byte >> self.shift..((byte + size).div_ceil(1 << self.shift)).min(self.len)
    }
    /// What is noted about a granule's page, and its number there.
    fn records(&self, granule: usize) -> Option<(&Records, usize)> {
        let per_page = PAGE >> self.shift;
        let (page, at) = (granule / per_page, granule % per_page);
        let granules = (self.len - page * per_page).min(per_page);
        let bytes = granules * 8 * if self.atomics { 3 } else { 2 };
        Some((self.pages.touch(page, bytes, || Records::new(granules, self.atomics))?, at))
    }

    /// A read of `size` bytes at `byte`. The trouble comes with the byte concerned.
    pub(crate) fn read(&self, who: Toucher<'_>, byte: usize, size: usize) -> Result<(), Broken> {
        for g in self.granules(byte, size) {
            let Some((records, at)) = self.records(g) else { continue };
            note(&records.reads[at], who);
            self.against(records.writes.get(at), g, who, "written")?;
            self.against(records.atomics.get(at), g, who, "updated atomically")?;
        }
        Ok(())
    }
    /// A write.
    pub(crate) fn write(&self, who: Toucher<'_>, byte: usize, size: usize) -> Result<(), Broken> {
        for g in self.granules(byte, size) {
            let Some((records, at)) = self.records(g) else { continue };
            let old = records.writes[at].swap(who.record(), SeqCst);
            if who.unordered(old) {
                return Err(Broken { byte: g << self.shift, trouble: trouble(old, "written") });
            }
            self.against(records.reads.get(at), g, who, "read")?;
            self.against(records.atomics.get(at), g, who, "updated atomically")?;
            self.copied(g, who)?;
        }
        Ok(())
    }
    /// An atomic, which conflicts with everything but atomics.
    pub(crate) fn atomic(&self, who: Toucher<'_>, byte: usize, size: usize) -> Result<(), Broken> {
        for g in self.granules(byte, size) {
            let Some((records, at)) = self.records(g) else { continue };
            if let Some(record) = records.atomics.get(at) {
                note(record, who);
            }
            self.against(records.writes.get(at), g, who, "written")?;
            self.against(records.reads.get(at), g, who, "read")?;
            self.copied(g, who)?;
        }
        Ok(())
    }
    /// Runs an atomic's update, which returns the old value. The element keeps the row of the thread's last fence. An atomic whose old value is
    /// used (`takes`) also takes the rows that other threads have left.
    pub(crate) fn exchange(&self, byte: usize, order: &mut Order, thread: u32, takes: bool, update: impl FnOnce() -> u64) -> u64 {
        let says = order.published(thread).cloned();
        if says.is_none() && !takes {
            return update();
        }
        let mut all = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let left = all.entry(byte).or_default();
        let before = update();
        if takes {
            order.acquire(thread, left);
        }
        left.extend(says);
        before
    }
    /// True if anything of `size` bytes at `byte` was written; with `reads`, also if it was read.
    pub(crate) fn touched(&self, byte: usize, size: usize, reads: bool) -> bool {
        let per_page = PAGE >> self.shift;
        let is = |records: &[AtomicU64], at: usize| records.get(at).is_some_and(|r| r.load(SeqCst) != 0);
        self.granules(byte, size).any(|g| {
            let at = g % per_page;
            self.pages.get(g / per_page).is_some_and(|r| is(&r.writes, at) || is(&r.atomics, at) || reads && is(&r.reads, at))
        })
    }
    /// An asynchronous copy, noted as a read, goes on reading until [`GlobalShadow::landed`].
    pub(crate) fn launched(&self, who: Toucher<'_>, byte: usize, size: usize) {
        let mut copies = self.lock();
        for g in self.granules(byte, size) {
            copies.entry((who.group, g)).or_default().push(who.thread);
        }
        self.copying.store(copies.len(), SeqCst);
    }
    /// The copy has been waited for.
    pub(crate) fn landed(&self, who: Toucher<'_>, byte: usize, size: usize) {
        let mut copies = self.lock();
        for g in self.granules(byte, size) {
            if let Some(threads) = copies.get_mut(&(who.group, g)) {
                if let Some(i) = threads.iter().position(|&t| t == who.thread) {
                    threads.swap_remove(i);
                }
                if threads.is_empty() {
                    copies.remove(&(who.group, g));
                }
            }
        }
        self.copying.store(copies.len(), SeqCst);
    }
    /// Nobody of this group may be copying what is about to change.
    fn copied(&self, g: usize, who: Toucher<'_>) -> Result<(), Broken> {
        if self.copying.load(SeqCst) == 0 {
            return Ok(());
        }
        match self.lock().get(&(who.group, g)).and_then(|t| t.first()) {
            Some(&issuer) => Err(Broken { byte: g << self.shift, trouble: Trouble::InFlight { issuer } }),
            None => Ok(()),
        }
    }
    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, usize), Vec<u32>>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn against(&self, record: Option<&AtomicU64>, g: usize, who: Toucher<'_>, other: &'static str) -> Result<(), Broken> {
        match record.map(|r| r.load(SeqCst)) {
            Some(r) if who.unordered(r) => Err(Broken { byte: g << self.shift, trouble: trouble(r, other) }),
            _ => Ok(()),
        }
    }
}

fn trouble(record: u64, other: &'static str) -> Trouble {
    let who = match (record >> GROUP_SHIFT, record & THREAD_MASK) {
        _ if record == MANY_GROUPS => "several work-groups".into(),
        (g, MANY) => format!("several threads of work-group number {}", g - 1),
        (g, t) => format!("thread {t} of work-group number {}", g - 1),
    };
    Trouble::Race { other, who }
}

/// Adds an access to a record that several may share.
fn note(record: &AtomicU64, who: Toucher<'_>) {
    let mine = who.record();
    let _ = record.fetch_update(SeqCst, SeqCst, |old| {
        if old == mine || old == MANY_GROUPS {
            return None;
        }
        let same_group = old >> GROUP_SHIFT == mine >> GROUP_SHIFT;
        Some(if old != 0 && !same_group {
            MANY_GROUPS
        } else if old >> THREAD_BITS == mine >> THREAD_BITS && who.clocks.domains() == 1 {
            mine | MANY
        } else {
            mine
        })
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_not_ordered_without_fences() {
        let none = Order::default();
        let (a, b) = (Clocks::new(32, 32, 0), Clocks::new(32, 32, 0));
        let s = GlobalShadow::new(64, 2, true, &Pool::new(u64::MAX));
        let who = |group, thread| Toucher { group, thread, clocks: if group == 0 { &a } else { &b }, order: &none };
        s.write(who(0, 1), 0, 4).unwrap();
        s.read(who(0, 1), 0, 4).unwrap();
        assert!(s.write(who(1, 1), 0, 4).is_err());
        s.read(who(0, 0), 4, 4).unwrap();
        s.read(who(1, 0), 4, 4).unwrap();
        let race = Trouble::Race { other: "read", who: "several work-groups".into() };
        assert_eq!(s.write(who(1, 0), 4, 4), Err(Broken { byte: 4, trouble: race }));
        s.atomic(who(0, 0), 8, 4).unwrap();
        s.atomic(who(1, 0), 8, 4).unwrap();
        assert!(s.read(who(1, 0), 8, 4).is_err());
    }

    #[test]
    fn barriers_order_threads_of_one_group() {
        let none = Order::default();
        let mut c = Clocks::new(32, 32, 0);
        let s = GlobalShadow::new(64, 2, false, &Pool::new(u64::MAX));
        s.write(Toucher { group: 5, thread: 1, clocks: &c, order: &none }, 0, 4).unwrap();
        assert!(s.read(Toucher { group: 5, thread: 2, clocks: &c, order: &none }, 0, 4).is_err());
        c.barrier(&[(0, 32)]);
        s.read(Toucher { group: 5, thread: 2, clocks: &c, order: &none }, 0, 4).unwrap();
        s.read(Toucher { group: 5, thread: 3, clocks: &c, order: &none }, 0, 4).unwrap();
        assert!(s.write(Toucher { group: 5, thread: 2, clocks: &c, order: &none }, 0, 4).is_err());
        c.barrier(&[(0, 32)]);
        s.write(Toucher { group: 5, thread: 2, clocks: &c, order: &none }, 0, 4).unwrap();
    }
}
