//! Written descriptors refer to the memory of the program that opened the queue, and never to that of a program after
//! it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use memferry_dsa::{CompletionRecord, Descriptor, Flags, Status};
use memferry_testing::{Needs, skip};

use crate::emulator::{emulate_script, is_available, is_inside, is_root, text};

const PAGE: usize = 4096;
const PATIENCE: Duration = Duration::from_secs(20);
/// The stage of a test whose process executes several programs. All values have one length, so that the stack begins at
/// the same address.
const STAGE: &str = "MEMFERRY_TEST_STAGE";
/// A directory, or a process and an address.
const PLACE: &str = "MEMFERRY_TEST_PLACE";
/// A file descriptor that the programs inherit.
const INHERITED: &str = "MEMFERRY_TEST_FD";

fn stage() -> u32 {
    std::env::var(STAGE).map_or(0, |stage| stage.parse().unwrap())
}

fn inherited() -> OwnedFd {
    let number = std::env::var(INHERITED).unwrap().parse().unwrap();
    // SAFETY: the program before has left it open for this one.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Executes the next program.
fn exec(program: &Path, test: &str, stage: u32) -> ! {
    let mut command = Command::new(program);
    let error = command.args([test, "--exact", "--nocapture"]).env(STAGE, stage.to_string()).exec();
    panic!("{}: {error}", program.display());
}

fn keep_open(file: &impl AsRawFd) {
    // SAFETY: it takes numbers.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    // SAFETY: no other thread of the test looks at the environment.
    unsafe { std::env::set_var(INHERITED, format!("{:05}", file.as_raw_fd())) };
}

fn open(queue: &str) -> File {
    OpenOptions::new().read(true).write(true).open(format!("/dev/dsa/{queue}")).unwrap()
}

fn write(file: &File, descriptor: &Descriptor) -> Result<(), i32> {
    let written = (&mut &*file).write(&descriptor.to_bytes());
    written.map(|count| assert_eq!(count, 64)).map_err(|error| error.raw_os_error().unwrap())
}

/// Submits a descriptor and waits for its completion.
fn complete(file: &File, descriptor: Descriptor) -> Status {
    let record = CompletionRecord::new();
    write(file, &descriptor.with_completion(&record)).unwrap();
    wait_until("the completion", || record.poll().is_some());
    record.poll().unwrap().status
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what} does not happen");
        sleep(Duration::from_millis(1));
    }
}

/// Pages at an address that is free in every program.
struct Region;

impl Region {
    const START: usize = 0x20_0000_0000;
    const SOURCE: usize = 0;
    const TARGET: usize = 16;
    const RECORD: usize = 32;
    const PAGES: usize = 33;

    /// Maps the pages, with one value in all bytes of the source and another one in the rest.
    fn map(source: u8, rest: u8) -> Region {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let start = ptr::without_provenance_mut(Region::START);
        // SAFETY: a new mapping that replaces none.
        let mapped = unsafe { libc::mmap(start, Region::PAGES * PAGE, protection, flags, -1, 0) };
        assert_eq!(mapped.addr(), Region::START, "{}", io::Error::last_os_error());
        for page in 0..Region::PAGES {
            let value = if page < Region::TARGET { source } else { rest };
            // SAFETY: a page of the mapping, to which there are no references.
            unsafe { ptr::write_bytes(Region::at(page), value, PAGE) };
        }
        Region
    }

    fn at(page: usize) -> *mut u8 {
        ptr::with_exposed_provenance_mut(Region::START + page * PAGE)
    }

    /// The first byte of a page.
    fn byte(&self, page: usize) -> u8 {
        // SAFETY: it is mapped; a device may write it.
        unsafe { Region::at(page).read_volatile() }
    }
}

