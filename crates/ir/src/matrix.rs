//! Matrix instructions, transaction barriers and bulk copies as typed operations.
//!
//! What instructions there are, and where their fragments and accumulators lie, says the table in [`crate::mma`]; here are the
//! operations that use them. Shapes are m x n x k of one instruction; "wave" is 32 lanes on NVIDIA, 64 on AMD.

use crate::ids::{ArgId, ExprId, MemRef, RegId, SharedId};
use crate::types::{MmaShape, Scalar};
use serde::{Deserialize, Serialize};

/// Input element types of a matrix instruction.
///
/// ```
/// use tilewright_ir::{MatrixType, Scalar};
///
/// // Operands of two types: A is e4m3, B is e5m2.
/// let mixed = MatrixType::E4M3xE5M2;
/// assert_eq!((mixed.name(), mixed.factors()), ("e4m3 x e5m2", [MatrixType::E4M3, MatrixType::E5M2]));
/// // TF32 is f32 in memory.
/// assert_eq!((MatrixType::TF32.storage(), MatrixType::TF32.sum()), (Scalar::F32, Scalar::F32));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MatrixType {
    /// IEEE binary16.
    F16,
    /// bfloat16.
    BF16,
    /// f32 rounded to 10 bits of mantissa (NVIDIA).
    TF32,
    /// f32 (AMD).
    F32,
    /// f64 (NVIDIA, sm_80 and up).
    F64,
    /// 8-bit float with 4 bits of exponent (NVIDIA, sm_89 and up; AMD, gfx950).
    E4M3,
    /// 8-bit float with 5 bits of exponent (NVIDIA, sm_89 and up; AMD, gfx950).
    E5M2,
    /// A is e4m3, B is e5m2.
    E4M3xE5M2,
    /// A is e5m2, B is e4m3.
    E5M2xE4M3,
    /// 8-bit float with 4 bits of exponent and no signed zero (AMD's gfx942).
    E4M3Fnuz,
    /// 8-bit float with 5 bits of exponent and no signed zero (AMD's gfx942).
    E5M2Fnuz,
    /// A is e4m3fnuz, B is e5m2fnuz.
    E4M3xE5M2Fnuz,
    /// A is e5m2fnuz, B is e4m3fnuz.
    E5M2xE4M3Fnuz,
    /// 8-bit signed integer, summed in 32 bits, which wrap (NVIDIA, sm_80 and up; AMD).
    I8,
    /// 8-bit unsigned integer (NVIDIA, sm_80 and up).
    U8,
    /// A is signed, B is unsigned.
    I8xU8,
    /// A is unsigned, B is signed.
    U8xI8,
}

