//! From the command line to problems: words, a text, or a file of cases.

use crate::args::{PlanArgs, ProblemArgs, SourceArgs, Word};
use crate::error::CliError;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tilewright::Edited;
use tilewright_bench::values::{Range, range};
use tilewright_problem::cases::{self, CaseOptions, Skipped};
use tilewright_problem::fields::{Draft, Given, Kind, Of, Refused};
use tilewright_problem::{Extent, Factors, Math, Problem};

/// One problem to work on.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What is computed.
    pub problem: Problem,
    /// The set of a file's cases it belongs to.
    pub set: Option<String>,
    /// Short words for titles and progress: `gemm 1024x1024x1024 f32 nt`.
    pub title: String,
    /// Alpha and beta.
    pub factors: Factors,
    /// The layers of a model that compute it.
    pub layers: Vec<String>,
    /// How often it is computed.
    pub calls: f64,
    /// The edited source that `--source` names, with its path.
    pub source: Option<(PathBuf, Edited)>,
}

impl Case {
    /// How far right results are off, in words.
    pub fn error_in_words(&self, error: f64) -> String {
        let scale = match self.problem {
            Problem::Gemm(_) | Problem::Conv(_) => "|alpha| |A||B| + |beta||C|",
            Problem::Reduce(_) => "the magnitudes added up, or of the value",
        };
        format!("largest error {error:.1e} of {scale}")
    }
}

/// The problems that the command line names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cases {
    /// In order; at least one.
    pub list: Vec<Case>,
    /// Lines of a file that ask for what tilewright cannot do, with the reason.
    pub skipped: Vec<String>,
    /// Nodes of a model that have no problem, with the reason.
    pub untuned: Vec<String>,
}

/// Reads the problems that the command line names.
pub fn cases(args: &ProblemArgs, workspace: Option<u64>) -> Result<Cases, CliError> {
    let given = [args.word.is_some(), args.problem.is_some(), args.cases.is_some(), args.onnx.is_some()];
    let one = |case: Case| Cases { list: vec![case], ..Cases::default() };
    let mut cases = match (&args.word, &args.problem, &args.onnx, &args.cases) {
        _ if given.iter().filter(|g| **g).count() > 1 => {
            return Err(CliError::usage(
                "the problem is given twice: take one of gemm/conv with options, --problem, --cases, --onnx",
            ));
        }
        (.., None) if args.set.is_some() => return Err(CliError::usage("--set names cases of a file: name it with --cases")),
        (Some(Word::Gemm { fields, factors }), ..) => {
            let mut given = fields.0.clone();
            let imaginary = [("alpha_im", factors.alpha_im), ("beta_im", factors.beta_im)];
            let imaginary = imaginary.into_iter().filter(|(_, value)| *value != 0.0).filter_map(|(name, _)| Of::Gemm.field(name));
            given.extend(imaginary.map(|field| Given { field, value: "1".into() }));
            from_words(Of::Gemm, &given, (*factors).into())?
        }
        (Some(Word::Glu { fields, alpha }), ..) => from_words(Of::Gemm, &fields.0, Factors::real(*alpha, 0.0))?,
        (Some(Word::CrossEntropy(fields)), ..) => from_words(Of::Gemm, &fields.0, Factors::default())?,
        (Some(Word::Conv(fields)), ..) => from_words(Of::Conv, &fields.0, Factors::default())?,
        (Some(Word::Reduce { fields, alpha }), ..) => from_words(Of::Reduce, &fields.0, Factors::real(*alpha, 0.0))?,
        (_, Some(text), ..) => one(plain(Problem::parse(text).map_err(CliError::usage)?)),
        (_, _, Some(path), _) => from_model(args, path)?,
        (.., Some(path)) => from_file(path, args.set.as_deref())?,
        _ => {
            return Err(CliError::usage(
                "no problem is given: write `gemm --m 512 --n 512 --k 512`, `conv ...`, --problem TEXT, --cases FILE or --onnx MODEL",
            ));
        }
    };
    if !args.dynamic.is_empty() {
        for case in &mut cases.list {
            set_dynamic(&mut case.problem, &args.dynamic)?;
            case.title = case.problem.title();
        }
    }
    if let Some(bytes) = workspace {
        for case in &mut cases.list {
            case.problem.set_workspace(bytes);
            case.problem.validate().map_err(CliError::usage)?;
        }
    }
    Ok(cases)
}

