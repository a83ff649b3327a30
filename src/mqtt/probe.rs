//! The test of a broker by `tidegauge check --full`: does it take the client?

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::session::{Received, Session};
use super::{MqttError, Options};
use crate::config::MqttVersion;

/// The time for the whole conversation.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The answer of a broker to a subscription.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    /// The topic filter, such as `plant/+/temp`.
    pub filter: String,
    /// The quality of service that the configuration asks for.
    pub asked: u8,
    /// The quality of service that the broker grants, or why it refuses.
    pub granted: Result<u8, String>,
}

/// Connects and subscribes. Returns the version of MQTT and the broker's answers.
///
/// The probe has a client ID and a session of its own, so it takes no messages from the client. It subscribes
/// to `$share/GROUP/FILTER` as `FILTER`, because a member of the group would take messages from the others.
///
/// # Errors
/// The broker cannot be reached, or refuses the client.
pub async fn probe(options: &Options) -> Result<(&'static str, Vec<Grant>), MqttError> {
    match options.broker.version {
        MqttVersion::V3 => ask(options, false).await,
        MqttVersion::V5 => ask(options, true).await,
        MqttVersion::Auto => match ask(options, true).await {
            Err(error) if error.may_be_of_version() => ask(options, false).await,
            other => other,
        },
    }
}

async fn ask(options: &Options, is_v5: bool) -> Result<(&'static str, Vec<Grant>), MqttError> {
    let answers = timeout(TIMEOUT, converse(options, is_v5)).await;
    let answers = answers.map_err(|_| MqttError::Timeout("answer the connection or the subscriptions"))??;
    Ok((if is_v5 { "5" } else { "3.1.1" }, answers))
}

async fn converse(options: &Options, is_v5: bool) -> Result<Vec<Grant>, MqttError> {
    let mut stream = options.connector.connect().await?;
    let mut session = Session::open(&options.broker, &format!("{}-check", options.broker.client_id), is_v5, true)?;
    let wanted: Vec<(String, u8)> =
        options.topics.iter().map(|topic| (topic.template.plain_filter(), topic.qos)).collect();
    let mut grants = Vec::new();
    let mut buffer = vec![0; 16 << 10];
    loop {
        stream.write_all(&std::mem::take(&mut session.out)).await?;
        let bytes = stream.read(&mut buffer).await?;
        if bytes == 0 {
            return Err(MqttError::Broker("closed the connection".to_owned()));
        }
        for received in session.receive(&buffer[..bytes]) {
            match received {
                Received::Connected { .. } => session.subscribe(&wanted, &[])?,
                Received::Granted(answers) => grants.extend(answers),
                Received::Message(_) => {}
                Received::Ended(error) => return Err(error),
            }
        }
        if !grants.is_empty() && session.is_subscribed() {
            break;
        }
    }
    session.disconnect();
    stream.write_all(&session.out).await?;
    let answers = grants.into_iter().zip(&wanted);
    Ok(answers.map(|((filter, granted), (_, asked))| Grant { filter, asked: *asked, granted }).collect())
}
