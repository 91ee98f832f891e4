//! The table of all keys ([`super::keys`]): one entry per hyperparameter.

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

const fn key(
    name: &'static str,
    system: System,
    legal: Legal,
    default: u32,
    meaning: &'static str,
    cost: &'static str,
) -> KeyInfo {
    KeyInfo { name, meaning, cost, system, legal, default }
}

/// Keys of one factor, in the order of [`super::keys::Chiral`].
const CHIRAL: [KeyInfo; CHIRALS] = [
    key(
        "MIC",
        System::MiOpenGemm,
        Legal::Range(1, 64),
        8,
        "Micro tile: elements of C per thread along this operand. With a matrix unit: rows and columns per instruction, 16 x 8 per warp (UNI1), 64 x 8 per warpgroup (UNI2), 16 x 16 per wave (UNI3).",
        "Registers: MIC_A x MIC_B accumulators and both fragments. Large tiles pay until registers run out or the device is not full.",
    ),
    key(
        "PAD",
        System::MiOpenGemm,
        Legal::Range(0, 32),
        1,
        "Padding of each row in shared memory, in vectors of VEW or, where wider, FRW elements (8 with UNI1 and UNI3). A halo (ACP4) with PAD0 is swizzled in 16-byte chunks.",
        "Shared memory: PAD vectors for each of UNR rows. Pays where stores into shared memory walk along k and would hit one bank.",
    ),
    key(
        "PLU",
        System::MiOpenGemm,
        BIT,
        0,
        "Load tile of a thread: 0 as long as possible across k, 1 as long as possible along k.",
        "Free. 1 pays where the operand is contiguous along k, 0 where it is contiguous along its rows.",
    ),
    key(
        "LIW",
        System::MiOpenGemm,
        BIT,
        0,
        "Load tile of a thread: 0 contiguous, 1 interleaved with the load tiles of other threads.",
        "Free. 1 puts neighbouring elements on neighbouring threads, which coalesces scalar loads.",
    ),
    key(
        "MIW",
        System::MiOpenGemm,
        BIT,
        1,
        "Rows or columns of C of a thread: 0 contiguous, 1 interleaved with those of other threads.",
        "Free. 1 spreads the reads of a wave over all banks. 0 makes each thread's part of C contiguous, which suits CVW.",
    ),
    key(
        "WOS",
        System::MiOpenGemm,
        Legal::Range(0, 3),
        0,
        "Workspace: 0 loads in place, 1 from a copy with a padded leading dimension, 2 from packed panels. WOS3 (convolutions) loads windows from a channels-last copy of the tensor with rows padded to 16 bytes.",
        "A pass over the operand (3: over the tensor, not its windows) and workspace of its size. Pays for bad leading dimensions, misaligned operands and windows that are read often.",
    ),
    key(
        "VEW",
        System::MiOpenGemm,
        Legal::OneOf(&[1, 2, 4, 8]),
        1,
        "Vector width of global loads, shared stores and fragment reads; the unit of PAD.",
        "Alignment: start and leading dimension must be multiples of it. Fewer instructions for the same bytes.",
    ),
    key(
        "LOR",
        System::Tilewright,
        BIT,
        0,
        "Order of load tiles over adjacent threads: 0 along k first, 1 across k first.",
        "Free. 1 pays where the operand is contiguous along its rows: adjacent threads then touch adjacent memory.",
    ),
    key(
        "GLW",
        System::Tensile,
        Legal::OneOf(&[0, 1, 2, 4, 8, 16, 32]),
        0,
        "Elements per global load in the operand's contiguous direction, also along k. 0 means VEW, across k. 32 is for 4-bit weights alone.",
        "Alignment of that many elements. Vectors along k are stored to shared memory element by element.",
    ),
    key(
        "FRW",
        System::Tensile,
        Legal::OneOf(&[0, 1, 2, 4, 8, 16]),
        0,
        "Elements per read from shared memory to fragments, and the unit of MIW. 0 means VEW.",
        "Alignment of rows in shared memory. The widest that MIC allows is often best.",
    ),
    key(
        "ACP",
        System::Cutlass,
        Legal::OneOf(&[0, 1, 2, 3, 4]),
        0,
        "Copy method to shared memory: 0 through registers, 1 `cp.async` (sm_80), 2 TMA (sm_90a), 3 TMA through a staging buffer (LWV, sm_90a), 4 `cp.async` of a halo. ACP3: producer warps shift misaligned rows into place. ACP4 (convolutions): each element of a result tile's windows is copied once.",
        "1, 2 and 4 need PFG and BUF. ACP1 and ACP2 need no staging registers, but cannot convert or transpose elements. Lanes convert 8- and 4-bit weights that are contiguous along k. ACP3 adds a pass through shared memory, ACP4 a halo in it.",
    ),
    key(
        "CLU",
        System::Cutlass,
        Legal::OneOf(&[1, 2, 4, 8]),
        1,
        "With TMA: work-groups along this operand's rows that form a cluster. Each multicasts a part of the other operand's tile.",
        "The work-groups wait for each other at every k-tile, and tiles are padded to whole clusters. PST must be a multiple of A_CLU x B_CLU, at most 16. Pays where copies are the bottleneck.",
    ),
];

