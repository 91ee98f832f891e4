//! Order between work-groups of a launch: fences around atomics that return the old value of one element.
//!
//! A fence records the accesses that its thread is ordered after (a row of its clocks). An atomic of the thread leaves this row at the element.
//! An atomic that returns the old value takes the rows that other threads have left there. After its next fence the thread is ordered after
//! these rows, and so are the threads that barriers order after it.

use super::{Clocks, Lanes, Row};
use std::collections::HashMap;
use std::sync::Arc;

/// What a thread of a work-group was ordered after at a fence.
#[derive(Debug)]
pub(crate) struct Said {
    group: u64,
    /// Rank of the work-group in its cluster, as its clocks have it: where rows speak of its first domain and thread.
    base: usize,
    first: u32,
    row: Row,
}

/// An access that memory remembers.
#[derive(Clone, Copy)]
pub(super) struct Past {
    /// Number of the thread's work-group in the launch.
    pub(super) group: u64,
    pub(super) thread: u32,
    /// The domain of the thread in its work-group.
    pub(super) domain: usize,
    pub(super) epoch: u32,
}

/// What a work-group has said and heard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    said: HashMap<u32, Arc<Said>>,
    /// What threads have taken since their last fence.
    taken: HashMap<u32, Vec<Arc<Said>>>,
    /// What threads know since an epoch.
    known: Vec<(u32, u32, Vec<Arc<Said>>)>,
}

impl Order {
    /// A fence of a thread.
    pub(crate) fn fence(&mut self, group: u64, thread: u32, clocks: &mut Clocks) {
        let domain = clocks.domain(thread);
        if let Some(taken) = self.taken.remove(&thread) {
            self.known.push((thread, clocks.now(domain), taken));
        }
        let (base, first) = clocks.published_name(0, 0);
        let row = clocks.release(domain, Lanes::Some(&[thread]));
        self.said.insert(thread, Arc::new(Said { group, base, first, row }));
    }
    /// What an atomic of the thread leaves.
    pub(super) fn published(&self, thread: u32) -> Option<&Arc<Said>> {
        self.said.get(&thread)
    }
    /// What others have left, for the thread's next fence.
    pub(super) fn acquire(&mut self, thread: u32, left: &[Arc<Said>]) {
        self.taken.entry(thread).or_default().extend(left.iter().cloned());
    }
    /// True if a thread is ordered after an access of another work-group.
    pub(super) fn ordered_after(&self, thread: u32, clocks: &Clocks, past: Past) -> bool {
        self.known.iter().any(|(by, since, said)| {
            let heard = *by == thread || clocks.ordered(thread, clocks.domain(*by), *by, *since);
            let covers = |said: &&Arc<Said>| {
                said.group == past.group && said.row.covers(said.base + past.domain, said.first | past.thread, past.epoch)
            };
            heard && said.iter().any(|said| covers(&said))
        })
    }
}
