//! The schedule as a timeline: which stage works on which k-tile, in which buffer, on which waves.

use super::svg::{Anchor, Svg, hue};
use tilewright_gen::kernel::schedule::{MathPart, Step, lower};
use tilewright_gen::plan::{Schedule, StorePoint};

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
    /// All participants meet.
    Barrier,
}

/// One box of the timeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What runs.
    pub stage: Stage,
    /// The k-tile it works on.
    pub tile: u32,
    /// The shared buffer it touches, where it touches one.
    pub buffer: Option<u32>,
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

/// Clocks of the waves that load and of those that compute; one clock where all waves do both.
struct Clocks {
    load: u32,
    math: u32,
    apart: bool,
}

impl Clocks {
    fn set_load(&mut self, now: u32) {
        self.load = now;
        if !self.apart {
            self.math = now;
        }
    }
    fn set_math(&mut self, now: u32) {
        self.math = now;
        if !self.apart {
            self.load = now;
        }
    }
}

/// The first `tiles` k-tiles of a schedule laid out in time, step by step as the generator emits them. Memory is taken to need
/// 0.6 of one k-tile's math to answer.
pub fn events(schedule: &Schedule, tiles: u32) -> Vec<Event> {
    let lowered = lower(schedule, K_STEPS);
    let copies = schedule.in_pipeline() || schedule.copied().1;
    let fetch = if copies { Stage::Copy } else { Stage::Fetch };
    let mut clocks = Clocks { load: 0, math: 0, apart: schedule.roles.is_some() };
    let mut times = Times { arrives: vec![0; tiles as usize], read: vec![0; tiles as usize] };
    let mut out = Vec::new();
    let mut run = |steps: &[Step], tile: u32, clocks: &mut Clocks| {
        for step in steps {
            take(*step, tile, tiles, fetch, schedule.buffers.max(1), clocks, &mut times, &mut out);
        }
    };
    run(&lowered.prologue, 0, &mut clocks);
    for tile in 0..tiles {
        run(&lowered.body, tile, &mut clocks);
    }
    out
}

/// When each tile has come, and when its math has read it.
struct Times {
    arrives: Vec<u32>,
    read: Vec<u32>,
}

/// One step of tile `tile`: what it puts on the timeline, and how long its waves are busy with it.
#[allow(clippy::too_many_arguments, reason = "the state of one simulation, used once")]
fn take(
    step: Step,
    tile: u32,
    tiles: u32,
    fetch: Stage,
    buffers: u32,
    clocks: &mut Clocks,
    times: &mut Times,
    out: &mut Vec<Event>,
) {
    let mut put = |stage: Stage, tile: u32, start: u32, length: u32| {
        let buffer = matches!(stage, Stage::Store | Stage::Copy | Stage::Math).then_some(tile % buffers);
        out.push(Event { stage, tile, buffer, start, length });
    };
    let at = |times: &[u32], tile: u32| times.get(tile as usize).copied().unwrap_or(0);
    match step {
        Step::WaitCopies { .. } => clocks.set_load(clocks.load.max(at(&times.arrives, tile))),
        // A buffer is free when the tile that was in it before has been read.
        Step::Acquire { ahead } => {
            if let Some(before) = (tile + ahead).checked_sub(buffers) {
                clocks.set_load(clocks.load.max(at(&times.read, before)));
            }
        }
        Step::Await => clocks.set_math(clocks.math.max(at(&times.arrives, tile))),
        Step::Drain { .. } | Step::Release { .. } | Step::TakeTurn | Step::HandOn => {}
        Step::Barrier => {
            let now = clocks.load.max(clocks.math);
            put(Stage::Barrier, tile, now, 0);
            (clocks.load, clocks.math) = (now, now);
        }
        Step::Fetch { ahead } if tile + ahead < tiles => {
            if let Some(arrives) = times.arrives.get_mut((tile + ahead) as usize) {
                *arrives = clocks.load + WAIT;
            }
            put(fetch, tile + ahead, clocks.load, WAIT);
            clocks.set_load(clocks.load + ISSUE);
        }
        // With both operands copied there is nothing left to store.
        Step::Store { ahead } if tile + ahead < tiles && fetch == Stage::Fetch => {
            let start = clocks.load.max(at(&times.arrives, tile + ahead));
            put(Stage::Store, tile + ahead, start, STORE);
            clocks.set_load(start + STORE);
        }
        Step::Fetch { .. } | Step::Store { .. } => {}
        Step::Fragments | Step::Fence => {}
        Step::Math { part, store } => {
            let start = clocks.math;
            let length = match part {
                MathPart::Whole => MATH,
                MathPart::Head => MATH - TAIL,
                MathPart::Tail => TAIL,
            };
            put(Stage::Math, tile, start, length);
            clocks.set_math(start + length);
            if let Some(read) = times.read.get_mut(tile as usize) {
                *read = start + length;
            }
            if let Some(ahead) = store.filter(|ahead| tile + ahead < tiles) {
                let begin = at(&times.arrives, tile + ahead).max(start + 2);
                let end = (start + length).max(begin + STORE);
                put(Stage::Store, tile + ahead, begin, end - begin);
                clocks.set_load(end);
            }
        }
    }
}

