//! Constants of the cost model that no data sheet gives.
//!
//! The defaults were fitted to 4,000 measured trials of 25 GEMMs and convolutions on an H200 (NVRTC 13.0, f32): the fit
//! minimises the spread of modelled over measured times among plans within 2.5 times the best of each problem, and what the
//! ten plans modelled fastest lose.

/// What the model takes from experience. Cycles are a compute unit's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Share of the multiply-add rate that a register-resident stream of them reaches.
    pub fma: f64,
    /// Share of the nominal memory bandwidth that streaming reaches.
    pub dram: f64,
    /// Cycles from a shared-memory read to its value.
    pub shared_latency: f64,
    /// Share of that latency which remains where the compiler orders a fully unrolled k-tile.
    pub hoisted: f64,
    /// Cycles per k-step of a loop that is not unrolled.
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
    /// Share of wide shared-memory phases that are served apart (1: none are merged).
    pub apart: f64,
    /// Weight of shared-memory stores of a tile against their nominal cycles.
    pub store: f64,
    /// Weight of the load path's cycles.
    pub load: f64,
    /// Instructions per k-tile and thread besides those counted.
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
}

impl Default for Calibration {
    fn default() -> Self {
        Calibration {
            fma: 0.825,
            dram: 0.6,
            shared_latency: 12.0,
            hoisted: 0.85,
            loop_cycles: 16.0,
            barrier: 10.0,
            sync: 205.0,
            cached: 0.2,
            loaded: 0.95,
            code: 540.0,
            code_excess: 0.12,
            apart: 0.87,
            store: 1.2,
            load: 1.6,
            overhead: 3.5,
            turn: 4.8,
            next_launch: 0.35,
            helper: 2.7,
            way: 0.3,
            ramp: 1000.0,
            gather: 4.0,
            wide: 2.5,
        }
    }
}

impl Calibration {
    /// The constants by name, for fitting.
    pub fn constants(&mut self) -> [(&'static str, &mut f64); 22] {
        [
            ("fma", &mut self.fma),
            ("dram", &mut self.dram),
            ("shared_latency", &mut self.shared_latency),
            ("hoisted", &mut self.hoisted),
            ("loop_cycles", &mut self.loop_cycles),
            ("barrier", &mut self.barrier),
            ("sync", &mut self.sync),
            ("cached", &mut self.cached),
            ("loaded", &mut self.loaded),
            ("code", &mut self.code),
            ("code_excess", &mut self.code_excess),
            ("apart", &mut self.apart),
            ("store", &mut self.store),
            ("load", &mut self.load),
            ("overhead", &mut self.overhead),
            ("turn", &mut self.turn),
            ("next_launch", &mut self.next_launch),
            ("helper", &mut self.helper),
            ("way", &mut self.way),
            ("ramp", &mut self.ramp),
            ("gather", &mut self.gather),
            ("wide", &mut self.wide),
        ]
    }
}
