//! Plans worth a look before anything is known: a structured grid of tilings and schedules that suit a device.

use super::seed_keys::{along_k, layout, splits, tiled};
use super::traffic::beside_each_other;
use super::{Candidate, Picker, elements, halo_seeds, matrix_seeds, own, wave_unit_seeds};
use rayon::prelude::*;
use tilewright_gen::plan::{Keys, OperandKeys, Plan, Plans, thread_grid};
use tilewright_gen::space::{Repaired, Space};
use tilewright_ir::Dialect;
use tilewright_ir::mma::Reads;
use tilewright_problem::contraction::{Contraction, Operand, ResultSource};
use tilewright_problem::view::{COL, ROW};

/// Tilings that suit the target and the problem, each legal and none twice, with one good schedule. Where no tiling of the grid can
/// have what the constraint demands: legal plans near some of them.
pub(super) fn seeds(picker: &Picker) -> Vec<Candidate> {
    let space = picker.space;
    let mut grid = Grid { space, plans: Vec::new() };
    for (form, contraction) in space.contractions() {
        let first = grid.plans.len();
        match contraction.source {
            ResultSource::Elements(_) => grid.plans.extend(elements::seeds(space, form, contraction)),
            ResultSource::OwnOperands(_) => grid.plans.extend(own::seeds(space, form, contraction)),
            ResultSource::Product if space.target().wave <= 1 => grid.cpu(form, contraction),
            ResultSource::Product => {
                grid.gpu(form, contraction);
                grid.plans.extend(matrix_seeds::seeds(picker, form, contraction));
                grid.plans.extend(wave_unit_seeds::seeds(space, form, contraction));
                grid.plans.extend(halo_seeds::seeds(space, form, contraction));
            }
        }
        grid.last_resorts(form);
        alternate_entries(&mut grid.plans[first..], contraction);
    }
    let legal = legal(picker, &grid.plans, &mut Plans::default());
    if legal.is_empty() && !space.constraint().is_none() { picker.rank(&near(space, &grid.plans)) } else { legal }
}

/// Makes consecutive work-groups take the same tile of all batch entries, where TMA would fetch cache lines that several entries share.
/// Entries with split-k run concurrently anyway; for them this order took 1.05 to 1.13 times as long.
fn alternate_entries(plans: &mut [Keys], c: &Contraction) {
    let beside = [beside_each_other(&c.a), beside_each_other(&c.b)];
    for plan in plans.iter_mut().filter(|plan| plan.splits == 1) {
        if beside[0] && plan.a.copy == 2 || beside[1] && plan.b.copy == 2 {
            plan.entries_fastest = 1;
        }
    }
}

/// Plans made legal with their modelled times, none twice and none of those seen, in their order.
pub(super) fn legal(picker: &Picker, plans: &[Keys], seen: &mut Plans) -> Vec<Candidate> {
    let known = &*seen;
    let candidate = |keys: &Keys| {
        let Repaired { plan, resolved } = picker.space.repaired(keys)?;
        let estimate = (!known.contains(&plan)).then(|| picker.estimate_of(&resolved))??;
        Some(Candidate { plan, estimate })
    };
    let found: Vec<Option<Candidate>> = plans.par_iter().map(candidate).collect();
    found.into_iter().flatten().filter(|candidate| seen.insert(candidate.plan)).collect()
}

/// Legal plans near some of these, by search over the keys that refusals name: for constraints under which none of them can
/// be repaired. None twice.
fn near(space: &Space, plans: &[Keys]) -> Vec<Plan> {
    /// Plans that the search starts from.
    const STARTS: usize = 256;
    /// Plans that it looks at around each.
    const AROUND: usize = 400;
    let starts: Vec<&Keys> = plans.iter().step_by(plans.len().div_ceil(STARTS).max(1)).collect();
    let nearest = |plan: &&Keys| space.nearest(&space.admit(plan), AROUND);
    let mut found: Vec<Plan> = starts.par_iter().filter_map(nearest).collect();
    found.sort();
    found.dedup();
    found
}

