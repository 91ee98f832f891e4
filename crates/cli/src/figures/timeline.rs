//! The schedule as a timeline: which stage of the main loop works on which k-tile, in which buffer, on which waves, and who waits for whom.

use super::facts::{Facts, RoleFact, Subject, plural};
use super::svg::{Anchor, Svg, hue};
use tilewright_gen::kernel::schedule::{MathPart, Step, lower};
use tilewright_gen::plan::{KernelSpec, Schedule, StorePoint};

/// A stage of the main loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Global memory to registers.
    Fetch,
    /// Registers to shared memory.
    Store,
    /// Global to shared memory, asynchronously.
    Copy,
    /// Shared memory to fragments, and the multiplications.
    Math,
    /// The accumulators of a tile of C are stored.
    Epilogue,
    /// All participants meet.
    Barrier,
}

/// One box of the timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What runs.
    pub stage: Stage,
    /// The k-tile it works on, counted over all tiles of C.
    pub tile: u32,
    /// The shared buffer it touches, where it touches one.
    pub buffer: Option<u32>,
    /// The team of math waves, where teams alternate.
    pub team: u32,
    /// Start, in units of a tenth of one k-tile's math.
    pub start: u32,
    /// Length in the same unit. A fetch or copy lasts until its data is waited for.
    pub length: u32,
}

const MATH: u32 = 10;
/// Share of it that a carried schedule computes behind the barrier.
const TAIL: u32 = 2;
/// k-steps per tile: any number that every fragment distance divides.
const K_STEPS: u32 = 12;
const STORE: u32 = 2;
/// Time from the issue of a fetch or copy to its data.
const WAIT: u32 = 6;
const ISSUE: u32 = 1;
const EPILOGUE: u32 = 8;

/// Tiles of C and k-tiles of each that are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub results: u32,
    pub k_tiles: u32,
}

/// State of one simulation.
struct Run {
    schedule: Schedule,
    /// Clocks of the waves that load, and of each team that computes; one clock where all waves do both.
    load: u32,
    math: Vec<u32>,
    apart: bool,
    /// When the next team may begin.
    turn: u32,
    /// When each tile has come, and when its buffer is free again.
    arrives: Vec<u32>,
    read: Vec<u32>,
    events: Vec<Event>,
}

/// The first k-tiles of a schedule laid out in time, step by step as the generator emits them. Memory is taken to need 0.6 of one
/// k-tile's math to answer.
pub fn events(schedule: &Schedule, shown: Extent) -> Vec<Event> {
    let lowered = lower(schedule, K_STEPS);
    let teams = schedule.roles.map_or(1, |r| r.teams.max(1));
    let all = (shown.results * shown.k_tiles) as usize;
    let mut run = Run {
        schedule: schedule.clone(),
        load: 0,
        math: vec![0; teams as usize],
        apart: schedule.roles.is_some(),
        turn: 0,
        arrives: vec![0; all],
        read: vec![0; all],
        events: Vec::new(),
    };
    for result in 0..shown.results {
        let team = result % teams;
        let (first, last) = (result * shown.k_tiles, (result + 1) * shown.k_tiles);
        let mut steps = |steps: &[Step], tile: u32| steps.iter().for_each(|step| run.step(*step, tile, last, team));
        steps(&lowered.prologue, first);
        (first..last).for_each(|tile| steps(&lowered.body, tile));
        steps(&lowered.tail, last);
        if schedule.in_pipeline() {
            let start = run.math(team);
            run.put(Stage::Epilogue, result, team, (start, EPILOGUE));
            run.set_math(team, start + EPILOGUE);
        }
    }
    run.events
}

impl Run {
    fn math(&self, team: u32) -> u32 {
        self.math.get(team as usize).copied().unwrap_or(0)
    }
    fn set_load(&mut self, now: u32) {
        self.load = now;
        if !self.apart {
            self.math.fill(now);
        }
    }
    fn set_math(&mut self, team: u32, now: u32) {
        if let Some(clock) = self.math.get_mut(team as usize) {
            *clock = now;
        }
        if !self.apart {
            self.load = now;
        }
    }
    fn put(&mut self, stage: Stage, tile: u32, team: u32, (start, length): (u32, u32)) {
        let buffers = self.schedule.buffers.max(1);
        let buffer = matches!(stage, Stage::Store | Stage::Copy | Stage::Math).then_some(tile % buffers);
        self.events.push(Event { stage, tile, buffer, team, start, length });
    }

