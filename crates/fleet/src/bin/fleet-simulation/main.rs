//! Workers with simulated trials on the real statements of a queue.
//!
//! | command | is |
//! |---|---|
//! | `fleet-simulation worker URL KEY=VALUE...` | one worker of a server: its trials sleep, and it fails, stops and aborts as a test wants |
//! | `fleet-simulation host FILE KEY=VALUE...` | the same on the tasks of one host |
//! | `fleet-simulation load URL KEY=VALUE...` | many workers as threads; it prints claims per second, their latency, trials per second, and the cost to the server |
//! | `fleet-simulation emulator TILEWRIGHT KEY=VALUE...` | searches of this command on the emulator: several workers beside one |

mod emulator;
mod journal;
mod load;
mod watched;
mod worker;

use std::collections::HashMap;
use std::time::Duration;
use tilewright_fleet::{FleetError, NewTask, RunSpec};

fn main() {
    let mut args = std::env::args().skip(1);
    let (mode, place) = (args.next().unwrap_or_default(), args.next().unwrap_or_default());
    let options: HashMap<String, String> =
        args.filter_map(|arg| arg.split_once('=').map(|(key, value)| (key.into(), value.into()))).collect();
    let options = Options(options);
    let code = match mode.as_str() {
        "worker" => worker::worker(&worker::Place::Server(place), &options),
        "host" => worker::worker(&worker::Place::Host(place.into()), &options),
        "load" => load::load(&place, &options).map(|()| 0),
        "emulator" => emulator::emulator(&place, &options).map(|()| 0),
        _ => Err("write: fleet-simulation worker|load URL, host FILE or emulator TILEWRIGHT, then KEY=VALUE...".into()),
    };
    std::process::exit(code.unwrap_or_else(|e| {
        eprintln!("error: {e}");
        1
    }));
}

/// `KEY=VALUE` of the command line.
pub struct Options(HashMap<String, String>);

impl Options {
    /// A text, or what stands for none.
    pub fn text(&self, key: &str, default: &str) -> String {
        self.0.get(key).cloned().unwrap_or_else(|| default.into())
    }
    /// A number, or what stands for none.
    pub fn number(&self, key: &str, default: f64) -> f64 {
        self.0.get(key).and_then(|text| text.parse().ok()).unwrap_or(default)
    }
    /// A time in milliseconds.
    pub fn millis(&self, key: &str, default: f64) -> Duration {
        Duration::from_secs_f64(self.number(key, default) / 1000.0)
    }
    /// True if the key is there.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }
    /// The run.
    pub fn run(&self) -> RunSpec {
        RunSpec {
            name: self.text("run", "night"),
            options: self.text("options", "{}"),
            lease: self.millis("lease", 60_000.0),
            extend: self.has("extend"),
        }
    }
    /// Its tasks.
    pub fn tasks(&self) -> Vec<NewTask> {
        let count = self.number("tasks", 10.0) as u32;
        (0..count).map(|n| NewTask { problem: format!("p{n}"), work: f64::from(n % 1000) }).collect()
    }
}

/// Asks again while the server is away.
pub fn patiently<T>(mut ask: impl FnMut() -> Result<T, FleetError>) -> Result<T, String> {
    for _ in 0..100 {
        match ask() {
            Err(e) if e.is_passing() => std::thread::sleep(Duration::from_millis(200)),
            other => return other.map_err(|e| e.to_string()),
        }
    }
    ask().map_err(|e| e.to_string())
}
