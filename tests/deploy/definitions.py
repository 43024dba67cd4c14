"""Custom resources against the OpenAPI schemas of their definitions, as an API server would check them; a field that the schema has not, which
a server would drop in silence, is a fault, too."""
import functools

from where import TOOLS

FILES = sorted((TOOLS / "definitions").glob("*.yaml"))


@functools.cache
def kubernetes():
    """kubernetes_validate, which reads 2 MB of definitions for every object, here once for a version."""
    from kubernetes_validate import utils
    utils.schema_contents = functools.cache(utils.schema_contents)
    return utils


def strict(schema):
    """The schema as JSON Schema: no fields but its own."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) for key, value in schema.items() if key != "description"}
    if out.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields") and isinstance(schema["properties"], dict):
        out.setdefault("additionalProperties", False)
    return out


@functools.cache
def validators():
    """(kind, apiVersion) -> what checks an object of it. The definitions are 36,000 lines, read once."""
    import jsonschema
    import yaml
    out = {}
    for path in FILES:
        definition = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))["spec"]
        for version in definition["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}  # the API server's own
            out[definition["names"]["kind"], f"{definition['group']}/{version['name']}"] = jsonschema.Draft7Validator(schema)
    return out


def faults(objects):
    """One line a fault."""
    out = []
    for o in objects:
        validator = validators().get((o["kind"], o["apiVersion"]))
        if validator is None:
            out.append(f"{o['kind']} {o['apiVersion']}: no definition")
            continue
        for error in validator.iter_errors(o):
            out.append(f"{o['kind']} {'/'.join(map(str, error.absolute_path))}: {error.message}")
    return out