/// Makes accesses to a page wait until the descriptor is closed: all accesses if the page was never touched, else
/// writes. `None` if the system has no userfaultfd.
///
/// Source: userfaultfd(2), ioctl_userfaultfd(2).
fn hold(page: usize, is_touched: bool) -> Option<OwnedFd> {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const WRITE_PROTECT: libc::c_ulong = 0xc018_aa06;
    let start = Region::at(page).addr() as u64;
    let mode = if is_touched { 1 << 1 } else { 1 << 0 };
    // SAFETY: the structures are those of the requests, and live as long as the calls.
    unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
        if fd < 0 {
            skip(Needs::Kernel("userfaultfd"), format!("userfaultfd: {}", io::Error::last_os_error()));
            return None;
        }
        let fd = OwnedFd::from_raw_fd(fd as i32);
        let mut api = [0xaau64, 1, 0];
        let mut register = [start, PAGE as u64, mode, 0];
        let mut protect = [start, PAGE as u64, 1];
        let raw = fd.as_raw_fd();
        let mut answers = vec![libc::ioctl(raw, API, &mut api), libc::ioctl(raw, REGISTER, &mut register)];
        if is_touched {
            answers.push(libc::ioctl(raw, WRITE_PROTECT, &mut protect));
        }
        if answers.iter().any(|answer| *answer != 0) {
            skip(Needs::Kernel("userfaultfd"), format!("userfaultfd: {}", io::Error::last_os_error()));
            return None;
        }
        Some(fd)
    }
}

/// Executes another program while a copy with a completion record waits at its eighth page.
///
/// Once the memory was addressed by the process number: half of the copy, and the record, were written into the next
/// program.
fn exec_in_the_middle_of_a_copy(test: &str, next: &Path, before: impl FnOnce()) {
    const HELD: usize = Region::TARGET + 8;
    if stage() == 0 {
        let region = Region::map(1, 2);
        let Some(held) = hold(HELD, true) else { return };
        before();
        let queue = open("wq0.0");
        let (source, target) = (Region::at(Region::SOURCE), Region::at(Region::TARGET));
        let copy = Descriptor::memmove(source.cast_const(), target, 16 * PAGE as u32);
        write(&queue, &copy.with_completion_at(Region::at(Region::RECORD).addr() as u64)).unwrap();
        // These wait behind it.
        (0..20).for_each(|_| write(&queue, &copy).unwrap());
        wait_until("the first half of the copy", || region.byte(HELD - 1) == 1);
        keep_open(&held);
        exec(next, test, 1);
    }
    let region = Region::map(3, 4);
    drop(inherited()); // the copy goes on
    sleep(Duration::from_millis(300));
    let changed: Vec<usize> =
        (Region::TARGET..Region::PAGES).filter(|page| region.byte(*page) != 4).collect();
    assert!(changed.is_empty(), "pages {changed:?} of the new program were overwritten");
    // The descriptors behind the copy are dropped and do not block the queue.
    assert_eq!(complete(&open("wq0.0"), Descriptor::noop()), Status::Success);
}

#[test]
fn exec_with_descriptors_pending() {
    const TEST: &str = "address_spaces::exec_with_descriptors_pending";
    if is_inside("", TEST) {
        exec_in_the_middle_of_a_copy(TEST, &std::env::current_exe().unwrap(), || ());
    }
}

/// The same with a next program that has more rights.
#[test]
fn exec_of_a_setuid_program_with_descriptors_pending() {
    const TEST: &str = "address_spaces::exec_of_a_setuid_program_with_descriptors_pending";
    const NOBODY: u32 = 65_534;
    if !is_root() && stage() == 0 {
        return skip(Needs::Root, "only root can create a setuid program of root");
    }
    if !is_inside("", TEST) {
        return;
    }
    if stage() == 1 {
        // SAFETY: they have no preconditions.
        let users = unsafe { [libc::getuid(), libc::geteuid()] };
        assert_eq!(users, [NOBODY, 0]);
        return exec_in_the_middle_of_a_copy(TEST, Path::new(""), || ());
    }
    let directory = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap();
    let program = directory.path().join("setuid");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions("/dev/dsa/wq0.0", Permissions::from_mode(0o666)).unwrap();
    exec_in_the_middle_of_a_copy(TEST, &program, || {
        // SAFETY: it takes numbers.
        assert_eq!(unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) }, 0);
    });
}

