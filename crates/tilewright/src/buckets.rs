//! Several operations for one product whose rows (or columns, or batch) are known only at launch. Each operation holds for all
//! sizes up to its own largest size, for which it is tuned. A launch takes the first that is large enough.

use crate::{Context, Element, Error, Operands, Operation, Plan};
use tilewright_problem::Gemm;
use tilewright_problem::{Extent, Extents};

/// An operation for each range of sizes, tuned and compiled apart.
///
/// ```
/// use tilewright::{Buckets, Budget, Context, Dynamic, Extent, Gemm, Operands, Options, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// // Up to 64 rows; one plan for 1 to 8 rows, one for more.
/// let layer = Gemm::new(Scalar::F32, 64, 2, 3).dynamic(Dynamic { m: true, ..Dynamic::NONE }).build()?;
/// let buckets = Buckets::new(&context, &layer, Extent::M, &[8])?;
/// for operation in buckets.operations() {
///     operation.tune(Budget::trials(2))?;
/// }
/// let (x, weight) = (context.upload(&[1.0f32; 9])?, context.upload(&[2.0f32; 6])?);
/// let mut y = context.alloc::<f32>(6)?;
/// buckets.run_with(Operands::new(&x, &weight, &mut y).at(buckets.extents().with(Extent::M, 3)))?;
/// assert_eq!(y.download()?, [6.0; 6]);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Debug)]
pub struct Buckets {
    extent: Extent,
    /// Ascending by the size each holds for.
    smaller: Vec<Operation>,
    largest: Operation,
}

impl Buckets {
    /// An operation for each bound below the product's own extent, and one for that. Leading dimensions and batch strides are the
    /// product's in all of them, so that every one runs on the same memory.
    ///
    /// # Errors
    /// [`Error::Problem`] for a bound of 0, or where the extent is not [`Dynamic`](crate::Dynamic).
    pub fn new(context: &Context, gemm: &Gemm, extent: Extent, bounds: &[u64]) -> Result<Buckets, Error> {
        let largest = gemm.extents();
        let mut bounds: Vec<u64> = bounds.iter().copied().filter(|b| *b < largest.of(extent)).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let mut smaller = Vec::new();
        for bound in bounds {
            let mut part = gemm.at(largest.with(extent, bound))?;
            part.dynamic = gemm.dynamic;
            // A batch of one leaves nothing to the launch.
            part.dynamic.g &= part.batch > 1;
            smaller.push(context.operation(part)?);
        }
        Ok(Buckets { extent, smaller, largest: context.operation(gemm.clone())? })
    }
    /// The operations, ascending by the size they hold for.
    pub fn operations(&self) -> impl Iterator<Item = &Operation> {
        self.smaller.iter().chain([&self.largest])
    }
    /// The operation that runs a launch with these extents: the first that is large enough.
    pub fn operation(&self, at: &Extents) -> &Operation {
        let fits = |o: &&Operation| at.of(self.extent) <= o.extents().of(self.extent);
        self.smaller.iter().find(fits).unwrap_or(&self.largest)
    }
    /// The largest extents.
    pub fn extents(&self) -> Extents {
        self.largest.extents()
    }
    /// As [`Operation::run_with`], with the operation for the operands' extents.
    ///
    /// # Errors
    /// As [`Operation::run_with`].
    pub fn run_with<T: Element, U: Element, V: Element>(&self, operands: Operands<'_, T, U, V>) -> Result<Plan, Error> {
        let at = operands.extents().unwrap_or(self.extents());
        self.operation(&at).run_with(operands.at(at))
    }
}
