//! The cost of copies to other threads: readers whose working sets fit into their caches, alone and beside copies.
//!
//! A reader follows a chain through its working set. Each load depends on the one before, so that its speed is the latency of the
//! level that holds its lines. Source: Kuper et al. 2024, section 4.5 and figure 13, with X-Mem as the reader.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use memferry_dsa::internals::affinity::confine;

use super::OnMachine;
use super::home::{Home, crowded};
use crate::dsa::load::{self, Load, threads};
use crate::harness::median;
use crate::papers::{Measurement, Metric, Point, RunLength, Skipped};

/// Readers, each with a CPU and a working set of its own (section 4.5). On a machine with fewer CPUs there are fewer.
const READERS: usize = 8;

/// Bytes of the working set unless a point chooses others.
const WORKING_SET_BYTES: u64 = 4 << 20;

/// From twice the loads of a value to what a chain of 32-bit words can address.
const WORKING_SETS: RangeInclusive<u64> = 512 << 10..=1 << 33;
const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = 16;

/// Loads per value: enough to outweigh readings of the clock.
const LOADS: usize = 4096;

/// Factor for the number of copies in each turn of a reader, so that it sees enough of them.
const POLLUTION_FACTOR: usize = 10;

impl OnMachine {
    /// Load latencies of readers on other CPUs beside the copies.
    pub(super) fn pollution(
        &self,
        point: &Point,
        load: Load,
        executors: &[load::Executor],
        mut home: Home,
        effort: RunLength,
    ) -> Result<Vec<Measurement>, Skipped> {
        if home.cpus.len() < 2 {
            return Skipped::cannot(
                "a reader beside copies needs two CPUs of one node, and this process may use one",
            );
        }
        let working_set = point.working_set_bytes.unwrap_or(WORKING_SET_BYTES);
        if !working_set.is_power_of_two() || !WORKING_SETS.contains(&working_set) {
            return Skipped::cannot(format!(
                "a reader's working set is a power of two from {} to {} bytes",
                WORKING_SETS.start(),
                WORKING_SETS.end()
            ));
        }
        // The CPUs that the copies do not need.
        let readers_count = home.cpus.len().saturating_sub(point.submitters).clamp(1, READERS);
        let reader_cpus: Vec<u32> = home.cpus.drain(..readers_count).collect();
        home.crowded = crowded(point.submitters, home.cpus.len());
        let load = Load { repetitions: load.repetitions.saturating_mul(POLLUTION_FACTOR), ..load };
        let mut lanes = self.lanes(point, load, executors, &home)?;
        let reader = |cpu: u32| Ok((cpu, on_cpu(cpu, || Reader::new(working_set as usize))?));
        let mut readers = reader_cpus.into_iter().map(reader).collect::<Result<Vec<_>, Skipped>>()?;
        let (mut alone, mut beside, mut slowdowns) = (Vec::new(), Vec::new(), Vec::new());
        // In turns, and equally long, so that clocks and caches that change with time change both. The first turn tells how
        // long that is.
        let mut count = 1;
        for turn in 0..=effort.iterations {
            let (own, _) = read_by(&mut readers, |reader| reader.alone(count))?;
            let is_over = &AtomicBool::new(false);
            let (ran, read) = thread::scope(|scope| {
                let reading = scope.spawn(|| read_by(&mut readers, |reader| reader.until(is_over)));
                let ran = {
                    let _over = StopOnDrop(is_over);
                    threads(lanes, 1)
                };
                (ran, reading.join())
            });
            let Ok(read) = read else { return Skipped::cannot(READER_ENDED) };
            (_, lanes) = ran?;
            let (read, values_count) = read?;
            count = values_count;
            if turn == 0 {
                continue;
            }
            alone.push(own);
            beside.push(read);
            slowdowns.push(read / own);
        }
        let mut note = self.place(&home, &lanes);
        if readers_count < READERS {
            let fewer = format!("{readers_count} of {READERS} readers, for want of CPUs");
            note = Some(note.map_or(fewer.clone(), |note| format!("{note}; {fewer}")));
        }
        let peer = Some(("alone", median(&alone)));
        let load = Measurement { peer, ..Measurement::new(Metric::LOAD, beside) };
        let mut slowdown = Measurement::new(Metric::SLOWDOWN, slowdowns).with_note(note.clone());
        // The published copies and readers have a core each.
        slowdown.is_other_work = home.crowded.is_some() || readers_count < READERS;
        Ok(vec![load.with_note(note), slowdown])
    }
}

