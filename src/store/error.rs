//! The errors of stores, sorted by cause.

use Cause::{
    Auth, BadValue, Busy, Constraint, Contention, Corrupt, DiskFull, FileGone, Forbidden, Interrupted, Io, Memory,
    Metadata, Mismatch, Network, NotPrimary, Other, Overloaded, ReadOnly, Schema, ServerSelection, Sqlite, Stopping,
    Timeout, TooBig, TooLarge, UnknownField, UnreadableChunk, UnreadableDocument, UnreadableRow, Validation,
    WriteConcern,
};
use Retry::{Lost, Passing, Refused, RefusedPart, Unclear, Unreachable};

/// Why a store did not do what it was asked.
///
/// Every decision about an error is a method here, and reads the table `Cause::row`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    // Errors of a server that may pass.
    /// The connection failed.
    Network,
    /// There was no answer in time.
    Timeout,
    /// No server was found that takes the command.
    ServerSelection,
    /// The server is not the primary, or not any more.
    NotPrimary,
    /// The credentials are wrong.
    Auth,
    /// The user lacks a privilege, or no user is named.
    Forbidden,
    /// A majority of the members did not confirm the write in time.
    WriteConcern,
    /// Other writers of the same document were quicker.
    Contention,
    /// The server is overloaded.
    Overloaded,
    /// A collection, an index or the file is not what this program needs.
    Schema,
    /// The server does not know a field of the command, because it is too old for it.
    UnknownField,
    /// Any other error of a server, or of the driver.
    Other,
    // Errors of a server that never pass.
    /// The document fails the validator of its collection.
    Validation,
    /// The document or the command is larger than the server takes.
    TooLarge,
    /// The server does not take a value, or the name of a field.
    BadValue,
    /// The metadata is not the text of a JSON object.
    Metadata,
    /// The stored document that the write belongs to cannot be read.
    UnreadableDocument,
    // Errors of a file that may pass.
    /// Another process holds the lock of the database.
    Busy,
    /// Reading or writing the file failed.
    Io,
    /// The disk is full.
    DiskFull,
    /// There is not enough memory.
    Memory,
    /// The operation was interrupted.
    Interrupted,
    /// The file or its folder cannot be written to.
    ReadOnly,
    /// The file is damaged, or is not a database.
    Corrupt,
    /// The file was removed or replaced while it was in use.
    FileGone,
    /// The program is stopping.
    Stopping,
    /// Any other error of SQLite.
    Sqlite,
    // Errors of a file that never pass.
    /// The row violates a constraint of its table.
    Constraint,
    /// The row is larger than SQLite takes.
    TooBig,
    /// A value has a type that its column does not take.
    Mismatch,
    /// The stored row that the write belongs to cannot be read.
    UnreadableRow,
    /// The stored chunk that the write belongs to cannot be read.
    UnreadableChunk,
}

/// The outcome of sending a failed command again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// Sending again may succeed.
    ///
    /// No server takes commands now, and this command may take effect after the error.
    Lost,
    /// Sending again may succeed.
    ///
    /// No server takes commands now, and this command has no effect.
    Unreachable,
    /// Sending again may succeed. This command may take effect after the error.
    Unclear,
    /// Sending again may succeed. This command has no effect.
    Passing,
    /// The store never takes the whole write, and may take a part.
    RefusedPart,
    /// The store never takes any part of the write.
    Refused,
}

impl Cause {
    /// The label of a cause, and the outcome of sending the command again.
    const fn row(self) -> (&'static str, Retry) {
        match self {
            Network => ("network", Lost),
            Timeout => ("timeout", Lost),
            ServerSelection => ("server_selection", Unreachable),
            NotPrimary => ("not_primary", Unreachable),
            Auth | Forbidden => ("auth", Unreachable),
            WriteConcern => ("write_concern", Passing),
            Contention => ("contention", Passing),
            Overloaded => ("overloaded", Passing),
            Schema => ("schema", Passing),
            UnknownField | Other => ("other", Unclear),
            Validation => ("validation", RefusedPart),
            TooLarge => ("too_large", RefusedPart),
            BadValue => ("bad_value", RefusedPart),
            Metadata => ("metadata", RefusedPart),
            UnreadableDocument => ("unreadable", Refused),
            Busy => ("busy", Passing),
            Io => ("io", Passing),
            DiskFull => ("disk_full", Passing),
            Memory => ("memory", Passing),
            Interrupted => ("interrupted", Passing),
            ReadOnly => ("read_only", Passing),
            Corrupt => ("corrupt", Passing),
            FileGone => ("file_gone", Passing),
            Stopping => ("stopping", Passing),
            Sqlite => ("sqlite", Passing),
            Constraint => ("constraint", RefusedPart),
            TooBig => ("too_big", RefusedPart),
            Mismatch => ("mismatch", RefusedPart),
            UnreadableRow => ("unreadable_row", Refused),
            UnreadableChunk => ("unreadable_chunk", Refused),
        }
    }

