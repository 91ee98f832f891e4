//! The program in the making: kernels, launches and regions of the workspace.

use super::{MAX_GROUPS, WORKSPACE_ALIGN};
use crate::kernel::arguments::{Arguments, Bound, BoundKernel};
use crate::kernel::error::GenerateError;
use crate::kernel::reduce::Parts;
use crate::plan::Derived;
use crate::program::{Alignment, Binding, Factor, Groups, Launch, Program};
use tilewright_problem::Extents;
use tilewright_problem::contraction::{Operand, Reduce};

/// The batch entries of one launch.
#[derive(Clone, Copy)]
pub(crate) struct Chunk {
    pub first: u64,
    pub entries: Factor,
    /// The same as an argument, and the pieces of work of the main kernel.
    pub count: Binding,
    pub work: Binding,
}

/// Collects kernels and launches, and hands out workspace.
#[derive(Default)]
pub(crate) struct Assembly {
    pub program: Program,
    /// Those of each kernel.
    arguments: Vec<Arguments>,
    pub cursor: u64,
    /// Bytes at the start of workspace that all launches keep.
    pub base: u64,
    /// The part of the problem that kernels belong to: kernels of later parts have its number in their names.
    pub part: usize,
    /// Kernels are those of a split tail that has its own launch, which their names say.
    pub tail: bool,
    /// The largest extents, as the problem names them.
    pub largest: Extents,
}

impl Assembly {
    pub fn reserve(&mut self, bytes: u64) -> u64 {
        let at = self.cursor.next_multiple_of(WORKSPACE_ALIGN);
        self.cursor = at + bytes;
        at
    }
    /// Room for the parts of the reductions of each contraction: those of one reduction's component side by side.
    pub fn reserve_parts(&mut self, all: &[&Derived]) -> Vec<Vec<Parts>> {
        let parts = |Derived { spec, c, .. }: &&Derived| {
            let of = |r: &Reduce| {
                let parts = spec.partials(c, r);
                let state = if parts.is_empty() { Vec::new() } else { c.state(r) };
                let components = state.into_iter().map(|scalar| parts.len() * u64::from(scalar.bytes()));
                let regions = components.chain(Some(4 * parts.tickets()).filter(|bytes| *bytes > 0)).collect();
                Parts { partials: parts, regions }
            };
            spec.reduced(c).map(of).collect()
        };
        let mut all: Vec<Vec<Parts>> = all.iter().map(parts).collect();
        for reduction in 0..all.iter().map(Vec::len).max().unwrap_or(0) {
            let same = all.iter_mut().filter_map(|of| of.get_mut(reduction)).map(|parts| &mut parts.regions);
            let mut same: Vec<&mut Vec<u64>> = same.collect();
            for component in 0..same.iter().map(|at| at.len()).max().unwrap_or(0) {
                for bytes in same.iter_mut().filter_map(|at| at.get_mut(component)) {
                    *bytes = self.reserve(*bytes);
                }
            }
        }
        all
    }
    /// A kernel after which the main kernel is launched.
    pub fn add_first(&mut self, mut of: BoundKernel) -> usize {
        of.kernel.precedes = true;
        self.add(of)
    }
    pub fn add(&mut self, of: BoundKernel) -> usize {
        let BoundKernel { mut kernel, args } = of;
        if self.part > 0 {
            kernel.name = format!("{}_{}", kernel.name, self.part);
        }
        if self.tail {
            kernel.name += "_tail";
        }
        self.program.kernels.push(kernel);
        self.arguments.push(args);
        self.program.kernels.len() - 1
    }
    pub fn launch(&mut self, kernel: usize, groups: Groups, chunk: &Chunk) -> Result<(), GenerateError> {
        let count = groups.count(&self.largest);
        if count == 0 {
            return Ok(());
        }
        if count > MAX_GROUPS as u128 {
            return Err(GenerateError::GridTooLarge { groups: count, max: MAX_GROUPS });
        }
        let groups = groups.depends().then_some(groups);
        let of = |bound: &Bound| match *bound {
            Bound::To(binding) => binding,
            Bound::First => Binding::I64(chunk.first as i64),
            Bound::Entries => chunk.count,
            Bound::Work => chunk.work,
        };
        let arguments = &self.arguments[kernel];
        let (args, maps) = (arguments.bound.iter().map(of).collect(), arguments.maps.clone());
        self.program.launches.push(Launch { kernel, grid: [count as u32, 1, 1], args, groups, maps });
        Ok(())
    }
    pub fn need(&mut self, operand: Operand, bytes: u32) {
        self.program.alignments.push(Alignment { operand, bytes });
    }
}
