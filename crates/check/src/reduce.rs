//! Smaller problems of the same kind: same layouts, alignments and tails, fewer whole tiles.
//!
//! An emulator cannot run a large problem for every candidate. A kernel goes through the same code on a smaller problem, if that
//! problem is large enough for everything that happens only after a while:
//!
//! - each buffer of the pipeline is used three times;
//! - each persistent work-group takes two tiles (each of its teams, where they alternate);
//! - offsets that need 64 bits still need them ([`crate::verify::Case::reduced`]).
//!
//! [`Reduced::spared`] says what did not run.

use tilewright_gen::kernel::WIDE_OFFSETS;
use tilewright_gen::plan::{Derived, ELEMENT_BLOCK, KernelSpec, Plan, pieces, whole_pieces};
use tilewright_gen::space::Space;
use tilewright_problem::contraction::{Contraction, Operand, ResultSource, SECOND_STEP};
use tilewright_problem::{Conv, Direction, Gemm, Matrix, Problem, Reduce, Residual, SecondPair};

/// Sizes keep their remainder by this, so that widths and alignments stay as they are.
const KEEP: u64 = 64;

/// Floating-point operations, tiles counted whole, that an emulator may spend on verifying one candidate.
pub const EMULATED_FLOP: f64 = 1.5e8;

/// What a verification may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Floating-point operations, tiles counted whole.
    pub flop: f64,
    /// The same where a kernel needs as many to take all its turns.
    pub most: f64,
    /// Bytes of A, B and C together.
    pub bytes: u64,
    /// The plan keeps all its persistent work-groups; else it has those of two clusters.
    pub persistent: bool,
}

impl Effort {
    /// Of an emulator that verifies a candidate.
    pub const EMULATED: Effort = Effort { flop: EMULATED_FLOP, most: MOST_FLOP, bytes: u64::MAX, persistent: false };
}
/// Multiply-adds that take an emulator as long as storing a result and comparing it.
const RESULT: u64 = 64;
/// The same of an element that is read and reduced.
const ELEMENT: u64 = 16;
/// The same as [`EMULATED_FLOP`] where a kernel needs as many to take all its turns.
const MOST_FLOP: f64 = 1e9;
/// Elements from the first to the last of a batch entry that was moved apart: about a third of them beyond 31 bits.
const APART: u64 = 3 << 30;

/// Whole tiles along m and n, and k-tiles per split, that a reduced problem has at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wholes {
    /// Along m.
    pub m: u64,
    /// Along n.
    pub n: u64,
    /// Along k.
    pub k: u64,
}

/// The problem with at most `wholes` whole tiles and the same remainders. `None` where it is that small already, or where the
/// smaller one would not be valid.
pub fn reduce(problem: &Problem, spec: &KernelSpec, wholes: Wholes) -> Option<Problem> {
    let t = &spec.tiling;
    let depth = u64::from(t.k_tile) * u64::from(t.split_k.ways.max(1));
    // Blocks of rows and columns divide the rest.
    let whole_blocks = |tile: u32, axis: usize| {
        let blocks = problem.reductions().iter().map(|r| r.over.blocks[axis]).filter(|block| *block > 0);
        blocks.fold(u64::from(tile), |unit, block| unit / gcd(unit, block) * block)
    };
    let tile = [whole_blocks(t.macro_tile().0, 0), whole_blocks(t.macro_tile().1, 1), depth];
    let smaller = match problem {
        Problem::Gemm(gemm) => Problem::Gemm(reduce_gemm(gemm, tile, wholes)),
        Problem::Conv(conv) => Problem::Conv(reduce_conv(conv, tile, wholes)),
        Problem::Reduce(whole) => {
            let ways = u64::from(t.split_k.ways.max(1));
            Problem::Reduce(reduce_tensor(whole, [(false, tile[0], wholes.m), (true, tile[1] * ways, wholes.k)]))
        }
    };
    (smaller != *problem && smaller.validate().is_ok()).then_some(smaller)
}

/// A smaller problem on which a plan is verified.
#[derive(Clone, Debug)]
pub struct Reduced {
    /// Its plans.
    pub space: Space,
    /// The plan there: the same, with fewer persistent work-groups.
    pub plan: Plan,
    /// The same problem with its rows close together in memory. It exists where the operands of `space` are spread over more
    /// memory than data can be made for. Their rows are then far apart, as offsets of 64 bits need.
    pub compact: Option<Problem>,
    /// What of the problem itself does not run.
    pub spared: String,
}

