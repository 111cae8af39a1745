//! Proof of identity between workers and the programs that query them: certificates, and a token in each message.
//!
//! ```text
//! sql, worker ─ TLS: is its certificate signed by --tls-ca? ─▶ worker ─ is the token one of --tokens?
//! ```

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use http::HeaderValue;
use http::header::AUTHORIZATION;
use memferry_session::error::usage;
use tonic::codegen::Service;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Identity, ServerTlsConfig};
use tonic::{Request, Status};

use crate::serve::{Access, TlsFiles};

/// The variable with the token of a program that queries.
const TOKEN_VARIABLE: &str = "MEMFERRY_TOKEN";

/// How long a client may take for the handshake of TLS.
const TLS_TIME_MAX: Duration = Duration::from_secs(10);

/// Proof that a process gives to workers, and that it wants from them.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The certificate of the authority of workers, PEM. Without it, messages are plain text.
    authority: Option<Vec<u8>>,
    /// The header `authorization`.
    token: Option<HeaderValue>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("has_tls", &self.has_tls()).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Plain text without a token.
    pub fn none() -> Credentials {
        Credentials::default()
    }

    /// TLS with workers whose certificate an authority has signed. `file` has the certificate of the authority, PEM.
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate.
    pub fn with_authority(self, file: &Path) -> Result<Credentials> {
        let certificate = read(file)?;
        if !String::from_utf8_lossy(&certificate).contains("-----BEGIN CERTIFICATE-----") {
            return Err(usage(format!("{} has no certificate; --tls-ca is a PEM file", file.display())));
        }
        Ok(Credentials { authority: Some(certificate), ..self })
    }

    /// Sends a token with each message.
    ///
    /// # Errors
    /// The token has characters that no message can have.
    pub fn with_token(self, token: &str) -> Result<Credentials> {
        let header = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut header =
            header.map_err(|_| usage("the token is not one line of visible ASCII characters"))?;
        header.set_sensitive(true);
        Ok(Credentials { token: Some(header), ..self })
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.authority.is_some()
    }

    /// Settings of TLS for connections to workers.
    pub(crate) fn tls(&self) -> Option<ClientTlsConfig> {
        let authority = Certificate::from_pem(self.authority.as_ref()?);
        Some(ClientTlsConfig::new().ca_certificate(authority))
    }

    /// A connection that sends the token.
    pub(crate) fn authorized(&self, channel: Channel) -> Authorized {
        Authorized { channel, token: self.token.clone() }
    }

    /// The header `authorization`.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_ref()?.to_str().ok()
    }

    /// Adds advice to the error of a connection whose ends do not agree about TLS.
    pub(crate) fn advise(&self, what: String) -> String {
        // The alert of a TLS server, read as a frame of HTTP/2, or the end of its connection, whichever comes first.
        let ends = ["frame with invalid size", "broken pipe", "connection closed"];
        if !self.has_tls() && ends.iter().any(|end| what.contains(end)) {
            return format!("{what}; if it speaks TLS, name the certificate of its authority with --tls-ca");
        }
        if self.has_tls() && what.contains("InvalidContentType") {
            return "it speaks plain text; start it with --tls-certificate and --tls-key, or leave out --tls-ca"
                .to_owned();
        }
        if what.contains("peer certificate") {
            return format!(
                "{what}; --tls-ca must have the certificate of the authority that signed the worker's"
            );
        }
        what
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("cannot read {}; check the path", file.display()))
}

/// The contents of a certificate and its key, if both are given.
pub(crate) fn tls_files(certificate: Option<&Path>, key: Option<&Path>) -> Result<Option<TlsFiles>> {
    let (Some(certificate), Some(key)) = (certificate, key) else { return Ok(None) };
    Ok(Some(TlsFiles { certificate: read(certificate)?, key: read(key)? }))
}

/// A connection that sends a token.
#[derive(Clone, Debug)]
pub(crate) struct Authorized {
    channel: Channel,
    token: Option<HeaderValue>,
}

