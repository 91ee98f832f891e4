//! Lowered views against index formulas written out by hand.

use proptest::prelude::*;
use tilewright_ir::{MathUnit, Scalar};
use tilewright_problem::contraction::{Contraction, Tensor};
use tilewright_problem::lower::{ConvForm, GroupForm, KOrder, Padding, Samples, lower};
use tilewright_problem::view::{COL, G, ROW};
use tilewright_problem::{Activation, Along, Conv, Gemm, Layout, Order, Problem};

fn at(tensor: &Tensor, g: u64, row: u64, col: u64) -> Option<u64> {
    let offset = tensor.view.access.at([g as i64, row as i64, col as i64])?;
    assert!((0..tensor.len as i64).contains(&offset), "{offset} of {}", tensor.len);
    Some(offset as u64)
}

fn extents(c: &Contraction) {
    assert_eq!(c.a.view.extent, [c.g, c.m, c.k]);
    assert_eq!(c.b.view.extent, [c.g, c.n, c.k]);
    assert_eq!(c.c.view.extent, [c.g, c.m, c.n]);
}

/// Input, filter, stride, dilation, padding in front and behind.
type Spatial = (u64, u64, u64, u64, u64, u64);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn products(
        size in (1u64..6, 1u64..6, 1u64..6, 1u64..4),
        flags in (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()),
        pad in (0u64..4, 0u64..4, 0u64..4),
        gap in (0u64..9, 0u64..9, 0u64..9),
        shared in (any::<bool>(), any::<bool>()),
        offsets in (0u64..70, 0u64..70, 0u64..70),
    ) {
        let (m, n, k, batch) = size;
        let (row_major, ta, tb, tc) = flags;
        let order = if row_major { Order::Row } else { Order::Col };
        let tight = Gemm::new(Scalar::F16, m, n, k).order(order).trans(ta, tb).trans_c(tc).batch(batch).build().unwrap();
        let (lda, ldb, ldc) = (tight.a.ld + pad.0, tight.b.ld + pad.1, tight.c.ld + pad.2);
        let lines = |matrix: usize| tight.lines(matrix).1;
        let (sa, sb, sc) = (lda * lines(0) + gap.0, ldb * lines(1) + gap.1, ldc * lines(2) + gap.2);
        let (sa, sb) = (if shared.0 { 0 } else { sa }, if shared.1 { 0 } else { sb });
        let gemm = Gemm::new(Scalar::F16, m, n, k).order(order).trans(ta, tb).trans_c(tc).batch(batch)
            .lda(lda).ldb(ldb).ldc(ldc).stride_a(sa).stride_b(sb).stride_c(sc).offsets(offsets.0, offsets.1, offsets.2)
            .build().unwrap();
        // The key says everything.
        prop_assert_eq!(&Problem::parse(&gemm.geometry()).unwrap(), &Problem::Gemm(gemm.clone()));
        let c = lower(&Problem::Gemm(gemm), ConvForm::PER_SAMPLE).unwrap().lead;
        extents(&c);
        let place = |row: u64, col: u64, trans: bool, ld: u64| {
            let (row, col) = if trans { (col, row) } else { (row, col) };
            if row_major { row * ld + col } else { row + col * ld }
        };
        for g in 0..batch { for i in 0..m { for j in 0..n { for l in 0..k {
            prop_assert_eq!(at(&c.a, g, i, l), Some(g * sa + place(i, l, ta, lda)));
            prop_assert_eq!(at(&c.b, g, j, l), Some(g * sb + place(l, j, tb, ldb)));
            prop_assert_eq!(at(&c.c, g, i, j), Some(g * sc + place(i, j, tc, ldc)));
        }}}}
        // Bias and residual, from their buffers' first elements on.
        let base = Gemm::new(Scalar::F16, m, n, k).order(order).trans(ta, tb).trans_c(tc).batch(batch).out_dtype(Scalar::F32);
        let along = if shared.0 { Along::M } else { Along::N };
        let (ldr, length) = (tight.c.ld + pad.0, if shared.0 { m } else { n });
        let (sr, sbias) = if batch == 1 { (0, 0) } else if shared.1 { (0, length + gap.0) } else { (ldr * lines(2), 0) };
        let added = base.bias_strided(along, sbias).activation(Activation::Silu).ldr(ldr).stride_r(sr).build().unwrap();
        prop_assert_eq!(&Problem::parse(&added.geometry()).unwrap(), &Problem::Gemm(added.clone()));
        let d = lower(&Problem::Gemm(added), ConvForm::PER_SAMPLE).unwrap().lead;
        let (bias, residual) = (d.bias().unwrap(), d.residual().unwrap());
        prop_assert_eq!((bias.along_n, bias.scalar, residual.scalar), (along == Along::N, Scalar::F32, Scalar::F32));
        prop_assert_eq!(d.activation(), Some(Activation::Silu));
        for g in 0..batch { for i in 0..m { for j in 0..n {
            let index = if along == Along::M { i } else { j };
            let found = bias.view.access.at([g as i64, index as i64, 0]).unwrap() as u64;
            prop_assert_eq!(found, g * sbias + index);
            prop_assert!(found < bias.len);
            prop_assert_eq!(at(residual, g, i, j), Some(g * sr + place(i, j, tc, ldr)));
            // Turned, the same elements are added to the same results.
            let t = d.oriented(true, MathUnit::Fma);
            let (turned, index) = (t.bias().unwrap(), [g as i64, index as i64, 0]);
            prop_assert_eq!((turned.along_n, turned.view.access.at(index)), (!bias.along_n, bias.view.access.at(index)));
            prop_assert_eq!(at(t.residual().unwrap(), g, j, i), at(residual, g, i, j));
        }}}
        for (tensor, offset) in [(&c.a, offsets.0), (&c.b, offsets.1), (&c.c, offsets.2)] {
            prop_assert!(tensor.view.is_affine_box().is_some());
            prop_assert_eq!(offset * 2 % u64::from(tensor.align), 0);
            prop_assert!(tensor.align == 256 || offset * 2 % u64::from(tensor.align * 2) != 0);
        }
        prop_assert!(batch == 1 || c.a.view.uses(G) != shared.0);
    }

    #[test]
    fn convolutions(
        dims in 1usize..4,
        nhwc in any::<bool>(),
        merged in any::<bool>(),
        sizes in (1u64..3, 1u64..3, 1u64..4, 1u64..3),
        spatial in proptest::array::uniform3((1u64..5, 1u64..4, 1u64..3, 1u64..3, 0u64..3, 0u64..3)),
        bias in any::<bool>(),
    ) {
        let (n, groups, cg, kg) = sizes;
        let list = |f: fn(&Spatial) -> u64| spatial[3 - dims..].iter().map(f).collect::<Vec<_>>();
        // No filter is larger than its padded input.
        let (input, filter) = (list(|s| s.0), list(|s| s.1.min((s.0 + s.4 + s.5 - 1) / s.3 + 1)));
        let (stride, dilation, begin, end) = (list(|s| s.2), list(|s| s.3), list(|s| s.4), list(|s| s.5));
        let conv = Conv::new(Scalar::F32, n, groups * cg, groups * kg, &input, &filter)
            .groups(groups).layout(if nhwc { Layout::Nhwc } else { Layout::Nchw })
            .stride(&stride).dilation(&dilation).pad(&begin, &end);
        let built = if bias { conv.bias() } else { conv }.build();
        prop_assert!(built.is_ok(), "{built:?}");
        let conv = built.unwrap();
        prop_assert_eq!(&Problem::parse(&Problem::Conv(conv.clone()).key()).unwrap(), &Problem::Conv(conv.clone()));
        let form = if merged { ConvForm::MERGED } else { ConvForm::PER_SAMPLE };
        let c = lower(&Problem::Conv(conv.clone()), form).unwrap().lead;
        extents(&c);
        // Three dimensions always, slowest first.
        let three = |list: &[u64], fill: u64| { let mut t = [fill; 3]; t[3 - dims..].copy_from_slice(list); t };
        let (input, filter, output) = (three(&input, 1), three(&filter, 1), three(&conv.output(), 1));
        let (stride, dilation, begin) = (three(&stride, 1), three(&dilation, 1), three(&begin, 0));
        let index = |p: [u64; 3], e: [u64; 3]| (p[0] * e[1] + p[1]) * e[2] + p[2];
        let volume = |e: [u64; 3]| e.iter().product::<u64>();
        let activation = |sample: u64, channel: u64, channels: u64, p: [u64; 3], e: [u64; 3]| {
            if nhwc { (sample * volume(e) + index(p, e)) * channels + channel } else { (sample * channels + channel) * volume(e) + index(p, e) }
        };
        let places = |e: [u64; 3]| (0..e[0]).flat_map(move |x| (0..e[1]).flat_map(move |y| (0..e[2]).map(move |z| [x, y, z])));
        for sample in 0..n { for group in 0..groups { for pixel in places(output) {
            let (g, row) = if merged { (group, sample * volume(output) + index(pixel, output)) } else { (sample * groups + group, index(pixel, output)) };
            for tap in places(filter) { for channel in 0..cg {
                let k = if nhwc { index(tap, filter) * cg + channel } else { channel * volume(filter) + index(tap, filter) };
                let place: Vec<i64> = (0..3).map(|d| (pixel[d] * stride[d] + tap[d] * dilation[d]) as i64 - begin[d] as i64).collect();
                let exists = (0..3).all(|d| (0..input[d] as i64).contains(&place[d]));
                let expected = exists.then(|| {
                    let p = [place[0] as u64, place[1] as u64, place[2] as u64];
                    activation(sample, group * cg + channel, groups * cg, p, input)
                });
                prop_assert_eq!(at(&c.a, g, row, k), expected);
                for column in 0..kg {
                    let filter_at = group * kg + column;
                    let weight = if nhwc { (filter_at * volume(filter) + index(tap, filter)) * cg + channel } else { (filter_at * cg + channel) * volume(filter) + index(tap, filter) };
                    prop_assert_eq!(at(&c.b, g, column, k), Some(weight));
                }
            }}
            for column in 0..kg {
                let channel = group * kg + column;
                prop_assert_eq!(at(&c.c, g, row, column), Some(activation(sample, channel, groups * kg, pixel, output)));
                if let Some(bias) = c.bias() {
                    prop_assert!(bias.along_n && bias.len == groups * kg);
                    prop_assert_eq!(bias.view.access.at([g as i64, column as i64, 0]), Some(channel as i64));
                }
            }
        }}}
        prop_assert_eq!(c.bias().is_some(), bias);
    }
}

