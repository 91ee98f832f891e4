//! Encryption whose server certificate is verified, by name and by authority.

use crate::FleetError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::path::PathBuf;
use std::sync::Arc;

/// Where systems keep the certificates of known authorities.
const SYSTEM: [&str; 4] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"];

/// A configuration that trusts the authorities of a file: the one that is named, else `~/.postgresql/root.crt`, else the system's.
pub(super) fn verified(
    named: Option<&str>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<rustls::ClientConfig, FleetError> {
    let wrong = |reason: String| FleetError::Wrong(format!("--fleet: {reason}"));
    let own = variable("HOME").map(|home| PathBuf::from(home).join(".postgresql/root.crt"));
    let system = || own.into_iter().chain(SYSTEM.map(PathBuf::from)).find(|path| path.exists());
    let path =
        named.filter(|name| *name != "system").map(PathBuf::from).or_else(system).ok_or_else(|| {
            wrong("no authority is known that could vouch for the server: name one with ?sslrootcert=FILE".into())
        })?;
    let shown = path.display();
    let certificates = CertificateDer::pem_file_iter(&path).map_err(|e| wrong(format!("sslrootcert {shown}: {e}")))?;
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates {
        let certificate = certificate.map_err(|e| wrong(format!("sslrootcert {shown}: {e}")))?;
        // Systems keep certificates that this library does not read.
        let _ = roots.add(certificate);
    }
    if roots.is_empty() {
        return Err(wrong(format!("sslrootcert {shown}: it holds no certificate of an authority")));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|e| wrong(e.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
