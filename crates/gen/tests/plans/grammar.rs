//! The text form of plans and constraints: MIOpenGEMM's strings, round trips, and what is refused with which words.

use proptest::prelude::*;
use tilewright_gen::plan::{Constraint, GrammarError, GrammarFault, Key, Keys, Legal, Plan};

const A: &str = "MIC8_PAD1_PLU0_LIW0_MIW1_WOS0_VEW2";
const B: &str = "MIC5_PAD2_PLU0_LIW0_MIW1_WOS0_VEW1";
const C: &str = "UNR16_GAL3_PUN0_ICE1_IWI1_SZT0_MAD0_NAW16_UFO0_MAC256_SKW10_AFI1_MIA0";

fn full() -> String {
    format!("A_{A}__B_{B}__C_{C}")
}

#[test]
fn a_full_plan_parses_and_prints_as_it_was() {
    let plan = Keys::parse(&full()).unwrap();
    assert_eq!(plan.to_string(), full());
    assert_eq!(plan.a.vector, 2);
    assert_eq!(plan.b.micro, 5);
    assert_eq!(plan.strip_groups, 16);
    for key in Key::all().filter(|k| !k.info().is_classic()) {
        assert_eq!(plan.get(key), key.info().default, "{key}");
    }
}

#[test]
fn three_quoted_parts_are_the_same_plan() {
    let plan = Keys::parse(&full()).unwrap();
    let forms = [
        format!("{{{{{{\"{A}\",\n\"{B}\",\n\"{C}\"}}}}}};"),
        format!("\"{A}\", \"{B}\", \"{C}\""),
        format!("{{\"{A}\", \"{B}\", \"{C}\"}}"),
        format!("{A},{B},{C}"),
    ];
    for text in forms {
        let read = Keys::parse(&text).unwrap();
        assert!(read.difference(&plan).is_empty(), "{text}");
    }
}

/// The example of MIOpenGEMM's documentation: keys in an older order, MAD last.
#[test]
fn older_key_orders_are_read() {
    let text = "{{{\"MIC1_PAD1_PLU1_LIW1_MIW1_WOS0_VEW1\",\n\"MIC2_PAD2_PLU0_LIW0_MIW1_WOS0_VEW4\",\n\
                \"UNR16_GAL2_PUN1_ICE1_IWI1_SZT0_NAW64_UFO0_MAC64_SKW11_AFI1_MIA0_MAD0\"}}};";
    let plan = Keys::parse(text).unwrap();
    assert_eq!(plan.skew, 11);
    assert_eq!(plan.b.vector, 4);
    let again = Keys::parse(&plan.to_string()).unwrap();
    assert!(again.difference(&plan).is_empty());
    assert!(plan.to_string().ends_with("SZT0_MAD0_NAW64_UFO0_MAC64_SKW11_AFI1_MIA0"));
}

#[test]
fn parts_and_keys_may_stand_in_any_order() {
    let text = format!("C_{C}__B_{B}__A_VEW2_WOS0_MIW1_LIW0_PLU0_PAD1_MIC8");
    assert!(Keys::parse(&text).unwrap().difference(&Keys::parse(&full()).unwrap()).is_empty());
}

#[test]
fn further_keys_print_only_where_they_differ() {
    let text = full().replace("VEW1__C", "VEW1_LOR1_GLW4__C") + "_EDG1_PFG1_BUF2";
    let plan = Keys::parse(&text).unwrap();
    assert_eq!(plan.to_string(), text);
    assert_eq!(plan.but(|keys| keys.predicate = 0).to_string(), text.replace("_EDG1", ""));
    assert!(Keys::parse(&(full() + "_EDG0_PFG0")).unwrap().difference(&Keys::parse(&full()).unwrap()).is_empty());
}

