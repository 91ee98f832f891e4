//! Writes runs of statements that differ in integer constants alone as loops, for people who read the source.
//!
//! The generator writes out the stores of an epilogue and the instructions of a k-step one by one. The emulator runs these
//! fastest, and each may be left out or guarded on its own. A reader wants the loop. A run is `count` groups of `period`
//! statements. Group i equals group 0, with two exceptions. Integer constants grow by the same step from group to group, and each
//! group declares its own variables. A constant that is not written, in `x` beside `x + 8`, counts as 0. The loops are macros
//! ([`Unroll::Repeat`]), so that the machine code stays.

use crate::validate::operands;
use crate::visit::{Slot, slots};
use crate::*;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// Longest group of statements that is looked for.
const MAX_PERIOD: usize = 40;
/// A loop takes the place of at least so many further statements.
const FEWEST_SAVED: usize = 3;
/// Paths of the operands of an exclusive or with a constant.
const OF_XOR: usize = 98;
const CONSTANT_OF_XOR: usize = 99;
/// Names of counters, from the outermost loop on.
const COUNTERS: [&str; 4] = ["i", "j", "l", "h"];

/// The kernel with its runs of statements as loops.
#[must_use]
pub fn reroll(kernel: &Kernel) -> Kernel {
    let mut roller = Roller { kernel: kernel.clone(), shapes: Vec::new() };
    let body = std::mem::take(&mut roller.kernel.body);
    roller.kernel.body = roller.block(body, 0);
    roller.kernel
}

/// Whether a statement may be part of a run. Printers count barriers and fences in the order of the source. No directive, such as a request
/// to unroll, may be in the arguments of a macro.
fn may_be_rolled(s: &Stmt) -> bool {
    match s {
        Stmt::Store { .. } | Stmt::Let(..) | Stmt::Assign(..) | Stmt::Load { .. } | Stmt::Atomic { .. } => true,
        Stmt::AsyncCopy { .. } | Stmt::AsyncCommit | Stmt::AdvanceCursor(..) | Stmt::LoadPeer { .. } => true,
        Stmt::Shuffle { .. } | Stmt::Matrix(_) | Stmt::Bulk(_) => true,
        Stmt::For { body, unroll: Unroll::No | Unroll::Silent, .. } => body.iter().all(may_be_rolled),
        Stmt::If { then, otherwise, .. } => then.iter().chain(otherwise).all(may_be_rolled),
        _ => false,
    }
}

struct Roller {
    kernel: Kernel,
    /// Hash of each expression without its integer constants and without the variables that it names.
    shapes: Vec<u64>,
}

/// A run of groups, from some statement on.
struct Run {
    period: usize,
    count: usize,
    /// How far constants move from one group to the next, by their path.
    steps: Steps,
}

type Steps = HashMap<u64, i64>;

/// What counts as the same in two groups.
#[derive(Clone, Copy)]
struct Same<'a> {
    /// The variables of the later group by those of the first.
    vars: &'a HashMap<VarId, VarId>,
    /// A constant that is not written differs from one that is: compilers order `x / 16` and `(x + 0) / 16` differently.
    strict: bool,
}

/// A statement without the expressions and variables that it names, and these.
struct Parts {
    skeleton: Stmt,
    exprs: Vec<ExprId>,
    vars: Vec<VarId>,
}

fn parts(s: &Stmt) -> Parts {
    let (mut skeleton, mut exprs, mut vars) = (s.clone(), Vec::new(), Vec::new());
    slots(&mut skeleton, &mut |slot| match slot {
        Slot::Expr(e) => exprs.push(std::mem::replace(e, ExprId(0))),
        Slot::Declares(v) | Slot::Assigns(v) => vars.push(std::mem::replace(v, VarId(0))),
    });
    Parts { skeleton, exprs, vars }
}

/// Hashes text without keeping it.
struct Hashed(DefaultHasher);

impl std::fmt::Write for Hashed {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        self.0.write(s.as_bytes());
        Ok(())
    }
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Notes how far a constant is from that of the first group.
fn note(steps: &mut Steps, path: u64, first: i64, other: i64) -> Option<()> {
    let by = other.checked_sub(first)?;
    if by != 0 {
        steps.insert(path, by);
    }
    Some(())
}

fn child(path: u64, n: usize) -> u64 {
    path.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(n as u64 + 1).rotate_left(23)
}

