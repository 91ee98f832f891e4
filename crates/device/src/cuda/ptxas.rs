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
}
