//! The types of the domain: devices, metrics, hours, stats, and the contents of a bucket.
//!
//! Everything here is pure: no I/O, no clock, no knowledge of any store, and of formats only the names that
//! Prometheus allows. The other rooms exchange readings in these types.

mod contents;
mod deletion;
mod device;
mod device_pattern;
mod hour;
mod metadata;
mod metadata_filter;
mod metric;
mod operator_metadata;
pub mod prometheus;
pub mod series;
mod series_filter;
mod stats;
mod value_limits;

pub use contents::{Arrivals, BucketWrite, Contents, Keep, Reading, Sample, Values};
pub use deletion::Deletion;
pub use device::{
    DEVICE_ID_MAX_BYTES, DeviceIdCase, DeviceIdError, check_device_id, check_device_prefix, end_of_prefix,
};
pub use device_pattern::DevicePattern;
pub use hour::{Day, Hour, HourOffset, MS_PER_HOUR};
pub use metadata::{
    METADATA_MAX_DEPTH, MetadataError, check_metadata_depth, check_metadata_key, check_metadata_number,
};
pub use metadata_filter::{MetadataFilter, MetadataFilterError, find_member};
#[cfg(test)]
pub use metric::reads;
pub use metric::{
    METRIC_MAX_BYTES, METRICS_PER_READING, Metric, MetricNameError, MetricTable, check_metric_name,
    is_usual_metric_name,
};
pub use operator_metadata::{OperatorKey, OperatorMetadata};
pub use series_filter::{SeriesFilter, Wanted};
pub(crate) use stats::{Fold, Sum};
pub use stats::{Stats, ValueAt, join_stats};
pub use value_limits::{Bound, Bounds, ValueLimits};
