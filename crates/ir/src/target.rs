//! What a device is to the generator: the language it is spoken to in, its limits, its abilities and its rates.

use crate::types::Scalar;
use serde::{Deserialize, Serialize};

/// The C-family language a kernel is printed in.
///
/// ```
/// use tilewright_ir::{Dialect, Target};
///
/// let dialect = |arch| Target::by_arch(arch).map(|target| target.dialect);
/// assert_eq!((dialect("sm_80"), dialect("gfx942")), (Some(Dialect::Cuda), Some(Dialect::Hip)));
/// assert_eq!(Dialect::OpenCl.name(), "OpenCL C");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// CUDA C++ for NVRTC and nvcc.
    Cuda,
    /// HIP C++ for hiprtc, hipcc and clang.
    Hip,
    /// OpenCL C 1.2 with optional extensions.
    OpenCl,
}

impl Dialect {
    /// The language: `CUDA C++`, `HIP C++`, `OpenCL C`.
    pub const fn name(self) -> &'static str {
        match self {
            Dialect::Cuda => "CUDA C++",
            Dialect::Hip => "HIP C++",
            Dialect::OpenCl => "OpenCL C",
        }
    }
}

/// Operations that not every target has. The validator refuses a kernel that needs one its target lacks.
///
/// ```
/// use tilewright_ir::{Features, Target};
///
/// let features = |arch| Target::by_arch(arch).map(|target| target.features).unwrap_or_default();
/// assert!(features("sm_90a").warpgroup && !features("sm_80").warpgroup);
/// // The generation of AMD's matrix units.
/// assert_eq!((features("gfx942").mfma, Features::default().mfma), (3, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Features {
    /// 64-bit floating point.
    pub f64: bool,
    /// 64-bit integer atomics (needed to emulate f64 atomics).
    pub atomic64: bool,
    /// Shuffles within a wave.
    pub shuffle: bool,
    /// Asynchronous global-to-shared copies (`cp.async`, sm_80 and up).
    pub async_copy: bool,
    /// Named barriers (`bar.sync id, n`).
    pub named_barrier: bool,
    /// Waves of one work-group may run different code around barriers.
    pub roles: bool,
    /// `mma.sync` and `ldmatrix` (sm_80 and up).
    #[serde(default)]
    pub mma: bool,
    /// `mma.sync` multiplies 16 rows of f64 in one instruction (sm_90 and up); elsewhere those of 8 x 8 x 4 take its place.
    #[serde(default)]
    pub tall_f64: bool,
    /// Which 8-bit floats matrix instructions take.
    #[serde(default)]
    pub float8: Float8,
    /// Each thread adds four products of bytes to an integer of 32 bits in one instruction (NVIDIA; AMD from gfx906 on; OpenCL's
    /// `cl_khr_integer_dot_product`).
    #[serde(default)]
    pub dot: bool,
    /// Warpgroup matrix instructions and register budgets (sm_90a).
    #[serde(default)]
    pub warpgroup: bool,
    /// Bulk tensor copies and transaction barriers (sm_90a).
    #[serde(default)]
    pub bulk_copy: bool,
    /// Clusters of work-groups that reach each other's shared memory.
    pub cluster: bool,
    /// AMD matrix instructions: the generation of the units that have them (2: gfx90a, 3: gfx942, 4: gfx950), 0 without.
    #[serde(default)]
    pub mfma: u8,
    /// Fences between work-groups. OpenCL C 1.2 has none beyond the work-group.
    #[serde(default)]
    pub fence: bool,
}

/// 8-bit floats that matrix instructions of a target take.
///
/// ```
/// use tilewright_ir::{Float8, Scalar, Target};
///
/// let float8 = |arch| Target::by_arch(arch).map(|target| target.features.float8).unwrap_or_default();
/// assert!(float8("sm_90a").takes(Scalar::E4M3) && float8("gfx942").takes(Scalar::E4M3Fnuz));
/// assert_eq!((float8("sm_80"), Float8::Ocp.takes(Scalar::E4M3Fnuz)), (Float8::None, false));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Float8 {
    /// None.
    #[default]
    None,
    /// OCP's (sm_89 and up, gfx950).
    Ocp,
    /// Those without signed zeros and infinities (gfx942).
    Fnuz,
}

