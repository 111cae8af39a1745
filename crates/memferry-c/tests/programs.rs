//! C and C++ programs against the shared library: the examples and `programs/`, with the compilers and checkers that this
//! machine has.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memferry_testing::{Needs, skip};

const C: &[&str] =
    &["examples/example.c", "examples/operations.c", "examples/cache.c", "tests/programs/misuse.c"];
const CPP: &[&str] = &["examples/pipeline.cpp", "examples/await.cpp"];
const WARNINGS: &[&str] = &["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-O1"];

/// An installation of the library in a temporary directory.
struct Installed {
    directory: tempfile::TempDir,
}

impl Installed {
    fn new() -> Installed {
        let directory = tempfile::tempdir().unwrap();
        // Cargo builds the shared library beside the tests.
        let tests = std::env::current_exe().unwrap();
        let built = tests.with_file_name("libmemferry_c.so");
        assert!(built.is_file(), "there is no {}", built.display());
        let version = env!("CARGO_PKG_VERSION");
        let (minor, _) = version.rsplit_once('.').unwrap();
        for name in ["libmemferry.so".to_owned(), format!("libmemferry.so.{minor}")] {
            symlink(&built, directory.path().join(name)).unwrap();
        }
        Installed { directory }
    }

    fn compile(&self, compiler: &str, source: &str, options: &[&str]) -> PathBuf {
        let source = package().join(source);
        let program = self.directory.path().join(source.file_stem().unwrap());
        let mut command = Command::new(compiler);
        command.args(WARNINGS).args(options).arg("-I").arg(package().join("include")).arg(&source).arg("-o");
        command.arg(&program).arg("-L").arg(self.directory.path()).args(["-lmemferry", "-lpthread"]);
        succeed(&mut command);
        program
    }

    fn run(&self, program: impl AsRef<OsStr>, arguments: &[&OsStr]) -> Output {
        succeed(Command::new(program).args(arguments).env("LD_LIBRARY_PATH", self.directory.path()))
    }
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// Whether a program is there; says so if not.
fn has(program: &'static str) -> bool {
    let is_here = Command::new(program).arg("--version").output().is_ok();
    if !is_here {
        skip(Needs::Program(program), format!("{program} is missing; run `cargo xtask setup`"));
    }
    is_here
}

fn programs_run_with(c: &'static str, cpp: &'static str) {
    let installed = Installed::new();
    for source in C.iter().filter(|_| has(c)) {
        installed.run(installed.compile(c, source, &["-std=c11"]), &[]);
    }
    for source in CPP.iter().filter(|_| has(cpp)) {
        installed.run(installed.compile(cpp, source, &["-std=c++20"]), &[]);
    }
}

#[test]
fn programs_run_with_gcc() {
    programs_run_with("gcc", "g++");
}

#[test]
fn programs_run_with_clang() {
    programs_run_with("clang", "clang++");
}

/// Finds accesses of the library to freed memory of the programs, and leaks of both. It checks the library's machine
/// code, so that of Rust, too.
#[test]
fn programs_run_under_valgrind() {
    if !has("gcc") || !has("g++") || !has("valgrind") {
        return;
    }
    let installed = Installed::new();
    let c = C.iter().map(|source| installed.compile("gcc", source, &["-std=c11"]));
    let cpp = CPP.iter().map(|source| installed.compile("g++", source, &["-std=c++20"]));
    let options =
        ["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"].map(OsStr::new);
    for program in c.chain(cpp) {
        // The argument: no forks.
        let arguments: Vec<&OsStr> =
            options.into_iter().chain([program.as_os_str(), OsStr::new("1")]).collect();
        installed.run("valgrind", &arguments);
    }
}

/// AddressSanitizer in the programs: it checks them, and the calls that the library makes of the C library.
#[test]
fn programs_run_under_asan() {
    if !has("gcc") || !has("g++") {
        return;
    }
    let installed = Installed::new();
    let sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for (compiler, standard, sources) in [("gcc", "-std=c11", C), ("g++", "-std=c++20", CPP)] {
        for source in sources {
            let program = installed.compile(compiler, source, &[&[standard], &sanitized[..]].concat());
            installed.run(program, &[OsStr::new("1")]);
        }
    }
}

/// Each function of the header is in the shared library, and each exported `mf_` function in the header.
#[test]
fn header_and_library_have_the_same_functions() {
    if !has("nm") {
        return;
    }
    let installed = Installed::new();
    let library = installed.directory.path().join("libmemferry.so");
    let output = succeed(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(library));
    let names = String::from_utf8(output.stdout).unwrap();
    let mut exported: Vec<&str> = names.split_whitespace().filter(|name| name.starts_with("mf_")).collect();
    let header = std::fs::read_to_string(package().join("include/memferry.h")).unwrap();
    let code: String = header.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let words = code.split(|letter: char| !letter.is_alphanumeric() && letter != '_' && letter != '(');
    let called = words.filter_map(|word| word.split_once('(')).map(|(name, _)| name);
    let mut declared: Vec<&str> = called.filter(|name| name.starts_with("mf_")).collect();
    exported.sort_unstable();
    declared.sort_unstable();
    // A comment at the top names one more time.
    declared.dedup();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(exported, declared);
}
