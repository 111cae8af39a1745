//! The notes and the summary, and programs that cannot load the library.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use memferry_testing::{Needs, skip};

use crate::common::{example, is_installed, offload, text};

fn has_device() -> bool {
    let is_there = fs::read_dir("/dev/dsa").is_ok_and(|mut files| files.next().is_some());
    if is_there {
        skip(Needs::NoDsa, "the note is for machines without a DSA");
    }
    is_there
}

#[test]
fn a_missing_device_is_noted_once() {
    if has_device() {
        return;
    }
    let script = "sh -c true; env true; sh -c 'sort /dev/null'; exec sort /dev/null";
    let output = offload("", &["sh", "-c", script]).output().unwrap();
    let told = text(&output);
    assert!(output.status.success());
    assert_eq!(told.matches("no device can be used").count(), 1, "{told}");
}

#[test]
fn the_summary_counts_calls() {
    let calls = example("calls");
    let told = text(&offload("", &[calls.to_str().unwrap(), "copies"]).output().unwrap());
    let line = told
        .lines()
        .find(|line| line.contains("calls of 16 KiB or more"))
        .unwrap_or_else(|| panic!("{told}"));
    let count: u64 = line.split_whitespace().nth(2).unwrap().parse().unwrap();
    // 6 of the 8 sizes are counted, each with many calls, in two rounds.
    assert!((100..2000).contains(&count), "{told}");
    assert!(told.contains("16 MiB to 32 MiB") && told.contains("overlapping calls"), "{told}");
    let none = text(&offload("--no-summary", &[calls.to_str().unwrap(), "copies"]).output().unwrap());
    assert!(!none.contains("calls of"), "{none}");
}

#[test]
fn each_process_appends_to_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("summary");
    let script = "sort /dev/null; cd /; sort /dev/null; sort /dev/null";
    let options = format!("--summary {}", file.display());
    assert!(offload(&options, &["sh", "-c", script]).output().unwrap().status.success());
    let lines = fs::read_to_string(file).unwrap();
    assert_eq!(lines.matches("\"program\":\"sort\"").count(), 3, "{lines}");
    assert!(lines.lines().all(|line| line.starts_with("{\"process\":") && line.ends_with('}')), "{lines}");
}

#[test]
fn off_leaves_everything_in_place() {
    let output = offload("", &["env"]).env("MEMFERRY_OFFLOAD", "off").output().unwrap();
    assert!(!text(&output).contains("LD_PRELOAD"), "{}", text(&output));
    let output = offload("", &["env"]).output().unwrap();
    assert!(text(&output).contains("LD_PRELOAD="), "{}", text(&output));
    // With LD_PRELOAD alone.
    let preload =
        text(&output).lines().find_map(|line| line.strip_prefix("LD_PRELOAD=").map(str::to_owned)).unwrap();
    let mut sort = Command::new("sort");
    sort.arg("/dev/null").env("LD_PRELOAD", preload).env("MEMFERRY_OFFLOAD_SUMMARY", "stderr");
    let told = text(&sort.output().unwrap());
    assert!(told.contains("calls of 16 KiB or more"), "{told}");
    assert_eq!(text(&sort.env("MEMFERRY_OFFLOAD", "off").output().unwrap()), "");
    let told = text(&sort.env("MEMFERRY_OFFLOAD", "yes").output().unwrap());
    assert!(told.contains("MEMFERRY_OFFLOAD must be on or off"), "{told}");
}