impl Roller {
    fn block(&mut self, block: Block, depth: usize) -> Block {
        self.shape_all();
        let parts: Vec<Parts> = block.iter().map(parts).collect();
        let ids: Vec<u64> = block.iter().zip(&parts).enumerate().map(|(at, (s, parts))| self.id(s, parts, at)).collect();
        let last = self.last_uses(&parts);
        let (mut out, mut at) = (Block::with_capacity(block.len()), 0);
        while at < block.len() {
            match self.best(&parts, &ids, &last, at) {
                Some(run) => {
                    let group = block[at..at + run.period].to_vec();
                    at += run.period * run.count;
                    let counted = self.counted(group, &run, depth);
                    out.push(counted);
                }
                None => {
                    let one = self.within(block[at].clone(), depth);
                    out.push(one);
                    at += 1;
                }
            }
        }
        out
    }

    /// A statement whose own blocks have loops.
    fn within(&mut self, s: Stmt, depth: usize) -> Stmt {
        match s {
            Stmt::For { var, start, end, step, unroll, body } => {
                Stmt::For { var, start, end, step, unroll, body: self.block(body, depth) }
            }
            Stmt::If { cond, then, otherwise } => {
                Stmt::If { cond, then: self.block(then, depth), otherwise: self.block(otherwise, depth) }
            }
            Stmt::Roles(roles) => Stmt::Roles(roles.into_iter().map(|r| Role { body: self.block(r.body, depth), ..r }).collect()),
            other => other,
        }
    }

    /// Hashes of all expressions that have none. Operands come before the expressions that name them.
    fn shape_all(&mut self) {
        for n in self.shapes.len()..self.kernel.exprs.len() {
            let e = ExprId(n as u32);
            let of = |e: ExprId| self.shapes.get(e.index()).copied().unwrap_or(0);
            let (ty, expr) = (self.kernel.ty(e), self.kernel.expr(e));
            let shape = match (expr, self.varying(e)) {
                (Expr::Int(v), _) if ty.scalar == Scalar::Bool => hash((v, ty)),
                (_, None) => hash(ty),
                (_, Some(x)) if x != e => of(x),
                (_, Some(x)) if self.xor(x).is_some() => self.xor(x).map_or(0, |(_, x)| of(x)),
                (Expr::Var(_), _) => hash(("variable", ty)),
                _ => {
                    let mut hasher = DefaultHasher::new();
                    (std::mem::discriminant(expr), ty).hash(&mut hasher);
                    match expr {
                        Expr::Float(v) => v.to_bits().hash(&mut hasher),
                        Expr::Arg(a) => a.hash(&mut hasher),
                        Expr::Reg(r, _) => r.hash(&mut hasher),
                        Expr::Builtin(b) => b.hash(&mut hasher),
                        Expr::Unary(op, _) => op.hash(&mut hasher),
                        Expr::Binary(op, _, _) => op.hash(&mut hasher),
                        Expr::Extract(_, lane) => lane.hash(&mut hasher),
                        _ => {}
                    }
                    operands(expr, &mut |o| of(o).hash(&mut hasher));
                    hasher.finish()
                }
            };
            self.shapes.push(shape);
        }
    }

    /// Statements with unlike numbers are in no run together. One that may be in none has a number of its own.
    fn id(&self, s: &Stmt, parts: &Parts, at: usize) -> u64 {
        if !may_be_rolled(s) {
            return hash(("alone", at));
        }
        let mut hashed = Hashed(DefaultHasher::new());
        // Writing to a hasher does not fail.
        let _ = write!(hashed, "{:?}", parts.skeleton);
        parts.exprs.iter().for_each(|e| self.shapes.get(e.index()).hash(&mut hashed.0));
        hashed.0.finish()
    }

    /// The last statement that names each variable.
    fn last_uses(&self, parts: &[Parts]) -> HashMap<VarId, usize> {
        let mut last = HashMap::new();
        for (at, parts) in parts.iter().enumerate() {
            let (mut todo, mut seen) = (parts.exprs.clone(), std::collections::HashSet::new());
            last.extend(parts.vars.iter().map(|v| (*v, at)));
            while let Some(e) = todo.pop() {
                if seen.insert(e) {
                    if let Expr::Var(v) = self.kernel.expr(e) {
                        last.insert(*v, at);
                    }
                    operands(self.kernel.expr(e), &mut |o| todo.push(o));
                }
            }
        }
        last
    }

