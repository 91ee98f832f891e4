//! Words of shared memory read by all lanes of a block at once.

use crate::lanes::LANES;

/// Hands `words[at[l] + c]` of all lanes to `put(c, ..)`, for `n` words per lane. False, and nothing done, if a lane is outside.
#[inline(always)]
pub(crate) fn pick(words: &[u32], at: &[u32; LANES], n: usize, mut put: impl FnMut(usize, [u32; LANES])) -> bool {
    let Some(limit) = words.len().checked_sub(n).and_then(|l| u32::try_from(l).ok()) else { return false };
    if any(at.map(|i| (i > limit) as u32)) != 0 {
        return false;
    }
    for c in 0..n {
        let mut out = [0; LANES];
        for l in 0..LANES {
            // SAFETY: `at[l] <= words.len() - n` was checked for every lane above, and `c < n`.
            out[l] = unsafe { *words.get_unchecked(at[l] as usize + c) };
        }
        put(c, out);
    }
    true
}

/// All bits set in any lane.
#[inline(always)]
pub(crate) fn any(x: [u32; LANES]) -> u32 {
    let x: [u32; 8] = std::array::from_fn(|l| x[l] | x[l + 8]);
    let x: [u32; 4] = std::array::from_fn(|l| x[l] | x[l + 4]);
    x[0] | x[1] | x[2] | x[3]
}
