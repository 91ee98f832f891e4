//! Matrix products against vendor libraries.

use super::title;
use crate::args::{Common, GemmArgs};
use crate::baseline::Library;
use crate::error::BenchError;
use crate::ours::Ours;
use crate::rivals::Rivals;
use crate::session::Session;
use crate::workload::Workload;

/// `gemm` and `deepbench`.
///
/// # Errors
/// Bad arguments, missing libraries, a lost device.
pub fn gemm(common: Common, args: GemmArgs, experiment: &'static str) -> Result<(), BenchError> {
    let mut session = Session::begin(experiment, common)?;
    let (how, constraint) = session.choose(&args.choice)?;
    let mut cases = session.cases(&args.cases)?;
    if experiment == "deepbench" {
        cases.iter_mut().for_each(|c| c.set = experiment.into());
    }
    let device = session.device()?;
    let mut rivals = args.rivals;
    if rivals.against.is_empty() {
        rivals.against.push(Library::Cublas);
    }
    let rivals = Rivals::open(&rivals, &device, session.measuring())?.beside_plain(args.plain);
    session.each(&cases, |case| {
        let ours = &mut |workload: &Workload<'_>| Ours::choose(workload, &how, &constraint);
        Ok(vec![rivals.measure(&title(experiment, case), &case.problem, ours)?])
    })?;
    session.finish()
}
