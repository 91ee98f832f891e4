//! Which values are the same for all threads of a work-group or of a wave. Barriers and wave operations depend on it.

use super::types::operands;
use crate::*;

/// How far a value is the same, from everywhere to nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Spread {
    /// The same for the whole work-group.
    Group,
    /// The same for the threads of each wave.
    Wave,
    /// Each thread's own.
    Thread,
}

/// The answers for all names of a kernel, which must be bound once, before use.
pub(super) struct Uniformity<'k> {
    kernel: &'k Kernel,
    wave: i64,
    vars: Vec<Spread>,
    /// What immutable names stand for.
    meanings: Vec<Option<ExprId>>,
    /// Names that live within a role.
    of_role: Vec<bool>,
    in_role: bool,
    changed: bool,
    /// The statement of the kernel's body that is looked at.
    at: usize,
    /// For each shared array the barrier in the body after which no thread writes it.
    settled: Vec<Option<usize>>,
}

impl<'k> Uniformity<'k> {
    /// Follows assignments until nothing changes: a name is as spread as the widest value it ever gets.
    pub fn new(kernel: &'k Kernel, wave: u32) -> Self {
        let mut it = Uniformity {
            kernel,
            wave: i64::from(wave),
            vars: vec![Spread::Group; kernel.vars.len()],
            meanings: vec![None; kernel.vars.len()],
            of_role: vec![false; kernel.vars.len()],
            in_role: false,
            changed: true,
            at: 0,
            settled: read_only_after(kernel),
        };
        while it.changed {
            it.changed = false;
            for (at, s) in kernel.body.iter().enumerate() {
                it.at = at;
                it.block(std::slice::from_ref(s), Spread::Group);
            }
        }
        it
    }

    fn block(&mut self, block: &[Stmt], control: Spread) {
        for s in block {
            match s {
                Stmt::Let(v, e) => {
                    self.meanings[v.index()] = Some(*e);
                    self.bind(*v, self.of(*e));
                }
                Stmt::Declare(v, e) => self.bind(*v, self.of(*e)),
                Stmt::Assign(place, e) => self.put(*place, self.of(*e), control),
                Stmt::Load { place, mem, guard } => {
                    let fixed = match mem.base {
                        Base::Buffer(a) => {
                            matches!(self.kernel.args[a.index()].kind, ArgKind::Buffer { access: Access::Read, .. })
                        }
                        Base::Shared(s) => self.settled[s.index()].is_some_and(|barrier| barrier < self.at),
                        Base::Cursor(_) => false,
                    };
                    let guard = guard.map_or(Spread::Group, |g| self.of(g));
                    self.put(*place, if fixed { self.of(mem.index).max(guard) } else { Spread::Thread }, control);
                }
                Stmt::LoadPeer { place, .. } | Stmt::FetchAdd { place, .. } => self.put(*place, Spread::Thread, control),
                Stmt::Shuffle { place, kind, .. } => {
                    let broadcast = matches!(kind, ShuffleKind::Broadcast(_));
                    self.put(*place, if broadcast { Spread::Wave } else { Spread::Thread }, control);
                }
                Stmt::For { var, start, end, body, .. } => {
                    let trips = self.of(*start).max(self.of(*end));
                    self.bind(*var, trips);
                    self.block(body, control.max(trips));
                }
                Stmt::If { cond, then, otherwise } => {
                    let control = control.max(self.of(*cond));
                    self.block(then, control);
                    self.block(otherwise, control);
                }
                Stmt::Roles(roles) => {
                    self.in_role = true;
                    roles.iter().for_each(|r| self.block(&r.body, control));
                    self.in_role = false;
                }
                _ => {}
            }
        }
    }

    fn put(&mut self, place: Place, value: Spread, control: Spread) {
        match place {
            Place::New(v) => self.bind(v, value),
            // Threads that did not come here keep the old value: those of other branches, those of other roles.
            Place::Var(v) => {
                let others = if self.in_role && !self.of_role[v.index()] { Spread::Wave } else { Spread::Group };
                self.widen(v, value.max(control).max(others));
            }
            Place::Reg(..) => {}
        }
    }

