//! The source of a scan that keeps decoded columns: DataFusion's, except for row groups whose columns are kept or to be kept.
//!
//! It is the smallest seam: planning, sharing of files between partitions, limits and metrics stay DataFusion's, and so does
//! decoding. Only the opener of a file is replaced.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::FieldRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetAccessPlan;
use datafusion::datasource::physical_plan::{
    FileOpenFuture, FileOpener, FileScanConfig, FileSource, ParquetFileReaderFactory, ParquetSource,
};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, PhysicalExpr};
use datafusion_datasource::morsel::Morselizer;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::ObjectStore;
use parquet::arrow::async_reader::AsyncFileReader;

use super::factory::Readers;
use super::keeping_scan::FileScan;
use super::metrics::DecodedMetrics;
use super::morsels;
use crate::data::is_keepable;

/// A Parquet source that keeps decoded columns.
#[derive(Clone)]
pub(super) struct KeepingSource {
    parquet: ParquetSource,
    readers: Arc<Readers>,
    /// The columns that the scan needs, in the schema of the files.
    columns: Arc<[usize]>,
    /// Known once the scan is executed.
    batch_rows: Option<usize>,
}

impl KeepingSource {
    /// `None` if the scan keeps no columns: the setting is off, or it reads a part of them only.
    pub(super) fn of(
        config: &FileScanConfig,
        parquet: &ParquetSource,
        readers: &Arc<Readers>,
    ) -> Option<Self> {
        let demand = &readers.demand;
        let mut columns = [demand.first(), demand.late()].concat();
        columns.sort_unstable();
        let table = parquet.table_schema();
        let types = columns.iter().map(|&column| table.file_schema().field(column).data_type());
        let options = &parquet.table_parquet_options().global;
        let is_suitable = readers.keep_decoded
            && !columns.is_empty()
            // Of nested columns a scan may decode some leaves.
            && types.clone().all(|data_type| !data_type.is_nested() && is_keepable(data_type))
            // A scan that ends early decodes little.
            && config.limit.is_none()
            // These change what a column decodes to.
            && config.expr_adapter_factory.is_none()
            && options.coerce_int96.is_none()
            && table.virtual_columns().is_empty()
            && !reorders_row_groups(parquet);
        is_suitable.then(|| Self {
            parquet: parquet.clone(),
            readers: Arc::clone(readers),
            columns: Arc::from(columns),
            batch_rows: None,
        })
    }

    /// DataFusion's source.
    pub(super) fn parquet(&self) -> &ParquetSource {
        &self.parquet
    }
}

/// Whether the source reads row groups in another order than that of the file, so that a TopK ends early. Only EXPLAIN tells.
fn reorders_row_groups(parquet: &ParquetSource) -> bool {
    struct Extra<'a>(&'a ParquetSource);
    impl fmt::Display for Extra<'_> {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            self.0.fmt_extra(DisplayFormatType::Default, f)
        }
    }
    let extra = Extra(parquet).to_string();
    extra.contains(", sort_order_for_reorder=[") || extra.contains(", reverse_row_groups=true")
}

impl FileSource for KeepingSource {
    fn create_file_opener(
        &self,
        store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        let Some(batch_rows) = self.batch_rows else {
            return internal_err!("a scan has a batch size before it opens files");
        };
        let plain = self.parquet.create_morselizer(Arc::clone(&store), config, partition)?;
        let schema = self.parquet.table_schema().file_schema();
        Ok(Arc::new(Opener(Arc::new(Scan {
            metrics: DecodedMetrics::new(self.parquet.metrics(), partition),
            fields: self.columns.iter().map(|&column| Arc::clone(&schema.fields()[column])).collect(),
            source: self.clone(),
            store,
            config: config.clone(),
            partition,
            batch_rows,
            plain,
        }))))
    }

    fn table_schema(&self) -> &TableSchema {
        self.parquet.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        let sized = self.parquet.with_batch_size(batch_size);
        match sized.downcast_ref::<ParquetSource>() {
            Some(parquet) => {
                Arc::new(Self { parquet: parquet.clone(), batch_rows: Some(batch_size), ..self.clone() })
            }
            None => sized,
        }
    }

    fn filter(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.parquet.filter()
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.parquet.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.parquet.metrics()
    }

