//! Roles: the memories that a problem reads and writes, one name for each. Test data, launches, host code and the fronts list memories by them.

use crate::contraction::Operand;
use crate::problem::Problem;
use crate::quant::Quant;
use crate::reduction::MOST_REDUCTIONS;
use tilewright_ir::Scalar;

/// A memory of a problem.
///
/// ```
/// use tilewright_problem::Role;
///
/// let role = Role::named("scale_m").expect("a role");
/// assert_eq!((role, role.words()), (Role::ScaleM, "scales along m"));
/// assert_eq!(Role::Reduction(1).name(), "reduction_1");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Operand A; a convolution's input or output gradient; the tensor of a reduction.
    A,
    /// Operand B; a convolution's filter, or its input where the filter's gradient is computed.
    B,
    /// The result.
    C,
    /// Scales along m.
    ScaleM,
    /// Scales along n.
    ScaleN,
    /// Zero points of A.
    ZeroA,
    /// Zero points of B.
    ZeroB,
    /// Ends of the groups of a grouped product.
    Ends,
    /// The bias vector.
    Bias,
    /// The residual.
    Residual,
    /// The values of the reduction with this number, below [`MOST_REDUCTIONS`].
    Reduction(usize),
    /// The workspace.
    Workspace,
    /// The pre-activations of a gated product.
    Preactivations,
    /// The other factor's columns of a gated product with two tensors of weights. B has the gate's.
    Up,
    /// Operand A of the second pair of factors.
    A2,
    /// Operand B of the second pair.
    B2,
}

/// Roles other than reductions, in order.
const SINGLE: [Role; 15] = [
    Role::A,
    Role::B,
    Role::C,
    Role::ScaleM,
    Role::ScaleN,
    Role::ZeroA,
    Role::ZeroB,
    Role::Ends,
    Role::Bias,
    Role::Residual,
    Role::Workspace,
    Role::Preactivations,
    Role::Up,
    Role::A2,
    Role::B2,
];

impl Role {
    /// Number of roles, each reduction counted.
    pub const COUNT: usize = SINGLE.len() + MOST_REDUCTIONS;

    /// All roles, in the order of [`Role::index`].
    pub fn all() -> impl Iterator<Item = Role> {
        SINGLE.into_iter().chain((0..MOST_REDUCTIONS).map(Role::Reduction))
    }

    /// Position among all roles. That of a reduction beyond the last one is [`Role::COUNT`] or more.
    pub const fn index(self) -> usize {
        match self {
            Role::A => 0,
            Role::B => 1,
            Role::C => 2,
            Role::ScaleM => 3,
            Role::ScaleN => 4,
            Role::ZeroA => 5,
            Role::ZeroB => 6,
            Role::Ends => 7,
            Role::Bias => 8,
            Role::Residual => 9,
            Role::Workspace => 10,
            Role::Preactivations => 11,
            Role::Up => 12,
            Role::A2 => 13,
            Role::B2 => 14,
            Role::Reduction(number) => SINGLE.len().saturating_add(number),
        }
    }

