//! The program of a plan: started on the second and third serial lines, watched, and reported.
//!
//! While it runs, the pages of all processes are sampled. At the end of its first process the kernel stops it
//! (`PTRACE_EVENT_EXIT`) while its memory is still there, so that even a program without a sample has a page map. Only the
//! main thread of the first process is traced, so that debuggers work in the guest.
//!
//! Source: ptrace(2).

use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use libc::c_void;

use super::{PAUSE, end_all};
use crate::pages::{self, Pages};
use crate::plan::{self, PlanProgram, Report};
use crate::serial;

/// Pause between samples.
const SAMPLE_PAUSE: Duration = Duration::from_millis(100);
/// Least ratio of pause to duration of a sample: samples take at most a fifth of a CPU. More would find more, and slow the
/// program down; a query whose copies lived for a second was missed with a ratio of 20.
const PAUSE_RATIO: u32 = 4;

/// Runs the program and sends the report.
pub(super) fn run(program: &PlanProgram) -> Result<(), String> {
    let open = |line: &str| {
        // Not as the terminal of this process: the program's session gets it.
        let file = File::options().read(true).write(true).custom_flags(libc::O_NOCTTY).open(line);
        file.map_err(|error| format!("{line}: {error}"))
    };
    let (output, error) = (open(plan::OUTPUT_LINE)?, open(plan::ERROR_LINE)?);
    serial::make_raw(&error);
    match program.terminal {
        Some(size) => set_size(&output, size),
        None => serial::make_raw(&output),
    }
    let (report, copies) = match start(program, &output, &error) {
        Ok(Started { child, copies }) => (watch(child), copies),
        Err(why) => (Report { status: 0, failure: Some(why), pages: Pages::default() }, Vec::new()),
    };
    // Ends the writers of the pipes, and so the copies.
    end_all();
    for copy in copies {
        copy.join().map_err(|_| "a thread that copies output has panicked".to_owned())?;
    }
    serial::drain(&output);
    serial::drain(&error);
    // SAFETY: it takes nothing. Mapped files of shared folders are written.
    unsafe { libc::sync() };
    serial::send(&report, plan::REPORT_LINE).map_err(|error| format!("{}: {error}", plan::REPORT_LINE))
}

/// A program that runs, and the threads that copy its output.
struct Started {
    child: i32,
    copies: Vec<JoinHandle<()>>,
}

/// The program's streams.
struct Streams {
    input: Stdio,
    output: Stdio,
    error: Stdio,
    /// Pipes to copy to serial lines: the program must not take these for terminals.
    pipes: Vec<(PipeReader, File)>,
}

impl Streams {
    fn new(has_terminal: bool, output: &File, error: &File) -> io::Result<Streams> {
        if has_terminal {
            let line = || output.try_clone().map(Stdio::from);
            return Ok(Streams { input: line()?, output: line()?, error: line()?, pipes: Vec::new() });
        }
        let ((output_pipe, output_end), (error_pipe, error_end)) = (io::pipe()?, io::pipe()?);
        Ok(Streams {
            input: Stdio::null(),
            output: output_end.into(),
            error: error_end.into(),
            pipes: vec![(output_pipe, output.try_clone()?), (error_pipe, error.try_clone()?)],
        })
    }
}

/// Starts the program. Its main thread is traced before its first instruction.
fn start(program: &PlanProgram, output: &File, error: &File) -> Result<Started, String> {
    let failed = |what: &str, error: io::Error| format!("cannot {what}: {error}");
    let streams = Streams::new(program.terminal.is_some(), output, error)
        .map_err(|error| failed("use the serial lines", error))?;
    let mut command = Command::new(&program.path);
    command.args(&program.arguments).env_clear().envs(program.env.iter().map(|(name, value)| (name, value)));
    command.current_dir(&program.directory);
    command.stdin(streams.input).stdout(streams.output).stderr(streams.error);
    let pipe = || io::pipe().map_err(|error| failed("make a pipe", error));
    let (mut go, go_end) = pipe()?;
    let (mut failure, mut failure_end) = pipe()?;
    // SAFETY: this process has one thread, so that the child may do whatever this process may.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(failed("start a process", io::Error::last_os_error()));
    }
    if child == 0 {
        drop(go_end);
        // It ends when the parent traces this process.
        let _ = go.read(&mut [0]);
        if program.terminal.is_some() {
            // SAFETY: neither involves memory. The new session has no terminal yet, and gets the line.
            unsafe {
                libc::setsid();
                libc::ioctl(output.as_raw_fd(), libc::TIOCSCTTY, 0);
            }
        } else {
            command.process_group(0);
        }
        let error = command.exec();
        // Without a reader nobody wants to know.
        let _ = write!(failure_end, "cannot run {} in the guest: {error}", program.path.display());
        // SAFETY: ends the child without the parent's destructors.
        unsafe { libc::_exit(126) };
    }
    // The program alone keeps the ends of its pipes.
    drop((command, failure_end));
    // If it fails, the report has no map at exit.
    let _ = seize(child);
    drop((go_end, go));
    let mut why = String::new();
    // exec closes the child's end.
    failure.read_to_string(&mut why).map_err(|error| failed("read from a pipe", error))?;
    if !why.is_empty() {
        return Err(why);
    }
    let copy = |(mut from, mut to): (PipeReader, File)| {
        // A line that does not take bytes any more is the end of QEMU, and of this process.
        std::thread::spawn(move || drop(io::copy(&mut from, &mut to)))
    };
    Ok(Started { child, copies: streams.pipes.into_iter().map(copy).collect() })
}

