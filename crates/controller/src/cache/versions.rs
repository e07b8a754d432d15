//! Which `resourceVersion` of each object the cache holds, and which objects a re-list has shown to be gone.
//!
//! Objects arrive from the watch, from lists, and in responses to the controller's own reads and writes. The newest version
//! wins, whichever way it came. A deletion wins over a response that was read before it and arrives after.
//!
//! Within one history of etcd versions only rise. A list, and the response to a write, show each object at the version known
//! when the request was sent, or later. An older version proves another history: etcd was restored from a backup. Then no
//! object, deletion or ledger in the cache is valid, and the cache would ignore the older versions. So the cache
//! [records](AllVersions::went_back) that, the process ends, and the next process lists everything.
//!
//! A repair in place would not suffice: a running watch is not restarted, and the API server accepts a watch from a version
//! that the new history has not reached, and sends nothing until then. If nothing else lists again, heartbeats stop, and the
//! response to the status write that says so shows the other history.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Largest number of remembered deletions of a kind: many more than happen during one call.
const DELETIONS: usize = 1024;

/// Versions of the objects of one kind, by key.
#[derive(Debug, Default)]
pub struct Versions {
    known: BTreeMap<String, u64>,
    /// Keys seen since the re-list began, also in responses to reads and writes, each with its newest version.
    listing: Option<BTreeMap<String, u64>>,
    /// The version at which each object was deleted.
    deleted: BTreeMap<String, u64>,
    /// `deleted` in the order of the reports, to forget the oldest.
    deletions: VecDeque<(String, u64)>,
    /// The first object of another history, with both versions.
    went_back: Option<String>,
    /// Whether a list was complete since the last [`Self::expect_list`].
    synced: bool,
}

/// `resourceVersion` as a number; 0 if it is none, and such an object always replaces the known one.
pub fn version_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// When this field manager last changed the object, by the API server's clock, to the second.
pub fn written_at(meta: &ObjectMeta, manager: &str) -> Option<Timestamp> {
    let entries = meta.managed_fields.iter().flatten().filter(|entry| entry.manager.as_deref() == Some(manager));
    entries.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max()
}

impl Versions {
    /// Records an object. Returns whether it is newer than the known one.
    pub fn record(&mut self, key: &str, version: u64) -> bool {
        // A re-created object has a newer version.
        if version != 0 && self.deleted.get(key).is_some_and(|deleted| version <= *deleted) {
            return false;
        }
        if let Some(seen) = self.listing.as_mut() {
            let newest = seen.entry(key.to_owned()).or_default();
            *newest = version.max(*newest);
        }
        if version != 0 && self.known.get(key).is_some_and(|known| version <= *known) {
            return false;
        }
        self.known.insert(key.to_owned(), version);
        true
    }

