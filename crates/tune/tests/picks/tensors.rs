//! What the cost model picks for reductions of tensors, with no measuring and no run.

use crate::{picked, space};
use tilewright_ir::{Scalar, Target};
use tilewright_problem::{Operator, Reduce};

/// What is picked without a measurement loads vectors of 8 or 16 bytes side by side, and keeps nine tenths of the device busy at least, whichever axis is reduced.
#[test]
fn picked_plans_of_tensors_read_whole_sectors() {
    let target = Target::by_arch("sm_90a").unwrap();
    let shapes =
        [([65536, 1024], 1), ([1024, 65536], 1), ([8192, 8192], 0), ([65536, 256], 0), ([1, 1 << 24], 1), ([4096, 50257], 1)];
    for (shape, over) in shapes {
        for dtype in [Scalar::F32, Scalar::I8] {
            let problem = Reduce::new(dtype, &shape, &[over]).op(Operator::Max).build().unwrap().into();
            let space = space(&problem, "sm_90a");
            let plan = picked(&space).plan;
            let resolved = space.resolve(&plan).unwrap();
            let (spec, c) = (&resolved.spec, resolved.contraction);
            assert!(spec.element_loads(c).width() * dtype.bytes() >= 8, "{shape:?} over {over}: {plan}");
            let program = resolved.generate(1 << 30).unwrap();
            let cluster = spec.tiling.cluster.size();
            assert!(
                program.launches[0].grid[0] * 4 / dtype.bytes() >= target.units * 9 / 10 / cluster * cluster,
                "{shape:?} over {over}: {:?} of {plan}",
                program.launches[0].grid
            );
        }
    }
}
