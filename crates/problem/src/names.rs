//! Values as texts: names of choices, with one table for each enumeration, and numbers. Texts, case files, the command, Python and C read them.

/// A value of a choice.
///
/// ```
/// use tilewright_problem::{Layout, Name};
///
/// let at = Name::find(Layout::NAMES, "nhwc").expect("a layout");
/// assert_eq!((Layout::NAMES[at].number, Layout::NAMES[at].help), (1, "channels last"));
/// assert_eq!(Name::refusal(Layout::NAMES, "nwhc"), "`nwhc` must be one of nchw, nhwc");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its name, then its other spellings.
    pub spelled: &'static [&'static str],
    /// Its number in the C interface.
    pub number: i32,
    /// A phrase for help.
    pub help: &'static str,
}

impl Name {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.spelled.first().copied().unwrap_or_default()
    }
    /// Its other spellings.
    pub fn aliases(&self) -> &'static [&'static str] {
        self.spelled.get(1..).unwrap_or_default()
    }
    /// The names of a table, with commas between them.
    pub fn list(table: &[Name]) -> String {
        table.iter().map(Name::name).collect::<Vec<_>>().join(", ")
    }
    /// Position in a table of any spelling.
    pub fn find(table: &[Name], text: &str) -> Option<usize> {
        table.iter().position(|name| name.spelled.contains(&text))
    }
    /// The reason to refuse a text that no value of a table has.
    pub fn refusal(table: &[Name], text: &str) -> String {
        format!("`{text}` must be one of {}", Name::list(table))
    }
}

/// Gives an enumeration its table of names: `Variant = number in C, [name, other spellings], "a phrase"`. A variant with a parameter is in no table:
/// `with Variant = "field"` names the field that holds its parameter.
macro_rules! names {
    ($type:ident {
        $($variant:ident = $number:literal, [$name:literal $(, $alias:literal)*], $help:literal;)*
    } $(with $with:ident = $field:literal)?) => {
        impl $type {
            /// All of them without a parameter, in the order of their names.
            pub const ALL: [$type; [$($number),*].len()] = [$($type::$variant),*];
            /// Their names, numbers and meanings.
            pub const NAMES: &'static [$crate::names::Name] =
                &[$($crate::names::Name { spelled: &[$name $(, $alias)*], number: $number, help: $help }),*];

            /// Its name in texts.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)* $($type::$with(_) => $field,)? }
            }
            /// The value with this name, in any of its spellings.
            pub fn named(text: &str) -> Option<$type> {
                $crate::names::Name::find($type::NAMES, text).and_then(|at| $type::ALL.get(at).copied())
            }
        }
    };
}
pub(crate) use names;

/// A decimal number below 2^63, digits only.
pub(crate) fn number(digits: &str) -> Result<u64, String> {
    if digits.is_empty() {
        return Err("a number is missing".to_string());
    }
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        let negative = digits.strip_prefix('-').is_some_and(|rest| rest.parse::<u64>().is_ok());
        let more = if negative { "; it must not be negative" } else { "" };
        return Err(format!("`{digits}` is not a plain decimal number{more}"));
    }
    match digits.parse::<u64>() {
        Ok(value) if value <= i64::MAX as u64 => Ok(value),
        _ => Err(format!("{digits} is out of range; it must be less than 2^63")),
    }
}
