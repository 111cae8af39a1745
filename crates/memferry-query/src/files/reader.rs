//! The reader of one file for DataFusion's Parquet decoder: each request is answered by reads that were started ahead,
//! by near copies, or by reads that start now.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use datafusion::common::DataFusionError;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use memferry::model::Observed;
use object_store::{ObjectMeta, ObjectStore};
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};

use super::ahead::{ReadAhead, Requested};
use super::chunks::Chunks;
use super::factory::Readers;
use super::metrics::ReaderMetrics;
use super::next::Begun;
use super::place::Place;
use super::plan_ahead::InPlan;
use super::source::{From, RangeSource, Read};
use super::{FileError, store};

/// Where the reader gets the metadata of its file from.
#[derive(Debug, Clone)]
pub(super) struct MetadataSource {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) cache: Arc<FileMetadataCache>,
    pub(super) size_hint: Option<usize>,
    pub(super) time_out: Duration,
}

impl MetadataSource {
    /// The metadata of the version `planned` of a file, from the cache if they are there.
    pub(super) async fn fetch(
        &self,
        planned: &ObjectMeta,
        policy: PageIndexPolicy,
    ) -> Result<Arc<ParquetMetaData>> {
        let metadata = DFParquetMetadata::new(&*self.store, planned)
            .with_metadata_size_hint(self.size_hint)
            .with_file_metadata_cache(Some(Arc::clone(&self.cache)))
            .with_page_index_policy(Some(policy));
        match tokio::time::timeout(self.time_out, metadata.fetch_metadata()).await {
            Ok(Ok(metadata)) => Ok(metadata),
            Ok(Err(error)) => Err(explain(&*self.store, planned, self.time_out, error).await),
            Err(_) => {
                let (file, time_out) = (planned.location.to_string(), self.time_out);
                let requested = self.size_hint.unwrap_or(FOOTER_BYTES) as u64;
                Err(FileError::TimeOut { file, requested, time_out }.into())
            }
        }
    }
}

/// The error of metadata that cannot be read: the change of the file since the version `planned`, or the error with the name of the
/// file. The footer of another version is mostly taken for a damaged one.
pub(super) async fn explain(
    store: &dyn ObjectStore,
    planned: &ObjectMeta,
    time_out: Duration,
    error: DataFusionError,
) -> ParquetError {
    if let Some(changed) = store::change(store, planned, time_out).await {
        return changed.into();
    }
    let file = planned.location.to_string();
    match error {
        DataFusionError::ParquetError(error) => match *error {
            ParquetError::External(source) if source.is::<object_store::Error>() => {
                let source = *source.downcast().expect("asked above");
                FileError::Store { file, source }.into()
            }
            error => damaged_metadata(file, &error),
        },
        DataFusionError::ObjectStore(source) => FileError::Store { file, source: *source }.into(),
        error => ParquetError::External(Box::new(error)),
    }
}

fn damaged_metadata(files: String, error: &ParquetError) -> ParquetError {
    FileError::Damaged { files, place: Some("its metadata".to_owned()), why: error.to_string() }.into()
}

/// The end of a Parquet file: length of the metadata, magic number. Source: Apache Parquet format, "File format".
const FOOTER_BYTES: usize = 8;

/// The reader of one file, or of the part of it that one partition scans.
pub(super) struct FileReader {
    pub(super) source: Arc<dyn RangeSource>,
    pub(super) file: PartitionedFile,
    pub(super) metadata: MetadataSource,
    /// Those of the scan.
    pub(super) readers: Readers,
    pub(super) metrics: ReaderMetrics,
    pub(super) partition: usize,
    pub(super) chunks: Option<Arc<Chunks>>,
    pub(super) ahead: Option<ReadAhead>,
    /// Whether the beginning of another file, or of another scan, is being read.
    pub(super) has_begun_next: bool,
    pub(super) tracking: DynamicFilterTracking,
    /// The last request of columns.
    pub(super) delivered: Option<Delivered>,
}

/// A request of the decoder that was answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivered {
    at: Instant,
    waited: Duration,
    bytes: u64,
    read_bytes: u64,
    /// Whether it is the first one of a row group.
    is_new_group: bool,
    /// Whether it is the first one of the reader.
    is_first: bool,
}

