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
        pub(crate) histograms: Vec<super::Other>,
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
        pub(crate) histograms: Vec<super::Other>,
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

/// A message whose content does not matter.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Other {
    #[prost(uint32, tag = "1")]
    pub(crate) content: u32,
}
