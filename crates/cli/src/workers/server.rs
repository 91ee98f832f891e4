//! The server of a fleet, for a build that reaches one. A build without the feature says so.

#[cfg(feature = "fleet")]
use super::classify;
use crate::error::CliError;
#[cfg(feature = "fleet")]
use std::time::Duration;
use tilewright_fleet::{Counted, Identity, NewTask, Queue, RunSpec};
use tilewright_tune::search::Cancel;

/// Joins the run on the server, as soon as no other worker has the GPU.
#[cfg(feature = "fleet")]
pub fn join(
    url: &str,
    identity: Identity,
    gpu: &str,
    run: &RunSpec,
    tasks: &[NewTask],
    cancel: &Cancel,
) -> Result<Box<dyn Queue>, CliError> {
    let address = tilewright_fleet::Address::parse(url).map_err(classify)?;
    let mut server = tilewright_fleet::Server::new(&address, identity).map_err(classify)?;
    server.failures_count_for(gpu);
    let mut said = false;
    loop {
        let joined = server.join(run, tasks).and_then(|()| server.gpu_is_free());
        match joined {
            Ok(true) => return Ok(Box::new(server)),
            Ok(false) if !said => {
                eprintln!("another worker of the fleet tunes on this GPU; waiting");
                said = true;
            }
            Ok(false) => {}
            Err(e) if e.is_passing() => tracing::warn!("{e}"),
            Err(e) => return Err(classify(e)),
        }
        for _ in 0..20 {
            if cancel.is_cancelled() {
                return Err(CliError::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[cfg(not(feature = "fleet"))]
pub fn join(_: &str, _: Identity, _: &str, _: &RunSpec, _: &[NewTask], _: &Cancel) -> Result<Box<dyn Queue>, CliError> {
    Err(CliError::usage(ABSENT))
}

/// The error of a build without the feature.
#[cfg(not(feature = "fleet"))]
pub const ABSENT: &str = "--fleet: this tilewright was built without PostgreSQL; build it with its feature `fleet`";

/// Looks at the address, the schema and the run, and writes nothing.
#[cfg(feature = "fleet")]
pub fn check(url: &str, run: &RunSpec, tasks: &[NewTask]) -> Result<(), CliError> {
    let address = tilewright_fleet::Address::parse(url).map_err(classify)?;
    let mut server = tilewright_fleet::Server::new(&address, Identity::default()).map_err(classify)?;
    let mut tries = 3;
    loop {
        tries -= 1;
        match server.check(run, tasks) {
            Err(e) if e.is_passing() && tries > 0 => std::thread::sleep(Duration::from_secs(1)),
            other => return other.map(drop).map_err(classify),
        }
    }
}

#[cfg(not(feature = "fleet"))]
pub fn check(_: &str, _: &RunSpec, _: &[NewTask]) -> Result<(), CliError> {
    Err(CliError::usage(ABSENT))
}

/// Counts the problems of a run, each time it is called; `None` where the server gives no answer.
#[cfg(feature = "fleet")]
pub fn counter(url: &str, run: &str) -> Result<impl FnMut() -> Option<Counted> + Send + use<>, CliError> {
    let address = tilewright_fleet::Address::parse(url).map_err(classify)?;
    let mut server = tilewright_fleet::Server::new(&address, Identity::default()).map_err(classify)?;
    let run = run.to_string();
    Ok(move || server.count(&run).ok())
}

#[cfg(not(feature = "fleet"))]
pub fn counter(_: &str, _: &str) -> Result<impl FnMut() -> Option<Counted> + Send + use<>, CliError> {
    Err::<fn() -> Option<Counted>, _>(CliError::usage(ABSENT))
}
