//! Cells of the support page: a kind of problem, the instruction that multiplies, and the type of the operands.

use crate::plan::Keys;
use crate::space::Space;
use std::fmt;
use tilewright_ir::mma::{MathUnit, Mma};
use tilewright_ir::{MatrixType, Scalar, Target};
use tilewright_problem::{Conv, Direction, Dtype, Gemm, Layout, Math, Operator, Order, Problem, Reduce};

/// The kinds of problems, as pages name them.
pub const KINDS: [&str; 5] = ["GEMM", "forward", "backward-data", "backward-weight", "reduction"];

/// The units with the names of their instructions.
pub const INSTRUCTIONS: [Instruction; 5] = [
    Instruction { unit: MathUnit::Fma, name: "fma" },
    Instruction { unit: MathUnit::Dot, name: "dp4a and v_dot4" },
    Instruction { unit: MathUnit::Mma, name: "mma.sync" },
    Instruction { unit: MathUnit::Warpgroup, name: "wgmma" },
    Instruction { unit: MathUnit::Mfma, name: "MFMA" },
];

/// A unit and the name of its instructions.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    /// The unit.
    pub unit: MathUnit,
    /// The vendor's name.
    pub name: &'static str,
}

/// A kind of problem, an instruction and a type, each by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// One of [`KINDS`].
    pub kind: &'static str,
    /// A name of [`INSTRUCTIONS`].
    pub instruction: &'static str,
    /// Type of A and B with the accuracy of their products, where the instruction uses it: `tf32x3`. Two-level accumulation is not named.
    pub dtype: &'static str,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {}", self.kind, self.instruction, self.dtype)
    }
}

/// The kind of a problem.
const fn kind(problem: &Problem) -> &'static str {
    match problem {
        Problem::Gemm(_) => KINDS[0],
        Problem::Conv(conv) => match conv.direction {
            Direction::Forward => KINDS[1],
            Direction::BackwardData => KINDS[2],
            Direction::BackwardWeight => KINDS[3],
        },
        Problem::Reduce(_) => KINDS[4],
    }
}

/// True if an instruction multiplies f32 as a math allows, not exactly.
fn is_relaxed(math: Math, row: &Mma) -> bool {
    match math {
        Math::Tf32 | Math::Tf32x3 => row.input == MatrixType::TF32,
        Math::Bf16x3 | Math::Bf16x6 => row.input == MatrixType::BF16,
        Math::Exact | Math::Promoted => false,
    }
}

/// A small problem of a kind and a type; `None` where there is none.
fn sample(kind: &str, dtype: &Dtype) -> Option<Problem> {
    let conv = |direction| {
        let conv = Conv::new(dtype.scalar, 2, 32, 32, &[7, 7], &[3, 3]).pad(&[1, 1], &[1, 1]);
        let conv = conv.layout(Layout::Nhwc).direction(direction).math(dtype.math);
        (!dtype.complex).then(|| conv.build().ok()).flatten().map(Problem::Conv)
    };
    match KINDS.iter().position(|known| *known == kind)? {
        0 => {
            let gemm = Gemm::new(dtype.scalar, 64, 64, 64).order(Order::Row).trans(false, true).math(dtype.math);
            let gemm = if dtype.complex { gemm.complex() } else { gemm };
            gemm.build().ok().map(Problem::Gemm)
        }
        1 => conv(Direction::Forward),
        2 => conv(Direction::BackwardData),
        3 => conv(Direction::BackwardWeight),
        _ if dtype.is_plain() => {
            let reduce = Reduce::new(dtype.scalar, &[128, 128], &[1]).op(Operator::Sum);
            reduce.build().ok().map(Problem::Reduce)
        }
        _ => None,
    }
}

impl Cell {
    /// The cell that a plan of a problem is in on a target; `None` where the plan is not legal.
    pub fn of(problem: &Problem, plan: &Keys, target: &Target) -> Option<Cell> {
        let space = Space::new(problem, target).ok()?.with_atomics(true);
        let resolved = space.resolve(plan).ok()?;
        let tiling = &resolved.spec.tiling;
        let instruction = INSTRUCTIONS.iter().find(|known| known.unit == tiling.unit)?.name;
        let relaxed = tiling.instruction.is_some_and(|row| is_relaxed(problem.math(), row));
        let math = if relaxed { problem.math() } else { Math::Exact };
        let dtype = Dtype::name_of(problem.dtype(), math, problem.parts() > 1);
        Some(Cell { kind: kind(problem), instruction, dtype })
    }

