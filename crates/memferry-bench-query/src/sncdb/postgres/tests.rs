//! Clients of all kinds: those that ask, and those that break off, talk nonsense, or come in crowds. The server goes on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdTcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt;
use memferry_query::schedule::{Binding, Domains, Stealing};
use memferry_testing::{Needs, skip};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::super::places::Places;
use super::super::server::Server;
use super::super::{Balancing, Clients, Protocol, SncdbBenchmark, Statement, Workers, Workload};
use super::query::on;
use super::statement::TOKENS_MAX;
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
        let listener = Listener::start(&server, any).unwrap();
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

    /// Cancels a statement that runs, and expects its error.
    fn cancels(&self, client: &Client, sql: &str) {
        let token = client.cancel_token();
        let error = self.clients.block_on(async {
            let cancel = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                token.cancel_query(NoTls).await.unwrap();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                answer = client.simple_query(sql) => answer.unwrap_err(),
                () = cancel => unreachable!(),
            }
        });
        assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error}");
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
fn settings_are_those_of_a_session() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    served.ask(&client, "set memferry.stealing = 'any'").unwrap();
    // DataFusion lists the settings of extensions without their prefix.
    let show = "select value from information_schema.df_settings where name = 'stealing'";
    assert_eq!(served.ask(&client, show).unwrap(), ["any"]);
    assert_eq!(served.ask(&served.connect(), show).unwrap(), ["neighbour"]);
}

/// A statement that adds up so many numbers: twice as many words and signs.
fn sum(numbers: usize) -> String {
    format!("select {}", vec!["1"; numbers].join("+"))
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
        ("copy (select 1) to '/tmp/memferry-sncdb.parquet'", "COPY is not supported"),
        ("explain copy (select 1) to '/tmp/memferry-sncdb.parquet'", "DML not supported"),
        ("set datafusion.runtime.memory_limit = '1M'", "shared by all sessions"),
        ("copy tbl_0 to stdout", "COPY is not supported"),
        ("select 1; -- a file\n copy tbl_0 from stdin", "COPY is not supported"),
        ("select 'it", "Unterminated"),
        (sum(TOKENS_MAX).as_str(), "ask in parts"),
    ] {
        let error = served.ask(&client, sql).unwrap_err();
        assert!(error.contains(says), "{sql}: {error}");
    }
    assert_eq!(served.ask(&client, "select 2").unwrap(), ["2"], "the connection goes on");
    // The longest sum that is let through is planned by the stack of a thread.
    let numbers = TOKENS_MAX / 2 - 1;
    assert_eq!(served.ask(&client, &sum(numbers)).unwrap(), [numbers.to_string()]);
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

/// Cursors of SQL, as drivers without portals use them.
#[test]
fn cursors_move_forward_and_end_with_their_transaction() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    let ask = |sql: &str| served.ask(&client, sql);
    let declare = "declare c no scroll cursor for select value from range(0, 25)";
    let numbers = |numbers: std::ops::Range<u32>| numbers.map(|it| it.to_string()).collect::<Vec<_>>();
    assert!(ask(declare).unwrap_err().contains("BEGIN"), "outside of a transaction");
    assert!(ask(&format!("begin; {declare}; select nosuch")).unwrap_err().contains("nosuch"));
    ask("begin").unwrap();
    ask(declare).unwrap();
    assert_eq!(ask("fetch 10 from c").unwrap(), numbers(0..10));
    // Several parts in one message, and another query between.
    assert_eq!(ask("fetch next from c; fetch forward 4 in c").unwrap(), numbers(10..15));
    assert_eq!(ask("select 7").unwrap(), ["7"]);
    assert!(ask(declare).unwrap_err().contains("exists already"));
    for (sql, says) in [
        ("fetch prior from c", "only move forward"),
        ("fetch 0 from c", "at least one row"),
        ("fetch 1 from d", "no cursor d"),
        ("close d", "no cursor d"),
        ("declare d scroll cursor for select 1", "leave it out"),
        ("declare d binary cursor for select 1", "leave it out"),
        ("declare d cursor with hold for select 1", "leave it out"),
        ("declare d cursor for select nosuch", "nosuch"),
        ("declare d cursor for select 1; fetch all from d; fetch 1 from e", "no cursor e"),
    ] {
        let error = ask(sql).unwrap_err();
        assert!(error.contains(says), "{sql}: {error}");
    }
    assert_eq!(ask("fetch all from c").unwrap(), numbers(15..25));
    assert!(ask("fetch 5 from c").unwrap().is_empty());
    ask("close c").unwrap();
    assert!(ask("fetch 1 from c").unwrap_err().contains("no cursor c"));
    // Not run to its end: it is ended by the end of the transaction.
    ask("declare long cursor for select value from range(0, 1000000000000)").unwrap();
    assert_eq!(ask("fetch 3 from long").unwrap(), numbers(0..3));
    ask("commit").unwrap();
    assert!(ask("fetch 1 from long").unwrap_err().contains("no cursor long"));
    ask("begin").unwrap();
    for cursor in 0..100 {
        ask(&format!("declare c{cursor} cursor for select 1")).unwrap();
    }
    assert!(ask("declare more cursor for select 1").unwrap_err().contains("at most 100"));
    ask("close all; declare more cursor for select 1; rollback").unwrap();
    let prepared = served.clients.block_on(client.prepare("fetch 1 from c")).unwrap_err();
    assert!(prepared.as_db_error().unwrap().message().contains("simple protocol"), "{prepared}");
    until("ending the queries of cursors", || !is_busy(&served));
}

