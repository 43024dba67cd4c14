"""As much of a Kubernetes API server as Helm talks to: it keeps objects, finds them by label, and patches them. No controllers, no admission."""
import base64
import http.server
import json
import socketserver
import threading
import urllib.parse

KINDS = {  # group and version -> (kind, plural)
    "v1": [("Secret", "secrets"), ("Service", "services"), ("ConfigMap", "configmaps"), ("ServiceAccount", "serviceaccounts"), ("Pod", "pods"),
           ("Namespace", "namespaces")],
    "apps/v1": [("Deployment", "deployments"), ("StatefulSet", "statefulsets")],
    "batch/v1": [("Job", "jobs")],
    "policy/v1": [("PodDisruptionBudget", "poddisruptionbudgets")],
    "networking.k8s.io/v1": [("NetworkPolicy", "networkpolicies")],
    "rbac.authorization.k8s.io/v1": [("Role", "roles"), ("RoleBinding", "rolebindings")],
}
CLUSTER_WIDE = {"namespaces"}


def discovery(path):
    """What is served, as clients ask for it; None for any other path."""
    groups = [gv.split("/") for gv in KINDS if "/" in gv]
    if path == "/version":
        return {"major": "1", "minor": "31", "gitVersion": "v1.31.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        version = lambda g, v: {"groupVersion": f"{g}/{v}", "version": v}  # noqa: E731
        return {"kind": "APIGroupList", "apiVersion": "v1",
                "groups": [{"name": g, "versions": [version(g, v)], "preferredVersion": version(g, v)} for g, v in groups]}
    group_version = path.removeprefix("/apis/").removeprefix("/api/")
    if group_version in KINDS:
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
                "resources": [{"name": plural, "kind": kind, "namespaced": plural not in CLUSTER_WIDE, "singularName": kind.lower(),
                               "verbs": ["create", "get", "list", "patch", "update", "delete", "watch"]} for kind, plural in KINDS[group_version]]}
    return None


def patched(old, patch):
    """A strategic merge: null removes, lists of named things are merged by name, others are replaced."""
    if isinstance(old, dict) and isinstance(patch, dict):
        out = dict(old)
        for key, value in patch.items():
            if key.startswith("$"):
                continue
            out[key] = patched(old.get(key), value)
            if value is None:
                del out[key]
        return out
    named = lambda items: isinstance(items, list) and items and all(isinstance(i, dict) and "name" in i for i in items)  # noqa: E731
    if named(old) and named(patch):
        changes = {i["name"]: i for i in patch}
        kept = [patched(i, changes.pop(i["name"], {})) for i in old if changes.get(i["name"], {}).get("$patch") != "delete"]
        return kept + [i for i in changes.values() if i.get("$patch") != "delete"]
    return patch


def fields(data):
    """(number, bytes or integer) of each field of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        value = varint()
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        yield tag >> 3, value


def pairs(entries):
    return {entry[1].decode(): entry.get(2, b"") for entry in map(dict, map(fields, entries))}


def secret(message):
    """A Secret as typed clients send it, in protobuf: the release that Helm keeps."""
    parts = list(fields(message))
    meta = list(fields(dict(parts)[1]))
    return {"apiVersion": "v1", "kind": "Secret", "type": dict(parts)[3].decode(),
            "metadata": {"name": dict(meta)[1].decode(), "labels": {k: v.decode() for k, v in pairs(v for n, v in meta if n == 11).items()}},
            "data": {k: base64.b64encode(v).decode() for k, v in pairs(v for n, v in parts if n == 2).items()}}


def read(method, body):
    if not body or method == "DELETE":
        return None
    return secret(dict(fields(body[4:]))[2]) if body.startswith(b"k8s\0") else json.loads(body)


class ObjectServer:
    """Use as a context manager; `objects`: path -> object."""

    def __init__(self):
        self.objects, self.lock = {}, threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a body waits 40 ms for an acknowledgement of its head

            def log_message(self, *unused):
                pass

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with outer.lock:
                    status, said = outer.answer(self.command, urllib.parse.urlsplit(self.path), read(self.command, body))
                text = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def answer(self, method, url, body):
        """Status and object."""
        path = url.path.rstrip("/")
        if method == "GET" and (found := discovery(path)):
            return 200, found
        if method == "POST":
            return self.create(f"{path}/{body['metadata']['name']}", body)
        if path in self.objects:
            return self.change(method, path, body)
        kinds = {plural: (gv, kind) for gv, kinds in KINDS.items() for kind, plural in kinds}
        if method == "GET" and (found := kinds.get(path.split("/")[-1])):
            return 200, self.listed(path, *found, dict(urllib.parse.parse_qsl(url.query)).get("labelSelector", ""))
        return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": f"{path} not found"}

    def create(self, path, body):
        if path in self.objects:
            return 409, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": "already exists"}
        self.objects[path] = body
        return 201, body

    def change(self, method, path, body):
        if method == "DELETE":
            self.objects.pop(path)
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if method != "GET":
            self.objects[path] = patched(self.objects[path], body) if method == "PATCH" else body
        return 200, self.objects[path]

    def listed(self, path, group_version, kind, selector):
        wanted = dict(pair.split("=") for pair in selector.split(",") if "=" in pair)
        items = [o for p, o in self.objects.items() if p.rpartition("/")[0] == path and wanted.items() <= o["metadata"].get("labels", {}).items()]
        return {"kind": f"{kind}List", "apiVersion": group_version, "metadata": {"resourceVersion": "1"}, "items": items}

    def found(self, kind):
        """name -> object of a kind, without what Helm itself keeps."""
        return {o["metadata"]["name"]: o for o in self.objects.values() if o["kind"] == kind and o.get("type") != "helm.sh/release.v1"}