    /// One step of tile `tile`, of those before `last`: what it puts on the timeline, and how long its waves are busy with it.
    fn step(&mut self, step: Step, tile: u32, last: u32, team: u32) {
        let at = |times: &[u32], tile: u32| times.get(tile as usize).copied().unwrap_or(0);
        let copies = self.schedule.in_pipeline() || self.schedule.copied().1;
        let fetch = if copies { Stage::Copy } else { Stage::Fetch };
        match step {
            Step::WaitCopies { .. } => self.set_load(self.load.max(at(&self.arrives, tile))),
            // A buffer is free when the tile that was in it before has been read.
            Step::Acquire { ahead } => {
                if let Some(before) = (tile + ahead).checked_sub(self.schedule.buffers.max(1)) {
                    self.set_load(self.load.max(at(&self.read, before)));
                }
            }
            Step::Await => self.set_math(team, self.math(team).max(at(&self.arrives, tile))),
            Step::TakeTurn => self.set_math(team, self.math(team).max(self.turn)),
            // The instructions of the last k-tiles may be unfinished.
            Step::HandOn => self.turn = self.math(team) - MATH * self.schedule.math_behind.unwrap_or(0).min(1),
            Step::Drain { .. } => {}
            Step::Release { behind } => {
                let now = self.math(team);
                if let Some(read) = tile.checked_sub(behind).and_then(|tile| self.read.get_mut(tile as usize)) {
                    *read = now;
                }
            }
            Step::Barrier => {
                let now = self.load.max(self.math(team));
                self.put(Stage::Barrier, tile, team, (now, 0));
                (self.load, self.math[0]) = (now, now);
            }
            Step::Fetch { ahead } if tile + ahead < last => {
                if let Some(arrives) = self.arrives.get_mut((tile + ahead) as usize) {
                    *arrives = self.load + WAIT;
                }
                self.put(fetch, tile + ahead, team, (self.load, WAIT));
                self.set_load(self.load + ISSUE);
            }
            // With both operands copied there is nothing left to store.
            Step::Store { ahead } if tile + ahead < last && fetch == Stage::Fetch => {
                let start = self.load.max(at(&self.arrives, tile + ahead));
                self.put(Stage::Store, tile + ahead, team, (start, STORE));
                self.set_load(start + STORE);
            }
            Step::Fetch { .. } | Step::Store { .. } | Step::Fragments | Step::Fence => {}
            Step::Math { part, store } => {
                let start = self.math(team);
                let length = match part {
                    MathPart::Whole => MATH,
                    MathPart::Head => MATH - TAIL,
                    MathPart::Tail => TAIL,
                };
                self.put(Stage::Math, tile, team, (start, length));
                self.set_math(team, start + length);
                if let Some(ahead) = store.filter(|ahead| tile + ahead < last) {
                    let begin = at(&self.arrives, tile + ahead).max(start + 2);
                    let end = (start + length).max(begin + STORE);
                    self.put(Stage::Store, tile + ahead, team, (begin, end - begin));
                    self.set_load(end);
                }
            }
        }
    }
}

/// How much of a schedule is worth drawing.
pub fn extent(spec: &KernelSpec, k_tiles: u64) -> Extent {
    let results = match (spec.schedule.in_pipeline(), spec.teams()) {
        (true, teams) if teams > 1 => 4,
        (true, _) if spec.tiling.persistent > 0 => 2,
        _ => 1,
    };
    let most = if results > 1 { 6 / results.min(2) } else { 5 };
    Extent { results, k_tiles: (k_tiles.clamp(1, u64::from(most))) as u32 }
}

/// A row of the picture.
struct Lane {
    name: String,
    what: String,
    who: String,
    /// Which events; math of one team only.
    stages: &'static [Stage],
    team: Option<u32>,
    /// Boxes of each buffer have a line of their own.
    by_buffer: bool,
}

