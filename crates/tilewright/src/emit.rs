//! A program as one source file that stands alone: what it computes, how to launch it, then every kernel.

use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write;
use tilewright_check::run::operands;
use tilewright_gen::plan::Plan;
use tilewright_gen::program::{ADDED_ALIGN, Binding, Factor, Groups, Launch, Program};
use tilewright_ir::{ArgKind, Dialect, Invalid, Target, print};
use tilewright_problem::Extent;
use tilewright_problem::Problem;
use tilewright_problem::Role;
use tilewright_problem::contraction::Contraction;
use tilewright_problem::view::{COL, G, ROW};

/// What a source file is made from.
///
/// ```
/// use tilewright::{Context, Emission, Gemm, Options, RecordsAt, Scalar};
///
/// # let options = Options { device: Some("emu".into()), records: RecordsAt::Memory, ..Options::default() };
/// # let context = Context::with(options)?;
/// let operation = context.gemm(Gemm::new(Scalar::F32, 4, 4, 4))?;
/// let (plan, target) = (operation.plan()?, &context.info().target);
/// let (problem, contraction, program) = (operation.problem(), operation.space().contraction(&plan), operation.program(&plan)?);
/// let emission = Emission { problem, contraction, plan: &plan, program: &program, target, atomics: false };
/// assert_eq!(emission.source()?, operation.source()?);
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Emission<'a> {
    /// What is computed.
    pub problem: &'a Problem,
    /// The contraction it became.
    pub contraction: &'a Contraction,
    /// The plan.
    pub plan: &'a Plan,
    /// Kernels and launches.
    pub program: &'a Program,
    /// Dialect and architecture.
    pub target: &'a Target,
    /// Sums by atomic additions were allowed.
    pub atomics: bool,
}

/// What begins the line of the head that programs read, and the version of what follows it.
pub(crate) const MARK: &str = "// tilewright-source ";
pub(crate) const VERSION: u64 = 1;

