use serde_json::{Value, json};

use super::super::cluster::{Cluster, ClusterConfig};
use super::Scenario;
use super::mirror::{is_deleted, is_ready, name};

const START: u64 = 1_795_242_636_000;

fn scenario(seed: u64) -> (Cluster, Scenario) {
    let cluster = Cluster::new(ClusterConfig { seed, ..ClusterConfig::default() });
    cluster.set_clock(Some(START));
    let scenario = Scenario::new(cluster.clone(), seed, 2.0);
    (cluster, scenario)
}

/// The pods of a deployment that are not being deleted.
fn pods(cluster: &Cluster, app: &str) -> Vec<Value> {
    let own = |pod: &Value| pod["metadata"]["labels"]["app"] == app && !is_deleted(pod);
    cluster.list("pods").into_iter().filter(own).collect()
}

/// Runs only the controllers until `done`, for at most five minutes of the cluster's time.
fn until(cluster: &Cluster, scenario: &mut Scenario, done: impl Fn(&Cluster) -> bool) {
    let mut now = cluster.now_millis();
    for _ in 0..3_000 {
        if done(cluster) {
            return;
        }
        now += 100;
        cluster.set_clock(Some(now));
        scenario.reconcile(now);
    }
    panic!("not reached within five minutes");
}

#[test]
fn in_a_new_cluster_controllers_have_nothing_to_do() {
    let (cluster, mut scenario) = scenario(1);
    assert_eq!((cluster.len("nodes"), cluster.len("deployments"), cluster.len("replicasets")), (6, 8, 8));
    let pods = cluster.list("pods");
    assert_eq!(pods.len(), 44);
    assert!(pods.iter().all(is_ready));
    for pod in &pods {
        let bytes = pod.to_string().len();
        assert!((3_000..8_000).contains(&bytes), "{} has {bytes} bytes", name(pod));
    }
    assert!(!scenario.reconcile(START));
    assert_eq!(cluster.get("deployments", "shop", "web").unwrap()["status"]["readyReplicas"], 8);
}

#[test]
fn a_pod_has_the_address_of_its_node_and_addresses_are_unique() {
    let (cluster, _) = scenario(1);
    let address = |node: &Value| node["status"]["addresses"][1]["address"].to_string();
    let mut nodes: Vec<_> =
        cluster.list("nodes").iter().map(|node| (name(node).to_owned(), address(node))).collect();
    for pod in cluster.list("pods") {
        let host =
            (pod["spec"]["nodeName"].as_str().unwrap().to_owned(), pod["status"]["hostIP"].to_string());
        assert!(nodes.contains(&host), "{host:?}");
    }
    nodes.sort_by(|one, other| one.1.cmp(&other.1));
    nodes.dedup_by(|one, other| one.1 == other.1);
    assert_eq!(nodes.len(), 6);
}

#[test]
fn the_same_seed_makes_the_same_history() {
    let history = |seed| {
        let (cluster, mut scenario) = scenario(seed);
        for step in 0..300 {
            scenario.step(START + step * 250);
        }
        let resources = ["pods", "nodes", "deployments", "replicasets", "events", "configmaps", "widgets"];
        (cluster.revision(), resources.map(|resource| cluster.list(resource)))
    };
    assert_eq!(history(7), history(7));
    assert_ne!(history(7), history(8));
}

#[test]
fn every_step_writes_once_and_the_cluster_keeps_its_size() {
    let (cluster, mut scenario) = scenario(3);
    let mut idle = 0;
    for step in 0..1_200 {
        let before = cluster.revision();
        let wrote = scenario.step(START + step * 500);
        assert_eq!(cluster.revision() - before, u64::from(wrote));
        idle += u64::from(!wrote);
        assert!((20..=90).contains(&cluster.len("pods")), "{} pods at step {step}", cluster.len("pods"));
    }
    assert!(idle < 12, "{idle} steps without a write");
    let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0);
    let sets = cluster.list("replicasets").len();
    assert!(sets > 8 && sets <= 8 * 5, "{sets} replica sets");
    assert!(cluster.list("pods").iter().map(restarts).sum::<u64>() > 0, "nothing ever crashed");
}

#[test]
fn scaling_a_deployment_moves_its_pods() {
    let (cluster, mut scenario) = scenario(1);
    cluster.patch("deployments", "shop", "cart", &json!({"spec": {"replicas": 2}})).unwrap();
    until(&cluster, &mut scenario, |c| pods(c, "cart").len() == 2);
    cluster.patch("deployments", "shop", "cart", &json!({"spec": {"replicas": 9}})).unwrap();
    until(&cluster, &mut scenario, |c| pods(c, "cart").iter().filter(|pod| is_ready(pod)).count() == 9);
}

#[test]
fn a_new_image_replaces_every_pod_without_dropping_below_one_less() {
    let (cluster, mut scenario) = scenario(1);
    let image = |pod: &Value| pod["spec"]["containers"][0]["image"] == "new:1.0.0";
    let mut deployment = cluster.get("deployments", "payments", "api").unwrap();
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "new:1.0.0".into();
    cluster.update("deployments", deployment).unwrap();
    until(&cluster, &mut scenario, |c| {
        let pods = pods(c, "api");
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        assert!(ready >= 5, "only {ready} ready");
        pods.len() == 6 && pods.iter().all(|pod| image(pod) && is_ready(pod))
    });
    until(&cluster, &mut scenario, |c| {
        c.get("deployments", "payments", "api").unwrap()["status"]["updatedReplicas"] == 6
    });
}

#[test]
fn a_deleted_pod_is_marked_then_gone_then_replaced() {
    let (cluster, mut scenario) = scenario(1);
    let victim = pods(&cluster, "web")[0].clone();
    assert!(scenario.delete_gracefully(&victim));
    assert!(is_deleted(&cluster.get("pods", "shop", name(&victim)).unwrap()));
    until(&cluster, &mut scenario, |c| c.get("pods", "shop", name(&victim)).is_none());
    until(&cluster, &mut scenario, |c| pods(c, "web").iter().filter(|pod| is_ready(pod)).count() == 8);
}

#[test]
fn deleting_a_deployment_takes_everything_it_owned() {
    let (cluster, mut scenario) = scenario(1);
    cluster.delete("deployments", "shop", "web").unwrap();
    until(&cluster, &mut scenario, |c| {
        let sets = c.list("replicasets");
        pods(c, "web").is_empty() && sets.len() == 7 && c.len("pods") == 36
    });
}
