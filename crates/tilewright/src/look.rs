//! Looks before a plan's result is first used: asked of the records, else made in the worker process, and kept.

use crate::program::Starts;
use crate::{Error, FailedLook, Operation, Plan};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use tilewright_gen::space::Space;
use tilewright_tune::ProblemKey;
use tilewright_tune::look::{look, subject};
use tilewright_tune::records::{DeviceKey, Look, State};
use tilewright_tune::search::device_key;

/// What a look that records cannot keep was taken of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Of {
    problem: String,
    device: DeviceKey,
    plan: String,
}

/// Looks that no records file could keep: they hold for this process.
static KEPT: Mutex<Option<HashMap<Of, Look>>> = Mutex::new(None);

fn kept<T>(then: impl FnOnce(&mut HashMap<Of, Look>) -> T) -> T {
    then(KEPT.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

impl Operation {
    /// Plans of this operation that failed their look, in the order in which they were passed over.
    pub fn failed_looks(&self) -> Vec<FailedLook> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// False for a plan that is known to have failed its look.
    pub(crate) fn may_use(&self, plan: &Plan) -> bool {
        match self.known_look(self.space(), plan) {
            Ok(look) => look.is_none_or(|look| look.passed()),
            // The look itself says what is wrong with the records.
            Err(_) => true,
        }
    }

    /// The look at a plan for operands with these starts. `None` where nobody has looked and `now` does not allow it.
    pub(crate) fn look_at(&self, plan: &Plan, starts: Starts, now: bool) -> Result<Option<Look>, Error> {
        let space = starts.map_or_else(|| Cow::Borrowed(self.space()), |starts| Cow::Owned(self.space().aligned(starts)));
        let space = subject(&space, plan);
        let look = match self.known_look(&space, plan)? {
            Some(look) => look,
            None if !now => return Ok(None),
            None => self.new_look(&space, plan)?,
        };
        if !look.passed() {
            let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            let reason = look.reason.clone().unwrap_or_else(|| look.state.name().into());
            let this = FailedLook { plan: look.plan.clone(), reason };
            if !failed.contains(&this) {
                failed.push(this);
            }
        }
        Ok(Some(look))
    }

    /// Why a plan that failed its look is not used.
    pub(crate) fn refused_by_look(&self, look: &Look) -> Error {
        Error::Look {
            problem: self.problem().key().into(),
            device: self.context().info().id.as_str().into(),
            plan: look.plan.as_str().into(),
            reason: look.reason.as_deref().unwrap_or(look.state.name()).into(),
        }
    }

    /// The error of an operation whose every plan failed.
    pub(crate) fn last_failed_look(&self) -> Option<Error> {
        let last = self.failed_looks().pop()?;
        Some(self.refused_by_look(&Look { plan: last.plan, state: State::Wrong, reason: Some(last.reason) }))
    }

    fn seen(&self, space: &Space, plan: &Plan) -> Of {
        let inner = &self.context().inner;
        let device = device_key(self.context().info(), inner.options.cache);
        Of { problem: ProblemKey::of(space).text(), device, plan: plan.to_string() }
    }

    fn known_look(&self, space: &Space, plan: &Plan) -> Result<Option<Look>, Error> {
        let of = self.seen(space, plan);
        if let Some(look) = kept(|all| all.get(&of).cloned()) {
            return Ok(Some(look));
        }
        Ok(self.context().records().look(&ProblemKey::of(space), &of.device, &of.plan)?)
    }

    /// Looks, and keeps what was found.
    fn new_look(&self, space: &Space, plan: &Plan) -> Result<Look, Error> {
        let start = std::time::Instant::now();
        let found = self.look_there(space, plan)?;
        let (id, took) = (&self.context().info().id, start.elapsed().as_millis());
        match &found.reason {
            None => tracing::info!("{} on {id}: {plan} passed its look in {took} ms", space.problem()),
            Some(why) => tracing::warn!("{} on {id}: {plan} failed its look and is not used: {why}", space.problem()),
        }
        let records = self.context().records();
        let of = self.seen(space, plan);
        // A compiler that failed may have lacked something that the next process has.
        let lasts = !matches!(found.state, State::Failed | State::Refused);
        let written = records.is_writable() && lasts;
        let written = written.then(|| records.add_look(&ProblemKey::of(space), &space.problem().key(), &of.device, &found));
        match written {
            Some(Ok(())) => {}
            other => {
                if let Some(Err(e)) = other {
                    tracing::warn!("a look holds for this process only: {e}");
                }
                kept(|all| all.insert(of, found.clone()));
            }
        }
        Ok(found)
    }

    /// Looks where trials run: in the worker process, unless the options say otherwise or the device is an emulator. A plan that nobody has
    /// looked at may crash, so without a worker it does not run in this process.
    fn look_there(&self, space: &Space, plan: &Plan) -> Result<Look, Error> {
        Ok(look(&self.context().inner.trial_device()?, space, plan)?)
    }
}

#[cfg(test)]
mod tests;
