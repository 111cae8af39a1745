//! Registering files as tables.

use std::io;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{TableProvider, TableProviderFactory};
use datafusion::common::{DFSchema, DataFusionError};
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::arrow::ArrowFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::listing_table_factory::ListingTableFactory;
use datafusion::execution::SessionState;
use datafusion::logical_expr::CreateExternalTable;
use datafusion::prelude::SessionContext;
use futures::{StreamExt, TryStreamExt};
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};

use super::contain::contained;

/// Registers the files at `location` as the table `name`. No row is read.
///
/// `location` is a file, a directory, a path with `*`, `?` or `[]`, or the URL of a file or directory in an object store that is
/// registered with the session. Directories named `key=value` become partition columns. The files are Parquet or Arrow IPC. Columns
/// that some of the files lack are null there.
///
/// The files of subdirectories belong to a directory, unless `datafusion.execution.listing_table_ignore_subdirectory` is true: it is
/// not in a [`session`](crate::session()) of memferry, and is by DataFusion's default.
///
/// Cost: the footer of each file is read, for schema and statistics.
///
/// # Errors
/// [`RegisterError`]; nothing was registered.
pub async fn register(context: &SessionContext, name: &str, location: &str) -> Result<(), RegisterError> {
    let table = table(&context.state(), name, location).await?;
    context
        .register_table(name, table)
        .map_err(|source| RegisterError::Name { name: name.to_owned(), source })?;
    Ok(())
}

/// Files that cannot become a table.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The location is no path and no URL, or its store is not registered.
    #[error(
        "{location} is not a location of files: {source}; name a file, a directory or the URL of a store"
    )]
    Location {
        /// The location.
        location: String,
        /// The reason.
        source: DataFusionError,
    },
    /// The path cannot be looked up.
    #[error("cannot read {location}: {source}; check the path and its permissions")]
    Path {
        /// The location.
        location: String,
        /// Answer of the operating system.
        source: io::Error,
    },
    /// No file of a known format.
    #[error("{location} has no files that end in .parquet, .arrow, .feather or .ipc; check the path")]
    NoFiles {
        /// The location.
        location: String,
    },
    /// A file that is neither Parquet nor Arrow.
    #[error(
        "{file} is neither a Parquet nor an Arrow file; convert it first, for example with pyarrow or DuckDB"
    )]
    Format {
        /// The file.
        file: String,
    },
    /// Files with several extensions: DataFusion lists by one.
    #[error(
        "{file_a} and {file_b} have different extensions; rename the files so that all have one, or register them as several tables"
    )]
    MixedExtensions {
        /// The first file.
        file_a: String,
        /// Another one.
        file_b: String,
    },
    /// Files whose schemas do not fit together.
    #[error(
        "the files of {location} have different types of the column {column}: {type_a} in {file_a}, {type_b} in \
         {file_b}; register them as several tables, or write them again with one type"
    )]
    MixedSchemas {
        /// The location.
        location: String,
        /// The column.
        column: String,
        /// The first file.
        file_a: String,
        /// Its type of the column.
        type_a: String,
        /// The other file.
        file_b: String,
        /// Its type of the column.
        type_b: String,
    },
    /// A file that is damaged, or that the store does not let be read.
    #[error(
        "cannot read the schema of {location}: {source}; check the file, and write it again if it is damaged"
    )]
    Schema {
        /// The location or file.
        location: String,
        /// The error of the reader.
        source: DataFusionError,
    },
    /// The name is taken, or not a name.
    #[error("cannot register the table {name}: {source}; choose another name")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        source: DataFusionError,
    },
}

/// A format of files, and its name in SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Parquet,
    Arrow,
}

impl Format {
    fn of_extension(extension: &str) -> Option<Self> {
        match extension.to_ascii_lowercase().as_str() {
            "parquet" | "parq" => Some(Self::Parquet),
            "arrow" | "feather" | "ipc" => Some(Self::Arrow),
            _ => None,
        }
    }

    /// Source: Apache Parquet and Arrow formats, "File format".
    fn of_magic(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"PAR1") {
            return Some(Self::Parquet);
        }
        bytes.starts_with(b"ARROW1").then_some(Self::Arrow)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Parquet => "PARQUET",
            Self::Arrow => "ARROW",
        }
    }

    fn reader(self) -> Box<dyn FileFormat> {
        match self {
            Self::Parquet => Box::new(ParquetFormat::default()),
            Self::Arrow => Box::new(ArrowFormat),
        }
    }
}

/// The files at a location.
struct Files {
    location: String,
    store: Arc<dyn ObjectStore>,
    /// Those that are not empty.
    objects: Vec<ObjectMeta>,
}

