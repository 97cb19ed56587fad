// Sends reads, or requests that must be refused, with the official client. Usage: read.mjs read|refused URL. Prints one line of JSON.
import { k8s, config } from './client.mjs';

const core = config.makeApiClient(k8s.CoreV1Api);
const custom = config.makeApiClient(k8s.CustomObjectsApi);
const objects = k8s.KubernetesObjectApi.makeApiClient(config);

async function refusal(call) {
  try {
    await call();
  } catch (error) {
    return [error.code, JSON.parse(error.body).reason];
  }
  return 'was not refused';
}

async function read() {
  const pages = [];
  for (let token; token !== ''; ) {
    const page = await core.listPodForAllNamespaces({ limit: 3, _continue: token });
    pages.push(page.items.map((item) => item.metadata.name));
    token = page.metadata._continue ?? '';
  }
  const all = (await core.listPodForAllNamespaces()).items;
  const { name, namespace } = all[0].metadata;
  const widgets = { group: 'demo.informerd.dev', version: 'v1', plural: 'widgets' };
  const every = (await custom.listClusterCustomObject(widgets)).items;
  const named = { name: every[0].metadata.name, namespace: every[0].metadata.namespace };
  return {
    list: all,
    namespaced: (await core.listNamespacedPod({ namespace: 'default' })).items,
    labelled: (await core.listPodForAllNamespaces({ labelSelector: 'app in (a,c)' })).items,
    selected: (await core.listPodForAllNamespaces({ fieldSelector: `metadata.name=${name}` })).items,
    pages,
    get: await core.readNamespacedPod({ name, namespace }),
    nodes: (await core.listNode()).items,
    custom: every,
    'custom get': await custom.getNamespacedCustomObject({ ...widgets, ...named }),
    // Finds the path of a kind by discovery.
    object: await objects.read({ apiVersion: 'demo.informerd.dev/v1', kind: 'Widget', metadata: named }),
    version: await config.makeApiClient(k8s.VersionApi).getCode(),
    none: await refusal(() => core.readNamespacedPod({ name: 'none', namespace: 'default' })),
    'bad selector': await refusal(() => core.listPodForAllNamespaces({ labelSelector: 'a===' })),
    'bad continue': await refusal(() => core.listPodForAllNamespaces({ limit: 1, _continue: 'rubbish' })),
  };
}

async function refused() {
  const pod = { name: 'none', namespace: 'default' };
  return {
    delete: await refusal(() => core.deleteNamespacedPod(pod)),
    create: await refusal(() => core.createNamespacedPod({ ...pod, body: { metadata: { name: 'new' } } })),
    log: await refusal(() => core.readNamespacedPodLog(pod)),
    groups: (await config.makeApiClient(k8s.ApisApi).getAPIVersions()).groups.map((group) => group.name),
    resources: (await core.getAPIResources()).resources.map((one) => [one.name, one.verbs]),
  };
}

console.log(JSON.stringify(await { read, refused }[process.argv[2]]()));
