//! The problems that lines of case files say, and their names.

use super::row::Row;
use super::{CaseOptions, Kind};
use crate::conv::{Conv, ConvBuilder, Direction, Layout};
use crate::epilogue::Along;
use crate::error::ProblemError;
use crate::gemm::{Gemm, GemmBuilder, Order};
use crate::problem::Problem;
use crate::quant::ZeroPoints;
use crate::ragged::Ragged;

/// A problem by its text.
pub(super) fn from_text(row: &Row<'_>) -> Result<Problem, ProblemError> {
    match row.text("problem") {
        Some(text) => Problem::parse(text).map_err(|e| row.fail("problem", e.to_string())),
        None => {
            let what = format!("a line without a problem ({})", row.text("set").unwrap_or("problem"));
            let remedy = row.text("reason").unwrap_or("give its text").to_string();
            Err(ProblemError::Unsupported { what, remedy })
        }
    }
}

pub(super) fn gemm(row: &Row<'_>, options: &CaseOptions) -> Result<Problem, ProblemError> {
    let complex = row.complex();
    let (dtype, math) = complex.map_or_else(|| row.dtype(options), Ok)?;
    let mut builder = Gemm::new(dtype, row.number("m")?, row.number("n")?, row.number("k")?)
        .math(math)
        .trans(row.flag("trans_a")?, row.flag("trans_b")?)
        .order(row.choice("order", &[("col", Order::Col), ("row", Order::Row)])?.unwrap_or(Order::Row))
        .batch(row.optional("batch")?.unwrap_or(1));
    let columns = ["conj_a", "conj_b", "alpha_im", "beta_im"];
    let [conj_a, conj_b, alpha_im, beta_im] = columns.map(|column| row.flag(column));
    let flags = [conj_a?, conj_b?, alpha_im?, beta_im?];
    match (complex, flags.iter().position(|given| *given)) {
        (Some(_), _) => builder = builder.conj(flags[0], flags[1]).imaginary(flags[2], flags[3]),
        (None, Some(which)) => {
            let why = if which < 2 { "elements are their own conjugates" } else { "alpha and beta are real" };
            return Err(row.fail(columns[which], format!("{why}; give a complex dtype, or leave this empty")));
        }
        (None, None) => {}
    }
    let ragged = row.choice("ragged", &[("m", Ragged::M), ("k", Ragged::K)])?;
    match row.optional("groups")? {
        Some(_) if row.text("batch").is_some() => {
            return Err(row.fail("groups", "groups are a batch of their own; leave `batch` empty"));
        }
        Some(groups) => builder = builder.grouped(ragged.unwrap_or(Ragged::M), groups),
        None if ragged.is_some() => {
            return Err(row.fail("ragged", "there are no groups; say how many in `groups`, or leave this empty"));
        }
        None => {}
    }
    if row.choice("b_operand", &[("each", false), ("shared", true)])?.unwrap_or(false) {
        builder = builder.stride_b(0);
    }
    if let Some(ld) = row.optional("lda")? {
        builder = builder.lda(ld);
    }
    if let Some(ld) = row.optional("ldb")? {
        builder = builder.ldb(ld);
    }
    if let Some(ld) = row.optional("ldc")? {
        builder = builder.ldc(ld);
    }
    if let Some(out) = row.scalar("out_dtype")? {
        builder = builder.out_dtype(out);
    }
    if let Some(b) = row.scalar("b_dtype")? {
        builder = builder.b_dtype(b);
    }
    let one = |name| ZeroPoints::NAMES.into_iter().find(|(known, ..)| *known == name);
    let all =
        ["", "a", "m", "b", "n", "ab", "an", "mb", "mn"].map(|names| (if names.is_empty() { "none" } else { names }, names));
    for (_, along, how) in row.choice("zero_points", &all)?.unwrap_or_default().split("").filter_map(one) {
        builder = builder.zero_point(along, how);
    }
    for (along, scale) in row.scales()? {
        builder = builder.scale_by(along, scale);
    }
    if let Some(Some(along)) = row.choice("bias", &[("m", Some(Along::M)), ("n", Some(Along::N)), ("none", None)])? {
        builder = builder.bias(along);
    }
    if let Some(activation) = row.activation()? {
        builder = builder.activation(activation);
    }
    match (row.flag("residual")?, row.optional("ldr")?) {
        (true, Some(ld)) => builder = builder.ldr(ld),
        (true, None) => builder = builder.residual(),
        (false, Some(_)) => return Err(row.fail("ldr", "there is no residual; set `residual` to 1, or leave this empty")),
        (false, None) => {}
    }
    builder = row.reductions()?.into_iter().fold(builder, GemmBuilder::reduce);
    if row.drops_c()? {
        builder = builder.drop_c();
    }
    if let Some(bytes) = options.workspace {
        builder = builder.workspace(bytes);
    }
    builder.build().map(Problem::Gemm)
}

