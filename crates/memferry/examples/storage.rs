//! How fast this machine's disk is read: by the storage engine, and by plain loops.
//!
//! `cargo run -p memferry --example storage -- FILE [MIB]` reads a file of at least MIB MiB (default 1024) again and again
//! and prints medians of five rounds. `--create` writes the file first. Without arguments it reads a temporary file of 4
//! MiB, which shows that it works. Nothing is read from the page cache except where it says so.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry::cache::{Reading, StoredRegion};
use memferry::memory::{Binding, Mapping};
use memferry::mover::{StorageEngine, StorageOptions};
use memferry::storage::StoredFile;
use memferry::{Access, Cache, Machine, Mover};

const MIB: u64 = 1 << 20;
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let creates =
        arguments.iter().position(|argument| argument == "--create").map(|at| arguments.remove(at)).is_some();
    let small = tempfile::NamedTempFile::new()?;
    let (path, default_mib) = match arguments.first() {
        Some(path) => (path.clone(), 1024),
        None => (small.path().display().to_string(), 4),
    };
    let path = &path;
    let size_bytes = arguments.get(1).map_or(Ok(default_mib), |text| text.parse::<u64>())? * MIB;
    if creates || arguments.is_empty() {
        create(path.as_ref(), size_bytes)?;
    }
    let file = Arc::new(StoredFile::open(path.as_ref())?);
    if file.len() < size_bytes {
        return Err(format!("{path} has {} bytes only; pass --create, or a smaller size", file.len()).into());
    }
    let machine = Arc::new(Machine::discover()?);
    println!("direct reads: {}", file.is_direct());

    let sequential =
        |read_bytes: u64| (0..size_bytes / read_bytes).map(|read| read * read_bytes).collect::<Vec<_>>();
    let shuffled = |read_bytes: u64| {
        let mut offsets = sequential(read_bytes);
        let mut state = 1_u64;
        for index in (1..offsets.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            offsets.swap(index, (state >> 33) as usize % (index + 1));
        }
        offsets
    };

    let direct =
        OpenOptions::new().read(true).custom_flags(0o40000).open(path).or_else(|_| File::open(path))?;
    let mut buffer = Mapping::new(&machine, MIB as usize, Binding::Prefer(machine.nodes()[0].id))?;
    for (order, offsets) in [("sequential", sequential(MIB)), ("random", shuffled(MIB))] {
        report(&format!("pread, 1 MiB, {order}"), size_bytes, || {
            offsets
                .iter()
                .try_for_each(|&offset| direct.read_exact_at(&mut buffer, offset))
                .expect("readable");
        });
    }

    for (io_uring, name) in [(true, "engine"), (false, "threads")] {
        for piece_bytes in [128 << 10, 256 << 10, 512 << 10, 1 << 20] {
            let options =
                StorageOptions { io_uring, piece_bytes, page_cache: false, ..StorageOptions::default() };
            let mover = mover(&machine, options)?;
            for (order, offsets) in [("sequential", sequential(MIB)), ("random", shuffled(MIB))] {
                report(
                    &format!("{name}, pieces of {} KiB, 1 MiB, {order}", piece_bytes >> 10),
                    size_bytes,
                    || {
                        read_all(&mover, &file, &offsets, MIB, 32);
                    },
                );
            }
        }
    }

    // What a read costs besides its bytes: the gap that is worth reading.
    let mover_direct = mover(&machine, StorageOptions { page_cache: false, ..StorageOptions::default() })?;
    for kib in [4, 16, 64, 128, 256, 512, 1024] {
        let offsets: Vec<u64> = shuffled(MIB).into_iter().take(512).collect();
        let read_bytes = kib << 10;
        report(&format!("engine, {kib} KiB, random"), read_bytes * offsets.len() as u64, || {
            read_all(&mover_direct, &file, &offsets, read_bytes, 32);
        });
    }

    // Into the cache, whose blocks have their pages; the reads above get fresh pages from the kernel.
    let offsets = sequential(MIB);
    for (name, page_cache) in [("disk", false), ("page cache", true)] {
        let buffered = File::open(path)?;
        if page_cache {
            report("page cache: pread, 1 MiB", size_bytes, || {
                offsets.iter().try_for_each(|&at| buffered.read_exact_at(&mut buffer, at)).expect("readable");
            });
        }
        for (io_uring, of) in [(true, "engine"), (false, "threads")] {
            let mover =
                mover(&machine, StorageOptions { io_uring, page_cache, ..StorageOptions::default() })?;
            let cache = Cache::builder(mover).budget(machine.nodes()[0].id, 64 * MIB as usize).build()?;
            let region = cache.register_file(file.clone());
            report(&format!("{name}: {of}, 1 MiB, to the cache"), size_bytes, || {
                read_to_cache(&cache, &region, &offsets, MIB, 16);
            });
            let small: Vec<u64> = offsets.iter().copied().take(512).collect();
            // None was a hit.
            assert_eq!(cache.stats().submissions, (ROUNDS * offsets.len()) as u64);
            report(&format!("{name}: {of}, 16 KiB, one at a time, to the cache"), 512 * (16 << 10), || {
                read_to_cache(&cache, &region, &small, 16 << 10, 1);
            });
        }
    }

    let before = cpu_time()?;
    std::thread::sleep(Duration::from_secs(2));
    println!("CPU time in two idle seconds: {:?}", cpu_time()? - before);
    Ok(())
}

