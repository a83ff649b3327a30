//! Checks connection strings without a server.

use mongodb::error::{Error, ErrorKind};
use mongodb::options::{ClientOptions, ConnectionString, HostInfo, Tls};

use crate::common::small_file::read_small_file;
use crate::config::MongodbUri;
use crate::tls::private_key;

/// A connection string cannot be used. The error never contains a secret.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UriError {
    /// The string is invalid, or names a file that cannot be read.
    #[error("mongodb.uri: {0}")]
    Unusable(String),
    /// The name server did not resolve the hosts, so the string may be valid.
    #[error("mongodb.uri: its hosts cannot be looked up: {0}")]
    Unresolved(String),
}

/// Checks a connection string as far as that is possible without a database.
///
/// # Errors
/// When a store could not be opened with it.
pub async fn check_uri(uri: &MongodbUri) -> Result<(), UriError> {
    let parsed = ConnectionString::parse(uri.expose()).map_err(|error| unusable(uri, &error))?;
    if let Some(Tls::Enabled(tls)) = &parsed.tls {
        for (option, file) in [("tlsCAFile", &tls.ca_file_path), ("tlsCertificateKeyFile", &tls.cert_key_file_path)] {
            let Some(file) = file else { continue };
            let read = std::fs::read(file);
            read.map_err(|error| UriError::Unusable(format!("{option} {}: {error}", file.display())))?;
        }
    }
    match parsed.host_info {
        HostInfo::HostIdentifiers(_) => resolve(uri).await.map(drop),
        _ => check_key(parsed.tls.as_ref()), // the hosts need a name server
    }
}

/// Checks the private key of `tlsCertificateKeyFile`. The driver names a file that cannot be read.
fn check_key(tls: Option<&Tls>) -> Result<(), UriError> {
    let Some(Tls::Enabled(tls)) = tls else { return Ok(()) };
    let Some(file) = &tls.cert_key_file_path else { return Ok(()) };
    let Ok(pem) = read_small_file(file) else { return Ok(()) };
    private_key(&pem)
        .map(drop)
        .map_err(|problem| UriError::Unusable(format!("tlsCertificateKeyFile {} {problem}", file.display())))
}

/// Parses a connection string with the driver. Only `mongodb+srv` needs a name server.
pub(super) async fn resolve(uri: &MongodbUri) -> Result<ClientOptions, UriError> {
    let options = ClientOptions::parse(uri.expose()).await.map_err(|error| match &*error.kind {
        ErrorKind::DnsResolve { message, .. } => UriError::Unresolved(message.clone()),
        _ => unusable(uri, &error),
    })?;
    check_key(options.tls.as_ref())?;
    Ok(options)
}

/// Describes an error in the driver's words.
///
/// If the text cannot be parsed, the driver's words may repeat any part of it, such as a secret. So they are
/// used only if the driver says the same about the text without its secrets.
pub(super) fn unusable(uri: &MongodbUri, error: &Error) -> UriError {
    let repeats_no_secret = match ConnectionString::parse(uri.expose()) {
        Ok(_) => true,
        Err(_) => ConnectionString::parse(uri.to_string()).is_err_and(|same| same.to_string() == error.to_string()),
    };
    UriError::Unusable(if repeats_no_secret { message_of(error) } else { BAD_SECRET.to_owned() })
}

const BAD_SECRET: &str = "it cannot be read; in a user name, a password or another secret, percent-encode every \
                          character but letters and digits (@ as %40, : as %3A, / as %2F, ? as %3F, % as %25)";

const NO_PASSWORD: &str = "tlsCertificateKeyFilePassword is not supported: decrypt the key with openssl pkey -in KEY \
                           -out PLAIN, and name a file with the certificate and this key in tlsCertificateKeyFile";

fn message_of(error: &Error) -> String {
    match &*error.kind {
        ErrorKind::InvalidArgument { message, .. } if message.contains("cert-key-password") => NO_PASSWORD.to_owned(),
        ErrorKind::InvalidArgument { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn said_of(uri: &str) -> String {
        match check_uri(&uri.parse().expect("a scheme")).await {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn errors_name_what_is_wrong() {
        for (uri, words) in [
            ("mongodb://", "the hostname cannot be empty"),
            ("mongodb://h:many/", "the port must be an integer between 1 and 65535, got many"),
            ("mongodb://ann:secret@h/?replcaSet=rs0", "replcaset is an invalid option"),
            ("mongodb://h/?tls=maybe", "`tls` option must be a boolean"),
            ("mongodb://a,b/?directConnection=true", "directConnection"),
            ("mongodb+srv://h:1/", "a port cannot be specified"),
            ("mongodb://h/?tls=true&tlsCAFile=/no/such/file", "tlsCAFile /no/such/file: No such file or directory"),
            ("mongodb://h/?tls=true&tlsCertificateKeyFilePassword=secret", "decrypt the key with openssl pkey"),
        ] {
            let said = said_of(uri).await;
            assert!(said.starts_with("mongodb.uri: ") && said.contains(words), "{uri}: {said}");
            assert!(!said.contains("secret") && !said.contains("Kind"), "{uri}: {said}");
        }
        for uri in ["mongodb://h", "mongodb+srv://no-such-host.example.net/?w=1", "mongodb://a:%40@h/d?w=majority"] {
            assert_eq!(said_of(uri).await, "", "{uri}");
        }
    }

    #[tokio::test]
    async fn an_encrypted_key_is_refused_before_the_driver_reads_it() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let key = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        std::fs::write(file.path(), key).expect("writable");
        let path = file.path().display();
        for uri in ["mongodb://h", "mongodb+srv://no-such-host.example.net"] {
            let said = said_of(&format!("{uri}/?tls=true&tlsCertificateKeyFile={path}")).await;
            assert!(said.contains(&format!("tlsCertificateKeyFile {path} holds an encrypted private key")), "{said}");
        }
    }

    #[tokio::test]
    async fn errors_about_a_secret_do_not_repeat_it() {
        for uri in [
            "mongodb://ann:hun?ter2@h",
            "mongodb://ann:hun/ter2@h",
            "mongodb://ann:hun%ter2@h",
            "mongodb://h/?authMechanism=PLAIN&authMechanismProperties=hunter2",
            "mongodb://h/?tls=true&tlsCertificateKeyFilePassword=hun&ter2",
        ] {
            let said = said_of(uri).await;
            assert!(said.starts_with("mongodb.uri: ") && !said.contains("ter2"), "{uri}: {said}");
        }
    }
}
