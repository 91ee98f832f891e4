//! The parent: a child for each device, restarted where it dies, and the summary at the end.

use super::bars::Bars;
use super::overall::Overall;
use super::{AGAIN, RETIRED, classify, server, spec, tasks};
use crate::args::TuneArgs;
use crate::error::CliError;
use crate::problem::{self, Cases};
use crate::reference::{EXIT_CODES, FAILED, INTERRUPTED, SOME_FAILED, USAGE};
use crate::{records, report, session, table};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tilewright_device::Backend;
use tilewright_fleet::{Counted, HostQueue, Left, Restarts, cores, unique};
use tilewright_tune::Records;
use tilewright_tune::records::RecordsError;
use tilewright_tune::search::Cancel;

/// How often children are looked after.
const TICK: Duration = Duration::from_millis(100);
/// How often a line says how far all of them are.
const NEWS: Duration = Duration::from_secs(5);
/// How often bars count all problems: those of this host, and those on a server.
const COUNT: Duration = Duration::from_secs(1);
const ASK: Duration = Duration::from_secs(5);
/// How long children may take to end when told to.
const GRACE: Duration = Duration::from_secs(20);

/// Where the tasks are.
enum Tasks {
    /// On a server.
    Fleet,
    /// In a file of this host; one without a name is of this command alone.
    Host { file: PathBuf, run: String, own: bool },
}

/// A child and its device.
struct Worker {
    device: String,
    number: usize,
    cores: Option<Vec<u32>>,
    child: Child,
    restarts: Restarts,
    /// When a new child is to look at a device that was sick.
    looks_at: Option<Instant>,
}

/// Tunes the problems of the command line on several devices, or as one of many hosts.
pub fn run(args: &TuneArgs, quiet: bool) -> Result<(), CliError> {
    let start = Instant::now();
    if args.part.is_some() {
        return Err(CliError::usage("--part deals problems out beforehand; workers lease them: leave one of the two out"));
    }
    if args.svg.is_some() {
        return Err(CliError::usage(
            "--svg draws the searches of one process: leave it out, or tune on one device without --run",
        ));
    }
    let devices = devices(args.place.device.as_deref())?;
    if devices.len() == 1 && args.fleet.fleet.is_none() && args.fleet.run.is_none() {
        let place = crate::args::PlaceArgs { device: devices.into_iter().next(), ..args.place.clone() };
        return crate::tune::alone(args, &place, quiet);
    }
    if args.total.is_some() {
        return Err(CliError::usage("--total is shared by the searches of one process: give --budget, which each problem has"));
    }
    let cases = problem::cases(&args.problem, args.plan.workspace)?;
    session::constraint(&args.plan)?;
    let records = journal(args)?;
    let at = place_of_tasks(args, &records);
    check(args, &cases)?;
    let cancel = Cancel::default();
    session::on_interrupt(&cancel)?;
    if args.csv {
        table::csv(&crate::tune::COLUMNS, None)?;
    }
    let count = devices.len();
    let shares = if count > 1 { cores(count) } else { None };
    let share = |number: usize| shares.as_ref().and_then(|shares| shares.get(number).cloned());
    let show = Show::new(args, &at, &devices, quiet)?;
    let mut host = Host { records: &records, at: &at, show };
    let mut workers = Vec::new();
    for (number, device) in devices.into_iter().enumerate() {
        let cores = share(number);
        let child = host.start(&device, number, cores.as_deref(), &[])?;
        workers.push(Worker { device, number, cores, child, restarts: Restarts::new(), looks_at: None });
    }
    let code = watch(workers, &cancel, &mut host);
    host.show.finish();
    let code = code?;
    for reason in &cases.skipped {
        eprintln!("error: {}", crate::output::one_line(reason));
    }
    if let Tasks::Host { file, run, own } = &at {
        let Counted { left, .. } = HostQueue::count(file, run).map_err(classify)?;
        if !quiet {
            eprintln!("{}", summary(&left, count, start.elapsed()));
        }
        if *own {
            sweep(file);
        }
    }
    if let (Some(path), 0 | 3) = (&args.html, code) {
        let context = session::open_to_time(
            &crate::args::PlaceArgs { device: None, records: Some(records) },
            &args.plan,
            true,
            args.cache,
        )?;
        report::write(path, "tilewright", &context, &cases, args.cache)?;
        eprintln!("report: {}", path.display());
    }
    match code {
        0 if cases.skipped.is_empty() => Ok(()),
        0 => Err(CliError::HandedOver(SOME_FAILED)),
        code => Err(CliError::HandedOver(code)),
    }
}

