//! `tilewright fleet`: a server is set up, watched and emptied; runs end.

use crate::args::FleetCommand;
use crate::error::CliError;

/// Runs one of the subcommands.
#[cfg(not(feature = "fleet"))]
pub fn run(_: &FleetCommand) -> Result<(), CliError> {
    Err(CliError::usage(crate::workers::ABSENT))
}

/// Runs one of the subcommands.
#[cfg(feature = "fleet")]
pub fn run(command: &FleetCommand) -> Result<(), CliError> {
    server::run(command)
}

#[cfg(feature = "fleet")]
mod server {
    use crate::args::{FleetCommand, ServerArgs};
    use crate::error::CliError;
    use crate::output::{line, unwritable, write_file};
    use crate::workers;
    use std::path::{Path, PathBuf};
    use std::time::Duration;
    use tilewright_fleet::{Address, Identity, Lease, Line, PushTask, Queue, Server, digest};
    use tilewright_tune::Records;
    use tilewright_tune::records::GENERATOR;

    /// Time between two lines of `status --watch`.
    const WATCH: Duration = Duration::from_secs(5);
    /// Trials of one call.
    const BATCH: usize = 64;
    /// Refusals that are printed one by one.
    const NAMED: usize = 20;

    pub fn run(command: &FleetCommand) -> Result<(), CliError> {
        match command {
            FleetCommand::Init { server, role } => init(&address(server)?, role),
            FleetCommand::Status { server, run, watch, json, html } => {
                status(&address(server)?, run.as_deref(), *watch, *json, html.as_deref())
            }
            FleetCommand::Pull { server, run, records } => pull(&address(server)?, run.as_deref(), records.as_deref()),
            FleetCommand::Push { server, run, records } => push(&address(server)?, run, records.as_deref()),
            FleetCommand::Withdraw { server, run } => {
                let count = tilewright_fleet::withdraw(&address(server)?, run)?;
                line(&format!("run {run} ends; {count} problems are left untuned"))
            }
        }
    }

    fn address(server: &ServerArgs) -> Result<Address, CliError> {
        Ok(Address::parse(&server.url)?)
    }

    fn init(address: &Address, role: &str) -> Result<(), CliError> {
        let made = tilewright_fleet::init(address, role)?;
        line(if made { "the tables are made" } else { "the tables were there already" })?;
        line(&format!("workers connect as {role}; set its password with psql: \\password {role}"))
    }

    fn status(address: &Address, run: Option<&str>, watch: bool, json: bool, html: Option<&Path>) -> Result<(), CliError> {
        loop {
            match tilewright_fleet::status(address, run) {
                Err(e) if watch && e.is_passing() => eprintln!("{e}"),
                Err(e) => return Err(e.into()),
                Ok(status) => {
                    if let Some(path) = html {
                        write_page(path, &status.html(watch.then_some(WATCH)))?;
                    } else if json {
                        line(&serde_json::to_string(&status).map_err(CliError::failed)?)?;
                    } else {
                        line(status.text().trim_end())?;
                    }
                }
            }
            if !watch {
                return Ok(());
            }
            std::thread::sleep(WATCH);
        }
    }

    /// Puts a page in the place of an earlier one, which a browser may be reading. Where no file can take another's place (a device, a pipe, a
    /// link), the page is written there.
    fn write_page(path: &Path, page: &str) -> Result<(), CliError> {
        if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
            return write_file(path, page);
        }
        let part = PathBuf::from(format!("{}.part", path.display()));
        write_file(&part, page)?;
        std::fs::rename(&part, path).map_err(|e| CliError::failed(unwritable(path, &e)))
    }

    fn pull(address: &Address, run: Option<&str>, records: Option<&Path>) -> Result<(), CliError> {
        let records = Records::open(crate::records::place(records)).map_err(CliError::failed)?;
        let (mut read, mut refused) = (0, 0);
        tilewright_fleet::pull(address, run, &mut |rows| {
            read += rows.len();
            for reason in workers::import(&records, rows) {
                refused += 1;
                if refused <= NAMED {
                    eprintln!("{}", crate::output::one_line(&reason));
                }
            }
            Ok(())
        })?;
        let more = if refused > 0 { format!(", {refused} refused") } else { String::new() };
        line(&format!("{read} trials read{more}; `tune` verifies and times their plans first"))
    }

    /// Sends what a run's tasks lack. Trials that are there already are kept once.
    fn push(address: &Address, run: &str, records: Option<&Path>) -> Result<(), CliError> {
        let path = crate::records::place(records);
        let records = Records::open_existing(&path).map_err(CliError::failed)?;
        let journal = workers::journal_name(&records)?;
        let problems = records.problems().map_err(CliError::failed)?;
        let names: Vec<String> = problems.iter().map(|of| of.name.clone()).collect();
        let tasks = tilewright_fleet::pushable(address, run, &names)?;
        let identity = Identity { id: format!("push-{}", digest(&journal)), journal, ..Identity::default() };
        let mut server = Server::new(address, identity)?;
        let mut sent = 0;
        for device in records.devices().map_err(CliError::failed)? {
            let of_class = |task: &&PushTask| task.class.starts_with(&workers::class_begins(&device));
            for task in tasks.iter().filter(of_class) {
                let lease = Lease { task: task.task, epoch: task.epoch, problem: task.problem.clone(), lapses: 0, spent: 0.0 };
                let Some(of) = problems.iter().find(|of| of.name == task.problem) else { continue };
                let own = records.own(of, &device, GENERATOR, 0, usize::MAX).map_err(CliError::failed)?;
                let lines: Vec<Line> = own.into_iter().map(|e| Line { number: e.number, text: e.line }).collect();
                for batch in lines.chunks(BATCH) {
                    server.ship(&lease, batch)?;
                    sent += batch.len();
                }
            }
        }
        line(&format!("{sent} trials of {} are on the server", path.display()))
    }
}
