//! Matrix products against vendor libraries.

use super::{title, unless_fatal};
use crate::args::{Against, Common};
use crate::baseline::{self, Baseline, Library};
use crate::compare::{Contender, compare};
use crate::error::BenchError;
use crate::ours::Ours;
use crate::session::{Session, choose, math};
use crate::workload::Workload;
use tilewright_device::Device;

/// `gemm` and `deepbench`.
///
/// # Errors
/// Bad arguments, missing libraries, a lost device.
pub fn gemm(common: Common, args: Against, experiment: &'static str) -> Result<(), BenchError> {
    let (how, constraint) = choose(&args.choice)?;
    let mut session = Session::begin(experiment, common)?;
    let mut cases = session.cases(&args.cases, "problem")?;
    if experiment == "deepbench" {
        cases.iter_mut().for_each(|c| c.set = experiment.into());
    }
    let device = session.device()?;
    let libraries = open_all(&args.against, device.as_ref(), args.clblast_tuned.as_ref())?;
    let limits = session.limits();
    session.each(&cases, |case| {
        let workload = Workload::new(&device, &case.problem, math(&args.cases))?;
        let ours = unless_fatal(Ours::choose(&workload, &how, &constraint))?;
        let mut contenders = vec![Contender::ours(&workload, ours.as_ref(), "tilewright")];
        for library in &libraries {
            contenders.push(Contender::library(&workload, library.as_ref())?);
        }
        Ok(vec![compare(&title(experiment, case), contenders, &limits)?])
    })?;
    session.finish();
    Ok(())
}

/// Opens all libraries, so that a missing one is told before any work is done.
pub(super) fn open_all(
    libraries: &[Library],
    device: &dyn Device,
    tuned: Option<&std::path::PathBuf>,
) -> Result<Vec<Box<dyn Baseline>>, BenchError> {
    if libraries.contains(&Library::Clblast) && libraries.contains(&Library::ClblastTuned) {
        return Err(BenchError::Usage(
            "clblast and clblast-tuned cannot be compared in one run (CLBlast's parameters hold for the whole process): \
             run one after the other with the same --json file"
                .into(),
        ));
    }
    libraries.iter().map(|l| baseline::open(*l, device, tuned)).collect()
}
