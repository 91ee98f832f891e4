//! The fields of problems, one row for each: its spellings, kind of value, default and meaning, and how it is read and written. Texts, case
//! files, the command and its help, Python, C and the reference page are codecs over these tables.
//!
//! Every interface hands a field's value over as text. A table's order is that of a problem's text, and a field is set after the rows above it.

mod conv;
mod gemm;
mod reduce;
mod text;
mod title;

use crate::conv::{Conv, ConvBuilder};
use crate::dtype::Dtype;
use crate::error::ProblemError;
use crate::gemm::{Gemm, GemmBuilder};
use crate::names::{Name, number};
use crate::problem::Problem;
use crate::real::Real;
use crate::reduce::{Reduce, ReduceBuilder};
use crate::reduction::Reduction;
use std::fmt::Display;
use tilewright_ir::Scalar;

/// What problems compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// A matrix product.
    Gemm,
    /// A convolution.
    Conv,
    /// A reduction of a tensor.
    Reduce,
}

impl Of {
    /// All of them.
    pub const ALL: [Of; 3] = [Of::Gemm, Of::Conv, Of::Reduce];

    /// Its word: `gemm`, `conv`, `reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            Of::Gemm => "gemm",
            Of::Conv => "conv",
            Of::Reduce => "reduce",
        }
    }
    /// The fields of such problems.
    pub const fn fields(self) -> &'static [Field] {
        match self {
            Of::Gemm => gemm::FIELDS,
            Of::Conv => conv::FIELDS,
            Of::Reduce => reduce::FIELDS,
        }
    }
    /// The field with this name.
    pub fn field(self, name: &str) -> Option<&'static Field> {
        self.fields().iter().find(|field| field.name == name)
    }
}

/// The kind of a field's value.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A truth. A text has its key alone.
    Flag,
    /// A truth that a text writes as 0 or 1.
    Bit,
    /// A whole number of at least so much.
    Number(u64),
    /// A size of at least 1. The command takes ranges of sizes.
    Extent,
    /// Whole numbers of at least so much, joined by `x` or commas.
    Sizes(u64),
    /// A positive number.
    Decimal,
    /// An element type.
    Dtype,
    /// One of some names.
    Names(&'static [Name]),
    /// Words, joined by commas or blanks.
    Words,
}

impl Kind {
    /// Checks a value without its problem.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn check(self, text: &str) -> Result<(), String> {
        match self {
            Kind::Flag | Kind::Bit => flag(text).map(drop),
            Kind::Number(least) => at_least(least, text).map(drop),
            Kind::Extent => at_least(1, text).map(drop),
            Kind::Sizes(least) => sizes(least, text).map(drop),
            Kind::Decimal => Real::parse(text).map(drop),
            Kind::Dtype => dtype(text).map(drop),
            Kind::Names(names) => Name::find(names, text).map(drop).ok_or_else(|| Name::refusal(names, text)),
            Kind::Words => Ok(()),
        }
    }
    /// The values, for reference pages.
    pub fn values(self) -> String {
        match self {
            Kind::Flag | Kind::Bit => "0 or 1".into(),
            Kind::Number(least) => format!("{least} or more"),
            Kind::Extent => "1 or more".into(),
            Kind::Sizes(_) => "sizes".into(),
            Kind::Decimal => "a positive number".into(),
            Kind::Dtype => "an element type".into(),
            Kind::Names(names) => Name::list(names),
            Kind::Words => "a list".into(),
        }
    }
}

