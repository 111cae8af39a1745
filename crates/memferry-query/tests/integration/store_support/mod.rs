//! An object store in memory that is late, fails, or lies, and counts.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// What happens to requests of ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The store refuses.
    Refused,
    /// The answer never comes.
    Hangs,
    /// The answer is a byte short.
    Short,
    /// The answer is of another version.
    OtherVersion,
    /// The object is gone.
    Gone,
}

/// Counters are relaxed: tests read them when the requests are over, or wait for a value.
#[derive(Debug)]
pub(crate) struct TestStore {
    inner: InMemory,
    latency: Duration,
    fault: Mutex<(Fault, u64)>,
    /// The file whose requests have the fault; all if it is empty.
    faulty: Mutex<String>,
    pub(crate) requests: Mutex<Vec<Range<u64>>>,
    /// The file of each of them.
    pub(crate) files: Mutex<Vec<String>>,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) in_flight_max: AtomicUsize,
    pub(crate) cancelled: AtomicUsize,
}

/// Counts a request as in flight, and as cancelled if its future is dropped before the answer.
struct InFlight<'a> {
    store: &'a TestStore,
    is_answered: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.store.in_flight.fetch_sub(1, Ordering::Relaxed);
        if !self.is_answered {
            self.store.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl TestStore {
    pub(crate) fn new(latency: Duration) -> Arc<Self> {
        Arc::new(Self {
            inner: InMemory::new(),
            latency,
            fault: Mutex::new((Fault::None, 0)),
            faulty: Mutex::default(),
            requests: Mutex::new(vec![]),
            files: Mutex::new(vec![]),
            in_flight: AtomicUsize::new(0),
            in_flight_max: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
        })
    }

    /// Requests that start below `before` have the fault.
    pub(crate) fn fail(&self, fault: Fault, before: u64) {
        *self.fault.lock().unwrap() = (fault, before);
    }

    /// Requests of `file` have the fault.
    pub(crate) fn fail_in(&self, file: &str, fault: Fault) {
        file.clone_into(&mut self.faulty.lock().unwrap());
        self.fail(fault, u64::MAX);
    }

    pub(crate) fn requests_of(&self, file: &str) -> usize {
        self.files.lock().unwrap().iter().filter(|requested| *requested == file).count()
    }

    pub(crate) fn bytes_requested(&self) -> u64 {
        self.requests.lock().unwrap().iter().map(|range| range.end - range.start).sum()
    }

    pub(crate) fn forget(&self) {
        self.requests.lock().unwrap().clear();
        self.files.lock().unwrap().clear();
        self.in_flight_max.store(0, Ordering::Relaxed);
        self.cancelled.store(0, Ordering::Relaxed);
    }
}

impl fmt::Display for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestStore")
    }
}

#[async_trait]
impl ObjectStore for TestStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(GetRange::Bounded(range)) = options.range.clone() else {
            return self.inner.get_opts(location, options).await;
        };
        self.requests.lock().unwrap().push(range.clone());
        self.files.lock().unwrap().push(location.to_string());
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.in_flight_max.fetch_max(in_flight, Ordering::Relaxed);
        let mut guard = InFlight { store: self, is_answered: false };
        tokio::time::sleep(self.latency).await;
        let (fault, before) = *self.fault.lock().unwrap();
        let is_faulty = ["", location.as_ref()].contains(&self.faulty.lock().unwrap().as_str());
        let fault = if range.start < before && is_faulty { fault } else { Fault::None };
        if fault == Fault::Hangs {
            std::future::pending::<()>().await;
        }
        guard.is_answered = true;
        match fault {
            Fault::Refused => {
                return Err(Error::Generic { store: "test", source: "the store is on fire".into() });
            }
            Fault::Gone => {
                return Err(Error::NotFound { path: location.to_string(), source: "gone".into() });
            }
            _ => {}
        }
        let mut answer = self.inner.get_opts(location, options).await?;
        if fault == Fault::OtherVersion {
            answer.meta.e_tag = Some("other".to_owned());
        }
        if fault == Fault::Short {
            let GetResult { meta, range, attributes, .. } = answer;
            let bytes = Bytes::from(vec![0_u8; (range.end - range.start) as usize - 1]);
            let payload = GetResultPayload::Stream(futures::stream::iter([Ok(bytes)]).boxed());
            return Ok(GetResult { payload, meta, range, attributes });
        }
        Ok(answer)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
