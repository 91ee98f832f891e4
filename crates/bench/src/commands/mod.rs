//! The subcommands: each builds sides for its cases and hands them to [`crate::compare`].

mod conv;
mod fit;
mod gemm;
mod judge;
mod opencl;
mod pick;
mod plans;
mod results;
mod throughput;
mod verify;

pub use conv::conv;
pub use fit::fit;
pub use gemm::gemm;
pub use judge::judge_model;
pub use opencl::opencl_vs_cuda;
pub use pick::pick_quality;
pub use plans::plans;
pub use results::results;
pub use throughput::throughput;
pub use verify::{Ended, Line, Log, Pairs, verify_pairs, verify_random};

use crate::args::TableArgs;
use crate::compare::Title;
use crate::error::BenchError;
use crate::table::{Columns, markdown};
use crate::{ours::Ours, record};
use tilewright_problem::cases::Case;

/// Prints records as Markdown.
///
/// # Errors
/// [`BenchError::File`]; records that cannot be written.
pub fn table(args: TableArgs) -> Result<(), BenchError> {
    let mut records = Vec::new();
    for path in &args.files {
        records.extend(record::read(path)?);
    }
    if let Some(path) = &args.html {
        std::fs::write(path, crate::html::page(&records)).map_err(|e| BenchError::unwritable(path, &e))?;
    }
    if let Some(path) = &args.records {
        let added = crate::filed::file(&records, path)?;
        eprintln!("{added} plans added to {}", path.display());
    }
    let columns = Columns { plans: args.plans, resources: args.resources, floor: args.floor, brief: args.brief };
    print!("{}", markdown(&records, columns));
    Ok(())
}

/// The title of a case's record.
fn title(experiment: &str, case: &Case) -> Title {
    Title { experiment: experiment.into(), set: case.set.clone(), case: case.name.clone() }
}

/// A side that failed ends the run only if the device is lost.
pub(crate) fn unless_fatal(ours: Result<Ours, BenchError>) -> Result<Result<Ours, BenchError>, BenchError> {
    match ours {
        Err(e) if e.is_fatal() => Err(e),
        other => Ok(other),
    }
}
