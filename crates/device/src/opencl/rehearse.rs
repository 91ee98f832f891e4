//! Trial runs in compile workers. Processors' drivers compile a kernel for its work-group when it first runs: what crashes
//! or never ends there shall do so in a worker. What the worker compiled is found on disk afterwards.

use super::device::ClDevice;
use super::program;
use super::query::Vendor;
use crate::compile;
use crate::device::DeviceKind;
use crate::job::{Binary, Job, Refusal, Rehearsal, Value, Work};
use crate::{Device, DeviceError, Launch, LaunchArg};

/// Most memory a rehearsal may take, in bytes: a larger one is left out.
const MOST: u64 = 2 << 30;

impl ClDevice {
    /// Compiles in a worker. PoCL gives no code: it finds its own on disk.
    pub(crate) fn compile_job(&self, job: &Job) -> Result<Binary, Refusal> {
        let built = program::from_source(&self.context, job)?;
        let code = match self.context.found.vendor() {
            Vendor::Pocl => Vec::new(),
            _ => program::code(&built)?,
        };
        Ok(Binary { log: built.log, code })
    }

    /// Sends launches to a worker, each kernel's first one.
    pub(super) fn rehearse_in_workers(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        let Some(workers) = &self.options.workers else { return Ok(()) };
        if self.info().kind != DeviceKind::Cpu {
            return Ok(());
        }
        for (n, launch) in launches.iter().enumerate() {
            let seen = launches[..n].iter().any(|l| l.kernel.source() == launch.kernel.source() && l.grid == launch.grid);
            let bytes: u64 = launch.args.iter().map(|a| if let LaunchArg::Buffer(b) = a { b.bytes() } else { 0 }).sum();
            if seen || bytes > MOST {
                continue;
            }
            let values = launch.args.iter().map(|arg| match arg {
                LaunchArg::Buffer(buffer) => Value::Buffer(buffer.bytes()),
                LaunchArg::Map { memory, .. } => Value::Buffer(memory.bytes()),
                LaunchArg::I32(v) => Value::I32(*v),
                LaunchArg::I64(v) => Value::I64(*v),
                LaunchArg::F32(v) => Value::F32(v.to_bits()),
                LaunchArg::F64(v) => Value::F64(v.to_bits()),
            });
            let rehearsal = Rehearsal {
                job: self.job(launch.kernel.source(), launch.kernel.entry()),
                declared: launch.kernel.args().to_vec(),
                threads: launch.kernel.threads(),
                grid: launch.grid,
                values: values.collect(),
            };
            let limit = self.options.compile_limit;
            let ended = workers.run(Work::Rehearse(rehearsal), limit);
            compile::finish(ended, self.info().id.clone(), launch.kernel.entry().into(), limit)?;
        }
        Ok(())
    }

    /// The worker's part: builds, runs once on zeros, waits.
    pub(crate) fn rehearse_here(&self, rehearsal: &Rehearsal) -> Result<(), DeviceError> {
        let Rehearsal { job, declared, threads, grid, values } = rehearsal;
        let kernel = self.ready(job.clone(), declared, *threads)?;
        let args = values.iter().map(|value| {
            Ok(match *value {
                Value::Buffer(bytes) => {
                    let buffer = self.alloc(bytes)?;
                    self.fill(&buffer, 0)?;
                    LaunchArg::Buffer(buffer)
                }
                Value::I32(v) => LaunchArg::I32(v),
                Value::I64(v) => LaunchArg::I64(v),
                Value::F32(bits) => LaunchArg::F32(f32::from_bits(bits)),
                Value::F64(bits) => LaunchArg::F64(f64::from_bits(bits)),
            })
        });
        let args = args.collect::<Result<Vec<_>, DeviceError>>()?;
        self.launch(&[Launch { kernel, grid: *grid, args }])?;
        self.sync()
    }
}
