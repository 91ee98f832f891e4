//! What a launch binds: arguments checked against the kernel, buffers with their shadows.

use crate::code::{Code, Space};
use crate::lanes::Slot;
use crate::memory::Cells;
use crate::shadow::GlobalShadow;
use crate::simd::Level;
use crate::{ArgValue, Buffer, EmuError, Options};
use std::sync::Arc;
use tilewright_ir::{Access, ArgKind, Scalar, TensorMap};

/// A buffer argument.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) cells: Arc<Cells>,
    /// Byte of the buffer where element 0 stands.
    pub(crate) offset: usize,
    /// Elements from there to the buffer's end.
    pub(crate) len: usize,
    /// Bytes per element.
    pub(crate) size: usize,
    /// Watches races, if the launch may write this buffer and races are watched.
    pub(crate) shadow: Option<Arc<GlobalShadow>>,
    /// What launches that may still run do with this buffer.
    pub(crate) running: Vec<Use>,
}

impl Bound {
    fn new(buffer: &Buffer, offset: usize, size: usize, running: &[Past]) -> Bound {
        let len = (buffer.len() - offset) / size;
        let cells = buffer.cells().clone();
        let of_it = |past: &Past| past.buffers.iter().find(|(other, _)| Arc::ptr_eq(other, &cells)).map(|(_, used)| used.clone());
        let running = running.iter().filter_map(of_it).collect();
        Bound { cells, offset, len, size, shadow: None, running }
    }
}

/// What a launch that may still run does with a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) kernel: String,
    /// What it did there; none if it only reads it.
    pub(crate) shadow: Option<Arc<GlobalShadow>>,
}

/// The buffers of a launch that may still run when the next launch begins.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    buffers: Vec<(Arc<Cells>, Use)>,
}

/// Everything work-groups share while a kernel runs.
pub(crate) struct Launch<'a> {
    pub(crate) code: &'a Code,
    pub(crate) options: &'a Options,
    pub(crate) level: Level,
    pub(crate) grid: [u32; 3],
    /// One per argument; none for scalars.
    pub(crate) buffers: Vec<Option<Bound>>,
    /// One per argument: tensor maps with the extents of this launch.
    pub(crate) maps: Vec<Option<TensorMap>>,
    /// Scalar arguments: slot, 64-bit slot or not, bits.
    pub(crate) scalars: Vec<(Slot, bool, u64)>,
    /// It begins while others may still run, and is held against them until it has waited.
    pub(crate) early: bool,
}

impl<'a> Launch<'a> {
    pub(crate) fn new(
        code: &'a Code,
        options: &'a Options,
        grid: [u32; 3],
        args: &[ArgValue],
        running: &[Past],
    ) -> Result<Self, EmuError> {
        let refuse = |what: String| Err(EmuError::Launch { kernel: code.name.clone(), what });
        if grid.contains(&0) {
            return refuse(format!("the grid {grid:?} has no work-group"));
        }
        if !grid[0].is_multiple_of(code.cluster) {
            return refuse(format!("a grid of {} is no whole number of clusters of {}", grid[0], code.cluster));
        }
        if args.len() != code.args.len() {
            return refuse(format!("{} arguments given, {} needed", args.len(), code.args.len()));
        }
        let early = options.checks.global_races && !running.is_empty();
        let (level, buffers) = (Level::detect(), Vec::new());
        let mut launch = Launch { code, options, level, grid, buffers, maps: Vec::new(), scalars: Vec::new(), early };
        for ((value, arg), &slot) in args.iter().zip(&code.args).zip(&code.arg_slots) {
            match (value, &arg.kind) {
                (ArgValue::Buffer { buffer, offset }, ArgKind::Buffer { scalar, .. }) => {
                    let size = scalar.bytes() as usize;
                    if offset % size != 0 || *offset > buffer.len() {
                        let (name, len) = (&arg.name, buffer.len());
                        return refuse(format!(
                            "`{name}` at byte {offset} of {len}: it must be a multiple of {size} within the buffer"
                        ));
                    }
                    launch.buffers.push(Some(Bound::new(buffer, *offset, size, running)));
                }
                (value, ArgKind::Scalar(scalar)) => {
                    let Some((wide, bits)) = scalar_bits(value, *scalar) else {
                        return refuse(format!("`{}` is {scalar}, given {value:?}", arg.name));
                    };
                    launch.buffers.push(None);
                    launch.scalars.push((slot, wide, bits));
                }
                (ArgValue::Buffer { buffer, offset } | ArgValue::Map { buffer, offset, .. }, ArgKind::TensorMap(map)) => {
                    let mut map = map.clone();
                    if let ArgValue::Map { extent, .. } = value {
                        if extent.len() != map.extent.len() || extent.iter().zip(&map.extent).any(|(now, most)| now > most) {
                            let most = &map.extent;
                            return refuse(format!("`{}`: extents {extent:?} are not within {most:?}", arg.name));
                        }
                        map.extent.clone_from(extent);
                    }
                    let size = map.scalar.bytes() as usize;
                    if let Err(what) = tensor_fits(&map, *offset, buffer.len()) {
                        return refuse(format!("`{}` at byte {offset} of {}: {what}", arg.name, buffer.len()));
                    }
                    launch.buffers.push(Some(Bound::new(buffer, *offset, size, running)));
                    launch.maps.resize(launch.buffers.len(), None);
                    if let Some(place) = launch.maps.last_mut() {
                        *place = Some(map);
                    }
                }
                (_, ArgKind::TensorMap(_)) => {
                    return refuse(format!("`{}` is a tensor map over a buffer, given {value:?}", arg.name));
                }
                (_, ArgKind::Buffer { .. }) => return refuse(format!("`{}` is a buffer, given {value:?}", arg.name)),
            }
        }
        if options.checks.global_races {
            launch.watch(args);
        }
        Ok(launch)
    }

