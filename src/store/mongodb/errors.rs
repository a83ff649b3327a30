//! What the server and the driver say when something fails, sorted into what may be sent again and what may
//! not.
//!
//! The rule behind the table: only what can never succeed is permanent, and a code that is not in the table
//! is transient, because a reading that is retried in vain is still safe in the log, and one that is given up
//! is not. Wrong or missing credentials are transient too: an operator mends them, and then everything flows.
//!
//! Codes: <https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml>.

use std::time::Duration;

use mongodb::error::{Error, ErrorKind};

use crate::store::{Reasons, StoreError, WriteError};

/// The code of a duplicate key: with the next one, the write error that is part of the plan.
pub(super) const DUPLICATE_KEY: i32 = 11000;

/// The code of a change to a field that cannot be changed, such as `_id`.
pub(super) const IMMUTABLE_FIELD: i32 = 66;

/// All that `reason` may say.
pub(super) const REASONS: Reasons = Reasons {
    transient: &[
        "network",
        "timeout",
        "server_selection",
        "not_primary",
        "auth",
        "write_concern",
        "contention",
        "overloaded",
        "schema",
        "other",
    ],
    permanent: &["validation", "too_large", "bad_value", "metadata", "unreadable"],
};

/// The longest detail that is passed on, in characters: a validator repeats the values it dislikes, and there
/// may be many.
const DETAIL_MAX_CHARS: usize = 500;

/// What a code of the server means for a write.
pub(super) fn of_code(code: i32, message: &str) -> WriteError {
    let detail = format!("{} (code {code})", message.chars().take(DETAIL_MAX_CHARS).collect::<String>());
    match verdict(code) {
        Verdict::Later(reason) => WriteError::Transient { reason, detail },
        Verdict::Never(reason) => WriteError::Permanent { reason, detail },
    }
}

/// What an error of the driver means for a write.
pub(super) fn of_driver(error: &Error) -> WriteError {
    let transient = |reason| WriteError::Transient { reason, detail: error.kind.to_string() };
    if error.contains_label("SystemOverloadedError") {
        return transient("overloaded");
    }
    let retryable = ["RetryableWriteError", "TransientTransactionError", "RetryableError"];
    let retryable = retryable.iter().any(|label| error.contains_label(label));
    match &*error.kind {
        ErrorKind::Command(refusal) => match of_code(refusal.code, &refusal.message) {
            WriteError::Permanent { .. } if retryable => transient("other"),
            sorted => sorted,
        },
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } | ErrorKind::DnsResolve { .. } => {
            transient("network")
        }
        // The driver describes all it knows of all servers here; `Servers` does so for people.
        ErrorKind::ServerSelection { .. } => {
            let detail = "no server was found that takes it".to_owned();
            WriteError::Transient { reason: "server_selection", detail }
        }
        ErrorKind::Authentication { .. } => transient("auth"),
        _ => transient("other"),
    }
}

/// Whether a call that follows at once would only meet the same error, and later.
pub(super) fn is_out_of_reach(error: &WriteError) -> bool {
    let reasons = ["network", "timeout", "server_selection", "not_primary", "auth"];
    matches!(error, WriteError::Transient { reason, .. } if reasons.contains(reason))
}

/// Whether a command that met this error may take effect later.
pub(super) fn may_still_happen(error: &WriteError) -> bool {
    let reasons = ["network", "timeout", "other"];
    matches!(error, WriteError::Transient { reason, .. } if reasons.contains(reason))
}

/// Awaits a call to the server, but no longer than `limit`: the driver has no timeout on a socket.
pub(super) async fn within<T>(
    limit: Duration,
    call: impl IntoFuture<Output = mongodb::error::Result<T>>,
) -> Result<T, WriteError> {
    match tokio::time::timeout(limit, call.into_future()).await {
        Ok(answer) => answer.map_err(|error| of_driver(&error)),
        Err(_) => Err(WriteError::Transient { reason: "timeout", detail: format!("no answer within {limit:?}") }),
    }
}

