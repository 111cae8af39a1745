//! The tests that did not run, or not whole: their tally, and whether each is on the list.
//!
//! Tests append to [`file()`] through the crate memferry-testing; a guest's are read from its console. The list is below: a
//! skip that is not on it fails, so that a test which silently stops running is found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use memferry_testing::{FILE_VARIABLE, Needs};
use serde_json::Value;

use crate::shell::{Failure, cargo, target_directory};

/// Test and class. A test is `BINARY::TEST`, in a guest `PROFILE/BINARY::TEST`; one `*` stands for anything.
const LISTED: &[(&str, Needs)] = &[
    // Machines of continuous integration have one node. The step "NUMA guest" runs these tests.
    ("numa_*", Needs::Nodes),
    ("numa_*", Needs::Guest),
    // A guest has the shape of one machine: a test that needs another shape runs in another guest.
    ("*/numa_cache::eviction_frees_pages_on_the_right_node", Needs::Nodes),
    ("*/numa_cache::a_full_node_answers_with_the_source", Needs::Nodes),
    ("*/numa_memory::balancing_leaves_bound_pages_alone", Needs::Nodes),
    ("*/numa_memory::the_fastest_memory_is_left_when_it_is_full", Needs::Consent),
    ("*/numa_cli::figures_of_another_machine_are_refused", Needs::Nodes),
    // In a guest, a node may be too small for the largest mapping or have no page left when it is full, and memory too
    // fragmented for huge pages.
    ("*/numa_memory::bound_pages_lie_on_their_node", Needs::Memory),
    ("*/numa_memory::a_tail_needs_no_more_than_it_takes", Needs::Memory),
    ("*/numa_memory::interleaved_pages_take_turns", Needs::HugePages),
    ("*/numa_memory::rebinding_moves_pages_and_keeps_content", Needs::HugePages),
    // A race that the kernel may win five times.
    ("*/numa_memory::a_node_that_fills_up_meanwhile_is_an_answer", Needs::Root),
    // Virtual machines rarely have UMWAIT. The loop around it is tested over a fake.
    ("waits::every_wait_returns", Needs::Instruction("UMWAIT")),
    // The entry of processes that other tests start.
    ("shared::child", Needs::Consent),
    // Too slow for an emulated CPU, and too large for a small machine: CONTRIBUTING.md tells how to run them.
    ("numa_cli::a_calibration_of_all_nodes_is_a_profile_for_reports", Needs::Consent),
    ("tables::published_answers_of_scale_1", Needs::Consent),
];

/// The file that tests of this run append to.
pub(crate) fn file() -> PathBuf {
    target_directory().join("ci/skipped-tests")
}

/// Forgets an earlier run.
pub(crate) fn begin() -> Result<(), Failure> {
    let file = file();
    let directory = file.parent().expect("it is joined from two");
    let made = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&file, ""));
    made.map_err(|error| Failure(format!("cannot write {}: {error}", file.display())))
}

/// Takes a skip from a line that a guest's console shows: the guest has no file of ours.
pub(crate) fn take_from_console(profile: &str, line: &str) {
    if let (Some(skip), Some(file)) = (line.strip_prefix("skipped: "), std::env::var_os(FILE_VARIABLE)) {
        let opened = File::options().append(true).open(file);
        let written = opened.and_then(|mut file| file.write_all(format!("{profile}/{skip}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("the file that {FILE_VARIABLE} names: {error}"));
    }
}

/// Prints the tally; an error if a skip is not on the list.
///
/// `selections` are the arguments of the test steps, whose tests with `#[ignore]` count as skipped.
pub(crate) fn check(selections: &[&[&str]]) -> Result<(), Failure> {
    let file = file();
    let text = std::fs::read_to_string(&file)
        .map_err(|error| Failure(format!("cannot read {}: {error}", file.display())))?;
    let mut skips = Skips::parse(&text)?;
    for selection in selections {
        for test in ignored(selection)? {
            skips.0.insert((test, Needs::Consent.to_string()));
        }
    }
    println!("{skips}");
    let unlisted = skips.unlisted(LISTED);
    if unlisted.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "not on the list of xtask/src/skips.rs:\n  {}\nMake them run here, or list them with the reason why they cannot; \
         the whole sentences are in {}",
        unlisted.join("\n  "),
        file.display()
    )))
}

/// Tests and classes, each pair once: a test may run in several steps, and skip in a loop.
#[derive(Debug, PartialEq)]
struct Skips(BTreeSet<(String, String)>);

impl Skips {
    /// Reads lines `TEST: needs CLASS: why`.
    fn parse(text: &str) -> Result<Skips, Failure> {
        let pair = |line: &str| -> Option<(String, String)> {
            let (test, rest) = line.split_once(": needs ")?;
            Some((test.to_owned(), rest.split_once(": ")?.0.to_owned()))
        };
        let pairs = text.lines().map(|line| pair(line).ok_or(line));
        let skips = pairs.collect::<Result<_, _>>();
        skips.map(Skips).map_err(|line| Failure(format!("this line of a skipped test has no class: {line}")))
    }

