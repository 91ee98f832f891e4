//! Validation: checks that a kernel is well formed and that a target can run it, before it is printed or run.

mod cluster;
mod features;
mod flow;
mod sync;
mod types;
mod uniform;

pub(crate) use types::operands;

use crate::{Kernel, Stmt, Target};

/// Reason why a kernel is refused: the kernel, the statement and the fault.
///
/// ```
/// use tilewright_ir::{Access, Base, Builder, Builtin, Scalar, well_formed};
///
/// let mut b = Builder::new("example", 32);
/// let x = b.buffer("x", Scalar::F32, Access::Write, "output");
/// // An integer is stored where floats are.
/// let thread = b.builtin(Builtin::LocalId);
/// b.store(Base::Buffer(x), 0, thread, None);
/// let invalid = well_formed(&b.finish()).unwrap_err();
/// assert_eq!(invalid.at, "body[0] store");
/// assert!(invalid.to_string().starts_with("kernel `example`, body[0] store: "));
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("kernel `{kernel}`, {at}: {fault}")]
pub struct Invalid {
    /// Name of the kernel.
    pub kernel: String,
    /// The statement, as a path from the body down (`body[3] for k[1] load`).
    pub at: String,
    /// The fault.
    pub fault: Fault,
}

/// Fault of a kernel.
///
/// ```
/// use tilewright_ir::{Builder, Fault, Scalar, Target, validate};
///
/// let mut b = Builder::new("example", 128);
/// b.shared("stages", Scalar::F32, 64 << 10, 0);
/// let target = Target::by_arch("sm_80").expect("a known architecture");
/// let fault = validate(&b.finish(), &target).unwrap_err().fault;
/// assert!(matches!(fault, Fault::Limit { used: 262144, .. }));
/// // Another device may run it.
/// assert!(fault.is_refusal());
/// ```
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// The kernel breaks a rule of the kernel language. This is a bug of the code that built the kernel, on every target.
    #[error("{0}")]
    Malformed(String),
    /// The kernel needs a feature that the target lacks. Other targets may run it.
    #[error("{target} has no {feature}: {remedy}")]
    Missing {
        /// Architecture without the feature.
        target: String,
        /// The feature.
        feature: &'static str,
        /// The alternative.
        remedy: &'static str,
    },
    /// The kernel exceeds a hard limit of the target. Other targets may run it.
    #[error("{what}: {used} exceeds the limit of {limit} on {target}")]
    Limit {
        /// Architecture with the limit.
        target: String,
        /// The counted resource.
        what: &'static str,
        /// Amount that the kernel uses.
        used: u64,
        /// Amount that the target has.
        limit: u64,
    },
}

impl Fault {
    /// Returns true if the kernel is well formed and only this target cannot run it.
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Fault::Missing { .. } | Fault::Limit { .. })
    }
}

/// Checks rules that hold on every target: declarations, types, names before use, division of threads into roles. A kernel that passes can
/// be walked without further checks. The emulator finds violations that depend on the behaviour of threads.
///
/// # Errors
/// The first violation found, in statement order.
pub fn well_formed(kernel: &Kernel) -> Result<(), Invalid> {
    let malformed = |at: String, what| Invalid { kernel: kernel.name.clone(), at, fault: Fault::Malformed(what) };
    types::declarations(kernel).map_err(|e| malformed("declarations".into(), e))?;
    let mut path = Path::default();
    flow::check(kernel, &mut path).map_err(|e| malformed(path.text(), e))
}

/// Checks a kernel against the rules of the language and the abilities and limits of a target.
///
/// # Errors
/// The first violation found, in statement order.
pub fn validate(kernel: &Kernel, target: &Target) -> Result<(), Invalid> {
    let invalid = |at: String, fault| Invalid { kernel: kernel.name.clone(), at, fault };
    well_formed(kernel)?;
    features::declarations(kernel, target).map_err(|fault| invalid("declarations".into(), fault))?;
    let mut path = Path::default();
    sync::check(kernel, target, &mut path).map_err(|e| invalid(path.text(), Fault::Malformed(e)))?;
    let mut path = Path::default();
    features::check(kernel, target, &kernel.body, &mut path).map_err(|fault| invalid(path.text(), fault))
}

/// Position of a walk over a kernel: numbers and kinds of statements, from the body down.
#[derive(Default)]
struct Path(Vec<(usize, &'static str)>);

impl Path {
    /// Runs a check on each statement of a block. After an error the path is at the faulty statement.
    fn each<E>(&mut self, block: &[Stmt], mut f: impl FnMut(&mut Path, &Stmt) -> Result<(), E>) -> Result<(), E> {
        for (i, s) in block.iter().enumerate() {
            self.0.push((i, word(s)));
            f(self, s)?;
            self.0.pop();
        }
        Ok(())
    }
    fn text(&self) -> String {
        let mut text = String::from("body");
        for (i, what) in &self.0 {
            text.push_str(&format!("[{i}] {what}"));
            text.push(' ');
        }
        text.trim_end().into()
    }
}

fn word(s: &Stmt) -> &'static str {
    match s {
        Stmt::Comment(_) => "comment",
        Stmt::Let(..) => "let",
        Stmt::Declare(..) => "declare",
        Stmt::Assign(..) => "assign",
        Stmt::Load { .. } => "load",
        Stmt::Store { .. } => "store",
        Stmt::Atomic { .. } => "atomic",
        Stmt::FetchAdd { .. } => "fetch and add",
        Stmt::Fence => "fence",
        Stmt::PlaceCursor(..) => "place cursor",
        Stmt::AdvanceCursor(..) => "advance cursor",
        Stmt::For { .. } => "for",
        Stmt::If { .. } => "if",
        Stmt::Roles(_) => "roles",
        Stmt::Barrier(_) => "barrier",
        Stmt::AsyncCopy { .. } => "async copy",
        Stmt::AsyncCommit => "async commit",
        Stmt::AsyncWait(_) => "async wait",
        Stmt::LoadPeer { .. } => "load from a peer",
        Stmt::Shuffle { .. } => "shuffle",
        Stmt::SchedHint { .. } => "sched hint",
        Stmt::Matrix(_) => "matrix instruction",
        Stmt::Bulk(_) => "bulk operation",
        Stmt::LaunchWait => "launch wait",
        Stmt::Return => "return",
    }
}