    /// The run from a statement on that takes the place of most statements; of two alike, the one of the shorter group.
    fn best(&self, parts: &[Parts], ids: &[u64], last: &HashMap<VarId, usize>, at: usize) -> Option<Run> {
        let mut best: Option<Run> = None;
        let covered = |run: &Run| run.period * run.count;
        for period in 1..=MAX_PERIOD.min((ids.len() - at) / 2) {
            let like = (at..ids.len() - period).take_while(|n| ids[*n] == ids[n + period]).count();
            let most = (like / period + 1) * period;
            if most <= best.as_ref().map_or(0, covered) {
                continue;
            }
            let run = self.run(parts, last, at..at + period, most / period);
            let longer = run.as_ref().is_some_and(|run| covered(run) > best.as_ref().map_or(0, covered));
            if longer {
                best = run;
            }
        }
        best
    }

    /// The longest run of groups of this length from a statement on, if a loop of it is shorter.
    fn run(&self, parts: &[Parts], last: &HashMap<VarId, usize>, first: Range<usize>, most: usize) -> Option<Run> {
        let (at, period) = (first.start, first.len());
        let stays_within = |group: usize| {
            let end = at + (group + 1) * period;
            let declared = parts[at + group * period..end].iter().flat_map(|p| declared(&p.skeleton, &p.vars));
            declared.into_iter().all(|v| last.get(&v).is_none_or(|use_| *use_ < end))
        };
        let (mut steps, mut count) = (Steps::new(), 1);
        if !stays_within(0) {
            return None;
        }
        while count < most && stays_within(count) {
            let first = &parts[first.clone()];
            let group = &parts[at + count * period..at + (count + 1) * period];
            let Some(moved) = self.moved(first, group) else { break };
            if count == 1 {
                steps = moved;
            } else if moved.len() != steps.len()
                || moved.iter().any(|(path, by)| steps.get(path).map(|s| s * count as i64) != Some(*by))
            {
                break;
            }
            count += 1;
        }
        ((count - 1) * period >= FEWEST_SAVED && count > 2).then_some(Run { period, count, steps })
    }

    /// How far constants of a group are from those of the first, if nothing else differs.
    fn moved(&self, first: &[Parts], group: &[Parts]) -> Option<Steps> {
        let (mut same, mut steps, mut slot) = (HashMap::new(), Steps::new(), 0);
        // Declarations first: an expression names variables that its group declares before it.
        for (x, y) in first.iter().zip(group) {
            if x.skeleton != y.skeleton || x.exprs.len() != y.exprs.len() || x.vars.len() != y.vars.len() {
                return None;
            }
            for (v, w) in declared(&x.skeleton, &x.vars).into_iter().zip(declared(&y.skeleton, &y.vars)) {
                if self.kernel.vars.get(v.index()).map(|v| v.ty) != self.kernel.vars.get(w.index()).map(|w| w.ty) {
                    return None;
                }
                same.insert(v, w);
            }
        }
        for (x, y) in first.iter().zip(group) {
            if !x.vars.iter().zip(&y.vars).all(|(v, w)| same.get(v).unwrap_or(v) == w) {
                return None;
            }
            for (e, f) in x.exprs.iter().zip(&y.exprs) {
                slot += 1;
                self.alike(*e, *f, child(0, slot), Same { vars: &same, strict: false }, &mut steps)?;
            }
        }
        Some(steps)
    }

    /// The part of an integer expression that varies, if it has one: all but a constant that is added last.
    fn varying(&self, e: ExprId) -> Option<ExprId> {
        match *self.kernel.expr(e) {
            Expr::Int(_) => None,
            Expr::Binary(BinaryOp::Add, x, c) if self.kernel.as_int(c).is_some() => Some(x),
            _ => Some(e),
        }
    }

    fn constant(&self, e: ExprId) -> i64 {
        match *self.kernel.expr(e) {
            Expr::Int(v) => v,
            Expr::Binary(BinaryOp::Add, _, c) => self.kernel.as_int(c).unwrap_or(0),
            _ => 0,
        }
    }

