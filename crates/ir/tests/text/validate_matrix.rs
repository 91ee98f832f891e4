//! Rules of matrix instructions, transaction barriers and bulk copies: each refuses what breaks it and lets the rest pass.

use crate::support;

use proptest::prelude::*;
use support::*;
use tilewright_ir::*;

fn refused(kernel: &Kernel, arch: &str, message: &str) {
    let invalid = validate(kernel, &target(arch)).expect_err(message).to_string();
    assert!(invalid.contains(message), "{invalid}");
}

/// The warpgroup kernel after a change must be refused with this message.
fn changed(message: &str, f: impl FnOnce(&mut Kernel)) {
    let mut kernel = matrix::warpgroup_gemm();
    f(&mut kernel);
    refused(&kernel, "sm_90a", message);
}

/// Changes every statement of a kernel.
fn each(block: &mut Block, f: &mut dyn FnMut(&mut Stmt)) {
    for s in block {
        match s {
            Stmt::For { body, .. } => each(body, f),
            Stmt::If { then, otherwise, .. } => {
                each(then, f);
                each(otherwise, f);
            }
            Stmt::Roles(roles) => roles.iter_mut().for_each(|r| each(&mut r.body, f)),
            _ => {}
        }
        f(s);
    }
}

fn map(kernel: &mut Kernel, f: impl FnOnce(&mut TensorMap)) {
    if let ArgKind::TensorMap(map) = &mut kernel.args[0].kind {
        f(map);
    }
}

#[test]
fn matrix_kernels_are_fine_where_they_belong() {
    validate(&matrix::warpgroup_gemm(), &target("sm_90a")).unwrap_or_else(|e| panic!("{e}"));
    validate(&matrix::wave_gemm(), &target("sm_80")).unwrap_or_else(|e| panic!("{e}"));
    validate(&matrix::amd_product(MatrixType::F16, 32, 8), &target("gfx90a")).unwrap_or_else(|e| panic!("{e}"));
    refused(&matrix::warpgroup_gemm(), "sm_80", "bulk copies");
    refused(&matrix::wave_gemm(), "sm_75", "mma instructions");
    refused(&matrix::amd_product(MatrixType::F16, 32, 8), "gfx900", "mfma instructions");
}

#[test]
fn tensor_maps() {
    changed("rank 1 to 5", |k| map(k, |m| m.stride_bytes.push(16)));
    changed("boxes are 1 to 256", |k| map(k, |m| m.tile[1] = 257));
    changed("multiple of 16 bytes", |k| map(k, |m| (m.tile[0], m.swizzle) = (60, Swizzle::None)));
    changed("one of its rows", |k| map(k, |m| m.tile[0] = 32));
    changed("strides are multiples of 16", |k| map(k, |m| m.stride_bytes[0] = 2050));
    changed("less than 2^20 bytes", |k| {
        map(k, |m| {
            m.extent = vec![256; 3];
            m.stride_bytes = vec![512, 1 << 17];
            m.tile = vec![256; 3];
            m.swizzle = Swizzle::None;
        });
    });
}

#[test]
fn windows() {
    // Its left operand as one row of pixels, of which columns are copied.
    let windows = |message: &str, f: &dyn Fn(&mut TensorMap, &mut Im2col)| {
        changed(message, |k| {
            map(k, |m| {
                let mut windows = Im2col { lower: vec![-1], upper: vec![-1], step: vec![1] };
                m.extent.push(1);
                m.stride_bytes.push(16);
                f(m, &mut windows);
                m.im2col = Some(windows);
            });
        });
    };
    // Well formed, but its copies say no offset.
    windows("2 coordinates for a tensor map of rank 3 in im2col mode", &|_, _| ());
    windows("two in im2col mode", &|m, _| m.tile.push(1));
    windows("1 to 1024 pixels", &|m, _| m.tile[1] = 1025);
    windows("one to three spatial dimensions", &|_, w| w.lower.push(0));
    windows("corners of 1 spatial dimensions are -32768 to 32767", &|_, w| w.lower[0] = -32769);
    windows("steps of windows are 1 to 8", &|_, w| w.step[0] = 9);
    windows("an origin along each", &|m, w| w.upper[0] = -(m.extent[1] as i32) - 1);
}

