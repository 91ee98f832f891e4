//! Options of runs that several processes share, and the subcommands of `fleet`.

use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Duration;
use tilewright_bench::values::span;

/// Options of runs that several processes share.
#[derive(Clone, Debug, Args)]
pub struct FleetArgs {
    /// PostgreSQL server of a fleet: postgresql://ROLE@HOST:PORT/DATABASE. The password comes from PGPASSFILE or PGPASSWORD
    // Help shows no value: it may hold a password.
    #[arg(
        long,
        global = true,
        help_heading = "Several devices and hosts",
        value_name = "URL",
        env = "TILEWRIGHT_FLEET",
        hide_env_values = true
    )]
    pub fleet: Option<String>,
    /// Name of a run that processes share; each takes the problems that are left. Without --fleet they are processes of this host
    #[arg(long, global = true, help_heading = "Several devices and hosts", value_name = "NAME")]
    pub run: Option<String>,
    /// Add cases to the run
    #[arg(long, global = true, help_heading = "Several devices and hosts", requires = "run")]
    pub extend: bool,
    /// End as soon as no problem is free, although others still work
    #[arg(long, global = true, help_heading = "Several devices and hosts")]
    pub no_wait: bool,
    /// How long a problem stays with a worker that is not heard of.
    #[arg(long, global = true, hide = true, default_value = "60s", value_parser = span)]
    pub lease: Duration,
}

/// `fleet`.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Make the tables and the role of workers, as the owner of the database
    #[command(after_help = "\
Examples:
  tilewright fleet init postgresql://owner@db/tuning
  psql postgresql://owner@db/tuning -c '\\password tilewright_worker'")]
    Init {
        #[command(flatten)]
        server: ServerArgs,
        /// Role that workers connect as
        #[arg(long, value_name = "ROLE", default_value = "tilewright_worker")]
        role: String,
    },
    /// How far runs are: problems by state, trials per minute, time left, who works on which problem
    Status {
        #[command(flatten)]
        server: ServerArgs,
        /// Run [default: all]
        #[arg(long, value_name = "NAME")]
        run: Option<String>,
        /// Print again every five seconds
        #[arg(long)]
        watch: bool,
        /// One JSON object
        #[arg(long)]
        json: bool,
        /// Write a page; --watch renews it
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        html: Option<PathBuf>,
    },
    /// Add the trials of a run to a records file. Their plans are candidates: `tune` verifies and times them first
    Pull {
        #[command(flatten)]
        server: ServerArgs,
        /// Run [default: all]
        #[arg(long, value_name = "NAME")]
        run: Option<String>,
        /// Records file [default: in the user's data folder]
        #[arg(long, value_name = "FILE", env = "TILEWRIGHT_RECORDS")]
        records: Option<PathBuf>,
    },
    /// Send the trials of a records file that a run lacks, after a node lost its connection
    Push {
        #[command(flatten)]
        server: ServerArgs,
        /// Run
        #[arg(long, value_name = "NAME")]
        run: String,
        /// Records file [default: in the user's data folder]
        #[arg(long, value_name = "FILE", env = "TILEWRIGHT_RECORDS")]
        records: Option<PathBuf>,
    },
    /// End a run, as the owner of the database: workers stop at their next renewal
    Withdraw {
        #[command(flatten)]
        server: ServerArgs,
        /// Run
        #[arg(long, value_name = "NAME")]
        run: String,
    },
}

/// The server that is meant.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Server: postgresql://ROLE@HOST:PORT/DATABASE. The password comes from PGPASSFILE or PGPASSWORD
    #[arg(value_name = "URL", env = "TILEWRIGHT_FLEET", hide_env_values = true)]
    pub url: String,
}