/// Once programs were told apart by the start of the stack alone, which is equal without randomised addresses: the next
/// program could submit to the queue of the one before.
#[test]
fn programs_with_the_same_stack_are_distinguished() {
    const TEST: &str = "address_spaces::programs_with_the_same_stack_are_distinguished";
    if !is_inside("", TEST) {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let stack = || {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let stack = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(25).unwrap().to_owned();
        assert_ne!(stack, "0");
        stack
    };
    let note = std::env::temp_dir().join(format!("memferry-stack-{}", std::process::id()));
    match stage() {
        0 => {
            // SAFETY: it takes a number.
            unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
            // The next programs find as many variables, and so the same stack.
            // SAFETY: no other thread of the test looks at the environment.
            unsafe { std::env::set_var(INHERITED, "00000") };
            exec(&this, TEST, 1);
        }
        1 => {
            fs::write(&note, stack()).unwrap();
            let queue = open("wq0.0");
            assert_eq!(complete(&queue, Descriptor::noop()), Status::Success);
            keep_open(&queue);
            exec(&this, TEST, 2);
        }
        _ => {
            let before = fs::read_to_string(&note).unwrap();
            fs::remove_file(&note).unwrap();
            assert_eq!(stack(), before, "the test needs programs that cannot be told apart by this");
            assert_eq!(write(&inherited().into(), &Descriptor::noop()), Err(libc::EPERM));
        }
    }
}

/// The driver compares address spaces, not processes: a child of `vfork` submits for its parent. Once it was refused.
#[test]
fn a_child_that_shares_the_memory_may_submit() {
    if !is_inside("", "address_spaces::a_child_that_shares_the_memory_may_submit") {
        return;
    }
    extern "C" fn child(context: *mut libc::c_void) -> libc::c_int {
        // SAFETY: `submitted_by` passes it, and waits for the child.
        let (queue, descriptor) = unsafe { *context.cast::<(i32, [u8; 64])>() };
        // SAFETY: 64 bytes.
        let written = unsafe { libc::write(queue, descriptor.as_ptr().cast(), 64) };
        i32::from(written != 64)
    }
    // Returns the exit status of a child that is made with these flags.
    let submitted_by = |flags: i32, queue: &File, descriptor: Descriptor| {
        let mut context = (queue.as_raw_fd(), descriptor.to_bytes());
        let mut stack = vec![0u128; 4096];
        let mut status = -1;
        // SAFETY: a stack of its own for a function that makes a system call; this thread waits for its end.
        unsafe {
            let top = stack.as_mut_ptr_range().end;
            let pid = libc::clone(child, top.cast(), flags | libc::SIGCHLD, (&raw mut context).cast());
            assert!(pid > 0, "{}", io::Error::last_os_error());
            assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        }
        libc::WEXITSTATUS(status)
    };
    let queue = open("wq0.0");
    let record = CompletionRecord::new();
    let noop = Descriptor::noop().with_completion(&record);
    assert_eq!(submitted_by(0, &queue, noop), 1, "a child with a copy of the memory");
    assert_eq!(submitted_by(libc::CLONE_VM | libc::CLONE_VFORK, &queue, noop), 0);
    wait_until("the completion", || record.poll().is_some());
}

/// Other threads may submit after the thread that opened the queue has exited.
#[test]
fn any_thread_of_the_process_may_submit() {
    if !is_inside("", "address_spaces::any_thread_of_the_process_may_submit") {
        return;
    }
    let queue = std::thread::spawn(|| open("wq0.0")).join().unwrap();
    assert_eq!(complete(&queue, Descriptor::noop()), Status::Success);
    let other = std::thread::spawn(move || complete(&queue, Descriptor::noop()));
    assert_eq!(other.join().unwrap(), Status::Success);
}

/// The memory of a process answers no access, because its page faults are not handled. Once the supervisor waited for
/// such a process after its exit, under a lock that all others need.
#[test]
fn unresponsive_memory_stops_no_other_process() {
    const TEST: &str = "address_spaces::unresponsive_memory_stops_no_other_process";
    if !is_inside("--devices 2", TEST) {
        return;
    }
    if stage() == 1 {
        let region = Region::map(1, 2);
        // SAFETY: a page of the region, which nothing refers to.
        let answer = unsafe { libc::madvise(Region::at(0).cast(), PAGE, libc::MADV_DONTNEED) };
        assert_eq!((answer, region.byte(1)), (0, 1));
        let Some(held) = hold(0, false) else { return };
        let source = Region::at(0).cast_const();
        let copy = Descriptor::memmove(source, Region::at(Region::TARGET), 8);
        write(&open("wq0.0"), &copy.with_flags(Flags::BLOCK_ON_FAULT)).unwrap();
        println!("held {}", held.as_raw_fd());
        sleep(PATIENCE * 2);
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([TEST, "--exact", "--nocapture"]).env(STAGE, "1").stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
    let number = lines.find_map(|line| line.unwrap().strip_prefix("held ").map(str::to_owned));
    let Some(number) = number else {
        child.wait().unwrap();
        return; // it has printed the reason
    };
    sleep(Duration::from_millis(200)); // the device asks for the page
    // This process also holds the child's descriptor, so that the death of the child does not resolve the fault.
    // SAFETY: they take numbers; the answer is a descriptor of this process' own.
    let held = unsafe {
        let pidfd = libc::syscall(libc::SYS_pidfd_open, child.id(), 0);
        let held = libc::syscall(libc::SYS_pidfd_getfd, pidfd, number.parse::<i32>().unwrap(), 0);
        assert!(held >= 0, "{}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(held as i32)
    };
    child.kill().unwrap();
    child.wait().unwrap();
    sleep(Duration::from_millis(200)); // it is noticed
    let (says, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || says.send(complete(&open("wq2.0"), Descriptor::noop())));
    let answer = hears.recv_timeout(PATIENCE / 2);
    drop(held);
    assert_eq!(answer.expect("a process waits for what another one's memory answers"), Status::Success);
}

/// A file system whose one file answers no read, so that a page fault on it keeps the address space locked. It answers
/// no look-up of other names, and no signal ends a process that waits for one.
struct Silent;

impl Silent {
    fn attributes(number: fuser::INodeNo) -> fuser::FileAttr {
        let (kind, perm) = match number {
            fuser::INodeNo::ROOT => (fuser::FileType::Directory, 0o755),
            _ => (fuser::FileType::RegularFile, 0o644),
        };
        let time = std::time::UNIX_EPOCH;
        fuser::FileAttr {
            ino: number,
            size: PAGE as u64,
            blocks: 8,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: PAGE as u32,
            flags: 0,
        }
    }

    /// Mounts and serves the file system until this process exits. Skips the test if that is impossible.
    fn serve(at: &Path) {
        let fuse = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            Ok(fuse) => fuse,
            Err(error) => return skip(Needs::Kernel("FUSE"), format!("/dev/fuse: {error}")),
        };
        let options = format!("fd={},rootmode=40755,user_id=0,group_id=0\0", fuse.as_raw_fd());
        let place = std::ffi::CString::new(at.to_str().unwrap()).unwrap();
        let (source, kind) = (c"silent".as_ptr(), c"fuse".as_ptr());
        // SAFETY: all are strings that end in zero and live until the call returns.
        let answer = unsafe { libc::mount(source, place.as_ptr(), kind, 0, options.as_ptr().cast()) };
        assert_eq!(answer, 0, "{}", io::Error::last_os_error());
        let (all, config) = (fuser::SessionACL::All, fuser::Config::default());
        let session = fuser::Session::from_fd(Silent, fuse.into(), all, config).unwrap();
        println!("serves");
        session.run().unwrap();
    }
}

/// Starts another run of this test, which is killed with this process. `None`: it exits without printing the word.
fn start(test: &str, stage: u32, place: &Path, word: &str) -> Option<Child> {
    start_to_hear(test, stage, place, word).map(|(child, _)| child)
}

/// Like [`start`], with the lines that it prints after the word.
fn start_to_hear(test: &str, stage: u32, place: &Path, word: &str) -> Option<(Child, Said)> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).stdout(Stdio::piped());
    command.env(STAGE, stage.to_string()).env(PLACE, place);
    // SAFETY: prctl(2) is a system call.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    let mut lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
    let found = lines.any(|line| line.is_ok_and(|line| line.ends_with(word)));
    found.then_some((child, lines))
}

