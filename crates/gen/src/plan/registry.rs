//! The table behind [`super::keys`]: one entry per hyperparameter.

use super::keys::{CHIRALS, COMMONS, Chiral, Common, Edges, Key, KeyInfo, Legal, Part, System};
use std::fmt;

impl Chiral {
    /// Its registry entry.
    pub const fn info(self) -> &'static KeyInfo {
        &CHIRAL[self as usize]
    }
}

impl Common {
    /// Its registry entry.
    pub const fn info(self) -> &'static KeyInfo {
        &COMMON[self as usize]
    }
}

impl Key {
    /// A key by part and name; `None` if the part has no such key.
    pub fn named(part: Part, name: &str) -> Option<Key> {
        part.keys().into_iter().find(|k| k.name() == name)
    }
    /// Its registry entry.
    pub const fn info(self) -> &'static KeyInfo {
        match self {
            Key::A(k) | Key::B(k) => k.info(),
            Key::C(k) => k.info(),
        }
    }
    /// Three letters, without the part.
    pub const fn name(self) -> &'static str {
        self.info().name
    }
}

/// `A_MIC`, as messages and constraints name it.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.part().name(), self.name())
    }
}

const BIT: Legal = Legal::OneOf(&[0, 1]);
const BIT_EDGES: Edges = &[(0, &[1]), (1, &[0])];

const fn entry(name: &'static str, system: System, legal: Legal, edges: Edges, default: u32, meaning: &'static str) -> KeyInfo {
    KeyInfo { name, meaning, system, legal, edges, more: &[], default, priority: 0 }
}

const fn classic(name: &'static str, legal: Legal, edges: Edges, default: u32, meaning: &'static str) -> KeyInfo {
    entry(name, System::MiOpenGemm, legal, edges, default, meaning)
}

const fn first(info: KeyInfo) -> KeyInfo {
    KeyInfo { priority: 1, ..info }
}

const fn last(info: KeyInfo) -> KeyInfo {
    KeyInfo { priority: -1, ..info }
}

const fn more(info: KeyInfo, more: Edges) -> KeyInfo {
    KeyInfo { more, ..info }
}

