//! Spells a kernel as source text: one printer for the C family, one table of differences per dialect.
//!
//! `expr` and `stmt` walk the kernel, `dialect` says what a dialect must answer, and `cuda`, `hip` and `opencl` answer.

mod after_barrier;
mod bulk;
mod cpp;
mod cuda;
mod dialect;
mod expr;
mod fences;
mod hip;
mod matrix;
mod names;
mod opencl;
mod stmt;
mod uses;

use crate::kernel::any;
use crate::validate::{Fault, Invalid};
use crate::{Access, ArgId, ArgKind, BulkOp, Dialect, Kernel, RegId, SharedId, Stmt, Target, VarId};
use after_barrier::AfterBarrier;
use dialect::{Arena, Prelude, Space};
use fences::Fences;
use names::Namer;
use std::collections::HashMap;
use uses::Uses;

/// Source text of one kernel, ready for the dialect's compiler.
///
/// ```
/// use tilewright_ir::{Base, Builder, Builtin, Scalar, Target, print};
///
/// let mut b = Builder::new("example", 128);
/// // 64 KiB of shared memory: more than CUDA gives a kernel that does not ask for it.
/// let stages = b.shared("stages", Scalar::F32, 16 << 10, 0);
/// let zero = b.float(0.0, Scalar::F32);
/// b.store(Base::Shared(stages), Builtin::LocalId, zero, None);
/// let source = print(&b.finish(), &Target::by_arch("sm_90a").expect("a known architecture"))?;
/// assert_eq!((source.entry.as_str(), source.dynamic_shared_bytes), ("example", 65536));
/// # Ok::<(), tilewright_ir::Invalid>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The text. It includes no header and stands alone.
    pub text: String,
    /// Name of the entry point in it.
    pub entry: String,
    /// Bytes of shared memory the host passes at launch (CUDA beyond 48 KiB, where it also raises the function's limit). It is 0
    /// where the text declares all it uses.
    pub dynamic_shared_bytes: u32,
}

/// Prints a kernel in the dialect of a target, after validating it. The same kernel and target give the same text: its
/// [own](Kernel::text) where it has one.
///
/// # Errors
/// What [`crate::validate`] finds.
pub fn print(kernel: &Kernel, target: &Target) -> Result<Source, Invalid> {
    crate::validate(kernel, target)?;
    let dialect: &dyn dialect::Dialect = match target.dialect {
        Dialect::Cuda => &cuda::Cuda,
        Dialect::Hip => &hip::Hip,
        Dialect::OpenCl => &opencl::OpenCl,
    };
    let rolled = dialect.repeats().then(|| crate::reroll(kernel));
    let kernel = rolled.as_ref().unwrap_or(kernel);
    let mut printer = Printer {
        kernel,
        target,
        dialect,
        prelude: Prelude::default(),
        names: Namer::new(dialect.reserved()),
        fences: Fences::new(kernel),
        uses: Uses::of(kernel),
        after_barrier: AfterBarrier::default(),
        args: Vec::new(),
        vars: vec![String::new(); kernel.vars.len()],
        regs: Vec::new(),
        shared: Vec::new(),
        tx_names: Vec::new(),
        cursors: vec![String::new(); kernel.cursors.len()],
        counters: HashMap::new(),
        given: vec![false; kernel.cursors.len()],
        out: String::new(),
        depth: 0,
    };
    let printed = printer.source().map_err(|fault| Invalid { kernel: kernel.name.clone(), at: "printing".into(), fault })?;
    Ok(match &kernel.text {
        Some(text) => Source { text: text.clone(), ..printed },
        None => printed,
    })
}

