"""The part of a Kubernetes API server that serves EndpointSlices, for tests: lists, watches, drops watchers, forgets (410), and
goes away. It keeps every change, and what it was asked."""
import http.server
import json
import queue
import socket
import socketserver
import ssl
import threading
import urllib.parse


def endpoint(address, uid=None, **conditions):
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "uid": uid or address}}


class ApiServer:
    """Slices of one service. `certificate`: (cert, key) for TLS. `port` 0: any."""

    def __init__(self, certificate=None, token=None, port=0, page=1, namespace="ns", service="svc", host="127.0.0.1"):
        self.path, self.selector = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", f"kubernetes.io/service-name={service}"
        self.lock, self.slices, self.version, self.oldest = threading.Lock(), {}, 100, 0
        self.log, self.watchers, self.watched, self.token, self.page, self.asked, self.lists = [], [], 0, token, page, [], {}
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else a body waits 40 ms for an acknowledgement of its head

            def log_message(self, *args):
                pass

            def do_GET(self):
                api.get(self)

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, request, client_address):
                pass

        self.server = Server((host, port), Handler)
        self.port = self.server.server_address[1]
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.drop()

    # ---- what changes

    def put(self, name, endpoints, port, port_name="grpc", told=True):
        """Not `told`: by no event."""
        with self.lock:
            self.version += 1
            fresh = name not in self.slices
            self.slices[name] = {"metadata": {"name": name, "resourceVersion": str(self.version)}, "addressType": "IPv4",
                                 "endpoints": endpoints, "ports": [{"name": port_name, "port": port, "protocol": "TCP"}]}
            if told:
                self.tell("ADDED" if fresh else "MODIFIED", self.slices[name])

    def delete(self, name):
        with self.lock:
            self.version += 1
            gone = self.slices.pop(name)
            gone["metadata"]["resourceVersion"] = str(self.version)
            self.tell("DELETED", gone)

    def bookmark(self):
        with self.lock:
            self.tell("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def tell(self, kind, what):
        event = (self.version, json.dumps({"type": kind, "object": what}))
        self.log.append(event)
        for watcher in self.watchers:
            watcher.put(event)

    def say(self, line):
        """Whoever watches now hears that."""
        with self.lock:
            for watcher in self.watchers:
                watcher.put((self.version, line))

    def drop(self):
        """Every watch breaks off."""
        with self.lock:
            for watcher in self.watchers:
                watcher.put(None)

    def forget(self):
        """What has happened is not known any more: a watch from there gets 410."""
        with self.lock:
            self.oldest = self.version + 1
            self.version += 1

    # ---- requests

    def get(self, handler):
        url = urllib.parse.urlparse(handler.path)
        query = {k: v[0] for k, v in urllib.parse.parse_qs(url.query).items()}
        self.asked.append((url.path, query, handler.headers.get("Authorization")))
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return self.answer(handler, 401, {"kind": "Status", "code": 401, "message": "Unauthorized"})
        if url.path != self.path or query.get("labelSelector") != self.selector:
            return self.answer(handler, 404, {"kind": "Status", "code": 404, "message": "not found"})
        if query.get("watch") == "true":
            return self.watch(handler, int(query["resourceVersion"]))
        with self.lock:  # the pages of a list are of one moment
            version, items = self.lists.pop(query.get("continue"), None) or (self.version, [self.slices[n] for n in sorted(self.slices)])
            more = f"{version}-{len(items) - self.page}" if len(items) > self.page else ""
            if more:
                self.lists[more] = (version, items[self.page:])
            body = json.dumps({"kind": "EndpointSliceList", "metadata": {"resourceVersion": str(version), "continue": more},
                               "items": items[:self.page]})
        return self.answer(handler, 200, body)

    @staticmethod
    def answer(handler, code, body):
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        handler.send_response(code)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def watch(self, handler, since):
        news = queue.Queue()
        with self.lock:
            gone = since < self.oldest
            for event in self.log:
                if event[0] > since:
                    news.put(event)
            self.watchers.append(news)
            self.watched += 1  # since the start: who has left is among the watchers until he is told something
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()

        def line(text):
            data = text.encode() + b"\n"
            for piece in (data[:7], data[7:]):  # an event need not come in one piece
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                handler.wfile.flush()

        try:
            if gone:
                line(json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired",
                                                             "message": f"too old resource version: {since}"}}))
                handler.wfile.write(b"0\r\n\r\n")
                return
            while (event := news.get()) is not None:
                line(event[1])
        except OSError:
            pass
        finally:
            with self.lock:
                self.watchers.remove(news)
            handler.close_connection = True
