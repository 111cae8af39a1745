//! Clients of all kinds: those that ask, and those that break off, talk nonsense, or come in crowds. The server goes on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use memferry_query::schedule::{Binding, Domains, Stealing};
use memferry_testing::{Needs, skip};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::super::places::Places;
use super::super::server::Server;
use super::super::{Balancing, Clients, Protocol, SncdbBenchmark, Statement, Workers, Workload};
use super::*;

const ROWS: u64 = 30_000;

/// A statement that runs for hours if nobody stops it.
const LONG: &str = "select count(*) from range(0, 1000000000000) where value % 7 = 3";

fn workload(statement: Statement) -> Workload {
    Workload {
        rows: ROWS,
        connections: 4,
        statement,
        workers: Workers::All,
        stealing: Stealing::Neighbour,
        binding: Binding::Opportunistic,
        clients: Clients::Anywhere,
        balancing: Balancing::Kept,
    }
}

struct Served {
    server: Server,
    listener: Listener,
    clients: Runtime,
    bench: SncdbBenchmark,
}

impl Served {
    fn start() -> Option<Served> {
        let machine = Arc::new(memferry::topology::Machine::discover().unwrap());
        if Domains::of(&machine).unwrap()[0].cpus.len() < 2 {
            skip(Needs::Cpus(2), "the tables are on two domains");
            return None;
        }
        let bench = SncdbBenchmark::new(Arc::clone(&machine), ROWS, 7, &()).unwrap();
        let places = Places::of(&machine, 7).unwrap();
        let server = Server::start(&places, &workload(Statement::Random), &bench.tables).unwrap();
        let any = (std::net::Ipv4Addr::LOCALHOST, 0).into();
        let listener = Listener::start(&server.handle(), server.sessions(), any).unwrap();
        let clients = Runtime::new().unwrap();
        Some(Served { server, listener, clients, bench })
    }

    fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    fn connect(&self) -> Client {
        let address = self.address();
        self.clients.block_on(async move {
            let parameters = format!("host={} port={} user=anyone", address.ip(), address.port());
            let (client, connection) = tokio_postgres::connect(&parameters, NoTls).await.unwrap();
            drop(tokio::spawn(connection));
            client
        })
    }

    /// The first column of the answer to a simple query.
    fn ask(&self, client: &Client, sql: &str) -> Result<Vec<String>, String> {
        let messages = self.clients.block_on(client.simple_query(sql));
        let failed = |error: tokio_postgres::Error| {
            error.as_db_error().map_or(error.to_string(), |it| it.message().into())
        };
        let first = |message: SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
            _ => None,
        };
        Ok(messages.map_err(failed)?.into_iter().filter_map(first).collect())
    }

    /// A new client has the right answer.
    fn goes_on(&self) {
        let rows = self.ask(&self.connect(), "select count(*) from tbl_0").unwrap();
        assert_eq!(rows, [ROWS.to_string()]);
    }
}

#[test]
fn statements_answer_as_within_the_process() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    let c1 = i64::from(served.bench.values.value(0, 41));
    assert_eq!(served.ask(&client, "select c1 from tbl_0 where c0 = 42").unwrap(), [c1.to_string()]);
    // Several statements at once, those without rows among them, and a setting that is this session's only.
    let rows =
        served.ask(&client, "begin; set memferry.stealing = 'any'; select 1; select 'x'; commit").unwrap();
    assert_eq!(rows, ["1", "x"]);
    let show = "select value from information_schema.df_settings where name = 'memferry.stealing'";
    assert_eq!(served.ask(&client, show).unwrap(), ["any"]);
    assert_eq!(served.ask(&served.connect(), show).unwrap(), ["neighbour"]);
    let types = "select 1 = 1, cast(3 as smallint), 4, cast(1.5 as double), 'text', cast(null as int), date '2026-01-02'";
    let row = served.clients.block_on(client.query_one(types, &[])).unwrap();
    assert!(row.get::<_, bool>(0));
    assert_eq!((row.get::<_, i16>(1), row.get::<_, i64>(2), row.get::<_, f64>(3)), (3, 4, 1.5));
    assert_eq!((row.get::<_, &str>(4), row.get::<_, Option<i32>>(5)), ("text", None));
    assert_eq!(row.get::<_, &str>(6), "2026-01-02");
    // A parameter whose type the statement says, in binary form.
    let rows =
        served.clients.block_on(client.query("select c1 from tbl_0 where c0 = $1", &[&42_i32])).unwrap();
    assert_eq!(rows.iter().map(|row| i64::from(row.get::<_, i32>(0))).collect::<Vec<_>>(), [c1]);
    // More rows than a message has.
    let rows = served.clients.block_on(client.query("select c0 from tbl_1", &[])).unwrap();
    assert_eq!(rows.len() as u64, ROWS);
}

