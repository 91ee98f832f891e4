//! The arguments of the main kernel, in the order in which launches bind them.

use crate::kernel::copy::copies::{Source, chunked_map};
use crate::kernel::copy::fetch_tile::{self, by_words};
use crate::kernel::exit::fused::Added;
use crate::kernel::exit::out;
use crate::kernel::input::{Input, Ints, Shape};
use crate::kernel::tile::position::Sizes;
use crate::plan::{self, ClassMap, Hulls, KernelSpec, SplitSum, Transport};
use tilewright_ir::*;
use tilewright_problem::Extent;
use tilewright_problem::contraction::{Contraction, Operand};

/// What an operand's tiles are read through.
pub(super) fn declare_operand(b: &mut Builder, spec: &KernelSpec, i: usize, x: &Input, shape: &Shape) -> Source {
    let (name, doc) = if x.operand == Operand::A { ("a", "left operand") } else { ("b", "right operand") };
    let in_place = x.tiling.source == plan::Source::InPlace;
    let doc = if in_place { doc.to_string() } else { format!("{doc}, materialised in workspace") };
    let copy = &spec.schedule.copies[i];
    match copy {
        Transport::Bulk(tile) => return Source::Map(b.tensor_map(name, chunked_map(tile, x, shape), &doc)),
        Transport::Shifted(of) => return Source::Classes(of.spans.clone(), class_maps(b, name, &doc, &of.spans)),
        Transport::Registers | Transport::Async | Transport::Written(_) => {}
    }
    let buffer = b.buffer(name, x.tensor.scalar, Access::Read, &doc);
    let offset =
        in_place.then(|| b.scalar_arg(&format!("{name}_offset"), Scalar::I64, "first element of the operand in its buffer"));
    let words = copy.tile().is_some_and(|tile| by_words(x, tile));
    let words = words.then(|| b.buffer(&format!("{name}_words"), Scalar::U32, Access::Read, "the same memory, as words"));
    Source::Memory(fetch_tile::Source { buffer, offset, words })
}

/// Tensor maps of an operand whose lines are shifted, by class.
fn class_maps(b: &mut Builder, name: &str, doc: &str, hulls: &Hulls) -> Vec<ArgId> {
    let declare = |(class, map): (usize, &ClassMap)| {
        let doc = format!("{doc}, lines {class}, {}, ...", class + hulls.classes.len());
        b.tensor_map(&format!("{name}_{class}"), map.map.clone(), &doc)
    };
    hulls.classes.iter().enumerate().map(declare).collect()
}

/// Where results go, and the first batch entry of the launch.
pub(super) fn declare_results(
    b: &mut Builder,
    c: &Contraction,
    spec: &KernelSpec,
    shape: &Shape,
) -> (out::OutArgs, Option<ExprId>) {
    let acc = c.accumulator();
    let split = spec.split_outside() > 1;
    let out = if split && spec.epilogue.split_sum == SplitSum::Workspace {
        let partials = b.buffer("partials", acc, Access::Write, "partial sums [split][g][result], summed by the next kernel");
        out::OutArgs::Partials { partials, chunk: shape.chunk }
    } else {
        let buffer = b.buffer("c", c.c.scalar, Access::ReadWrite, "result");
        let offset = b.scalar_arg("c_offset", Scalar::I64, "first element of the result in its buffer");
        let added = if split { Added::default() } else { Added::declare(b, c) };
        let alpha = b.scalar_arg("alpha", acc, "factor of the product");
        if split {
            out::OutArgs::Atomic { buffer, offset, alpha }
        } else {
            let beta = b.scalar_arg("beta", acc, "factor of the old result; 0 never reads it");
            out::OutArgs::Store { buffer, offset, added, alpha, beta }
        }
    };
    let g_first = (shape.chunks > 1).then(|| b.scalar_arg("g_first", Scalar::I64, "first batch entry of this launch"));
    (out, g_first)
}

/// Rows and columns of C that are known only at launch.
pub(super) fn declare_sizes(b: &mut Builder, c: &Contraction, ints: Ints) -> Sizes {
    [(Extent::M, c.m, "rows"), (Extent::N, c.n, "columns")].map(|(extent, most, what)| {
        c.dynamic_extent(extent).map(|named| {
            let size = b.scalar_arg(named.name(), Scalar::I32, &format!("{what} of the result, 1 to {most}"));
            b.value(size.cast(ints.coord))
        })
    })
}

/// Launches differ in their pieces of work, and persistent work-groups have to know how many there are.
pub(super) fn declare_work(b: &mut Builder, c: &Contraction, spec: &KernelSpec, shape: &Shape) -> Option<ExprId> {
    let many = spec.tiling.persistent > 0 && (shape.chunks > 1 || !c.dynamic.is_none());
    many.then(|| b.scalar_arg("work", Scalar::I32, "tiles and splits of this launch"))
}
