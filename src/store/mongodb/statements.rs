//! Sends many statements that write one document each, as many to a command as the server takes.

use std::collections::HashMap;

use bson::RawDocumentBuf;

use super::command::{Commands, Reply, StatementError};
use super::encode::Encoder;
use crate::store::{Cause, WriteError};

/// The most bytes of a command's statements. The server takes 16 MiB + 16 KiB for a whole command; the margin
/// holds all that stands around the statements, what the driver adds included.
const STATEMENTS_MAX_BYTES: usize = 16_000_000;

/// The most statements of a command: the server's `maxWriteBatchSize`.
const STATEMENTS_MAX: usize = 100_000;

/// What the statements of a command do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Each is a document that must not be there yet.
    Insert,
    /// Each is an update of one document, or else its insertion.
    Update,
}

impl Verb {
    /// The command, and its array of statements.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Insert => ("insert", "documents"),
            Self::Update => ("update", "updates"),
        }
    }
}

/// What became of a statement.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It took effect, and a majority of the members has it in their journals.
    Done,
    /// It did nothing: the document that it wanted to insert is there already (and, of an upsert, is not such
    /// that its filter holds), or is one that it must not insert.
    Unmet,
    Failed(WriteError),
}

impl Commands {
    /// Sends the statement that `encode` writes for each of `items`, and tells `settle` what became of it.
    ///
    /// # Errors
    /// When the server is out of reach: `settle` is not told of what was not tried, or of what nothing is
    /// known.
    pub(super) async fn write_all<T>(
        &self,
        verb: Verb,
        collection: &str,
        items: &[T],
        encode: impl Fn(&mut Encoder, &T),
        mut settle: impl FnMut(&T, Outcome),
    ) -> Result<(), WriteError> {
        let mut waiting = vec![items];
        while let Some(items) = waiting.pop().filter(|items| !items.is_empty()) {
            let concern = |command: &mut Encoder| self.write_concern(command);
            let (command, taken) = write_command(verb, collection, concern, items, &encode);
            let (sent, rest) = items.split_at(taken);
            if !rest.is_empty() {
                waiting.push(rest);
            }
            let error = match self.send(command).await {
                Ok(reply) if reply.accounts_for(sent.len()) => {
                    settle_each(&reply, sent, &mut settle);
                    continue;
                }
                Ok(reply) => {
                    let detail = format!("{} statements took effect, of {} that were sent", reply.n, sent.len());
                    WriteError::new(Cause::Other, detail)
                }
                Err(error) if error.is_permanent() && sent.len() > 1 => {
                    let (first, second) = sent.split_at(sent.len() / 2); // to find the one that is to blame
                    waiting.extend([second, first]);
                    continue;
                }
                Err(error) if error.cause.is_unreachable() => return Err(error),
                Err(error) => error,
            };
            for item in sent {
                settle(item, Outcome::Failed(error.clone()));
            }
        }
        Ok(())
    }
}

/// A command for as many of the items, in order, as fit into one, and how many those are: at least one.
pub(super) fn write_command<T>(
    verb: Verb,
    collection: &str,
    concern: impl Fn(&mut Encoder),
    items: &[T],
    encode: impl Fn(&mut Encoder, &T),
) -> (RawDocumentBuf, usize) {
    let mut taken = 0;
    let (name, statements) = verb.names();
    let command = Encoder::build(|command| {
        command.string(name, collection);
        command.boolean("ordered", false);
        concern(command);
        command.array(statements, |statements| {
            for item in items.iter().take(STATEMENTS_MAX) {
                let before = statements.len();
                statements.document(taken, |statement| encode(statement, item));
                if statements.len() > STATEMENTS_MAX_BYTES && taken > 0 {
                    statements.truncate(before);
                    break;
                }
                taken += 1;
            }
        });
    });
    (command, taken)
}

/// Turns the reply to a command into what became of its statements. Every statement that was not refused has
/// matched or inserted its document.
fn settle_each<T>(reply: &Reply, sent: &[T], settle: &mut impl FnMut(&T, Outcome)) {
    let errors: HashMap<usize, &StatementError> =
        reply.errors.iter().map(|refusal| (refusal.statement, refusal)).collect();
    for (statement, item) in sent.iter().enumerate() {
        let outcome = match errors.get(&statement) {
            None => Outcome::Done,
            Some(refusal) if refusal.is_unmet() => Outcome::Unmet,
            Some(refusal) => Outcome::Failed(refusal.to_error()),
        };
        settle(item, outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many statements each command takes when the nth has a string of so many bytes.
    fn taken_by_each_command(bytes: &[usize]) -> Vec<usize> {
        let mut rest = bytes;
        let mut sizes = Vec::new();
        while !rest.is_empty() {
            let encode = |statement: &mut Encoder, &bytes: &usize| statement.string("s", &"x".repeat(bytes));
            let (command, taken) = write_command(Verb::Update, "c", |_| {}, rest, encode);
            assert!(taken == 1 || command.as_bytes().len() < 16_793_600);
            sizes.push(taken);
            rest = &rest[taken..];
        }
        sizes
    }

    #[test]
    fn commands_are_split_by_bytes_and_hold_at_least_one_statement() {
        assert_eq!(taken_by_each_command(&[7_000_000, 7_000_000, 7_000_000, 1]), [2, 2]);
        assert_eq!(taken_by_each_command(&[17_000_000, 1]), [1, 1]);
    }

    #[test]
    fn commands_are_split_by_statements() {
        let sizes = taken_by_each_command(&vec![1; 100_001]);
        assert_eq!(sizes, [STATEMENTS_MAX, 1]);
    }
}
