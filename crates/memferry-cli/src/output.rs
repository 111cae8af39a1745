//! Output: aligned tables, boxes, sizes, lists of numbers, JSON, and files that are replaced as a whole.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;

/// Width of text, if possible.
pub(crate) const COLUMNS_MAX: usize = 100;

/// The alignment of a column in a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows of text under aligned headings.
#[derive(Debug)]
pub(crate) struct Table {
    align: Vec<Align>,
    /// The heading and the rows; an empty row prints as an empty line.
    rows: Vec<Vec<String>>,
    indent: usize,
}

impl Table {
    /// A table with the headings of `"left | right: | left"`: a colon aligns a column to the right, as in Markdown.
    pub(crate) fn new(columns: &str) -> Table {
        let column = |heading: &str| match heading.strip_suffix(':') {
            Some(heading) => (Align::Right, heading.to_owned()),
            None => (Align::Left, heading.to_owned()),
        };
        let (align, headings) = columns.split(" | ").map(column).unzip();
        Table { align, rows: vec![headings], indent: 0 }
    }

    /// A table without headings.
    pub(crate) fn plain(align: Vec<Align>) -> Table {
        Table { align, rows: Vec::new(), indent: 0 }
    }

    pub(crate) fn indent(mut self, spaces: usize) -> Table {
        self.indent = spaces;
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.align.len(), "a cell for each column");
        self.rows.push(cells);
    }

    pub(crate) fn gap(&mut self) {
        self.rows.push(Vec::new());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = vec![0; self.align.len()];
        for row in &self.rows {
            widen(&mut widths, row);
        }
        for row in &self.rows {
            writeln!(f, "{}", line(row, &widths, &self.align, self.indent))?;
        }
        Ok(())
    }
}

/// Widens each column to the width of its cell in `row`.
pub(crate) fn widen(widths: &mut [usize], row: &[String]) {
    for (width, cell) in widths.iter_mut().zip(row) {
        *width = (*width).max(cell.chars().count());
    }
}

/// A row with cells padded to `widths`, two spaces apart, without trailing spaces. Columns of width 0 are left out.
pub(crate) fn line(row: &[String], widths: &[usize], align: &[Align], indent: usize) -> String {
    let mut text = String::new();
    for ((cell, &width), align) in row.iter().zip(widths).zip(align).filter(|((_, width), _)| **width > 0) {
        text += &match align {
            Align::Left => format!("{cell:<width$}  "),
            Align::Right => format!("{cell:>width$}  "),
        };
    }
    let text = text.trim_end();
    if text.is_empty() { String::new() } else { format!("{:indent$}{text}", "") }
}

/// A box with a title around `lines`, at least `width` wide inside.
pub(crate) fn framed(title: &str, lines: &[impl AsRef<str>], width: usize) -> String {
    let widths = lines.iter().map(|line| line.as_ref().chars().count());
    let width = widths.chain([width, title.chars().count() + 2]).max().unwrap_or(0);
    let mut text = format!("╭─ {title} {}╮\n", "─".repeat(width - title.chars().count() - 1));
    for line in lines.iter().map(AsRef::as_ref) {
        text += &format!("│ {line}{} │\n", " ".repeat(width - line.chars().count()));
    }
    text + &format!("╰{}╯\n", "─".repeat(width + 2))
}

/// Breaks text at spaces into lines of at most `width`; a longer word gets its own line.
pub(crate) fn fill(text: &str, width: usize) -> Vec<String> {
    break_lines(text, |line| line.chars().count() <= width)
}

/// Breaks text at spaces into lines that fit; a word that does not fit gets its own line.
pub(crate) fn break_lines(text: &str, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let longer = lines.last().map(|line| format!("{line} {word}")).filter(|longer| fits(longer));
        match (longer, lines.last_mut()) {
            (Some(longer), Some(line)) => *line = longer,
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A paragraph; lines after the first are indented by two more spaces.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = fill(text, COLUMNS_MAX - indent - 2).into_iter();
    let first = lines.next().map_or(String::new(), |line| format!("{:indent$}{line}\n", ""));
    lines.fold(first, |text, line| format!("{text}{:1$}{line}\n", "", indent + 2)).replace('\u{a0}', " ")
}

/// The text of a name from a file. Characters that move the cursor or that XML forbids become replacement characters.
pub(crate) fn printable(text: &str) -> String {
    let forbidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    text.trim().chars().map(|c| if forbidden(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// `1536` as `1.5 KiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would print as 1024.0.
    while value >= 1023.95 {
        value /= 1024.0;
        unit += 1;
    }
    // Sizes of memories are mostly whole.
    let text = format!("{value:.1}");
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), UNITS[unit])
}

/// The text with its first letter in upper case.
pub(crate) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// A number with about four digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        ..1.0 => format!("{value:.4}"),
        ..1000.0 => format!("{value:.2}"),
        _ => format!("{value:.0}"),
    }
}

