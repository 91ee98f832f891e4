//! What every measuring command shares: the device, the cases, the time limit, where results go.

use crate::args::{Cases, Choice, Common, Measuring};
use crate::error::{BenchError, Lost};
use crate::handover::{self, GoOn};
use crate::measure::Limits;
use crate::ours::Choose;
use crate::record::{self, Record, Sink};
use crate::table;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use tilewright_device::{COMPILE_WORKER, CacheState, Device, Options, Workers, open_with};
use tilewright_gen::plan::Constraint;
use tilewright_problem::cases::{Case, CaseOptions, Skipped, read};
use tilewright_problem::{Dtype, Math, Problem};
use tilewright_tune::Records;

/// A run of a measuring command.
pub struct Session {
    experiment: &'static str,
    start: Instant,
    common: Common,
    sink: Sink,
    done: Vec<Record>,
    /// Records of this run.
    pub records: Vec<Record>,
    /// Cases that broke.
    pub broken: usize,
    /// What an earlier process has left.
    left: GoOn,
}

impl Session {
    /// Begins a run: opens the results file.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub fn begin(experiment: &'static str, common: Common) -> Result<Session, BenchError> {
        let done = match &common.out {
            Some(path) if common.resume && path.exists() => record::read(path)?,
            _ => Vec::new(),
        };
        let sink = Sink::open(common.out.as_deref())?;
        let mut left = handover::left::<GoOn>(common.go_on.as_deref())?;
        // The file holds them by now, too.
        let records = std::mem::take(&mut left.records);
        let done: Vec<Record> = done.into_iter().filter(|d| !records.contains(d)).collect();
        Ok(Session { experiment, start: Instant::now(), common, sink, done, records, broken: left.broken, left })
    }

    /// Opens the device.
    ///
    /// # Errors
    /// Those of [`open_with`]; [`BenchError::Usage`] for the emulator.
    pub fn device(&self) -> Result<Arc<dyn Device>, BenchError> {
        self.other_device(&self.common.device)
    }

    /// Opens a further device.
    ///
    /// # Errors
    /// As [`Session::device`].
    pub fn other_device(&self, spec: &str) -> Result<Arc<dyn Device>, BenchError> {
        let device = self.open(spec)?;
        crate::workload::native(device.as_ref())?;
        Ok(device)
    }

    /// Opens the device, be it the emulator.
    ///
    /// # Errors
    /// Those of [`open_with`].
    pub fn any_device(&self) -> Result<Arc<dyn Device>, BenchError> {
        self.open(&self.common.device)
    }

    /// How sides are measured.
    pub fn measuring(&self) -> &Measuring {
        &self.common.measuring
    }

    fn open(&self, spec: &str) -> Result<Arc<dyn Device>, BenchError> {
        let mut options = Options { deadline: self.common.deadline, ..Options::default() };
        if let Ok(workers) = Workers::of_current_exe(COMPILE_WORKER) {
            options = options.with_workers(workers);
        }
        let device = open_with(spec, &options)?;
        let info = device.info();
        eprintln!("{}: {} ({})", info.id, info.name, info.fingerprint);
        Ok(device)
    }

    /// The cases a command line names, those of earlier runs left out.
    ///
    /// # Errors
    /// [`BenchError::Problem`]; [`BenchError::Usage`] if none is left by the filters.
    pub fn cases(&self, args: &Cases) -> Result<Vec<Case>, BenchError> {
        let workspace = args.workspace;
        let mut cases = Vec::new();
        if let Some(path) = &args.cases {
            let dtype = args.dtype.as_deref().and_then(Dtype::named).filter(|x| !x.complex).map(|x| (x.scalar, x.math));
            let options = CaseOptions { dtype, layout: args.layout, direction: args.direction.first().copied(), workspace };
            let mut file = read(path, &options)?;
            for direction in args.direction.iter().skip(1) {
                let mut more = read(path, &CaseOptions { direction: Some(*direction), ..options })?.cases;
                // Lines that say their own direction are there already.
                more.retain(|case| !file.cases.contains(case));
                file.cases.append(&mut more);
            }
            let wanted = |s: &&Skipped| {
                (args.set.is_empty() || args.set.contains(&s.set))
                    && args.dtype.as_ref().is_none_or(|t| s.dtype.as_ref() == Some(t))
            };
            for skipped in file.skipped.iter().filter(wanted) {
                eprintln!("{}, line {}: left out: {}", path.display(), skipped.line, skipped.reason);
            }
            cases = file.cases;
        }
        for key in &args.problem {
            let mut problem = Problem::parse(key)?;
            if let (Some(bytes), Problem::Gemm(gemm)) = (workspace, &mut problem) {
                gemm.workspace = bytes;
            } else if let (Some(bytes), Problem::Conv(conv)) = (workspace, &mut problem) {
                conv.workspace = bytes;
            }
            cases.push(Case { set: "problem".into(), name: key.clone(), line: 0, problem, calls: 1 });
        }
        let all = cases.len();
        let sets: BTreeSet<String> = cases.iter().map(|c| c.set.clone()).collect();
        let types: BTreeSet<&str> = cases.iter().map(|c| c.problem.dtype_name()).collect();
        cases.retain(|c| {
            (args.set.is_empty() || args.set.contains(&c.set))
                && args.only.as_ref().is_none_or(|text| c.name.contains(text.as_str()))
                && args.dtype.as_ref().is_none_or(|text| c.problem.dtype_name() == text)
                && args.dims.is_none_or(|dims| matches!(&c.problem, Problem::Conv(conv) if conv.input.len() as u64 == dims))
        });
        cases.iter_mut().for_each(|case| name_set(args, case));
        cases.iter_mut().for_each(|case| multiply_by(args.math, case));
        if cases.is_empty() {
            return Err(BenchError::Usage(format!("none of the {all} cases {}", asked(args, &sets, &types))));
        }
        if let Some(part) = args.part {
            let dealt = (0..).zip(cases).filter(|(n, _)| n % part.of == part.index);
            cases = dealt.map(|(_, case)| case).collect();
        }
        let left = cases.len();
        cases.retain(|c| !self.done.iter().any(|r| r.experiment == self.experiment && r.set == c.set && r.case == c.name));
        if cases.len() < left {
            eprintln!("{} cases are done already", left - cases.len());
        }
        Ok(cases)
    }

    /// How long to measure.
    pub fn limits(&self) -> Limits {
        Limits { time: self.common.measuring.measure, ..Limits::default() }
    }

    /// What timed runs find in the last-level cache.
    pub fn cache(&self) -> CacheState {
        self.common.measuring.cache
    }

    /// How plans are chosen, and under which constraint. Candidates that took an earlier process down are not tried again.
    ///
    /// # Errors
    /// [`BenchError::Usage`] for a malformed plan; [`BenchError::Plan`] for records that cannot be read.
    pub fn choose(&self, args: &Choice) -> Result<(Choose, Constraint), BenchError> {
        let constraint = match &args.plan {
            Some(text) => constraint_of("--plan", text)?,
            None => Constraint::none(),
        };
        // A file that is no records file shall not cost a run in which every case fails.
        match (args.recorded, &args.records) {
            (true, Some(path)) => drop(Records::open_existing(path).map_err(|e| BenchError::Plan(e.to_string()))?),
            (false, Some(path)) => drop(Records::open(path).map_err(|e| BenchError::Plan(e.to_string()))?),
            (_, None) => {}
        }
        let how = match (args.pick, args.recorded, &args.records) {
            (true, ..) => Choose::Pick,
            (_, true, Some(path)) => Choose::Recorded(path.clone()),
            _ => {
                let (records, lost) = (args.records.clone(), RefCell::new(self.lost()));
                Choose::Tune { budget: args.budget, records, lost }
            }
        };
        Ok((how, constraint))
    }

    /// What an earlier process has lost on the first case.
    pub fn lost(&self) -> Lost {
        self.left.lost.clone()
    }

    /// Measures every case with `run` until time is up; a case that fails is reported and passed over. Where the device is lost, a
    /// new process goes on.
    ///
    /// # Errors
    /// [`BenchError::HandedOver`]; a results file that cannot be written.
    pub fn each(&mut self, cases: &[Case], run: impl FnMut(&Case) -> Result<Vec<Record>, BenchError>) -> Result<(), BenchError> {
        match self.each_until_lost(cases, run)? {
            Some(go_on) => Err(handover::hand_over(&go_on)),
            None => Ok(()),
        }
    }

    /// As [`Session::each`]; where the device is lost, what a new process must know.
    ///
    /// # Errors
    /// A results file that cannot be written.
    pub fn each_until_lost(
        &mut self,
        cases: &[Case],
        mut run: impl FnMut(&Case) -> Result<Vec<Record>, BenchError>,
    ) -> Result<Option<GoOn>, BenchError> {
        let seconds = |of: &Session| of.left.seconds + of.start.elapsed().as_secs_f64();
        for (n, case) in cases.iter().enumerate().skip(self.left.skip) {
            if self.common.limit.is_some_and(|limit| seconds(self) >= limit.as_secs_f64()) {
                eprintln!("time is up: {} of {} cases are left; --resume goes on with them", cases.len() - n, cases.len());
                break;
            }
            eprintln!("[{:6.1} s] {}/{} {} {}", seconds(self), n + 1, cases.len(), case.set, case.name);
            match run(case) {
                Ok(records) => {
                    for record in records {
                        // What the others are compared with must be there and right.
                        self.broken += usize::from(record.sides.first().is_some_and(|side| side.valid_us().is_none()));
                        println!("{}", table::line(&record).trim_end());
                        self.keep(record)?;
                    }
                }
                Err(e) => {
                    println!("{:16} {:44} | {e}", case.set, case.name);
                    if e.is_fatal() {
                        let lost = if n == self.left.skip { self.left.lost.clone() } else { Lost::default() };
                        let (seconds, records) = (seconds(self), std::mem::take(&mut self.records));
                        let mut go_on = GoOn { skip: n, broken: self.broken, seconds, lost, records };
                        go_on.after(&e);
                        return Ok(Some(go_on));
                    }
                    self.broken += 1;
                }
            }
        }
        Ok(None)
    }

    /// Writes a record down.
    ///
    /// # Errors
    /// [`BenchError::File`].
    pub fn keep(&mut self, record: Record) -> Result<(), BenchError> {
        self.sink.write(&record)?;
        self.records.push(record);
        Ok(())
    }

    /// Prints the summaries; those of a resumed run cover earlier records, too.
    ///
    /// # Errors
    /// [`BenchError::Plan`] where cases failed.
    pub fn finish(self) -> Result<(), BenchError> {
        let earlier = self.done.into_iter().filter(|r| r.experiment == self.experiment);
        let all: Vec<Record> = earlier.chain(self.records).collect();
        // Long lists of alternatives are no sets to take means of.
        if all.iter().all(|r| r.sides.len() <= table::MOST_ACROSS) {
            print!("{}", table::summary(&all));
        }
        match self.broken {
            0 => Ok(()),
            broken => Err(BenchError::Plan(format!("{broken} cases failed, see above"))),
        }
    }
}

