//! Banks of shared memory: how long the accesses of a wave take.

/// Banks of shared memory, four bytes wide each: all targets have as many.
pub const BANKS: usize = 32;
/// Bytes that shared memory hands out in one turn.
const TURN_BYTES: usize = 4 * BANKS;

/// Cycles of one access of `bytes` per lane (lane, first byte) by one wave, and the number of turns it takes at least. Narrow accesses
/// are served 32 lanes at a time, wide ones fewer; lanes that read the same word share it.
pub fn bank_cycles(wave: &[(usize, i64)], bytes: usize) -> (u64, u64) {
    let lanes_per_turn = (TURN_BYTES / bytes.max(4)).max(1);
    let (mut cycles, mut turns) = (0, 0);
    for turn in wave.chunk_by(|x, y| x.0 / lanes_per_turn == y.0 / lanes_per_turn) {
        cycles += u64::from(busiest_bank(turn.iter().map(|(_, at)| *at), bytes as i64));
        turns += 1;
    }
    (cycles, turns)
}

/// Different words that the most wanted bank holds of accesses of `bytes` from each of these bytes on.
pub fn busiest_bank(addresses: impl IntoIterator<Item = i64>, bytes: i64) -> u32 {
    let words = addresses.into_iter().flat_map(|at| at.div_euclid(4)..=(at + bytes - 1).div_euclid(4));
    let mut words: Vec<i64> = words.collect();
    words.sort_unstable();
    words.dedup();
    let mut banks = [0u32; BANKS];
    for w in words {
        banks[w.rem_euclid(BANKS as i64) as usize] += 1;
    }
    banks.iter().copied().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(stride: i64) -> Vec<(usize, i64)> {
        (0..32).map(|l| (l, l as i64 * stride)).collect()
    }

    #[test]
    fn cycles_follow_the_banks() {
        assert_eq!(bank_cycles(&wave(4), 4), (1, 1));
        assert_eq!(bank_cycles(&wave(0), 4), (1, 1), "broadcast");
        assert_eq!(bank_cycles(&wave(8), 4), (2, 1));
        assert_eq!(bank_cycles(&wave(128), 4), (32, 1));
        assert_eq!(bank_cycles(&wave(132), 4), (1, 1), "padded rows");
        assert_eq!(bank_cycles(&wave(16), 16), (4, 4));
        assert_eq!(bank_cycles(&wave(8), 8), (2, 2));
        assert_eq!(bank_cycles(&wave(2), 2), (1, 1), "halves of a word");
        let wide: Vec<_> = (0..64).map(|l| (l, l as i64 * 4)).collect();
        assert_eq!(bank_cycles(&wide, 4), (2, 2), "64 lanes in two turns");
    }
}
