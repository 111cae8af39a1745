//! Metrics and health on a port of their own, by HTTP without TLS: for Prometheus and for an orchestrator.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;

use super::shared::Shared;

/// Answers until the process ends or the task is aborted.
pub(super) async fn run(listener: TcpListener, shared: Arc<Shared>) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .with_state(shared);
    axum::serve(listener, routes).await
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
