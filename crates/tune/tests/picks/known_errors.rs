//! Classes of errors that convolution libraries are known to have had, each with a case in every direction it concerns, on the emulator with
//! every check; results are NaN before each run.
//!
//! | class | cases |
//! |---|---|
//! | offsets, sizes and numbers of work-groups beyond 31, 32 and 16 bits | here `tensors_of_more_than_two_to_the_31_elements`, `launches_of_many_work_groups`; `large_convolutions`, `wide_offsets`; `gradients::tensors_over_31_bits_keep_their_offsets` |
//! | splits of sums: without work, shorter than the pipeline, partial sums in the result's type, factors applied per split, groups, phases, vectors of unlike widths | here `more_splits_than_a_sum_has_tiles`, `splits_of_groups_phases_and_short_sums`; `regressions::sums_of_many_splits`, `wide_offsets::partial_sums_in_workspace` |
//! | results that nobody writes | `windows::phases_of_a_gradient_are_one_launch`, `gaps`, and every verification: `verify` |
//! | geometry of strided gradients: strides beyond filter and input, of 3 and 5, outputs of one pixel, more phases than rows | here `awkward_geometry`; `gradients::known_bug_classes_of_strided_gradients`, `more_parts_than_a_program_can_have_are_refused_by_name` |
//! | alignment, odd channels | here `odd_channels`, `shares_of_a_tile_begin_within_a_vector`; `windows::channels_padded_under_each_tap` |
//! | dilation, unlike padding, extents, corners of im2col maps, results that are not packed | here `awkward_geometry`; `windows::forward`, `backward_data`, `backward_weight`; `regressions::dimensions_inside_the_padding_are_zero` |
//! | references that are wrong themselves | `gradients`: reference and parts against the definition, with strides and dilations neither of which divides the other |
//! | cuDNN's own results | `vendors::cudnn_computes_both_gradients` (crate bench): an algorithm that is faster and wrong is passed over |
//! | order of epilogues, statistics of pixels that do not exist | here `epilogues_in_their_order_and_statistics_of_what_exists`; `epilogues`, `gradients::masked_gradients` |
//! | bad input, results that overlap a factor | `bad_input` (crate cli), `prepared::a_result_that_overlaps_a_factor_is_refused` (crate tilewright). Texts and case files have no strides of tensors, which are packed: a key or column that says some is unknown |

use crate::support;

use std::sync::Arc;
use support::{emulator, judge};
use tilewright_check::random::{Pair, whole_run};
use tilewright_check::run::{Buffers, Factors, bind, compile};
use tilewright_device::{Buffer, Device};
use tilewright_gen::plan::{Constraint, Plan};
use tilewright_gen::space::Space;
use tilewright_ir::Scalar;
use tilewright_problem::{Conv, Direction, Layout, Problem};
use tilewright_tune::search::pick;

/// Verifies what is picked for a problem under a constraint, with the data of a seed, and of the next one: odd seeds have a beta.
fn picked(device: &str, problem: &str, constraint: &str, seed: u64) -> Plan {
    let device = emulator(device, true, seed);
    let problem = Problem::parse(problem).unwrap();
    let space = Space::new(&problem, &device.info().target).unwrap();
    let space = space.constrained(&Constraint::parse(constraint).unwrap());
    let plan = pick(&*device, &space).unwrap_or_else(|| panic!("{problem} {constraint}: no plan"));
    for seed in [seed, seed + 1] {
        let failed = judge(&device, &Pair { seed, problem: problem.clone(), plan });
        assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    }
    plan
}

/// Units of each kind with the emulator that has them.
const UNITS: [(&str, &str); 4] =
    [("emu:gfx900", "C_UNI0"), ("emu:sm_80", "C_UNI1"), ("emu:sm_90a", "C_UNI2"), ("emu:gfx942", "C_UNI3")];

