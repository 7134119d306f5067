//! The address of a database, and how a connection to it is opened, encrypted or not.
//!
//! [`Address::connect`] opens every connection of this crate. [`set_up`] then changes the settings
//! of PostgreSQL that all statements need. They replace any defaults of the role or the database.
//!
//! # Encryption
//! `sslmode=` and `sslrootcert=` mean what they mean in libpq:
//!
//! | `sslmode=` | encrypted | accepted certificates of the server |
//! |---|---|---|
//! | `disable` | no | |
//! | `prefer`, the default | if the server can | any |
//! | `require` | yes | any; if `sslrootcert=` is given, those of `verify-ca` |
//! | `verify-ca` | yes | signed by a root |
//! | `verify-full` | yes | signed by a root, for the name of the host |
//!
//! `sslrootcert=` names the file with the root certificates, which is read when the URL is parsed.
//! `sslrootcert=system` stands for the root certificates of the system. It is allowed for
//! `verify-full` only, and then `verify-full` is the default of `sslmode=`. `verify-full` without
//! `sslrootcert=` uses the root certificates of the system, too. Connections through a Unix socket
//! are never encrypted.
//!
//! The crate `tokio-postgres-rustls` encrypts connections, and supports the channel binding of
//! SCRAM (RFC 5929). The crate `postgres-native-tls` was rejected, because it needs OpenSSL.
//!
//! Source: libpq, "SSL Support" and "Connection URIs".

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::connection::DatabaseError;
use crate::options::UrlError;

/// Time limit for a host to accept a connection, unless the URL has `connect_timeout=`.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long the machine of the database may stay silent before its connections count as lost. In a
/// URL, `keepalives_idle=` and `tcp_user_timeout=` set other limits.
const SILENCE_LIMIT: Duration = Duration::from_secs(15);
const KEEPALIVE_UNSET: Duration = Duration::from_secs(2 * 60 * 60);
/// A statement that prepares each new connection. It turns the timeouts of PostgreSQL off, because
/// they would end statements that wait for locks.
const SETTINGS: &str = "SELECT set_config(name, '0', false) FROM (VALUES ('statement_timeout'), \
                        ('lock_timeout'), ('idle_in_transaction_session_timeout'), \
                        ('idle_session_timeout'), ('transaction_timeout')) AS v (name) \
                        WHERE current_setting(name, true) IS NOT NULL; \
                        SET search_path = corewalk; SET client_min_messages = warning; \
                        SET default_transaction_read_only = off; \
                        SET default_transaction_isolation = 'read committed'";

pub(crate) type Wire = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) config: Config,
    tls: MakeRustlsConnect,
}

/// The certificates that a connection accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Any,
    Signed,
    Host,
}

impl Address {
    pub(crate) fn parse(address: &str, parameters: &[&str]) -> Result<Address, UrlError> {
        let value = |name: &str| {
            let value = |pair: &&str| pair.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
            parameters.iter().filter_map(value).next_back()
        };
        let (mode, roots) = (value("sslmode"), value("sslrootcert"));
        let is_system = roots.as_deref() == Some("system");
        let mode = if is_system { mode.or(Some("verify-full".to_owned())) } else { mode };
        let is_other =
            |pair: &&&str| !pair.starts_with("sslmode=") && !pair.starts_with("sslrootcert=");
        let others: Vec<&str> = parameters.iter().filter(is_other).copied().collect();
        let text = format!("postgresql://{address}?{}", others.join("&"));
        let mut config: Config = text.trim_end_matches('?').parse().map_err(UrlError::Client)?;
        let (mode, trust) = match mode.as_deref() {
            Some(mode) if is_system && mode != "verify-full" => {
                let why = format!("sslrootcert=system needs verify-full, not sslmode={mode}");
                return Err(UrlError::Tls(why));
            }
            Some("verify-ca") if roots.is_none() => {
                return Err(UrlError::Tls("sslmode=verify-ca needs sslrootcert=FILE".to_owned()));
            }
            Some("disable") => (SslMode::Disable, Trust::Any),
            None | Some("prefer") => (SslMode::Prefer, Trust::Any),
            Some("require") if roots.is_none() => (SslMode::Require, Trust::Any),
            Some("require" | "verify-ca") => (SslMode::Require, Trust::Signed),
            Some("verify-full") => (SslMode::Require, Trust::Host),
            Some(mode) => return Err(UrlError::Tls(format!("sslmode={mode} is unknown"))),
        };
        config.ssl_mode(mode);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_LIMIT);
        }
        if config.get_keepalives_idle() == KEEPALIVE_UNSET {
            config.keepalives_idle(SILENCE_LIMIT / 3).keepalives_interval(SILENCE_LIMIT / 3);
            config.keepalives_retries(2);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(SILENCE_LIMIT);
        }
        let tls = client(trust, roots.as_deref()).map_err(UrlError::Tls)?;
        Ok(Address { config, tls: MakeRustlsConnect::new(tls) })
    }

    /// Opens a connection to one of the hosts. The caller must poll the [`Wire`], or nothing is
    /// sent and received.
    pub(crate) async fn connect(&self) -> Result<(Client, Wire), DatabaseError> {
        let hosts = self.config.get_hosts().len().max(1) as u32;
        let limit = *self.config.get_connect_timeout().unwrap_or(&CONNECT_LIMIT) * hosts;
        let connect = self.config.connect(self.tls.clone());
        match tokio::time::timeout(limit, connect).await {
            Ok(connected) => connected.map_err(DatabaseError::Client),
            Err(_) => Err(DatabaseError::NoAnswer),
        }
    }

    pub(crate) async fn open(
        &self,
    ) -> Result<(Client, tokio::task::JoinHandle<()>), DatabaseError> {
        let (client, wire) = self.connect().await?;
        let task = tokio::spawn(async move {
            // Ignore the error of the connection. Each waiting statement gets it too, and reports
            // it.
            let _ = wire.await;
        });
        set_up(&client).await?;
        Ok((client, task))
    }
}

pub(crate) async fn set_up(client: &Client) -> Result<(), DatabaseError> {
    client.batch_execute(SETTINGS).await.map_err(DatabaseError::Client)
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address").field("config", &self.config).finish_non_exhaustive()
    }
}

fn client(trust: Trust, roots: Option<&str>) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let inner = match trust {
        Trust::Any => None,
        _ => {
            let roots = Arc::new(read_roots(roots)?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
            Some(verifier.build().map_err(|error| error.to_string())?)
        }
    };
    let verifier = Arc::new(Verifier { trust, inner, provider: provider.clone() });
    let builder = ClientConfig::builder_with_provider(provider);
    let builder =
        builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn read_roots(path: Option<&str>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match path {
        None | Some("system") => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(path) => {
            let failed = |error: &dyn fmt::Display| format!("sslrootcert={path}: {error}");
            let read = CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))?;
            for certificate in read {
                let certificate = certificate.map_err(|error| failed(&error))?;
                roots.add(certificate).map_err(|error| failed(&error))?;
            }
        }
    }
    match roots.is_empty() {
        true => Err(format!("{} has no certificates", path.unwrap_or("the system"))),
        false => Ok(roots),
    }
}

#[derive(Debug)]
struct Verifier {
    trust: Trust,
    /// Checks the signatures of certificates. None if any certificate is accepted.
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // rustls checks the host name last. So the signatures are good if only the name is
            // wrong, and `Trust::Signed` accepts any name.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.trust == Trust::Signed => Ok(ServerCertVerified::assertion()),
            done => done,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
