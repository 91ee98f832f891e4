//! The tables of the command's reference page (`docs/reference/cli.md`): exit codes, fields of JSON objects, environment variables.
//!
//! `cargo xtask docs` prints them. Tests compare them with the keys that the command prints and the variables that the code reads.

/// An exit code of the command.
pub struct ExitCode {
    pub code: u8,
    /// When the command ends with it.
    pub meaning: &'static str,
}

/// All work is done, and its results are right.
pub const DONE: u8 = 0;
/// A job failed.
pub const FAILED: u8 = 1;
/// Wrong use.
pub const USAGE: u8 = 2;
/// Problems of a shared run failed.
pub const SOME_FAILED: u8 = 3;
/// A signal ended the command.
pub const INTERRUPTED: u8 = 130;

/// All exit codes, ascending.
pub const EXIT_CODES: [ExitCode; 5] = [
    ExitCode { code: DONE, meaning: "everything asked for was done and is right" },
    ExitCode {
        code: FAILED,
        meaning: "a job failed: wrong result, missing device, plan that does not fit, failed case or check",
    },
    ExitCode { code: USAGE, meaning: "wrong use: an option, a problem, a plan's text, a case file" },
    ExitCode { code: SOME_FAILED, meaning: "`tune` on several devices or hosts: problems of the run failed" },
    ExitCode { code: INTERRUPTED, meaning: "interrupted by Ctrl-C, SIGTERM or SIGHUP; results so far are kept and printed" },
];

/// Fields of the objects that commands print for a problem, of one meaning.
pub struct Fields {
    pub names: &'static [&'static str],
    /// The commands that print them.
    pub commands: &'static [&'static str],
    pub meaning: &'static str,
}

/// The commands with one object per problem.
pub const PROBLEM_COMMANDS: &[&str] = &["tune", "bench", "verify", "explain", "inspect"];

const RUN: &[&str] = &["tune", "bench", "verify"];
const TIME: &[&str] = &["tune", "bench"];
const TUNE: &[&str] = &["tune"];
const BENCH: &[&str] = &["bench"];
const VERIFY: &[&str] = &["verify"];
const EXPLAIN: &[&str] = &["explain"];
const INSPECT: &[&str] = &["inspect"];

/// Every field of [`PROBLEM_COMMANDS`].
pub const FIELDS: [Fields; 17] = [
    Fields {
        names: &["problem", "plan", "readable"],
        commands: PROBLEM_COMMANDS,
        meaning: "texts of problem and plan, which `--problem` and `--plan` take; the plan in words",
    },
    Fields { names: &["title", "dynamic"], commands: RUN, meaning: "the problem in words; extents that launches give" },
    Fields { names: &["device"], commands: &["tune", "bench", "verify", "explain"], meaning: "device id" },
    Fields {
        names: &["origin"],
        commands: &["bench", "verify", "explain", "inspect"],
        meaning: "`recorded`, `recorded, verified again`, `picked`, `given`, `edited`",
    },
    Fields {
        names: &["source"],
        commands: &["tune", "bench", "verify", "inspect"],
        meaning: "file with the source; except of `tune`, null without `--source`",
    },
    Fields {
        names: &["time_us", "time_kind", "cache", "gflops"],
        commands: TIME,
        meaning: "time; `measured` or `modelled`; `cold` or `warm`; 10^9 operations per second",
    },
    Fields { names: &["time_us_min", "time_us_max", "repeats"], commands: BENCH, meaning: "spread" },
    Fields { names: &["verified"], commands: RUN, meaning: "the result agrees with the f64 reference" },
    Fields { names: &["verified_on"], commands: RUN, meaning: "the smaller problem that the emulator verified, else null" },
    Fields {
        names: &["max_error"],
        commands: RUN,
        meaning: "largest error relative to \\|alpha\\| \\|A\\| \\|B\\| + \\|beta\\| \\|C\\| + \\|bias\\| + \\|residual\\|",
    },
    Fields {
        names: &["trials", "refused", "failed", "wrong", "hung", "resumed"],
        commands: TUNE,
        meaning: "trials of this run, by outcome; trials from the records",
    },
    Fields { names: &["seconds", "spent"], commands: TUNE, meaning: "length of the search; seconds by activity" },
    Fields {
        names: &["ended"],
        commands: TUNE,
        meaning: "`why`: `budget`, `exhausted`, `converged`, `cancelled` or `devicelost` (with `reason`)",
    },
    Fields {
        names: &["checked", "race", "reason"],
        commands: VERIFY,
        meaning: "elements compared; results differ between runs; the fault",
    },
    Fields {
        names: &["computes", "keys", "structure", "footprint", "counts", "model", "spec"],
        commands: EXPLAIN,
        meaning: "formula, words per key, roles, resources, work, modelled time, derived plan",
    },
    Fields {
        names: &["math_per_k_tile", "k_tiles_per_round", "inspection"],
        commands: INSPECT,
        meaning: "math instructions of a thread; k-tiles in a round of each loop; resources and loops of the machine code",
    },
    Fields { names: &["error"], commands: RUN, meaning: "in place of a result: the reason" },
];

