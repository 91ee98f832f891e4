//! Words for what each key of a plan does to one kernel, with its numbers.

use serde::Serialize;
use tilewright_gen::graph::Graph;
use tilewright_gen::plan::*;
use tilewright_ir::MmaShape;
use tilewright_ir::mma::Owner;
use tilewright_problem::contraction::{Contraction, Operand, ResultSource};

/// What a key's value does in this kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// The key, as `A_MIC`.
    pub key: String,
    /// Its value.
    pub value: u32,
    /// The effect in words.
    pub text: String,
    /// The key has no effect in this kernel.
    pub inert: bool,
}

/// A note for every key, in registry order, of what `plan` derives to for the graph's contraction.
pub fn describe(plan: &Plan, Derived { spec, c, .. }: &Derived, graph: &Graph) -> Vec<Note> {
    let normal = plan.normalised(graph.contraction);
    let note = |key: Key| {
        let value = plan.get(key);
        let text = of_elements(key, value, spec, c).unwrap_or_else(|| match key {
            Key::A(k) => operand(k, value, &spec.tiling.a, spec, "rows"),
            Key::B(k) => operand(k, value, &spec.tiling.b, spec, "columns"),
            Key::C(k) => whole(k, value, c, spec),
        });
        let inert = !has_effect(plan, key, spec, graph, &normal);
        Note { key: key.to_string(), value, text, inert }
    };
    Key::all().map(note).collect()
}

/// Whether another value of the key would make another kernel, or none.
fn has_effect(plan: &Plan, key: Key, spec: &KernelSpec, graph: &Graph, normal: &Plan) -> bool {
    let value = plan.get(key);
    if key.info().moves == Moves::Forms {
        return graph.forms[1..].contains(&true);
    }
    key.info().values().into_iter().filter(|v| *v != value).any(|v| {
        let other = Plan::from(plan.with(key, v));
        let differs = !other.normalised(graph.contraction).difference(normal).is_empty();
        differs && derive(&other, graph.contraction, graph.env).map_or(true, |derived| derived.spec != *spec)
    })
}

/// Words of their own for standalone reductions, which have rows that are kept and columns that are reduced.
fn of_elements(key: Key, value: u32, spec: &KernelSpec, c: &Contraction) -> Option<String> {
    use Chiral::*;
    use Common::*;
    let ResultSource::Elements(_) = c.source else { return None };
    let (a, b) = (&spec.tiling.a, &spec.tiling.b);
    Some(match key {
        Key::A(Mic) => format!("each thread has {} of the {} rows of a tile, which are kept", a.micro, a.macro_tile),
        Key::B(Mic) => {
            format!("each thread has {} of the {} columns of a tile, which are reduced", b.micro, b.macro_tile)
        }
        Key::B(Frw) if spec.element_loads(c).shifted => format!(
            "columns of a thread that stay neighbours: loads of {} begin at their multiples in memory, wherever lines do, whose ends are taken one by one",
            plural(spec.element_loads(c).width(), "element")
        ),
        Key::A(Frw | Vew) | Key::B(Frw | Vew) => {
            "rows or columns of a thread that stay neighbours where they are interleaved".into()
        }
        Key::C(Ice) if value == 1 => "a work-group reduces whole rows".into(),
        Key::C(Ice) => format!("{value} work-groups share the columns of a row"),
        Key::C(Uni) => "operators in each thread".into(),
        _ => return None,
    })
}

