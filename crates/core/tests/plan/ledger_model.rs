//! Leaders, ledger and crashes, in every order: a model that is checked to its last state. The budget itself is the code of
//! the controller; the model is of what is around it – an API server that compares versions, calls whose answer never comes and
//! that arrive at any time later, caches that are behind, leaders that follow each other, and up to two that go on while the next
//! one leads already, since their machines stood still and they do not know that their time is over.
//!
//! What it takes for given:
//! - Who stops or crashes leaves nothing but calls on the way, and whoever leads next knows nothing: controllers need no names.
//! - A call is given up before a cache may be behind for that long ([`PlanSettings::cache_lag`]).
//!   Who goes on beside the next leader may stand still for as long as it likes before it does what it has decided.
//! - A node acts only while it is sick: it checks again itself.
//!
//! Nodes are alike, so a state is kept with its nodes in one order only.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use nrh_core::budget::Slots;
use nrh_core::plan::PlanSettings;
use nrh_core::policy::Mode;
use nrh_core::remediation::{Phase, Remediation, StepState};
use nrh_core::snapshot::{Ledger, Slot, Snapshot};
use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::samples::{cont, hung};
use crate::world::World;

const POLICY: &str = "p";
const LAG: Duration = Duration::from_mins(1);

/// One run of the model.
#[derive(Clone, Debug)]
struct Bed {
    nodes: usize,
    /// Nodes that may be repaired at a time.
    limit: u32,
    /// How often somebody begins to lead: for the first time, after another controller, or after a crash.
    terms: u8,
    /// How often a call is given up that arrives later all the same.
    timeouts: u8,
    /// How often more time passes than a cache may be behind.
    lags: u8,
    /// How often somebody begins to lead while the one before goes on.
    overlaps: u8,
    /// The rules that are to be shown as needed.
    rules: Rules,
    known: Arc<Mutex<HashMap<Decision, Decided>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each rule is there or not, whatever the others are")]
struct Rules {
    /// An open remediation without a slot, in which nothing was done, has to get one first.
    without_slot: bool,
    /// Nothing is spent from a ledger that was only read.
    fence: bool,
    /// The ledger is stored only over the version that it was decided on.
    swap: bool,
    /// The last check before an act is one of the ledger, too: it is the version that the decision was made on.
    check: bool,
    /// A slot whose remediation does not show is given back only over a ledger of one's own, after a search for that remediation since.
    search: bool,
}

const ALL: Rules = Rules { without_slot: true, fence: true, swap: true, check: true, search: true };

/// How the one remediation of a node stands in the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Standing {
    None,
    /// Written, its step reserved.
    Scheduled,
    /// Its act is recorded.
    Executed,
    Over,
}

/// A node's slot in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
    Free,
    New,
    /// Taken longer ago than a cache may be behind.
    Old,
}

impl Place {
    const fn aged(self) -> Self {
        match self {
            Self::New => Self::Old,
            other => other,
        }
    }
}

/// A call about one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Call {
    Open,
    Act,
    Record,
    /// With the standing that it was decided on: another one is another version.
    Close(Standing),
}

/// What the leader knows of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Seen {
    place: Place,
    remediation: Standing,
    sick: bool,
}

/// Everything about one node, in whatever object it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    place: Place,
    remediation: Standing,
    sick: bool,
    minds: [Mind; AT_ONCE],
    /// What arrives at any time.
    late: Vec<Call>,
    /// Its slot in each ledger that may yet be stored by somebody who has given up on it.
    late_stores: Vec<Place>,
}

/// What one of the leaders has in mind for a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Mind {
    seen: Option<Seen>,
    /// What it does about it in this pass.
    chain: Vec<Call>,
    sent: Option<Call>,
    /// The node's slot in the ledger that it is about to store.
    next: Place,
}

impl Seen {
    /// Whether it holds a slot for a remediation that does not show.
    fn is_unseen(self) -> bool {
        self.place != Place::Free && self.remediation == Standing::None
    }
}

const NOTHING: Mind = Mind { seen: None, chain: Vec::new(), sent: None, next: Place::Free };

/// How far the leader is with the ledger in this pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Store {
    Nothing,
    Planned,
    Sent,
}

