//! Programs that set LD_PRELOAD themselves, or remove it, and libraries of the user in it.

use std::path::PathBuf;

use crate::emulator::{emulate, example_file, has_python, is_available, text};

/// The library that maps a queue when it is loaded.
fn library() -> String {
    path_of("libmaps_at_start.so")
}

fn executes() -> String {
    path_of("executes")
}

fn path_of(name: &str) -> String {
    let path: PathBuf = example_file(name);
    path.into_os_string().into_string().expect("cargo's paths are text")
}

/// Once such programs ran without the library of the emulation, and were killed when they mapped a queue.
#[test]
fn a_program_may_set_or_remove_the_variable() {
    if !is_available() {
        return;
    }
    let (executes, set) = (executes(), format!("LD_PRELOAD={}", library()));
    let removed: [&[&str]; 3] = [&["env", "-u", "LD_PRELOAD"], &["env", "-i"], &["env", &set]];
    for before in removed {
        let output = emulate("--preload", &[before, &[&executes, "map"]].concat()).output().unwrap();
        let told = text(&output);
        assert!(output.status.success() && told.contains("executed"), "{before:?}: {told}");
        let has_library = told.contains("maps_at_start: constructor of executes: mapped");
        assert_eq!(has_library, before.contains(&set.as_str()), "{before:?}: {told}");
    }
}

#[test]
fn each_function_that_executes_programs() {
    if !is_available() {
        return;
    }
    for way in [
        "execve",
        "execve-large",
        "execve-without",
        "execve-missing",
        "execv",
        "execvp",
        "execvpe",
        "execl",
        "execlp",
        "execle",
        "execle-short",
        "execveat",
        "fexecve",
        "posix_spawn",
        "posix_spawnp",
        "vfork",
    ] {
        let output = emulate("--preload", &[&executes(), way]).output().unwrap();
        let told = text(&output);
        assert!(output.status.success() && told.contains("executed"), "{way}: {told}");
    }
}

/// Once the library acted in the processes of the emulation, too: it mapped a queue there and was killed.
#[test]
fn a_library_of_the_user_is_for_the_program_alone() {
    if !is_available() {
        return;
    }
    let library = library();
    let run = |program: &[&str]| {
        let output = emulate("--preload", program).env("LD_PRELOAD", &library).output().unwrap();
        let told = text(&output);
        assert!(output.status.success(), "{told}");
        told
    };
    let told = run(&[&executes(), "map"]);
    // Before it executes itself again, the command sees the devices of this machine, if there are any.
    let is_inside =
        |line: &&str| line.starts_with("maps_at_start") && !line.contains("constructor of emulate:");
    let lines: Vec<&str> = told.lines().filter(is_inside).collect();
    assert_eq!(lines, ["maps_at_start: constructor of executes: mapped"], "{told}");
    assert!(told.contains("executed"), "{told}");
    // The program finds the library of the user before that of the emulation, and no other trace of this.
    let told = run(&["env"]);
    let ours = "/dev/.memferry/libmemferry_emulate_preload.so";
    assert!(told.lines().any(|line| line == format!("LD_PRELOAD={library}:{ours}")), "{told}");
    assert!(!told.contains("MEMFERRY_EMULATE"), "{told}");
}

/// The library is loaded and has no connection to the devices, for example because the program may not open sockets.
#[test]
fn without_a_connection_a_mapping_is_not_permitted() {
    if !is_available() || !has_python() {
        return;
    }
    const MAP: &str = "import mmap, os
try:
    mmap.mmap(os.open('/dev/dsa/wq0.0', os.O_RDWR), 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)
    raise SystemExit('mapped')
except OSError as error:
    assert error.errno == 1, error";
    let program = ["env", "MEMFERRY_EMULATE_SOCKET=/dev/null", "python3", "-c", MAP];
    let output = emulate("--preload", &program).output().unwrap();
    let told = text(&output);
    assert!(output.status.success() && told.contains("cannot submit to mapped queues"), "{told}");
}
