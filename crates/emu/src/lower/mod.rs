//! Lowers a kernel to [`Code`]: statements in `statement`, expressions in `expr`, control flow in `flow`, memory
//! and places in `place`; `emit` adds to the code.
//!
//! Values that are the same for all threads of a work-group stay uniform, so address arithmetic on loop counters costs nothing.
//! Loops that must unroll are unrolled. Register elements become slots. Where threads diverge, statements run under a mask of
//! active lanes. Pure values are computed for all lanes, assignments are blended, and memory is touched by active lanes only.

mod analyse;
mod emit;
mod expr;
mod flow;
mod matrix;
mod place;
mod slots;
mod statement;
mod value;

use crate::code::{Code, Inst, Work};
use crate::lanes::Slot;
use crate::matrix::places::Maps;
use crate::op::Op;
use crate::{EmuError, Location, Options};
use analyse::Facts;
use slots::{Class, Slots};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tilewright_ir::*;
use value::{Comp, Value, is_wide};

/// Operations a kernel may unroll to; beyond, it would not compile on a GPU either.
const MAX_OPERATIONS: usize = 1 << 23;

/// Threads of a work-group: no device has more.
const MAX_THREADS: u32 = 1024;

/// Shared memory of a work-group in bytes, beyond any device.
const MAX_SHARED: u32 = 1 << 22;

/// Register elements of a thread, far beyond any device.
const MAX_REGS: u64 = 1 << 16;

/// Lowers a kernel for a setting of checks and wave width.
pub(crate) fn lower(k: &Kernel, options: &Options) -> Result<Code, EmuError> {
    let refuse = |what| EmuError::Invalid { kernel: k.name.clone(), what };
    well_formed(k).map_err(|e| refuse(format!("{}: {}", e.at, e.fault)))?;
    if k.threads == 0 || k.threads > MAX_THREADS {
        return Err(refuse(format!("{} threads per work-group: 1 to {MAX_THREADS} are possible", k.threads)));
    }
    if k.shared_bytes() > MAX_SHARED {
        return Err(refuse(format!("{} bytes of shared memory: up to {MAX_SHARED} are possible", k.shared_bytes())));
    }
    let registers: u64 = k.regs.iter().map(|r| u64::from(r.len) * u64::from(r.ty.lanes)).sum();
    if registers > MAX_REGS {
        return Err(refuse(format!("{registers} register elements per thread: up to {MAX_REGS} are possible")));
    }
    let facts = analyse::analyse(k);
    matrix::supported(k, options, facts.uses.warpgroups).map_err(refuse)?;
    let mut l = Lower::new(k, options, facts);
    l.roots();
    l.block(&k.body)?;
    l.finish()
}

/// A variable or cursor while lowering.
#[derive(Clone, Debug)]
enum Binding {
    Unbound,
    /// Fixed until the scope it is in closes.
    Fixed(Value),
    /// May be assigned.
    Mutable(Vec<Slot>),
}

/// Lowering in progress.
struct Lower<'k> {
    k: &'k Kernel,
    options: &'k Options,
    facts: Facts,
    code: Code,
    slots: Slots,
    vars: Vec<Binding>,
    cursors: Vec<Slot>,
    /// First slot of each register array; its elements' components follow one another.
    regs: Vec<u32>,
    /// First number of each register array's elements in `written`.
    elements: Vec<usize>,
    /// Register elements that are surely assigned here.
    written: Vec<bool>,
    /// Lane flags of register elements that are read without being surely assigned.
    flags: Vec<Slot>,
    flagged: HashSet<usize>,
    /// Positions in `code.alu` that set the flag of an element.
    flag_sets: Vec<(usize, usize)>,
    consts: HashMap<(bool, u64), Slot>,
    /// Active lanes, or none for all.
    mask: Slot,
    /// Lanes that have not returned; none if no return diverges.
    live: Slot,
    /// Statement being lowered.
    site: u32,
    /// Arithmetic from here on is not in an instruction yet.
    pending: usize,
    /// Work of the pending arithmetic.
    work: Work,
    /// Last position that a jump goes to.
    label: usize,
    /// Jumps to the end of the kernel, to be patched.
    ends: Vec<usize>,
    /// Where the matrices of instructions of so many columns are.
    maps: Vec<(&'static Mma, u32, Arc<Maps>)>,
}

