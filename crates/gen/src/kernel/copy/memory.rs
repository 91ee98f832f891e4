//! Global memory that threads read an operand from.

use crate::kernel::change::Change;
use tilewright_ir::{ArgId, ExprId};

/// The arguments of an operand that threads read.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub buffer: ArgId,
    /// The second tensor, from its first element on, where the operand is two.
    pub up: Option<ArgId>,
    /// First element; `None`: 0.
    pub offset: Option<ExprId>,
    /// How elements change on their way through registers.
    pub change: Option<Change>,
}
