//! Reasons why a plan is illegal for a contraction or a device. A refusal is data for the search and for users.

use super::keys::Key;
use tilewright_ir::{Float8, Scalar};
use tilewright_problem::{Activation, Axes, Operator};

/// Reason why a plan is illegal. The message names the keys with their values and a legal choice.
///
/// ```
/// use tilewright_gen::plan::{Constraint, Env, Plan, Refusal, derive};
/// use tilewright_ir::{Scalar, Target};
/// use tilewright_problem::lower::{ConvForm, lower};
/// use tilewright_problem::{Gemm, Problem};
///
/// let contraction = lower(&Problem::Gemm(Gemm::new(Scalar::F32, 512, 512, 512).build()?), ConvForm::PER_SAMPLE)?.lead;
/// let target = Target::by_arch("gfx900").expect("a known architecture");
/// // wgmma, which this GPU does not have.
/// let plan: Plan = Constraint::parse("C_UNI2")?.apply(&Plan::default()).into();
/// let refused: Refusal = derive(&plan, &contraction, &Env::new(&target, 0)).expect_err("a refusal");
/// println!("{refused}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[expect(missing_docs, reason = "fields are the numbers in the message beside each variant's comment")]
pub enum Refusal {
    /// A key's value is outside its legal values.
    #[error("{key}{value}: legal values are {}", key.info().legal)]
    Value { key: Key, value: u32 },
    /// An extent of the result is 0.
    #[error("nothing to compute: g = {g}, m = {m}, n = {n}; each must be at least 1")]
    Empty { g: u64, m: u64, n: u64 },
    /// The threads do not form a grid of the shape that SKW requests.
    #[error("MAC{mac}_SKW{skw}: {mac} threads form no grid with this skew; move SKW toward 10")]
    ThreadGrid { mac: u32, skw: u32 },
    /// Tile sizes overflow.
    #[error("{mic}{micro} x {threads} threads: the macro tile is too large; use a smaller {mic} or MAC")]
    TileTooLarge { mic: Key, micro: u32, threads: u32 },
    /// A tile that is pulled back from the edge does not fit into the result.
    #[error("EDG0: the macro tile of {macro_tile} along {} ({mic}, MAC, SKW) exceeds the extent {extent}; use EDG1 or a smaller tile", dim(*.mic))]
    TileOverEdge { mic: Key, macro_tile: u32, extent: u64 },
    /// The workspace budget is too small for one batch entry.
    #[error(
        "WOS, SKS: one batch entry needs {needed} bytes of workspace, {available} are available; use WOS0, ICE1 and TSP1, or a larger budget"
    )]
    Workspace { needed: u64, available: u64 },
    /// The threads that load do not share a tile evenly.
    #[error("{threads} loading threads (MAC, LWV) do not divide the {macro_tile} x UNR{k_tile} tile of operand {}; change MIC, MAC or UNR", .mic.part().name())]
    LoadShare { mic: Key, macro_tile: u32, k_tile: u32, threads: u32 },
    /// MIOpenGEMM's packing kernel works in blocks of 64.
    #[error("{wos}2: a packed tile of {macro_tile} x UNR{k_tile} elements is no multiple of 64; change MIC, MAC or UNR")]
    PackShare { wos: Key, macro_tile: u32, k_tile: u32 },
    /// The tensor has no rows to pad.
    #[error("{wos}3: a copy cannot pad the rows of operand {}: {why}; use WOS0 or WOS1", .wos.part().name())]
    PaddedRows { wos: Key, why: &'static str },
    /// Staggered starts need more than one k-tile.
    #[error("UFO1: k = {k} must be greater than UNR{k_tile}; use UFO0")]
    Stagger { k: u64, k_tile: u32 },
    /// A strip of tiles is narrower than one tile.
    #[error("GAL3: a strip of sqrt(NAW{naw} / ICE{ice}) tiles is narrower than one tile; raise NAW")]
    Strip { naw: u32, ice: u32 },
    /// Vectors run in a direction in which elements are not adjacent.
    #[error("{key}{width}: operand {} is not contiguous {} in the memory that is loaded; use width 1, GLW or WOS2", .key.part().name(), across(*.along_k))]
    NotContiguous { key: Key, width: u32, along_k: bool },
    /// Alignment forbids vectors: base offset, leading dimension, batch stride or padding is not a multiple of the width.
    #[error("{key}{width}: start, strides or padding of operand {} allow vectors of at most {allowed}; use this width, or WOS2", .key.part().name())]
    VectorAlign { key: Key, width: u32, allowed: u32 },
    /// Only asynchronous copies of 4-bit elements move vectors of this width.
    #[error("{key}{width}: only asynchronous copies (ACP1) of 4-bit elements move vectors this wide; use 16 or less")]
    VectorWide { key: Key, width: u32 },
    /// Vectors do not divide a thread's load tile.
    #[error("{key}{width} does not divide the {length} elements {} of a thread's load tile; change PLU or the tile", across(*.along_k))]
    VectorTile { key: Key, width: u32, length: u32, along_k: bool },
    /// The last vector before an edge would be partly outside, or a pulled-back tile would start inside a vector.
    #[error("{key}{width}: the last vector crosses the end of {dim} = {extent}; use a width that divides {dim}, or WOS2")]
    VectorEdge { key: Key, width: u32, dim: &'static str, extent: u64 },
    /// The last vector along a dynamic extent may be partly outside.
    #[error("{key}{width}: {dim} is known only at launch and may end inside a vector; use width 1, or WOS2")]
    VectorRunTime { key: Key, width: u32, dim: &'static str },
    /// A tile can be pulled back only in an extent of at least one tile.
    #[error("EDG0: {dim} is known only at launch and may be smaller than a tile; use EDG1")]
    PullBackRunTime { dim: &'static str },
    /// Staggered starts do not begin at a vector along k.
    #[error("{key}{width}: UFO1 may start inside a vector along k; use UFO0 or width 1")]
    VectorStagger { key: Key, width: u32 },
    /// Fragments do not divide the micro tile.
    #[error("{key}{width} does not divide {mic}{micro}; use a divisor")]
    FragmentWidth { key: Key, width: u32, mic: Key, micro: u32 },
    /// The choice excludes groups with ends in device memory.
    #[error("{key}{value} is illegal for a grouped product: {why}")]
    Grouped { key: Key, value: u32, why: &'static str },
    /// The choice excludes operands that are two tensors.
    #[error("{key}{value} is illegal for a product with two tensors for an operand: {why}")]
    TwoTensors { key: Key, value: u32, why: &'static str },
    /// The choice does not fit threads that load their own operands to registers.
    #[error("{key}{value} with BIM4: {why}")]
    OwnLoads { key: Key, value: u32, why: &'static str },
    /// The operand has no halo that `ACP4` could copy once for a result tile.
    #[error("{acp}4: {why}")]
    Halo { acp: Key, why: String },
    /// Asynchronous copies have too few buffers to run ahead.
    #[error(
        "{acp}{value}: copies run ahead, and PFG{pfg}_BUF{buf} is too little; use PFG of at least 1 and BUF of at least PFG + 1 (PFG + 2 for wgmma with FRA)"
    )]
    AsyncAhead { acp: Key, value: u32, pfg: u32, buf: u32 },
    /// An asynchronous copy moves 4, 8 or 16 bytes.
    #[error("{acp}1: {width} x {scalar} is a copy of {bytes} bytes, and copies move 4, 8 or 16; change GLW")]
    AsyncBytes { acp: Key, width: u32, scalar: Scalar, bytes: u32 },
    /// A copy that bypasses registers cannot convert elements.
    #[error(
        "{acp}{value} cannot convert {scalar} to {factor}, because it bypasses registers; use ACP0, or ACP1 with WOS0 and UNI1 of f16 or bf16, where lanes convert"
    )]
    Converted { acp: Key, value: u32, scalar: Scalar, factor: Scalar },
    /// Lanes that convert weights need both operands contiguous along k in shared memory.
    #[error(
        "{acp}1: mma.sync lanes convert operand {} in shared memory, where both operands must be contiguous along k; operand {lines} is not; use {acp}0, or GLW of an operand that is contiguous along k",
        .acp.part().name()
    )]
    RawLines { acp: Key, lines: &'static str },
    /// Warpgroup lanes that convert weights of operand A need operand B in the same k order.
    #[error(
        "B_ACP{acp} with B_WOS{wos}: operand B needs the k order of A's weights in registers; use B_WOS1 and B_ACP2 with k a multiple of 64, or B_WOS0, B_ACP0 and LWV4 with B contiguous along k"
    )]
    RawOrder { acp: u32, wos: u32 },
    /// A copy that bypasses registers cannot change signs of complex parts.
    #[error("{acp}{value} cannot negate parts of complex numbers, because it bypasses registers; use ACP0, or WOS1 or WOS2")]
    Signed { acp: Key, value: u32 },
    /// A workspace copy moves whole bytes.
    #[error("{wos}{value}: two {scalar} elements share a byte, and workspace copies move whole bytes; use WOS0")]
    CopiedPairs { wos: Key, value: u32, scalar: Scalar },
    /// Asynchronous copies cannot transpose.
    #[error("{acp}1: asynchronous copies cannot transpose vectors along k; use GLW1 or WOS2")]
    AsyncAlongK { acp: Key },
    /// Asynchronous copies cannot transpose rows into lines along k.
    #[error(
        "{acp}1: instructions read {scalar} along k only, and asynchronous copies cannot transpose vectors along rows; use WOS1 or ACP0"
    )]
    AsyncAlongRows { acp: Key, scalar: Scalar },
    /// The hardware of the math unit has no bulk copies.
    #[error("{acp}{value}: AMD hardware has no bulk tensor copies and no transaction barriers; use ACP0")]
    BulkUnit { acp: Key, value: u32 },
    /// Only bulk copies and producer warps fill a circular buffer with transaction barriers.
    #[error("{acp}{value} with LWV{lwv}: a tile without bulk copies (ACP2) needs producer warps; use ACP2 or LWV4")]
    UnitCopy { acp: Key, value: u32, lwv: u32 },
    /// Producer warps write a tile of operand A that should be in registers.
    #[error("RGA{rga} with A_ACP{acp}: operand A in registers needs bulk copies; use A_ACP2 or RGA0")]
    FragmentsWritten { rga: u32, acp: u32 },
    /// Producer warps do not share the classes of rows evenly.
    #[error("{acp}3 with LWV{lwv}: producer warps share eight classes of rows evenly; use LWV1, LWV2, LWV4 or LWV8")]
    ShiftWaves { acp: Key, lwv: u32 },
    /// The unit does not multiply these types.
    #[error("UNI{uni} multiplies {}, not {a} by {b} with {sum} accumulators; use UNI0", tilewright_ir::mma::inputs(*.uni))]
    UnitTypes { uni: u32, a: Scalar, b: Scalar, sum: Scalar },
    /// The device's matrix instructions do not take this 8-bit float.
    #[error("UNI{uni} takes no {scalar} on this device: {}", float8(*.takes))]
    UnitFloat8 { uni: u32, scalar: Scalar, takes: Float8 },
    /// Operands are split into TF32 parts before warpgroup instructions read them.
    #[error(
        "UNI2 with A_ACP{acp_a}, B_ACP{acp_b}, RGA{rga}, LWV{lwv}: tf32x3 splits operand A in registers and operand B in the producer warps; use A_ACP2, B_ACP0, RGA2 and LWV4, or UNI1"
    )]
    UnitSplits { rga: u32, lwv: u32, acp_a: u32, acp_b: u32 },
    /// The unit's instructions need another wave size.
    #[error("UNI{uni} needs waves of {needed} lanes, and the device has waves of {wave}; use another UNI")]
    UnitWave { uni: u32, wave: u32, needed: u32 },
    /// The threads do not form a grid of whole warps or warpgroups.
    #[error(
        "UNI{uni}: MAC{mac}_SKW{skw} is no grid of whole owners of {owners} threads (warps or warpgroups); change MAC or SKW"
    )]
    UnitThreads { uni: u32, mac: u32, skw: u32, owners: u32 },
    /// Ping-pong warpgroups need several tiles and producer warps.
    #[error("PNG1: ping-pong warpgroups need LWV and PST of at least 1, and MAC of at least {}, a multiple of {owners}; the plan has LWV{lwv}_PST{pst}_MAC{mac}", 2 * .owners)]
    Turns { lwv: u32, pst: u32, mac: u32, owners: u32 },
    /// The cluster is illegal for the plan or the contraction.
    #[error("CLU, ICE with SKS2: clusters of {size} work-groups: {why}")]
    Cluster { size: u32, why: &'static str },
    /// The last tiles cannot be split along k.
    #[error("TSP{tsp} splits the last tiles along k: {why}; use TSP1")]
    Tail { tsp: u32, why: &'static str },
    /// The k-tile is no multiple of the unit's k-step.
    #[error("UNR{k_tile}: UNI{uni} takes k in steps of {depth}; use a multiple")]
    UnitSteps { uni: u32, k_tile: u32, depth: u32 },
    /// The k-tile is no multiple of a 128-byte row of the layout in shared memory.
    #[error("UNR{k_tile}: a row of a swizzled tile is 128 bytes of k; use a multiple of {unit}")]
    UnitDepth { k_tile: u32, unit: u32 },
    /// The instruction does not have this number of columns.
    #[error(
        "B_MIC{micro}: a UNI2 instruction has 8 to 256 columns; use at most B_MIC32, for integers an even B_MIC of at least 4"
    )]
    UnitColumns { micro: u32 },
    /// The copy method of a pipeline cannot bring the operand's tiles.
    #[error("{acp}{value}: this copy method cannot bring operand {}: {why}; use WOS1 or another ACP", .acp.part().name())]
    BulkBox { acp: Key, value: u32, why: String },
    /// Rows of the result are not contiguous.
    #[error(
        "CST1: staged rows of C must be contiguous along n, and tiles along n must not be pulled back; use CST0, SWP or EDG1"
    )]
    StagedRows,
    /// Vector math does not divide the columns of a micro tile or their fragments.
    #[error("MVW{width} does not divide the micro tile of {micro} columns and its fragments of {fragment}; use B_FRW{width}")]
    MathWidth { width: u32, micro: u32, fragment: u32 },
    /// Waves of this shape do not cover the grid of threads.
    #[error("WVA{wva}: waves of {wave} lanes, {wva} along m, do not cover the {along_m} x {along_n} threads; use WVA0")]
    WaveShape { wva: u32, wave: u32, along_m: u32, along_n: u32 },
    /// Roles need whole waves.
    #[error(
        "LWV{lwv}: producers are whole waves, and MAC{mac} is no multiple of {wave} lanes or the device has no waves; use LWV0 or another MAC"
    )]
    RoleWaves { lwv: u32, mac: u32, wave: u32 },
    /// Some buffers are never used.
    #[error("BUF{buf}: PFG{pfg} uses at most {} shared buffers; use fewer", .pfg + 1)]
    Buffers { pfg: u32, buf: u32 },
    /// Fragments are read further ahead than the k-tile is deep.
    #[error("FRA{fra}: fragments are read ahead within a k-tile of {k_steps} k-steps (UNR); use a smaller FRA")]
    FragmentsAhead { fra: u32, k_steps: u32 },
    /// Two-level accumulation would promote within a k-tile.
    #[error(
        "UNR{unr}: accumulators are promoted to f32 after every {every} of k, no multiple of the k-tile; use UNR{every} or a divisor of it"
    )]
    PromotedTile { unr: u32, every: u32 },
    /// Two-level accumulation would read accumulators of running instructions.
    #[error("FRA{fra}: two-level accumulation waits for the instructions of each k-tile; use FRA0")]
    PromotedInFlight { fra: u32 },
    /// A part of k begins inside a block of scales.
    #[error(
        "UNR{unr}, ICE{ice}, UFO{ufo}: each part of k must begin with a block of {every} that has its own scale; use UFO0, and ICE1 or UNR{every}, or an ICE that cuts k into whole blocks"
    )]
    ScaledParts { unr: u32, ice: u32, ufo: u32, every: u32 },
    /// NaN and infinities would not propagate as in IEEE 754.
    #[error("{of}: NaN, infinity or overflow differ from IEEE 754; {remedy}, or drop `ieee`")]
    NotIeee { of: &'static str, remedy: &'static str },
    /// Atomics were not allowed.
    #[error("ICE{ice}_SKS0 adds with atomics, and their order varies between runs; use SKS1, or allow atomics")]
    AtomicsNotAllowed { ice: u32 },
    /// No atomic additions of that type.
    #[error("ICE{ice}_SKS0: there are no atomic additions into {scalar}; use SKS1")]
    AtomicType { ice: u32, scalar: Scalar },
    /// Atomic additions of splits never see the whole sum that the activation needs.
    #[error("ICE{ice}_SKS0: {activation} is applied to the whole sum, and a split has only a part; use SKS1 or ICE1")]
    AtomicActivation { ice: u32, activation: Activation },
    /// Atomic additions of splits never see the whole sum that zero points correct.
    #[error("ICE{ice}_SKS0: zero points are subtracted from the whole sum, and a split has only a part; use SKS1 or ICE1")]
    AtomicZeroPoints { ice: u32 },
    /// Atomic additions of splits never see the whole sums that a gate multiplies.
    #[error("ICE{ice}_SKS0: a gate multiplies whole sums, and a split has only parts; use SKS1 or ICE1")]
    AtomicGate { ice: u32 },
    /// No thread has both sums of a result.
    #[error("the gate's columns come in runs of {granule} ahead of the other factor's: {why}")]
    Pairs { granule: u64, why: &'static str },
    /// The operator does not combine from parts of sums.
    #[error("ICE{ice}_SKS0: {operator} reduces whole sums, and a split has only a part; use SKS1, SKS2 or ICE1")]
    ReduceSplit { ice: u32, operator: Operator },
    /// Splits that add with atomics also need atomics for reduced values.
    #[error("ICE{ice}_SKS0: splits that add into C with atomics also reduce with atomics; use RDF2, or SKS1, SKS2 or ICE1")]
    ReduceSplitFinish { ice: u32 },
    /// Reductions by atomic additions were not allowed.
    #[error("RDF{rdf} adds {operator} with atomics, and their order varies between runs; use RDF0 or RDF1, or allow atomics")]
    ReduceAtomics { rdf: u32, operator: Operator },
    /// No atomic combines these values in the result.
    #[error(
        "RDF{rdf}: no atomic combines {operator} in {scalar}; atomics combine single numbers and never scale or round them; \
         use RDF0, RDF1 or RDF5"
    )]
    ReduceAtomicType { rdf: u32, operator: Operator, scalar: Scalar },
    /// Rounding errors of one addition per element grow too large.
    #[error("RDF4 adds {count} elements to each {operator} one by one, and the rounding error allows {most}; use RDF2 or RDF0")]
    ReduceAtomicCount { operator: Operator, count: u64, most: u64 },
    /// Clusters cannot reduce these values.
    #[error("RDF5: {why}, or RDF0")]
    ReduceCluster { why: &'static str },
    /// Each work-group already has whole values.
    #[error("RDF{rdf}: one work-group has the whole of each value, so nothing remains to be finished; use RDF0")]
    ReduceFinished { rdf: u32 },
    /// A work-group cannot carry partial values to its next tile.
    #[error("RDC1: partial values over {over} cannot be carried to the next tile: {why}; use GAL{gal}_PST{pst}, or RDC0")]
    ReduceCarry { over: Axes, why: &'static str, gal: u32, pst: u32 },
    /// Reductions of operands that the main loop cannot compute.
    #[error("RDK1: {why}; use RDK0, which reduces the operand in a kernel of its own")]
    ReduceOperand { why: &'static str },
    /// A ticket finds the last work-group of one block only.
    #[error(
        "RDF1: several tiles share a block of {over} and also have parts of other blocks; use RDF0, or tiles that the blocks divide"
    )]
    ReduceBlocks { over: Axes },
    /// Work-groups of several launches share the same values.
    #[error(
        "RDF1: a strided gradient has one launch per part, and a ticket counts the work-groups of one launch; use RDF0, RDF2 or RDF5"
    )]
    ReduceTicketParts,
    /// Too few results of a thread are adjacent in memory.
    #[error(
        "CVW{width} does not divide the {units} adjacent results of a thread along {dim}; change the fragment width (FRW), or use CST1"
    )]
    StoreUnit { width: u32, dim: &'static str, units: u32 },
    /// C's memory does not allow vectors.
    #[error("CVW{width}: start and strides of C allow vectors of at most {allowed}; use CVW{allowed}")]
    StoreAlign { width: u32, allowed: u32 },
    /// More work-groups than a launch holds.
    #[error("{groups} work-groups, and a launch has at most {max}; use larger tiles")]
    Groups { groups: u64, max: u64 },
    /// More threads than a work-group holds.
    #[error("{threads} threads (MAC, LWV), and a work-group has at most {max}; use a smaller MAC or LWV")]
    Threads { threads: u32, max: u32 },
    /// Too much shared memory.
    #[error(
        "{bytes} bytes of shared memory (UNR, MIC, MAC, PAD, BUF), and a work-group has {max}; use smaller tiles or a smaller BUF"
    )]
    Shared { bytes: u64, max: u32 },
    /// Accumulators and fragments alone exceed the registers.
    #[error(
        "{needed} registers per thread for accumulators and fragments (MIC, FRA), and a thread has {max}; use a smaller MIC or FRA"
    )]
    Registers { needed: u32, max: u32 },
    /// The main loop's text is too long for compilers.
    #[error(
        "the main loop has {count} multiply-adds per thread (each load counts as 24; MIC, UNR, UKL, FRA, PFG), and compilers manage {max}; use UKL0 or smaller tiles"
    )]
    Unrolled { count: u64, max: u64 },
    /// The device lacks something.
    #[error("{wanted}: the device has no {feature}; use {instead}")]
    Feature { wanted: String, feature: &'static str, instead: &'static str },
}

fn dim(key: Key) -> &'static str {
    match key {
        Key::A(_) => "m",
        Key::B(_) => "n",
        Key::C(_) => "k",
    }
}

/// The 8-bit floats that a device multiplies, and a legal choice.
fn float8(takes: Float8) -> &'static str {
    match takes {
        Float8::None => {
            "it has no matrix instructions for 8-bit floats (sm_89 and later, gfx942 and gfx950 have them); use UNI0, or f16"
        }
        Float8::Ocp => "its matrix instructions take the OCP formats (gfx942 takes FNUZ); use e4m3 and e5m2, or UNI0",
        Float8::Fnuz => {
            "its matrix instructions take the FNUZ formats (gfx950 and NVIDIA take OCP); use e4m3fnuz and e5m2fnuz, or UNI0"
        }
    }
}

fn across(along_k: bool) -> &'static str {
    if along_k { "along k" } else { "across k" }
}
