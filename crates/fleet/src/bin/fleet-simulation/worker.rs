//! One worker: the loop of [`work`] over a search that sleeps.

use super::journal::File;
use super::watched::{Step, Stop, Watched};
use super::{Options, patiently};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tilewright_fleet::{
    Address, Attempt, Control, GpuLock, HostQueue, Identity, Lease, Patience, Pulled, Queue, Server, Tuner, Verdict, digest, work,
};

/// Where the tasks are.
pub enum Place {
    /// The address of a server.
    Server(String),
    /// A file of this host.
    Host(PathBuf),
}

/// A search that sleeps.
struct Sleeper<'a> {
    journal: &'a File,
    cut: &'a AtomicBool,
    trials: u64,
    sleep: Duration,
    /// How the device fails all it is given.
    sick: Sickness,
    /// Looks at a known problem after which it is well; 0 stands for never.
    heals: u64,
    /// `problem/plan` that ends the process, as a plan that takes the host down.
    deadly: String,
    /// `problem/plan` that never ends.
    endless: String,
    /// A problem that no device can tune.
    hopeless: String,
    /// The host has no room for trials.
    full: bool,
    /// The process stops at a trial.
    stop: Stop,
}

/// How a device fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sickness {
    /// It does not.
    None,
    /// It reports errors.
    Loud,
    /// It gives wrong results, so no plan of any problem is right.
    Wrong,
}

impl Sickness {
    fn parse(text: &str) -> Sickness {
        match text {
            "" => Sickness::None,
            "wrong" => Sickness::Wrong,
            _ => Sickness::Loud,
        }
    }
}

impl Tuner for Sleeper<'_> {
    fn tune(&mut self, lease: &Lease, _: Vec<Pulled>, hung: Vec<String>, control: &Control<'_>) -> Attempt {
        self.cut.store(false, Ordering::Relaxed);
        if self.full {
            return Attempt::HostFailed("the disk is full".into());
        }
        if self.sick == Sickness::Loud {
            return Attempt::DeviceFailed("the device is sick".into());
        }
        if self.sick == Sickness::Wrong || lease.problem == self.hopeless {
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
            if format!("{}/{plan}", lease.problem) == self.endless {
                // Until somebody kills the process.
                std::thread::sleep(Duration::from_secs(3600));
            }
            self.stop.at(Step::Trial, false);
            std::thread::sleep(self.sleep);
            self.stop.at(Step::Trial, true);
            self.journal.add(&lease.problem, &plan);
            control.progress((trial + 1) as f64 - lease.spent);
        }
        Attempt::Done { best_us: 1.0, best_plan: "x0".into(), first_us: 2.0 }
    }

    fn is_sound(&mut self) -> bool {
        if self.heals == 1 {
            self.sick = Sickness::None;
        }
        self.heals = self.heals.saturating_sub(1);
        let sound = self.sick == Sickness::None;
        println!("looked: {}", if sound { "sound" } else { "sick" });
        sound
    }
}

/// Joins the run of a server.
fn join_server(url: &str, identity: Identity, options: &Options) -> Result<Box<dyn Queue>, String> {
    let address = Address::parse(url).map_err(|e| e.to_string())?;
    let mut server = Server::new(&address, identity).map_err(|e| e.to_string())?;
    patiently(|| server.join(&options.run(), &options.tasks()))?;
    while !patiently(|| server.gpu_is_free())? {
        println!("another worker has the GPU");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(Box::new(server))
}

/// Works until nothing is left; the exit code.
pub fn worker(place: &Place, options: &Options) -> Result<i32, String> {
    let kept = PathBuf::from(options.text("journal", "journal"));
    let journal = File::open(&kept)?;
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
        gpu: gpu.clone(),
        lock: lock.as_ref().map_or_else(String::new, |lock| lock.token.clone()),
        class: options.text("class", "simulated"),
        version: "simulation".into(),
        journal: digest(&kept.display().to_string()),
    };
    let queue: Box<dyn Queue> = match place {
        Place::Server(url) => join_server(url, identity, options)?,
        Place::Host(file) => {
            let joined = HostQueue::join(file, &options.run(), &identity.class, &gpu, &options.tasks());
            Box::new(joined.map_err(|e| e.to_string())?)
        }
    };
    let stop = Stop::parse(&options.text("stop", ""));
    let cut = AtomicBool::new(false);
    let mut tuner = Sleeper {
        journal: &journal,
        cut: &cut,
        trials: options.number("trials", 10.0) as u64,
        sleep: options.millis("sleep", 10.0),
        sick: Sickness::parse(&options.text("sick", "")),
        heals: options.number("heals", 0.0) as u64,
        deadly: options.text("deadly", ""),
        endless: options.text("endless", ""),
        hopeless: options.text("hopeless", ""),
        full: options.has("full"),
        stop: stop.clone(),
    };
    let patience = Patience {
        no_wait: options.has("no-wait"),
        poll: options.millis("poll", 300.0),
        hang: options.millis("hang", 300_000.0),
        looks_first: options.has("looks-first"),
    };
    let cancel = || cut.store(true, Ordering::Relaxed);
    let queue: Arc<Mutex<Box<dyn Queue>>> = Arc::new(Mutex::new(Box::new(Watched { queue, stop })));
    let verdict = work(&queue, &mut tuner, &journal, patience, &|| false, &cancel).map_err(|e| e.to_string())?;
    println!("{verdict:?}");
    Ok(match verdict {
        Verdict::Finished(left) if left.failed + left.refused > 0 => 3,
        Verdict::Finished(_) => 0,
        Verdict::Stopped => 130,
        Verdict::DeviceLost(_) | Verdict::Retired(_) | Verdict::HostFailed(_) => 1,
    })
}
