"""Sends reads, or requests that must be refused, with the official client. Usage: read.py read|refused URL. Prints one line of JSON."""

import json
import sys

from kubernetes import client, dynamic


def refusal(call, *arguments, **named):
    try:
        call(*arguments, **named)
    except client.ApiException as error:
        return [error.status, json.loads(error.body)["reason"]]
    return "was not refused"


def read(api):
    core, custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
    wire = api.sanitize_for_serialization
    pods = core.list_pod_for_all_namespaces

    pages, token = [], None
    while token != "":
        page = pods(limit=3, _continue=token)
        pages.append([item.metadata.name for item in page.items])
        token = page.metadata._continue or ""

    widget = {"group": "demo.informerd.dev", "version": "v1", "plural": "widgets"}
    widgets = dynamic.DynamicClient(api).resources.get(api_version="demo.informerd.dev/v1", kind="Widget")
    first = pods().items[0].metadata
    named = widgets.get().items[0].metadata
    return {
        "list": wire(pods().items),
        "namespaced": wire(core.list_namespaced_pod("default").items),
        "labelled": wire(pods(label_selector="app in (a,c)").items),
        "selected": wire(pods(field_selector=f"metadata.name={first.name}").items),
        "pages": pages,
        "get": wire(core.read_namespaced_pod(first.name, first.namespace)),
        "nodes": wire(core.list_node().items),
        "custom": custom.list_cluster_custom_object(**widget)["items"],
        "custom get": custom.get_namespaced_custom_object(**widget, namespace=named.namespace, name=named.name),
        "dynamic": [item.to_dict() for item in widgets.get().items],
        "dynamic get": widgets.get(namespace=named.namespace, name=named.name).to_dict(),
        "version": wire(client.VersionApi(api).get_code()),
        "none": refusal(core.read_namespaced_pod, "none", "default"),
        "bad selector": refusal(pods, label_selector="a==="),
        "bad continue": refusal(pods, limit=1, _continue="rubbish"),
    }


def refused(api):
    core = client.CoreV1Api(api)
    return {
        "delete": refusal(core.delete_namespaced_pod, "none", "default"),
        "create": refusal(core.create_namespaced_pod, "default", {"metadata": {"name": "new"}}),
        "log": refusal(core.read_namespaced_pod_log, "none", "default"),
        "groups": [group.name for group in client.ApisApi(api).get_api_versions().groups],
        "resources": [[one.name, one.verbs] for one in core.get_api_resources().resources],
    }


what = {"read": read, "refused": refused}[sys.argv[1]]
print(json.dumps(what(client.ApiClient(client.Configuration(host=sys.argv[2])))))
