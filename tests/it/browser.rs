//! The dashboard, and EventSource in a page, in a real browser against the informerd program.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use informerd::testing::sim::{ApiServer, Cluster};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::queues::send;
use crate::support::browser::Browser;
use crate::support::client;
use crate::support::informerd;
use crate::support::port::Port;

/// A simulated cluster, and an informerd process that follows it.
struct World {
    cluster: Cluster,
    api: ApiServer,
    port: Port,
    informerd: Child,
}

impl World {
    /// Starts informerd over a cluster that holds `pods` in the namespace `shop`.
    async fn with_pods(pods: &[&str]) -> Self {
        let cluster = Cluster::default();
        for name in pods {
            cluster.create("pods", mk_pod(name)).expect("the name is free");
        }
        Self::start(cluster).await
    }

    async fn start(cluster: Cluster) -> Self {
        let api = ApiServer::bind(cluster.clone(), (Ipv4Addr::LOCALHOST, 0).into()).await;
        let api = api.expect("a free port for the API server");
        // informerd must find the API server again on the same port after a restart.
        let port = Port::hold();
        let informerd = spawn(&api.url(), port.address).await;
        Self { cluster, api, port, informerd }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.port.address)
    }

    /// Kills informerd without warning, so that it misses what the test writes next.
    async fn kill(&mut self) {
        self.informerd.kill().await.expect("informerd was running");
    }

    /// Ends informerd by SIGTERM, as a kubelet does.
    async fn terminate(&mut self) {
        let id = self.informerd.id().expect("informerd is running").to_string();
        let sent = Command::new("kill").args(["-TERM", &id]).status().await.expect("kill runs");
        assert!(sent.success());
        let status = self.informerd.wait().await.expect("informerd ends");
        assert!(status.success(), "informerd ended with {status} on SIGTERM");
    }

    async fn restart(&mut self) {
        self.informerd = spawn(&self.api.url(), self.port.address).await;
    }

    fn create(&self, name: &str) {
        self.cluster.create("pods", mk_pod(name)).expect("the name is free");
    }

    fn delete(&self, name: &str) {
        self.cluster.delete("pods", "shop", name).expect("the pod is there");
    }

    /// Makes a container crash; returns the new resourceVersion.
    fn crash(&self, name: &str, restarts: u32) -> String {
        let waiting = json!([{ "name": "main", "ready": false, "restartCount": restarts,
            "state": { "waiting": { "reason": "CrashLoopBackOff" } } }]);
        let patch = json!({ "status": { "containerStatuses": waiting } });
        let pod = self.cluster.patch("pods", "shop", name, &patch).expect("the pod is there");
        pod["metadata"]["resourceVersion"].as_str().expect("a resourceVersion").to_owned()
    }
}