/// A plan under every schedule that makes sense as a whole. These are MIOpenGEMM's loop, loads that run ahead of the math,
/// fragments that do, and asynchronous copies.
pub(super) fn schedules(space: &Space, plan: &Keys) -> Vec<Keys> {
    let own = matches!(space.contraction(plan).source, ResultSource::OwnOperands(_));
    if own || space.target().wave <= 1 || plan.family().reads != Reads::Vectors {
        return vec![*plan];
    }
    let with = |ahead, buffers, store_point, fragments_ahead, unroll_k| Keys {
        ahead,
        buffers,
        store_point,
        fragments_ahead,
        unroll_k,
        ..*plan
    };
    let mut plans = Vec::new();
    // Fragments a step ahead in a rolled loop, or in an unrolled one, or a k-tile left to the compiler.
    for (fragments, unrolled) in [(0, 1), (1, 0), (1, 1)] {
        for (ahead, buffers, store) in [(0, 1, 0), (1, 1, 1), (1, 2, 1)] {
            plans.push(with(ahead, buffers, store, fragments, unrolled));
        }
        if space.target().features.async_copy {
            // Short k-tiles of small results are over long before memory answers: three of them ahead.
            let furthest = if fragments == 1 && unrolled == 1 { 3 } else { 2 };
            for ahead in 1..=furthest {
                let plan = with(ahead, ahead + 1, 1, fragments, unrolled).but(|keys| keys.both(|o| o.copy = 1));
                plans.push(plan);
                plans.extend(element_copies(space.contraction(&plan), plan));
            }
        }
    }
    plans
}

/// Plans that finish reductions in other ways than by a second kernel. The last work-group or atomics finish them, or persistent
/// work-groups add up the values of their own tiles.
pub(super) fn finishes(space: &Space, plan: &Keys) -> Vec<Keys> {
    let reduces = !space.problem().reductions().is_empty();
    let with = |finish| Keys { finish, ..*plan };
    if !reduces {
        return Vec::new();
    }
    [1, 2, 5].map(with).into_iter().chain(space.carrying(plan).map(|plan| *plan)).collect()
}

/// The plan with operands that are contiguous along k copied asynchronously in place, element by element. Each element goes
/// straight to its row, so nothing is transposed and no alignment is needed. Adjacent threads walk along k, which fills the
/// sectors that they read, and a padded row keeps their stores apart. `None` where there is no such operand.
fn element_copies(contraction: &Contraction, plan: Keys) -> Option<Keys> {
    let mut copied = plan;
    for (keys, operand) in [(&mut copied.a, Operand::A), (&mut copied.b, Operand::B)] {
        let tensor = contraction.tensor(operand);
        if keys.source == 0 && along_k(&tensor.view) && matches!(tensor.scalar.bytes(), 4 | 8) {
            *keys = OperandKeys { load_width: 1, load_along_k: 0, load_rows_first: 0, interleave_loads: 1, pad: 1, ..*keys };
        }
    }
    (copied != plan).then_some(copied)
}

/// Elements of C of a thread along m and n.
const MICRO_TILES: [[u32; 2]; 17] = [
    [8, 8],
    [4, 8],
    [8, 4],
    [4, 4],
    [2, 4],
    [4, 2],
    [2, 8],
    [8, 2],
    [1, 4],
    [4, 1],
    [6, 8],
    [12, 8],
    [8, 12],
    [16, 8],
    [8, 16],
    [16, 4],
    [4, 16],
];

/// Threads, elements of C of a thread along either side, depth: of plans that hardly anything refuses.
const LAST_RESORTS: [[u32; 3]; 5] = [[64, 4, 16], [64, 2, 16], [64, 1, 8], [16, 1, 4], [1, 1, 1]];

struct Grid<'a> {
    space: &'a Space,
    plans: Vec<Keys>,
}