impl Float8 {
    /// True if this is one of them, or no 8-bit float at all.
    pub const fn takes(self, scalar: Scalar) -> bool {
        match self {
            _ if !scalar.is_float8() => true,
            Float8::None => false,
            Float8::Ocp => !scalar.is_fnuz(),
            Float8::Fnuz => scalar.is_fnuz(),
        }
    }
}

/// Hard limits a kernel must respect.
///
/// ```
/// use tilewright_ir::Limits;
///
/// let limits = Limits::WARPGROUP;
/// // Two work-groups of 96 KiB fit a compute unit, each with the bytes that the system takes.
/// assert!(2 * (96 << 10) + 2 * limits.shared_reserved() <= limits.shared_per_unit);
/// // One producer warpgroup keeps 40 registers per thread, and two consumers get the rest.
/// assert_eq!(limits.role_registers(1, 2, 40), Some((40, 232)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Threads per work-group.
    pub max_threads: u32,
    /// Shared memory per work-group, in bytes.
    pub shared_per_group: u32,
    /// Shared memory per compute unit, in bytes.
    pub shared_per_unit: u32,
    /// 32-bit registers per thread.
    pub registers_per_thread: u32,
    /// 32-bit registers per compute unit.
    pub registers_per_unit: u32,
    /// Threads resident per compute unit.
    pub threads_per_unit: u32,
    /// Work-groups resident per compute unit.
    pub groups_per_unit: u32,
    /// Work-groups per grid dimension.
    pub max_grid: [u64; 3],
}

impl Limits {
    /// Compute units of NVIDIA with so much shared memory, in bytes.
    const fn nvidia(shared_per_unit: u32) -> Limits {
        Limits {
            max_threads: 1024,
            shared_per_group: shared_per_unit - 1024,
            shared_per_unit,
            registers_per_thread: 255,
            registers_per_unit: 65536,
            threads_per_unit: 2048,
            groups_per_unit: 32,
            max_grid: [(1 << 31) - 1, 65535, 65535],
        }
    }
    /// Compute units of AMD with so much shared memory, in bytes.
    const fn amd(shared: u32) -> Limits {
        Limits {
            max_threads: 1024,
            shared_per_group: shared,
            shared_per_unit: shared,
            registers_per_thread: 256,
            registers_per_unit: 65536,
            threads_per_unit: 2560,
            groups_per_unit: 32,
            max_grid: [(1 << 31) - 1, 65535, 65535],
        }
    }
    /// Of the devices that have warpgroup instructions and bulk copies (sm_90a): plans with these are sized before a device is known.
    pub const WARPGROUP: Limits = Limits::nvidia(228 << 10);

    /// Shared memory that each work-group takes besides its own, in bytes.
    pub const fn shared_reserved(&self) -> u32 {
        self.shared_per_unit.saturating_sub(self.shared_per_group)
    }
}

impl Limits {
    /// Registers of a thread where so many waves of a compute unit have the same share.
    pub const fn share(&self, waves: u32, wave: u32) -> u32 {
        // Each part of the unit has its own registers and holds whole waves.
        let threads = waves.div_ceil(UNIT_PARTS) * wave * UNIT_PARTS;
        self.registers_per_unit / if threads == 0 { 1 } else { threads } / REGISTER_STEP * REGISTER_STEP
    }
    /// Registers per thread of warpgroups that load and that compute (`setmaxnreg`), for these numbers of warpgroups. Warpgroups
    /// that load have `of_load`. The sum over all must not exceed what the launch took, or they wait for registers for ever.
    /// `None` where nobody gains.
    pub fn role_registers(&self, load: u32, math: u32, of_load: u32) -> Option<(u32, u32)> {
        let even = self.share(4 * (load + math), WARP);
        let left = (even * (load + math)).checked_sub(of_load * load)?.checked_div(math)? / REGISTER_STEP * REGISTER_STEP;
        (of_load < even && left > even).then_some((of_load, left.min(MOST_ROLE_REGISTERS)))
    }
}

