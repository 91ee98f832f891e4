//! What a kernel reaches of global memory before it has waited for the launches that may still run.

use crate::EmuError;
use crate::access::Kind;
use crate::code::{Bulk, Inst, Mem, Space};
use crate::context::{Context, Team};
use crate::lanes::{LANES, Slot};
use crate::launch::{Launch, Use};
use crate::matrix::bulk;

/// Looks at what the lanes that have not waited are about to reach.
///
/// # Errors
/// [`EmuError::Early`] for what a launch that may still run writes, or uses where it is to be written.
pub(super) fn reaches(launch: &Launch<'_>, team: &Team, ctx: &Context, inst: &Inst, site: u32) -> Result<(), EmuError> {
    let look = Look { launch, team, ctx, site };
    let code = launch.code;
    match inst {
        Inst::Load { start, end } => {
            code.mems[*start as usize..*end as usize].iter().try_for_each(|m| look.elements(m, Kind::Read))
        }
        Inst::Store(m) | Inst::Atomic(_, m, _) => {
            let kind = if matches!(inst, Inst::Store(_)) { Kind::Write } else { Kind::Atomic };
            look.elements(&code.mems[*m as usize], kind)
        }
        Inst::AsyncCopy(c) => {
            let c = &code.copies[*c as usize];
            // Where the guard does not hold, zeros are copied. It is asked of the lanes that take part.
            let guarded = |lane: usize| ctx.bits(c.guard, lane / LANES) >> (lane % LANES) & 1 != 0;
            look.lanes(c.mask).filter(|&l| guarded(l)).try_for_each(|lane| {
                let index = ctx.addresses(&c.src, lane / LANES)[lane % LANES];
                look.element(c.src.space, usize::from(c.lanes), lane, index, Kind::Read)
            })
        }
        Inst::Bulk(b, mask) => match &code.bulks[*b as usize] {
            Bulk::Load { map, at, .. } => look.boxes(*map, at, *mask, Kind::Read),
            Bulk::Store { map, at, .. } => look.boxes(*map, at, *mask, Kind::Write),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

struct Look<'a> {
    launch: &'a Launch<'a>,
    team: &'a Team,
    ctx: &'a Context,
    site: u32,
}

impl Look<'_> {
    /// Lanes of a mask that have not waited.
    fn lanes(&self, mask: Slot) -> impl Iterator<Item = usize> {
        self.ctx.active(mask).filter(|&l| self.ctx.ahead[l])
    }
    /// The elements of an access.
    fn elements(&self, m: &Mem, kind: Kind) -> Result<(), EmuError> {
        self.lanes(m.mask).try_for_each(|lane| {
            let index = self.ctx.addresses(&m.address, lane / LANES)[lane % LANES];
            self.element(m.address.space, m.values.len(), lane, index, kind)
        })
    }
    /// So many elements of an array, from an index on.
    fn element(&self, space: Space, count: usize, lane: usize, index: i64, kind: Kind) -> Result<(), EmuError> {
        let Space::Global(arg) = space else { return Ok(()) };
        let Some(bound) = self.launch.buffers.get(arg).and_then(|b| b.as_ref()) else { return Ok(()) };
        // The access itself reports elements out of bounds.
        let Ok(first) = usize::try_from(index) else { return Ok(()) };
        match first.checked_add(count) {
            Some(end) if end <= bound.len => self.bytes(arg, lane, first * bound.size, count * bound.size, kind),
            _ => Ok(()),
        }
    }
    /// The boxes of a tensor map that lanes copy.
    fn boxes(&self, map: usize, at: &[Slot], mask: Slot, kind: Kind) -> Result<(), EmuError> {
        self.lanes(mask).try_for_each(|lane| {
            let at: Vec<i64> = at.iter().map(|&s| i64::from(self.ctx.word(s, lane) as i32)).collect();
            bulk::spans(self.launch, map, &at).try_for_each(|(byte, bytes)| self.bytes(map, lane, byte, bytes, kind))
        })
    }
    /// Bytes of an argument, from its first element on.
    fn bytes(&self, arg: usize, lane: usize, byte: usize, bytes: usize, kind: Kind) -> Result<(), EmuError> {
        let Some(bound) = self.launch.buffers.get(arg).and_then(|b| b.as_ref()) else { return Ok(()) };
        let used = |past: &&Use| match (&past.shadow, kind) {
            // It only reads this memory.
            (None, kind) => kind != Kind::Read,
            (Some(shadow), kind) => shadow.touched(bound.offset + byte, bytes, kind != Kind::Read),
        };
        match bound.running.iter().find(used) {
            None => Ok(()),
            Some(past) => Err(EmuError::Early {
                at: self.team.location(self.launch, self.site, self.ctx.first + lane as u32),
                memory: self.launch.name(Space::Global(arg)),
                index: (byte / bound.size) as i64,
                access: kind.word(),
                kernel: past.kernel.clone(),
            }),
        }
    }
}
