//! Rules of expressions and declarations, which hold wherever they are used: types, handles, sizes.

use crate::*;

/// Expressions print as trees; one that repeats shared parts beyond this many nodes must be bound in pieces.
const MAX_TREE: u32 = 1 << 16;
/// Deepest nesting of an expression. A deeper one would exhaust the stack of recursive walks.
const MAX_DEPTH: u32 = 1 << 10;

/// Checks arguments, names, register and shared arrays and cursors.
pub(super) fn declarations(kernel: &Kernel) -> Result<(), String> {
    let maps = kernel.args.iter().filter(|a| matches!(a.kind, ArgKind::TensorMap(_))).count();
    for (count, most, what) in [(kernel.args.len(), MAX_ARGS, "arguments"), (maps, MAX_MAPS, "tensor maps")] {
        if count > most {
            return Err(format!("{count} {what}, and a launch has at most {most}"));
        }
    }
    for a in &kernel.args {
        let scalar = match &a.kind {
            ArgKind::Buffer { scalar, .. } | ArgKind::Scalar(scalar) => *scalar,
            ArgKind::TensorMap(map) => {
                super::flow::matrix::tensor_map(&a.name, map)?;
                map.scalar
            }
        };
        if scalar == Scalar::Bool {
            return Err(format!("argument `{}` is bool, which has no layout in memory: pass an i32", a.name));
        }
    }
    for v in &kernel.vars {
        legal(v.ty).map_err(|e| format!("`{}`: {e}", v.name))?;
    }
    for r in &kernel.regs {
        legal(r.ty).map_err(|e| format!("register array `{}`: {e}", r.name))?;
        if r.len == 0 {
            return Err(format!("register array `{}` is empty", r.name));
        }
    }
    for s in &kernel.shared {
        let end = u64::from(s.byte_offset) + u64::from(s.len) * u64::from(s.scalar.bytes());
        if s.scalar == Scalar::Bool || s.len == 0 || end > u64::from(u32::MAX) || s.byte_offset % s.scalar.bytes() != 0 {
            return Err(format!(
                "shared array `{}`: {} elements of {} at byte {} are not a non-empty, aligned array of a memory type",
                s.name, s.len, s.scalar, s.byte_offset
            ));
        }
    }
    for t in &kernel.tx_barriers {
        super::flow::matrix::tx_barriers(kernel, t)?;
    }
    for c in &kernel.cursors {
        if !matches!(kernel.args.get(c.buffer.index()).map(|a| &a.kind), Some(ArgKind::Buffer { .. })) {
            return Err(format!("cursor `{}` points into argument {}, which is no buffer", c.name, c.buffer.0));
        }
    }
    Ok(())
}

fn legal(ty: Type) -> Result<(), String> {
    match ty.lanes {
        1 => Ok(()),
        2 | 4 | 8 | 16 if ty.scalar != Scalar::Bool => Ok(()),
        _ => Err(format!("{ty} is no legal type: vectors have 2, 4, 8 or 16 lanes, and bool has no vectors")),
    }
}

/// Checks every node of the arena against its operands. The answer for a node stands at its index; operands stand before
/// the nodes that use them, so the arena holds no cycle.
pub(super) fn expressions(kernel: &Kernel) -> Vec<Result<(), String>> {
    let mut sizes: Vec<(u32, u32)> = Vec::with_capacity(kernel.exprs.len());
    let mut answers = Vec::with_capacity(kernel.exprs.len());
    for (i, (expr, ty)) in kernel.exprs.iter().enumerate() {
        let (mut size, mut depth, mut in_order) = (1u32, 1u32, true);
        operands(expr, &mut |e| match sizes.get(e.index()) {
            Some(&(s, d)) => {
                size = size.saturating_add(s);
                depth = depth.max(d + 1);
            }
            None => in_order = false,
        });
        sizes.push((size, depth));
        answers.push(if !in_order {
            Err(format!("expression {i} uses a later expression"))
        } else if size > MAX_TREE || depth > MAX_DEPTH {
            Err(format!("expression {i} has {size} nodes in {depth} levels when written out: bind its parts to names"))
        } else {
            node(kernel, expr, *ty).map_err(|e| format!("expression {i}: {e}"))
        });
    }
    answers
}

