//! What a target can do and has room for.

use super::{Fault, Path};
use crate::*;

/// Named barriers the hardware numbers, the work-group's own (0) among them.
const HARDWARE_BARRIERS: u8 = 16;

fn missing(target: &Target, feature: &'static str, remedy: &'static str) -> Fault {
    Fault::Missing { target: target.arch.clone(), feature, remedy }
}

/// Checks what a kernel declares: threads, shared memory, types. `types::declarations` has accepted it.
pub(super) fn declarations(kernel: &Kernel, target: &Target) -> Result<(), Fault> {
    if kernel.threads == 0 {
        return Err(Fault::Malformed("a work-group needs threads".into()));
    }
    let limit = |what, used: u32, limit: u32| {
        if used <= limit {
            return Ok(());
        }
        Err(Fault::Limit { target: target.arch.clone(), what, used: used.into(), limit: limit.into() })
    };
    limit("threads per work-group", kernel.threads, target.limits.max_threads)?;
    if kernel.cluster > 1 && !target.features.cluster {
        return Err(missing(target, "clusters of work-groups", "let every work-group copy its own tiles"));
    }
    limit("work-groups per cluster", kernel.cluster, MAX_CLUSTER)?;
    limit("shared memory in bytes", kernel.shared_bytes(), target.limits.shared_per_group)?;
    let args = kernel.args.iter().map(|a| match a.kind {
        ArgKind::Buffer { scalar, .. } | ArgKind::Scalar(scalar) => scalar,
        ArgKind::TensorMap(ref map) => map.scalar,
    });
    let mut scalars = args
        .chain(kernel.vars.iter().map(|v| v.ty.scalar))
        .chain(kernel.regs.iter().map(|r| r.ty.scalar))
        .chain(kernel.shared.iter().map(|s| s.scalar))
        .chain(kernel.exprs.iter().map(|(_, ty)| ty.scalar));
    if !target.features.f64 && scalars.any(|s| s == Scalar::F64) {
        return Err(missing(target, "f64", "compute in f32"));
    }
    let dots = |(e, _): &(Expr, Type)| matches!(e, Expr::Fma(a, ..) if kernel.ty(*a).scalar.is_int8());
    if !target.features.dot && kernel.exprs.iter().any(dots) {
        return Err(missing(target, "dot products of four bytes", "use multiply-adds"));
    }
    Ok(())
}

/// Checks a block that `flow` and `sync` have accepted. An error leaves the path at the statement.
pub(super) fn check(kernel: &Kernel, target: &Target, block: &Block, path: &mut Path) -> Result<(), Fault> {
    let has = &target.features;
    path.each(block, |path, s| match s {
        Stmt::For { body, .. } => check(kernel, target, body, path),
        Stmt::If { then, otherwise, .. } => {
            check(kernel, target, then, path)?;
            check(kernel, target, otherwise, path)
        }
        Stmt::Roles(roles) => {
            if !has.roles {
                return Err(missing(target, "roles", "use a schedule without roles"));
            }
            wave_width(kernel, target)?;
            let wave = target.wave.max(1);
            if let Some(r) = roles.iter().find(|r| r.threads % wave != 0) {
                return Err(Fault::Malformed(format!(
                    "role `{}` has {} threads, no whole number of waves of {wave} lanes",
                    r.name, r.threads
                )));
            }
            roles.iter().try_for_each(|r| check(kernel, target, &r.body, path))
        }
        Stmt::Barrier(BarrierScope::WorkGroup | BarrierScope::Cluster | BarrierScope::ClusterStart) => Ok(()),
        // A wave of one lane has nobody to wait for.
        Stmt::Barrier(BarrierScope::Wave) if target.wave <= 1 => Ok(()),
        Stmt::Barrier(BarrierScope::Wave) => {
            // OpenCL spells it by the extension that has the shuffles.
            if target.dialect == Dialect::OpenCl && !has.shuffle {
                return Err(missing(target, "wave barriers", "use a work-group barrier"));
            }
            whole_waves(kernel, target)
        }
        Stmt::Barrier(BarrierScope::Named { id, threads }) => {
            if !has.named_barrier {
                return Err(missing(target, "named barriers", "use the work-group's barrier"));
            }
            wave_width(kernel, target)?;
            if *id == 0
                || *id >= HARDWARE_BARRIERS
                || *threads == 0
                || threads % target.wave.max(1) != 0
                || *threads > kernel.threads
            {
                return Err(Fault::Malformed(format!(
                    "barrier {id} for {threads} threads: its number is 1 to {}, its threads whole waves of the work-group",
                    HARDWARE_BARRIERS - 1
                )));
            }
            Ok(())
        }
        Stmt::AsyncCopy { .. } | Stmt::AsyncCommit | Stmt::AsyncWait(_) if !has.async_copy => {
            Err(missing(target, "asynchronous copies", "fetch to registers and store to shared memory"))
        }
        Stmt::Matrix(op) if Mma::of(op).is_some_and(|row| !has.float8.takes(row.input.storage())) => Err(missing(
            target,
            "matrix instructions of these 8-bit floats",
            "use fma; sm_89 and later and gfx950 have them for OCP floats, gfx942 for FNUZ floats",
        )),
        Stmt::Matrix(op) if has.mfma > 0 && Mma::of(op).is_some_and(|row| !row.of_generation(has.mfma)) => {
            Err(missing(target, "matrix instructions of this depth", "use more or fewer instructions of its own depth"))
        }
        Stmt::Matrix(op) => {
            whole_waves(kernel, target)?;
            let (has, feature, remedy) = match op {
                MatrixOp::Mma { .. } | MatrixOp::LoadMatrix { .. } => (has.mma, "mma instructions", "compute with fma"),
                MatrixOp::Mfma { .. } => (has.mfma > 0, "mfma instructions", "compute with fma"),
                _ => (has.warpgroup, "warpgroup instructions", "compute with mma or fma"),
            };
            if has { Ok(()) } else { Err(missing(target, feature, remedy)) }
        }
        Stmt::Bulk(_) if !has.bulk_copy => Err(missing(target, "bulk copies", "copy asynchronously or through registers")),
        Stmt::Shuffle { .. } => {
            if !has.shuffle {
                return Err(missing(target, "shuffles", "exchange through shared memory"));
            }
            whole_waves(kernel, target)
        }
        Stmt::Fence if !has.fence => Err(missing(target, "fences between work-groups", "finish in a second kernel")),
        Stmt::Atomic { op, mem, .. } => {
            let scalar = kernel.base_scalar(mem.base);
            // CUDA and HIP add f64 in one operation; everything else on 8 bytes compares and exchanges integers.
            let native = target.dialect != Dialect::OpenCl && scalar == Scalar::F64 && *op == AtomicOp::Add;
            if scalar.bytes() == 8 && !native && !has.atomic64 {
                return Err(missing(target, "64-bit atomics", "reduce in a second kernel"));
            }
            Ok(())
        }
        _ => Ok(()),
    })
}

/// Operations among the lanes of a wave are built for one width.
fn whole_waves(kernel: &Kernel, target: &Target) -> Result<(), Fault> {
    if kernel.wave == 0 {
        return Err(Fault::Malformed("the kernel uses waves but does not state their width".into()));
    }
    wave_width(kernel, target)
}

/// A kernel that counts on a width of waves gets it.
fn wave_width(kernel: &Kernel, target: &Target) -> Result<(), Fault> {
    if kernel.wave != 0 && kernel.wave != target.wave {
        return Err(missing(target, "waves of the width the kernel is built for", "plan the kernel for this target"));
    }
    Ok(())
}
