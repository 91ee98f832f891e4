//! Lowers a kernel to [`Code`]: statements here, expressions in `expr`, control flow in `flow`, memory and places in `place`.
//!
//! Values that are the same for all threads of a work-group stay uniform, so address arithmetic on loop counters costs nothing;
//! loops that must unroll are unrolled; register elements become slots. Where threads diverge, statements run under a mask of
//! active lanes: pure values are computed for all lanes, assignments are blended, memory is touched by active lanes only.

mod analyse;
mod expr;
mod flow;
mod matrix;
mod place;
mod slots;
mod value;

use crate::alu::{Alu, Op};
use crate::code::{Code, Copy, Inst, Space, Work};
use crate::lanes::Slot;
use crate::{EmuError, Location, Options};
use analyse::Facts;
use slots::{Class, Slots};
use std::collections::{HashMap, HashSet};
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
    matrix::supported(k, options, facts.warpgroups).map_err(refuse)?;
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
}

impl<'k> Lower<'k> {
    fn new(k: &'k Kernel, options: &'k Options, facts: Facts) -> Self {
        let wave = if k.wave > 0 { k.wave } else { options.wave.max(1) };
        let mut code = Code {
            name: k.name.clone(),
            threads: k.threads,
            wave,
            cluster: k.cluster.max(1),
            args: k.args.clone(),
            reg_names: k.regs.iter().map(|r| r.name.clone()).collect(),
            shared: k.shared.clone(),
            shared_bytes: k.shared_bytes() as usize,
            splits: facts.splits.clone(),
            partial_barriers: facts.partial_barriers,
            waves_apart: facts.waves_apart,
            warpgroups: facts.warpgroups,
            bulk_stores: facts.bulk_stores,
            tx_barriers: k.tx_barriers.clone(),
            stored_maps: facts.stored_maps.clone(),
            shared_atomics: facts.shared_atomics,
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

    // ---- errors

    fn invalid(&self, what: impl Into<String>) -> EmuError {
        let at = self.code.statements.get(self.site as usize).map_or("", |s| s);
        EmuError::Invalid { kernel: self.k.name.clone(), what: format!("{at}: {}", what.into()) }
    }
    fn location(&self) -> Box<Location> {
        let statement = self.code.statements.get(self.site as usize).cloned().unwrap_or_default();
        Box::new(Location { kernel: self.k.name.clone(), statement, group: [0; 3], thread: 0 })
    }

    // ---- emission

    /// Adds arithmetic.
    fn push(&mut self, op: Op, d: Slot, a: Slot, b: Slot, c: Slot) {
        self.code.alu.push(Alu { op, d, a, b, c });
        self.code.alu_sites.push(self.site);
    }
    /// Wraps pending arithmetic in an instruction.
    fn flush(&mut self) {
        let (start, end) = (self.pending as u32, self.code.alu.len() as u32);
        if start < end {
            let work = std::mem::take(&mut self.work);
            self.code.insts.push(Inst::Alu { start, end, work, mask: self.mask });
            self.code.sites.push(self.site);
            self.pending = self.code.alu.len();
        }
    }
    /// Adds an instruction behind pending arithmetic; its position.
    fn inst(&mut self, inst: Inst) -> usize {
        self.flush();
        self.code.insts.push(inst);
        self.code.sites.push(self.site);
        self.code.insts.len() - 1
    }
    /// Where the next instruction will stand, for jumps.
    fn here(&mut self) -> u32 {
        self.flush();
        self.label = self.code.insts.len();
        self.code.insts.len() as u32
    }
    fn patch(&mut self, at: usize, target: u32) {
        if let Inst::Jump(t) | Inst::Again(t) | Inst::JumpIfZero(_, t) | Inst::JumpIfNone(_, t) = &mut self.code.insts[at] {
            *t = target;
        }
    }
    /// The uniform slot of a constant.
    fn constant(&mut self, comp: Comp, scalar: Scalar) -> Slot {
        let wide = is_wide(scalar);
        let bits = value::bits(comp, scalar).unwrap_or(0);
        if let Some(&slot) = self.consts.get(&(wide, bits)) {
            return slot;
        }
        let slot = self.slots.fresh(Class { wide, uniform: true });
        self.consts.insert((wide, bits), slot);
        if wide {
            self.code.consts64.push((slot, bits));
        } else {
            self.code.consts32.push((slot, bits as u32));
        }
        slot
    }
    /// The slot that holds a component.
    fn slot(&mut self, comp: Comp, scalar: Scalar) -> Slot {
        match comp {
            Comp::Slot(s) => s,
            c => self.constant(c, scalar),
        }
    }
    /// A slot in the innermost scope.
    fn temp(&mut self, wide: bool, uniform: bool) -> Slot {
        self.slots.alloc(Class { wide, uniform }, self.slots.depth())
    }
    fn mov(&mut self, scalar: Scalar, d: Slot, a: Slot) {
        if d != a {
            self.push(if is_wide(scalar) { Op::Mov64 } else { Op::Mov32 }, d, a, Slot::NONE, Slot::NONE);
        }
    }
    /// Puts values into slots where lanes are active.
    fn put(&mut self, scalar: Scalar, d: &[Slot], comps: &[Comp]) {
        let sources: Vec<Slot> = comps.iter().map(|&c| self.slot(c, scalar)).collect();
        // A vector built from its own components must not overwrite what it still reads.
        let overlap = sources.iter().enumerate().any(|(i, s)| d[..i.min(d.len())].contains(s));
        let sources = if overlap {
            sources
                .into_iter()
                .map(|s| {
                    let t = self.temp(is_wide(scalar), s.is_uniform());
                    self.mov(scalar, t, s);
                    t
                })
                .collect()
        } else {
            sources
        };
        for (&d, s) in d.iter().zip(sources) {
            if self.mask.is_some() && d != s {
                let op = if is_wide(scalar) { Op::Select64 } else { Op::Select32 };
                self.push(op, d, self.mask, s, d);
            } else {
                self.mov(scalar, d, s);
            }
        }
    }

    // ---- statements

    fn block(&mut self, block: &'k Block) -> Result<(), EmuError> {
        for s in block {
            self.site = self.facts.numbers.get(&(s as *const Stmt)).copied().unwrap_or(0);
            if self.code.alu.len() + self.code.insts.len() > MAX_OPERATIONS {
                let kernel = self.k.name.clone();
                return Err(EmuError::Unsupported {
                    kernel,
                    what: format!("it unrolls to more than {MAX_OPERATIONS} operations"),
                });
            }
            // What a statement binds outlives its own scope.
            let outer = self.slots.depth();
            self.slots.open(true);
            let more = self.statement(s, outer)?;
            self.slots.close();
            if !more {
                break;
            }
            self.leave(s);
        }
        Ok(())
    }

    /// Lowers one statement; false if nothing behind it in its block can run.
    fn statement(&mut self, s: &'k Stmt, outer: usize) -> Result<bool, EmuError> {
        match s {
            Stmt::Comment(_) | Stmt::SchedHint { .. } => {}
            Stmt::Let(v, e) => self.bind(*v, *e, outer)?,
            Stmt::Declare(v, e) => {
                let ty = self.k.ty(*e);
                let uniform = !self.facts.varying_vars[v.index()];
                let class = Class { wide: is_wide(ty.scalar), uniform };
                let d: Vec<Slot> = (0..ty.lanes).map(|_| self.slots.alloc(class, outer)).collect();
                let comps = self.eval(*e)?.comps;
                for (&d, &c) in d.iter().zip(&comps) {
                    let s = self.slot(c, ty.scalar);
                    self.mov(ty.scalar, d, s);
                }
                self.vars[v.index()] = Binding::Mutable(d);
            }
            Stmt::Assign(Place::New(v), e) => self.bind(*v, *e, outer)?,
            Stmt::Assign(place, e) => self.assign(*place, *e)?,
            Stmt::Load { place, mem, guard } => {
                let touch = self.guarded(*guard)?;
                let address = self.address(*mem)?;
                let ty = self.k.place_ty(*place);
                self.receive(*place, ty, outer, |l, values| {
                    let inst = l.mem(address, ty.scalar, values, touch);
                    l.load(inst);
                })?;
            }
            Stmt::Store { mem, value, guard } => {
                let touch = self.guarded(*guard)?;
                let (values, scalar) = self.operand(*value)?;
                let address = self.address(*mem)?;
                let inst = self.mem(address, scalar, values, touch);
                self.inst(Inst::Store(inst));
            }
            Stmt::Atomic { op, mem, value, guard } => {
                let touch = self.guarded(*guard)?;
                let (values, scalar) = self.operand(*value)?;
                let address = self.address(*mem)?;
                if let Space::Global(a) = address.space {
                    self.code.atomic_args.push(a);
                }
                let inst = self.mem(address, scalar, values, touch);
                self.inst(Inst::Atomic(*op, inst));
            }
            Stmt::PlaceCursor(c, e) => {
                if !self.cursors[c.index()].is_some() {
                    // Cursors are few and may be placed again: each keeps its slot.
                    let uniform = !self.facts.varying_cursors[c.index()];
                    self.cursors[c.index()] = self.slots.fresh(Class { wide: true, uniform });
                }
                let offset = self.eval_as_i64(*e)?;
                self.put(Scalar::I64, &[self.cursors[c.index()]], &[offset]);
            }
            Stmt::AdvanceCursor(c, e) => {
                let slot = self.cursors[c.index()];
                if !slot.is_some() {
                    return Err(self.invalid("the cursor is moved before it is placed"));
                }
                let by = self.eval_as_i64(*e)?;
                let by = self.slot(by, Scalar::I64);
                if self.mask.is_some() {
                    let sum = self.temp(true, slot.is_uniform() && by.is_uniform());
                    self.arithmetic(BinaryOp::Add, Scalar::I64, sum, slot, by)?;
                    self.put(Scalar::I64, &[slot], &[Comp::Slot(sum)]);
                } else {
                    self.arithmetic(BinaryOp::Add, Scalar::I64, slot, slot, by)?;
                }
            }
            Stmt::For { var, start, end, step, unroll, body } => {
                self.for_loop(s, *var, *start, *end, *step, *unroll, body)?;
            }
            Stmt::If { cond, then, otherwise } => self.branch(*cond, then, otherwise)?,
            Stmt::Roles(roles) => self.roles(roles)?,
            Stmt::Barrier(scope) => {
                self.inst(Inst::Barrier(*scope, self.mask));
            }
            Stmt::AsyncCopy { dst, src, lanes, guard } => {
                let guard = guard.map(|g| self.condition(g)).transpose()?.unwrap_or(Slot::NONE);
                let copy = Copy {
                    dst: self.address(*dst)?,
                    src: self.address(*src)?,
                    scalar: self.k.base_scalar(dst.base),
                    lanes: *lanes,
                    mask: self.mask,
                    guard,
                };
                self.code.copies.push(copy);
                self.inst(Inst::AsyncCopy(self.code.copies.len() as u32 - 1));
            }
            Stmt::AsyncCommit => {
                self.inst(Inst::AsyncCommit(self.mask));
            }
            Stmt::AsyncWait(n) => {
                self.inst(Inst::AsyncWait(*n, self.mask));
            }
            Stmt::Shuffle { place, value, kind } => {
                let ty = self.k.ty(*value);
                let (values, scalar) = self.operand(*value)?;
                let mask = self.mask;
                let wide = is_wide(scalar);
                self.receive(*place, ty, outer, |l, to| {
                    l.inst(Inst::Shuffle { kind: *kind, wide, from: values[0], to: to[0], mask });
                })?;
            }
            Stmt::LoadPeer { place, mem, rank } => {
                let rank = self.number(*rank)?;
                let address = self.address(*mem)?;
                let ty = self.k.place_ty(*place);
                let mask = self.mask;
                self.receive(*place, ty, outer, |l, values| {
                    let mem = l.mem(address, ty.scalar, values, mask);
                    l.code.peer_reads = true;
                    l.inst(Inst::LoadPeer(mem, rank));
                })?;
            }
            Stmt::Matrix(op) => self.matrix(op)?,
            Stmt::Bulk(op) => self.bulk(op)?,
            Stmt::Return => {
                if self.mask.is_some() && self.live.is_some() {
                    self.push(Op::AndNot32, self.live, self.live, self.mask, Slot::NONE);
                } else {
                    let at = self.inst(Inst::Jump(0));
                    self.ends.push(at);
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Binds an immutable name: to the value itself where it stays as it is, else to a copy.
    fn bind(&mut self, v: VarId, e: ExprId, outer: usize) -> Result<(), EmuError> {
        let scalar = self.k.ty(e).scalar;
        let value = self.eval(e)?;
        let mut comps = Vec::new();
        for c in value.comps {
            let Comp::Slot(s) = c else {
                comps.push(c);
                continue;
            };
            let class = Class { wide: is_wide(scalar), uniform: s.is_uniform() };
            if value.since.is_some() && !self.slots.is_temporary(class, s) {
                comps.push(c);
                continue;
            }
            let d = self.slots.alloc(class, outer);
            self.retarget(scalar, d, s);
            comps.push(Comp::Slot(d));
        }
        self.vars[v.index()] = Binding::Fixed(Value { comps, since: Some(outer) });
        Ok(())
    }

    fn assign(&mut self, place: Place, e: ExprId) -> Result<(), EmuError> {
        let ty = self.k.ty(e);
        let d = self.place(place)?;
        let value = self.eval(e)?;
        match (&value.comps[..], &d[..]) {
            ([Comp::Slot(s)], [d]) if !self.mask.is_some() => self.retarget(ty.scalar, *d, *s),
            (comps, d) => self.put_vector(ty.scalar, d, comps),
        }
        self.assigned(place)
    }
}
