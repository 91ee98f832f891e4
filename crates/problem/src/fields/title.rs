//! Titles of problems, and questions of all the fields that change results.

use super::{Kind, Of};
use crate::conv::Direction;
use crate::extent::Extent;
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
    /// Names of the extents that each launch chooses.
    pub fn names_at_launch(&self) -> Vec<&'static str> {
        let dynamic = self.dynamic();
        [Extent::M, Extent::N, Extent::G].into_iter().filter(|e| dynamic.has(*e)).map(Extent::name).collect()
    }
    /// Short words for the problem: `gemm 1024x1024x1024 f32 nt row`.
    pub fn title(&self) -> String {
        let x = |list: &[u64]| list.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
        let (dtype, added) = (self.dtype_name(), self.epilogue_words());
        match self {
            Problem::Reduce(r) => {
                let over = r.over.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                format!("reduce {} over {over}, {dtype}{added}", x(&r.shape))
            }
            Problem::Gemm(g) => {
                let (batch, groups) = match g.grouped {
                    Some(of) => (String::new(), format!(", {} groups of {}", g.batch, of.name())),
                    None if g.batch > 1 => (format!("{} x ", g.batch), String::new()),
                    None => Default::default(),
                };
                let (a, b, order) = (g.letter(0), g.letter(1), g.order.name());
                let at_launch = self.names_at_launch().join(", ");
                let at_launch = if at_launch.is_empty() { at_launch } else { format!(", any {at_launch}") };
                format!("gemm {batch}{}x{}x{} {dtype} {a}{b} {order}{groups}{added}{at_launch}", g.m, g.n, g.k)
            }
            Problem::Conv(c) => {
                let groups = if c.groups > 1 { format!(", {} groups", c.groups) } else { String::new() };
                let forward = c.direction == Direction::Forward;
                let gradient = if forward { String::new() } else { format!("{} ", c.direction.name()) };
                let (input, filter) = (x(&c.input), x(&c.filter));
                format!("conv {gradient}{} x {}x{input} -> {}, filter {filter}, {dtype}{groups}{added}", c.n, c.c, c.k)
            }
        }
    }
}
