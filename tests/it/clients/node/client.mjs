// The official client, from the folder in INFORMERD_NODE_MODULES. The last argument names the server.
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const folder = join(process.env.INFORMERD_NODE_MODULES, '@kubernetes', 'client-node', 'dist', 'index.js');
export const k8s = await import(pathToFileURL(folder).href);

export const config = new k8s.KubeConfig();
config.loadFromOptions({
  // Without skipTLSVerify the client refuses plain HTTP.
  clusters: [{ name: 'informerd', server: process.argv.at(-1), skipTLSVerify: true }],
  users: [{ name: 'nobody' }],
  contexts: [{ name: 'informerd', cluster: 'informerd', user: 'nobody' }],
  currentContext: 'informerd',
});
