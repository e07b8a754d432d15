//! `/livez` and `/readyz` at one port, `/metrics` at another.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::access::{Access, Denied};
use super::cache::Cache;
use super::metrics::Metrics;

/// The data that is served.
#[derive(Clone, Debug)]
pub struct Served {
    /// Ready = every kind was listed, by the leader in its term. A replica that does not lead is ready too, because it could lead.
    pub cache: Arc<Cache>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// The routes for the kubelet's checks.
pub fn health(served: Served) -> Router {
    Router::new()
        // Alive = the only thread makes progress. It says nothing about the API server, because a restart would not fix that.
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(served)
}

/// The route for scrapers. Without `access` everybody may read it.
pub fn metrics(served: Served, access: Option<Arc<Access>>) -> Router {
    Router::new().route("/metrics", get(text)).with_state((served, access))
}

async fn ready(State(served): State<Served>) -> Response {
    let missing = served.cache.lock().unsynced();
    if missing.is_empty() {
        (StatusCode::OK, "ok").into_response()
    } else {
        let text = format!("nothing is decided before the lists of these kinds are complete: {}", missing.join(", "));
        (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
    }
}

async fn text(State((served, access)): State<(Served, Option<Arc<Access>>)>, headers: HeaderMap) -> Response {
    if let Some(access) = access
        && let Err(denied) = access.check(&headers).await
    {
        return refused(&denied);
    }
    match served.metrics.text() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

fn refused(denied: &Denied) -> Response {
    let text = denied.to_string();
    match denied {
        Denied::Nobody => (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], text).into_response(),
        Denied::NoRight => (StatusCode::FORBIDDEN, text).into_response(),
        Denied::NoAnswer => (StatusCode::SERVICE_UNAVAILABLE, text).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn checks_and_metrics_are_served_apart() {
        let served = Served { cache: Arc::new(Cache::default()), metrics: Arc::new(Metrics::default()) };
        let code = async |router: Router, path: &str| {
            let request = Request::get(path).body(Body::empty()).unwrap();
            router.oneshot(request).await.unwrap().status().as_u16()
        };
        let (checks, scraped) = (health(served.clone()), metrics(served, None));
        assert_eq!(code(checks.clone(), "/livez").await, 200);
        assert_eq!(code(checks.clone(), "/readyz").await, 503, "nothing was listed yet");
        assert_eq!(code(checks, "/metrics").await, 404);
        assert_eq!(code(scraped.clone(), "/metrics").await, 200);
        assert_eq!(code(scraped, "/livez").await, 404);
    }
}