#[test]
fn constraints_quoted_in_the_reference() {
    for (text, printed, keys) in [
        ("", "", 0),
        ("C_ICE1", "C_ICE1", 1),
        ("A_WOS0__B_WOS0__C_UFO1_ICE1_IWI0", "A_WOS0__B_WOS0__C_ICE1_IWI0_UFO1", 5),
        ("C_UNR24", "C_UNR24", 1),
        (" B_MIC7 ", "B_MIC7", 1),
        ("\"\", \"\", \"ICE1\"", "C_ICE1", 1),
        ("A_ACP1__C_PFG2_BUF3", "A_ACP1__C_PFG2_BUF3", 3),
    ] {
        let constraint = Constraint::parse(text).unwrap();
        assert_eq!(constraint.to_string(), printed);
        assert_eq!(constraint.iter().count(), keys);
        assert_eq!(Constraint::parse(printed).unwrap(), constraint);
    }
    let full = Constraint::parse(&full()).unwrap();
    assert!(full.allows(&Plan::parse(&full.to_string()).unwrap()));
}

fn refused(text: &str) -> GrammarError {
    Constraint::parse(text).unwrap_err()
}

#[test]
fn malformed_texts_are_refused_with_token_place_and_remedy() {
    let cases: [(&str, &str, usize, &str); 24] = [
        ("A_MIC12x", "MIC12x", 2, "digits only"),
        ("A_MIC8_MIK2", "MIK2", 7, "did you mean MIC?"),
        ("A_mic8", "mic8", 2, "did you mean MIC?"),
        ("C_QQQQ1", "QQQQ1", 2, "its keys are UNR GAL"),
        ("A_UNR16", "UNR16", 2, "UNR is a key of part C, not of part A"),
        ("C_MIC8", "MIC8", 2, "MIC is a key of parts A and B, not of part C"),
        ("A_MIC8_MIC8", "MIC8", 7, "A_MIC is given twice"),
        ("A_MIC8__A_PAD1", "A_PAD1", 8, "part A is given twice"),
        ("A_MIC0", "MIC0", 2, "must be 1 to 64"),
        ("C_GAL9", "GAL9", 2, "must be 1 to 3"),
        ("C_ICE0", "ICE0", 2, "must be 1 to 4096"),
        ("B_WOS4", "WOS4", 2, "must be 0 to 3"),
        ("B_VEW3", "VEW3", 2, "must be one of 1, 2, 4, 8"),
        ("A_PLU2", "PLU2", 2, "must be one of 0, 1"),
        ("C_MAC99999999999999999999", "MAC99999999999999999999", 2, "must be 1 to 1024"),
        ("C_UNR-4", "UNR-4", 2, "digits only"),
        ("C_UNR", "UNR", 2, "digits only"),
        ("C__ICE1", "C", 0, "part C has no keys"),
        ("A_", "A_", 0, "part A has no keys"),
        ("D_MIC8", "D_MIC8", 0, "A_, B_ or C_"),
        ("MIC8", "MIC8", 0, "A_, B_ or C_"),
        ("A_MIC8_", "", 7, "a key is missing here"),
        ("A_MIC8__", "", 8, "a key is missing here"),
        ("  A_MIC8_PAD99", "PAD99", 9, "must be 0 to 32"),
    ];
    for (text, token, at, words) in cases {
        let error = refused(text);
        assert_eq!((error.token.as_str(), error.at), (token, at), "{text}: {error}");
        let message = error.to_string();
        assert!(message.contains(words), "{text}: {message}");
        assert!(message.contains(&format!("\"{token}\" at character {}", at + 1)), "{message}");
    }
}

#[test]
fn malformed_quoted_forms_are_refused() {
    for (text, words) in [
        ("\"MIC8\", \"MIC8\"", "2 comma separated parts"),
        ("\"MIC8\", \"MIC8\", \"UNR8\", \"\"", "4 comma separated parts"),
        ("\"MIC8, \"MIC8\", \"UNR8\"", "do not match"),
        ("\"MIC8\", \"MIC8\", \"UNR8", "do not match"),
        ("{{{MIC8, {MIC8}, UNR8}}}", "do not match"),
        ("\"MIC8x\", \"\", \"\"", "digits only"),
        ("{}", "1 comma separated"),
        ("\"", "1 comma separated"),
        ("A_MIC8,,", "part A has no such key"),
    ] {
        let message = refused(text).to_string();
        assert!(message.contains(words), "{text}: {message}");
    }
    let error = refused("{{{\"MIC8\", \"MIC8_WOS7\", \"\"}}}");
    assert_eq!((error.token.as_str(), error.at), ("WOS7", 17));
}

