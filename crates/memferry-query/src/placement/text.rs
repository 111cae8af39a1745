//! Placements as text.

use std::fmt;
use std::iter::Peekable;
use std::ops::Range;
use std::str::FromStr;
use std::vec::IntoIter;

use memferry::topology::NodeId;

use super::{PlacementClause, PlacementError, TablePlacement};

impl fmt::Display for PlacementClause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(column) = &self.column {
            write!(f, "COLUMN {} ", quoted(column))?;
        }
        if let Some(Range { start, end }) = &self.rows {
            write!(f, "ROWS {start} TO {end} ")?;
        }
        let node = |&(node, weight): &(NodeId, u8)| match weight {
            1 => node.to_string(),
            weight => format!("{node} WEIGHT {weight}"),
        };
        write!(f, "NUMA NODE ({})", self.nodes.iter().map(node).collect::<Vec<_>>().join(", "))?;
        if self.by_bandwidth { f.write_str(" BY BANDWIDTH") } else { Ok(()) }
    }
}

impl fmt::Display for TablePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.clauses.iter().map(PlacementClause::to_string).collect::<Vec<_>>().join(", "))
    }
}

/// A name as SQL reads it: letters that are not quoted are lower case.
fn quoted(name: &str) -> String {
    let is_plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty();
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

impl FromStr for TablePlacement {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<TablePlacement, PlacementError> {
        let mut words = Words(words(text)?.into_iter().peekable());
        let mut clauses = vec![words.clause()?];
        while words.take_sign(',') {
            clauses.push(words.clause()?);
        }
        match words.0.next() {
            None => Ok(TablePlacement { clauses }),
            found => Err(wrong(found, "a comma or the end")),
        }
    }
}

/// A part of the text.
#[derive(Clone, Debug, PartialEq)]
enum Word {
    /// Letters and digits.
    Plain(String),
    /// A name in quotes.
    Quoted(String),
    Sign(char),
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Word::Plain(text) => write!(f, "{text}"),
            Word::Quoted(name) => write!(f, "\"{name}\""),
            Word::Sign(sign) => write!(f, "{sign}"),
        }
    }
}

fn wrong(found: Option<Word>, expected: &'static str) -> PlacementError {
    let found = found.map_or("the end".to_owned(), |word| word.to_string());
    PlacementError::Text { found, expected }
}

fn words(text: &str) -> Result<Vec<Word>, PlacementError> {
    let mut words = Vec::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let is_of_word = |c: &char| c.is_alphanumeric() || *c == '_';
        if c == '"' {
            let mut name = String::new();
            loop {
                match rest.next() {
                    Some('"') if rest.next_if_eq(&'"').is_some() => name.push('"'),
                    Some('"') => break,
                    Some(c) => name.push(c),
                    None => return Err(wrong(None, "a closing quote")),
                }
            }
            words.push(Word::Quoted(name));
        } else if is_of_word(&c) {
            let mut word = c.to_string();
            while let Some(c) = rest.next_if(is_of_word) {
                word.push(c);
            }
            words.push(Word::Plain(word));
        } else if !c.is_whitespace() {
            words.push(Word::Sign(c));
        }
    }
    Ok(words)
}

struct Words(Peekable<IntoIter<Word>>);

