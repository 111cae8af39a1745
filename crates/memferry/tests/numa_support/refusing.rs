//! A kernel that refuses calls: an old one, a container's, or one in trouble.
#![allow(dead_code)]

use std::io;
use std::thread;

use memferry_testing::{Needs, skip};

/// A system call, one of its arguments by number, the value of it that is refused, and the answer.
pub(crate) type Refusal = (libc::c_long, u32, u32, i32);

/// Runs `work` in a thread whose calls are refused; `None`, said aloud, where that cannot be had.
///
/// Source: Linux `Documentation/userspace-api/seccomp_filter.rst`.
pub(crate) fn refusing<R: Send>(refusals: &[Refusal], work: impl FnOnce() -> R + Send) -> Option<R> {
    let run = || refusals.iter().try_for_each(refuse).map(|()| work());
    let outcome = thread::scope(|scope| scope.spawn(run).join());
    match outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
        Ok(answer) => Some(answer),
        Err(error) => {
            skip(Needs::Kernel("seccomp"), error);
            None
        }
    }
}

/// For this thread, for ever.
fn refuse(&(call, argument, value, error): &Refusal) -> io::Result<()> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let step =
        |code: u32, k: u32, otherwise: u8| libc::sock_filter { code: code as u16, jt: 0, jf: otherwise, k };
    // `struct seccomp_data`: the number of the call, and from byte 16 on its arguments.
    let mut program = [
        step(BPF_LD | BPF_W | BPF_ABS, 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, call as u32, 3),
        step(BPF_LD | BPF_W | BPF_ABS, 16 + 8 * argument, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, value, 1),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | error as u32, 0),
        step(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which is live; the other calls take numbers only.
    let answer = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
