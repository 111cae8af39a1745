//! Tables in memory: rows cut into groups, every column of a group in buffers of its own.
//!
//! ```text
//! TableData ── partition ── RowGroup ── RowGroup ── ...      a partition is a run of groups
//!                              │
//!                  a mapping for each node that holds columns of it, of exactly the size they need
//!                  │ a: values │ b: nulls │ b: values │ c: views │ c: strings │ ...
//!                  every buffer starts at a multiple of 64 bytes
//! ```
//!
//! A column of a group is copied near as a whole: its buffers hold the bytes of its rows only. A batch of a query is a
//! slice of one group. [`TableWriter`] cuts batches of any size into groups as they come, so
//! that loading a table needs the memory of the table and of one more group per partition.
//!
//! Integers may be [bit-packed](crate::BitPacked): each row group has its own smallest value and width, and is packed as a whole
//! when it is cut. A column of strings or decimals with few values in a row group is a dictionary there; other decimals have as
//! few whole bytes as they need.
//!
//! Columns of numbers, dates and times know the least and the largest value of each [block](blocks) of 512 rows.
//!
//! Source: Arrow columnar format, "Buffer Alignment and Padding" (64 bytes) and "Variable-size Binary View Layout".

mod blocks;
mod dictionary;
#[allow(unsafe_code)]
mod draft;
mod encoding;
mod error;
mod group;
#[allow(unsafe_code)]
mod kept;
mod sorted;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod within;
mod writer;

pub(crate) use blocks::{BLOCK_ROWS, key_of};
pub(crate) use dictionary::passing;
pub(crate) use encoding::Encoding;
pub use error::TableError;
pub use group::RowGroup;
pub use table::TableData;
pub use writer::{Layout, PackedColumns, ROW_GROUP_ROWS, ROW_GROUP_ROWS_STEP, TableWriter};

pub(crate) use kept::{KeptArray, NotKept, is_keepable};
pub(crate) use sorted::is_integer;
pub(crate) use table::MovedGroup;
pub(crate) use within::{has_exact_keys, within};
pub(crate) use writer::PartitionWriter;
