//! Statements. A `SHOW` is parsed in full; of an unsupported statement, only the first words.

use super::super::ast::{Keys, Limit, Measurement, MeasurementName, Show, Shown, Statement};
use super::super::error::ParseError;
use super::super::lexer::Kind;
use super::Parser;

const STATEMENTS: &str = "SELECT, DELETE, SHOW, CREATE, DROP, EXPLAIN, GRANT, REVOKE, ALTER, SET, KILL";
const SHOWN: &str = "CONTINUOUS, DATABASES, DIAGNOSTICS, FIELD, GRANTS, MEASUREMENT, MEASUREMENTS, QUERIES, RETENTION, \
                     SERIES, SHARD, SHARDS, STATS, SUBSCRIPTIONS, TAG, USERS";

impl Parser<'_> {
    /// Parses one statement.
    pub(super) fn statement(&mut self) -> Result<Statement, ParseError> {
        let token = self.next()?;
        let words: &[(&str, &str)] = match (token.kind, &*token.text) {
            (Kind::Keyword, "SELECT") => return Ok(Statement::Select(Box::new(self.select()?))),
            (Kind::Keyword, "SHOW") => return self.show(),
            (Kind::Keyword, "DELETE") => &[("FROM", ""), ("WHERE", "")],
            (Kind::Keyword, "CREATE") => &[
                ("CONTINUOUS", "QUERY"),
                ("DATABASE", ""),
                ("USER", ""),
                ("RETENTION", "POLICY"),
                ("SUBSCRIPTION", ""),
            ],
            (Kind::Keyword, "DROP") => &[
                ("CONTINUOUS", "QUERY"),
                ("DATABASE", ""),
                ("MEASUREMENT", ""),
                ("RETENTION", "POLICY"),
                ("SERIES", ""),
                ("SHARD", ""),
                ("SUBSCRIPTION", ""),
                ("USER", ""),
            ],
            (Kind::Keyword, "EXPLAIN") => &[("ANALYZE", ""), ("SELECT", "")],
            (Kind::Keyword, "GRANT" | "REVOKE") => &[("READ", ""), ("WRITE", ""), ("ALL", "")],
            (Kind::Keyword, "ALTER") => &[("RETENTION", "POLICY")],
            (Kind::Keyword, "SET") => &[("PASSWORD", "")],
            (Kind::Keyword, "KILL") => &[("QUERY", "")],
            _ => return Err(ParseError::found(&token, STATEMENTS)),
        };
        let first = token.text.into_owned();
        let expected = match &*first {
            "GRANT" | "REVOKE" => "READ, WRITE, ALL [PRIVILEGES]".to_owned(),
            "EXPLAIN" => "SELECT".to_owned(),
            _ => words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", "),
        };
        let second = self.next()?;
        let Some((word, next)) = words.iter().find(|(word, _)| second.is(word)) else {
            return Err(ParseError::found(&second, &expected));
        };
        if first == "EXPLAIN" && *word == "ANALYZE" {
            self.expect("SELECT")?;
        }
        if !next.is_empty() {
            self.expect(next)?;
        }
        if first == "CREATE" && *word == "DATABASE" {
            self.name()?;
            self.skip_statement_after("WITH")?;
            return Ok(Statement::CreateDatabase);
        }
        self.skip_statement()?;
        Ok(Statement::Unsupported(match &*first {
            "DELETE" | "GRANT" | "REVOKE" | "EXPLAIN" => first,
            _ => [&*first, word, next].join(" ").trim_end().to_owned(),
        }))
    }

    /// Skips the rest of the statement, if `word` is next.
    fn skip_statement_after(&mut self, word: &str) -> Result<(), ParseError> {
        if self.peek()?.is(word) { self.skip_statement() } else { Ok(()) }
    }

    fn skip_statement(&mut self) -> Result<(), ParseError> {
        loop {
            let token = self.peek()?;
            if token.kind == Kind::Eof || token.is(";") {
                return Ok(());
            }
            self.next()?;
        }
    }

    fn show(&mut self) -> Result<Statement, ParseError> {
        let token = self.next()?;
        let word = if token.kind == Kind::Keyword { &*token.text } else { "" };
        let shown = match word {
            "DATABASES" => Shown::Databases,
            "MEASUREMENTS" => Shown::Measurements,
            "RETENTION" => {
                self.expect("POLICIES")?;
                Shown::RetentionPolicies
            }
            "MEASUREMENT" => {
                let is_exact = self.take("EXACT")?;
                self.expect("CARDINALITY")?;
                Shown::MeasurementCardinality { is_exact }
            }
            "SERIES" => {
                let is_exact = self.take("EXACT")?;
                if self.take("CARDINALITY")? { Shown::SeriesCardinality { is_exact } } else { Shown::Series }
            }
            "FIELD" => self.keys_or_cardinality("KEY, KEYS", Shown::FieldKeys, Shown::FieldKeyCardinality)?,
            "TAG" if self.peek()?.is("VALUES") => {
                self.next()?;
                return self.show_tag_values();
            }
            "TAG" => self.keys_or_cardinality("KEY, KEYS, VALUES", Shown::TagKeys, Shown::TagKeyCardinality)?,
            "CONTINUOUS" | "DIAGNOSTICS" | "GRANTS" | "QUERIES" | "SHARD" | "SHARDS" | "STATS" | "SUBSCRIPTIONS"
            | "USERS" => {
                let next = match word {
                    "CONTINUOUS" => "QUERIES",
                    "SHARD" => "GROUPS",
                    _ => "",
                };
                let text = format!("SHOW {word} {next}").trim_end().to_owned();
                if !next.is_empty() {
                    self.expect(next)?;
                }
                self.skip_statement()?;
                return Ok(Statement::Unsupported(text));
            }
            _ => return Err(ParseError::found(&token, SHOWN)),
        };
        let mut show = Show { shown, from: Vec::new(), condition: None, limit: Limit::default() };
        if show.shown == Shown::Databases {
            return Ok(Statement::Show(Box::new(show)));
        }
        self.skip_database()?;
        if show.shown == Shown::RetentionPolicies {
            return Ok(Statement::Show(Box::new(show)));
        }
        if show.shown == Shown::Measurements {
            show.from = self.with_measurement()?.into_iter().collect();
        } else {
            show.from = self.measurements_after_from()?;
        }
        if show.shown != Shown::FieldKeys {
            show.condition = self.condition()?;
        }
        self.order()?;
        show.limit = self.limit()?;
        Ok(Statement::Show(Box::new(show)))
    }

    fn keys_or_cardinality(&mut self, expected: &str, keys: Shown, count: Shown) -> Result<Shown, ParseError> {
        if self.take("KEYS")? {
            return Ok(keys);
        }
        if self.take("KEY")? {
            self.take("EXACT")?;
            self.expect("CARDINALITY")?;
            return Ok(count);
        }
        Err(ParseError::found(&self.next()?, expected))
    }

    fn show_tag_values(&mut self) -> Result<Statement, ParseError> {
        let is_exact = self.take("EXACT")?;
        let is_count = if is_exact { self.expect("CARDINALITY").map(|()| true)? } else { self.take("CARDINALITY")? };
        self.skip_database()?;
        let from = self.measurements_after_from()?;
        self.expect("WITH")?;
        self.expect("KEY")?;
        let keys = self.keys()?;
        let condition = self.condition()?;
        self.order()?;
        let limit = self.limit()?;
        let shown = if is_count { Shown::TagValueCardinality(keys) } else { Shown::TagValues(keys) };
        Ok(Statement::Show(Box::new(Show { shown, from, condition, limit })))
    }

    /// Skips `ON` and a database, which has no meaning, if `ON` is next.
    fn skip_database(&mut self) -> Result<(), ParseError> {
        if self.take("ON")? { self.name().map(|_| ()) } else { Ok(()) }
    }

    fn keys(&mut self) -> Result<Keys, ParseError> {
        let token = self.next()?;
        if token.is("=") {
            return Ok(Keys::In([self.name()?].into()));
        }
        if token.is("!=") {
            return Ok(Keys::Not(self.name()?));
        }
        if token.is("=~") {
            return Ok(Keys::Matching(self.expect_regex()?));
        }
        if token.is("!~") {
            return Ok(Keys::NotMatching(self.expect_regex()?));
        }
        if token.is("IN") {
            self.expect("(")?;
            let keys = self.list(Self::name)?.into_iter().collect();
            self.expect(")")?;
            return Ok(Keys::In(keys));
        }
        Err(ParseError::found(&token, "IN, =, =~"))
    }

    /// Parses `WITH MEASUREMENT = name` or `WITH MEASUREMENT =~ /pattern/`.
    fn with_measurement(&mut self) -> Result<Option<Measurement>, ParseError> {
        if !self.take("WITH")? {
            return Ok(None);
        }
        self.expect("MEASUREMENT")?;
        let token = self.next()?;
        let name = if token.is("=") {
            MeasurementName::Name(self.name()?)
        } else if token.is("=~") {
            MeasurementName::Regex(self.expect_regex()?)
        } else {
            return Err(ParseError::found(&token, "=, =~"));
        };
        Ok(Some(Measurement { retention_policy: None, name }))
    }
}
