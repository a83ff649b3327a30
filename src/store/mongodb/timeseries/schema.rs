//! Brings the time-series collection, its index, its expiry and its sharding to what the options ask for.

use std::time::Duration;

use bson::{Document, doc};

use super::super::check::Expected;
use super::super::collection::{Deployment, Kind, ManagedCollection};
use super::super::connect::{Granularity, TimeseriesSpan};
use super::super::decode::server_integer;
use crate::store::{Cause, StoreError};

/// The index that every query of a device uses.
pub(in super::super) const QUERY_INDEX: &str = "deviceId_ts";

/// The schema that the options ask for.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    pub(super) collection: ManagedCollection,
    pub(super) span: TimeseriesSpan,
    pub(super) retention: Option<Duration>,
}

impl Schema {
    /// Brings the database to this schema.
    ///
    /// If this instance has ensured it before (`was_ensured`), a plain collection in its place is renamed: an
    /// insert created that collection after the time-series collection had been dropped, and none of its
    /// readings was reported as stored.
    pub(super) async fn ensure(&self, was_ensured: bool) -> Result<Deployment, StoreError> {
        let deployment = self.collection.deployment().await?;
        if was_ensured
            && self.collection.is_of(Kind::Plain).await?
            && let Some(aside) = self.collection.set_aside().await?
        {
            let collection = self.collection.name.as_str();
            tracing::warn!(
                collection,
                aside,
                "a plain collection had replaced the time-series collection; tidegauge has renamed it, and writes its \
                 readings again from the log: drop it when you do not need it"
            );
        }
        match self.collection.present(Kind::Timeseries).await? {
            None => self.create().await?,
            Some(present) => self.adjust(&present).await?,
        }
        self.collection.ensure_index(QUERY_INDEX, query_keys()).await?;
        self.collection.ensure_sharding(deployment, "meta.deviceId").await?;
        Ok(deployment)
    }

    /// The longest span of a bucket of the server. It expires as a whole.
    pub(super) const fn longest_bucket(&self) -> Duration {
        match self.span {
            TimeseriesSpan::Granularity(Granularity::Seconds) => Duration::from_secs(3_600),
            TimeseriesSpan::Granularity(Granularity::Minutes) => Duration::from_secs(86_400),
            TimeseriesSpan::Granularity(Granularity::Hours) => Duration::from_secs(30 * 86_400),
            TimeseriesSpan::Max(span) => span,
        }
    }

    /// The state that the collection should have.
    pub(super) fn expected(&self) -> Expected {
        Expected::timeseries(
            self.collection.clone(),
            self.retention,
            (QUERY_INDEX, query_keys()),
            (self.timeseries(), self.span_fields()),
        )
    }

    /// The fields and the span of a new collection.
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

    /// Changes what differs from the options. The server lets the span of its buckets grow only.
    async fn adjust(&self, present: &Document) -> Result<(), StoreError> {
        let options = present.get_document("options").cloned().unwrap_or_default();
        let (old, new) = (options.get("expireAfterSeconds").and_then(server_integer), self.retention.map(seconds));
        if old != new {
            let value = new.map_or_else(|| bson::Bson::from("off"), bson::Bson::from);
            self.collection.modify(doc! { "expireAfterSeconds": value }).await?;
            tracing::info!(
                collection = self.collection.name,
                ?old,
                ?new,
                "changed after how many seconds readings expire"
            );
        }
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
            let collection = self.collection.name.as_str();
            tracing::info!(collection, span = ?self.span, "changed the span of the server's buckets");
        }
        Ok(())
    }

    /// Replaces the error of servers before 6.3, which only report the fields of a span as unknown.
    fn explain(&self, error: StoreError) -> StoreError {
        match (self.span, error) {
            (TimeseriesSpan::Max(_), StoreError { cause: Cause::UnknownField, detail }) => StoreError::new(
                Cause::Schema,
                format!(
                    "this server does not know bucketMaxSpanSeconds, servers from 6.3 on do; set \
                     mongodb.timeseries.granularity instead of bucket_max_span ({detail})"
                ),
            ),
            (_, error) => error,
        }
    }

    fn span_fields(&self) -> Document {
        match self.span {
            TimeseriesSpan::Granularity(Granularity::Seconds) => doc! { "granularity": "seconds" },
            TimeseriesSpan::Granularity(Granularity::Minutes) => doc! { "granularity": "minutes" },
            TimeseriesSpan::Granularity(Granularity::Hours) => doc! { "granularity": "hours" },
            TimeseriesSpan::Max(span) => {
                doc! { "bucketMaxSpanSeconds": seconds(span), "bucketRoundingSeconds": seconds(span) }
            }
        }
    }
}

fn query_keys() -> Document {
    doc! { "meta.deviceId": 1, "ts": 1 }
}

fn seconds(period: Duration) -> i64 {
    i64::try_from(period.as_secs()).unwrap_or(i64::MAX)
}
