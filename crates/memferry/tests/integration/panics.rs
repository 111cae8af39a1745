//! Foreign code that panics on threads of the library, with payloads whose destructors panic as well.
//!
//! `catch_unwind` hands the payload back, and dropping it runs foreign code again. That second panic once ended the
//! worker of a CPU engine, so that all later copies timed out, and aborted the process in a DSA engine's completer.

use std::panic::panic_any;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use memferry::mover::{CopyOptions, CpuEngine, CpuOptions, DsaEngine, DsaOptions, Engine, Mover, RawRequest};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

use crate::mover_support::machine;

const SIZE_BYTES: usize = 64 << 10;

/// A payload whose destructor panics with another one.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(Fuse);
    }
}

/// The payload of that panic, which must not be dropped.
struct Fuse;

impl Drop for Fuse {
    fn drop(&mut self) {
        panic!("the second payload was dropped");
    }
}

/// A copy of leaked buffers.
#[allow(unsafe_code)]
fn copy(done: impl FnOnce() + Send + 'static) -> RawRequest {
    let source: &'static [u8] = vec![7; SIZE_BYTES].leak();
    let target: &'static mut [u8] = vec![0; SIZE_BYTES].leak();
    // SAFETY: both are leaked, and nobody else has them.
    unsafe { RawRequest::new(source.as_ptr(), target.as_mut_ptr(), SIZE_BYTES, move |_| done()) }
}

/// The engine's one thread goes on after a `done` that panics.
fn goes_on(engine: &dyn Engine) {
    let (tells, told) = channel();
    for _ in 0..3 {
        engine.submit(copy(|| panic_any(Bomb))).expect("there is room");
        let tells = tells.clone();
        engine.submit(copy(move || tells.send(()).expect("the test listens"))).expect("there is room");
        told.recv_timeout(Duration::from_secs(30)).expect("the thread goes on");
    }
}

#[test]
fn a_worker_survives_a_payload_that_panics() {
    let options = CpuOptions { workers_count: 1, inline_bytes_max: 0, ..CpuOptions::default() };
    goes_on(&CpuEngine::new(&machine(), options).expect("a thread"));
}

/// In a process of its own, since the completer aborts when it panics.
#[test]
fn a_completer_survives_a_payload_that_panics() {
    const CHILD: &str = "MEMFERRY_TEST_COMPLETER_SURVIVES";
    if std::env::var_os(CHILD).is_some() {
        let device = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).expect("a device");
        return goes_on(&DsaEngine::new(vec![device.portal(0)], DsaOptions::default()).expect("a thread"));
    }
    let child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "panics::a_completer_survives_a_payload_that_panics", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("this test can be run");
    assert!(child.status.success(), "{:?}: {}", child.status, String::from_utf8_lossy(&child.stderr));
}

/// A waker that panics keeps no other waker of the same transfer from being called.
#[test]
fn a_waker_that_panics_with_such_a_payload_stops_nobody() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic_any(Bomb);
        }
    }
    struct Counts(AtomicUsize);
    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let (gate, opens) = channel::<()>();
    let cpu = CpuEngine::new(&machine(), CpuOptions { inline_bytes_max: 0, ..CpuOptions::default() });
    let cpu = Arc::new(cpu.expect("a thread"));
    // The one worker is kept until both wakers are in place.
    let held = copy(move || opens.recv().expect("the test opens"));
    cpu.submit(held).expect("there is room");
    let mover = Mover::builder(machine()).engine(cpu).build().expect("threads");
    let copied = mover.copy(vec![1; SIZE_BYTES], vec![0; SIZE_BYTES], CopyOptions::default());
    let mut copied = Box::pin(copied);
    let counts = Arc::new(Counts(AtomicUsize::new(0)));
    for waker in [Waker::from(Arc::new(Panics)), Waker::from(counts.clone())] {
        assert!(Future::poll(copied.as_mut(), &mut Context::from_waker(&waker)).is_pending());
    }
    gate.send(()).expect("the worker waits");
    let begun = Instant::now();
    while counts.0.load(Ordering::SeqCst) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the second waker was not called");
        std::thread::yield_now();
    }
}
