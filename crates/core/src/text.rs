//! Bounded text and short, stable names.

use std::borrow::Cow;

/// An enum whose text is the names of its variants, in objects, events and metrics.
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$of:meta])* $one:ident,)+ }) => {
        $(#[$about])*
        pub enum $name {
            $($(#[$of])* $one,)+
        }

        impl $name {
            /// All of them, in the order of the list.
            pub const ALL: [Self; [$(stringify!($one)),+].len()] = [$(Self::$one),+];

            /// The name.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$one => stringify!($one),)+
                }
            }
        }
    };
}

/// Whether a terminal or a reader's eye obeys a character instead of showing it: a control character, or one that breaks a line
/// or changes the order of letters (Unicode's bidirectional marks, embeddings, overrides and isolates).
pub fn is_obeyed(character: char) -> bool {
    let turns =
        matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || turns
}

/// A text that is safe to show: U+FFFD replaces what is obeyed. Line ends stay, because they are the layout of the caller.
pub fn shown(text: &str) -> Cow<'_, str> {
    let hides = |c: char| is_obeyed(c) && c != '\n';
    if text.contains(hides) { Cow::Owned(text.replace(hides, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Cuts `text` to at most `max` bytes on a character boundary. Obeyed characters, line ends included, become spaces.
///
/// Everything that comes from a node, a runtime or a process passes through here before it is shown: it is data, and may be
/// hostile.
pub fn bounded(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max));
    for character in text.chars() {
        let character = if is_obeyed(character) { ' ' } else { character };
        if out.len() + character.len_utf8() > max {
            break;
        }
        out.push(character);
    }
    out
}

/// Whether an object of ours, a namespace or an API group may have this name: a DNS subdomain (RFC 1123, at most 253 characters).
pub fn is_subdomain(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(is_plain) && !part.starts_with('-') && !part.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_part)
}

/// Whether `id` is the full id of a container or sandbox: 64 hexadecimal digits in every CRI runtime.
pub fn is_full_id(id: &str) -> bool {
    id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Sixteen hex digits that identify `text`: FNV-1a, stable across versions and machines.
pub fn short_hash(text: &str) -> String {
    format!("{:016x}", hash(text))
}

/// FNV-1a of `text`, stable across versions and machines.
pub fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A sort key for `text` that looks random and is always the same. Sorted by [`short_hash`], texts that differ only at their
/// beginning stay close to one order. The final mix of `SplitMix64` (Steele, Lea and Flood 2014) prevents that.
pub fn stable_shuffle_key(text: &str) -> u64 {
    let hash = hash(text);
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// A label value or part of an object name from a node name: the name itself where it fits into `max` bytes, otherwise its
/// beginning and a hash (node names may have 253 characters, label values 63).
pub fn short_name(name: &str, max: usize) -> String {
    if name.len() <= max {
        return name.to_owned();
    }
    let hash = short_hash(name);
    let keep = max.saturating_sub(hash.len() + 1);
    let head = bounded(name, keep);
    format!("{}-{hash}", head.trim_end_matches(['-', '.']))
}

/// Whether a name matches a pattern: both are equal, or the pattern ends with `*` and the name begins with the rest.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |stem| name.starts_with(stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_cuts_on_a_character_and_drops_control_characters() {
        assert_eq!(bounded("a\nb\u{1b}[31m", 20), "a b [31m");
        assert_eq!(bounded("ééé", 3), "é");
        assert_eq!(bounded("a\u{202e}b\u{2066}c\u{2028}d", 20), "a b c d");
    }

    #[test]
    fn what_may_be_shown_is_shown_as_it_is() {
        for text in ["", "node worker-1: Healthy\n  fault é → 日本 👩‍💻\n"] {
            assert_eq!(shown(text), text);
        }
        assert_eq!(
            shown("\u{1b}]52;c;x\u{7}\n\u{202e}a\r\u{9b}"),
            "\u{fffd}]52;c;x\u{fffd}\n\u{fffd}a\u{fffd}\u{fffd}"
        );
    }

    /// Every character of Unicode that has to do with the order of letters (`Bidi_Control`).
    const BIDI: [char; 12] = [
        '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}',
        '\u{2067}', '\u{2068}', '\u{2069}',
    ];

    proptest::proptest! {
        #[test]
        fn nothing_that_is_obeyed_gets_through(text in "(\\PC|\\pC|[\u{61c}\u{200e}\u{200f}\u{2028}-\u{202e}\u{2066}-\u{2069}])*", max in 0_usize..300) {
            let obeyed = |c: char| c.is_control() || BIDI.contains(&c) || matches!(c, '\u{2028}' | '\u{2029}');
            let (shown, bounded) = (shown(&text), bounded(&text, max));
            proptest::prop_assert!(!shown.contains(|c: char| obeyed(c) && c != '\n'), "{:?}", shown);
            proptest::prop_assert!(!bounded.contains(obeyed) && bounded.len() <= max, "{:?}", bounded);
            proptest::prop_assert_eq!(shown.chars().count(), text.chars().count());
        }
    }

    #[test]
    fn long_node_names_stay_distinct() {
        let (a, b) = (format!("{}-a", "n".repeat(200)), format!("{}-b", "n".repeat(200)));
        assert!(short_name(&a, 63).len() <= 63);
        assert_ne!(short_name(&a, 63), short_name(&b, 63));
        assert_eq!(short_name("worker-1", 63), "worker-1");
    }
}
