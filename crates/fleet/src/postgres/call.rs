//! Calls with a deadline. A connection that is late is dropped: the server's own timeouts do not help where a proxy never answers.

use super::address::Address;
use crate::FleetError;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

/// Longest time for one call, the connection included.
const DEADLINE: Duration = Duration::from_secs(10);
/// A connection without a call for so long is given back: a server has few of them.
const IDLE: Duration = Duration::from_secs(10);

/// A value of a statement and its type: statements stay unnamed, so no state of a session is used.
pub(super) type Value<'a> = (&'a (dyn ToSql + Sync), Type);

/// What a unique index says of a second claim with one name.
const TAKEN: &str = "a claim of this name has a task already";

/// What to look at where nobody answers.
const PLACE: &str = "see that the server runs, and that host and port of the URL are right";

/// Calls a server.
pub(super) struct Caller {
    address: Address,
    runtime: Runtime,
    client: Option<Client>,
    used: Instant,
    connections: u64,
    application: String,
}

impl Caller {
    pub fn new(address: &Address, application: &str) -> Result<Caller, FleetError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|e| FleetError::Refused(format!("--fleet: no connection can be driven: {e}")))?;
        let application = crate::printable(application, 60);
        Ok(Caller { address: address.clone(), runtime, client: None, used: Instant::now(), connections: 0, application })
    }

    /// How often a connection was made.
    pub const fn connections(&self) -> u64 {
        self.connections
    }

    /// Gives back a connection that is not used.
    pub fn drop_idle(&mut self) {
        if self.used.elapsed() > IDLE {
            self.client = None;
        }
    }

    /// The server does not answer, for this reason.
    pub fn away<T>(&self, reason: &str) -> Result<T, FleetError> {
        Err(FleetError::Away { server: self.address.shown().into(), reason: reason.into() })
    }

    fn call<T>(&mut self, run: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>) -> Result<T, FleetError> {
        let Caller { address, runtime, client, connections, application, .. } = self;
        let answer = runtime.block_on(async {
            let all = async {
                let connected = match client.take().filter(|client| !client.is_closed()) {
                    Some(client) => client,
                    None => {
                        let made = address.connect(application).await.map_err(|e| classify(address, &e, true))?;
                        *connections += 1;
                        made
                    }
                };
                let answer = run(&connected).await.map_err(|e| classify(address, &e, false));
                // After an error that the server did not send, the connection's state is unknown.
                if !matches!(answer, Err(FleetError::Away { .. })) {
                    *client = Some(connected);
                }
                answer
            };
            tokio::time::timeout(DEADLINE, all).await
        });
        self.used = Instant::now();
        match answer {
            Ok(answer) => answer,
            Err(_) => self.away(&format!("no answer in {} s; {}", DEADLINE.as_secs(), PLACE)),
        }
    }

    pub fn execute(&mut self, statement: &str, values: &[Value<'_>]) -> Result<u64, FleetError> {
        self.call(async |client| client.execute_typed(statement, values).await)
    }

    pub fn query(&mut self, statement: &str, values: &[Value<'_>]) -> Result<Vec<Row>, FleetError> {
        self.call(async |client| client.query_typed(statement, values).await)
    }

    /// The first number of the first row.
    pub fn number(&mut self, statement: &str, values: &[Value<'_>]) -> Result<i64, FleetError> {
        Ok(self.query(statement, values)?.first().map_or(0, |row| row.get(0)))
    }

    /// Several statements as one text, all or none.
    pub fn batch(&mut self, statements: &str) -> Result<(), FleetError> {
        self.call(async |client| client.batch_execute(statements).await)
    }
}

/// True for the error of a claim whose first answer was late.
pub(super) fn is_taken(e: &FleetError) -> bool {
    matches!(e, FleetError::Refused(reason) if reason.ends_with(TAKEN))
}

/// Tells what passes from what does not.
fn classify(address: &Address, e: &tokio_postgres::Error, connecting: bool) -> FleetError {
    let server = address.shown().to_string();
    let Some(db) = e.as_db_error() else {
        let text = chain(e);
        let lasting = ["error performing TLS handshake", "authentication error", "invalid configuration"];
        if connecting && lasting.iter().any(|start| text.starts_with(start)) {
            return FleetError::Refused(format!("--fleet {server}: {text}; {}", remedy(&text)));
        }
        return FleetError::Away { server, reason: format!("{text}; {PLACE}") };
    };
    let (code, message) = (db.code().code(), crate::printable(db.message(), 300));
    // Connection, resources, shutdown and start, conflicts, timeouts, a server that only reads (a replica before it takes over).
    let passes = ["08", "53", "57", "40"].iter().any(|class| code.starts_with(class)) || ["55P03", "25006"].contains(&code);
    if passes {
        // Workers that are busy keep their connections.
        let remedy = "; raise max_connections of the server, or put PgBouncer before it (pool_mode = transaction)";
        let remedy = if code == "53300" { remedy } else { "" };
        return FleetError::Away { server, reason: format!("{message}{remedy}") };
    }
    let reason = match code {
        "23505" if db.constraint() == Some("task_claim") => return FleetError::Refused(TAKEN.into()),
        "42501" => format!("{message}; connect with the role that `tilewright fleet init` made, or one with its rights"),
        "42P01" | "3F000" => format!("{message}; run `tilewright fleet init` as the owner of the database first"),
        "3D000" => format!("{message}; create it with `createdb`, or name another at the end of the URL"),
        code if code.starts_with("28") => format!("{message}; {}", remedy("password")),
        code => format!("{message} (SQLSTATE {code}); the log of the server says more"),
    };
    FleetError::Refused(format!("--fleet {server}: {reason}"))
}

/// An error with its causes.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    crate::printable(&text, 400)
}

fn remedy(text: &str) -> &'static str {
    if text.contains("TLS") {
        "give the authority's certificate with ?sslrootcert=FILE, and the name that the server's certificate has"
    } else {
        "give the password by PGPASSFILE or PGPASSWORD, and the role in the URL or by PGUSER"
    }
}
