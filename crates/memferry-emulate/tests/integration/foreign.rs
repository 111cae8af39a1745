//! Programs that cannot load the preload library, and programs that the kernel does not run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;

use memferry_testing::{Needs, skip};

use crate::emulator;
use crate::emulator::{emulate, has_python, is_available, is_root, text};

/// `exit(7)` of 64-bit x86.
const EXIT_7_64: [u8; 12] = [0xb8, 60, 0, 0, 0, 0xbf, 7, 0, 0, 0, 0x0f, 0x05];

/// Opens a queue, maps it and exits with the error number of mmap.
const MAP_64: &[u8] = b"\x48\x8d\x3d\x36\0\0\0\xbe\x02\0\0\0\xb8\x02\0\0\0\x0f\x05\
    \x49\x89\xc0\x31\xff\xbe\0\x10\0\0\xba\x02\0\0\0\x41\xba\x01\0\0\0\x45\x31\xc9\xb8\x09\0\0\0\x0f\x05\
    \xf7\xd8\x89\xc7\xb8\x3c\0\0\0\x0f\x05/dev/dsa/wq0.0\0";

/// A whole program of 64-bit x86: the headers of an ELF file, and code.
fn static_program(code: &[u8]) -> Vec<u8> {
    const ADDRESS: u64 = 0x40_0000;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let halves = |values: &[u16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let words = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    bytes.extend(halves(&[2, 62, 1, 0])); // executable, x86-64, version
    bytes.extend(words(&[ADDRESS + 64 + 56, 64, 0])); // entry, table of segments, no table of sections
    bytes.extend(halves(&[0, 0, 64, 56, 1, 0, 0, 0])); // flags, sizes of the headers, one segment
    bytes.extend(halves(&[1, 0, 5, 0])); // to be loaded, readable and executable
    let size = 64 + 56 + code.len() as u64;
    bytes.extend(words(&[0, ADDRESS, ADDRESS, size, size, 4096]));
    bytes.extend(code);
    bytes
}

/// They run, after a note about mapped portals.
#[test]
fn programs_without_the_library() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8], mode: u32| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        if is_root() {
            chown(&path, Some(emulator::USER), None).unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let output =
        emulate("--preload", &[&file("static", &static_program(&EXIT_7_64), 0o755)]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    assert!(
        text(&output).contains("is linked statically, so it cannot map queues (ENODEV)"),
        "{}",
        text(&output)
    );
    // In a user namespace of another user than root the bit has no effect.
    let setuid = file("setuid", &fs::read("/bin/true").unwrap(), 0o4755);
    let output = emulate("--preload", &[&setuid]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(text(&output).contains("(setuid)"), is_root(), "{}", text(&output));
    // A program for another machine is not run as a shell script.
    let mut other = static_program(&EXIT_7_64);
    other[18] = 0xb7;
    let output = emulate("--preload", &[&file("arm", &other, 0o755)]).output().unwrap();
    assert_eq!(output.status.code(), Some(126), "{}", text(&output));
    assert!(text(&output).contains("for another machine (number 183 of elf.h)"), "{}", text(&output));
    // A script without `#!` is run by the shell.
    let output = emulate("--preload", &[&file("script", b"exit 9\n", 0o755)]).output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{}", text(&output));
}

/// The note comes when the queue is opened, also for a program that another one starts.
#[test]
fn a_static_program_cannot_map_a_queue() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("maps");
    fs::write(&path, static_program(MAP_64)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let script = format!("{0}; {0}; exec {0}", path.display());
    let output = emulate("--preload", &["sh", "-c", &script]).output().unwrap();
    let told = text(&output);
    assert_eq!(output.status.code(), Some(libc::ENODEV), "{told}");
    let notes: Vec<&str> = told.lines().filter(|line| line.contains(" opens wq0.0: ")).collect();
    let [note] = notes[..] else { panic!("one note for each program:\n{told}") };
    assert!(
        note.contains("is linked statically") && note.contains("link it dynamically to map queues"),
        "{note}"
    );
}

/// Without the library shared mappings are refused, and private ones are memory of the program. Once a program with such
/// a mapping was killed: Linux requests a page that the server refuses for ever, because of MAP_POPULATE.
#[test]
fn mappings_without_the_library() {
    if !is_available() || !has_python() {
        return;
    }
    const MAP: &str = "import mmap, os
def map(flags):
    return mmap.mmap(os.open('/dev/dsa/wq0.0', os.O_RDWR), 4096, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
POPULATE = 0x8000
for flags in mmap.MAP_SHARED, mmap.MAP_SHARED | POPULATE:
    try:
        map(flags)
        raise SystemExit('mapped')
    except OSError as error:
        assert error.errno == 19, error
for flags in mmap.MAP_PRIVATE, mmap.MAP_PRIVATE | POPULATE:
    page = map(flags)
    assert page[:] == bytes(4096)
    page[64:128] = b'x' * 64
    assert page[64:128] == b'x' * 64
try:
    os.read(os.open('/dev/dsa/wq0.0', os.O_RDWR), 1)
    raise SystemExit('read')
except OSError as error:
    assert error.errno == 5, error";
    let output = emulate("--stats", &["python3", "-c", MAP]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("dsa0: nothing was submitted"), "{}", text(&output));
}

/// Programs of 32-bit x86 run if the kernel supports them. Their instructions are not emulated.
#[test]
fn programs_of_32_bits() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let run = |name: &str, code: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, program_of_32_bits(code)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let output = emulate("--preload", &[path.to_str().unwrap()]).output().unwrap();
        assert!(
            text(&output).contains("is no program for 64-bit x86, so it cannot map queues"),
            "{}",
            text(&output)
        );
        output
    };
    let exit = run("exit", &EXIT_7);
    if exit.status.code() == Some(126) {
        assert!(text(&exit).contains("which this kernel does not run"), "{}", text(&exit));
        return skip(Needs::Kernel("32-bit programs"), "this kernel does not run programs of 32 bits");
    }
    assert_eq!(exit.status.code(), Some(7), "{}", text(&exit));
    // enqcmd eax, [edx] of address 0: SIGILL without the instruction, SIGSEGV with it.
    let output = run("enqcmd", &[&[0xf2, 0x0f, 0x38, 0xf8, 0x02], &EXIT_7[..]].concat());
    let signal = output.status.signal();
    assert!(matches!(signal, Some(libc::SIGILL | libc::SIGSEGV)), "{}", text(&output));
}

/// `exit(7)` of 32-bit x86.
const EXIT_7: [u8; 12] = [0xb8, 1, 0, 0, 0, 0xbb, 7, 0, 0, 0, 0xcd, 0x80];

/// Like [`static_program`], for 32 bits.
fn program_of_32_bits(code: &[u8]) -> Vec<u8> {
    const ADDRESS: u32 = 0x40_0000;
    const HEADERS: u32 = 52 + 32;
    let halves = |values: &[u16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let words = |values: &[u32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let size = HEADERS + code.len() as u32;
    [
        b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
        halves(&[2, 3]),                              // executable, 80386
        words(&[1, ADDRESS + HEADERS, 52, 0, 0]),     // version, entry, segments, no sections, flags
        halves(&[52, 32, 1, 0, 0, 0]),                // sizes of the headers, one segment
        words(&[1, 0, ADDRESS, ADDRESS, size, size]), // to be loaded
        words(&[5, 4096]),                            // readable and executable
        code.to_vec(),
    ]
    .concat()
}
