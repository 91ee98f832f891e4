//! Workers with simulated trials on a real PostgreSQL server. Without one each test says SKIPPED.

mod bad_input;
mod clocks;
mod failures;
mod fences;
mod host;
mod kills;
mod launchers;
mod mends;
mod packets;
mod pooler;
mod proxy;
mod runs;
mod slurm;
mod spans;
mod stops;

#[path = "../../../ir/tests/support/missing.rs"]
mod missing;
#[path = "../support/postgres.rs"]
mod postgres;
#[macro_use]
#[path = "../../../ir/tests/support/waits.rs"]
mod waits;

use postgres::Postgres;
use std::process::{Child, Command, Stdio};
use tilewright_fleet::{Address, Identity, NewTask, RunSpec, Server};

fn main() {
    let tests = tests! {
        slurm:
            a_job_array_with_a_requeue_and_a_cancel_does_all_tasks
        ;
        stops:
            a_worker_stopped_at_any_step_does_nothing_twice
            a_plan_that_never_ends_is_hung_after_two
        ;
        kills:
            killed_workers_lose_no_task_and_no_trial_of_others
            a_server_that_restarts_loses_no_trial
            a_short_restart_is_no_lapse
            a_server_from_an_older_copy_gets_its_trials_again
            a_stopped_worker_ends_nothing_of_others
            a_lost_lease_changes_nothing
        ;
        packets:
            dropped_packets_stop_no_search
        ;
        fences:
            an_answer_cut_at_any_byte_leases_one_task
            a_proxy_that_stalls_stops_no_search
        ;
        bad_input:
            what_a_server_refuses_is_said_with_the_remedy
            workers_have_the_rights_they_need_and_no_others
            lines_that_are_too_long_are_named_and_not_read
            texts_of_workers_are_of_bearable_length
            a_certificate_is_verified_by_name_and_authority
        ;
        clocks:
            clocks_of_workers_that_differ_and_jump_change_nothing
            a_jump_of_the_servers_clock_is_no_lapse
        ;
        failures:
            one_sick_gpu_of_four_fails_no_task
            a_gpu_that_stays_sick_gets_one_task
            a_sick_gpu_that_heals_gets_tasks_again
            a_gpu_whose_results_are_wrong_fails_no_task
            a_host_in_trouble_fails_no_task
            a_hopeless_task_fails_after_two_gpus_tried_it
            a_plan_that_takes_hosts_down_is_hung_after_two
            the_second_worker_on_a_gpu_waits
            a_gpu_of_another_container_is_busy
            a_silence_of_all_is_no_lapse
            more_workers_than_connections_do_all_tasks
            a_server_without_a_free_connection_is_said_with_the_remedy
        ;
        host:
            a_task_of_a_worker_that_is_gone_goes_on
            a_worker_that_lives_and_does_nothing_loses_its_task
            failures_of_one_device_fail_no_task
            a_file_of_a_newer_tilewright_is_refused
            killed_workers_of_a_host_lose_no_task
            a_jump_of_the_hosts_clock_takes_no_task_away
            tasks_of_an_earlier_start_of_the_machine_are_free
            a_lock_file_of_another_user_is_locked
            workers_in_two_containers_share_the_tasks
        ;
        launchers:
            mpirun_starts_eight_workers
            a_loop_over_ssh_starts_workers
        ;
        pooler:
            a_pool_in_transaction_mode_serves_many_workers
        ;
        runs:
            each_task_is_done_once_and_each_trial_shipped_once
            two_classes_have_tasks_of_their_own
            cases_are_added_only_when_asked_for
            the_status_of_a_run_names_its_workers
            withdrawn_tasks_stop_their_workers
            a_worker_that_need_not_wait_leaves_while_others_work
            the_row_that_shows_life_is_written_once_a_second
            a_claim_walks_the_index_in_order_of_work
            a_load_is_printed_with_its_cost
        ;
        mends:
            lost_trials_are_looked_for_while_no_task_is_held
            trials_after_a_clear_are_shipped_under_another_name
        ;
        spans:
            a_search_runs_in_a_span_of_its_task
        ;
    };
    // They wait for leases to lapse, and for servers: an eighth of a core is enough for one.
    waits::run(&tests, 8 * waits::cores());
}

