//! What of a kernel has an effect. Generators bind values that a particular plan then has no use for; printed, they would be unused
//! variables, of which compilers warn.

use crate::validate::operands;
use crate::*;

/// The names whose values reach an effect: a store, a barrier, an instruction, a branch around one.
pub(super) struct Uses<'k> {
    kernel: &'k Kernel,
    exprs: Vec<bool>,
    vars: Vec<bool>,
    regs: Vec<bool>,
    shared: Vec<bool>,
    cursors: Vec<bool>,
    changed: bool,
}

impl<'k> Uses<'k> {
    /// Marks what effects read, and what that was made from, until nothing is added.
    pub fn of(kernel: &'k Kernel) -> Self {
        let unused = |count| vec![false; count];
        let mut uses = Uses {
            kernel,
            exprs: unused(kernel.exprs.len()),
            vars: unused(kernel.vars.len()),
            regs: unused(kernel.regs.len()),
            shared: unused(kernel.shared.len()),
            cursors: unused(kernel.cursors.len()),
            changed: true,
        };
        while std::mem::take(&mut uses.changed) {
            uses.block(&kernel.body);
        }
        uses
    }
    /// True if the array is read.
    pub fn regs(&self, r: RegId) -> bool {
        self.regs[r.index()]
    }
    /// True if the array is read or written.
    pub fn shared(&self, s: SharedId) -> bool {
        self.shared[s.index()]
    }
    /// True if a statement has an effect, or gives a value to what reaches one.
    pub fn stmt(&self, s: &Stmt) -> bool {
        match s {
            Stmt::Let(v, _) | Stmt::Declare(v, _) => self.vars[v.index()],
            Stmt::Assign(place, _) | Stmt::Load { place, .. } | Stmt::Shuffle { place, .. } | Stmt::LoadPeer { place, .. } => {
                match place {
                    Place::New(v) | Place::Var(v) => self.vars[v.index()],
                    Place::Reg(r, _) => self.regs[r.index()],
                }
            }
            Stmt::PlaceCursor(c, _) | Stmt::AdvanceCursor(c, _) => self.cursors[c.index()],
            Stmt::For { body, .. } => self.any(body),
            Stmt::If { then, otherwise, .. } => self.any(then) || self.any(otherwise),
            _ => true,
        }
    }
    fn any(&self, block: &[Stmt]) -> bool {
        block.iter().any(|s| !matches!(s, Stmt::Comment(_)) && self.stmt(s))
    }

    /// Backwards: most values are made from earlier ones, so that few rounds find all.
    fn block(&mut self, block: &[Stmt]) {
        for s in block.iter().rev() {
            if self.stmt(s) {
                self.reads(s);
            }
        }
    }

    fn reads(&mut self, s: &Stmt) {
        match s {
            Stmt::Let(_, e) | Stmt::Declare(_, e) | Stmt::PlaceCursor(_, e) | Stmt::AdvanceCursor(_, e) => self.expr(*e),
            Stmt::Assign(place, e) => {
                self.place(*place);
                self.expr(*e);
            }
            Stmt::Load { place, mem, guard } => {
                self.place(*place);
                self.mem(mem);
                guard.iter().for_each(|g| self.expr(*g));
            }
            Stmt::Store { mem, value, guard } | Stmt::Atomic { mem, value, guard, .. } => {
                self.mem(mem);
                self.expr(*value);
                guard.iter().for_each(|g| self.expr(*g));
            }
            Stmt::FetchAdd { place, mem, value } => {
                self.place(*place);
                self.mem(mem);
                self.expr(*value);
            }
            Stmt::For { start, end, body, .. } => {
                self.block(body);
                self.expr(*start);
                self.expr(*end);
            }
            Stmt::If { cond, then, otherwise } => {
                self.block(otherwise);
                self.block(then);
                self.expr(*cond);
            }
            Stmt::Roles(roles) => roles.iter().rev().for_each(|r| self.block(&r.body)),
            Stmt::LoadPeer { place, mem, rank } => {
                self.place(*place);
                self.mem(mem);
                self.expr(*rank);
            }
            Stmt::AsyncCopy { dst, src, guard, .. } => {
                self.mem(dst);
                self.mem(src);
                guard.iter().for_each(|g| self.expr(*g));
            }
            Stmt::Shuffle { place, value, .. } => {
                self.place(*place);
                self.expr(*value);
            }
            Stmt::Matrix(op) => self.matrix(op),
            Stmt::Bulk(op) => self.bulk(op),
            Stmt::Comment(_) | Stmt::Barrier(_) | Stmt::AsyncCommit | Stmt::AsyncWait(_) => {}
            Stmt::SchedHint { .. } | Stmt::LaunchWait | Stmt::Fence | Stmt::Return => {}
        }
    }

