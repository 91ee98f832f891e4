//! Matrix products against vendor libraries.

use super::title;
use crate::args::{Against, Common};
use crate::error::BenchError;
use crate::ours::Ours;
use crate::rivals::Rivals;
use crate::session::Session;
use crate::workload::Workload;

/// `gemm` and `deepbench`.
///
/// # Errors
/// Bad arguments, missing libraries, a lost device.
pub fn gemm(common: Common, args: Against, experiment: &'static str) -> Result<(), BenchError> {
    let mut session = Session::begin(experiment, common)?;
    let (how, constraint) = session.choose(&args.choice)?;
    let mut cases = session.cases(&args.cases, "problem")?;
    if experiment == "deepbench" {
        cases.iter_mut().for_each(|c| c.set = experiment.into());
    }
    let device = session.device()?;
    let rivals = Rivals::open(&args.against, &device, args.clblast_tuned.as_deref(), session.limits().time, session.cache())?
        .beside_plain(args.plain);
    session.each(&cases, |case| {
        let ours = &mut |workload: &Workload<'_>| Ours::choose(workload, &how, &constraint);
        Ok(vec![rivals.measure(&title(experiment, case), &case.problem, ours)?])
    })?;
    session.finish()
}