/// Registers of threads that only issue bulk copies beside two, three and four warpgroups that compute. Assemblers need this
/// number, and hardware takes no fewer than 24.
pub const COPY_REGISTERS: [u32; 3] = [40, 32, 24];
/// Compute units of the parts of an H200 within which clusters stand, as `cudaOccupancyMaxActiveClusters` counts clusters of 2 to 16.
const H200_PARTS: [u32; 12] = [18, 18, 16, 16, 16, 16, 16, 8, 2, 2, 2, 2];
/// Compute units of such a part of other chips.
const PART: u32 = 16;
/// Lanes of NVIDIA's waves.
pub const WARP: u32 = 32;

/// Bytes that one asynchronous copy (`cp.async`) moves: one of these.
pub const ASYNC_COPY_BYTES: [u32; 3] = [4, 8, 16];
/// Bytes of a line of the caches, and of the sectors that lines are filled by.
pub const CACHE_LINE: u32 = 128;
/// See [`CACHE_LINE`].
pub const CACHE_SECTOR: u32 = 32;
/// Parts of a compute unit that have a scheduler each and share no registers.
pub const UNIT_PARTS: u32 = 4;
/// Registers of a thread are given out in multiples of this.
pub const REGISTER_STEP: u32 = 8;
/// Most registers of a thread whose wave asks for more than its even share (`setmaxnreg`).
pub const MOST_ROLE_REGISTERS: u32 = 240;
/// Most registers of a thread that has its even share: the widest multiple of [`REGISTER_STEP`] an instruction can name.
pub const MOST_EVEN_REGISTERS: u32 = 248;

/// Rates for the cost model. They order candidates; they are not promises.
///
/// ```
/// use tilewright_ir::Target;
///
/// let target = Target::by_arch("sm_90a").expect("a known architecture");
/// // Peak of the matrix units in TFLOP/s of 16-bit operands: two operations per multiply-add.
/// let peak = 2.0 * target.rates.warpgroup_fma * f64::from(target.units) * target.rates.clock_ghz / 1e3;
/// assert!((900.0..1100.0).contains(&peak), "{peak}");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Clock in GHz.
    pub clock_ghz: f64,
    /// f32 fused multiply-adds per clock and compute unit.
    pub f32_fma: f64,
    /// f64 fused multiply-adds per clock and compute unit.
    pub f64_fma: f64,
    /// Multiply-adds of 16-bit operands per clock and compute unit by matrix instructions of single waves. This is the vendors'
    /// peak figure, times the share of it that such instructions reach. Elements twice as wide go half as fast.
    #[serde(default)]
    pub wave_matrix_fma: f64,
    /// The same for f64 matrix instructions, which have their own rate; 0 without them.
    #[serde(default)]
    pub f64_matrix_fma: f64,
    /// The same for warpgroup instructions, at their peak; 0 without them.
    #[serde(default)]
    pub warpgroup_fma: f64,
    /// Shared-memory bytes per clock and compute unit.
    pub shared_bytes: f64,
    /// Last-level cache bytes per clock and compute unit.
    pub l2_bytes: f64,
    /// Bytes per clock that one compute unit draws from device memory at most.
    #[serde(default)]
    pub unit_dram_bytes: f64,
    /// Bytes per clock that one reads from the shared memory of others in its cluster.
    #[serde(default)]
    pub peer_bytes: f64,
    /// Clocks of a barrier of a cluster of two; each doubling takes as many more.
    #[serde(default)]
    pub cluster_barrier: f64,
    /// Device memory bandwidth in GB/s.
    pub dram_gbs: f64,
    /// Latency of device memory in nanoseconds.
    pub dram_latency_ns: f64,
    /// Cost of one kernel launch in microseconds.
    pub launch_us: f64,
}