impl AsyncFileReader for FileReader {
    /// Reads what is no column: Bloom filters, page indexes.
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            let ranges = [range];
            self.check(&ranges)?;
            let read = self.start(ranges[0].clone());
            let mut parts = self.finish(&ranges, vec![read], 0).await?;
            Ok(parts.pop().expect("one for each range"))
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            self.check(&ranges)?;
            let is_first = self.delivered.is_none();
            self.note_times();
            if self.chunks.is_none() {
                // DataFusion reads Bloom filters by one reader and continues with another one, which has not been asked for
                // the metadata. They are in the session's cache.
                self.load_chunks(None).await?;
            }
            if let Some(chunks) = &self.chunks {
                let request = (Arc::clone(chunks), ranges.clone());
                let place = Place { file: Arc::from(self.source.name()), request: Some(request) };
                self.readers.places.enter(self.partition, place);
            }
            self.look_ahead(&ranges).await?;
            let is_new_group =
                is_first || self.ahead.as_ref().is_some_and(|ahead| ahead.enters_group(&ranges));
            if let (Some(state), Some(window_bytes)) = (&mut self.ahead, self.readers.forecast.window_bytes())
            {
                state.set_window(window_bytes);
            }
            let Requested { ahead, now } = match &mut self.ahead {
                Some(state) => state.request(&ranges, &*self.source),
                None => Requested { ahead: vec![], now: self.source.merge(ranges.clone()) },
            };
            let mut hit_bytes: u64 = ahead.iter().map(Read::len).sum();
            let mut reads = ahead;
            for range in now {
                let read = self.start(range);
                hit_bytes += if read.from == From::Near { read.len() } else { 0 };
                reads.push(read);
            }
            // After the reads that the decoder waits for: the source serves them in this order.
            if let Some(state) = &mut self.ahead {
                let in_vain = state.take_dropped_bytes();
                self.metrics.reads.in_vain(in_vain);
                if self.tracking.watcher().is_some() {
                    state.expect_narrowing();
                }
                state.fill(&*self.source).into_iter().for_each(|read| self.metrics.reads.started(read, true));
                // A limit or a dynamic filter may exclude the next file.
                let goes_on = self.readers.demand.rows_max().is_none() && self.tracking.watcher().is_none();
                let is_on = self.readers.window_bytes > 0 && !self.has_begun_next;
                if is_on && state.is_exhausted() {
                    let next = &self.readers.next;
                    if next.is_last(self.partition) {
                        self.has_begun_next = true;
                        self.readers.in_plan.get().into_iter().for_each(InPlan::all_started);
                    } else if goes_on {
                        self.has_begun_next = true;
                        next.begin(&self.readers, self.partition, self.metrics.reads.clone());
                    }
                }
            }
            let read_bytes: u64 = reads.iter().filter(|read| read.from != From::Near).map(Read::len).sum();
            let bytes = ranges.iter().map(|range| range.end - range.start).sum();
            let begin = Instant::now();
            let parts = self.finish(&ranges, reads, hit_bytes).await?;
            let at = Instant::now();
            let (waited, read_bytes) = (at - begin, read_bytes.min(bytes));
            self.delivered = Some(Delivered { at, waited, bytes, read_bytes, is_new_group, is_first });
            Ok(parts)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let chunks = self.load_chunks(options.map(|options| options.column_index_policy())).await?;
            Ok(Arc::clone(chunks.metadata()))
        }
        .boxed()
    }
}

impl FileReader {
    /// Damaged metadata lead to ranges outside the file.
    fn check(&self, ranges: &[Range<u64>]) -> Result<()> {
        let size_bytes = self.source.size_bytes();
        match ranges.iter().find(|range| range.start > range.end || range.end > size_bytes) {
            None => Ok(()),
            Some(&Range { start, end }) => {
                let file = self.source.name().to_owned();
                Err(FileError::OutOfRange { file, start, end, size_bytes }.into())
            }
        }
    }

    /// Loads the metadata of the file.
    async fn load_chunks(&mut self, wanted: Option<PageIndexPolicy>) -> Result<Arc<Chunks>> {
        let metadata = self.metadata.fetch(&self.file.object_meta, self.readers.policy(wanted)).await?;
        let chunks = Chunks::new(metadata, self.source.size_bytes());
        let chunks = chunks.map_err(|error| damaged_metadata(self.source.name().to_owned(), &error))?;
        let chunks = Arc::new(chunks);
        self.chunks = Some(Arc::clone(&chunks));
        Ok(chunks)
    }

