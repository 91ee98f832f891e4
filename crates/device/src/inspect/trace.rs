//! One round of a loop in order, and for each load in it how much math stands before its wait.

use super::flow::Loop;
use super::listing::{Class, Instruction, Listing, Tracked, Wait};
use super::{Flight, LoopReport, Role, Run};
use std::collections::BTreeMap;

/// Rounds after which a load counts as never waited for.
const ROUNDS: usize = 8;

/// What a loop does, its rounds laid out from the first load on.
pub(super) fn trace(listing: &Listing, found: &Loop, role: Role) -> LoopReport {
    let code: Vec<&Instruction> = found.order.iter().filter_map(|&i| listing.instructions.get(i)).collect();
    let code = rotate(code);
    let mut flights = Vec::new();
    // Instructions that are not waits but are the first to wait for some load.
    let mut waits = vec![false; code.len()];
    for (at, instruction) in code.iter().enumerate().filter(|(_, i)| i.class.is_load()) {
        let arrived = arrival(&code, at);
        if let Some((_, place)) = arrived {
            waits[place] |= code[place].class != Class::Wait;
        }
        flights.push(Flight {
            text: instruction.text.clone(),
            at: at as u32,
            math_before: math(&code, 0, at),
            math_to_wait: arrived.map(|(distance, _)| math(&code, at, distance)),
            wait_at: arrived.map(|(_, place)| place as u32),
            math_to_store: arrived.and_then(|(_, place)| store(&code, place)),
        });
    }
    let mut counts = BTreeMap::new();
    for instruction in &code {
        *counts.entry(instruction.class).or_insert(0) += 1;
    }
    let implied = waits.iter().filter(|w| **w).count() as u32;
    if implied > 0 {
        *counts.entry(Class::Wait).or_insert(0) += implied;
    }
    let runs = runs(&code, &waits);
    let order = code.iter().map(|i| i.class).collect();
    let number = |of: fn(&Instruction) -> bool| code.iter().filter(|i| of(i)).count() as u32;
    LoopReport {
        role,
        instructions: code.len() as u32,
        nested: !found.inner.is_empty(),
        counts,
        matrix: number(Instruction::is_matrix),
        integer: number(Instruction::is_integer),
        live_registers: None,
        runs,
        flights,
        order,
        within: found.order.first().copied().unwrap_or(0),
    }
}

/// The same iteration, rotated to begin at its first load: the load after the longest run of math.
fn rotate(code: Vec<&Instruction>) -> Vec<&Instruction> {
    let loads = || code.iter().enumerate().filter(|(_, i)| i.class.is_load()).map(|(at, _)| at);
    let before = |at: usize| {
        let n = code.len();
        let back = (1..n).take_while(|d| !code[(at + n - d) % n].class.is_load());
        let (mut math, mut all) = (0, 0);
        for d in back {
            all += 1;
            math += usize::from(code[(at + n - d) % n].class == Class::Math);
        }
        (math, all)
    };
    let Some(first) = loads().max_by_key(|&at| (before(at), std::cmp::Reverse(at))) else { return code };
    let mut code = code;
    code.rotate_left(first);
    code
}

/// Number of math instructions among the `length` instructions from position `at` on, over several iterations.
fn math(code: &[&Instruction], at: usize, length: usize) -> u32 {
    (at..at + length).filter(|i| code[i % code.len()].class == Class::Math).count() as u32
}

/// Finds the instruction that waits for a load: its distance from the load in instructions, and its position in the iteration.
fn arrival(code: &[&Instruction], load: usize) -> Option<(usize, usize)> {
    let n = code.len();
    // `issued`: later loads on the same counter. `closed`: groups closed since this load's group.
    let (mut issued, mut closed) = (0, 0);
    for distance in 1..ROUNDS * n {
        let place = (load + distance) % n;
        let here = code[place];
        let done = match (code[load].tracked, here.wait) {
            (Tracked::Counter, Wait::Counter(pending)) => issued >= pending,
            (Tracked::Scoreboard(held), Wait::Scoreboards(set)) => set >> held & 1 == 1,
            (Tracked::InGroup, Wait::Groups(pending)) => closed > pending,
            _ => false,
        };
        if done {
            return Some((distance, place));
        }
        issued += u32::from(here.tracked == Tracked::Counter);
        closed += u32::from(here.tracked == Tracked::Commit);
    }
    None
}

/// Math between a wait and the next store to shared memory.
fn store(code: &[&Instruction], wait: usize) -> Option<u32> {
    let n = code.len();
    let distance = (0..n).find(|d| code[(wait + d) % n].class == Class::SharedStore)?;
    Some(math(code, wait, distance))
}