    fn bind(&mut self, v: VarId, value: Spread) {
        self.of_role[v.index()] = self.in_role;
        self.widen(v, value);
    }

    fn widen(&mut self, v: VarId, spread: Spread) {
        let known = &mut self.vars[v.index()];
        if spread > *known {
            *known = spread;
            self.changed = true;
        }
    }

    /// How far an expression is the same.
    pub fn of(&self, e: ExprId) -> Spread {
        if self.selects_waves(e) {
            return Spread::Wave;
        }
        match self.kernel.expr(e) {
            Expr::Var(v) => self.vars[v.index()],
            Expr::Reg(..) | Expr::Builtin(Builtin::LocalId) => Spread::Thread,
            expr => {
                let mut spread = Spread::Group;
                operands(expr, &mut |o| spread = spread.max(self.of(o)));
                spread
            }
        }
    }

    /// `LocalId / w`, `LocalId >> s` and `LocalId < c` where the constant is a whole number of waves.
    fn selects_waves(&self, e: ExprId) -> bool {
        let Expr::Binary(op, a, b) = *self.kernel.expr(e) else { return false };
        let whole = |v: i64| self.wave > 0 && v % self.wave == 0;
        let (left, right) = (self.kernel.as_int(a), self.kernel.as_int(b));
        match op {
            BinaryOp::Div => self.is_thread(a) && right.is_some_and(whole),
            BinaryOp::Shr => self.is_thread(a) && right.is_some_and(|s| (0..31).contains(&s) && whole(1 << s)),
            BinaryOp::Lt => {
                (self.is_thread(a) && right.is_some_and(whole)) || (self.is_thread(b) && left.is_some_and(|v| whole(v + 1)))
            }
            BinaryOp::Le => {
                (self.is_thread(b) && left.is_some_and(whole)) || (self.is_thread(a) && right.is_some_and(|v| whole(v + 1)))
            }
            _ => false,
        }
    }

    fn is_thread(&self, mut e: ExprId) -> bool {
        loop {
            match self.kernel.expr(e) {
                Expr::Builtin(Builtin::LocalId) => return true,
                Expr::Var(v) => match self.meanings[v.index()] {
                    Some(meaning) => e = meaning,
                    None => return false,
                },
                _ => return false,
            }
        }
    }
}

/// The first barrier of a kernel's body after which a shared array, and the arrays that overlay it, are only read.
fn read_only_after(kernel: &Kernel) -> Vec<Option<usize>> {
    let range = |s: &SharedArray| s.byte_offset..s.byte_end();
    let writes: Vec<Vec<SharedId>> = kernel
        .body
        .iter()
        .map(|s| {
            let mut found = Vec::new();
            written(std::slice::from_ref(s), &mut found);
            found
        })
        .collect();
    let of = |array: &SharedArray| {
        let touches = |s: &SharedId| {
            let (own, other) = (range(array), range(&kernel.shared[s.index()]));
            own.start < other.end && other.start < own.end
        };
        let last = writes.iter().rposition(|found| found.iter().any(touches))?;
        let barrier = kernel.body[last..].iter().position(|s| matches!(s, Stmt::Barrier(BarrierScope::WorkGroup)))?;
        Some(last + barrier)
    };
    kernel.shared.iter().map(of).collect()
}

/// The shared arrays that a block writes.
fn written(block: &[Stmt], found: &mut Vec<SharedId>) {
    for s in block {
        let to = match s {
            Stmt::Store { mem, .. } | Stmt::Atomic { mem, .. } | Stmt::AsyncCopy { dst: mem, .. } => mem,
            Stmt::Bulk(BulkOp::Load { to, .. }) => to,
            Stmt::For { body, .. } => {
                written(body, found);
                continue;
            }
            Stmt::If { then, otherwise, .. } => {
                written(then, found);
                written(otherwise, found);
                continue;
            }
            Stmt::Roles(roles) => {
                roles.iter().for_each(|role| written(&role.body, found));
                continue;
            }
            _ => continue,
        };
        if let Base::Shared(array) = to.base {
            found.push(array);
        }
    }
}
