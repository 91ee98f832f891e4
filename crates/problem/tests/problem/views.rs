//! Views: the normal form against the transforms walked one by one, and the analyses against enumeration, on random chains.

use proptest::prelude::*;
use std::collections::HashMap;
use tilewright_problem::Problem;
use tilewright_problem::lower::{ConvForm, lower};
use tilewright_problem::view::{Chain, View, ViewBuilder};

/// Random choices from a list of bytes; zeros when it is used up, which ends every chain the simplest way.
struct Choices {
    bytes: Vec<u8>,
    next: usize,
}

impl Choices {
    fn pick(&mut self, n: u64) -> u64 {
        let byte = self.bytes.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        u64::from(byte) % n
    }
}

/// Builds a chain by random legal steps: a small tensor, up to seven transforms, then merges and broadcasts down to three
/// dimensions.
fn random_chain(bytes: Vec<u8>) -> Chain {
    let mut c = Choices { bytes, next: 0 };
    let mut dims: Vec<(String, u64)> = (0..1 + c.pick(4)).map(|i| (format!("d{i}"), 1 + c.pick(5))).collect();
    // Strides: dense, with gaps, or anything.
    let mut strides = vec![0; dims.len()];
    let mut stride = 1;
    let style = c.pick(3);
    for i in (0..dims.len()).rev() {
        strides[i] = if style == 2 { c.pick(20) as i64 - 3 } else { stride };
        stride = strides[i].max(1) * dims[i].1 as i64 + if style == 1 { c.pick(4) as i64 } else { 0 };
    }
    let tensor: Vec<(&str, u64, i64)> = dims.iter().zip(&strides).map(|((n, e), s)| (n.as_str(), *e, *s)).collect();
    let mut builder = ViewBuilder::tensor(&tensor);
    let mut fresh = 0;
    let mut name = || {
        fresh += 1;
        format!("u{fresh}")
    };
    for _ in 0..c.pick(8) {
        let at = c.pick(dims.len() as u64) as usize;
        let (dim, extent) = dims[at].clone();
        match c.pick(7) {
            0 => {
                let (before, behind) = (c.pick(4), c.pick(4));
                builder = builder.pad(&dim, before, behind);
                dims[at].1 += before + behind;
            }
            1 => {
                let begin = c.pick(extent);
                let end = begin + 1 + c.pick(extent - begin);
                builder = builder.slice(&dim, begin, end);
                dims[at].1 = end - begin;
            }
            2 => {
                // Windows: (o - 1) * stride + (f - 1) * dilation stays below the extent.
                let (stride, dilation) = (1 + c.pick(3), 1 + c.pick(3));
                let taps = 1 + c.pick((extent - 1) / dilation + 1);
                let windows = (extent - 1 - (taps - 1) * dilation) / stride + 1;
                let (o, f) = (name(), name());
                builder = builder.embed(&dim, &[(&o, windows, stride as i64), (&f, taps, dilation as i64)]);
                dims[at] = (o, windows);
                dims.push((f, taps));
            }
            3 if dims.len() > 1 => {
                let other = (at + 1 + c.pick(dims.len() as u64 - 1) as usize) % dims.len();
                let (second, size) = dims[other].clone();
                if extent * size <= 60 {
                    let merged = name();
                    builder = builder.merge(&[&dim, &second], &merged);
                    dims[at] = (merged, extent * size);
                    dims.remove(other);
                }
            }
            4 => {
                let divisors: Vec<u64> = (1..=extent).filter(|d| extent.is_multiple_of(*d)).collect();
                let outer = divisors[c.pick(divisors.len() as u64) as usize];
                let (a, b) = (name(), name());
                builder = builder.unmerge(&dim, &[(&a, outer), (&b, extent / outer)]);
                dims[at] = (a, outer);
                dims.push((b, extent / outer));
            }
            5 if dims.len() < 5 => {
                let (new, size) = (name(), 1 + c.pick(3));
                builder = builder.broadcast(&new, size);
                dims.push((new, size));
            }
            _ => {
                let new = name();
                builder = builder.pass_through(&dim, &new);
                dims[at].0 = new;
            }
        }
    }
    while dims.len() > 3 {
        let second = dims.remove(c.pick(dims.len() as u64) as usize);
        let at = c.pick(dims.len() as u64) as usize;
        let merged = name();
        builder = builder.merge(&[&dims[at].0, &second.0], &merged);
        dims[at] = (merged, dims[at].1 * second.1);
    }
    while dims.len() < 3 {
        let new = name();
        let size = 1 + c.pick(3);
        builder = builder.broadcast(&new, size);
        dims.push((new, size));
    }
    builder.chain(&dims[0].0, &dims[1].0, &dims[2].0).expect("legal steps only")
}

fn points(extent: [u64; 3]) -> impl Iterator<Item = [i64; 3]> {
    let [g, r, c] = extent.map(|e| e as i64);
    (0..g).flat_map(move |g| (0..r).flat_map(move |r| (0..c).map(move |c| [g, r, c])))
}

fn small(chain: &Chain) -> bool {
    chain.extent.iter().product::<u64>() <= 20_000
}

