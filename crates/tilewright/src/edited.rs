//! A source that [`Operation::source`](crate::Operation::source) wrote and someone changed. Problem, plan and launches are read
//! from its head. Its text takes the place of the kernels that would be generated.

use crate::emit::{MARK, VERSION, launches};
use serde_json::Value;
use std::sync::Arc;
use tilewright_gen::plan::Plan;
use tilewright_gen::program::Program;
use tilewright_ir::{Dialect, Source, Target, print};
use tilewright_problem::Problem;

/// Why an edited source cannot be used.
///
/// ```
/// use tilewright::{Edited, SourceError};
///
/// // A kernel alone does not say which problem it computes.
/// let error = Edited::parse("__kernel void gemm() {}").unwrap_err();
/// assert_eq!(error, SourceError::NoHeader);
/// assert!(error.to_string().contains("keep the head that `emit` wrote"));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The line that says what it is.
    #[error(
        "it has no line `{MARK}{{...}}`: keep the head that `emit` wrote, which says what the kernels compute and how they are launched"
    )]
    NoHeader,
    /// Of a version that is not read.
    #[error("its head is of version {found}, and this tilewright reads {VERSION}: emit the source anew and repeat the edit")]
    Version {
        /// As it stands there.
        found: String,
    },
    /// What the head says is no problem or plan.
    #[error("its head is damaged: {0}; take the line `{MARK}` from the source as it was emitted")]
    Header(String),
    /// It is written in another language than the device takes.
    #[error("it is written in {}, and {device} takes {}: name a device of its language", written.name(), taken.name())]
    Dialect {
        /// The source's.
        written: Dialect,
        /// The device.
        device: String,
        /// The device's.
        taken: Dialect,
    },
    /// The plan of its head cannot be launched as the head says.
    #[error("the plan of its head does not fit: {0}; emit the source for this device, and by this version, and repeat the edit")]
    Plan(String),
    /// A kernel is missing, or takes other arguments.
    #[error("kernel `{entry}` {what}: names and arguments of kernels must stay as they were emitted")]
    Kernel {
        /// Entry point.
        entry: String,
        /// What is wrong with it.
        what: String,
    },
    /// The compiler refuses it.
    #[error("the compiler refuses it, in lines counted from the top of the file:\n{log}")]
    Compile {
        /// What it said.
        log: String,
    },
}

/// An edited source with what its head says.
///
/// ```
/// use tilewright::{Context, Edited, Gemm, Operands, Options, Origin, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let text = context.gemm(Gemm::new(Scalar::F32, 2, 2, 1))?.source()?;
/// let edited = Edited::parse(&text)?;
/// let operation = context.edited(&edited)?;
/// assert_eq!(operation.choice()?.1, Origin::Edited);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Edited {
    /// What its kernels compute.
    pub problem: Problem,
    /// The plan that they were generated from, and are launched by.
    pub plan: Plan,
    /// Architecture it was planned for.
    pub arch: String,
    /// Language.
    pub dialect: Dialect,
    pub(crate) atomics: bool,
    launches: Value,
    pub(crate) text: Arc<str>,
}

impl Edited {
    /// Reads the head of a source.
    ///
    /// # Errors
    /// [`SourceError::NoHeader`], [`SourceError::Version`], [`SourceError::Header`].
    pub fn parse(text: &str) -> Result<Edited, SourceError> {
        let damaged = |e: &dyn std::fmt::Display| SourceError::Header(e.to_string());
        let line = text.lines().find_map(|line| line.strip_prefix(MARK)).ok_or(SourceError::NoHeader)?;
        let head: Value = serde_json::from_str(line).map_err(|e| damaged(&e))?;
        if head["version"] != VERSION {
            return Err(SourceError::Version { found: head["version"].to_string() });
        }
        let word = |key: &str| head[key].as_str().ok_or_else(|| SourceError::Header(format!("`{key}` is missing")));
        Ok(Edited {
            problem: Problem::parse(word("problem")?).map_err(|e| damaged(&e))?,
            plan: Plan::parse(word("plan")?).map_err(|e| damaged(&e))?,
            arch: word("arch")?.into(),
            dialect: serde_json::from_value(head["dialect"].clone()).map_err(|e| damaged(&e))?,
            atomics: head["atomics"] == true,
            launches: head["launches"].clone(),
            text: text.into(),
        })
    }

    /// That the program is launched as the head says, and that the text has its kernels.
    pub(crate) fn check(&self, program: &Program, target: &Target) -> Result<(), SourceError> {
        let sources = program.kernels.iter().map(|k| print(k, target)).collect::<Result<Vec<_>, _>>();
        let sources = sources.map_err(|e| SourceError::Plan(e.to_string()))?;
        if launches(program, &sources) != self.launches {
            return Err(SourceError::Plan(format!("for {} it is launched otherwise than its head says", target.arch)));
        }
        for (Source { entry, .. }, kernel) in sources.iter().zip(&program.kernels) {
            let wrong = |what: String| SourceError::Kernel { entry: entry.clone(), what };
            let found = parameters(&self.text, entry).ok_or_else(|| wrong("is missing".into()))?;
            if found != kernel.args.len() {
                return Err(wrong(format!("takes {found} arguments in place of {}", kernel.args.len())));
            }
        }
        Ok(())
    }
}

/// Parameters of a function in C source, by its name.
fn parameters(text: &str, name: &str) -> Option<usize> {
    let (at, _) = text.match_indices(name).find(|(at, _)| {
        let before = text[..*at].chars().next_back();
        let comment = text[..*at].lines().next_back().is_some_and(|line| line.trim_start().starts_with("//"));
        !comment && before.is_some_and(char::is_whitespace) && text[at + name.len()..].trim_start().starts_with('(')
    })?;
    let list = text[at + name.len()..].trim_start().strip_prefix('(')?;
    let (mut depth, mut commas, mut any) = (0, 0, false);
    for c in list.chars() {
        match c {
            ')' if depth == 0 => return Some(if any { commas + 1 } else { 0 }),
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => commas += 1,
            c => any |= !c.is_whitespace(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_of_a_kernel_are_counted() {
        let text =
            "// k(a, b, c)\nvoid attribute((x(1, 2))) k(\n    const int* a, int (*b)(int, int))\n{ k1(a); }\nvoid none ( ) {}";
        assert_eq!(parameters(text, "k"), Some(2));
        assert_eq!(parameters(text, "none"), Some(0));
        assert_eq!(parameters(text, "other"), None);
    }
}
