//! A full disk: the directory of temporary files is a small file system of its own.

use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memferry_testing::{Needs, skip};
use tonic::Code;
use tonic::transport::Endpoint;

use super::fixture::{Client, query, text};
use super::program::{Process, read_to};

/// A program in a namespace in which `$1` is a file system of 1 MiB and the directory of temporary files.
const ON_SMALL_DISK: &str =
    "mount -t tmpfs -o size=1M none \"$1\" && TMPDIR=\"$1\" && export TMPDIR && shift && exec \"$@\"";

fn on_small_disk(directory: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", ON_SMALL_DISK, "sh"]).arg(directory);
    command
}

/// Files in a directory and in those below it.
fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

/// About 60 MB: a sort of it needs files if it has less memory.
const SORTED: &str =
    "select value, repeat('x', 100) || value as t from generate_series(1, 400000) order by t desc";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_fails_the_sorts_that_need_it_and_the_others_go_on() {
    let directory = tempfile::TempDir::new().unwrap();
    let works = on_small_disk(directory.path()).arg("true").output();
    if !works.is_ok_and(|output| output.status.success()) {
        return skip(Needs::Namespaces, "no file system can be mounted in a namespace");
    }
    let mut command = on_small_disk(directory.path());
    command.args([env!("CARGO_BIN_EXE_memferry-cluster"), "serve", "--listen", "127.0.0.1:0"]);
    command.args(["--memory", "40MiB", "--partitions", "2", "--tpch", "0.01"]);
    command.stderr(Stdio::piped()).stdout(Stdio::null()).stdin(Stdio::null());
    let mut process = Process(command.spawn().unwrap());
    let mut log = BufReader::new(process.0.stderr.take().unwrap());
    let start = read_to(&mut log, "start");
    let address = format!("http://{}", start["address"].as_str().unwrap());
    let mut client = Client::new(Endpoint::from_shared(address).unwrap().connect().await.unwrap());
    let error = query(&mut client, SORTED).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    for part in ["No space left on device", "TMPDIR", "--memory"] {
        assert!(error.message().contains(part), "{part} is missing: {error}");
    }
    // Sorts in memory, groups and joins go on.
    let small = SORTED.replace("400000", "1000");
    assert!(text(&query(&mut client, &small).await.unwrap()).contains("x999 "));
    let joined = "select count(*) as n from orders join customer on o_custkey = c_custkey";
    assert!(text(&query(&mut client, joined).await.unwrap()).contains("| 15000 |"));
    // The files of the failed sort are gone; the directory is seen as the program sees it.
    let seen = format!("/proc/{}/root{}", process.0.id(), directory.path().display());
    let began = Instant::now();
    while files(Path::new(&seen)) > 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "temporary files are left in {seen}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