    /// Every cell that a known target has.
    pub fn all() -> Vec<Cell> {
        let targets: Vec<Target> = Target::known().iter().filter_map(|arch| Target::by_arch(arch)).collect();
        let mut all = Vec::new();
        for kind in KINDS {
            for Instruction { name: instruction, .. } in INSTRUCTIONS {
                let types = Dtype::ALL.iter().filter(|dtype| dtype.math != Math::Promoted);
                let cells = types.map(|dtype| Cell { kind, instruction, dtype: dtype.name() });
                all.extend(cells.filter(|cell| targets.iter().any(|t| cell.is_of(t))));
            }
        }
        all
    }

    /// The unit.
    pub fn unit(&self) -> Option<MathUnit> {
        Some(INSTRUCTIONS.iter().find(|known| known.name == self.instruction)?.unit)
    }

    /// A small problem of it.
    pub fn problem(&self) -> Option<Problem> {
        sample(self.kind, &Dtype::in_text(self.dtype)?)
    }

    /// True if a target has the instruction, and it multiplies the type in this kind of problem.
    pub fn is_of(&self, target: &Target) -> bool {
        let (Some(unit), Some(problem)) = (self.unit(), self.problem()) else { return false };
        let features = &target.features;
        let Ok(space) = Space::new(&problem, target) else { return false };
        let exact = problem.math() == Math::Exact;
        let takes = |unit: MathUnit| {
            let first = space.contractions().into_iter().find_map(|(_, c)| c.instruction(unit));
            // Generations of a unit have instructions of their own.
            let rows = first.into_iter().flat_map(|row| Mma::all(unit, row.input));
            let mut fit = rows.filter(|row| exact || is_relaxed(problem.math(), row));
            unit.available(features) && fit.any(|row| row.takes(features))
        };
        match unit.dot_unit() {
            // Multiply-adds of threads take every type; of bytes, dot products take their place.
            Some(dot) => exact && (features.f64 || problem.dtype() != Scalar::F64) && !takes(dot),
            None => takes(unit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Constraint;

    #[test]
    fn a_plan_is_in_the_cell_of_its_unit_and_type() {
        let cell = |problem: &str, plan: &str, arch: &str| {
            let problem = Problem::parse(problem).expect("a problem");
            let plan = Constraint::parse(plan).expect("a plan").apply(&Keys::default());
            Cell::of(&problem, &plan, &Target::by_arch(arch).expect("known")).map(|cell| cell.to_string())
        };
        let bytes = "tC0_tA0_tB1_colMaj0_m64_n64_k64_lda64_ldb64_ldc64_ws0_i8_outi32";
        assert_eq!(cell(bytes, "A_MIC2__B_MIC2__C_UNR16_MAC64", "sm_80").as_deref(), Some("GEMM, dp4a and v_dot4, i8"));
        assert_eq!(cell(bytes, "A_MIC2__B_MIC2__C_UNR16_MAC64", "gfx900").as_deref(), Some("GEMM, fma, i8"));
        assert_eq!(cell(bytes, "C_UNI2", "sm_80"), None);
        // Multiply-adds are exact, whatever is allowed.
        let allowed = "tC0_tA0_tB1_colMaj0_m64_n64_k64_lda64_ldb64_ldc64_ws0_tf32x3";
        assert_eq!(cell(allowed, "A_MIC2__B_MIC2__C_UNR16_MAC64", "sm_80").as_deref(), Some("GEMM, fma, f32"));
        let reduce = "reduce_in64x64_over1_opsum_f32";
        assert_eq!(cell(reduce, "C_MAC64", "sm_80").as_deref(), Some("reduction, fma, f32"));
    }

    #[test]
    fn cells_are_those_that_a_target_has() {
        let all: Vec<String> = Cell::all().iter().map(Cell::to_string).collect();
        for known in ["GEMM, wgmma, tf32x3", "backward-weight, MFMA, bf16", "reduction, fma, f64", "forward, dp4a and v_dot4, i8"]
        {
            assert!(all.iter().any(|cell| cell == known), "{known} is not in {all:#?}");
        }
        for none in ["reduction, wgmma, bf16", "forward, fma, complex64", "GEMM, fma, tf32", "GEMM, MFMA, tf32x3"] {
            assert!(!all.iter().any(|cell| cell == none), "{none}");
        }
    }
}