async fn spawn(server: &str, address: SocketAddr) -> Child {
    let mut command = Command::from(informerd());
    let mut informerd = command
        .args(["serve", "--server", server, "--watch", "pods", "--watch", "nodes"])
        .args(["--on-demand", WIDGETS])
        .args(["--listen", &address.to_string(), "--admin-listen", "off", "--log", "warn"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("informerd starts");
    let listening = async {
        while TcpStream::connect(address).await.is_err() {
            let ended = informerd.try_wait().expect("its status can be asked");
            assert!(ended.is_none(), "informerd ended: {ended:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), listening).await.expect("informerd listens");
    informerd
}

fn mk_pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "shop", "name": name, "labels": { "app": name.split('-').next() } },
        "spec": { "nodeName": "node-1", "containers": [{ "name": "main", "image": "<b>image</b>" }] },
        "status": { "phase": "Running", "containerStatuses": [{ "name": "main", "ready": true,
            "restartCount": 0, "state": { "running": {} } }] },
    })
}

/// Opens the page and waits for its table.
async fn open(browser: &Browser, world: &World, rows: usize) {
    browser.open(&world.url()).await;
    browser.until(&format!("informerd.state === 'live' && informerd.rows() === {rows}")).await;
}

const ROWS: &str = "[...document.querySelectorAll('#body tr[data-key]')].map((row) => row.dataset.key)";

fn row(name: &str) -> String {
    format!("document.querySelector('#body tr[data-key=\"shop/{name}\"]')")
}

#[tokio::test]
async fn page_shows_informers_and_rows() {
    let Some(browser) = Browser::start().await else { return };
    let world = World::with_pods(&["cart-1", "cart-2", "web-1"]).await;
    open(&browser, &world, 3).await;
    browser.until(&format!("{ROWS}.length === 3")).await;

    let keys: Vec<String> = browser.eval(ROWS).await;
    assert_eq!(keys, ["shop/cart-1", "shop/cart-2", "shop/web-1"]);
    let cells = "[...document.querySelectorAll('#body tr[data-key]')][0].innerText.split(/\\s+/).slice(0, 6)";
    let cells: Vec<String> = browser.eval(cells).await;
    assert_eq!(cells, ["shop", "cart-1", "Running", "1/1", "0", "node-1"]);

    let informers = "[...document.querySelectorAll('.informer .name')].map((name) => name.innerText)";
    let mut informers: Vec<String> = browser.eval(informers).await;
    informers.sort();
    assert_eq!(informers, ["nodes", "pods"]);
    browser.until("document.querySelector('[aria-current] .objects').innerText === '3'").await;
    // True only if the page's Content-Security-Policy allows its own stylesheet.
    assert_eq!(browser.eval::<String>("getComputedStyle(document.body).display").await, "grid");
}

/// A custom resource of the simulator, with the columns Color and Size.
const WIDGETS: &str = "widgets.demo.informerd.dev";

#[tokio::test]
async fn custom_resource_columns_come_from_the_definition_and_known_failures_are_red() {
    let Some(browser) = Browser::start().await else { return };
    let world = World::with_pods(&["web-1"]).await;
    for (name, phase) in [("one", "Turning"), ("two", "TurningFailed"), ("three", "Ready")] {
        let spec = json!({ "metadata": { "namespace": "shop", "name": name }, "spec": { "color": "red", "size": 7 } });
        world.cluster.create(WIDGETS, spec).expect("the name is free");
        let status = json!({ "status": { "phase": phase } });
        world.cluster.patch(WIDGETS, "shop", name, &status).expect("it exists");
    }
    let snapshot = format!("/v1/snapshot/{WIDGETS}");
    assert_eq!(client::get(world.port.address, &snapshot, &[]).await.status(), 200);
    browser.open(&format!("{}#/{WIDGETS}", world.url())).await;
    browser.until("informerd.state === 'live' && informerd.rows() === 3").await;
    let header = "[...document.querySelectorAll('#header th')].map((cell) => cell.innerText.trim())";
    browser.until(&format!("{header}.length === 6")).await;
    let header: Vec<String> = browser.eval(header).await;
    assert_eq!(header, ["Namespace", "Name", "Status", "Color", "Size", "Age"]);
    browser.until(&format!("{} !== null", row("one"))).await;
    for (name, text, tone) in [
        ("one", "Turning red 7", ""),
        ("two", "TurningFailed red 7", "bad"),
        ("three", "Ready red 7", "good"),
    ] {
        let cells = format!("[...{}.cells]", row(name));
        let found = format!("{cells}.slice(2, 5).map((cell) => cell.innerText.trim()).join(' ')");
        assert_eq!(browser.eval::<String>(&found).await, text);
        assert_eq!(browser.eval::<String>(&format!("{cells}[2].dataset.tone ?? ''")).await, tone, "{name}");
    }
}

#[tokio::test]
async fn filter_narrows_by_text_and_by_label() {
    let Some(browser) = Browser::start().await else { return };
    let world = World::with_pods(&["cart-1", "cart-2", "web-1"]).await;
    open(&browser, &world, 3).await;

    for (filter, expected) in [
        ("CART", vec!["shop/cart-1", "shop/cart-2"]),
        ("app=web", vec!["shop/web-1"]),
        ("app!=web 2", vec!["shop/cart-2"]),
        ("app=we", vec![]),
    ] {
        browser.fill("#filter", filter).await;
        browser.until(&format!("informerd.shown() === {}", expected.len())).await;
        browser.until(&format!("{ROWS}.length === {}", expected.len())).await;
        assert_eq!(browser.eval::<Vec<String>>(ROWS).await, expected, "filter {filter:?}");
    }
    // Changes are filtered as they arrive: they enter the view, and leave it.
    browser.fill("#filter", "crashloop").await;
    browser.until("informerd.shown() === 0").await;
    world.crash("web-1", 1);
    browser.until(&format!("{ROWS}.join() === 'shop/web-1'")).await;
    world.delete("web-1");
    browser.until(&format!("{ROWS}.length === 0")).await;
}

#[tokio::test]
async fn click_shows_the_object_and_its_stream() {
    let Some(browser) = Browser::start().await else { return };
    let world = World::with_pods(&["cart-1", "web-1"]).await;
    open(&browser, &world, 2).await;
    browser.until(&row("web-1")).await;

    browser.click("#body tr[data-key='shop/web-1']").await;
    browser.until("document.querySelector('#log li:last-child .type').innerText === 'ADDED'").await;
    browser.until("document.getElementById('json').innerText.includes('\"name\": \"web-1\"')").await;
    assert_eq!(browser.eval::<String>("document.getElementById('panel-title').innerText").await, "web-1");
    // Text from the cluster is shown as text, even if it looks like HTML.
    browser.until("document.getElementById('json').innerText.includes('<b>image</b>')").await;
    assert_eq!(browser.eval::<u32>("document.querySelectorAll('#json b').length").await, 0);

    world.crash("cart-1", 9);
    let version = world.crash("web-1", 4);
    browser.until("document.querySelector('#log .type[data-type=MODIFIED]')").await;
    let entry = "document.querySelector('#log li:first-child')";
    assert_eq!(
        browser.eval::<String>(&format!("{entry}.querySelector('.version').innerText")).await,
        version
    );
    let paths = format!("[...{entry}.querySelectorAll('.path')].map((path) => path.innerText)");
    let paths: Vec<String> = browser.eval(&paths).await;
    assert!(paths.contains(&"status.containerStatuses[0].restartCount".to_owned()), "{paths:?}");

    browser.click("#log li:first-child summary").await;
    browser.until(&format!("{entry}.querySelector('.raw')")).await;
    let raw: String = browser.eval(&format!("{entry}.querySelector('.raw').textContent")).await;
    assert!(
        raw.contains(&format!("\"resume\":\"pods:{version}\",\"type\":\"MODIFIED\",\"object\":{{")),
        "{raw}"
    );

    world.delete("web-1");
    browser.until("document.querySelector('#log .type[data-type=DELETED]')").await;
    browser.until("document.getElementById('json').classList.contains('gone')").await;
    browser.click("#panel-close").await;
    browser.until("document.getElementById('panel').hidden").await;
}

#[tokio::test]
async fn a_click_in_the_graph_opens_the_related_object() {
    let Some(browser) = Browser::start().await else { return };
    let world = World::with_pods(&["cart-1", "web-1"]).await;
    world.cluster.create("nodes", json!({"metadata": {"name": "node-1"}})).expect("the name is free");
    open(&browser, &world, 2).await;
    browser.until(&row("web-1")).await;
    browser.click("#body tr[data-key='shop/web-1']").await;
    browser.until("document.getElementById('panel-title').innerText === 'web-1'").await;
    assert_eq!(browser.eval::<u32>("document.querySelectorAll('#graph-picture .box').length").await, 0);

    browser.click("#graph summary").await;
    let names =
        "[...document.querySelectorAll('#graph-picture .box .name')].map((name) => name.textContent).join()";
    // A node is drawn above the pods that name it.
    browser.until(&format!("{names} === 'node-1,web-1'")).await;
    let links = "document.querySelectorAll('#graph-picture path.link').length";
    assert_eq!(browser.eval::<u32>(links).await, 1);
    let selected = "document.querySelector('#graph-picture .box.selected .name').textContent";
    assert_eq!(browser.eval::<String>(selected).await, "web-1");

    // The panel shows the node, and its graph stays open: all pods of the node are below it.
    browser.click("#graph-picture a.box").await;
    browser.until("document.getElementById('panel-title').innerText === 'node-1'").await;
    browser.until(&format!("{names} === 'node-1,cart-1,web-1'")).await;
    assert_eq!(browser.eval::<String>("location.hash").await, "#/nodes/node-1");

    // The graph is updated when the cluster changes.
    world.delete("cart-1");
    browser.until(&format!("{names} === 'node-1,web-1'")).await;
}

#[tokio::test]
async fn changes_appear_and_deleted_objects_disappear() {
    let Some(browser) = Browser::start().await else { return };
    let world = World::with_pods(&["cart-1", "web-1"]).await;
    open(&browser, &world, 2).await;
    browser.until(&row("web-1")).await;

    world.crash("web-1", 3);
    browser.until(&format!("{}.innerText.includes('CrashLoopBackOff')", row("web-1"))).await;
    browser.until(&format!("{}.innerText.includes('0/1')", row("web-1"))).await;
    world.create("api-1");
    browser.until(&format!("{ROWS}.join() === 'shop/api-1,shop/cart-1,shop/web-1'")).await;
    world.delete("cart-1");
    browser.until(&format!("{ROWS}.join() === 'shop/api-1,shop/web-1'")).await;
}

#[tokio::test]
async fn page_recovers_from_a_restart() {
    let Some(browser) = Browser::start().await else { return };
    let mut world = World::with_pods(&["cart-1", "cart-2", "web-1"]).await;
    open(&browser, &world, 3).await;

    world.kill().await;
    browser.until("informerd.state === 'reconnecting'").await;
    // The rows stay readable while the page is disconnected.
    assert_eq!(browser.eval::<u32>("informerd.rows()").await, 3);
    world.delete("cart-2");
    world.create("api-1");
    world.crash("web-1", 1);
    world.restart().await;
    browser.until(&format!("{ROWS}.join() === 'shop/api-1,shop/cart-1,shop/web-1'")).await;
    browser.until("informerd.state === 'live'").await;
    browser.until(&format!("{}.innerText.includes('CrashLoopBackOff')", row("web-1"))).await;
}

/// A client that follows the contract: put on ADDED and MODIFIED, remove on DELETED, clear on RESET. It counts what
/// must not happen: a repeated event, and an object that goes back to an older version.
const FOLD: &str = "
  // A list and a watch may order the keys of an object differently.
  window.plain = (value) => JSON.stringify(value, (_, inner) =>
    inner && typeof inner === 'object' && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1))) : inner);
  const fold = { objects: new Map(), versions: new Map(), seen: new Set(), all: [], repeats: 0, backwards: 0,
                 synced: 0, resets: 0, opens: 0, events: 0 };
  const source = fold.source = new EventSource('/v1/watch/pods');
  const forget = () => { fold.objects.clear(); fold.versions.clear(); fold.seen.clear(); };
  source.onopen = () => { fold.opens += 1; };
  source.addEventListener('SYNCED', () => { fold.synced += 1; });
  source.addEventListener('RESET', () => { fold.resets += 1; forget(); });
  for (const type of ['ADDED', 'MODIFIED', 'DELETED']) {
    source.addEventListener(type, (event) => {
      const { object } = JSON.parse(event.data);
      const key = `${object.metadata.namespace}/${object.metadata.name}`;
      const version = object.metadata.resourceVersion;
      const once = `${key} ${version}`;
      fold.events += 1;
      fold.all.push(version);
      if (fold.seen.has(once)) fold.repeats += 1;
      fold.seen.add(once);
      if (BigInt(version) < (fold.versions.get(key) ?? 0n)) fold.backwards += 1;
      fold.versions.set(key, BigInt(version));
      if (type === 'DELETED') fold.objects.delete(key); else fold.objects.set(key, plain(object));
    });
  }
  window.fold = fold;
  done(true);";

