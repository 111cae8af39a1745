//! The throughput of redis with the preload library of `memferry offload`, beside the same server without it.
//!
//! ```text
//! sample: start a server, redis-benchmark sets and gets values by loopback, end the server
//! round:  a sample of each server, for each size of values
//! ```
//!
//! Each sample has a new process: the addresses of a process, which are drawn when it starts, affect its speed.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{Effort, Pairs, try_alternate};

/// The sizes of values: the default of redis-benchmark, and two whose copies the library counts.
pub const VALUE_BYTES: [usize; 3] = [3, 16 << 10, 256 << 10];

/// Requests of one sample for a size of [`VALUE_BYTES`]: about a second.
const REQUESTS: [u32; 3] = [60_000, 30_000, 3000];
/// Keys of the values: more memory than a cache of the CPU has, with the largest values.
const KEYS: &str = "500";
/// Time for a server to start.
const START: Duration = Duration::from_secs(20);
/// Time between two attempts to connect to it.
const PAUSE: Duration = Duration::from_millis(10);

/// A request of redis-benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Sets a value.
    Set,
    /// Gets a value.
    Get,
}

impl Operation {
    /// Both requests.
    pub const ALL: [Operation; 2] = [Operation::Set, Operation::Get];

    /// The name that redis-benchmark prints.
    fn printed(self) -> &'static str {
        match self {
            Operation::Set => "SET",
            Operation::Get => "GET",
        }
    }
}

/// Samples of one request with values of one size.
#[derive(Clone, PartialEq, Debug)]
pub struct Throughput {
    /// The request.
    pub operation: Operation,
    /// The size of a value.
    pub value_bytes: usize,
    /// Microseconds of a request: the reciprocal of the throughput. Ours is the server with the library.
    pub request_us: Pairs,
}

/// Servers that cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A program is missing.
    #[error("{program} is not installed; install redis-server and redis-tools, or run `cargo xtask setup`")]
    Missing {
        /// The program.
        program: &'static str,
    },
    /// A program cannot be run.
    #[error("cannot run {program}: {source}")]
    Run {
        /// The program.
        program: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The server ends, or answers no client.
    #[error("redis-server does not answer on port {port}: {why}")]
    Server {
        /// Its port.
        port: u16,
        /// The reason.
        why: String,
    },
    /// The client fails or prints no throughput.
    #[error("redis-benchmark has not measured {operation} with {value_bytes} B: {output}")]
    Client {
        /// The request.
        operation: &'static str,
        /// The size of the values.
        value_bytes: usize,
        /// Its output.
        output: String,
    },
}

/// The version of the installed server.
///
/// # Errors
/// [`ServerError::Missing`]: the server or its client is not installed.
pub fn redis_version() -> Result<String, ServerError> {
    output(Command::new("redis-benchmark").arg("--version"), "redis-benchmark")?;
    let printed = output(Command::new("redis-server").arg("--version"), "redis-server")?;
    let version = printed.split_whitespace().find_map(|word| word.strip_prefix("v="));
    Ok(version.unwrap_or("of unknown version").to_owned())
}

/// Compares the server that `ours` starts with a plain one. `ours` gets the program `redis-server` and its arguments.
///
/// # Errors
/// [`ServerError`]
pub fn server_throughput(effort: Effort, ours: impl Fn() -> Command) -> Result<Vec<Throughput>, ServerError> {
    redis_version()?;
    let directory = tempfile::tempdir().map_err(run("redis-server"))?;
    let mut measured = Vec::new();
    for (value_bytes, requests) in VALUE_BYTES.into_iter().zip(REQUESTS) {
        let load = Load { value_bytes, requests: effort.of(requests, 300) };
        let plain = || Command::new("redis-server");
        let with_library = || {
            let mut command = ours();
            command.arg("redis-server");
            command
        };
        let sample = |server: Command| Server::start(server, directory.path())?.requests_us(load);
        // The first samples of a size warm up the page cache and the clock of the CPU.
        sample(plain())?;
        let (ours, peer) = try_alternate(effort.of(25, 2), || sample(with_library()), || sample(plain()))?;
        for (index, operation) in Operation::ALL.into_iter().enumerate() {
            let of = |samples: &[[f64; 2]]| samples.iter().map(|sample| sample[index]).collect();
            let request_us = Pairs { ours: of(&ours), peer: of(&peer) };
            measured.push(Throughput { operation, value_bytes, request_us });
        }
    }
    Ok(measured)
}

#[derive(Clone, Copy)]
struct Load {
    value_bytes: usize,
    requests: u32,
}