    /// Notes how long the last request took, until now.
    fn note_times(&self) {
        let Some(Delivered { at, waited, bytes, read_bytes, is_new_group, is_first }) = self.delivered else {
            return;
        };
        let worked = at.elapsed();
        let seen = Observed {
            groups_count: u64::from(is_new_group),
            bytes,
            read_bytes,
            waited_s: waited.as_secs_f64(),
            worked_s: worked.as_secs_f64(),
        };
        let Some(outcome) = self.readers.forecast.observe(seen, is_first) else { return };
        self.metrics.outcome(outcome);
        if let Some(tiers) = &self.readers.tiers {
            tiers.files().rates().worked(worked, bytes);
        }
    }

    fn start(&self, range: Range<u64>) -> Read {
        let read = self.source.start(range);
        self.metrics.reads.started(&read, false);
        read
    }

    /// Prepares reading ahead: at the first request, and when a dynamic filter may leave fewer row groups.
    async fn look_ahead(&mut self, ranges: &[Range<u64>]) -> Result<()> {
        let Some(chunks) = &self.chunks else { return Ok(()) };
        let (external, demand) = (|error| ParquetError::External(Box::new(error)), &self.readers.demand);
        let Some(ahead) = &mut self.ahead else {
            self.tracking = demand.tracking();
            self.ahead = Some(match self.readers.next.take(self.partition, &self.file).await {
                Some(Begun { mut ahead, is_provisional, .. }) => {
                    if is_provisional {
                        let groups = demand.row_groups(&self.file, chunks.metadata()).map_err(external)?;
                        ahead.narrow(groups.as_slice());
                    }
                    ahead
                }
                None => self.readers.ahead(&*self.source, &self.file, chunks).map_err(external)?,
            });
            return Ok(());
        };
        if ahead.enters_group(ranges) && self.tracking.watcher().is_some_and(|tracker| tracker.changed()) {
            let groups = demand.row_groups(&self.file, chunks.metadata()).map_err(external)?;
            ahead.narrow(groups.as_slice());
        }
        Ok(())
    }

    /// Waits for `reads`, which cover `ranges`, and cuts the ranges out of them.
    async fn finish(
        &mut self,
        ranges: &[Range<u64>],
        reads: Vec<Read>,
        hit_bytes: u64,
    ) -> Result<Vec<Bytes>> {
        let requested_bytes = ranges.iter().map(|range| range.end - range.start).sum();
        self.metrics.requested(requested_bytes, hit_bytes);
        let read_bytes: u64 = reads.iter().filter(|read| read.from != From::Near).map(Read::len).sum();
        let chunks = self.chunks.as_ref();
        let waits = reads.into_iter().map(|Read { range, bytes, .. }| async move {
            match bytes.await {
                Ok(bytes) => Ok((range, bytes)),
                Err(error) => Err(error.in_chunks(chunks.and_then(|chunks| chunks.describe(&[range])))),
            }
        });
        let begin = Instant::now();
        let mut parts = {
            let _waiting = self.metrics.time_waiting.timer();
            try_join_all(waits).await?
        };
        if let Some(tiers) = &self.readers.tiers {
            tiers.files().rates().waited(begin.elapsed(), read_bytes);
        }
        self.source.check_unchanged()?;
        parts.sort_unstable_by_key(|(range, _)| range.start);
        Ok(ranges.iter().map(|range| cut(&parts, range)).collect())
    }
}

impl Drop for FileReader {
    fn drop(&mut self) {
        self.note_times();
        if let Some(ahead) = &mut self.ahead {
            self.metrics.reads.in_vain(ahead.take_dropped_bytes() + ahead.unrequested_bytes());
        }
    }
}

/// The bytes of `range`, without a copy. `parts` are sorted by start.
fn cut(parts: &[(Range<u64>, Bytes)], range: &Range<u64>) -> Bytes {
    if range.is_empty() {
        return Bytes::new();
    }
    // A part may lie inside another one, so the nearest start is not always the one that covers the range.
    let before = parts.partition_point(|(part, _)| part.start <= range.start);
    let (part, bytes) = parts[..before]
        .iter()
        .rev()
        .find(|(part, _)| range.end <= part.end)
        .expect("the reads cover each range");
    bytes.slice((range.start - part.start) as usize..(range.end - part.start) as usize)
}
