//! Kuper et al. 2024: conditions under which a device is faster than a core.

use memferry::internals::{Hardware, Offload};
use memferry::model::ModelError;
use memferry::topology::Machine;

use super::super::curves::{PacketTime, copies_gain, devices_rate, storage_target_cores};
use super::List;
use crate::cases::full_gain_cores;

const CALIBRATED_ON: &[&str] = &["K029", "K030", "K032"];

impl List {
    pub(super) fn kuper(&mut self) -> Result<(), ModelError> {
        self.context = CALIBRATED_ON;
        let machine = Machine::from_profile("spr-56c")?;
        let hardware = Hardware::of(&machine)?;
        let costs = Offload::of(&hardware)?;
        let kib = 1024.0;
        let percent = |rate: f64| 100.0 * rate / costs.device_rate();
        self.figure(
            "break-even, waited for",
            &["K029", "K072"],
            costs.break_even_waited_bytes() / kib,
            "KB",
        )
        .is_fit = true;
        self.figure("break-even, pipelined", &["K030"], costs.break_even_pipelined_bytes(), "B").is_fit =
            true;
        self.figure(
            "break-even over all memories",
            &["K040", "K041"],
            costs.break_even_waited_bytes() / kib,
            "KB",
        );
        self.figure(
            "break-even, pipelined (figure 15)",
            &["K073"],
            costs.break_even_pipelined_bytes(),
            "B",
        )
        .unexplained = Some(
            "the paper says around 256 B elsewhere (K030), which is what was calibrated on; both cannot hold",
        );
        self.figure("rate of a device", &["K032"], costs.device_rate() / 1e9, "GB/s").is_fit = true;
        self.push(
            "256 KB waited for, of the peak",
            &["K031"],
            percent(costs.rate(256.0 * kib, 1)),
            (90.0, 100.0),
            "%",
        );
        self.push(
            "256 KB, batch 64, of the peak",
            &["K033", "K034"],
            percent(costs.batch_rate(256.0 * kib, 64, 1)?),
            (99.0, 100.0),
            "%",
        );
        self.push(
            "4 KB, batch 4, pipelined, of the peak",
            &["K036"],
            percent(costs.batch_rate(4.0 * kib, 4, 32)?),
            (99.0, 100.0),
            "%",
        );
        self.figure("saturation, pipelined", &["K035"], costs.saturation_bytes() / kib, "KB");
        self.push(
            "4 KB, no batch, pipelined, of the peak",
            &["K037"],
            percent(costs.rate(4.0 * kib, 32)),
            (99.0, 100.0),
            "%",
        );
        self.push("time asleep, 4 KB", &["K056"], costs.asleep(4.0 * kib), (0.5, 1.0), "fraction");
        self.statement(
            "less than half of the time asleep below 4 KB",
            &["K055"],
            costs.asleep(2.0 * kib) < 0.5,
        )
        .unexplained = Some("a submission takes 40 ns of the core here by assumption, at every size");
        let entries = (1..=128).find(|&count| percent(costs.rate(4.0 * kib, count)) >= 95.0).unwrap_or(129);
        self.push(
            "entries for 95 % of the peak, 4 KB",
            &["K076"],
            f64::from(entries as u32),
            (1.0, 32.0),
            "entries",
        );
        let (mut best, mut best_rate) = (1, costs.rate(64.0 * kib, 1));
        for batch in 2..=32 {
            let rate = costs.batch_rate(64.0 * kib / batch as f64, batch, 1)?;
            if rate > 1.001 * best_rate {
                (best, best_rate) = (batch, rate);
            }
        }
        self.figure("best batch for the same bytes", &["K069", "K070"], best as f64, "descriptors")
            .unexplained = Some(
            "engines that work on descriptors of a batch at the same time are not modelled: dividing never helps",
        );
        // A core streams descriptors, one per round trip of ENQCMD: with one engine, 32 in flight.
        let alike = |count: usize| -> Result<f64, ModelError> {
            Ok(costs.shared_rate(kib, count, 32 / count, 1)?
                / costs.shared_rate(kib, 1, 32 / count, count)?)
        };
        let is_alike = [2, 4, 8].into_iter().map(alike).collect::<Result<Vec<f64>, _>>()?;
        self.statement(
            "a batch of n like n cores, shared queue",
            &["K038"],
            is_alike.iter().all(|ratio| (0.9..1.1).contains(ratio)),
        );
        // Figure 9, one thread: the sizes at which a shared queue has less than 95 % of a dedicated one.
        let sizes = (8..=16).map(|power| f64::from(1 << power));
        let slower = |bytes: &f64| -> bool {
            let shared = costs.shared_rate(*bytes, 1, 16, 1).unwrap_or(f64::NAN);
            shared < 0.95 * costs.rate(*bytes, 16)
        };
        let slower: Vec<f64> = sizes.filter(slower).collect();
        let (least, largest) = (slower.first().copied(), slower.last().copied());
        self.figure("shared queue slower from", &["K047"], least.unwrap_or(f64::NAN) / kib, "KB")
            .unexplained = Some("in the model one thread is bound by ENQCMD at every small size");
        self.figure("shared queue slower up to", &["K048"], largest.unwrap_or(f64::NAN) / kib, "KB");
        self.devices(&hardware, &costs)?;
        self.packets();
        // Appendix A: programs that do little but copy gain at most what a device is faster than a core.
        let faster = copies_gain(&costs, kib * kib);
        for (name, row) in [
            ("libfabric Pingpong", "K086"),
            ("libfabric RMA", "K087"),
            ("OSU MPI, 2 ranks", "K088"),
            ("OSU MPI, 4 ranks", "K089"),
            ("OSU MPI, 8 ranks", "K090"),
        ] {
            self.figure(&format!("most that {name} gains"), &[row], faster, "x").unexplained =
                (row == "K087").then_some("RMA does more than copying, and how much is not printed");
        }
        self.storage_target(&costs);
        // Appendix B. The sizes of values and the work beside copies are assumed.
        self.context = CALIBRATED_ON;
        let cores = full_gain_cores(&costs, self.published("K104") as usize)?;
        self.figure("cores beyond which a cache server gains less", &["K103"], cores as f64, "cores");
        Ok(())
    }

