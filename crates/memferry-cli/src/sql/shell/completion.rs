//! Completion of keywords, commands, files, and the names of tables, columns and functions.

use std::collections::BTreeSet;

use datafusion::execution::FunctionRegistry;
use datafusion::execution::SessionState;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper, Highlighter, Hinter, Result};

use super::super::catalog::Described;
use super::super::commands::COMMANDS;
use super::super::scanner::is_complete;

/// Keywords that statements are made of.
const KEYWORDS: [&str; 103] = [
    "ALL",
    "ALTER",
    "ANALYZE",
    "AND",
    "ANY",
    "AS",
    "ASC",
    "BACKGROUND",
    "BANDWIDTH",
    "BETWEEN",
    "BY",
    "CASE",
    "CAST",
    "COLUMN",
    "COLUMNS",
    "COPY",
    "CREATE",
    "CROSS",
    "CUBE",
    "CURRENT",
    "DELETE",
    "DESC",
    "DESCRIBE",
    "DISTINCT",
    "DROP",
    "ELSE",
    "END",
    "ESCAPE",
    "EXCEPT",
    "EXISTS",
    "EXPLAIN",
    "EXTERNAL",
    "EXTRACT",
    "FALSE",
    "FETCH",
    "FILTER",
    "FIRST",
    "FOLLOWING",
    "FROM",
    "FULL",
    "GROUP",
    "GROUPING",
    "HAVING",
    "ILIKE",
    "IN",
    "INNER",
    "INSERT",
    "INTERSECT",
    "INTERVAL",
    "INTO",
    "IS",
    "JOIN",
    "LAST",
    "LATERAL",
    "LEFT",
    "LIKE",
    "LIMIT",
    "LOAD",
    "LOCATION",
    "NATURAL",
    "NODE",
    "NOT",
    "NULL",
    "NULLS",
    "NUMA",
    "OFFSET",
    "ON",
    "OR",
    "ORDER",
    "OUTER",
    "OVER",
    "PARTITION",
    "PARTITIONED",
    "PLACE",
    "PLACEMENT",
    "PRECEDING",
    "RANGE",
    "REPLACE",
    "REPLICATE",
    "RESET",
    "RESTORE",
    "RIGHT",
    "ROLLUP",
    "ROWS",
    "SELECT",
    "SET",
    "SETS",
    "SHOW",
    "STORED",
    "TABLE",
    "TABLES",
    "THEN",
    "TO",
    "TRUE",
    "UNBOUNDED",
    "UNION",
    "UNNEST",
    "USING",
    "VALUES",
    "VIEW",
    "WEIGHT",
    "WHERE",
    "WITH",
];

/// Keywords that a table follows.
const BEFORE_TABLES: [&str; 6] = ["from", "join", "table", "into", "view", "describe"];

/// Knows the names of a session, and when Enter runs what was written.
#[derive(Default, Helper, Highlighter, Hinter)]
pub(super) struct SqlHelper {
    files: Option<FilenameCompleter>,
    tables: Vec<TableNames>,
    functions: BTreeSet<String>,
}

struct TableNames {
    name: String,
    columns: Vec<String>,
}

impl SqlHelper {
    /// Takes over the names of a session.
    pub(super) fn know(&mut self, state: &SessionState, tables: &[Described]) {
        self.files.get_or_insert_with(FilenameCompleter::new);
        let table = |table: &Described| {
            let columns = table.provider.schema().fields().iter().map(|field| field.name().clone()).collect();
            TableNames { name: table.name.clone(), columns }
        };
        self.tables = tables.iter().map(table).collect();
        self.functions = [state.udfs(), state.udafs(), state.udwfs()].into_iter().flatten().collect();
    }

