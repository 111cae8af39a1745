//! Tells the program which commit it is built from, because benchmark records name it.

use std::path::Path;
use std::process::Command;

/// The sources of the program; changes elsewhere (documents, results) do not make a commit "dirty".
const SOURCES: [&str; 3] = ["Cargo.lock", "Cargo.toml", "crates"];

fn main() {
    // Read at run time: in a target directory of several checkouts, the build script may be from another checkout.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it for build scripts");
    let root = Path::new(&package).join("../..");
    for source in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }
    // Changes with every commit and checkout. Absent outside a git checkout, where the commit is unknown.
    let log = root.join(".git/logs/HEAD");
    if log.exists() {
        println!("cargo::rerun-if-changed={}", log.display());
    }
    println!("cargo::rustc-env=MEMFERRY_COMMIT={}", commit(&root).unwrap_or_else(|| "unknown".to_owned()));
}

fn commit(root: &Path) -> Option<String> {
    let hash = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(root, &[&["status", "--porcelain", "--"], &SOURCES[..]].concat())?;
    Some(if changes.is_empty() { hash } else { format!("{hash}-dirty") })
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