impl MatrixType {
    /// As messages spell it.
    pub const fn name(self) -> &'static str {
        match self {
            MatrixType::F16 => "f16",
            MatrixType::BF16 => "bf16",
            MatrixType::TF32 => "tf32",
            MatrixType::F32 => "f32",
            MatrixType::F64 => "f64",
            MatrixType::E4M3 => "e4m3",
            MatrixType::E5M2 => "e5m2",
            MatrixType::E4M3xE5M2 => "e4m3 x e5m2",
            MatrixType::E5M2xE4M3 => "e5m2 x e4m3",
            MatrixType::E4M3Fnuz => "e4m3fnuz",
            MatrixType::E5M2Fnuz => "e5m2fnuz",
            MatrixType::E4M3xE5M2Fnuz => "e4m3fnuz x e5m2fnuz",
            MatrixType::E5M2xE4M3Fnuz => "e5m2fnuz x e4m3fnuz",
            MatrixType::I8 => "i8",
            MatrixType::U8 => "u8",
            MatrixType::I8xU8 => "i8 x u8",
            MatrixType::U8xI8 => "u8 x i8",
        }
    }
    /// Types of operands A and B; each is one type.
    pub const fn factors(self) -> [MatrixType; 2] {
        match self {
            MatrixType::E4M3xE5M2 => [MatrixType::E4M3, MatrixType::E5M2],
            MatrixType::E5M2xE4M3 => [MatrixType::E5M2, MatrixType::E4M3],
            MatrixType::E4M3xE5M2Fnuz => [MatrixType::E4M3Fnuz, MatrixType::E5M2Fnuz],
            MatrixType::E5M2xE4M3Fnuz => [MatrixType::E5M2Fnuz, MatrixType::E4M3Fnuz],
            MatrixType::I8xU8 => [MatrixType::I8, MatrixType::U8],
            MatrixType::U8xI8 => [MatrixType::U8, MatrixType::I8],
            one => [one; 2],
        }
    }
    /// Type of the sums of their products.
    pub const fn sum(self) -> Scalar {
        match self {
            MatrixType::F64 => Scalar::F64,
            MatrixType::I8 | MatrixType::U8 | MatrixType::I8xU8 | MatrixType::U8xI8 => Scalar::I32,
            _ => Scalar::F32,
        }
    }
    /// Bytes of an element in memory and shared memory.
    pub const fn bytes(self) -> u32 {
        self.storage().bytes()
    }
    /// The element type in memory; that of operand A where the operands differ.
    pub const fn storage(self) -> Scalar {
        match self {
            MatrixType::F16 => Scalar::F16,
            MatrixType::BF16 => Scalar::BF16,
            MatrixType::TF32 | MatrixType::F32 => Scalar::F32,
            MatrixType::F64 => Scalar::F64,
            MatrixType::E4M3 | MatrixType::E4M3xE5M2 => Scalar::E4M3,
            MatrixType::E5M2 | MatrixType::E5M2xE4M3 => Scalar::E5M2,
            MatrixType::E4M3Fnuz | MatrixType::E4M3xE5M2Fnuz => Scalar::E4M3Fnuz,
            MatrixType::E5M2Fnuz | MatrixType::E5M2xE4M3Fnuz => Scalar::E5M2Fnuz,
            MatrixType::I8 | MatrixType::I8xU8 => Scalar::I8,
            MatrixType::U8 | MatrixType::U8xI8 => Scalar::U8,
        }
    }
}

/// Consecutive elements of a register array: from `first`, as many as the operation says.
///
/// ```
/// use tilewright_ir::{Builder, MatrixOp, MatrixType, MmaShape, RegSlice, Scalar};
///
/// let mut b = Builder::new("example", 32);
/// b.wave(32);
/// let [a, right] = [4, 2].map(|len| b.regs("fragment", Scalar::U32.ty(), len));
/// let acc = b.regs("acc", Scalar::F32.ty(), 8);
/// // The second instruction's accumulators begin at element 4.
/// let mut slice = |regs, first| RegSlice { regs, first: b.int(first, Scalar::I32) };
/// let (a, right, acc) = (slice(a, 0), slice(right, 0), slice(acc, 4));
/// b.matrix(MatrixOp::Mma { input: MatrixType::F16, shape: MmaShape { m: 16, n: 8, k: 16 }, a, b: right, acc });
/// assert_eq!(b.kernel().as_int(acc.first), Some(4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegSlice {
    /// Array.
    pub regs: RegId,
    /// Index of the first element; constant after unrolling.
    pub first: ExprId,
}

/// How rows of 128 bytes (or 64, 32) are permuted in shared memory so that neither rows nor columns conflict. The 16-byte chunk
/// index is xor-ed with bits of the address above it. The pattern has 8 rows and starts at a multiple of 8 row lengths.
///
/// ```
/// use tilewright_ir::Swizzle;
///
/// // Rows of 128 bytes: the same chunk of 8 rows lies in 8 different bank groups.
/// let chunks: Vec<u32> = (0..8).map(|row| Swizzle::B128.apply(row * 128) % 128 / 16).collect();
/// assert_eq!(chunks, [0, 1, 2, 3, 4, 5, 6, 7]);
/// assert_eq!(Swizzle::None.apply(300), 300);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Swizzle {
    /// Plain rows.
    None,
    /// Rows of 32 bytes.
    B32,
    /// Rows of 64 bytes.
    B64,
    /// Rows of 128 bytes.
    B128,
}

impl Swizzle {
    /// Bytes of one row of the pattern (16 without a swizzle: the unit of the plain layout).
    pub const fn row_bytes(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }
    /// Which bits of the row's number the chunk's number is xor-ed with; 0 without a swizzle.
    pub const fn mask(self) -> u32 {
        match self {
            Swizzle::None => 0,
            Swizzle::B32 => 1,
            Swizzle::B64 => 3,
            Swizzle::B128 => 7,
        }
    }
    /// Where byte `offset` of a region aligned to the pattern really is.
    pub const fn apply(self, offset: u32) -> u32 {
        // Bits 4.. take the row bits 7.. as the hardware does, whatever the row length.
        offset ^ (((offset >> 7) & self.mask()) << 4)
    }
}

