//! What figures and words say of random plans, against the tiles that they speak of.

use super::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use tilewright::explain::facts::{Rectangle, Subject};
use tilewright_check::random::{Recipe, pair};
use tilewright_gen::kernel::{MAIN, generate, works};
use tilewright_gen::plan::{Constraint, Plan, Transport};
use tilewright_gen::space::Space;
use tilewright_ir::Target;
use tilewright_ir::layout::Axis;
use tilewright_problem::{Gemm, Problem};

#[test]
fn wrapping_keeps_everything() {
    let text = "A_MIC8_PAD1__B_MIC6_PAD2 on emu";
    assert_eq!(wrap(text, 10).concat(), text);
}

/// Rows and columns that rectangles cover, counted.
fn cover(rectangles: &[Rectangle], seen: &mut HashMap<(u32, u32), u32>) {
    for Rectangle { rows, columns } in rectangles {
        for row in rows.first..=rows.last {
            for column in columns.first..=columns.last {
                *seen.entry((row, column)).or_default() += 1;
            }
        }
    }
}

/// Draws the figures of a plan and looks at what they say. False if the plan is not legal here.
fn look(problem: &Problem, plan: &Plan, target: &Target) -> bool {
    let space = Space::new(problem, target).unwrap().with_atomics(true);
    let Ok(r) = space.resolve(plan) else { return false };
    let budget = space.env().workspace_bytes;
    let program = generate(&r.spec, budget).unwrap();
    let kernel = program.kernels.iter().find(|k| k.name == MAIN).unwrap();
    let works = works(&r.spec, budget, 4096).unwrap();
    let c = &r.spec.c;
    let subject = Subject { spec: &r.spec, c, kernel, works: &works, target, concurrent: 132 };
    let facts = subject.facts();
    let what = format!("{problem} {plan} on {}", target.arch);
    let [rows, columns, depth] = subject.tile();

    // Every thread has one role.
    let mut threads: Vec<u32> = facts.roles.iter().flat_map(|r| r.threads.first..=r.threads.last).collect();
    threads.sort_unstable();
    assert_eq!(threads, (0..kernel.threads).collect::<Vec<_>>(), "{what}");
    assert!(facts.roles.iter().all(|r| ["all", "copy", "math"].contains(&r.role.as_str())), "{what}");
    // Every element of the tile of C is one wave's.
    let mut held = HashMap::new();
    facts.waves.iter().for_each(|w| cover(&w.rectangles, &mut held));
    assert_eq!(held.len() as u32, rows * columns, "{what}");
    assert!(held.iter().all(|((r, c), n)| *r < rows && *c < columns && *n == 1), "{what}");
    // The first wave's lanes hold what the wave is said to hold.
    let mut first = HashMap::new();
    cover(&facts.waves[0].rectangles, &mut first);
    let holders = subject.holders();
    assert_eq!(holders.keys().copied().collect::<HashSet<_>>(), first.into_keys().collect(), "{what}");
    let registers: HashSet<(u32, u32)> = holders.values().copied().collect();
    assert_eq!(registers.len(), holders.len(), "{what}: a register holds one element");
    // Lanes that are spoken of are drawn.
    let (_, [shown_rows, shown_columns]) = subject.shown(&holders);
    let drawn = holders.iter().filter(|((row, column), _)| shown_rows.contains(row) && shown_columns.contains(column));
    let drawn: HashSet<u32> = drawn.map(|(_, (lane, _))| *lane).collect();
    assert!(facts.lanes.iter().all(|l| drawn.contains(&l.lane)), "{what}");

    // Shared memory: inside of what the kernel takes; stages of an operand side by side, no two elements of one in one place.
    let bytes = kernel.shared_bytes();
    assert!(facts.shared.iter().all(|r| r.first_byte + r.bytes <= bytes), "{what}");
    for which in [0, 1] {
        let name = ["A tiles", "B tiles"][which];
        let region = facts.shared.iter().find(|r| r.name == name).unwrap();
        assert_eq!(region.parts, r.spec.schedule.buffers, "{what}");
        let (shared, size) = (subject.shared(which), subject.scalar(which).bytes());
        let mut seen = HashSet::new();
        for stage in HashSet::from([0, region.parts - 1]) {
            for (row, k) in (0..subject.tiling(which).macro_tile).flat_map(|row| (0..depth).map(move |k| (row, k))) {
                let at = [(Axis::Row, row.into()), (Axis::K, k.into()), (Axis::Stage, stage.into())];
                let at = shared.at(Axis::Position, &at) as u32;
                assert!(at / (region.bytes / region.parts / size) == stage && (at + 1) * size <= region.bytes, "{what}: {at}");
                assert!(seen.insert(at), "{what}: {at} twice");
            }
        }
        copies_are_whole(&subject, which, &what);
    }
    // Barriers are set up.
    assert!(facts.barriers.iter().all(|b| b.arrivals > 0 && b.count > 0), "{what}");
    // Pieces of work: with all of them drawn, every tile of C is computed, and each k-tile summed once.
    let tiles = c.m.div_ceil(rows.into()) * c.n.div_ceil(columns.into());
    let inside: HashSet<[u64; 3]> =
        works.iter().filter(|w| w.start[0] < c.m && w.start[1] < c.n).map(|w| [w.tile[0], w.tile[1], w.g]).collect();
    let g = works.iter().map(|w| w.g + 1).max().unwrap_or(0);
    assert!(works.len() == 4096 || inside.len() as u64 == tiles * g, "{what}");
    let k_tiles: Vec<i64> = grid::splits(&subject).into_values().flatten().collect();
    assert_eq!(k_tiles.len(), k_tiles.iter().collect::<HashSet<_>>().len(), "{what}");

    let drawn = page(&figures(&subject, &facts), "title", "subtitle");
    assert!(drawn.contains(">Drawn with "), "{what}: how many k-tiles the timeline has");
    let barriers = drawn.lines().filter(|line| line.contains("class=\"wall\""));
    assert!(barriers.count() > 0 || r.spec.schedule.in_pipeline(), "{what}");
    assert_eq!(drawn.matches("<g ").count(), drawn.matches("</g>").count());
    inside_the_page(&drawn, &what);
    true
}