/// A staggered start moves k-tiles against the blocks of zeros that padded channels have: fragments ahead left out blocks of the wrong step.
#[test]
fn staggered_starts_leave_out_no_block_of_padded_channels() {
    let problem = "conv_bwdd_nchw_n3_g3_c3_k3_in5x5x10_fil2x2x2_st1x1x1_dil1x1x1_pb0x0x0_pe0x0x0_bias0_ws16760_bf16";
    let ahead = "A_MIC4_PAD1_PLU1_LIW0_MIW1_WOS0_VEW1__B_MIC3_PAD1_PLU1_LIW1_MIW1_WOS0_VEW1__C_UNR64_GAL1_PUN1_ICE1_IWI0_SZT0_MAD0_NAW64_MAC32_AFI1_MIA0_EDG1_CST1_BIM3_UNI1_SWP1";
    let problem = Problem::parse(problem).unwrap();
    for keys in ["UFO1_FRA1", "UFO1_FRA1_SKW10_SKS1_PFG1_LWV2", "UFO1_FRA1_PFG1_BUF2", "UFO0_FRA1", "UFO1_FRA0"] {
        let constraint = Constraint::parse(&format!("{ahead}_{keys}")).unwrap();
        let plan = Plan::from(constraint.apply(&Plan::default()));
        let device = emulator("emu:sm_90a", true, 1);
        let failed = judge(&device, &Pair { seed: 1, problem: problem.clone(), plan });
        assert!(failed.is_none(), "{keys}: {}", failed.unwrap_or_default());
    }
}

/// More than 65535 work-groups, of as many batch entries.
#[test]
fn launches_of_many_work_groups() {
    let conv = "nhwc_n257_g256_c256_k256_in2x1_fil2x1_st1x1_dil1x1_pb0x0_pe0x0_bias0_ws0_f16";
    for direction in ["fwd", "bwdd"].into_iter().take(if whole_run() { 2 } else { 1 }) {
        let problem = format!("conv_{direction}_{conv}");
        let plan = picked("emu:sm_80", &problem, "C_UNI0_MAC32_BIM0", 1);
        let space = Space::new(&Problem::parse(&problem).unwrap(), &emulator("emu:sm_80", false, 0).info().target).unwrap();
        let program = space.resolve(&plan).unwrap().generate(0).unwrap();
        assert!(program.launches.iter().any(|launch| launch.grid[0] > 1 << 16), "{plan}");
    }
}

/// More splits than k-tiles: some have nothing to add, and none is left out.
#[test]
fn more_splits_than_a_sum_has_tiles() {
    for (seed, (device, keys)) in (0..).zip(UNITS) {
        for direction in ["fwd", "bwdd", "bwdw"].into_iter().skip(seed as usize % 2).step_by(2) {
            let conv = format!("conv_{direction}_nhwc_n1_g1_c64_k64_in3x3_fil2x2_st1x1_dil1x1_pb0x0_pe1x1_bias0_ws16777216_f16");
            picked(device, &conv, &format!("{keys}_UNR64_ICE7_SKS1"), seed);
        }
    }
}

/// Splits of sums in groups and in phases, with results in 16 bits and a beta that may count once; fewer k-tiles than the pipeline has stages,
/// and splits without any.
#[test]
fn splits_of_groups_phases_and_short_sums() {
    let grouped = "n2_g3_c48_k48_in6x5_fil3x3_st1x1_dil1x1_pb1x1_pe1x1";
    let strided = "n2_g1_c32_k32_in7x6_fil3x3_st2x2_dil1x1_pb1x1_pe1x1";
    let short = "n1_g1_c64_k64_in3x3_fil1x1_st1x1_dil1x1_pb0x0_pe0x0";
    for (seed, (device, unit)) in (0..).zip(UNITS) {
        for (conv, keys) in [("bwdw", grouped), ("bwdd", strided), ("fwd", short)].map(|(d, c)| (format!("conv_{d}_nhwc_{c}"), c))
        {
            let ways = if keys == short { "UNR32_PFG3_BUF4_ICE4" } else { "ICE3" };
            picked(device, &format!("{conv}_bias0_ws16777216_bf16"), &format!("{unit}_{ways}_SKS1"), seed);
        }
    }
}