/// A matrix operand that an instruction reads from shared memory itself (wgmma).
///
/// Let w be [`Swizzle::row_bytes`]. Byte b along the contiguous direction and position i along the other stand at
/// `b % w + (b / w) leading + (i % 8) w + (i / 8) stride`, before [`Swizzle::apply`] to the address in shared memory. One
/// exception is the hardware's own: without a swizzle and with m (n) contiguous, the two strides exchange their roles. PTX ISA,
/// "Strides" of the matrix descriptor; CUTLASS `mma_traits_sm90_gmma`.
///
/// ```
/// use tilewright_ir::{Builder, Scalar, SharedTile, Swizzle};
///
/// let mut b = Builder::new("example", 128);
/// let array = b.shared("tile_b", Scalar::BF16, 128 * 64, 0);
/// // 128 rows of 64 bf16 along k: one row of the pattern each, 8 rows are 1024 bytes.
/// let byte = b.int(0, Scalar::I32);
/// let swizzle = Swizzle::B128;
/// let tile = SharedTile { array, byte, swizzle, k_contiguous: true, leading_bytes: 0, stride_bytes: 8 * swizzle.row_bytes() };
/// assert_eq!(tile.stride_bytes, 1024);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SharedTile {
    /// Shared array.
    pub array: SharedId,
    /// First byte within the array; uniform in the warpgroup.
    pub byte: ExprId,
    /// Layout of 8-row patterns.
    pub swizzle: Swizzle,
    /// True: k is the contiguous direction; false: m (n) is.
    pub k_contiguous: bool,
    /// Bytes between neighbouring patterns along the contiguous direction ("leading byte offset").
    pub leading_bytes: u32,
    /// Bytes between neighbouring patterns of 8 rows along the other direction ("stride byte offset").
    pub stride_bytes: u32,
}

/// Left operand of a warpgroup instruction.
///
/// ```
/// use tilewright_ir::{Builder, RegSlice, Scalar, WarpgroupA};
///
/// let mut b = Builder::new("example", 128);
/// // Four registers of each lane hold 64 x 16 elements of A, two bf16 in each.
/// let regs = b.regs("fragment_a", Scalar::U32.ty(), 4);
/// let a = WarpgroupA::Regs(RegSlice { regs, first: b.int(0, Scalar::I32) });
/// assert_eq!(128 * b.kernel().regs[regs.index()].len * 2, 64 * 16);
/// assert!(matches!(a, WarpgroupA::Regs(slice) if slice.regs == regs));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum WarpgroupA {
    /// From shared memory.
    Shared(SharedTile),
    /// From registers: 4 `U32` (of TF32 also `F32`) per lane, as in [`MatrixOp::Mma`] for the 16 rows of each wave. Until the instruction has been waited
    /// for, they may be read by others and written by none.
    Regs(RegSlice),
}

