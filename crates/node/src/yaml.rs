//! YAML that others have written, read on threads with small stacks.

use serde::de::DeserializeOwned;

use super::parse_error::ParseError;

/// Levels that may be nested. Real files have fewer than ten. A level takes 5 KiB of the stack in the shipped program, so
/// that 256 KiB, which a collector's thread has, are at an end before the 64 levels that the reader itself allows.
const DEEPEST: usize = 16;
/// Most values in a file.
const MOST: usize = 5_000;
/// Most names for values that are used again, and most uses of them: a short file may say a very long one by them.
const REPEATED: usize = 64;

/// Reads one document of a node.
///
/// # Errors
/// It is no YAML of this form, or is larger than any real file.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, ParseError> {
    read_ours(text).map_err(|error| ParseError::from(&error))
}

/// Reads one document of our own, in which nothing is secret: an error may quote a key or a value of it, no more.
pub(crate) fn read_ours<T: DeserializeOwned>(text: &str) -> Result<T, serde_saphyr::Error> {
    let budget = serde_saphyr::budget! {
        max_depth: DEEPEST,
        flow_nesting_limit: DEEPEST,
        max_nodes: MOST,
        max_events: 2 * MOST,
        max_anchors: REPEATED,
        max_aliases: REPEATED,
        max_recorded_anchor_events: MOST,
        max_recorded_anchor_bytes: 1 << 20
    };
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { budget: budget, with_snippet: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_read(text: &str) -> bool {
        read::<serde_json::Value>(text).is_ok()
    }

    #[test]
    fn what_is_nested_too_deeply_is_refused_before_the_stack_ends() {
        for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", "")] {
            let nested = |depth| format!("{}1{}", open.repeat(depth), close.repeat(depth));
            assert!(is_read(&nested(DEEPEST)) && !is_read(&nested(DEEPEST + 1)), "{open}");
            assert!(!is_read(&nested(100_000)), "{open}");
        }
    }

    #[test]
    fn a_short_file_that_says_a_long_one_is_refused() {
        assert!(is_read("a: &a {x: 1}\nb: *a\nc: *a\n"));
        let again = |level: usize| {
            let uses = vec![format!("*l{}", level - 1); 9].join(",");
            format!("l{level}: &l{level} [{uses}]\n")
        };
        let laughs = format!("a: &l0 [x]\n{}", (1..10).map(again).collect::<String>());
        assert!(!is_read(&laughs));
        assert!(!is_read(&"- 1\n".repeat(MOST + 1)));
    }
}
