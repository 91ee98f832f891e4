//! The command `tilewright`: tunes, verifies, explains and emits kernels from a shell.
//!
//! This file parses the command line, sets up logging and the exit code, and calls one subcommand.

mod against;
mod args;
mod bench;
mod bundle;
mod cache;
mod devices;
mod emit;
mod error;
mod explain;
mod figures;
mod fleet;
mod inspect;
mod output;
mod part;
mod problem;
mod progress;
mod records;
#[allow(dead_code, reason = "the reference page prints the rest")]
mod reference;
mod report;
mod selfcheck;
mod session;
mod table;
mod tune;
mod verify;
mod workers;

use args::{Cli, Command};
use clap::FromArgMatches;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use error::CliError;
use std::io::IsTerminal;
use tilewright_device::exit_now;

fn main() -> ! {
    tilewright_device::worker_main();
    let all = std::env::args_os().any(|arg| arg == "--help");
    let parsed = args::command(all).try_get_matches().and_then(|found| Cli::from_arg_matches(&found));
    let cli = parsed.unwrap_or_else(|e| {
        if let Some(long) = two_dashes(&e) {
            eprintln!("error: {long}");
            exit_now(e.exit_code());
        }
        let text = e.to_string();
        if e.use_stderr() && text.len() > output::MOST {
            eprintln!("{}", output::one_line(&text));
            exit_now(e.exit_code());
        }
        e.exit()
    });
    // Threads of a search that has ended may still be compiling.
    exit_now(match cli.command {
        Command::CompileWorker => tilewright_device::compile_worker_main(),
        _ => run(&cli),
    })
}

/// What to write in place of an unknown option of one letter, as `-m 8`.
fn two_dashes(e: &clap::Error) -> Option<String> {
    let (ErrorKind::UnknownArgument, Some(ContextValue::String(arg))) = (e.kind(), e.get(ContextKind::InvalidArg)) else {
        return None;
    };
    let letter = arg.strip_prefix('-').filter(|letter| letter.len() == 1 && *letter != "-")?;
    Some(format!("unexpected argument '{arg}' found; write it with two dashes: --{letter}"))
}

/// Gives the exit code.
fn run(cli: &Cli) -> i32 {
    log(cli.verbose);
    let Err(e) = dispatch(cli) else { return i32::from(reference::DONE) };
    if !matches!(e, CliError::HandedOver(_)) {
        let text = e.to_string();
        let whole = cli.verbose > 0 || matches!(e, CliError::Log(_));
        eprintln!("error: {}", if whole { text } else { output::one_line(&text) });
    }
    i32::from(e.code())
}

fn dispatch(cli: &Cli) -> Result<(), CliError> {
    match &cli.command {
        Command::Tune(args) => tune::run(args, cli.quiet),
        Command::Bench(args) if !args.rivals.against.is_empty() => against::run(args),
        Command::Bench(args) => bench::run(args, cli.quiet),
        Command::Verify(args) => verify::run(args, cli.quiet),
        Command::Emit(args) => emit::run(args),
        Command::Bundle(args) => bundle::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Selfcheck(args) => selfcheck::run(args, cli.quiet),
        Command::Fleet(command) => fleet::run(command),
        Command::Records(command) => records::run(command),
        Command::Cache(command) => cache::run(command),
        Command::Completions { shell } => completions(*shell),
        Command::CompileWorker => Ok(()),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), CliError> {
    clap_complete::generate(shell, &mut args::command(true), "tilewright", &mut output::Stdout);
    Ok(())
}

/// Log lines on stderr, coloured on a terminal: warnings, with `-v` steps, with `-vv` everything; `TILEWRIGHT_LOG` overrides.
fn log(verbose: u8) {
    let level = ["warn", "info", "debug"][usize::from(verbose.min(2))];
    let filter = tracing_subscriber::EnvFilter::try_from_env("TILEWRIGHT_LOG").unwrap_or_else(|_| {
        tracing_subscriber::EnvFilter::new(format!(
            "tilewright={level},tilewright_device={level},tilewright_tune={level},tilewright_fleet={level}"
        ))
    });
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).without_time().init();
}
