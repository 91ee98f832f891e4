//! The rows of keys that exist once per operand (MIOpenGEMM calls them chiral).

use super::*;
use tilewright_ir::mma::Reads;

rows! {
    /// Keys that exist once per operand.
    ///
    /// ```
    /// use tilewright_gen::plan::{Chiral, Key, Part, Plan};
    ///
    /// // The key of operand A and the same key of operand B have values of their own.
    /// let plan = Plan::parse("fma 128x64x16 on 16x16")?;
    /// assert_eq!([Key::A(Chiral::Mic), Key::B(Chiral::Mic)].map(|key| plan.get(key)), [8, 4]);
    /// assert_eq!((Chiral::Mic.info().name, Part::A.keys().len()), ("MIC", Chiral::ALL.len()));
    /// # Ok::<(), tilewright_gen::plan::GrammarError>(())
    /// ```
    enum Chiral;
    /// A value for each key of one operand.
    ///
    /// ```
    /// use tilewright_gen::plan::{Chiral, OperandKeys, Plan};
    ///
    /// // The keys that a text does not name have their defaults.
    /// let a: OperandKeys = Plan::parse("fma 128x64x16 on 16x16")?.a;
    /// assert_eq!((a.micro, a.value(Chiral::Mic), a.pad), (8, 8, OperandKeys::default().pad));
    /// # Ok::<(), tilewright_gen::plan::GrammarError>(())
    /// ```
    struct OperandKeys {};
    const CHIRALS;

    Mic micro {
        name: "MIC",
        meaning: "Micro tile: elements of C per thread along this operand. With a matrix unit: rows and columns per instruction, 16 x 8 per warp (UNI1), 64 x 8 per warpgroup (UNI2), 16 x 16 per wave (UNI3).",
        system: System::MiOpenGemm,
        legal: Legal::Range(1, 64),
        default: 8,
        cost: "Registers: MIC_A x MIC_B accumulators and both fragments. Large tiles pay until registers run out or the device is not full.",
        kinds: PRODUCT | ELEMENTS | OWN_LOADS,
        near: &[(1, &[2, 3]), (2, &[1, 3, 4]), (3, &[1, 2, 4]), (4, &[2, 3, 5, 6]), (5, &[2, 4, 6]), (6, &[4, 5, 8]), (8, &[4, 6, 10]), (10, &[8, 6, 5])],
        further: &[
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
        priority: 1,
        start: Start::Micro,
    }
    Pad pad {
        name: "PAD",
        meaning: "Padding of each row in shared memory, in vectors of VEW or, where wider, FRW elements (8 with UNI1 and UNI3). A halo (ACP4) with PAD0 is swizzled in 16-byte chunks.",
        system: System::MiOpenGemm,
        legal: Legal::Range(0, 32),
        default: 1,
        cost: "Shared memory: PAD vectors in each of UNR rows. Pays where stores along k would hit one bank.",
        read: |s| !s.panels,
        near: &[(0, &[1]), (1, &[0, 2]), (2, &[1])],
        start: Start::Of(&[1, 2]),
    }
    Plu load_along_k {
        name: "PLU",
        meaning: "Load tile of a thread: as long as possible across k (0) or along k (1).",
        system: System::MiOpenGemm,
        cost: "Free. 1 pays where the operand is contiguous along k, 0 along its rows.",
        read: |s| s.copied_by_threads(),
        start: Start::Graph,
    }
    Liw interleave_loads {
        name: "LIW",
        meaning: "Load tile of a thread: contiguous (0), or interleaved with those of other threads (1).",
        system: System::MiOpenGemm,
        cost: "Free. 1 coalesces scalar loads: neighbouring threads load neighbours.",
        read: |s| s.copied_by_threads(),
        start: Start::Graph,
    }
    Miw interleave_micro {
        name: "MIW",
        meaning: "Rows or columns of C of a thread: contiguous (0), or interleaved with those of other threads (1).",
        system: System::MiOpenGemm,
        default: 1,
        cost: "Free. 1 spreads a wave's reads over all banks. 0 suits CVW.",
        kinds: PRODUCT | ELEMENTS,
        read: |s| s.reads(Reads::Vectors),
        start: Start::Graph,
    }
    Wos source {
        name: "WOS",
        meaning: "Workspace: 0 loads in place, 1 from a copy with a padded leading dimension, 2 from packed panels, 3 (convolutions) windows from a channels-last copy of the tensor with rows padded to 16 bytes.",
        system: System::MiOpenGemm,
        legal: Legal::Range(0, 3),
        cost: "A pass over the operand (3: the tensor) and workspace of its size. Pays for bad leading dimensions, misaligned operands and windows that are read often.",
        kinds: PRODUCT | OWN_LOADS,
        near: &[(0, &[1, 2]), (1, &[0, 2]), (2, &[0, 1])],
        further: &[(0, &[3]), (1, &[3]), (3, &[0, 1])],
        start: Start::Graph,
        moves: Moves::Workspace,
    }
    Vew vector {
        name: "VEW",
        meaning: "Vector width of global loads, shared stores and fragment reads; the unit of PAD.",
        system: System::MiOpenGemm,
        legal: Legal::OneOf(&[1, 2, 4, 8]),
        default: 1,
        cost: "Start and leading dimension must be multiples of it. Fewer instructions for the same bytes.",
        read: |s| s.copied_by_threads() || s.own.copy != HALO && s.reads(Reads::Vectors),
        near: &[(1, &[2]), (2, &[1, 4]), (4, &[2, 1])],
        further: &[(1, &[4]), (4, &[8]), (8, &[4])],
    }
    Lor load_rows_first {
        name: "LOR",
        meaning: "Order of load tiles over adjacent threads: along k first (0), across k first (1).",
        cost: "Free. 1 pays where the operand is contiguous along its rows.",
        read: |s| s.copied_by_threads(),
        start: Start::Graph,
    }
    Glw load_width {
        name: "GLW",
        meaning: "Elements per global load in the operand's contiguous direction, also along k. 0 means VEW, across k. 32 is for 4-bit weights alone.",
        system: System::Tensile,
        legal: Legal::OneOf(&[0, 1, 2, 4, 8, 16, 32]),
        cost: "Alignment of that many elements. Vectors along k are stored to shared memory element by element.",
        read: |s| s.copied_by_threads(),
        near: &[(0, &[1, 2, 4]), (1, &[0, 2, 4]), (2, &[0, 1, 4]), (4, &[0, 1, 2, 8]), (8, &[0, 4])],
        further: &[(8, &[16]), (16, &[8, 32]), (32, &[16])],
    }
    Frw read_width {
        name: "FRW",
        meaning: "Elements per read from shared memory to fragments, and the unit of MIW. 0 means VEW.",
        system: System::Tensile,
        legal: Legal::OneOf(&[0, 1, 2, 4, 8, 16]),
        cost: "Alignment of rows in shared memory. The widest that MIC allows is often best.",
        kinds: PRODUCT | ELEMENTS,
        read: |s| s.reads(Reads::Vectors),
        near: &[(0, &[1, 2, 4]), (1, &[0, 2, 4]), (2, &[0, 1, 4]), (4, &[0, 1, 2, 8]), (8, &[0, 4, 16]), (16, &[8])],
        start: Start::Of(&[0, 2, 4]),
    }
    Acp copy {
        name: "ACP",
        meaning: "Copy method to shared memory: 0 through registers, 1 `cp.async` (sm_80), 2 TMA (sm_90a), 3 TMA to a staging buffer (LWV, sm_90a), 4 `cp.async` of a halo (convolutions). ACP3: producer warps shift misaligned rows into place. ACP4: each element of a result tile's windows is copied once.",
        system: System::Cutlass,
        legal: Legal::OneOf(&[0, 1, 2, 3, 4]),
        cost: "ACP1, ACP2 and ACP4 need PFG and BUF. ACP1 and ACP2 need no staging registers, but cannot convert or transpose, except for lanes that convert weights contiguous along k. ACP3 adds a pass through shared memory.",
        further: &[(0, &[2, 3]), (1, &[4]), (2, &[0, 3]), (3, &[0, 2]), (4, &[1])],
    }
    Clu cluster {
        name: "CLU",
        meaning: "With TMA: work-groups along this operand's rows that form a cluster. Each multicasts a part of the other operand's tile.",
        system: System::Cutlass,
        legal: Legal::OneOf(&[1, 2, 4, 8]),
        default: 1,
        cost: "Work-groups wait for each other at every k-tile; tiles are padded to whole clusters. PST must be a multiple of A_CLU x B_CLU, which is at most 16. L2 is read once per cluster: pays where copies are the bottleneck.",
        read: |s| s.pipeline,
        near: &[(1, &[2]), (2, &[1, 4]), (4, &[2, 8]), (8, &[4])],
    }
}
