//! The messages of both versions, as an independent library encodes them.

/// `prometheus.WriteRequest`.
pub(super) mod v1 {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct WriteRequest {
        #[prost(message, repeated, tag = "1")]
        pub(crate) timeseries: Vec<TimeSeries>,
        #[prost(message, repeated, tag = "3")]
        pub(crate) metadata: Vec<super::Other>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct TimeSeries {
        #[prost(message, repeated, tag = "1")]
        pub(crate) labels: Vec<Label>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) samples: Vec<super::Sample>,
        #[prost(message, repeated, tag = "3")]
        pub(crate) exemplars: Vec<super::Other>,
        #[prost(message, repeated, tag = "4")]
        pub(crate) histograms: Vec<super::Histogram>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Label {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(string, tag = "2")]
        pub(crate) value: String,
    }
}

/// `io.prometheus.write.v2.Request`.
pub(super) mod v2 {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Request {
        #[prost(string, repeated, tag = "4")]
        pub(crate) symbols: Vec<String>,
        #[prost(message, repeated, tag = "5")]
        pub(crate) timeseries: Vec<TimeSeries>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct TimeSeries {
        #[prost(uint32, repeated, tag = "1")]
        pub(crate) labels_refs: Vec<u32>,
        #[prost(message, repeated, tag = "2")]
        pub(crate) samples: Vec<super::Sample>,
        #[prost(message, repeated, tag = "3")]
        pub(crate) histograms: Vec<super::Histogram>,
        #[prost(message, repeated, tag = "4")]
        pub(crate) exemplars: Vec<super::Other>,
        #[prost(message, optional, tag = "5")]
        pub(crate) metadata: Option<super::Other>,
        #[prost(int64, tag = "6")]
        pub(crate) created_timestamp: i64,
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Sample {
    #[prost(double, tag = "1")]
    pub(crate) value: f64,
    #[prost(int64, tag = "2")]
    pub(crate) timestamp: i64,
}

/// A native histogram, the same in both versions.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Histogram {
    #[prost(oneof = "Count", tags = "1, 2")]
    pub(crate) count: Option<Count>,
    #[prost(double, tag = "3")]
    pub(crate) sum: f64,
    #[prost(sint32, tag = "4")]
    pub(crate) schema: i32,
    #[prost(double, tag = "5")]
    pub(crate) zero_threshold: f64,
    #[prost(uint64, tag = "6")]
    pub(crate) zero_count_int: u64,
    #[prost(message, repeated, tag = "8")]
    pub(crate) negative_spans: Vec<Other>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) positive_spans: Vec<Other>,
    #[prost(sint64, repeated, tag = "12")]
    pub(crate) positive_deltas: Vec<i64>,
    #[prost(double, repeated, tag = "13")]
    pub(crate) positive_counts: Vec<f64>,
    #[prost(int32, tag = "14")]
    pub(crate) reset_hint: i32,
    #[prost(int64, tag = "15")]
    pub(crate) timestamp: i64,
    #[prost(double, repeated, tag = "16")]
    pub(crate) custom_values: Vec<f64>,
}

/// The count of a native histogram.
#[derive(Clone, Copy, PartialEq, prost::Oneof)]
pub(crate) enum Count {
    #[prost(uint64, tag = "1")]
    Whole(u64),
    #[prost(double, tag = "2")]
    Fractional(f64),
}

/// A message whose content does not matter.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Other {
    #[prost(uint32, tag = "1")]
    pub(crate) content: u32,
}