/// Operations on matrix units.
///
/// ```
/// use tilewright_ir::{Builder, MatrixOp, MatrixType, MmaShape, RegSlice, Scalar, Target, validate};
///
/// // One MFMA instruction of 32 x 32 x 2 numbers of f32, with 16 accumulators per lane.
/// let mut b = Builder::new("example", 64);
/// b.wave(64);
/// let [a, right, acc] = [1, 1, 16].map(|len| b.regs("x", Scalar::F32.ty(), len));
/// let first = b.int(0, Scalar::I32);
/// let [a, right, acc] = [a, right, acc].map(|regs| RegSlice { regs, first });
/// b.matrix(MatrixOp::Mfma { input: MatrixType::F32, shape: MmaShape { m: 32, n: 32, k: 2 }, a, b: right, acc });
/// let kernel = b.finish();
/// validate(&kernel, &Target::by_arch("gfx90a").expect("a known architecture"))?;
/// // NVIDIA's hardware has other instructions.
/// assert!(validate(&kernel, &Target::by_arch("sm_90a").expect("a known architecture")).is_err());
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum MatrixOp {
    /// `mma.sync` by one wave of 32: a row of [`crate::mma::TABLE`].
    Mma {
        /// Input type.
        input: MatrixType,
        /// Shape: `F64` comes in two depths.
        shape: MmaShape,
        /// Left fragment.
        a: RegSlice,
        /// Right fragment.
        b: RegSlice,
        /// Accumulators, read and written.
        acc: RegSlice,
    },
    /// `ldmatrix.xN[.trans]`: N 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8 of
    /// matrix l / 8 (16 bytes, aligned); lanes from 8 N on give none. Each lane receives N = 1, 2, 4 `U32`, or `F32` of the same
    /// bits. Register i of lane l holds elements `2 (l % 4)` and `2 (l % 4) + 1` of row `l / 4` of matrix i; transposed, of
    /// column `l / 4`.
    LoadMatrix {
        /// Receives N registers.
        to: RegSlice,
        /// Number of matrices.
        count: u8,
        /// Transposes each matrix.
        trans: bool,
        /// This lane's row.
        from: MemRef,
    },
    /// `wgmma.mma_async.m64nNkK`: 4 waves; K = 32 bytes of input. `acc`: n / 2 `F32` per lane, of integers `I32`.
    Warpgroup {
        /// Input type.
        input: MatrixType,
        /// 8 to 256 in steps of 8.
        n: u32,
        /// Left operand, 64 x K.
        a: WarpgroupA,
        /// Right operand, n x K.
        b: SharedTile,
        /// Accumulators.
        acc: RegSlice,
        /// `Bool`: false makes the instruction ignore the old accumulators.
        accumulate: ExprId,
    },
    /// `wgmma.fence`: registers and shared memory written before are seen by instructions after.
    WarpgroupFence {
        /// Accumulators the compiler must not move across.
        acc: RegId,
        /// Fragments of A for later instructions (4 `U32` each). The compiler must not move them across.
        /// No instruction in flight reads them.
        #[serde(default)]
        left: Vec<RegSlice>,
    },
    /// Closes a group of warpgroup instructions.
    WarpgroupCommit,
    /// Waits until at most this many groups are unfinished.
    WarpgroupWait {
        /// Groups that may be unfinished.
        pending: u32,
        /// Accumulators the compiler must not read before.
        acc: RegId,
    },
    /// AMD `v_mfma` by one wave of 64: a row of [`crate::mma::TABLE`].
    Mfma {
        /// Input type.
        input: MatrixType,
        /// Shape. 16-bit types have 32 x 32 x 8 or 16 x 16 x 16, twice as deep on gfx950. `I8` has these shapes, twice as deep
        /// from gfx942 on and four times on gfx950. `F32` has 32 x 32 x 2 or 16 x 16 x 4.
        shape: MmaShape,
        /// Fragment of A: types of 16 and 8 bits as `U32`, the lowest k in the lowest bits; `F32` as it is.
        a: RegSlice,
        /// Fragment of B, in the same format.
        b: RegSlice,
        /// Accumulators: m n / 64 `F32`, of integers `I32`.
        acc: RegSlice,
    },
}

/// An array of transaction barriers (`mbarrier`, 8 bytes each) in shared memory.
///
/// ```
/// use tilewright_ir::{Builder, TxBarriers};
///
/// let mut b = Builder::new("example", 128);
/// // A barrier of 8 bytes for each of 4 stages, after 32 KiB of tiles.
/// b.tx_barriers("full", 4, 32 << 10);
/// assert_eq!(b.kernel().tx_barriers, [TxBarriers { name: "full".into(), len: 4, byte_offset: 32768 }]);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TxBarriers {
    /// Name in printed source.
    pub name: String,
    /// Number of barriers.
    pub len: u32,
    /// First byte within shared memory, a multiple of 8.
    pub byte_offset: u32,
}

/// Handle of a [`TxBarriers`].
///
/// ```
/// use tilewright_ir::{Builder, TxId};
///
/// let mut b = Builder::new("example", 128);
/// let (full, free) = (b.tx_barriers("full", 4, 0), b.tx_barriers("free", 4, 32));
/// assert_eq!((full, free), (TxId(0), TxId(1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TxId(pub u32);

