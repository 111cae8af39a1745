//! Files of this machine: near copies of their ranges, read by the mover past the page cache.
//!
//! Each file is a region of the cache, for all queries and sessions over the same [`Tiers`](crate::Tiers). A column chunk
//! that a query has read is near for the next one. Where the budget has no room, the range is read to memory of its own.
//! Decoded columns of the file are kept with it, see `decoded`.

use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use futures::FutureExt;
use memferry::cache::{Access, Cache, Entry, Reading, StoredRegion};
use memferry::model::ReadRates;
use memferry::mover::{FileRead, ReadError};
use memferry::storage::StoredFile;
use memferry::topology::{NodeId, Storage};
use object_store::ObjectMeta;

use super::FileError;
use super::decoded::DecodedColumns;
use super::ranges::Merging;
use super::rates::Rates;
use super::source::{From, RangeSource, Read};

/// How reads are merged. Whole column chunks are mostly larger than `alone_bytes`: an entry of the cache is a chunk then, which
/// serves other queries whatever other columns they read.
const MERGING: Merging = Merging {
    // Twice the unit of direct reads, which touches both ends of a gap anyway. A gap of 16 KiB costs no time either, but
    // bytes: docs/decisions/storage-engine.md.
    gap_bytes: 8 << 10,
    request_bytes_max: 1 << 20,
    // Both ends of a direct read are rounded to 4 KiB: 3 % of this.
    alone_bytes: 256 << 10,
};

/// Open files whose entries are kept. Each takes two descriptors.
const OPEN_FILES_MAX: usize = 256;

/// Share of the budget that one partition may read ahead: a machine with more partitions than this reads ahead what fits.
const WINDOW_DIVISOR: u64 = 8;

/// The files that queries over the same cache have open.
#[derive(Debug)]
pub(crate) struct StoredFiles {
    cache: Cache,
    near: NodeId,
    window_bytes_max: u64,
    budget_bytes: u64,
    rates: Arc<Rates>,
    storages: Vec<KnownStorage>,
    /// By path, with the moment of the last use.
    open: Mutex<HashMap<PathBuf, (u64, Arc<LocalFile>)>>,
}

impl StoredFiles {
    /// `storages`: those that a calibration measured.
    pub(crate) fn new(cache: Cache, near: NodeId, budget_bytes: u64, storages: &[Storage]) -> Self {
        let window_bytes_max = budget_bytes / WINDOW_DIVISOR;
        let storages = storages.iter().map(KnownStorage::of).collect();
        let (rates, open) = (Arc::default(), Mutex::default());
        Self { cache, near, window_bytes_max, budget_bytes, rates, storages, open }
    }

    /// The rates of the storage of a file: of the nearest directory above it that was calibrated, or else of one on the same
    /// file system.
    pub(super) fn read_rates(&self, path: &Path) -> Option<ReadRates> {
        if self.storages.is_empty() {
            return None;
        }
        let above = self.storages.iter().filter(|it| it.storage.has(path));
        let nearest = above.max_by_key(|it| it.storage.directory.as_os_str().len());
        let beside = || {
            let device = std::fs::metadata(path).ok()?.dev();
            self.storages.iter().find(|it| it.device == Some(device))
        };
        nearest.or_else(beside).map(|it| ReadRates::from(&it.storage))
    }

    /// Limit of the bytes that reads ahead of one partition take.
    pub(super) fn window_bytes_max(&self) -> u64 {
        self.window_bytes_max
    }

    /// What misses cost.
    pub(super) fn rates(&self) -> &Arc<Rates> {
        &self.rates
    }

    /// The version `planned` of the file at `path`, if it is open.
    pub(super) fn known(&self, path: &Path, planned: &ObjectMeta) -> Option<Arc<LocalFile>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let file = open.get(path).map(|(_, file)| Arc::clone(file));
        file.filter(|file| file.check_planned(planned).is_ok())
    }

    /// The version `planned` of the file at `path`.
    ///
    /// # Errors
    /// [`FileError::Storage`], [`Changed`](FileError::Changed).
    pub(crate) fn open(&self, path: &Path, planned: &ObjectMeta) -> Result<Arc<LocalFile>, FileError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let now = open.values().map(|(used, _)| used + 1).max().unwrap_or(0);
        if let Some((used, file)) = open.get_mut(path)
            && file.region.check_unchanged().is_ok()
        {
            *used = now;
            file.check_planned(planned)?;
            return Ok(Arc::clone(file));
        }
        // Another version is another region; this drops the entries of the one before.
        open.remove(path);
        let file = match StoredFile::open(path) {
            Ok(file) => Arc::new(file),
            Err(_) if !path.exists() => return Err(FileError::Vanished { file: path.display().to_string() }),
            Err(error) => return Err(error.into()),
        };
        let file = Arc::new(LocalFile {
            name: path.display().to_string(),
            region: self.cache.register_file(file),
            cache: self.cache.clone(),
            near: self.near,
            window_bytes_max: self.window_bytes_max,
            decoded: DecodedColumns::new(&self.cache, self.near, self.budget_bytes, &self.rates),
        });
        file.check_planned(planned)?;
        if open.len() == OPEN_FILES_MAX
            && let Some(oldest) = open.iter().min_by_key(|(_, (used, _))| used).map(|(path, _)| path.clone())
        {
            open.remove(&oldest);
        }
        open.insert(path.to_owned(), (now, Arc::clone(&file)));
        Ok(file)
    }
}

