//! Versions of kubelets and container runtimes as Nodes report them, and version ranges in policies.
//!
//! These versions follow no single standard. What vendors and distributions append to the three numbers (`-eks-ae9a62a`,
//! `-gke.100`, `+k3s1`, `~ds1`, `-0ubuntu1~22.04.1`) does not change the version: by the rules of semantic versioning most of
//! them would be pre-releases, which no range contains. A suffix that names a pre-release (`-alpha`, `-beta`, `-rc`, `-dev`)
//! sorts before its release. A text that cannot be parsed is no version, and in no range.

use std::cmp::Ordering;
use std::fmt;

/// Longest version or range that is parsed, in bytes.
pub const MAX_LENGTH: usize = 64;
/// Maximum number of digits of one number in a range.
const DIGITS: usize = 6;

/// A version with three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    numbers: [u64; 3],
    /// False: it comes before the release with these numbers.
    is_release: bool,
}

/// The words that begin the suffix of a pre-release.
const BEFORE: [&str; 5] = ["alpha", "beta", "rc", "pre", "dev"];

impl Version {
    /// Parses a version, such as `v1.36.1`, `1.7.24~ds1` or `v1.29.3-eks-ae9a62a`. `None`: it has no three numbers, or is
    /// `0.0.0`, as in builds that do not know their own version.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_LENGTH {
            return None;
        }
        let mut rest = text.strip_prefix('v').unwrap_or(text);
        let mut numbers = [0; 3];
        for (place, number) in numbers.iter_mut().enumerate() {
            if place > 0 {
                rest = rest.strip_prefix('.')?;
            }
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            *number = rest.get(..digits)?.parse().ok()?;
            rest = rest.get(digits..)?;
        }
        let suffix = rest.trim_start_matches(['-', '~', '+', '.']).to_ascii_lowercase();
        let is_release = !BEFORE.iter().any(|word| suffix.starts_with(word));
        let is_joined = rest.is_empty() || rest.starts_with(['-', '~', '+', '.']) || !is_release;
        (is_joined && numbers != [0; 3]).then_some(Self { numbers, is_release })
    }

    /// The first version with these numbers, or right before it.
    const fn at(numbers: [u64; 3], is_release: bool) -> Self {
        Self { numbers, is_release }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    AtLeast,
    Above,
    AtMost,
    Below,
    Same,
}

/// The notation of each. An operator that is a prefix of another one comes after it.
const OPERATORS: [(&str, Operator); 5] = [
    (">=", Operator::AtLeast),
    ("<=", Operator::AtMost),
    (">", Operator::Above),
    ("<", Operator::Below),
    ("=", Operator::Same),
];

/// One comparison with one to three numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    operator: Operator,
    numbers: Vec<u64>,
}

impl Bound {
    fn parse(text: &str) -> Option<Self> {
        let (operator, rest) =
            OPERATORS.iter().find_map(|(sign, operator)| Some((*operator, text.strip_prefix(sign)?)))?;
        let rest = rest.strip_prefix('v').unwrap_or(rest);
        let number = |text: &str| {
            let is_plain = (1..=DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_plain)
        };
        let numbers: Vec<u64> = rest.split('.').map(number).collect::<Option<_>>()?;
        (numbers.len() <= 3).then_some(Self { operator, numbers })
    }

    fn padded(&self) -> [u64; 3] {
        [0_usize, 1, 2].map(|place| self.numbers.get(place).copied().unwrap_or_default())
    }

    /// Compares only the given numbers: 1.7.24 equals 1.7.
    fn compare(&self, version: Version) -> Ordering {
        version.numbers.iter().take(self.numbers.len()).cmp(&self.numbers)
    }

    fn holds(&self, version: Version) -> bool {
        let at_least = version >= Version::at(self.padded(), true);
        match self.operator {
            Operator::AtLeast => at_least,
            Operator::Below => !at_least,
            Operator::Above => self.compare(version).is_gt(),
            Operator::AtMost => self.compare(version).is_le(),
            Operator::Same => at_least && self.compare(version).is_le(),
        }
    }

    /// Where the versions that it contains can begin: at the named release, or right after all versions that equal it.
    fn begin(&self) -> [Version; 2] {
        let mut next = self.numbers.clone();
        if let Some(last) = next.last_mut() {
            *last += 1;
        }
        let behind = Self { operator: self.operator, numbers: next }.padded();
        [Version::at(self.padded(), true), Version::at(behind, false)]
    }
}

const EXPECTED: &str = "a range such as `>=1.7.0 <1.7.24`";

