//! Errors of queries as statuses of gRPC: the code tells a program what happened, the sentence tells a person what to do.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;

use datafusion::common::DataFusionError;
use datafusion::object_store;
use memferry_session::error::sentence;
use memferry_session::query::explain_error;
use tokio::task::JoinError;
use tonic::{Code, Status};

use crate::contain::text_of;
use crate::error::ClusterError;

/// Longest text of an error. It travels in a header, and clients limit those to 8 KiB or more.
const TEXT_BYTES_MAX: usize = 4096;

/// A status with a text that fits into a header.
pub(super) fn status(code: Code, text: impl Into<String>) -> Status {
    let mut text = text.into();
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" ...");
    }
    Status::new(code, text)
}

/// The status of an error of planning or running a statement.
pub(super) fn of_query(error: DataFusionError, memory_bytes: usize) -> Status {
    let (code, is_disk_full) = (code(&error), is_disk_full(&error));
    let text = sentence(&explain_error(error));
    match code {
        _ if is_disk_full => status(
            Code::ResourceExhausted,
            format!(
                "{text}; the disk with the temporary files of this server is full, where sorts and groups beyond its \
                 {memory_bytes} bytes of memory go: free space there, or start it with another TMPDIR or with more --memory"
            ),
        ),
        Code::ResourceExhausted => status(
            code,
            format!(
                "{text}; a query of this server has {memory_bytes} bytes of memory (--memory), choose fewer rows or \
                 columns for joins, groups and sorts"
            ),
        ),
        Code::DataLoss => status(code, format!("{text}; check the files of the table on the server")),
        Code::NotFound => status(code, format!("{text}; the files of the table are not where they were")),
        code => status(code, text),
    }
}

/// The code of the innermost error.
fn code(error: &DataFusionError) -> Code {
    match error.find_root() {
        DataFusionError::SQL(..)
        | DataFusionError::SchemaError(..)
        | DataFusionError::Plan(_)
        | DataFusionError::Configuration(_) => Code::InvalidArgument,
        DataFusionError::NotImplemented(_) => Code::Unimplemented,
        DataFusionError::ResourcesExhausted(_) => Code::ResourceExhausted,
        DataFusionError::ParquetError(_) => Code::DataLoss,
        DataFusionError::ObjectStore(error) => match **error {
            object_store::Error::NotFound { .. } => Code::NotFound,
            _ => Code::Unavailable,
        },
        DataFusionError::IoError(error) => of_io(error),
        DataFusionError::ArrowError(..) | DataFusionError::Execution(_) => Code::InvalidArgument,
        DataFusionError::External(error) => match error.downcast_ref::<io::Error>() {
            Some(error) => of_io(error),
            // Workers or shards are lost, or there are two descriptions: the query may succeed later.
            None if error.is::<ClusterError>() => Code::Unavailable,
            None => Code::Internal,
        },
        _ => Code::Internal,
    }
}

fn of_io(error: &io::Error) -> Code {
    match error.kind() {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::UnexpectedEof | ErrorKind::InvalidData => Code::DataLoss,
        _ => Code::Unavailable,
    }
}

/// Whether a temporary file could not be written for want of space: writers of Arrow wrap that several times.
fn is_disk_full(error: &DataFusionError) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if let Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge) = kind {
            return true;
        }
        next = error.source();
    }
    false
}

/// The status of a task that did not run to its end.
pub(super) fn of_end(error: JoinError) -> Status {
    match error.try_into_panic() {
        Ok(panic) => {
            let text = text_of(panic.as_ref());
            let fault = "the query failed by a fault in memferry or DataFusion";
            status(Code::Internal, format!("{fault}: {text}; please report it with the statement"))
        }
        Err(_) => cancelled(),
    }
}

pub(super) fn cancelled() -> Status {
    status(Code::Cancelled, "the query was cancelled")
}

pub(super) fn shutting_down() -> Status {
    status(Code::Unavailable, "the server is shutting down; connect again later")
}

pub(super) fn out_of_time(limit: Duration) -> Status {
    status(
        Code::DeadlineExceeded,
        format!("the query took longer than the {} that this server allows (--time)", seconds(limit)),
    )
}

pub(super) fn too_many(limit: usize, waited: Duration) -> Status {
    status(
        Code::ResourceExhausted,
        format!(
            "{limit} queries are running, which is the limit of this server (--queries), and none ended within {}; try \
             again later",
            seconds(waited)
        ),
    )
}

/// `2 s` or `0.250 s`.
fn seconds(time: Duration) -> String {
    match time.subsec_nanos() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{:.3} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::error::ArrowError;

    use super::*;

    #[test]
    fn texts_fit_into_a_header() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        let text = status(Code::Internal, long).message().to_owned();
        assert!(text.len() <= TEXT_BYTES_MAX + 4 && text.ends_with("é ..."), "{}", text.len());
    }

    #[test]
    fn codes_of_the_innermost_error() {
        let of = |error: DataFusionError| of_query(error.context("while reading t"), 1000);
        let exhausted = of(DataFusionError::ResourcesExhausted("no room".to_owned()));
        assert_eq!(exhausted.code(), Code::ResourceExhausted);
        assert!(exhausted.message().contains("1000 bytes of memory (--memory)"), "{exhausted}");
        let vanished = io::Error::from(ErrorKind::NotFound);
        assert_eq!(of(DataFusionError::IoError(vanished)).code(), Code::NotFound);
        let full = io::Error::other(DataFusionError::IoError(io::Error::from(ErrorKind::StorageFull)));
        let full = of(ArrowError::IoError("write".to_owned(), full).into());
        assert!(full.code() == Code::ResourceExhausted && full.message().contains("TMPDIR"), "{full}");
        let lost = ClusterError::Unreachable { reasons: vec![] };
        assert_eq!(of(DataFusionError::External(Box::new(lost))).code(), Code::Unavailable);
        assert_eq!(of(DataFusionError::Plan("x".to_owned())).code(), Code::InvalidArgument);
        assert_eq!(of(DataFusionError::Internal("x".to_owned())).code(), Code::Internal);
    }
}
