//! Vector clocks: which accesses of one wave another wave is ordered behind.
//!
//! Threads that only ever synchronise together form a *domain*: the whole work-group if its kernel has nothing but work-group
//! barriers, else each wave. A domain counts epochs, one more at each barrier it takes part in. `known[a][b]` is the last
//! epoch of `b` that `a` is ordered behind. Within a domain, accesses of different threads are ordered by epochs alone: a wave's
//! lanes are not ordered among themselves without a barrier. (Vector clocks as in FastTrack, Flanagan and Freund 2009.)

/// Epochs of the domains of a work-group.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    domains: usize,
    /// Threads per domain.
    width: u32,
    epoch: Vec<u32>,
    known: Vec<u32>,
}

impl Clocks {
    pub(crate) fn new(threads: u32, width: u32) -> Clocks {
        let width = width.clamp(1, threads.max(1));
        let domains = threads.div_ceil(width) as usize;
        Clocks { domains, width, epoch: vec![1; domains], known: vec![0; domains * domains] }
    }
    /// Back to the start of a work-group.
    pub(crate) fn reset(&mut self) {
        self.epoch.fill(1);
        self.known.fill(0);
    }
    pub(crate) fn domains(&self) -> usize {
        self.domains
    }
    #[inline]
    pub(crate) fn domain(&self, thread: u32) -> usize {
        if self.domains == 1 { 0 } else { (thread / self.width) as usize }
    }
    /// Current epoch of a domain.
    #[inline]
    pub(crate) fn now(&self, domain: usize) -> u32 {
        self.epoch[domain]
    }
    /// Last epoch of `other` that `domain` is ordered behind.
    #[inline]
    pub(crate) fn known(&self, domain: usize, other: usize) -> u32 {
        self.known[domain * self.domains + other]
    }
    /// A barrier among the domains of these threads, given as ranges of thread numbers.
    pub(crate) fn barrier(&mut self, threads: &[(u32, u32)]) {
        let mut members: Vec<usize> = Vec::new();
        for &(first, n) in threads {
            if n > 0 {
                members.extend(self.domain(first)..=self.domain(first + n - 1));
            }
        }
        members.sort_unstable();
        members.dedup();
        let d = self.domains;
        let mut joined = vec![0; d];
        for &m in &members {
            for (j, k) in joined.iter_mut().zip(&self.known[m * d..(m + 1) * d]) {
                *j = (*j).max(*k);
            }
        }
        for &m in &members {
            joined[m] = self.epoch[m];
        }
        for &m in &members {
            self.known[m * d..(m + 1) * d].copy_from_slice(&joined);
            self.epoch[m] += 1;
        }
    }
    /// A barrier of one domain with itself.
    pub(crate) fn wave_barrier(&mut self, thread: u32) {
        let m = self.domain(thread);
        self.known[m * self.domains + m] = self.epoch[m];
        self.epoch[m] += 1;
    }
    /// The highest epoch of any domain.
    pub(crate) fn latest(&self) -> u32 {
        self.epoch.iter().copied().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_orders_its_members_and_nobody_else() {
        let mut c = Clocks::new(128, 32);
        c.barrier(&[(0, 64)]);
        assert_eq!((c.known(0, 1), c.known(1, 0), c.known(0, 2), c.known(2, 0)), (1, 1, 0, 0));
        assert_eq!((c.now(0), c.now(2)), (2, 1));
        // What wave 1 knows of wave 0 travels with it.
        c.barrier(&[(32, 64)]);
        assert_eq!((c.known(2, 0), c.known(2, 1), c.known(0, 2)), (1, 2, 0));
    }

    #[test]
    fn one_domain_knows_all_but_the_current_epoch() {
        let mut c = Clocks::new(256, 256);
        assert_eq!((c.domains(), c.known(0, 0), c.now(0)), (1, 0, 1));
        c.barrier(&[(0, 256)]);
        assert_eq!((c.known(0, 0), c.now(0)), (1, 2));
    }
}
