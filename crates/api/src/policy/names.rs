//! A name that is none of the known ones, in a sentence.

use nrh_core::text::bounded;
use strsim::levenshtein;

/// Longest name that is repeated, in bytes.
const SHOWN: usize = 64;

/// What was found, the nearest known name if one is near, and all known names.
pub fn unknown_name(found: &str, known: &[&str]) -> String {
    let found = bounded(found, SHOWN);
    let near = known.iter().map(|name| (levenshtein(&found.to_lowercase(), &name.to_lowercase()), name)).min();
    let near = near.filter(|(edits, _)| edits * 3 <= found.chars().count());
    let hint = near.map_or_else(String::new, |(_, name)| format!("did you mean {name}? "));
    format!("found {found:?}, {hint}expected one of {}", known.join(", "))
}

/// The same for an error of serde about a value that is none of an enumeration: "unknown variant `A`, expected `B` or `C`". Another
/// error stays as it is.
pub fn in_plain_words(error: &str) -> String {
    let parts =
        error.split_once("unknown variant `").and_then(|(at, rest)| Some((at, rest.rsplit_once("`, expected ")?)));
    let Some((at, (found, known))) = parts else { return error.to_owned() };
    let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    format!("{at}{}", unknown_name(found, &known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_and_no_other() {
        let known = ["*", "Pods", "HungContainer", "DiskFull"];
        for (found, said) in [
            ("HungContaner", "found \"HungContaner\", did you mean HungContainer? expected one of *, Pods, "),
            ("hungcontainer", "did you mean HungContainer?"),
            ("Pod", "did you mean Pods?"),
            ("Disk", "found \"Disk\", expected one of *, "),
            ("x", "found \"x\", expected"),
            ("", "found \"\", expected"),
        ] {
            let sentence = unknown_name(found, &known);
            assert!(sentence.contains(said), "{found}: {sentence}");
        }
    }

    #[test]
    fn an_error_of_the_reader_is_told_in_the_same_words() {
        assert_eq!(
            in_plain_words("spec.mode: unknown variant `Enforc`, expected `DryRun` or `Enforce`"),
            "spec.mode: found \"Enforc\", did you mean Enforce? expected one of DryRun, Enforce"
        );
        assert_eq!(
            in_plain_words("a: unknown variant `x`, expected `y`, expected one of `A`, `B`"),
            "a: found \"x`, expected `y\", expected one of A, B"
        );
        assert_eq!(in_plain_words("spec: invalid type"), "spec: invalid type");
    }
}
