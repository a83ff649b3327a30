//! The part of `tidegauge check --full` about `[[mqtt]]`: whether the broker takes the client, and what it
//! grants.

use tidegauge::common::finding::{Finding, Part};
use tidegauge::mqtt::{Grant, MqttError, Options, probe};

const BROKER: Part = Part::MqttBroker;
const TOPICS: Part = Part::MqttTopics;

/// Connects to a broker, and subscribes to all topics.
///
/// It uses a client ID and a session of its own, beside those of the service.
pub(super) async fn look(options: &Options) -> Vec<Finding> {
    let url = options.connector.url();
    match probe(options).await {
        Ok((version, grants)) => {
            let mut findings = vec![Finding::ok(BROKER, format!("{url} takes the client with MQTT {version}"))];
            findings.extend(grants.iter().map(|grant| granted(url, grant)));
            findings
        }
        Err(error) => vec![unreachable(url, &error)],
    }
}

fn unreachable(url: &str, error: &MqttError) -> Finding {
    let mend = match error {
        MqttError::Network(_) | MqttError::Timeout(_) => {
            "start the broker, or correct mqtt.url; if the error names a certificate, set mqtt.ca_file to its authority"
        }
        MqttError::Broker(_) => {
            "compare mqtt.user and mqtt.password with the broker's, and let it accept the client ID with -check behind \
             it too; its log says more"
        }
        _ => "look whether mqtt.url names an MQTT broker, and set mqtt.version if it knows only one",
    };
    Finding::error(BROKER, format!("{url}: {error}"), mend)
}

fn granted(url: &str, Grant { filter, asked, granted }: &Grant) -> Finding {
    match granted {
        Ok(qos) if qos < asked => Finding::warning(
            TOPICS,
            format!("{url} grants quality of service {qos} for {filter}: its messages may be lost on the way"),
            "let the broker grant 1 (max_qos in mosquitto), or set qos = 0 for the topic to say that it may be so",
        ),
        Ok(qos) => Finding::ok(TOPICS, format!("{url} grants {filter} with quality of service {qos}")),
        Err(why) => Finding::error(
            TOPICS,
            format!("{url} refuses the subscription to {filter}: {why}"),
            "give mqtt.user the right to read the topic (acl_file in mosquitto)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use tidegauge::common::finding::Severity;

    use super::*;

    #[test]
    fn a_lower_quality_is_a_warning_and_a_refusal_an_error() {
        let of =
            |asked, answer| granted("mqtt://b", &Grant { filter: "a/+".to_owned(), asked, granted: answer }).severity;
        assert_eq!(of(1, Ok(1)), Severity::Ok);
        assert_eq!(of(0, Ok(0)), Severity::Ok);
        assert_eq!(of(1, Ok(0)), Severity::Warning);
        assert_eq!(of(1, Err("NotAuthorized".to_owned())), Severity::Error);
    }
}
