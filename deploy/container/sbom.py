"""What an image is made of, as an SPDX document: Debian's packages with their checksums, and the Rust crates within the program."""
import datetime
import hashlib
import io
import json
import pathlib
import re
import subprocess
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCK, WHEELS = ROOT / "text" / "rust" / "Cargo.lock", ROOT / "scripts" / "cuda_wheels.txt"


def time(epoch):
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def fields(path):
    said = subprocess.run(["dpkg-deb", "-f", str(path), "Package", "Version", "Architecture"], capture_output=True, text=True, check=True).stdout
    return dict(line.split(": ", 1) for line in said.splitlines())


def member(package, name):
    archive = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.extractfile(name).read()


def debian(path, file=""):
    """`file`: what is listed is that file of the package and its digest, for a package that is made anew and differs by times."""
    f = fields(path)
    data = member(path, file) if file else path.read_bytes()
    return {**({"packageFileName": file} if file else {}), "SPDXID": f"SPDXRef-deb-{re.sub(r'[^A-Za-z0-9.-]', '-', f['Package'])}", "name": f["Package"], "versionInfo": f["Version"],
            "downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
            "checksums": [{"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}],
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:deb/debian/{f['Package']}@{f['Version']}?arch={f['Architecture']}"}]}


def crates():
    for name, version in re.findall(r'^name = "(.+)"\nversion = "(.+)"\nsource', LOCK.read_text(), re.M):
        yield {"SPDXID": f"SPDXRef-crate-{name.replace('_', '-')}-{re.sub(r'[^A-Za-z0-9.-]', '-', version)}", "name": name, "versionInfo": version,
               "downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
               "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": f"pkg:cargo/{name}@{version}"}]}


def cuda():
    """What the plugin has within of CUDA, from the wheels that it was compiled with."""
    for name, version in re.findall(r"^(nvidia-cuda-(?:runtime|cccl))==(\S+)", WHEELS.read_text(), re.M):
        yield {"SPDXID": f"SPDXRef-wheel-{name}", "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
               "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
               "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": f"pkg:pypi/{name}@{version}"}]}


def document(packages, package, epoch, plugin=None):
    """`packages`: name -> file of each Debian package in the image; `package`: Baton's; `plugin`: that for GPUs."""
    parts = [debian(package, "./usr/bin/baton")] + [debian(p) for p in packages.values()] + list(crates()) + (list(cuda()) if plugin else [])
    parts = list({p["SPDXID"]: p for p in parts}.values())
    return json.dumps({
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "baton",
        "documentNamespace": f"urn:baton:image:{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()}",
        "creationInfo": {"created": time(epoch), "creators": ["Tool: build_image.py"]},
        "packages": parts,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": p["SPDXID"]} for p in parts],
    }, indent=1, sort_keys=True) + "\n"
