//! Invariants fuzzed on configurations.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use super::load::Layers;
use super::{Bytes, Keep, Period, Place};

/// Reads a configuration from the text of a file and one environment variable.
///
/// The variable and its value follow the first zero byte of `text`.
pub fn config(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (file, variable) = text.split_once('\0').unwrap_or((text, ""));
    let Ok((mut layers, _)) = Layers::from_text(file, Path::new("fuzz.toml")) else { return };
    if let Some((path, value)) = variable.split_once('=') {
        let path: Vec<_> = path.split("__").map(str::to_owned).collect();
        let _ = layers.set(&path, value, &Place::Flag("--fuzz")); // if it is refused, the configuration stays as it was
    }
    let _ = layers.config.check();
    let shown = toml::to_string(&layers.config).expect("every configuration can be serialized");
    let (again, mistakes) =
        Layers::from_text(&shown, Path::new("again.toml")).expect("a serialized configuration can be read");
    assert!(mistakes.is_empty(), "{mistakes:?}");
    assert_eq!(toml::to_string(&again.config).expect("serialized before"), shown);
}

/// Parses `text` as a size, as a period and as a retention.
pub fn units(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    survives_a_round_trip::<Bytes>(text);
    survives_a_round_trip::<Period>(text);
    survives_a_round_trip::<Keep>(text);
}

fn survives_a_round_trip<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().expect("our own text"), value, "{text:?}");
    }
}
