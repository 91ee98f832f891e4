//! The expressions and variables that a statement names, in one order, for analyses and rewrites that treat all statements alike.

use crate::*;

/// A place of a statement that names an expression or a variable.
pub enum Slot<'a> {
    /// An expression that the statement evaluates.
    Expr(&'a mut ExprId),
    /// A variable that the statement declares.
    Declares(&'a mut VarId),
    /// A variable that the statement assigns.
    Assigns(&'a mut VarId),
}

/// Visits the slots of a statement and of the blocks within it, in the order of the source.
pub fn slots(s: &mut Stmt, f: &mut dyn FnMut(Slot)) {
    match s {
        Stmt::Let(v, e) | Stmt::Declare(v, e) => {
            f(Slot::Expr(e));
            f(Slot::Declares(v));
        }
        Stmt::Assign(to, e) => {
            f(Slot::Expr(e));
            place(to, f);
        }
        Stmt::Load { place: to, mem, guard } => {
            f(Slot::Expr(&mut mem.index));
            guard.iter_mut().for_each(|g| f(Slot::Expr(g)));
            place(to, f);
        }
        Stmt::Store { mem, value, guard } | Stmt::Atomic { mem, value, guard, .. } => {
            f(Slot::Expr(&mut mem.index));
            f(Slot::Expr(value));
            guard.iter_mut().for_each(|g| f(Slot::Expr(g)));
        }
        Stmt::FetchAdd { place: to, mem, value } => {
            f(Slot::Expr(&mut mem.index));
            f(Slot::Expr(value));
            place(to, f);
        }
        Stmt::PlaceCursor(_, e) | Stmt::AdvanceCursor(_, e) => f(Slot::Expr(e)),
        Stmt::For { var, start, end, body, .. } => {
            f(Slot::Expr(start));
            f(Slot::Expr(end));
            f(Slot::Declares(var));
            body.iter_mut().for_each(|s| slots(s, f));
        }
        Stmt::If { cond, then, otherwise } => {
            f(Slot::Expr(cond));
            then.iter_mut().chain(otherwise).for_each(|s| slots(s, f));
        }
        Stmt::Roles(roles) => roles.iter_mut().flat_map(|r| &mut r.body).for_each(|s| slots(s, f)),
        Stmt::LoadPeer { place: to, mem, rank } => {
            f(Slot::Expr(&mut mem.index));
            f(Slot::Expr(rank));
            place(to, f);
        }
        Stmt::AsyncCopy { dst, src, guard, .. } => {
            f(Slot::Expr(&mut dst.index));
            f(Slot::Expr(&mut src.index));
            guard.iter_mut().for_each(|g| f(Slot::Expr(g)));
        }
        Stmt::Shuffle { place: to, value, .. } => {
            f(Slot::Expr(value));
            place(to, f);
        }
        Stmt::Matrix(op) => matrix(op, f),
        Stmt::Bulk(op) => bulk(op, f),
        Stmt::Comment(_) | Stmt::Fence | Stmt::Barrier(_) | Stmt::AsyncCommit | Stmt::AsyncWait(_) => {}
        Stmt::SchedHint { .. } | Stmt::LaunchWait | Stmt::Return => {}
    }
}

fn place(to: &mut Place, f: &mut dyn FnMut(Slot)) {
    match to {
        Place::New(v) => f(Slot::Declares(v)),
        Place::Var(v) => f(Slot::Assigns(v)),
        Place::Reg(_, index) => f(Slot::Expr(index)),
    }
}

fn matrix(op: &mut MatrixOp, f: &mut dyn FnMut(Slot)) {
    match op {
        MatrixOp::Mma { a, b, acc, .. } | MatrixOp::Mfma { a, b, acc, .. } => {
            [a, b, acc].into_iter().for_each(|s| f(Slot::Expr(&mut s.first)));
        }
        MatrixOp::LoadMatrix { to, from, .. } => {
            f(Slot::Expr(&mut to.first));
            f(Slot::Expr(&mut from.index));
        }
        MatrixOp::Warpgroup { a, b, acc, accumulate, .. } => {
            match a {
                WarpgroupA::Shared(tile) => f(Slot::Expr(&mut tile.byte)),
                WarpgroupA::Regs(slice) => f(Slot::Expr(&mut slice.first)),
            }
            f(Slot::Expr(&mut b.byte));
            f(Slot::Expr(&mut acc.first));
            f(Slot::Expr(accumulate));
        }
        MatrixOp::WarpgroupFence { left, .. } => left.iter_mut().for_each(|s| f(Slot::Expr(&mut s.first))),
        MatrixOp::WarpgroupWait { .. } | MatrixOp::WarpgroupCommit => {}
    }
}

fn bulk(op: &mut BulkOp, f: &mut dyn FnMut(Slot)) {
    match op {
        BulkOp::Init { barrier, .. } | BulkOp::Expect { barrier, .. } | BulkOp::Arrive { barrier } => {
            f(Slot::Expr(&mut barrier.index));
        }
        BulkOp::ArriveAt { barrier, rank: e } | BulkOp::Wait { barrier, parity: e } => {
            f(Slot::Expr(&mut barrier.index));
            f(Slot::Expr(e));
        }
        BulkOp::Load { to, at, barrier, peers, .. } => {
            f(Slot::Expr(&mut to.index));
            at.iter_mut().chain(peers).for_each(|e| f(Slot::Expr(e)));
            f(Slot::Expr(&mut barrier.index));
        }
        BulkOp::Store { from, at, .. } => {
            f(Slot::Expr(&mut from.index));
            at.iter_mut().for_each(|e| f(Slot::Expr(e)));
        }
        BulkOp::InitFence | BulkOp::StoreCommit | BulkOp::StoreWait { .. } | BulkOp::ProxyFence | BulkOp::Registers { .. } => {}
    }
}
