//! The examples of RFC 8428, in the order of its sections. Those of section 5.1.2 are also in CBOR, section
//! 6.

use super::{assert_json, bytes, cbor, json};

#[test]
fn single_datapoint_5_1_1() {
    assert_json(
        r#"[ {"n":"urn:dev:ow:10e2073a01080063","u":"Cel","v":23.1} ]"#,
        &[r#"urn:dev:ow:10e2073a01080063 now Cel=23.1 {"units":{"Cel":"Cel"}}"#],
    );
}

#[test]
fn two_times_of_section_2() {
    let readings = [
        r#"urn:dev:ow:10e2073a01080063 1276020076000 Cel=23.5 {"units":{"Cel":"Cel"}}"#,
        r#"urn:dev:ow:10e2073a01080063 1276020091000 Cel=23.6 {"units":{"Cel":"Cel"}}"#,
    ];
    assert_json(
        r#"[ {"n":"urn:dev:ow:10e2073a01080063","u":"Cel","t":1.276020076e+09, "v":23.5},
             {"n":"urn:dev:ow:10e2073a01080063","u":"Cel","t":1.276020091e+09, "v":23.6} ]"#,
        &readings,
    );
    assert_json(
        r#"[ {"bn":"urn:dev:ow:10e2073a01080063","u":"Cel","t":1.276020076e+09, "v":23.5},
             {"u":"Cel","t":1.276020091e+09, "v":23.6} ]"#,
        &readings,
    );
}

#[test]
fn multiple_datapoints_now_5_1_2() {
    assert_json(
        r#"[ {"bn":"urn:dev:ow:10e2073a01080063:","n":"voltage","u":"V","v":120.1},
             {"n":"current","u":"A","v":1.2} ]"#,
        &[r#"urn:dev:ow:10e2073a01080063 now voltage=120.1 current=1.2 {"units":{"current":"A","voltage":"V"}}"#],
    );
}

const CURRENT_OVER_TIME: [&str; 6] = [
    r#"urn:dev:ow:10e2073a0108006 1276020076001 voltage=120.1 {"units":{"current":"A","voltage":"V"}}"#,
    r#"urn:dev:ow:10e2073a0108006 1276020071001 current=1.2 {"units":{"current":"A","voltage":"V"}}"#,
    r#"urn:dev:ow:10e2073a0108006 1276020072001 current=1.3 {"units":{"current":"A","voltage":"V"}}"#,
    r#"urn:dev:ow:10e2073a0108006 1276020073001 current=1.4 {"units":{"current":"A","voltage":"V"}}"#,
    r#"urn:dev:ow:10e2073a0108006 1276020074001 current=1.5 {"units":{"current":"A","voltage":"V"}}"#,
    r#"urn:dev:ow:10e2073a0108006 1276020075001 current=1.6 {"units":{"current":"A","voltage":"V"}}"#,
];
const CURRENT_LAST: &str =
    r#"urn:dev:ow:10e2073a0108006 1276020076001 current=1.7 {"units":{"current":"A","voltage":"V"}}"#;

#[test]
fn multiple_datapoints_over_time_5_1_2() {
    assert_json(
        r#"[ {"bn":"urn:dev:ow:10e2073a0108006:","bt":1.276020076001e+09, "bu":"A","bver":5,
              "n":"voltage","u":"V","v":120.1},
             {"n":"current","t":-5,"v":1.2}, {"n":"current","t":-4,"v":1.3}, {"n":"current","t":-3,"v":1.4},
             {"n":"current","t":-2,"v":1.5}, {"n":"current","t":-1,"v":1.6}, {"n":"current","v":1.7} ]"#,
        &[&CURRENT_OVER_TIME[..], &[CURRENT_LAST]].concat(),
    );
}

#[test]
fn cbor_6() {
    let dump = "87 a7 21 78 1b 75 72 6e 3a 64 65 76 3a 6f 77 3a 31 30 65 32 30 37 33 61 30 31 30 38 30 30 36 3a
        22 fb 41 d3 03 a1 5b 00 10 62 23 61 41 20 05 00 67 76 6f 6c 74 61 67 65 01 61 56 02 fb 40 5e 06
        66 66 66 66 66 a3 00 67 63 75 72 72 65 6e 74 06 24 02 fb 3f f3 33 33 33 33 33 33 a3 00 67 63 75
        72 72 65 6e 74 06 23 02 fb 3f f4 cc cc cc cc cc cd a3 00 67 63 75 72 72 65 6e 74 06 22 02 fb 3f
        f6 66 66 66 66 66 66 a3 00 67 63 75 72 72 65 6e 74 06 21 02 f9 3e 00 a3 00 67 63 75 72 72 65 6e
        74 06 20 02 fb 3f f9 99 99 99 99 99 9a a3 00 67 63 75 72 72 65 6e 74 06 00 02 fb 3f fb 33 33 33
        33 33 33";
    let expected: Vec<_> = [&CURRENT_OVER_TIME[..], &[CURRENT_LAST]].concat();
    assert_eq!(cbor(bytes(dump)), Ok(expected.iter().map(ToString::to_string).collect()));
}

/// The first records of the stream of section 5.1.2, with the end that a pack has.
#[test]
fn the_stream_5_1_2_as_a_pack() {
    let units = r#"{"units":{"%RH":"%RH"}}"#;
    assert_json(
        r#"[ {"bn":"urn:dev:ow:10e2073a01080063","bt":1.320067464e+09, "bu":"%RH","v":21.2},
             {"t":10,"v":21.3}, {"t":20,"v":21.4} ]"#,
        &[
            &format!("urn:dev:ow:10e2073a01080063 1320067464000 %RH=21.2 {units}"),
            &format!("urn:dev:ow:10e2073a01080063 1320067474000 %RH=21.3 {units}"),
            &format!("urn:dev:ow:10e2073a01080063 1320067484000 %RH=21.4 {units}"),
        ],
    );
}

