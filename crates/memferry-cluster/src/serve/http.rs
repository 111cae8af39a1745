//! Metrics and health on a port of their own, by HTTP without TLS: for Prometheus and for an orchestrator.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use super::connections::Connections;
use super::shared::Shared;

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 64;

/// How long one may last.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Answers until the process ends or the task is aborted.
pub(super) async fn run(listener: TcpListener, shared: Arc<Shared>) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .layer(map_response(closing))
        .with_state(Arc::clone(&shared));
    // A connection has one request, so that all its bytes must come in time.
    let connections = Connections::new(listener, CONNECTIONS_MAX, usize::MAX, TIME_MAX, shared.log.clone());
    axum::serve(connections, routes).await
}

/// Ends the connection after an answer.
async fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The metrics in the format of Prometheus.
async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let text = shared.metrics.text(shared.gauges(), &shared.tiers);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

/// Whether the process works. It need not be restarted while this is answered.
async fn health() -> &'static str {
    "ok\n"
}

/// Whether new clients should come.
async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, &'static str) {
    match *shared.stopping.borrow() {
        false => (StatusCode::OK, "ready\n"),
        true => (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n"),
    }
}
