//! The environment of a plan: facts that legality needs besides plan and contraction.

use tilewright_ir::{Dialect, Features, Float8, Target};

/// Facts about the device and the user's limits that legality needs besides plan and contraction.
///
/// ```
/// use tilewright_gen::plan::{Env, Plan, derive};
/// # use tilewright_ir::{Scalar, Target};
/// # use tilewright_problem::Gemm;
/// # use tilewright_problem::lower::{ConvForm, lower};
///
/// # let target = Target::by_arch("sm_80").expect("a known architecture");
/// # let contraction = lower(&Gemm::new(Scalar::F32, 64, 64, 4096).build()?.into(), ConvForm::PER_SAMPLE)?.lead;
/// // Splits of k by atomic additions: legal only where results may vary in their last bits.
/// let plan = Plan::parse("fma 64x64x16 on 16x16, 4 splits, split-sum=0")?;
/// let strict = Env::new(&target, 0);
/// assert!(derive(&plan, &contraction, &strict).is_err());
/// assert!(derive(&plan, &contraction, &Env { allow_atomics: true, ..strict }).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Env {
    /// Usable workspace in bytes.
    pub workspace_bytes: u64,
    /// Lanes per wave (1 on CPUs).
    pub wave: u32,
    /// Results may depend on the order of atomic additions (`SKS0` with `ICE` above 1).
    pub allow_atomics: bool,
    /// NaN, infinities and overflow become what IEEE 754 has ([`super::special`]).
    pub ieee: bool,
    /// Lanes of a wave can exchange values.
    pub shuffles: bool,
    /// Generation of AMD's matrix units ([`tilewright_ir::Features::mfma`]).
    pub mfma: u8,
    /// Threads multiply four bytes at a time ([`tilewright_ir::Features::dot`]).
    pub dot: bool,
    /// Which 8-bit floats matrix instructions take ([`tilewright_ir::Features::float8`]).
    pub float8: Float8,
    /// Barriers in branches are illegal, even if all work-items of a work-group take the branch. PoCL turns the code between barriers into
    /// loops over work-items and generates wrong code for such branches.
    pub straight: bool,
}

impl Env {
    /// A target's wave with a workspace; atomics not allowed, any contract for special values.
    pub fn new(target: &Target, workspace_bytes: u64) -> Env {
        let Features { shuffle, mfma, dot, float8, .. } = target.features;
        let straight = target.dialect == Dialect::OpenCl;
        let wave = target.wave;
        Env { workspace_bytes, wave, allow_atomics: false, ieee: false, shuffles: shuffle, mfma, dot, float8, straight }
    }
}