#[test]
fn multiple_measurements_5_1_3_and_resolved_5_1_4() {
    let units = r#"{"units":{"%EL":"%EL","%RH":"%RH","lat":"lat","lon":"lon"}}"#;
    let readings = [
        ("1320067464000", "%RH=20 lon=24.30621 lat=60.07965"),
        ("1320067524000", "%RH=20.3 lon=24.30622 lat=60.07965"),
        ("1320067584000", "%RH=20.7 lon=24.30623 lat=60.07966"),
        ("1320067614000", "%EL=98"),
        ("1320067644000", "%RH=21.2 lon=24.30628 lat=60.07967"),
    ];
    let readings = readings.map(|(ts, values)| format!("urn:dev:ow:10e2073a01080063 {ts} {values} {units}"));
    let compact = r#"[ {"bn":"urn:dev:ow:10e2073a01080063","bt":1.320067464e+09, "bu":"%RH","v":20},
        {"u":"lon","v":24.30621}, {"u":"lat","v":60.07965},
        {"t":60,"v":20.3}, {"u":"lon","t":60,"v":24.30622}, {"u":"lat","t":60,"v":60.07965},
        {"t":120,"v":20.7}, {"u":"lon","t":120,"v":24.30623}, {"u":"lat","t":120,"v":60.07966},
        {"u":"%EL","t":150,"v":98},
        {"t":180,"v":21.2}, {"u":"lon","t":180,"v":24.30628}, {"u":"lat","t":180,"v":60.07967} ]"#;
    assert_eq!(json(compact), Ok(readings.to_vec()));

    let resolved = [
        ("%RH", "1.320067464e+09", "20"),
        ("lon", "1.320067464e+09", "24.30621"),
        ("lat", "1.320067464e+09", "60.07965"),
        ("%RH", "1.320067524e+09", "20.3"),
        ("lon", "1.320067524e+09", "24.30622"),
        ("lat", "1.320067524e+09", "60.07965"),
        ("%RH", "1.320067584e+09", "20.7"),
        ("lon", "1.320067584e+09", "24.30623"),
        ("lat", "1.320067584e+09", "60.07966"),
        ("%EL", "1.320067614e+09", "98"),
        ("%RH", "1.320067644e+09", "21.2"),
        ("lon", "1.320067644e+09", "24.30628"),
        ("lat", "1.320067644e+09", "60.07967"),
    ];
    let resolved = resolved.map(|(unit, time, value)| {
        format!(r#"{{"n":"urn:dev:ow:10e2073a01080063","u":"{unit}","t":{time},"v":{value}}}"#)
    });
    assert_eq!(json(format!("[{}]", resolved.join(","))), Ok(readings.to_vec()));
}

#[test]
fn multiple_data_types_5_1_5() {
    assert_json(
        r#"[ {"bn":"urn:dev:ow:10e2073a01080063:","n":"temp","u":"Cel","v":23.1},
             {"n":"label","vs":"Machine Room"}, {"n":"open","vb":false}, {"n":"nfc-reader","vd":"aGkgCg"} ]"#,
        &[
            "invalid_value: record [1]: only numbers and booleans can be stored, not \"vs\" or \"vd\"",
            "invalid_value: record [3]: only numbers and booleans can be stored, not \"vs\" or \"vd\"",
            r#"urn:dev:ow:10e2073a01080063 now temp=23.1 open=0 {"units":{"temp":"Cel"}}"#,
        ],
    );
}

#[test]
fn collection_of_resources_5_1_6() {
    let units = r#"{"units":{"humidity":"%RH","temperature":"Cel"}}"#;
    assert_json(
        r#"[ {"bn":"2001:db8::2/","bt":1.320078429e+09, "n":"temperature","u":"Cel","v":25.2},
             {"n":"humidity","u":"%RH","v":30},
             {"bn":"2001:db8::1/","n":"temperature","u":"Cel","v":12.3},
             {"n":"humidity","u":"%RH","v":67} ]"#,
        &[
            &format!("2001:db8::2 1320078429000 temperature=25.2 humidity=30 {units}"),
            &format!("2001:db8::1 1320078429000 temperature=12.3 humidity=67 {units}"),
        ],
    );
}

#[test]
fn setting_an_actuator_5_1_7() {
    assert_json(
        r#"[ {"bn":"urn:dev:ow:10e2073a01080063:"}, {"n":"temp","u":"Cel","v":23.1},
             {"n":"heat","u":"/","v":1}, {"n":"fan","u":"/","v":0} ]"#,
        &[r#"urn:dev:ow:10e2073a01080063 now temp=23.1 heat=1 fan=0 {"units":{"fan":"/","heat":"/","temp":"Cel"}}"#],
    );
    assert_json(
        r#"[ {"bt":1.320078429e+09,"bu":"/","n":"2001:db8::3","v":1}, {"n":"2001:db8::4","v":1} ]"#,
        &[r#"2001:db8: 1320078429000 3=1 4=1 {"units":{"3":"/","4":"/"}}"#],
    );
    assert_json(
        r#"[ {"bt":1.320078429e+09,"bu":"/","n":"2001:db8::3","v":0.5}, {"n":"2001:db8::4","v":0.5},
             {"n":"2001:db8::3","t":0.1,"v":0}, {"n":"2001:db8::4","t":0.1,"v":0} ]"#,
        &[
            r#"2001:db8: 1320078429000 3=0.5 4=0.5 {"units":{"3":"/","4":"/"}}"#,
            r#"2001:db8: 1320078429100 3=0 4=0 {"units":{"3":"/","4":"/"}}"#,
        ],
    );
}
