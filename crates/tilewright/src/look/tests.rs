//! Looks on a device that computes wrongly: what fails is never used, what is known is not asked again.

use super::*;
use crate::context::TrialsAt;
use crate::{Budget, Common, Constraint, Context, Gemm, Key, Options, Order, Origin, RecordsAt, Scalar, Trials, WorkerProgram};
use std::path::Path;
use std::sync::Arc;
use tilewright_device::{Device, DeviceError, DeviceInfo, DeviceKind, Launch, LaunchArg};
use tilewright_gen::plan::generic;
use tilewright_tune::records::{Filter, Looked};

#[macro_use]
#[path = "../../../device/tests/common/delegated.rs"]
mod delegated;

/// The emulator, which adds 64 to the first element of C after a launch of some kernels.
struct Liar {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    /// True for the main kernel of a number, in the order in which they were first launched.
    lies: fn(usize) -> bool,
    /// Sources that were launched.
    seen: Mutex<Vec<String>>,
    launches: Mutex<usize>,
}

impl Liar {
    fn new(name: &str, lies: fn(usize) -> bool) -> Arc<Liar> {
        let inner = tilewright_device::open("emu:sm_80").expect("the emulator opens");
        let info = DeviceInfo { name: name.into(), ..inner.info().clone() };
        Arc::new(Liar { inner, info, lies, seen: Mutex::default(), launches: Mutex::default() })
    }
    fn launches(&self) -> usize {
        *self.launches.lock().expect("no panic")
    }
}

impl Device for Liar {
    delegated!(inner: prepare compile memory sync time);
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        *self.launches.lock().expect("no panic") += 1;
        self.inner.launch(launches)?;
        let source: String = launches.iter().map(|l| l.kernel.source()).collect();
        let mut seen = self.seen.lock().expect("no panic");
        let number = seen.iter().position(|s| *s == source).unwrap_or_else(|| {
            seen.push(source);
            seen.len() - 1
        });
        if !(self.lies)(number) {
            return Ok(());
        }
        let mut named = launches.iter().flat_map(|l| l.kernel.args().iter().zip(&l.args));
        let arg = |name: &str| named.clone().rfind(|(arg, _)| arg.name == name).map(|(_, value)| value);
        let (Some(LaunchArg::Buffer(c)), Some(LaunchArg::I64(at))) = (arg("c"), arg("c_offset")) else {
            panic!("a kernel without C: {:?}", named.next().map(|(arg, _)| &arg.name));
        };
        let (mut element, byte) = ([0; 4], *at as u64 * 4);
        self.inner.read(c, byte, &mut element)?;
        self.inner.write(c, byte, &(f32::from_le_bytes(element) + 64.0).to_le_bytes())
    }
}

fn context(device: &Arc<Liar>, records: &RecordsAt) -> Context {
    let options = Options { records: records.clone(), ..Options::default() };
    Context::on(device.clone(), options).expect("records open")
}

fn in_file(path: &Path) -> RecordsAt {
    RecordsAt::File(path.into())
}

fn gemm(m: u64, n: u64, k: u64) -> crate::GemmBuilder {
    Gemm::new(Scalar::F32, m, n, k).order(Order::Row)
}

fn operation(context: &Context) -> Operation {
    context.gemm(gemm(24, 20, 12)).expect("a problem")
}

fn looks(context: &Context) -> Vec<Looked> {
    context.records().looks(&Filter::default()).expect("records")
}

/// Runs an operation on ones.
fn runs_right(operation: &Operation) {
    let context = operation.context();
    let (a, b) = (context.upload(&[1.0f32; 24 * 12]).expect("memory"), context.upload(&[1.0f32; 12 * 20]).expect("memory"));
    let mut c = context.alloc::<f32>(24 * 20).expect("memory");
    operation.run(&a, &b, &mut c, 1.0, 0.0).expect("it runs");
    assert_eq!(c.download().expect("the result"), [12.0; 24 * 20]);
}