    fn unlisted(&self, list: &[(&str, Needs)]) -> Vec<String> {
        let is_named = |pattern: &str, test: &str| match pattern.split_once('*') {
            Some((beginning, end)) => test.starts_with(beginning) && test.ends_with(end),
            None => test == pattern,
        };
        let is_listed = |test: &str, class: &str| {
            list.iter().any(|(pattern, needs)| is_named(pattern, test) && needs.to_string() == class)
        };
        let unlisted = self.0.iter().filter(|(test, class)| !is_listed(test, class));
        unlisted.map(|(test, class)| format!("{test}: needs {class}")).collect()
    }
}

/// "12 tests skipped: 8 need a DSA, 4 need root".
impl fmt::Display for Skips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        self.0.iter().for_each(|(_, class)| *counts.entry(class).or_default() += 1);
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let classes = counts.iter().map(|(class, count)| match count {
            1 => format!("1 needs {class}"),
            _ => format!("{count} need {class}"),
        });
        let tests: BTreeSet<&String> = self.0.iter().map(|(test, _)| test).collect();
        match tests.len() {
            0 => write!(f, "no test skipped"),
            1 => write!(f, "1 test skipped: {}", classes.collect::<Vec<_>>().join(", ")),
            count => write!(f, "{count} tests skipped: {}", classes.collect::<Vec<_>>().join(", ")),
        }
    }
}

/// The tests with `#[ignore]` of some packages, which are built as their step has built them.
fn ignored(selection: &[&str]) -> Result<Vec<String>, Failure> {
    let messages = cargo(["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .args(selection)
        .output()
        .map_err(|_| Failure("the tests could not be built, see above".to_owned()))?;
    let mut tests = Vec::new();
    for (name, path) in test_binaries(&messages) {
        let listing = Command::new(&path).args(["--ignored", "--list", "--format", "terse"]).output();
        let listing = listing.map_err(|error| Failure(format!("{}: {error}", path.display())))?;
        let text = String::from_utf8_lossy(&listing.stdout);
        tests.extend(
            text.lines().filter_map(|line| Some(format!("{name}::{}", line.strip_suffix(": test")?))),
        );
    }
    Ok(tests)
}

/// Names and paths in what cargo reports, one JSON object a line.
fn test_binaries(messages: &str) -> Vec<(String, PathBuf)> {
    let objects = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = objects.filter(|object| object["profile"]["test"] == true);
    tests
        .filter_map(|object| {
            let path = Path::new(object["executable"].as_str()?).to_owned();
            Some((object["target"]["name"].as_str()?.to_owned(), path))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The form of the line is shared with the tests that write it.
    #[test]
    fn a_tally_counts_each_test_once_by_class() {
        let skips = Skips::parse(
            "client::a: needs a DSA: there is no /dev/dsa\n\
             client::b: needs a DSA: there is no /dev/dsa\n\
             client::a: needs a DSA: in another step\n\
             users::c: needs root: needs another user: yes\n",
        );
        assert_eq!(skips.unwrap().to_string(), "3 tests skipped: 2 need a DSA, 1 needs root");
        assert_eq!(Skips::parse("").unwrap().to_string(), "no test skipped");
        let error = Skips::parse("skipped").unwrap_err().to_string();
        assert!(error.contains("has no class: skipped"), "{error}");
    }

    #[test]
    fn a_skip_that_is_not_listed_is_found() {
        let list = [
            ("numa_*", Needs::Nodes),
            ("*/numa_memory::b", Needs::HugePages),
            ("waits::ends", Needs::Instruction("UMWAIT")),
        ];
        let unlisted = |line: &str| Skips::parse(line).unwrap().unlisted(&list);
        let none: [&str; 0] = [];
        assert_eq!(unlisted("numa_memory::a: needs several NUMA nodes: one"), none);
        assert_eq!(unlisted("odd-nodes/numa_memory::b: needs huge pages: none"), none);
        assert_eq!(unlisted("waits::ends: needs the instruction UMWAIT: none"), none);
        for line in [
            // Another test, another class, and a guest's.
            "waits::ends_too: needs the instruction UMWAIT",
            "numa_memory::a: needs root",
            "odd-nodes/numa_memory::a: needs several NUMA nodes",
        ] {
            assert_eq!(unlisted(&format!("{line}: why")), [line]);
        }
    }

    #[test]
    fn test_binaries_in_cargos_messages() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"memferry"},"profile":{"test":false},"executable":"/t/memferry"}
{"reason":"compiler-artifact","target":{"name":"waits"},"profile":{"test":true},"executable":"/t/waits-1"}
not JSON"#;
        assert_eq!(test_binaries(messages), [("waits".to_owned(), PathBuf::from("/t/waits-1"))]);
    }
}