fn check_analyses(view: &View, align: u32) -> Result<(), TestCaseError> {
    let at: HashMap<[i64; 3], Option<i64>> = points(view.extent).map(|p| (p, view.access.at(p))).collect();
    let span = view.span();
    prop_assert!(points(view.extent).all(|p| (span.0..=span.1).contains(&view.access.offset.at(&p))));
    if let Some(plain) = view.is_affine_box() {
        for (p, found) in &at {
            let inside = (0..3).all(|d| (plain.valid[d].0..plain.valid[d].1).contains(&p[d]));
            let offset = plain.base + (0..3).map(|d| plain.strides[d] * p[d]).sum::<i64>();
            prop_assert_eq!(*found, inside.then_some(offset));
        }
    }
    for axis in 0..3 {
        let step = |p: &[i64; 3], j: i64| {
            let mut q = *p;
            q[axis] += j;
            q
        };
        if let Some(stride) = view.stride(axis) {
            for (p, found) in &at {
                if let Some(next) = at.get(&step(p, 1)) {
                    prop_assert_eq!(*next, found.map(|f| f + stride));
                }
            }
        }
        if !view.uses(axis) {
            for (p, found) in &at {
                let mut zero = *p;
                zero[axis] = 0;
                prop_assert_eq!(found, &at[&zero]);
            }
        }
        if !view.bounded_by(axis) {
            for (p, found) in &at {
                let mut zero = *p;
                zero[axis] = 0;
                prop_assert_eq!(found.is_some(), at[&zero].is_some());
            }
        }
        let run = view.run(axis) as i64;
        for (p, first) in at.iter().filter(|(p, _)| run > 1 && (p[axis] + 1) % run != 0) {
            if let (Some(first), Some(Some(next))) = (first, at.get(&step(p, 1))) {
                prop_assert_eq!(*next, first + 1, "axis {} run {} at {:?}", axis, run, p);
            }
        }
        let width = i64::from(view.vector_width(axis, 16, align));
        for (p, first) in at.iter().filter(|(p, _)| p[axis] % width == 0 && p[axis] + width <= view.extent[axis] as i64) {
            for j in 0..width {
                prop_assert_eq!(at[&step(p, j)], first.map(|f| f + j), "axis {} width {} at {:?}", axis, width, p);
            }
            prop_assert!(first.is_none_or(|f| f % width == 0));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn normal_form_agrees_with_the_transforms(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let chain = random_chain(bytes);
        prop_assume!(small(&chain));
        let view = chain.view();
        prop_assert_eq!(view.extent, chain.extent);
        for p in points(chain.extent) {
            prop_assert_eq!(view.access.at(p), chain.at(p), "{:?}: {:?} of {:?}", p, &view, &chain);
        }
    }

    #[test]
    fn analyses_agree_with_enumeration(bytes in proptest::collection::vec(any::<u8>(), 0..80), align in 0u32..5) {
        let chain = random_chain(bytes);
        prop_assume!(small(&chain));
        check_analyses(&chain.view(), 1 << align)?;
    }
}

/// Dimensions give the same elements as the view, and windows are recognised as such.
#[test]
fn views_as_dimensions() {
    let convs = [
        "conv_fwd_nhwc_n2_g1_c8_k4_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws0_bf16",
        "conv_fwd_nhwc_n2_g1_c8_k4_in9x7_fil3x3_st2x1_dil1x2_pb1x1_pe1x0_bias0_ws0_bf16",
        "conv_fwd_nhwc_n2_g1_c8_k4_in9x7_fil3x2_st3x1_dil2x2_pb0x0_pe0x0_bias0_ws0_bf16",
        "conv_bwdw_nhwc_n3_g1_c8_k4_in9x7_fil3x3_st2x1_dil1x2_pb1x1_pe1x0_bias0_ws0_bf16",
        "conv_bwdd_nhwc_n2_g1_c8_k4_in9x7_fil3x3_st2x2_dil1x1_pb1x1_pe1x1_bias0_ws0_bf16",
        "conv_bwdd_nhwc_n2_g2_c8_k4_in9x7_fil3x3_st2x3_dil3x1_pb2x1_pe1x1_bias0_ws0_bf16",
        "conv_fwd_nchw_n2_g2_c8_k4_in9x7_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias0_ws0_bf16",
    ];
    for (text, form) in convs.iter().flat_map(|text| [ConvForm::MERGED, ConvForm::PER_SAMPLE].map(|form| (text, form))) {
        let parts = lower(&Problem::parse(text).unwrap(), form).unwrap();
        for part in std::iter::once(&parts.lead).chain(&parts.rest) {
            for view in [&part.a.view, &part.b.view, &part.c.view] {
                let dims = view.dims().unwrap_or_else(|| panic!("{text}: {view:?}"));
                let [g, rows, cols] = view.extent.map(|e| e as i64);
                for (g, row, col) in (0..g).flat_map(|g| (0..rows).flat_map(move |r| (0..cols).map(move |c| (g, r, c)))) {
                    let digit = |i: usize| dims.digits[i].form().at(&[g, row, col]);
                    let at: Vec<i64> = dims
                        .dims
                        .iter()
                        .map(|d| d.start + d.steps.iter().map(|(i, step)| step * digit(*i)).sum::<i64>())
                        .collect();
                    let within = dims.dims.iter().zip(&at).all(|(d, at)| (0..d.extent).contains(at));
                    let offset = dims.base + dims.dims.iter().zip(&at).map(|(d, at)| d.stride * at).sum::<i64>();
                    assert_eq!(within.then_some(offset), view.access.at([g, row, col]), "{text} {form:?} ({g}, {row}, {col})");
                }
            }
        }
        if parts.rest.is_empty() && text.contains("nhwc") {
            let windows = [&parts.lead.a.view, &parts.lead.b.view][usize::from(text.contains("bwdw"))].dims().unwrap();
            // Channels, width, height, samples; in each spatial dimension a pixel and a tap.
            assert_eq!(windows.dims.iter().map(|d| d.steps.len()).collect::<Vec<_>>(), [1, 2, 2, 1], "{text}: {windows:?}");
        }
    }
}
