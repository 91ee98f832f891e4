//! Case files: CSVs with one problem per line, told apart by their columns.
//!
//! | problem | required columns | further columns |
//! |---|---|---|
//! | GEMM | `m` `n` `k` | those of the table of its fields ([`Of::fields`]) |
//! | convolution, 2 dimensions | `n` `groups` `k` `c` `r` `s` `h` `w` | the same |
//! | convolution, any dimensions | `dims` `n` `groups` `k_per_group` `c_per_group` `filter` `input` | the same |
//! | any, as text | `problem` | what `tilewright.torch.record` writes beside it: `calls` `layers` `call` `device` `torch_us` `ours_us` `reason` (of a line without a problem) |
//!
//! `set` names the group of a line. `op` with `axis` is another spelling of one reduction. `none` and an empty cell are a field's default.
//! Sizes of several dimensions are joined by `x` (`3x3`); one number stands for all dimensions. Element type, layout and
//! direction of convolutions come from [`CaseOptions`] where the file does not say. Unknown columns are refused. A line that is
//! sound but asks for something tilewright cannot do (an element type, a direction) is listed in [`CaseFile::skipped`].

mod lines;

use crate::conv::{Direction, Layout};
use crate::error::ProblemError;
use crate::fields::Of;
use crate::math::Math;
use crate::problem::Problem;
use lines::{Row, case, name};
use std::path::Path;
use tilewright_ir::Scalar;

/// A problem of a case file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// Group of cases it belongs to: the `set` column, else the file's name.
    pub set: String,
    /// Readable name, e.g. `bf16 nt 1x(512x512x512)` or `N64 G1 K64 C64 3x3 56x56 s1 p1:1 d1`.
    pub name: String,
    /// Line in the file, from 1.
    pub line: u64,
    /// What to compute.
    pub problem: Problem,
    /// How often it is computed: the `calls` column, else once.
    pub calls: u64,
}

/// A sound line that asks for something that is not supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Line in the file, from 1.
    pub line: u64,
    /// The group it belongs to, as [`Case::set`].
    pub set: String,
    /// Element type as the file says it, where it does.
    pub dtype: Option<String>,
    /// Why.
    pub reason: String,
}

/// What a case file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaseFile {
    /// Problems, in the file's order.
    pub cases: Vec<Case>,
    /// Lines left out.
    pub skipped: Vec<Skipped>,
}

/// What a case file may leave open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaseOptions {
    /// Element type where there is no such column, and how it is multiplied; f32 by default.
    pub dtype: Option<(Scalar, Math)>,
    /// Layout of convolutions where there is no such column; NCHW by default.
    pub layout: Option<Layout>,
    /// Direction of convolutions where there is no such column; forward by default.
    pub direction: Option<Direction>,
    /// Workspace budget in bytes.
    pub workspace: Option<u64>,
}
/// What the lines of a file are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gemm,
    Conv2d,
    ConvNd,
    Text,
}

/// Columns that name a line, and a reduction as an operator with its axes.
const OF_LINES: [&str; 4] = ["id", "set", "op", "axis"];
const TEXT: [&str; 8] = ["set", "calls", "layers", "call", "device", "torch_us", "ours_us", "reason"];

impl Kind {
    /// Columns that lines of this kind have.
    const fn required(self) -> &'static [&'static str] {
        match self {
            Kind::Gemm => &["m", "n", "k"],
            Kind::Conv2d => &["k", "c", "r", "s", "h", "w", "n", "groups"],
            Kind::ConvNd => &["dims", "k_per_group", "c_per_group", "filter", "input", "n", "groups"],
            Kind::Text => &["problem"],
        }
    }
    /// Columns that they may have.
    fn optional(self) -> Vec<&'static str> {
        let of = match self {
            Kind::Gemm => Of::Gemm,
            Kind::Conv2d | Kind::ConvNd => Of::Conv,
            Kind::Text => return TEXT.to_vec(),
        };
        let columns = of.fields().iter().filter(|field| !field.required && !field.column.is_empty()).map(|field| field.column);
        let columns = columns.filter(|column| !self.required().contains(column));
        OF_LINES.into_iter().chain(columns).collect()
    }
}