/// A core of a processor on which a work-group is a loop: what OpenCL does not tell, of those with 512-bit vectors.
///
/// ```
/// use tilewright_ir::{CORE, Core, Scalar};
///
/// /// Columns of a tile of this many rows whose accumulators fill half of the vector registers.
/// fn columns(core: &Core, rows: f64, scalar: Scalar) -> f64 {
///     let lanes = core.vector_bytes / f64::from(scalar.bytes());
///     core.registers / 2.0 * lanes / rows
/// }
/// assert_eq!(columns(&CORE, 8.0, Scalar::F64), 16.0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Core {
    /// Vector registers.
    pub registers: f64,
    /// Bytes of a vector register.
    pub vector_bytes: f64,
    /// Memory operations per cycle from the first-level cache.
    pub ports: f64,
    /// First-level and second-level cache in bytes.
    pub caches: [f64; 2],
}

/// The core that cost models assume.
pub const CORE: Core = Core { registers: 32.0, vector_bytes: 64.0, ports: 2.0, caches: [32.0 * 1024.0, 1024.0 * 1024.0] };

/// A device as generator, validator, emulator and cost model see it.
///
/// ```
/// use tilewright_ir::Target;
///
/// let target = Target::by_arch("gfx942").expect("a known architecture");
/// assert_eq!((target.wave, target.units), (64, 304));
/// // One that differs in a fact is a copy with another value.
/// let half = Target { units: target.units / 2, ..target };
/// assert_eq!(half.units, 152);
/// assert!(Target::by_arch("sm_1").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Architecture in the vendor's spelling: `sm_90a`, `gfx942`, or `generic` for other OpenCL devices.
    pub arch: String,
    /// Language.
    pub dialect: Dialect,
    /// Lanes per wave (1 on CPUs).
    pub wave: u32,
    /// Compute units (streaming multiprocessors).
    pub units: u32,
    /// Last-level cache in bytes.
    pub l2_bytes: u64,
    /// Abilities.
    pub features: Features,
    /// Limits.
    pub limits: Limits,
    /// Rates.
    pub rates: Rates,
}

/// NVIDIA's: compute units, shared memory of each in bytes, last-level cache in MB, clock in GHz, memory bandwidth in GB/s.
fn nvidia(arch: &str, units: u32, shared_unit: u32, l2_mb: u64, clock: f64, dram: f64, features: Features) -> Target {
    Target {
        arch: arch.into(),
        dialect: Dialect::Cuda,
        wave: WARP,
        units,
        l2_bytes: l2_mb << 20,
        features,
        limits: Limits::nvidia(shared_unit),
        rates: Rates {
            clock_ghz: clock,
            f32_fma: 128.0,
            f64_fma: 64.0,
            // mma.sync reaches 62 % of what wgmma does (measured on an H200). Dense peak of an H100: 989 TFLOP/s at 1.83 GHz on
            // 132 units (NVIDIA's white paper).
            wave_matrix_fma: if features.warpgroup { 1270.0 } else { 1024.0 * 0.9 },
            // Measured on an H200: 65.4 TFLOP/s by instructions of 16 rows, 33.2 by those of 8.
            f64_matrix_fma: if features.tall_f64 { 125.0 } else { 64.0 * 0.95 },
            warpgroup_fma: if features.warpgroup { 2048.0 } else { 0.0 },
            shared_bytes: 128.0,
            l2_bytes: 48.0,
            // Measured on an H200; the barrier on an H100 by others (0.65 us for eight).
            unit_dram_bytes: 25.0,
            peer_bytes: 20.0,
            cluster_barrier: 380.0,
            dram_gbs: dram,
            dram_latency_ns: 600.0,
            launch_us: 2.5,
        },
    }
}

