//! Spells expressions: minimal parentheses, exact literals, and helper functions where a dialect's vectors need them.

use super::Printer;
use super::dialect::{Text, prec};
use crate::{Base, BinaryOp, Expr, ExprId, F8E4M3Fnuz, F8E5M2Fnuz, MemRef, Scalar, Type, UnaryOp, VarId};
use float8::{F8E4M3, F8E5M2};

/// An operation that goes lane by lane.
#[derive(Clone, Copy)]
enum Op {
    Unary(UnaryOp),
    Binary(BinaryOp),
    Fma,
    Cast,
}

/// A constant of an instruction: a number, and multiples of counters of [`Unroll::Repeat`](crate::Unroll::Repeat).
#[derive(Default)]
pub(super) struct Offset {
    pub constant: i64,
    pub steps: Vec<(VarId, i64)>,
}

impl Offset {
    fn plus(mut self, other: Offset) -> Option<Offset> {
        self.constant = self.constant.checked_add(other.constant)?;
        self.steps.extend(other.steps);
        Some(self)
    }

    fn times(self, by: i64) -> Option<Offset> {
        let steps = self.steps.into_iter().map(|(v, n)| Some((v, n.checked_mul(by)?))).collect::<Option<_>>()?;
        Some(Offset { constant: self.constant.checked_mul(by)?, steps })
    }
}

