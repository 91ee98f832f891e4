//! Results of integer arithmetic that left their type, by slot and lane: see `exec/uses`, which says when they are wrong.

use crate::lanes::Slot;
use std::collections::HashMap;

/// Where a lane's value became poison: statement number, and whether it was 64 bits wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) site: u32,
    pub(crate) wide: bool,
}

/// Marks of slots, by width and slot: one for a uniform slot, else one per lane. Slots without marks are in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poison {
    marks: HashMap<(bool, Slot), Vec<Option<Mark>>>,
}

impl Poison {
    /// Every value is in order.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }
    pub(crate) fn clear(&mut self) {
        self.marks.clear();
    }
    /// The mark of a lane.
    pub(crate) fn at(&self, wide: bool, slot: Slot, lane: usize) -> Option<Mark> {
        let marks = self.marks.get(&(wide, slot))?;
        marks.get(if slot.is_uniform() { 0 } else { lane }).copied().flatten()
    }
    /// True if some lane of a slot has one.
    pub(crate) fn has(&self, wide: bool, slot: Slot) -> bool {
        self.marks.contains_key(&(wide, slot))
    }
    /// Replaces the marks of a slot.
    pub(crate) fn put(&mut self, wide: bool, slot: Slot, marks: Vec<Option<Mark>>) {
        if marks.iter().any(Option::is_some) {
            self.marks.insert((wide, slot), marks);
        } else {
            self.marks.remove(&(wide, slot));
        }
    }
    /// All lanes of a slot hold values in order.
    pub(crate) fn remove(&mut self, wide: bool, slot: Slot) {
        self.marks.remove(&(wide, slot));
    }
}