/// Keys of one factor, in the order of [`super::keys::Chiral`].
const CHIRAL: [KeyInfo; CHIRALS] = [
    first(more(
        classic(
            "MIC",
            Legal::Range(1, 64),
            &[
                (1, &[2, 3]),
                (2, &[1, 3, 4]),
                (3, &[1, 2, 4]),
                (4, &[2, 3, 5, 6]),
                (5, &[2, 4, 6]),
                (6, &[4, 5, 8]),
                (8, &[4, 6, 10]),
                (10, &[8, 6, 5]),
            ],
            8,
            "micro tile: elements of C per thread along this operand; rows x columns with a matrix unit: UNI1 16 x 8 per wave, UNI2 64 x 8 per warpgroup, UNI3 16 x 16 per wave",
        ),
        &[
            (1, &[4]),
            (4, &[1, 8]),
            (8, &[12, 16]),
            (12, &[8, 16]),
            (16, &[8, 12, 20, 24, 32]),
            (20, &[16, 24]),
            (24, &[16, 20, 28, 32]),
            (28, &[24, 32]),
            (32, &[16, 24, 28]),
        ],
    )),
    classic(
        "PAD",
        Legal::Range(0, 32),
        &[(0, &[1]), (1, &[0, 2]), (2, &[1])],
        1,
        "padding of each shared-memory row, in vectors (of VEW, or the wider of FRW and shared stores; of 8 elements with mma.sync and MFMA, UNI1 and UNI3)",
    ),
    classic("PLU", BIT, BIT_EDGES, 0, "load tile of a thread: 0 as long as possible across k, 1 as long as possible along k"),
    classic("LIW", BIT, BIT_EDGES, 0, "a thread's load tile: 0 contiguous, 1 interleaved with the other threads'"),
    classic("MIW", BIT, BIT_EDGES, 1, "a thread's rows or columns of C: 0 contiguous, 1 interleaved with the other threads'"),
    classic(
        "WOS",
        Legal::Range(0, 2),
        &[(0, &[1, 2]), (1, &[0, 2]), (2, &[0, 1])],
        0,
        "workspace: 0 load in place, 1 from a copy with padded leading dimension, 2 from packed panels",
    ),
    more(
        classic(
            "VEW",
            Legal::OneOf(&[1, 2, 4, 8]),
            &[(1, &[2]), (2, &[1, 4]), (4, &[2, 1])],
            1,
            "vector width of global loads, shared stores and fragment reads, and so the unit of PAD",
        ),
        &[(1, &[4]), (4, &[8]), (8, &[4])],
    ),
    entry(
        "LOR",
        System::Tilewright,
        BIT,
        BIT_EDGES,
        0,
        "order of load tiles over adjacent threads: 0 along k first, 1 across k first",
    ),
    entry(
        "GLW",
        System::Tensile,
        Legal::OneOf(&[0, 1, 2, 4, 8]),
        &[(0, &[1, 2, 4]), (1, &[0, 2, 4]), (2, &[0, 1, 4]), (4, &[0, 1, 2, 8]), (8, &[0, 4])],
        0,
        "elements per global load in the operand's contiguous direction, along k too; 0 = VEW, across k",
    ),
    entry(
        "FRW",
        System::Tensile,
        Legal::OneOf(&[0, 1, 2, 4, 8, 16]),
        &[(0, &[1, 2, 4]), (1, &[0, 2, 4]), (2, &[0, 1, 4]), (4, &[0, 1, 2, 8]), (8, &[0, 4, 16]), (16, &[8])],
        0,
        "elements per read from shared memory to fragments, and the unit of MIW; 0 = VEW",
    ),
    more(
        entry(
            "ACP",
            System::Cutlass,
            Legal::OneOf(&[0, 1, 2, 3]),
            BIT_EDGES,
            0,
            "copy method to shared memory: 0 through registers (with wgmma, UNI2: those of the producer waves, LWV), 1 cp.async (needs PFG and BUF; sm_80 and up), 2 TMA (wgmma; sm_90a), 3 TMA to a staging buffer, from where producer waves shift misaligned rows into place (wgmma; sm_90a)",
        ),
        &[(0, &[2, 3]), (2, &[0, 3]), (3, &[0, 2])],
    ),
    entry(
        "CLU",
        System::Cutlass,
        Legal::OneOf(&[1, 2, 4, 8]),
        &[(1, &[2]), (2, &[1, 4]), (4, &[2, 8]), (8, &[4])],
        1,
        "wgmma: work-groups side by side along this operand's rows that form a cluster; each copies a part of the other operand's tile for all of them (multicast)",
    ),
];

const POWERS: Edges = &[
    (1, &[2]),
    (2, &[1, 4]),
    (4, &[2, 8]),
    (8, &[4, 16]),
    (16, &[8, 32]),
    (32, &[16, 64]),
    (64, &[16, 32, 128]),
    (128, &[32, 64]),
];

