"""Followers that use the official client's `watch.Watch` as its documentation shows.

Usage: follow.py URL. For each line on stdin it prints one line with the objects of each follower:
{"NAME": {"objects": {"NAMESPACE/NAME": "VERSION STEP"}, "lists": N, "went_back": N}}.
"""

import json
import os
import sys
import threading
import time

import urllib3
from kubernetes import client, dynamic, watch


def plain(thing):
    """Key, version and step of a model, a dynamic object or a dict."""
    if hasattr(thing, "to_dict"):
        thing = thing.to_dict()
    metadata = thing["metadata"]
    version = metadata.get("resourceVersion") or metadata.get("resource_version")
    key = f"{metadata.get('namespace') or ''}/{metadata.get('name')}"
    return key, version, (metadata.get("labels") or {}).get("step")


class Follower(threading.Thread):
    """Lists, watches from the list's version, resumes from the last event, and lists again after a 410."""

    def __init__(self, source, stream=None, lists=True, **arguments):
        super().__init__(daemon=True)
        self.source = source
        self.stream = stream or (lambda **named: watch.Watch().stream(source, **named))
        self.starts_with_list = lists
        self.arguments = arguments
        self.lock = threading.Lock()
        self.objects = {}
        self.version = None
        self.lists = 0
        self.went_back = 0

    def run(self):
        while True:
            try:
                self.follow()
            except client.ApiException as error:
                if error.status == 410:
                    self.version = None
                time.sleep(0.1)
            except urllib3.exceptions.HTTPError:
                time.sleep(0.1)

    def follow(self):
        if self.version is None:
            self.start_over()
        # Without a version the stream begins with the current objects.
        at = {"resource_version": self.version} if self.version else {}
        for event in self.stream(**self.arguments, **at):
            key, version, step = plain(event["object"])
            with self.lock:
                if event["type"] == "DELETED":
                    self.objects.pop(key, None)
                else:
                    self.put(self.objects, key, version, step)
            self.version = version

    def start_over(self):
        listed, version = {}, None
        if self.starts_with_list:
            answer = self.source(**self.arguments)
            if hasattr(answer, "to_dict"):
                answer = answer.to_dict()
            for item in answer["items"]:
                self.put(listed, *plain(item))
            _, version, _ = plain(answer)
        with self.lock:
            self.objects, self.lists = listed, self.lists + 1
        self.version = version

    def put(self, objects, key, version, step):
        known = self.objects.get(key)
        if known and int(known.split()[0]) > int(version):
            self.went_back += 1
        objects[key] = f"{version} {step}"

    def report(self):
        with self.lock:
            return {"objects": dict(self.objects), "lists": self.lists, "went_back": self.went_back}


def main():
    configuration = client.Configuration(host=sys.argv[1])
    api = client.ApiClient(configuration)
    core = client.CoreV1Api(api)
    widgets = dynamic.DynamicClient(api).resources.get(api_version="demo.informerd.dev/v1", kind="Widget")
    custom = {"group": "demo.informerd.dev", "version": "v1", "plural": "widgets"}
    followers = {
        "pods": Follower(core.list_pod_for_all_namespaces),
        "pods without a list": Follower(core.list_pod_for_all_namespaces, lists=False),
        "pods of an app": Follower(core.list_pod_for_all_namespaces, label_selector="app=a"),
        "pods of a namespace": Follower(core.list_namespaced_pod, namespace="default"),
        "widgets": Follower(client.CustomObjectsApi(api).list_cluster_custom_object, **custom),
        "widgets of the dynamic client": Follower(widgets.get, stream=widgets.watch),
    }
    for follower in followers.values():
        follower.start()
    for _ in sys.stdin:
        print(json.dumps({name: follower.report() for name, follower in followers.items()}), flush=True)
    # Ends the threads, too, which wait in their streams.
    os._exit(0)


main()
