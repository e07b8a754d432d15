//! Walks several maps with the same keys side by side. A decision goes through the fleet name by name, and a new search of each
//! map for each name would be most of its cost.

use std::cmp::Ordering;
use std::fmt;
use std::iter::Peekable;

/// One of the maps, in the order of its keys.
pub struct SortedCursor<I: Iterator>(Peekable<I>);

impl<I: Iterator> fmt::Debug for SortedCursor<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SortedCursor")
    }
}

impl<'k, V, I: Iterator<Item = (&'k String, V)>> SortedCursor<I> {
    /// Walks these entries, which are in the order of their keys.
    pub fn new(all: impl IntoIterator<IntoIter = I>) -> Self {
        Self(all.into_iter().peekable())
    }

    /// The entry with this key. Keys are requested in their order, each at most once: an earlier entry is not found any more.
    pub fn at(&mut self, key: &str) -> Option<V> {
        loop {
            match self.0.peek()?.0.as_str().cmp(key) {
                Ordering::Less => drop(self.0.next()),
                Ordering::Equal => return self.0.next().map(|(_, value)| value),
                Ordering::Greater => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_finds_what_a_search_finds(
            map in prop::collection::btree_map("[a-c]{0,3}", 0_u8..9, 0..20),
            asked in prop::collection::btree_set("[a-c]{0,3}", 0..20),
        ) {
            let (map, asked): (BTreeMap<String, u8>, BTreeSet<String>) = (map, asked);
            let mut cursor = SortedCursor::new(&map);
            for key in &asked {
                prop_assert_eq!(cursor.at(key), map.get(key));
            }
        }
    }

    #[test]
    fn what_is_found_can_be_changed() {
        let mut map = BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let mut cursor = SortedCursor::new(&mut map);
        for value in ["a", "aa", "b"].into_iter().filter_map(|key| cursor.at(key)) {
            *value += 1;
        }
        assert_eq!(map.into_values().collect::<Vec<_>>(), [2, 3]);
    }
}
