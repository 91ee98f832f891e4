//! The contract for special values: what NaN, an infinity and an overflow become in each mode and form of a contraction.
//!
//! [`CONTRACTS`] is its only statement. [`Env::ieee`] refuses by it, verification compares results by it, and `docs/reference/problem.md` prints it.

use super::keys::Keys;
use super::refusal::Refusal;
use super::rules::Env;
use tilewright_ir::Mma;
use tilewright_problem::contraction::{Contraction, ResultSource};

/// The value that takes the place of a special one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Becomes {
    /// The value of IEEE 754, each step of the epilogue after the other.
    Ieee,
    /// NaN.
    Nan,
    /// The value of IEEE 754, or NaN of other elements.
    MaybeNan,
    /// The largest number of the type.
    Largest,
    /// The low bits of the sum.
    Wrapped,
    /// The type has no such value.
    Absent,
}

/// What a row asks of: a contraction, the instruction of a plan for it, and whether atomics add its splits.
struct Subject<'a> {
    c: &'a Contraction,
    instruction: Option<&'a Mma>,
    atomic: bool,
}

/// What special values become in contractions of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Contract {
    /// The kind, as the reference page names it.
    pub of: &'static str,
    applies: fn(&Subject<'_>) -> bool,
    /// NaN in an operand.
    pub nan: Becomes,
    /// An infinity in an operand.
    pub infinity: Becomes,
    /// A result beyond its type.
    pub overflow: Becomes,
    /// The way to the values of IEEE 754, where the kind has others.
    remedy: Option<&'static str>,
}

/// The rows. The first row that applies and differs from IEEE 754 decides, each column alone.
pub const CONTRACTS: &[Contract] = &[
    Contract {
        of: "plans that merge groups of a convolution (`BIM2`, `BIM3`)",
        applies: |s| s.c.merged_groups > 1,
        nan: Becomes::MaybeNan,
        infinity: Becomes::MaybeNan,
        overflow: Becomes::Ieee,
        remedy: Some("use BIM0, BIM1 or BIM4"),
    },
    Contract {
        of: "`tf32x3`, `bf16x3`, `bf16x6` on matrix units that split elements",
        applies: |s| s.instruction.is_some_and(|row| s.c.splits(row).is_some()),
        nan: Becomes::Ieee,
        infinity: Becomes::Nan,
        overflow: Becomes::Ieee,
        remedy: Some("use UNI0, or multiply as tf32"),
    },
    Contract {
        of: "plans that add splits of k by atomics (`SKS0`)",
        applies: |s| s.atomic,
        nan: Becomes::Ieee,
        // Alpha multiplies each split: one may overflow where another is an infinity.
        infinity: Becomes::MaybeNan,
        overflow: Becomes::MaybeNan,
        remedy: Some("use SKS1 or ICE1"),
    },
    Contract {
        of: "results in 8-bit floats",
        applies: |s| !s.c.drop_c && s.c.c.scalar.is_float8(),
        nan: Becomes::Ieee,
        infinity: Becomes::Largest,
        overflow: Becomes::Largest,
        remedy: Some("store results in f16, bf16 or f32"),
    },
    Contract {
        of: "results in i8 or u8",
        applies: |s| s.c.c.scalar.is_int8(),
        nan: Becomes::Absent,
        infinity: Becomes::Absent,
        overflow: Becomes::Largest,
        remedy: None,
    },
    Contract {
        of: "sums in i32",
        applies: |s| !s.c.accumulator.is_float(),
        nan: Becomes::Absent,
        infinity: Becomes::Absent,
        overflow: Becomes::Wrapped,
        remedy: None,
    },
    Contract {
        of: "all others",
        applies: |_| true,
        nan: Becomes::Ieee,
        infinity: Becomes::Ieee,
        overflow: Becomes::Ieee,
        remedy: None,
    },
];

impl Contract {
    /// True if special values become those of IEEE 754.
    pub const fn is_ieee(&self) -> bool {
        self.remedy.is_none()
    }
    /// The contract of a contraction and the instruction of a plan for it, of all rows that apply. `atomic`: atomics add splits of k.
    pub fn of(c: &Contraction, instruction: Option<&Mma>, atomic: bool) -> Contract {
        let subject = Subject { c, instruction, atomic };
        let rows = || CONTRACTS.iter().filter(|row| (row.applies)(&subject));
        let first = |column: fn(&Contract) -> Becomes| rows().map(column).find(|x| *x != Becomes::Ieee).unwrap_or(Becomes::Ieee);
        let plain = CONTRACTS[CONTRACTS.len() - 1];
        let row = *rows().find(|row| !row.is_ieee()).or(rows().next()).unwrap_or(&plain);
        Contract { nan: first(|row| row.nan), infinity: first(|row| row.infinity), overflow: first(|row| row.overflow), ..row }
    }
    /// That of two parts of a problem together.
    #[must_use]
    pub fn and(self, other: &Contract) -> Contract {
        let both = |x, y| if x == y { x } else { Becomes::MaybeNan };
        let row = if self.is_ieee() { *other } else { self };
        Contract { nan: both(self.nan, other.nan), infinity: both(self.infinity, other.infinity), ..row }
    }
}

/// Refuses contractions that have no values of IEEE 754, where the environment demands them.
pub(super) fn check(plan: &Keys, c: &Contraction, instruction: Option<&Mma>, env: &Env) -> Result<(), Refusal> {
    let atomic = plan.splits > 1 && plan.split_sum == 0 && !matches!(c.source, ResultSource::Elements(_));
    match Contract::of(c, instruction, atomic) {
        Contract { of, remedy: Some(remedy), .. } if env.ieee => Err(Refusal::NotIeee { of, remedy }),
        _ => Ok(()),
    }
}
