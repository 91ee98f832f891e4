//! What emulated memory takes of the machine's: pages, each taken when it is first touched.
//!
//! A tensor with huge strides therefore costs only the pages that are touched. If the machine has no room for a page, the run
//! that touched it ends with an error. Nothing here waits for the operating system to end the process.

use crate::EmuError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tilewright_ir::memory_left;

/// How much may be taken between two questions to the machine, in bytes.
const STEP: u64 = 64 << 20;

/// An allowance of memory that buffers share. Clones are the same allowance.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: u64,
    used: AtomicU64,
}

impl Pool {
    /// At most `limit` bytes, and no more than the machine has left.
    pub fn new(limit: u64) -> Pool {
        Pool(Arc::new(Account { limit, used: AtomicU64::new(0) }))
    }
    /// Bytes taken.
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }
    /// Takes so many bytes if there is room for them.
    fn take(&self, bytes: u64) -> bool {
        let before = self.0.used.fetch_add(bytes, Relaxed);
        let after = before.saturating_add(bytes);
        let fits =
            after <= self.0.limit && (before / STEP == after / STEP || memory_left().is_none_or(|left| left > bytes + 2 * STEP));
        if !fits {
            self.give(bytes);
        }
        fits
    }
    fn give(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Relaxed);
    }
}

/// An array of cells, or none where the machine has no room for it.
pub(crate) fn cells<T>(count: usize, make: impl Fn() -> T) -> Option<Box<[T]>> {
    let mut all = Vec::new();
    all.try_reserve_exact(count).ok()?;
    all.extend((0..count).map(|_| make()));
    Some(all.into_boxed_slice())
}

/// Pages of a large array, absent until they are touched.
#[derive(Debug)]
pub(crate) struct Pages<P> {
    pages: Box<[OnceLock<P>]>,
    pool: Pool,
    /// Bytes taken from the pool.
    held: AtomicU64,
    /// Bytes of a page that could not be had, 0 if there is none: what was to stand there is lost.
    lost: AtomicU64,
}

impl<P> Pages<P> {
    /// So many pages.
    pub(crate) fn new(count: usize, pool: &Pool) -> Pages<P> {
        let pages = cells(count, OnceLock::new);
        let lost = AtomicU64::new(if pages.is_none() { (count * size_of::<OnceLock<P>>()) as u64 } else { 0 });
        Pages { pages: pages.unwrap_or_default(), pool: pool.clone(), held: AtomicU64::new(0), lost }
    }
    /// A page, if it was touched.
    #[inline]
    pub(crate) fn get(&self, n: usize) -> Option<&P> {
        self.pages.get(n)?.get()
    }
    /// A page, made of `bytes` bytes if this is the first touch. `None`, and noted as a loss, where there is no room for it.
    #[inline]
    pub(crate) fn touch(&self, n: usize, bytes: usize, make: impl FnOnce() -> Option<P>) -> Option<&P> {
        match self.get(n) {
            Some(page) => Some(page),
            None => self.add(n, bytes as u64, make),
        }
    }
    #[cold]
    fn add(&self, n: usize, bytes: u64, make: impl FnOnce() -> Option<P>) -> Option<&P> {
        let place = self.pages.get(n)?;
        let taken = self.lost.load(Relaxed) == 0 && self.pool.take(bytes);
        match taken.then(make).flatten() {
            Some(page) => {
                if place.set(page).is_ok() {
                    self.held.fetch_add(bytes, Relaxed);
                } else {
                    // Another thread was quicker.
                    self.pool.give(bytes);
                }
            }
            None => {
                if taken {
                    self.pool.give(bytes);
                }
                self.lost.fetch_max(bytes, Relaxed);
            }
        }
        place.get()
    }
    /// An error if something was lost since this was last asked.
    pub(crate) fn intact(&self) -> Result<(), EmuError> {
        match self.lost.load(Relaxed) {
            0 => Ok(()),
            _ => Err(EmuError::OutOfMemory { wanted: self.lost.swap(0, Relaxed), used: self.pool.used() }),
        }
    }
}

impl<P> Drop for Pages<P> {
    fn drop(&mut self) {
        self.pool.give(*self.held.get_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_out_of_an_allowance_and_go_back_to_it() {
        let pool = Pool::new(100);
        let pages = Pages::new(4, &pool);
        assert_eq!((pages.get(2), pool.used()), (None, 0));
        assert_eq!(pages.touch(2, 60, || Some(7)), Some(&7));
        assert_eq!(pages.touch(2, 60, || Some(8)), Some(&7));
        assert_eq!((pool.used(), pages.intact()), (60, Ok(())));
        // No room, then again as before.
        assert_eq!(pages.touch(1, 60, || Some(9)), None);
        assert_eq!((pool.used(), pages.intact()), (60, Err(EmuError::OutOfMemory { wanted: 60, used: 60 })));
        assert_eq!(pages.intact(), Ok(()));
        assert_eq!(pages.touch(1, 40, || Some(9)), Some(&9));
        assert_eq!([0, 1, 2, 3].map(|n| pages.get(n).copied()), [None, Some(9), Some(7), None]);
        // Beyond the last.
        assert_eq!(pages.touch(4, 0, || Some(9)), None);
        drop(pages);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_page_that_cannot_be_made_is_lost() {
        let pool = Pool::new(100);
        let pages: Pages<u32> = Pages::new(1, &pool);
        assert_eq!(pages.touch(0, 10, || None), None);
        assert_eq!((pool.used(), pages.intact()), (0, Err(EmuError::OutOfMemory { wanted: 10, used: 0 })));
        assert!(cells(usize::MAX / 16, || 0u64).is_none());
    }
}