/// One that leads, or thinks so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Leader {
    store: Store,
    /// Whether the ledger that it knows is the stored version.
    is_current: bool,
    /// Whether it was written by this leader since it was read.
    is_ours: bool,
}

const NEW: Leader = Leader { store: Store::Nothing, is_current: false, is_ours: false };

/// Who leads. Behind it come those who were overtaken and do not know it, the last one first.
const FIRST: usize = 0;
/// Most that lead, or think so, at a time.
const AT_ONCE: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nodes: Vec<Node>,
    leaders: [Option<Leader>; AT_ONCE],
    /// Ledgers on the way, decided on the stored version; any other would be refused.
    late_stores: usize,
    terms: u8,
    timeouts: u8,
    lags: u8,
    overlaps: u8,
}

/// What happens. Where it begins with a number, that is which leader does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    /// Somebody leads, and nobody else any more.
    Lead,
    /// Somebody leads, and who did so before goes on.
    Overtake,
    Read(usize),
    /// Which nodes it thinks of first: what is most urgent changes.
    Decide(usize, u8),
    SendStore(usize),
    StoreArrives(usize),
    StoreTimesOut(usize),
    LateStoreArrives(usize),
    Send(usize, usize),
    Arrives(usize, usize),
    TimesOut(usize, usize),
    LateArrives(usize, usize),
    Lag,
}

/// What a decision is made from.
type Decision = (Vec<Seen>, bool, u8);

/// What is decided: the slot of each node in the ledger, whether that is stored, and what is done about each node.
type Decided = (Vec<Place>, bool, Vec<Vec<Call>>);

fn name(node: usize) -> String {
    format!("e{node}")
}

