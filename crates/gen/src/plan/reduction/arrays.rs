//! Arrays of shared memory through which threads reduce values: where each lies, for `fits` and for the kernel.

use super::{Finish, Partials, TileReduction};
use crate::plan::shared_map::Area;
use tilewright_ir::Scalar;

/// One reduction of a tile.
///
/// ```
/// use tilewright_gen::plan::{Plan, SharedReduction, reduction_arrays};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 64).reduce("max:n".parse()?).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// let reduction = derived.c.reductions().next().expect("a reduction");
/// let (state, partials) = (derived.c.state(reduction), derived.partials(&derived.c, reduction));
/// let all = derived.tile_reductions(&derived.c);
/// let one = SharedReduction { state: &state, how: &all[0], partials: &partials };
/// // A wave has part of each row's columns: room for the values of all waves, from byte 0 on.
/// let (_, end) = reduction_arrays(&[one], derived.launch_threads(), derived.teams(), 0);
/// assert!(end > 0 && end == u64::from(all[0].shared()) * 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct SharedReduction<'a> {
    /// Types of its values' components.
    pub state: &'a [Scalar],
    /// How threads reduce it.
    pub how: &'a TileReduction,
    /// Where its values go.
    pub partials: &'a Partials,
}

/// The arrays of one reduction, with an area for each component of its values.
///
/// ```
/// use tilewright_gen::plan::{Plan, SharedReduction, reduction_arrays};
/// # use tilewright_gen::space::Space;
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// // The index of the largest has two components: a value of 4 bytes and an index.
/// let space = Space::new(&Gemm::new(Scalar::F32, 512, 512, 64).reduce("argmax:n".parse()?).build()?.into(), &target)?;
/// let plan = Plan::parse("fma 64x64x16 on 16x16")?;
/// let derived = space.resolve(&plan)?.spec;
/// let reduction = derived.c.reductions().next().expect("a reduction");
/// let (state, partials) = (derived.c.state(reduction), derived.partials(&derived.c, reduction));
/// let all = derived.tile_reductions(&derived.c);
/// let (arrays, _) = reduction_arrays(&[SharedReduction { state: &state, how: &all[0], partials: &partials }], 256, 1, 1024);
/// assert_eq!((arrays[0].parts.len(), arrays[0].parts[0].at), (2, 1024));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReductionArrays {
    /// Parts of the threads; none where lanes have all of a value.
    pub parts: Vec<Area>,
    /// The work-group's values, which others of its cluster read.
    pub met: Vec<Area>,
    /// Whether the work-group is the last, for each team; empty without tickets (`RDF1`).
    pub last: Area,
    /// Shares of the threads where several finish a value; none where one does.
    pub shares: Vec<Area>,
}

/// The arrays of some reductions of `teams` teams of so many threads, from a byte on, and the byte after them.
pub fn reduction_arrays(all: &[SharedReduction], threads: u32, teams: u32, from: u64) -> (Vec<ReductionArrays>, u64) {
    let mut end = from;
    let mut place = |align: u32, count: u32, scalar: Scalar| {
        let at = end.next_multiple_of(align.into());
        let area = Area { at, bytes: u64::from(count) * u64::from(teams) * u64::from(scalar.bytes()) };
        end = area.end();
        area
    };
    let mut arrays = |x: &SharedReduction, count: u32| -> Vec<Area> {
        let state = x.state.iter().filter(|_| count > 0);
        state.map(|scalar| place(scalar.bytes(), count, *scalar)).collect()
    };
    let mut found: Vec<ReductionArrays> =
        all.iter().map(|x| ReductionArrays { parts: arrays(x, x.how.shared()), ..ReductionArrays::default() }).collect();
    for (x, found) in all.iter().zip(&mut found).filter(|(x, _)| x.partials.cluster_peers() > 1) {
        found.met = arrays(x, x.how.values);
    }
    for (x, found) in all.iter().zip(&mut found).filter(|(x, _)| x.partials.finish == Some(Finish::Ticket)) {
        found.last = place(4, 1, Scalar::I32);
        if x.how.sharers(threads, x.partials.parts) > 1 {
            found.shares = x.state.iter().map(|scalar| place(scalar.bytes(), threads, *scalar)).collect();
        }
    }
    (found, end)
}
