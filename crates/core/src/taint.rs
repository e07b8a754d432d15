//! Our taint on a node. Pods that do not tolerate it stay away, pods that run there stay.
//!
//! A Node has at most one taint of a key and an effect. Ours has our key, the effect in the owner annotation and no value. Any
//! other taint with our key is not ours, and stays.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Key of the taint. An annotation on the Node says whether a taint with this key is ours.
pub const TAINT_KEY: &str = "runtimehealth.io/unhealthy";

crate::named! {
    /// What the taint does to pods that do not tolerate it. Never `NoExecute`: that ends pods past their disruption budgets, which a
    /// drain asks.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
    // Else the definition shows this text in place of that of each optional field.
    #[schemars(description = "")]
    pub enum TaintEffect {
        /// No new one comes to the node, a DaemonSet's neither: unlike a cordon, hardly anything tolerates this taint.
        NoSchedule,
        /// New ones come only where there is no room elsewhere. The default: a DaemonSet's pods come all the same.
        #[default]
        PreferNoSchedule,
    }
}

impl TaintEffect {
    /// The effect with this word, if we use it.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.as_str() == word)
    }

    /// Whether it keeps pods away that the other lets in.
    pub const fn is_stricter_than(self, other: Self) -> bool {
        matches!((self, other), (Self::NoSchedule, Self::PreferNoSchedule))
    }

    /// Whether a DaemonSet's pod that ends on such a node gets no successor.
    pub const fn repels_daemon_sets(self) -> bool {
        matches!(self, Self::NoSchedule)
    }
}

/// A taint with our key on a Node, whoever has set it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyedTaint {
    /// Its effect, as on the Node.
    pub effect: String,
    /// Its value; ours has none.
    pub value: String,
}

impl KeyedTaint {
    /// Our taint with this effect.
    pub fn plain(effect: TaintEffect) -> Self {
        Self { effect: effect.as_str().to_owned(), value: String::new() }
    }

    /// Whether it is our taint with this effect.
    pub fn is_plain(&self, effect: TaintEffect) -> bool {
        self.value.is_empty() && self.effect == effect.as_str()
    }

    /// Whether a DaemonSet's pod that ends on such a node gets no successor.
    pub fn repels_daemon_sets(&self) -> bool {
        self.effect != TaintEffect::PreferNoSchedule.as_str()
    }
}

impl fmt::Display for KeyedTaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = if self.value.is_empty() { String::new() } else { format!("={}", self.value) };
        write!(f, "{TAINT_KEY}{value}:{}", self.effect)
    }
}

/// The owner annotation of our taint: which remediation owns it, and which taint with our key it is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaintMark {
    /// Name of the remediation.
    pub remediation: String,
    /// Effect of the taint. None: the annotation does not say, so no taint is removed because of it.
    pub effect: Option<TaintEffect>,
}

impl TaintMark {
    /// The owner annotation that a remediation writes for its taint.
    pub fn new(remediation: &str, effect: TaintEffect) -> Self {
        Self { remediation: remediation.to_owned(), effect: Some(effect) }
    }

    /// Parses an annotation, whoever has written it.
    pub fn read(text: &str) -> Self {
        let split =
            text.rsplit_once(':').and_then(|(remediation, word)| Some((remediation, TaintEffect::named(word)?)));
        match split {
            Some((remediation, effect)) => Self::new(remediation, effect),
            None => Self { remediation: text.to_owned(), effect: None },
        }
    }
}

impl fmt::Display for TaintMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.remediation)?;
        self.effect.map_or(Ok(()), |effect| write!(f, ":{}", effect.as_str()))
    }
}

/// The state of a node for a remediation that wants to set its taint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaintState {
    /// No taint with our key, and no annotation. The remediation may set its taint.
    Nothing,
    /// The remediation's own taint, from a write that it does not know of.
    Own,
    /// The remediation's annotation without the taint: it has set the taint, and somebody has removed it since.
    TakenOff,
    /// The remediation's own taint with another effect.
    OwnOther(TaintEffect),
    /// The annotation of this other remediation, which is removed first.
    Marked(String),
    /// A taint with our key that somebody else has set.
    Somebodys,
}

impl TaintState {
    /// The state of a node with these taints of our key and this annotation, for a remediation that wants this effect.
    pub fn of(taints: &BTreeSet<KeyedTaint>, mark: Option<&TaintMark>, remediation: &str, wanted: TaintEffect) -> Self {
        let is_on = |effect| taints.iter().any(|taint| taint.is_plain(effect));
        match mark {
            Some(mark) if mark.remediation != remediation => Self::Marked(mark.remediation.clone()),
            Some(mark) => match mark.effect.unwrap_or(wanted) {
                effect if !is_on(effect) => Self::TakenOff,
                effect if effect == wanted => Self::Own,
                other => Self::OwnOther(other),
            },
            None if taints.is_empty() => Self::Nothing,
            None => Self::Somebodys,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_the_node_is_told_apart() {
        let (soft, hard) = (TaintEffect::PreferNoSchedule, TaintEffect::NoSchedule);
        let mine = KeyedTaint { effect: "NoExecute".to_owned(), value: "mine".to_owned() };
        let marked = TaintMark::new("e1", soft);
        let of = |taints: &[KeyedTaint], mark: Option<&TaintMark>| {
            TaintState::of(&taints.iter().cloned().collect(), mark, "e1", soft)
        };
        assert_eq!(of(&[], None), TaintState::Nothing);
        assert_eq!(of(std::slice::from_ref(&mine), None), TaintState::Somebodys, "adopted nothing, added nothing");
        assert_eq!(of(&[KeyedTaint::plain(soft)], None), TaintState::Somebodys);
        assert_eq!(of(&[KeyedTaint::plain(soft), mine.clone()], Some(&marked)), TaintState::Own);
        assert_eq!(
            of(std::slice::from_ref(&mine), Some(&marked)),
            TaintState::TakenOff,
            "another one stands for nothing"
        );
        let valued = KeyedTaint { value: "mine".to_owned(), ..KeyedTaint::plain(soft) };
        assert_eq!(of(&[valued], Some(&marked)), TaintState::TakenOff, "a person has made it theirs");
        let harder = TaintMark::new("e1", hard);
        assert_eq!(of(&[KeyedTaint::plain(hard)], Some(&harder)), TaintState::OwnOther(hard));
        let other = TaintMark::new("e2", soft);
        assert_eq!(of(&[KeyedTaint::plain(soft)], Some(&other)), TaintState::Marked("e2".to_owned()));
    }

    #[test]
    fn a_mark_is_read_as_it_was_written_and_anything_else_names_no_taint() {
        for effect in TaintEffect::ALL {
            let mark = TaintMark::new("w1-abc-1", effect);
            assert_eq!(TaintMark::read(&mark.to_string()), mark);
        }
        for other in ["w1-abc-1", "", ":", "e:NoExecute", "e:noschedule", "e:NoSchedule "] {
            assert_eq!(TaintMark::read(other), TaintMark { remediation: other.to_owned(), effect: None }, "{other:?}");
        }
    }
}
