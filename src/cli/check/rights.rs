//! The part of `tidegauge check --full` about files with secrets: whether other users of the machine can
//! access them.

use std::path::Path;

use tidegauge::common::finding::{Finding, Part};
use tidegauge::common::small_file::{read_small_regular_text, rights_of_others};
use tidegauge::config::{Config, MongodbUri, Secret};

/// The right to write, among the rights of other users.
const WRITE: u32 = 0o002;

/// Warns of each file with a secret that other users can access: the configuration `file`, and those that it
/// names.
///
/// A configuration without secrets may be read, but not written: other users could add a token to it.
pub(super) fn look(config: &Config, file: Option<&Path>) -> Vec<Finding> {
    let itself = file.filter(|path| rights_of_others(path) & WRITE != 0 || has_secret(path));
    let itself = itself.map(|path| ("--config", path));
    let of_tls = config.http.tls.key_file.as_deref().map(|path| ("http.tls.key_file", path));
    let token = config.forward.token.as_ref().and_then(Secret::file).map(|path| ("forward.token", path));
    let keys = config.auth.keys.iter().filter_map(|key| Some(("auth.keys.secret", key.secret.file()?)));
    let passwords = config.mqtt.iter().filter_map(|broker| Some(("mqtt.password", broker.password.as_ref()?.file()?)));
    let of_mqtt = config.mqtt.iter().filter_map(|broker| Some(("mqtt.key_file", broker.key_file.as_deref()?)));
    let of_mongodb = config.mongodb.uri.as_ref().and_then(MongodbUri::certificate_key_file);
    let of_mongodb = of_mongodb.as_deref().map(|path| ("tlsCertificateKeyFile of mongodb.uri", path));
    let private_keys = of_tls.into_iter().chain(of_mqtt).chain(of_mongodb);
    let all = itself.into_iter().chain(private_keys).chain(token).chain(keys).chain(passwords);
    let accessible = all.filter(|(_, path)| rights_of_others(path) != 0);
    let warning = |(name, path): (&str, &Path)| {
        let path = path.display();
        let found = format!("other users of this machine can read or write {path} ({name})");
        let mend = format!(
            "let the service own the file, or read it by its group (chgrp tidegauge {path}; chmod g+r {path}), then \
             run: chmod o= {path}"
        );
        Finding::warning(Part::Configuration, found, mend)
    };
    accessible.map(warning).collect()
}

/// Whether a configuration file has a secret itself, and not only the name of a file with it.
fn has_secret(file: &Path) -> bool {
    let text = read_small_regular_text(file).unwrap_or_default();
    let config: Config = toml::from_str(&text).unwrap_or_default();
    let is_text = |secret: &Secret| secret.file().is_none();
    config.forward.token.as_ref().is_some_and(is_text)
        || config.mongodb.uri.is_some_and(|uri| uri.to_string() != uri.expose()) // an unknown option may be a secret
        || config.auth.keys.iter().any(|key| key.secret.file().is_none())
        || config.mqtt.iter().any(|broker| broker.password.as_ref().is_some_and(is_text))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use tidegauge::config::TokenHash;

    use super::*;

    #[test]
    fn only_secrets_that_other_users_can_access_are_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        };
        let hash = TokenHash::of("x");
        let token = format!("[[auth.tokens]]\nname = 'x'\nhash = '{hash}'\nscopes = ['query']");
        for (text, mode, count) in [
            ("[forward]\ntoken = 'x'", 0o644, 1),
            ("[forward]\ntoken = 'x'", 0o640, 0),
            ("[forward]\ntoken = { file = 'x' }", 0o644, 0),
            ("[mongodb]\nuri = 'mongodb://ann:x@h'", 0o604, 1),
            ("[mongodb]\nuri = 'mongodb://h'", 0o644, 0),
            ("[[mqtt]]\nurl = 'mqtt://h'\nclient_id = 'x'\npassword = 'x'", 0o644, 1),
            ("[[auth.keys]]\nid = 'x'\nsecret = 'x'", 0o644, 1),
            (&*token, 0o644, 0),
            ("", 0o646, 1),
        ] {
            let path = file("config.toml", text, mode);
            assert_eq!(look(&Config::default(), Some(&path)).len(), count, "{text} {mode:o}");
        }
        for (mode, count) in [(0o600, 0), (0o640, 0), (0o644, 1), (0o602, 1)] {
            let secret = file("secret", "x", mode);
            let path = secret.display();
            let mend = format!("(chgrp tidegauge {path}; chmod g+r {path}), then run: chmod o= {path}");
            for text in [
                format!("[forward]\ntoken = {{ file = '{path}' }}"),
                format!("[mongodb]\nuri = 'mongodb://h/?tls=true&tlsCertificateKeyFile={path}'"),
            ] {
                let found = look(&toml::from_str(&text).unwrap(), None);
                assert_eq!(found.len(), count, "{text} {mode:o} {found:?}");
                let has_mend = |found: &Finding| found.mend.as_ref().is_some_and(|of| of.ends_with(&mend));
                assert!(found.iter().all(has_mend), "{found:?}");
            }
        }
    }
}
