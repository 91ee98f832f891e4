//! The schedule as a timeline. It shows which stage of the main loop works on which k-tile, in which buffer, on which waves, and
//! who waits for whom.

use super::events::{Event, Extent, Stage, events};
use super::svg::{Anchor, Area, Drawing, Point, Svg, hue, point};
use super::{ROOM, SMALL, letters};
use tilewright::explain::facts::{Facts, RoleFact, Span, Subject, plural};
use tilewright_gen::kernel::schedule::MathPart;
use tilewright_gen::plan::{KernelSpec, Schedule, StorePoint, Transport};

/// Colour of what is in registers, on the way to shared memory.
const STAGING: &str = "#8893a0";
/// Colour of results on their way to memory.
const EXIT: &str = "#5b6675";

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
        let Span { first, last } = role.waves;
        if first == last { format!("{wave} {first}") } else { format!("{wave}s {first}-{last}") }
    };
    let who = |name: &str| facts.roles.iter().find(|r| r.role == name).or(facts.roles.first()).map_or(String::new(), of);
    // One thread issues all bulk copies.
    let issues = schedule.copies.iter().all(|copy| matches!(copy, Transport::Bulk(_)));
    let thread = facts.roles.iter().find(|r| r.role == "copy").or(facts.roles.first()).map(|r| (r.threads.first, r.waves.first));
    let copies = match thread.filter(|_| issues) {
        Some((thread, number)) => format!("thread {thread} ({wave} {number})"),
        None => who("copy"),
    };
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
        let copy = lane("copy", "a line per stage", copies, &[Stage::Copy, Stage::WaitToCopy] as &'static [Stage]);
        out.push(Lane { by_buffer: true, ..copy });
        let (teams, owners) =
            (subject.spec.teams(), subject.spec.tiling.math_threads() / subject.spec.tiling.unit.family().lanes);
        let what = if owners > 1 { format!("{owners} {}s, in parallel", subject.owner()) } else { "from the stage".into() };
        for team in 0..teams {
            let math = lane(
                "math, store C",
                &what,
                who("math"),
                &[Stage::Math, Stage::Epilogue, Stage::WaitForTile, Stage::WaitForTurn],
            );
            let waves = facts.waves.len() as u32;
            let name = if teams > 1 { format!("{wave}s {}-{}", team * waves, (team + 1) * waves - 1) } else { math.who.clone() };
            let what = if teams > 1 { format!("warpgroup {team}") } else { math.what.clone() };
            out.push(Lane { team: Some(team), who: name, what, ..math });
        }
        return out;
    }
    if schedule.copied().1 {
        let copy = lane("copy", "global to shared, cp.async", who("copy"), &[Stage::Copy, Stage::WaitToCopy]);
        out.push(Lane { by_buffer: true, ..copy });
    } else {
        out.push(lane("fetch", "global to registers", who("copy"), &[Stage::Fetch]));
        out.push(lane("store", "registers to shared", who("copy"), &[Stage::Store, Stage::WaitToStore]));
    }
    out.push(lane("math", "shared to accumulators", who("math"), &[Stage::Math, Stage::WaitForTile, Stage::WaitForTurn]));
    out
}

