//! Parses the numbers of CSV files, with a decimal point or a decimal comma. Pure.
//!
//! The mark is guessed only if the file cannot be read in another way: `1.234` may be a number with three
//! decimals, or 1234 with a separator of thousands. Numbers with such separators are rejected.

use std::str::FromStr;

const GROUPED: &str = "a number with a separator of thousands: write it without";
const NOT_COMMA: &str = "not a number: if it has a decimal comma, add --decimal ','";
const NOT_POINT: &str = "not a number with a decimal comma (--decimal ',')";
const UNKNOWN: &str = "the first rows have no decimals that tell the decimal mark: add --decimal ',' or --decimal '.'";

/// The separators of thousands besides point and comma.
const SEPARATORS: [char; 5] = [' ', '\u{a0}', '\u{202f}', '\'', '\u{2019}'];

/// The mark before the decimals of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decimal {
    Point,
    Comma,
}

impl FromStr for Decimal {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "." => Ok(Self::Point),
            "," => Ok(Self::Comma),
            _ => Err("the decimal mark is . or ,"),
        }
    }
}

/// The meanings that the marks in a number may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// No mark: `1234`.
    Whole,
    /// One mark, which precedes decimals: `1.5`.
    Decimals(Decimal),
    /// One mark, which precedes decimals or separates thousands: `1.234`.
    Either(Decimal),
    /// Separators of thousands: `1 234`.
    ///
    /// It has the decimal mark if the number shows which it is: a point in `1,234.5` and in `1,234,567`.
    Grouped(Option<Decimal>),
}

/// Parses a number with the decimal mark of its file; `true` is 1, `false` is 0.
///
/// `decimal` is `None` if the mark is unknown. Then a number with a point or a comma is an error.
pub(super) fn parse(cell: &str, decimal: Option<Decimal>) -> Result<f64, &'static str> {
    let is_of_mark = decimal == Some(Decimal::Point) || !cell.contains('.');
    let number = match decimal {
        _ if !is_of_mark => None,
        Some(Decimal::Comma) => cell.replacen(',', ".", 1).parse().ok(),
        Some(Decimal::Point) | None => cell.parse().ok(),
    };
    match number {
        Some(number) if f64::is_finite(number) => Ok(number),
        Some(_) => Err("not a finite number"),
        None => boolean(cell).map(|is_true| f64::from(u8::from(is_true))).ok_or_else(|| match (shape(cell), decimal) {
            (None | Some(Shape::Whole), _) => "not a number",
            (Some(Shape::Grouped(_)), _) => GROUPED,
            (Some(_), None) => UNKNOWN,
            (Some(_), Some(Decimal::Point)) => NOT_COMMA,
            (Some(_), Some(Decimal::Comma)) => NOT_POINT,
        }),
    }
}

/// Whether a cell is a number, whatever the decimal mark.
pub(super) fn is_number(cell: &str) -> bool {
    boolean(cell).is_some() || shape(cell).is_some()
}

/// The value of `true` and `false` in any case.
fn boolean(cell: &str) -> Option<bool> {
    let is = |word: &str| cell.eq_ignore_ascii_case(word);
    if is("true") { Some(true) } else { is("false").then_some(false) }
}

/// Why the decimal mark of a file cannot be guessed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unclear {
    #[error("{0:?} may be {1} with decimals, or {2}: add --decimal ',' or --decimal '.'")]
    Either(String, String, String),
    #[error(
        "{0:?} has a decimal comma and {1:?} a decimal point: add --decimal ',' or --decimal '.', and the other \
         numbers are rejected"
    )]
    Both(String, String),
}

/// Guesses the decimal mark from the cells of some rows.
///
/// If a comma separates the cells, the mark is a point, unless a number shows a decimal comma, and none shows
/// or may have a decimal point. With another separator, the result is `None` if no number has a mark.
pub(super) fn guess<'a>(cells: impl Iterator<Item = &'a str>, delimiter: u8) -> Result<Option<Decimal>, Unclear> {
    let (mut comma, mut point, mut comma_or_not, mut point_or_not) = (None, None, None, None);
    for cell in cells {
        match shape(cell) {
            Some(Shape::Decimals(Decimal::Comma) | Shape::Grouped(Some(Decimal::Comma))) => comma = Some(cell),
            Some(Shape::Decimals(Decimal::Point) | Shape::Grouped(Some(Decimal::Point))) => point = Some(cell),
            Some(Shape::Either(Decimal::Comma)) => comma_or_not = Some(cell),
            Some(Shape::Either(Decimal::Point)) => point_or_not = Some(cell),
            Some(Shape::Whole | Shape::Grouped(None)) | None => {}
        }
    }
    match (comma, point) {
        _ if delimiter == b',' => {
            let is_comma = comma.is_some() && point.is_none() && point_or_not.is_none();
            Ok(Some(if is_comma { Decimal::Comma } else { Decimal::Point }))
        }
        (Some(comma), Some(point)) => Err(Unclear::Both(comma.to_owned(), point.to_owned())),
        (Some(_), None) => Ok(Some(Decimal::Comma)),
        (None, Some(_)) => Ok(Some(Decimal::Point)),
        (None, None) => match comma_or_not.or(point_or_not) {
            Some(cell) => {
                let [number, whole] = [".", ""].map(|mark| cell.replace([',', '.'], mark));
                Err(Unclear::Either(cell.to_owned(), number, whole))
            }
            None => Ok(None),
        },
    }
}