/// For calls where the sort of error makes no difference.
impl From<WriteError> for StoreError {
    fn from(error: WriteError) -> Self {
        Self(error.to_string())
    }
}

enum Verdict {
    Later(&'static str),
    Never(&'static str),
}

fn verdict(code: i32) -> Verdict {
    match code {
        // HostUnreachable, HostNotFound, NetworkTimeout, SocketException
        6 | 7 | 89 | 9001 => Verdict::Later("network"),
        // LockTimeout, MaxTimeMSExpired, ExceededTimeLimit
        24 | 50 | 262 => Verdict::Later("timeout"),
        // ShutdownInProgress, ReadConcernMajorityNotAvailableYet, PrimarySteppedDown, LegacyNotPrimary,
        // NotWritablePrimary, InterruptedAtShutdown, InterruptedDueToReplStateChange,
        // NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary
        91 | 134 | 189 | 10058 | 10107 | 11600 | 11602 | 13435 | 13436 => Verdict::Later("not_primary"),
        // WriteConcernFailed, UnsatisfiableWriteConcern
        64 | 100 => Verdict::Later("write_concern"),
        // WriteConflict, DuplicateKey
        112 | DUPLICATE_KEY => Verdict::Later("contention"),
        // Unauthorized, AuthenticationFailed
        13 | 18 => Verdict::Later("auth"),
        // DocumentValidationFailure
        121 => Verdict::Never("validation"),
        // InvalidLength, BSONObjectTooLarge, and an update whose result would be too large
        16 | 10334 | 17419 => Verdict::Never("too_large"),
        // BadValue, FailedToParse, TypeMismatch, InvalidBSON, PathNotViable, ConflictingUpdateOperators,
        // DollarPrefixedFieldName, EmptyFieldName, DottedFieldName
        2 | 9 | 14 | 22 | 28 | 40 | 52 | 56 | 57 => Verdict::Never("bad_value"),
        _ => Verdict::Later("other"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_is_sorted() {
        let transient: &[(&str, &[i32])] = &[
            ("network", &[6, 7, 89, 9001]),
            ("timeout", &[24, 50, 262]),
            ("not_primary", &[91, 134, 189, 10058, 10107, 11600, 11602, 13435, 13436]),
            ("write_concern", &[64, 100]),
            ("contention", &[112, 11000]),
            ("auth", &[13, 18]),
            ("other", &[1, 8, 26, 59, 72, 123, 20, 31_337]),
        ];
        let permanent: &[(&str, &[i32])] = &[
            ("validation", &[121]),
            ("too_large", &[16, 10334, 17419]),
            ("bad_value", &[2, 9, 14, 22, 28, 40, 52, 56, 57]),
        ];
        for (known, sorted) in [(REASONS.transient, transient), (REASONS.permanent, permanent)] {
            assert!(sorted.iter().all(|(reason, _)| known.contains(reason)));
        }
        for (expected, codes) in transient {
            for &code in *codes {
                assert!(
                    matches!(of_code(code, ""), WriteError::Transient { reason, .. } if reason == *expected),
                    "{code}"
                );
            }
        }
        for (expected, codes) in permanent {
            for &code in *codes {
                assert!(
                    matches!(of_code(code, ""), WriteError::Permanent { reason, .. } if reason == *expected),
                    "{code}"
                );
            }
        }
    }

    #[test]
    fn errors_of_the_driver_are_transient() {
        let io = Error::from(std::io::Error::new(std::io::ErrorKind::ConnectionReset, "reset"));
        assert!(matches!(of_driver(&io), WriteError::Transient { reason: "network", .. }));
        assert!(matches!(of_driver(&Error::custom("odd")), WriteError::Transient { reason: "other", .. }));
    }

    #[tokio::test]
    async fn a_call_that_hangs_is_given_up_as_a_timeout() {
        let given_up = within(Duration::from_millis(1), std::future::pending::<mongodb::error::Result<()>>()).await;
        assert!(matches!(given_up, Err(WriteError::Transient { reason: "timeout", .. })));
    }
}