#[test]
fn a_pick_that_computes_wrongly_is_never_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let records = in_file(&folder.path().join("r.sqlite"));
    let liar = Liar::new("one lie", |number| number == 0);
    let here = context(&liar, &records);
    let op = operation(&here);
    let (first, origin) = op.choice().expect("a plan");
    assert_eq!(origin, Origin::Picked);
    let prepared = op.prepare().expect("another plan");
    assert_ne!(prepared.plan(), first);
    assert_eq!(op.choice().expect("a plan"), (prepared.plan(), Origin::Picked));
    let failed = op.failed_looks();
    assert_eq!(failed.len(), 1);
    assert!(failed[0].plan == first.to_string() && failed[0].reason.contains("wrong"), "{failed:?}");
    runs_right(&op);
    let known: Vec<(String, bool)> = looks(&here).into_iter().map(|l| (l.look.plan.clone(), l.look.passed())).collect();
    assert_eq!(known.len(), 2);
    assert!(known.contains(&(first.to_string(), false)) && known.contains(&(prepared.plan().to_string(), true)), "{known:?}");

    // Another process with these records looks at nothing, and passes over the same plan.
    let other = context(&liar, &records);
    let (before, op) = (liar.launches(), operation(&other));
    assert_eq!(op.prepare().expect("a plan").plan(), prepared.plan());
    assert_eq!(liar.launches(), before);
    // On another device, or another driver, nobody has looked.
    let honest = Liar::new("no lie", |_| false);
    assert_eq!(operation(&context(&honest, &records)).prepare().expect("a plan").plan(), first);
    assert!(honest.launches() > 0);
}

/// Ranking plans takes long: another process finds what the first one ranked, unless its build ranks otherwise.
#[test]
fn picks_are_kept_for_other_processes_of_the_same_build() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("r.sqlite");
    let (honest, records) = (Liar::new("picks", |_| false), in_file(&path));
    let plan = |context: &Context| operation(context).choice().expect("a plan").0;
    let first = plan(&context(&honest, &records));
    let other = operation(&context(&honest, &records)).candidates(40).pop().expect("a candidate").plan;
    assert_ne!(other, first);
    let change = |set: &str, value: &str| {
        let file = rusqlite::Connection::open(&path).expect("a file");
        assert_eq!(file.execute(&format!("UPDATE picks SET {set} = ?1"), [value]).expect("it is written"), 1);
    };
    change("plans", &other.to_string());
    assert_eq!(plan(&context(&honest, &records)), other);
    // A constraint asks for other plans, and a plan that is not legal here for a new ranking.
    let pinned = Constraint::parse(&format!("C_UNR{}", first.get(Key::C(Common::Unr)))).expect("a constraint");
    assert_ne!(operation(&context(&honest, &records)).constrained(&pinned).choice().expect("a plan").0, other);
    change("plans", "A_MIC1__B_MIC1__C_UNI2");
    assert_eq!(plan(&context(&honest, &records)), first);
    change("plans", &other.to_string());
    change("build", "another");
    assert_eq!(plan(&context(&honest, &records)), first);
    assert_eq!(context(&honest, &records).records().remove(&Filter::default()).expect("records"), 0);
    let file = rusqlite::Connection::open(&path).expect("a file");
    assert_eq!(file.query_row("SELECT count(*) FROM picks", [], |r| r.get::<_, i64>(0)).expect("a number"), 0);
}

#[test]
fn nothing_is_prepared_before_somebody_looked_where_no_look_is_allowed() {
    let liar = Liar::new("ask first", |_| false);
    let here = context(&liar, &RecordsAt::Memory);
    let op = operation(&here);
    assert!(op.prepared_for([256; 3]).expect("no error").is_none());
    assert_eq!(liar.launches(), 0);
    let plan = op.prepare().expect("a plan").plan();
    assert_eq!(op.prepared_for([256; 3]).expect("no error").map(|p| p.plan()), Some(plan));
    // Another alignment is another question.
    let wide = op.prepared_for([4; 3]).expect("no error").is_some();
    let narrow = op.prepare_for([4; 3]).expect("a plan").plan();
    assert_eq!(wide, narrow == plan && liar.launches() == 2);
    assert_eq!(op.prepared_for([4; 3]).expect("no error").map(|p| p.plan()), Some(narrow));
    // Another operation of the same problem finds the look in the records.
    let before = liar.launches();
    assert_eq!(operation(&here).prepared_for([256; 3]).expect("no error").map(|p| p.plan()), Some(plan));
    assert_eq!(liar.launches(), before);
}

