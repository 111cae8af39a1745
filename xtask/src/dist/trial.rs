//! The step of CI: makes the packages of the development build, unpacks them into empty directories, and uses them from there.

use std::path::Path;

use serde_json::Value;

use super::{Made, Options, make, sbom};
use crate::files::{empty_directory, files_below, read};
use crate::shell::{Failure, program, target_directory};

pub(crate) fn run() -> Result<(), Failure> {
    let directory = target_directory().join("ci/dist");
    empty_directory(&directory)?;
    let out = directory.join("out");
    let Made { package, archive, bill } = make(&Options { profile: "dev".to_owned(), out: out.clone() })?;
    program("sha256sum").directory(&out).args(["--check", "--quiet", "SHA256SUMS"]).run()?;
    try_bill(&read(&bill)?)?;

    let root = directory.join("root");
    let control = directory.join("control");
    program("dpkg-deb").arg("--extract").args([&package, &root]).run()?;
    program("dpkg-deb").arg("--control").args([&package, &control]).run()?;
    let sums = control.join("md5sums");
    program("md5sum").directory(&root).args(["--check", "--quiet"]).args([&sums]).run()?;
    let fields = program("dpkg-deb").arg("--field").args([&package]).args(["Depends"]).output()?;
    expect(&fields, &["libc6 (>= "])?;
    let usr = root.join("usr");
    try_installed(&usr)?;
    try_pages(&usr.join("share/man/man1"))?;

    let usr = directory.join("archive/usr/local");
    empty_directory(&usr)?;
    program("tar")
        .args(["--strip-components=1", "--extract", "--file"])
        .args([&archive])
        .arg("--directory")
        .args([&usr])
        .run()?;
    try_installed(&usr)?;
    try_static(&usr.join("bin/memferry"), &directory.join("archive"))
}

/// Uses what is below a prefix such as `usr`.
fn try_installed(usr: &Path) -> Result<(), Failure> {
    let command = usr.join("bin/memferry").display().to_string();
    let memferry = |arguments: &[&str]| program(&command).args(arguments).directory(usr).output();
    expect(&memferry(&["--version"])?, &[concat!("memferry ", env!("CARGO_PKG_VERSION"))])?;
    expect(&memferry(&["sql", "select 20 + 1 as answer"])?, &["answer", "21"])?;
    expect(
        &memferry(&["emulate", "--", "accel-config", "list"])?,
        &["\"dev\":\"dsa0\"", "\"state\":\"enabled\""],
    )?;
    // Needs the embedded preload library: this program maps queues.
    let checks =
        ["emulate", "--", "/usr/libexec/accel-config/test/dsa_test", "-w", "0", "-l", "4096", "-o", "3"];
    memferry(&checks)?;
    // 3 and 4: the doctor finds something on this machine.
    let doctor = program("sh").args(["-c", "\"$0\" doctor || test $? -ge 3", &command]).output()?;
    expect(&doctor, &["Kernel", "Linux"])?;

    let libraries = files_below(&usr.join("lib/memferry"))?;
    if libraries.is_empty() {
        return Err(Failure(format!("{} has no library", usr.join("lib/memferry").display())));
    }
    for library in libraries {
        expect(&program("readelf").arg("--dynamic").args([&library]).output()?, &["NEEDED", "libc.so.6"])?;
        let maps = program("cat").env("LD_PRELOAD", &library).arg("/proc/self/maps").output()?;
        expect(&maps, &[&library.to_string_lossy()])?;
    }
    try_completions(&usr.join("share/bash-completion/completions/memferry"))
}

/// Asks bash to complete `memferry topo`.
fn try_completions(script: &Path) -> Result<(), Failure> {
    let complete = "set -eu; source \"$0\"; complete -p memferry; COMP_WORDS=(memferry topo); COMP_CWORD=1; \
                    _memferry memferry topo memferry; echo \"reply: ${COMPREPLY[*]}\"";
    let reply = program("bash").args(["-c", complete]).args([script]).output()?;
    expect(&reply, &["complete ", "reply: topology\n"])
}

/// Formats each page. troff prints what it does not understand on standard error.
fn try_pages(directory: &Path) -> Result<(), Failure> {
    let sh = |script: &str| {
        let sh = program("sh").args(["-c", script]).directory(directory);
        sh.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80").output()
    };
    let complaints = sh(
        "for page in *; do man --warnings --local-file ./$page 2>&1 >/dev/null | sed \"s/^/$page: /\"; done",
    )?;
    if !complaints.is_empty() {
        return Err(Failure(format!("man does not understand the pages:\n{complaints}")));
    }
    // man justifies lines: there may be several spaces between two words.
    let main = sh("man --local-file ./memferry.1.gz | tr --squeeze-repeats ' '")?;
    expect(&main, &["NAME", "SYNOPSIS", "memferry-topology(1)", "NOTES", "Exit status"])
}

/// Runs the command where there is no other file.
fn try_static(command: &Path, root: &Path) -> Result<(), Failure> {
    let headers = program("readelf").args(["--program-headers", "--dynamic"]).args([command]).output()?;
    for dynamic in ["INTERP", "NEEDED"] {
        if headers.contains(dynamic) {
            return Err(Failure(format!("the command of the archive is not static: it has {dynamic}")));
        }
    }
    let alone = program("unshare").args(["--map-root-user", "--root"]).args([root]).args([
        "/usr/local/bin/memferry",
        "topology",
        "--profile",
        "xeon-max-9468-2s-flat",
    ]);
    expect(&alone.output()?, &["socket 1", "HBM"])
}

fn try_bill(text: &str) -> Result<(), Failure> {
    let bill: Value = serde_json::from_str(text)
        .map_err(|error| Failure(format!("the bill of materials is not JSON: {error}")))?;
    sbom::check(&bill)?;
    let names: Vec<&str> =
        bill["components"].as_array().into_iter().flatten().filter_map(|it| it["name"].as_str()).collect();
    for name in ["datafusion", "zstd-sys", "memferry-dsa", "memferry-emulate-preload", "rust-std"] {
        if !names.contains(&name) {
            return Err(Failure(format!("the bill of materials lacks {name}")));
        }
    }
    // Of tests, of macros, of another feature.
    for name in ["proptest", "memferry-testing", "syn", "moka", "pyo3"] {
        if names.contains(&name) {
            return Err(Failure(format!("the bill of materials has {name}, which is not in the command")));
        }
    }
    Ok(())
}

fn expect(text: &str, words: &[&str]) -> Result<(), Failure> {
    match words.iter().find(|word| !text.contains(*word)) {
        None => Ok(()),
        Some(word) => Err(Failure(format!("{word:?} is not in:\n{text}"))),
    }
}
