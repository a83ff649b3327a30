//! What is held against any configuration.

use std::fmt::{Debug, Display};
use std::path::Path;
use std::str::FromStr;

use super::load::Layers;
use super::{Bytes, Keep, Period, Place};

/// A file, and behind the first zero byte an environment variable with its value.
pub fn config(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let (file, variable) = text.split_once('\0').unwrap_or((text, ""));
    let Ok((mut layers, _)) = Layers::from_text(file, Path::new("fuzz.toml")) else { return };
    if let Some((path, value)) = variable.split_once('=') {
        let path: Vec<_> = path.split("__").map(str::to_owned).collect();
        let _ = layers.set(&path, value, &Place::Flag("--fuzz")); // refused or not, what was there stands
    }
    let _ = layers.config.check();
    let shown = toml::to_string(&layers.config).expect("a configuration can be shown");
    let (again, mistakes) = Layers::from_text(&shown, Path::new("again.toml")).expect("what is shown can be read");
    assert!(mistakes.is_empty(), "{mistakes:?}");
    assert_eq!(toml::to_string(&again.config).expect("shown before"), shown);
}

/// A value with a unit.
pub fn units(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    comes_back::<Bytes>(text);
    comes_back::<Period>(text);
    comes_back::<Keep>(text);
}

fn comes_back<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().expect("written by us"), value, "{text:?}");
    }
}
