// The page of informerd: the informers, the objects of one of them, the stream of one object; the work queues.
//
//   GET /v1/resources ──each 2 s──▶ Informers                         (left)
//   /v1/ws ──▶ Line ──pods────────▶ Feed ──▶ Table ──one frame──▶ DOM (middle)
//                   ──pods/NS/NAME▶ Feed ──▶ Panel ──one frame──▶ DOM (right)
//   GET /v1/queues, /v1/queues/NAME ──each 2 s──▶ Queues                 (left, and middle if one is chosen)
//
// The page stays smooth with thousands of objects and hundreds of events a second:
// - an event's JSON is parsed once, in slices of a few milliseconds, and only the values that the row shows are kept;
// - events change rows, never the DOM; the DOM is updated at most once per animation frame;
// - only the rows on the screen (and a few around them) exist as elements, and they are reused.
//
// Everything from the cluster reaches the DOM as text, never as markup.
//
// The page only reads, except for one button, which puts failed keys of a queue back.
//
// `window.informerd` lets a test, or a person at the console, look inside; it changes nothing:
//   rows()       objects held        shown()      rows that pass the filter
//   rendered()   rows in the DOM     queued()     events received, not yet applied
//   events()     events applied      state        connecting | loading | live | reconnecting | refused
//   resource     selected informer   token        resume token of the last event
//   lastFrameMs  script time of the last frame    maxFrameMs   the longest so far

const POLL_MS = 2_000;
const POLL_TIMEOUT_MS = 8_000;
const SLICE_MS = 6; // parsing yields after this, so that a frame of 16 ms still fits beside it
const SPARK_LEN = 60; // samples: two minutes at POLL_MS
const STALE_SECONDS = 120; // bookmarks come about once a minute; two missing ones are shown in color
const FLASH_MS = 900;
const OVERSCAN = 8; // rows kept above and below the screen, so that fast scrolling shows no gap
const LOG_LEN_MAX = 200;
const CHANGES_LEN_MAX = 24; // changed paths listed per event
const JSON_LINES_MAX = 5_000; // beyond this the object is shown without color
const RETRY_MS_MIN = 1_000;
const RETRY_MS_MAX = 30_000;
/** Removed rows that a table keeps beyond as many as it shows, while it is not drawn. */
const DEAD_ROWS_MAX = 1000;
const NARROW_PX = 820; // a table narrower than this leaves out the columns marked `low: 1`
const GRAPH_ROW_MAX = 12; // boxes in a row of the graph; the last one counts further nodes
const BOX = { width: 156, height: 36, gap: 10, rise: 34 }; // of the graph, in pixels
const SMALL_PX = 480; // a table narrower than this also leaves out the columns marked `low: 2`

// === Small helpers ===

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat('en-US');

function el(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function svg(tag, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Sets text only where it differs: a write that changes nothing still costs a layout. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setPill(pill, tone, text, aside = '') {
  pill.dataset.tone = tone;
  if (!pill.firstElementChild) pill.replaceChildren(el('span'), el('span'));
  setText(pill.firstElementChild, text);
  // Hidden from screen readers, which would announce each second; they announce changes of the state.
  pill.lastElementChild.setAttribute('aria-hidden', 'true');
  setText(pill.lastElementChild, aside && ` · ${aside}`);
}

function bytes(count) {
  if (!(count >= 0)) return '–';
  let unit = 0;
  while (count >= 1000 && unit < 4) { count /= 1000; unit += 1; }
  return `${unit && count < 100 ? count.toFixed(1) : Math.round(count)} ${['B', 'kB', 'MB', 'GB', 'TB'][unit]}`;
}

function rate(perSecond) {
  if (perSecond === null) return '–';
  return perSecond > 0 && perSecond < 9.95 ? perSecond.toFixed(1) : number.format(Math.round(perSecond));
}

/** Age as kubectl writes it: 42s, 5m10s, 3h, 12d. */
function age(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 120) return `${s}s`;
  const m = Math.floor(s / 60);
  if (m < 10) return s % 60 ? `${m}m${s % 60}s` : `${m}m`;
  if (m < 180) return `${m}m`;
  const h = Math.floor(m / 60);
  if (h < 8) return m % 60 ? `${h}h${m % 60}m` : `${h}h`;
  if (h < 48) return `${h}h`;
  const d = Math.floor(h / 24);
  return d < 730 ? `${d}d` : `${Math.floor(d / 365)}y`;
}

const seconds = (s) => (s < 1 ? 'now' : `${age(s * 1000)} ago`);

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard outside a secure context (http on another host): select the text, so that the user can copy it.
    getSelection()?.selectAllChildren(button);
    return;
  }
  button.classList.add('copied');
  setTimeout(() => button.classList.remove('copied'), 1200);
}

// === Line: one WebSocket for all feeds ===

/** The head of a message: its id, its resume token if it has one, and its type. */
const MESSAGE_HEAD = /^\{"id":"(\d+)",(?:"resume":"([^"]*)",)?"type":"([A-Z]+)"/;

/**
 * The connection to `/v1/ws`, open as long as there is a feed. Each feed is a subscription on it. After a disconnect it connects
 * again, with growing delays, and each feed resumes from its last token.
 */
class Line {
  constructor() {
    this.feeds = new Map();
    this.last = 0;
    this.socket = null;
    this.retryMs = RETRY_MS_MIN;
  }

  /** Gives a feed an id of its own and subscribes. An id is used once, so late events of an ended feed are ignored. */
  add(feed) {
    this.drop(feed);
    feed.id = String(++this.last);
    this.feeds.set(feed.id, feed);
    if (this.socket?.readyState === WebSocket.OPEN) this.subscribe(feed);
    else if (!this.socket) this.connect();
  }

  drop(feed) {
    if (!this.feeds.delete(feed.id)) return;
    if (this.socket?.readyState === WebSocket.OPEN && feed.subscribed) this.say({ unsubscribe: { id: feed.id } });
    feed.subscribed = false;
  }

  say(message) { this.socket.send(JSON.stringify(message)); }

  subscribe(feed) {
    feed.subscribed = true;
    feed.opened = false;
    this.say({ subscribe: { id: feed.id, resources: feed.target, resume: feed.token } });
  }

  connect() {
    clearTimeout(this.retry);
    const socket = new WebSocket(`${location.origin.replace(/^http/, 'ws')}/v1/ws`);
    this.socket = socket;
    socket.onopen = () => {
      this.retryMs = RETRY_MS_MIN;
      for (const feed of this.feeds.values()) this.subscribe(feed);
    };
    socket.onmessage = ({ data }) => {
      const [, id, resume, type] = MESSAGE_HEAD.exec(data) ?? [];
      this.feeds.get(id)?.take(type, resume, data);
    };
    socket.onclose = () => {
      this.socket = null;
      for (const feed of this.feeds.values()) feed.lost();
      if (this.feeds.size) this.retry = setTimeout(() => this.connect(), this.retryMs * (0.75 + Math.random() / 2));
      this.retryMs = Math.min(this.retryMs * 2, RETRY_MS_MAX);
    };
  }
}

const line = new Line();

// === Feed: one subscription, its events in order ===

/**
 * Follows one target (`pods`, `pods/NAMESPACE/NAME`) for as long as it is open, and reports to `sink`:
 * `sink.fresh()` before a new snapshot (first connection, RESET, or a reconnect without a token);
 * `sink.event(frame)` in order, `frame.message` parsed; `sink.state(feed)` on each change of `feed.state`.
 *
 * If a subscription is refused (with 503 while informerd starts, say), `detail` has the reason, and the feed tries again, with
 * growing delays.
 */
class Feed {
  constructor(path, sink) {
    this.target = path.replace('/v1/watch/', '');
    this.sink = sink;
    this.token = '';
    this.state = 'connecting';
    this.since = performance.now();
    this.detail = '';
    this.applied = 0;
    this.retryMs = RETRY_MS_MIN;
    this.queue = [];
    this.head = 0;
    this.draining = false;
    // A message from the page to itself is the only kind of task that neither waits for a frame nor is throttled in a hidden tab.
    this.channel = new MessageChannel();
    this.channel.port1.onmessage = () => this.drain();
    line.add(this);
  }

  /** A message of its subscription. */
  take(type, resume, data) {
    if (type === 'CLOSED') {
      this.subscribed = false;
      this.lost();
      this.retry = setTimeout(() => line.add(this), this.retryMs * (0.75 + Math.random() / 2));
      this.retryMs = Math.min(this.retryMs * 2, RETRY_MS_MAX);
      return;
    }
    if (!this.opened && type !== 'ERROR') {
      this.opened = true;
      this.push({ type: 'open', resumed: this.token !== '' });
    }
    if (resume) this.token = resume;
    // As in Kubernetes, a bookmark with an annotation ends the first state.
    const synced = type === 'BOOKMARK' && data.includes('"k8s.io/initial-events-end":"true"');
    this.push({ type: synced ? 'SYNCED' : type, data, id: resume });
  }

  lost() { this.push({ type: 'lost' }); }

  close() {
    line.drop(this);
    clearTimeout(this.retry);
    this.channel.port1.close();
    this.queue = [];
  }

  push(frame) {
    this.queue.push(frame);
    if (this.draining) return;
    this.draining = true;
    this.channel.port2.postMessage(0);
  }