/// Strides beyond the filter and the input, of 3 and 5, an output of one pixel, more phases than rows, dilations with strides neither of which
/// divides the other, unlike padding, outputs of padding alone: in every direction, units in turn.
#[test]
fn awkward_geometry() {
    let geometry = [
        "in9x9_fil5x5_st11x11_dil1x1_pb2x2_pe2x2",
        "in40x3_fil3x3_st35x35_dil1x1_pb1x1_pe1x1",
        "in13x11_fil4x7_st3x5_dil1x1_pb0x0_pe0x0",
        "in2x2_fil3x3_st4x4_dil1x1_pb3x3_pe3x3",
        "in20x21_fil2x5_st2x4_dil4x2_pb1x0_pe0x1",
        "in20x21_fil2x5_st4x2_dil2x4_pb1x0_pe0x1",
        "in20x21_fil2x5_st3x2_dil2x3_pb1x0_pe0x1",
        "in7x7_fil1x1_st2x2_dil1x1_pb3x3_pe3x3",
    ];
    let all = geometry.iter().flat_map(|g| ["fwd", "bwdd", "bwdw"].map(|direction| (direction, g)));
    for ((seed, (direction, geometry)), (device, unit)) in (0..).zip(all).zip(UNITS.iter().cycle()) {
        if !support::runs(seed as usize) {
            continue;
        }
        let layout = if seed % 5 < 3 { "nhwc" } else { "nchw" };
        picked(device, &format!("conv_{direction}_{layout}_n2_g1_c16_k8_{geometry}_bias0_ws16777216_f16"), unit, seed);
    }
}

/// Channels that no vector divides, of the input, the output, or both, with one sample; filters of one tap and of several.
#[test]
fn odd_channels() {
    let channels = [(90, 45), (45, 90), (33, 35)];
    let directions = [("fwd", "3x3"), ("bwdd", "3x3"), ("bwdw", "3x3"), ("bwdw", "1x1"), ("bwdd", "1x1")];
    let all = channels.iter().flat_map(|channels| directions.map(|direction| (channels, direction)));
    // Units take turns.
    for ((seed, ((c, k), (direction, filter))), (device, keys)) in (0..).zip(all).zip(UNITS.iter().cycle()) {
        if !support::runs(seed as usize) {
            continue;
        }
        let conv =
            format!("conv_{direction}_nhwc_n1_g1_c{c}_k{k}_in5x4_fil{filter}_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws16777216_f16");
        picked(device, &conv, keys, seed);
    }
}

/// Bias, then what beta leaves of C, then the activation, then a residual or a mask; statistics of the pixels that exist, although tiles go
/// beyond the last and a bias makes something of the zeros there.
#[test]
fn epilogues_in_their_order_and_statistics_of_what_exists() {
    for (seed, (device, keys)) in (0..).zip(UNITS) {
        let ends = ["actrelu_res1", "redsum:bm_redsumsq:bm", "actrelu_mask1", "redsum:bm_redmax:bm_actgelu"];
        let ends = ends.into_iter().skip(seed as usize / 2 * 2).take(2).enumerate();
        for (_, end) in ends.filter(|(number, _)| support::runs(seed as usize + number)) {
            let conv = format!("conv_fwd_nhwc_n3_g1_c16_k24_in5x7_fil3x3_st2x1_dil1x1_pb1x1_pe1x1_bias1_ws16777216_bf16_{end}");
            picked(device, &conv, keys, seed);
        }
    }
}

