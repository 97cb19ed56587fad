// Keeps a file with the phase of each pod in ./pods. Start as many as you like: each pod has one worker at a time.
import { mkdir, rename, rm, writeFile } from "node:fs/promises";

const URL = (process.env.INFORMERD_URL ?? "http://localhost:8090") + "/v1/queues/pod-files";
const SPEC = { watch: [{ resource: "pods", changed: "status.phase" }], leaseSeconds: 10, maxAttempts: 20 };

async function call(method, path, body) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(URL + path, { method, headers, body: JSON.stringify(body) });
  const text = await answer.text();
  if (!answer.ok) throw Object.assign(new Error(text), { code: answer.status });
  return text && JSON.parse(text);
}

async function reconcile(namespace, name, pod) {
  const path = `pods/${namespace}_${name}`;
  if (!pod) return rm(path, { force: true }); // deleted; only the key is known
  await writeFile(`.${namespace}_${name}.${process.pid}`, pod.status.phase + "\n");
  await rename(`.${namespace}_${name}.${process.pid}`, path);
}

async function handle({ namespace, name, object, lease }) {
  const failed = await reconcile(namespace, name, object).then(() => null, (error) => String(error));
  // A failed key is retried, after a growing delay.
  const answered = failed ? call("POST", "/retry", { lease, error: failed }) : call("POST", "/done", { lease });
  await answered.catch((error) => {
    if (error.code !== 409) throw error; // 409: too late, the lease has run out
  });
}

await mkdir("pods", { recursive: true });
for (;;) {
  try {
    const { items } = await call("POST", "/lease", { max: 10, waitSeconds: 20 });
    await Promise.all(items.map(handle));
  } catch (error) {
    const declared = error.code === 404 && (await call("PUT", "", SPEC).catch(() => null));
    if (!declared) {
      console.log(error.message);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}