impl Words {
    fn clause(&mut self) -> Result<PlacementClause, PlacementError> {
        let mut clause = PlacementClause::on(&[]);
        let mut expected = "COLUMN, ROWS or NUMA NODE";
        if self.take("column") {
            clause.column = Some(match self.0.next() {
                Some(Word::Plain(name)) => name.to_lowercase(),
                Some(Word::Quoted(name)) => name,
                found => return Err(wrong(found, "the name of a column")),
            });
            expected = "ROWS or NUMA NODE";
        }
        if self.take("rows") {
            let start = self.number("the number of the first row")?;
            self.expect("to", "TO")?;
            clause.rows = Some(start..self.number("the number of the row after the last")?);
            expected = "NUMA NODE";
        }
        self.expect("numa", expected)?;
        self.expect("node", "NODE")?;
        self.expect_sign('(', "( and the numbers of nodes")?;
        loop {
            let node = NodeId(self.number("the number of a node")?);
            let weight = if self.take("weight") { self.number("a weight up to 255")? } else { 1 };
            clause.nodes.push((node, weight));
            if !self.take_sign(',') {
                break;
            }
        }
        self.expect_sign(')', ", or )")?;
        if self.take("by") {
            self.expect("bandwidth", "BANDWIDTH")?;
            clause.by_bandwidth = true;
        }
        Ok(clause)
    }

    fn take(&mut self, keyword: &str) -> bool {
        let is_keyword =
            |word: &Word| matches!(word, Word::Plain(text) if text.eq_ignore_ascii_case(keyword));
        self.0.next_if(is_keyword).is_some()
    }

    fn take_sign(&mut self, sign: char) -> bool {
        self.0.next_if_eq(&Word::Sign(sign)).is_some()
    }

    fn expect(&mut self, keyword: &str, expected: &'static str) -> Result<(), PlacementError> {
        if self.take(keyword) { Ok(()) } else { Err(wrong(self.0.next(), expected)) }
    }

    fn expect_sign(&mut self, sign: char, expected: &'static str) -> Result<(), PlacementError> {
        if self.take_sign(sign) { Ok(()) } else { Err(wrong(self.0.next(), expected)) }
    }

    fn number<T: FromStr>(&mut self, expected: &'static str) -> Result<T, PlacementError> {
        let found = self.0.next();
        match &found {
            Some(Word::Plain(text)) => text.parse().map_err(|_| wrong(found.clone(), expected)),
            _ => Err(wrong(found, expected)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_read_as_they_are_written() {
        for text in [
            "NUMA NODE (8)",
            "NUMA NODE (0, 8 WEIGHT 3, 2)",
            "NUMA NODE (0, 8) BY BANDWIDTH",
            "COLUMN b NUMA NODE (8), COLUMN \"B \"\"x\"\"\" NUMA NODE (9)",
            "COLUMN b ROWS 0 TO 100 NUMA NODE (8), ROWS 5 TO 7 NUMA NODE (1)",
        ] {
            let placement: TablePlacement = text.parse().unwrap();
            assert_eq!(placement.to_string(), text);
            let lower = text.replace("NUMA NODE", "numa\n node").replace("COLUMN", "Column");
            assert_eq!(lower.parse::<TablePlacement>().unwrap(), placement);
        }
        let upper: TablePlacement = "column B numa node (1)".parse().unwrap();
        assert_eq!(upper.clauses, [PlacementClause::column("b", NodeId(1))]);
    }

    #[test]
    fn a_wrong_text_says_where_it_is_wrong() {
        for (text, found) in [
            ("", "the end where COLUMN, ROWS or NUMA NODE is"),
            ("numa node", "the end where ( "),
            ("numa node ()", ") where the number of a node"),
            ("numa node (1", "the end where , or )"),
            ("numa node (-1)", "- where the number of a node"),
            ("numa node (1 weight 256)", "256 where a weight"),
            ("numa node (1),", "the end where COLUMN"),
            ("numa node (1) numa node (2)", "numa where a comma"),
            ("numa node (1) by size", "size where BANDWIDTH"),
            ("column numa node (1)", "node where ROWS or NUMA NODE"),
            ("column , numa node (1)", ", where the name of a column"),
            ("rows 1 numa node (1)", "numa where TO"),
            ("rows a to 2 numa node (1)", "a where the number of the first row"),
            ("column \"a numa node (1)", "the end where a closing quote"),
        ] {
            let error = text.parse::<TablePlacement>().unwrap_err().to_string();
            assert!(error.starts_with(found), "{text}: {error}");
        }
    }
}