/// How the user sees how far the workers of this host are.
enum Show {
    /// Not at all; or the only worker shows it.
    Not,
    /// Lines, every [`NEWS`] at most, if problems were tuned since the last one. `fleet status` says it of a run on a server.
    Lines { start: Instant, last: Instant, overall: Overall },
    /// Bars, on a terminal.
    Bars(Box<Bars>),
}

impl Show {
    fn new(args: &TuneArgs, at: &Tasks, devices: &[String], quiet: bool) -> Result<Show, CliError> {
        if quiet {
            return Ok(Show::Not);
        }
        if !args.json && !args.csv && std::io::stderr().is_terminal() {
            let bars = Bars::new(devices);
            match (at, &args.fleet.fleet) {
                (Tasks::Host { file, run, .. }, _) => bars.follow(COUNT, counter(file, run)),
                (Tasks::Fleet, url) => {
                    let (url, run) = (url.as_deref().unwrap_or_default(), args.fleet.run.as_deref().unwrap_or_default());
                    bars.follow(ASK, server::counter(url, run)?);
                }
            }
            return Ok(Show::Bars(Box::new(bars)));
        }
        let (start, overall) = (Instant::now(), Overall::default());
        Ok(if devices.len() > 1 { Show::Lines { start, last: start, overall } } else { Show::Not })
    }

    fn say(&self, text: &str) {
        match self {
            Show::Bars(bars) => bars.say(text),
            _ => eprintln!("{text}"),
        }
    }

    /// Shows what is new.
    fn tick(&mut self, at: &Tasks) {
        match self {
            Show::Not => {}
            Show::Lines { start, last, overall } => {
                let Tasks::Host { file, run, .. } = at else { return };
                if last.elapsed() < NEWS {
                    return;
                }
                *last = Instant::now();
                let ended = overall.ended();
                if let Some(counted) = counter(file, run)() {
                    overall.seconds = start.elapsed().as_secs_f64();
                    overall.count(counted);
                    if overall.ended() > ended {
                        eprintln!("{}", overall.text());
                    }
                }
            }
            Show::Bars(bars) => bars.draw(),
        }
    }

    fn finish(self) {
        if let Show::Bars(bars) = self {
            bars.finish();
        }
    }
}

/// Counts the problems in a file. One that is busy, or not there yet, is counted next time.
fn counter(file: &Path, run: &str) -> impl FnMut() -> Option<Counted> + Send + use<> {
    let (file, run) = (file.to_path_buf(), run.to_string());
    move || if file.exists() { HostQueue::count(&file, &run).ok() } else { None }
}

/// What all workers of this host share.
struct Host<'a> {
    records: &'a Path,
    at: &'a Tasks,
    show: Show,
}

fn summary(left: &Left, devices: usize, time: Duration) -> String {
    let more = if left.open + left.leased > 0 { format!(", {} left", left.open + left.leased) } else { String::new() };
    let failed = if left.failed > 0 { format!(", {} failed", left.failed) } else { String::new() };
    format!("{} problems tuned by {devices} workers in {:.1} s{failed}{more}", left.done, time.as_secs_f64())
}

/// The devices that `--device` names; `all` are those of the most capable back end.
fn devices(given: Option<&str>) -> Result<Vec<String>, CliError> {
    match given {
        None => Ok(vec![
            tilewright_device::default_device(&tilewright_device::Options::default())
                .map_err(CliError::failed)?
                .info()
                .id
                .clone(),
        ]),
        Some("all") => {
            let found: Vec<_> = tilewright_device::list().into_iter().filter_map(|listing| listing.device.ok()).collect();
            let of = |backend: Backend| -> Vec<String> {
                found.iter().filter(|info| info.backend == backend).map(|info| info.id.clone()).collect()
            };
            let all = Backend::ALL.into_iter().map(of).find(|ids| !ids.is_empty()).unwrap_or_default();
            if all.is_empty() {
                Err(CliError::failed("--device all: there is no device; see `tilewright devices`"))
            } else {
                Ok(all)
            }
        }
        Some(list) => {
            let all: Vec<String> = list.split(',').map(|id| id.trim().to_string()).collect();
            match all.iter().any(String::is_empty) {
                true => Err(CliError::usage(format!("--device {list}: write a list such as cuda:0,cuda:1, or all"))),
                false => Ok(all),
            }
        }
    }
}

