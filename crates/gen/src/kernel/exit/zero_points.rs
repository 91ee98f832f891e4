//! Zero points of integer operands. They are removed from sums of products before any other operation:
//! `sum (A - a)(B - b) = sum A B - b sum A - a (sum B - k b)`, in integers that wrap around as the sums do.
//!
//! The sums over k of A and of B are reductions of the operands, which kernels ahead of the main one leave in workspace.

use crate::kernel::arguments::Arguments;
use crate::program::Binding;
use tilewright_ir::*;
use tilewright_problem::Quant;
use tilewright_problem::contraction::{Centre, Centred, Vector};

/// The zero points of both factors, with the arguments that hold them and what they are multiplied by.
#[derive(Clone, Copy)]
pub(super) struct ZeroPoints<'a> {
    a: Option<Factor<'a>>,
    b: Option<Factor<'a>>,
    k: u64,
}

#[derive(Clone, Copy)]
struct Factor<'a> {
    centred: &'a Centred,
    zero: ArgId,
    totals: ArgId,
}

impl<'a> ZeroPoints<'a> {
    pub fn declare(b: &mut Builder, args: &mut Arguments, x: &'a Centre) -> ZeroPoints<'a> {
        let mut declare = |centred: &'a Option<Centred>, quant: Quant, [name, doc]: [&str; 2]| {
            let centred = centred.as_ref()?;
            let mut integers = |name: &str, doc: &str, to: Binding| args.buffer(b, name, Scalar::I32, Access::Read, doc, to);
            let zero = integers(quant.name(), quant.words(), Binding::Quant(quant));
            let totals = integers(name, doc, Binding::Reduction(centred.number));
            Some(Factor { centred, zero, totals })
        };
        let a = declare(&x.a, Quant::ZeroA, ["sums_b", "sums of B over k"]);
        ZeroPoints { a, b: declare(&x.b, Quant::ZeroB, ["sums_a", "sums of A over k"]), k: x.k }
    }

    /// Sums of products of a run without them; `vector` reads a vector's elements that belong to the run.
    pub fn apply(
        &self,
        b: &mut Builder,
        accumulators: &[ExprId],
        vector: impl Fn(&mut Builder, &str, &Vector, ArgId) -> Vec<ExprId>,
    ) -> Vec<ExprId> {
        let read = |b: &mut Builder, x: Option<Factor>| {
            x.map(|x| [vector(b, "zero", &x.centred.zero, x.zero), vector(b, "sums", &x.centred.totals, x.totals)])
        };
        let of_b = read(b, self.b);
        let of_a = read(b, self.a);
        let mut values = accumulators.to_vec();
        for (i, value) in values.iter_mut().enumerate() {
            if let Some([zero, totals]) = &of_b {
                *value = b.value(*value - zero[i] * totals[i]);
            }
            if let Some([zero, totals]) = &of_a {
                let sum = match &of_b {
                    Some([of_b, _]) => b.value(totals[i] - of_b[i] * (self.k as i64)),
                    None => totals[i],
                };
                *value = b.value(*value - zero[i] * sum);
            }
        }
        values
    }
}