/// Waits for the end of the program, reaps orphans, and samples pages.
fn watch(child: i32) -> Report {
    let mut pages = Pages::default();
    let mut next = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: `status` is a live integer.
        let id = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::__WALL) };
        if id == child && !libc::WIFSTOPPED(status) {
            return Report { status, failure: None, pages };
        }
        if id > 0 {
            if libc::WIFSTOPPED(status) {
                if status >> 16 == libc::PTRACE_EVENT_EXIT {
                    pages.end(pages::of_process(id as u32));
                }
                go_on(id, status);
            }
            continue;
        }
        if Instant::now() >= next {
            let started = Instant::now();
            pages.add(&pages::of_all_processes_except(1));
            next = Instant::now() + SAMPLE_PAUSE.max(started.elapsed() * PAUSE_RATIO);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Traces a process until its end.
fn seize(id: i32) -> io::Result<()> {
    let (address, options) = (std::ptr::null_mut::<c_void>(), libc::PTRACE_O_TRACEEXIT as usize);
    // SAFETY: the options are a number, and no memory is involved.
    let code = unsafe { libc::ptrace(libc::PTRACE_SEIZE, id, address, options as *mut c_void) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets a traced process go on after a stop.
fn go_on(id: i32, status: i32) {
    let (event, signal) = (status >> 16, libc::WSTOPSIG(status));
    let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
    let (request, data) = match event {
        // A signal arrives.
        0 => (libc::PTRACE_CONT, signal),
        // It stops like a process that is not traced, until SIGCONT.
        libc::PTRACE_EVENT_STOP if stops.contains(&signal) => (libc::PTRACE_LISTEN, 0),
        _ => (libc::PTRACE_CONT, 0),
    };
    let (address, data) = (std::ptr::null_mut::<c_void>(), data as usize as *mut c_void);
    // SAFETY: the signal is a number, and no memory is involved. It fails if the process has been killed meanwhile.
    unsafe { libc::ptrace(request, id, address, data) };
}

/// Tells a terminal its size.
fn set_size(terminal: &File, (rows, columns): (u16, u16)) {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is live. If it fails, programs take their default.
    unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &size) };
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_map_at_exit_is_that_of_the_living_process() {
        // A child that waits, as in `start`, and then ends with memory mapped.
        let (mut go, go_end) = io::pipe().unwrap();
        // SAFETY: the child makes system calls only: read, and exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(go_end);
            let _ = go.read(&mut [0]);
            // SAFETY: ends the child, which another thread of the parent may have left with a held lock.
            unsafe { libc::_exit(7) };
        }
        let seized = seize(child);
        drop((go_end, go));
        let mut events = Vec::new();
        let status = loop {
            let mut status = 0;
            // SAFETY: `status` is a live integer.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, libc::__WALL) }, child);
            if !libc::WIFSTOPPED(status) {
                break status;
            }
            events.push((status >> 16, fs::read_to_string(format!("/proc/{child}/statm")).unwrap()));
            go_on(child, status);
        };
        assert_eq!(libc::WEXITSTATUS(status), 7);
        if let Err(error) = seized {
            return memferry_testing::skip(memferry_testing::Needs::Kernel("ptrace"), error);
        }
        let [(event, pages)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(*event, libc::PTRACE_EVENT_EXIT);
        assert!(!pages.starts_with("0 "), "its memory is gone: {pages}");
    }
}
