//! Reading ahead against a source that only notes what was started.

use std::sync::Mutex;

use bytes::Bytes;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use futures::FutureExt;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::file::properties::WriterProperties;

use super::*;
use crate::files::FileError;
use crate::files::source::From;

/// Notes the starts of reads.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<Range<u64>>>);

impl RangeSource for Notes {
    fn size_bytes(&self) -> u64 {
        u64::MAX
    }

    fn name(&self) -> &str {
        "notes"
    }

    fn start(&self, range: Range<u64>) -> Read {
        self.0.lock().unwrap().push(range.clone());
        Read { range, bytes: std::future::ready(Ok(Bytes::new())).boxed(), from: From::File }
    }

    fn merge(&self, mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        ranges.sort_unstable_by_key(|range| range.start);
        ranges
    }

    fn check_unchanged(&self) -> Result<(), FileError> {
        Ok(())
    }

    fn window_bytes_max(&self) -> u64 {
        u64::MAX
    }
}

/// Row groups of three columns.
fn chunks(groups_count: usize) -> Arc<Chunks> {
    let rows = 0..groups_count as i64 * 10;
    let column = |seed: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| row * seed)))
    };
    let batch = RecordBatch::try_from_iter([("a", column(1)), ("b", column(2)), ("c", column(3))]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(10)).build();
    let mut writer = ArrowWriter::try_new(vec![], batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let file = Bytes::from(writer.into_inner().unwrap());
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
    Arc::new(Chunks::new(Arc::new(metadata), file.len() as u64).unwrap())
}

struct Scan {
    chunks: Arc<Chunks>,
    source: Notes,
    ahead: ReadAhead,
}

impl Scan {
    /// Of eight row groups.
    fn new(predicted: &[&[usize]], window_bytes: u64) -> Self {
        Self::of_groups(8, predicted, window_bytes)
    }

    fn of_groups(groups_count: usize, predicted: &[&[usize]], window_bytes: u64) -> Self {
        let chunks = chunks(groups_count);
        let groups = (0..groups_count).map(|index| RowGroup { index, rows: None }).collect();
        let predicted = predicted.iter().map(|leaves| leaves.to_vec()).collect();
        let ahead = ReadAhead::new(Arc::clone(&chunks), groups, predicted, window_bytes);
        Self { chunks, source: Notes::default(), ahead }
    }

    fn range(&self, group: usize, leaf: usize) -> Range<u64> {
        self.chunks.range(Chunk { group, leaf })
    }

    /// A request of the decoder: the number of reads that were ahead, and the chunks that are read ahead now.
    fn request(&mut self, group: usize, leaves: &[usize]) -> (usize, Vec<(usize, usize)>) {
        let ranges: Vec<_> = leaves.iter().map(|&leaf| self.range(group, leaf)).collect();
        let Requested { ahead, now } = self.ahead.request(&ranges, &self.source);
        assert_eq!(ahead.len() + now.len(), leaves.len(), "each range is read once");
        let started = self.ahead.fill(&self.source).len();
        let notes = std::mem::take(&mut *self.source.0.lock().unwrap());
        assert_eq!(notes.len(), started);
        let started = notes.iter().map(|range| self.chunks.find(range).unwrap());
        (ahead.len(), started.map(|chunk| (chunk.group, chunk.leaf)).collect())
    }
}

#[test]
fn the_distance_doubles() {
    let mut scan = Scan::new(&[&[0, 1]], u64::MAX);
    assert_eq!(scan.request(0, &[0, 1]), (0, vec![(1, 0), (1, 1)]));
    assert_eq!(scan.request(1, &[0, 1]), (2, vec![(2, 0), (2, 1), (3, 0), (3, 1)]));
    assert_eq!(scan.request(2, &[0, 1]).0, 2);
    assert_eq!(scan.request(3, &[0, 1]).1, vec![(7, 0), (7, 1)], "the last one");
    assert_eq!(scan.ahead.take_dropped_bytes(), 0);
}

/// The distance overflowed at the 65th row group, and the query failed as if the file were damaged.
#[test]
fn the_distance_of_many_row_groups_is_theirs() {
    let mut scan = Scan::of_groups(100, &[&[0]], u64::MAX);
    for group in 1..100 {
        scan.request(group, &[0]);
    }
    assert_eq!(scan.ahead.take_dropped_bytes(), 0);
}

#[test]
fn the_window_bounds_what_is_started() {
    let mut scan = Scan::new(&[&[0, 1]], 1);
    assert_eq!(scan.request(0, &[0, 1]), (0, vec![(1, 0)]), "one read, however large");
    assert_eq!(scan.request(1, &[0, 1]), (1, vec![(2, 0)]), "the rest was read on request");
    let mut off = Scan::new(&[&[0, 1]], 0);
    assert_eq!(off.request(0, &[0, 1]), (0, vec![]));
}

#[test]
fn what_the_decoder_requested_corrects_the_prediction() {
    // A struct of which the scan reads one leaf is not predicted.
    let mut scan = Scan::new(&[], u64::MAX);
    assert_eq!(scan.request(0, &[2]), (0, vec![(1, 2)]));
    let mut wrong = Scan::new(&[&[0, 1]], u64::MAX);
    assert_eq!(wrong.request(0, &[2]), (0, vec![(1, 2)]));
}

#[test]
fn late_columns_are_read_ahead_while_rows_pass() {
    let mut scan = Scan::new(&[&[0], &[2]], u64::MAX);
    // Whether rows pass is unknown: the late column of this row group only.
    assert_eq!(scan.request(0, &[0]), (0, vec![(0, 2), (1, 0)]));
    assert_eq!(scan.request(0, &[2]), (1, vec![(1, 2)]));
    assert_eq!(scan.request(1, &[0]), (1, vec![(2, 0), (2, 2), (3, 0), (3, 2)]));
    // No row passed in row group 1: its late column is dropped, and no other is started.
    let late_bytes = scan.range(1, 2).end - scan.range(1, 2).start;
    let (_, started) = scan.request(2, &[0]);
    assert!(started.iter().all(|&(_, leaf)| leaf == 0), "{started:?}");
    assert_eq!(scan.ahead.take_dropped_bytes(), late_bytes);
}

#[test]
fn a_scan_that_begins_with_the_last_row_group_goes_backwards() {
    let mut scan = Scan::new(&[&[0]], u64::MAX);
    assert_eq!(scan.request(7, &[0]), (0, vec![(6, 0)]));
    assert_eq!(scan.request(6, &[0]), (1, vec![(5, 0), (4, 0)]));
}

#[test]
fn row_groups_that_a_dynamic_filter_excludes_are_dropped() {
    let mut scan = Scan::new(&[&[0]], u64::MAX);
    scan.request(0, &[0]);
    scan.request(1, &[0]);
    let bytes = |range: Range<u64>| range.end - range.start;
    let kept = [RowGroup { index: 5, rows: None }];
    scan.ahead.narrow(&kept);
    assert_eq!(scan.ahead.take_dropped_bytes(), bytes(scan.range(2, 0)) + bytes(scan.range(3, 0)));
    assert_eq!(scan.request(5, &[0]), (0, vec![]));
}