    fn file_type(&self) -> &str {
        self.parquet.file_type()
    }

    fn fmt_extra(&self, style: DisplayFormatType, f: &mut Formatter<'_>) -> fmt::Result {
        self.parquet.fmt_extra(style, f)
    }

    fn reorder_files(&self, files: Vec<PartitionedFile>) -> Vec<PartitionedFile> {
        self.parquet.reorder_files(files)
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.parquet.apply_expressions(visit)
    }
}

/// One partition of a scan.
pub(super) struct Scan {
    source: KeepingSource,
    store: Arc<dyn ObjectStore>,
    config: FileScanConfig,
    pub(super) partition: usize,
    pub(super) batch_rows: usize,
    /// DataFusion's own planner of files.
    plain: Box<dyn Morselizer>,
    /// The columns that the scan needs.
    pub(super) fields: Vec<FieldRef>,
    pub(super) metrics: DecodedMetrics,
}

impl Scan {
    pub(super) fn readers(&self) -> &Arc<Readers> {
        &self.source.readers
    }

    /// The outputs of the scan, over its table.
    pub(super) fn projection(&self) -> impl Iterator<Item = &ProjectionExpr> {
        self.source.parquet.projection().into_iter().flatten()
    }

    /// Whether the decoder looks into Bloom filters, which may exclude row groups.
    pub(super) fn reads_bloom_filters(&self) -> bool {
        self.source.parquet.table_parquet_options().global.bloom_filter_on_read
    }

    /// Whether the decoder evaluates the filter: it then leaves out values.
    pub(super) fn filters_in_decoder(&self) -> bool {
        self.source.parquet.table_parquet_options().global.pushdown_filters
    }

    /// The batches of some row groups as DataFusion makes them.
    pub(super) fn plain(
        &self,
        file: &PartitionedFile,
        groups: ParquetAccessPlan,
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        Ok(morsels::batches(self.plain.plan_file(file.clone().with_extension(groups))?))
    }

    /// All rows of some row groups: the columns at these positions of `fields`, as the types of the table.
    pub(super) fn decode(
        &self,
        file: &PartitionedFile,
        groups: ParquetAccessPlan,
        positions: &[usize],
    ) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let parquet = &self.source.parquet;
        let columns: Vec<usize> = positions.iter().map(|&position| self.source.columns[position]).collect();
        let table = parquet.table_schema();
        let projection = ProjectionExprs::from_indices(&columns, table.table_schema());
        let readers = self.readers();
        let readers = CountedReaders {
            readers: Readers { demand: Arc::new(readers.demand.only(columns)), ..Readers::clone(readers) },
            metrics: parquet.metrics().clone(),
        };
        // It has no filter, so nothing of a row group is left out.
        let source = ParquetSource::new(table.clone())
            .with_table_parquet_options(parquet.table_parquet_options().clone())
            .with_pushdown_filters(false)
            .with_parquet_file_reader_factory(Arc::new(readers));
        let Some(source) = source.try_pushdown_projection(&projection)? else {
            return internal_err!("a Parquet source takes each projection");
        };
        let source = source.with_batch_size(self.batch_rows);
        let planner = source.create_morselizer(Arc::clone(&self.store), &self.config, self.partition)?;
        Ok(morsels::batches(planner.plan_file(file.clone().with_extension(groups))?))
    }
}

/// The readers of a scan, counted there.
#[derive(Debug)]
struct CountedReaders {
    readers: Readers,
    metrics: ExecutionPlanMetricsSet,
}

impl ParquetFileReaderFactory for CountedReaders {
    fn create_reader(
        &self,
        partition: usize,
        file: PartitionedFile,
        size_hint: Option<usize>,
        _metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        self.readers.create_reader(partition, file, size_hint, &self.metrics)
    }
}

struct Opener(Arc<Scan>);

impl FileOpener for Opener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        let scan = Arc::clone(&self.0);
        // A part of a file that the program chose.
        if file.extensions.get::<ParquetAccessPlan>().is_some() {
            let stream = morsels::batches(scan.plain.plan_file(file)?);
            return Ok(std::future::ready(Ok(stream)).boxed());
        }
        Ok(async move { Ok(FileScan::open(scan, file).await?.batches().boxed()) }.boxed())
    }
}