    /// The value of the label `reason` of metrics, and of the field `reason` of dead letters.
    #[must_use]
    pub const fn as_label(self) -> &'static str {
        self.row().0
    }

    /// Whether the same write will never succeed, however often it is sent.
    #[must_use]
    pub const fn is_permanent(self) -> bool {
        matches!(self.row().1, RefusedPart | Refused)
    }

    /// Whether the store may take some readings of a write that it never takes as a whole.
    #[must_use]
    pub const fn may_pass_in_part(self) -> bool {
        matches!(self.row().1, RefusedPart)
    }

    /// Whether a command that met this error may take effect after the error was reported.
    #[must_use]
    pub const fn may_still_happen(self) -> bool {
        matches!(self.row().1, Lost | Unclear)
    }

    /// Whether no server takes commands, so that the next command would meet the same error, only later.
    #[must_use]
    pub const fn is_unreachable(self) -> bool {
        matches!(self.row().1, Lost | Unreachable)
    }
}

/// The store could not be opened, or did not do what it was asked.
///
/// Unless the error is permanent, the caller may safely send the same write again, even if the failed one
/// takes effect after all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct StoreError {
    /// The cause, which decides about a retry.
    pub cause: Cause,
    /// The text of the store, with the causes of the error.
    pub detail: String,
}

impl StoreError {
    /// An error of this cause.
    pub fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }

    /// The label of the cause, then the text: `network: connection refused`.
    #[must_use]
    pub fn with_cause(&self) -> String {
        format!("{}: {}", self.cause.as_label(), self.detail)
    }

    /// Whether the store will never take this write.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        self.cause.is_permanent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_verdicts_of_all_causes() {
        let (permanent, transient) = (true, false);
        // label, whether permanent, whether the command may still happen, whether no server is reachable
        let expected = [
            (Network, "network", transient, true, true),
            (Timeout, "timeout", transient, true, true),
            (ServerSelection, "server_selection", transient, false, true),
            (NotPrimary, "not_primary", transient, false, true),
            (Auth, "auth", transient, false, true),
            (Forbidden, "auth", transient, false, true),
            (WriteConcern, "write_concern", transient, false, false),
            (Contention, "contention", transient, false, false),
            (Overloaded, "overloaded", transient, false, false),
            (Schema, "schema", transient, false, false),
            (UnknownField, "other", transient, true, false),
            (Other, "other", transient, true, false),
            (Validation, "validation", permanent, false, false),
            (TooLarge, "too_large", permanent, false, false),
            (BadValue, "bad_value", permanent, false, false),
            (Metadata, "metadata", permanent, false, false),
            (UnreadableDocument, "unreadable", permanent, false, false),
            (Busy, "busy", transient, false, false),
            (Io, "io", transient, false, false),
            (DiskFull, "disk_full", transient, false, false),
            (Memory, "memory", transient, false, false),
            (Interrupted, "interrupted", transient, false, false),
            (ReadOnly, "read_only", transient, false, false),
            (Corrupt, "corrupt", transient, false, false),
            (FileGone, "file_gone", transient, false, false),
            (Stopping, "stopping", transient, false, false),
            (Sqlite, "sqlite", transient, false, false),
            (Constraint, "constraint", permanent, false, false),
            (TooBig, "too_big", permanent, false, false),
            (Mismatch, "mismatch", permanent, false, false),
            (UnreadableRow, "unreadable_row", permanent, false, false),
            (UnreadableChunk, "unreadable_chunk", permanent, false, false),
        ];
        for (at, (cause, label, is_permanent, may_still_happen, is_unreachable)) in expected.into_iter().enumerate() {
            assert_eq!(cause as usize, at, "every cause is listed once, in order");
            assert_eq!(cause.as_label(), label);
            assert_eq!(cause.is_permanent(), is_permanent, "{label}");
            assert_eq!(cause.may_still_happen(), may_still_happen, "{label}");
            assert_eq!(cause.is_unreachable(), is_unreachable, "{label}");
            let may_pass_in_part = is_permanent && !label.starts_with("unreadable");
            assert_eq!(cause.may_pass_in_part(), may_pass_in_part, "{label}");
        }
        assert_eq!(expected.len(), UnreadableChunk as usize + 1, "no cause is missing");
    }
}