/// How a problem's text spells a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    /// Not at all.
    Unsaid,
    /// By this key before the value. An empty key: by the value alone.
    Optional(&'static str),
    /// The same, and every text has it.
    Always(&'static str),
}

/// A case file has a column of the field's name.
const COLUMN: u8 = 1;
/// C's structure has an attribute of the field's name.
const C: u8 = 2;
/// No problem is without the field.
const REQUIRED: u8 = 4;
/// Only `--help` shows the field.
const RARE: u8 = 8;
/// No interface beside texts and options has the field.
const NOWHERE_ELSE: u8 = 0;

/// How a field of a builder is set from a text.
type Set<B> = fn(&mut B, &str) -> Result<(), String>;
/// The texts of a field's value, none if it has its default.
type Get<P> = fn(&P) -> Vec<String>;

/// How a field is written and read.
#[derive(Clone, Copy, Debug)]
enum Access {
    Gemm { set: Set<GemmBuilder>, get: Get<Gemm> },
    Conv { set: Set<ConvBuilder>, get: Get<Conv> },
    Reduce { set: Set<ReduceBuilder>, get: Get<Reduce> },
}

/// One field of a kind of problems. An empty spelling: the interface has no such field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in messages and in Python's and C's calls of this library.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: Kind,
    /// Its meaning in one phrase.
    pub meaning: &'static str,
    /// More for the command's help.
    pub detail: &'static str,
    /// Its default, for readers.
    pub default: &'static str,
    key: Key,
    /// The option of the command, without dashes.
    pub option: &'static str,
    /// The column of a case file.
    pub column: &'static str,
    /// The keyword in Python.
    pub python: &'static str,
    /// C's structure has an attribute of its name.
    pub c: bool,
    /// No problem is without it.
    pub required: bool,
    /// Few calls need it: the command's short help leaves it out.
    pub rare: bool,
    /// The command and case files take it only together with this field.
    pub requires: &'static str,
    /// The command and case files do not take it together with these fields.
    pub excludes: &'static [&'static str],
    /// Its part of a problem's title, with `{}` for the value.
    title: &'static str,
    /// Results are more than `alpha * sum + beta * C` with it.
    epilogue: bool,
    /// Why complex products lack it: the remedy.
    not_complex: &'static str,
    /// Why grouped products lack it: the remedy.
    not_grouped: &'static str,
    access: Access,
}

const fn field(name: &'static str, kind: Kind, meaning: &'static str, access: Access) -> Field {
    Field {
        name,
        kind,
        meaning,
        detail: "",
        default: "",
        key: Key::Unsaid,
        option: "",
        column: "",
        python: "",
        c: false,
        required: false,
        rare: false,
        requires: "",
        excludes: &[],
        title: "",
        epilogue: false,
        not_complex: "",
        not_grouped: "",
        access,
    }
}

/// Builders of rows.
impl Field {
    const fn detail(self, detail: &'static str) -> Field {
        Field { detail, ..self }
    }
    const fn default(self, default: &'static str) -> Field {
        Field { default, ..self }
    }
    /// How texts, the command, and the interfaces of `has` ([`COLUMN`], ...) spell it.
    const fn spelled(self, key: Key, option: &'static str, has: u8) -> Field {
        let column = if has & COLUMN > 0 { self.name } else { "" };
        Field { key, option, column, c: has & C > 0, required: has & REQUIRED > 0, rare: has & RARE > 0, ..self }
    }
    const fn python(self, python: &'static str) -> Field {
        Field { python, ..self }
    }
    const fn requires(self, requires: &'static str) -> Field {
        Field { requires, ..self }
    }
    const fn excludes(self, excludes: &'static [&'static str]) -> Field {
        Field { excludes, ..self }
    }
    const fn title(self, title: &'static str) -> Field {
        Field { title, ..self }
    }
    const fn epilogue(self) -> Field {
        Field { epilogue: true, ..self }
    }
    const fn not_complex(self, remedy: &'static str) -> Field {
        Field { not_complex: remedy, ..self }
    }
    const fn not_grouped(self, remedy: &'static str) -> Field {
        Field { not_grouped: remedy, ..self }
    }
}