#[test]
fn programs_that_cannot_load_the_library_run_without_it() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    if is_installed("gcc") {
        let source = directory.path().join("x.c");
        fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 3; }\n").unwrap();
        let program = directory.path().join("static");
        let built = Command::new("gcc").args(["-static", "-o"]).arg(&program).arg(&source).output().unwrap();
        assert!(built.status.success(), "{}", text(&built));
        let output = offload("", &[program.to_str().unwrap()]).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        let told = text(&output);
        assert!(
            told.contains("ran") && told.contains("is linked statically, so its copies cannot"),
            "{told}"
        );
    }
    let small = directory.path().join("small");
    fs::write(&small, SMALL).unwrap();
    fs::set_permissions(&small, fs::Permissions::from_mode(0o755)).unwrap();
    let output = offload("", &[small.to_str().unwrap()]).output().unwrap();
    let told = text(&output);
    assert!(told.contains("is no program for 64-bit x86, so its copies cannot"), "{told}");
    match output.status.code() {
        Some(7) => {}
        // The kernel cannot execute it.
        Some(126) => assert!(told.contains("cannot run") && told.contains("Exec format error"), "{told}"),
        other => panic!("{other:?}: {told}"),
    }
    let setuid = directory.path().join("setuid");
    fs::copy("/bin/true", &setuid).unwrap();
    if chown(&setuid, Some(54_321), None).is_err() {
        return skip(Needs::Root, "only root can give a file to another user");
    }
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
    let output = offload("", &[setuid.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success() && text(&output).contains("setuid"), "{}", text(&output));
}

/// A program for 32-bit x86 that exits with 7: headers, and `mov eax, 1; mov ebx, 7; int 0x80`.
const SMALL: [u8; 96] = [
    0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, // 32 bits, little endian
    2, 0, 3, 0, 1, 0, 0, 0, 0x54, 0x80, 4, 8, 52, 0, 0,
    0, // executable, 386, the entry and the program headers
    0, 0, 0, 0, 0, 0, 0, 0, 52, 0, 32, 0, 1, 0, 40, 0, 0, 0, 0, 0, // one program header
    1, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 4, 8, 0, 0x80, 4, 8, // loaded at 0x08048000
    96, 0, 0, 0, 96, 0, 0, 0, 5, 0, 0, 0, 0, 0x10, 0, 0, // the whole file, readable and executable
    0xb8, 1, 0, 0, 0, 0xbb, 7, 0, 0, 0, 0xcd, 0x80,
];

/// The dynamic linker loads no library from a file system with noexec.
#[test]
fn directories_with_noexec_are_passed_over() {
    const PREPARE: &str = "for d in /run /tmp; do mount -t tmpfs -o noexec none $d || exit 99; done; \
        mount -t tmpfs -o noexec none /mnt && mkdir /mnt/good && export HOME=/mnt XDG_RUNTIME_DIR=/mnt/good; ";
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", &format!("{PREPARE}{script}")]);
        let run = command.arg(example("offload")).env_remove("XDG_CACHE_HOME").env_remove("MEMFERRY_OFFLOAD");
        run.output().unwrap()
    };
    let output = inside("exec \"$0\" -- env");
    if output.status.code() == Some(99) || text(&output).contains("unshare failed") {
        return skip(Needs::Namespaces, text(&output));
    }
    let told = text(&output);
    assert_eq!(output.status.code(), Some(125), "{told}");
    for part in
        ["/tmp/memferry-0: its file system is mounted with noexec; set XDG_RUNTIME_DIR", "without noexec"]
    {
        assert!(told.contains(part), "{told}");
    }
    assert!(!told.contains("LD_PRELOAD="), "the program must not run without a note: {told}");
    // One directory that can be used is enough.
    let output = inside("mount -t tmpfs none /mnt/good && exec \"$0\" -- env");
    let told = text(&output);
    assert!(
        output.status.success() && told.contains("LD_PRELOAD=/mnt/good/memferry/libmemferry_offload"),
        "{told}"
    );
    assert!(!told.contains("ld.so"), "{told}");
}

#[test]
fn missing_programs_are_errors() {
    let status = |program: &str| offload("", &[program]).output().unwrap().status.code();
    assert_eq!((status("a-name-that-nobody-uses"), status("/tmp")), (Some(127), Some(126)));
    assert!(Path::new("/tmp").is_dir());
}
