//! The fields of a problem: how each is spelled in a text, as an option, as a CSV column, in Python and in C. The reference page of problems is
//! made of this table; tests compare it with the parsers.

/// One field of a problem. An empty spelling: the interface has no such field.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The kinds of problems that have it.
    pub of: &'static str,
    /// Its key in a problem's text.
    pub text: &'static str,
    /// The option of the command.
    pub option: &'static str,
    /// Columns of a case file, separated by blanks.
    pub column: &'static str,
    /// The keyword in Python.
    pub python: &'static str,
    /// The attribute of the C structure.
    pub c: &'static str,
    /// Its meaning in one phrase.
    pub meaning: &'static str,
    /// Values, and the default.
    pub range: &'static str,
}

/// The spellings of a field in the order of the columns of the reference page.
type Spellings = [&'static str; 5];

const fn field(of: &'static str, spelled: Spellings, meaning: &'static str, range: &'static str) -> Field {
    let [text, option, column, python, c] = spelled;
    Field { of, text, option, column, python, c, meaning, range }
}

/// Every field, products first.
pub const FIELDS: &[Field] = &[
    field("gemm", ["m", "--m", "m", "", "m"], "rows of C", "1 or more"),
    field("gemm", ["n", "--n", "n", "", "n"], "columns of C", "1 or more"),
    field("gemm", ["k", "--k", "k", "", "k"], "length of the dot products", "1 or more"),
    field("gemm", ["f32, bf16, ...", "--dtype", "dtype", "", "dtype"], "element type of A and B, with the math mode", "f32"),
    field("gemm", ["bi4, bi8, ...", "--b-dtype", "b_dtype", "b_dtype", "b_dtype"], "element type of B", "as A"),
    field(
        "all",
        ["outf32, ...", "--out-dtype", "out_dtype", "out_dtype", "out_dtype"],
        "element type of C, bias and residual",
        "as A",
    ),
    field(
        "gemm",
        ["tA, tB", "--trans", "trans_a trans_b", "", "trans_a, trans_b"],
        "A or B is stored transposed",
        "n, t (c, r: conjugates)",
    ),
    field("gemm", ["conja, conjb", "--trans", "conj_a conj_b", "", "conj_a, conj_b"], "conjugate of A or B", "complex types"),
    field("gemm", ["colMaj", "--order", "order", "", "order"], "storage order of all matrices", "row or col; row"),
    field("gemm", ["lda, ldb, ldc", "--lda, --ldb, --ldc", "lda ldb ldc", "", "lda, ldb, ldc"], "leading dimensions", "tight"),
    field("gemm", ["b", "--batch", "batch", "", "batch"], "number of products", "1"),
    field(
        "gemm",
        ["sa, sb, sc", "--stride-a, --stride-b, --stride-c", "b_operand", "", "stride_a, stride_b, stride_c"],
        "elements between batch entries",
        "tight; 0 shares an operand",
    ),
    field("gemm", ["oa, ob, oc", "--offset-a, --offset-b, --offset-c", "", "", ""], "first element within each buffer", "0"),
    field(
        "gemm",
        ["groupm, groupn, groupk", "--groups, --ragged", "groups ragged", "offsets", "grouped"],
        "batch entries are groups of rows or of k",
        "none",
    ),
    field(
        "gemm",
        ["zeroa, zerob, zerom, zeron", "--zero-points", "zero_points", "zero_points", "zero_a, zero_b"],
        "zero points of integer operands",
        "none",
    ),
    field(
        "gemm",
        ["scalem, scalen, ...", "--scales", "scales", "scales", "scale_m, scale_n"],
        "scales of rows, columns or blocks",
        "none",
    ),
    field(
        "gemm",
        ["alphaim, betaim", "--alpha-im, --beta-im", "alpha_im beta_im", "imaginary", "alpha_im, beta_im"],
        "alpha or beta is complex at launch",
        "real",
    ),
    field(
        "all",
        ["biasm, biasn, bias1", "--bias", "bias", "bias", "bias"],
        "bias vector along m or n; of a convolution along channels",
        "none",
    ),
    field(
        "all",
        ["actrelu, ...", "--activation", "activation", "activation", "activation"],
        "activation before the residual",
        "relu, gelu, gelutanh, silu, hardswish; none",
    ),
    field(
        "all",
        ["ldr, sr, res1", "--residual, --ldr", "residual ldr", "residual", "residual, ldr, stride_r"],
        "tensor that is added last",
        "none",
    ),
    field("all", ["redmax:n, ...", "--reduce", "reduce op axis", "reduce", "reduce"], "reductions of C beside it", "none"),
    field("all", ["noc", "--no-store", "keep_c", "store", "drop_c"], "C is not stored", "stored"),
    field(
        "gemm",
        ["dynm, dynn, dynb", "--dynamic", "", "", "dynamic_m, dynamic_n, dynamic_batch"],
        "extents chosen at launch",
        "fixed",
    ),
    field("all", ["ws", "--workspace", "", "", ""], "workspace budget; elements in a text of a product, else bytes", "1 GiB"),
    field(
        "conv",
        ["fwd, bwdd, bwdw", "--direction", "direction", "direction", "direction"],
        "forward, input gradient, filter gradient",
        "forward",
    ),
    field("conv", ["nchw, nhwc", "--layout", "layout", "layout", "layout"], "layout of all tensors", "nchw"),
    field("conv", ["n", "--n", "n", "", "n"], "samples", "1 or more"),
    field("conv", ["c", "--c", "c c_per_group", "", "c"], "input channels", "a multiple of the groups"),
    field("conv", ["k", "--k", "k k_per_group", "", "k"], "output channels", "a multiple of the groups"),
    field("conv", ["g", "--groups", "groups", "groups", "groups"], "groups of channels", "1"),
    field("conv", ["in", "--size", "h w input dims", "", "input, dims"], "spatial extents of the input", "1 to 3 dimensions"),
    field("conv", ["fil", "--filter", "r s filter", "", "filter"], "spatial extents of the filter", "at most the padded input"),
    field("conv", ["st", "--stride", "stride", "stride", "stride"], "step between windows", "1"),
    field("conv", ["dil", "--dilation", "dilation", "dilation", "dilation"], "step between taps", "1"),
    field(
        "conv",
        ["pb, pe", "--pad", "pad pad_begin pad_end", "padding", "pad_begin, pad_end"],
        "zeros before and after each dimension",
        "0",
    ),
    field("conv", ["mask", "--mask", "mask", "mask", "mask"], "the residual is a mask: gradient of a ReLU", "none"),
    field("reduce", ["in", "--shape", "", "", "shape, dims"], "shape of the tensor", "up to 8 dimensions"),
    field("reduce", ["over", "--over", "", "axis", "over"], "reduced axes", "all"),
    field("reduce", ["op", "--op", "", "op", "ops"], "operators", "sum, mean, max, argmax, logsumexp, ..."),
    field("reduce", ["st", "--strides", "", "", "strides"], "strides in elements", "dense"),
    field("reduce", ["o", "--offset", "", "", ""], "first element within the buffer", "0"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::columns;
    use std::collections::BTreeSet;

    /// Columns that name a line, not a field of a problem.
    const OF_LINES: [&str; 10] = ["id", "set", "problem", "calls", "layers", "call", "device", "torch_us", "ours_us", "reason"];

    #[test]
    fn the_columns_of_the_table_are_those_of_case_files() {
        let table: BTreeSet<&str> = FIELDS.iter().flat_map(|field| field.column.split_whitespace()).collect();
        let read: BTreeSet<&str> = columns().filter(|column| !OF_LINES.contains(column)).collect();
        assert_eq!(table, read);
    }

    #[test]
    fn the_table_names_every_attribute_of_the_c_structures() {
        let header = include_str!("../../c/include/tilewright.h");
        let named: BTreeSet<&str> = FIELDS.iter().flat_map(|field| field.c.split(", ")).collect();
        let mut missing = Vec::new();
        for structure in ["tw_gemm", "tw_conv", "tw_reduce"] {
            let (_, body) = header.split_once(&format!("typedef struct {structure} {{")).expect("the structure");
            let (body, _) = body.split_once('}').expect("its end");
            for line in body.lines().filter(|line| !line.trim_start().starts_with('*')) {
                let Some((declaration, _)) = line.split_once(';') else { continue };
                let Some((_, names)) = declaration.trim().rsplit_once("  ").or_else(|| declaration.trim().split_once(' ')) else {
                    continue;
                };
                let names = names.trim_start_matches("char ").split(", ");
                let names = names.map(|name| name.trim_start_matches('*').split('[').next().unwrap_or_default());
                missing.extend(names.filter(|name| !["size", "math", ""].contains(name) && !named.contains(name)));
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn no_phrase_is_long() {
        for field in FIELDS {
            assert!(field.meaning.split_whitespace().count() <= 12, "{}", field.meaning);
        }
    }
}