impl Field {
    /// Its key in a problem's text.
    pub const fn text(&self) -> Option<&'static str> {
        match self.key {
            Key::Unsaid => None,
            Key::Optional(key) | Key::Always(key) => Some(key),
        }
    }
    /// Its name as messages read.
    fn words(&self) -> String {
        if matches!(self.kind, Kind::Dtype) && self.name == "dtype" {
            "the element type".into()
        } else {
            self.name.replace('_', " ")
        }
    }
    /// The texts of its value in a problem.
    fn values(&self, problem: &Problem) -> Vec<String> {
        match (self.access, problem) {
            (Access::Gemm { get, .. }, Problem::Gemm(gemm)) => get(gemm),
            (Access::Conv { get, .. }, Problem::Conv(conv)) => get(conv),
            (Access::Reduce { get, .. }, Problem::Reduce(reduce)) => get(reduce),
            _ => Vec::new(),
        }
    }
}

/// A field with a value for it.
#[derive(Clone, Debug)]
pub struct Given {
    /// The field.
    pub field: &'static Field,
    /// Its value as text.
    pub value: String,
}

/// A value that a field does not take.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The field with the value.
    pub given: Given,
    /// The reason and the remedy.
    pub reason: String,
}

impl From<Refused> for ProblemError {
    fn from(refused: Refused) -> ProblemError {
        ProblemError::value(refused.given.field.name, refused.given.value, refused.reason)
    }
}

/// A problem whose fields are being set.
#[derive(Clone, Debug)]
pub enum Draft {
    /// A matrix product.
    Gemm(Box<GemmBuilder>),
    /// A convolution.
    Conv(ConvBuilder),
    /// A reduction.
    Reduce(ReduceBuilder),
}

impl Draft {
    /// Sets fields in the order of their table, whatever the order of the list. The element type comes first.
    ///
    /// # Errors
    /// The first value that its field does not take.
    pub fn of(kind: Of, mut given: Vec<Given>) -> Result<Draft, Refused> {
        let place = |given: &Given| kind.fields().iter().position(|field| field.name == given.field.name);
        given.sort_by_key(|given| (given.field.name != "dtype", place(given)));
        let mut draft = match kind {
            Of::Gemm => Draft::Gemm(Box::new(Gemm::new(Scalar::F32, 0, 0, 0))),
            Of::Conv => Draft::Conv(Conv::new(Scalar::F32, 0, 0, 0, &[], &[])),
            Of::Reduce => Draft::Reduce(Reduce::new(Scalar::F32, &[], &[])),
        };
        for given in given {
            let known = if let Kind::Names(_) = given.field.kind { given.field.kind.check(&given.value) } else { Ok(()) };
            let set = known.and_then(|()| match (given.field.access, &mut draft) {
                (Access::Gemm { set, .. }, Draft::Gemm(gemm)) => set(gemm, &given.value),
                (Access::Conv { set, .. }, Draft::Conv(conv)) => set(conv, &given.value),
                (Access::Reduce { set, .. }, Draft::Reduce(reduce)) => set(reduce, &given.value),
                _ => Err(format!("{} has no such field", kind.name())),
            });
            set.map_err(|reason| Refused { given, reason })?;
        }
        Ok(draft)
    }
    /// Sets the workspace budget in bytes.
    pub fn workspace(&mut self, bytes: u64) {
        match self {
            Draft::Gemm(gemm) => gemm.gemm.workspace = bytes,
            Draft::Conv(conv) => conv.0.workspace = bytes,
            Draft::Reduce(reduce) => reduce.0.workspace = bytes,
        }
    }
    /// The problem, validated.
    ///
    /// # Errors
    /// [`ProblemError`] with the field, its value and what it may be.
    pub fn build(self) -> Result<Problem, ProblemError> {
        Ok(match self {
            Draft::Gemm(gemm) => gemm.build()?.into(),
            Draft::Conv(conv) => conv.build()?.into(),
            Draft::Reduce(reduce) => reduce.build()?.into(),
        })
    }
}

/// Stores a value that could be read.
fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

/// A number of at least so much.
fn at_least(least: u64, digits: &str) -> Result<u64, String> {
    number(digits).and_then(|value| if value < least { Err(format!("must be at least {least}")) } else { Ok(value) })
}

/// A truth; the key alone says yes.
fn flag(text: &str) -> Result<bool, String> {
    match text {
        "" | "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("must be 0 or 1".to_string()),
    }
}