  drain() {
    const end = performance.now() + SLICE_MS;
    while (this.head < this.queue.length && performance.now() < end) {
      // One event that cannot be shown must not end the feed.
      try { this.apply(this.queue[this.head++]); } catch (error) { console.error(error); }
    }
    if (this.head < this.queue.length) {
      this.channel.port2.postMessage(0);
    } else {
      this.queue = [];
      this.head = 0;
      this.draining = false;
    }
  }

  apply(frame) {
    switch (frame.type) {
      case 'open':
        this.retryMs = RETRY_MS_MIN;
        this.detail = '';
        if (!frame.resumed) this.sink.fresh();
        this.enter(frame.resumed ? 'live' : 'loading');
        return;
      case 'lost':
        if (this.state !== 'refused') this.enter('reconnecting');
        return;
      case 'RESET':
        this.sink.fresh();
        this.enter('loading');
        break;
      case 'SYNCED':
        this.enter('live');
        break;
      default:
    }
    try {
      frame.message = JSON.parse(frame.data);
    } catch {
      frame.message = null;
    }
    if (frame.type === 'ERROR') {
      this.detail = String(frame.message?.object?.message ?? 'refused');
      this.enter('refused');
    }
    this.applied += 1;
    this.sink.event(frame);
  }

  enter(state) {
    if (state !== this.state) this.since = performance.now();
    this.state = state;
    this.sink.state(this);
  }

  show(pill, aside = '') {
    const away = Math.floor((performance.now() - this.since) / 1000);
    const waiting = away > 0 ? `${age(away * 1000)}` : '';
    switch (this.state) {
      case 'live': return setPill(pill, 'good', 'live', aside);
      case 'loading': return setPill(pill, 'wait', 'loading', aside);
      case 'reconnecting': return setPill(pill, 'bad', 'reconnecting', waiting);
      case 'refused': return setPill(pill, 'bad', 'refused', waiting);
      default: return setPill(pill, 'wait', 'connecting', waiting);
    }
  }
}

// === Columns: what a row of each kind shows ===
// `read(object)` gives a text, a number, or {text, sort, tone}; with `clock` it gives milliseconds, shown as an age.
// `low`: left out where the table is narrow (1) or very narrow (2). The one column without `width` takes the remaining width.

const time = (text) => (text ? Date.parse(text) : NaN);
const list = (value) => (Array.isArray(value) ? value : []);

const NAMESPACE = { label: 'Namespace', width: 140, low: 2, read: (o) => o.metadata.namespace ?? '' };
const NAME = { label: 'Name', strong: true, read: (o) => o.metadata.name };
const AGE = { label: 'Age', width: 76, end: true, clock: true, read: (o) => time(o.metadata.creationTimestamp) };
const count = (label, read, extra) => ({ label, width: 92, end: true, read, ...extra });
const text = (label, width, read, extra) => ({ label, width, read, ...extra });

function ratio(ready, wanted) {
  const [n, m] = [ready ?? 0, wanted ?? 0];
  return { text: `${n}/${m}`, sort: m ? n / m : 1, tone: n < m ? 'short' : '' };
}

/** The STATUS column of `kubectl get pods` (printPod in pkg/printers/internalversion). */
function podStatus(pod) {
  const status = pod.status ?? {};
  let reason = status.reason || status.phase || 'Unknown';
  const sidecars = new Set(list(pod.spec?.initContainers).filter((c) => c.restartPolicy === 'Always').map((c) => c.name));
  const inits = list(status.initContainerStatuses);
  const pending = inits.findIndex((c) => !(c.state?.terminated?.exitCode === 0 || (sidecars.has(c.name) && c.started)));
  if (pending >= 0) {
    const { terminated, waiting } = inits[pending].state ?? {};
    if (terminated) reason = `Init:${terminated.reason || (terminated.signal ? `Signal:${terminated.signal}` : `ExitCode:${terminated.exitCode}`)}`;
    else if (waiting?.reason && waiting.reason !== 'PodInitializing') reason = `Init:${waiting.reason}`;
    else reason = `Init:${pending}/${list(pod.spec?.initContainers).length}`;
  } else {
    let running = false;
    for (const c of list(status.containerStatuses).toReversed()) {
      const { terminated, waiting } = c.state ?? {};
      if (waiting?.reason) reason = waiting.reason;
      else if (terminated) reason = terminated.reason || (terminated.signal ? `Signal:${terminated.signal}` : `ExitCode:${terminated.exitCode}`);
      else if (c.ready && c.state?.running) running = true;
    }
    if (reason === 'Completed' && running) {
      const ready = list(status.conditions).some((c) => c.type === 'Ready' && c.status === 'True');
      reason = ready ? 'Running' : 'NotReady';
    }
  }
  if (pod.metadata.deletionTimestamp) reason = status.reason === 'NodeLost' ? 'Unknown' : 'Terminating';
  return tone(reason);
}

const GOOD = new Set(['Running', 'Ready', 'Active', 'Bound', 'True', 'Available', 'Healthy', 'Established']);
const QUIET = new Set(['Completed', 'Succeeded', 'Complete', 'Normal', '']);
const BAD = /Err|BackOff|Fail|^Not|Never|Unknown|Invalid|Evicted|Killed|Lost|CannotRun|Exceeded|Unhealthy|Degraded|Unavailable|Unexpected|Denied|Rejected|Signal:|ExitCode:|OutOf|NodeAffinity|Shutdown|^False$/;
const WAIT = /^(Pending|ContainerCreating|PodInitializing|Terminating|Init:(\d+\/\d+|ContainerCreating)|Progressing|Released|Warning|Suspended|.*SchedulingDisabled)$/;

/** An unknown status is not an error, so it has no color. */
function tone(reason) {
  const of = GOOD.has(reason) ? 'good' : QUIET.has(reason) ? 'quiet' : WAIT.test(reason) ? 'wait' : BAD.test(reason) ? 'bad' : '';
  return { text: reason, sort: reason, tone: of };
}

function nodeStatus(node) {
  const ready = list(node.status?.conditions).find((c) => c.type === 'Ready')?.status;
  const state = ready === 'True' ? 'Ready' : ready === 'False' ? 'NotReady' : 'Unknown';
  return tone(node.spec?.unschedulable ? `${state},SchedulingDisabled` : state);
}

function nodeRoles(node) {
  const prefix = 'node-role.kubernetes.io/';
  return Object.keys(node.metadata.labels ?? {}).filter((k) => k.startsWith(prefix)).map((k) => k.slice(prefix.length)).sort().join(',');
}

/** For kinds without columns here: the phase, or the Ready or Available condition with its reason, or nothing. */
function anyStatus(object) {
  const status = object.status ?? {};
  if (typeof status.phase === 'string') return tone(status.phase);
  const ready = list(status.conditions).find((c) => c.type === 'Ready' || c.type === 'Available');
  if (!ready) return '';
  return ready.status === 'True' ? tone(ready.type) : { ...tone(ready.reason || `Not${ready.type}`), tone: 'wait' };
}

const podRestarts = (pod) => list(pod.status?.containerStatuses).reduce((sum, c) => sum + (c.restartCount ?? 0), 0);
const ports = (o) => list(o.spec?.ports).map((p) => `${p.port}${p.nodePort ? `:${p.nodePort}` : ''}/${p.protocol ?? 'TCP'}`).join(', ');
const keys = (o) => Object.keys(o.data ?? {}).length + Object.keys(o.binaryData ?? {}).length;
const eventTime = (e) => time(e.series?.lastObservedTime ?? e.lastTimestamp ?? e.eventTime ?? e.metadata.creationTimestamp);

