//! What compilers make of schedules, read from their assembly: the fault that the TVM discussion tells of (loads that are
//! waited for at once), and that storing late puts it right. f32, 4096^3, one fixed tiling.

use crate::common;
use common::{Bench, Ran};
use serde_json::Value;

/// 128 x 128 x 16 by 256 threads of 8 x 8, vectors of four everywhere.
const TILING: &str = "A_MIC8_PAD0_PLU0_LIW0_MIW1_WOS0_VEW4_LOR1__B_MIC8_PAD0_PLU0_LIW0_MIW1_WOS0_VEW4_LOR1\
    __C_UNR16_GAL3_PUN1_ICE1_IWI0_SZT0_MAD1_NAW64_UFO0_MAC256_SKW10_AFI1_MIA1_CVW4_UKL1";
const NAIVE: &str = "PFG1_BUF2_STP0";
/// With fences; without them compilers are free to undo the schedule.
const LATE: &str = "PFG1_BUF2_STP1_HNT1";
const FRAGMENTS_AHEAD: &str = "PFG1_BUF2_STP1_FRA1_HNT1";
/// Share of a k-tile's math that must stand between a load and its wait when the store stands late.
const LATE_SHARE: f64 = 0.9;
const AMD: [&str; 4] = ["gfx900", "gfx90a", "gfx942", "gfx950"];
const NVIDIA: [&str; 2] = ["sm_80", "sm_90a"];

fn inspect(arch: &str, schedule: &str, more: &str) -> Ran {
    inspect_tiling(arch, &format!("{TILING}_{schedule}"), more)
}

fn inspect_tiling(arch: &str, plan: &str, more: &str) -> Ran {
    let bench = Bench::new();
    bench.run(&format!("inspect gemm --m 4096 --n 4096 --k 4096 --trans tn --arch {arch} --plan {plan} {more}"))
}

/// The reading, or `None` with a visible line where a tool is missing and not required.
fn read(arch: &str, schedule: &str, more: &str) -> Option<Reading> {
    let ran = inspect(arch, schedule, &format!("--json {more}"));
    if ran.misses_a_tool() {
        return None;
    }
    ran.ends(0);
    let value = ran.objects().remove(0);
    Some(Reading { name: format!("{arch} {schedule} {more}"), value })
}

/// One inspection as JSON.
struct Reading {
    name: String,
    value: Value,
}

impl Reading {
    fn number(&self, value: &Value) -> f64 {
        value.as_f64().unwrap_or_else(|| panic!("{}: {value} is no number", self.name))
    }
    fn usage(&self, what: &str) -> f64 {
        self.number(&self.value["inspection"]["usage"][what])
    }
    fn of_role(&self, role: &str) -> &Value {
        let loops = self.value["inspection"]["loops"].as_array().expect("loops");
        loops.iter().find(|l| l["role"] == role).unwrap_or_else(|| panic!("{}: no loop of role {role}", self.name))
    }
    fn main(&self) -> &Value {
        self.of_role("main")
    }
    /// Math instructions for one k-tile.
    fn tile_math(&self) -> f64 {
        self.number(&self.main()["counts"]["math"]) / self.number(&self.value["k_tiles_per_round"][0])
    }
    /// For each load, a distance as a share of a k-tile's math.
    fn shares(&self, what: &str) -> Vec<f64> {
        let flights = self.main()["flights"].as_array().expect("flights");
        assert!(!flights.is_empty(), "{}: the main loop has no loads", self.name);
        flights.iter().map(|f| self.number(&f[what]) / self.tile_math()).collect()
    }
    fn least(&self, what: &str) -> f64 {
        self.shares(what).into_iter().fold(f64::INFINITY, f64::min)
    }
    /// From load to store, over the wait.
    fn least_to_store(&self) -> f64 {
        let both = self.shares("math_to_wait").into_iter().zip(self.shares("math_to_store"));
        both.map(|(wait, store)| wait + store).fold(f64::INFINITY, f64::min)
    }
    fn most(&self, what: &str) -> f64 {
        self.shares(what).into_iter().fold(0.0, f64::max)
    }
    /// Share of the k-tile's math behind the last load and before the first wait for loads.
    fn undisturbed(&self) -> f64 {
        let runs = self.main()["runs"].as_array().expect("runs");
        let mut math = 0.0;
        for run in runs {
            match run["class"].as_str() {
                Some("wait") => return math / self.tile_math(),
                Some("math") => math += self.number(&run["count"]),
                _ => {}
            }
        }
        panic!("{}: nothing waits", self.name)
    }
    fn no_spills(&self) {
        assert_eq!((self.usage("spill_bytes"), self.usage("private_bytes")), (0.0, 0.0), "{}", self.name);
        assert!(self.main()["counts"]["scratch"].is_null(), "{}", self.name);
    }
    /// Loads first, their wait behind the math, the store right behind that.
    fn is_late(&self) {
        self.no_spills();
        let (wait, free) = (self.least("math_to_wait"), self.undisturbed());
        assert!(wait >= LATE_SHARE, "{}: {wait:.2} of a k-tile's math before the wait", self.name);
        assert!(free >= LATE_SHARE, "{}: a wait stands behind {free:.2} of a k-tile's math", self.name);
        let store = self.most("math_to_store");
        assert!(store <= 1.0 - LATE_SHARE, "{}: {store:.2} of a k-tile's math between wait and store", self.name);
    }
    /// Loads, their wait and the store with next to nothing between them.
    fn is_naive(&self) {
        self.no_spills();
        let (wait, store) = (self.most("math_to_wait"), self.most("math_to_store"));
        assert!(wait <= 0.02 && store <= 0.02, "{}: {wait:.2} before the wait, {store:.2} before the store", self.name);
    }
}

