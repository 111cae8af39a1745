//! `memferry sql` over URLs: a local server answers as a web server, and as S3.

use crate::support::USAGE;
#[cfg(not(feature = "stores"))]
use crate::support::fails;

#[cfg(not(feature = "stores"))]
#[test]
fn without_the_feature_a_url_says_how_to_build_with_it() {
    for location in
        ["s3://bucket/t.parquet", "https://example.org/t.parquet", "gs://bucket/t", "az://container/t"]
    {
        let words = [location, "build it with `cargo build --package memferry-cli --features stores`"];
        fails(&["sql", "--table", &format!("t={location}"), "select 1"], USAGE, &words);
        let create = format!("create external table t stored as parquet location '{location}'");
        fails(&["sql", &create], USAGE, &words);
    }
}

#[cfg(feature = "stores")]
mod with_the_feature {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use std::{fs, thread};

    use super::*;
    use crate::support::{FAILURE, memferry, prints, says, text};

    /// A server of one file, which takes its time for each answer. It ends with the process.
    struct Server {
        address: SocketAddr,
        counts: Arc<Counts>,
    }

    /// Relaxed: the command has ended when they are read.
    #[derive(Default)]
    struct Counts {
        ranges: AtomicUsize,
        in_flight: AtomicUsize,
        in_flight_max: AtomicUsize,
    }

    impl Server {
        fn start(content: Vec<u8>) -> Server {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let (counts, content) = (Arc::new(Counts::default()), Arc::new(content));
            let server = Server { address, counts: Arc::clone(&counts) };
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let (content, counts) = (Arc::clone(&content), Arc::clone(&counts));
                    thread::spawn(move || serve(stream.unwrap(), &content, &counts));
                }
            });
            server
        }

        /// Runs the command with this server as S3.
        fn sql(&self, arguments: &[&str]) -> std::process::Output {
            let mut command = memferry(&["sql", "--format", "csv"]);
            command
                .args(arguments)
                .env("NO_PROXY", "127.0.0.1")
                .env("AWS_ENDPOINT", format!("http://{}", self.address))
                .env("AWS_ALLOW_HTTP", "true")
                .env("AWS_ACCESS_KEY_ID", "key")
                .env("AWS_SECRET_ACCESS_KEY", "secret")
                .env("AWS_REGION", "us-east-1");
            command.output().unwrap()
        }
    }

    /// Answers the requests of a connection. An error ends it: the client has closed it.
    fn serve(mut stream: TcpStream, content: &[u8], counts: &Counts) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while let Some(Ok(request)) = lines.next() {
            let mut range = None;
            for header in lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()) {
                if let Some(bytes) = header.to_ascii_lowercase().strip_prefix("range: bytes=") {
                    let (first, last) = bytes.split_once('-').unwrap();
                    range = Some(first.parse::<usize>().unwrap()..last.parse::<usize>().unwrap() + 1);
                }
            }
            let (method, path) = request.split_once(' ').unwrap();
            let common = "last-modified: Tue, 24 Nov 2026 12:00:00 GMT\r\netag: \"v1\"\r\n";
            let (status, size, body) = match range {
                _ if !path.contains("/t.parquet ") => ("404 Not Found", 0, &[][..]),
                Some(range) => {
                    counts.ranges.fetch_add(1, Ordering::Relaxed);
                    let in_flight = counts.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
                    counts.in_flight_max.fetch_max(in_flight, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(20));
                    counts.in_flight.fetch_sub(1, Ordering::Relaxed);
                    let header =
                        format!("content-range: bytes {}-{}/{}", range.start, range.end - 1, content.len());
                    let body = &content[range];
                    let status = format!("206 Partial Content\r\n{header}");
                    let head = format!("HTTP/1.1 {status}\r\n{common}content-length: {}\r\n\r\n", body.len());
                    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_err() {
                        return;
                    }
                    continue;
                }
                None if method == "HEAD" => ("200 OK", content.len(), &[][..]),
                None => ("200 OK", content.len(), content),
            };
            let head = format!("HTTP/1.1 {status}\r\n{common}content-length: {size}\r\n\r\n");
            if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).is_err() {
                return;
            }
        }
    }

    /// A Parquet file of 20 row groups.
    fn file() -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.parquet");
        prints(&[
            "sql",
            &format!(
                "copy (select value as a, 'row ' || value as name from range(0, 20000)) to '{}' \
                 options (format.max_row_group_size 1000)",
                path.display()
            ),
        ]);
        fs::read(path).unwrap()
    }

    #[test]
    fn tables_at_urls_are_read_by_several_requests_at_a_time() {
        let server = Server::start(file());
        let query = "select count(*) as n, sum(a) as s, max(upper(name)) as m from t";
        let expected = "n,s,m\n20000,199990000,ROW 9999\n";
        for location in
            [format!("http://{}/data/t.parquet", server.address), "s3://bucket/data/t.parquet".to_owned()]
        {
            let create = format!("create external table t stored as parquet location '{location}'; {query}");
            for arguments in [&["--table", &format!("t={location}"), query][..], &[create.as_str()]] {
                let output = server.sql(arguments);
                assert_eq!(text(&output.stdout), expected, "{location}: {}", text(&output.stderr));
            }
        }
        let (ranges, in_flight_max) = (
            server.counts.ranges.load(Ordering::Relaxed),
            server.counts.in_flight_max.load(Ordering::Relaxed),
        );
        assert!(ranges >= 4 && in_flight_max >= 2, "{ranges} requests, {in_flight_max} at a time");
    }

    #[test]
    fn what_a_store_does_not_have_is_an_error() {
        let server = Server::start(Vec::new());
        let refused = |location: &str, status: i32, words: &[&str]| {
            says(&server.sql(&["--table", &format!("t={location}"), "select * from t"]), status, words);
        };
        refused(&format!("http://{}/missing.parquet", server.address), FAILURE, &["missing.parquet"]);
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        refused(&format!("http://{closed}/t.parquet"), FAILURE, &["t.parquet"]);
        // Its account is not known.
        refused("az://container/t.parquet", USAGE, &["az://container/t.parquet", "AZURE_*"]);
    }
}
