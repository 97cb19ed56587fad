"""Calls informerd with the client that openapi-python-client generated from its /openapi.json.

generated.py DATA_URL ADMIN_URL; the client is the package `generated` of the current folder. Prints what it read as JSON.
"""

import json
import sys

sys.path.insert(0, ".")

from generated import Client  # noqa: E402
from generated.api.admin import livez, readyz  # noqa: E402
from generated.api.data import (  # noqa: E402
    snapshot,
    snapshot_in_namespace,
    snapshot_of_object,
    watch,
    watch_in_namespace,
    watch_of_object,
)
from generated.api.meta import resources  # noqa: E402

data, admin = (Client(base_url=url, timeout=30) for url in sys.argv[1:3])


def items(answer):
    return sorted(f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in answer.to_dict()["items"])


def events(answer):
    """The events of a stream that ends by itself, as NDJSON."""
    assert answer.status_code == 200, answer
    lines = [json.loads(line) for line in answer.content.decode().splitlines() if line]
    return [f"{event['type']} {event['object']['metadata'].get('name', '')}".strip() for event in lines]


def follow(operation, *path):
    return events(
        operation.sync_detailed(*path, client=data, timeout_seconds=1, accept="application/x-ndjson")
    )


missing = snapshot_of_object.sync("pods", "shop", "none", client=data)
page = snapshot.sync("pods", client=data, limit=1)
rest = snapshot.sync("pods", client=data, limit=1, continue_=page.to_dict()["metadata"]["continue"])
print(
    json.dumps(
        {
            "all": items(snapshot.sync("pods", client=data)),
            "several": items(snapshot.sync("pods,configmaps", client=data)),
            "selected": items(snapshot.sync("pods", client=data, label_selector="app=web")),
            "pages": items(page) + items(rest),
            "namespace": items(snapshot_in_namespace.sync("pods", "shop", client=data)),
            "cluster": snapshot_in_namespace.sync("namespaces", "shop", client=data).to_dict()["metadata"]["name"],
            "object": snapshot_of_object.sync("pods", "shop", "a", client=data).to_dict()["metadata"]["name"],
            "missing": [missing.code, missing.reason],
            "watch": follow(watch, "pods"),
            "watch namespace": follow(watch_in_namespace, "pods", "shop"),
            "watch object": follow(watch_of_object, "pods", "shop", "a"),
            "resources": [informer.name for informer in resources.sync(client=data).informers],
            "live": livez.sync_detailed(client=admin).content.decode(),
            "ready": readyz.sync_detailed(client=admin, verbose="").status_code,
        }
    )
)
