//! Query parameters. A handler reads each by its name, and refuses unknown ones.
//!
//! Otherwise a misspelled parameter would silently mean its default. The description of the route (`openapi`)
//! lists the parameters that its handler may read.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::RangeInclusive;

use axum::http::Uri;
use jiff::civil::Date;
use percent_encoding::percent_decode_str;

use crate::common::clock::relative_ms;
use crate::common::similar::Bare;
use crate::http::openapi::Parameters;
use crate::http::problem::Problem;
use crate::model::{MetadataFilter, SeriesFilter};
use crate::query::{LocalInstant, Zone, is_local_time};
use crate::wire::timestamp;

/// The instants that parameters may have: years 0 to 9999, in Unix milliseconds.
const RANGE_MS: RangeInclusive<i64> = -62_167_219_200_000..=253_402_300_800_000;

/// The most metrics that a query may name, and the most labels.
const MAX_METRICS: usize = 256;

/// The most characters of an unknown parameter's name that a problem shows.
const MAX_SHOWN: usize = 64;

/// The start of `label.KEY`, a parameter that names a label.
const LABEL: &str = "label.";

/// The start of `meta.KEY`, a parameter that selects devices by their metadata.
///
/// The key ends with `!` if devices with the value are excluded: `meta.floor!=2`.
const METADATA: &str = "meta.";

/// Names of parameters elsewhere, and the parameter that each probably means.
///
/// The names are in the form of [`Bare`].
const ELSEWHERE: [(&str, &str); 13] = [
    ("id", "device"),
    ("start", "from"),
    ("since", "from"),
    ("end", "to"),
    ("stop", "to"),
    ("until", "to"),
    ("interval", "step"),
    ("window", "step"),
    ("timezone", "tz"),
    ("label", "label.KEY"),
    ("labels", "label.KEY"),
    ("meta", "meta.KEY"),
    ("metadata", "meta.KEY"),
];

/// The numbers that are probably Unix seconds: of the years 2008 to 2049.
///
/// As milliseconds they would be in January 1970.
const SECONDS: RangeInclusive<i64> = 1_200_000_000..=2_500_000_000;

/// The parameters of a request that no handler has read yet.
#[derive(Debug)]
pub(in crate::http) struct Params<'a> {
    /// The parameters that the handler may read; `None`: any.
    described: Option<Parameters>,
    left: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The names of the parameters that are not UTF-8.
    not_utf8: Vec<String>,
    /// The value of `tz`, once the handler has read it.
    zone: Option<Zone>,
}

impl<'a> Params<'a> {
    /// Returns the parameters of a request to a route that describes them.
    pub(in crate::http) fn of(uri: &'a Uri, described: Parameters) -> Self {
        Self { described: Some(described), ..Self::of_any(uri) }
    }

    /// Returns the parameters of a request to a route without a description.
    ///
    /// The configuration names the parameters of such a route.
    pub(in crate::http) fn of_any(uri: &'a Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        let left = form_urlencoded::parse(query.as_bytes()).collect();
        Self { described: None, left, not_utf8: not_utf8(query), zone: None }
    }

    /// Panics in debug builds if the route does not describe the parameter.
    fn check_described(&self, name: &str) {
        debug_assert!(
            self.described.is_none_or(|described| described.iter().copied().flatten().any(|one| one.describes(name))),
            "the description of the route lacks the parameter {name}"
        );
    }

