//! One target of [`tidegauge::fuzz`], the one that the variable `TARGET` names, under libFuzzer.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tidegauge::fuzz::{self, Target};

static TARGET: OnceLock<&Target> = OnceLock::new();

fuzz_target!(init: {
    let name = std::env::var("TARGET").unwrap_or_default();
    let names: Vec<_> = fuzz::TARGETS.iter().map(|target| target.name).collect();
    let target = fuzz::TARGETS.iter().find(|target| target.name == name);
    let target = target.unwrap_or_else(|| panic!("TARGET is one of {}", names.join(", ")));
    assert!(TARGET.set(target).is_ok(), "libFuzzer starts once");
}, |input: &[u8]| (TARGET.get().expect("set at the start").run)(input));
