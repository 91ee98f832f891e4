//! Vector clocks: which accesses of one wave another wave is ordered after.
//!
//! Threads that only ever synchronise together form a *domain*: the whole work-group if its kernel has nothing but work-group
//! barriers, else each wave. A domain counts epochs, one more at each barrier it takes part in. `known[a][b]` is the last
//! epoch of `b` that `a` is ordered after. Within a domain, accesses of different threads are ordered by epochs alone: a wave's
//! lanes are not ordered among themselves without a barrier. (Vector clocks as in FastTrack, Flanagan and Freund 2009.)
//!
//! In a cluster every work-group has its own clocks, and rows cover the domains of all work-groups, in the order of ranks. Thread t of rank r
//! is `r << RANK_SHIFT | t`. Rows pass from one work-group to another.
//!
//! *Agents* are asynchronous engines: bulk copies and warpgroup instructions. Their domains follow the domains of the threads, and their
//! thread numbers start at [`AGENTS`].

/// Thread number of the first agent.
pub(crate) const AGENTS: u32 = 1024;

/// Thread numbers of a work-group, agents included, are below `1 << RANK_SHIFT`.
const RANK_SHIFT: u32 = 11;

/// What a thread or a synchronisation object is ordered after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// Last epoch of each domain.
    at: Vec<u32>,
    /// Single threads whose accesses up to an epoch are known beyond that: (thread, epoch).
    single: Vec<(u32, u32)>,
}

impl Row {
    /// Nothing known of so many domains.
    fn new(domains: usize) -> Row {
        Row { at: vec![0; domains], single: Vec::new() }
    }
    /// Learns what another knows.
    pub(crate) fn join(&mut self, other: &Row) {
        if self.at.len() < other.at.len() {
            self.at.resize(other.at.len(), 0);
        }
        for (mine, theirs) in self.at.iter_mut().zip(&other.at) {
            *mine = (*mine).max(*theirs);
        }
        for &(thread, epoch) in &other.single {
            self.single(thread, epoch);
        }
    }
    fn single(&mut self, thread: u32, epoch: u32) {
        match self.single.iter_mut().find(|(t, _)| *t == thread) {
            Some((_, e)) => *e = (*e).max(epoch),
            None => self.single.push((thread, epoch)),
        }
    }
    pub(super) fn covers(&self, domain: usize, thread: u32, epoch: u32) -> bool {
        self.at.get(domain).is_some_and(|&e| epoch <= e) || self.single.iter().any(|&(t, e)| t == thread && epoch <= e)
    }
    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.at.fill(0);
        self.single.clear();
    }
}

/// The lanes of one wave that take part in something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lanes<'a> {
    /// All of the wave.
    All,
    /// These threads only.
    Some(&'a [u32]),
}

/// Epochs of the domains of a work-group.
#[derive(Clone, Debug)]
pub(crate) struct Clocks {
    /// Position in the cluster.
    rank: u32,
    /// Domains of the ranks before.
    base: usize,
    /// Domains of threads.
    teams: usize,
    /// Threads per domain.
    width: u32,
    epoch: Vec<u32>,
    known: Vec<Row>,
    /// What one thread of a domain knows beyond the others: it alone has waited.
    elect: Vec<Option<(u32, Row)>>,
    /// Last epoch of each thread whose writes to shared memory it has made visible to agents.
    fenced: Vec<u32>,
    /// What each domain knew at its last proxy fence.
    clean: Vec<Row>,
    /// Last epoch of each domain of threads whose reads of shared memory have arrived, as far as agents can rely on it.
    arrived: Vec<u32>,
}

