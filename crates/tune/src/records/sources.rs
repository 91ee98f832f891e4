//! What a record rests on: fingerprints of the sources that made the kernel, its time and its verification. A row made by other sources
//! is stale: its plan is worth trying first, what it says is no longer known to hold.

use super::{Record, TimeKind};

/// The generator as records name it: its version and a fingerprint of its sources (`build.rs`). Times of another one's kernels
/// say little about this one's.
pub const GENERATOR: &str = env!("TILEWRIGHT_GENERATOR");
/// A source that compiles, launches and times kernels.
pub const TIMING: &str = env!("TILEWRIGHT_TIMING");
/// The cost model.
pub const MODEL: &str = env!("TILEWRIGHT_MODEL");
/// A source that verifies results.
pub const VERIFIER: &str = env!("TILEWRIGHT_VERIFIER");

/// The sources that a trial rests on besides the generator.
pub(super) const fn timed_by(kind: Option<TimeKind>) -> &'static str {
    match kind {
        Some(TimeKind::Modelled) => MODEL,
        Some(TimeKind::Measured) | None => TIMING,
    }
}

impl Record {
    /// True if some of the sources have changed since: the device's driver aside, the record says nothing about this build.
    pub fn is_stale(&self) -> bool {
        let verified_by = (self.trial.verified.is_some()).then_some(VERIFIER);
        self.generator != GENERATOR
            || self.timed_by.as_deref() != Some(timed_by(self.trial.time_kind))
            || (verified_by.is_some() && self.verified_by.as_deref() != verified_by)
    }
}