    /// Records a deletion. Returns whether it removes the object that the cache holds.
    pub fn record_deletion(&mut self, key: &str, version: u64) -> bool {
        // Re-created since: the deletion is outdated.
        if version != 0 && self.known.get(key).is_some_and(|known| *known > version) {
            return false;
        }
        if let Some(seen) = self.listing.as_mut() {
            seen.remove(key);
        }
        self.note_deletion(key, version);
        self.known.remove(key).is_some()
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

    /// Discards what was listed, also by a list under way: only a list that begins later counts.
    pub fn expect_list(&mut self) {
        (self.synced, self.listing) = (false, None);
    }

    /// A re-list begins.
    pub fn begin(&mut self) {
        self.listing = Some(BTreeMap::new());
    }

    /// A re-list is complete. Returns the keys that it did not show. An object that the controller wrote during the re-list may
    /// be missing in it and still exist, so it stays. The gone ones are remembered like any deletion, since an earlier read may
    /// still be answered. Nothing has reported the version of their deletion; the last known version stands for it.
    ///
    /// An object may be known at a newer version than a page shows, since the controller wrote it meanwhile: then that version
    /// was seen meanwhile, too. An object that was only seen at an older version than known before is of [another
    /// history](AllVersions::went_back). One false alarm is possible: the watch missed a deletion, and a much earlier read
    /// showed the object during the list. A restart helps then too: that object would stay in the cache for ever.
    pub fn finish(&mut self) -> Vec<String> {
        let Some(seen) = self.listing.take() else { return Vec::new() };
        self.synced = true;
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

    /// The newest known version at which an object existed or was deleted; 0 where nothing is known of it. The caller asks for
    /// it before it sends a call, for [`Self::note_answer`].
    pub fn latest(&self, key: &str) -> u64 {
        self.known.get(key).max(self.deleted.get(key)).copied().unwrap_or_default()
    }

    /// Records the version of an object in the answer to a call; `before` is its latest version when the call was sent.
    pub fn note_answer(&mut self, key: &str, before: u64, answered: u64) {
        let is_older = answered != 0 && answered < before;
        if is_older && self.went_back.is_none() {
            self.went_back = Some(format!("{key}: expected version {before} or a later one, found {answered}"));
        }
    }
}

/// Versions by kind. All kinds are there from the start: each must be listed before anything is decided.
#[derive(Debug)]
pub struct AllVersions(BTreeMap<&'static str, Versions>);

impl AllVersions {
    /// Versions of these kinds, before their first lists.
    pub(super) fn new<const KINDS: usize>(kinds: [&'static str; KINDS]) -> Self {
        Self(kinds.map(|kind| (kind, Versions::default())).into())
    }

    /// Of one kind.
    pub(super) fn of(&mut self, kind: &'static str) -> &mut Versions {
        self.0.entry(kind).or_default()
    }

    /// [Expects a list](Versions::expect_list) of each kind.
    pub(super) fn expect_lists(&mut self) {
        self.0.values_mut().for_each(Versions::expect_list);
    }

    /// Kinds whose list is not complete yet.
    pub(super) fn unsynced(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().filter(|(_, versions)| !versions.synced).map(|(kind, _)| *kind)
    }

    /// The first kind with an object of another history than the cache, and its versions.
    pub fn went_back(&self) -> Option<(&'static str, &str)> {
        self.0.iter().find_map(|(kind, versions)| Some((*kind, versions.went_back.as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_wins_by_number_not_by_text() {
        let mut versions = Versions::default();
        assert!(versions.record("a", 9));
        assert!(versions.record("a", 10));
        assert!(!versions.record("a", 10), "our own write, coming back through the watch");
        assert!(!versions.record("a", 9), "an older one, late");
    }

    #[test]
    fn a_re_list_removes_what_is_gone_but_not_what_we_wrote_meanwhile() {
        let mut versions = Versions::default();
        versions.begin();
        versions.record("old", 1);
        versions.record("stays", 2);
        assert!(versions.finish().is_empty());
        versions.begin();
        versions.record("stays", 2);
        versions.record("written-meanwhile", 50);
        assert_eq!(versions.finish(), ["old"]);
        assert!(!versions.record("written-meanwhile", 50));
    }

    #[test]
    fn a_read_from_before_a_re_list_does_not_bring_back_what_that_did_not_show() {
        let mut versions = Versions::default();
        versions.record("a", 20);
        versions.begin();
        versions.record("b", 24);
        assert_eq!(versions.finish(), ["a"]);
        assert!(!versions.record("a", 20), "read before, answered after");
        assert!(versions.record("a", 25), "another one of that name");
    }

    #[test]
    fn so_many_that_a_re_list_did_not_show_are_remembered_and_no_more() {
        let mut versions = Versions::default();
        for number in 1..=2 * DELETIONS as u64 {
            versions.record(&number.to_string(), number);
        }
        versions.begin();
        assert_eq!(versions.finish().len(), 2 * DELETIONS);
        assert_eq!((versions.deleted.len(), versions.deletions.len()), (DELETIONS, DELETIONS));
    }

    #[test]
    fn a_re_list_that_shows_an_object_older_than_it_was_is_of_another_history() {
        let all = |nodes: Versions| AllVersions([("Node", nodes)].into());
        let listed = |before: u64, meanwhile: &[u64]| {
            let mut versions = Versions::default();
            versions.begin();
            versions.record("a", before);
            versions.record("b", 5);
            versions.finish();
            versions.begin();
            versions.record("b", 5);
            for version in meanwhile {
                versions.record("a", *version);
            }
            versions.finish();
            all(versions)
        };
        // The same version, a newer one, a page that is older than the controller's own write meanwhile, and a much earlier
        // read.
        let fine: [&[u64]; 5] = [&[90], &[91], &[95, 91], &[80, 90], &[]];
        for meanwhile in fine {
            assert_eq!(listed(90, meanwhile).went_back(), None, "{meanwhile:?}");
        }
        // A version that is not a number proves nothing.
        assert_eq!(listed(0, &[80]).went_back(), None);
        assert_eq!(listed(90, &[0]).went_back(), None);
        let restored = listed(90, &[80]);
        assert_eq!(restored.went_back(), Some(("Node", "a: expected version 90 or a later one, found 80")));
        // The controller's own write meanwhile is of that history, too.
        assert!(listed(90, &[80, 81]).went_back().is_some());
    }

    #[test]
    fn an_answer_that_is_older_than_what_was_known_before_it_was_asked_for_is_of_another_history() {
        let mut versions = Versions::default();
        assert_eq!(versions.latest("a"), 0);
        versions.record("a", 20);
        let before = versions.latest("a");
        // The watch is faster than the answer.
        versions.record("a", 22);
        for answered in [20, 21, 30, 0] {
            versions.note_answer("a", before, answered);
        }
        assert_eq!(versions.went_back, None);
        versions.record_deletion("a", 40);
        assert_eq!(versions.latest("a"), 40, "one that is made anew is newer");
        versions.note_answer("a", versions.latest("a"), 39);
        assert!(versions.went_back.is_some());
    }

    #[test]
    fn a_list_that_began_before_it_was_expected_does_not_count() {
        let mut all = AllVersions([("Node", Versions::default())].into());
        all.of("Node").begin();
        all.of("Node").record("a", 1);
        all.expect_lists();
        assert!(all.of("Node").finish().is_empty());
        assert_eq!(all.unsynced().collect::<Vec<_>>(), ["Node"]);
        all.of("Node").begin();
        assert_eq!(all.of("Node").finish(), ["a"]);
        assert_eq!(all.unsynced().next(), None);
    }

    #[test]
    fn a_late_deletion_does_not_remove_a_successor() {
        let mut versions = Versions::default();
        versions.record("a", 20);
        assert!(!versions.record_deletion("a", 15));
        assert!(versions.record_deletion("a", 21));
        assert!(!versions.record_deletion("a", 22), "already gone");
    }

    #[test]
    fn a_read_from_before_a_deletion_does_not_bring_the_object_back_and_a_successor_is_news() {
        let mut versions = Versions::default();
        versions.record("a", 20);
        assert!(versions.record_deletion("a", 25));
        assert!(!versions.record("a", 20) && !versions.record("a", 24), "read before, answered after");
        versions.begin();
        assert!(versions.finish().is_empty(), "it is not known again");
        assert!(versions.record("a", 26), "another one of that name");
        assert!(!versions.record_deletion("a", 25), "the same deletion, told again");
        assert!(!versions.record("a", 26));
    }

    #[test]
    fn so_many_deletions_are_remembered_and_no_more() {
        let mut versions = Versions::default();
        for number in 0..=DELETIONS as u64 {
            versions.record_deletion(&number.to_string(), 100 + number);
            versions.record_deletion(&number.to_string(), 100 + number);
        }
        assert_eq!((versions.deleted.len(), versions.deletions.len()), (DELETIONS, DELETIONS));
        assert!(versions.record("0", 50) && !versions.record("1", 50));
    }
}