impl Emission<'_> {
    /// The source file. The same input gives the same text.
    ///
    /// # Errors
    /// A kernel that the target cannot run.
    pub fn source(&self) -> Result<String, Invalid> {
        let sources = self.program.kernels.iter().map(|k| print(k, self.target)).collect::<Result<Vec<_>, _>>()?;
        let mut out = self.commented(&sources);
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "//\n// For programs, such as `tilewright verify --source`; the kernels below may be edited, this line may not:"
        );
        let _ = writeln!(out, "{MARK}{}", self.facts(&sources));
        let mut seen = HashSet::new();
        for source in &sources {
            out.push('\n');
            for item in items(&source.text) {
                // Kernels of one program share helper types and functions: each is written once.
                let shared = !item.trim().is_empty()
                    && !item.starts_with("//")
                    && !item.starts_with('#')
                    && !item.contains(&format!(" {}(", source.entry));
                if !shared || seen.insert(item.to_string()) {
                    out.push_str(item);
                }
            }
        }
        Ok(out)
    }

    /// The head alone: what is computed, and how the kernels are launched.
    pub(crate) fn about(&self) -> Result<String, Invalid> {
        let sources = self.program.kernels.iter().map(|k| print(k, self.target)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.commented(&sources))
    }

    fn commented(&self, sources: &[tilewright_ir::Source]) -> String {
        let lines = self.head(sources).into_iter();
        lines.map(|line| if line.is_empty() { "//\n".to_string() } else { format!("// {line}\n") }).collect()
    }

    /// Problem, plan and launches, from which [`Edited`](crate::Edited) finds them again.
    fn facts(&self, sources: &[tilewright_ir::Source]) -> Value {
        json!({
            "version": VERSION,
            "problem": self.problem.key(),
            "plan": self.plan.to_string(),
            "arch": self.target.arch,
            "dialect": self.target.dialect,
            "atomics": self.atomics,
            "workspace_bytes": self.program.workspace_bytes,
            "launches": launches(self.program, sources),
        })
    }

    /// A line for each buffer but the workspace.
    fn buffers(&self) -> Vec<String> {
        let (c, mut lines) = (self.contraction, Vec::new());
        for operand in operands(c) {
            let role = match self.problem {
                Problem::Gemm(_) => format!("{operand:?}"),
                Problem::Conv(conv) => format!("{operand:?} ({})", conv.operand(operand).0),
                Problem::Reduce(_) => "A (tensor)".into(),
            };
            let t = c.tensor(operand);
            let need = self.program.alignments.iter().find(|a| a.operand == operand).map_or(1, |a| a.bytes.max(t.scalar.bytes()));
            let most = if c.dynamic().is_none() { "" } else { "up to " };
            let base = self.program.bases.iter().find(|a| a.operand == operand);
            let base = base.map_or(String::new(), |a| format!(", the buffer to {}", a.bytes));
            lines.push(format!(
                "  {role:<10} {most}{} x {} from its offset on; that element aligned to {need} bytes{base}",
                t.len, t.scalar
            ));
        }
        for (quant, x) in c.quants() {
            lines.push(format!("  {:<10} {} x {}; aligned to {ADDED_ALIGN} bytes", quant.name(), x.len, x.scalar));
        }
        if let Some(bias) = c.bias() {
            let along = if bias.along_n { "n" } else { "m" };
            let batched = if bias.view.uses(G) && c.g > 1 { ", by g" } else { "" };
            lines.push(format!(
                "  {:<10} {} x {}, along {along}{batched}; aligned to {ADDED_ALIGN} bytes",
                "bias", bias.len, bias.scalar
            ));
        }
        if let Some(x) = c.residual() {
            let place = x.view.is_affine_box().map_or(String::new(), |b| {
                format!(", element (g, m, n) at {} g + {} m + {} n", b.strides[G], b.strides[ROW], b.strides[COL])
            });
            lines.push(format!("  {:<10} {} x {}{place}; aligned to {ADDED_ALIGN} bytes", "residual", x.len, x.scalar));
        }
        if c.up().is_some() {
            let about = "the gate's other factor, as B lies";
            lines.push(format!("  {:<10} {} x {}, {about}; aligned to {ADDED_ALIGN} bytes", "up", c.b.len, c.b.scalar));
        }
        for (role, x) in c.second_operands() {
            let about = "as the operand of the first pair lies, with its own leading dimension";
            lines.push(format!("  {:<10} {} x {}, {about}; aligned to {ADDED_ALIGN} bytes", role.name(), x.len, x.scalar));
        }
        if let Some(x) = c.preactivations() {
            let about = "both factors' columns in B's order, as C lies, without gaps";
            lines.push(format!("  {:<10} {} x {}, {about}; aligned to {ADDED_ALIGN} bytes", "preactivations", x.len, x.scalar));
        }
        for r in c.all_reductions() {
            let (name, values) = (format!("reduced_{}", r.number), c.result_shape(r).left(r.over));
            lines.push(format!("  {name:<10} {values} x {}, {r}; aligned to {ADDED_ALIGN} bytes", r.scalar));
        }
        lines
    }
    fn head(&self, sources: &[tilewright_ir::Source]) -> Vec<String> {
        let c = self.contraction;
        let mut lines = vec![
            format!("Generated by tilewright {}", env!("CARGO_PKG_VERSION")),
            format!("Problem   {}", self.problem),
            format!("Plan      {}", self.plan),
            format!("Planned   for {}", self.target.arch),
            String::new(),
            format!("C[g,m,n] = {}", c.formula().replace("sum_k", "sum over k of")),
            format!(
                "{}{}; beta = 0 never reads C",
                extents(c),
                if self.problem.parts() == 2 { ", of the parts of complex numbers" } else { "" }
            ),
            String::new(),
            "Buffers".to_string(),
        ];
        lines.extend(self.buffers());
        let workspace = match self.program.workspace_bytes {
            0 => "none".to_string(),
            bytes => format!("{bytes} bytes, aligned to 512"),
        };
        lines.push(format!("  {:<10} {workspace}", "workspace"));
        lines.push(String::new());
        let group = match self.target.dialect {
            Dialect::OpenCl => "grid in work-groups; the global size is grid x threads",
            Dialect::Cuda | Dialect::Hip => "grid in blocks",
        };
        lines.push(format!("Launches, in this order on one queue ({group})"));
        for (index, launch) in self.program.launches.iter().enumerate() {
            let (Some(kernel), Some(source)) = (self.program.kernels.get(launch.kernel), sources.get(launch.kernel)) else {
                continue;
            };
            let [x, y, z] = launch.grid;
            let x = launch.groups.as_ref().map_or(x.to_string(), |groups| groups.to_string());
            let mut line = format!("  {}. {}: grid {x} x {y} x {z}, {} threads", index + 1, source.entry, kernel.threads);
            if source.dynamic_shared_bytes > 0 {
                let _ = write!(
                    line,
                    ", {} bytes of dynamic shared memory (raise the kernel's limit to it first)",
                    source.dynamic_shared_bytes
                );
            }
            lines.push(line);
            let args: Vec<String> =
                kernel.args.iter().zip(&launch.args).map(|(a, b)| format!("{} = {}", a.name, binding(launch, b))).collect();
            lines.push(format!("     {}", args.join(", ")));
            for arg in &kernel.args {
                if let ArgKind::TensorMap(map) = &arg.kind {
                    lines.push(format!("     {}: {}", arg.name, crate::map::words(map)));
                }
            }
            for m in &launch.maps {
                let name = kernel.args.get(m.arg).map_or("", |a| &a.name);
                lines.push(format!("     {name}: extent of dimension {} is {}", m.dim, m.extent));
            }
        }
        lines
    }
}