pub(super) fn conv(row: &Row<'_>, options: &CaseOptions, kind: Kind) -> Result<Problem, ProblemError> {
    let groups = row.number("groups")?;
    let (dims, c, k, input, filter) = if kind == Kind::Conv2d {
        let pair = |a, b| Ok::<_, ProblemError>(vec![row.number(a)?, row.number(b)?]);
        (2, row.number("c")?, row.number("k")?, pair("h", "w")?, pair("r", "s")?)
    } else {
        let dims = row.number("dims")?;
        if !(1..=3).contains(&dims) {
            return Err(row.fail("dims", format!("`{dims}` must be 1, 2 or 3")));
        }
        let dims = dims as usize;
        let total = |column| {
            let per_group = row.number(column)?;
            per_group.checked_mul(groups).ok_or_else(|| row.fail(column, "is too large"))
        };
        let sizes = |column| match row.text(column) {
            Some(_) => row.sizes(column, dims, 0),
            None => Err(row.fail(column, "is empty; give sizes, e.g. 3x3")),
        };
        (dims, total("c_per_group")?, total("k_per_group")?, sizes("input")?, sizes("filter")?)
    };
    let pad = row.sizes("pad", dims, 0)?;
    let (begin, end) = match row.text("pad") {
        Some(_) => (pad.clone(), pad),
        None => (row.sizes("pad_begin", dims, 0)?, row.sizes("pad_end", dims, 0)?),
    };
    let all = Direction::ALL;
    let directions: Vec<_> = all.map(|d| (d.name(), d)).into_iter().chain(all.map(|d| (d.long_name(), d))).collect();
    let layouts = [Layout::Nchw, Layout::Nhwc].map(|l| (l.name(), l));
    let (dtype, math) = row.dtype(options)?;
    let mut builder = Conv::new(dtype, row.number("n")?, c, k, &input, &filter)
        .math(math)
        .groups(groups)
        .stride(&row.sizes("stride", dims, 1)?)
        .dilation(&row.sizes("dilation", dims, 1)?)
        .pad(&begin, &end)
        .direction(row.choice("direction", &directions)?.or(options.direction).unwrap_or_default())
        .layout(row.choice("layout", &layouts)?.or(options.layout).unwrap_or_default());
    if row.flag("bias")? {
        builder = builder.bias();
    }
    if row.flag("mask")? {
        builder = builder.mask();
    } else if row.flag("residual")? {
        builder = builder.residual();
    }
    if let Some(out) = row.scalar("out_dtype")? {
        builder = builder.out_dtype(out);
    }
    if let Some(activation) = row.activation()? {
        builder = builder.activation(activation);
    }
    builder = row.reductions()?.into_iter().fold(builder, ConvBuilder::reduce);
    if row.drops_c()? {
        builder = builder.drop_c();
    }
    if let Some(bytes) = options.workspace {
        builder = builder.workspace(bytes);
    }
    builder.build().map(Problem::Conv)
}

/// The direction for names, where forward goes without saying.
fn gradient(direction: Direction) -> String {
    if direction == Direction::Forward { String::new() } else { format!("{} ", direction.long_name()) }
}

/// A readable name that tells the problems of a set apart.
pub(super) fn name(problem: &Problem) -> String {
    match problem {
        Problem::Reduce(r) => r.key(),
        Problem::Gemm(g) => {
            let shared = if g.batch > 1 && g.b.batch_stride == 0 { " shared B" } else { "" };
            let (a, b) = (g.letter(0), g.letter(1));
            let added = problem.epilogue_words();
            let (dtype, size) = (problem.dtype_name(), format!("{}x{}x{}", g.m, g.n, g.k));
            match g.grouped {
                Some(of) => format!("{dtype} {a}{b} {size}, {} groups of {}{added}", g.batch, of.name()),
                None => format!("{dtype} {a}{b} {}x({size}){shared}{added}", g.batch),
            }
        }
        Problem::Conv(c) => {
            let join = |list: &[u64]| list.iter().map(u64::to_string).collect::<Vec<_>>().join("x");
            let brief = |list: &[u64]| if list.iter().all(|v| *v == list[0]) { list[0].to_string() } else { join(list) };
            format!(
                "{}N{} G{} K{} C{} {} {} s{} p{}:{} d{}{}",
                gradient(c.direction),
                c.n,
                c.groups,
                c.k,
                c.c,
                join(&c.filter),
                join(&c.input),
                brief(&c.stride),
                brief(&c.pad_begin),
                brief(&c.pad_end),
                brief(&c.dilation),
                c.activation.map_or(String::new(), |a| format!(" {a}"))
                    + match (c.mask, c.residual) {
                        (true, _) => " mask",
                        (_, true) => " residual",
                        _ => "",
                    }
                    + &c.reductions.iter().map(|r| format!(" {r}")).collect::<String>()
                    + if c.drop_c { " not stored" } else { "" }
            )
        }
    }
}
