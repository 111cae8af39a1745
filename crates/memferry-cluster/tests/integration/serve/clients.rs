//! Clients that are not ours: ADBC from Python, and JDBC from Java.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use memferry_cluster::serve::Access;
use memferry_testing::{Needs, skip};
use tempfile::TempDir;

use super::access::{secret, tls};
use super::fixture::{Fixture, ROWS};

/// A directory of `cargo xtask setup`.
fn installed(name: &str) -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    caches.unwrap_or_default().join("memferry").join(name)
}

fn scripts() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "clients"].iter().collect()
}

/// A server with TLS and a user, and the file of its certificate.
async fn start(directory: &TempDir) -> (Fixture, PathBuf) {
    let (certificate, files) = tls();
    let users = secret(directory.path(), "users", "ann:secret\n");
    let file = secret(directory.path(), "certificate.pem", &certificate);
    let fixture = Fixture::with(|options| {
        options.tls = Some(files);
        options.access = Access::open().with_users(&users).unwrap();
    })
    .await;
    (fixture, file)
}

/// Runs a client to its end, and checks that it says so.
async fn run(mut command: Command, says: &str) {
    let output =
        tokio::task::spawn_blocking(move || command.stdin(Stdio::null()).output()).await.unwrap().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains(says), "{}: {text}", output.status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adbc_from_python() {
    let python = installed("python").join("bin/python");
    let import = Command::new(&python).args(["-c", "import adbc_driver_flightsql, pyarrow"]).output();
    if !import.is_ok_and(|output| output.status.success()) {
        return skip(Needs::Program("adbc_driver_flightsql"), "Python has no package adbc_driver_flightsql");
    }
    let directory = TempDir::new().unwrap();
    let (fixture, certificate) = start(&directory).await;
    let mut command = Command::new(python);
    command.arg(scripts().join("adbc_client.py"));
    command.arg(format!("grpc+tls://localhost:{}", fixture.server.address().port()));
    command.arg(certificate).args(["ann", "secret", &ROWS.to_string()]);
    run(command, "adbc: ok").await;
    fixture.idle().await;
    assert!(fixture.metric("memferry_serve_queries_total{outcome=\"done\"}") > 3.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jdbc_from_java() {
    let driver = installed("jdbc").join("flight-sql-jdbc-driver.jar");
    let has_java = Command::new("java").arg("-version").output().is_ok_and(|output| output.status.success());
    if !has_java || !driver.is_file() {
        return skip(
            Needs::Program("flight-sql-jdbc-driver"),
            format!("no java, or no {}", driver.display()),
        );
    }
    let directory = TempDir::new().unwrap();
    let (fixture, certificate) = start(&directory).await;
    let mut command = Command::new("java");
    // Arrow's memory needs it from Java 16 on.
    command.arg("--add-opens=java.base/java.nio=ALL-UNNAMED").arg("-cp").arg(driver);
    command.arg(scripts().join("JdbcClient.java"));
    let port = fixture.server.address().port();
    command.arg(format!(
        "jdbc:arrow-flight-sql://localhost:{port}/?useEncryption=true&tlsRootCerts={}",
        certificate.display()
    ));
    command.args(["ann", "secret", &ROWS.to_string()]);
    run(command, "jdbc: ok").await;
    fixture.idle().await;
    assert!(fixture.metric("memferry_serve_queries_total{outcome=\"done\"}") > 3.0);
}
