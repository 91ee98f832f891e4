//! Every barrier and every wait that a schedule emits is needed: taking one away is reported by the emulator.

use crate::support;

use std::collections::BTreeSet;
use support::children;
use tilewright_check::random::whole_run;
use tilewright_check::reference::Samples;
use tilewright_check::run::compile;
use tilewright_check::verify::{Case, Depth, VerifyError, test_factors};
use tilewright_device::{DeviceError, Options, open_with};
use tilewright_emu::EmuError;
use tilewright_gen::kernel::MAIN;
use tilewright_gen::plan::{Constraint, Keys, Plan};
use tilewright_gen::program::Program;
use tilewright_gen::space::Space;
use tilewright_ir::{Block, Scalar, Stmt};
use tilewright_problem::{Gemm, Order, Problem};

/// Interleavings tried before a removal counts as unnoticed.
const SEEDS: u64 = 6;

/// Where a statement is: which child of which block, from the kernel's body inwards.
type Path = Vec<(usize, usize)>;

#[derive(Clone, Debug, PartialEq)]
struct Site {
    path: Path,
    /// Role by number, if it stands in one.
    role: Option<usize>,
    wait: bool,
}

fn sites(block: &mut Block, path: &Path, role: Option<usize>, found: &mut Vec<Site>) {
    for (i, s) in block.iter_mut().enumerate() {
        let split = matches!(s, Stmt::Roles(_));
        let wait = matches!(s, Stmt::AsyncWait(_));
        if wait || matches!(s, Stmt::Barrier(_)) {
            found.push(Site { path: [path.clone(), vec![(i, 0)]].concat(), role, wait });
        }
        for (c, child) in children(s).into_iter().enumerate() {
            let role = if split { Some(c) } else { role };
            sites(child, &[path.clone(), vec![(i, c)]].concat(), role, found);
        }
    }
}

fn all_sites(body: &mut Block) -> Vec<Site> {
    let mut found = Vec::new();
    sites(body, &vec![], None, &mut found);
    found
}

fn remove(block: &mut Block, path: &[(usize, usize)]) {
    match path {
        [] => {}
        [(i, _)] => block[*i] = Stmt::Comment("removed".into()),
        [(i, c), rest @ ..] => remove(children(&mut block[*i]).swap_remove(*c), rest),
    }
}

/// A schedule, and problems that between them make every barrier matter.
struct Bench {
    arch: &'static str,
    plan: Plan,
    programs: Vec<(Problem, Space, Program)>,
}

/// Sums of an odd and of an even number of tiles, with and without a tail, and more tiles than any prologue holds.
const DEPTHS: [u64; 3] = [77, 80, 96];

impl Bench {
    fn new(arch: &'static str, schedule: &str) -> Bench {
        let mut keys = Keys::default();
        let base = "A_MIC4__B_MIC4__C_UNR8_MAC128_EDG1_GAL1";
        for text in [base, schedule] {
            keys = Constraint::parse(text).unwrap().apply(&keys);
        }
        let plan = Plan::from(keys);
        let device = support::emulator(arch, true, 0);
        let programs = DEPTHS.map(|k| {
            let problem: Problem = Gemm::new(Scalar::F32, 70, 40, k).order(Order::Col).build().unwrap().into();
            let space = Space::new(&problem, &device.info().target).unwrap();
            let r = space.resolve(&plan).unwrap_or_else(|e| panic!("{plan}: {e}"));
            let program = r.generate(space.env().workspace_bytes).unwrap();
            (problem, space, program)
        });
        Bench { arch, plan, programs: programs.into() }
    }

    /// What the emulator says of a program under one interleaving: nothing, or what it found.
    fn verdict(&self, which: usize, program: &Program, seed: u64) -> Result<(), String> {
        let mut options = Options::default();
        (options.emulator.threads, options.emulator.interleave, options.emulator.seed) = (1, true, seed);
        // A read that comes before the write it should wait for shall be told as the race it is.
        options.emulator.checks.initialised = false;
        let device = open_with(self.arch, &options).unwrap();
        let (problem, space, _) = &self.programs[which];
        let compiled = match compile(device.as_ref(), program) {
            Ok(compiled) => compiled,
            // A role that meets the barrier less often is seen before the kernel runs.
            Err(e) if e.to_string().contains("the group would hang") => return Err("hang".into()),
            Err(e) => panic!("{}: {e}", self.plan),
        };
        let case = Case::new(&device, problem, 5, test_factors(5, true), Samples::All).unwrap();
        match case.verify(program, &compiled, space.contraction(&self.plan), Depth::Quick, false) {
            Ok(v) if v.passed => Ok(()),
            // Wrong without the emulator knowing why would be its failure, not its report.
            Ok(v) => panic!("{}: wrong result, nothing reported: {:?}", self.plan, v.reason),
            Err(VerifyError::Device(DeviceError::Emulation { error, .. })) => match *error {
                EmuError::Race { .. } => Err("race".into()),
                EmuError::InFlight { .. } => Err("in flight".into()),
                EmuError::Deadlock { .. } => Err("deadlock".into()),
                EmuError::Divergent { .. } => Err("divergent".into()),
                error => panic!("{}: {error}", self.plan),
            },
            Err(e) => panic!("{}: {e}", self.plan),
        }
    }