fn index(name: &str) -> usize {
    name.trim_start_matches('e').parse().unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn slot(node: usize, place: Place) -> Option<(String, Slot)> {
    let taken_at = match place {
        Place::Free => return None,
        Place::New => now() - LAG / 2,
        Place::Old => now() - LAG,
    };
    Some((name(node), Slot { node: format!("n{node}"), policy: POLICY.to_owned(), taken_at, kinds: None }))
}

/// What one pass writes: a remediation whose step is reserved.
static RESERVED: LazyLock<Remediation> = LazyLock::new(|| {
    let world = World::sick(hung("log"), None, &[cont()]).scheduled();
    world.only_remediation().clone()
});

fn remediation(node: usize, standing: Standing) -> Option<(String, Remediation)> {
    if standing == Standing::None {
        return None;
    }
    // Nodes are alike, and no limit here asks for the kinds of their faults.
    let mut remediation = Remediation {
        name: name(node),
        node: format!("n{node}"),
        started_at: now(),
        faults: Vec::new(),
        ..RESERVED.clone()
    };
    if matches!(standing, Standing::Executed | Standing::Over) {
        let step = &mut remediation.steps[0];
        (step.state, step.started_at, step.executed_at) = (StepState::Verifying, Some(now()), Some(now()));
    }
    if standing == Standing::Over {
        (remediation.phase, remediation.finished_at) = (Phase::Succeeded, Some(now()));
    }
    Some((name(node), remediation))
}

impl Bed {
    fn new(nodes: usize, limit: u32, terms: u8, rules: Rules) -> Self {
        Self { nodes, limit, terms, timeouts: 1, lags: 1, overlaps: 0, rules, known: Arc::default() }
    }

    /// What one of the leaders may do next.
    fn actions_of(&self, state: &State, who: usize, leader: Leader, actions: &mut Vec<Action>) {
        for (at, node) in state.nodes.iter().enumerate() {
            let mind = &node.minds[who];
            if mind.sent.is_some() {
                actions.push(Action::Arrives(who, at));
                if state.timeouts > 0 {
                    actions.push(Action::TimesOut(who, at));
                }
            } else if !mind.chain.is_empty() && leader.store == Store::Nothing {
                actions.push(Action::Send(who, at));
            }
        }
        match leader.store {
            Store::Planned => actions.push(Action::SendStore(who)),
            Store::Sent => {
                actions.push(Action::StoreArrives(who));
                if state.timeouts > 0 {
                    actions.push(Action::StoreTimesOut(who));
                }
            }
            Store::Nothing if state.is_idle(who) => {
                actions.push(Action::Read(who));
                if state.nodes.iter().all(|node| node.minds[who].seen.is_some()) {
                    actions.extend((0..1 << self.nodes).map(|first| Action::Decide(who, first)));
                }
            }
            Store::Nothing => {}
        }
    }

    /// What the controller decides on what it has seen, by its own budget.
    fn decide(&self, (seen, is_ours, first): &Decision) -> Decided {
        let each = || seen.iter().enumerate();
        let stored = Ledger { slots: each().filter_map(|(node, seen)| slot(node, seen.place)).collect() };
        let snapshot = Snapshot {
            now: now(),
            remediations: each().filter_map(|(node, s)| remediation(node, s.remediation)).collect(),
            ledger: Some(stored.clone()),
            ceiling: u32::try_from(self.nodes).unwrap(),
            ..Snapshot::default()
        };
        let mut slots = Slots::reconcile(&snapshot, &PlanSettings::default());
        let is_refused = |slots: &Slots| slots.refuse(POLICY, self.limit, Mode::Enforce).is_some();
        let taken =
            |node: usize| Slot { node: format!("n{node}"), policy: POLICY.to_owned(), taken_at: now(), kinds: None };
        let mut order: Vec<usize> = (0..self.nodes).collect();
        order.sort_by_key(|node| first & (1 << node) == 0);
        let mut chains = vec![Vec::new(); self.nodes];
        let without_slot: Vec<usize> = slots.without_slot().iter().map(|name| index(name)).collect();
        for node in order.iter().copied().filter(|node| without_slot.contains(node)) {
            if !self.rules.without_slot || !is_refused(&slots) {
                slots.take(&name(node), taken(node), Mode::Enforce);
            } else {
                chains[node] = vec![Call::Close(Standing::Scheduled)];
            }
        }
        for node in order {
            let (seen, name) = (seen[node], name(node));
            match seen.remediation {
                // One that has just got its slot waits until that is stored.
                Standing::Scheduled
                    if slots.holds(&name) || (!self.rules.without_slot && without_slot.contains(&node)) =>
                {
                    chains[node] = vec![Call::Act, Call::Record];
                }
                Standing::Executed if !seen.sick => chains[node] = vec![Call::Close(Standing::Executed)],
                Standing::None
                    if seen.sick
                        && slots.unseen_remediation(&format!("n{node}"), &name).is_none()
                        && (slots.slot(&name).is_some() || !is_refused(&slots)) =>
                {
                    slots.take(&name, taken(node), Mode::Enforce);
                    chains[node] = vec![Call::Open, Call::Act, Call::Record];
                }
                _ => {}
            }
        }
        let spends = chains.iter().flatten().any(|call| matches!(call, Call::Open | Call::Act));
        let again = self.rules.fence && !is_ours && spends;
        let mut next = slots.to_store(false).or_else(|| again.then(|| stored.clone()));
        let is_dropped =
            |next: &Ledger| each().any(|(node, seen)| seen.is_unseen() && !next.slots.contains_key(&name(node)));
        if self.rules.search && !is_ours && next.as_ref().is_some_and(is_dropped) {
            next = Some(stored.clone());
            chains.iter_mut().for_each(Vec::clear);
        }
        let is_written = next.is_some();
        let mut places = vec![Place::Free; self.nodes];
        for (name, slot) in next.into_iter().flat_map(|next| next.slots) {
            let is_old = slot.taken_at <= now() - LAG;
            places[index(&name)] = if is_old { Place::Old } else { Place::New };
        }
        (places, is_written, chains)
    }

    /// The same, remembered.
    fn decided(&self, decision: &Decision) -> Decided {
        if let Some(known) = self.known.lock().unwrap().get(decision) {
            return known.clone();
        }
        let decided = self.decide(decision);
        self.known.lock().unwrap().insert(decision.clone(), decided.clone());
        decided
    }
}

impl Node {
    fn sick() -> Self {
        Self {
            place: Place::Free,
            remediation: Standing::None,
            sick: true,
            minds: [NOTHING; AT_ONCE],
            late: Vec::new(),
            late_stores: Vec::new(),
        }
    }

    const fn read(&self) -> Seen {
        Seen { place: self.place, remediation: self.remediation, sick: self.sick }
    }

    /// That leader waits no more for what it has sent.
    fn give_up(&mut self, who: usize) {
        let mind = &mut self.minds[who];
        mind.chain.clear();
        self.late.extend(mind.sent.take());
        self.late.sort_unstable();
    }

    /// The call that this leader has sent arrives.
    fn sent_by(&mut self, who: usize) -> Option<()> {
        let call = self.minds[who].sent.take()?;
        let is_done = self.arrives(call);
        let (remediation, mind) = (self.remediation, &mut self.minds[who]);
        if is_done {
            // What it has written itself it knows.
            mind.seen = mind.seen.map(|it| if call == Call::Act { it } else { Seen { remediation, ..it } });
        } else {
            mind.chain.clear();
        }
        Some(())
    }

    /// The call arrives. False when it is refused.
    fn arrives(&mut self, call: Call) -> bool {
        match (call, self.remediation) {
            (Call::Open, Standing::None) | (Call::Record, Standing::Scheduled) => {
                self.remediation = if call == Call::Open { Standing::Scheduled } else { Standing::Executed };
            }
            (Call::Act, _) => self.sick = false,
            (Call::Close(from), standing) if from == standing => self.remediation = Standing::Over,
            (Call::Open | Call::Record | Call::Close(_), _) => return false,
        }
        true
    }

    /// Whether the call can still do anything: what cannot is not kept.
    fn matters(&self, call: Call) -> bool {
        match call {
            Call::Open => self.remediation == Standing::None,
            Call::Act => self.sick,
            Call::Record => self.remediation <= Standing::Scheduled,
            Call::Close(from) => self.remediation <= from,
        }
    }

    /// Whether it was acted on and its remediation is not over.
    const fn is_spent(&self) -> bool {
        !self.sick && !matches!(self.remediation, Standing::Over)
    }
}

impl State {
    /// The ledger of that leader is stored.
    fn stored_by(&mut self, who: usize) -> Option<()> {
        self.stored();
        for node in &mut self.nodes {
            let mind = &mut node.minds[who];
            node.place = std::mem::replace(&mut mind.next, Place::Free);
            mind.seen = mind.seen.map(|seen| Seen { place: node.place, ..seen });
        }
        let leader = self.leaders[who].as_mut()?;
        (leader.store, leader.is_current, leader.is_ours) = (Store::Nothing, true, true);
        Some(())
    }

    /// That leader reads all. Its own ledger it knows from its own writes; it is read once in a term, and after an uncertainty.
    fn read_by(&mut self, who: usize) -> Option<()> {
        let has_ledger = self.nodes.iter().all(|node| node.minds[who].seen.is_some());
        for node in &mut self.nodes {
            let place = node.minds[who].seen.filter(|_| has_ledger).map_or(node.place, |seen| seen.place);
            node.minds[who].seen = Some(Seen { place, ..node.read() });
        }
        self.leaders[who].as_mut()?.is_current |= !has_ledger;
        Some(())
    }

    fn is_idle(&self, who: usize) -> bool {
        let is_done = |node: &Node| node.minds[who].chain.is_empty() && node.minds[who].sent.is_none();
        self.leaders[who].is_some_and(|leader| leader.store == Store::Nothing) && self.nodes.iter().all(is_done)
    }

    fn is_out(&self, who: usize) -> bool {
        let is_sent = self.leaders[who].is_some_and(|leader| leader.store == Store::Sent);
        is_sent || self.nodes.iter().any(|node| node.minds[who].sent.is_some())
    }

    /// Whether the ledger that is about to be stored lacks the slot of a remediation that is there, and did not show.
    fn would_drop_what_is_there(&self, who: usize) -> bool {
        self.nodes.iter().any(|node| {
            let mind = &node.minds[who];
            let is_dropped = mind.next == Place::Free && mind.seen.is_some_and(Seen::is_unseen);
            is_dropped && node.remediation != Standing::None
        })
    }

    /// Nothing is stored: that leader has found what it took to be gone.
    fn keeps_the_ledger(&mut self, who: usize) -> Option<()> {
        self.leaders[who].as_mut()?.store = Store::Nothing;
        for node in &mut self.nodes {
            let read = node.read();
            let mind = &mut node.minds[who];
            mind.next = Place::Free;
            mind.chain.retain(|call| matches!(call, Call::Close(_)));
            mind.seen = mind.seen.map(|seen| Seen { place: seen.place, ..read });
        }
        Some(())
    }

    /// The ledger is stored: whatever was decided on the version before is refused from now on.
    fn stored(&mut self) {
        self.late_stores = 0;
        self.nodes.iter_mut().for_each(|node| node.late_stores.clear());
        self.leaders.iter_mut().flatten().for_each(|leader| leader.is_current = false);
    }

    /// That leader waits no more for the ledger that it has sent.
    fn give_up_store(&mut self, who: usize) {
        let Some(leader) = &mut self.leaders[who] else { return };
        let may_arrive = leader.store == Store::Sent && leader.is_current;
        leader.store = Store::Nothing;
        self.late_stores += usize::from(may_arrive);
        for node in &mut self.nodes {
            let next = std::mem::replace(&mut node.minds[who].next, Place::Free);
            node.late_stores.extend(may_arrive.then_some(next));
        }
    }

    /// That leader is no more: what it has sent is on its way.
    fn ends(&mut self, who: usize) {
        self.give_up_store(who);
        for node in &mut self.nodes {
            node.give_up(who);
            node.minds[who] = NOTHING;
        }
        self.leaders[who] = None;
    }

    /// The ledger is uncertain: what was to follow is dropped, and it is read again.
    fn mark_uncertain(&mut self, who: usize) {
        if let Some(leader) = &mut self.leaders[who] {
            leader.is_ours = false;
        }
        for mind in self.nodes.iter_mut().map(|node| &mut node.minds[who]) {
            mind.chain.retain(|call| matches!(call, Call::Close(_)));
            mind.seen = None;
        }
    }

    /// More time passes than a cache may be behind.
    fn lags(&mut self) {
        self.lags -= 1;
        for node in &mut self.nodes {
            node.place = node.place.aged();
            node.late_stores.iter_mut().for_each(|place| *place = place.aged());
            let read = node.read();
            for mind in &mut node.minds {
                mind.next = mind.next.aged();
                mind.seen = mind.seen.map(|seen| Seen { place: seen.place.aged(), ..read });
            }
        }
    }

    fn canonical(mut self) -> Self {
        for node in &mut self.nodes {
            let late = std::mem::take(&mut node.late);
            node.late = late.into_iter().filter(|call| node.matters(*call)).collect();
            node.late.dedup();
        }
        self.nodes.sort_unstable();
        self
    }
}

impl Model for Bed {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            nodes: vec![Node::sick(); self.nodes],
            leaders: [None; AT_ONCE],
            late_stores: 0,
            terms: self.terms,
            timeouts: self.timeouts,
            lags: self.lags,
            overlaps: self.overlaps,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.terms > 0 {
            actions.push(Action::Lead);
            if state.overlaps > 0 && state.leaders[FIRST].is_some() {
                actions.push(Action::Overtake);
            }
        }
        actions.extend((0..state.late_stores).map(Action::LateStoreArrives));
        for (at, node) in state.nodes.iter().enumerate() {
            actions.extend((0..node.late.len()).map(|call| Action::LateArrives(at, call)));
        }
        if state.lags > 0 && !state.is_out(FIRST) {
            actions.push(Action::Lag);
        }
        for (who, leader) in state.leaders.iter().enumerate() {
            if let Some(leader) = leader {
                self.actions_of(state, who, *leader, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Lead => {
                state.terms -= 1;
                (0..AT_ONCE).for_each(|who| state.ends(who));
                state.leaders[FIRST] = Some(NEW);
            }
            Action::Overtake => {
                (state.terms, state.overlaps) = (state.terms - 1, state.overlaps - 1);
                state.ends(AT_ONCE - 1);
                state.leaders.rotate_right(1);
                state.leaders[FIRST] = Some(NEW);
                state.nodes.iter_mut().for_each(|node| node.minds.rotate_right(1));
            }
            Action::Read(who) => state.read_by(who)?,
            Action::Decide(who, first) => {
                let seen = state.nodes.iter().map(|node| node.minds[who].seen).collect::<Option<Vec<Seen>>>()?;
                let leader = state.leaders[who].as_mut()?;
                let (places, is_stored, chains) = self.decided(&(seen, leader.is_ours, first));
                leader.store = if is_stored { Store::Planned } else { Store::Nothing };
                for (node, decided) in state.nodes.iter_mut().zip(places.into_iter().zip(chains)) {
                    (node.minds[who].next, node.minds[who].chain) = decided;
                }
            }
            Action::SendStore(who) if self.rules.search && state.would_drop_what_is_there(who) => {
                state.keeps_the_ledger(who)?;
            }
            Action::SendStore(who) => state.leaders[who].as_mut()?.store = Store::Sent,
            Action::StoreArrives(who) if state.leaders[who]?.is_current || !self.rules.swap => {
                state.stored_by(who)?;
            }
            Action::StoreArrives(who) => {
                state.leaders[who].as_mut()?.store = Store::Nothing;
                state.nodes.iter_mut().for_each(|node| node.minds[who].next = Place::Free);
                state.mark_uncertain(who);
            }
            Action::StoreTimesOut(who) => {
                state.timeouts -= 1;
                state.give_up_store(who);
                state.mark_uncertain(who);
            }
            Action::LateStoreArrives(which) => {
                for node in &mut state.nodes {
                    node.place = *node.late_stores.get(which)?;
                }
                state.stored();
            }
            Action::Send(who, at) => {
                let node = state.nodes.get_mut(at)?;
                let mind = &mut node.minds[who];
                let call = mind.chain.remove(0);
                // The last check before an act: it reads the remediation again, and the ledger.
                let is_overtaken = self.rules.check && !state.leaders[who]?.is_current;
                if call == Call::Act && (node.remediation != Standing::Scheduled || is_overtaken) {
                    mind.chain.clear();
                    if is_overtaken {
                        state.mark_uncertain(who);
                    }
                } else {
                    mind.sent = Some(call);
                }
            }
            Action::Arrives(who, at) => state.nodes.get_mut(at)?.sent_by(who)?,
            Action::TimesOut(who, at) => {
                state.timeouts -= 1;
                state.nodes.get_mut(at)?.give_up(who);
            }
            Action::LateArrives(at, call) => {
                let node = state.nodes.get_mut(at)?;
                let call = node.late.remove(call);
                node.arrives(call);
            }
            Action::Lag => state.lags(),
        }
        let state = state.canonical();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BUDGET, |bed: &Self, state: &State| {
                state.nodes.iter().filter(|node| node.is_spent()).count() <= bed.limit as usize
            }),
            Property::sometimes("all are healed", |_, state: &State| {
                state.nodes.iter().all(|node| !node.sick && node.remediation == Standing::Over)
            }),
            Property::sometimes("a creation arrives when its slot was given back", |bed: &Self, state: &State| {
                let is_unpaid = |node: &Node| node.remediation == Standing::Scheduled && node.place == Place::Free;
                // Before that long nobody gives it back.
                bed.lags == 0 || state.nodes.iter().any(is_unpaid)
            }),
            Property::sometimes("a ledger of another one is on its way", |_, state: &State| state.late_stores > 0),
            Property::sometimes("all who lead, or think so, are about to act", |bed: &Self, state: &State| {
                let acts = |who: usize| state.nodes.iter().any(|node| node.minds[who].sent == Some(Call::Act));
                (0..=usize::from(bed.overlaps)).all(acts)
            }),
        ]
    }
}