    /// Compares two expressions and notes the constants that differ.
    fn alike(&self, x: ExprId, y: ExprId, path: u64, same: Same, steps: &mut Steps) -> Option<()> {
        if x == y && same.vars.is_empty() {
            return Some(());
        }
        let ty = self.kernel.ty(x);
        if ty != self.kernel.ty(y) {
            return None;
        }
        if ty.lanes != 1 || !matches!(ty.scalar, Scalar::I32 | Scalar::I64) {
            return self.nodes(x, y, path, same, steps);
        }
        let written = |e: ExprId| self.varying(e) != Some(e);
        if same.strict && written(x) != written(y) {
            return None;
        }
        match (self.varying(x), self.varying(y)) {
            (None, None) => {}
            (Some(a), Some(b)) => match (self.xor(a), self.xor(b)) {
                (None, None) => self.nodes(a, b, path, same, steps)?,
                (c, d) => {
                    let ((c, a), (d, b)) = (c.unwrap_or((0, a)), d.unwrap_or((0, b)));
                    self.nodes(a, b, child(path, OF_XOR), same, steps)?;
                    note(steps, child(path, CONSTANT_OF_XOR), c, d)?;
                }
            },
            _ => return None,
        }
        note(steps, path, self.constant(x), self.constant(y))
    }

    /// An exclusive or of a constant and of something that varies: a chunk of a swizzled row.
    fn xor(&self, e: ExprId) -> Option<(i64, ExprId)> {
        match *self.kernel.expr(e) {
            Expr::Binary(BinaryOp::Xor, c, x) => self.kernel.as_int(c).map(|c| (c, x)),
            _ => None,
        }
    }

    fn nodes(&self, x: ExprId, y: ExprId, path: u64, same: Same, steps: &mut Steps) -> Option<()> {
        use Expr::*;
        let alike = match (self.kernel.expr(x), self.kernel.expr(y)) {
            (Var(v), Var(w)) => same.vars.get(v).unwrap_or(v) == w,
            (Reg(r, _), Reg(s, _)) => r == s,
            (Unary(op, _), Unary(other, _)) => op == other,
            (Binary(op, ..), Binary(other, ..)) => op == other,
            (Extract(_, lane), Extract(_, other)) => lane == other,
            (Fma(..), Fma(..)) | (Select(..), Select(..)) | (Cast(_), Cast(_)) | (Splat(_), Splat(_)) | (Words(_), Words(_)) => {
                true
            }
            (Vector(a), Vector(b)) => a.len() == b.len(),
            (a @ (Int(_) | Float(_) | Arg(_) | Builtin(_)), b) => a == b,
            _ => false,
        };
        let divides = matches!(self.kernel.expr(x), Expr::Binary(BinaryOp::Div | BinaryOp::Rem, ..));
        let same = Same { strict: same.strict || divides, ..same };
        let of = |e: ExprId| {
            let mut found = Vec::new();
            operands(self.kernel.expr(e), &mut |o| found.push(o));
            found
        };
        let pairs: Vec<(ExprId, ExprId)> = if alike { of(x).into_iter().zip(of(y)).collect() } else { return None };
        pairs.into_iter().enumerate().try_for_each(|(n, (a, b))| self.alike(a, b, child(path, n), same, steps))
    }

    /// The loop in place of a run, from the first of its groups.
    fn counted(&mut self, mut group: Block, run: &Run, depth: usize) -> Stmt {
        let name = COUNTERS.get(depth).copied().unwrap_or("i").to_string();
        let var = VarId(self.kernel.vars.len() as u32);
        self.kernel.vars.push(Var { name, ty: Scalar::I32.ty() });
        let counter = self.push(Expr::Var(var), Scalar::I32.ty());
        let mut slot = 0;
        for s in &mut group {
            slots(s, &mut |place| {
                if let Slot::Expr(e) = place {
                    slot += 1;
                    *e = self.stepped(*e, child(0, slot), counter, &run.steps);
                }
            });
        }
        let [start, end] = [0, run.count as i64].map(|n| self.push(Expr::Int(n), Scalar::I32.ty()));
        Stmt::For { var, start, end, step: 1, unroll: Unroll::Repeat, body: self.block(group, depth + 1) }
    }

    fn push(&mut self, expr: Expr, ty: Type) -> ExprId {
        self.kernel.exprs.push((expr, ty));
        ExprId(self.kernel.exprs.len() as u32 - 1)
    }

