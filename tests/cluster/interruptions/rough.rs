//! Many nodes repaired over a way on which every kind of call goes wrong now and then, and every kind of word that a watch has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use nrh::api::NodeRemediation;
use nrh::api::convert;
use nrh_testbed::wait::LONG;
use tokio::sync::Notify;

use crate::interruptions::watched::{ALL, Change, Telling};
use crate::interruptions::way::{Call, CallOutcome, Judge, rough};
use crate::interruptions::{AT_A_TIME, Stage, account, kill, start};

const FAULTY: usize = 8;
/// Another number makes other trouble.
const SEED: &str = "NRH_SEED";
/// After this long a watch that has kept something back expires. One that no change follows on is not seen before the next list,
/// and of that nobody thinks as long as the watch goes on.
const LISTED_ANEW: Duration = Duration::from_secs(5);

/// Shuffled cards, dealt again and again: each fate comes up, whatever the seed.
struct Deck<T> {
    cards: Vec<T>,
    left: Vec<T>,
}

impl<T: Copy> Deck<T> {
    /// So many cards, of these kinds that often and of the blank one else.
    fn new(size: usize, blank: T, kinds: &[(T, usize)]) -> Self {
        let mut cards: Vec<T> = kinds.iter().flat_map(|(kind, count)| std::iter::repeat_n(*kind, *count)).collect();
        cards.resize(size.max(cards.len()), blank);
        Self { cards, left: Vec::new() }
    }

    fn draw(&mut self, random: u64) -> T {
        if self.left.is_empty() {
            self.left.clone_from(&self.cards);
        }
        let at = usize::try_from(random).unwrap_or(usize::MAX) % self.left.len();
        self.left.swap_remove(at)
    }
}

type Met = Arc<Mutex<BTreeMap<String, usize>>>;

struct Trouble {
    random: u64,
    /// Calls by what they are.
    calls: BTreeMap<&'static str, Deck<CallOutcome>>,
    /// Changes that come all the time.
    beats: Deck<Telling>,
    /// Changes of which there are few.
    others: Deck<Telling>,
    /// When watches expire that have kept something back, by resource.
    expire: BTreeMap<String, Instant>,
    met: Met,
}

impl Trouble {
    fn new(seed: u64, met: Met) -> Self {
        let calls =
            fates().into_iter().map(|(kind, size, fates)| (kind, Deck::new(size, CallOutcome::Answered, &fates)));
        let of = |size: usize, often: usize| {
            let kept = [Telling::Dropped, Telling::AfterNext, Telling::AfterNewer].map(|kind| (kind, often));
            let ends = [Telling::Torn, Telling::Ended, Telling::Expired, Telling::Silent].map(|kind| (kind, 1));
            Deck::new(size, Telling::Told, &[kept.as_slice(), &ends].concat())
        };
        // Never 0, of which nothing but 0 comes.
        let random = seed.max(1);
        Self { random, calls: calls.collect(), beats: of(512, 24), others: of(32, 2), expire: BTreeMap::new(), met }
    }

    /// xorshift: the same numbers for a seed, the calls come as they come.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn note(&self, what: String) {
        *self.met.lock().unwrap().entry(what).or_default() += 1;
    }
}

/// A kind of call, and of so many of them what becomes of how many.
type OfCalls = (&'static str, usize, Vec<(CallOutcome, usize)>);

fn fates() -> [OfCalls; 4] {
    let (late, refused) = (CallOutcome::Late(Duration::ZERO), CallOutcome::Refused);
    let cut = [(CallOutcome::CutBefore, 1), (CallOutcome::CutAfter, 1)];
    let lost = [(CallOutcome::Lost, 1), (CallOutcome::Unanswered, 1)];
    let read = [(late, 3), (refused(429), 1), (refused(500), 1)];
    let write = [(late, 3), (refused(409), 2), (refused(429), 2), (refused(500), 2), (CallOutcome::Unanswered, 1)];
    let watch = [(late, 2), (refused(410), 1), (refused(429), 1), (refused(500), 1)];
    [
        ("read", 40, [read.as_slice(), &cut, &lost].concat()),
        ("write", 48, [write.as_slice(), &cut, &cut, &lost].concat()),
        ("watch", 16, [watch.as_slice(), &cut, &lost].concat()),
        // A leader that cannot renew for long stands down, and another one begins anew: not all the time.
        ("lease", 16, [[(late, 2), (refused(500), 1)].as_slice(), &cut].concat()),
    ]
}

fn kind(call: &Call) -> &'static str {
    match (call.is_of_lease(), call.is_watch, call.is_write()) {
        (true, ..) => "lease",
        (_, true, _) => "watch",
        (.., true) => "write",
        _ => "read",
    }
}

