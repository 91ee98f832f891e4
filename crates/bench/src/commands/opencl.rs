//! The same plan through two back ends of the same GPU.

use super::{title, unless_fatal};
use crate::args::{Common, OtherArgs};
use crate::compare::{Contender, compare};
use crate::error::BenchError;
use crate::ours::Ours;
use crate::session::Session;
use crate::workload::Workload;
use tilewright_gen::space::Space;

/// `opencl-vs-cuda`: the plan is chosen on the second device and runs on both. OpenCL C lacks some of CUDA's features
/// (asynchronous copies, waves that only load). So a plan chosen on the first would mostly be refused on the second.
///
/// # Errors
/// Bad arguments, missing devices, a lost device.
pub fn opencl_vs_cuda(common: Common, args: OtherArgs) -> Result<(), BenchError> {
    const EXPERIMENT: &str = "opencl-vs-cuda";
    let mut session = Session::begin(EXPERIMENT, common)?;
    let (how, constraint) = session.choose(&args.choice)?;
    let cases = session.cases(&args.cases)?;
    let (device, other) = (session.device()?, session.other_device(&args.other)?);
    let names = [device.info().id.clone(), other.info().id.clone()];
    let (limits, cache) = (session.limits(), session.cache());
    session.each(&cases, |case| {
        let workloads = [&device, &other].map(|d| Workload::new(d, &case.problem, cache));
        let [first, second] = workloads;
        let (first, second) = (first?, second?);
        let theirs = Ours::choose(&second, &how, &constraint)?;
        let space = Space::new(&case.problem, &device.info().target)?;
        let ours = unless_fatal(Ours::with_plan(&first, &space, &theirs.plan))?;
        let contenders =
            vec![Contender::ours(&first, ours.as_ref(), &names[0]), Contender::ours(&second, Ok(&theirs), &names[1])];
        Ok(vec![compare(&title(EXPERIMENT, case), contenders, &limits)?])
    })?;
    session.finish()
}