#[test]
fn a_full_plan_must_name_all_27_keys() {
    for key in Key::all().filter(|k| k.info().is_classic()) {
        let plan = Keys::parse(&full()).unwrap();
        let token = format!("{}{}", key.name(), plan.get(key));
        let part = key.part().name();
        let parts: Vec<String> =
            full()
                .split("__")
                .map(|p| {
                    if p.starts_with(part) {
                        p.split('_').filter(|t| *t != token).collect::<Vec<_>>().join("_")
                    } else {
                        p.into()
                    }
                })
                .collect();
        let error = Keys::parse(&parts.join("__")).unwrap_err();
        assert_eq!(error.problem, GrammarFault::MissingKeys(vec![key]));
        assert!(error.to_string().contains(&format!("missing keys: {key}")), "{error}");
    }
    assert!(matches!(Keys::parse("").unwrap_err().problem, GrammarFault::MissingKeys(k) if k.len() == 27));
}

/// Directory names of MIOpenGEMM's demokernels: a grammar without VEW, IWI, SZT, AFI, MIA and MAD.
#[test]
fn the_older_grammar_is_refused_naming_what_is_missing() {
    let text = "A_MIC8_PAD1_PLU0_LIW0_MIW1_WOS1__B_MIC6_PAD1_PLU0_LIW0_MIW1_WOS1__C_UNR8_GAL3_PUN1_ICE2_NAW64_UFO0_MAC256_SKW10";
    let message = Keys::parse(text).unwrap_err().to_string();
    for key in ["A_VEW", "B_VEW", "C_IWI", "C_SZT", "C_AFI", "C_MIA", "C_MAD"] {
        assert!(message.contains(key), "{message}");
    }
    assert!(Constraint::parse(text).is_ok());
}

#[test]
fn plans_serialise_as_their_text() {
    // No split of k: how its k-tiles are shared out has no effect.
    let plan = Plan::parse(&full()).unwrap();
    let json = serde_json::to_string(&plan).unwrap();
    assert_eq!(json, format!("\"{}\"", full().replace("IWI1", "IWI0")));
    assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
    let pin: Constraint = serde_json::from_str("\"C_ICE1\"").unwrap();
    assert_eq!(serde_json::to_string(&pin).unwrap(), "\"C_ICE1\"");
    assert!(serde_json::from_str::<Plan>("\"C_ICE1\"").is_err());
}

fn legal(key: Key) -> BoxedStrategy<u32> {
    match key.info().legal {
        Legal::Range(low, high) => (low..=high).boxed(),
        Legal::OneOf(values) => proptest::sample::select(values).boxed(),
    }
}

fn any_plan() -> impl Strategy<Value = Keys> {
    let keys: Vec<Key> = Key::all().collect();
    let values: Vec<_> = keys.iter().map(|k| legal(*k)).collect();
    values.prop_map(move |v| keys.iter().zip(v).fold(Keys::default(), |p, (k, v)| p.with(*k, v)))
}

proptest! {
    #[test]
    fn every_plan_survives_its_text(plan in any_plan()) {
        let read = Keys::parse(&plan.to_string()).unwrap();
        prop_assert!(read.difference(&plan).is_empty());
    }

    #[test]
    fn every_constraint_survives(plan in any_plan(), picks in proptest::collection::vec(any::<bool>(), 50)) {
        let mut constraint = Constraint::none();
        for (key, _) in Key::all().zip(picks).filter(|(_, pick)| *pick) {
            constraint.pin(key, plan.get(key));
        }
        prop_assert_eq!(Constraint::parse(&constraint.to_string()).unwrap(), constraint);
    }

    #[test]
    fn no_text_panics(text in "[ABC_MICPADUNR0-9\", {}x]{0,40}") {
        for error in [Keys::parse(&text).err(), Constraint::parse(&text).err()].into_iter().flatten() {
            prop_assert!(error.at <= text.len());
            prop_assert!(!error.to_string().is_empty());
        }
    }

    /// A plan is the same plan again from its own text, and from its keys.
    #[test]
    fn plans_are_canonical(keys in any_plan()) {
        let plan = Plan::from(keys);
        prop_assert_eq!(Plan::from(*plan), plan);
        prop_assert_eq!(Plan::parse(&keys.to_string()).unwrap(), plan);
        prop_assert_eq!(Plan::parse(&plan.to_string()).unwrap(), plan);
    }
}