/// The names at which the folded state and the store differ.
const DIFFERENCE: &str = "
  fetch('/v1/snapshot/pods').then((answer) => answer.json()).then(({ items }) => {
    const store = new Map(items.map((o) => [`${o.metadata.namespace}/${o.metadata.name}`, plain(o)]));
    const keys = new Set([...store.keys(), ...fold.objects.keys()]);
    done([...keys].filter((key) => store.get(key) !== fold.objects.get(key)));
  });";

async fn check_fold(browser: &Browser, present: &[&str]) {
    for name in present {
        browser.until(&format!("fold.objects.has('shop/{name}')")).await;
    }
    assert_eq!(browser.run(DIFFERENCE).await, json!([]), "the folded state differs from the store");
    assert_eq!(browser.eval::<u32>("fold.repeats").await, 0, "an event came twice");
    assert_eq!(browser.eval::<u32>("fold.backwards").await, 0, "an object went back");
}

#[tokio::test]
async fn event_source_resumes_after_restarts_by_its_last_event_id() {
    let Some(browser) = Browser::start().await else { return };
    let mut world = World::with_pods(&["cart-1", "cart-2", "web-1"]).await;
    open(&browser, &world, 3).await;
    browser.run(FOLD).await;
    browser.until("fold.synced === 1").await;
    let live = [world.crash("web-1", 1), world.crash("cart-1", 1), world.crash("web-1", 2)];
    browser.until(&format!("fold.all.includes('{}')", live[2])).await;
    check_fold(&browser, &["cart-1", "cart-2", "web-1"]).await;

    // Nothing changes while it is disconnected, so no event is repeated.
    let before: u32 = browser.eval("fold.events").await;
    world.terminate().await;
    world.restart().await;
    browser.until("fold.opens === 2").await;
    world.create("quiet-1");
    check_fold(&browser, &["quiet-1"]).await;
    assert_eq!(browser.eval::<u32>("fold.resets").await, 0, "a current token was refused");
    assert_eq!(browser.eval::<u32>("fold.events").await, before + 1);

    // All of these changes happen while informerd is down.
    world.kill().await;
    world.delete("cart-2");
    world.crash("web-1", 3);
    world.create("away-1");
    world.create("away-2");
    world.delete("away-2");
    world.restart().await;
    browser.until("fold.opens === 3").await;
    check_fold(&browser, &["away-1"]).await;
    let after = [world.crash("cart-1", 2), world.crash("away-1", 1)];
    world.create("last-1");
    check_fold(&browser, &["last-1"]).await;
    let all: Vec<String> = browser.eval("fold.all").await;
    for version in live.iter().chain(&after) {
        assert!(all.contains(version), "the change {version} was lost: {all:?}");
    }
    let mut names: Vec<String> = browser.eval("[...fold.objects.keys()]").await;
    names.sort();
    assert_eq!(names, ["shop/away-1", "shop/cart-1", "shop/last-1", "shop/quiet-1", "shop/web-1"]);
}