/// `[0, 1, 2, 5]` as `0-2,5`, as the kernel writes lists of CPUs. `numbers` must ascend.
pub(crate) fn ranges(numbers: &[u32]) -> String {
    numbers
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => unreachable!("chunks are never empty"),
        })
        .collect::<Vec<_>>()
        .join(",")
}

/// Writes a value as indented JSON and ends the line.
pub(crate) fn json(out: &mut dyn Write, value: &impl Serialize) -> Result<()> {
    // Through a string, because serde_json's writer hides the reason of a failure.
    writeln!(out, "{}", serde_json::to_string_pretty(value)?)?;
    Ok(())
}

/// A file under a temporary name next to its target; removed when dropped before [`keep`](Part::keep).
pub(crate) struct Part {
    path: PathBuf,
    target: PathBuf,
    file: File,
}

impl Part {
    pub(crate) fn create(target: &Path) -> io::Result<Part> {
        let mut path = target.as_os_str().to_owned();
        // Neither the user nor another process has a file of this name.
        path.push(format!(".{}.partial", std::process::id()));
        let path = PathBuf::from(path);
        Ok(Part { file: File::create(&path)?, path, target: target.to_owned() })
    }

    pub(crate) fn write(target: &Path, content: &[u8]) -> io::Result<Part> {
        let mut part = Part::create(target)?;
        part.file.write_all(content)?;
        part.sync()?;
        Ok(part)
    }

    /// Waits until the disk has the bytes. Some file systems report only here that they are full.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    pub(crate) fn keep(self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Fails after `keep`, which renamed the file. Otherwise the caller reports a more important error.
        let _ = fs::remove_file(&self.path);
    }
}

/// Replaces a file as a whole. Pipes and devices are written directly.
pub(crate) fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(old) if !old.is_file() => fs::write(path, content),
        // Follow a symbolic link, which the rename would replace.
        Ok(_) => Part::write(&fs::canonicalize(path)?, content)?.keep(),
        Err(_) => Part::write(path, content)?.keep(),
    }
}

/// The error message for a file that cannot be written.
pub(crate) fn not_written(what: &str, option: &str, file: &Path) -> String {
    format!(
        "cannot write the {what} to {}; choose {option} FILE in an existing directory with free space",
        file.display()
    )
}

/// A field of CSV (RFC 4180), quoted only if necessary.
pub(crate) fn csv_field(field: &str) -> String {
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

/// `1 node`, `2 nodes`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_align_without_trailing_spaces() {
        let mut table = Table::new("query | ms: | note").indent(2);
        table.row(vec!["Q1".to_owned(), "9.5".to_owned(), String::new()]);
        table.gap();
        table.row(vec!["Q14 é".to_owned(), "120.0".to_owned(), "slow".to_owned()]);
        let expected = "  query     ms  note\n  Q1       9.5\n\n  Q14 é  120.0  slow\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn sizes() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (1_048_575, "1 MiB"),
            (25_232_932_864, "23.5 GiB"),
            (u64::MAX, "16 EiB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn csv_fields_are_quoted_if_necessary() {
        for field in ["", "plain", "a,b", "\"", "x\"y\",z", "two\nlines"] {
            let line = format!("{},1", csv_field(field));
            let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(line.as_bytes());
            assert_eq!(reader.records().next().unwrap().unwrap(), vec![field, "1"]);
        }
        assert_eq!(csv_field("plain text"), "plain text");
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("a.svg"), directory.path().join("link.svg"));
        write_file(&file, b"first").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_file(&link, b"second").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "a link stays one");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "nothing else is left");
        write_file(Path::new("/dev/null"), b"gone").unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type() != fs::metadata(&file).unwrap().file_type());
        assert_eq!(write_file(directory.path(), b"no").unwrap_err().kind(), io::ErrorKind::IsADirectory);
        let missing = directory.path().join("missing").join("a.svg");
        assert_eq!(write_file(&missing, b"no").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_full_disk_leaves_nothing() {
        // Every write to /dev/full fails with ENOSPC. The partial file is a link to it.
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("r.csv");
        std::os::unix::fs::symlink(
            "/dev/full",
            directory.path().join(format!("r.csv.{}.partial", std::process::id())),
        )
        .unwrap();
        let error = Part::write(&target, b"name,value\n").map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn boxes_fit_their_content() {
        let expected = "╭─ title ─╮\n│ é       │\n│ 1234567 │\n╰─────────╯\n";
        assert_eq!(framed("title", &["é", "1234567"], 0), expected);
        assert_eq!(framed("a", &[""], 5).lines().next(), Some("╭─ a ───╮"));
    }
}
