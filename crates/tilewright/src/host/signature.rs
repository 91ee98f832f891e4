//! What the function takes: the arguments of a BLAS call, in its order, and what is asked of each.

use super::{Api, HostCode};
use crate::element::type_name;
use std::fmt::Write;
use tilewright_gen::program::{ADDED_ALIGN, Binding};
use tilewright_ir::Scalar;
use tilewright_problem::contraction::Operand;
use tilewright_problem::{Extent, Gemm, Problem, Role};

/// What a workspace is aligned to, in bytes.
const WORKSPACE_ALIGN: u64 = 256;

/// What a parameter means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Meaning {
    /// Memory.
    Memory(Role),
    /// The factor of the sums.
    Alpha,
    /// The factor of the old result.
    Beta,
    /// The imaginary part of a complex factor of the sums.
    AlphaIm,
    /// That of the old result.
    BetaIm,
    /// A number that the kernels hold for alone.
    Fixed(u64),
    /// An extent that the call chooses.
    Extent(Extent),
}

/// A parameter.
pub(crate) struct Parameter {
    /// Its type in C.
    pub ty: &'static str,
    /// Its name.
    pub name: String,
    /// What it stands for.
    pub meaning: Meaning,
    /// Where it is refused: an expression in C.
    pub refused: Vec<String>,
    /// What it is.
    pub about: String,
}

