//! What compilers are asked for and what they answer: plain data, so that it can cross into a worker process.

use crate::device::Backend;
use crate::identity::Place;
use crate::wire::{Call, Fault};
use serde::{Deserialize, Serialize};
use tilewright_ir::Arg;

/// Everything a vendor's compiler needs: plain data, so that it can cross into a worker process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Whose compiler it is for.
    pub backend: Backend,
    /// Id of the device: OpenCL compiles for one.
    pub device: String,
    /// The same device by names, where its number may differ between processes (OpenCL).
    pub place: Option<Place>,
    /// Architecture to compile for.
    pub arch: String,
    /// Entry point, for messages.
    pub entry: String,
    /// Source text.
    pub source: String,
    /// Compiler options.
    pub options: Vec<String>,
}

/// A launch to try in a worker, on zeros: what is needed to repeat it there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rehearsal {
    /// The kernel.
    pub job: Job,
    /// Its arguments.
    pub declared: Vec<Arg>,
    /// Threads per work-group.
    pub threads: u32,
    /// Work-groups.
    pub grid: [u32; 3],
    /// Values in the same order.
    pub values: Vec<Value>,
}

/// An argument's value, for a buffer its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Value {
    Buffer(u64),
    I32(i32),
    I64(i64),
    /// As bits: JSON has no infinities.
    F32(u32),
    /// As bits.
    F64(u64),
}

/// What a worker is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// A binary.
    Compile(Job),
    /// A trial run. Nothing comes back but that it ended.
    Rehearse(Rehearsal),
    /// A call of the device that the worker holds.
    Device(Call),
}

/// A vendor's compiler, called in this process and this thread without a limit.
pub(crate) type VendorCompiler = fn(&Job) -> Result<Binary, Refusal>;

/// What a compiler made.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Binary {
    /// What the compiler said.
    pub log: String,
    /// Loadable code.
    pub code: Vec<u8>,
}

/// Why a compiler made nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// It refused the source, saying this.
    Source(String),
    /// It could not be called.
    Compiler(String),
    /// The worker process has no such device, though the process that asks has.
    Unseen(String),
    /// A call of the device that the worker holds failed.
    Failed(Fault),
}