/// Calls back with each operand of a node.
pub(crate) fn operands(expr: &Expr, f: &mut dyn FnMut(ExprId)) {
    match expr {
        Expr::Int(_) | Expr::Float(_) | Expr::Arg(_) | Expr::Var(_) | Expr::Builtin(_) => {}
        Expr::Reg(_, a) | Expr::Unary(_, a) | Expr::Cast(a) | Expr::Extract(a, _) | Expr::Splat(a) | Expr::Words(a) => f(*a),
        Expr::Binary(_, a, b) => [a, b].into_iter().for_each(|e| f(*e)),
        Expr::Fma(a, b, c) | Expr::Select(a, b, c) => [a, b, c].into_iter().for_each(|e| f(*e)),
        Expr::Vector(parts) => parts.iter().for_each(|e| f(*e)),
    }
}

/// Checks one node whose operands are in range.
fn node(kernel: &Kernel, expr: &Expr, ty: Type) -> Result<(), String> {
    legal(ty)?;
    let scalar = ty.scalar;
    let of = |e: &ExprId| kernel.ty(*e);
    let is = |given: Type, what: &str| same(given, ty, what);
    match expr {
        Expr::Int(v) => integer(*v, ty),
        Expr::Float(v) => {
            if ty.lanes == 1 && scalar.is_float() {
                Ok(())
            } else {
                Err(format!("the float {v} is no {ty}"))
            }
        }
        Expr::Arg(a) => match kernel.args.get(a.index()) {
            Some(Arg { kind: ArgKind::Scalar(s), name, .. }) => is(s.ty(), name),
            Some(Arg { name, .. }) => Err(format!("the buffer `{name}` is used as a scalar argument")),
            None => Err(format!("there is no argument {}", a.0)),
        },
        Expr::Var(v) => match kernel.vars.get(v.index()) {
            Some(var) => is(var.ty, &var.name),
            None => Err(format!("there is no name {}", v.0)),
        },
        Expr::Reg(r, i) => match kernel.regs.get(r.index()) {
            Some(reg) => is(reg.ty, &reg.name).and(index(of(i))).and(within(kernel, *r, *i)),
            None => Err(format!("there is no register array {}", r.0)),
        },
        Expr::Builtin(Builtin::GroupId(d)) if *d > 2 => Err(format!("the grid has no dimension {d}")),
        Expr::Builtin(_) => is(Scalar::I32.ty(), "a position"),
        Expr::Unary(op, a) => {
            let allowed = match op {
                UnaryOp::Neg => scalar.is_arithmetic(),
                UnaryOp::Not => scalar == Scalar::Bool,
                UnaryOp::RoundTf32 | UnaryOp::NearTf32 => scalar == Scalar::F32,
                _ => matches!(scalar, Scalar::F32 | Scalar::F64),
            };
            if allowed { is(of(a), "the operand") } else { Err(format!("{op:?} is not defined on {scalar}{}", storage(scalar))) }
        }
        Expr::Binary(op, a, b) => binary(*op, of(a), of(b), ty),
        Expr::Fma(a, b, c) => {
            factors(of(a), of(b), ty)?;
            is(of(c), "the addend")
        }
        Expr::Select(c, a, b) => {
            condition(of(c))?;
            is(of(a), "the first choice")?;
            is(of(b), "the second choice")
        }
        Expr::Cast(a) => cast(of(a), ty),
        Expr::Extract(a, lane) => {
            let from = of(a);
            if from.lanes > 1 && *lane < from.lanes {
                is(from.scalar.ty(), "the lane")
            } else {
                Err(format!("{from} has no lane {lane} to extract"))
            }
        }
        Expr::Vector(parts) => {
            if parts.len() != usize::from(ty.lanes) || ty.lanes == 1 {
                return Err(format!("{} parts make no {ty}", parts.len()));
            }
            match parts.iter().map(of).find(|p| *p != scalar.ty()) {
                Some(part) => Err(format!("a part is {part}, the vector {ty}")),
                None => Ok(()),
            }
        }
        Expr::Words(a) => {
            let from = of(a);
            let pairs = matches!(from.scalar, Scalar::F16 | Scalar::BF16) && from.lanes == 2 * ty.lanes;
            if pairs && scalar == Scalar::U32 { Ok(()) } else { Err(format!("the bits of {from} are no {ty}")) }
        }
        Expr::Splat(a) => {
            if of(a) == scalar.ty() {
                Ok(())
            } else {
                Err(format!("{} cannot be spread over {ty}", of(a)))
            }
        }
    }
}

/// Checks that a part of an expression has the expression's type.
fn same(given: Type, ty: Type, part: &str) -> Result<(), String> {
    if given == ty { Ok(()) } else { Err(format!("{part} is {given}, the expression {ty}")) }
}