#[test]
fn transaction_barriers() {
    changed("overlap `staged`", |k| k.tx_barriers[0].byte_offset = 49152);
    changed("overlap `free`", |k| k.tx_barriers[0].len = 3);
    changed("3 of 8 bytes at byte 81922", |k| (k.tx_barriers[0].len, k.tx_barriers[0].byte_offset) = (3, 81922));
    changed("1 to 2^20 - 1 arrivals", |k| {
        each(&mut k.body, &mut |s| {
            if let Stmt::Bulk(BulkOp::Init { arrivals, .. }) = s {
                *arrivals = 0;
            }
        });
    });
    changed("no transaction barriers 7", |k| {
        each(&mut k.body, &mut |s| {
            if let Stmt::Bulk(BulkOp::Arrive { barrier }) = s {
                barrier.barriers = TxId(7);
            }
        });
    });
}

#[test]
fn warpgroup_instructions() {
    let instruction = |f: &'static dyn Fn(&mut MatrixOp)| {
        move |k: &mut Kernel| {
            each(&mut k.body, &mut |s| {
                if let Stmt::Matrix(op @ MatrixOp::Warpgroup { .. }) = s {
                    f(op);
                }
            });
        }
    };
    changed(
        "steps of 8",
        instruction(&|op| {
            if let MatrixOp::Warpgroup { n, .. } = op {
                *n = 100;
            }
        }),
    );
    changed(
        "registers 0 .. 68 of the 64",
        instruction(&|op| {
            if let MatrixOp::Warpgroup { n, .. } = op {
                *n = 136;
            }
        }),
    );
    changed(
        "multiply TF32",
        instruction(&|op| {
            if let MatrixOp::Warpgroup { input, .. } = op {
                *input = MatrixType::F32;
            }
        }),
    );
    changed(
        "only 16-bit operands",
        instruction(&|op| {
            if let MatrixOp::Warpgroup { input, b, .. } = op {
                *input = MatrixType::TF32;
                b.k_contiguous = false;
            }
        }),
    );
    changed(
        "strides are multiples of 16",
        instruction(&|op| {
            if let MatrixOp::Warpgroup { b, .. } = op {
                b.stride_bytes = 1000;
            }
        }),
    );
    changed("a multiple of 1024", |k| k.shared[1].byte_offset += 128);
}

#[test]
fn fragments_of_warpgroup_instructions() {
    // The left operand from registers of this type, this many, and the fence before it.
    let from_registers = |scalar: Scalar, len: u32| {
        move |k: &mut Kernel| {
            let regs = RegId(k.regs.len() as u32);
            k.regs.push(RegArray { name: "fragments".into(), ty: scalar.ty(), len });
            let first = ExprId(k.exprs.len() as u32);
            k.exprs.push((Expr::Int(0), Scalar::I32.ty()));
            for i in 0..len {
                let zero = ExprId(k.exprs.len() as u32);
                k.exprs.push((if scalar == Scalar::F32 { Expr::Float(0.0) } else { Expr::Int(0) }, scalar.ty()));
                let index = ExprId(k.exprs.len() as u32);
                k.exprs.push((Expr::Int(i.into()), Scalar::I32.ty()));
                k.body.insert(0, Stmt::Assign(Place::Reg(regs, index), zero));
            }
            let slice = RegSlice { regs, first };
            each(&mut k.body, &mut |s| match s {
                Stmt::Matrix(MatrixOp::Warpgroup { a, .. }) => *a = WarpgroupA::Regs(slice),
                Stmt::Matrix(MatrixOp::WarpgroupFence { left, .. }) => left.push(slice),
                _ => {}
            });
        }
    };
    let mut kernel = matrix::warpgroup_gemm();
    from_registers(Scalar::U32, 4)(&mut kernel);
    validate(&kernel, &target("sm_90a")).unwrap_or_else(|e| panic!("{e}"));
    changed("not one of [U32]", from_registers(Scalar::F32, 4));
    changed("registers 0 .. 4 of the 2", from_registers(Scalar::U32, 2));
}