/// Keys of the whole plan, in the order of [`super::keys::Common`].
const COMMON: [KeyInfo; COMMONS] = [
    first(classic("UNR", Legal::Range(1, 1024), POWERS, 16, "k-tile: depth of one main loop step")),
    classic(
        "GAL",
        Legal::Range(1, 3),
        &[(1, &[2, 3]), (2, &[1, 3]), (3, &[1, 2])],
        3,
        "order of work-groups over tiles of C: 1 n fastest, 2 m fastest, 3 strips of tiles (see NAW)",
    ),
    classic("PUN", BIT, BIT_EDGES, 1, "ask for unrolling of load, fragment, math and store loops"),
    first(more(
        classic(
            "ICE",
            Legal::Range(1, 4096),
            &[
                (1, &[2]),
                (2, &[1, 3, 4]),
                (3, &[1, 2, 4, 6]),
                (4, &[1, 3, 5, 7]),
                (5, &[1, 2, 4, 6, 8]),
                (6, &[1, 3, 5, 7, 9]),
                (7, &[4, 6, 8, 10]),
                (8, &[1, 5, 7, 9, 11]),
                (9, &[6, 8, 10, 12]),
                (10, &[1, 7, 9, 11, 13]),
                (11, &[8, 10, 12, 14]),
                (12, &[1, 9, 11, 13, 14]),
                (13, &[10, 12, 14]),
                (14, &[1, 11, 13]),
            ],
            1,
            "split-k: work-groups per tile of C",
        ),
        &[
            (1, &[4, 8]),
            (4, &[8]),
            (8, &[4, 16]),
            (14, &[16]),
            (16, &[8, 14, 32]),
            (32, &[16, 64]),
            (64, &[32, 128]),
            (128, &[64]),
        ],
    )),
    classic("IWI", BIT, BIT_EDGES, 0, "split-k: 0 contiguous ranges of k, 1 round-robin by k-tiles"),
    last(classic("SZT", BIT, BIT_EDGES, 0, "index arithmetic: 0 as narrow as the problem allows, 1 all 64-bit")),
    last(classic("MAD", BIT, BIT_EDGES, 0, "multiply-add: 0 written c += a * b, 1 written fma(a, b, c)")),
    classic(
        "NAW",
        Legal::Range(1, 65536),
        &[(16, &[64]), (64, &[16])],
        64,
        "GAL3: work-groups meant to run at once; strips are sqrt(NAW / ICE) tiles wide",
    ),
    classic("UFO", BIT, BIT_EDGES, 0, "start each work-group at a different offset in k"),
    first(classic("MAC", Legal::Range(1, 1024), &[], 256, "threads per work-group that compute")),
    classic(
        "SKW",
        Legal::Range(0, 20),
        &[(7, &[8]), (8, &[7, 9]), (9, &[8, 10]), (10, &[9, 11]), (11, &[10, 12]), (12, &[11, 13]), (13, &[12])],
        10,
        "shape of the thread grid: 10 square, each step below doubles its length along m, each above along n",
    ),
    last(classic("AFI", BIT, BIT_EDGES, 1, "order in definitions, loads and loops: 0 B before A, 1 A before B")),
    last(classic("MIA", BIT, BIT_EDGES, 0, "adjacent threads are neighbours along m (0) or n (1)")),
    entry(
        "EDG",
        System::Tilewright,
        BIT,
        BIT_EDGES,
        0,
        "tiles over the edge of C: 0 pulled back (needs m, n of at least a tile), 1 predicated (any size)",
    ),
    more(
        entry(
            "SKS",
            System::Cutlass,
            Legal::Range(0, 2),
            BIT_EDGES,
            0,
            "split-k reduction: 0 atomic additions into C (order varies), 1 partial sums in workspace, added by a second kernel in fixed order, 2 through the shared memory of a cluster of all splits, in fixed order (wgmma)",
        ),
        &[(0, &[2]), (1, &[2]), (2, &[0, 1])],
    ),
    entry(
        "CVW",
        System::Tensile,
        Legal::OneOf(&[1, 2, 4]),
        &[(1, &[2, 4]), (2, &[1, 4]), (4, &[1, 2])],
        1,
        "elements per store of C in its contiguous direction",
    ),
    entry("CST", System::Cutlass, BIT, BIT_EDGES, 0, "result tile: 0 stored from registers, 1 staged through shared memory"),
    entry(
        "WVA",
        System::Cutlass,
        Legal::OneOf(&[0, 1, 2, 4, 8, 16, 32, 64]),
        &[(0, &[4, 8]), (1, &[2]), (2, &[1, 4]), (4, &[0, 2, 8]), (8, &[0, 4, 16]), (16, &[8, 32]), (32, &[16, 64]), (64, &[32])],
        0,
        "lanes of a wave along m when it covers a compact rectangle of micro tiles; 0 = plain order",
    ),
    entry(
        "MVW",
        System::Tilewright,
        Legal::OneOf(&[1, 2, 4, 8, 16]),
        &[(1, &[4, 8]), (2, &[1, 4]), (4, &[1, 2, 8]), (8, &[1, 4, 16]), (16, &[8])],
        1,
        "elements of vector arithmetic along n (devices without waves profit)",
    ),
    last(entry(
        "MGP",
        System::Tilewright,
        Legal::Range(0, 8),
        &[(0, &[1, 2, 3]), (1, &[0, 2]), (2, &[0, 1, 3]), (3, &[0, 2, 4]), (4, &[0, 3])],
        0,
        "work-groups per compute unit to leave registers for; 0 = compiler's choice",
    )),
    last(entry("UKL", System::Tilewright, BIT, BIT_EDGES, 0, "unroll the k loop within a k-tile fully")),
    first(entry(
        "PFG",
        System::Tensile,
        Legal::Range(0, 11),
        &[(0, &[1]), (1, &[0, 2]), (2, &[1, 3]), (3, &[2, 4]), (4, &[3])],
        0,
        "k-tiles that global loads or copies run ahead of the math",
    )),
    entry(
        "BUF",
        System::Tvm,
        Legal::Range(1, 12),
        &[(1, &[2]), (2, &[1, 3]), (3, &[2, 4]), (4, &[3, 5]), (5, &[4, 6]), (6, &[5, 7]), (7, &[6, 8]), (8, &[7])],
        1,
        "shared-memory buffers per operand",
    ),
    entry(
        "STP",
        System::Tvm,
        Legal::Range(0, 2),
        &[(0, &[1, 2]), (1, &[0, 2]), (2, &[0, 1])],
        0,
        "store to shared memory: 0 right after the fetch, 1 after the math of the tile, 2 spread between its k-steps",
    ),
    entry(
        "FRA",
        System::Tvm,
        Legal::Range(0, 2),
        &[(0, &[1]), (1, &[0, 2]), (2, &[1])],
        0,
        "k-steps that fragments are read ahead of the math",
    ),
    entry(
        "LWV",
        System::ComposableKernel,
        Legal::Range(0, 16),
        &[(0, &[1, 2, 4]), (1, &[0, 2]), (2, &[0, 1, 4]), (4, &[0, 2, 8]), (8, &[4])],
        0,
        "producer waves, which only load, while the MAC threads only compute; 0 = every wave does both",
    ),
    last(entry(
        "HNT",
        System::Tensile,
        BIT,
        BIT_EDGES,
        0,
        "fences for the compiler's scheduler between loads, math and stores, where the target has them",
    )),
    entry(
        "BIM",
        System::Sofie,
        BIT,
        BIT_EDGES,
        0,
        "convolution: 0 one sample per batch entry g, 1 batch merged into m (no effect on a GEMM)",
    ),
    entry(
        "UNI",
        System::Cutlass,
        Legal::Range(0, 3),
        &[],
        0,
        "math unit: 0 fused multiply-add; for 16-bit operands: 1 mma.sync (sm_80 and up), 2 wgmma (ACP2, or ACP0 or ACP3 with LWV; sm_90a), 3 MFMA (gfx90a, gfx942, gfx950); 1 and 2 also for tf32",
    ),
    entry(
        "SWP",
        System::Cutlass,
        BIT,
        BIT_EDGES,
        0,
        "matrix units: 1 swaps the operands (computes C transposed = B transposed times A transposed); the A_ and B_ keys then refer to the swapped operands",
    ),
    entry(
        "PST",
        System::Cutlass,
        Legal::Range(0, 65535),
        &[],
        0,
        "number of persistent work-groups, each computing tile after tile of C; 0 = one work-group per tile",
    ),
    entry(
        "PNG",
        System::Cutlass,
        BIT,
        BIT_EDGES,
        0,
        "wgmma, persistent work-groups (LWV, PST): 0 all warpgroups compute one tile of C together, 1 ping-pong: each warpgroup has tiles of its own, one stores while the other computes",
    ),
    entry(
        "RGA",
        System::Cutlass,
        Legal::OneOf(&[0, 2, 4]),
        &[(0, &[2, 4]), (2, &[0, 4]), (4, &[0, 2])],
        0,
        "wgmma: where instructions read the operand of C's rows (the left one after SWP): 0 shared memory, 2 or 4 registers, with that many sets of fragments",
    ),
];

#[cfg(test)]
mod tests {
    use super::super::keys::*;

    #[test]
    fn the_table_stands_in_key_order() {
        for key in Key::all() {
            let variant = match key {
                Key::A(k) | Key::B(k) => format!("{k:?}"),
                Key::C(k) => format!("{k:?}"),
            };
            assert_eq!(variant.to_uppercase(), key.name());
        }
        assert_eq!(Key::all().filter(|k| k.info().is_classic()).count(), 27);
        assert_eq!(Key::all().count(), 2 * CHIRALS + COMMONS);
    }

    #[test]
    fn values_are_legal_and_edges_lead_to_legal_values() {
        for key in Key::all() {
            let info = key.info();
            assert!(info.legal.contains(info.default), "{key}");
            for (from, to) in info.edges.iter().chain(info.more) {
                assert!(info.legal.contains(*from), "{key}{from}");
                for v in to.iter() {
                    assert!(info.legal.contains(*v) && v != from, "{key}{from} -> {v}");
                }
            }
        }
    }
}
