//! Wrong clocks: of workers, of the server, and clocks that jump while tasks are leased.

use super::postgres::{FAKETIME, tell_time};
use super::{Fleet, SIMULATION, ended, ends, until};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// False, said by name, where no program can be told another time.
fn can_tell_time() -> bool {
    let can = Path::new(FAKETIME).exists();
    if !can {
        super::missing::missing("libfaketime is not installed (Debian: faketime)");
    }
    can
}

/// A clock that shows this, and that every user may read.
fn clock(folder: &Path, name: &str, shows: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, format!("{shows}\n")).expect("a clock");
    path
}

const OPTIONS: &str = "tasks=16 trials=8 sleep=100 lease=60000 poll=100";

/// All tasks were done by their first holders, and all trials came.
fn nothing_lapsed(fleet: &Fleet, workers: Vec<Child>) {
    let said: Vec<String> = workers.into_iter().map(|worker| ends(worker, 0)).collect();
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND epoch = 1 AND lapses = 0"), 16, "{said:?}");
    assert_eq!(ended(&said).len(), 16);
    assert_eq!((fleet.count("tw.trial"), fleet.journals()), (16 * 8, 16 * 8));
}

pub fn clocks_of_workers_that_differ_and_jump_change_nothing() {
    let Some(fleet) = Fleet::new() else { return };
    if !can_tell_time() {
        return;
    }
    let folder = fleet.server.folder.path();
    let shown = ["+1h", "-1h", "+0 x2", "+0 x0.5"];
    let clocks: Vec<PathBuf> = shown.iter().enumerate().map(|(n, shows)| clock(folder, &format!("clock{n}"), shows)).collect();
    let start = |clock: &PathBuf| {
        let mut command = Command::new(SIMULATION);
        tell_time(&mut command, clock);
        let name = clock.file_name().expect("a name").to_string_lossy().into_owned();
        fleet.complete(command, &fleet.server.socket("tilewright_worker"), &name, OPTIONS).spawn().expect("a worker starts")
    };
    let workers: Vec<Child> = clocks.iter().map(start).collect();
    until("trials are shipped", || fleet.count("tw.trial") > 8);
    // Each jumps, two of them back.
    for (path, shows) in clocks.iter().zip(["-2h", "+2h", "+30d", "-30d"]) {
        std::fs::write(path, format!("{shows}\n")).expect("a clock");
    }
    nothing_lapsed(&fleet, workers);
}

/// All times that the server holds, moved against its clock: as if the clock had been set the other way.
fn set_clock(fleet: &Fleet, by: &str) {
    fleet.server.sql(&format!(
        "BEGIN; UPDATE tw.task SET until = until - interval '{by}', begun = begun - interval '{by}'; \
         UPDATE tw.worker SET seen = seen - interval '{by}'; \
         UPDATE tw.alive SET seen = seen - interval '{by}', since = since - interval '{by}'; COMMIT"
    ));
}

/// The server's clock is set while leases run: they hold, and a worker that is gone is still found out.
pub fn a_jump_of_the_servers_clock_is_no_lapse() {
    let Some(fleet) = Fleet::new() else { return };
    // In the first lease time of a server nothing lapses anyway.
    let has_run = "SELECT (pg_postmaster_start_time() < clock_timestamp() - interval '4 s')::int";
    until("the server has run for a lease time", || fleet.server.number(has_run) == 1);
    let options = OPTIONS.replace("60000", "4000");
    let workers: Vec<Child> = (0..4).map(|n| fleet.start(&format!("w{n}"), &options)).collect();
    for (n, by) in ["1h", "-2h", "30d"].into_iter().enumerate() {
        until("trials are shipped", || fleet.count("tw.trial") > 8 + 25 * n as i64);
        set_clock(&fleet, by);
    }
    nothing_lapsed(&fleet, workers);
    // A lease of a worker that is gone ends, although its time lies an hour ahead.
    let mut gone = fleet.start("gone", "run=later tasks=1 trials=200 sleep=50 lease=1000 poll=100");
    until("the task is leased", || fleet.count("tw.task WHERE state = 'leased'") == 1);
    gone.kill().expect("it can be killed");
    gone.wait().expect("it ends");
    set_clock(&fleet, "-1h");
    ends(fleet.start("next", "run=later tasks=1 trials=2 sleep=50 lease=1000 poll=100"), 0);
    assert_eq!(fleet.count("tw.task WHERE state = 'done' AND lapses = 1"), 1);
}