/// What to write instead of a comparison that cannot be parsed.
fn hint(part: &str) -> String {
    let part = super::text::bounded(part, MAX_LENGTH);
    let is_sign = |text: &str| OPERATORS.iter().any(|(sign, _)| *sign == text);
    let rest = part.trim_start_matches(['>', '<', '=', '~', '^', '!']);
    if is_sign(&part) {
        return format!(": no space between {part} and the version");
    }
    if part.contains(',') || part.contains("||") {
        return ": comparisons stand side by side with a space between them, and other ranges in an item of their own"
            .to_owned();
    }
    if part.starts_with(['~', '^', '!']) {
        return format!(": there is no {}, write `=1.7` for all of 1.7, or `>=1.7.3 <2`", part.trim_end_matches(rest));
    }
    let bare = rest.strip_prefix('v').unwrap_or(rest);
    let numbers = bare.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let numbers = bare.strip_suffix(numbers).unwrap_or(bare).trim_end_matches('.');
    if rest == part && Bound::parse(&format!("={numbers}")).is_some() {
        return format!(": a version needs a comparison, write `={numbers}`, or `>={numbers}` for later ones, too");
    }
    format!(
        ": {part:?} is no comparison by >=, >, <=, < or = with one to three numbers, without what vendors or pre-releases add"
    )
}

/// A range of versions: all comparisons hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range(Vec<Bound>);

impl fmt::Display for Range {
    /// The notation that [`Range::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, bound) in self.0.iter().enumerate() {
            let sign = OPERATORS.iter().find(|(_, operator)| *operator == bound.operator).map_or("", |(sign, _)| sign);
            let numbers: Vec<String> = bound.numbers.iter().map(u64::to_string).collect();
            let space = if i > 0 { " " } else { "" };
            write!(f, "{space}{sign}{}", numbers.join("."))?;
        }
        Ok(())
    }
}

