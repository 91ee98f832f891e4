//! From a plan to compiled kernels, and the ordered fallback for operands that start where a plan's wide accesses cannot.

use crate::program::{Ready, Starts};
use crate::{Error, Operation, SourceError};
use std::borrow::Cow;
use std::sync::{Arc, PoisonError};
use tilewright_device::DeviceError;
use tilewright_gen::plan::{Chiral, Common, Key, Plan, fits, generic};
use tilewright_gen::program::Program;
use tilewright_problem::Extents;
use tilewright_problem::contraction::{Contraction, Operand};
use tilewright_tune::run::{BindError, Buffers, Factors, bind, check, compile};

/// The extents of a launch: forms of a convolution differ in theirs, so what is not given is the program's own.
fn extents(ready: &Ready, at: Option<Extents>) -> Extents {
    at.unwrap_or_else(|| ready.contraction.extents())
}

/// The same tiles without wide accesses: no operand needs more than its element's alignment.
pub(crate) fn narrow(plan: &Plan) -> Plan {
    plan.with_both(Chiral::Vew, 1)
        .with_both(Chiral::Glw, 0)
        .with_both(Chiral::Acp, 0)
        .with_both(Chiral::Frw, 0)
        .with(Key::C(Common::Cvw), 1)
        .with(Key::C(Common::Mvw), 1)
        .into()
}

impl Operation {
    /// The compiled program of a plan, from the context's cache where it is there.
    pub(crate) fn ready(&self, plan: &Plan, starts: Starts) -> Result<Arc<Ready>, Error> {
        let inner = &self.context().inner;
        let text = self.text_of(plan);
        let key = (self.problem().key(), plan.to_string(), starts, self.space().env().allow_atomics, text.clone());
        if let Some(ready) = inner.ready.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(ready.clone());
        }
        let (contraction, program) = self.program_for(plan, starts)?;
        let start = std::time::Instant::now();
        let compiled = compile(&*inner.device, &program).map_err(|e| match e {
            DeviceError::Compile { log, .. } if text.is_some() => SourceError::Compile { log }.into(),
            other => Error::from(other),
        })?;
        tracing::debug!("{} kernels of {plan} are ready after {} ms", compiled.len(), start.elapsed().as_millis());
        let ready = Arc::new(Ready { plan: *plan, contraction, program, compiled });
        inner.ready.lock().unwrap_or_else(PoisonError::into_inner).insert(key, ready.clone());
        Ok(ready)
    }

    /// The program of a plan for operands with these starts.
    pub(crate) fn program_for(&self, plan: &Plan, starts: Starts) -> Result<(Contraction, Program), Error> {
        let space = starts.map_or_else(|| Cow::Borrowed(self.space()), |starts| Cow::Owned(self.space().aligned(starts)));
        let resolved = space.resolve(plan)?;
        fits(&resolved.spec, resolved.contraction, &self.context().info().target)?;
        let mut program = resolved.generate(space.env().workspace_bytes)?;
        if let Some(text) = self.text_of(plan) {
            program.kernels.iter_mut().for_each(|kernel| kernel.text = Some(text.to_string()));
        }
        Ok((resolved.contraction.clone(), program))
    }
    /// The kernels of a plan and how they are launched.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Generate`].
    pub fn program(&self, plan: &Plan) -> Result<Program, Error> {
        Ok(self.program_for(plan, None)?.1)
    }

    /// Launches the plan with these extents (all of the plan's contraction where none are given), or the first of its fallbacks that
    /// is legal for where these operands really start. Gives the plan that runs.
    pub(crate) fn launch(&self, plan: &Plan, mut buffers: Buffers, factors: Factors, at: Option<Extents>) -> Result<Plan, Error> {
        let context = self.context();
        let ready = self.ready(plan, None)?;
        buffers.workspace = context.workspace(ready.program.workspace_bytes)?;
        let ready = match check(&ready.program, &ready.contraction, &buffers, &extents(&ready, at)) {
            Ok(()) => ready,
            // Another plan would not be the edited source.
            Err(BindError::Misaligned { .. }) if self.text_of(plan).is_none() => {
                self.fallback(plan, &buffers, &ready.contraction, at)?
            }
            Err(other) => return Err(other.into()),
        };
        buffers.workspace = context.workspace(ready.program.workspace_bytes)?;
        let at = extents(&ready, at);
        let launches = bind(&ready.program, &ready.compiled, &ready.contraction, &buffers, factors, &at)?;
        context.device().launch(&launches)?;
        Ok(ready.plan)
    }

    /// The first plan of the fallback order that is legal for these buffers: the same tiles with narrow accesses, the plain plan
    /// in the same form, the plain plan.
    fn fallback(
        &self,
        plan: &Plan,
        buffers: &Buffers,
        contraction: &Contraction,
        at: Option<Extents>,
    ) -> Result<Arc<Ready>, Error> {
        let start = |operand: Operand| {
            let bytes = buffers.alignment(operand, contraction.tensor(operand).scalar);
            u32::try_from(bytes).unwrap_or(256).min(256)
        };
        let starts = Some([start(Operand::A), start(Operand::B), start(Operand::C)]);
        let bim = Key::C(Common::Bim);
        let mut last = Error::Bind(BindError::Absent("a fallback plan"));
        for candidate in [*plan, narrow(plan), generic(contraction).with(bim, plan.get(bim)).into(), generic(contraction)] {
            match self.ready(&candidate, starts) {
                Ok(ready) => match check(&ready.program, &ready.contraction, buffers, &extents(&ready, at)) {
                    Ok(()) | Err(BindError::Absent(_) | BindError::TooSmall { .. }) => return Ok(ready),
                    Err(e) => last = e.into(),
                },
                Err(e @ (Error::Refused(_) | Error::Generate(_))) => last = e,
                Err(other) => return Err(other),
            }
        }
        Err(last)
    }
}
