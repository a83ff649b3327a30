//! Brings the time-series collection, its index, its expiry and its sharding to what the options ask for.

use std::time::Duration;

use bson::{Document, doc};

use super::super::check::Expected;
use super::super::collection::{Deployment, Kind, ManagedCollection, is_shorter};
use super::super::decode::server_integer;
use crate::config::Granularity;
use crate::store::{Cause, StoreError};

/// The index that every query of a device uses.
pub(in super::super) const QUERY_INDEX: &str = "deviceId_ts";

/// The field of the shard key.
const DEVICE_FIELD: &str = "meta.deviceId";

/// The schema that the options ask for.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    pub(super) collection: ManagedCollection,
    pub(super) granularity: Granularity,
    /// The longest span of a bucket of the server. If it is set, it replaces `granularity`, and the starts of
    /// buckets are rounded to it.
    pub(super) max_span: Option<Duration>,
    pub(super) retention: Option<Duration>,
}

impl Schema {
    /// Brings the database to this schema, but lets readings expire no earlier than before.
    ///
    /// If this instance has ensured it before (`was_ensured`), a plain collection in its place is renamed: an
    /// insert created that collection after the time-series collection had been dropped, and none of its
    /// readings was reported as stored.
    pub(super) async fn ensure(&self, was_ensured: bool) -> Result<Deployment, StoreError> {
        let deployment = self.collection.deployment().await?;
        if was_ensured && let Some(aside) = self.collection.set_plain_aside().await? {
            tracing::warn!(
                collection = self.collection.name,
                aside,
                "a plain collection had replaced the time-series collection; tidegauge has renamed it, and writes its \
                 readings again from the log: drop it when you do not need it"
            );
        }
        match self.collection.present(Kind::Timeseries).await? {
            None => self.create().await?,
            Some(present) => self.adjust(&present).await?,
        }
        self.collection.ensure_index(QUERY_INDEX, query_keys(), None).await?;
        self.collection.ensure_sharding(deployment, DEVICE_FIELD).await?;
        Ok(deployment)
    }

    /// The longest span of a bucket of the server. A bucket expires as a whole.
    pub(super) fn longest_bucket(&self) -> Duration {
        self.max_span.unwrap_or(Duration::from_secs(match self.granularity {
            Granularity::Seconds => 3_600,
            Granularity::Minutes => 86_400,
            Granularity::Hours => 30 * 86_400,
        }))
    }

    /// The state that the collection should have.
    pub(super) fn expected(&self) -> Expected {
        Expected {
            collection: self.collection.clone(),
            kind: Kind::Timeseries,
            index: (QUERY_INDEX, query_keys()),
            expiry: self.retention,
            validator: None,
            timeseries: Some((self.timeseries(), self.span_fields())),
            device_field: DEVICE_FIELD,
            is_of_devices: true,
            is_of_readings: true,
        }
    }

    /// The option `timeseries` of a new collection.
    ///
    /// It has the names of the fields, and the span of the server's buckets.
    fn timeseries(&self) -> Document {
        let mut timeseries = doc! { "timeField": "ts", "metaField": "meta" };
        timeseries.extend(self.span_fields());
        timeseries
    }

    async fn create(&self) -> Result<(), StoreError> {
        let mut options = doc! { "timeseries": self.timeseries() };
        if let Some(retention) = self.retention {
            options.insert("expireAfterSeconds", seconds(retention));
        }
        self.collection.create(options).await.map_err(|error| self.explain(error))
    }

    /// Has readings expire after the retention, also if that is earlier than before.
    pub(super) async fn shorten_expiry(&self) -> Result<(), StoreError> {
        match self.collection.present(Kind::Timeseries).await? {
            None => Ok(()), // the next write creates it
            Some(present) => self.adjust_expiry(&options_of(&present), true).await,
        }
    }

    async fn adjust_expiry(&self, options: &Document, may_shorten: bool) -> Result<(), StoreError> {
        let (old, new) = (options.get("expireAfterSeconds").and_then(server_integer), self.retention.map(seconds));
        if old == new || (!may_shorten && is_shorter(new, old)) {
            return Ok(());
        }
        let value = new.map_or_else(|| bson::Bson::from("off"), bson::Bson::from);
        self.collection.modify(doc! { "expireAfterSeconds": value }).await?;
        tracing::info!(collection = self.collection.name, ?old, ?new, "changed after how many seconds readings expire");
        Ok(())
    }

    /// Changes what differs from the options. The server lets the span of its buckets grow only.
    async fn adjust(&self, present: &Document) -> Result<(), StoreError> {
        let options = options_of(present);
        self.adjust_expiry(&options, false).await?;
        let present = options.get_document("timeseries").cloned().unwrap_or_default();
        let wanted = self.span_fields();
        let differs = wanted.iter().any(|(field, value)| {
            present
                .get(field)
                .is_some_and(|found| server_integer(found) != server_integer(value) || found.as_str() != value.as_str())
        });
        if differs {
            let modified = self.collection.modify(doc! { "timeseries": wanted }).await;
            modified.map_err(|error| self.explain(error))?;
            let (collection, span) = (&self.collection.name, self.span_fields());
            tracing::info!(collection, %span, "changed the span of the server's buckets");
        }
        Ok(())
    }

    /// Replaces the error of servers before 6.3, which only report the fields of a span as unknown.
    fn explain(&self, error: StoreError) -> StoreError {
        match error {
            StoreError { cause: Cause::UnknownField, detail } if self.max_span.is_some() => StoreError::new(
                Cause::Schema,
                format!(
                    "this server does not know bucketMaxSpanSeconds, servers from 6.3 on do; set \
                     mongodb.timeseries.granularity instead of bucket_max_span ({detail})"
                ),
            ),
            error => error,
        }
    }

    fn span_fields(&self) -> Document {
        if let Some(span) = self.max_span {
            return doc! { "bucketMaxSpanSeconds": seconds(span), "bucketRoundingSeconds": seconds(span) };
        }
        let granularity = match self.granularity {
            Granularity::Seconds => "seconds",
            Granularity::Minutes => "minutes",
            Granularity::Hours => "hours",
        };
        doc! { "granularity": granularity }
    }
}

fn options_of(present: &Document) -> Document {
    present.get_document("options").cloned().unwrap_or_default()
}

fn query_keys() -> Document {
    doc! { "meta.deviceId": 1, "ts": 1 }
}

fn seconds(period: Duration) -> i64 {
    i64::try_from(period.as_secs()).unwrap_or(i64::MAX)
}
