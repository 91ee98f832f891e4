//! Why a plan does not derive for a contraction or does not fit a device. A refusal is data for search and users.

use super::keys::Key;
use tilewright_ir::{Float8, Scalar};
use tilewright_problem::{Activation, Axes, Operator};

/// What a plan asks for that cannot be: names keys and values, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[expect(missing_docs, reason = "fields are the numbers in the message beside each variant's comment")]
pub enum Refusal {
    /// A key's value is outside its legal values.
    #[error("{key}{value}: legal values are {}", key.info().legal)]
    Value { key: Key, value: u32 },
    /// Nothing to compute.
    #[error("nothing to compute: g = {g}, m = {m}, n = {n}")]
    Empty { g: u64, m: u64, n: u64 },
    /// The threads do not form a grid of that shape.
    #[error("MAC{mac}_SKW{skw}: {mac} threads do not divide into a grid that skewed; move SKW toward 10")]
    ThreadGrid { mac: u32, skw: u32 },
    /// Tile sizes overflow.
    #[error("{mic}{micro} times {threads} threads is too large a macro tile")]
    TileTooLarge { mic: Key, micro: u32, threads: u32 },
    /// A pulled-back tile does not fit into the result.
    #[error("EDG0: a macro tile of {macro_tile} along {} ({mic}, MAC, SKW) exceeds its extent {extent}; use EDG1 or a smaller tile", dim(*.mic))]
    TileOverEdge { mic: Key, macro_tile: u32, extent: u64 },
    /// Not enough workspace.
    #[error("WOS, SKS: one batch entry needs {needed} bytes of workspace, available are {available}")]
    Workspace { needed: u64, available: u64 },
    /// Load threads do not share a tile evenly.
    #[error("{threads} load threads (MAC, LWV) do not divide the {macro_tile} x UNR{k_tile} elements of a tile of {}", .mic.part().name())]
    LoadShare { mic: Key, macro_tile: u32, k_tile: u32, threads: u32 },
    /// MIOpenGEMM's packing kernel works in blocks of 64.
    #[error("{wos}2: 64 does not divide the {macro_tile} x UNR{k_tile} elements of a packed tile")]
    PackShare { wos: Key, macro_tile: u32, k_tile: u32 },
    /// The tensor has no rows to pad.
    #[error("{wos}3: {} has no rows that a copy of its tensor would pad: {why}; use WOS0", .wos.part().name())]
    PaddedRows { wos: Key, why: &'static str },
    /// Staggered starts need room.
    #[error("UFO1: k = {k} must be greater than UNR{k_tile}")]
    Stagger { k: u64, k_tile: u32 },
    /// A strip of tiles has no width.
    #[error("GAL3: strips of sqrt(NAW{naw} / ICE{ice}) tiles are narrower than one; raise NAW")]
    Strip { naw: u32, ice: u32 },
    /// Vectors in a direction in which elements are not adjacent.
    #[error("{key}{width}: {} is not contiguous {} where it is loaded from; use width 1, GLW, or WOS2", .key.part().name(), across(*.along_k))]
    NotContiguous { key: Key, width: u32, along_k: bool },
    /// Alignment forbids vectors: base offset, leading dimension, batch stride or padding is not a multiple of the width.
    #[error("{key}{width}: start, strides or validity of {} allow vectors of {allowed} only; use that width, or WOS2", .key.part().name())]
    VectorAlign { key: Key, width: u32, allowed: u32 },
    /// Vectors that only copies move which no register has part in.
    #[error("{key}{width}: vectors of so many elements are those of 4 bits that asynchronous copies move (ACP1); use 16 or less")]
    VectorWide { key: Key, width: u32 },
    /// Vectors do not divide a thread's load tile.
    #[error("{key}{width} does not divide the {length} elements {} of a thread's load tile; change PLU or the tile", across(*.along_k))]
    VectorTile { key: Key, width: u32, length: u32, along_k: bool },
    /// The last vector before an edge would be partly outside, or a pulled-back tile would start inside a vector.
    #[error("{key}{width} does not divide {dim} = {extent}, and the tiles do not end there")]
    VectorEdge { key: Key, width: u32, dim: &'static str, extent: u64 },
    /// Vectors along an extent that is known only at launch: the last may be partly outside.
    #[error("{key}{width}: {dim} is known only at launch, and need not end where a vector does; use width 1, or WOS2")]
    VectorRunTime { key: Key, width: u32, dim: &'static str },
    /// A pulled-back tile needs an extent of at least a tile.
    #[error("EDG0: {dim} is known only at launch and may be less than a tile, which is then not pulled back; use EDG1")]
    PullBackRunTime { dim: &'static str },
    /// Vectors along k from staggered starts.
    #[error("{key}{width}: vectors along k do not start where UFO1 starts; use UFO0 or width 1")]
    VectorStagger { key: Key, width: u32 },
    /// Fragments do not divide the micro tile.
    #[error("{key}{width} does not divide {mic}{micro}")]
    FragmentWidth { key: Key, width: u32, mic: Key, micro: u32 },
    /// What does not go with groups of rows or columns whose ends are in device memory.
    #[error("{key}{value}: the product is grouped, {why}")]
    Grouped { key: Key, value: u32, why: &'static str },
    /// Factors that each thread loads for itself.
    #[error("{key}{value} with BIM4: {why}")]
    OwnLoads { key: Key, value: u32, why: &'static str },
    /// Windows of a whole result tile.
    #[error("{acp}4: {why}")]
    Halo { acp: Key, why: String },
    /// Asynchronous copies without a buffer to run ahead into.
    #[error(
        "{acp}1: asynchronous copies run ahead, they need PFG of at least 1 and BUF of at least PFG + 1, not PFG{pfg}_BUF{buf}"
    )]
    AsyncAhead { acp: Key, pfg: u32, buf: u32 },
    /// Asynchronous copies move 4, 8 or 16 bytes.
    #[error("{acp}1: a copy of {bytes} bytes ({width} x {scalar}); copies move 4, 8 or 16 bytes, set GLW so")]
    AsyncBytes { acp: Key, width: u32, scalar: Scalar, bytes: u32 },
    /// Copies that no thread's registers have part in cannot convert.
    #[error(
        "{acp}{value}: elements are multiplied in {factor} and lie in memory as {scalar}, which become it in registers; use ACP0, or ACP1 with WOS0 and mma.sync of f16 or bf16 (UNI1), whose lanes convert what they read"
    )]
    Converted { acp: Key, value: u32, scalar: Scalar, factor: Scalar },
    /// Lanes that make factors of what they read have neighbours along k.
    #[error(
        "{acp}1: lanes of mma.sync make factors of {} from neighbours along k in shared memory, and read the other factor alike, but lines of {lines} run along rows there; use {acp}0, or GLW of an operand that is contiguous along k",
        .acp.part().name()
    )]
    RawLines { acp: Key, lines: &'static str },
    /// Those of a warpgroup have the other factor in the order of theirs.
    #[error(
        "B_ACP{acp} with B_WOS{wos}: lanes of a warpgroup hold runs of weights along k, and the other factor comes in that order; use B_WOS1 and B_ACP2, whose copy has it, of a k that is a multiple of 64, or B_WOS0, B_ACP0 and LWV4, whose load waves write pairs that lie along k in memory"
    )]
    RawOrder { acp: u32, wos: u32 },
    /// Nor can they change signs.
    #[error(
        "{acp}{value}: parts of this factor's complex numbers change their sign on the way, in registers; use ACP0, or WOS1 or WOS2, whose copy has them changed"
    )]
    Signed { acp: Key, value: u32 },
    /// Copies in workspace move elements one by one.
    #[error("{wos}{value}: a copy in workspace has elements of whole bytes, and two of {scalar} share one; use WOS0")]
    CopiedPairs { wos: Key, value: u32, scalar: Scalar },
    /// Asynchronous copies cannot transpose.
    #[error("{acp}1: copies cannot transpose vectors along k; use GLW1 or WOS2")]
    AsyncAlongK { acp: Key },
    /// Nor into lines along k.
    #[error(
        "{acp}1: the unit reads {scalar} in lines along k alone, and copies cannot transpose vectors along rows; use WOS1 or ACP0"
    )]
    AsyncAlongRows { acp: Key, scalar: Scalar },
    /// No bulk copies where the unit is.
    #[error("{acp}{value}: AMD's hardware, which has MFMA, has no bulk tensor copies and no transaction barriers; use ACP0")]
    BulkUnit { acp: Key, value: u32 },
    /// A circular buffer with transaction barriers is filled by bulk copies or by load waves.
    #[error(
        "{acp}{value} with LWV{lwv}: beside bulk copies of the other operand load waves bring a tile, and shift it from staging; use ACP2, or LWV4"
    )]
    UnitCopy { acp: Key, value: u32, lwv: u32 },
    /// Fragments of a tile that load waves write.
    #[error(
        "RGA{rga} with A_ACP{acp}: load waves write tiles as instructions read them from shared memory, registers serve what bulk copies bring; use RGA0 or A_ACP2"
    )]
    FragmentsWritten { rga: u32, acp: u32 },
    /// Load waves that do not share the classes of lines.
    #[error("{acp}3 with LWV{lwv}: each load wave shifts as many of the eight classes of lines; use LWV1, LWV2, LWV4 or LWV8")]
    ShiftWaves { acp: Key, lwv: u32 },
    /// Types that the unit does not multiply.
    #[error("UNI{uni} multiplies {}, not {a} by {b} with sums in {sum}; use UNI0", tilewright_ir::mma::inputs(*.uni))]
    UnitTypes { uni: u32, a: Scalar, b: Scalar, sum: Scalar },
    /// 8-bit floats on a device whose matrix instructions do not take them.
    #[error("UNI{uni} takes no {scalar} on this device, {}", float8(*.takes))]
    UnitFloat8 { uni: u32, scalar: Scalar, takes: Float8 },
    /// Factors that are split before warpgroup instructions read them.
    #[error(
        "UNI2 with A_ACP{acp_a}, B_ACP{acp_b}, RGA{rga}, LWV{lwv}: for tf32x3 factors are split before instructions read them, A's in registers and B's, which come from shared memory, by the load waves that write them; use A_ACP2, B_ACP0, RGA2 and LWV4, or UNI1"
    )]
    UnitSplits { rga: u32, lwv: u32, acp_a: u32, acp_b: u32 },
    /// Waves that the unit's instructions do not have.
    #[error("UNI{uni} has instructions of waves of {needed} lanes, the device has waves of {wave}; use another UNI")]
    UnitWave { uni: u32, wave: u32, needed: u32 },
    /// Thread counts that do not form whole warps or warpgroups.
    #[error("UNI{uni}: MAC{mac}_SKW{skw} is no grid of whole owners of {owners} threads")]
    UnitThreads { uni: u32, mac: u32, skw: u32, owners: u32 },
    /// Warpgroups that alternate need tiles to take and waves that copy for them.
    #[error("PNG1: warpgroups take tiles of C in turn, that needs LWV and PST of at least 1 and MAC of at least {}, not LWV{lwv}_PST{pst}_MAC{mac}", 2 * .owners)]
    Turns { lwv: u32, pst: u32, mac: u32, owners: u32 },
    /// Too many work-groups in a cluster, or no whole number of clusters.
    #[error("CLU, ICE with SKS2: clusters of {size} work-groups; {why}")]
    Cluster { size: u32, why: &'static str },
    /// k-tiles that are no whole k-steps of the unit.
    #[error("UNR{k_tile}: UNI{uni} takes k in steps of {depth}; use a multiple")]
    UnitSteps { uni: u32, k_tile: u32, depth: u32 },
    /// k-tiles that are no whole rows of the layout in shared memory.
    #[error("UNR{k_tile}: rows of a bulk tile are 128 bytes of k; use a multiple of {unit}")]
    UnitDepth { k_tile: u32, unit: u32 },
    /// An instruction has too many columns.
    #[error(
        "B_MIC{micro}: an instruction of UNI2 has 8 to 256 columns, at most B_MIC32, and of integers an even B_MIC from 4 on"
    )]
    UnitColumns { micro: u32 },
    /// The operand is no box that a bulk copy can move.
    #[error("{acp}2: {} is not what bulk copies move: {why}; use WOS1", .acp.part().name())]
    BulkBox { acp: Key, why: String },
    /// Rows of the result are not contiguous.
    #[error(
        "CST1: matrix units stage rows of the result; its columns are not contiguous (and bulk stores do not reach its rows), or tiles along n are pulled back from the edge; use CST0, SWP or EDG1"
    )]
    StagedRows,
    /// Vector math does not divide the columns of a micro tile or their fragments.
    #[error("MVW{width} does not divide B's micro tile of {micro} and fragments of {fragment}; set B_FRW{width}")]
    MathWidth { width: u32, micro: u32, fragment: u32 },
    /// A wave does not cover a rectangle of micro tiles of that shape.
    #[error("WVA{wva}: waves of {wave} lanes do not cover the {along_m} x {along_n} threads in rectangles {wva} long")]
    WaveShape { wva: u32, wave: u32, along_m: u32, along_n: u32 },
    /// Roles are given to whole waves.
    #[error("LWV{lwv}: roles are given to whole waves; MAC{mac} is no multiple of the wave, {wave} lanes, or there are no waves")]
    RoleWaves { lwv: u32, mac: u32, wave: u32 },
    /// Buffers that are never used.
    #[error("BUF{buf}: with PFG{pfg} at most {} shared buffers are used", .pfg + 1)]
    Buffers { pfg: u32, buf: u32 },
    /// Fragments further ahead than the k-tile is deep.
    #[error("FRA{fra}: fragments are read ahead within a k-tile, it must be below its {k_steps} k-steps (UNR)")]
    FragmentsAhead { fra: u32, k_steps: u32 },
    /// Two-level accumulation within a k-tile.
    #[error(
        "UNR{unr}: sums are promoted to f32 after every {every} of k, which is no multiple of the k-tile; use UNR{every} or a divisor of it"
    )]
    PromotedTile { unr: u32, every: u32 },
    /// Two-level accumulation while instructions run.
    #[error("FRA{fra}: promoted sums are read behind each k-tile, whose instructions must be finished; use FRA0")]
    PromotedBehind { fra: u32 },
    /// Accumulators that are promoted together and have scales of several blocks of k.
    #[error(
        "UNR{unr}, ICE{ice}, UFO{ufo}: there are scales of blocks of {every} of k, with which each part of k must begin; use UFO0, and ICE1 or UNR{every}, or an ICE that cuts k into whole blocks"
    )]
    ScaledParts { unr: u32, ice: u32, ufo: u32, every: u32 },
    /// Atomics were not allowed.
    #[error("ICE{ice}_SKS0 adds with atomics, whose order varies from run to run; use SKS1, or allow atomics")]
    AtomicsNotAllowed { ice: u32 },
    /// No atomic additions of that type.
    #[error("ICE{ice}_SKS0: no atomic additions into {scalar}; use SKS1")]
    AtomicType { ice: u32, scalar: Scalar },
    /// Splits that are added one by one leave no place for a function of their whole sum.
    #[error("ICE{ice}_SKS0: {activation} is applied to the whole sum, and atomic additions never see it; use SKS1 or ICE1")]
    AtomicActivation { ice: u32, activation: Activation },
    /// Nor for what is subtracted from it once.
    #[error("ICE{ice}_SKS0: zero points are taken from the whole sum, and atomic additions never see it; use SKS1 or ICE1")]
    AtomicZeroPoints { ice: u32 },
    /// Parts of sums cannot be reduced.
    #[error("ICE{ice}_SKS0: {operator} is one of the whole sum, and atomic additions never see it; use SKS1, SKS2 or ICE1")]
    ReduceSplit { ice: u32, operator: Operator },
    /// Parts of sums are reduced where they are, by atomics as well.
    #[error(
        "ICE{ice}_SKS0: splits add up their parts of reduced values as they do those of the result, by atomics; use RDF2, or SKS1, SKS2 or ICE1"
    )]
    ReduceSplitFinish { ice: u32 },
    /// Sums by atomics were not allowed.
    #[error("RDF{rdf} adds up {operator} with atomics, whose order varies from run to run; use RDF0 or RDF1, or allow atomics")]
    ReduceAtomics { rdf: u32, operator: Operator },
    /// Values that no atomic can combine in the result.
    #[error(
        "RDF{rdf}: no atomic combines {operator} in {scalar}: additions, minima and maxima of memory see one number, \
         no state of several, nor what is scaled or rounded once all is added up; use RDF0, RDF1 or RDF5"
    )]
    ReduceAtomicType { rdf: u32, operator: Operator, scalar: Scalar },
    /// Added one by one, so many elements lose their last digits.
    #[error(
        "RDF4 adds {count} elements to each {operator} one by one, and rounding grows with their number: {most} are the most; use RDF2 or RDF0"
    )]
    ReduceAtomicCount { operator: Operator, count: u64, most: u64 },
    /// No clusters that reduce.
    #[error("RDF5: {why}; or RDF0")]
    ReduceCluster { why: &'static str },
    /// No value remains after a work-group.
    #[error("RDF{rdf}: one work-group has all of each value, nothing is left to finish; use RDF0")]
    ReduceFinished { rdf: u32 },
    /// Consecutive tiles of a work-group have parts of different values.
    #[error("RDC1: what is reduced over {over} does not go on from tile to tile: {why}; use GAL{gal}_PST{pst}, or RDC0")]
    ReduceCarry { over: Axes, why: &'static str, gal: u32, pst: u32 },
    /// Reductions of operands that the main loop cannot compute.
    #[error("RDK1: {why}; use RDK0, which reduces the operand behind the product")]
    ReduceOperand { why: &'static str },
    /// A ticket tells the last of the work-groups that share values.
    #[error(
        "RDF1: several tiles have parts of one of the blocks of {over}, each of others as well; use RDF0, or tiles that blocks divide"
    )]
    ReduceBlocks { over: Axes },
    /// Work-groups of several launches have parts of the same values.
    #[error(
        "RDF1: the parts of a gradient with a stride have launches of their own, and a ticket tells the last work-group of one; use RDF0, RDF2 or RDF5"
    )]
    ReduceTicketParts,
    /// A thread's results are not adjacent in memory for that many elements.
    #[error(
        "CVW{width} does not divide the {units} adjacent results of a thread along {dim}; set the fragment width (FRW), or CST1"
    )]
    StoreUnit { width: u32, dim: &'static str, units: u32 },
    /// C's memory does not allow vectors.
    #[error("CVW{width}: start and strides of C allow vectors of {allowed}")]
    StoreAlign { width: u32, allowed: u32 },
    /// More work-groups than a launch holds.
    #[error("{groups} work-groups, at most {max} can be launched; use larger tiles")]
    Groups { groups: u64, max: u64 },
    /// More threads than a work-group holds.
    #[error("{threads} threads (MAC, LWV), a work-group holds {max}")]
    Threads { threads: u32, max: u32 },
    /// Too much shared memory.
    #[error("{bytes} bytes of shared memory (UNR, MIC, MAC, PAD, BUF), a work-group has {max}")]
    Shared { bytes: u64, max: u32 },
    /// Accumulators and fragments alone exceed the registers.
    #[error("{needed} registers per thread for accumulators and fragments (MIC, FRA), a thread has {max}")]
    Registers { needed: u32, max: u32 },
    /// The main loop's text is too long for compilers.
    #[error(
        "{count} multiply-adds and loads (24 each) per thread in the text of the main loop (MIC, UNR, UKL, FRA, PFG), compilers manage {max}"
    )]
    Unrolled { count: u64, max: u64 },
    /// The device lacks something.
    #[error("{wanted}: the device has no {feature}")]
    Feature { wanted: String, feature: &'static str },
}

fn dim(key: Key) -> &'static str {
    match key {
        Key::A(_) => "m",
        Key::B(_) => "n",
        Key::C(_) => "k",
    }
}

/// What a device takes of 8-bit floats, and what to do instead.
fn float8(takes: Float8) -> &'static str {
    match takes {
        Float8::None => {
            "which has no matrix instructions for 8-bit floats (sm_89 and later, gfx942 and gfx950 have them); use UNI0, or f16"
        }
        Float8::Ocp => "whose matrix instructions take the OCP formats (FNUZ ones are gfx942's); use e4m3 and e5m2, or UNI0",
        Float8::Fnuz => {
            "whose matrix instructions take the FNUZ formats (OCP's are those of gfx950 and NVIDIA); use e4m3fnuz and e5m2fnuz, or UNI0"
        }
    }
}

fn across(along_k: bool) -> &'static str {
    if along_k { "along k" } else { "across k" }
}
