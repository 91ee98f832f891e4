//! Facts about a kernel, as numbers and sentences: its roles, who holds which part of the tile of C, shared memory, barriers,
//! copies and the epilogue. Read from the generated kernel and from the layouts it was generated from; words, figures and JSON
//! all say this.

mod operands;
mod results;

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use tilewright_gen::kernel::Work;
use tilewright_gen::plan::{Area, Barriers, Derived, OperandTiling, Transport};
use tilewright_ir::layout::{Axis, Layout};
use tilewright_ir::mma::Owner;
use tilewright_ir::{Block, BulkOp, Kernel, MmaShape, Scalar, Stmt, Target};
use tilewright_problem::contraction::{Contraction, Operand, ResultSource};

/// One plan of one problem on one device.
pub struct Subject<'a> {
    /// The derived plan.
    pub spec: &'a Derived<'a>,
    /// The contraction, its operands swapped as the plan says.
    pub c: &'a Contraction,
    /// The kernel with the main loop.
    pub kernel: &'a Kernel,
    /// The first pieces of work.
    pub works: &'a [Work],
    /// The device.
    pub target: &'a Target,
    /// Work-groups that the device runs at the same time.
    pub concurrent: u64,
}

/// A run of neighbours. Documents have it as an array of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "[u32; 2]")]
pub struct Span {
    pub first: u32,
    pub last: u32,
}

impl From<Span> for [u32; 2] {
    fn from(span: Span) -> [u32; 2] {
        [span.first, span.last]
    }
}

/// Rows and columns of a tile that are held. Documents have it as an array of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "[Span; 2]")]
pub struct Rectangle {
    pub rows: Span,
    pub columns: Span,
}

impl From<Rectangle> for [Span; 2] {
    fn from(of: Rectangle) -> [Span; 2] {
        [of.rows, of.columns]
    }
}

/// Extents of an operand's tile. Documents have it as an array of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "[u32; 2]")]
pub struct TileSize {
    /// Rows; columns of C for B.
    pub rows: u32,
    pub depth: u32,
}

impl From<TileSize> for [u32; 2] {
    fn from(size: TileSize) -> [u32; 2] {
        [size.rows, size.depth]
    }
}

/// Warps (waves) that run the same code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RoleFact {
    /// `math`, `copy` (producers), or `all` where there are no roles.
    pub role: String,
    /// First and last warp.
    pub waves: Span,
    /// First and last thread.
    pub threads: Span,
    /// Registers per thread that it asks for, where the role changes them.
    pub registers: Option<u32>,
    /// What it does.
    pub does: String,
}

/// What a warp (wave) that computes holds of the work-group's tile of C.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WaveFact {
    /// Warps that hold this, each of tiles of its own where teams alternate.
    pub waves: Vec<u32>,
    /// Its thread, warp or warpgroup among the owners of micro tiles.
    pub owner: u32,
    /// Rows and columns of the tile.
    pub rows: Vec<Span>,
    pub columns: Vec<Span>,
    /// The same as rectangles.
    pub rectangles: Vec<Rectangle>,
}

/// What one lane of the first warp holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneFact {
    pub lane: u32,
    pub rows: Vec<Span>,
    pub columns: Vec<Span>,
    /// Accumulators.
    pub registers: u32,
}

/// A region of shared memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Region {
    pub name: String,
    pub first_byte: u32,
    pub bytes: u32,
    /// Parts of equal size: the stages of an operand, the barriers of an array.
    pub parts: u32,
}

/// An array of transaction barriers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BarrierFact {
    pub name: String,
    pub count: u32,
    /// Arrivals that complete a phase.
    pub arrivals: u32,
    pub meaning: String,
}

/// How tiles of an operand lie in shared memory and come there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperandFact {
    /// `A` or `B` of the picture; with swapped operands the problem's other one.
    pub name: String,
    pub tile: TileSize,
    pub bytes_per_stage: u32,
    /// How a tile lies.
    pub layout: Vec<String>,
    /// How it comes.
    pub copy: Vec<String>,
}

/// Everything that pictures say besides their lines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// What the device's maker calls a wave.
    pub wave: &'static str,
    pub roles: Vec<RoleFact>,
    pub waves: Vec<WaveFact>,
    pub lanes: Vec<LaneFact>,
    /// How matrix instructions interleave, where they do.
    pub instructions: Option<String>,
    pub shared: Vec<Region>,
    pub barriers: Vec<BarrierFact>,
    pub operands: [OperandFact; 2],
    pub grid: Vec<String>,
    pub epilogue: Vec<String>,
}