/// A row of a cursor that takes for ever.
#[test]
fn a_fetch_can_be_cancelled() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    let rows = "select value from range(0, 1000000000000) where value < 10000 or value > 999999999990";
    served.ask(&client, &format!("begin; declare c cursor for {rows}")).unwrap();
    served.cancels(&client, "fetch all from c");
    served.ask(&client, "rollback").unwrap();
    until("ending the query", || !is_busy(&served));
    served.goes_on();
}

#[test]
fn psql_describes_tables() {
    let Some(served) = Served::start() else { return };
    let input = "\\d\n\\dt tbl_1\n\\d tbl_0\n\\l\n\\dn\n\\dt+\n\\di\n\\dv\n\\df nosuch\n\\d nosuch\n\
                 select rolname from pg_catalog.pg_authid;\n";
    let Some(psql) = psql(&served, input) else { return };
    let [out, error] = ended(psql);
    let count = |line: &str| out.lines().filter(|it| *it == line).count();
    assert_eq!(count("public|tbl_0|table|memferry"), 1, "{out}{error}");
    assert_eq!(count("public|tbl_1|table|memferry"), 2, "{out}{error}");
    assert_eq!(count("c0|integer||not null|"), 1, "{out}{error}");
    assert_eq!(count("c6|integer||not null|"), 1, "{out}{error}");
    assert_eq!(count("public|memferry"), 1, "{out}{error}");
    assert_eq!(count("public|tbl_0|table|memferry|permanent|||"), 1, "{out}{error}");
    assert!(out.lines().any(|line| line.starts_with("datafusion|memferry|UTF8|C|C|")), "{out}{error}");
    // Each other command says that it found nothing, or which command lists the tables.
    assert_eq!(error.lines().filter(|line| line.starts_with("ERROR")).count(), 1, "{out}{error}");
    assert!(error.contains("SHOW TABLES"), "{out}{error}");
    assert!(error.contains("Did not find any relation named \"nosuch\""), "{out}{error}");
    served.goes_on();
}

/// psql with commands from its standard input; `None` if it is not installed.
fn psql(served: &Served, input: &str) -> Option<Child> {
    let address = served.address();
    let started = Command::new("psql")
        .args(["-X", "-A", "-t", "-h", &address.ip().to_string(), "-p", &address.port().to_string()])
        .args(["-U", "anyone", "-d", "any"])
        .env("PGCONNECT_TIMEOUT", "10")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut psql) = started else {
        skip(Needs::Program("psql"), "it is not installed");
        return None;
    };
    // It may have ended.
    let _ = psql.stdin.take().unwrap().write_all(input.as_bytes());
    Some(psql)
}

fn ended(psql: Child) -> [String; 2] {
    let output = psql.wait_with_output().unwrap();
    [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap())
}