    /// The expression with multiples of the counter at the constants that move.
    fn stepped(&mut self, e: ExprId, path: u64, counter: ExprId, steps: &Steps) -> ExprId {
        let ty = self.kernel.ty(e);
        let integer = ty.lanes == 1 && matches!(ty.scalar, Scalar::I32 | Scalar::I64);
        let by = if integer { steps.get(&path).copied() } else { None };
        let Some(varying) = (if integer { self.varying(e) } else { Some(e) }) else {
            return by.map_or(e, |by| self.multiple(counter, by, self.constant(e), ty));
        };
        let xor = integer.then(|| self.xor(varying)).flatten();
        let swizzled = steps.get(&child(path, CONSTANT_OF_XOR)).copied().filter(|_| integer);
        if xor.is_some() || swizzled.is_some() {
            let (constant, x) = xor.unwrap_or((0, varying));
            let chunk = match swizzled {
                Some(by) => self.multiple(counter, by, constant, ty),
                None => self.push(Expr::Int(constant), ty),
            };
            let x = self.node_stepped(x, child(path, OF_XOR), counter, steps);
            let varying = self.push(Expr::Binary(BinaryOp::Xor, chunk, x), ty);
            let constant = if self.varying(e) == Some(e) { 0 } else { self.constant(e) };
            return self.sum(varying, counter, by, constant);
        }
        let constant = if varying == e { 0 } else { self.constant(e) };
        let new = self.node_stepped(varying, path, counter, steps);
        if new == varying && by.is_none() {
            return e;
        }
        self.sum(new, counter, by, constant)
    }

    /// The node with its operands stepped.
    fn node_stepped(&mut self, e: ExprId, path: u64, counter: ExprId, steps: &Steps) -> ExprId {
        let (mut expr, mut n, mut changed) = (self.kernel.expr(e).clone(), 0, false);
        each_operand(&mut expr, &mut |o| {
            let new = self.stepped(*o, child(path, n), counter, steps);
            changed |= new != *o;
            *o = new;
            n += 1;
        });
        if changed { self.push(expr, self.kernel.ty(e)) } else { e }
    }

    /// `varying + counter * by + constant`.
    fn sum(&mut self, varying: ExprId, counter: ExprId, by: Option<i64>, constant: i64) -> ExprId {
        let ty = self.kernel.ty(varying);
        let added = match by {
            Some(by) => self.multiple(counter, by, constant, ty),
            None if constant == 0 => return varying,
            None => self.push(Expr::Int(constant), ty),
        };
        self.push(Expr::Binary(BinaryOp::Add, varying, added), ty)
    }

    /// `counter * by + constant`, of a type.
    fn multiple(&mut self, counter: ExprId, by: i64, constant: i64, ty: Type) -> ExprId {
        let counter = if ty.scalar == Scalar::I32 { counter } else { self.push(Expr::Cast(counter), ty) };
        let product = match by {
            1 => counter,
            by => {
                let by = self.push(Expr::Int(by), ty);
                self.push(Expr::Binary(BinaryOp::Mul, counter, by), ty)
            }
        };
        if constant == 0 {
            return product;
        }
        let constant = self.push(Expr::Int(constant), ty);
        self.push(Expr::Binary(BinaryOp::Add, product, constant), ty)
    }
}

/// The variables that a statement declares, of all that it names outside of expressions.
fn declared(skeleton: &Stmt, vars: &[VarId]) -> Vec<VarId> {
    let (mut skeleton, mut vars, mut found) = (skeleton.clone(), vars.iter(), Vec::new());
    slots(&mut skeleton, &mut |slot| match slot {
        Slot::Expr(_) => {}
        Slot::Declares(_) => found.extend(vars.next()),
        Slot::Assigns(_) => {
            vars.next();
        }
    });
    found
}

fn each_operand(expr: &mut Expr, f: &mut dyn FnMut(&mut ExprId)) {
    match expr {
        Expr::Int(_) | Expr::Float(_) | Expr::Arg(_) | Expr::Var(_) | Expr::Builtin(_) => {}
        Expr::Reg(_, a) | Expr::Unary(_, a) | Expr::Cast(a) | Expr::Extract(a, _) | Expr::Splat(a) | Expr::Words(a) => f(a),
        Expr::Binary(_, a, b) => [a, b].into_iter().for_each(f),
        Expr::Fma(a, b, c) | Expr::Select(a, b, c) => [a, b, c].into_iter().for_each(f),
        Expr::Vector(parts) => parts.iter_mut().for_each(f),
    }
}