impl Reduced {
    /// The problem and what did not run, in words.
    pub fn title(&self) -> String {
        format!("{} (not run: {})", self.space.problem().key(), self.spared)
    }
}

/// How often a kernel does what it does again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turns {
    /// k-tiles of a split; of a standalone reduction the steps of a work-group along the columns.
    k_tiles: u64,
    /// k-tiles in which a work-group does all that it does in more of them.
    enough: u64,
    /// Tiles of the result, each split of k counted.
    pieces: u64,
    /// The same where splits of the last tiles count as one.
    whole: u64,
    /// Tiles along the oriented m and n.
    tiles: [u64; 2],
    /// Multiply-adds, or what takes as long, for each place of a tile.
    each: u64,
    /// The last tiles are split along k.
    tail: bool,
}

impl Turns {
    fn of(derived: &Derived) -> Turns {
        let (Derived { spec, c, .. }, t) = (derived, &derived.tiling);
        if let ResultSource::Elements(_) = c.source {
            let share = spec.share_of_columns(c);
            let tiles = [c.m.div_ceil(t.a.macro_tile.into()), c.n.div_ceil(share)];
            let k_tiles = share.div_ceil(t.b.macro_tile.into());
            // Steps are added up in blocks: more than one of them.
            let enough = ELEMENT_BLOCK as u64 + 2;
            let pieces = tiles[0] * tiles[1];
            return Turns { k_tiles, enough, pieces, whole: pieces, tiles, each: ELEMENT * k_tiles, tail: false };
        }
        let k_tiles = c.k.div_ceil(u64::from(t.k_tile) * u64::from(t.split_k.ways.max(1)));
        let tiles = [c.m.div_ceil(t.a.macro_tile.into()), c.n.div_ceil(t.b.macro_tile.into())];
        let each = RESULT.max(u64::from(t.k_tile) * k_tiles);
        let s = &spec.schedule;
        let splits = t.tail.map_or(1, |tail| u64::from(tail.splits));
        let enough = (2 * u64::from(s.buffers.max(s.fetch_ahead + 1).max(s.slots())) + 1).max(splits);
        let (pieces, whole) = (pieces(derived), whole_pieces(derived));
        Turns { k_tiles, enough, pieces, whole, tiles, each, tail: t.tail.is_some() }
    }

    /// Those after which every buffer has been used three times, and every persistent work-group has taken two tiles; fewer where the
    /// problem itself has fewer.
    fn wanted(spec: &KernelSpec, few: &KernelSpec, all: Turns) -> Turns {
        let teams = u64::from(spec.schedule.roles.map_or(1, |roles| roles.teams.max(1)));
        let pieces = u64::from(few.tiling.persistent) * 2 * teams + 1;
        Turns {
            k_tiles: all.k_tiles.min(all.enough),
            pieces: all.pieces.min(if few.tiling.persistent == 0 { 2 } else { pieces }),
            tiles: all.tiles.map(|tiles| tiles.min(2)),
            ..all
        }
    }

    fn reach(&self, wanted: &Turns) -> bool {
        self.k_tiles >= wanted.k_tiles && self.reach_tiles(wanted)
    }
    fn reach_tiles(&self, wanted: &Turns) -> bool {
        self.tail >= wanted.tail
            && self.pieces >= wanted.pieces
            && self.tiles.iter().zip(wanted.tiles).all(|(has, wanted)| *has >= wanted)
    }
    /// Floating-point operations, tiles counted whole. However short a sum is, its result is stored and compared.
    fn flop(&self, spec: &KernelSpec) -> f64 {
        let t = &spec.tiling;
        let tile = f64::from(t.a.macro_tile) * f64::from(t.b.macro_tile);
        2.0 * self.whole as f64 * tile * self.each as f64
    }
}

/// The plan with two persistent clusters instead of one for each compute unit: they take as many tiles each in less work. Four of those
/// that add up reductions over their own tiles: several have parts of the same values.
fn few_persistent(plan: &Plan, spec: &KernelSpec) -> Plan {
    let clusters = if spec.epilogue.carry { 4 } else { 2 };
    let few = spec.tiling.persistent.min(clusters * spec.tiling.cluster.size());
    plan.but(|keys| keys.persistent = few).into()
}