#[test]
fn whole_warpgroups_and_waves() {
    changed("must be whole warpgroups", |k| {
        k.threads = 160;
        each(&mut k.body, &mut |s| {
            if let Stmt::Roles(roles) = s {
                roles[1].threads = 32;
            }
        });
    });
    // A lane alone multiplies.
    let mut kernel = matrix::wave_gemm();
    let mut node = |expr, ty| {
        kernel.exprs.push((expr, ty));
        ExprId(kernel.exprs.len() as u32 - 1)
    };
    let lane = node(Expr::Builtin(Builtin::LocalId), Scalar::I32.ty());
    let three = node(Expr::Int(3), Scalar::I32.ty());
    let cond = node(Expr::Binary(BinaryOp::Eq, lane, three), Scalar::Bool.ty());
    each(&mut kernel.body, &mut |s| {
        if let Stmt::Matrix(MatrixOp::Mma { .. }) = s {
            let op = std::mem::replace(s, Stmt::Return);
            *s = Stmt::If { cond, then: vec![op], otherwise: vec![] };
        }
    });
    refused(&kernel, "sm_80", "a part of a wave");
}

#[test]
fn shared_memory_is_where_fragments_come_from() {
    let mut kernel = matrix::wave_gemm();
    each(&mut kernel.body, &mut |s| {
        if let Stmt::Matrix(MatrixOp::LoadMatrix { from, .. }) = s {
            from.base = Base::Buffer(ArgId(0));
        }
    });
    refused(&kernel, "sm_80", "`a` is not in shared memory");
    let mut kernel = matrix::wave_gemm();
    each(&mut kernel.body, &mut |s| {
        if let Stmt::Matrix(MatrixOp::LoadMatrix { count, .. }) = s {
            *count = 3;
        }
    });
    refused(&kernel, "sm_80", "1, 2 or 4");
}

#[test]
fn amd_shapes() {
    let mut kernel = matrix::amd_product(MatrixType::F16, 32, 8);
    each(&mut kernel.body, &mut |s| {
        if let Stmt::Matrix(MatrixOp::Mfma { shape, .. }) = s {
            shape.k = 4;
        }
    });
    refused(&kernel, "gfx942", "no matrix instruction of 32 x 32 x 4");
    let deep = matrix::amd_product(MatrixType::F16, 32, 16);
    validate(&deep, &target("gfx950")).unwrap_or_else(|e| panic!("{e}"));
    refused(&deep, "gfx942", "of this depth");
    // The first instructions of bytes are gone from gfx942 on.
    let bytes = matrix::amd_product(MatrixType::I8, 16, 16);
    validate(&bytes, &target("gfx90a")).unwrap_or_else(|e| panic!("{e}"));
    refused(&bytes, "gfx942", "of this depth");
    refused(&bytes, "gfx900", "mfma instructions");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn nothing_panics(
        which in 0usize..3,
        changes in prop::collection::vec((any::<usize>(), prop_oneof![0i64..80, Just(-1), Just(u32::MAX.into())]), 1..4),
    ) {
        let kernels = [matrix::warpgroup_gemm, matrix::wave_gemm, || matrix::amd_product(MatrixType::BF16, 16, 16)];
        if let Some(kernel) = scrambled(&kernels[which](), &changes) {
            for target in [target("sm_90a"), target("gfx942"), opencl()] {
                match (validate(&kernel, &target), print(&kernel, &target)) {
                    (Ok(()), printed) => prop_assert!(printed.is_ok(), "{printed:?}"),
                    (Err(invalid), printed) => prop_assert_eq!(Err(invalid), printed),
                }
            }
        }
    }
}
