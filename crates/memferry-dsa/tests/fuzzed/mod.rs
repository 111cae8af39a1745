//! The body of the fuzz target `driver`: a driver on scripted devices, in virtual time, with any requests, completions,
//! faults, full queues and queues that are gone.
//!
//! ```text
//! configuration 8: for each of 1 to 3 queues its size, largest transfer, largest batch and operations
//! until the end: a step 1, and its operands
//! then: the devices work as specified, and the driver is polled until nothing is in flight
//! ```

mod device;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memferry_dsa::internals::driver::{Driver, DriverOptions, Event, Failure, Finished, Loss, Observer};
use memferry_dsa::internals::request::Task;
use memferry_dsa::software::crc32c;
use memferry_dsa::system::Version;
use memferry_dsa::{Address, Opcode, OperationSet, Portal, Refused, Request, WorkQueueInfo};
use memferry_dsa_emulator::shared_queue;

use self::device::{Answer, Device, DeviceState};

/// Requests of a run.
const REQUESTS_MAX: usize = 60;
/// Rounds in which a run must end: each completes a descriptor, or gives one up.
const ROUNDS_MAX: usize = 20_000;
const TIMEOUT: Duration = Duration::from_millis(50);

/// Bytes of a fuzzer, followed by zeros.
struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }
}

/// A request of the run: its memory, which lives as long as the run.
struct TestRequest {
    opcode: Opcode,
    source: Box<[u8]>,
    target: Box<[u8]>,
    ended: Option<Vec<u8>>,
}

/// Counts of the driver's events.
#[derive(Default)]
struct Counts(RefCell<HashMap<&'static str, u64>>);

impl Observer for Counts {
    fn count(&self, event: Event) {
        let (name, count) = match event {
            Event::Submitted(count) => ("submitted", count),
            Event::Lost(count) => ("lost", count),
            Event::Completed(_) => ("completed", 1),
            Event::Faulted(_) => ("faulted", 1),
            Event::NotTaken => ("not taken", 1),
            Event::Failed => ("failed", 1),
            Event::Skipped => ("skipped", 1),
            Event::Batch(_) => ("batches", 1),
            Event::OnCpu(..) => ("on the CPU", 1),
            Event::Backoff => ("pauses", 1),
            Event::HintsRefused => ("hints refused", 1),
            Event::QueueLost => ("queues lost", 1),
            _ => return,
        };
        *self.0.borrow_mut().entry(name).or_default() += count;
    }
}

impl Counts {
    fn get(&self, name: &str) -> u64 {
        self.0.borrow().get(name).copied().unwrap_or(0)
    }
}

struct Run {
    devices: Vec<Arc<Device>>,
    driver: Driver<usize>,
    requests: Vec<TestRequest>,
    counts: Counts,
    now: Duration,
}

/// Runs a driver as the bytes say. Returns the number of events of each kind, by name.
///
/// # Panics
/// If a request does not end exactly once, ends with other bytes than it should, is executed twice, or ends while a
/// device has it; if memory changes after its request has ended; if the events do not add up; or if the driver hangs.
pub(crate) fn driver(data: &[u8]) -> HashMap<&'static str, u64> {
    let mut data = Bytes(data.iter());
    let mut run = Run::new(&mut data);
    while data.0.len() > 0 {
        run.step(&mut data);
    }
    run.finish();
    run.counts.0.into_inner()
}