impl Clocks {
    #[cfg(test)]
    pub(crate) fn new(threads: u32, width: u32, agents: usize) -> Clocks {
        Clocks::of_cluster(threads, width, agents, 0, 1)
    }
    /// Of the work-group of this rank among so many.
    pub(crate) fn of_cluster(threads: u32, width: u32, agents: usize, rank: u32, groups: u32) -> Clocks {
        let width = width.clamp(1, threads.max(1));
        let teams = threads.div_ceil(width) as usize;
        let own = teams + agents;
        let domains = own * groups.max(1) as usize;
        Clocks {
            rank,
            base: own * rank as usize,
            teams,
            width,
            epoch: vec![1; own],
            known: vec![Row::new(domains); teams],
            elect: vec![None; teams],
            fenced: vec![0; if agents > 0 { threads as usize } else { 0 }],
            clean: vec![Row::new(domains); if agents > 0 { teams } else { 0 }],
            arrived: vec![0; if agents > 0 { teams } else { 0 }],
        }
    }
    /// Back to the start of a work-group.
    pub(crate) fn reset(&mut self) {
        self.epoch.fill(1);
        self.known.iter_mut().for_each(Row::clear);
        self.elect.fill(None);
        self.fenced.fill(0);
        self.clean.iter_mut().for_each(Row::clear);
        self.arrived.fill(0);
    }
    /// Domains of threads and agents.
    pub(crate) fn domains(&self) -> usize {
        self.epoch.len()
    }
    #[inline]
    pub(crate) fn domain(&self, thread: u32) -> usize {
        if thread >= AGENTS {
            self.teams + (thread - AGENTS) as usize
        } else if self.teams == 1 {
            0
        } else {
            (thread / self.width) as usize
        }
    }
    /// Current epoch of a domain.
    #[inline]
    pub(crate) fn now(&self, domain: usize) -> u32 {
        self.epoch[domain]
    }
    /// Last epoch of `other` that all threads of `domain` are ordered after.
    #[inline]
    pub(crate) fn known(&self, domain: usize, other: usize) -> u32 {
        self.known[domain].at[self.base + other]
    }
    /// Last epoch of a domain of work-group `of` that a thread is ordered after, whoever of the domain did something then.
    pub(crate) fn known_to(&self, thread: u32, of: &Clocks, domain: usize) -> u32 {
        let me = self.domain(thread);
        let at = |row: &Row| row.at.get(of.base + domain).copied().unwrap_or(0);
        let elected = self.elect[me].as_ref().filter(|(t, _)| *t == thread).map_or(0, |(_, row)| at(row));
        elected.max(at(&self.known[me]))
    }
    /// A thread or agent of this work-group, as rows name it.
    fn named(&self, thread: u32) -> u32 {
        self.rank << RANK_SHIFT | thread
    }
    /// Domains of the whole cluster.
    fn all(&self) -> usize {
        self.known.first().map_or(0, |row| row.at.len())
    }
    /// Where rows speak of the domain of a thread that they name.
    fn home(&self, named: u32) -> usize {
        let thread = named & ((1 << RANK_SHIFT) - 1);
        let own = if self.teams == 1 { 0 } else { thread / self.width };
        (named >> RANK_SHIFT) as usize * self.domains() + own as usize
    }
    /// True if `thread` is ordered after what thread (or agent) `other` of domain `domain` did in an epoch.
    #[inline]
    pub(crate) fn ordered(&self, thread: u32, domain: usize, other: u32, epoch: u32) -> bool {
        let me = self.domain(thread);
        other == thread
            || epoch <= self.known[me].at[self.base + domain]
            || self.exceptions(me, thread, self.base + domain, self.named(other), epoch)
    }
    #[cold]
    fn exceptions(&self, me: usize, thread: u32, domain: usize, other: u32, epoch: u32) -> bool {
        let elected = self.elect[me].as_ref().is_some_and(|(t, row)| *t == thread && row.covers(domain, other, epoch));
        elected || self.known[me].covers(domain, other, epoch)
    }
    /// True if `thread` is ordered after what thread (or agent) `other` of domain `domain` of work-group `of` did in an epoch.
    pub(crate) fn ordered_at(&self, thread: u32, of: &Clocks, domain: usize, other: u32, epoch: u32) -> bool {
        self.exceptions(self.domain(thread), thread, of.base + domain, of.named(other), epoch)
    }
    /// True if what a thread of work-group `of` wrote to its shared memory is visible to agents that `issuer` starts.
    pub(crate) fn visible_at(&self, issuer: u32, of: &Clocks, writer: u32, epoch: u32) -> bool {
        let fenced = of.fenced.get(writer as usize).is_some_and(|&e| epoch <= e);
        let clean = self.clean.get(self.domain(issuer));
        fenced || clean.is_some_and(|c| c.covers(of.base + of.domain(writer), of.named(writer), epoch))
    }
    /// True if the reads of a domain of work-group `of` in an epoch have come to its registers before the agents that `issuer`
    /// starts. `issuer` is ordered after the domain. A barrier alone does not say so.
    pub(crate) fn arrived_at(&self, issuer: u32, of: &Clocks, domain: usize, epoch: u32) -> bool {
        let fenced = of.arrived.get(domain).is_none_or(|&e| epoch <= e);
        fenced || self.clean.get(self.domain(issuer)).is_some_and(|c| epoch <= c.at[of.base + domain])
    }
    /// Instructions that took what a domain has read are finished.
    pub(crate) fn consumed(&mut self, m: usize) {
        if let Some(arrived) = self.arrived.get_mut(m) {
            *arrived = self.epoch[m];
        }
    }
    /// True if what a thread wrote to shared memory in an epoch is visible to agents that `issuer`, ordered after it, starts.
    pub(crate) fn visible(&self, issuer: u32, writer: u32, epoch: u32) -> bool {
        self.visible_at(issuer, self, writer, epoch)
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
        let joined = self.join(&members);
        for &m in &members {
            self.known[m].clone_from(&joined);
            self.epoch[m] += 1;
        }
    }
    /// What these domains know together, and have done.
    fn join(&mut self, members: &[usize]) -> Row {
        let mut joined = Row::new(self.all());
        for &m in members {
            self.promote(m);
            joined.join(&self.known[m]);
        }
        for &m in members {
            joined.at[self.base + m] = self.epoch[m];
        }
        joined.single.retain(|&(t, e)| joined.at[self.home(t)] < e);
        joined
    }
    /// What all threads of the work-group know and have done, for a barrier of the cluster.
    pub(crate) fn together(&mut self) -> Row {
        let members: Vec<usize> = (0..self.teams).collect();
        self.join(&members)
    }
    /// A barrier of the cluster, at which the work-groups have said this together.
    pub(crate) fn cluster_barrier(&mut self, joined: &Row) {
        for m in 0..self.teams {
            self.known[m].clone_from(joined);
            self.epoch[m] += 1;
        }
    }
    /// A barrier of one domain with itself.
    pub(crate) fn wave_barrier(&mut self, thread: u32) {
        let m = self.domain(thread);
        self.promote(m);
        self.known[m].at[self.base + m] = self.epoch[m];
        self.epoch[m] += 1;
    }
    /// What the elected thread of a domain knows becomes known to all of it.
    fn promote(&mut self, m: usize) {
        if let Some((_, row)) = self.elect[m].take() {
            self.known[m].join(&row);
        }
    }