const BUDGET: &str = "never more at a time than the budget allows";

/// Checks all states, and prints how it came to what must not be.
fn check(bed: &Bed) {
    let Bed { nodes, limit, terms, timeouts, lags, overlaps, .. } = bed;
    let what = format!(
        "{nodes} nodes, {limit} at a time, {terms} terms, {overlaps} of them while another goes on, {timeouts} calls given up, \
         {lags} times longer than a cache may be behind"
    );
    let checker = bed.clone().checker().threads(2).spawn_bfs().join();
    println!("{what}: {} states, {} deep", checker.unique_state_count(), checker.max_depth());
    if let Some(path) = checker.discovery(BUDGET) {
        let steps: Vec<String> = path.into_vec().into_iter().map(|(state, next)| told(&state, next)).collect();
        panic!("{what}:\n{}", steps.join("\n"));
    }
    checker.assert_properties();
}

/// One line for each leader, and one for each node.
fn told(state: &State, next: Option<Action>) -> String {
    let leaders = state.leaders.iter().flatten().map(|leader| format!("  {leader:?}"));
    let nodes = state.nodes.iter().map(|node| {
        let Node { place, remediation, sick, minds, late, late_stores } = node;
        format!("    {place:?} {remediation:?} sick {sick}; {minds:?}, late {late:?}, ledgers {late_stores:?}")
    });
    let lines: Vec<String> = leaders.chain(nodes).collect();
    format!("{}\n{next:?}", lines.join("\n"))
}

