//! The program `memferry-cluster serve`: its options, its log and its signals.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use arrow_flight::sql::client::FlightSqlServiceClient;
use serde_json::Value;
use tonic::transport::Endpoint;

use super::fixture::{query, text, write_table};

pub(super) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry-cluster"));
    command.arg("serve").stderr(Stdio::piped()).stdout(Stdio::null()).stdin(Stdio::null());
    command
}

/// Killed when dropped.
pub(super) struct Process(pub(super) Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Fails if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lines of the log, up to the first with this event.
pub(super) fn read_to(log: &mut BufReader<ChildStderr>, event: &str) -> Value {
    loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "the program ended before it logged {event}");
        let value: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for field in ["time", "level", "event"] {
            assert!(value[field].is_string(), "{line}");
        }
        if value["event"] == event {
            return value;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serves_until_it_is_asked_to_stop() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("t.parquet");
    write_table(&file, 1000).await;
    for (signal, statements) in [("TERM", true), ("INT", false)] {
        let mut command = program();
        command.args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--load"]);
        command.args(["--table", &format!("t={}", file.display()), "--place", "t=NUMA NODE (0)"]);
        if statements {
            command.arg("--log-statements");
        }
        let mut process = Process(command.spawn().unwrap());
        let mut log = BufReader::new(process.0.stderr.take().unwrap());
        let start = read_to(&mut log, "start");
        let address: SocketAddr = start["address"].as_str().unwrap().parse().unwrap();
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let mut client = FlightSqlServiceClient::new(channel);
        let sql = "select count(*) as n from t where v < 10";
        assert!(text(&query(&mut client, sql).await.unwrap()).contains("| 10 |"));
        let line = read_to(&mut log, "query");
        assert_eq!((line["outcome"].as_str(), line["rows"].as_u64()), (Some("done"), Some(1)), "{line}");
        assert_eq!(line["statement"].as_str(), statements.then_some(sql), "{line}");
        let kill = Command::new("kill").args(["-s", signal, &process.0.id().to_string()]).status().unwrap();
        assert!(kill.success());
        read_to(&mut log, "stopped");
        let started = Instant::now();
        let status = loop {
            if let Some(status) = process.0.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < Duration::from_secs(10), "the program does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        assert!(status.success(), "{status}");
    }
}

/// The block of docs/commands/sql.md: what one shell has read is near for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shells_of_a_server_share_near_columns() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = directory.path().join("trips.parquet");
    write_table(&file, 50_000).await;
    let mut command = program();
    command.args(["--listen", "127.0.0.1:0", "--table", &format!("trips={}", file.display())]);
    let mut process = Process(command.spawn().unwrap());
    let mut log = BufReader::new(process.0.stderr.take().unwrap());
    let address = read_to(&mut log, "start")["address"].as_str().unwrap().to_owned();
    let shell = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memferry-cluster"));
        let output = command.args(["sql", "--connect"]).args(options).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let explained = "explain analyze select sum(v) from trips";
    let bytes_read = || {
        let (code, text, errors) = shell(&[&address, "--format", "csv", explained]);
        assert_eq!(code, Some(0), "{errors}");
        let (_, after) = text.split_once("file_bytes_read=").unwrap_or_else(|| panic!("{text}"));
        after.split([',', ']']).next().unwrap().to_owned()
    };
    assert_ne!(bytes_read(), "0", "the first shell reads the file");
    assert_eq!(bytes_read(), "0", "the second one uses what the first has read");

    let sum = "select sum(v) as sum from trips";
    let answers = [("csv", "sum\n1249975000\n".to_owned()), ("json", "{\"sum\":1249975000}\n".to_owned())];
    for (format, answer) in answers {
        assert_eq!(shell(&[&address, "--format", format, sum]), (Some(0), answer, String::new()));
    }
    let (_, table, _) = shell(&[&address, &format!("{sum};")]);
    assert!(table.contains("| 1249975000 |") && table.contains("\n1 row in "), "{table}");
    let (code, nothing, errors) = shell(&[&address, "select nothing from trips"]);
    assert_eq!((code, nothing.as_str()), (Some(1), ""), "{errors}");
    assert!(errors.contains(&address) && errors.contains("nothing"), "{errors}");
    let (code, _, errors) = shell(&["127.0.0.1:1", sum]);
    assert!(code == Some(1) && errors.contains("127.0.0.1:1: "), "{errors}");
    assert_eq!(shell(&[&address, "--explain", sum]).0, Some(2), "EXPLAIN is a statement there");
}

#[test]
fn wrong_options_say_what_to_do() {
    for (options, code, says) in [
        (&["--listen", "0.0.0.0:0"][..], 2, "--tls-certificate"),
        (&["--tokens", "/nowhere/tokens"], 1, "cannot read the file of --tokens"),
        (&["--tls-certificate", "/nowhere/c.pem"], 2, "--tls-key"),
        (&["--time", "0s"], 2, "above 0"),
        (&["--time", "fast"], 2, "500ms"),
        (&["--queries", "0"], 2, "--queries"),
        (&["--table", "t=/nowhere/t.parquet"], 1, "/nowhere/t.parquet"),
        (&["--place", "t=NUMA NODE (0)"], 2, "neither --table nor --tpch"),
        (&["--table", "t=a.parquet", "--table", "t=b.parquet"], 2, "two tables are called t"),
        (&["--cluster", "127.0.0.1:1", "--tpch", "0.01"], 2, "--tpch"),
        (&["--cluster", "127.0.0.1:1", "--updates"], 2, "--updates"),
        (&["--cluster", "127.0.0.1:1", "--near", "0"], 2, "--near"),
        (&["--cluster", "nowhere"], 1, "write HOST:PORT"),
        (&["--cluster", "127.0.0.1:1"], 1, "start one with `memferry worker`"),
        (&["--tls-ca", "ca.pem"], 2, "--cluster"),
    ] {
        let output = program()
            .args(["--listen", "127.0.0.1:0"].iter().filter(|_| options[0] != "--listen"))
            .args(options)
            .output();
        let output = output.unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(says), "{options:?}: {text}");
        assert_eq!(output.status.code(), Some(code), "{options:?}: {text}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let output = program().args(["--listen", &taken.local_addr().unwrap().to_string()]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot listen on") && text.contains("--listen"), "{text}");
}
