//! What is known about a kernel before its code is made. It is which values differ between threads, where threads may leave, and
//! which barriers and roles there are. Every statement also has a number and a printed form.

use crate::code::Uses;
use crate::show;
use std::collections::{HashMap, HashSet};
use tilewright_ir::*;

/// Facts about a kernel. Statements are keyed by their address: the kernel stays borrowed while these are in use.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Variables whose value may differ between threads.
    pub(crate) varying_vars: Vec<bool>,
    /// Cursors whose position may differ between threads.
    pub(crate) varying_cursors: Vec<bool>,
    /// Statements in which some threads of a context may return while others go on.
    pub(crate) leaving: HashSet<*const Stmt>,
    /// Number of each statement.
    pub(crate) numbers: HashMap<*const Stmt, u32>,
    /// Position and printed form of each statement.
    pub(crate) statements: Vec<String>,
    pub(crate) uses: Uses,
    /// Register arrays that warpgroup instructions work on.
    pub(crate) warpgroup_regs: HashSet<RegId>,
}

/// Collects the facts. Handles of the kernel must be in range.
pub(crate) fn analyse(k: &Kernel) -> Facts {
    let mut facts =
        Facts { varying_vars: vec![false; k.vars.len()], varying_cursors: vec![false; k.cursors.len()], ..Facts::default() };
    number(k, &k.body, "body", &mut facts);
    if !k.tx_barriers.is_empty() || facts.uses.warpgroups {
        facts.uses.waves_apart = true;
        facts.uses.partial_barriers = true;
    }
    // Variance only grows, so this ends.
    loop {
        let mut pass = Variance { k, facts: &mut facts, exprs: vec![None; k.exprs.len()], changed: false };
        pass.block(&k.body, false);
        if !pass.changed {
            break;
        }
    }
    facts.uses.splits.sort_unstable();
    facts.uses.splits.dedup();
    facts
}

fn number(k: &Kernel, block: &Block, path: &str, facts: &mut Facts) {
    for (i, s) in block.iter().enumerate() {
        let here = format!("{path}[{i}]");
        facts.numbers.insert(s, facts.statements.len() as u32);
        facts.statements.push(format!("{here} `{}`", show::statement(k, s)));
        match s {
            Stmt::For { body, .. } => number(k, body, &format!("{here}.for"), facts),
            Stmt::If { then, otherwise, .. } => {
                number(k, then, &format!("{here}.then"), facts);
                number(k, otherwise, &format!("{here}.else"), facts);
            }
            Stmt::Roles(roles) => {
                for r in roles {
                    number(k, &r.body, &format!("{here}.{}", r.name), facts);
                    if r.first_thread > 0 {
                        facts.uses.splits.push(r.first_thread);
                    }
                }
            }
            Stmt::Barrier(BarrierScope::Named { .. }) => {
                facts.uses.waves_apart = true;
                facts.uses.partial_barriers = true;
            }
            Stmt::Matrix(MatrixOp::Warpgroup { a, acc, .. }) => {
                facts.uses.warpgroups = true;
                facts.warpgroup_regs.insert(acc.regs);
                if let WarpgroupA::Regs(a) = a {
                    facts.warpgroup_regs.insert(a.regs);
                }
            }
            Stmt::Matrix(MatrixOp::WarpgroupFence { .. } | MatrixOp::WarpgroupCommit | MatrixOp::WarpgroupWait { .. }) => {
                facts.uses.warpgroups = true;
            }
            // Its reads go on until they are waited for, as those of another wave would.
            Stmt::Bulk(op @ (BulkOp::Store { .. } | BulkOp::StoreCommit | BulkOp::StoreWait { .. })) => {
                facts.uses.waves_apart = true;
                facts.uses.partial_barriers = true;
                facts.uses.bulk_stores = true;
                if let BulkOp::Store { map, .. } = op {
                    facts.uses.stored_maps.push(map.index());
                }
            }
            Stmt::Barrier(BarrierScope::Wave) => facts.uses.partial_barriers = true,
            Stmt::Atomic { mem, .. } if matches!(mem.base, Base::Shared(_)) => facts.uses.shared_atomics = true,
            _ => {}
        }
    }
}