impl<'k> Lower<'k> {
    fn new(k: &'k Kernel, options: &'k Options, facts: Facts) -> Self {
        let wave = if k.wave > 0 { k.wave } else { options.wave.max(1) };
        let mut code = Code {
            name: k.name.clone(),
            threads: k.threads,
            wave,
            cluster: k.cluster.max(1),
            follows: k.follows,
            precedes: k.precedes,
            args: k.args.clone(),
            reg_names: k.regs.iter().map(|r| r.name.clone()).collect(),
            shared: k.shared.clone(),
            shared_bytes: k.shared_bytes() as usize,
            uses: facts.uses.clone(),
            tx_barriers: k.tx_barriers.clone(),
            ..Code::default()
        };
        let mut slots = Slots::default();
        slots.open(true);
        let mut regs = Vec::new();
        let mut elements = Vec::new();
        let mut total = 0;
        for r in &k.regs {
            let class = Class { wide: is_wide(r.ty.scalar), uniform: false };
            let all: Vec<Slot> = (0..r.len as usize * r.ty.lanes as usize).map(|_| slots.fresh(class)).collect();
            regs.push(all.first().map_or(0, |s| s.index() as u32));
            elements.push(total);
            total += r.len as usize;
        }
        code.statements = facts.statements.clone();
        Lower {
            vars: vec![Binding::Unbound; k.vars.len()],
            cursors: vec![Slot::NONE; k.cursors.len()],
            written: vec![false; total],
            flags: vec![Slot::NONE; total],
            k,
            options,
            facts,
            code,
            slots,
            regs,
            elements,
            flagged: HashSet::new(),
            flag_sets: Vec::new(),
            consts: HashMap::new(),
            mask: Slot::NONE,
            live: Slot::NONE,
            site: 0,
            pending: 0,
            work: Work::default(),
            label: usize::MAX,
            ends: Vec::new(),
            maps: Vec::new(),
        }
    }

    /// Slots filled in before a context starts.
    fn roots(&mut self) {
        let u32_ = Class { wide: false, uniform: true };
        self.code.group_slots = [(); 3].map(|_| self.slots.fresh(u32_));
        self.code.local_slot = self.slots.fresh(Class { wide: false, uniform: false });
        for arg in &self.k.args {
            let slot = match arg.kind {
                ArgKind::Scalar(s) => self.slots.fresh(Class { wide: is_wide(s), uniform: true }),
                ArgKind::Buffer { .. } | ArgKind::TensorMap(_) => Slot::NONE,
            };
            self.code.arg_slots.push(slot);
        }
        if !self.facts.leaving.is_empty() {
            self.live = self.slots.fresh(Class { wide: false, uniform: false });
            let one = self.constant(Comp::Int(1), Scalar::Bool);
            self.push(Op::Mov32, self.live, one, Slot::NONE, Slot::NONE);
        }
        if self.options.checks.initialised {
            for i in 0..self.flags.len() {
                self.flags[i] = self.slots.fresh(Class { wide: false, uniform: false });
            }
        }
    }

    fn finish(mut self) -> Result<Code, EmuError> {
        self.flush();
        let end = self.code.insts.len() as u32;
        self.inst(Inst::End);
        for at in std::mem::take(&mut self.ends) {
            self.patch(at, end);
        }
        self.code.flags = self.flagged.iter().map(|&n| self.flags[n]).collect();
        // Flags that nobody asks for need not be kept.
        for &(at, element) in &self.flag_sets {
            if !self.flagged.contains(&element) {
                self.code.alu[at].op = Op::Nop;
            }
        }
        self.code.sizes = self.slots.sizes();
        Ok(self.code)
    }

    fn invalid(&self, what: impl Into<String>) -> EmuError {
        let at = self.code.statements.get(self.site as usize).map_or("", |s| s);
        EmuError::Invalid { kernel: self.k.name.clone(), what: format!("{at}: {}", what.into()) }
    }
    fn location(&self) -> Box<Location> {
        let statement = self.code.statements.get(self.site as usize).cloned().unwrap_or_default();
        Box::new(Location { kernel: self.k.name.clone(), statement, group: [0; 3], thread: 0 })
    }
}