pub fn the_seeds_fault_shows_on_amd() {
    for arch in AMD {
        let Some(naive) = read(arch, NAIVE, "") else { return };
        naive.is_naive();
    }
}

pub fn storing_late_hides_the_loads_on_amd() {
    for schedule in [LATE, FRAGMENTS_AHEAD] {
        for arch in AMD {
            let Some(late) = read(arch, schedule, "") else { return };
            late.is_late();
        }
    }
}

pub fn two_tiles_ahead_fit_into_registers() {
    for arch in AMD {
        let Some(far) = read(arch, "PFG2_BUF2_STP1_HNT1", "") else { return };
        far.no_spills();
        assert!(far.least("math_to_wait") >= LATE_SHARE, "{}", far.name);
    }
}

pub fn without_fences_the_compiler_moves_loads_and_stores() {
    for (arch, schedule) in [("gfx900", "PFG1_BUF2_STP1_FRA1"), ("sm_90a", "PFG1_BUF2_STP1_FRA1")] {
        let Some(free) = read(arch, schedule, "") else { return };
        let Some(fenced) = read(arch, &format!("{schedule}_HNT1"), "") else { return };
        free.no_spills();
        assert!(free.least_to_store() < fenced.least_to_store(), "{}: HNT does nothing any more", free.name);
    }
}

pub fn opencl_reads_as_hip_does() {
    let (Some(naive), Some(late)) =
        (read("gfx900", NAIVE, "--target opencl"), read("gfx900", "PFG1_BUF2_STP1", "--target opencl"))
    else {
        return;
    };
    naive.is_naive();
    late.no_spills();
    // OpenCL has no fences: the compiler does as it likes.
    assert!(late.least("math_to_wait") >= 0.5, "{}", late.name);
}

pub fn a_single_buffer_is_waited_for_at_once_unless_it_prefetches() {
    let Some(single) = read("gfx900", "PFG0_BUF1", "") else { return };
    single.is_naive();
    let Some(prefetched) = read("gfx900", "PFG1_BUF1_HNT1", "") else { return };
    prefetched.is_late();
}

pub fn the_seeds_fault_shows_on_nvidia() {
    for arch in NVIDIA {
        let Some(naive) = read(arch, NAIVE, "") else { return };
        naive.is_naive();
    }
}

pub fn storing_late_hides_the_loads_on_nvidia() {
    for arch in NVIDIA {
        for schedule in [LATE, FRAGMENTS_AHEAD] {
            let Some(late) = read(arch, schedule, "") else { return };
            late.no_spills();
            // Loads are issued before the math and stored behind it. With six scoreboards in all, the assembler may let
            // one wait early that shares its scoreboard with reads of shared memory.
            let (wait, store) = (late.least("math_to_wait"), late.least_to_store());
            assert!(store >= LATE_SHARE, "{}: {store:.2} of a k-tile's math before the store", late.name);
            assert!(wait >= 0.15, "{}: {wait:.2} of a k-tile's math before the wait", late.name);
        }
    }
}