impl Printer<'_> {
    /// The expression as text.
    pub(super) fn expr(&mut self, e: ExprId) -> Text {
        let kernel = self.kernel;
        let ty = kernel.ty(e);
        match kernel.expr(e) {
            Expr::Int(v) => self.int_literal(*v, ty.scalar),
            Expr::Float(v) => self.float_literal(*v, ty.scalar),
            Expr::Arg(a) => Text::atom(&self.args[a.index()]),
            Expr::Var(v) => Text::atom(&self.vars[v.index()]),
            Expr::Reg(r, i) => {
                let i = self.expr(*i).text;
                Text::atom(format!("{}[{i}]", self.regs[r.index()]))
            }
            Expr::Builtin(b) => self.dialect.builtin(*b),
            Expr::Unary(op, a) => self.operation(Op::Unary(*op), ty, &[*a]),
            Expr::Binary(op, a, b) => self.operation(Op::Binary(*op), ty, &[*a, *b]),
            Expr::Fma(a, b, c) => self.operation(Op::Fma, ty, &[*a, *b, *c]),
            Expr::Cast(a) => self.operation(Op::Cast, ty, &[*a]),
            Expr::Select(c, a, b) => {
                let (c, a, b) = (self.expr(*c), self.expr(*a), self.expr(*b));
                let text = format!("{} ? {} : {}", c.at(prec::EQUALITY), a.at(prec::LOGIC_OR), b.at(prec::LOGIC_OR));
                Text::new(text, prec::CONDITIONAL)
            }
            Expr::Extract(a, lane) => {
                let a = self.expr(*a).at(prec::POSTFIX);
                Text::atom(self.dialect.lane(&a, *lane))
            }
            Expr::Vector(parts) => {
                let parts: Vec<String> = parts.iter().map(|&p| self.expr(p).text).collect();
                let name = self.type_name(ty);
                self.dialect.vector_of(&name, ty.lanes, &parts)
            }
            Expr::Splat(a) => {
                let a = self.expr(*a);
                self.splat(ty, &a)
            }
            Expr::Words(a) => self.words(*a, ty),
        }
    }

    /// An index as its varying part, if it has one, and an offset that is a constant of the instruction.
    pub(super) fn split_constant(&mut self, e: ExprId) -> (Option<Text>, Offset) {
        let kernel = self.kernel;
        let ty = kernel.ty(e);
        let sum = |a: Option<Text>, b: Option<Text>| match (a, b) {
            (Some(a), Some(b)) => Some(infix(BinaryOp::Add, &a, &b)),
            (a, b) => a.or(b),
        };
        let found = match (kernel.expr(e), ty.scalar) {
            (Expr::Int(v), _) => (None, Some(Offset { constant: *v, steps: Vec::new() })),
            (Expr::Var(v), _) if self.counters.contains_key(v) => (None, Some(Offset { constant: 0, steps: vec![(*v, 1)] })),
            (Expr::Cast(a), Scalar::I64) if kernel.ty(*a).scalar == Scalar::I32 => {
                let (a, offset) = self.split_constant(*a);
                (a.map(|a| self.cast(Scalar::I32.ty(), ty, &a)), Some(offset))
            }
            (Expr::Binary(BinaryOp::Add, a, b), Scalar::I32 | Scalar::I64) => {
                let ((a, x), (b, y)) = (self.split_constant(*a), self.split_constant(*b));
                (sum(a, b), x.plus(y))
            }
            (Expr::Binary(BinaryOp::Mul, a, b), Scalar::I32 | Scalar::I64) if kernel.as_int(*b).is_some() => {
                let ((a, x), times) = (self.split_constant(*a), kernel.as_int(*b).unwrap_or(1));
                let literal = self.int_literal(times, ty.scalar);
                (a.map(|a| infix(BinaryOp::Mul, &a, &literal)), x.times(times))
            }
            _ => (None, None),
        };
        // The varying part must stay within its type where the whole index does.
        match found {
            (varying, Some(offset)) if offset.constant >= 0 && offset.steps.iter().all(|(_, by)| *by >= 0) => (varying, offset),
            _ => (Some(self.expr(e)), Offset::default()),
        }
    }

    /// The largest value of an offset, and its text in bytes for elements of this many.
    pub(super) fn offset(&self, offset: &Offset, element: i64) -> (Option<i64>, String) {
        let reach = |(v, by): &(VarId, i64)| by.checked_mul(self.counters.get(v).copied().unwrap_or(1) - 1);
        let most = offset.steps.iter().map(reach).try_fold(offset.constant, |most, step| most.checked_add(step?));
        let bytes = |n: i64| n.saturating_mul(element);
        let steps = offset.steps.iter().map(|(v, by)| format!("{} * {}", self.vars[v.index()], bytes(*by)));
        let constant = (offset.constant != 0 || offset.steps.is_empty()).then(|| bytes(offset.constant).to_string());
        (most, steps.chain(constant).collect::<Vec<_>>().join(" + "))
    }

    /// Zero of a type: what a guarded load gives where it does not load.
    pub(super) fn zero(&mut self, ty: Type) -> Text {
        let zero = if ty.scalar.is_float() { self.float_literal(0.0, ty.scalar) } else { self.int_literal(0, ty.scalar) };
        self.splat(ty, &zero)
    }

    /// Whether zeros in the place of a vector that is not loaded are chosen in whole words: where vectors are structs of their elements.
    pub(super) fn by_words(&self, ty: Type) -> bool {
        self.kernel.zero_words && !self.dialect.vector_operators() && ty.scalar.bytes() == 2 && ty.lanes > 1
    }

    /// Such a vector, or zeros where the guard does not hold.
    pub(super) fn given(&mut self, guard: ExprId, mem: &MemRef, ty: Type) -> String {
        let words = Scalar::U32.vector(ty.lanes / 2);
        let (inline, name, word, zero) =
            (self.dialect.inline(), self.type_name(ty), self.type_name(words), self.zero(words).text);
        let helper = format!("tw_given_{name}");
        self.prelude.function(&helper, |_| {
            format!(
                "{inline} {name} {helper}(bool given, const void* from) {{ union {{ {word} words; {name} elements; }} v; \
                 v.words = given ? *(const {word}*)from : {zero}; return v.elements; }}"
            )
        });
        let (guard, from) = (self.expr(guard).text, self.address(mem).0);
        format!("{helper}({guard}, {from})")
    }

    /// Whether bytes are read in whole words, so that compilers do not take words apart which become pairs of floats. This holds
    /// for shared memory, where vectors are structs of their elements.
    pub(super) fn bytes_by_words(&self, mem: &MemRef, ty: Type) -> bool {
        let shared = matches!(mem.base, Base::Shared(_)) && !self.dialect.vector_operators();
        let bytes = shared && ty.scalar.is_weight() && ty.lanes.is_multiple_of(4);
        bytes && self.kernel.exprs.iter().any(|(expr, _)| matches!(expr, Expr::Words(_)))
    }

    /// Such a vector.
    pub(super) fn words_of(&mut self, mem: &MemRef, ty: Type) -> String {
        let words = Scalar::U32.vector(ty.lanes / 4);
        let (inline, name, word) = (self.dialect.inline(), self.type_name(ty), self.type_name(words));
        let helper = format!("tw_read_{name}");
        self.prelude.function(&helper, |_| {
            format!(
                "{inline} {name} {helper}(const void* from) {{ union {{ {word} words; {name} elements; }} v; v.words = *(const {word}*)from; return v.elements; }}"
            )
        });
        let from = self.address(mem).0;
        format!("{helper}({from})")
    }

    /// The spelling of a type, defining it if it needs a definition.
    pub(super) fn type_name(&mut self, ty: Type) -> String {
        if ty.lanes == 1 { self.dialect.scalar(ty.scalar).into() } else { self.dialect.vector(ty, &mut self.prelude) }
    }

    /// The bits of a vector of halves as words.
    fn words(&mut self, a: ExprId, ty: Type) -> Text {
        let from = self.kernel.ty(a);
        let (inline, halves, words) = (self.dialect.inline(), self.type_name(from), self.type_name(ty));
        let helper = format!("tw_words_{from}");
        self.prelude.function(&helper, |_| {
            format!(
                "{inline} {words} {helper}({halves} a) {{ union {{ {halves} elements; {words} words; }} v; v.elements = a; return v.words; }}"
            )
        });
        Text::atom(format!("{helper}({})", self.expr(a).text))
    }

    fn splat(&mut self, ty: Type, value: &Text) -> Text {
        if ty.lanes == 1 {
            return value.clone();
        }
        let name = self.type_name(ty);
        if value.prec == prec::POSTFIX || self.dialect.vector_operators() {
            return self.dialect.vector_of(&name, ty.lanes, std::slice::from_ref(&value.text));
        }
        // Written out, the operand would stand (and perhaps be computed) once per lane.
        let (inline, scalar) = (self.dialect.inline(), self.dialect.scalar(ty.scalar));
        let body = self.dialect.vector_of(&name, ty.lanes, &["a".into()]).text;
        let helper = format!("tw_splat_{name}");
        self.prelude.function(&helper, |_| format!("{inline} {name} {helper}({scalar} a) {{ return {body}; }}"));
        Text::atom(format!("{helper}({})", value.text))
    }

    /// An operation on expressions: spelled directly on scalars and where the dialect's vectors know it, else through a
    /// helper function that goes lane by lane.
    fn operation(&mut self, op: Op, to: Type, args: &[ExprId]) -> Text {
        let from = args.first().map_or(to, |&a| self.kernel.ty(a));
        let texts: Vec<Text> = args.iter().map(|&a| self.expr(a)).collect();
        if matches!(op, Op::Fma) && from.scalar.is_int8() {
            let (name, word) = (self.type_name(from), self.type_name(to));
            let list: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
            let dot = self.dialect.dot(from.scalar, [&name, &word], &mut self.prelude);
            return Text::atom(format!("{dot}({})", list.join(", ")));
        }
        if to.lanes == 1 || self.is_native(op, from.scalar, to.scalar) {
            return self.spell(op, from, to, &texts);
        }
        if matches!(op, Op::Cast) && from.scalar.is_weight() {
            let spelled = [self.type_name(from), self.type_name(to)];
            if let Some(name) = self.dialect.floats_of_bytes(from, to, &spelled, self.target, &mut self.prelude) {
                return Text::atom(format!("{name}({})", texts[0].text));
            }
        }
        let (inline, result, param) = (self.dialect.inline(), self.type_name(to), self.type_name(from));
        let letters = &["a", "b", "c"][..args.len().min(3)];
        let lanes: Vec<String> = (0..to.lanes)
            .map(|i| {
                let lane: Vec<Text> = letters.iter().map(|l| self.number(l, from, i)).collect();
                self.spell(op, from.scalar.ty(), to.scalar.ty(), &lane).text
            })
            .collect();
        let body = self.dialect.vector_of(&result, to.lanes, &lanes).text;
        let helper = match op {
            Op::Unary(op) => format!("tw_{}_{result}", unary_word(op)),
            Op::Binary(op) => format!("tw_{}_{result}", binary_word(op)),
            Op::Fma => format!("tw_fma_{result}"),
            Op::Cast => format!("tw_{from}_to_{to}"),
        };
        let params: Vec<String> = letters.iter().map(|l| format!("{param} {l}")).collect();
        let params = params.join(", ");
        self.prelude.function(&helper, |_| format!("{inline} {result} {helper}({params}) {{ return {body}; }}"));
        let list: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
        Text::atom(format!("{helper}({})", list.join(", ")))
    }

    /// Number `i` of a vector, of which two of 4 bits are an element.
    fn number(&self, vector: &str, from: Type, i: u8) -> Text {
        // Of a single element, whose two numbers make a vector, there are no lanes.
        let lane = if from.lanes == 1 { vector.to_string() } else { self.dialect.lane(vector, i / from.scalar.numbers() as u8) };
        match (from.scalar, i % 2) {
            (Scalar::I4, half) => Text::atom(format!("({lane} << {} >> 28)", 28 - 4 * half)),
            (Scalar::U4, 0) => Text::atom(format!("({lane} & 15)")),
            (Scalar::U4, _) => Text::atom(format!("({lane} >> 4)")),
            _ => Text::atom(lane),
        }
    }

    fn is_native(&self, op: Op, from: Scalar, to: Scalar) -> bool {
        match op {
            Op::Unary(UnaryOp::Neg | UnaryOp::Not) => self.dialect.vector_operators(),
            Op::Binary(BinaryOp::Min | BinaryOp::Max) | Op::Unary(_) => self.dialect.vector_functions(),
            Op::Fma if to.is_int() => self.dialect.vector_operators(),
            Op::Fma => self.dialect.vector_functions(),
            Op::Binary(BinaryOp::Minimum | BinaryOp::Maximum) => false,
            Op::Binary(_) => self.dialect.vector_operators(),
            Op::Cast => from.is_arithmetic() && to.is_arithmetic() && self.dialect.convert_vector("", "").is_some(),
        }
    }

    /// An operation on operands the dialect can handle as they are.
    fn spell(&mut self, op: Op, from: Type, to: Type, args: &[Text]) -> Text {
        let scalar = from.scalar;
        let call = |name: String| {
            let list: Vec<&str> = args.iter().map(|t| t.text.as_str()).collect();
            Text::atom(format!("{name}({})", list.join(", ")))
        };
        match (op, args) {
            (Op::Unary(UnaryOp::Neg), [a]) => {
                let a = a.at(prec::UNARY);
                // "- -x" must not become "--x".
                Text::new(if a.starts_with('-') { format!("-({a})") } else { format!("-{a}") }, prec::UNARY)
            }
            (Op::Unary(UnaryOp::Not), [a]) => Text::new(format!("!{}", a.at(prec::UNARY)), prec::UNARY),
            (Op::Unary(op), _) => call(self.dialect.unary(op, scalar, &mut self.prelude)),
            (Op::Binary(op @ (BinaryOp::Min | BinaryOp::Max)), _) => call(self.dialect.min_max(op, scalar, &mut self.prelude)),
            (Op::Binary(op @ (BinaryOp::Minimum | BinaryOp::Maximum)), _) => {
                call(self.dialect.with_nan(op, scalar, self.target, &mut self.prelude))
            }
            (Op::Binary(op), [a, b]) => infix(op, a, b),
            (Op::Fma, [a, b, c]) if scalar.is_int() => {
                let text = format!("{} * {} + {}", a.at(prec::PRODUCT), b.at(prec::UNARY), c.at(prec::PRODUCT));
                Text::new(text, prec::SUM)
            }
            (Op::Fma, _) => call(self.dialect.fma(scalar, &mut self.prelude)),
            (Op::Cast, [a]) => self.cast(from, to, a),
            // The arms above cover each operation with its number of operands.
            _ => call(String::new()),
        }
    }

    fn cast(&mut self, from: Type, to: Type, a: &Text) -> Text {
        let name = match (from.scalar, to.scalar) {
            (f, t) if f == t => return a.clone(),
            (f, _) if f.is_storage() => self.dialect.widen(f, self.target, &mut self.prelude),
            (_, t) if t.is_storage() => self.dialect.narrow(t, self.target, &mut self.prelude),
            (f, Scalar::Bool) => {
                let zero = if f.is_float() { self.float_literal(0.0, f) } else { self.int_literal(0, f) };
                return Text::new(format!("{} != {}", a.at(prec::RELATION), zero.text), prec::EQUALITY);
            }
            _ => {
                let name = self.type_name(to);
                return match self.dialect.convert_vector(&name, &a.text) {
                    Some(text) if to.lanes > 1 => Text::atom(text),
                    _ => Text::new(format!("({name}){}", a.at(prec::UNARY)), prec::UNARY),
                };
            }
        };
        Text::atom(format!("{name}({})", a.text))
    }

    pub(super) fn int_literal(&self, v: i64, scalar: Scalar) -> Text {
        let text = match scalar {
            Scalar::Bool => return Text::atom(if v != 0 { "true" } else { "false" }),
            Scalar::U32 => format!("{}u", v as u32),
            // The most negative values have no literal: "-2147483648" negates a number that does not fit.
            Scalar::I64 if v == i64::MIN => {
                return Text::new(format!("-{}{1} - 1{1}", i64::MAX, self.dialect.long_suffix()), prec::SUM);
            }
            Scalar::I64 => format!("{v}{}", self.dialect.long_suffix()),
            _ if v as i32 == i32::MIN => return Text::new(format!("-{} - 1", i32::MAX), prec::SUM),
            _ => format!("{}", v as i32),
        };
        signed(text)
    }

    /// Shortest digits that give back exactly the value; infinities and NaN by name.
    pub(super) fn float_literal(&self, v: f64, scalar: Scalar) -> Text {
        let hex = |b: u16, digits: usize| Text::new(format!("({})0x{b:0digits$x}", self.dialect.scalar(scalar)), prec::UNARY);
        let bits = |b: u16| hex(b, 4);
        let (text, v) = match scalar {
            Scalar::F16 => return bits(half::f16::from_f64(v).to_bits()),
            Scalar::BF16 => return bits(half::bf16::from_f64(v).to_bits()),
            Scalar::E4M3 => return hex(F8E4M3::from_f64(v).to_bits().into(), 2),
            Scalar::E5M2 => return hex(F8E5M2::from_f64(v).to_bits().into(), 2),
            Scalar::E4M3Fnuz => return hex(F8E4M3Fnuz::from_f64(v).to_bits().into(), 2),
            Scalar::E5M2Fnuz => return hex(F8E5M2Fnuz::from_f64(v).to_bits().into(), 2),
            Scalar::F64 => (format!("{v:?}"), v),
            _ => (format!("{:?}f", v as f32), (v as f32) as f64),
        };
        if v.is_finite() {
            return signed(text);
        }
        let special = self.dialect.special(scalar, v.is_nan());
        signed(if v == f64::NEG_INFINITY { format!("-{special}") } else { special })
    }
}

