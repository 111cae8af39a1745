//! How processes come to the memory: they connect to the server's socket, ask, and get descriptors of files.
//!
//! ```text
//! client: one byte, what it wants         server: accepts, asks the kernel who it is, answers, closes
//!   L  board and order                      bytes: "ok" and a number, or "no" and why
//!   J  a place: its own memory              descriptors: what it wants
//!   T  a channel to the trace
//! ```
//!
//! Nothing stays open but channels to the trace, which engines keep apart: programs close all descriptors that they know
//! nothing of. The server sees the end of a process by its number.
//!
//! Source: unix(7), SCM_RIGHTS and SO_PEERCRED.

#![allow(unsafe_code)]

mod connect;
mod serve;

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::{io, ptr};

pub use connect::{ConnectError, Connected};
pub use serve::Listener;

/// What a client asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Look,
    Join,
    Trace,
}

impl Request {
    const ALL: [(Request, u8); 3] = [(Request::Look, b'L'), (Request::Join, b'J'), (Request::Trace, b'T')];

    fn to_byte(self) -> u8 {
        Request::ALL[self as usize].1
    }

    fn from_byte(byte: u8) -> Option<Request> {
        Request::ALL.into_iter().find(|(_, other)| *other == byte).map(|(request, _)| request)
    }
}

/// Before an answer's number, or before the reason why there is none.
const YES: &[u8; 2] = b"ok";
const NO: &[u8; 2] = b"no";

/// Longer than any answer.
const ANSWER_BYTES_MAX: usize = 512;
/// Most descriptors of an answer.
const FILES_MAX: usize = 2;

/// Room for that many descriptors, aligned as the kernel wants it.
#[repr(align(8))]
struct Control([u8; 64]);

const _: () = {
    // SAFETY: it takes a number.
    assert!(unsafe { libc::CMSG_SPACE(size_of::<[RawFd; FILES_MAX]>() as u32) } as usize <= 64);
};

/// Sends bytes and descriptors at once, without waiting.
fn send(socket: &UnixStream, bytes: &[u8], files: &[RawFd]) -> io::Result<()> {
    assert!(files.len() <= FILES_MAX);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a msghdr is plain numbers and pointers, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    // SAFETY: the control buffer has room for the header and the descriptors, as is checked above; all pointers live until
    // the call returns, which reads them.
    let sent = unsafe {
        if !files.is_empty() {
            let size = size_of_val(files) as u32;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
            ptr::copy_nonoverlapping(files.as_ptr().cast(), libc::CMSG_DATA(header), size as usize);
        }
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent == bytes.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receives what [`send`] has sent; the number of bytes.
fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: the kernel writes into the two buffers, as much as was said that they have room for.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let mut files = Vec::new();
    // SAFETY: the kernel has written headers and descriptors into the buffer, whose end the macros look at; the descriptors
    // are new, and nobody else's.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if ((*header).cmsg_level, (*header).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    files.push(OwnedFd::from_raw_fd(ptr::read_unaligned(first.add(index))));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        // The kernel has left out what this process has no room for.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((count, files))
}
