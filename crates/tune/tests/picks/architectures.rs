//! What the cost model picks compiles for every NVIDIA architecture that is known: nothing is planned that belongs to another one.
//! Needs NVRTC, no GPU.

use crate::missing;

use rayon::prelude::*;
use tilewright_device::{DeviceError, Options, cuda};
use tilewright_gen::space::Space;
use tilewright_ir::{Dialect, Scalar, Target};
use tilewright_problem::{Along, Conv, Gemm, Layout, Math, Problem};
use tilewright_tune::model::Picker;

fn problems() -> Vec<Problem> {
    let gemm = |dtype| Gemm::new(dtype, 1000, 520, 512);
    let conv = Conv::new(Scalar::BF16, 4, 64, 96, &[28, 28], &[3, 3]).pad(&[1, 1], &[1, 1]).layout(Layout::Nhwc);
    vec![
        gemm(Scalar::F32).build().unwrap().into(),
        gemm(Scalar::F32).math(Math::Tf32).trans(false, true).build().unwrap().into(),
        gemm(Scalar::F32).math(Math::Tf32x3).trans(false, true).build().unwrap().into(),
        gemm(Scalar::F32).math(Math::Bf16x3).trans(false, true).build().unwrap().into(),
        gemm(Scalar::F32).math(Math::Bf16x6).build().unwrap().into(),
        gemm(Scalar::F16).out_dtype(Scalar::F32).build().unwrap().into(),
        gemm(Scalar::F64).build().unwrap().into(),
        gemm(Scalar::F16).grouped(Along::M, 7).bias_strided(Along::N, 520).build().unwrap().into(),
        gemm(Scalar::F64).conj(true, false).trans(true, false).build().unwrap().into(),
        gemm(Scalar::F32).complex().batch(3).build().unwrap().into(),
        conv.build().unwrap().into(),
    ]
}

#[test]
fn picks_compile_for_every_nvidia_architecture() {
    let nvidia = |arch: &&&str| Target::by_arch(arch).is_some_and(|t| t.dialect == Dialect::Cuda);
    let architectures = Target::known().iter().filter(nvidia);
    let cases: Vec<(&str, Problem)> =
        architectures.flat_map(|arch| problems().into_iter().map(|problem| (*arch, problem))).collect();
    let missing = cases.par_iter().find_map_any(|(arch, problem)| {
        let space = Space::new(problem, &Target::by_arch(arch).unwrap()).unwrap();
        let plan = Picker::new(&space).pick(1)[0].plan;
        let r = space.resolve(&plan).unwrap();
        let program = r.generate(space.env().workspace_bytes).unwrap();
        program.kernels.iter().find_map(|kernel| match cuda::compile(kernel, arch, &Options::default()) {
            Err(e @ DeviceError::Missing { .. }) => Some(e.to_string()),
            Err(e) => panic!("{arch} {problem} {plan}: {e}"),
            Ok(_) => None,
        })
    });
    if let Some(missing) = missing {
        missing::missing(&missing);
    }
}