/// A server with the tables, and a folder for journals.
struct Fleet {
    server: Postgres,
}

impl Fleet {
    fn new() -> Option<Fleet> {
        Fleet::with(&[])
    }

    fn with(settings: &[&str]) -> Option<Fleet> {
        let server = Postgres::start_with(settings)?;
        let made = tilewright_fleet::init(&address(&server.socket("owner")), "tilewright_worker");
        assert!(made.expect("the tables are made"));
        Some(Fleet { server })
    }

    /// A worker's command; `name` names its journal.
    fn worker(&self, name: &str, options: &str) -> Command {
        self.complete(Command::new(SIMULATION), &self.server.socket("tilewright_worker"), name, options)
    }

    /// The arguments of a worker after a command that starts it.
    fn complete(&self, mut command: Command, url: &str, name: &str, options: &str) -> Command {
        let folder = self.server.folder.path();
        command.arg("worker").arg(url);
        command.arg(format!("journal={}", folder.join(name).with_extension("journal").display()));
        command.arg(format!("locks={}", folder.display()));
        command.args(options.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, name: &str, options: &str) -> Child {
        self.worker(name, options).spawn().expect("a worker starts")
    }

    /// A worker that reaches the server at another address.
    fn start_at(&self, url: &str, name: &str, options: &str) -> Child {
        self.complete(Command::new(SIMULATION), url, name, options).spawn().expect("a worker starts")
    }

    /// Lines of all journals.
    fn journals(&self) -> usize {
        let entries = std::fs::read_dir(self.server.folder.path()).expect("a folder").flatten();
        let journals = entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "journal"));
        journals.map(|entry| std::fs::read_to_string(entry.path()).expect("a journal").lines().count()).sum()
    }

    fn count(&self, what: &str) -> i64 {
        self.server.number(&format!("SELECT count(*) FROM {what}"))
    }

    /// A way to the server for statements of a test.
    fn joined(&self, identity: Identity, run: &RunSpec, tasks: &[NewTask]) -> Server {
        let mut server = Server::new(&address(&self.server.socket("tilewright_worker")), identity).expect("an address");
        server.join(run, tasks).expect("it joins");
        server
    }
}

/// The program that plays the workers.
const SIMULATION: &str = env!("CARGO_BIN_EXE_fleet-simulation");

/// True where all kills are to be made, as in CI; a run by hand makes a fifth of them.
fn full() -> bool {
    std::env::var_os("TILEWRIGHT_FULL").is_some_and(|set| set != "0")
}

/// Says that a test is skipped because the system forbids what it needs. `.ci/run` requires namespaces where its user may make them.
fn forbidden(what: &str) {
    let required = std::env::var_os("TILEWRIGHT_REQUIRE_NAMESPACES").is_some();
    if required { missing::missing(what) } else { missing::skipped(what) }
}

/// Waits for something.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < std::time::Duration::from_secs(120), "it never happens: {what}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Tasks that workers say they ended, sorted.
fn ended(said: &[String]) -> Vec<String> {
    let lines = said.iter().flat_map(|said| said.lines()).filter_map(|line| line.strip_prefix("done "));
    let mut all: Vec<String> = lines.map(String::from).collect();
    all.sort();
    all
}

fn address(url: &str) -> Address {
    Address::parse(url).expect("an address")
}

fn tasks(count: u32) -> Vec<NewTask> {
    (0..count).map(|n| NewTask { problem: format!("p{n}"), work: f64::from(n) }).collect()
}

fn run(lease: u64) -> RunSpec {
    RunSpec { name: "night".into(), options: "{}".into(), lease: std::time::Duration::from_secs(lease), extend: false }
}

fn identity(id: &str) -> Identity {
    Identity { id: id.into(), class: "simulated".into(), journal: id.into(), ..Identity::default() }
}

/// Waits for a worker and asserts its exit code; what it said.
fn ends(child: Child, code: i32) -> String {
    let out = child.wait_with_output().expect("it ends");
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(code), "{said}");
    said
}

fn signal(name: &str, child: &Child) {
    let sent = Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}
