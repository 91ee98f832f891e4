//! The generator's output: kernels, how to launch them, and what their arguments are bound to.

use serde::{Deserialize, Serialize};
use std::fmt;
use tilewright_ir::Kernel;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Extent, Extents, Quant};

/// What a kernel argument is at launch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Binding {
    /// The buffer of an operand.
    Buffer(Operand),
    /// The operand's start within its buffer, in elements (an `I64` argument).
    Offset(Operand),
    /// A vector of quantisation parameters, from its buffer's first element on.
    Quant(Quant),
    /// The bias vector, from its buffer's first element on.
    Bias,
    /// The residual, from its buffer's first element on.
    Residual,
    /// The pre-activations of a gated product, from their buffer's first element on.
    Preactivations,
    /// The up weights of a gated product, from their buffer's first element on.
    Up,
    /// An operand of the second pair of factors, from its buffer's first element on.
    Second(Operand),
    /// The values of the problem's reduction with this number, from their buffer's first element on.
    Reduction(usize),
    /// The workspace, from this byte on (a multiple of 512).
    Workspace(u64),
    /// Alpha, in the accumulator's type.
    Alpha,
    /// Beta, in the accumulator's type.
    Beta,
    /// The imaginary part of a complex alpha, in the accumulator's type.
    AlphaIm,
    /// The imaginary part of a complex beta.
    BetaIm,
    /// A tensor map (`ArgKind::TensorMap`). Its element 0 is at so many elements from the operand's first: its buffer, from its
    /// offset on.
    OperandMap(Operand, u64),
    /// A tensor map of the up weights. Its element 0 is at so many elements from their buffer's first.
    UpMap(u64),
    /// A tensor map of an operand of the second pair. Its element 0 is at so many elements from its buffer's first.
    SecondMap(Operand, u64),
    /// A tensor map of the pre-activations. Its element 0 is at so many elements from their buffer's first.
    PreactivationsMap(u64),
    /// A tensor map whose element 0 stands at this byte of the workspace (a multiple of 512).
    WorkspaceMap(u64),
    /// A fixed integer (an `I64` argument).
    I64(i64),
    /// A fixed integer (an `I32` argument).
    I32(i32),
    /// An extent of the launch (an `I32` argument).
    Extent(Extent),
    /// Batch entries of this launch among those from `first` on, at most `most` (an `I64` argument).
    Entries {
        /// First batch entry.
        first: u64,
        /// Most of them.
        most: u64,
    },
    /// Pieces of work of this launch: [`Groups::work`] (an `I32` argument).
    Work,
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Index into [`Program::kernels`].
    pub kernel: usize,
    /// Work-groups along each dimension; with extents known only at launch, those of the largest.
    pub grid: [u32; 3],
    /// Argument bindings, in the kernel's order.
    pub args: Vec<Binding>,
    /// How many work-groups there are along dimension 0, where that depends on the extents of the launch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Groups>,
    /// Extents of tensor maps that depend on the extents of the launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub maps: Vec<MapExtent>,
}

impl Launch {
    /// Work-groups of a launch with these extents; 0 along dimension 0: nothing is to be launched.
    pub fn grid_at(&self, at: &Extents) -> [u32; 3] {
        let [x, y, z] = self.grid;
        // No more than with the largest extents.
        let groups = self.groups.as_ref().map_or(x, |g| u32::try_from(g.count(at)).unwrap_or(x).min(x));
        [groups, y, z]
    }
}

/// A number that depends on the extents of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Factor {
    /// It does not.
    Fixed(u64),
    /// Pieces of this length that cover an extent.
    Steps {
        /// Extent.
        extent: Extent,
        /// Further ones that are covered as well.
        more: u64,
        /// Length of a piece.
        of: u64,
    },
    /// Batch entries from `first` on, at most `most`.
    Entries {
        /// First batch entry.
        first: u64,
        /// Most of them.
        most: u64,
    },
}

impl Factor {
    /// Its value.
    pub fn at(&self, at: &Extents) -> u64 {
        match *self {
            Factor::Fixed(value) => value,
            Factor::Steps { extent, more, of } => at.of(extent).saturating_add(more).div_ceil(of.max(1)),
            Factor::Entries { first, most } => at.g.saturating_sub(first).min(most),
        }
    }
}

/// Work-groups of a launch: the product of factors, in groups of `per`, rounded up, at most `most`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// What is multiplied.
    pub factors: Vec<Factor>,
    /// Of how many a work-group takes care.
    pub per: u64,
    /// Most work-groups: those stay for all the work there is.
    pub most: Option<u64>,
}

