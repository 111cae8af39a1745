//! Workers that encrypt and ask for a token, as processes: who reaches them, and what others are told.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use memferry_bench_query::{tpch_file, tpch_files};
use memferry_cluster::measure::free_addresses;
use tempfile::TempDir;

const TOKEN: &str = "0123456789abcdef-of-queries";

/// An authority, and certificates that it has signed.
struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        Authority(rcgen::CertifiedIssuer::self_signed(parameters, key).unwrap())
    }

    /// Files of a certificate and its key, for a host.
    fn sign(&self, directory: &Path, host: &str) -> [PathBuf; 2] {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.0).unwrap();
        let files = [directory.join(format!("{host}.pem")), directory.join(format!("{host}.key"))];
        fs::write(&files[0], certificate.pem()).unwrap();
        fs::write(&files[1], key.serialize_pem()).unwrap();
        files
    }

    fn file(&self, directory: &Path, name: &str) -> PathBuf {
        let file = directory.join(name);
        fs::write(&file, self.0.pem()).unwrap();
        file
    }
}

fn secret(directory: &Path, name: &str, text: &str) -> PathBuf {
    let file = directory.join(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

/// Two workers over orders and customer.
struct Workers {
    directory: TempDir,
    addresses: Vec<String>,
    processes: Vec<Child>,
}

impl Workers {
    fn start(options: impl Fn(&Path) -> Vec<String>) -> Workers {
        let files = tpch_files(0.01, Path::new(env!("CARGO_TARGET_TMPDIR")), &()).unwrap();
        let directory = TempDir::new().unwrap();
        let addresses = free_addresses(2).unwrap();
        let mut text = format!("version = 1\nreplicas = 1\nworkers = {addresses:?}\n");
        for (table, key) in [("orders", "o_orderkey"), ("customer", "c_custkey")] {
            let location = tpch_file(&files, table);
            text += &format!("[[tables]]\nname = {table:?}\nlocation = {location:?}\nkey = {key:?}\n");
        }
        let description = directory.path().join("cluster.toml");
        fs::write(&description, text).unwrap();
        let options = options(directory.path());
        let worker = |address: &String| {
            Command::new(env!("CARGO_BIN_EXE_memferry-cluster"))
                .arg("worker")
                .arg(&description)
                .args(["--name", address, "--threads", "2"])
                .args(&options)
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let processes = addresses.iter().map(worker).collect();
        Workers { directory, addresses, processes }
    }

    fn sql(&self, options: &[&str], token: Option<&str>, sql: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memferry-cluster"));
        command.args(["sql", "--cluster", &self.addresses[0], "--format", "csv", sql]).args(options);
        command.env_remove("MEMFERRY_TOKEN").envs(token.map(|token| ("MEMFERRY_TOKEN", token)));
        command.output().unwrap()
    }

    /// Waits until the workers have loaded their tables.
    fn wait(&self, options: &[&str], token: Option<&str>) {
        let began = Instant::now();
        loop {
            // With a replica of each shard, it needs both.
            let output = self.sql(options, token, "select count(*) as n from orders");
            if output.status.success() && output.stdout == b"n\n15000\n" {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{}", stderr(&output));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn file(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A join by a column that shards neither table: workers send rows to each other.
const SHUFFLED: &str = "select count(*) as n from orders join customer on o_custkey = c_custkey + 0";

#[test]
fn tls_and_tokens_let_in_only_their_owners() {
    let authority = Authority::new();
    let workers = Workers::start(|directory| {
        let [certificate, key] = authority.sign(directory, "127.0.0.1");
        let ca = authority.file(directory, "ca.pem");
        let tokens = secret(directory, "tokens", &format!("queries:{TOKEN}\n"));
        let [certificate, key, ca, tokens] = [certificate, key, ca, tokens].map(|path| text(&path));
        let options =
            ["--tls-certificate", &certificate, "--tls-key", &key, "--tls-ca", &ca, "--tokens", &tokens];
        options.map(str::to_owned).to_vec()
    });
    let directory = workers.directory.path();
    let ca = workers.file("ca.pem");
    let tokens = workers.file("tokens");
    let wrong = text(&secret(directory, "wrong", "0123456789abcdef-of-nobody\n"));
    let other = text(&Authority::new().file(directory, "other.pem"));
    workers.wait(&["--tls-ca", &ca, "--token-file", &tokens], None);
    let right = |sql: &str| workers.sql(&["--tls-ca", &ca], Some(TOKEN), sql);
    let output = right(SHUFFLED);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "n\n15000\n", "{}", stderr(&output));
    for (options, token, part) in [
        (&["--tls-ca", &*ca, "--token-file", &wrong][..], None, "the token is wrong"),
        (&["--tls-ca", &ca], Some("nonsense"), "the token is wrong"),
        // The file comes before the variable.
        (&["--tls-ca", &ca, "--token-file", &wrong], Some(TOKEN), "the token is wrong"),
        (&["--tls-ca", &ca], None, "--token-file"),
        (&[], Some(TOKEN), "if it speaks TLS"),
        (&["--tls-ca", &other], Some(TOKEN), "--tls-ca must have"),
        (&["--tls-ca", &tokens], Some(TOKEN), "no certificate"),
        (&["--tls-ca", &ca], Some("a\nb"), "one line"),
        (&["--tls-ca", "/nowhere.pem"], Some(TOKEN), "cannot read /nowhere.pem"),
        (&["--token-file", &ca], None, "chmod 600"),
    ] {
        let began = Instant::now();
        let output = workers.sql(options, token, SHUFFLED);
        let error = stderr(&output);
        assert!(!output.status.success() && output.stdout.is_empty(), "{options:?}: {error}");
        assert!(error.contains(part), "{options:?}: {error}");
        assert!(!error.contains(TOKEN), "{error}");
        assert!(began.elapsed() < Duration::from_secs(10), "{options:?}: {:?}", began.elapsed());
    }
    // Nonsense on the port, and a handshake that does not go on.
    let mut silent = TcpStream::connect(&workers.addresses[0]).unwrap();
    silent.write_all(&[22, 3, 1]).unwrap();
    for nonsense in
        ["GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0"]
    {
        let mut stream = TcpStream::connect(&workers.addresses[0]).unwrap();
        stream.write_all(nonsense.as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = Vec::new();
        // The worker may close the connection at any time.
        let _ = stream.read_to_end(&mut answer);
        assert!(!String::from_utf8_lossy(&answer).contains("200"), "{answer:?}");
    }
    // The workers have gone on.
    let output = right("select count(*) as n from customer");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "n\n1500\n", "{}", stderr(&output));
}

/// A program that wants TLS is told that a worker has none.
#[test]
fn tls_with_a_plain_worker_is_explained() {
    let workers = Workers::start(|_| Vec::new());
    let ca = text(&Authority::new().file(workers.directory.path(), "ca.pem"));
    workers.wait(&[], None);
    let output = workers.sql(&["--tls-ca", &ca], None, "select 1");
    let error = stderr(&output);
    assert!(!output.status.success() && error.contains("it speaks plain text"), "{error}");
    // A token is not needed, and does no harm.
    workers.wait(&[], Some(TOKEN));
}

#[test]
fn options_of_workers_that_cannot_be_used() {
    let directory = TempDir::new().unwrap();
    let description = directory.path().join("cluster.toml");
    fs::write(&description, "version = 1\nworkers = [\"127.0.0.1:1\"]\ntables = []\n").unwrap();
    let authority = Authority::new();
    let [certificate, key] = authority.sign(directory.path(), "127.0.0.1").map(|path| text(&path));
    let ca = text(&authority.file(directory.path(), "ca.pem"));
    let short = text(&secret(directory.path(), "short", "0123\n"));
    let tls = |certificate: &str, key: &str| {
        let options = ["--tls-certificate", certificate, "--tls-key", key, "--tls-ca", &ca];
        options.map(str::to_owned).to_vec()
    };
    for (options, part) in [
        (vec!["--tls-certificate".to_owned(), certificate.clone()], "--tls-key"),
        (vec!["--tls-ca".to_owned(), ca.clone()], "--tls-certificate"),
        (vec!["--tokens".to_owned(), short], "shorter than 16"),
        (tls("/nowhere.pem", &key), "cannot read /nowhere.pem"),
        (tls(&certificate, &ca), "PEM"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_memferry-cluster"))
            .arg("worker")
            .arg(&description)
            .args(["--name", "127.0.0.1:1", "--listen", "127.0.0.1:0"])
            .args(&options)
            .output()
            .unwrap();
        let error = stderr(&output);
        assert!(!output.status.success() && error.contains(part), "{options:?}: {error}");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_memferry-cluster"))
        .arg("worker")
        .arg(&description)
        .args(["--name", "127.0.0.1:1", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("other machines reach 0.0.0.0:0"), "{}", stderr(&output));
}