/// A problem on which `plan` (derived: `spec`) does all it does on the problem of `space`. It takes about [`EMULATED_FLOP`]
/// operations or fewer, or some times as many if the plan needs them. If no problem fits, it is the nearest one. `None` where the
/// problem itself is small enough, or cannot be reduced.
pub fn for_emulator(space: &Space, plan: &Plan, spec: &Derived) -> Option<Reduced> {
    let mut reduced = close_together(space, plan, spec, &Effort::EMULATED)?;
    let wide = spread(space, &reduced.space, plan).and_then(|wide| {
        let wide = space.of(&wide).ok()?;
        wide.resolve(&reduced.plan).is_ok().then_some(wide)
    });
    if let Some(wide) = wide {
        reduced.compact = Some(reduced.space.problem().clone());
        reduced.space = wide;
    }
    Some(with_narrow(space, plan, reduced))
}

/// A problem on which `plan` does all it does on that of `space`, within an effort; what is nearest where nothing is near. Its operands are dense in
/// memory. `None` where the problem itself is small enough, or cannot be reduced.
pub fn within(space: &Space, plan: &Plan, spec: &Derived, effort: &Effort) -> Option<Reduced> {
    Some(with_narrow(space, plan, close_together(space, plan, spec, effort)?))
}

/// The same, saying which operands have no offsets of 64 bits any more.
fn with_narrow(space: &Space, plan: &Plan, mut reduced: Reduced) -> Reduced {
    let (whole, part) = (space.contraction(plan), reduced.space.contraction(plan));
    let narrow = [Operand::A, Operand::B, Operand::C].into_iter().filter(|o| is_wide(whole, *o) && !is_wide(part, *o));
    let names: Vec<String> = narrow.map(|operand| format!("{operand:?}")).collect();
    if !names.is_empty() {
        reduced.spared += &format!(", 64-bit offsets of {}", names.join(", "));
    }
    reduced
}

/// Floating-point operations of a plan, tiles counted whole.
pub fn flop(spec: &Derived) -> f64 {
    Turns::of(spec).flop(spec)
}

/// Bytes of the operands of a plan.
pub fn bytes(space: &Space, plan: &Plan) -> u64 {
    let contraction = space.contraction(plan);
    let operands = [Operand::A, Operand::B, Operand::C].map(|x| contraction.tensor(x)).into_iter();
    operands.chain(contraction.second_operands().map(|(_, x)| x)).map(|t| t.scalar.bytes_of(t.len)).sum()
}

/// As [`for_emulator`] without operands far apart in memory.
fn close_together(space: &Space, plan: &Plan, spec: &Derived, effort: &Effort) -> Option<Reduced> {
    let problem = space.problem();
    let all = Turns::of(spec);
    let is_small = problem.flop() <= effort.flop && all.flop(spec) <= 4.0 * effort.flop;
    if is_small && bytes(space, plan) <= effort.bytes {
        return None;
    }
    let few = if effort.persistent { *plan } else { few_persistent(plan, spec) };
    let mut found: Vec<(Space, KernelSpec, Turns)> = Vec::new();
    let wanted = Turns::wanted(spec, &space.resolve(&few).map_or_else(|_| spec.spec.clone(), |r| r.spec.spec), all);
    for wholes in wholes(wanted) {
        let Some(small) = reduce(problem, spec, wholes) else { continue };
        if found.iter().any(|(s, ..)| *s.problem() == small) {
            continue;
        }
        let Ok(small) = space.of(&small) else { continue };
        let Ok((turns, spec)) = small.resolve(&few).map(|r| (Turns::of(&r.spec), r.spec.spec)) else { continue };
        found.push((small, spec, turns));
    }
    let flop = |(_, spec, turns): &(Space, KernelSpec, Turns)| turns.flop(spec);
    let fits = |(space, ..): &(Space, KernelSpec, Turns)| bytes(space, &few) <= effort.bytes;
    if found.iter().any(fits) {
        found.retain(fits);
    }
    found.sort_by(|x, y| flop(x).total_cmp(&flop(y)));
    let first = |good: &dyn Fn(&Turns) -> bool| found.iter().position(|f| good(&f.2)).filter(|i| flop(&found[*i]) <= effort.most);
    let complete = first(&|turns| turns.reach(&wanted));
    // As much as is still quick, once everything is in it.
    let ample = found.iter().rposition(|f| f.2.reach(&wanted) && flop(f) <= effort.flop);
    // Buffers and persistent work-groups before tiles in both directions.
    let at = ample.or(complete).or_else(|| first(&|turns| turns.k_tiles >= wanted.k_tiles && turns.pieces >= wanted.pieces));
    let at = at.or_else(|| first(&|turns| turns.k_tiles >= wanted.k_tiles));
    let at = at.or_else(|| first(&|turns| turns.reach_tiles(&wanted))).unwrap_or(0);
    let (small, small_spec, turns) = (at < found.len()).then(|| found.swap_remove(at))?;
    let words = match space.contraction(plan).source {
        ResultSource::Elements(_) => ["work-groups", "steps of each"],
        _ => ["tiles of C", "k-tiles of each"],
    };
    let (many, few_groups) = (spec.tiling.persistent, small_spec.tiling.persistent);
    let spared = spared(many, few_groups, all, turns, wanted, words);
    Some(Reduced { space: small, plan: few, compact: None, spared })
}