/// Most problems of one command line's ranges.
const MOST_PROBLEMS: usize = 10_000;

/// A case for every choice of sizes, the last of them varying fastest.
fn from_words(of: Of, given: &[Given], factors: Factors) -> Result<Cases, CliError> {
    let sizes = |given: &Given| match given.field.kind {
        Kind::Extent => range(&given.value).map(|Range(sizes)| sizes.iter().map(u64::to_string).collect()),
        _ => Ok(vec![given.value.clone()]),
    };
    let values = given.iter().map(sizes).collect::<Result<Vec<Vec<String>>, _>>().map_err(CliError::usage)?;
    let count = values.iter().map(Vec::len).try_fold(1usize, usize::checked_mul);
    let Some(count) = count.filter(|count| *count <= MOST_PROBLEMS) else {
        return Err(CliError::usage(format!("the ranges of sizes make more than {MOST_PROBLEMS} problems: take larger steps")));
    };
    let case = |mut number: usize| {
        let mut one = given.to_vec();
        for (given, values) in one.iter_mut().zip(&values).rev() {
            given.value = values.get(number % values.len().max(1)).cloned().unwrap_or_default();
            number /= values.len().max(1);
        }
        let problem = Draft::of(of, one).map_err(|refused| refusal(&refused))?.build().map_err(CliError::usage)?;
        Ok(Case { factors, ..plain(problem) })
    };
    Ok(Cases { list: (0..count).map(case).collect::<Result<_, CliError>>()?, ..Cases::default() })
}

/// A value that its option does not take.
fn refusal(Refused { given, reason }: &Refused) -> CliError {
    let field = given.field;
    let option = if field.option.is_empty() { field.name.replace('_', "-") } else { field.option.to_string() };
    let value = if matches!(field.kind, Kind::Flag | Kind::Bit) { String::new() } else { format!(" {}", given.value) };
    CliError::usage(format!("--{option}{value}: {reason}"))
}

