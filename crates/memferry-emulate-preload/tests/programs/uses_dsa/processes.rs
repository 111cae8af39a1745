//! Processes that fork, execute other programs, and exit in unusual ways.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memferry_dsa::internals::affinity;
use memferry_dsa::{CompletionRecord, Descriptor};

use super::signals::{note, noted, set};
use super::{copies, enqcmd, map, try_map};

/// Runs `child` in a forked child and returns its wait status.
pub(super) fn in_child(raw: bool, child: impl FnOnce()) -> i32 {
    let id = match raw {
        false => unsafe { libc::fork() },
        // Without the C library, so no fork handler runs.
        true => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 },
    };
    assert!(id >= 0);
    if id == 0 {
        child();
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(id, &mut status, 0) }, id);
    status
}

pub(super) fn forks() {
    let portal = map("wq0.0");
    copies(portal, 100, 1);
    for raw in [false, true] {
        let status = in_child(raw, || _ = enqcmd(portal, &Descriptor::noop()));
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV, "the parent's portal is not the child's");
        let status = in_child(raw, || {
            let mine = map("wq0.0");
            copies(mine, 5000, 2);
            let status = in_child(raw, || copies(map("wq0.0"), 300, 3));
            assert_eq!(status, 0, "a grandchild");
        });
        assert_eq!(status, 0, "a child that maps the queue again");
        copies(portal, 100, 4);
    }
}

/// Only children use queues, after a vfork child of theirs has set an action, which must concern itself only.
pub(super) fn heirs() {
    extern "C" fn sets_an_action(_: *mut libc::c_void) -> i32 {
        set(libc::SIGILL, libc::SIG_DFL, 0);
        0
    }
    let noting = note as *const () as usize;
    for raw in [false, true] {
        let status = in_child(raw, || {
            let mut stack = vec![0u128; 4096];
            let top = stack.as_mut_ptr_range().end.cast();
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let id = unsafe { libc::clone(sets_an_action, top, flags, null_mut()) };
            assert_eq!(unsafe { libc::waitpid(id, null_mut(), 0) }, id);
            let portal = map("wq0.0");
            for signal in [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGTRAP] {
                set(signal, noting, libc::SA_SIGINFO);
            }
            (0..3).for_each(|round| copies(portal, 5000, round));
            assert_eq!(noted().0, 0, "a submission is no signal to the program");
        });
        assert_eq!(status, 0);
    }
}

/// Programs are started while a thread submits.
pub(super) fn spawns() {
    let portal = map("wq0.0") as usize;
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                copies(portal as *mut u8, 700, 1);
            }
        });
        for _ in 0..20 {
            assert!(Command::new("true").status().unwrap().success());
        }
        is_done.store(true, Ordering::Relaxed);
    });
    copies(portal as *mut u8, 700, 2);
}

/// All file descriptors are closed, and their numbers used for other files.
pub(super) fn closed() {
    let portal = map("wq0.0");
    copies(portal, 100, 1);
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    let _files: Vec<_> = (0..20).map(|_| std::fs::File::open("/dev/zero").unwrap()).collect();
    (0..50).for_each(|round| copies(portal, 5000, round));
}

/// The reader of a pipe sees its end when the program closes it: the library holds no copy.
pub(super) fn pipes() {
    let mut ends = [0; 2];
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let portal = map("wq0.0");
    copies(portal, 100, 1);
    assert_eq!(unsafe { libc::close(ends[1]) }, 0);
    let mut reader = libc::pollfd { fd: ends[0], events: libc::POLLIN, revents: 0 };
    assert_eq!(unsafe { libc::poll(&mut reader, 1, 20_000) }, 1, "a thread of the library has it open");
    assert_eq!(reader.revents, libc::POLLHUP);
}

/// The address space limit leaves room for a page, but not for an engine thread. Later the limit is raised.
pub(super) fn poor() {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut before) }, 0);
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = sizes.split(' ').next().unwrap().parse().unwrap();
    let now = libc::rlimit { rlim_cur: pages * 4096 + (256 << 10), ..before };
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &now) }, 0);
    for _ in 0..3 {
        assert_eq!(try_map("wq0.0").unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &before) }, 0);
    copies(map("wq0.0"), 5000, 1);
}

/// The first thread exits before another one, and the process exits after both. Once their buffered output was lost.
pub(super) fn leaves() {
    let portals = [map("wq0.0") as usize, map("wq1.0") as usize];
    // Otherwise a panic would end its thread only, and the process would exit with success.
    std::panic::set_hook(Box::new(|what| {
        eprintln!("{what}");
        std::process::abort();
    }));
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        portals.iter().for_each(|portal| copies(*portal as *mut u8, 100, 1));
        unsafe { libc::puts(c"left".as_ptr()) };
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    });
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

/// Executes another program with descriptors in flight, which must not block the queue.
pub(super) fn execs() {
    let (source, record) = (vec![1u8; 1 << 20], CompletionRecord::new());
    let mut target = vec![0u8; 1 << 20];
    let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), 1 << 20).with_completion(&record);
    let portal = map("wq0.0");
    while enqcmd(portal, &copy) {}
    let this = std::env::current_exe().unwrap();
    panic!("{}", Command::new(this).arg("after-exec").exec());
}

/// Executes a program without the library, with a full queue that no engine will execute.
pub(super) fn execs_bare() {
    let portal = map("wq0.0");
    let (source, mut target) = (vec![1u8; 1 << 20], vec![0u8; 1 << 20]);
    let copy = Descriptor::memmove(source.as_ptr(), target.as_mut_ptr(), 1 << 20);
    while enqcmd(portal, &copy) {}
    let arguments = [c"cat".as_ptr(), std::ptr::null()];
    // By the system call, which the library does not see.
    unsafe {
        libc::syscall(libc::SYS_execve, c"/bin/cat".as_ptr(), arguments.as_ptr(), arguments[1..].as_ptr())
    };
    panic!("{}", std::io::Error::last_os_error());
}

pub(super) fn after_exec() {
    copies(map("wq0.0"), 5000, 1);
}

/// The engine thread keeps the affinity of the start when the program confines itself to a CPU.
pub(super) fn confined() {
    let cpus_of = |task: &Path| {
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap().to_owned()
    };
    let own = Path::new("/proc/thread-self");
    let before = cpus_of(own);
    affinity::confine(&affinity::allowed().unwrap()[..1]).unwrap();
    copies(map("wq0.0"), 5000, 1);
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let is_engine = |task: &PathBuf| std::fs::read_to_string(task.join("comm")).unwrap() == "memferry-dsa\n";
    let engines: Vec<_> = tasks.filter(is_engine).collect();
    assert_eq!(engines.iter().map(|task| cpus_of(task)).collect::<Vec<_>>(), [before]);
    assert_eq!(affinity::allowed().unwrap().len(), 1);
}
