//! The lines of case files: the problem of a line, and its name.

use super::{CaseOptions, Kind};
use crate::conv::Direction;
use crate::dtype::Dtype;
use crate::error::ProblemError;
use crate::fields::{Draft, Given, Kind as Value, Of, Refused};
use crate::names::number;
use crate::problem::Problem;

/// An error at a place of a file.
pub(super) fn case(file: &str, line: u64, column: &str, reason: String) -> ProblemError {
    ProblemError::Case { file: file.to_string(), line, column: column.to_string(), reason }
}

/// One line.
pub(super) struct Row<'a> {
    pub file: &'a str,
    pub line: u64,
    pub header: &'a [String],
    pub record: &'a csv::StringRecord,
}

impl<'a> Row<'a> {
    /// The text of a cell that is not empty.
    pub fn text(&self, column: &str) -> Option<&'a str> {
        let index = self.header.iter().position(|h| h == column)?;
        self.record.get(index).filter(|t| !t.is_empty())
    }
    fn fail(&self, column: &str, reason: impl Into<String>) -> ProblemError {
        case(self.file, self.line, column, reason.into())
    }
    fn needed(&self, column: &str, what: &str) -> Result<&'a str, ProblemError> {
        self.text(column).ok_or_else(|| self.fail(column, format!("is empty; give {what}")))
    }
    fn number(&self, column: &str) -> Result<u64, ProblemError> {
        number(self.needed(column, "a number")?).map_err(|reason| self.fail(column, reason))
    }

    /// The problem of the line.
    pub fn problem(&self, kind: Kind, options: &CaseOptions) -> Result<Problem, ProblemError> {
        let (of, mut given) = match kind {
            Kind::Gemm => (Of::Gemm, self.given(Of::Gemm)?),
            Kind::Conv2d | Kind::ConvNd => (Of::Conv, self.given(Of::Conv)?),
            Kind::Text => return self.of_text(),
        };
        for required in kind.required() {
            self.needed(required, "a number")?;
        }
        let mut more = |name: &str, value: String| given.extend(of.field(name).map(|field| Given { field, value }));
        match kind {
            Kind::Conv2d => {
                more("input", format!("{}x{}", self.number("h")?, self.number("w")?));
                more("filter", format!("{}x{}", self.number("r")?, self.number("s")?));
            }
            Kind::ConvNd => {
                for (name, column) in [("c", "c_per_group"), ("k", "k_per_group")] {
                    let all = self.number(column)?.checked_mul(self.number("groups")?);
                    more(name, all.ok_or_else(|| self.fail(column, "is too large"))?.to_string());
                }
            }
            _ => {}
        }
        let defaults = [
            ("dtype", options.dtype.map(|(scalar, math)| Dtype::name_of(scalar, math, false))),
            ("layout", options.layout.map(crate::conv::Layout::name)),
            ("direction", options.direction.map(Direction::name)),
        ];
        for (field, value) in defaults.into_iter().filter_map(|(name, value)| Some((of.field(name)?, value?))) {
            if !given.iter().any(|x| x.field.name == field.name) {
                given.push(Given { field, value: value.to_string() });
            }
        }
        self.companions(&given)?;
        self.spread_input(kind, &mut given)?;
        let mut draft = Draft::of(of, given).map_err(|refused| self.refused(&refused))?;
        if let Some(bytes) = options.workspace {
            draft.workspace(bytes);
        }
        draft.build()
    }
    /// A problem by its text.
    fn of_text(&self) -> Result<Problem, ProblemError> {
        match self.text("problem") {
            Some(text) => Problem::parse(text).map_err(|e| self.fail("problem", e.to_string())),
            None => {
                let what = format!("a line without a problem ({})", self.text("set").unwrap_or("problem"));
                let remedy = self.text("reason").unwrap_or("give its text").to_string();
                Err(ProblemError::Unsupported { what, remedy })
            }
        }
    }
    /// The cells that are not defaults.
    fn given(&self, of: Of) -> Result<Vec<Given>, ProblemError> {
        let mut given = Vec::new();
        for field in of.fields().iter().filter(|field| !field.column.is_empty()) {
            let Some(value) = self.text(field.column).filter(|value| *value != "none" || field.required) else { continue };
            let no = matches!(field.kind, Value::Flag | Value::Bit) && value == "0" && field.default != "1";
            if !no {
                given.push(Given { field, value: value.to_string() });
            }
        }
        let reduced = match (self.text("op"), self.text("axis")) {
            (Some(op), Some(axis)) => format!("{op}:{axis}"),
            (None, None) => return Ok(given),
            (Some(_), None) => return Err(self.fail("axis", "is empty; say which axes the operator reduces: m, n or mn")),
            (None, Some(_)) => return Err(self.fail("op", "is empty; say what is computed over the axis: sum, max, ...")),
        };
        given.extend(of.field("reduce").map(|field| Given { field, value: reduced }));
        Ok(given)
    }
    /// Fields that need others, or exclude them.
    fn companions(&self, given: &[Given]) -> Result<(), ProblemError> {
        let has = |name: &str| given.iter().any(|x| x.field.name == name);
        for field in given.iter().map(|x| x.field).filter(|field| self.header.iter().any(|h| h == field.column)) {
            if !field.requires.is_empty() && !has(field.requires) {
                let other = field.requires;
                return Err(self.fail(field.column, format!("there is no {other}; set `{other}`, or leave this empty")));
            }
            if let Some(other) = field.excludes.iter().find(|other| has(other)) {
                return Err(self.fail(field.column, format!("it does not go with `{other}`; leave `{other}` empty, or this")));
            }
        }
        Ok(())
    }
    /// One size of the input stands for all dimensions.
    fn spread_input(&self, kind: Kind, given: &mut [Given]) -> Result<(), ProblemError> {
        if kind != Kind::ConvNd {
            return Ok(());
        }
        let dims = self.number("dims")?;
        let count = usize::try_from(dims).ok().filter(|dims| (1..=3).contains(dims));
        let count = count.ok_or_else(|| self.fail("dims", format!("`{dims}` must be 1, 2 or 3")))?;
        for input in given.iter_mut().filter(|x| x.field.name == "input") {
            match input.value.split('x').count() {
                1 => input.value = vec![input.value.as_str(); count].join("x"),
                sizes if sizes != count => {
                    return Err(self.fail("input", format!("`{}` has {sizes} sizes; give 1 or {count}", input.value)));
                }
                _ => {}
            }
        }
        Ok(())
    }
    /// A value that its field does not take, at its column.
    fn refused(&self, Refused { given, reason }: &Refused) -> ProblemError {
        let by_operator = given.field.name == "reduce" && self.text("reduce").is_none_or(|text| text != given.value);
        let column = if by_operator { "op" } else { given.field.column };
        let column = if self.header.iter().any(|h| h == column) { column } else { "" };
        let none = if matches!(given.field.kind, Value::Names(_)) && !given.field.required { ", none" } else { "" };
        self.fail(column, format!("{reason}{none}"))
    }
}

