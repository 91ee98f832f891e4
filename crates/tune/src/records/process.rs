//! Records of a build without the feature `records`: the trials of this process, forgotten with it.

use super::{DeviceKey, Filter, GENERATOR, Look, Looked, Near, RecordsError, State, TimeKind, Trial};
use crate::key::ProblemKey;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tilewright_check::verify::Depth;

/// The trials of this process. Methods may be called from any thread.
///
/// ```
/// use tilewright_tune::Records;
///
/// // A build without the feature `records` reads and writes no file.
/// assert!(Records::open("records.sqlite").is_err());
/// # Ok::<(), tilewright_tune::records::RecordsError>(())
/// ```
#[derive(Debug, Default)]
pub struct Records {
    trials: Mutex<Vec<(Of, Trial)>>,
    looks: Mutex<Vec<Seen>>,
}

/// A look and what it was taken of.
#[derive(Debug)]
struct Seen {
    problem: String,
    name: String,
    device: DeviceKey,
    look: Look,
}

/// What a trial is of.
#[derive(Clone, Debug, PartialEq)]
struct Of {
    problem: String,
    device: DeviceKey,
    generator: String,
}

fn of(problem: &ProblemKey, device: &DeviceKey, generator: &str) -> Of {
    Of { problem: problem.text(), device: device.clone(), generator: generator.into() }
}

impl Records {
    /// Refuses: nothing of SQLite is in this build.
    ///
    /// # Errors
    /// [`RecordsError::Io`] always.
    pub fn open(path: impl AsRef<Path>) -> Result<Records, RecordsError> {
        let reason =
            "this program was built without records; build tilewright with its feature `records`, or keep them in memory";
        Err(RecordsError::Io { path: path.as_ref().to_path_buf(), reason: reason.into() })
    }

    /// Records that live in memory and vanish with the value.
    ///
    /// # Errors
    /// None.
    pub fn in_memory() -> Result<Records, RecordsError> {
        Ok(Records::default())
    }

    /// `:memory:`.
    pub fn path(&self) -> &Path {
        Path::new(":memory:")
    }

