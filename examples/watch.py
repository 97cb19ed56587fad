import http.client, json, time, urllib.request

URL, objects, token = "http://localhost:8090/v1/watch/pods?transport=ndjson", {}, ""
while True:
    try:
        if not token: objects.clear()
        with urllib.request.urlopen(URL + (token and "&resume=" + token), timeout=60) as stream:
            for event in map(json.loads, filter(bytes.strip, stream)):  # an empty line is a heartbeat
                kind, meta = event["type"], event["object"]["metadata"]
                key = (event["object"]["kind"], meta.get("namespace"), meta.get("name"))
                if kind in ("ADDED", "MODIFIED"): objects[key] = event["object"]
                elif kind == "DELETED": objects.pop(key, None)
                elif kind == "RESET": objects.clear(); token = ""
                elif kind == "BOOKMARK":
                    token = meta["annotations"]["informerd.dev/resume"]
                    print(len(objects), "objects at", token, flush=True)
    except (OSError, http.client.HTTPException, ValueError) as error: print(error, flush=True)
    time.sleep(1)