/// Whether only the two small models are wanted, in place of all others.
fn is_small() -> bool {
    std::env::var_os("NRH_MODEL").is_some_and(|depth| depth == "small")
}

/// Checks these models, or none of them where only small ones are wanted.
fn check_in_full(beds: &[Bed]) {
    if is_small() {
        println!("not checked: NRH_MODEL=small");
    } else {
        beds.iter().for_each(check);
    }
}

/// Three controllers that follow each other, and two crashes: five terms.
/// Told in kubereboot/kured #660.
#[test]
fn no_slot_is_spent_twice() {
    if is_small() {
        return check(&Bed::new(3, 1, 3, ALL));
    }
    check(&Bed { lags: 2, timeouts: 2, ..Bed::new(3, 1, 5, ALL) });
    check(&Bed::new(4, 2, 5, ALL));
}

/// One that was overtaken goes on for a while beside the next one, and after both there may be a third.
#[test]
fn nor_by_two_leaders_at_once() {
    if is_small() {
        return check(&Bed { overlaps: 1, ..Bed::new(2, 1, 3, ALL) });
    }
    check(&Bed { overlaps: 1, ..Bed::new(3, 1, 3, ALL) });
}

/// On more nodes, where no call is late.
#[test]
fn nor_by_two_leaders_at_once_on_four_nodes() {
    check_in_full(&[Bed { overlaps: 1, timeouts: 0, ..Bed::new(4, 1, 3, ALL) }]);
}