/// What a key of an operand does.
fn operand(key: Chiral, value: u32, o: &OperandTiling, spec: &KernelSpec, lines: &str) -> String {
    use Chiral::*;
    let k_tile = spec.tiling.k_tile;
    let along = |a: Along| if a == Along::K { "along k" } else { "across k" };
    match key {
        Mic => {
            let who = spec.tiling.unit.family().owner;
            format!("each {who} computes {} {lines} of C; the macro tile has {} {lines}", o.micro, o.macro_tile)
        }
        Pad => {
            let pitch = o.lines(k_tile).1;
            match o.pad {
                0 => format!("rows of {pitch} elements in shared memory, no padding"),
                pad => format!("rows of {} + {pad} elements in shared memory", pitch - pad),
            }
        }
        Plu => format!("each thread that fetches has a tile of {} across k by {} along k", o.load_row, o.load_k),
        Liw if value == 0 => "its elements are contiguous in the tile".into(),
        Liw => {
            format!("its elements are {} apart across k and {} apart along k", o.macro_tile / o.load_row, k_tile / o.load_k)
        }
        Miw if value == 0 => format!("a thread's {lines} are adjacent"),
        Miw => {
            let apart = o.macro_tile / o.micro * o.fragment_width;
            format!("a thread's {lines} come in groups of {}, {apart} apart", o.fragment_width)
        }
        Wos => match o.source {
            Source::InPlace => "loaded where it is".into(),
            Source::Copy => "first copied to workspace with padded lines, keeping its layout".into(),
            Source::CopyAlongK => "first copied to workspace in padded lines along k".into(),
            Source::CopyInRuns(run) => {
                format!(
                    "first copied to workspace in padded lines along k, in the order in which lanes hold runs of {run} weights of A"
                )
            }
            Source::PaddedRows => "its tensor is first copied to workspace, with padded rows".into(),
            Source::Packed => format!("first packed into panels of {} {lines}, each k after k", o.macro_tile),
        },
        Vew => format!(
            "vectors of {value}: global loads {}, shared stores {}, fragment reads {}",
            o.load_width, o.store_width, o.fragment_width
        ),
        Lor => match o.load_order {
            Along::K => format!("adjacent threads load along k first, {} of them, then across", k_tile / o.load_k),
            Along::Row => format!("adjacent threads load across k first, {} of them, then along", o.macro_tile / o.load_row),
        },
        Glw => format!("global loads of {} {}", plural(o.load_width, "element"), along(o.load_along)),
        Frw => format!("fragments are read {} at a time", plural(o.fragment_width, "element")),
        Acp => match value {
            0 => "tiles go through registers into shared memory".into(),
            1 => "tiles are copied to shared memory asynchronously".into(),
            3 => {
                let slots = plural(spec.schedule.slots(), "k-tile");
                format!("lines come in bulk to staging of {slots}, and producer waves shift them from there into the tile")
            }
            4 => "windows of a whole result tile are copied once, asynchronously, and each k-tile is read from them".into(),
            _ => "bulk tensor copies (TMA) bring the tiles".into(),
        },
        Clu if value == 1 => "each work-group copies the other operand's tiles for itself".into(),
        Clu => format!("{value} work-groups side by side copy a part each of the other operand's tile, for all of them"),
    }
}