    /// Reads all values of a parameter.
    pub(in crate::http) fn all(&mut self, name: &str) -> Vec<Cow<'a, str>> {
        self.check_described(name);
        self.left.extract_if(.., |(key, _)| key == name).map(|(_, value)| value).collect()
    }

    /// Ignores a parameter, whatever its values are.
    pub(in crate::http) fn ignore(&mut self, name: &str) {
        self.left.retain(|(key, _)| key != name);
        self.not_utf8.retain(|key| key != name);
    }

    /// Reads a parameter that may be present at most once.
    pub(in crate::http) fn one(&mut self, name: &str) -> Result<Option<Cow<'a, str>>, Problem> {
        let mut values = self.all(name);
        let value = values.pop();
        if values.is_empty() { Ok(value) } else { Err(Problem::invalid_parameter(name, "is present more than once")) }
    }

    /// Reads `tz`, the name of a time zone. May be called several times.
    pub(in crate::http) fn zone(&mut self) -> Result<Option<Zone>, Problem> {
        if let Some(name) = self.one("tz")? {
            let why = "expected the name of a time zone in the IANA database, such as Europe/Berlin";
            self.zone = Some(Zone::named(&name).ok_or_else(|| Problem::invalid_parameter("tz", why))?);
        }
        Ok(self.zone.clone())
    }

    /// Reads an instant: RFC 3339, also without seconds, Unix milliseconds, `now`, or `-24h`.
    ///
    /// With a zone, the instant may also be a local time.
    pub(in crate::http) fn instant_ms(
        &mut self,
        name: &str,
        now_ms: i64,
        zone: Option<&Zone>,
    ) -> Result<Option<i64>, Problem> {
        let Some(value) = self.one(name)? else { return Ok(None) };
        if let Some(relative) = relative_ms(&value, now_ms) {
            let outside = || Problem::invalid_parameter(name, "is too long ago");
            return if RANGE_MS.contains(&relative) { Ok(Some(relative)) } else { Err(outside()) };
        }
        let ms = match value.parse::<i64>() {
            Ok(seconds) if SECONDS.contains(&seconds) => {
                let problem = format!(
                    "{seconds} looks like seconds, but Unix times are in milliseconds: {seconds}000 (for an instant in \
                     January 1970 use RFC 3339)"
                );
                return Err(Problem::invalid_parameter(name, problem));
            }
            Ok(ms) => ms,
            Err(_) if is_local_time(&value) => {
                local_ms(&value, zone).map_err(|why| Problem::invalid_parameter(name, why))?
            }
            Err(_) if value.len() == 10 && value.parse::<Date>().is_ok() => {
                let time = if zone.is_some() { "T00:00" } else { "T00:00:00Z" };
                let why = format!("{value} has no time of day: give one, such as {value}{time}");
                return Err(Problem::invalid_parameter(name, why));
            }
            // In a query string a bare + means a space, but people write the offset of a time with a bare +.
            Err(_) => timestamp::parse_rfc3339(&with_seconds(&value.replace(' ', "+"))).map_err(|error| {
                let local = match zone {
                    Some(_) => "a local time such as 2026-11-01T08:00 or 2026-11-01 08:00:30, ",
                    None => "",
                };
                let problem = format!(
                    "expected RFC 3339 such as 2026-11-01T00:00:00Z, {local}Unix milliseconds, `now` or a time before \
                     now such as -24h: {error}"
                );
                Problem::invalid_parameter(name, problem)
            })?,
        };
        if RANGE_MS.contains(&ms) {
            Ok(Some(ms))
        } else {
            Err(Problem::invalid_parameter(name, "outside the years 0 to 9999; Unix times are in milliseconds"))
        }
    }

    /// Reads `true`, `1`, `false` or `0`.
    pub(in crate::http) fn boolean(&mut self, name: &str, default: bool) -> Result<bool, Problem> {
        match self.one(name)?.as_deref() {
            None => Ok(default),
            Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(_) => Err(Problem::invalid_parameter(name, "expected true or false")),
        }
    }

    /// Reads `limit`, a page size from 1 to `max`.
    pub(in crate::http) fn limit(&mut self, default: usize, max: usize) -> Result<usize, Problem> {
        let Some(value) = self.one("limit")? else { return Ok(default.min(max)) };
        let limit = value.parse().ok().filter(|limit| (1..=max).contains(limit));
        limit.ok_or_else(|| Problem::invalid_parameter("limit", format!("expected a number from 1 to {max}")))
    }

    /// Reads all parameters `metric` and `label.KEY`, which select series.
    pub(in crate::http) fn series(&mut self) -> Result<SeriesFilter, Problem> {
        let metrics: HashSet<_> = self.all("metric").into_iter().collect();
        if metrics.len() > MAX_METRICS {
            let why = format!("a query may name {MAX_METRICS} metrics, this one names {}", metrics.len());
            return Err(Problem::invalid_parameter("metric", why));
        }
        self.check_described(LABEL);
        let labels: HashSet<_> = self.left.extract_if(.., |(name, _)| name.starts_with(LABEL)).collect();
        if labels.len() > MAX_METRICS {
            let why = format!("a query may name {MAX_METRICS} labels, this one names {}", labels.len());
            return Err(Problem::invalid_parameter("label", why));
        }
        for metric in &metrics {
            SeriesFilter::new([&**metric], []).map_err(|why| Problem::invalid_parameter("metric", why))?;
        }
        let labels = labels.iter().map(|(name, value)| (&name[LABEL.len()..], &**value));
        SeriesFilter::new(metrics.iter().map(|metric| &**metric), labels)
            .map_err(|why| Problem::invalid_parameter("label", why))
    }

    /// Reads all parameters `meta.KEY`, which select devices by their metadata.
    pub(in crate::http) fn metadata(&mut self) -> Result<MetadataFilter, Problem> {
        self.check_described(METADATA);
        let conditions: Vec<_> = self.left.extract_if(.., |(name, _)| name.starts_with(METADATA)).collect();
        let conditions = conditions.iter().map(|(name, value)| (&name[METADATA.len()..], &**value));
        MetadataFilter::new(conditions).map_err(|why| Problem::invalid_parameter("meta", why))
    }

    /// Whether the request has the parameter `name`, and the handler has not read it.
    pub(in crate::http) fn has(&self, name: &str) -> bool {
        self.left.iter().any(|(key, _)| key == name)
    }

    /// Whether the request has a parameter `meta.KEY` that was not read.
    pub(in crate::http) fn has_metadata(&self) -> bool {
        self.left.iter().any(|(key, _)| key.starts_with(METADATA))
    }

    /// Refuses the parameters `names`, which mean nothing together with `other`.
    pub(in crate::http) fn exclude(&self, names: &[&str], other: &str) -> Result<(), Problem> {
        match self.left.iter().find(|(name, _)| names.contains(&&**name)) {
            None => Ok(()),
            Some((name, _)) => Err(Problem::invalid_parameter(name, format!("cannot be combined with {other}"))),
        }
    }

    /// Returns the parameters that were not read.
    pub(in crate::http) fn into_rest(self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> {
        self.left.into_iter()
    }

    /// Refuses a request with parameters that were not read, or that are not UTF-8.
    pub(in crate::http) fn end(self) -> Result<(), Problem> {
        if let Some(name) = self.not_utf8.first() {
            return Err(Problem::invalid_parameter(&shown(name), "is not UTF-8"));
        }
        match self.left.first() {
            None => Ok(()),
            Some((name, _)) => {
                let name = shown(name);
                let hint = self.described.map_or_else(String::new, |described| hint(&name, described));
                Err(Problem::invalid_parameter(&name, format!("this path has no such parameter{hint}")))
            }
        }
    }
}