/// Numbers of at least so much, joined by `x` or commas.
fn sizes(least: u64, text: &str) -> Result<Vec<u64>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let list = text.split(['x', ',']).map(|part| at_least(least, part)).collect::<Result<_, _>>();
    list.map_err(|reason| format!("{reason}; sizes are joined by x, e.g. 3x3"))
}

/// Words, joined by commas or blanks.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ' ']).filter(|word| !word.is_empty())
}

/// Reductions, commas or blanks between them; at least one.
fn reductions(text: &str) -> Result<Vec<Reduction>, String> {
    let found = words(text).map(str::parse).collect::<Result<Vec<Reduction>, String>>()?;
    if found.is_empty() { Err("no reduction is named; write an operator and axes, such as max:n".into()) } else { Ok(found) }
}

/// An element type.
fn dtype(text: &str) -> Result<Dtype, String> {
    let known = || format!("`{text}` is none of the element types; element types are {}", Dtype::names(|_| true));
    Dtype::named(text).ok_or_else(known)
}

/// An element type that is stored as it is; of complex elements that of A alone.
fn stored(text: &str, a: Option<Scalar>) -> Result<Scalar, String> {
    let found = dtype(text)?;
    match (found.complex, a) {
        _ if found.math != crate::math::Math::Exact => {
            Err(format!("it is a way to multiply, not a type of elements; element types are {}", Dtype::names(Dtype::is_plain)))
        }
        (true, Some(parts)) if parts == found.scalar => Ok(parts),
        (false, Some(_)) => Err("results of complex products have the factors' type, and so has B; leave it out".into()),
        (true, _) => Err("complex numbers are elements of matrix products, of A, B and C alike".into()),
        (false, None) => Ok(found.scalar),
    }
}

/// The value of a name.
macro_rules! named {
    ($type:ident, $text:expr) => {
        $type::named($text).ok_or_else(|| crate::names::Name::refusal($type::NAMES, $text))
    };
}
use named;

/// The text of a value.
fn one(value: impl Display) -> Vec<String> {
    vec![value.to_string()]
}

/// The text of a value that differs from its default.
fn told(is: bool, value: impl Display) -> Vec<String> {
    if is { one(value) } else { Vec::new() }
}

/// Numbers joined by `x`.
fn joined(list: &[u64]) -> String {
    list.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_options_are_those_of_one_field_each() {
        for of in Of::ALL {
            for spelled in [|field: &Field| field.name, |field: &Field| field.option, |field: &Field| field.column] {
                let mut seen = BTreeSet::new();
                let all = of.fields().iter().map(spelled).filter(|name| !name.is_empty());
                all.for_each(|name| assert!(seen.insert(name), "{name}"));
            }
            for field in of.fields() {
                assert!(field.meaning.split_whitespace().count() <= 12, "{}", field.meaning);
                let others = field.excludes.iter().chain((!field.requires.is_empty()).then_some(&field.requires));
                others.for_each(|name| assert!(of.field(name).is_some(), "{name}"));
            }
        }
    }

    #[test]
    fn the_tables_are_the_attributes_of_the_c_structures() {
        let header = include_str!("../../../c/include/tilewright.h");
        for of in Of::ALL {
            let (_, body) = header.split_once(&format!("typedef struct tw_{} {{", of.name())).expect("the structure");
            let (body, _) = body.split_once('}').expect("its end");
            let mut attributes = BTreeSet::new();
            for line in body.lines().filter(|line| !line.trim_start().starts_with(['*', '/'])) {
                let Some((declaration, _)) = line.split_once(';') else { continue };
                let Some((_, names)) = declaration.trim().split_once(' ') else { continue };
                let names = names.trim_start_matches("char ").split(", ");
                attributes.extend(names.map(|name| name.trim_start_matches('*').split('[').next().unwrap_or_default()));
            }
            attributes.retain(|name| !["size", "dims"].contains(name));
            let table: BTreeSet<&str> = of.fields().iter().filter(|field| field.c).map(|field| field.name).collect();
            assert_eq!(attributes, table, "{}", of.name());
        }
    }
}