    /// Where rows speak of a domain of this work-group, and how they name a thread of it.
    pub(super) fn published_name(&self, domain: usize, thread: u32) -> (usize, u32) {
        (self.base + domain, self.named(thread))
    }
    /// Threads of a domain publish what they did: the row to be handed to who acquires it.
    pub(crate) fn release(&mut self, m: usize, lanes: Lanes<'_>) -> Row {
        let mut row = self.known[m].clone();
        let now = self.epoch[m];
        match lanes {
            Lanes::All => {
                if let Some((_, elected)) = &self.elect[m] {
                    row.join(elected);
                }
                row.at[self.base + m] = now;
            }
            Lanes::Some(threads) => {
                for &t in threads {
                    if let Some((_, elected)) = self.elect[m].as_ref().filter(|e| e.0 == t) {
                        row.join(elected);
                    }
                    row.single(self.named(t), now);
                }
            }
        }
        self.epoch[m] += 1;
        row
    }
    /// Threads of a domain learn what a row says. One thread alone keeps it to itself until its wave meets.
    pub(crate) fn acquire(&mut self, m: usize, lanes: Lanes<'_>, row: &Row) {
        match lanes {
            Lanes::Some(&[thread]) => match &mut self.elect[m] {
                Some((t, mine)) if *t == thread => mine.join(row),
                other => {
                    if let Some((_, old)) = other.replace((thread, row.clone())) {
                        self.known[m].join(&old);
                    }
                }
            },
            _ => self.known[m].join(row),
        }
    }
    /// All threads of a domain learn of another domain's epochs.
    pub(crate) fn learn(&mut self, m: usize, other: usize, epoch: u32) {
        let known = &mut self.known[m].at[self.base + other];
        *known = (*known).max(epoch);
    }
    /// Closes an epoch of a domain; gives the one closed.
    pub(crate) fn close(&mut self, domain: usize) -> u32 {
        self.epoch[domain] += 1;
        self.epoch[domain] - 1
    }
    /// A row that says nothing but what an agent did up to an epoch.
    pub(crate) fn only(&self, agent: u32, epoch: u32) -> Row {
        let mut row = Row::new(self.all());
        row.at[self.base + self.domain(agent)] = epoch;
        row
    }
    /// True if some thread is ordered after an agent's epoch.
    pub(crate) fn anyone_knows(&self, agent: u32, epoch: u32) -> bool {
        self.anyone_knows_of(self, agent, epoch)
    }
    /// True if some thread is ordered after what a thread (or agent) of work-group `of` did in an epoch.
    pub(crate) fn anyone_knows_of(&self, of: &Clocks, thread: u32, epoch: u32) -> bool {
        let elected = self.elect.iter().flatten().map(|(_, row)| row);
        let (domain, thread) = (of.base + of.domain(thread), of.named(thread));
        self.known.iter().chain(elected).any(|row| row.covers(domain, thread, epoch))
    }
    /// Threads of a domain make what they and those before them wrote visible to agents.
    pub(crate) fn proxy_fence(&mut self, m: usize, threads: &[u32]) {
        for &t in threads {
            if let Some(f) = self.fenced.get_mut(t as usize) {
                *f = self.epoch[m];
            }
        }
        // Reads of a wave are distinguished by epochs alone.
        let (first, width) = (m * self.width as usize, self.width as usize);
        let all = self.fenced.get(first..(first + width).min(self.fenced.len())).and_then(|fenced| fenced.iter().min().copied());
        if let (Some(arrived), Some(all)) = (self.arrived.get_mut(m), all) {
            *arrived = (*arrived).max(all);
        }
        if let Some(clean) = self.clean.get_mut(m) {
            clean.join(&self.known[m]);
            if let Some((_, row)) = &self.elect[m] {
                clean.join(row);
            }
        }
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
    fn work_groups_of_a_cluster_hear_of_each_other() {
        let make = |rank| Clocks::of_cluster(64, 32, 1, rank, 2);
        let (mut a, mut b) = (make(0), make(1));
        assert!(!b.ordered_at(40, &a, 0, 5, 1));
        let row = a.release(0, Lanes::Some(&[5]));
        b.acquire(1, Lanes::Some(&[40]), &row);
        assert!(b.ordered_at(40, &a, 0, 5, 1) && !b.ordered_at(40, &a, 0, 6, 1) && !b.ordered(40, 0, 5, 1));
        assert!(b.anyone_knows_of(&a, 5, 1) && !a.anyone_knows_of(&b, 40, 1));
        let mut all = a.together();
        all.join(&b.together());
        a.cluster_barrier(&all);
        b.cluster_barrier(&all);
        assert!(b.ordered_at(3, &a, 1, 60, 1) && a.ordered_at(3, &b, 1, 60, 1) && !a.ordered_at(3, &b, 1, 60, 2));
        assert!(a.ordered(3, 1, 60, 1));
    }

    #[test]
    fn a_barrier_orders_its_members_and_nobody_else() {
        let mut c = Clocks::new(128, 32, 0);
        c.barrier(&[(0, 64)]);
        assert_eq!((c.known(0, 1), c.known(1, 0), c.known(0, 2), c.known(2, 0)), (1, 1, 0, 0));
        assert_eq!((c.now(0), c.now(2)), (2, 1));
        // What wave 1 knows of wave 0 travels with it.
        c.barrier(&[(32, 64)]);
        assert_eq!((c.known(2, 0), c.known(2, 1), c.known(0, 2)), (1, 2, 0));
    }

    #[test]
    fn one_domain_knows_all_but_the_current_epoch() {
        let mut c = Clocks::new(256, 256, 0);
        assert_eq!((c.domains(), c.known(0, 0), c.now(0)), (1, 0, 1));
        c.barrier(&[(0, 256)]);
        assert_eq!((c.known(0, 0), c.now(0)), (1, 2));
    }

    #[test]
    fn one_lane_releases_and_acquires_for_itself() {
        let mut c = Clocks::new(64, 32, 1);
        let row = c.release(0, Lanes::Some(&[5]));
        c.acquire(1, Lanes::Some(&[40]), &row);
        assert!(c.ordered(40, 0, 5, 1), "what lane 5 did before");
        assert!(!c.ordered(40, 0, 6, 1), "its neighbour was not asked");
        assert!(!c.ordered(40, 0, 5, 2), "what lane 5 does after");
        assert!(!c.ordered(41, 0, 5, 1), "the other lanes have not waited");
        c.wave_barrier(40);
        assert!(c.ordered(41, 0, 5, 1));
        let all = c.release(0, Lanes::All);
        c.acquire(1, Lanes::All, &all);
        assert!(c.ordered(33, 0, 6, 2));
    }

    #[test]
    fn agents_have_domains_of_their_own() {
        let mut c = Clocks::new(64, 32, 2);
        assert_eq!((c.domain(AGENTS), c.domain(AGENTS + 1), c.domains()), (2, 3, 4));
        let epoch = c.close(3);
        assert!(!c.ordered(0, 3, AGENTS + 1, epoch));
        c.acquire(0, Lanes::All, &c.only(AGENTS + 1, epoch));
        assert!(c.ordered(0, 3, AGENTS + 1, epoch) && !c.ordered(0, 3, AGENTS + 1, epoch + 1));
    }

    #[test]
    fn reads_have_arrived_after_a_fence_of_the_whole_wave() {
        let mut c = Clocks::new(64, 32, 1);
        let lanes: Vec<u32> = (0..32).collect();
        c.proxy_fence(0, &lanes[..31]);
        assert!(!c.arrived_at(40, &c, 0, 1));
        c.proxy_fence(0, &lanes);
        assert!(c.arrived_at(40, &c, 0, 2) && !c.arrived_at(40, &c, 0, 3) && !c.arrived_at(40, &c, 1, 1));
        // Agents' own reads are no fragments.
        assert!(c.arrived_at(40, &c, 2, 9));
        c.consumed(0);
        assert!(c.arrived_at(40, &c, 0, 3));
    }

    #[test]
    fn fences_concern_what_was_written_before() {
        let mut c = Clocks::new(64, 32, 1);
        c.proxy_fence(0, &[3]);
        assert!(c.visible(40, 3, 1) && !c.visible(40, 3, 2) && !c.visible(40, 4, 1));
        // A thread that is ordered after a write may fence for it.
        c.barrier(&[(0, 64)]);
        assert!(!c.visible(40, 4, 2));
        c.proxy_fence(1, &[40]);
        assert!(c.visible(40, 4, 2) && !c.visible(4, 4, 2));
    }
}
