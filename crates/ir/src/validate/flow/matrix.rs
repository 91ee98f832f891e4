//! Rules of matrix instructions, transaction barriers and bulk copies: fields in range, registers that exist.

use super::*;

impl Scopes<'_> {
    fn slice(&mut self, what: &str, s: &RegSlice, count: u32, scalars: &[Scalar]) -> Result<(), String> {
        let Some(regs) = self.kernel.regs.get(s.regs.index()) else {
            return Err(format!("{what}: there is no register array {}", s.regs.0));
        };
        if regs.ty.lanes != 1 || !scalars.contains(&regs.ty.scalar) {
            return Err(format!("{what}: registers `{}` hold {}, not one of {scalars:?}", regs.name, regs.ty));
        }
        index(self.value(s.first)?)?;
        if !self.is_constant(s.first) {
            return Err(format!("{what}: registers cannot be chosen at run time"));
        }
        match self.kernel.as_int(s.first) {
            Some(first) if first < 0 || first + i64::from(count) > i64::from(regs.len) => {
                Err(format!("{what}: registers {first} .. {} of the {} in `{}`", first + i64::from(count), regs.len, regs.name))
            }
            _ => Ok(()),
        }
    }

    fn tile(&mut self, what: &str, t: &SharedTile, input: MatrixType) -> Result<(), String> {
        let Some(array) = self.kernel.shared.get(t.array.index()) else {
            return Err(format!("{what}: there is no shared array {}", t.array.0));
        };
        if self.value(t.byte)? != Scalar::I32.ty() {
            return Err(format!("{what}: the byte within shared memory is an i32"));
        }
        let pattern = t.swizzle.row_bytes() * 8;
        if array.byte_offset % pattern != 0 || !t.leading_bytes.is_multiple_of(16) || !t.stride_bytes.is_multiple_of(16) {
            return Err(format!(
                "{what}: `{}` at byte {} with strides {} and {}: the array starts at a multiple of {pattern}, strides are multiples of 16",
                array.name, array.byte_offset, t.leading_bytes, t.stride_bytes
            ));
        }
        if !t.k_contiguous && input.bytes() != 2 {
            return Err(format!("{what}: only 16-bit operands may be contiguous along m or n"));
        }
        Ok(())
    }

    fn accumulators(&self, acc: RegId) -> Result<(), String> {
        match self.kernel.regs.get(acc.index()) {
            Some(r) if [Scalar::F32.ty(), Scalar::I32.ty()].contains(&r.ty) => Ok(()),
            _ => Err(format!("register array {} holds no accumulators", acc.0)),
        }
    }

    pub(super) fn matrix(&mut self, op: &MatrixOp) -> Result<(), String> {
        match op {
            MatrixOp::Mma { input: MatrixType::F32, .. } | MatrixOp::Warpgroup { input: MatrixType::F32, .. } => {
                Err("NVIDIA's units multiply TF32, not F32".into())
            }
            MatrixOp::Mma { a, b, acc, .. } => {
                let Some(row) = Mma::of(op) else { return Err("there is no such matrix instruction".into()) };
                self.slice("a", a, row.a.registers, row.a.held)?;
                self.slice("b", b, row.b.registers, row.b.held)?;
                self.slice("acc", acc, row.c.registers, row.c.held)
            }
            MatrixOp::LoadMatrix { to, count, from, .. } => {
                if !matches!(count, 1 | 2 | 4) {
                    return Err(format!("a load of {count} matrices at once is illegal: use 1, 2 or 4"));
                }
                self.slice("to", to, (*count).into(), &[Scalar::U32, Scalar::F32])?;
                self.shared_mem(from)
            }
            MatrixOp::Warpgroup { input, n, a, b, acc, accumulate } => {
                let Some(row) = Mma::of(op) else { return Err("there is no such matrix instruction".into()) };
                if !row.has_columns(*n) {
                    return Err(format!(
                        "a warpgroup instruction has 8 to 256 columns in steps of 8 (integers: 32 to 256 in steps of 16), not {n}"
                    ));
                }
                match a {
                    WarpgroupA::Shared(t) => self.tile("a", t, *input)?,
                    WarpgroupA::Regs(s) => self.slice("a", s, row.a.registers, row.a.held)?,
                }
                self.tile("b", b, *input)?;
                self.slice("acc", acc, n / 2, row.c.held)?;
                condition(self.value(*accumulate)?)
            }
            MatrixOp::WarpgroupFence { acc, left } => {
                left.iter().try_for_each(|s| self.slice("left", s, 4, &[Scalar::U32, Scalar::F32]))?;
                self.accumulators(*acc)
            }
            MatrixOp::WarpgroupWait { acc, .. } => self.accumulators(*acc),
            MatrixOp::WarpgroupCommit => Ok(()),
            MatrixOp::Mfma { input, acc, shape, a, b } => {
                let Some(row) = Mma::of(op) else {
                    return Err(format!("there is no matrix instruction of {shape} for {input:?}"));
                };
                self.slice("a", a, row.a.registers, row.a.held)?;
                self.slice("b", b, row.b.registers, row.b.held)?;
                self.slice("acc", acc, row.c.registers, row.c.held)
            }
        }
    }

    fn shared_mem(&mut self, mem: &MemRef) -> Result<(), String> {
        self.mem(mem)?;
        match mem.base {
            Base::Shared(_) => Ok(()),
            other => Err(format!("{} is not in shared memory", self.base_name(other))),
        }
    }

    fn tx(&mut self, t: &TxRef) -> Result<(), String> {
        if self.kernel.tx_barriers.len() <= t.barriers.0 as usize {
            return Err(format!("there are no transaction barriers {}", t.barriers.0));
        }
        index(self.value(t.index)?)
    }

    /// A rank, or a set of ranks, of work-groups of the cluster.
    fn peer(&mut self, rank: ExprId) -> Result<(), String> {
        if self.kernel.cluster <= 1 {
            return Err("access to another work-group needs a kernel with clusters".into());
        }
        if self.value(rank)? == Scalar::I32.ty() { Ok(()) } else { Err("ranks in a cluster are i32".into()) }
    }

    pub(super) fn load_peer(&mut self, place: Place, mem: &MemRef, rank: ExprId) -> Result<(), String> {
        self.shared_mem(mem)?;
        self.peer(rank)?;
        let ty = self.place(place)?;
        let suits = matches!((ty.scalar, ty.lanes), (Scalar::F32 | Scalar::I32, 1 | 2 | 4) | (Scalar::F64 | Scalar::I64, 1 | 2));
        if !suits || self.kernel.base_scalar(mem.base) != ty.scalar {
            return Err(format!("{ty} cannot be read from another work-group: use 1, 2 or 4 f32 or i32, or 1 or 2 f64 or i64"));
        }
        self.put(place, ty)
    }

    fn bulk_box(&mut self, map: ArgId, at: &[ExprId], store: bool) -> Result<(), String> {
        let Some(Arg { kind: ArgKind::TensorMap(map), .. }) = self.kernel.args.get(map.index()) else {
            return Err(format!("argument {} is no tensor map", map.0));
        };
        if map.coordinates() != at.len() {
            let mode = if map.im2col.is_some() { " in im2col mode" } else { "" };
            return Err(format!("{} coordinates for a tensor map of rank {}{mode}", at.len(), map.extent.len()));
        }
        if store && map.im2col.is_some() {
            return Err("bulk stores have boxes, not windows (im2col)".into());
        }
        for e in at {
            if self.value(*e)? != Scalar::I32.ty() {
                return Err("coordinates of a bulk copy are i32".into());
            }
        }
        Ok(())
    }

    pub(super) fn bulk(&mut self, op: &BulkOp) -> Result<(), String> {
        match op {
            BulkOp::Init { barrier, arrivals } => {
                if !(1..1 << 20).contains(arrivals) {
                    return Err(format!("a transaction barrier expects 1 to 2^20 - 1 arrivals, not {arrivals}"));
                }
                self.tx(barrier)
            }
            BulkOp::Expect { barrier, .. } | BulkOp::Arrive { barrier } => self.tx(barrier),
            BulkOp::Wait { barrier, parity } => {
                self.tx(barrier)?;
                if self.value(*parity)? == Scalar::I32.ty() { Ok(()) } else { Err("a parity is an i32".into()) }
            }
            BulkOp::ArriveAt { barrier, rank } => {
                self.tx(barrier)?;
                self.peer(*rank)
            }
            BulkOp::Load { to, map, at, barrier, peers } => {
                self.tx(barrier)?;
                self.shared_mem(to)?;
                if let Some(peers) = peers {
                    self.peer(*peers)?;
                }
                self.bulk_box(*map, at, false)
            }
            BulkOp::Store { from, map, at } => {
                self.shared_mem(from)?;
                self.bulk_box(*map, at, true)
            }
            BulkOp::Registers { count, .. } if !(24..=256).contains(count) || count % 8 != 0 => {
                Err(format!("a register budget is 24 to 256 in steps of 8, not {count}"))
            }
            BulkOp::InitFence
            | BulkOp::StoreCommit
            | BulkOp::StoreWait { .. }
            | BulkOp::ProxyFence
            | BulkOp::Registers { .. } => Ok(()),
        }
    }
}

