//! The rules that lowering relies on: handles in range, expressions built of earlier ones, operand types that fit. The validator of
//! the kernel language says more, for a target; this keeps a malformed kernel from being run as something else.

use tilewright_ir::*;

/// The first rule broken, in words.
pub(crate) fn check(k: &Kernel) -> Result<(), String> {
    if k.threads == 0 || k.threads > 1024 {
        return Err(format!("{} threads per work-group: 1 to 1024 are possible", k.threads));
    }
    for (i, (node, ty)) in k.exprs.iter().enumerate() {
        expr(k, i, node, *ty).map_err(|e| format!("expression {i}: {e}"))?;
    }
    for v in &k.vars {
        lanes(v.ty).map_err(|e| format!("variable `{}`: {e}", v.name))?;
    }
    for r in &k.regs {
        lanes(r.ty).map_err(|e| format!("register array `{}`: {e}", r.name))?;
    }
    for s in &k.shared {
        if s.byte_offset % s.scalar.bytes() != 0 || s.scalar == Scalar::Bool {
            return Err(format!("shared array `{}` is not aligned to its {} elements", s.name, s.scalar));
        }
        if s.byte_offset as u64 + s.len as u64 * s.scalar.bytes() as u64 > 1 << 30 {
            return Err(format!("shared array `{}` ends beyond 1 GiB", s.name));
        }
    }
    for c in &k.cursors {
        buffer(k, c.buffer).map_err(|e| format!("cursor `{}`: {e}", c.name))?;
    }
    block(k, &k.body)
}

fn lanes(ty: Type) -> Result<(), String> {
    match ty.lanes {
        1 | 2 | 4 | 8 | 16 => Ok(()),
        n => Err(format!("{n} lanes: 1, 2, 4, 8 and 16 are possible")),
    }
}

fn buffer(k: &Kernel, a: ArgId) -> Result<(), String> {
    match k.args.get(a.index()) {
        Some(Arg { kind: ArgKind::Buffer { .. }, .. }) => Ok(()),
        Some(arg) => Err(format!("argument `{}` is not a buffer", arg.name)),
        None => Err(format!("there is no argument {}", a.0)),
    }
}

fn expr(k: &Kernel, at: usize, node: &Expr, ty: Type) -> Result<(), String> {
    lanes(ty)?;
    let operand = |e: ExprId| match k.exprs.get(e.index()) {
        Some((_, ty)) if e.index() < at => Ok(*ty),
        _ => Err(format!("operand {} does not come before it", e.0)),
    };
    let same = |e: ExprId| match operand(e)? {
        t if t == ty => Ok(()),
        t => Err(format!("operand {} is {t}, not {ty}", e.0)),
    };
    match node {
        Expr::Int(_) | Expr::Float(_) if ty.lanes != 1 => Err("a constant of several lanes".into()),
        Expr::Int(_) | Expr::Float(_) => Ok(()),
        Expr::Arg(a) => match k.args.get(a.index()).map(|a| &a.kind) {
            Some(ArgKind::Scalar(s)) if s.ty() == ty => Ok(()),
            _ => Err(format!("argument {} is no {ty}", a.0)),
        },
        Expr::Var(v) if k.vars.get(v.index()).is_some_and(|v| v.ty == ty) => Ok(()),
        Expr::Var(v) => Err(format!("variable {} is no {ty}", v.0)),
        Expr::Reg(r, i) => {
            let index = operand(*i)?;
            match k.regs.get(r.index()) {
                Some(r) if r.ty == ty && index.lanes == 1 && index.scalar.is_int() => Ok(()),
                _ => Err(format!("register array {} of {ty} with an index of {index}", r.0)),
            }
        }
        Expr::Builtin(Builtin::GroupId(d)) if *d > 2 => Err(format!("there is no grid dimension {d}")),
        Expr::Builtin(_) if ty != Scalar::I32.ty() => Err(format!("a builtin is i32, not {ty}")),
        Expr::Builtin(_) => Ok(()),
        Expr::Unary(_, a) => same(*a),
        Expr::Binary(op, a, b) => {
            let (x, y) = (operand(*a)?, operand(*b)?);
            let want = if op.is_comparison() { x.with_scalar(Scalar::Bool) } else { x };
            if x == y && want == ty { Ok(()) } else { Err(format!("{op:?} of {x} and {y} gives {ty}")) }
        }
        Expr::Fma(a, b, c) => same(*a).and_then(|_| same(*b)).and_then(|_| same(*c)),
        Expr::Select(c, a, b) => {
            let cond = operand(*c)?;
            if cond != Scalar::Bool.ty() {
                return Err(format!("the condition is {cond}"));
            }
            same(*a).and_then(|_| same(*b))
        }
        Expr::Cast(a) if operand(*a)?.lanes == ty.lanes => Ok(()),
        Expr::Cast(_) => Err("a conversion changes the number of lanes".into()),
        Expr::Extract(a, lane) => match operand(*a)? {
            t if *lane < t.lanes && t.scalar.ty() == ty => Ok(()),
            t => Err(format!("lane {lane} of {t} as {ty}")),
        },
        Expr::Vector(parts) => {
            for p in parts {
                if operand(*p)? != ty.scalar.ty() {
                    return Err(format!("part {} is no {}", p.0, ty.scalar));
                }
            }
            if parts.len() == ty.lanes as usize { Ok(()) } else { Err(format!("{} parts for {ty}", parts.len())) }
        }
        Expr::Splat(a) => match operand(*a)? {
            t if t == ty.scalar.ty() => Ok(()),
            t => Err(format!("{t} in every lane of {ty}")),
        },
    }
}

