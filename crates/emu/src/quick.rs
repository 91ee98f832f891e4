//! 32-bit loads from shared memory by all lanes: nearly all accesses of a matrix kernel's main loop, done a block at a time.
//!
//! Everything out of the ordinary (a lane out of bounds, unwritten or racing memory) is left to the slow path. That goes lane by
//! lane and can say what is wrong.

use crate::code::Mem;
use crate::gather::{any, pick};
use crate::lanes::{B32, Files, LANES, Slot};
use crate::shadow::{Clocks, SharedShadow};

/// Loads that differ in constant offset and destination only.
pub(crate) struct Quick<'a> {
    pub(crate) index: Slot,
    /// Lowest and highest offset of the loads, in words.
    pub(crate) lowest: i32,
    pub(crate) highest: i32,
    /// Highest index allowed.
    pub(crate) limit: u32,
    /// First word of the array in shared memory.
    pub(crate) base: usize,
    /// Words per lane.
    pub(crate) lanes: usize,
    pub(crate) loads: &'a [Mem],
    /// First thread of the context.
    pub(crate) first: u32,
    /// Addresses must be multiples of the access.
    pub(crate) aligned: bool,
}

/// Loads blocks from `from` on until one needs care; its number, or the number of blocks.
#[inline(always)]
pub(crate) fn load(
    files: &mut Files,
    words: &[u32],
    mut shadow: Option<(&mut SharedShadow, &Clocks)>,
    q: &Quick<'_>,
    from: usize,
) -> usize {
    let n = q.lanes;
    for block in from..files.blocks {
        let index = files.r32.block(q.index, block).0;
        // Kept lane by lane and joined at the end, which vectorises.
        let (mut outside, mut differs, mut jumps) = ([0; LANES], [0; LANES], [0; LANES]);
        for l in 0..LANES {
            let (low, high) = (index[l].wrapping_add(q.lowest as u32), index[l].wrapping_add(q.highest as u32));
            outside[l] = (low > q.limit) as u32 | (high > q.limit) as u32;
            differs[l] = index[l] ^ index[0];
            jumps[l] = index[l] ^ index[0].wrapping_add(l as u32);
        }
        if any(outside) != 0 {
            return block;
        }
        let (differs, jumps) = (any(differs), any(jumps));
        let first = q.first + (block * LANES) as u32;
        for m in q.loads {
            let offset = (m.address.offset as u32).wrapping_add(q.base as u32);
            let at = index.map(|i| i.wrapping_add(offset));
            if q.aligned && n > 1 && any(at) as usize & (n - 1) != 0 {
                return block;
            }
            if let Some((shadow, clocks)) = &mut shadow {
                let fine = if differs == 0 {
                    shadow.read_same(clocks, at[0] as usize, n)
                } else if jumps == 0 && n == 1 {
                    shadow.read_run(clocks, at[0] as usize, first)
                } else {
                    shadow.read_each(clocks, &at, n, first)
                };
                if !fine {
                    return block;
                }
            }
            let mut put = |c: usize, out| files.r32.get_mut(m.values[c])[block] = B32(out);
            let start = at[0] as usize;
            if differs == 0 {
                for (c, &word) in words[start..start + n].iter().enumerate() {
                    put(c, [word; LANES]);
                }
            } else if let (0, 1, Some(run)) = (jumps, n, words[start..].first_chunk()) {
                put(0, *run);
            } else if !pick(words, &at, n, put) {
                return block;
            }
        }
    }
    files.blocks
}