/// Draws a schedule. Gives the drawing and its height.
pub fn draw(subject: &Subject, facts: &Facts) -> Drawing {
    let mut svg = Svg::default();
    let schedule = &subject.spec.schedule;
    let k_tiles = subject.works.first().map_or(1, |w| w.k_tiles);
    let shown = extent(subject.spec, k_tiles);
    let events = events(schedule, subject.spec.tiling.k_steps(), shown);
    let end = events.iter().map(|e| e.start + e.length).max().unwrap_or(1).max(1);
    let (left, width) = (172.0, ROOM);
    let top = head(&mut svg, schedule, shown, k_tiles, &events);
    let scale = (width - left) / f64::from(end);
    let x = |at: u32| left + f64::from(at) * scale;
    let rows = lanes(subject, facts);
    let high = |lane: &Lane| if lane.by_buffer { (17.0 * f64::from(schedule.buffers)).max(48.0) } else { 48.0 };
    let bottom = top + rows.iter().map(|lane| high(lane) + 8.0).sum::<f64>();
    let mut y = top;
    let mut labels = Vec::new();
    for lane in &rows {
        let height = high(lane);
        for (i, (class, text)) in [("h2", &lane.name), ("dim", &lane.who), ("dim", &lane.what)].into_iter().enumerate() {
            svg.text(point(0.0, y + 12.0 + 15.0 * i as f64), if i == 0 { 13.0 } else { SMALL }, Anchor::Start, class, text);
        }
        svg.rect(left, y, width - left, height, "soft");
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
            let area = Area { x: x(event.start), y: y + f64::from(line) * h, w: f64::from(event.length) * scale, h };
            labels.extend(event_box(&mut svg, event, shown, area));
        }
        // What has been read goes back to the waves that copy.
        for free in events.iter().filter(|e| e.stage == Stage::Free && lane.team == Some(e.team)) {
            let line = f64::from(free.buffer.unwrap_or(0) + 1) * high(&rows[0]) / f64::from(schedule.buffers.max(1));
            svg.arrow(&[point(x(free.start), y), point(x(free.start), top + line - 2.0)]);
        }
        y += height + 8.0;
    }
    for event in events.iter().filter(|e| e.stage == Stage::Barrier) {
        svg.line(point(x(event.start), top - 6.0), point(x(event.start), bottom), "wall");
    }
    for Label { at, class, text } in labels {
        svg.text(at, SMALL, Anchor::Middle, class, &text);
    }
    let mut at = bottom + 16.0;
    for text in words(subject, facts, shown, &events) {
        for part in super::wrap(&text, letters(ROOM, SMALL)) {
            svg.text(point(0.0, at), SMALL, Anchor::Start, "", &part);
            at += 17.0;
        }
    }
    Drawing { svg, height: at }
}

/// How much is drawn, and what colours and marks mean. Gives where the picture begins.
fn head(svg: &mut Svg, schedule: &Schedule, shown: Extent, k_tiles: u64, events: &[Event]) -> f64 {
    let of = |tiles: u32| if u64::from(tiles) < k_tiles { format!("{tiles} of {k_tiles}") } else { format!("all {tiles}") };
    let (drawn, numbers) = match shown.results {
        1 => (format!("{} k-tiles", of(shown.k_tiles)), "numbers are k-tiles"),
        results => (
            format!("{results} tiles of C of one work-group and {} k-tiles of each", of(shown.k_tiles)),
            "2:k1 is k-tile 1 of the work-group's tile 2 of C",
        ),
    };
    let mut y = 6.0;
    let drawn = format!("Drawn with {drawn}. Time from left to right, lengths are schematic.");
    for line in super::wrap(&drawn, letters(ROOM, SMALL)) {
        svg.text(point(0.0, y), SMALL, Anchor::Start, "", &line);
        y += 17.0;
    }
    let mut key: Vec<(&str, String)> =
        (0..schedule.buffers.max(1)).map(|stage| (hue(stage as usize), format!("stage {stage} of shared memory"))).collect();
    let has = |stages: &[Stage]| events.iter().any(|e| stages.contains(&e.stage));
    key.extend(has(&[Stage::Fetch]).then(|| (STAGING, "under way to registers, touches no stage".into())));
    key.extend(has(&[Stage::Epilogue]).then(|| (EXIT, "C is stored".into())));
    y = svg.key(point(0.0, y + 3.0), ROOM, &key);
    let mut marks = vec![numbers];
    marks.extend(has(&[Stage::Barrier]).then_some("lines through all lanes: barriers of the work-group"));
    marks.extend(has(&WAITS).then_some("frames: waiting"));
    marks.extend(has(&[Stage::Free]).then_some("arrows: a stage has been read and is free for the next copy"));
    for line in super::wrap(&marks.join("; "), letters(ROOM, SMALL)) {
        svg.text(point(0.0, y), SMALL, Anchor::Start, "dim", &line);
        y += 17.0;
    }
    y + 3.0
}

/// Stages in which waves wait.
const WAITS: [Stage; 4] = [Stage::WaitToCopy, Stage::WaitToStore, Stage::WaitForTile, Stage::WaitForTurn];

/// Text in the middle of an event's box.
struct Label {
    at: Point,
    class: &'static str,
    text: String,
}