impl Run {
    fn new(data: &mut Bytes) -> Run {
        let written = Arc::new(Mutex::default());
        let choices: [u8; 8] = std::array::from_fn(|_| data.byte());
        let device = |number: usize| {
            let choice = choices[number];
            let all = [Opcode::Memmove, Opcode::Fill, Opcode::CrcGeneration, Opcode::Batch];
            let lacks = OperationSet::of(&all).without(&all[usize::from(choice >> 5 & 3)..][..1]);
            let info = WorkQueueInfo {
                transfer_bytes_max: [100, 512, 4096, 1 << 20][usize::from(choice & 3)],
                batch_max: [2, 4, 6, 32][usize::from(choice >> 2 & 3)],
                block_on_fault: choice & 16 != 0,
                operations: if choice & 128 != 0 { lacks } else { OperationSet::of(&all) },
                ..shared_queue(&format!("wq0.{number}"), 1 + u32::from(choices[number + 3] % 4))
            };
            let state = DeviceState {
                answer: Answer::Accept,
                is_gone: false,
                is_deaf: false,
                accepted: VecDeque::new(),
                written: Arc::clone(&written),
            };
            Arc::new(Device { info, state: Mutex::new(state) })
        };
        let devices: Vec<_> = (0..1 + usize::from(choices[7] % 3)).map(device).collect();
        let options = DriverOptions {
            retries_max: u32::from(choices[6] % 4),
            faults_max: u32::from(choices[6] >> 4 & 3),
            batch_len_max: 8,
            version: Version::V1_0,
            completion_timeout: TIMEOUT,
        };
        let portals = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Portal>);
        let driver = Driver::new(portals, options);
        Run { devices, driver, requests: Vec::new(), counts: Counts::default(), now: Duration::ZERO }
    }

    fn step(&mut self, data: &mut Bytes) {
        let step = data.byte();
        let number = usize::from(step >> 4) % self.devices.len();
        match step & 15 {
            0..=2 => self.enqueue(data),
            3 | 4 => self.feed(),
            5..=8 => {
                let mut device = self.devices[number].state();
                if !device.is_deaf && !device.is_gone {
                    device.execute_one(&mut || data.byte() % 32);
                }
            }
            9 => self.complete(),
            10 => self.execute(),
            11 => self.take_finished(),
            12 => self.give_up(Duration::from_millis(data.byte().into())),
            13 => {
                self.devices[number].state().answer = match data.byte() % 16 {
                    0..=7 => Answer::Accept,
                    8..=11 => Answer::Retry,
                    12 => Answer::Refuse(Refused::Batch),
                    13 | 14 => Answer::Refuse(Refused::Errno(1)),
                    _ => Answer::Gone,
                };
            }
            14 if data.byte().is_multiple_of(8) => {
                let mut device = self.devices[number].state();
                device.is_gone = true;
                device.accepted.clear();
            }
            15 if data.byte().is_multiple_of(8) => self.devices[number].state().is_deaf = true,
            _ => self.now += Duration::from_micros(data.byte().into()),
        }
    }

    fn enqueue(&mut self, data: &mut Bytes) {
        if self.requests.len() == REQUESTS_MAX {
            return;
        }
        let (kind, size) = (data.byte(), data.byte());
        let bytes = usize::from(size) * if kind & 0x80 != 0 { 1 } else { 16 };
        let opcode =
            [Opcode::Memmove, Opcode::Memmove, Opcode::Fill, Opcode::CrcGeneration][usize::from(kind & 3)];
        if bytes == 0 && opcode != Opcode::Memmove {
            return;
        }
        let tag = self.requests.len();
        let source = (0..bytes).map(|index| (index * 7 + tag) as u8 | 1).collect();
        self.requests.push(TestRequest { opcode, source, target: vec![0; bytes].into(), ended: None });
        let request = &mut self.requests[tag];
        // SAFETY: the memory lives as long as the run, and is looked at only after the end of its request.
        let mut task = unsafe {
            match opcode {
                Opcode::Memmove => Task::copy(request.source.as_ptr(), request.target.as_mut_ptr(), bytes),
                Opcode::Fill => {
                    Task::new(&Request::fill(0x0807_0605_0403_0201, &mut *request.target)).expect("valid")
                }
                _ => Task::new(&Request::crc(0, &*request.source)).expect("valid"),
            }
        };
        task.add_hints(kind & 4 != 0, kind & 8 != 0);
        self.driver.enqueue(task, usize::from(kind >> 4 & 1), tag);
    }

    fn feed(&mut self) {
        self.driver.feed(|| self.now, &self.counts);
    }

    fn complete(&mut self) {
        let (mut written, mut faulted) = (Vec::new(), Vec::new());
        self.driver.queues().poll(&mut written);
        // Twice, as if another thread had polled before the completion: the second call has no effect.
        for written in written.iter().chain(&written) {
            self.driver.complete(*written, &mut faulted, &self.counts);
        }
        for mut faulted in faulted {
            faulted.touch(&self.counts);
            self.driver.resume(faulted);
        }
    }

    fn give_up(&mut self, elapsed: Duration) {
        self.now += elapsed;
        self.driver.queues().ask(&self.counts);
        let mut faulted = Vec::new();
        self.driver.give_up(elapsed, &mut faulted, &self.counts);
        faulted.into_iter().for_each(|faulted| self.driver.resume(faulted));
    }

    fn execute(&mut self) {
        for work in self.driver.take_cpu_work() {
            self.driver.executed(work, &self.counts);
        }
    }

    fn take_finished(&mut self) {
        for Finished { tag, report, result } in self.driver.take_finished() {
            let request = &mut self.requests[tag];
            assert!(request.ended.is_none(), "request {tag} ended twice");
            request.ended = Some(request.target.to_vec());
            let start = Address::from(request.target.as_ptr());
            let bytes = request.target.len() as u64;
            let has_it =
                |device: &Arc<Device>| (0..bytes).any(|byte| device.state().names(start.offset(byte)));
            match result {
                Ok(ended) => {
                    assert!(!self.devices.iter().any(has_it), "request {tag} ended while a device has it");
                    assert_eq!(report.device_bytes + report.cpu_bytes, bytes, "request {tag}");
                    match request.opcode {
                        Opcode::Memmove => {
                            assert!(request.target == request.source, "request {tag}: bytes differ")
                        }
                        Opcode::Fill => {
                            let pattern = |(index, byte): (usize, &u8)| usize::from(*byte) == index % 8 + 1;
                            assert!(
                                request.target.iter().enumerate().all(pattern),
                                "request {tag}: bytes differ"
                            );
                        }
                        _ => {
                            let expected = crc32c(0, &request.source, Default::default());
                            assert_eq!(ended.outcome::<u32>(), Some(expected), "request {tag}");
                        }
                    }
                }
                Err(Failure::Lost(Loss::Silent)) => {}
                Err(_) => {
                    assert!(!self.devices.iter().any(has_it), "request {tag} failed while a device has it");
                }
            }
        }
    }

    /// Lets the devices work as specified until nothing is in flight.
    fn finish(&mut self) {
        for device in &self.devices {
            let mut state = device.state();
            state.answer = if state.answer == Answer::Gone { Answer::Gone } else { Answer::Accept };
        }
        for round in 0.. {
            assert!(round < ROUNDS_MAX, "the driver hangs");
            self.feed();
            for device in &self.devices {
                let mut state = device.state();
                while !state.is_deaf && !state.is_gone && state.execute_one(&mut || 0) {}
            }
            self.complete();
            self.execute();
            self.give_up(Duration::from_millis(90));
            self.take_finished();
            if self.driver.is_idle() {
                break;
            }
        }
        for (tag, request) in self.requests.iter().enumerate() {
            let ended = request.ended.as_ref().unwrap_or_else(|| panic!("request {tag} did not end"));
            // A device that was taken for silent may still write.
            let start = Address::from(request.target.as_ptr());
            let is_left = |(index, byte): (usize, &u8)| {
                *byte == request.target[index]
                    || self.devices[0].state().has_written(start.offset(index as u64))
            };
            let is_left_alone = ended.iter().enumerate().all(is_left);
            assert!(is_left_alone, "the target of request {tag} changed after its end");
        }
        let ends = ["completed", "faulted", "not taken", "failed", "skipped", "lost"];
        let ended: u64 = ends.iter().map(|name| self.counts.get(name)).sum();
        assert_eq!(self.counts.get("submitted"), ended, "{:?}", self.counts.0);
    }
}
