//! Kuper et al. 2024: conditions under which a device is faster than a core.

use memferry::internals::{Endpoints, Hardware, Offload};
use memferry::model::ModelError;
use memferry::topology::Machine;

use super::List;

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
        let alike = costs.batch_rate(256.0, 4, 1)? / costs.rate(256.0, 4);
        self.statement("a batch of 4 like 4 cores, shared queue", &["K038"], (0.9..1.1).contains(&alike))
            .unexplained = Some(
            "descriptors of a batch come out one per 126 ns here, those of several cores at the same time",
        );
        let devices = |count: usize| -> f64 {
            hardware.copy_rate(&(0..count).collect::<Vec<_>>(), Endpoints::default()).unwrap_or(0.0) / 1e9
        };
        self.statement("linear up to four devices", &["K049"], (devices(4) / devices(1) - 4.0).abs() < 0.2);
        // Figure 10: the largest size of which 32 copies of each device (K026) fit into the two of 15 ways of the last-level
        // cache (K019) that devices may write to.
        let share = self.published("K019") * 1e6 * 2.0 / 15.0;
        let in_flight = self.published("K026");
        let fits = |count: f64, size: f64| count * in_flight * size <= share;
        for count in [3.0, 4.0] {
            let sizes = (0..20).map(|power| kib * f64::from(1 << power));
            let largest = sizes.take_while(|&size| fits(count, size)).last().unwrap_or(0.0);
            self.figure(
                &format!("size beyond which {count} devices slow down"),
                &["K050"],
                largest / kib,
                "KB",
            )
            .unexplained = (count == 3.0)
                .then_some("by the cache's ways alone, three devices have room for one size more");
        }
        // Appendix A: programs that do little but copy gain at most what a device is faster than a core.
        let faster = costs.device_rate() / (kib * kib / costs.core_s(kib * kib));
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
        const LEAKY: &str =
            "writes beyond the share of the last-level cache that devices have, which the model lacks";
        self.figure("three devices beyond 64 KB", &["K051"], devices(3), "GB/s").unexplained = Some(LEAKY);
        self.figure("four devices beyond 64 KB", &["K052"], devices(4), "GB/s").unexplained = Some(LEAKY);
        self.figure("each of three", &["K053"], devices(3) / 3.0, "GB/s").unexplained = Some(LEAKY);
        self.figure("each of four", &["K054"], devices(4) / 4.0, "GB/s").unexplained = Some(LEAKY);
        Ok(())
    }
}