impl Groups {
    /// Pieces of work, in groups of `per`.
    pub fn work(&self, at: &Extents) -> u128 {
        let product = self.factors.iter().fold(1u128, |product, f| product.saturating_mul(f.at(at).into()));
        product.div_ceil(self.per.max(1).into())
    }
    /// Work-groups.
    pub fn count(&self, at: &Extents) -> u128 {
        self.most.map_or(u128::MAX, u128::from).min(self.work(at))
    }
    /// The work-groups of `all`, in sequence. Where there is more than one, none depends on extents.
    pub fn together(mut all: Vec<Groups>, at: &Extents) -> Groups {
        match (all.pop(), all.is_empty()) {
            (Some(one), true) => one,
            (last, _) => {
                let count = all.iter().chain(&last).map(|g| g.count(at)).fold(0, u128::saturating_add);
                Groups { factors: vec![Factor::Fixed(u64::try_from(count).unwrap_or(u64::MAX))], per: 1, most: None }
            }
        }
    }
    /// True if that depends on the extents.
    pub fn depends(&self) -> bool {
        self.factors.iter().any(|f| !matches!(f, Factor::Fixed(_)))
    }
}

impl fmt::Display for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Factor::Fixed(value) => write!(f, "{value}"),
            Factor::Steps { extent, more: 0, of: 0 | 1 } => f.write_str(extent.name()),
            Factor::Steps { extent, more: 0, of } => write!(f, "ceil({} / {of})", extent.name()),
            Factor::Steps { extent, more, of } => write!(f, "ceil(({} + {more}) / {of})", extent.name()),
            Factor::Entries { first: 0, most } => write!(f, "min(batch, {most})"),
            Factor::Entries { first, most } => write!(f, "max(0, min(batch - {first}, {most}))"),
        }
    }
}

impl Groups {
    /// [`Groups::work`] as a formula of `m`, `n` and `batch`.
    pub fn formula(&self) -> String {
        let fixed: u128 =
            self.factors.iter().filter_map(|f| if let Factor::Fixed(v) = f { Some(u128::from(*v)) } else { None }).product();
        let others = self.factors.iter().filter(|f| !matches!(f, Factor::Fixed(_))).map(Factor::to_string);
        let all: Vec<String> = (fixed != 1).then(|| fixed.to_string()).into_iter().chain(others).collect();
        let product = if all.is_empty() { "1".to_string() } else { all.join(" * ") };
        if self.per <= 1 { product } else { format!("ceil({product} / {})", self.per) }
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.most {
            Some(most) => write!(f, "min({}, {most})", self.formula()),
            None => f.write_str(&self.formula()),
        }
    }
}

/// An extent of a tensor map that depends on the extents of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapExtent {
    /// Index of the argument.
    pub arg: usize,
    /// Dimension of the map.
    pub dim: usize,
    /// Its extent.
    pub extent: Factor,
}

/// Alignment a program needs of an operand's first element, in bytes: asked again with the real pointers at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alignment {
    /// Operand.
    pub operand: Operand,
    /// Bytes, a power of two.
    pub bytes: u32,
}

/// Alignment in bytes that every program needs of the buffers of bias and residual.
pub const ADDED_ALIGN: u32 = 16;

/// Kernels and their launches, in order on one queue.
///
/// ```
/// use tilewright_gen::kernel::generate;
/// use tilewright_gen::plan::{Env, Plan, derive};
/// use tilewright_ir::{Scalar, Target, print};
/// use tilewright_problem::lower::{ConvForm, lower};
/// use tilewright_problem::{Gemm, Problem};
///
/// let contraction = lower(&Problem::Gemm(Gemm::new(Scalar::F32, 512, 512, 512).build()?), ConvForm::PER_SAMPLE)?.lead;
/// let target = Target::by_arch("sm_80").expect("a known architecture");
/// let spec = derive(&Plan::default(), &contraction, &Env::new(&target, 0))?;
/// let program = generate(&spec, 0)?;
/// for launch in &program.launches {
///     let source = print(&program.kernels[launch.kernel], &target)?;
///     println!("{:?} work-groups of\n{}", launch.grid, source.text);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Distinct kernels.
    pub kernels: Vec<Kernel>,
    /// Launches, in order.
    pub launches: Vec<Launch>,
    /// Workspace needed, in bytes.
    pub workspace_bytes: u64,
    /// What the real pointers must satisfy.
    pub alignments: Vec<Alignment>,
    /// What the buffers themselves must satisfy, wherever the operand begins within.
    pub bases: Vec<Alignment>,
}
