//! SQLite files as SQL, which a diff shows.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use rusqlite::Connection;

/// The SQL that makes a file like the one at `path`. The ID of the file is left out: each file has its own.
pub(super) fn of(path: &Path) -> String {
    let file = Connection::open(path).expect("a database");
    let number = |name| file.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).expect("a number");
    let mut sql = String::new();
    for name in ["application_id", "user_version"] {
        writeln!(sql, "PRAGMA {name} = {};", number(name)).expect("a text");
    }
    let texts = |query: &str| -> Vec<String> {
        let mut statement = file.prepare(query).expect("it is SQL");
        let rows = statement.query_map([], |row| row.get(0)).expect("it runs");
        rows.collect::<Result<_, _>>().expect("texts")
    };
    for made in texts("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid") {
        writeln!(sql, "{made};").expect("a text");
    }
    for table in texts("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'history' ORDER BY rowid") {
        let columns = texts(&format!("SELECT 'quote(' || name || ')' FROM pragma_table_info('{table}')"));
        let values = columns.join(" || ', ' || ");
        for row in texts(&format!("SELECT {values} FROM {table} ORDER BY 1")) {
            writeln!(sql, "INSERT INTO {table} VALUES ({row});").expect("a text");
        }
    }
    sql
}

/// Makes the file at `path` from SQL, with an ID.
pub(super) fn load(sql: &str, path: &Path) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("our folder");
    Connection::open(path)
        .expect("a new file")
        .execute_batch(&format!("{sql}INSERT INTO history VALUES ('golden', 0);"))
        .expect("SQL");
}
