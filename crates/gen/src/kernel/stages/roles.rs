//! The barriers that each role meets, compared when a kernel is built.
//!
//! Waves of different roles run different code, and the work-group's barrier holds until every wave has come. A role that comes
//! once less often hangs the group. Counts kept by hand have gone wrong in published kernels, so they are counted here in what
//! was built, the epilogue included.

use crate::kernel::error::GenerateError;
use std::collections::HashMap;
use tilewright_ir::*;

/// Asks that all roles of a kernel meet the same barriers: as many, under the same loops and conditions.
///
/// # Errors
/// [`GenerateError::Barriers`] with the counts as written.
pub(crate) fn check_roles(kernel: &Kernel) -> Result<(), GenerateError> {
    fn find<'k>(block: &'k [Stmt], found: &mut Vec<&'k [Role]>) {
        for s in block {
            match s {
                Stmt::Roles(roles) => found.push(roles),
                Stmt::For { body, .. } => find(body, found),
                Stmt::If { then, otherwise, .. } => {
                    find(then, found);
                    find(otherwise, found);
                }
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    find(&kernel.body, &mut found);
    for roles in found {
        for pair in roles.windows(2) {
            let [x, y] = pair else { continue };
            let mut compare = Compare { kernel, same: HashMap::new() };
            if !compare.blocks(&x.body, &y.body) {
                let (first, second) = (x.name.clone(), y.name.clone());
                return Err(GenerateError::Barriers { first, barriers: count(&x.body), second, other: count(&y.body) });
            }
        }
    }
    Ok(())
}

/// Barriers of the work-group as written, loops counted once.
fn count(block: &[Stmt]) -> usize {
    block.iter().map(|s| inner(s).map_or(1, |blocks| blocks.iter().map(|b| count(b)).sum())).sum()
}

/// The blocks in which a statement that has to do with the work-group's barrier holds it; `None` for the barrier itself.
fn inner(s: &Stmt) -> Option<Vec<&Block>> {
    match s {
        Stmt::Barrier(BarrierScope::WorkGroup) => None,
        Stmt::For { body, .. } => Some(vec![body]),
        Stmt::If { then, otherwise, .. } => Some(vec![then, otherwise]),
        Stmt::Roles(roles) => Some(roles.iter().map(|r| &r.body).collect()),
        _ => Some(vec![]),
    }
}

struct Compare<'k> {
    kernel: &'k Kernel,
    /// Loop counters of the one role and those that take their place in the other.
    same: HashMap<VarId, VarId>,
}

impl Compare<'_> {
    fn blocks(&mut self, x: &[Stmt], y: &[Stmt]) -> bool {
        let waits = |s: &&Stmt| count(std::slice::from_ref(*s)) > 0;
        let (mut x, mut y) = (x.iter().filter(waits), y.iter().filter(waits));
        loop {
            match (x.next(), y.next()) {
                (None, None) => return true,
                (Some(x), Some(y)) if self.statements(x, y) => {}
                _ => return false,
            }
        }
    }

    fn statements(&mut self, x: &Stmt, y: &Stmt) -> bool {
        match (x, y) {
            (Stmt::Barrier(_), Stmt::Barrier(_)) => true,
            (
                Stmt::For { var: v, start: s, end: e, step, body, .. },
                Stmt::For { var, start, end, step: by, body: other, .. },
            ) => {
                let alike = step == by && self.values(*s, *start) && self.values(*e, *end);
                self.same.insert(*v, *var);
                alike && self.blocks(body, other)
            }
            (Stmt::If { cond: c, then: t, otherwise: o }, Stmt::If { cond, then, otherwise }) => {
                self.values(*c, *cond) && self.blocks(t, then) && self.blocks(o, otherwise)
            }
            _ => false,
        }
    }

    /// True if two expressions of constants, counters of matching loops and values from outside are the same.
    fn values(&self, x: ExprId, y: ExprId) -> bool {
        use Expr::*;
        match (self.kernel.expr(x), self.kernel.expr(y)) {
            _ if self.kernel.ty(x) != self.kernel.ty(y) => false,
            (Var(v), Var(w)) => v == w || self.same.get(v) == Some(w),
            (Unary(op, a), Unary(p, b)) => op == p && self.values(*a, *b),
            (Binary(op, a, b), Binary(p, c, d)) => op == p && self.values(*a, *c) && self.values(*b, *d),
            (Select(a, b, c), Select(d, e, f)) => self.values(*a, *d) && self.values(*b, *e) && self.values(*c, *f),
            (Cast(a), Cast(b)) => self.values(*a, *b),
            (a @ (Int(_) | Arg(_) | Builtin(_)), b) => a == b,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Part = fn(&mut Builder);

    fn roles(first: Part, second: Part) -> Result<(), GenerateError> {
        let mut b = Builder::new("roles", 64);
        let bodies = [first, second].map(|part| b.block(part));
        let [x, y] = bodies;
        b.push(Stmt::Roles(vec![
            Role { name: "consumer".into(), first_thread: 0, threads: 32, body: x },
            Role { name: "producer".into(), first_thread: 32, threads: 32, body: y },
        ]));
        check_roles(&b.finish())
    }

    fn tiles(b: &mut Builder, end: i64, barriers: usize) {
        b.for_range("t", 0, end, Unroll::No, |b, t| {
            let odd = b.rem(t, 2);
            let odd = b.eq(odd, 1);
            b.if_then(odd, |b| (0..barriers).for_each(|_| b.barrier()));
        });
    }

    #[test]
    fn equal_roles_pass() {
        assert_eq!(roles(|_| {}, |_| {}), Ok(()));
        // Counters of their own, statements of their own between the barriers.
        let first: Part = |b| {
            tiles(b, 9, 1);
            b.barrier();
        };
        let second: Part = |b| {
            b.comment("loads");
            tiles(b, 9, 1);
            b.for_range("i", 0, 3, Unroll::No, |b, _| b.comment("no barrier here"));
            b.barrier();
        };
        assert_eq!(roles(first, second), Ok(()));
    }

    #[test]
    fn unequal_roles_are_refused() {
        let cases: [(Part, Part, usize, usize); 4] = [
            (|b| b.barrier(), |_| {}, 1, 0),
            (|b| tiles(b, 9, 2), |b| tiles(b, 9, 1), 2, 1),
            (|b| tiles(b, 9, 1), |b| tiles(b, 8, 1), 1, 1),
            (|b| b.for_range("t", 0, 9, Unroll::No, |b, _| b.barrier()), |b| tiles(b, 9, 1), 1, 1),
        ];
        for (first, second, barriers, other) in cases {
            let expected = GenerateError::Barriers { first: "consumer".into(), barriers, second: "producer".into(), other };
            assert_eq!(roles(first, second), Err(expected));
        }
    }
}
