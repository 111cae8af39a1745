//! `memferry man DIRECTORY`: a page for each command, generated from the definition of the command line.
//!
//! clap_mangen writes all sections but the text below the options: it would join the lines of examples and lists to one
//! paragraph.
//!
//! Source: man(7), groff_man(7).

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::builder::Resettable;
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::Cli;
use crate::output;

/// Writes the manual pages: memferry.1, and one for each command.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Directory of the pages, such as ~/.local/share/man/man1.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(crate) fn run(arguments: &Arguments, out: &mut dyn Write) -> Result<()> {
    let directory = &arguments.directory;
    let pages = pages().context("cannot generate the manual pages")?;
    write_pages(directory, &pages).with_context(|| {
        format!(
            "cannot write the manual pages to {}; choose a directory that you can write",
            directory.display()
        )
    })?;
    writeln!(out, "{} pages written to {}", pages.len(), directory.display())?;
    Ok(())
}

fn write_pages(directory: &Path, pages: &[Page]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    pages.iter().try_for_each(|page| output::write_file(&directory.join(&page.file), &page.text))
}

/// A manual page in the language of troff.
struct Page {
    file: String,
    text: Vec<u8>,
}

fn pages() -> io::Result<Vec<Page>> {
    // No page for `memferry help`.
    let mut command = Cli::command().disable_help_subcommand(true);
    // Gives each command its whole name, such as "memferry-bench-cache".
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, pages: &mut Vec<Page>) -> io::Result<()> {
    pages.push(page(command)?);
    command.get_subcommands().filter(|it| !it.is_hide_set()).try_for_each(|it| add_pages(it, pages))
}

fn page(command: &Command) -> io::Result<Page> {
    let notes = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let without_notes = command.clone().after_help(Resettable::Reset).after_long_help(Resettable::Reset);
    let man =
        Man::new(without_notes).manual("memferry").source(concat!("memferry ", env!("CARGO_PKG_VERSION")));
    let mut text = Vec::new();
    man.render(&mut text)?;
    if let Some(notes) = notes {
        text.extend(notes_section(&notes).into_bytes());
    }
    Ok(Page { file: man.get_filename(), text })
}

/// The text below the options as a section. Indented lines stay as they are, the others are filled.
fn notes_section(notes: &str) -> String {
    let mut section = ".SH NOTES\n".to_owned();
    let mut is_verbatim = false;
    for line in notes.lines() {
        let is_indented = line.starts_with(' ');
        if is_indented != is_verbatim && !line.is_empty() {
            section += if is_indented { ".nf\n" } else { ".fi\n" };
            is_verbatim = is_indented;
        }
        match line {
            "" => section += ".PP\n",
            line => section += &format!("{}\n", escape(line)),
        }
    }
    if is_verbatim {
        section += ".fi\n";
    }
    section
}

/// A line as text: troff would take backslashes for escapes, a leading dot or `'` for a request, and would print
/// other characters for `-`, `'`, `` ` ``, `^` and `~`, so that nobody could copy an example.
fn escape(line: &str) -> String {
    let mut escaped = String::new();
    if line.starts_with('.') {
        escaped += "\\&";
    }
    for letter in line.chars() {
        match letter {
            '\\' => escaped += "\\e",
            '-' => escaped += "\\-",
            '\'' => escaped += "\\(aq",
            '`' => escaped += "\\(ga",
            '^' => escaped += "\\(ha",
            '~' => escaped += "\\(ti",
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_keep_their_lists() {
        let section = notes_section("One\ntwo.\n\nExamples:\n  a -x\n  .b\n\nEnd\\.\n'q'");
        assert_eq!(
            section,
            ".SH NOTES\nOne\ntwo.\n.PP\nExamples:\n.nf\n  a \\-x\n  .b\n.PP\n.fi\nEnd\\e.\n\\(aqq\\(aq\n"
        );
        assert_eq!(notes_section("  a"), ".SH NOTES\n.nf\n  a\n.fi\n");
        assert_eq!(escape(".5"), "\\&.5");
    }

    #[test]
    fn every_command_has_a_page() {
        let pages = pages().unwrap();
        let text = |file: &str| {
            let page = pages.iter().find(|page| page.file == file).unwrap_or_else(|| panic!("no {file}"));
            String::from_utf8(page.text.clone()).unwrap()
        };
        let main = text("memferry.1");
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            text(&format!("memferry-{name}.1"));
            assert!(main.contains(&format!("memferry\\-{name}(1)")), "{name} is not in:\n{main}");
        }
        // Commands of commands, options, and examples line by line.
        assert!(text("memferry-bench-cache.1").contains("\\-\\-quick"));
        assert!(text("memferry-emulate.1").contains(".nf\n  memferry emulate \\-\\-devices 2"));
        assert!(pages.iter().all(|page| !page.file.contains("help")));
    }
}
