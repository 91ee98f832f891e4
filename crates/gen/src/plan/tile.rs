//! How one operand's tile is cut and laid out: what each thread loads and computes of it, and where it is in shared memory.

use serde::Serialize;
use tilewright_ir::affine::Affine;
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::mma::Family;
use tilewright_ir::{Mma, Scalar};
use tilewright_problem::FactorParts;
use tilewright_problem::contraction::Tensor;

/// Workspace regions start at multiples of this many bytes.
pub const WORKSPACE_ALIGN: u32 = 512;

/// Where an operand's elements are loaded from (MIOpenGEMM `WOS`).
///
/// ```
/// use tilewright_gen::plan::{Plan, Source};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16, A.source=1")?;
/// let derived = space.resolve(&plan)?.spec;
/// // A is copied to workspace first; B is read in place.
/// assert_eq!([&derived.tiling.a, &derived.tiling.b].map(|o| o.source), [Source::Copy, Source::InPlace]);
/// assert!(Source::Copy.gathers());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Source {
    /// Through the operand's own view.
    InPlace,
    /// From a copy in workspace with a padded leading dimension (MIOpenGEMM COPY).
    Copy,
    /// From a copy as [`Source::Copy`], always with rows along k: for units that read 32-bit and 8-bit operands along k only.
    CopyAlongK,
    /// The same with k in the order of runs of weights of operand A, of this length
    /// ([`BulkTile::runs`](super::bulk::BulkTile::runs)).
    CopyInRuns(u32),
    /// From packed panels `[tile][k][macro tile]` in workspace (MIOpenGEMM NFORM).
    Packed,
    /// Through the operand's own view of a copy of its tensor. The copy's rows of channels are padded to multiples of 16 bytes,
    /// and transposed where channels are planes.
    PaddedRows,
}

impl Source {
    /// Returns whether the copy has the elements of the view, batch entry after batch entry.
    pub const fn gathers(self) -> bool {
        matches!(self, Source::Copy | Source::CopyAlongK | Source::CopyInRuns(_) | Source::Packed)
    }
}

/// The two directions of an operand's tile.
///
/// ```
/// use tilewright_gen::plan::{Along, Plan};
/// use tilewright_ir::layout::Axis;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// // Shared memory has lines of rows, one for each k, for threads that read neighbouring rows.
/// assert_eq!((derived.tiling.a.shared_along, Along::K.axis()), (Along::Row, Axis::K));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Along {
    /// Along the non-k dimension (m for A, n for B); MIOpenGEMM's "perp".
    Row,
    /// Along k; MIOpenGEMM's "pll".
    K,
}

impl Along {
    /// The coordinate of a tile along this direction.
    pub const fn axis(self) -> Axis {
        match self {
            Along::Row => Axis::Row,
            Along::K => Axis::K,
        }
    }
}

/// Registers of a lane for a fragment of a warpgroup instruction's left operand, 64 rows of it.
pub(super) const FRAGMENT: u32 = 4;

/// Depth of a k-step of an instruction; where registers hold all parts of factors beside each other, that of one instruction.
pub(super) fn k_step(row: &Mma, split: Option<FactorParts>) -> u32 {
    row.k_step(split.is_some_and(|split| split.as_wide()))
}

