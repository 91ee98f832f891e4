//! What differs between the C-family dialects: one small table of hooks, and the definitions a kernel pulls in.

use crate::{AtomicOp, BarrierScope, BinaryOp, Builtin, Kernel, Scalar, ShuffleKind, Target, Type, UnaryOp};
use std::collections::BTreeMap;

/// Binding strength of C operators, higher binds tighter.
pub(super) mod prec {
    pub const CONDITIONAL: u8 = 3;
    pub const LOGIC_OR: u8 = 4;
    pub const BIT_OR: u8 = 6;
    pub const BIT_XOR: u8 = 7;
    pub const BIT_AND: u8 = 8;
    pub const EQUALITY: u8 = 9;
    pub const RELATION: u8 = 10;
    pub const SHIFT: u8 = 11;
    pub const SUM: u8 = 12;
    pub const PRODUCT: u8 = 13;
    pub const UNARY: u8 = 14;
    pub const POSTFIX: u8 = 15;
}

/// Printed expression with the binding strength of its outermost operator.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub text: String,
    pub prec: u8,
}

impl Text {
    pub fn new(text: impl Into<String>, prec: u8) -> Self {
        Text { text: text.into(), prec }
    }
    /// A name, literal, call or subscript.
    pub fn atom(text: impl Into<String>) -> Self {
        Text::new(text, prec::POSTFIX)
    }
    /// The text, in parentheses if it binds weaker than `least`.
    pub fn at(&self, least: u8) -> String {
        if self.prec < least { format!("({})", self.text) } else { self.text.clone() }
    }
}

/// Where a pointer points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Space {
    Global,
    Shared,
}

impl Space {
    /// Word used in the names of helpers that exist per space.
    pub const fn word(self) -> &'static str {
        match self {
            Space::Global => "global",
            Space::Shared => "shared",
        }
    }
}

/// Statements of a kernel that begins before the previous launch ends.
#[derive(Clone, Copy)]
pub(super) struct EarlyStart {
    /// Waits for the previous launch.
    pub wait: &'static str,
    /// Lets the next launch begin.
    pub let_begin: &'static str,
}

/// Text that declares the shared-memory arena.
#[derive(Default)]
pub(super) struct Arena {
    pub text: String,
    /// The launch gives its size, and the text does not.
    pub at_launch: bool,
}

impl Arena {
    /// One whose size is part of the text.
    pub fn sized(text: String) -> Arena {
        Arena { text, at_launch: false }
    }
}

/// Definitions that stand before the kernel: only what it uses, in order of first need.
#[derive(Default)]
pub(super) struct Prelude {
    /// Preprocessor lines, by name.
    pub lines: BTreeMap<String, String>,
    /// Vector types, by name.
    pub types: BTreeMap<String, String>,
    functions: Vec<(String, String)>,
}

impl Prelude {
    /// Makes sure a function is defined and gives its name back.
    pub fn function(&mut self, name: &str, text: impl FnOnce(&mut Prelude) -> String) -> String {
        if !self.functions.iter().any(|(n, _)| n == name) {
            let text = text(self);
            self.functions.push((name.into(), text));
        }
        name.into()
    }
    /// True if a definition has this name.
    pub fn defines(&self, name: &str) -> bool {
        self.lines.contains_key(name) || self.types.contains_key(name) || self.functions.iter().any(|(n, _)| n == name)
    }
    /// All definitions as source text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for group in [
            self.lines.values().collect::<Vec<_>>(),
            self.types.values().collect(),
            self.functions.iter().map(|f| &f.1).collect(),
        ] {
            for text in &group {
                out.push_str(text);
                out.push('\n');
            }
            if !group.is_empty() {
                out.push('\n');
            }
        }
        out
    }
}

/// An asynchronous copy, ready to spell.
pub(super) struct CopyText<'a> {
    /// Shared address.
    pub dst: &'a str,
    /// Global address.
    pub src: &'a str,
    /// 4, 8 or 16.
    pub bytes: u32,
    /// Condition, if guarded.
    pub guard: Option<&'a str>,
}

/// One dialect. Hooks give text; what needs a definition puts it in the prelude.
pub(super) trait Dialect {
    /// Words that may not be used as names, beyond C's, with spaces between them.
    fn reserved(&self) -> &'static str;
    /// Lines every kernel of the dialect, or this kernel, starts with.
    fn start(&self, kernel: &Kernel, prelude: &mut Prelude);
    /// Everything of the kernel's declaration that stands before its parameter list.
    fn entry(&self, kernel: &Kernel, target: &Target, name: &str) -> String;
    /// How a kernel waits for the previous launch and lets the next launch begin. `None` where launches begin when those before
    /// have ended.
    fn early(&self, _: &Target) -> Option<EarlyStart> {
        None
    }
    /// Whether macros take any number of arguments, so that one can repeat a run of statements.
    fn repeats(&self) -> bool {
        true
    }
    /// What stands before the return type of a helper function.
    fn inline(&self) -> &'static str;
    /// The shared-memory arena at a multiple of `align` bytes.
    fn arena(&self, name: &str, bytes: u32, align: u32) -> Arena;