const COLUMNS = {
  Pod: [NAMESPACE, NAME,
    text('Status', 166, podStatus),
    { ...count('Ready', (o) => ratio(list(o.status?.containerStatuses).filter((c) => c.ready).length, list(o.spec?.containers).length)), width: 72, low: 2 },
    count('Restarts', podRestarts, { low: 1 }),
    text('Node', 130, (o) => o.spec?.nodeName ?? '', { low: 1 }), AGE],
  Deployment: [NAMESPACE, NAME,
    count('Ready', (o) => ratio(o.status?.readyReplicas, o.spec?.replicas ?? 1)),
    count('Up to date', (o) => o.status?.updatedReplicas ?? 0, { low: 1 }),
    count('Available', (o) => o.status?.availableReplicas ?? 0, { low: 1 }), AGE],
  ReplicaSet: [NAMESPACE, NAME,
    count('Desired', (o) => o.spec?.replicas ?? 1), count('Current', (o) => o.status?.replicas ?? 0, { low: 1 }),
    count('Ready', (o) => o.status?.readyReplicas ?? 0), AGE],
  StatefulSet: [NAMESPACE, NAME, count('Ready', (o) => ratio(o.status?.readyReplicas, o.spec?.replicas ?? 1)), AGE],
  DaemonSet: [NAMESPACE, NAME,
    count('Ready', (o) => ratio(o.status?.numberReady, o.status?.desiredNumberScheduled)),
    count('Up to date', (o) => o.status?.updatedNumberScheduled ?? 0, { low: 1 }), AGE],
  Job: [NAMESPACE, NAME, count('Completed', (o) => ratio(o.status?.succeeded, o.spec?.completions ?? 1)), AGE],
  Node: [NAME, text('Status', 190, nodeStatus), text('Roles', 130, nodeRoles, { low: 1 }),
    text('Address', 120, (o) => list(o.status?.addresses).find((a) => a.type === 'InternalIP')?.address ?? '', { low: 1 }),
    text('Version', 110, (o) => o.status?.nodeInfo?.kubeletVersion ?? '', { low: 1 }), AGE],
  Service: [NAMESPACE, NAME, text('Type', 110, (o) => o.spec?.type ?? 'ClusterIP'),
    text('Cluster IP', 130, (o) => o.spec?.clusterIP ?? '', { low: 1 }), text('Ports', 170, ports, { low: 1 }), AGE],
  ConfigMap: [NAMESPACE, NAME, count('Keys', keys), AGE],
  Secret: [NAMESPACE, NAME, text('Type', 220, (o) => o.type ?? '', { low: 1 }), count('Keys', keys), AGE],
  Namespace: [NAME, text('Status', 130, (o) => tone(o.status?.phase ?? '')), AGE],
  Event: [text('Namespace', 130, NAMESPACE.read, { low: 1 }),
    text('Type', 84, (o) => tone(o.type ?? '')), text('Reason', 130, (o) => o.reason ?? ''),
    text('Object', 220, (o) => `${(o.involvedObject ?? o.regarding)?.kind ?? ''}/${(o.involvedObject ?? o.regarding)?.name ?? ''}`, { low: 1 }),
    { label: 'Message', read: (o) => o.message ?? o.note ?? '' },
    { ...count('Count', (o) => o.series?.count ?? o.count ?? 1, { low: 1 }), width: 70 },
    { ...AGE, label: 'Seen', read: eventTime, first: 1 }],
};

function ownColumns(informer) {
  const known = COLUMNS[informer.kind];
  return known && /^(v1|apps\/v1|batch\/v1|events\.k8s\.io\/v1)$/.test(informer.apiVersion) ? known : null;
}

function columnsFor(informer) {
  const learned = LEARNED.get(id(informer)) ?? [];
  const status = learned.some((c) => /^(status|phase)$/i.test(c.label)) ? [] : [text('Status', 160, anyStatus)];
  return ownColumns(informer) ?? [...(informer.namespaced ? [NAMESPACE] : []), NAME, ...status, ...learned, AGE];
}

const LEARNED = new Map(); // columns of custom resources, by informer
const LEARN_MS = 2_000; // after this the objects are shown without these columns
const LEARNED_MAX = 8;
const CUSTOM = 'Custom resource definition column (in JSONPath format): ';

/** Reads the columns of a custom resource's definition, as `kubectl get` shows them; null if none have to be read. */
function learn(informer) {
  if (ownColumns(informer) || LEARNED.has(id(informer))) return null;
  const accept = 'application/json;as=Table;v=v1;g=meta.k8s.io';
  const path = `/apis/${informer.apiVersion}/${informer.resource.split('.')[0]}?limit=1&includeObject=None`;
  return fetch(path, { headers: { accept }, signal: AbortSignal.timeout(LEARN_MS) })
    .then((answer) => (answer.ok ? answer.json() : {}))
    .then((table) => LEARNED.set(id(informer), list(table.columnDefinitions).map(customColumn).filter(Boolean).slice(0, LEARNED_MAX)))
    .catch(() => {}); // on failure: requested again when the informer is selected again
}

/** Only for paths that are plain chains of members; name and age have a column already. */
function customColumn({ name, type, description = '', priority = 0 }) {
  const path = description.startsWith(CUSTOM) ? description.slice(CUSTOM.length) : '';
  if (!/^(\.[\w-]+)+$/.test(path) || path === '.metadata.creationTimestamp' || path === '.metadata.name') return null;
  const value = (o) => path.slice(1).split('.').reduce((at, member) => at?.[member], o);
  const low = priority > 0 ? { low: 1 } : {};
  if (type === 'date') return { ...AGE, label: name, ...low, read: (o) => time(value(o)) };
  if (type === 'integer' || type === 'number') return count(name, (o) => ({ text: value(o) ?? '', sort: value(o) ?? -Infinity, tone: '' }), low);
  const shown = (o) => (value(o) === undefined ? '' : typeof value(o) === 'object' ? JSON.stringify(value(o)) : String(value(o)));
  return text(name, 130, (o) => (/status|phase|ready/i.test(name) ? tone(shown(o)) : shown(o)), low);
}

// === Filter ===

/**
 * Terms separated by blanks, all of which must match: `label=value` and `label!=value` compare one label exactly,
 * any other term is text to find in namespace/name, labels and columns.
 */
function parseFilter(input) {
  const terms = input.trim().split(/\s+/).filter(Boolean).map((term) => {
    const [, key, operator, value] = /^([\w./-]+)(!=|==?)(.*)$/.exec(term) ?? [];
    if (!key) { const needle = term.toLowerCase(); return (row) => row.search.includes(needle); }
    return operator === '!=' ? (row) => row.labels?.[key] !== value : (row) => row.labels?.[key] === value;
  });
  return (row) => terms.every((term) => term(row));
}

// === Table ===

/** The rows of one informer: all of them, sorted, filtered, and the few that are on the screen. */
class Table {
  constructor() {
    this.scroller = $('scroller');
    this.grid = $('grid');
    this.body = $('body');
    this.above = this.body.appendChild(this.spacer());
    this.below = this.body.appendChild(this.spacer());
    this.slots = []; // elements of rows, in their order on the screen
    this.made = 0;
    this.start = 0; // index in `view` of the first slot's row
    this.lastFrameMs = 0;
    this.maxFrameMs = 0;
    this.filter = parseFilter('');
    this.filtered = false;
    this.columns = [];
    this.sort = { column: 0, direction: 1 };
    this.clear();
    this.scroller.addEventListener('scroll', () => this.schedule(), { passive: true });
    new ResizeObserver(() => this.measure()).observe(this.scroller);
    this.body.addEventListener('click', (event) => this.open(this.slotOf(event.target)?.row));
    this.grid.addEventListener('keydown', (event) => this.onKey(event));
  }

  spacer() {
    const row = el('tr', 'spacer');
    row.setAttribute('aria-hidden', 'true');
    row.append(el('td'));
    return row;
  }

  clear() {
    this.rows = new Map();
    this.order = []; // all rows, sorted at the last rebuild; removed rows stay until the next one
    this.added = [];
    this.dead = 0; // removed rows that are still in `order` or `added`
    this.view = []; // the rows of `order` that pass the filter
    this.epoch = 0;
    this.moved = true; // `order` or `view` is out of date
    this.rebuildAt = 0;
    this.active = null;
    this.selected = null;
    this.scroller.scrollTop = 0;
  }

  /** Starts again with another informer. */
  reset(informer) {
    this.clear();
    this.all = columnsFor(informer);
    const first = this.all.findIndex((c) => c.first);
    this.sort = { column: Math.max(first, 0), direction: 1 };
    this.layout();
  }

  /**
   * A new snapshot follows. The old rows stay on the screen until SYNCED, so that a RESET does not flicker; then
   * those that are not in the snapshot are removed.
   */
  fresh() {
    this.epoch += 1;
  }

  sweep() {
    for (const row of this.rows.values()) if (row.epoch !== this.epoch) this.remove(row.key);
  }

  put(object, now, flash) {
    const meta = object.metadata;
    const key = `${meta.namespace ?? ''}/${meta.name}`;
    let row = this.rows.get(key);
    const isNew = !row;
    if (isNew) {
      row = { key, namespace: meta.namespace ?? '', name: meta.name, changed: 0, version: 0, cells: [], sorts: [], tones: [], alive: true, passes: false };
      this.rows.set(key, row);
      this.added.push(row);
    }
    const { column } = this.sort;
    const sortedBy = row.sorts[column];
    row.epoch = this.epoch;
    row.labels = meta.labels;
    this.read(row, object);
    row.version += 1;
    if (flash) row.changed = now;
    const passes = this.filter(row);
    if (isNew || passes !== row.passes || sortedBy !== row.sorts[column]) this.moved = true;
    row.passes = passes;
    this.schedule();
  }

  read(row, object) {
    let search = `${row.key}`;
    for (const [index, column] of this.all.entries()) {
      let value;
      // One malformed object must not end the stream for the others.
      try { value = column.read(object) ?? ''; } catch { value = '?'; }
      const rich = typeof value === 'object';
      row.cells[index] = column.clock ? value : String(rich ? value.text : value);
      row.sorts[index] = column.clock ? -value || 0 : rich ? value.sort : value;
      row.tones[index] = rich ? value.tone : '';
      if (!column.clock && column !== NAME && column !== NAMESPACE) search += `\n${row.cells[index]}`;
    }
    for (const label in row.labels) search += `\n${label}=${row.labels[label]}`;
    row.search = search.toLowerCase();
  }

  remove(key) {
    const row = this.rows.get(key);
    if (!row) return;
    this.rows.delete(key);
    row.alive = false;
    this.dead += 1;
    // A hidden tab draws nothing, but must not keep each row that came and went.
    if (this.dead > this.rows.size + DEAD_ROWS_MAX) this.bury();
    this.moved = true;
    this.schedule();
  }

