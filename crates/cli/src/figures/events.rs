//! The main loop's schedule played through: which stage works on which k-tile from when to when, and who waits. [`super::timeline`]
//! draws it.

use std::ops::Range;
use tilewright_gen::kernel::schedule::{MathPart, Step, lower};
use tilewright_gen::plan::Schedule;

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
    /// Waves that copy wait until a stage is free, or until what they copied has come.
    WaitToCopy,
    /// Waves wait for what they fetched.
    WaitToStore,
    /// Waves that compute wait for a k-tile.
    WaitForTile,
    /// They wait until the other team's math is over (ping-pong).
    WaitForTurn,
    /// The stage of a k-tile has been read.
    Free,
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
    /// Which k-steps, of math.
    pub part: Option<MathPart>,
    /// Start, in units of a tenth of one k-tile's math.
    pub start: u32,
    /// Length in the same unit. A fetch or copy lasts until its data is waited for.
    pub length: u32,
}

const MATH: u32 = 10;
/// Share of it that a carried schedule computes after the barrier.
const TAIL: u32 = 3;
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
    /// The tile fetched last.
    fetched: u32,
    /// When each tile has come, and when its buffer is free again.
    arrives: Vec<u32>,
    read: Vec<u32>,
    events: Vec<Event>,
}

/// The first k-tiles of a schedule laid out in time, step by step as the generator emits them. Memory is taken to need 0.6 of one
/// k-tile's math to answer. A k-tile has `k_steps`.
pub fn events(schedule: &Schedule, k_steps: u32, shown: Extent) -> Vec<Event> {
    let lowered = lower(schedule, k_steps);
    let teams = schedule.roles.map_or(1, |r| r.teams.max(1));
    let all = (shown.results * shown.k_tiles) as usize;
    let mut run = Run {
        schedule: schedule.clone(),
        load: 0,
        math: vec![0; teams as usize],
        apart: schedule.roles.is_some(),
        turn: 0,
        fetched: 0,
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
            run.put(Stage::Epilogue, result, team, start..start + EPILOGUE);
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
    fn put(&mut self, stage: Stage, tile: u32, team: u32, time: Range<u32>) {
        let buffers = self.schedule.buffers.max(1);
        let buffer = (!matches!(stage, Stage::Fetch | Stage::Epilogue | Stage::Barrier)).then_some(tile % buffers);
        let (start, length) = (time.start, time.end - time.start);
        self.events.push(Event { stage, tile, buffer, team, part: None, start, length });
    }
    /// Time from `now` until `until`, if that is later, is spent waiting.
    fn wait(&mut self, stage: Stage, tile: u32, team: u32, now: u32, until: u32) -> u32 {
        if until > now {
            self.put(stage, tile, team, now..until);
        }
        now.max(until)
    }

    /// One step of tile `tile`, of those before `last`: what it puts on the timeline, and how long its waves are busy with it.
    fn step(&mut self, step: Step, tile: u32, last: u32, team: u32) {
        let at = |times: &[u32], tile: u32| times.get(tile as usize).copied().unwrap_or(0);
        let copies = self.schedule.in_pipeline() || self.schedule.copied().1;
        let fetch = if copies { Stage::Copy } else { Stage::Fetch };
        match step {
            Step::WaitCopies { pending } => {
                let awaited = self.fetched.saturating_sub(pending);
                let stage = if self.apart { Stage::WaitToCopy } else { Stage::WaitForTile };
                let now = self.wait(stage, awaited, team, self.load, at(&self.arrives, awaited));
                self.set_load(now);
            }
            // A buffer is free when the tile that was in it before has been read.
            Step::Acquire { ahead } => {
                if let Some(before) = (tile + ahead).checked_sub(self.schedule.buffers.max(1)) {
                    let now = self.wait(Stage::WaitToCopy, tile + ahead, team, self.load, at(&self.read, before));
                    self.set_load(now);
                }
            }
            Step::Await => {
                let now = self.wait(Stage::WaitForTile, tile, team, self.math(team), at(&self.arrives, tile));
                self.set_math(team, now);
            }
            Step::TakeTurn => {
                let now = self.wait(Stage::WaitForTurn, tile, team, self.math(team), self.turn);
                self.set_math(team, now);
            }
            // The instructions of the last k-tiles may be unfinished.
            Step::HandOn => self.turn = self.math(team) - MATH * self.schedule.math_in_flight.unwrap_or(0).min(1),
            Step::Drain { .. } | Step::Promote { .. } => {}
            Step::Release { distance } => {
                let now = self.math(team);
                let Some(freed) = tile.checked_sub(distance) else { return };
                if let Some(read) = self.read.get_mut(freed as usize) {
                    *read = now;
                    self.put(Stage::Free, freed, team, now..now);
                }
            }
            Step::Barrier => {
                let now = self.load.max(self.math(team));
                self.put(Stage::Barrier, tile, team, now..now);
                (self.load, self.math[0]) = (now, now);
            }
            // After the last tile nothing is drawn, but counted.
            Step::Fetch { ahead } if tile + ahead >= last => self.fetched = tile + ahead,
            Step::Fetch { ahead } => {
                self.fetched = tile + ahead;
                if let Some(arrives) = self.arrives.get_mut((tile + ahead) as usize) {
                    *arrives = self.load + WAIT;
                }
                self.put(fetch, tile + ahead, team, self.load..self.load + WAIT);
                self.set_load(self.load + ISSUE);
            }
            // With both operands copied there is nothing left to store.
            Step::Store { ahead } if tile + ahead < last && fetch == Stage::Fetch => {
                let start = self.wait(Stage::WaitToStore, tile + ahead, team, self.load, at(&self.arrives, tile + ahead));
                self.put(Stage::Store, tile + ahead, team, start..start + STORE);
                self.set_load(start + STORE);
            }
            Step::Store { .. } | Step::Fragments | Step::Fence => {}
            Step::Math { part, store } => {
                let start = self.math(team);
                let length = match part {
                    MathPart::Whole => MATH,
                    MathPart::Head => MATH - TAIL,
                    MathPart::Tail => TAIL,
                };
                self.put(Stage::Math, tile, team, start..start + length);
                if let Some(event) = self.events.last_mut() {
                    event.part = Some(part);
                }
                self.set_math(team, start + length);
                if let Some(ahead) = store.filter(|ahead| tile + ahead < last) {
                    let begin = at(&self.arrives, tile + ahead).max(start + 2);
                    let end = (start + length).max(begin + STORE);
                    self.put(Stage::Store, tile + ahead, team, begin..end);
                    self.set_load(end);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_gen::plan::{StorePoint, Transport};

    fn schedule(ahead: u32, buffers: u32, store: StorePoint) -> Schedule {
        Schedule {
            fetch_ahead: ahead,
            buffers,
            store,
            fragments_ahead: 0,
            math_in_flight: None,
            promoted: None,
            copies: [Transport::Registers, Transport::Registers],
            second: None,
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
            let all = events(&s, 12, Extent { results: 1, k_tiles: 5 });
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

    #[test]
    fn waits_end_when_copies_have_come_and_ends_of_math_are_after_barriers() {
        let copies = [Transport::Async, Transport::Async];
        let s = Schedule { copies, fragments_ahead: 1, ..schedule(2, 3, StorePoint::AtOnce) };
        let all = events(&s, 4, Extent { results: 1, k_tiles: 5 });
        let of = |stage: Stage| all.iter().filter(move |e| e.stage == stage);
        assert!(of(Stage::WaitForTile).count() > 0);
        for wait in of(Stage::WaitForTile) {
            assert!(of(Stage::Copy).any(|e| e.tile == wait.tile && e.start + e.length == wait.start + wait.length), "{wait:?}");
        }
        for tile in 0..5 {
            let parts: Vec<&Event> = of(Stage::Math).filter(|e| e.tile == tile).collect();
            assert_eq!(parts.iter().map(|e| e.part).collect::<Vec<_>>(), [Some(MathPart::Head), Some(MathPart::Tail)]);
            assert_eq!(parts.iter().map(|e| e.length).sum::<u32>(), MATH);
            let crossed = |barrier: &Event| parts[0].start + parts[0].length <= barrier.start && barrier.start <= parts[1].start;
            assert!(of(Stage::Barrier).any(crossed), "tile {tile}");
        }
        // Three k-steps do not alternate between two sets of fragments: nothing crosses a barrier.
        let whole = events(&s, 3, Extent { results: 1, k_tiles: 5 });
        assert!(whole.iter().all(|e| e.part.is_none_or(|part| part == MathPart::Whole)));
    }
}
