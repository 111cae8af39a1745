//! Figures 2 to 5, 7, 9, 11 and 14: one device by sizes, batches, queues and engines.

use anyhow::Result;
use memferry_bench::model::copies_gain;
use memferry_bench::papers::{Axes, Metric, Way};

use super::{
    Axis, Figure, GB, GB_PER_S, IN_FLIGHT, KB, KIB, Kind, Kuper, Place, Provenance, Row, Scale, has,
    is_by_core, is_by_device, numbered, over_sizes, powers, size_of,
};

impl Kuper<'_> {
    pub(super) fn operations(&self) -> Figure {
        let mut figure = over_sizes("2", "operations against a core", "speed-up over a core");
        figure.about = "Waited for (a, Sync), and kept busy (b, Async), batch size 1. Modelled are copies. \
                        Published are the sizes at which they break even, on which the model was calibrated; \
                        other speed-ups are not printed. Other operations appear where a record of `memferry \
                        bench operations` has them by a device and by a core."
            .to_owned();
        for bytes in powers(8, 20) {
            let size = bytes as f64;
            let waited_for = self.offload.core_s(size) / self.offload.waited_for_s(size);
            let place = |panel| Place::new(panel, "Memory Copy", bytes);
            figure.points.push(place(SYNC).modelled(waited_for));
            figure.points.push(place(ASYNC).modelled(copies_gain(&self.offload, size)));
        }
        for (panel, row, unit) in [(SYNC, "K029", KB), (ASYNC, "K030", 1.0)] {
            let bytes = self.published(row).unwrap_or_default() * unit;
            self.dot_of(&mut figure, &Place::new(panel, "Memory Copy", bytes), row, |_| 1.0);
        }
        let rows: Vec<&Row> =
            self.rows_of("operations").filter(|row| row.text("data").as_deref() == Some("memory")).collect();
        for row in rows.iter().filter(|row| is_by_device(row)) {
            // A core does one operation after the other.
            let is_beside = |core: &&&Row| {
                is_by_core(core)
                    && core.how == row.how
                    && ["operation", "size_bytes"].into_iter().all(|it| core.text(it) == row.text(it))
            };
            let core = rows.iter().find(is_beside).and_then(|core| core.value);
            let (Some(core), Some(own), Some(how)) = (core, row.value, row.how) else { continue };
            let name = row.text("operation").and_then(|it| operation(&it));
            let (Some(name), Some(panel), Some(bytes)) = (name, synchronicity(row), size_of(row)) else {
                continue;
            };
            figure.points.push(Place::new(panel, name, bytes).point(how, own / core));
        }
        figure
    }

    pub(super) fn batches(&self) -> Result<Figure> {
        let mut figure = over_sizes("3", "copies by size and batch size (BS)", GB_PER_S);
        figure.about = "Sizes are those of one descriptor. Published are the limit, and the sizes and batches \
                        that reach it. One batch at a time (Sync), and 32 in flight (Async), where batches make \
                        no difference in the model."
            .to_owned();
        for (panel, in_flight) in [(SYNC, 1), (ASYNC, IN_FLIGHT)] {
            for batch in [1, 4, 16, 64] {
                for bytes in powers(8, 20) {
                    let rate = self.offload.batch_rate(bytes as f64, batch, in_flight)?;
                    figure.points.push(Place::new(panel, format!("BS: {batch}"), bytes).modelled(rate * GB));
                }
            }
            self.rule(&mut figure, panel, "limit", "K032");
        }
        let number = |row| self.published(row).unwrap_or_default();
        // Sizes in KB, and batches.
        for (panel, size, batch) in [(SYNC, "K033", "K034"), (ASYNC, "K035", "K036"), (ASYNC, "K035", "K037")]
        {
            let place = Place::new(panel, format!("BS: {}", number(batch)), number(size) * KB);
            self.dot(&mut figure, &place, "K032");
        }
        self.upright_rule(&mut figure, SYNC, "batches gain little beyond", ("K031", KB));
        figure.points.extend(self.points_of(
            ("operations", Metric::THROUGHPUT, GB),
            (&self.model, &[]),
            |row| {
                let is_meant = is_by_device(row)
                    && row.text("operation").as_deref() == Some("copy")
                    && row.text("data").as_deref() == Some("memory");
                is_meant.then_some(Place::new(synchronicity(row)?, "BS: 1", size_of(row)?))
            },
        )?);
        Ok(figure)
    }

    pub(super) fn queue_sizes(&self) -> Result<Figure> {
        let mut figure = over_sizes("4", "asynchronous copies by the size of the queue (WQS)", GB_PER_S);
        figure.about =
            "All entries of a dedicated queue are used. Published: 32 entries reach almost the limit; \
                        drawn as 95 % to 100 % of it, at 4 KB."
                .to_owned();
        let sizes = [1, 4, 16, 32, 128];
        let name = |entries: u64| format!("WQS: {entries}");
        for entries in sizes {
            for bytes in powers(8, 20) {
                let rate = self.offload.rate(bytes as f64, entries as usize);
                figure.points.push(Place::new("", name(entries), bytes).modelled(rate * GB));
            }
        }
        self.rule(&mut figure, "", "limit", "K032");
        if let (Some(enough), Some(limit)) = (self.published("K076"), self.published("K032")) {
            let dot = Place::new("", name(enough as u64), 4 * KIB).point(Provenance::Published, limit);
            figure.points.push(dot.between(0.95 * limit, limit));
        }
        figure.points.extend(self.points_of(
            ("depth", Metric::THROUGHPUT, GB),
            (&self.model, &[]),
            |row| {
                let entries = row.number("depth")? as u64;
                let is_meant = is_by_device(row) && sizes.contains(&entries);
                is_meant.then_some(Place::new("", name(entries), size_of(row)?))
            },
        )?);
        Ok(figure)
    }

    pub(super) fn latency(&self) -> Result<Figure> {
        let mut figure = numbered("5", Kind::Stacks, "parts of the latency of copies of 4 KB");
        figure.about = "Left bars: memcpy() on a core; right bars: a device that is waited for; by batch size \
                        (BS). The text prints no number. The model has no time for allocating and preparing a \
                        descriptor, which is the core's."
            .to_owned();
        figure.y = Axis::new("latency in µs", Scale::Linear);
        let size = 4 * KIB;
        let batches = [1, 8, 64];
        let us = 1e-3;
        let panel = |batch: u64| format!("BS: {batch}");
        for batch in batches {
            // A core has no batches: it copies one after the other.
            let place = Place::new(panel(batch), "memcpy()", "CPU");
            let copies = batch as f64;
            figure.points.push(place.modelled(copies * self.offload.core_s(size as f64) * 1e6));
            let of_batch = ("latency", Metric::LATENCY, copies * us);
            figure.points.extend(self.points_of(of_batch, (&self.model, &[]), |row| {
                (is_by_core(row) && has(row, "size_bytes", size))
                    .then(|| Place::new(panel(batch), "memcpy()", "CPU"))
            })?);
        }
        let axes = Axes {
            ways: vec![Way::Any],
            sizes_bytes: vec![size],
            batches: batches.map(|it| it as u32).to_vec(),
            ..Axes::default()
        };
        let device = axes.points();
        for (metric, part) in [
            (Metric::ALLOCATE, "allocate"),
            (Metric::PREPARE, "prepare"),
            (Metric::SUBMIT, "submit"),
            (Metric::WAIT, "wait"),
        ] {
            figure.points.extend(self.points_of(("latency", metric, us), (&self.model, &device), |row| {
                let batch = row.number("batch")? as u64;
                let is_meant = is_by_device(row) && has(row, "size_bytes", size) && batches.contains(&batch);
                is_meant.then(|| Place::new(panel(batch), part, "DSA"))
            })?);
        }
        Ok(figure)
    }

    pub(super) fn engines(&self) -> Result<Figure> {
        let mut figure = numbered("7", Kind::Lines, "copies by the engines (PEs) of a group");
        figure.about =
            "By transfer size (TS) and batch size (BS), 32 in flight in one queue. The text prints no \
                        number."
                .to_owned();
        figure.x = Axis::new("engines", Scale::Log);
        figure.y = Axis::new(GB_PER_S, Scale::Linear);
        let sizes = [256, KIB, 4 * KIB, 64 * KIB];
        let axes = Axes {
            ways: vec![Way::Any],
            sizes_bytes: sizes.to_vec(),
            batches: vec![1, 8],
            engines: [1, 2, 3, 4].map(Some).to_vec(),
            depths: vec![IN_FLIGHT],
            ..Axes::default()
        };
        let of = ("engines", Metric::THROUGHPUT, GB);
        figure.points.extend(self.points_of(of, (&self.model, &axes.points()), |row| {
            let (bytes, batch) = (size_of(row)?, row.text("batch")?);
            let series = format!("TS: {}", crate::output::size(bytes));
            let is_meant = is_by_device(row) && sizes.contains(&bytes) && ["1", "8"].contains(&&*batch);
            is_meant.then_some(Place::new(format!("BS: {batch}"), series, row.number("engines")?))
        })?);
        Ok(figure)
    }

    pub(super) fn queues(&self) -> Result<Figure> {
        let mut figure = over_sizes("9", "copies by kind and number of queues", GB_PER_S);
        figure.about = "One dedicated queue with batches of N (BS: N), N dedicated queues with a thread and an \
                        engine each (DWQ: N), one shared queue and engine with N threads (SWQ: N); 16 in flight \
                        for each thread. Published: between which sizes a shared queue is slower."
            .to_owned();
        let in_flight = 16;
        let counts = [1_usize, 2, 4];
        let panel = |count: usize| format!("N = {count}");
        for count in counts {
            for bytes in powers(8, 16) {
                let size = bytes as f64;
                let rate = self.offload.batch_rate(size, count, in_flight)?;
                figure.points.push(Place::new(panel(count), "BS: N", bytes).modelled(rate * GB));
            }
        }
        let points = counts.map(|count| {
            let (queues, submitters, engines) = (vec![count], vec![count], vec![Some(count as u32)]);
            let sizes_bytes = powers(8, 16).collect();
            let (ways, depths, entries) =
                (vec![Way::Dedicated], vec![in_flight], vec![Some(in_flight as u32)]);
            Axes { ways, depths, entries, sizes_bytes, queues, submitters, engines, ..Axes::default() }
                .points()
        });
        let of = ("queues", Metric::THROUGHPUT, GB);
        figure.points.extend(self.points_of(of, (&self.model, &points.concat()), |row| {
            let [batch, submitters] = ["batch", "submitters"].map(|column| row.number(column));
            let (batch, submitters) = (batch? as usize, submitters? as usize);
            let (series, count) = match row.text("way").as_deref()? {
                "shared" => ("SWQ: N", submitters),
                // A single submission is a batch of one.
                "dedicated" if submitters == 1 && row.how != Some(Provenance::Modelled) => ("BS: N", batch),
                "dedicated" => ("DWQ: N", submitters),
                _ => return None,
            };
            counts.contains(&count).then_some(Place::new(panel(count), series, size_of(row)?))
        })?);
        for count in counts {
            for bytes in powers(8, 16) {
                let rate = self.offload.shared_rate(bytes as f64, 1, in_flight, count)?;
                figure.points.push(Place::new(panel(count), "SWQ: N", bytes).modelled(rate * GB));
            }
            self.upright_rule(&mut figure, &panel(count), "SWQ slower, from", ("K047", KB));
            self.upright_rule(&mut figure, &panel(count), "SWQ slower, to", ("K048", KB));
        }
        Ok(figure)
    }

    pub(super) fn asleep(&self) -> Result<Figure> {
        let mut figure = over_sizes("11", "cycles in UMWAIT, by batch size (BS)", "cycles in UMWAIT, %");
        figure.about =
            "Copies that are waited for. Published: from 4 KB on, and in batches of all sizes, a core \
                        is in UMWAIT most of the time."
                .to_owned();
        let batches = [1, 8, 64];
        let sizes_bytes = powers(8, 20).collect();
        let axes = Axes { ways: vec![Way::Any], sizes_bytes, batches: batches.to_vec(), ..Axes::default() };
        figure.points.extend(self.points_of(
            ("wait", Metric::ASLEEP, 100.0),
            (&self.model, &axes.points()),
            |row| {
                let batch = row.number("batch")? as u32;
                let is_meant = is_by_device(row) && batches.contains(&batch);
                is_meant.then_some(Place::new("", format!("BS: {batch}"), size_of(row)?))
            },
        )?);
        let half = self.published("K056").map(|share| 100.0 * share);
        figure.published_rule("most of the time", half);
        self.upright_rule(&mut figure, "", "BS: 1, most from", ("K055", KB));
        Ok(figure)
    }

    pub(super) fn equal_totals(&self) -> Result<Figure> {
        let mut figure = numbered("14", Kind::Lines, "equal totals, by batch size");
        figure.about = "A total size as one descriptor, or as batches of smaller ones. A group of bars of the \
                        publication is a line here, so that what it prints can be drawn: the best batches, if \
                        waited for. The model has no engines that work on a batch at the same time, and says \
                        that dividing never helps."
            .to_owned();
        figure.x = Axis::new("descriptors in a batch", Scale::Log);
        figure.y = Axis::new(GB_PER_S, Scale::Linear);
        for (panel, in_flight) in [(SYNC, 1), (ASYNC, IN_FLIGHT)] {
            for total in [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB] {
                for batch in powers(0, 5) {
                    let rate = self.offload.batch_rate((total / batch) as f64, batch as usize, in_flight)?;
                    let series = format!("total {}", crate::output::size(total));
                    figure.points.push(Place::new(panel, series, batch).modelled(rate * GB));
                }
            }
        }
        self.upright_rule(&mut figure, SYNC, "best, from", ("K069", 1.0));
        self.upright_rule(&mut figure, SYNC, "best, to", ("K070", 1.0));
        Ok(figure)
    }
}

const SYNC: &str = "Sync";
const ASYNC: &str = "Async";

/// The panel of a row, by its copies in flight.
fn synchronicity(row: &Row) -> Option<&'static str> {
    match row.number("depth")? as usize {
        1 => Some(SYNC),
        IN_FLIGHT => Some(ASYNC),
        _ => None,
    }
}

/// The name of an operation in table 1 of the publication, if its figure 2 may have it.
fn operation(name: &str) -> Option<&'static str> {
    Some(match name {
        "copy" => "Memory Copy",
        "fill" => "Memory Fill",
        "compare" => "Memory Compare",
        "compare-pattern" => "Compare Pattern",
        "crc" => "CRC Generation",
        "copy-crc" => "Copy with CRC",
        "dualcast" => "Dualcast",
        _ => return None,
    })
}
