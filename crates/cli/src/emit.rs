//! `tilewright emit`: a plan's source as a file that stands alone.

use crate::args::{EmitArgs, HostLanguage, Language, PlaceArgs};
use crate::error::CliError;
use crate::output::{human_time, line, write_file};
use crate::{problem, session};
use tilewright::{CacheState, Context, Host, Operation, Origin, Plan};
use tilewright_ir::{Dialect, Target};
use tilewright_problem::Problem;
use tilewright_tune::ProblemKey;
use tilewright_tune::records::GENERATOR;
use tilewright_tune::search::device_key;

/// Prints or writes the source of one problem's plan.
pub fn run(args: &EmitArgs) -> Result<(), CliError> {
    let case = problem::one(&args.problem, args.plan.workspace)?;
    let (context, target) = match (&args.arch, language(args)?) {
        (Some(arch), language) => emulated(args, named(arch, language)?)?,
        (None, language) => {
            let wanted = |context: &Context| language.is_none_or(|l| dialect(l) == context.info().target.dialect);
            match (default_device(args)?.filter(wanted), language) {
                (Some(context), _) => (context, None),
                (None, Some(language)) => emulated(args, named(newest(language), Some(language))?)?,
                (None, None) => (session::open(&args.place, &args.plan, false)?, None),
            }
        }
    };
    let target = target.unwrap_or_else(|| context.info().target.clone());
    let operation = session::operation_for(&context, &target, &case, &args.plan)?;
    let (plan, origin) = operation.choice().map_err(session::classify)?;
    let name = args.name.as_deref().unwrap_or(match case.problem {
        Problem::Gemm(_) => "tilewright_gemm",
        Problem::Conv(_) => "tilewright_conv",
        Problem::Reduce(_) => "tilewright_reduce",
    });
    let source = match args.host {
        None => operation.source_of(&plan, &target),
        Some(HostLanguage::C) => operation.host_source(&plan, &target, name, Host::C),
        Some(HostLanguage::Cuda | HostLanguage::Hip) => operation.host_source(&plan, &target, name, Host::Source),
    };
    let source =
        format!("// Plan {}\n{}", chosen(&context, &operation, args, &plan, origin)?, source.map_err(session::classify)?);
    match &args.out {
        None => line(source.trim_end()),
        Some(path) => {
            write_file(path, &source)?;
            eprintln!("{}: {plan}", path.display());
            Ok(())
        }
    }
}

/// How the plan was chosen, and what is known of its time.
fn chosen(context: &Context, operation: &Operation, args: &EmitArgs, plan: &Plan, origin: Origin) -> Result<String, CliError> {
    let device = context.info();
    let key = device_key(device, CacheState::Cold);
    let best = context.records().best(&ProblemKey::of(operation.space()), &key, GENERATOR).map_err(CliError::failed)?;
    let time = best.and_then(|trial| Some((trial.time_us?, trial.time_kind?)));
    Ok(match (origin, time) {
        (Origin::Recorded | Origin::VerifiedAgain, Some((us, kind))) => {
            format!("tuned: {} ({}) on {}", human_time(us), kind.name(), device.name)
        }
        (Origin::Picked, _) if args.plan.plan.is_none() => "picked by the cost model, not measured".into(),
        (Origin::Picked, _) => format!("{}, not measured", session::origin(&args.plan, plan, origin)),
        _ => origin.name().into(),
    })
}

/// The language that the options name: host code has one.
fn language(args: &EmitArgs) -> Result<Option<Language>, CliError> {
    let wanted = match args.host {
        None => return Ok(args.target),
        Some(HostLanguage::C | HostLanguage::Cuda) => Language::Cuda,
        Some(HostLanguage::Hip) => Language::Hip,
    };
    match args.target {
        Some(other) if other != wanted => {
            let (given, needed) = (dialect(other).name(), dialect(wanted).name());
            Err(CliError::usage(format!("--host is for kernels in {needed}, --target says {given}: leave --target out")))
        }
        _ => Ok(Some(wanted)),
    }
}

/// The dialect that a word names.
pub const fn dialect(language: Language) -> Dialect {
    match language {
        Language::Cuda => Dialect::Cuda,
        Language::Hip => Dialect::Hip,
        Language::Opencl => Dialect::OpenCl,
    }
}

/// The device that is meant where no architecture is named: the given one, the default, or for OpenCL C the first that speaks it.
fn default_device(args: &EmitArgs) -> Result<Option<Context>, CliError> {
    match (&args.place.device, args.target) {
        (None, Some(Language::Opencl)) => {
            let place = PlaceArgs { device: Some("opencl:0".into()), ..args.place.clone() };
            Ok(session::open(&place, &args.plan, false).ok())
        }
        (None, Some(_)) => Ok(None),
        _ => session::open(&args.place, &args.plan, false).map(Some),
    }
}

/// Another target than the device's is planned for on the emulated device: nothing is compiled or run.
fn emulated(args: &EmitArgs, target: Target) -> Result<(Context, Option<Target>), CliError> {
    let place = PlaceArgs { device: Some(format!("emu:{}", target.arch)), ..args.place.clone() };
    Ok((session::open(&place, &args.plan, false)?, Some(target)))
}

/// What is planned for where a language alone is named.
const fn newest(language: Language) -> &'static str {
    match language {
        Language::Cuda | Language::Opencl => Target::NVIDIA,
        Language::Hip => Target::AMD,
    }
}

/// The target that an architecture and a language name; the language is the architecture's own unless it is given.
pub fn named(arch: &str, language: Option<Language>) -> Result<Target, CliError> {
    let known = Target::by_arch(arch).ok_or_else(|| {
        CliError::usage(format!("--arch {arch}: not a known architecture; there are {}", Target::known().join(", ")))
    })?;
    match language {
        Some(Language::Opencl) => Ok(session::in_opencl(known)),
        Some(language) if known.dialect != dialect(language) => {
            let (right, wrong) = if known.dialect == Dialect::Cuda { ("cuda", "HIP") } else { ("hip", "CUDA") };
            Err(CliError::usage(format!("--arch {arch} is not a target of {wrong}: take --target {right}, or opencl")))
        }
        _ => Ok(known),
    }
}
