//! Where a part of the main loop is among the stages: which one, and, where transaction barriers tell, the parity of its phase.

use tilewright_ir::*;

/// Counts around a circular buffer of stages.
#[derive(Clone, Copy)]
pub(crate) struct Counter {
    /// `None` where there is one stage only.
    stage: Option<VarId>,
    phase: Option<VarId>,
    of: u32,
}

impl Counter {
    /// Starts at the first of so many stages; with `phases`, of transaction barriers.
    pub fn new(b: &mut Builder, name: &str, of: u32, phases: bool) -> Counter {
        let zero = b.int(0, Scalar::I32);
        let stage = (of > 1 || phases).then(|| b.declare(&format!("{name}_stage"), zero));
        Counter { stage, phase: phases.then(|| b.declare(&format!("{name}_phase"), zero)), of }
    }

    /// The stage.
    pub fn stage(self, b: &mut Builder) -> ExprId {
        match self.stage {
            Some(stage) => b.get(stage),
            None => b.int(0, Scalar::I32),
        }
    }

    /// The parity of its phase.
    pub fn phase(self, b: &mut Builder) -> ExprId {
        match self.phase {
            Some(phase) => b.get(phase),
            None => b.int(0, Scalar::I32),
        }
    }

    /// On to the next stage.
    pub fn next(self, b: &mut Builder) {
        match (self.stage, self.phase) {
            (None, _) => {}
            (Some(stage), None) => {
                let i = b.get(stage);
                let next = if self.of == 2 { b.value(1 - i) } else { b.value(i.equals(self.of - 1).select(0, i + 1)) };
                b.set(stage, next);
            }
            (Some(stage), Some(phase)) => {
                let more = b.bind("next_stage", stage + 1);
                let around = b.bind("wraps", more.equals(self.of));
                b.set(stage, around.select(0, more));
                let old = b.get(phase);
                let turned = b.value(1 - old);
                b.set(phase, around.select(turned, old));
            }
        }
    }

    /// Passes over stages of so many k-tiles, which others read.
    pub fn skip(self, b: &mut Builder, tiles: ExprId) {
        let (Some(stage), Some(phase)) = (self.stage, self.phase) else { return };
        let sum = b.bind("skipped", stage + tiles.cast(Scalar::I32));
        b.set(phase, (phase + sum / self.of) % 2);
        b.set(stage, sum % self.of);
    }
}
