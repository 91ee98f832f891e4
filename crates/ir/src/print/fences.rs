//! Which work-group barriers must order global memory too, and whether there are fences for the compiler's scheduler.
//!
//! A barrier of the kernel language orders global memory within the work-group. OpenCL needs a flag for this order, and the flag makes the
//! barrier wait for loads in flight. So the flag is set only where a buffer is written before the barrier and read after it.

use crate::{ArgId, BarrierScope, Base, Block, Kernel, Stmt};
use std::collections::{HashMap, VecDeque};

/// The answer for each work-group barrier, in statement order.
#[derive(Default)]
pub(super) struct Fences {
    answers: VecDeque<bool>,
    hints: bool,
}

#[derive(Default)]
struct Walk {
    clock: u32,
    barriers: Vec<u32>,
    hints: bool,
    first_write: HashMap<ArgId, u32>,
    last_read: HashMap<ArgId, u32>,
}

impl Fences {
    /// Walks the kernel in statement order. A loop's reads count until its end and its writes from its start.
    pub fn new(kernel: &Kernel) -> Self {
        let mut walk = Walk::default();
        walk.block(kernel, &kernel.body);
        let needs = |at: &u32| {
            walk.first_write.iter().any(|(buffer, write)| write < at && walk.last_read.get(buffer).is_some_and(|read| read > at))
        };
        Fences { answers: walk.barriers.iter().map(needs).collect(), hints: walk.hints }
    }
    /// True if the kernel holds a fence for the compiler's scheduler.
    pub const fn hints(&self) -> bool {
        self.hints
    }
    /// The answer for the next barrier. Only work-group barriers are counted.
    pub fn take(&mut self, scope: &BarrierScope) -> bool {
        matches!(scope, BarrierScope::WorkGroup) && self.answers.pop_front().unwrap_or(true)
    }
}

impl Walk {
    fn block(&mut self, kernel: &Kernel, block: &Block) {
        for s in block {
            self.clock += 1;
            match s {
                Stmt::Load { mem, .. } => self.read(kernel, mem.base),
                Stmt::AsyncCopy { src, .. } => self.read(kernel, src.base),
                Stmt::Store { mem, .. } => self.write(kernel, mem.base),
                Stmt::Atomic { mem, .. } | Stmt::FetchAdd { mem, .. } => {
                    self.write(kernel, mem.base);
                    self.read(kernel, mem.base);
                }
                Stmt::SchedHint { size: 0, .. } => self.hints = true,
                Stmt::Barrier(BarrierScope::WorkGroup) => self.barriers.push(self.clock),
                Stmt::If { then, otherwise, .. } => {
                    self.block(kernel, then);
                    self.block(kernel, otherwise);
                }
                // Branches of different threads run at the same time: treated like a loop.
                Stmt::Roles(roles) => self.cyclic(kernel, roles.iter().map(|r| &r.body)),
                Stmt::For { body, .. } => self.cyclic(kernel, std::iter::once(body)),
                _ => {}
            }
        }
    }
    fn cyclic<'a>(&mut self, kernel: &Kernel, bodies: impl Iterator<Item = &'a Block>) {
        let start = self.clock;
        let before = self.first_write.clone();
        for body in bodies {
            self.block(kernel, body);
        }
        self.clock += 1;
        for (buffer, write) in &mut self.first_write {
            if !before.contains_key(buffer) {
                *write = start;
            }
        }
        for read in self.last_read.values_mut().filter(|r| **r > start) {
            *read = self.clock;
        }
    }
    fn buffer(kernel: &Kernel, base: Base) -> Option<ArgId> {
        match base {
            Base::Buffer(a) => Some(a),
            Base::Cursor(c) => Some(kernel.cursors[c.index()].buffer),
            Base::Shared(_) => None,
        }
    }
    fn read(&mut self, kernel: &Kernel, base: Base) {
        if let Some(buffer) = Self::buffer(kernel, base) {
            self.last_read.insert(buffer, self.clock);
        }
    }
    fn write(&mut self, kernel: &Kernel, base: Base) {
        if let Some(buffer) = Self::buffer(kernel, base) {
            self.first_write.entry(buffer).or_insert(self.clock);
        }
    }
}