/// Runs of one class. Addresses, moves and branches between them are left out.
fn runs(code: &[&Instruction], waits: &[bool]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut push = |class: Class, at: usize, text: String, pending: Option<u32>| match runs.last_mut() {
        Some(last) if last.class == class && last.pending == pending => last.count += 1,
        _ => runs.push(Run { class, count: 1, at: at as u32, text, pending }),
    };
    for (at, (instruction, waits)) in code.iter().zip(waits).enumerate() {
        if *waits {
            push(Class::Wait, at, format!("before {}", instruction.text), None);
        }
        let pending = match instruction.wait {
            Wait::Counter(n) | Wait::Groups(n) => Some(n),
            Wait::No | Wait::Scoreboards(_) => None,
        };
        if !matches!(instruction.class, Class::Other | Class::Branch) {
            push(instruction.class, at, instruction.text.clone(), pending);
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::super::listing::Flow;
    use super::*;

    fn one(class: Class, tracked: Tracked, wait: Wait) -> Instruction {
        Instruction { text: class.name().into(), class, tracked, wait, flow: Flow::Next }
    }

    /// L load, S store, m math, b barrier, digits wait until so many are pending. Lower-case `c` copy, `g` closes a group, `w`
    /// waits until one group is pending. `x` and `y` load on scoreboards 0 and 1, `X` and `Y` are math that waits for those.
    fn report(text: &str) -> LoopReport {
        let instructions: Vec<Instruction> = text
            .chars()
            .map(|c| match c {
                'L' => one(Class::GlobalLoad, Tracked::Counter, Wait::No),
                'S' => one(Class::SharedStore, Tracked::No, Wait::No),
                'b' => one(Class::Barrier, Tracked::No, Wait::No),
                'c' => one(Class::Copy, Tracked::InGroup, Wait::No),
                'g' => one(Class::Other, Tracked::Commit, Wait::No),
                'w' => one(Class::Wait, Tracked::No, Wait::Groups(1)),
                'x' => one(Class::GlobalLoad, Tracked::Scoreboard(0), Wait::No),
                'y' => one(Class::GlobalLoad, Tracked::Scoreboard(1), Wait::No),
                'X' => one(Class::Math, Tracked::No, Wait::Scoreboards(1)),
                'Y' => one(Class::Math, Tracked::No, Wait::Scoreboards(2)),
                digit => match digit.to_digit(10) {
                    Some(n) => one(Class::Wait, Tracked::No, Wait::Counter(n)),
                    None => one(Class::Math, Tracked::No, Wait::No),
                },
            })
            .collect();
        let order = (0..instructions.len()).collect();
        trace(&Listing { instructions, labels: vec![] }, &Loop { order, inner: vec![] }, Role::Main)
    }

    fn distances(text: &str) -> Vec<(Option<u32>, Option<u32>)> {
        report(text).flights.iter().map(|f| (f.math_to_wait, f.math_to_store)).collect()
    }

    #[test]
    fn counters_finish_in_order() {
        assert_eq!(distances("LL1Smm0Sm"), [(Some(0), Some(0)), (Some(2), Some(0))]);
        assert_eq!(distances("mmmLLmm0mSb"), [(Some(2), Some(1)), (Some(2), Some(1))]);
        assert_eq!(distances("Lm"), [(None, None)]);
    }

    #[test]
    fn a_wait_may_stand_in_a_later_round() {
        // Two loads in flight: the older one is waited for a round later.
        assert_eq!(distances("Lmm1Smm"), [(Some(6), Some(0))]);
        assert_eq!(distances("cgmmw"), [(Some(4), None)]);
    }

    #[test]
    fn scoreboards_show_the_instruction_that_waits() {
        let report = report("bxymXmYS");
        assert_eq!(report.flights.iter().map(|f| f.math_to_wait).collect::<Vec<_>>(), [Some(1), Some(3)]);
        assert_eq!(report.counts[&Class::Wait], 2);
        let runs: Vec<_> = report.runs.iter().map(|r| (r.class, r.count)).collect();
        use Class::*;
        let want = [(GlobalLoad, 2), (Math, 1), (Wait, 1), (Math, 2), (Wait, 1), (Math, 1), (SharedStore, 1), (Barrier, 1)];
        assert_eq!(runs, want);
    }

    #[test]
    fn a_round_starts_with_its_loads() {
        let first = |text: &str| report(text).runs.iter().map(|r| r.class.name().to_string()).collect::<Vec<_>>().join(", ");
        assert_eq!(first("mm0SbLLm"), "global load, math, wait for loads, LDS store, barrier");
        assert_eq!(first("mb"), "math, barrier");
    }
}