#[test]
fn where_every_plan_fails_nothing_runs() {
    let liar = Liar::new("all lies", |_| true);
    let op = operation(&context(&liar, &RecordsAt::Memory));
    let given = op.candidates(1)[0].plan;
    op.set_plan(&given).expect("it is legal");
    let refused = op.prepare().expect_err("it computes wrongly");
    let text = refused.to_string();
    assert!(matches!(refused, Error::Look { .. }) && text.contains(&given.to_string()) && text.contains("wrong"), "{text}");
    let op = operation(op.context());
    let refused = op.prepare().expect_err("all compute wrongly");
    assert!(matches!(refused, Error::Look { .. }), "{refused}");
    assert!(op.failed_looks().len() > 1);
    // A whole plan that was demanded is refused by its name, too.
    let op = operation(op.context()).constrained(&Constraint::exactly(&given));
    assert!(matches!(op.prepare().expect_err("it computes wrongly"), Error::Look { plan, .. } if *plan == *given.to_string()));
}

/// Each plan of the fallback order is looked at with operands that begin as the launch's do.
#[test]
fn narrower_plans_are_looked_at() {
    let wide = |context: &Context| {
        let text = "A_VEW4_ACP0__B_VEW4_ACP0__C_CVW4";
        operation(context).constrained(&Constraint::parse(text).expect("a constraint"))
    };
    let honest = Liar::new("narrow", |_| false);
    let here = context(&honest, &RecordsAt::Memory);
    let op = wide(&here);
    let prepared = op.prepare_for([4; 3]).expect("a fallback");
    let plan = op.choice().expect("a plan").0;
    assert_ne!(prepared.plan(), plan);
    let known = looks(&here);
    assert_eq!(known.len(), 1, "{known:?}");
    assert_eq!(known[0].look.plan, prepared.plan().to_string());
    // If the first of them lies, the next one runs.
    let liar = Liar::new("narrow lies", |number| number == 0);
    let op = wide(&context(&liar, &RecordsAt::Memory));
    let next = op.prepare_for([4; 3]).expect("the next fallback").plan();
    assert_ne!(next, prepared.plan());
    assert_eq!(op.failed_looks().iter().map(|f| f.plan.clone()).collect::<Vec<_>>(), [prepared.plan().to_string()]);
}

#[test]
fn the_scalar_kernel_is_looked_at_once_for_a_device_and_a_type() {
    let honest = Liar::new("scalar", |_| false);
    let here = context(&honest, &RecordsAt::Memory);
    let look = |m: u64, dtype: Scalar| {
        let op = here.gemm(Gemm::new(dtype, m, 200, 30).order(Order::Row)).expect("a problem");
        let plan = generic(op.space().contraction(&Plan::default()));
        let look = op.look_at(&plan, Some([8; 3]), true).expect("it runs").expect("a look");
        assert!(look.passed(), "{look:?}");
        honest.launches()
    };
    let first = look(300, Scalar::F32);
    assert!(first > 0);
    assert_eq!([look(301, Scalar::F32), look(950, Scalar::F32)], [first; 2]);
    assert!(look(300, Scalar::F64) > first);
    assert_eq!(looks(&here).len(), 2);
}

/// What a file says of a plan counts for nothing: neither its time nor its verification.
#[test]
fn a_forged_row_never_wins() {
    let honest = Liar::new("records", |_| false);
    let from = context(&honest, &RecordsAt::Memory);
    let tuned = operation(&from).tune(Budget::trials(3)).expect("a plan");
    // The slowest of the candidates, forged as the fastest.
    let slow = operation(&from).candidates(200).pop().expect("a candidate").plan;
    assert_ne!(slow, tuned.plan);
    let mut lines = Vec::new();
    from.records().export(&Filter::default(), &mut lines).expect("records");
    let lines = String::from_utf8(lines).expect("text");
    let line = lines.lines().find(|line| line.contains(&tuned.plan.to_string())).expect("the winner").to_string();
    let mut forged: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    forged["trial"]["plan"] = slow.to_string().into();
    forged["trial"]["time_us"] = 0.01.into();
    forged["trial"]["verified"] = "thorough".into();
    let forged = forged.to_string();
    // In one's own file, in a merged one, and with plans that compute wrongly.
    for lies in [|_: usize| false, |number: usize| number == 0] {
        let device = Liar::new("records", lies);
        let here = context(&device, &RecordsAt::Memory);
        assert_eq!(here.records().import(&mut forged.as_bytes(), "forged").expect("it is read"), 1);
        let op = operation(&here);
        let (plan, origin) = op.choice().expect("a plan");
        assert_eq!(origin, Origin::VerifiedAgain);
        assert_ne!(plan, slow);
        assert_ne!(op.prepare().expect("a plan").plan(), slow);
        runs_right(&op);
        let best = here.records().best(
            &ProblemKey::of(op.space()),
            &op.seen(op.space(), &plan).device,
            tilewright_tune::search::GENERATOR,
        );
        assert!(best.expect("records").expect("a best one").time_us.expect("a time") > 0.01);
    }
}

