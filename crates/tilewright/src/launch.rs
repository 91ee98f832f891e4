//! From a plan to compiled kernels, and the ordered fallback for operands that start where a plan's wide accesses cannot.

use crate::program::{Ready, ReadyKey, Starts};
use crate::{Error, Operation, Origin, Prepared, SourceError};
use std::borrow::Cow;
use std::sync::{Arc, PoisonError};
use tilewright_check::run::{Alignments, BindError, compile};
use tilewright_device::DeviceError;
use tilewright_gen::plan::{Keys, OperandKeys, Plan, generic};
use tilewright_gen::program::Program;
use tilewright_problem::contraction::Contraction;

/// Plans that are looked at before a problem counts as one that no plan is right for: the model's picks, and the last fallback.
const MOST_CHOICES: usize = 20;

/// The same tiles without wide accesses: no operand needs more than its element's alignment.
pub(crate) fn narrow(plan: &Plan) -> Plan {
    let plain = |keys| OperandKeys { vector: 1, load_width: 0, copy: 0, read_width: 0, ..keys };
    Keys { a: plain(plan.a), b: plain(plan.b), store_width: 1, math_width: 1, ..**plan }.into()
}

impl Operation {
    /// The compiled program of a plan, from the context's cache where it is there.
    pub(crate) fn ready(&self, plan: &Plan, starts: Starts) -> Result<Arc<Ready>, Error> {
        let inner = &self.context().inner;
        let text = self.text_of(plan);
        let key = ReadyKey {
            problem: self.problem().key(),
            plan: plan.to_string(),
            starts,
            atomics: self.space().env().allow_atomics,
            source: text.clone(),
        };
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

    /// Chooses the plan, compiles its kernels and looks at it now, for operands that are aligned to 256 bytes. Without it the first
    /// [`Operation::run`] does, which takes a second or so; what is compiled is kept, by this context and on disk.
    ///
    /// A *look* comes before the first use of a plan that no search verified thoroughly on this device, with this driver and by this build. It is a
    /// quick verification in the worker process, on a smaller problem if the problem is large ([`tilewright_tune::look`]). It takes at most a second
    /// beyond compiling. The records keep the outcome; if they may not be written, the process does. A plan that fails is never used. The next
    /// pick or fallback takes its place, and [`Operation::failed_looks`] says why.
    ///
    /// # Errors
    /// The errors of [`Operation::plan`]; [`Error::Look`] where a given plan fails, or every plan. [`Error::Device`] where the
    /// kernels do not compile, or where neither a worker nor this process has memory for the look.
    pub fn prepare(&self) -> Result<Prepared, Error> {
        self.prepare_for([256; 3])
    }
    /// As [`Operation::prepare`], for operands whose addresses are multiples of these powers of two, in bytes. Takes the first
    /// plan of the fallback order that is legal for these addresses and passes its look.
    ///
    /// # Errors
    /// As [`Operation::prepare`].
    pub fn prepare_for(&self, addresses: [u64; 3]) -> Result<Prepared, Error> {
        let contraction = self.space().contraction(&Plan::default());
        self.prepare_at(&Alignments::of(contraction, addresses, self.offsets()))
    }
    /// As [`Operation::prepare_for`], without a look or a search: `None` where one would be needed first. Nothing that a caller uses changes between two
    /// calls of this.
    ///
    /// # Errors
    /// As [`Operation::prepare`].
    pub fn prepared_for(&self, addresses: [u64; 3]) -> Result<Option<Prepared>, Error> {
        let contraction = self.space().contraction(&Plan::default());
        self.prepare_if(&Alignments::of(contraction, addresses, self.offsets()), false)
    }
    pub(crate) fn prepare_at(&self, at: &Alignments) -> Result<Prepared, Error> {
        match self.prepare_if(at, true)? {
            Some(prepared) => Ok(prepared),
            None => Err(self.no_plan()),
        }
    }
    /// The first plan of the fallback order that is legal for the operands' start addresses and passes its look. The order is:
    ///
    /// - the chosen plan;
    /// - the same plan for these start addresses;
    /// - the same tiles with narrow accesses;
    /// - the plain plan in the same form;
    /// - the plain plan.
    ///
    /// `None` where nobody has looked and `now` does not allow it.
    fn prepare_if(&self, at: &Alignments, now: bool) -> Result<Option<Prepared>, Error> {
        let alignments = Alignments { elements: at.elements.map(|x| x.min(256)), buffers: at.buffers.map(|x| x.min(256)) };
        let kept = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..MOST_CHOICES {
            let Some((plan, origin)) = self.choice_if(now)? else { return Ok(None) };
            let key = (plan, alignments);
            if let Some((_, prepared)) = kept().iter().find(|(k, _)| *k == key) {
                return Ok(Some(prepared.clone()));
            }
            let edited = self.text_of(&plan).is_some();
            let ready = self.ready(&plan, None)?;
            let ready = match alignments.check(&ready.program) {
                Ok(()) if edited => ready,
                Ok(()) => match self.look_at(&plan, None, now)? {
                    None => return Ok(None),
                    Some(look) if look.passed() => ready,
                    Some(look) if origin == Origin::Given => return Err(self.refused_by_look(&look)),
                    Some(_) => {
                        self.pass_over(&plan);
                        continue;
                    }
                },
                // Another plan would not be the edited source.
                Err(BindError::Misaligned { .. }) if !edited => {
                    match self.fallback(&plan, &alignments, &ready.contraction, now)? {
                        None => return Ok(None),
                        Some(ready) => ready,
                    }
                }
                Err(other) => return Err(other.into()),
            };
            let prepared = Prepared::new(self.context().clone(), ready, self.problem(), self.offsets());
            kept().push((key, prepared.clone()));
            return Ok(Some(prepared));
        }
        Err(self.last_failed_look().unwrap_or_else(|| self.no_plan()))
    }

    fn fallback(
        &self,
        plan: &Plan,
        alignments: &Alignments,
        contraction: &Contraction,
        now: bool,
    ) -> Result<Option<Arc<Ready>>, Error> {
        let starts = Some(alignments.elements.map(|bytes| bytes as u32));
        let of_form = Keys { form: plan.form, ..*generic(contraction) };
        let mut last = Error::Bind(BindError::Absent("a fallback plan"));
        for candidate in [*plan, narrow(plan), of_form.into(), generic(contraction)] {
            let ready = match self.ready(&candidate, starts) {
                Ok(ready) => ready,
                Err(e @ (Error::Refused(_) | Error::Generate(_))) => {
                    last = e;
                    continue;
                }
                Err(other) => return Err(other),
            };
            if let Err(e) = alignments.check(&ready.program) {
                last = e.into();
                continue;
            }
            match self.look_at(&candidate, starts, now)? {
                None => return Ok(None),
                Some(look) if look.passed() => return Ok(Some(ready)),
                Some(look) => last = self.refused_by_look(&look),
            }
        }
        Err(last)
    }
}