  /** Forgets removed rows. */
  bury() {
    this.order = this.order.filter((row) => row.alive);
    this.added = this.added.filter((row) => row.alive);
    this.view = this.view.filter((row) => row.alive);
    this.dead = 0;
  }

  setFilter(input) {
    this.filter = parseFilter(input);
    this.filtered = input.trim() !== '';
    for (const row of this.rows.values()) row.passes = this.filter(row);
    this.scroller.scrollTop = 0;
    this.rebuildNow();
  }

  sortBy(column) {
    const same = this.sort.column === column;
    this.sort = { column, direction: same ? -this.sort.direction : 1 };
    this.showSort();
    this.scroller.scrollTop = 0;
    this.rebuildNow();
  }

  rebuildNow() {
    this.moved = true;
    this.rebuildAt = 0;
    this.schedule();
  }

  rebuild() {
    const started = performance.now();
    const { column, direction } = this.sort;
    this.order = this.order.filter((row) => row.alive).concat(this.added.filter((row) => row.alive));
    this.added = [];
    this.dead = 0;
    // The rows are nearly sorted already, so the engine's merge sort costs little more than one pass.
    this.order.sort((a, b) => {
      const [x, y] = [a.sorts[column], b.sorts[column]];
      if (x !== y) return x < y ? -direction : direction;
      return a.key < b.key ? -1 : a.key > b.key ? 1 : 0;
    });
    this.view = this.order.filter((row) => row.passes);
    this.moved = false;
    // With a hundred thousand rows a rebuild takes many milliseconds: never spend more than a fifth of the time on it.
    const ended = performance.now();
    this.rebuildAt = ended + 4 * (ended - started);
  }

  // --- the screen ---

  layout() {
    this.columns = this.all.map((column, index) => ({ ...column, index })).filter((column) => !(column.low <= this.narrow));
    $('cols').replaceChildren(...this.columns.map((column) => {
      const col = el('col');
      if (column.width) col.style.width = `${column.width}px`;
      return col;
    }));
    $('header').replaceChildren(...this.columns.map((column) => {
      const cell = el('th', column.end ? 'end' : '');
      cell.scope = 'col';
      const button = el('button', '', column.label);
      button.type = 'button';
      button.addEventListener('click', () => this.sortBy(column.index));
      cell.append(button);
      return cell;
    }));
    this.grid.setAttribute('aria-colcount', String(this.columns.length));
    for (const slot of this.slots.splice(0)) slot.tr.remove();
    for (const spacer of [this.above, this.below]) spacer.firstChild.colSpan = this.columns.length;
    this.showSort();
    this.measure();
  }

  showSort() {
    for (const [i, cell] of [...$('header').children].entries()) {
      const on = this.columns[i].index === this.sort.column;
      if (on) cell.setAttribute('aria-sort', this.sort.direction > 0 ? 'ascending' : 'descending');
      else cell.removeAttribute('aria-sort');
    }
  }

  measure() {
    this.rowHeight = parseFloat(getComputedStyle(this.scroller).getPropertyValue('--row')) || 32;
    this.height = this.scroller.clientHeight;
    const width = this.scroller.clientWidth;
    const narrow = width < SMALL_PX ? 2 : width < NARROW_PX ? 1 : 0;
    if (narrow !== this.narrow) {
      this.narrow = narrow;
      if (this.all) this.layout();
    }
    this.schedule();
  }

  schedule() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.render(); });
  }

  render() {
    const started = performance.now();
    let top = this.scroller.scrollTop;
    if (this.moved && started >= this.rebuildAt) {
      const anchorAt = Math.floor(top / this.rowHeight);
      const anchor = this.view[anchorAt];
      this.rebuild();
      // Rows that are added or removed above the visible ones must not move these.
      const nowAt = top > 0 && anchor ? this.view.indexOf(anchor) : -1;
      if (nowAt >= 0) top += (nowAt - anchorAt) * this.rowHeight;
    }
    const onScreen = Math.ceil(this.height / this.rowHeight) + 1;
    const last = Math.max(0, this.view.length - onScreen);
    const start = Math.max(0, Math.min(Math.floor(top / this.rowHeight), last) - OVERSCAN);
    const end = Math.min(this.view.length, start + onScreen + 2 * OVERSCAN);
    this.above.firstChild.style.height = `${start * this.rowHeight}px`;
    this.below.firstChild.style.height = `${(this.view.length - end) * this.rowHeight}px`;
    this.resize(end - start);
    this.rotate(start);
    const now = Date.now();
    for (let i = 0; i < this.slots.length; i += 1) this.paint(this.slots[i], this.view[start + i], start + i, now);
    if (top !== this.scroller.scrollTop) this.scroller.scrollTop = top;
    this.grid.setAttribute('aria-rowcount', String(this.view.length + 1));
    const active = this.slots.find((slot) => slot.row === this.active);
    if (active) this.grid.setAttribute('aria-activedescendant', active.tr.id);
    else this.grid.removeAttribute('aria-activedescendant');
    showCounts();
    if (this.moved) this.schedule();
    this.lastFrameMs = performance.now() - started;
    this.maxFrameMs = Math.max(this.maxFrameMs, this.lastFrameMs);
  }

  resize(length) {
    while (this.slots.length > length) this.slots.pop().tr.remove();
    while (this.slots.length < length) {
      const element = el('tr');
      element.id = `row-${this.made += 1}`;
      const cells = this.columns.map((column) => el('td', `${column.end ? 'end ' : ''}${column.strong ? 'strong' : ''}`));
      element.append(...cells);
      this.below.before(element);
      this.slots.push({ tr: element, cells, row: null, version: 0, at: -1 });
    }
  }

  /** After scrolling by a few rows, moves the elements that left at one end to the other; the rest keep their rows. */
  rotate(start) {
    const by = start - this.start;
    this.start = start;
    if (by === 0 || Math.abs(by) >= this.slots.length) return;
    if (by > 0) {
      const left = this.slots.splice(0, by);
      this.below.before(...left.map((slot) => slot.tr));
      this.slots.push(...left);
    } else {
      const left = this.slots.splice(by);
      this.above.after(...left.map((slot) => slot.tr));
      this.slots.unshift(...left);
    }
  }

  paint(slot, row, at, now) {
    const changed = slot.row !== row || slot.version !== row.version;
    if (changed) {
      for (const [i, column] of this.columns.entries()) {
        if (column.clock) continue;
        const cell = slot.cells[i];
        setText(cell, row.cells[column.index]);
        if (slot.row !== row) cell.title = column.end ? '' : row.cells[column.index];
        const mark = row.tones[column.index];
        if (cell.dataset.tone !== mark) cell.dataset.tone = mark;
      }
      const flash = now - row.changed < FLASH_MS;
      // Two equal animations alternate, as setting the same one again would not restart it.
      slot.tr.dataset.flash = !flash ? '' : slot.row === row && slot.tr.dataset.flash === 'a' ? 'b' : 'a';
      if (slot.row !== row) slot.tr.dataset.key = row.key;
      slot.row = row;
      slot.version = row.version;
    }
    for (const [i, column] of this.columns.entries()) {
      if (column.clock) setText(slot.cells[i], Number.isFinite(row.cells[column.index]) ? age(now - row.cells[column.index]) : '');
    }
    if (slot.at !== at) {
      slot.at = at;
      slot.tr.setAttribute('aria-rowindex', String(at + 2));
    }
    const selected = String(row.key === this.selected);
    if (slot.tr.getAttribute('aria-selected') !== selected) slot.tr.setAttribute('aria-selected', selected);
    slot.tr.classList.toggle('active', row === this.active);
  }

  slotOf(target) {
    const element = target.closest('tr');
    return this.slots.find((slot) => slot.tr === element);
  }

  open(row) {
    if (!row) return;
    this.active = row;
    this.schedule();
    location.hash = route(selection.informer, row);
  }

  onKey(event) {
    if (event.target !== this.grid || event.ctrlKey || event.metaKey || event.altKey || !this.view.length) return;
    const page = Math.max(1, Math.floor(this.height / this.rowHeight) - 2);
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === 'Enter' || event.key === ' ') this.open(this.active);
    else if (step === undefined) return;
    else {
      const at = this.active ? this.view.indexOf(this.active) : -1;
      const next = Math.max(0, Math.min(this.view.length - 1, (at < 0 && step < 0 ? 0 : at) + step));
      this.active = this.view[next];
      this.reveal(next);
    }
    event.preventDefault();
  }

  reveal(at) {
    const head = this.grid.tHead.offsetHeight;
    const y = at * this.rowHeight;
    if (y < this.scroller.scrollTop) this.scroller.scrollTop = y;
    else if (y + this.rowHeight + head > this.scroller.scrollTop + this.height) this.scroller.scrollTop = y + this.rowHeight + head - this.height;
    this.schedule();
  }
}

// === Panel: one object and its stream ===

function pathOf(parent, key) {
  if (typeof key === 'number') return `${parent}[${key}]`;
  return /^[\w-]+$/.test(key) ? (parent ? `${parent}.${key}` : key) : `${parent}["${key}"]`;
}

