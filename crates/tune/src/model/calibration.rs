//! Constants of the cost model: observed properties of compiled code and of contention for resources. Properties of devices are in
//! [`tilewright_ir::Target`].
//!
//! `tilewright-bench fit benchmarks/records/*.jsonl.gz` prints the residual of each set: the geometric mean of modelled over measured time, and its
//! spread as a factor. What it printed on 2026-11-28:
//!
//! | constants | fitted to (H200) | residual on kept records |
//! |---|---|---|
//! | [`Calibration`] | 890 trials of 12 products in f32, half of them in batches; judged by 805 of 12 others | 0.95, 1.31 of 54 products in f32 |
//! | windows, loops that are not written out, helper kernels | an earlier set with convolutions in f32 | 0.87, 1.42 of 24 convolutions |
//! | warpgroups, stores, clusters | trials of bf16 and TF32 | 1.04, 1.12 of 24 products; 0.94, 1.18 of 74 convolutions |
//! | [`DOUBLE_MOVES`] | 3 plans in f64 | 0.94, 1.07 of 15 products (2026-12-01) |
//! | [`RAW`], [`CONVERTING`] | 42 plans with small weights | 0.84, 1.25 of 16 products with i4; 1.05, 1.13 with i8 |
//! | [`own`] | depthwise convolutions | 1.03, 1.08 of 7 forward; 0.87, 1.17 of 9 and 0.84, 1.35 of 7 gradients |
//! | [`elements`] | reductions of tensors | none kept |
//!
//! notebook/2026-11-23-cost-model.md names both halves of the first set. The fit minimises what the plans modelled fastest lose and the spread of
//! modelled over measured times.

/// What kernels of one kind of matrix unit have in common.
pub(super) struct UnitPace {
    /// Cycles from the first copy of a work-group to its first instruction, and from the last to the end.
    pub ramp: f64,
    /// Latency of copies while all units copy, over that of an idle device.
    pub loaded: f64,
    /// Share of filling and storing that remains where several work-groups share a compute unit.
    pub overlap: f64,
}
pub(super) const WARPGROUPS: UnitPace = UnitPace { ramp: 1900.0, loaded: 1.8, overlap: 0.4 };
pub(super) const WAVES: UnitPace = UnitPace { ramp: 1600.0, loaded: 1.3, overlap: 0.5 };
/// Share of the nominal memory bandwidth that streaming reaches.
pub(super) const STREAMED: f64 = 0.85;

// Warpgroup instructions.
/// Cycles that the waits of one k-tile cost where a single warpgroup drains its instructions.
pub(super) const DRAIN: f64 = 45.0;
/// As the constant above, where the thread that copies waits as well.
pub(super) const DRAIN_ALONE: f64 = 300.0;
/// Cycles of a k-tile in which its first fragments come from shared memory where no instruction runs meanwhile, and where some do.
pub(super) const FRAGMENTS: (f64, f64) = (90.0, 12.0);
/// Cycles of a tile that teams taking turns do not hide.
pub(super) const TURN: f64 = 120.0;
/// Results per cycle that leave a unit row by row.
pub(super) const ROWS: f64 = 10.0;
/// Bytes per cycle that zeros leave a unit with where there are no sums: lines of 128 bytes in four cycles each.
pub(super) const ZEROS: f64 = 32.0;
/// Bytes per cycle that results leave a unit with by bulk stores, and what each wave adds.
pub(super) const SLABS: (f64, f64) = (6.0, 0.9);
/// Instructions that a load wave issues per cycle: chains of address, shift and store with a few batches beside each other.
pub(super) const FETCH_ISSUE: f64 = 0.6;
/// Wait for fetched rows, relative to the latency of a load: the last load of a batch queues after all others of the compute unit.
pub(super) const FETCH_WAIT: f64 = 1.6;
/// Bytes per cycle that fetching takes of the shared memory's port, loads and stores together. Instructions use the port too.
/// Measured on an H200: 28 to 32.
pub(super) const FETCH_PORT: f64 = 30.0;
/// What fetching costs more than estimated where bulk copies reach the operand as well (measured on an H200: 1.3 to 2).
pub(super) const NEEDLESS: f64 = 1.4;
/// A pick with a split tail has to be better by that much. What a tail changes was measured on an H200 at 0.87 to 1.08 of the estimate without this
/// factor (four fifths of 119 plans of 9 products).
pub(super) const SPLIT_TAIL: f64 = 1.03;
/// How much more sharing tiles costs than estimated. On an H200 pairs of 128 x 256 or 256 x 128 take as long as single
/// work-groups, and reductions of few rows take longer.
pub(super) const SHARED: f64 = 1.15;
/// What sums over a cluster cost more than estimated (measured 0.8 to 1.1 of an estimate with this factor).
pub(super) const SUMMED: f64 = 1.25;
/// Cycles in which a work-group starts a bulk copy, and in which a copy arrives. Another work-group of the cluster may have
/// started it. Fitted on an H200. Tiles of 128 rows took 65 to 69 cycles for each box of 1 KiB, 43 where two work-groups shared
/// the boxes.
pub(super) const COPY: (f64, f64) = (44.0, 22.0);
/// Cycles that work-groups of a cluster wait for each other with every k-tile they share.
pub(super) const TOGETHER: f64 = 12.0;

