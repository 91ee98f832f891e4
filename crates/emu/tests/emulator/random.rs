//! Random kernels agree with a plain interpreter that runs one thread at a time.

use crate::common;
use common::*;
use proptest::prelude::*;
use tilewright_emu::{Buffer, Checks, Options};
use tilewright_ir::*;

const VARS: usize = 3;
const THREADS: u32 = 37;

#[derive(Clone, Debug)]
enum E {
    Const(i32),
    Lid,
    Var(usize),
    Bound(usize),
    Bin(BinaryOp, Box<E>, Box<E>),
    Pick(Box<E>, Box<E>, Box<E>),
}

#[derive(Clone, Debug)]
enum S {
    Set(usize, E),
    /// Binds a name for the rest of the block.
    Bind(E),
    If(E, Vec<S>, Vec<S>),
    /// A loop over 0..n, unrolled or not; the counter is bound.
    Loop(u8, bool, Vec<S>),
    /// A loop over 0..(expr & 3).
    Vary(E, Vec<S>),
    Return(E),
}

fn expr() -> impl Strategy<Value = E> {
    let leaf =
        prop_oneof![(-3i32..40).prop_map(E::Const), Just(E::Lid), (0..VARS).prop_map(E::Var), (0..4usize).prop_map(E::Bound),];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let op = prop::sample::select(vec![
            BinaryOp::Add,
            BinaryOp::Sub,
            BinaryOp::Mul,
            BinaryOp::Min,
            BinaryOp::Max,
            BinaryOp::And,
            BinaryOp::Or,
            BinaryOp::Xor,
            BinaryOp::Lt,
            BinaryOp::Eq,
        ]);
        prop_oneof![
            4 => (op, inner.clone(), inner.clone()).prop_map(|(o, a, b)| E::Bin(o, a.into(), b.into())),
            1 => (inner.clone(), inner.clone(), inner).prop_map(|(c, a, b)| E::Pick(c.into(), a.into(), b.into())),
        ]
    })
}

fn block() -> impl Strategy<Value = Vec<S>> {
    let simple = prop_oneof![
        5 => (0..VARS, expr()).prop_map(|(v, e)| S::Set(v, e)),
        2 => expr().prop_map(S::Bind),
        1 => expr().prop_map(S::Return),
    ];
    let stmt = simple.prop_recursive(3, 24, 4, |inner| {
        let block = prop::collection::vec(inner, 0..4);
        prop_oneof![
            3 => (expr(), block.clone(), block.clone()).prop_map(|(c, a, b)| S::If(c, a, b)),
            2 => (0u8..4, any::<bool>(), block.clone()).prop_map(|(n, u, b)| S::Loop(n, u, b)),
            2 => (expr(), block).prop_map(|(e, b)| S::Vary(e, b)),
        ]
    });
    prop::collection::vec(stmt, 1..6)
}

/// One thread of the plain interpreter.
struct Thread {
    lid: i32,
    vars: [i32; VARS],
}

impl Thread {
    fn eval(&self, e: &E, bound: &[i32]) -> i32 {
        match e {
            E::Const(v) => *v,
            E::Lid => self.lid,
            E::Var(v) => self.vars[*v],
            E::Bound(n) => {
                if bound.is_empty() {
                    5
                } else {
                    bound[n % bound.len()]
                }
            }
            E::Bin(op, a, b) => {
                let (x, y) = (self.eval(a, bound), self.eval(b, bound));
                match op {
                    BinaryOp::Add => x.wrapping_add(y),
                    BinaryOp::Sub => x.wrapping_sub(y),
                    BinaryOp::Mul => x.wrapping_mul(y),
                    BinaryOp::Min => x.min(y),
                    BinaryOp::Max => x.max(y),
                    BinaryOp::And => x & y,
                    BinaryOp::Or => x | y,
                    BinaryOp::Xor => x ^ y,
                    BinaryOp::Lt => (x < y) as i32,
                    _ => (x == y) as i32,
                }
            }
            E::Pick(c, a, b) => self.eval(if self.eval(c, bound) != 0 { a } else { b }, bound),
        }
    }
    /// False once the thread has returned.
    fn run(&mut self, block: &[S], bound: &mut Vec<i32>) -> bool {
        let depth = bound.len();
        let mut going = true;
        for s in block {
            going = match s {
                S::Set(v, e) => {
                    self.vars[*v] = self.eval(e, bound);
                    true
                }
                S::Bind(e) => {
                    bound.push(self.eval(e, bound));
                    true
                }
                S::If(c, a, b) => {
                    let side = if self.eval(c, bound) != 0 { a } else { b };
                    self.run(side, bound)
                }
                S::Loop(n, _, body) => self.repeat(*n as i32, body, bound),
                S::Vary(e, body) => self.repeat(self.eval(e, bound) & 3, body, bound),
                S::Return(e) => self.eval(e, bound) & 7 != 0,
            };
            if !going {
                break;
            }
        }
        bound.truncate(depth);
        going
    }
    fn repeat(&mut self, n: i32, body: &[S], bound: &mut Vec<i32>) -> bool {
        for i in 0..n {
            bound.push(i);
            let going = self.run(body, bound);
            bound.pop();
            if !going {
                return false;
            }
        }
        true
    }
}

/// The same as a kernel.
struct Maker {
    b: Builder,
    vars: Vec<VarId>,
    lid: ExprId,
    out: ArgId,
}