/// Keys that an option of the command line pins.
///
/// # Errors
/// [`BenchError::Usage`] for a malformed plan.
pub fn constraint_of(option: &str, text: &str) -> Result<Constraint, BenchError> {
    Constraint::parse(text).map_err(|e| BenchError::Usage(format!("{option}: {e}")))
}

/// What no case has, and what there is.
fn asked(args: &Cases, sets: &BTreeSet<String>, types: &BTreeSet<&str>) -> String {
    let mut parts = Vec::new();
    if !args.set.is_empty() {
        parts.push(format!("is of --set {}", args.set.join(" or ")));
    }
    if let Some(text) = &args.only {
        parts.push(format!("has --only {text} in its name"));
    }
    if let Some(dims) = args.dims {
        parts.push(format!("is a convolution of --dims {dims}"));
    }
    if let Some(dtype) = &args.dtype {
        parts.push(format!("is of --dtype {dtype}"));
    }
    let list = |all: Vec<&str>| all.join(", ");
    let (sets, types) = (list(sets.iter().map(String::as_str).collect()), list(types.iter().copied().collect()));
    format!("{}; there are the sets {sets} and the types {types}", parts.join(" and "))
}

/// Tells a convolution's set by what the command line says of its direction, type and layout, so that sets made of one file differ.
fn name_set(args: &Cases, case: &mut Case) {
    let Problem::Conv(conv) = &case.problem else { return };
    let direction = (!args.direction.is_empty()).then(|| conv.direction.name());
    let dtype = args.dtype.as_ref().map(|_| case.problem.dtype_name());
    let layout = args.layout.map(|_| conv.layout.name());
    for name in [direction, dtype, layout].into_iter().flatten() {
        case.set = format!("{} {name}", case.set);
    }
}

