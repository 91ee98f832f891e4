//! Loads, stores and atomics: addresses of all lanes, bounds, checks, and the data.

use crate::EmuError;
use crate::code::{Index, Mem, Space};
use crate::context::{Context, Team};
use crate::lanes::{B32, LANES, Slot};
use crate::launch::{Bound, Launch};
use crate::quick::Quick;
use crate::shadow::{Broken, Toucher, Trouble};
use tilewright_ir::{AtomicOp, Scalar};

/// What an access does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
}

impl Kind {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Atomic => "atomic",
        }
    }
}

/// One array seen by an access of `bytes` per lane.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) space: Space,
    /// The buffer; none for shared memory.
    pub(crate) bound: Option<&'a Bound>,
    /// Byte of element 0.
    pub(crate) base: usize,
    /// Elements.
    pub(crate) len: u64,
    /// Bytes per element.
    pub(crate) size: usize,
    /// Elements per lane.
    pub(crate) lanes: usize,
}

impl<'a> Target<'a> {
    /// `None` if the argument is no buffer, which lowering rules out.
    pub(crate) fn new(launch: &'a Launch<'_>, space: Space, scalar: Scalar, lanes: usize) -> Option<Target<'a>> {
        let size = scalar.bytes() as usize;
        Some(match space {
            Space::Shared(s) => {
                let array = launch.code.shared.get(s)?;
                Target { space, bound: None, base: array.byte_offset as usize, len: array.len as u64, size, lanes }
            }
            Space::Global(a) => {
                let bound = launch.buffers.get(a)?.as_ref()?;
                Target { space, bound: Some(bound), base: bound.offset, len: bound.len as u64, size, lanes }
            }
            Space::Tx(_) => return None,
        })
    }
    fn bytes(&self) -> usize {
        self.size * self.lanes
    }
}

/// One lane's access.
#[derive(Clone, Copy)]
pub(crate) struct Touch<'a> {
    pub(crate) launch: &'a Launch<'a>,
    pub(crate) site: u32,
    pub(crate) thread: u32,
    pub(crate) kind: Kind,
}

impl Touch<'_> {
    /// Bounds and all checks of an access to element `index`; the byte it starts at.
    #[inline]
    pub(crate) fn check(&self, team: &mut Team, t: &Target<'_>, index: i64) -> Result<usize, EmuError> {
        let byte = self.place(team, t, index)?;
        let checks = &self.launch.options.checks;
        match t.bound {
            None => {
                if let Some(shadow) = &mut team.shadow {
                    let done = match self.kind {
                        Kind::Read => shadow.read(&team.clocks, byte, t.bytes(), self.thread),
                        Kind::Write => shadow.write(&team.clocks, byte, t.bytes(), self.thread),
                        Kind::Atomic => shadow.atomic(&team.clocks, byte, t.bytes(), self.thread),
                    };
                    done.map_err(|broken| self.trouble(team, t, broken))?;
                }
            }
            Some(bound) => {
                if checks.initialised && self.kind != Kind::Write {
                    let fresh = (0..t.lanes).map(|c| byte + c * t.size).find(|&b| !bound.cells.is_written(b, t.size));
                    if let Some(at) = fresh {
                        return Err(self.trouble(team, t, Broken { byte: at, trouble: Trouble::Uninitialised }));
                    }
                }
                if let Some(shadow) = &bound.shadow {
                    let who = Toucher { group: team.number, thread: self.thread, clocks: &team.clocks, order: &team.order };
                    let done = match self.kind {
                        Kind::Read => shadow.read(who, byte, t.bytes()),
                        Kind::Write => shadow.write(who, byte, t.bytes()),
                        Kind::Atomic => shadow.atomic(who, byte, t.bytes()),
                    };
                    done.map_err(|broken| self.trouble(team, t, broken))?;
                }
            }
        }
        Ok(byte)
    }

    /// The byte of element `index`, which must exist and be aligned.
    #[inline]
    pub(crate) fn place(&self, team: &Team, t: &Target<'_>, index: i64) -> Result<usize, EmuError> {
        let inside = index >= 0 && index as u64 + t.lanes as u64 <= t.len;
        if !inside {
            return Err(self.outside(team, t, index));
        }
        let byte = t.base + index as usize * t.size;
        let checks = &self.launch.options.checks;
        if checks.alignment && t.lanes > 1 && !byte.is_multiple_of(t.bytes()) {
            return Err(self.misaligned(team, t, byte));
        }
        Ok(byte)
    }

    #[cold]
    fn outside(&self, team: &Team, t: &Target<'_>, index: i64) -> EmuError {
        let at = team.location(self.launch, self.site, self.thread);
        EmuError::OutOfBounds { at, memory: self.launch.name(t.space), index, lanes: t.lanes as u32, len: t.len }
    }
    #[cold]
    fn misaligned(&self, team: &Team, t: &Target<'_>, byte: usize) -> EmuError {
        let at = team.location(self.launch, self.site, self.thread);
        EmuError::Misaligned { at, memory: self.launch.name(t.space), byte: byte as u64, size: t.bytes() as u32 }
    }
    #[cold]
    pub(crate) fn trouble(&self, team: &Team, t: &Target<'_>, broken: Broken) -> EmuError {
        let Broken { byte, trouble } = broken;
        let at = team.location(self.launch, self.site, self.thread);
        let memory = self.launch.name(t.space);
        let index = (byte as i64 - t.base as i64) / t.size as i64;
        match trouble {
            Trouble::Uninitialised => EmuError::Uninitialised { at, memory, index },
            Trouble::Unfenced { writer } => EmuError::Unfenced { at, memory, index, writer },
            Trouble::Unread => EmuError::Unread { at, memory, index },
            Trouble::Race { other, who } => EmuError::Race { at, memory, index, access: self.kind.word(), other, who },
            Trouble::InFlight { issuer } => {
                let access = match (self.kind, t.space) {
                    (Kind::Read, _) => "read",
                    (_, Space::Shared(_) | Space::Tx(_)) => "written",
                    (_, Space::Global(_)) => "overwritten",
                };
                EmuError::InFlight { at, memory, index, access, issuer }
            }
        }
    }
}

