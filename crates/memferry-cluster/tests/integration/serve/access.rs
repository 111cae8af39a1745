//! Users, tokens and TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use arrow_flight::sql::{
    ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult, Any,
    CommandPreparedStatementQuery, ProstMessageExt,
};
use arrow_flight::{Action, CancelFlightInfoRequest, FlightDescriptor};
use memferry_cluster::serve::{Access, TlsFiles};
use prost::Message;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::{Certificate, ClientTlsConfig};
use tonic::{Code, Request};

use super::fixture::{Client, Fixture, query, to_status};

pub(super) fn secret(directory: &Path, name: &str, text: &str) -> PathBuf {
    let file = directory.join(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    file
}

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn access(directory: &TempDir) -> Access {
    let tokens = secret(directory.path(), "tokens", &format!("# comment\nreport:{TOKEN}\n"));
    let users = secret(directory.path(), "users", "ann:secret\nbob:other\n");
    Access::open().with_tokens(&tokens).unwrap().with_users(&users).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_right_tokens_and_passwords_are_served() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::with(|options| options.access = access(&directory)).await;
    let mut client = fixture.client().await;
    let refused = async |client: &mut Client| {
        assert_eq!(query(client, "select 1 as n").await.unwrap_err().code(), Code::Unauthenticated);
        assert_eq!(to_status(client.get_catalogs().await.unwrap_err()).code(), Code::Unauthenticated);
        let error = to_status(client.execute_update("drop table t".to_owned(), None).await.unwrap_err());
        assert_eq!(error.code(), Code::Unauthenticated);
        assert_eq!(
            to_status(client.prepare("select 1".to_owned(), None).await.unwrap_err()).code(),
            Code::Unauthenticated
        );
    };
    refused(&mut client).await;
    client.set_token("wrong".to_owned());
    refused(&mut client).await;
    client.set_token(TOKEN.to_owned());
    query(&mut client, "select 1 as n").await.unwrap();
    assert_eq!(fixture.metric("memferry_serve_unauthenticated_total"), 8.0);

    let mut user = fixture.client().await;
    assert!(user.handshake("ann", "wrong").await.is_err());
    assert!(user.handshake("nobody", "secret").await.is_err());
    user.handshake("ann", "secret").await.unwrap();
    assert!(user.token().is_some_and(|token| token.len() == 64), "{:?}", user.token());
    query(&mut user, "select 1 as n").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_belong_to_their_user() {
    let directory = TempDir::new().unwrap();
    let fixture = Fixture::with(|options| options.access = access(&directory)).await;
    let (mut ann, mut bob) = (fixture.client().await, fixture.client().await);
    ann.handshake("ann", "secret").await.unwrap();
    bob.handshake("bob", "other").await.unwrap();
    let info = ann.execute("select 1 as n".to_owned(), None).await.unwrap();
    assert_eq!(super::fixture::fetch(&mut bob, &info).await.unwrap_err().code(), Code::NotFound);
    // Another user can neither fetch the query nor cancel it.
    let cancel = CancelFlightInfoRequest::new(info.clone()).encode_to_vec();
    let error = to_status(bob.do_action(Action::new("CancelFlightInfo", cancel)).await.unwrap_err());
    assert_eq!(error.code(), Code::NotFound, "{error}");
    super::fixture::fetch(&mut ann, &info).await.unwrap();
    // Nor can another user execute a prepared statement.
    let create =
        ActionCreatePreparedStatementRequest { query: "select 1 as n".to_owned(), transaction_id: None };
    let create = Action::new("CreatePreparedStatement", create.as_any().encode_to_vec());
    let created = ann.do_action(create).await.unwrap().message().await.unwrap().unwrap();
    let created: ActionCreatePreparedStatementResult =
        Any::decode(&*created.body).unwrap().unpack().unwrap().unwrap();
    let command =
        CommandPreparedStatementQuery { prepared_statement_handle: created.prepared_statement_handle };
    for (client, may_use) in [(&mut bob, false), (&mut ann, true)] {
        let mut request = Request::new(FlightDescriptor::new_cmd(command.as_any().encode_to_vec()));
        let token = format!("Bearer {}", client.token().unwrap());
        request.metadata_mut().insert("authorization", token.parse().unwrap());
        let code = client.inner_mut().get_flight_info(request).await.err().map(|error| error.code());
        assert_eq!(code, (!may_use).then_some(Code::NotFound));
    }
}

#[test]
fn files_of_secrets_are_checked() {
    let directory = TempDir::new().unwrap();
    let open = secret(directory.path(), "open", TOKEN);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    for (file, says) in [
        (open, "chmod 600"),
        (secret(directory.path(), "short", "0123"), "shorter than 16"),
        (secret(directory.path(), "empty", "# nothing\n"), "has no line"),
        (directory.path().join("missing"), "cannot read"),
    ] {
        let error = Access::open().with_tokens(&file).unwrap_err();
        assert!(format!("{error:#}").contains(says), "{error:#}");
    }
    let users = secret(directory.path(), "users", "ann\n");
    let error = Access::open().with_users(&users).unwrap_err();
    assert!(error.to_string().contains("NAME:PASSWORD"), "{error}");
}

/// A certificate of `localhost` and its key.
pub(super) fn tls() -> (String, TlsFiles) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = made.cert.pem();
    let files = TlsFiles {
        certificate: certificate.clone().into_bytes(),
        key: made.signing_key.serialize_pem().into_bytes(),
    };
    (certificate, files)
}

async fn tls_client(fixture: &Fixture, certificate: &str) -> Result<Client, tonic::transport::Error> {
    let tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(certificate)).domain_name("localhost");
    let channel = fixture.endpoint("https").tls_config(tls)?.connect().await?;
    Ok(Client::new(channel))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_spoken_and_plain_text_is_refused() {
    let (certificate, files) = tls();
    let fixture = Fixture::with(|options| options.tls = Some(files)).await;
    let mut client = tls_client(&fixture, &certificate).await.unwrap();
    query(&mut client, "select 1 as n").await.unwrap();
    // Another certificate.
    assert!(tls_client(&fixture, &tls().0).await.is_err());
    // Plain text: HTTP 2, HTTP 1 and nonsense.
    if let Ok(channel) = fixture.endpoint("http").connect().await {
        assert!(query(&mut Client::new(channel), "select 1 as n").await.is_err());
    }
    for text in ["GET / HTTP/1.1\r\n\r\n", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", ""] {
        let mut stream = tokio::net::TcpStream::connect(fixture.server.address()).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        // The server may close the connection at any time.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!String::from_utf8_lossy(&answer).contains("200"), "{answer:?}");
    }
    // A client that starts a handshake and says nothing more keeps nobody from being served.
    let _silent = tokio::net::TcpStream::connect(fixture.server.address()).await.unwrap();
    query(&mut client, "select 1 as n").await.unwrap();
    query(&mut tls_client(&fixture, &certificate).await.unwrap(), "select 1 as n").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_that_cannot_be_used_are_refused() {
    let fixture = Fixture::start().await;
    let options = memferry_cluster::serve::ServerOptions {
        listen: "127.0.0.1:0".parse().unwrap(),
        http: None,
        tls: Some(TlsFiles { certificate: b"nonsense".to_vec(), key: b"nonsense".to_vec() }),
        access: Access::open(),
        limits: memferry_cluster::serve::Limits::default(),
        updates: false,
        log: memferry_cluster::serve::Log::none(),
    };
    let error = fixture.another(options).await.unwrap_err();
    assert!(error.to_string().contains("both must be PEM files"), "{error}");
}
