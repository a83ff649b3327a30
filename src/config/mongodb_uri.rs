//! A connection string that does not show its password.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The connection string of MongoDB. Printing or serializing it hides the password and the options, since options can
/// be secret as well; [`MongodbUri::expose`] gives the whole of it.
#[derive(Clone, PartialEq, Eq)]
pub struct MongodbUri(String);

impl MongodbUri {
    /// The whole text, secrets included.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MongodbUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("mongodb", &self.0));
        write!(f, "{scheme}://")?;
        // the last "@", because a password that was not escaped may hold others
        let hosts_and_options = match rest.rsplit_once('@') {
            Some((login, _)) if login.contains('?') => return f.write_str("***"), // cannot tell password from options
            Some((login, behind)) => {
                let user = login.split(':').next().unwrap_or_default();
                write!(f, "{user}:***@")?;
                behind
            }
            None => rest,
        };
        match hosts_and_options.split_once('?') {
            Some((hosts, _)) => write!(f, "{hosts}?***"),
            None => f.write_str(hosts_and_options),
        }
    }
}

impl fmt::Debug for MongodbUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl Serialize for MongodbUri {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MongodbUri {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let uri = String::deserialize(deserializer)?;
        if uri.starts_with("mongodb://") || uri.starts_with("mongodb+srv://") {
            return Ok(Self(uri));
        }
        // the text itself may be a secret, so the error does not repeat it
        Err(de::Error::custom("expected a connection string that starts with \"mongodb://\" or \"mongodb+srv://\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_options_are_never_shown() {
        for (uri, shown) in [
            ("mongodb://localhost:27017", "mongodb://localhost:27017"),
            ("mongodb://ann:secret@a:1,b:2/db?replicaSet=rs0", "mongodb://ann:***@a:1,b:2/db?***"),
            ("mongodb+srv://ann:se@cr:et/x@cluster.example.net", "mongodb+srv://ann:***@cluster.example.net"),
            ("mongodb://ann:se?cret@host", "mongodb://***"),
            ("mongodb://host/?tlsCertificateKeyFilePassword=secret", "mongodb://host/?***"),
            ("mongodb://host/?proxyPassword=se@cret", "mongodb://***"),
        ] {
            let uri = MongodbUri(uri.to_owned());
            assert_eq!(uri.to_string(), shown);
            assert_eq!(format!("{uri:?}"), format!("\"{shown}\""));
        }
    }
}