/// The end of the problem of an unknown parameter: what it probably means, or how metadata is selected.
fn hint(name: &str, described: Parameters) -> String {
    let known = || described.iter().copied().flatten().map(|one| one.name());
    let takes = |start: &str| described.iter().copied().flatten().any(|one| one.describes(start));
    let of_key = [("labels.", LABEL), ("metadata.", METADATA)].into_iter().find_map(|(other, start)| {
        let key = name.strip_prefix(other)?;
        takes(start).then(|| format!("{start}{key}"))
    });
    let similar = || {
        let unknown = Bare::of(name)?;
        let meant = ELSEWHERE
            .iter()
            .find(|(other, meant)| other.as_bytes() == unknown.letters() && known().any(|one| one == *meant));
        meant.map(|(_, meant)| *meant).or_else(|| unknown.nearest(known())).map(str::to_owned)
    };
    match of_key.or_else(similar) {
        Some(meant) => format!("; did you mean {meant}?"),
        None if takes(METADATA) => format!("; metadata is selected with meta.{name}"),
        None => String::new(),
    }
}

/// Returns the names of the parameters in a query string that are not UTF-8.
fn not_utf8(query: &str) -> Vec<String> {
    let parameters = query.split('&').filter(|parameter| percent_decode_str(parameter).decode_utf8().is_err());
    let pairs = parameters.flat_map(|parameter| form_urlencoded::parse(parameter.as_bytes()));
    pairs.map(|(name, _)| name.into_owned()).collect()
}

