//! Credentials and roots, read from their files at each use: a rotated file counts at once, and the way back needs
//! nothing but its path. A file that cannot be used is a fault of class `auth` that names it, never what is in it.

use crate::core::error::{Class, Fault};
use crate::core::settings::CheckSettings;
use secrecy::{ExposeSecret, SecretString};
use std::io::Read;
use std::path::Path;

/// No key, password or bundle of roots is longer.
const FILE_MAX_BYTES: u64 = 1024 * 1024;

/// How a call says who it is.
pub(crate) enum Credentials {
    /// Security is off, or a client certificate is not asked for.
    None,
    /// `Authorization: ApiKey ...`
    ApiKey(SecretString),
    /// `Authorization: Basic ...`
    Basic {
        /// Before the first colon.
        user: String,
        /// After it.
        password: SecretString,
    },
}

/// What a check needs from files.
pub(super) struct Secrets {
    pub(super) credentials: Credentials,
    pub(super) roots: Vec<reqwest::Certificate>,
    pub(super) identity: Option<reqwest::Identity>,
}

/// Reads all files that the settings name. Blocking.
pub(super) fn load(settings: &CheckSettings) -> Result<Secrets, Fault> {
    let credentials = credentials(settings.api_key_file.as_deref(), settings.basic_auth_file.as_deref())?;
    let roots = match &settings.ca_file {
        None => Vec::new(),
        Some(file) => {
            let roots = reqwest::Certificate::from_pem_bundle(&bytes(file)?);
            let roots = roots.map_err(|_| unusable(file, "it is not PEM"))?;
            if roots.is_empty() {
                return Err(unusable(file, "there is no certificate in it"));
            }
            roots
        }
    };
    let identity = settings.client_cert_file.as_deref().map(|file| identity(file, &bytes(file)?)).transpose()?;
    Ok(Secrets { credentials, roots, identity })
}

/// A client certificate and its key, as reqwest takes them. Only a handshake shows whether they belong together.
pub(crate) fn identity(file: &str, pem: &[u8]) -> Result<reqwest::Identity, Fault> {
    let none = "there is no client certificate with a plain private key in it";
    reqwest::Identity::from_pem(pem).map_err(|_| unusable(file, none))
}

/// The API key where there is one, else user and password where they are named. Blocking.
pub(crate) fn credentials(api_key_file: Option<&str>, basic_auth_file: Option<&str>) -> Result<Credentials, Fault> {
    match (api_key_file, basic_auth_file) {
        (Some(file), _) => Ok(Credentials::ApiKey(secret(file)?)),
        (None, Some(file)) => {
            let text = secret(file)?;
            let Some((user, password)) = text.expose_secret().split_once(':') else {
                return Err(unusable(file, "it is not user:password"));
            };
            Ok(Credentials::Basic { user: user.to_owned(), password: SecretString::from(password) })
        }
        (None, None) => Ok(Credentials::None),
    }
}

fn secret(file: &str) -> Result<SecretString, Fault> {
    let text = String::from_utf8(bytes(file)?).map_err(|_| unusable(file, "it is not text"))?;
    let text = text.trim();
    if text.is_empty() {
        return Err(unusable(file, "it is empty"));
    }
    Ok(SecretString::from(text))
}

/// A file's bytes, bounded. Blocking.
pub(crate) fn bytes(file: &str) -> Result<Vec<u8>, Fault> {
    let said = |e: std::io::Error| unusable(file, &e.kind().to_string());
    let path = Path::new(file);
    // A pipe would be waited for.
    if !std::fs::metadata(path).map_err(said)?.is_file() {
        return Err(unusable(file, "it is not a file"));
    }
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(path).map_err(said)?;
    opened.take(FILE_MAX_BYTES.saturating_add(1)).read_to_end(&mut bytes).map_err(said)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > FILE_MAX_BYTES {
        return Err(unusable(file, "it is too long"));
    }
    Ok(bytes)
}

/// A file that cannot be used: named, and never what is in it.
pub(crate) fn unusable(file: &str, why: &str) -> Fault {
    Fault::new(Class::Auth, format!("cannot use the file {file}: {why}"))
}
