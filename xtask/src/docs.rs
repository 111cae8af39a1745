//! `cargo xtask docs`: runs the shell blocks of the documents, so that a reader's first command works.
//!
//! Blocks marked `sh` run in a temporary directory with copies of `crates` and `results`, so that they cannot write to the
//! checkout. `/tmp` in a block is that directory too. Blocks marked `sh,ignore` do not run; an HTML comment above each
//! says why.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use crate::shell::{Failure, cargo, root, target_directory};

/// How the reason of a block that does not run begins.
const REASON: &str = "<!-- not run in CI: ";

/// Stands for cargo in the blocks: what they ask it to run is built.
const CARGO: &str = "\
#!/bin/sh
case \"$1 $2 $4\" in
'run -- '*) shift 2; exec memferry \"$@\" ;;
'run -p --example') exec \"$MEMFERRY_BUILT/examples/$5\" ;;
*) echo \"cargo $*: not a command that cargo xtask docs knows\" >&2; exit 1 ;;
esac
";

/// Builds the command and the examples, runs the blocks of all documents, and reports each that fails.
pub(crate) fn run() -> Result<(), Failure> {
    cargo(["test", "--locked", "--no-run", "--quiet"]).run()?;
    let mut broken = Vec::new();
    let mut blocks = Vec::new();
    for file in documents()? {
        let text = fs::read_to_string(root().join(&file))
            .map_err(|error| Failure(format!("cannot read {}: {error}", file.display())))?;
        for block in shell_blocks(&text) {
            match (block.runs, block.has_reason) {
                (true, _) => blocks.push((file.clone(), block)),
                (false, true) => {}
                (false, false) => broken.push(format!(
                    "{}:{}: a block marked sh,ignore needs a comment above it: {REASON}WHY -->",
                    file.display(),
                    block.line
                )),
            }
        }
    }
    let built = target_directory().join("debug");
    let directory = prepare()?;
    for (file, block) in &blocks {
        let place = format!("{}:{}", file.display(), block.line);
        let started = Instant::now();
        match block.run(&built, directory.path()) {
            Ok(()) => eprintln!("{:>6.1} s  {place}", started.elapsed().as_secs_f64()),
            Err(why) => broken.push(format!("{place}: {why}\n{}", block.script)),
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(Failure(broken.join("\n"))) }
}

/// The documents with shell blocks for readers, relative to the root.
fn documents() -> Result<Vec<PathBuf>, Failure> {
    let mut files = vec![PathBuf::from("README.md")];
    for directory in ["docs/guides", "docs/commands"] {
        let entries = fs::read_dir(root().join(directory))
            .map_err(|error| Failure(format!("cannot read {directory}: {error}")))?;
        let names = entries.flatten().map(|entry| Path::new(directory).join(entry.file_name()));
        files.extend(names.filter(|file| file.extension().is_some_and(|extension| extension == "md")));
    }
    files.sort();
    Ok(files)
}

/// A temporary directory with the files that blocks read.
fn prepare() -> Result<tempfile::TempDir, Failure> {
    let failed = |error| Failure(format!("cannot prepare a directory for the blocks: {error}"));
    let directory = tempfile::Builder::new().prefix("memferry-docs-").tempdir().map_err(failed)?;
    let copy = Command::new("cp")
        .args(["-r", "crates", "results"])
        .arg(directory.path())
        .current_dir(root())
        .status();
    if !copy.map_err(failed)?.success() {
        return Err(failed(std::io::Error::other("cp failed, see above")));
    }
    let bin = directory.path().join("bin");
    let shim = bin.join("cargo");
    fs::create_dir(&bin)
        .and_then(|()| fs::write(&shim, CARGO))
        .and_then(|()| fs::set_permissions(&shim, std::os::unix::fs::PermissionsExt::from_mode(0o755)))
        .map_err(failed)?;
    Ok(directory)
}

/// A fenced block of shell commands.
#[derive(Debug, PartialEq)]
struct Block {
    /// Line of its first command.
    line: usize,
    script: String,
    runs: bool,
    has_reason: bool,
}

impl Block {
    fn run(&self, built: &Path, directory: &Path) -> Result<(), String> {
        let bin = directory.join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let script = self.script.replace("/tmp/", &format!("{}/", directory.display()));
        let output = Command::new("sh")
            .args(["-e", "-c", &script])
            .current_dir(directory)
            .env("PATH", format!("{}:{}:{path}", bin.display(), built.display()))
            .env("MEMFERRY_BUILT", built)
            .stdin(std::process::Stdio::null())
            .output();
        let output = output.map_err(|error| format!("cannot run sh: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim_end()))
    }
}

fn shell_blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut comment: Option<Range<usize>> = None;
    let mut is_in_block = false;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Html(_) => comment = Some(range),
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info)))
                if info.split(',').next() == Some("sh") =>
            {
                let above =
                    comment.as_ref().filter(|comment| text[comment.end..range.start].trim().is_empty());
                blocks.push(Block {
                    line: text[..range.start].lines().count() + 2,
                    script: String::new(),
                    runs: !info.contains("ignore"),
                    has_reason: above.is_some_and(|comment| text[comment.clone()].starts_with(REASON)),
                });
                is_in_block = true;
            }
            Event::Text(part) if is_in_block => {
                blocks.last_mut().expect("the block was pushed at its start").script.push_str(&part);
            }
            Event::End(TagEnd::CodeBlock) => is_in_block = false,
            _ => {}
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_their_reasons() {
        let text = "# A\n\n```sh\none\ntwo\n```\n\n<!-- not run in CI: slow -->\n```sh,ignore\nthree\n```\n\
                    ```sh,ignore\nfour\n```\n```text\nfive\n```\n";
        let blocks = shell_blocks(text);
        let found: Vec<_> =
            blocks.iter().map(|it| (it.line, it.script.as_str(), it.runs, it.has_reason)).collect();
        assert_eq!(
            found,
            [(4, "one\ntwo\n", true, false), (10, "three\n", false, true), (13, "four\n", false, false)]
        );
    }

    #[test]
    fn a_block_that_fails_is_explained() {
        let directory = tempfile::tempdir().unwrap();
        let run = |script: &str| {
            Block { line: 1, script: script.to_owned(), runs: true, has_reason: false }
                .run(Path::new("/nowhere"), directory.path())
        };
        assert_eq!(run("echo x > /tmp/here"), Ok(()));
        assert!(directory.path().join("here").exists());
        let error = run("false\ntrue").unwrap_err();
        assert!(error.contains("exit status: 1"), "{error}");
        let error = run("echo why >&2; exit 3").unwrap_err();
        assert!(error.contains("why") && error.contains('3'), "{error}");
    }

    #[test]
    fn every_ignored_block_says_why() {
        for file in documents().unwrap() {
            for block in shell_blocks(&fs::read_to_string(root().join(&file)).unwrap()) {
                assert!(block.runs || block.has_reason, "{}:{}", file.display(), block.line);
            }
        }
    }
}
