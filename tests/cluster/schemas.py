"""Random JSON Schemas that small answers fit, and whether a value fits one: with the library `jsonschema` where it is installed, and in
any case with the few keywords that are used here."""
import re
import string

try:
    import jsonschema
except ImportError:
    jsonschema = None

PATTERNS = ["^[a-z]{2,6}$", "^(red|green|blue)$", "^\\d{3}-\\d{2}$", "^[A-F0-9]{4}$"]


def scalar(r):
    kind = r.randrange(8)
    if kind == 0:
        low = r.randint(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + r.randint(0, 500)}
    if kind == 1:
        return {"type": "number", "minimum": r.randint(-9, 0), "maximum": r.randint(1, 9)}
    if kind == 2:
        return {"type": "string", "pattern": r.choice(PATTERNS)}
    if kind == 3:
        return {"type": "string", "minLength": r.randint(0, 2), "maxLength": r.randint(3, 9)}
    if kind == 4:
        return {"enum": r.sample(["a", "b c", "\u00e9", "\"q\"", 1, -2.5, None, True, ["x"], {"k": 0}], r.randint(1, 5))}
    if kind == 5:
        return {"const": r.choice(["yes", 7, False, None, {"a": [1, 2]}])}
    if kind == 6:
        return {"type": r.sample(["boolean", "null", "integer"], 2)}
    return {"type": "boolean"}


def schema(r, depth=3):
    kind = r.randrange(6) if depth else 0
    if kind <= 1:
        return scalar(r)
    if kind == 2:
        low = r.randint(0, 2)
        return {"type": "array", "items": schema(r, depth - 1), "minItems": low, "maxItems": low + r.randint(0, 2)}
    if kind == 3:
        return {"anyOf": [schema(r, depth - 1) for _ in range(r.randint(1, 3))]}
    names = r.sample(string.ascii_lowercase[:8] + "\u00fc", r.randint(1, 4))
    return {"type": "object", "properties": {name: schema(r, depth - 1) for name in names}, "additionalProperties": False,
            "required": [name for name in names if r.random() < 0.6]}


def is_type(value, name):
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return {"boolean": isinstance(value, bool), "null": value is None, "string": isinstance(value, str), "number": number,
            "integer": number and value == int(value), "array": isinstance(value, list), "object": isinstance(value, dict)}[name]


def same(a, b):
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return a == b


def fits_here(value, s):
    types = s.get("type", [])
    types = [types] if isinstance(types, str) else types
    checks = [
        not types or any(is_type(value, name) for name in types),
        "const" not in s or same(value, s["const"]),
        "enum" not in s or any(same(value, one) for one in s["enum"]),
        "anyOf" not in s or any(fits_here(value, one) for one in s["anyOf"]),
    ]
    if is_type(value, "number"):
        checks += [value >= s.get("minimum", value), value <= s.get("maximum", value)]
    if isinstance(value, str):
        checks += [s.get("minLength", 0) <= len(value) <= s.get("maxLength", 1e9), not s.get("pattern") or re.search(s["pattern"], value)]
    if isinstance(value, list):
        checks += [s.get("minItems", 0) <= len(value) <= s.get("maxItems", 1e9), all(fits_here(one, s.get("items", {})) for one in value)]
    if isinstance(value, dict):
        known = s.get("properties", {})
        checks += [all(name in value for name in s.get("required", [])), s.get("additionalProperties", True) or set(value) <= set(known)]
        checks += [fits_here(value[name], known[name]) for name in value if name in known]
    return all(checks)


def fits(value, s):
    if jsonschema:
        assert jsonschema.Draft202012Validator(s).is_valid(value) == fits_here(value, s), (value, s)
    return fits_here(value, s)