/// The fields of another object.
pub struct Object {
    pub command: &'static str,
    pub fields: &'static [&'static str],
}

/// Objects that are not of one problem and plan.
pub const OBJECTS: [Object; 6] = [
    Object {
        command: "bench --against",
        fields: &[
            "experiment",
            "set",
            "case",
            "problem",
            "dtype",
            "math",
            "cache",
            "flop",
            "bytes",
            "sides",
            "clocks_before",
            "clocks_after",
            "environment",
            "roof",
        ],
    },
    Object {
        command: "devices",
        fields: &[
            "backend",
            "device",
            "name",
            "kind",
            "arch",
            "units",
            "memory_bytes",
            "fingerprint",
            "platform",
            "time_kind",
            "missing",
        ],
    },
    Object {
        command: "records list",
        fields: &[
            "problem",
            "device",
            "fingerprint",
            "plan",
            "time_us",
            "time_kind",
            "verified",
            "stale",
            "trials",
            "refused",
            "failed",
        ],
    },
    Object { command: "cache list", fields: &["folder", "binaries", "bytes", "limit_bytes", "oldest_s"] },
    Object { command: "fleet status", fields: &["classes", "workers", "failed"] },
    Object {
        command: "selfcheck",
        fields: &[
            "selfcheck",
            "tilewright",
            "system",
            "passed",
            "device",
            "clocks_before",
            "clocks_after",
            "seed",
            "pairs",
            "failures",
            "tuned",
            "seconds",
        ],
    },
];

/// Environment variables of one meaning.
pub struct Variables {
    pub names: &'static [&'static str],
    pub meaning: &'static str,
}

/// Every variable that a user sets. Those of tests are in `docs/testing.md`.
pub const ENVIRONMENT: [Variables; 14] = [
    Variables { names: &["TILEWRIGHT_RECORDS"], meaning: "records file in place of the user's" },
    Variables { names: &["TILEWRIGHT_FLEET"], meaning: "server of `tune --run` and of `fleet`, in place of the URL" },
    Variables {
        names: &["PGPASSWORD", "PGPASSFILE", "PGUSER", "PGSSLMODE", "PGSSLROOTCERT"],
        meaning: "of that server, as for psql",
    },
    Variables { names: &["TILEWRIGHT_CACHE"], meaning: "folder of compiled binaries; empty or `off`: none" },
    Variables { names: &["TILEWRIGHT_CACHE_MB"], meaning: "limit of that folder in MB (2048); the oldest go" },
    Variables { names: &["TILEWRIGHT_LOG"], meaning: "log filter such as `tilewright_tune=debug`, in place of `-v`" },
    Variables { names: &["NO_COLOR"], meaning: "not empty: log lines without colours" },
    Variables { names: &["TILEWRIGHT_NVRTC"], meaning: "NVRTC's library or its folder" },
    Variables { names: &["TILEWRIGHT_CUDA_LIBS"], meaning: "folders of NVIDIA's libraries, joined by `:`" },
    Variables { names: &["TILEWRIGHT_NVDISASM"], meaning: "NVIDIA's disassembler, for `inspect`" },
    Variables { names: &["TILEWRIGHT_CLANG"], meaning: "clang 20 or newer (CI: 22) for AMD's architectures, for `inspect`" },
    Variables { names: &["TILEWRIGHT_LIBCLC"], meaning: "clang's OpenCL built-in functions, for `inspect`" },
    Variables { names: &["TILEWRIGHT_WORKER"], meaning: "the `tilewright` command that runs trials in a process of its own" },
    Variables {
        names: &["TILEWRIGHT_CHECK"],
        meaning: "`1`: `twt.linear_cross_entropy` refuses labels that are no class, and waits for the device",
    },
];
