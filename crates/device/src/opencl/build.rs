//! From a kernel to one that can run: out of the cache, through a worker, or compiled here.

use super::device::ClDevice;
use super::program::{self, Built};
use super::query::Vendor;
use crate::compile;
use crate::device::Backend;
use crate::job::{Job, Refusal};
use crate::{Compiled, DeviceError};
use std::sync::Arc;
use tilewright_ir::{Arg, Kernel};

impl ClDevice {
    /// Makes a compiled kernel of a job, given its threads per work-group.
    pub(super) fn ready(&self, job: Job, args: &[Arg], threads: u32) -> Result<Arc<Compiled>, DeviceError> {
        let (built, cached) = self.build(&job)?;
        Ok(Arc::new(Compiled {
            device: self.id.clone(),
            entry: job.entry,
            source: job.source,
            args: args.to_vec(),
            threads,
            follows: false,
            resources: built.resources,
            log: built.log.clone(),
            cached,
            binary: Arc::new(built),
        }))
    }

    /// What is to be compiled.
    pub(super) fn job(&self, source: &str, entry: &str) -> Job {
        Job {
            backend: Backend::OpenCl,
            device: self.info.id.clone(),
            place: Some(self.place.clone()),
            arch: self.info.name.clone(),
            entry: entry.into(),
            source: source.into(),
            options: self.compiler_options.clone(),
        }
    }

    /// What is to be compiled for a kernel.
    pub(super) fn printed(&self, kernel: &Kernel) -> Result<Job, DeviceError> {
        let source = tilewright_ir::print(kernel, &self.info.target)
            .map_err(|e| DeviceError::Invalid { device: self.info.id.clone(), invalid: Box::new(e) })?;
        Ok(self.job(&source.text, &source.entry))
    }

    /// Builds a kernel: from the cache, in a worker, or here.
    fn build(&self, job: &Job) -> Result<(Built, bool), DeviceError> {
        let key = compile::key(&self.info, job);
        if let Some((_, code)) = self.options.cache.get(&key)
            && let Ok(built) = program::from_binary(&self.context, job, &code)
        {
            return Ok((built, true));
        }
        // PoCL has its own cache on disk, and asking it for a binary compiles a second time. It always gets source.
        let binaries = self.context.found.vendor() != Vendor::Pocl;
        if let Some(binary) = compile::from_workers(&self.options, job.clone())?
            && binaries
        {
            self.options.cache.put(&key, &binary.log, &binary.code);
            if let Ok(built) = program::from_binary(&self.context, job, &binary.code) {
                return Ok((built, false));
            }
        }
        let (context, own) = (self.context.clone(), job.clone());
        let keep = binaries && self.options.cache.directory().is_some();
        let ended = compile::limited(self.options.compile_limit, move || {
            let built = program::from_source(&context, &own)?;
            let code = if keep { program::code(&built).ok() } else { None };
            Ok::<_, Refusal>((built, code))
        });
        let (built, code) = compile::finish(ended, job.device.clone(), job.entry.clone(), self.options.compile_limit)?;
        if let Some(code) = code {
            self.options.cache.put(&key, &built.log, &code);
        }
        Ok((built, false))
    }
}