/// What a key of the whole plan does.
fn whole(key: Common, value: u32, c: &Contraction, spec: &KernelSpec) -> String {
    use Common::*;
    let (t, s) = (&spec.tiling, &spec.schedule);
    let on = value == 1;
    let choose = |yes: &str, no: &str| if on { yes.to_string() } else { no.to_string() };
    let tiles = |extent: u64, o: &OperandTiling| extent.div_ceil(u64::from(o.macro_tile));
    let (tiles_m, tiles_n) = (tiles(c.m, &t.a), tiles(c.n, &t.b));
    let k_tiles = c.k.div_ceil(u64::from(t.k_tile));
    match key {
        Unr => format!("k advances by {value} per main loop step, {} in all", plural64(k_tiles, "step")),
        Gal => walk(t.order, tiles_m, tiles_n),
        Gbi => choose("batch entries alternate at each tile", "batch entries come one after the other"),
        Pun => choose("loops over elements ask the compiler to unroll", "loops over elements leave unrolling to the compiler"),
        Ice if value == 1 => "each tile of C belongs to one work-group".into(),
        Ice => format!(
            "each tile of C is summed by {value} work-groups, about {} each",
            plural64(k_tiles.div_ceil(u64::from(value)), "step")
        ),
        Iwi => choose("they take k-tiles round-robin", "each takes a contiguous range of k"),
        Szt => choose("index arithmetic is 64-bit throughout", "index arithmetic is as narrow as the problem allows"),
        Mad => choose("multiply-adds are written fma(a, b, c)", "multiply-adds are written c += a * b"),
        Naw => match t.order {
            GroupOrder::Strips(w) => format!("about {value} work-groups at once: strips of {w} tiles"),
            _ => "only for strips (GAL3)".into(),
        },
        Ufo => choose("work-groups start up to a k-tile early, each at its own offset", "every work-group starts at its first k"),
        Mac => format!("{value} threads compute{}", owners(spec)),
        Skw => {
            format!("{}s lie {} along m by {} along n", t.unit.family().owner, t.threads_a / t.unit.family().lanes, t.threads_b)
        }
        Afi => format!("{} in the source and in the loops", choose("A stands before B", "B stands before A")),
        Mia => choose("adjacent threads are neighbours along n", "adjacent threads are neighbours along m"),
        Edg => match t.edge_m {
            Edge::PullBack => "tiles over the edge are pulled back into C and overlap their neighbours".into(),
            Edge::Predicate => "elements over the edge are loaded as zero and not stored".into(),
        },
        Sks => match spec.epilogue.split {
            Split::None => "only with a split of k (ICE above 1)".into(),
            Split::Atomic => "partial sums are added to C with atomics, in any order".into(),
            Split::Workspace => "partial sums go to workspace and are summed in a fixed order".into(),
            Split::Cluster => "the work-groups of a tile are a cluster: each sums a part of it in a fixed order".into(),
        },
        Cvw => format!("C is stored {} at a time", plural(spec.epilogue.exit.width(), "element")),
        Cst if spec.epilogue.exit.bulk().is_some() => {
            "results pass through shared memory, and leave it by bulk tensor stores (TMA)".into()
        }
        Cst => choose(
            "results pass through shared memory, so that adjacent threads store adjacent elements",
            "each thread stores its own results",
        ),
        Wva if value == 0 => "threads lie over the tile in plain order".into(),
        Wva => format!("each wave covers {value} x {} micro tiles", t.wave_lanes / value.max(1)),
        Mvw => format!("arithmetic on {} along n at a time", plural(value, "column")),
        Mgp if value == 0 => "register use is the compiler's choice".into(),
        Mgp => format!("registers are limited so that {} fit a compute unit", plural(value, "work-group")),
        Ukl => choose("the k-steps of a tile are laid out one by one", "the k-steps of a tile are a loop"),
        Pfg if value == 0 => "each tile is loaded, then computed".into(),
        Pfg => format!("loads run {} ahead of the math", plural(value, "k-tile")),
        Buf => format!("{} of shared memory per operand", plural(value, "buffer")),
        Stp => store_point(s.store).into(),
        Fra if s.math_in_flight.is_some() => choose(
            "instructions of one k-tile run on while the next one's are issued",
            "instructions of a k-tile end before the next one's are issued",
        ),
        Fra if value == 0 => "fragments are read when they are needed".into(),
        Fra => format!("fragments are read {} ahead", plural(value, "k-step")),
        Lwv => roles(s),
        Hnt => choose(
            "the compiler is kept from moving loads into the math and the math over stores, where the target has means for it",
            "the compiler is free to move loads and stores into the math",
        ),
        Uni => unit(t),
        Kin => choose("the deepest instruction is used", "the shallowest instruction is used"),
        Swp if c.factors()[0] == Operand::B => "computes the transposed product: A and B change places".into(),
        Swp => "A's rows are the kernel's rows".into(),
        Pst if spec.tiling.persistent == 0 => "one work-group per tile of C".into(),
        Pst => format!("{} work-groups walk over all tiles of C", spec.tiling.persistent),
        Tsp => tail(t),
        Png if spec.teams() == 1 => "all math threads compute each tile of C together".into(),
        Png => format!("{} warpgroups take tiles of C alternately", spec.teams()),
        Rga if value == 0 => "matrix instructions read both operands from shared memory".into(),
        Rga => format!(
            "matrix instructions read the operand of C's rows from registers, {} of fragments round-robin",
            plural(value, "set")
        ),
        Rdf => finish(value).into(),
        Rdc if spec.epilogue.carry => "work-groups add up reduced values of their own tiles".into(),
        Rdc => "each tile leaves its parts of reduced values".into(),
        Rdk if spec.epilogue.operands => "the main loop reduces operands whose tiles it has".into(),
        Rdk => "kernels of their own reduce operands".into(),
        Lsu if t.slices == 1 => "all threads take every k of a k-tile".into(),
        Lsu => format!("{value} slices of the work-group take equal parts of every k-tile and add up their sums"),
        Bim => match c.pairs() {
            None => form(value).into(),
            Some(pairs) => format!("of B, {} of the gate's columns come first, then as many of the other half", pairs.granule),
        },
    }
}

/// What a convolution's products are.
const fn form(value: u32) -> &'static str {
    match value {
        0 => "a convolution's samples are a batch of products",
        1 => "a convolution's samples are rows of one product",
        2 => "neighbouring groups are one product, whose filter is block-diagonal",
        3 => {
            "each tap's channels are padded with zeros; a convolution's samples are rows of one product, and neighbouring groups with few channels blocks of it"
        }
        _ => "groups are columns of one product, and each thread loads what it multiplies itself",
    }
}

/// How what work-groups have of reduced values meets.
const fn finish(value: u32) -> &'static str {
    match value {
        0 => "parts of reduced values meet in workspace, for a second kernel",
        1 => "parts of reduced values meet in workspace, for the last work-group",
        2 => "atomics combine what work-groups have of reduced values",
        3 => "atomics combine what work-groups have of reduced values, each by a tree of its threads",
        5 => "work-groups of a cluster combine what they have of reduced values in their shared memory",
        _ => "every element takes part in reductions by an atomic",
    }
}

/// In what order work-groups take tiles.
fn walk(order: GroupOrder, tiles_m: u64, tiles_n: u64) -> String {
    let how = match order {
        GroupOrder::ColumnsFastest => "along n first".into(),
        GroupOrder::RowsFastest => "along m first".into(),
        GroupOrder::Strips(w) => format!("in strips {w} wide in n, row by row"),
    };
    format!("work-groups walk the {tiles_m} x {tiles_n} tiles {how}")
}