/** The differences between two JSON values, as {path, from, to}; a missing value is undefined. */
function diff(from, to, path = '', out = []) {
  if (from === to) return out;
  const nested = from !== null && to !== null && typeof from === 'object' && typeof to === 'object' && Array.isArray(from) === Array.isArray(to);
  if (!nested) { out.push({ path, from, to }); return out; }
  const names = Array.isArray(to) ? [...Array(Math.max(from.length, to.length)).keys()] : new Set([...Object.keys(from), ...Object.keys(to)]);
  // A label may be called `constructor`, which every object inherits.
  const own = (value, name) => (Object.hasOwn(value, name) ? value[name] : undefined);
  for (const name of names) diff(own(from, name), own(to, name), pathOf(path, name), out);
  return out;
}

/** JSON as lines of {path, depth, parts: [[class, text]…]}, so that a changed line can be marked. */
function jsonLines(value, path, depth, head, tail, out) {
  const scalar = value === null || typeof value !== 'object';
  const entries = scalar ? [] : Object.entries(value);
  if (scalar) {
    const type = value === null ? 'null' : typeof value;
    out.push({ path, depth, parts: [...head, [type, JSON.stringify(value)], ['', tail]] });
    return out;
  }
  const isList = Array.isArray(value);
  const [open, close] = isList ? '[]' : '{}';
  if (!entries.length) { out.push({ path, depth, parts: [...head, ['', open + close + tail]] }); return out; }
  out.push({ path, depth, parts: [...head, ['', open]] });
  entries.forEach(([name, item], i) => {
    const key = isList ? [] : [['key', JSON.stringify(name)], ['', ': ']];
    jsonLines(item, pathOf(path, isList ? i : name), depth + 1, key, i < entries.length - 1 ? ',' : '', out);
  });
  out.push({ path: '', depth, parts: [['', close + tail]] });
  return out;
}

function brief(value) {
  if (value === undefined) return '∅';
  const text = JSON.stringify(value);
  return text.length > 120 ? `${text.slice(0, 117)}…` : text;
}

class Panel {
  constructor() {
    this.root = $('panel');
    this.log = $('log');
    this.json = $('json');
    $('panel-close').addEventListener('click', () => closePanel());
    $('copy').addEventListener('click', (event) => copyText(event.currentTarget, JSON.stringify(this.latest, null, 2)));
  }

  get isOpen() { return !this.root.hidden; }

  open(informer, namespace, name) {
    this.close();
    this.root.hidden = false;
    document.body.classList.add('with-panel');
    setText($('panel-kind'), namespace ? `${informer.kind} in ${namespace}` : informer.kind);
    setText($('panel-title'), name);
    const path = watchPath(informer.resource, namespace, name);
    showCurl($('panel-curl'), path);
    this.latest = null;
    this.marked = new Set();
    this.count = 0;
    this.log.replaceChildren();
    this.json.replaceChildren();
    this.json.classList.remove('gone');
    this.feed = new Feed(path, this);
    graph.show(informer, namespace, name);
    this.show();
  }

  close() {
    this.feed?.close();
    this.feed = null;
    graph.clear();
    this.root.hidden = true;
    document.body.classList.remove('with-panel');
  }

  show() {
    if (this.feed) this.feed.show($('panel-state'));
  }

  // --- called by the feed ---

  fresh() { this.latest = null; }

  state() { this.show(); }

  event(frame) {
    const object = frame.message?.object;
    let changes = [];
    if (frame.type === 'ADDED' || frame.type === 'MODIFIED' || frame.type === 'DELETED') {
      if (this.latest) changes = diff(this.latest, object).filter((c) => c.path !== 'metadata.resourceVersion');
      this.latest = object;
      this.marked = new Set(changes.map((c) => c.path));
      this.json.classList.toggle('gone', frame.type === 'DELETED');
      this.scheduleJson();
    } else if (frame.type === 'SYNCED' && !this.latest) {
      this.json.replaceChildren(el('p', 'note', 'This object does not exist. If it is created, it appears here.'));
    }
    this.write(frame, changes);
  }

  write(frame, changes) {
    this.count += 1;
    setText($('stream-count'), number.format(this.count));
    const object = frame.message?.object;
    const entry = el('li');
    const details = el('details');
    const summary = el('summary');
    const now = new Date();
    const clock = el('time', '', `${now.toTimeString().slice(0, 8)}.${String(now.getMilliseconds()).padStart(3, '0')}`);
    clock.dateTime = now.toISOString();
    const type = el('span', 'type', frame.type);
    type.dataset.type = frame.type;
    summary.append(clock, type, el('span', 'version', object?.metadata?.resourceVersion ?? ''));
    details.append(summary);
    // The message as received, added only when the entry is opened.
    details.addEventListener('toggle', () => {
      if (details.open && details.children.length === 1) {
        details.append(el('pre', 'raw', frame.data));
      }
    });
    frame.message = null;
    entry.append(details);
    if (changes.length) entry.append(this.changeList(changes));
    this.log.prepend(entry);
    while (this.log.childElementCount > LOG_LEN_MAX) this.log.lastElementChild.remove();
  }

  changeList(changes) {
    const ul = el('ul', 'changes');
    for (const { path, from, to } of changes.slice(0, CHANGES_LEN_MAX)) {
      const li = el('li');
      li.append(el('code', 'path', path), el('del', '', brief(from)), el('span', 'arrow', ' → '), el('ins', '', brief(to)));
      ul.append(li);
    }
    if (changes.length > CHANGES_LEN_MAX) ul.append(el('li', 'more', `and ${changes.length - CHANGES_LEN_MAX} more`));
    return ul;
  }

  scheduleJson() {
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.renderJson(); });
  }

  renderJson() {
    if (!this.latest) return;
    const lines = jsonLines(this.latest, '', 0, [], '', []);
    if (lines.length > JSON_LINES_MAX) { this.json.textContent = JSON.stringify(this.latest, null, 2); return; }
    const fragment = document.createDocumentFragment();
    for (const line of lines) {
      const marked = line.path && this.isMarked(line.path);
      const element = el('span', marked ? 'line changed' : 'line');
      element.append('  '.repeat(line.depth), ...line.parts.map(([kind, text]) => (kind ? el('span', kind, text) : text)), '\n');
      fragment.append(element);
    }
    this.json.replaceChildren(fragment);
  }

  isMarked(path) {
    for (const marked of this.marked) if (path === marked || path.startsWith(`${marked}.`) || path.startsWith(`${marked}[`)) return true;
    return false;
  }
}

// === Graph: above an object those that it refers to, below it those that refer to it ===

class Graph {
  constructor() {
    this.root = $('graph');
    this.picture = $('graph-picture');
    this.path = null;
    this.retryMs = RETRY_MS_MIN;
    // The graph is requested only while it is open.
    this.root.addEventListener('toggle', () => this.load());
  }

  show(informer, namespace, name) {
    this.clear();
    this.path = watchPath(informer.resource, namespace, name).replace('/v1/watch/', '/v1/watch-graph/');
    this.load();
  }

  clear() {
    this.stream?.close();
    this.stream = null;
    this.path = null;
    this.picture.replaceChildren();
    setText($('graph-note'), '');
  }

  load() {
    clearTimeout(this.retry);
    this.stream?.close();
    this.stream = null;
    if (!this.root.open || !this.path) return;
    const stream = new EventSource(`${this.path}?coalesceMs=500`);
    this.stream = stream;
    stream.addEventListener('GRAPH', (event) => {
      const { nodes, edges, ...rest } = JSON.parse(event.data).object;
      this.nodes = new Map(nodes.map((node) => [node.id, node]));
      this.edges = new Map(edges.map((edge) => [this.edgeKey(edge), edge]));
      this.retryMs = RETRY_MS_MIN;
      this.draw(rest, true);
    });
    stream.addEventListener('PATCHED', (event) => {
      const { nodes, deletedNodes, edges, deletedEdges, ...rest } = JSON.parse(event.data).object;
      for (const id of deletedNodes) this.nodes.delete(id);
      for (const node of nodes) this.nodes.set(node.id, node);
      for (const edge of deletedEdges) this.edges.delete(this.edgeKey(edge));
      for (const edge of edges) this.edges.set(this.edgeKey(edge), edge);
      this.draw(rest, false);
    });
    // A stream that only lost its connection reconnects by itself.
    stream.onerror = () => stream.readyState === EventSource.CLOSED && this.stream === stream && this.explain();
  }

  edgeKey({ from, to, by }) {
    return `${from} ${to} ${by}`;
  }

  /** EventSource does not say why it was refused. */
  async explain() {
    const { stream } = this;
    const said = await fetch(this.path.replace('/v1/watch-graph/', '/v1/graph/'))
      .then((answer) => answer.json()).catch((error) => error);
    if (this.stream !== stream) return;
    this.say(`The graph could not be read${said.message ? `: ${said.message}` : ''}. Trying again.`);
    this.retry = setTimeout(() => this.stream === stream && this.load(), this.retryMs * (0.75 + Math.random() / 2));
    this.retryMs = Math.min(this.retryMs * 2, RETRY_MS_MAX);
  }

  say(text) {
    this.picture.replaceChildren();
    setText($('graph-note'), text);
  }