    /// Gives every buffer that the kernel may write one shadow, whatever arguments it is bound to.
    fn watch(&mut self, args: &[ArgValue]) {
        let mut shadows: Vec<(&Buffer, Arc<GlobalShadow>)> = Vec::new();
        let buffer = |i: usize| match &args[i] {
            ArgValue::Buffer { buffer, .. } | ArgValue::Map { buffer, .. } => Some(buffer),
            _ => None,
        };
        let element = |i: usize| match &self.code.args[i].kind {
            ArgKind::Buffer { scalar, access } => Some((scalar.bytes(), *access)),
            ArgKind::TensorMap(map) => {
                let access = if self.code.uses.stored_maps.contains(&i) { Access::Write } else { Access::Read };
                Some((map.scalar.bytes(), access))
            }
            ArgKind::Scalar(_) => None,
        };
        for i in 0..args.len() {
            let (Some(b), Some((_, access))) = (buffer(i), element(i)) else { continue };
            if access == Access::Read || shadows.iter().any(|(s, _)| s.same(b)) {
                continue;
            }
            let same = (0..args.len()).filter(|&j| buffer(j).is_some_and(|o| o.same(b)));
            let granule = same.filter_map(|j| element(j).map(|e| e.0)).min().unwrap_or(1);
            let atomics = self.code.atomic_args.iter().any(|&j| buffer(j).is_some_and(|o| o.same(b)));
            let shadow = GlobalShadow::new(b.len(), granule.trailing_zeros(), atomics, b.cells().pool());
            shadows.push((b, Arc::new(shadow)));
        }
        for (i, bound) in self.buffers.iter_mut().enumerate() {
            if let (Some(bound), Some(b)) = (bound, buffer(i)) {
                bound.shadow = shadows.iter().find(|(s, _)| s.same(b)).map(|(_, s)| s.clone());
            }
        }
    }

    /// An error if this machine had no room for something that was written.
    pub(crate) fn intact(&self) -> Result<(), EmuError> {
        self.buffers.iter().flatten().try_for_each(|bound| {
            bound.cells.intact()?;
            bound.shadow.as_ref().map_or(Ok(()), |shadow| shadow.intact())
        })
    }
    /// The part of the launch that later launches need, if they begin while it may still run.
    pub(crate) fn past(&self) -> Past {
        let used = |b: &Bound| (b.cells.clone(), Use { kernel: self.code.name.clone(), shadow: b.shadow.clone() });
        Past { buffers: self.buffers.iter().flatten().map(used).collect() }
    }
    pub(crate) fn groups(&self) -> u64 {
        self.grid.iter().map(|&g| g as u64).product()
    }
    /// Name of an array, for messages.
    pub(crate) fn name(&self, space: Space) -> String {
        match space {
            Space::Shared(s) => self.code.shared.get(s).map(|s| s.name.clone()),
            Space::Global(a) => self.code.args.get(a).map(|a| a.name.clone()),
            Space::Tx(t) => self.code.tx_barriers.get(t).map(|t| t.name.clone()),
        }
        .unwrap_or_default()
    }
}

/// A tensor must lie within its buffer, at a multiple of 16 bytes as bulk copies demand.
fn tensor_fits(map: &TensorMap, offset: usize, len: usize) -> Result<(), String> {
    if !offset.is_multiple_of(16) {
        return Err("a tensor map starts at a multiple of 16 bytes".into());
    }
    if map.extent.contains(&0) {
        return Err(format!("no extent of a tensor map may be 0: {:?}", map.extent));
    }
    let steps = map.extent.iter().skip(1).zip(&map.stride_bytes).map(|(&n, &s)| u128::from(n - 1) * u128::from(s));
    let first = map.extent.first().map_or(0, |&n| u128::from(n) * u128::from(map.scalar.bytes()));
    let end = offset as u128 + first + steps.sum::<u128>();
    if end > len as u128 {
        return Err(format!("the tensor ends at byte {end}, beyond the buffer"));
    }
    Ok(())
}

fn scalar_bits(value: &ArgValue, scalar: Scalar) -> Option<(bool, u64)> {
    Some(match (value, scalar) {
        (ArgValue::I32(v), Scalar::I32) => (false, *v as u32 as u64),
        (ArgValue::U32(v), Scalar::U32) => (false, *v as u64),
        (ArgValue::I64(v), Scalar::I64) => (true, *v as u64),
        (ArgValue::F32(v), Scalar::F32) => (false, v.to_bits() as u64),
        (ArgValue::F64(v), Scalar::F64) => (true, v.to_bits()),
        _ => return None,
    })
}
