//! The connection string of MongoDB, which hides its password.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

/// The connection string of MongoDB.
///
/// `Display`, `Debug` and `Serialize` hide the password. Of the options they show only values that are known
/// not to be secret. [`MongodbUri::expose`] returns the whole text.
#[derive(Clone, PartialEq, Eq)]
pub struct MongodbUri(String);

/// A text is not a connection string.
///
/// The error does not quote the text, which may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a connection string that starts with \"mongodb://\" or \"mongodb+srv://\"")]
pub struct MongodbUriError;

/// The options whose values are not secret and are shown, in lower case.
const SHOWN: [&str; 34] = [
    "appname",
    "authmechanism",
    "authsource",
    "compressors",
    "connecttimeoutms",
    "directconnection",
    "heartbeatfrequencyms",
    "journal",
    "loadbalanced",
    "localthresholdms",
    "maxconnecting",
    "maxidletimems",
    "maxpoolsize",
    "maxstalenessseconds",
    "minpoolsize",
    "readconcernlevel",
    "readpreference",
    "readpreferencetags",
    "replicaset",
    "retryreads",
    "retrywrites",
    "servermonitoringmode",
    "serverselectiontimeoutms",
    "sockettimeoutms",
    "srvmaxhosts",
    "ssl",
    "tls",
    "tlsallowinvalidcertificates",
    "tlscafile",
    "tlscertificatekeyfile",
    "tlsinsecure",
    "w",
    "wtimeoutms",
    "zlibcompressionlevel",
];

/// The databases that MongoDB itself uses.
///
/// In a connection string, such a name tells where the user is defined, not where readings are stored.
pub(super) const SYSTEM_DATABASES: [&str; 3] = ["admin", "config", "local"];

impl MongodbUri {
    /// The whole text, secrets included.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether an option switches off the check of the servers' certificates.
    #[must_use]
    pub fn takes_any_certificate(&self) -> bool {
        let is_off = |(name, value): (&str, &str)| {
            ["tlsinsecure", "tlsallowinvalidcertificates"].contains(&&*name.to_ascii_lowercase()) && value == "true"
        };
        self.options().any(is_off)
    }

    /// The file with the certificate and the private key of the client, if an option names one.
    #[must_use]
    pub fn certificate_key_file(&self) -> Option<PathBuf> {
        let (_, file) = self.options().find(|(name, _)| name.eq_ignore_ascii_case("tlsCertificateKeyFile"))?;
        Some(percent_decode_str(file).decode_utf8_lossy().into_owned().into())
    }

    /// The names and values of the options.
    fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        let (_, options) = self.0.rsplit_once('?').unwrap_or_default();
        options.split('&').filter_map(|option| option.split_once('='))
    }

    /// The database that the text names, such as `gauge` in `mongodb://host/gauge`.
    ///
    /// `None`: the text names no database, or a system database.
    pub(super) fn database(&self) -> Option<String> {
        let (_, rest) = self.0.split_once("://")?;
        let before_options = rest.split('?').next()?;
        let hosts_and_name = before_options.rsplit('@').next()?;
        let (_, name) = hosts_and_name.split_once('/')?;
        let name = percent_decode_str(name).decode_utf8_lossy();
        (!name.is_empty() && !SYSTEM_DATABASES.contains(&&*name)).then(|| name.into_owned())
    }
}

impl FromStr for MongodbUri {
    type Err = MongodbUriError;

    /// Parses a connection string, and ignores white space around it.
    ///
    /// A secret that was made from a file often ends with a newline.
    fn from_str(text: &str) -> Result<Self, MongodbUriError> {
        let text = text.trim();
        let is_uri = text.starts_with("mongodb://") || text.starts_with("mongodb+srv://");
        if is_uri { Ok(Self(text.to_owned())) } else { Err(MongodbUriError) }
    }
}

impl fmt::Display for MongodbUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("mongodb", &self.0));
        write!(f, "{scheme}://")?;
        // split at the last "@", because an unescaped password may contain more of them
        let hosts_and_options = match rest.rsplit_once('@') {
            Some((login, _)) if login.contains('?') => return f.write_str("***"), // may contain the password
            Some((login, behind)) => {
                match login.split_once(':') {
                    Some((user, _)) => write!(f, "{user}:***@")?,
                    None => write!(f, "{login}@")?,
                }
                behind
            }
            None => rest,
        };
        let Some((hosts, options)) = hosts_and_options.split_once('?') else { return f.write_str(hosts_and_options) };
        write!(f, "{hosts}?")?;
        for (at, option) in options.split('&').enumerate() {
            f.write_str(if at > 0 { "&" } else { "" })?;
            match option.split_once('=') {
                Some((name, _)) if SHOWN.contains(&name.to_ascii_lowercase().as_str()) => f.write_str(option)?,
                Some((name, _)) => write!(f, "{name}=***")?,
                None => f.write_str("***")?, // may be the rest of a secret with an "&" in it
            }
        }
        Ok(())
    }
}