/// Keys of the whole plan, in the order of [`super::keys::Common`].
const COMMON: [KeyInfo; COMMONS] = [
    key(
        "UNR",
        System::MiOpenGemm,
        Legal::Range(1, 1024),
        16,
        "Depth of a k-tile, one step of the main loop.",
        "Shared memory: UNR x (both macro tiles) x BUF. Fewer barriers per multiplication, more code.",
    ),
    key(
        "GAL",
        System::MiOpenGemm,
        Legal::Range(1, 3),
        3,
        "Order of work-groups over tiles of C: 1 n fastest, 2 m fastest, 3 strips of tiles (NAW).",
        "Free. Strips keep both operands of concurrent work-groups in the last-level cache.",
    ),
    key(
        "PUN",
        System::MiOpenGemm,
        BIT,
        1,
        "Asks the compiler to unroll the load, fragment, math and store loops.",
        "Code size. Compilers mostly unroll these loops anyway.",
    ),
    key(
        "ICE",
        System::MiOpenGemm,
        Legal::Range(1, 4096),
        1,
        "Split-k: work-groups per tile of C.",
        "C is read and written once more per split (SKS). Pays where tiles are too few to fill the device and k is long.",
    ),
    key(
        "IWI",
        System::MiOpenGemm,
        BIT,
        0,
        "Split-k: 0 contiguous ranges of k, 1 round-robin by k-tiles.",
        "Free. With 1 the work-groups of one tile advance through k together.",
    ),
    key(
        "SZT",
        System::MiOpenGemm,
        BIT,
        0,
        "Index arithmetic: 0 as narrow as the problem allows, 1 all 64-bit.",
        "Registers and instructions for 64-bit addresses. Rarely pays; some compilers allocate registers better with it.",
    ),
    key(
        "MAD",
        System::MiOpenGemm,
        BIT,
        0,
        "Multiply-add: 0 written `c += a * b`, 1 written `fma(a, b, c)`.",
        "Free. The compiler contracts both forms or neither.",
    ),
    key(
        "NAW",
        System::MiOpenGemm,
        Legal::Range(1, 65536),
        64,
        "GAL3: work-groups meant to run at once. Strips are sqrt(NAW / ICE) tiles wide.",
        "Free. Wider strips share more of A, narrower ones more of B.",
    ),
    key(
        "UFO",
        System::MiOpenGemm,
        BIT,
        0,
        "Starts each work-group at another offset in k.",
        "Up to one more k-tile per work-group. Pays where leading dimensions are powers of two and all work-groups hit one memory channel.",
    ),
    key(
        "MAC",
        System::MiOpenGemm,
        Legal::Range(1, 1024),
        256,
        "Threads per work-group that compute.",
        "Registers and shared memory per work-group grow with it, as does reuse.",
    ),
    key(
        "SKW",
        System::MiOpenGemm,
        Legal::Range(0, 20),
        10,
        "Shape of the thread grid: 10 is square. Each step below doubles its length along m, each step above along n.",
        "Free. Long thread grids fit long, thin results.",
    ),
    key("AFI", System::MiOpenGemm, BIT, 1, "Order in definitions, loads and loops: 0 B before A, 1 A before B.", "Free."),
    key(
        "MIA",
        System::MiOpenGemm,
        BIT,
        0,
        "Adjacent threads are neighbours along m (0) or n (1).",
        "Free. The stores of a wave are adjacent along that direction of C.",
    ),
    key(
        "EDG",
        System::Tilewright,
        BIT,
        0,
        "Tiles over the edge of C: 0 pulled back (m and n of at least a tile), 1 predicated (any size).",
        "0 computes overlapped elements twice. 1 checks bounds in the last tiles.",
    ),
    key(
        "SKS",
        System::Cutlass,
        Legal::Range(0, 2),
        0,
        "Split-k reduction: 0 atomic additions into C, 1 partial sums in workspace, 2 shared memory of a cluster of all splits (sm_90). SKS1 and SKS2 add in a fixed order.",
        "0: results vary in the last bits; `--atomics` must allow it. 1: workspace of ICE x m x n and a second kernel. 2: shared memory for a tile and two cluster barriers; ICE x A_CLU x B_CLU is at most 16; not with PST or CST.",
    ),
    key(
        "CVW",
        System::Tensile,
        Legal::OneOf(&[1, 2, 4, 8]),
        1,
        "Elements per store of C in its contiguous direction; 8 for 16-bit types alone.",
        "Alignment of C. Fewer and wider stores; matters for small k.",
    ),
    key(
        "CST",
        System::Cutlass,
        BIT,
        0,
        "Result tile: 0 stored from registers, 1 staged through shared memory.",
        "Shared memory, if possible that of the operands, and one or two barriers. Stores become contiguous whatever MIW is.",
    ),
    key(
        "WVA",
        System::Cutlass,
        Legal::OneOf(&[0, 1, 2, 4, 8, 16, 32, 64]),
        0,
        "Lanes of a wave along m in a compact rectangle of micro tiles. 0 is the plain order.",
        "Free. A compact wave reads fewer distinct values from shared memory.",
    ),
    key(
        "MVW",
        System::Tilewright,
        Legal::OneOf(&[1, 2, 4, 8, 16]),
        1,
        "Elements of vector arithmetic along n.",
        "Free. Pays on CPUs, whose OpenCL compilers turn it into vector instructions.",
    ),
    key(
        "MGP",
        System::Tilewright,
        Legal::Range(0, 8),
        0,
        "Work-groups per compute unit to leave registers for. 0 is the compiler's choice.",
        "Registers: too high a value spills. Pays where more resident work-groups hide latency.",
    ),
    key(
        "UKL",
        System::Tilewright,
        BIT,
        0,
        "Unrolls the k loop within a k-tile fully.",
        "Code size: UNR copies of the inner step. Addresses become constants.",
    ),
    key(
        "PFG",
        System::Tensile,
        Legal::Range(0, 11),
        0,
        "K-tiles that global loads or copies run ahead of the math, at most all k-tiles.",
        "Staging registers, or shared buffers with ACP, for each k-tile ahead. Hides global latency. With BIM4 at most 1.",
    ),
    key(
        "BUF",
        System::Tvm,
        Legal::Range(1, 12),
        1,
        "Buffers in shared memory per operand: the pipeline's stages.",
        "Shared memory x BUF. One barrier per k-tile instead of two, and stores need not wait for reads.",
    ),
    key(
        "STP",
        System::Tvm,
        Legal::Range(0, 2),
        0,
        "Store to shared memory: 0 right after the fetch, 1 after the math of the tile, 2 spread between its k-steps.",
        "Free. 0 waits for the data at once and hides nothing.",
    ),
    key(
        "FRA",
        System::Tvm,
        Legal::Range(0, 2),
        0,
        "K-steps that fragments are read ahead of the math.",
        "Registers: one more set of fragments per step. Hides the latency of shared memory.",
    ),
    key(
        "LWV",
        System::ComposableKernel,
        Legal::Range(0, 16),
        0,
        "Producer warps, which only load; MAC threads then only compute. 0: every warp does both.",
        "Threads that do no math. Consumer warps are free of address arithmetic.",
    ),
    key(
        "HNT",
        System::Tensile,
        BIT,
        0,
        "Fences for the compiler's scheduler between loads, math and stores, where the target has them.",
        "Registers: loads stay in flight longer. HIP has `sched_barrier`; in CUDA the loads bypass the read-only path.",
    ),
    key(
        "BIM",
        System::Sofie,
        Legal::Range(0, 4),
        0,
        "Form of a convolution as a matrix product. BIM0: a batch entry per sample. BIM1: samples merged into m. BIM2: groups also merged, into block-diagonal products. BIM3: as BIM2 (one group: as BIM1), with each tap's channels padded to 128 bytes. BIM4: groups of a depthwise convolution as columns. In NCHW, BIM3 means transposed copies, or padded planes for filter gradients of one tap.",
        "BIM1: no partial tiles for small images. BIM2 multiplies zeros, and infinities cross groups within a block. BIM3 multiplies zeros of the padding; rows of a tile and vectors then never span two taps. BIM4 uses no shared memory: each thread loads its own operands to registers.",
    ),
    key(
        "UNI",
        System::Cutlass,
        Legal::Range(0, 3),
        0,
        "Math unit: 0 fused multiply-add, of bytes dp4a where UNR is a multiple of 4; 1 `mma.sync`; 2 `wgmma` (sm_90a); 3 MFMA. The support page lists their types.",
        "Most keys of the multiply-add kernels have no effect with a matrix unit.",
    ),
    key(
        "SWP",
        System::Cutlass,
        BIT,
        0,
        "Matrix units: 1 swaps the operands and computes the transposed product. The keys of parts A and B then mean the swapped operands.",
        "Free. 1 suits a C that is contiguous along m, and small m.",
    ),
    key(
        "PST",
        System::Cutlass,
        Legal::Range(0, 65535),
        0,
        "Number of persistent work-groups, each computing tile after tile of C. 0: one work-group per tile.",
        "With wgmma the next tile's copies are in flight during the epilogue. Best is about the number of compute units times the work-groups that one holds.",
    ),
    key(
        "PNG",
        System::Cutlass,
        BIT,
        0,
        "TMA with persistent work-groups (LWV, PST): 0 all consumer warps share a tile of C, 1 ping-pong. There each warpgroup has its own tiles: one stores while the other computes.",
        "Less reuse per buffer. Pays where k is short and the epilogue takes a good part of a tile's time.",
    ),
    key(
        "RGA",
        System::Cutlass,
        Legal::OneOf(&[0, 2, 4]),
        0,
        "wgmma: source of operand A (after SWP): 0 shared memory, 2 or 4 registers with that many sets of fragments.",
        "Registers: 4 per set and 64 rows of a warpgroup. A tf32 operand that is contiguous along m needs no transposing copy. Weights of 8 and 4 bits are converted in registers; a copy (B_WOS1, B_ACP2) or producer warps (B_ACP0, LWV) then write B in their order of k.",
    ),
    key(
        "RDF",
        System::RocMlir,
        Legal::Range(0, 5),
        0,
        "Reduction of values that several work-groups share. RDF0: by a second kernel. RDF1: by the last work-group, found by a ticket. RDF2 to RDF4: by atomics, after a reduction in registers, lanes and warps (2), in registers and a tree of all threads (3), or none (4). RDF5: in a cluster (sm_90), the rest as RDF0.",
        "RDF0: a second launch and workspace. RDF1: a launch ahead that zeroes the tickets, two more barriers per tile and workspace. RDF2 to RDF4: the order of additions varies; a launch ahead initialises the values. RDF5: two cluster barriers.",
    ),
    key(
        "RDC",
        System::Cutlass,
        BIT,
        0,
        "Reductions in persistent work-groups (PST) that walk along the reduced axis: 0 each tile stores its partial values, 1 a work-group stores them after its last tile.",
        "1: a register for each partial value; shuffles, barriers and stores only after the last tile. Needs PST a multiple of the tiles along the kept axis, GAL2 for values of rows, GAL1 for those of columns, no batch.",
    ),
    key(
        "LSU",
        System::Tensile,
        Legal::Range(1, 64),
        1,
        "Split of k within a work-group (BIM4): slices of MAC threads take equal parts of every k-tile and add their accumulators in a fixed order.",
        "Shared memory for the accumulators of all slices and one barrier. UNR is the depth of all slices together. Pays for filter gradients: few results, long k. Not with SKS2 or reductions.",
    ),
    key(
        "RDK",
        System::Tilewright,
        BIT,
        0,
        "Reductions of operands over k: 0 separate kernels read the operand again, 1 work-groups of the first column of tiles (of B: the first row) reduce the k-tiles in shared memory.",
        "1: no second launch or read. Consumer threads of these work-groups read k-tiles once more from shared memory. Splits of k leave partial values for a second kernel. Not with BIM4.",
    ),
    key(
        "GBI",
        System::Tilewright,
        BIT,
        0,
        "Order of work-groups over batch entries: 0 all tiles of an entry, then those of the next; 1 the same tile of all entries, then the next tile.",
        "Free. 1 pays where entries of a few bytes are adjacent in memory, as groups of channels. No effect where the workspace budget cuts the batch.",
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
