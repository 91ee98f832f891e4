//! How well the cost model orders plans whose times are known. Needs no device: times come from recorded trials.

use crate::args::JudgeArgs;
use crate::error::BenchError;
use std::collections::BTreeMap;
use tilewright_gen::plan::Plan;
use tilewright_gen::space::Space;
use tilewright_ir::Target;
use tilewright_problem::Problem;
use tilewright_tune::model::{Estimate, Picker};
use tilewright_tune::records::{Filter, Records, RecordsError, TimeKind};

/// A recorded plan with both its times.
struct Judged {
    plan: Plan,
    measured: f64,
    modelled: f64,
    /// Where the modelled time goes, in words.
    parts: String,
}

/// What files of records say of a problem.
#[derive(Default)]
struct Recorded {
    /// Best times of all files.
    times: BTreeMap<Plan, f64>,
    /// Plans in the order in which they were first timed, of the first file that has the problem.
    order: Vec<Plan>,
    /// Which file that is.
    file: usize,
}

impl Recorded {
    /// Candidates timed until there was one within 3 % of a time.
    fn until_near(&self, best: f64) -> Option<usize> {
        let near = |plan: &Plan| self.times.get(plan).is_some_and(|time| *time <= NEAR * best);
        self.order.iter().position(near).map(|at| at + 1)
    }
}

/// Times a share above the best are as good as it.
const NEAR: f64 = 1.03;

/// Trials of files by problem.
fn recorded(args: &JudgeArgs) -> Result<BTreeMap<String, Recorded>, BenchError> {
    let failed = |e: RecordsError| BenchError::Plan(e.to_string());
    let mut problems: BTreeMap<String, Recorded> = BTreeMap::new();
    for (file, path) in args.records.iter().enumerate() {
        let records = Records::open_existing(path).map_err(failed)?;
        for r in records.list(&Filter { problem: args.only.clone(), ..Filter::default() }).map_err(failed)? {
            let (Some(time), Some(TimeKind::Measured)) = (r.trial.time_us, r.trial.time_kind) else { continue };
            let Ok(plan) = Plan::parse(&r.trial.plan) else { continue };
            let known = problems.entry(r.name).or_insert_with(|| Recorded { file, ..Recorded::default() });
            if known.file == file && !known.order.contains(&plan) {
                known.order.push(plan);
            }
            let best = known.times.entry(plan).or_insert(time);
            *best = best.min(time);
        }
    }
    Ok(problems)
}

/// `judge-model`: prints for each recorded problem the share of the best speed that the plan of least modelled time reaches. It also prints how
/// many plans are timed until one is within 3 % of the best, in the model's order and in the recorded order.
///
/// # Errors
/// Records that cannot be read, an unknown architecture.
pub fn judge_model(args: JudgeArgs) -> Result<(), BenchError> {
    let target = Target::by_arch(&args.arch).ok_or_else(|| {
        BenchError::Usage(format!("--arch {}: no target of that name; `tilewright devices` lists them", args.arch))
    })?;
    let trials = recorded(&args)?;
    if trials.is_empty() {
        let of = args.only.as_ref().map_or(String::new(), |text| format!(" of problems whose name holds `{text}` (--only)"));
        return Err(BenchError::Usage(format!("the records hold no measured trials{of}; tune on a device to make some")));
    }
    println!("{:>7} {:>7} {:>7} {:>6} {:>6} {:>6}  problem", "best us", "pick us", "share", "rank", "timed", "plans");
    let (mut shares, mut timed) = (Vec::new(), Vec::new());
    for (name, recorded) in &trials {
        let space = Space::new(&Problem::parse(name)?, &target)?.with_atomics(true);
        let picker = Picker::new(&space);
        let judged = judge(&picker, &recorded.times);
        let Some(pick) = judged.first() else { continue };
        let best = judged.iter().map(|j| j.measured).fold(f64::INFINITY, f64::min);
        let rank = judged.iter().position(|j| j.measured <= NEAR * best).map_or(0, |i| i + 1);
        shares.push(best / pick.measured);
        let until = recorded.until_near(best);
        timed.push(until.unwrap_or(usize::MAX));
        let until = until.map_or("never".to_string(), |count| count.to_string());
        println!("{best:7.1} {:7.1} {:7.3} {rank:6} {until:>6} {:6}  {name}", pick.measured, best / pick.measured, judged.len());
        let mut order: Vec<&Judged> = judged.iter().collect();
        order.sort_by(|x, y| x.measured.total_cmp(&y.measured));
        if args.picks > 0 {
            for c in picker.pick(args.picks) {
                println!("                       {:8.1} modelled  {}  {}", c.estimate.total_us, parts(&c.estimate), c.plan);
            }
        }
        for j in judged.iter().take(args.show).chain(order.into_iter().take(args.show)) {
            println!("    {:8.1} measured {:8.1} modelled  {}  {}", j.measured, j.modelled, j.parts, j.plan);
        }
    }
    let mean = (shares.iter().map(|s: &f64| s.ln()).sum::<f64>() / shares.len().max(1) as f64).exp();
    let worst = shares.iter().copied().fold(f64::INFINITY, f64::min);
    println!(
        "the model's first choice among recorded plans reaches {mean:.3} of the best (geometric mean of {}), worst {worst:.3}",
        shares.len()
    );
    println!("{}", until_near(timed, args.within));
    Ok(())
}

