//! Statuses, and the message of a thread's last error.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::fmt;

use memferry::cache::{AccessError, BuildError};
use memferry::memory::MemoryError;
use memferry::mover::{CopyError, MoverError};
use memferry::topology::TopologyError;

/// The result of a function. 0 is success; `mf_error_message` explains the others.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum mf_status {
    /// Success.
    MF_OK = 0,
    /// An argument is NULL, out of range, or contradicts another one.
    MF_INVALID_ARGUMENT = 1,
    /// A handle is 0, was freed, or is of another kind.
    MF_INVALID_HANDLE = 2,
    /// The object is in use, or the operation is in flight. Try again later.
    MF_BUSY = 3,
    /// The call is not allowed here: in this callback, or in a signal handler that interrupted a call.
    MF_NOT_HERE = 4,
    /// There is no such node, profile, or budget on the node.
    MF_NOT_FOUND = 5,
    /// Memory, handles or budget are exhausted.
    MF_NO_MEMORY = 6,
    /// This machine or kernel lacks what the call needs, such as a usable DSA.
    MF_UNSUPPORTED = 7,
    /// The kernel refused a call.
    MF_SYSTEM = 8,
    /// The engines could not execute the operation. The content of the target is undefined.
    MF_FAILED = 9,
    /// A device was lost that may still access the buffers. Never free or reuse them.
    MF_BUFFERS_LOST = 10,
    /// The operation was in flight when this process was forked. It goes on in the parent.
    MF_FORKED = 11,
    /// The operation is in flight. Returned by polling functions only.
    MF_PENDING = 12,
    /// A defect of the library, contained. Please report it.
    MF_INTERNAL = 13,
}

/// A status with its message. Boxed: results without a value fit into a register.
#[derive(Clone, Debug)]
pub(crate) struct Error(Box<(mf_status, String)>);

impl Error {
    #[cold]
    pub(crate) fn new(status: mf_status, text: impl Into<String>) -> Error {
        Error(Box::new((status, text.into())))
    }

    pub(crate) fn status(&self) -> mf_status {
        self.0.0
    }

    pub(crate) fn argument(text: impl Into<String>) -> Error {
        Error::new(mf_status::MF_INVALID_ARGUMENT, text)
    }

    /// With the causes of `error`.
    fn of(status: mf_status, error: &dyn std::error::Error) -> Error {
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            // Transparent errors repeat their cause.
            if !text.ends_with(&error.to_string()) {
                text = format!("{text}: {error}");
            }
            cause = error.source();
        }
        Error::new(status, text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.1)
    }
}

macro_rules! statuses {
    ($($error:ty: |$name:ident| $status:expr;)*) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Error {
                let $name = &error;
                Error::of($status, &error)
            }
        })*
    };
}

statuses! {
    TopologyError: |error| match error {
        TopologyError::UnknownNode { .. } | TopologyError::UnknownProfile { .. } => mf_status::MF_NOT_FOUND,
        _ => mf_status::MF_SYSTEM,
    };
    MoverError: |error| match error {
        MoverError::NoDsa { .. } | MoverError::NoQueue | MoverError::NoPortals => mf_status::MF_UNSUPPORTED,
        _ => mf_status::MF_SYSTEM,
    };
    MemoryError: |error| memory_status(error);
    BuildError: |error| match error {
        BuildError::NoBudget | BuildError::BudgetTooSmall { .. } => mf_status::MF_INVALID_ARGUMENT,
        BuildError::UnknownNode(_) => mf_status::MF_NOT_FOUND,
        BuildError::Memory(error) => memory_status(error),
        _ => mf_status::MF_SYSTEM,
    };
    AccessError: |error| match error {
        AccessError::NoBudget { .. } => mf_status::MF_NOT_FOUND,
        _ => mf_status::MF_INVALID_ARGUMENT,
    };
    CopyError: |error| match error {
        CopyError::Forked => mf_status::MF_FORKED,
        CopyError::Invalid(_) | CopyError::LengthMismatch { .. } => mf_status::MF_INVALID_ARGUMENT,
        error if error.buffers_are_lost() => mf_status::MF_BUFFERS_LOST,
        _ => mf_status::MF_FAILED,
    };
    memferry_dsa_emulator::StartError: |_error| mf_status::MF_SYSTEM;
}

fn memory_status(error: &MemoryError) -> mf_status {
    match error {
        MemoryError::Topology(_) | MemoryError::NodeWithoutMemory { .. } => mf_status::MF_NOT_FOUND,
        MemoryError::BudgetTooLarge { .. } => mf_status::MF_INVALID_ARGUMENT,
        MemoryError::Unsupported { .. } => mf_status::MF_UNSUPPORTED,
        MemoryError::NotAllowed { .. } => mf_status::MF_SYSTEM,
        _ => mf_status::MF_NO_MEMORY,
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the message for `mf_error_message`. Returns the status.
#[cold]
pub(crate) fn keep(error: &Error) -> mf_status {
    let text = CString::new(error.0.1.replace('\0', "?")).unwrap_or_default();
    // Without a message if the thread is ending, or a signal handler interrupted this very function.
    let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = text));
    error.status()
}

/// The message of the last call on this thread that failed, or "". Never NULL.
///
/// It says what failed, why, and what to do. Valid until the next call on this thread fails; a call that succeeds keeps
/// it.
#[unsafe(no_mangle)]
pub extern "C" fn mf_error_message() -> *const c_char {
    let last = LAST.try_with(|last| last.try_borrow().map_or(c"".as_ptr(), |last| last.as_ptr()));
    last.unwrap_or(c"".as_ptr())
}

/// The name of a status, such as "MF_BUSY". Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn mf_status_name(status: i32) -> *const c_char {
    const NAMES: [&CStr; 14] = [
        c"MF_OK",
        c"MF_INVALID_ARGUMENT",
        c"MF_INVALID_HANDLE",
        c"MF_BUSY",
        c"MF_NOT_HERE",
        c"MF_NOT_FOUND",
        c"MF_NO_MEMORY",
        c"MF_UNSUPPORTED",
        c"MF_SYSTEM",
        c"MF_FAILED",
        c"MF_BUFFERS_LOST",
        c"MF_FORKED",
        c"MF_PENDING",
        c"MF_INTERNAL",
    ];
    let name = usize::try_from(status).ok().and_then(|status| NAMES.get(status));
    name.map_or(c"unknown status".as_ptr(), |name| name.as_ptr())
}
