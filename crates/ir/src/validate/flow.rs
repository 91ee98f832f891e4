//! Rules of statements: names and cursors exist before use, values fit where they go, registers are indexed by constants,
//! roles share out the threads.

pub(super) mod matrix;

use super::Path;
use super::types::{self, condition, index, operands, within};
use crate::*;

#[derive(Clone, Copy, PartialEq)]
enum Binding {
    Unbound,
    /// Immutable.
    Fixed,
    /// Immutable, and a constant once loops marked `Full` or `Silent` are unrolled.
    Constant,
    Mutable,
    /// Its block has ended.
    Ended,
}

struct Scopes<'k> {
    kernel: &'k Kernel,
    nodes: Vec<Result<(), String>>,
    vars: Vec<Binding>,
    cursors: Vec<Binding>,
    /// Names and cursors in order of binding; blocks end by cutting this back.
    open_vars: Vec<VarId>,
    open_cursors: Vec<CursorId>,
    in_role: bool,
    /// Marks the nodes one statement has seen: shared nodes are visited once.
    stamps: Vec<u32>,
    stamp: u32,
}

/// Checks the body. An error leaves the path at the statement.
pub(super) fn check(kernel: &Kernel, path: &mut Path) -> Result<(), String> {
    launch_waits(kernel)?;
    let mut scopes = Scopes {
        kernel,
        nodes: types::expressions(kernel),
        vars: vec![Binding::Unbound; kernel.vars.len()],
        cursors: vec![Binding::Unbound; kernel.cursors.len()],
        open_vars: Vec::new(),
        open_cursors: Vec::new(),
        in_role: false,
        stamps: vec![0; kernel.exprs.len()],
        stamp: 0,
    };
    scopes.block(&kernel.body, path)
}

/// A kernel that may begin early waits once, all of it; no other does.
fn launch_waits(kernel: &Kernel) -> Result<(), String> {
    let here = kernel.body.iter().filter(|s| matches!(s, Stmt::LaunchWait)).count();
    let anywhere = crate::kernel::any(&kernel.body, &|s| matches!(s, Stmt::LaunchWait));
    match (kernel.follows, here, anywhere) {
        (true, 1, _) | (false, 0, false) => Ok(()),
        (true, ..) => {
            Err("a kernel that may begin early (`follows`) needs exactly one LaunchWait, at the top level of its body".into())
        }
        (false, ..) => Err("only a kernel that may begin early (`follows`) has a LaunchWait".into()),
    }
}

