"""TLS sessions of before a change of --tls-client-ca: whoever is believed no more resumes nothing, on no port; and nobody says anything before
the handshake is done."""
import contextlib
import shutil
import socket
import ssl
import subprocess
import unittest

from harness import Cluster
from test_tls import Certs
from test_trust import PREFACE

VERSIONS = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
LOCAL = "127.0.0.1"


def context_of(server, client, version, port):
    """Of a client that shows a certificate of `client` and keeps its sessions."""
    context = ssl.create_default_context(cafile=server.ca)
    context.load_cert_chain(client.dir / "client.crt", client.dir / "client.key")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2" if port == "grpc" else "http/1.1"])
    return context


def asked(context, port, number, session=None):
    """(answer, session, resumed) of a connection that asks what the port answers anybody; b"": it was refused."""
    with socket.create_connection((LOCAL, number), timeout=20) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=LOCAL, session=session) as s:
                s.sendall(PREFACE if port == "grpc" else b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = s.recv(4096)
                return answer, s.session, s.session_reused
        except (ssl.SSLError, ConnectionError):
            return b"", None, False


class Resumption(unittest.TestCase):
    def test_a_client_of_an_authority_that_was_taken_out_resumes_no_session(self):
        with Certs() as server, Certs() as before, Certs() as after, contextlib.ExitStack() as stack:
            believed = server.dir / "clients.crt"
            shutil.copy(before.ca, believed)
            c = stack.enter_context(Cluster(args=["--both", 1, *server.flags(), "--tls-client-ca", believed], ca=server.ca))
            ports = {"grpc": int(c.grpc.rsplit(":", 1)[1]), "http": int(c.port)}
            kept, resumed = {}, {}
            for port, number in ports.items():
                for version in VERSIONS:
                    context = context_of(server, before, version, port)
                    answer, session, _ = asked(context, port, number)
                    self.assertTrue(answer, f"{port} {version.name}: believed")
                    again, _, reused = asked(context, port, number, session)
                    self.assertTrue(again, f"{port} {version.name}: believed once more")
                    kept[port, version], resumed[port, version] = (context, session), reused
            self.assertFalse(any(reused for (port, _), reused in resumed.items() if port == "http"), "our own ports give no sessions")
            shutil.copy(after.ca, server.dir / "new.crt")
            (server.dir / "new.crt").replace(believed)

            def changed():
                return all(not asked(context_of(server, before, v, p), p, n)[0] for p, n in ports.items() for v in VERSIONS)
            c.wait_until(changed, "new handshakes of before are refused")
            for (port, version), (context, session) in kept.items():
                answer, _, _ = asked(context, port, ports[port], session)
                self.assertEqual(answer, b"", f"{port} {version.name}: the session of before is worth nothing (it resumed before: {resumed[port, version]})")
                self.assertTrue(asked(context_of(server, after, version, port), port, ports[port])[0], f"{port} {version.name}: who is believed now")

    def test_no_port_takes_early_data(self):
        with Certs() as server, Cluster(args=["--both", 1, *server.flags()], ca=server.ca) as c:
            for number in (int(c.grpc.rsplit(":", 1)[1]), int(c.port), int(c.admin.rsplit(":", 1)[1])):
                said = subprocess.run(["openssl", "s_client", "-connect", f"{LOCAL}:{number}", "-CAfile", server.ca, "-tls1_3", "-alpn", "h2,http/1.1", "-cert",
                                       server.dir / "client.crt", "-key", server.dir / "client.key", "-ign_eof"],
                                      input=b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", capture_output=True, timeout=60)
                text = said.stdout.decode(errors="replace")
                self.assertIn("Verify return code: 0", text)
                self.assertNotRegex(text, r"Max Early Data: [1-9]", number)


if __name__ == "__main__":
    unittest.main()
