//! Fürst 2024: table 6.2, and copies by one device and by several.

use memferry::internals::{Endpoints, Hardware, Offload, Pipeline, Run, copies_s, copy_s, device_shares};
use memferry::model::ModelError;
use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};

use super::{GIB, List, THESIS};
use crate::model::calibrate::Thesis;

impl List {
    pub(super) fn table_6_2(&mut self) -> Result<(), ModelError> {
        self.context = THESIS;
        let machine = Machine::from_profile("xeon-max-9468-2s-flat")?;
        let hardware = Hardware::of(&machine)?;
        let thesis = Thesis::read()?;
        let run = |pipeline: &Pipeline| pipeline.run(&machine, &hardware);
        let (base, limit) = (run(&thesis.baseline)?, run(&thesis.upper_limit)?);
        let (pre, dist) = (run(&thesis.prefetching)?, run(&thesis.distributed)?);
        let ms = |seconds: f64| seconds * 1e3;
        self.figure("baseline", &["F072", "F076"], ms(base.total_s), "ms").is_fit = true;
        self.figure("HBM (upper limit)", &["F073", "F079"], ms(limit.total_s), "ms").is_fit = true;
        self.figure("prefetching", &["F082"], ms(pre.total_s), "ms");
        self.figure("prefetching, distributed columns", &["F085"], ms(dist.total_s), "ms").unexplained = Some(
            "the model has no overhead of the cache itself, which the thesis sees in SCAN_b and gives no number for",
        );
        let hits = |run: &Run| run.hit_rate().unwrap_or(0.0) * 100.0;
        self.figure("hit rate, prefetching", &["F081"], hits(&pre), "%");
        self.figure("hit rate, distributed columns", &["F084"], hits(&dist), "%").is_fit = true;
        let speed_up = |run: &Run| base.total_s / run.total_s;
        self.figure("speed-up, HBM", &["F077"], speed_up(&limit), "x").is_fit = true;
        self.figure("speed-up, prefetching", &["F080"], speed_up(&pre), "x");
        self.figure("speed-up, distributed columns", &["F083"], speed_up(&dist), "x").unexplained =
            Some("as the time of the same run");
        self.figure("lost by prefetching", &["F092"], ms(pre.total_s - base.total_s), "ms").unexplained =
            Some("a difference of two times: an error of 2 % in one of them is one of 10 % in it");
        let share = (base.total_s - dist.total_s) / (base.total_s - limit.total_s);
        self.figure("share of the possible gain, distributed columns", &["F093"], share, "fraction")
            .unexplained = Some("as the time of the same run");
        let dram = hardware.memory_rate(0)? / GIB;
        self.figure("rate of DDR if stages follow each other", &["F090"], 8.0 / base.total_s, "GiB/s")
            .is_fit = true;
        let after_scan = limit.total_s - 4.0 / (8.0 / base.total_s);
        self.figure("rate of HBM if stages follow each other", &["F091"], 4.0 / after_scan, "GiB/s").is_fit =
            true;
        self.statement("DDR below its theoretical rate", &["F036"], dram < self.published("F036"));
        let stages = |one: &Run, other: &Run| -> Vec<f64> {
            one.stages_s.iter().zip(&other.stages_s).map(|(one, other)| one / other).collect()
        };
        let (slower, close) = (stages(&pre, &base), stages(&dist, &limit));
        self.statement(
            "AGGREGATE hardly faster when prefetching",
            &["F087"],
            (0.7..1.0).contains(&slower[1]),
        )
        .unexplained = Some(
            "AGGREGATE gains more here: neither the cache's overhead nor its threads' waiting is modelled",
        );
        self.statement("SCAN_a much longer when prefetching", &["F088"], slower[0] > 1.3);
        self.statement(
            "both slightly longer than the upper limit when distributed",
            &["F089"],
            close.iter().all(|ratio| (1.0..1.35).contains(ratio)),
        )
        .unexplained =
            Some("AGGREGATE is shorter here: half as many threads scan beside it, and the cache is free");
        Ok(())
    }

