//! Reads of shared memory by many threads at once, for kernels whose order is simple: the fast way, which only says that all is well.

use super::{Clocks, MANY, SharedShadow, THREAD_BITS};

impl SharedShadow {
    /// True if the three functions below can tell anything at all.
    pub(crate) fn is_simple(&self, clocks: &Clocks) -> bool {
        clocks.domains() == 1 && self.atomics.is_empty() && self.races
    }
    /// As [`SharedShadow::read`] for 16 threads from `first` on, one consecutive 4-byte word each. False: some thread is in
    /// trouble or may be, go one by one to find it.
    #[inline(always)]
    pub(crate) fn read_run(&mut self, clocks: &Clocks, word: usize, first: u32) -> bool {
        let (known, now) = (clocks.known(0, 0), clocks.now(0));
        self.reads_begin(0);
        if self.shift != 2 {
            return self.read_each(clocks, &std::array::from_fn(|l| (word + l) as u32), 1, first);
        }
        let (Some(writes), Some(reads)) = (self.writes[word..].first_chunk::<16>(), self.reads[word..].first_chunk_mut::<16>())
        else {
            return false;
        };
        let mut bad = 0;
        for l in 0..16 {
            bad |= (writes[l] >> THREAD_BITS > known) as u32 | (writes[l] == 0) as u32 & self.initialised as u32;
            let mine = now << THREAD_BITS | (first + l as u32);
            let others = reads[l] >> THREAD_BITS == now && reads[l] != mine;
            reads[l] = if others { now << THREAD_BITS | MANY } else { mine };
        }
        bad == 0
    }
    /// As [`SharedShadow::read`] for 16 threads from `first` on, each `width` words from `at` on.
    #[inline(always)]
    pub(crate) fn read_each(&mut self, clocks: &Clocks, at: &[u32; 16], width: usize, first: u32) -> bool {
        let up = 2 - self.shift;
        match width << up {
            1 => self.each::<1>(clocks, at, 1, first),
            4 => self.each::<4>(clocks, at, 1, first),
            n => self.each::<1>(clocks, at, n, first),
        }
    }
    /// `WIDTH` granules per lane, so many times.
    #[inline(always)]
    fn each<const WIDTH: usize>(&mut self, clocks: &Clocks, at: &[u32; 16], times: usize, first: u32) -> bool {
        let (known, now, up) = (clocks.known(0, 0), clocks.now(0), 2 - self.shift);
        self.reads_begin(0);
        let mut bad = 0;
        for (l, &at) in at.iter().enumerate() {
            let mine = now << THREAD_BITS | (first + l as u32);
            for i in 0..times {
                let g = ((at as usize) << up) + i * WIDTH;
                let (Some(writes), Some(reads)) =
                    (self.writes[g..].first_chunk::<WIDTH>(), self.reads[g..].first_chunk_mut::<WIDTH>())
                else {
                    return false;
                };
                for c in 0..WIDTH {
                    let (w, r) = (writes[c], reads[c]);
                    bad |= (w >> THREAD_BITS > known) as u32 | (w == 0) as u32 & self.initialised as u32;
                    reads[c] = if r >> THREAD_BITS == now && r != mine { now << THREAD_BITS | MANY } else { mine };
                }
            }
        }
        bad == 0
    }
    /// As [`SharedShadow::read`] of `width` words by several threads at once.
    #[inline(always)]
    pub(crate) fn read_same(&mut self, clocks: &Clocks, word: usize, width: usize) -> bool {
        let (known, now) = (clocks.known(0, 0), clocks.now(0));
        let up = 2 - self.shift;
        let range = word << up..(word + width) << up;
        if self.writes[range.clone()].iter().any(|&w| w >> THREAD_BITS > known || (w == 0 && self.initialised)) {
            return false;
        }
        self.reads_begin(0);
        self.reads[range].fill(now << THREAD_BITS | MANY);
        true
    }
}
