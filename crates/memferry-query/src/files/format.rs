//! The Parquet format of a session: DataFusion's, whose errors of footers name the file and its change, and whose statistics of
//! floats are not exact.
//!
//! A scan lists its files, and reads footers afterwards. A footer of a version that is not the listed one is mostly refused: as a
//! range beyond the end of the file, or as a damaged footer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::file_options::file_type::GetExt;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::datasource::physical_plan::{FileScanConfig, FileSinkConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::{LexOrdering, LexRequirement};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_datasource::file_format::FileMeta;
use object_store::{ObjectMeta, ObjectStore};

use super::reader::explain;
use crate::options::MemferryOptions;
use crate::scan::has_floats;

/// Makes [`NamedFormat`]s.
#[derive(Debug, Default)]
pub(crate) struct NamedFormatFactory(ParquetFormatFactory);

impl FileFormatFactory for NamedFormatFactory {
    fn create(&self, state: &dyn Session, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        Ok(Arc::new(NamedFormat(self.0.create(state, options)?)))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(NamedFormat(self.0.default()))
    }
}

impl GetExt for NamedFormatFactory {
    fn get_ext(&self) -> String {
        self.0.get_ext()
    }
}

/// A format whose errors of reading statistics are [`FileError`](super::FileError)s.
#[derive(Debug)]
struct NamedFormat(Arc<dyn FileFormat>);

#[async_trait]
impl FileFormat for NamedFormat {
    fn get_ext(&self) -> String {
        self.0.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.0.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.0.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.0.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        let statistics = self.0.infer_stats(state, store, Arc::clone(&table_schema), object).await;
        Ok(with_inexact_floats(named(state, store, object, statistics).await?, &table_schema))
    }

    async fn infer_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Option<LexOrdering>> {
        let ordering = self.0.infer_ordering(state, store, table_schema, object).await;
        named(state, store, object, ordering).await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        let metadata = self.0.infer_stats_and_ordering(state, store, Arc::clone(&table_schema), object).await;
        let mut metadata = named(state, store, object, metadata).await?;
        metadata.statistics = with_inexact_floats(metadata.statistics, &table_schema);
        Ok(metadata)
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.create_physical_plan(state, config).await
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        state: &dyn Session,
        config: FileSinkConfig,
        order: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.create_writer_physical_plan(input, state, config, order).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.0.file_source(table_schema)
    }
}

/// Statistics in which the least and the largest float are not exact: the writers of Parquet files leave NaNs out.
///
/// DataFusion's reader takes a column whose exact least and largest values are equal for that value in each row.
fn with_inexact_floats(mut statistics: Statistics, schema: &SchemaRef) -> Statistics {
    for (column, field) in statistics.column_statistics.iter_mut().zip(schema.fields()) {
        if has_floats(field.data_type()) {
            column.min_value = std::mem::take(&mut column.min_value).to_inexact();
            column.max_value = std::mem::take(&mut column.max_value).to_inexact();
        }
    }
    statistics
}

/// The error of a footer with the name of the file, and its change since the version `listed`.
async fn named<T>(
    state: &dyn Session,
    store: &Arc<dyn ObjectStore>,
    listed: &ObjectMeta,
    result: Result<T>,
) -> Result<T> {
    match result {
        Ok(metadata) => Ok(metadata),
        Err(error) => {
            let options = MemferryOptions::of(state.config_options());
            let time_out = Duration::from_millis(options.store_timeout_ms);
            let error = explain(&**store, listed, time_out, error).await;
            Err(DataFusionError::ParquetError(Box::new(error)))
        }
    }
}
