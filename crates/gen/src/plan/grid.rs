//! How threads are laid over a tile: the grid of threads over the result, and the tile that each thread loads.

/// Threads along m and n of a work-group (`MAC`, `SKW`). At skew 10 the grid is as square as a power of two along m allows. Each
/// step below 10 doubles the length along m, each step above it doubles the length along n. `None` where the threads do not
/// divide so.
///
/// ```
/// # use tilewright_gen::plan::thread_grid;
/// assert_eq!(thread_grid(256, 10), Some((16, 16)));
/// assert_eq!(thread_grid(128, 9), Some((32, 4)));
/// assert_eq!(thread_grid(32, 7), None);
/// ```
pub fn thread_grid(threads: u32, skew: u32) -> Option<(u32, u32)> {
    let square = threads.checked_ilog2()?.div_ceil(2);
    let exponent = (square + 10).checked_sub(skew)?;
    let along_m = 1u32.checked_shl(exponent)?;
    threads.is_multiple_of(along_m).then(|| (along_m, threads / along_m))
}

/// Elements (across k, along k) that each of `threads` loads of a tile of `macro_tile` by `k_tile`. They are as long as possible
/// across k, or along it (`PLU`). `None` where the threads do not share the tile evenly.
///
/// The longest side that divides both the tile's and a thread's elements is their greatest common divisor. The quotient
/// for the other side always divides it, so an even share always tiles.
pub fn load_tile(macro_tile: u32, k_tile: u32, threads: u32, along_k: bool) -> Option<(u32, u32)> {
    let total = macro_tile.checked_mul(k_tile)?;
    if threads == 0 || total == 0 || total % threads != 0 {
        return None;
    }
    let each = total / threads;
    let length = gcd(if along_k { k_tile } else { macro_tile }, each);
    let rest = each / length;
    Some(if along_k { (rest, length) } else { (length, rest) })
}

pub(crate) const fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every entry of the reference's table, and the skews on either side of it.
    #[test]
    fn grids_are_those_of_miopengemm() {
        type Row = (u32, u32, &'static [(u32, u32)]);
        let table: [Row; 8] = [
            (64, 7, &[(64, 1), (32, 2), (16, 4), (8, 8), (4, 16), (2, 32), (1, 64)]),
            (32, 8, &[(32, 1), (16, 2), (8, 4), (4, 8), (2, 16), (1, 32)]),
            (128, 7, &[(128, 1), (64, 2), (32, 4), (16, 8), (8, 16), (4, 32), (2, 64), (1, 128)]),
            (256, 7, &[(128, 2), (64, 4), (32, 8), (16, 16), (8, 32), (4, 64), (2, 128)]),
            (1, 10, &[(1, 1)]),
            (4, 9, &[(4, 1), (2, 2), (1, 4)]),
            (16, 8, &[(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)]),
            (48, 10, &[(8, 6)]),
        ];
        for (threads, first, grids) in table {
            for (i, grid) in grids.iter().enumerate() {
                assert_eq!(thread_grid(threads, first + i as u32), Some(*grid), "MAC{threads} SKW{}", first + i as u32);
            }
        }
        for (threads, skew) in
            [(32, 7), (32, 14), (64, 6), (64, 14), (1, 9), (1, 11), (4, 8), (4, 12), (16, 7), (16, 13), (48, 8)]
        {
            assert_eq!(thread_grid(threads, skew), None, "MAC{threads} SKW{skew}");
        }
        assert_eq!(thread_grid(96, 10), Some((8, 12)));
        assert_eq!(thread_grid(192, 10), Some((16, 12)));
    }

    #[test]
    fn grids_are_total() {
        for threads in [0, 1, 3, u32::MAX] {
            for skew in [0, 10, 20, 31, 32, 100, u32::MAX] {
                if let Some((a, b)) = thread_grid(threads, skew) {
                    assert_eq!(a * b, threads);
                }
            }
        }
    }

    #[test]
    fn load_tiles_are_those_of_miopengemm() {
        // The worked example of the reference: MT 128x96, k-tile 8, 256 threads.
        assert_eq!(load_tile(128, 8, 256, false), Some((4, 1)));
        assert_eq!(load_tile(96, 8, 256, false), Some((3, 1)));
        assert_eq!(load_tile(128, 8, 256, true), Some((1, 4)));
        // 3 does not divide 8: along k there is only room for one.
        assert_eq!(load_tile(96, 8, 256, true), Some((3, 1)));
        assert_eq!(load_tile(128, 8, 100, false), None);
        assert_eq!(load_tile(0, 8, 1, false), None);
        assert_eq!(load_tile(u32::MAX, u32::MAX, 1, false), None);
    }

    #[test]
    fn load_tiles_tile() {
        for macro_tile in 1..40 {
            for k_tile in 1..20 {
                for threads in 1..50 {
                    for along_k in [false, true] {
                        if let Some((row, k)) = load_tile(macro_tile, k_tile, threads, along_k) {
                            assert_eq!(row * k * threads, macro_tile * k_tile);
                            assert!(macro_tile % row == 0 && k_tile % k == 0);
                        }
                    }
                }
            }
        }
    }
}
