//! Gradients of convolutions: parts and reference against the definition, scattered term by term.

use proptest::prelude::*;
use std::collections::HashMap;
use tilewright_check::reference::{Exact, Reference, Samples, TestData};
use tilewright_ir::Scalar;
use tilewright_problem::contraction::{Contraction, Operand, ResultSource};
use tilewright_problem::lower::{ConvForm, Parts, lower};
use tilewright_problem::{Along, Conv, ConvBuilder, Direction, Layout, Problem, Role};

const DIRECTIONS: [Direction; 3] = [Direction::Forward, Direction::BackwardData, Direction::BackwardWeight];

/// Calls `term` with the positions in input, filter and output of every product of the forward convolution.
fn terms(conv: &Conv, mut term: impl FnMut(usize, usize, usize)) {
    let three = |list: &[u64], fill: i64| {
        let mut out = [fill; 3];
        for (to, from) in out[3 - list.len()..].iter_mut().zip(list) {
            *to = *from as i64;
        }
        out
    };
    let [input, filter, output] = [&conv.input, &conv.filter, &conv.output()].map(|list| three(list, 1));
    let (stride, dilation, pad) = (three(&conv.stride, 1), three(&conv.dilation, 1), three(&conv.pad_begin, 0));
    let (c, k) = (conv.c_per_group() as i64, conv.k_per_group() as i64);
    let at = |outer: i64, channel: i64, channels: i64, p: [i64; 3], e: [i64; 3]| {
        let flat = |outer: i64| ((outer * e[0] + p[0]) * e[1] + p[1]) * e[2] + p[2];
        (if conv.layout == Layout::Nhwc { flat(outer) * channels + channel } else { flat(outer * channels + channel) }) as usize
    };
    let places = |e: [i64; 3]| (0..e[0]).flat_map(move |x| (0..e[1]).flat_map(move |y| (0..e[2]).map(move |z| [x, y, z])));
    for (n, group) in (0..conv.n as i64).flat_map(|n| (0..conv.groups as i64).map(move |g| (n, g))) {
        for (p, tap) in places(output).flat_map(|p| places(filter).map(move |tap| (p, tap))) {
            let place = [0, 1, 2].map(|d| p[d] * stride[d] + tap[d] * dilation[d] - pad[d]);
            if (0..3).any(|d| place[d] < 0 || place[d] >= input[d]) {
                continue;
            }
            for (ci, ki) in (0..c).flat_map(|ci| (0..k).map(move |ki| (ci, ki))) {
                let x = at(n, group * c + ci, conv.c as i64, place, input);
                let f = at(group * k + ki, ci, c, tap, filter);
                let y = at(n, group * k + ki, conv.k as i64, p, output);
                term(x, f, y);
            }
        }
    }
}

/// The sums of a direction, from factors by position.
fn scattered(conv: &Conv, a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut c = vec![0.0; conv.operand(Operand::C).1 as usize];
    terms(conv, |x, f, y| match conv.direction {
        Direction::Forward => c[y] += a[x] * b[f],
        Direction::BackwardData => c[x] += a[y] * b[f],
        Direction::BackwardWeight => c[f] += a[y] * b[x],
    });
    c
}

/// The sums of the parts, by position; every element is written once.
fn of_parts(parts: &Parts, a: &[f64], b: &[f64], len: usize) -> Result<Vec<f64>, TestCaseError> {
    let mut found = HashMap::new();
    for c in parts.iter() {
        for point in points(c) {
            let [g, m, n] = point;
            // Outside of the blocks of a block-diagonal result nothing is stored.
            let Some(at) = c.c.view.access.at(point) else { continue };
            let value = |factors: &[f64], at: Option<i64>| at.map_or(0.0, |at| factors[at as usize]);
            let term = |k: i64| {
                // Where each column has a left factor of its own, or each row a right one, they are batch entries of it.
                let [of_a, of_b] = match c.source {
                    ResultSource::OwnOperands(Along::N) => [g * c.n as i64 + n, g],
                    ResultSource::OwnOperands(Along::M) => [g, g * c.m as i64 + m],
                    _ => [g, g],
                };
                let (x, y) = (c.a.view.access.at([of_a, m, k]), c.b.view.access.at([of_b, n, k]));
                // Memory that does not belong to a sum may hold anything: both factors must be known to be absent.
                value(a, x) * value(b, y)
            };
            let sum: f64 = (0..c.k as i64).map(term).sum();
            let (of, before) = c.gaps.map_or((1, 0), |gaps| (gaps.of, gaps.before));
            for (i, at) in (0..of).zip(at..) {
                prop_assert!((0..len as i64).contains(&at), "{at:?}");
                let sum = if i == before { sum } else { 0.0 };
                prop_assert!(found.insert(at, sum).is_none(), "{at:?} is written twice");
            }
        }
    }
    prop_assert_eq!(found.len(), len);
    Ok((0..len as i64).map(|at| found[&at]).collect())
}

