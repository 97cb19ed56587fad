"""Keeps a file with the phase of each pod in ./pods. Start as many as you like: each pod has one worker at a time."""
import http.client, json, os, time, urllib.error, urllib.request

URL = os.environ.get("INFORMERD_URL", "http://localhost:8090") + "/v1/queues/pod-files"
SPEC = {"watch": [{"resource": "pods", "changed": "status.phase"}], "leaseSeconds": 10, "maxAttempts": 20}


def call(method, path, body):
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or "null")


def reconcile(namespace, name, pod):
    path = f"pods/{namespace}_{name}"
    if pod is None:  # deleted; only the key is known
        if os.path.exists(path): os.remove(path)
        return
    with open(f".{namespace}_{name}.{os.getpid()}", "w") as file:
        file.write(pod["status"]["phase"] + "\n")
    os.replace(file.name, path)


def work():
    for item in call("POST", "/lease", {"max": 10, "waitSeconds": 20})["items"]:
        try:
            reconcile(item["namespace"], item["name"], item["object"])
            verb, answer = "/done", {}
        except Exception as error:  # retried, after a growing delay
            verb, answer = "/retry", {"error": repr(error)}
        try:
            call("POST", verb, {"lease": item["lease"], **answer})
        except urllib.error.HTTPError as error:
            if error.code != 409: raise  # 409: too late, the lease has run out


os.makedirs("pods", exist_ok=True)
while True:
    try:
        work()
    except (OSError, http.client.HTTPException, ValueError) as error:
        try:
            if getattr(error, "code", 0) == 404: call("PUT", "", SPEC); continue
        except OSError as refused: error = refused
        print(error, flush=True)
        time.sleep(1)