/// How the threads that compute share the tile.
fn owners(spec: &KernelSpec) -> String {
    let (t, family) = (&spec.tiling, spec.tiling.unit.family());
    let along_m = t.threads_a / family.lanes;
    match (family.owner, spec.teams()) {
        (Owner::Thread, _) => format!(", {along_m} x {} over the tile", t.threads_b),
        (_, 1) => {
            let all = plural(along_m * t.threads_b, family.owner.name());
            format!(": {all}, {along_m} along m by {} along n", t.threads_b)
        }
        (_, teams) => format!(": {}, each on tiles of its own", plural(teams, family.owner.name())),
    }
}

fn roles(s: &Schedule) -> String {
    let Some(roles) = s.roles else { return "every wave loads and computes".into() };
    format!("{} threads only load, {} only compute", roles.load_threads, roles.math_threads)
}

fn tail(t: &Tiling) -> String {
    let Some(tail) = t.tail else { return "no tile is split beside ICE".into() };
    format!("rows of tiles from number {} on, beyond the last full round, are split along k in {}", tail.first, tail.splits)
}

fn unit(t: &Tiling) -> String {
    let family = t.unit.family();
    match t.accumulator_row() {
        None => format!("{} of each {}", family.name, family.owner),
        Some(row) => {
            let MmaShape { m, k, .. } = row.shape;
            let n = row.columns(t.b.micro);
            let (rows, columns) = (t.a.micro, t.b.micro);
            let split = t.a.split.map_or_else(String::new, |split| {
                let count = |n: usize| ["no", "one", "two", "three", "four", "five", "six"].get(n).copied().unwrap_or("many");
                let (products, parts) = (count(split.products.len()), count(split.parts as usize));
                let name = if split.as_wide() { "TF32" } else { split.input.name() };
                format!(", {products} for each product: factors are split into {parts} {name} numbers")
            });
            format!("{} of {m} x {n} x {k}{split}, one micro tile of {rows} x {columns} per {}", family.name, family.owner)
        }
    }
}

const fn store_point(store: StorePoint) -> &'static str {
    match store {
        StorePoint::AtOnce => "tiles are stored to shared memory as soon as they are fetched",
        StorePoint::AfterMath => "tiles are stored to shared memory after the math of the current one",
        StorePoint::Spread => "stores to shared memory are spread between the k-steps of the math",
    }
}

fn plural(n: u32, word: &str) -> String {
    plural64(u64::from(n), word)
}

fn plural64(n: u64, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_gen::space::Space;
    use tilewright_ir::{Scalar, Target};
    use tilewright_problem::{Gemm, Operator, Order, Reduce};

    #[test]
    fn every_key_is_described() {
        let gemm = Gemm::new(Scalar::F32, 1000, 1000, 1000).trans(false, true).order(Order::Col).build().unwrap();
        let space = Space::new(&gemm.into(), &Target::by_arch("gfx900").unwrap()).unwrap();
        let plan: Plan = Constraint::parse("C_IWI1_GAL1_EDG1").unwrap().apply(&Plan::default()).into();
        let (graph, spec) = (space.graph(&plan), space.resolve(&plan).unwrap().spec);
        let notes = describe(&plan, &spec, &graph);
        assert_eq!(notes.len(), Key::all().count());
        let of = |key: &str| notes.iter().find(|n| n.key == key).unwrap();
        assert_eq!(of("A_MIC").text, "each thread computes 8 rows of C; the macro tile has 128 rows");
        assert_eq!(of("C_MAC").text, "256 threads compute, 16 x 16 over the tile");
        assert!(of("C_IWI").inert && !of("C_GAL").inert && !of("A_MIC").inert);
        // What only strips, matrix units and convolutions read.
        assert!(["C_NAW", "C_PNG", "C_RGA", "A_CLU", "C_BIM", "C_STP"].iter().all(|key| of(key).inert));
        assert!(notes.iter().all(|n| !n.text.is_empty()));
    }

    /// A standalone reduction multiplies nothing and has no result of rows and columns.
    #[test]
    fn reductions_are_described_in_their_own_words() {
        let sum = Reduce::new(Scalar::F32, &[64, 256], &[1]).op(Operator::Sum).build().unwrap();
        let space = Space::new(&sum.into(), &Target::by_arch("gfx900").unwrap()).unwrap();
        let plan = Plan::default();
        let (graph, spec) = (space.graph(&plan), space.resolve(&plan).unwrap().spec);
        for note in describe(&plan, &spec, &graph).iter().filter(|n| !n.inert) {
            let words = ["of C", "fragment", "k-tile", "multiply", "A and B"];
            assert!(words.iter().all(|word| !note.text.contains(word)), "{}: {}", note.key, note.text);
        }
    }
}
