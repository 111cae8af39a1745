//! The socket of a server: processes connect to it, send a request, and get the memory as file descriptors.
//!
//! ```text
//! client: one byte, the request           server: accepts, gets the peer from the kernel, answers, closes
//!   L  board and order                      bytes: "ok" and a number, or "no" and the reason
//!   J  join: the client's memory            file descriptors: the requested ones
//!   T  a channel to the trace
//! ```
//!
//! Only channels to the trace stay open. Engines keep them out of the program's sight, since programs close file
//! descriptors that they do not know. The server detects the end of a process by its id.
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

/// A request of a client, and its byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Request {
    Look = b'L',
    Join = b'J',
    Trace = b'T',
}

impl Request {
    fn from_byte(byte: u8) -> Option<Request> {
        [Request::Look, Request::Join, Request::Trace].into_iter().find(|request| *request as u8 == byte)
    }
}

/// The start of an answer with a number, and of one with the reason of a refusal.
const YES: &[u8; 2] = b"ok";
const NO: &[u8; 2] = b"no";

/// Maximum length of an answer.
const ANSWER_BYTES_MAX: usize = 512;
/// Maximum number of file descriptors of an answer.
const FILES_MAX: usize = 2;

/// A control buffer for so many file descriptors, aligned as the kernel requires.
#[repr(align(8))]
struct Control([u8; 64]);

const _: () = {
    // SAFETY: CMSG_SPACE takes a number.
    assert!(unsafe { libc::CMSG_SPACE(size_of::<[RawFd; FILES_MAX]>() as u32) } as usize <= 64);
};

/// Sends bytes and file descriptors in one message, without waiting.
fn send(socket: &UnixStream, bytes: &[u8], files: &[RawFd]) -> io::Result<()> {
    assert!(files.len() <= FILES_MAX);
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a msghdr consists of numbers and pointers, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    // SAFETY: the control buffer has room for the header and the file descriptors, as checked above; all pointers live
    // until the call, which reads them, returns.
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

/// Receives a message of [`send`]; returns the number of bytes and the file descriptors.
fn receive(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = Control([0; 64]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    // SAFETY: the kernel writes into the two buffers, at most their given lengths.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    let mut files = Vec::new();
    // SAFETY: the kernel has written headers and file descriptors into the buffer, whose end the macros check; the file
    // descriptors are new and have no other owner.
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
        // The kernel has dropped file descriptors because this process is at its limit.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((count, files))
}