    fn matrix(&mut self, op: &MatrixOp) {
        match op {
            MatrixOp::Mma { a, b, acc, .. } | MatrixOp::Mfma { a, b, acc, .. } => {
                [a, b, acc].into_iter().for_each(|s| self.slice(s))
            }
            MatrixOp::LoadMatrix { to, from, .. } => {
                self.slice(to);
                self.mem(from);
            }
            MatrixOp::Warpgroup { a, b, acc, accumulate, .. } => {
                match a {
                    WarpgroupA::Shared(tile) => self.tile(tile),
                    WarpgroupA::Regs(slice) => self.slice(slice),
                }
                self.tile(b);
                self.slice(acc);
                self.expr(*accumulate);
            }
            MatrixOp::WarpgroupFence { acc, left } => {
                mark(&mut self.regs[acc.index()], &mut self.changed);
                left.iter().for_each(|s| self.slice(s));
            }
            MatrixOp::WarpgroupWait { acc, .. } => mark(&mut self.regs[acc.index()], &mut self.changed),
            MatrixOp::WarpgroupCommit => {}
        }
    }

    fn bulk(&mut self, op: &BulkOp) {
        match op {
            BulkOp::Init { barrier, .. } | BulkOp::Expect { barrier, .. } | BulkOp::Arrive { barrier } => {
                self.expr(barrier.index)
            }
            BulkOp::ArriveAt { barrier, rank: e } | BulkOp::Wait { barrier, parity: e } => {
                self.expr(barrier.index);
                self.expr(*e);
            }
            BulkOp::Load { to, at, barrier, peers, .. } => {
                self.mem(to);
                at.iter().chain(peers).for_each(|e| self.expr(*e));
                self.expr(barrier.index);
            }
            BulkOp::Store { from, at, .. } => {
                self.mem(from);
                at.iter().for_each(|e| self.expr(*e));
            }
            BulkOp::InitFence | BulkOp::StoreCommit | BulkOp::StoreWait { .. } => {}
            BulkOp::ProxyFence | BulkOp::Registers { .. } => {}
        }
    }

    fn place(&mut self, place: Place) {
        if let Place::Reg(_, i) = place {
            self.expr(i);
        }
    }
    fn mem(&mut self, mem: &MemRef) {
        match mem.base {
            Base::Buffer(_) => {}
            Base::Cursor(c) => mark(&mut self.cursors[c.index()], &mut self.changed),
            Base::Shared(s) => mark(&mut self.shared[s.index()], &mut self.changed),
        }
        self.expr(mem.index);
    }
    fn slice(&mut self, slice: &RegSlice) {
        mark(&mut self.regs[slice.regs.index()], &mut self.changed);
        self.expr(slice.first);
    }
    fn tile(&mut self, tile: &SharedTile) {
        mark(&mut self.shared[tile.array.index()], &mut self.changed);
        self.expr(tile.byte);
    }
    fn expr(&mut self, e: ExprId) {
        let mut todo = vec![e];
        while let Some(e) = todo.pop() {
            if std::mem::replace(&mut self.exprs[e.index()], true) {
                continue;
            }
            match self.kernel.expr(e) {
                Expr::Var(v) => mark(&mut self.vars[v.index()], &mut self.changed),
                Expr::Reg(r, _) => mark(&mut self.regs[r.index()], &mut self.changed),
                _ => {}
            }
            operands(self.kernel.expr(e), &mut |o| todo.push(o));
        }
    }
}

fn mark(used: &mut bool, changed: &mut bool) {
    *changed |= !std::mem::replace(used, true);
}