/// Reads a case file.
///
/// # Errors
/// [`ProblemError::Case`] with file, line, column and remedy.
pub fn read(path: &Path, options: &CaseOptions) -> Result<CaseFile, ProblemError> {
    let file = path.display().to_string();
    let bytes =
        std::fs::read(path).map_err(|e| case(&file, 0, "", format!("cannot be read ({e}); give the path of a CSV file")))?;
    let stem = path.file_stem().map_or_else(|| file.clone(), |s| s.to_string_lossy().into_owned());
    parse(&file, &stem, &bytes, options)
}

/// Reads case-file bytes; `file` names them in errors, `set` is the default group of the cases.
///
/// # Errors
/// [`ProblemError::Case`] with file, line, column and remedy.
pub fn parse(file: &str, set: &str, bytes: &[u8], options: &CaseOptions) -> Result<CaseFile, ProblemError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(bytes);
    let fail = |line: u64, reason: String| case(file, line, "", reason);
    let broken = |e: csv::Error| {
        let line = e.position().map_or(0, csv::Position::line);
        fail(line, format!("{e}; the file must be UTF-8 text with comma-separated columns"))
    };
    let header: Vec<String> = reader.headers().map_err(broken)?.iter().map(str::to_string).collect();
    let kind = recognise(&header).map_err(|(column, reason)| case(file, 1, &column, reason))?;
    let mut found = CaseFile::default();
    for record in reader.records() {
        let record = record.map_err(broken)?;
        let line = record.position().map_or(0, csv::Position::line);
        if record.len() != header.len() {
            return Err(fail(line, format!("has {} columns, the header has {}", record.len(), header.len())));
        }
        let row = Row { file, line, header: &header, record: &record };
        let problem = row.problem(kind, options);
        let set = row.text("set").unwrap_or(set).to_string();
        // What people have edited there is no error: it is a weight.
        let calls = row.text("calls").and_then(|calls| calls.parse().ok()).unwrap_or(1u64);
        match problem {
            Ok(problem) => {
                // A problem given as text may have several lines, one for each operand layout that another column describes.
                match found.cases.iter_mut().find(|case| kind == Kind::Text && case.problem == problem) {
                    Some(case) => case.calls = case.calls.saturating_add(calls),
                    None => found.cases.push(Case { set, name: name(&problem), line, problem, calls }),
                }
            }
            Err(unsupported @ ProblemError::Unsupported { .. }) => {
                let dtype = row.text("dtype").map(str::to_string);
                found.skipped.push(Skipped { line, set, dtype, reason: unsupported.to_string() });
            }
            Err(error @ ProblemError::Case { .. }) => return Err(error),
            Err(ProblemError::Value { field, value, reason }) => {
                let column = if header.contains(&field) { field.as_str() } else { "" };
                return Err(case(file, line, column, format!("{field} = {value}: {reason}")));
            }
            Err(other) => return Err(fail(line, other.to_string())),
        }
    }
    if found.cases.is_empty() && found.skipped.is_empty() {
        return Err(fail(1, "there are no cases below the header; add a line per problem".to_string()));
    }
    Ok(found)
}