/// One transaction barrier.
///
/// ```
/// use tilewright_ir::{BulkOp, Builder, Builtin, Scalar, TxRef};
///
/// let mut b = Builder::new("example", 128);
/// let full = b.tx_barriers("full", 4, 0);
/// // The consumer waits for stage t % 4; the parity changes with every round of 4 k-tiles.
/// let t = b.declare("t", Builtin::GroupId(0));
/// let barrier = TxRef { barriers: full, index: b.value(t % 4) };
/// let parity = b.value(t / 4 % 2);
/// b.bulk(BulkOp::Wait { barrier, parity });
/// assert_eq!(b.ty(barrier.index), Scalar::I32.ty());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TxRef {
    /// Array.
    pub barriers: TxId,
    /// Index.
    pub index: ExprId,
}

/// A bulk tensor copy's view of global memory: rank 2 to 5, first dimension contiguous. Encoded on the host.
///
/// ```
/// use tilewright_ir::{Scalar, Swizzle, TensorMap};
///
/// // Boxes of 64 x 128 elements of a matrix with 512 rows of 1024 elements.
/// let map = TensorMap {
///     scalar: Scalar::BF16,
///     round_tf32: false,
///     extent: vec![1024, 512],
///     stride_bytes: vec![2048],
///     tile: vec![64, 128],
///     swizzle: Swizzle::B128,
///     im2col: None,
/// };
/// assert_eq!((map.tile_bytes(), map.coordinates()), (16 << 10, 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorMap {
    /// Element type.
    pub scalar: Scalar,
    /// TF32: round elements on the way (the emulator to nearest even).
    pub round_tf32: bool,
    /// Extents in elements, innermost first.
    pub extent: Vec<u64>,
    /// Bytes between neighbours along dimension 1.. (multiples of 16).
    pub stride_bytes: Vec<u64>,
    /// Box moved by one copy, in elements (1 to 256 each). With a swizzle the innermost extent is one of its rows.
    pub tile: Vec<u32>,
    /// Layout in shared memory.
    pub swizzle: Swizzle,
    /// Boxes are columns of pixels under windows that move over the tensor: [`TensorMap::tile`] is (channels, pixels).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub im2col: Option<Im2col>,
}

/// The im2col mode of a tensor map over (channels, one to three spatial dimensions, samples), innermost first.
///
/// A copy starts at a position of the windows' origin and moves as many pixels as its box has. The origin walks along the first
/// spatial dimension from `lower` to `extent - 1 + upper` in steps of `step`. Then it walks along the next dimension, then to the
/// next sample. The pixel that is read is the origin plus the copy's offsets; where it lies outside the tensor zeros arrive. PTX
/// ISA, "im2col mode"; the driver's `cuTensorMapEncodeIm2col`.
///
/// ```
/// use tilewright_ir::{Im2col, Scalar, Swizzle, TensorMap};
///
/// // A 3 x 3 filter with one pixel of padding over 16 images of 32 x 32 pixels with 64 channels.
/// let windows = Im2col { lower: vec![-1, -1], upper: vec![-1, -1], step: vec![1, 1] };
/// let map = TensorMap {
///     scalar: Scalar::F16,
///     round_tf32: false,
///     extent: vec![64, 32, 32, 16],
///     stride_bytes: vec![128, 4096, 131072],
///     tile: vec![64, 128],
///     swizzle: Swizzle::B128,
///     im2col: Some(windows),
/// };
/// // A copy names channel, origin and sample, and the tap's two offsets.
/// assert_eq!(map.coordinates(), 6);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Im2col {
    /// First origin along each spatial dimension.
    pub lower: Vec<i32>,
    /// Last origin, counted from the tensor's last position.
    pub upper: Vec<i32>,
    /// Distance between neighbouring origins, 1 to 8.
    pub step: Vec<u32>,
}

impl Im2col {
    /// Least and greatest corner that a map with so many spatial dimensions can have.
    pub const fn corners(spatial: usize) -> (i64, i64) {
        match spatial {
            1 => (-32768, 32767),
            2 => (-128, 127),
            _ => (-16, 15),
        }
    }
    /// Greatest offset of a copy.
    pub const fn offsets(spatial: usize) -> i64 {
        match spatial {
            1 => 65535,
            2 => 255,
            _ => 31,
        }
    }
}

