//! Errors of the decoder name the file, and its panics become errors: damaged pages make it panic, and a query must not end
//! the process.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics, internal_err};
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties};
use futures::Stream;
use parquet::errors::ParquetError;

use super::FileError;
use super::explain::Explained;
use super::factory::Readers;
use super::forecast::ScanForecast;
use super::keeping::KeepingSource;
use super::metrics::parquet_scan;
use super::next::Streaming;
use super::place::Places;
use super::pushdown::Decision;
use crate::load::guarded;

/// A scan whose panics are errors. It is transparent: properties, statistics and batches are those of the scan.
#[derive(Debug)]
pub(super) struct ContainExec {
    scan: Arc<dyn ExecutionPlan>,
    /// Those of the scan. Shared with the one that it takes the place of, so that the operators above keep theirs.
    properties: Arc<PlanProperties>,
    /// The files of the scan, for the error.
    files: Arc<str>,
    /// Where the filter of the scan runs, for EXPLAIN. `None` without a filter.
    pushdown: Option<Decision>,
    /// Whether it keeps decoded columns.
    keeps_decoded: bool,
    /// The reader factory of the scan.
    pub(super) readers: Arc<Readers>,
}

impl ContainExec {
    /// The scan of `source` with `readers`.
    pub(super) fn over(
        config: &FileScanConfig,
        source: ParquetSource,
        readers: Readers,
        pushdown: Option<Decision>,
    ) -> Self {
        let readers = Arc::new(Readers {
            places: Arc::default(),
            next: Arc::default(),
            in_plan: Arc::default(),
            forecast: Arc::new(ScanForecast::new(config.file_groups.len())),
            ..readers
        });
        let source = source.with_parquet_file_reader_factory(Arc::clone(&readers) as _);
        let keeping = KeepingSource::of(config, &source, &readers);
        let keeps_decoded = keeping.is_some();
        let source: Arc<dyn FileSource> = match keeping {
            Some(keeping) => Arc::new(keeping),
            None => Arc::new(source),
        };
        let config = FileScanConfigBuilder::from(config.clone()).with_source(source).build();
        let files = describe(&config);
        let scan = DataSourceExec::from_data_source(config);
        Self { properties: Arc::clone(scan.properties()), scan, files, pushdown, keeps_decoded, readers }
    }

    /// Takes the place of `scan`, which has the same properties: another reader changes none.
    pub(super) fn in_place_of(self, scan: &dyn ExecutionPlan) -> Self {
        Self { properties: Arc::clone(scan.properties()), ..self }
    }

    /// The scan.
    pub(super) fn scan(&self) -> &dyn ExecutionPlan {
        self.scan.as_ref()
    }
}

impl DisplayAs for ContainExec {
    fn fmt_as(&self, style: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContainExec: a panic of the decoder is an error")?;
        // The boxes of a tree have no room for sentences.
        if let Some((config, _)) = parquet_scan(self.scan())
            && style != DisplayFormatType::TreeRender
        {
            let explained = Explained { readers: &self.readers, config, keeps_decoded: self.keeps_decoded };
            write!(f, "; {explained}{}", self.readers.forecast)?;
        }
        self.pushdown.as_ref().map_or(Ok(()), |pushdown| write!(f, "; {pushdown}"))
    }
}

impl ExecutionPlan for ContainExec {
    fn name(&self) -> &'static str {
        "ContainExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.scan]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (children.pop(), children.is_empty()) {
            (Some(scan), true) => Ok(Arc::new(Self {
                properties: Arc::clone(scan.properties()),
                scan,
                files: Arc::clone(&self.files),
                pushdown: self.pushdown.clone(),
                keeps_decoded: self.keeps_decoded,
                readers: Arc::clone(&self.readers),
            })),
            _ => internal_err!("ContainExec has one child"),
        }
    }

    fn apply_expressions(
        &self,
        _visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn statistics_from_inputs(
        &self,
        inputs: &[Arc<Statistics>],
        _args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if let Some((config, source)) = parquet_scan(self.scan()) {
            self.readers.next.list(config, source.metrics(), context.session_config().options());
        }
        let scan = self.scan.execute(partition, context)?;
        let streaming = self.readers.next.stream();
        if let Some(in_plan) = self.readers.in_plan.get() {
            in_plan.executed();
        }
        let schema = scan.schema();
        let (files, places) = (Arc::clone(&self.files), Arc::clone(&self.readers.places));
        Ok(Box::pin(Contained { scan: Some(scan), schema, files, places, partition, _streaming: streaming }))
    }
}

struct Contained {
    /// `None` after a panic: its state may be inconsistent.
    scan: Option<SendableRecordBatchStream>,
    schema: SchemaRef,
    files: Arc<str>,
    places: Arc<Places>,
    partition: usize,
    _streaming: Streaming,
}

impl Contained {
    fn damaged(&self, why: String) -> DataFusionError {
        DataFusionError::External(Box::new(self.places.damaged(self.partition, &self.files, why)))
    }

    /// Names the file in an error of the decoder.
    fn explain(&self, error: DataFusionError) -> DataFusionError {
        match decoder_error(&error) {
            Some(why) => self.damaged(why),
            None => error,
        }
    }
}

impl Stream for Contained {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(scan) = &mut self.scan else { return Poll::Ready(None) };
        match guarded(|| Ok(scan.as_mut().poll_next(context))) {
            Ok(poll) => poll.map_err(|error| self.explain(error)),
            Err(_) => {
                self.scan = None;
                Poll::Ready(Some(Err(self.damaged("the decoder failed".to_owned()))))
            }
        }
    }
}

impl RecordBatchStream for Contained {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// The text of an error that the decoder met in the pages of a file; `None` for errors of reads, which name the file, and
/// of filters.
fn decoder_error(error: &DataFusionError) -> Option<String> {
    match error.find_root() {
        DataFusionError::ArrowError(error, _) => match &**error {
            ArrowError::ParquetError(why) => Some(why.clone()),
            _ => None,
        },
        DataFusionError::ParquetError(error) => match &**error {
            ParquetError::External(source) if source.is::<FileError>() => None,
            ParquetError::External(source) => match source.downcast_ref() {
                Some(ArrowError::ParquetError(why)) => Some(why.clone()),
                // A filter in the decoder.
                Some(_) => None,
                None => Some(error.to_string()),
            },
            error => Some(error.to_string()),
        },
        _ => None,
    }
}

/// The files of a scan in errors.
fn describe(config: &FileScanConfig) -> Arc<str> {
    let mut files: Vec<&str> = config
        .file_groups
        .iter()
        .flat_map(|group| group.files())
        .map(|file| file.object_meta.location.as_ref())
        .collect();
    files.dedup();
    match files.as_slice() {
        [file] => Arc::from(*file),
        [first, others @ ..] => Arc::from(format!("one of {first} and {} more files", others.len())),
        [] => Arc::from("no file"),
    }
}

/// The result of `future`; `None` if it panics.
pub(super) async fn contained<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match guarded(|| Ok(future.as_mut().poll(context))) {
        Ok(poll) => poll.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}