/// A file that takes no looks: they hold for the process.
#[test]
fn where_records_cannot_be_written_looks_hold_for_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("r.sqlite");
    let liar = Liar::new("unwritable", |number| number == 0);
    let first = operation(&context(&liar, &in_file(&path))).choice().expect("a plan").0;
    let file = rusqlite::Connection::open(&path).expect("a file");
    file.execute_batch("CREATE TRIGGER full BEFORE INSERT ON looks BEGIN SELECT RAISE(FAIL, 'no room'); END").expect("a trigger");
    drop(file);
    let here = context(&liar, &in_file(&path));
    let op = operation(&here);
    let plan = op.prepare().expect("another plan").plan();
    assert_ne!(plan, first);
    assert_eq!(looks(&here), []);
    let before = liar.launches();
    let other = context(&liar, &in_file(&path));
    assert_eq!(operation(&other).prepare().expect("a plan").plan(), plan);
    assert_eq!(liar.launches(), before);
}

/// A thorough verification is a look.
#[test]
fn a_tuned_plan_is_not_looked_at_again() {
    let liar = Liar::new("tuned", |_| false);
    let here = context(&liar, &RecordsAt::Memory);
    let op = operation(&here);
    op.tune(Budget::trials(3)).expect("a plan");
    let before = liar.launches();
    op.prepare().expect("a plan");
    operation(&here).prepare().expect("a plan");
    assert_eq!((liar.launches(), looks(&here)), (before, Vec::new()));
    assert_eq!(op.failed_looks(), []);
    // Pinned keys are no reason to trust a plan.
    let mac = Constraint::parse("C_UNR8").expect("a constraint");
    let op = operation(&here).constrained(&mac);
    let plan = op.prepare().expect("a plan").plan();
    assert_eq!(plan.get(Key::C(Common::Unr)), 8);
}

/// A worker process that every launch takes down.
struct Lost {
    inner: Arc<dyn Device>,
    launches: Mutex<usize>,
    /// After so many no worker starts.
    most: usize,
}

impl Device for Lost {
    delegated!(inner: prepare compile memory sync time);
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn launch(&self, launches: &[Launch]) -> Result<(), DeviceError> {
        let mut seen = self.launches.lock().expect("no panic");
        *seen += 1;
        let device = self.info().id.clone();
        if *seen > self.most {
            return Err(DeviceError::NoWorker { device, reason: "did not start".into() });
        }
        let entry = launches.first().map(|launch| launch.kernel.entry().into()).unwrap_or_default();
        Err(DeviceError::WorkerLost { device, entry, reason: "crashed: by a test".into() })
    }
    fn revives(&self) -> bool {
        true
    }
}

#[test]
fn a_look_that_loses_its_worker_never_runs_in_this_process() {
    for most in [usize::MAX, 1, 0] {
        let mut liar = Liar::new(&format!("honest, but a worker crashes, {most}"), |_| false);
        Arc::get_mut(&mut liar).expect("nobody else has it").info.kind = DeviceKind::Gpu;
        let here = context(&liar, &RecordsAt::Memory);
        let lost = Arc::new(Lost { inner: liar.clone(), launches: Mutex::default(), most });
        *here.inner.trials.lock().expect("no panic") =
            TrialsAt { chosen: Trials::WorkerOf(WorkerProgram::new("none", [])), device: Some(lost.clone()) };
        let op = operation(&here);
        let refused = op.prepare().expect_err("no plan passed a look");
        let failed = op.failed_looks();
        assert!(failed.iter().all(|look| look.reason.contains("crashed")), "{failed:?}");
        let launches = *lost.launches.lock().expect("no panic");
        assert_eq!(liar.launches(), 0);
        if most < usize::MAX {
            assert!(refused.to_string().contains("did not start"), "{refused}");
            assert_eq!((failed.len(), launches), (most, most + 1));
        } else {
            assert!(matches!(refused, Error::Look { .. }) && refused.to_string().contains("by a test"), "{refused}");
            assert!(failed.len() > 1 && launches == failed.len(), "{failed:?}");
        }
    }
}