/// A plan that three work-groups of a cluster share the tiles of, each a run of registers that begins within a vector of C.
#[test]
fn shares_of_a_tile_begin_within_a_vector() {
    let problem = "conv_fwd_nchw_n8_g1_c96_k128_in28x28_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws1073741824_f32";
    let plan = "A_MIC4_PAD0_PLU0_LIW1_MIW0_WOS0_VEW1_LOR1_FRW4_ACP1__B_MIC8_PAD1_PLU0_LIW1_MIW1_WOS0_VEW1_FRW4_ACP1__\
                C_UNR8_GAL1_PUN1_ICE3_IWI0_SZT0_MAD1_NAW64_UFO0_MAC128_SKW11_AFI1_MIA0_EDG1_SKS2_CVW4_WVA8_UKL1_PFG1_BUF2";
    // The same geometry, small enough to run as a whole.
    let small = problem.replace("n8_", "n1_").replace("c96_k128_in28x28", "c8_k128_in14x14");
    for peers in [3, 5, 6] {
        let plan = plan.replace("ICE3", &format!("ICE{peers}"));
        // Outside of a whole run the small one alone.
        for problem in [problem, &small].into_iter().skip(usize::from(peers > 3 || !whole_run())) {
            let device = emulator("emu:sm_90a", true, 0);
            let pair = Pair { seed: peers, problem: Problem::parse(problem).unwrap(), plan: Plan::parse(&plan).unwrap() };
            let failed = judge(&device, &pair);
            assert!(failed.is_none(), "{}", failed.unwrap_or_default());
        }
    }
}

/// A whole number for the element at this place of a tensor.
fn value(tensor: u64, at: u64) -> i64 {
    ((at * 7 + at / 64 * 3 + tensor) % 5) as i64 - 2
}

/// A tensor of which runs of elements exist that start at these places; nothing else of it is written.
fn sparse(device: &dyn Device, tensor: u64, len: u64, runs: impl Iterator<Item = u64>, run: u64) -> Buffer {
    let memory = device.alloc(2 * len).expect("memory that nobody touches");
    for start in runs {
        let bytes: Vec<u8> =
            (start..start + run).flat_map(|at| half::f16::from_f32(value(tensor, at) as f32).to_le_bytes()).collect();
        device.write(&memory, 2 * start, &bytes).expect("a run is written");
    }
    memory
}

/// A convolution of one sample between images of `input` and `output` pixels squared, of `c` and `k` channels, whose `taps` squared taps reach
/// few pixels: pairs of an input and an output pixel along an axis with the tap between them.
struct Wide {
    conv: Conv,
    pairs: Vec<[u64; 3]>,
}

impl Wide {
    fn new(direction: Direction, [input, stride, dilation, pad]: [u64; 4], [c, k]: [u64; 2]) -> Wide {
        let conv = Conv::new(Scalar::F16, 1, c, k, &[input; 2], &[2; 2]).layout(Layout::Nhwc).out_dtype(Scalar::F32);
        let conv = conv.stride(&[stride; 2]).dilation(&[dilation; 2]).pad(&[pad; 2], &[pad; 2]).direction(direction).workspace(0);
        let conv = conv.build().expect("a problem");
        let pair =
            |out: u64, tap: u64| Some([(out * stride + tap * dilation).checked_sub(pad).filter(|x| *x < input)?, out, tap]);
        let pairs = (0..conv.output()[0]).flat_map(|out| (0..2).filter_map(move |tap| pair(out, tap))).collect();
        Wide { conv, pairs }
    }

    /// Linear places of the pixels of a tensor: 0 is the input, 1 the output, 2 the filter's taps.
    fn places(&self, tensor: usize) -> Vec<u64> {
        let side = [self.conv.input[0], self.conv.output()[0], 2][tensor];
        let mut used: Vec<u64> = self.pairs.iter().map(|pair| pair[tensor]).collect();
        used.sort_unstable();
        used.dedup();
        used.iter().flat_map(|y| used.iter().map(move |x| y * side + x)).collect()
    }