  draw({ notFollowed, notHeld, truncated }, isFirst) {
    const [nodes, edges] = [[...this.nodes.values()], [...this.edges.values()]];
    if (!nodes.length) {
      this.say('The object does not exist.');
      return;
    }
    const rows = this.rows(nodes, edges);
    const length = Math.max(...rows.map((row) => row.length));
    const width = length * (BOX.width + BOX.gap) + BOX.gap;
    const height = rows.length * (BOX.height + BOX.rise) - BOX.rise + 2 * BOX.gap;
    const drawing = svg('svg', { width, height, viewBox: `0 0 ${width} ${height}` });
    const at = new Map();
    rows.forEach((row, index) => row.forEach((node, place) => {
      const x = (width - row.length * (BOX.width + BOX.gap) + BOX.gap) / 2 + place * (BOX.width + BOX.gap);
      at.set(node.id, { x, y: BOX.gap + index * (BOX.height + BOX.rise) });
    }));
    for (const { from, to, by } of edges) {
      const [below, above] = [at.get(from), at.get(to)];
      if (below && above) drawing.append(this.line(below, above, by));
    }
    for (const row of rows) for (const node of row) drawing.append(this.box(node, at.get(node.id)));
    this.picture.replaceChildren(drawing);
    const selected = at.get(nodes.find((node) => node.selected)?.id);
    if (selected && isFirst) this.picture.scrollTo(selected.x + BOX.width / 2 - this.picture.clientWidth / 2, selected.y - 80);
    const notes = [
      nodes.length === 1 && 'No object that informerd follows refers to this one, or is referred to by it.',
      truncated && `Incomplete: the limit ${truncated.limit} (${number.format(truncated.max)}) was reached.`,
      notFollowed.length > 0 && `Not followed: ${notFollowed.join(', ')}.`,
      notHeld.length > 0 && `Not held: ${notHeld.join(', ')}.`,
    ];
    setText($('graph-note'), notes.filter(Boolean).join(' '));
  }

  /** The nodes in rows by their distance from the object; negative for the objects that it refers to, which are above it. */
  rows(nodes, edges) {
    const levels = new Map();
    for (const [step, [near, far]] of [[-1, ['from', 'to']], [1, ['to', 'from']]]) {
      let frontier = nodes.filter((node) => node.selected).map((node) => node.id);
      for (const id of frontier) levels.set(id, 0);
      for (let level = step; frontier.length; level += step) {
        const next = [];
        for (const edge of edges) {
          if (!frontier.includes(edge[near]) || levels.has(edge[far])) continue;
          levels.set(edge[far], level);
          next.push(edge[far]);
        }
        frontier = next;
      }
    }
    const rows = new Map();
    for (const node of nodes) {
      const level = levels.get(node.id) ?? 0;
      if (!rows.has(level)) rows.set(level, []);
      rows.get(level).push(node);
    }
    return [...rows.keys()].sort((a, b) => a - b).map((level) => this.shortened(rows.get(level), level));
  }

  shortened(row, level) {
    row.sort((a, b) => b.selected - a.selected || a.kind.localeCompare(b.kind) || a.name.localeCompare(b.name));
    if (row.length <= GRAPH_ROW_MAX) return row;
    const rest = row.length - GRAPH_ROW_MAX + 1;
    return [...row.slice(0, GRAPH_ROW_MAX - 1), { id: `more${level}`, kind: 'and', name: `${number.format(rest)} more` }];
  }

  line(below, above, by) {
    const [x1, y1, x2, y2] = [below.x + BOX.width / 2, below.y, above.x + BOX.width / 2, above.y + BOX.height];
    const bend = (y1 - y2) / 2;
    const path = svg('path', { class: 'link', d: `M${x1} ${y1}C${x1} ${y1 - bend} ${x2} ${y2 + bend} ${x2} ${y2}` });
    path.append(this.title(by));
    return path;
  }

  box(node, { x, y }) {
    const target = node.resource && this.route(node);
    const box = svg(target ? 'a' : 'g', { class: node.selected ? 'box selected' : 'box', transform: `translate(${x} ${y})` });
    if (target) box.setAttribute('href', target);
    const kind = svg('text', { class: 'kind', x: 8, y: 14 });
    kind.textContent = node.kind;
    const name = svg('text', { class: 'name', x: 8, y: 28 });
    name.textContent = node.name.length > 20 ? `${node.name.slice(0, 8)}…${node.name.slice(-11)}` : node.name;
    box.append(this.title([node.kind, node.namespace, node.name].filter(Boolean).join(' ')));
    box.append(svg('rect', { width: BOX.width, height: BOX.height, rx: 5 }), kind, name);
    return box;
  }

  title(text) {
    const title = svg('title', {});
    title.textContent = text;
    return title;
  }

  /** The address of an object on this page, if an informer shows it. */
  route(node) {
    const known = [...informers.items.values()].map((item) => item.informer);
    const shows = (i) => i.resource === node.resource && (!confined(i) || confined(i) === node.namespace);
    const informer = known.find(shows);
    return informer && route(informer, { namespace: node.namespace, name: node.name });
  }
}

// === Informers ===

class Informers {
  constructor() {
    this.list = $('informers');
    this.items = new Map(); // by id(informer): {informer, samples, events, at, rate, …elements}
    this.heardAt = 0;
    this.lostAt = performance.now();
    this.ok = null;
    this.poll();
  }

  async poll() {
    try {
      const answer = await fetch('/v1/resources', { signal: AbortSignal.timeout(POLL_TIMEOUT_MS), cache: 'no-store' });
      const body = await answer.json();
      if (!answer.ok) throw new Error(body.message ?? `HTTP ${answer.status}`);
      this.heardAt = performance.now();
      this.ok = true;
      setText($('version'), body.version ?? '');
      this.update(list(body.informers));
      this.updatePending(list(body.pending));
    } catch {
      if (this.ok !== false) this.lostAt = performance.now();
      this.ok = false;
    }
    this.tick();
    setTimeout(() => this.poll(), POLL_MS);
  }

  update(informers) {
    const seen = new Set();
    for (const informer of informers) {
      const key = id(informer);
      seen.add(key);
      const item = this.items.get(key) ?? this.add(key, informer);
      this.sample(item, informer);
      item.informer = informer;
    }
    for (const [key, item] of this.items) if (!seen.has(key)) { item.li.remove(); this.items.delete(key); }
    setText($('informer-count'), String(informers.length));
    navigate();
  }

  /** Resources that are configured, but whose kind the API server does not know yet. */
  updatePending(pending) {
    const text = JSON.stringify(pending);
    if (text === this.pendingText) return;
    this.pendingText = text;
    $('pending').replaceChildren(...pending.map(({ name, message }) => {
      const li = el('li', 'informer');
      const dot = el('span', 'dot');
      dot.dataset.tone = 'bad';
      li.append(dot, el('span', 'name', name), el('span', 'objects', '–'), el('span', 'error', message));
      return li;
    }));
  }

  add(key, informer) {
    const li = el('li');
    const link = el('a', 'informer');
    link.href = route(informer);
    const [short, ...group] = informer.resource.split('.');
    const name = el('span', 'name', short);
    if (group.length) name.append(el('span', 'group', `.${group.join('.')}`));
    const spark = svg('svg', { class: 'spark', viewBox: `0 0 ${SPARK_LEN - 1} 16`, preserveAspectRatio: 'none', 'aria-hidden': 'true' });
    const item = {
      informer, li, link, samples: [], events: null, at: 0, rate: null, dot: el('span', 'dot'), objects: el('span', 'objects'),
      area: spark.appendChild(svg('path', { class: 'area' })), line: spark.appendChild(svg('path', { class: 'line' })),
      speed: el('span', 'speed'), heard: el('span', 'heard'), scope: el('span', 'scope'), error: el('span', 'error'),
    };
    const vitals = el('span', 'vitals');
    vitals.append(item.speed, spark, item.heard);
    link.append(item.dot, name, item.objects, vitals, item.scope, item.error);
    li.append(link);
    this.list.append(li);
    this.items.set(key, item);
    return item;
  }

  sample(item, informer) {
    const now = performance.now();
    const gained = informer.events - item.events;
    if (item.events !== null && gained >= 0) {
      item.rate = gained / ((now - item.at) / 1000);
      item.samples.push(item.rate);
      if (item.samples.length > SPARK_LEN) item.samples.shift();
      this.draw(item);
    }
    item.events = informer.events; // fewer than before: informerd was restarted, and counts from 0
    item.at = now;
  }

  draw(item) {
    const top = 1.25 * Math.max(1, ...item.samples);
    const x0 = SPARK_LEN - item.samples.length;
    const points = item.samples.map((v, i) => `${x0 + i},${(15 - (14 * v) / top).toFixed(1)}`);
    item.line.setAttribute('d', points.length > 1 ? `M${points.join('L')}` : '');
    item.area.setAttribute('d', points.length > 1 ? `M${x0},16L${points.join('L')}L${SPARK_LEN - 1},16Z` : '');
  }

  /** Seconds since informerd last heard from the API server: the reported age, and the time since that report. */
  ageOf(informer) {
    return informer.ageSeconds === null || informer.ageSeconds === undefined ? null : informer.ageSeconds + (performance.now() - this.heardAt) / 1000;
  }

