//! Text cut into statements, which end at `;`, and commands, which are lines that start with `\`.
//!
//! The scanner knows what a semicolon can hide in: strings, quoted names, comments and dollar-quoted text. It judges
//! nothing else; the parser of SQL reads each statement later.

/// A statement or a command of the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Input {
    /// SQL without its semicolon.
    Statement(String),
    /// A line that starts with a backslash, without it.
    Command(String),
}

/// An input and the line where it starts, counted from 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Located {
    pub(crate) line: usize,
    pub(crate) input: Input,
}

/// What the next character belongs to.
#[derive(Debug, Default, PartialEq)]
enum Within {
    #[default]
    Code,
    /// A string or a quoted name; `escapes` in strings such as `E'it\'s'`.
    Quotes { quote: char, escapes: bool },
    /// Block comments nest.
    Comment { depth: usize },
    /// Text between two tags such as `$$` or `$body$`.
    Dollars { tag: String },
}

/// Collects lines until they make a statement.
#[derive(Debug, Default)]
pub(crate) struct Scanner {
    within: Within,
    pending: String,
    /// Whether `pending` has more than spaces and comments.
    has_content: bool,
    lines_count: usize,
    start_line: usize,
}

impl Scanner {
    /// Takes the next line, with its line end, and returns what it completes.
    pub(crate) fn line(&mut self, line: &str) -> Vec<Located> {
        self.lines_count += 1;
        if !self.has_content
            && self.within == Within::Code
            && let Some(command) = line.trim().strip_prefix('\\')
        {
            self.pending.clear();
            let input = Input::Command(command.trim_end().to_owned());
            return vec![Located { line: self.lines_count, input }];
        }
        let mut complete = Vec::new();
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            if self.within == Within::Code && first == ';' {
                complete.extend(self.take());
                rest = &rest[1..];
                continue;
            }
            let (taken, left) = rest.split_at(self.step(rest, first));
            self.pending.push_str(taken);
            rest = left;
        }
        complete
    }

    /// The last statement, which may lack its semicolon.
    pub(crate) fn finish(mut self) -> Option<Located> {
        self.take()
    }

    fn take(&mut self) -> Option<Located> {
        let statement = std::mem::take(&mut self.pending).trim().to_owned();
        let complete = std::mem::take(&mut self.has_content);
        complete.then_some(Located { line: self.start_line, input: Input::Statement(statement) })
    }

    /// Moves over the next token of `rest` and returns its bytes.
    fn step(&mut self, rest: &str, first: char) -> usize {
        match &mut self.within {
            Within::Code => return self.step_in_code(rest, first),
            Within::Quotes { quote, escapes } => {
                if *escapes && first == '\\' {
                    return 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                }
                if first == *quote {
                    // Two quotes are one in the text.
                    if rest[1..].starts_with(*quote) {
                        return 2;
                    }
                    self.within = Within::Code;
                }
            }
            Within::Comment { depth } => {
                if rest.starts_with("/*") {
                    *depth += 1;
                    return 2;
                }
                if rest.starts_with("*/") {
                    *depth -= 1;
                    if *depth == 0 {
                        self.within = Within::Code;
                    }
                    return 2;
                }
            }
            Within::Dollars { tag } => {
                if rest.starts_with(tag.as_str()) {
                    let length = tag.len();
                    self.within = Within::Code;
                    return length;
                }
            }
        }
        first.len_utf8()
    }

    fn step_in_code(&mut self, rest: &str, first: char) -> usize {
        if rest.starts_with("--") {
            return rest.find('\n').unwrap_or(rest.len());
        }
        if rest.starts_with("/*") {
            self.within = Within::Comment { depth: 1 };
            return 2;
        }
        if first.is_whitespace() {
            return first.len_utf8();
        }
        if !self.has_content {
            self.has_content = true;
            self.start_line = self.lines_count;
        }
        let before = self.pending.chars().next_back();
        match first {
            '\'' => {
                let escapes = matches!(before, Some('e' | 'E')) && !self.ends_with_word();
                self.within = Within::Quotes { quote: '\'', escapes };
            }
            '"' | '`' => self.within = Within::Quotes { quote: first, escapes: false },
            '$' if !before.is_some_and(is_of_word) => {
                let tag = rest[1..].split('$').next().unwrap_or_default();
                let length = tag.len() + 2;
                if rest.len() >= length && tag.chars().all(is_of_word) {
                    self.within = Within::Dollars { tag: format!("${tag}$") };
                    return length;
                }
            }
            _ => {}
        }
        first.len_utf8()
    }

    /// Whether the last word is longer than its last letter.
    fn ends_with_word(&self) -> bool {
        self.pending.chars().rev().nth(1).is_some_and(is_of_word)
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All inputs of a text; the last statement may lack its semicolon.
pub(crate) fn inputs(text: &str) -> Vec<Located> {
    let mut scanner = Scanner::default();
    let mut inputs: Vec<Located> = text.split_inclusive('\n').flat_map(|line| scanner.line(line)).collect();
    inputs.extend(scanner.finish());
    inputs
}

/// Whether Enter runs this text: it ends outside of any statement.
pub(crate) fn is_complete(text: &str) -> bool {
    let mut scanner = Scanner::default();
    for line in text.split_inclusive('\n') {
        scanner.line(line);
    }
    !scanner.has_content && scanner.within == Within::Code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statements(text: &str) -> Vec<String> {
        let text_of = |it: Located| match it.input {
            Input::Statement(text) => text,
            Input::Command(text) => format!("\\{text}"),
        };
        inputs(text).into_iter().map(text_of).collect()
    }

    #[test]
    fn semicolons_end_statements() {
        assert_eq!(statements("select 1; select 2;"), ["select 1", "select 2"]);
        assert_eq!(statements("select 1;\n\nselect\n  2"), ["select 1", "select\n  2"]);
        assert_eq!(statements(" ;; \n;"), [""; 0]);
        assert_eq!(statements(""), [""; 0]);
    }

    #[test]
    fn semicolons_in_quotes_and_comments_do_not() {
        for one in [
            "select ';'",
            "select 'it''s; so'",
            r"select E'it\'s; so'",
            r"select name'\'",
            "select \"a;b\" from t",
            "select `a;b` from t",
            "select $$a;b$$",
            "select $x$a;$$;b$x$",
            "select 1 -- one; two\n+ 1",
            "select 1 /* a; /* b; */ c; */ + 1",
            "select 'über;ä'",
            "select a$b from t",
        ] {
            assert_eq!(statements(&format!("{one};select 2")), [one, "select 2"]);
        }
        // The backslash is no escape in a plain string.
        assert_eq!(statements(r"select '\'; select 2"), [r"select '\'", "select 2"]);
    }

    #[test]
    fn comments_alone_are_no_statement() {
        assert_eq!(statements("-- nothing\n/* here; */ ; -- end"), [""; 0]);
        assert_eq!(statements("-- first\nselect 1"), ["-- first\nselect 1"]);
    }

    #[test]
    fn commands_are_lines() {
        assert_eq!(statements("\\d t \nselect 1;\n  \\timing\n"), ["\\d t", "select 1", "\\timing"]);
        assert_eq!(statements("-- tables:\n\\d"), ["\\d"]);
        // Not within a statement, a string or a comment.
        assert_eq!(statements("select '\n\\d\n'"), ["select '\n\\d\n'"]);
        assert_eq!(statements("select 1\n\\d;"), ["select 1\n\\d"]);
        assert_eq!(statements("/*\n\\d\n*/"), [""; 0]);
    }

    #[test]
    fn inputs_know_their_lines() {
        let lines: Vec<usize> =
            inputs("select 1;\n\n-- two\nselect\n2; select 3;\n\\d\n").iter().map(|it| it.line).collect();
        assert_eq!(lines, [1, 4, 5, 6]);
    }

    #[test]
    fn enter_runs_what_is_complete() {
        for complete in ["select 1;", "\\d", "", "  ", "select 1; -- done", "select ';';"] {
            assert!(is_complete(complete), "{complete}");
        }
        for open in ["select 1", "select ';", "select 1; select 2", "/* ", "select 1 -- ;", "select $$;"] {
            assert!(!is_complete(open), "{open}");
        }
    }
}
