//! The test suite of redis, with the installed server under the library.
//!
//! `cargo xtask setup` installs the server and keeps its source package, which has the tests. They run once more without the
//! library, and both runs must agree in each test: a distribution's patches may break a test.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memferry_testing::{Needs, skip};

use crate::common::{device_bytes_of, has_emulation, is_installed, offload, seeds, text};

/// Those with large values, forks and files, whose results do not depend on the speed of the machine.
const UNITS: [&str; 7] = [
    "unit/type/string",
    "unit/type/list-2",
    "unit/protocol",
    "unit/bitops",
    "unit/querybuf",
    "unit/sort",
    "integration/rdb",
];
/// Tests of later versions of redis, which patches of Debian 12 have added. They fail without the library, too: the server
/// refuses their file format and their settings.
const LATER: [&str; 3] = [
    "RESTORE fail with invalid payload size",
    "corrupt payload: stream - duplicated consumer PEL entry",
    "/Fullsync should not free scripting engine", // a pattern
];
/// The programs that the tests expect in the directory `src`.
const PROGRAMS: [&str; 5] =
    ["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"];

/// The source package. If it or a program is missing, the calling test is skipped.
fn source() -> Option<PathBuf> {
    if !PROGRAMS.into_iter().all(is_installed) || !is_installed("tclsh") {
        return None;
    }
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    let source = cache.join("memferry/redis/source");
    if !source.join("runtest").is_file() {
        skip(
            Needs::Program("redis' source"),
            format!("{} is missing; `cargo xtask setup` fetches it", source.display()),
        );
        return None;
    }
    Some(source)
}

/// A directory for one run: the suite writes into its own.
fn suite(source: &Path) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let tests =
        Command::new("cp").arg("-r").arg(source.join("tests")).arg(directory.path()).output().unwrap();
    assert!(tests.status.success(), "{}", text(&tests));
    for entry in fs::read_dir(source).unwrap().map(|entry| entry.unwrap()) {
        if entry.file_name() != "tests" && entry.file_name() != "src" {
            symlink(entry.path(), directory.path().join(entry.file_name())).unwrap();
        }
    }
    fs::create_dir(directory.path().join("src")).unwrap();
    for program in PROGRAMS {
        let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().unwrap();
        symlink(text(&found).trim(), directory.path().join("src").join(program)).unwrap();
    }
    directory
}

/// The command of the suite with `selection`, at ports of this process.
fn program(selection: &[&str]) -> Vec<String> {
    // Below those that Linux gives to clients.
    let port = 20_000 + std::process::id() % 10 * 1000;
    let ports = format!("--baseport {port} --portcount 1000 --clients 2");
    let words = ["./runtest"].into_iter().chain(ports.split(' ')).chain(selection.iter().copied());
    words.map(str::to_owned).collect()
}

fn words(program: &[String]) -> Vec<&str> {
    program.iter().map(String::as_str).collect()
}

/// The verdict on each test, such as `[ok]: SET and GET an item`.
fn verdicts(output: &Output) -> BTreeSet<String> {
    let text = plain(&text(output));
    assert!(text.contains("The End"), "{text}");
    let is_verdict = |line: &&str| ["[ok]", "[err]", "[exception]"].iter().any(|word| line.starts_with(word));
    // Without the time of the test, and the place of a failed one.
    let name = |line: &str| line.split(" in tests/").next().unwrap_or(line).to_owned();
    let verdicts = text.lines().filter(is_verdict).map(|line| match line.rsplit_once(" (") {
        Some((before, time)) if time.ends_with(" ms)") => name(before),
        _ => name(line),
    });
    let verdicts: BTreeSet<String> = verdicts.collect();
    let good = verdicts.iter().filter(|verdict| verdict.starts_with("[ok]")).count();
    assert!(good > 100 && good * 100 > verdicts.len() * 98, "{text}");
    verdicts
}

/// A text without the sequences that set colours.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[test]
fn the_test_suite_has_the_same_results() {
    let Some(source) = source() else { return };
    let program = program(&UNITS.map(|unit| ["--single", unit]).concat());
    let program = words(&program);
    let run = |command: &mut Command| {
        let directory = suite(&source);
        verdicts(&command.current_dir(directory.path()).output().unwrap())
    };
    let without = run(Command::new(program[0]).args(&program[1..]));
    let directory = tempfile::tempdir().unwrap();
    let compare = |devices: &str| {
        let summary = directory.path().join("summary");
        let _ = fs::remove_file(&summary);
        let options = format!("{devices} --summary {}", summary.display());
        let with = run(&mut offload(&options, &program));
        let changed: Vec<_> = with.symmetric_difference(&without).collect();
        assert!(changed.is_empty(), "{devices}: {changed:?}");
        device_bytes_of("redis-server", &summary)
    };
    compare("");
    if has_emulation() {
        for seed in seeds(40) {
            let moved = compare(&format!("--emulated {seed} --threshold 20000"));
            assert_ne!(moved, 0, "seed {seed}");
        }
    }
}

/// Once, without a device.
#[test]
#[ignore = "takes 6 to 12 minutes"]
fn the_whole_test_suite_passes() {
    let Some(source) = source() else { return };
    let program = program(&LATER.map(|test| ["--skiptest", test]).concat());
    let directory = suite(&source);
    let mut command = offload("", &words(&program));
    let output = command.current_dir(directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", plain(&text(&output)));
    assert!(plain(&text(&output)).contains("All tests passed without errors!"));
    assert!(verdicts(&output).len() > 2500);
}

#[test]
fn colours_are_removed() {
    assert_eq!(plain("[\x1b[0;32;49mok\x1b[0m]: a\nb"), "[ok]: a\nb");
}