    /// What is reported once some of the sites, by number, are gone.
    fn without(&self, removed: &[usize]) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (which, (_, _, program)) in self.programs.iter().enumerate() {
            let mut program = program.clone();
            let main = program.kernels.iter_mut().find(|k| k.name == MAIN).unwrap();
            let sites = all_sites(&mut main.body);
            removed.iter().for_each(|site| remove(&mut main.body, &sites[*site].path));
            assert_eq!(all_sites(&mut main.body).len(), sites.len() - removed.len());
            for seed in 0..SEEDS {
                found.extend(self.verdict(which, &program, seed).err());
                if !found.is_empty() {
                    return found;
                }
            }
        }
        found
    }

    /// Role and kind of every barrier and wait of the main kernel, the same whatever the depth.
    fn sites(&self) -> Vec<(Option<usize>, bool)> {
        let mut lists = self.programs.iter().map(|(_, _, program)| {
            let main = program.kernels.iter().find(|k| k.name == MAIN).unwrap();
            all_sites(&mut main.body.clone()).into_iter().map(|s| (s.role, s.wait)).collect::<Vec<_>>()
        });
        let first = lists.next().unwrap();
        assert!(lists.all(|list| list == first), "{}", self.plan);
        first
    }

    /// Passes as it is; without any one barrier or wait it is reported. Roles lose a barrier each alone and both together.
    fn every_one_is_needed(&self, expected: usize) {
        for (which, (_, _, program)) in self.programs.iter().enumerate() {
            for seed in 0..if whole_run() { SEEDS } else { 2 } {
                assert_eq!(self.verdict(which, program, seed), Ok(()), "{}", self.plan);
            }
        }
        let sites = &self.sites();
        let barriers = |role| (0..sites.len()).filter(move |i| sites[*i] == (Some(role), false)).collect::<Vec<_>>();
        assert_eq!(barriers(0).len(), barriers(1).len());
        let mut groups: Vec<Vec<usize>> = (0..sites.len()).map(|i| vec![i]).collect();
        groups.extend(barriers(0).into_iter().zip(barriers(1)).map(|(x, y)| vec![x, y]));
        let mut unnoticed = Vec::new();
        for group in &groups {
            let found = self.without(group);
            let what: Vec<String> = group
                .iter()
                .map(|i| format!("{} {i} of role {:?}", if sites[*i].1 { "wait" } else { "barrier" }, sites[*i].0))
                .collect();
            eprintln!("{}: without {what:?}: {found:?}", self.plan);
            if found.is_empty() {
                unnoticed.push(what.join(" and "));
            }
        }
        assert!(unnoticed.is_empty(), "{}: removals that nobody reports:\n{}", self.plan, unnoticed.join("\n"));
        assert_eq!(sites.len(), expected, "{}: barriers and waits", self.plan);
    }
}

fn needed(schedule: &str, expected: usize) {
    Bench::new("emu:sm_90a", schedule).every_one_is_needed(expected);
}

#[test]
fn miopengemm_loop() {
    needed("", 2);
    Bench::new("emu:gfx900", "").every_one_is_needed(2);
}

#[test]
fn one_buffer_with_prefetch() {
    needed("C_PFG1", 2);
    needed("C_PFG2", 4);
    needed("C_PFG1_FRA1", 2);
}

#[test]
fn two_buffers_stored_at_once_or_late() {
    needed("C_PFG1_BUF2", 1);
    needed("C_PFG1_BUF2_STP1", 1);
}

#[test]
fn spread_stores() {
    needed("C_PFG1_BUF2_STP2", 1);
    needed("C_PFG2_BUF2_STP2", 2);
}

#[test]
fn carried_fragments() {
    needed("C_PFG1_BUF2_STP1_FRA1", 2);
    needed("C_PFG2_BUF3_STP2_FRA1", 2);
}

#[test]
fn asynchronous_copies() {
    needed("A_ACP1__B_ACP1__C_PFG1_BUF2", 2);
    needed("A_ACP1__B_ACP1__C_PFG2_BUF3", 2);
    needed("A_ACP1__B_ACP1__C_PFG2_BUF3_FRA1", 4);
    needed("A_ACP1__C_PFG1_BUF2_STP1", 2);
}

#[test]
fn roles() {
    for (waves, expected) in [("C_MAC128_LWV4", 2), ("C_MAC64_LWV4", 2), ("C_MAC128_LWV1", 2)] {
        needed(&format!("{waves}_PFG1_BUF2"), expected);
    }
    needed("C_MAC128_LWV4", 4);
    needed("C_MAC128_LWV2_PFG1", 4);
    needed("C_MAC128_LWV4_PFG1_BUF2_FRA1", 4);
    needed("A_ACP1__B_ACP1__C_MAC64_LWV4_PFG2_BUF3", 3);
    Bench::new("emu:gfx900", "C_MAC128_LWV2_PFG1_BUF2_STP1").every_one_is_needed(2);
}

/// The next tile's prologue overwrites what others still read.
#[test]
fn persistent_work_groups() {
    needed("C_PFG2_BUF3_STP1_PST2", 1 + 1);
    needed("A_ACP1__B_ACP1__C_PFG2_BUF3_PST2", 2 + 2);
    needed("C_MAC128_LWV4_PFG2_BUF3_PST1", 2 + 1);
    needed("C_CST1_PST2", 2 + 8);
    needed("C_PFG2_BUF3_CST1_PST2", 1 + 8 + 1);
}

#[test]
fn staged_results() {
    needed("C_CST1", 2 + 8);
    needed("C_PFG1_BUF2_STP1_FRA1_CST1", 2 + 8);
    needed("A_ACP1__B_ACP1__C_PFG2_BUF3_CST1", 2 + 1 + 8);
    needed("C_MAC128_LWV4_PFG1_BUF2_CST1", 2 * (1 + 8));
    needed("A_ACP1__B_ACP1__C_MAC128_LWV4_PFG2_BUF3_CST1", 2 * (1 + 8) + 2);
}
