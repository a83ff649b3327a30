//! Device IDs are any text: hostile ones arrive by every way in, and every way out has them unchanged.

mod ways_in;
mod ways_out;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::harness::Model;

/// 2026-02-01T00:50:00Z.
const START_MS: i64 = 1_769_907_000_000;

/// IDs that mean something in one of the languages on their way, or look like another ID.
const IDS: &str = r#"
Küche Fenster
Line 3 / Press
Line 3
a"b'c
a\b\
/
//x/
a..b
../x
...
%41
A
a
%2F
%
%25s
a,b
a, b=c;d
#1
?x=1&y=2#z
a+b
a b
*
LIGHT-*
LIGHT-1
$where
$deviceId
{deviceId}
[0].*^(x|y)$
(index)
<b>&amp;</b>
`x`${y}
~|^
=1+1
-x
null
0
a/2026-02-01T00
a/2026-02-01T00/1
a/2026-02-01
שלום-12
مضخة 7
é
K1
ÄÖ
äö
𝔘
"#;

/// The IDs in the order of their bytes, with the longest ones.
pub(crate) fn ids() -> Vec<String> {
    let named = IDS.lines().filter(|line| !line.is_empty()).map(str::to_owned);
    let longest = ["x".repeat(128), "ä".repeat(64), "\u{10FFFF}".repeat(32), format!("a{}", "\u{20AC}".repeat(42))];
    // A letter with an accent of its own, the sign of Kelvin, an emoji of three characters, one that is none.
    let odd = ["e\u{301}", "\u{212A}1", "\u{1F468}\u{200D}\u{1F527}", "\u{FFFF}", "a\u{7E}", "a\u{80BF}"];
    let mut all: Vec<String> = named.chain(longest).chain(odd.map(str::to_owned)).collect();
    all.sort_unstable();
    all.dedup();
    assert!(all.len() > 50 && all.iter().all(|id| tidegauge::model::check_device_id(id).is_ok()));
    all
}

/// The values of the reading of a device with this number, which name the device.
fn values(number: usize, at: i64) -> BTreeMap<String, f64> {
    BTreeMap::from([("t".to_owned(), number as f64 + at as f64 / 8.0)])
}

/// Readings of all devices in two hours.
fn readings(ids: &[String], model: &mut Model) -> Value {
    let mut all = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        for at in 0..3 {
            let (ts, values) = (START_MS + at * 400_000, values(number, at));
            all.push(json!({ "deviceId": id, "ts": ts, "values": values, "metadata": { "of": id } }));
            model.insert(id, ts, values);
        }
    }
    json!(all)
}
