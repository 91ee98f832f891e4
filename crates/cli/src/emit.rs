//! `tilewright emit`: a plan's source as a file that stands alone.

use crate::args::{EmitArgs, Language};
use crate::error::CliError;
use crate::output::{line, write_file};
use crate::{problem, session};
use tilewright_ir::{Dialect, Target};

/// Prints or writes the source of one problem's plan.
pub fn run(args: &EmitArgs) -> Result<(), CliError> {
    let case = problem::one(&args.problem, args.plan.workspace)?;
    // Another architecture than the device's is planned for as its emulated device: nothing is compiled or run.
    let target = target(args)?;
    let mut place = args.place.clone();
    if let Some(target) = &target {
        place.device = Some(format!("emu:{}", target.arch));
    }
    let context = session::open(&place, &args.plan, false)?;
    let target = target.unwrap_or_else(|| context.info().target.clone());
    let operation = session::operation(&context, &case, &args.plan)?;
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

/// The target that `--target` and `--arch` name; `None` is the device's own.
fn target(args: &EmitArgs) -> Result<Option<Target>, CliError> {
    let Some(language) = args.target else { return Ok(None) };
    let (dialect, default) = match language {
        Language::Cuda => (Dialect::Cuda, "sm_90a"),
        Language::Hip => (Dialect::Hip, "gfx942"),
        Language::Opencl => (Dialect::OpenCl, "sm_90a"),
    };
    let arch = args.arch.as_deref().unwrap_or(default);
    let known = Target::by_arch(arch).ok_or_else(|| {
        CliError::usage(format!("--arch {arch}: not a known architecture; there are {}", Target::known().join(", ")))
    })?;
    if language != Language::Opencl && known.dialect != dialect {
        let right = if known.dialect == Dialect::Cuda { "cuda" } else { "hip" };
        return Err(CliError::usage(format!("--arch {arch} is not a target of {language:?}: take --target {right}, or opencl")));
    }
    Ok(Some(Target { dialect, ..known }))
}
