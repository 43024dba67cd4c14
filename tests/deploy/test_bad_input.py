"""What values cannot refuse when they are rendered is said by the pod in one line, with what to change, and nothing becomes ready."""
import base64
import subprocess
import time
import unittest

import chart
from where import BATON, needs, run
import hosts
import kubelet
from test_chart_runs import NAMES, VALUES, full


@unittest.skipIf(hosts.why_not(), hosts.why_not())
@needs(chart.why_not())
class BadInput(unittest.TestCase):
    def ends(self, over, role="decode"):
        """The exit code and last line of a pod of that role."""
        rendered = chart.objects(chart.merged(VALUES, over))
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster:
            pod = cluster.run("decode-a", full(role), rendered)
            code = pod.process.wait(30)
            self.assertFalse(pod.probe("readinessProbe"))
            return code, pod.log.read_text().splitlines()[-1]

    def test_a_model_that_the_image_and_volume_have_not(self):
        for over, role in (({"model": {"path": "none"}}, "decode"), ({"model": {"path": "none"}}, "router")):
            code, said = self.ends(over, role)
            self.assertEqual(code, 3, said)
            self.assertIn("/models/none", said)

    def test_rdma_that_is_required_and_not_there(self):
        code, said = self.ends({"rdma": {"enabled": True, "required": True}})
        self.assertEqual(code, 2)
        self.assertIn("--require-rdma: no RDMA device", said)

    def test_a_certificate_for_another_name(self):
        rendered = chart.objects(VALUES)
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster:
            run([BATON, "certs", cluster.folder / "tls"])
            self.other_name(cluster.folder / "tls")
            (secret,) = (o for o in rendered if o["kind"] == "Secret" and o["metadata"]["name"] == full("tls"))
            files = {"tls.crt": "other.crt", "tls.key": "other.key", "ca.crt": "other-ca.crt"}
            secret["data"] = {key: base64.b64encode((cluster.folder / "tls" / file).read_bytes()).decode() for key, file in files.items()}
            worker, router = cluster.run("decode-a", full("decode"), rendered), cluster.run("router-a", full("router"), rendered)
            worker.wait()
            cluster.publish()
            self.assertIn("is valid for llm.example, not for baton-worker", self.await_line(router, f"{worker.address}:9100: connecting: TLS"))
            self.assertFalse(router.probe("readinessProbe"), "nothing half up and green")

    def test_as_little_shared_memory_as_can_be_is_enough(self):
        """Baton's own is anonymous memory, which the container's limit counts; /dev/shm is UCX's."""
        rendered = chart.objects({**VALUES, "shmSize": "64Ki"})
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster:
            for role in ("prefill", "decode", "router"):
                cluster.run(f"{role}-a", full(role), rendered).wait("startupProbe")
            cluster.publish()
            cluster.pods[-1].wait()
            pod = cluster.run("test-1", full("test"), rendered)
            self.assertEqual(pod.process.wait(60), 0, pod.log.read_text())
            self.assertIn("A prefill worker computed the prompt", pod.log.read_text())

    def other_name(self, folder):
        """A certificate of an authority, for another name than baton-worker."""
        new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run([*new, "-x509", "-days", "60", "-keyout", folder / "ca.key", "-out", folder / "other-ca.crt", "-subj", "/CN=ca"], check=True,
                       capture_output=True)
        subprocess.run([*new, "-keyout", folder / "other.key", "-out", folder / "other.csr", "-subj", "/CN=llm.example"], check=True, capture_output=True)
        (folder / "names").write_text("subjectAltName=DNS:llm.example\nextendedKeyUsage=serverAuth,clientAuth\n")
        subprocess.run(["openssl", "x509", "-req", "-in", folder / "other.csr", "-CA", folder / "other-ca.crt", "-CAkey", folder / "ca.key",
                        "-CAcreateserial", "-days", "60", "-extfile", folder / "names", "-out", folder / "other.crt"], check=True, capture_output=True)

    def await_line(self, pod, text):
        deadline = time.monotonic() + 30
        while not (found := [line for line in pod.log.read_text().splitlines() if text in line]):
            self.assertTrue(pod.process.poll() is None and time.monotonic() < deadline, pod.log.read_text()[-2000:])
            time.sleep(0.05)
        return found[0]


if __name__ == "__main__":
    unittest.main()