    fn with<T>(&self, then: impl FnOnce(&mut Vec<(Of, Trial)>) -> T) -> T {
        then(&mut self.trials.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn with_looks<T>(&self, then: impl FnOnce(&mut Vec<Seen>) -> T) -> T {
        then(&mut self.looks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True: memory takes what it is given.
    pub fn is_writable(&self) -> bool {
        true
    }

    /// Keeps what a look found. A look that passed does not replace one that failed.
    ///
    /// # Errors
    /// None.
    pub fn add_look(&self, problem: &ProblemKey, name: &str, device: &DeviceKey, look: &Look) -> Result<(), RecordsError> {
        let problem = problem.text();
        self.with_looks(|all| {
            let known = |seen: &&mut Seen| seen.problem == problem && seen.device == *device && seen.look.plan == look.plan;
            match all.iter_mut().find(known) {
                Some(seen) if look.passed() && !seen.look.passed() => {}
                Some(seen) => seen.look = look.clone(),
                None => all.push(Seen { problem, name: name.into(), device: device.clone(), look: look.clone() }),
            }
        });
        Ok(())
    }

    /// What is known of a plan of a problem on a device: the last look, or the verdict of a search.
    ///
    /// # Errors
    /// None.
    pub fn look(&self, problem: &ProblemKey, device: &DeviceKey, plan: &str) -> Result<Option<Look>, RecordsError> {
        let text = problem.text();
        let seen = |seen: &&Seen| seen.problem == text && seen.device == *device && seen.look.plan == plan;
        if let Some(look) = self.with_looks(|all| all.iter().find(seen).map(|seen| seen.look.clone())) {
            return Ok(Some(look));
        }
        let trials = self.trials(problem, device, GENERATOR)?;
        let verdict = |t: &&Trial| match t.state {
            State::Wrong | State::Hung => true,
            _ => t.state == State::Ok && t.verified == Some(Depth::Thorough),
        };
        let last = trials.iter().filter(|t| t.plan == plan).filter(verdict).max_by_key(|t| t.state == State::Wrong);
        Ok(last.map(|t| Look { plan: plan.into(), state: t.state, reason: t.reason.clone() }))
    }

    /// The looks of the problems and devices that a filter names.
    ///
    /// # Errors
    /// None.
    pub fn looks(&self, filter: &Filter) -> Result<Vec<Looked>, RecordsError> {
        Ok(self.with_looks(|all| {
            let named = all.iter().filter(|seen| filter.names(&seen.name, &seen.device.name));
            let looked =
                |seen: &Seen| Looked { problem: seen.name.clone(), device: seen.device.name.clone(), look: seen.look.clone() };
            named.map(looked).collect()
        }))
    }

    /// None: an operation keeps its picks as long as it lives.
    ///
    /// # Errors
    /// None.
    pub fn picks(&self, _: &ProblemKey, _: &DeviceKey) -> Result<Vec<String>, RecordsError> {
        Ok(Vec::new())
    }

    /// Nothing, as [`Records::picks`].
    ///
    /// # Errors
    /// None.
    pub fn keep_picks(&self, _: &ProblemKey, _: &str, _: &DeviceKey, _: &[String]) -> Result<(), RecordsError> {
        Ok(())
    }

    /// Nothing: no process is ended with a mark left.
    ///
    /// # Errors
    /// None.
    pub fn recover(&self) -> Result<usize, RecordsError> {
        Ok(0)
    }

    /// Nothing, as [`Records::recover`].
    ///
    /// # Errors
    /// None.
    pub fn begin(&self, _: &ProblemKey, _: &str, _: &DeviceKey, _: &str, _: &str) -> Result<(), RecordsError> {
        Ok(())
    }

    /// Keeps one trial.
    ///
    /// # Errors
    /// None.
    pub fn add(
        &self,
        problem: &ProblemKey,
        _name: &str,
        device: &DeviceKey,
        generator: &str,
        trial: &Trial,
    ) -> Result<(), RecordsError> {
        self.with(|all| all.push((of(problem, device, generator), trial.clone())));
        Ok(())
    }

    /// Keeps that the result of a plan that has a time was verified more deeply. Without a trial with a time this one is added.
    ///
    /// # Errors
    /// None.
    pub fn record_depth(
        &self,
        problem: &ProblemKey,
        name: &str,
        device: &DeviceKey,
        generator: &str,
        trial: &Trial,
    ) -> Result<(), RecordsError> {
        let of = of(problem, device, generator);
        let known = self.with(|all| {
            let last = all.iter_mut().rev().find(|(o, t)| *o == of && t.plan == trial.plan && t.state == State::Ok);
            last.map(|(_, last)| (last.verified, last.max_error) = (trial.verified, trial.max_error)).is_some()
        });
        if known { Ok(()) } else { self.add(problem, name, device, generator, trial) }
    }

    /// Every trial of one problem on one device by one generator version, oldest first.
    ///
    /// # Errors
    /// None.
    pub fn trials(&self, problem: &ProblemKey, device: &DeviceKey, generator: &str) -> Result<Vec<Trial>, RecordsError> {
        let of = of(problem, device, generator);
        Ok(self.with(|all| all.iter().filter(|(o, _)| *o == of).map(|(_, t)| t.clone()).collect()))
    }

    /// The fastest thoroughly verified trial of a problem on a device, of a plan that was never found wrong. Measured times win over
    /// modelled ones, whatever they are.
    ///
    /// # Errors
    /// None.
    pub fn best(&self, problem: &ProblemKey, device: &DeviceKey, generator: &str) -> Result<Option<Trial>, RecordsError> {
        let trials = self.trials(problem, device, generator)?;
        let stands = |(at, trial): &(usize, &Trial)| {
            let condemned = trials.iter().enumerate().any(|(other_at, other)| {
                other.plan == trial.plan && (other.state == State::Wrong || (other.state == State::Hung && other_at > *at))
            });
            trial.state == State::Ok && trial.verified == Some(Depth::Thorough) && !condemned
        };
        let rank = |t: &Trial| (t.time_kind == Some(TimeKind::Modelled), t.time_us.unwrap_or(f64::INFINITY));
        let best = trials.iter().enumerate().filter(stands).map(|(_, t)| t);
        Ok(best.min_by(|x, y| rank(x).0.cmp(&rank(y).0).then(rank(x).1.total_cmp(&rank(y).1))).cloned())
    }

    /// None: what this process recorded has not grown old.
    ///
    /// # Errors
    /// None.
    pub fn candidates(&self, _: &ProblemKey, _: &DeviceKey, _: usize) -> Result<Vec<String>, RecordsError> {
        Ok(Vec::new())
    }

    /// None: plans of other problems are met by those who keep records.
    ///
    /// # Errors
    /// None.
    pub fn nearest(&self, _: &ProblemKey, _: &DeviceKey, _: &str, _: usize) -> Result<Vec<Near>, RecordsError> {
        Ok(Vec::new())
    }

    /// None, as [`Records::nearest`].
    ///
    /// # Errors
    /// None.
    pub fn nearest_of(
        &self,
        _: &ProblemKey,
        _: &DeviceKey,
        _: &str,
        _: usize,
        _: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<Near>, RecordsError> {
        Ok(Vec::new())
    }
}

#[cfg(all(test, feature = "records"))]
mod tests {
    use super::*;
    use crate::key::tests::gemm;
    use tilewright_ir::Scalar;

    #[test]
    fn it_answers_as_a_file_does() {
        let (here, file) = (Records::in_memory().unwrap(), crate::records::Records::in_memory().unwrap());
        let (problem, other) = (gemm(64, 64, 64, Scalar::F32), gemm(64, 64, 32, Scalar::F32));
        let device = DeviceKey { name: "GPU".into(), fingerprint: "1".into() };
        let timed = |plan, us, kind, verified, at| Trial { verified, at, ..Trial::timed(plan, us, kind) };
        let ended = |plan, state, at| Trial { at, ..Trial::unmeasured(plan, state, "why") };
        let (quick, thorough) = (Some(Depth::Quick), Some(Depth::Thorough));
        let (measured, modelled) = (TimeKind::Measured, TimeKind::Modelled);
        let steps = [
            (false, timed("a", 5.0, measured, quick, 1), None),
            (false, timed("dream", 0.1, modelled, thorough, 2), Some("dream")),
            (true, timed("a", 6.0, measured, thorough, 3), Some("a")),
            (true, timed("b", 4.0, measured, thorough, 4), Some("b")),
            (false, timed("c", 3.0, measured, None, 5), Some("b")),
            (false, ended("b", State::Hung, 6), Some("a")),
            (false, timed("b", 2.0, measured, thorough, 7), Some("b")),
            (false, ended("b", State::Wrong, 8), Some("a")),
            (true, timed("b", 1.0, measured, thorough, 9), Some("a")),
        ];
        let looks = [("a", Some(true)), ("b", Some(false)), ("c", None), ("dream", Some(true))];
        for (deeper, trial, best) in steps {
            macro_rules! tell {
                ($records:expr) => {{
                    let records = &$records;
                    let say = if deeper {
                        records.record_depth(&problem, "p", &device, GENERATOR, &trial)
                    } else {
                        records.add(&problem, "p", &device, GENERATOR, &trial)
                    };
                    say.unwrap();
                    assert_eq!(records.best(&other, &device, GENERATOR).unwrap(), None);
                    (records.trials(&problem, &device, GENERATOR).unwrap(), records.best(&problem, &device, GENERATOR).unwrap())
                }};
            }
            here.begin(&problem, "p", &device, GENERATOR, &trial.plan).unwrap();
            let (ours, theirs) = (tell!(here), tell!(file));
            assert_eq!(ours, theirs, "after {trial:?}");
            assert_eq!(ours.1.map(|t| t.plan).as_deref(), best, "after {trial:?}");
        }
        for (plan, passed) in looks {
            let known = [here.look(&problem, &device, plan).unwrap(), file.look(&problem, &device, plan).unwrap()];
            assert_eq!(known[0], known[1], "{plan}");
            assert_eq!(known[0].as_ref().map(Look::passed), passed, "{plan}");
        }
        for (state, passes) in [(State::Ok, true), (State::Wrong, false), (State::Ok, false)] {
            let look = Look { plan: "c".into(), state, reason: (state != State::Ok).then(|| "why".into()) };
            here.add_look(&problem, "p", &device, &look).unwrap();
            file.add_look(&problem, "p", &device, &look).unwrap();
            let known = [here.look(&problem, &device, "c").unwrap(), file.look(&problem, &device, "c").unwrap()];
            assert_eq!(known[0], known[1], "after {look:?}");
            assert_eq!(known[0].as_ref().map(Look::passed), Some(passes), "after {look:?}");
        }
        let all = Filter::default();
        assert!(here.is_writable() && file.is_writable());
        assert_eq!(here.looks(&all).unwrap(), file.looks(&all).unwrap());
        assert_eq!(here.looks(&Filter { problem: Some("q".into()), ..all }).unwrap(), []);
        assert_eq!((here.recover().unwrap(), here.path()), (0, file.path()));
        assert!(here.candidates(&problem, &device, 9).unwrap().is_empty());
        assert!(here.nearest(&problem, &device, GENERATOR, 9).unwrap().is_empty());
        here.keep_picks(&problem, "p", &device, &[]).unwrap();
        assert!(here.picks(&problem, &device).unwrap().is_empty());
        assert!(here.nearest_of(&problem, &device, GENERATOR, 9, &|_| true).unwrap().is_empty());
        assert!(Records::open("r.sqlite").unwrap_err().to_string().contains("r.sqlite: this program was built without records"));
    }
}
