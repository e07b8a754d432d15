//! Whose a token is, and who may what.

use serde_json::{Value, json};

use super::{Call, FakeApi, Store};

/// A token that the server has given out.
pub struct Token {
    text: String,
    user: String,
    audience: String,
}

/// The audience of tokens that are for the server itself.
pub const API: &str = "https://kubernetes.default.svc";

impl FakeApi {
    /// Knows a token of an account, for one audience.
    pub fn give_token(&self, token: &str, user: &str, audience: &str) {
        let (text, user, audience) = (token.to_owned(), user.to_owned(), audience.to_owned());
        self.lock().tokens.push(Token { text, user, audience });
    }

    /// Lets an account read `/metrics`, or no longer.
    pub fn let_read_metrics(&self, user: &str, may: bool) {
        let readers = &mut self.lock().readers;
        readers.retain(|reader| reader != user);
        readers.extend(may.then(|| user.to_owned()));
    }
}

impl Store {
    /// The answer to a review; nothing where the call is none.
    pub(super) fn review(&self, call: &Call) -> Option<Value> {
        let spec = &call.body["spec"];
        let status = match call.target.plural.as_str() {
            "selfsubjectaccessreviews" => {
                let asked = &spec["resourceAttributes"];
                let resource = match asked["subresource"].as_str() {
                    Some(sub) => format!("{}/{sub}", asked["resource"].as_str().unwrap_or_default()),
                    None => asked["resource"].as_str().unwrap_or_default().to_owned(),
                };
                let is_asked = |(verb, denied): &(String, String)| asked["verb"] == json!(verb) && resource == *denied;
                json!({"allowed": !self.denied.iter().any(is_asked)})
            }
            "subjectaccessreviews" => {
                let is_metrics = spec["nonResourceAttributes"] == json!({"path": "/metrics", "verb": "get"});
                let is_reader = self.readers.iter().any(|reader| spec["user"] == json!(reader));
                json!({"allowed": is_metrics && is_reader && spec["groups"] == json!(["scrapers"])})
            }
            "tokenreviews" => {
                let wanted = spec["audiences"].as_array().filter(|wanted| !wanted.is_empty());
                let wanted = wanted.cloned().unwrap_or_else(|| vec![json!(API)]);
                let fits = |known: &&Token| spec["token"] == known.text && wanted.contains(&json!(known.audience));
                self.tokens.iter().find(fits).map_or_else(
                    || json!({"authenticated": false, "error": "invalid bearer token"}),
                    |known| {
                        let user = json!({"username": known.user, "uid": "u", "groups": ["scrapers"]});
                        json!({"authenticated": true, "audiences": [known.audience], "user": user})
                    },
                )
            }
            _ => return None,
        };
        let mut answer = call.body.clone();
        answer["status"] = status;
        Some(answer)
    }
}