fn conv(layout: Layout, groups: u64, filter: u64, pad: u64, form: ConvForm) -> Contraction {
    let conv =
        Conv::new(Scalar::F32, 4, 32, 64, &[8, 16], &[filter, filter]).layout(layout).groups(groups).pad(&[pad; 2], &[pad; 2]);
    lower(&Problem::Conv(conv.build().unwrap()), form).unwrap().lead
}

#[test]
fn pointwise_convolutions_are_plain_products() {
    let c = conv(Layout::Nhwc, 1, 1, 0, ConvForm::MERGED);
    let strides = |t: &Tensor| [G, ROW, COL].map(|axis| t.view.stride(axis));
    assert_eq!(strides(&c.a)[1..], [Some(32), Some(1)]);
    assert_eq!(strides(&c.b)[1..], [Some(32), Some(1)]);
    assert_eq!(strides(&c.c)[1..], [Some(64), Some(1)]);
    let c = conv(Layout::Nchw, 1, 1, 0, ConvForm::PER_SAMPLE);
    assert_eq!(strides(&c.a), [Some(32 * 128), Some(1), Some(128)]);
    assert_eq!(strides(&c.b), [Some(0), Some(32), Some(1)]);
    assert_eq!(strides(&c.c), [Some(64 * 128), Some(1), Some(128)]);
}

