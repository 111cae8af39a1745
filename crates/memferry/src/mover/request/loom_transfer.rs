//! Models of the transfer: its two halves, in every order.

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread::{self, JoinHandle};

use super::raw::RawRequest;
use super::transfer::Transfer;
use crate::copy_method::{CopyMethod, CopyMethods};
use crate::moment::Moment;
use crate::sync::loom_executor::block_on;

/// A buffer that counts its drops, outside the model.
struct Buffer {
    bytes: [u8; 4],
    drops: StdArc<AtomicUsize>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// A transfer of four bytes, the thread of its engine, and the number of dropped buffers.
fn begin() -> (Transfer<Buffer, Buffer>, JoinHandle<()>, StdArc<AtomicUsize>) {
    let drops = StdArc::new(AtomicUsize::new(0));
    let source = Buffer { bytes: *b"ferr", drops: drops.clone() };
    let target = Buffer { bytes: [0; 4], drops: drops.clone() };
    let mut engine = None;
    let transfer = Transfer::begin(source, target, Moment::now(), |copy: RawRequest| {
        engine = Some(thread::spawn(move || {
            let result = copy.copy_on_this_cpu(&CopyMethods::only(CopyMethod::Memcpy));
            copy.finish(result);
        }));
    });
    (transfer, engine.expect("four bytes are to be copied"), drops)
}

#[test]
fn loom_waiting() {
    loom::model(|| {
        let (transfer, engine, drops) = begin();
        let (_, target, report) = transfer.wait().expect("copied");
        assert_eq!((&target.bytes, report.bytes()), (b"ferr", 4));
        drop(target);
        engine.join().expect("no panic");
        assert_eq!(drops.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn loom_awaiting() {
    loom::model(|| {
        let (transfer, engine, drops) = begin();
        let (source, target, _) = block_on(transfer).expect("copied");
        assert_eq!(&target.bytes, b"ferr");
        drop((source, target));
        engine.join().expect("no panic");
        assert_eq!(drops.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn loom_looking_once() {
    loom::model(|| {
        let (transfer, engine, drops) = begin();
        let transfer = match transfer.try_wait() {
            Ok(outcome) => {
                assert_eq!(&outcome.expect("copied").1.bytes, b"ferr");
                None
            }
            Err(transfer) => Some(transfer),
        };
        engine.join().expect("no panic");
        if let Some(transfer) = transfer {
            let outcome = transfer.try_wait().expect("the engine is done");
            assert_eq!(&outcome.expect("copied").1.bytes, b"ferr");
        }
        assert_eq!(drops.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn loom_dropping() {
    loom::model(|| {
        let (transfer, engine, drops) = begin();
        drop(transfer);
        engine.join().expect("no panic");
        assert_eq!(drops.load(Ordering::Relaxed), 2, "the last owner drops both buffers");
    });
}