async fn table(
    state: &SessionState,
    name: &str,
    location: &str,
) -> Result<Arc<dyn TableProvider>, RegisterError> {
    let files = list(state, location).await?;
    let format = format(&files).await?;
    let is_directory = ListingTableUrl::parse(location)
        .is_ok_and(|location| location.is_collection() && location.get_glob().is_none());
    let first = &files.objects[0].location;
    let extension = first.extension();
    let other = files.objects.iter().map(|file| &file.location).find(|file| file.extension() != extension);
    let location = match (is_directory, other, extension) {
        (true, Some(other), _) => {
            let [file_a, file_b] = [first, other].map(ToString::to_string);
            return Err(RegisterError::MixedExtensions { file_a, file_b });
        }
        // Without a pattern, DataFusion lists a directory by the name of the format.
        (true, None, Some(extension)) if extension != format.name().to_lowercase() => {
            format!("{}/*.{extension}", location.trim_end_matches('/'))
        }
        _ => location.to_owned(),
    };
    let schema = Arc::new(DFSchema::empty());
    let command = CreateExternalTable::builder(name, location, format.name(), schema).build();
    let created = contained(ListingTableFactory::new().create(state, &command)).await;
    match created.unwrap_or_else(|| Err(damaged())) {
        Ok(table) => Ok(table),
        Err(source) => Err(explain(state, format, &files, source).await),
    }
}

async fn list(state: &SessionState, location: &str) -> Result<Files, RegisterError> {
    let not_a_location = |source| RegisterError::Location { location: location.to_owned(), source };
    let url = ListingTableUrl::parse(location).map_err(not_a_location)?;
    let store = state.runtime_env().object_store(&url).map_err(not_a_location)?;
    // DataFusion lists a missing path as an empty one.
    if url.scheme() == "file" && url.get_glob().is_none() && !location.contains("://") {
        let missing = |source| RegisterError::Path { location: location.to_owned(), source };
        std::fs::metadata(location).map_err(missing)?;
    }
    let failed = |source| RegisterError::Schema { location: location.to_owned(), source };
    let listed = url.list_all_files(state, store.as_ref(), "").await.map_err(failed)?;
    let objects: Vec<ObjectMeta> = listed
        .try_filter(|object| std::future::ready(object.size > 0))
        .try_collect()
        .await
        .map_err(failed)?;
    let is_single = !url.is_collection() && url.get_glob().is_none();
    let is_known = |object: &ObjectMeta| object.location.extension().and_then(Format::of_extension).is_some();
    let mut objects: Vec<ObjectMeta> =
        objects.into_iter().filter(|object| is_single || is_known(object)).collect();
    // Errors name the same files each time.
    objects.sort_unstable_by(|a, b| a.location.cmp(&b.location));
    if objects.is_empty() {
        let location = location.to_owned();
        // The path was looked up, so the file is there, without a byte.
        let is_empty_file = is_single && url.scheme() == "file";
        return Err(if is_empty_file {
            RegisterError::Format { file: location }
        } else {
            RegisterError::NoFiles { location }
        });
    }
    Ok(Files { location: location.to_owned(), store, objects })
}

/// The format of the first file; all files are read as that.
async fn format(files: &Files) -> Result<Format, RegisterError> {
    let first = &files.objects[0];
    if let Some(format) = first.location.extension().and_then(Format::of_extension) {
        return Ok(format);
    }
    let magic = files.store.get_range(&first.location, 0..first.size.min(8)).await;
    let file = first.location.to_string();
    let magic =
        magic.map_err(|source| RegisterError::Schema { location: file.clone(), source: source.into() })?;
    Format::of_magic(&magic).ok_or(RegisterError::Format { file })
}

/// Finds the file behind an error: the first one that cannot be read, or whose schema does not fit those before.
async fn explain(
    state: &SessionState,
    format: Format,
    files: &Files,
    error: DataFusionError,
) -> RegisterError {
    let reader = format.reader();
    let mut schemas = futures::stream::iter(&files.objects);
    let mut known: Vec<(SchemaRef, String)> = vec![];
    while let Some(object) = schemas.next().await {
        let file = object.location.to_string();
        let schema = contained(reader.infer_schema(state, &files.store, std::slice::from_ref(object))).await;
        let schema = match schema.unwrap_or_else(|| Err(damaged())) {
            Ok(schema) => schema,
            Err(source) => return RegisterError::Schema { location: file, source },
        };
        for field in schema.fields() {
            let other = known.iter().find_map(|(schema, file)| {
                Some((schema.field_with_name(field.name()).ok()?.data_type().clone(), file))
            });
            if let Some((data_type, other)) = other
                && data_type != *field.data_type()
            {
                return RegisterError::MixedSchemas {
                    location: files.location.clone(),
                    column: field.name().clone(),
                    type_a: data_type.to_string(),
                    file_a: other.clone(),
                    type_b: field.data_type().to_string(),
                    file_b: file,
                };
            }
        }
        known.push((schema, file));
    }
    RegisterError::Schema { location: files.location.clone(), source: error }
}

/// The error in place of a panic of the reader.
fn damaged() -> DataFusionError {
    DataFusionError::Execution("its metadata are damaged".to_owned())
}
