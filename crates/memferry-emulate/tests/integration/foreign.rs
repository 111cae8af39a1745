//! Programs that cannot load the preload library, and programs that the kernel does not run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;

use memferry_testing::{Needs, skip};

use crate::emulator;
use crate::emulator::{emulate, has_python, is_available, is_root, text};

/// A whole program of 64-bit x86: the headers of an ELF file, and `exit(7)`.
fn static_program() -> Vec<u8> {
    const ADDRESS: u64 = 0x40_0000;
    const CODE: [u8; 12] = [0xb8, 60, 0, 0, 0, 0xbf, 7, 0, 0, 0, 0x0f, 0x05];
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let halves = |values: &[u16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    let words = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
    bytes.extend(halves(&[2, 62, 1, 0])); // executable, x86-64, version
    bytes.extend(words(&[ADDRESS + 64 + 56, 64, 0])); // entry, table of segments, no table of sections
    bytes.extend(halves(&[0, 0, 64, 56, 1, 0, 0, 0])); // flags, sizes of the headers, one segment
    bytes.extend(halves(&[1, 0, 5, 0])); // to be loaded, readable and executable
    let size = 64 + 56 + CODE.len() as u64;
    bytes.extend(words(&[0, ADDRESS, ADDRESS, size, size, 4096]));
    bytes.extend(CODE);
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
    let output = emulate("--preload", &[&file("static", &static_program(), 0o755)]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output));
    assert!(text(&output).contains("is linked statically, so portals"), "{}", text(&output));
    // In a user namespace of another user than root the bit has no effect.
    let setuid = file("setuid", &fs::read("/bin/true").unwrap(), 0o4755);
    let output = emulate("--preload", &[&setuid]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(text(&output).contains("(setuid)"), is_root(), "{}", text(&output));
    // A program for another machine is not run as a shell script.
    let mut other = static_program();
    other[18] = 0xb7;
    let output = emulate("--preload", &[&file("arm", &other, 0o755)]).output().unwrap();
    assert_eq!(output.status.code(), Some(126), "{}", text(&output));
    assert!(text(&output).contains("for another machine (number 183 of elf.h)"), "{}", text(&output));
    // A script without `#!` is run by the shell.
    let output = emulate("--preload", &[&file("script", b"exit 9\n", 0o755)]).output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{}", text(&output));
}

/// Linux would request the pages for ever.
#[test]
fn a_populated_mapping_without_the_library_ends() {
    if !is_available() || !has_python() {
        return;
    }
    const MAP: &str = "import mmap, os
mmap.mmap(os.open('/dev/dsa/wq0.0', os.O_RDWR), 4096, flags=mmap.MAP_SHARED | 0x8000, prot=mmap.PROT_WRITE)";
    let output = emulate("", &["python3", "-c", MAP]).output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGKILL), "{}", text(&output));
    assert!(text(&output).contains("without the preload library"), "{}", text(&output));
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
        assert!(text(&output).contains("is no program for 64-bit x86, so portals"), "{}", text(&output));
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
