//! Workers with simulated trials on the real statements of a server.
//!
//! `fleet-simulation worker URL KEY=VALUE...` is one worker: its trials sleep, and it can fail, abort and lie as a test wants.
//! `fleet-simulation load URL KEY=VALUE...` runs many workers as threads and prints claims per second, their latency and table sizes.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tilewright_fleet::{
    Address, Attempt, Control, End, FleetError, GpuLock, Identity, Journal, Lease, Line, NewTask, Patience, Pulled, Queue,
    RunSpec, Server, Tuner, Verdict, digest, work,
};

fn main() {
    let mut args = std::env::args().skip(1);
    let (mode, url) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let options: HashMap<String, String> =
        args.filter_map(|arg| arg.split_once('=').map(|(key, value)| (key.into(), value.into()))).collect();
    let options = Options(options);
    let code = match mode.as_str() {
        "worker" => worker(&url, &options),
        "load" => load(&url, &options).map(|()| 0),
        _ => Err("write: fleet-simulation worker|load URL KEY=VALUE...".into()),
    };
    std::process::exit(code.unwrap_or_else(|e| {
        eprintln!("error: {e}");
        1
    }));
}

struct Options(HashMap<String, String>);

impl Options {
    fn text(&self, key: &str, default: &str) -> String {
        self.0.get(key).cloned().unwrap_or_else(|| default.into())
    }
    fn number(&self, key: &str, default: f64) -> f64 {
        self.0.get(key).and_then(|text| text.parse().ok()).unwrap_or(default)
    }
    fn millis(&self, key: &str, default: f64) -> Duration {
        Duration::from_secs_f64(self.number(key, default) / 1000.0)
    }
    fn run(&self) -> RunSpec {
        RunSpec {
            name: self.text("run", "night"),
            options: self.text("options", "{}"),
            lease: self.millis("lease", 60_000.0),
            extend: self.0.contains_key("extend"),
        }
    }
    fn tasks(&self) -> Vec<NewTask> {
        let count = self.number("tasks", 10.0) as u32;
        (0..count).map(|n| NewTask { problem: format!("p{n}"), work: f64::from(n % 1000) }).collect()
    }
}

/// Trials in a file, a line each: number, problem, plan.
struct File {
    file: Mutex<std::fs::File>,
    trials: Mutex<Vec<Trial>>,
}

struct Trial {
    number: i64,
    problem: String,
    plan: String,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl File {
    fn open(path: &Path) -> Result<File, String> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let read = |line: &str| {
            let mut words = line.split(' ');
            Some(Trial { number: words.next()?.parse().ok()?, problem: words.next()?.into(), plan: words.next()?.into() })
        };
        let trials = text.lines().filter_map(read).collect();
        let file =
            std::fs::File::options().create(true).append(true).open(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(File { file: Mutex::new(file), trials: Mutex::new(trials) })
    }

    fn add(&self, problem: &str, plan: &str) {
        let mut trials = locked(&self.trials);
        let number = trials.last().map_or(0, |trial| trial.number) + 1;
        let line = format!("{number} {problem} {plan}\n");
        // A journal that cannot be written ends the worker: nothing may be shipped that it does not hold.
        locked(&self.file).write_all(line.as_bytes()).unwrap_or_else(|e| panic!("the journal: {e}"));
        trials.push(Trial { number, problem: problem.into(), plan: plan.into() });
    }
}

impl Journal for File {
    fn after(&self, problem: &str, number: i64, most: usize) -> Result<Vec<Line>, String> {
        let line = |t: &Trial| Line { number: t.number, text: format!("{{\"name\":\"{}\",\"plan\":\"{}\"}}", t.problem, t.plan) };
        let trials = locked(&self.trials);
        Ok(trials.iter().filter(|t| t.number > number && t.problem == problem).take(most).map(line).collect())
    }

    fn deepened(&self, _: &str) -> Result<Vec<Line>, String> {
        Ok(Vec::new())
    }
}

/// A search that sleeps.
struct Sleeper<'a> {
    journal: &'a File,
    cut: &'a AtomicBool,
    trials: u64,
    sleep: Duration,
    /// The device fails all it is given.
    sick: bool,
    /// `problem/plan` that ends the process, as a plan that takes the host down.
    deadly: String,
    /// A problem that no device can tune.
    hopeless: String,
}

impl Tuner for Sleeper<'_> {
    fn tune(&mut self, lease: &Lease, _: Vec<Pulled>, hung: Vec<String>, control: &Control<'_>) -> Attempt {
        self.cut.store(false, Ordering::Relaxed);
        if self.sick {
            return Attempt::DeviceFailed("the device is sick".into());
        }
        if lease.problem == self.hopeless {
            return Attempt::Failed("no plan".into());
        }
        for trial in lease.spent as u64..self.trials {
            if self.cut.load(Ordering::Relaxed) {
                return Attempt::Cut;
            }
            let plan = format!("x{trial}");
            if hung.contains(&plan) {
                println!("hung {} {plan}", lease.problem);
                continue;
            }
            if control.is_careful() {
                control.marker()(&plan);
            }
            if format!("{}/{plan}", lease.problem) == self.deadly {
                std::process::abort();
            }
            std::thread::sleep(self.sleep);
            self.journal.add(&lease.problem, &plan);
            control.progress((trial + 1) as f64 - lease.spent);
        }
        Attempt::Done { best_us: 1.0, best_plan: "x0".into(), first_us: 2.0 }
    }

    fn is_sound(&mut self) -> bool {
        !self.sick
    }
}

