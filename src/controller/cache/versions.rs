//! Which version of each object we hold, and which objects a re-list has shown to be gone.
//!
//! Objects come in by three ways: the watch, re-lists after an interruption, and the answers to our own
//! writes. The newest version wins, whichever way it came: also over an answer that was read before the object was deleted, and
//! that comes after the watch has told so.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Most deletions of a kind that are remembered: many more than there are while one call is out.
const DELETIONS: usize = 1024;

/// Versions of the objects of one kind, by key.
#[derive(Debug, Default)]
pub struct Versions {
    known: BTreeMap<String, u64>,
    /// Keys seen since a re-list began, ours written meanwhile included.
    listing: Option<BTreeSet<String>>,
    /// At which version objects were deleted.
    deleted: BTreeMap<String, u64>,
    /// The same in the order in which it was told.
    deletions: VecDeque<(String, u64)>,
    synced: bool,
}

/// The version as a number: they only rise. 0 for one that is not a number, which is then always taken.
pub fn version_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

impl Versions {
    /// Notes an object; whether it is news.
    pub fn is_news(&mut self, key: &str, version: u64) -> bool {
        // One that was made anew under the same name is newer.
        if version != 0 && self.deleted.get(key).is_some_and(|deleted| version <= *deleted) {
            return false;
        }
        if let Some(seen) = self.listing.as_mut() {
            seen.insert(key.to_owned());
        }
        match self.known.get_mut(key) {
            Some(known) if version != 0 && version <= *known => false,
            Some(known) => {
                *known = version;
                true
            }
            None => {
                self.known.insert(key.to_owned(), version);
                true
            }
        }
    }

    /// Notes a deletion; whether the object we hold is the one that was deleted.
    pub fn is_gone(&mut self, key: &str, version: u64) -> bool {
        match self.known.get(key) {
            // Re-created since: the deletion is old news.
            Some(known) if version != 0 && *known > version => false,
            _ => {
                if let Some(seen) = self.listing.as_mut() {
                    seen.remove(key);
                }
                self.note_deletion(key, version);
                self.known.remove(key).is_some()
            }
        }
    }

    fn note_deletion(&mut self, key: &str, version: u64) {
        if self.deleted.get(key).is_some_and(|deleted| version <= *deleted) {
            return;
        }
        self.deleted.insert(key.to_owned(), version);
        self.deletions.push_back((key.to_owned(), version));
        if self.deletions.len() > DELETIONS
            && let Some((oldest, version)) = self.deletions.pop_front()
            && self.deleted.get(&oldest) == Some(&version)
        {
            self.deleted.remove(&oldest);
        }
    }

    /// A re-list begins.
    pub fn begin(&mut self) {
        self.listing = Some(BTreeSet::new());
    }

    /// A re-list is complete: the keys that it did not show. An object that we wrote while it ran may be
    /// missing in it and still be there, so it stays.
    pub fn finish(&mut self) -> Vec<String> {
        self.synced = true;
        let Some(seen) = self.listing.take() else { return Vec::new() };
        let gone: Vec<String> = self.known.keys().filter(|key| !seen.contains(*key)).cloned().collect();
        for key in &gone {
            self.known.remove(key);
        }
        gone
    }

    /// Whether a first list is complete.
    pub const fn is_synced(&self) -> bool {
        self.synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_wins_by_number_not_by_text() {
        let mut versions = Versions::default();
        assert!(versions.is_news("a", 9));
        assert!(versions.is_news("a", 10));
        assert!(!versions.is_news("a", 10), "our own write, coming back through the watch");
        assert!(!versions.is_news("a", 9), "an older one, late");
    }

    #[test]
    fn a_re_list_removes_what_is_gone_but_not_what_we_wrote_meanwhile() {
        let mut versions = Versions::default();
        versions.begin();
        versions.is_news("old", 1);
        versions.is_news("stays", 2);
        assert!(versions.finish().is_empty());
        versions.begin();
        versions.is_news("stays", 2);
        versions.is_news("written-meanwhile", 50);
        assert_eq!(versions.finish(), ["old"]);
        assert!(!versions.is_news("written-meanwhile", 50));
    }

    #[test]
    fn a_late_deletion_does_not_remove_a_successor() {
        let mut versions = Versions::default();
        versions.is_news("a", 20);
        assert!(!versions.is_gone("a", 15));
        assert!(versions.is_gone("a", 21));
        assert!(!versions.is_gone("a", 22), "already gone");
    }

    #[test]
    fn a_read_from_before_a_deletion_does_not_bring_the_object_back_and_a_successor_is_news() {
        let mut versions = Versions::default();
        versions.is_news("a", 20);
        assert!(versions.is_gone("a", 25));
        assert!(!versions.is_news("a", 20) && !versions.is_news("a", 24), "read before, answered after");
        versions.begin();
        assert!(versions.finish().is_empty(), "it is not known again");
        assert!(versions.is_news("a", 26), "another one of that name");
        assert!(!versions.is_gone("a", 25), "the same deletion, told again");
        assert!(!versions.is_news("a", 26));
    }

    #[test]
    fn so_many_deletions_are_remembered_and_no_more() {
        let mut versions = Versions::default();
        for number in 0..=DELETIONS as u64 {
            versions.is_gone(&number.to_string(), 100 + number);
            versions.is_gone(&number.to_string(), 100 + number);
        }
        assert_eq!((versions.deleted.len(), versions.deletions.len()), (DELETIONS, DELETIONS));
        assert!(versions.is_news("0", 50) && !versions.is_news("1", 50));
    }
}
