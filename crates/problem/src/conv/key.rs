//! The canonical text of convolutions.

use super::{Conv, Direction, Layout, joined};
use crate::error::{DEFAULT_WORKSPACE, ProblemError, default_out, names_out_dtype};
use crate::math::Math;
use crate::text;
use std::fmt::Write;

impl Conv {
    /// The canonical text, e.g. `conv_fwd_nchw_n64_g1_c64_k64_in56x56_fil3x3_st1x1_dil1x1_pb1x1_pe1x1_bias1_ws1073741824_f32`
    /// (workspace in bytes).
    pub fn key(&self) -> String {
        let mut key = format!("conv_{}_{}", self.direction.name(), self.layout.name());
        // Writing to a String cannot fail.
        let _ = write!(key, "_n{}_g{}_c{}_k{}", self.n, self.groups, self.c, self.k);
        let lists = [&self.input, &self.filter, &self.stride, &self.dilation, &self.pad_begin, &self.pad_end];
        for (name, list) in LISTS.iter().zip(lists) {
            let _ = write!(key, "_{name}{}", joined(list));
        }
        let _ = write!(key, "_bias{}_ws{}_{}", u8::from(self.bias), self.workspace, self.math.dtype_name(self.dtype));
        if names_out_dtype(self.dtype, self.out_dtype) {
            let _ = write!(key, "_out{}", self.out_dtype);
        }
        if let Some(activation) = self.activation {
            let _ = write!(key, "_act{activation}");
        }
        if self.residual {
            key.push_str(if self.mask { "_mask1" } else { "_res1" });
        }
        for reduction in &self.reductions {
            let _ = write!(key, "_red{reduction}");
        }
        if self.drop_c {
            key.push_str("_noc");
        }
        key
    }
    /// Reads [`Conv::key`] back. Keys may be in any order; `g`, `st`, `dil`, `pb`, `pe`, `bias` and `ws` may be left out,
    /// as may `outf32` (element type of the output), `actrelu` (an activation), `res1` (a residual), `mask1` (one that
    /// masks), `redsum:bm` (reductions, see [`crate::Reduction`]) and `noc` (the result is not stored), which are printed only where they say
    /// something.
    ///
    /// # Errors
    /// [`ProblemError::Text`] for unknown, repeated, missing or malformed keys; [`ProblemError`] of [`Conv::validate`].
    pub fn parse_key(text: &str) -> Result<Conv, ProblemError> {
        let fail = |reason: String| ProblemError::text(text, reason);
        let once = |given: bool, what: String| if given { Err(fail(format!("{what} is given twice"))) } else { Ok(()) };
        let mut tokens = text.split('_');
        let head = [tokens.next(), tokens.next(), tokens.next()];
        let direction = head[1].and_then(Direction::from_name);
        let layout = head[2].and_then(Layout::from_name);
        let (Some("conv"), Some(direction), Some(layout)) = (head[0], direction, layout) else {
            return Err(fail("must start with conv_DIRECTION_LAYOUT, e.g. conv_fwd_nchw or conv_fwd_nhwc".to_string()));
        };
        let mut numbers: [Option<u64>; 8] = [None; 8];
        let mut lists: [Option<Vec<u64>>; 6] = [const { None }; 6];
        let (mut dtype, mut out, mut activation) = (None, None, None);
        let (mut reductions, mut drop_c) = (Vec::new(), false);
        for token in tokens {
            if token == "noc" {
                once(std::mem::replace(&mut drop_c, true), format!("`{token}`"))?;
                continue;
            }
            if let Some(reduction) = token.strip_prefix("red") {
                reductions.push(reduction.parse().map_err(&fail)?);
                continue;
            }
            if let Some(element) = Math::of_name(token) {
                once(dtype.replace(element).is_some(), format!("`{token}`: the element type"))?;
                continue;
            }
            if let Some(scalar) = token.strip_prefix("out").and_then(text::dtype) {
                once(out.replace(scalar).is_some(), format!("`{token}`: the element type of the output"))?;
                continue;
            }
            if let Some(name) = token.strip_prefix("act") {
                let found = text::parse_activation(token, name).map_err(&fail)?;
                once(activation.replace(found).is_some(), format!("`{token}`: the activation"))?;
                continue;
            }
            let split = token.find(|ch: char| ch.is_ascii_digit()).unwrap_or(token.len());
            let (name, digits) = token.split_at(split);
            if let Some(index) = NUMBERS.iter().position(|&key| key == name) {
                let value = text::number(digits).map_err(|reason| fail(format!("`{token}`: {reason}")))?;
                once(numbers[index].replace(value).is_some(), format!("key `{name}`"))?;
            } else if let Some(index) = LISTS.iter().position(|&key| key == name) {
                let values = digits.split('x').map(text::number).collect::<Result<Vec<_>, _>>();
                let values =
                    values.map_err(|reason| fail(format!("`{token}`: {reason}; sizes are joined by x, e.g. {name}3x3")))?;
                once(lists[index].replace(values).is_some(), format!("key `{name}`"))?;
            } else {
                let known = NUMBERS.iter().chain(&LISTS).copied().collect::<Vec<_>>().join(", ");
                return Err(fail(format!("unknown key in `{token}`; the keys are {known} and the element type, e.g. f32")));
            }
        }
        let missing = |name: &str| fail(format!("key `{name}` is missing"));
        let [n, groups, c, k, bias, workspace, residual, mask] = numbers;
        let [input, filter, stride, dilation, pad_begin, pad_end] = lists;
        let input = input.ok_or_else(|| missing("in"))?;
        let dims = input.len();
        let flag = |name: &str, value: Option<u64>| match value {
            None | Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(other) => Err(fail(format!("`{name}{other}`: must be 0 or 1"))),
        };
        let (dtype, math) = dtype.ok_or_else(|| fail(format!("the element type is missing ({})", crate::math::NAMES)))?;
        let mask = flag("mask", mask)?;
        let residual = flag("res", residual)?;
        if mask && residual {
            return Err(fail("`mask1` and `res1` are one tensor: it is added, or masks; leave one of them out".to_string()));
        }
        let conv = Conv {
            direction,
            layout,
            dtype,
            math,
            out_dtype: out.unwrap_or(default_out(dtype)),
            n: n.ok_or_else(|| missing("n"))?,
            groups: groups.unwrap_or(1),
            c: c.ok_or_else(|| missing("c"))?,
            k: k.ok_or_else(|| missing("k"))?,
            input,
            filter: filter.ok_or_else(|| missing("fil"))?,
            stride: stride.unwrap_or_else(|| vec![1; dims]),
            dilation: dilation.unwrap_or_else(|| vec![1; dims]),
            pad_begin: pad_begin.unwrap_or_else(|| vec![0; dims]),
            pad_end: pad_end.unwrap_or_else(|| vec![0; dims]),
            bias: flag("bias", bias)?,
            activation,
            reductions,
            drop_c,
            residual: residual || mask,
            mask,
            workspace: workspace.unwrap_or(DEFAULT_WORKSPACE),
        };
        conv.validate()?;
        Ok(conv)
    }
}