#[test]
fn wrong_statements_are_answered_with_an_error() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    for (sql, says) in [
        ("selec 1", "Expected"),
        ("select nosuch from tbl_0", "nosuch"),
        ("select 1 / 0", "ivide by zero"),
        ("drop table tbl_0", "DDL not supported"),
        ("create table t as select 1", "DDL not supported"),
        ("copy (select 1) to '/tmp/memferry-sncdb.parquet'", "DML not supported"),
        ("set datafusion.runtime.memory_limit = '1M'", "shared by all sessions"),
    ] {
        let error = served.ask(&client, sql).unwrap_err();
        assert!(error.contains(says), "{sql}: {error}");
    }
    assert_eq!(served.ask(&client, "select 2").unwrap(), ["2"], "the connection goes on");
    let many = served.clients.block_on(client.prepare("select 1; select 2")).unwrap_err();
    assert!(many.as_db_error().unwrap().message().contains("one statement"), "{many}");
}

#[test]
fn the_closed_loop_runs_over_the_protocol() {
    let Some(mut served) = Served::start() else { return };
    served.bench.protocol = Protocol::Postgres;
    (served.bench.warm_up, served.bench.seconds) = (Duration::from_millis(100), 1);
    for statement in [Statement::Random, Statement::Scan { on_first: 2, range_pred: 1_000_000 }] {
        let rows = served.bench.run(&workload(statement)).unwrap();
        assert!(rows[0].value > 0.0, "{rows:?}");
    }
}

#[test]
fn psql_works() {
    let Some(served) = Served::start() else { return };
    let address = served.address();
    let psql = Command::new("psql")
        .args(["-X", "-A", "-t", "-h", &address.ip().to_string(), "-p", &address.port().to_string()])
        .args(["-U", "anyone", "-d", "any", "-c", "select count(*), min(c0) from tbl_0 where c0 > 10"])
        .args(["-c", "select nosuch"])
        .env("PGCONNECT_TIMEOUT", "10")
        .output();
    let Ok(output) = psql else { return skip(Needs::Program("psql"), "it is not installed") };
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(out.contains(&format!("{}|11", ROWS - 10)), "{out}{error}");
    assert!(error.contains("nosuch"), "{out}{error}");
}

/// Queries that run on the server's runtime and on those of its domains.
fn is_busy(served: &Served) -> bool {
    let tasks = || served.server.handle().metrics().num_alive_tasks();
    tasks() > 1
}

fn until(what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is() {
        assert!(Instant::now() < deadline, "{what} takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_query_ends_when_its_client_is_gone() {
    let Some(served) = Served::start() else { return };
    for _ in 0..4 {
        let client = served.connect();
        let begin = Instant::now();
        let asked = served.clients.block_on(async {
            tokio::time::timeout(Duration::from_millis(300), client.simple_query(LONG)).await
        });
        assert!(asked.is_err() && begin.elapsed() < Duration::from_secs(20), "the query runs long");
        assert!(is_busy(&served));
        drop(client);
    }
    until("ending queries", || !is_busy(&served));
    served.goes_on();
}

#[test]
fn a_query_can_be_cancelled() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    let token = client.cancel_token();
    let error = served.clients.block_on(async {
        let cancel = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            token.cancel_query(NoTls).await.unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            answer = client.simple_query(LONG) => answer.unwrap_err(),
            () = cancel => unreachable!(),
        }
    });
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error}");
    assert_eq!(served.ask(&client, "select 3").unwrap(), ["3"], "the connection goes on");
}

