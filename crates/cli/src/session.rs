//! What the subcommands share: the device, the records and an operation for each problem, opened as the options say.

use crate::args::{PlaceArgs, PlanArgs};
use crate::error::CliError;
use crate::output::{line, one_line};
use crate::problem::{Case, Cases};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tilewright::{CacheState, Context, Operation, Options, Origin, RecordsAt};
use tilewright_device::{COMPILE_WORKER, DeviceError, Workers};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::program::Program;
use tilewright_ir::{Dialect, Features, Kernel, Target};
use tilewright_tune::search::Cancel;

/// Opens the device and the records that the options name.
pub fn open(place: &PlaceArgs, plan: &PlanArgs, keep_records: bool) -> Result<Context, CliError> {
    open_to_time(place, plan, keep_records, CacheState::Cold)
}

/// As [`open`], for runs that are timed with caches in this state.
pub fn open_to_time(place: &PlaceArgs, plan: &PlanArgs, keep_records: bool, cache: CacheState) -> Result<Context, CliError> {
    let records = match &place.records {
        Some(path) => RecordsAt::File(path.clone()),
        None if keep_records => RecordsAt::Default,
        // Reading what was tuned before makes no file.
        None if tilewright::default_records().exists() => RecordsAt::Default,
        None => RecordsAt::Memory,
    };
    open_with(place, plan, records, cache)
}

/// As [`open_to_time`], with these records.
pub fn open_with(place: &PlaceArgs, plan: &PlanArgs, records: RecordsAt, cache: CacheState) -> Result<Context, CliError> {
    // Compilers crash: let that happen in another process.
    let workers = Workers::of_current_exe(COMPILE_WORKER).ok().map(Arc::new);
    let device_options = tilewright_device::Options { workers, ..tilewright_device::Options::default() };
    let options = Options {
        device: place.device.clone(),
        device_options,
        records,
        workspace: plan.workspace,
        allow_atomics: plan.atomics,
        ieee: plan.ieee,
        cache,
        // This command is its own worker.
        ..Options::default()
    };
    let context = Context::with(options).map_err(|e| match (&e, &place.device) {
        (tilewright::Error::Device(DeviceError::BadSpec { .. }), _) => CliError::usage(e),
        (tilewright::Error::Device(DeviceError::Missing { .. }), Some(device)) => {
            CliError::failed(format!("--device {device}: {e}"))
        }
        _ => CliError::failed(e),
    })?;
    let info = context.info();
    tracing::info!("device {}: {}, {}; records {}", info.id, info.name, info.fingerprint, context.records().path().display());
    Ok(context)
}

/// The device that runs the problems: for an edited source, the first of its language where none is named.
pub fn place_of(place: &PlaceArgs, cases: &Cases) -> Result<PlaceArgs, CliError> {
    let Some((path, edited)) = cases.list.first().and_then(|case| case.source.as_ref()) else { return Ok(place.clone()) };
    let backend = match edited.dialect {
        Dialect::Cuda => "cuda",
        Dialect::Hip => "hip",
        Dialect::OpenCl => "opencl",
    };
    match &place.device {
        Some(device) if device.split(':').next() == Some("emu") => Err(CliError::usage(format!(
            "--device {device}: the emulator runs no source text: take --device {backend}:0 for {}",
            path.display()
        ))),
        Some(device) => Ok(PlaceArgs { device: Some(device.clone()), ..place.clone() }),
        None => match tilewright_device::open(backend) {
            Ok(_) => Ok(PlaceArgs { device: Some(backend.into()), ..place.clone() }),
            Err(e) => {
                Err(CliError::failed(format!("--source {}: its language needs a device `{backend}:0`: {e}", path.display())))
            }
        },
    }
}

/// The constraint that `--plan` names.
pub fn constraint(plan: &PlanArgs) -> Result<Constraint, CliError> {
    match &plan.plan {
        None => Ok(Constraint::none()),
        Some(text) => Constraint::parse(text).map_err(|e| CliError::usage(format!("--plan: {e}"))),
    }
}

/// The operation of a case under the constraint of `--plan`. A whole plan must suit the problem and the device; where it does
/// not, the refusal names the nearest that does.
pub fn operation(context: &Context, case: &Case, plan: &PlanArgs) -> Result<Operation, CliError> {
    operation_for(context, &context.info().target, case, plan)
}

/// As [`operation`], planned for another target than the device.
pub fn operation_for(context: &Context, target: &Target, case: &Case, plan: &PlanArgs) -> Result<Operation, CliError> {
    if let Some((path, edited)) = &case.source {
        return context.edited_for(edited, target).map_err(|e| CliError::failed(format!("{}: {e}", path.display())));
    }
    let constraint = constraint(plan)?;
    let operation = context.operation_for(case.problem.clone(), target).map_err(CliError::usage)?;
    let whole = plan.plan.as_deref().and_then(|text| Plan::parse(text).ok());
    let operation = operation.constrained(&constraint);
    let Some(whole) = whole else { return Ok(operation) };
    match operation.set_plan(&whole) {
        Ok(()) => Ok(operation),
        Err(refusal) => {
            let free = context.operation_for(case.problem.clone(), target).map_err(CliError::usage)?;
            let nearest = match free.nearest(&whole) {
                Some(near) => format!("; the nearest plan that fits is {near}"),
                None => String::new(),
            };
            Err(CliError::failed(format!("{refusal}{nearest}")))
        }
    }
}

