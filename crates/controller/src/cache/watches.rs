//! The watches: they store each kind's objects in the state, for as long as the process runs. They begin anew with each term.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, watcher};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};

use super::Cache;
use super::fold::{Changed, Ingest};
use nrh_api::view::guard::Guarded;
use nrh_api::{
    NODE_NAMESPACE, NodeCommand, NodeRemediation, NodeRuntimeHealth, OPERATION_LABEL, RemediationConfig,
    RemediationPolicy,
};

/// Objects in one answer to a first list. While an answer is parsed, it takes several times its size in memory, which the
/// process does not return to the system afterwards. With 500 of a thousand nodes that is more than everything that is kept of
/// them.
const PAGE: u32 = 100;
/// Maximum time until the next objects of a list. A connection that has died silently would otherwise hold up a list for minutes,
/// and all decisions with it.
const LIST_ANSWER: Duration = Duration::from_secs(30);

/// Watches everything. Returns only when a watch ends, which normally never happens: the caller treats that as the end of the
/// process.
pub async fn run(client: Client, cache: Arc<Cache>) {
    let all = watcher::Config::default().page_size(PAGE);
    let ours = all.clone().labels(OPERATION_LABEL);
    tokio::select! {
        () = watch(Api::<Guarded<Node>>::all(client.clone()), all.clone(), &cache) => {}
        () = watch(Api::<Guarded<NodeRuntimeHealth>>::all(client.clone()), all.clone(), &cache) => {}
        () = watch(Api::<Guarded<NodeCommand>>::all(client.clone()), all.clone(), &cache) => {}
        () = watch(Api::<Guarded<RemediationPolicy>>::all(client.clone()), all.clone(), &cache) => {}
        () = watch(Api::<Guarded<RemediationConfig>>::all(client.clone()), all.clone(), &cache) => {}
        () = watch(Api::<Guarded<NodeRemediation>>::all(client.clone()), all.clone(), &cache) => {}
        () = watch(Api::<Guarded<DaemonSet>>::all(client.clone()), all.clone(), &cache) => {}
        () = watch(Api::<Guarded<Job>>::namespaced(client.clone(), NODE_NAMESPACE), ours.clone(), &cache) => {}
        () = watch(Api::<Guarded<Pod>>::namespaced(client.clone(), NODE_NAMESPACE), ours.clone(), &cache) => {}
    }
}

async fn watch<K>(api: Api<K>, config: watcher::Config, cache: &Cache)
where
    K: Ingest + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let anew = || watcher(api.clone(), config.clone());
    let (mut terms, mut events, mut backoff) = (cache.terms(), pin!(anew()), DefaultBackoff::default());
    let mut is_listing = false;
    loop {
        let event = tokio::select! {
            biased;
            Ok(()) = terms.changed() => {
                events.set(anew());
                continue;
            }
            event = events.try_next() => event.map_err(|error| error.to_string()),
            () = sleep(LIST_ANSWER), if is_listing => {
                events.set(anew());
                Err(format!("a list got no answer within {} s", LIST_ANSWER.as_secs()))
            }
        };
        is_listing = matches!(event, Ok(Some(watcher::Event::Init | watcher::Event::InitApply(_))));
        match event {
            Ok(Some(event)) => {
                // `Init` comes before each list, also before one that fails.
                if !matches!(event, watcher::Event::Init) {
                    backoff.reset();
                }
                match fold(event, cache) {
                    Changed::Matters => cache.wake(),
                    Changed::MattersSoon => cache.wake_soon(),
                    Changed::Nothing => {}
                }
            }
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(error, kind = K::KIND, "watch interrupted");
                // The cached objects stay, and their age shows. A new term does not wait.
                let pause = backoff.next().unwrap_or(LIST_ANSWER);
                let _ = timeout(pause, terms.clone().changed()).await;
            }
        }
    }
}

fn fold<K: Ingest>(event: watcher::Event<K>, cache: &Cache) -> Changed {
    let mut state = cache.lock();
    let now = Instant::now();
    match event {
        watcher::Event::Init => {
            K::versions(&mut state).begin();
            Changed::Nothing
        }
        watcher::Event::InitApply(object) => {
            object.fold(&mut state, now);
            Changed::Nothing
        }
        watcher::Event::InitDone => {
            K::finish_list(&mut state);
            Changed::Matters
        }
        watcher::Event::Apply(object) => object.fold(&mut state, now),
        watcher::Event::Delete(object) => object.fold_deletion(&mut state),
    }
}