/// Boxes, or threads' loads, bring every element once.
fn copies_are_whole(subject: &Subject, which: usize, what: &str) {
    let [_, _, depth] = subject.tile();
    let rows = subject.tiling(which).macro_tile;
    let mut seen: HashMap<(u32, u32), u32> = HashMap::new();
    match &subject.spec.schedule.copies[which] {
        Transport::Bulk(tile) => {
            for (first, line) in copies::box_starts(tile) {
                for (a, b) in (first..first + tile.map.tile[0]).flat_map(|a| (line..line + tile.map.tile[1]).map(move |b| (a, b)))
                {
                    *seen.entry(if tile.k_contiguous { (b, a) } else { (a, b) }).or_default() += 1;
                }
            }
        }
        Transport::Registers | Transport::Async | Transport::Panels { .. } => {
            for element in (0..subject.spec.load_threads()).flat_map(|thread| copies::loads(subject, which, thread)).flatten() {
                *seen.entry(element).or_default() += 1;
            }
        }
        Transport::Halo(_) | Transport::Own(_) | Transport::Written(_) | Transport::Shifted(_) => return,
    }
    assert_eq!(seen.len() as u32, rows * depth, "{what}");
    assert!(seen.iter().all(|((row, k), n)| *row < rows && *k < depth && *n == 1), "{what}");
}