    /// Spelling of a scalar type. The 16-bit floats are held as their bits.
    fn scalar(&self, scalar: Scalar) -> &'static str;
    /// Spelling of a vector type, defined in the prelude where the dialect has none.
    fn vector(&self, ty: Type, prelude: &mut Prelude) -> String;
    /// Spelling of a pointer to a type, without the name.
    fn pointer(&self, space: Space, constant: bool, pointee: &str) -> String;
    /// Qualifier of a pointer parameter that nothing aliases. `fenced`: the kernel has fences for the compiler's scheduler.
    fn restrict(&self, fenced: bool) -> &'static str;
    /// One lane of a vector.
    fn lane(&self, vector: &str, lane: u8) -> String;
    /// A vector value from its lanes; one part stands for all lanes only if `parts` has one element.
    fn vector_of(&self, ty: &str, lanes: u8, parts: &[String]) -> Text;
    /// True if infix operators work on vectors.
    fn vector_operators(&self) -> bool;
    /// True if the functions this dialect names in `unary`, `min_max` and `fma` take vectors.
    fn vector_functions(&self) -> bool;
    /// Name of the function that stores a vector in global memory at a computed offset, where an assignment does not always
    /// become one access. `name<bytes>(pointer, value)` stores this number of bytes at the pointer.
    fn store(&self, _: Type, _: &mut Prelude) -> Option<String> {
        None
    }
    /// Conversion between arithmetic vector types where the dialect has one.
    fn convert_vector(&self, to: &str, value: &str) -> Option<String>;

    /// Suffix of 64-bit integer literals.
    fn long_suffix(&self) -> &'static str;
    /// Infinity or NaN of `F32` or `F64`, without sign.
    fn special(&self, scalar: Scalar, nan: bool) -> String;
    /// What every thread knows, as an `I32` expression.
    fn builtin(&self, builtin: Builtin) -> Text;
    /// The thread's position, known to be the same for all lanes of a wave up to the wave's width: for role branches.
    fn role_thread(&self) -> String {
        self.builtin(Builtin::LocalId).text
    }

    /// Name of a one-argument function.
    fn unary(&self, op: UnaryOp, scalar: Scalar, prelude: &mut Prelude) -> String;
    /// Name of the minimum or maximum function.
    fn min_max(&self, op: BinaryOp, scalar: Scalar, prelude: &mut Prelude) -> String;
    /// Name of the minimum or maximum function of floats that gives NaN where either operand is.
    fn with_nan(&self, op: BinaryOp, scalar: Scalar, target: &Target, prelude: &mut Prelude) -> String {
        let _ = target;
        let (name, ty) =
            (format!("tw_{}_{scalar}", if op == BinaryOp::Minimum { "minimum" } else { "maximum" }), self.scalar(scalar));
        let sign = if op == BinaryOp::Minimum { "<" } else { ">" };
        let inline = self.inline();
        prelude.function(&name, |_| format!("{inline} {ty} {name}({ty} a, {ty} b) {{ return a {sign} b || a != a ? a : b; }}"))
    }
    /// Name of the fused multiply-add.
    fn fma(&self, scalar: Scalar, prelude: &mut Prelude) -> String;
    /// Name of the function that adds the four products of two vectors of bytes to an integer; how vectors and integer are spelled.
    fn dot(&self, scalar: Scalar, spelled: [&str; 2], prelude: &mut Prelude) -> String;
    /// Name of the function from the bits of a 16-bit float to `F32`.
    fn widen(&self, from: Scalar, target: &Target, prelude: &mut Prelude) -> String;
    /// Name of the function from `F32` to the bits of a float of 16 or 8 bits, rounding to nearest even; those of 8 saturate.
    fn narrow(&self, to: Scalar, target: &Target, prelude: &mut Prelude) -> String;
    /// Name of the function from a vector of integers of 8 or 4 bits to as many floats of 16 bits. `None` where there is no
    /// shorter way than one by one. `_spelled` spells both types.
    fn floats_of_bytes(&self, _from: Type, _to: Type, _spelled: &[String; 2], _: &Target, _: &mut Prelude) -> Option<String> {
        None
    }

    /// A barrier statement. `global` says that later statements read global memory written before it.
    fn barrier(&self, scope: BarrierScope, global: bool, prelude: &mut Prelude) -> String;
    /// A statement that compilers keep between a barrier and the next branch; `None` where none needs it.
    fn barrier_separator(&self, _: &mut Prelude) -> Option<&'static str> {
        None
    }
    /// An atomic statement.
    fn atomic(&self, op: AtomicOp, scalar: Scalar, space: Space, address: &str, value: &str, prelude: &mut Prelude) -> String;
    /// A fence between work-groups, or `None` where the dialect has none.
    fn fence(&self) -> Option<String>;
    /// The body of an atomic maximum or minimum of floats, by integer operations on their bits. Floats without a sign are in the
    /// order of signed integers. Floats with a sign are in the reverse order of unsigned integers. NaN becomes the one that no
    /// other passes. `integer` is the operation on integers, signed or not; `bits` are those of `a`, a signed integer.
    fn atomic_extreme(&self, op: AtomicOp, int: &str, bits: &str, integer: &dyn Fn(AtomicOp, bool) -> String) -> String {
        let (nan, other) = match op {
            AtomicOp::Min => ("-1".to_string(), AtomicOp::Max),
            _ => (format!("({int})(~(unsigned {int})0 >> 1)"), AtomicOp::Min),
        };
        let (positive, negative) = (integer(op, true), integer(other, false));
        format!("{{\n    {int} bits = a != a ? {nan} : {bits};\n    if (bits >= 0) {positive} else {negative}\n}}")
    }
    /// A shuffled value.
    fn shuffle(&self, kind: ShuffleKind, scalar: Scalar, wave: u32, value: &str, prelude: &mut Prelude) -> String;
    /// An asynchronous copy, or `None` where the dialect has none.
    fn async_copy(&self, copy: &CopyText, prelude: &mut Prelude) -> Option<String>;
    /// Closing a group of asynchronous copies.
    fn async_commit(&self) -> Option<String>;
    /// Waiting for groups of asynchronous copies.
    fn async_wait(&self, groups: u32) -> Option<String>;
    /// A scheduling hint, or `None` where the dialect has none.
    fn sched_hint(&self, mask: u32, size: u32, prelude: &mut Prelude) -> Option<String>;
}
