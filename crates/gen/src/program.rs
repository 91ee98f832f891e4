//! The generator's output: kernels, how to launch them, and what their arguments are bound to.

use crate::contraction::Operand;
use serde::{Deserialize, Serialize};
use tilewright_ir::Kernel;

/// What a kernel argument is at launch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Binding {
    /// The buffer of an operand.
    Buffer(Operand),
    /// The operand's start within its buffer, in elements (an `I64` argument).
    Offset(Operand),
    /// The bias vector, from its buffer's first element on.
    Bias,
    /// The residual, from its buffer's first element on.
    Residual,
    /// The workspace, from this byte on (a multiple of 512).
    Workspace(u64),
    /// The factor of the product, in the accumulator's type.
    Alpha,
    /// The factor of the old result, in the accumulator's type.
    Beta,
    /// A tensor map (`ArgKind::TensorMap`) whose element 0 is the operand's first element: its buffer, from its offset on.
    OperandMap(Operand),
    /// A tensor map whose element 0 stands at this byte of the workspace (a multiple of 512).
    WorkspaceMap(u64),
    /// A fixed integer (an `I64` argument).
    I64(i64),
    /// A fixed integer (an `I32` argument).
    I32(i32),
}

/// One kernel launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Index into [`Program::kernels`].
    pub kernel: usize,
    /// Work-groups along each dimension.
    pub grid: [u32; 3],
    /// Argument bindings, in the kernel's order.
    pub args: Vec<Binding>,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
