//! Reads the assembly of AMD's GPUs as clang writes it (GCN 5, CDNA).
//!
//! Memory instructions of a wave are counted by `vmcnt` in the order of their issue. `s_waitcnt vmcnt(n)` waits until no more
//! than the last `n` of them are unfinished. On these generations stores count too.

use super::listing::{Class, Flow, Instruction, Listing, Tracked, Wait};

/// Reads one kernel out of an assembly file.
pub(super) fn parse(assembly: &str, entry: &str) -> Listing {
    let mut listing = Listing::default();
    let head = format!("{entry}:");
    let lines = assembly.lines().skip_while(|line| !line.starts_with(&head)).skip(1);
    for line in lines.take_while(|line| !line.starts_with(".Lfunc_end")) {
        let (code, comment) = line.split_once(';').unwrap_or((line, ""));
        if let Some((label, _)) = code.split_once(':').filter(|(label, _)| !label.starts_with(char::is_whitespace)) {
            listing.labels.push((label.into(), listing.instructions.len()));
            continue;
        }
        let text = code.trim();
        if text.starts_with(|c: char| c.is_ascii_lowercase()) {
            listing.instructions.push(instruction(text, comment));
        }
    }
    listing
}

fn instruction(text: &str, comment: &str) -> Instruction {
    let (opcode, operands) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let spilled = comment.contains("Folded");
    let class = if spilled { Class::Scratch } else { classify(opcode, operands) };
    let memory = opcode.starts_with("global_") || opcode.starts_with("flat_") || opcode.starts_with("buffer_");
    let tracked = if memory || opcode.starts_with("scratch_") { Tracked::Counter } else { Tracked::No };
    let wait = match class {
        Class::Wait => counter(operands, "vmcnt").map_or(Wait::No, Wait::Counter),
        _ => Wait::No,
    };
    let label = || operands.trim().to_string();
    let flow = match opcode {
        "s_branch" => Flow::Jump(label()),
        _ if opcode.starts_with("s_cbranch") => Flow::Branch(label()),
        "s_endpgm" | "s_setpc_b64" => Flow::End,
        _ => Flow::Next,
    };
    Instruction { text: text.split_whitespace().collect::<Vec<_>>().join(" "), class, tracked, wait, flow }
}

fn classify(opcode: &str, operands: &str) -> Class {
    let starts = |heads: &[&str]| heads.iter().any(|head| opcode.starts_with(head));
    match opcode {
        "s_waitcnt" if counter(operands, "vmcnt").is_some() => Class::Wait,
        "s_waitcnt" if counter(operands, "lgkmcnt").is_some() => Class::SharedWait,
        _ if opcode.contains("_load_lds_") || (opcode.starts_with("buffer_load") && operands.ends_with(" lds")) => Class::Copy,
        _ if starts(&["global_load", "flat_load"]) => Class::GlobalLoad,
        _ if starts(&["global_store", "flat_store", "global_atomic", "flat_atomic"]) => Class::GlobalStore,
        // Printed source reaches global memory by plain pointers; buffer instructions are private memory before gfx942.
        _ if starts(&["scratch_", "buffer_load", "buffer_store"]) => Class::Scratch,
        _ if starts(&["ds_read", "ds_load"]) => Class::SharedRead,
        _ if starts(&["ds_write", "ds_store"]) => Class::SharedStore,
        _ if starts(&["s_barrier"]) => Class::Barrier,
        _ if starts(&["s_branch", "s_cbranch", "s_endpgm", "s_setpc"]) => Class::Branch,
        _ if is_math(opcode) => Class::Math,
        _ => Class::Other,
    }
}

