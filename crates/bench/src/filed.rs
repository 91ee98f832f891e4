//! What was measured here as tuning records, so that a device of the same name starts from these plans.

use crate::error::BenchError;
use crate::record::{Record, Side};
use std::fmt::Write;
use std::path::Path;
use tilewright_check::verify::Depth;
use tilewright_device::{Backend, CacheState};
use tilewright_gen::space::Space;
use tilewright_ir::Target;
use tilewright_problem::Problem;
use tilewright_tune::records::{self, DeviceKey, Records, TimeKind, Trial};

/// Adds the plans of generated kernels that were right and have a time to a records file. Gives the number of plans that were new
/// to it.
///
/// # Errors
/// Problems that are none, devices without a name, a records file that cannot be written.
pub fn file(measured: &[Record], path: &Path) -> Result<usize, BenchError> {
    let mut lines = String::new();
    for record in measured {
        for side in &record.sides {
            if let Some(filed) = filed(record, side)? {
                // Writing to a String cannot fail.
                let _ = writeln!(lines, "{}", filed.line());
            }
        }
    }
    let failed = |e: records::RecordsError| BenchError::Plan(e.to_string());
    Records::open(path).map_err(failed)?.import(&mut lines.as_bytes(), "measurements").map_err(failed)
}

/// One side as a trial; `None` where there is no plan of ours that was right.
fn filed(record: &Record, side: &Side) -> Result<Option<records::Record>, BenchError> {
    let (Some(plan), Some(time), Some(true), None) = (&side.plan, &side.time, side.correct, &side.failure) else {
        return Ok(None);
    };
    // Nothing of a problem's key depends on the target.
    let space = Space::new(&Problem::parse(&record.problem)?, &Target::processor())?;
    let at = &record.environment;
    let named = at.device.split_once(" (").and_then(|(id, name)| Some((id, name.strip_suffix(')')?)));
    let named = named.and_then(|(id, name)| Some(format!("{name} ({})", Backend::of_id(id)?)));
    let name = named.ok_or_else(|| BenchError::Usage(format!("{}: the record names no device as `cuda:0 (NAME)`", at.device)))?;
    let warm = if record.cache == CacheState::Warm { "; warm caches" } else { "" };
    let trial = Trial {
        verified: Some(Depth::Quick),
        max_error: side.max_error,
        ..Trial::timed(plan, time.median_us, TimeKind::Measured)
    };
    Ok(Some(records::Record {
        problem: tilewright_tune::ProblemKey::of(&space),
        name: record.problem.clone(),
        device: DeviceKey { name, fingerprint: format!("{}{warm}", at.fingerprint) },
        generator: format!("{} as measured on {}", at.version, at.date),
        timed_by: None,
        verified_by: Some(at.source.clone()),
        trial,
    }))
}
