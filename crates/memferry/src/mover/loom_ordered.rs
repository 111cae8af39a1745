//! Models of the ordered pipeline: copies complete in every order, and are retired in the order of submission.

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::thread::{self, JoinHandle};

use super::ordered::Line;
use super::{CopyError, RawRequest, Transfer};
use crate::copy_method::{CopyMethod, CopyMethods};
use crate::moment::Moment;
use crate::sync::loom_executor::block_on;

/// A byte that counts its drops, outside the model.
struct Byte([u8; 1], StdArc<AtomicUsize>);

impl AsRef<[u8]> for Byte {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Byte {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Byte {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

struct Model {
    line: Line<Byte, Byte>,
    engines: Vec<JoinHandle<()>>,
    drops: StdArc<AtomicUsize>,
}

/// Two copies, 1 and 2, each with a thread that is its engine; the second one fails.
fn begin() -> Model {
    let drops = StdArc::new(AtomicUsize::new(0));
    let (mut line, mut engines) = (Line::default(), Vec::new());
    for number in [1, 2] {
        let byte = |value| Byte([value], drops.clone());
        line.push(Transfer::begin(byte(number), byte(0), Moment::now(), |copy: RawRequest| {
            engines.push(thread::spawn(move || {
                let result = copy.copy_on_this_cpu(&CopyMethods::only(CopyMethod::Memcpy));
                copy.finish(if number == 2 { Err(CopyError::Injected) } else { result });
            }));
        }));
    }
    Model { line, engines, drops }
}

impl Model {
    fn end(self, drops: usize) {
        drop(self.line);
        self.engines.into_iter().for_each(|engine| engine.join().expect("no panic"));
        assert_eq!(self.drops.load(Ordering::Relaxed), drops);
    }
}

#[test]
fn loom_retired_in_order() {
    loom::model(|| {
        let mut model = begin();
        // Retired at once or after a wait: the first copy comes first either way.
        let first = model.line.retire().or_else(|| model.line.retire_wait()).expect("two were pushed");
        assert_eq!(first.expect("copied").1.0, [1]);
        let second = model.line.retire_wait().expect("two were pushed");
        assert_eq!(second.err().expect("fails").error, CopyError::Injected);
        assert!(model.line.retire().is_none() && model.line.retire_wait().is_none());
        model.end(4);
    });
}

#[test]
fn loom_awaited_in_order() {
    loom::model(|| {
        let mut model = begin();
        let first = block_on(model.line.next()).expect("two were pushed");
        assert_eq!(first.expect("copied").1.0, [1]);
        let second = block_on(model.line.next()).expect("two were pushed");
        assert_eq!(second.err().expect("fails").error, CopyError::Injected);
        assert!(block_on(model.line.next()).is_none());
        model.end(4);
    });
}

#[test]
fn loom_a_pipeline_is_dropped() {
    loom::model(|| {
        let mut model = begin();
        drop(model.line.retire());
        model.end(4);
    });
}
