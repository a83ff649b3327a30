//! Problems made of the errors of other rooms.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Counts, Error, MOMENT, Problem, ProblemCode, Refusals, STORE_AWAY};
use crate::access::DeviceScopeError;
use crate::http::access::cross_site::CrossSiteError;
use crate::http::request::body::BodyError;
use crate::http::write::receipt_notes::ReceiptNotes;
use crate::ingest::{IngestError, Listed, Receipt};
use crate::limits::Exhausted;
use crate::log::AppendError;
use crate::query::QueryError;
use crate::telemetry::{Limit, RefusalEntry, What};

/// The `Retry-After` of a query that needs a complete device index.
const UNTIL_REBUILT: Duration = Duration::from_secs(60);

impl Problem {
    /// Refuses a request of which some or all readings are rejected.
    ///
    /// `partial` says whether the valid readings are accepted all the same. If a rate rejected some of the
    /// readings, the client should send the whole request again later: accepted readings are not stored
    /// twice.
    pub(in crate::http) fn rejected(receipt: Receipt, partial: bool) -> Self {
        let refusals = Some(Box::new(Refusals(receipt.refusals())));
        let (rejected, received, values) = (receipt.rejected, receipt.received, receipt.rejected_values());
        let detail = match (receipt.accepted, partial) {
            (0, true) if received == 1 => "the reading is rejected".to_owned(),
            (0, true) => format!("all {received} readings are rejected"),
            (_, true) if rejected == 0 && values == 1 => "1 value is rejected; all others are accepted".to_owned(),
            (_, true) if rejected == 0 => format!("{values} values are rejected; all others are accepted"),
            (_, true) if values > 0 => {
                format!(
                    "{rejected} of {received} readings and {values} more values are rejected; the others are accepted"
                )
            }
            (_, true) => format!("{rejected} of {received} readings are rejected; the others are accepted"),
            (_, false) => {
                format!("{rejected} of {received} readings are rejected; the request asked for all or nothing")
            }
        };
        let (code, detail) = if receipt.retry_after.is_some() {
            let for_now = receipt.listed.iter().find(|listed| listed.rejection.code.is_for_now());
            let why = for_now.map_or("a rate rejected some of them", |listed| &listed.rejection.detail);
            (ProblemCode::RateLimited, format!("{detail}; send all of it again later: {why}"))
        } else if receipt.accepted == 0 && rejected > 0 {
            (ProblemCode::Rejected, detail)
        } else {
            (ProblemCode::PartiallyRejected, detail)
        };
        let error = |Listed { index, line, rejection, .. }: Listed| Error {
            index,
            line,
            code: rejection.code.as_str(),
            detail: rejection.detail,
        };
        let notes = ReceiptNotes::of(&receipt);
        let errors = receipt.listed.into_iter().map(error).collect();
        let rejected_values = NonZeroU32::new(values);
        let counts = Some(Box::new(Counts { accepted: receipt.accepted, rejected, rejected_values, notes, errors }));
        Self { counts, retry_after: receipt.retry_after, refusals, ..Self::new(code, detail) }
    }

    /// Refuses a request of which no reading was accepted.
    ///
    /// A full log has space again only when the store is back. So if the store is away, `Retry-After` is
    /// longer.
    pub(in crate::http) fn refused(error: IngestError, is_store_away: bool) -> Self {
        let detail = error.to_string();
        match error {
            IngestError::TooManyReadings(_) => {
                Self::new(ProblemCode::TooManyReadings, detail).at(Limit::ReadingsPerRequest)
            }
            IngestError::TooLarge(_) => Self::new(ProblemCode::RequestTooLarge, detail),
            IngestError::NotPartial(receipt) => Self::rejected(*receipt, false),
            IngestError::RateLimited(error) => Self::readings_rate_limited(error.retry_after),
            IngestError::Overloaded(error) => {
                let wait = if is_store_away { STORE_AWAY } else { MOMENT };
                let problem = Self::new(ProblemCode::Overloaded, detail).after(wait);
                match error {
                    AppendError::DiskFull => problem.at(Limit::LogMinFree),
                    AppendError::OutOfFiles => problem,
                    _ => problem.at(Limit::LogBytes),
                }
            }
            IngestError::Failed(_) => {
                let detail = "the log accepts no more readings: its disk has failed, or the service is stopping";
                Self::new(ProblemCode::LogFailed, detail).after(MOMENT)
            }
        }
    }
}

