//! How soon an emulated device answers.
//!
//! ```text
//! bench ── memferry emulate -- memferry bench emulate --idle           round trips after pauses
//!                                                    --pollers WAIT    four threads that poll, or use UMWAIT
//!                                                    --sleep MS        does nothing with a device
//! ```

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use memferry_bench::dsa::promptness::{self, IdleRoundTrips};
use memferry_bench::harness::{Comparison, Effort, Pairs, Provenance, Row, try_alternate};
use memferry_dsa::internals::affinity;
use memferry_dsa::{SleepState, Wait};

/// Milliseconds in which a device becomes idle.
const PAUSE: Duration = Duration::from_millis(10);
/// Threads that poll, and the CPUs that they share with the device.
const POLLERS: usize = 4;
const CPUS: usize = 2;

/// The measurement that this process makes.
#[derive(Debug, clap::Args)]
pub(super) struct Task {
    /// Measures round trips after pauses.
    #[arg(long, hide = true)]
    idle: bool,
    /// Measures threads that wait for the device all the time.
    #[arg(long, hide = true, value_enum, value_name = "WAIT")]
    pollers: Option<Poller>,
    /// Uses a device once, and sleeps for this time.
    #[arg(long, hide = true, value_name = "MS")]
    sleep: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Poller {
    Pause,
    Umwait,
}

impl Poller {
    fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }

    fn wait(self) -> Result<Wait> {
        let wait = match self {
            Poller::Pause => Wait::Pause,
            Poller::Umwait => Wait::Umwait(SleepState::Light),
        };
        if wait.effective() != wait {
            bail!("UMWAIT is neither an instruction of this CPU nor emulated");
        }
        Ok(wait)
    }
}

impl Task {
    /// Runs the step; false if this process was not started for one.
    pub(super) fn run(&self, effort: Effort, out: &mut dyn std::io::Write) -> Result<bool> {
        let queue = super::QUEUE.as_ref();
        if self.idle {
            let count = effort.of(500, 3);
            crate::output::json(out, &promptness::idle_round_trips(queue, PAUSE, count)?)?;
        } else if let Some(poller) = self.pollers {
            let count = effort.of(20_000, 10);
            let time = promptness::pollers(queue, POLLERS, count, poller.wait()?)?;
            crate::output::json(out, &time.as_secs_f64())?;
        } else if let Some(ms) = self.sleep {
            promptness::use_and_sleep(queue, Duration::from_millis(ms))?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Rows for round trips after idleness, for threads that poll, and for the CPU time of an idle device.
pub(super) fn rows(effort: Effort, seed: u64) -> Result<Vec<Row>> {
    let trips: IdleRoundTrips = serde_json::from_slice(&inside(&["--idle"], effort)?)
        .context("the measuring process printed no round trips")?;
    let peer = "a thread on a futex";
    let p99 = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[(sorted.len() * 99).div_ceil(100) - 1]
    };
    let (ours, theirs) = (p99(&trips.device_us), p99(&trips.futex_us));
    let measured = |name: &str, unit, values: &[f64]| Row::median(name, unit, Provenance::Measured, values);
    let late = measured("idle_10ms_round_trip_p99_us", "us", &[ours]).against(peer, theirs, theirs / ours);
    let pairs = Pairs { ours: trips.device_us, peer: trips.futex_us };
    let prompt = Row::compared(Comparison::new("idle_10ms_round_trip_us", "us", peer, pairs), seed);
    let (ours, peer) =
        try_alternate(effort.of(5, 1), || poll(Poller::Pause, effort), || poll(Poller::Umwait, effort))?;
    let polling = Comparison::new("pollers_4_on_2_cpus", "s", "UMWAIT", Pairs { ours, peer });
    Ok(vec![
        prompt,
        late,
        Row::compared(polling, seed),
        measured("idle_core_share", "cores", &idle_core_shares(effort)?),
    ])
}

/// Seconds of four threads on two CPUs that wait for a device.
fn poll(poller: Poller, effort: Effort) -> Result<f64> {
    let run = || {
        let cpus = affinity::allowed().context("cannot read the CPUs of this process")?;
        affinity::confine(&cpus[..CPUS.min(cpus.len())]).context("cannot confine the pollers to two CPUs")?;
        inside(&["--pollers", &poller.name()], effort)
    };
    // In a thread of its own: the program inherits the CPUs of the thread that starts it.
    let output = thread::scope(|scope| scope.spawn(run).join());
    let output = output.map_err(|_| anyhow::anyhow!("the thread that starts the pollers panicked"))??;
    serde_json::from_slice(&output).context("the pollers printed no time")
}

/// CPU time per time of an emulation that does nothing, in pairs of runs: one sleeps, one ends at once.
fn idle_core_shares(effort: Effort) -> Result<Vec<f64>> {
    let (count, sleep) = effort.of((5, Duration::from_secs(10)), (1, Duration::from_millis(50)));
    let cpu_time = |sleep: Duration| {
        let (before, start) = (promptness::cpu_time_of_children(), Instant::now());
        inside(&["--sleep", &sleep.as_millis().to_string()], effort)?;
        let used = promptness::cpu_time_of_children().saturating_sub(before);
        anyhow::Ok((used.as_secs_f64(), start.elapsed().as_secs_f64()))
    };
    let share = |_| {
        let (short, long) = (cpu_time(Duration::ZERO)?, cpu_time(sleep)?);
        Ok((long.0 - short.0) / (long.1 - short.1))
    };
    (0..count).map(share).collect()
}

/// Runs `memferry bench emulate` with these arguments on emulated devices; returns its output.
fn inside(arguments: &[&str], effort: Effort) -> Result<Vec<u8>> {
    let mut command = super::emulate(&[], &std::env::current_exe()?)?;
    command.args(["bench", "emulate"]).args(arguments).args(effort.of(None, Some("--quick")));
    let output = command.output().context("cannot run `memferry emulate`")?;
    if !output.status.success() {
        bail!(
            "the promptness of a device cannot be measured: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(output.stdout)
}
