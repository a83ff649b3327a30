//! Parses the Prometheus text format and checks that the counters of readings balance.

/// A line for each metric of tidegauge, which begins with its name.
const CONTRACT: &str =
    include_str!("../../src/telemetry/snapshots/tidegauge__telemetry__metrics__tests__the_metrics_are_a_contract.snap");

/// The samples of one scrape.
#[derive(Debug)]
pub(crate) struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Debug)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Metrics {
    /// Parses the answer of `/metrics`.
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self { samples: lines.map(Sample::parse).collect() }
    }

    /// The sum of a counting metric over all its labels; 0 if it is missing.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.count_where(name, &[])
    }

    /// The sum of a counting metric over the series that have all of `labels`.
    ///
    /// # Panics
    /// If the name begins like those of tidegauge and is none of them: the sum would always be 0.
    pub(crate) fn count_where(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        assert!(!name.starts_with("tidegauge_") || is_known(name), "there is no metric {name}");
        let wanted = |sample: &&Sample| sample.name == name && labels.iter().all(|label| sample.carries(*label));
        let sum: f64 = self.samples.iter().filter(wanted).map(|sample| sample.value).sum();
        assert!(sum >= 0.0 && sum.fract() == 0.0, "{name} is not a count: {sum}");
        sum as u64
    }

    /// The value of a metric without labels.
    pub(crate) fn value(&self, name: &str) -> Option<f64> {
        self.samples.iter().find(|sample| sample.name == name).map(|sample| sample.value)
    }

    /// Whether a metric has a series.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.samples.iter().any(|sample| sample.name == name)
    }

    /// Checks that the counters account for every reading.
    ///
    /// The counters of remarks, such as `readings_overwritten`, must count accepted readings only.
    ///
    /// # Errors
    /// The sum that is wrong, with its terms.
    pub(crate) fn balance(&self) -> Result<(), String> {
        let of = |what: &str| self.count(&format!("tidegauge_readings_{what}"));
        let [received, accepted, rejected] = ["received_total", "accepted_total", "rejected_total"].map(of);
        if received != accepted + rejected {
            return Err(format!("received {received} != accepted {accepted} + rejected {rejected}"));
        }
        let recovered = of("recovered_total");
        let [stored, duplicate, pending] = ["stored_total", "duplicate_total", "pending"].map(of);
        let [dead_lettered, deleted] = ["dead_lettered_total", "deleted_total"].map(of);
        if recovered + accepted != stored + duplicate + pending + dead_lettered + deleted {
            return Err(format!(
                "recovered {recovered} + accepted {accepted} != stored {stored} + duplicate {duplicate} \
                 + pending {pending} + dead-lettered {dead_lettered} + deleted {deleted}"
            ));
        }
        let accepted = self.samples.iter().filter(|sample| sample.name == "tidegauge_readings_accepted_total");
        for (_, protocol) in accepted.flat_map(|sample| &sample.labels).filter(|(key, _)| key == "protocol") {
            let of = |name: &str| self.count_where(&format!("tidegauge_{name}_total"), &[("protocol", protocol)]);
            let [accepted, overwriting] = ["readings_accepted", "readings_overwritten"].map(of);
            if overwriting > accepted {
                return Err(format!("{protocol}: {overwriting} overwrite others, of {accepted} accepted readings"));
            }
            let values = of("values_rejected");
            if values > 0 && accepted == 0 {
                return Err(format!(
                    "{protocol}: {values} values of accepted readings are rejected, and none is accepted"
                ));
            }
        }
        Ok(())
    }

    /// The number of readings that were counted as stored or as duplicate.
    ///
    /// A repeated write may count as duplicate what an abandoned write has stored.
    pub(crate) fn taken(&self) -> u64 {
        self.count("tidegauge_readings_stored_total") + self.count("tidegauge_readings_duplicate_total")
    }
}

fn is_known(name: &str) -> bool {
    let metric = name.strip_suffix("_count").unwrap_or(name); // of a histogram
    CONTRACT.lines().any(|line| line.split(['{', ' ']).next() == Some(metric))
}

impl Sample {
    /// Parses `name{key="value",...} 1.5`.
    fn parse(line: &str) -> Self {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a sample: {line}"));
        let value = value.parse().unwrap_or_else(|_| panic!("not a number: {line}"));
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let labels = parse_labels(labels.strip_suffix('}').unwrap_or_else(|| panic!("not a sample: {line}")));
        Self { name: name.to_owned(), labels, value }
    }

    fn carries(&self, (key, value): (&str, &str)) -> bool {
        self.labels.iter().any(|(own_key, own_value)| own_key == key && own_value == value)
    }
}

fn parse_labels(text: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once("=\"") {
        let mut escaped = false;
        let end = after.find(|character| {
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        });
        let (value, after) = after.split_at(end.expect("a closing quote"));
        labels.push((key.trim_start_matches(',').to_owned(), value.replace("\\\"", "\"").replace("\\\\", "\\")));
        rest = &after[1..];
    }
    labels
}

#[test]
fn a_scrape_is_parsed_with_its_labels() {
    let text = "# HELP a help\n# TYPE a counter\na{x=\"1\",y=\"q\\\"},b\"} 2\na{x=\"2\",y=\"\"} 3\n\nb 1e3\nc NaN\n";
    let metrics = Metrics::parse(text);
    assert_eq!(metrics.count("a"), 5);
    assert_eq!(metrics.count_where("a", &[("x", "1"), ("y", "q\"},b")]), 2);
    assert_eq!((metrics.count("b"), metrics.count("none")), (1000, 0));
    assert!(metrics.has("c") && !metrics.has("d"));
}

#[test]
fn remarks_on_readings_that_were_not_accepted_are_found() {
    let scrape = |accepted: u64, overwritten: u64, values: u64| {
        Metrics::parse(&format!(
            "tidegauge_readings_received_total{{protocol=\"http\"}} {accepted}\n\
             tidegauge_readings_accepted_total{{protocol=\"http\"}} {accepted}\n\
             tidegauge_readings_stored_total {accepted}\n\
             tidegauge_readings_overwritten_total{{protocol=\"http\"}} {overwritten}\n\
             tidegauge_values_rejected_total{{protocol=\"http\",reason=\"invalid_value\"}} {values}\n"
        ))
    };
    assert_eq!(scrape(6, 2, 3).balance(), Ok(()));
    assert!(scrape(1, 2, 0).balance().is_err_and(|why| why.contains("2 overwrite others")));
    assert!(scrape(0, 0, 3).balance().is_err_and(|why| why.contains("3 values")));
}
