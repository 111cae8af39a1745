//! The tests that skipped all or a part of their work: their tally, and the list of allowed skips.
//!
//! Tests append to [`file()`] through the crate memferry-testing; skips in a guest come from its console. A skip that is
//! not on the list below fails CI, so that no test stops running unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use memferry_testing::{FILE_VARIABLE, Needs};

use crate::binaries::{self, Binary};
use crate::shell::{Failure, target_directory};

/// The allowed skips: test and class. A test is `BINARY::TEST`, in a guest `PROFILE/BINARY::TEST`; one `*` matches any
/// text.
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
    ("*/numa_memory::a_node_that_is_already_full_is_an_answer", Needs::Nodes),
    ("*/numa_placement::a_node_that_is_already_full_refuses_a_move", Needs::Nodes),
    // In a guest, a node may be too small for the largest mapping or have no page left when it is full, and memory too
    // fragmented for huge pages.
    ("*/numa_memory::bound_pages_lie_on_their_node", Needs::Memory),
    ("*/numa_memory::a_tail_needs_no_more_than_it_takes", Needs::Memory),
    ("*/numa_memory::interleaved_pages_take_turns", Needs::HugePages),
    ("*/numa_memory::rebinding_moves_pages_and_keeps_content", Needs::HugePages),
    // Five tries may all lose a race against the kernel.
    ("*/numa_memory::a_node_that_fills_up_meanwhile_is_an_answer", Needs::Root),
    // Virtual machines rarely have UMWAIT. Other tests cover the loop around it with a fake.
    ("integration::waits::every_wait_returns", Needs::Instruction("UMWAIT")),
    // Temporary files lie on disks or in memory. The guest with persistent memory runs these tests, and the other half of
    // the first one runs everywhere.
    ("dax_replica::a_mapping_needs_dax", Needs::Kernel("DAX")),
    ("dax_replica::the_memory_lies_at_the_node_of_its_layout", Needs::Guest),
    // Sandboxes and virtual machines may forbid counters of whole CPUs.
    (
        "*telemetry::perf_event::tests::the_clock_of_a_cpu_counts_nanoseconds",
        Needs::Kernel("perf_event_open on a CPU"),
    ),
    // Entry point of processes that other tests start.
    ("shared::child", Needs::Consent),
    ("numa_place::child", Needs::Consent),
    // The kernel of the guests may be older than Linux 6.9.
    ("*/numa_place::the_kernel_interleaves_by_its_weights", Needs::Kernel("weighted interleaving")),
    // Too slow for an emulated CPU, too large for a small machine. CONTRIBUTING.md says how to run them.
    ("numa_cli::a_calibration_of_all_nodes_is_a_profile_for_reports", Needs::Consent),
    ("tpch::published_answers_of_scale_1", Needs::Consent),
    ("integration::redis::the_whole_test_suite_passes", Needs::Consent),
];

/// The file that tests of this run append to.
pub(crate) fn file() -> PathBuf {
    target_directory().join("ci/skipped-tests")
}

/// Empties the file.
pub(crate) fn begin() -> Result<(), Failure> {
    let file = file();
    let directory = file.parent().expect("the path has two components");
    let made = std::fs::create_dir_all(directory).and_then(|()| std::fs::write(&file, ""));
    made.map_err(|error| Failure(format!("cannot write {}: {error}", file.display())))
}

/// Copies a skip from a line of a guest's console to the file, which the guest cannot reach.
pub(crate) fn take_from_console(profile: &str, line: &str) {
    if let (Some(skip), Some(file)) = (line.strip_prefix("skipped: "), std::env::var_os(FILE_VARIABLE)) {
        let opened = File::options().append(true).open(file);
        let written = opened.and_then(|mut file| file.write_all(format!("{profile}/{skip}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("cannot write the file of {FILE_VARIABLE}: {error}"));
    }
}

/// Prints the tally. `selections` are the arguments of the test steps; their tests with `#[ignore]` count as skipped.
///
/// # Errors
/// A skip is not on the list.
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
        "skipped tests that are not listed in xtask/src/skips.rs:\n  {}\nMake them run, or list them with the reason; \
         {} has their full messages",
        unlisted.join("\n  "),
        file.display()
    )))
}

/// Pairs of test and class, each once: a test may run in several steps and skip several times.
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
        skips.map(Skips).map_err(|line| Failure(format!("the line of a skipped test has no class: {line}")))
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

/// The tests with `#[ignore]` in the selected packages, built with the options of their step.
fn ignored(selection: &[&str]) -> Result<Vec<String>, Failure> {
    let mut tests = Vec::new();
    for Binary { name, path, .. } in binaries::build(selection)?.iter().filter(|binary| binary.is_test) {
        tests.extend(binaries::tests(path, ["--ignored"])?.iter().map(|test| format!("{name}::{test}")));
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::root;

    /// memferry-testing writes this format.
    #[test]
    fn tally_counts_each_test_once_per_class() {
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
    fn unlisted_skips_are_reported() {
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
            // Another test, another class, a test in a guest.
            "waits::ends_too: needs the instruction UMWAIT",
            "numa_memory::a: needs root",
            "odd-nodes/numa_memory::a: needs several NUMA nodes",
        ] {
            assert_eq!(unlisted(&format!("{line}: why")), [line]);
        }
    }

    /// The compiler says nothing of a file that no module declaration names.
    #[test]
    fn all_integration_tests_are_declared() {
        let crates = std::fs::read_dir(root().join("crates")).unwrap();
        for directory in
            crates.map(|it| it.unwrap().path().join("tests/integration")).filter(|it| it.is_dir())
        {
            let main = std::fs::read_to_string(directory.join("main.rs")).unwrap();
            for file in std::fs::read_dir(&directory).unwrap().map(|it| it.unwrap().path()) {
                let name = file.file_stem().unwrap().to_str().unwrap();
                let is_module = file.is_dir() || file.extension().is_some_and(|it| it == "rs");
                let is_declared = name == "main" || main.contains(&format!("mod {name};"));
                assert!(!is_module || is_declared, "{} is not declared in main.rs", file.display());
            }
        }
    }
}