#[test]
fn psql_works() {
    let Some(served) = Served::start() else { return };
    let c1 = served.bench.values.value(0, 41);
    let input = "select count(*), min(c0) from tbl_0 where c0 > 10;\n\
                 select nosuch;\n\
                 prepare p as select 'c1', c1 from tbl_0 where c0 = $1;\n\
                 execute p(42);\n\
                 copy tbl_0 to stdout;\n\
                 \\copy tbl_0 from /dev/null\n\
                 begin; select 'in a transaction'; commit;\n\
                 \\set FETCH_COUNT 7\n\
                 select 'at the end', c0 from tbl_1 where c0 < 20;\n";
    let Some(psql) = psql(&served, input) else { return };
    let [out, error] = ended(psql);
    let says = |line: &str| out.lines().any(|it| it == line);
    assert!(says(&format!("{}|11", ROWS - 10)), "{out}{error}");
    assert!(says(&format!("c1|{c1}")), "{out}{error}");
    assert!(says("in a transaction"), "{out}{error}");
    assert!(error.contains("nosuch"), "{out}{error}");
    assert_eq!(error.matches("COPY is not supported").count(), 2, "{out}{error}");
    // In parts of seven rows, by a cursor.
    let at_the_end: Vec<&str> = out.lines().filter_map(|line| line.strip_prefix("at the end|")).collect();
    assert_eq!(at_the_end, (1..20).map(|c0| c0.to_string()).collect::<Vec<_>>(), "{out}{error}");
}

#[test]
fn psql_cancels() {
    let Some(served) = Served::start() else { return };
    for statement in [LONG, "select value from range(0, 1000000000000)"] {
        let Some(mut psql) = psql(&served, &format!("{statement};\nselect 'next';\n")) else { return };
        let mut out = psql.stdout.take().unwrap();
        // Its output is read in any case: it would wait otherwise.
        let read = std::thread::spawn(move || {
            let (mut piece, mut last) = (vec![0; 1 << 16], Vec::new());
            while let Ok(bytes @ 1..) = out.read(&mut piece) {
                last = piece[..bytes].to_vec();
            }
            String::from_utf8_lossy(&last).into_owned()
        });
        until("beginning the query", || is_busy(&served));
        std::thread::sleep(Duration::from_millis(300));
        let sent = Command::new("kill").args(["-INT", &psql.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let begin = Instant::now();
        let [_, error] = ended(psql);
        let last = read.join().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(20), "{error}");
        assert!(error.to_lowercase().contains("cancel"), "{error}");
        until("ending the query", || !is_busy(&served));
        println!("{error}{last}");
    }
    served.goes_on();
}

/// Whether queries run.
fn is_busy(served: &Served) -> bool {
    served.server.handle().metrics().num_alive_tasks() > 0
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
    let address = served.address();
    for _ in 0..4 {
        let parameters = format!("host={} port={} user=anyone", address.ip(), address.port());
        let connected = served.clients.block_on(tokio_postgres::connect(&parameters, NoTls));
        let (client, connection) = connected.unwrap();
        let connection = served.clients.spawn(connection);
        let begin = Instant::now();
        let asked = served.clients.block_on(async {
            tokio::time::timeout(Duration::from_millis(300), client.simple_query(LONG)).await
        });
        assert!(asked.is_err() && begin.elapsed() < Duration::from_secs(20), "the query runs long");
        assert!(is_busy(&served));
        // A client that is dropped waits for its answer; this one closes its socket.
        connection.abort();
    }
    until("ending queries", || !is_busy(&served));
    served.goes_on();
}

/// Its next message came already: that the socket can be read does not say that the client is there.
#[test]
fn a_query_ends_when_its_client_is_gone_after_another_message() {
    let Some(served) = Served::start() else { return };
    let mut socket = StdTcpStream::connect(served.address()).unwrap();
    let query = message(Some(b'Q'), format!("{LONG}\0").as_bytes());
    socket.write_all(&[startup(), query.clone()].concat()).unwrap();
    until("beginning the query", || is_busy(&served));
    std::thread::sleep(Duration::from_millis(200));
    socket.write_all(&query).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_busy(&served));
    drop(socket);
    until("ending the query", || !is_busy(&served));
    served.goes_on();
}

