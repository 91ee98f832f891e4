//! Families of multiply instructions, the units that a plan chooses from. They differ in who issues them, how they read operands,
//! and whether the wave has to wait for them.

use crate::target::{Features, UNIT_PARTS};
use crate::types::Scalar;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The family of instructions that computes a k-tile.
///
/// ```
/// use tilewright_ir::MathUnit;
///
/// // A micro tile of wgmma: 64 rows and a multiple of 8 columns by 128 threads.
/// let family = MathUnit::Warpgroup.family();
/// assert_eq!((family.block.rows, family.block.columns, family.lanes), (64, 8, 128));
/// // Multiply-adds of bytes become dot products where the target has them.
/// assert_eq!(MathUnit::Fma.dot_unit(), Some(MathUnit::Dot));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MathUnit {
    /// Multiply-adds of each thread on its own micro tile.
    Fma,
    /// Warpgroup matrix instructions (wgmma). Each group of 128 threads owns a micro tile of whole instructions, 64 rows and up
    /// to 256 columns each. It reads both operands from shared memory.
    Warpgroup,
    /// Matrix instructions of single waves of 32 (mma.sync): each wave owns a micro tile of 16 x 8 blocks, its fragments come by
    /// ldmatrix.
    Mma,
    /// Matrix instructions of single waves of 64 (AMD's MFMA): each wave owns a micro tile of 16 x 16 or 32 x 32 blocks.
    Mfma,
    /// Multiply-adds of each thread of four bytes along k at a time (`dp4a`, `v_dot4`). They replace [`MathUnit::Fma`] for
    /// integers of 8 bits where the target has them and k-tiles are multiples of four.
    Dot,
}

/// Who issues an instruction: its threads own a micro tile together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Each thread has instructions and accumulators of its own.
    Thread,
    /// The lanes of a wave hold fragments of the accumulators.
    Wave,
    /// The lanes of four waves do.
    Warpgroup,
}

impl Owner {
    /// The word that plans and refusals use.
    pub const fn name(self) -> &'static str {
        match self {
            Owner::Thread => "thread",
            Owner::Wave => "wave",
            Owner::Warpgroup => "warpgroup",
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How operands get from shared memory to the multipliers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// Each thread loads vectors of its own rows and columns, as wide as the plan says.
    Vectors,
    /// Lanes load fragments of both operands, 16 bytes of a line at once.
    Fragments,
    /// Instructions read swizzled panels without registers; operand A may come from fragments instead.
    Panels,
}

/// The directions of lines in shared memory that operands are read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Lines of rows, one for each k.
    Rows,
    /// Lines along k, one for each row.
    K,
    /// Lines of either direction.
    Either,
}

/// The block of C that a micro tile is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitBlock {
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub columns: u32,
}

/// What all instructions of a family have in common.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Which.
    pub unit: MathUnit,
    /// The value of `UNI` in a plan.
    pub number: u32,
    /// What plans and refusals call it.
    pub name: &'static str,
    /// Who issues its instructions and owns a micro tile.
    pub owner: Owner,
    /// Threads that own a micro tile together.
    pub lanes: u32,
    /// Rows and columns of C that a micro tile is counted in (`MIC`).
    pub block: UnitBlock,
    /// Most columns of a micro tile.
    pub columns: u32,
    /// k-tiles whose instructions may be unfinished while those of the next k-tile are issued. The wave waits for them before it reads
    /// accumulators; 0: instructions end in order.
    pub in_flight: u32,
    /// A lane's neighbours along n in C; 0 where the tiling decides.
    pub run: u32,
    /// How operands get from shared memory to the multipliers.
    pub reads: Reads,
    /// Registers of a lane that one read of fragments from shared memory fills at most, of operands of 16 bits.
    pub read: u32,
    /// A micro tile's rows in swizzled panels begin at multiples of this number of bytes. Descriptors name lines of 128 bytes,
    /// `ldmatrix` reads 16 bytes of a line, and loads of threads begin anywhere.
    pub begins: u32,
    /// Splits of k whose partial results a search reduces within a cluster.
    pub cluster_splits: &'static [u32],
}