fn lanes(subject: &Subject, facts: &Facts) -> Vec<Lane> {
    let schedule = &subject.spec.schedule;
    let wave = facts.wave;
    let of = |role: &RoleFact| {
        if role.waves.0 == role.waves.1 {
            format!("{wave} {}", role.waves.0)
        } else {
            format!("{wave}s {}-{}", role.waves.0, role.waves.1)
        }
    };
    let who = |name: &str| facts.roles.iter().find(|r| r.role == name).or(facts.roles.first()).map_or(String::new(), of);
    let lane = |name: &str, what: &str, who: String, stages| Lane {
        name: name.into(),
        what: what.into(),
        who,
        stages,
        team: None,
        by_buffer: false,
    };
    let mut out = Vec::new();
    if schedule.in_pipeline() {
        let copy = lane("copy", "a line per stage", who("load"), &[Stage::Copy] as &'static [Stage]);
        out.push(Lane { by_buffer: true, ..copy });
        let teams = subject.spec.teams();
        for team in 0..teams {
            let math = lane("math, store C", "from the stage", who("math"), &[Stage::Math, Stage::Epilogue]);
            let waves = facts.waves.len() as u32;
            let name = if teams > 1 { format!("{wave}s {}-{}", team * waves, (team + 1) * waves - 1) } else { math.who.clone() };
            let what = if teams > 1 { format!("warpgroup {team}") } else { math.what.clone() };
            out.push(Lane { team: Some(team), who: name, what, ..math });
        }
        return out;
    }
    if schedule.copied().1 {
        let copy = lane("copy", "global to shared, cp.async", who("load"), &[Stage::Copy]);
        out.push(Lane { by_buffer: true, ..copy });
    } else {
        out.push(lane("fetch", "global to registers", who("load"), &[Stage::Fetch]));
        out.push(lane("store", "registers to shared", who("load"), &[Stage::Store]));
    }
    out.push(lane("math", "shared to accumulators", who("math"), &[Stage::Math]));
    out
}

/// Draws a schedule. Gives the drawing and its height.
pub fn draw(subject: &Subject, facts: &Facts, width: f64) -> (Svg, f64) {
    let mut svg = Svg::default();
    let schedule = &subject.spec.schedule;
    let k_tiles = subject.works.first().map_or(1, |w| w.k_tiles);
    let shown = extent(subject.spec, k_tiles);
    let events = events(schedule, shown);
    let end = events.iter().map(|e| e.start + e.length).max().unwrap_or(1).max(1);
    let (left, top) = (170.0, 22.0);
    let scale = (width - left - 12.0) / f64::from(end);
    let x = |at: u32| left + f64::from(at) * scale;
    let rows = lanes(subject, facts);
    let high = |lane: &Lane| if lane.by_buffer { (17.0 * f64::from(schedule.buffers)).max(40.0) } else { 40.0 };
    let bottom = top + rows.iter().map(|lane| high(lane) + 8.0).sum::<f64>();
    for event in events.iter().filter(|e| e.stage == Stage::Barrier) {
        svg.line((x(event.start), top - 6.0), (x(event.start), bottom), "wall");
    }
    let mut y = top;
    for lane in &rows {
        let height = high(lane);
        for (i, (class, text)) in [("h2", &lane.name), ("dim", &lane.who), ("dim", &lane.what)].into_iter().enumerate() {
            svg.text((0.0, y + 12.0 + 13.0 * i as f64), if i == 0 { 13.0 } else { 10.5 }, Anchor::Start, class, text);
        }
        svg.rect(left, y, width - left - 12.0, height, "soft");
        let mine: Vec<&Event> =
            events.iter().filter(|e| lane.stages.contains(&e.stage) && lane.team.is_none_or(|team| team == e.team)).collect();
        let overlap = mine.windows(2).any(|w| w[0].start + w[0].length > w[1].start);
        for event in mine {
            // Fetches that are under way together have lines of their own.
            let together = schedule.fetch_ahead.clamp(1, 4);
            let (line, of) = match (lane.by_buffer, overlap) {
                (true, _) => (event.buffer.unwrap_or(0), schedule.buffers.max(1)),
                (false, true) => (event.tile % together, together),
                _ => (0, 1),
            };
            let h = height / f64::from(of);
            event_box(&mut svg, event, shown, (x(event.start), y + f64::from(line) * h), (f64::from(event.length) * scale, h));
        }
        y += height + 8.0;
    }
    let bars = if schedule.in_pipeline() { "" } else { "; dark bars are barriers of the work-group" };
    let numbers = if shown.results > 1 { "2:k1 is k-tile 1 of this work-group's tile 2 of C" } else { "numbers are k-tiles" };
    let hues = if schedule.buffers > 1 { "colours are stages (buffers)" } else { "one buffer" };
    svg.text((left, top - 10.0), 10.5, Anchor::Start, "dim", &format!("time →   {numbers}, {hues}{bars}; lengths are schematic"));
    let mut at = bottom + 16.0;
    for (class, text) in words(subject, facts, shown) {
        for part in super::wrap(&text, 150) {
            svg.text((0.0, at), 12.0, Anchor::Start, class, &part);
            at += 17.0;
        }
    }
    (svg, at)
}

fn event_box(svg: &mut Svg, event: &Event, shown: Extent, (x, y): (f64, f64), (w, h): (f64, f64)) {
    let (w, h) = ((w - 1.5).max(2.0), h - 1.5);
    let (result, k) = (event.tile / shown.k_tiles.max(1), event.tile % shown.k_tiles.max(1));
    let labels = match (event.stage, event.buffer) {
        (Stage::Epilogue, _) => vec![format!("store tile {}", event.tile), format!("store {}", event.tile), "C".into()],
        (_, Some(_)) if shown.results > 1 => {
            vec![format!("tile {result}, k-tile {k}"), format!("{result}:k{k}"), format!("k{k}")]
        }
        (_, Some(b)) => vec![format!("k-tile {k}: stage {b}"), format!("k{k}")],
        _ => vec![format!("k-tile {k}"), format!("k{k}")],
    };
    let colour = if event.stage == Stage::Epilogue { "#5b6675" } else { hue(event.buffer.unwrap_or(event.tile % 2) as usize) };
    svg.fill(x + 0.75, y + 0.75, w, h, colour, if event.stage == Stage::Fetch { 0.72 } else { 0.92 });
    let size = if h < 22.0 { 9.5 } else { 11.0 };
    if let Some(label) = labels.iter().find(|label| label.len() as f64 * size * 0.62 < w) {
        svg.text((x + w / 2.0, y + h / 2.0 + 4.0), size, Anchor::Middle, "onhue h2", label);
    }
}

fn words(subject: &Subject, facts: &Facts, shown: Extent) -> Vec<(&'static str, String)> {
    let (schedule, wave) = (&subject.spec.schedule, facts.wave);
    let mut out = Vec::new();
    let buffers = plural(schedule.buffers.into(), "stage");
    if schedule.in_pipeline() {
        let ahead = match schedule.roles {
            Some(_) => "producers run ahead as far as stages are free".to_string(),
            None => format!("copies run {} ahead", plural(schedule.fetch_ahead.into(), "k-tile")),
        };
        let behind = if schedule.math_behind > Some(0) {
            "; a stage is released one k-tile later, as the instructions of one k-tile run on while the next one's are issued"
        } else {
            ""
        };
        out.push(("", format!("{buffers} (circular buffer): {ahead}{behind}")));
        for barrier in &facts.barriers {
            out.push(("", format!("barriers {}[{}]: {}", barrier.name, barrier.count, barrier.meaning)));
        }
        if shown.results > 1 {
            out.push(("dim", format!("drawn with {} per tile of C", plural(shown.k_tiles.into(), "k-tile"))));
        }
        return out;
    }
    out.push((
        "",
        format!("{buffers} of shared memory; loads run {} ahead of the math", plural(schedule.fetch_ahead.into(), "k-tile")),
    ));
    if !schedule.copied().1 {
        out.push((
            "",
            match schedule.store {
                StorePoint::AtOnce => "the store waits for its data at once",
                StorePoint::AfterMath => "the store stands after the math, which hides the wait",
                StorePoint::Spread => "the store is spread between the k-steps of the math",
            }
            .to_string(),
        ));
    }
    out.push(("", format!("fragments are read {} ahead", plural(schedule.fragments_ahead.into(), "k-step"))));
    out.push(("", format!("at a barrier all {wave}s wait until the last one has come")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_gen::plan::Transport;

    fn schedule(ahead: u32, buffers: u32, store: StorePoint) -> Schedule {
        Schedule {
            fetch_ahead: ahead,
            buffers,
            store,
            fragments_ahead: 0,
            math_behind: None,
            copies: [Transport::Registers, Transport::Registers],
            roles: None,
            hints: false,
        }
    }

    #[test]
    fn every_tile_is_fetched_stored_and_computed_once_and_in_order() {
        for s in [
            schedule(0, 1, StorePoint::AtOnce),
            schedule(1, 1, StorePoint::AfterMath),
            schedule(1, 2, StorePoint::AtOnce),
            schedule(1, 2, StorePoint::AfterMath),
            schedule(2, 3, StorePoint::AfterMath),
            schedule(1, 2, StorePoint::Spread),
            Schedule { copies: [Transport::Async, Transport::Async], ..schedule(2, 3, StorePoint::AtOnce) },
        ] {
            let all = events(&s, Extent { results: 1, k_tiles: 5 });
            for tile in 0..5 {
                let at = |stage: Stage| all.iter().filter(|e| e.stage == stage && e.tile == tile).collect::<Vec<_>>();
                let fetched = if s.copied().1 { at(Stage::Copy) } else { at(Stage::Fetch) };
                assert_eq!(fetched.len(), 1, "{s:?} tile {tile}");
                let math = at(Stage::Math);
                assert_eq!(math.len(), 1, "{s:?} tile {tile}");
                assert!(fetched[0].start + fetched[0].length <= math[0].start, "{s:?} tile {tile}");
                if !s.copied().1 {
                    let stored = at(Stage::Store);
                    assert_eq!(stored.len(), 1, "{s:?} tile {tile}");
                    assert!(stored[0].start >= fetched[0].start + fetched[0].length, "{s:?} tile {tile}: stored before it came");
                    assert!(stored[0].start + stored[0].length <= math[0].start, "{s:?} tile {tile}");
                }
            }
        }
    }
}
