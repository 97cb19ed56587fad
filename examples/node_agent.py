"""Keeps phase and IP of a node's pods in pods.json, as an agent of a DaemonSet does. No other change of a pod is sent.

    NODE_NAME=node-1 python3 node_agent.py
"""
import http.client, json, os, time, urllib.parse, urllib.request, zlib

URL = os.environ.get("INFORMERD_URL", "http://localhost:8090") + "/v1/watch/pods?"
QUERY = {"transport": "ndjson", "fieldSelector": "spec.nodeName=" + os.environ["NODE_NAME"],
         "fields": "status.phase,status.podIP", "coalesceMs": 100}
pods, token = {}, ""


def events(answer):
    """The events of a gzip stream, each as soon as it has arrived."""
    unzip, rest = zlib.decompressobj(wbits=31), b""
    while data := answer.read1():
        *lines, rest = (rest + unzip.decompress(data)).split(b"\n")
        yield from map(json.loads, filter(None, lines))  # an empty line is a heartbeat


def write():
    with open("pods.json.new", "w") as file: json.dump(pods, file, sort_keys=True)
    os.replace("pods.json.new", "pods.json")


while True:
    try:
        complete = bool(token)  # with a token the pods are those of the file
        if not token: pods.clear()
        query = urllib.parse.urlencode(QUERY | ({"resume": token} if token else {}))
        request = urllib.request.Request(URL + query, headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            for event in events(answer):
                kind, meta = event["type"], event["object"]["metadata"]
                name = f'{meta.get("namespace")}/{meta.get("name")}'
                if kind in ("ADDED", "MODIFIED"): pods[name] = event["object"].get("status", {})
                elif kind == "DELETED": pods.pop(name, None)
                elif kind == "RESET": pods.clear(); token, complete = "", False
                elif kind == "BOOKMARK":
                    token, complete = meta["annotations"]["informerd.dev/resume"], True
                if complete: write()
    except (OSError, http.client.HTTPException, ValueError, zlib.error) as error: print(error, flush=True)
    time.sleep(1)