/// Its graphics processors of a generation: fewer threads and hardly any f64.
fn graphics(target: Target, groups_per_unit: u32) -> Target {
    Target {
        limits: Limits { threads_per_unit: 1536, groups_per_unit, ..target.limits },
        rates: Rates { f64_fma: 2.0, f64_matrix_fma: 2.0, ..target.rates },
        ..target
    }
}

/// Hardware of AMD as data sheets have it.
#[derive(Clone, Copy)]
struct Amd {
    /// Compute units.
    units: u32,
    /// Shared memory of each in KiB.
    lds_kb: u32,
    /// Last-level cache in MiB.
    l2_mb: u64,
    clock_ghz: f64,
    /// Memory bandwidth in GB/s.
    dram_gbs: f64,
    /// Multiply-adds per clock and compute unit.
    f32_fma: f64,
    f64_fma: f64,
    /// Those of 16 bits by matrix instructions; 0: none.
    matrix: f64,
}

/// The hardware of an architecture of AMD; `None` of one that is not known.
fn amd_hardware(arch: &str) -> Option<Amd> {
    let vega = Amd { units: 64, lds_kb: 64, l2_mb: 4, clock_ghz: 1.5, dram_gbs: 484.0, f32_fma: 64.0, f64_fma: 4.0, matrix: 0.0 };
    Some(match arch {
        "gfx900" => vega,
        "gfx906" => Amd { units: 60, clock_ghz: 1.725, dram_gbs: 1024.0, f64_fma: 32.0, ..vega },
        "gfx90a" => Amd { units: 104, l2_mb: 8, clock_ghz: 1.7, dram_gbs: 1600.0, f64_fma: 64.0, matrix: 512.0 * 0.8, ..vega },
        "gfx942" => {
            Amd { units: 304, clock_ghz: 2.1, dram_gbs: 5300.0, f32_fma: 128.0, f64_fma: 64.0, matrix: 1024.0 * 0.7, ..vega }
        }
        "gfx950" => Amd {
            units: 256,
            lds_kb: 160,
            clock_ghz: 2.4,
            dram_gbs: 8000.0,
            f32_fma: 128.0,
            f64_fma: 64.0,
            matrix: 2048.0 * 0.6,
            ..vega
        },
        _ => return None,
    })
}

fn amd(arch: &str, of: Amd) -> Target {
    let Amd { units, lds_kb, l2_mb, clock_ghz, dram_gbs, f32_fma, f64_fma, matrix } = of;
    Target {
        arch: arch.into(),
        dialect: Dialect::Hip,
        wave: 64,
        units,
        l2_bytes: l2_mb << 20,
        features: Features {
            f64: true,
            atomic64: true,
            shuffle: true,
            async_copy: false,
            named_barrier: false,
            roles: true,
            dot: arch != "gfx900",
            mfma: match arch {
                "gfx950" => 4,
                "gfx942" => 3,
                _ => 2 * (matrix > 0.0) as u8,
            },
            float8: match arch {
                "gfx942" => Float8::Fnuz,
                "gfx950" => Float8::Ocp,
                _ => Float8::None,
            },
            fence: true,
            ..Features::default()
        },
        limits: Limits::amd(lds_kb << 10),
        rates: Rates {
            clock_ghz,
            f32_fma,
            f64_fma,
            wave_matrix_fma: matrix,
            // Twice what its other units do, but for the newest, by the vendor's peak figures.
            f64_matrix_fma: if arch == "gfx950" { 1.0 } else { 2.0 } * if matrix > 0.0 { f64_fma } else { 0.0 },
            warpgroup_fma: 0.0,
            shared_bytes: 128.0,
            l2_bytes: 64.0,
            unit_dram_bytes: 25.0,
            peer_bytes: 0.0,
            cluster_barrier: 0.0,
            dram_gbs,
            dram_latency_ns: 700.0,
            launch_us: 5.0,
        },
    }
}