impl From<BodyError> for Problem {
    fn from(error: BodyError) -> Self {
        let detail = error.to_string();
        match error {
            BodyError::LengthRequired => Self::new(ProblemCode::LengthRequired, detail),
            BodyError::UnsupportedEncoding(_) => Self::new(ProblemCode::UnsupportedMediaType, detail),
            BodyError::TooLarge(_) => Self::new(ProblemCode::BodyTooLarge, detail).at(Limit::BodyBytes),
            BodyError::Timeout => Self::new(ProblemCode::BodyTimeout, detail),
            BodyError::Broken(_) | BodyError::NotDecompressed(_) => Self::new(ProblemCode::InvalidBody, detail),
            BodyError::NoMemory(Exhausted::Token) => Self::rate_limited(Limit::TokenBytesInFlight, MOMENT),
            BodyError::NoMemory(Exhausted::All) => {
                Self::new(ProblemCode::Overloaded, detail).after(MOMENT).at(Limit::BytesInFlight)
            }
            BodyError::Internal(_) => Self::internal(detail),
        }
    }
}

impl From<&CrossSiteError> for Problem {
    fn from(error: &CrossSiteError) -> Self {
        let code = match error {
            CrossSiteError::ForeignOrigin => ProblemCode::ForeignOrigin,
            CrossSiteError::UnknownHost(_) => ProblemCode::HostNotAllowed,
            CrossSiteError::InvalidHost => ProblemCode::InvalidHost,
        };
        Self::new(code, error.to_string())
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        let detail = error.to_string();
        match error {
            QueryError::RangeTooLong { .. } => Self::new(ProblemCode::RangeTooLong, detail),
            QueryError::TooManyPoints { .. } | QueryError::TooManySteps { .. } => {
                Self::new(ProblemCode::TooManyPoints, detail)
            }
            QueryError::TooManyValues { .. } => Self::new(ProblemCode::TooManyValues, detail),
            QueryError::ReadingsExpired { .. } => Self::new(ProblemCode::ReadingsExpired, detail),
            QueryError::OutOfReach(DeviceScopeError::Forbidden(_)) => Self::new(ProblemCode::DeviceForbidden, detail),
            QueryError::OutOfReach(DeviceScopeError::Invalid(_) | DeviceScopeError::TooLong(_)) => {
                Self::invalid_parameter("device", detail)
            }
            QueryError::TooManyColumns { .. } => Self::new(ProblemCode::TooManyColumns, detail),
            QueryError::DeviceIndexIncomplete => {
                Self::new(ProblemCode::DeviceIndexIncomplete, detail).after(UNTIL_REBUILT)
            }
            QueryError::Lagging => Self::new(ProblemCode::Overloaded, detail).after(MOMENT),
            QueryError::TooManyDevices(_) => Self::new(ProblemCode::TooManyDevices, detail),
            QueryError::Timeout(limit) => {
                let detail =
                    format!("the query took longer than {limit:?} (query.timeout); ask for less, or try again later");
                Self::new(ProblemCode::QueryTimeout, detail).after(MOMENT)
            }
            QueryError::Store(_) | QueryError::StoreAway { .. } => {
                // The error of the store names hosts, so only the log has it.
                let code = ProblemCode::StoreUnavailable;
                let refusal = RefusalEntry { what: What::Queries, code: code.as_str(), count: 1, example: detail };
                let problem = Self::new(code, "the store does not answer; try again later").after(MOMENT);
                Self { refusals: Some(Box::new(Refusals(vec![refusal]))), ..problem }
            }
        }
    }
}
