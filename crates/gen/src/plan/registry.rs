//! The table behind [`super::keys`]: one entry per hyperparameter.

use super::keys::{CHIRALS, COMMONS, Chiral, Common, Key, KeyInfo, Legal, Part, System};
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

const fn entry(name: &'static str, system: System, legal: Legal, default: u32, meaning: &'static str) -> KeyInfo {
    KeyInfo { name, meaning, system, legal, default }
}

const fn classic(name: &'static str, legal: Legal, default: u32, meaning: &'static str) -> KeyInfo {
    entry(name, System::MiOpenGemm, legal, default, meaning)
}

/// Keys of one factor, in the order of [`super::keys::Chiral`].
const CHIRAL: [KeyInfo; CHIRALS] = [
    classic(
        "MIC",
        Legal::Range(1, 64),
        8,
        "micro tile: elements of C per thread along this operand; rows x columns with a matrix unit: UNI1 16 x 8 per wave, UNI2 64 x 8 per warpgroup, UNI3 16 x 16 per wave",
    ),
    classic(
        "PAD",
        Legal::Range(0, 32),
        1,
        "padding of each shared-memory row, in vectors (of VEW, or the wider of FRW and shared stores; of 8 elements with mma.sync and MFMA, UNI1 and UNI3); windows copied once (ACP4) without padding have their 16-byte chunks permuted, where lines and strides are powers of two",
    ),
    classic("PLU", BIT, 0, "load tile of a thread: 0 as long as possible across k, 1 as long as possible along k"),
    classic("LIW", BIT, 0, "a thread's load tile: 0 contiguous, 1 interleaved with the other threads'"),
    classic("MIW", BIT, 1, "a thread's rows or columns of C: 0 contiguous, 1 interleaved with the other threads'"),
    classic(
        "WOS",
        Legal::Range(0, 3),
        0,
        "workspace: 0 load in place, 1 from a copy with padded leading dimension, 2 from packed panels, 3 through the operand's view of a copy of its tensor with rows of channels padded to 16 bytes, transposed where channels are planes (convolutions)",
    ),
    classic(
        "VEW",
        Legal::OneOf(&[1, 2, 4, 8]),
        1,
        "vector width of global loads, shared stores and fragment reads, and so the unit of PAD",
    ),
    entry("LOR", System::Tilewright, BIT, 0, "order of load tiles over adjacent threads: 0 along k first, 1 across k first"),
    entry(
        "GLW",
        System::Tensile,
        Legal::OneOf(&[0, 1, 2, 4, 8, 16, 32]),
        0,
        "elements per global load in the operand's contiguous direction, along k too (32 of 4 bits alone); 0 = VEW, across k",
    ),
    entry(
        "FRW",
        System::Tensile,
        Legal::OneOf(&[0, 1, 2, 4, 8, 16]),
        0,
        "elements per read from shared memory to fragments, and the unit of MIW; 0 = VEW",
    ),
    entry(
        "ACP",
        System::Cutlass,
        Legal::OneOf(&[0, 1, 2, 3, 4]),
        0,
        "copy method to shared memory: 0 through registers (beside TMA of the other operand those of the producer waves, LWV), 1 cp.async (needs PFG and BUF; sm_80 and up), 2 TMA (sm_90a), 3 TMA to a staging buffer, from where producer waves (LWV) shift misaligned rows into place (sm_90a), 4 cp.async of the windows of a whole result tile, each element once, which all taps of a convolution read at shifted places (UNI1 with operands of 16 and 8 bits; needs PFG and BUF as 1)",
    ),
    entry(
        "CLU",
        System::Cutlass,
        Legal::OneOf(&[1, 2, 4, 8]),
        1,
        "with TMA: work-groups side by side along this operand's rows that form a cluster; each copies a part of the other operand's tile for all of them (multicast)",
    ),
];

