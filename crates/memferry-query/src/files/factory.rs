//! The reader factory of one scan: it carries the demand to the readers of the scan's files.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::ParquetFileReaderFactory;
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use memferry::model::{FileScan, Forecast};
use object_store::local::LocalFileSystem;
use object_store::{ObjectMeta, ObjectStore};
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::file::metadata::PageIndexPolicy;

use super::ahead::ReadAhead;
use super::chunks::Chunks;
use super::forecast::{ScanForecast, Volume};
use super::metrics::ReaderMetrics;
use super::next::NextFiles;
use super::place::{Place, Places};
use super::plan_ahead::InPlan;
use super::reader::{FileReader, MetadataSource};
use super::source::RangeSource;
use super::store::{StoreLimits, StoreObject};
use super::stored::{LocalFile, Unkept};
use super::{Demand, FileError};
use crate::tiers::Tiers;

/// The reader factory of one scan.
#[derive(Clone)]
pub(super) struct Readers {
    pub(super) store: Arc<dyn ObjectStore>,
    /// Near memory, if the store is the file system of this machine.
    pub(super) tiers: Option<Arc<Tiers>>,
    pub(super) cache: Arc<FileMetadataCache>,
    pub(super) demand: Arc<Demand>,
    pub(super) limits: StoreLimits,
    /// Limit of what a partition reads ahead. 0 turns reading ahead off.
    pub(super) window_bytes: u64,
    /// Whether near memory keeps what is read.
    pub(super) keep: bool,
    /// Whether near memory keeps decoded columns.
    pub(super) keep_decoded: bool,
    pub(super) places: Arc<Places>,
    pub(super) next: Arc<NextFiles>,
    /// Set once the whole plan is known.
    pub(super) in_plan: Arc<OnceLock<InPlan>>,
    /// How far it reads ahead, and how long it takes.
    pub(super) forecast: Arc<ScanForecast>,
}

impl ParquetFileReaderFactory for Readers {
    fn create_reader(
        &self,
        partition: usize,
        file: PartitionedFile,
        size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        self.next.open(partition, &file);
        let source =
            self.source(&file.object_meta).map_err(|error| DataFusionError::External(Box::new(error)))?;
        // The decoder has finished the file before.
        self.places.enter(partition, Place { file: Arc::from(source.name()), request: None });
        let metrics =
            ReaderMetrics::new(metrics, partition, file.object_meta.location.as_ref(), file.object_meta.size);
        Ok(Box::new(FileReader {
            source,
            file,
            metadata: self.metadata(size_hint),
            readers: self.clone(),
            metrics,
            partition,
            chunks: None,
            ahead: None,
            has_begun_next: false,
            delivered: None,
            tracking: DynamicFilterTracking::Static,
        }))
    }
}

impl Readers {
    pub(super) fn metadata(&self, size_hint: Option<usize>) -> MetadataSource {
        MetadataSource {
            store: Arc::clone(&self.store),
            cache: Arc::clone(&self.cache),
            size_hint,
            time_out: self.limits.time_out,
        }
    }

    /// Which page indexes to read with the metadata of a file.
    pub(super) fn policy(&self, wanted: Option<PageIndexPolicy>) -> PageIndexPolicy {
        // DataFusion asks for the page index later, past `get_metadata` and its cache. With a filter it is used soon, and
        // mostly lies in the bytes that are read for the footer.
        match self.demand.predicate() {
            Some(_) if self.demand.prunes_pages() => PageIndexPolicy::Optional,
            _ => wanted.unwrap_or(PageIndexPolicy::Skip),
        }
    }

    /// Reading ahead in `file`.
    pub(super) fn ahead(
        &self,
        source: &dyn RangeSource,
        file: &PartitionedFile,
        chunks: &Arc<Chunks>,
    ) -> Result<ReadAhead> {
        let mut groups = self.demand.row_groups(file, chunks.metadata())?.into_vec();
        if let Some(local) = self.known(&file.object_meta) {
            // Mostly the decoder does not ask for these.
            let fields = self.demand.fields();
            groups.retain(|group| fields.is_empty() || !local.decoded().has_all(group.index, &fields));
        }
        let predicted = [self.demand.first(), self.demand.late()]
            .map(|columns| chunks.leaves(columns, self.demand.file_schema()));
        let window_bytes = self.window_bytes.min(source.window_bytes_max());
        let mut ahead = ReadAhead::new(Arc::clone(chunks), groups, predicted.into(), window_bytes);
        self.forecast.begin(|| self.predict(&file.object_meta, || ahead.volume(source)));
        if let Some(window_bytes) = self.forecast.window_bytes() {
            ahead.set_window(window_bytes);
        }
        Ok(ahead)
    }

    /// The forecast for a scan of such files, of which a partition reads this volume; `None` if nothing is known of the
    /// storage.
    pub(super) fn predict(&self, planned: &ObjectMeta, volume: impl FnOnce() -> Volume) -> Option<Forecast> {
        let files = self.tiers.as_ref()?.files();
        let path = LocalFileSystem::new().path_to_filesystem(&planned.location).ok()?;
        let rates = files.read_rates(&path)?;
        let Volume { groups_count, bytes, reads_count } = volume();
        let scan = FileScan {
            groups_count,
            group_bytes: bytes / groups_count.max(1),
            read_bytes: bytes / reads_count.max(1),
            partitions_count: self.forecast.partitions_count(),
            work_s_per_byte: files.rates().work_ns_per_byte() / 1e9,
            window_bytes_max: self.window_bytes.min(files.window_bytes_max()),
        };
        Some(Forecast::new(scan, rates))
    }

    pub(super) fn source(&self, planned: &ObjectMeta) -> Result<Arc<dyn RangeSource>, FileError> {
        if let Some(tiers) = &self.tiers {
            let file = local(tiers, planned)?;
            return Ok(if self.keep { file } else { Arc::new(Unkept(file)) });
        }
        Ok(Arc::new(StoreObject::new(Arc::clone(&self.store), planned.clone(), self.limits)))
    }

    /// The file with its kept columns; `None` if the scan uses none, or the file is not open.
    pub(super) fn known(&self, planned: &ObjectMeta) -> Option<Arc<LocalFile>> {
        let tiers = self.tiers.as_ref().filter(|_| self.keep_decoded)?;
        let path = LocalFileSystem::new().path_to_filesystem(&planned.location).ok()?;
        tiers.files().known(&path, planned)
    }
}

/// The version `planned` of a file of this machine.
pub(super) fn local(tiers: &Tiers, planned: &ObjectMeta) -> Result<Arc<LocalFile>, FileError> {
    let path = LocalFileSystem::new().path_to_filesystem(&planned.location);
    let refused = |source| FileError::Store { file: planned.location.to_string(), source };
    tiers.files().open(&path.map_err(refused)?, planned)
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("demand", &self.demand).finish_non_exhaustive()
    }
}