    /// Name as an argument: `a`, `scale_m`, `reduction_0`.
    pub fn name(self) -> String {
        match self {
            Role::Reduction(number) => format!("reduction_{number}"),
            single => single.single_name().into(),
        }
    }
    const fn single_name(self) -> &'static str {
        match self {
            Role::A => "a",
            Role::B => "b",
            Role::C => "c",
            Role::ScaleM => Quant::ScaleM.name(),
            Role::ScaleN => Quant::ScaleN.name(),
            Role::ZeroA => Quant::ZeroA.name(),
            Role::ZeroB => Quant::ZeroB.name(),
            Role::Ends => Quant::Ends.name(),
            Role::Bias => "bias",
            Role::Residual => "residual",
            Role::Workspace => "workspace",
            Role::Preactivations => "preactivations",
            Role::Up => "up",
            Role::A2 => "a2",
            Role::B2 => "b2",
            Role::Reduction(_) => "",
        }
    }
    /// The role of a name as an argument.
    pub fn named(name: &str) -> Option<Role> {
        match name.strip_prefix("reduction_") {
            Some(number) => number.parse().ok().filter(|number| *number < MOST_REDUCTIONS).map(Role::Reduction),
            None => SINGLE.into_iter().find(|role| role.single_name() == name),
        }
    }
    /// What the memory holds, in words for messages: `operand A`, `scales along m`.
    pub const fn words(self) -> &'static str {
        match self {
            Role::A => "operand A",
            Role::B => "operand B",
            Role::C => "operand C",
            Role::ScaleM => Quant::ScaleM.words(),
            Role::ScaleN => Quant::ScaleN.words(),
            Role::ZeroA => Quant::ZeroA.words(),
            Role::ZeroB => Quant::ZeroB.words(),
            Role::Ends => Quant::Ends.words(),
            Role::Bias => "bias",
            Role::Residual => "residual",
            Role::Reduction(_) => "reduction",
            Role::Workspace => "workspace",
            Role::Preactivations => "pre-activations",
            Role::Up => "up weights",
            Role::A2 => "operand A of the second pair",
            Role::B2 => "operand B of the second pair",
        }
    }

    /// An operand of the second pair of factors: A2 for A, B2 for B.
    pub const fn second(of: Operand) -> Role {
        if matches!(of, Operand::A) { Role::A2 } else { Role::B2 }
    }
    /// The vector of quantisation parameters, or of ends of groups, that the memory holds.
    pub const fn quant(self) -> Option<Quant> {
        match self {
            Role::ScaleM => Some(Quant::ScaleM),
            Role::ScaleN => Some(Quant::ScaleN),
            Role::ZeroA => Some(Quant::ZeroA),
            Role::ZeroB => Some(Quant::ZeroB),
            Role::Ends => Some(Quant::Ends),
            _ => None,
        }
    }
}

impl From<Operand> for Role {
    fn from(operand: Operand) -> Role {
        match operand {
            Operand::A => Role::A,
            Operand::B => Role::B,
            Operand::C => Role::C,
        }
    }
}

impl From<Quant> for Role {
    fn from(quant: Quant) -> Role {
        match quant {
            Quant::ScaleM => Role::ScaleM,
            Quant::ScaleN => Role::ScaleN,
            Quant::ZeroA => Role::ZeroA,
            Quant::ZeroB => Role::ZeroB,
            Quant::Ends => Role::Ends,
        }
    }
}

/// One value for each role, without an allocation.
///
/// ```
/// use tilewright_problem::{PerRole, Role};
/// let addresses = PerRole::default().with(Role::A, 4096_u64).with(Role::Reduction(1), 8192);
/// assert_eq!((addresses.of(Role::A), addresses.of(Role::Bias)), (4096, 0));
/// assert_eq!(addresses.get(Role::Reduction(99)), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerRole<T>([T; Role::COUNT]);

impl<T: Default> Default for PerRole<T> {
    fn default() -> Self {
        PerRole(std::array::from_fn(|_| T::default()))
    }
}

impl<T: Default> PerRole<T> {
    /// Values of A, B and C; the type's default for other roles.
    pub fn operands([a, b, c]: [T; 3]) -> Self {
        PerRole::default().with(Role::A, a).with(Role::B, b).with(Role::C, c)
    }
}

impl<T> PerRole<T> {
    /// The value of a role; none for a reduction that no problem has.
    pub fn get(&self, role: Role) -> Option<&T> {
        self.0.get(role.index())
    }
    /// Replaces the value of a role. A reduction that no problem has keeps no value.
    pub fn set(&mut self, role: Role, value: T) {
        if let Some(place) = self.0.get_mut(role.index()) {
            *place = value;
        }
    }
    /// The same values with another one for a role.
    #[must_use]
    pub fn with(mut self, role: Role, value: T) -> Self {
        self.set(role, value);
        self
    }
    /// The values with their roles.
    pub fn iter(&self) -> impl Iterator<Item = (Role, &T)> {
        Role::all().zip(&self.0)
    }
}

impl<T> PerRole<Option<T>> {
    /// The values of the roles that have one.
    pub fn given(&self) -> impl Iterator<Item = (Role, &T)> {
        self.iter().filter_map(|(role, value)| Some((role, value.as_ref()?)))
    }
    /// The value of a role that has one.
    pub fn given_to(&self, role: Role) -> Option<&T> {
        self.get(role)?.as_ref()
    }
}

impl<T: Copy + Default> PerRole<T> {
    /// The value of a role, or the type's default for a reduction that no problem has.
    pub fn of(&self, role: Role) -> T {
        self.get(role).copied().unwrap_or_default()
    }
}