impl fmt::Debug for MongodbUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_options_that_may_be_secret_are_never_shown() {
        for (uri, shown) in [
            ("mongodb://localhost:27017", "mongodb://localhost:27017"),
            ("mongodb://ann:secret@a:1,b:2/db?replicaSet=rs0", "mongodb://ann:***@a:1,b:2/db?replicaSet=rs0"),
            ("mongodb://CN=ann@a/?authMechanism=MONGODB-X509", "mongodb://CN=ann@a/?authMechanism=MONGODB-X509"),
            ("mongodb+srv://ann:se@cr:et/x@cluster.example.net", "mongodb+srv://ann:***@cluster.example.net"),
            ("mongodb://ann:se?cret@host", "mongodb://***"),
            (
                "mongodb://host/?tls=true&tlsCertificateKeyFilePassword=se&cret&w=1",
                "mongodb://host/?tls=true&tlsCertificateKeyFilePassword=***&***&w=1",
            ),
            ("mongodb://host/?authMechanismProperties=A:secret", "mongodb://host/?authMechanismProperties=***"),
            ("mongodb://host/?tlsPasswrd=secret", "mongodb://host/?tlsPasswrd=***"),
            ("mongodb://host/?proxyPassword=se@cret", "mongodb://***"),
        ] {
            let uri: MongodbUri = uri.parse().expect("a connection string");
            assert_eq!(uri.to_string(), shown);
            assert_eq!(format!("{uri:?}"), format!("\"{shown}\""));
        }
    }

    #[test]
    fn a_newline_at_the_end_is_no_part_of_a_connection_string() {
        let uri: MongodbUri = "mongodb://ann:secret@h/?replicaSet=rs0\n".parse().expect("a connection string");
        assert_eq!(uri.expose(), "mongodb://ann:secret@h/?replicaSet=rs0");
    }

    #[test]
    fn an_option_that_switches_off_the_check_of_certificates_is_seen() {
        for (uri, is_off) in [
            ("mongodb://h", false),
            ("mongodb://tlsInsecure=true@h/?tls=true", false),
            ("mongodb://h/?tls=true&tlsInsecure=false", false),
            ("mongodb://h/?tls=true&tlsInsecure=true", true),
            ("mongodb+srv://ann:b@h/?TLSAllowInvalidCertificates=true&w=1", true),
        ] {
            let parsed: MongodbUri = uri.parse().expect("a connection string");
            assert_eq!(parsed.takes_any_certificate(), is_off, "{uri}");
        }
    }

    #[test]
    fn the_file_of_a_private_key_is_seen() {
        for (uri, file) in [
            ("mongodb://h", None),
            ("mongodb://h/?tls=true&tlsCAFile=/ca.pem", None),
            ("mongodb://ann:b@h/?tls=true&TLSCertificateKeyFile=/etc/my%20key.pem&w=1", Some("/etc/my key.pem")),
        ] {
            let parsed: MongodbUri = uri.parse().expect("a connection string");
            assert_eq!(parsed.certificate_key_file(), file.map(PathBuf::from), "{uri}");
        }
    }

    #[test]
    fn the_database_follows_the_hosts_and_is_not_a_system_database() {
        for (uri, database) in [
            ("mongodb://h", None),
            ("mongodb://h/", None),
            ("mongodb://h/?replicaSet=rs0", None),
            ("mongodb://h/plant", Some("plant")),
            ("mongodb+srv://ann:a%2Fb@h/plant?w=1&appName=a/b", Some("plant")),
            ("mongodb://ann:b@h:1,i:2/pl%61nt-%C3%A9", Some("plant-é")),
            ("mongodb://%2Ftmp%2Fm.sock/plant", Some("plant")),
            ("mongodb://h/100%", Some("100%")),
            ("mongodb://ann:b@h/admin", None),
        ] {
            let uri: MongodbUri = uri.parse().expect("a connection string");
            assert_eq!(uri.database().as_deref(), database, "{uri}");
        }
    }
}