  /** The problem of an informer, and the time of the next try; '' if there is none. */
  troubleOf(informer) {
    const stale = informer.stale ? 'nothing has arrived from the API server for longer than a watch may be silent' : '';
    if (!informer.lastError || (informer.state === 'watching' && !stale)) return stale;
    const retry = (informer.retryInSeconds ?? 0) - (performance.now() - this.heardAt) / 1000;
    return retry >= 1 ? `${informer.lastError}; next try in ${age(retry * 1000)}` : informer.lastError;
  }

  tick() {
    const away = Math.floor((performance.now() - this.lostAt) / 1000);
    if (this.ok) setPill($('daemon'), 'good', 'connected');
    else if (this.ok === null) setPill($('daemon'), 'wait', 'connecting');
    else setPill($('daemon'), 'bad', 'unreachable', age(away * 1000));
    let [objects, size, speed, subscribers] = [0, 0, 0, 0];
    for (const item of this.items.values()) {
      const { informer } = item;
      objects += informer.objects ?? 0;
      size += informer.bytes ?? 0;
      speed += item.rate ?? 0;
      subscribers += informer.subscribers ?? 0;
      this.show(item);
    }
    if (!this.items.size) return;
    setText($('total-objects'), number.format(objects));
    setText($('total-bytes'), bytes(size));
    setText($('total-rate'), rate(speed));
    setText($('total-subscribers'), number.format(subscribers));
  }

  show(item) {
    const { informer } = item;
    const heard = this.ageOf(informer);
    const stale = heard === null || informer.stale || heard > STALE_SECONDS;
    const problem = this.troubleOf(informer);
    const trouble = problem !== '';
    item.dot.dataset.tone = !informer.synced ? (trouble ? 'bad' : 'wait') : trouble || stale || this.ok === false ? 'wait' : 'good';
    setText(item.objects, informer.synced ? number.format(informer.objects) : '–');
    setText(item.speed, `${rate(item.rate)}/s`);
    setText(item.heard, informer.synced || !informer.state ? (heard === null ? 'not heard yet' : seconds(heard)) : informer.state);
    item.heard.dataset.tone = stale ? 'wait' : '';
    item.heard.title = 'When informerd last heard from the API server';
    setText(item.scope, [informer.scope === 'cluster' ? '' : informer.scope, informer.selectors].filter(Boolean).join(' · '));
    setText(item.error, problem);
    const current = !queues?.chosen && selection.informer && id(selection.informer) === id(informer);
    if (current) item.link.setAttribute('aria-current', 'true');
    else item.link.removeAttribute('aria-current');
  }
}

// === Queues ===

/** The work queues on the left, and in the middle the queue that the URL's fragment names: #queue/NAME. */
class Queues {
  constructor() {
    this.items = new Map(); // by name: {li, link, …elements}
    this.chosen = null;
    this.detail = null;
    $('put-back-all').addEventListener('click', () => this.putBack({ all: true }));
    this.poll();
  }

  async poll() {
    clearTimeout(this.next);
    await Promise.all([this.list(), this.chosen && this.look()]);
    this.next = setTimeout(() => this.poll(), POLL_MS);
  }

  async ask(path, request = {}) {
    const answer = await fetch(`/v1/queues${path}`, { ...request, signal: AbortSignal.timeout(POLL_TIMEOUT_MS), cache: 'no-store' });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.message ?? `HTTP ${answer.status}`);
    return body;
  }

  async list() {
    let body;
    // If queues are off or informerd is unreachable, the list stays as it was; the head of the page shows the problem.
    try { body = await this.ask(''); } catch { return; }
    const known = list(body.queues);
    $('queues').hidden = !known.length && !body.election && !this.chosen;
    setText($('queue-count'), String(known.length));
    setText($('queues-leader'), leaderText(body.election));
    for (const queue of known) this.show(this.items.get(queue.name) ?? this.add(queue.name), queue);
    const names = new Set(known.map((queue) => queue.name));
    for (const [name, item] of this.items) if (!names.has(name)) { item.li.remove(); this.items.delete(name); }
  }

  add(name) {
    const li = el('li');
    const link = el('a', 'informer');
    link.href = `#queue/${encodeURIComponent(name)}`;
    const item = { li, link, dot: el('span', 'dot'), depth: el('span', 'objects'), facts: el('span', 'scope') };
    link.append(item.dot, el('span', 'name', name), item.depth, item.facts);
    li.append(link);
    $('queue-list').append(li);
    this.items.set(name, item);
    return item;
  }

  show(item, queue) {
    item.dot.dataset.tone = queue.failed ? 'bad' : queue.synced ? 'good' : 'wait';
    setText(item.depth, number.format(queue.depth));
    item.depth.title = 'Keys that a worker can lease now';
    const facts = [queue.inFlight && `${number.format(queue.inFlight)} in flight`, queue.delayed && `${number.format(queue.delayed)} delayed`,
      queue.failed && `${number.format(queue.failed)} failed`, queue.depth && `oldest ${age(queue.oldestSeconds * 1000)}`];
    setText(item.facts, facts.filter(Boolean).join(' · ') || 'idle');
  }

  /** Marks the link of the chosen queue. */
  mark() {
    for (const [name, { link }] of this.items) {
      if (name === this.chosen) link.setAttribute('aria-current', 'true');
      else link.removeAttribute('aria-current');
    }
  }

  /** Shows a queue in the middle; none with null. */
  choose(name) {
    if (name === this.chosen) return;
    this.chosen = name;
    this.detail = null;
    $('queue-view').hidden = name === null;
    $('objects-view').hidden = name !== null;
    this.mark();
    if (name === null) return;
    setText($('queue-title'), name);
    this.render();
    this.poll();
  }

  async look() {
    const name = this.chosen;
    try {
      const detail = await this.ask(`/${encodeURIComponent(name)}`);
      if (name !== this.chosen) return;
      this.detail = detail;
      this.problem = '';
    } catch (error) {
      if (name !== this.chosen) return;
      this.problem = error.message;
    }
    this.render();
  }

  async putBack(which) {
    const name = this.chosen;
    const headers = { 'content-type': 'application/json' };
    let refused = '';
    try {
      await this.ask(`/${encodeURIComponent(name)}/requeue`, { method: 'POST', headers, body: JSON.stringify(which) });
    } catch (error) {
      refused = `Not put back: ${error.message}`;
    }
    await this.poll();
    if (refused && name === this.chosen) { this.problem = refused; this.render(); }
  }

  render() {
    const queue = this.detail;
    this.mark();
    setText($('queue-problem'), this.problem ?? '');
    $('queue-problem').hidden = !this.problem;
    $('queue-figures').hidden = !queue;
    if (this.problem && !queue) setPill($('queue-state'), 'bad', 'refused');
    else if (!queue) setPill($('queue-state'), 'wait', 'connecting');
    else setPill($('queue-state'), queue.synced ? 'good' : 'wait', queue.synced ? 'synced' : 'waiting');
    document.title = `${this.chosen} · queue · informerd`;
    setText($('queue-by'), queue ? `declared by ${queue.declaredBy === 'client' ? 'a client' : 'the configuration'}` : '');
    const resources = list(queue?.resources).map((r) => (r.message ? `${r.resource}: ${r.message}` : r.resource));
    setText($('queue-about'), [...resources, queue?.leader && `keys are given out by ${queue.leader}`].filter(Boolean).join(' · '));
    this.figures(queue);
    this.rows($('failed-keys'), 6, list(queue?.failedKeys), (f) => [[f.resource], [key(f)], [number.format(f.attempts), 'end'],
      [seconds(f.sinceSeconds), 'end'], [f.error || '(no error reported)', 'why']], (f) => this.button(f));
    this.rows($('leases'), 5, list(queue?.leases), (l) => [[l.resource], [key(l)], [number.format(l.attempt), 'end'],
      [seconds(l.sinceSeconds), 'end'], [age(l.expiresInSeconds * 1000), 'end']]);
    setText($('failed-count'), shownOf(queue?.failedKeys, queue?.failed));
    setText($('leases-count'), shownOf(queue?.leases, queue?.inFlight));
    $('put-back-all').hidden = !queue?.failed;
  }

  figures(queue) {
    if (!queue) return;
    const figures = [['ready', number.format(queue.depth)], ['from the first list', number.format(queue.firstState)],
      ['in flight', number.format(queue.inFlight)], ['delayed', number.format(queue.delayed)],
      ['failed', number.format(queue.failed), queue.failed ? 'bad' : ''], ['oldest', queue.depth ? age(queue.oldestSeconds * 1000) : '–'],
      ['longest in flight', queue.inFlight ? age(queue.longestRunningSeconds * 1000) : '–'], ['workers waiting', number.format(queue.waitingWorkers)]];
    if ($('queue-figures').childElementCount !== figures.length) {
      $('queue-figures').replaceChildren(...figures.map(([label]) => {
        const figure = el('div');
        figure.append(el('dt', '', label), el('dd'));
        return figure;
      }));
    }
    for (const [i, figure] of [...$('queue-figures').children].entries()) {
      figure.dataset.tone = figures[i][2] ?? '';
      setText(figure.lastElementChild, figures[i][1]);
    }
  }

  /** Updates the rows of a table. Existing rows keep their elements, so the focus is not lost. */
  rows(body, columns, entries, cells, last) {
    const before = new Map([...body.children].map((row) => [row.dataset.key, row]));
    const rows = entries.map((entry) => {
      const name = `${entry.resource} ${key(entry)}`;
      const texts = cells(entry);
      let row = before.get(name);
      if (!row) {
        row = el('tr');
        row.dataset.key = name;
        row.append(...texts.map(([, className]) => el('td', className)));
        if (last) row.append(last(entry));
      }
      for (const [i, [text]] of texts.entries()) { setText(row.children[i], text); row.children[i].title = text; }
      return row;
    });
    if (!rows.length) {
      const none = el('tr');
      none.append(el('td', 'none', 'none'));
      none.firstChild.colSpan = columns;
      rows.push(none);
    }
    if (rows.length !== body.childElementCount || rows.some((row, i) => body.children[i] !== row)) body.replaceChildren(...rows);
  }

  button({ resource, namespace, name }) {
    const button = el('button', 'small put-back', 'Put back');
    button.type = 'button';
    button.ariaLabel = `Put ${key({ namespace, name })} back`;
    button.addEventListener('click', async () => {
      button.disabled = true;
      await this.putBack({ resource, namespace, name });
      button.disabled = false;
    });
    const cell = el('td', 'end');
    cell.append(button);
    return cell;
  }
}