impl Target {
    /// The architecture that stands for NVIDIA's where none is named, and that the emulator plays.
    pub const NVIDIA: &str = "sm_90a";
    /// The architecture that stands for AMD's where none is named.
    pub const AMD: &str = "gfx942";

    /// A built-in description by architecture name; `None` for an unknown one. Known: see [`Target::known`].
    pub fn by_arch(arch: &str) -> Option<Target> {
        let modern = Features {
            f64: true,
            atomic64: true,
            shuffle: true,
            async_copy: true,
            named_barrier: true,
            roles: true,
            mma: true,
            dot: true,
            fence: true,
            ..Features::default()
        };
        let ada = Features { float8: Float8::Ocp, ..modern };
        let tall = Features { tall_f64: true, ..ada };
        let hopper = Features { warpgroup: true, bulk_copy: true, cluster: true, ..tall };
        Some(match arch {
            "sm_90a" => nvidia(arch, 132, 228 << 10, 50, 1.98, 4800.0, hopper),
            // Of Blackwell only what is portable is planned for: its own matrix instructions are others than Hopper's.
            "sm_100a" => nvidia(arch, 148, 228 << 10, 126, 1.92, 8000.0, tall),
            "sm_103a" => nvidia(arch, 148, 228 << 10, 126, 1.92, 8000.0, tall),
            "sm_120a" => graphics(nvidia(arch, 170, 100 << 10, 96, 2.41, 1792.0, tall), 24),
            "sm_89" => graphics(nvidia(arch, 128, 100 << 10, 72, 2.52, 1008.0, ada), 24),
            "sm_87" => graphics(nvidia(arch, 16, 164 << 10, 4, 1.30, 205.0, modern), 16),
            "sm_86" => graphics(nvidia(arch, 84, 100 << 10, 6, 1.70, 936.0, modern), 16),
            "sm_80" => nvidia(arch, 108, 164 << 10, 40, 1.41, 2039.0, modern),
            "sm_75" => nvidia(arch, 40, 64 << 10, 4, 1.59, 320.0, Features { async_copy: false, mma: false, ..modern }),
            _ => amd(arch, amd_hardware(arch)?),
        })
    }
    /// What to plan for on an NVIDIA GPU of this compute capability. A known GPU has its own description. An unknown one has what
    /// is portable from the newest older one. Features of one architecture alone (the `a` of `sm_90a`) are never taken over.
    pub fn by_compute_capability(major: u32, minor: u32) -> Option<Target> {
        let own = Target::by_arch(&format!("sm_{major}{minor}a")).or_else(|| Target::by_arch(&format!("sm_{major}{minor}")));
        let portable = || Target::by_arch(if major >= 8 { "sm_80" } else { "sm_75" });
        own.or_else(|| Some(Target { arch: format!("sm_{major}{minor}"), ..portable()? }))
    }
    /// What to plan for on a processor that OpenCL tells little of.
    pub fn processor() -> Target {
        Target {
            arch: "generic".into(),
            dialect: Dialect::OpenCl,
            wave: 1,
            units: 1,
            l2_bytes: 1 << 20,
            features: Features::default(),
            // Work-items of a processor are loop iterations: their registers are vector registers or the first-level cache,
            // and many of them never hinder others.
            limits: Limits {
                max_threads: 1024,
                shared_per_group: 32 << 10,
                shared_per_unit: 32 << 10,
                registers_per_thread: 1024,
                registers_per_unit: 1024 * 8192,
                threads_per_unit: 8192,
                groups_per_unit: 1,
                max_grid: [u64::from(u32::MAX); 3],
            },
            rates: Rates {
                clock_ghz: 2.5,
                // Two 8-lane units: the least of current server processors.
                f32_fma: 16.0,
                f64_fma: 8.0,
                wave_matrix_fma: 0.0,
                f64_matrix_fma: 0.0,
                warpgroup_fma: 0.0,
                shared_bytes: 64.0,
                l2_bytes: 32.0,
                unit_dram_bytes: 25.0,
                peer_bytes: 0.0,
                cluster_barrier: 0.0,
                dram_gbs: 40.0,
                dram_latency_ns: 90.0,
                launch_us: 20.0,
            },
        }
    }
    /// What to plan for on an AMD GPU of this architecture: its own description, or that of the nearest of its waves.
    pub fn by_gfx(arch: &str) -> Option<Target> {
        Target::by_arch(arch).or_else(|| Target::by_arch(if arch.starts_with("gfx9") { "gfx90a" } else { "gfx900" }))
    }
    /// What the vendor calls a wave.
    pub fn wave_name(&self) -> &'static str {
        match self.wave {
            0 | 1 => "thread",
            _ if self.arch.starts_with("sm_") => "warp",
            _ => "wave",
        }
    }
    /// Compute units that clusters of `cluster` work-groups keep busy where each unit holds `resident` work-groups. A cluster
    /// stands within a part of the chip that has at least as many units.
    pub fn units_of_clusters(&self, cluster: u32, resident: u32) -> f64 {
        let (units, resident) = (self.units.max(1), resident.max(1));
        if cluster <= 1 {
            return units.into();
        }
        // Chips of one kind differ in which units are switched off.
        let whole = units / PART;
        let even = std::iter::repeat_n(PART, whole as usize).chain([units % PART]);
        let parts: Vec<u32> = if units == 132 { H200_PARTS.into() } else { even.collect() };
        let clusters: u32 = parts.iter().filter(|part| **part >= cluster).map(|part| part * resident / cluster).sum();
        f64::from((clusters * cluster).max(1)) / f64::from(resident)
    }
    /// The architectures [`Target::by_arch`] knows.
    pub const fn known() -> &'static [&'static str] {
        &[
            "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "gfx900", "gfx906", "gfx90a",
            "gfx942", "gfx950",
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `cudaOccupancyMaxActiveClusters` said of an H200, with shared memory for one to six work-groups on a unit.
    #[test]
    fn clusters_of_an_h200_are_as_many_as_the_driver_counts() {
        let h200 = Target { units: 132, ..Target::by_arch("sm_90a").unwrap() };
        let counted = [
            (1, [66, 39, 30, 22, 17, 15, 15, 9, 7, 7, 7, 7]),
            (2, [132, 79, 62, 47, 39, 32, 30, 23, 21, 16, 14, 14]),
            (3, [198, 124, 92, 69, 62, 47, 45, 37, 30, 28, 21, 21]),
            (6, [396, 248, 186, 146, 124, 101, 92, 74, 65, 58, 44, 42]),
        ];
        for (resident, counts) in counted {
            for (size, count) in [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16].into_iter().zip(counts) {
                let units = h200.units_of_clusters(size, resident);
                assert_eq!((units * f64::from(resident) / f64::from(size)).round() as u32, count, "{size} x {resident}");
            }
        }
        assert_eq!(h200.units_of_clusters(1, 2), 132.0);
    }

    #[test]
    fn features_of_one_architecture_are_not_taken_over() {
        for arch in Target::known() {
            let f = Target::by_arch(arch).unwrap().features;
            assert_eq!([f.warpgroup, f.bulk_copy, f.cluster], [*arch == "sm_90a"; 3], "{arch}");
        }
        for (capability, arch, mma) in [
            ((9, 0), "sm_90a", true),
            ((10, 0), "sm_100a", true),
            ((12, 0), "sm_120a", true),
            ((12, 1), "sm_121", true),
            ((17, 3), "sm_173", true),
            ((8, 7), "sm_87", true),
            ((7, 5), "sm_75", false),
            ((7, 0), "sm_70", false),
        ] {
            let target = Target::by_compute_capability(capability.0, capability.1).unwrap();
            assert_eq!((target.arch.as_str(), target.features.mma), (arch, mma));
            assert_eq!(target.features.warpgroup, capability == (9, 0));
        }
    }
}