impl HostCode<'_> {
    /// The function with its parameters.
    pub(super) fn prototype(&self, api: &Api) -> String {
        let (name, stream) = (self.name, api.stream);
        let own = [format!("const {name}_kernels *kernels"), format!("{stream} stream")];
        let others = self.parameters().into_iter().map(|p| format!("{} {}", p.ty, p.name).replace("* ", "*"));
        format!("{} {name}(\n    {})", api.status, own.into_iter().chain(others).collect::<Vec<_>>().join(",\n    "))
    }

    /// The comment above it.
    pub(super) fn about_call(&self, api: &Api) -> String {
        let mut out = format!(
            "/* {} = {}\n   Starts it on a stream and returns: nothing is allocated or waited for, so the stream may be capturing a graph.\n\
             \x20  Gives {} for what these kernels do not hold for.\n",
            if self.emission.contraction.drop_c { "What is reduced is C, which" } else { "C" },
            self.emission.contraction.formula().trim_start_matches("C[g,m,n] = "),
            api.invalid
        );
        for p in self.parameters() {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "     {:<14} {}", p.name, p.about);
        }
        out + "*/"
    }

    /// All parameters after the kernels and the stream.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let mut all = match self.emission.problem {
            Problem::Gemm(gemm) => self.gemm(gemm),
            Problem::Conv(conv) => {
                let name = |operand| conv.operand(operand).0.replace(' ', "_");
                let mut all = vec![self.factor(Meaning::Alpha)];
                all.extend([Operand::A, Operand::B].map(|x| self.operand(x, name(x))));
                if !conv.drop_c {
                    all.extend([self.factor(Meaning::Beta), self.operand(Operand::C, name(Operand::C))]);
                }
                all
            }
            Problem::Reduce(_) => vec![self.factor(Meaning::Alpha), self.operand(Operand::A, "tensor".into())],
        };
        let c = self.emission.contraction;
        let align = u64::from(ADDED_ALIGN);
        for (quant, x) in c.quants() {
            let about = format!("{}, {} x {}", quant.words(), x.len, x.scalar);
            all.push(pointer("const void *", quant.name().into(), quant.into(), align, about));
        }
        if let Some(bias) = c.bias() {
            let about = format!("bias vector, {} x {}", bias.len, bias.scalar);
            all.push(pointer("const void *", "bias".into(), Role::Bias, align, about));
        }
        if let Some(x) = c.residual() {
            let parts = self.emission.problem.parts();
            let about = format!(
                "residual, {} x {}, laid out as C is with its own leading dimension",
                x.len / parts,
                type_name(x.scalar, parts)
            );
            all.push(pointer("const void *", "residual".into(), Role::Residual, align, about));
        }
        if c.up().is_some() {
            let about = format!("up weights, {} x {}, laid out as B is", c.b.len, c.b.scalar);
            all.push(pointer("const void *", Role::Up.name(), Role::Up, align, about));
        }
        for (role, x) in c.second_operands() {
            let about = format!("{}, {} x {}", role.words(), x.len, x.scalar);
            all.push(pointer("const void *", role.name(), role, align, about));
        }
        if let Some(x) = c.preactivations() {
            let about =
                format!("pre-activations, {} x {}, laid out as C is without gaps, twice as many columns", x.len, x.scalar);
            all.push(pointer("void *", Role::Preactivations.name(), Role::Preactivations, align, about));
        }
        for r in c.all_reductions() {
            let about = format!("{r}, {} x {}", c.result_shape(r).left(r.over), r.scalar);
            all.push(pointer("void *", format!("reduced_{}", r.number), Role::Reduction(r.number), align, about));
        }
        if self.emission.program.workspace_bytes > 0 {
            let about = format!("{} bytes; calls that may overlap need one each", self.emission.program.workspace_bytes);
            all.push(pointer("void *", "workspace".into(), Role::Workspace, WORKSPACE_ALIGN, about));
        }
        // Results in integers are not scaled.
        let bound = |binding: Binding| self.emission.program.launches.iter().any(|launch| launch.args.contains(&binding));
        all.retain(|p| match p.meaning {
            Meaning::Alpha => bound(Binding::Alpha),
            Meaning::Beta => bound(Binding::Beta),
            Meaning::AlphaIm => bound(Binding::AlphaIm),
            Meaning::BetaIm => bound(Binding::BetaIm),
            _ => true,
        });
        all
    }

    fn gemm(&self, gemm: &Gemm) -> Vec<Parameter> {
        let c = self.emission.contraction;
        let extent = |name: &str, extent: Extent, about: &str| {
            let most = gemm.extents().of(extent);
            let dynamic = c.dynamic().has(extent);
            let held = if dynamic { format!("1 to {most}") } else { most.to_string() };
            let refused = if dynamic { format!("{name} < 1 || {name} > {most}") } else { format!("{name} != {most}") };
            let meaning = if dynamic { Meaning::Extent(extent) } else { Meaning::Fixed(most) };
            number(name.into(), meaning, refused, format!("{about}: {held}"))
        };
        let fixed = |name: String, value: u64, about: String| {
            number(name.clone(), Meaning::Fixed(value), format!("{name} != {value}"), format!("{about}: {value}"))
        };
        let batched = gemm.batch > 1 || c.dynamic().has(Extent::G);
        let matrix = |operand: Operand| {
            let (x, name) = (gemm.matrices()[operand as usize], format!("{operand:?}"));
            let lower = name.to_lowercase();
            let stored = if x.trans { ", stored transposed" } else { "" };
            let mut all = vec![
                self.operand(operand, name.clone()),
                fixed(format!("ld{lower}"), x.ld, format!("leading dimension of {name}, {}{stored}", order(gemm))),
            ];
            if batched {
                let about = format!("elements between the matrices of {name}");
                all.push(fixed(format!("stride_{lower}"), x.batch_stride, about));
            }
            all
        };
        let mut all = vec![
            extent("m", Extent::M, "rows of C"),
            extent("n", Extent::N, "columns of C"),
            fixed("k".into(), gemm.k, "length of the sums".into()),
            self.factor(Meaning::Alpha),
            self.factor(Meaning::AlphaIm),
        ];
        all.extend([Operand::A, Operand::B].into_iter().flat_map(matrix));
        if !gemm.drop_c {
            all.extend([Meaning::Beta, Meaning::BetaIm].map(|factor| self.factor(factor)));
            all.extend(matrix(Operand::C));
        }
        if batched {
            all.push(extent("batch", Extent::G, "products"));
        }
        all
    }

    fn factor(&self, meaning: Meaning) -> Parameter {
        let ty = if self.emission.contraction.result_scalar() == Scalar::F64 { "double" } else { "float" };
        let (name, about) = match meaning {
            Meaning::Beta => ("beta", "factor of the old result; 0 never reads it"),
            Meaning::AlphaIm => ("alpha_im", "imaginary part of that factor"),
            Meaning::BetaIm => ("beta_im", "imaginary part of that factor"),
            _ => ("alpha", "factor of the sums, or of a tensor's elements"),
        };
        Parameter { ty, name: name.into(), meaning, refused: Vec::new(), about: about.into() }
    }

    fn operand(&self, operand: Operand, name: String) -> Parameter {
        let (program, t) = (self.emission.program, self.emission.contraction.tensor(operand));
        let (from, parts) = (self.offset_bytes(operand), self.emission.problem.parts());
        let mut p = pointer(
            if operand == Operand::C { "void *" } else { "const void *" },
            name,
            operand.into(),
            1,
            format!("{} x {}", t.len / parts, type_name(t.scalar, parts)),
        );
        if from > 0 {
            p.about += &format!(" from byte {from} on");
        }
        let at = address(operand.into());
        let elements = program.alignments.iter().map(|a| (a, if from > 0 { format!("({at} + {from}u)") } else { at.clone() }));
        let bases = program.bases.iter().map(|a| (a, at.clone()));
        for (need, what) in elements.chain(bases).filter(|(a, _)| a.operand == operand && a.bytes > 1) {
            let refused = format!("{what} % {} != 0", need.bytes);
            if !p.refused.contains(&refused) {
                p.about += &format!(", aligned to {} bytes{}", need.bytes, if what == at { "" } else { " there" });
                p.refused.push(refused);
            }
        }
        p
    }

    /// Bytes from an operand's pointer to its first element.
    pub(super) fn offset_bytes(&self, operand: Operand) -> u64 {
        self.emission.contraction.tensor(operand).scalar.bytes_of(self.offset(operand))
    }

    /// The same in elements, of complex ones in their parts.
    pub(super) fn offset(&self, operand: Operand) -> u64 {
        match self.emission.problem {
            Problem::Gemm(gemm) => gemm.matrices()[operand as usize].offset * gemm.parts(),
            Problem::Conv(_) => 0,
            Problem::Reduce(reduce) => reduce.offset,
        }
    }
}

const fn order(gemm: &Gemm) -> &'static str {
    match gemm.order {
        tilewright_problem::Order::Row => "row-major",
        tilewright_problem::Order::Col => "column-major",
    }
}

fn number(name: String, meaning: Meaning, refused: String, about: String) -> Parameter {
    Parameter { ty: "int64_t", name, meaning, refused: vec![refused], about }
}

fn pointer(ty: &'static str, name: String, role: Role, align: u64, about: String) -> Parameter {
    let at = address(role);
    let mut refused = vec![format!("{at} == 0")];
    let mut about = about;
    if align > 1 {
        refused.push(format!("{at} % {align} != 0"));
        about += &format!(", aligned to {align} bytes");
    }
    Parameter { ty, name, meaning: Meaning::Memory(role), refused, about }
}

/// The variable that holds the address of a memory.
pub(super) fn address(role: Role) -> String {
    match role {
        Role::Reduction(number) => format!("at_reduced_{number}"),
        role => format!("at_{}", role.name()),
    }
}