fn signed(text: String) -> Text {
    let prec = if text.starts_with('-') { prec::UNARY } else { prec::POSTFIX };
    Text::new(text, prec)
}

fn infix(op: BinaryOp, a: &Text, b: &Text) -> Text {
    use BinaryOp::*;
    let (symbol, level) = match op {
        Mul => ("*", prec::PRODUCT),
        Div => ("/", prec::PRODUCT),
        Rem => ("%", prec::PRODUCT),
        Add => ("+", prec::SUM),
        Sub => ("-", prec::SUM),
        Shl => ("<<", prec::SHIFT),
        Shr => (">>", prec::SHIFT),
        Lt => ("<", prec::RELATION),
        Le => ("<=", prec::RELATION),
        Eq => ("==", prec::EQUALITY),
        Ne => ("!=", prec::EQUALITY),
        // On `Bool` too: `&&` and `||` would ask for a branch around the right operand, which compilers take literally
        // around guarded loads.
        And => ("&", prec::BIT_AND),
        Xor => ("^", prec::BIT_XOR),
        Or => ("|", prec::BIT_OR),
        // Functions, not operators: `spell` sends them elsewhere.
        Min | Max | Minimum | Maximum => ("<", prec::RELATION),
    };
    // Floating-point sums and overflowing integers depend on grouping, so the right operand always binds tighter. Bit
    // operators and shifts get parentheses where C's rules are right but no reader trusts them.
    let (left, right) = match level {
        prec::SHIFT | prec::BIT_AND | prec::BIT_XOR | prec::BIT_OR => {
            (if a.prec == level { level } else { prec::UNARY }, prec::UNARY)
        }
        prec::EQUALITY | prec::RELATION => (prec::SHIFT, prec::SHIFT),
        level => (level, level + 1),
    };
    Text::new(format!("{} {symbol} {}", a.at(left), b.at(right)), level)
}

