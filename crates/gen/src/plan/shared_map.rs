//! Where each array of the main kernel lies in shared memory: one value that the generator, `fits` and `explain` read.
//!
//! | array | without a pipeline | in a pipeline |
//! |---|---|---|
//! | k-tiles of A and B, partial sums of peers over them | from byte 0 | from byte 0 |
//! | transaction barriers | none | after the k-tiles |
//! | tiles before each group | none | after the barriers |
//! | staging of results | over the k-tiles | after the tiles before each group, at a multiple of 1,024 |
//! | parts of reductions | over the k-tiles | after the staging of results, at a multiple of 16 |
//! | spans of shifted rows | none | after all others, at a multiple of 128 |
//!
//! In a pipeline the next tile's operands arrive during the epilogue, so nothing of the epilogue may lie over the k-tiles.

use serde::Serialize;

/// Bytes at whose multiples staging buffers of results start, so that the patterns of swizzled bulk stores do.
const STAGING_ALIGN: u64 = 1024;
/// The same of arrays through which waves reduce results.
const REDUCTION_ALIGN: u64 = 16;
/// The same of bulk copies without a swizzle.
const SPAN_ALIGN: u64 = 128;
/// Bytes of a transaction barrier.
pub(super) const BARRIER: u64 = 8;

/// Bytes of shared memory.
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
/// // The k-tile of B follows that of A, which has 16 lines of 128 elements and one of padding.
/// let [a, b] = derived.shared.operands;
/// assert_eq!((a.at, a.bytes, b.first()), (0, 16 * (128 + 1) * 4, a.end() as u32));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Area {
    /// First byte.
    pub at: u64,
    /// Number of bytes; 0: there is no such array.
    pub bytes: u64,
}

impl Area {
    /// The byte after the last.
    pub const fn end(self) -> u64 {
        self.at + self.bytes
    }
    /// The first byte, as kernels name it: below 2^32 in a plan that fits a device.
    pub const fn first(self) -> u32 {
        self.at as u32
    }
    /// So many bytes from the next multiple of `align` on; nothing takes no room.
    pub(super) fn after(end: u64, align: u64, bytes: u64) -> Area {
        Area { at: if bytes > 0 { end.next_multiple_of(align) } else { end }, bytes }
    }
}

/// The transaction barriers of a pipeline.
///
/// ```
/// use tilewright_gen::plan::{Barriers, Plan};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, tma+tma, 4 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// // A full and a free barrier for each stage.
/// let barriers = derived.shared.barriers.expect("a pipeline");
/// assert_eq!((Barriers::count(barriers.full), Barriers::count(barriers.free)), (4, 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Barriers {
    /// One for each stage, that says when it is full.
    pub full: Area,
    /// One for each stage, that says when it is free.
    pub free: Area,
    /// One for each ping-pong team.
    pub turns: Area,
    /// One for each producer wave and slot of shifted rows.
    pub staged: Area,
}

impl Barriers {
    /// The same from this byte on.
    fn at(self, at: u64) -> Barriers {
        let full = Area { at, ..self.full };
        let free = Area { at: full.end(), ..self.free };
        let turns = Area { at: free.end(), ..self.turns };
        Barriers { full, free, turns, staged: Area { at: turns.end(), ..self.staged } }
    }
    /// The number of barriers in one of the areas.
    pub const fn count(area: Area) -> u32 {
        (area.bytes / BARRIER) as u32
    }
}

/// Where each array of the main kernel lies in shared memory.
///
/// ```
/// use tilewright_gen::plan::Plan;
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_90a").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F16, 512, 512, 512).build()?.into(), &target)?;
/// let plan = Plan::parse("wgmma 128x128x64 on 2x1, tma+tma, 4 stages, 4 producers")?;
/// let derived = space.resolve(&plan)?.spec;
/// // Four stages of 16 KiB of each operand, and barriers after them.
/// let map = &derived.shared;
/// assert_eq!(map.operands.map(|area| area.bytes), [4 * (16 << 10); 2]);
/// assert_eq!(map.barriers.map(|barriers| barriers.full.at), Some(map.operands[1].end()));
/// assert!(map.bytes() > 128 << 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct SharedMap {
    /// The stages of A's and B's k-tiles.
    pub operands: [Area; 2],
    /// Partial sums of a tile, from splits of a cluster or slices of a work-group.
    pub exchange: Area,
    /// Transaction barriers; `None` where barriers of the work-group separate stages.
    pub barriers: Option<Barriers>,
    /// The number of tiles before each group of rows or columns.
    pub groups: Area,
    /// Staging buffers of results.
    pub results: Area,
    /// Arrays through which threads reduce each tile's results.
    pub reductions: Area,
    /// The same after the last tile, for values that go on from tile to tile.
    pub carried: Area,
    /// Slots for the spans of A's and B's rows that producer waves shift.
    pub spans: [Area; 2],
}

impl SharedMap {
    /// The maps of parts of a problem that share a kernel. Each part has its own operands and groups; barriers and areas of the epilogue
    /// follow those of all parts.
    pub(crate) fn together(parts: &[&SharedMap]) -> Vec<SharedMap> {
        let most = |bytes: fn(&SharedMap) -> u64| parts.iter().map(|part| bytes(part)).max().unwrap_or(0);
        let stages = most(|part| part.operands[1].end().max(part.exchange.bytes)).next_multiple_of(BARRIER);
        let results = most(|part| part.results.bytes);
        // Without a pipeline the areas of the epilogue lie over the k-tiles.
        let Some(barriers) = parts.first().and_then(|part| part.barriers) else {
            return parts.iter().map(|part| (*part).clone()).collect();
        };
        let barriers = barriers.at(stages);
        let mut end = barriers.staged.end();
        let mut groups = Vec::new();
        for part in parts {
            let area = Area::after(end, 4, part.groups.bytes);
            groups.push(area);
            end = area.end();
        }
        let staged = Area::after(end, STAGING_ALIGN, results);
        let place = |(part, groups): (&&SharedMap, Area)| {
            let reductions = Area::after(staged.end(), REDUCTION_ALIGN, part.reductions.bytes);
            let carried = Area::after(reductions.end(), REDUCTION_ALIGN, part.carried.bytes);
            let a = Area::after(carried.end(), SPAN_ALIGN, part.spans[0].bytes);
            let b = Area::after(a.end(), SPAN_ALIGN, part.spans[1].bytes);
            let results = Area { bytes: part.results.bytes, ..staged };
            SharedMap { barriers: Some(barriers), groups, results, reductions, carried, spans: [a, b], ..(*part).clone() }
        };
        parts.iter().zip(groups).map(place).collect()
    }

    /// Bytes of shared memory.
    pub fn bytes(&self) -> u64 {
        let barriers = self.barriers.map_or(0, |barriers| barriers.staged.end());
        let others = [self.exchange, self.groups, self.results, self.reductions, self.carried];
        let ends = others.iter().chain(&self.operands).chain(&self.spans).map(|area| area.end());
        ends.fold(barriers, u64::max)
    }
}
