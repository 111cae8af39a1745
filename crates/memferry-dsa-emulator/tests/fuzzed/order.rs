//! Clients that share a device; a hostile one writes arbitrary words into all memory that it can write.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memferry_dsa::{Descriptor, Submission};
use memferry_dsa_emulator::shared::{Client, ClientEngine, DeviceSetup, Options, QueueAt, Server};
use memferry_dsa_emulator::{
    Capabilities, DeviceCosts, FakeMemory, OPERATIONS, dedicated_queue, shared_queue,
};

use super::input::Bytes;
use super::memory;
use super::watched::Watched;

/// Maximum number of actions in a run.
const STEPS_MAX: usize = 300;
/// Rounds of maintenance after which the device must work again, each 1.5 s apart: the slots of a queue are repaired
/// one by one, and an engine after some seconds.
const ROUNDS_MAX: usize = 1000;

/// Two queues of a device, an honest client with its engine, and a hostile client.
struct Run {
    state: Server,
    honest: Client,
    engine: ClientEngine,
    hostile: Client,
    memory: Watched,
    has_timing: bool,
    now: Instant,
}

/// Runs the actions from the bytes, and panics if the server or the honest client breaks a rule. Any bytes are valid.
///
/// # Panics
/// If a client or the server panics or hangs, accesses memory that the honest client has not named, or does not work
/// again after the forgery has ended.
pub(crate) fn order(data: &[u8]) {
    let mut data = Bytes(data);
    let timing = data.byte() & 1 == 1;
    let mut run = Run::new(timing, memory(&mut data));
    for _ in 0..STEPS_MAX {
        if data.is_empty() {
            break;
        }
        run.step(&mut data);
    }
    run.assert_progress();
}

impl Run {
    fn new(has_timing: bool, memory: FakeMemory) -> Run {
        let options = Options { timing: has_timing.then(DeviceCosts::sapphire_rapids), ..Options::default() };
        let state = Server::create(&options).expect("memory");
        let (operations, capabilities) = (OPERATIONS, Capabilities::ALL);
        let engine_groups = [Some(0), Some(0), None, None];
        state.enable_device(0, &DeviceSetup { number: 0, operations, capabilities, engine_groups });
        for (queue, info) in [shared_queue("", 8), dedicated_queue("", 8)].iter().enumerate() {
            state.enable_queue(QueueAt { device: 0, queue }, 0, info).expect("a valid configuration");
        }
        let join = || state.join(std::process::id()).expect("two places");
        let (honest, hostile) = (join(), join());
        let engine = honest.engine(0);
        Run { state, honest, engine, hostile, memory: Watched::new(memory), has_timing, now: Instant::now() }
    }

    fn step(&mut self, data: &mut Bytes<'_>) {
        let queue = QueueAt { device: 0, queue: usize::from(data.byte() & 1) };
        match data.byte() % 8 {
            0 => _ = self.submit(queue, data.descriptor()),
            1 => _ = self.hostile.enqcmd(queue, &mut Descriptor::noop().to_words()),
            2..=4 => self.tamper(data),
            5 => self.work(),
            6 => self.maintain(),
            _ => self.ask(queue, data.byte()),
        }
    }

    /// Forges a word, or the mark of an entry.
    fn tamper(&self, data: &mut Bytes<'_>) {
        let [own, order] = self.hostile.writable_words();
        let words = if data.byte() & 7 == 0 { own } else { order };
        // The queues of the first device are at the start.
        let reach = words.len().min(1 << (data.byte() % 18 + 4));
        let at = &words[data.word() as usize % reach];
        let now = at.load(Ordering::Relaxed);
        let near = u64::from(data.byte());
        let value = match data.byte() % 8 {
            0 => 0,
            1 => u64::MAX,
            2 => now.wrapping_add(near),
            3 => now.wrapping_sub(near),
            4 => now ^ 1 << (near % 64),
            5 => {
                let accepted = self.state.queue_report(QueueAt { device: 0, queue: 0 }).accepted;
                (accepted.wrapping_add(near) << 14) | (u64::from(self.honest.pasid()) << 2) | (near % 4)
            }
            6 => near,
            _ => data.word(),
        };
        at.store(value, Ordering::Relaxed);
    }

    fn submit(&self, queue: QueueAt, descriptor: Descriptor) -> bool {
        let mut words = descriptor.to_words();
        match queue.queue {
            0 => {
                self.memory.allow(descriptor);
                self.honest.enqcmd(queue, &mut words) == Submission::Accepted
            }
            _ => {
                self.memory.allow(descriptor);
                self.honest.movdir64b(queue, &mut words);
                true
            }
        }
    }

    fn work(&mut self) {
        self.engine.step(&self.memory).expect("a valid configuration");
    }

    fn maintain(&mut self) {
        self.now += Duration::from_millis(1500);
        self.state.maintain(self.now);
    }

    /// Exercises the server's reports and its configuration.
    fn ask(&self, queue: QueueAt, what: u8) {
        let state = &self.state;
        let _ = (state.queue_report(queue), state.counters(0), state.client_reports());
        let _ = (state.error_words(0), state.is_drained(queue), state.take_error(0));
        if what == 0 {
            state.close_queue(queue);
            if !state.disable_queue(queue) {
                state.discard_queue(queue);
            }
            let info = if queue.queue == 0 { shared_queue("", 8) } else { dedicated_queue("", 8) };
            state.enable_queue(queue, 0, &info).expect("it was before");
        }
    }

    /// The hostile client leaves: after that, the descriptors of the honest one complete.
    fn assert_progress(mut self) {
        self.hostile = self.honest.clone();
        let at = QueueAt { device: 0, queue: 0 };
        let ended = |run: &Run| run.state.counters(0).completed_count();
        let (mut accepted, before) = (false, ended(&self));
        for _ in 0..ROUNDS_MAX {
            accepted = accepted || self.submit(at, Descriptor::noop());
            (0..64).for_each(|_| self.work());
            if accepted && ended(&self) > before {
                return;
            }
            self.maintain();
            if self.has_timing {
                std::thread::sleep(Duration::from_millis(5)); // the device's clock is a real one
            }
        }
        panic!("the queue makes no progress: accepted {accepted}, {:?}", self.state.queue_report(at));
    }
}
