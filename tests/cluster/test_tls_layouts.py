"""Certificates as others make them, not `baton certs`: kinds of keys, authorities between root and leaf that are sent or are not, chains that are
long, broken, over, or in another order. Who should be believed is, everybody else is refused with a reason."""
import contextlib
import http.client
import pathlib
import re
import shutil
import ssl
import subprocess
import tempfile
import unittest

from test_tls import Certs, port_of, router, worker

LONG_AGO, LONG_HENCE, OVER = "20200101000000Z", "20900101000000Z", "20210101000000Z"


class Authorities(contextlib.ExitStack):
    """Certificates by name, each NAME.key and NAME.crt of a folder."""

    def __enter__(self):
        super().__enter__()
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-layouts-"))
        self.callback(shutil.rmtree, self.dir, ignore_errors=True)
        return self

    def path(self, name):
        return self.dir / name

    def openssl(self, *args):
        done = subprocess.run(["openssl", *map(str, args)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

    def make(self, name, issuer=None, key=("EC", "ec_paramgen_curve:P-256"), authority=False, until=LONG_HENCE, names="DNS:localhost, IP:127.0.0.1", path_length=None):
        """NAME, issued by ISSUER or by itself."""
        kind, *options = key
        self.openssl("genpkey", "-algorithm", kind, *(a for o in options for a in ("-pkeyopt", o)), "-out", self.path(f"{name}.key"))
        self.openssl("req", "-new", "-key", self.path(f"{name}.key"), "-subj", f"/CN={name}", "-out", self.path("csr"))
        shows = f"subjectAltName={names}\nextendedKeyUsage=serverAuth, clientAuth"
        if authority:
            shows = "keyUsage=critical, keyCertSign, cRLSign\nbasicConstraints=critical, CA:TRUE" + ("" if path_length is None else f", pathlen:{path_length}")
        self.path("index").write_text("")
        self.path("config").write_text(f"[ca]\ndefault_ca=d\n[d]\ndatabase={self.path('index')}\nnew_certs_dir={self.dir}\nrand_serial=yes\ndefault_md=default\npolicy=p\n"
                                       f"[p]\ncommonName=supplied\n[e]\n{shows}\n")
        by = issuer or name
        self.openssl("ca", "-batch", "-notext", "-config", self.path("config"), "-extensions", "e", "-in", self.path("csr"), "-out", self.path(f"{name}.crt"), "-startdate", LONG_AGO,
                     "-enddate", until, "-keyfile", self.path(f"{by}.key"), *(["-cert", self.path(f"{issuer}.crt")] if issuer else ["-selfsign"]))
        return name

    def chain(self, *names):
        """One file with the certificates of all, in this order."""
        out = self.path("-".join(names)[:100] + ".pem")
        out.write_text("".join(self.path(f"{name}.crt").read_text() for name in names))
        return out


class Layouts(unittest.TestCase):
    """Clients with certificates, before a router that asks for them."""

    @classmethod
    def setUpClass(cls):
        cls.all = cls.enterClassContext(Authorities())
        cls.certs = cls.enterClassContext(Certs())
        make = cls.all.make
        make("root", authority=True)
        make("issuing", "root", authority=True)
        make("sister", "root", authority=True)
        make("over", "root", authority=True, until=OVER)
        for leaf, issuer in (("direct", "root"), ("below", "issuing"), ("beside", "sister"), ("late", "over"), ("of-a-leaf", "direct")):
            make(leaf, issuer)

    def front(self, stack, authorities):
        """Asks a router that believes clients of these: status and body, or the error of its handshake."""
        flags = self.certs.flags()
        w = stack.enter_context(worker(*flags))
        r = stack.enter_context(router(port_of(w), *flags, "--tls-client-ca", authorities))
        host, port = r.value("BATON_HTTP").split("://")[1].rsplit(":", 1)

        def ask(key, *chain, path="/live"):
            context = ssl.create_default_context(cafile=self.certs.ca)
            context.load_cert_chain(self.all.chain(*chain), self.all.path(f"{key}.key"))
            connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)
            try:
                connection.request("GET", path)
                reply = connection.getresponse()
                return reply.status, reply.read().decode()
            except (ssl.SSLError, ConnectionError) as e:
                return None, str(e)
            finally:
                connection.close()
        return ask

    def test_authorities_between_root_and_leaf(self):
        make = self.all.make
        long = ["root"]
        for step in range(1, 10):
            long.insert(0, make(f"step-{step}", long[0], authority=True))
        make("far", long[2])      # seven authorities between it and the root
        make("too-far", long[0])  # nine
        make("short", "root", authority=True, path_length=0)
        make("shorter", "short", authority=True)
        make("forbidden", "shorter")
        with contextlib.ExitStack() as stack:
            ask = self.front(stack, self.all.path("root.crt"))
            for chain in [("direct",), ("direct", "root"), ("below", "issuing"), ("below", "issuing", "root"), ("below", "root", "issuing"), ("far", *long[2:])]:
                self.assertEqual(ask(chain[0], *chain)[0], 200, chain)
            for chain, why in [(("below",), "unknown-ca"), (("late", "over"), "expired"), (("of-a-leaf", "direct"), "bad-certificate"), (("too-far", *long), "bad-certificate"),
                               (("forbidden", "shorter", "short"), "bad-certificate")]:
                def counted(why=why):
                    found = re.findall(rf'^baton_tls_refused_total{{[^}}]*port="http"[^}}]*reason="{why}"[^}}]*}} (\S+)$', ask("direct", "direct", path="/metrics")[1], re.M)
                    return sum(map(float, found))
                before = counted()
                self.assertIsNone(ask(chain[0], *chain)[0], chain)
                self.assertEqual(counted(), before + 1, f"{chain}: {why}")

    def test_an_authority_that_another_has_issued_is_believed_alone(self):
        with contextlib.ExitStack() as stack:
            ask = self.front(stack, self.all.path("issuing.crt"))
            for chain in [("below",), ("below", "issuing"), ("below", "issuing", "root")]:
                self.assertEqual(ask(chain[0], *chain)[0], 200, chain)
            for chain in [("beside", "sister"), ("beside", "sister", "root"), ("direct", "root")]:
                status, why = ask(chain[0], *chain)
                self.assertIsNone(status, chain)
                self.assertIn("unknown ca", why.replace("_", " ").lower(), chain)

    def test_keys_of_many_kinds(self):
        kinds = {"rsa": ("RSA", "rsa_keygen_bits:2048"), "pss": ("RSA-PSS", "rsa_keygen_bits:2048"), "ed": ("ED25519",), "large": ("EC", "ec_paramgen_curve:P-521")}
        for name, key in kinds.items():
            self.all.make(name, "issuing", key=key)
        with contextlib.ExitStack() as stack:
            ask = self.front(stack, self.all.chain("sister", "issuing"))
            for name in kinds:
                self.assertEqual(ask(name, name)[0], 200, name)
        # And between our own processes.
        for name in kinds:
            flags = ["--tls-cert", self.all.chain(name), "--tls-key", self.all.path(f"{name}.key"), "--tls-ca", self.all.path("issuing.crt")]
            with worker(*flags) as w, router(port_of(w), *flags) as r:
                r.value("BATON_HTTP")  # it has reached the worker


if __name__ == "__main__":
    unittest.main(verbosity=2)