/// The families that a plan chooses from.
pub const FAMILIES: [Family; 4] = [
    Family {
        unit: MathUnit::Fma,
        number: 0,
        name: "multiply-adds",
        owner: Owner::Thread,
        lanes: 1,
        block: UnitBlock { rows: 1, columns: 1 },
        columns: u32::MAX,
        in_flight: 0,
        run: 1,
        reads: Reads::Vectors,
        read: 1,
        begins: 1,
        cluster_splits: &[],
    },
    Family {
        unit: MathUnit::Warpgroup,
        number: 2,
        name: "warpgroup matrix instructions",
        owner: Owner::Warpgroup,
        lanes: 128,
        block: UnitBlock { rows: 64, columns: 8 },
        columns: 256,
        in_flight: 1,
        run: 2,
        reads: Reads::Panels,
        read: 4,
        begins: 128,
        cluster_splits: &[2, 4, 8],
    },
    Family {
        unit: MathUnit::Mma,
        number: 1,
        name: "mma.sync matrix instructions",
        owner: Owner::Wave,
        lanes: 32,
        block: UnitBlock { rows: 16, columns: 8 },
        columns: u32::MAX,
        in_flight: 0,
        run: 2,
        reads: Reads::Fragments,
        read: 4,
        begins: 16,
        cluster_splits: &[],
    },
    Family {
        unit: MathUnit::Mfma,
        number: 3,
        name: "MFMA matrix instructions",
        owner: Owner::Wave,
        lanes: 64,
        block: UnitBlock { rows: 16, columns: 16 },
        columns: u32::MAX,
        in_flight: 0,
        run: 0,
        reads: Reads::Fragments,
        read: 2,
        begins: 1,
        cluster_splits: &[],
    },
];

/// That of dot products, which takes the place of multiply-adds.
const DOT: Family = Family { unit: MathUnit::Dot, name: "dot products of four bytes", ..FAMILIES[0] };

impl MathUnit {
    /// What its instructions have in common.
    pub const fn family(self) -> &'static Family {
        match self {
            MathUnit::Dot => &DOT,
            _ => &FAMILIES[self as usize],
        }
    }
    /// The unit with instructions that take the place of this one's, several of k at once.
    pub const fn dot_unit(self) -> Option<MathUnit> {
        match self {
            MathUnit::Fma => Some(MathUnit::Dot),
            _ => None,
        }
    }
    /// True if a target has its instructions.
    pub const fn available(self, features: &Features) -> bool {
        match self {
            MathUnit::Fma => true,
            MathUnit::Warpgroup => features.warpgroup,
            MathUnit::Mma => features.mma,
            MathUnit::Mfma => features.mfma > 0,
            MathUnit::Dot => features.dot,
        }
    }
}

impl Family {
    /// Lanes of a wave of its targets; 1 where any will do.
    pub const fn wave(&self) -> u32 {
        match self.owner {
            Owner::Thread | Owner::Wave => self.lanes,
            Owner::Warpgroup => self.lanes / UNIT_PARTS,
        }
    }
    /// Elements of this type are factors in TF32.
    pub const fn takes_tf32(&self, scalar: Scalar) -> bool {
        self.read_as_matrices() && matches!(scalar, Scalar::F32)
    }
    /// The lines that elements of so many bytes are read from, by instructions themselves or as fragments in registers.
    ///
    /// Four 8-bit neighbours along k fill a register. Matrices of 8 x 8 elements of 16 bits are transposed, and single elements
    /// of 32 bits and more are read anywhere. But instructions that read panels transpose 16-bit elements only.
    pub const fn lines(&self, bytes: u32, in_registers: bool) -> Lines {
        match (self.reads, bytes) {
            (Reads::Vectors, 1) if matches!(self.unit, MathUnit::Dot) => Lines::K,
            (Reads::Vectors, _) => Lines::Rows,
            (_, 1) => Lines::K,
            (Reads::Panels, 4) if !in_registers => Lines::K,
            _ => Lines::Either,
        }
    }
    /// Elements of so many bytes are read from lines along k alone.
    pub const fn along_k(&self, bytes: u32, in_registers: bool) -> bool {
        matches!(self.lines(bytes, in_registers), Lines::K)
    }
    /// Registers read elements of so many bytes from lines that instructions do not read themselves.
    pub const fn registers_read_more(&self, bytes: u32) -> bool {
        self.along_k(bytes, false) && !self.along_k(bytes, true)
    }
    /// Shared memory is read as 8 x 8 matrices of 16-bit elements, by `ldmatrix` or by the instructions themselves.
    pub const fn read_as_matrices(&self) -> bool {
        self.read == 4
    }
    /// The family that `UNI` names; `None` for no unit.
    pub fn numbered(uni: u32) -> Option<&'static Family> {
        FAMILIES.iter().find(|f| f.number == uni)
    }
}