/// True if offsets within an operand need 64 bits.
fn is_wide(contraction: &Contraction, operand: Operand) -> bool {
    contraction.tensor(operand).len >= WIDE_OFFSETS
}

/// The reduced product with some operands spread in memory. Operands that need offsets of 64 bits in the whole product are spread
/// so far apart that they need them here, too. `None` where no operand needs them, or none has rows or batch entries that can be
/// moved apart.
fn spread(whole: &Space, small: &Space, plan: &Plan) -> Option<Problem> {
    let (Problem::Gemm(before), Problem::Gemm(small)) = (whole.problem(), small.problem()) else { return None };
    let mut wide = small.clone();
    for (index, operand) in [Operand::A, Operand::B, Operand::C].into_iter().enumerate() {
        if !is_wide(whole.contraction(plan), operand) {
            continue;
        }
        let (old, is) = (*before.matrices()[index], *small.matrices()[index]);
        let (line, lines) = small.lines(index);
        let batched = is.batch_stride != 0;
        if batched && is.batch_stride < is.ld {
            continue;
        }
        let matrix = [&mut wide.a, &mut wide.b, &mut wide.c];
        let Some(matrix) = matrix.into_iter().nth(index) else { continue };
        if lines > 2 {
            matrix.ld = with_remainder(old.ld, APART.div_ceil(lines - 1));
        }
        if batched {
            let span = (lines - 1) * matrix.ld + line.max(is.batch_stride.saturating_sub((lines - 1) * is.ld));
            let least = if lines > 2 { span } else { span.max(APART) };
            matrix.batch_stride = with_remainder(old.batch_stride, least);
        }
    }
    (wide != *small && wide.validate().is_ok()).then_some(Problem::Gemm(wide))
}

/// Sizes to choose from.
fn wholes(wanted: Turns) -> impl Iterator<Item = Wholes> {
    const TILES: [(u64, u64); 10] = [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3), (3, 4), (4, 3), (5, 5)];
    let mut depths = vec![wanted.k_tiles, 3, 2, 1];
    depths.dedup();
    // As many tiles as persistent work-groups want.
    let side = wanted.pieces.isqrt() + 1;
    let tiles = TILES.into_iter().chain((side > 5).then_some((side, side)));
    depths.into_iter().flat_map(move |k| tiles.clone().map(move |(m, n)| Wholes { m, n, k }))
}

/// What of a problem its reduced one does not run, in words.
/// `many` and `few`: the persistent work-groups of both.
fn spared(many: u32, few: u32, all: Turns, turns: Turns, wanted: Turns, [tiles, steps]: [&str; 2]) -> String {
    let mut parts = Vec::new();
    if turns.pieces < all.pieces {
        parts.push(format!("{} of {} {tiles}", all.pieces - turns.pieces, all.pieces));
    }
    if turns.k_tiles < all.k_tiles {
        parts.push(format!("{} of {} {steps}", all.k_tiles - turns.k_tiles, all.k_tiles));
    }

    if few < many {
        parts.push(format!("{} of {many} persistent work-groups", many - few));
    }
    if turns.k_tiles < wanted.k_tiles {
        parts.push("the third use of each buffer".into());
    }
    if few > 0 && turns.pieces < wanted.pieces {
        parts.push("the second tile of each persistent work-group".into());
    }
    if turns.tiles.iter().zip(wanted.tiles).any(|(has, wanted)| *has < wanted) {
        parts.push("a second row or column of tiles".into());
    }
    if wanted.tail && !turns.tail {
        parts.push("the split of the last tiles".into());
    }
    if parts.is_empty() { "some of its memory".into() } else { parts.join(", ") }
}