impl TensorMap {
    /// Numbers that say where a copy starts: a coordinate for each dimension, and an offset for each spatial one.
    pub fn coordinates(&self) -> usize {
        self.extent.len() + self.im2col.as_ref().map_or(0, |windows| windows.lower.len())
    }
    /// Bytes that one copy moves (elements outside the tensor count: they arrive as zeros).
    pub fn tile_bytes(&self) -> u32 {
        self.tile.iter().fold(self.scalar.bytes(), |bytes, &t| bytes.saturating_mul(t))
    }
}

/// Transaction barriers and bulk copies.
///
/// ```
/// use tilewright_ir::{Builder, Builtin, BulkOp, Fault, Scalar, Target, TxRef, validate};
///
/// let mut b = Builder::new("example", 128);
/// let full = b.tx_barriers("full", 1, 0);
/// let barrier = TxRef { barriers: full, index: b.int(0, Scalar::I32) };
/// b.if_then(Builtin::LocalId.equals(0), |b| b.bulk(BulkOp::Init { barrier, arrivals: 1 }));
/// let kernel = b.finish();
/// validate(&kernel, &Target::by_arch("sm_90a").expect("a known architecture"))?;
/// let older = validate(&kernel, &Target::by_arch("sm_80").expect("a known architecture")).unwrap_err();
/// assert!(matches!(older.fault, Fault::Missing { .. }));
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum BulkOp {
    /// One thread makes a barrier expect this many arrivals per phase.
    Init {
        /// Which.
        barrier: TxRef,
        /// Arrivals that complete a phase: 1 to 2^20 - 1.
        arrivals: u32,
    },
    /// Makes initialised barriers visible to the asynchronous proxy; before the work-group barrier.
    InitFence,
    /// Arrives and adds bytes to what the current phase waits for.
    Expect {
        /// Which.
        barrier: TxRef,
        /// Bytes.
        bytes: u32,
    },
    /// Arrives.
    Arrive {
        /// Which.
        barrier: TxRef,
    },
    /// Arrives at the same barrier of another work-group of the cluster (or of this one).
    ArriveAt {
        /// Which, as in this work-group.
        barrier: TxRef,
        /// Which work-group, `I32`: its position in the cluster.
        rank: ExprId,
    },
    /// Waits until the phase of this parity (`I32`, 0 or 1) has completed. Goes on at once where the current phase has the other
    /// parity, as for parity 1 on a new barrier.
    Wait {
        /// Which.
        barrier: TxRef,
        /// Parity.
        parity: ExprId,
    },
    /// Copies a box from global to shared memory; its bytes complete on the barrier. One thread issues it.
    Load {
        /// Shared destination: at a multiple of 128 bytes; with a swizzle, of 8 of its rows.
        to: MemRef,
        /// Tensor map argument.
        map: ArgId,
        /// First element along each dimension (`I32`), innermost first; may be out of range. For a map with [`Im2col`]: the
        /// channel, the first origin and the sample, followed by the offsets along the spatial dimensions.
        at: Vec<ExprId>,
        /// Completed by the bytes.
        barrier: TxRef,
        /// `I32`, bit r: the work-group of rank r in the cluster receives the box. The box goes to this place in its shared
        /// memory, and the bytes complete on its barrier of this index. `None`: this work-group alone.
        peers: Option<ExprId>,
    },
    /// Copies a box from shared to global memory, clipped at the tensor's edges. One thread issues it.
    Store {
        /// Shared source.
        from: MemRef,
        /// Tensor map argument.
        map: ArgId,
        /// First element along each dimension.
        at: Vec<ExprId>,
    },
    /// Closes the issuing thread's group of bulk stores. One lane of a wave issues, closes and waits for its stores.
    StoreCommit,
    /// Waits until at most this many groups still read shared memory.
    StoreWait {
        /// Groups that may be unfinished.
        pending: u32,
    },
    /// Makes this thread's writes to shared memory visible to bulk copies and warpgroup instructions.
    ProxyFence,
    /// Registers per thread of this role: raises or lowers the warpgroup's share (`setmaxnreg`).
    Registers {
        /// Per thread, 24 to 256 in steps of 8.
        count: u32,
        /// True: more than at entry.
        raise: bool,
    },
}
