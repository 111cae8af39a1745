//! Errors as one sentence, and those that are about the command line or the statement.

use std::fmt;

/// A usage error.
#[derive(Debug)]
struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// An error of the command line or the statement: a wrong option, value, or name.
pub fn usage(sentence: impl fmt::Display) -> anyhow::Error {
    anyhow::Error::new(Usage(sentence.to_string()))
}

/// Whether the command line or the statement is at fault.
pub fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<Usage>()
}

/// The error and its causes on one line. A cause that the text already contains is not repeated.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| one_line(&cause.to_string())) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The words of a text, separated by single spaces.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_have_one_line() {
        let error = anyhow::anyhow!("line one\n  line two").context("above");
        assert_eq!(sentence(&error), "above: line one line two");
        let repeated = anyhow::anyhow!("no room").context("cannot write a.csv: no room; use another disk");
        assert_eq!(sentence(&repeated), "cannot write a.csv: no room; use another disk");
    }
}
