//! `cargo xtask links`: checks that each link of the documents leads to a file of this repository, and to a heading of
//! that file if it names one. Links to other hosts are not checked.
//!
//! Names of headings follow GitHub: lower case, without punctuation, repeated names numbered.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::shell::{Failure, root};

pub(crate) fn run() -> Result<(), Failure> {
    let mut files = Vec::new();
    documents_below(&root(), &mut files)
        .map_err(|error| Failure(format!("cannot list the documents: {error}")))?;
    let mut count = 0;
    let mut broken = Vec::new();
    for file in &files {
        let document = Document::read(file)?;
        count += document.links.len();
        for link in &document.links {
            if let Some(why) = why_broken(file, link)? {
                broken
                    .push(format!("{}: {link}: {why}", file.strip_prefix(root()).unwrap_or(file).display()));
            }
        }
    }
    eprintln!("{count} links of {} documents", files.len());
    if broken.is_empty() { Ok(()) } else { Err(Failure(broken.join("\n"))) }
}

/// Adds the Markdown files below a directory, except in `target` and hidden directories.
fn documents_below(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let is_left_out =
            path.file_name().is_some_and(|name| name == "target" || name.as_encoded_bytes()[0] == b'.');
        if path.is_dir() && !is_left_out {
            documents_below(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(())
}

/// The links of a document within the repository, and the names of its headings.
struct Document {
    links: Vec<String>,
    headings: BTreeSet<String>,
}

impl Document {
    fn read(file: &Path) -> Result<Document, Failure> {
        let text =
            fs::read_to_string(file).map_err(|error| Failure(format!("{}: {error}", file.display())))?;
        Ok(Document::parse(&text))
    }

    fn parse(text: &str) -> Document {
        let mut document = Document { links: Vec::new(), headings: BTreeSet::new() };
        let mut heading: Option<String> = None;
        let mut seen: HashMap<String, u32> = HashMap::new();
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. })
                    if !dest_url.contains(':') =>
                {
                    document.links.push(dest_url.into_string());
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    let times = seen.entry(name.clone()).or_default();
                    document.headings.insert(if *times == 0 { name } else { format!("{name}-{times}") });
                    *times += 1;
                }
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                _ => {}
            }
        }
        document
    }
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect::<String>().to_lowercase()
}

fn why_broken(file: &Path, link: &str) -> Result<Option<String>, Failure> {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => file.to_owned(),
        path => file.with_file_name(path),
    };
    if !target.exists() {
        return Ok(Some("the file does not exist".to_owned()));
    }
    if heading.is_empty() || target.extension().is_none_or(|extension| extension != "md") {
        return Ok(None);
    }
    let headings = Document::read(&target)?.headings;
    Ok((!headings.contains(heading)).then(|| "the file has no such heading".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_headings_of_a_document() {
        let text = "# One, `two`: three_4\n\n## A\n## A\n[a](b.md#c), <https://example.org>, [d](#a-1)\n\n    [no](code)\n";
        let document = Document::parse(text);
        assert_eq!(document.links, ["b.md#c", "#a-1"]);
        assert_eq!(document.headings.iter().collect::<Vec<_>>(), ["a", "a-1", "one-two-three_4"]);
    }

    #[test]
    fn links_lead_somewhere() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.md");
        fs::write(&file, "# Here").unwrap();
        let is_broken = |link: &str| why_broken(&file, link).unwrap().is_some();
        assert_eq!(["a.md", "#here", "a.md#here", "."].map(is_broken), [false; 4]);
        assert_eq!(["b.md", "#there", "a.md#there"].map(is_broken), [true; 3]);
    }
}