/// Lets a problem's factors be multiplied so where they can; says so in its name.
fn multiply_by(math: Math, case: &mut Case) {
    let dtype = case.problem.dtype();
    if math.is_exact() || !case.problem.math().is_exact() || !math.suits(dtype) {
        return;
    }
    let before = case.problem.dtype_name();
    match &mut case.problem {
        Problem::Gemm(gemm) => gemm.math = math,
        Problem::Conv(conv) => conv.math = math,
        Problem::Reduce(_) => return,
    }
    let name = case.problem.dtype_name();
    case.name = case
        .name
        .strip_prefix(&format!("{before} "))
        .map_or_else(|| format!("{} {name}", case.name), |rest| format!("{name} {rest}"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn parsed(line: &str) -> Cli {
        Cli::try_parse_from(line.split_whitespace()).unwrap()
    }

    #[test]
    fn a_case_whose_first_side_has_no_time_is_broken() {
        let mut session = Session::begin("gemm", parsed("tilewright-bench table x").common).unwrap();
        let problem = Problem::parse("conv_fwd_nchw_n1_c1_k1_in9_fil3_f32").unwrap();
        let case = Case { set: "s".into(), name: "n".into(), line: 0, problem, calls: 1 };
        let whole = record::tests::record("s", "n", Some(1.0));
        session.each(std::slice::from_ref(&case), |_| Ok(vec![whole.clone()])).unwrap();
        assert_eq!(session.broken, 0);
        let mut lacking = whole;
        lacking.sides[0].time = None;
        session.each(&[case], |_| Ok(vec![lacking.clone()])).unwrap();
        let e = session.finish().unwrap_err();
        assert!(e.to_string().contains("1 cases failed") && e.code() == 1, "{e}");
    }

    #[test]
    fn filters_that_leave_nothing_are_named_with_what_there_is() {
        let cli = parsed("tilewright-bench gemm --problem conv_fwd_nchw_n1_c1_k1_in9_fil3_f32 --set other --dtype f64");
        let Command::Gemm(args) = cli.command else { panic!("gemm") };
        let session = Session::begin("gemm", cli.common).unwrap();
        let e = session.cases(&args.cases).unwrap_err();
        let expected =
            "none of the 1 cases is of --set other and is of --dtype f64; there are the sets problem and the types f32";
        assert_eq!((e.to_string().as_str(), e.code()), (expected, 2));
    }

    #[test]
    fn a_file_of_convolutions_is_read_for_any_direction_type_and_layout() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("two.csv");
        let listed = |text: &str, options: &str| {
            std::fs::write(&path, text).unwrap();
            let line = format!("tilewright-bench conv --cases {} {options}", path.display());
            let Command::Conv(args) = parsed(&line).command else { panic!("conv") };
            let cases = Session::begin("conv", parsed("tilewright-bench table x").common).unwrap().cases(&args.cases);
            cases.unwrap().into_iter().map(|c| (c.set, c.problem.key()[..14].to_string())).collect::<Vec<_>>()
        };
        let text = "dims,groups,n,k_per_group,c_per_group,filter,input\n1,2,4,8,8,3,9\n2,2,4,8,8,3x3,9\n";
        let of = |set: &str, key: &str| (set.to_string(), key.to_string());
        assert_eq!(
            listed(text, "--direction bwdd,backward-weight --dtype f16 --layout nhwc --dims 2"),
            [of("two backward-data f16 nhwc", "conv_bwdd_nhwc"), of("two backward-weight f16 nhwc", "conv_bwdw_nhwc")]
        );
        assert_eq!(listed(text, ""), [of("two", "conv_fwd_nchw_"), of("two", "conv_fwd_nchw_")]);
        // What a line says itself holds, once.
        let csv = "n,groups,k,c,r,s,h,w,direction\n1,1,8,8,3,3,9,9,bwdw\n";
        assert_eq!(listed(csv, "--direction forward,backward-data"), [of("two backward-weight", "conv_bwdw_nchw")]);
    }

    #[test]
    fn records_that_cannot_be_read_end_the_run_before_it_begins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("none.db");
        let line = format!("tilewright-bench gemm --problem x --recorded --records {}", path.display());
        let Command::Gemm(args) = parsed(&line).command else { panic!("gemm") };
        let session = Session::begin("gemm", parsed("tilewright-bench table x").common).unwrap();
        let e = session.choose(&args.choice).unwrap_err().to_string();
        assert!(e.contains("none.db") && !path.exists(), "{e}");
        std::fs::write(&path, "a text that somebody holds dear").unwrap();
        let e = session.choose(&args.choice).unwrap_err().to_string();
        assert!(e.contains("none.db: not a tilewright records file"), "{e}");
    }
}