    /// Figure 21: the work of a target's core for a read, from its cores with and without digests by cores. A device takes the
    /// digest away and adds a request.
    fn storage_target(&mut self, costs: &Offload) {
        self.context = &["K110", "K111", "K113", "K114"];
        for (name, kib, device, none, core) in [
            ("16 KB random reads", 16.0, "K109", "K110", "K111"),
            ("128 KB sequential reads", 128.0, "K112", "K113", "K114"),
        ] {
            let published = (self.published(none), self.published(core));
            let cores = storage_target_cores(costs, kib * 1024.0, published);
            self.figure(&format!("cores of a storage target, {name}"), &[device], cores, "cores");
        }
    }

    /// Figure 10: several devices that write to the last-level cache.
    fn devices(&mut self, hardware: &Hardware, costs: &Offload) -> Result<(), ModelError> {
        let kib = 1024.0;
        self.context = &["K029", "K030", "K032", "K052"];
        let in_flight = self.published("K026") as usize;
        let rate = |count: usize, size: f64| -> Result<f64, ModelError> {
            Ok(devices_rate(hardware, costs, count, size, in_flight)? / 1e9)
        };
        let linear = rate(4, 64.0 * kib)? / rate(1, 64.0 * kib)?;
        self.statement("linear up to four devices", &["K049"], (linear - 4.0).abs() < 0.2);
        let sizes: Vec<f64> = (0..=10).map(|power| kib * f64::from(1 << power)).collect();
        for count in [3, 4] {
            let mut largest = 0.0;
            for pair in sizes.windows(2) {
                if rate(count, pair[1])? < 0.95 * rate(count, pair[0])? {
                    largest = pair[0];
                    break;
                }
            }
            self.figure(
                &format!("size beyond which {count} devices slow down"),
                &["K050"],
                largest / kib,
                "KB",
            )
            .unexplained = (count == 3)
                .then_some("by the cache's ways alone, three devices have room for one size more");
        }
        let (three, four) = (rate(3, 1024.0 * kib)?, rate(4, 1024.0 * kib)?);
        self.figure("three devices beyond 64 KB", &["K051"], three, "GB/s");
        self.figure("four devices beyond 64 KB", &["K052"], four, "GB/s").is_fit = true;
        self.figure("each of three", &["K053"], three / 3.0, "GB/s");
        self.figure("each of four", &["K054"], four / 4.0, "GB/s").is_fit = true;
        Ok(())
    }

    /// Section 6.4: a packet takes a fixed time and one for each byte that is copied. Copies are 30 % of the time of a packet
    /// of 512 bytes; what remains without them is the most that a device can gain.
    fn packets(&mut self) {
        self.context = &["K077"];
        let packet = PacketTime::of(self.published("K077") / 100.0);
        let share = |bytes: f64| 100.0 * packet.copied_share(bytes);
        self.figure("copies of a packet of 512 B", &["K077"], share(512.0), "%").is_fit = true;
        self.figure("copies of a packet of 1 KB", &["K078"], share(1024.0), "%");
        let dropped = 100.0 * (1.0 - packet.whole(256.0) / packet.whole(1024.0));
        self.figure("packets dropped from 256 B to 1 KB", &["K079"], dropped, "%").unexplained = Some(
            "copies of packets of 256 bytes may cost less for each byte, since they come out of the first cache",
        );
        self.figure("least gain of packets above 256 B", &["K083"], packet.whole(512.0), "x").unexplained =
            Some("making and submitting a descriptor takes time of the core, which is not printed");
        // The largest packet of Ethernet without jumbo frames; the paper names none.
        self.figure("largest gain of packets", &["K084"], packet.whole(1518.0), "x");
    }
}