/// Where a plan comes from, in words: a pick keeps the keys of `--plan`, but for those that have no effect on it.
pub fn origin(args: &PlanArgs, plan: &Plan, origin: Origin) -> String {
    if origin != Origin::Picked || args.plan.is_none() {
        return origin.name().into();
    }
    let given = constraint(args).unwrap_or_default();
    let idle: Vec<String> =
        given.iter().filter(|(key, value)| plan.get(*key) != *value).map(|(key, value)| format!("{key}{value}")).collect();
    let idle = if idle.is_empty() { String::new() } else { format!("; without effect here: {}", idle.join(", ")) };
    format!("keys of --plan given, the others picked{idle}")
}

/// What OpenCL C can say on any driver of an architecture. It has no roles, no asynchronous copies, no shuffles, no matrix units,
/// and as much local memory as NVIDIA's driver gives.
pub fn in_opencl(target: Target) -> Target {
    let features = Features { f64: target.features.f64, atomic64: target.features.atomic64, ..Features::default() };
    let mut limits = target.limits;
    if target.dialect == Dialect::Cuda {
        limits.shared_per_group = limits.shared_per_group.min(48 << 10);
    }
    Target { dialect: Dialect::OpenCl, features, limits, ..target }
}

/// The kernel that reads the operands. A reduction over an empty axis has none.
pub fn main_kernel(program: &Program) -> Result<&Kernel, CliError> {
    tilewright::explain::main_kernel(program).map_err(classify)
}

/// Library errors that the user's input causes are wrong use, the others failures.
pub fn classify(e: tilewright::Error) -> CliError {
    match e {
        tilewright::Error::Problem(_) | tilewright::Error::Plan(_) | tilewright::Error::NoMainLoop => CliError::usage(e),
        tilewright::Error::Source(e) => CliError::Log(e.to_string()),
        other => CliError::failed(other),
    }
}

/// Time for the trial in flight and the last verification after a request to end.
const GRACE: Duration = Duration::from_secs(10);

/// Ctrl-C, SIGTERM and SIGHUP (unless it is ignored, as under `nohup`) ask the work to end with what it has. A second signal, or
/// [`GRACE`], ends the process whatever it is at. No candidate is blamed for that.
pub fn on_interrupt(cancel: &Cancel) -> Result<(), CliError> {
    let cancel = cancel.clone();
    let stop = || tilewright_device::exit_now(i32::from(CliError::Interrupted.code()));
    let interrupted = Arc::new(move || {
        if cancel.is_cancelled() {
            stop();
        }
        cancel.cancel();
        let late = std::thread::Builder::new().name("late".into()).spawn(move || {
            std::thread::sleep(GRACE);
            stop()
        });
        if late.is_err() {
            stop();
        }
        eprintln!("\ninterrupted: finishing the trial in flight, for {} s at most (again to stop at once)", GRACE.as_secs());
    });
    #[cfg(unix)]
    on_end_of_session(&interrupted)?;
    ctrlc::set_handler(move || interrupted()).map_err(|e| CliError::failed(format!("Ctrl-C cannot be caught: {e}")))
}

/// Calls a function on SIGTERM and, where that is not ignored, on SIGHUP.
#[cfg(unix)]
fn on_end_of_session(interrupted: &Arc<impl Fn() + Send + Sync + 'static>) -> Result<(), CliError> {
    use signal_hook::consts::{SIGHUP, SIGTERM};
    let failed = |e: std::io::Error| CliError::failed(format!("SIGTERM and SIGHUP cannot be caught: {e}"));
    let caught = if is_ignored(SIGHUP) { vec![SIGTERM] } else { vec![SIGTERM, SIGHUP] };
    let mut signals = signal_hook::iterator::Signals::new(caught).map_err(failed)?;
    let interrupted = interrupted.clone();
    let listen = move || signals.forever().for_each(|_| interrupted());
    std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
    Ok(())
}

/// True for a signal that this process was started with as ignored (`nohup`), where the system tells.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Works on every case, which it counts from 0. One that fails is reported (with `json` as an object) and the others go on; a single one's failure is the
/// command's.
pub fn each(
    cases: &Cases,
    context: &Context,
    json: bool,
    mut work: impl FnMut(usize, &Case) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut failed = 0;
    for (number, case) in cases.list.iter().enumerate() {
        match work(number, case) {
            Ok(()) => {}
            Err(CliError::Interrupted) => return Err(CliError::Interrupted),
            // Another process has done the rest: a failure here must not be lost.
            Err(CliError::HandedOver(code)) => return Err(CliError::HandedOver(if code == 0 && failed > 0 { 1 } else { code })),
            Err(e) => {
                if json && !matches!(e, CliError::Told(_)) {
                    let (problem, device) = (case.problem.key(), &context.info().id);
                    line(
                        &json!({ "problem": problem, "device": device, "verified": false, "error": e.to_string() }).to_string(),
                    )?;
                }
                if cases.list.len() == 1 && cases.skipped.is_empty() {
                    return Err(e);
                }
                eprintln!("error: {}: {}", case.title, one_line(&e.to_string()));
                failed += 1;
            }
        }
    }
    for reason in &cases.skipped {
        eprintln!("error: {}", one_line(reason));
    }
    match failed + cases.skipped.len() {
        0 => Ok(()),
        failed => {
            Err(CliError::failed(format!("{failed} of {} cases failed, see above", cases.list.len() + cases.skipped.len())))
        }
    }
}