    pub(super) fn thesis_copies(&mut self) -> Result<(), ModelError> {
        self.context = &["F021", "F072", "F084"];
        let machine = Machine::from_profile("xeon-max-9468-2s-flat")?;
        let hardware = Hardware::of(&machine)?;
        let endpoints = |target| Endpoints {
            source_node: Some(NodeId(0)),
            target_node: Some(NodeId(target)),
            size_bytes: 1 << 30,
            turn: 0,
        };
        let rate = |route, target| -> Result<f64, ModelError> {
            Ok(1.0 / copy_s(&machine, &hardware, route, endpoints(target))?)
        };
        let average = |route| -> Result<f64, ModelError> {
            let rates = [8, 11, 12, 15]
                .map(|target| rate(route, target))
                .into_iter()
                .collect::<Result<Vec<_>, _>>()?;
            Ok(rates.iter().sum::<f64>() / rates.len() as f64)
        };
        let single = average(Route::Single)?;
        let (two, four, eight) = (average(Route::PushPull)?, average(Route::Socket)?, average(Route::All)?);
        self.figure("one device", &["F021", "F038", "F049"], single, "GiB/s").is_fit = true;
        self.context = &["F021"];
        let remote = rate(Route::Single, 15)? / rate(Route::Single, 8)?;
        self.statement("one device as fast to remote memory", &["K042"], (0.95..1.05).contains(&remote));
        self.context = &["F021", "F072", "F084"];
        self.figure("peak of several devices", &["F048"], four.max(eight), "GiB/s");
        self.push("eight devices to node 15", &["F052"], rate(Route::All, 15)?, (64.0, 65.56), "GiB/s");
        self.figure("smart copy to node 15", &["D035"], rate(Route::Smart, 15)?, "GiB/s").unexplained =
            Some("from the draft's 96 GiB/s, which the final thesis does not repeat; two devices have 60");
        let count = |route: Route, target| device_shares(route, &machine, endpoints(target)).len() as f64;
        for (row, route) in [
            ("F039", Route::Single),
            ("F040", Route::PushPull),
            ("F041", Route::Socket),
            ("F042", Route::All),
        ] {
            for target in [8, 15] {
                self.figure(
                    &format!("devices of {route:?} to node {target}"),
                    &[row],
                    count(route, target),
                    "devices",
                );
            }
        }
        self.figure("devices of smart copy in a socket", &["D038"], count(Route::Smart, 8), "devices");
        let part = |target| count(Route::Smart, target) / count(Route::All, target);
        self.figure("smart copy of all devices, in a socket", &["D037"], part(8), "fraction");
        self.figure("smart copy of all devices, between sockets", &["D036"], part(15), "fraction");
        self.figure(
            "all devices against push-pull",
            &["F054"],
            count(Route::All, 8) / count(Route::PushPull, 8),
            "x",
        );
        self.statement("more than two devices gain little", &["F058"], four / two < 1.15);
        self.statement("eight better than two between sockets", &["F056"], {
            rate(Route::All, 15)? > rate(Route::PushPull, 15)?
        });
        self.statement("eight worse than two on average", &["F055"], eight < two).unexplained = Some(
            "what a device of the other socket costs is not printed; without it more devices are never worse",
        );
        self.statement("four devices best on average", &["F057"], four > eight * 1.001).unexplained =
            Some("four and eight come out alike, as both saturate the source's memory");
        self.cores(&hardware, four.max(eight), rate(Route::All, 15)?)?;
        let costs = Offload::of(&hardware)?;
        self.statement("batches faster than single submissions at the largest size", &["F018"], {
            costs.batch_rate(GIB, 50, 1)? > costs.rate(GIB, 1)
        });
        let (mib, threads) = (GIB / 1024.0, |bytes, count| costs.rate(bytes, count));
        self.statement("1 MiB faster with more threads", &["F028"], threads(mib, 12) > threads(mib, 1));
        self.statement("1 GiB faster than 1 MiB", &["F029"], threads(GIB, 1) > threads(mib, 1));
        let enough = (10..31)
            .map(|power| f64::from(1 << power))
            .find(|&bytes| costs.rate(bytes, 1) >= 0.9 * costs.device_rate());
        let enough = enough.unwrap_or(f64::INFINITY) / mib;
        self.figure("size from which single submissions reach 90 %", &["F017", "F062"], enough, "MiB")
            .unexplained = Some("the thesis's library adds delays to each submission, and prints none");
        Ok(())
    }

    /// Copies by the cores of node 0, beside what devices reach within the socket and to the other one.
    fn cores(&mut self, hardware: &Hardware, devices: f64, devices_far: f64) -> Result<(), ModelError> {
        self.context = &["F021", "F072", "F073", "F084"];
        let by = |cores: usize, target| -> Result<f64, ModelError> {
            let nodes = (NodeId(0), NodeId(target));
            Ok(cores as f64 / copies_s(hardware, NodeId(0), nodes, cores, GIB)?)
        };
        let (near, far) = (by(12, 8)?, by(12, 12)?);
        self.statement("software path below half of the theoretical rate", &["F059"], {
            by(1, 8)? < self.published("F059") * self.published("F036")
        });
        self.statement("cores copy faster within a socket", &["F060"], near > 1.05 * far);
        self.statement(
            "devices like cores within a socket, and faster between sockets",
            &["F063"],
            (0.9..1.1).contains(&(devices / near)) && devices_far > 1.05 * far,
        );
        Ok(())
    }
}
