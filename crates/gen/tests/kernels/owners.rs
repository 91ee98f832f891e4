//! Whose the elements of C are: kernels that store the number of the thread (or work-group) in the place of each result, run on the
//! emulator, against the layouts and the order of tiles that `explain` and the cost model read.

use crate::support;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;
use support::{emulator, wave_units};
use tilewright_check::random::{Recipe, pair, wave_unit_plan};
use tilewright_check::reference::Samples;
use tilewright_check::run::Factors;
use tilewright_check::verify::Case;
use tilewright_device::Device;
use tilewright_gen::kernel::{MAIN, Work, works};
use tilewright_gen::plan::Derived;
use tilewright_gen::space::Space;
use tilewright_ir::layout::Axis;
use tilewright_ir::*;
use tilewright_problem::Problem;
use tilewright_problem::contraction::Contraction;

/// The value of every store to the buffer `c` becomes a number that all threads know.
fn tell(kernel: &mut Kernel, who: Builtin) {
    let c = kernel.args.iter().position(|a| a.name == "c").expect("a result");
    let ArgKind::Buffer { scalar, .. } = kernel.args[c].kind else { panic!("no buffer") };
    let mut push = |expr: Expr, ty: Type| {
        kernel.exprs.push((expr, ty));
        ExprId(kernel.exprs.len() as u32 - 1)
    };
    let number = push(Expr::Builtin(who), Scalar::I32.ty());
    // Halves are cast from floats.
    let wide = if scalar == Scalar::F64 { scalar } else { Scalar::F32 };
    let mut number = push(Expr::Cast(number), wide.ty());
    if scalar != wide {
        number = push(Expr::Cast(number), scalar.ty());
    }
    let mut body = std::mem::take(&mut kernel.body);
    replace(&mut body, kernel, (ArgId(c as u32), number));
    kernel.body = body;
}

fn replace(block: &mut Block, kernel: &mut Kernel, told: (ArgId, ExprId)) {
    for s in block {
        match s {
            Stmt::Store { mem, value, .. } if is_in(kernel, mem.base, told.0) => {
                let ty = kernel.ty(*value);
                *value = told.1;
                if ty.lanes > 1 {
                    kernel.exprs.push((Expr::Splat(told.1), ty));
                    *value = ExprId(kernel.exprs.len() as u32 - 1);
                }
            }
            Stmt::For { body, .. } => replace(body, kernel, told),
            Stmt::If { then, otherwise, .. } => {
                replace(then, kernel, told);
                replace(otherwise, kernel, told);
            }
            Stmt::Roles(roles) => roles.iter_mut().for_each(|r| replace(&mut r.body, kernel, told)),
            _ => {}
        }
    }
}

fn is_in(kernel: &Kernel, base: Base, buffer: ArgId) -> bool {
    match base {
        Base::Buffer(arg) => arg == buffer,
        Base::Cursor(cursor) => kernel.cursors[cursor.index()].buffer == buffer,
        Base::Shared(_) => false,
    }
}

/// A number that was stored.
fn number(scalar: Scalar, bytes: &[u8], element: usize) -> f64 {
    let size = scalar.bytes() as usize;
    let at = &bytes[element * size..(element + 1) * size];
    match scalar {
        Scalar::F64 => f64::from_le_bytes(at.try_into().unwrap()),
        Scalar::F32 => f32::from_le_bytes(at.try_into().unwrap()).into(),
        _ => {
            let bits = u16::from_le_bytes(at.try_into().unwrap());
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
            if exponent == 0 { fraction / 1024.0 / 16384.0 } else { (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15) }
        }
    }
}

/// Elements of C that each piece of work has, with the thread of the work-group that stores them.
fn owners(Derived { spec, c, .. }: &Derived, works: &[Work]) -> HashMap<[u64; 3], Vec<(u64, u64)>> {
    let places = spec.tiling.accumulators();
    let mut found: HashMap<[u64; 3], Vec<(u64, u64)>> = HashMap::new();
    let mut tile = std::collections::HashSet::new();
    for thread in 0..places.extent(Axis::Thread) {
        for register in 0..places.extent(Axis::Register) {
            let at = [(Axis::Thread, thread as i64), (Axis::Register, register as i64)];
            let [row, col] = [Axis::Row, Axis::Col].map(|to| places.at(to, &at) as u64);
            assert!(tile.insert((row, col)), "{row}, {col} is held twice");
            for w in works {
                let team = w.team * u64::from(spec.tiling.math_threads());
                let [row, col] = [w.start[0] + row, w.start[1] + col];
                if row < c.m && col < c.n {
                    found.entry([w.g, row, col]).or_default().push((team + thread, w.group));
                }
            }
        }
    }
    let t = &spec.tiling;
    assert_eq!(tile.len() as u32, t.a.macro_tile * t.b.macro_tile, "every element of the tile is held");
    found
}

