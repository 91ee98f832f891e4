//! A matrix product as BLAS libraries take it: column-major, with pointers or buffers in the order of the call.

use crate::error::BenchError;
use crate::workload::Workload;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Gemm, Problem, Ragged};

/// The call's view of the problem. `first` and `second` are the factors in the order of the call.
pub(super) struct Call {
    /// Column-major, C not transposed.
    pub gemm: Gemm,
    pub first: Operand,
    pub second: Operand,
}

/// One product of a call: sizes (m, n, k, lda, ldb, ldc, batch), and device addresses. The addresses are the operands in the
/// order of the call, and C.
pub(super) struct Piece {
    pub sizes: [i32; 7],
    pub addresses: [usize; 3],
}

impl Call {
    /// The column-major call for a problem.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] for convolutions, for grouped products, and for products with more than alpha and beta.
    pub(super) fn new(workload: &Workload<'_>, library: &'static str) -> Result<Call, BenchError> {
        Call::in_pieces(workload, library).and_then(|call| call.of_one(library))
    }

    /// The column-major call for a product that may be grouped.
    ///
    /// # Errors
    /// As [`Call::new`], but for groups.
    pub(super) fn in_pieces(workload: &Workload<'_>, library: &'static str) -> Result<Call, BenchError> {
        let call = Call::of(workload, library)?;
        if workload.problem().has_epilogue() {
            let reason = "its call has no bias, activation or residual: compare with cublaslt, or the product alone".into();
            return Err(BenchError::Unsupported { library, reason });
        }
        Ok(call)
    }

    /// The column-major call for a product whose epilogue the caller looks after.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] for convolutions and grouped products.
    pub(super) fn with_epilogue(workload: &Workload<'_>, library: &'static str) -> Result<Call, BenchError> {
        Call::of(workload, library).and_then(|call| call.of_one(library))
    }

    fn of(workload: &Workload<'_>, library: &'static str) -> Result<Call, BenchError> {
        let Problem::Gemm(gemm) = workload.problem() else {
            return Err(BenchError::Unsupported { library, reason: "it computes matrix products only".into() });
        };
        if gemm.has_weights() {
            let reason = format!(
                "it does not multiply integers by floats: --plain compares with {}, the product of the dequantised matrix",
                gemm.multiplied()
            );
            return Err(BenchError::Unsupported { library, reason });
        }
        if gemm.gate.is_some() {
            let reason = "it has no gated products: compare with the product of B's 2 n columns".into();
            return Err(BenchError::Unsupported { library, reason });
        }
        if gemm.second.is_some() {
            let reason = "it has no products of two pairs of factors: compare with one of them".into();
            return Err(BenchError::Unsupported { library, reason });
        }
        if gemm.complex.is_some() && !matches!(library, "cublas" | "cublas-3m") {
            return Err(BenchError::Unsupported {
                library,
                reason: "complex products are compared with cublas and cublas-3m".into(),
            });
        }
        let canonical = gemm.canonical();
        let [first, second] = canonical.factors;
        Ok(Call { gemm: canonical.gemm, first, second })
    }

    /// The call itself, unless it is of groups.
    fn of_one(self, library: &'static str) -> Result<Call, BenchError> {
        if self.gemm.grouped.is_none() {
            return Ok(self);
        }
        let reason =
            "its call has no groups whose ends are in device memory: --plain compares with the dense product of as many rows"
                .into();
        Err(BenchError::Unsupported { library, reason })
    }

    /// The products that make it up, those without results left out: for each group one, where the groups end here; else the call.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] as [`Call::narrow`].
    pub(super) fn pieces(
        &self,
        workload: &Workload<'_>,
        ends: Option<&[u64]>,
        library: &'static str,
    ) -> Result<Vec<Piece>, BenchError> {
        let addresses = [workload.address(self.first)?, workload.address(self.second)?, workload.address(Operand::C)?];
        let (Some(of), Some(ends)) = (self.gemm.grouped, ends) else {
            return Ok(vec![Piece { sizes: self.narrow(library)?, addresses }]);
        };
        let (g, begins) = (&self.gemm, std::iter::once(&0).chain(ends));
        let group = |(number, (begin, end)): (u64, (&u64, &u64))| {
            let lines = end.saturating_sub(*begin);
            let one = match of {
                Ragged::M => Gemm { m: lines, batch: 1, ..g.clone() },
                Ragged::N => Gemm { n: lines, batch: 1, ..g.clone() },
                Ragged::K => Gemm { k: lines, batch: 1, ..g.clone() },
            };
            // Column by column, C not transposed.
            let along = |trans: bool, ld: u64| begin * if trans { ld } else { 1 };
            let mut offsets = match of {
                Ragged::M => [along(g.a.trans, g.a.ld), 0, *begin],
                Ragged::N => [0, along(!g.b.trans, g.b.ld), begin * g.c.ld],
                Ragged::K => [along(!g.a.trans, g.a.ld), along(g.b.trans, g.b.ld), 0],
            };
            offsets[of.owned()] = number * g.matrices()[of.owned()].batch_stride;
            let at = |i: usize| addresses[i] + (offsets[i] * u64::from(g.scalar(i).bytes())) as usize;
            let sizes = Call { gemm: one, ..*self }.narrow(library)?;
            Ok((lines > 0 || of == Ragged::K).then(|| Piece { sizes, addresses: [0, 1, 2].map(at) }))
        };
        (0..).zip(begins.zip(ends)).filter_map(|part| group(part).transpose()).collect()
    }

    /// Sizes and distances as 32-bit integers: m, n, k, lda, ldb, ldc, batch.
    ///
    /// # Errors
    /// [`BenchError::Unsupported`] where one is too large.
    pub(super) fn narrow(&self, library: &'static str) -> Result<[i32; 7], BenchError> {
        let g = &self.gemm;
        let mut out = [0; 7];
        for (slot, value) in out.iter_mut().zip([g.m, g.n, g.k, g.a.ld, g.b.ld, g.c.ld, g.batch]) {
            *slot = i32::try_from(value)
                .map_err(|_| BenchError::Unsupported { library, reason: format!("{value} does not fit its 32-bit sizes") })?;
        }
        Ok(out)
    }

    /// Batch strides of the factors in the order of the call, and of C.
    pub(super) fn strides(&self) -> [i64; 3] {
        let g = &self.gemm;
        [g.a.batch_stride, g.b.batch_stride, g.c.batch_stride].map(|s| i64::try_from(s).unwrap_or(i64::MAX))
    }
}
