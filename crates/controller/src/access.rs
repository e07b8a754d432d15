//! Decides who may read the metrics. The API server says whose a token is (`TokenReview`) and what that account may do
//! (`SubjectAccessReview`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::calls::{CallError, Calls, bounded};

/// The requested path, as a role names it under `nonResourceURLs`.
const PATH: &str = "/metrics";
const VERB: &str = "get";
/// How long an answer is valid. A removed right takes effect after this time at the latest.
const MAY: Duration = Duration::from_mins(1);
const MAY_NOT: Duration = Duration::from_secs(30);
/// Maximum number of tokens whose answers are kept.
const TOKENS: usize = 64;
/// Maximum number of tokens that are checked at a time.
const AT_A_TIME: usize = 2;
/// Pause before the next check after a token that is unknown, or that got no answer. So tokens of unknown clients cost the API
/// server, and the controller's share of it, at most a few calls a second.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a client may not read the metrics.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// There is no token, or the API server does not know it.
    #[error("expected a header `Authorization: Bearer TOKEN` with a token that the API server knows")]
    Nobody,
    /// The token's account has no right.
    #[error(
        "this account lacks the right to {VERB} the non-resource URL {PATH}: bind the ClusterRole nrh:metrics-reader to it"
    )]
    NoRight,
    /// The API server gives no answer.
    #[error("the API server does not say whether this token may read the metrics: the controller's log says why")]
    NoAnswer,
}

/// Asks the API server, and keeps its answers for a short while.
pub struct Access {
    calls: Calls,
    audience: Option<String>,
    known: Mutex<Known>,
    turns: Semaphore,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The fields contain tokens.
        f.write_str("Access")
    }
}

impl Access {
    /// Creates it without any answers. With an audience, tokens for any other audience are unknown.
    pub fn new(calls: Calls, audience: Option<String>) -> Arc<Self> {
        let (known, turns) = (Mutex::default(), Semaphore::new(AT_A_TIME));
        Arc::new(Self { calls, audience, known, turns })
    }

    /// Whether a request with these headers may read the metrics; if not, the error says why.
    pub async fn check(&self, headers: &HeaderMap) -> Result<(), Denied> {
        let token = bearer(headers).ok_or(Denied::Nobody)?;
        let may = match self.known(token) {
            Some(may) => may,
            None => self.ask(token).await?,
        };
        if may { Ok(()) } else { Err(Denied::NoRight) }
    }

    fn known(&self, token: &str) -> Option<bool> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(token, Instant::now())
    }

    async fn ask(&self, token: &str) -> Result<bool, Denied> {
        let _turn = self.turns.acquire().await.map_err(|_| Denied::NoAnswer)?;
        // Another request may have checked the token in the meantime.
        if let Some(may) = self.known(token) {
            return Ok(may);
        }
        let denied = match self.review(token).await {
            Ok(Some(may)) => {
                self.known.lock().unwrap_or_else(PoisonError::into_inner).put(token, may, Instant::now());
                return Ok(may);
            }
            Ok(None) => Denied::Nobody,
            Err(error) => {
                tracing::warn!(error = error.line(), "cannot ask who may read the metrics");
                Denied::NoAnswer
            }
        };
        tokio::time::sleep(PAUSE).await;
        Err(denied)
    }

    /// Whether the account of a token may read the metrics; `None` if the API server does not know the token.
    async fn review(&self, token: &str) -> Result<Option<bool>, CallError> {
        let audiences = self.audience.iter().cloned().collect();
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(audiences) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let api = self.calls.act::<TokenReview>();
        let review =
            bounded(|| "asking whose a token is".to_owned(), api.create(&PostParams::default(), &review)).await?;
        let status = review.status.unwrap_or_default();
        // An API server that does not support audiences names none. That does not confirm ours.
        let is_for_us = |own: &String| status.audiences.iter().flatten().any(|audience| audience == own);
        let is_known = status.authenticated == Some(true) && self.audience.as_ref().is_none_or(is_for_us);
        let Some(user) = status.user.filter(|_| is_known) else { return Ok(None) };
        self.may(user).await.map(Some)
    }

    async fn may(&self, user: UserInfo) -> Result<bool, CallError> {
        let attributes = NonResourceAttributes { path: Some(PATH.to_owned()), verb: Some(VERB.to_owned()) };
        let spec = SubjectAccessReviewSpec {
            extra: user.extra,
            groups: user.groups,
            uid: user.uid,
            user: user.username,
            non_resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let api = self.calls.act::<SubjectAccessReview>();
        let what = || "asking whether an account may read the metrics".to_owned();
        let review = bounded(what, api.create(&PostParams::default(), &review)).await?;
        Ok(review.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

/// The token of a request, if it has the form of one.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let fits = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.bytes().all(is_token);
    fits.then_some(token)
}

/// Answers by token, each until it expires. It is a hash map, because the timing of an ordered map would reveal how a token
/// begins.
#[derive(Default)]
struct Known(HashMap<String, (bool, Instant)>);

impl Known {
    fn get(&self, token: &str, now: Instant) -> Option<bool> {
        self.0.get(token).filter(|(_, until)| *until > now).map(|(may, _)| *may)
    }

    fn put(&mut self, token: &str, may: bool, now: Instant) {
        self.0.retain(|_, (_, until)| *until > now);
        if self.0.len() >= TOKENS
            && let Some(first) = self.0.iter().min_by_key(|(_, (_, until))| *until).map(|(token, _)| token.clone())
        {
            self.0.remove(&first);
        }
        self.0.insert(token.to_owned(), (may, now + if may { MAY } else { MAY_NOT }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Option<String> {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        bearer(&headers).map(ToOwned::to_owned)
    }

    #[test]
    fn only_what_has_the_form_of_a_token_is_asked_about() {
        assert_eq!(of("Bearer a.b-c_d=").as_deref(), Some("a.b-c_d="));
        assert_eq!(of("bearer abc").as_deref(), Some("abc"));
        for wrong in ["Bearer", "Bearer ", "Basic abc", "Bearer a b", "Bearer a\"b", "abc"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_few_and_short_lived() {
        let (mut known, now) = (Known::default(), Instant::now());
        known.put("no", false, now);
        for i in 0..TOKENS {
            known.put(&format!("t{i}"), true, now);
        }
        assert_eq!(known.0.len(), TOKENS);
        assert_eq!(known.get("no", now), None, "what ends first goes first");
        assert_eq!(known.get("t0", now + MAY / 2), Some(true));
        assert_eq!(known.get("t0", now + MAY), None);
        known.put("late", false, now + MAY);
        assert_eq!(known.0.len(), 1);
        assert_eq!(known.get("late", now + MAY + MAY_NOT), None);
    }
}
