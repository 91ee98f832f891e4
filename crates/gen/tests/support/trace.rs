//! What one thread of a kernel does, step by step: the addresses it touches, its barriers, its multiply-adds.

use std::collections::HashMap;
use tilewright_ir::*;

/// A touched address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Argument or shared array.
    pub memory: String,
    /// First element.
    pub index: i64,
    /// Elements.
    pub lanes: u32,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Read of global memory; with a guard that does not hold it is [`Event::Zero`].
    Load(Touch),
    /// A load whose guard does not hold: zeros instead.
    Zero,
    /// Write to global memory.
    Store(Touch),
    /// Addition to global memory.
    Atomic(Touch),
    /// Read of shared memory.
    Fragment(Touch),
    /// Write to shared memory.
    Share(Touch),
    /// Asynchronous copy from global to shared memory; of zeros without a source.
    Copy { from: Option<Touch>, to: Touch },
    /// Wait for copies.
    Wait(u32),
    /// Barrier of the work-group.
    Barrier,
    /// `acc[at] += a[x] * b[y]`: fused or as two operations.
    Math { fused: bool, at: i64, x: i64, y: i64 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Value {
    Int(i64),
    Float(f64),
}

/// Runs one thread. Offsets and beta are 0, alpha is 1, everything loaded is 0 but the ends of groups.
pub fn trace(kernel: &Kernel, group: u32, thread: u32) -> Vec<Event> {
    trace_with(kernel, group, thread, &[])
}

/// As [`trace`], with values of integer arguments by their place.
pub fn trace_with(kernel: &Kernel, group: u32, thread: u32, given: &[(usize, i64)]) -> Vec<Event> {
    let mut t = Tracer {
        kernel,
        given: given.to_vec(),
        group,
        thread,
        vars: HashMap::new(),
        cursors: HashMap::new(),
        events: Vec::new(),
    };
    t.block(&kernel.body);
    t.events
}

struct Tracer<'k> {
    kernel: &'k Kernel,
    given: Vec<(usize, i64)>,
    group: u32,
    thread: u32,
    vars: HashMap<VarId, Value>,
    cursors: HashMap<CursorId, i64>,
    events: Vec<Event>,
}

