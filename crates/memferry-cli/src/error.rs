//! Errors as one sentence, and their exit statuses.

use std::io;

pub(crate) use memferry_session::error::{is_usage, one_line, sentence, usage};

/// Exit status of a usage error: a wrong option, value, or name in the SQL. The same as clap's.
pub(crate) const STATUS_USAGE: u8 = 2;
/// Exit status of all other errors.
pub(crate) const STATUS_FAILURE: u8 = 1;
/// Exit status of `doctor` with warnings only.
pub(crate) const STATUS_WARNINGS: u8 = 3;
/// Exit status of `doctor` with an error.
pub(crate) const STATUS_ERRORS: u8 = 4;

/// The error of a statement in a file. It is a failure also if the statement is wrong: the command line is right.
pub(crate) fn at(file: &str, line: usize, error: &anyhow::Error) -> anyhow::Error {
    anyhow::anyhow!("{file}:{line}: {}", sentence(error))
}

pub(crate) fn status(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<memferry_offload::Error>() {
        return error.exit_code();
    }
    if let Some(error) = error.downcast_ref::<memferry_guest::Error>() {
        return error.exit_code();
    }
    match error.downcast_ref::<memferry_emulate::Error>() {
        Some(error) => error.exit_code(),
        None if is_usage(error) => STATUS_USAGE,
        None => STATUS_FAILURE,
    }
}

/// Whether the reader of the output has closed the pipe, as in `memferry ... | head`. This is not an error.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn usage_errors_have_their_own_status() {
        assert_eq!(status(&usage("no such node")), STATUS_USAGE);
        assert_eq!(status(&anyhow::anyhow!("disk full")), STATUS_FAILURE);
    }

    #[test]
    fn closed_pipe_is_found_below_context() {
        let closed = || anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_closed_pipe(&closed().context("cannot write the output")));
        let full: Result<(), _> = Err(io::Error::from(io::ErrorKind::StorageFull));
        assert!(!is_closed_pipe(&full.context("cannot write the output").unwrap_err()));
    }
}