    fn runs(&self, arch: &str, constraint: &str) {
        let (conv, device) = (&self.conv, emulator(&format!("emu:{arch}"), false, 0));
        let problem = Problem::Conv(conv.clone());
        let space = Space::new(&problem, &device.info().target).expect("a space");
        let space = space.constrained(&Constraint::parse(constraint).expect("a constraint"));
        let plan = pick(&*device, &space).expect("a plan");
        let found = space.resolve(&plan).expect("it is legal");
        let program = found.generate(0).expect("it generates");
        let compiled = compile(&*device, &program).expect("it compiles");
        let (c, k) = (conv.c, conv.k);
        let input =
            |device: &Arc<dyn Device>| sparse(&**device, 0, conv.input_len(), self.places(0).into_iter().map(|p| p * c), c);
        let output =
            |device: &Arc<dyn Device>| sparse(&**device, 1, conv.output_len(), self.places(1).into_iter().map(|p| p * k), k);
        let filter = |device: &Arc<dyn Device>| sparse(&**device, 2, conv.filter_len(), 0..1, conv.filter_len());
        // Factors, and pixels and channels of the result.
        let (a, b, [pixels, channels]) = match conv.direction {
            Direction::Forward => (input(&device), filter(&device), [conv.output()[0].pow(2), k]),
            Direction::BackwardData => (output(&device), filter(&device), [conv.input[0].pow(2), c]),
            Direction::BackwardWeight => (output(&device), input(&device), [4 * k, c]),
        };
        assert!([conv.input_len(), conv.output_len()].iter().any(|len| *len > 1 << 31), "{problem}");
        let result = device.alloc(4 * pixels * channels).expect("memory");
        let buffers =
            Buffers { a, b, c: result, added: Default::default(), reductions: Vec::new(), workspace: None, offsets: [0; 3] };
        let at = found.contraction.extents();
        let launches = bind(&program, &compiled, found.contraction, &buffers, Factors::default(), &at).expect("it binds");
        device.launch(&launches).unwrap_or_else(|e| panic!("{arch} {plan}: {e}"));
        let mut bytes = vec![0; 4 * (pixels * channels) as usize];
        device.read(&buffers.c, 0, &mut bytes).expect("the result is read");
        let have = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let want = self.expected();
        assert!(want.iter().any(|x| *x != 0));
        assert_eq!(have.map(|x| x as i64).collect::<Vec<_>>(), want, "{arch} {problem} {plan}");
    }

    /// The result, in its order in memory.
    fn expected(&self) -> Vec<i64> {
        let (conv, [c, k]) = (&self.conv, [self.conv.c, self.conv.k]);
        let len = match conv.direction {
            Direction::Forward => conv.output_len(),
            Direction::BackwardData => conv.input_len(),
            Direction::BackwardWeight => conv.filter_len(),
        };
        let mut result = vec![0; len as usize];
        for ([y, p, r], [x, q, s]) in self.pairs.iter().flat_map(|y| self.pairs.iter().map(move |x| (*y, *x))) {
            let (pixel, out) = (y * conv.input[0] + x, p * conv.output()[0] + q);
            for (i, o) in (0..c).flat_map(|i| (0..k).map(move |o| (i, o))) {
                let at = [pixel * c + i, out * k + o, (o * 4 + r * 2 + s) * c + i];
                let of = |tensor: usize| value(tensor as u64, at[tensor]);
                match conv.direction {
                    Direction::Forward => result[at[1] as usize] += of(0) * of(2),
                    Direction::BackwardData => result[at[0] as usize] += of(1) * of(2),
                    Direction::BackwardWeight => result[at[2] as usize] += of(0) * of(1),
                }
            }
        }
        result
    }
}

/// Windows far apart in an image of more than 2^31 elements, 4.3 GB; the gradient of a small image whose padding makes one of that size.
#[test]
fn tensors_of_more_than_two_to_the_31_elements() {
    let far = [5801, 5700, 61, 0];
    let padded = [3, 1, 1, 2900];
    let units = [("sm_80", "C_UNI0"), ("sm_80", "C_UNI1"), ("sm_90a", "C_UNI2"), ("gfx942", "C_UNI3")];
    for (number, (arch, unit)) in units.into_iter().enumerate() {
        let directions = [
            (Direction::Forward, far, [64, 16]),
            (Direction::BackwardWeight, far, [64, 16]),
            (Direction::BackwardData, padded, [16, 64]),
        ];
        // Outside of a whole run, directions take turns.
        let chosen = directions.into_iter().enumerate().filter(|(turn, _)| whole_run() || *turn == number % 3);
        chosen.for_each(|(_, (direction, sizes, channels))| Wide::new(direction, sizes, channels).runs(arch, unit));
    }
}
