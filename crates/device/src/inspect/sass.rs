//! Reads the machine code of NVIDIA's GPUs as `nvdisasm -hex` writes it (Volta and later).
//!
//! Waits are no instructions of their own there. Each instruction carries control bits. They name the scoreboard that it holds
//! until its result has arrived, and the set of scoreboards that must be free before it starts. A load has arrived for its
//! readers when an instruction has waited for its scoreboard. Mostly that is the first instruction that reads a loaded register.
//! At times it is an earlier one, because there are only six scoreboards and an unrelated read may share one. The bits are
//! undocumented; where they lie is known from published work (Jia and others, "Dissecting the NVIDIA Volta GPU Architecture via
//! Microbenchmarking", 2018). Asynchronous copies (`LDGSTS`) are closed into groups by `LDGDEPBAR` and waited for by
//! `DEPBAR.LE SB0, n`. Bulk copies (`UTMALDG`) arrive at transaction barriers in shared memory, whose phase `SYNCS.PHASECHK` asks
//! for; which copy it waits for the code does not say. Warpgroup instructions (`HGMMA`) are waited for by `WARPGROUP.DEPBAR`, or
//! by the next of them where it holds a scoreboard.

use super::listing::{Class, Flow, Instruction, Listing, Tracked, Wait};

/// Control bits in the upper half of an encoding: scoreboard held (3 bits, 7 = none), scoreboards waited for (6 bits).
const HELD_SHIFT: u32 = 46;
const WAITED_SHIFT: u32 = 52;

/// Reads one kernel out of a disassembled cubin.
pub(super) fn parse(disassembly: &str, entry: &str) -> Listing {
    let mut listing = Listing::default();
    let section = format!(".text.{entry}:");
    let lines = disassembly.lines().skip_while(|line| line.trim_end() != section).skip(1);
    // The text of an instruction until the second half of its encoding is read from the line below.
    let mut open: Option<&str> = None;
    for line in lines.take_while(|line| !line.contains("\t.section\t") && !line.starts_with("//---")) {
        if let Some(label) = line.trim_end().strip_suffix(':').filter(|l| !l.starts_with(char::is_whitespace)) {
            listing.labels.push((label.into(), listing.instructions.len()));
        } else if let Some((text, _)) = line.split_once("*/").and_then(|(_, tail)| tail.split_once(';')) {
            open = Some(text.trim());
        } else if let (Some(text), Some(upper)) = (open, encoding(line)) {
            listing.instructions.push(instruction(text, upper));
            open = None;
        }
    }
    let groups = listing.instructions.iter().any(|i| i.tracked == Tracked::Commit);
    for i in &mut listing.instructions {
        // Where there are no groups of copies, the same instruction waits for what else holds the scoreboard.
        if let (false, Wait::Groups(_)) = (groups, i.wait) {
            (i.wait, i.class) = (Wait::Scoreboards(1), Class::Other);
        }
    }
    listing
}

/// The number in a line that holds nothing but `/* 0x... */`.
fn encoding(line: &str) -> Option<u64> {
    let digits = line.trim().strip_prefix("/*")?.strip_suffix("*/")?.trim().strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok()
}

fn instruction(text: &str, upper: u64) -> Instruction {
    let guarded = text.starts_with('@');
    let code = if guarded { text.split_once(' ').map_or("", |(_, code)| code) } else { text };
    let (opcode, operands) = code.split_once(' ').unwrap_or((code, ""));
    let base = opcode.split('.').next().unwrap_or_default();
    // Some instructions are there for their side effects on the assembler's mind and never run.
    let mut class = if text.starts_with("@!PT") { Class::Other } else { classify(opcode, base, operands) };
    let (held, waited) = ((upper >> HELD_SHIFT & 7) as u8, (upper >> WAITED_SHIFT & 0x3f) as u8);
    let tracked = match base {
        "LDGSTS" => Tracked::InGroup,
        "LDGDEPBAR" => Tracked::Commit,
        // What its scoreboard tells is that its operands were read.
        "UTMALDG" => Tracked::No,
        _ if held < 6 => Tracked::Scoreboard(held),
        _ => Tracked::No,
    };
    let wait = match base {
        "DEPBAR" => depbar(operands),
        _ if waited != 0 => Wait::Scoreboards(waited),
        _ => Wait::No,
    };
    if let ("DEPBAR", Wait::Scoreboards(_) | Wait::No) = (base, wait) {
        class = Class::Other;
    }
    let label = operands.split_once("`(").and_then(|(_, tail)| tail.split_once(')')).map(|(label, _)| label.to_string());
    // `BRA P0, label` and `BRA.U UP0, label` branch on an operand.
    let conditional = guarded || operands.contains(',');
    let flow = match (base, label) {
        ("BRA" | "JMP", Some(label)) if conditional => Flow::Branch(label),
        ("BRA" | "JMP", Some(label)) => Flow::Jump(label),
        ("EXIT" | "RET", _) if !guarded => Flow::End,
        // What ends here for some lanes goes on for the others.
        _ => Flow::Next,
    };
    Instruction { text: text.split_whitespace().collect::<Vec<_>>().join(" "), class, tracked, wait, flow }
}