const NUMBERS: [&str; 8] = ["n", "g", "c", "k", "bias", "ws", "res", "mask"];
const LISTS: [&str; 6] = ["in", "fil", "st", "dil", "pb", "pe"];

impl Direction {
    /// All of them.
    pub const ALL: [Direction; 3] = [Direction::Forward, Direction::BackwardData, Direction::BackwardWeight];
    /// Short name: `fwd`, `bwdd`, `bwdw`.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "fwd",
            Direction::BackwardData => "bwdd",
            Direction::BackwardWeight => "bwdw",
        }
    }
    /// In full: `forward`, `backward-data`, `backward-weight`.
    pub const fn long_name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::BackwardData => "backward-data",
            Direction::BackwardWeight => "backward-weight",
        }
    }
    /// The direction of a short name.
    pub fn from_name(name: &str) -> Option<Direction> {
        Direction::ALL.into_iter().find(|d| d.name() == name)
    }
    /// The direction of a name, short or in full.
    pub fn named(name: &str) -> Option<Direction> {
        Direction::ALL.into_iter().find(|d| d.name() == name || d.long_name() == name)
    }
}

impl Layout {
    /// Short name: `nchw`, `nhwc`, whatever the number of spatial dimensions.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Nchw => "nchw",
            Layout::Nhwc => "nhwc",
        }
    }
    /// The layout of a short name.
    pub fn from_name(name: &str) -> Option<Layout> {
        [Layout::Nchw, Layout::Nhwc].into_iter().find(|l| l.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::base;
    use super::*;
    use crate::epilogue::Activation;
    use tilewright_ir::Scalar;

    #[test]
    fn keys_round_trip() {
        let conv = base().layout(Layout::Nhwc).groups(2).pad(&[1, 0], &[0, 2]).bias().workspace(77).build().unwrap();
        assert_eq!(conv.key(), "conv_fwd_nhwc_n2_g2_c8_k6_in9x7_fil3x2_st1x1_dil1x1_pb1x0_pe0x2_bias1_ws77_f32");
        assert_eq!(Conv::parse_key(&conv.key()).unwrap(), conv);
        let short = Conv::parse_key("conv_fwd_nchw_n2_c8_k6_in9x7_fil3x2_bf16").unwrap();
        assert_eq!(short, Conv::new(Scalar::BF16, 2, 8, 6, &[9, 7], &[3, 2]).build().unwrap());
        let masked = base().mask().build().unwrap();
        assert!(masked.key().ends_with("_mask1") && Conv::parse_key(&masked.key()) == Ok(masked.clone()), "{}", masked.key());
        assert!(Conv::parse_key(&format!("{}_res1", masked.key())).unwrap_err().to_string().contains("one tensor"));
        let all = base().out_dtype(Scalar::BF16).activation(Activation::GeluTanh).residual().build().unwrap();
        assert!(all.key().ends_with("_bias0_ws1073741824_f32_outbf16_actgelutanh_res1"), "{}", all.key());
        assert_eq!(Conv::parse_key(&all.key()).unwrap(), all);
        for out in [Scalar::I8, Scalar::I32, Scalar::F16] {
            let bytes = Conv::new(Scalar::I8, 2, 8, 6, &[9, 7], &[3, 2]).out_dtype(out).build().unwrap();
            assert_eq!(Conv::parse_key(&bytes.key()).unwrap(), bytes);
        }
        let statistics =
            base().reduce("sum:bm".parse().unwrap()).reduce("sumsq:bm:stored".parse().unwrap()).drop_c().build().unwrap();
        assert!(statistics.key().ends_with("_f32_redsum:bm_redsumsq:bm:stored_noc"), "{}", statistics.key());
        assert_eq!(Conv::parse_key(&statistics.key()).unwrap(), statistics);
    }

    #[test]
    fn malformed_keys_are_refused() {
        for (key, part) in [
            ("conv_fwd", "must start with"),
            ("conv_fwd_nchw_n2_c8_k6_fil3_f32", "`in` is missing"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3", "element type is missing"),
            ("conv_fwd_nchw_n2_n2_c8_k6_in9_fil3_f32", "`n` is given twice"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_f64", "given twice"),
            ("conv_fwd_nchw_n2_c8_k6_in9x_fil3_f32", "in9x"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_q5_f32", "unknown key"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_bias2_f32", "must be 0 or 1"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_res2_f32", "`res2`: must be 0 or 1"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_actelu", "relu, gelu, gelutanh, silu"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_outf64", "out_dtype = f64"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_redsum:q", "`q` is no axis"),
            ("conv_fwd_nchw_n2_c8_k6_in9_fil3_f32_noc", "nothing is left"),
            ("conv_bwdw_nchw_n2_c8_k6_in9_fil3_f32_redsum:bm", "leave b out"),
            ("conv_bwdd_nchw_n2_c8_k6_in9_fil3_st2_f32_redsum:bn", "computed in separate parts"),
            ("conv_bwdd_nchw_n2_c8_k6_in10_fil3_st2_f32_redmax:m5", "reduce over all pixels (m)"),
        ] {
            let message = Conv::parse_key(key).expect_err(key).to_string();
            assert!(message.contains(part), "`{message}` lacks `{part}`");
        }
    }
}
