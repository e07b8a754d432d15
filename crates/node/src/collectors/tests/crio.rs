//! CRI-O as the runtime, played by a fake: a status that hangs for one container is that container's.

use super::*;

fn start_crio(fake: &Fake) -> Collectors {
    fake.name("cri-o");
    fake.lists(&["s1"], &[("locked", "s1"), ("well", "s1")]);
    start(fake, &quick())
}

#[tokio::test]
async fn each_running_container_is_asked_for_through_cri_and_no_sandbox() {
    let fake = Fake::start();
    let collectors = start_crio(&fake);
    let seen = until(&collectors, "both", |seen| answered(seen) == 2).await;
    assert_eq!(seen.kind, RuntimeKind::CriO);
    assert_eq!(seen.tasks.keys().collect::<Vec<_>>(), ["locked", "well"]);
    assert_eq!(seen.tasks["well"].value(), Some(&TaskAnswer::DaemonAnswered));
    assert_eq!((fake.calls("Get"), fake.calls("PodSandboxStatus")), (0, 0));
}

#[tokio::test]
async fn a_container_whose_status_hangs_is_named_and_asked_for_once() {
    let fake = Fake::start();
    fake.say("ContainerStatus:locked", Say::Never);
    let collectors = start_crio(&fake);
    let hung = |seen: &Observations| seen.tasks.get("locked").is_some_and(is_hung);
    until(&collectors, "the hang", hung).await;
    let calls = fake.calls("ContainerStatus:well");
    collectors.suspects(vec!["locked".to_owned(), "well".to_owned()]);
    until(&collectors, "more questions", |_| fake.calls("ContainerStatus:well") >= calls + 3).await;
    assert!(hung(&now(&collectors)));
    assert_eq!((fake.calls("ContainerStatus:locked"), fake.out("ContainerStatus:locked")), (1, 1));
    others_go_on(&collectors, &fake).await;
}

#[tokio::test]
async fn a_crio_that_answers_for_no_container_accuses_none() {
    let fake = Fake::start();
    fake.say("ContainerStatus", Say::Never);
    let collectors = start_crio(&fake);
    nobody_is_accused(&collectors).await;
    fake.say(&format!("ContainerStatus:{}", "0".repeat(64)), error(Code::NotFound, "could not find container"));
    until(&collectors, "its word on nobody", |seen| are_all(seen, 2, is_hung)).await;
}

#[tokio::test]
async fn errors_say_nothing_of_a_container() {
    let fake = Fake::start();
    fake.say("ContainerStatus:locked", error(Code::Internal, "no such process"));
    let collectors = start_crio(&fake);
    let failed = |seen: &Observations| seen.tasks.get("locked").is_some_and(is_failed);
    until(&collectors, "the error", |seen| failed(seen) && answered(seen) == 1).await;
}

#[tokio::test]
async fn a_listed_container_without_a_conmon_has_the_processes_read_again_at_once() {
    let seldom = Pace { rest: Duration::from_mins(10), ..quick().processes };
    let paces = Paces { processes: seldom, ..quick() };
    let fake = Fake::start();
    fake.name("cri-o");
    let collectors = start(&fake, &paces);
    let read = |seen: &Observations| seen.processes.value().map_or(0, |table| table.round);
    let first = until(&collectors, "the first table", |seen| read(seen) > 0 && round(seen) > Some(2)).await;
    assert_eq!(read(&first), 1);
    fake.lists(&["s1"], &[("new", "s1")]);
    until(&collectors, "the second table", |seen| read(seen) > 1).await;
}
