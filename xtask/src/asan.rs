//! `cargo xtask asan`: AddressSanitizer and leak detection over the tests of the cache, the mover, pools and the layer
//! below.
//!
//! Engines, devices and guards hold raw pointers, which neither loom nor the borrow checker tracks. Left out are tests of
//! other modules, of forks (a child exits without destructors), of benchmark counts (they have an own allocator), and of
//! the preload library's benchmark (the sanitizer has a memcpy of its own, which is what the preload library looks like).

use crate::sanitizer::{self, Sanitizer, Tests};
use crate::shell::Failure;

/// A lower optimisation level: the build takes half the time.
const LIGHTLY: &str = "profile.dev.package.memferry.opt-level=1";

const RUNS: &[Tests] = &[
    Tests { package: "memferry", targets: &["--lib"], arguments: &["cache::", "mover::", "memory::"] },
    Tests {
        package: "memferry",
        targets: &["--test", "integration"],
        arguments: &["cache_", "mover", "ordered::", "engines::", "--skip", "children_"],
    },
    Tests { package: "memferry-dsa", targets: &["--lib"], arguments: &[] },
    Tests {
        package: "memferry-dsa",
        targets: &["--test", "integration"],
        arguments: &["client::", "driver::"],
    },
    Tests { package: "memferry-dsa-emulator", targets: &["--lib"], arguments: &[] },
    Tests {
        package: "memferry-dsa-emulator",
        targets: &["--test", "integration"],
        arguments: &["batch::", "operations::", "random::"],
    },
    Tests {
        package: "memferry-bench",
        targets: &["--lib", "--test", "cache_measure", "--test", "integration"],
        arguments: &[
            "--skip",
            "every_row_is_measured",
            "--skip",
            "papers::",
            "--skip",
            "calibrate::",
            "--skip",
            "model::",
            "--skip",
            "offload::",
        ],
    },
];

pub(crate) fn run() -> Result<(), Failure> {
    let suppressions = sanitizer::suppressions("asan");
    let asan = Sanitizer {
        name: "asan",
        rust_flags: "-Zsanitizer=address",
        configuration: &[LIGHTLY],
        variables: vec![
            // The standard library has no frame pointers.
            ("ASAN_OPTIONS", "detect_leaks=1:fast_unwind_on_malloc=0".into()),
            ("LSAN_OPTIONS", format!("suppressions={}:print_suppressions=0", suppressions.display()).into()),
        ],
    };
    asan.run(RUNS)
}

#[cfg(test)]
mod tests {
    use crate::{sanitizer, shell};

    /// A renamed test would no longer be excused.
    #[test]
    fn names_of_leaks_are_in_the_sources() {
        let sources = shell::root().join("crates");
        let read = |name| std::fs::read_to_string(sanitizer::suppressions(name)).unwrap();
        let lines = read("asan") + &read("fuzz");
        let names: Vec<&str> = lines.lines().filter_map(|line| line.strip_prefix("leak:")).collect();
        assert!(names.len() > 30, "{names:?}");
        for name in names {
            if name.ends_with(".rs") {
                assert!(sources.join(name).is_file(), "there is no {name}");
                continue;
            }
            let name = name.rsplit("::").next().unwrap_or(name);
            let mut command = std::process::Command::new("grep");
            let found =
                command.args(["--recursive", "--quiet", "--include=*.rs", name]).arg(&sources).status();
            assert!(found.is_ok_and(|status| status.success()), "no source file contains {name}");
        }
    }
}
