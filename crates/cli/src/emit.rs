//! `tilewright emit`: a plan's source as a file that stands alone.

use crate::args::{EmitArgs, Language, PlaceArgs};
use crate::error::CliError;
use crate::output::{line, write_file};
use crate::{problem, session};
use tilewright_ir::{Dialect, Target};

/// Prints or writes the source of one problem's plan.
pub fn run(args: &EmitArgs) -> Result<(), CliError> {
    let case = problem::one(&args.problem, args.plan.workspace)?;
    let dialect = args.target.map(dialect);
    let named = if args.arch.is_none() && args.place.device.is_some() {
        let context = session::open(&args.place, &args.plan, false)?;
        Some(context).filter(|c| dialect.is_none_or(|d| d == c.info().target.dialect))
    } else {
        None
    };
    let (context, target) = match (named, args.target) {
        (Some(context), _) => (context, None),
        (None, None) => (session::open(&args.place, &args.plan, false)?, None),
        (None, Some(language)) => {
            // Another target than the device's is planned for on the emulated device: nothing is compiled or run.
            let target = target(language, args.arch.as_deref())?;
            let place = PlaceArgs { device: Some(format!("emu:{}", target.arch)), ..args.place.clone() };
            (session::open(&place, &args.plan, false)?, Some(target))
        }
    };
    let target = target.unwrap_or_else(|| context.info().target.clone());
    let operation = session::operation_for(&context, &target, &case, &args.plan)?;
    let plan = operation.plan().map_err(session::classify)?;
    let source = operation.source_of(&plan, &target).map_err(session::classify)?;
    match &args.out {
        None => line(source.trim_end()),
        Some(path) => {
            write_file(path, &source)?;
            eprintln!("{}: {plan}", path.display());
            Ok(())
        }
    }
}

const fn dialect(language: Language) -> Dialect {
    match language {
        Language::Cuda => Dialect::Cuda,
        Language::Hip => Dialect::Hip,
        Language::Opencl => Dialect::OpenCl,
    }
}

/// The target that `--target` and `--arch` name.
fn target(language: Language, arch: Option<&str>) -> Result<Target, CliError> {
    let arch = arch.unwrap_or(match language {
        Language::Cuda | Language::Opencl => "sm_90a",
        Language::Hip => "gfx942",
    });
    let known = Target::by_arch(arch).ok_or_else(|| {
        CliError::usage(format!("--arch {arch}: not a known architecture; there are {}", Target::known().join(", ")))
    })?;
    if language == Language::Opencl {
        return Ok(session::in_opencl(known));
    }
    if known.dialect != dialect(language) {
        let (right, wrong) = if known.dialect == Dialect::Cuda { ("cuda", "HIP") } else { ("hip", "CUDA") };
        return Err(CliError::usage(format!("--arch {arch} is not a target of {wrong}: take --target {right}, or opencl")));
    }
    Ok(known)
}
