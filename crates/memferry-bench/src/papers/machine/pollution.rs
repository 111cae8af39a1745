//! The cost of copies to another thread: a reader whose working set fits into its caches, alone and beside copies.
//!
//! The reader follows a chain through 4 MiB. Each load depends on the one before, so that its speed is the latency of the
//! level that holds its lines. Source: Kuper et al. 2024, section 4.5 and figure 13, with X-Mem as the reader.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use memferry_dsa::internals::affinity::confine;

use super::OnMachine;
use super::home::{Home, crowded};
use crate::dsa::load::{self, Load, threads};
use crate::harness::median;
use crate::papers::{Measurement, Metric, Point, RunLength, Skipped};

/// Bytes of the working set: that of the paper.
const WORKING_SET_BYTES: usize = 4 << 20;
const LINE_WORDS: usize = 16;
const LINES: usize = WORKING_SET_BYTES / 64;

/// Loads per value: enough to outweigh readings of the clock.
const LOADS: usize = 4096;

/// Factor for the number of copies beside a reader, so that it sees enough of them.
const POLLUTION_FACTOR: usize = 100;

impl OnMachine {
    /// Load latencies of a reader on another CPU beside the copies.
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
        let reader_cpu = home.cpus.remove(0);
        home.crowded = crowded(point.submitters, home.cpus.len());
        let load = Load { repetitions: load.repetitions.saturating_mul(POLLUTION_FACTOR), ..load };
        let lanes = self.lanes(point, load, executors, &home)?;
        let is_over = &AtomicBool::new(false);
        let (alone, beside, ran) = thread::scope(|scope| {
            let reading = scope.spawn(|| {
                let _ = confine(&[reader_cpu]);
                let mut reader = Reader::new();
                (reader.alone(effort.iterations), reader)
            });
            let Ok((alone, mut reader)) = reading.join() else {
                return Skipped::cannot("the reader's thread has ended");
            };
            let reading = scope.spawn(move || {
                let _ = confine(&[reader_cpu]);
                reader.until(is_over)
            });
            let ran = {
                let _over = StopOnDrop(is_over);
                threads(lanes, 1)
            };
            let beside = reading.join().unwrap_or_default();
            Ok((alone, beside, ran))
        })?;
        let (_, lanes) = ran?;
        if beside.is_empty() {
            return Skipped::cannot("the reader's thread has ended");
        }
        let own = median(&alone);
        let slowdowns = beside.iter().map(|load_ns| load_ns / own).collect();
        let note = self.place(&home, &lanes);
        let load = Measurement { peer: Some(("alone", own)), ..Measurement::new(Metric::LOAD, beside) };
        Ok(vec![load.with_note(note.clone()), Measurement::new(Metric::SLOWDOWN, slowdowns).with_note(note)])
    }
}

/// Stops the reader on drop, also when a copying thread panics: otherwise it would read for ever.
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
    /// (Hull and Dobell, 1962: odd increment, factor 1 modulo 4).
    fn new() -> Reader {
        let mut words = vec![0; LINES * LINE_WORDS];
        for line in 0..LINES {
            let next = (line * 25_173 + 13_849) % LINES;
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
        for _ in 0..2 * LINES / LOADS {
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
    fn the_chain_visits_every_line_once() {
        let mut reader = Reader::new();
        let mut is_visited = vec![false; LINES];
        for _ in 0..LINES {
            let line = reader.at as usize / LINE_WORDS;
            assert!(!is_visited[line], "line {line} comes twice");
            is_visited[line] = true;
            reader.at = reader.words[reader.at as usize];
        }
        assert_eq!(reader.at, 0);
        assert_eq!(reader.alone(3).len(), 3);
        assert_eq!(reader.until(&AtomicBool::new(true)).len(), 1);
    }
}