fn event_box(svg: &mut Svg, event: &Event, shown: Extent, area: Area) -> Option<Label> {
    let (x, y, w, h) = (area.x, area.y, (area.w - 1.5).max(2.0), area.h - 1.5);
    let (result, k) = (event.tile / shown.k_tiles.max(1), event.tile % shown.k_tiles.max(1));
    let waits = WAITS.contains(&event.stage);
    let labels = match (event.stage, event.buffer) {
        (Stage::WaitForTurn, _) => vec!["waits its turn".into(), "turn".into()],
        _ if waits => vec!["wait".into()],
        (Stage::Epilogue, _) => vec![format!("store tile {}", event.tile), format!("store {}", event.tile), "C".into()],
        _ if event.part == Some(MathPart::Tail) => vec![format!("end of k{k}"), format!("k{k} end"), "end".into()],
        _ if event.part == Some(MathPart::Head) => {
            vec![format!("k-tile {k}, but its end"), format!("k-tile {k}"), format!("k{k}")]
        }
        (_, Some(_)) if shown.results > 1 => {
            vec![format!("tile {result}, k-tile {k}"), format!("{result}:k{k}"), format!("k{k}")]
        }
        _ => vec![format!("k-tile {k}"), format!("k{k}")],
    };
    let colour = match event.stage {
        Stage::Epilogue => EXIT,
        Stage::Fetch => STAGING,
        _ => hue(event.buffer.unwrap_or(0) as usize),
    };
    if waits {
        svg.outline(x + 0.75, y + 0.75, w, h, STAGING, 1.0);
    } else {
        svg.fill(x + 0.75, y + 0.75, w, h, colour, 0.92);
    }
    let text = labels.into_iter().find(|label| label.len() <= letters(w, SMALL) && h >= SMALL)?;
    let class = if waits { "dim" } else { "onhue h2" };
    Some(Label { at: point(x + w / 2.0, y + h / 2.0 + 4.2), class, text })
}

fn words(subject: &Subject, facts: &Facts, shown: Extent, events: &[Event]) -> Vec<String> {
    let (schedule, wave, t) = (&subject.spec.schedule, facts.wave, &subject.spec.tiling);
    let mut out = Vec::new();
    let buffers = plural(schedule.buffers.into(), "stage");
    if schedule.in_pipeline() {
        out.push(match schedule.roles {
            Some(_) => format!("{buffers} (circular buffer): producers run ahead as far as stages are free"),
            None => format!("{buffers} (circular buffer): copies run {} ahead", plural(schedule.fetch_ahead.into(), "k-tile")),
        });
        if schedule.math_in_flight > Some(0) {
            out.push(
                "the instructions of a k-tile run on while the next one's are issued: a stage is free one k-tile later".into(),
            );
            if subject.spec.teams() > 1 {
                let last = shown.k_tiles - 1;
                out.push(format!(
                    "so 1:k0 overlaps 0:k{last}: a warpgroup hands on its turn when the instructions of its last k-tile are issued, \
                     not when they are done"
                ));
            }
        }
        let owners = t.math_threads() / t.unit.family().lanes;
        if owners > 1 && schedule.roles.is_some() {
            let apart = plural(u64::from(schedule.buffers) - 1, "k-tile");
            out.push(format!(
                "the {owners} {}s of the math lane run independently: each waits for full stages, and a stage is free when all have read it. \
                 They are {apart} apart at most",
                subject.owner()
            ));
        }
        for barrier in &facts.barriers {
            out.push(format!("barriers {}[{}]: {}", barrier.name, barrier.count, barrier.meaning));
        }
        return out;
    }
    let ahead = plural(schedule.fetch_ahead.into(), "k-tile");
    if schedule.copied().1 {
        out.push(format!("{buffers} of shared memory; copies run {ahead} ahead of the math"));
    } else {
        out.push(format!("{buffers} of shared memory; fetches run {ahead} ahead of the math"));
        out.push(
            match schedule.store {
                StorePoint::AtOnce => "the store waits for its data at once",
                StorePoint::AfterMath => "the store follows the math, which hides the wait",
                StorePoint::Spread => "the store is spread between the k-steps of the math",
            }
            .to_string(),
        );
    }
    let steps = plural(schedule.fragments_ahead.into(), "k-step");
    out.push(match schedule.fragments_ahead {
        0 => "fragments are read where they are used".into(),
        _ => format!("fragments are read from shared memory {steps} before they are used"),
    });
    if events.iter().any(|e| e.part == Some(MathPart::Tail)) {
        let (last, are) = if schedule.fragments_ahead == 1 { ("the last", "is") } else { ("the last two", "are") };
        out.push(format!(
            "math in two pieces: {last} of the {} k-steps of a k-tile (its end) {are} computed after the barrier, from fragments read before it, \
             while the first fragments of the next k-tile are read",
            t.k_steps()
        ));
    }
    out.push(format!("at a barrier all {wave}s wait for the last one"));
    out
}