/// Checks an array of transaction barriers against the memory around it.
pub(in crate::validate) fn tx_barriers(kernel: &Kernel, t: &TxBarriers) -> Result<(), String> {
    let range = |first: u32, bytes: u64| u64::from(first)..u64::from(first) + bytes;
    let own = range(t.byte_offset, 8 * u64::from(t.len));
    if t.len == 0 || !t.byte_offset.is_multiple_of(8) || own.end > u64::from(u32::MAX) {
        return Err(format!("transaction barriers `{}`: {} of 8 bytes at byte {}", t.name, t.len, t.byte_offset));
    }
    let arrays = kernel.shared.iter().map(|s| (&s.name, range(s.byte_offset, u64::from(s.len) * u64::from(s.scalar.bytes()))));
    let others = kernel.tx_barriers.iter().filter(|o| !std::ptr::eq(*o, t));
    let others = others.map(|o| (&o.name, range(o.byte_offset, 8 * u64::from(o.len))));
    match arrays.chain(others).find(|(_, r)| r.start < own.end && own.start < r.end) {
        Some((name, _)) => Err(format!("transaction barriers `{}` overlap `{name}`: give them bytes of their own", t.name)),
        None => Ok(()),
    }
}

/// Checks a tensor map argument.
pub(in crate::validate) fn tensor_map(name: &str, map: &TensorMap) -> Result<(), String> {
    let rank = map.extent.len();
    let fail = |what: &str| Err(format!("tensor map `{name}`: {what}"));
    let sides = if map.im2col.is_some() { 2 } else { rank };
    if !(1..=5).contains(&rank) || map.tile.len() != sides || map.stride_bytes.len() + 1 != rank {
        return fail("rank 1 to 5, one box extent per dimension (two in im2col mode) and one stride less");
    }
    let most = [256, if map.im2col.is_some() { 1024 } else { 256 }];
    if map.tile.iter().enumerate().any(|(d, t)| !(1..=most[d.min(1)]).contains(t)) {
        return fail("boxes are 1 to 256 elements along each dimension, in im2col mode 1 to 1024 pixels");
    }
    if let Some(windows) = &map.im2col {
        let spatial = windows.lower.len();
        if !(1..=3).contains(&spatial) || [windows.upper.len(), windows.step.len(), rank - 2] != [spatial; 3] {
            return fail(
                "im2col mode has one to three spatial dimensions between channels and samples, with corners and a step each",
            );
        }
        let (low, high) = Im2col::corners(spatial);
        if windows.lower.iter().chain(&windows.upper).any(|corner| !(low..=high).contains(&i64::from(*corner))) {
            return fail(&format!("corners of {spatial} spatial dimensions are {low} to {high}"));
        }
        if windows.step.iter().any(|step| !(1..=8).contains(step)) {
            return fail("steps of windows are 1 to 8");
        }
        let origins = |d: usize| map.extent[d + 1] as i64 - 1 + i64::from(windows.upper[d]) - i64::from(windows.lower[d]);
        if (0..spatial).any(|d| origins(d) < 0) {
            return fail("windows have an origin along each spatial dimension");
        }
    }
    if map.tile_bytes() >= 1 << 20 {
        return fail("a box has less than 2^20 bytes");
    }
    let inner = map.tile[0] * map.scalar.bytes();
    if !inner.is_multiple_of(16) || (map.swizzle != Swizzle::None && inner != map.swizzle.row_bytes()) {
        return fail("the innermost box extent is a multiple of 16 bytes, with a swizzle one of its rows");
    }
    if map.stride_bytes.iter().any(|s| s % 16 != 0 || *s >= 1 << 40) {
        return fail("strides are multiples of 16 bytes below 2^40");
    }
    Ok(())
}