/// A calibrated storage, and the device of its directory.
#[derive(Debug)]
struct KnownStorage {
    storage: Storage,
    /// `None` if the directory is gone.
    device: Option<u64>,
}

impl KnownStorage {
    fn of(storage: &Storage) -> Self {
        let device = std::fs::metadata(&storage.directory).map(|metadata| metadata.dev()).ok();
        Self { storage: storage.clone(), device }
    }
}

/// One version of a file of this machine.
#[derive(Debug)]
pub(crate) struct LocalFile {
    name: String,
    region: StoredRegion,
    cache: Cache,
    near: NodeId,
    window_bytes_max: u64,
    decoded: DecodedColumns,
}

impl LocalFile {
    /// Its kept columns.
    pub(super) fn decoded(&self) -> &DecodedColumns {
        &self.decoded
    }

    /// Whether this is the version that the query was planned for.
    fn check_planned(&self, planned: &ObjectMeta) -> Result<(), FileError> {
        let changed = |what| FileError::Changed { file: self.name.clone(), what };
        let size_bytes = self.region.len();
        if size_bytes != planned.size {
            return Err(changed(format!("size {size_bytes} instead of {} bytes", planned.size)));
        }
        let modified = std::fs::metadata(&self.name).and_then(|metadata| metadata.modified());
        match modified {
            Ok(modified) if modified == SystemTime::from(planned.last_modified) => Ok(()),
            Ok(_) => Err(changed("it was written".to_owned())),
            Err(_) => Err(FileError::Vanished { file: self.name.clone() }),
        }
    }

    fn read_uncached(&self, range: Range<u64>) -> FileRead {
        self.cache.mover().read(self.region.file(), range)
    }
}

impl RangeSource for LocalFile {
    fn size_bytes(&self) -> u64 {
        self.region.len()
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, range: Range<u64>) -> Read {
        let uncached = || self.read_uncached(range.clone());
        let reading = match self.cache.read(&self.region, range.clone(), Access::near(self.near)) {
            Ok(reading) => reading,
            Err(error) => {
                let bytes = std::future::ready(Err(error.into())).boxed();
                return Read { range, bytes, from: From::FileUncached };
            }
        };
        let from = if reading.started_read() { From::File } else { From::Near };
        // A reading that finds no room is ready at once.
        if reading.started_read() && reading.is_ready() {
            let bytes = match reading.wait() {
                Ok(entry) => std::future::ready(Ok(held(entry))).boxed(),
                Err(ReadError::NoRoom { .. }) => {
                    let bytes = owned(uncached()).boxed();
                    return Read { range, bytes, from: From::FileUncached };
                }
                Err(error) => std::future::ready(Err(error.into())).boxed(),
            };
            return Read { range, bytes, from };
        }
        Read { bytes: near(reading, Arc::clone(self.region.file()), self.cache.clone()).boxed(), range, from }
    }

    fn merge(&self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        MERGING.merge(ranges)
    }

    fn check_unchanged(&self) -> Result<(), FileError> {
        Ok(self.region.check_unchanged()?)
    }

    fn window_bytes_max(&self) -> u64 {
        self.window_bytes_max
    }
}

/// A file of which nothing is kept: all of it is read once.
#[derive(Debug)]
pub(super) struct Unkept(pub(super) Arc<LocalFile>);

impl RangeSource for Unkept {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn start(&self, range: Range<u64>) -> Read {
        let bytes = owned(self.0.read_uncached(range.clone())).boxed();
        Read { range, bytes, from: From::FileUncached }
    }

    fn merge(&self, ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
        self.0.merge(ranges)
    }

    fn check_unchanged(&self) -> Result<(), FileError> {
        self.0.check_unchanged()
    }

    fn window_bytes_max(&self) -> u64 {
        self.0.window_bytes_max()
    }
}

/// The bytes of a near copy. Another query's reading may have found no room.
async fn near(reading: Reading, file: Arc<StoredFile>, cache: Cache) -> Result<Bytes, FileError> {
    let range = reading.range();
    match reading.await {
        Ok(entry) => Ok(held(entry)),
        Err(ReadError::NoRoom { .. }) => owned(cache.mover().read(&file, range)).await,
        Err(error) => Err(error.into()),
    }
}

async fn owned(read: FileRead) -> Result<Bytes, FileError> {
    Ok(Bytes::from_owner(read.await?))
}

/// The bytes of an entry, which stays in its block while the decoder uses it.
fn held(entry: Entry) -> Bytes {
    struct Held(Entry);
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            self.0.as_slice()
        }
    }
    Bytes::from_owner(Held(entry))
}
