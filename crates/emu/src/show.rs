//! Prints statements and expressions in one line, to name them in errors.

use tilewright_ir::{Base, BinaryOp, Builtin, Expr, ExprId, Kernel, MemRef, Place, ShuffleKind, Stmt, UnaryOp};

/// Expressions deeper than this print as `..`.
const DEPTH: u32 = 5;

/// The head of a statement in one line.
pub(crate) fn statement(k: &Kernel, s: &Stmt) -> String {
    let e = |id: &ExprId| expr(k, *id, 0);
    let guard = |g: &Option<ExprId>| g.map_or(String::new(), |g| format!(" if {}", expr(k, g, 0)));
    match s {
        Stmt::Comment(_) => "comment".into(),
        Stmt::Let(v, x) | Stmt::Declare(v, x) => format!("{} = {}", var(k, v.index()), e(x)),
        Stmt::Assign(p, x) => format!("{} = {}", place(k, *p), e(x)),
        Stmt::Load { place: p, mem: m, guard: g } => format!("{} = {}{}", place(k, *p), mem(k, *m), guard(g)),
        Stmt::Store { mem: m, value, guard: g } => format!("{} = {}{}", mem(k, *m), e(value), guard(g)),
        Stmt::Atomic { op, mem: m, value, guard: g } => format!("atomic {op:?} {}, {}{}", mem(k, *m), e(value), guard(g)),
        Stmt::FetchAdd { place: p, mem: m, value } => format!("{} = fetch and add {}, {}", place(k, *p), mem(k, *m), e(value)),
        Stmt::Fence => "fence".into(),
        Stmt::PlaceCursor(c, x) => match k.cursors.get(c.index()) {
            Some(c) => format!("{} = {} + {}", c.name, arg(k, c.buffer.index()), e(x)),
            None => "cursor".into(),
        },
        Stmt::AdvanceCursor(c, x) => format!("{} += {}", cursor(k, c.index()), e(x)),
        Stmt::For { var: v, start, end, step, .. } => {
            format!("for {} in {}..{} step {step}", var(k, v.index()), e(start), e(end))
        }
        Stmt::If { cond, .. } => format!("if {}", e(cond)),
        Stmt::Roles(roles) => format!("roles {}", roles.iter().map(|r| r.name.as_str()).collect::<Vec<_>>().join(", ")),
        Stmt::Barrier(scope) => format!("barrier {scope:?}"),
        Stmt::AsyncCopy { dst, src, lanes, guard: g } => {
            format!("async copy of {lanes} from {} to {}{}", mem(k, *src), mem(k, *dst), guard(g))
        }
        Stmt::AsyncCommit => "async commit".into(),
        Stmt::AsyncWait(n) => format!("async wait {n}"),
        Stmt::Shuffle { place: p, value, kind } => {
            let kind = match kind {
                ShuffleKind::Xor(m) => format!("xor {m}"),
                ShuffleKind::Down(d) => format!("down {d}"),
                ShuffleKind::Broadcast(l) => format!("from {l}"),
            };
            format!("{} = shuffle {kind} of {}", place(k, *p), e(value))
        }
        Stmt::LoadPeer { place: p, mem: m, rank } => format!("{} = {} of peer {}", place(k, *p), mem(k, *m), e(rank)),
        Stmt::SchedHint { mask, size } => format!("hint {mask:#x} {size}"),
        Stmt::Matrix(op) => format!("matrix {op:?}"),
        Stmt::Bulk(op) => format!("bulk {op:?}"),
        Stmt::LaunchWait => "launch wait".into(),
        Stmt::Return => "return".into(),
    }
}

fn var(k: &Kernel, v: usize) -> &str {
    k.vars.get(v).map_or("?", |v| &v.name)
}
fn arg(k: &Kernel, a: usize) -> &str {
    k.args.get(a).map_or("?", |a| &a.name)
}
fn cursor(k: &Kernel, c: usize) -> &str {
    k.cursors.get(c).map_or("?", |c| &c.name)
}
fn reg(k: &Kernel, r: usize) -> &str {
    k.regs.get(r).map_or("?", |r| &r.name)
}

fn place(k: &Kernel, p: Place) -> String {
    match p {
        Place::New(v) | Place::Var(v) => var(k, v.index()).into(),
        Place::Reg(r, i) => format!("{}[{}]", reg(k, r.index()), expr(k, i, 0)),
    }
}

fn mem(k: &Kernel, m: MemRef) -> String {
    let base = match m.base {
        Base::Buffer(a) => arg(k, a.index()),
        Base::Cursor(c) => cursor(k, c.index()),
        Base::Shared(s) => k.shared.get(s.index()).map_or("?", |s| &s.name),
    };
    format!("{base}[{}]", expr(k, m.index, 0))
}

fn expr(k: &Kernel, id: ExprId, depth: u32) -> String {
    let Some((node, ty)) = k.exprs.get(id.index()) else { return "?".into() };
    if depth > DEPTH {
        return "..".into();
    }
    let e = |id: &ExprId| expr(k, *id, depth + 1);
    match node {
        Expr::Int(v) => v.to_string(),
        Expr::Float(v) => v.to_string(),
        Expr::Arg(a) => arg(k, a.index()).into(),
        Expr::Var(v) => var(k, v.index()).into(),
        Expr::Reg(r, i) => format!("{}[{}]", reg(k, r.index()), e(i)),
        Expr::Builtin(Builtin::LocalId) => "local_id".into(),
        Expr::Builtin(Builtin::GroupId(d)) => format!("group_id.{}", ["x", "y", "z"].get(*d as usize).unwrap_or(&"?")),
        Expr::Unary(UnaryOp::Neg, a) => format!("-{}", e(a)),
        Expr::Unary(UnaryOp::Not, a) => format!("!{}", e(a)),
        Expr::Unary(op, a) => format!("{op:?}({})", e(a)).to_lowercase(),
        Expr::Binary(op, a, b) => match symbol(*op) {
            Some(s) => format!("({} {s} {})", e(a), e(b)),
            None => format!("{}({}, {})", format!("{op:?}").to_lowercase(), e(a), e(b)),
        },
        Expr::Fma(a, b, c) => format!("fma({}, {}, {})", e(a), e(b), e(c)),
        Expr::Select(c, a, b) => format!("({} ? {} : {})", e(c), e(a), e(b)),
        Expr::Cast(a) => format!("{ty}({})", e(a)),
        Expr::Extract(a, lane) => format!("{}.{lane}", e(a)),
        Expr::Vector(parts) => format!("{ty}({})", parts.iter().map(e).collect::<Vec<_>>().join(", ")),
        Expr::Splat(a) => format!("{ty}({})", e(a)),
        Expr::Words(a) => format!("words({})", e(a)),
    }
}

fn symbol(op: BinaryOp) -> Option<&'static str> {
    Some(match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::Rem => "%",
        BinaryOp::And => "&",
        BinaryOp::Or => "|",
        BinaryOp::Xor => "^",
        BinaryOp::Shl => "<<",
        BinaryOp::Shr => ">>",
        BinaryOp::Lt => "<",
        BinaryOp::Le => "<=",
        BinaryOp::Eq => "==",
        BinaryOp::Ne => "!=",
        BinaryOp::Min | BinaryOp::Max | BinaryOp::Minimum | BinaryOp::Maximum => return None,
    })
}