pub fn asynchronous_copies_fly_over_the_math() {
    let schedule = "PFG2_BUF3_FRA1";
    let tiling = TILING.replace("LOR1", "LOR1_ACP1");
    for arch in NVIDIA {
        let ran = inspect_tiling(arch, &format!("{tiling}_{schedule}"), "--json");
        if ran.code == Some(1) && ran.err.contains("is not available") {
            // The other tests say so.
            return;
        }
        ran.ends(0);
        let reading = Reading { name: format!("{arch} {schedule} ACP1"), value: ran.objects().remove(0) };
        reading.no_spills();
        // Two k-tiles ahead.
        assert!(reading.least("math_to_wait") >= 2.0 * LATE_SHARE, "{}: {}", reading.name, reading.least("math_to_wait"));
        assert!(reading.main()["counts"]["shared_store"].is_null(), "{}", reading.name);
    }
}

/// Work-groups that stay walk over tiles of the result: the figures are of the loop over k-tiles within.
pub fn staying_work_groups_are_read_per_k_tile() {
    let plan = "A_MIC2_WOS0_ACP2__B_MIC16_WOS0_ACP2__C_UNR64_MAC256_SKW11_UNI2_CST1_ICE1_SWP0_FRA0_PNG0_BUF4_LWV4_PST132";
    let sizes = "--m 4096 --n 4096 --k 4096 --dtype bf16 --trans nt";
    let ran = Bench::new().run(&format!("inspect gemm {sizes} --arch sm_90a --plan {plan} --json"));
    if ran.code == Some(1) && ran.err.contains("is not available") {
        // The other tests say so.
        return;
    }
    ran.ends(0);
    let reading = Reading { name: "PST132".into(), value: ran.objects().remove(0) };
    let counts = &reading.main()["counts"];
    // Two instructions of 64 x 128 x 16 for each of four k-steps.
    assert_eq!((counts["math"].as_u64(), reading.value["math_per_k_tile"].as_u64()), (Some(8), Some(8)), "{counts}");
    assert!(counts["global_store"].is_null() && counts["shared_store"].is_null(), "{counts}");
    assert!(reading.of_role("load")["counts"]["copy"].is_number());
}

pub fn roles_have_loops_of_their_own() {
    for arch in ["gfx942", "sm_90a"] {
        let Some(roles) = read(arch, "PFG2_BUF3_STP1_LWV4", "") else { return };
        assert_eq!(roles.main()["flights"].as_array().map(Vec::len), Some(0), "{}", roles.name);
        let load = roles.of_role("load");
        assert!(load["counts"]["math"].is_null() && load["counts"]["shared_store"].is_number(), "{}", roles.name);
        assert!(load["flights"].as_array().is_some_and(|f| !f.is_empty()), "{}", roles.name);
    }
}

pub fn words_and_picture() {
    let bench = Bench::new();
    let line = format!(
        "inspect gemm --m 256 --n 256 --k 4096 --trans tn --arch gfx942 --plan {TILING}_{LATE} --svg {} --asm {}",
        bench.text("loop.svg"),
        bench.text("loop.s")
    );
    let ran = bench.run(&line);
    if ran.misses_a_tool() {
        return;
    }
    ran.ends(0);
    ran.says(&["main loop", "global load", "wait for loads", "LDS store", "barrier", "registers", "spills", "occupancy"]);
    let picture = std::fs::read_to_string(bench.path("loop.svg")).expect("the picture");
    assert!(picture.starts_with("<svg") && picture.contains("loads in flight"));
    let assembly = std::fs::read_to_string(bench.path("loop.s")).expect("the assembly");
    assert!(assembly.contains("s_waitcnt") && assembly.contains("tw_contract"));
}

pub fn what_is_missing_or_wrong_is_named() {
    let bench = Bench::new();
    let small = "inspect gemm --m 64 --n 64 --k 64";
    let mut command = bench.command(&format!("{small} --arch gfx900"));
    command.env("TILEWRIGHT_CLANG", "/nonexistent/clang");
    let ran = Ran::new("no clang", command.output().expect("the command starts"));
    ran.ends(1);
    assert!(ran.err.contains("apt install clang"), "{}", ran.err);

    let mut command = bench.command(&format!("{small} --arch sm_90a"));
    command.env("TILEWRIGHT_NVDISASM", "/nonexistent/nvdisasm");
    let ran = Ran::new("no nvdisasm", command.output().expect("the command starts"));
    ran.ends(1);
    assert!(ran.err.contains("nvdisasm") && ran.err.contains("pip install") || ran.err.contains("NVRTC"), "{}", ran.err);

    for (arguments, part) in [("--arch gfx1", "not a known architecture"), ("--arch sm_90a --target hip", "CUDA C++")] {
        let ran = bench.run(&format!("{small} {arguments}"));
        ran.ends(2);
        assert!(ran.err.contains(part), "{}", ran.err);
    }
}