/// Draws a schedule. Gives the drawing and its height.
pub fn draw(schedule: &Schedule, width: f64) -> (Svg, f64) {
    let mut svg = Svg::default();
    let events = events(schedule, 4);
    let end = events.iter().map(|e| e.start + e.length).max().unwrap_or(1).max(1);
    let left = 190.0;
    let scale = (width - left - 12.0) / f64::from(end);
    let copies = schedule.in_pipeline() || schedule.copied().1;
    let (loaders, computers) = match schedule.roles {
        Some(r) => (format!("load waves ({} threads)", r.load_threads), format!("math waves ({} threads)", r.math_threads)),
        None => ("all waves".to_string(), "all waves".to_string()),
    };
    let mut rows = Vec::new();
    if copies {
        rows.push((Stage::Copy, "copy", "global to shared, asynchronous", &loaders));
    } else {
        rows.push((Stage::Fetch, "fetch", "global to registers", &loaders));
        rows.push((Stage::Store, "store", "registers to shared", &loaders));
    }
    rows.push((Stage::Math, "load + math", "shared to fragments to sums", &computers));
    let (lane, gap, top) = (38.0, 8.0, 22.0);
    let bottom = top + rows.len() as f64 * (lane + gap);
    for event in events.iter().filter(|e| e.stage == Stage::Barrier) {
        let x = left + f64::from(event.start) * scale;
        svg.line((x, top - 6.0), (x, bottom), "wall");
    }
    for (index, (stage, name, what, who)) in rows.iter().enumerate() {
        let y = top + index as f64 * (lane + gap);
        svg.text((0.0, y + 13.0), 13.0, Anchor::Start, "h2", name);
        svg.text((0.0, y + 26.0), 10.5, Anchor::Start, "dim", what);
        svg.text((0.0, y + 38.0), 10.5, Anchor::Start, "dim", who);
        svg.rect(left, y, width - left - 12.0, lane, "soft");
        // A fetch may begin before the one ahead of it has arrived: such boxes share the lane, half height each.
        let mut lanes_end = [0u32; 2];
        let mine: Vec<&Event> = events.iter().filter(|e| e.stage == *stage).collect();
        let overlap = mine.windows(2).any(|w| w[0].start + w[0].length > w[1].start);
        for event in mine {
            let half = usize::from(overlap && lanes_end[0] > event.start);
            lanes_end[half] = event.start + event.length;
            let x = left + f64::from(event.start) * scale;
            let w = (f64::from(event.length) * scale - 1.5).max(2.0);
            let h = if overlap { lane / 2.0 - 1.0 } else { lane };
            let y = y + half as f64 * (h + 2.0);
            svg.fill(x + 0.75, y, w, h, hue(event.tile as usize), if *stage == Stage::Fetch { 0.72 } else { 0.95 });
            let middle = x + w / 2.0;
            let label = match event.buffer {
                Some(buffer) if schedule.buffers > 1 => format!("{} → buf {buffer}", event.tile),
                _ => event.tile.to_string(),
            };
            let label = if *stage == Stage::Math { label.replace('→', "←") } else { label };
            let label = if label.len() as f64 * 6.5 > w { event.tile.to_string() } else { label };
            svg.text((middle, y + h / 2.0 + 4.0), if overlap { 10.0 } else { 11.5 }, Anchor::Middle, "onhue h2", &label);
        }
    }
    svg.text(
        (left, top - 10.0),
        10.5,
        Anchor::Start,
        "dim",
        "time →   numbers are k-tiles; dark bars are barriers; lengths are schematic",
    );
    let mut facts = vec![format!(
        "{} shared buffer{} per operand; fetch runs {} k-tile{} ahead",
        schedule.buffers,
        if schedule.buffers == 1 { "" } else { "s" },
        schedule.fetch_ahead,
        if schedule.fetch_ahead == 1 { "" } else { "s" }
    )];
    if !copies {
        facts.push(
            match schedule.store {
                StorePoint::AtOnce => "the store waits for its data at once",
                StorePoint::AfterMath => "the store stands after the math, which hides the wait",
                StorePoint::Spread => "the store is spread between the k-steps of the math",
            }
            .to_string(),
        );
    }
    facts.push(format!(
        "fragments are read {} k-step{} ahead",
        schedule.fragments_ahead,
        if schedule.fragments_ahead == 1 { "" } else { "s" }
    ));
    svg.text((0.0, bottom + 18.0), 12.0, Anchor::Start, "dim", &facts.join("; "));
    (svg, bottom + 26.0)
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
            math_behind: 0,
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
            let all = events(&s, 5);
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
