"""Keeps a ConfigMap NAME-pod-ips beside each Service, with the IPs of its Ready pods. It writes through informerd:

    informerd serve --watch services --watch endpointslices --watch configmaps --pass-through=all
"""
import http.client, json, os, time, urllib.error, urllib.request

URL = os.environ.get("INFORMERD_URL", "http://localhost:8090")
QUEUE = "/v1/queues/pod-ips"
OURS = {"app.kubernetes.io/managed-by": "pod-ips"}
SPEC = {"leaseSeconds": 10, "maxAttempts": 20, "watch": [
    {"resource": "services"},
    {"resource": "endpointslices", "enqueue": [{"resource": "services"}]},
    # Restores a ConfigMap that somebody changes or deletes.
    {"resource": "configmaps", "labelSelector": "app.kubernetes.io/managed-by=pod-ips",
     "enqueue": [{"resource": "services", "by": "owner"}]},
]}


def call(method, path, body=None):
    headers = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers, method=method), timeout=60) as answer:
        return json.loads(answer.read() or "null")


def found(method, path):
    try: return call(method, path)
    except urllib.error.HTTPError as error:
        if error.code != 404: raise


def ready_ips(namespace, name):
    selected = f"labelSelector=kubernetes.io/service-name={name}"
    for each in call("GET", f"/v1/snapshot/endpointslices/{namespace}?{selected}")["items"]:
        for endpoint in each.get("endpoints") or []:
            if endpoint.get("conditions", {}).get("ready", True):  # absent means ready
                yield from endpoint["addresses"]


def reconcile(namespace, name, service):
    maps, map_name = f"/api/v1/namespaces/{namespace}/configmaps", f"{name}-pod-ips"
    held = found("GET", f"/v1/snapshot/configmaps/{namespace}/{map_name}")
    if held and not OURS.items() <= held["metadata"].get("labels", {}).items():
        raise ValueError(f"{namespace}/{map_name} is not ours")
    if service is None or "deletionTimestamp" in service["metadata"]:
        if held: found("DELETE", f"{maps}/{map_name}")
        return
    data = {"ips": "".join(f"{ip}\n" for ip in sorted(set(ready_ips(namespace, name))))}
    owner = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": service["metadata"]["uid"]}
    if held and held.get("data") == data and held["metadata"].get("ownerReferences") == [owner]: return
    metadata = {"name": map_name, "namespace": namespace, "labels": OURS, "ownerReferences": [owner]}
    if held:  # With the version that was read: 409 if the cache was behind, and the key is retried.
        metadata["resourceVersion"] = held["metadata"]["resourceVersion"]
    call(*(("PUT", f"{maps}/{map_name}") if held else ("POST", maps)), {"metadata": metadata, "data": data})


while True:
    try:
        for item in call("POST", QUEUE + "/lease", {"max": 10})["items"]:
            verb, answer = "/done", {"lease": item["lease"]}
            try: reconcile(item["namespace"], item["name"], item["object"])
            except Exception as error: verb, answer["error"] = "/retry", repr(error)  # retried, after a growing delay
            try: call("POST", QUEUE + verb, answer)
            except urllib.error.HTTPError as error:
                if error.code != 409: raise  # 409: too late, the lease has run out
    except (OSError, http.client.HTTPException, ValueError) as error:
        try:
            if getattr(error, "code", 0) == 404: call("PUT", QUEUE, SPEC); continue
        except OSError as refused: error = refused
        print(error, flush=True)
        time.sleep(1)
