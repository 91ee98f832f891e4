//! How well the cost model orders plans whose times are known. Needs no device: times come from recorded trials.

use crate::args::JudgeArgs;
use crate::error::BenchError;
use std::collections::BTreeMap;
use tilewright_gen::plan::Plan;
use tilewright_ir::Target;
use tilewright_problem::Problem;
use tilewright_tune::model::{Estimate, Picker};
use tilewright_tune::records::{Filter, Records, RecordsError, TimeKind};
use tilewright_tune::space::Space;

/// A recorded plan with both its times.
struct Judged {
    plan: Plan,
    measured: f64,
    modelled: f64,
    /// Where the modelled time goes, in words.
    parts: String,
}

/// `judge-model`: for each recorded problem the share of the best speed that the plan of least modelled time reaches, and how many
/// plans would have been timed in the model's order before one within 3 % of the best.
///
/// # Errors
/// Records that cannot be read, an unknown architecture.
pub fn judge_model(args: JudgeArgs) -> Result<(), BenchError> {
    let target = Target::by_arch(&args.arch).ok_or_else(|| {
        BenchError::Usage(format!("--arch {}: no target of that name; `tilewright devices` lists them", args.arch))
    })?;
    let failed = |e: RecordsError| BenchError::Plan(e.to_string());
    let mut trials: BTreeMap<String, BTreeMap<Plan, f64>> = BTreeMap::new();
    for path in &args.records {
        let records = Records::open_existing(path).map_err(failed)?;
        for r in records.list(&Filter { problem: args.problem.clone(), ..Filter::default() }).map_err(failed)? {
            let (Some(time), Some(TimeKind::Measured)) = (r.trial.time_us, r.trial.time_kind) else { continue };
            let Ok(plan) = Plan::parse(&r.trial.plan) else { continue };
            let known = trials.entry(r.name).or_default().entry(plan).or_insert(time);
            *known = known.min(time);
        }
    }
    if trials.is_empty() {
        let of =
            args.problem.as_ref().map_or(String::new(), |text| format!(" of problems whose name holds `{text}` (--problem)"));
        return Err(BenchError::Usage(format!("the records hold no measured trials{of}; tune on a device to make some")));
    }
    println!("{:>7} {:>7} {:>7} {:>6} {:>6}  problem", "best us", "pick us", "share", "rank", "plans");
    let mut shares = Vec::new();
    for (name, plans) in &trials {
        let space = Space::new(&Problem::parse(name)?, &target)?.with_atomics(true);
        let picker = Picker::new(&space);
        let judged = judge(&picker, plans);
        let Some(pick) = judged.first() else { continue };
        let best = judged.iter().map(|j| j.measured).fold(f64::INFINITY, f64::min);
        let rank = judged.iter().position(|j| j.measured <= 1.03 * best).map_or(0, |i| i + 1);
        shares.push(best / pick.measured);
        println!("{best:7.1} {:7.1} {:7.3} {rank:6} {:6}  {name}", pick.measured, best / pick.measured, judged.len());
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
    Ok(())
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