/// As [`cases()`], or the problem of the edited source that is named instead.
pub fn cases_or_source(args: &ProblemArgs, source: &SourceArgs, plan: &PlanArgs) -> Result<Cases, CliError> {
    let Some(path) = &source.source else { return cases(args, plan.workspace) };
    let named = args.word.is_some() || args.problem.is_some() || args.cases.is_some() || !args.dynamic.is_empty();
    if named || args.set.is_some() || plan.plan.is_some() || plan.workspace.is_some() || plan.atomics || plan.ieee {
        return Err(CliError::usage(
            "--source already names problem and plan: leave out all other options that name or change them",
        ));
    }
    let wrong = |e: &dyn std::fmt::Display| CliError::usage(format!("--source {}: {e}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
    let edited = Edited::parse(&text).map_err(|e| wrong(&e))?;
    let case = Case { source: Some((path.clone(), edited.clone())), ..plain(edited.problem) };
    Ok(Cases { list: vec![case], ..Cases::default() })
}

/// The one problem of a command that works on one.
pub fn one(args: &ProblemArgs, workspace: Option<u64>) -> Result<Case, CliError> {
    only(cases(args, workspace)?)
}

/// The one of these.
pub fn only(Cases { list: mut all, skipped, .. }: Cases) -> Result<Case, CliError> {
    match (all.pop(), all.is_empty()) {
        (Some(case), true) => Ok(case),
        (None, _) if !skipped.is_empty() => Err(CliError::usage(skipped.join("\n"))),
        _ => {
            Err(CliError::usage("this command takes one problem, and several are named: name one, or narrow --cases with --set"))
        }
    }
}

/// A problem as a case of its own.
pub fn plain(problem: Problem) -> Case {
    Case { title: problem.title(), set: None, problem, factors: Factors::default(), layers: Vec::new(), calls: 1.0, source: None }
}

fn set_dynamic(problem: &mut Problem, extents: &[Extent]) -> Result<(), CliError> {
    let Problem::Gemm(gemm) = problem else {
        return Err(CliError::usage("--dynamic: only a product's extents can be; tune each size"));
    };
    gemm.dynamic = extents.iter().fold(gemm.dynamic, |dynamic, extent| dynamic.with(*extent));
    problem.validate().map_err(CliError::usage)
}

/// The different problems of a model, each with the layers that compute it.
fn from_model(args: &ProblemArgs, path: &Path) -> Result<Cases, CliError> {
    if let Some(dtype) = args.onnx_dtype.filter(|dtype| !dtype.is_plain()) {
        let what =
            if dtype.math == Math::Exact { "complex numbers are elements of matrix products" } else { "it is a way to multiply" };
        return Err(CliError::usage(format!("--onnx-dtype {}: {what}, not a type of tensors; take f32", dtype.name())));
    }
    let dtype = args.onnx_dtype.map(|dtype| dtype.scalar);
    let options = tilewright_onnx::Options { dims: args.dim.clone(), dtype, layout: args.onnx_layout };
    let model = tilewright_onnx::read(path, &options).map_err(CliError::usage)?;
    let mut list: Vec<Case> = Vec::new();
    for layer in model.layers {
        match list.iter_mut().find(|case| case.problem == layer.problem) {
            Some(case) => {
                case.layers.push(layer.name);
                case.calls += 1.0;
            }
            None => list.push(Case { layers: vec![layer.name], ..plain(layer.problem) }),
        }
    }
    for reason in &model.skipped {
        eprintln!("not tuned: {reason}");
    }
    Ok(Cases { list, untuned: model.skipped, ..Cases::default() })
}

fn from_file(path: &Path, set: Option<&str>) -> Result<Cases, CliError> {
    let file = cases::read(path, &CaseOptions::default()).map_err(CliError::usage)?;
    let wanted = |of: &str| set.is_none_or(|set| set == of);
    let message = |s: &Skipped| format!("{}, line {}: {}", path.display(), s.line, s.reason);
    let skipped: Vec<String> = file.skipped.iter().filter(|s| wanted(&s.set)).map(message).collect();
    if let Some(set) = set
        && skipped.is_empty()
        && !file.cases.iter().any(|c| c.set == set)
    {
        let known: BTreeSet<&str> = file.cases.iter().map(|c| &*c.set).chain(file.skipped.iter().map(|s| &*s.set)).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        return Err(CliError::usage(format!("--set {set}: {} has no such set; its sets are {known}", path.display())));
    }
    let named = |c: cases::Case| Case { set: Some(c.set), calls: c.calls as f64, ..plain(c.problem) };
    Ok(Cases { list: file.cases.into_iter().filter(|c| wanted(&c.set)).map(named).collect(), skipped, ..Cases::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parse(line: &str) -> Result<Vec<Case>, CliError> {
        let cli = Cli::try_parse_from(line.split_whitespace()).map_err(CliError::usage)?;
        let Command::Tune(tune) = cli.command else { panic!("{line} is no tune") };
        cases(&tune.problem, tune.plan.workspace).map(|c| c.list)
    }

    #[test]
    fn words_and_geometry_strings_name_the_same_problem() {
        let words = parse("tilewright tune gemm --m 55 --n 65 --k 122 --trans nt --lda 123 --ldb 124 --ldc 69 --workspace 0")
            .expect("words");
        let text = parse("tilewright tune --problem tC0_tA0_tB1_colMaj0_m55_n65_k122_lda123_ldb124_ldc69_ws0_f32").expect("text");
        assert_eq!(words, text);
        assert_eq!(words[0].title, "gemm 55x65x122 f32 nt row");
    }

    #[test]
    fn epilogues_in_words_and_in_text() {
        let words = parse(
            "tilewright tune gemm --m 5 --n 6 --k 7 --dtype bf16 --out-dtype f32 --order col --batch 2 --bias n --stride-bias 6 \
             --activation gelu-tanh --residual --ldr 8 --stride-r 0 --workspace 0",
        )
        .expect("words");
        let text =
            "tC0_tA0_tB0_colMaj1_m5_n6_k7_lda5_ldb7_ldc5_ws0_bf16_outf32_b2_sa35_sb42_sc30_biasn_sbias6_actgelutanh_ldr8_sr0";
        assert_eq!(words, parse(&format!("tilewright tune --problem {text}")).expect("text"));
        assert_eq!(words[0].title, "gemm 2 x 5x6x7 bf16 nn col to f32, bias n, gelutanh, residual");
        let conv = parse(
            "tilewright tune conv --n 1 --c 2 --k 4 --size 9 --filter 3 --bias --activation silu --residual --out-dtype f16",
        );
        assert_eq!(conv.expect("conv")[0].title, "conv 1 x 2x9 -> 4, filter 3, f32 to f16, bias, silu, residual");
    }

    #[test]
    fn extents_of_the_launch() {
        let words = parse("tilewright tune gemm --m 64 --n 65 --k 122 --batch 3 --dynamic m,batch --workspace 0").expect("words");
        let key = words[0].problem.key();
        assert!(key.ends_with("_f32_b3_sa7808_sb7930_sc4160_dynm_dynb"), "{key}");
        assert_eq!(parse(&format!("tilewright tune --problem {key}")).expect("text"), words);
        assert_eq!(words[0].title, "gemm 3 x 64x65x122 f32 nn row, any m, batch");
    }

    #[test]
    fn convolutions() {
        let all = parse(
            "tilewright tune conv --n 2 --c 6 --k 4 --size 9x8 --filter 3 --stride 2 --pad 0:1 --groups 2 --layout nhwc --bias",
        );
        let all = all.expect("a convolution");
        let Problem::Conv(conv) = &all[0].problem else { panic!("no convolution") };
        assert_eq!((conv.pad_begin.as_slice(), conv.pad_end.as_slice()), (&[0, 0][..], &[1, 1][..]));
        assert_eq!((conv.filter.as_slice(), conv.groups, conv.bias), (&[3, 3][..], 2, true));
    }

    #[test]
    fn gradients_of_convolutions() {
        let words = "tilewright tune conv --n 2 --c 6 --k 4 --size 9x8 --filter 3 --stride 2 --dtype bf16 --out-dtype f32";
        for (direction, key) in [("backward-data", "bwdd"), ("backward-weight", "bwdw")] {
            let all = parse(&format!("{words} --direction {direction}")).expect("a gradient");
            let text = all[0].problem.key();
            assert!(text.starts_with(&format!("conv_{key}_nchw_n2_g1_c6_k4_in9x8")), "{text}");
            assert_eq!(all, parse(&format!("tilewright tune --problem {text}")).expect("text"));
            assert_eq!(all[0].title, format!("conv {direction} 2 x 6x9x8 -> 4, filter 3x3, bf16 to f32"));
        }
    }

    #[test]
    fn refusals_name_the_field() {
        for (line, part) in [
            ("tilewright tune", "no problem is given"),
            ("tilewright tune --problem x gemm --m 4 --n 4 --k 4", "given twice"),
            ("tilewright tune --set a gemm --m 4 --n 4 --k 4", "--cases"),
            ("tilewright tune gemm --m 0 --n 4 --k 4", "at least 1"),
            ("tilewright tune gemm --m -4 --n 4 --k 4", "negative"),
            ("tilewright tune gemm --m 4 --n 4 --k 4 --lda 3", "lda = 3"),
            ("tilewright tune gemm --m 4 --n 4 --k 4 --bias k", "possible values: m, n"),
            ("tilewright tune gemm --m 4 --n 4 --k 4 --activation tanh", "relu, gelu, gelutanh, silu"),
            ("tilewright tune gemm --m 4 --n 4 --k 4 --ldr 8", "--residual"),
            ("tilewright tune conv --n 1 --c 2 --k 2 --size 9 --filter 3 --direction back", "backward-data, backward-weight"),
            ("tilewright tune conv --n 1 --c 2 --k 2 --size 9 --filter 3 --direction backward-weight --bias", "filter gradient"),
            ("tilewright tune gemm --m 4 --n 4 --k 4 --residual --ldr 3", "ldr = 3"),
            ("tilewright tune gemm --m 4 --n 4 --k 4 --out-dtype tf32", "it is a way to multiply"),
            ("tilewright tune gemm --m 4 --n 4 --k 4 --out-dtype tf32x3", "--out-dtype tf32x3: it is a way to multiply"),
            ("tilewright tune gemm --m 4 --n 4 --k 4 --dtype f64 --out-dtype f16", "f64 operands have an f64 result"),
            ("tilewright tune gemm --m 4 --n 4 --k 4 --dynamic batch", "run-time batch needs"),
            ("tilewright tune conv --n 1 --c 3 --k 4 --size 4x4 --filter 3 --dynamic m", "--dynamic"),
            ("tilewright tune conv --n 1 --c 3 --k 4 --size 4x4 --filter 3x3x3", "--filter 3x3x3: has 3 dimensions"),
            ("tilewright tune conv --n 1 --c 3 --k 4 --size 4x4 --filter 3 --groups 2", "groups"),
            ("tilewright tune gemm --m 4000000000 --n 4000000000 --k 4000000000", "64-bit address space"),
        ] {
            let message = parse(line).expect_err(line).to_string();
            assert!(message.contains(part), "{line}: {message}");
        }
    }
}
