"""Custom resources against the OpenAPI schemas of their definitions, as an API server would check them; a field that the schema has not, which
a server would drop in silence, is a fault, too."""
from where import TOOLS

FILES = sorted((TOOLS / "definitions").glob("*.yaml"))


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


def schemas():
    """(kind, apiVersion) -> schema."""
    import yaml
    out = {}
    for path in FILES:
        definition = yaml.safe_load(path.read_text())["spec"]
        for version in definition["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            schema["properties"]["metadata"] = {"type": "object"}  # the API server's own
            out[definition["names"]["kind"], f"{definition['group']}/{version['name']}"] = schema
    return out


def faults(objects):
    """One line a fault."""
    import jsonschema
    known, out = schemas(), []
    for o in objects:
        schema = known.get((o["kind"], o["apiVersion"]))
        if schema is None:
            out.append(f"{o['kind']} {o['apiVersion']}: no definition")
            continue
        for error in jsonschema.Draft7Validator(schema).iter_errors(o):
            out.append(f"{o['kind']} {'/'.join(map(str, error.absolute_path))}: {error.message}")
    return out