/// The direction for names, where forward goes without saying.
fn gradient(direction: Direction) -> String {
    if direction == Direction::Forward { String::new() } else { format!("{} ", direction.name()) }
}

/// A readable name that tells the problems of a set apart.
pub(super) fn name(problem: &Problem) -> String {
    match problem {
        Problem::Reduce(_) => problem.key(),
        Problem::Gemm(g) => {
            let shared = if g.batch > 1 && g.b.batch_stride == 0 { " shared B" } else { "" };
            let (a, b) = (g.letter(0), g.letter(1));
            let added = problem.epilogue_words();
            let (dtype, size) = (problem.dtype_name(), format!("{}x{}x{}", g.m, g.n, g.k));
            match g.grouped {
                Some(of) => format!("{dtype} {a}{b} {size}, {} groups of {}{added}", g.batch, of.name()),
                None => format!("{dtype} {a}{b} {}x({size}){shared}{added}", g.batch),
            }
        }
        Problem::Conv(c) => {
            let join = |list: &[u64]| list.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
            let brief = |list: &[u64]| if list.iter().all(|v| *v == list[0]) { list[0].to_string() } else { join(list) };
            format!(
                "{}N{} G{} K{} C{} {} {} s{} p{}:{} d{}{}",
                gradient(c.direction),
                c.n,
                c.groups,
                c.k,
                c.c,
                join(&c.filter),
                join(&c.input),
                brief(&c.stride),
                brief(&c.pad_begin),
                brief(&c.pad_end),
                brief(&c.dilation),
                c.activation.map_or(String::new(), |a| format!(" {a}"))
                    + match (c.mask, c.residual) {
                        (true, _) => " mask",
                        (_, true) => " residual",
                        _ => "",
                    }
                    + &c.reductions.iter().map(|r| format!(" {r}")).collect::<String>()
                    + if c.drop_c { " not stored" } else { "" }
            )
        }
    }
}