/// The name of a parameter, cut off if it is long.
fn shown(name: &str) -> String {
    if name.chars().nth(MAX_SHOWN).is_none() {
        name.to_owned()
    } else {
        name.chars().take(MAX_SHOWN).chain("...".chars()).collect()
    }
}

/// Adds the seconds to a time with an offset that has none: `2026-11-01T08:00+01:00`.
fn with_seconds(text: &str) -> Cow<'_, str> {
    match text.split_at_checked(16) {
        Some((minute, offset)) if offset.starts_with(['Z', 'z', '+', '-']) => format!("{minute}:00{offset}").into(),
        _ => text.into(),
    }
}

/// Returns the instant of a local time, or why no single instant has this time.
fn local_ms(text: &str, zone: Option<&Zone>) -> Result<i64, String> {
    let Some(zone) = zone else {
        let seconds = if text.matches(':').count() < 2 { ":00" } else { "" };
        let time = format!("{}{seconds}", text.replacen(' ', "T", 1));
        return Err(format!(
            "{text} has no offset from UTC: write {time}Z or {time}+01:00, or name the time zone (tz), such as \
             Europe/Berlin"
        ));
    };
    let (why, instants) = match zone.instant(text) {
        Some(LocalInstant::Once(ms)) => return Ok(ms),
        Some(LocalInstant::Twice(instants)) => {
            ("exists twice in this time zone, because clocks are set back", instants)
        }
        Some(LocalInstant::Never(instants)) => {
            ("does not exist in this time zone, because clocks are set forward", instants)
        }
        None => return Err(format!("{text} is out of range")),
    };
    let shown = |ms| jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| at.to_string());
    let [first, second] = instants.map(shown);
    Err(format!("{text} {why}: write {first} or {second}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi::parameter;

    fn metrics(names: impl Iterator<Item = usize>) -> Result<usize, Problem> {
        let query: Vec<String> = names.map(|name| format!("metric={name}")).collect();
        let uri = format!("/?{}", query.join("&")).parse().expect("a URI");
        let mut params = Params::of_any(&uri);
        Ok(params.series()?.metrics().map_or(0, Iterator::count))
    }

    #[test]
    fn a_metric_that_is_named_again_counts_once() {
        assert_eq!(metrics((0..6_000).map(|nth| nth % 3)).expect("three metrics"), 3);
        assert_eq!(metrics(0..MAX_METRICS).expect("as many as possible"), MAX_METRICS);
        let refused = metrics(0..=MAX_METRICS).expect_err("one too many");
        assert_eq!(refused.detail(), "metric: a query may name 256 metrics, this one names 257");
    }

    const NOW_MS: i64 = 1_795_297_114_567;

    #[test]
    fn an_unknown_parameter_is_shown_in_part() {
        let uri = format!("/?{}=1", "x".repeat(10_000)).parse().expect("a URI");
        let refused = Params::of_any(&uri).end().expect_err("unknown");
        assert_eq!(refused.detail(), format!("{}...: this path has no such parameter", "x".repeat(64)));
    }

    #[test]
    fn an_unknown_parameter_may_mean_a_known_one() {
        const OF_ONE: Parameters = &[&[&parameter::FROM, &parameter::TO]];
        const OF_DEVICES: Parameters =
            &[&[&parameter::FROM, &parameter::TO, &parameter::DEVICE], &[&parameter::LABELS, &parameter::METADATA]];
        let hint = |name: &str, described| {
            let uri = format!("/?{name}=1").parse().expect("a URI");
            let refused = Params::of(&uri, described).end().expect_err(name);
            let start = format!("{name}: this path has no such parameter");
            refused.detail().strip_prefix(&start).expect(name).to_owned()
        };
        for (name, meant) in [
            ("deviceId", "device"),
            ("devices", "device"),
            ("id", "device"),
            ("form", "from"),
            ("start", "from"),
            ("until", "to"),
            ("labels.cpu", "label.cpu"),
            ("metadata.hall", "meta.hall"),
            ("metadata", "meta.KEY"),
        ] {
            assert_eq!(hint(name, OF_DEVICES), format!("; did you mean {meant}?"), "{name}");
        }
        assert_eq!(hint("hall", OF_DEVICES), "; metadata is selected with meta.hall");
        assert_eq!(hint("end", OF_ONE), "; did you mean to?");
        for name in ["deviceId", "id", "hall", "labels.cpu", "metadata"] {
            assert_eq!(hint(name, OF_ONE), "", "{name}");
        }
    }

    #[test]
    fn a_parameter_that_is_not_utf8_is_refused() {
        let end = |query: &str| {
            let uri = format!("/?{query}").parse().expect("a URI");
            let mut params = Params::of_any(&uri);
            assert_eq!(params.all("prefix").len(), 1);
            params.end().map_err(|problem| problem.detail().to_owned())
        };
        assert_eq!(end("prefix=%C3%A9"), Ok(()));
        for (query, why) in [
            ("prefix=%ff", "prefix: is not UTF-8"),
            ("prefix=%C3&%A9=", "prefix: is not UTF-8"),
            ("prefix=a&b%ff=c", "b\u{fffd}: is not UTF-8"),
        ] {
            assert_eq!(end(query), Err(why.to_owned()));
        }
    }

    #[test]
    fn an_ignored_parameter_may_be_anything() {
        let end = |query: &str| {
            let uri = format!("/?{query}").parse().expect("a URI");
            let mut params = Params::of_any(&uri);
            params.ignore("event");
            params.end().map_err(|problem| problem.detail().to_owned())
        };
        assert_eq!(end("event=%ff&event=up&event"), Ok(()));
        assert_eq!(end("event=%ff&other=%ff"), Err("other: is not UTF-8".to_owned()));
        assert_eq!(end("event=up&other=up"), Err("other: this path has no such parameter".to_owned()));
    }

    #[test]
    fn an_instant_may_be_before_now() {
        let instant =
            |text: &str| Params::of_any(&format!("/?to={text}").parse().expect("a URI")).instant_ms("to", NOW_MS, None);
        for (text, before_ms) in
            [("now", 0), ("-0s", 0), ("-90s", 90_000), ("-15m", 900_000), ("-24h", 86_400_000), ("-30d", 2_592_000_000)]
        {
            assert_eq!(instant(text).expect(text), Some(NOW_MS - before_ms), "{text}");
        }
        assert_eq!(instant("-1w").expect("a week"), instant("-7d").expect("seven days"));
        assert_eq!(instant("-24").expect("a number"), Some(-24));
        for text in [
            "-",
            "-h",
            "24h",
            "+24h",
            "-1y",
            "--1h",
            "-1.5h",
            "-1h30m",
            "now-1h",
            "-99999999999999999999h",
            "-999999w",
            "-%C3%A9",
        ] {
            instant(text).expect_err(text);
        }
    }

    #[test]
    fn a_local_time_needs_a_zone_in_which_it_is_one_instant() {
        let instant = |text: &str| {
            let uri = format!("/?from={text}").parse().expect("a URI");
            let mut params = Params::of_any(&uri);
            let zone = params.zone()?;
            params.instant_ms("from", NOW_MS, zone.as_ref())
        };
        for (text, same) in [
            ("2026-11-22T08:00&tz=Europe/Berlin", "2026-11-22T07:00:00Z"),
            ("2026-11-22%2008:00:30.5&tz=Europe/Berlin", "2026-11-22T07:00:30.500Z"),
            ("2026-11-22T08:00:00+05:00&tz=Europe/Berlin", "2026-11-22T03:00:00Z"),
            ("2026-04-05T02:00&tz=Australia/Lord_Howe", "2026-04-04T15:30:00Z"),
            ("2026-11-22T08:00Z&tz=Europe/Berlin", "2026-11-22T08:00:00Z"),
            ("2026-11-22T08:00+05:30", "2026-11-22T02:30:00Z"),
            ("2026-11-22T08:00%2B05:30", "2026-11-22T02:30:00Z"),
            ("2026-11-22t08:00-0500", "2026-11-22T13:00:00Z"),
        ] {
            assert_eq!(instant(text).expect(text), instant(same).expect(same), "{text}");
        }
        for (text, said) in [
            ("2026-11-22T08:00", "no offset from UTC: write 2026-11-22T08:00:00Z or 2026-11-22T08:00:00+01:00, or"),
            ("2026-11-22%2008:00:30.5", "write 2026-11-22T08:00:30.5Z or 2026-11-22T08:00:30.5+01:00, or name"),
            (
                "2026-10-25T02:30&tz=Europe/Berlin",
                "exists twice in this time zone, because clocks are set back: write 2026-10-25T00:30:00Z or \
                 2026-10-25T01:30:00Z",
            ),
            (
                "2026-03-29T02:30&tz=Europe/Berlin",
                "does not exist in this time zone, because clocks are set forward: write 2026-03-29T00:30:00Z or \
                 2026-03-29T01:30:00Z",
            ),
            ("2026-11-22T25:00&tz=Europe/Berlin", "expected RFC 3339"),
            ("2026-11-22", "2026-11-22 has no time of day: give one, such as 2026-11-22T00:00:00Z"),
            ("2026-11-22&tz=Europe/Berlin", "has no time of day: give one, such as 2026-11-22T00:00"),
            ("2026-11-31", "2026-11-01T00:00:00Z, Unix milliseconds"),
            ("2026-11-31&tz=Europe/Berlin", "00Z, a local time such as 2026-11-01T08:00 or 2026-11-01 08:00:30, Unix"),
            ("2026-11-22T08:00%2B05:3", "expected RFC 3339"),
            ("2026-11-22T08:0%C3%A9Z", "expected RFC 3339"),
        ] {
            let refused = instant(text).expect_err(text).detail().to_owned();
            assert!(refused.contains(said), "{text}: {refused}");
        }
    }

    #[test]
    fn an_instant_in_seconds_is_refused_with_what_to_write() {
        let instant = |text: &str| {
            Params::of_any(&format!("/?from={text}").parse().expect("a URI")).instant_ms("from", NOW_MS, None)
        };
        for (text, ms) in [("0", 0), ("-1", -1), ("1795297114000", 1_795_297_114_000), ("1199999999", 1_199_999_999)] {
            assert_eq!(instant(text).expect(text), Some(ms), "{text}");
        }
        assert_eq!(instant("1970-01-21T18:41:37.114Z").expect("RFC 3339"), Some(1_795_297_114));
        let refused = instant("1795297114").expect_err("seconds");
        assert!(refused.detail().contains("looks like seconds") && refused.detail().contains("1795297114000"));
    }
}