/// The records file that the workers of this host share. Where the home is on a network file system, the file is in the temporary folder.
fn journal(args: &TuneArgs) -> Result<PathBuf, CliError> {
    let path = records::place(args.place.records.as_deref());
    match Records::open(&path) {
        Ok(_) => Ok(path),
        Err(RecordsError::Network { kind, .. }) if args.place.records.is_none() && args.fleet.fleet.is_some() => {
            let user = std::env::var("USER").unwrap_or_else(|_| "user".into());
            let there =
                std::env::temp_dir().join(format!("tilewright-{}", crate::output::file_name(&user))).join("records.sqlite");
            eprintln!("{} is on a network file system ({kind}): this node's trials go to {}", path.display(), there.display());
            Records::open(&there).map_err(CliError::failed)?;
            Ok(there)
        }
        Err(e) => Err(CliError::failed(e)),
    }
}

fn place_of_tasks(args: &TuneArgs, records: &Path) -> Tasks {
    if args.fleet.fleet.is_some() {
        return Tasks::Fleet;
    }
    let beside = |end: &str| {
        let mut path = records.as_os_str().to_os_string();
        path.push(end);
        PathBuf::from(path)
    };
    match &args.fleet.run {
        Some(run) => Tasks::Host { file: beside("-tasks"), run: run.clone(), own: false },
        // Commands in two containers may have one process id.
        None => Tasks::Host { file: beside(&format!("-tasks-{}", unique())), run: "this".into(), own: true },
    }
}

fn sweep(file: &Path) {
    for end in ["", "-wal", "-shm"] {
        let mut path = file.as_os_str().to_os_string();
        path.push(end);
        let _ = std::fs::remove_file(PathBuf::from(path));
    }
}

/// What is wrong is said once, before any child starts.
fn check(args: &TuneArgs, cases: &Cases) -> Result<(), CliError> {
    let Some(url) = &args.fleet.fleet else { return Ok(()) };
    let Some(run) = &args.fleet.run else {
        return Err(CliError::usage("--fleet needs --run NAME: the run that the nodes share"));
    };
    server::check(url, &spec(args, run), &tasks(cases))
}

impl Host<'_> {
    /// Starts a child in the place of one that ended.
    fn replace(&self, worker: &mut Worker) -> Result<(), CliError> {
        worker.looks_at = None;
        worker.child = self.start(&worker.device, worker.number, worker.cores.as_deref(), &["--looks-first"])?;
        Ok(())
    }

    /// Starts a child with the same arguments, and these, on one device.
    fn start(&self, device: &str, number: usize, cores: Option<&[u32]>, more: &[&str]) -> Result<Child, CliError> {
        let failed = |e: std::io::Error| CliError::failed(format!("no worker could be started: {e}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = match cores.filter(|_| has_taskset()) {
            None => Command::new(&program),
            Some(cores) => {
                let list = cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                let mut command = Command::new("taskset");
                command.args(["-c", &list]).arg(&program);
                command
            }
        };
        command.args(without(std::env::args_os().skip(1), &["--device", "--records"]));
        command.args(["--device", device, "--worker", &number.to_string()]).args(more).arg("--records").arg(self.records);
        if let Tasks::Host { file, run, own } = self.at {
            command.arg("--queue").arg(file);
            if *own {
                command.args(["--run", run]);
            }
        }
        match &self.show {
            Show::Not => &mut command,
            // Bars of several workers would overwrite each other.
            Show::Lines { .. } => command.arg("--quiet"),
            Show::Bars(_) => command.arg("--tell-parent").stdout(Stdio::piped()).stderr(Stdio::piped()),
        };
        // Its end tells a child that the parent is gone.
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(failed)?;
        if let Show::Bars(bars) = &self.show {
            bars.listen(number, &mut child);
        }
        Ok(child)
    }
}

fn has_taskset() -> bool {
    let tried = Command::new("taskset").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    cfg!(target_os = "linux") && tried.is_ok_and(|status| status.success())
}

/// Arguments without these options and their values.
fn without(args: impl Iterator<Item = OsString>, options: &[&str]) -> Vec<OsString> {
    let mut kept = Vec::new();
    let mut args = args;
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        if options.contains(&&*text) {
            args.next();
        } else if !options.iter().any(|option| text.strip_prefix(option).is_some_and(|rest| rest.starts_with('='))) {
            kept.push(arg);
        }
    }
    kept
}

impl Worker {
    /// After an end that was not meant: why no new child is to follow. Otherwise one does, at once or as [`Worker::looks_at`] says.
    fn ended(&mut self, status: ExitStatus) -> Option<String> {
        if status.code() == Some(RETIRED) {
            self.looks_at = self.restarts.after_retirement().map(|pause| Instant::now() + pause);
            return self.looks_at.is_none().then(|| "stays sick".into());
        }
        (!self.restarts.again()).then(|| format!("keeps dying ({status})"))
    }
}

