"""The chart, rendered by Helm's own engine (a Python package of it), as objects."""
import copy
import difflib
import importlib
import pathlib
import re
import sys

from where import ROOT, TOOLS

for packages in (TOOLS / "venv" / "lib").glob("python3*/site-packages"):
    sys.path.insert(0, str(packages))

CHART = ROOT / "deploy" / "helm" / "baton"
VALUES = sorted((pathlib.Path(__file__).parent / "values").glob("*.yaml"))
GOLDEN = pathlib.Path(__file__).parent / "golden"
FULL = "own_secrets"  # is compared whole; of the others, what they change of it
RELEASE, NAMESPACE = "prod", "llm"


def why_not():
    """Why charts cannot be rendered here; "" when they can."""
    try:
        importlib.import_module("helm_python")
        importlib.import_module("yaml")
        importlib.import_module("kubernetes_validate")
        return ""
    except (ImportError, OSError) as e:
        return f"no Helm engine here (scripts/deploy_tools.sh): {e}"


def values(path):
    import yaml
    return yaml.safe_load(path.read_text())


def merged(base, over):
    """Values with others over them, as Helm lays them."""
    out = copy.deepcopy(base)
    for key, value in over.items():
        out[key] = merged(out[key], value) if value and isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def files(given, name=RELEASE, namespace=NAMESPACE):
    """Template -> text."""
    from helm_python.chart import Chart
    return Chart.load(CHART).render(given, name=name, namespace=namespace)


def text(given):
    """All manifests as one text in which what is drawn at random is a fixed word, without the boards' JSON."""
    parts = []
    for path, body in sorted(files(given).items()):
        if body.strip() and "{" not in path:
            parts.append(f"# {path}\n" + "\n".join(line.rstrip() for line in body.splitlines() if line.strip()))
    whole = "\n".join(parts) + "\n"
    whole = re.sub(r"(?m)^( +(?:hash-key|cluster-secret|keys|tls\.crt|tls\.key|ca\.crt): )\S+$", r"\1GENERATED", whole)
    return re.sub(r"(?m)^  (\w+\.json): \|\n(?:    .*\n)+", r"  \1: BOARD\n", whole)


def change(whole, other):
    """What `other` changes, with a line around it; without places, which say nothing."""
    lines = difflib.unified_diff(whole.splitlines(), other.splitlines(), lineterm="", n=1)
    return "\n".join("@@" if line.startswith("@@") else line for line in list(lines)[2:]) + "\n"


def objects(given, **kw):
    """Every object that is rendered."""
    import yaml
    out = []
    for path, body in sorted(files(given, **kw).items()):
        if not path.endswith("NOTES.txt"):
            out += [o for o in yaml.load_all(body, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if o]
    return out


def pods(rendered):
    """(name, labels, spec) of every pod that the objects make."""
    for o in rendered:
        if o["kind"] == "Pod":
            yield o["metadata"]["name"], o["metadata"]["labels"], o["spec"]
        elif o["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield o["metadata"]["name"], o["spec"]["template"]["metadata"]["labels"], o["spec"]["template"]["spec"]
        elif o["kind"] == "LeaderWorkerSet":
            yield from group(o["metadata"]["name"], o["spec"])
        elif o["kind"] == "DisaggregatedSet":
            for role in o["spec"]["roles"]:
                yield from group(f"{o['metadata']['name']}-{role['name']}", role["spec"])


def group(name, spec):
    """The pods of a LeaderWorkerSet: the one that leads has its name, the others are NAME-rank."""
    for suffix, which in (("", "leaderTemplate"), ("-rank", "workerTemplate")):
        template = spec["leaderWorkerTemplate"][which]
        yield name + suffix, template["metadata"]["labels"], template["spec"]
