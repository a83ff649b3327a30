//! The metric of the times of HTTP requests, by route, method and status.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};
use metrics::Histogram;

use super::instrument::{Instrument, Kind, Site};

/// A histogram for each route, method and status, registered on first use.
#[derive(Debug)]
pub struct RequestSeconds {
    site: Site,
    known: RwLock<HashMap<Request<Arc<str>>, Histogram, RandomState>>,
}

/// The labels of a request. `Route` is `&str`, or `Arc<str>` for a stored key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Request<Route> {
    route: Route,
    method: &'static str,
    status: u16,
}

/// Allows a lookup with a borrowed route: `Arc<str>` has the same hash as `str`.
impl Equivalent<Request<Arc<str>>> for Request<&str> {
    fn equivalent(&self, key: &Request<Arc<str>>) -> bool {
        (self.route, self.method, self.status) == (&key.route, key.method, key.status)
    }
}

impl RequestSeconds {
    /// Records the time of a request.
    ///
    /// The number of histograms is bounded: `route` is the pattern of the router, such as
    /// `/v1/devices/{deviceId}`, and unusual methods count as `other`.
    pub fn record(&self, route: &str, method: &str, status: u16, took: Duration) {
        let request = Request { route, method: known_method(method), status };
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(histogram) = known.get(&request) {
                return histogram.record(took);
            }
        }
        let site = self.site.with(route.to_owned()).with(request.method).with(status.to_string());
        let histogram = Histogram::at(site); // the same histogram if another thread gets here too
        histogram.record(took);
        let request = Request { route: route.into(), method: request.method, status };
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(request, histogram);
    }
}

impl Instrument for RequestSeconds {
    const KIND: Kind = Kind::Histogram;

    fn at(site: Site) -> Self {
        Self { site, known: RwLock::default() }
    }
}

fn known_method(method: &str) -> &'static str {
    let known = ["GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"];
    known.into_iter().find(|&known| known == method).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn requests_count_by_route_method_and_status() {
        let (metrics, exposition) = Metrics::new();
        let seconds = &metrics.http_request_seconds;
        for _ in 0..3 {
            seconds.record("/v1/readings", "POST", 200, Duration::from_millis(2));
        }
        seconds.record("/v1/readings", "POST", 503, Duration::from_millis(2));
        seconds.record("/v1/readings", "BREW", 405, Duration::from_millis(2));
        assert_eq!(seconds.known.read().expect("not poisoned").len(), 3);

        let text = exposition.render();
        for (labels, count) in [
            ("route=\"/v1/readings\",method=\"POST\",status=\"200\"", 3),
            ("route=\"/v1/readings\",method=\"POST\",status=\"503\"", 1),
            ("route=\"/v1/readings\",method=\"other\",status=\"405\"", 1),
        ] {
            let line = format!("tidegauge_http_request_seconds_count{{{labels}}} {count}\n");
            assert!(text.contains(&line), "{line} in\n{text}");
        }
        assert!(text.contains("status=\"200\",le=\"0.0025\"} 3\n"), "{text}");
    }
}