// Copies and conversions of matrix units.
/// Instructions of a piece of windows that is copied: its digits, bounds, place and the copy. Counted in NVRTC's code for sm_90a:
/// 1,282 of 24 pieces and 8 of filters.
pub(super) const WINDOW_ADDRESS: f64 = 32.0;
/// Cycles for each of these instructions of a wave where hardly another wave can issue meanwhile. Fitted to six plans with eight
/// waves on a unit. Their tiles took 19 to 26 thousand cycles each on an H200, which is 9.5 to 12.5 for each counted instruction.
pub(super) const ALONE: f64 = 10.5;
/// Instructions of each result on its way through a staging buffer.
pub(super) const STAGED: f64 = 3.0;
/// Instructions that split an element into two TF32 numbers.
pub(super) const SPLITTING: f64 = 3.0;
/// Instructions for each narrower part of an element, without stores. They are half of an instruction that rounds two elements,
/// halves of instructions that widen numbers again, and a subtraction. Code for sm_90a has 3 for two parts, and 4.6 for three.
pub(super) const PART: f64 = 1.5;
/// Instructions for each load and store with which a thread brings a k-tile of doubles. Fitted to three plans on an H200, with
/// k-tiles that took 770 to 1,320 cycles beyond their math.
pub(super) const DOUBLE_MOVES: f64 = 4.0;
/// How many times longer waves of mma.sync take if they convert weights: for eight columns of the other operand, and the increase
/// for each doubling. Fitted to 42 measured plans for 1 to 64 rows, which took 1.2 to 1.8 times as long as modelled.
pub(super) const RAW: (f64, f64) = (1.2, 0.2);
/// Instructions that make a 16-bit float of a weight of 8 or 4 bits.
pub(super) const CONVERTING: f64 = 2.0;

// Matrix instructions of single waves.
/// Cycles that a k-tile's barrier and the turn of its buffers cost where one work-group is alone.
pub(super) const WAVE_TURN: f64 = 60.0;

// Processors without waves.
/// Cycles per thread and region between barriers.
pub(super) const CPU_REGION: f64 = 12.0;
/// Vector instructions of a loop body that caches hold.
pub(super) const CPU_BODY: f64 = 350.0;

// Traffic with device memory.
/// Work-groups in launch order that sit close together.
pub(super) const SPREAD: f64 = 24.0;
/// How much more is fetched where sharers sit apart.
pub(super) const FAR: f64 = 1.3;
/// Bytes that the last-level cache fetches at once for TMA, as tensor maps ask.
pub(super) const BULK_LINE: f64 = 256.0;
/// How much more is fetched where several batch entries have parts of such a line and come one after the other. Windows of 64
/// channels of 256 to 1024 took 1.2 to 1.3 times as long, results included.
pub(super) const BESIDE: f64 = 1.6;

// Ends of a program.
/// The way of a ticket to memory and back, in microseconds.
pub(super) const TICKET_US: f64 = 0.7;
/// Bytes per clock that one compute unit reads from the last-level cache: the last work-group reads the parts alone.
pub(super) const UNIT_BYTES: f64 = 64.0;
/// Clocks of a compute unit for an atomic, and microseconds between two atomics on the same element.
pub(super) const ATOMIC_CLOCKS: f64 = 4.0;
pub(super) const ATOMIC_US: f64 = 0.002;

/// Products in which each column has its own operand A.
pub(super) mod own {
    /// k over which a work-group's first-level cache keeps what it has loaded.
    pub(in super::super) const KEPT: f64 = 512.0;
    /// Lines that the first-level cache looks up in a clock.
    pub(in super::super) const LOOKED_UP: f64 = 2.0;
    /// Clocks of narrow loads, whose lanes read several lines.
    pub(in super::super) const NARROW: f64 = 2.0;
    /// Instructions of a thread around its k-tiles, and for each condition of a load and its address.
    pub(in super::super) const AROUND: f64 = 90.0;
    pub(in super::super) const CONDITION: f64 = 1.0;
    /// Clocks that a load of a thread takes at its place in the source. `FIRST_WAIT`: clocks of the first load where all are
    /// ahead of the math.
    pub(in super::super) const WAIT: f64 = 120.0;
    pub(in super::super) const FIRST_WAIT: f64 = 800.0;
    /// Share of that of what the first-level cache holds.
    pub(in super::super) const NEAR: f64 = 0.25;
    /// Share of the peak rates that mixed instructions, and streams of memory, reach.
    pub(in super::super) const REACHED: f64 = 0.8;
}