impl Grid<'_> {
    fn push(&mut self, plan: Keys) {
        self.plans.push(plan);
    }

    fn gpu(&mut self, form: u32, c: &Contraction) {
        let target = self.space.target();
        let wave = target.wave;
        let store = (16 / c.c.scalar.bytes()).clamp(1, 4);
        let base = Keys {
            a: layout(c.tensor(Operand::A), 16),
            b: layout(c.tensor(Operand::B), 16),
            form,
            explicit_fma: 1,
            ahead: 1,
            buffers: 2,
            store_point: 1,
            fragments_ahead: 1,
            // Without fences clang moves the loads back to where they are waited for; NVIDIA's assembler weighs it better.
            fences: u32::from(target.dialect == Dialect::Hip),
            split_sum: u32::from(!self.space.env().allow_atomics),
            store_width: store,
            predicate: 1,
            ..Keys::default()
        };
        let (sources_a, sources_b) = (sources(c, Operand::A), sources(c, Operand::B));
        let threads: &[u32] = if wave >= 64 { &[64, 128, 256] } else { &[32, 64, 128, 256] };
        for &mac in threads {
            for skew in 7..=13 {
                for micro in MICRO_TILES {
                    let Some((along_m, along_n)) = thread_grid(mac, skew) else { continue };
                    let (tile_m, tile_n) = (u64::from(along_m * micro[0]), u64::from(along_n * micro[1]));
                    // Tiles that are mostly outside the result, or absurdly long, are no seeds.
                    if tile_m >= 2 * c.m.next_power_of_two().max(8) || tile_n >= 2 * c.n.next_power_of_two().max(8) {
                        continue;
                    }
                    let lean = tile_m.max(tile_n) / tile_m.min(tile_n).max(1);
                    if lean > 4 && c.m.min(c.n) > 128 {
                        continue;
                    }
                    let tiles = c.tiles([tile_m, tile_n]).iter().product::<u64>();
                    let shape = tiled(base, mac, skew, micro);
                    let shape = Keys { wave_shape: wave_shape(wave, along_m, along_n), ..shape };
                    for depth in [8u32, 16, 32] {
                        for splits in splits(tiles, u64::from(target.units) * 2, c.depth().div_ceil(u64::from(depth))) {
                            let plan = Keys { k_tile: depth, splits, strip_groups: 64 * splits, ..shape };
                            for &source_a in sources_a {
                                for &source_b in sources_b {
                                    self.push(Keys { a: sourced(plan.a, source_a), b: sourced(plan.b, source_b), ..plan });
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn cpu(&mut self, form: u32, c: &Contraction) {
        let lanes = (64 / c.accumulator().bytes()).min(16);
        let operand = |operand| OperandKeys { vector: 1, pad: 0, ..layout(c.tensor(operand), 32) };
        let a = OperandKeys { read_width: 1, ..operand(Operand::A) };
        let base =
            Keys { a, b: operand(Operand::B), form, predicate: 1, explicit_fma: 1, unroll_k: 1, order: 1, ..Keys::default() };
        for mac in [1, 4, 8, 16, 32, 64] {
            for skew in 7..=13 {
                let Some((along_m, along_n)) = thread_grid(mac, skew) else { continue };
                for mic_a in [1, 2, 4, 6, 8, 12] {
                    for (mic_b, width) in [(lanes, lanes), (2 * lanes, lanes), (lanes / 2, lanes / 2), (4, 4), (8, 8), (8, 1)] {
                        let (tile_m, tile_n) = (u64::from(along_m * mic_a), u64::from(along_n * mic_b));
                        if tile_m >= 2 * c.m.next_power_of_two()
                            || tile_n >= 2 * c.n.next_power_of_two().max(16)
                            || tile_m * tile_n > 1 << 16
                        {
                            continue;
                        }
                        let shape = Keys { math_width: width, ..tiled(base, mac, skew, [mic_a, mic_b]) };
                        for k_tile in [8, 16, 32] {
                            for (source, ahead) in [(0, 0), (0, 1), (2, 0)] {
                                let (a, b) = (shape.a, OperandKeys { read_width: width, ..shape.b });
                                let (a, b) = (OperandKeys { source, ..a }, OperandKeys { source, ..b });
                                self.push(Keys { a, b, k_tile, ahead, buffers: 1 + ahead, store_point: ahead, ..shape });
                            }
                        }
                    }
                }
            }
        }
    }

    /// Plans that hardly anything refuses, so that there always is one.
    fn last_resorts(&mut self, form: u32) {
        let plain = OperandKeys { vector: 1, pad: 0, ..OperandKeys::default() };
        for [threads, micro, k_tile] in LAST_RESORTS {
            let operand = OperandKeys { micro, ..plain };
            self.push(Keys { a: operand, b: operand, form, predicate: 1, threads, k_tile, ..Keys::default() });
        }
    }
}

/// Sources worth a look. A window of a convolution may be cheaper to gather once. An operand contiguous along k may be cheaper to
/// transpose once, into panels that load in whole vectors.
fn sources(c: &Contraction, operand: Operand) -> &'static [u32] {
    if c.second.is_some() {
        // Copies are of one tensor.
        return &[0];
    }
    let view = &c.tensor(operand).view;
    match (view.stride(COL), view.stride(ROW)) {
        (None, _) => &[0, 1, 2],
        (Some(1), row) if row != Some(1) => &[0, 2],
        (_, Some(1)) => &[0],
        _ => &[0, 1, 2],
    }
}

/// An operand's keys with its source; panels are contiguous along the rows.
fn sourced(keys: OperandKeys, source: u32) -> OperandKeys {
    match source {
        2 => OperandKeys { source, load_along_k: 0, load_rows_first: 1, pad: 0, ..keys },
        _ => OperandKeys { source, ..keys },
    }
}

/// A compact rectangle of lanes, as near to a square as the thread grid allows; 0 where there is none.
fn wave_shape(wave: u32, along_m: u32, along_n: u32) -> u32 {
    let mut side = 1 << (wave.ilog2().div_ceil(2));
    while side > along_m {
        side /= 2;
    }
    let covers = |a: u32| a > 0 && along_m.is_multiple_of(a) && along_n.is_multiple_of(wave / a);
    [side, side * 2, side / 2, side * 4].into_iter().find(|&a| a <= wave && covers(a)).unwrap_or(0)
}
