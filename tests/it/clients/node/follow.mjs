// Informers of the official client, restarted after errors as its documentation shows.
//
// Usage: follow.mjs URL. For each line on stdin it prints one line with the objects of each informer:
// {"NAME": {"objects": {"NAMESPACE/NAME": "VERSION STEP"}, "lists": N, "went_back": N}}.
import { createInterface } from 'node:readline';
import { k8s, config } from './client.mjs';

const core = config.makeApiClient(k8s.CoreV1Api);
const custom = config.makeApiClient(k8s.CustomObjectsApi);

function key(object) {
  return `${object.metadata.namespace ?? ''}/${object.metadata.name}`;
}

function follow(path, list, labelSelector) {
  const follower = { lists: 0, wentBack: 0, seen: new Map() };
  const counted = async () => {
    const listed = await list();
    follower.lists += 1;
    return listed;
  };
  const informer = k8s.makeInformer(config, path, counted, labelSelector);
  const seen = (object) => {
    const version = BigInt(object.metadata.resourceVersion);
    if ((follower.seen.get(key(object)) ?? 0n) > version) {
      follower.wentBack += 1;
    }
    follower.seen.set(key(object), version);
  };
  informer.on('add', seen);
  informer.on('update', seen);
  informer.on('error', () => setTimeout(() => informer.start(), 100));
  informer.start();
  follower.report = () => {
    const text = (object) => `${object.metadata.resourceVersion} ${object.metadata.labels?.step ?? 'None'}`;
    const objects = Object.fromEntries(informer.list().map((object) => [key(object), text(object)]));
    return { objects, lists: follower.lists, went_back: follower.wentBack };
  };
  return follower;
}

const widgets = { group: 'demo.informerd.dev', version: 'v1', plural: 'widgets' };
const followers = {
  pods: follow('/api/v1/pods', () => core.listPodForAllNamespaces()),
  'pods of an app': follow(
    '/api/v1/pods',
    () => core.listPodForAllNamespaces({ labelSelector: 'app=a' }),
    'app=a',
  ),
  'pods of a namespace': follow('/api/v1/namespaces/default/pods', () =>
    core.listNamespacedPod({ namespace: 'default' }),
  ),
  widgets: follow('/apis/demo.informerd.dev/v1/widgets', () => custom.listClusterCustomObject(widgets)),
};

for await (const _ of createInterface(process.stdin)) {
  const reports = Object.entries(followers).map(([name, follower]) => [name, follower.report()]);
  console.log(JSON.stringify(Object.fromEntries(reports)));
}
process.exit(0);