/// Fewer whole units, the same remainder.
fn cut(size: u64, unit: u64, whole: u64) -> u64 {
    let unit = unit.max(1);
    if size <= unit * (whole + 1) { size } else { unit * whole + size % unit }
}

/// The least value of at least `least` with the same remainder by [`KEEP`] as before.
fn with_remainder(before: u64, least: u64) -> u64 {
    least + (KEEP + before % KEEP - least % KEEP) % KEEP
}

/// The same, no more than before.
fn same_remainder(before: u64, least: u64) -> u64 {
    with_remainder(before, least).min(before.max(least))
}

fn reduce_gemm(gemm: &Gemm, [tile_m, tile_n, depth]: [u64; 3], wholes: Wholes) -> Gemm {
    let mut small = gemm.clone();
    // Tiles count the parts of complex numbers: of as many elements as have a whole number of tiles.
    let elements = |tile: u64| if tile.is_multiple_of(gemm.parts()) { tile / gemm.parts() } else { tile };
    let [tile_m, tile_n, depth] = [tile_m, tile_n, depth].map(elements);
    // And a gate's pairs of columns.
    let tile_n = if gemm.gate.is_some() { (tile_n / 2).max(1) } else { tile_n };
    small.m = cut(gemm.m, tile_m, wholes.m);
    small.n = cut(gemm.n, tile_n, wholes.n);
    // A second pair of factors begins at a multiple of its step: the zeros before it stay as many.
    let depth = if gemm.second.is_some() { depth * (SECOND_STEP / gcd(depth, SECOND_STEP)) } else { depth };
    small.k = cut(gemm.k, depth, wholes.k);
    small.batch = gemm.batch.min(2);
    for index in 0..3 {
        let (line, lines) = small.lines(index);
        let old = *gemm.matrices()[index];
        let ld = same_remainder(old.ld, line);
        let span = (lines - 1) * ld + line;
        // Batch entries may be interleaved instead of one after the other: then they keep their distance.
        let stride = if old.batch_stride == 0 || old.batch_stride < old.ld {
            old.batch_stride
        } else {
            same_remainder(old.batch_stride, span)
        };
        let batch_stride = if small.batch == 1 { 0 } else { stride };
        let interleaved = old.batch_stride != 0 && old.batch_stride < old.ld;
        let new = Matrix { ld: if interleaved { old.ld } else { ld }, batch_stride, ..old };
        *[&mut small.a, &mut small.b, &mut small.c][index] = new;
    }
    if let Some(pair) = gemm.second {
        let k = cut(pair.k, depth, wholes.k);
        small.second = Some(SecondPair { k, ..pair });
        if let Some(second) = small.second_product() {
            let ld = |index: usize, ld: u64| same_remainder(ld, second.lines(index).0);
            small.second = Some(SecondPair { k, lda: ld(0, pair.lda), ldb: ld(1, pair.ldb) });
        }
    }
    if let Some(bias) = &mut small.bias {
        bias.batch_stride = if small.batch == 1 { 0 } else { bias.batch_stride };
    }
    let (line, lines) = small.lines(2);
    if let Some(residual) = &mut small.residual {
        // Read only: batch entries may lie as they do.
        let ld = same_remainder(residual.ld, line);
        let apart = if residual.batch_stride == 0 { 0 } else { same_remainder(residual.batch_stride, (lines - 1) * ld + line) };
        *residual = Residual { ld, batch_stride: if small.batch == 1 { 0 } else { apart } };
    }
    small
}

/// Fewer rows (axes that are kept) and columns (axes that are reduced). The longest axis of each is cut. The other axes stay as
/// they are, so alignments and the contiguity of neighbours stay, too.
fn reduce_tensor(whole: &Reduce, by: [(bool, u64, u64); 2]) -> Reduce {
    let mut small = whole.clone();
    for (reduced, unit, count) in by {
        let axes = whole.axes(reduced);
        let Some(longest) = axes.iter().copied().max_by_key(|axis| whole.shape[*axis]) else { continue };
        let others: u64 = axes.iter().filter(|axis| **axis != longest).map(|axis| whole.shape[*axis]).product();
        // Of several axes the steps that keep whole tiles may be as long as the axis.
        let step = if others == 1 { unit } else { (unit / gcd(unit, others)).min(KEEP) };
        small.shape[longest] = cut(whole.shape[longest], step, (count * unit / others.max(1)).div_ceil(step.max(1)).max(1));
    }
    small
}