/// `DEPBAR.LE SB0, 0x1`: groups of copies are counted on scoreboard 0. Another one's count is taken for zero, which can only
/// let a wait look earlier than it is.
fn depbar(operands: &str) -> Wait {
    let Some((scoreboard, count)) = operands.split_once(',') else { return Wait::No };
    let count = count.trim().strip_prefix("0x").and_then(|n| u32::from_str_radix(n, 16).ok());
    match (scoreboard.trim().strip_prefix("SB").and_then(|n| n.parse::<u32>().ok()), count) {
        (Some(0), Some(count)) => Wait::Groups(count),
        (Some(n @ 1..6), _) => Wait::Scoreboards(1 << n),
        _ => Wait::No,
    }
}

fn classify(opcode: &str, base: &str, operands: &str) -> Class {
    match base {
        "LDG" | "LD" => Class::GlobalLoad,
        "LDGSTS" | "UTMALDG" | "UBLKCP" => Class::Copy,
        "DEPBAR" => Class::Wait,
        "SYNCS" if opcode.starts_with("SYNCS.PHASECHK") => Class::Wait,
        "WARPGROUP" if opcode.starts_with("WARPGROUP.DEPBAR") => Class::MathWait,
        "STS" | "STSM" | "ATOMS" => Class::SharedStore,
        "LDS" | "LDSM" => Class::SharedRead,
        "STG" | "ST" | "UTMASTG" | "RED" | "ATOM" | "ATOMG" => Class::GlobalStore,
        "LDL" | "STL" => Class::Scratch,
        "BAR" | "SYNCS" => Class::Barrier,
        "BRA" | "JMP" | "BRX" | "EXIT" | "RET" => Class::Branch,
        // A way to write a constant.
        "HFMA2" if operands.contains("-RZ, RZ") => Class::Other,
        "FFMA" | "FFMA2" | "FADD" | "FADD2" | "FMUL" | "FMUL2" | "DFMA" | "DADD" | "DMUL" | "HFMA2" | "HADD2" | "HMUL2" => {
            Class::Math
        }
        "HMMA" | "DMMA" | "IMMA" | "QMMA" | "HGMMA" | "QGMMA" | "IGMMA" => Class::Math,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\t.section\t.text.mine,\"ax\",@progbits\nmine:\n.text.mine:\n        \
        /*0000*/                   S2R R0, SR_TID.X ;                        /* 0x0000000000007919 */\n\
                                                                            /* 0x000e2e0000002500 */\n\
        .L_x_0:\n        \
        /*0010*/              @!P0 LDG.E.128.CONSTANT R4, desc[UR4][R2.64+0x10] ; /* 0x0000000000007919 */\n\
                                                                            /* 0x000ea20000002500 */\n        \
        /*0020*/                   STS.128 [R0], R4 ;                        /* 0x0000000000007919 */\n\
                                                                            /* 0x004fe20000002500 */\n        \
        /*0030*/               @P0 BRA `(.L_x_0) ;                           /* 0x0000000000007919 */\n\
                                                                            /* 0x000fea0000002500 */\n        \
        /*0040*/                   EXIT ;                                    /* 0x0000000000007919 */\n\
                                                                            /* 0x000fea0000002500 */\n\
        .L_x_1:\n\t.section\t.text.other\n        /*0000*/ EXIT ; /* 0x00 */\n /* 0x00 */\n";

    #[test]
    fn bulk_copies_and_warpgroup_instructions_have_their_classes() {
        let class = |text| instruction(text, 7 << HELD_SHIFT).class;
        assert_eq!(class("UTMALDG.2D [UR8], [UR4]"), Class::Copy);
        assert_eq!(class("UTMASTG.2D [UR8], [UR4]"), Class::GlobalStore);
        assert_eq!(class("HGMMA.64x128x16.F32 R24, gdesc[UR4], R24"), Class::Math);
        assert_eq!(class("@!P0 SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R2+URZ], R3"), Class::Wait);
        assert_eq!(class("SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR5], RZ"), Class::Barrier);
        assert_eq!(class("WARPGROUP.DEPBAR.LE gsb0, 0x1"), Class::MathWait);
        assert_eq!(class("WARPGROUP.ARRIVE"), Class::Other);
        assert_eq!(instruction("UTMALDG.2D [UR8], [UR4]", 2 << HELD_SHIFT).tracked, Tracked::No);
    }

    #[test]
    fn control_bits_are_read() {
        let listing = parse(TEXT, "mine");
        let [s2r, load, store, branch, exit] = &listing.instructions[..] else { panic!("{listing:?}") };
        assert_eq!((s2r.class, s2r.tracked, s2r.wait), (Class::Other, Tracked::Scoreboard(0), Wait::No));
        assert_eq!((load.class, load.tracked), (Class::GlobalLoad, Tracked::Scoreboard(2)));
        assert_eq!((store.class, store.tracked, store.wait), (Class::SharedStore, Tracked::No, Wait::Scoreboards(0b100)));
        assert_eq!((branch.flow.clone(), exit.flow.clone()), (Flow::Branch(".L_x_0".into()), Flow::End));
        assert_eq!(listing.target(".L_x_0"), Some(1));
        assert_eq!(parse(TEXT, "nobody"), Listing::default());
    }

    #[test]
    fn copies_are_waited_for_in_groups() {
        const NOTHING: u64 = 0x000fe20000000000;
        let copy = instruction("LDGSTS.E.BYPASS.128 [R3], desc[UR4][R4.64]", NOTHING);
        assert_eq!((copy.class, copy.tracked), (Class::Copy, Tracked::InGroup));
        assert_eq!(instruction("LDGDEPBAR", NOTHING).tracked, Tracked::Commit);
        let wait = instruction("DEPBAR.LE SB0, 0x1", NOTHING);
        assert_eq!((wait.class, wait.wait), (Class::Wait, Wait::Groups(1)));
        let other = instruction("DEPBAR.LE SB3, 0x1", NOTHING);
        assert_eq!((other.class, other.wait), (Class::Other, Wait::Scoreboards(0b1000)));
    }

    #[test]
    fn math_is_distinguished_from_moves() {
        for (text, class) in [
            ("FFMA R1, R2.reuse, R3, R1", Class::Math),
            ("HMMA.16816.F32 R0, R4, R8, R0", Class::Math),
            ("HFMA2 R5, -RZ, RZ, 0, 0", Class::Other),
            ("HFMA2 R5, R6, R7, R5", Class::Math),
            ("IMAD.MOV.U32 R1, RZ, RZ, R2", Class::Other),
            ("@P1 LDS.U.128 R4, [R2+0x100]", Class::SharedRead),
            ("BAR.SYNC.DEFER_BLOCKING 0x0", Class::Barrier),
            ("@P1 EXIT", Class::Branch),
            ("STL [R1], R2", Class::Scratch),
        ] {
            assert_eq!(instruction(text, 0).class, class, "{text}");
        }
        assert_eq!(instruction("@P1 EXIT", 0).flow, Flow::Next);
        assert_eq!(instruction("BRA.U UP0, `(.L_x_3)", 0).flow, Flow::Branch(".L_x_3".into()));
        assert_eq!(instruction("BRA `(.L_x_3)", 0).flow, Flow::Jump(".L_x_3".into()));
    }
}
