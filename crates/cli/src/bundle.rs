//! `tilewright bundle`: kernels of many problems built ahead of time, for programs that compile and search nothing.

use crate::args::{BundleArgs, PlaceArgs};
use crate::error::CliError;
use crate::output::{line, write_file};
use crate::{emit, problem, session};
use tilewright::{Bundled, Context, Operation};
use tilewright_device::Options;
use tilewright_gen::plan::Plan;
use tilewright_ir::Dialect;
use tilewright_tune::records::{DeviceKey, GENERATOR, RecordsError, Trial};
use tilewright_tune::{ProblemKey, Records};

/// A problem's operation with its plan, where that comes from and its time.
struct Chosen {
    operation: Operation,
    plan: Plan,
    origin: String,
    time_us: Option<f64>,
}

impl Chosen {
    fn bundled(&self) -> Bundled<'_> {
        Bundled { operation: &self.operation, plan: self.plan, origin: &self.origin, time_us: self.time_us }
    }
}

/// Writes the bundle of all problems of the command line.
pub fn run(args: &BundleArgs) -> Result<(), CliError> {
    let folder = args.out.as_deref().ok_or_else(|| CliError::usage("no folder is named for the bundle: add -o FOLDER"))?;
    let cases = problem::cases(&args.problem, args.plan.workspace)?;
    for skipped in &cases.skipped {
        eprintln!("not in the bundle: {skipped}");
    }
    let (context, target) = match (&args.place.device, &args.arch) {
        (Some(_), None) => {
            let context = session::open(&args.place, &args.plan, false)?;
            let target = context.info().target.clone();
            (context, target)
        }
        // Planned for another device than there is: nothing runs.
        (_, arch) => {
            let target = emit::named(arch.as_deref().unwrap_or("sm_90a"), None)?;
            let place = PlaceArgs { device: Some(format!("emu:{}", target.arch)), ..args.place.clone() };
            (session::open(&place, &args.plan, false)?, target)
        }
    };
    if target.dialect != Dialect::Cuda {
        return Err(CliError::usage(format!("{}: bundles are for NVIDIA's architectures, name one with --arch", target.arch)));
    }
    let devices = tuned_on(&context, &target.arch)?;
    let mut chosen: Vec<Chosen> = Vec::new();
    for case in &cases.list {
        if chosen.iter().any(|c| *c.operation.problem() == case.problem) {
            continue;
        }
        let operation = session::operation_for(&context, &target, case, &args.plan)?;
        chosen.push(choose(&context, operation, &devices)?);
    }
    let bundled: Vec<Bundled<'_>> = chosen.iter().map(Chosen::bundled).collect();
    let files = tilewright::bundle(&args.name, &target, &bundled, &Options::default()).map_err(session::classify)?;
    for (name, content) in &files {
        write_file(&folder.join(name), content)?;
    }
    for Chosen { operation, plan, origin, .. } in &chosen {
        line(&format!("{} ({origin}): {}\n  {plan}", operation.problem().title(), plan.readable()))?;
    }
    line(&format!("written: {} files for {} problems in {}", files.len(), chosen.len(), folder.display()))
}

/// Devices of an architecture that the records hold measured times of.
fn tuned_on(context: &Context, arch: &str) -> Result<Vec<DeviceKey>, CliError> {
    let mut devices = context.records().measured_devices().map_err(CliError::failed)?;
    devices.retain(|device| device.fingerprint.split(';').next() == Some(arch));
    Ok(devices)
}

/// The plan of `--plan`, else the fastest that was measured on a device of the architecture, else the plan that the operation
/// runs with. A plan that was verified by this installation comes before an imported one.
fn choose(context: &Context, operation: Operation, devices: &[DeviceKey]) -> Result<Chosen, CliError> {
    type Best = fn(&Records, &ProblemKey, &DeviceKey, &str) -> Result<Option<Trial>, RecordsError>;
    let sources: [(Best, &str); 2] = [(Records::best, ""), (Records::best_imported, " (imported, not verified here)")];
    for (best_of, note) in sources {
        let space = operation.space();
        let mut best: Option<(Plan, f64, &str)> = None;
        for device in devices {
            let trial = best_of(context.records(), &ProblemKey::of(space), device, GENERATOR).map_err(CliError::failed)?;
            let Some((trial, us)) = trial.and_then(|t| t.time_us.map(|us| (t, us))) else { continue };
            let legal = |p: &Plan| space.constraint().allows(p) && space.resolve(p).is_ok();
            let Some(plan) = Plan::parse(&trial.plan).ok().filter(legal) else { continue };
            if best.is_none_or(|(_, fastest, _)| us < fastest) {
                best = Some((plan, us, &device.name));
            }
        }
        if let Some((plan, us, device)) = best {
            return Ok(Chosen { operation, plan, origin: format!("measured on {device}{note}"), time_us: Some(us) });
        }
    }
    let (plan, origin) = operation.choice().map_err(session::classify)?;
    Ok(Chosen { operation, plan, origin: origin.name().into(), time_us: None })
}
