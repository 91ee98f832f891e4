//! The cells of a line of a case file, by the names of their columns.

use super::CaseOptions;
use crate::dtype::Dtype;
use crate::epilogue::{Activation, Along};
use crate::error::ProblemError;
use crate::math::Math;
use crate::quant::{Scale, Scales};
use crate::reduction::Reduction;
use crate::text;
use tilewright_ir::Scalar;

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
    pub fn text(&self, column: &str) -> Option<&'a str> {
        let index = self.header.iter().position(|h| h == column)?;
        self.record.get(index).filter(|t| !t.is_empty())
    }
    pub fn fail(&self, column: &str, reason: impl Into<String>) -> ProblemError {
        case(self.file, self.line, column, reason.into())
    }
    pub fn optional(&self, column: &str) -> Result<Option<u64>, ProblemError> {
        let parse = |text| text::number(text).map_err(|reason| self.fail(column, reason));
        self.text(column).map(parse).transpose()
    }
    pub fn number(&self, column: &str) -> Result<u64, ProblemError> {
        self.optional(column)?.ok_or_else(|| self.fail(column, "is empty; give a number"))
    }
    pub fn flag(&self, column: &str) -> Result<bool, ProblemError> {
        match self.text(column) {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(self.fail(column, format!("`{other}` must be 0 or 1"))),
        }
    }
    /// One of some names; `None` if the column is absent or empty.
    pub fn choice<T: Copy>(&self, column: &str, names: &[(&str, T)]) -> Result<Option<T>, ProblemError> {
        let Some(text) = self.text(column) else { return Ok(None) };
        match names.iter().find(|(name, _)| *name == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let known = names.iter().map(|n| n.0).collect::<Vec<_>>().join(", ");
                Err(self.fail(column, format!("`{text}` must be one of {known}")))
            }
        }
    }
    /// Scales: none, those of m, then those of n.
    pub fn scales(&self) -> Result<Vec<(Along, Scale)>, ProblemError> {
        let Some(text) = self.text("scales").filter(|text| *text != "none") else { return Ok(Vec::new()) };
        let (of_m, of_n) = text.split_at(text.find('n').unwrap_or(text.len()));
        let all = [of_m, of_n].into_iter().filter(|name| !name.is_empty()).map(Scales::named);
        all.collect::<Option<_>>().ok_or_else(|| {
            let known = "m, n, mn, none, m1x128, m1x64, m1x32, m128x128, n1x128, n1x64, n1x32, n128x128, or one of m followed by one of n";
            self.fail("scales", format!("`{text}` must be one of {known}"))
        })
    }
    /// The type of complex elements' parts, where the line has such.
    pub fn complex(&self) -> Option<(Scalar, Math)> {
        self.text("dtype").and_then(Dtype::named).filter(|dtype| dtype.complex).map(|dtype| (dtype.scalar, dtype.math))
    }
    pub fn dtype(&self, options: &CaseOptions) -> Result<(Scalar, Math), ProblemError> {
        let Some(text) = self.text("dtype") else { return Ok(options.dtype.unwrap_or((Scalar::F32, Math::Exact))) };
        if let Some(found) = Dtype::named(text).filter(|dtype| !dtype.complex) {
            return Ok((found.scalar, found.math));
        }
        let complex = if self.complex().is_some() { ", and complex types are those of matrix products" } else { "" };
        Err(self.fail("dtype", format!("`{text}` must be one of {}{complex}", crate::math::NAMES)))
    }
    /// An element type by name.
    pub fn scalar(&self, column: &str) -> Result<Option<Scalar>, ProblemError> {
        let exact = |dtype: &Dtype| dtype.math == Math::Exact && !dtype.complex;
        if let Some(found) = self.text(column).and_then(Dtype::named).filter(exact) {
            return Ok(Some(found.scalar));
        }
        self.choice(
            column,
            &text::FLOATS.iter().chain(&text::INTEGERS).chain(&text::WEIGHTS).map(|s| (s.name(), *s)).collect::<Vec<_>>(),
        )
    }
    pub fn activation(&self) -> Result<Option<Activation>, ProblemError> {
        let names = Activation::ALL.map(|a| (a.name(), Some(a)));
        if let Some(found) = self.text("activation").and_then(Activation::from_name) {
            return Ok(Some(found));
        }
        Ok(self.choice("activation", &[&names[..], &[("none", None)]].concat())?.flatten())
    }
    /// What is computed of the result: a list, or an operator and its axes.
    pub fn reductions(&self) -> Result<Vec<Reduction>, ProblemError> {
        let parse = |column: &str, text: &str| text.parse().map_err(|reason: String| self.fail(column, reason));
        let mut all = self
            .text("reduce")
            .unwrap_or("")
            .split_whitespace()
            .map(|text| parse("reduce", text))
            .collect::<Result<Vec<_>, _>>()?;
        match (self.text("op"), self.text("axis")) {
            (Some(op), Some(axis)) => all.push(parse("op", &format!("{op}:{axis}"))?),
            (None, None) => {}
            (Some(_), None) => return Err(self.fail("axis", "is empty; say which axes the operator reduces: m, n or mn")),
            (None, Some(_)) => return Err(self.fail("op", "is empty; say what is computed over the axis: sum, max, ...")),
        }
        Ok(all)
    }
    /// The result is not stored.
    pub fn drops_c(&self) -> Result<bool, ProblemError> {
        Ok(self.text("keep_c").is_some() && !self.flag("keep_c")?)
    }
    /// One size per dimension; a single number stands for all.
    pub fn sizes(&self, column: &str, dims: usize, default: u64) -> Result<Vec<u64>, ProblemError> {
        let Some(text) = self.text(column) else { return Ok(vec![default; dims]) };
        let sizes = text.split('x').map(text::number).collect::<Result<Vec<_>, _>>();
        let sizes = sizes.map_err(|reason| self.fail(column, format!("{reason}; join sizes by x, e.g. 3x3")))?;
        match sizes.as_slice() {
            [one] => Ok(vec![*one; dims]),
            list if list.len() == dims => Ok(sizes),
            list => Err(self.fail(column, format!("`{text}` has {} sizes; give 1 or {dims}", list.len()))),
        }
    }
}