impl Maker {
    fn eval(&mut self, e: &E, bound: &[ExprId]) -> ExprId {
        match e {
            E::Const(v) => self.b.int(*v as i64, Scalar::I32),
            E::Lid => self.lid,
            E::Var(v) => self.b.get(self.vars[*v]),
            E::Bound(_) if bound.is_empty() => self.b.int(5, Scalar::I32),
            E::Bound(n) => bound[n % bound.len()],
            E::Bin(op, a, b) => {
                let (x, y) = (self.eval(a, bound), self.eval(b, bound));
                let r = self.b.binary(*op, x, y);
                self.b.cast(r, Scalar::I32)
            }
            E::Pick(c, a, b) => {
                let c = self.eval(c, bound);
                let c = self.b.binary(BinaryOp::Ne, c, 0);
                let (x, y) = (self.eval(a, bound), self.eval(b, bound));
                self.b.select(c, x, y)
            }
        }
    }
    /// Fixes a value. `Builder::bind` leaves a variable as it is, which may change later.
    fn bind(&mut self, e: ExprId) -> (Block, ExprId) {
        let mut name = e;
        let block = self.b.block(|b| {
            name = match b.kernel().expr(e) {
                Expr::Var(_) => {
                    let copy = b.declare("n", e);
                    b.get(copy)
                }
                _ => b.bind("n", e),
            }
        });
        (block, name)
    }
    fn run(&mut self, block: &[S], bound: &mut Vec<ExprId>) -> Block {
        let depth = bound.len();
        let mut out = Vec::new();
        for s in block {
            match s {
                S::Set(v, e) => {
                    let e = self.eval(e, bound);
                    out.push(Stmt::Assign(Place::Var(self.vars[*v]), e));
                }
                S::Bind(e) => {
                    let e = self.eval(e, bound);
                    let (stmts, name) = self.bind(e);
                    out.extend(stmts);
                    bound.push(name);
                }
                S::If(c, a, b) => {
                    let c = self.eval(c, bound);
                    let cond = self.b.binary(BinaryOp::Ne, c, 0);
                    let (then, otherwise) = (self.run(a, bound), self.run(b, bound));
                    out.push(Stmt::If { cond, then, otherwise });
                }
                S::Loop(n, full, body) => {
                    let end = self.b.int(*n as i64, Scalar::I32);
                    out.push(self.repeat(end, if *full { Unroll::Full } else { Unroll::No }, body, bound));
                }
                S::Vary(e, body) => {
                    let e = self.eval(e, bound);
                    let end = self.b.binary(BinaryOp::And, e, 3);
                    // The trip count is fixed when the loop starts.
                    let (stmts, name) = self.bind(end);
                    out.extend(stmts);
                    out.push(self.repeat(name, Unroll::No, body, bound));
                }
                S::Return(e) => {
                    let e = self.eval(e, bound);
                    let low = self.b.binary(BinaryOp::And, e, 7);
                    let cond = self.b.binary(BinaryOp::Eq, low, 0);
                    let then = self.leave();
                    out.push(Stmt::If { cond, then, otherwise: vec![] });
                }
            }
        }
        bound.truncate(depth);
        out
    }
    fn repeat(&mut self, end: ExprId, unroll: Unroll, body: &[S], bound: &mut Vec<ExprId>) -> Stmt {
        let start = self.b.int(0, Scalar::I32);
        let mut var = None;
        self.b.block(|b| var = Some(b.declare("i", start)));
        let var = var.unwrap();
        let counter = self.b.get(var);
        bound.push(counter);
        let body = self.run(body, bound);
        bound.pop();
        Stmt::For { var, start, end, step: 1, unroll, body }
    }
    /// Stores the thread's variables and ends it.
    fn leave(&mut self) -> Block {
        let (vars, lid, out) = (self.vars.clone(), self.lid, self.out);
        self.b.block(|b| {
            let at = b.mul(lid, VARS);
            for (i, v) in vars.into_iter().enumerate() {
                let at = b.add(at, i);
                let v = b.get(v);
                b.store(Base::Buffer(out), at, v, None);
            }
            b.push(Stmt::Return);
        })
    }
}

fn make(block: &[S]) -> Kernel {
    let mut b = Builder::new("random", THREADS);
    let out = b.buffer("out", Scalar::I32, Access::Write, "");
    let lid = b.builtin(Builtin::LocalId);
    let vars = (0..VARS)
        .map(|i| {
            let v = b.int(i as i64 * 10, Scalar::I32);
            b.declare("v", v)
        })
        .collect();
    let mut m = Maker { b, vars, lid, out };
    let body = m.run(block, &mut Vec::new());
    let tail = m.leave();
    body.into_iter().chain(tail).for_each(|s| m.b.push(s));
    m.b.finish()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn kernels_compute_what_threads_would(program in block()) {
        let k = make(&program);
        let want: Vec<i32> = (0..THREADS as i32)
            .flat_map(|lid| {
                let mut t = Thread { lid, vars: std::array::from_fn(|i| i as i32 * 10) };
                t.run(&program, &mut Vec::new());
                t.vars
            })
            .collect();
        for (checks, interleave) in [(Checks::none(), false), (Checks { overflow: false, ..Checks::all() }, true)] {
            let out = Buffer::new(want.len() * 4);
            let options = Options { checks, interleave, threads: 1, wave: 16, ..Options::default() };
            tilewright_emu::run(&k, [1; 3], &[arg(&out)], &options).unwrap();
            prop_assert_eq!(to_i32s(&out), want.clone());
        }
    }
}