type Said = io::Lines<io::BufReader<std::process::ChildStdout>>;

impl fuser::Filesystem for Silent {
    fn lookup(
        &self,
        _: &fuser::Request,
        _: fuser::INodeNo,
        name: &std::ffi::OsStr,
        reply: fuser::ReplyEntry,
    ) {
        if name != "file" {
            println!("asked");
            return std::mem::forget(reply); // dropped, it would be an answer
        }
        reply.entry(&PATIENCE, &Silent::attributes(fuser::INodeNo(2)), fuser::Generation(0));
    }

    fn getattr(
        &self,
        _: &fuser::Request,
        number: fuser::INodeNo,
        _: Option<fuser::FileHandle>,
        reply: fuser::ReplyAttr,
    ) {
        reply.attr(&PATIENCE, &Silent::attributes(number));
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: fuser::INodeNo,
        _: fuser::FileHandle,
        _: u64,
        _: u32,
        _: fuser::OpenFlags,
        _: Option<fuser::LockOwner>,
        reply: fuser::ReplyData,
    ) {
        std::mem::forget(reply); // dropped, it would be an answer
    }
}

/// The address space of a process is locked: a page fault on a file that is not served holds the lock, and mmap(2)
/// waits for it. Once the supervisor waited too when it checked whether the process lives, under locks that all others
/// need.
#[test]
fn a_locked_address_space_stops_no_other_process() {
    const TEST: &str = "address_spaces::a_locked_address_space_stops_no_other_process";
    if !is_root() && stage() == 0 {
        return skip(Needs::Root, "a test that mounts a file system is run as root");
    }
    if !is_inside("--devices 2", TEST) {
        return;
    }
    let place = std::env::var_os(PLACE).unwrap_or_default();
    match stage() {
        0 => {}
        1 => return Silent::serve(Path::new(&place)),
        _ => {
            let file = File::open(Path::new(&place).join("file")).unwrap();
            let (descriptor, flags) = (file.as_raw_fd(), libc::MAP_SHARED);
            // SAFETY: a new mapping.
            let source = unsafe { libc::mmap(ptr::null_mut(), PAGE, libc::PROT_READ, flags, descriptor, 0) };
            assert_ne!(source, libc::MAP_FAILED, "{}", io::Error::last_os_error());
            let target = [0u8; 8];
            let copy = Descriptor::memmove(source as *const u8, target.as_ptr(), 8);
            let queue = open("wq0.0");
            std::thread::spawn(|| {
                sleep(Duration::from_millis(500));
                drop(open("wq0.0"));
            });
            sleep(Duration::from_millis(100)); // the thread has its memory
            write(&queue, &copy.with_flags(Flags::BLOCK_ON_FAULT)).unwrap();
            sleep(Duration::from_millis(200)); // the device asks for the page
            println!("locks");
            let _ = Region::map(1, 2); // it waits
            return;
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(mut server) = start(TEST, 1, directory.path(), "serves") else { return };
    let mut child = start(TEST, 2, directory.path(), "locks").expect("it says so");
    sleep(Duration::from_secs(1)); // it waits in mmap(2), and one of its threads has been in open(2)
    let (says, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || says.send(complete(&open("wq2.0"), Descriptor::noop())));
    let answer = hears.recv_timeout(PATIENCE / 2);
    let has_ended = child.try_wait().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let _ = child.kill(); // it may have gone on, and ended
    child.wait().unwrap();
    assert_eq!(has_ended, None, "the test needs an address space that is locked");
    assert_eq!(answer.expect("a process waits for another one's address space"), Status::Success);
}

/// SIGKILL does not end a process that waits for another file system. Once the supervisor waited for it for ever.
#[test]
fn a_process_that_cannot_be_killed_is_left() {
    const TEST: &str = "address_spaces::a_process_that_cannot_be_killed_is_left";
    if !is_root() {
        return skip(Needs::Root, "a test that mounts a file system is run as root");
    }
    if stage() == 1 {
        return Silent::serve(Path::new(&std::env::var_os(PLACE).unwrap_or_default()));
    }
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some((mut server, mut lines)) = start_to_hear(TEST, 1, directory.path(), "serves") else { return };
    // It exits at the end of its input.
    let script = format!("cat {}/never > /dev/null 2>&1 & read line; exit 3", directory.path().display());
    let mut emulation = emulate_script("", &script);
    emulation.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut emulation = emulation.spawn().unwrap();
    assert!(lines.any(|line| line.is_ok_and(|line| line == "asked")), "cat asks for the file");
    drop(emulation.stdin.take());
    let (says, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || says.send(emulation.wait_with_output()));
    let output = hears.recv_timeout(PATIENCE / 2);
    server.kill().unwrap(); // cat then exits
    server.wait().unwrap();
    let place = std::ffi::CString::new(directory.path().to_str().unwrap()).unwrap();
    // SAFETY: a string that ends in zero.
    assert_eq!(unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) }, 0);
    let output = output.expect("the supervisor waits for a process that does not end").unwrap();
    let told = text(&output);
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("SIGKILL does not end 1 process (") && told.contains(" cat)"), "{told}");
}

