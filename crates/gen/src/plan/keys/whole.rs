//! The rows of keys that exist once per plan, written in part C.

use super::*;
use tilewright_ir::mma::{Owner, Reads};

rows! {
    /// Keys that exist once per plan.
    ///
    /// ```
    /// use tilewright_gen::plan::{Common, Plan};
    ///
    /// let plan = Plan::parse("fma 128x64x16 on 16x16")?;
    /// assert_eq!((Common::Unr.info().alias, plan.value(Common::Unr), plan.k_tile), ("k_tile", 16, 16));
    /// # Ok::<(), tilewright_gen::plan::GrammarError>(())
    /// ```
    enum Common;
    /// One value for every hyperparameter, as written: keys without effect among them. What a text says and what a search puts together; a
    /// [`Plan`](super::super::Plan) is made of it.
    ///
    /// ```
    /// use tilewright_gen::plan::{Keys, Plan};
    ///
    /// // A plan with a deeper k-tile and micro tiles of two rows and two columns.
    /// let mut keys = Keys { k_tile: 32, ..*Plan::parse("fma 128x64x16 on 16x16")? };
    /// keys.both(|operand| operand.micro = 2);
    /// assert_eq!(Plan::from(keys), Plan::parse("fma 32x32x32 on 16x16")?);
    /// # Ok::<(), tilewright_gen::plan::GrammarError>(())
    /// ```
    struct Keys {
        /// Keys of operand A.
        a: OperandKeys,
        /// Keys of operand B.
        b: OperandKeys
    };
    const COMMONS;

    Unr k_tile {
        name: "UNR",
        meaning: "Depth of a k-tile, one step of the main loop.",
        system: System::MiOpenGemm,
        legal: Legal::Range(1, 1024),
        default: 16,
        cost: "Shared memory: UNR x (both macro tiles) x BUF. Fewer barriers per multiplication, more code.",
        kinds: PRODUCT | OWN_LOADS,
        near: &[(1, &[2]), (2, &[1, 4]), (4, &[2, 8]), (8, &[4, 16]), (16, &[8, 32]), (32, &[16, 64]), (64, &[16, 32, 128]), (128, &[32, 64])],
        priority: 1,
        start: Start::Graph,
    }
    Gal order {
        name: "GAL",
        meaning: "Order of work-groups over tiles of C: 1 n fastest, 2 m fastest, 3 strips of tiles (NAW).",
        system: System::MiOpenGemm,
        legal: Legal::Range(1, 3),
        default: 3,
        cost: "Free. Strips keep both operands of concurrent work-groups in the last-level cache.",
        kinds: PRODUCT | OWN_LOADS,
        near: &[(1, &[2, 3]), (2, &[1, 3]), (3, &[1, 2])],
        start: Start::Graph,
    }
    Pun unroll_hint {
        name: "PUN",
        meaning: "Asks the compiler to unroll the load, fragment, math and store loops.",
        system: System::MiOpenGemm,
        default: 1,
        cost: "Code size. Compilers mostly unroll these loops anyway.",
        read: |s| s.reads(Reads::Vectors),
        start: Start::Graph,
    }
    Ice splits {
        name: "ICE",
        meaning: "Split-k: work-groups per tile of C.",
        system: System::MiOpenGemm,
        legal: Legal::Range(1, 4096),
        default: 1,
        cost: "C is read and written once more per split (SKS). Pays for few tiles and long k.",
        kinds: PRODUCT | ELEMENTS | OWN_LOADS,
        near: &[
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
        further: &[(1, &[4, 8]), (4, &[8]), (8, &[4, 16]), (14, &[16]), (16, &[8, 14, 32]), (32, &[16, 64]), (64, &[32, 128]), (128, &[64])],
        priority: 1,
    }
    Iwi interleave_splits {
        name: "IWI",
        meaning: "Split-k: contiguous ranges of k (0), or round-robin by k-tiles (1).",
        system: System::MiOpenGemm,
        cost: "Free. With 1 the work-groups of one tile advance through k together.",
        kinds: PRODUCT | OWN_LOADS,
        read: |s| s.keys.splits != 1,
        start: Start::Graph,
    }
    Szt wide_index {
        name: "SZT",
        meaning: "Index arithmetic: as narrow as the problem allows (0), or 64-bit (1).",
        system: System::MiOpenGemm,
        cost: "Registers and instructions. Rarely pays; some compilers then allocate registers better.",
        kinds: PRODUCT | OWN_LOADS,
        read: |s| !s.reads(Reads::Panels),
        priority: -1,
    }
    Mad explicit_fma {
        name: "MAD",
        meaning: "Multiply-add: `c += a * b` (0) or `fma(a, b, c)` (1).",
        system: System::MiOpenGemm,
        cost: "Free. The compiler contracts both forms or neither.",
        kinds: PRODUCT | OWN_LOADS,
        read: |s| s.reads(Reads::Vectors),
        priority: -1,
        start: Start::Graph,
    }
    Naw strip_groups {
        name: "NAW",
        meaning: "GAL3: work-groups meant to run at once. Strips are sqrt(NAW / ICE) tiles wide.",
        system: System::MiOpenGemm,
        legal: Legal::Range(1, 65536),
        default: 64,
        cost: "Free. Wider strips share more of A, narrower ones more of B.",
        kinds: PRODUCT | OWN_LOADS,
        read: |s| s.keys.order == 3,
        near: &[(16, &[64]), (64, &[16])],
        start: Start::Graph,
    }
    Ufo stagger {
        name: "UFO",
        meaning: "Starts each work-group at another offset in k.",
        system: System::MiOpenGemm,
        cost: "Up to one more k-tile per work-group. Pays where all work-groups would hit one memory channel, as with leading dimensions of powers of two.",
        read: |s| !s.panels,
    }
    Mac threads {
        name: "MAC",
        meaning: "Threads per work-group that compute.",
        system: System::MiOpenGemm,
        legal: Legal::Range(1, 1024),
        default: 256,
        cost: "Registers and shared memory per work-group, for more reuse.",
        kinds: PRODUCT | ELEMENTS | OWN_LOADS,
        near: &[],
        priority: 1,
        start: Start::Graph,
        moves: Moves::Threads,
    }
    Skw skew {
        name: "SKW",
        meaning: "Shape of the thread grid: 10 is square. Each step below doubles its length along m, each step above along n.",
        system: System::MiOpenGemm,
        legal: Legal::Range(0, 20),
        default: 10,
        cost: "Free. Long grids fit long, thin results.",
        kinds: PRODUCT | ELEMENTS | OWN_LOADS,
        read: |s| !(s.panels && s.keys.ping_pong == 1 && s.family.owner == Owner::Warpgroup),
        near: &[(7, &[8]), (8, &[7, 9]), (9, &[8, 10]), (10, &[9, 11]), (11, &[10, 12]), (12, &[11, 13]), (13, &[12])],
        start: Start::Skew,
    }
    Afi a_first {
        name: "AFI",
        meaning: "Order in definitions, loads and loops: B before A (0) or A before B (1).",
        system: System::MiOpenGemm,
        default: 1,
        read: |s| !s.reads(Reads::Panels),
        priority: -1,
        start: Start::Graph,
    }
    Mia along_n {
        name: "MIA",
        meaning: "Adjacent threads are neighbours along m (0) or n (1).",
        system: System::MiOpenGemm,
        cost: "Free. A wave's stores are adjacent along that direction of C.",
        kinds: PRODUCT | ELEMENTS | OWN_LOADS,
        read: |s| s.reads(Reads::Vectors),
        priority: -1,
        start: Start::Graph,
    }
    Edg predicate {
        name: "EDG",
        meaning: "Tiles over the edge of C: pulled back (0; m and n of at least a tile), or predicated (1; any size).",
        cost: "0 computes overlapped elements twice. 1 checks bounds in the last tiles.",
        read: |s| !s.panels,
        start: Start::Of(&[0, 1]),
    }
    Sks split_sum {
        name: "SKS",
        meaning: "Split-k reduction: 0 atomic additions into C, 1 partial sums in workspace, 2 shared memory of a cluster of all splits (sm_90a). SKS1 and SKS2 add in a fixed order.",
        system: System::Cutlass,
        legal: Legal::Range(0, 2),
        cost: "SKS0: results vary in the last bits; `--atomics` must allow it. SKS1: workspace of ICE x m x n and a second kernel. SKS2: shared memory for a tile and two cluster barriers; ICE x A_CLU x B_CLU is at most 16; not with PST or CST.",
        kinds: PRODUCT | OWN_LOADS,
        read: |s| s.keys.splits != 1,
        further: &[(0, &[2]), (1, &[2]), (2, &[0, 1])],
        start: Start::Of(&[1]),
    }
    Cvw store_width {
        name: "CVW",
        meaning: "Elements per store of C in its contiguous direction; 8 for 16-bit types alone.",
        system: System::Tensile,
        legal: Legal::OneOf(&[1, 2, 4, 8]),
        default: 1,
        cost: "Alignment of C. Matters for small k.",
        kinds: PRODUCT | OWN_LOADS,
        read: |s| s.stores_vectors(),
        near: &[(1, &[2, 4]), (2, &[1, 4]), (4, &[1, 2])],
        further: &[(4, &[8]), (8, &[4])],
    }
    Cst staged {
        name: "CST",
        meaning: "Result tile: stored from registers (0), or staged through shared memory (1).",
        system: System::Cutlass,
        cost: "Shared memory, if possible that of the operands, and one or two barriers. Stores become contiguous for any MIW.",
        read: |s| !s.reads(Reads::Fragments) || s.stages_rows(),
    }
    Wva wave_shape {
        name: "WVA",
        meaning: "Lanes of a wave along m in a compact rectangle of micro tiles. 0 is the plain order.",
        system: System::Cutlass,
        legal: Legal::OneOf(&[0, 1, 2, 4, 8, 16, 32, 64]),
        cost: "Free. A compact wave reads fewer distinct values from shared memory.",
        kinds: PRODUCT | ELEMENTS | OWN_LOADS,
        read: |s| s.reads(Reads::Vectors),
        near: &[(0, &[4, 8]), (1, &[2]), (2, &[1, 4]), (4, &[0, 2, 8]), (8, &[0, 4, 16]), (16, &[8, 32]), (32, &[16, 64]), (64, &[32])],
        moves: Moves::Waves,
    }
    Mvw math_width {
        name: "MVW",
        meaning: "Elements of vector arithmetic along n.",
        legal: Legal::OneOf(&[1, 2, 4, 8, 16]),
        default: 1,
        cost: "Free. Pays on CPUs, whose OpenCL compilers make vector instructions of it.",
        read: |s| s.reads(Reads::Vectors),
        near: &[(1, &[4, 8]), (2, &[1, 4]), (4, &[1, 2, 8]), (8, &[1, 4, 16]), (16, &[8])],
        start: Start::Waveless(&[1, 4, 8]),
    }
    Mgp min_groups {
        name: "MGP",
        meaning: "Work-groups per compute unit to leave registers for. 0 is the compiler's choice.",
        legal: Legal::Range(0, 8),
        cost: "Registers: too high a value spills. Pays where more resident work-groups hide latency.",
        kinds: PRODUCT | ELEMENTS | OWN_LOADS,
        read: |s| !(s.panels && s.keys.min_groups == 1),
        near: &[(0, &[1, 2, 3]), (1, &[0, 2]), (2, &[0, 1, 3]), (3, &[0, 2, 4]), (4, &[0, 3])],
        priority: -1,
        moves: Moves::Waves,
    }
    Ukl unroll_k {
        name: "UKL",
        meaning: "Unrolls the k loop within a k-tile fully.",
        cost: "Code size: UNR copies of the inner step, without loop overhead and with constant addresses.",
        read: |s| s.loops_over_k_steps(),
        priority: -1,
    }
    Pfg ahead {
        name: "PFG",
        meaning: "K-tiles that global loads or copies run ahead of the math, at most all k-tiles.",
        system: System::Tensile,
        legal: Legal::Range(0, 11),
        cost: "Staging registers, or shared buffers with ACP, for each k-tile ahead. Hides global latency. With BIM4 at most 1.",
        kinds: PRODUCT | OWN_LOADS,
        near: &[(0, &[1]), (1, &[0, 2]), (2, &[1, 3]), (3, &[2, 4]), (4, &[3])],
        priority: 1,
        start: Start::Of(&[0, 1]),
    }
    Buf buffers {
        name: "BUF",
        meaning: "Buffers in shared memory per operand: the pipeline's stages.",
        system: System::Tvm,
        legal: Legal::Range(1, 12),
        default: 1,
        cost: "Shared memory x BUF. One barrier per k-tile instead of two, and stores need not wait for reads.",
        near: &[(1, &[2]), (2, &[1, 3]), (3, &[2, 4]), (4, &[3, 5]), (5, &[4, 6]), (6, &[5, 7]), (7, &[6, 8]), (8, &[7])],
        start: Start::Of(&[1, 2]),
    }
    Stp store_point {
        name: "STP",
        meaning: "Store to shared memory: 0 right after the fetch, 1 after the math of the tile, 2 spread between its k-steps.",
        system: System::Tvm,
        legal: Legal::Range(0, 2),
        cost: "Free. 0 waits for the data at once and hides nothing.",
        read: |s| s.stores_fetched(),
        near: &[(0, &[1, 2]), (1, &[0, 2]), (2, &[0, 1])],
        start: Start::Of(&[0, 1]),
    }
    Fra fragments_ahead {
        name: "FRA",
        meaning: "K-steps that fragments are read ahead of the math.",
        system: System::Tvm,
        legal: Legal::Range(0, 2),
        cost: "Registers: one more set of fragments per step. Hides the latency of shared memory.",
        read: |s| !s.panels || s.pipeline,
        near: &[(0, &[1]), (1, &[0, 2]), (2, &[1])],
        start: Start::Of(&[0, 1]),
    }
    Lwv producers {
        name: "LWV",
        meaning: "Producer warps, which only load; MAC threads then only compute. 0: every warp does both.",
        system: System::ComposableKernel,
        legal: Legal::Range(0, 16),
        cost: "Threads that do no math. Consumer warps are free of address arithmetic.",
        near: &[(0, &[1, 2, 4]), (1, &[0, 2]), (2, &[0, 1, 4]), (4, &[0, 2, 8]), (8, &[4])],
        moves: Moves::Waves,
    }
    Hnt fences {
        name: "HNT",
        meaning: "Fences for the compiler's scheduler between loads, math and stores, where the target has them.",
        system: System::Tensile,
        cost: "Registers: loads stay in flight longer. HIP has `sched_barrier`; in CUDA the loads bypass the read-only path.",
        read: |s| s.fences_separate(),
        priority: -1,
        moves: Moves::Waves,
    }
    Bim form {
        name: "BIM",
        meaning: "Form of a convolution as a matrix product. BIM0: samples are batch entries. BIM1: samples are merged into m. BIM2: groups form block-diagonal products too. BIM3: each tap's channels are padded to 128 bytes; in NCHW transposed copies, or padded planes for filter gradients of one tap. BIM4: groups of a depthwise convolution are columns. Gated products: runs of 1, 8, 32, 64 or 128 columns of each half.",
        system: System::Sofie,
        legal: Legal::Range(0, 4),
        cost: "BIM2 and BIM3 multiply zeros, and infinities may cross groups. BIM4 loads to registers, without shared memory.",
        kinds: PRODUCT | OWN_LOADS,
        near: &[(0, &[1, 2, 3, 4]), (1, &[0, 2, 3, 4]), (2, &[0, 1, 3, 4]), (3, &[0, 1, 2, 4]), (4, &[0, 1, 2, 3])],
        moves: Moves::Forms,
    }
    Uni unit {
        name: "UNI",
        meaning: "Math unit: 0 fused multiply-add, of bytes dp4a where UNR is a multiple of 4; 1 `mma.sync`; 2 `wgmma` (sm_90a); 3 MFMA.",
        system: System::Cutlass,
        legal: Legal::Range(0, 3),
        cost: "Most keys of the multiply-add kernels have no effect with a matrix unit.",
        kinds: PRODUCT | OWN_LOADS,
        near: &[],
    }
    Kin deep_instruction {
        name: "KIN",
        meaning: "Depth of the matrix instruction, where the type has several: 0 the least, 1 the greatest that divides UNR. `mma.sync` of f64 has k 8 and 16.",
        system: System::Cutlass,
        cost: "Registers: fragments of twice the depth. Half as many instructions read and write the accumulators.",
        read: |s| s.reads(Reads::Fragments),
    }
    Swp swapped {
        name: "SWP",
        meaning: "Matrix units: 1 swaps the operands and computes the transposed product. The keys of parts A and B then mean the swapped operands.",
        system: System::Cutlass,
        cost: "Free. Results are stored in pairs along n (0) or m (1). 1 suits a C that is contiguous along m, and small m.",
        read: |s| !s.reads(Reads::Vectors),
    }
    Pst persistent {
        name: "PST",
        meaning: "Number of persistent work-groups, each computing tile after tile of C. 0: one work-group per tile.",
        system: System::Cutlass,
        legal: Legal::Range(0, 65535),
        cost: "With wgmma the next tile's copies are in flight during the epilogue. Best: as many as the device holds at once.",
        near: &[],
    }
    Tsp tail_splits {
        name: "TSP",
        meaning: "Splits of k of the last tiles (stream-k): rows of tiles beyond the last full round of PST work-groups.",
        system: System::Cutlass,
        legal: Legal::Range(1, 16),
        default: 1,
        cost: "Workspace for partial sums, a second kernel. Pays where the last round has few tiles. No effect with ICE or PNG1. Not with ACP3, reductions, gates, run-time extents.",
        read: |s| s.keys.persistent != 0 && s.keys.splits == 1 && s.keys.ping_pong == 0,
        near: &[(1, &[2, 4, 8]), (2, &[1, 3, 4]), (3, &[2, 4]), (4, &[1, 2, 6, 8]), (6, &[4, 8]), (8, &[1, 4, 6])],
    }
    Png ping_pong {
        name: "PNG",
        meaning: "TMA with persistent work-groups (LWV, PST): 0 all consumer warps share a tile of C, 1 ping-pong: each warpgroup has its own tiles, and one stores while the other computes.",
        system: System::Cutlass,
        cost: "Less reuse per buffer. Pays where k is short and the epilogue takes much of a tile's time.",
        read: |s| s.pipeline,
    }
    Rga register_sets {
        name: "RGA",
        meaning: "wgmma: operand A (after SWP) from shared memory (0), or from registers with 2 or 4 sets of fragments.",
        system: System::Cutlass,
        legal: Legal::OneOf(&[0, 2, 4]),
        cost: "Registers: 4 per set and 64 rows of a warpgroup. tf32 contiguous along m needs no transposing copy. Weights of 8 and 4 bits are converted in registers; a copy (B_WOS1, B_ACP2) or producer warps (B_ACP0, LWV) then write B in their order of k.",
        read: |s| s.reads(Reads::Panels),
        near: &[(0, &[2, 4]), (2, &[0, 4]), (4, &[0, 2])],
    }
    Rdf finish {
        name: "RDF",
        meaning: "Reduction of values that several work-groups share. RDF0: by a second kernel. RDF1: by the last work-group, found by a ticket. RDF2 to RDF4: by atomics, after a reduction in registers, lanes and warps (2), in registers and a tree of all threads (3), or none (4). RDF5: in a cluster (sm_90a), the rest as RDF0.",
        system: System::RocMlir,
        legal: Legal::Range(0, 5),
        cost: "RDF0: a second launch and workspace. RDF1: a launch ahead that zeroes the tickets, two more barriers per tile and workspace. RDF2 to RDF4: the order of additions varies; a launch ahead initialises the values. RDF5: two cluster barriers.",
        kinds: PRODUCT | ELEMENTS,
        near: &[(0, &[1, 2, 5]), (1, &[0, 2]), (2, &[0, 1, 3, 4]), (3, &[2]), (4, &[2]), (5, &[0])],
    }
    Rdc carry {
        name: "RDC",
        meaning: "Reductions in persistent work-groups (PST) that walk along the reduced axis: partial values are stored for each tile (0), or after a work-group's last tile (1).",
        system: System::Cutlass,
        cost: "1: a register for each partial value; shuffles, barriers and stores only after the last tile. Needs PST a multiple of the tiles along the kept axis, GAL2 for values of rows, GAL1 for those of columns, no batch.",
        read: |s| s.keys.persistent != 0,
    }
    Lsu slices {
        name: "LSU",
        meaning: "Split of k within a work-group (BIM4): slices of MAC threads take equal parts of every k-tile and add their accumulators in a fixed order.",
        system: System::Tensile,
        legal: Legal::Range(1, 64),
        default: 1,
        cost: "Shared memory for the accumulators and one barrier. UNR is the depth of all slices together. Pays for filter gradients: few results, long k. Not with SKS2 or reductions.",
        kinds: OWN_LOADS,
        read: |s| !s.panels,
        near: &[],
        further: &[(1, &[2, 8]), (2, &[1, 4]), (4, &[2, 8]), (8, &[1, 4, 16]), (16, &[8, 32]), (32, &[16])],
    }
    Rdk reduce_operands {
        name: "RDK",
        meaning: "Reductions of operands over k: 0 by separate kernels, 1 by work-groups of the first column of tiles (of B: the first row), from the k-tiles in shared memory.",
        cost: "0 reads the operand again, 1 the k-tiles in shared memory. Splits of k leave partial values for a second kernel. Not with BIM4.",
    }
    Gbi entries_fastest {
        name: "GBI",
        meaning: "Order of work-groups over batch entries: all tiles of an entry, then those of the next (0), or the same tile of all entries, then the next tile (1).",
        cost: "Free. 1 pays where entries of a few bytes are adjacent in memory, as groups of channels. No effect where the workspace budget cuts the batch.",
    }
}