/// A message with its length.
fn message(kind: Option<u8>, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u32 + 4).to_be_bytes();
    kind.into_iter().chain(length).chain(content.iter().copied()).collect()
}

fn startup() -> Vec<u8> {
    message(None, &[&[0, 3, 0, 0][..], b"user\0anyone\0\0"].concat())
}

#[test]
fn garbage_ends_its_connection_only() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    let mut random = memferry_bench::harness::Random(20261126);
    let mut noise = |bytes: usize| (0..bytes).map(|_| random.next_u64() as u8).collect::<Vec<u8>>();
    let bind = |formats: &[u8]| [b"\0\0".as_slice(), formats].concat();
    let parse = message(Some(b'P'), b"\0select c0, c1 from tbl_0 limit 1\0\0\0");
    let execute = |rows: i32| message(Some(b'E'), &[&b"\0"[..], &rows.to_be_bytes()].concat());
    let sync = message(Some(b'S'), b"");
    let mut bad: Vec<Vec<u8>> = vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        message(None, &[0, 9, 0, 0, b'x']),
        [startup(), vec![b'Q', 0xff, 0xff, 0xff, 0xff]].concat(),
        [startup(), vec![b'Q', 0, 0, 0, 0]].concat(),
        [startup(), message(Some(b'Q'), b"select '\xff\xfe'\0")].concat(),
        [startup(), message(Some(b'B'), b"\0nosuch\0\0\0\0\0\0\0"), sync.clone()].concat(),
        // One format too few and too many for two columns, and rows at once that no memory has.
        [
            startup(),
            parse.clone(),
            message(Some(b'B'), &bind(b"\0\0\0\0\0\x03\0\0\0\0\0\0")),
            execute(0),
            sync.clone(),
        ]
        .concat(),
        [
            startup(),
            parse.clone(),
            message(Some(b'B'), &bind(b"\0\0\0\0\0\0")),
            execute(i32::MAX),
            sync.clone(),
        ]
        .concat(),
        [startup(), parse, message(Some(b'B'), &bind(b"\0\0\0\0\0\0")), execute(-7), sync].concat(),
    ];
    bad.extend((1..40).map(|size| noise(size * 7)));
    bad.extend((1..40).map(|size| [startup(), noise(size * 7)].concat()));
    for bytes in &bad {
        let mut socket = StdTcpStream::connect(served.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        // The server may have closed it already.
        let _ = socket.write_all(bytes);
        let _ = socket.read(&mut [0; 64]);
    }
    assert_eq!(served.ask(&client, "select 4").unwrap(), ["4"], "other connections go on");
    served.goes_on();
}

/// Each end of each connection takes a descriptor of this process, and the server one more.
#[test]
fn a_crowd_is_served_or_refused() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    let mut crowd: Vec<StdTcpStream> = Vec::new();
    for _ in 0..1000 {
        // This process may have no descriptor left: the server has none either.
        let Ok(mut socket) = StdTcpStream::connect_timeout(&served.address(), Duration::from_secs(5)) else {
            break;
        };
        // The server may have refused it.
        let _ = socket.write_all(&startup());
        crowd.push(socket);
    }
    assert!(crowd.len() > 200, "{} connections", crowd.len());
    assert_eq!(served.ask(&client, "select 5").unwrap(), ["5"], "while the crowd is there");
    drop(crowd);
    until("closing the crowd", || {
        !is_busy(&served) || served.server.handle().metrics().num_alive_tasks() < 10
    });
    served.goes_on();
}

#[test]
fn one_more_than_the_most_is_told_so() {
    let Some(served) = Served::start() else { return };
    let refused = served.server.handle().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = tokio::spawn(async move {
            tokio_postgres::connect(&format!("host=127.0.0.1 port={} user=a", address.port()), NoTls)
                .await
                .err()
        });
        let (socket, _) = listener.accept().await.unwrap();
        refuse(socket).await;
        client.await.unwrap()
    });
    let error = refused.unwrap();
    assert_eq!(error.code().map(|code| code.code()), Some("53300"), "{error}");
}