/// An element of shared memory.
#[inline]
pub(crate) fn get_shared(words: &[u32], byte: usize, size: usize) -> u64 {
    let low = words[byte / 4];
    match size {
        1 => (low >> (byte % 4 * 8)) as u8 as u64,
        2 => (low >> (byte % 4 * 8)) as u16 as u64,
        4 => low as u64,
        _ => low as u64 | (words[byte / 4 + 1] as u64) << 32,
    }
}

/// Writes an element of shared memory.
#[inline]
pub(crate) fn set_shared(words: &mut [u32], byte: usize, size: usize, value: u64) {
    match size {
        1 | 2 => {
            let (shift, mask) = (byte % 4 * 8, (1 << (8 * size)) - 1);
            words[byte / 4] = words[byte / 4] & !(mask << shift) | (value as u32 & mask) << shift;
        }
        4 => words[byte / 4] = value as u32,
        _ => {
            words[byte / 4] = value as u32;
            words[byte / 4 + 1] = (value >> 32) as u32;
        }
    }
}

/// Runs loads that differ in constant offset and destination only.
pub(crate) fn load(launch: &Launch<'_>, team: &mut Team, ctx: &mut Context, loads: &[Mem]) -> Result<(), EmuError> {
    let Some(m) = loads.first() else { return Ok(()) };
    let Some(t) = Target::new(launch, m.address.space, m.scalar, m.values.len()) else { return Ok(()) };
    let by_lane = match t.size {
        1 => load_block::<1>,
        2 => load_block::<2>,
        4 => load_block::<4>,
        _ => load_block::<8>,
    };
    let quick = quick_load(launch, team, ctx, loads, &t);
    let mut block = 0;
    while block < ctx.files.blocks {
        if let Some(q) = &quick {
            let shadow = team.shadow.as_mut().map(|s| (s, &team.clocks));
            block = launch.level.load(&mut ctx.files, &team.shared, shadow, q, block);
            if block == ctx.files.blocks {
                break;
            }
        }
        for m in loads {
            by_lane(launch, team, ctx, m, &t, block)?;
        }
        block += 1;
    }
    Ok(())
}

