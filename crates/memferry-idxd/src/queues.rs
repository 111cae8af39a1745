//! Queues: who has them open, and what is written to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{Errno, FopenFlags, ReplyWrite};
use memferry_dsa::system::{FakeDriver, QueueId};

use crate::error::Error;
use crate::options::Options;
use crate::server::queue_index;
use crate::setup::Machine;

/// First number of the files of queues.
const NUMBERS: u64 = 1 << 32;

pub(crate) struct Queues {
    is_direct: AtomicBool,
}

pub(crate) struct Client {}

impl Queues {
    pub(crate) fn new(_machine: &Machine, _options: &Options) -> Result<Queues, Error> {
        Ok(Queues { is_direct: AtomicBool::new(false) })
    }

    pub(crate) fn file_number(queue: QueueId) -> u64 {
        NUMBERS + queue_index(queue)
    }

    pub(crate) fn set_direct(&self, is_direct: bool) {
        self.is_direct.store(is_direct, Ordering::Relaxed);
    }

    pub(crate) fn open_flags(&self) -> FopenFlags {
        match self.is_direct.load(Ordering::Relaxed) {
            true => FopenFlags::FOPEN_DIRECT_IO,
            false => FopenFlags::empty(),
        }
    }

    pub(crate) fn follow(&self, _driver: &FakeDriver) {}

    pub(crate) fn refresh(&self, _driver: &FakeDriver, _path: &str) {}

    pub(crate) fn open(&self, _queue: QueueId, _pid: u32) -> Result<Arc<Client>, i32> {
        Ok(Arc::new(Client {}))
    }

    pub(crate) fn close(&self, _client: &Client) {}

    pub(crate) fn write(&self, _client: Arc<Client>, _pid: u32, _bytes: Vec<u8>, reply: ReplyWrite) {
        reply.error(Errno::EIO);
    }

    pub(crate) fn summary(&self) -> String {
        String::new()
    }
}