/// A running server.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(mut command: Command, directory: &Path) -> Result<Server, ServerError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(run("redis-server"))?;
        let port = listener.local_addr().map_err(run("redis-server"))?.port();
        drop(listener);
        let options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"];
        command.arg("--port").arg(port.to_string()).arg("--dir").arg(directory).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(run("redis-server"))?;
        let mut server = Server { child, port };
        server.wait_until_it_answers()?;
        Ok(server)
    }

    fn wait_until_it_answers(&mut self) -> Result<(), ServerError> {
        let started = Instant::now();
        while !self.answers() {
            let why = match self.child.try_wait().map_err(run("redis-server"))? {
                Some(status) => format!("it has ended with {status}"),
                None if started.elapsed() > START => format!("not within {START:?}"),
                None => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            return Err(ServerError::Server { port: self.port, why });
        }
        Ok(())
    }

    fn answers(&self) -> bool {
        let ping = || -> io::Result<[u8; 5]> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            stream.set_read_timeout(Some(START))?;
            stream.write_all(b"PING\r\n")?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer)?;
            Ok(answer)
        };
        ping().is_ok_and(|answer| answer == *b"+PONG")
    }

    /// The time of a request, for each operation.
    fn requests_us(&self, load: Load) -> Result<[f64; 2], ServerError> {
        let mut client = Command::new("redis-benchmark");
        client.args(["-h", "127.0.0.1", "-t", "set,get", "--csv", "-c", "20", "-r", KEYS]);
        for (option, value) in
            [("-p", self.port.into()), ("-n", load.requests), ("-d", load.value_bytes as u32)]
        {
            client.arg(option).arg(value.to_string());
        }
        let printed = output(&mut client, "redis-benchmark")?;
        let [set, get] = Operation::ALL.map(|operation| {
            requests_per_s(&printed, operation).ok_or_else(|| ServerError::Client {
                operation: operation.printed(),
                value_bytes: load.value_bytes,
                output: printed.trim().to_owned(),
            })
        });
        Ok([1e6 / set?, 1e6 / get?])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It keeps nothing. The benchmark goes on whether it has ended by itself or not.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The throughput in a table such as `"SET","94339.62","0.285"`, whose further columns differ between versions.
fn requests_per_s(csv: &str, operation: Operation) -> Option<f64> {
    let rows = csv.lines().map(|line| line.split(',').map(|cell| cell.trim().trim_matches('"')));
    let mut of_operation =
        rows.filter_map(|mut cells| (cells.next()? == operation.printed()).then_some(cells));
    let number: f64 = of_operation.next()?.next()?.parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number)
}

/// Standard output, and standard error if the program fails.
fn output(command: &mut Command, program: &'static str) -> Result<String, ServerError> {
    let output = command.stdin(Stdio::null()).output().map_err(run(program))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        text += &String::from_utf8_lossy(&output.stderr);
    }
    Ok(text)
}

fn run(program: &'static str) -> impl Fn(io::Error) -> ServerError {
    move |source| match source.kind() {
        io::ErrorKind::NotFound => ServerError::Missing { program },
        _ => ServerError::Run { program, source },
    }
}

#[cfg(test)]
mod tests {
    use memferry_testing::{Needs, skip};

    use super::*;

    #[test]
    fn the_client_prints_a_table() {
        let new = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"94339.62\",\"0.285\"\n\"GET\",\"101010.10\",\"0.281\"\n";
        assert_eq!(requests_per_s(new, Operation::Set), Some(94339.62));
        assert_eq!(requests_per_s(new, Operation::Get), Some(101010.10));
        assert_eq!(requests_per_s("\"GET\",\"5.00\"\n", Operation::Get), Some(5.0));
        for broken in
            ["", "\"SET\"", "\"SET\",\"0.00\"", "\"SET\",\"nan\"", "\"GET\",\"1\"", "Could not connect"]
        {
            assert_eq!(requests_per_s(broken, Operation::Set), None, "{broken}");
        }
    }

    /// Two plain servers: the comparison itself.
    #[test]
    fn servers_are_measured_in_turns() {
        if let Err(error) = redis_version() {
            return skip(Needs::Program("redis"), error);
        }
        let measured = server_throughput(Effort::Quick, || Command::new("env")).unwrap();
        let points: Vec<_> = measured.iter().map(|it| (it.operation, it.value_bytes)).collect();
        assert_eq!(points[..2], [(Operation::Set, 3), (Operation::Get, 3)]);
        assert_eq!(points.len(), 6);
        for throughput in measured {
            let Pairs { ours, peer } = &throughput.request_us;
            assert_eq!((ours.len(), peer.len()), (2, 2));
            assert!(ours.iter().chain(peer).all(|us| (0.1..1e6).contains(us)), "{throughput:?}");
        }
    }

    #[test]
    fn a_server_that_does_not_start_is_an_error() {
        if let Err(error) = redis_version() {
            return skip(Needs::Program("redis"), error);
        }
        let error = server_throughput(Effort::Quick, || Command::new("false")).unwrap_err();
        assert!(error.to_string().contains("it has ended with"), "{error}");
    }
}