/// What is launched, in order: the same for an edited source.
pub(crate) fn launches(program: &Program, sources: &[tilewright_ir::Source]) -> Value {
    let one = |launch: &Launch| {
        let (kernel, source) = (program.kernels.get(launch.kernel)?, sources.get(launch.kernel)?);
        let args = kernel.args.iter().zip(&launch.args).map(|(a, b)| format!("{} = {}", a.name, binding(launch, b)));
        let [x, y, z] = launch.grid;
        Some(json!({
            "kernel": source.entry,
            "grid": [launch.groups.as_ref().map_or(json!(x), |groups| json!(groups.to_string())), json!(y), json!(z)],
            "threads": kernel.threads,
            "dynamic_shared_bytes": source.dynamic_shared_bytes,
            "args": args.collect::<Vec<_>>(),
        }))
    };
    program.launches.iter().filter_map(one).collect()
}

/// Extents, and what of them a launch chooses.
fn extents(c: &Contraction) -> String {
    let all = format!("g = {}, m = {}, n = {}, k = {}", c.g, c.m, c.n, c.k);
    let run_time: Vec<String> = [Extent::M, Extent::N, Extent::G]
        .into_iter()
        .filter(|e| c.dynamic().has(*e))
        .map(|e| format!("1 to {} for {}", c.extents().of(e), e.name()))
        .collect();
    if run_time.is_empty() { all } else { format!("{all} at most: each launch chooses {}", run_time.join(", ")) }
}

/// What an argument is bound to, in words.
fn binding(launch: &Launch, binding: &Binding) -> String {
    match binding {
        Binding::Extent(extent) => extent.name().into(),
        Binding::Entries { first, most } => Factor::Entries { first: *first, most: *most }.to_string(),
        Binding::Work => launch.groups.as_ref().map_or(launch.grid[0].to_string(), Groups::formula),
        Binding::Buffer(operand) => format!("{operand:?}"),
        Binding::Offset(operand) => format!("first element of {operand:?}"),
        Binding::Quant(quant) => quant.name().into(),
        Binding::Bias => "bias".into(),
        Binding::Residual => "residual".into(),
        Binding::Preactivations => "preactivations".into(),
        Binding::Up => "up".into(),
        Binding::Second(operand) => Role::second(*operand).name(),
        Binding::Reduction(number) => format!("reduced_{number}"),
        Binding::OperandMap(operand, 0) => format!("tensor map of {operand:?} from its first element on"),
        Binding::OperandMap(operand, first) => format!("tensor map of {operand:?} from element {first} on"),
        Binding::UpMap(first) => format!("tensor map of up from element {first} on"),
        Binding::SecondMap(operand, first) => format!("tensor map of {} from element {first} on", Role::second(*operand).name()),
        Binding::PreactivationsMap(first) => format!("tensor map of the pre-activations from element {first} on"),
        Binding::WorkspaceMap(byte) => format!("tensor map of the workspace from byte {byte} on"),
        Binding::Workspace(0) => "workspace".into(),
        Binding::Workspace(byte) => format!("workspace + {byte} bytes"),
        Binding::Alpha => "alpha".into(),
        Binding::Beta => "beta".into(),
        Binding::AlphaIm => "alpha_im".into(),
        Binding::BetaIm => "beta_im".into(),
        Binding::I64(value) => value.to_string(),
        Binding::I32(value) => value.to_string(),
    }
}

/// Top-level pieces of a source: comment lines, preprocessor lines, definitions. Joined they are the source.
fn items(text: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let (mut start, mut end, mut depth) = (0, 0, 0i64);
    for line in text.split_inclusive('\n') {
        end += line.len();
        let code = line.split("//").next().unwrap_or_default();
        depth += code.matches(['{', '(']).count() as i64 - code.matches(['}', ')']).count() as i64;
        let last = line.trim_end().chars().next_back();
        // A macro may have several lines.
        let directive = text[start..].starts_with('#');
        let done = match last {
            Some('\\') => false,
            None | Some(';' | '}') => true,
            _ => line.starts_with("//") || directive,
        };
        if depth <= 0 && done {
            items.push(&text[start..end]);
            start = end;
        }
    }
    if start < end {
        items.push(&text[start..end]);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_the_source_in_pieces() {
        let text = "// head\n\n#define X 1\n#define Y(a) \\\n    f(a)\nstruct a { int b; };\nstatic int f(int a) {\n    return a;\n}\nvoid k(\n    int a)\n{\n}\n";
        let pieces = items(text);
        assert_eq!(pieces.concat(), text);
        assert_eq!(pieces.len(), 7);
        assert_eq!(pieces[3], "#define Y(a) \\\n    f(a)\n");
        assert!(pieces[5].starts_with("static") && pieces[5].ends_with("}\n"));
        assert!(pieces[6].starts_with("void k("));
    }
}