impl Range {
    /// Parses a range, such as `>=1.7.0 <1.7.24`: comparisons by `>=`, `>`, `<=`, `<` and `=` with one to three numbers,
    /// separated by spaces. Missing numbers may have any value: `=1.7` and `<=1.7` contain 1.7.24, `>1.7` does not.
    ///
    /// # Errors
    /// The text is no range, or no version is in it. The sentence says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let shown = super::text::bounded(text, MAX_LENGTH);
        if text.len() > MAX_LENGTH {
            return Err(format!(
                "expected at most {MAX_LENGTH} characters, found {} that begin with {shown:?}",
                text.len()
            ));
        }
        let mut bounds = Vec::new();
        for part in text.split_ascii_whitespace() {
            let bound = Bound::parse(part);
            bounds.push(bound.ok_or_else(|| format!("expected {EXPECTED}, found {shown:?}{}", hint(part)))?);
        }
        if bounds.is_empty() {
            return Err(format!("expected {EXPECTED}, found {shown:?}"));
        }
        let range = Self(bounds);
        if range.is_empty() {
            return Err(format!(
                "expected a range with a version in it, found {shown:?}: all its comparisons have to hold at once"
            ));
        }
        Ok(range)
    }

    /// Whether the version is within it.
    pub fn holds(&self, version: Version) -> bool {
        self.0.iter().all(|bound| bound.holds(version))
    }

    /// Whether no version is in it. The versions in it begin at the lowest version, or where one of its bounds does.
    fn is_empty(&self) -> bool {
        let mut begins = self.0.iter().flat_map(Bound::begin).chain([Version::at([0, 0, 1], false)]);
        !begins.any(|version| self.holds(version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn what_vendors_put_behind_is_the_same_version() {
        let plain = version("1.29.3");
        for text in [
            "v1.29.3",
            "1.29.3-eks-ae9a62a",
            "v1.29.3-gke.1282000",
            "v1.29.3+k3s1",
            "1.29.3-k3s1.32",
            "1.29.3~ds1-1+b1",
            "1.29.3-0ubuntu1~22.04.1",
            "1.29.3-37-gabcdef",
            "1.29.3.m2",
            "1.29.3+azure",
        ] {
            assert_eq!(version(text), plain, "{text}");
        }
        for text in ["1.29.3-rc.1", "v1.29.3-alpha.1.123+abc", "1.29.3~rc1", "1.29.3rc1", "1.29.3-beta", "1.29.3-dev"] {
            assert!(version(text) < plain && version(text) > version("1.29.2"), "{text}");
        }
        for text in
            ["", "v", "1", "1.7", "1.7.", "1.7.x", "Unknown", "v0.0.0-master+$Format", "1.7.3abc", "-1.2.3", "1,2,3"]
        {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert_eq!(Version::parse(&format!("1.2.{}", "3".repeat(70))), None);
        assert_eq!(Version::parse("1.2.99999999999999999999"), None);
    }

    #[test]
    fn a_range_holds_what_all_its_comparisons_hold() {
        for (range, within, without) in [
            (">=1.7.0 <1.7.24", &["1.7.0", "1.7.23", "1.7.23-0ubuntu1", "1.7.24-rc.1"][..], &["1.6.99", "1.7.24"][..]),
            ("=1.7", &["1.7.0", "1.7.99"], &["1.8.0", "1.6.0", "1.7.0-rc.1"]),
            ("=1.7.3", &["1.7.3", "v1.7.3+k3s1"], &["1.7.4", "1.7.3-rc.0"]),
            (">1.7", &["1.8.0", "2.0.0"], &["1.7.99"]),
            (">1.7.3", &["1.7.4"], &["1.7.3", "1.7.3+x"]),
            ("<=1.7", &["1.7.99", "0.9.0"], &["1.8.0"]),
            ("<2", &["1.99.99", "2.0.0-rc.1"], &["2.0.0"]),
            (">=v2", &["2.0.0", "10.0.0"], &["1.99.99", "2.0.0-beta.0"]),
            ("  >=1.29   <1.31 ", &["1.30.14"], &["1.31.0"]),
        ] {
            let read = Range::parse(range).unwrap();
            for one in within {
                assert!(read.holds(version(one)), "{range} {one}");
            }
            for one in without {
                assert!(!read.holds(version(one)), "{range} {one}");
            }
        }
    }

    #[test]
    fn what_is_no_range_or_holds_nothing_is_refused() {
        for text in
            ["", " ", "1.7", ">=", "~1.7", "^1.7", ">=1.7.x", ">=1.7.0,<1.8", ">=1.2.3.4", ">=1.-2", "!=1.7", "> 1.7"]
        {
            assert!(Range::parse(text).unwrap_err().contains("such as"), "{text}");
        }
        assert!(
            Range::parse(&format!(">=1{}", " ".repeat(70))).unwrap_err().contains("at most 64 characters, found 73")
        );
        for (text, hint) in [
            ("1.7", "write `=1.7`"),
            ("1.29+", "write `=1.29`, or `>=1.29` for later ones, too"),
            ("v1.29.x", "write `=1.29`, or"),
            ("1.7.2.4", "\"1.7.2.4\" is no comparison"),
            ("> 1.7", "no space between > and the version"),
            (">=1.7,<1.8", "a space between them"),
            ("~1.7", "there is no ~"),
            ("!=1.7", "there is no !="),
            (">=1.7 <1.8.0-rc.1", "\"<1.8.0-rc.1\" is no comparison"),
        ] {
            assert!(Range::parse(text).unwrap_err().contains(hint), "{text}: {:?}", Range::parse(text));
        }
        for text in [">=2 <2", ">1.7 <=1.7", "=1.7 >=1.8", ">=1.7.24 <1.7.0", ">2 <2.1.0 >=2.1"] {
            assert!(Range::parse(text).unwrap_err().contains("with a version in it"), "{text}");
        }
        // Between them lies at least what comes before the release.
        assert!(Range::parse(">1.7 <1.8.0").is_ok() && Range::parse(">=1.7 <=1.7").is_ok());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_stumble_and_what_is_taken_holds_something(text in "[ v0-9.<>=-]{0,20}") {
            let _ = Version::parse(&text);
            if let Ok(range) = Range::parse(&text) {
                prop_assert!(!range.is_empty());
                prop_assert_eq!(Range::parse(&range.to_string()), Ok(range), "it is shown as it is read");
            }
        }

        #[test]
        fn what_is_advised_is_a_range(text in "[<>=~^!v]{0,2}[0-9]{1,2}[.x+-]{0,2}[0-9]{0,2}[.x+-]{0,2}") {
            let error = Range::parse(&text).err().unwrap_or_default();
            for advised in error.split("write ").skip(1).flat_map(|rest| rest.split('`').skip(1).step_by(2)) {
                prop_assert!(Range::parse(advised).is_ok(), "{text}: {error}");
            }
        }

        #[test]
        fn a_version_is_on_one_side_of_every_bound(numbers in prop::array::uniform3(0_u64..4), bound in prop::collection::vec(0_u64..4, 1..4)) {
            let version = Version::at(numbers, true);
            let with = |operator| Bound { operator, numbers: bound.clone() }.holds(version);
            prop_assert_ne!(with(Operator::AtLeast), with(Operator::Below));
            prop_assert_ne!(with(Operator::AtMost), with(Operator::Above));
            prop_assert_eq!(with(Operator::Same), with(Operator::AtLeast) && with(Operator::AtMost));
        }
    }
}
