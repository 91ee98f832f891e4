//! The address of a server: a URL without a password, the password from a file or the environment, and how the connection is encrypted.

use super::tls;
use crate::FleetError;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, NoTls};

/// Where a server is and how it is reached.
#[derive(Clone)]
pub struct Address {
    shown: String,
    config: Config,
    tls: Option<rustls::ClientConfig>,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

/// A text of the environment; empty counts as absent.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

fn wrong(reason: impl std::fmt::Display) -> FleetError {
    FleetError::Wrong(format!("--fleet: {reason}"))
}

/// The part of a URL without its scheme that ends before a query. A password may hold `?`, `#` and `@`.
fn head(rest: &str) -> &str {
    rest.split(['?', '#']).next().unwrap_or_default()
}

/// True if a role is followed by a password.
fn has_password(rest: &str) -> bool {
    match head(rest).rsplit_once('@') {
        Some((user, _)) => user.contains(':'),
        None => rest.contains('@') && head(rest).contains(':'),
    }
}

/// The URL without anything that may be a password.
fn without_password(url: &str) -> String {
    let is_scheme = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric());
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).unwrap_or(("", url));
    let before_colon = |text: &str| text.split(':').next().unwrap_or_default().to_string();
    let head = head(rest);
    let rest = match (head.rsplit_once('@'), rest.strip_prefix(head).is_some_and(|query| query.contains('@'))) {
        (Some((user, place)), false) => format!("{}@{place}", before_colon(user)),
        (None, false) => head.to_string(),
        // The head may end within a password.
        (_, true) => before_colon(head),
    };
    crate::printable(&if scheme.is_empty() { rest } else { format!("{scheme}://{rest}") }, 300)
}

impl Address {
    /// Reads `postgresql://ROLE@HOST:PORT/DATABASE?sslmode=MODE&sslrootcert=FILE`. The role may come from `PGUSER`, the password from
    /// `PGPASSWORD`, the file that `PGPASSFILE` names, or `~/.pgpass`.
    ///
    /// # Errors
    /// [`FleetError::Wrong`] says what is wrong with it, without showing a password.
    pub fn parse(url: &str) -> Result<Address, FleetError> {
        Address::parse_with(url, &|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn parse_with(url: &str, variable: Variable<'_>) -> Result<Address, FleetError> {
        let shown = without_password(url);
        let rest = url.strip_prefix("postgresql://").or_else(|| url.strip_prefix("postgres://"));
        let Some(rest) = rest else { return Err(wrong(format!("{shown}: write postgresql://ROLE@HOST:PORT/DATABASE"))) };
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let secret = || {
            let reason = "a password in the URL is seen by all users of the host; give it by PGPASSFILE or PGPASSWORD";
            wrong(format!("{shown}: {reason}"))
        };
        if has_password(rest) {
            return Err(secret());
        }
        let (mut mode, mut root, mut kept) = (None, variable("PGSSLROOTCERT"), Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value.to_string()),
                Some(("sslrootcert", value)) => root = Some(value.to_string()),
                Some(("password", _)) => return Err(secret()),
                _ => kept.push(pair),
            }
        }
        let text = format!("postgresql://{place}?{}", kept.join("&"));
        let mut config =
            Config::from_str(&text).map_err(|e| wrong(format!("{shown}: {e}; write postgresql://ROLE@HOST:PORT/DATABASE")))?;
        // The client reads keys that are written with %.
        if config.get_password().is_some() {
            return Err(secret());
        }
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        let user = config.get_user().map(String::from).or_else(|| variable("PGUSER")).or_else(|| variable("USER"));
        let user = user.ok_or_else(|| wrong(format!("{shown}: no role is named; write postgresql://ROLE@HOST/DATABASE")))?;
        config.user(&user);
        if let Some(password) = password(&config, &user, variable)? {
            config.password(password);
        }
        // Where an address is given, the host's name says only whose certificate is expected.
        let local = config.get_hosts().iter().all(is_local) && config.get_hostaddrs().iter().all(std::net::IpAddr::is_loopback);
        let tls = match mode.or_else(|| variable("PGSSLMODE")).as_deref() {
            Some("disable") => None,
            None if local => None,
            None | Some("require" | "verify-ca" | "verify-full") => Some(tls::verified(root.as_deref(), variable)?),
            Some(other @ ("allow" | "prefer")) => {
                return Err(wrong(format!("sslmode={other} falls back to plain text; take verify-full or disable")));
            }
            Some(other) => {
                return Err(wrong(format!("sslmode={} is unknown; take verify-full or disable", crate::printable(other, 40))));
            }
        };
        config.ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable });
        config.connect_timeout(Duration::from_secs(10)).keepalives_idle(Duration::from_secs(30));
        config.tcp_user_timeout(Duration::from_secs(10));
        Ok(Address { shown, config, tls })
    }

    /// The address, to be printed: it holds no password.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// A connection, driven by the runtime of the caller.
    pub(super) async fn connect(&self, application: &str) -> Result<Client, tokio_postgres::Error> {
        let mut config = self.config.clone();
        config.application_name(application);
        match &self.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                tokio::spawn(connection);
                Ok(client)
            }
            Some(tls) => {
                let tls = tokio_postgres_rustls::MakeRustlsConnect::new(tls.clone());
                let (client, connection) = config.connect(tls).await?;
                tokio::spawn(connection);
                Ok(client)
            }
        }
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback()),
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// The password of the environment, or of the password file.
fn password(config: &Config, user: &str, variable: Variable<'_>) -> Result<Option<String>, FleetError> {
    if let Some(password) = variable("PGPASSWORD") {
        return Ok(Some(password));
    }
    let named = variable("PGPASSFILE").map(PathBuf::from);
    let Some(path) = named.clone().or_else(|| Some(Path::new(&variable("HOME")?).join(".pgpass"))) else { return Ok(None) };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if named.is_some() => return Err(wrong(format!("PGPASSFILE {}: it cannot be read: {e}", path.display()))),
        Err(_) => return Ok(None),
    };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let open = std::fs::metadata(&path).is_ok_and(|m| m.permissions().mode() & 0o077 != 0);
        if open {
            return Err(wrong(format!("{}: others may read it; run chmod 600 on it", path.display())));
        }
    }
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        _ => "localhost".into(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let database = config.get_dbname().unwrap_or(user);
    Ok(text.lines().find_map(|line| matching(line, [&host, &port, database, user])))
}