/// Keys of the whole plan, in the order of [`super::keys::Common`].
const COMMON: [KeyInfo; COMMONS] = [
    classic("UNR", Legal::Range(1, 1024), 16, "k-tile: depth of one main loop step"),
    classic(
        "GAL",
        Legal::Range(1, 3),
        3,
        "order of work-groups over tiles of C: 1 n fastest, 2 m fastest, 3 strips of tiles (see NAW)",
    ),
    classic("PUN", BIT, 1, "ask for unrolling of load, fragment, math and store loops"),
    classic("ICE", Legal::Range(1, 4096), 1, "split-k: work-groups per tile of C"),
    classic("IWI", BIT, 0, "split-k: 0 contiguous ranges of k, 1 round-robin by k-tiles"),
    classic("SZT", BIT, 0, "index arithmetic: 0 as narrow as the problem allows, 1 all 64-bit"),
    classic("MAD", BIT, 0, "multiply-add: 0 written c += a * b, 1 written fma(a, b, c)"),
    classic("NAW", Legal::Range(1, 65536), 64, "GAL3: work-groups meant to run at once; strips are sqrt(NAW / ICE) tiles wide"),
    classic("UFO", BIT, 0, "start each work-group at a different offset in k"),
    classic("MAC", Legal::Range(1, 1024), 256, "threads per work-group that compute"),
    classic(
        "SKW",
        Legal::Range(0, 20),
        10,
        "shape of the thread grid: 10 square, each step below doubles its length along m, each above along n",
    ),
    classic("AFI", BIT, 1, "order in definitions, loads and loops: 0 B before A, 1 A before B"),
    classic("MIA", BIT, 0, "adjacent threads are neighbours along m (0) or n (1)"),
    entry(
        "EDG",
        System::Tilewright,
        BIT,
        0,
        "tiles over the edge of C: 0 pulled back (needs m, n of at least a tile), 1 predicated (any size)",
    ),
    entry(
        "SKS",
        System::Cutlass,
        Legal::Range(0, 2),
        0,
        "split-k reduction: 0 atomic additions into C (order varies), 1 partial sums in workspace, added by a second kernel in fixed order, 2 through the shared memory of a cluster of all splits, in fixed order (sm_90 and up)",
    ),
    entry(
        "CVW",
        System::Tensile,
        Legal::OneOf(&[1, 2, 4, 8]),
        1,
        "elements per store of C in its contiguous direction; 8 of 16 bits",
    ),
    entry("CST", System::Cutlass, BIT, 0, "result tile: 0 stored from registers, 1 staged through shared memory"),
    entry(
        "WVA",
        System::Cutlass,
        Legal::OneOf(&[0, 1, 2, 4, 8, 16, 32, 64]),
        0,
        "lanes of a wave along m when it covers a compact rectangle of micro tiles; 0 = plain order",
    ),
    entry(
        "MVW",
        System::Tilewright,
        Legal::OneOf(&[1, 2, 4, 8, 16]),
        1,
        "elements of vector arithmetic along n (devices without waves profit)",
    ),
    entry(
        "MGP",
        System::Tilewright,
        Legal::Range(0, 8),
        0,
        "work-groups per compute unit to leave registers for; 0 = compiler's choice",
    ),
    entry("UKL", System::Tilewright, BIT, 0, "unroll the k loop within a k-tile fully"),
    entry("PFG", System::Tensile, Legal::Range(0, 11), 0, "k-tiles that global loads or copies run ahead of the math"),
    entry("BUF", System::Tvm, Legal::Range(1, 12), 1, "shared-memory buffers per operand"),
    entry(
        "STP",
        System::Tvm,
        Legal::Range(0, 2),
        0,
        "store to shared memory: 0 right after the fetch, 1 after the math of the tile, 2 spread between its k-steps",
    ),
    entry("FRA", System::Tvm, Legal::Range(0, 2), 0, "k-steps that fragments are read ahead of the math"),
    entry(
        "LWV",
        System::ComposableKernel,
        Legal::Range(0, 16),
        0,
        "producer waves, which only load, while the MAC threads only compute; 0 = every wave does both",
    ),
    entry(
        "HNT",
        System::Tensile,
        BIT,
        0,
        "fences for the compiler's scheduler between loads, math and stores, where the target has them",
    ),
    entry(
        "BIM",
        System::Sofie,
        Legal::Range(0, 4),
        0,
        "convolution: 0 one sample per batch entry g, 1 batch merged into m, 2 also groups merged into block-diagonal products, 3 as 2, or as 1 where groups stay apart, with the channels of each tap padded to whole 128-byte rows, few of one group to a power of two (NCHW: as 0, with k over taps and then channels, for transposed copies; filter gradients of one tap: the pixels of each plane padded to whole 128-byte rows), 4 as 1 with the groups of a depthwise convolution (channels last) as columns of one product, of which each thread loads what it multiplies straight to registers (no effect on a GEMM)",
    ),
    entry(
        "UNI",
        System::Cutlass,
        Legal::Range(0, 3),
        0,
        "math unit: 0 fused multiply-add, of bytes four at a time (dp4a) where the device has that and UNR is a multiple of 4; for operands of 16 and 8 bits: 1 mma.sync (sm_80 and up, 8-bit floats sm_89), 2 wgmma (sm_90a), 3 MFMA (gfx90a, gfx942, gfx950; of 8 bits i8); 1 and 2 also for tf32 and tf32x3, all three for bf16x3 and bf16x6, 3 for f32, 1 and 3 for f64",
    ),
    entry(
        "SWP",
        System::Cutlass,
        BIT,
        0,
        "matrix units: 1 swaps the operands (computes C transposed = B transposed times A transposed); the A_ and B_ keys then refer to the swapped operands",
    ),
    entry(
        "PST",
        System::Cutlass,
        Legal::Range(0, 65535),
        0,
        "number of persistent work-groups, each computing tile after tile of C; 0 = one work-group per tile",
    ),
    entry(
        "PNG",
        System::Cutlass,
        BIT,
        0,
        "TMA, persistent work-groups (LWV, PST): 0 all math waves compute one tile of C together, 1 ping-pong: each 128 threads have tiles of their own, one stores while the other computes",
    ),
    entry(
        "RGA",
        System::Cutlass,
        Legal::OneOf(&[0, 2, 4]),
        0,
        "wgmma: where instructions read the operand of C's rows (the left one after SWP): 0 shared memory, 2 or 4 registers, with that many sets of fragments",
    ),
    entry(
        "RDF",
        System::RocMlir,
        Legal::Range(0, 5),
        0,
        "reductions whose values several work-groups have parts of: 0 parts in workspace, reduced by a second kernel in fixed order, 1 by the last work-group, which a ticket tells, in fixed order; 2 to 4 atomics (sums in varying order), behind 2 registers, lanes, and waves through shared memory, 3 registers and a tree of all threads through shared memory, 4 nothing: one for each element; 5 the shared memory of a cluster of work-groups in fixed order, and what clusters leave as 0 (sm_90 and up)",
    ),
    entry(
        "RDC",
        System::Cutlass,
        BIT,
        0,
        "reductions in persistent work-groups (PST) that walk along what is reduced: 0 each tile leaves its parts of reduced values, 1 a work-group adds up those of its own tiles in registers, and leaves them behind the last one",
    ),
    entry(
        "LSU",
        System::Tensile,
        Legal::Range(1, 64),
        1,
        "split of k within a work-group (BIM4): so many slices of MAC threads each, which take equal parts of every k-tile and add up their sums through shared memory, in fixed order",
    ),
    entry(
        "RDK",
        System::Tilewright,
        BIT,
        0,
        "reductions of operands over k beside a product: 0 kernels of their own read the operand again, 1 the work-groups of the first column (of B: row) of tiles reduce what the main loop has in shared memory",
    ),
    entry(
        "GBI",
        System::Tilewright,
        BIT,
        0,
        "order of work-groups over batch entries: 0 all tiles of an entry, then those of the next, 1 the same tile of all entries, then the next tile",
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
    fn defaults_are_legal() {
        for key in Key::all() {
            assert!(key.info().legal.contains(key.info().default), "{key}");
        }
    }
}