/// Checks that an integer is a value of its type.
fn integer(v: i64, ty: Type) -> Result<(), String> {
    let fits = match ty.scalar {
        Scalar::Bool => (0..=1).contains(&v),
        Scalar::I32 => i32::try_from(v).is_ok(),
        Scalar::U32 => u32::try_from(v).is_ok(),
        Scalar::I64 => true,
        _ => false,
    };
    if ty.lanes == 1 && fits { Ok(()) } else { Err(format!("the integer {v} is no {ty}")) }
}

/// Checks the factors of a multiply-add.
fn factors(a: Type, b: Type, ty: Type) -> Result<(), String> {
    if a.scalar.is_int8() {
        return four_products(a, b, ty);
    }
    if !ty.scalar.is_arithmetic() {
        return Err(format!("Fma is not defined on {}{}", ty.scalar, storage(ty.scalar)));
    }
    same(a, ty, "the first factor")?;
    same(b, ty, "the second factor")
}

fn storage(scalar: Scalar) -> &'static str {
    match scalar {
        s if s.is_storage() => ", a storage type: cast to f32 first",
        s if s.is_int8() => ", a storage type: cast to i32 first",
        s if s.is_int4() => ", a storage type: cast to a float first",
        _ => "",
    }
}

/// Checks the factors of a sum of products of bytes.
fn four_products(a: Type, b: Type, ty: Type) -> Result<(), String> {
    if a == b && a.lanes == 4 && ty == Scalar::I32.ty() {
        return Ok(());
    }
    Err(format!("a dot product of {a} and {b} cannot give {ty}: it takes four integers of 8 bits and gives i32"))
}

fn binary(op: BinaryOp, a: Type, b: Type, ty: Type) -> Result<(), String> {
    use BinaryOp::*;
    if a != b {
        return Err(format!("the operands of {op:?} are {a} and {b}: cast one"));
    }
    let s = a.scalar;
    let allowed = match op {
        Add | Sub | Mul | Div | Min | Max => s.is_arithmetic(),
        Minimum | Maximum => matches!(s, Scalar::F32 | Scalar::F64),
        Rem | Xor | Shl | Shr => s.is_int(),
        And | Or => s.is_int() || s == Scalar::Bool,
        Lt | Le => s.is_arithmetic(),
        Eq | Ne => s.is_arithmetic() || s == Scalar::Bool,
    };
    let result = if op.is_comparison() { Scalar::Bool.ty() } else { a };
    if !allowed {
        Err(format!("{op:?} is not defined on {s}{}", storage(s)))
    } else if ty != result {
        Err(format!("{op:?} of {a} gives {result}, not {ty}"))
    } else {
        Ok(())
    }
}

fn cast(from: Type, to: Type) -> Result<(), String> {
    let (f, t) = (from.scalar, to.scalar);
    if u32::from(from.lanes) * f.numbers() != u32::from(to.lanes) * t.numbers() {
        return Err(format!("a cast cannot turn {from} into {to}"));
    }
    // Through F32 in sight: a direct cast would hide a second rounding.
    // What a float holds exactly is not rounded at all.
    if f.is_weight() && matches!(t, Scalar::F16 | Scalar::BF16) {
        return Ok(());
    }
    if f != t && (t.is_int4() || f.is_int4() && t != Scalar::F32) {
        return Err(format!("{from} is cast to {to}: integers of 4 bits are cast to f16, bf16 and f32 only"));
    }
    if f != t && ((f.is_storage() && t != Scalar::F32) || (t.is_storage() && f != Scalar::F32)) {
        return Err(format!("{from} is cast to {to}: floats of 16 bits and less are cast from and to f32 only"));
    }
    if f != t && t.is_int8() && f != Scalar::I32 {
        return Err(format!("{from} is cast to {to}: integers of 8 bits are cast from i32 only, and keep its low bits"));
    }
    Ok(())
}

/// What a branch, guard or selection asks.
pub(super) fn condition(ty: Type) -> Result<(), String> {
    if ty == Scalar::Bool.ty() { Ok(()) } else { Err(format!("a condition is a bool, not {ty}")) }
}

/// What counts elements.
pub(super) fn index(ty: Type) -> Result<(), String> {
    if ty.lanes == 1 && ty.scalar.is_int() { Ok(()) } else { Err(format!("an index is one integer, not {ty}")) }
}

/// A literal register index must lie in its array.
pub(super) fn within(kernel: &Kernel, r: RegId, i: ExprId) -> Result<(), String> {
    match (kernel.regs.get(r.index()), kernel.as_int(i)) {
        (Some(reg), Some(v)) if v < 0 || v >= i64::from(reg.len) => {
            Err(format!("`{}` has {} elements, none at {v}", reg.name, reg.len))
        }
        _ => Ok(()),
    }
}
