//! `GROUP BY`: the windows and the tags by which a `SELECT` groups.

use std::collections::BTreeSet;

use jiff::tz::TimeZone;

use super::super::ast::Expr;
use super::super::error::StatementError;
use super::super::regex::Pattern;
use super::super::time;
use super::super::window::Windows;
use super::Schema;

/// The windows and the tags by which a `SELECT` groups.
#[derive(Debug, Clone)]
pub(in super::super) struct Dimensions {
    pub(in super::super) windows: Windows,
    /// The keys of the tags. Wildcards add theirs in [`Self::resolve`].
    pub(in super::super) tags: BTreeSet<String>,
    has_wildcard: bool,
    patterns: Vec<Pattern>,
}

impl Dimensions {
    pub(in super::super) fn new(
        dimensions: &[Expr],
        zone: Option<&TimeZone>,
        now_ns: i64,
    ) -> Result<Self, StatementError> {
        let windows = Windows { every_ns: 0, offset_ns: 0, zone: zone.cloned() };
        let mut result = Self { windows, tags: BTreeSet::new(), has_wildcard: false, patterns: Vec::new() };
        let mut has_time = false;
        for dimension in dimensions {
            match dimension {
                Expr::Name(name, _) if name.eq_ignore_ascii_case("time") => {
                    return Err("time() is a function and expects at least one argument".into());
                }
                Expr::Name(name, _) => _ = result.tags.insert(name.clone()),
                Expr::Wildcard(_) => result.has_wildcard = true,
                Expr::Regex(pattern) => result.patterns.push(pattern.clone()),
                Expr::Call(name, arguments) if name == "time" => {
                    if has_time {
                        return Err("multiple time dimensions not allowed".into());
                    }
                    has_time = true;
                    result.time(arguments, now_ns)?;
                }
                Expr::Call(..) => return Err("only time() calls allowed in dimensions".into()),
                _ => return Err("only time and tag dimensions allowed".into()),
            }
        }
        Ok(result)
    }

    fn time(&mut self, arguments: &[Expr], now_ns: i64) -> Result<(), StatementError> {
        let (every, offset) = match arguments {
            [every] => (every, None),
            [every, offset] => (every, Some(offset)),
            _ => return Err("time dimension expected 1 or 2 arguments".into()),
        };
        let Expr::Duration(every_ns) = every else {
            return Err("time dimension must have duration argument".into());
        };
        self.windows.every_ns = (*every_ns).max(0);
        let offset_ns = match offset {
            None => Some(0),
            Some(Expr::Duration(ns)) => Some(*ns),
            Some(Expr::Call(name, arguments)) if name == "now" && arguments.is_empty() => Some(now_ns),
            Some(Expr::Text(text)) => time::parse(text, &TimeZone::UTC),
            Some(_) => None,
        };
        let offset_ns = offset_ns.ok_or("time dimension offset must be duration or now()")?;
        if *every_ns > 0 {
            self.windows.offset_ns = offset_ns % every_ns;
        }
        Ok(())
    }

    /// Whether a dimension is a wildcard or a pattern, which stand for several tags.
    pub(in super::super) fn has_wildcard(&self) -> bool {
        self.has_wildcard || !self.patterns.is_empty()
    }

    /// Adds the tags that the wildcards and patterns stand for.
    pub(in super::super) fn resolve(&mut self, schema: &Schema) {
        let is_meant = |tag: &&String| self.has_wildcard || self.patterns.iter().any(|pattern| pattern.matches(tag));
        let aliases = self.patterns.iter().flat_map(|pattern| schema.aliases_in(pattern));
        let meant: Vec<_> = schema.tags.iter().filter(is_meant).chain(aliases).cloned().collect();
        self.tags.extend(meant);
    }
}
