//! A program that executes itself by each function of libc: `executes WAY`. The new program gets an environment without
//! LD_PRELOAD, maps a queue and submits a descriptor.

#![allow(unsafe_code)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "all calls are of one kind: strings and lists that end in null"
)]

use std::arch::asm;
use std::ffi::{CStr, CString};
use std::fs::OpenOptions;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use libc::{c_char, c_int};
use memferry_dsa::{CompletionRecord, Descriptor, Status};

unsafe extern "C" {
    fn execveat(
        directory: c_int,
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
        flags: c_int,
    ) -> c_int;
    fn execvpe(
        file: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
}

fn main() {
    let way = std::env::args().nth(1).unwrap_or_default();
    if way == "map" {
        return submit();
    }
    // Functions that pass on the environment of this program find none there either.
    unsafe { std::env::remove_var("LD_PRELOAD") };
    let path = CString::new(std::env::current_exe().unwrap().into_os_string().into_encoded_bytes()).unwrap();
    let size = if way == "execve-large" { 5000 } else { 3 };
    execute(&way, &path, size);
}

/// Executes `PATH map 2 3 4 5 6`, with so many variables in its environment.
fn execute(way: &str, path: &CStr, size: usize) {
    let words = [path, c"map", c"2", c"3", c"4", c"5", c"6"];
    let arguments: Vec<*const c_char> = words.iter().map(|word| word.as_ptr()).chain([null()]).collect();
    let variables: Vec<CString> = (0..size).map(|at| CString::new(format!("V{at}={at}")).unwrap()).collect();
    let environment: Vec<*const c_char> = variables.iter().map(|one| one.as_ptr()).chain([null()]).collect();
    let (arguments, environment) = (arguments.as_ptr(), environment.as_ptr());
    let path = path.as_ptr();
    let [map, two, three, four, five, six] =
        [c"map", c"2", c"3", c"4", c"5", c"6"].map(|word: &CStr| word.as_ptr());
    let end = null::<c_char>();
    unsafe {
        let answer = match way {
            "execve" | "execve-large" => libc::execve(path, arguments, environment),
            "execve-without" => libc::execve(path, arguments, null()),
            "execv" => libc::execv(path, arguments),
            "execvp" => libc::execvp(path, arguments),
            "execvpe" => execvpe(path, arguments, environment),
            "execl" => libc::execl(path, path, map, two, three, four, five, six, end),
            "execlp" => libc::execlp(path, path, map, two, three, four, five, six, end),
            "execle" => libc::execle(path, path, map, two, three, four, five, six, end, environment),
            "execle-short" => libc::execle(path, path, map, end, environment),
            "execveat" => execveat(libc::AT_FDCWD, path, arguments, environment, 0),
            "fexecve" => libc::fexecve(libc::open(path, libc::O_RDONLY), arguments, environment),
            "posix_spawn" | "posix_spawnp" => {
                let spawn = if way == "posix_spawn" { libc::posix_spawn } else { libc::posix_spawnp };
                let mut child = 0;
                let arguments = arguments.cast();
                let error = spawn(&mut child, path, null(), null(), arguments, environment.cast());
                assert_eq!(error, 0);
                wait(child);
            }
            "vfork" => {
                // The child runs on the stack of its parent, which waits.
                #[allow(deprecated)]
                let child = libc::vfork();
                if child == 0 {
                    libc::execve(path, arguments, environment);
                    libc::_exit(99);
                }
                wait(child);
            }
            "execve-missing" => {
                // After a failed call the program goes on, with the error of the kernel.
                for count in 0..2000 {
                    assert_eq!(libc::execve(c"/nowhere/x".as_ptr(), arguments, environment), -1, "{count}");
                    assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
                }
                libc::execve(path, arguments, environment)
            }
            _ => panic!("no such way: {way}"),
        };
        panic!("{way}: {answer}, {}", Error::last_os_error());
    }
}

/// Exits as the child does.
fn wait(child: c_int) -> ! {
    let mut status = 0;
    unsafe { assert_eq!(libc::waitpid(child, &mut status, 0), child) };
    std::process::exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 98 })
}

fn submit() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    assert!(words == ["map", "2", "3", "4", "5", "6"] || words == ["map"], "{words:?}");
    let queue = OpenOptions::new().read(true).write(true).open("/dev/dsa/wq0.0").unwrap();
    let page =
        unsafe { libc::mmap(null_mut(), 4096, libc::PROT_WRITE, libc::MAP_SHARED, queue.as_raw_fd(), 0) };
    assert_ne!(page, libc::MAP_FAILED, "{}", Error::last_os_error());
    let record = CompletionRecord::new();
    let descriptor = Descriptor::noop().with_completion(&record).to_bytes();
    let mut is_refused = 1u8;
    while is_refused != 0 {
        // enqcmd rax, [rcx]
        unsafe {
            asm!(
                ".byte 0xf2, 0x0f, 0x38, 0xf8, 0x01",
                "setz {}", out(reg_byte) is_refused, in("rax") page, in("rcx") descriptor.as_ptr(),
            );
        }
    }
    let start = Instant::now();
    while record.poll().is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "no completion");
    }
    assert_eq!(record.poll().unwrap().status, Status::Success);
    println!("executed");
}
