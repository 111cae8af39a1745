//! `cargo xtask api`: the public API of the library crates, one file per crate in `docs/api`.
//!
//! A change of the API shows up in the diff of a change. cargo-public-api lists the items; it needs nightly's JSON from
//! rustdoc. Blanket, automatic and derived implementations are left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::shell::{self, Failure, nightly, root, target_directory};

const CRATES: &[&str] = &[
    "memferry",
    "memferry-dsa",
    "memferry-dsa-emulator",
    "memferry-schedule",
    "memferry-query",
    "memferry-emulate",
];

/// What to do with the lists.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Print,
    Write,
    Check,
}

/// Prints the API of the named crates, or of all; `--write` keeps the lists in `docs/api`, `--check` compares with those.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let (mode, names) = match arguments.split_first() {
        Some((option, names)) if option == "--write" => (Mode::Write, names),
        Some((option, names)) if option == "--check" => (Mode::Check, names),
        _ => (Mode::Print, arguments),
    };
    let mut chosen = names.iter().map(String::as_str).collect::<Vec<_>>();
    if let Some(unknown) = chosen.iter().find(|name| !CRATES.contains(name)) {
        return Err(Failure(format!("{unknown} is not a library crate; choose from {}", CRATES.join(", "))));
    }
    if chosen.is_empty() {
        chosen = CRATES.to_vec();
    }
    let mut changed = Vec::new();
    for name in chosen {
        let api = api(name)?;
        let file = root().join("docs/api").join(format!("{name}.txt"));
        match mode {
            Mode::Print => print!("{api}"),
            Mode::Write => write(&file, &api)?,
            Mode::Check => {
                changed.extend(difference(name, &fs::read_to_string(&file).unwrap_or_default(), &api))
            }
        }
        eprintln!("{name}: {} public names", names_count(&api));
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "docs/api differs from the public API; if the change is intended, run `cargo xtask api --write`:\n{}",
        changed.concat()
    )))
}

fn api(name: &str) -> Result<String, Failure> {
    let tools = shell::cache("tools")?.join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(tools).chain(std::env::split_paths(&path)))
        .map_err(|error| Failure(format!("cannot extend PATH: {error}")))?;
    let mut command = nightly();
    command
        .env("PATH", path)
        .env("CARGO_TARGET_DIR", target_directory().join("api"))
        .args(["public-api", "-sss", "--package", name])
        .stderr(Stdio::inherit());
    eprintln!("$ {command:?}");
    let output = command.output().map_err(|error| Failure(format!("cannot run cargo: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Failure(format!(
        "cargo public-api failed for {name} ({}), see above; `cargo xtask setup` installs it",
        output.status
    )))
}

fn write(file: &Path, api: &str) -> Result<(), Failure> {
    let written = fs::create_dir_all(root().join("docs/api")).and_then(|()| fs::write(file, api));
    written.map_err(|error| Failure(format!("cannot write {}: {error}", file.display())))
}

/// Lines that only one of the lists has, or none.
fn difference(name: &str, kept: &str, now: &str) -> Option<String> {
    let (kept, now): (BTreeSet<&str>, BTreeSet<&str>) = (kept.lines().collect(), now.lines().collect());
    let gone = kept.difference(&now).map(|line| format!("-{line}\n"));
    let new = now.difference(&kept).map(|line| format!("+{line}\n"));
    let lines: String = gone.chain(new).collect();
    (!lines.is_empty()).then(|| format!("{name}:\n{lines}"))
}

/// Counts types, functions, traits, constants, macros and modules: not methods, fields, variants or implementations, nor types
/// of other crates that implement a trait.
fn names_count(api: &str) -> usize {
    // The first line is the crate.
    let own = api.lines().find_map(Item::of).map_or("", |item| item.path);
    let is_own = |item: &Item<'_>| item.path.split("::").next() == Some(own);
    let items: Vec<Item<'_>> = api.lines().filter_map(Item::of).filter(is_own).collect();
    // A function or constant whose parent is a type or a trait is a member of it.
    let types: BTreeSet<&str> = items
        .iter()
        .filter(|item| !matches!(item.kind, "fn" | "const" | "mod"))
        .map(|item| item.path)
        .collect();
    let is_member = |path: &str| path.rsplit_once("::").is_some_and(|(parent, _)| types.contains(parent));
    items.iter().map(|item| item.path).filter(|path| !is_member(path)).collect::<BTreeSet<_>>().len()
}

/// A line of the list that names an item.
struct Item<'a> {
    kind: &'a str,
    path: &'a str,
}

impl<'a> Item<'a> {
    fn of(line: &'a str) -> Option<Item<'a>> {
        const KINDS: [&str; 10] =
            ["struct", "enum", "union", "trait", "type", "fn", "const", "static", "mod", "macro"];
        let mut kind = None;
        // Attributes such as #[non_exhaustive] come first.
        let line = if line.starts_with("#[") { line.split_once("] ")?.1 } else { line };
        for word in line.strip_prefix("pub ")?.split(' ') {
            if KINDS.contains(&word) {
                kind = Some(word);
            } else if !matches!(word, "unsafe" | "async" | "extern" | "mut") && !word.starts_with('"') {
                let end = word.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
                return Some(Item {
                    kind: kind?,
                    path: word[..end.unwrap_or(word.len())].trim_end_matches(':'),
                });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const API: &str = "\
pub mod a
pub mod a::b
#[non_exhaustive] pub enum a::b::Kind
pub a::b::Kind::One
pub const a::b::LIMIT: usize
pub struct a::Copy<'a, T: core::marker::Copy>
pub a::Copy::bytes: u64
impl<'a, T: core::marker::Copy> a::Copy<'a, T>
pub const a::Copy::MAX: u64
pub const fn a::Copy::new(bytes: u64) -> Self
pub unsafe fn a::raw(at: *mut u8)
pub trait a::Engine: core::marker::Send
pub fn a::Engine::copy(&self)
pub type a::Short = a::Copy<'static, u8>
pub macro a::check!
impl<T> a::Engine for alloc::boxed::Box<T>
pub fn alloc::boxed::Box<T>::copy(&self)
";

    #[test]
    fn members_are_not_counted() {
        // a, b, Kind, LIMIT, Copy, raw, Engine, Short, check.
        assert_eq!(names_count(API), 9);
        let first = Item::of("pub struct a::Copy<'a, T: core::marker::Copy>").unwrap();
        assert_eq!((first.kind, first.path), ("struct", "a::Copy"));
    }

    #[test]
    fn differences_are_lines() {
        assert_eq!(difference("x", "a\nb\n", "b\na\n"), None);
        assert_eq!(difference("x", "a\nb\n", "b\nc\n").as_deref(), Some("x:\n-a\n+c\n"));
    }

    #[test]
    fn unknown_crates_are_refused() {
        let error = run(&["--check".to_owned(), "xtask".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("xtask is not a library crate") && error.contains("memferry-dsa"), "{error}");
    }
}