/// Runs of consecutive numbers.
pub fn spans(numbers: impl IntoIterator<Item = u32>) -> Vec<Span> {
    let mut out: Vec<Span> = Vec::new();
    for n in numbers.into_iter().collect::<BTreeSet<u32>>() {
        match out.last_mut() {
            Some(span) if span.last + 1 == n => span.last = n,
            _ => out.push(Span { first: n, last: n }),
        }
    }
    out
}

/// "0-7" for one run, "0-1, 32-33, 64-65, ... 96-97" for more.
pub fn say(spans: &[Span]) -> String {
    let one = |&Span { first, last }: &Span| if first == last { first.to_string() } else { format!("{first}-{last}") };
    match spans {
        [head @ .., last] if head.len() > 4 => {
            format!("{}, ... {}", head[..3].iter().map(one).collect::<Vec<_>>().join(", "), one(last))
        }
        all => all.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

/// "1 warp", "2 warps".
pub fn plural(n: u64, word: &str) -> String {
    if n == 1 { format!("1 {word}") } else { format!("{n} {word}s") }
}

impl Subject<'_> {
    /// What a wave is called.
    pub fn wave(&self) -> &'static str {
        self.target.wave_name()
    }
    /// The operand's name, and whose it is where operands are swapped.
    pub fn operand(&self, which: usize) -> String {
        match (which, self.c.factors()) {
            (0, [Operand::B, _]) => "A (the problem's B)".into(),
            (0, _) => "A".into(),
            (_, [_, Operand::A]) => "B (the problem's A)".into(),
            _ => "B".into(),
        }
    }
    /// Rows and columns of a tile of C and depth of a k-tile.
    pub fn tile(&self) -> [u32; 3] {
        let t = &self.spec.tiling;
        [t.a.macro_tile.max(1), t.b.macro_tile.max(1), t.k_tile.max(1)]
    }
    /// The tiling of an operand.
    pub fn tiling(&self, which: usize) -> &OperandTiling {
        if which == 0 { &self.spec.tiling.a } else { &self.spec.tiling.b }
    }
    /// Type of the operand's elements in memory.
    pub fn loaded(&self, which: usize) -> Scalar {
        if which == 0 { self.c.a.scalar } else { self.c.b.scalar }
    }
    /// Type of the operand's elements in shared memory.
    pub fn scalar(&self, which: usize) -> Scalar {
        if which == 0 { self.c.a.factor() } else { self.c.b.factor() }
    }
    /// The operand's tiles in shared memory.
    pub fn shared(&self, which: usize) -> Layout {
        self.spec.shared_tiles(which, self.scalar(which))
    }
    /// Whose the accumulators are.
    pub fn accumulators(&self) -> Layout {
        self.spec.tiling.accumulators()
    }
    /// Who owns micro tiles, in the words of the device's maker.
    pub fn owner(&self) -> &'static str {
        match self.spec.tiling.unit.family().owner {
            Owner::Wave => self.wave(),
            owner => owner.name(),
        }
    }
    fn waves_of(&self, threads: u32) -> u32 {
        threads.div_ceil(self.target.wave.max(1))
    }

    /// Everything.
    pub fn facts(&self) -> Facts {
        let tiled = !matches!(self.c.source, ResultSource::Elements(_));
        Facts {
            wave: self.wave(),
            roles: self.roles(),
            waves: self.held(),
            lanes: self.lanes(),
            instructions: self.interleaved(),
            shared: self.regions(),
            barriers: self.barriers(),
            operands: [0, 1].map(|which| OperandFact {
                name: self.operand(which),
                tile: TileSize { rows: self.tiling(which).macro_tile, depth: self.spec.tiling.k_tile },
                bytes_per_stage: self.stage_bytes(which),
                layout: if tiled { self.layout(which) } else { Vec::new() },
                copy: if tiled { self.copy(which) } else { Vec::new() },
            }),
            grid: self.grid(),
            epilogue: self.epilogue(),
        }
    }

    fn stage_bytes(&self, which: usize) -> u32 {
        let shared = self.shared(which);
        let next = [(Axis::Stage, 1)];
        match self.spec.schedule.buffers {
            0 | 1 => self.regions().iter().find(|r| r.name == ["A tiles", "B tiles"][which]).map_or(0, |r| r.bytes),
            _ => shared.at(Axis::Position, &next) as u32 * self.scalar(which).bytes(),
        }
    }

    /// Roles as the kernel has them.
    fn roles(&self) -> Vec<RoleFact> {
        let fact = |role: &str, first: u32, count: u32, registers, does| {
            let wave = self.target.wave.max(1);
            let threads = Span { first, last: (first + count).max(1) - 1 };
            let waves = Span { first: threads.first / wave, last: threads.last / wave };
            RoleFact { role: role.into(), waves, threads, registers, does }
        };
        let mut found = Vec::new();
        each(&self.kernel.body, &mut |s| {
            if let (Stmt::Roles(roles), true) = (s, found.is_empty()) {
                for role in roles {
                    let mut registers = None;
                    each(&role.body, &mut |s| {
                        if let Stmt::Bulk(BulkOp::Registers { count, .. }) = s {
                            registers = Some(*count);
                        }
                    });
                    let copies = role.name == "producer";
                    let does = if copies { self.copying(role.first_thread) } else { self.computing(false) };
                    let name = if copies { "copy" } else { "math" };
                    found.push(fact(name, role.first_thread, role.threads, registers, does));
                }
            }
        });
        if found.is_empty() {
            found.push(fact("all", 0, self.kernel.threads, None, self.computing(true)));
        }
        found
    }

    fn copying(&self, first: u32) -> String {
        let copies = &self.spec.schedule.copies;
        let (wave, word) = (first / self.target.wave.max(1), self.wave());
        if !self.spec.schedule.in_pipeline() {
            return "producers: bring tiles of A and B to shared memory, and compute nothing".into();
        }
        if copies.iter().all(|copy| matches!(copy, Transport::Bulk(_))) {
            return format!("producers: thread {first} ({word} {wave}) issues the TMA copies of A and B; the others do nothing");
        }
        let written: Vec<&str> =
            ["A", "B"].into_iter().zip(copies).filter(|(_, c)| c.is_written()).map(|(name, _)| name).collect();
        let other = if written.contains(&"A") { "B" } else { "A" };
        let bulk = if written.len() == 1 { format!("; thread {first} issues the TMA copies of {other}") } else { String::new() };
        format!("producers: all write the tiles of {}{bulk}", written.join(" and "))
    }

    fn computing(&self, alone: bool) -> String {
        let (teams, owner) = (self.spec.teams(), self.spec.tiling.unit.family().owner);
        let pipeline = self.spec.schedule.in_pipeline();
        if let ResultSource::Elements(_) = self.c.source {
            return "all read elements, and reduce them in registers and with each other".into();
        }
        match (alone, teams) {
            (true, _) if pipeline => "thread 0 issues the TMA copies; all compute and store C".into(),
            (true, _) if self.spec.schedule.own() => "all load what they multiply to registers, compute and store C".into(),
            (true, _) => "all bring tiles to shared memory, compute and store C".into(),
            (false, 1) if pipeline => "consumers: wait for full stages, compute, store C".into(),
            (false, 1) => "compute and store C".into(),
            (false, _) => {
                format!("consumers: {} {owner}s take turns (ping-pong): while one stores its tile of C, the next computes", teams)
            }
        }
    }

    /// What each wave of a team holds.
    fn held(&self) -> Vec<WaveFact> {
        let t = &self.spec.tiling;
        let (layout, lanes, math) = (self.accumulators(), self.target.wave.max(1), t.math_threads());
        let family = t.unit.family();
        (0..self.waves_of(math))
            .map(|wave| {
                let mut of_row: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
                for thread in wave * lanes..((wave + 1) * lanes).min(math) {
                    for (row, column) in elements(&layout, thread) {
                        of_row.entry(row).or_default().insert(column);
                    }
                }
                let mut rectangles: Vec<Rectangle> = Vec::new();
                let rows: Vec<(u32, Vec<Span>)> =
                    of_row.iter().map(|(row, columns)| (*row, spans(columns.iter().copied()))).collect();
                for part in rows.chunk_by(|x, y| x.0 + 1 == y.0 && x.1 == y.1) {
                    let (Some(first), Some(last)) = (part.first(), part.last()) else { continue };
                    let rows = Span { first: first.0, last: last.0 };
                    rectangles.extend(first.1.iter().map(|columns| Rectangle { rows, columns: *columns }));
                }
                let waves = (0..self.spec.teams()).map(|team| wave + team * self.waves_of(math)).collect();
                let columns = spans(of_row.values().flatten().copied());
                WaveFact {
                    waves,
                    owner: wave * lanes / family.lanes.max(lanes),
                    rows: spans(of_row.into_keys()),
                    columns,
                    rectangles,
                }
            })
            .collect()
    }

    /// Which (lane, register) of the first wave holds each element of the tile.
    pub fn holders(&self) -> BTreeMap<(u32, u32), (u32, u32)> {
        let layout = self.accumulators();
        let lanes = u64::from(self.target.wave.max(1)).min(layout.extent(Axis::Thread)) as u32;
        let of = |lane: u32| {
            elements(&layout, lane).into_iter().enumerate().map(move |(register, place)| (place, (lane, register as u32)))
        };
        (0..lanes).flat_map(of).collect()
    }

    /// How many rows and columns the first wave has, and those of them that are drawn: as many as an instruction has.
    pub fn shown(&self, held: &BTreeMap<(u32, u32), (u32, u32)>) -> ([usize; 2], [Vec<u32>; 2]) {
        let all: [BTreeSet<u32>; 2] =
            [held.keys().map(|(row, _)| *row).collect(), held.keys().map(|(_, column)| *column).collect()];
        let drawn = [0, 1].map(|i: usize| all[i].iter().copied().take(16).collect());
        (all.map(|all| all.len()), drawn)
    }

    /// The first, the sixth and the last of the lanes that are drawn.
    fn lanes(&self) -> Vec<LaneFact> {
        let (layout, held) = (self.accumulators(), self.holders());
        let (_, [rows, columns]) = self.shown(&held);
        let is_drawn = |(row, column): &(u32, u32)| rows.contains(row) && columns.contains(column);
        let drawn: BTreeSet<u32> = held.iter().filter(|(place, _)| is_drawn(place)).map(|(_, (lane, _))| *lane).collect();
        let followed: BTreeSet<u32> = drawn
            .iter()
            .copied()
            .enumerate()
            .filter(|(i, _)| [0, 5, drawn.len() - 1].contains(i))
            .map(|(_, lane)| lane)
            .collect();
        let fact = |lane: u32| {
            let (rows, columns) = elements(&layout, lane).into_iter().unzip::<_, _, BTreeSet<u32>, BTreeSet<u32>>();
            LaneFact { lane, rows: spans(rows), columns: spans(columns), registers: layout.extent(Axis::Register) as u32 }
        };
        followed.into_iter().map(fact).collect()
    }

    /// Which columns the first matrix instruction of the first wave computes, where they are not neighbours.
    fn interleaved(&self) -> Option<String> {
        let MmaShape { m, n, .. } = self.spec.tiling.instruction?.shape;
        let (held, lanes) = (self.holders(), self.target.wave.max(1));
        let first = held.iter().filter(|(_, (_, register))| *register < m * n / lanes);
        let columns: BTreeSet<u32> = first.map(|((_, column), _)| *column).collect();
        let found = spans(columns.iter().copied());
        let next = columns.iter().nth(1)? - columns.first()?;
        let lane = spans(elements(&self.accumulators(), 0).into_iter().map(|(_, column)| column));
        let together = lane.iter().all(|span| span.last + 1 - span.first == next);
        (next > 1 && together && found.len() as u32 == n).then(|| {
            format!(
                "an instruction of {m} × {n} gives a lane one column; the first computes columns {}, and {next} such instructions interleave, \
                 so that a lane's columns are neighbours and can be stored as vectors",
                say(&found)
            )
        })
    }

    /// Shared memory as the plan's map divides it.
    fn regions(&self) -> Vec<Region> {
        let (map, stages) = (&self.spec.shared, self.spec.schedule.buffers.max(1));
        let barriers = map.barriers.unwrap_or_default();
        let slots = self.spec.schedule.slots().max(1);
        let of_barriers = |name: &'static str, area: Area| (name, area, Barriers::count(area).max(1));
        let all = [
            ("A tiles", map.operands[0], stages),
            ("B tiles", map.operands[1], stages),
            ("partial results", map.exchange, 1),
            of_barriers("full barriers", barriers.full),
            of_barriers("empty barriers", barriers.free),
            of_barriers("turn barriers", barriers.turns),
            of_barriers("staged barriers", barriers.staged),
            ("first tiles", map.groups, 1),
            ("epilogue staging", map.results, 1),
            ("parts of reductions", map.reductions, 1),
            ("parts of carried reductions", map.carried, 1),
            ("A spans", map.spans[0], slots),
            ("B spans", map.spans[1], slots),
        ];
        let areas = all.into_iter().filter(|(_, area, _)| area.bytes > 0);
        let region = |(name, area, parts): (&str, Area, u32)| Region {
            name: name.to_string(),
            first_byte: area.first(),
            bytes: area.bytes as u32,
            parts,
        };
        let mut out: Vec<Region> = areas.map(region).collect();
        out.sort_by_key(|r| r.first_byte);
        out
    }

    /// Transaction barriers as the kernel sets them up.
    fn barriers(&self) -> Vec<BarrierFact> {
        let mut arrivals = vec![0; self.kernel.tx_barriers.len()];
        each(&self.kernel.body, &mut |s| {
            if let Stmt::Bulk(BulkOp::Init { barrier, arrivals: count }) = s
                && let Some(found) = arrivals.get_mut(barrier.barriers.0 as usize)
            {
                *found = *count;
            }
        });
        let word = self.wave();
        let copies = &self.spec.schedule.copies;
        let bytes: u32 = copies.iter().filter_map(|c| if let Transport::Bulk(tile) = c { Some(tile.bytes) } else { None }).sum();
        let sharers = self.spec.tiling.cluster.sharers().max(1);
        let meaning = |name: &str, arrivals: u32| match name {
            "full" => {
                let (written, copied) = (arrivals - u32::from(bytes > 0), u32::from(bytes > 0));
                let mut who = Vec::new();
                who.extend(
                    (written > 0)
                        .then(|| format!("an arrival of each of {}", plural(written.into(), &format!("producer {word}")))),
                );
                who.extend(
                    (copied > 0).then(|| format!("an arrival of the thread that copies and the {bytes} bytes of its TMA copies")),
                );
                format!("full after {}; consumers wait for it before they read the stage", who.join(", "))
            }
            "empty" => {
                let readers = plural(u64::from(arrivals / sharers), word);
                let clusters =
                    if sharers > 1 { format!(" in each of {sharers} work-groups of the cluster") } else { String::new() };
                format!(
                    "free after {}, one of {} read the stage{clusters}; producers wait for it before they fill it again",
                    plural(arrivals.into(), "arrival"),
                    if readers.starts_with("1 ") {
                        format!("the {word} that has")
                    } else {
                        format!("each of the {readers} that have")
                    }
                )
            }
            "turn" => format!(
                "a warpgroup waits for its own before it begins a tile; the {} of the warpgroup before arrive at it",
                plural(arrivals.into(), word)
            ),
            _ => format!("{} a phase; says that a k-tile has come to staging", plural(arrivals.into(), "arrival")),
        };
        let all = self.kernel.tx_barriers.iter().zip(arrivals);
        all.map(|(b, arrivals)| BarrierFact { name: b.name.clone(), count: b.len, arrivals, meaning: meaning(&b.name, arrivals) })
            .collect()
    }
}

/// Rows and columns that a thread holds, by register.
pub fn elements(layout: &Layout, thread: u32) -> Vec<(u32, u32)> {
    let at = |register: u64, to: Axis| layout.at(to, &[(Axis::Thread, thread.into()), (Axis::Register, register as i64)]) as u32;
    (0..layout.extent(Axis::Register)).map(|r| (at(r, Axis::Row), at(r, Axis::Col))).collect()
}

/// Every statement, outer ones first.
fn each(block: &Block, visit: &mut dyn FnMut(&Stmt)) {
    for s in block {
        visit(s);
        match s {
            Stmt::For { body, .. } => each(body, visit),
            Stmt::If { then, otherwise, .. } => {
                each(then, visit);
                each(otherwise, visit);
            }
            Stmt::Roles(roles) => roles.iter().for_each(|r| each(&r.body, visit)),
            _ => {}
        }
    }
}
