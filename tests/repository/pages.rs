//! What the documents show works: links lead somewhere, commands parse, policies are valid, paths exist.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use nrh::api::crds;
use nrh::cli::Cli;
use nrh::core::policy::ActionType;
use serde_json::{Value, json};

use crate::crds::walk;
use crate::page::{DEVELOPERS, Page, in_folder, page, pages, root};

/// What stands for a name of the reader's own in a command.
const OWN: [(&str, &str); 3] = [("ACTION", "Cordon"), ("TYPE", "HungContainer"), ("DIR", "policies")];

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = page.prose();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
            let folder = root().join(page.path.parent().unwrap());
            let path = if file.is_empty() { root().join(&page.path) } else { folder.join(file) };
            let is_there = path.exists()
                && anchor.is_none_or(|anchor| Page::read(&path.canonicalize().unwrap()).anchors().contains(anchor));
            if !is_there {
                broken.push(format!("{}: {target}", page.name()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_is_linked_from_another_one() {
    let all = pages();
    let mut linked = BTreeSet::new();
    for page in &all {
        let folder = root().join(page.path.parent().unwrap());
        for target in page.prose().split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            if let Ok(path) = folder.join(target).canonicalize()
                && path != root().join(&page.path)
            {
                linked.insert(path);
            }
        }
    }
    let lone: Vec<String> = all
        .iter()
        .filter(|page| !linked.contains(&root().join(&page.path).canonicalize().unwrap()))
        .map(Page::name)
        .filter(|name| name != "README.md")
        .collect();
    assert!(lone.is_empty(), "nothing links to {lone:?}");
}

#[test]
fn every_command_of_ours_parses() {
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    // What the changelog names as old does not parse any more.
    for page in pages().iter().filter(|page| page.name() != "CHANGELOG.md") {
        for command in page.commands().iter().filter(|command| command.starts_with("nrh ")) {
            // A word in quotes is one argument.
            let words: Vec<String> = command
                .split('\'')
                .enumerate()
                .flat_map(|(at, part)| {
                    if at % 2 == 1 {
                        vec![part.to_owned()]
                    } else {
                        part.split_whitespace().map(ToOwned::to_owned).collect()
                    }
                })
                .map(|word| OWN.iter().find(|(own, _)| *own == word).map_or(word, |(_, real)| (*real).to_owned()))
                .collect();
            seen.insert(words.get(1).cloned().unwrap_or_default());
            let bare = words.len() == 2 && Cli::command().find_subcommand(&words[1]).is_some();
            match Cli::try_parse_from(&words) {
                Err(error) if error.kind() != ErrorKind::DisplayHelp && !bare => {
                    wrong.push(format!("{}: {command}: {}", page.name(), error.to_string().lines().next().unwrap()));
                }
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let cli = Cli::command();
    let hidden_or_missing: Vec<&str> = cli
        .get_subcommands()
        .filter(|one| !one.is_hide_set() && !seen.contains(one.get_name()))
        .map(clap::Command::get_name)
        .collect();
    assert!(hidden_or_missing.is_empty(), "no document shows {hidden_or_missing:?}");
}

#[test]
fn every_file_that_is_named_exists() {
    let mut missing = Vec::new();
    for page in pages() {
        for command in page.commands() {
            let words: Vec<&str> = command.split_whitespace().collect();
            if words.first() == Some(&"kubectl") {
                for pair in words.windows(2) {
                    let is_path = ["-k", "-f", "--filename", "--patch-file"].contains(&pair[0]);
                    // In capitals, or of the reader's own.
                    let is_own = pair[1].chars().all(|c| c.is_uppercase() || c == '-');
                    if is_path && !is_own && !root().join(pair[1]).exists() {
                        missing.push(format!("{}: {command}", page.name()));
                    }
                }
            }
        }
        let ours = ["config/", "tests/", "testbed/", "src/", "crates/", "docs/", "benches/", "fuzz/", ".ci/"];
        for span in page.spans() {
            let is_path = ours.iter().any(|folder| span.starts_with(folder)) && !span.contains(['*', ' ', ':', '…']);
            if is_path && !root().join(&span).exists() {
                missing.push(format!("{}: {span}", page.name()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_policy_is_valid_and_every_other_block_is_yaml() {
    let folder = tempfile::tempdir().unwrap();
    let timeline = folder.path().join("timeline.yaml");
    fs::write(&timeline, "description: nothing happens\nnodes: [{name: worker}]\nevents: []\n").unwrap();
    let (mut policies, mut wrong) = (0, Vec::new());
    for page in pages() {
        for (_, block) in page.blocks().into_iter().filter(|(language, _)| *language == "yaml") {
            let read: Result<Value, _> = serde_saphyr::from_str(&block);
            match read {
                Err(error) => wrong.push(format!("{}: {error}", page.name())),
                Ok(object) if object["kind"] == "RemediationPolicy" => {
                    policies += 1;
                    let path = folder.path().join("policy.yaml");
                    fs::write(&path, &block).unwrap();
                    if let Err(error) = nrh::simulate::of_files(&timeline, &[path], false) {
                        wrong.push(format!("{}: {error:#}", page.name()));
                    }
                }
                Ok(_) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(policies >= 6, "{policies}");
}

#[test]
fn the_reference_names_every_field_that_people_write_and_every_action() {
    let text: String = in_folder("docs/reference").map(|page| page.text).collect();
    let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
    let mut named = BTreeSet::new();
    walk(&mut |path, _| {
        if let Some((kind, field)) = path.split_once(".spec.")
            && kind != "nodecommands"
        {
            let name = field.rsplit('.').next().unwrap_or(field);
            named.insert(name.trim_end_matches(['[', ']', '{', '}']).to_owned());
        }
    });
    assert!(named.len() > 60, "{named:?}");
    // As Kubernetes itself calls them, and parts of a version of a template.
    let usual =
        ["apiVersion", "kind", "name", "namespace", "key", "operator", "values", "matchLabels", "matchExpressions"];
    let lacking: Vec<&String> =
        named.iter().filter(|name| !usual.contains(&name.as_str()) && !words.contains(name.as_str())).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    let actions = page("docs/reference/actions.md").text;
    for action in ActionType::ALL {
        assert!(actions.contains(&format!("`{}`", action.as_str())), "{action:?}");
    }
}

#[test]
fn the_page_of_each_kind_names_its_status() {
    for (_, crd) in crds::all() {
        let kind = crd.spec.names.kind.as_str();
        let text = page(&format!("docs/reference/{}.md", kind.to_lowercase())).text;
        let words: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
        let schema = serde_json::to_value(crd.spec.versions[0].schema.as_ref().unwrap()).unwrap();
        let status = &schema["openAPIV3Schema"]["properties"]["status"]["properties"];
        let fields = status.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        let usual = ["conditions", "observedGeneration"];
        let values = [&status["phase"], &status["attempts"]["items"]["properties"]["reason"]];
        let values = values.into_iter().flat_map(|field| field["enum"].as_array().into_iter().flatten());
        let named = fields.filter(|name| !usual.contains(name)).chain(values.filter_map(Value::as_str));
        let lacking: Vec<&str> = named.filter(|name| !words.contains(name)).collect();
        assert!(lacking.is_empty(), "{kind}: {lacking:?}");
    }
    let text = page("docs/reference/noderuntimehealth.md").text;
    for condition in nrh::core::condition::checked_conditions() {
        assert!(text.contains(&format!("`{}`", condition.as_str())), "{condition:?}");
    }
}

#[test]
fn each_alert_has_a_page_and_measures_what_there_is() {
    let monitor = page("docs/how-to/monitor.md").text;
    let metrics = page("docs/reference/metrics.md").text;
    let overview = page("docs/runbook/README.md").text;
    let alerts: Vec<&str> = monitor.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 9, "{alerts:?}");
    for alert in &alerts {
        let text = page(&format!("docs/runbook/{alert}.md")).text;
        for part in ["**Symptom**", "**Meaning**", "**The operator**", "**You**"] {
            assert!(text.contains(part), "{alert} lacks {part}");
        }
        assert!(overview.contains(&format!("[{alert}]({alert}.md)")), "{alert}");
    }
    for expression in monitor.lines().filter_map(|line| line.trim().strip_prefix("expr: ")) {
        let names =
            expression.split(|c: char| !c.is_ascii_lowercase() && c != '_').filter(|name| name.starts_with("nrh_"));
        for name in names {
            assert!(metrics.contains(&format!("| `{name}` |")), "{name}");
        }
    }
}

#[test]
fn the_readme_fits_one_screenful_of_scrolling_and_shows_what_the_programs_print() {
    let readme = page("README.md");
    assert!(readme.text.lines().count() <= 150, "{}", readme.text.lines().count());
    let blocks = readme.blocks();
    let (_, shown) = blocks.iter().find(|(language, _)| *language == "console").unwrap();
    let (table, explained) = shown.split_once("$ nrh explain worker-1\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_nrh"))
        .args(["explain", "--file", "docs/examples/worker-1.yaml", "worker-1"])
        .current_dir(root())
        .env_remove("KUBECONFIG")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), explained, "{}", String::from_utf8_lossy(&output.stderr));
    let (_, definition) = crds::all().into_iter().find(|(_, one)| one.spec.names.kind == "NodeRuntimeHealth").unwrap();
    let columns = definition.spec.versions[0].additional_printer_columns.clone().unwrap_or_default();
    let head = table.lines().find(|line| line.starts_with("NAME")).unwrap();
    for column in columns.iter().filter(|one| one.priority.unwrap_or_default() == 0 && one.name != "Age") {
        assert!(head.contains(&column.name.to_uppercase()), "{} in {head}", column.name);
    }
}

#[test]
fn a_reader_that_closes_the_pipe_early_is_no_error_of_a_command() {
    let state = tempfile::tempdir().unwrap();
    fs::create_dir(state.path().join("evidence")).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut program = Command::new(env!("CARGO_BIN_EXE_nrh"));
    program.args(["evidence", "--local", "--output", "json", "--state-dir"]).arg(state.path()).stdout(writer);
    let output = program.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]
fn kubeconfig(api: &TcpListener) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let server = json!({"clusters": [{"name": "c", "cluster": {"server": format!("http://{}", api.local_addr().unwrap())}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
        "current-context": "c"});
    fs::write(&file, server.to_string()).unwrap();
    file
}

#[test]
fn an_api_server_that_cannot_be_reached_is_told_in_one_line() {
    let api = TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = kubeconfig(&api);
    let place = format!("the API server http://{} of context c cannot be reached; ", api.local_addr().unwrap());
    drop(api);
    let output = |words: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_nrh"));
        program.args(words).arg("--kubeconfig").arg(kubeconfig.path()).env_remove("NRH_LOG").output().unwrap()
    };
    for (words, what) in [(&["approve"][..], "noderemediations"), (&["get"], "noderuntimehealths")] {
        let output = output(words);
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = format!("Error: cannot list {what}: {place}check KUBECONFIG and the network: ");
        assert!(said.starts_with(&expected) && said.lines().count() == 1, "{said}");
    }
    // Who reads the verdict gets one also where nobody knows.
    for (words, verdict, why) in [
        (&["check", "-o", "json"][..], "/0/verdict", "/0/message"),
        (&["restart-safe", "w1", "-o", "json"], "/restartSafe", "/reason"),
    ] {
        let output = output(words);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let told = |path: &str| answer.pointer(path).and_then(|value| value.as_str()).unwrap_or_default();
        assert_eq!((output.status.code(), told(verdict)), (Some(2), "Unknown"), "{answer}");
        assert!(told(why).contains(&place), "{answer}");
    }
}

/// A watch prints nothing while nothing changes: it does not wait for a line to learn that its reader is gone.
#[test]
fn a_watch_ends_when_its_reader_is_gone() {
    let api = TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = kubeconfig(&api);
    // The API server refuses the first call, which is not the watch, and answers no other one.
    let calls = api.try_clone().unwrap();
    std::thread::spawn(move || {
        let (mut call, _) = calls.accept().unwrap();
        assert!(call.read(&mut [0; 4096]).unwrap() > 0);
        call.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    });
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut program = Command::new(env!("CARGO_BIN_EXE_nrh"));
    let output = program.args(["get", "-w", "--kubeconfig"]).arg(kubeconfig.path()).stdout(writer).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Words of prose: without code, links, names of tests, and what commands write into documents.
fn words(page: &Page) -> usize {
    let mut is_made = false;
    let lines = page.prose();
    let kept = lines.lines().filter(|line| {
        if line.starts_with("<!-- made by") {
            is_made = line.contains("begin");
        }
        !is_made && !line.starts_with("    ")
    });
    let is_word = |word: &&str| {
        word.contains(|c: char| c.is_ascii_alphabetic())
            && !["::", "://", "scenarios/"].iter().any(|part| word.contains(part))
    };
    kept.map(|line| line.split_whitespace().filter(is_word).count()).sum()
}

#[test]
fn the_documentation_stays_short() {
    let count = |pages: &[&Page]| -> usize { pages.iter().map(|page| words(page)).sum() };
    let all = pages();
    let kept = all.iter().filter(|page| page.name() != "CHANGELOG.md");
    let (developers, users): (Vec<&Page>, Vec<&Page>) =
        kept.partition(|page| DEVELOPERS.contains(&page.name().as_str()));
    let (developers, users) = (count(&developers), count(&users));
    assert!(users <= 16_800, "{users} words for users");
    assert!(developers <= 1_100, "{developers} words for developers");
}