/// Nothing is drawn outside of the page; what is drawn in a card ends in it.
fn inside_the_page(svg: &str, what: &str) {
    let number = |line: &str, name: &str| -> Option<f64> {
        let from = line.find(&format!(" {name}=\""))? + name.len() + 3;
        line[from..].split('"').next()?.parse().ok()
    };
    let mut offset = (0.0, 0.0);
    let mut cards: BTreeMap<i64, f64> = BTreeMap::new();
    for line in svg.lines() {
        if let Some(at) = line.strip_prefix("<g transform=\"translate(") {
            let mut parts = at.trim_end_matches(")\">").split(' ').map(|n| n.parse::<f64>().unwrap());
            offset = (parts.next().unwrap(), parts.next().unwrap());
        } else if line.starts_with("</g>") {
            offset = (0.0, 0.0);
        } else if line.contains("class=\"card\"") {
            let (y, h) = (number(line, "y").unwrap(), number(line, "height").unwrap());
            cards.insert(y as i64, y + h);
        }
        let (Some(x), Some(y)) = (number(line, "x"), number(line, "y")) else { continue };
        let (w, h) = match line.starts_with("<text") {
            false => (number(line, "width").unwrap_or(0.0), number(line, "height").unwrap_or(0.0)),
            true if line.contains("rotate") || line.contains("\"middle\"") => (0.0, 0.0),
            // Text of proportional letters, on the whole no wider than this.
            true => {
                let text = line.split('>').nth(1).and_then(|t| t.split('<').next()).unwrap_or("");
                let wide = if line.contains("mono") { 0.62 } else { 0.57 };
                (text.chars().count() as f64 * number(line, "font-size").unwrap_or(12.0) * wide, 0.0)
            }
        };
        let right = x + w + offset.0;
        let end = if offset.1 > 0.0 { WIDTH - MARGIN } else { WIDTH };
        assert!(x + offset.0 >= 0.0 && right <= end, "{what}: {line} ends at {right}");
        if offset.1 > 0.0 {
            let end = cards.values().last().copied().unwrap_or(0.0);
            let bottom = y + h + offset.1;
            assert!(bottom <= end, "{what}: {line} ends at {bottom}, its card at {end}");
        }
    }
}

fn random(recipe: &Recipe, arch: &str, count: u64) {
    let target = Target::by_arch(arch).unwrap();
    let mut looked = 0;
    for seed in 0..count {
        let Some(drawn) = pair(&target, recipe, seed) else { continue };
        looked += u64::from(look(&drawn.problem, &drawn.plan, &target));
    }
    assert!(looked * 2 > count, "{looked} of {count}");
}

#[test]
fn figures_of_multiply_adds_are_true() {
    random(&Recipe::emulated(), "gfx900", 40);
    random(&Recipe::schedules(), "sm_80", 40);
}

/// Ping-pong, roles, clusters, producers that write tiles, convolutions.
#[test]
fn figures_of_warpgroups_are_true() {
    random(&Recipe::units(), "sm_90a", 60);
}

#[test]
fn figures_of_single_waves_are_true() {
    let problem: Problem = Gemm::new(tilewright_ir::Scalar::F16, 200, 264, 136).build().unwrap().into();
    for (unit, arch) in [(1, "sm_80"), (3, "gfx942")] {
        let target = Target::by_arch(arch).unwrap();
        let mut looked = 0;
        for (mic, other) in (1..=4).flat_map(|mic| (1..=4).map(move |other| (mic, other))) {
            for keys in [
                "MAC128_SKW10",
                "MAC256_SKW9_PFG1_BUF2_EDG1",
                "MAC256_SKW10_PFG2_BUF3_FRA1_EDG1_CST1",
                "MAC128_SKW10_SWP1_PST5_EDG1",
            ] {
                let text = format!("A_MIC{mic}_PAD1_GLW8__B_MIC{other}_GLW8_PLU1__C_UNI{unit}_UNR32_{keys}");
                let keys = Constraint::parse(&text).unwrap().apply(&Plan::default());
                let Some(plan) = Space::new(&problem, &target).unwrap().repair(&keys) else { continue };
                looked += u32::from(look(&problem, &plan, &target));
            }
        }
        assert!(looked >= 12, "UNI{unit}: {looked}");
    }
}
