//! `cargo xtask setup`: installs the missing programs that chores need, with apt-get, rustup, cargo and pip.

use std::fs;

use crate::redis;
use crate::shell::{self, Failure, cargo, nightly, program};

/// Program (a name in PATH, or a path), package of Debian and Ubuntu, purpose.
const NEEDS: &[(&str, &str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86", "the NUMA guest"),
    ("zstd", "zstd", "unpacking the guest's kernel"),
    ("xz", "xz-utils", "unpacking the modules of the guest's kernel"),
    ("ldd", "libc-bin", "programs in the guest"),
    ("/usr/sbin/mkfs.ext4", "e2fsprogs", "a guest with persistent memory"),
    ("accel-config", "accel-config", "tests of emulated devices with a real client"),
    (
        "/usr/libexec/accel-config/test/dsa_test",
        "accel-config-test",
        "tests of emulated devices with the vendor's own tests",
    ),
    ("dpdk-test", "dpdk-dev", "tests of emulated devices with DPDK"),
    ("chromium", "chromium", "tests of the report's page"),
    ("g++", "g++", "building libFuzzer, and tests of the C library"),
    ("gcc", "gcc", "tests of the C library"),
    ("clang", "clang", "tests of the C library"),
    ("valgrind", "valgrind", "tests of the C library"),
    ("cmake", "cmake", "tests of the C library"),
    ("pkg-config", "pkg-config", "tests of the C library"),
    ("python3", "python3", "tests of emulated devices with Python's file functions"),
    ("dpkg-shlibdeps", "dpkg-dev", "making the Debian package"),
    ("strip", "binutils", "making packages"),
    ("man", "man-db", "tests of the manual pages"),
    ("setpci", "pciutils", "tests of emulated devices with the tools of PCI"),
    ("sqlite3", "sqlite3", "tests of `memferry offload`"),
    ("git", "git", "tests of `memferry offload`"),
    ("/usr/bin/python3", "python3", "CPython's tests under `memferry offload`"),
    ("redis-server", "redis-server", "tests and the benchmark of `memferry offload`"),
    ("redis-benchmark", "redis-tools", "tests and the benchmark of `memferry offload`"),
    ("tclsh", "tcl", "the test suite of redis"),
    ("psql", "postgresql-client", "a client of `bench sncdb`"),
    ("javac", "default-jdk-headless", "a client of `memferry serve`"),
    ("mvn", "maven", "fetching the JDBC driver of a client of `memferry serve`"),
];

/// The version that the fuzz targets were last tried with.
const CARGO_FUZZ: [&str; 5] = ["install", "cargo-fuzz", "--version", "0.13.2", "--locked"];

/// Tools for one chore each, installed by cargo below the cache directory: name, version. A version of cargo-public-api
/// reads the rustdoc JSON of a range of nightlies.
const TOOLS: &[(&str, &str)] = &[("cargo-warloc", "0.1.1"), ("cargo-public-api", "0.52.0")];

/// Python packages of other engines, for `memferry bench --peers PYTHON`.
const PEERS: &[&str] = &["datafusion==55.0.0", "duckdb==2.0.0", "polars==2.1.0", "pyarrow==26.0.1"];

/// Python packages that build the Python package, that its tests exchange tables with, and a client of `memferry serve`.
const PYTHON: &[&str] = &[
    "maturin==1.16.0",
    "pytest==9.2.0",
    "numpy==2.4.6",
    "pandas==3.1.1",
    "datafusion==55.0.0",
    "polars==2.1.0",
    "pyarrow==26.0.1",
    "adbc-driver-flightsql==1.13.0",
];

pub(crate) fn run() -> Result<(), Failure> {
    packages()?;
    tests_of_python()?;
    redis::fetch()?;
    jdbc_driver()?;
    environment("peers", PEERS, "`memferry bench --peers ~/.cache/memferry/peers/bin/python`")?;
    environment("python", PYTHON, "building and testing the Python package")?;
    if !nightly().arg("--version").output().is_ok_and(|output| output.status.success()) {
        eprintln!("nightly Rust is missing, for the sanitizers and fuzzing");
        program("rustup").args(["toolchain", "install", "nightly", "--profile", "minimal"]).run()?;
    }
    if !nightly().args(["fuzz", "--version"]).output().is_ok_and(|output| output.status.success()) {
        eprintln!("cargo-fuzz is missing");
        cargo(CARGO_FUZZ).run()?;
    }
    for (name, version) in TOOLS {
        if shell::tool(name).is_err() {
            eprintln!("{name} is missing");
            let directory = shell::cache("tools")?;
            cargo(["install", name, "--version", version, "--locked", "--root"]).args([directory]).run()?;
        }
    }
    Ok(())
}

/// Installs the test suite of the distribution's Python, whose package has the version in its name.
fn tests_of_python() -> Result<(), Failure> {
    const PYTHON: &str = "/usr/bin/python3";
    let import = "import test.test_bytes, test.test_mmap, test.test_array";
    if program(PYTHON).args(["-c", import]).output().is_ok() {
        return Ok(());
    }
    let version =
        program(PYTHON).args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).output()?;
    eprintln!("CPython's tests are missing (for tests of `memferry offload`)");
    install(&[&format!("libpython{}-testsuite", version.trim())])
}