/// Reductions of a tensor's elements.
pub(super) mod elements {
    /// Instructions of an element at the ends of a line that starts anywhere: its place, a load, choices.
    pub(in super::super) const AT_ENDS: f64 = 7.0;
    /// What the narrowest loads lose of the bandwidth.
    pub(in super::super) const NARROW: f64 = 0.05;
    /// Steps that are on their way together: the loads of one, and a part of the next step's loads.
    pub(in super::super) const AHEAD: f64 = 1.2;
    /// A tile with this many adjacent bytes takes memory twice as long to read as a long line. Memory opens a row and fetches 64
    /// bytes.
    pub(in super::super) const SHORT_RUN: f64 = 24.0;
}

/// What the model takes from experience. Cycles are a compute unit's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Share of the multiply-add rate that a register-resident stream of them reaches.
    pub fma: f64,
    /// Share of the nominal memory bandwidth that streaming reaches.
    pub dram: f64,
    /// Cycles from a shared-memory read to its value. A wave waits for them in each k-step, however far ahead the source reads.
    /// Measured: k-tiles left to the compiler and loops with fragments a step ahead take the same time.
    pub shared_latency: f64,
    /// Further cycles per k-step of a loop that is not written out.
    pub loop_cycles: f64,
    /// Cycles per k-tile that a barrier and what comes with it stop a wave.
    pub barrier: f64,
    /// Cycles per k-tile that a whole work-group loses around its barriers.
    pub sync: f64,
    /// Latency of the last-level cache, as a share of that of memory.
    pub cached: f64,
    /// Latency under load over latency at rest.
    pub loaded: f64,
    /// Instructions of a loop body that instruction caches hold.
    pub code: f64,
    /// Additional issue time per thousand instructions beyond.
    pub code_excess: f64,
    /// Weight of shared-memory stores of a tile against their nominal cycles.
    pub store: f64,
    /// Cycles that a wave waits for each store of a thread to shared memory after the math of a k-tile.
    pub stored: f64,
    /// Cycles of a store of results for each sector and each line that a wave's lanes touch.
    pub exit: f64,
    /// Cycles that a work-group waits with each micro row or column of results on its way through shared memory.
    pub pass: f64,
    /// Weight of the load path's cycles.
    pub load: f64,
    /// Instructions per k-tile and thread besides the counted ones.
    pub overhead: f64,
    /// Instructions per k-tile and thread for each further buffer and each k-tile that loads run ahead.
    pub turn: f64,
    /// Share of a launch that a further kernel of the same program costs.
    pub next_launch: f64,
    /// Microseconds of every helper kernel.
    pub helper: f64,
    /// Microseconds per summed split.
    pub way: f64,
    /// Cycles from the start of a work-group to its first load.
    pub ramp: f64,
    /// Time of copying a window of a convolution over that of copying a matrix.
    pub gather: f64,
    /// Cost of an index computed in 64 bits over one in 32.
    pub wide: f64,
    /// Excess time for each halving of the load waves below the math waves.
    pub few_loaders: f64,
}

impl Default for Calibration {
    fn default() -> Self {
        Calibration {
            fma: 0.99,
            dram: 0.85,
            shared_latency: 30.0,
            loop_cycles: 36.0,
            barrier: 7.5,
            sync: 205.0,
            cached: 0.36,
            loaded: 0.5,
            code: 830.0,
            code_excess: 0.205,
            store: 1.36,
            stored: 22.0,
            exit: 1.42,
            pass: 80.0,
            load: 1.09,
            overhead: 3.25,
            turn: 2.2,
            next_launch: 0.562,
            helper: 3.2,
            way: 0.102,
            ramp: 880.0,
            gather: 4.0,
            wide: 2.5,
            few_loaders: 0.116,
        }
    }
}

impl Calibration {
    /// The constants by name, for fitting.
    pub fn constants(&mut self) -> [(&'static str, &mut f64); 24] {
        [
            ("fma", &mut self.fma),
            ("dram", &mut self.dram),
            ("shared_latency", &mut self.shared_latency),
            ("loop_cycles", &mut self.loop_cycles),
            ("barrier", &mut self.barrier),
            ("sync", &mut self.sync),
            ("cached", &mut self.cached),
            ("loaded", &mut self.loaded),
            ("code", &mut self.code),
            ("code_excess", &mut self.code_excess),
            ("store", &mut self.store),
            ("stored", &mut self.stored),
            ("exit", &mut self.exit),
            ("pass", &mut self.pass),
            ("load", &mut self.load),
            ("overhead", &mut self.overhead),
            ("turn", &mut self.turn),
            ("next_launch", &mut self.next_launch),
            ("helper", &mut self.helper),
            ("way", &mut self.way),
            ("ramp", &mut self.ramp),
            ("gather", &mut self.gather),
            ("wide", &mut self.wide),
            ("few_loaders", &mut self.few_loaders),
        ]
    }
}