const key = ({ namespace, name }) => (namespace ? `${namespace}/${name}` : name);

/** How many there are, and how many of them are listed. */
const shownOf = (listed, total) => (total === undefined ? '' : listed.length < total ? `${number.format(listed.length)} of ${number.format(total)}` : number.format(total));

function leaderText(election) {
  if (!election) return '';
  if (election.leads) return 'keys are given out by this replica';
  return [election.leader ? `keys are given out by ${election.leader}` : 'no replica is known to lead', election.message].filter(Boolean).join(': ');
}

const id = (informer) => `${informer.resource}@${informer.scope ?? 'cluster'}`;

/** The namespace an informer is confined to, or ''. */
const confined = (informer) => /^namespace (\S+)$/.exec(informer.scope ?? '')?.[1] ?? '';

function watchPath(resource, ...segments) {
  return ['/v1/watch', resource, ...segments.filter(Boolean)].map((s, i) => (i ? encodeURIComponent(s) : s)).join('/');
}

function showCurl(button, path) {
  const command = `curl -N '${location.origin}${path}'`;
  setText(button, command);
  button.onclick = () => copyText(button, command);
}

// === Selection: the URL's fragment, #/pods or #/configmaps@payments or #/pods/NAMESPACE/NAME ===

const selection = { informer: null, object: null };

function route(informer, row) {
  const scope = confined(informer);
  const parts = [scope ? `${informer.resource}@${scope}` : informer.resource];
  if (row) parts.push(...[row.namespace, row.name].filter(Boolean));
  return `#/${parts.map((part) => encodeURIComponent(part).replaceAll('%40', '@')).join('/')}`;
}

/** Shows what the URL's fragment names, as far as the informers are known. */
function navigate() {
  const [, queue] = /^#queue\/(.+)$/.exec(location.hash) ?? [];
  queues?.choose(queue === undefined ? null : unescapePart(queue));
  if (queue !== undefined && selection.informer) {
    if (selection.object) { selection.object = null; table.selected = null; panel.close(); }
    informers.tick();
    return;
  }
  const [which = '', ...object] = (queue === undefined ? location.hash : '').replace(/^#\/?/, '').split('/').filter(Boolean).map(unescapePart);
  const known = [...informers.items.values()].map((item) => item.informer);
  const informer = known.find((i) => route(i).slice(2) === which) ?? known.find((i) => i.resource === which) ?? known[0];
  if (!informer) return;
  if (!selection.informer || id(selection.informer) !== id(informer)) select(informer);
  selection.informer = informer;
  const [namespace, name] = informer.namespaced ? object : ['', object[0]];
  const key = name ? `${namespace}/${name}` : null;
  if (key !== selection.object) {
    selection.object = key;
    table.selected = key;
    table.schedule();
    if (key) panel.open(informer, namespace, name);
    else panel.close();
    // If the panel is closed and opened within one frame, the ResizeObserver does not notice.
    table.measure();
  }
  showFacts();
}

function unescapePart(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function select(informer) {
  selection.informer = informer;
  selection.object = null;
  panel.close();
  feed?.close();
  feed = null;
  table.reset(informer);
  const learning = learn(informer);
  if (learning) learning.then(() => { if (!feed && id(selection.informer) === id(informer)) follow(informer); });
  else follow(informer);
}

function follow(informer) {
  table.reset(informer);
  const path = watchPath(informer.resource, confined(informer));
  showCurl($('curl'), path);
  setText($('title'), informer.resource);
  setText($('api'), `${informer.apiVersion} ${informer.kind}`);
  feed = new Feed(path, tableSink);
  informers.tick();
  showFacts();
  showCounts();
}

function closePanel() {
  location.hash = route(selection.informer);
  $('grid').focus({ preventScroll: true });
}

// === What the head of the table says ===

const tableSink = {
  fresh: () => table.fresh(),
  event(frame) {
    const object = frame.message?.object;
    if (frame.type === 'SYNCED') table.sweep();
    if (!object?.metadata) return;
    if (frame.type === 'ADDED' || frame.type === 'MODIFIED') table.put(object, Date.now(), feed.state === 'live');
    else if (frame.type === 'DELETED') table.remove(`${object.metadata.namespace ?? ''}/${object.metadata.name}`);
  },
  state() { showCounts(); showFacts(); },
};

function showCounts() {
  if (!feed) return;
  const [total, shown] = [table.rows.size, table.view.length];
  setText($('shown'), table.filtered ? `${number.format(shown)} of ${number.format(total)}` : number.format(total));
  feed.show($('stream'), feed.state === 'loading' ? number.format(total) : '');
  const empty = $('empty');
  empty.hidden = shown > 0 || table.moved;
  if (!empty.hidden) setText(empty, emptyText(total));
}

function emptyText(total) {
  if (total) return 'No object matches the filter. Escape clears it.';
  if (feed.state === 'live') return 'There are no objects.';
  if (feed.state === 'loading') return 'Waiting for the first objects…';
  return feed.detail || 'Connecting…';
}

function showFacts() {
  const { informer } = selection;
  if (!informer) return;
  const heard = informers.ageOf(informer);
  const item = informers.items.get(id(informer));
  const facts = [
    informer.scope === 'cluster' ? 'all namespaces' : informer.scope,
    informer.selectors,
    informer.state,
    informer.savedBytes > 0
      ? `${bytes(informer.bytes)} packed into ${bytes(informer.heldBytes)}`
      : bytes(informer.bytes),
    informer.resourceVersion && `resourceVersion ${informer.resourceVersion}`,
    heard === null ? 'nothing from the API server yet' : `API server last heard ${heard < 1 ? 'just now' : seconds(heard)}`,
    `${rate(item?.rate ?? null)} events/s`,
    plural(informer.subscribers, 'subscriber'),
    `${plural(informer.lists, 'list')} and ${plural(informer.watches, 'watch', 'watches')} upstream`,
  ];
  if (!informer.namespaced) facts.shift();
  setText($('facts'), facts.filter(Boolean).join(' · '));
  const refused = feed?.state === 'refused' ? feed.detail : '';
  const problem = refused || informers.troubleOf(informer);
  setText($('problem'), problem);
  $('problem').hidden = !problem;
  if (!queues?.chosen) document.title = `${informer.resource} (${number.format(table.rows.size)}) · informerd`;
}

const plural = (n, one, many = `${one}s`) => `${number.format(n ?? 0)} ${n === 1 ? one : many}`;

// === Start ===

let feed = null;
const table = new Table();
const graph = new Graph();
const panel = new Panel();
const informers = new Informers();
const queues = new Queues();
navigate();

$('filter').addEventListener('input', (event) => table.setFilter(event.target.value));
addEventListener('hashchange', navigate);
addEventListener('keydown', (event) => {
  const typing = event.target === $('filter');
  if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    $('filter').select();
  } else if (event.key === 'ArrowDown' && typing) {
    event.preventDefault();
    $('grid').focus({ preventScroll: true });
  } else if (event.key === 'Escape') {
    if (typing && $('filter').value) {
      $('filter').value = '';
      table.setFilter('');
    } else if (panel.isOpen) closePanel();
  }
});
setInterval(() => {
  informers.tick();
  showFacts();
  if (feed) feed.show($('stream'), feed.state === 'loading' ? number.format(table.rows.size) : '');
  panel.show();
  table.schedule(); // the ages on the screen
}, 1_000);

window.informerd = Object.freeze({
  rows: () => table.rows.size,
  shown: () => table.view.length,
  rendered: () => table.slots.length,
  queued: () => (feed ? feed.queue.length - feed.head : 0),
  events: () => feed?.applied ?? 0,
  get state() { return feed?.state ?? 'connecting'; },
  get resource() { return selection.informer?.resource ?? null; },
  get token() { return feed?.token ?? ''; },
  get lastFrameMs() { return table.lastFrameMs; },
  get maxFrameMs() { return table.maxFrameMs; },
});
