//! Arguments of kernels, each declared together with what launches bind it to.

use crate::program::{Binding, Factor, MapExtent};
use tilewright_ir::{Access, ArgId, ArgKind, Builder, ExprId, Kernel, Scalar, TensorMap};
use tilewright_problem::Extent;

/// What launches bind an argument to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// The same in each.
    To(Binding),
    /// The first batch entry of a launch (an `I64` argument).
    First,
    /// Its batch entries (an `I64` argument).
    Entries,
    /// Its pieces of work (an `I32` argument).
    Work,
}

impl From<Binding> for Bound {
    fn from(to: Binding) -> Bound {
        Bound::To(to)
    }
}

/// The arguments of a kernel, in their order.
#[derive(Default)]
pub(crate) struct Arguments {
    pub bound: Vec<Bound>,
    /// Extents of tensor maps that follow from the launch.
    pub maps: Vec<MapExtent>,
    /// Numbers, by index.
    scalars: Vec<(usize, ExprId)>,
}

/// A kernel with its arguments.
pub(crate) struct BoundKernel {
    pub kernel: Kernel,
    pub args: Arguments,
}

impl BoundKernel {
    /// The kernel that begins before the launch ahead of it has ended.
    pub fn following(self) -> BoundKernel {
        BoundKernel { kernel: self.kernel.following(), ..self }
    }
}

impl Arguments {
    /// The argument of this name that is bound so already: parts of a problem share theirs.
    fn known(&self, b: &Builder, name: &str, to: Bound) -> Option<usize> {
        self.bound.iter().zip(&b.kernel().args).position(|(bound, arg)| *bound == to && arg.name == name)
    }
    /// A buffer.
    pub fn buffer(&mut self, b: &mut Builder, name: &str, scalar: Scalar, access: Access, doc: &str, to: Binding) -> ArgId {
        if let Some(known) = self.known(b, name, to.into()) {
            return ArgId(known as u32);
        }
        self.bound.push(to.into());
        b.buffer(name, scalar, access, doc)
    }
    /// A number.
    pub fn scalar(&mut self, b: &mut Builder, name: &str, scalar: Scalar, doc: &str, to: impl Into<Bound>) -> ExprId {
        let to = to.into();
        let known = self.known(b, name, to).and_then(|i| self.scalars.iter().find(|(arg, _)| *arg == i));
        if let Some((_, known)) = known {
            return *known;
        }
        let read = b.scalar_arg(name, scalar, doc);
        self.scalars.push((self.bound.len(), read));
        self.bound.push(to);
        read
    }
    /// A tensor map, with its extents that are known only at launch.
    pub fn map(
        &mut self,
        b: &mut Builder,
        name: &str,
        map: TensorMap,
        doc: &str,
        to: Binding,
        extents: impl IntoIterator<Item = (usize, Extent)>,
    ) -> ArgId {
        let same = |i: &usize| matches!(&b.kernel().args[*i].kind, ArgKind::TensorMap(known) if *known == map);
        if let Some(known) = self.known(b, name, to.into()).filter(same) {
            return ArgId(known as u32);
        }
        let (arg, of) = (self.bound.len(), |extent| Factor::Steps { extent, more: 0, of: 1 });
        self.maps.extend(extents.into_iter().map(|(dim, extent)| MapExtent { arg, dim, extent: of(extent) }));
        self.bound.push(to.into());
        b.tensor_map(name, map, doc)
    }
    /// The first batch entry of a launch, where the batch is cut.
    pub fn first(&mut self, b: &mut Builder, chunks: u64) -> Option<ExprId> {
        (chunks > 1).then(|| self.scalar(b, "g_first", Scalar::I64, "first batch entry of this launch", Bound::First))
    }
}
