//! Trials in a file: the journal of a simulated worker.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tilewright_fleet::{Journal, Line};

/// Trials in a file, a line each: number, problem, plan.
pub struct File {
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
    pub fn open(path: &Path) -> Result<File, String> {
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

    pub fn add(&self, problem: &str, plan: &str) {
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
