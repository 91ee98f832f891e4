//! What a worker process does: it calls the compilers of all vendors, and holds a device for a tuner.

use crate::cuda::nvrtc;
use crate::device::Backend;
use crate::hip::hiprtc;
use crate::isolated::Host;
use crate::job::{Binary, Job, Refusal, Work};
use crate::opencl::{self, ClDevice};
use crate::options::Options;
use crate::worker::{Serve, serve};
use crate::{Cache, DeviceError};
use std::sync::{Arc, Mutex, PoisonError};

/// The body of the hidden subcommand: answers jobs until its input ends. Returns the process's exit code.
pub fn compile_worker_main() -> i32 {
    serve(&Jobs::default())
}

/// All jobs of a worker.
#[derive(Default)]
struct Jobs {
    compilers: Mutex<Compilers>,
    host: Host,
}

impl Serve for Jobs {
    fn runs_in_parallel(&self, work: &Work) -> bool {
        matches!(work, Work::Device(call) if call.runs_in_parallel())
    }

    fn run(&self, work: &Work) -> Result<Binary, Refusal> {
        let compilers = || self.compilers.lock().unwrap_or_else(PoisonError::into_inner);
        match work {
            Work::Compile(job) => compilers().compile(job),
            Work::Rehearse(rehearsal) => {
                let device = compilers().opencl(&rehearsal.job)?;
                device.rehearse_here(rehearsal).map_err(|e| Refusal::Source(e.to_string()))?;
                Ok(Binary::default())
            }
            Work::Device(call) => self.host.run(call),
        }
    }
}

/// The vendors' compilers, with what they keep between jobs.
#[derive(Default)]
struct Compilers {
    opencl: Vec<(String, Arc<ClDevice>)>,
}

impl Compilers {
    /// Compiles in this process, in this thread, without a limit.
    fn compile(&mut self, job: &Job) -> Result<Binary, Refusal> {
        match job.backend {
            Backend::Cuda => nvrtc::compile(job),
            Backend::Hip => hiprtc::compile(job),
            Backend::OpenCl => self.opencl(job)?.compile_job(job),
            Backend::Emulator => Err(Refusal::Compiler(format!("{} has no compiler", job.device))),
        }
    }

    fn opencl(&mut self, job: &Job) -> Result<Arc<ClDevice>, Refusal> {
        let id = job.device.as_str();
        if let Some((_, device)) = self.opencl.iter().find(|(known, _)| known == id) {
            return Ok(device.clone());
        }
        // A worker starts no workers, and the process that sent the job caches the binary.
        let options = Options { cache: Cache::disabled(), workers: None, ..Options::default() };
        let device = match &job.place {
            Some(place) => opencl::device_at(id, place, &options),
            None => opencl::device(id.strip_prefix("opencl:").unwrap_or(id), &options),
        };
        let device = Arc::new(device.map_err(|e| match e {
            DeviceError::NoSuchDevice { .. } | DeviceError::Missing { .. } => Refusal::Unseen(e.to_string()),
            other => Refusal::Compiler(other.to_string()),
        })?);
        self.opencl.push((id.to_string(), device.clone()));
        Ok(device)
    }
}
