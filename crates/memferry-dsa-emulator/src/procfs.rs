//! Processes and threads in `/proc`. A process has ended only if its file is missing. A file that cannot be read is an
//! error: a reader without free file descriptors must not take other processes for ended.
//!
//! Source: proc_pid_status(5), proc_pid_stat(5).

use std::fs;
use std::io::{self, ErrorKind};

/// Fields of `/proc/ID/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stat {
    /// Field 3: `b'Z'` is a zombie.
    pub state: u8,
    /// Field 4: the parent process.
    pub parent: u32,
    /// Field 22: the start time in clock ticks since boot.
    pub started: u64,
    /// Field 28: the start of the program's stack, which Linux randomises for each program. It is 0 for readers that
    /// may not trace the process, and after the first thread has ended.
    pub stack: u64,
}

/// Fields of `/proc/ID/status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The process that the thread belongs to.
    pub process: u32,
    /// Its real user.
    pub user: u32,
}

impl Stat {
    /// Reads the fields of a process or thread; `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read; the process may exist.
    pub fn of(id: u32) -> io::Result<Option<Stat>> {
        read(id, "stat")?.map(|text| Stat::parse(&text).ok_or(ErrorKind::InvalidData.into())).transpose()
    }

    fn parse(text: &[u8]) -> Option<Stat> {
        // The second field is a name in parentheses that may contain anything.
        let after_name = text.rsplit(|byte| *byte == b')').next()?;
        let fields: Vec<&str> = str::from_utf8(after_name).ok()?.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Stat {
            state: *field(3)?.as_bytes().first()?,
            parent: field(4)?.parse().ok()?,
            started: field(22)?.parse().ok()?,
            stack: field(28)?.parse().ok()?,
        })
    }
}

impl Status {
    /// Reads the fields of a process or thread; `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read; the process may exist.
    pub fn of(id: u32) -> io::Result<Option<Status>> {
        read(id, "status")?.map(|text| Status::parse(&text).ok_or(ErrorKind::InvalidData.into())).transpose()
    }

    fn parse(text: &[u8]) -> Option<Status> {
        // The kernel escapes newlines in the name, in the first line.
        let text = String::from_utf8_lossy(text);
        let field =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next();
        Some(Status { process: field("Tgid:")?.parse().ok()?, user: field("Uid:")?.parse().ok()? })
    }
}

/// The name of the program that a process runs, for output to users; empty if unknown. The program chooses the name, so
/// control characters are escaped.
pub fn name(process: u32) -> String {
    let name = fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    printable(name.strip_suffix(b"\n").unwrap_or(&name))
}

fn printable(name: &[u8]) -> String {
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    String::from_utf8_lossy(name).chars().map(escaped).collect()
}

/// The identity of a process and its program, which differs from later ones with the same process id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The process id.
    pub process: u32,
    started: u64,
    stack: u64,
}

impl Identity {
    /// The identity of a process; `None` if it does not exist.
    ///
    /// # Errors
    /// The file cannot be read; the process may exist.
    pub fn of_process(process: u32) -> io::Result<Option<Identity>> {
        Ok(Stat::of(process)?.map(|Stat { started, stack, .. }| Identity { process, started, stack }))
    }

    /// The identity of the process of a thread; `None` if the thread does not exist. The stack is read from this
    /// thread, since the first thread may have ended.
    ///
    /// # Errors
    /// A file cannot be read; the thread may exist.
    pub fn of_thread(thread: u32) -> io::Result<Option<Identity>> {
        let Some(Status { process, .. }) = Status::of(thread)? else { return Ok(None) };
        let (whole, part) = (Stat::of(process)?, Stat::of(thread)?);
        let identity =
            |(whole, part): (Stat, Stat)| Identity { process, started: whole.started, stack: part.stack };
        Ok(whole.zip(part).map(identity))
    }

    /// Whether the two differ in a field that is known of both.
    pub fn is_other(self, now: Identity) -> bool {
        let differ = |one: u64, other: u64| one != 0 && other != 0 && one != other;
        self.process != now.process || differ(self.started, now.started) || differ(self.stack, now.stack)
    }
}

fn read(id: u32, name: &str) -> io::Result<Option<Vec<u8>>> {
    match fs::read(format!("/proc/{id}/{name}")) {
        Ok(text) => Ok(Some(text)),
        // ESRCH: it ended after the file was opened.
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(unsafe_code)]
    fn a_thread_belongs_to_its_process() {
        let own = std::process::id();
        // SAFETY: they take nothing.
        let (user, thread, parent) =
            unsafe { (libc::getuid(), libc::gettid() as u32, libc::getppid() as u32) };
        let status = Status { process: own, user };
        assert_eq!(Status::of(thread).unwrap(), Some(status));
        assert_eq!(Stat::of(own).unwrap().unwrap().parent, parent);
        let [process, of_thread] =
            [Identity::of_process(own), Identity::of_thread(thread)].map(|it| it.unwrap().unwrap());
        assert_eq!(process, of_thread);
        assert!(process.stack != 0 && !process.is_other(of_thread));
        assert!(process.is_other(Identity { stack: process.stack + 1, ..process }));
        assert!(!process.is_other(Identity { stack: 0, ..process }), "nothing is known of it");
        assert_eq!((Status::of(u32::MAX).unwrap(), Stat::of(u32::MAX).unwrap()), (None, None));
    }

    #[test]
    fn names_may_contain_anything() {
        let stat = |name: &str| format!("7 ({name}) S 5 {}42 1 2 3 4 5 99 1\n", "0 ".repeat(17));
        let expected = Stat { state: b'S', parent: 5, started: 42, stack: 99 };
        for name in ["cat", "a) Z 9 (", "\u{e9} b"] {
            assert_eq!(Stat::parse(stat(name).as_bytes()), Some(expected), "{name}");
        }
        assert_eq!(Stat::parse(b"7 (\xff) S 5"), None);
        assert_eq!(printable(b"a\x1b[2J 'b'\xff\n"), "a\\u{1b}[2J 'b'\u{fffd}\\n");
        let status = b"Name:\t\xff\\nTgid: 3\nTgid:\t7\nUid:\t1000\t0\t0\t0\n";
        assert_eq!(Status::parse(status), Some(Status { process: 7, user: 1000 }));
    }
}