fn reduce_conv(conv: &Conv, [tile_m, tile_n, depth]: [u64; 3], wholes: Wholes) -> Conv {
    let mut small = conv.clone();
    small.n = conv.n.min(2);
    small.groups = conv.groups.min(2);
    let taps: u64 = conv.filter.iter().product();
    // Channels in steps that keep the remainder of channels * taps by a tile of both.
    let with_taps = |channels: u64, tile: u64, whole: u64| {
        let step = (tile / gcd(tile, taps)).max(1);
        cut(channels, step, (whole * tile / taps.max(1)).div_ceil(step).max(1))
    };
    let (c, k) = (conv.c_per_group(), conv.k_per_group());
    // Rows of the image go first, the line stays whole: vectors and halves of lines look as before.
    let (c, k, wanted) = match conv.direction {
        Direction::Forward => (with_taps(c, depth, wholes.k), cut(k, tile_n, wholes.n), tile_m * (wholes.m + 1)),
        Direction::BackwardData => (cut(c, tile_n, wholes.n), with_taps(k, depth, wholes.k), tile_m * (wholes.m + 1)),
        // The samples share the sum.
        Direction::BackwardWeight => {
            (with_taps(c, tile_n, wholes.n), cut(k, tile_m, wholes.m), (depth * (wholes.k + 1)).div_ceil(small.n))
        }
    };
    (small.c, small.k) = (c * small.groups, k * small.groups);
    for d in 0..conv.dims().saturating_sub(1) {
        let output = small.output();
        let others: u64 = output.iter().enumerate().filter(|(i, _)| *i != d).map(|(_, v)| v).product();
        let rows = wanted.div_ceil(others.max(1)).max(2);
        // What the image does not have goes of its padding, which stays deeper than a window.
        let window = conv.dilation[d] * (conv.filter[d] - 1) + 1;
        let mut left = output[d].saturating_sub(rows) * conv.stride[d];
        for (extent, least) in [(&mut small.input[d], 1), (&mut small.pad_end[d], window), (&mut small.pad_begin[d], window)] {
            let part = left.min(extent.saturating_sub(least));
            *extent -= part;
            left -= part;
        }
    }
    small
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_gen::plan::Constraint;
    use tilewright_ir::{Scalar, Target};
    use tilewright_problem::{Operator, Order};

    fn check(problem: &Problem) -> Option<Problem> {
        let target = Target::by_arch("sm_90a").unwrap();
        let space = Space::new(problem, &target).unwrap();
        let plan = space.repair(&Plan::default()).unwrap();
        let spec = space.resolve(&plan).unwrap().spec;
        let small = reduce(problem, &spec, Wholes { m: 2, n: 2, k: 2 })?;
        assert!(small.flop() < problem.flop());
        assert!(Space::new(&small, &target).unwrap().resolve(&plan).is_ok(), "{small}");
        Some(small)
    }

    #[test]
    fn tails_and_alignment_stay() {
        let gemm = Gemm::new(Scalar::F32, 4099, 5001, 1023).order(Order::Col).lda(4104).offsets(4, 8, 0).build().unwrap();
        let Some(Problem::Gemm(small)) = check(&Problem::Gemm(gemm)) else { panic!("not reduced") };
        assert_eq!((small.m, small.n, small.k), (2 * 128 + 3, 2 * 128 + 9, 2 * 16 + 15));
        assert_eq!((small.a.ld % 64, small.a.offset, small.b.offset), (4104 % 64, 4, 8));
        assert_eq!(small.b.ld % 64, 1023 % 64);
    }

    #[test]
    fn both_pairs_of_factors_shrink() {
        let gemm = Gemm::new(Scalar::F32, 4099, 5001, 1023).order(Order::Col).k2(2050).lda2(4120).build().unwrap();
        let Some(Problem::Gemm(small)) = check(&Problem::Gemm(gemm)) else { panic!("not reduced") };
        let pair = small.second.unwrap();
        assert_eq!((small.k, pair.k), (2 * 128 + 1023 % 128, 2 * 128 + 2050 % 128));
        assert_eq!((pair.lda % 64, pair.ldb % 64), (4120 % 64, 2050 % 64));
        assert!(pair.lda < 1000 && pair.ldb < 1000, "{pair:?}");
    }

    #[test]
    fn batches_shrink_and_shared_operands_stay_shared() {
        let gemm = Gemm::new(Scalar::F32, 1024, 1024, 512).order(Order::Col).batch(64).stride_a(0).build().unwrap();
        let Some(Problem::Gemm(small)) = check(&Problem::Gemm(gemm)) else { panic!("not reduced") };
        assert_eq!((small.batch, small.a.batch_stride), (2, 0));
        assert!(small.c.batch_stride >= small.span(2) / 2);
    }

    #[test]
    fn small_problems_stay() {
        assert_eq!(check(&Problem::Gemm(Gemm::new(Scalar::F32, 300, 200, 40).order(Order::Col).build().unwrap())), None);
    }

    #[test]
    fn tensors_shrink_along_both_axes() {
        let sum = |shape: &[u64], over: &[usize]| {
            let problem = Problem::Reduce(Reduce::new(Scalar::F32, shape, over).op(Operator::Sum).build().unwrap());
            let (space, spec, found) = reduced(problem, "sm_90a", "C_ICE2");
            let turns = [&space, &found.space].map(|space| Turns::of(&space.resolve(&found.plan).unwrap().spec));
            let Problem::Reduce(small) = found.space.problem() else { panic!("no tensor") };
            assert!(turns[1].flop(&spec) <= MOST_FLOP, "{turns:?}");
            assert!(turns[1].tiles.iter().zip(turns[0].tiles).all(|(has, all)| *has >= all.min(2)), "{turns:?}");
            (small.clone(), turns)
        };
        let (small, _) = sum(&[65539, 1024], &[1]);
        assert!(small.shape[0] < 4096 && small.strides == [1024, 1], "{small:?}");
        // Long sums go through a block and what follows it.
        let (small, turns) = sum(&[64, 1 << 22], &[1]);
        assert!(small.shape[1] < 1 << 21 && turns[1].k_tiles > ELEMENT_BLOCK as u64, "{small:?}");
        let (small, _) = sum(&[257, 300, 1001], &[0, 2]);
        assert!(small.shape.iter().product::<u64>() < 1 << 24 && small.shape[0] == 257, "{small:?}");
    }

    #[test]
    fn convolutions_shrink_in_every_direction() {
        for direction in [Direction::Forward, Direction::BackwardData, Direction::BackwardWeight] {
            let conv = Conv::new(Scalar::F32, 64, 512, 1024, &[56, 56], &[3, 3]).pad(&[1, 1], &[1, 1]).direction(direction);
            let Some(Problem::Conv(small)) = check(&Problem::Conv(conv.build().unwrap())) else { panic!("not reduced") };
            assert_eq!((small.n, small.input[1]), (2, 56));
            assert!(small.c < 512 && small.k < 1024 && small.input[0] < 56, "{direction:?}: {small:?}");
        }
    }

    /// The reduced problem of a plan that repairs `text`.
    fn reduced(problem: Problem, arch: &str, text: &str) -> (Space, KernelSpec, Reduced) {
        let space = Space::new(&problem, &Target::by_arch(arch).unwrap()).unwrap();
        let plan = Plan::from(Constraint::parse(text).unwrap().apply(&Plan::default()));
        let plan = space.repair(&plan).unwrap();
        let spec = space.resolve(&plan).unwrap().spec;
        let found = for_emulator(&space, &plan, &spec).unwrap();
        let spec = spec.spec;
        (space, spec, found)
    }

    #[test]
    fn every_buffer_wraps_and_persistent_work_groups_take_several_tiles() {
        let gemm =
            |m, n, k| Problem::Gemm(Gemm::new(Scalar::BF16, m, n, k).order(Order::Col).trans(true, false).build().unwrap());
        for (pst, png) in [(0, 0), (132, 0), (132, 1)] {
            for buffers in [2, 3, 4] {
                let text = format!(
                    "A_MIC1_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_SKW10_UNR64_PFG{}_BUF{buffers}_LWV4_PST{pst}_PNG{png}",
                    buffers - 1
                );
                let (_, spec, found) = reduced(gemm(8192, 8200, 8192), "sm_90a", &text);
                assert_eq!(spec.schedule.buffers, buffers, "{text}");
                let few = found.space.resolve(&found.plan).unwrap().spec;
                let turns = Turns::of(&few);
                assert!(turns.k_tiles > 2 * u64::from(buffers), "{text}: {turns:?}");
                let teams = spec.schedule.roles.map_or(1, |r| u64::from(r.teams));
                assert!(turns.pieces > 2 * teams * u64::from(few.tiling.persistent), "{text}: {turns:?}");
                assert_eq!(few.tiling.persistent, if pst == 0 { 0 } else { 2 }, "{text}");
                assert_eq!(found.spared.contains("130 of 132 persistent work-groups"), pst > 0, "{}", found.spared);
                assert!(!found.spared.contains("use of each") && !found.spared.contains("second tile"), "{}", found.spared);
                assert!(found.spared.contains("k-tiles of each") && found.spared.contains("tiles of C"), "{}", found.spared);
            }
        }
    }

    /// A smaller problem has whole tiles before a split tail, too, on few persistent work-groups and on all of them.
    #[test]
    fn split_tails_stay() {
        for splits in [2, 5, 16] {
            let gemm = Gemm::new(Scalar::BF16, 5000, 5000, 5000).order(Order::Col).trans(true, false);
            let text = format!("A_MIC2_ACP2__B_MIC16_ACP2__C_UNI2_MAC256_SKW10_UNR64_PFG2_BUF3_LWV4_PST132_TSP{splits}");
            let (space, _, found) = reduced(Problem::Gemm(gemm.build().unwrap()), "sm_90a", &text);
            let few = found.space.resolve(&found.plan).unwrap().spec;
            assert_eq!(few.tiling.tail.map(|tail| tail.splits), Some(splits), "{}", found.title());
            assert!(!found.spared.contains("split of the last"), "{}", found.spared);
            let plan = Plan::from(Constraint::parse(&text).unwrap().apply(&Plan::default()));
            let effort = Effort { persistent: true, flop: 1e11, most: 4e11, bytes: 1 << 30 };
            let whole = within(&space, &plan, &space.resolve(&plan).unwrap().spec, &effort).unwrap();
            assert!(whole.space.resolve(&whole.plan).unwrap().spec.tiling.tail.is_some(), "{}", whole.title());
        }
    }

    #[test]
    fn offsets_stay_as_wide_as_they_are() {
        let gemm = Gemm::new(Scalar::F32, 70_000, 300, 40_001).order(tilewright_problem::Order::Row).ldc(40_004).build().unwrap();
        let (space, _, found) = reduced(Problem::Gemm(gemm), "sm_90a", "C_MAC64");
        let (whole, small) = (space.contraction(&found.plan), found.space.contraction(&found.plan));
        for operand in [Operand::A, Operand::B, Operand::C] {
            assert_eq!(is_wide(whole, operand), is_wide(small, operand), "{operand:?}");
        }
        assert!(small.a.len > APART && small.c.len > APART, "{} {}", small.a.len, small.c.len);
        assert!(is_wide(small, Operand::A) && is_wide(small, Operand::C) && !is_wide(small, Operand::B));
        let (Problem::Gemm(wide), Some(Problem::Gemm(compact))) = (found.space.problem(), &found.compact) else { panic!("no") };
        assert_eq!((wide.m, wide.n, wide.k, wide.a.ld % 64), (compact.m, compact.n, compact.k, 40_001 % 64));
        assert!(compact.span(0) < 1 << 24 && !found.spared.contains("64-bit"), "{}", found.spared);
    }

    #[test]
    fn one_long_axis_is_cut() {
        for (m, n, k) in [(10_000_000, 1, 4), (2_000_000, 4, 4), (4, 2_000_000, 4), (8, 8, 4_000_000)] {
            let gemm = Gemm::new(Scalar::F32, m, n, k).order(Order::Col).build().unwrap();
            let (_, spec, found) = reduced(Problem::Gemm(gemm), "sm_90a", "C_MAC64");
            let turns = Turns::of(&found.space.resolve(&found.plan).unwrap().spec);
            assert!(turns.flop(&spec) <= EMULATED_FLOP && turns.pieces.max(turns.k_tiles) >= 2, "{turns:?}");
        }
    }

    #[test]
    fn padding_larger_than_the_image_is_cut() {
        let conv = Conv::new(Scalar::F32, 8, 16, 16, &[30, 30], &[3, 3]).pad(&[200, 200], &[200, 200]).build().unwrap();
        let Some(Problem::Conv(small)) = check(&Problem::Conv(conv)) else { panic!("not reduced") };
        assert_eq!((small.input[1], small.pad_begin[1]), (30, 200));
        assert!(small.pad_begin[0] + small.pad_end[0] < 20 && small.pad_end[0] >= 3, "{small:?}");
    }
}
