//! The values records hold: what was tried where, and how it went.

use crate::key::ProblemKey;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};
use tilewright_check::verify::Depth;

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It ran and has a time.
    Ok,
    /// The plan does not apply to the problem or does not fit the device.
    Refused,
    /// Generating, compiling or launching failed.
    Failed,
    /// It ran and the result was wrong.
    Wrong,
    /// It did not end, or took its process down.
    Hung,
}

/// Where a time comes from. The two are never mixed.
///
/// ```
/// use tilewright_tune::records::{TimeKind, Trial};
///
/// let trial = Trial::timed("A_MIC4", 12.5, TimeKind::Modelled);
/// assert_eq!(trial.time_kind.map(TimeKind::name), Some("modelled"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeKind {
    /// From the device's clock.
    Measured,
    /// From the cost model.
    Modelled,
}

impl State {
    /// The word in records: `ok`, `refused`, `failed`, `wrong`, `hung`.
    pub const fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Refused => "refused",
            State::Failed => "failed",
            State::Wrong => "wrong",
            State::Hung => "hung",
        }
    }
}

impl TimeKind {
    /// The word in records: `measured` or `modelled`.
    pub const fn name(self) -> &'static str {
        match self {
            TimeKind::Measured => "measured",
            TimeKind::Modelled => "modelled",
        }
    }
}

/// One plan tried once.
///
/// ```
/// use tilewright_tune::records::{State, TimeKind, Trial};
///
/// let right = Trial::timed("A_MIC4", 12.5, TimeKind::Measured);
/// let hung = Trial::unmeasured("A_MIC8", State::Hung, "no end in 20 s");
/// assert!(right.check().is_ok() && hung.check().is_ok());
/// // A trial that hung has no time.
/// assert!(Trial { time_us: Some(3.0), time_kind: Some(TimeKind::Measured), ..hung }.check().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// The plan's text form.
    pub plan: String,
    /// How it ended.
    pub state: State,
    /// Microseconds of all kernels of the program; present exactly when `state` is ok.
    pub time_us: Option<f64>,
    /// Where the time comes from; present exactly when there is one.
    pub time_kind: Option<TimeKind>,
    /// How deeply the result was verified and found right; `None` where it was not looked at. Only a plan that was verified
    /// thoroughly is offered as the best.
    #[serde(deserialize_with = "depth")]
    pub verified: Option<Depth>,
    /// Largest error found, relative to `|alpha| |A||B| + |beta||C|`; absent where nothing was compared or the error was
    /// not finite.
    pub max_error: Option<f64>,
    /// Why it did not end well.
    pub reason: Option<String>,
    /// When, in milliseconds since 1970-01-01 UTC.
    pub at: i64,
}

impl Trial {
    /// A trial that has a time, now.
    pub fn timed(plan: &str, time_us: f64, kind: TimeKind) -> Trial {
        Trial {
            plan: plan.into(),
            state: State::Ok,
            time_us: Some(time_us),
            time_kind: Some(kind),
            verified: None,
            max_error: None,
            reason: None,
            at: now_ms(),
        }
    }

    /// A trial that ended without a time, now.
    pub fn unmeasured(plan: &str, state: State, reason: &str) -> Trial {
        Trial {
            plan: plan.into(),
            state,
            time_us: None,
            time_kind: None,
            verified: None,
            max_error: None,
            reason: Some(reason.into()),
            at: now_ms(),
        }
    }

    /// Checks what the types do not say.
    ///
    /// # Errors
    /// What is inconsistent, as text.
    pub fn check(&self) -> Result<(), String> {
        if self.plan.trim().is_empty() {
            return Err("the plan is empty".into());
        }
        if self.time_us.is_some() != self.time_kind.is_some() {
            return Err("time_us and time_kind must stand together".into());
        }
        match (self.state, self.time_us) {
            (State::Ok, None) => return Err("a trial of state ok needs time_us".into()),
            (State::Ok, Some(t)) if !(t.is_finite() && t > 0.0) => return Err(format!("time_us {t} is no positive number")),
            (State::Ok, Some(_)) | (_, None) => {}
            (state, Some(_)) => return Err(format!("a trial of state {} has no time_us", state.name())),
        }
        if self.verified.is_some() && self.state != State::Ok {
            return Err(format!("a trial of state {} cannot be verified", self.state.name()));
        }
        if self.max_error.is_some_and(|e| !(e.is_finite() && e >= 0.0)) {
            return Err("max_error is no number of at least 0".into());
        }
        Ok(())
    }
}

/// Reads a depth. Lines of format 1 say only whether a result was compared: that counts as a quick look.
fn depth<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Depth>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "verified is none of null, \"quick\" and \"thorough\" (true or false in format 1)")]
    enum Spelling {
        Flag(bool),
        Depth(Option<Depth>),
    }
    Ok(match Spelling::deserialize(from)? {
        Spelling::Flag(compared) => compared.then_some(Depth::Quick),
        Spelling::Depth(depth) => depth,
    })
}

/// A device as records know it: same key, same times.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceKey {
    /// The vendor's name of the device and how it is spoken to.
    pub name: String,
    /// Driver and compiler versions.
    pub fingerprint: String,
}

/// One line of the records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// What was to be computed.
    pub problem: ProblemKey,
    /// The problem in the user's words.
    pub name: String,
    /// Where it ran.
    pub device: DeviceKey,
    /// Version of the generator that made the kernels.
    pub generator: String,
    /// Fingerprint of the sources that timed (or modelled) it; absent in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timed_by: Option<String>,
    /// Fingerprint of the sources that verified it, where something did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_by: Option<String>,
    /// What happened.
    pub trial: Trial,
}

/// A plan that served a near problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Near {
    /// [`crate::key::distance`], plus what other devices and generator versions add.
    pub distance: f64,
    /// The recorded problem in the user's words.
    pub problem: String,
    /// Where it was tuned.
    pub device: DeviceKey,
    /// Its best plan's text form.
    pub plan: String,
    /// That plan's time there, in microseconds.
    pub time_us: f64,
}

/// Which records are meant. Empty means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Part of the problem's name.
    pub problem: Option<String>,
    /// Part of the device's name.
    pub device: Option<String>,
    /// How the trial ended.
    pub state: Option<State>,
    /// Trials verified at least so deeply; `None` passes those that were not looked at, too.
    pub verified: Option<Depth>,
}

impl Filter {
    /// True if a record is meant.
    pub fn passes(&self, record: &Record) -> bool {
        self.names(&record.name, &record.device.name)
            && self.state.is_none_or(|s| record.trial.state == s)
            && record.trial.verified >= self.verified
    }

    /// True if the problem of this name on the device of this name is meant.
    pub(super) fn names(&self, problem: &str, device: &str) -> bool {
        self.problem.as_ref().is_none_or(|p| problem.contains(p.as_str()))
            && self.device.as_ref().is_none_or(|d| device.contains(d.as_str()))
    }
}

/// Milliseconds since 1970-01-01 UTC.
pub(crate) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
