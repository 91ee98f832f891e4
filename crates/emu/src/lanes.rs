//! The register file of a context: values of all its lanes as arrays, 16 lanes to a block.
//!
//! A *varying* slot holds one value per lane (as many blocks as the context has). A *uniform* slot holds one value for all lanes.
//! The value is repeated over a single block, so that arithmetic on uniform and varying operands is the same code. Two files hold
//! 32-bit values (`Bool` as 0 or 1, `F16` and `BF16` as their 16 bits) and 64-bit values.

use std::cell::Cell;

/// Lanes in a block.
pub(crate) const LANES: usize = 16;

/// Sixteen 32-bit values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct B32(pub [u32; LANES]);

/// Sixteen 64-bit values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub(crate) struct B64(pub [u64; LANES]);

/// A slot of a register file. Which file follows from the operation that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot(u32);

impl Slot {
    const UNIFORM: u32 = 1 << 31;
    /// No operand.
    pub(crate) const NONE: Slot = Slot(u32::MAX);

    pub(crate) const fn varying(n: u32) -> Slot {
        Slot(n)
    }
    pub(crate) const fn uniform(n: u32) -> Slot {
        Slot(n | Slot::UNIFORM)
    }
    pub(crate) const fn is_uniform(self) -> bool {
        self.0 & Slot::UNIFORM != 0
    }
    pub(crate) const fn is_some(self) -> bool {
        self.0 != u32::MAX
    }
    /// Number within its kind.
    pub(crate) const fn index(self) -> usize {
        (self.0 & !Slot::UNIFORM) as usize
    }
}

/// One file: uniform slots first, one block each, then varying slots.
#[derive(Clone, Debug)]
pub(crate) struct File<B> {
    data: Vec<B>,
    uniforms: usize,
    blocks: usize,
}

impl<B: Copy> File<B> {
    pub(crate) fn new(uniforms: usize, varyings: usize, blocks: usize, fill: B) -> Self {
        File { data: vec![fill; uniforms + varyings * blocks], uniforms, blocks }
    }
    #[inline(always)]
    fn start(&self, s: Slot) -> usize {
        if s.is_uniform() { s.index() } else { self.uniforms + s.index() * self.blocks }
    }
    /// The blocks of a slot, to write: one if uniform, else all.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, s: Slot) -> &mut [B] {
        let at = self.start(s);
        &mut self.data[at..at + if s.is_uniform() { 1 } else { self.blocks }]
    }
    /// One block of a slot; a uniform slot's only block stands for all.
    #[inline(always)]
    pub(crate) fn block(&self, s: Slot, block: usize) -> &B {
        &self.data[if s.is_uniform() { s.index() } else { self.start(s) + block }]
    }
    /// Shared view for operations whose result may be one of their operands.
    #[inline(always)]
    pub(crate) fn view(&mut self) -> View<'_, B> {
        View { cells: Cell::from_mut(&mut self.data[..]).as_slice_of_cells(), uniforms: self.uniforms, blocks: self.blocks }
    }
    pub(crate) fn fill_varying(&mut self, with: B) {
        self.data[self.uniforms..].fill(with);
    }
}

/// A file seen as cells.
#[derive(Clone, Copy)]
pub(crate) struct View<'a, B> {
    cells: &'a [Cell<B>],
    uniforms: usize,
    blocks: usize,
}

impl<'a, B> View<'a, B> {
    /// The blocks of a slot: one if uniform, else all.
    #[inline(always)]
    pub(crate) fn get(&self, s: Slot) -> &'a [Cell<B>] {
        if s.is_uniform() {
            let at = s.index();
            &self.cells[at..at + 1]
        } else {
            let at = self.uniforms + s.index() * self.blocks;
            &self.cells[at..at + self.blocks]
        }
    }
}

/// Both files of a context.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) r32: File<B32>,
    pub(crate) r64: File<B64>,
    /// Blocks of a varying slot.
    pub(crate) blocks: usize,
}