/// How one operand's tile is cut and moved.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 128x64x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// let a = &derived.tiling.a;
/// // A thread has 8 of 128 rows; it loads 8 of the tile's 128 x 16 elements.
/// assert_eq!((a.micro, a.macro_tile, a.load_row * a.load_k), (8, 128, 8));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct OperandTiling {
    /// Result rows (A) or columns (B) per thread (`MIC`).
    pub micro: u32,
    /// Result rows or columns per work-group: threads along this operand times `micro`.
    pub macro_tile: u32,
    /// Elements added to each line in shared memory (`PAD` vectors of the wider of fragment reads and
    /// shared stores, which is `VEW` for MIOpenGEMM's plans).
    pub pad: u32,
    /// Elements per thread of one load tile along the row (non-k) direction.
    pub load_row: u32,
    /// Elements per thread of one load tile along k.
    pub load_k: u32,
    /// A thread's elements are strided by the number of load tiles in each direction instead of contiguous (`LIW`).
    pub load_interleave: bool,
    /// Direction in which adjacent threads walk over load tiles.
    pub load_order: Along,
    /// Elements per global load.
    pub load_width: u32,
    /// Direction of those elements; vectors across the lines of shared memory are transposed on their way there.
    pub load_along: Along,
    /// Elements per store to shared memory (along its lines).
    pub store_width: u32,
    /// Elements per read from shared memory into fragments; also the unit of `micro_interleave`.
    pub fragment_width: u32,
    /// A thread's result rows are strided by `macro_tile / micro` vectors instead of contiguous (`MIW`).
    pub micro_interleave: bool,
    /// The contiguous direction in shared memory: lines of `macro_tile` elements, one per k, or of a whole k-tile, one per row.
    pub shared_along: Along,
    /// Where elements come from.
    pub source: Source,
    /// Sets of fragments in registers through which warpgroup instructions read this operand, one per k-step on its way (`RGA`); 0: they
    /// read shared memory themselves.
    pub fragment_sets: u32,
    /// The type of what shared memory holds, where that is as memory has it: lanes make factors of what they read there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw: Option<Scalar>,
    /// What each element is multiplied as the sum of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<FactorParts>,
    /// Tiles of it in a stage of shared memory: one for each part, where elements are split on the way there.
    #[serde(skip_serializing_if = "is_one")]
    pub shared_parts: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_one(parts: &u32) -> bool {
    *parts == 1
}

