//! How good the cost model's unmeasured pick is.

use super::{title, unless_fatal};
use crate::args::{Common, Tuned};
use crate::compare::{Contender, compare};
use crate::error::BenchError;
use crate::ours::{Choose, Ours};
use crate::session::Session;
use crate::workload::Workload;

/// `pick-quality`: the pick stands first, so that the ratio of the tuned plan is the share of the tuned speed that the
/// pick reaches.
///
/// # Errors
/// Bad arguments, a lost device.
pub fn pick_quality(common: Common, args: Tuned) -> Result<(), BenchError> {
    const EXPERIMENT: &str = "pick-quality";
    let mut session = Session::begin(EXPERIMENT, common)?;
    let (how, constraint) = session.choose(&args.choice)?;
    if how == Choose::Pick {
        return Err(BenchError::Usage("pick-quality compares the pick with a tuned plan: leave out --pick".into()));
    }
    let cases = session.cases(&args.cases)?;
    let device = session.device()?;
    let (limits, cache) = (session.limits(), session.cache());
    session.each(&cases, |case| {
        let workload = Workload::new(&device, &case.problem, cache)?;
        let picked = unless_fatal(Ours::choose(&workload, &Choose::Pick, &constraint))?;
        let tuned = unless_fatal(Ours::choose(&workload, &how, &constraint))?;
        let contenders =
            vec![Contender::ours(&workload, picked.as_ref(), "picked"), Contender::ours(&workload, tuned.as_ref(), "tuned")];
        Ok(vec![compare(&title(EXPERIMENT, case), contenders, &limits)?])
    })?;
    session.finish()
}