/// Sums and products of floating-point numbers, and matrix and dot products of anything.
fn is_math(opcode: &str) -> bool {
    let Some(name) = opcode.strip_prefix("v_") else { return false };
    let name = name.strip_prefix("pk_").unwrap_or(name);
    let starts = |heads: &[&str]| heads.iter().any(|head| name.starts_with(head));
    let float = name.split('_').any(|part| matches!(part, "f16" | "bf16" | "f32" | "f64"));
    starts(&["dot", "mfma", "smfmac", "wmma"])
        || float && starts(&["fma", "fmac", "mac", "mad", "add_", "sub_", "subrev_", "mul_"])
}

/// The number in `name(number)`.
fn counter(operands: &str, name: &str) -> Option<u32> {
    let tail = operands[operands.find(name)? + name.len()..].strip_prefix('(')?;
    tail.split(')').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_distinguished() {
        for (text, class) in [
            ("global_load_dwordx4 v[4:7], v[2:3], off offset:16", Class::GlobalLoad),
            ("global_load_lds_dwordx4 v[2:3], off", Class::Copy),
            ("s_waitcnt vmcnt(0)", Class::Wait),
            ("s_waitcnt vmcnt(3) lgkmcnt(0)", Class::Wait),
            ("s_waitcnt lgkmcnt(2)", Class::SharedWait),
            ("s_waitcnt expcnt(0)", Class::Other),
            ("ds_write_b128 v1, v[4:7]", Class::SharedStore),
            ("ds_read2st64_b64 v[4:7], v1 offset1:8", Class::SharedRead),
            ("v_mac_f32_e32 v1, v2, v3", Class::Math),
            ("v_fma_mix_f32 v1, v2, v3, v1 op_sel_hi:[1,1,0]", Class::Math),
            ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5], v[0:1]", Class::Math),
            ("v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]", Class::Math),
            ("v_mad_u32_u24 v1, v2, v3, v4", Class::Other),
            ("v_mul_lo_u32 v1, v2, v3", Class::Other),
            ("v_add_co_u32_e32 v1, vcc, v2, v3", Class::Other),
            ("v_cvt_f32_f16_e32 v1, v2", Class::Other),
            ("s_barrier", Class::Barrier),
            ("global_store_dwordx4 v[0:1], v[4:7], off", Class::GlobalStore),
            ("buffer_load_dword v1, v2, s[0:3], 0 offen", Class::Scratch),
            ("scratch_store_dword off, v1, s0", Class::Scratch),
            ("s_cbranch_scc1 .LBB0_2", Class::Branch),
        ] {
            assert_eq!(instruction(text, "").class, class, "{text}");
        }
        assert_eq!(instruction("global_load_dword v1, v2, s[0:1]", " 4-byte Folded Reload").class, Class::Scratch);
    }

    #[test]
    fn one_kernel_is_read() {
        let text = "other:\n\ts_endpgm\n.Lfunc_end0:\nmine:                ; @mine\n; %bb.0:\n\ts_load_dword s0, s[4:5], 0x0\n\
                    .LBB1_1:                ; loop\n\tglobal_load_dword v1, v[2:3], off\n\ts_waitcnt vmcnt(0)\n\t\
                    s_cbranch_scc0 .LBB1_1\n; %bb.2:\n\ts_endpgm\n\t.section x\n.Lfunc_end1:\n\ts_nop 0\n";
        let listing = parse(text, "mine");
        let texts: Vec<_> = listing.instructions.iter().map(|i| i.text.as_str()).collect();
        assert_eq!(texts[..3], ["s_load_dword s0, s[4:5], 0x0", "global_load_dword v1, v[2:3], off", "s_waitcnt vmcnt(0)"]);
        assert_eq!(texts.len(), 5);
        assert_eq!(listing.target(".LBB1_1"), Some(1));
        assert_eq!(listing.instructions[3].flow, Flow::Branch(".LBB1_1".into()));
        assert_eq!((listing.instructions[1].tracked, listing.instructions[2].wait), (Tracked::Counter, Wait::Counter(0)));
        assert_eq!(parse(text, "nobody"), Listing::default());
    }
}
