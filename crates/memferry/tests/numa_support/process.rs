//! What a process is made to be: in a cgroup, bound to one node.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use memferry::topology::NodeId;
use memferry_testing::{Needs, skip};

/// A cgroup of version 2 for a child process; removed on drop.
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// `None`, said aloud, where there is none to be had.
    pub(crate) fn new(settings: &[(&str, &str)]) -> Option<Cgroup> {
        let root = Path::new("/sys/fs/cgroup");
        let make = || -> io::Result<Cgroup> {
            if fs::read_dir(root)?.next().is_none() {
                // A bare guest. SAFETY: constant strings that end in zero.
                let answer = unsafe {
                    libc::mount(
                        c"cgroup2".as_ptr(),
                        c"/sys/fs/cgroup".as_ptr(),
                        c"cgroup2".as_ptr(),
                        0,
                        std::ptr::null(),
                    )
                };
                if answer != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            fs::write(root.join("cgroup.subtree_control"), "+cpuset +memory")?;
            let cgroup = Cgroup(root.join(format!("memferry-test-{}", std::process::id())));
            fs::create_dir(&cgroup.0)?;
            for (file, value) in settings {
                fs::write(cgroup.0.join(file), value)?;
            }
            Ok(cgroup)
        };
        match make() {
            Ok(cgroup) => Some(cgroup),
            Err(error) => {
                skip(Needs::Kernel("cgroups"), format!("no cgroup of version 2 can be made: {error}"));
                None
            }
        }
    }

    /// Runs one test of this binary again, in this cgroup; there it finds itself [`inside`].
    pub(crate) fn run(&self, test: &str) {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(INSIDE, &self.0)
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        assert!(text(&output.stdout).contains("1 passed"), "there is no test {test}");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

const INSIDE: &str = "MEMFERRY_TEST_CGROUP";

/// Whether this is a child for a cgroup; then it moves there.
pub(crate) fn inside() -> bool {
    let Some(cgroup) = std::env::var_os(INSIDE) else { return false };
    fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").unwrap();
    true
}

/// As `numactl --membind` does, for this thread.
pub(crate) fn bind_thread_strictly(node: NodeId) {
    let mut mask = [0 as libc::c_ulong; 16];
    mask[node.0 as usize / 64] = 1 << (node.0 % 64);
    // SAFETY: the mask has the length given with it; the kernel reads one bit fewer than told.
    let answer = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::MPOL_BIND as libc::c_long, mask.as_ptr(), 1025)
    };
    assert_eq!(answer, 0, "{}", io::Error::last_os_error());
}