#[test]
fn weights_have_no_term_for_samples() {
    for layout in [Layout::Nchw, Layout::Nhwc] {
        let c = conv(layout, 1, 3, 1, ConvForm::PER_SAMPLE);
        assert!(!c.b.view.uses(G) && c.a.view.uses(G));
        // Weights are one plain matrix, whatever the filter.
        assert_eq!((c.b.view.stride(ROW), c.b.view.stride(COL)), (Some(288), Some(1)));
    }
}

#[test]
fn vectors_survive_lowering() {
    // Channels last: vectors along k stay within one tap's channels.
    let c = conv(Layout::Nhwc, 1, 3, 1, ConvForm::MERGED);
    assert_eq!((c.a.view.vector_width(COL, 16, 64), c.a.view.vector_width(ROW, 16, 64)), (16, 1));
    assert_eq!((c.b.view.vector_width(COL, 16, 64), c.c.view.vector_width(COL, 16, 64)), (16, 16));
    // Four groups: eight channels each.
    let c = conv(Layout::Nhwc, 4, 3, 1, ConvForm::PER_SAMPLE);
    assert_eq!(c.a.view.vector_width(COL, 16, 64), 8);
    // Channels first: rows of pixels, as long as nothing is padded and windows do not overlap rows.
    let c = conv(Layout::Nchw, 1, 1, 0, ConvForm::PER_SAMPLE);
    assert_eq!((c.a.view.vector_width(ROW, 16, 64), c.c.view.vector_width(ROW, 16, 64)), (16, 16));
    assert_eq!(c.a.view.vector_width(ROW, 4, 64), 4);
    assert_eq!(c.a.view.vector_width(ROW, 16, 2), 2);
    let c = conv(Layout::Nchw, 1, 3, 1, ConvForm::PER_SAMPLE);
    assert_eq!((c.a.view.vector_width(ROW, 16, 64), c.c.view.vector_width(ROW, 16, 64)), (1, 16));
}