const READER_ENDED: &str = "the reader's thread has ended";

/// Runs on a thread of this CPU.
fn on_cpu<T: Send>(cpu: u32, run: impl FnOnce() -> T + Send) -> Result<T, Skipped> {
    let run = || {
        let _ = confine(&[cpu]);
        run()
    };
    let ran = thread::scope(|scope| scope.spawn(run).join());
    ran.map_or_else(|_| Skipped::cannot(READER_ENDED), Ok)
}

/// Lets all readers read at the same time, each on its CPU. The median of their values, and the number of values of one.
fn read_by(
    readers: &mut [(u32, Reader)],
    read: impl Fn(&mut Reader) -> Vec<f64> + Sync,
) -> Result<(f64, usize), Skipped> {
    let read = &read;
    let joined: Vec<thread::Result<Vec<f64>>> = thread::scope(|scope| {
        let on_its_cpu = |(cpu, reader): &mut (u32, Reader)| {
            let _ = confine(&[*cpu]);
            read(reader)
        };
        let threads: Vec<_> =
            readers.iter_mut().map(|reader| scope.spawn(move || on_its_cpu(reader))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    match joined.into_iter().collect::<thread::Result<Vec<_>>>() {
        Ok(values) => {
            let count = values.iter().map(Vec::len).min().unwrap_or(0);
            Ok((median(&values.concat()), count))
        }
        Err(_) => Skipped::cannot(READER_ENDED),
    }
}

/// Stops the readers on drop, also when a copying thread panics: otherwise they would read for ever.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed, no partner: the flag publishes no data; results pass through joins and channels.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A reader and its working set.
struct Reader {
    words: Vec<u32>,
    at: u32,
}

impl Reader {
    /// A chain through all lines in an order that no prefetcher follows: a congruential generator of full period
    /// (Hull and Dobell, 1962: odd increment, factor 1 modulo 4; the number of lines is a power of two).
    fn new(bytes: usize) -> Reader {
        let lines = bytes / LINE_BYTES;
        let mut words = vec![0; lines * LINE_WORDS];
        for line in 0..lines {
            let next = (line * 25_173 + 13_849) % lines;
            words[line * LINE_WORDS] = (next * LINE_WORDS) as u32;
        }
        Reader { words, at: 0 }
    }

    /// Nanoseconds per load, the mean of several.
    fn load_ns(&mut self) -> f64 {
        let begin = Instant::now();
        for _ in 0..LOADS {
            self.at = self.words[self.at as usize];
        }
        black_box(self.at);
        begin.elapsed().as_nanos() as f64 / LOADS as f64
    }

    /// Reads the working set twice, then takes that many values.
    fn alone(&mut self, count: usize) -> Vec<f64> {
        for _ in 0..2 * self.words.len() / LINE_WORDS / LOADS {
            self.load_ns();
        }
        (0..count).map(|_| self.load_ns()).collect()
    }

    /// Takes at least one value, until stopped.
    fn until(&mut self, is_over: &AtomicBool) -> Vec<f64> {
        let mut values = Vec::new();
        loop {
            values.push(self.load_ns());
            // ORDERING: Relaxed, no partner: the flag publishes no data; results pass through joins and channels.
            if is_over.load(Ordering::Relaxed) {
                return values;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_readers_read() {
        let mut readers: Vec<_> = (0..3).map(|_| (0, Reader::new(512 << 10))).collect();
        let (value, count) = read_by(&mut readers, |reader| reader.alone(5)).unwrap();
        assert!(value > 0.0 && count == 5);
        assert!(readers.iter().all(|(_, reader)| reader.at != 0), "one has read nothing");
        let error = read_by(&mut readers, |_| panic!("a reader"));
        assert!(error.unwrap_err().to_string().contains("ended"));
    }

    #[test]
    fn the_chain_visits_every_line_once() {
        let mut reader = Reader::new(1 << 20);
        let lines = reader.words.len() / LINE_WORDS;
        let mut is_visited = vec![false; lines];
        for _ in 0..lines {
            let line = reader.at as usize / LINE_WORDS;
            assert!(!is_visited[line], "line {line} comes twice");
            is_visited[line] = true;
            reader.at = reader.words[reader.at as usize];
        }
        assert_eq!(reader.at, 0);
        assert_eq!((lines, reader.alone(3).len()), (16_384, 3));
        assert_eq!(reader.until(&AtomicBool::new(true)).len(), 1);
    }
}