impl Tracer<'_> {
    fn int(&self, e: ExprId) -> i64 {
        match self.value(e) {
            Value::Int(v) => v,
            Value::Float(v) => panic!("an integer was expected, not {v}"),
        }
    }

    fn value(&self, e: ExprId) -> Value {
        use BinaryOp::*;
        use Value::{Float, Int};
        match self.kernel.expr(e) {
            Expr::Int(v) => Int(*v),
            Expr::Float(v) => Float(*v),
            Expr::Arg(arg) => match (&self.kernel.args[arg.index()].name[..], self.kernel.ty(e).scalar.is_float()) {
                ("alpha", _) => Float(1.0),
                (_, true) => Float(0.0),
                _ => Int(self.given.iter().find(|g| g.0 == arg.index()).map_or(0, |g| g.1)),
            },
            Expr::Var(v) => self.vars.get(v).copied().unwrap_or(Float(0.0)),
            Expr::Reg(..) | Expr::Fma(..) | Expr::Extract(..) | Expr::Vector(_) | Expr::Splat(_) | Expr::Words(_) => Float(0.0),
            Expr::Builtin(Builtin::LocalId) => Int(self.thread.into()),
            Expr::Builtin(Builtin::GroupId(0)) => Int(self.group.into()),
            Expr::Builtin(Builtin::GroupId(_)) => Int(0),
            Expr::Unary(op, x) => match (op, self.value(*x)) {
                (UnaryOp::Neg, Int(x)) => Int(-x),
                (UnaryOp::Not, Int(x)) => Int(1 - x),
                _ => Float(0.0),
            },
            Expr::Binary(op, x, y) => match (op, self.value(*x), self.value(*y)) {
                (_, Int(x), Int(y)) => Int(match op {
                    Add => x + y,
                    Sub => x - y,
                    Mul => x * y,
                    Div => x / y,
                    Rem => x % y,
                    Min | Minimum => x.min(y),
                    Max | Maximum => x.max(y),
                    And => x & y,
                    Or => x | y,
                    Xor => x ^ y,
                    Shl => x << y,
                    Shr => x >> y,
                    Lt => i64::from(x < y),
                    Le => i64::from(x <= y),
                    Eq => i64::from(x == y),
                    Ne => i64::from(x != y),
                }),
                (Lt, Float(x), Float(y)) => Int(i64::from(x < y)),
                (Le, Float(x), Float(y)) => Int(i64::from(x <= y)),
                (Eq, Float(x), Float(y)) => Int(i64::from(x == y)),
                (Ne, Float(x), Float(y)) => Int(i64::from(x != y)),
                _ => Float(0.0),
            },
            Expr::Select(c, x, y) => self.value(if self.int(*c) != 0 { *x } else { *y }),
            Expr::Cast(x) => match (self.value(*x), self.kernel.ty(e).scalar) {
                (Int(v), Scalar::U32) => Int(i64::from(v as u32)),
                (Int(v), Scalar::I32) => Int(i64::from(v as i32)),
                (Int(v), Scalar::I64) => Int(v),
                _ => Float(0.0),
            },
        }
    }

    fn touch(&self, mem: &MemRef, lanes: u32) -> Touch {
        let index = self.int(mem.index);
        let (memory, index) = match mem.base {
            Base::Shared(s) => (&self.kernel.shared[s.index()].name, index),
            Base::Buffer(a) => (&self.kernel.args[a.index()].name, index),
            Base::Cursor(c) => (&self.kernel.args[self.kernel.cursors[c.index()].buffer.index()].name, index + self.cursors[&c]),
        };
        Touch { memory: memory.clone(), index, lanes }
    }

    /// What is read from the ends of a product's groups: every group has seven rows.
    fn end_of_group(&self, mem: &MemRef) -> Option<i64> {
        let touch = self.touch(mem, 1);
        (!matches!(mem.base, Base::Shared(_)) && touch.memory == "ends").then_some(7 * (touch.index + 1))
    }

    /// Position in a register array that an expression reads.
    fn register(&self, e: ExprId) -> Option<i64> {
        match self.kernel.expr(e) {
            Expr::Reg(_, i) => Some(self.int(*i)),
            Expr::Splat(x) | Expr::Cast(x) => self.register(*x),
            _ => None,
        }
    }

    fn math(&self, place: &Place, value: ExprId) -> Option<Event> {
        let Place::Reg(_, at) = place else { return None };
        let (fused, x, y) = match *self.kernel.expr(value) {
            Expr::Fma(x, y, _) => (true, x, y),
            Expr::Binary(BinaryOp::Add, _, product) => match *self.kernel.expr(product) {
                Expr::Binary(BinaryOp::Mul, x, y) => (false, x, y),
                _ => return None,
            },
            _ => return None,
        };
        Some(Event::Math { fused, at: self.int(*at), x: self.register(x)?, y: self.register(y)? })
    }

    fn put(&mut self, place: &Place, value: Value) {
        if let Place::New(v) | Place::Var(v) = place {
            self.vars.insert(*v, value);
        }
    }

    fn block(&mut self, block: &Block) {
        for s in block {
            self.stmt(s);
        }
    }

    fn stmt(&mut self, s: &Stmt) {
        let holds = |t: &Self, guard: &Option<ExprId>| guard.is_none_or(|g| t.int(g) != 0);
        match s {
            Stmt::Let(v, e) | Stmt::Declare(v, e) => {
                let value = self.value(*e);
                self.vars.insert(*v, value);
            }
            Stmt::Assign(place, e) => {
                self.events.extend(self.math(place, *e));
                let value = self.value(*e);
                self.put(place, value);
            }
            Stmt::Load { place, mem, guard } => {
                let event = if holds(self, guard) {
                    let touch = self.touch(mem, self.kernel.place_ty(*place).lanes.into());
                    if matches!(mem.base, Base::Shared(_)) { Event::Fragment(touch) } else { Event::Load(touch) }
                } else {
                    Event::Zero
                };
                self.events.push(event);
                let value = self.end_of_group(mem).map_or(Value::Float(0.0), Value::Int);
                self.put(place, value);
            }
            Stmt::Store { mem, value, guard } if holds(self, guard) => {
                let touch = self.touch(mem, self.kernel.ty(*value).lanes.into());
                let shared = matches!(mem.base, Base::Shared(_));
                self.events.push(if shared { Event::Share(touch) } else { Event::Store(touch) });
            }
            Stmt::Atomic { mem, guard, .. } if holds(self, guard) => {
                let touch = self.touch(mem, 1);
                self.events.push(Event::Atomic(touch));
            }
            Stmt::PlaceCursor(c, e) => {
                let at = self.int(*e);
                self.cursors.insert(*c, at);
            }
            Stmt::AdvanceCursor(c, e) => {
                let by = self.int(*e);
                *self.cursors.entry(*c).or_default() += by;
            }
            Stmt::For { var, start, end, step, body, .. } => {
                let (mut i, end) = (self.int(*start), self.int(*end));
                while i < end {
                    self.vars.insert(*var, Value::Int(i));
                    self.block(body);
                    i += step;
                }
            }
            Stmt::If { cond, then, otherwise } => {
                let side = if self.int(*cond) != 0 { then } else { otherwise };
                self.block(side);
            }
            Stmt::Roles(roles) => {
                let mine = roles.iter().find(|r| (r.first_thread..r.first_thread + r.threads).contains(&self.thread));
                self.block(&mine.expect("a role for every thread").body);
            }
            Stmt::AsyncCopy { dst, src, lanes, guard } => {
                let from = holds(self, guard).then(|| self.touch(src, u32::from(*lanes)));
                let to = self.touch(dst, u32::from(*lanes));
                self.events.push(Event::Copy { from, to });
            }
            Stmt::AsyncWait(pending) => self.events.push(Event::Wait(*pending)),
            Stmt::Barrier(BarrierScope::WorkGroup) => self.events.push(Event::Barrier),
            _ => {}
        }
    }
}