#[test]
fn rows_can_be_cancelled() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    let token = client.cancel_token();
    let many = "select value from range(0, 1000000000000)";
    let error = served.clients.block_on(async {
        let none: [&str; 0] = [];
        let mut rows = std::pin::pin!(client.query_raw(many, none).await.unwrap());
        for row in 0..1000 {
            assert_eq!(rows.next().await.unwrap().unwrap().get::<_, i64>(0), row);
        }
        token.cancel_query(NoTls).await.unwrap();
        loop {
            if let Err(error) = rows.next().await.unwrap() {
                break error;
            }
        }
    });
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error}");
    assert_eq!(served.ask(&client, "select 6").unwrap(), ["6"], "the connection goes on");
    until("ending the query", || !is_busy(&served));
}

/// A part of the rows at a time: the query waits in between, and may be left.
#[test]
fn rows_are_fetched_in_parts() {
    let Some(served) = Served::start() else { return };
    let mut client = served.connect();
    let first = |rows: Vec<tokio_postgres::Row>| rows[0].get::<_, i64>(0);
    served.clients.block_on(async {
        let transaction = client.transaction().await.unwrap();
        let portal = transaction.bind("select value from range(0, 1000000000000)", &[]).await.unwrap();
        for part in 0..5 {
            let rows = transaction.query_portal(&portal, 10_000).await.unwrap();
            assert_eq!((rows.len(), first(rows)), (10_000, part * 10_000));
        }
        drop(portal);
        let portal = transaction.bind("select value from range(0, 100000)", &[]).await.unwrap();
        for (part_max, from, count) in [(10_000, 0, 10_000), (0, 10_000, 90_000)] {
            let rows = transaction.query_portal(&portal, part_max).await.unwrap();
            assert_eq!((rows.len(), first(rows)), (count, from));
        }
        assert!(transaction.query_portal(&portal, 0).await.unwrap().is_empty());
        transaction.commit().await.unwrap();
    });
    drop(client);
    until("ending the query", || !is_busy(&served));
}

#[test]
fn busy_workers_delay_no_other_client() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    let token = client.cancel_token();
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = Arc::new(std::sync::Mutex::new(receiver));
    // They hold their threads.
    for _ in served.server.cpus() {
        let receiver = Arc::clone(&receiver);
        drop(served.server.handle().spawn(async move { receiver.lock().unwrap().recv() }));
    }
    let error = served.clients.block_on(async {
        let cancel = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            token.cancel_query(NoTls).await.unwrap();
            std::future::pending::<()>().await;
        };
        let asked = async {
            tokio::select! {
                answer = client.simple_query("select 7") => answer.unwrap_err(),
                () = cancel => unreachable!(),
            }
        };
        tokio::time::timeout(Duration::from_secs(10), asked).await.expect("cancelling is not delayed")
    });
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error}");
    let other = served.connect();
    // The threads go on.
    drop(sender);
    assert_eq!(served.ask(&other, "select 8").unwrap(), ["8"]);
    served.goes_on();
}

#[test]
fn a_panic_is_an_error_of_the_query() {
    let runtime = Runtime::new().unwrap();
    let work = async { if true { panic!("number {}", 5) } else { Ok(()) } };
    let error = runtime.block_on(on(runtime.handle(), work)).unwrap_err().to_string();
    assert!(error.contains("has panicked: number 5"), "{error}");
}

#[test]
fn a_query_can_be_cancelled() {
    let Some(served) = Served::start() else { return };
    let client = served.connect();
    served.cancels(&client, LONG);
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
    // With the client from before, one too many.
    if crowd.len() >= CONNECTIONS_MAX {
        let last = crowd.last_mut().unwrap();
        last.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut told = Vec::new();
        let _ = last.read_to_end(&mut told);
        assert!(String::from_utf8_lossy(&told).contains("53300"), "{told:?}");
    }
    assert_eq!(served.ask(&client, "select 5").unwrap(), ["5"], "while the crowd is there");
    drop(crowd);
    // The listener, the client from before, and a few that are just ending.
    let connections = served.listener.runtime.as_ref().unwrap().metrics();
    until("closing the crowd", || connections.num_alive_tasks() < 10);
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