const PODS: usize = 5_000;
const EVENTS: usize = 500;

/// Scrolls a little in each frame until `EVENTS` more events are applied, and returns the times between frames.
const MEASURE: &str = "
  const scroller = document.getElementById('scroller'), gaps = [], costs = [], tasks = [];
  new PerformanceObserver((list) => tasks.push(...list.getEntries().map((task) => Math.round(task.duration))))
    .observe({ type: 'longtask' });
  const first = informerd.events(), started = performance.now();
  let last = started, rendered = 0, down = 60;
  const frame = () => {
    const now = performance.now();
    gaps.push(now - last);
    last = now;
    costs.push(informerd.lastFrameMs);
    rendered = Math.max(rendered, informerd.rendered(), document.querySelectorAll('#body tr').length);
    const before = scroller.scrollTop;
    scroller.scrollTop += down;
    if (scroller.scrollTop === before) down = -down;
    if (informerd.events() - first < EVENTS) { requestAnimationFrame(frame); return; }
    const at = (values, q) => values.toSorted((a, b) => a - b)[Math.floor((values.length - 1) * q)];
    const ms = (values) => [0.5, 0.95, 1].map((q) => Number(at(values, q).toFixed(1)));
    done({ seconds: Number(((now - started) / 1000).toFixed(1)), frames: gaps.length, gaps: ms(gaps), costs: ms(costs),
           tasks, rendered, rows: informerd.rows(), queued: informerd.queued() });
  };
  requestAnimationFrame(frame);";

