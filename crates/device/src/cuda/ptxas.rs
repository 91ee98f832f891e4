//! Reads the assembler's report (`--ptxas-options=-v`) out of NVRTC's log.

use crate::Resources;

/// Registers, stack, spills and shared memory of the kernel the log tells about. Fields that the log lacks are `None`.
pub(crate) fn read_log(log: &str) -> Resources {
    Resources {
        registers: number_before(log, " registers").or_else(|| number_after(log, "Used ")),
        spill_bytes: number_before(log, " bytes spill stores"),
        private_bytes: number_before(log, " bytes stack frame"),
        shared_bytes: number_before(log, " bytes smem"),
        max_threads: None,
    }
}

/// Notes of the assembler that mean a matrix kernel at half its speed or less, and what each says. Numbers as CUDA 12 and 13 print
/// them; the words stand for notes that have another number elsewhere.
const NOTES: [(&str, &str); 7] = [
    ("(C7508)", "its waves keep their share of registers (setmaxnreg is ignored)"),
    ("(C7510)", "its warpgroup instructions are serialised at a function's boundary"),
    ("(C7511)", "its warpgroup instructions are serialised: there are not enough registers"),
    ("(C7512)", "its warpgroup instructions are serialised: its waves do not get enough registers"),
    ("(C7515)", "its warpgroup instructions are serialised: other instructions write their accumulators"),
    ("(C7519)", "its warpgroup instructions are serialised by a fence that the assembler put in"),
    ("wgmma.mma_async instructions are serialized", "its warpgroup instructions are serialised"),
];

/// Most bytes per thread a kernel may spill and still be worth a try: a thread's whole register file.
const MOST_SPILLED: u32 = 4 * 255;

/// Why a kernel with this log must be slow, if the assembler says so.
pub(crate) fn slow_reason(log: &str, spilled: Option<u32>) -> Option<String> {
    if let Some((_, what)) = NOTES.iter().find(|(note, _)| log.contains(note)) {
        return Some((*what).into());
    }
    let spilled = spilled.filter(|&bytes| bytes > MOST_SPILLED)?;
    Some(format!("it spills {spilled} bytes per thread, more than the {MOST_SPILLED} bytes of registers a thread can have"))
}

fn number_before(text: &str, words: &str) -> Option<u32> {
    let head = &text[..text.find(words)?];
    let start = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |i| i + 1);
    head[start..].parse().ok()
}

fn number_after(text: &str, words: &str) -> Option<u32> {
    let tail = &text[text.find(words)? + words.len()..];
    let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
    tail[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_report() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'gemm' for 'sm_90a'\n\
            ptxas info    : Function properties for gemm\n    \
            808 bytes stack frame, 1052 bytes spill stores, 984 bytes spill loads\n\
            ptxas info    : Used 32 registers, used 1 barriers, 808 bytes cumulative stack size, 16384 bytes smem\n";
        let r = read_log(log);
        assert_eq!(r.registers, Some(32));
        assert_eq!(r.spill_bytes, Some(1052));
        assert_eq!(r.private_bytes, Some(808));
        assert_eq!(r.shared_bytes, Some(16384));
        assert_eq!(read_log(""), Resources::default());
    }

    #[test]
    fn notes_of_slow_kernels_are_reported() {
        let log = "ptxas info    : (C7517) warpgroup.wait is injected in around line 67 by compiler to allow use of registers \
            defined by GMMA in function 'k'\n\
            ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient \
            register resources for the wgmma pipeline in the function 'k'\n";
        assert!(slow_reason(log, Some(0)).unwrap().contains("not enough registers"));
        let renumbered = log.replace("C7511", "C9911");
        assert!(slow_reason(&renumbered, Some(0)).unwrap().contains("serialised"));
        assert_eq!(slow_reason("ptxas info    : Used 32 registers", Some(MOST_SPILLED)), None);
        assert!(slow_reason("", Some(MOST_SPILLED + 1)).unwrap().contains("1021 bytes"));
        assert_eq!(slow_reason("", None), None);
    }
}