fn block(k: &Kernel, b: &Block) -> Result<(), String> {
    b.iter().try_for_each(|s| statement(k, s).map_err(|e| format!("`{}`: {e}", crate::show::statement(k, s))))?;
    b.iter().try_for_each(|s| match s {
        Stmt::For { body, .. } => block(k, body),
        Stmt::If { then, otherwise, .. } => block(k, then).and_then(|_| block(k, otherwise)),
        Stmt::Roles(roles) => roles.iter().try_for_each(|r| block(k, &r.body)),
        _ => Ok(()),
    })
}

fn statement(k: &Kernel, s: &Stmt) -> Result<(), String> {
    let ty = |e: ExprId| k.exprs.get(e.index()).map(|(_, t)| *t).ok_or_else(|| format!("there is no expression {}", e.0));
    let var = |v: VarId| k.vars.get(v.index()).map(|v| v.ty).ok_or_else(|| format!("there is no variable {}", v.0));
    let int = |e: ExprId| match ty(e)? {
        t if t.lanes == 1 && t.scalar.is_int() => Ok(()),
        t => Err(format!("an index or bound is {t}")),
    };
    let guard = |g: &Option<ExprId>| match g.map(ty).transpose()? {
        None => Ok(()),
        Some(t) if t == Scalar::Bool.ty() => Ok(()),
        Some(t) => Err(format!("the guard is {t}")),
    };
    let place = |p: Place| match p {
        Place::New(v) | Place::Var(v) => var(v),
        Place::Reg(r, i) => {
            int(i)?;
            k.regs.get(r.index()).map(|r| r.ty).ok_or_else(|| format!("there is no register array {}", r.0))
        }
    };
    let mem = |m: &MemRef| -> Result<Scalar, String> {
        int(m.index)?;
        match m.base {
            Base::Buffer(a) => buffer(k, a)?,
            Base::Cursor(c) if k.cursors.len() > c.index() => {}
            Base::Shared(s) if k.shared.len() > s.index() => {}
            _ => return Err("there is no such cursor or shared array".into()),
        }
        Ok(k.base_scalar(m.base))
    };
    let fits = |a: Type, b: Type| if a == b { Ok(()) } else { Err(format!("{b} where {a} belongs")) };
    match s {
        Stmt::Let(v, e) | Stmt::Declare(v, e) => fits(var(*v)?, ty(*e)?),
        Stmt::Assign(p, e) => fits(place(*p)?, ty(*e)?),
        Stmt::Load { place: p, mem: m, guard: g } => {
            guard(g)?;
            let t = place(*p)?;
            fits(mem(m)?.vector(t.lanes), t)
        }
        Stmt::Store { mem: m, value, guard: g } => {
            guard(g)?;
            let t = ty(*value)?;
            fits(mem(m)?.vector(t.lanes), t)
        }
        Stmt::Atomic { mem: m, value, guard: g, .. } => {
            guard(g)?;
            let scalar = mem(m)?;
            fits(scalar.ty(), ty(*value)?)?;
            if scalar.is_arithmetic() { Ok(()) } else { Err(format!("an atomic on {scalar}")) }
        }
        Stmt::PlaceCursor(c, e) | Stmt::AdvanceCursor(c, e) => {
            int(*e)?;
            if k.cursors.len() > c.index() { Ok(()) } else { Err(format!("there is no cursor {}", c.0)) }
        }
        Stmt::For { var: v, start, end, step, .. } => {
            int(*start)?;
            fits(ty(*start)?, ty(*end)?)?;
            fits(ty(*start)?, var(*v)?)?;
            if *step > 0 { Ok(()) } else { Err(format!("step {step}: it must be positive")) }
        }
        Stmt::If { cond, .. } => guard(&Some(*cond)),
        Stmt::Roles(roles) => cover(k, roles),
        Stmt::AsyncCopy { dst, src, lanes, guard: g } => {
            guard(g)?;
            let (d, s) = (mem(dst)?, mem(src)?);
            fits(d.ty(), s.ty())?;
            let bytes = d.bytes() * *lanes as u32;
            if !matches!(dst.base, Base::Shared(_)) || matches!(src.base, Base::Shared(_)) {
                return Err("it copies from global to shared memory only".into());
            }
            if matches!(bytes, 4 | 8 | 16) { Ok(()) } else { Err(format!("{bytes} bytes: 4, 8 and 16 are possible")) }
        }
        Stmt::Shuffle { place: p, value, .. } => {
            let t = ty(*value)?;
            fits(place(*p)?, t)?;
            let known = matches!(t.scalar, Scalar::I32 | Scalar::U32 | Scalar::F32 | Scalar::F64);
            if t.lanes == 1 && known { Ok(()) } else { Err(format!("{t} cannot be exchanged")) }
        }
        Stmt::Comment(_) | Stmt::Barrier(_) | Stmt::AsyncCommit | Stmt::AsyncWait(_) | Stmt::SchedHint { .. } | Stmt::Return => {
            Ok(())
        }
    }
}

/// Roles must name every thread of the work-group once.
fn cover(k: &Kernel, roles: &[Role]) -> Result<(), String> {
    let mut ranges: Vec<(u64, u64)> = roles.iter().map(|r| (r.first_thread as u64, r.threads as u64)).collect();
    ranges.sort_unstable();
    let end = ranges.iter().try_fold(0, |at, &(first, n)| (first == at && n > 0).then_some(first + n));
    match end {
        Some(end) if end == k.threads as u64 => Ok(()),
        _ => Err(format!("the roles do not name each of {} threads once", k.threads)),
    }
}
