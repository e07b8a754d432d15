//! Images made without a registry run on a real node.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nrh_testbed::wait::SOON;
use nrh_testbed::{Bed, images, view};
use serde_json::json;

const REFERENCE: &str = "localhost/final-stage:1";

/// The workload stands in for the product here: what is proven is the way from a Dockerfile to a running pod.
pub fn an_image_of_a_final_stage_runs_and_a_pod_reaches_the_api_server(bed: &Bed) {
    let node = &bed.nodes()[0];
    let dir = tempfile::tempdir().unwrap();
    let dockerfile = "FROM nowhere.invalid/rust:1 AS build\nRUN false\nFROM scratch\n\
        COPY --from=build /out/ /\nUSER 65532:65532\nENTRYPOINT [\"/nrh\"]\n";
    fs::write(dir.path().join("Dockerfile"), dockerfile).unwrap();
    let binary = images::workload_binary().unwrap();
    let archive = dir.path().join("nrh.tar");
    images::operator_image(dir.path(), &[("/nrh", &binary)], REFERENCE, &archive).unwrap();
    node.import(&archive).unwrap();

    let pod = |name: &str, image: &str, argument: &str, restart: &str| {
        let text = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeName": node.name, "restartPolicy": restart, "terminationGracePeriodSeconds": 1,
            "securityContext": if image == REFERENCE { json!({"runAsNonRoot": true}) } else { json!({}) },
            "containers": [{"name": "c", "image": image, "imagePullPolicy": "Never", "args": [argument]}],
        }});
        // The account that pods of a namespace have is made a moment after the namespace.
        let start = Instant::now();
        while let Err(error) = bed.apply(&text) {
            assert!(start.elapsed() < SOON, "{error:#}");
            sleep(Duration::from_millis(200));
        }
    };
    pod("product", REFERENCE, "work", "Always");
    pod("reach", images::WORK_IMAGE, "reach", "Never");

    let pod = |name: &str| view::pod(bed, "default", name).unwrap().unwrap();
    let start = Instant::now();
    let done = || {
        let runs = view::pod_runs(bed, node, &pod("product").uid).unwrap();
        runs.is_ok() && pod("reach").phase == "Succeeded"
    };
    while !done() {
        assert!(start.elapsed() < SOON, "{:?} {:?}", pod("product"), pod("reach"));
        sleep(Duration::from_millis(200));
    }
    bed.kubectl(&["delete", "pod", "product", "reach"]).unwrap();
}