impl OperandTiling {
    /// What it is split into in registers, where it is split there.
    pub const fn split_in_registers(&self) -> Option<FactorParts> {
        if self.shared_parts > 1 { None } else { self.split }
    }
    /// The products of parts in place of each of elements: which part of A, and which of B.
    pub const fn products(&self) -> &'static [[u32; 2]] {
        match self.split {
            Some(split) => split.products,
            None => &[[0, 0]],
        }
    }
    /// Elements are rounded to TF32 before a unit reads them: factors then lose half of what they would lose by being cut off.
    pub fn rounded(&self, unit: &Family, scalar: Scalar) -> bool {
        unit.takes_tf32(scalar) && self.split.is_none()
    }
    /// Registers of a lane for the fragments of warpgroup instructions; where they are split, for all parts, and for a k-step's as it is read.
    pub const fn fragment_registers(&self) -> u32 {
        let sets = match self.split {
            Some(split) if self.fragment_sets > 0 => split.parts * self.fragment_sets + 1,
            _ => self.fragment_sets,
        };
        self.micro / 64 * FRAGMENT * sets
    }
    /// The type of what shared memory holds of a tensor.
    pub fn shared_scalar(&self, tensor: &Tensor) -> Scalar {
        self.raw.unwrap_or(tensor.factor())
    }
    /// Bytes that an element of a tensor takes there.
    pub fn shared_bytes(&self, tensor: &Tensor) -> f64 {
        let scalar = self.shared_scalar(tensor);
        f64::from(scalar.bytes()) / f64::from(scalar.numbers())
    }
    /// Elements at a position of shared memory: two where they have 4 bits.
    pub fn elements(&self) -> u32 {
        self.raw.map_or(1, Scalar::numbers)
    }
    /// Lines of a k-tile in shared memory, and elements from one to the next.
    pub const fn lines(&self, k_tile: u32) -> (u32, u32) {
        match self.shared_along {
            Along::Row => (k_tile, self.macro_tile + self.pad),
            Along::K => (self.macro_tile, k_tile + self.pad),
        }
    }
    /// A k-tile in shared memory: (row, k) to the element's position; of two elements at a position, which lie along k, their number.
    pub fn shared(&self, k_tile: u32) -> Layout {
        let each = self.elements();
        Layout::padded(self.macro_tile, k_tile / each, self.shared_along.axis(), self.lines(k_tile).1 / each)
    }
    /// Whether some micro tile may have no row of a result of so many, or of nobody knows how many: in the last macro tile.
    pub const fn leaves_empty(&self, extent: Option<u64>) -> bool {
        let last = match extent {
            Some(extent) => extent % self.macro_tile as u64,
            None => 1,
        };
        last > 0 && last <= (self.macro_tile - self.micro) as u64
    }
    /// Vectors of a load thread's share of a k-tile, along rows and along k.
    pub fn vectors(&self) -> (u32, u32) {
        let (row, k) = self.vector();
        ((self.load_row / row).max(1), (self.load_k / k).max(1))
    }
    /// Elements of a vector along rows and along k: one of the two is 1.
    fn vector(&self) -> (u32, u32) {
        match self.load_along {
            Along::Row => (self.load_width.max(1), 1),
            Along::K => (1, self.load_width.max(1)),
        }
    }
    /// What each load thread loads of a k-tile: (thread, vector, element of the vector) to (row, k). Vectors are counted along rows first.
    pub fn share(&self, k_tile: u32) -> Layout {
        let (per_row, per_k) = (self.load_row.max(1), self.load_k.max(1));
        let (across, deep) = ((self.macro_tile / per_row).max(1), (k_tile / per_k).max(1));
        let ((row_unit, k_unit), (rows, ks)) = (self.vector(), self.vectors());
        let [thread, vector, element] = [0, 1, 2].map(Affine::axis);
        let int = |v: u32| i64::from(v);
        let (row_id, k_id) = match self.load_order {
            Along::K => (thread.digit_of(int(deep), None), thread.digit_of(1, Some(int(deep)))),
            Along::Row => (thread.digit_of(1, Some(int(across))), thread.digit_of(int(across), None)),
        };
        // Own vectors stand together, or those of all threads lie between them.
        let strides = |unit: u32, per: u32, tiles: u32| if self.load_interleave { (unit, tiles * unit) } else { (per, unit) };
        let place = |id: Affine, vector: Affine, along: Along| {
            let (first, next) = match along {
                Along::Row => strides(row_unit, per_row, across),
                Along::K => strides(k_unit, per_k, deep),
            };
            let start = Affine::default().plus(&id, int(first)).plus(&vector, int(next));
            if self.load_along == along { start.plus(&element, 1) } else { start }
        };
        let row = place(row_id, vector.digit_of(1, Some(int(rows))), Along::Row);
        let k = place(k_id, vector.digit_of(int(rows), None), Along::K);
        let from = [(Axis::Thread, across * deep), (Axis::Vector, rows * ks), (Axis::Element, row_unit * k_unit)];
        Layout::new(&from.map(|(axis, extent)| (axis, extent.into())), &[(Axis::Row, row), (Axis::K, k)])
    }
    /// What a thread computes along this operand: (position in the thread grid, element of its micro tile) to the row within the macro tile.
    pub fn micro_tile(&self) -> Layout {
        let (id, element) = (Affine::axis(0), Affine::axis(1));
        let (micro, width) = (i64::from(self.micro), i64::from(self.fragment_width.max(1)));
        let threads = i64::from((self.macro_tile / self.micro.max(1)).max(1));
        let row = if self.micro_interleave {
            let within = element.digit_of(1, Some(width));
            Affine::default().plus(&id, width).plus(&element.digit_of(width, None), threads * width).plus(&within, 1)
        } else {
            Affine::default().plus(&id, micro).plus(&element, 1)
        };
        Layout::new(&[(Axis::Thread, threads as u64), (Axis::Element, self.micro.into())], &[(Axis::Row, row)])
    }
}