/// Asks again while the server is away.
fn patiently<T>(mut ask: impl FnMut() -> Result<T, FleetError>) -> Result<T, String> {
    for _ in 0..100 {
        match ask() {
            Err(e) if e.is_passing() => std::thread::sleep(Duration::from_millis(200)),
            other => return other.map_err(|e| e.to_string()),
        }
    }
    ask().map_err(|e| e.to_string())
}

fn worker(url: &str, options: &Options) -> Result<i32, String> {
    let place = PathBuf::from(options.text("journal", "journal"));
    let journal = File::open(&place)?;
    let gpu = options.text("gpu", "");
    let mut lock = None;
    while lock.is_none() && !gpu.is_empty() {
        let folder = PathBuf::from(options.text("locks", "."));
        lock = GpuLock::take(&folder, &gpu).map_err(|e| e.to_string())?;
        if lock.is_none() {
            println!("{gpu} is busy");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let identity = Identity {
        id: format!("{}-{}", std::process::id(), digest(&format!("{:?}", std::time::SystemTime::now()))),
        host: options.text("host", "here"),
        gpu,
        lock: lock.as_ref().map_or_else(String::new, |lock| lock.token.clone()),
        class: options.text("class", "simulated"),
        version: "simulation".into(),
        journal: digest(&place.display().to_string()),
    };
    let address = Address::parse(url).map_err(|e| e.to_string())?;
    let mut server = Server::new(&address, identity).map_err(|e| e.to_string())?;
    patiently(|| server.join(&options.run(), &options.tasks()))?;
    while !patiently(|| server.gpu_is_free())? {
        println!("another worker has the GPU");
        std::thread::sleep(Duration::from_millis(200));
    }
    let cut = AtomicBool::new(false);
    let mut tuner = Sleeper {
        journal: &journal,
        cut: &cut,
        trials: options.number("trials", 10.0) as u64,
        sleep: options.millis("sleep", 10.0),
        sick: options.0.contains_key("sick"),
        deadly: options.text("deadly", ""),
        hopeless: options.text("hopeless", ""),
    };
    let patience = Patience { no_wait: options.0.contains_key("no-wait"), poll: options.millis("poll", 300.0) };
    let stop = || cut.store(true, Ordering::Relaxed);
    let queue: Arc<Mutex<Box<dyn Queue>>> = Arc::new(Mutex::new(Box::new(server)));
    let verdict = work(&queue, &mut tuner, &journal, patience, &|| false, &stop).map_err(|e| e.to_string())?;
    println!("{verdict:?}");
    Ok(match verdict {
        Verdict::Finished(left) if left.failed + left.refused > 0 => 3,
        Verdict::Finished(_) => 0,
        Verdict::Stopped => 130,
        Verdict::DeviceLost(_) | Verdict::Retired(_) => 1,
    })
}

/// Claims of many workers: how many a second, and how long one takes.
fn load(url: &str, options: &Options) -> Result<(), String> {
    let address = Address::parse(url).map_err(|e| e.to_string())?;
    let (workers, claims) = (options.number("workers", 32.0) as usize, options.number("claims", 20.0) as usize);
    let identity = |n: usize| Identity { id: format!("load{n}"), class: "simulated".into(), ..Identity::default() };
    let mut first = Server::new(&address, identity(0)).map_err(|e| e.to_string())?;
    patiently(|| first.join(&options.run(), &options.tasks()))?;
    let start = Instant::now();
    let one = &|n: usize| -> Result<Vec<f64>, String> {
        let mut server = Server::new(&address, identity(n)).map_err(|e| e.to_string())?;
        patiently(|| server.join(&options.run(), &options.tasks()))?;
        let mut times = Vec::new();
        for _ in 0..claims {
            let since = Instant::now();
            let Some(lease) = patiently(|| server.claim())? else { break };
            times.push(since.elapsed().as_secs_f64() * 1000.0);
            let lines: Vec<Line> = (0..options.number("trials", 0.0) as i64)
                .map(|n| Line { number: lease.task * 10_000 + n, text: "x".repeat(600) })
                .collect();
            patiently(|| server.ship(&lease, &lines))?;
            std::thread::sleep(options.millis("sleep", 0.0));
            let end = End::Done { best_us: 1.0, best_plan: "x".into(), first_us: 1.0 };
            patiently(|| server.end(&lease, &end))?;
        }
        Ok(times)
    };
    let times: Result<Vec<Vec<f64>>, String> = std::thread::scope(|scope| {
        let all: Vec<_> = (1..=workers).map(|n| scope.spawn(move || one(n))).collect();
        all.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread died".into()))).collect()
    });
    let mut times = times?.concat();
    let seconds = start.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
    println!(
        "{{\"claims\": {}, \"seconds\": {seconds:.2}, \"median_ms\": {:.2}, \"p99_ms\": {:.2}}}",
        times.len(),
        at(0.5),
        at(0.99)
    );
    Ok(())
}