/// State while one kernel is printed. Names stand at the index of what they name.
struct Printer<'k> {
    kernel: &'k Kernel,
    target: &'k Target,
    dialect: &'k dyn dialect::Dialect,
    prelude: Prelude,
    names: Namer,
    fences: Fences,
    uses: Uses<'k>,
    after_barrier: AfterBarrier,
    args: Vec<String>,
    vars: Vec<String>,
    regs: Vec<String>,
    shared: Vec<String>,
    tx_names: Vec<String>,
    cursors: Vec<String>,
    /// Counters of repeated statements, which are constants, with their numbers of steps.
    counters: HashMap<VarId, i64>,
    /// Cursors that start at the kernel's own arguments.
    given: Vec<bool>,
    out: String,
    depth: usize,
}

impl Printer<'_> {
    fn source(&mut self) -> Result<Source, Fault> {
        let kernel = self.kernel;
        let mut entry = self.names.declare_entry(&kernel.name);
        self.args = kernel.args.iter().map(|a| self.names.declare(&a.name)).collect();
        self.dialect.start(kernel, &mut self.prelude);
        let params: Vec<String> = (0..kernel.args.len()).map(|i| self.param(ArgId(i as u32))).collect();

        self.depth = 1;
        // Where a part of a problem has no terms, nothing comes to shared memory.
        let used = !kernel.tx_barriers.is_empty() || (0..kernel.shared.len()).any(|i| self.uses.shared(SharedId(i as u32)));
        let shared_bytes = if used { kernel.shared_bytes() } else { 0 };
        let arena = self.arena(shared_bytes);
        for (i, r) in (0..).zip(&kernel.regs) {
            let name = self.names.declare(&r.name);
            if self.uses.regs(RegId(i)) {
                let ty = self.type_name(r.ty);
                self.line(&format!("{ty} {name}[{}];", r.len));
            }
            self.regs.push(name);
        }
        if let Some(early) = self.dialect.early(self.target).filter(|_| kernel.precedes) {
            self.line(early.let_begin);
        }
        self.block(&kernel.body)?;
        let body = std::mem::take(&mut self.out);

        while self.prelude.defines(&entry) {
            entry.push_str("_1");
        }
        self.depth = 0;
        self.head(shared_bytes);
        self.out.push_str(&self.prelude.text());
        self.out.push_str(&self.dialect.entry(kernel, self.target, &entry));
        self.out.push_str(&format!("(\n    {})\n{{\n{}{body}}}\n", params.join(",\n    "), arena.text));
        let dynamic_shared_bytes = if arena.at_launch { shared_bytes } else { 0 };
        Ok(Source { text: std::mem::take(&mut self.out), entry, dynamic_shared_bytes })
    }

    /// What a reader must know before the code: what it does, how it is launched, what it is given.
    fn head(&mut self, shared_bytes: u32) {
        let kernel = self.kernel;
        for line in &kernel.doc {
            self.comment(line);
        }
        let shared = if shared_bytes > 0 { format!(", {shared_bytes} bytes of shared memory each") } else { String::new() };
        self.comment(&format!("Launch: work-groups of {} threads in one dimension{shared}.", kernel.threads));
        let width = self.args.iter().map(String::len).max().unwrap_or(0);
        for (arg, name) in kernel.args.iter().zip(self.args.clone()) {
            let what = match arg.kind {
                ArgKind::Buffer { scalar, access: Access::Read } => format!("{scalar}[], read"),
                ArgKind::Buffer { scalar, access: Access::Write } => format!("{scalar}[], written"),
                ArgKind::Buffer { scalar, access: Access::ReadWrite } => format!("{scalar}[], read and written"),
                ArgKind::Buffer { scalar, access: Access::Exchange } => format!("{scalar}[], exchanged between work-groups"),
                ArgKind::Scalar(scalar) => scalar.to_string(),
                ArgKind::TensorMap(ref map) => {
                    let mode = if map.im2col.is_some() { " in im2col mode" } else { "" };
                    format!("tensor map{mode} of {} {:?}, boxes of {:?}", map.scalar, map.extent, map.tile)
                }
            };
            let doc = if arg.doc.is_empty() { String::new() } else { format!("; {}", arg.doc) };
            self.comment(&format!("  {name:width$}  {what}{doc}"));
        }
        self.out.push('\n');
    }

    fn param(&mut self, a: ArgId) -> String {
        let name = self.args[a.index()].clone();
        match self.kernel.args[a.index()].kind {
            ArgKind::Scalar(scalar) => format!("{} {name}", self.dialect.scalar(scalar)),
            ArgKind::Buffer { access, .. } => {
                match self.dialect.restrict(self.fences.hints() || self.waits() || self.has_another_way(access)) {
                    "" => format!("{} {name}", self.buffer_pointer(a)),
                    restrict => format!("{} {restrict} {name}", self.buffer_pointer(a)),
                }
            }
            ArgKind::TensorMap(_) => {
                let text = "struct __align__(64) tw_tensor_map { unsigned long long words[16]; };";
                self.prelude.types.insert("tw_tensor_map".into(), text.into());
                format!("const __grid_constant__ tw_tensor_map {name}")
            }
        }
    }

    /// Bulk stores write to results by their map, not by their pointer.
    fn has_another_way(&self, access: Access) -> bool {
        access == Access::ReadWrite && any(&self.kernel.body, &|s| matches!(s, Stmt::Bulk(BulkOp::Store { .. })))
    }

    /// Type of a pointer into a buffer argument.
    fn buffer_pointer(&self, a: ArgId) -> String {
        let (scalar, access) = match self.kernel.args[a.index()].kind {
            ArgKind::Buffer { scalar, access } => (scalar, access),
            ArgKind::Scalar(scalar) => (scalar, Access::Read),
            ArgKind::TensorMap(ref map) => (map.scalar, Access::Read),
        };
        let scalar = self.dialect.scalar(scalar);
        // Volatile loads go past the caches of a compute unit.
        let pointee = if access == Access::Exchange { format!("volatile {scalar}") } else { scalar.into() };
        self.dialect.pointer(Space::Global, access == Access::Read, &pointee)
    }

    /// Declares shared memory: one arena of bytes, and a typed pointer into it per array, so that arrays may overlap.
    fn arena(&mut self, bytes: u32) -> Arena {
        if bytes == 0 {
            return Arena::default();
        }
        let arena = self.names.declare("shared_bytes");
        let declaration = self.dialect.arena(&arena, bytes, matrix::arena_alignment(self.kernel));
        self.line(&declaration.text);
        for (i, s) in (0..).zip(&self.kernel.shared) {
            let name = self.names.declare(&s.name);
            let pointer = self.dialect.pointer(Space::Shared, false, self.dialect.scalar(s.scalar));
            let end = s.byte_end();
            let note = format!("// {} {} to byte {end}", s.len, s.scalar);
            let start = if s.byte_offset == 0 { arena.clone() } else { format!("({arena} + {})", s.byte_offset) };
            if self.uses.shared(SharedId(i)) {
                self.line(&format!("{pointer} const {name} = ({pointer}){start}; {note}"));
            }
            self.shared.push(name);
        }
        for t in &self.kernel.tx_barriers {
            let name = self.names.declare(&t.name);
            self.line(&format!(
                "unsigned long long* const {name} = (unsigned long long*)({arena} + {}); // {} barriers",
                t.byte_offset, t.len
            ));
            self.tx_names.push(name);
        }
        Arena { text: std::mem::take(&mut self.out), ..declaration }
    }

    /// The kernel waits for the launch before it.
    fn waits(&self) -> bool {
        self.kernel.follows && self.dialect.early(self.target).is_some()
    }

    fn line(&mut self, text: &str) {
        for _ in 0..self.depth {
            self.out.push_str("    ");
        }
        self.out.push_str(text);
        self.out.push('\n');
    }

    /// Comment lines. A backslash at the end would swallow the next line.
    fn comment(&mut self, text: &str) {
        for line in text.lines() {
            let line = format!("// {line}");
            self.line(line.trim_end_matches(|c: char| c.is_whitespace() || c == '\\'));
        }
    }
}
