//! Events of `tracing`: what there is to tell is told, and a subscriber that panics harms nothing.
//!
//! One test, because a process has one subscriber.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memferry::mover::{CopyOptions, DsaEngine, DsaOptions, Mover};
use memferry::topology::Machine;
use memferry_dsa::Request;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// What was told: level, message, fields.
static TOLD: Mutex<Vec<(Level, String, String)>> = Mutex::new(Vec::new());
static PANICS: AtomicBool = AtomicBool::new(false);

struct Recorder;

#[derive(Default)]
struct Fields {
    message: String,
    others: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.others += &format!("{name}={value:?} "),
        }
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "memferry::mover"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        assert!(!PANICS.load(Ordering::SeqCst), "this panic belongs to the test");
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        told.push((*event.metadata().level(), fields.message, fields.others));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What was told since the last time.
fn told() -> Vec<(Level, String, String)> {
    std::mem::take(&mut *TOLD.lock().unwrap_or_else(PoisonError::into_inner))
}

fn mover(config: &DeviceConfig, fault_plan: FaultPlan) -> (Mover, Arc<Emulator>) {
    let device = Emulator::start(config, fault_plan).expect("a valid configuration");
    let options = DsaOptions { name: "the-dsa".to_owned(), ..DsaOptions::default() };
    let dsa = DsaEngine::new(vec![device.portal(0)], options).expect("a thread");
    let machine = Arc::new(Machine::two_tiers().expect("built in"));
    (Mover::builder(machine).engine(Arc::new(dsa)).build().expect("threads"), device)
}

#[test]
fn what_falls_back_and_fails_is_told() {
    tracing::subscriber::set_global_default(Recorder).expect("the only one");
    let copy = |mover: &Mover| mover.copy(vec![1; 5000], vec![0; 5000], CopyOptions::default());

    let (calm, _device) = mover(&DeviceConfig::one_shared_queue().as_production(), FaultPlan::none());
    copy(&calm).wait().expect("copied");
    assert_eq!(told(), [], "nothing for a copy that goes well");
    calm.stats().trace();
    let events = told();
    let names: Vec<&str> = events.iter().map(|(_, message, _)| message.as_str()).collect();
    assert_eq!(names, ["engine", "engine", "mover"]);
    assert!(events[0].2.contains("engine=the-dsa kind=Dsa accepted=1 rejected=0 operations=1"), "{events:?}");
    assert!(events.iter().all(|(level, ..)| *level == Level::INFO), "{events:?}");
    // Every counter of the struct, so that none that is added later is forgotten.
    let counters = serde_json::to_value(&calm.stats().engines[0]).expect("plain data");
    let counters = counters.as_object().expect("a struct").iter().filter(|(_, value)| value.is_u64());
    for (name, value) in counters {
        assert!(events[0].2.contains(&format!("{name}={value}")), "{name} is missing: {events:?}");
    }

    let buffers = (vec![0; 4096], vec![0; 4096], vec![0; 80]);
    let delta = calm.run(
        buffers,
        |(old, new, delta)| Request::create_delta(&*old, &*new, delta),
        CopyOptions::default(),
    );
    delta.wait().expect("by the CPU");
    let events = told();
    assert!(events[0].1 == "not supported" && events.len() == 1, "{events:?}");

    let full = FaultPlan { retries_per_mille: 1000, ..FaultPlan::none() };
    let (stuck, _device) = mover(&DeviceConfig::one_shared_queue(), full);
    copy(&stuck).wait().expect("by the CPU");
    let events = told();
    assert_eq!(events[0].1, "done by the CPU", "{events:?}");
    assert!(events[0].2.contains("pieces_count=1 size_bytes=5000"), "{events:?}");

    let slow = FaultPlan { delay_steps_max: 1_000_000, seed: 1, ..FaultPlan::none() };
    let (dying, device) = mover(&DeviceConfig::one_shared_queue(), slow);
    let copies: Vec<_> = (0..20).map(|_| copy(&dying)).collect();
    device.abort();
    let lost = copies.into_iter().filter_map(|copy| copy.wait().err()).count();
    let events = told();
    let count = |message: &str| events.iter().filter(|(_, told, _)| told == message).count();
    assert!(lost > 0 && count("copy failed") == lost, "{lost} lost, {events:?}");

    PANICS.store(true, Ordering::SeqCst);
    copy(&stuck).wait().expect("whatever the subscriber does");
}
