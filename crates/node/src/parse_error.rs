//! A parse error that does not quote its input. Only root can read a node's files, but many people can read reports, conditions,
//! Events and logs.

use std::fmt::{self, Display, Formatter};

use serde_saphyr::Error as Yaml;

/// What was expected, and where something else stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParseError {
    /// Of our own types, never of the text.
    expected: String,
    line: u64,
    column: u64,
}

impl Display for ParseError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.expected)?;
        // Some readers do not know where they are.
        if self.line > 0 { write!(f, " at line {}, column {}", self.line, self.column) } else { Ok(()) }
    }
}

impl std::error::Error for ParseError {}

impl From<&Yaml> for ParseError {
    fn from(error: &Yaml) -> Self {
        let error = error.without_snippet();
        let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
        let error = if let Yaml::AliasError { error, .. } = error { error.without_snippet() } else { error };
        let expected = match error {
            Yaml::SerdeInvalidType { expected, .. } | Yaml::SerdeInvalidValue { expected, .. } => expected.clone(),
            Yaml::Unexpected { expected, .. } => (*expected).to_owned(),
            Yaml::InvalidScalar { ty, .. } => (*ty).to_owned(),
            Yaml::SerdeMissingField { field, .. } => format!("a field {field}"),
            Yaml::SerdeUnknownField { .. } => "a field that is known".to_owned(),
            Yaml::SerdeUnknownVariant { .. } => "a value that is known".to_owned(),
            Yaml::DuplicateMappingKey { .. } => "each key once".to_owned(),
            Yaml::Eof { .. } => "more before the end".to_owned(),
            Yaml::Budget { .. } => "fewer or less deeply nested values".to_owned(),
            _ => "YAML of another form".to_owned(),
        };
        Self { expected, line, column }
    }
}

impl From<&serde_json::Error> for ParseError {
    fn from(error: &serde_json::Error) -> Self {
        let expected = match error.classify() {
            serde_json::error::Category::Eof => "more before the end",
            serde_json::error::Category::Data => "JSON of another form",
            _ => "JSON",
        };
        let place = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        Self { expected: expected.to_owned(), line: place(error.line()), column: place(error.column()) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::yaml;

    const SECRET: &str = "hunter2";

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Form {
        _port: u16,
        _kind: Option<Kind>,
        _gates: Option<BTreeMap<String, bool>>,
    }

    #[derive(Debug, Deserialize)]
    enum Kind {
        Plain,
    }

    #[test]
    fn no_error_quotes_the_text() {
        for wrong in [
            "{_port: hunter2}",
            "_port: 1\n_kind: hunter2",
            "_port: 1\nhunter2: 3",
            "_port: 1\n_gates: {hunter2: hunter2}",
            "_port: 1\n_gates: {hunter2: true, hunter2: true}",
            "_port: [hunter2]",
            "hunter2",
            "- hunter2",
            "_port: *hunter2",
            "_port: !hunter2 x",
            "_port: !!int hunter2",
            "_port: \"hunter2",
            "%hunter2 hunter2\n---\n1",
            "hunter2: &hunter2 {a: *hunter2}",
            "x: &hunter2 hunter2\n_port: *hunter2",
            "{{hunter2",
            "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n",
            "_port: 1\n---\nhunter2",
            "${hunter2}: !include hunter2",
            "hunter2 = true\n[hunter2]\nhunter2 = 'x'",
        ] {
            let error = yaml::read::<Form>(wrong).unwrap_err();
            assert!(!format!("{error} {error:?}").contains(SECRET), "{wrong}: {error:?}");
        }
        for wrong in [
            r#"{"_port": "hunter2"}"#,
            r#"{"_port": 1, "_kind": "hunter2"}"#,
            r#"{"hunter2": 1}"#,
            "hunter2",
            "\"hunter2",
        ] {
            let error = ParseError::from(&serde_json::from_str::<Form>(wrong).unwrap_err());
            assert!(!format!("{error} {error:?}").contains(SECRET), "{wrong}: {error:?}");
        }
    }

    #[test]
    fn what_was_expected_is_said_and_where() {
        let refusal = |text: &str| yaml::read::<Form>(text).unwrap_err().to_string();
        assert_eq!(refusal("_kind: Plain\n_port: 99999"), "expected u16 at line 2, column 8");
        assert!(refusal("_kind: Plain").contains("a field _port"), "{}", refusal("_kind: Plain"));
        let json = serde_json::from_str::<Form>("{\n\"_port\": true}").unwrap_err();
        assert_eq!(ParseError::from(&json).to_string(), "expected JSON of another form at line 2, column 13");
    }
}