fn expected() -> BTreeSet<String> {
    let calls = fates().into_iter().flat_map(|(kind, _, fates)| {
        fates.into_iter().map(move |(fate, _)| format!("{kind} {fate:?}")).collect::<Vec<_>>()
    });
    calls.chain(ALL.map(str::to_owned)).collect()
}

impl Judge for Trouble {
    fn call(&mut self, call: &Call) -> CallOutcome {
        let (kind, card, by) = (kind(call), self.next(), self.next() % 1000);
        let fate = self.calls.get_mut(kind).map_or(CallOutcome::Answered, |deck| deck.draw(card));
        if fate != CallOutcome::Answered {
            self.note(format!("{kind} {fate:?}"));
        }
        if matches!(fate, CallOutcome::Late(_)) { CallOutcome::Late(Duration::from_millis(by)) } else { fate }
    }

    fn change(&mut self, change: &Change) -> Telling {
        let card = self.next();
        if ["nodes", "noderuntimehealths"].contains(&change.resource.as_str()) {
            return self.beats.draw(card);
        }
        let telling = self.others.draw(card);
        if matches!(telling, Telling::Dropped | Telling::AfterNext | Telling::AfterNewer) {
            self.expire.entry(change.resource.clone()).or_insert_with(|| Instant::now() + LISTED_ANEW);
        }
        telling
    }

    fn expires(&mut self, resource: &str) -> bool {
        let is_due = self.expire.get(resource).is_some_and(|at| *at <= Instant::now());
        is_due && self.expire.remove(resource).is_some()
    }

    fn met(&mut self, what: &'static str) {
        self.note(what.to_owned());
    }
}

/// Repairs many nodes over such a way. A leader that stands down is replaced.
pub async fn way(stage: &Stage<'_>) -> Result<()> {
    let (begun, fleet) = (Timestamp::now(), &stage.fleet);
    let seed = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok()).unwrap_or(0x9e37_79b9_7f4a_7c15_u64);
    println!("the rough way, with {SEED}={seed}");
    let nodes: Vec<String> = (1..=FAULTY).map(|number| format!("rough-{number}")).collect();
    for node in &nodes {
        fleet.sick_node(node).await?;
    }
    let met = Met::default();
    let way = rough(stage.upstream.clone(), Arc::new(Notify::new()), Trouble::new(seed, met.clone()));
    let so_far = || met.lock().unwrap().clone();
    let replaced = all_are_resolved(stage, &way, &nodes).await;
    let replaced = replaced.map_err(|error| error.context(format!("with {SEED}={seed}, met {:#?}", so_far())))?;
    let calm = start(&stage.upstream);
    fleet.all_resolved(&nodes).await?;
    kill(&stage.admin, calm).await?;
    let most = fleet.budget_is_kept(&account::since(stage.bed, begun)?, &nodes).await?;
    let met = so_far();
    println!("{FAULTY} nodes healed, {most} at a time; the leader was replaced {replaced} times; met: {met:#?}");
    let missing: Vec<String> = expected().into_iter().filter(|kind| !met.contains_key(kind)).collect();
    ensure!(missing.is_empty(), "never met: {missing:?}");
    Ok(())
}

/// Waits until all are, and never more are in work than may be; how often the leader was replaced.
async fn all_are_resolved(stage: &Stage<'_>, way: &kube::Client, nodes: &[String]) -> Result<usize> {
    let remediations: Api<NodeRemediation> = Api::all(stage.admin.clone());
    // A Job that starts too late costs six minutes, and a busy machine has several.
    let (ends, mut leader, mut replaced) = (Instant::now() + LONG, start(way), 0);
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if leader.is_finished() {
            leader = start(way);
            replaced += 1;
        }
        let all: Vec<_> = remediations.list(&ListParams::default()).await?.iter().map(convert::remediation).collect();
        let ours = || all.iter().filter(|remediation| nodes.contains(&remediation.node));
        let open = ours().filter(|remediation| remediation.is_open()).count();
        ensure!(open <= AT_A_TIME, "{open} remediations at a time, at most {AT_A_TIME} are allowed");
        let resolved =
            |node: &String| ours().any(|remediation| remediation.node == *node && remediation.finished_at.is_some());
        if nodes.iter().all(resolved) {
            kill(&stage.admin, leader).await?;
            return Ok(replaced);
        }
        if Instant::now() > ends {
            let told: Vec<_> = ours().map(|e| (&e.node, e.phase, &e.message)).collect();
            bail!("not all are healed after {} s: {told:#?}", LONG.as_secs());
        }
    }
}