/// The meanings that the marks in a cell may have; `None` if the cell is no number.
fn shape(cell: &str) -> Option<Shape> {
    let digits = cell.strip_prefix(['+', '-']).unwrap_or(cell);
    let one_mark =
        |decimal, mark| if is_grouped(digits, mark) { Shape::Either(decimal) } else { Shape::Decimals(decimal) };
    if cell.parse::<f64>().is_ok() {
        return Some(if cell.contains('.') { one_mark(Decimal::Point, '.') } else { Shape::Whole });
    }
    if !cell.contains('.') && cell.contains(',') && cell.replacen(',', ".", 1).parse::<f64>().is_ok() {
        return Some(one_mark(Decimal::Comma, ','));
    }
    let decimals = |mark| digits.rsplit_once(mark).filter(|(_, decimals)| all_digits(decimals));
    for (separator, other, mark) in [('.', Decimal::Comma, ','), (',', Decimal::Point, '.')] {
        let head = decimals(mark).map_or(digits, |(head, _)| head);
        if is_grouped(head, separator) {
            return Some(Shape::Grouped(Some(other)));
        }
    }
    for (decimal, mark) in [(Decimal::Comma, ','), (Decimal::Point, '.')] {
        if let Some((head, _)) = decimals(mark)
            && SEPARATORS.iter().any(|separator| is_grouped(head, *separator))
        {
            return Some(Shape::Grouped(Some(decimal)));
        }
    }
    SEPARATORS.iter().any(|separator| is_grouped(digits, *separator)).then_some(Shape::Grouped(None))
}

/// Whether digits are in groups of three: `1.234.567`.
fn is_grouped(digits: &str, separator: char) -> bool {
    let Some((first, rest)) = digits.split_once(separator) else { return false };
    (1..=3).contains(&first.len())
        && all_digits(first)
        && !first.starts_with('0')
        && rest.split(separator).all(|group| group.len() == 3 && all_digits(group))
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINT: Option<Decimal> = Some(Decimal::Point);
    const COMMA: Option<Decimal> = Some(Decimal::Comma);

    #[test]
    fn a_number_has_the_decimal_mark_of_the_file() {
        for (cell, decimal, number) in [
            ("21.5", POINT, 21.5),
            ("+1e3", POINT, 1000.0),
            ("1.234", POINT, 1.234),
            ("21,5", COMMA, 21.5),
            ("-1,234", COMMA, -1.234),
            ("1,5e3", COMMA, 1500.0),
            ("-17", COMMA, -17.0),
            ("17", None, 17.0),
            ("true", POINT, 1.0),
            ("FALSE", None, 0.0),
        ] {
            assert_eq!(parse(cell, decimal), Ok(number), "{cell}");
        }
    }

    #[test]
    fn another_number_is_rejected_with_what_to_do() {
        for (cell, decimal, why) in [
            ("21,5", POINT, NOT_COMMA),
            ("1,234", POINT, NOT_COMMA),
            ("21.5", COMMA, NOT_POINT),
            ("1.234", COMMA, NOT_POINT),
            ("1.234,5", COMMA, GROUPED),
            ("1,234.5", POINT, GROUPED),
            ("1.234.567", COMMA, GROUPED),
            ("1,234,567", POINT, GROUPED),
            ("1 234", COMMA, GROUPED),
            ("1\u{202f}234,5", COMMA, GROUPED),
            ("1'234.5", POINT, GROUPED),
            ("21,5", None, UNKNOWN),
            ("1.234", None, UNKNOWN),
            ("inf", POINT, "not a finite number"),
            ("1e999", COMMA, "not a finite number"),
            ("1,2,3", COMMA, "not a number"),
            ("25.10.2026", POINT, "not a number"),
            ("", POINT, "not a number"),
            ("on", None, "not a number"),
            ("truer", None, "not a number"),
        ] {
            assert_eq!(parse(cell, decimal), Err(why), "{cell}");
        }
    }

    #[test]
    fn the_mark_is_guessed_only_if_the_cells_have_one_reading() {
        let guessed =
            |cells: &[&str], delimiter| guess(cells.iter().copied(), delimiter).map_err(|why| why.to_string());
        for (cells, mark) in [
            (&["1", "21,5"][..], COMMA),
            (&["1.234", "21,5"], COMMA),
            (&["1.234,5"], COMMA),
            (&["1.234.567"], COMMA),
            (&["0,125"], COMMA),
            (&["1 234,50"], COMMA),
            (&["21.5", "1,234"], POINT),
            (&["0.125"], POINT),
            (&["1.2345"], POINT),
            (&["1,234.5"], POINT),
            (&["1", "on", ""], None),
        ] {
            assert_eq!(guessed(cells, b';'), Ok(mark), "{cells:?}");
        }
        for (cells, said) in [
            (&["1.234"][..], "\"1.234\" may be 1.234 with decimals, or 1234: add --decimal ',' or"),
            (&["5", "-12,345"], "\"-12,345\" may be -12.345 with decimals, or -12345: add"),
            (&["21,5", "21.5"], "\"21,5\" has a decimal comma and \"21.5\" a decimal point: add --decimal"),
        ] {
            assert!(guessed(cells, b';').unwrap_err().starts_with(said), "{cells:?}");
        }
        for (cells, mark) in [
            (&["1.234"][..], POINT),
            (&["1"], POINT),
            (&["21,5", "1"], COMMA),
            (&["21,5", "1.5"], POINT),
            (&["1,234"], POINT),
        ] {
            assert_eq!(guessed(cells, b','), Ok(mark), "{cells:?}");
        }
    }
}
