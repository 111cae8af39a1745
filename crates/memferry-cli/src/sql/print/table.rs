//! Rows in aligned columns under headings.
//!
//! The first batch determines the widths; later rows may be wider. On a terminal the columns are made to fit: text is cut
//! with an ellipsis, numbers never are, and columns that do not fit even then are left out at the right.

use std::io::Write;

use anyhow::Result;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{Printer, cells};
use crate::output::{Align, count};

/// Spaces between columns.
const GAP: usize = 2;
/// Text is not cut below this width: what remains would tell nothing.
const CUT_WIDTH_MIN: usize = 8;
/// Stands for text and columns that are not shown.
const ELLIPSIS: &str = "…";

pub(super) struct Table<'a> {
    out: &'a mut dyn Write,
    headings: Vec<String>,
    align: Vec<Align>,
    width: Option<usize>,
    /// Known after the first rows.
    fitted: Option<Fitted>,
}

/// The widths of the columns that are shown.
#[derive(Debug, PartialEq)]
struct Fitted {
    widths: Vec<usize>,
    /// Whether text that is longer is cut.
    cuts: bool,
}

impl<'a> Table<'a> {
    pub(super) fn new(schema: &SchemaRef, width: Option<usize>, out: &'a mut dyn Write) -> Table<'a> {
        let align = schema
            .fields()
            .iter()
            .map(|field| if field.data_type().is_numeric() { Align::Right } else { Align::Left });
        Table {
            out,
            headings: schema.fields().iter().map(|field| shown(field.name())).collect(),
            align: align.collect(),
            width,
            fitted: None,
        }
    }

    /// Prints the headings, if they are not printed yet.
    fn head(&mut self, rows: &[Vec<String>]) -> Result<()> {
        if self.fitted.is_some() {
            return Ok(());
        }
        let widths = |column: usize| {
            let cells = std::iter::once(&self.headings).chain(rows).map(|row| &row[column]);
            cells.flat_map(|cell| cell.split('\n')).map(UnicodeWidthStr::width).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(widths).collect();
        let fitted = match self.width {
            Some(width) => fit(&widths, &self.align, width),
            None => Fitted { widths, cuts: false },
        };
        if !fitted.widths.is_empty() {
            let rule: Vec<String> = fitted.widths.iter().map(|&width| "-".repeat(width)).collect();
            for row in [&self.headings, &rule] {
                write_row(self.out, row, &self.align, &fitted)?;
            }
        }
        self.fitted = Some(fitted);
        Ok(())
    }
}

impl Printer for Table<'_> {
    fn batch(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let mut rows = Vec::with_capacity(batch.num_rows());
        cells::rows(batch, |cells| {
            rows.push(cells.iter().map(|cell| cell.as_deref().map_or("NULL".to_owned(), shown)).collect());
            Ok(())
        })?;
        self.head(&rows)?;
        let fitted = self.fitted.as_ref().expect("the headings are printed");
        if fitted.widths.is_empty() {
            return Ok(());
        }
        rows.iter().try_for_each(|row| write_row(self.out, row, &self.align, fitted))
    }

    fn finish(&mut self) -> Result<Option<String>> {
        self.head(&[])?;
        let shown_count = self.fitted.as_ref().map_or(0, |fitted| fitted.widths.len());
        let hidden = self.headings.len() - shown_count;
        let note = || {
            format!(
                "{} did not fit the terminal; select fewer columns, or write all with --format csv",
                count(hidden, "column")
            )
        };
        Ok((hidden > 0).then(note))
    }
}

/// Widths with which the columns fit `total`.
fn fit(widths: &[usize], align: &[Align], total: usize) -> Fitted {
    let needed = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    if needed(widths) <= total {
        return Fitted { widths: widths.to_vec(), cuts: true };
    }
    let cut_to = |most: usize| -> Vec<usize> {
        let cut =
            |(&width, align): (&usize, &Align)| if *align == Align::Left { width.min(most) } else { width };
        widths.iter().zip(align).map(cut).collect()
    };
    // The widest text columns are cut to one width, as large as possible.
    let longest = widths.iter().copied().max().unwrap_or(0);
    let mut most = CUT_WIDTH_MIN;
    if needed(&cut_to(most)) <= total {
        let (mut low, mut high) = (most, longest);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if needed(&cut_to(middle)) <= total { low = middle } else { high = middle - 1 }
        }
        most = low;
    }
    let mut widths = cut_to(most);
    // One column at least, and room for the ellipsis of those left out.
    let all = widths.len();
    while widths.len() > 1 && needed(&widths) + if widths.len() < all { GAP + 1 } else { 0 } > total {
        widths.pop();
    }
    Fitted { widths, cuts: true }
}