/// The loads as [`crate::quick`] does them, if it does them.
fn quick_load<'m>(launch: &Launch<'_>, team: &Team, ctx: &Context, loads: &'m [Mem], t: &Target<'_>) -> Option<Quick<'m>> {
    let first = loads.first()?;
    let Index::I32(index) = first.address.index else { return None };
    let all = !first.mask.is_some() && ctx.lanes.is_multiple_of(LANES);
    let simple = team.shadow.as_ref().is_none_or(|s| s.is_simple(&team.clocks));
    if t.bound.is_some() || t.size != 4 || !all || !simple {
        return None;
    }
    // Offsets and limits so small that no sum of an index and an offset wraps into the valid range.
    let small = |o: i64| i32::try_from(o).ok().filter(|o| o.unsigned_abs() <= 1 << 29);
    let lowest = small(loads.iter().map(|m| m.address.offset).min()?)?;
    let highest = small(loads.iter().map(|m| m.address.offset).max()?)?;
    let limit = t.len.checked_sub(t.lanes as u64).filter(|&l| l <= 1 << 29)? as u32;
    let aligned = launch.options.checks.alignment;
    Some(Quick { index, lowest, highest, limit, base: t.base / 4, lanes: t.lanes, loads, first: ctx.first, aligned })
}

/// A block of a load, lane by lane.
fn load_block<const SIZE: usize>(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &mut Context,
    m: &Mem,
    t: &Target<'_>,
    block: usize,
) -> Result<(), EmuError> {
    let site = m.site;
    let bits = ctx.bits(m.mask, block);
    let at = ctx.addresses(&m.address, block);
    let first = ctx.first + (block * LANES) as u32;
    let mut out = [[0u64; LANES]; 16];
    for (l, &index) in at.iter().enumerate() {
        if bits >> l & 1 == 0 {
            continue;
        }
        let touch = Touch { launch, site, thread: first + l as u32, kind: Kind::Read };
        let byte = touch.check(team, t, index)?;
        match t.bound {
            None => {
                for (c, out) in out.iter_mut().enumerate().take(t.lanes) {
                    out[l] = get_shared(&team.shared, byte + c * SIZE, SIZE);
                }
            }
            Some(b) => {
                for (c, out) in out.iter_mut().enumerate().take(t.lanes) {
                    out[l] = b.cells.get(byte + c * SIZE, SIZE);
                }
            }
        }
    }
    for (&slot, out) in m.values.iter().zip(&out) {
        if SIZE == 8 {
            ctx.files.r64.get_mut(slot)[block].0 = *out;
        } else {
            ctx.files.r32.get_mut(slot)[block] = B32(out.map(|x| x as u32));
        }
    }
    Ok(())
}

/// Runs a store.
pub(crate) fn store(launch: &Launch<'_>, team: &mut Team, ctx: &mut Context, m: &Mem, site: u32) -> Result<(), EmuError> {
    let Some(t) = Target::new(launch, m.address.space, m.scalar, m.values.len()) else { return Ok(()) };
    for block in 0..ctx.files.blocks {
        let bits = ctx.bits(m.mask, block);
        if bits == 0 {
            continue;
        }
        let at = ctx.addresses(&m.address, block);
        let first = ctx.first + (block * LANES) as u32;
        let mut starts = [0usize; LANES];
        for l in (0..LANES).filter(|l| bits >> l & 1 != 0) {
            let touch = Touch { launch, site, thread: first + l as u32, kind: Kind::Write };
            starts[l] = touch.check(team, &t, at[l])?;
        }
        for (c, &slot) in m.values.iter().enumerate() {
            let value = lane_values(ctx, slot, t.size == 8, block);
            for l in (0..LANES).filter(|l| bits >> l & 1 != 0) {
                let byte = starts[l] + c * t.size;
                match t.bound {
                    None => set_shared(&mut team.shared, byte, t.size, value[l]),
                    Some(b) => b.cells.set(byte, t.size, value[l]),
                }
            }
        }
    }
    Ok(())
}