/// A memory that a problem has, apart from the workspace, whose size depends on the plan.
///
/// ```
/// use tilewright_ir::Scalar;
/// use tilewright_problem::{Along, Gemm, Problem};
///
/// let problem = Problem::from(Gemm::new(Scalar::F16, 4, 6, 8).out_dtype(Scalar::F32).bias(Along::N).build()?);
/// let memories: Vec<String> = problem.memories().map(|x| format!("{} {}", x.role.name(), x.scalar)).collect();
/// assert_eq!(memories, ["a f16", "b f16", "c f32", "bias f32"]);
/// assert_eq!(problem.memories().filter(|x| x.written).count(), 1);
/// # Ok::<(), tilewright_problem::ProblemError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleMemory {
    /// Its role.
    pub role: Role,
    /// Type of its elements.
    pub scalar: Scalar,
    /// The kernels write to it.
    pub written: bool,
}

impl Problem {
    /// The memories of this problem, in the order of arguments: operands, quantisation parameters, bias, residual, up weights,
    /// second pair, pre-activations, reductions.
    pub fn memories(&self) -> impl Iterator<Item = RoleMemory> {
        let input = |role: Role, scalar: Scalar| RoleMemory { role, scalar, written: false };
        let output = |role: Role, scalar: Scalar| RoleMemory { role, scalar, written: true };
        let product = !matches!(self, Problem::Reduce(_));
        let operands = [
            Some(input(Role::A, self.dtype())),
            product.then(|| input(Role::B, self.b_dtype())),
            self.keeps_c().then(|| output(Role::C, self.out_dtype())),
        ];
        let quants = Quant::ALL.into_iter().filter(|&quant| self.quant_len(quant) > 0);
        let quants = quants.map(move |quant| input(quant.into(), quant.scalar()));
        let bias = (self.bias_len() > 0).then(|| input(Role::Bias, self.bias_dtype()));
        let residual = (self.residual_len() > 0).then(|| input(Role::Residual, self.out_dtype()));
        let up = (self.up_len() > 0).then(|| input(Role::Up, self.b_dtype()));
        let second = [(Role::A2, self.dtype()), (Role::B2, self.b_dtype())];
        let pairs = matches!(self, Problem::Gemm(gemm) if gemm.second.is_some());
        let second = second.into_iter().filter(move |_| pairs).map(move |(role, scalar)| input(role, scalar));
        let stored = (self.preactivations_len() > 0).then(|| output(Role::Preactivations, self.out_dtype()));
        let reductions = self.reductions().iter().enumerate();
        let reductions = reductions.map(move |(number, x)| output(Role::Reduction(number), x.scalar(self.accumulator())));
        operands
            .into_iter()
            .flatten()
            .chain(quants)
            .chain(bias)
            .chain(residual)
            .chain(up)
            .chain(second)
            .chain(stored)
            .chain(reductions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Along, Gemm, Operator, Reduce};

    #[test]
    fn roles_are_in_the_order_of_their_index() {
        for (n, role) in Role::all().enumerate() {
            assert_eq!(role.index(), n, "{role:?}");
        }
        assert_eq!(Role::all().count(), Role::COUNT);
        assert!(Role::all().all(|role| Role::named(&role.name()) == Some(role)));
        let names: std::collections::BTreeSet<_> = Role::all().map(Role::name).collect();
        assert_eq!(names.len(), Role::COUNT, "{names:?}");
        assert!(!names.contains(""));
    }

    #[test]
    fn a_problem_lists_the_memories_it_has() {
        let roles = |problem: &Problem| problem.memories().map(|x| x.role).collect::<Vec<_>>();
        let gemm = Gemm::new(Scalar::BF16, 8, 16, 32).bias(Along::N).residual().build().unwrap();
        assert_eq!(roles(&gemm.into()), [Role::A, Role::B, Role::C, Role::Bias, Role::Residual]);
        let reduce = Reduce::new(Scalar::F16, &[4, 6], &[1]).op(Operator::Sum).build().unwrap();
        let reduce = Problem::from(reduce);
        assert_eq!(roles(&reduce), [Role::A, Role::Reduction(0)]);
        let value = reduce.memories().last().unwrap();
        assert_eq!((value.scalar, value.written), (Scalar::F32, true));
    }
}
