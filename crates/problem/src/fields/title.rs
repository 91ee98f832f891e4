//! Titles of problems, and questions of all the fields that change results.

use super::{Kind, Of};
use crate::gemm::Gemm;
use crate::problem::Problem;

impl Problem {
    /// The kind of the problem.
    pub const fn of(&self) -> Of {
        match self {
            Problem::Gemm(_) => Of::Gemm,
            Problem::Conv(_) => Of::Conv,
            Problem::Reduce(_) => Of::Reduce,
        }
    }
    /// True if results are more than `alpha * sum + beta * C`.
    pub fn has_epilogue(&self) -> bool {
        let fields = self.of().fields().iter().filter(|field| field.epilogue);
        fields.into_iter().any(|field| field.values(self).iter().any(|value| !matches!(field.kind, Kind::Bit) || value == "1"))
    }
    /// The type of the results where it differs, and what happens to the sums, for titles: ` to f32, bias n, gelu, residual`.
    pub fn epilogue_words(&self) -> String {
        let mut words = String::new();
        if let Problem::Gemm(Gemm { b_dtype: Some(b), .. }) = self {
            words += &format!(" by {b}");
        }
        if self.out_dtype() != self.multiplied() {
            words += &format!(" to {}", self.out_dtype());
        }
        for field in self.of().fields().iter().filter(|field| !field.title.is_empty()) {
            let values = field.values(self).into_iter().filter(|value| !matches!(field.kind, Kind::Bit) || value == "1");
            words.extend(values.map(|value| field.title.replace("{}", &value)));
        }
        words
    }
}