/// Runs an atomic. The old value goes to a slot, if there is one.
pub(crate) fn atomic(
    launch: &Launch<'_>,
    team: &mut Team,
    ctx: &mut Context,
    op: AtomicOp,
    m: &Mem,
    to: Slot,
    site: u32,
) -> Result<(), EmuError> {
    let Some(t) = Target::new(launch, m.address.space, m.scalar, 1) else { return Ok(()) };
    let Some(&slot) = m.values.first() else { return Ok(()) };
    for block in 0..ctx.files.blocks {
        let bits = ctx.bits(m.mask, block);
        let at = ctx.addresses(&m.address, block);
        let value = lane_values(ctx, slot, t.size == 8, block);
        for l in (0..LANES).filter(|l| bits >> l & 1 != 0) {
            let thread = ctx.first + (block * LANES + l) as u32;
            let byte = Touch { launch, site, thread, kind: Kind::Atomic }.check(team, &t, at[l])?;
            let before = match t.bound {
                None => {
                    let old = get_shared(&team.shared, byte, t.size);
                    set_shared(&mut team.shared, byte, t.size, combine(op, m.scalar, old, value[l]));
                    old
                }
                Some(b) => {
                    let update = || b.cells.update(byte, t.size, |old| combine(op, m.scalar, old, value[l]));
                    match &b.shadow {
                        Some(shadow) => shadow.exchange(byte, &mut team.order, thread, to.is_some(), update),
                        None => update(),
                    }
                }
            };
            if to.is_some() {
                ctx.files.r32.get_mut(to)[block].0[l] = before as u32;
            }
        }
    }
    Ok(())
}

/// The lanes of a block of a slot, as 64 bits.
pub(crate) fn lane_values(ctx: &Context, slot: Slot, wide: bool, block: usize) -> [u64; LANES] {
    if wide { ctx.files.r64.block(slot, block).0 } else { ctx.files.r32.block(slot, block).0.map(|x| x as u64) }
}

/// How what stays in memory compares with the other.
const fn kept(op: AtomicOp) -> std::cmp::Ordering {
    if matches!(op, AtomicOp::Min) { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater }
}

fn combine(op: AtomicOp, s: Scalar, old: u64, value: u64) -> u64 {
    let (f, g) = (|x: u64| f32::from_bits(x as u32), f64::from_bits);
    match (op, s) {
        (AtomicOp::Add, Scalar::F32) => (f(old) + f(value)).to_bits() as u64,
        (AtomicOp::Add, Scalar::F64) => (g(old) + g(value)).to_bits(),
        (AtomicOp::Add, _) => old.wrapping_add(value),
        (op, Scalar::F32) => {
            let (old, value) = (f(old), f(value));
            let first = old.is_nan() || !value.is_nan() && (old.total_cmp(&value) == kept(op));
            (if first { old } else { value }).to_bits() as u64
        }
        (op, Scalar::F64) => {
            let (old, value) = (g(old), g(value));
            let first = old.is_nan() || !value.is_nan() && (old.total_cmp(&value) == kept(op));
            (if first { old } else { value }).to_bits()
        }
        (op, Scalar::I32) if (old as i32).cmp(&(value as i32)) == kept(op) => old,
        (op, Scalar::I64) if (old as i64).cmp(&(value as i64)) == kept(op) => old,
        (_, Scalar::I32 | Scalar::I64) => value,
        (AtomicOp::Min, _) => old.min(value),
        (AtomicOp::Max, _) => old.max(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_elements_leave_their_neighbours_alone() {
        let mut words = vec![0u32; 4];
        set_shared(&mut words, 2, 2, 0xBEEF);
        set_shared(&mut words, 8, 8, 0x1122_3344_5566_7788);
        assert_eq!(words, [0xBEEF_0000, 0, 0x5566_7788, 0x1122_3344]);
        assert_eq!((get_shared(&words, 2, 2), get_shared(&words, 0, 2)), (0xBEEF, 0));
        assert_eq!(get_shared(&words, 8, 8), 0x1122_3344_5566_7788);
    }

    #[test]
    fn atomics_know_signs() {
        let minus = -1i32 as u32 as u64;
        assert_eq!(combine(AtomicOp::Max, Scalar::I32, minus, 3), 3);
        assert_eq!(combine(AtomicOp::Max, Scalar::U32, minus, 3), minus);
        assert_eq!(combine(AtomicOp::Min, Scalar::I32, minus, 3), minus);
        let (nan, zero, below) = (f32::NAN.to_bits() as u64, 0f32.to_bits() as u64, (-0f32).to_bits() as u64);
        for op in [AtomicOp::Max, AtomicOp::Min] {
            assert_eq!((combine(op, Scalar::F32, nan, zero), combine(op, Scalar::F32, zero, nan)), (nan, nan));
            let first = combine(op, Scalar::F32, zero, below);
            assert_eq!((first, combine(op, Scalar::F32, below, zero)), (first, if op == AtomicOp::Max { zero } else { below }));
        }
        assert_eq!(combine(AtomicOp::Add, Scalar::F64, 1f64.to_bits(), 2f64.to_bits()), 3f64.to_bits());
    }
}