#[tokio::test]
async fn page_stays_smooth_with_many_pods_and_events() {
    let Some(browser) = Browser::start().await else { return };
    let cluster = Cluster::default();
    cluster.bulk_load("pods", PODS, 3_200).expect("pods are a kind");
    let names: Vec<_> = cluster.list("pods").iter().map(|pod| pod["metadata"].clone()).collect();
    let world = World::start(cluster).await;
    open(&browser, &world, PODS).await;

    let cluster = world.cluster.clone();
    let load = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(50));
        for turn in (0..).step_by(5) {
            tick.tick().await;
            for at in turn..turn + 5 {
                let name = &names[at * 37 % names.len()];
                let (namespace, name) =
                    (name["namespace"].as_str().expect("text"), name["name"].as_str().expect("text"));
                let patch = json!({ "status": { "phase": if at % 2 == 0 { "Pending" } else { "Running" } },
                                    "metadata": { "annotations": { "turn": at.to_string() } } });
                cluster.patch("pods", namespace, name, &patch).expect("the pod is there");
            }
        }
    });
    let measured = browser.run(&MEASURE.replace("EVENTS", &EVENTS.to_string())).await;
    load.abort();
    // For the reader only: on a busy machine these figures prove nothing.
    println!("{PODS} pods, 100 events/s; [median, 95 %, worst] in ms: {measured}");

    let number = |path: &str| measured.pointer(path).and_then(Value::as_f64).expect("a number");
    assert_eq!(number("/rows"), PODS as f64);
    assert!(number("/rendered") < 200.0, "rows off the screen are in the DOM: {measured}");
    assert!(number("/gaps/2") < 3_000.0, "the page froze: {measured}");
    assert!(number("/queued") < EVENTS as f64, "events are applied slower than they come: {measured}");
}