impl Service<http::Request<tonic::body::Body>> for Authorized {
    type Response = http::Response<tonic::body::Body>;
    type Error = tonic::transport::Error;
    type Future = <Channel as Service<http::Request<tonic::body::Body>>>::Future;

    fn poll_ready(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, context)
    }

    fn call(&mut self, mut request: http::Request<tonic::body::Body>) -> Self::Future {
        if let Some(token) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        Service::call(&mut self.channel, request)
    }
}

/// The options of a program that queries workers.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CredentialArguments {
    /// Certificate of the authority that signed the certificates of the workers, a PEM file: messages are encrypted.
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// File with the token for the workers, which only the owner may read [default: the variable MEMFERRY_TOKEN].
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl CredentialArguments {
    /// Whether one of the options is given.
    pub(crate) fn are_given(&self) -> bool {
        self.tls_ca.is_some() || self.token_file.is_some()
    }

    /// Reads the files, and the variable.
    ///
    /// # Errors
    /// Files or a token that cannot be used.
    pub(crate) fn credentials(&self) -> Result<Credentials> {
        let mut credentials = Credentials::none();
        if let Some(file) = &self.tls_ca {
            credentials = credentials.with_authority(file)?;
        }
        match (&self.token_file, env::var(TOKEN_VARIABLE)) {
            (Some(file), _) => match Access::open().with_tokens_of(file, "--token-file")?.first_token() {
                Some(token) => credentials.with_token(token),
                None => Ok(credentials),
            },
            (None, Ok(token)) if !token.is_empty() => credentials.with_token(token.trim()),
            _ => Ok(credentials),
        }
    }
}

/// The options of a worker.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SecurityArguments {
    /// Certificate of the worker for TLS, a PEM file. It names the host of --name.
    #[arg(long, value_name = "FILE", requires = "tls_key", requires = "tls_ca")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Certificate of the authority that signed the certificates of all workers, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_ca: Option<PathBuf>,
    /// Tokens of queries and of other workers, one on each line, with a name before a colon if wanted; only the owner may read the
    /// file. The first is sent to the other workers.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
}

/// The identity of a worker, the clients that it answers, and its credentials for other workers.
#[derive(Debug, Default)]
pub struct Security {
    /// Its certificate and key; without them, it speaks plain text.
    pub tls: Option<TlsFiles>,
    /// The tokens that it accepts.
    pub access: Access,
    /// For its connections to other workers.
    pub credentials: Credentials,
}

impl SecurityArguments {
    /// Reads the files.
    ///
    /// # Errors
    /// Files that cannot be used.
    pub(crate) fn security(&self) -> Result<Security> {
        let tls = tls_files(self.tls_certificate.as_deref(), self.tls_key.as_deref())?;
        let mut security = Security { tls, ..Security::default() };
        if let Some(file) = &self.tls_ca {
            security.credentials = security.credentials.with_authority(file)?;
        }
        if let Some(file) = &self.tokens {
            security.access = security.access.with_tokens(file)?;
            if let Some(token) = security.access.first_token() {
                security.credentials = security.credentials.with_token(token)?;
            }
        }
        Ok(security)
    }
}

impl Security {
    /// Settings of TLS for the worker.
    pub(crate) fn server_tls(&self) -> Option<ServerTlsConfig> {
        let TlsFiles { certificate, key } = self.tls.as_ref()?;
        Some(ServerTlsConfig::new().identity(Identity::from_pem(certificate, key)).timeout(TLS_TIME_MAX))
    }

    /// Lets a message pass that has a token.
    pub(crate) fn check(&self, request: Request<()>) -> Result<Request<()>, Status> {
        // Tokens of a file do not expire.
        match self.access.user(request.metadata(), Duration::ZERO) {
            Ok(_) => Ok(request),
            Err(_) if request.metadata().contains_key(AUTHORIZATION.as_str()) => {
                Err(Status::unauthenticated("the token is wrong; use one of the worker's --tokens"))
            }
            Err(_) => Err(Status::unauthenticated(format!(
                "it answers only with a token; name its file with --token-file, or set {TOKEN_VARIABLE}"
            ))),
        }
    }
}