/// Waits for all children; the exit code that stands for theirs.
fn watch(mut workers: Vec<Worker>, cancel: &Cancel, host: &mut Host<'_>) -> Result<u8, CliError> {
    let mut codes = Vec::new();
    let mut told: Option<Instant> = None;
    while !workers.is_empty() {
        std::thread::sleep(TICK);
        host.show.tick(host.at);
        if cancel.is_cancelled() && told.is_none() {
            told = Some(Instant::now());
            workers.iter_mut().for_each(|worker| drop(worker.child.stdin.take()));
        }
        let mut running = Vec::new();
        for mut worker in workers {
            let failed = |e: std::io::Error| CliError::failed(format!("a worker cannot be waited for: {e}"));
            if let Some(at) = worker.looks_at.filter(|_| !cancel.is_cancelled()) {
                if Instant::now() >= at {
                    host.replace(&mut worker)?;
                }
                running.push(worker);
                continue;
            }
            let Some(status) = worker.child.try_wait().map_err(failed)? else {
                if told.is_some_and(|since| since.elapsed() > GRACE) {
                    let _ = worker.child.kill();
                }
                running.push(worker);
                continue;
            };
            if cancel.is_cancelled() {
                codes.push(final_code(status).unwrap_or(130));
            } else if let Some(code) = final_code(status) {
                codes.push(code);
            } else if let Some(reason) = worker.ended(status) {
                host.show.say(&format!("error: the worker on {} {reason}; it is not started again", worker.device));
                codes.push(1);
            } else {
                if let Some(at) = worker.looks_at {
                    let pause = at.saturating_duration_since(Instant::now()).as_secs_f64();
                    host.show.say(&format!("the worker on {} left; a new one looks at it in {pause:.0} s", worker.device));
                } else {
                    host.show.say(&format!("the worker on {} died ({status}); a new one goes on", worker.device));
                    host.replace(&mut worker)?;
                }
                running.push(worker);
            }
        }
        // Others found nothing left: who only waits finds that, too.
        if !codes.is_empty() && running.iter().all(|worker| worker.looks_at.is_some()) {
            running.iter_mut().for_each(|worker| worker.looks_at = Some(Instant::now()));
        }
        workers = running;
    }
    let worst = [INTERRUPTED, USAGE, FAILED, SOME_FAILED].into_iter().find(|code| codes.contains(code));
    Ok(worst.unwrap_or(0))
}

/// The exit code of a child that ended as it meant to; `None` for one that died.
fn final_code(status: ExitStatus) -> Option<u8> {
    let code = status.code().filter(|code| ![AGAIN, RETIRED].contains(code))?;
    EXIT_CODES.iter().map(|known| known.code).find(|known| i32::from(*known) == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_the_arguments_of_its_parent_but_for_its_place() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let given = words("tune --cases a.csv --device all --records=x --budget 3 --device=emu,emu --records y --devices");
        assert_eq!(without(given.into_iter(), &["--device", "--records"]), words("tune --cases a.csv --budget 3 --devices"));
    }

    #[cfg(unix)]
    #[test]
    fn a_worker_whose_device_is_sick_is_started_later() {
        use std::os::unix::process::ExitStatusExt;
        let child = Command::new("true").spawn().unwrap();
        let mut worker =
            Worker { device: "cuda:0".into(), number: 0, cores: None, child, restarts: Restarts::new(), looks_at: None };
        let code = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(final_code(code(RETIRED)), None);
        assert_eq!((worker.ended(code(RETIRED)), worker.looks_at.is_some()), (None, true));
        worker.looks_at = None;
        assert_eq!((worker.ended(code(AGAIN)), worker.looks_at), (None, None));
        let ends: Vec<_> = (0..12).map(|_| worker.ended(code(RETIRED))).collect();
        assert!(ends[0].is_none() && ends[11].as_ref().is_some_and(|reason| reason == "stays sick"), "{ends:?}");
        worker.child.wait().unwrap();
    }

    #[test]
    fn lists_of_devices() {
        assert_eq!(devices(Some("emu, emu")).unwrap(), ["emu", "emu"]);
        assert!(matches!(devices(Some("emu,,emu")), Err(CliError::Usage(e)) if e.contains("cuda:0,cuda:1")));
        assert!(!devices(Some("all")).unwrap().is_empty());
    }
}