/// Maps a queue privately: this test runs without the preload library.
fn map_privately(queue: &File) -> usize {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    // SAFETY: a new mapping.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, flags, queue.as_raw_fd(), 0) };
    assert_ne!(page, libc::MAP_FAILED, "{}", io::Error::last_os_error());
    page.addr()
}

/// A thread reads the mapped queue of another process, as a debugger does. Once it was killed.
#[test]
fn a_reader_of_another_process_is_not_killed() {
    const TEST: &str = "address_spaces::a_reader_of_another_process_is_not_killed";
    if !is_inside("", TEST) {
        return;
    }
    if stage() == 1 {
        let place = std::env::var(PLACE).unwrap();
        let (process, address) = place.split_once(' ').unwrap();
        let Ok(memory) = File::open(format!("/proc/{process}/mem")) else {
            return skip(Needs::Root, "this process may not look at its parent's memory");
        };
        for _ in 0..150 {
            let mut byte = [1];
            let read = std::os::unix::fs::FileExt::read_at(&memory, &mut byte, address.parse().unwrap());
            assert_eq!((read.unwrap(), byte), (1, [0]));
        }
        return;
    }
    let queue = open("wq0.0");
    let page = map_privately(&queue);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([TEST, "--exact", "--nocapture"]).env(STAGE, "1");
    let status = command.env(PLACE, format!("{} {}", std::process::id(), page)).status().unwrap();
    assert!(status.success(), "{status}");
}

/// A descriptor that names the page of a queue faults. Once the server killed itself: it refuses the page to its own
/// thread, which is the engine.
#[test]
fn a_mapped_queue_as_the_source_of_a_copy() {
    if !is_inside("", "address_spaces::a_mapped_queue_as_the_source_of_a_copy") {
        return;
    }
    let queue = open("wq0.0");
    let page = map_privately(&queue);
    let target = [0u8; 8];
    for _ in 0..150 {
        let copy = Descriptor::memmove(ptr::without_provenance::<u8>(page), target.as_ptr(), 8);
        let status = complete(&queue, copy.with_flags(Flags::BLOCK_ON_FAULT));
        assert_eq!(status, Status::PageFaultRefused);
    }
}
