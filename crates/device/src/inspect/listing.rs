//! Disassembled code in terms that both vendors share: classes of instructions, waits, and where control goes.

use serde::{Deserialize, Serialize};

/// What an instruction does for the main loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Global memory to registers.
    GlobalLoad,
    /// Global to shared memory without registers between them.
    Copy,
    /// Waits until global loads or copies have arrived.
    Wait,
    /// Registers to shared memory.
    SharedStore,
    /// Shared memory to registers.
    SharedRead,
    /// Waits until reads from shared memory have arrived.
    SharedWait,
    /// Floating-point arithmetic, matrix instructions included.
    Math,
    /// Waits until matrix instructions, which are asynchronous on sm_90a, have finished.
    MathWait,
    /// All waves meet.
    Barrier,
    /// Registers to global memory, atomics included.
    GlobalStore,
    /// Private memory: spilled registers, indexed arrays.
    Scratch,
    /// Control flow.
    Branch,
    /// Everything else: addresses, moves, conversions, counters.
    Other,
}

impl Class {
    /// In words: `global load`, `LDS store`.
    pub const fn name(self) -> &'static str {
        match self {
            Class::GlobalLoad => "global load",
            Class::Copy => "asynchronous copy",
            Class::Wait => "wait for loads",
            Class::SharedStore => "LDS store",
            Class::SharedRead => "LDS read",
            Class::SharedWait => "wait for LDS",
            Class::Math => "math",
            Class::MathWait => "wait for math",
            Class::Barrier => "barrier",
            Class::GlobalStore => "global store",
            Class::Scratch => "scratch access",
            Class::Branch => "branch",
            Class::Other => "other",
        }
    }
    /// True for what brings data from global memory.
    pub const fn is_load(self) -> bool {
        matches!(self, Class::GlobalLoad | Class::Copy)
    }
}

/// How the hardware keeps count of an instruction until its data has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracked {
    /// Not at all.
    No,
    /// By the wave's counter of memory instructions, in order of issue (AMD).
    Counter,
    /// By a scoreboard (NVIDIA).
    Scoreboard(u8),
    /// With the other copies up to the next [`Tracked::Commit`] (NVIDIA).
    InGroup,
    /// Closes a group of copies.
    Commit,
}

/// What an instruction waits for before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing of interest.
    No,
    /// Until at most this many instructions on the counter are unfinished.
    Counter(u32),
    /// Until every scoreboard of this set is free.
    Scoreboards(u8),
    /// Until at most this many groups of copies are unfinished.
    Groups(u32),
}

/// Where control goes after an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// To the next one.
    Next,
    /// To a label.
    Jump(String),
    /// To a label or to the next one.
    Branch(String),
    /// Nowhere.
    End,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    /// As the disassembler wrote it.
    pub text: String,
    pub class: Class,
    pub tracked: Tracked,
    pub wait: Wait,
    pub flow: Flow,
}

impl Instruction {
    /// The opcode without what it is guarded by.
    pub fn opcode(&self) -> &str {
        self.text.split_whitespace().find(|w| !w.starts_with('@')).unwrap_or_default()
    }
    /// True for instructions of matrix units, on either vendor's hardware.
    pub fn is_matrix(&self) -> bool {
        let base = self.opcode().split('.').next().unwrap_or_default();
        self.class == Class::Math && (base.ends_with("MMA") || base.starts_with("v_mfma"))
    }
    /// True for integer arithmetic of every lane: addresses, predicates, counters; not for moves, conversions and what a wave does once.
    pub fn is_integer(&self) -> bool {
        let opcode = self.opcode();
        if self.class != Class::Other {
            return false;
        }
        match opcode.strip_prefix("v_") {
            Some(name) => {
                let moves = ["mov", "accvgpr", "cvt", "read", "write", "swap", "nop"];
                let integers = ["u16", "i16", "u24", "i24", "u32", "i32", "u64", "i64", "b16", "b32", "b64"];
                !moves.iter().any(|head| name.starts_with(head)) && name.split('_').any(|part| integers.contains(&part))
            }
            None if opcode.starts_with("IMAD.MOV") => false,
            None => matches!(
                opcode.split('.').next().unwrap_or_default(),
                "IADD3"
                    | "IADD"
                    | "VIADD"
                    | "IMAD"
                    | "IMUL"
                    | "LOP3"
                    | "SHF"
                    | "LEA"
                    | "ISETP"
                    | "IABS"
                    | "IMNMX"
                    | "VIMNMX"
                    | "SEL"
                    | "PRMT"
            ),
        }
    }
}

/// The code of one kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub instructions: Vec<Instruction>,
    /// Labels, each with the instruction it stands before.
    pub labels: Vec<(String, usize)>,
}

impl Listing {
    /// The instruction a label stands before.
    pub fn target(&self, label: &str) -> Option<usize> {
        self.labels.iter().find(|(name, _)| name == label).map(|(_, at)| *at)
    }
}