/// The splits of each tile have every k once.
fn splits_are_whole(Derived { spec, c, .. }: &Derived, works: &[Work]) {
    let mut seen: HashMap<(u64, [u64; 2]), Vec<i64>> = HashMap::new();
    for w in works {
        let tiles = (0..w.k_tiles as i64).map(|i| w.k_begin + i * w.k_step);
        seen.entry((w.g, w.tile)).or_default().extend(tiles);
    }
    for tiles in seen.values_mut() {
        tiles.sort_unstable();
        assert!(tiles.windows(2).all(|w| w[1] - w[0] == i64::from(spec.tiling.k_tile)), "{tiles:?}");
        let end = tiles.last().map_or(0, |last| last + i64::from(spec.tiling.k_tile));
        assert!(c.k == 0 || tiles[0] <= 0 && end >= c.k as i64, "{tiles:?}");
    }
}

/// Whether the plan, without splits and staging, was run and looked at.
fn look(device: &Arc<dyn Device>, problem: &Problem, plan: &tilewright_gen::plan::Plan) -> bool {
    let Ok(space) = Space::new(problem, &device.info().target) else { return false };
    let Some(plan) = space.repair(plan) else { return false };
    let Ok(drawn) = space.resolve(&plan) else { return false };
    let budget = space.env().workspace_bytes;
    // Where tiles are is known only at launch, or from the ends of groups.
    let known = Contraction::fixed;
    if known(drawn.contraction) {
        let works = works(&drawn.spec, budget, u64::MAX).unwrap();
        splits_are_whole(&drawn.spec, &works);
    }
    let plain = plan.but(|keys| {
        keys.staged = 0;
        keys.splits = 1;
        keys.tail_splits = 1;
    });
    let Some(plain) = space.repair(&plain).filter(|p| (p.staged, p.splits) == (0, 1)) else {
        return false;
    };
    let Ok(r) = space.resolve(&plain) else { return false };
    let c = &r.spec.c;
    // Numbers of threads are exact in these.
    if !known(c) || ![Scalar::F16, Scalar::F32, Scalar::F64].contains(&c.c.scalar) {
        return false;
    }
    let works = works(&r.spec, budget, u64::MAX).unwrap();
    let owners = owners(&r.spec, &works);
    let case = Case::new(device, problem, 1, Factors::real(1.0, 0.0), Samples::default()).unwrap();
    for who in [Builtin::LocalId, Builtin::GroupId(0)] {
        let mut program = r.generate(budget).unwrap();
        program.kernels.iter_mut().filter(|k| k.name == MAIN).for_each(|k| tell(k, who));
        let compiled: Vec<_> = program.kernels.iter().map(|k| device.compile(k).unwrap()).collect();
        let workspace = (program.workspace_bytes > 0).then(|| device.alloc(program.workspace_bytes).unwrap());
        let launches = case.bind(&program, &compiled, r.contraction, workspace).unwrap();
        device.launch(&launches).unwrap();
        let buffers = case.buffers(None);
        let offset = buffers.offsets[2] as i64;
        let mut bytes = vec![0; buffers.c.bytes() as usize];
        device.read(&buffers.c, 0, &mut bytes).unwrap();
        let chunk = works.iter().map(|w| w.g + 1).max().unwrap_or(0);
        for g in 0..chunk.min(c.g) {
            for (row, col) in (0..c.m).flat_map(|row| (0..c.n).map(move |col| (row, col))) {
                // Off the blocks of a block-diagonal product is no element.
                let Some(at) = c.c.view.access.at([g as i64, row as i64, col as i64]) else { continue };
                let stored = number(c.c.scalar, &bytes, (offset + at) as usize);
                let said = owners.get(&[g, row, col]).map_or(&[][..], |all| all);
                let said: Vec<u64> =
                    said.iter().map(|(thread, group)| if who == Builtin::LocalId { *thread } else { *group }).collect();
                assert!(
                    said.iter().any(|w| *w as f64 == stored),
                    "{who:?} of C[{g}, {row}, {col}] is {stored}, said: {said:?}\n{problem} {plain}"
                );
            }
        }
    }
    true
}

/// Draws for a unit and looks at what is drawn; at least so many can be.
fn all(unit: u32, spec: &str, (count, least): (u64, usize)) {
    let looked: Vec<u64> = (0..count)
        .into_par_iter()
        .filter(|seed| {
            let device = emulator(spec, false, *seed);
            if unit == 1 || unit == 3 {
                let mut rng = ChaCha8Rng::seed_from_u64(*seed);
                let (problem, plan) = (wave_units::product(&mut rng, unit, &[1, 8]), wave_unit_plan(&mut rng, unit));
                return look(&device, &problem, &plan);
            }
            let recipe = if unit == 2 { Recipe::units() } else { Recipe::emulated() };
            pair(&device.info().target, &recipe, *seed).is_some_and(|drawn| look(&device, &drawn.problem, &drawn.plan))
        })
        .collect();
    assert!(looked.len() >= least, "{} of {count} for UNI{unit}", looked.len());
}

#[test]
fn multiply_adds_store_what_their_layout_says() {
    all(0, "emu:gfx900", (40, 12));
}

#[test]
fn warps_store_what_their_layout_says() {
    all(1, "emu:sm_80", (60, 8));
}

#[test]
fn warpgroups_store_what_their_layout_says() {
    all(2, "emu:sm_90a", (40, 10));
}

#[test]
fn waves_of_mfma_store_what_their_layout_says() {
    all(3, "emu:gfx942", (60, 8));
}
