//! Spells statements.

use super::Printer;
use super::after_barrier::runs;
use super::dialect::{CopyText, Space, prec};
use crate::*;

impl Printer<'_> {
    pub(super) fn block(&mut self, block: &Block) -> Result<(), Fault> {
        for s in block {
            if !self.uses.stmt(s) {
                continue;
            }
            if self.after_barrier.joins(self.kernel, s)
                && let Some(line) = self.dialect.barrier_separator(&mut self.prelude)
            {
                self.line(line);
            }
            self.stmt(s)?;
            self.after_barrier.note(s);
        }
        Ok(())
    }

    /// A block that may not be reached.
    fn unsure(&mut self, head: &str, block: &Block) -> Result<(), Fault> {
        self.after_barrier.unsure += 1;
        self.after_barrier.barrier = false;
        self.braced(head, block)?;
        self.after_barrier.unsure -= 1;
        Ok(())
    }

    /// Prints a block in braces after a head such as `if (x)`, with its own scope of names.
    fn braced(&mut self, head: &str, block: &Block) -> Result<(), Fault> {
        self.line(&format!("{head} {{"));
        self.names.open();
        self.depth += 1;
        self.block(block)?;
        self.depth -= 1;
        self.names.close();
        Ok(())
    }

    fn name_var(&mut self, v: VarId) -> String {
        let name = self.names.declare(&self.kernel.vars[v.index()].name);
        self.vars[v.index()] = name.clone();
        name
    }

    pub(super) fn stmt(&mut self, s: &Stmt) -> Result<(), Fault> {
        match s {
            Stmt::Comment(text) => self.comment(text),
            Stmt::Let(v, e) => {
                let value = self.expr(*e).text;
                self.put(Place::New(*v), &value);
            }
            Stmt::Declare(v, e) => {
                let value = self.expr(*e).text;
                let ty = self.type_name(self.kernel.vars[v.index()].ty);
                let name = self.name_var(*v);
                self.line(&format!("{ty} {name} = {value};"));
            }
            Stmt::Assign(place, e) => {
                let value = self.expr(*e).text;
                self.put(*place, &value);
            }
            Stmt::Load { place, mem, guard } => {
                let ty = self.kernel.place_ty(*place);
                let value = self.loaded(mem, *guard, ty);
                self.put(*place, &value);
            }
            Stmt::Store { mem, value, guard } => self.store(mem, *value, *guard),
            Stmt::Atomic { op, mem, value, guard } => {
                let address = self.address(mem).0;
                let scalar = self.kernel.base_scalar(mem.base);
                let value = self.expr(*value).text;
                let call = self.dialect.atomic(*op, scalar, space(mem.base), &address, &value, &mut self.prelude);
                self.guarded(*guard, &call);
            }
            Stmt::FetchAdd { place, mem, value } => {
                let (address, value) = (self.address(mem).0, self.expr(*value).text);
                let call = self.dialect.atomic(AtomicOp::Add, Scalar::I32, Space::Global, &address, &value, &mut self.prelude);
                self.put(*place, call.trim_end_matches(';'));
            }
            Stmt::Fence => self.line_if_spelled(self.dialect.fence(), "fence between work-groups")?,
            Stmt::PlaceCursor(c, offset) => self.place_cursor(*c, *offset),
            Stmt::AdvanceCursor(c, by) => {
                let by = self.expr(*by).text;
                let line = format!("{} += {by};", self.cursors[c.index()]);
                self.line(&line);
            }
            Stmt::For { .. } => self.counted_loop(s)?,
            Stmt::If { cond, then, otherwise } => {
                let cond = self.expr(*cond).text;
                self.unsure(&format!("if ({cond})"), then)?;
                if !otherwise.is_empty() {
                    self.unsure("} else", otherwise)?;
                }
                self.line("}");
            }
            Stmt::Roles(roles) => self.roles(roles)?,
            // A wave of one lane has nobody to wait for.
            Stmt::Barrier(BarrierScope::Wave) if self.target.wave <= 1 => {}
            Stmt::Barrier(scope) => {
                let global = self.fences.take(scope);
                let line = self.dialect.barrier(*scope, global, &mut self.prelude);
                self.line(&line);
            }
            Stmt::AsyncCopy { dst, src, lanes, guard } => {
                let bytes = self.kernel.base_scalar(dst.base).bytes() * u32::from(*lanes);
                let (dst, src) = (self.address(dst).0, self.address(src).0);
                let guard = guard.map(|g| self.expr(g).text);
                let copy = CopyText { dst: &dst, src: &src, bytes, guard: guard.as_deref() };
                let line = self.dialect.async_copy(&copy, &mut self.prelude);
                self.line_if_spelled(line, "asynchronous copy")?;
            }
            Stmt::AsyncCommit => self.line_if_spelled(self.dialect.async_commit(), "asynchronous copy")?,
            Stmt::AsyncWait(groups) => self.line_if_spelled(self.dialect.async_wait(*groups), "asynchronous copy")?,
            Stmt::Shuffle { place, value, kind } => {
                let scalar = self.kernel.ty(*value).scalar;
                let value = self.expr(*value).text;
                let value = self.dialect.shuffle(*kind, scalar, self.kernel.wave, &value, &mut self.prelude);
                self.put(*place, &value);
            }
            Stmt::SchedHint { mask, size } => {
                if let Some(line) = self.dialect.sched_hint(*mask, *size, &mut self.prelude) {
                    self.line(&line);
                }
            }
            Stmt::LoadPeer { place, mem, rank } => self.load_peer(*place, mem, *rank)?,
            Stmt::Matrix(op) => self.matrix(op)?,
            Stmt::Bulk(op) => self.bulk(op)?,
            Stmt::LaunchWait => {
                if let Some(early) = self.dialect.early(self.target) {
                    self.line(early.wait);
                }
            }
            Stmt::Return => self.line("return;"),
        }
        Ok(())
    }

    fn place_cursor(&mut self, c: CursorId, offset: ExprId) {
        let cursor = &self.kernel.cursors[c.index()];
        let start = &self.args[cursor.buffer.index()];
        let name = self.names.declare(&cursor.name);
        let pointer = self.buffer_pointer(cursor.buffer);
        let start = start.clone();
        let line = match self.kernel.as_int(offset) {
            Some(0) => format!("{pointer} {name} = {start};"),
            _ => format!("{pointer} {name} = {start} + {};", self.expr(offset).at(prec::PRODUCT)),
        };
        self.cursors[c.index()] = name;
        self.given[c.index()] = self.kernel.as_int(offset) == Some(0) || matches!(self.kernel.expr(offset), Expr::Arg(_));
        self.line(&line);
    }

    fn counted_loop(&mut self, s: &Stmt) -> Result<(), Fault> {
        let Stmt::For { var, start, end, step, unroll, body } = s else { return Ok(()) };
        match unroll {
            Unroll::Repeat => return self.repeat(*var, self.kernel.as_int(*end).unwrap_or(0), body),
            Unroll::No | Unroll::Silent => {}
            Unroll::Full => self.line("#pragma unroll"),
            Unroll::By(n) => self.line(&format!("#pragma unroll {n}")),
        }
        let ty = self.type_name(self.kernel.vars[var.index()].ty);
        let (start, end) = (self.expr(*start).text, self.expr(*end).at(prec::SHIFT));
        self.names.open();
        let v = self.name_var(*var);
        let next = if *step == 1 { format!("++{v}") } else { format!("{v} += {step}") };
        let head = format!("for ({ty} {v} = {start}; {v} < {end}; {next})");
        if runs(self.kernel, s) {
            self.braced(&head, body)?
        } else {
            self.unsure(&head, body)?
        }
        self.names.close();
        self.line("}");
        Ok(())
    }

    /// A run of statements that a macro repeats: the counter is a constant of each.
    fn repeat(&mut self, var: VarId, count: i64, body: &Block) -> Result<(), Fault> {
        let step = "#define TW_STEP(i, n, ...) { enum : int { i = n }; __VA_ARGS__ }";
        self.prelude.lines.insert("TW_STEP".into(), step.into());
        let name = format!("TW_REPEAT_{count:02}");
        let steps: Vec<String> = (0..count).map(|n| format!("TW_STEP(i, {n}, __VA_ARGS__)")).collect();
        self.prelude.lines.insert(name.clone(), format!("#define {name}(i, ...) {}", steps.join(" ")));
        self.names.open();
        let v = self.name_var(var);
        self.counters.insert(var, count);
        self.braced(&format!("{name}({v},"), body)?;
        self.names.close();
        self.line("})");
        Ok(())
    }

    /// Roles in order of their threads: each test needs only the upper bound.
    fn roles(&mut self, roles: &[Role]) -> Result<(), Fault> {
        let mut order: Vec<&Role> = roles.iter().collect();
        order.sort_by_key(|r| r.first_thread);
        let thread = self.dialect.role_thread();
        let last = order.len().saturating_sub(1);
        for (i, role) in order.iter().enumerate() {
            let end = role.first_thread + role.threads;
            let test = if i == last { String::new() } else { format!(" if ({thread} < {end})") };
            let head = match (i, last) {
                (0, 0) => String::new(),
                (0, _) => test.trim_start().into(),
                _ => format!("}} else{test}"),
            };
            let head = head.trim();
            self.line(&format!("{head}{}{{", if head.is_empty() { "" } else { " " }));
            self.names.open();
            self.depth += 1;
            self.comment(&format!("{} warps: threads {} to {}", role.name, role.first_thread, end - 1));
            self.block(&role.body)?;
            self.depth -= 1;
            self.names.close();
        }
        if !order.is_empty() {
            self.line("}");
        }
        Ok(())
    }

    pub(super) fn put(&mut self, place: Place, value: &str) {
        let line = match place {
            Place::New(v) => {
                let ty = self.type_name(self.kernel.vars[v.index()].ty);
                format!("const {ty} {} = {value};", self.name_var(v))
            }
            Place::Var(v) => format!("{} = {value};", self.vars[v.index()]),
            Place::Reg(r, i) => {
                let i = self.expr(i).text;
                format!("{}[{i}] = {value};", self.regs[r.index()])
            }
        };
        self.line(&line);
    }

    fn guarded(&mut self, guard: Option<ExprId>, statement: &str) {
        let line = match guard {
            Some(g) => format!("if ({}) {statement}", self.expr(g).text),
            None => statement.into(),
        };
        self.line(&line);
    }

    fn line_if_spelled(&mut self, line: Option<String>, feature: &'static str) -> Result<(), Fault> {
        match line {
            Some(line) => self.line(&line),
            None => {
                return Err(Fault::Missing {
                    target: self.target.arch.clone(),
                    feature,
                    remedy: "its dialect cannot spell one; the target's features should not claim it",
                });
            }
        }
        Ok(())
    }

    /// What a load gives: zeros where its guard does not hold.
    fn loaded(&mut self, mem: &MemRef, guard: Option<ExprId>, ty: Type) -> String {
        let access = self.access(mem, ty, true);
        match guard {
            Some(g) if self.by_words(ty) => self.given(g, mem, ty),
            Some(g) => format!("{} ? {access} : {}", self.expr(g).at(prec::EQUALITY), self.zero(ty).at(prec::LOGIC_OR)),
            None if self.bytes_by_words(mem, ty) => self.words_of(mem, ty),
            None => access,
        }
    }

    /// The memory an access of this type touches, as an lvalue.
    fn store(&mut self, mem: &MemRef, value: ExprId, guard: Option<ExprId>) {
        let ty = self.kernel.ty(value);
        let value_text = self.expr(value).text;
        let line = match mem.base {
            Base::Cursor(c) if !self.given[c.index()] => self.store_whole(c, mem.index, ty, &value_text),
            _ => None,
        };
        let line = match line {
            Some(line) => line,
            None => format!("{} = {value_text};", self.access(mem, ty, false)),
        };
        self.guarded(guard, &line);
    }

    /// The statement of a dialect that stores a vector by one access. Constant parts of its index stand apart, so that neighbouring stores share
    /// an address.
    fn store_whole(&mut self, cursor: CursorId, index: ExprId, ty: Type, value: &str) -> Option<String> {
        let store = self.dialect.store(ty, &mut self.prelude)?;
        let element = i64::from(ty.scalar.bytes());
        let (varying, offset) = self.split_constant(index);
        let (varying, bytes) = match self.offset(&offset, element) {
            (Some(most), bytes) if most <= i64::from(i32::MAX) / element => (varying, bytes),
            _ => (Some(self.expr(index)), "0".into()),
        };
        let base = &self.cursors[cursor.index()];
        let address = match varying {
            Some(varying) => format!("({base} + {})", varying.at(prec::PRODUCT)),
            None => base.clone(),
        };
        let pointer = self.dialect.pointer(Space::Global, false, &self.type_name(ty));
        Some(format!("{store}<{bytes}>(({pointer}){address}, {value});"))
    }

    fn access(&mut self, mem: &MemRef, ty: Type, constant: bool) -> String {
        let (address, base) = self.address(mem);
        if ty.lanes == 1 {
            return format!("{base}[{}]", self.expr(mem.index).text);
        }
        let pointee = self.type_name(ty);
        let pointer = self.dialect.pointer(space(mem.base), constant, &pointee);
        let address = if address == base { base } else { format!("({address})") };
        format!("*({pointer}){address}")
    }

    /// The address as a pointer expression, and the name of its base alone.
    pub(super) fn address(&mut self, mem: &MemRef) -> (String, String) {
        let base = match mem.base {
            Base::Buffer(a) => &self.args[a.index()],
            Base::Cursor(c) => &self.cursors[c.index()],
            Base::Shared(s) => &self.shared[s.index()],
        };
        let base = base.clone();
        let address = match self.kernel.as_int(mem.index) {
            Some(0) => base.clone(),
            _ => format!("{base} + {}", self.expr(mem.index).at(prec::PRODUCT)),
        };
        (address, base)
    }
}

fn space(base: Base) -> Space {
    match base {
        Base::Shared(_) => Space::Shared,
        Base::Buffer(_) | Base::Cursor(_) => Space::Global,
    }
}