/// The password of a line `host:port:database:role:password`, where `*` stands for any text and `\` keeps the next character.
fn matching(line: &str, wanted: [&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        let c = match c {
            ':' if fields.len() < 5 => {
                fields.push(String::new());
                continue;
            }
            '\\' => characters.next()?,
            other => other,
        };
        fields.last_mut()?.push(c);
    }
    let password = fields.get(4)?.clone();
    fields.iter().zip(wanted).all(|(field, wanted)| field == "*" || field == wanted).then_some(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, variables: &[(&str, &str)]) -> Result<Address, String> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
        Address::parse_with(url, &find).map_err(|e| e.to_string())
    }

    #[test]
    fn a_password_is_refused_in_the_url_and_never_shown() {
        for url in [
            "postgresql://me:hunter2@db/x",
            "postgresql://db/x?user=me&password=hunter2",
            "http://me:hunter2@db/x",
            "me:hunter2@db",
            "postgresql://me:hunter2@db:port/x?sslmode=no",
            "me:x://hunter2@db",
            "postgresql://me:hunter2#x@db/y",
            "postgresql://me:hunter2?x@db/y",
            "postgresql://me:x@hunter2@db/y",
            "postgresql://me:a@b?hunter2@db/y",
            "postgresql://me:a/b?hunter2@db/y",
            "postgresql://me?password=hunter2@db/y",
            "postgresql://db/x?password=a@hunter2",
            "postgresql://db/x?pass%77ord=hunter2",
        ] {
            let error = parse(url, &[("USER", "u")]).expect_err(url);
            assert!(error.starts_with("--fleet: ") && !error.contains("hunter2"), "{error}");
        }
        let address = parse("postgresql://me@localhost/x", &[("PGPASSWORD", "hunter2")]).unwrap();
        assert_eq!(address.config.get_password(), Some(&b"hunter2"[..]));
        assert!(!format!("{address:?} {}", address.shown()).contains("hunter2"));
    }

    #[test]
    fn off_the_host_a_certificate_is_verified() {
        let tls = |url: &str| parse(url, &[("USER", "u")]).map(|a| a.tls.is_some());
        for url in
            ["postgresql://localhost/x", "postgresql://127.0.0.1:5433/x", "postgresql:///x?host=/run/pg", "postgresql://[::1]/x"]
        {
            assert_eq!(tls(url), Ok(false), "{url}");
        }
        assert_eq!(tls("postgresql://db/x?sslmode=disable"), Ok(false));
        // A system may know no authority: then it is an error.
        for url in ["postgresql://db/x", "postgresql://192.0.2.1/x", "postgresql://localhost/x?hostaddr=192.0.2.1"] {
            assert_ne!(tls(url), Ok(false), "{url}");
        }
        for mode in ["allow", "prefer", "maybe"] {
            assert!(tls(&format!("postgresql://db/x?sslmode={mode}")).unwrap_err().contains("verify-full or disable"));
        }
        let absent = tls("postgresql://db/x?sslrootcert=/no/such/file").unwrap_err();
        assert!(absent.contains("/no/such/file"), "{absent}");
    }

    #[test]
    fn lines_of_the_password_file() {
        let wanted = ["db", "5432", "x", "me"];
        assert_eq!(matching(r"db:5432:x:me:a\:b\\c:d", wanted).as_deref(), Some(r"a:b\c:d"));
        assert_eq!(matching("*:*:*:me:s", wanted).as_deref(), Some("s"));
        for line in ["# db:5432:x:me:s", "db:5433:x:me:s", "db:5432:x:me", ""] {
            assert_eq!(matching(line, wanted), None, "{line}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_password_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass");
        std::fs::write(&path, "*:*:*:*:hunter2\n").unwrap();
        let file = path.display().to_string();
        let variables = [("PGPASSFILE", file.as_str()), ("USER", "u")];
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(parse("postgresql://localhost/x", &variables).unwrap_err().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let address = parse("postgresql://localhost/x", &variables).unwrap();
        assert_eq!(address.config.get_password(), Some(&b"hunter2"[..]));
    }
}