#[tokio::test]
async fn page_shows_queues_and_puts_failed_keys_back() {
    let Some(browser) = Browser::start().await else { return };
    let world = World::with_pods(&["cart-1", "cart-2", "web-1"]).await;
    let address = world.port.address;
    let post = async |verb: &str, body: Value| {
        let answer = send(address, "POST", &format!("/v1/queues/ingress/{verb}"), &body).await;
        assert_eq!(answer.status(), 200, "{verb}: {}", answer.text());
        answer.json()
    };
    let spec = json!({ "watch": [{ "resource": "pods" }], "maxAttempts": 1 });
    assert_eq!(send(address, "PUT", "/v1/queues/ingress", &spec).await.status(), 201);
    let mut leases = Vec::new();
    while leases.len() < 3 {
        let items = post("lease", json!({ "waitSeconds": 20 })).await["items"].clone();
        leases.push(items[0].clone());
    }
    // One key is in flight, two have failed.
    let busy = leases.pop().expect("three keys were leased");
    for lease in &leases {
        let failed = post("retry", json!({ "lease": lease["lease"], "error": "no <b>route</b>" })).await;
        assert_eq!(failed["failed"], true);
    }
    browser.open(&world.url()).await;
    let link = "document.querySelector('#queue-list .informer')";
    browser.until(&format!("{link}.innerText.includes('1 in flight · 2 failed')")).await;
    browser.click("#queue-list .informer").await;
    let keys = |id: &str| format!("[...document.querySelectorAll('#{id} tr')].map((row) => row.dataset.key)");
    browser.until(&format!("{}.length === 2", keys("failed-keys"))).await;
    let name = |item: &Value| format!("pods shop/{}", item["name"].as_str().expect("a name"));
    assert_eq!(browser.eval::<Vec<String>>(&keys("leases")).await, [name(&busy)]);
    assert_eq!(browser.eval::<Vec<String>>(&keys("failed-keys")).await, [name(&leases[0]), name(&leases[1])]);
    // A worker's error is shown as text, even if it looks like HTML.
    let why = "document.querySelector('#failed-keys .why').innerText";
    assert_eq!(browser.eval::<String>(why).await, "no <b>route</b>");
    let figure = |label: &str| {
        format!(
            "[...document.querySelectorAll('#queue-figures div')].find((one) => one.firstChild.innerText === '{label}').lastChild.innerText"
        )
    };
    assert_eq!(browser.eval::<String>(&figure("failed")).await, "2");
    assert!(browser.eval::<bool>("document.getElementById('objects-view').hidden").await);

    browser.click("#failed-keys .put-back").await;
    browser.until(&format!("{}.join() === '{}'", keys("failed-keys"), name(&leases[1]))).await;
    browser.until(&format!("{} === '1'", figure("ready"))).await;
    let item = post("lease", json!({ "waitSeconds": 0 })).await["items"][0].clone();
    assert_eq!(name(&item), name(&leases[0]));
    browser.click("#put-back-all").await;
    browser.until("document.querySelector('#failed-keys').innerText.trim() === 'none'").await;
    let item = post("lease", json!({ "waitSeconds": 0 })).await["items"][0].clone();
    assert_eq!(name(&item), name(&leases[1]));

    // Back to the objects, then to a queue that does not exist.
    browser.click("#informers .informer").await;
    browser.until("!document.getElementById('objects-view').hidden && informerd.shown() > 0").await;
    browser.open(&format!("{}#queue/none", world.url())).await;
    browser
        .until("document.getElementById('queue-problem').innerText.includes('there is no queue \"none\"')")
        .await;
    browser.until("document.getElementById('panel').hidden").await;
}