    /// The names that `word` can become, after the text `before`.
    fn candidates(&self, before: &str, word: &str) -> Vec<String> {
        if let Some((table, _)) = word.rsplit_once('.') {
            let columns = |it: &TableNames| -> Vec<String> {
                it.columns.iter().map(|column| format!("{table}.{column}")).collect()
            };
            let of_table =
                self.tables.iter().filter(|it| it.name.eq_ignore_ascii_case(table)).flat_map(columns);
            let in_schema = self.tables.iter().map(|it| it.name.clone());
            return starting(of_table.chain(in_schema), word);
        }
        let tables = || self.tables.iter().map(|it| it.name.clone());
        let previous = before.split_whitespace().next_back().unwrap_or_default().to_ascii_lowercase();
        if BEFORE_TABLES.contains(&previous.as_str()) {
            return starting(tables(), word);
        }
        let columns = self.tables.iter().flat_map(|it| it.columns.iter().cloned());
        let mut names = starting(columns.chain(tables()), word);
        if word.is_empty() {
            return names;
        }
        // Keywords in the letters that were used.
        let lower = word.chars().any(char::is_lowercase);
        let keywords =
            KEYWORDS.iter().map(|word| if lower { word.to_ascii_lowercase() } else { (*word).to_owned() });
        for more in [starting(keywords, word), starting(self.functions.iter().cloned(), word)] {
            names.extend(more.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
        }
        names
    }
}

/// The names that start with `word`, sorted.
fn starting(names: impl Iterator<Item = String>, word: &str) -> Vec<String> {
    let matches =
        |name: &String| name.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    names.filter(matches).collect::<BTreeSet<_>>().into_iter().collect()
}

impl Completer for SqlHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, position: usize, context: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        let text = &line[..position];
        let pairs = |names: Vec<String>| {
            names.into_iter().map(|name| Pair { display: name.clone(), replacement: name }).collect()
        };
        if let Some(command) = text.trim_start().strip_prefix('\\') {
            let Some((command, argument)) = command.split_once(' ') else {
                let commands = COMMANDS.iter().filter_map(|(form, _)| form.split(' ').next());
                let commands = commands.filter(|name| name.starts_with('\\')).map(str::to_owned);
                let start = text.len() - command.len() - 1;
                return Ok((start, pairs(starting(commands, &text[start..]))));
            };
            return match (command, &self.files) {
                ("d", _) => {
                    let tables = self.tables.iter().map(|it| it.name.clone());
                    Ok((position - argument.len(), pairs(starting(tables, argument))))
                }
                ("i", Some(files)) => files.complete(line, position, context),
                _ => Ok((position, Vec::new())),
            };
        }
        let of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
        let start = text
            .rfind(|c| !of_word(c))
            .map_or(0, |at| at + text[at..].chars().next().map_or(0, char::len_utf8));
        Ok((start, pairs(self.candidates(&text[..start], &text[start..]))))
    }
}

impl Validator for SqlHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> Result<ValidationResult> {
        let text = context.input();
        let is_word = matches!(text.trim(), "exit" | "quit" | "help");
        let complete = is_word || is_complete(text);
        Ok(if complete { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

#[cfg(test)]
mod tests {
    use rustyline::history::MemHistory;

    use super::*;

    fn helper() -> SqlHelper {
        let table = |name: &str, columns: &[&str]| TableNames {
            name: name.to_owned(),
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
        };
        SqlHelper {
            files: Some(FilenameCompleter::new()),
            tables: vec![table("trips", &["fare", "distance"]), table("stops", &["name", "fare"])],
            functions: ["sum", "sha256", "substr"].map(str::to_owned).into(),
        }
    }

    fn completed(text: &str) -> Vec<String> {
        let history = MemHistory::new();
        let (start, pairs) = helper().complete(text, text.len(), &Context::new(&history)).unwrap();
        pairs.into_iter().map(|pair| format!("{}{}", &text[..start], pair.replacement)).collect()
    }

    #[test]
    fn keywords_take_the_letters_that_were_used() {
        assert_eq!(completed("sel"), ["select"]);
        assert_eq!(completed("SEL"), ["SELECT"]);
        assert_eq!(completed("select 1;\nsel"), ["select 1;\nselect"]);
    }

    #[test]
    fn names_of_tables_columns_and_functions() {
        assert_eq!(completed("select su"), ["select substr", "select sum"]);
        assert_eq!(completed("select far"), ["select fare"]);
        assert_eq!(completed("select sum(dis"), ["select sum(distance", "select sum(distinct"]);
        assert_eq!(completed("select * from t"), ["select * from trips"]);
        assert_eq!(completed("select * from "), ["select * from stops", "select * from trips"]);
        assert_eq!(completed("load table st"), ["load table stops"]);
        assert_eq!(completed("select trips."), ["select trips.distance", "select trips.fare"]);
        assert_eq!(completed("select Trips.f"), ["select Trips.fare"]);
        assert_eq!(completed("select 'ü"), [""; 0]);
    }

    #[test]
    fn commands_and_their_arguments() {
        assert_eq!(completed("\\t"), ["\\timing"]);
        assert_eq!(completed("\\"), ["\\?", "\\d", "\\i", "\\q", "\\timing"]);
        assert_eq!(completed("\\d tr"), ["\\d trips"]);
        assert_eq!(completed("\\q "), [""; 0]);
        assert_eq!(completed("\\i Cargo.t"), ["\\i Cargo.toml"]);
    }

    #[test]
    fn keywords_are_sorted() {
        assert!(KEYWORDS.is_sorted());
    }
}