#[test]
fn distances_that_are_never_gone_do_no_harm() {
    let far = 1 << 59;
    let conv = Conv::new(Scalar::F32, 2, 64, 3, &[9, 5], &[9, 1]).layout(Layout::Nhwc).stride(&[far, 1]).dilation(&[1, far]);
    let c = lower(&Problem::Conv(conv.build().unwrap()), ConvForm::MERGED).unwrap().lead;
    assert_eq!(at(&c.a, 0, 9, 70), Some(9 * 5 * 64 + 4 * 64 + 5 * 64 + 6));
    assert_eq!(c.a.view.span(), (0, 2 * 9 * 5 * 64 - 1));
}

/// The forms that a convolution has, by number; no other combination of choices lowers, except samples as rows.
#[test]
fn forms_are_combinations_that_a_convolution_has() {
    let cases = [
        ("conv_fwd_nhwc_n2_g1_c64_k64_in8x8_fil3x3", vec![0, 1]),
        ("conv_fwd_nhwc_n2_g1_c36_k64_in8x8_fil3x3", vec![0, 1, 3]),
        ("conv_fwd_nhwc_n2_g8_c32_k32_in8x8_fil3x3", vec![0, 1, 2, 3]),
        ("conv_fwd_nhwc_n2_g128_c128_k128_in8x8_fil3x3", vec![0, 1, 2, 4]),
        ("conv_fwd_nchw_n2_g1_c64_k64_in8x8_fil3x3", vec![0, 1, 3]),
        ("conv_bwdw_nchw_n3_g1_c64_k72_in12x12_fil1x1", vec![0, 3]),
    ];
    for (text, numbers) in cases {
        let problem = Problem::parse(&format!("{text}_st1x1_dil1x1_pb0x0_pe0x0_bias0_ws0_f16")).unwrap();
        let offered = ConvForm::of(&problem);
        assert_eq!(offered.iter().map(|form| form.number()).collect::<Vec<_>>(), numbers, "{text}");
        for batch in [Samples::Apart, Samples::Merged] {
            for groups in [GroupForm::Apart, GroupForm::Blocks, GroupForm::Columns] {
                for padding in [Padding::None, Padding::Channels, Padding::Planes] {
                    for k in [KOrder::InMemory, KOrder::TapsFirst] {
                        let form = ConvForm { batch, groups, padding, k, granule: 1 };
                        let exists = offered.contains(&form) || form == ConvForm::MERGED;
                        assert_eq!(lower(&problem, form).is_ok(), exists, "{text}: {form:?}");
                    }
                }
            }
        }
    }
}
