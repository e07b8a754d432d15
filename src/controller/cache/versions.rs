//! Which version of each object we hold, and which objects a re-list has shown to be gone.
//!
//! Objects come in by three ways: the watch, re-lists after an interruption, and the answers to our own
//! writes. The newest version wins, whichever way it came: also over an answer that was read before the object was deleted, and
//! that comes after the watch has told so.
//!
//! Within one history of etcd versions only rise. A list, or the answer to a write, that was asked for when an object was known at
//! some version shows that version or a later one; what shows an older one belongs to another history: etcd was restored from a
//! backup. Then nothing that is held may be trusted: neither objects, nor deletions, nor the ledger, and whatever is older than what
//! we hold would be no news for ever. So that is [noted](AllVersions::went_back), and the process ends: the next one reads all anew.
//! To mend this in place would take more than these versions, since a watch that runs does not begin anew for it: one from a version
//! that the new history has not reached is no error to the API server, it only stays silent until then. Where each list stays away
//! for that reason heartbeats are missed, and the answer to what is written about that shows it.

use std::collections::{BTreeMap, VecDeque};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::AllVersions;

/// Most deletions of a kind that are remembered: many more than there are while one call is out.
const DELETIONS: usize = 1024;

/// Versions of the objects of one kind, by key.
#[derive(Debug, Default)]
pub struct Versions {
    known: BTreeMap<String, u64>,
    /// Keys seen since a re-list began, ours written meanwhile included, each with its newest version.
    listing: Option<BTreeMap<String, u64>>,
    /// At which version objects were deleted.
    deleted: BTreeMap<String, u64>,
    /// The same in the order in which it was told.
    deletions: VecDeque<(String, u64)>,
    /// The first object that was older than it can be: which one, and how.
    went_back: Option<String>,
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
            let newest = seen.entry(key.to_owned()).or_default();
            *newest = version.max(*newest);
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
        self.listing = Some(BTreeMap::new());
    }

    /// A re-list is complete: the keys that it did not show. An object that we wrote while it ran may be
    /// missing in it and still be there, so it stays. Those that are gone are remembered like any deletion: a read of before
    /// that may still be answered. At which version they went nobody has told; they were there at the one that is known.
    ///
    /// An object may be known at a version that a page is older than, since we wrote it meanwhile: then that version was seen
    /// meanwhile, too. One that was only seen older than it was known before is of [another history](AllVersions::went_back). So
    /// is, wrongly, one that was deleted while no watch told so, and that a read of long before showed while the list ran: it would
    /// stay for ever, as if it were there, so it is well that all is read anew.
    pub fn finish(&mut self) -> Vec<String> {
        self.synced = true;
        let Some(seen) = self.listing.take() else { return Vec::new() };
        let gone: Vec<String> = self.known.keys().filter(|key| !seen.contains_key(*key)).cloned().collect();
        for key in &gone {
            let version = self.known.remove(key).unwrap_or_default();
            self.note_deletion(key, version);
        }
        let older = self.known.iter().find_map(|(key, known)| {
            let shown = *seen.get(key)?;
            (shown < *known).then(|| (key.clone(), *known, shown))
        });
        if let Some((key, known, shown)) = older {
            self.note_answer(&key, known, shown);
        }
        gone
    }

    /// The newest version at which an object was there, or went, as far as is known; 0 where nothing is known of it. To be asked
    /// for before a call is sent, for [`Self::note_answer`].
    pub fn latest(&self, key: &str) -> u64 {
        self.known.get(key).max(self.deleted.get(key)).copied().unwrap_or_default()
    }

    /// Notes at which version an object was in the answer to a call that was sent when its latest version was `before`.
    pub fn note_answer(&mut self, key: &str, before: u64, answered: u64) {
        let is_older = answered != 0 && answered < before;
        if is_older && self.went_back.is_none() {
            self.went_back = Some(format!("{key}: expected version {before} or a later one, found {answered}"));
        }
    }

    /// Whether a first list is complete.
    pub const fn is_synced(&self) -> bool {
        self.synced
    }
}

impl AllVersions {
    /// The first kind of which an object was older than it can be, and how: the API server tells of another history than the one
    /// that is held.
    pub fn went_back(&self) -> Option<(&'static str, &str)> {
        self.all().into_iter().find_map(|(kind, versions)| Some((kind, versions.went_back.as_deref()?)))
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
    fn a_read_from_before_a_re_list_does_not_bring_back_what_that_did_not_show() {
        let mut versions = Versions::default();
        versions.is_news("a", 20);
        versions.begin();
        versions.is_news("b", 24);
        assert_eq!(versions.finish(), ["a"]);
        assert!(!versions.is_news("a", 20), "read before, answered after");
        assert!(versions.is_news("a", 25), "another one of that name");
    }

    #[test]
    fn so_many_that_a_re_list_did_not_show_are_remembered_and_no_more() {
        let mut versions = Versions::default();
        for number in 1..=2 * DELETIONS as u64 {
            versions.is_news(&number.to_string(), number);
        }
        versions.begin();
        assert_eq!(versions.finish().len(), 2 * DELETIONS);
        assert_eq!((versions.deleted.len(), versions.deletions.len()), (DELETIONS, DELETIONS));
    }

    #[test]
    fn a_re_list_that_shows_an_object_older_than_it_was_is_of_another_history() {
        let all = |nodes: Versions| AllVersions { nodes, ..AllVersions::default() };
        let listed = |before: u64, meanwhile: &[u64]| {
            let mut versions = Versions::default();
            versions.begin();
            versions.is_news("a", before);
            versions.is_news("b", 5);
            versions.finish();
            versions.begin();
            versions.is_news("b", 5);
            for version in meanwhile {
                versions.is_news("a", *version);
            }
            versions.finish();
            all(versions)
        };
        // The same, a newer one, a page that is older than our own write meanwhile, and a read of long before.
        let fine: [&[u64]; 5] = [&[90], &[91], &[95, 91], &[80, 90], &[]];
        for meanwhile in fine {
            assert_eq!(listed(90, meanwhile).went_back(), None, "{meanwhile:?}");
        }
        // A version that is no number says nothing.
        assert_eq!(listed(0, &[80]).went_back(), None);
        assert_eq!(listed(90, &[0]).went_back(), None);
        let restored = listed(90, &[80]);
        assert_eq!(restored.went_back(), Some(("nodes", "a: expected version 90 or a later one, found 80")));
        // Our own write meanwhile is of that history, too.
        assert!(listed(90, &[80, 81]).went_back().is_some());
    }

    #[test]
    fn an_answer_that_is_older_than_what_was_known_before_it_was_asked_for_is_of_another_history() {
        let mut versions = Versions::default();
        assert_eq!(versions.latest("a"), 0);
        versions.is_news("a", 20);
        let before = versions.latest("a");
        // The watch is faster than the answer.
        versions.is_news("a", 22);
        for answered in [20, 21, 30, 0] {
            versions.note_answer("a", before, answered);
        }
        assert_eq!(versions.went_back, None);
        versions.is_gone("a", 40);
        assert_eq!(versions.latest("a"), 40, "one that is made anew is newer");
        versions.note_answer("a", versions.latest("a"), 39);
        assert!(versions.went_back.is_some());
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
