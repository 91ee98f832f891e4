//! Hands out register slots and remembers evaluated expressions, by scope.
//!
//! A scope is a stretch of code whose slots are free again at its end. In a *straight* scope everything always runs once its
//! surrounding scope runs (a statement, one turn of an unrolled loop). Branches and run-time loops are not straight, and nothing
//! evaluated in them may be remembered outside.

use super::value::Value;
use crate::code::Sizes;
use crate::lanes::Slot;
use std::collections::HashMap;
use tilewright_ir::ExprId;

/// Kind of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) wide: bool,
    pub(crate) uniform: bool,
}

impl Class {
    const fn index(self) -> usize {
        self.wide as usize * 2 + self.uniform as usize
    }
}

#[derive(Default)]
struct Scope {
    straight: bool,
    slots: Vec<(Class, Slot)>,
    known: Vec<ExprId>,
}

/// Slots and scopes.
#[derive(Default)]
pub(crate) struct Slots {
    free: [Vec<Slot>; 4],
    next: [u32; 4],
    scopes: Vec<Scope>,
    known: HashMap<ExprId, Value>,
}

impl Slots {
    pub(crate) fn open(&mut self, straight: bool) {
        self.scopes.push(Scope { straight, ..Scope::default() });
    }
    pub(crate) fn close(&mut self) {
        if let Some(scope) = self.scopes.pop() {
            for e in scope.known {
                self.known.remove(&e);
            }
            for (class, slot) in scope.slots {
                self.free[class.index()].push(slot);
            }
        }
    }
    /// The innermost scope.
    pub(crate) fn depth(&self) -> usize {
        self.scopes.len().saturating_sub(1)
    }
    /// The outermost scope that straight code reaches from here, but none outside `least`.
    pub(crate) fn reach(&self, least: usize) -> usize {
        (least..self.scopes.len()).rev().find(|&d| d == least || !self.scopes[d].straight).unwrap_or(self.depth())
    }
    /// A slot that lives as long as the scope at `depth`.
    pub(crate) fn alloc(&mut self, class: Class, depth: usize) -> Slot {
        let slot = self.free[class.index()].pop().unwrap_or_else(|| self.fresh(class));
        if let Some(scope) = self.scopes.get_mut(depth) {
            scope.slots.push((class, slot));
        }
        slot
    }
    /// A slot that is nobody else's, ever.
    pub(crate) fn fresh(&mut self, class: Class) -> Slot {
        let n = self.next[class.index()];
        self.next[class.index()] += 1;
        if class.uniform { Slot::uniform(n) } else { Slot::varying(n) }
    }
    /// True if a slot goes when the innermost scope closes.
    pub(crate) fn is_temporary(&self, class: Class, slot: Slot) -> bool {
        self.scopes.last().is_some_and(|s| s.slots.contains(&(class, slot)))
    }
    pub(crate) fn known(&self, e: ExprId) -> Option<&Value> {
        self.known.get(&e)
    }
    /// Forgets what the innermost scope knows of values that may change: to be called before code inside a statement.
    pub(crate) fn forget_changing(&mut self) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.known.retain(|e| {
                let lasts = self.known.get(e).is_some_and(|v| v.since.is_some());
                if !lasts {
                    self.known.remove(e);
                }
                lasts
            });
        }
    }
    /// Remembers a value until the scope at `depth` closes.
    pub(crate) fn remember(&mut self, e: ExprId, value: Value, depth: usize) {
        if let Some(scope) = self.scopes.get_mut(depth) {
            scope.known.push(e);
            self.known.insert(e, value);
        }
    }
    /// Slots handed out of each kind.
    pub(crate) fn sizes(&self) -> Sizes {
        let [varying32, uniform32, varying64, uniform64] = self.next.map(|n| n as usize);
        Sizes { varying32, varying64, uniform32, uniform64 }
    }
}
