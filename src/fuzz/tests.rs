//! The corpus through its targets, and what becomes of each seed when it is cut off, changed and doubled.

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use super::{TARGETS, run};

/// Places at which each seed is cut off.
const CUTS: usize = 24;
/// Changed copies of each seed, unless `FUZZ_CHANGED` says another number.
const CHANGED: usize = 48;

fn folder(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(below)
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The seeds of a target, by name.
fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = folder("corpus").join(target);
    names(&folder).into_iter().map(|name| (name.clone(), fs::read(folder.join(name)).unwrap())).collect()
}

/// As [`run`]; says which bytes it was.
fn tried(target: &str, from: &str, data: &[u8]) -> bool {
    catch_unwind(|| run(target, data)).unwrap_or_else(|_| {
        let shown: String = data.escape_ascii().map(char::from).take(4000).collect();
        panic!("{target}: {from}, as {} bytes: b\"{shown}\"", data.len())
    })
}

/// Numbers that are the same in every run (xorshift).
struct Numbers(u64);

impl Numbers {
    fn of(text: &str) -> Self {
        Self(
            text.bytes().fold(0x9e37_79b9_7f4a_7c15, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0100_01b3))
                | 1,
        )
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % end.max(1)
    }
}

/// Changes a few places, as hostile or broken writers would.
fn change(data: &mut Vec<u8>, other: &[u8], numbers: &mut Numbers) {
    const PIECES: [&[u8]; 16] = [
        b"\0",
        b"\xff",
        b"\xc3",
        b")",
        b"(",
        b"\n",
        b"-1",
        b"18446744073709551616",
        b"9223372036854775807",
        b"1e999",
        b"null",
        b"[",
        b"{",
        b"\"",
        b": ",
        b"\\ud800",
    ];
    for _ in 0..=numbers.below(3) {
        let at = numbers.below(data.len() + 1);
        let end = at + numbers.below((data.len() - at).min(32) + 1);
        match numbers.below(6) {
            0 if at < data.len() => data[at] ^= 1 << numbers.below(8),
            1 => drop(data.drain(at..end)),
            2 => drop(data.splice(at..end, PIECES[numbers.below(PIECES.len())].iter().copied())),
            3 => {
                let copy = data[at..end].to_vec();
                drop(data.splice(at..at, copy));
            }
            4 => {
                let from = numbers.below(other.len() + 1);
                let to = from + numbers.below((other.len() - from).min(64) + 1);
                drop(data.splice(at..at, other[from..to].iter().copied()));
            }
            _ => drop(data.splice(at..at, PIECES[numbers.below(PIECES.len())].iter().copied())),
        }
    }
}

#[test]
fn every_target_has_a_corpus_that_is_small() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert!(TARGETS.is_sorted_by_key(|(name, _)| *name) && targets.len() == TARGETS.len());
    assert_eq!(names(&folder("corpus")), targets);
    let sizes = targets.iter().flat_map(|target| seeds(target)).map(|(_, data)| data.len());
    assert!(sizes.sum::<usize>() < 300 << 10, "seeds are small; large ones are made here");
}

#[test]
fn every_seed_is_taken_or_refused_as_its_name_says() {
    let mut wrong = Vec::new();
    for (target, _) in TARGETS {
        let mut seen = BTreeSet::new();
        for (name, data) in seeds(target) {
            let (word, _) = name.split_once('-').unwrap_or_else(|| panic!("{target}/{name}: taken-… or refused-…?"));
            let expected = match word {
                "taken" => true,
                "refused" => false,
                _ => panic!("{target}/{name}: a seed is called taken-… or refused-…"),
            };
            let taken = catch_unwind(|| run(target, &data)).ok();
            if taken != Some(expected) {
                wrong.push(format!(
                    "{target}/{name}: {}",
                    taken.map_or("broke", |taken| if taken { "taken" } else { "refused" })
                ));
            }
            seen.insert(expected);
        }
        assert_eq!(seen.len(), 2, "{target}: seeds of both kinds are needed");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn nothing_breaks_when_seeds_are_cut_off_and_changed() {
    let copies = std::env::var("FUZZ_CHANGED").map_or(CHANGED, |number| number.parse().unwrap());
    for (target, _) in TARGETS {
        let seeds = seeds(target);
        for (name, data) in &seeds {
            for end in (0..data.len()).step_by(data.len().div_ceil(CUTS).max(1)) {
                tried(target, name, &data[..end]);
            }
            tried(target, name, &data.repeat(2));
            let mut numbers = Numbers::of(name);
            for _ in 0..copies {
                let mut changed = data.clone();
                let other = &seeds[numbers.below(seeds.len())].1;
                change(&mut changed, other, &mut numbers);
                tried(target, name, &changed);
            }
        }
    }
}

#[test]
fn nothing_breaks_under_what_is_huge_or_deep() {
    let (huge, large) = (1 << 20, 128 << 10);
    let made = [
        ("nothing", Vec::new()),
        ("one long line", vec![b'a'; huge]),
        ("zeros", vec![0; huge]),
        ("no text", vec![0xff; huge]),
        ("digits", vec![b'9'; large]),
        ("lines", vec![b'\n'; large]),
        ("a name without an end", vec![b'('; large]),
        ("deep lists", vec![b'['; large]),
        ("deep objects", b"{\"a\":".repeat(large / 5)),
        ("deep lists of YAML", b"- ".repeat(large / 2)),
        ("deep messages of protobuf", b"\x0a\xff\x7f".repeat(large / 3)),
        ("separators", b",;:=".repeat(large / 4)),
    ];
    for (target, _) in TARGETS {
        for (name, data) in &made {
            tried(target, name, data);
        }
    }
}
