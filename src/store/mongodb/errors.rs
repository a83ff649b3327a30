//! Sorts the errors of the server and of the driver by cause.
//!
//! The rule behind the table: an error is permanent only if the write can never succeed. A code that is not
//! in the table is transient, because a reading that is retried in vain is still safe in the log, and one
//! that is given up is not. Wrong or missing credentials are transient too: after an operator has corrected
//! them, the write succeeds.
//!
//! Codes: <https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml>.

use std::time::Duration;

use mongodb::error::{Error, ErrorKind};

use crate::store::{Cause, StoreError};

/// The code of a duplicate key. Like [`IMMUTABLE_FIELD`], it is an expected answer to a statement.
pub(super) const DUPLICATE_KEY: i32 = 11000;

/// The code of a change to a field that cannot be changed, such as `_id`.
pub(super) const IMMUTABLE_FIELD: i32 = 66;

/// All causes that errors of the server and of the driver may have.
pub(super) const CAUSES: &[Cause] = &[
    Cause::Network,
    Cause::Timeout,
    Cause::ServerSelection,
    Cause::NotPrimary,
    Cause::Auth,
    Cause::Forbidden,
    Cause::WriteConcern,
    Cause::Contention,
    Cause::Overloaded,
    Cause::Schema,
    Cause::UnknownField,
    Cause::Other,
    Cause::Validation,
    Cause::TooLarge,
    Cause::BadValue,
    Cause::Metadata,
    Cause::UnreadableDocument,
];

/// The longest detail of an error, in characters: a validator repeats the values that it refuses, which may
/// be many.
const DETAIL_MAX_CHARS: usize = 500;

/// The error for a code of the server.
pub(super) fn of_code(code: i32, message: &str) -> StoreError {
    let message: String = message.chars().take(DETAIL_MAX_CHARS).collect();
    StoreError::new(cause_of(code), format!("{message} (code {code})"))
}

/// The error for an error of the driver.
pub(super) fn of_driver(error: &Error) -> StoreError {
    let of_cause = |cause| StoreError::new(cause, error.kind.to_string());
    if error.contains_label("SystemOverloadedError") {
        return of_cause(Cause::Overloaded);
    }
    let retryable = ["RetryableWriteError", "TransientTransactionError", "RetryableError"];
    let retryable = retryable.iter().any(|label| error.contains_label(label));
    match &*error.kind {
        ErrorKind::Command(refusal) => match of_code(refusal.code, &refusal.message) {
            sorted if sorted.cause.is_permanent() && retryable => of_cause(Cause::Other),
            sorted => sorted,
        },
        // When a connection fails to authenticate, the driver fails the calls that wait for another one.
        ErrorKind::ConnectionPoolCleared { message, .. } if message.contains("AuthenticationFailed") => {
            StoreError::new(Cause::Auth, "authentication failed")
        }
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } | ErrorKind::DnsResolve { .. } => {
            of_cause(Cause::Network)
        }
        // The driver's text lists the state of all servers. `Servers` replaces it by a text for people.
        ErrorKind::ServerSelection { .. } => {
            StoreError::new(Cause::ServerSelection, "no server was found that takes it")
        }
        ErrorKind::Authentication { .. } => of_cause(Cause::Auth),
        _ => of_cause(Cause::Other),
    }
}

/// Awaits a call to the server for at most `limit`: the driver has no timeout for a socket.
pub(super) async fn within<T>(
    limit: Duration,
    call: impl IntoFuture<Output = mongodb::error::Result<T>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(limit, call.into_future()).await {
        Ok(answer) => answer.map_err(|error| of_driver(&error)),
        Err(_) => Err(StoreError::new(Cause::Timeout, format!("no answer within {limit:?}"))),
    }
}

fn cause_of(code: i32) -> Cause {
    match code {
        // HostUnreachable, HostNotFound, NetworkTimeout, SocketException
        6 | 7 | 89 | 9001 => Cause::Network,
        // LockTimeout, MaxTimeMSExpired, ExceededTimeLimit
        24 | 50 | 262 => Cause::Timeout,
        // ShutdownInProgress, ReadConcernMajorityNotAvailableYet, PrimarySteppedDown, LegacyNotPrimary,
        // NotWritablePrimary, InterruptedAtShutdown, InterruptedDueToReplStateChange,
        // NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
        91 | 134 | 189 | 10058 | 10107 | 11600 | 11602 | 13435 | 13436 => Cause::NotPrimary,
        // WriteConcernFailed, UnsatisfiableWriteConcern
        64 | 100 => Cause::WriteConcern,
        // WriteConflict, DuplicateKey
        112 | DUPLICATE_KEY => Cause::Contention,
        // Unauthorized
        13 => Cause::Forbidden,
        // AuthenticationFailed
        18 => Cause::Auth,
        // DocumentValidationFailure
        121 => Cause::Validation,
        // InvalidLength, BSONObjectTooLarge, and an update whose result would be too large
        16 | 10334 | 17419 => Cause::TooLarge,
        // BadValue, FailedToParse, TypeMismatch, InvalidBSON, PathNotViable, ConflictingUpdateOperators,
        // DollarPrefixedFieldName, EmptyFieldName, DottedFieldName
        2 | 9 | 14 | 22 | 28 | 40 | 52 | 56 | 57 => Cause::BadValue,
        // IDLUnknownField
        40415 => Cause::UnknownField,
        _ => Cause::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_sorted() {
        let sorted: &[(Cause, &[i32])] = &[
            (Cause::Network, &[6, 7, 89, 9001]),
            (Cause::Timeout, &[24, 50, 262]),
            (Cause::NotPrimary, &[91, 134, 189, 10058, 10107, 11600, 11602, 13435, 13436]),
            (Cause::WriteConcern, &[64, 100]),
            (Cause::Contention, &[112, 11000]),
            (Cause::Forbidden, &[13]),
            (Cause::Auth, &[18]),
            (Cause::UnknownField, &[40415]),
            (Cause::Other, &[1, 8, 26, 59, 72, 123, 20, 31_337]),
            (Cause::Validation, &[121]),
            (Cause::TooLarge, &[16, 10334, 17419]),
            (Cause::BadValue, &[2, 9, 14, 22, 28, 40, 52, 56, 57]),
        ];
        for (expected, codes) in sorted {
            assert!(CAUSES.contains(expected));
            for &code in *codes {
                assert_eq!(of_code(code, "").cause, *expected, "{code}");
            }
        }
    }

    #[test]
    fn errors_of_the_driver_are_transient() {
        let io = Error::from(std::io::Error::new(std::io::ErrorKind::ConnectionReset, "reset"));
        assert_eq!(of_driver(&io).cause, Cause::Network);
        assert_eq!(of_driver(&Error::custom("odd")).cause, Cause::Other);
    }

    #[tokio::test]
    async fn a_call_that_hangs_fails_as_a_timeout() {
        let given_up = within(Duration::from_millis(1), std::future::pending::<mongodb::error::Result<()>>()).await;
        assert_eq!(given_up.unwrap_err().cause, Cause::Timeout);
    }
}
