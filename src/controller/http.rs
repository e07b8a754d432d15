//! `/livez`, `/readyz` and `/metrics`.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::cache::Cache;
use super::metrics::Metrics;

/// What is served.
#[derive(Clone, Debug)]
pub struct Served {
    /// Ready = every kind was listed once. A replica that does not lead is ready too: it could.
    pub cache: Arc<Cache>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// The routes.
pub fn router(served: Served) -> Router {
    Router::new()
        // Alive = the one thread turns. It says nothing about the API server: a restart would not mend that.
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(served)
}

async fn ready(State(served): State<Served>) -> Response {
    let missing = served.cache.lock().unsynced();
    if missing.is_empty() {
        (StatusCode::OK, "ok").into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("not listed yet: {}", missing.join(", "))).into_response()
    }
}

async fn metrics(State(served): State<Served>) -> Response {
    match served.metrics.text() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
