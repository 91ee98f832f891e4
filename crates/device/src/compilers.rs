//! The compilers of all vendors, as a worker process calls them.

use crate::cuda::nvrtc;
use crate::device::Backend;
use crate::hip::hiprtc;
use crate::job::{Binary, Job, Refusal, Work};
use crate::opencl::{self, ClDevice};
use crate::options::Options;
use crate::worker::serve;
use crate::{Cache, DeviceError};
use std::sync::Arc;

/// The body of the hidden subcommand: answers jobs until its input ends. Returns the process's exit code.
pub fn compile_worker_main() -> i32 {
    let mut compilers = Compilers::default();
    serve(|work| compilers.run(work))
}

/// The vendors' compilers, with what they keep between jobs.
#[derive(Default)]
struct Compilers {
    opencl: Vec<(String, Arc<ClDevice>)>,
}

impl Compilers {
    /// Works in this process, in this thread, without a limit.
    fn run(&mut self, work: &Work) -> Result<Binary, Refusal> {
        match work {
            Work::Compile(job) => match job.backend {
                Backend::Cuda => nvrtc::compile(job),
                Backend::Hip => hiprtc::compile(job),
                Backend::OpenCl => self.opencl(job)?.compile_job(job),
                Backend::Emulator => Err(Refusal::Compiler(format!("{} has no compiler", job.device))),
            },
            Work::Rehearse(rehearsal) => {
                let device = self.opencl(&rehearsal.job)?;
                device.rehearse_here(rehearsal).map_err(|e| Refusal::Source(e.to_string()))?;
                Ok(Binary::default())
            }
        }
    }

    fn opencl(&mut self, job: &Job) -> Result<Arc<ClDevice>, Refusal> {
        let id = job.device.as_str();
        if let Some((_, device)) = self.opencl.iter().find(|(known, _)| known == id) {
            return Ok(device.clone());
        }
        // A worker has no workers, and what it compiles is kept by whoever asked for it.
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