/// Three controllers and two crashes, one of which goes on beside the next.
#[test]
fn nor_by_two_leaders_at_once_among_five_terms() {
    check_in_full(&[Bed { overlaps: 1, timeouts: 0, ..Bed::new(3, 1, 5, ALL) }]);
}

/// Two that were overtaken go on beside the third.
#[test]
fn nor_by_three_leaders_at_once() {
    check_in_full(&[Bed { overlaps: 2, timeouts: 0, lags: 0, ..Bed::new(2, 1, 3, ALL) }]);
}

/// The same where more time passes than a cache may be behind: 15 million states.
#[test]
#[ignore = "takes three minutes optimised: cargo test --release --workspace --test plan -- --ignored"]
fn nor_by_three_leaders_at_once_and_a_cache_that_is_behind() {
    check_in_full(&[Bed { overlaps: 2, timeouts: 0, ..Bed::new(2, 1, 3, ALL) }]);
}

/// The model can fail: this is what the rules are for.
#[test]
fn without_any_of_the_rules_a_slot_is_spent_twice() {
    if is_small() {
        return println!("not checked: NRH_MODEL=small");
    }
    let rules = [
        Rules { without_slot: false, ..ALL },
        Rules { fence: false, ..ALL },
        Rules { swap: false, ..ALL },
        Rules { check: false, ..ALL },
        Rules { search: false, ..ALL },
    ];
    for rules in rules {
        let bed = Bed { timeouts: 2, overlaps: 1, ..Bed::new(2, 1, 3, rules) };
        let checker = bed.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let path = checker.discovery(BUDGET);
        assert!(path.is_some(), "{rules:?}: {} states", checker.unique_state_count());
        println!("{rules:?}: {} steps to it", path.map_or(0, |path| path.into_actions().len()));
    }
}