/// Fetches the JDBC driver of Arrow Flight SQL into the cache directory, unless it is there.
fn jdbc_driver() -> Result<(), Failure> {
    /// The version that the client was last tried with.
    const VERSION: &str = "18.3.0";
    const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy";
    let directory = shell::cache("jdbc")?;
    let (driver, version) = (directory.join("flight-sql-jdbc-driver.jar"), directory.join("version"));
    if driver.is_file() && fs::read_to_string(&version).is_ok_and(|kept| kept == VERSION) {
        return Ok(());
    }
    eprintln!("the JDBC driver of Arrow Flight SQL is missing, for a client of `memferry serve`");
    program("mvn")
        .args(["-q", COPY, "-Dmdep.stripVersion=true"])
        .args([format!("-Dartifact=org.apache.arrow:flight-sql-jdbc-driver:{VERSION}")])
        .args([format!("-DoutputDirectory={}", directory.display())])
        .run()?;
    let failed = |error| Failure(format!("cannot write {}: {error}", version.display()));
    fs::write(&version, VERSION).map_err(failed)
}

/// Makes a Python environment in the cache directory.
fn environment(name: &str, packages: &[&str], purpose: &str) -> Result<(), Failure> {
    let directory = shell::cache(name)?;
    let pip = directory.join("bin/pip").display().to_string();
    let installed =
        if shell::is_installed(&pip) { program(&pip).arg("freeze").output()? } else { String::new() };
    if packages.iter().all(|package| installed.lines().any(|line| line == *package)) {
        return Ok(());
    }
    eprintln!("Python packages are missing, for {purpose}: {}", packages.join(", "));
    if program("python3").args(["-c", "import ensurepip"]).run().is_err() {
        install(&["python3-venv"])?;
    }
    program("python3").args(["-m", "venv"]).args([&directory]).run()?;
    program(&pip).args(["install", "--quiet", "--disable-pip-version-check"]).args(packages).run()
}

fn packages() -> Result<(), Failure> {
    let missing: Vec<_> = NEEDS.iter().filter(|(program, ..)| !shell::is_installed(program)).collect();
    if missing.is_empty() {
        eprintln!("no package is missing");
        return Ok(());
    }
    for (program, package, purpose) in &missing {
        eprintln!("{program} is missing (for {purpose}); the package {package} has it");
    }
    install(&missing.iter().map(|(_, package, _)| *package).collect::<Vec<_>>())
}

/// Installs packages of Debian and Ubuntu.
fn install(packages: &[&str]) -> Result<(), Failure> {
    let by_hand = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !shell::is_installed("apt-get") {
        let packages = packages.join(", ");
        return Err(Failure(format!(
            "apt-get is missing; install the packages of your distribution for {packages}"
        )));
    }
    // SAFETY: geteuid takes no arguments and cannot fail.
    #[allow(unsafe_code, reason = "std has no function for the user id")]
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        return Err(Failure(format!("only root may install packages; run `sudo {by_hand}`")));
    }
    let apt = || program("apt-get").env("DEBIAN_FRONTEND", "noninteractive");
    apt().args(["-q", "update"]).run()?;
    apt().args(["-q", "install", "--yes", "--no-install-recommends"]).args(packages).run()
}