struct Variance<'a> {
    k: &'a Kernel,
    facts: &'a mut Facts,
    exprs: Vec<Option<bool>>,
    changed: bool,
}

impl Variance<'_> {
    /// Remembered within a pass; what an assignment later in the pass changes is seen by the next one.
    fn expr(&mut self, e: ExprId) -> bool {
        if let Some(known) = self.exprs[e.index()] {
            return known;
        }
        let varies = match self.k.expr(e) {
            Expr::Int(_) | Expr::Float(_) | Expr::Arg(_) => false,
            Expr::Var(v) => self.facts.varying_vars[v.index()],
            Expr::Reg(..) => true,
            Expr::Builtin(b) => *b == Builtin::LocalId,
            Expr::Unary(_, a) | Expr::Cast(a) | Expr::Extract(a, _) | Expr::Splat(a) | Expr::Words(a) => self.expr(*a),
            Expr::Binary(_, a, b) => self.expr(*a) | self.expr(*b),
            Expr::Fma(a, b, c) | Expr::Select(a, b, c) => self.expr(*a) | self.expr(*b) | self.expr(*c),
            Expr::Vector(parts) => parts.iter().fold(false, |v, p| v | self.expr(*p)),
        };
        self.exprs[e.index()] = Some(varies);
        varies
    }
    fn var(&mut self, v: usize, varies: bool) {
        if varies && !self.facts.varying_vars[v] {
            self.facts.varying_vars[v] = true;
            self.changed = true;
        }
    }
    fn place(&mut self, p: Place, varies: bool) {
        match p {
            Place::New(v) | Place::Var(v) => self.var(v.index(), varies),
            Place::Reg(..) => {}
        }
    }

    /// `divergent`: some threads of a context may be elsewhere. Returns whether some may return in the block while others go on.
    fn block(&mut self, block: &Block, mut divergent: bool) -> bool {
        let mut left = false;
        for s in block {
            let leaving = match s {
                Stmt::Let(v, e) | Stmt::Declare(v, e) => {
                    let varies = self.expr(*e);
                    self.var(v.index(), varies);
                    false
                }
                Stmt::Assign(p, e) => {
                    let varies = self.expr(*e) | divergent;
                    self.place(*p, varies);
                    false
                }
                Stmt::Load { place, .. }
                | Stmt::Shuffle { place, .. }
                | Stmt::LoadPeer { place, .. }
                | Stmt::FetchAdd { place, .. } => {
                    self.place(*place, true);
                    false
                }
                Stmt::PlaceCursor(c, e) | Stmt::AdvanceCursor(c, e) => {
                    if (self.expr(*e) | divergent) && !self.facts.varying_cursors[c.index()] {
                        self.facts.varying_cursors[c.index()] = true;
                        self.changed = true;
                    }
                    false
                }
                Stmt::For { var, start, end, body, .. } => {
                    let varies = self.expr(*start) | self.expr(*end);
                    self.var(var.index(), varies);
                    // A return in one iteration leaves the next one divergent.
                    let left = self.block(body, divergent | varies);
                    if left {
                        self.block(body, true);
                    }
                    left
                }
                Stmt::If { cond, then, otherwise } => {
                    let inside = divergent | self.expr(*cond);
                    self.block(then, inside) | self.block(otherwise, inside)
                }
                // Each context is wholly within one role, so roles alone do not diverge.
                Stmt::Roles(roles) => roles.iter().fold(false, |l, r| l | self.block(&r.body, divergent)),
                Stmt::Return => divergent,
                _ => false,
            };
            if leaving {
                self.facts.leaving.insert(s);
                divergent = true;
                left = true;
            }
        }
        left
    }
}