fn points(c: &Contraction) -> impl Iterator<Item = [i64; 3]> + use<> {
    let [g, m, n] = [c.g, c.m, c.n].map(|e| e as i64);
    (0..g).flat_map(move |g| (0..m).flat_map(move |i| (0..n).map(move |j| [g, i, j])))
}

/// Small whole numbers, none of them 0.
fn factors(len: u64, seed: u64) -> Vec<f64> {
    (0..len).map(|i| [1.0, -1.0, 2.0, -3.0, 5.0][((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % 5]).collect()
}

fn agree(conv: &Conv) -> Result<(), TestCaseError> {
    let [a, b, len] = [Operand::A, Operand::B, Operand::C].map(|operand| conv.operand(operand).1);
    let (a, b) = (factors(a, 1), factors(b, 2));
    let expected = scattered(conv, &a, &b);
    let forms = ConvForm::of(&Problem::Conv(conv.clone()));
    for form in forms.into_iter().chain([ConvForm::MERGED]) {
        let parts = lower(&Problem::Conv(conv.clone()), form).map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(of_parts(&parts, &a, &b, len as usize)?, expected.clone(), "{:?}", conv);
    }
    Ok(())
}

fn problem(conv: ConvBuilder, direction: Direction) -> Conv {
    conv.direction(direction).build().unwrap()
}

prop_compose! {
    /// Strides beyond the filter and beyond the input, dilation beside them, padding on one side or wider than the window.
    fn any_conv(depthwise: bool)(
        dims in 1..=3usize,
        sizes in prop::array::uniform3(1..7u64),
        filter in prop::array::uniform3(1..5u64),
        stride in prop::array::uniform3(1..6u64),
        dilation in prop::array::uniform3(1..5u64),
        begin in prop::array::uniform3(0..4u64),
        end in prop::array::uniform3(0..4u64),
        (n, groups, c, k) in (1..3u64, 1..3u64, 1..4u64, 1..4u64),
        nhwc in any::<bool>(),
        direction in 0..3usize,
    ) -> ConvBuilder {
        let (groups, c, k) = if depthwise { (groups + 1, 1, 1) } else { (groups, c, k) };
        Conv::new(Scalar::F32, n, c * groups, k * groups, &sizes[..dims], &filter[..dims])
            .layout(if nhwc || depthwise { Layout::Nhwc } else { Layout::Nchw })
            .groups(groups)
            .stride(&stride[..dims])
            .dilation(&dilation[..dims])
            .pad(&begin[..dims], &end[..dims])
            .direction(DIRECTIONS[direction])
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_are_the_definition(conv in prop_oneof![2 => any_conv(false), 1 => any_conv(true)]) {
        // A filter larger than the padded input is refused.
        if let Ok(conv) = conv.build() {
            agree(&conv)?;
        }
    }

    #[test]
    fn the_reference_is_the_definition(conv in any_conv(false), seed in any::<u64>(), beta in any::<bool>()) {
        if let Ok(conv) = conv.build() {
            let problem = Problem::Conv(conv.clone());
            let data = TestData::new(&problem, seed, 0.75, if beta { -1.5 } else { 0.0 }).unwrap();
            let right = result(&conv, &data);
            let verdict = Reference::new(&data, Samples::All).check(&right);
            prop_assert!(verdict.passed() && verdict.checked == conv.operand(Operand::C).1, "{:?}: {verdict}", conv);
            let factors = Exact::factors(&problem, beta);
            let exact = Exact::new(&problem, seed, factors).unwrap();
            let verdict = exact.check(&result(&conv, exact.data()));
            prop_assert!(verdict.passed() && verdict.checked == conv.operand(Operand::C).1, "{:?}: {verdict}", conv);
        }
    }
}

/// C's buffer after a correct run: f32 throughout.
fn result(conv: &Conv, data: &TestData) -> Vec<u8> {
    let values = |buffer: &tilewright_check::reference::Buffer, len: u64| -> Vec<f64> {
        let all = buffer.bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        all.skip(buffer.start as usize).take(len as usize).collect()
    };
    let [a, b, c] = [Operand::A, Operand::B, Operand::C].map(|operand| values(data.buffer(operand), conv.operand(operand).1));
    let mut out = data.c.bytes.clone();
    for (i, sum) in scattered(conv, &a, &b).into_iter().enumerate() {
        let old = if data.factors.beta == 0.0 { 0.0 } else { data.factors.beta * c[i] };
        let at = (data.c.start as usize + i) * 4;
        out[at..at + 4].copy_from_slice(&((data.factors.alpha * sum + old) as f32).to_le_bytes());
    }
    out
}

#[test]
fn parts_of_strided_input_gradients_have_the_taps_that_reach_them() {
    let sums_of = |conv: ConvBuilder, layout: Layout| {
        let conv = problem(conv.layout(layout), Direction::BackwardData);
        let parts = lower(&Problem::Conv(conv), ConvForm::MERGED).unwrap();
        parts.iter().map(|c| (c.g, c.m, c.k)).collect::<Vec<_>>()
    };
    let sums = |conv: ConvBuilder| sums_of(conv, Layout::Nhwc);
    let conv = |size: u64, filter: u64| Conv::new(Scalar::BF16, 2, 8, 16, &[size, size], &[filter, filter]);
    // Stride 1: one part, all taps. 3x3 at stride 2: 4, 2, 2 and 1 taps, most first.
    assert_eq!(sums(conv(8, 3).pad(&[1, 1], &[1, 1])), [(1, 128, 144)]);
    assert_eq!(sums(conv(8, 3).stride(&[2, 2]).pad(&[1, 1], &[1, 1])), [(1, 32, 64), (1, 32, 32), (1, 32, 32), (1, 32, 16)]);
    // 1x1 at stride 2: one phase has the tap; the other rows get zeros as a whole, and the other columns of its own rows.
    assert_eq!(sums(conv(8, 1).stride(&[2, 2])), [(1, 32, 16), (1, 64, 0), (1, 32, 0)]);
    // In NCHW those columns are neighbours in memory of the results, and leave with them; not where a line ends between them.
    assert_eq!(sums_of(conv(8, 1).stride(&[2, 2]), Layout::Nchw), [(1, 32, 16), (1, 64, 0)]);
    assert_eq!(sums_of(conv(9, 1).stride(&[2, 2]), Layout::Nchw), [(1, 50, 16), (1, 72, 0), (1, 40, 0)]);
    // Windows side by side: every phase has one tap, so all are batch entries of one part.
    assert_eq!(sums(conv(32, 16).stride(&[16, 16])), [(256, 8, 16)]);
    // Stride and dilation with a common divisor: half of the phases are empty.
    let parts = sums(conv(8, 3).stride(&[2, 2]).dilation(&[2, 2]));
    assert_eq!(parts, [(1, 32, 144), (1, 64, 0), (1, 32, 0)]);
}

/// Geometry that other libraries got wrong: strides beyond the filter and the input, strides of 3 and 5, an output of one pixel, more
/// phase rows than rows, stride and dilation neither of which divides the other, 1x1 gradients whose other pixels are zeros, odd channels.
#[test]
fn known_bug_classes_of_strided_gradients() {
    let conv = |n, c, k, size: [u64; 2], filter: [u64; 2]| Conv::new(Scalar::F32, n, c, k, &size, &filter);
    let cases = [
        conv(2, 3, 5, [14, 14], [1, 1]).stride(&[2, 2]),
        conv(1, 2, 2, [9, 9], [5, 5]).stride(&[11, 11]).pad(&[2, 2], &[2, 2]),
        conv(1, 1, 2, [40, 3], [3, 3]).stride(&[35, 35]).pad(&[1, 1], &[1, 1]),
        conv(1, 2, 1, [13, 11], [4, 7]).stride(&[3, 5]),
        conv(2, 2, 2, [5, 5], [5, 5]).stride(&[2, 3]),
        conv(1, 2, 2, [2, 2], [3, 3]).stride(&[4, 4]).pad(&[3, 3], &[3, 3]),
        conv(2, 2, 2, [20, 21], [2, 5]).stride(&[2, 4]).dilation(&[4, 2]).pad(&[1, 0], &[0, 1]),
        conv(2, 2, 2, [20, 21], [2, 5]).stride(&[4, 2]).dilation(&[2, 4]).pad(&[1, 0], &[0, 1]),
        conv(2, 2, 2, [20, 21], [2, 5]).stride(&[3, 2]).dilation(&[2, 3]).pad(&[1, 0], &[0, 1]),
        conv(2, 9, 7, [7, 7], [3, 3]).pad(&[1, 1], &[1, 1]).dilation(&[2, 1]),
        conv(1, 2, 2, [7, 7], [1, 1]).stride(&[2, 2]).pad(&[3, 3], &[3, 3]),
        conv(2, 6, 6, [6, 6], [3, 3]).groups(6).stride(&[2, 2]).pad(&[0, 1], &[1, 0]),
        conv(2, 4, 6, [6, 6], [3, 3]).groups(2).pad(&[2, 2], &[2, 2]),
        // Planes that filter gradients pad to rows of 128 bytes.
        conv(3, 5, 6, [6, 6], [1, 1]),
        conv(2, 4, 6, [2, 18], [1, 1]).groups(2),
    ];
    for case in cases {
        for (direction, layout) in DIRECTIONS.into_iter().flat_map(|d| [(d, Layout::Nchw), (d, Layout::Nhwc)]) {
            let conv = problem(case.clone().layout(layout), direction);
            agree(&conv).unwrap();
        }
    }
}

#[test]
fn more_parts_than_a_program_can_have_are_refused_by_name() {
    let conv = Conv::new(Scalar::F32, 1, 1, 1, &[600, 600], &[17, 16]).stride(&[17, 16]).dilation(&[2, 3]);
    let refused = lower(&Problem::Conv(problem(conv, Direction::BackwardData)), ConvForm::MERGED).unwrap_err().to_string();
    assert!(refused.contains("272 or more phases") && refused.contains("smaller stride"), "{refused}");
}

/// A mask is no residual that is added: results are 0 where it is not above 0, and else what they are without it.
#[test]
fn masked_gradients() {
    let conv = Conv::new(Scalar::F32, 2, 3, 4, &[5, 6], &[3, 3]).stride(&[2, 1]).pad(&[1, 1], &[1, 1]);
    let masked = problem(conv.mask(), Direction::BackwardData);
    let data = TestData::new(&Problem::Conv(masked.clone()), 7, 1.0, 0.0).unwrap();
    let mask = data.added.given_to(Role::Residual).cloned().unwrap();
    let (mut kept, mut right) = (0, result(&masked, &data));
    for i in 0..masked.operand(Operand::C).1 as usize {
        let of = |start: u64| (start as usize + i) * 4..(start as usize + i) * 4 + 4;
        let y = f32::from_le_bytes(mask.bytes[of(mask.start)].try_into().unwrap());
        kept += usize::from(y > 0.0);
        if y <= 0.0 {
            right[of(data.c.start)].copy_from_slice(&0f32.to_le_bytes());
        }
    }
    assert!(kept > 20 && kept < 160, "{kept}");
    let verdict = Reference::new(&data, Samples::All).check(&right);
    assert!(verdict.passed(), "{verdict}");
    let unmasked = Reference::new(&data, Samples::All).check(&result(&masked, &data));
    assert!(!unmasked.passed(), "{unmasked}");
}

#[test]
fn tensors_over_31_bits_keep_their_offsets() {
    for direction in DIRECTIONS {
        let conv = Conv::new(Scalar::BF16, 600, 64, 64, &[256, 256], &[3, 3]).layout(Layout::Nhwc).pad(&[1, 1], &[1, 1]);
        let conv = problem(conv, direction);
        let parts = lower(&Problem::Conv(conv.clone()), ConvForm::MERGED).unwrap();
        for (operand, tensor) in [(Operand::A, &parts.lead.a), (Operand::B, &parts.lead.b), (Operand::C, &parts.lead.c)] {
            let (_, high) = tensor.view.span();
            assert!(high + 1 >= conv.operand(operand).1 as i64, "{direction:?} {operand:?}: {high}");
        }
        let last = [0, parts.lead.m as i64 - 1, parts.lead.n as i64 - 1];
        assert_eq!(parts.lead.c.view.access.at(last), Some(conv.operand(Operand::C).1 as i64 - 1));
    }
}