fn unary_word(op: UnaryOp) -> &'static str {
    match op {
        UnaryOp::Neg => "neg",
        UnaryOp::Not => "not",
        UnaryOp::Exp => "exp",
        UnaryOp::Exp2 => "exp2",
        UnaryOp::Log2 => "log2",
        UnaryOp::Tanh => "tanh",
        UnaryOp::Erf => "erf",
        UnaryOp::Sqrt => "sqrt",
        UnaryOp::Abs => "abs",
        UnaryOp::Sigmoid => "sigmoid",
        UnaryOp::RoundTf32 => "tf32",
        UnaryOp::NearTf32 => "near_tf32",
    }
}

fn binary_word(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Add => "add",
        BinaryOp::Sub => "sub",
        BinaryOp::Mul => "mul",
        BinaryOp::Div => "div",
        BinaryOp::Rem => "rem",
        BinaryOp::Min => "min",
        BinaryOp::Max => "max",
        BinaryOp::Minimum => "minimum",
        BinaryOp::Maximum => "maximum",
        BinaryOp::And => "and",
        BinaryOp::Or => "or",
        BinaryOp::Xor => "xor",
        BinaryOp::Shl => "shl",
        BinaryOp::Shr => "shr",
        BinaryOp::Lt => "lt",
        BinaryOp::Le => "le",
        BinaryOp::Eq => "eq",
        BinaryOp::Ne => "ne",
    }
}