/// The kind of problem a header announces; (column, reason) if none.
fn recognise(header: &[String]) -> Result<Kind, (String, String)> {
    let has = |name: &str| header.iter().any(|h| h == name);
    let kind = if has("problem") {
        Kind::Text
    } else if has("k_per_group") || has("dims") {
        Kind::ConvNd
    } else if has("r") || (has("groups") && !has("m")) {
        Kind::Conv2d
    } else {
        Kind::Gemm
    };
    let (required, optional) = (kind.required(), kind.optional());
    for (index, column) in header.iter().enumerate() {
        if header[..index].contains(column) {
            return Err((column.clone(), "this column is there twice; remove one".to_string()));
        }
        if !required.contains(&column.as_str()) && !optional.contains(&column.as_str()) {
            let known = [required, &optional].concat().join(", ");
            return Err((column.clone(), format!("unknown column; the columns are {known}")));
        }
    }
    if let Some(missing) = required.iter().find(|c| !has(c)) {
        return Err((missing.to_string(), format!("this column is missing; needed are {}", required.join(", "))));
    }
    if has("pad") && (has("pad_begin") || has("pad_end")) {
        return Err(("pad".to_string(), "give either pad, or pad_begin and pad_end".to_string()));
    }
    Ok(kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Order;

    fn parsed(text: &str) -> Result<CaseFile, ProblemError> {
        parse("cases.csv", "cases", text.as_bytes(), &CaseOptions::default())
    }
    fn refused(text: &str, parts: &[&str]) {
        let message = parsed(text).expect_err(text).to_string();
        for part in parts {
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    }

    #[test]
    fn products() {
        let file = parsed(
            "set,dtype,trans_a,trans_b,batch,m,n,k,b_operand,reduce\nx,bf16,0,1,3,5,6,7,shared,\ny,i8,0,1,1,5,6,7,each,max:n\n",
        )
        .unwrap();
        let Problem::Gemm(gemm) = &file.cases[0].problem else { panic!("a GEMM") };
        assert_eq!((gemm.order, gemm.batch, gemm.b.batch_stride, gemm.a.batch_stride), (Order::Row, 3, 0, 35));
        assert_eq!((file.cases[0].name.as_str(), file.cases[0].set.as_str()), ("bf16 nt 3x(5x6x7) shared B", "x"));
        assert_eq!((file.skipped[0].line, file.skipped[0].reason.contains("integers")), (3, true));
        assert_eq!((file.skipped[0].set.as_str(), file.skipped[0].dtype.as_deref()), ("y", Some("i8")));
        let file = parsed("m,n,k,dtype,out_dtype\n5,6,7,e4m3,\n5,6,7,e5m2,bf16\n5,6,7,i8,\n5,6,7,u8,f16\n").unwrap();
        let keys = ["_e4m3_outf32", "_e5m2_outbf16", "_i8_outi32", "_u8_outf16"].map(|end| format!("_ws1073741824{end}"));
        assert!(file.cases.iter().zip(&keys).all(|(case, end)| case.problem.key().ends_with(end)), "{:?}", file.cases);
        assert!(file.cases.iter().all(|case| Problem::parse(&case.problem.key()).as_ref() == Ok(&case.problem)));
        let file = parsed("m,n,k,groups\n50,6,7,4\n").unwrap();
        assert!(file.cases[0].problem.key().ends_with("_f32_b4_sa0_sb42_sc0_groupm"), "{:?}", file.cases);
        assert_eq!(file.cases[0].name, "f32 nn 50x6x7, 4 groups of m");
        let file = parsed("m,n,k,groups,ragged\n5,6,70,4,k\n").unwrap();
        assert!(file.cases[0].problem.key().ends_with("_f32_b4_sa0_sb0_sc30_groupk"), "{:?}", file.cases);
        refused("m,n,k,ragged\n5,6,70,k\n", &["column ragged", "`groups`"]);
        let message = parsed("m,n,k,groups,batch\n50,6,7,4,2\n").unwrap_err().to_string();
        assert!(message.contains("groups") && message.contains("leave `batch` empty"), "{message}");
        let file = parsed("m,n,k,dtype,b_dtype\n5,6,7,e5m2,e4m3\n").unwrap();
        let problem = &file.cases[0].problem;
        assert!(problem.key().ends_with("_e5m2_be4m3_outf32") && Problem::parse(&problem.key()).as_ref() == Ok(problem));
        assert_eq!(file.cases[0].name, "e5m2 nn 1x(5x6x7) by e4m3 to f32");
        refused("m,n,k,dtype,b_dtype\n5,6,7,f16,e4m3\n", &["line 2", "b_dtype", "A is f16"]);
        refused("m,n,k,dtype,out_dtype\n5,6,7,f64,e4m3\n", &["line 2", "out_dtype", "e4m3"]);
        let file = parsed("m,n,k,trans_a,trans_b,order\n512,8,500000,1,0,col\n").unwrap();
        assert_eq!(file.cases[0].problem.key(), "tC0_tA1_tB0_colMaj1_m512_n8_k500000_lda500000_ldb500000_ldc512_ws268435456_f32");
        assert_eq!(file.cases[0].set, "cases");
        let file = parsed("m,n,k,dtype,out_dtype,scales\n5,6,7,e4m3,bf16,mn\n5,6,7,i8,f16,n\n").unwrap();
        let keys = ["_e4m3_outbf16_scalem_scalen", "_i8_outf16_scalen"];
        assert!(file.cases.iter().zip(keys).all(|(case, key)| case.problem.key().ends_with(key)));
        assert_eq!(file.cases[0].name, "e4m3 nn 1x(5x6x7) to bf16, scale m, scale n");
        let file = parsed("m,n,k,dtype,scales\n5,6,7,e4m3promoted,m1x128n128x128\n5,6,7,e5m2promoted,n1x128\n").unwrap();
        let keys = ["_e4m3promoted_outf32_scalem1x128_scalen128x128", "_e5m2promoted_outf32_scalen1x128"];
        assert!(file.cases.iter().zip(keys).all(|(case, key)| case.problem.key().ends_with(key)));
        refused("m,n,k,dtype,scales\n1,2,3,e4m3promoted,m1x16\n", &["column scales", "`m1x16`", "m1x128"]);
        refused("m,n,k,dtype,scales\n1,2,3,e4m3,m1x128\n", &["scales", "promoted to f32"]);
        let file = parsed("m,n,k,dtype,out_dtype,zero_points\n5,6,7,i8,bf16,an\n").unwrap();
        assert!(file.cases[0].problem.key().ends_with("_i8_outbf16_zeroa_zeron"));
        let file = parsed("m,n,k,dtype,alpha_im,beta_im\n5,6,7,complex64,1,1\n5,6,7,complex64,,1\n").unwrap();
        assert!(file.cases[0].problem.key().ends_with("_complex64_alphaim_betaim"), "{:?}", file.cases);
        assert_eq!(file.cases[1].name, "complex64 nn 1x(5x6x7), complex beta");
        let file =
            parsed("m,n,k,dtype,trans_a,conj_a\n5,6,7,complex128,1,1\n5,6,7,complex64tf32x3,0,\n5,6,7,bf16x6,0,\n").unwrap();
        let keys = ["_complex128_conja", "_complex64tf32x3", "_bf16x6"];
        assert!(file.cases.iter().zip(keys).all(|(case, key)| case.problem.key().ends_with(key)), "{:?}", file.cases);
        assert_eq!(file.cases[0].name, "complex128 cn 1x(5x6x7)");
        refused("m,n,k,zero_points\n1,2,3,am\n", &["column zero_points", "given twice"]);
        refused("m,n,k,scales\n1,2,3,k\n", &["column scales", "m, n, m1x128"]);
        let file = parsed("m,n,k,dtype,out_dtype,bias,activation,residual,ldr\n5,6,7,bf16,f32,n,gelu,1,8\n5,6,7,f32,,none,,0,\n")
            .unwrap();
        let keys = ["ldc6_ws536870912_bf16_outf32_biasn_actgelu_ldr8", "ldc6_ws268435456_f32"];
        assert!(file.cases.iter().zip(keys).all(|(case, end)| case.problem.key().ends_with(end)), "{:?}", file.cases);
        assert_eq!(file.cases[0].name, "bf16 nn 1x(5x6x7) to f32, bias n, gelu, residual");
    }

    #[test]
    fn convolutions() {
        let text = "n,groups,k,c,r,s,h,w,stride,pad_begin,pad_end,dilation,bias\n8,1,32,16,3,3,33,31,2,0,1,1,1\n";
        let file = parsed(text).unwrap();
        assert_eq!(
            file.cases[0].problem.key(),
            "conv_fwd_nchw_n8_g1_c16_k32_in33x31_fil3x3_st2x2_dil1x1_pb0x0_pe1x1_bias1_ws1073741824_f32"
        );
        assert_eq!(file.cases[0].name, "N8 G1 K32 C16 3x3 33x31 s2 p0:1 d1");
        let text = "dims,groups,n,k_per_group,c_per_group,filter,input,stride,pad,dilation\n3,2,4,8,6,3x3x1,9,2,1,1\n";
        let options =
            CaseOptions { dtype: Some((Scalar::F16, Math::Exact)), layout: Some(Layout::Nhwc), ..CaseOptions::default() };
        let file = parse("f", "f", text.as_bytes(), &options).unwrap();
        assert_eq!(
            file.cases[0].problem.key(),
            "conv_fwd_nhwc_n4_g2_c12_k16_in9x9x9_fil3x3x1_st2x2x2_dil1x1x1_pb1x1x1_pe1x1x1_bias0_ws1073741824_f16"
        );
        let options = CaseOptions { direction: Some(Direction::BackwardWeight), ..CaseOptions::default() };
        let file = parse("f", "f", text.as_bytes(), &options).unwrap();
        assert!(file.cases[0].problem.key().starts_with("conv_bwdw_nchw_n4_g2_c12_k16_in9x9x9"));
        assert!(file.cases[0].name.starts_with("backward-weight N4"), "{}", file.cases[0].name);
        let text = "n,groups,k,c,r,s,h,w,direction\n8,1,32,16,3,3,33,31,bwdd\n8,1,32,16,3,3,33,31,backward-data\n";
        let file = parsed(text).unwrap();
        assert_eq!(file.cases[0].problem, file.cases[1].problem);
        refused("n,groups,k,c,r,s,h,w,direction\n8,1,32,16,3,3,9,9,back\n", &["column direction", "backward-weight"]);
        refused("n,groups,k,c,r,s,h,w,direction,bias\n1,1,2,2,3,3,9,9,bwdw,1\n", &["column bias", "filter gradient"]);
    }

    #[test]
    fn reductions_are_columns() {
        let file = parsed("dtype,m,n,k,op,axis,keep_c\nbf16,8,4,2,sum,m,1\nbf16,8,4,2,max,n,0\n").unwrap();
        assert_eq!(file.cases[0].name, "bf16 nn 1x(8x4x2), sum:m");
        assert_eq!(file.cases[1].name, "bf16 nn 1x(8x4x2), max:n, C not stored");
        let list = parsed("m,n,k,reduce\n8,4,2,sum:m:stored absmax:mn\n8,4,2,\n").unwrap();
        assert!(list.cases[0].problem.key().ends_with("_redsum:m:stored_redabsmax:mn"));
        assert!(list.cases[1].problem.reductions().is_empty());
        let statistics = parsed("n,groups,k,c,r,s,h,w,reduce,keep_c\n2,1,4,3,1,1,5,5,sum:bm sumsq:bm,0\n").unwrap();
        assert!(statistics.cases[0].problem.key().ends_with("_redsum:bm_redsumsq:bm_noc"));
    }

    #[test]
    fn problems_as_text() {
        let key = "tC0_tA0_tB0_colMaj0_m5_n6_k7_lda7_ldb6_ldc6_ws0_f32";
        let file = parsed(&format!("problem,set,calls,layers,call,reason\n{key},aten::mm,2,a b,,\n{key},aten::mm,1,c,,\n,aten::addmm,1,d,\"[1, \"\"x\"\"]\",beta = 2\n"))
            .unwrap();
        assert_eq!((file.cases.len(), file.cases[0].problem.key().as_str(), file.cases[0].set.as_str()), (1, key, "aten::mm"));
        assert_eq!((file.skipped[0].set.as_str(), file.skipped[0].reason.contains("beta = 2")), ("aten::addmm", true));
        refused("problem\nnonsense\n", &["line 2, column problem", "nonsense"]);
        refused("problem,m\n1,2\n", &["line 1, column m", "unknown column"]);
    }

    #[test]
    fn faults_name_file_line_and_column() {
        refused("m,n,k,conj_b\n1,2,3,1\n", &["column conj_b", "complex dtype"]);
        refused("m,n,k,beta_im\n1,2,3,1\n", &["column beta_im", "are real", "complex dtype"]);
        refused("n,groups,k,c,r,s,h,w,dtype\n1,1,2,2,3,3,9,9,complex64\n", &["column dtype", "matrix products"]);
        refused("m,n,k\n1,2,3\n4,x,6\n", &["cases.csv, line 3, column n", "`x` is not a plain decimal"]);
        refused("m,n,k\n1,2\n", &["line 2", "has 2 columns, the header has 3"]);
        refused("m,n,k\n1,,3\n", &["line 2, column n", "is empty"]);
        refused("m,n,k\n1,-2,3\n", &["line 2, column n", "-2"]);
        refused("m,n,k\n1,0,3\n", &["line 2, column n", "n = 0", "at least 1"]);
        refused("m,n,k,q\n1,2,3,4\n", &["line 1, column q", "unknown column", "trans_a"]);
        refused("m,n,m\n1,2,3\n", &["line 1, column m", "twice"]);
        refused("m,n\n1,2\n", &["line 1, column k", "missing"]);
        refused("m,n,k\n", &["no cases"]);
        refused("", &["line 1", "missing"]);
        refused("m,n,k,dtype\n1,2,3,f31\n", &["column dtype", "bf16"]);
        refused("m,n,k,lda\n1,2,3,2\n", &["column lda", "at least 3"]);
        refused("m,n,k,bias\n1,2,3,k\n", &["column bias", "m, n, none"]);
        let capped = parsed("m,n,k,softcap\n5,6,7,2.5\n5,6,7,\n").unwrap();
        let found: Vec<bool> = capped.cases.iter().map(|case| case.problem.key().ends_with("_f32_softcap2.5")).collect();
        assert_eq!(found, [true, false]);
        let text = capped.cases[0].problem.key();
        assert_eq!(Problem::parse(&text).as_ref(), Ok(&capped.cases[0].problem));
        assert_eq!(capped.cases[0].name, "f32 nn 1x(5x6x7), softcap 2.5");
        refused("m,n,k,activation,softcap\n1,2,3,relu,30\n", &["softcap", "leave one of them out"]);
        refused("m,n,k,activation\n1,2,3,elu\n", &["column activation", "relu, gelu, gelutanh, silu, hardswish, exp, none"]);
        refused("m,n,k,ldr\n1,2,3,4\n", &["column ldr", "no residual"]);
        refused("m,n,k,residual,ldr\n1,2,3,1,1\n", &["column ldr", "at least 2"]);
        refused("m,n,k,dtype,out_dtype\n1,2,3,f64,f32\n", &["column out_dtype", "f64"]);
        refused("m,n,k,trans_a\n1,2,3,2\n", &["column trans_a", "0 or 1"]);
        refused("dtype,m,n,k,op,axis,keep_c\nbf16,1,2,3,median,m,1\n", &["column op", "operators are sum"]);
        refused("m,n,k,op,axis\n1,2,3,sum,k\n", &["column op", "write sum:k:a or sum:k:b"]);
        refused("m,n,k,op,axis\n1,2,3,sum,x\n", &["column op", "`x` is no axis"]);
        refused("m,n,k,op\n1,2,3,sum\n", &["column axis", "is empty"]);
        refused("m,n,k,keep_c\n1,2,3,0\n", &["reduce = none", "store C"]);
        refused("m,n,k,reduce\n1,2,3,sum:bn\n", &["column reduce", "no batch"]);
        refused("n,groups,k,c,r,s,h,w\n1,2,4,3,1,1,4,4\n", &["line 2, column c", "multiple of the 2 groups"]);
        refused("n,groups,k,c,r,s,h,w,pad,pad_end\n1,1,4,3,1,1,4,4,1,1\n", &["column pad", "either"]);
        let message = parse("f", "f", b"m,n,k\n1,\xff,3\n", &CaseOptions::default()).unwrap_err().to_string();
        assert!(message.contains("f, line 2") && message.contains("UTF-8"), "{message}");
        assert!(
            read(Path::new("/nonexistent/x.csv"), &CaseOptions::default())
                .unwrap_err()
                .to_string()
                .contains("/nonexistent/x.csv")
        );
    }
}