/// Writes a row, over several lines if a cell has several.
fn write_row(out: &mut dyn Write, row: &[String], align: &[Align], fitted: &Fitted) -> Result<()> {
    let cells: Vec<Vec<&str>> =
        row.iter().take(fitted.widths.len()).map(|cell| cell.split('\n').collect()).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(1);
    for part in 0..height {
        let mut line = String::new();
        for ((cell, &width), align) in cells.iter().zip(&fitted.widths).zip(align) {
            let text = cell.get(part).copied().unwrap_or_default();
            // Numbers of later rows that are wider are whole: only text is cut.
            let text = if fitted.cuts && *align == Align::Left { cut(text, width) } else { text.to_owned() };
            let padding = " ".repeat(width.saturating_sub(text.width()));
            line += &match align {
                Align::Left => format!("{text}{padding}"),
                Align::Right => format!("{padding}{text}"),
            };
            line += &" ".repeat(GAP);
        }
        if row.len() > fitted.widths.len() {
            line += ELLIPSIS;
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// The text, or as much of it as fits before an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    let mut left = width.saturating_sub(1);
    for c in text.chars() {
        let taken = c.width().unwrap_or(0);
        if taken > left {
            break;
        }
        left -= taken;
        short.push(c);
    }
    short + ELLIPSIS
}

/// The text of a cell without characters that would move the cursor.
fn shown(text: &str) -> String {
    // Plans end with one.
    let text = text.trim_end_matches('\n');
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars()
        .flat_map(|c| {
            let escape = c.is_control() && c != '\n';
            let (escaped, plain) = (escape.then(|| c.escape_default()), (!escape).then_some(c));
            escaped.into_iter().flatten().chain(plain)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use Align::{Left, Right};

    fn widths(fitted: Fitted) -> Vec<usize> {
        fitted.widths
    }

    #[test]
    fn columns_that_fit_are_left_alone() {
        assert_eq!(widths(fit(&[10, 20], &[Left, Right], 32)), [10, 20]);
        assert_eq!(widths(fit(&[], &[], 5)), [0; 0]);
    }

    #[test]
    fn the_widest_text_is_cut_and_numbers_are_not() {
        assert_eq!(widths(fit(&[10, 20], &[Left, Left], 31)), [10, 19]);
        assert_eq!(widths(fit(&[50, 60], &[Left, Left], 42)), [20, 20]);
        assert_eq!(widths(fit(&[30, 30], &[Left, Right], 42)), [10, 30]);
    }

    #[test]
    fn what_does_not_fit_is_left_out() {
        assert_eq!(widths(fit(&[30, 30, 5], &[Right, Right, Left], 50)), [30]);
        // The ellipsis of the columns left out needs its place: 2 x 30 + 2, and 3 for it.
        assert_eq!(widths(fit(&[30, 30, 30], &[Right; 3], 65)), [30, 30]);
        assert_eq!(widths(fit(&[30, 30, 30], &[Right; 3], 64)), [30]);
        assert_eq!(widths(fit(&[99], &[Right], 10)), [99]);
    }

    #[test]
    fn cut_text_has_the_width() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde…");
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語です", 6), "日本…");
        assert_eq!(cut("e\u{301}e\u{301}e\u{301}e", 3), "e\u{301}e\u{301}…");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(shown("a\tb\u{1b}[31m"), "a\\tb\\u{1b}[31m");
        assert_eq!(shown("a\nb"), "a\nb");
    }
}
