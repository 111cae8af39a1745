//! Figures 13, 16, 17, 19 and 21: programs beside and with a device.

use anyhow::Result;
use memferry_bench::cases::gain_by_cores;
use memferry_bench::model::{PacketTime, copies_gain, storage_target_cores};
use memferry_bench::papers::Metric;

use super::super::super::benchmarks::ratio;
use super::{
    Axis, Figure, KB, KIB, Kind, Kuper, MIB, Place, Row, Scale, has, is_by_core, is_by_device, numbered,
};

/// The sizes of messages in `memferry bench cases`.
const MESSAGES: [(u64, &str); 5] =
    [(4 * KIB, "4 KiB"), (32 * KIB, "32 KiB"), (256 * KIB, "256 KiB"), (MIB, "1 MiB"), (8 * MIB, "8 MiB")];

impl Kuper<'_> {
    pub(super) fn readers(&self) -> Result<Figure> {
        let mut figure = numbered("13", Kind::Bars, "readers beside copies");
        figure.about = "Eight readers of X-Mem with a working set each, beside four processes that copy 4 KB \
                        again and again, by cores (Software) or by a device (DSA offload). The text prints one \
                        number and no latency, so that the latency is divided by that without copies (None). \
                        Caches of cores are not modelled; `memferry bench pollution` measures them."
            .to_owned();
        figure.x = Axis::new("working set", Scale::Linear);
        figure.y = Axis::new("latency divided by that of None", Scale::Linear);
        let name = |working_set: u64| crate::output::size(working_set);
        let of = ("pollution", Metric::SLOWDOWN, 1.0);
        figure.points = self.points_of(of, (&self.model, &[]), |row| {
            let series = match (is_by_core(row), is_by_device(row)) {
                (true, _) => "Software",
                (_, true) => "DSA offload",
                _ => return None,
            };
            let working_set = row.number("working_set_bytes")? as u64;
            has(row, "size_bytes", 4 * KIB).then(|| Place::new("", series, name(working_set)))
        })?;
        let place = Place::new("", "Software", name(4 * MIB));
        let slower = |percent: f64| 1.0 + percent / 100.0;
        self.dot_of(&mut figure, &place, "K057", slower);
        figure.published_rule("Software, 4 MB", self.published("K057").map(slower));
        figure.published_rule("None", Some(1.0));
        Ok(figure)
    }

    pub(super) fn packets(&self) -> Figure {
        let mut figure = numbered("16", Kind::Lines, "packets forwarded by vhost");
        figure.about = "Part a is a drawing without numbers. Of part b the text prints the gains above 256 B and \
                        a loss, not the rates: the rate of a core at 256 B is 1 here. The model takes the share of \
                        copying at 512 B from the text, and says what a device gains at most, if its copies cost \
                        a core nothing."
            .to_owned();
        figure.x = Axis::new("packet size", Scale::Bytes);
        let packet = PacketTime::of(self.published("K077").unwrap_or_default() / 100.0);
        let (rate, gain) = ("b: rate, CPU at 256 B = 1", "b: rate of DSA divided by that of CPU");
        let share = "CPU cycles for copying, %";
        // From the least to the largest packet of Ethernet without jumbo frames.
        let sizes = [64, 128, 256, 512, 1024, 1518];
        for bytes in sizes {
            let time = packet.whole(f64::from(bytes));
            let at_256 = packet.whole(256.0);
            figure.points.push(Place::new(rate, "CPU", bytes).modelled(at_256 / time));
            figure.points.push(Place::new(rate, "DSA", bytes).modelled(at_256));
        }
        self.dot_of(&mut figure, &Place::new(rate, "CPU", 1024), "K079", |percent| 1.0 - percent / 100.0);
        for bytes in sizes {
            let most = packet.whole(f64::from(bytes));
            figure.points.push(Place::new(gain, "DSA", bytes).modelled(most));
        }
        self.rule(&mut figure, gain, "least", "K083");
        self.rule(&mut figure, gain, "most", "K084");
        for (name, row) in self.cases("packets_") {
            let bytes = name.strip_suffix('B').filter(|bytes| bytes.parse::<u32>().is_ok());
            let point = bytes.and_then(|bytes| ratio(row, "DSA", bytes));
            figure.points.extend(point.map(|point| point.in_panel(gain)));
        }
        for bytes in sizes {
            let percent = 100.0 * packet.copied_share(f64::from(bytes));
            figure.points.push(Place::new(share, "CPU", bytes).modelled(percent));
        }
        self.dot(&mut figure, &Place::new(share, "CPU", 512), "K077");
        self.dot(&mut figure, &Place::new(share, "CPU", 1024), "K078");
        figure
    }

    pub(super) fn messages(&self) -> Figure {
        let mut figure = numbered("17", Kind::Bars, "messages of libfabric (a) and MPI (b)");
        figure.about = "Published are the least size that gains and the largest gains; for MPI those of messages \
                        above 1 MB, without a word on BW or AllReduce. Modelled is what a program gains that \
                        does nothing but copy: the most that is possible. `memferry bench cases` runs ping-pong \
                        and all-reduce on an emulated device; its all-reduce adds vectors, which takes time of \
                        the core."
            .to_owned();
        figure.y = Axis::new("speed-up over a core", Scale::Linear);
        let (fabric, mpi) = ("a: libfabric, by message size", "b: OSU MPI, above 1 MB");
        let most = "at most";
        // Of large messages.
        let gain_most = copies_gain(&self.offload, MIB as f64);
        for series in ["Pingpong", "RMA"] {
            for (bytes, name) in MESSAGES {
                let gain = copies_gain(&self.offload, bytes as f64);
                figure.points.push(Place::new(fabric, series, name).modelled(gain));
            }
            figure.points.push(Place::new(fabric, series, most).modelled(gain_most));
        }
        let even = crate::output::size((self.published("K085").unwrap_or_default() * KB) as u64);
        self.dot_of(&mut figure, &Place::new(fabric, "Pingpong", even), "K085", |_| 1.0);
        self.dot(&mut figure, &Place::new(fabric, "Pingpong", most), "K086");
        self.dot(&mut figure, &Place::new(fabric, "RMA", most), "K087");
        for (name, row) in self.cases("ping_pong_") {
            let size = MESSAGES.iter().find(|(_, size)| size.replace(' ', "") == name);
            let point = size.and_then(|(_, size)| ratio(row, "Pingpong", size));
            figure.points.extend(point.map(|point| point.in_panel(fabric)));
            let (Some(gain), Some(how), "gain_most") = (row.value, row.how, &*name) else { continue };
            figure.points.push(Place::new(fabric, "Pingpong", most).point(how, gain));
        }
        for (ranks, row) in [(2, "K088"), (4, "K089"), (8, "K090")] {
            let place = Place::new(mpi, "OSU MPI", format!("{ranks} ranks"));
            figure.points.push(place.modelled(gain_most));
            self.dot(&mut figure, &place, row);
            for (name, row) in self.cases("all_reduce_") {
                let own = ratio(row, "OSU MPI", &place.x).filter(|_| name == format!("{ranks}_ranks"));
                figure.points.extend(own.map(|point| point.in_panel(mpi)));
            }
        }
        figure
    }

    /// Part b has only what records have.
    pub(super) fn cache_server(&self) -> Result<Vec<Figure>> {
        let mut gains = numbered("19a", Kind::Lines, "operations of CacheBench");
        gains.about = "Gain of operations by the number of cores, which share four queues. Published: the cores \
                        beyond which the gain falls; the gains are not printed, and sizes of values and other \
                        work are assumed."
            .to_owned();
        gains.x = Axis::new("cores", Scale::Log);
        gains.y = Axis::new("operations with DSA divided by those without", Scale::Linear);
        let queues = self.published("K104").unwrap_or_default() as usize;
        for cores in [1, 2, 4, 8, 16, 32] {
            let gain = gain_by_cores(&self.offload, queues, cores)?;
            gains.points.push(Place::new("", "get and set", cores).modelled(gain));
        }
        self.upright_rule(&mut gains, "", "falls beyond", ("K103", 1.0));
        let mut tails = numbered("19b", Kind::Rows, "tail latencies of CacheBench");
        tails.about = "The publication prints that the percentile 99.999 improves, and no number. From \
                        `memferry bench cases`."
            .to_owned();
        tails.y = Axis::new("time without DSA divided by that with it", Scale::Linear);
        for operation in ["get", "set"] {
            for (name, row) in self.cases(&format!("cache_{operation}_")) {
                let Some(percentile) = name.strip_prefix('p') else { continue };
                let point = ratio(row, operation, &format!("{percentile} %"));
                tails.points.extend(point);
            }
        }
        let is_drawn = |figure: &Figure| !figure.points.is_empty();
        Ok([gains, tails].into_iter().filter(is_drawn).collect())
    }

    pub(super) fn storage_target(&self) -> Figure {
        let mut figure = numbered("21", Kind::Lines, "reads of an NVMe/TCP target with digests");
        figure.about = "Published are the cores at which reads are saturated, drawn as dots; rates and latencies \
                        are not printed. Until there the rate follows the cores. The lines without digest and of \
                        ISA-L have these numbers as their input; that of DSA is predicted from them."
            .to_owned();
        figure.x = Axis::new("target cores", Scale::Linear);
        figure.y = Axis::new("reads per second, % of saturation", Scale::Linear);
        for (panel, kib, case, [none, device, core]) in [
            ("16 KB random reads", 16, "digests_16KiB_", ["K110", "K109", "K111"]),
            ("128 KB sequential reads", 128, "digests_128KiB_", ["K113", "K112", "K114"]),
        ] {
            let published = (self.published(none), self.published(core));
            let (Some(none_cores), Some(core_cores)) = published else { continue };
            let device_cores =
                storage_target_cores(&self.offload, f64::from(kib) * KB, (none_cores, core_cores));
            for (series, row, saturated) in
                [("no digest", none, none_cores), ("DSA", device, device_cores), ("ISA-L", core, core_cores)]
            {
                for cores in [1.0, saturated, CORES_MAX] {
                    let percent = 100.0 * (cores / saturated).min(1.0);
                    figure.points.push(Place::new(panel, series, cores).modelled(percent));
                }
                let published = self.published(row).unwrap_or_default();
                self.dot_of(&mut figure, &Place::new(panel, series, published), row, |_| 100.0);
            }
            for (name, row) in self.cases(case) {
                let (Some(cores), Some(how), "cores") = (row.value, row.how, &*name) else { continue };
                figure.points.push(Place::new(panel, "DSA", cores).point(how, 100.0));
            }
        }
        figure
    }

    /// The rows of devices in `memferry bench cases` whose names begin with `prefix`, and the other words of their names,
    /// without `dsa` and `emulated`.
    fn cases<'b>(&'b self, prefix: &'b str) -> impl Iterator<Item = (String, &'b Row)> {
        self.rows_of("cases").filter_map(move |row| {
            // `[K109]` is the published row.
            let name = row.name.split(' ').next()?.strip_prefix(prefix)?;
            let is_device = |word: &&str| ["dsa", "emulated"].contains(word);
            let (by, words): (Vec<&str>, Vec<&str>) = name.split('_').partition(is_device);
            (!by.is_empty()).then(|| (words.join("_"), row))
        })
    }
}

/// The right end of figure 21.
const CORES_MAX: f64 = 10.0;
