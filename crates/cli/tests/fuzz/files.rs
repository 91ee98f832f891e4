//! Files: records as JSON lines, comparisons, ONNX models, edited sources.

use crate::harness::fuzz;
use crate::texts::{pairs, planned, target};
use tilewright::{Context, Edited, RecordsAt};
use tilewright_bench::{Record as Compared, line, summary};
use tilewright_check::random::Pair;
use tilewright_check::verify::Depth;
use tilewright_gen::space::Space;
use tilewright_onnx::{Options, parse};
use tilewright_tune::records::{Bad, DeviceKey, Filter, GENERATOR, Record, State, TimeKind, Trial};
use tilewright_tune::{ProblemKey, Records};

/// Lines of records of random pairs: one for each pair, and all in one.
fn lines() -> Vec<Vec<u8>> {
    let device = DeviceKey { name: "GPU \"x\"".into(), fingerprint: "sm_90a; driver 1".into() };
    let record = |(n, pair): (usize, &Pair)| {
        let plan = pair.plan.to_string();
        let trial = match n % 3 {
            0 => Trial::timed(&plan, 12.5, TimeKind::Modelled),
            1 => Trial { verified: Some(Depth::Quick), max_error: Some(1e-7), ..Trial::timed(&plan, 12.5, TimeKind::Measured) },
            _ => Trial::unmeasured(&plan, State::Refused, "two\nlines"),
        };
        Record {
            problem: ProblemKey::of(&Space::new(&pair.problem, &target()).expect("a space")),
            name: pair.problem.key(),
            device: device.clone(),
            generator: GENERATOR.into(),
            timed_by: (n % 2 == 0).then(|| "here".into()),
            verified_by: None,
            trial: Trial { at: n as i64, ..trial },
        }
    };
    let mut all: Vec<_> = pairs().iter().enumerate().map(|pair| record(pair).line().into_bytes()).collect();
    all.push(all.join(&b'\n'));
    all
}

#[test]
fn records() {
    fuzz("records", lines(), |input| {
        let records = Records::in_memory().expect("records");
        let read = records.import(&mut &input[..], "strange.jsonl").map_err(|error| error.to_string());
        let imported = records.import_with(&mut &input[..], "strange.jsonl", Bad::Skip).expect("bad lines are left out");
        let listing = records.listing(&Filter::default()).expect("a list");
        assert!(listing.unread.is_empty() && listing.records.len() >= imported.added);
        for record in listing.records.iter().take(4) {
            records.best(&record.problem, &record.device, GENERATOR).expect("a query");
            records.nearest(&record.problem, &record.device, GENERATOR, 3).expect("a query");
        }
        read.map(drop)
    });
}

#[test]
fn comparisons() {
    let example = include_str!("../../../bench/tests/example.jsonl");
    let valid = example.lines().take(8).map(|line| line.as_bytes().to_vec()).collect();
    fuzz("comparisons", valid, |input| {
        let text = String::from_utf8_lossy(input);
        let read = text.lines().map(serde_json::from_str).collect::<Result<Vec<Compared>, _>>();
        let records = read.map_err(|error| error.to_string())?;
        records.iter().for_each(|record| assert!(!line(record).is_empty()));
        summary(&records);
        Ok(())
    });
}

/// The models are the corpus.
#[test]
fn onnx_models() {
    fuzz("onnx", Vec::new(), |input| {
        let mut refusal = String::new();
        for names in [&[][..], &["batch"], &["batch", "length"], &["x.0"]] {
            let dims = names.iter().map(|name| (name.to_string(), 5)).collect();
            match parse("strange.onnx", input, &Options { dims, ..Options::default() }) {
                Ok(model) => {
                    model.layers.iter().take(4).for_each(|layer| planned(&layer.problem));
                    return Ok(());
                }
                Err(error) => refusal = error.to_string(),
            }
        }
        Err(refusal)
    });
}

#[test]
fn edited_sources() {
    let options =
        tilewright::Options { device: Some("emu:sm_90a".into()), records: RecordsAt::Memory, ..tilewright::Options::default() };
    let context = Context::with(options).expect("the emulator");
    let source = |pair: &Pair| {
        let operation = context.operation(pair.problem.clone()).expect("an operation");
        operation.set_plan(&pair.plan).ok()?;
        operation.source().ok().map(String::into_bytes)
    };
    let valid: Vec<_> = pairs().iter().filter_map(source).take(12).collect();
    assert!(valid.len() > 3, "{} sources", valid.len());
    // Edits of the head alone, which is a small part of a source.
    let heads = valid.iter().map(|text| text.split(|b| *b == b'\n').find(|line| line.windows(9).any(|w| w == b"\"version\"")));
    let heads = heads.map(|head| head.expect("a head").to_vec());
    let valid = heads.chain(valid.iter().cloned()).collect();
    fuzz("sources", valid, |input| {
        let edited = Edited::parse(&String::from_utf8_lossy(input)).map_err(|error| error.to_string())?;
        let _ = context.edited(&edited).map_err(|error| assert!(!error.to_string().is_empty()));
        Ok(())
    });
}