impl Scopes<'_> {
    fn block(&mut self, block: &Block, path: &mut Path) -> Result<(), String> {
        let (vars, cursors) = (self.open_vars.len(), self.open_cursors.len());
        path.each(block, |path, s| self.stmt(s, path))?;
        for v in self.open_vars.drain(vars..) {
            self.vars[v.index()] = Binding::Ended;
        }
        for c in self.open_cursors.drain(cursors..) {
            self.cursors[c.index()] = Binding::Ended;
        }
        Ok(())
    }

    fn stmt(&mut self, s: &Stmt, path: &mut Path) -> Result<(), String> {
        match s {
            Stmt::Comment(_) | Stmt::SchedHint { .. } | Stmt::LaunchWait | Stmt::Fence | Stmt::Return => Ok(()),
            Stmt::Barrier(_) | Stmt::AsyncCommit | Stmt::AsyncWait(_) => Ok(()),
            Stmt::Let(v, e) => {
                let ty = self.value(*e)?;
                let constant = ty.lanes == 1 && ty.scalar.is_int() && self.is_constant(*e);
                self.bind(*v, ty, if constant { Binding::Constant } else { Binding::Fixed })
            }
            Stmt::Declare(v, e) => {
                let ty = self.value(*e)?;
                self.bind(*v, ty, Binding::Mutable)
            }
            Stmt::Assign(Place::New(_), _) => Err("an assignment cannot declare a name: use let".into()),
            Stmt::Assign(place, e) => {
                let ty = self.value(*e)?;
                self.put(*place, ty)
            }
            Stmt::Load { place, mem, guard } => {
                let scalar = self.mem(mem)?;
                self.guard(*guard)?;
                if self.access(mem.base) == Some(Access::Write) {
                    return Err(format!("{} is declared as written only, and is read", self.base_name(mem.base)));
                }
                let ty = self.place(*place)?;
                if ty.scalar != scalar {
                    return Err(format!("{scalar} memory is loaded as {ty}: cast after the load"));
                }
                self.put(*place, ty)
            }
            Stmt::Store { mem, value, guard } => {
                let scalar = self.mem(mem)?;
                self.guard(*guard)?;
                let ty = self.value(*value)?;
                if self.access(mem.base) == Some(Access::Read) {
                    return Err(format!("{} is declared as read only, and is written", self.base_name(mem.base)));
                }
                if ty.scalar == scalar {
                    Ok(())
                } else {
                    Err(format!("{ty} is stored to {scalar} memory: cast before the store"))
                }
            }
            Stmt::Atomic { mem, value, guard, .. } => {
                let scalar = self.mem(mem)?;
                self.guard(*guard)?;
                let ty = self.value(*value)?;
                if self.access(mem.base) == Some(Access::Read) {
                    return Err(format!("{} is declared as read only, and is updated", self.base_name(mem.base)));
                }
                if !scalar.is_arithmetic() {
                    return Err(format!("there is no atomic on {scalar} memory: accumulate in {}", scalar.accumulator()));
                }
                if ty == scalar.ty() { Ok(()) } else { Err(format!("the operand of an atomic on {scalar} memory is {ty}")) }
            }
            Stmt::FetchAdd { place, mem, value } => {
                let (scalar, operand) = (self.mem(mem)?, self.value(*value)?);
                let global = matches!(mem.base, Base::Buffer(_) | Base::Cursor(_));
                if !global || scalar != Scalar::I32 || operand != Scalar::I32.ty() {
                    return Err(format!("fetch-and-add needs i32 in global memory, not {operand} into {scalar}"));
                }
                if self.access(mem.base) != Some(Access::ReadWrite) {
                    return Err(format!("{} is updated, and must be declared as read and written", self.base_name(mem.base)));
                }
                self.put(*place, scalar.ty())
            }
            Stmt::PlaceCursor(c, offset) => self.place_cursor(*c, *offset),
            Stmt::AdvanceCursor(c, by) => {
                self.base(Base::Cursor(*c))?;
                index(self.value(*by)?)
            }
            Stmt::For { .. } => self.for_loop(s, path),
            Stmt::If { cond, then, otherwise } => {
                condition(self.value(*cond)?)?;
                self.block(then, path)?;
                self.block(otherwise, path)
            }
            Stmt::Roles(roles) => self.roles(roles, path),
            Stmt::LoadPeer { place, mem, rank } => self.load_peer(*place, mem, *rank),
            Stmt::Matrix(op) => self.matrix(op),
            Stmt::Bulk(op) => self.bulk(op),
            Stmt::AsyncCopy { dst, src, lanes, guard } => self.async_copy(dst, src, *lanes, *guard),
            Stmt::Shuffle { place, value, kind } => {
                let ty = self.value(*value)?;
                if ty.lanes != 1 || !ty.scalar.is_arithmetic() {
                    return Err(format!("{ty} cannot be shuffled: shuffle a scalar of a type with arithmetic"));
                }
                let (ShuffleKind::Xor(lane) | ShuffleKind::Down(lane) | ShuffleKind::Broadcast(lane)) = *kind;
                if lane >= self.kernel.wave.max(1) {
                    return Err(format!("{kind:?} leaves the wave of {} lanes the kernel is built for", self.kernel.wave));
                }
                self.put(*place, ty)
            }
        }
    }

    fn place_cursor(&mut self, c: CursorId, offset: ExprId) -> Result<(), String> {
        index(self.value(offset)?)?;
        match self.cursors.get(c.index()) {
            None => return Err(format!("there is no cursor {}", c.0)),
            Some(Binding::Unbound) => {}
            Some(_) => return Err(format!("cursor `{}` is placed twice: declare another", self.kernel.cursors[c.index()].name)),
        }
        self.cursors[c.index()] = Binding::Mutable;
        self.open_cursors.push(c);
        Ok(())
    }

    fn for_loop(&mut self, stmt: &Stmt, path: &mut Path) -> Result<(), String> {
        let Stmt::For { var, start, end, step, unroll, body } = stmt else { return Ok(()) };
        let (var, start, end, step, unroll) = (*var, *start, *end, *step, *unroll);
        let (from, to) = (self.value(start)?, self.value(end)?);
        if from != to || from.lanes != 1 || !matches!(from.scalar, Scalar::I32 | Scalar::I64) {
            return Err(format!("a loop counts in i32 or i64, not from {from} to {to}"));
        }
        if step <= 0 || (from.scalar == Scalar::I32 && i32::try_from(step).is_err()) {
            return Err(format!("a loop's step is a positive {from}, not {step}"));
        }
        let full = matches!(unroll, Unroll::Full | Unroll::Silent | Unroll::Repeat);
        if full && !(self.is_constant(start) && self.is_constant(end)) {
            return Err("a loop to be unrolled fully needs constant bounds".into());
        }
        if unroll == Unroll::By(0) {
            return Err("a loop cannot be unrolled by 0".into());
        }
        let vars = self.open_vars.len();
        self.bind(var, from, if full { Binding::Constant } else { Binding::Fixed })?;
        self.block(body, path)?;
        for v in self.open_vars.drain(vars..) {
            self.vars[v.index()] = Binding::Ended;
        }
        Ok(())
    }

    fn roles(&mut self, roles: &[Role], path: &mut Path) -> Result<(), String> {
        if self.in_role {
            return Err("a role cannot be split into roles".into());
        }
        let mut order: Vec<&Role> = roles.iter().collect();
        order.sort_by_key(|r| r.first_thread);
        let mut next = 0;
        for r in order {
            if r.first_thread != next || r.threads == 0 {
                return Err(format!(
                    "role `{}` has {} threads from {} on, where {next} is next",
                    r.name, r.threads, r.first_thread
                ));
            }
            next = r.first_thread.saturating_add(r.threads);
        }
        if next != self.kernel.threads {
            return Err(format!("the roles have {next} threads in all, and the work-group has {}", self.kernel.threads));
        }
        self.in_role = true;
        for r in roles {
            self.block(&r.body, path)?;
        }
        self.in_role = false;
        Ok(())
    }

    fn async_copy(&mut self, dst: &MemRef, src: &MemRef, lanes: u8, guard: Option<ExprId>) -> Result<(), String> {
        let (to, from) = (self.mem(dst)?, self.mem(src)?);
        self.guard(guard)?;
        if !matches!(dst.base, Base::Shared(_)) || matches!(src.base, Base::Shared(_)) {
            return Err("an asynchronous copy goes from global to shared memory".into());
        }
        if self.access(src.base) == Some(Access::Write) {
            return Err(format!("{} is declared as written only, and is read", self.base_name(src.base)));
        }
        let bytes = to.bytes() * u32::from(lanes);
        if to != from || !ASYNC_COPY_BYTES.contains(&bytes) {
            return Err(format!(
                "an asynchronous copy moves 4, 8 or 16 bytes of one type, not {lanes} of {from} into {to} memory"
            ));
        }
        Ok(())
    }

    // ---- expressions in their place

    /// Checks everything an expression is made of, and gives its type.
    fn value(&mut self, e: ExprId) -> Result<Type, String> {
        if e.index() >= self.kernel.exprs.len() {
            return Err(format!("there is no expression {}", e.0));
        }
        self.stamp += 1;
        let mut todo = vec![e];
        while let Some(e) = todo.pop() {
            if std::mem::replace(&mut self.stamps[e.index()], self.stamp) == self.stamp {
                continue;
            }
            self.nodes[e.index()].clone()?;
            match self.kernel.expr(e) {
                Expr::Var(v) => {
                    let name = &self.kernel.vars[v.index()].name;
                    match self.vars[v.index()] {
                        Binding::Unbound => return Err(format!("`{name}` is used before it is bound")),
                        Binding::Ended => return Err(format!("`{name}` is used after its block has ended")),
                        _ => {}
                    }
                }
                Expr::Reg(r, i) if !self.is_constant(*i) => return Err(self.run_time_index(*r)),
                _ => {}
            }
            operands(self.kernel.expr(e), &mut |o| todo.push(o));
        }
        Ok(self.kernel.ty(e))
    }

    fn run_time_index(&self, r: RegId) -> String {
        let name = &self.kernel.regs[r.index()].name;
        format!("register array `{name}` is indexed at run time: indices may depend on fully unrolled loops only")
    }

    /// True for what is a constant once loops are unrolled. The expression's nodes must be checked or be checked next.
    fn is_constant(&self, e: ExprId) -> bool {
        match self.kernel.expr(e) {
            Expr::Int(_) => true,
            Expr::Var(v) => self.vars.get(v.index()) == Some(&Binding::Constant),
            Expr::Unary(..) | Expr::Binary(..) | Expr::Cast(_) | Expr::Select(..) => {
                let mut constant = self.nodes[e.index()].is_ok();
                operands(self.kernel.expr(e), &mut |o| constant = constant && self.is_constant(o));
                constant
            }
            _ => false,
        }
    }

    fn guard(&mut self, guard: Option<ExprId>) -> Result<(), String> {
        guard.map_or(Ok(()), |g| condition(self.value(g)?))
    }

    // ---- places

    fn bind(&mut self, v: VarId, ty: Type, binding: Binding) -> Result<(), String> {
        let Some(var) = self.kernel.vars.get(v.index()) else { return Err(format!("there is no name {}", v.0)) };
        if self.vars[v.index()] != Binding::Unbound {
            return Err(format!("`{}` is bound twice", var.name));
        }
        if var.ty != ty {
            return Err(format!("`{}` is {}, its value {ty}", var.name, var.ty));
        }
        self.vars[v.index()] = binding;
        self.open_vars.push(v);
        Ok(())
    }

    /// Type of a place whose handles are in range.
    fn place(&self, place: Place) -> Result<Type, String> {
        let known = match place {
            Place::New(v) | Place::Var(v) => v.index() < self.kernel.vars.len(),
            Place::Reg(r, _) => r.index() < self.kernel.regs.len(),
        };
        if known { Ok(self.kernel.place_ty(place)) } else { Err(format!("{place:?} does not exist")) }
    }

    fn put(&mut self, place: Place, ty: Type) -> Result<(), String> {
        let holds = self.place(place)?;
        match place {
            Place::New(v) => return self.bind(v, ty, Binding::Fixed),
            Place::Var(v) if self.vars[v.index()] != Binding::Mutable => {
                return Err(format!("`{}` is no mutable variable here", self.kernel.vars[v.index()].name));
            }
            Place::Var(_) => {}
            Place::Reg(r, i) => {
                index(self.value(i)?)?;
                within(self.kernel, r, i)?;
                if !self.is_constant(i) {
                    return Err(self.run_time_index(r));
                }
            }
        }
        if holds == ty { Ok(()) } else { Err(format!("{ty} is assigned to a place of {holds}")) }
    }

    // ---- memory

    /// Checks an address and gives the scalar type of its memory.
    fn mem(&mut self, mem: &MemRef) -> Result<Scalar, String> {
        index(self.value(mem.index)?)?;
        self.base(mem.base)
    }

    fn base(&self, base: Base) -> Result<Scalar, String> {
        let fault = match base {
            Base::Buffer(a) => match self.kernel.args.get(a.index()) {
                Some(Arg { kind: ArgKind::Buffer { .. }, .. }) => None,
                Some(arg) => Some(format!("`{}` is a scalar argument, no memory", arg.name)),
                None => Some(format!("there is no argument {}", a.0)),
            },
            Base::Cursor(c) => match (self.kernel.cursors.get(c.index()), self.cursors.get(c.index())) {
                (Some(_), Some(Binding::Mutable)) => None,
                (Some(cursor), _) => Some(format!("cursor `{}` is not placed here", cursor.name)),
                _ => Some(format!("there is no cursor {}", c.0)),
            },
            Base::Shared(s) if s.index() < self.kernel.shared.len() => None,
            Base::Shared(s) => Some(format!("there is no shared array {}", s.0)),
        };
        fault.map_or_else(|| Ok(self.kernel.base_scalar(base)), Err)
    }

    /// The access that a base's buffer allows; `None` for shared memory.
    fn access(&self, base: Base) -> Option<Access> {
        let buffer = match base {
            Base::Buffer(a) => a,
            Base::Cursor(c) => self.kernel.cursors.get(c.index())?.buffer,
            Base::Shared(_) => return None,
        };
        match self.kernel.args.get(buffer.index())?.kind {
            ArgKind::Buffer { access, .. } => Some(access),
            ArgKind::Scalar(_) | ArgKind::TensorMap(_) => None,
        }
    }

    fn base_name(&self, base: Base) -> String {
        let name = match base {
            Base::Buffer(a) => self.kernel.args.get(a.index()).map(|a| &a.name),
            Base::Cursor(c) => self.kernel.cursors.get(c.index()).map(|c| &c.name),
            Base::Shared(s) => self.kernel.shared.get(s.index()).map(|s| &s.name),
        };
        format!("`{}`", name.map_or("?", |n| n.as_str()))
    }
}