fn mover(machine: &Arc<Machine>, options: StorageOptions) -> Result<Mover, Box<dyn Error>> {
    Ok(Mover::builder(machine.clone()).engine(Arc::new(StorageEngine::new(options)?)).build()?)
}

/// Reads at all offsets, `depth` reads in flight.
fn read_all(mover: &Mover, file: &Arc<StoredFile>, offsets: &[u64], read_bytes: u64, depth: usize) {
    let mut in_flight = std::collections::VecDeque::new();
    for &offset in offsets {
        if in_flight.len() == depth {
            let read: memferry::mover::FileRead = in_flight.pop_front().expect("depth is positive");
            read.wait().expect("readable");
        }
        in_flight.push_back(mover.read(file, offset..offset + read_bytes));
    }
    in_flight.into_iter().for_each(|read| drop(read.wait().expect("readable")));
}

/// The same to a cache that forgets the file after each call.
fn read_to_cache(cache: &Cache, region: &StoredRegion, offsets: &[u64], read_bytes: u64, depth: usize) {
    let mut in_flight = std::collections::VecDeque::new();
    for &offset in offsets {
        if in_flight.len() == depth {
            let reading: Reading = in_flight.pop_front().expect("depth is positive");
            reading.wait().expect("readable");
        }
        let reading = cache.read(region, offset..offset + read_bytes, Access::default());
        in_flight.push_back(reading.expect("a range of the file"));
    }
    in_flight.into_iter().for_each(|reading| drop(reading.wait().expect("readable")));
    cache.clear();
}

fn report(what: &str, bytes: u64, mut body: impl FnMut()) {
    let mut rounds: Vec<(Duration, Duration)> = (0..ROUNDS)
        .map(|_| {
            let (begin, cpu) = (Instant::now(), cpu_time().unwrap_or_default());
            body();
            (begin.elapsed(), cpu_time().unwrap_or_default() - cpu)
        })
        .collect();
    rounds.sort();
    let (time, cpu) = rounds[ROUNDS / 2];
    let rate = bytes as f64 / time.as_secs_f64() / 1e6;
    println!("{what:<50} {rate:>8.0} MB/s {time:>12.1?}, CPU {cpu:?}");
}

/// User and system time of this process.
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> =
        stat.rsplit_once(')').ok_or("the format of proc(5)")?.1.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    Ok(Duration::from_millis(10 * ticks))
}

fn create(path: &Path, size_bytes: u64) -> Result<(), Box<dyn Error>> {
    let mut file = File::create(path)?;
    let mut state = 1_u64;
    for _ in 0..size_bytes / MIB {
        let block: Vec<u8> = (0..MIB / 8)
            .flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_le_bytes()
            })
            .collect();
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(())
}
