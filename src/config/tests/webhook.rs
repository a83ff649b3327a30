//! Webhooks: presets, and the mistakes in hooks.

use strum::IntoEnumIterator;

use super::*;

fn hook(keys: &str) -> String {
    format!("[[webhook]]\npath = \"/h\"\n{keys}")
}

#[test]
fn each_preset_is_a_hook_that_needs_a_path_only() {
    for preset in Preset::iter() {
        let name: &str = preset.into();
        let file = format!("[[webhook]]\npath = \"/hooks/{name}/{{deviceId}}\"\npreset = \"{name}\"");
        let config = load(&file, &[], &[]).expect(name);
        let [hook] = &config.filled().webhook[..] else { panic!("{name}") };
        assert!(!hook.metric_paths().is_empty() && hook.device.is_none(), "{name}");
        let again = load(&toml::to_string(&config.filled()).expect("TOML"), &[], &[]).expect(name);
        assert_eq!(again.filled().webhook, config.filled().webhook, "{name}");
    }
}

#[test]
fn a_key_of_a_hook_overrides_that_of_its_preset() {
    let file = hook("preset = \"shelly\"\ntime = \"\"\nmetrics = { power = \"params.switch:0.apower\" }\nignore = []");
    let config = load(&file, &[], &[]).expect("valid");
    let hook = &config.filled().webhook[0];
    assert_eq!(hook.device_path().map(JsonPath::as_str), Some("src"));
    assert_eq!((hook.time_path(), hook.ignore.as_deref()), (None, Some(&[][..])));
    assert_eq!(hook.metric_paths()[0].name(), Some("power"));
    assert_eq!(hook.conditions().len(), 2);
}

#[test]
fn hooks_cannot_be_set_by_variables() {
    let env = [("TIDEGAUGE_WEBHOOK__PATH", "/h")];
    assert!(load("", &env, &[]).is_err());
}

#[test]
fn a_mistake_in_a_hook_is_reported() {
    let files = [
        hook(""),
        hook("device = \"d\""),
        hook("metrics = \"*\""),
        hook("device = \"d\"\nmetrics = \"a b\""),
        hook("device = \"d\"\nmetrics = [\"a\", { t = \"b[\" }]"),
        hook("device = \"d.*\"\nmetrics = \"*\""),
        hook("device = \"?\"\nmetrics = \"*\""),
        hook("device = \"d\"\nmetrics = \"a[0]\""),
        hook("device = \"d\"\nmetrics = { t = \"a.*\" }"),
        hook("device = \"d\"\nmetrics = { ts = \"a\" }"),
        hook("device = \"d\"\nmetrics = [\"a.t\", \"b.t\"]"),
        hook("device = \"d\"\nmetrics = [\"a[*].t\", \"u\"]"),
        hook("device = \"d\"\nmetrics = \"u\"\ntime = \"a[*].t\""),
        hook("device = \"d\"\nmetrics = \"a[*].u\"\nmetadata = \"a[*].m\""),
        hook("device = \"d\"\nmetrics = \"u\"\nmetadata = { deviceId = \"m\" }"),
        hook("device = \"d\"\nmetrics = \"u\"\nlabels = { \"\" = \"m\" }"),
        hook("device = \"d\"\nmetrics = \"u\"\ndevice_prefix = \" a\""),
        hook("device = \"d\"\nmetrics = \"u\"\nconstants = { deviceId = 1 }"),
        hook("device = \"d\"\nmetrics = \"u\"\nconstants = { at = 2026-01-01 }"),
        hook("device = \"d\"\nmetrics = \"u\"\nconstants = { a = [nan] }"),
        hook("device = \"d\"\nmetrics = \"u\"\nconstants = { a = [[[[[[[[1]]]]]]]] }"),
        hook("device = \"d\"\nmetrics = \"u\"\nconstants = { a = { \"\" = 1 } }"),
        hook("device = \"d\"\nmetrics = \"u\"\ndevice_ids = { \"0x1\" = \"..\" }"),
        hook("device = \"d\"\nmetrics = \"u\"\ndevice_ids = [\"a\"]"),
        hook("device = \"d\"\nmetrics = \"u\"\ntime_unit = \"m\""),
        hook("preset = \"ttn\""),
        hook("preset = \"tts\"\nmetric = \"u\""),
        hook("preset = \"tts\"") + "\n" + &hook("preset = \"shelly\""),
        "[[webhook]]\npath = \"/h/{deviceId}\"\ndevice = \"d\"\nmetrics = \"u\"".to_owned(),
        "[[webhook]]\npath = \"/h/{device}\"\npreset = \"tts\"".to_owned(),
        "[[webhook]]\npath = \"hooks\"\npreset = \"tts\"".to_owned(),
        "[[webhook]]\npath = \"/{deviceId}\"\npreset = \"tts\"".to_owned(),
        "[[webhook]]\npath = \"/v1/hooks\"\npreset = \"tts\"".to_owned(),
        "[[webhook]]\npath = \"/dashboard/hooks\"\npreset = \"tts\"".to_owned(),
        "[[webhook]]\npath = \"/dashboard\"\npreset = \"tts\"".to_owned(),
        "[[webhook]]\npreset = \"tts\"".to_owned(),
    ];
    insta::assert_snapshot!(files.map(|file| error_of(&file)).join("\n"));
}