/// How many candidates searches timed until there was one within 3 % of the best.
fn until_near(mut timed: Vec<usize>, within: usize) -> String {
    timed.sort_unstable();
    let soon = timed.iter().filter(|count| **count <= within).count();
    let spelled = |count: Option<&usize>| match count {
        Some(&usize::MAX) => "never".to_string(),
        Some(count) => count.to_string(),
        None => "none".to_string(),
    };
    format!(
        "{soon} of {} searches had a plan within 3 % of the best after {within} timed candidates; the median one after {}, the last after {}",
        timed.len(),
        spelled(timed.get(timed.len().saturating_sub(1) / 2)),
        spelled(timed.last())
    )
}

/// A problem's plans in the model's order; those that the target refuses are left out.
fn judge(picker: &Picker, plans: &BTreeMap<Plan, f64>) -> Vec<Judged> {
    let mut judged: Vec<Judged> = plans
        .iter()
        .filter_map(|(plan, &measured)| {
            let e = picker.estimate(plan)?;
            Some(Judged { plan: *plan, measured, modelled: e.total_us, parts: parts(&e) })
        })
        .collect();
    judged.sort_by(|x, y| x.modelled.total_cmp(&y.modelled));
    judged
}

fn parts(e: &Estimate) -> String {
    format!(
        "math {:.1} shared {:.1} l2 {:.1} dram {:.1} stall {:.1} helpers {:.1}",
        e.math_us, e.shared_us, e.l2_us, e.dram_us, e.stall_us, e.helpers_us
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_tune::records::{DeviceKey, Trial};

    /// Candidates are counted in the order of the first file; the best is that of all, and a plan's time its best.
    #[test]
    fn timed_candidates_are_counted_in_the_first_file_against_the_best_of_all() {
        let name = "conv_fwd_nhwc_n1_g1_c8_k8_in4x4_fil1x1_f16";
        let target = Target::by_arch("sm_80").unwrap();
        let space = Space::new(&Problem::parse(name).unwrap(), &target).unwrap();
        let key = tilewright_tune::ProblemKey::of(&space);
        let device = DeviceKey { name: "GPU".into(), fingerprint: "1".into() };
        let folder = tempfile::tempdir().unwrap();
        let plans = [1, 2, 3, 4].map(|mic| Plan::from(Plan::default().but(|keys| keys.a.micro = mic)).to_string());
        let file = |file: &str, trials: &[(usize, f64)]| {
            let path = folder.path().join(file);
            let records = Records::open(&path).unwrap();
            for (at, (plan, time)) in trials.iter().enumerate() {
                let trial = Trial { at: at as i64, ..Trial::timed(&plans[*plan], *time, TimeKind::Measured) };
                records.add(&key, name, &device, "1", &trial).unwrap();
            }
            path
        };
        let count = |records: &[&std::path::PathBuf]| {
            let records = records.iter().map(|path| (*path).clone()).collect();
            let args = JudgeArgs { records, within: 60, only: None, arch: "sm_80".into(), show: 0, picks: 0 };
            let found = recorded(&args).unwrap();
            let of = &found[name];
            of.until_near(of.times.values().copied().fold(f64::INFINITY, f64::min))
        };
        // The second candidate is timed again before the third.
        let short = file("short.sqlite", &[(0, 20.0), (1, 13.0), (1, 12.0), (2, 10.2)]);
        let long = file("long.sqlite", &[(3, 10.0)]);
        let longer = file("longer.sqlite", &[(3, 5.0)]);
        assert_eq!(count(&[&short]), Some(3));
        assert_eq!(count(&[&short, &long]), Some(3));
        assert_eq!(count(&[&long, &short]), Some(1));
        assert_eq!(count(&[&short, &longer]), None);
        let text = until_near(vec![3, 61, usize::MAX], 60);
        assert!(text.starts_with("1 of 3 ") && text.ends_with("the median one after 61, the last after never"), "{text}");
    }
}
